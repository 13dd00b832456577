//! Matrix products, accumulated in f64 and rounded once, and rotary embeddings.

use super::array::{ArrayData, WideArray, broadcast_strides, for_each_offset, numel, round_to_dtype};
use super::error::{OpError, Result};
use crate::types::DType;

/// Integers are multiplied and added in wrapping i64. `dtype` is that of the result.
pub(super) fn matmul(x: &WideArray, y: &WideArray, dtype: DType, shape: &[usize]) -> Result<WideArray> {
    match (&*x.data, &*y.data) {
        (ArrayData::Float(a), ArrayData::Float(b)) => {
            let out = product(a, b, &x.shape, &y.shape, shape, 0.0, |sum, x, y| *sum += x * y);
            Ok(WideArray::from_floats(dtype, shape, out))
        }
        (ArrayData::Int(a), ArrayData::Int(b)) => {
            let out = product(a, b, &x.shape, &y.shape, shape, 0, |sum, x, y| {
                *sum = sum.wrapping_add(x.wrapping_mul(y));
            });
            Ok(WideArray::from_ints(dtype, shape, out))
        }
        _ => Err(OpError::DType { expected: "like-typed", found: y.dtype }),
    }
}

/// Products of the groups of rows of `x` that end at `ends` with the matrices of `y`, and zeros after the last
/// group. For two matrices: the products of the groups that divide K.
pub(super) fn grouped_matmul(
    x: &WideArray,
    y: &WideArray,
    ends: &WideArray,
    shape: &[usize],
) -> Result<WideArray> {
    let a = x.as_floats()?;
    let b = y.as_floats()?;
    let divides_k = y.shape.len() == 2;
    let k = x.shape[1];
    let n = shape[shape.len() - 1];
    let rows = if divides_k { k } else { x.shape[0] };
    let mut out = vec![0.0; numel(shape)];
    let mut start = 0;
    for (group, &end) in ends.as_ints()?.iter().enumerate() {
        let within = usize::try_from(end).ok().filter(|end| (start..=rows).contains(end));
        let end = within.ok_or(OpError::GroupEnd { group, end, start, rows })?;
        if divides_k {
            let columns: Vec<f64> =
                a.chunks_exact(k.max(1)).flat_map(|row| &row[start..end]).copied().collect();
            let size = x.shape[0] * n;
            let product = multiply(&columns, &b[start * n..end * n], [x.shape[0], end - start, n]);
            out[group * size..][..size].copy_from_slice(&product);
        } else {
            let product = multiply(&a[start * k..end * k], &b[group * k * n..][..k * n], [end - start, k, n]);
            out[start * n..end * n].copy_from_slice(&product);
        }
        start = end;
    }
    Ok(WideArray::from_floats(x.dtype, shape, out))
}

fn multiply(a: &[f64], b: &[f64], [m, k, n]: [usize; 3]) -> Vec<f64> {
    product(a, b, &[m, k], &[k, n], &[m, n], 0.0, |s, x, y| *s += x * y)
}

fn product<T: Copy>(
    x: &[T],
    y: &[T],
    x_shape: &[usize],
    y_shape: &[usize],
    shape: &[usize],
    zero: T,
    add: impl Fn(&mut T, T, T),
) -> Vec<T> {
    let (batch, tail) = shape.split_at(shape.len() - 2);
    let m = tail[0];
    let n = tail[1];
    let k = x_shape[x_shape.len() - 1];
    let mut out = vec![zero; numel(shape)];
    if out.is_empty() || k == 0 {
        return out;
    }
    let sx = broadcast_strides(&x_shape[..x_shape.len() - 2], batch);
    let sy = broadcast_strides(&y_shape[..y_shape.len() - 2], batch);
    let mut matrices = out.chunks_exact_mut(m * n);
    for_each_offset(batch, [&sx, &sy], |[i, j]| {
        let x = &x[i * m * k..][..m * k];
        let y = &y[j * k * n..][..k * n];
        let Some(out) = matrices.next() else { return };
        for (x_row, out_row) in x.chunks_exact(k).zip(out.chunks_exact_mut(n)) {
            for (&a, y_row) in x_row.iter().zip(y.chunks_exact(n)) {
                for (sum, &b) in out_row.iter_mut().zip(y_row) {
                    add(sum, a, b);
                }
            }
        }
    });
    out
}

/// Rotary position embedding of `x [.., e]` with the cosines and the sines. Each product and each sum is
/// rounded to the dtype of the cosines.
pub(super) fn rotary(
    x: &WideArray,
    cos: &WideArray,
    sin: &WideArray,
    width: usize,
    interleaved: bool,
) -> Result<WideArray> {
    let dtype = cos.dtype;
    let rank = x.shape.len();
    let e = x.shape[rank - 1];
    let numbers = cos.shape[cos.shape.len() - 1];
    let rows = &x.shape[..rank - 1];
    let starts = broadcast_strides(&cos.shape[..cos.shape.len() - 1], rows);
    let v = x.as_floats()?;
    let cos = cos.as_floats()?;
    let sin = sin.as_floats()?;
    let mut out = v.to_vec();
    let mut row = 0;
    for_each_offset(rows, [&starts], |[start]| {
        let from = &v[row * e..][..e];
        let out_row = &mut out[row * e..][..e];
        for pair in 0..width / 2 {
            let (i, j) = if interleaved { (2 * pair, 2 * pair + 1) } else { (pair, pair + width / 2) };
            let number = |element| start * numbers + if numbers == width { element } else { pair };
            let product = |x: f64, y: f64| round_to_dtype(dtype, x * y);
            out_row[i] =
                round_to_dtype(dtype, product(from[i], cos[number(i)]) - product(from[j], sin[number(i)]));
            out_row[j] =
                round_to_dtype(dtype, product(from[j], cos[number(j)]) + product(from[i], sin[number(j)]));
        }
        row += 1;
    });
    Ok(WideArray::from_floats(x.dtype, &x.shape, out))
}
