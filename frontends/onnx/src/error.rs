//! Why programs could not be imported. Every message names the file and the tensor, symbol or node at fault, what was
//! expected and what was found.

use symmc_import::ranges::{Questioned, RangeError};
use thiserror::Error;

/// A file that cannot be imported.
#[derive(Debug, Error)]
#[error("{file}: {reason}")]
pub struct ImportError {
    /// The file.
    pub file: String,
    /// What is wrong with it.
    pub reason: Reason,
    /// The symbols in question, where extents with symbols show that something is wrong.
    pub symbols: Option<Box<Questioned>>,
}

/// What is wrong with a file.
#[derive(Debug, Error)]
pub enum Reason {
    /// It cannot be read.
    #[error("{0}")]
    Io(std::io::Error),
    /// It is no ONNX model, or a damaged one.
    #[error("expected an ONNX model, found {0}")]
    Model(String),
    /// It is written in a version that is not read.
    #[error("expected {expected}, found {found}")]
    Version {
        /// What is read.
        expected: String,
        /// What the file says.
        found: String,
    },
    /// A stored tensor is not what it says.
    #[error("stored tensor `{tensor}`: {message}")]
    Tensor {
        /// Its name.
        tensor: String,
        /// What was expected and found.
        message: String,
    },
    /// The range of a symbol is empty or unusable, or what the caller says of it contradicts the program.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// An input, an output or a value is not what the graph says.
    #[error("`{value}`: {message}")]
    Value {
        /// Its name.
        value: String,
        /// What was expected and found.
        message: String,
    },
    /// A node cannot be represented, or gives another type than the program declares.
    #[error("node `{node}` ({op}): {message}")]
    Node {
        /// The name of the node.
        node: String,
        /// Its op.
        op: String,
        /// What was expected and found.
        message: String,
    },
    /// The number of ranks is contradictory.
    #[error("{0}")]
    Ranks(String),
    /// The program is not that of rank 0.
    #[error("the program is not that of {first}: expected `{expected}`, found `{found}`")]
    Difference {
        /// The file of rank 0.
        first: String,
        /// What that has at the first difference.
        expected: String,
        /// What this has there.
        found: String,
    },
    /// The graph breaks an invariant of the IR, such as the limits of extents.
    #[error("the program cannot be represented: {0}")]
    Graph(String),
}

impl Reason {
    /// The error of a file.
    pub(crate) fn of(self, file: &str) -> ImportError {
        ImportError { file: file.to_string(), reason: self, symbols: None }
    }
}
