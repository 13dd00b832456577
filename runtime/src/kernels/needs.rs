//! The scratch memory of kernels in addition to their operands and results, derived from shapes alone.
//!
//! For each kind of kernel this is an upper bound of the buffers that it uses at once; `None` if the operands
//! do not fit the kernel. The internal memory of the matrix product library is excluded.

use symmc_ir::attention::{AttentionBound, AttentionOperands};
use symmc_ir::{DType, ReductionKind};

use super::element::for_number;
use super::gemm::GemmExtents;
use super::norm::for_real;
use super::scratch::ScratchNeeds;
use super::strided::{StridedView, axes_numel};
use super::{attention as attending, attention_gradient as gradient, matmul};

/// An operand or a result without its address: dtype, extents, and strides in elements.
pub type TensorLayout<'a> = (DType, &'a [usize], &'a [isize]);

fn extent(v: &StridedView, axis: usize) -> Option<usize> {
    v.axes.get(axis).map(|a| a.n)
}

/// An extent counted from the last axis, which is 1.
fn extent_back(v: &StridedView, axis: usize) -> Option<usize> {
    extent(v, v.rank().checked_sub(axis)?)
}

/// The accumulator that sums use.
fn add_accumulators(dtype: DType, n: usize, out: &mut ScratchNeeds) {
    if dtype.is_float() { out.add::<f64>(n) } else { out.add::<i64>(n) }
}

pub(super) fn grouped(x: &[StridedView], r: &StridedView, out: &mut ScratchNeeds) -> Option<()> {
    out.add::<i64>(extent(&x[2], 0)?);
    let m = extent(&x[0], 0)?;
    let k = extent(&x[0], 1)?;
    let n = extent_back(&x[1], 1)?;
    matmul::add_gemm_needs(r.dtype, GemmExtents { m, k, n }, out);
    Some(())
}

pub(super) fn reduction(axes: &[usize], x: &StridedView, out: &mut ScratchNeeds) -> Option<()> {
    let last_axis = axes.last()?;
    let width: usize =
        (last_axis + 1..x.rank()).filter(|a| !axes.contains(a)).map(|a| x.axis_len(a)).product();
    if width != 1 {
        add_accumulators(x.dtype, width, out);
        for_number!(x.dtype, C => out.add::<C>(width));
    }
    Some(())
}

pub(super) fn arg_reduction(axis: usize, x: &StridedView, out: &mut ScratchNeeds) -> Option<()> {
    for_number!(x.dtype, C => out.add::<C>(extent(x, axis)?));
    Some(())
}

pub(super) fn cumulative_sum(axis: usize, r: &StridedView, out: &mut ScratchNeeds) -> Option<()> {
    add_accumulators(r.dtype, extent(r, axis)?, out);
    Some(())
}

pub(super) fn softmax(axis: usize, x: &StridedView, out: &mut ScratchNeeds) -> Option<()> {
    for_real!(x.dtype, R => out.add::<R>(extent(x, axis)?));
    Some(())
}

pub(super) fn norm(axes: usize, x: &[StridedView], out: &mut ScratchNeeds) -> Option<()> {
    let n = axes_numel(x[0].axes.get(x[0].rank().checked_sub(axes)?..)?);
    for_real!(x[0].dtype, R => x.iter().for_each(|_| out.add::<R>(n)));
    Some(())
}

/// The extents `[l, s, e, f]` of attention, with the buffers for positions and sinks of its rows.
fn attention_extents(o: &AttentionOperands<'_, StridedView>, out: &mut ScratchNeeds) -> Option<[usize; 4]> {
    let l = extent_back(o.q, 2)?;
    let e = extent_back(o.q, 1)?;
    let rows = o.q.numel() / e.max(1);
    o.positions.iter().for_each(|_| out.add::<i64>(rows));
    o.sink.iter().for_each(|_| out.add::<f64>(rows));
    Some([l, extent_back(o.k, 2)?, e, extent_back(o.v, 1)?])
}

pub(super) fn attention(
    bounds: &[AttentionBound],
    sink: bool,
    x: &[StridedView],
    out: &mut ScratchNeeds,
) -> Option<()> {
    let operands = AttentionOperands::from_operands(bounds, sink, x)?;
    let extents = attention_extents(&operands, out)?;
    attending::add_head_needs(operands.q.dtype, extents, out);
    Some(())
}

pub(super) fn attention_gradient(
    bounds: &[AttentionBound],
    x: &[StridedView],
    out: &mut ScratchNeeds,
) -> Option<()> {
    let operands = AttentionOperands::from_operands(bounds, false, x.get(3..)?)?;
    let extents = attention_extents(&operands, out)?;
    gradient::add_gradient_needs(operands.q.dtype, extents, out);
    Some(())
}

pub(super) fn rotary(width: usize, x: &[StridedView], out: &mut ScratchNeeds) -> Option<()> {
    let is_wide = x[0].dtype == DType::F64 || x[1].dtype == DType::F64;
    let sizes = [extent_back(&x[0], 1)?, width, width, width, width];
    sizes.into_iter().for_each(|n| if is_wide { out.add::<f64>(n) } else { out.add::<f32>(n) });
    Some(())
}

pub(super) fn lookup(indices: &[StridedView], out: &mut ScratchNeeds) -> Option<()> {
    let positions = position_count(indices);
    (0..3).for_each(|_| out.add::<i64>(positions));
    Some(())
}

/// One position for each element of an index tensor.
pub(super) fn index_positions(index: &StridedView, out: &mut ScratchNeeds) -> Option<()> {
    out.add::<i64>(index.numel());
    Some(())
}

pub(super) fn scatter(
    combine: Option<ReductionKind>,
    x: &[StridedView],
    out: &mut ScratchNeeds,
) -> Option<()> {
    add_combine_buffers(combine, &x[0], 1, out);
    index_positions(&x[1], out)
}

pub(super) fn sort(axis: usize, x: &StridedView, r: &StridedView, out: &mut ScratchNeeds) -> Option<()> {
    let n = extent(x, axis)?;
    let k = extent(r, axis)?;
    for_number!(x.dtype, C => [n, k].into_iter().for_each(|n| out.add::<C>(n)));
    out.add::<i64>(n);
    Some(())
}

/// A copy uses a buffer if neither side is contiguous.
pub(super) fn copy(x: &StridedView, r: &StridedView, out: &mut ScratchNeeds) -> Option<()> {
    if !x.is_contiguous() && !r.is_contiguous() {
        out.add::<i64>((x.numel() * x.dtype.size()).div_ceil(8));
    }
    Some(())
}

/// Products of matrices; a batch may be one product of all its rows.
pub(super) fn matrix_product(
    x: &StridedView,
    y: &StridedView,
    r: &StridedView,
    out: &mut ScratchNeeds,
) -> Option<()> {
    let k = extent_back(x, 1)?;
    let n = extent_back(y, 1)?;
    let m = r.numel() / n.max(1);
    matmul::add_gemm_needs(x.dtype, GemmExtents { m, k, n }, out);
    Some(())
}

/// The number of positions that index tensors select together.
fn position_count(indices: &[StridedView]) -> usize {
    let rank = indices.iter().map(StridedView::rank).max().unwrap_or(0);
    let extents =
        (1..=rank).map(|back| indices.iter().filter_map(|t| extent_back(t, back)).max().unwrap_or(1));
    let common = extents.fold(1, usize::saturating_mul);
    indices.iter().map(StridedView::numel).max().unwrap_or(0).max(common)
}

pub(super) fn index_put(
    axis: usize,
    combine: Option<ReductionKind>,
    x: &StridedView,
    indices: &[StridedView],
    out: &mut ScratchNeeds,
) -> Option<()> {
    let positions = position_count(indices);
    // One more while indices are broadcast.
    (0..=indices.len()).for_each(|_| out.add::<i64>(positions));
    add_combine_buffers(combine, x, axes_numel(x.axes.get(axis + indices.len()..)?), out);
    Some(())
}

/// A scatter that combines, of pieces of this many elements.
fn add_combine_buffers(
    combine: Option<ReductionKind>,
    x: &StridedView,
    piece: usize,
    out: &mut ScratchNeeds,
) {
    let Some(op) = combine else { return };
    add_accumulators(x.dtype, x.numel(), out);
    out.add::<i64>(if op == ReductionKind::Mean { x.numel() } else { 0 });
    add_accumulators(x.dtype, piece, out);
}
