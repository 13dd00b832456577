//! Arithmetic of complex numbers: what the parts of a result are, of the parts of the operands.

use symmc_import::Emit;
use symmc_ir::{BinaryOp, DType, Float, Scalar, UnaryOp, ValueId};

use super::by_parts;
use super::parts::{declared, done, is_complex, joined, of_first, part, parts};
use crate::call::{Call, Operand, Rule};
use crate::lower::{Emitted, Lowered, Stop};
use crate::ops::elementwise::scaled;
use crate::schema::Argument;

/// An operand: its real part and, where it is complex, its imaginary part.
struct Number {
    real: Operand,
    imaginary: Option<Operand>,
}

fn number(c: &mut Call<'_, '_>, name: &str) -> Lowered<Number> {
    if let Some(Argument::Complex(a, b)) = c.get(name) {
        let of = |x: f64| Operand::Scalar(Scalar::Float(Float(x)));
        return Ok(Number { real: of(*a), imaginary: Some(of(*b)) });
    }
    if !is_complex(c, name) {
        return Ok(Number { real: c.operand(name)?, imaginary: None });
    }
    let z = c.tensor(name)?;
    let (a, b) = parts(c, z)?;
    Ok(Number { real: Operand::Tensor(a), imaginary: Some(Operand::Tensor(b)) })
}

/// `(a + bi)(d + ei) = ad - be + (ae + bd)i`; a real factor multiplies both parts.
pub(super) fn mul(c: &mut Call<'_, '_>) -> Lowered {
    let dtype = declared(c)?.dtype;
    if let Some((z, factor)) = with_real(c)? {
        let y = c.apply(BinaryOp::Mul, &Operand::Tensor(z), &factor, dtype)?;
        return c.done(y);
    }
    let (x, y) = (number(c, "self")?, number(c, "other")?);
    let mut times = |x: &Operand, y: &Operand| c.apply(BinaryOp::Mul, x, y, dtype);
    let (real, imaginary) = match (&x.imaginary, &y.imaginary) {
        (Some(b), Some(e)) => {
            let (ad, be) = (times(&x.real, &y.real)?, times(b, e)?);
            let (ae, bd) = (times(&x.real, e)?, times(b, &y.real)?);
            (c.binary(BinaryOp::Sub, ad, be)?, c.binary(BinaryOp::Add, ae, bd)?)
        }
        (Some(b), None) => (times(&x.real, &y.real)?, times(b, &y.real)?),
        (None, Some(e)) => (times(&x.real, &y.real)?, times(&x.real, e)?),
        (None, None) => return Err(Stop::Broken("expected a complex factor, found none".into())),
    };
    done(c, real, imaginary)
}

/// A complex tensor and a real operand of both of its parts, if these are the operands of a product.
fn with_real(c: &mut Call<'_, '_>) -> Lowered<Option<(ValueId, Operand)>> {
    let (z, factor) = match (is_complex(c, "self"), is_complex(c, "other")) {
        (true, false) => ("self", "other"),
        (false, true) => ("other", "self"),
        _ => return Ok(None),
    };
    if matches!(c.get(factor), Some(Argument::Complex(..))) {
        return Ok(None);
    }
    let factor = match c.operand(factor)? {
        Operand::Tensor(v) => Operand::Tensor(c.unsqueeze(v, c.rank(v))?),
        number => number,
    };
    Ok(Some((c.tensor(z)?, factor)))
}

/// A sum or a difference. A real number, and a real tensor, has an imaginary part of 0.
pub(super) fn sum(c: &mut Call<'_, '_>, op: BinaryOp) -> Lowered {
    if matches!(c.get("other"), Some(Argument::Tensor(_))) {
        let rule = match op {
            BinaryOp::Sub => Rule::Results(|c| scaled(c, BinaryOp::Sub)),
            _ => Rule::Results(|c| scaled(c, BinaryOp::Add)),
        };
        return by_parts::apply(c, rule);
    }
    let z = c.tensor("self")?;
    let Some(Argument::Tensor(name)) = c.get("self") else {
        return Err(Stop::Broken("expected a tensor as `self`, found another".into()));
    };
    let (mut a, mut b) = match c.lowering.is_complex(name) {
        true => parts(c, z)?,
        false => (z, c.full(Scalar::Int(0), c.dtype(z), c.shape(z))?),
    };
    let dtype = declared(c)?.dtype;
    let other = number(c, "other")?;
    if c.float_or("alpha", 1.0)? != 1.0 {
        return Err(Stop::Opaque("`alpha` is a number that is not 1".into()));
    }
    a = c.apply(op, &Operand::Tensor(a), &other.real, dtype)?;
    b = match other.imaginary {
        Some(imaginary) => c.apply(op, &Operand::Tensor(b), &imaginary, dtype)?,
        None => c.cast(b, dtype)?,
    };
    done(c, a, b)
}

/// The squares of both parts together; in f64, where no square of f32 overflows.
fn squares(c: &mut Call<'_, '_>, a: ValueId, b: ValueId) -> Emitted {
    let (a, b) = (c.cast(a, DType::F64)?, c.cast(b, DType::F64)?);
    let (a, b) = (c.binary(BinaryOp::Mul, a, a)?, c.binary(BinaryOp::Mul, b, b)?);
    c.binary(BinaryOp::Add, a, b)
}

/// `x / (d + ei) = x (d - ei) / (d² + e²)`; a real divisor divides both parts.
pub(super) fn div(c: &mut Call<'_, '_>) -> Lowered {
    let dtype = declared(c)?.dtype;
    if is_complex(c, "self")
        && let Some((z, divisor)) = with_real(c)?
    {
        let y = c.apply(BinaryOp::Div, &Operand::Tensor(z), &divisor, dtype)?;
        return c.done(y);
    }
    let (x, y) = (number(c, "self")?, number(c, "other")?);
    let wide = DType::F64;
    let (d, e) = (c.as_tensor(&y.real, wide)?, c.as_tensor(&y.imaginary.unwrap_or(ZERO), wide)?);
    let (a, b) = (c.as_tensor(&x.real, wide)?, c.as_tensor(&x.imaginary.unwrap_or(ZERO), wide)?);
    quotient(c, (a, b), (d, e), dtype)
}

const ZERO: Operand = Operand::Scalar(Scalar::Int(0));

fn quotient(
    c: &mut Call<'_, '_>,
    (a, b): (ValueId, ValueId),
    (d, e): (ValueId, ValueId),
    dtype: DType,
) -> Lowered {
    let length = squares(c, d, e)?;
    let (ad, be) = (c.binary(BinaryOp::Mul, a, d)?, c.binary(BinaryOp::Mul, b, e)?);
    let (bd, ae) = (c.binary(BinaryOp::Mul, b, d)?, c.binary(BinaryOp::Mul, a, e)?);
    let (real, imaginary) = (c.binary(BinaryOp::Add, ad, be)?, c.binary(BinaryOp::Sub, bd, ae)?);
    let mut all = Vec::with_capacity(2);
    for part in [real, imaginary] {
        let part = c.binary(BinaryOp::Div, part, length)?;
        all.push(c.cast(part, dtype)?);
    }
    done(c, all[0], all[1])
}

pub(super) fn reciprocal(c: &mut Call<'_, '_>) -> Lowered {
    let z = c.first()?;
    let dtype = c.dtype(z);
    let z = c.cast(z, DType::F64)?;
    let divisor = parts(c, z)?;
    let one = c.full(Scalar::Int(1), DType::F64, vec![])?;
    let zero = c.full(Scalar::Int(0), DType::F64, vec![])?;
    quotient(c, (one, zero), divisor, dtype)
}

/// `|a + bi| = √(a² + b²)`.
pub(super) fn abs(c: &mut Call<'_, '_>) -> Emitted {
    let z = c.first()?;
    let (a, b) = parts(c, z)?;
    let y = squares(c, a, b)?;
    let y = c.unary(UnaryOp::Sqrt, y)?;
    c.cast(y, c.dtype(z))
}

/// `z / |z|`, and 0 for 0.
pub(super) fn sgn(c: &mut Call<'_, '_>) -> Emitted {
    let z = c.first()?;
    let (a, b) = parts(c, z)?;
    let length = squares(c, a, b)?;
    let length = c.unary(UnaryOp::Sqrt, length)?;
    let length = c.unsqueeze(length, c.rank(length))?;
    let wide = c.cast(z, DType::F64)?;
    let y = c.binary(BinaryOp::Div, wide, length)?;
    let zero = c.full(Scalar::Int(0), DType::F64, vec![])?;
    let is_zero = c.with_scalar(BinaryOp::Eq, length, Scalar::Int(0))?;
    let y = c.select(is_zero, zero, y)?;
    c.cast(y, c.dtype(z))
}

/// `e^(a + bi) = e^a (cos b + i sin b)`.
pub(super) fn exp(c: &mut Call<'_, '_>) -> Lowered {
    let z = c.first()?;
    let (length, angle) = (part(c, z, 0)?, part(c, z, 1)?);
    let length = c.unary(UnaryOp::Exp, length)?;
    let (x, y) = (c.unary(UnaryOp::Cos, angle)?, c.unary(UnaryOp::Sin, angle)?);
    let (x, y) = (c.binary(BinaryOp::Mul, length, x)?, c.binary(BinaryOp::Mul, length, y)?);
    done(c, x, y)
}

pub(super) fn square(c: &mut Call<'_, '_>) -> Lowered {
    let z = c.first()?;
    let (a, b) = parts(c, z)?;
    let (aa, bb, ab) =
        (c.binary(BinaryOp::Mul, a, a)?, c.binary(BinaryOp::Mul, b, b)?, c.binary(BinaryOp::Mul, a, b)?);
    let (real, imaginary) = (c.binary(BinaryOp::Sub, aa, bb)?, c.binary(BinaryOp::Add, ab, ab)?);
    done(c, real, imaginary)
}

/// A product of matrices or vectors.
pub(super) fn product(c: &mut Call<'_, '_>, other: &str) -> Lowered {
    let dtype = declared(c)?.dtype;
    let mut both = Vec::with_capacity(2);
    for (name, of) in [("self", c.first()?), (other, c.tensor(other)?)] {
        let complex = if name == "self" { of_first(c) } else { is_complex(c, name) };
        let x = c.cast(of, dtype)?;
        both.push(if complex { parts(c, x).map(|(a, b)| (a, Some(b)))? } else { (x, None) });
    }
    let ((a, b), (d, e)) = (both[0], both[1]);
    let real = c.product(a, d)?;
    let imaginary = match (b, e) {
        (Some(b), Some(e)) => {
            let (be, ae, bd) = (c.product(b, e)?, c.product(a, e)?, c.product(b, d)?);
            let real = c.binary(BinaryOp::Sub, real, be)?;
            let imaginary = c.binary(BinaryOp::Add, ae, bd)?;
            let z = joined(c, real, imaginary)?;
            return c.done(z);
        }
        (Some(b), None) => c.product(b, d)?,
        (None, Some(e)) => c.product(a, e)?,
        (None, None) => return Err(Stop::Broken("expected a complex factor, found none".into())),
    };
    done(c, real, imaginary)
}
