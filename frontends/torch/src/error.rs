//! Why a program could not be imported. Every message names the entry, symbol or node at fault, what was
//! expected and what was found.

use thiserror::Error;

/// The result of what fails with a [`ImportError`], or with another error where one is named.
pub type Result<T, E = ImportError> = std::result::Result<T, E>;

#[derive(Debug, Error)]
pub enum ImportError {
    #[error("not a readable zip archive: {0}")]
    Zip(String),
    #[error("the archive has no entry `{entry}`{hint}")]
    MissingEntry {
        /// The entry, without the root folder.
        entry: String,
        /// What may have happened; empty or starting with a separator.
        hint: String,
    },
    #[error("entry `{entry}`: {message}")]
    Entry { entry: String, message: String },
    /// An entry has another content than a program of this kind.
    #[error("entry `{entry}`: expected {expected}, found {found}")]
    Content {
        entry: String,
        /// What a readable program has there.
        expected: String,
        found: String,
    },
    #[error("entry `{entry}`: {found} bytes unpacked are more than the limit of {limit}")]
    TooLarge {
        entry: String,
        /// Its size, or the size of all that was read so far.
        found: u64,
        limit: u64,
    },
    #[error("entry `{entry}`: expected schema version 8, found {found}")]
    Schema { entry: String, found: String },
    /// A tensor is stored as a pickle, which is never executed.
    #[error("`{tensor}` is stored as a pickle in `{entry}`: expected a raw storage")]
    Pickled { tensor: String, entry: String },
    #[error("stored tensor `{tensor}`: expected {expected}, found {found}")]
    Stored { tensor: String, expected: String, found: String },
    #[error("the expression `{expression}`: {message}")]
    Expression {
        expression: String,
        /// Which part of it is not supported.
        message: String,
    },
    /// The range of a symbol is empty or unusable, or what the caller says of it contradicts the program.
    #[error(transparent)]
    Range(#[from] symmc_import::ranges::RangeError),
    /// Something is wrong that extents with symbols show; it may be that these have no range, or are equal.
    #[error("{error}")]
    Extents { error: Box<ImportError>, symbols: symmc_import::ranges::MentionedSymbols },
    #[error("`{name}` in the signature: {message}")]
    Signature { name: String, message: String },
    /// The number of ranks, or of a group, is contradictory.
    #[error("{what}: {first} says {first_ranks} ranks, {second} says {second_ranks}{hint}")]
    Ranks {
        what: String,
        /// Who says the first number.
        first: String,
        first_ranks: u32,
        /// Who says the second number.
        second: String,
        second_ranks: u32,
        /// What helps; empty or starting with a separator.
        hint: String,
    },
    #[error("group `{group}`: {message}")]
    Group { group: String, message: String },
    /// A schema that the caller declares cannot be read or used.
    #[error("the schema `{schema}`: {message}")]
    Declared { schema: String, message: String },
    /// The archive of a rank after the first is at fault.
    #[error("rank {rank}: {source}")]
    Rank { rank: usize, source: Box<ImportError> },
    #[error(
        "{place}: expected what the archive of rank 0 has, {first}, found {found}; ranks may differ in names, data, single numbers and the parts that they take: other branches on the \
         rank have to be numbers or data before the export"
    )]
    Difference {
        /// The node and argument, input or output.
        place: String,
        /// What rank 0 has.
        first: String,
        /// What this rank has.
        found: String,
    },
    #[error("the members of {} are not known", list_undescribed_groups(.groups))]
    Undescribed { groups: Vec<UndescribedGroup>, ranks: Option<u32> },
    #[error("node `{node}` ({op}): {message}")]
    Node { node: String, op: String, message: String },
    /// The operands of a node have dtypes that its operator does not take together: PyTorch raises, too.
    #[error("node `{node}` ({op}): {message}")]
    Dtypes { node: String, op: String, message: String },
    /// The graph breaks an invariant of the IR, such as the limits of extents.
    #[error("the program cannot be represented: {0}")]
    Graph(String),
    /// A value has another type than the program declares for it.
    #[error("node `{node}` ({op}): the program declares {expected} for `{value}`, found {found}")]
    Type { node: String, op: String, value: String, expected: String, found: String },
}

impl ImportError {
    pub fn node(&self) -> Option<(&str, &str)> {
        match self {
            ImportError::Node { node, op, .. }
            | ImportError::Type { node, op, .. }
            | ImportError::Dtypes { node, op, .. } => Some((node, op)),
            ImportError::Rank { source, .. } => source.node(),
            ImportError::Extents { error, .. } => error.node(),
            _ => None,
        }
    }

    /// Whether operands have dtypes for which PyTorch raises, too.
    pub fn is_dtype_error(&self) -> bool {
        match self {
            ImportError::Dtypes { .. } => true,
            ImportError::Rank { source, .. } => source.is_dtype_error(),
            ImportError::Extents { error, .. } => error.is_dtype_error(),
            _ => false,
        }
    }

    pub(crate) fn with_rank(self, rank: usize) -> ImportError {
        if rank == 0 { self } else { ImportError::Rank { rank, source: Box::new(self) } }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UndescribedGroup {
    /// PyTorch's name for it.
    pub name: String,
    pub size: Option<u32>,
    pub nodes: Vec<String>,
}

/// How many nodes of a group a message names.
const SHOWN: usize = 3;

fn list_undescribed_groups(groups: &[UndescribedGroup]) -> String {
    let one = |g: &UndescribedGroup| {
        let size = g.size.map_or(String::new(), |n| format!("{n} ranks each, "));
        let nodes: Vec<String> = g.nodes.iter().take(SHOWN).map(|n| format!("`{n}`")).collect();
        let more = match g.nodes.len().saturating_sub(SHOWN) {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        let what = if g.nodes.len() == 1 { "node" } else { "nodes" };
        format!("group `{}` ({size}{what} {}{more})", g.name, nodes.join(", "))
    };
    groups.iter().map(one).collect::<Vec<_>>().join(" and ")
}
