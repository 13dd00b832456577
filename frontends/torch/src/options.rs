//! What a caller says of a program beyond its file.

use indexmap::IndexMap;
use symmc_import::ranges::SymbolConstraints;

/// What the file leaves open.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// The name of the graph. In an archive of several programs, also which one to read.
    pub name: String,
    /// The number of ranks, if it is known otherwise than from the program.
    pub ranks: Option<u32>,
    /// The number of ranks where neither [`ranks`](Self::ranks) nor the program fixes it.
    pub assumed_ranks: Option<u32>,
    /// The members of groups by PyTorch's names: lists of ranks that partition all ranks. A group without
    /// an entry is all ranks if its name or its size says so; another cannot be imported.
    pub groups: IndexMap<String, Vec<Vec<u32>>>,
    /// What the caller says of symbols, and the shapes of recorded arguments.
    pub constraints: SymbolConstraints,
    /// The upper bound of symbols to which neither the program nor the caller gives one.
    pub max_extent: i64,
    /// Schemas of custom ops in PyTorch's notation, as far as the program does not tell what they write:
    /// `mylib::f(Tensor x, Tensor(a!) out) -> ()`.
    pub schemas: Vec<String>,
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
        }
    }
}
