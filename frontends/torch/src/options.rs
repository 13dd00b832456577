//! The options of an import.

use indexmap::IndexMap;
use symmc_import::ranges::SymbolConstraints;

/// Information that the file does not contain.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// The name of the graph. In an archive of several programs, also the program to read.
    pub name: String,
    /// The number of ranks, if the caller knows it.
    pub ranks: Option<u32>,
    /// The number of ranks if neither [`ranks`](Self::ranks) nor the program determines it.
    pub assumed_ranks: Option<u32>,
    /// The members of groups by PyTorch's names: lists of ranks that partition all ranks. A group without an
    /// entry consists of all ranks if its name or its size says so. Otherwise it cannot be imported.
    pub groups: IndexMap<String, Vec<Vec<u32>>>,
    /// The caller's constraints on symbols, and the shapes of recorded arguments.
    pub constraints: SymbolConstraints,
    /// The largest bound of symbols for which neither the program nor the caller gives one.
    pub max_extent: i64,
    /// Schemas of custom ops in PyTorch's notation, for ops that may write: `mylib::f(Tensor x, Tensor(a!)
    /// out) -> ()`.
    pub schemas: Vec<String>,
    /// Definitions of ops: programs in the text form that replace calls of the op whose schema is their name.
    pub definitions: Vec<String>,
}

impl Default for ImportOptions {
    fn default() -> Self {
        ImportOptions {
            name: "model".into(),
            ranks: None,
            assumed_ranks: None,
            groups: IndexMap::new(),
            constraints: SymbolConstraints::default(),
            max_extent: 1 << 20,
            schemas: Vec::new(),
            definitions: Vec::new(),
        }
    }
}
