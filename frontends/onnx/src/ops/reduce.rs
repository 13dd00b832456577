//! Reductions, arg-reductions and cumulative sums.

use symmc_import::emit::extent_product;
use symmc_import::scan::{moved_by_one, scan};
use symmc_import::{Emit, EmitFormulas, RuleCall, invalid, unsupported};
use symmc_ir::{ArgOp, BinaryOp, DType, Dim, FloatAttribute, Op, ReductionKind, Scalar, TensorType, ValueId};

use super::{RuleRow, row, row_of_results};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleFailure, RuleResult, Term};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("ReduceSum", 13, "sum", |c| reduce(c, ReductionKind::Sum)),
    row("ReduceMean", 18, "mean", |c| reduce(c, ReductionKind::Mean)),
    row("ReduceProd", 18, "prod", |c| reduce(c, ReductionKind::Prod)),
    row("ReduceMax", 20, "max; any", |c| reduce(c, ReductionKind::Max)),
    row("ReduceMin", 20, "min; all", |c| reduce(c, ReductionKind::Min)),
    row("ReduceL1", 18, "sum of abs", |c| sum_between(c, |x| x.abs(), |y| y)),
    row("ReduceL2", 18, "sqrt of sum of squares", |c| sum_between(c, |x| x.square(), |y| y.sqrt())),
    row("ReduceSumSquare", 18, "sum of squares", |c| sum_between(c, |x| x.square(), |y| y)),
    row("ReduceLogSum", 28, "log of sum", |c| sum_between(c, |x| x, |y| y.log())),
    row("ReduceLogSumExp", 28, "log of sum of exp, from the maximum", log_sum_exp),
    row("ArgMax", 13, "argmax", |c| arg_reduce(c, ArgOp::Max)),
    row("ArgMin", 13, "argmin", |c| arg_reduce(c, ArgOp::Min)),
    row("Hardmax", 13, "argmax, eq, cast", hardmax),
    row("CumSum", 14, "cumsum", cumulative_sum),
    row("CumProd", 26, "take, select, mul", cumulative_product),
    row_of_results("TopK", 24, "topk", top_k),
];

/// 1 at the first largest element of an axis, and 0 elsewhere. Before version 13, all axes from `axis` on were one.
fn hardmax(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.tensor(0)?;
    let shape = c.shape(x);
    let axis = c.axis_or("axis", if c.version < 13 { 1 } else { -1 }, shape.len())?;
    let (x, axis) = if c.version < 13 {
        (c.reshape(x, vec![extent_product(&shape[..axis]), extent_product(&shape[axis..])])?, 1)
    } else {
        (x, axis)
    };
    let largest = c.arg_reduce(ArgOp::Max, x, axis, true)?;
    let mut line = vec![Dim::from(1); c.rank(x)];
    line[axis] = c.extent(x, axis);
    let positions = c.iota(line[axis].clone(), 0, 1, DType::I64)?;
    let positions = c.reshape(positions, line)?;
    let y =
        c.formula([largest, positions, x], |[largest, positions, x]| positions.eq(largest).cast(x.dtype()))?;
    c.reshape(y, shape)
}

/// The axes of a reduction, and whether they are kept. `None` if nothing is reduced.
fn reduced_axes(c: &mut OpCall<'_, '_>, x: ValueId) -> RuleResult<Option<(Vec<usize>, bool)>> {
    let rank = c.rank(x);
    let keep = c.int_or("keepdims", 1)? != 0;
    let nothing = c.flag("noop_with_empty_axes")?;
    match c.axes(1, rank)?.filter(|axes| !axes.is_empty()) {
        Some(axes) => Ok(Some((axes, keep))),
        None if nothing => Ok(None),
        None => Ok(Some(((0..rank).collect(), keep))),
    }
}

fn reduce(c: &mut OpCall<'_, '_>, op: ReductionKind) -> EmitResult {
    let x = c.tensor(0)?;
    let Some((axes, keep)) = reduced_axes(c, x)? else { return Ok(x) };
    reduce_keeping_dtype(c, op, x, axes, keep)
}

/// A reduction whose result has the dtype of the operand. The mean of integers truncates.
fn reduce_keeping_dtype(
    c: &mut OpCall<'_, '_>,
    op: ReductionKind,
    x: ValueId,
    axes: Vec<usize>,
    keep: bool,
) -> EmitResult {
    let dtype = c.dtype(x);
    if axes.is_empty() {
        return Ok(x);
    }
    if axes.iter().any(|&axis| c.extent(x, axis).as_const() == Some(0))
        && let Some(least) = extreme_of_nothing(op, dtype)
    {
        let extents = c.shape(x).into_iter().enumerate();
        let kept = extents.filter(|(axis, _)| keep || !axes.contains(axis));
        let shape = kept.map(|(axis, n)| if axes.contains(&axis) { 1.into() } else { n }).collect();
        return c.full(least, dtype, shape);
    }
    let op = match (op, dtype) {
        (ReductionKind::Max, DType::Bool) => ReductionKind::Any,
        (ReductionKind::Min, DType::Bool) => ReductionKind::All,
        (ReductionKind::Mean, d) if !d.is_float() => {
            let x = c.cast(x, DType::F64)?;
            let y = c.reduce(op, x, axes, keep)?;
            return c.cast(y, dtype);
        }
        (op, _) => op,
    };
    let y = c.reduce(op, x, axes, keep)?;
    c.cast(y, dtype)
}

/// Applies a function, sums, and applies another function.
fn sum_between(
    c: &mut OpCall<'_, '_>,
    before: for<'f> fn(Term<'f>) -> Term<'f>,
    after: for<'f> fn(Term<'f>) -> Term<'f>,
) -> EmitResult {
    let x = c.tensor(0)?;
    let Some((axes, keep)) = reduced_axes(c, x)? else {
        return unsupported!("a reduction over no axis is not supported");
    };
    let y = c.formula([x], |[x]| before(x))?;
    let y = reduce_keeping_dtype(c, ReductionKind::Sum, y, axes, keep)?;
    c.formula([y], |[y]| after(y))
}

fn log_sum_exp(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.tensor(0)?;
    let Some((axes, keep)) = reduced_axes(c, x)? else { return Ok(x) };
    if axes.is_empty() {
        return Ok(x);
    }
    // Subtracting an infinite maximum from itself would give NaN.
    let max = reduce_keeping_dtype(c, ReductionKind::Max, x, axes.clone(), true)?;
    c.formula([x, max], |[x, max]| x.log_sum_exp(max.is_infinite().select(0.0, max), &axes, keep))
}

/// The largest or smallest of no elements: the number that any other replaces.
fn extreme_of_nothing(op: ReductionKind, dtype: DType) -> Option<Scalar> {
    let is_least = match op {
        ReductionKind::Max => true,
        ReductionKind::Min => false,
        _ => return None,
    };
    Some(match (dtype, is_least) {
        (DType::Bool, _) => Scalar::Bool(!is_least),
        (dtype, true) if dtype.is_float() => Scalar::Float(FloatAttribute(f64::NEG_INFINITY)),
        (dtype, false) if dtype.is_float() => Scalar::Float(FloatAttribute(f64::INFINITY)),
        (dtype, true) => Scalar::Int(i64::MIN).saturate_to(dtype),
        (dtype, false) => Scalar::Int(i64::MAX).saturate_to(dtype),
    })
}

fn arg_reduce(c: &mut OpCall<'_, '_>, op: ArgOp) -> EmitResult {
    let x = c.tensor(0)?;
    let axis = c.axis_or("axis", 0, c.rank(x))?;
    let keep = c.int_or("keepdims", 1)? != 0;
    if !c.flag("select_last_index")? {
        return c.arg_reduce(op, x, axis, keep);
    }
    // The first from the end.
    let reversed = c.reverse_axis(x, axis)?;
    let from_last = c.arg_reduce(op, reversed, axis, keep)?;
    let last = c.emit_dim(&(c.extent(x, axis) - Dim::from(1)), DType::I64)?;
    c.binary(BinaryOp::Sub, last, from_last)
}

fn cumulative_sum(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.tensor(0)?;
    let axis = c.opt_consts(1, "the axis")?.and_then(|a| a.first().copied()).unwrap_or(0);
    let axis = c.resolve_axis(axis, c.rank(x))?;
    let dtype = c.dtype(x);
    let reverse = c.flag("reverse")?;
    let from = if reverse { c.reverse_axis(x, axis)? } else { x };
    let y = c.emit("cumsum", Op::CumSum { axis }, &[from])?;
    let mut y = c.cast(y, dtype)?;
    if c.flag("exclusive")? {
        // Shifted by one element.
        let mut low = vec![Dim::from(0); c.rank(y)];
        low[axis] = 1.into();
        let op = Op::Pad { low, value: Scalar::Int(0).convert_to(dtype) };
        y = c.emit_as("moved", op, &[y], TensorType::new(dtype, c.shape(y)))?;
    }
    let y = if reverse { c.reverse_axis(y, axis)? } else { y };
    Ok(y)
}

/// The products of the elements up to each one.
fn cumulative_product(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.tensor(0)?;
    let axis = c.opt_consts(1, "the axis")?.and_then(|a| a.first().copied()).unwrap_or(0);
    let axis = c.resolve_axis(axis, c.rank(x))?;
    let Some(n) = c.extent(x, axis).as_const() else {
        return unsupported!("products of a symbolic number of elements are not supported");
    };
    let reverse = c.flag("reverse")?;
    let exclusive = c.flag("exclusive")?;
    let mut y = if reverse { c.reverse_axis(x, axis)? } else { x };
    if exclusive && n > 0 {
        y = moved_by_one(c, y, axis, 1.0)?;
    }
    y = scan(c, y, axis, 1.0, |before, y| y * before)?;
    if reverse { c.reverse_axis(y, axis) } else { Ok(y) }
}

fn top_k(c: &mut OpCall<'_, '_>) -> RuleResult {
    let x = c.tensor(0)?;
    let mut shape = c.shape(x);
    let axis = c.axis_or("axis", -1, shape.len())?;
    let k = match c.opt_int("k")? {
        Some(k) => Dim::from(k),
        None => match c.ints(1, "k")?.dims.as_slice() {
            [one] => one.clone(),
            many => return invalid!("expected one number as k, found {}", many.len()),
        },
    };
    shape[axis] = k;
    symmc_ir::dim::check_shape_complexity(&shape).map_err(RuleFailure::Invalid)?;
    // Unsorted results may have any order, including the sorted one.
    c.ignore(&["sorted"]);
    let op = Op::TopK { axis, largest: c.int_or("largest", 1)? != 0 };
    let types = vec![TensorType::new(c.dtype(x), shape.clone()), TensorType::new(DType::I64, shape)];
    let name = format!("{}.topk", c.label);
    let results = c.builder_mut().node_as(&name, op, &[x], types)?;
    c.set_results(results)
}
