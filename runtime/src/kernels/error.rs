//! The errors of kernels that refuse their operands.

use symmc_ir::text::op_name;
use symmc_ir::{DType, Op};
use thiserror::Error;

use crate::error::DataFault;

/// The result of an operation that fails with a [`KernelError`], or with another error type where one is
/// named.
pub type Result<T, E = KernelError> = std::result::Result<T, E>;

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum KernelError {
    #[error("the index {index} is outside axis {axis}, which has extent {extent}")]
    Index { index: i64, axis: usize, extent: usize },
    #[error("{what}: expected {expected}, found {found}")]
    Shape { what: String, expected: String, found: String },
    #[error("{op}: expected {expected}, found {found}")]
    Arity { op: String, expected: String, found: String },
    #[error("{op} is not defined on {dtype}")]
    Undefined { op: String, dtype: DType },
    /// A group of rows ends before the previous group, or beyond the rows.
    #[error("a group of rows ends at {end}: expected ascending ends from 0 to at most {rows}")]
    GroupEnd {
        /// The first invalid end.
        end: i64,
        rows: usize,
    },
    #[error("the id {id} of a token{}: expected an expert from 0 to {}, or -1 for none", of_rank(*rank), experts.saturating_sub(1))]
    ExpertId {
        /// The rank that passed the id. `None` if each rank routes its own tokens.
        rank: Option<u32>,
        id: i64,
        experts: usize,
    },
    /// A rank would receive more rows than it has memory for.
    #[error(
        "rank {rank} of the group receives {rows} rows: expected at most {capacity}, the capacity of the program"
    )]
    Capacity {
        rank: usize,
        /// The number of rows, with the gaps after sections.
        rows: usize,
        capacity: usize,
    },
    /// An expert would receive more rows than its share of the capacity.
    #[error("expert {expert} receives {rows} rows: expected at most {capacity}, its share of the capacity")]
    ExpertCapacity { expert: usize, rows: usize, capacity: usize },
    #[error("an integer is divided by zero")]
    ZeroDivisor,
    #[error("{op} of no elements")]
    Empty { op: String },
    #[error("{what} has no concrete value")]
    Symbolic { what: String },
    #[error("there is no kernel for {op}")]
    NoKernel { op: String },
}

impl KernelError {
    /// The kind of invalid data in the operands; `None` if the step does not fit its op instead.
    pub fn data_fault(&self) -> Option<DataFault> {
        use KernelError::{
            Arity, Capacity, Empty, ExpertCapacity, ExpertId, GroupEnd, Index, NoKernel, Shape, Symbolic,
            Undefined, ZeroDivisor,
        };
        match self {
            Index { .. } | ExpertId { .. } => Some(DataFault::Index),
            ZeroDivisor => Some(DataFault::Division),
            GroupEnd { .. } | Capacity { .. } | ExpertCapacity { .. } | Empty { .. } => {
                Some(DataFault::Other)
            }
            Shape { .. } | Arity { .. } | Undefined { .. } | Symbolic { .. } | NoKernel { .. } => None,
        }
    }

    /// The rank that passed the invalid data, if the step reads data of several ranks and knows it.
    pub fn source_rank(&self) -> Option<u32> {
        match self {
            KernelError::ExpertId { rank, .. } => *rank,
            _ => None,
        }
    }

    pub(super) fn shape_mismatch(what: &str, expected: &[usize], found: &[usize]) -> Self {
        KernelError::Shape {
            what: what.into(),
            expected: format!("{expected:?}"),
            found: format!("{found:?}"),
        }
    }
}

fn of_rank(rank: Option<u32>) -> String {
    rank.map_or_else(String::new, |rank| format!(" of rank {rank}"))
}

/// Checks that the slices that [`compute_with`](super::compute_with) indexes are long enough.
pub(super) fn check_arity(op: &Op, operands: usize, results: usize) -> Result<()> {
    symmc_ir::infer::check_operand_and_result_counts(op, operands, results).map_err(|expected| {
        KernelError::Arity { op: op_name(op).into(), expected, found: format!("{operands} and {results}") }
    })
}
