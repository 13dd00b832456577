//! Tensors from nothing or from the shape of another: fills, ranges, triangles.

use symmc_import::Emit;
use symmc_ir::{BinaryOp, DType, Dim, Float, Scalar, ValueId};

use super::{Row, row};
use crate::call::{Call, Operand};
use crate::dtype;
use crate::lower::{Emitted, Lowered, Stop};

pub(super) const ROWS: &[Row] = &[
    row("aten.full", "full", |c| filled(c, Like::Size, None)),
    row("aten.zeros", "full", |c| filled(c, Like::Size, Some(0))),
    row("aten.ones", "full", |c| filled(c, Like::Size, Some(1))),
    row("aten.empty", "full of 0", |c| filled(c, Like::Size, Some(0))),
    row("aten.empty_permuted", "full of 0", laid_out),
    row("aten.empty_strided", "full of 0", laid_out),
    row("aten.full_like", "full", |c| filled(c, Like::Operand, None)),
    row("aten.zeros_like", "full", |c| filled(c, Like::Operand, Some(0))),
    row("aten.ones_like", "full", |c| filled(c, Like::Operand, Some(1))),
    row("aten.empty_like", "full of 0", |c| filled(c, Like::Operand, Some(0))),
    row("aten.new_full", "full", |c| filled(c, Like::Both, None)),
    row("aten.new_zeros", "full", |c| filled(c, Like::Both, Some(0))),
    row("aten.new_ones", "full", |c| filled(c, Like::Both, Some(1))),
    row("aten.new_empty", "full of 0", |c| filled(c, Like::Both, Some(0))),
    row("aten.new_empty_strided", "full of 0", |c| {
        c.ignore(&["stride"]);
        filled(c, Like::Both, Some(0))
    }),
    row("aten.fill", "full", |c| {
        let x = c.first()?;
        let value = c.operand("value")?;
        let value = c.as_tensor(&value, c.dtype(x))?;
        c.expand(value, c.shape(x))
    }),
    row("aten.zero", "full", |c| {
        let x = c.first()?;
        c.full(Scalar::Int(0), c.dtype(x), c.shape(x))
    }),
    row("aten.scalar_tensor", "full", |c| {
        let value = c.operand("s")?;
        let dtype = c.opt_dtype("dtype")?.unwrap_or(dtype::DEFAULT_FLOAT);
        c.as_tensor(&value, dtype)
    }),
    row("aten.arange", "iota", arange),
    row("prims.iota", "iota", |c| {
        let (start, step) = (c.int_or("start", 0)?, c.int_or("step", 1)?);
        let len = c.dim("length")?;
        let dtype = c.opt_dtype("dtype")?.unwrap_or(DType::I64);
        c.iota(len, start, step, dtype)
    }),
    row("aten.linspace", "iota, mul, add", linspace),
    row("aten.eye", "eq of iotas", eye),
    row("aten.tril", "select", |c| triangle(c, BinaryOp::Le)),
    row("aten.triu", "select", |c| triangle(c, BinaryOp::Ge)),
];

/// Where shape and dtype of a new tensor come from.
#[derive(Clone, Copy, PartialEq)]
enum Like {
    Size,
    Operand,
    /// The shape from `size`, the dtype from the first operand.
    Both,
}

/// How a tensor lies in memory is not part of its value.
fn laid_out(c: &mut Call<'_, '_>) -> Emitted {
    c.ignore(&["physical_layout", "stride"]);
    filled(c, Like::Size, Some(0))
}

fn filled(c: &mut Call<'_, '_>, like: Like, value: Option<i64>) -> Emitted {
    let value = match value {
        Some(i) => Operand::Scalar(Scalar::Int(i)),
        None => c.operand("fill_value")?,
    };
    let (shape, default) = match like {
        Like::Size => {
            let default = match (&value, c.get("fill_value").is_some()) {
                (Operand::Scalar(s), true) => dtype::of_scalar(*s),
                (Operand::Dim(_), true) => DType::I64,
                (Operand::Tensor(v), true) if !c.dtype(*v).is_float() => DType::I64,
                _ => dtype::DEFAULT_FLOAT,
            };
            (c.dims("size")?, default)
        }
        Like::Operand => {
            let x = c.first()?;
            (c.shape(x), c.dtype(x))
        }
        Like::Both => {
            let x = c.first()?;
            (c.dims("size")?, c.dtype(x))
        }
    };
    let dtype = c.opt_dtype("dtype")?.unwrap_or(default);
    let y = match value {
        Operand::Scalar(s) => c.full(s, dtype, shape)?,
        other => {
            let one = c.as_tensor(&other, dtype)?;
            c.expand(one, shape)?
        }
    };
    Ok(y)
}

/// `start + i * step` below `end`, or above it for a negative step.
fn arange(c: &mut Call<'_, '_>) -> Emitted {
    if let Some(y) = range_by_rank(c)? {
        return Ok(y);
    }
    let start = c.opt_operand("start")?.unwrap_or(Operand::Scalar(Scalar::Int(0)));
    let step = c.opt_operand("step")?.unwrap_or(Operand::Scalar(Scalar::Int(1)));
    let end = c.operand("end")?;
    let whole = |o: &Operand| match o {
        Operand::Scalar(Scalar::Int(i)) => Some(Dim::from(*i)),
        Operand::Dim(d) => Some(d.clone()),
        _ => None,
    };
    let (Some(first), Some(last), Some(by)) = (whole(&start), whole(&end), whole(&step)) else {
        return float_range(c, &start, &step);
    };
    let dtype = c.opt_dtype("dtype")?.unwrap_or(DType::I64);
    let Some(by) = by.as_const().filter(|s| *s != 0) else {
        return Err(Stop::Opaque("its step is symbolic or zero".into()));
    };
    c.range(&first, &last, by, dtype)
}

/// A range of integers that starts elsewhere on each rank and has one length on all.
fn range_by_rank(c: &mut Call<'_, '_>) -> Lowered<Option<ValueId>> {
    let Some((start, starts)) = c.ints_by_rank("start") else { return Ok(None) };
    let step = c.int_or("step", 1)?;
    let ends = match c.ints_by_rank("end") {
        Some((_, ends)) => ends.to_vec(),
        None => vec![c.int("end")?; starts.len()],
    };
    let len = |start: i64, end: i64| {
        let span = i128::from(end) - i128::from(start);
        let step = i128::from(step);
        if step == 0 {
            None
        } else {
            Some((span.unsigned_abs().div_ceil(step.unsigned_abs()), span * step >= 0))
        }
    };
    let lengths: Option<Vec<_>> = starts.iter().zip(&ends).map(|(s, e)| len(*s, *e)).collect();
    let same =
        lengths.filter(|l| l.iter().all(|(_, forward)| *forward) && l.windows(2).all(|w| w[0] == w[1]));
    let len = same.and_then(|l| i64::try_from(l.first()?.0).ok());
    let Some(len) = len else {
        return Err(Stop::Broken(format!(
            "expected ranges of one length on all ranks, found starts {starts:?}, ends {ends:?} and step {step}"
        )));
    };
    let dtype = c.opt_dtype("dtype")?.unwrap_or(DType::I64);
    let start = c.number_of_rank(start)?;
    let line = c.iota(len.into(), 0, step, DType::I64)?;
    let y = c.binary(BinaryOp::Add, line, start)?;
    c.cast(y, dtype).map(Some)
}

/// A range of floats has as many elements as the program declares. One of an integer dtype goes from the integer part of
/// its start by that of its step.
fn float_range(c: &mut Call<'_, '_>, start: &Operand, step: &Operand) -> Emitted {
    let declared = c.declared(0)?;
    let (Operand::Scalar(step), [len]) = (step, declared.shape.as_slice()) else {
        return Err(Stop::Opaque("its step is a symbolic float".into()));
    };
    let dtype = c.opt_dtype("dtype")?.unwrap_or(dtype::DEFAULT_FLOAT);
    let y = match start {
        _ if dtype.is_float() => affine(c, len.clone(), start, step.as_f64(), dtype)?,
        Operand::Scalar(start) => c.iota(len.clone(), start.as_i64(), step.as_i64(), dtype)?,
        Operand::Dim(_) => {
            let y = c.iota(len.clone(), 0, step.as_i64(), dtype)?;
            c.apply(BinaryOp::Add, &Operand::Tensor(y), start, dtype)?
        }
        _ => return Err(Stop::Opaque("its start is a symbolic float".into())),
    };
    Ok(y)
}

/// `start + i * step` of a float dtype, computed in f64.
fn affine(c: &mut Call<'_, '_>, len: Dim, start: &Operand, step: f64, dtype: DType) -> Emitted {
    let y = c.iota(len, 0, 1, DType::F64)?;
    let y = c.with_float(BinaryOp::Mul, y, step)?;
    let y = c.apply(BinaryOp::Add, &Operand::Tensor(y), start, DType::F64)?;
    c.cast(y, dtype)
}

/// The first half is counted from the start, the second from the end; both are values of the dtype.
fn linspace(c: &mut Call<'_, '_>) -> Emitted {
    let steps = c.int("steps")?;
    let dtype = c.opt_dtype("dtype")?.unwrap_or(dtype::DEFAULT_FLOAT);
    let (first, end) = (c.scalar("start")?.converted(dtype), c.scalar("end")?.converted(dtype).as_f64());
    let start = Operand::Scalar(Scalar::Float(Float(first.as_f64())));
    if steps < 2 {
        let y = affine(c, steps.into(), &start, 0.0, dtype)?;
        return Ok(y);
    }
    let step = (end - first.as_f64()) / (steps - 1) as f64;
    let half = steps / 2;
    let first = affine(c, half.into(), &start, step, dtype)?;
    let back = c.iota((steps - half).into(), half - steps + 1, 1, DType::F64)?;
    let back = c.with_float(BinaryOp::Mul, back, step)?;
    let second = c.with_float(BinaryOp::Add, back, end)?;
    let second = c.cast(second, dtype)?;
    c.concat(&[first, second], 0)
}

fn eye(c: &mut Call<'_, '_>) -> Emitted {
    let n = c.dim("n")?;
    let m = c.opt_dim("m")?.unwrap_or(n.clone());
    let dtype = c.opt_dtype("dtype")?.unwrap_or(dtype::DEFAULT_FLOAT);
    let y = c.compare_positions((n, m), BinaryOp::Eq, &0.into())?;
    c.cast(y, dtype)
}

fn triangle(c: &mut Call<'_, '_>, op: BinaryOp) -> Emitted {
    let x = c.first()?;
    let diagonal = c.int_or("diagonal", 0)?;
    c.triangle(x, op, &diagonal.into())
}
