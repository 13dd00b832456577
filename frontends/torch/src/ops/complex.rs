//! Complex numbers within a program, as rotary embeddings use them.
//!
//! A complex tensor is held as PyTorch stores it: floats with one more axis, of extent 2, for the real and the imaginary
//! part. So `view_as_complex` and `view_as_real` are the same value under another name. Whether a name stands for
//! complex numbers is what the program declares for it. An op on complex operands, or with a complex result, goes by
//! the table here alone; others are refused, as are inputs, outputs and stored tensors that are complex.

use symmc_ir::{BinaryOp, Dim, Emit, ValueId};

use super::{Row, Rule, row};
use crate::call::{Call, Operand};
use crate::dtype;
use crate::effects::{Effect, bare};
use crate::lower::{Lowered, Stop};
use crate::schema::Argument;
use crate::scope::tensor_names;

pub(super) const ROWS: &[Row] = &[
    row("aten.view_as_complex", "(identity)", identity),
    row("aten.view_as_real", "(identity)", identity),
    row("aten.polar", "cos, sin, mul, concat", |c| {
        let (length, angle) = (c.tensor("abs")?, c.tensor("angle")?);
        let (x, y) = (c.unary(symmc_ir::UnaryOp::Cos, angle)?, c.unary(symmc_ir::UnaryOp::Sin, angle)?);
        let (x, y) = (c.binary(BinaryOp::Mul, length, x)?, c.binary(BinaryOp::Mul, length, y)?);
        joined(c, x, y)
    }),
    row("aten.complex", "concat", |c| {
        let (x, y) = (c.tensor("real")?, c.tensor("imag")?);
        joined(c, x, y)
    }),
];

/// Ops that have rows elsewhere for other numbers.
const ALSO_COMPLEX: &[Row] = &[
    row("aten.mul", "mul, sub, add, concat", mul),
    row("aten.add", "add", |c| sum(c, BinaryOp::Add)),
    row("aten.sub", "sub", |c| sum(c, BinaryOp::Sub)),
    row("aten.real", "slice, reshape", |c| part_of_first(c, 0)),
    row("aten.imag", "slice, reshape", |c| part_of_first(c, 1)),
    row("aten.to", "(identity)", converted),
    row("aten._to_copy", "(identity)", converted),
    row("aten.clone", "(identity)", identity),
    row("aten.contiguous", "(identity)", identity),
    row("aten.alias", "(identity)", identity),
    row("aten.detach", "(identity)", identity),
    row("aten._assert_tensor_metadata", "(nothing)", |c| {
        c.ignore_all();
        Ok(())
    }),
    row("aten.unsqueeze", "reshape", |c| {
        let x = c.first()?;
        let axis = c.axis("dim", axes(c, x) + 1)?;
        let y = c.unsqueeze(x, axis)?;
        c.done(y)
    }),
    row("aten.view.default", "reshape", |c| reshape(c, "size")),
    row("aten._unsafe_view", "reshape", |c| reshape(c, "size")),
    row("aten.reshape", "reshape", |c| reshape(c, "shape")),
    row("aten.expand", "expand", expand),
    row("aten.transpose.int", "permute", |c| {
        let x = c.first()?;
        let (a, b) = (c.axis("dim0", axes(c, x))?, c.axis("dim1", axes(c, x))?);
        let mut order: Vec<usize> = (0..c.rank(x)).collect();
        order.swap(a, b);
        let y = c.permute(x, order)?;
        c.done(y)
    }),
    row("aten.slice.Tensor", "slice", |c| {
        let x = c.first()?;
        let axis = c.axis_or("dim", 0, axes(c, x))?;
        let step = c.int_or("step", 1)?;
        let (start, len) = super::pieces::slice_range(c, &c.extent(x, axis), step)?;
        let y = c.slice(x, axis, start, len, step)?;
        c.done(y)
    }),
];

/// Whether an operand or a result of a call is complex.
pub(crate) fn touches(c: &Call<'_, '_>) -> bool {
    let operands = c.node.inputs.iter().flat_map(|i| tensor_names(&i.arg));
    operands.chain(c.node.results().into_iter().flatten()).any(|n| c.lowering.is_complex(n))
}

/// Lowers a call that has complex operands or results.
pub(crate) fn lower(c: &mut Call<'_, '_>, effect: &Effect) -> Lowered {
    let writes = matches!(effect, Effect::Writes(_) | Effect::Resizes | Effect::Unclear);
    let Some(rule) = find(&c.node.target).filter(|_| !writes) else {
        let known: Vec<&str> = ROWS.iter().chain(ALSO_COMPLEX).map(|r| r.target).collect();
        return Err(Stop::Broken(format!(
            "it works on complex numbers: expected one of {}, and not in place",
            known.join(", ")
        )));
    };
    rule(c)?;
    c.all_read()?;
    c.separate_results()
}

fn find(target: &str) -> Option<Rule> {
    let target = bare(target);
    let of = |name: &str| ROWS.iter().chain(ALSO_COMPLEX).find(|r| r.target == name).map(|r| r.rule);
    of(target).or_else(|| of(target.rsplit_once('.')?.0))
}

/// The number of axes of a complex tensor.
fn axes(c: &Call<'_, '_>, x: ValueId) -> usize {
    c.rank(x).saturating_sub(1)
}

/// The real part (0) or the imaginary part (1).
fn part(c: &mut Call<'_, '_>, x: ValueId, which: i64) -> Lowered<ValueId> {
    let axis = axes(c, x);
    let one = c.slice(x, axis, which.into(), 1.into(), 1)?;
    c.drop_axis(one, axis)
}

fn joined(c: &mut Call<'_, '_>, real: ValueId, imaginary: ValueId) -> Lowered {
    let axis = c.rank(real);
    let parts = [c.unsqueeze(real, axis)?, c.unsqueeze(imaginary, axis)?];
    let z = c.concat(&parts, axis)?;
    c.done(z)
}

fn identity(c: &mut Call<'_, '_>) -> Lowered {
    let x = c.first()?;
    c.done(x)
}

fn part_of_first(c: &mut Call<'_, '_>, which: i64) -> Lowered {
    let x = c.first()?;
    let y = part(c, x, which)?;
    c.done(y)
}

/// A conversion to the dtype that the operand has.
fn converted(c: &mut Call<'_, '_>) -> Lowered {
    c.ignore(&["copy"]);
    let x = c.first()?;
    let own = c.dtype(x);
    match c.get("dtype") {
        None => c.done(x),
        Some(Argument::ScalarType(code)) if dtype::part_of_complex(*code) == Some(own) => c.done(x),
        Some(other) => {
            Err(Stop::Broken(format!("expected complex numbers of {own}, found {}", other.describe())))
        }
    }
}

/// The dtype that the result declares for its parts.
fn declared(c: &Call<'_, '_>) -> Lowered<symmc_ir::DType> {
    let Some(name) = c.result_names().first().copied().flatten() else {
        return Err(Stop::Broken("expected a result, found none".into()));
    };
    Ok(c.lowering.held(name)?.dtype)
}

fn is_complex(c: &Call<'_, '_>, name: &str) -> bool {
    matches!(c.get(name), Some(Argument::Tensor(n)) if c.lowering.is_complex(n))
}

/// `(a + bi)(d + ei) = ad - be + (ae + bd)i`; a real factor multiplies both parts.
fn mul(c: &mut Call<'_, '_>) -> Lowered {
    let dtype = declared(c)?;
    let (x, y) = (c.operand("self")?, c.operand("other")?);
    let (z, factor) = match (is_complex(c, "self"), is_complex(c, "other"), x, y) {
        (true, true, Operand::Tensor(x), Operand::Tensor(y)) => {
            let (x, y) = (c.cast(x, dtype)?, c.cast(y, dtype)?);
            let (a, b) = (part(c, x, 0)?, part(c, x, 1)?);
            let (d, e) = (part(c, y, 0)?, part(c, y, 1)?);
            let (ad, be) = (c.binary(BinaryOp::Mul, a, d)?, c.binary(BinaryOp::Mul, b, e)?);
            let (ae, bd) = (c.binary(BinaryOp::Mul, a, e)?, c.binary(BinaryOp::Mul, b, d)?);
            let (real, imaginary) = (c.binary(BinaryOp::Sub, ad, be)?, c.binary(BinaryOp::Add, ae, bd)?);
            return joined(c, real, imaginary);
        }
        (true, _, Operand::Tensor(z), factor) | (_, true, factor, Operand::Tensor(z)) => (z, factor),
        _ => return Err(Stop::Broken("expected a complex factor, found none".into())),
    };
    let factor = match factor {
        Operand::Tensor(v) => Operand::Tensor(c.unsqueeze(v, c.rank(v))?),
        number => number,
    };
    let y = c.apply(BinaryOp::Mul, &Operand::Tensor(z), &factor, dtype)?;
    c.done(y)
}

/// A sum or a difference of two complex tensors.
fn sum(c: &mut Call<'_, '_>, op: BinaryOp) -> Lowered {
    if !(is_complex(c, "self") && is_complex(c, "other")) {
        return Err(Stop::Broken("expected two complex tensors, found a real operand".into()));
    }
    let dtype = declared(c)?;
    let (x, y) = (c.tensor("self")?, c.tensor("other")?);
    let y = c.apply(op, &Operand::Tensor(x), &Operand::Tensor(y), dtype)?;
    c.done(y)
}

fn reshape(c: &mut Call<'_, '_>, name: &str) -> Lowered {
    let x = c.first()?;
    let own = c.shape(x);
    let count = own.iter().take(axes(c, x)).cloned().fold(Dim::from(1), |a, b| a * b);
    let mut shape = c.filled(c.dims(name)?, &count)?;
    shape.push(2.into());
    let y = c.reshape(x, shape)?;
    c.done(y)
}

/// -1 keeps the extent of `x`.
fn expand(c: &mut Call<'_, '_>) -> Lowered {
    c.ignore(&["implicit"]);
    let x = c.first()?;
    let own = c.shape(x);
    let mut shape = c.dims("size")?;
    shape.push(2.into());
    let Some(new) = shape.len().checked_sub(own.len()) else {
        return Err(Stop::Broken(format!("expected {} axes or more, found {}", axes(c, x), shape.len() - 1)));
    };
    for (d, o) in shape.iter_mut().skip(new).zip(own) {
        if d.as_const() == Some(-1) {
            *d = o;
        }
    }
    let y = c.expand(x, shape)?;
    c.done(y)
}
