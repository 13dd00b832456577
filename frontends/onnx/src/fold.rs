//! Ops on integers that are expressions of the program's symbols: what shapes are computed with.

use symmc_import::Emit;
use symmc_ir::dim::check_size;
use symmc_ir::{DType, Dim};

use crate::call::Call;
use crate::data;
use crate::known::{Ints, Known};
use crate::lower::Lowered;
use crate::node::normalised;

/// Computes the node, if all its operands are known integers, some of them symbolic, and the op is one that keeps
/// them integers. Returns whether it was.
pub(crate) fn ints(c: &mut Call<'_, '_>) -> Lowered<bool> {
    if !normalised(&c.node.domain).is_empty() || c.node.input.is_empty() || c.node.input.len() > 64 {
        return Ok(false);
    }
    let mut operands = Vec::with_capacity(c.node.input.len());
    let mut symbolic = false;
    for i in 0..c.node.input.len() {
        operands.push(match (c.name(i).is_some(), c.known(i)?) {
            (false, _) => None,
            (true, Some(known)) => {
                symbolic |= matches!(known, Known::Ints(_));
                let Some(ints) = known.ints() else { return Ok(false) };
                Some(ints)
            }
            (true, None) => return Ok(false),
        });
    }
    if !symbolic {
        return Ok(false);
    }
    let Some(results) = folded(c, &operands)? else { return Ok(false) };
    let known: Option<Vec<Known>> = results.into_iter().map(Ints::known).collect();
    let Some(known) = known.filter(|k| k.len() >= c.result_count()) else { return Ok(false) };
    known.into_iter().enumerate().for_each(|(i, k)| c.set_known(i, k));
    Ok(true)
}

fn folded(c: &mut Call<'_, '_>, operands: &[Option<Ints>]) -> Lowered<Option<Vec<Ints>>> {
    let Some(x) = operands.first().and_then(Option::as_ref) else { return Ok(None) };
    let y = operands.get(1).and_then(Option::as_ref);
    let op = c.node.op_type.as_str();
    let one = match op {
        "Identity" => Some(x.clone()),
        "Cast" => cast(c, x)?,
        "CastLike" => {
            c.ignore(&["saturate", "round_mode"]);
            y.filter(|y| y.dtype == x.dtype).map(|_| x.clone())
        }
        "Neg" => each(x, |d| Some(Dim::from(0) - d.clone())),
        "Abs" => each(x, |d| (c.bounds(d).0 >= 0).then(|| d.clone())),
        "Add" | "Sub" | "Mul" | "Div" | "Mod" | "Min" | "Max" => {
            let mut all = operands.iter().flatten();
            let first = all.next().cloned();
            first.and_then(|f| all.try_fold(f, |a, b| a.zip(b, a.dtype, |p, q| arithmetic(c, op, p, q))))
        }
        "Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual" => {
            y.and_then(|y| x.zip(y, DType::Bool, |p, q| decided(c, op, p, q).map(|t| i64::from(t).into())))
        }
        "Where" => chosen(operands),
        "Gather" => gathered(c, x, y)?,
        "Concat" => concatenated(c, operands)?,
        "Slice" => sliced(c, x, operands)?,
        "Squeeze" | "Unsqueeze" | "Reshape" | "Flatten" => reshaped(c, x, y)?,
        "Expand" => y.and_then(|y| expanded(x, y)),
        "ReduceProd" | "ReduceSum" | "ReduceMax" | "ReduceMin" => reduced(c, op, x)?,
        "Split" => return split(c, x, y),
        _ => None,
    };
    Ok(one.map(|ints| vec![ints]))
}

fn each(x: &Ints, f: impl FnMut(&Dim) -> Option<Dim>) -> Option<Ints> {
    let dims = x.dims.iter().map(f).collect::<Option<Vec<_>>>()?;
    Some(Ints { dims, ..x.clone() })
}

fn cast(c: &Call<'_, '_>, x: &Ints) -> Lowered<Option<Ints>> {
    let Some(code) = c.opt_int("to")? else { return Ok(None) };
    let dtype = data::dtype(i32::try_from(code).unwrap_or(-1)).ok();
    c.ignore(&["saturate", "round_mode"]);
    // A cast to a narrower integer changes nothing of what fits an extent.
    Ok(dtype.filter(|d| matches!(d, DType::I64 | DType::I32)).map(|dtype| Ints { dtype, ..x.clone() }))
}

/// Integer arithmetic as ONNX has it: division truncates, the remainder has the sign of the divisor or, by `fmod`, of
/// the dividend. `None` if the result is beyond the limits of [`symmc_ir::dim`], or not known.
fn arithmetic(c: &Call<'_, '_>, op: &str, p: &Dim, q: &Dim) -> Option<Dim> {
    let (p, q) = (p.clone(), q.clone());
    let positive = |d: &Dim| c.bounds(d).0 > 0;
    let result = match op {
        "Add" => p + q,
        "Sub" => p - q,
        // As many terms as the product expands to, before it is.
        "Mul" if check_size(&[p.clone(), q.clone()]).is_ok() => p * q,
        "Div" if positive(&q) && c.bounds(&p).0 >= 0 => p.floor_div(&q),
        "Mod" if positive(&q) && (c.flag("fmod").is_ok_and(|f| !f) || c.bounds(&p).0 >= 0) => p.modulo(&q),
        "Min" => p.min_with(&q),
        "Max" => p.max_with(&q),
        _ => return None,
    };
    // What the bounds decide makes the result smaller, and equal to others.
    let sound = |d: &Dim| check_size(std::slice::from_ref(d)).is_ok();
    sound(&result).then(|| result.within(&c.builder().graph().symbols)).filter(sound)
}

/// The truth of a relation, where the bounds of the symbols decide it.
fn decided(c: &Call<'_, '_>, op: &str, p: &Dim, q: &Dim) -> Option<bool> {
    let (low, high) = c.bounds(&(p.clone() - q.clone()));
    let (yes, no) = match op {
        "Equal" => (low == 0 && high == 0, low > 0 || high < 0),
        "Less" => (high < 0, low >= 0),
        "LessOrEqual" => (high <= 0, low > 0),
        "Greater" => (low > 0, high <= 0),
        _ => (low >= 0, high < 0),
    };
    if yes { Some(true) } else { no.then_some(false) }
}

fn chosen(operands: &[Option<Ints>]) -> Option<Ints> {
    let [Some(condition), Some(x), Some(y)] = operands else { return None };
    // The shape of all three: that of the condition with one, with the other.
    let shape =
        x.zip(y, x.dtype, |p, _| Some(p.clone()))?.zip(condition, x.dtype, |p, _| Some(p.clone()))?.shape;
    let dims = (0..shape.iter().product())
        .map(|i| {
            let truth = condition.at(&shape, i)?.as_const()? != 0;
            if truth { x.at(&shape, i) } else { y.at(&shape, i) }.cloned()
        })
        .collect::<Option<Vec<_>>>()?;
    Some(Ints { dtype: x.dtype, shape, dims })
}

fn gathered(c: &Call<'_, '_>, x: &Ints, index: Option<&Ints>) -> Lowered<Option<Ints>> {
    let axis = c.axis_or("axis", 0, x.shape.len())?;
    let Some(index) = index else { return Ok(None) };
    let positions = index.dims.iter().map(Dim::as_const).collect::<Option<Vec<_>>>();
    Ok(positions.and_then(|p| x.take(axis, &p, &index.shape)))
}

fn concatenated(c: &Call<'_, '_>, operands: &[Option<Ints>]) -> Lowered<Option<Ints>> {
    let all: Vec<&Ints> = operands.iter().flatten().collect();
    if all.iter().any(|x| x.shape.len() != 1) || c.axis_or("axis", 0, 1)? != 0 {
        return Ok(None);
    }
    let dims: Vec<Dim> = all.iter().flat_map(|x| x.dims.iter().cloned()).collect();
    Ok(Some(Ints { dtype: all[0].dtype, ..Ints::vector(dims) }))
}

/// A slice of a vector by constant positions: operands, or attributes before version 10.
fn sliced(c: &Call<'_, '_>, x: &Ints, operands: &[Option<Ints>]) -> Lowered<Option<Ints>> {
    let [n] = x.shape.as_slice() else { return Ok(None) };
    // `None` if it is not one known number, `Some(None)` if it is left out.
    let number = |i: usize, name: &str| -> Lowered<Option<Option<i64>>> {
        let given: Option<Vec<Dim>> = match operands.get(i).and_then(Option::as_ref) {
            Some(ints) => Some(ints.dims.clone()),
            None => c.opt_attribute_ints(name)?.map(|list| list.iter().map(|&d| d.into()).collect()),
        };
        Ok(match given.as_deref() {
            None => Some(None),
            Some([one]) => one.as_const().map(Some),
            Some(_) => None,
        })
    };
    let (Some(Some(start)), Some(Some(end)), Some(axis), Some(step)) =
        (number(1, "starts")?, number(2, "ends")?, number(3, "axes")?, number(4, "steps")?)
    else {
        return Ok(None);
    };
    c.axis_of(axis.unwrap_or(0), 1)?;
    let positions = positions(*n as i64, start, end, step.unwrap_or(1));
    Ok(positions.and_then(|p| x.take(0, &p, &[p.len()])))
}

/// The positions that a slice of `n` elements takes.
fn positions(n: i64, start: i64, end: i64, step: i64) -> Option<Vec<i64>> {
    let absolute = |p: i64| if p < 0 { p.saturating_add(n) } else { p };
    let (low, high) = if step > 0 { (0, n) } else { (-1, n - 1) };
    let (start, end) = (absolute(start).clamp(low, high), absolute(end).clamp(low, high));
    match step {
        0 => None,
        1.. => Some((start..end).step_by(usize::try_from(step).ok()?).collect()),
        _ => Some((end + 1..=start).rev().step_by(usize::try_from(step.unsigned_abs()).ok()?).collect()),
    }
}

/// Tensors of so few elements have one axis or none; a reshape by constants gives them others.
fn reshaped(c: &mut Call<'_, '_>, x: &Ints, y: Option<&Ints>) -> Lowered<Option<Ints>> {
    let n = x.dims.len();
    let consts = y.map(|y| y.dims.iter().map(Dim::as_const).collect::<Option<Vec<i64>>>());
    if matches!(consts, Some(None)) {
        return Ok(None);
    }
    let rank = x.shape.len();
    let shape = match c.node.op_type.as_str() {
        "Squeeze" => {
            let axes = c.axes(1, rank)?;
            let stays = |a: usize| axes.as_ref().map_or(x.shape[a] != 1, |axes| !axes.contains(&a));
            (0..rank).filter(|&a| stays(a)).map(|a| x.shape[a]).collect()
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
            let Some(shape) = filled(x, &target, c.flag("allowzero")?) else { return Ok(None) };
            shape
        }
    };
    Ok(x.clone().reshaped(shape))
}

/// The shape that the target of a reshape is: 0 copies an extent unless it is `literal`, and -1 is what is left.
fn filled(x: &Ints, target: &[i64], literal: bool) -> Option<Vec<usize>> {
    let extent = |(i, d): (usize, &i64)| match d {
        -1 => Some(1),
        0 if !literal => x.shape.get(i).copied(),
        d => usize::try_from(*d).ok(),
    };
    let mut shape = target.iter().enumerate().map(extent).collect::<Option<Vec<usize>>>()?;
    let count = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
    let mut open = (0..target.len()).filter(|&i| target[i] == -1);
    if let Some(i) = open.next() {
        shape[i] = x.dims.len().checked_div(count)?;
    }
    open.next().is_none().then_some(shape)
}

fn expanded(x: &Ints, y: &Ints) -> Option<Ints> {
    let shape = y.dims.iter().map(|d| usize::try_from(d.as_const()?).ok()).collect::<Option<Vec<_>>>()?;
    let count = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
    if count > crate::known::MAX_FOLLOWED {
        return None;
    }
    let whole = Ints { dtype: x.dtype, dims: vec![Dim::from(0); count], shape };
    whole.zip(x, x.dtype, |_, d| Some(d.clone()))
}

fn reduced(c: &mut Call<'_, '_>, op: &str, x: &Ints) -> Lowered<Option<Ints>> {
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
    let Some(one) = first.and_then(|first| dims.try_fold(first, |a, b| arithmetic(c, op, &a, b))) else {
        return Ok(None);
    };
    let shape = if c.int_or("keepdims", 1)? != 0 { vec![1; x.shape.len()] } else { vec![] };
    Ok(Some(Ints { dtype: x.dtype, shape, dims: vec![one] }))
}

fn split(c: &Call<'_, '_>, x: &Ints, y: Option<&Ints>) -> Lowered<Option<Vec<Ints>>> {
    let [n] = x.shape.as_slice() else { return Ok(None) };
    let count = c.result_count();
    let even = c.int_or("num_outputs", count as i64)? == count as i64 && count > 0 && n.is_multiple_of(count);
    let lengths: Option<Vec<usize>> = match (y, c.opt_attribute_ints("split")?) {
        (Some(y), _) => y.dims.iter().map(|d| usize::try_from(d.as_const()?).ok()).collect(),
        (None, Some(list)) => list.iter().map(|&d| usize::try_from(d).ok()).collect(),
        (None, None) => even.then(|| vec![n / count; count]),
    };
    // What is wrong with others shows where they are lowered.
    let fits = |l: &Vec<usize>| {
        l.len() == count && l.iter().try_fold(0usize, |sum, &l| sum.checked_add(l)) == Some(*n)
    };
    let Some(lengths) = lengths.filter(fits) else { return Ok(None) };
    c.axis_or("axis", 0, 1)?;
    let mut start = 0usize;
    let mut pieces = Vec::new();
    for length in lengths {
        let Some(dims) = x.dims.get(start..start + length) else { return Ok(None) };
        pieces.push(Ints { dtype: x.dtype, ..Ints::vector(dims.to_vec()) });
        start += length;
    }
    Ok(Some(pieces))
}
