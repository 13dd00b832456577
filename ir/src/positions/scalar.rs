//! Arithmetic on scalars with the results that tensors of a dtype would have.

use crate::collective::CollectiveReduceOp;
use crate::interp;
use crate::op::{BinaryOp, Op, UnaryOp};
use crate::tensor::{Tensor, read_f64, read_i64, write_f64, write_i64};
use crate::types::{DType, FloatAttribute, Scalar};

/// An element of a tensor; `None` for NaN.
pub fn element_of(tensor: &Tensor, index: usize) -> Option<Scalar> {
    match tensor.dtype() {
        DType::Bool => Some(Scalar::Bool(tensor.get_i64(index) != 0)),
        dtype if dtype.is_float() => {
            let x = tensor.get_f64(index);
            (!x.is_nan()).then_some(Scalar::Float(FloatAttribute(x)))
        }
        _ => Some(Scalar::Int(tensor.get_i64(index))),
    }
}

/// A scalar as a tensor of this dtype stores it: rounded, truncated or compared with 0. `None` for an integer
/// that does not fit or has no exact `f64`, and for NaN.
pub fn as_stored(dtype: DType, s: Scalar) -> Option<Scalar> {
    let mut bytes = [0_u8; 8];
    match dtype {
        d if d.is_float() && !has_exact_f64(s) => None,
        DType::Bool => Some(Scalar::Bool(s.as_f64() != 0.0)),
        d if d.is_float() => {
            write_f64(d, &mut bytes, 0, s.as_f64());
            let x = read_f64(d, &bytes, 0);
            (!x.is_nan()).then_some(Scalar::Float(FloatAttribute(x)))
        }
        d => {
            let x = match s {
                Scalar::Float(x) if x.0.is_nan() || x.0.abs() >= 9e15 => return None,
                s => s.as_i64(),
            };
            write_i64(d, &mut bytes, 0, x);
            (read_i64(d, &bytes, 0) == x).then_some(Scalar::Int(x))
        }
    }
}

fn has_exact_f64(s: Scalar) -> bool {
    !matches!(s, Scalar::Int(i) if i.unsigned_abs() > 1 << 53)
}

/// Whether a tensor of this dtype stores the scalar without change.
pub fn is_stored_exactly(dtype: DType, s: Scalar) -> bool {
    as_stored(dtype, s).is_some_and(|t| t.as_f64().to_bits() == s.as_f64().to_bits())
}

/// The result of an element-wise op on scalars with their dtypes, if every backend gives the same bits and they
/// are no NaN.
pub fn evaluate(op: &Op, operands: &[(Scalar, DType)], dtype: DType) -> Option<Scalar> {
    let is_float = operands.first()?.1.is_float();
    let is_certain = match op {
        // Some machines convert large integers in two roundings.
        Op::Cast => operands.iter().all(|(s, _)| !dtype.is_float() || has_exact_f64(*s)),
        Op::Select => true,
        Op::Unary(op) => !is_float || *op == UnaryOp::Neg,
        // One operation in f64, rounded once more, is correctly rounded in every narrower type.
        Op::Binary(op) | Op::BinaryScalar { op, .. } => {
            let is_rounded_once = matches!(op, BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div);
            !is_float || op.is_comparison() || is_rounded_once
        }
        _ => false,
    };
    if !is_certain {
        return None;
    }
    let full =
        |&(s, dtype): &(Scalar, DType)| interp::evaluate(&Op::Full(s), &[], &[(dtype, &[])]).ok()?.pop();
    let tensors = operands.iter().map(full).collect::<Option<Vec<Tensor>>>()?;
    let operands: Vec<&Tensor> = tensors.iter().collect();
    element_of(interp::evaluate(op, &operands, &[(dtype, &[])]).ok()?.first()?, 0)
}

/// The outcome of a comparison, given bounds of the difference of its operands, if they decide it.
pub fn decide_comparison(op: BinaryOp, (min, max): (i64, i64)) -> Option<bool> {
    let (always, never) = match op {
        BinaryOp::Eq => ((min, max) == (0, 0), min > 0 || max < 0),
        BinaryOp::Ne => (min > 0 || max < 0, (min, max) == (0, 0)),
        BinaryOp::Lt => (max < 0, min >= 0),
        BinaryOp::Le => (max <= 0, min > 0),
        BinaryOp::Gt => (min > 0, max <= 0),
        BinaryOp::Ge => (min >= 0, max < 0),
        _ => return None,
    };
    if always { Some(true) } else { never.then_some(false) }
}

/// The reduction of `ranks` copies of `s`, in order of rank. `None` for means and products of integers, and for
/// bools.
pub fn reduce_copies(op: CollectiveReduceOp, s: Scalar, dtype: DType, ranks: u32) -> Option<Scalar> {
    let repeat = |first: f64, f: &dyn Fn(f64, f64) -> f64| (1..ranks).fold(first, |acc, _| f(acc, first));
    let narrow = |x: f64| if dtype == DType::F64 { x } else { f64::from(x as f32) };
    match (op, s) {
        (CollectiveReduceOp::Max | CollectiveReduceOp::Min, _) => Some(s),
        (_, Scalar::Float(FloatAttribute(x))) if dtype.is_float() => {
            let x = match op {
                CollectiveReduceOp::Prod => repeat(x, &|a, b| narrow(a * b)),
                CollectiveReduceOp::Avg => narrow(repeat(x, &|a, b| narrow(a + b)) / f64::from(ranks)),
                _ => repeat(x, &|a, b| narrow(a + b)),
            };
            as_stored(dtype, Scalar::Float(FloatAttribute(x)))
        }
        (CollectiveReduceOp::Sum, Scalar::Int(x)) if dtype != DType::Bool => {
            Some(Scalar::Int(x.wrapping_mul(i64::from(ranks))).wrap_to(dtype))
        }
        _ => None,
    }
}
