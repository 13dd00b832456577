//! Scaled dot-product attention and rotary embeddings: ONNX and ONNX Runtime have single ops for them.

use symmc_import::{Emit, RuleCall, invalid, invalid_if, unsupported, unsupported_if};
use symmc_ir::attention::causal_bounds_if;
use symmc_ir::{BinaryOp, DType, Dim, FloatAttribute, Op, Scalar, ValueId};

use super::{RuleRow, row};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleFailure, RuleResult};
use crate::proto::element_type as kind;

pub(super) const RULE_ROWS: &[RuleRow] = &[
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

/// Reshapes `[batch, length, width]` to `[batch, heads, length, width / heads]`. An operand of four axes
/// already has this form.
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
        other => invalid!("expected three or four axes, found {}", other.len()),
    }
}

/// Options of the attention scores, besides a mask.
struct AttentionOptions {
    cap: Option<FloatAttribute>,
    /// Whether a query sees only keys up to its own position.
    causal: bool,
}

/// Attention over split heads. With `flat`, the heads of the result are joined into the last axis.
fn attention_by_heads(
    c: &mut OpCall<'_, '_>,
    [q, k, v]: [ValueId; 3],
    mask: Option<ValueId>,
    scores: AttentionOptions,
    flat: bool,
) -> EmitResult {
    // The softmax is computed in the requested precision or a higher one.
    if let Some(precision) = c.opt_int("softmax_precision")?
        && precision == i64::from(kind::DOUBLE)
        && c.dtype(q) != DType::F64
    {
        return unsupported!("a softmax in 64 bits is not supported");
    }
    let scale = c.attention_scale(q, c.opt_float("scale")?.filter(|s| *s != 0.0))?;
    let bounds = causal_bounds_if(scores.causal);
    let y = c.emit_attention([q, k, v], mask, scale, scores.cap, bounds)?;
    if !flat {
        return Ok(y);
    }
    let y = c.permute(y, vec![0, 2, 1, 3])?;
    let shape = c.shape(y);
    c.reshape(y, vec![shape[0].clone(), shape[1].clone(), shape[2].clone() * shape[3].clone()])
}

/// Appends keys or values to those of the past. The concatenation is also the result `result`.
fn append_to_past(c: &mut OpCall<'_, '_>, x: ValueId, past: usize, result: usize) -> EmitResult {
    let present = match c.opt_tensor(past)? {
        Some(past) => c.concat(&[past, x], 2)?,
        None => x,
    };
    c.set_result(result, present);
    Ok(present)
}

fn attention(c: &mut OpCall<'_, '_>) -> EmitResult {
    unsupported_if!(
        c.operand_name(6).is_some() || c.is_result_read(3),
        "key padding and the output of scores are not supported"
    );
    // Scores are capped before the mask is added.
    let cap =
        Some(c.float_or("softcap", 0.0)?).filter(|cap| *cap > 0.0 && cap.is_finite()).map(FloatAttribute);
    // The mode only selects which scores are output.
    c.ignore(&["qk_matmul_output_mode"]);
    let [q, k, v] = c.first_tensors()?;
    let flat = c.rank(q) == 3;
    let heads = c.int_or("q_num_heads", 0)?;
    let key_heads = c.int_or("kv_num_heads", heads)?;
    let causal = c.flag("is_causal")?;
    let past = match c.opt_tensor(4)? {
        Some(past) => c.extent(past, 2),
        None => 0.into(),
    };
    let left_window = c.int_or("left_window_size", -1)?;
    let right = c.int_or("right_window_size", -1)?;
    let q = split_heads(c, q, heads)?;
    let k = split_heads(c, k, key_heads)?;
    let v = split_heads(c, v, key_heads)?;
    let k = append_to_past(c, k, 4, 1)?;
    let v = append_to_past(c, v, 5, 2)?;
    let mask = c.opt_tensor(3)?;
    // With a past, `causal` is a window whose right end is the query itself.
    let has_past = past.as_const() != Some(0);
    let right = if causal && has_past { 0 } else { right };
    let mask = apply_window_mask(c, (q, k), mask, &past, (left_window, right))?;
    attention_by_heads(c, [q, k, v], mask, AttentionOptions { cap, causal: causal && !has_past }, flat)
}

/// Adds a window to a mask: it excludes keys more than `left` before a query or more than `right` after it.
/// The first query has the position `past`. A negative `left` or `right` means no limit on that side.
fn apply_window_mask(
    c: &mut OpCall<'_, '_>,
    (q, k): (ValueId, ValueId),
    mask: Option<ValueId>,
    past: &Dim,
    (left, right): (i64, i64),
) -> RuleResult<Option<ValueId>> {
    let size = (c.extent(q, 2), c.extent(k, 2));
    let mut visible = None;
    for (width, sign, op) in [(left, -1, BinaryOp::Ge), (right, 1, BinaryOp::Le)] {
        if width < 0 {
            continue;
        }
        let side =
            c.compare_positions(size.clone(), op, &(past.clone() + Dim::from(sign * width.min(FAR))))?;
        visible = Some(match visible {
            Some(visible) => c.binary(BinaryOp::And, visible, side)?,
            None => side,
        });
    }
    let (Some(visible), Some(mask)) = (visible, mask) else { return Ok(visible.or(mask)) };
    if !c.dtype(mask).is_float() {
        let mask = c.cast(mask, DType::Bool)?;
        return c.binary(BinaryOp::And, mask, visible).map(Some);
    }
    let never = c.full(Scalar::Float(FloatAttribute(f64::NEG_INFINITY)), c.dtype(mask), vec![])?;
    c.select(visible, mask, never).map(Some)
}

/// Windows of at least this width exclude nothing.
const FAR: i64 = 1 << 40;

/// Operands: query, key, value, bias, key padding, attention bias, past key, past value.
fn multi_head(c: &mut OpCall<'_, '_>) -> EmitResult {
    unsupported_if!(
        (4..c.node.input.len()).any(|i| !matches!(i, 5..=7) && c.operand_name(i).is_some())
            || c.is_result_read(3),
        "key padding, a shared cache and the output of scores are not supported"
    );
    // The value only replaces the scores of padded keys.
    c.ignore(&["mask_filter_value"]);
    let (Some(k), Some(v)) = (c.opt_tensor(1)?, c.opt_tensor(2)?) else {
        return unsupported!("packed operands are not supported");
    };
    let q = c.tensor(0)?;
    let flat = c.rank(q) == 3;
    let heads = c.int("num_heads")?;
    let causal = c.flag("unidirectional")?;
    unsupported_if!(causal && c.operand_name(6).is_some(), "causal attention with a past is not supported");
    let mut operands = [q, k, v];
    if let Some(bias) = c.opt_tensor(3)? {
        let mut start = Dim::from(0);
        for x in &mut operands {
            let width = c.extent(*x, 2);
            let own_bias = c.slice(bias, 0, start.clone(), width.clone(), 1)?;
            *x = c.binary(BinaryOp::Add, *x, own_bias)?;
            start = start + width;
        }
    }
    for x in &mut operands {
        *x = split_heads(c, *x, heads)?;
    }
    let [q, k, v] = operands;
    let k = append_to_past(c, k, 6, 1)?;
    let v = append_to_past(c, v, 7, 2)?;
    let mask = c.opt_tensor(5)?;
    attention_by_heads(c, [q, k, v], mask, AttentionOptions { cap: None, causal }, flat)
}

/// Rotates pairs of elements by angles. A pair is an element of the first half of the rotated elements and
/// its counterpart in the second half or, if interleaved, two neighbours. `caches` are the operands with the
/// cosines and sines, which `positions` index if they are given.
fn lower_rotary(c: &mut OpCall<'_, '_>, positions: Option<ValueId>, caches: (usize, usize)) -> EmitResult {
    let x = c.tensor(0)?;
    let extents = c.shape(x);
    let cos = c.tensor(caches.0)?;
    let sin = c.tensor(caches.1)?;
    let half = c.extent(cos, c.rank(cos).saturating_sub(1));
    let turned = half.clone() * Dim::from(2);
    let stated = c.int_or("rotary_embedding_dim", 0)?;
    invalid_if!(
        stated != 0 && turned.as_const().is_none_or(|n| n != stated),
        "expected rotary_embedding_dim to be twice the {} angles, found {stated}",
        c.display_dim(&half)
    );
    unsupported_if!(
        c.flag("is_packed_batching")? || c.float_or("scale", 1.0)? != 1.0,
        "packed batches and scaled angles are not supported"
    );
    let heads = match c.int_or("num_heads", 0)? {
        0 if extents.len() == 3 => match extents[2].exact_div(&turned).and_then(|h| h.as_const()) {
            Some(heads) => heads,
            None => {
                return invalid!(
                    "expected {} to divide {}",
                    c.display_dim(&turned),
                    c.display_dim(&extents[2])
                );
            }
        },
        heads => heads,
    };
    let x = split_heads(c, x, heads)?;
    let length = c.extent(x, 2);
    let mut angles = [cos, sin];
    for angle in &mut angles {
        if let Some(positions) = positions {
            let expanded = expand_positions(c, positions, length.clone())?;
            *angle = c.emit("take", Op::Take { axis: 0 }, &[*angle, expanded])?;
        }
        if c.rank(*angle) == 2 {
            *angle = c.unsqueeze(*angle, 0)?;
        }
        *angle = c.unsqueeze(*angle, 1)?;
    }
    let Some(width) = turned.as_const().and_then(|n| usize::try_from(n).ok()) else {
        return unsupported!("the number of angles is symbolic");
    };
    let op = Op::RotaryEmbedding { width, interleaved: c.flag("interleaved")? };
    let mut y = c.emit("rotary_embedding", op, &[x, angles[0], angles[1]])?;
    if extents.len() == 3 {
        y = c.permute(y, vec![0, 2, 1, 3])?;
        y = c.reshape(y, extents)?;
    }
    Ok(y)
}

/// The positions of `length` elements. A single position is that of the first element.
fn expand_positions(c: &mut OpCall<'_, '_>, positions: ValueId, length: Dim) -> EmitResult {
    if c.rank(positions) == 1 && c.extent(positions, 0).as_const() == Some(1) {
        let offsets = c.iota(length, 0, 1, c.dtype(positions))?;
        return c.binary(BinaryOp::Add, offsets, positions);
    }
    Ok(positions)
}
