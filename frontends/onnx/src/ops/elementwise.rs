//! Element-wise ops: arithmetic, comparisons, logic, functions, conversions.
//!
//! ONNX has no implicit conversions: operands have the same dtype. Integer division truncates.

use std::sync::Arc;

use symmc_import::{Emit, EmitFormulas, RuleCall, invalid, unsupported_if};
use symmc_ir::{BinaryOp, DType, Dim, Scalar, Tensor, UnaryOp, infer};

use super::quantised::cast_to_narrow;
use super::{RuleRow, row, row_of_results};
use crate::call::{CallOperand, OpCall};
use crate::known_values::KnownValue;
use crate::lower::{EmitResult, RuleFailure, RuleResult, Term};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("Add", 14, "add", |c| binary(c, BinaryOp::Add)),
    row("Sub", 14, "sub", |c| binary(c, BinaryOp::Sub)),
    row("Mul", 14, "mul", |c| binary(c, BinaryOp::Mul)),
    row("Div", 14, "div; floor_div, rem, add", divide),
    row("Mod", 28, "rem; rem of magnitudes, mul of signs; rem, sub", modulo),
    row("Pow", 15, "pow", power),
    row_of_results("Sum", 13, "add", |c| fold_operands(c, BinaryOp::Add)),
    row_of_results("Mean", 13, "add, mul", |c| {
        fold_operands(c, BinaryOp::Add)?;
        let Some(Some(sum)) = c.result_values().first().copied() else { return Ok(()) };
        let y = c.binary_float(BinaryOp::Div, sum, c.node.input.len() as f64)?;
        c.set_only_result(y)
    }),
    row_of_results("Max", 13, "max", |c| fold_operands(c, BinaryOp::Max)),
    row_of_results("Min", 13, "min", |c| fold_operands(c, BinaryOp::Min)),
    row("Equal", 19, "eq", |c| binary(c, BinaryOp::Eq)),
    row("Less", 13, "lt", |c| binary(c, BinaryOp::Lt)),
    row("LessOrEqual", 16, "le", |c| binary(c, BinaryOp::Le)),
    row("Greater", 13, "gt", |c| binary(c, BinaryOp::Gt)),
    row("GreaterOrEqual", 16, "ge", |c| binary(c, BinaryOp::Ge)),
    row("And", 7, "and", |c| binary(c, BinaryOp::And)),
    row("Or", 7, "or", |c| binary(c, BinaryOp::Or)),
    row("Xor", 7, "xor", |c| binary(c, BinaryOp::Xor)),
    row("BitwiseAnd", 18, "and", |c| binary(c, BinaryOp::And)),
    row("BitwiseOr", 18, "or", |c| binary(c, BinaryOp::Or)),
    row("BitwiseXor", 18, "xor", |c| binary(c, BinaryOp::Xor)),
    row("BitShift", 28, "shl, shr", |c| match c.opt_string("direction")? {
        Some("LEFT") => binary(c, BinaryOp::Shl),
        Some("RIGHT") => binary(c, BinaryOp::Shr),
        other => {
            let direction = other.unwrap_or("none");
            invalid!("expected the direction LEFT or RIGHT, found {direction}")
        }
    }),
    row("Not", 1, "not", |c| unary(c, UnaryOp::Not)),
    row("BitwiseNot", 18, "not", |c| unary(c, UnaryOp::Not)),
    row("Neg", 13, "neg", |c| unary(c, UnaryOp::Neg)),
    row("Abs", 13, "abs", |c| unary(c, UnaryOp::Abs)),
    row("Sinh", 22, "exp, tanh", |c| formula(c, |x| x.sinh())),
    row("Cosh", 22, "exp", |c| formula(c, |x| x.cosh())),
    row("Asinh", 22, "log, sqrt, select", |c| formula(c, |x| x.inverse_sinh())),
    row("Acosh", 22, "log, sqrt, select", |c| formula(c, |x| x.inverse_cosh())),
    row("Atanh", 22, "log", |c| formula(c, |x| x.inverse_tanh())),
    row("Sign", 13, "sign; select", |c| {
        formula(c, |x| {
            let sign = x.sign();
            // The sign of NaN is NaN.
            if x.dtype().is_float() { x.is_nan().select(x, sign) } else { sign }
        })
    }),
    row("Floor", 13, "floor", |c| unary(c, UnaryOp::Floor)),
    row("Ceil", 13, "ceil", |c| unary(c, UnaryOp::Ceil)),
    row("Round", 22, "round", |c| unary(c, UnaryOp::Round)),
    row("Exp", 13, "exp", |c| unary(c, UnaryOp::Exp)),
    row("Log", 13, "log", |c| unary(c, UnaryOp::Log)),
    row("Sqrt", 13, "sqrt", |c| unary(c, UnaryOp::Sqrt)),
    row("Reciprocal", 13, "reciprocal", |c| unary(c, UnaryOp::Reciprocal)),
    row("Erf", 13, "erf", |c| unary(c, UnaryOp::Erf)),
    row("Sin", 22, "sin", |c| unary(c, UnaryOp::Sin)),
    row("Cos", 22, "cos", |c| unary(c, UnaryOp::Cos)),
    row("Tan", 22, "sin / cos", |c| formula(c, |x| x.tan())),
    row("Atan", 22, "atan2(x, 1)", |c| formula(c, |x| x.atan2(1.0))),
    row("Asin", 22, "atan2(x, sqrt((1 - x) * (1 + x)))", |c| formula(c, |x| x.arc_sine())),
    row("Acos", 22, "atan2(sqrt((1 - x) * (1 + x)), x)", |c| formula(c, |x| x.arc_cosine())),
    row("IsNaN", 20, "is_nan", |c| unary(c, UnaryOp::IsNan)),
    row("IsInf", 20, "eq with infinity", is_inf),
    row("Clip", 13, "max, min", clip),
    row("Where", 16, "select", select),
    row("Cast", 28, "cast", |c| {
        let x = c.tensor(0)?;
        let dtype = c.opt_dtype("to")?;
        let dtype =
            dtype.ok_or_else(|| RuleFailure::Invalid("expected an attribute `to`, found none".into()))?;
        cast_to_narrow(c, x, dtype)
    }),
    row_of_results("CastLike", 25, "cast", |c| {
        let dtype = c.operand_type(1)?.dtype;
        if c.operand_type(0)?.dtype == dtype {
            c.ignore(&["saturate", "round_mode"]);
            return c.forward_operand(0);
        }
        // A constant is converted at import.
        let is_wide = dtype.is_float() && !dtype.is_storage_float();
        if let Some(s) = c.scalar(0)?.filter(|_| is_wide) {
            c.ignore(&["saturate", "round_mode"]);
            let shape = c.constant_data(0)?.map_or(vec![], |d| d.shape().to_vec());
            if let Some(data) = Tensor::from_f64(dtype, shape, &[s.as_f64()]) {
                c.set_known(0, KnownValue::Data(Arc::new(data)));
                return Ok(());
            }
        }
        let x = c.tensor(0)?;
        let y = cast_to_narrow(c, x, dtype)?;
        c.set_only_result(y)
    }),
    row_of_results("Identity", 25, "(identity)", |c| c.forward_operand(0)),
    row_of_results("Dropout", 22, "(identity), where nothing is dropped", dropout),
];

pub(super) fn unary(c: &mut OpCall<'_, '_>, op: UnaryOp) -> EmitResult {
    formula(c, |x| x.unary(op))
}

/// A formula of the first operand.
pub(super) fn formula(c: &mut OpCall<'_, '_>, f: impl for<'f> FnOnce(Term<'f>) -> Term<'f>) -> EmitResult {
    let x = c.tensor(0)?;
    c.formula([x], |[x]| f(x))
}

/// The first two operands. At most one of them is a number.
fn binary_operands(c: &mut OpCall<'_, '_>) -> RuleResult<(CallOperand, CallOperand)> {
    let x_rank = c.operand_type(0)?.rank();
    let right = c.operand_type(1)?.rank();
    let y = c.operand(1, x_rank)?;
    let x = match y {
        CallOperand::Scalar(_) => CallOperand::Tensor(c.tensor(0)?),
        CallOperand::Tensor(_) => c.operand(0, right)?,
    };
    Ok((x, y))
}

/// A binary op of two operands. At least one of them is a tensor.
fn emit_binary(c: &mut OpCall<'_, '_>, op: BinaryOp, x: CallOperand, y: CallOperand) -> EmitResult {
    match (x, y) {
        (CallOperand::Tensor(x), CallOperand::Tensor(y)) => {
            let a = c.shape(x);
            let b = c.shape(y);
            if infer::broadcast_shapes(&[&a, &b]).is_err() {
                let shown =
                    |dims: &[Dim]| dims.iter().map(|d| c.display_dim(d)).collect::<Vec<_>>().join(", ");
                let a = shown(&a);
                let b = shown(&b);
                return invalid!("the shapes [{a}] and [{b}] do not broadcast");
            }
            c.binary(op, x, y)
        }
        (CallOperand::Tensor(x), CallOperand::Scalar(s)) => c.binary_scalar(op, x, s),
        (CallOperand::Scalar(s), CallOperand::Tensor(y)) => c.scalar_binary(op, s, y),
        (CallOperand::Scalar(_), CallOperand::Scalar(_)) => {
            invalid!("expected at least one tensor operand, found two numbers")
        }
    }
}

fn binary(c: &mut OpCall<'_, '_>, op: BinaryOp) -> EmitResult {
    let (x, y) = binary_operands(c)?;
    emit_binary(c, op, x, y)
}

fn fold_operands(c: &mut OpCall<'_, '_>, op: BinaryOp) -> RuleResult {
    let mut operands = c.tensors()?.into_iter();
    let Some(mut y) = operands.next() else { return Ok(()) };
    for operand in operands {
        y = c.binary(op, y, operand)?;
    }
    c.set_only_result(y)
}

fn divide(c: &mut OpCall<'_, '_>) -> EmitResult {
    if c.operand_type(0)?.dtype.is_float() {
        return binary(c, BinaryOp::Div);
    }
    let [x, y] = c.first_tensors()?;
    c.formula([x, y], |[x, y]| x.truncated_quotient(y))
}

/// The remainder has the sign of the divisor or, with `fmod`, of the dividend.
fn modulo(c: &mut OpCall<'_, '_>) -> EmitResult {
    if !c.flag("fmod")? {
        return binary(c, BinaryOp::Rem);
    }
    let [x, y] = c.first_tensors()?;
    let is_float = c.dtype(x).is_float();
    c.formula([x, y], |[x, y]| if is_float { x.float_remainder(y) } else { x.truncated_remainder(y) })
}

/// The result has the dtype of the base, for any dtype of the exponent.
fn power(c: &mut OpCall<'_, '_>) -> EmitResult {
    let base = c.operand_type(0)?;
    let exponent = c.operand_type(1)?;
    let wide = if exponent.dtype.is_float() && !base.dtype.is_float() { exponent.dtype } else { base.dtype };
    let x = c.tensor(0)?;
    let x = c.cast(x, wide)?;
    let y = match c.operand(1, base.rank())? {
        CallOperand::Scalar(s) => c.binary_scalar(BinaryOp::Pow, x, s)?,
        CallOperand::Tensor(y) => {
            let y = c.cast(y, wide)?;
            c.binary(BinaryOp::Pow, x, y)?
        }
    };
    c.cast(y, base.dtype)
}

fn is_inf(c: &mut OpCall<'_, '_>) -> EmitResult {
    let signs = (c.int_or("detect_negative", 1)? != 0, c.int_or("detect_positive", 1)? != 0);
    match signs {
        (true, true) => formula(c, |x| x.is_infinite()),
        (true, false) => formula(c, |x| x.eq(f64::NEG_INFINITY)),
        (false, true) => formula(c, |x| x.eq(f64::INFINITY)),
        (false, false) => {
            let x = c.tensor(0)?;
            c.full(Scalar::Bool(false), DType::Bool, c.shape(x))
        }
    }
}

/// The bounds are operands, or attributes before version 11.
fn clip(c: &mut OpCall<'_, '_>) -> EmitResult {
    let mut y = c.tensor(0)?;
    let rank = c.rank(y);
    for (i, name, op) in [(1, "min", BinaryOp::Max), (2, "max", BinaryOp::Min)] {
        if c.operand_name(i).is_some() {
            let bound = c.operand(i, rank)?;
            y = emit_binary(c, op, CallOperand::Tensor(y), bound)?;
        } else if let Some(bound) = c.opt_float(name)? {
            y = c.binary_float(op, y, bound)?;
        }
    }
    Ok(y)
}

fn select(c: &mut OpCall<'_, '_>) -> EmitResult {
    let [condition, x, y] = c.first_tensors()?;
    c.select(condition, x, y)
}

/// Inference drops nothing, so the mask of retained elements is true everywhere.
fn dropout(c: &mut OpCall<'_, '_>) -> RuleResult {
    let training = match c.operand_name(2) {
        None => false,
        Some(_) => c.scalar(2)?.is_none_or(|s| s.as_f64() != 0.0),
    };
    unsupported_if!(training, "training mode is not supported: it draws random numbers");
    // The ratio of dropped elements: an operand, or an attribute before version 12.
    c.operand_name(1);
    c.ignore(&["ratio", "seed"]);
    if c.is_result_read(1) {
        let x = c.tensor(0)?;
        let dtype = if c.version < 10 { c.dtype(x) } else { DType::Bool };
        let mask = c.full(Scalar::Int(1), dtype, c.shape(x))?;
        c.set_result(1, mask);
    }
    c.forward_operand(0)
}
