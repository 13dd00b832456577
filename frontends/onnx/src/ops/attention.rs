//! Scaled dot-product attention and rotary embeddings, as ONNX and ONNX Runtime have them whole.

use symmc_import::Emit;
use symmc_ir::attention::causal_bounds_if;
use symmc_ir::{BinaryOp, DType, Dim, FloatAttribute, Op, Scalar, ValueId};

use super::{RuleRow, row};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleFailure, RuleResult};
use crate::proto::element_type as kind;

pub(super) const ROWS: &[RuleRow] = &[
    row("Attention", 25, "attention", attention),
    row("com.microsoft::MultiHeadAttention", 1, "attention", multi_head),
    row("RotaryEmbedding", 23, "rotary_embedding", |c| {
        let positions = c.opt_tensor(3)?;
        lower_rotary(c, positions, (1, 2))
    }),
    row("com.microsoft::RotaryEmbedding", 1, "rotary_embedding", |c| {
        let positions = c.tensor(1)?;
        lower_rotary(c, Some(positions), (2, 3))
    }),
];

/// An operand with its heads as the second of four axes; one of three axes has them within the last.
fn split_heads(c: &mut OpCall<'_, '_>, x: ValueId, heads: i64) -> EmitResult {
    match c.shape(x).as_slice() {
        [_, _, _, _] => Ok(x),
        [batch, length, width] => {
            let heads = Dim::from(heads);
            let each = width.exact_div(&heads).ok_or_else(|| {
                RuleFailure::Invalid(format!(
                    "expected {} heads to divide {}",
                    c.display_dim(&heads),
                    c.display_dim(width)
                ))
            })?;
            let x = c.reshape(x, vec![batch.clone(), length.clone(), heads, each])?;
            c.permute(x, vec![0, 2, 1, 3])
        }
        other => Err(RuleFailure::Invalid(format!("expected three or four axes, found {}", other.len()))),
    }
}

/// What scores are beside a mask.
struct AttentionOptions {
    cap: Option<FloatAttribute>,
    /// Whether queries see keys up to their own alone.
    causal: bool,
}

/// Attention of queries, keys and values by heads. The result is as the query was.
fn attention_by_heads(
    c: &mut OpCall<'_, '_>,
    [q, k, v]: [ValueId; 3],
    mask: Option<ValueId>,
    scores: AttentionOptions,
    flat: bool,
) -> EmitResult {
    // The softmax is as precise as the program asks for, or more.
    if let Some(precision) = c.opt_int("softmax_precision")?
        && precision == i64::from(kind::DOUBLE)
        && c.dtype(q) != DType::F64
    {
        return Err(RuleFailure::Opaque("its softmax is of 64 bits".into()));
    }
    let scale = c.attention_scale(q, c.opt_float("scale")?.filter(|s| *s != 0.0))?;
    let y = c.emit_attention([q, k, v], mask, scale, (scores.cap, causal_bounds_if(scores.causal)))?;
    if !flat {
        return Ok(y);
    }
    let y = c.permute(y, vec![0, 2, 1, 3])?;
    let shape = c.shape(y);
    c.reshape(y, vec![shape[0].clone(), shape[1].clone(), shape[2].clone() * shape[3].clone()])
}

/// Keys or values behind those of the past; they are a result of their own.
fn append_to_past(c: &mut OpCall<'_, '_>, x: ValueId, past: usize, result: usize) -> EmitResult {
    let present = match c.opt_tensor(past)? {
        Some(past) => c.concat(&[past, x], 2)?,
        None => x,
    };
    c.set_result(result, present);
    Ok(present)
}

fn attention(c: &mut OpCall<'_, '_>) -> EmitResult {
    if c.operand_name(6).is_some() || c.is_result_read(3) {
        return Err(RuleFailure::Opaque("it gives its scores, or pads keys".into()));
    }
    // Scores are capped before a mask is added to them.
    let cap =
        Some(c.float_or("softcap", 0.0)?).filter(|cap| *cap > 0.0 && cap.is_finite()).map(FloatAttribute);
    // It says which scores are given.
    c.ignore(&["qk_matmul_output_mode"]);
    let (q, k, v) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let flat = c.rank(q) == 3;
    let heads = c.int_or("q_num_heads", 0)?;
    let key_heads = c.int_or("kv_num_heads", heads)?;
    let causal = c.flag("is_causal")?;
    let past = match c.opt_tensor(4)? {
        Some(past) => c.extent(past, 2),
        None => 0.into(),
    };
    let (left, right) = (c.int_or("left_window_size", -1)?, c.int_or("right_window_size", -1)?);
    let q = split_heads(c, q, heads)?;
    let (k, v) = (split_heads(c, k, key_heads)?, split_heads(c, v, key_heads)?);
    let (k, v) = (append_to_past(c, k, 4, 1)?, append_to_past(c, v, 5, 2)?);
    let mask = c.opt_tensor(3)?;
    // Behind a past, `causal` is a window whose right side is the query itself.
    let behind = past.as_const() != Some(0);
    let right = if causal && behind { 0 } else { right };
    let mask = apply_window_mask(c, (q, k), mask, &past, (left, right))?;
    attention_by_heads(c, [q, k, v], mask, AttentionOptions { cap, causal: causal && !behind }, flat)
}

/// A mask that also leaves out what is outside the window: keys more than `left` before a query or more than `right`
/// behind it, where the first query has the position `past`. Sides below 0 are open.
fn apply_window_mask(
    c: &mut OpCall<'_, '_>,
    (q, k): (ValueId, ValueId),
    mask: Option<ValueId>,
    past: &Dim,
    (left, right): (i64, i64),
) -> RuleResult<Option<ValueId>> {
    let size = (c.extent(q, 2), c.extent(k, 2));
    let mut seen = None;
    for (width, sign, op) in [(left, -1, BinaryOp::Ge), (right, 1, BinaryOp::Le)] {
        if width < 0 {
            continue;
        }
        let side =
            c.compare_positions(size.clone(), op, &(past.clone() + Dim::from(sign * width.min(FAR))))?;
        seen = Some(match seen {
            Some(seen) => c.binary(BinaryOp::And, seen, side)?,
            None => side,
        });
    }
    let (Some(seen), Some(mask)) = (seen, mask) else { return Ok(seen.or(mask)) };
    if !c.dtype(mask).is_float() {
        let mask = c.cast(mask, DType::Bool)?;
        return c.binary(BinaryOp::And, mask, seen).map(Some);
    }
    let never = c.full(Scalar::Float(FloatAttribute(f64::NEG_INFINITY)), c.dtype(mask), vec![])?;
    c.select(seen, mask, never).map(Some)
}

/// Windows from here on leave nothing out.
const FAR: i64 = 1 << 40;

/// Operands: query, key, value, bias, key padding, attention bias, past key, past value.
fn multi_head(c: &mut OpCall<'_, '_>) -> EmitResult {
    if (4..c.node.input.len()).any(|i| !matches!(i, 5..=7) && c.operand_name(i).is_some())
        || c.is_result_read(3)
    {
        return Err(RuleFailure::Opaque("it pads keys, shares a cache or gives its scores".into()));
    }
    // It is what takes the place of padded keys.
    c.ignore(&["mask_filter_value"]);
    let (Some(k), Some(v)) = (c.opt_tensor(1)?, c.opt_tensor(2)?) else {
        return Err(RuleFailure::Opaque("its operands are packed".into()));
    };
    let q = c.tensor(0)?;
    let (flat, heads) = (c.rank(q) == 3, c.int("num_heads")?);
    let causal = c.flag("unidirectional")?;
    if causal && c.operand_name(6).is_some() {
        return Err(RuleFailure::Opaque("it is causal behind a past".into()));
    }
    let mut parts = [q, k, v];
    if let Some(bias) = c.opt_tensor(3)? {
        let mut start = Dim::from(0);
        for x in &mut parts {
            let width = c.extent(*x, 2);
            let own = c.slice(bias, 0, start.clone(), width.clone(), 1)?;
            *x = c.binary(BinaryOp::Add, *x, own)?;
            start = start + width;
        }
    }
    for x in &mut parts {
        *x = split_heads(c, *x, heads)?;
    }
    let [q, k, v] = parts;
    let (k, v) = (append_to_past(c, k, 6, 1)?, append_to_past(c, v, 7, 2)?);
    let mask = c.opt_tensor(5)?;
    attention_by_heads(c, [q, k, v], mask, AttentionOptions { cap: None, causal }, flat)
}

/// Pairs of elements turned by angles: the first half of the turned elements with the second, or each with its
/// neighbour. `caches` are the operands with the cosines and sines, by position or as they are.
fn lower_rotary(c: &mut OpCall<'_, '_>, positions: Option<ValueId>, caches: (usize, usize)) -> EmitResult {
    let x = c.tensor(0)?;
    let own = c.shape(x);
    let (cos, sin) = (c.tensor(caches.0)?, c.tensor(caches.1)?);
    let half = c.extent(cos, c.rank(cos).saturating_sub(1));
    let turned = half.clone() * Dim::from(2);
    let stated = c.int_or("rotary_embedding_dim", 0)?;
    if stated != 0 && turned.as_const().is_none_or(|n| n != stated) {
        return Err(RuleFailure::Invalid(format!(
            "expected rotary_embedding_dim to be twice the {} angles, found {stated}",
            c.display_dim(&half)
        )));
    }
    if c.flag("is_packed_batching")? || c.float_or("scale", 1.0)? != 1.0 {
        return Err(RuleFailure::Opaque("its batch is packed, or its angles are scaled".into()));
    }
    let heads = match c.int_or("num_heads", 0)? {
        0 if own.len() == 3 => match own[2].exact_div(&turned).and_then(|h| h.as_const()) {
            Some(heads) => heads,
            None => {
                return Err(RuleFailure::Invalid(format!(
                    "expected {} to divide {}",
                    c.display_dim(&turned),
                    c.display_dim(&own[2])
                )));
            }
        },
        heads => heads,
    };
    let x = split_heads(c, x, heads)?;
    let length = c.extent(x, 2);
    let mut angles = [cos, sin];
    for angle in &mut angles {
        if let Some(positions) = positions {
            let at = expand_positions(c, positions, length.clone())?;
            *angle = c.emit("take", Op::Take { axis: 0 }, &[*angle, at])?;
        }
        if c.rank(*angle) == 2 {
            *angle = c.unsqueeze(*angle, 0)?;
        }
        *angle = c.unsqueeze(*angle, 1)?;
    }
    let Some(width) = turned.as_const().and_then(|n| usize::try_from(n).ok()) else {
        return Err(RuleFailure::Opaque("the number of its angles is symbolic".into()));
    };
    let op = Op::RotaryEmbedding { width, interleaved: c.flag("interleaved")? };
    let mut y = c.emit("rotary_embedding", op, &[x, angles[0], angles[1]])?;
    if own.len() == 3 {
        y = c.permute(y, vec![0, 2, 1, 3])?;
        y = c.reshape(y, own)?;
    }
    Ok(y)
}

/// The positions of `length` elements; one alone is that of the first.
fn expand_positions(c: &mut OpCall<'_, '_>, positions: ValueId, length: Dim) -> EmitResult {
    if c.rank(positions) == 1 && c.extent(positions, 0).as_const() == Some(1) {
        let all = c.iota(length, 0, 1, c.dtype(positions))?;
        return c.binary(BinaryOp::Add, all, positions);
    }
    Ok(positions)
}
