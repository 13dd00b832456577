//! Why a kernel refuses its operands.

use symmc_ir::text::op_name;
use symmc_ir::{DType, Op};
use thiserror::Error;

use crate::error::DataFault;

/// Why a kernel refused its operands.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum KernelError {
    /// An index points outside its axis.
    #[error("the index {index} is outside axis {axis}, which has extent {extent}")]
    Index {
        /// The index as it was given.
        index: i64,
        /// The axis of the operand that it indexes.
        axis: usize,
        /// The extent of that axis.
        extent: usize,
    },
    /// Shapes or dtypes do not fit each other.
    #[error("{what}: expected {expected}, found {found}")]
    Shape {
        /// Which operand or result.
        what: String,
        /// What would fit.
        expected: String,
        /// What was given.
        found: String,
    },
    /// The number of operands or results is not that of the op.
    #[error("{op}: expected {expected}, found {found}")]
    Arity {
        /// The op.
        op: String,
        /// What would fit.
        expected: String,
        /// What was given.
        found: String,
    },
    /// The op is not defined on the dtype.
    #[error("{op} is not defined on {dtype}")]
    Undefined {
        /// The op.
        op: String,
        /// The dtype of the operand.
        dtype: DType,
    },
    /// A group of rows ends before the one in front of it, or beyond the rows.
    #[error("a group of rows ends at {end}, where ends ascend from 0 to at most {rows}")]
    GroupEnd {
        /// The first such end.
        end: i64,
        /// The number of rows.
        rows: usize,
    },
    /// An integer is divided by zero.
    #[error("an integer is divided by zero")]
    ZeroDivisor,
    /// A maximum, a minimum or an arg-reduction of no elements.
    #[error("{op} of no elements")]
    Empty {
        /// The reduction.
        op: String,
    },
    /// An attribute still holds a symbol.
    #[error("{what} has no concrete value")]
    Symbolic {
        /// Which attribute.
        what: String,
    },
    /// There is no kernel for the op.
    #[error("there is no kernel for {op}")]
    NoKernel {
        /// The op.
        op: String,
    },
}

impl KernelError {
    /// What is wrong with the data of the operands; `None` if the step does not fit its op instead.
    pub fn data_fault(&self) -> Option<DataFault> {
        use KernelError::{Arity, Empty, GroupEnd, Index, NoKernel, Shape, Symbolic, Undefined, ZeroDivisor};
        match self {
            Index { .. } => Some(DataFault::Index),
            ZeroDivisor => Some(DataFault::Division),
            GroupEnd { .. } | Empty { .. } => Some(DataFault::Other),
            Shape { .. } | Arity { .. } | Undefined { .. } | Symbolic { .. } | NoKernel { .. } => None,
        }
    }

    pub(super) fn shape(what: &str, expected: &[usize], found: &[usize]) -> Self {
        KernelError::Shape {
            what: what.into(),
            expected: format!("{expected:?}"),
            found: format!("{found:?}"),
        }
    }
}

/// Checks that the slices that [`compute_with`](super::compute_with) takes apart are long enough.
pub(super) fn arity(op: &Op, operands: usize, results: usize) -> Result<(), KernelError> {
    symmc_ir::infer::fits(op, operands, results).map_err(|expected| KernelError::Arity {
        op: op_name(op).into(),
        expected,
        found: format!("{operands} and {results}"),
    })
}
