//! Ops that move elements without computing: concat, pad, and reshapes and copies into new memory.

use smallvec::SmallVec;
use symmc_ir::{Dim, Scalar};

use super::error::{KernelError, Result};
use super::pointwise::full;
use super::scratch::Scratch;
use super::strided::{StridedView, copy_view};

/// All operands one after another along `axis`. An operand that is already in place is not moved.
pub(super) fn concat(axis: usize, operands: &[StridedView], result: &StridedView) -> Result<()> {
    let mut start = 0;
    for x in operands {
        let n = if axis < x.rank() { x.axis_len(axis) } else { 0 };
        let fits = axis < result.rank()
            && x.rank() == result.rank()
            && x.dtype == result.dtype
            && start + n <= result.axis_len(axis)
            && (0..x.rank()).all(|a| a == axis || x.axis_len(a) == result.axis_len(a));
        if !fits {
            return Err(KernelError::shape_mismatch("an operand of concat", &result.shape(), &x.shape()));
        }
        copy_view(x, &result.slice_axis(axis, start, n));
        start += n;
    }
    if operands.is_empty() || start == result.axis_len(axis) {
        return Ok(());
    }
    Err(KernelError::shape_mismatch("the result of concat", &[start], &[result.axis_len(axis)]))
}

/// `x` between elements of `value`: `low[i]` of them before it along axis `i`, cropped if that is negative or
/// if the result ends earlier.
pub(super) fn pad(low: &[Dim], value: Scalar, x: &StridedView, result: &StridedView) -> Result<()> {
    if low.len() != x.rank() || x.rank() != result.rank() || x.dtype != result.dtype {
        return Err(KernelError::shape_mismatch("the result of pad", &x.shape(), &result.shape()));
    }
    let low: SmallVec<[i64; 6]> = low
        .iter()
        .map(|d| d.as_const().ok_or_else(|| KernelError::Symbolic { what: "a padding".into() }))
        .collect::<Result<_, _>>()?;
    let mut from = x.clone();
    let mut destination = result.clone();
    for (axis, &low) in low.iter().enumerate() {
        let skip = usize::try_from(low.saturating_neg()).unwrap_or(0).min(from.axis_len(axis));
        let whole = destination.axis_len(axis);
        let start = usize::try_from(low).unwrap_or(0).min(whole);
        let n = (from.axis_len(axis) - skip).min(whole - start);
        full(value, &destination.slice_axis(axis, 0, start));
        full(value, &destination.slice_axis(axis, start + n, whole - start - n));
        from = from.slice_axis(axis, skip, n);
        destination = destination.slice_axis(axis, start, n);
    }
    copy_view(&from, &destination);
    Ok(())
}

/// The elements of `x` in row-major order under the shape of the result.
pub(super) fn reshape(x: &StridedView, result: &StridedView, scratch: &mut Scratch) -> Result<()> {
    if x.numel() != result.numel() || x.dtype != result.dtype {
        return Err(KernelError::shape_mismatch("the result of a reshape", &x.shape(), &result.shape()));
    }
    if result.is_contiguous() {
        copy_view(x, &StridedView::contiguous(x.dtype, &x.shape(), result.ptr));
    } else if x.is_contiguous() {
        copy_view(&StridedView::contiguous(x.dtype, &result.shape(), x.ptr), result);
    } else {
        // Words of any dtype are processed as whole bytes of a dense buffer.
        let mut dense = scratch.allocate::<i64>((x.numel() * x.dtype.size()).div_ceil(8));
        let data = dense.as_mut_ptr().cast();
        copy_view(x, &StridedView::contiguous(x.dtype, &x.shape(), data));
        copy_view(&StridedView::contiguous(x.dtype, &result.shape(), data), result);
        scratch.return_buffer(dense);
    }
    Ok(())
}
