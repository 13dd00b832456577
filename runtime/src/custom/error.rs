//! The errors of kernels of custom ops.

use symmc_ir::DType;
use thiserror::Error;

/// The failure of a kernel. A kernel states its own reason as text: `Err("it does not converge".into())`.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum CustomError {
    /// The kernel's own reason.
    #[error("{0}")]
    Failed(String),
    /// There is no operand or result at this position.
    #[error("the kernel asks for {what} {position}, the op has {count}")]
    Position {
        /// `operand` or `result`.
        what: &'static str,
        position: usize,
        count: usize,
    },
    /// An operand or result has another dtype than the kernel reads or writes.
    #[error("{what} {position} is {found}, the kernel accesses it as {expected}")]
    Type {
        what: &'static str,
        position: usize,
        found: DType,
        /// The Rust type that the kernel requests.
        expected: &'static str,
    },
    /// The kernel requests memory of a peer that the signature does not declare.
    #[error("the signature does not let kernels {access} {what} {position} of peers")]
    Undeclared {
        /// `read` or `write`.
        access: &'static str,
        what: &'static str,
        position: usize,
    },
    /// The cell has no rank of this number.
    #[error("the kernel asks for rank number {number} of a cell of {ranks} ranks")]
    Number { number: usize, ranks: usize },
    /// A result that peers write too is requested as a slice.
    #[error("peers write result {position} too: the kernel must write it as a result of peers")]
    Shared { position: usize },
    /// A result is requested a second time.
    #[error("the kernel has borrowed result {position} already")]
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
