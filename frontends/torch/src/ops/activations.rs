//! Activation functions, and dropout with probability 0 or in evaluation mode.

use symmc_import::{Emit, EmitFormulas, invalid};
use symmc_ir::UnaryOp;

use super::elementwise::{float_unary, formula, identity, through_f64, unary};
use super::{RuleRow, row};
use crate::call::OpCall;
use crate::effects;
use crate::lower::{EmitResult, RuleFailure, Term};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("aten.relu", "relu", |c| unary(c, UnaryOp::Relu)),
    row("aten.tanh", "tanh", |c| float_unary(c, UnaryOp::Tanh)),
    row("aten.sigmoid", "sigmoid", |c| float_unary(c, UnaryOp::Sigmoid)),
    row("aten.silu", "silu", |c| float_unary(c, UnaryOp::Silu)),
    row("aten.gelu", "gelu, gelu_tanh", gelu),
    row("aten.relu6", "max, min", |c| formula(c, |x| x.clamp(0.0, 6.0))),
    row("aten.hardtanh", "max, min", |c| {
        let low = c.float_or("min_val", -1.0)?;
        let high = c.float_or("max_val", 1.0)?;
        formula(c, |x| x.clamp(low, high))
    }),
    row("aten.hardsigmoid", "add, max, min, mul", |c| formula(c, hard_sigmoid)),
    row("aten.hardswish", "x * hardsigmoid(x)", |c| formula(c, |x| x * hard_sigmoid(x))),
    row("aten.leaky_relu", "select", |c| {
        let slope = c.float_or("negative_slope", 0.01)?;
        formula(c, |x| x.gt(0.0).select(x, x * slope))
    }),
    row("aten.elu", "select of exp, in f64", elu),
    row("aten.selu", "select of exp, in f64", |c| {
        // The constants of self-normalizing networks (Klambauer et al. 2017).
        const SCALE: f64 = 1.0507009873554805;
        const ALPHA: f64 = 1.6732632423543772;
        through_f64(c, |x| x.gt(0.0).select(x * SCALE, x.expm1() * (ALPHA * SCALE)))
    }),
    row("aten.celu", "select of exp, in f64", |c| {
        let alpha = c.float_or("alpha", 1.0)?;
        through_f64(c, |x| x.gt(0.0).select(x, (x / alpha).expm1() * alpha))
    }),
    row("aten.prelu aten._prelu_kernel", "select", prelu),
    row("aten.rrelu", "select, in evaluation mode", |c| {
        if c.bool_or("training", false)? {
            return Err(RuleFailure::Invalid(effects::DRAWS_ERROR.into()));
        }
        let slope = (c.float_or("lower", 0.125)? + c.float_or("upper", 1.0 / 3.0)?) / 2.0;
        formula(c, |x| x.gt(0.0).select(x, x * slope))
    }),
    row("aten.softshrink", "select", |c| {
        let lambda = c.float_or("lambd", 0.5)?;
        formula(c, |x| {
            let inside = x * 0.0;
            let below = x.lt(-lambda).select(x + lambda, inside);
            x.gt(lambda).select(x - lambda, below)
        })
    }),
    row("aten.hardshrink", "select", |c| {
        let lambda = c.float_or("lambd", 0.5)?;
        formula(c, |x| (x.ge(-lambda) & x.le(lambda)).select(0.0, x))
    }),
    row("aten.softplus", "select of log(exp), in f64", |c| {
        let beta = c.float_or("beta", 1.0)?;
        let threshold = c.float_or("threshold", 20.0)?;
        through_f64(c, |x| x.softplus(beta, threshold))
    }),
    row("aten.mish", "x * tanh(softplus(x)), in f64", |c| {
        through_f64(c, |x| x * x.softplus(1.0, 20.0).tanh())
    }),
    row("aten.log_sigmoid", "neg(softplus(neg)), in f64", |c| {
        // Above this threshold the logarithm adds nothing that f64 can represent.
        through_f64(c, |x| -(-x).softplus(1.0, 40.0))
    }),
    row("aten.glu", "slice, sigmoid, mul", glu),
    row("aten.threshold", "select", |c| {
        let threshold = c.scalar("threshold")?;
        let value = c.scalar("value")?;
        // NaN is not below the threshold, so it is kept.
        formula(c, |x| x.le(threshold).select(value, x))
    }),
    row("aten.dropout aten.feature_dropout", "(identity), where nothing is dropped", dropout),
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
            invalid!("expected approximate none or tanh, found `{other}`")
        }
    }
}

fn hard_sigmoid(x: Term<'_>) -> Term<'_> {
    (x + 3.0).clamp(0.0, 6.0) * (1.0 / 6.0)
}

/// `x > 0 ? scale * x : scale * alpha * (exp(input_scale * x) - 1)`.
fn elu(c: &mut OpCall<'_, '_>) -> EmitResult {
    let alpha = c.float_or("alpha", 1.0)?;
    let scale = c.float_or("scale", 1.0)?;
    let input_scale = c.float_or("input_scale", 1.0)?;
    through_f64(c, |x| x.gt(0.0).select(x * scale, (x * input_scale).expm1() * (alpha * scale)))
}

fn glu(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.first_tensor()?;
    let axis = c.axis_or("dim", -1, c.rank(x))?;
    let n = c.shape(x).get(axis).cloned().unwrap_or(1.into());
    let half =
        n.exact_div(&2.into()).ok_or_else(|| RuleFailure::Invalid("expected an even extent".into()))?;
    c.formula([x], |[x]| x.slice(axis, 0, half.clone()) * x.slice(axis, half.clone(), half).sigmoid())
}

/// `x > 0 ? x : weight * x`, with one weight, or one for each channel.
fn prelu(c: &mut OpCall<'_, '_>) -> EmitResult {
    let [x, weight] = c.tensors_named(["self", "weight"])?;
    let shape = c.shape(x);
    let weight = if c.rank(weight) == 1 && c.rank(x) > 0 && c.ty(weight).numel().as_const() != Some(1) {
        c.reshape_per_channel(weight, &shape)?
    } else if c.rank(weight) == 1 {
        c.reshape(weight, vec![])?
    } else {
        weight
    };
    c.formula([x, weight], |[x, weight]| x.gt(0.0).select(x, x * weight))
}

fn dropout(c: &mut OpCall<'_, '_>) -> EmitResult {
    let p = c.float_or("p", 0.5)?;
    if c.bool_or("train", true)? && p != 0.0 {
        return Err(RuleFailure::Invalid(effects::DRAWS_ERROR.into()));
    }
    identity(c)
}
