//! Losses of training graphs.
//!
//! Class indices are `[n]` for scores `[n, classes]`, or `[n, …]` for `[n, classes, …]`. A target equal to
//! `ignore_index` is ignored.

use symmc_import::{Emit, EmitFormulas, RuleCall, invalid, unsupported_if};
use symmc_ir::{BinaryOp, DType, Op, ReductionKind, Scalar, ValueId};

use super::backward::common_operands;
use super::functions::{optional_operand, times_log};
use super::{RuleRow, row, row_of_results};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleResult, Term};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("aten.mse_loss", "sub, mul, mean", |c| pairwise_loss(c, |x, y| (x - y).square())),
    row("aten.l1_loss", "sub, abs, mean", |c| pairwise_loss(c, |x, y| (x - y).abs())),
    row("aten.smooth_l1_loss", "sub, abs, select, mean", |c| {
        let beta = c.float_or("beta", 1.0)?;
        pairwise_loss(c, |x, y| {
            let distance = (x - y).abs();
            let near = distance.square() * (0.5 / beta);
            if beta == 0.0 { distance } else { distance.lt(beta).select(near, distance - 0.5 * beta) }
        })
    }),
    row("aten.huber_loss", "sub, abs, select, mean", |c| {
        let delta = c.float_or("delta", 1.0)?;
        let result = c.dtype(c.tensor("self")?);
        let y = pairwise_loss(c, |x, y| {
            let distance = (x - y).abs();
            let far = (distance - 0.5 * delta) * delta;
            distance.le(delta).select(distance.square() * 0.5, far)
        })?;
        c.cast(y, result)
    }),
    row("aten.soft_margin_loss", "log1p of exp, mean", |c| {
        let ([x, target], _) = common_operands(c, ["self", "target"])?;
        let dtype = c.dtype(c.tensor("self")?);
        let reduction = loss_reduction(c)?;
        let power = c.formula([x, target], |[x, target]| (-(x * target)).exp())?;
        // PyTorch has several kernels, and so rounds the exponential.
        c.keep_rounding(power);
        c.formula([power], |[power]| reduction.of(power.cast(DType::F64).log1p().cast(dtype)))
    }),
    row("aten.kl_div", "target * (log(target) - x), mean", |c| {
        if c.bool_or("log_target", false)? {
            pairwise_loss(c, |x, y| y.exp() * (y - x))
        } else {
            pairwise_loss(c, |x, y| times_log(y, y) - y * x)
        }
    }),
    row("aten.poisson_nll_loss", "exp, log, mean", poisson_loss),
    row("aten.binary_cross_entropy", "log, log1p, mean, in f64", binary_cross_entropy),
    row("aten.binary_cross_entropy_with_logits", "log1p of exp, mean, in f64", cross_entropy_of_logits),
    row("aten.margin_ranking_loss", "sub, max, mean", |c| {
        let ([x, y, target], _) = common_operands(c, ["input1", "input2", "target"])?;
        let margin = c.float_or("margin", 0.0)?;
        let reduction = loss_reduction(c)?;
        c.formula([x, y, target], |[x, y, target]| reduction.of((-target * (x - y) + margin).max(0.0)))
    }),
    row("aten.hinge_embedding_loss", "select, max, mean", |c| {
        let margin = c.float_or("margin", 1.0)?;
        pairwise_loss(c, |x, target| {
            let apart = (margin - x).max(0.0);
            let zero = x.constant(0.0);
            target.ne(1.0).select(apart, zero) + target.ne(-1.0).select(x, zero)
        })
    }),
    row("aten.mse_loss_backward", "g * 2 * (x - target)", |c| loss_gradient(c, |x, y| (x - y) * 2.0)),
    row("aten.smooth_l1_loss_backward", "g * clamp((x - target) / beta)", |c| {
        let beta = c.float_or("beta", 1.0)?;
        loss_gradient(c, |x, y| {
            let difference = x - y;
            let one = x.constant(1.0);
            let near = if beta == 1.0 { difference } else { difference / beta };
            let not_above = difference.ge(beta).select(one, near);
            difference.le(-beta).select(-one, not_above)
        })
    }),
    row("aten.huber_loss_backward", "g * clamp(x - target)", |c| {
        let delta = c.float_or("delta", 1.0)?;
        loss_gradient(c, |x, y| {
            let difference = x - y;
            let not_above = difference.ge(delta).select(delta, difference);
            difference.le(-delta).select(-delta, not_above)
        })
    }),
    row_of_results("aten.nll_loss aten.nll_loss_nd aten.nll_loss_forward", "gather, sum", nll),
    row_of_results("aten.cross_entropy_loss", "log_softmax, gather, sum", |c| {
        let smoothing = c.float_or("label_smoothing", 0.0)?;
        let [x, target] = c.tensors_named(["self", "target"])?;
        let axis = class_axis(c, x)?;
        let x = c.emit("log_softmax", Op::Softmax { axis, log: true }, &[x])?;
        // PyTorch has two kernels, and so rounds the logarithms.
        c.keep_rounding(x);
        if c.dtype(target).is_float() {
            return cross_entropy_of_probabilities(c, x, target, axis, smoothing);
        }
        unsupported_if!(smoothing != 0.0, "label smoothing of class indices is not supported");
        nll_from_log_probabilities(c, x)
    }),
    row("aten.nll_loss_backward", "scatter, mul", nll_backward),
];

/// PyTorch's reductions of a loss.
#[derive(Clone, Copy, PartialEq)]
enum LossReduction {
    Each,
    Mean,
    Sum,
}

impl LossReduction {
    fn of(self, each: Term<'_>) -> Term<'_> {
        let axes: Vec<usize> = (0..each.rank()).collect();
        match self {
            LossReduction::Each => each,
            LossReduction::Mean => each.mean(&axes, false),
            LossReduction::Sum => each.sum(&axes, false),
        }
    }
}

/// The reduced loss of each pair of elements.
fn pairwise_loss(
    c: &mut OpCall<'_, '_>,
    each: impl for<'f> FnOnce(Term<'f>, Term<'f>) -> Term<'f>,
) -> EmitResult {
    let ([x, target], _) = common_operands(c, ["self", "target"])?;
    let reduction = loss_reduction(c)?;
    c.formula([x, target], |[x, target]| reduction.of(each(x, target)))
}

/// The gradient of a loss, whose derivative by `x` is given for each pair of elements.
fn loss_gradient(
    c: &mut OpCall<'_, '_>,
    derivative: impl for<'f> FnOnce(Term<'f>, Term<'f>) -> Term<'f>,
) -> EmitResult {
    let ([gradient, x, target], dtype) = common_operands(c, ["grad_output", "self", "target"])?;
    let is_mean = loss_reduction(c)? == LossReduction::Mean;
    let result = c.dtype(c.tensor("self")?);
    let count = if is_mean { Some(c.emit_numel(x, dtype)?) } else { None };
    c.formula([gradient, x, target], |[gradient, x, target]| {
        let gradient = count.map_or(gradient, |count| gradient / gradient.term(count));
        (gradient * derivative(x, target)).cast(result)
    })
}

fn poisson_loss(c: &mut OpCall<'_, '_>) -> EmitResult {
    let ([x, target], _) = common_operands(c, ["input", "target"])?;
    let is_log = c.bool_or("log_input", true)?;
    let is_full = c.bool_or("full", false)?;
    let eps = c.float_or("eps", 1e-8)?;
    let reduction = loss_reduction(c)?;
    c.formula([x, target], |[x, target]| {
        let loss = if is_log { x.exp() - target * x } else { x - target * (x + eps).log() };
        // Stirling's approximation of the logarithm of the factorial.
        let stirling = target * target.log() - target + (target * (2.0 * std::f64::consts::PI)).log() * 0.5;
        let full = target.le(1.0).select(loss, loss + stirling);
        reduction.of(if is_full { full } else { loss })
    })
}

fn binary_cross_entropy(c: &mut OpCall<'_, '_>) -> EmitResult {
    let ([x, target], dtype) = common_operands(c, ["self", "target"])?;
    let weight = optional_operand(c, "weight", dtype)?;
    let reduction = loss_reduction(c)?;
    c.formula([x, target], |[x, target]| {
        // PyTorch bounds the logarithms.
        let x = x.cast(DType::F64);
        let log = x.log().max(-100.0);
        let other = (-x).log1p().max(-100.0);
        let target = target.cast(DType::F64);
        let loss = ((target - 1.0) * other - target * log).cast(dtype);
        reduction.of(weight.map_or(loss, |weight| loss * loss.term(weight)))
    })
}

fn cross_entropy_of_logits(c: &mut OpCall<'_, '_>) -> EmitResult {
    let [x, target] = c.tensors_named(["self", "target"])?;
    let dtype = c.dtype(target);
    let weight = optional_operand(c, "weight", dtype)?;
    let positive = optional_operand(c, "pos_weight", dtype)?;
    let reduction = loss_reduction(c)?;
    c.formula([x, target], |[x, target]| {
        let x = x.cast(DType::F64);
        let target = target.cast(DType::F64);
        let log_sigmoid = x.min(0.0) - (-x.abs()).exp().log1p();
        let log_sigmoid = positive.map_or(log_sigmoid, |positive| {
            log_sigmoid * ((x.term(positive).cast(DType::F64) - 1.0) * target + 1.0)
        });
        let loss = ((1.0 - target) * x - log_sigmoid).cast(dtype);
        reduction.of(weight.map_or(loss, |weight| loss * loss.term(weight)))
    })
}

fn loss_reduction(c: &OpCall<'_, '_>) -> RuleResult<LossReduction> {
    match c.int_or("reduction", 1)? {
        0 => Ok(LossReduction::Each),
        1 => Ok(LossReduction::Mean),
        2 => Ok(LossReduction::Sum),
        other => invalid!("expected reduction 0, 1 or 2, found {other}"),
    }
}

fn class_axis(c: &OpCall<'_, '_>, x: ValueId) -> RuleResult<usize> {
    match c.rank(x) {
        0 => invalid!("expected scores with an axis of classes, found none"),
        1 => Ok(0),
        _ => Ok(1),
    }
}

/// The class axis, the weights of the targets, and the classes. A weight is that of its class, or 1, or 0 for an ignored target, in
/// the dtype of the scores. The class of an ignored target is 0, and the classes have a class axis of extent
/// 1.
fn class_targets(c: &mut OpCall<'_, '_>, x: ValueId) -> RuleResult<(usize, ValueId, ValueId)> {
    let axis = class_axis(c, x)?;
    let weight = c.opt_tensor("weight")?;
    let target = c.tensor("target")?;
    let ignored = c.int_or("ignore_index", -100)?;
    let [counts, class] = c.formulas([target, x], |[target, x]| {
        let counts = target.ne(ignored);
        let index = counts.select(target, 0);
        let weights = weight.map_or(counts.cast(x.dtype()), |weight| {
            counts.select(x.term(weight).cast(x.dtype()).take(0, index), 0.0)
        });
        [weights, index.unsqueeze(axis)]
    })?;
    Ok((axis, counts, class))
}

/// The cross entropy of log-probabilities and the probabilities of the classes, which smoothing moves towards equal ones.
fn cross_entropy_of_probabilities(
    c: &mut OpCall<'_, '_>,
    x: ValueId,
    target: ValueId,
    axis: usize,
    smoothing: f64,
) -> RuleResult {
    unsupported_if!(c.opt_tensor("weight")?.is_some(), "class weights of probabilities are not supported");
    c.ignore(&["ignore_index"]);
    let reduction = loss_reduction(c)?;
    if let Some(classes) = c.packed_length(x, axis) {
        return c.refuse_packed("it needs the number of classes", &classes);
    }
    let classes = c.emit_dim(&c.extent(x, axis), c.dtype(x))?;
    let y = c.formula([x, target, classes], |[x, target, classes]| {
        let smooth = target * (1.0 - smoothing) + smoothing / classes;
        let target = if smoothing == 0.0 { target } else { smooth };
        reduction.of(-(x * target).sum(&[axis], false))
    })?;
    c.set_only_result(y)
}

fn nll(c: &mut OpCall<'_, '_>) -> RuleResult {
    let x = c.first_tensor()?;
    nll_from_log_probabilities(c, x)
}

/// `-sum(x[target])` over the targets that are not ignored, divided by their number for the mean. The second
/// result is that number.
fn nll_from_log_probabilities(c: &mut OpCall<'_, '_>, x: ValueId) -> RuleResult {
    let reduction = loss_reduction(c)?;
    let (axis, counts, class) = class_targets(c, x)?;
    let loss = c.formula([x, class, counts], |[x, class, counts]| {
        let picked = x.gather(axis, class).drop_axis(axis);
        -picked * counts
    })?;
    let axes: Vec<usize> = (0..c.rank(loss)).collect();
    if reduction == LossReduction::Each || axes.is_empty() {
        c.require_results_unread_from(1)?;
        return c.set_only_result(loss);
    }
    let sum = c.reduce(ReductionKind::Sum, loss, axes.clone(), false)?;
    let number = c.reduce(ReductionKind::Sum, counts, axes, false)?;
    let y = if reduction == LossReduction::Mean { c.binary(BinaryOp::Div, sum, number)? } else { sum };
    c.set_results([y, number])
}

fn nll_backward(c: &mut OpCall<'_, '_>) -> EmitResult {
    let [gradient, x, total] = c.tensors_named(["grad_output", "self", "total_weight"])?;
    let reduction = loss_reduction(c)?;
    let (axis, counts, class) = class_targets(c, x)?;
    let each = c.formula([gradient, total, counts], |[gradient, total, counts]| {
        let gradient = if reduction == LossReduction::Mean { gradient / total } else { gradient };
        (-(gradient * counts)).unsqueeze(axis)
    })?;
    let zero = c.full(Scalar::Int(0), c.dtype(x), c.shape(x))?;
    c.emit("scatter", Op::ScatterElements { axis, combine: None }, &[zero, class, each])
}
