//! Losses of classes: negative logarithms of probabilities.

use symmc_import::{Emit, EmitFormulas, RuleCall, invalid, invalid_if};
use symmc_ir::{Op, ReductionKind, ValueId};

use super::{RuleRow, row_of_results};
use crate::call::OpCall;
use crate::lower::RuleResult;

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row_of_results("NegativeLogLikelihoodLoss", 22, "gather, mul, sum", |c| {
        let x = c.tensor(0)?;
        negative_log_likelihood(c, x)
    }),
    row_of_results("SoftmaxCrossEntropyLoss", 13, "log_softmax, gather, mul, sum", |c| {
        let x = c.tensor(0)?;
        invalid_if!(c.rank(x) < 2, "expected scores with an axis of classes, found {} axes", c.rank(x));
        let x = c.emit("log_softmax", Op::Softmax { axis: 1, log: true }, &[x])?;
        c.set_result(1, x);
        negative_log_likelihood(c, x)
    }),
];

/// The loss of logarithms of probabilities `[n, classes, …]` and classes `[n, …]`. The mean is that by the weights of the
/// classes.
fn negative_log_likelihood(c: &mut OpCall<'_, '_>, x: ValueId) -> RuleResult {
    let target = c.tensor(1)?;
    invalid_if!(
        c.rank(x) < 2 || c.rank(target) + 1 != c.rank(x),
        "expected classes with one axis less than the {} axes of scores, found {}",
        c.rank(x),
        c.rank(target)
    );
    let ignored = c.opt_int("ignore_index")?;
    let weights = c.opt_tensor(2)?;
    let class = match ignored {
        Some(ignored) => c.formula([target], |[target]| target.ne(ignored).select(target, 0))?,
        None => target,
    };
    let mut each = match weights {
        Some(weights) => c.emit("take", Op::Take { axis: 0 }, &[weights, class])?,
        None => c.full(symmc_ir::Scalar::Int(1), c.dtype(x), c.shape(target))?,
    };
    if let Some(ignored) = ignored {
        each = c.formula([target, each], |[target, each]| target.ne(ignored).select(each, 0.0))?;
    }
    let loss =
        c.formula([x, class, each], |[x, class, each]| -x.gather(1, class.unsqueeze(1)).drop_axis(1) * each)?;
    let axes: Vec<usize> = (0..c.rank(loss)).collect();
    let y = match c.opt_string("reduction")?.unwrap_or("mean") {
        "none" => loss,
        "sum" => c.reduce(ReductionKind::Sum, loss, axes, false)?,
        "mean" => c.formula([loss, each], |[loss, each]| loss.sum(&axes, false) / each.sum(&axes, false))?,
        other => return invalid!("expected reduction none, sum or mean, found `{other}`"),
    };
    c.set_result(0, y);
    Ok(())
}
