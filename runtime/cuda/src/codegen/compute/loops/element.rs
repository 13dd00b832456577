//! Element-wise ops as statements of a loop body.

use symmc_ir::tensor::{read_f64, write_f64};
use symmc_ir::{BinaryOp, DType, Op, Scalar, UnaryOp};

use super::super::lowering::{KernelLowering, no_kernel};
use super::super::text::{bits, computed_type, float_literal, int_literal, stored_type};
use super::body::{LoopBody, LoopValue};
use crate::error::{CudaError, Result};

/// The value of one op on values of a body; each operand comes with its dtype.
pub(in super::super) fn op_value(
    body: &mut LoopBody,
    op: &Op,
    x: &[(LoopValue, DType)],
    to: DType,
    l: &mut KernelLowering<'_>,
) -> Result<LoopValue> {
    let name = |i: usize| format!("get({})", LoopBody::name(x[i].0));
    let operands = x.iter().map(|(value, _)| *value);
    let expression = match op {
        Op::Full(scalar) => {
            let expression = format!("raw<{}>(0x{:x}ull)", stored_type(to), bits(to, *scalar));
            return Ok(body.compute(stored_type(to), expression, []));
        }
        Op::Iota { start, step } => {
            // The space has one axis, with one store that keeps its order.
            format!("b_add({}, b_mul({}, (i64)(c0 + j)))", int_literal(*start), int_literal(*step))
        }
        Op::Unary(op) => unary(*op, x[0].1, &name(0))?,
        Op::Binary(op) => binary(body, *op, x[0].1, &name(0), &name(1), l)?,
        Op::BinaryScalar { op, scalar, scalar_left } => {
            let scalar = literal(*op, x[0].1, *scalar);
            let (a, b) = if *scalar_left { (scalar, name(0)) } else { (name(0), scalar) };
            binary(body, *op, x[0].1, &a, &b, l)?
        }
        Op::Select => {
            let expression = format!("{} ? {} : {}", name(0), LoopBody::name(x[1].0), LoopBody::name(x[2].0));
            return Ok(body.compute(stored_type(to), expression, operands));
        }
        Op::Bitcast => {
            let expression = format!("bits_as<{}>({})", stored_type(to), LoopBody::name(x[0].0));
            return Ok(body.compute(stored_type(to), expression, operands));
        }
        Op::Cast if x[0].1 == to => return Ok(x[0].0),
        Op::Cast => name(0),
        _ => return Err(no_kernel(op)),
    };
    Ok(body.compute(stored_type(to), format!("Put<{}>::of({expression})", stored_type(to)), operands))
}

fn unary(op: UnaryOp, dtype: DType, x: &str) -> Result<String> {
    if !op.supports_dtype(dtype) {
        return Err(CudaError::Unsupported(format!("{op} is not defined on {dtype}")));
    }
    let suffix = if op == UnaryOp::Not && dtype == DType::Bool { "_bool" } else { "" };
    Ok(format!("u_{op}{suffix}({x})"))
}

fn binary(
    body: &mut LoopBody,
    op: BinaryOp,
    dtype: DType,
    x: &str,
    y: &str,
    l: &mut KernelLowering<'_>,
) -> Result<String> {
    if !op.supports_dtype(dtype) {
        return Err(CudaError::Unsupported(format!("{op} is not defined on {dtype}")));
    }
    let divides = matches!(op, BinaryOp::FloorDiv | BinaryOp::Rem) && !dtype.is_float();
    if divides && !body.has_divisor() {
        let assertion = l.divisor_assertion();
        body.set_divisor_assertion(assertion);
    }
    let bad = if divides { ", bad" } else { "" };
    // Both arguments are cast to the computed type, so that overloads and templates agree on it.
    let c = computed_type(dtype);
    Ok(format!("b_{op}(({c}){x}, ({c}){y}{bad})"))
}

/// The scalar of a binary op on a tensor of a dtype. Comparisons use that dtype.
fn literal(op: BinaryOp, dtype: DType, scalar: Scalar) -> String {
    if !dtype.is_float() {
        return int_literal(scalar.as_i64());
    }
    let mut x = scalar.as_f64();
    if op.is_comparison() {
        let mut bytes = [0u8; 8];
        write_f64(dtype, &mut bytes, 0, x);
        x = read_f64(dtype, &bytes, 0);
    }
    float_literal(dtype, x)
}
