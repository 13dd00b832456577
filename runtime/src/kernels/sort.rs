//! Sorting along an axis: sort and top-k, with positions.
//!
//! Both are stable. NaN counts as larger than every number.

use std::cmp::Ordering;

use super::element::{Number, for_number};
use super::error::{KernelError, Result};
use super::scratch::Scratch;
use super::strided::{Reader, Strided, Writer};

/// The first `k` elements along `axis` in ascending or descending order, with their positions; `k` is the
/// extent of the results. All of them for a sort.
pub(super) fn sorted(
    axis: usize,
    descending: bool,
    x: &Strided,
    values: &Strided,
    positions: &Strided,
    scratch: &mut Scratch,
) -> Result<()> {
    let mut expected = x.shape();
    if axis < x.rank() && axis < values.rank() {
        expected[axis] = values.n(axis).min(x.n(axis));
    }
    if axis >= x.rank() || values.shape() != expected || positions.shape() != expected {
        return Err(KernelError::shape("the results of sorting", &expected, &values.shape()));
    }
    let (n, k) = (x.n(axis), values.n(axis));
    if k == 0 {
        return Ok(());
    }
    for_number!(x.dtype, C => {
        let mut rows = Reader::<C>::new(&x.axis_last(axis));
        let mut out = Writer::<C>::new(&values.axis_last(axis));
        let mut out_positions = Writer::<i64>::new(&positions.axis_last(axis));
        let (mut row, mut best) = (scratch.take::<C>(n), scratch.take::<C>(k));
        let mut order = scratch.take::<i64>(n);
        for _ in 0..values.numel() / k {
            rows.fill(&mut row);
            order.iter_mut().zip(0..).for_each(|(o, i)| *o = i);
            first_in_order(&mut order, k, |a, b| {
                let (x, y) = (row[a as usize], row[b as usize]);
                let by_value = if descending { compare(y, x) } else { compare(x, y) };
                by_value.then(a.cmp(&b))
            });
            best.iter_mut().zip(order.iter()).for_each(|(b, &i)| *b = row[i as usize]);
            out.put(&best);
            out_positions.put(&order[..k]);
        }
        scratch.give(row);
        scratch.give(best);
        scratch.give(order);
    });
    Ok(())
}

/// Moves the `k` first under a total order without equals to the front, in order.
fn first_in_order(order: &mut [i64], k: usize, compare: impl Fn(i64, i64) -> Ordering) {
    if k < order.len() {
        order.select_nth_unstable_by(k - 1, |&a, &b| compare(a, b));
    }
    order[..k].sort_unstable_by(|&a, &b| compare(a, b));
}

/// The order of numbers, with all NaN equal and last.
fn compare<C: Number>(x: C, y: C) -> Ordering {
    let nan = |v: C| v.partial_cmp(&v).is_none();
    x.partial_cmp(&y).unwrap_or_else(|| nan(x).cmp(&nan(y)))
}
