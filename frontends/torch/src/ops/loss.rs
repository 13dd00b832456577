//! Losses of training graphs.
//!
//! Class indices are `[n]` for scores `[n, classes]`, or `[n, …]` for `[n, classes, …]`. A target equal to
//! `ignore_index` counts for nothing.

use symmc_import::Emit;
use symmc_ir::{BinaryOp, Op, Reduction, Scalar, UnaryOp, ValueId};

use super::{Row, row, row_of_results};
use crate::call::{Call, Operand};
use crate::lower::{Emitted, Lowered, Stop};

pub(super) const ROWS: &[Row] = &[
    row("aten.mse_loss", "sub, mul, mean", |c| {
        let (x, y) = (Operand::Tensor(c.first()?), Operand::Tensor(c.tensor("target")?));
        let dtype = c.common(&[&x, &y]);
        let d = c.apply(BinaryOp::Sub, &x, &y, dtype)?;
        let squares = c.binary(BinaryOp::Mul, d, d)?;
        let axes = (0..c.rank(squares)).collect();
        let y = match reduction(c)? {
            How::Each => squares,
            How::Mean => c.reduce(Reduction::Mean, squares, axes, false)?,
            How::Sum => c.reduce(Reduction::Sum, squares, axes, false)?,
        };
        Ok(y)
    }),
    row_of_results("aten.nll_loss", "gather, sum", nll),
    row_of_results("aten.nll_loss_nd", "gather, sum", nll),
    row_of_results("aten.nll_loss_forward", "gather, sum", nll),
    row_of_results("aten.cross_entropy_loss", "log_softmax, gather, sum", |c| {
        if c.float_or("label_smoothing", 0.0)? != 0.0 {
            return Err(Stop::Opaque("it smooths labels".into()));
        }
        let (x, target) = (c.first()?, c.tensor("target")?);
        if c.dtype(target).is_float() {
            return Err(Stop::Opaque("its targets are probabilities".into()));
        }
        let axis = class_axis(c, x)?;
        let x = c.emit("log_softmax", Op::Softmax { axis, log: true }, &[x])?;
        nll_of(c, x)
    }),
    row("aten.nll_loss_backward", "scatter, mul", nll_backward),
];

/// PyTorch's numbers of the ways to reduce a loss.
#[derive(Clone, Copy, PartialEq)]
enum How {
    Each,
    Mean,
    Sum,
}

fn reduction(c: &Call<'_, '_>) -> Lowered<How> {
    match c.int_or("reduction", 1)? {
        0 => Ok(How::Each),
        1 => Ok(How::Mean),
        2 => Ok(How::Sum),
        other => Err(Stop::Broken(format!("expected reduction 0, 1 or 2, found {other}"))),
    }
}

fn class_axis(c: &Call<'_, '_>, x: ValueId) -> Lowered<usize> {
    match c.rank(x) {
        0 => Err(Stop::Broken("expected scores with an axis of classes, found none".into())),
        1 => Ok(0),
        _ => Ok(1),
    }
}

/// The class axis; 1 or 0 for targets that count or do not, in the dtype of the scores; the targets with
/// ignored ones as class 0 and a class axis of extent 1.
fn targets(c: &mut Call<'_, '_>, x: ValueId) -> Lowered<(usize, ValueId, ValueId)> {
    if c.opt_tensor("weight")?.is_some() {
        return Err(Stop::Opaque("it weighs classes".into()));
    }
    let axis = class_axis(c, x)?;
    let target = c.tensor("target")?;
    let ignored = c.int_or("ignore_index", -100)?;
    let counts = c.with_scalar(BinaryOp::Ne, target, Scalar::Int(ignored))?;
    let zero = c.full(Scalar::Int(0), c.dtype(target), vec![])?;
    let class = c.select(counts, target, zero)?;
    let class = c.unsqueeze(class, axis)?;
    let counts = c.cast(counts, c.dtype(x))?;
    Ok((axis, counts, class))
}

fn nll(c: &mut Call<'_, '_>) -> Lowered {
    let x = c.first()?;
    nll_of(c, x)
}

/// `-sum(x[target])` over the targets that count, by their number for the mean; that number is the second
/// result.
fn nll_of(c: &mut Call<'_, '_>, x: ValueId) -> Lowered {
    let how = reduction(c)?;
    let (axis, counts, class) = targets(c, x)?;
    let picked = c.emit("gather", Op::GatherElements { axis }, &[x, class])?;
    let picked = c.drop_axis(picked, axis)?;
    let loss = c.unary(UnaryOp::Neg, picked)?;
    let loss = c.binary(BinaryOp::Mul, loss, counts)?;
    let axes: Vec<usize> = (0..c.rank(loss)).collect();
    if how == How::Each || axes.is_empty() {
        c.only(1)?;
        return c.done(loss);
    }
    let sum = c.reduce(Reduction::Sum, loss, axes.clone(), false)?;
    let number = c.reduce(Reduction::Sum, counts, axes, false)?;
    let y = if how == How::Mean { c.binary(BinaryOp::Div, sum, number)? } else { sum };
    c.set(1, number);
    c.done(y)
}

fn nll_backward(c: &mut Call<'_, '_>) -> Emitted {
    let (mut gradient, x, total) = (c.tensor("grad_output")?, c.tensor("self")?, c.tensor("total_weight")?);
    let how = reduction(c)?;
    let (axis, counts, class) = targets(c, x)?;
    if how == How::Mean {
        gradient = c.binary(BinaryOp::Div, gradient, total)?;
    }
    let each = c.binary(BinaryOp::Mul, gradient, counts)?;
    let each = c.unary(UnaryOp::Neg, each)?;
    let each = c.unsqueeze(each, axis)?;
    let zero = c.full(Scalar::Int(0), c.dtype(x), c.shape(x))?;
    c.emit("scatter", Op::ScatterElements { axis, combine: None }, &[zero, class, each])
}
