//! Attention and its gradients, accumulated in f64 and rounded once.

use std::ops::Range;

use super::array::{ArrayData, WideArray, broadcast_strides, for_each_offset, numel};
use super::elementwise::float_max;
use super::error::{OpError, Result};
use crate::attention::{AttentionBound, AttentionOperands, visible_columns};

enum MaskElements<'a> {
    None,
    /// Nonzero elements attend.
    Bool(&'a [i64]),
    /// Added to the scores.
    Float(&'a [f64]),
}

pub(super) struct ScoreAttributes<'a> {
    pub scale: f64,
    pub cap: Option<f64>,
    pub bounds: &'a [AttentionBound],
    pub adds: Vec<i64>,
    /// Whether an operand is an additional score of each row.
    pub sink: bool,
}

impl ScoreAttributes<'_> {
    fn compute_score(&self, query: &[f64], key: &[f64]) -> f64 {
        let score = query.iter().zip(key).map(|(a, b)| a * b).sum::<f64>() * self.scale;
        self.cap.map_or(score, |cap| cap * (score / cap).tanh())
    }

    /// The columns among `s` that each row of `rows`, `[.., h, l]`, sees.
    fn visible_columns_by_row(
        &self,
        positions: &[&WideArray],
        rows: &[usize],
        s: usize,
    ) -> Result<Vec<Range<usize>>> {
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
                let elements = x.as_ints()?;
                let mut row = 0;
                for_each_offset(&column, [&broadcast_strides(&x.shape, &column)], |[offset]| {
                    of_rows[row] = elements[offset];
                    row += 1;
                });
            }
            for (row, limits) in limits.iter_mut().enumerate() {
                limits.push((bound.side, bound.limit(row % l, add, of_rows[row])));
            }
        }
        Ok(limits.into_iter().map(|limits| visible_columns(limits, s)).collect())
    }
}

struct ScoreRow<'a> {
    /// The index of the row among the rows of all heads.
    row: usize,
    /// The index of the head of keys and values that it reads, among the heads of the whole batch.
    shared: usize,
    /// The scores; `None` for columns that the row does not see.
    scores: &'a [Option<f64>],
    /// An additional score, whose value is zero.
    sink: Option<f64>,
}

/// Calls `each` for every row of `q [.., h, l, e]`, with its scores.
fn for_each_row(
    operands: &AttentionOperands<'_, &WideArray>,
    attributes: &ScoreAttributes<'_>,
    mut each: impl FnMut(ScoreRow<'_>),
) -> Result<()> {
    let q = *operands.q;
    let k = *operands.k;
    let rank = q.shape.len();
    let h = q.shape[rank - 3];
    let l = q.shape[rank - 2];
    let g = k.shape[rank - 3];
    let s = k.shape[rank - 2];
    let e = k.shape[rank - 1];
    let rows = &q.shape[..rank - 1];
    let (mask, mask_strides) = match operands.mask {
        None => (MaskElements::None, vec![0; rank]),
        Some(m) => {
            let mask = match &*m.data {
                ArrayData::Int(v) => MaskElements::Bool(v),
                ArrayData::Float(v) => MaskElements::Float(v),
            };
            (mask, broadcast_strides(&m.shape, &[rows, &[s]].concat()))
        }
    };
    let q = q.as_floats()?;
    let keys = k.as_floats()?;
    let visible = attributes.visible_columns_by_row(operands.positions, rows, s)?;
    let sinks = operands.sink.map(|x| x.as_floats()).transpose()?;
    let column = [rows, &[1]].concat();
    let sink_strides = operands.sink.map_or_else(|| vec![0; rank], |x| broadcast_strides(&x.shape, &column));
    let mut scores = vec![None; s];
    let mut row = 0;
    for_each_offset(rows, [&mask_strides[..rank - 1], &sink_strides[..rank - 1]], |[mask_start, sink]| {
        let head = row / l;
        // Groups of h / g adjacent heads of q share a head of k and v.
        let shared = head / h * g + head % h / (h / g.max(1)).max(1);
        let query = &q[row * e..][..e];
        for (j, score) in scores.iter_mut().enumerate() {
            let mask_index = mask_start + j * mask_strides[rank - 1];
            let (allowed, bias) = match mask {
                MaskElements::None => (true, 0.0),
                MaskElements::Bool(m) => (m[mask_index] != 0, 0.0),
                MaskElements::Float(m) => (true, m[mask_index]),
            };
            *score = (allowed && visible[row].contains(&j))
                .then(|| attributes.compute_score(query, &keys[(shared * s + j) * e..][..e]) + bias);
        }
        each(ScoreRow { row, shared, scores: &scores, sink: sinks.map(|x| x[sink]) });
        row += 1;
    });
    Ok(())
}

const MISSING_OPERANDS: OpError = OpError::Attribute { what: "the operands of attention" };

/// Scaled dot-product attention, and the log-sum-exp of its rows; operands `q [.., h, l, e]`, `k [.., g, s, e]`,
/// `v [.., g, s, f]`, mask, positions.
pub(super) fn attention(
    operands: &[&WideArray],
    attributes: &ScoreAttributes<'_>,
    shape: &[usize],
) -> Result<(WideArray, WideArray)> {
    let attention_operands = AttentionOperands::from_operands(attributes.bounds, attributes.sink, operands)
        .ok_or(MISSING_OPERANDS)?;
    let v = *attention_operands.v;
    let dtype = operands[0].dtype;
    let rank = shape.len();
    let s = v.shape[rank - 2];
    let f = v.shape[rank - 1];
    let values = v.as_floats()?;
    let mut out = Vec::with_capacity(numel(shape));
    let mut sums = Vec::with_capacity(numel(&shape[..rank - 1]));
    for_each_row(&attention_operands, attributes, |row| {
        let start = out.len();
        out.resize(start + f, 0.0);
        sums.push(accumulate_row(&row, &values[row.shared * s * f..][..s * f], &mut out[start..]));
    })?;
    let sums = WideArray::from_floats(dtype.compute_dtype(), &shape[..rank - 1], sums);
    Ok((WideArray::from_floats(dtype, shape, out), sums))
}

/// Adds the rows of `values` to `out`, weighted with the softmax of the visible scores and the sink. Returns
/// the log-sum-exp of these. If no score is visible, or all are minus infinity, `out` is unchanged.
fn accumulate_row(row: &ScoreRow<'_>, values: &[f64], out: &mut [f64]) -> f64 {
    let visible_scores = row.scores.iter().flatten().chain(&row.sink);
    let max = visible_scores.clone().fold(f64::NEG_INFINITY, |m, &x| float_max(m, x));
    if max == f64::NEG_INFINITY {
        return max;
    }
    let sum: f64 = visible_scores.map(|x| (x - max).exp()).sum();
    if !out.is_empty() {
        for (score, value) in row.scores.iter().zip(values.chunks_exact(out.len())) {
            let Some(score) = score else { continue };
            let weight = (score - max).exp();
            out.iter_mut().zip(value).for_each(|(o, v)| *o += weight * v);
        }
        out.iter_mut().for_each(|o| *o /= sum);
    }
    max + sum.ln()
}

/// The gradients of attention with respect to its queries, keys and values. Operands: the gradient of the
/// result, the result, the log-sum-exp, then the operands of [`attention`].
pub(super) fn attention_gradient(
    operands: &[&WideArray],
    attributes: &ScoreAttributes<'_>,
) -> Result<Vec<WideArray>> {
    let (&[gradient, result, sums], forward) = operands.split_first_chunk::<3>().ok_or(MISSING_OPERANDS)?;
    let attention_operands =
        AttentionOperands::from_operands(attributes.bounds, false, forward).ok_or(MISSING_OPERANDS)?;
    let q = *attention_operands.q;
    let k = *attention_operands.k;
    let v = *attention_operands.v;
    let rank = q.shape.len();
    let s = k.shape[rank - 2];
    let e = k.shape[rank - 1];
    let f = v.shape[rank - 1];
    let gradients = gradient.as_floats()?;
    let results = result.as_floats()?;
    let sums = sums.as_floats()?;
    let queries = q.as_floats()?;
    let keys = k.as_floats()?;
    let values = v.as_floats()?;
    let [mut of_q, mut of_k, mut of_v] = [q, k, v].map(|x| vec![0.0; numel(&x.shape)]);
    for_each_row(&attention_operands, attributes, |ScoreRow { row, shared, scores, .. }| {
        if sums[row] == f64::NEG_INFINITY {
            return;
        }
        let query = &queries[row * e..][..e];
        let gradient = &gradients[row * f..][..f];
        let mean = dot_product(gradient, &results[row * f..][..f]);
        for (j, score) in scores.iter().enumerate() {
            let Some(score) = score else { continue };
            let column = shared * s + j;
            let weight = (score - sums[row]).exp();
            let of_score =
                weight * (dot_product(gradient, &values[column * f..][..f]) - mean) * attributes.scale;
            add_scaled(&mut of_q[row * e..][..e], of_score, &keys[column * e..][..e]);
            add_scaled(&mut of_k[column * e..][..e], of_score, query);
            add_scaled(&mut of_v[column * f..][..f], weight, gradient);
        }
    })?;
    let gradients = [(q, of_q), (k, of_k), (v, of_v)];
    Ok(gradients
        .into_iter()
        .map(|(x, gradient)| WideArray::from_floats(x.dtype, &x.shape, gradient))
        .collect())
}

fn dot_product(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add_scaled(to: &mut [f64], factor: f64, x: &[f64]) {
    to.iter_mut().zip(x).for_each(|(to, x)| *to += factor * x);
}
