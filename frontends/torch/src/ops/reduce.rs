//! Reductions, cumulative sums and orderings.

use symmc_import::scan::scan;
use symmc_import::{Emit, EmitFormulas, RuleCall, unsupported, unsupported_if};
use symmc_ir::{
    ArgOp, BinaryOp, DType, Dim, FloatAttribute, Op, ReductionKind, Scalar, TensorType, UnaryOp, ValueId,
};

use super::elementwise::to_truth_value;
use super::{RuleRow, row, row_of_results};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleResult};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("aten.sum", "sum", |c| reduce(c, ReductionKind::Sum)),
    row("aten.mean", "mean", |c| reduce(c, ReductionKind::Mean)),
    row("aten.prod", "prod", |c| reduce(c, ReductionKind::Prod)),
    row("aten.amax aten.max.default", "max", |c| reduce(c, ReductionKind::Max)),
    row("aten.amin aten.min.default", "min", |c| reduce(c, ReductionKind::Min)),
    row_of_results("aten.max.dim", "max, argmax", |c| reduce_with_index(c, ReductionKind::Max, ArgOp::Max)),
    row_of_results("aten.min.dim", "min, argmin", |c| reduce_with_index(c, ReductionKind::Min, ArgOp::Min)),
    row("aten.any", "any", |c| reduce(c, ReductionKind::Any)),
    row("aten.all", "all", |c| reduce(c, ReductionKind::All)),
    row("aten.argmax", "argmax", |c| arg_reduce(c, ArgOp::Max)),
    row("aten.argmin", "argmin", |c| arg_reduce(c, ArgOp::Min)),
    row("aten.count_nonzero", "cast, sum", |c| {
        let x = c.first_tensor()?;
        let x = to_truth_value(c, x)?;
        let axes = c.axes("dim", c.rank(x))?;
        reduce_axes(c, ReductionKind::Sum, x, axes, false)
    }),
    row_of_results("aten.var", "mean of squares", |c| variance(c, false)),
    row_of_results("aten.std", "sqrt of mean of squares", |c| variance(c, true)),
    row_of_results("aten.var_mean", "mean of squares, mean", |c| variance(c, false)),
    row("aten.logsumexp", "max, exp, sum, log", log_sum_exp),
    row("aten.cumsum", "cumsum", |c| {
        let x = c.first_tensor()?;
        let x = cast_to_requested_dtype(c, x)?;
        let axis = c.axis("dim", c.rank(x))?;
        let y = match c.rank(x) {
            0 => reduce_axes(c, ReductionKind::Sum, x, vec![], false)?,
            _ => c.emit("cumsum", Op::CumSum { axis }, &[x])?,
        };
        cast_to_requested_dtype(c, y)
    }),
    row("aten.cumprod", "take, select, mul", cumulative_product),
    row("aten.histc", "eq with an iota, sum", histogram),
    row_of_results("aten.topk", "topk", top_k),
    row_of_results("aten.sort", "sort", sort),
    row("aten.argsort", "sort", |c| {
        let (_, positions) = sort_with_positions(c)?;
        Ok(positions)
    }),
];

/// The reduction over `axes`. Without axes there is one element, which is kept.
fn reduce_axes(
    c: &mut OpCall<'_, '_>,
    op: ReductionKind,
    x: ValueId,
    axes: Vec<usize>,
    keep: bool,
) -> EmitResult {
    if !axes.is_empty() {
        return c.reduce(op, x, axes, keep);
    }
    match op {
        ReductionKind::Any | ReductionKind::All => to_truth_value(c, x),
        ReductionKind::Sum | ReductionKind::Prod if !c.dtype(x).is_float() => c.cast(x, DType::I64),
        _ => Ok(x),
    }
}

fn reduce(c: &mut OpCall<'_, '_>, op: ReductionKind) -> EmitResult {
    let x = c.first_tensor()?;
    let x = cast_to_requested_dtype(c, x)?;
    let axes = c.axes("dim", c.rank(x))?;
    let keep = c.bool_or("keepdim", false)?;
    let y = reduce_axes(c, op, x, axes, keep)?;
    // PyTorch keeps u8 in `any` and `all`.
    match op {
        ReductionKind::Any | ReductionKind::All if c.dtype(x) == DType::U8 => c.cast(y, DType::U8),
        _ => cast_to_requested_dtype(c, y),
    }
}

/// A value in the dtype that the call requests, or unchanged.
pub(super) fn cast_to_requested_dtype(c: &mut OpCall<'_, '_>, y: ValueId) -> EmitResult {
    match c.opt_dtype("dtype")? {
        Some(dtype) => c.cast(y, dtype),
        None => Ok(y),
    }
}

fn reduce_with_index(c: &mut OpCall<'_, '_>, op: ReductionKind, arg: ArgOp) -> RuleResult {
    let x = c.first_tensor()?;
    let rank = c.rank(x);
    let axis = c.axis("dim", rank)?;
    let keep = c.bool_or("keepdim", false)?;
    if rank == 0 {
        return only_element(c, x);
    }
    let y = c.reduce(op, x, vec![axis], keep)?;
    if c.is_result_read(1) {
        let index = c.arg_reduce(arg, x, axis, keep)?;
        c.set_result(1, index);
    }
    c.set_only_result(y)
}

fn arg_reduce(c: &mut OpCall<'_, '_>, op: ArgOp) -> EmitResult {
    let x = c.first_tensor()?;
    let rank = c.rank(x);
    let keep = c.bool_or("keepdim", false)?;
    match c.opt_int("dim")? {
        Some(_) if rank == 0 => c.full(Scalar::Int(0), DType::I64, vec![]),
        Some(axis) => {
            let axis = c.resolve_axis(axis, rank)?;
            c.arg_reduce(op, x, axis, keep)
        }
        None => {
            let flat = c.reshape(x, vec![c.ty(x).numel()])?;
            let y = c.arg_reduce(op, flat, 0, false)?;
            let shape = if keep { vec![Dim::from(1); rank] } else { vec![] };
            c.reshape(y, shape)
        }
    }
}

/// `sum((x - mean)²) / (n - correction)`, or its root for the standard deviation. The second result, if there
/// is one, is the mean.
fn variance(c: &mut OpCall<'_, '_>, root: bool) -> RuleResult {
    let x = c.first_tensor()?;
    let axes = c.axes("dim", c.rank(x))?;
    let keep = c.bool_or("keepdim", false)?;
    let correction = match c.get("unbiased") {
        Some(_) => f64::from(u8::from(c.bool_or("unbiased", true)?)),
        None => c.float_or("correction", 1.0)?,
    };
    let n = axes.iter().map(|&a| c.length(x, a)).fold(Dim::from(1), |a, b| a * b);
    let [mut y, mean] = c.formulas([x], |[x]| {
        let mean = x.mean(&axes, true);
        [(x - mean).square().mean(&axes, keep), mean]
    })?;
    if correction != 0.0 {
        y = match n.as_const().map(|n| n as f64).filter(|n| *n > correction) {
            Some(n) => c.binary_float(BinaryOp::Mul, y, n / (n - correction))?,
            None => {
                // Too few elements give 0 / 0, which is NaN.
                let count = if c.is_data_size(&n) { c.emit_size(&n)? } else { c.emit_dim(&n, c.dtype(y))? };
                let count = c.cast(count, c.dtype(y))?;
                c.formula([y, count], |[y, count]| y * (count / (count - correction).max(0.0)))?
            }
        };
    }
    if root {
        y = c.unary(UnaryOp::Sqrt, y)?;
    }
    if c.is_result_read(1) {
        let mean = if keep { mean } else { c.reduce(ReductionKind::Mean, x, axes, false)? };
        c.set_result(1, mean);
    }
    c.set_only_result(y)
}

fn log_sum_exp(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.first_tensor()?;
    let x = c.cast_to_float(x)?;
    let axes = c.axes("dim", c.rank(x))?;
    let keep = c.bool_or("keepdim", false)?;
    if axes.is_empty() {
        return Ok(x);
    }
    let mut shape = c.shape(x);
    let has_none = axes.iter().any(|&a| shape[a].as_const() == Some(0));
    axes.iter().for_each(|&a| shape[a] = 1.into());
    let zero = c.full(Scalar::Int(0), c.dtype(x), vec![])?;
    c.formula([x, zero], |[x, zero]| {
        let shift = if has_none {
            // There is no largest element of an empty axis. The result is the logarithm of 0.
            zero.expand(shape)
        } else {
            // If all elements are minus infinity, the shift must stay finite.
            let max = x.reduce(ReductionKind::Max, &axes, true);
            max.is_finite().select(max, zero)
        };
        x.log_sum_exp(shift, &axes, keep)
    })
}

fn top_k(c: &mut OpCall<'_, '_>) -> RuleResult {
    // Unsorted results may have any order, including the sorted one.
    c.ignore(&["sorted"]);
    let x = c.first_tensor()?;
    let rank = c.rank(x);
    let axis = c.axis_or("dim", -1, rank)?;
    let largest = c.bool_or("largest", true)?;
    let k = c.dim("k")?;
    let mut shape = c.shape(x);
    match shape.get_mut(axis) {
        Some(extent) => *extent = k,
        None if k.as_const() == Some(1) => return only_element(c, x),
        None => return unsupported!("topk of {k:?} elements of an operand without axes is not supported"),
    }
    let types = vec![TensorType::new(c.dtype(x), shape.clone()), TensorType::new(DType::I64, shape)];
    let op = Op::TopK { axis, largest };
    let outputs = match c.emit_adapted("topk", &op, &[x], Some(&types))? {
        Some(outputs) => outputs,
        None => c.emit_plain("topk", op, &[x], Some(&types))?,
    };
    c.set_results([outputs[0], outputs[1]])
}

/// Sets the results to the element of a tensor without axes, and its position 0.
pub(super) fn only_element(c: &mut OpCall<'_, '_>, x: ValueId) -> RuleResult {
    let zero = c.full(Scalar::Int(0), DType::I64, vec![])?;
    c.set_results([x, zero])
}

fn sort(c: &mut OpCall<'_, '_>) -> RuleResult {
    let (elements, positions) = sort_with_positions(c)?;
    c.set_results([elements, positions])
}

/// The elements in order, and their positions.
fn sort_with_positions(c: &mut OpCall<'_, '_>) -> RuleResult<(ValueId, ValueId)> {
    // The sort of the IR is stable.
    c.ignore(&["stable"]);
    let x = c.first_tensor()?;
    let axis = c.axis_or("dim", -1, c.rank(x))?;
    let descending = c.bool_or("descending", false)?;
    if c.rank(x) == 0 {
        return Ok((x, c.full(Scalar::Int(0), DType::I64, vec![])?));
    }
    let outputs = c.emit_all("sort", Op::Sort { axis, descending }, &[x])?;
    Ok((outputs[0], outputs[1]))
}

fn cumulative_product(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.first_tensor()?;
    let axis = c.axis("dim", c.rank(x))?;
    let dtype = match c.opt_dtype("dtype")? {
        Some(dtype) => dtype,
        None if c.dtype(x).is_float() => c.dtype(x),
        None => DType::I64,
    };
    let x = c.cast(x, dtype)?;
    if c.rank(x) == 0 {
        return Ok(x);
    }
    // PyTorch computes the intermediate products in a wider dtype.
    let wide = match dtype {
        DType::F32 => DType::F64,
        other if other.is_float() => other.compute_dtype(),
        other => other,
    };
    let x = c.cast(x, wide)?;
    let y = scan(c, x, axis, 1.0, |before, x| x * before)?;
    c.cast(y, dtype)
}

/// The bounds of a histogram without given bounds: the smallest and the largest element, each moved by 1 if
/// they are equal.
fn data_bounds(c: &mut OpCall<'_, '_>, column: ValueId) -> RuleResult<[ValueId; 2]> {
    c.formulas([column], |[column]| {
        let low = column.reduce(ReductionKind::Min, &[0, 1], false);
        let high = column.reduce(ReductionKind::Max, &[0, 1], false);
        let is_one_value = low.eq(high);
        let before = low - 1.0;
        let after = high + 1.0;
        [is_one_value.select(before, low), is_one_value.select(after, high)]
    })
}

/// The number of elements in each of `bins` equal intervals of `min..=max`. The last interval includes `max`.
fn histogram(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.first_tensor()?;
    let bins = c.int_or("bins", 100)?;
    let low = c.float_or("min", 0.0)?;
    let high = c.float_or("max", 0.0)?;
    let is_empty = c.ty(x).numel().as_const() == Some(0);
    unsupported_if!(low > high || bins < 1 || (low == high && is_empty), "the histogram has no valid bounds");
    let wide = c.cast(x, DType::F64)?;
    let column = c.reshape(wide, vec![c.ty(x).numel(), 1.into()])?;
    let [low, high] = if low < high {
        let low = Scalar::Float(FloatAttribute(low));
        let high = Scalar::Float(FloatAttribute(high));
        [c.full(low, DType::F64, vec![])?, c.full(high, DType::F64, vec![])?]
    } else {
        data_bounds(c, column)?
    };
    let bin = c.formula([column, low, high], |[column, low, high]| {
        let factor = bins as f64 / (high - low);
        let bin = ((column - low) * factor).floor();
        column.eq(high).select(bins - 1, bin)
    })?;
    let bin_ids = c.iota(bins.into(), 0, 1, DType::F64)?;
    let dtype = c.dtype(x);
    c.formula([bin, bin_ids], |[bin, bin_ids]| bin.eq(bin_ids).sum(&[0], false).cast(dtype))
}
