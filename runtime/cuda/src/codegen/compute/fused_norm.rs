//! A norm of rows that element-wise steps compute, as one kernel.
//!
//! The element-wise steps are computed as the rows are read. If other steps read their result too, it is
//! stored but not read again. Values are rounded as in [`super::fused_map`]. The sums of the norm have the
//! order of a separate norm, if its threads share rows in the same way.

use symmc_runtime::exec::LocatedTensor;

use super::fused_map;
use super::lowering::{BoundOperation, KernelLowering};
use super::map::{MapKernel, MapValue};
use super::rows::{self, RowNorm};
use crate::codegen::command::GpuCommand;
use crate::error::Result;

/// Lowers element-wise steps and the norm after them to one kernel; `None` if their shapes do not allow it.
pub fn lower(steps: &[BoundOperation<'_>], l: &mut KernelLowering<'_>) -> Result<Option<Vec<GpuCommand>>> {
    let Some((last, maps)) = steps.split_last() else { return Ok(Some(Vec::new())) };
    let norm = RowNorm::of(last.op)?;
    super::lowering::arity(last.op, last.operands.len(), last.results.len())?;
    let shape = &last.results[0].shape;
    if !fused_map::fit_shape(maps, shape) {
        return Ok(None);
    }
    let mut map = MapKernel::over_shape(shape);
    let mut values: Vec<(&LocatedTensor, MapValue)> = Vec::with_capacity(maps.len());
    for step in maps {
        fused_map::evaluate(&mut map, step, &mut values, shape, l)?;
    }
    fused_map::store(&mut map, &values, shape, l);
    let operand_value =
        values.iter().rev().find(|(r, _)| fused_map::reads_same_elements(r, &last.operands[0], shape));
    match operand_value {
        Some(&(_, value)) => rows::norm_of_map(norm, &map, value, last.operands, &last.results[0], l),
        None => Ok(None),
    }
}
