//! Several ops that run together, slab by slab.
//!
//! A slab is a part of the leading axes that the results of all of the ops have in common. All ops compute one slab
//! before the first of them begins the next, so later ops find their operands in the cache.

use smallvec::SmallVec;
use symmc_ir::Op;

use super::error::{KernelError, Result};
use super::strided::{Odometer, StridedAxis, StridedView};
use super::view::{TensorView, TensorViewMut};

/// The bytes of a result that are computed before the next op begins.
pub const SLAB_BYTES: usize = 64 << 10;

/// The number of leading axes along which each part of the result depends on the same part of the operands that have
/// these axes, and on the other operands; `None` if there are none.
pub fn independent_axes(op: &Op, rank: usize) -> Option<usize> {
    let whole = match op {
        Op::Unary(_) | Op::Binary(_) | Op::BinaryScalar { .. } | Op::Select | Op::Cast => 0,
        Op::Softmax { axis, .. } => rank.checked_sub(*axis)?,
        Op::RmsNorm { axes, .. } | Op::LayerNorm { axes, .. } => *axes,
        _ => return None,
    };
    rank.checked_sub(whole).filter(|&axes| axes > 0)
}

/// An op with its operands and its result.
pub struct KernelCall<'a> {
    pub op: &'a Op,
    pub operands: SmallVec<[TensorView<'a>; 4]>,
    pub result: TensorViewMut<'a>,
}

/// Runs one op on its operands and results.
type RunOp<'a> = &'a mut dyn FnMut(&Op, &[StridedView], &[StridedView]) -> Result<()>;

/// Runs ops whose results have one shape, in order for each slab; `axes` is the least number of their
/// [`independent_axes`]. A result may be an operand of a later op, or lie on one of an earlier op, if both have the
/// same elements at the same bytes. Fails with the number of the op.
pub(super) fn run_in_slabs(
    calls: &mut [KernelCall<'_>],
    axes: usize,
    run: RunOp<'_>,
) -> Result<(), (usize, KernelError)> {
    let views: SmallVec<[SlabViews<'_>; 8]> = calls.iter_mut().map(SlabViews::new).collect();
    let Some(first) = views.first() else { return Ok(()) };
    let shape = first.result.shape();
    // The axis that is divided, and the bytes of one position of it.
    let bytes = |axis: usize| shape[axis + 1..].iter().product::<usize>() * first.result.dtype.size();
    let axis = (0..axes).find(|&axis| bytes(axis) <= SLAB_BYTES).unwrap_or(axes.saturating_sub(1));
    let Some(&extent) = shape.get(axis) else { return run_calls(&views, &[], run) };
    let count = (SLAB_BYTES / bytes(axis).max(1)).clamp(1, extent.max(1));
    let positions: SmallVec<[StridedAxis; 6]> =
        shape[..axis].iter().map(|&n| StridedAxis { n, stride: 0 }).collect();
    let mut index: SmallVec<[usize; 6]> = SmallVec::from_elem(0, axis);
    let mut outer = Odometer::new([&positions]);
    while outer.next().is_some() {
        for start in (0..extent).step_by(count) {
            let mut slices: SmallVec<[(usize, usize); 6]> = index.iter().map(|&i| (i, 1)).collect();
            slices.push((start, count.min(extent - start)));
            run_calls(&views, &slices, run)?;
        }
        for (i, &n) in index.iter_mut().zip(&shape[..axis]).rev() {
            *i += 1;
            if *i < n {
                break;
            }
            *i = 0;
        }
    }
    Ok(())
}

struct SlabViews<'a> {
    op: &'a Op,
    operands: SmallVec<[StridedView; 4]>,
    result: StridedView,
}

impl<'a> SlabViews<'a> {
    fn new(call: &mut KernelCall<'a>) -> Self {
        SlabViews {
            op: call.op,
            operands: call.operands.iter().map(StridedView::from).collect(),
            result: StridedView::from(&mut call.result),
        }
    }
}

/// Runs the ops on the first position and the number of positions of each leading axis.
fn run_calls(
    calls: &[SlabViews<'_>],
    slices: &[(usize, usize)],
    run: RunOp<'_>,
) -> Result<(), (usize, KernelError)> {
    for (number, call) in calls.iter().enumerate() {
        let rank = call.result.rank();
        let operands: SmallVec<[StridedView; 4]> =
            call.operands.iter().map(|x| slice_leading(x, rank, slices)).collect();
        let result = slice_leading(&call.result, rank, slices);
        run(call.op, &operands, &[result]).map_err(|error| (number, error))?;
    }
    Ok(())
}

/// The part of a view whose last axes are those of a result of this rank. Axes that are broadcast stay whole.
fn slice_leading(view: &StridedView, rank: usize, slices: &[(usize, usize)]) -> StridedView {
    let missing = rank.saturating_sub(view.rank());
    let mut out = view.clone();
    for (axis, &(start, count)) in slices.iter().enumerate().skip(missing) {
        if out.axis_len(axis - missing) != 1 {
            out = out.slice_axis(axis - missing, start, count);
        }
    }
    out
}
