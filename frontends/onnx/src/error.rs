//! The errors of an import. Every message names the file and the tensor, symbol or node at fault, what was
//! expected and what was found.

use symmc_import::ranges::{MentionedSymbols, RangeError};
use thiserror::Error;

#[derive(Debug, Error)]
#[error("{file}: {reason}")]
pub struct ImportError {
    pub file: String,
    pub reason: FailureReason,
    /// The symbols that the message mentions, if it is about symbolic extents.
    pub symbols: Option<Box<MentionedSymbols>>,
}

#[derive(Debug, Error)]
pub enum FailureReason {
    #[error("{0}")]
    Io(std::io::Error),
    #[error("expected an ONNX model, found {0}")]
    Model(String),
    /// A version that is not supported.
    #[error("expected {expected}, found {found}")]
    Version { expected: String, found: String },
    #[error("stored tensor `{tensor}`: {message}")]
    Tensor { tensor: String, message: String },
    /// The range of a symbol is empty or unusable, or a constraint of the caller contradicts the program.
    #[error(transparent)]
    Range(#[from] RangeError),
    #[error("`{value}`: {message}")]
    Value { value: String, message: String },
    #[error("node `{node}` ({op}): {message}")]
    Node { node: String, op: String, message: String },
    /// Ops without support whose result types are not known.
    #[error(
        "these operators are not supported, and neither the program nor their schema gives the types of their results: {0}; \
         onnx.shape_inference adds the types of ONNX's own operators"
    )]
    Unsupported(String),
    #[error("{0}")]
    Ranks(String),
    /// The program differs from that of rank 0.
    #[error("the program differs from that of {first}: expected `{expected}`, found `{found}`")]
    Difference {
        first: String,
        /// The text of rank 0 at the first difference.
        expected: String,
        found: String,
    },
    /// The graph violates an invariant of the IR, such as the limits of extents.
    #[error("the program cannot be represented: {0}")]
    Graph(String),
}

impl FailureReason {
    pub(crate) fn in_file(self, file: &str) -> ImportError {
        ImportError { file: file.to_string(), reason: self, symbols: None }
    }
}
