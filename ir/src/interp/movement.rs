//! Ops that create or move elements without computing: constants, views, concatenation, padding, sorting.
//!
//! Each op that moves elements computes the source position of every element of its result, and gathers. Views
//! copy here; sharing memory is a matter of plans.

use std::cmp::Ordering;

use super::array::{
    ArrayData, WideArray, broadcast_strides, extents_around_axis, for_each_offset, numel, strides,
};
use super::elementwise::cast;
use super::error::{OpError, Result};
use crate::tensor::Tensor;
use crate::types::{DType, Scalar};

/// A position outside every array, at which [`WideArray::gather_positions`] fills.
const FILL_POSITION: usize = usize::MAX;

pub(super) fn full(scalar: Scalar, dtype: DType, shape: &[usize]) -> WideArray {
    let n = numel(shape);
    if dtype.is_float() {
        WideArray::from_floats(dtype, shape, vec![scalar.as_f64(); n])
    } else if let (DType::Bool, Scalar::Float(x)) = (dtype, scalar) {
        WideArray::from_bools(shape, std::iter::repeat_n(x.0 != 0.0, n))
    } else {
        WideArray::from_ints(dtype, shape, vec![scalar.as_i64(); n])
    }
}

/// The bits of `x` as another dtype of the same size. NaNs are stored as quiet NaNs.
pub(super) fn bitcast(x: &WideArray, dtype: DType) -> Result<WideArray> {
    let bits = x.to_tensor().and_then(|x| Tensor::new(dtype, x.shape(), x.data().to_vec()));
    let mismatch = OpError::DType { expected: "of the same size", found: dtype };
    bits.map(|bits| WideArray::from_tensor(&bits)).ok_or(mismatch)
}

pub(super) fn iota(start: i64, step: i64, dtype: DType, shape: &[usize]) -> WideArray {
    let elements = (0..numel(shape)).map(|i| start.wrapping_add(step.wrapping_mul(i as i64)));
    cast(&WideArray::from_ints(DType::I64, shape, elements.collect()), dtype)
}

pub(super) fn expand(x: &WideArray, shape: &[usize]) -> WideArray {
    let mut positions = Vec::with_capacity(numel(shape));
    for_each_offset(shape, [&broadcast_strides(&x.shape, shape)], |[i]| positions.push(i));
    x.gather_positions(shape, &positions, Scalar::Int(0))
}

pub(super) fn permute(x: &WideArray, perm: &[usize], shape: &[usize]) -> WideArray {
    let dense = strides(&x.shape);
    let permuted: Vec<usize> = perm.iter().map(|&p| dense[p]).collect();
    let mut positions = Vec::with_capacity(numel(shape));
    for_each_offset(shape, [&permuted], |[i]| positions.push(i));
    x.gather_positions(shape, &positions, Scalar::Int(0))
}

/// On each rank of a cell, the piece of its operand along an axis at the rank's position.
pub(super) fn shards(
    operands: &[Vec<WideArray>],
    axis: usize,
) -> Result<Vec<Vec<WideArray>>, (usize, OpError)> {
    let n = operands.len();
    let shards = operands.iter().enumerate().map(|(number, operands)| {
        let x = &operands[0];
        let mut shape = x.shape.clone();
        shape[axis] /= n;
        let start = (number * shape[axis]) as i64;
        slice(x, axis, start, 1, &shape).map(|piece| vec![piece]).map_err(|e| (number, e))
    });
    shards.collect()
}

pub(super) fn slice(x: &WideArray, axis: usize, start: i64, step: i64, shape: &[usize]) -> Result<WideArray> {
    let count = shape[axis];
    let extent = x.shape[axis];
    let outside = OpError::Slice { axis, start, step, count, extent };
    let (start, step) =
        if count == 0 { (0, 1) } else { check_slice(start, step, count, extent).ok_or(outside)? };
    let mut sliced = strides(&x.shape);
    let first = start * sliced[axis];
    sliced[axis] *= step;
    let mut positions = Vec::with_capacity(numel(shape));
    for_each_offset(shape, [&sliced], |[i]| positions.push(first + i));
    Ok(x.gather_positions(shape, &positions, Scalar::Int(0)))
}

/// The start and the step of a slice that lies within an axis.
fn check_slice(start: i64, step: i64, count: usize, extent: usize) -> Option<(usize, usize)> {
    let last_position = i64::try_from(count).ok()?.checked_sub(1)?.checked_mul(step)?.checked_add(start)?;
    (start >= 0 && step >= 1).then_some(())?;
    let start = usize::try_from(start).ok()?;
    let last_position = usize::try_from(last_position).ok()?;
    (last_position < extent).then_some((start, usize::try_from(step).ok()?))
}

pub(super) fn concat(operands: &[&WideArray], axis: usize, shape: &[usize]) -> Result<WideArray> {
    fn joined<T: Copy>(pieces: &[&[T]], chunks: &[usize], outer: usize) -> Vec<T> {
        let mut out = Vec::with_capacity(pieces.iter().map(|p| p.len()).sum());
        for o in 0..outer {
            for (piece, chunk) in pieces.iter().zip(chunks) {
                out.extend_from_slice(&piece[o * chunk..(o + 1) * chunk]);
            }
        }
        out
    }
    let outer = numel(&shape[..axis]);
    let chunks: Vec<usize> = operands.iter().map(|x| numel(&x.shape[axis..])).collect();
    let dtype = operands[0].dtype;
    if dtype.is_float() {
        let pieces: Vec<&[f64]> = operands.iter().map(|x| x.as_floats()).collect::<Result<_, _>>()?;
        Ok(WideArray::from_floats(dtype, shape, joined(&pieces, &chunks, outer)))
    } else {
        let pieces: Vec<&[i64]> = operands.iter().map(|x| x.as_ints()).collect::<Result<_, _>>()?;
        Ok(WideArray::from_ints(dtype, shape, joined(&pieces, &chunks, outer)))
    }
}

pub(super) fn pad(x: &WideArray, low: &[i64], value: Scalar, shape: &[usize]) -> WideArray {
    let dense = strides(&x.shape);
    let mut positions = vec![0];
    for axis in 0..shape.len() {
        let sources: Vec<usize> = (0..shape[axis])
            .map(|i| {
                let source = (i as i64).checked_sub(low[axis]).and_then(|s| usize::try_from(s).ok());
                source.filter(|&s| s < x.shape[axis]).map_or(FILL_POSITION, |s| s * dense[axis])
            })
            .collect();
        let joined = positions.iter().flat_map(|&p| {
            sources
                .iter()
                .map(move |&s| if p == FILL_POSITION || s == FILL_POSITION { FILL_POSITION } else { p + s })
        });
        positions = joined.collect();
    }
    x.gather_positions(shape, &positions, value)
}

/// The first elements along `axis` in stable sorted order, and their positions. `shape` gives their number. NaN
/// is greater than every number.
pub(super) fn sorted(
    x: &WideArray,
    axis: usize,
    descending: bool,
    shape: &[usize],
) -> Result<Vec<WideArray>> {
    fn order<T: Copy>(
        v: &[T],
        (from, axis, take): (&[usize], usize, usize),
        compare: impl Fn(T, T) -> Ordering,
    ) -> Vec<usize> {
        let (outer, n, inner) = extents_around_axis(from, axis);
        let mut out = vec![0; outer * take * inner];
        for o in 0..outer {
            for k in 0..inner {
                let mut row: Vec<usize> = (0..n).collect();
                row.sort_by(|&a, &b| compare(v[(o * n + a) * inner + k], v[(o * n + b) * inner + k]));
                for (i, &p) in row.iter().take(take).enumerate() {
                    out[(o * take + i) * inner + k] = p;
                }
            }
        }
        out
    }
    let take = shape[axis];
    let (_, n, inner) = extents_around_axis(&x.shape, axis);
    if take > n {
        return Err(OpError::Extent { axis, what: "the number of elements taken", limit: n, found: take });
    }
    let direction = |o: Ordering| if descending { o.reverse() } else { o };
    let along = (x.shape.as_slice(), axis, take);
    let places = match &*x.data {
        ArrayData::Float(v) => order(v, along, |a, b| {
            direction(a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan())))
        }),
        ArrayData::Int(v) => order(v, along, |a, b| direction(a.cmp(&b))),
    };
    let positions: Vec<usize> =
        places.iter().enumerate().map(|(i, &p)| (i / inner / take * n + p) * inner + i % inner).collect();
    let values = x.gather_positions(shape, &positions, Scalar::Int(0));
    let places = places.into_iter().map(|p| p as i64).collect();
    Ok(vec![values, WideArray::from_ints(DType::I64, shape, places)])
}
