//! Losses of training graphs.
//!
//! Class indices are `[n]` for scores `[n, classes]`, or `[n, …]` for `[n, classes, …]`. A target equal to
//! `ignore_index` is ignored.

use symmc_import::{Emit, EmitFormulas, RuleCall, invalid, unsupported_if};
use symmc_ir::{BinaryOp, Op, ReductionKind, Scalar, ValueId};

use super::backward::common_operands;
use super::{RuleRow, row, row_of_results};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleResult};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("aten.mse_loss", "sub, mul, mean", |c| {
        let ([x, y], _) = common_operands(c, ["self", "target"])?;
        let reduction = loss_reduction(c)?;
        c.formula([x, y], |[x, y]| {
            let squares = (x - y).square();
            let axes: Vec<usize> = (0..squares.rank()).collect();
            match reduction {
                LossReduction::Each => squares,
                LossReduction::Mean => squares.mean(&axes, false),
                LossReduction::Sum => squares.sum(&axes, false),
            }
        })
    }),
    row_of_results("aten.nll_loss aten.nll_loss_nd aten.nll_loss_forward", "gather, sum", nll),
    row_of_results("aten.cross_entropy_loss", "log_softmax, gather, sum", |c| {
        unsupported_if!(c.float_or("label_smoothing", 0.0)? != 0.0, "label smoothing is not supported");
        let [x, target] = c.tensors_named(["self", "target"])?;
        unsupported_if!(c.dtype(target).is_float(), "targets that are probabilities are not supported");
        let axis = class_axis(c, x)?;
        let x = c.emit("log_softmax", Op::Softmax { axis, log: true }, &[x])?;
        // PyTorch has two kernels, and so rounds the logarithms.
        c.keep_rounding(x);
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

/// The class axis, the weights of the targets, and the classes. A weight is 1, or 0 for an ignored target, in
/// the dtype of the scores. The class of an ignored target is 0, and the classes have a class axis of extent
/// 1.
fn class_targets(c: &mut OpCall<'_, '_>, x: ValueId) -> RuleResult<(usize, ValueId, ValueId)> {
    unsupported_if!(c.opt_tensor("weight")?.is_some(), "class weights are not supported");
    let axis = class_axis(c, x)?;
    let target = c.tensor("target")?;
    let ignored = c.int_or("ignore_index", -100)?;
    let [counts, class] = c.formulas([target, x], |[target, x]| {
        let counts = target.ne(ignored);
        let class = counts.select(target, 0).unsqueeze(axis);
        [counts.cast(x.dtype()), class]
    })?;
    Ok((axis, counts, class))
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
