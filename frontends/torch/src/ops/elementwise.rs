//! Element-wise ops: arithmetic, comparisons, logic, functions, conversions.
//!
//! Operands are first converted to PyTorch's common dtype. Functions that PyTorch computes in floating point
//! convert integers to its default float dtype.

use symmc_import::{Emit, EmitFormulas, RuleCall, invalid, unsupported};
use symmc_ir::{BinaryOp, DType, FloatAttribute, Scalar, UnaryOp, ValueId};

use super::{RuleRow, row, row_of_results};
use crate::call::{CallOperand, OpCall};
use crate::dtype;
use crate::lower::{EmitResult, RuleResult, Term};
use crate::schema::Argument;
use crate::subclasses::{ACCESS, LOCAL_TENSOR};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row_of_results("aten.add", "add", |c| add_scaled(c, BinaryOp::Add)),
    row_of_results("aten.sub aten.subtract", "sub", |c| add_scaled(c, BinaryOp::Sub)),
    row("aten.rsub", "sub", rsub),
    row("aten.mul aten.multiply", "mul", |c| binary(c, BinaryOp::Mul)),
    row("aten.div aten.divide", "div; floor_div, trunc", divide),
    row("aten.true_divide", "div", divide),
    row("aten.floor_divide", "floor_div", |c| {
        let (a, b) = operands(c)?;
        let dtype = c.common_dtype(&[&a, &b]);
        // A number as the dividend is rounded to the dtype of the tensor; a number as the divisor is not.
        c.emit_binary(BinaryOp::FloorDiv, &a.rounded_to(dtype), &b, dtype)
    }),
    row("aten.remainder", "rem", remainder),
    row("aten.fmod", "rem(abs, abs) * sign", fmod),
    row("aten.pow", "pow", pow),
    row("aten.maximum aten.max.other", "max", |c| binary(c, BinaryOp::Max)),
    row("aten.minimum aten.min.other", "min", |c| binary(c, BinaryOp::Min)),
    row("aten.eq", "eq", |c| binary(c, BinaryOp::Eq)),
    row("aten.ne aten.not_equal", "ne", |c| binary(c, BinaryOp::Ne)),
    row("aten.lt aten.less", "lt", |c| binary(c, BinaryOp::Lt)),
    row("aten.le aten.less_equal", "le", |c| binary(c, BinaryOp::Le)),
    row("aten.gt aten.greater", "gt", |c| binary(c, BinaryOp::Gt)),
    row("aten.ge aten.greater_equal", "ge", |c| binary(c, BinaryOp::Ge)),
    row("aten.__and__ aten.bitwise_and", "and", |c| binary(c, BinaryOp::And)),
    row("aten.__or__ aten.bitwise_or", "or", |c| binary(c, BinaryOp::Or)),
    row("aten.__xor__ aten.bitwise_xor", "xor", |c| binary(c, BinaryOp::Xor)),
    row("aten.__lshift__ aten.bitwise_left_shift", "shl", |c| binary(c, BinaryOp::Shl)),
    row("aten.__rshift__ aten.bitwise_right_shift", "shr", |c| binary(c, BinaryOp::Shr)),
    row("aten.logical_and", "and of bools", |c| logical(c, BinaryOp::And)),
    row("aten.logical_or", "or of bools", |c| logical(c, BinaryOp::Or)),
    row("aten.logical_xor", "xor of bools", |c| logical(c, BinaryOp::Xor)),
    row("aten.logical_not", "not of a bool", |c| formula(c, |x| !x.cast(DType::Bool))),
    row("aten.bitwise_not", "not", |c| unary(c, UnaryOp::Not)),
    row("aten.neg", "neg", |c| unary(c, UnaryOp::Neg)),
    row("aten.abs", "abs", |c| unary(c, UnaryOp::Abs)),
    row("aten.sign aten.sgn", "sign", |c| unary(c, UnaryOp::Sign)),
    row("aten.floor", "floor", |c| rounding(c, UnaryOp::Floor)),
    row("aten.ceil", "ceil", |c| rounding(c, UnaryOp::Ceil)),
    row("aten.round.default", "round", |c| rounding(c, UnaryOp::Round)),
    row("aten.trunc", "trunc", |c| rounding(c, UnaryOp::Trunc)),
    row("aten.exp", "exp", |c| float_unary(c, UnaryOp::Exp)),
    row("aten.log", "log", |c| float_unary(c, UnaryOp::Log)),
    row("aten.sqrt", "sqrt", |c| float_unary(c, UnaryOp::Sqrt)),
    row("aten.rsqrt", "rsqrt", |c| float_unary(c, UnaryOp::Rsqrt)),
    row("aten.reciprocal", "reciprocal", |c| float_unary(c, UnaryOp::Reciprocal)),
    row("aten.sin", "sin", |c| float_unary(c, UnaryOp::Sin)),
    row("aten.cos", "cos", |c| float_unary(c, UnaryOp::Cos)),
    row("aten.erf", "erf", |c| float_unary(c, UnaryOp::Erf)),
    row("aten.exp2", "pow(2, x)", |c| float_formula(c, |x| x.power_of(2.0))),
    row("aten.log2", "log * 1/ln 2", |c| float_formula(c, |x| x.log() * std::f64::consts::LOG2_E)),
    row("aten.log10", "log * 1/ln 10", |c| float_formula(c, |x| x.log() * std::f64::consts::LOG10_E)),
    row("aten.log1p", "select of log, in f64", |c| through_f64(c, |x| x.log1p())),
    row("aten.expm1", "tanh(x / 2) * (exp(x) + 1), in f64", |c| through_f64(c, |x| x.expm1())),
    row("aten.erfc", "1 - erf(x), or a continued fraction, in f64", |c| {
        let x = c.first_tensor()?;
        let (start, terms) = if c.dtype(x) == DType::F64 { (2.0, 40) } else { (3.0, 12) };
        through_f64(c, |x| x.complementary_erf(start, terms))
    }),
    row("aten.erfinv", "log, sqrt, erf, exp, in f64", |c| through_f64(c, |x| x.inverse_erf())),
    row("aten.sinh", "tanh(x / 2) * (1 + cosh(x)), in f64", |c| through_f64(c, |x| x.sinh())),
    row("aten.cosh", "(exp(x) + exp(-x)) / 2, in f64", |c| through_f64(c, |x| x.cosh())),
    row("aten.square", "mul", |c| {
        // PyTorch computes it as a power with an integer exponent, so bools become integers.
        formula(c, |x| if x.dtype() == DType::Bool { x.cast(DType::I64).square() } else { x.square() })
    }),
    row("aten.tan", "sin / cos", |c| float_formula(c, |x| x.tan())),
    row("aten.atan2 aten.arctan2", "atan2", |c| float_binary(c, BinaryOp::Atan2)),
    row("aten.atan aten.arctan", "atan2(x, 1)", |c| float_formula(c, |x| x.atan2(1.0))),
    row("aten.asin aten.arcsin", "atan2(x, sqrt((1 - x) * (1 + x)))", |c| float_formula(c, |x| x.arc_sine())),
    row("aten.acos aten.arccos", "atan2(sqrt((1 - x) * (1 + x)), x)", |c| {
        float_formula(c, |x| x.arc_cosine())
    }),
    row("aten.isnan", "is_nan", |c| float_unary(c, UnaryOp::IsNan)),
    row("aten.isfinite", "is_finite", |c| float_unary(c, UnaryOp::IsFinite)),
    row("aten.isinf", "eq of abs with infinity", |c| float_formula(c, |x| x.is_infinite())),
    row("aten.clamp aten.clip", "max, min", clamp),
    row("aten.clamp_min", "max", clamp),
    row("aten.clamp_max", "min", clamp),
    row("aten.where", "select", select),
    row("aten.masked_fill", "select", masked_fill),
    row("aten.lerp", "x + weight * (y - x), or y - (1 - weight) * (y - x)", lerp),
    row("aten.addcmul", "x + value * y * z", |c| add_combined(c, BinaryOp::Mul)),
    row("aten.addcdiv", "x + value * y / z", |c| add_combined(c, BinaryOp::Div)),
    row("aten.nan_to_num", "select", nan_to_num),
    row("aten.to aten._to_copy aten.type_as prims.convert_element_type", "cast", convert),
    row(
        "prims.device_put aten.clone aten.contiguous aten.alias aten.detach aten.lift aten.lift_fresh \
         aten.lift_fresh_copy aten.positive",
        "(identity)",
        identity,
    ),
    row(ACCESS, "(identity), for the tensor of the rank in a DTensor", local_tensor),
    row("aten.copy", "cast, expand", |c| {
        let [x, source] = c.tensors_named(["self", "src"])?;
        let source = c.cast(source, c.dtype(x))?;
        c.expand(source, c.shape(x))
    }),
];

fn local_tensor(c: &mut OpCall<'_, '_>) -> EmitResult {
    match c.get("attr") {
        Some(Argument::String(attribute)) if **attribute == *LOCAL_TENSOR => c.first_tensor(),
        argument => {
            let actual = argument.map_or("none".into(), |a| a.describe());
            invalid!(
                "of the tensors inside of a tensor subclass, expected `{LOCAL_TENSOR}` of a DTensor, found {actual}"
            )
        }
    }
}

pub(super) fn identity(c: &mut OpCall<'_, '_>) -> EmitResult {
    c.first_tensor()
}

pub(super) fn operands(c: &mut OpCall<'_, '_>) -> RuleResult<(CallOperand, CallOperand)> {
    let self_name = if c.get("self").is_some() { "self" } else { "input" };
    Ok((c.operand(self_name)?, c.operand("other")?))
}

pub(super) fn unary(c: &mut OpCall<'_, '_>, op: UnaryOp) -> EmitResult {
    let x = c.first_tensor()?;
    c.unary(op, x)
}

pub(super) fn float_unary(c: &mut OpCall<'_, '_>, op: UnaryOp) -> EmitResult {
    float_formula(c, |x| x.unary(op))
}

/// A formula of the first operand.
pub(super) fn formula(c: &mut OpCall<'_, '_>, f: impl for<'f> FnOnce(Term<'f>) -> Term<'f>) -> EmitResult {
    let x = c.first_tensor()?;
    c.formula([x], |[x]| f(x))
}

/// A formula of the first operand as a float.
pub(super) fn float_formula(
    c: &mut OpCall<'_, '_>,
    f: impl for<'f> FnOnce(Term<'f>) -> Term<'f>,
) -> EmitResult {
    let x = floating_first(c)?;
    c.formula([x], |[x]| f(x))
}

/// Rounding leaves integers unchanged.
fn rounding(c: &mut OpCall<'_, '_>, op: UnaryOp) -> EmitResult {
    formula(c, |x| if x.dtype().is_float() { x.unary(op) } else { x })
}

fn floating_first(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.first_tensor()?;
    c.cast_to_float(x)
}

/// A formula of the first operand in f64, for functions that lose precision by cancellation in narrower floats.
pub(super) fn through_f64(
    c: &mut OpCall<'_, '_>,
    f: impl for<'f> FnOnce(Term<'f>) -> Term<'f>,
) -> EmitResult {
    float_formula(c, |x| f(x.cast(DType::F64)).cast(x.dtype()))
}

fn binary(c: &mut OpCall<'_, '_>, op: BinaryOp) -> EmitResult {
    let (a, b) = operands(c)?;
    let dtype = c.common_dtype(&[&a, &b]);
    c.emit_binary(op, &a, &b, dtype)
}

/// On every device, PyTorch rounds a scalar to the dtype of the tensor before it computes the remainder.
fn remainder(c: &mut OpCall<'_, '_>) -> EmitResult {
    let (a, b) = operands(c)?;
    let dtype = c.common_dtype(&[&a, &b]);
    c.emit_binary(BinaryOp::Rem, &a.rounded_to(dtype), &b.rounded_to(dtype), dtype)
}

/// `a op alpha * b`.
pub(super) fn add_scaled(c: &mut OpCall<'_, '_>, op: BinaryOp) -> RuleResult {
    let (a, b) = operands(c)?;
    let y = combine_scaled(c, op, a, b)?;
    c.set_only_result(y)
}

fn rsub(c: &mut OpCall<'_, '_>) -> EmitResult {
    let (a, b) = operands(c)?;
    combine_scaled(c, BinaryOp::Sub, b, a)
}

fn combine_scaled(c: &mut OpCall<'_, '_>, op: BinaryOp, a: CallOperand, b: CallOperand) -> EmitResult {
    let dtype = c.common_dtype(&[&a, &b]);
    match (c.opt_scalar("alpha")?, b) {
        (Some(alpha), b) if alpha.as_f64() != 1.0 => match b {
            CallOperand::Scalar(s) if dtype.is_float() => {
                let b = CallOperand::Scalar(Scalar::Float(FloatAttribute(s.as_f64() * alpha.as_f64())));
                c.emit_binary(op, &a, &b, dtype)
            }
            CallOperand::Scalar(s) => {
                let b = CallOperand::Scalar(Scalar::Int(s.as_i64().wrapping_mul(alpha.as_i64())));
                c.emit_binary(op, &a, &b, dtype)
            }
            b => {
                let factor = CallOperand::Scalar(alpha.convert_to(dtype));
                let b = CallOperand::Tensor(c.emit_binary(BinaryOp::Mul, &b, &factor, dtype)?);
                c.emit_binary(op, &a, &b, dtype)
            }
        },
        (_, b) => c.emit_binary(op, &a, &b, dtype),
    }
}

fn float_binary(c: &mut OpCall<'_, '_>, op: BinaryOp) -> EmitResult {
    let (a, b) = operands(c)?;
    let common = c.common_dtype(&[&a, &b]);
    let dtype = if common.is_float() { common } else { dtype::DEFAULT_FLOAT };
    c.emit_binary(op, &a, &b, dtype)
}

fn divide(c: &mut OpCall<'_, '_>) -> EmitResult {
    let (a, b) = operands(c)?;
    let common = c.common_dtype(&[&a, &b]);
    match c.opt_string("rounding_mode")? {
        None => float_binary(c, BinaryOp::Div),
        Some("floor") => c.emit_binary(BinaryOp::FloorDiv, &a.rounded_to(common), &b, common),
        Some("trunc") if common.is_float() => {
            let q = c.emit_binary(BinaryOp::Div, &a.rounded_to(common), &b, common)?;
            if !matches!(b, CallOperand::Scalar(_)) {
                // The quotient by a tensor is rounded before it is truncated.
                c.keep_rounding(q);
            }
            c.unary(UnaryOp::Trunc, q)
        }
        Some("trunc") => {
            let x = c.as_tensor(&a, common)?;
            let y = c.as_tensor(&b, common)?;
            c.formula([x, y], |[x, y]| x.truncated_quotient(y))
        }
        Some(other) => invalid!("expected rounding_mode floor or trunc, found `{other}`"),
    }
}

fn fmod(c: &mut OpCall<'_, '_>) -> EmitResult {
    let (a, b) = operands(c)?;
    let dtype = c.common_dtype(&[&a, &b]);
    let x = c.as_tensor(&a, dtype)?;
    let y = c.as_tensor(&b, dtype)?;
    c.formula([x, y], |[x, y]| if dtype.is_float() { x.float_remainder(y) } else { x.truncated_remainder(y) })
}

/// A power with the exponent 0.5 or -0.5 is a root. The root of -infinity is NaN.
fn pow(c: &mut OpCall<'_, '_>) -> EmitResult {
    let a = c.operand("self")?;
    let b = c.operand("exponent")?;
    let dtype = c.common_dtype(&[&a, &b]);
    let root = match &b {
        CallOperand::Scalar(s) if s.as_f64() == 0.5 => Some(UnaryOp::Sqrt),
        CallOperand::Scalar(s) if s.as_f64() == -0.5 => Some(UnaryOp::Rsqrt),
        _ => None,
    };
    match root {
        Some(root) => {
            let x = c.as_tensor(&a, dtype)?;
            c.unary(root, x)
        }
        None => c.emit_binary(BinaryOp::Pow, &a.rounded_to(dtype), &b.rounded_to(dtype), dtype),
    }
}

/// `x != 0`, as bool.
pub(super) fn to_truth_value(c: &mut OpCall<'_, '_>, x: ValueId) -> EmitResult {
    c.cast(x, DType::Bool)
}

fn logical(c: &mut OpCall<'_, '_>, op: BinaryOp) -> EmitResult {
    let operands = c.tensors_named(["self", "other"])?;
    c.formula(operands, |operands| {
        let [x, y] = operands.map(|operand| operand.cast(DType::Bool));
        x.binary(op, y)
    })
}

fn clamp(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = CallOperand::Tensor(c.first_tensor()?);
    let low = c.opt_operand("min")?;
    let high = c.opt_operand("max")?;
    let operands: Vec<&CallOperand> = [Some(&x), low.as_ref(), high.as_ref()].into_iter().flatten().collect();
    let dtype = c.common_dtype(&operands);
    let mut y = c.as_tensor(&x, dtype)?;
    for (op, bound) in [(BinaryOp::Max, low), (BinaryOp::Min, high)] {
        if let Some(bound) = bound {
            let bound = match bound {
                CallOperand::Scalar(s) => CallOperand::Scalar(s.saturate_to(dtype)),
                bound => bound,
            };
            y = c.emit_binary(op, &CallOperand::Tensor(y), &bound, dtype)?;
        }
    }
    Ok(y)
}

fn select(c: &mut OpCall<'_, '_>) -> EmitResult {
    let (Some(a), Some(b)) = (c.opt_operand("self")?, c.opt_operand("other")?) else {
        return unsupported!("the number of result elements depends on the data of the condition");
    };
    let condition = c.tensor("condition")?;
    let condition = to_truth_value(c, condition)?;
    let dtype = c.common_dtype(&[&a, &b]);
    let x = c.as_tensor(&a, dtype)?;
    let y = c.as_tensor(&b, dtype)?;
    c.select(condition, x, y)
}

fn masked_fill(c: &mut OpCall<'_, '_>) -> EmitResult {
    let [x, mask] = c.tensors_named(["self", "mask"])?;
    let value = c.operand("value")?;
    let mask = to_truth_value(c, mask)?;
    let fill = c.as_tensor(&value, c.dtype(x))?;
    c.select(mask, fill, x)
}

fn lerp(c: &mut OpCall<'_, '_>) -> EmitResult {
    let [start, end] = c.tensors_named(["self", "end"])?;
    // PyTorch interpolates from the nearer end, so that both ends are exact.
    match c.operand("weight")? {
        CallOperand::Scalar(weight) => {
            let weight = weight.as_f64();
            c.formula([start, end], |[start, end]| {
                let difference = end - start;
                if weight.abs() < 0.5 {
                    start + difference * weight
                } else {
                    end - difference * (1.0 - weight)
                }
            })
        }
        weight => {
            let difference = c.binary(BinaryOp::Sub, end, start)?;
            let weight = c.as_tensor(&weight, c.dtype(start))?;
            c.formula([start, end, difference, weight], |[start, end, difference, weight]| {
                let is_near = weight.abs().lt(0.5);
                let from_start = start + difference * weight;
                is_near.select(from_start, end - difference * (1.0 - weight))
            })
        }
    }
}

/// `x + value * (a op b)`.
fn add_combined(c: &mut OpCall<'_, '_>, op: BinaryOp) -> EmitResult {
    let x = CallOperand::Tensor(c.first_tensor()?);
    let a = CallOperand::Tensor(c.tensor("tensor1")?);
    let b = CallOperand::Tensor(c.tensor("tensor2")?);
    let value = c.opt_scalar("value")?.unwrap_or(Scalar::Int(1));
    let dtype = c.common_dtype(&[&x, &a, &b]);
    let mut y = c.emit_binary(op, &a, &b, dtype)?;
    if value.as_f64() != 1.0 {
        y = c.binary_scalar(BinaryOp::Mul, y, value)?;
    }
    c.emit_binary(BinaryOp::Add, &x, &CallOperand::Tensor(y), dtype)
}

fn nan_to_num(c: &mut OpCall<'_, '_>) -> EmitResult {
    c.ignore(&["nan", "posinf", "neginf"]);
    let x = c.first_tensor()?;
    let dtype = c.dtype(x);
    if !dtype.is_float() {
        return Ok(x);
    }
    let largest = dtype::greatest(dtype);
    let nan = c.float_or("nan", 0.0)?;
    let high = c.float_or("posinf", largest)?;
    let low = c.float_or("neginf", -largest)?;
    c.formula([x], |[x]| {
        let y = x.is_nan().select(nan, x);
        let y = x.eq(f64::INFINITY).select(high, y);
        x.eq(f64::NEG_INFINITY).select(low, y)
    })
}

/// Conversions of dtype. Device, layout and memory format do not affect the program.
fn convert(c: &mut OpCall<'_, '_>) -> EmitResult {
    // A copy has the same value; see [`crate::aliasing`].
    c.ignore(&["copy"]);
    let x = c.first_tensor()?;
    let dtype = match (c.opt_dtype("dtype")?, c.opt_tensor("other")?) {
        (Some(dtype), _) => dtype,
        (None, Some(other)) => c.dtype(other),
        (None, None) => c.dtype(x),
    };
    c.cast(x, dtype)
}
