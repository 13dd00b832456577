//! Activation functions.

use symmc_import::{Emit, EmitFunctions};
use symmc_ir::{BinaryOp, Scalar, UnaryOp, ValueId};

use super::elementwise::unary;
use super::{RuleRow, row};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleFailure};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("Relu", 14, "relu", |c| unary(c, UnaryOp::Relu)),
    row("Tanh", 13, "tanh", |c| unary(c, UnaryOp::Tanh)),
    row("Sigmoid", 13, "sigmoid", |c| unary(c, UnaryOp::Sigmoid)),
    row("Gelu", 20, "gelu, gelu_tanh", |c| match c.opt_string("approximate")? {
        None | Some("none") => unary(c, UnaryOp::Gelu),
        Some("tanh") => unary(c, UnaryOp::GeluTanh),
        Some(other) => {
            Err(RuleFailure::Invalid(format!("expected approximate none or tanh, found `{other}`")))
        }
    }),
    row("Swish", 24, "silu; x * sigmoid(alpha * x)", |c| swish(c, 1.0)),
    row("com.microsoft::QuickGelu", 1, "x * sigmoid(alpha * x)", |c| swish(c, 1.702)),
    row("com.microsoft::Gelu", 1, "gelu", |c| unary(c, UnaryOp::Gelu)),
    row("com.microsoft::FastGelu", 1, "add, gelu_tanh", |c| unary_of_biased(c, UnaryOp::GeluTanh)),
    row("com.microsoft::BiasGelu", 1, "add, gelu", |c| unary_of_biased(c, UnaryOp::Gelu)),
    row("HardSigmoid", 22, "mul, add, max, min", |c| {
        let x = c.tensor(0)?;
        let alpha = c.float_or("alpha", 0.2)?;
        let beta = c.float_or("beta", 0.5)?;
        hard_sigmoid(c, x, alpha, beta)
    }),
    row("HardSwish", 22, "x * hardsigmoid(x)", |c| {
        let x = c.tensor(0)?;
        let gate = hard_sigmoid(c, x, 1.0 / 6.0, 0.5)?;
        c.binary(BinaryOp::Mul, x, gate)
    }),
    row("LeakyRelu", 16, "select", |c| {
        let x = c.tensor(0)?;
        let alpha = c.float_or("alpha", 0.01)?;
        let low = c.binary_float(BinaryOp::Mul, x, alpha)?;
        select_above(c, x, 0.0, x, low)
    }),
    row("PRelu", 16, "select", |c| {
        let x = c.tensor(0)?;
        let slope = c.tensor(1)?;
        let low = c.binary(BinaryOp::Mul, x, slope)?;
        select_above(c, x, 0.0, x, low)
    }),
    row("ThresholdedRelu", 22, "select", |c| {
        let x = c.tensor(0)?;
        let alpha = c.float_or("alpha", 1.0)?;
        let zero = c.full(Scalar::Int(0), c.dtype(x), vec![])?;
        select_above(c, x, alpha, x, zero)
    }),
    row("Elu", 22, "select of exp and tanh", |c| {
        let x = c.tensor(0)?;
        let alpha = c.float_or("alpha", 1.0)?;
        let low = scaled_expm1(c, x, alpha)?;
        select_above(c, x, 0.0, x, low)
    }),
    row("Selu", 22, "select of exp and tanh, mul", |c| {
        let x = c.tensor(0)?;
        let alpha = c.float_or("alpha", 1.673_263_2)?;
        let gamma = c.float_or("gamma", 1.050_701)?;
        let high = c.binary_float(BinaryOp::Mul, x, gamma)?;
        let low = scaled_expm1(c, x, alpha * gamma)?;
        select_above(c, x, 0.0, high, low)
    }),
    row("Celu", 28, "select of exp and tanh", |c| {
        let x = c.tensor(0)?;
        let alpha = c.float_or("alpha", 1.0)?;
        let scaled = c.binary_float(BinaryOp::Div, x, alpha)?;
        let low = scaled_expm1(c, scaled, alpha)?;
        select_above(c, x, 0.0, x, low)
    }),
    row("Softplus", 22, "log(1 + exp)", |c| {
        let x = c.tensor(0)?;
        softplus(c, x)
    }),
    row("Mish", 22, "x * tanh(softplus(x))", |c| {
        let x = c.tensor(0)?;
        let s = softplus(c, x)?;
        let t = c.unary(UnaryOp::Tanh, s)?;
        c.binary(BinaryOp::Mul, x, t)
    }),
    row("Softsign", 22, "x / (1 + abs(x))", |c| {
        let x = c.tensor(0)?;
        let a = c.unary(UnaryOp::Abs, x)?;
        let a = c.binary_float(BinaryOp::Add, a, 1.0)?;
        c.binary(BinaryOp::Div, x, a)
    }),
];

fn swish(c: &mut OpCall<'_, '_>, default: f64) -> EmitResult {
    let x = c.tensor(0)?;
    let alpha = c.float_or("alpha", default)?;
    if alpha == 1.0 {
        return unary(c, UnaryOp::Silu);
    }
    let scaled = c.binary_float(BinaryOp::Mul, x, alpha)?;
    let gate = c.unary(UnaryOp::Sigmoid, scaled)?;
    c.binary(BinaryOp::Mul, x, gate)
}

/// Applies a function to the sum of the first operand and the optional second one.
fn unary_of_biased(c: &mut OpCall<'_, '_>, op: UnaryOp) -> EmitResult {
    let mut x = c.tensor(0)?;
    if let Some(bias) = c.opt_tensor(1)? {
        x = c.binary(BinaryOp::Add, x, bias)?;
    }
    c.unary(op, x)
}

fn hard_sigmoid(c: &mut OpCall<'_, '_>, x: ValueId, alpha: f64, beta: f64) -> EmitResult {
    let y = c.binary_float(BinaryOp::Mul, x, alpha)?;
    let y = c.binary_float(BinaryOp::Add, y, beta)?;
    let y = c.binary_float(BinaryOp::Max, y, 0.0)?;
    c.binary_float(BinaryOp::Min, y, 1.0)
}

/// `high` where `x` is above a threshold, else `low`.
fn select_above(
    c: &mut OpCall<'_, '_>,
    x: ValueId,
    threshold: f64,
    high: ValueId,
    low: ValueId,
) -> EmitResult {
    let above = c.binary_float(BinaryOp::Gt, x, threshold)?;
    c.select(above, high, low)
}

/// `scale * (exp(x) - 1)`.
fn scaled_expm1(c: &mut OpCall<'_, '_>, x: ValueId, scale: f64) -> EmitResult {
    let e = c.expm1(x)?;
    c.binary_float(BinaryOp::Mul, e, scale)
}

/// `max(x, 0) + log(1 + exp(-|x|))`, which does not overflow.
fn softplus(c: &mut OpCall<'_, '_>, x: ValueId) -> EmitResult {
    let e = c.unary(UnaryOp::Abs, x)?;
    let e = c.unary(UnaryOp::Neg, e)?;
    let e = c.unary(UnaryOp::Exp, e)?;
    let l = c.log1p(e)?;
    let r = c.unary(UnaryOp::Relu, x)?;
    c.binary(BinaryOp::Add, r, l)
}
