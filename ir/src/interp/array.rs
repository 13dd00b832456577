//! The interpreter's own tensors. Elements are held in a wide type and are always already rounded to their
//! dtype.
//!
//! Invariants: the number of elements is the product of the shape. Float dtypes hold `f64`, all others `i64`.
//! Every element is exactly representable in the dtype. An op therefore computes in the wide type and rounds
//! once, in [`WideArray::from_floats`] or [`WideArray::from_ints`]. Elements are stored in row-major order. There are no
//! strided views; a view op copies.

use std::rc::Rc;

use super::error::{OpError, Result};
use crate::tensor::{Tensor, read_f64, read_i64, write_f64, write_i64};
use crate::types::DType;

/// A dense row-major tensor of wide elements. Cloning shares the elements.
#[derive(Clone, Debug)]
pub(super) struct WideArray {
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    pub(super) data: Rc<ArrayData>,
}

#[derive(Clone, Debug)]
pub(super) enum ArrayData {
    Float(Vec<f64>),
    Int(Vec<i64>),
}

impl WideArray {
    /// An array of these floats, rounded to `dtype`.
    pub(super) fn from_floats(dtype: DType, shape: &[usize], mut elements: Vec<f64>) -> Self {
        debug_assert_eq!(elements.len(), numel(shape));
        if dtype != DType::F64 {
            elements.iter_mut().for_each(|x| *x = round_to_dtype(dtype, *x));
        }
        WideArray { dtype, shape: shape.to_vec(), data: Rc::new(ArrayData::Float(elements)) }
    }

    /// An array of these integers, wrapped to `dtype` (for bool: whether it is not 0).
    pub(super) fn from_ints(dtype: DType, shape: &[usize], mut elements: Vec<i64>) -> Self {
        debug_assert_eq!(elements.len(), numel(shape));
        if dtype != DType::I64 {
            elements.iter_mut().for_each(|x| *x = wrap_to_dtype(dtype, *x));
        }
        WideArray { dtype, shape: shape.to_vec(), data: Rc::new(ArrayData::Int(elements)) }
    }

    pub(super) fn from_bools(shape: &[usize], elements: impl Iterator<Item = bool>) -> Self {
        WideArray::from_ints(DType::Bool, shape, elements.map(i64::from).collect())
    }

    pub(super) fn from_tensor(tensor: &Tensor) -> Self {
        let dtype = tensor.dtype();
        if dtype.is_float() {
            WideArray::from_floats(dtype, tensor.shape(), tensor.to_f64())
        } else {
            WideArray::from_ints(dtype, tensor.shape(), tensor.to_i64())
        }
    }

    /// The array as a tensor; `None` if its size overflows.
    pub(super) fn to_tensor(&self) -> Option<Tensor> {
        match &*self.data {
            ArrayData::Float(v) => Tensor::from_f64(self.dtype, self.shape.as_slice(), v),
            ArrayData::Int(v) => Tensor::from_i64(self.dtype, self.shape.as_slice(), v),
        }
    }

    pub(super) fn as_floats(&self) -> Result<&[f64]> {
        match &*self.data {
            ArrayData::Float(v) => Ok(v),
            ArrayData::Int(_) => Err(OpError::DType { expected: "floating-point", found: self.dtype }),
        }
    }

    /// The elements of an integer or bool array.
    pub(super) fn as_ints(&self) -> Result<&[i64]> {
        match &*self.data {
            ArrayData::Int(v) => Ok(v),
            ArrayData::Float(_) => Err(OpError::DType { expected: "integer or bool", found: self.dtype }),
        }
    }

    pub(super) fn reshaped(&self, shape: &[usize]) -> Self {
        debug_assert_eq!(numel(&self.shape), numel(shape));
        WideArray { dtype: self.dtype, shape: shape.to_vec(), data: Rc::clone(&self.data) }
    }

    /// The array whose element `i` is element `positions[i]` of this array, or `fill` if there is no such
    /// element.
    pub(super) fn gather_positions(
        &self,
        shape: &[usize],
        positions: &[usize],
        fill: crate::types::Scalar,
    ) -> Self {
        fn pick<T: Copy>(from: &[T], positions: &[usize], fill: T) -> Vec<T> {
            positions.iter().map(|&p| from.get(p).copied().unwrap_or(fill)).collect()
        }
        match &*self.data {
            ArrayData::Float(v) => {
                WideArray::from_floats(self.dtype, shape, pick(v, positions, fill.as_f64()))
            }
            ArrayData::Int(v) => WideArray::from_ints(self.dtype, shape, pick(v, positions, fill.as_i64())),
        }
    }
}

/// The number of elements of a shape. The caller has checked that it does not overflow.
pub(super) fn numel(shape: &[usize]) -> usize {
    shape.iter().product()
}

pub(super) fn strides(shape: &[usize]) -> Vec<usize> {
    let mut out = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        out[axis - 1] = out[axis] * shape[axis];
    }
    out
}

/// The strides that read a row-major array of shape `from` as if it had the shape `to` (NumPy broadcasting).
pub fn broadcast_strides(from: &[usize], to: &[usize]) -> Vec<usize> {
    let new = to.len() - from.len();
    let dense = strides(from);
    (0..to.len()).map(|a| if a < new || from[a - new] == 1 { 0 } else { dense[a - new] }).collect()
}

/// The extents before, at and after an axis: element `(o, i, k)` is at `(o * n + i) * inner + k`.
pub(super) fn extents_around_axis(shape: &[usize], axis: usize) -> (usize, usize, usize) {
    (numel(&shape[..axis]), shape[axis], numel(&shape[axis + 1..]))
}

/// Visits all coordinates of `shape` in row-major order, with the offset for each of the strides.
#[inline]
pub fn for_each_offset<const N: usize>(
    shape: &[usize],
    strides: [&[usize]; N],
    mut visit: impl FnMut([usize; N]),
) {
    if shape.contains(&0) {
        return;
    }
    let Some((&inner, outer)) = shape.split_last() else { return visit([0; N]) };
    let mut coordinates = vec![0; outer.len()];
    let mut starts = [0; N];
    loop {
        let mut offsets = starts;
        for _ in 0..inner {
            visit(offsets);
            for (a, s) in offsets.iter_mut().zip(&strides) {
                *a += s[outer.len()];
            }
        }
        let mut axis = outer.len();
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            coordinates[axis] += 1;
            let back =
                if coordinates[axis] == outer[axis] { std::mem::take(&mut coordinates[axis]) } else { 0 };
            for (a, s) in starts.iter_mut().zip(&strides) {
                // Advances by one, or wraps from one past the end to the front.
                *a = *a + s[axis] - back * s[axis];
            }
            if back == 0 {
                break;
            }
        }
    }
}

/// `x` rounded to nearest even in a float dtype, in one rounding.
pub(super) fn round_to_dtype(dtype: DType, x: f64) -> f64 {
    if !dtype.is_float() {
        return x;
    }
    let mut stored = [0; 8];
    write_f64(dtype, &mut stored, 0, x);
    read_f64(dtype, &stored, 0)
}

/// `x` wrapped to an integer dtype; for bool whether it is not 0.
pub(super) fn wrap_to_dtype(dtype: DType, x: i64) -> i64 {
    if dtype.is_float() {
        return x;
    }
    let mut stored = [0; 8];
    write_i64(dtype, &mut stored, 0, x);
    read_i64(dtype, &stored, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_done_once() {
        // One and a half units in the last place, then slightly more than f32 can represent.
        let tie = 1.0 + 2f64.powi(-8);
        assert_eq!(round_to_dtype(DType::BF16, tie), 1.0);
        assert_eq!(round_to_dtype(DType::BF16, tie + 2f64.powi(-40)), 1.0 + 2f64.powi(-7));
        assert_eq!(round_to_dtype(DType::BF16, -tie - 2f64.powi(-40)), -1.0 - 2f64.powi(-7));
        assert_eq!(round_to_dtype(DType::F16, 1.0 + 2f64.powi(-11) + 2f64.powi(-45)), 1.0 + 2f64.powi(-10));
        assert_eq!(
            round_to_dtype(DType::F16, 1.0 + 3.0 * 2f64.powi(-11) - 2f64.powi(-45)),
            1.0 + 2f64.powi(-10)
        );
        assert_eq!(round_to_dtype(DType::F16, 65520.0), f64::INFINITY);
        assert_eq!(round_to_dtype(DType::F16, 65519.999999), 65504.0);
        assert_eq!(round_to_dtype(DType::BF16, 1e300), f64::INFINITY);
        assert_eq!(round_to_dtype(DType::BF16, 1e-300), 0.0);
        assert!(round_to_dtype(DType::BF16, -1e-300).is_sign_negative());
        assert_eq!(round_to_dtype(DType::F16, 2f64.powi(-25)), 0.0);
        assert_eq!(round_to_dtype(DType::F16, 2f64.powi(-25) * 1.000001), 2f64.powi(-24));
        assert!(round_to_dtype(DType::F16, f64::NAN).is_nan());
        assert_eq!(round_to_dtype(DType::F32, 0.1), f64::from(0.1f32));
    }

    #[test]
    fn walking_broadcasts() {
        let mut visited = Vec::new();
        let shape = [2, 2, 3];
        for_each_offset(&shape, [&broadcast_strides(&[2, 1], &shape), &strides(&shape)], |[a, b]| {
            visited.push((a, b))
        });
        let expected: Vec<_> = (0..12).map(|i| ((i / 3) % 2, i)).collect();
        assert_eq!(visited, expected);
        let mut count = 0;
        for_each_offset(&[], [&[]], |[at]: [usize; 1]| count += at + 1);
        for_each_offset(&[3, 0], [&[0, 1]], |_| count += 100);
        assert_eq!(count, 1);
    }
}
