//! Layers with a state of constant size: linear attention, and causal convolutions over channels.

use symmc_import::recurrent::MAX_STEPS;
use symmc_import::{Emit, EmitFormulas, RuleCall, invalid, invalid_if, unsupported, unsupported_if};
use symmc_ir::{BinaryOp, DType, Dim, Scalar, UnaryOp, ValueId};

use super::attention::{join_heads, split_heads};
use super::{RuleRow, row};
use crate::call::OpCall;
use crate::lower::EmitResult;

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("CausalConvWithState", 27, "slice, mul, add, silu", causal_convolution),
    row("LinearAttention", 27, "matmul, exp, mul, add for each step", linear_attention),
];

/// Operands: query, key, value, past state, logarithms of decays, factors of updates. Each step decays the state, adds the
/// product of its key and its value, and reads the state by its query. A delta rule subtracts what the state has for the
/// key from the value.
fn linear_attention(c: &mut OpCall<'_, '_>) -> EmitResult {
    // The size of pieces in which kernels compute.
    c.ignore(&["chunk_size"]);
    let rule = c.opt_string("update_rule")?.unwrap_or("gated_delta");
    let (is_gated, is_delta) = match rule {
        "linear" => (false, false),
        "gated" => (true, false),
        "delta" => (false, true),
        "gated_delta" => (true, true),
        other => return invalid!("expected an update rule of ONNX, found `{other}`"),
    };
    let [query, key, value] = c.first_tensors()?;
    let (past, decay, update) = (c.opt_tensor(3)?, c.opt_tensor(4)?, c.opt_tensor(5)?);
    invalid_if!(
        decay.is_some() != is_gated || update.is_some() != is_delta,
        "expected the decays and updates of the rule `{rule}`, found others"
    );
    let heads = c.int("q_num_heads")?;
    let key_heads = c.int("kv_num_heads")?;
    invalid_if!(
        heads <= 0 || key_heads <= 0 || heads % key_heads != 0,
        "expected {key_heads} heads of keys to divide {heads} heads"
    );
    let dtype = c.dtype(query);
    let compute = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let split = |c: &mut OpCall<'_, '_>, x: ValueId, heads: i64| {
        let x = c.cast(x, compute)?;
        split_heads(c, x, heads)
    };
    let q = split(c, query, heads)?;
    let k = split(c, key, key_heads)?;
    let v = split(c, value, key_heads)?;
    let decay = decay.map(|decay| split(c, decay, key_heads)).transpose()?;
    let update = match update {
        Some(update) => {
            let heads = if c.extent(update, 2).as_const() == Some(1) { 1 } else { key_heads };
            Some(split(c, update, heads)?)
        }
        None => None,
    };
    let Some(steps) = c.extent(q, 2).as_const() else {
        return unsupported!("the number of steps is symbolic");
    };
    unsupported_if!(
        !(1..=MAX_STEPS).contains(&steps),
        "{steps} steps are not supported, 1 to {MAX_STEPS} are"
    );
    let scale = c.attention_scale(q, c.opt_float("scale")?.filter(|s| *s != 0.0))?;
    let (batch, size, width) = (c.extent(q, 0), c.extent(k, 3), c.extent(v, 3));
    let mut state = match past {
        Some(past) => c.cast(past, compute)?,
        None => c.full(
            Scalar::Int(0),
            compute,
            vec![batch.clone(), key_heads.into(), size.clone(), width.clone()],
        )?,
    };
    let mut outputs = Vec::new();
    for i in 0..steps {
        let at = |c: &mut OpCall<'_, '_>, x: ValueId| c.slice(x, 2, i.into(), 1.into(), 1);
        let (query, key, mut value) = (at(c, q)?, at(c, k)?, at(c, v)?);
        if let Some(decay) = decay {
            let decay = at(c, decay)?;
            state = c.formula([state, decay], |[state, decay]| state * decay.permute(&[0, 1, 3, 2]).exp())?;
        }
        if let Some(update) = update {
            let update = at(c, update)?;
            value = c.formula([state, key, value, update], |[state, key, value, update]| {
                update * (value - key.matmul(state))
            })?;
        }
        state = c.formula([state, key, value], |[state, key, value]| {
            state + key.permute(&[0, 1, 3, 2]).matmul(value)
        })?;
        let grouped = vec![batch.clone(), key_heads.into(), (heads / key_heads).into(), size.clone()];
        let joined = vec![batch.clone(), heads.into(), 1.into(), width.clone()];
        outputs.push(c.formula([query, state], |[query, state]| {
            query.reshape(grouped).matmul(state).reshape(joined) * scale
        })?);
    }
    let present = c.cast(state, past.map_or(dtype, |past| c.dtype(past)))?;
    c.set_result(1, present);
    let y = c.concat(&outputs, 2)?;
    let y = join_heads(c, y)?;
    c.cast(y, dtype)
}

/// Operands: input, weight of each channel, bias, and what comes before the input. The second result comes before the next
/// input.
fn causal_convolution(c: &mut OpCall<'_, '_>) -> EmitResult {
    let [x, weight] = c.first_tensors()?;
    let bias = c.opt_tensor(2)?;
    let shape = c.shape(x);
    let weights = c.shape(weight);
    let ([batch, channels, length], [_, one, taps]) = (shape.as_slice(), weights.as_slice()) else {
        return invalid!("expected three axes of the input and the weight, found {shape:?} and {weights:?}");
    };
    c.require_equal("the channels of a group", one, &1.into())?;
    let Some(taps) = taps.as_const().filter(|taps| (1..=MAX_STEPS).contains(taps)) else {
        return unsupported!("a weight of {} elements is not supported", c.display_dim(taps));
    };
    let before = match c.opt_tensor(3)? {
        Some(past) => past,
        None => {
            c.full(Scalar::Int(0), c.dtype(x), vec![batch.clone(), channels.clone(), (taps - 1).into()])?
        }
    };
    let padded = c.concat(&[before, x], 2)?;
    let present = c.slice(padded, 2, length.clone(), (taps - 1).into(), 1)?;
    let mut y: Option<ValueId> = None;
    for tap in 0..taps {
        let factor = c.slice(weight, 2, tap.into(), 1.into(), 1)?;
        let factor = c.reshape(factor, vec![channels.clone(), Dim::from(1)])?;
        let part = c.slice(padded, 2, tap.into(), length.clone(), 1)?;
        let part = c.binary(BinaryOp::Mul, part, factor)?;
        y = Some(match y {
            Some(sum) => c.binary(BinaryOp::Add, sum, part)?,
            None => part,
        });
    }
    let Some(mut y) = y else { return invalid!("expected a weight with elements") };
    if let Some(bias) = bias {
        let bias = c.reshape(bias, vec![channels.clone(), 1.into()])?;
        y = c.binary(BinaryOp::Add, y, bias)?;
    }
    c.set_result(1, present);
    // The convolution and the activation each round their results.
    c.keep_rounding(y);
    match c.opt_string("activation")?.unwrap_or("none") {
        "none" => Ok(y),
        "silu" | "swish" => c.unary(UnaryOp::Silu, y),
        other => invalid!("expected activation none, silu or swish, found `{other}`"),
    }
}
