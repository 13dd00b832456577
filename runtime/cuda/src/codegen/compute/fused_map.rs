//! Several element-wise steps as one kernel.
//!
//! A value passes from step to step in a register, rounded to its dtype as if it had been stored. The bits
//! therefore equal those of separate steps. Values that other steps read are stored. A step whose result is
//! broadcast is computed at each position that reads it.

use smallvec::SmallVec;
use symmc_ir::Op;
use symmc_runtime::exec::{LocatedTensor, MemorySpace};

use super::element;
use super::lowering::{BoundOperation, KernelLowering};
use super::map::{MapKernel, MapValue};
use super::movement::{common_shape, strides_within};
use super::space::{Strides, broadcast};
use super::text::stored_type;
use crate::codegen::command::GpuCommand;
use crate::error::Result;

/// Lowers steps to one kernel; `None` if their shapes do not allow it.
pub fn lower(steps: &[BoundOperation<'_>], l: &mut KernelLowering<'_>) -> Result<Option<Vec<GpuCommand>>> {
    let Some(last) = steps.last() else { return Ok(Some(Vec::new())) };
    let Some(shape) = last.results.first().map(|r| &r.shape) else { return Ok(None) };
    if !fit_shape(steps, shape) {
        return Ok(None);
    }
    let mut map = MapKernel::over_shape(shape);
    let mut values: Vec<(&LocatedTensor, MapValue)> = Vec::with_capacity(steps.len());
    for step in steps {
        if let Op::Take { axis: 0 } = step.op {
            l.step = step.index;
            let Some(value) = take(&mut map, step, l) else { return Ok(None) };
            values.push((&step.results[0], value));
        } else {
            evaluate(&mut map, step, &mut values, shape, l)?;
        }
    }
    store(&mut map, &values, shape, l);
    Ok(Some(map.finish("fused", l).into_iter().collect()))
}

/// The elements of rows that a step takes along the first axis.
pub(super) fn take(
    map: &mut MapKernel,
    step: &BoundOperation<'_>,
    l: &mut KernelLowering<'_>,
) -> Option<MapValue> {
    let [x, index] = step.operands else { return None };
    let index_shape = common_shape(std::slice::from_ref(index));
    let inner_rank = x.shape.len().checked_sub(1)?;
    if step.results.first()?.shape[..] != [&index_shape[..], &x.shape[1..]].concat() {
        return None;
    }
    let strides = strides_within(broadcast(&index_shape, &index.shape, &index.strides), 0, inner_rank);
    let position = map.load(l.address_of(index), stored_type(index.dtype), strides);
    let zeros = std::iter::repeat_n(0, index_shape.len());
    let strides: Strides = zeros.chain(x.strides[1..].iter().copied()).collect();
    let extent = x.shape[0];
    let assertion = l.index_assertion(0, extent);
    let terms = [(position, extent, x.strides[0], assertion)];
    Some(map.gather(l.address_of(x), stored_type(x.dtype), strides, terms))
}

/// Whether the result of each step has this shape, or is broadcast to it without being stored.
pub(super) fn fit_shape(steps: &[BoundOperation<'_>], shape: &[usize]) -> bool {
    let is_broadcast = |r: &LocatedTensor| {
        let mut pairs = r.shape.iter().rev().zip(shape.iter().rev());
        r.space == MemorySpace::Inner
            && r.shape.len() <= shape.len()
            && pairs.all(|(own, full)| own == full || *own == 1)
    };
    steps.iter().all(|step| step.results.first().is_some_and(|r| *r.shape == *shape || is_broadcast(r)))
}

/// Adds the value of a step to `known`, together with the tensor that it would be stored in.
pub(super) fn evaluate<'a>(
    map: &mut MapKernel,
    step: &BoundOperation<'a>,
    known: &mut Vec<(&'a LocatedTensor, MapValue)>,
    shape: &[usize],
    l: &mut KernelLowering<'_>,
) -> Result<()> {
    let BoundOperation { index, op, operands, results } = *step;
    super::lowering::arity(op, operands.len(), results.len())?;
    l.step = index;
    let mut values: SmallVec<[_; 3]> = SmallVec::new();
    for x in operands {
        let passed = known.iter().rev().find(|(r, _)| reads_same_elements(r, x, shape));
        let value = match passed {
            Some((_, value)) => *value,
            None => element::load(map, x, shape, l)?,
        };
        values.push((value, x.dtype));
    }
    let value = element::op_value(map, op, &values, results[0].dtype, l)?;
    known.push((&results[0], value));
    Ok(())
}

/// Stores the values that have memory, unless a later one overwrites them.
pub(super) fn store(
    map: &mut MapKernel,
    values: &[(&LocatedTensor, MapValue)],
    shape: &[usize],
    l: &KernelLowering<'_>,
) {
    for (k, (result, value)) in values.iter().enumerate() {
        let stored = result.space != MemorySpace::Inner;
        let is_overwritten = values[k + 1..].iter().any(|(r, _)| reads_same_elements(r, result, shape));
        if stored && !is_overwritten {
            map.store(l.address_of(result), Strides::from_slice(&result.strides), *value);
        }
    }
}

/// Whether `x`, broadcast over the space, reads the elements of the result `r` at the same positions.
pub(super) fn reads_same_elements(r: &LocatedTensor, x: &LocatedTensor, shape: &[usize]) -> bool {
    r.space == x.space
        && (r.offset, r.by_rank) == (x.offset, x.by_rank)
        && r.dtype == x.dtype
        && broadcast(shape, &r.shape, &r.strides) == broadcast(shape, &x.shape, &x.strides)
        && x.shape.iter().product::<usize>() == r.shape.iter().product::<usize>()
}
