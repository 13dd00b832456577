//! Iteration spaces: the axes of several operands, joined if they are contiguous in memory.

use std::iter::repeat_n;

use smallvec::SmallVec;
use symmc_runtime::exec::LocatedTensor;

use crate::device::launch::DevicePtr;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct IterationAxis {
    pub n: usize,
    /// The distance of neighbours, in elements.
    pub stride: isize,
}

impl IterationAxis {
    pub fn from_tensor(value: &LocatedTensor, axis: usize) -> IterationAxis {
        IterationAxis { n: value.shape[axis], stride: value.strides[axis] }
    }

    pub fn has_stride_multiple_of(self, n: usize) -> bool {
        self.stride.unsigned_abs().is_multiple_of(n)
    }
}

/// An operand of attention: the location of its heads and rows.
pub(super) struct HeadRows {
    pub at: DevicePtr,
    pub head: Vec<IterationAxis>,
    pub row: Vec<IterationAxis>,
    pub step: isize,
}

impl HeadRows {
    /// The rows of `[.., heads, rows, columns]`; `group` consecutive heads share a head of keys.
    pub fn new(at: DevicePtr, shape: &[usize], strides: &[isize], group: usize) -> HeadRows {
        let r = shape.len();
        let axis = |a: usize| IterationAxis { n: shape[a], stride: strides[a] };
        let heads = axis(r - 3);
        let mut head: Vec<IterationAxis> = (0..r - 3).map(axis).collect();
        head.push(IterationAxis { n: heads.n / group, stride: heads.stride * group as isize });
        let row = vec![IterationAxis { n: group, stride: heads.stride }, axis(r - 2)];
        HeadRows { at, head, row, step: strides[r - 1] }
    }
}

pub(super) type Strides = SmallVec<[isize; 6]>;

/// The strides of an operand that broadcasts to `shape`, over that shape.
pub(super) fn broadcast(shape: &[usize], extents: &[usize], strides: &[isize]) -> Strides {
    let skip = shape.len().saturating_sub(extents.len());
    (0..shape.len())
        .map(|axis| match axis.checked_sub(skip) {
            Some(a) if extents[a] == shape[axis] && extents[a] != 1 => strides[a],
            _ => 0,
        })
        .collect()
}

/// Row-major strides of a shape.
pub(super) fn dense(shape: &[usize]) -> Strides {
    let mut out: Strides = SmallVec::from_elem(1, shape.len());
    for axis in (1..shape.len()).rev() {
        out[axis - 1] = out[axis] * shape[axis] as isize;
    }
    out
}

/// Drops axes of extent 1, and joins neighbouring axes that have one stride in every operand.
pub(super) fn collapse(shape: &mut Vec<usize>, operands: &mut [&mut Strides]) {
    let mut collapsed: Vec<usize> = Vec::with_capacity(shape.len());
    let mut count: usize = 0;
    for axis in 0..shape.len() {
        let n = shape[axis];
        if n == 1 {
            continue;
        }
        let joins = count > 0 && operands.iter().all(|s| s[count - 1] == s[axis] * n as isize);
        if joins {
            collapsed[count - 1] *= n;
        } else {
            collapsed.push(n);
            count += 1;
        }
        operands.iter_mut().for_each(|s| s[count - 1] = s[axis]);
    }
    operands.iter_mut().for_each(|s| s.truncate(count));
    *shape = collapsed;
}

/// Whether the elements of a value are one run of memory.
pub(crate) fn is_contiguous(value: &LocatedTensor) -> bool {
    collapsed_axes(&value.shape, &value.strides).iter().all(|a| a.stride == 1)
}

pub(super) fn collapsed_axes(shape: &[usize], strides: &[isize]) -> Vec<IterationAxis> {
    let mut shape = shape.to_vec();
    let mut strides = Strides::from_slice(strides);
    collapse(&mut shape, &mut [&mut strides]);
    shape.into_iter().zip(strides).map(|(n, stride)| IterationAxis { n, stride }).collect()
}

/// The order of axes by decreasing stride of an operand whose positions do not overlap; the order of the
/// shape if strides do not decide.
pub(super) fn by_stride(shape: &[usize], strides: &[isize]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..shape.len()).filter(|&a| shape[a] != 1).collect();
    if order.iter().all(|&a| strides[a] > 0) {
        order.sort_by_key(|&a| std::cmp::Reverse(strides[a]));
    }
    order
}

/// The largest distance from the first element that strides reach.
pub(super) fn max_offset(shape: &[usize], strides: &[isize]) -> u64 {
    shape.iter().zip(strides).map(|(&n, &s)| n.saturating_sub(1) as u64 * s.unsigned_abs() as u64).sum()
}

/// The shape that the index tensors broadcast to.
pub(super) fn common_shape(indices: &[LocatedTensor]) -> Vec<usize> {
    let rank = indices.iter().map(|i| i.shape.len()).max().unwrap_or(0);
    let mut out = vec![1; rank];
    for index in indices {
        for (&n, o) in index.shape.iter().rev().zip(out.iter_mut().rev()) {
            if *o == 1 {
                *o = n;
            }
        }
    }
    out
}

/// Strides over `[before, at, rest]`, with zeros outside of `at`.
pub(super) fn strides_within(strides: Strides, before: usize, rest: usize) -> Strides {
    repeat_n(0, before).chain(strides).chain(repeat_n(0, rest)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_join_where_all_operands_allow_it() {
        let mut shape = vec![2, 1, 3, 4];
        let mut a = Strides::from_slice(&[12, 7, 4, 1]);
        let mut b = Strides::from_slice(&[0, 0, 4, 1]);
        collapse(&mut shape, &mut [&mut a, &mut b]);
        assert_eq!((shape, &a[..], &b[..]), (vec![2, 12], &[12, 1][..], &[0, 1][..]));
        assert_eq!(collapsed_axes(&[1, 1], &[5, 5]), []);
        assert_eq!(collapsed_axes(&[2, 3], &[3, 1]), [IterationAxis { n: 6, stride: 1 }]);
    }

    #[test]
    fn operands_broadcast_with_stride_zero() {
        assert_eq!(broadcast(&[2, 3, 4], &[3, 1], &[1, 9])[..], [0, 1, 0]);
    }
}
