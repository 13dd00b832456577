//! Typing rules of attention, its gradient, and rotary embeddings.

use super::checks::{
    broadcast_shapes, check_float, check_operand_type, check_same_dtype, check_same_rank, ensure,
};
use crate::attention::{AttentionBound, AttentionOperands};
use crate::dim::Dim;
use crate::types::{DType, FloatAttribute, TensorType};

const MAX_CHUNK: u64 = 1 << 40;

/// Checks the attributes of attention.
pub(super) fn check_attention_attributes(
    cap: Option<FloatAttribute>,
    bounds: &[AttentionBound],
) -> Result<(), String> {
    if let Some(cap) = cap {
        ensure(cap.0.is_finite() && cap.0 > 0.0, || {
            format!("the cap must be a positive number, found {cap}")
        })?;
    }
    match bounds.iter().filter_map(|b| b.chunk).find(|n| !(1..=MAX_CHUNK).contains(n)) {
        Some(n) => Err(format!("a chunk must have 1 to {MAX_CHUNK} positions, found {n}")),
        None => Ok(()),
    }
}

pub(super) fn infer_attention(parts: &AttentionOperands<'_, &TensorType>) -> Result<TensorType, String> {
    let q = *parts.q;
    let k = *parts.k;
    let v = *parts.v;
    check_same_dtype(&[q, k, v])?;
    check_float(q)?;
    check_same_rank(q, k)?;
    check_same_rank(q, v)?;
    let r = q.rank();
    ensure(r >= 3, || format!("q, k and v need three axes or more, found {r}"))?;
    let check_equal =
        |a: &Dim, b: &Dim, role: &str| ensure(a == b, || format!("{role} differ: {a:?} and {b:?}"));
    for a in 0..r - 3 {
        check_equal(&q.shape[a], &k.shape[a], "the batch extents of q and k")?;
        check_equal(&q.shape[a], &v.shape[a], "the batch extents of q and v")?;
    }
    check_equal(&k.shape[r - 3], &v.shape[r - 3], "the heads of k and v")?;
    ensure(q.shape[r - 3].exact_div(&k.shape[r - 3]).is_some(), || {
        format!("the heads of k, {:?}, do not divide those of q, {:?}", k.shape[r - 3], q.shape[r - 3])
    })?;
    check_equal(&q.shape[r - 1], &k.shape[r - 1], "the inner extents of q and k")?;
    check_equal(&k.shape[r - 2], &v.shape[r - 2], "the lengths of k and v")?;
    if let Some(mask) = parts.mask {
        ensure(mask.dtype == DType::Bool || mask.dtype.is_float(), || {
            format!("the mask must be bool or floating-point, found {}", mask.dtype)
        })?;
        let mut scores = q.shape[..r - 1].to_vec();
        scores.push(k.shape[r - 2].clone());
        ensure(broadcast_shapes(&[&mask.shape, &scores])? == scores, || {
            format!("the mask {:?} does not broadcast to {scores:?}", mask.shape)
        })?;
    }
    let mut rows = q.shape[..r - 1].to_vec();
    rows.push(Dim::from(1));
    if let Some(sink) = parts.sink {
        ensure(sink.dtype.is_float(), || format!("the sink must be floating-point, found {}", sink.dtype))?;
        ensure(broadcast_shapes(&[&sink.shape, &rows])? == rows, || {
            format!("the sink {:?} does not broadcast to {rows:?}", sink.shape)
        })?;
    }
    for positions in parts.positions {
        ensure(matches!(positions.dtype, DType::I32 | DType::I64), || {
            format!("the positions of a bound must be i32 or i64, found {}", positions.dtype)
        })?;
        ensure(broadcast_shapes(&[&positions.shape, &rows])? == rows, || {
            format!("the positions {:?} do not broadcast to {rows:?}", positions.shape)
        })?;
    }
    let mut shape = q.shape.clone();
    shape[r - 1] = v.shape[r - 1].clone();
    Ok(TensorType::new(q.dtype, shape))
}

pub(super) fn log_sum_exp_type(q: &TensorType) -> TensorType {
    TensorType::new(q.dtype.compute_dtype(), q.shape[..q.rank() - 1].to_vec())
}

pub(super) fn infer_attention_gradient(
    bounds: &[AttentionBound],
    operands: &[&TensorType],
) -> Result<Vec<TensorType>, String> {
    check_attention_attributes(None, bounds)?;
    let (&[gradient, result, sums], forward) = operands
        .split_first_chunk::<3>()
        .ok_or("it needs the gradient of the result, the result and the log-sum-exp of an attention")?;
    let attention_operands = AttentionOperands::from_operands(bounds, false, forward)
        .ok_or("it needs queries, keys and values")?;
    let expected = infer_attention(&attention_operands)?;
    check_operand_type("gradient of the result", gradient, &expected)?;
    check_operand_type("result", result, &expected)?;
    check_operand_type("log-sum-exp", sums, &log_sum_exp_type(attention_operands.q))?;
    Ok([attention_operands.q, attention_operands.k, attention_operands.v].map(|ty| (*ty).clone()).to_vec())
}

/// Checks the operands of a rotary embedding of the first `width` elements.
pub(super) fn check_rotary(operands: &[&TensorType], width: usize) -> Result<(), String> {
    let x = operands[0];
    let cos = operands[1];
    let sin = operands[2];
    check_float(x)?;
    check_float(cos)?;
    ensure(cos == sin, || {
        format!("the cosines and sines differ: {}{:?} and {}{:?}", cos.dtype, cos.shape, sin.dtype, sin.shape)
    })?;
    ensure(cos.dtype == x.dtype || cos.dtype.size() > x.dtype.size(), || {
        format!("the cosines must be {} or wider, found {}", x.dtype, cos.dtype)
    })?;
    ensure(x.rank() >= 1 && (1..=x.rank()).contains(&cos.rank()), || {
        format!("the cosines have {} axes, x has {}", cos.rank(), x.rank())
    })?;
    let (x_last, x_rows) = split_last(x);
    let (last, rows) = split_last(cos);
    ensure(width >= 2 && width.is_multiple_of(2), || {
        format!("the width must be even and at least 2, found {width}")
    })?;
    ensure(const_extent(x_last).is_some_and(|n| n >= width), || {
        format!("expected rows of at least {width} elements, found {:?}", x.shape)
    })?;
    ensure(const_extent(last).is_some_and(|n| n == width || n == width / 2), || {
        format!("expected {width} or {} cosines in a row, found {:?}", width / 2, cos.shape)
    })?;
    ensure(broadcast_shapes(&[x_rows, rows])? == x_rows, || {
        format!("the cosines {:?} do not broadcast to {:?}", cos.shape, x.shape)
    })
}

fn const_extent(dim: Option<&Dim>) -> Option<usize> {
    dim.and_then(Dim::as_const).and_then(|n| usize::try_from(n).ok())
}

fn split_last(ty: &TensorType) -> (Option<&Dim>, &[Dim]) {
    match ty.shape.split_last() {
        Some((last, rest)) => (Some(last), rest),
        None => (None, &[]),
    }
}
