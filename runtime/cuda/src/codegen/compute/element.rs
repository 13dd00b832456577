//! Element-wise ops as statements of a [`Map`].

use symmc_ir::tensor::{read_f64, write_f64};
use symmc_ir::{BinaryOp, DType, Op, Scalar, UnaryOp};
use symmc_runtime::exec::Located;

use super::lowering::{Lowering, misfit};
use super::map::{Map, Val};
use super::space::{Strides, broadcast};
use super::text::{bits, computed, int, real, stored};
use crate::codegen::command::{Command, Commands};
use crate::error::{CudaError, Result};

/// One op in a kernel of its own.
pub(super) fn lower(op: &Op, operands: &[Located], result: &Located, l: &mut Lowering<'_>) -> Commands {
    let to = Strides::from_slice(&result.strides);
    let bytes = result.shape.iter().product::<usize>() * result.dtype.size();
    if let Op::Full(scalar) = op
        && bits(result.dtype, *scalar) == 0
        && super::space::axes(&result.shape, &result.strides).iter().all(|a| a.stride == 1)
    {
        return Ok((bytes > 0).then(|| Command::Zero { at: l.at(result), bytes }).into_iter().collect());
    }
    let mut map = Map::over(&result.shape);
    let mut values = Vec::with_capacity(operands.len());
    for x in operands {
        values.push((load(&mut map, x, &result.shape, l)?, x.dtype));
    }
    let value = value(&mut map, op, &values, result.dtype, l)?;
    map.store(l.at(result), to, value);
    Ok(map.finish(symmc_ir::text::op_name(op), l).into_iter().collect())
}

/// An operand that broadcasts to `shape`.
pub(super) fn load(map: &mut Map, x: &Located, shape: &[usize], l: &Lowering<'_>) -> Result<Val> {
    let skip = shape.len().checked_sub(x.shape.len());
    let fits = skip.is_some_and(|s| x.shape.iter().zip(&shape[s..]).all(|(a, b)| a == b || *a == 1));
    if !fits {
        return Err(misfit("an operand", shape, &x.shape));
    }
    Ok(map.load(l.at(x), stored(x.dtype), broadcast(shape, &x.shape, &x.strides)))
}

/// The value of one op on values of a map; each comes with its dtype.
pub(super) fn value(
    map: &mut Map,
    op: &Op,
    x: &[(Val, DType)],
    to: DType,
    l: &mut Lowering<'_>,
) -> Result<Val> {
    let name = |i: usize| format!("get({})", Map::name(x[i].0));
    let expression = match op {
        Op::Full(scalar) => {
            return Ok(map.compute(stored(to), format!("raw<{}>(0x{:x}ull)", stored(to), bits(to, *scalar))));
        }
        Op::Iota { start, step } => {
            // The space has one axis, with one store that keeps its order.
            format!("b_add({}, b_mul({}, (i64)(c0 + j)))", int(*start), int(*step))
        }
        Op::Unary(op) => unary(*op, x[0].1, &name(0))?,
        Op::Binary(op) => binary(map, *op, x[0].1, &name(0), &name(1), l)?,
        Op::BinaryScalar { op, scalar, scalar_left } => {
            let scalar = literal(*op, x[0].1, *scalar);
            let (a, b) = if *scalar_left { (scalar, name(0)) } else { (name(0), scalar) };
            binary(map, *op, x[0].1, &a, &b, l)?
        }
        Op::Select => {
            let expression = format!("{} ? {} : {}", name(0), Map::name(x[1].0), Map::name(x[2].0));
            return Ok(map.compute(stored(to), expression));
        }
        Op::Cast if x[0].1 == to => return Ok(x[0].0),
        Op::Cast => name(0),
        _ => return Err(super::lowering::no_kernel(op)),
    };
    Ok(map.compute(stored(to), format!("Put<{}>::of({expression})", stored(to))))
}

fn unary(op: UnaryOp, dtype: DType, x: &str) -> Result<String> {
    if !op.takes(dtype) {
        return Err(CudaError::Unsupported(format!("{op} is not defined on {dtype}")));
    }
    let suffix = if op == UnaryOp::Not && dtype == DType::Bool { "_bool" } else { "" };
    Ok(format!("u_{op}{suffix}({x})"))
}

fn binary(
    map: &mut Map,
    op: BinaryOp,
    dtype: DType,
    x: &str,
    y: &str,
    l: &mut Lowering<'_>,
) -> Result<String> {
    if !op.takes(dtype) {
        return Err(CudaError::Unsupported(format!("{op} is not defined on {dtype}")));
    }
    let divides = matches!(op, BinaryOp::FloorDiv | BinaryOp::Rem) && !dtype.is_float();
    if divides && !map.has_divisor() {
        let assertion = l.divisor_assertion();
        map.divides(assertion);
    }
    let bad = if divides { ", bad" } else { "" };
    // Both arguments have the one computed type, so that overloads and templates agree on it.
    let c = computed(dtype);
    Ok(format!("b_{op}(({c}){x}, ({c}){y}{bad})"))
}

/// The scalar of a binary op on a tensor of a dtype. A comparison is made in that dtype.
fn literal(op: BinaryOp, dtype: DType, scalar: Scalar) -> String {
    if !dtype.is_float() {
        return int(scalar.as_i64());
    }
    let mut x = scalar.as_f64();
    if op.is_comparison() {
        let mut bytes = [0u8; 8];
        write_f64(dtype, &mut bytes, 0, x);
        x = read_f64(dtype, &bytes, 0);
    }
    real(dtype, x)
}
