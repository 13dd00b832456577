//! Complex numbers, as rotary embeddings and Fourier transforms use them.
//!
//! A complex tensor is held as PyTorch stores it: floats with one more axis, of extent 2, for the real and the imaginary
//! part. So `view_as_complex` and `view_as_real` are the same value under another name, and inputs, outputs and stored
//! tensors that are complex are floats with that axis. Whether a name stands for complex numbers is what the program
//! declares for it. An op on complex operands, or with a complex result, goes by the tables here alone; others are refused.
//!
//! - What moves, adds up or fills does with either part what it does with other numbers ([`by_parts`]).
//! - Products, and what is made of them, have formulas ([`arithmetic`]).
//! - Fourier transforms are products with matrices of roots of one ([`fourier`]).

mod arithmetic;
mod by_parts;
mod fourier;
mod parts;

use symmc_import::Emit;
use symmc_ir::{BinaryOp, Dim, UnaryOp};

use super::{Row, Rule, row, row_of_results};
use crate::call::Call;
use crate::lower::{Emitted, Lowered, Stop};
use crate::scope::tensor_names;
use crate::sharing::entangle;

pub(super) use fourier::ROWS as TRANSFORMS;
use parts::{axes, declared, done, is_complex, is_complex_result, joined, of_first, part};

pub(super) const ROWS: &[Row] = &[
    row("aten.view_as_complex", "(identity)", identity),
    row("aten.view_as_real", "(identity)", identity),
    row_of_results("aten.polar", "cos, sin, mul, concat", |c| {
        let (length, angle) = (c.tensor("abs")?, c.tensor("angle")?);
        let (x, y) = (c.unary(UnaryOp::Cos, angle)?, c.unary(UnaryOp::Sin, angle)?);
        let (x, y) = (c.binary(BinaryOp::Mul, length, x)?, c.binary(BinaryOp::Mul, length, y)?);
        done(c, x, y)
    }),
    row_of_results("aten.complex", "concat", |c| {
        let (x, y) = (c.tensor("real")?, c.tensor("imag")?);
        done(c, x, y)
    }),
];

/// Ops that have rows elsewhere for other numbers.
const ALSO_COMPLEX: &[Row] = &[
    row_of_results("aten.mul", "mul, sub, add, concat", arithmetic::mul),
    row_of_results("aten.div.Tensor", "mul, div, concat", arithmetic::div),
    row_of_results("aten.add", "add", |c| arithmetic::sum(c, BinaryOp::Add)),
    row_of_results("aten.sub", "sub", |c| arithmetic::sum(c, BinaryOp::Sub)),
    row("aten.neg", "neg", |c| {
        let x = c.first()?;
        c.unary(UnaryOp::Neg, x)
    }),
    row_of_results("aten.reciprocal", "mul, div, concat", arithmetic::reciprocal),
    row("aten.abs", "mul, add, sqrt", arithmetic::abs),
    row("aten.sgn", "mul, add, sqrt, div", arithmetic::sgn),
    row_of_results("aten.exp", "exp, cos, sin, mul, concat", arithmetic::exp),
    row_of_results("aten.square", "mul, sub, add, concat", arithmetic::square),
    row("aten.conj", "mul", conjugate),
    row("aten._conj", "mul", conjugate),
    row("aten.conj_physical", "mul", conjugate),
    row("aten._conj_physical", "mul", conjugate),
    row("aten.resolve_conj", "(identity)", identity),
    row("aten.resolve_neg", "(identity)", identity),
    row_of_results("aten.mm", "matmul, sub, add, concat", |c| arithmetic::product(c, "mat2")),
    row_of_results("aten.bmm", "matmul, sub, add, concat", |c| arithmetic::product(c, "mat2")),
    row_of_results("aten.mv", "matmul, sub, add, concat", |c| arithmetic::product(c, "vec")),
    row_of_results("aten.dot", "matmul, sub, add, concat", |c| arithmetic::product(c, "tensor")),
    row_of_results("aten.matmul", "matmul, sub, add, concat", |c| arithmetic::product(c, "other")),
    row("aten.real", "slice, reshape", |c| part_of_first(c, 0)),
    row("aten.imag", "slice, reshape", |c| part_of_first(c, 1)),
    row_of_results("aten.to", "cast", converted),
    row_of_results("aten._to_copy", "cast", converted),
    row_of_results("prims.convert_element_type", "cast", converted),
    row("aten.copy", "cast, expand", copied),
    row("aten.clone", "(identity)", identity),
    row("aten.contiguous", "(identity)", identity),
    row("aten.alias", "(identity)", identity),
    row("aten.detach", "(identity)", identity),
    row("aten.lift_fresh_copy", "(identity)", identity),
    row_of_results("aten._assert_tensor_metadata", "(nothing)", |c| {
        c.ignore_all();
        Ok(())
    }),
    row("aten.unsqueeze", "reshape", |c| {
        let x = c.first()?;
        let axis = c.axis("dim", axes(c, x) + 1)?;
        c.unsqueeze(x, axis)
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
        c.permute(x, order)
    }),
    row("aten.slice.Tensor", "slice", |c| {
        let x = c.first()?;
        let axis = c.axis_or("dim", 0, axes(c, x))?;
        let step = c.int_or("step", 1)?;
        let (start, len) = super::pieces::slice_range(c, &c.extent(x, axis), step)?;
        c.slice(x, axis, start, len, step)
    }),
];

pub(crate) fn touches(c: &Call<'_, '_>) -> bool {
    let operands = c.node.inputs.iter().flat_map(|i| tensor_names(&i.arg));
    operands.chain(c.node.results().into_iter().flatten()).any(|n| c.lowering.is_complex(n))
}

/// Applies the rule that an op has for complex numbers; `plain` is its rule for others.
pub(crate) fn apply(c: &mut Call<'_, '_>, target: &str, plain: Option<Rule>) -> Lowered {
    let done = match (find(target), plain) {
        (Some(rule), _) => rule.apply(c),
        (None, Some(plain)) if by_parts::knows(target) => by_parts::lower(c, target, plain),
        _ => return Err(unknown()),
    };
    // An opaque op has results of the IR's types.
    done.map_err(|e| match e {
        Stop::Opaque(why) => Stop::Broken(format!("it works on complex numbers: {why}")),
        other => other,
    })
}

/// Why an op without a rule for complex numbers is refused.
pub(crate) fn unknown() -> Stop {
    let known: Vec<&str> = ROWS.iter().chain(ALSO_COMPLEX).map(|r| r.name).collect();
    let known = [&known[..], by_parts::MOVING, by_parts::FILLING].concat().join(", ");
    Stop::Broken(format!(
        "it works on complex numbers: expected one of {known}, or of those that write what these give"
    ))
}

fn find(target: &str) -> Option<Rule> {
    let all = || ROWS.iter().chain(TRANSFORMS).chain(ALSO_COMPLEX);
    let of = |name: &str| all().find(|r| r.name == name).map(|r| r.rule);
    of(target).or_else(|| of(target.rsplit_once('.')?.0))
}

fn identity(c: &mut Call<'_, '_>) -> Emitted {
    c.first()
}

fn part_of_first(c: &mut Call<'_, '_>, which: i64) -> Emitted {
    let x = c.first()?;
    part(c, x, which)
}

/// The imaginary part times -1: both parts times 1 and -1.
fn conjugate(c: &mut Call<'_, '_>) -> Emitted {
    let x = c.first()?;
    let signs = c.iota(2.into(), 1, -2, symmc_ir::DType::I64)?;
    let signs = c.cast(signs, c.dtype(x))?;
    let y = c.binary(BinaryOp::Mul, x, signs)?;
    entangle(c, y, x);
    Ok(y)
}

/// What another tensor holds, as the contents of one: its type and extents stay.
fn copied(c: &mut Call<'_, '_>) -> Emitted {
    let (to, from) = (c.tensor("self")?, c.tensor("src")?);
    let value = match (of_first(c), is_complex(c, "src")) {
        (true, false) => {
            let zero = c.full(symmc_ir::Scalar::Int(0), c.dtype(from), c.shape(from))?;
            joined(c, from, zero)?
        }
        (false, true) => part(c, from, 0)?,
        _ => from,
    };
    let value = c.cast(value, c.dtype(to))?;
    c.expand(value, c.shape(to))
}

/// A conversion: real numbers have an imaginary part of 0, and complex ones lose theirs where they become real.
fn converted(c: &mut Call<'_, '_>) -> Lowered {
    c.ignore(&["copy", "dtype", "other"]);
    let x = c.first()?;
    let to = declared(c)?;
    match (of_first(c), is_complex_result(c)) {
        (true, true) => {
            let y = c.cast(x, to.dtype)?;
            c.done(y)
        }
        (true, false) => {
            let y = part(c, x, 0)?;
            let y = c.cast(y, to.dtype)?;
            c.done(y)
        }
        (false, _) => {
            let y = c.cast(x, to.dtype)?;
            let zero = c.full(symmc_ir::Scalar::Int(0), to.dtype, c.shape(y))?;
            done(c, y, zero)
        }
    }
}

fn reshape(c: &mut Call<'_, '_>, name: &str) -> Emitted {
    let x = c.first()?;
    let own = c.shape(x);
    let count = own.iter().take(axes(c, x)).cloned().fold(Dim::from(1), |a, b| a * b);
    let mut shape = c.filled(c.dims(name)?, &count)?;
    shape.push(2.into());
    c.reshape(x, shape)
}

/// -1 keeps the extent of `x`.
fn expand(c: &mut Call<'_, '_>) -> Emitted {
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
    c.expand(x, shape)
}
