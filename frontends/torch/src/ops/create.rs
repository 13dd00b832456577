//! Ops that create tensors: fills, ranges, triangles.

use symmc_import::{Emit, EmitFormulas, invalid, invalid_if, unsupported};
use symmc_ir::{BinaryOp, DType, Dim, FloatAttribute, Op, Scalar, ValueId};

use super::{RuleRow, row};
use crate::call::{CallOperand, OpCall};
use crate::dtype;
use crate::lower::{EmitResult, RuleResult};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("aten.full", "full", |c| filled_tensor(c, FillTemplate::Size, None)),
    row("aten.zeros", "full", |c| filled_tensor(c, FillTemplate::Size, Some(0))),
    row("aten.ones", "full", |c| filled_tensor(c, FillTemplate::Size, Some(1))),
    row("aten.empty", "full of 0", |c| filled_tensor(c, FillTemplate::Size, Some(0))),
    row("aten.empty_permuted aten.empty_strided", "full of 0", empty_with_layout),
    row("aten.full_like", "full", |c| filled_tensor(c, FillTemplate::Operand, None)),
    row("aten.zeros_like", "full", |c| filled_tensor(c, FillTemplate::Operand, Some(0))),
    row("aten.ones_like", "full", |c| filled_tensor(c, FillTemplate::Operand, Some(1))),
    row("aten.empty_like", "full of 0", |c| filled_tensor(c, FillTemplate::Operand, Some(0))),
    row("aten.new_full", "full", |c| filled_tensor(c, FillTemplate::Both, None)),
    row("aten.new_zeros", "full", |c| filled_tensor(c, FillTemplate::Both, Some(0))),
    row("aten.new_ones", "full", |c| filled_tensor(c, FillTemplate::Both, Some(1))),
    row("aten.new_empty", "full of 0", |c| filled_tensor(c, FillTemplate::Both, Some(0))),
    row("aten.new_empty_strided", "full of 0", |c| {
        c.ignore(&["stride"]);
        filled_tensor(c, FillTemplate::Both, Some(0))
    }),
    row("aten.tril_indices", "iota, cumsum, index_put", |c| triangle_positions(c, true)),
    row("aten.triu_indices", "iota, cumsum, index_put", |c| triangle_positions(c, false)),
    row("aten.fill", "full", |c| {
        let x = c.first_tensor()?;
        let value = c.operand("value")?;
        let value = c.as_tensor(&value, c.dtype(x))?;
        c.expand(value, c.shape(x))
    }),
    row("aten.zero", "full", |c| {
        let x = c.first_tensor()?;
        c.full(Scalar::Int(0), c.dtype(x), c.shape(x))
    }),
    row("aten.scalar_tensor", "full", |c| {
        let value = c.operand("s")?;
        let dtype = c.opt_dtype("dtype")?.unwrap_or(dtype::DEFAULT_FLOAT);
        c.as_tensor(&value, dtype)
    }),
    row("aten.arange", "iota", arange),
    row("prims.iota", "iota", |c| {
        let start = c.int_or("start", 0)?;
        let step = c.int_or("step", 1)?;
        let len = c.dim("length")?;
        let dtype = c.opt_dtype("dtype")?.unwrap_or(DType::I64);
        c.iota(len, start, step, dtype)
    }),
    row("aten.linspace", "iota, mul, add", linspace),
    row("aten.eye", "eq of iotas", eye),
    row("aten.tril", "select", |c| triangle(c, BinaryOp::Le)),
    row("aten.triu", "select", |c| triangle(c, BinaryOp::Ge)),
];

/// The source of the shape and the dtype of a new tensor.
#[derive(Clone, Copy, PartialEq)]
enum FillTemplate {
    Size,
    Operand,
    /// The shape is `size`, the dtype is that of the first operand.
    Both,
}

/// An empty tensor. Its memory layout is not part of its value.
fn empty_with_layout(c: &mut OpCall<'_, '_>) -> EmitResult {
    c.ignore(&["physical_layout", "stride"]);
    filled_tensor(c, FillTemplate::Size, Some(0))
}

fn filled_tensor(c: &mut OpCall<'_, '_>, like: FillTemplate, value: Option<i64>) -> EmitResult {
    let value = match value {
        Some(i) => CallOperand::Scalar(Scalar::Int(i)),
        None => c.operand("fill_value")?,
    };
    let (shape, default) = match like {
        FillTemplate::Size => {
            let default = match (&value, c.get("fill_value").is_some()) {
                (CallOperand::Scalar(s), true) => dtype::scalar_dtype(*s),
                (CallOperand::Dim(_), true) => DType::I64,
                (CallOperand::Tensor(v), true) if !c.dtype(*v).is_float() => DType::I64,
                _ => dtype::DEFAULT_FLOAT,
            };
            (c.dims("size")?, default)
        }
        FillTemplate::Operand => {
            let x = c.first_tensor()?;
            (c.shape(x), c.dtype(x))
        }
        FillTemplate::Both => {
            let x = c.first_tensor()?;
            (c.dims("size")?, c.dtype(x))
        }
    };
    let dtype = c.opt_dtype("dtype")?.unwrap_or(default);
    match value {
        CallOperand::Scalar(s) => c.full(s, dtype, shape),
        other => {
            let element = c.as_tensor(&other, dtype)?;
            c.expand(element, shape)
        }
    }
}

/// `start + i * step` below `end`, or above it for a negative step.
fn arange(c: &mut OpCall<'_, '_>) -> EmitResult {
    if let Some(y) = range_by_rank(c)? {
        return Ok(y);
    }
    if c.has_data_size()? {
        return range_by_data(c);
    }
    let start = c.opt_operand("start")?.unwrap_or(CallOperand::Scalar(Scalar::Int(0)));
    let step = c.opt_operand("step")?.unwrap_or(CallOperand::Scalar(Scalar::Int(1)));
    let end = c.operand("end")?;
    let (Some(first), Some(last), Some(by)) = (as_dim(&start), as_dim(&end), as_dim(&step)) else {
        return float_range(c, &start, &step);
    };
    let dtype = c.opt_dtype("dtype")?.unwrap_or(DType::I64);
    let Some(by) = by.as_const().filter(|s| *s != 0) else {
        return unsupported!("the step is symbolic or zero");
    };
    c.range(&first, &last, by, dtype)
}

/// A range by 1 whose ends depend on data.
fn range_by_data(c: &mut OpCall<'_, '_>) -> EmitResult {
    let start = c.opt_size("start")?.unwrap_or(0.into());
    let end = c.opt_size("end")?.unwrap_or(0.into());
    let dtype = c.opt_dtype("dtype")?.unwrap_or(DType::I64);
    let length = end - start.clone();
    if c.int_or("step", 1)? != 1 {
        return c.refuse_packed("it is a range with a step", &length);
    }
    let capacity = c.capacity(&length)?;
    let positions = c.iota(capacity, 0, 1, DType::I64)?;
    let y = if start.as_const() == Some(0) {
        positions
    } else {
        let start = c.emit_size(&start)?;
        c.binary(BinaryOp::Add, positions, start)?
    };
    c.cast(y, dtype)
}

fn as_dim(operand: &CallOperand) -> Option<Dim> {
    match operand {
        CallOperand::Scalar(Scalar::Int(i)) => Some(Dim::from(*i)),
        CallOperand::Dim(d) => Some(d.clone()),
        _ => None,
    }
}

/// A range of integers with a start that differs between ranks and the same length on all.
fn range_by_rank(c: &mut OpCall<'_, '_>) -> RuleResult<Option<ValueId>> {
    let Some((start, starts)) = c.ints_by_rank("start") else { return Ok(None) };
    let step = c.int_or("step", 1)?;
    let ends = match c.ints_by_rank("end") {
        Some((_, ends)) => ends.to_vec(),
        None => vec![c.int("end")?; starts.len()],
    };
    let bounds = starts.iter().zip(&ends);
    let lengths: Option<Vec<_>> = bounds.map(|(&start, &end)| range_length(start, end, step)).collect();
    let equal_lengths =
        lengths.filter(|l| l.iter().all(|(_, forward)| *forward) && l.windows(2).all(|w| w[0] == w[1]));
    let len = equal_lengths.and_then(|l| i64::try_from(l.first()?.0).ok());
    let Some(len) = len else {
        return invalid!(
            "expected ranges of the same length on all ranks, found starts {starts:?}, ends {ends:?} and step {step}"
        );
    };
    let dtype = c.opt_dtype("dtype")?.unwrap_or(DType::I64);
    let start = c.per_rank_input(start)?;
    let line = c.iota(len.into(), 0, step, DType::I64)?;
    let y = c.binary(BinaryOp::Add, line, start)?;
    c.cast(y, dtype).map(Some)
}

/// The number of elements of a range, and whether the step leads from its start to its end.
fn range_length(start: i64, end: i64, step: i64) -> Option<(u128, bool)> {
    let span = i128::from(end) - i128::from(start);
    let step = i128::from(step);
    if step == 0 {
        return None;
    }
    Some((span.unsigned_abs().div_ceil(step.unsigned_abs()), span * step >= 0))
}

/// A range of floats. Its number of elements is the declared one. A range of floats with an integer dtype
/// uses the integer parts of its start and its step.
fn float_range(c: &mut OpCall<'_, '_>, start: &CallOperand, step: &CallOperand) -> EmitResult {
    let declared = c.declared_result_type(0)?;
    let (CallOperand::Scalar(step), [len]) = (step, declared.shape.as_slice()) else {
        return unsupported!("the step is a symbolic float");
    };
    let dtype = c.opt_dtype("dtype")?.unwrap_or(dtype::DEFAULT_FLOAT);
    match start {
        _ if dtype.is_float() => affine(c, len.clone(), start, step.as_f64(), dtype),
        CallOperand::Scalar(start) => c.iota(len.clone(), start.as_i64(), step.as_i64(), dtype),
        CallOperand::Dim(_) => {
            let y = c.iota(len.clone(), 0, step.as_i64(), dtype)?;
            c.emit_binary(BinaryOp::Add, &CallOperand::Tensor(y), start, dtype)
        }
        _ => unsupported!("the start is a symbolic float"),
    }
}

/// `start + i * step` in a float dtype, computed in f64.
fn affine(c: &mut OpCall<'_, '_>, len: Dim, start: &CallOperand, step: f64, dtype: DType) -> EmitResult {
    let y = c.iota(len, 0, 1, DType::F64)?;
    let y = c.binary_float(BinaryOp::Mul, y, step)?;
    let y = c.emit_binary(BinaryOp::Add, &CallOperand::Tensor(y), start, DType::F64)?;
    c.cast(y, dtype)
}

/// The first half is counted from the start, the second from the end. Both ends are first rounded to the
/// dtype.
fn linspace(c: &mut OpCall<'_, '_>) -> EmitResult {
    let steps = c.int("steps")?;
    let dtype = c.opt_dtype("dtype")?.unwrap_or(dtype::DEFAULT_FLOAT);
    let first = c.scalar("start")?.convert_to(dtype);
    let end = c.scalar("end")?.convert_to(dtype).as_f64();
    let start = CallOperand::Scalar(Scalar::Float(FloatAttribute(first.as_f64())));
    if steps < 2 {
        let y = affine(c, steps.into(), &start, 0.0, dtype)?;
        return Ok(y);
    }
    let step = (end - first.as_f64()) / (steps - 1) as f64;
    let half = steps / 2;
    let first = affine(c, half.into(), &start, step, dtype)?;
    let back = c.iota((steps - half).into(), half - steps + 1, 1, DType::F64)?;
    c.formula([first, back], |[first, back]| first.concat((back * step + end).cast(dtype), 0))
}

fn eye(c: &mut OpCall<'_, '_>) -> EmitResult {
    let n = c.dim("n")?;
    let m = c.opt_dim("m")?.unwrap_or(n.clone());
    let dtype = c.opt_dtype("dtype")?.unwrap_or(dtype::DEFAULT_FLOAT);
    let y = c.compare_positions((n, m), BinaryOp::Eq, &0.into())?;
    c.cast(y, dtype)
}

fn triangle(c: &mut OpCall<'_, '_>, op: BinaryOp) -> EmitResult {
    let x = c.first_tensor()?;
    let diagonal = c.int_or("diagonal", 0)?;
    c.triangle(x, op, &diagonal.into())
}

/// The rows and columns of the elements of a triangle, by rows. `lower` is the side of the diagonal. The elements of the
/// whole matrix are stored at their numbers among those of the triangle, and all others after them.
fn triangle_positions(c: &mut OpCall<'_, '_>, lower: bool) -> EmitResult {
    let rows = c.dim("row")?;
    let columns = c.dim("col")?;
    let offset = c.int_or("offset", 0)?;
    let dtype = c.opt_dtype("dtype")?.unwrap_or(DType::I64);
    let (Some(n), Some(m)) = (rows.as_const(), columns.as_const()) else {
        return unsupported!("the positions of triangles of symbolic sizes are not supported");
    };
    invalid_if!(n < 0 || m < 0, "expected sizes of 0 or more, found {n} by {m}");
    let total = n.checked_mul(m).filter(|total| *total <= symmc_ir::verify::MAX_EXTENT);
    let Some(total) = total else { return invalid!("expected fewer elements than {n} by {m}") };
    let within = |row: i64| {
        let below = row.saturating_add(offset).saturating_add(i64::from(lower)).clamp(0, m);
        if lower { below } else { m - below }
    };
    let count: i64 = (0..n).map(within).sum();
    let op = if lower { BinaryOp::Le } else { BinaryOp::Ge };
    let is_within = c.compare_positions((rows, columns), op, &offset.into())?;
    let position = c.iota(total.into(), 0, 1, DType::I64)?;
    let found = c.full(Scalar::Int(0), DType::I64, vec![(count + 1).into()])?;
    let target = c.formula([is_within], |[is_within]| {
        let is_within = is_within.reshape(vec![total.into()]);
        let number = is_within.cast(DType::I64).cumulative_sum(0) - 1;
        is_within.select(number, count)
    })?;
    let op = Op::IndexPut { axis: 0, accumulate: false };
    let found = c.emit("index_put", op, &[found, position, target])?;
    c.formula([found], |[found]| {
        let found = found.slice(0, 0, count).unsqueeze(0);
        found.floor_div(m.max(1)).concat(found % m.max(1), 0).cast(dtype)
    })
}
