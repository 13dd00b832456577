//! The ops that may refuse the data of their operands, derived from shapes and attributes only.
//!
//! Ranks confirm success at the end of a run that has such a step, so the result must be the same on all
//! ranks. A missing case here skips this confirmation, but is not unsafe: the error still ends the run on all
//! ranks. A test compares the cases with the kernels.

use symmc_ir::{Op, RejectedData};

use super::needs::TensorLayout;

/// Whether the kernel of an op may refuse the elements of these operands.
pub fn may_refuse_data(op: &Op, operands: &[TensorLayout<'_>]) -> bool {
    let dtype = operands.first().map(|(dtype, ..)| *dtype);
    let is_integer = dtype.is_some_and(|dtype| !dtype.is_float());
    match op.facts().rejected_data {
        RejectedData::Nothing => false,
        RejectedData::Positions => true,
        RejectedData::ZeroDivisor { scalar } => {
            is_integer
                && scalar
                    .is_none_or(|scalar| dtype.is_none_or(|dtype| scalar.convert_to(dtype).as_f64() == 0.0))
        }
        RejectedData::NoElements { axes } => {
            let Some((_, shape, _)) = operands.first() else { return false };
            axes.iter().any(|&axis| shape.get(axis) == Some(&0))
        }
    }
}
