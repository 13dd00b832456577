//! Sorting along an axis: sort and top-k, with positions.
//!
//! Both are stable. NaN counts as larger than every number.

use std::cmp::Ordering;

use super::element::{ComputeNumber, for_number};
use super::error::{KernelError, Result};
use super::scratch::Scratch;
use super::strided::{StridedReader, StridedView, StridedWriter};

/// The first `k` elements along `axis` in ascending or descending order, with their positions; `k` is the
/// extent of the results. A sort has all elements.
pub(super) fn sort_axis(
    axis: usize,
    descending: bool,
    x: &StridedView,
    values: &StridedView,
    positions: &StridedView,
    scratch: &mut Scratch,
) -> Result<()> {
    let mut expected = x.shape();
    if axis < x.rank() && axis < values.rank() {
        expected[axis] = values.axis_len(axis).min(x.axis_len(axis));
    }
    if axis >= x.rank() || values.shape() != expected || positions.shape() != expected {
        return Err(KernelError::shape_mismatch("the results of sorting", &expected, &values.shape()));
    }
    let n = x.axis_len(axis);
    let k = values.axis_len(axis);
    if k == 0 {
        return Ok(());
    }
    for_number!(x.dtype, C => {
        let mut rows = StridedReader::<C>::new(&x.axis_last(axis));
        let mut out = StridedWriter::<C>::new(&values.axis_last(axis));
        let mut out_positions = StridedWriter::<i64>::new(&positions.axis_last(axis));
        let mut row = scratch.allocate::<C>(n);
        let mut best = scratch.allocate::<C>(k);
        let mut order = scratch.allocate::<i64>(n);
        for _ in 0..values.numel() / k {
            rows.read_next(&mut row);
            order.iter_mut().zip(0..).for_each(|(o, i)| *o = i);
            select_first(&mut order, k, |a, b| {
                let x = row[a as usize];
                let y = row[b as usize];
                let by_value = if descending { compare_nan_last(y, x) } else { compare_nan_last(x, y) };
                by_value.then(a.cmp(&b))
            });
            best.iter_mut().zip(order.iter()).for_each(|(b, &i)| *b = row[i as usize]);
            out.write_next(&best);
            out_positions.write_next(&order[..k]);
        }
        scratch.return_buffer(row);
        scratch.return_buffer(best);
        scratch.return_buffer(order);
    });
    Ok(())
}

/// Moves the first `k` elements under a total order without equals to the front, in order.
fn select_first(order: &mut [i64], k: usize, compare: impl Fn(i64, i64) -> Ordering) {
    if k < order.len() {
        order.select_nth_unstable_by(k - 1, |&a, &b| compare(a, b));
    }
    order[..k].sort_unstable_by(|&a, &b| compare(a, b));
}

/// The order of numbers, with all NaN equal and last.
fn compare_nan_last<C: ComputeNumber>(x: C, y: C) -> Ordering {
    x.partial_cmp(&y).unwrap_or_else(|| is_nan(x).cmp(&is_nan(y)))
}

#[inline]
pub(super) fn is_nan<C: ComputeNumber>(x: C) -> bool {
    x.partial_cmp(&x).is_none()
}
