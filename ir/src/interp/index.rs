//! Reads and writes at positions that are data.
//!
//! An index outside its axis is an error, and so is a negative index.

use super::array::{
    ArrayData, WideArray, broadcast_strides, extents_around_axis, for_each_offset, numel, strides,
};
use super::error::{OpError, Result};
use super::reduce::{float_fold, int_fold};
use crate::op::ReductionKind;
use crate::types::Scalar;

/// The indices as positions along `axis` of extent `extent`.
fn resolve_indices(indices: &WideArray, axis: usize, extent: usize) -> Result<Vec<usize>> {
    let resolved = indices.as_ints()?.iter().enumerate().map(|(position, &index)| {
        let within = usize::try_from(index).ok().filter(|&i| i < extent);
        within.ok_or(OpError::Index { index, position, axis, extent })
    });
    resolved.collect()
}

/// The shape to which the shapes broadcast. The verifier's rules guarantee that they do.
fn broadcast_index_shape(indices: &[&WideArray]) -> Vec<usize> {
    let rank = indices.iter().map(|i| i.shape.len()).max().unwrap_or(0);
    let mut out = vec![1; rank];
    for index in indices {
        for (o, &d) in out.iter_mut().rev().zip(index.shape.iter().rev()) {
            if *o == 1 {
                *o = d;
            }
        }
    }
    out
}

/// The position in `x` of every element that indexing `x` from `axis` on reads, in row-major order, and the
/// shape of the result.
fn indexed_positions(x: &WideArray, axis: usize, indices: &[&WideArray]) -> Result<(Vec<usize>, Vec<usize>)> {
    let end = axis + indices.len();
    let selected = &x.shape[axis..end];
    let outer = numel(&x.shape[..axis]);
    let middle = numel(selected);
    let inner = numel(&x.shape[end..]);
    let shape = broadcast_index_shape(indices);
    let mut within = vec![0; numel(&shape)];
    for (i, (index, stride)) in indices.iter().zip(strides(selected)).enumerate() {
        let resolved = resolve_indices(index, axis + i, selected[i])?;
        let mut next = within.iter_mut();
        for_each_offset(&shape, [&broadcast_strides(&index.shape, &shape)], |[offset]| {
            if let Some(w) = next.next() {
                *w += resolved[offset] * stride;
            }
        });
    }
    let mut out = Vec::with_capacity(outer * within.len() * inner);
    for o in 0..outer {
        for w in &within {
            let start = (o * middle + w) * inner;
            out.extend(start..start + inner);
        }
    }
    Ok((out, [&x.shape[..axis], &shape, &x.shape[end..]].concat()))
}

/// For every element of `index`, in row-major order, its coordinate in `x` with `axis` replaced.
fn element_positions(x: &WideArray, index: &WideArray, axis: usize) -> Result<Vec<usize>> {
    for a in (0..x.shape.len()).filter(|&a| a != axis) {
        if index.shape[a] > x.shape[a] {
            let limit = x.shape[a];
            let extent = index.shape[a];
            return Err(OpError::Extent { axis: a, what: "the extent of the index", limit, found: extent });
        }
    }
    let resolved = resolve_indices(index, axis, x.shape[axis])?;
    let mut outer_strides = strides(&x.shape);
    let stride = std::mem::take(&mut outer_strides[axis]);
    let mut out = Vec::with_capacity(resolved.len());
    for_each_offset(&index.shape, [&outer_strides, &strides(&index.shape)], |[base, element]| {
        out.push(base + resolved[element] * stride)
    });
    Ok(out)
}

/// `x` with elements of `src` stored or combined, in the order of the pairs `(position in x, position in src)`.
fn write_elements(
    x: &WideArray,
    src: &WideArray,
    places: &[(usize, usize)],
    combine: Option<ReductionKind>,
) -> Result<WideArray> {
    match (&*x.data, &*src.data) {
        (ArrayData::Float(a), ArrayData::Float(b)) => {
            let mut out = a.clone();
            let f: fn(f64, f64) -> f64 = match combine {
                None => |_, new| new,
                Some(r) => float_fold(r).1,
            };
            places.iter().for_each(|&(p, s)| out[p] = f(out[p], b[s]));
            if combine == Some(ReductionKind::Mean) {
                out.iter_mut()
                    .zip(count_terms(numel(&x.shape), places))
                    .for_each(|(o, n)| *o /= f64::from(n));
            }
            Ok(WideArray::from_floats(x.dtype, &x.shape, out))
        }
        (ArrayData::Int(a), ArrayData::Int(b)) => {
            let mut out = a.clone();
            // The mean of integers is their sum divided, rounded towards minus infinity.
            let f: fn(i64, i64) -> i64 = match combine {
                None => |_, new| new,
                Some(r) => int_fold(r).map_or(i64::wrapping_add, |(_, f)| f),
            };
            places.iter().for_each(|&(p, s)| out[p] = f(out[p], b[s]));
            if combine == Some(ReductionKind::Mean) {
                out.iter_mut()
                    .zip(count_terms(numel(&x.shape), places))
                    .for_each(|(o, n)| *o = o.div_euclid(i64::from(n)));
            }
            Ok(WideArray::from_ints(x.dtype, &x.shape, out))
        }
        _ => Err(OpError::DType { expected: "like-typed", found: src.dtype }),
    }
}

/// The number of terms of each element: the element itself and what is written to it.
fn count_terms(elements: usize, places: &[(usize, usize)]) -> Vec<u32> {
    let mut counts = vec![1u32; elements];
    places.iter().for_each(|&(target, _)| counts[target] += 1);
    counts
}

pub(super) fn index(x: &WideArray, axis: usize, indices: &[&WideArray]) -> Result<WideArray> {
    let (positions, shape) = indexed_positions(x, axis, indices)?;
    Ok(x.gather_positions(&shape, &positions, Scalar::Int(0)))
}

pub(super) fn index_put(
    x: &WideArray,
    src: &WideArray,
    axis: usize,
    indices: &[&WideArray],
    accumulate: bool,
) -> Result<WideArray> {
    let (positions, shape) = indexed_positions(x, axis, indices)?;
    let mut sources = Vec::with_capacity(positions.len());
    for_each_offset(&shape, [&broadcast_strides(&src.shape, &shape)], |[s]| sources.push(s));
    let places: Vec<_> = positions.into_iter().zip(sources).collect();
    write_elements(x, src, &places, accumulate.then_some(ReductionKind::Sum))
}

pub(super) fn index_add(x: &WideArray, index: &WideArray, src: &WideArray, axis: usize) -> Result<WideArray> {
    let (positions, _) = indexed_positions(x, axis, &[index])?;
    let places: Vec<_> = positions.into_iter().zip(0..).collect();
    write_elements(x, src, &places, Some(ReductionKind::Sum))
}

pub(super) fn gather_elements(x: &WideArray, index: &WideArray, axis: usize) -> Result<WideArray> {
    let positions = element_positions(x, index, axis)?;
    Ok(x.gather_positions(&index.shape, &positions, Scalar::Int(0)))
}

pub(super) fn scatter_elements(
    x: &WideArray,
    index: &WideArray,
    src: &WideArray,
    axis: usize,
    combine: Option<ReductionKind>,
) -> Result<WideArray> {
    let places: Vec<_> = element_positions(x, index, axis)?.into_iter().zip(0..).collect();
    write_elements(x, src, &places, combine)
}

/// `count` entries of the leading axis from `start` on.
pub(super) fn leading_rows(x: &WideArray, start: usize, count: usize) -> WideArray {
    let (_, _, inner) = extents_around_axis(&x.shape, 0);
    let mut shape = x.shape.clone();
    shape[0] = count;
    let range = start * inner..(start + count) * inner;
    match &*x.data {
        ArrayData::Float(v) => WideArray::from_floats(x.dtype, &shape, v[range].to_vec()),
        ArrayData::Int(v) => WideArray::from_ints(x.dtype, &shape, v[range].to_vec()),
    }
}
