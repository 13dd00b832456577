//! A norm of rows that element-wise steps give, as one kernel.
//!
//! The element-wise steps are done as the rows are read, so that their result, if others read it as well, is stored but not
//! read again. Values are rounded as in [`super::fuse`]; what a norm adds up has the order that it has by itself, where its
//! threads share rows alike.

use symmc_runtime::exec::Located;

use super::fuse;
use super::lowering::{Lowering, Operation};
use super::map::{Map, Val};
use super::rows::{self, Norm};
use crate::codegen::command::Command;
use crate::error::Result;

/// What element-wise steps and the norm behind them do on the device, as one kernel; `None` where their shapes do not allow
/// it.
pub fn lower(steps: &[Operation<'_>], l: &mut Lowering<'_>) -> Result<Option<Vec<Command>>> {
    let Some((last, maps)) = steps.split_last() else { return Ok(Some(Vec::new())) };
    let norm = Norm::of(last.op)?;
    super::lowering::arity(last.op, last.operands.len(), last.results.len())?;
    let shape = &last.results[0].shape;
    if !fuse::fit(maps, shape) {
        return Ok(None);
    }
    let mut map = Map::over(shape);
    let mut known: Vec<(&Located, Val)> = Vec::with_capacity(maps.len());
    for step in maps {
        fuse::evaluate(&mut map, step, &mut known, shape, l)?;
    }
    fuse::store(&mut map, &known, shape, l);
    let given = known.iter().rev().find(|(r, _)| fuse::same_places(r, &last.operands[0], shape));
    match given {
        Some(&(_, value)) => rows::norm_of_map(norm, &map, value, last.operands, &last.results[0], l),
        None => Ok(None),
    }
}
