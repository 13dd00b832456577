//! The errors of an import. Every message names the entry, symbol or node at fault, what was expected and
//! what was found.

use thiserror::Error;

/// A result whose error is [`ImportError`] unless another one is named.
pub type Result<T, E = ImportError> = std::result::Result<T, E>;

#[derive(Debug, Error)]
pub enum ImportError {
    #[error("not a readable zip archive: {0}")]
    Zip(String),
    #[error("the archive has no entry `{entry}`{hint}")]
    MissingEntry {
        /// The entry, without the root folder.
        entry: String,
        /// The possible reason. Empty or starting with a separator.
        hint: String,
    },
    #[error("entry `{entry}`: {message}")]
    Entry { entry: String, message: String },
    /// The content of an entry is not that of a supported program.
    #[error("entry `{entry}`: expected {expected}, found {found}")]
    Content {
        entry: String,
        /// The content that a supported program has there.
        expected: String,
        found: String,
    },
    #[error("entry `{entry}`: the unpacked size of {found} bytes exceeds the limit of {limit}")]
    TooLarge {
        entry: String,
        /// The size of the entry, or of everything that was read so far.
        found: u64,
        limit: u64,
    },
    #[error("entry `{entry}`: expected schema version 8, found {found}")]
    Schema { entry: String, found: String },
    /// A tensor is stored as a pickle, which is never executed.
    #[error("`{tensor}` is stored as a pickle in `{entry}`: {message}")]
    Pickled { tensor: String, entry: String, message: String },
    #[error("stored tensor `{tensor}`: expected {expected}, found {found}")]
    Stored { tensor: String, expected: String, found: String },
    #[error("the expression `{expression}`: {message}")]
    Expression {
        expression: String,
        /// The part of the expression that is not supported.
        message: String,
    },
    /// The range of a symbol is empty or unusable, or a constraint of the caller contradicts the program.
    #[error(transparent)]
    Range(#[from] symmc_import::ranges::RangeError),
    /// An error about symbolic extents. A missing constraint may be the reason: a range, or the equality of
    /// two symbols.
    #[error("{error}")]
    Extents { error: Box<ImportError>, symbols: Box<symmc_import::ranges::MentionedSymbols> },
    #[error("`{name}` in the signature: {message}")]
    Signature { name: String, message: String },
    /// Contradictory numbers of ranks of the program or of a group.
    #[error("{what}: {first} says {first_ranks} ranks, {second} says {second_ranks}{hint}")]
    Ranks {
        what: String,
        /// The source of the first number.
        first: String,
        first_ranks: u32,
        /// The source of the second number.
        second: String,
        second_ranks: u32,
        /// Advice. Empty or starting with a separator.
        hint: String,
    },
    #[error("group `{group}`: {message}")]
    Group { group: String, message: String },
    /// A schema that the caller declares is invalid, or does not apply to the program.
    #[error("the schema `{schema}`: {message}")]
    Declared { schema: String, message: String },
    /// A definition of an op cannot be read, or does not apply to the program.
    #[error("the definition of {}: {message}", if .op.is_empty() { "an op" } else { .op })]
    Definition { op: String, message: String },
    /// The error is in the archive of a rank after the first.
    #[error("rank {rank}: {source}")]
    Rank { rank: usize, source: Box<ImportError> },
    #[error(
        "{place}: rank 0 has {first}, this rank has {found}; the programs of ranks may differ in names, data, single numbers and the slices that they take: \
         turn other branches on the rank into numbers or data before the export"
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
    /// The operator does not accept the dtypes of its operands together, or a number that its dtype cannot hold. PyTorch
    /// raises an error as well.
    #[error("node `{node}` ({op}): {message}")]
    Dtypes { node: String, op: String, message: String },
    /// The graph violates an invariant of the IR, such as the limits of extents.
    #[error("the program cannot be represented: {0}")]
    Graph(String),
    /// The type of a value is not the one that the program declares.
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

    /// Whether the error is one of dtypes, or of numbers outside of them, for which PyTorch raises as well.
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
    /// The name of the group in PyTorch.
    pub name: String,
    pub size: Option<u32>,
    pub nodes: Vec<String>,
}

/// The number of nodes per group that a message lists.
const SHOWN: usize = 3;

fn list_undescribed_groups(groups: &[UndescribedGroup]) -> String {
    let described = groups.iter().map(|g| {
        let size = g.size.map_or(String::new(), |n| format!("{n} ranks each, "));
        let nodes: Vec<String> = g.nodes.iter().take(SHOWN).map(|n| format!("`{n}`")).collect();
        let further = match g.nodes.len().saturating_sub(SHOWN) {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        let noun = if g.nodes.len() == 1 { "node" } else { "nodes" };
        format!("group `{}` ({size}{noun} {}{further})", g.name, nodes.join(", "))
    });
    described.collect::<Vec<_>>().join(" and ")
}
