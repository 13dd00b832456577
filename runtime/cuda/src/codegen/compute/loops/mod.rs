//! Loop nests: all dispatches of the form `loop`, and the single ops that are loops: element-wise ops, softmax and norms.
//!
//! ```text
//! steps ──build──► body over a space ──┬─ nothing is reduced ──► flat
//!                                      ├─ rows are reduced ────► rows
//!                                      └─ the axis before ─────► columns
//! ```
//!
//! A `LoopBuilder` makes one `LoopBody` of all steps: loads, statements, reductions and stores over one space. The
//! three generators differ in how threads pass over the space. They share the text of an access (`emit`).

mod body;
mod build;
mod columns;
mod element;
mod emit;
mod flat;
mod reduction;
mod rows;
mod strided_reads;

use symmc_ir::Op;
use symmc_ir::dispatch::reduced_axis;
use symmc_ir::text::op_name;
use symmc_runtime::exec::LocatedTensor;

use super::lowering::{BoundOperation, KernelLowering, mismatch_error};
use super::space::{Strides, is_contiguous};
use super::text::bits;
use crate::codegen::command::{Commands, GpuCommand};
use crate::error::Result;

pub(super) use body::{IndexTerm, LoopBody};
pub(super) use build::{LoopBuilder, reads_same_elements};
pub(super) use element::op_value;

/// Lowers the steps of a loop to one kernel; `None` if their shapes do not allow it.
pub fn lower(steps: &[BoundOperation<'_>], l: &mut KernelLowering<'_>) -> Result<Option<Vec<GpuCommand>>> {
    let reduced = steps.iter().find_map(|step| {
        let operand = step.operands.first()?;
        Some((&operand.shape[..], reduced_axis(step.op, operand.shape.len())?))
    });
    let (shape, axis) = match (reduced, steps.last().and_then(|last| last.results.first())) {
        (Some((shape, axis)), _) => (shape, Some(axis)),
        (None, Some(result)) => (&result.shape[..], None),
        (None, None) => return Ok(Some(Vec::new())),
    };
    let mut nest = LoopBuilder::new(shape, axis);
    for step in steps {
        if !nest.add(step, l)? {
            return Ok(None);
        }
    }
    nest.store_results(l);
    Ok(match axis {
        None => Some(nest.body.finish("loop", l).into_iter().collect()),
        Some(axis) if axis + 1 == shape.len() => rows::lower(nest, axis, "rows", l),
        Some(axis) => columns::lower(&nest, axis, l),
    })
}

/// Lowers an element-wise op, or one that computes each element from its position.
pub(super) fn lower_elements(
    op: &Op,
    operands: &[LocatedTensor],
    result: &LocatedTensor,
    l: &mut KernelLowering<'_>,
) -> Commands {
    if let Op::Full(scalar) = op
        && bits(result.dtype, *scalar) == 0
        && is_contiguous(result)
    {
        let bytes = result.shape.iter().product::<usize>() * result.dtype.size();
        let zero = GpuCommand::Zero { at: l.address_of(result), bytes };
        return Ok((bytes > 0).then_some(zero).into_iter().collect());
    }
    let mut nest = LoopBuilder::new(&result.shape, None);
    let mut values = Vec::with_capacity(operands.len());
    for x in operands {
        values.push((nest.operand(x, &result.shape, l)?, x.dtype));
    }
    let value = element::op_value(&mut nest.body, op, &values, result.dtype, l)?;
    nest.body.store(l.address_of(result), Strides::from_slice(&result.strides), value);
    Ok(nest.body.finish(op_name(op), l).into_iter().collect())
}

/// Lowers a softmax or a norm over these axes of its operand, which are within a row.
pub(super) fn lower_rows(
    op: &Op,
    inner: &[usize],
    operands: &[LocatedTensor],
    result: &LocatedTensor,
    l: &mut KernelLowering<'_>,
) -> Commands {
    let x = &operands[0];
    let rank = x.shape.len();
    let outer = (0..rank).filter(|axis| !inner.contains(axis));
    let order: Vec<usize> = outer.chain(inner.iter().copied()).collect();
    if order.len() != rank || result.shape != x.shape {
        return Err(mismatch_error("the result of an op on rows", &x.shape, &result.shape));
    }
    let split = rank - inner.len();
    let [x, result] = [x, result].map(|tensor| with_axis_order(tensor, &order));
    let mut nest = LoopBuilder::new(&x.shape, None);
    let value = match op {
        Op::Softmax { log, .. } => {
            let operand = nest.operand(&x, &x.shape, l)?;
            nest.reductions.softmax(&mut nest.body, *log, operand, x.dtype, result.dtype)
        }
        _ => {
            let weights = operands[1..].iter().cloned();
            let operands: Vec<LocatedTensor> = [x.clone()].into_iter().chain(weights).collect();
            nest.norm_of(op, &operands, l)?
        }
    };
    nest.define(&result, value);
    nest.store_results(l);
    Ok(rows::lower(nest, split, op_name(op), l).unwrap_or_default())
}

/// A tensor with its axes in this order.
fn with_axis_order(tensor: &LocatedTensor, order: &[usize]) -> LocatedTensor {
    LocatedTensor {
        shape: order.iter().map(|&axis| tensor.shape[axis]).collect(),
        strides: order.iter().map(|&axis| tensor.strides[axis]).collect(),
        ..tensor.clone()
    }
}
