//! The ops on the CPU.
//!
//! [`compute`] runs one op on strided views over raw memory ([`TensorView`], [`TensorViewMut`]). Semantics
//! are those of [`symmc_ir::Op`]. Floats are computed in f32 (f64 for f64) and rounded once to the dtype of
//! the result. Sums are computed in a wider type or in short runs, so that results do not depend on the order
//! of summation except in the last places.
//!
//! # Overlap of results and operands
//! A result may lie exactly on an operand of the same layout for all element-wise ops, for softmax, norms and
//! cumulative sums, and on the first operand of a scatter or a rotary embedding. An operand of a
//! concatenation may lie at its position in the result. In all other cases a result must not overlap an
//! operand.
//!
//! Deliberately absent: collectives, custom and opaque ops, views (except reshapes that move data), shards,
//! which are copies of a rank's piece ([`crate::exec`]), and symbols (every dim of an op must be a constant).

mod attention;
mod attention_gradient;
mod blocks;
mod element;
mod error;
mod faults;
mod gemm;
mod index;
mod math;
mod matmul;
mod needs;
mod norm;
mod pointwise;
mod polynomials;
mod reduce;
mod rotary;
mod route;
mod row_sum;
mod scratch;
mod shape;
mod simd;
mod slabs;
mod sort;
mod strided;
mod view;

use smallvec::SmallVec;
use symmc_ir::text::op_name;
use symmc_ir::{DType, Op, ReductionKind};

pub use error::KernelError;
use error::{Result, check_arity};
pub use faults::may_refuse_data;
pub use needs::TensorLayout;
pub(crate) use row_sum::{RowSum, read_float};
pub use scratch::{Scratch, ScratchBytes, ScratchNeeds};
pub use slabs::{KernelCall, SLAB_BYTES, independent_axes};
pub(crate) use view::is_dense;
pub use view::{TensorView, TensorViewMut, contiguous_strides};

use strided::{StridedView, unpermuted_results};

/// Runs one op with newly allocated scratch memory. Fails if the operands do not fit the op, or an index is
/// out of range. The results are then unspecified.
pub fn compute(op: &Op, operands: &[TensorView<'_>], results: &mut [TensorViewMut<'_>]) -> Result<()> {
    compute_with(op, operands, results, &mut Scratch::new())
}

/// [`compute`] with scratch memory that is kept from one op to the next.
pub fn compute_with(
    op: &Op,
    operands: &[TensorView<'_>],
    results: &mut [TensorViewMut<'_>],
    scratch: &mut Scratch,
) -> Result<()> {
    let x: SmallVec<[StridedView; 4]> = operands.iter().map(StridedView::from).collect();
    let r: SmallVec<[StridedView; 2]> = results.iter_mut().map(StridedView::from).collect();
    run_op(op, &x, &r, scratch)
}

/// Runs ops whose results have one shape, in order for each slab; `axes` is the least number of their
/// [`independent_axes`]. A result may be an operand of a later op, or lie on one of an earlier op, if both have the
/// same elements at the same bytes. Fails with the number of the op.
pub fn compute_in_slabs(
    calls: &mut [KernelCall<'_>],
    axes: usize,
    scratch: &mut Scratch,
) -> std::result::Result<(), (usize, KernelError)> {
    slabs::run_in_slabs(calls, axes, &mut |op, x, r| run_op(op, x, r, scratch))
}

fn run_op(op: &Op, x: &[StridedView], r: &[StridedView], scratch: &mut Scratch) -> Result<()> {
    check_arity(op, x.len(), r.len())?;
    match op {
        Op::Full(scalar) => pointwise::full(*scalar, &r[0]),
        Op::Iota { start, step } => pointwise::iota(*start, *step, &r[0]),
        Op::Unary(u) => expect_same_type(&x[0], &r[0]).and_then(|()| pointwise::unary(*u, &x[0], &r[0]))?,
        Op::Binary(b) => pointwise::binary(*b, &x[0], &x[1], &r[0])?,
        Op::BinaryScalar { op, scalar, scalar_left } => {
            expect_same_type(&x[0], &r[0])?;
            pointwise::binary_scalar(*op, *scalar, *scalar_left, &x[0], &r[0])?;
        }
        Op::Select => pointwise::select(&x[0], &x[1], &x[2], &r[0])?,
        Op::Cast => expect_same_type(&x[0], &r[0]).map(|()| pointwise::cast(&x[0], &r[0]))?,
        Op::Bitcast => bitcast(&x[0], &r[0])?,
        Op::MatMul { .. } => matmul::matmul(&x[0], &x[1], &r[0], scratch)?,
        Op::GroupedMatMul => matmul::grouped_matmul([&x[0], &x[1], &x[2]], &r[0], scratch)?,
        Op::Route(attributes) => route::route(attributes, &x[0], r, scratch)?,
        Op::Reduce { op, axes, keep } => reduce::reduce(*op, axes, *keep, &x[0], &r[0], scratch)?,
        Op::ArgReduce { op, axis, keep } => reduce::arg_reduce(*op, *axis, *keep, &x[0], &r[0], scratch)?,
        Op::CumSum { axis } => reduce::cumsum(*axis, &x[0], &r[0], scratch)?,
        Op::Softmax { axis, log } => norm::softmax(*axis, *log, &x[0], &r[0], scratch)?,
        Op::RmsNorm { axes, eps, round_first } => {
            let rms = norm::RmsNormParams { axes: *axes, eps: eps.0, round_first: *round_first };
            norm::rms_norm(rms, &x[0], x.get(1), &r[0], scratch)?;
        }
        Op::LayerNorm { axes, eps } => norm::layer_norm(*axes, eps.0, &x[0], &x[1..], &r[0], scratch)?,
        Op::Attention { scale, cap, bounds, sink, .. } => {
            let scores =
                attention::AttentionParams { scale: scale.0, cap: cap.map(|c| c.0), bounds, sink: *sink };
            attention::attention(&scores, x, r, scratch)?;
        }
        Op::AttentionGradient { scale, bounds } => {
            let scores = attention::AttentionParams { scale: scale.0, cap: None, bounds, sink: false };
            attention_gradient::attention_gradient(&scores, x, r, scratch)?;
        }
        Op::Permuted { op, perm } => {
            let inner = unpermuted_results(op, perm, r)
                .ok_or_else(|| KernelError::shape_mismatch("the axes", &r[0].shape(), perm))?;
            run_op(op, x, &inner, scratch)?;
        }
        Op::RotaryEmbedding { width, interleaved } => {
            let attributes = rotary::RotaryParams { width: *width, interleaved: *interleaved };
            rotary::rotary(attributes, [&x[0], &x[1], &x[2]], &r[0], scratch)?;
        }
        Op::Take { axis } => index::index_axes(*axis, &x[0], &x[1..], &r[0], scratch)?,
        Op::Index { axis } => index::index_axes(*axis, &x[0], &x[1..], &r[0], scratch)?,
        Op::GatherElements { axis } => index::gather(*axis, &x[0], &x[1], &r[0], scratch)?,
        Op::ScatterElements { axis, combine } => {
            let s = index::ScatterOperands { x: &x[0], index: &x[1], src: &x[2] };
            index::scatter(*axis, *combine, &s, &r[0], scratch)?;
        }
        Op::IndexAdd { axis } => {
            let s = index::ScatterOperands { x: &x[0], index: &x[1], src: &x[2] };
            index::index_add(*axis, &s, &r[0], scratch)?;
        }
        Op::IndexPut { axis, accumulate } => {
            let combine = accumulate.then_some(ReductionKind::Sum);
            index::index_put(*axis, combine, &x[0], &x[1], &x[2..], &r[0], scratch)?;
        }
        Op::TopK { axis, largest } => sort::sort_axis(*axis, *largest, &x[0], &r[0], &r[1], scratch)?,
        Op::Sort { axis, descending } => sort::sort_axis(*axis, *descending, &x[0], &r[0], &r[1], scratch)?,
        Op::Concat { axis } => shape::concat(*axis, x, &r[0])?,
        Op::Pad { low, value } => shape::pad(low, *value, &x[0], &r[0])?,
        Op::Reshape | Op::Copy => shape::reshape(&x[0], &r[0], scratch)?,
        Op::Permute { .. }
        | Op::Slice { .. }
        | Op::Expand
        | Op::Shard { .. }
        | Op::Collective(_)
        | Op::Opaque { .. }
        | Op::Custom(_) => {
            return Err(KernelError::NoKernel { op: op_name(op).into() });
        }
    }
    Ok(())
}

/// The buffers that an op uses at once, derived from shapes alone: an upper bound, which a test compares with
/// the kernels' use. It is empty for an op that is refused or has no kernel, and excludes the memory of
/// custom kernels.
pub fn scratch_needs(op: &Op, operands: &[TensorLayout<'_>], results: &[TensorLayout<'_>]) -> ScratchNeeds {
    let mut out = ScratchNeeds::default();
    let _ = add_op_needs(op, &unallocated_views(operands), &unallocated_views(results), &mut out);
    out
}

fn unallocated_views(layouts: &[TensorLayout<'_>]) -> Vec<StridedView> {
    layouts
        .iter()
        .map(|&(dtype, shape, strides)| StridedView::without_address(dtype, shape, strides))
        .collect()
}

/// `None` if the operands do not fit the op.
fn add_op_needs(op: &Op, x: &[StridedView], r: &[StridedView], out: &mut ScratchNeeds) -> Option<()> {
    check_arity(op, x.len(), r.len()).ok()?;
    match op {
        Op::Full(_) | Op::Iota { .. } | Op::Unary(_) | Op::Binary(_) | Op::BinaryScalar { .. } => Some(()),
        Op::Select | Op::Cast | Op::Bitcast | Op::Concat { .. } | Op::Pad { .. } => Some(()),
        Op::MatMul { .. } => needs::matrix_product(&x[0], &x[1], &r[0], out),
        Op::GroupedMatMul => needs::grouped(x, &r[0], out),
        Op::Route(attributes) => route::add_needs(attributes, &x[0], r, out),
        Op::Reduce { axes, .. } => needs::reduction(axes, &x[0], out),
        Op::ArgReduce { axis, .. } => needs::arg_reduction(*axis, &x[0], out),
        Op::CumSum { axis } => needs::cumulative_sum(*axis, &r[0], out),
        Op::Softmax { axis, .. } => needs::softmax(*axis, &x[0], out),
        Op::RmsNorm { axes, .. } | Op::LayerNorm { axes, .. } => needs::norm(*axes, x, out),
        Op::Attention { bounds, sink, .. } => needs::attention(bounds, *sink, x, out),
        Op::AttentionGradient { bounds, .. } => needs::attention_gradient(bounds, x, out),
        Op::Permuted { op, perm } => add_op_needs(op, x, &unpermuted_results(op, perm, r)?, out),
        Op::RotaryEmbedding { width, .. } => needs::rotary(*width, x, out),
        Op::Take { .. } | Op::Index { .. } => needs::lookup(&x[1..], out),
        Op::GatherElements { .. } => needs::index_positions(&x[1], out),
        Op::ScatterElements { combine, .. } => needs::scatter(*combine, x, out),
        Op::IndexAdd { axis } => needs::index_put(*axis, Some(ReductionKind::Sum), &x[0], &x[1..2], out),
        Op::IndexPut { axis, accumulate } => {
            needs::index_put(*axis, accumulate.then_some(ReductionKind::Sum), &x[0], &x[2..], out)
        }
        Op::TopK { axis, .. } | Op::Sort { axis, .. } => needs::sort(*axis, &x[0], &r[0], out),
        Op::Reshape | Op::Copy => needs::copy(&x[0], &r[0], out),
        Op::Permute { .. } | Op::Slice { .. } | Op::Expand | Op::Shard { .. } => Some(()),
        Op::Collective(_) | Op::Opaque { .. } | Op::Custom(_) => Some(()),
    }
}

/// Moves the bits of `x` to a result of another dtype.
fn bitcast(x: &StridedView, result: &StridedView) -> Result<()> {
    expect_same_type(x, result)?;
    if x.dtype.size() != result.dtype.size() {
        let bytes = |dtype: DType| [dtype.size()];
        return Err(KernelError::shape_mismatch(
            "bytes of an element",
            &bytes(x.dtype),
            &bytes(result.dtype),
        ));
    }
    strided::copy_view(&StridedView { dtype: result.dtype, ..x.clone() }, result);
    Ok(())
}

fn expect_same_type(x: &StridedView, result: &StridedView) -> Result<()> {
    if x.shape() == result.shape() {
        return Ok(());
    }
    Err(KernelError::shape_mismatch("the result", &x.shape(), &result.shape()))
}
