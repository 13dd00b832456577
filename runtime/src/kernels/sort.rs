//! Sorting along an axis: sort and top-k, with positions.
//!
//! Both are stable. NaN counts as larger than every number.

use std::cmp::Ordering;

use super::element::{ComputeNumber, for_number};
use super::error::{KernelError, Result};
use super::scratch::Scratch;
use super::simd::widened;
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
            if k <= MAX_KEPT && k < n {
                let kept = KeptElements { values: &mut best, positions: &mut order[..k], count: 0, descending };
                kept.select_from(&row);
            } else {
                sort_positions(&row, &mut order, k, descending);
                best.iter_mut().zip(order.iter()).for_each(|(b, &i)| *b = row[i as usize]);
            }
            out.write_next(&best);
            out_positions.write_next(&order[..k]);
        }
        scratch.return_buffer(row);
        scratch.return_buffer(best);
        scratch.return_buffer(order);
    });
    Ok(())
}

/// Up to this number of elements, a selection keeps them in order while it reads a row.
const MAX_KEPT: usize = 64;

/// The first elements in order of those that were read so far, with their positions.
struct KeptElements<'a, C> {
    values: &'a mut [C],
    positions: &'a mut [i64],
    count: usize,
    descending: bool,
}

impl<C: ComputeNumber> KeptElements<'_, C> {
    fn select_from(mut self, row: &[C]) {
        const RUN: usize = 32;
        let capacity = self.values.len();
        for (r, run) in row.chunks(RUN).enumerate() {
            // Most runs have no element that comes before the last kept one.
            if self.count == capacity && !may_precede::<C>(run, self.values[capacity - 1], self.descending) {
                continue;
            }
            for (i, &x) in run.iter().enumerate() {
                self.insert(x, (r * RUN + i) as i64);
            }
        }
    }

    /// Inserts an element whose position is larger than those before, unless it comes after all that are kept.
    fn insert(&mut self, x: C, position: i64) {
        let comes_first = |other: C| {
            let order = if self.descending { compare_nan_last(x, other) } else { compare_nan_last(other, x) };
            order == Ordering::Greater
        };
        let capacity = self.values.len();
        if self.count == capacity && !comes_first(self.values[capacity - 1]) {
            return;
        }
        let index = self.values[..self.count].partition_point(|&kept| !comes_first(kept));
        self.count = capacity.min(self.count + 1);
        self.values.copy_within(index..self.count - 1, index + 1);
        self.positions.copy_within(index..self.count - 1, index + 1);
        self.values[index] = x;
        self.positions[index] = position;
    }
}

widened! {
    /// Whether an element may come before `last`; true if one is NaN.
    fn may_precede<C: ComputeNumber>(run: &[C], last: C, descending: bool) -> bool {
        // A comparison with NaN is false.
        if descending {
            !run.iter().fold(true, |all, &x| all & (x <= last))
        } else {
            !run.iter().fold(true, |all, &x| all & (x >= last))
        }
    }
}

/// Sorts the positions of a row by element, as far as the first `k`.
fn sort_positions<C: SortNumber>(row: &[C], order: &mut [i64], k: usize, descending: bool) {
    const POSITION_BITS: u32 = 32;
    if C::sort_key(C::default()).is_some() && row.len() < 1 << POSITION_BITS {
        // Key and position in one integer, which makes the order total.
        for ((i, packed), &x) in (0..).zip(order.iter_mut()).zip(row) {
            let key = C::sort_key(x).unwrap_or(0);
            let key = if descending { !key } else { key };
            *packed = i64::from(key) << POSITION_BITS | i;
        }
        select_first(order, k, |a, b| a.cmp(&b));
        order[..k].iter_mut().for_each(|packed| *packed &= (1 << POSITION_BITS) - 1);
        return;
    }
    order.iter_mut().zip(0..).for_each(|(o, i)| *o = i);
    select_first(order, k, |a, b| {
        let x = row[a as usize];
        let y = row[b as usize];
        let by_value = if descending { compare_nan_last(y, x) } else { compare_nan_last(x, y) };
        by_value.then(a.cmp(&b))
    });
}

trait SortNumber: ComputeNumber {
    /// An integer that sorts as the number, with all NaN equal and last; `None` for all numbers of types that
    /// have more values than this.
    fn sort_key(self) -> Option<i32>;
}

impl SortNumber for f32 {
    #[inline(always)]
    fn sort_key(self) -> Option<i32> {
        // The sum is 0 for -0.
        let bits = (self + 0.0).to_bits() as i32;
        let ordered = bits ^ ((bits >> 31) as u32 >> 1) as i32;
        Some(if self.is_nan() { i32::MAX } else { ordered })
    }
}

impl SortNumber for f64 {
    fn sort_key(self) -> Option<i32> {
        None
    }
}

impl SortNumber for i64 {
    fn sort_key(self) -> Option<i32> {
        None
    }
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
