//! Ops that move elements without computing: concat, pad, and reshapes and copies into memory of their own.

use smallvec::SmallVec;
use symmc_ir::{Dim, Scalar};

use super::error::{KernelError, Result};
use super::pointwise::full;
use super::scratch::Scratch;
use super::strided::{Strided, copy};

/// All operands one after another along `axis`. An operand that lies in its place already is not moved.
pub(super) fn concat(axis: usize, operands: &[Strided], result: &Strided) -> Result<()> {
    let mut start = 0;
    for x in operands {
        let n = if axis < x.rank() { x.n(axis) } else { 0 };
        let fits = axis < result.rank()
            && x.rank() == result.rank()
            && x.dtype == result.dtype
            && start + n <= result.n(axis)
            && (0..x.rank()).all(|a| a == axis || x.n(a) == result.n(a));
        if !fits {
            return Err(KernelError::shape("an operand of concat", &result.shape(), &x.shape()));
        }
        copy(x, &result.cut(axis, start, n));
        start += n;
    }
    match operands.is_empty() || start == result.n(axis) {
        true => Ok(()),
        false => Err(KernelError::shape("the result of concat", &[start], &[result.n(axis)])),
    }
}

/// `x` between elements of `value`: `low[i]` of them before it along axis `i`, cropped where that is
/// negative or where the result ends earlier.
pub(super) fn pad(low: &[Dim], value: Scalar, x: &Strided, result: &Strided) -> Result<()> {
    if low.len() != x.rank() || x.rank() != result.rank() || x.dtype != result.dtype {
        return Err(KernelError::shape("the result of pad", &x.shape(), &result.shape()));
    }
    let low: SmallVec<[i64; 6]> = low
        .iter()
        .map(|d| d.as_const().ok_or_else(|| KernelError::Symbolic { what: "a padding".into() }))
        .collect::<Result<_, _>>()?;
    full(value, result);
    let (mut from, mut to) = (x.clone(), result.clone());
    for (axis, &low) in low.iter().enumerate() {
        let skip = usize::try_from(low.saturating_neg()).unwrap_or(0).min(from.n(axis));
        let start = usize::try_from(low).unwrap_or(0).min(to.n(axis));
        let n = (from.n(axis) - skip).min(to.n(axis) - start);
        from = from.cut(axis, skip, n);
        to = to.cut(axis, start, n);
    }
    copy(&from, &to);
    Ok(())
}

/// The elements of `x` in row-major order under the shape of the result.
pub(super) fn reshape(x: &Strided, result: &Strided, scratch: &mut Scratch) -> Result<()> {
    if x.numel() != result.numel() || x.dtype != result.dtype {
        return Err(KernelError::shape("the result of a reshape", &x.shape(), &result.shape()));
    }
    if result.is_contiguous() {
        copy(x, &Strided::contiguous(x.dtype, &x.shape(), result.ptr));
    } else if x.is_contiguous() {
        copy(&Strided::contiguous(x.dtype, &result.shape(), x.ptr), result);
    } else {
        // Words of any dtype pass through whole bytes of a dense buffer.
        let mut dense = scratch.take::<i64>((x.numel() * x.dtype.size()).div_ceil(8));
        let at = dense.as_mut_ptr().cast();
        copy(x, &Strided::contiguous(x.dtype, &x.shape(), at));
        copy(&Strided::contiguous(x.dtype, &result.shape(), at), result);
        scratch.give(dense);
    }
    Ok(())
}
