//! Order statistics, scans, and searches in sorted sequences.

use symmc_import::scan::scan;
use symmc_import::{Emit, EmitFormulas, RuleCall, invalid, invalid_if, unsupported_if};
use symmc_ir::{ArgOp, BinaryOp, DType, Dim, Op, ReductionKind, UnaryOp, ValueId};

use super::backward::common_operands;
use super::functions::log_sum;
use super::reduce::{cast_to_requested_dtype, only_element};
use super::{RuleRow, row, row_of_results};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleResult};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row_of_results("aten.aminmax", "min, max", |c| {
        let x = c.first_tensor()?;
        let axes = c.axes("dim", c.rank(x))?;
        let keep = c.bool_or("keepdim", false)?;
        if axes.is_empty() {
            return c.set_results([x, x]);
        }
        let extremes = c.formulas([x], |[x]| {
            [x.reduce(ReductionKind::Min, &axes, keep), x.reduce(ReductionKind::Max, &axes, keep)]
        })?;
        c.set_results(extremes)
    }),
    row("aten.nansum", "select, sum", |c| {
        let x = c.first_tensor()?;
        let x = cast_to_requested_dtype(c, x)?;
        let axes = c.axes("dim", c.rank(x))?;
        let keep = c.bool_or("keepdim", false)?;
        c.formula([x], |[x]| {
            let x = if x.dtype().is_float() { x.is_nan().select(0.0, x) } else { x };
            x.sum(&axes, keep)
        })
    }),
    row("aten.nanmean", "select, sum, div", |c| {
        let x = c.first_tensor()?;
        let x = cast_to_requested_dtype(c, x)?;
        let axes = c.axes("dim", c.rank(x))?;
        let keep = c.bool_or("keepdim", false)?;
        c.formula([x], |[x]| {
            let wide = x.cast(x.dtype().compute_dtype());
            let count = (!x.is_nan()).cast(wide.dtype()).sum(&axes, keep);
            (x.is_nan().select(0.0, wide).sum(&axes, keep) / count).cast(x.dtype())
        })
    }),
    row_of_results("aten.kthvalue", "sort, slice", |c| {
        let x = c.first_tensor()?;
        let axis = c.axis_or("dim", -1, c.rank(x))?;
        let k = c.dim("k")?;
        let keep = c.bool_or("keepdim", false)?;
        if c.rank(x) == 0 {
            return only_element(c, x);
        }
        let [y, position] = sorted_element(c, x, axis, k - Dim::from(1), keep)?;
        c.set_results([y, position])
    }),
    row_of_results("aten.median", "sort, slice, select", median),
    row("aten.quantile", "sort, take, lerp", quantile),
    row_of_results("aten.cummax", "scan of max", |c| cumulative_extreme(c, BinaryOp::Max)),
    row_of_results("aten.cummin", "scan of min", |c| cumulative_extreme(c, BinaryOp::Min)),
    row("aten.logcumsumexp", "scan of max, exp, log1p, in f64", |c| {
        let x = c.first_tensor()?;
        let dtype = c.dtype(x);
        let axis = c.axis("dim", c.rank(x))?;
        if c.rank(x) == 0 {
            return Ok(x);
        }
        let wide = c.cast(x, DType::F64)?;
        let y = scan(c, wide, axis, f64::NEG_INFINITY, |x, y| log_sum(x, y, 1.0))?;
        c.cast(y, dtype)
    }),
    row("aten.trace", "select, sum", |c| {
        let x = c.first_tensor()?;
        invalid_if!(c.rank(x) != 2, "expected a matrix, found {} axes", c.rank(x));
        let [rows, columns] = [c.extent(x, 0), c.extent(x, 1)];
        let rows = c.iota(rows, 0, 1, DType::I64)?;
        let columns = c.iota(columns, 0, 1, DType::I64)?;
        c.formula([x, rows, columns], |[x, rows, columns]| {
            rows.unsqueeze(1).eq(columns).select(x, x.zeros_like()).sum(&[0, 1], false)
        })
    }),
    row("aten.cosine_similarity", "square, sum, sqrt, max, div", |c| {
        let ([x, y], _) = common_operands(c, ["x1", "x2"])?;
        let axis = c.axis_or("dim", 1, c.rank(x).max(c.rank(y)))?;
        let eps = c.float_or("eps", 1e-8)?;
        // PyTorch has several kernels, each of which rounds.
        let rounded = |c: &mut OpCall<'_, '_>, value| {
            c.keep_rounding(value);
            value
        };
        let shape = {
            let product = c.binary(BinaryOp::Mul, x, y)?;
            c.shape(product)
        };
        let mut units = [x, y];
        for unit in &mut units {
            *unit = c.expand(*unit, shape.clone())?;
            let norm = c.formula([*unit], |[x]| x.norm(2.0, &[axis], true).max(eps))?;
            let norm = rounded(c, norm);
            let ratio = c.binary(BinaryOp::Div, *unit, norm)?;
            *unit = rounded(c, ratio);
        }
        let product = c.binary(BinaryOp::Mul, units[0], units[1])?;
        let product = rounded(c, product);
        c.formula([product], |[product]| product.sum(&[axis], false))
    }),
    row("aten.cdist aten._cdist_forward", "sub, abs, pow, sum", |c| {
        // The mode chooses between this form and one with a product, which cancels.
        c.ignore(&["compute_mode"]);
        let ([x, y], _) = common_operands(c, ["x1", "x2"])?;
        let p = c.float_or("p", 2.0)?;
        let (x_axis, y_axis) = (c.rank(x).saturating_sub(1), c.rank(y).saturating_sub(2));
        c.formula([x, y], |[x, y]| {
            let difference = (x.unsqueeze(x_axis) - y.unsqueeze(y_axis)).abs();
            difference.norm(p, &[difference.rank() - 1], false)
        })
    }),
    row("aten.searchsorted", "comparison, sum", |c| {
        let sorted = c.tensor("sorted_sequence")?;
        let values = c.operand("self")?;
        let values = c.as_tensor(&values, c.dtype(sorted))?;
        let sorted = match c.opt_tensor("sorter")? {
            Some(order) => {
                let axis = c.rank(sorted).saturating_sub(1);
                c.emit("gather", Op::GatherElements { axis }, &[sorted, order])?
            }
            None => sorted,
        };
        let is_right = match c.opt_string("side")? {
            Some("right") => true,
            Some("left") | None => c.bool_or("right", false)?,
            Some(other) => return invalid!("expected side left or right, found `{other}`"),
        };
        search(c, sorted, values, is_right)
    }),
    row("aten.bucketize", "comparison, sum", |c| {
        let sorted = c.tensor("boundaries")?;
        let values = c.operand("self")?;
        let values = c.as_tensor(&values, c.dtype(sorted))?;
        let is_right = c.bool_or("right", false)?;
        search(c, sorted, values, is_right)
    }),
];

/// The element at a position of the ascending order of an axis, and where it is.
fn sorted_element(
    c: &mut OpCall<'_, '_>,
    x: ValueId,
    axis: usize,
    position: Dim,
    keep: bool,
) -> RuleResult<[ValueId; 2]> {
    let outputs = c.emit_all("sort", Op::Sort { axis, descending: false }, &[x])?;
    c.formulas([outputs[0], outputs[1]], |outputs| {
        outputs.map(|sorted| {
            let element = sorted.slice(axis, position.clone(), 1);
            if keep { element } else { element.drop_axis(axis) }
        })
    })
}

/// The lower of the middle elements. An axis with a NaN has that element.
fn median(c: &mut OpCall<'_, '_>) -> RuleResult {
    let mut x = c.first_tensor()?;
    let keep = c.bool_or("keepdim", false)?;
    let axis = match c.opt_int("dim")? {
        Some(axis) => c.resolve_axis(axis, c.rank(x))?,
        None => {
            x = c.reshape(x, vec![c.ty(x).numel()])?;
            0
        }
    };
    if c.rank(x) == 0 {
        return only_element(c, x);
    }
    let middle = (c.extent(x, axis) - Dim::from(1)).floor_div(&2.into());
    let found = sorted_element(c, x, axis, middle, keep)?;
    if !c.dtype(x).is_float() {
        return c.set_results(found);
    }
    let is_nan = c.formula([x], |[x]| x.is_nan().cast(DType::I64))?;
    let nan_position = c.arg_reduce(ArgOp::Max, is_nan, axis, keep)?;
    let chosen = c.formulas([found[0], found[1], is_nan, nan_position], |[y, position, is_nan, first]| {
        let has_nan = is_nan.reduce(ReductionKind::Max, &[axis], keep).ne(0);
        [has_nan.select(f64::NAN, y), has_nan.select(first, position)]
    })?;
    c.set_results(chosen)
}

/// Quantiles of the elements of an axis, or of all. A list of fractions gives them along a new first axis.
fn quantile(c: &mut OpCall<'_, '_>) -> EmitResult {
    let mut x = c.first_tensor()?;
    let rank = c.rank(x);
    let keep = c.bool_or("keepdim", false)?;
    let axis = match c.opt_int("dim")? {
        Some(axis) => c.resolve_axis(axis, rank)?,
        None => {
            x = c.reshape(x, vec![c.ty(x).numel()])?;
            0
        }
    };
    let is_whole = c.rank(x) != rank;
    if c.rank(x) == 0 {
        x = c.reshape(x, vec![1.into()])?;
    }
    let interpolation = c.opt_string("interpolation")?.unwrap_or("linear").to_string();
    let known = ["linear", "lower", "higher", "midpoint", "nearest"];
    invalid_if!(
        !known.contains(&interpolation.as_str()),
        "expected interpolation {}, found `{interpolation}`",
        known.join(", ")
    );
    let fractions = c.operand("q")?;
    let fractions = c.as_tensor(&fractions, c.dtype(x))?;
    let has_list = c.rank(fractions) > 0;
    let fractions = if has_list { fractions } else { c.reshape(fractions, vec![1.into()])? };
    let last = c.emit_dim(&(c.extent(x, axis) - Dim::from(1)), c.dtype(x))?;
    let outputs = c.emit_all("sort", Op::Sort { axis, descending: false }, &[x])?;
    let y = c.formula([x, outputs[0], fractions, last], |[x, sorted, fractions, last]| {
        let position = fractions * last;
        let lower = position.floor();
        let upper = position.unary(UnaryOp::Ceil);
        let weight = match interpolation.as_str() {
            "lower" => lower.zeros_like(),
            "higher" => upper - lower,
            "midpoint" => (upper - lower) * 0.5,
            "nearest" => position.unary(UnaryOp::Round) - lower,
            _ => position - lower,
        };
        let mut column = vec![Dim::from(1); sorted.rank() - axis];
        column[0] = weight.extent(0);
        let weight = weight.reshape(column);
        let [low, high] = [lower, upper].map(|at| sorted.take(axis, at.cast(DType::I64)));
        // Both ends are exact.
        let near = low + (high - low) * weight;
        let far = high - (high - low) * (1.0 - weight);
        let y = weight.lt(0.5).select(near, far);
        x.is_nan().cast(DType::I64).reduce(ReductionKind::Max, &[axis], true).ne(0).select(f64::NAN, y)
    })?;
    let mut shape = c.shape(y);
    let count = shape.remove(axis);
    if keep {
        let ones = if is_whole { vec![Dim::from(1); rank] } else { vec![Dim::from(1)] };
        shape.splice(axis..axis, ones);
    }
    if !has_list {
        return c.reshape(y, shape);
    }
    let mut perm: Vec<usize> = (0..c.rank(y)).collect();
    perm.remove(axis);
    perm.insert(0, axis);
    let y = c.permute(y, perm)?;
    shape.insert(0, count);
    c.reshape(y, shape)
}

/// The largest or smallest element up to each one, and the last position that has it.
fn cumulative_extreme(c: &mut OpCall<'_, '_>, op: BinaryOp) -> RuleResult {
    let x = c.first_tensor()?;
    let axis = c.axis("dim", c.rank(x))?;
    if c.rank(x) == 0 {
        return only_element(c, x);
    }
    let y = c.formula([x], |[x]| if x.dtype() == DType::Bool { x.cast(DType::U8) } else { x })?;
    // The first element is as good as none.
    let y = scan(c, y, axis, None, |x, y| x.binary(op, y))?;
    if c.is_result_read(1) {
        let positions = c.iota(c.extent(x, axis), 0, 1, DType::I64)?;
        let mut column = vec![Dim::from(1); c.rank(x) - axis];
        column[0] = c.extent(x, axis);
        let reached = c.formula([x, y, positions], |[x, y, positions]| {
            let is_reached = x.cast(y.dtype()).eq(y);
            let is_reached = if x.dtype().is_float() { is_reached | x.is_nan() } else { is_reached };
            let positions = positions.reshape(column.clone());
            is_reached.select(positions, positions.zeros_like())
        })?;
        let position = scan(c, reached, axis, 0.0, |x, y| x.max(y))?;
        c.set_result(1, position);
    }
    let y = c.cast(y, c.dtype(x))?;
    c.set_only_result(y)
}

/// The most comparisons of one search.
const MAX_COMPARISONS: i64 = 1 << 32;

/// The number of elements of a sorted sequence below each value, or not above it. NaN is above all numbers.
fn search(c: &mut OpCall<'_, '_>, sorted: ValueId, values: ValueId, is_right: bool) -> EmitResult {
    let dtype = if c.bool_or("out_int32", false)? { DType::I32 } else { DType::I64 };
    let comparisons = c.ty(values).numel() * c.shape(sorted).last().cloned().unwrap_or(1.into());
    let most = c.dim_bounds(&comparisons).1;
    unsupported_if!(
        most > MAX_COMPARISONS,
        "the search may compare {most} pairs, more than {MAX_COMPARISONS}"
    );
    c.formula([sorted, values], |[sorted, values]| {
        let last = sorted.rank().saturating_sub(1);
        let each = values.unsqueeze(values.rank());
        let sequence = if sorted.rank() > 1 { sorted.unsqueeze(last) } else { sorted };
        let is_passed = if is_right { !sequence.gt(each) } else { !sequence.ge(each) };
        is_passed.cast(DType::I64).sum(&[values.rank()], false).cast(dtype)
    })
}
