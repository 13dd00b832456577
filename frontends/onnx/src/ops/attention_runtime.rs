//! Attention ops of ONNX Runtime: over heads of queries, with projections, and with groups of heads and a cache of keys
//! and values.

use symmc_import::{Emit, EmitFormulas, RuleCall, invalid, unsupported, unsupported_if};
use symmc_ir::attention::BoundSide;
use symmc_ir::{BinaryOp, DType, Dim, FloatAttribute, Op, Scalar, ValueId};

use super::attention::{AttentionScores, FAR, append_to_past, batch_positions, join_heads, split_heads};
use super::rotary::rotate;
use super::{RuleRow, row};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleFailure, RuleResult};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("com.microsoft::Attention", 1, "matmul, add, attention", projected),
    row("com.microsoft::GroupQueryAttention", 1, "rotary_embedding, scatter, attention", grouped),
    row("com.microsoft::MultiHeadAttention", 1, "attention", multi_head),
];

/// The score that ONNX Runtime adds to those of padded keys by default.
const MASK_FILTER: f64 = -10000.0;

/// Adds a float to a float mask.
fn add_to_mask(
    c: &mut OpCall<'_, '_>,
    mask: Option<ValueId>,
    more: Option<ValueId>,
) -> RuleResult<Option<ValueId>> {
    Ok(match (mask, more) {
        (Some(mask), Some(more)) => Some(c.binary(BinaryOp::Add, mask, more)?),
        (mask, more) => mask.or(more),
    })
}

/// The scores that a mask of keys adds: `[batch]` has the numbers of keys, `[batch, keys]` and `[batch, queries, keys]`
/// are 0 where a key is padding.
fn padding_scores(c: &mut OpCall<'_, '_>, mask: ValueId, keys: &Dim, dtype: DType) -> EmitResult {
    let filter = c.float_or("mask_filter_value", MASK_FILTER)?;
    let shape = c.shape(mask);
    let kept = match shape.as_slice() {
        [_] => {
            let lengths = batch_positions(c, mask)?;
            let column = c.iota(keys.clone(), 0, 1, c.dtype(lengths))?;
            c.binary(BinaryOp::Lt, column, lengths)?
        }
        [batch, keys] => {
            let mask = c.cast(mask, DType::Bool)?;
            c.reshape(mask, vec![batch.clone(), 1.into(), 1.into(), keys.clone()])?
        }
        [_, _, _] => {
            let mask = c.cast(mask, DType::Bool)?;
            c.unsqueeze(mask, 1)?
        }
        other => return unsupported!("a mask of keys with {} axes is not supported", other.len()),
    };
    let filter = c.full(Scalar::Float(FloatAttribute(filter)), dtype, vec![])?;
    let zero = c.full(Scalar::Int(0), dtype, vec![])?;
    c.select(kept, zero, filter)
}

/// Operands: query, key, value, bias, padding of keys, attention bias, past key, past value. The query may pack all three,
/// and the key may pack the value.
fn multi_head(c: &mut OpCall<'_, '_>) -> EmitResult {
    unsupported_if!(
        c.operand_name(8).is_some() || c.operand_name(9).is_some() || c.is_result_read(3),
        "a shared cache and the output of scores are not supported"
    );
    let heads = c.int("num_heads")?;
    let q = c.tensor(0)?;
    let flat = c.rank(q) != 4;
    let packed = c.opt_tensor(1)?;
    let value = c.opt_tensor(2)?;
    let mut operands = match (packed, value) {
        (Some(k), Some(v)) => [q, k, v],
        // [batch, keys, heads, 2, size].
        (Some(packed), None) => {
            let [k, v] = unpack(c, packed)?;
            [q, k, v]
        }
        // [batch, length, heads, 3, size].
        (None, None) => unpack(c, q)?,
        (None, Some(_)) => return invalid!("expected a key with the value, found none"),
    };
    if let Some(bias) = c.opt_tensor(3)? {
        let mut start = Dim::from(0);
        for x in &mut operands {
            unsupported_if!(c.rank(*x) != 3, "a bias of keys with split heads is not supported");
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
    let past = match c.opt_tensor(6)? {
        Some(past) => c.extent(past, 2),
        None => 0.into(),
    };
    let k = append_to_past(c, k, 6, 1)?;
    let v = append_to_past(c, v, 7, 2)?;
    let mut scores = AttentionScores::with_scale(c)?;
    let bias = c.opt_tensor(5)?;
    let padding = match c.opt_tensor(4)? {
        Some(mask) => Some(padding_scores(c, mask, &c.extent(k, 2), c.dtype(q))?),
        None => {
            c.ignore(&["mask_filter_value"]);
            None
        }
    };
    scores.mask = add_to_mask(c, bias, padding)?;
    if c.flag("unidirectional")? {
        scores.bound_by_row(BoundSide::Below, past + Dim::from(1), None);
    }
    let y = scores.emit(c, [q, k, v])?;
    if flat { join_heads(c, y) } else { Ok(y) }
}

/// The parts of `[batch, length, heads, parts, size]`, each `[batch, length, heads * size]`.
fn unpack<const N: usize>(c: &mut OpCall<'_, '_>, packed: ValueId) -> RuleResult<[ValueId; N]> {
    let shape = c.shape(packed);
    let [batch, length, heads, parts, size] = shape.as_slice() else {
        return invalid!("expected five axes of packed operands, found {}", shape.len());
    };
    c.require_equal("the number of packed operands", parts, &Dim::from(N as i64))?;
    let mut values = [packed; N];
    for (i, value) in values.iter_mut().enumerate() {
        let part = c.slice(packed, 3, Dim::from(i as i64), 1.into(), 1)?;
        *value = c.reshape(part, vec![batch.clone(), length.clone(), heads.clone() * size.clone()])?;
    }
    Ok(values)
}

/// Operands: input, weights and bias of queries, keys and values, padding of keys, past of keys and values, attention bias.
fn projected(c: &mut OpCall<'_, '_>) -> EmitResult {
    unsupported_if!(
        c.operand_name(6).is_some() || c.flag("past_present_share_buffer")? || c.flag("do_rotary")?,
        "a shared cache and rotary embeddings are not supported"
    );
    let [x, weights] = c.first_tensors()?;
    let heads = c.int("num_heads")?;
    let mut projected = c.matmul(x, weights)?;
    if let Some(bias) = c.opt_tensor(2)? {
        projected = c.binary(BinaryOp::Add, projected, bias)?;
    }
    let total = c.extent(projected, 2);
    let widths: Vec<Dim> = match c.opt_attribute_ints("qkv_hidden_sizes")? {
        Some(&[q, k, v]) => [q, k, v].map(Dim::from).to_vec(),
        Some(other) => {
            return invalid!("expected three numbers as `qkv_hidden_sizes`, found {}", other.len());
        }
        None => match total.exact_div(&3.into()) {
            Some(each) => vec![each; 3],
            None => return invalid!("expected 3 to divide {}", c.display_dim(&total)),
        },
    };
    let mut parts = c.split_by_lengths(projected, 2, widths)?;
    for part in &mut parts {
        *part = split_heads(c, *part, heads)?;
    }
    let [q, mut k, mut v] = [parts[0], parts[1], parts[2]];
    let mut past_length = Dim::from(0);
    if let Some(past) = c.opt_tensor(4)? {
        past_length = c.extent(past, 3);
        for (i, x) in [&mut k, &mut v].into_iter().enumerate() {
            let part = c.slice(past, 0, Dim::from(i as i64), 1.into(), 1)?;
            let part = c.drop_axis(part, 0)?;
            *x = c.concat(&[part, *x], 2)?;
        }
    }
    if c.is_result_read(1) {
        let keys = c.unsqueeze(k, 0)?;
        let values = c.unsqueeze(v, 0)?;
        let present = c.concat(&[keys, values], 0)?;
        c.set_result(1, present);
    }
    let mut scores = AttentionScores::with_scale(c)?;
    let padding = match c.opt_tensor(3)? {
        Some(mask) => Some(padding_scores(c, mask, &c.extent(k, 2), c.dtype(q))?),
        None => {
            c.ignore(&["mask_filter_value"]);
            None
        }
    };
    let bias = c.opt_tensor(5)?;
    scores.mask = add_to_mask(c, bias, padding)?;
    if c.flag("unidirectional")? {
        scores.bound_by_row(BoundSide::Below, past_length + Dim::from(1), None);
    }
    let y = scores.emit(c, [q, k, v])?;
    join_heads(c, y)
}

/// Attention of groups of heads, whose keys and values are in a cache. Operands: query (or all three), key, value, past key,
/// past value, the last positions of the sequences, the largest length, cosines, sines, positions, attention bias, sink.
fn grouped(c: &mut OpCall<'_, '_>) -> EmitResult {
    unsupported_if!(
        (12..=16).any(|i| c.operand_name(i).is_some()) || c.is_result_read(3),
        "a compressed cache, norms, lengths of queries and the output of scores are not supported"
    );
    let heads = c.int("num_heads")?;
    let key_heads = c.int("kv_num_heads")?;
    let [q, k, v] = grouped_operands(c, heads, key_heads)?;
    let queries = c.extent(q, 2);
    let last = c.tensor(5)?;
    let last = c.cast(last, DType::I64)?;
    let last = batch_positions(c, last)?;
    // The position of the first query. Sequences that are padded at their end start at 0.
    let before = c.emit_dim(&(Dim::from(1) - queries.clone()), DType::I64)?;
    let first = c.formula([last, before], |[last, before]| (last + before).max(0))?;
    let (q, k) = rotated(c, [q, k], first)?;
    let k = store_in_cache(c, k, 3, 1, first)?;
    let v = store_in_cache(c, v, 4, 2, first)?;
    let mut scores = AttentionScores::with_scale(c)?;
    scores.cap = Some(c.float_or("softcap", 0.0)?).filter(|cap| *cap > 0.0);
    if c.int_or("causal", 1)? != 0 {
        scores.bound_by_row(BoundSide::Below, 1.into(), Some(first));
    } else {
        let length = c.binary_scalar(BinaryOp::Add, last, Scalar::Int(1))?;
        scores.bound_by_length(length);
    }
    // The window counts the position of the query.
    let window = c.int_or("local_window_size", -1)?;
    if window > 0 {
        scores.bound_by_row(BoundSide::From, Dim::from(1 - window.min(FAR)), Some(first));
    }
    scores.sink = match c.opt_tensor(11)? {
        Some(sink) => Some(c.reshape(sink, vec![heads.into(), 1.into(), 1.into()])?),
        None if c.int_or("smooth_softmax", 0)? == 1 => {
            Some(c.full(Scalar::Int(0), c.dtype(q), vec![1.into(); 3])?)
        }
        None => None,
    };
    c.ignore(&["smooth_softmax"]);
    let (mut keys, mut values) = (k, v);
    scores.mask = c.opt_tensor(10)?;
    if let Some(bias) = scores.mask {
        // The bias has the largest length, which may be less than that of the cache.
        let length = c.extent(bias, c.rank(bias).saturating_sub(1));
        keys = c.slice(k, 2, 0.into(), length.clone(), 1)?;
        values = c.slice(v, 2, 0.into(), length, 1)?;
    }
    let y = scores.emit(c, [q, keys, values])?;
    join_heads(c, y)
}

/// Queries, keys and values with split heads.
fn grouped_operands(c: &mut OpCall<'_, '_>, heads: i64, key_heads: i64) -> RuleResult<[ValueId; 3]> {
    let q = c.tensor(0)?;
    let [q, k, v] = match (c.opt_tensor(1)?, c.opt_tensor(2)?) {
        (Some(k), Some(v)) => [q, k, v],
        (None, None) => {
            let width = c.extent(q, 2);
            let total = key_heads.checked_mul(2).and_then(|n| n.checked_add(heads));
            let size = total.filter(|n| *n > 0).and_then(|n| width.exact_div(&n.into()));
            let Some(size) = size else {
                return invalid!(
                    "expected {heads} and twice {key_heads} heads to divide {}",
                    c.display_dim(&width)
                );
            };
            let keys = size.clone() * Dim::from(key_heads);
            let parts = c.split_by_lengths(q, 2, vec![size * Dim::from(heads), keys.clone(), keys])?;
            [parts[0], parts[1], parts[2]]
        }
        _ => return invalid!("expected both a key and a value, or none"),
    };
    Ok([split_heads(c, q, heads)?, split_heads(c, k, key_heads)?, split_heads(c, v, key_heads)?])
}

/// Queries and keys with rotary embeddings, if the node has them.
fn rotated(c: &mut OpCall<'_, '_>, [q, k]: [ValueId; 2], first: ValueId) -> RuleResult<(ValueId, ValueId)> {
    let angles = [c.opt_tensor(7)?, c.opt_tensor(8)?];
    let given = c.opt_tensor(9)?;
    let interleaved = c.flag("rotary_interleaved")?;
    if !c.flag("do_rotary")? {
        return Ok((q, k));
    }
    let [Some(cos), Some(sin)] = angles else {
        return invalid!("expected cosines and sines for do_rotary, found none");
    };
    let batch = c.extent(q, 0);
    let length = c.extent(q, 2);
    let positions = match given {
        Some(positions) => positions,
        None => {
            let offsets = c.iota(length.clone(), 0, 1, DType::I64)?;
            let first = c.reshape(first, vec![batch, 1.into()])?;
            c.binary(BinaryOp::Add, first, offsets)?
        }
    };
    let q = rotate(c, q, Some(positions), [cos, sin], interleaved)?;
    let k = rotate(c, k, Some(positions), [cos, sin], interleaved)?;
    Ok((q, k))
}

/// Stores new keys or values `[batch, heads, length, size]` in a cache, from the position `first` of each sequence on. The
/// cache is also the result `result`. It has the length of the past, or the largest length of the sequences if that is more.
fn store_in_cache(
    c: &mut OpCall<'_, '_>,
    x: ValueId,
    past: usize,
    result: usize,
    first: ValueId,
) -> EmitResult {
    let [batch, heads, length, size] =
        c.shape(x).try_into().map_err(|_| RuleFailure::Invalid("expected four axes of the cache".into()))?;
    let past = c.opt_tensor(past)?;
    let known = c.known_value(6)?.and_then(|k| k.as_ints()).and_then(|ints| ints.dims.first().cloned());
    let Some(past) = past else {
        if let Some(total) = known {
            c.require_equal("the largest length without a past", &total, &length)?;
        }
        c.set_result(result, x);
        return Ok(x);
    };
    let past_length = c.extent(past, 2);
    let total = match known {
        Some(total) => past_length.max_with(&total).simplify_within(&c.builder().graph().symbols),
        None => match c.declared_result_type(result)?.and_then(|ty| ty.shape.get(2).cloned()) {
            Some(total) => total,
            None => {
                return unsupported!(
                    "the largest length depends on data, and the type of the cache is not declared"
                );
            }
        },
    };
    let mut cache = past;
    if total != past_length {
        // What the sequences do not fill is zero.
        let column = c.iota(past_length.clone(), 0, 1, DType::I64)?;
        let column = c.unsqueeze(column, 1)?;
        let is_past = c.binary(BinaryOp::Lt, column, first)?;
        let zero = c.full(Scalar::Int(0), c.dtype(past), vec![])?;
        cache = c.select(is_past, past, zero)?;
        let more = vec![batch.clone(), heads.clone(), total - past_length, size.clone()];
        let more = c.full(Scalar::Int(0), c.dtype(past), more)?;
        cache = c.concat(&[cache, more], 2)?;
    }
    let offsets = c.iota(length.clone(), 0, 1, DType::I64)?;
    let offsets = c.unsqueeze(offsets, 1)?;
    let positions = c.binary(BinaryOp::Add, first, offsets)?;
    let positions = c.expand(positions, vec![batch, heads, length, size])?;
    let cache = c.emit("cache", Op::ScatterElements { axis: 2, combine: None }, &[cache, positions, x])?;
    c.set_result(result, cache);
    Ok(cache)
}
