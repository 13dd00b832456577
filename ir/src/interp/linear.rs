//! Matrix product and attention, accumulated in f64 and rounded once, and rotary embeddings.

use std::ops::Range;

use super::array::{Array, Data, broadcast_strides, numel, round, walk};
use super::elementwise::float_max;
use super::error::OpError;
use crate::attention::{Bound, Operands, visible};

/// Integers are multiplied and added in wrapping i64.
pub(super) fn matmul(x: &Array, y: &Array, shape: &[usize]) -> Result<Array, OpError> {
    match (&*x.data, &*y.data) {
        (Data::Float(a), Data::Float(b)) => {
            let out = product(a, b, &x.shape, &y.shape, shape, 0.0, |sum, x, y| *sum += x * y);
            Ok(Array::floats(x.dtype, shape, out))
        }
        (Data::Int(a), Data::Int(b)) => {
            let out = product(a, b, &x.shape, &y.shape, shape, 0, |sum, x, y| {
                *sum = sum.wrapping_add(x.wrapping_mul(y));
            });
            Ok(Array::ints(x.dtype, shape, out))
        }
        _ => Err(OpError::DType { expected: "like-typed", found: y.dtype }),
    }
}

/// Products of the groups of rows of `x` that end at `ends` with the matrices of `y`; zeros behind the last. Or, of two
/// matrices, those of the groups that divide K.
pub(super) fn grouped_matmul(x: &Array, y: &Array, ends: &Array, shape: &[usize]) -> Result<Array, OpError> {
    let (a, b) = (x.as_floats()?, y.as_floats()?);
    let divides_k = y.shape.len() == 2;
    let (k, n) = (x.shape[1], shape[shape.len() - 1]);
    let rows = if divides_k { k } else { x.shape[0] };
    let mut out = vec![0.0; numel(shape)];
    let mut start = 0;
    for (group, &end) in ends.as_ints()?.iter().enumerate() {
        let within = usize::try_from(end).ok().filter(|end| (start..=rows).contains(end));
        let end = within.ok_or(OpError::GroupEnd { group, end, start, rows })?;
        let times = |a: &[f64], b: &[f64], [m, k]: [usize; 2]| {
            product(a, b, &[m, k], &[k, n], &[m, n], 0.0, |s, x, y| *s += x * y)
        };
        if divides_k {
            let columns: Vec<f64> =
                a.chunks_exact(k.max(1)).flat_map(|row| &row[start..end]).copied().collect();
            let size = x.shape[0] * n;
            let part = times(&columns, &b[start * n..end * n], [x.shape[0], end - start]);
            out[group * size..][..size].copy_from_slice(&part);
        } else {
            let part = times(&a[start * k..end * k], &b[group * k * n..][..k * n], [end - start, k]);
            out[start * n..end * n].copy_from_slice(&part);
        }
        start = end;
    }
    Ok(Array::floats(x.dtype, shape, out))
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
    let (m, n) = (tail[0], tail[1]);
    let k = x_shape[x_shape.len() - 1];
    let mut out = vec![zero; numel(shape)];
    if out.is_empty() || k == 0 {
        return out;
    }
    let sx = broadcast_strides(&x_shape[..x_shape.len() - 2], batch);
    let sy = broadcast_strides(&y_shape[..y_shape.len() - 2], batch);
    let mut matrices = out.chunks_exact_mut(m * n);
    walk(batch, [&sx, &sy], |[i, j]| {
        let (x, y) = (&x[i * m * k..][..m * k], &y[j * k * n..][..k * n]);
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

/// What an attention row may see.
enum Mask<'a> {
    None,
    /// Nonzero attends.
    Bool(&'a [i64]),
    /// Added to the scores.
    Float(&'a [f64]),
}

/// The attributes of attention.
pub(super) struct Scores<'a> {
    pub scale: f64,
    pub cap: Option<f64>,
    pub bounds: &'a [Bound],
    /// What each bound adds.
    pub adds: Vec<i64>,
    /// Whether an operand is one more score of each row.
    pub sink: bool,
}

impl Scores<'_> {
    fn of(&self, query: &[f64], key: &[f64]) -> f64 {
        let score = query.iter().zip(key).map(|(a, b)| a * b).sum::<f64>() * self.scale;
        self.cap.map_or(score, |cap| cap * (score / cap).tanh())
    }

    /// The columns that each row of `rows`, `[.., h, l]`, sees of `s`.
    fn visible(&self, positions: &[&Array], rows: &[usize], s: usize) -> Result<Vec<Range<usize>>, OpError> {
        let n = numel(rows);
        let l = rows.last().copied().unwrap_or(1);
        let mut limits = vec![Vec::with_capacity(self.bounds.len()); n];
        let mut positions = positions.iter();
        let column = [rows, &[1]].concat();
        for (bound, &add) in self.bounds.iter().zip(&self.adds) {
            let mut of_rows = vec![0; n];
            if bound.operand
                && let Some(x) = positions.next()
            {
                let (elements, mut row) = (x.as_ints()?, 0);
                walk(&column, [&broadcast_strides(&x.shape, &column)], |[at]| {
                    of_rows[row] = elements[at];
                    row += 1;
                });
            }
            for (row, limits) in limits.iter_mut().enumerate() {
                limits.push((bound.side, bound.limit(row % l, add, of_rows[row])));
            }
        }
        Ok(limits.into_iter().map(|limits| visible(limits, s)).collect())
    }
}

/// Scaled dot-product attention; operands `q [.., h, l, e]`, `k [.., g, s, e]`, `v [.., g, s, f]`, mask, positions.
pub(super) fn attention(
    operands: &[&Array],
    attributes: &Scores<'_>,
    shape: &[usize],
) -> Result<Array, OpError> {
    let missing = OpError::Attribute { what: "the operands of attention" };
    let parts = Operands::of(attributes.bounds, attributes.sink, operands).ok_or(missing)?;
    let (q, k, v) = (*parts.q, *parts.k, *parts.v);
    let rank = shape.len();
    let (h, l, f) = (shape[rank - 3], shape[rank - 2], shape[rank - 1]);
    let (g, s, e) = (k.shape[rank - 3], k.shape[rank - 2], k.shape[rank - 1]);
    let mut scores_shape = shape[..rank - 1].to_vec();
    scores_shape.push(s);
    let (mask, mask_strides) = match parts.mask {
        None => (Mask::None, vec![0; rank]),
        Some(m) => {
            let mask = match &*m.data {
                Data::Int(v) => Mask::Bool(v),
                Data::Float(v) => Mask::Float(v),
            };
            (mask, broadcast_strides(&m.shape, &scores_shape))
        }
    };
    let (q, keys, values) = (q.as_floats()?, k.as_floats()?, v.as_floats()?);
    let mut out = Vec::with_capacity(numel(shape));
    let mut scores = vec![None; s];
    let mut row = 0;
    let visible = attributes.visible(parts.positions, &shape[..rank - 1], s)?;
    let sinks = parts.sink.map(|x| x.as_floats()).transpose()?;
    let column = [&shape[..rank - 1], &[1]].concat();
    let sink_strides = parts.sink.map_or_else(|| vec![0; rank], |x| broadcast_strides(&x.shape, &column));
    let strides = [&mask_strides[..rank - 1], &sink_strides[..rank - 1]];
    walk(&shape[..rank - 1], strides, |[mask_start, sink]| {
        let head = row / l;
        // Heads of q share heads of k and v in runs of h / g.
        let shared = head / h * g + head % h / (h / g.max(1)).max(1);
        let query = &q[row * e..][..e];
        for (j, score) in scores.iter_mut().enumerate() {
            let at = mask_start + j * mask_strides[rank - 1];
            let (seen, bias) = match mask {
                Mask::None => (true, 0.0),
                Mask::Bool(m) => (m[at] != 0, 0.0),
                Mask::Float(m) => (true, m[at]),
            };
            *score = (seen && visible[row].contains(&j))
                .then(|| attributes.of(query, &keys[(shared * s + j) * e..][..e]) + bias);
        }
        let start = out.len();
        out.resize(start + f, 0.0);
        let sink = sinks.map(|x| x[sink]);
        attend(&scores, sink, &values[shared * s * f..][..s * f], &mut out[start..]);
        row += 1;
    });
    Ok(Array::floats(operands[0].dtype, shape, out))
}

/// Rotary position embedding: `x [.., e]`, the cosines and the sines. Each product and each sum is rounded to the dtype of
/// the cosines.
pub(super) fn rotary(
    x: &Array,
    cos: &Array,
    sin: &Array,
    width: usize,
    interleaved: bool,
) -> Result<Array, OpError> {
    let (dtype, rank) = (cos.dtype, x.shape.len());
    let (e, numbers) = (x.shape[rank - 1], cos.shape[cos.shape.len() - 1]);
    let rows = &x.shape[..rank - 1];
    let starts = broadcast_strides(&cos.shape[..cos.shape.len() - 1], rows);
    let (v, cos, sin) = (x.as_floats()?, cos.as_floats()?, sin.as_floats()?);
    let mut out = v.to_vec();
    let mut row = 0;
    walk(rows, [&starts], |[at]| {
        let (from, to) = (&v[row * e..][..e], &mut out[row * e..][..e]);
        for pair in 0..width / 2 {
            let (i, j) = if interleaved { (2 * pair, 2 * pair + 1) } else { (pair, pair + width / 2) };
            let number = |element| at * numbers + if numbers == width { element } else { pair };
            let product = |x: f64, y: f64| round(dtype, x * y);
            to[i] = round(dtype, product(from[i], cos[number(i)]) - product(from[j], sin[number(i)]));
            to[j] = round(dtype, product(from[j], cos[number(j)]) + product(from[i], sin[number(j)]));
        }
        row += 1;
    });
    Ok(Array::floats(x.dtype, &x.shape, out))
}

/// Adds the rows of `values` to `out`, weighted with the softmax of the scores that are seen and of the sink. If none is
/// seen, or all are minus infinity, `out` stays.
fn attend(scores: &[Option<f64>], sink: Option<f64>, values: &[f64], out: &mut [f64]) {
    let max = scores.iter().flatten().chain(&sink).fold(f64::NEG_INFINITY, |m, &x| float_max(m, x));
    if max == f64::NEG_INFINITY || out.is_empty() {
        return;
    }
    let mut sum = sink.map_or(0.0, |x| (x - max).exp());
    for (score, value) in scores.iter().zip(values.chunks_exact(out.len())) {
        let Some(score) = score else { continue };
        let weight = (score - max).exp();
        sum += weight;
        for (o, v) in out.iter_mut().zip(value) {
            *o += weight * v;
        }
    }
    out.iter_mut().for_each(|o| *o /= sum);
}
