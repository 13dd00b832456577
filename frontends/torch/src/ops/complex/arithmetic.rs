//! Arithmetic of complex numbers, by formulas for the components of the result.

use symmc_import::{Emit, EmitFormulas, RuleCall, invalid, unsupported_if};
use symmc_ir::{BinaryOp, DType, FloatAttribute, Scalar, ValueId};

use super::components::{
    components_of, declared_component_type, is_complex, is_first_complex, join_components,
    set_complex_result, set_formula_result, split_components,
};
use super::per_component;
use crate::call::{CallOperand, OpCall, OpRule};
use crate::lower::{EmitResult, RuleResult, Term};
use crate::ops::elementwise::{add_scaled, formula};
use crate::schema::Argument;

/// An operand: its real part and, if it is complex, its imaginary part.
struct ComplexOperand {
    real: CallOperand,
    imaginary: Option<CallOperand>,
}

fn complex_operand(c: &mut OpCall<'_, '_>, name: &str) -> RuleResult<ComplexOperand> {
    if let Some(Argument::Complex(a, b)) = c.get(name) {
        let real = CallOperand::Scalar(Scalar::Float(FloatAttribute(*a)));
        let imaginary = CallOperand::Scalar(Scalar::Float(FloatAttribute(*b)));
        return Ok(ComplexOperand { real, imaginary: Some(imaginary) });
    }
    if !is_complex(c, name) {
        return Ok(ComplexOperand { real: c.operand(name)?, imaginary: None });
    }
    let z = c.tensor(name)?;
    let (a, b) = split_components(c, z)?;
    Ok(ComplexOperand { real: CallOperand::Tensor(a), imaginary: Some(CallOperand::Tensor(b)) })
}

/// `(a + bi)(d + ei) = ad - be + (ae + bd)i`. A real factor multiplies both components.
pub(super) fn mul(c: &mut OpCall<'_, '_>) -> RuleResult {
    let dtype = declared_component_type(c)?.dtype;
    if let Some((z, factor)) = with_real_factor(c)? {
        let y = c.emit_binary(BinaryOp::Mul, &CallOperand::Tensor(z), &factor, dtype)?;
        return c.set_only_result(y);
    }
    let x = complex_operand(c, "self")?;
    let y = complex_operand(c, "other")?;
    let mut times = |x: &CallOperand, y: &CallOperand| c.emit_binary(BinaryOp::Mul, x, y, dtype);
    let (real, imaginary) = match (&x.imaginary, &y.imaginary) {
        (Some(b), Some(e)) => {
            let ad = times(&x.real, &y.real)?;
            let be = times(b, e)?;
            let ae = times(&x.real, e)?;
            let bd = times(b, &y.real)?;
            (c.binary(BinaryOp::Sub, ad, be)?, c.binary(BinaryOp::Add, ae, bd)?)
        }
        (Some(b), None) => (times(&x.real, &y.real)?, times(b, &y.real)?),
        (None, Some(e)) => (times(&x.real, &y.real)?, times(&x.real, e)?),
        (None, None) => return invalid!("expected a complex factor, found none"),
    };
    set_complex_result(c, real, imaginary)
}

/// The complex tensor and the real operand of a product, if the operands are of these kinds.
fn with_real_factor(c: &mut OpCall<'_, '_>) -> RuleResult<Option<(ValueId, CallOperand)>> {
    let (z, factor) = match (is_complex(c, "self"), is_complex(c, "other")) {
        (true, false) => ("self", "other"),
        (false, true) => ("other", "self"),
        _ => return Ok(None),
    };
    if matches!(c.get(factor), Some(Argument::Complex(..))) {
        return Ok(None);
    }
    let factor = match c.operand(factor)? {
        CallOperand::Tensor(v) => CallOperand::Tensor(c.unsqueeze(v, c.rank(v))?),
        number => number,
    };
    Ok(Some((c.tensor(z)?, factor)))
}

/// A sum or a difference. The imaginary part of real numbers and tensors is 0.
pub(super) fn sum(c: &mut OpCall<'_, '_>, op: BinaryOp) -> RuleResult {
    if matches!(c.get("other"), Some(Argument::Tensor(_))) {
        let rule = match op {
            BinaryOp::Sub => OpRule::Results(|c| add_scaled(c, BinaryOp::Sub)),
            _ => OpRule::Results(|c| add_scaled(c, BinaryOp::Add)),
        };
        return per_component::apply_per_component(c, rule);
    }
    let z = c.tensor("self")?;
    let Some(Argument::Tensor(name)) = c.get("self") else {
        return invalid!("expected a tensor as `self`, found another kind of argument");
    };
    let (mut a, mut b) = if c.lowering.is_complex(name) {
        split_components(c, z)?
    } else {
        (z, c.full(Scalar::Int(0), c.dtype(z), c.shape(z))?)
    };
    let dtype = declared_component_type(c)?.dtype;
    let rhs = complex_operand(c, "other")?;
    unsupported_if!(c.float_or("alpha", 1.0)? != 1.0, "an `alpha` other than 1 is not supported");
    a = c.emit_binary(op, &CallOperand::Tensor(a), &rhs.real, dtype)?;
    b = match rhs.imaginary {
        Some(imaginary) => c.emit_binary(op, &CallOperand::Tensor(b), &imaginary, dtype)?,
        None => c.cast(b, dtype)?,
    };
    set_complex_result(c, a, b)
}

/// The sum of the squares of both components. In f64 no square of an f32 overflows.
fn squared_magnitude<'f>([a, b]: [Term<'f>; 2]) -> Term<'f> {
    let a = a.cast(DType::F64);
    let b = b.cast(DType::F64);
    a.square() + b.square()
}

/// `x / (d + ei) = x (d - ei) / (d² + e²)`. A real divisor divides both components.
pub(super) fn div(c: &mut OpCall<'_, '_>) -> RuleResult {
    let dtype = declared_component_type(c)?.dtype;
    if is_complex(c, "self")
        && let Some((z, divisor)) = with_real_factor(c)?
    {
        let y = c.emit_binary(BinaryOp::Div, &CallOperand::Tensor(z), &divisor, dtype)?;
        return c.set_only_result(y);
    }
    let x = complex_operand(c, "self")?;
    let y = complex_operand(c, "other")?;
    let wide = DType::F64;
    let d = c.as_tensor(&y.real, wide)?;
    let e = c.as_tensor(&y.imaginary.unwrap_or(ZERO), wide)?;
    let a = c.as_tensor(&x.real, wide)?;
    let b = c.as_tensor(&x.imaginary.unwrap_or(ZERO), wide)?;
    let [real, imaginary] = c.formulas([a, b, d, e], |[a, b, d, e]| quotient([a, b], [d, e], dtype))?;
    set_complex_result(c, real, imaginary)
}

const ZERO: CallOperand = CallOperand::Scalar(Scalar::Int(0));

fn quotient<'f>([a, b]: [Term<'f>; 2], [d, e]: [Term<'f>; 2], dtype: DType) -> [Term<'f>; 2] {
    let length = squared_magnitude([d, e]);
    let ad = a * d;
    let be = b * e;
    let bd = b * d;
    let ae = a * e;
    [ad + be, bd - ae].map(|part| (part / length).cast(dtype))
}

pub(super) fn reciprocal(c: &mut OpCall<'_, '_>) -> RuleResult {
    let z = c.first_tensor()?;
    let dtype = c.dtype(z);
    let [real, imaginary] = c.formulas([z], |[z]| {
        let divisor = components_of(z.cast(DType::F64));
        let unit = [divisor[0].constant(1.0), divisor[0].constant(0.0)];
        quotient(unit, divisor, dtype)
    })?;
    set_complex_result(c, real, imaginary)
}

/// `|a + bi| = √(a² + b²)`.
pub(super) fn abs(c: &mut OpCall<'_, '_>) -> EmitResult {
    formula(c, |z| squared_magnitude(components_of(z)).sqrt().cast(z.dtype()))
}

/// `z / |z|`, and 0 for 0.
pub(super) fn sgn(c: &mut OpCall<'_, '_>) -> EmitResult {
    formula(c, |z| {
        let length = squared_magnitude(components_of(z)).sqrt();
        let length = length.unsqueeze(length.rank());
        let y = z.cast(DType::F64) / length;
        let zero = y.constant(0.0);
        length.eq(0.0).select(zero, y).cast(z.dtype())
    })
}

/// `length * (cos angle + i sin angle)`.
pub(super) fn polar<'f>(length: Term<'f>, angle: Term<'f>) -> [Term<'f>; 2] {
    [angle.cos(), angle.sin()].map(|part| length * part)
}

/// `e^(a + bi) = e^a (cos b + i sin b)`.
pub(super) fn exp(c: &mut OpCall<'_, '_>) -> RuleResult {
    set_formula_result(c, |[a, b]| polar(a.exp(), b))
}

pub(super) fn square(c: &mut OpCall<'_, '_>) -> RuleResult {
    set_formula_result(c, |[a, b]| {
        let aa = a.square();
        let bb = b.square();
        let ab = a * b;
        [aa - bb, ab + ab]
    })
}

/// A product of matrices or vectors.
pub(super) fn product(c: &mut OpCall<'_, '_>, other: &str) -> RuleResult {
    let dtype = declared_component_type(c)?.dtype;
    let mut factors = Vec::with_capacity(2);
    for (name, value) in [("self", c.first_tensor()?), (other, c.tensor(other)?)] {
        let complex = if name == "self" { is_first_complex(c) } else { is_complex(c, name) };
        let x = c.cast(value, dtype)?;
        factors.push(if complex { split_components(c, x).map(|(a, b)| (a, Some(b)))? } else { (x, None) });
    }
    let (a, b) = factors[0];
    let (d, e) = factors[1];
    let real = c.numpy_matmul(a, d)?;
    let imaginary = match (b, e) {
        (Some(b), Some(e)) => {
            let be = c.numpy_matmul(b, e)?;
            let ae = c.numpy_matmul(a, e)?;
            let bd = c.numpy_matmul(b, d)?;
            let real = c.binary(BinaryOp::Sub, real, be)?;
            let imaginary = c.binary(BinaryOp::Add, ae, bd)?;
            let z = join_components(c, real, imaginary)?;
            return c.set_only_result(z);
        }
        (Some(b), None) => c.numpy_matmul(b, d)?,
        (None, Some(e)) => c.numpy_matmul(a, e)?,
        (None, None) => return invalid!("expected a complex factor, found none"),
    };
    set_complex_result(c, real, imaginary)
}
