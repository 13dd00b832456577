//! Reductions, arg-reductions, cumulative sums, softmax and norms.
//!
//! Floats accumulate in f64, in row-major order, and are rounded once at the end.

use super::array::{
    ArrayData, WideArray, extents_around_axis, for_each_offset, numel, round_to_dtype, strides,
};
use super::elementwise::{float_max, float_min};
use super::error::{OpError, Result};
use crate::op::{ArgOp, ReductionKind};
use crate::types::DType;

pub(super) fn reduce(
    op: ReductionKind,
    axes: &[usize],
    x: &WideArray,
    dtype: DType,
    shape: &[usize],
) -> Result<WideArray> {
    // The strides of the result as seen from the operand: 0 along the reduced axes.
    let kept_axes: Vec<usize> = (0..x.shape.len()).filter(|a| !axes.contains(a)).collect();
    let dense = strides(&kept_axes.iter().map(|&a| x.shape[a]).collect::<Vec<_>>());
    let mut out_strides = vec![0; x.shape.len()];
    for (&axis, &stride) in kept_axes.iter().zip(&dense) {
        out_strides[axis] = stride;
    }
    let from = strides(&x.shape);
    let n = numel(shape);
    let count: usize = axes.iter().map(|&a| x.shape[a]).product();
    if count == 0 && n > 0 && matches!(op, ReductionKind::Max | ReductionKind::Min) {
        return Err(OpError::Empty { op: op.name() });
    }
    if matches!(op, ReductionKind::Any | ReductionKind::All) {
        let any = op == ReductionKind::Any;
        let mut out = vec![!any; n];
        let truth: Vec<bool> = match &*x.data {
            ArrayData::Float(v) => v.iter().map(|&x| x != 0.0).collect(),
            ArrayData::Int(v) => v.iter().map(|&x| x != 0).collect(),
        };
        for_each_offset(&x.shape, [&from, &out_strides], |[i, o]| {
            out[o] = if any { out[o] | truth[i] } else { out[o] & truth[i] }
        });
        return Ok(WideArray::from_bools(shape, out.into_iter()));
    }
    match &*x.data {
        ArrayData::Float(v) => {
            let (start, f) = float_fold(op);
            let mut out = vec![start; n];
            for_each_offset(&x.shape, [&from, &out_strides], |[i, o]| out[o] = f(out[o], v[i]));
            if op == ReductionKind::Mean {
                out.iter_mut().for_each(|s| *s /= count as f64);
            }
            Ok(WideArray::from_floats(dtype, shape, out))
        }
        ArrayData::Int(v) => {
            let (start, f) =
                int_fold(op).ok_or(OpError::DType { expected: "floating-point", found: x.dtype })?;
            let mut out = vec![start; n];
            for_each_offset(&x.shape, [&from, &out_strides], |[i, o]| out[o] = f(out[o], v[i]));
            Ok(WideArray::from_ints(dtype, shape, out))
        }
    }
}

/// A neutral element and a function.
type Fold<T> = (T, fn(T, T) -> T);

pub(super) fn float_fold(op: ReductionKind) -> Fold<f64> {
    match op {
        ReductionKind::Sum | ReductionKind::Mean => (0.0, |a, b| a + b),
        ReductionKind::Prod => (1.0, |a, b| a * b),
        ReductionKind::Max => (f64::NEG_INFINITY, float_max),
        ReductionKind::Min => (f64::INFINITY, float_min),
        ReductionKind::Any => (0.0, |a, b| f64::from(u8::from(a != 0.0 || b != 0.0))),
        ReductionKind::All => (1.0, |a, b| f64::from(u8::from(a != 0.0 && b != 0.0))),
    }
}

/// The neutral element and the function of a reduction of integers; `None` for the mean.
pub(super) fn int_fold(op: ReductionKind) -> Option<Fold<i64>> {
    Some(match op {
        ReductionKind::Sum => (0, i64::wrapping_add),
        ReductionKind::Prod => (1, i64::wrapping_mul),
        ReductionKind::Max => (i64::MIN, i64::max),
        ReductionKind::Min => (i64::MAX, i64::min),
        ReductionKind::Any => (0, |a, b| i64::from(a != 0 || b != 0)),
        ReductionKind::All => (1, |a, b| i64::from(a != 0 && b != 0)),
        ReductionKind::Mean => return None,
    })
}

/// The index of the largest or smallest element. For floats with NaN, the index of the first NaN.
pub(super) fn arg_reduce(op: ArgOp, axis: usize, x: &WideArray, shape: &[usize]) -> Result<WideArray> {
    fn extreme_positions<T: Copy>(
        v: &[T],
        shape: &[usize],
        axis: usize,
        better: impl Fn(T, T) -> bool,
    ) -> Vec<i64> {
        let (outer, n, inner) = extents_around_axis(shape, axis);
        let mut out = Vec::with_capacity(outer * inner);
        for o in 0..outer {
            for k in 0..inner {
                let element = |i: usize| v[(o * n + i) * inner + k];
                let best = (1..n).fold(0, |best, i| if better(element(i), element(best)) { i } else { best });
                out.push(best as i64);
            }
        }
        out
    }
    if x.shape[axis] == 0 && numel(shape) > 0 {
        return Err(OpError::Empty { op: op.name() });
    }
    let out = match (&*x.data, op) {
        (ArrayData::Float(v), ArgOp::Max) => {
            extreme_positions(v, &x.shape, axis, |a, b| a > b || (a.is_nan() && !b.is_nan()))
        }
        (ArrayData::Float(v), ArgOp::Min) => {
            extreme_positions(v, &x.shape, axis, |a, b| a < b || (a.is_nan() && !b.is_nan()))
        }
        (ArrayData::Int(v), ArgOp::Max) => extreme_positions(v, &x.shape, axis, |a, b| a > b),
        (ArrayData::Int(v), ArgOp::Min) => extreme_positions(v, &x.shape, axis, |a, b| a < b),
    };
    Ok(WideArray::from_ints(DType::I64, shape, out))
}

pub(super) fn cumsum(axis: usize, x: &WideArray, dtype: DType) -> WideArray {
    fn running_fold<T: Copy>(v: &[T], shape: &[usize], axis: usize, add: impl Fn(T, T) -> T) -> Vec<T> {
        let (_, n, inner) = extents_around_axis(shape, axis);
        let mut out = v.to_vec();
        for i in (0..v.len()).filter(|i| i / inner % n > 0) {
            out[i] = add(out[i - inner], v[i]);
        }
        out
    }
    match &*x.data {
        ArrayData::Float(v) => {
            WideArray::from_floats(dtype, &x.shape, running_fold(v, &x.shape, axis, |a, b| a + b))
        }
        ArrayData::Int(v) => {
            WideArray::from_ints(dtype, &x.shape, running_fold(v, &x.shape, axis, i64::wrapping_add))
        }
    }
}

pub(super) fn softmax(axis: usize, log: bool, x: &WideArray) -> Result<WideArray> {
    let v = x.as_floats()?;
    let (outer, n, inner) = extents_around_axis(&x.shape, axis);
    let mut out = v.to_vec();
    for o in 0..outer {
        for k in 0..inner {
            let position = |i: usize| (o * n + i) * inner + k;
            let max = (0..n).fold(f64::NEG_INFINITY, |m, i| float_max(m, v[position(i)]));
            let sum: f64 = (0..n).map(|i| (v[position(i)] - max).exp()).sum();
            for i in 0..n {
                let shifted = v[position(i)] - max;
                out[position(i)] = if log { shifted - sum.ln() } else { shifted.exp() / sum };
            }
        }
    }
    Ok(WideArray::from_floats(x.dtype, &x.shape, out))
}

fn row_length(x: &WideArray, axes: usize) -> usize {
    numel(&x.shape[x.shape.len() - axes..])
}

pub(super) fn rms_norm(
    axes: usize,
    eps: f64,
    round_first: bool,
    x: &WideArray,
    weight: Option<&WideArray>,
) -> Result<WideArray> {
    let n = row_length(x, axes);
    let weight = weight.map(|w| w.as_floats()).transpose()?;
    let dtype = x.dtype;
    let mut out = x.as_floats()?.to_vec();
    for row in out.chunks_mut(n.max(1)) {
        let mean = row.iter().map(|x| x * x).sum::<f64>() / n as f64;
        let scale = 1.0 / (mean + eps).sqrt();
        for (i, x) in row.iter_mut().enumerate() {
            *x *= scale;
            if let Some(w) = weight {
                let normalised = if round_first { round_to_dtype(dtype, *x) } else { *x };
                *x = normalised * w[i];
            }
        }
    }
    Ok(WideArray::from_floats(x.dtype, &x.shape, out))
}

pub(super) fn layer_norm(
    axes: usize,
    eps: f64,
    x: &WideArray,
    weight: Option<&WideArray>,
    bias: Option<&WideArray>,
) -> Result<WideArray> {
    let n = row_length(x, axes);
    let weight = weight.map(|w| w.as_floats()).transpose()?;
    let bias = bias.map(|b| b.as_floats()).transpose()?;
    let mut out = x.as_floats()?.to_vec();
    for row in out.chunks_mut(n.max(1)) {
        let mean = row.iter().sum::<f64>() / n as f64;
        let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n as f64;
        let scale = 1.0 / (variance + eps).sqrt();
        for (i, x) in row.iter_mut().enumerate() {
            *x = (*x - mean) * scale;
            if let Some(w) = weight {
                *x *= w[i];
            }
            if let Some(b) = bias {
                *x += b[i];
            }
        }
    }
    Ok(WideArray::from_floats(x.dtype, &x.shape, out))
}
