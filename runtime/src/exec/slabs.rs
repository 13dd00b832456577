//! Steps that the host runs together, slab by slab ([`crate::kernels::compute_in_slabs`]).
//!
//! A step joins the one before it if both compute each slab of a common shape independently, and the order of
//! slabs changes nothing: where a result of one shares bytes with a value of another, both have the same elements
//! at the same bytes. Steps that may refuse their data run alone, so an error names the same step in any case.

use std::ops::Range;

use smallvec::SmallVec;

use super::bucket::MemorySpace;
use super::resolved::{ExecutableStep, LocatedTensor, ResolvedOutput, StepWork};
use crate::kernels::{SLAB_BYTES, TensorLayout, independent_axes, may_refuse_data};

/// The most steps that run together.
const MAX_STEPS: usize = 16;
/// Results of fewer bytes stay in the cache anyway.
const MIN_BYTES: usize = 2 * SLAB_BYTES;

/// The layouts of values, without addresses, for queries about kernels.
pub(super) fn tensor_shapes(values: &[LocatedTensor]) -> SmallVec<[TensorLayout<'_>; 4]> {
    values.iter().map(|x| (x.dtype, &*x.shape, &*x.strides)).collect()
}

/// Marks the steps that run in slabs together with the step before them.
pub(super) fn mark_slab_steps(steps: &mut [ExecutableStep], outputs: &[ResolvedOutput]) {
    let mut first = 0;
    for i in 0..steps.len() {
        let joins = i > first
            && i - first < MAX_STEPS
            && steps[i].lane == steps[first].lane
            && can_join(&steps[first..i], &steps[i], outputs);
        if !joins {
            first = i;
        }
        steps[i].joins_previous = joins;
    }
}

/// The operands and the result of a step that can run in slabs, and the number of axes that can be divided.
pub(super) struct SlabStep<'a> {
    pub operands: &'a [LocatedTensor],
    pub result: &'a LocatedTensor,
    pub axes: usize,
}

pub(super) fn slab_step(step: &ExecutableStep) -> Option<SlabStep<'_>> {
    let StepWork::Kernel { op, operands, results } = &step.work else { return None };
    let [result] = &results[..] else { return None };
    let axes = independent_axes(op, result.shape.len())?;
    let bytes = result.shape.iter().product::<usize>().saturating_mul(result.dtype.size());
    let is_safe = bytes >= MIN_BYTES && !may_refuse_data(op, &tensor_shapes(operands));
    is_safe.then_some(SlabStep { operands, result, axes })
}

fn can_join(earlier: &[ExecutableStep], step: &ExecutableStep, outputs: &[ResolvedOutput]) -> bool {
    let Some(step) = slab_step(step) else { return false };
    earlier.iter().all(|earlier| {
        let Some(earlier) = slab_step(earlier) else { return false };
        let keeps_order = |x: &LocatedTensor, y: &LocatedTensor| {
            are_disjoint(x, y, outputs) || have_same_elements(x, y, outputs)
        };
        earlier.result.shape == step.result.shape
            && keeps_order(earlier.result, step.result)
            && step.operands.iter().all(|x| keeps_order(earlier.result, x))
            && earlier.operands.iter().all(|x| keeps_order(x, step.result))
    })
}

/// The memory in which a value lies. An output that is written in the memory of an input lies there.
fn memory_of(x: &LocatedTensor, outputs: &[ResolvedOutput]) -> MemorySpace {
    match x.space {
        MemorySpace::Output(o) => {
            outputs.get(o).and_then(ResolvedOutput::input_in_place).map_or(x.space, MemorySpace::Input)
        }
        space => space,
    }
}

fn have_same_elements(x: &LocatedTensor, y: &LocatedTensor, outputs: &[ResolvedOutput]) -> bool {
    memory_of(x, outputs) == memory_of(y, outputs)
        && (x.offset, x.dtype.size()) == (y.offset, y.dtype.size())
        && (&x.shape, &x.strides) == (&y.shape, &y.strides)
}

fn are_disjoint(x: &LocatedTensor, y: &LocatedTensor, outputs: &[ResolvedOutput]) -> bool {
    let (a, b) = (byte_range(x), byte_range(y));
    memory_of(x, outputs) != memory_of(y, outputs) || a.end <= b.start || b.end <= a.start
}

/// The bytes of its memory from the first to the last that a value reaches.
fn byte_range(x: &LocatedTensor) -> Range<isize> {
    let size = x.dtype.size() as isize;
    let mut range = x.offset as isize..x.offset as isize + size;
    for (&n, &stride) in x.shape.iter().zip(&x.strides) {
        let reach = stride.saturating_mul(n.saturating_sub(1) as isize).saturating_mul(size);
        if reach < 0 {
            range.start = range.start.saturating_add(reach);
        } else {
            range.end = range.end.saturating_add(reach);
        }
    }
    range
}
