//! The ops that may refuse the data of their operands, decided from shapes and attributes only.
//!
//! Ranks agree at the end of a run that has such a step, so the answer must be the same on all ranks. A missing row here
//! costs this agreement, not safety: the error still ends the run on all ranks. A test compares the rows with the kernels.

use symmc_ir::{BinaryOp, Op, Reduction, Scalar};

use super::needs::Shaped;

/// Whether the kernel of an op may refuse the elements of these operands.
pub fn may_refuse_data(op: &Op, operands: &[Shaped<'_>]) -> bool {
    let dtype = operands.first().map(|(dtype, ..)| *dtype);
    let is_integer = dtype.is_some_and(|dtype| !dtype.is_float());
    let is_zero = |scalar: Scalar| dtype.is_none_or(|dtype| scalar.converted(dtype).as_f64() == 0.0);
    let divides = |op: BinaryOp| matches!(op, BinaryOp::FloorDiv | BinaryOp::Rem);
    let is_empty = |axis: &usize| operands.first().is_some_and(|(_, shape, _)| shape.get(*axis) == Some(&0));
    match op {
        Op::Take { .. }
        | Op::Index { .. }
        | Op::GatherElements { .. }
        | Op::ScatterElements { .. }
        | Op::IndexAdd { .. }
        | Op::IndexPut { .. }
        | Op::GroupedMatMul => true,
        Op::Binary(op) => is_integer && divides(*op),
        // A divisor that is a tensor, or a scalar that is zero.
        Op::BinaryScalar { op, scalar, scalar_left } => {
            is_integer && divides(*op) && (*scalar_left || is_zero(*scalar))
        }
        Op::Reduce { op: Reduction::Max | Reduction::Min, axes, .. } => axes.iter().any(is_empty),
        Op::ArgReduce { axis, .. } => is_empty(axis),
        Op::Permuted { op, .. } => may_refuse_data(op, operands),
        _ => false,
    }
}
