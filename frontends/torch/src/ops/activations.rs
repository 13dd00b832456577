//! Activation functions, and dropout with probability 0 or in evaluation mode.

use symmc_import::{Emit, EmitFunctions};
use symmc_ir::{BinaryOp, UnaryOp, ValueId};

use super::elementwise::{float_unary, identity, through_f64, unary};
use super::{RuleRow, row};
use crate::call::OpCall;
use crate::effects;
use crate::lower::{EmitResult, RuleFailure};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("aten.relu", "relu", |c| unary(c, UnaryOp::Relu)),
    row("aten.tanh", "tanh", |c| float_unary(c, UnaryOp::Tanh)),
    row("aten.sigmoid", "sigmoid", |c| float_unary(c, UnaryOp::Sigmoid)),
    row("aten.silu", "silu", |c| float_unary(c, UnaryOp::Silu)),
    row("aten.gelu", "gelu, gelu_tanh", gelu),
    row("aten.relu6", "max, min", |c| clamped(c, 0.0, 6.0)),
    row("aten.hardtanh", "max, min", |c| {
        let low = c.float_or("min_val", -1.0)?;
        let high = c.float_or("max_val", 1.0)?;
        clamped(c, low, high)
    }),
    row("aten.hardsigmoid", "add, max, min, mul", |c| {
        let x = c.first_tensor()?;
        hard_sigmoid(c, x)
    }),
    row("aten.hardswish", "x * hardsigmoid(x)", |c| {
        let x = c.first_tensor()?;
        let gate = hard_sigmoid(c, x)?;
        c.binary(BinaryOp::Mul, x, gate)
    }),
    row("aten.leaky_relu", "select", |c| {
        let x = c.first_tensor()?;
        let slope = c.float_or("negative_slope", 0.01)?;
        let positive = c.binary_float(BinaryOp::Gt, x, 0.0)?;
        let scaled = c.binary_float(BinaryOp::Mul, x, slope)?;
        c.select(positive, x, scaled)
    }),
    row("aten.elu", "select of exp, in f64", elu),
    row("aten.softplus", "select of log(exp), in f64", softplus),
    row("aten.mish", "x * tanh(softplus(x)), in f64", |c| {
        through_f64(c, |c, x| {
            let s = softplus_of(c, x, 1.0, 20.0)?;
            let t = c.unary(UnaryOp::Tanh, s)?;
            c.binary(BinaryOp::Mul, x, t)
        })
    }),
    row("aten.log_sigmoid", "neg(softplus(neg)), in f64", |c| {
        through_f64(c, |c, x| {
            let n = c.unary(UnaryOp::Neg, x)?;
            // Above this threshold the logarithm adds nothing that f64 can represent.
            let s = softplus_of(c, n, 1.0, 40.0)?;
            c.unary(UnaryOp::Neg, s)
        })
    }),
    row("aten.glu", "slice, sigmoid, mul", glu),
    row("aten.threshold", "select", |c| {
        let x = c.first_tensor()?;
        let threshold = c.scalar("threshold")?;
        let value = c.scalar("value")?;
        // NaN is not below the threshold, so it is kept.
        let below = c.binary_scalar(BinaryOp::Le, x, threshold)?;
        let fill = c.full(value, c.dtype(x), vec![])?;
        c.select(below, fill, x)
    }),
    row("aten.dropout", "(identity), where nothing is dropped", dropout),
    row("aten.feature_dropout", "(identity), where nothing is dropped", dropout),
    row("aten.native_dropout", "(identity), where nothing is dropped", |c| {
        c.require_results_unread_from(1)?;
        dropout(c)
    }),
];

fn gelu(c: &mut OpCall<'_, '_>) -> EmitResult {
    match c.opt_string("approximate")? {
        None | Some("none") => unary(c, UnaryOp::Gelu),
        Some("tanh") => unary(c, UnaryOp::GeluTanh),
        Some(other) => {
            Err(RuleFailure::Invalid(format!("expected approximate none or tanh, found `{other}`")))
        }
    }
}

fn clamped(c: &mut OpCall<'_, '_>, low: f64, high: f64) -> EmitResult {
    let x = c.first_tensor()?;
    let y = c.binary_float(BinaryOp::Max, x, low)?;
    c.binary_float(BinaryOp::Min, y, high)
}

fn hard_sigmoid(c: &mut OpCall<'_, '_>, x: ValueId) -> EmitResult {
    let y = c.binary_float(BinaryOp::Add, x, 3.0)?;
    let y = c.binary_float(BinaryOp::Max, y, 0.0)?;
    let y = c.binary_float(BinaryOp::Min, y, 6.0)?;
    c.binary_float(BinaryOp::Mul, y, 1.0 / 6.0)
}

/// `x > 0 ? scale * x : scale * alpha * (exp(input_scale * x) - 1)`.
fn elu(c: &mut OpCall<'_, '_>) -> EmitResult {
    let alpha = c.float_or("alpha", 1.0)?;
    let scale = c.float_or("scale", 1.0)?;
    let input_scale = c.float_or("input_scale", 1.0)?;
    through_f64(c, |c, x| {
        let positive = c.binary_float(BinaryOp::Gt, x, 0.0)?;
        let linear = c.binary_float(BinaryOp::Mul, x, scale)?;
        let e = c.binary_float(BinaryOp::Mul, x, input_scale)?;
        let e = c.expm1(e)?;
        let e = c.binary_float(BinaryOp::Mul, e, alpha * scale)?;
        c.select(positive, linear, e)
    })
}

fn softplus(c: &mut OpCall<'_, '_>) -> EmitResult {
    let beta = c.float_or("beta", 1.0)?;
    let threshold = c.float_or("threshold", 20.0)?;
    through_f64(c, |c, x| softplus_of(c, x, beta, threshold))
}

/// `log(1 + exp(beta * x)) / beta`, and `x` where `beta * x` exceeds the threshold.
fn softplus_of(c: &mut OpCall<'_, '_>, x: ValueId, beta: f64, threshold: f64) -> EmitResult {
    let z = c.binary_float(BinaryOp::Mul, x, beta)?;
    let linear = c.binary_float(BinaryOp::Gt, z, threshold)?;
    let e = c.unary(UnaryOp::Exp, z)?;
    let l = c.log1p(e)?;
    let l = c.binary_float(BinaryOp::Mul, l, 1.0 / beta)?;
    c.select(linear, x, l)
}

fn glu(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.first_tensor()?;
    let axis = c.axis_or("dim", -1, c.rank(x))?;
    let n = c.shape(x).get(axis).cloned().unwrap_or(1.into());
    let half =
        n.exact_div(&2.into()).ok_or_else(|| RuleFailure::Invalid("expected an even extent".into()))?;
    let a = c.slice(x, axis, 0.into(), half.clone(), 1)?;
    let b = c.slice(x, axis, half.clone(), half, 1)?;
    let gate = c.unary(UnaryOp::Sigmoid, b)?;
    c.binary(BinaryOp::Mul, a, gate)
}

fn dropout(c: &mut OpCall<'_, '_>) -> EmitResult {
    let p = c.float_or("p", 0.5)?;
    if c.bool_or("train", true)? && p != 0.0 {
        return Err(RuleFailure::Invalid(effects::DRAWS_ERROR.into()));
    }
    identity(c)
}
