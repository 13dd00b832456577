//! Constant folding of integers that are expressions of the program's symbols, as in the computation of
//! shapes.

use symmc_import::Emit;
use symmc_ir::dim::check_shape_complexity;
use symmc_ir::{BinaryOp, DType, Dim};

use crate::call::OpCall;
use crate::known_values::{KnownValue, SizeCondition, SymbolicInts};
use crate::lower::RuleResult;
use crate::node::normalize_domain;
use crate::tensor_data;

/// Folds the node if all its operands are known integers, some of them symbolic, and its op is supported
/// here. Returns whether it was folded.
pub(crate) fn fold_ints(c: &mut OpCall<'_, '_>) -> RuleResult<bool> {
    if !normalize_domain(&c.node.domain).is_empty() || c.node.input.is_empty() || c.node.input.len() > 64 {
        return Ok(false);
    }
    let mut operands = Vec::with_capacity(c.node.input.len());
    let mut symbolic = false;
    for i in 0..c.node.input.len() {
        operands.push(match (c.operand_name(i).is_some(), c.known_value(i)?) {
            (false, _) => None,
            (true, Some(value)) => {
                symbolic |= matches!(value, KnownValue::Ints(_));
                let Some(ints) = value.as_ints() else { return Ok(false) };
                Some(ints)
            }
            (true, None) => return Ok(false),
        });
    }
    if !symbolic {
        return Ok(false);
    }
    let Some(results) = fold_op(c, &operands)? else { return Ok(false) };
    let values: Option<Vec<KnownValue>> = results.into_iter().map(SymbolicInts::into_known).collect();
    let Some(values) = values.filter(|k| k.len() >= c.result_count()) else { return Ok(false) };
    values.into_iter().enumerate().for_each(|(i, k)| c.set_known(i, k));
    Ok(true)
}

fn fold_op(
    c: &mut OpCall<'_, '_>,
    operands: &[Option<SymbolicInts>],
) -> RuleResult<Option<Vec<SymbolicInts>>> {
    let Some(x) = operands.first().and_then(Option::as_ref) else { return Ok(None) };
    let y = operands.get(1).and_then(Option::as_ref);
    let op = c.node.op_type.as_str();
    let folded = match op {
        "Identity" => Some(x.clone()),
        "Cast" => fold_cast(c, x)?,
        "CastLike" => {
            c.ignore(&["saturate", "round_mode"]);
            y.filter(|y| y.dtype == x.dtype).map(|_| x.clone())
        }
        "Neg" => map_elements(x, |d| Some(Dim::from(0) - d.clone())),
        "Abs" => map_elements(x, |d| (c.dim_bounds(d).0 >= 0).then(|| d.clone())),
        "Add" | "Sub" | "Mul" | "Div" | "Mod" | "Min" | "Max" => {
            let mut ints = operands.iter().flatten();
            let first = ints.next().cloned();
            first.and_then(|f| {
                ints.try_fold(f, |a, b| a.zip_broadcast(b, a.dtype, |p, q| fold_arithmetic(c, op, p, q)))
            })
        }
        "Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual" => y.and_then(|y| {
            let truth = x.zip_broadcast(y, DType::Bool, |p, q| {
                decide_comparison(c, op, p, q).map(|t| i64::from(t).into())
            });
            if truth.is_none()
                && let ([p], [q]) = (x.dims.as_slice(), y.dims.as_slice())
            {
                c.record_size_condition(SizeCondition {
                    op: op_of_comparison(op),
                    left: p.clone(),
                    right: q.clone(),
                });
            }
            truth
        }),
        "Where" => fold_where(operands),
        "Gather" => fold_gather(c, x, y)?,
        "Concat" => fold_concat(c, operands)?,
        "Slice" => fold_slice(c, x, operands)?,
        "Squeeze" | "Unsqueeze" | "Reshape" | "Flatten" => fold_reshape(c, x, y)?,
        "Expand" => y.and_then(|y| fold_expand(x, y)),
        "ReduceProd" | "ReduceSum" | "ReduceMax" | "ReduceMin" => fold_reduce(c, op, x)?,
        "Split" => return fold_split(c, x, y),
        _ => None,
    };
    Ok(folded.map(|ints| vec![ints]))
}

fn map_elements(x: &SymbolicInts, f: impl FnMut(&Dim) -> Option<Dim>) -> Option<SymbolicInts> {
    let dims = x.dims.iter().map(f).collect::<Option<Vec<_>>>()?;
    Some(SymbolicInts { dims, ..x.clone() })
}

fn fold_cast(c: &OpCall<'_, '_>, x: &SymbolicInts) -> RuleResult<Option<SymbolicInts>> {
    let Some(code) = c.opt_int("to")? else { return Ok(None) };
    let dtype = tensor_data::dtype_from_code(i32::try_from(code).unwrap_or(-1)).ok();
    c.ignore(&["saturate", "round_mode"]);
    // A cast between integers does not change a value that fits an extent.
    Ok(dtype
        .filter(|d| matches!(d, DType::I64 | DType::I32))
        .map(|dtype| SymbolicInts { dtype, ..x.clone() }))
}

/// Integer arithmetic with ONNX's semantics. Division truncates. The remainder has the sign of the divisor
/// or, with `fmod`, of the dividend. `None` if the result exceeds the limits of [`symmc_ir::dim`], or is not
/// known.
fn fold_arithmetic(c: &OpCall<'_, '_>, op: &str, p: &Dim, q: &Dim) -> Option<Dim> {
    let p = p.clone();
    let q = q.clone();
    let is_divisor_positive = c.dim_bounds(&q).0 > 0;
    let result = match op {
        "Add" => p + q,
        "Sub" => p - q,
        // The check bounds the number of terms before the product is expanded.
        "Mul" if check_shape_complexity(&[p.clone(), q.clone()]).is_ok() => p * q,
        "Div" if is_divisor_positive && c.dim_bounds(&p).0 >= 0 => p.floor_div(&q),
        "Mod" if is_divisor_positive && (c.flag("fmod").is_ok_and(|f| !f) || c.dim_bounds(&p).0 >= 0) => {
            p.modulo(&q)
        }
        "Min" => p.min_with(&q),
        "Max" => p.max_with(&q),
        _ => return None,
    };
    // Simplification within the bounds of the symbols makes results smaller, and equal results identical.
    check_shape_complexity(std::slice::from_ref(&result)).ok()?;
    let simplified = result.simplify_within(&c.builder().graph().symbols);
    check_shape_complexity(std::slice::from_ref(&simplified)).ok()?;
    Some(simplified)
}

/// The truth of a comparison, if the bounds of the symbols decide it.
fn decide_comparison(c: &OpCall<'_, '_>, op: &str, p: &Dim, q: &Dim) -> Option<bool> {
    let (low, high) = c.dim_bounds(&(p.clone() - q.clone()));
    let (yes, no) = match op {
        "Equal" => (low == 0 && high == 0, low > 0 || high < 0),
        "Less" => (high < 0, low >= 0),
        "LessOrEqual" => (high <= 0, low > 0),
        "Greater" => (low > 0, high <= 0),
        _ => (low >= 0, high < 0),
    };
    if yes { Some(true) } else { no.then_some(false) }
}

fn op_of_comparison(op: &str) -> BinaryOp {
    match op {
        "Equal" => BinaryOp::Eq,
        "Less" => BinaryOp::Lt,
        "LessOrEqual" => BinaryOp::Le,
        "Greater" => BinaryOp::Gt,
        _ => BinaryOp::Ge,
    }
}

fn fold_where(operands: &[Option<SymbolicInts>]) -> Option<SymbolicInts> {
    let [Some(condition), Some(x), Some(y)] = operands else { return None };
    // The shape to which all three operands broadcast.
    let shape = x
        .zip_broadcast(y, x.dtype, |p, _| Some(p.clone()))?
        .zip_broadcast(condition, x.dtype, |p, _| Some(p.clone()))?
        .shape;
    let dims = (0..shape.iter().product())
        .map(|i| {
            let truth = condition.broadcast_element(&shape, i)?.as_const()? != 0;
            if truth { x.broadcast_element(&shape, i) } else { y.broadcast_element(&shape, i) }.cloned()
        })
        .collect::<Option<Vec<_>>>()?;
    Some(SymbolicInts { dtype: x.dtype, shape, dims })
}

fn fold_gather(
    c: &OpCall<'_, '_>,
    x: &SymbolicInts,
    index: Option<&SymbolicInts>,
) -> RuleResult<Option<SymbolicInts>> {
    let axis = c.axis_or("axis", 0, x.shape.len())?;
    let Some(index) = index else { return Ok(None) };
    let positions = index.dims.iter().map(Dim::as_const).collect::<Option<Vec<_>>>();
    Ok(positions.and_then(|p| x.take_positions(axis, &p, &index.shape)))
}

fn fold_concat(c: &OpCall<'_, '_>, operands: &[Option<SymbolicInts>]) -> RuleResult<Option<SymbolicInts>> {
    let ints: Vec<&SymbolicInts> = operands.iter().flatten().collect();
    if ints.iter().any(|x| x.shape.len() != 1) || c.axis_or("axis", 0, 1)? != 0 {
        return Ok(None);
    }
    let dims: Vec<Dim> = ints.iter().flat_map(|x| x.dims.iter().cloned()).collect();
    Ok(Some(SymbolicInts { dtype: ints[0].dtype, ..SymbolicInts::vector(dims) }))
}

/// A slice of a vector at constant positions. They are operands, or attributes before version 10.
fn fold_slice(
    c: &OpCall<'_, '_>,
    x: &SymbolicInts,
    operands: &[Option<SymbolicInts>],
) -> RuleResult<Option<SymbolicInts>> {
    let [n] = x.shape.as_slice() else { return Ok(None) };
    let start = slice_number(c, operands, 1, "starts")?;
    let end = slice_number(c, operands, 2, "ends")?;
    let axis = slice_number(c, operands, 3, "axes")?;
    let step = slice_number(c, operands, 4, "steps")?;
    let (Some(Some(start)), Some(Some(end)), Some(axis), Some(step)) = (start, end, axis, step) else {
        return Ok(None);
    };
    c.resolve_axis(axis.unwrap_or(0), 1)?;
    let positions = slice_positions(*n as i64, start, end, step.unwrap_or(1));
    Ok(positions.and_then(|p| x.take_positions(0, &p, &[p.len()])))
}

/// A number of a slice: `None` if it is not one known number, `Some(None)` if it is omitted.
fn slice_number(
    c: &OpCall<'_, '_>,
    operands: &[Option<SymbolicInts>],
    i: usize,
    name: &str,
) -> RuleResult<Option<Option<i64>>> {
    let dims: Option<Vec<Dim>> = match operands.get(i).and_then(Option::as_ref) {
        Some(ints) => Some(ints.dims.clone()),
        None => c.opt_attribute_ints(name)?.map(|list| list.iter().map(|&d| d.into()).collect()),
    };
    Ok(match dims.as_deref() {
        None => Some(None),
        Some([number]) => number.as_const().map(Some),
        Some(_) => None,
    })
}

/// The positions of the elements that a slice of `n` elements takes.
fn slice_positions(n: i64, start: i64, end: i64, step: i64) -> Option<Vec<i64>> {
    let (low, high) = if step > 0 { (0, n) } else { (-1, n - 1) };
    let start = if start < 0 { start.saturating_add(n) } else { start }.clamp(low, high);
    let end = if end < 0 { end.saturating_add(n) } else { end }.clamp(low, high);
    match step {
        0 => None,
        1.. => Some((start..end).step_by(usize::try_from(step).ok()?).collect()),
        _ => Some((end + 1..=start).rev().step_by(usize::try_from(step.unsigned_abs()).ok()?).collect()),
    }
}

/// Squeeze, Unsqueeze and Reshape to a constant shape.
fn fold_reshape(
    c: &mut OpCall<'_, '_>,
    x: &SymbolicInts,
    y: Option<&SymbolicInts>,
) -> RuleResult<Option<SymbolicInts>> {
    let n = x.dims.len();
    let consts = y.map(|y| y.dims.iter().map(Dim::as_const).collect::<Option<Vec<i64>>>());
    if matches!(consts, Some(None)) {
        return Ok(None);
    }
    let rank = x.shape.len();
    let shape = match c.node.op_type.as_str() {
        "Squeeze" => {
            let axes = c.axes(1, rank)?;
            let kept_axes = (0..rank).filter(|a| match &axes {
                Some(axes) => !axes.contains(a),
                None => x.shape[*a] != 1,
            });
            kept_axes.map(|a| x.shape[a]).collect()
        }
        "Unsqueeze" => {
            let new = consts.flatten().map_or(0, |v| v.len());
            let new = if new == 0 { c.opt_attribute_ints("axes")?.map_or(0, <[i64]>::len) } else { new };
            let axes = c.axes(1, rank + new)?.unwrap_or_default();
            let mut shape = x.shape.clone();
            axes.iter().filter(|a| **a <= n + new).for_each(|&a| shape.insert(a.min(shape.len()), 1));
            shape
        }
        "Flatten" => return Ok(None),
        _ => {
            let Some(Some(target)) = consts else { return Ok(None) };
            let Some(shape) = reshape_target_shape(x, &target, c.flag("allowzero")?) else { return Ok(None) };
            shape
        }
    };
    Ok(x.clone().with_shape(shape))
}

/// The shape of the result of a reshape. An extent of 0 copies that of `x` unless `literal`, and -1 is
/// inferred.
fn reshape_target_shape(x: &SymbolicInts, target: &[i64], literal: bool) -> Option<Vec<usize>> {
    let extents = target.iter().enumerate().map(|(i, &extent)| match extent {
        -1 => Some(1),
        0 if !literal => x.shape.get(i).copied(),
        extent => usize::try_from(extent).ok(),
    });
    let mut shape = extents.collect::<Option<Vec<usize>>>()?;
    let count = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
    let mut open = (0..target.len()).filter(|&i| target[i] == -1);
    if let Some(i) = open.next() {
        shape[i] = x.dims.len().checked_div(count)?;
    }
    open.next().is_none().then_some(shape)
}

fn fold_expand(x: &SymbolicInts, y: &SymbolicInts) -> Option<SymbolicInts> {
    let shape = y.dims.iter().map(|d| usize::try_from(d.as_const()?).ok()).collect::<Option<Vec<_>>>()?;
    let count = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
    if count > crate::known_values::MAX_FOLLOWED {
        return None;
    }
    let zeros = SymbolicInts { dtype: x.dtype, dims: vec![Dim::from(0); count], shape };
    zeros.zip_broadcast(x, x.dtype, |_, d| Some(d.clone()))
}

fn fold_reduce(c: &mut OpCall<'_, '_>, op: &str, x: &SymbolicInts) -> RuleResult<Option<SymbolicInts>> {
    let axes = c.axes(1, x.shape.len())?.filter(|a| !a.is_empty());
    let nothing = c.flag("noop_with_empty_axes")?;
    if x.shape.len() > 1 || axes.is_none() && nothing {
        return Ok(None);
    }
    let op = match op {
        "ReduceProd" => "Mul",
        "ReduceSum" => "Add",
        "ReduceMax" => "Max",
        _ => "Min",
    };
    let mut dims = x.dims.iter();
    let first = dims.next().cloned();
    let Some(one) = first.and_then(|first| dims.try_fold(first, |a, b| fold_arithmetic(c, op, &a, b))) else {
        return Ok(None);
    };
    let shape = if c.int_or("keepdims", 1)? != 0 { vec![1; x.shape.len()] } else { vec![] };
    Ok(Some(SymbolicInts { dtype: x.dtype, shape, dims: vec![one] }))
}

fn fold_split(
    c: &OpCall<'_, '_>,
    x: &SymbolicInts,
    y: Option<&SymbolicInts>,
) -> RuleResult<Option<Vec<SymbolicInts>>> {
    let [n] = x.shape.as_slice() else { return Ok(None) };
    let count = c.result_count();
    let even = c.int_or("num_outputs", count as i64)? == count as i64 && count > 0 && n.is_multiple_of(count);
    let lengths: Option<Vec<usize>> = match (y, c.opt_attribute_ints("split")?) {
        (Some(y), _) => y.dims.iter().map(|d| usize::try_from(d.as_const()?).ok()).collect(),
        (None, Some(list)) => list.iter().map(|&d| usize::try_from(d).ok()).collect(),
        (None, None) => even.then(|| vec![n / count; count]),
    };
    // Invalid lengths are reported when the node is lowered.
    let lengths = lengths.filter(|lengths| {
        let sum = lengths.iter().try_fold(0usize, |sum, &length| sum.checked_add(length));
        lengths.len() == count && sum == Some(*n)
    });
    let Some(lengths) = lengths else { return Ok(None) };
    c.axis_or("axis", 0, 1)?;
    let mut start = 0usize;
    let mut pieces = Vec::new();
    for length in lengths {
        let Some(dims) = x.dims.get(start..start + length) else { return Ok(None) };
        pieces.push(SymbolicInts { dtype: x.dtype, ..SymbolicInts::vector(dims.to_vec()) });
        start += length;
    }
    Ok(Some(pieces))
}
