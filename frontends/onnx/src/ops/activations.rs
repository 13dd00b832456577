//! Activation functions.

use symmc_import::{Emit, EmitFormulas, invalid};
use symmc_ir::{BinaryOp, Scalar, UnaryOp};

use super::elementwise::{formula, unary};
use super::{RuleRow, row};
use crate::call::OpCall;
use crate::lower::{EmitResult, Term};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("Relu", 14, "relu", |c| unary(c, UnaryOp::Relu)),
    row("Tanh", 13, "tanh", |c| unary(c, UnaryOp::Tanh)),
    row("Sigmoid", 13, "sigmoid", |c| unary(c, UnaryOp::Sigmoid)),
    row("Gelu", 20, "gelu, gelu_tanh", |c| match c.opt_string("approximate")? {
        None | Some("none") => unary(c, UnaryOp::Gelu),
        Some("tanh") => unary(c, UnaryOp::GeluTanh),
        Some(other) => {
            invalid!("expected approximate none or tanh, found `{other}`")
        }
    }),
    row("Swish", 24, "silu; x * sigmoid(alpha * x)", |c| swish(c, 1.0)),
    row("com.microsoft::QuickGelu", 1, "x * sigmoid(alpha * x)", |c| swish(c, 1.702)),
    row("com.microsoft::Gelu", 1, "gelu", |c| unary(c, UnaryOp::Gelu)),
    row("com.microsoft::FastGelu", 1, "add, gelu_tanh", |c| unary_of_biased(c, UnaryOp::GeluTanh)),
    row("com.microsoft::BiasGelu", 1, "add, gelu", |c| unary_of_biased(c, UnaryOp::Gelu)),
    row("HardSigmoid", 22, "mul, add, max, min", |c| {
        let alpha = c.float_or("alpha", 0.2)?;
        let beta = c.float_or("beta", 0.5)?;
        formula(c, |x| hard_sigmoid(x, alpha, beta))
    }),
    row("HardSwish", 22, "x * hardsigmoid(x)", |c| formula(c, |x| x * hard_sigmoid(x, 1.0 / 6.0, 0.5))),
    row("LeakyRelu", 16, "select", |c| {
        let alpha = c.float_or("alpha", 0.01)?;
        formula(c, |x| select_positive(x, x, x * alpha))
    }),
    row("PRelu", 16, "select", |c| {
        let [x, slope] = c.first_tensors()?;
        c.formula([x, slope], |[x, slope]| select_positive(x, x, x * slope))
    }),
    row("ThresholdedRelu", 22, "select", |c| {
        let alpha = c.float_or("alpha", 1.0)?;
        let x = c.tensor(0)?;
        let zero = c.full(Scalar::Int(0), c.dtype(x), vec![])?;
        c.formula([x, zero], |[x, zero]| x.gt(alpha).select(x, zero))
    }),
    row("Elu", 22, "select of exp and tanh", |c| {
        let alpha = c.float_or("alpha", 1.0)?;
        formula(c, |x| select_positive(x, x, x.expm1() * alpha))
    }),
    row("Selu", 22, "select of exp and tanh, mul", |c| {
        let alpha = c.float_or("alpha", 1.673_263_2)?;
        let gamma = c.float_or("gamma", 1.050_701)?;
        formula(c, |x| select_positive(x, x * gamma, x.expm1() * (alpha * gamma)))
    }),
    row("Celu", 28, "select of exp and tanh", |c| {
        let alpha = c.float_or("alpha", 1.0)?;
        formula(c, |x| select_positive(x, x, (x / alpha).expm1() * alpha))
    }),
    row("Softplus", 22, "log(1 + exp)", |c| formula(c, softplus)),
    row("Mish", 22, "x * tanh(softplus(x))", |c| formula(c, |x| x * softplus(x).tanh())),
    row("Shrink", 9, "select", |c| {
        let lambda = c.float_or("lambd", 0.5)?;
        let bias = c.float_or("bias", 0.0)?;
        formula(c, |x| {
            let low = x.lt(-lambda).select(x + bias, x.zeros_like());
            x.gt(lambda).select(x - bias, low)
        })
    }),
    row("SwiGLU", 28, "silu or x * sigmoid(alpha * x), mul", |c| {
        let [x, y] = c.first_tensors()?;
        for axis in 0..c.rank(x).max(c.rank(y)) {
            c.require_equal("the extents of the second operand", &c.extent(y, axis), &c.extent(x, axis))?;
        }
        let alpha = c.float_or("alpha", 1.0)?;
        c.formula([x, y], |[x, y]| x * (x * alpha).sigmoid() * y)
    }),
    row("Softsign", 22, "x / (1 + abs(x))", |c| formula(c, |x| x / (x.abs() + 1.0))),
];

fn swish(c: &mut OpCall<'_, '_>, default: f64) -> EmitResult {
    match c.float_or("alpha", default)? {
        1.0 => unary(c, UnaryOp::Silu),
        alpha => formula(c, |x| x * (x * alpha).sigmoid()),
    }
}

/// Applies a function to the sum of the first operand and the optional second one.
fn unary_of_biased(c: &mut OpCall<'_, '_>, op: UnaryOp) -> EmitResult {
    let mut x = c.tensor(0)?;
    if let Some(bias) = c.opt_tensor(1)? {
        x = c.binary(BinaryOp::Add, x, bias)?;
    }
    c.unary(op, x)
}

fn hard_sigmoid(x: Term<'_>, alpha: f64, beta: f64) -> Term<'_> {
    (x * alpha + beta).clamp(0.0, 1.0)
}

/// `high` where `x` is positive, else `low`.
fn select_positive<'f>(x: Term<'f>, high: Term<'f>, low: Term<'f>) -> Term<'f> {
    x.gt(0.0).select(high, low)
}

/// `max(x, 0) + log(1 + exp(-|x|))`, which does not overflow.
fn softplus(x: Term<'_>) -> Term<'_> {
    let log = (-x.abs()).exp().log1p();
    x.relu() + log
}
