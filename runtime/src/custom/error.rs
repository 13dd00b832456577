//! Why a kernel of a custom op ends without its results.

use symmc_ir::DType;
use thiserror::Error;

/// The failure of a kernel. A kernel's own reason is a text: `Err("it does not converge".into())`.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum CustomError {
    /// The kernel's own reason.
    #[error("{0}")]
    Failed(String),
    /// There is no operand or result of this position.
    #[error("the kernel asks for {what} {position}, the op has {count}")]
    Position {
        /// `operand` or `result`.
        what: &'static str,
        position: usize,
        count: usize,
    },
    /// An operand or result has another dtype than the kernel reads or writes.
    #[error("{what} {position} is {found}, the kernel takes it for {expected}")]
    Type {
        what: &'static str,
        position: usize,
        found: DType,
        /// The Rust type that the kernel asks for.
        expected: &'static str,
    },
    /// The kernel asks for memory of a peer that the signature does not declare.
    #[error("the signature does not let kernels {access} {what} {position} of peers")]
    Undeclared {
        /// `read` or `write`.
        access: &'static str,
        what: &'static str,
        position: usize,
    },
    /// There is no rank of this number in the cell.
    #[error("the kernel asks for number {number} of a cell of {ranks} ranks")]
    Number { number: usize, ranks: usize },
    /// A result that peers write too is asked for as a slice.
    #[error("peers write result {position} too: the kernel must write it as a result of peers")]
    Shared { position: usize },
    /// A result is asked for a second time.
    #[error("the kernel has result {position} already")]
    Taken { position: usize },
    /// Elements are written beyond the end of a result.
    #[error("the kernel writes {len} elements at {at} of result {position}, which has {elements}")]
    Range {
        position: usize,
        /// The first element that is written.
        at: usize,
        len: usize,
        elements: usize,
    },
}

impl From<String> for CustomError {
    fn from(reason: String) -> Self {
        CustomError::Failed(reason)
    }
}

impl From<&str> for CustomError {
    fn from(reason: &str) -> Self {
        CustomError::Failed(reason.into())
    }
}
