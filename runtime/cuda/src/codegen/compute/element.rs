//! Element-wise ops as statements of a [`MapKernel`].

use symmc_ir::tensor::{read_f64, write_f64};
use symmc_ir::{BinaryOp, DType, Op, Scalar, UnaryOp};
use symmc_runtime::exec::LocatedTensor;

use super::lowering::{KernelLowering, mismatch_error};
use super::map::{MapKernel, MapValue};
use super::space::{Strides, broadcast};
use super::text::{bits, computed_type, float_literal, int_literal, stored_type};
use crate::codegen::command::{Commands, GpuCommand};
use crate::error::{CudaError, Result};

/// Lowers one op to a kernel.
pub(super) fn lower(
    op: &Op,
    operands: &[LocatedTensor],
    result: &LocatedTensor,
    l: &mut KernelLowering<'_>,
) -> Commands {
    let strides = Strides::from_slice(&result.strides);
    let bytes = result.shape.iter().product::<usize>() * result.dtype.size();
    if let Op::Full(scalar) = op
        && bits(result.dtype, *scalar) == 0
        && super::space::collapsed_axes(&result.shape, &result.strides).iter().all(|a| a.stride == 1)
    {
        return Ok((bytes > 0)
            .then(|| GpuCommand::Zero { at: l.address_of(result), bytes })
            .into_iter()
            .collect());
    }
    let mut map = MapKernel::over_shape(&result.shape);
    let mut values = Vec::with_capacity(operands.len());
    for x in operands {
        values.push((load(&mut map, x, &result.shape, l)?, x.dtype));
    }
    let value = op_value(&mut map, op, &values, result.dtype, l)?;
    map.store(l.address_of(result), strides, value);
    Ok(map.finish(symmc_ir::text::op_name(op), l).into_iter().collect())
}

/// An operand that broadcasts to `shape`.
pub(super) fn load(
    map: &mut MapKernel,
    x: &LocatedTensor,
    shape: &[usize],
    l: &KernelLowering<'_>,
) -> Result<MapValue> {
    let skip = shape.len().checked_sub(x.shape.len());
    let fits = skip.is_some_and(|s| x.shape.iter().zip(&shape[s..]).all(|(a, b)| a == b || *a == 1));
    if !fits {
        return Err(mismatch_error("an operand", shape, &x.shape));
    }
    Ok(map.load(l.address_of(x), stored_type(x.dtype), broadcast(shape, &x.shape, &x.strides)))
}

/// The value of one op on values of a map; each operand comes with its dtype.
pub(super) fn op_value(
    map: &mut MapKernel,
    op: &Op,
    x: &[(MapValue, DType)],
    to: DType,
    l: &mut KernelLowering<'_>,
) -> Result<MapValue> {
    let name = |i: usize| format!("get({})", MapKernel::name(x[i].0));
    let expression = match op {
        Op::Full(scalar) => {
            return Ok(map.compute(
                stored_type(to),
                format!("raw<{}>(0x{:x}ull)", stored_type(to), bits(to, *scalar)),
            ));
        }
        Op::Iota { start, step } => {
            // The space has one axis, with one store that keeps its order.
            format!("b_add({}, b_mul({}, (i64)(c0 + j)))", int_literal(*start), int_literal(*step))
        }
        Op::Unary(op) => unary(*op, x[0].1, &name(0))?,
        Op::Binary(op) => binary(map, *op, x[0].1, &name(0), &name(1), l)?,
        Op::BinaryScalar { op, scalar, scalar_left } => {
            let scalar = literal(*op, x[0].1, *scalar);
            let (a, b) = if *scalar_left { (scalar, name(0)) } else { (name(0), scalar) };
            binary(map, *op, x[0].1, &a, &b, l)?
        }
        Op::Select => {
            let expression =
                format!("{} ? {} : {}", name(0), MapKernel::name(x[1].0), MapKernel::name(x[2].0));
            return Ok(map.compute(stored_type(to), expression));
        }
        Op::Cast if x[0].1 == to => return Ok(x[0].0),
        Op::Cast => name(0),
        _ => return Err(super::lowering::no_kernel(op)),
    };
    Ok(map.compute(stored_type(to), format!("Put<{}>::of({expression})", stored_type(to))))
}

fn unary(op: UnaryOp, dtype: DType, x: &str) -> Result<String> {
    if !op.supports_dtype(dtype) {
        return Err(CudaError::Unsupported(format!("{op} is not defined on {dtype}")));
    }
    let suffix = if op == UnaryOp::Not && dtype == DType::Bool { "_bool" } else { "" };
    Ok(format!("u_{op}{suffix}({x})"))
}

fn binary(
    map: &mut MapKernel,
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
    if divides && !map.has_divisor() {
        let assertion = l.divisor_assertion();
        map.set_divisor_assertion(assertion);
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
