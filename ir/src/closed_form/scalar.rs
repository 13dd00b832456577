//! Arithmetic on scalars with the results that tensors of a dtype would have.

use crate::collective::CollectiveReduceOp;
use crate::op::BinaryOp;
use crate::tensor::{read_f64, read_i64, write_f64, write_i64};
use crate::types::{DType, FloatAttribute, Scalar};

/// A scalar as a tensor of this dtype stores it: rounded, truncated or compared with 0. `None` for an integer
/// that does not fit or has no exact `f64`, and for NaN.
pub fn as_stored(dtype: DType, s: Scalar) -> Option<Scalar> {
    convert_scalar(s, dtype)
}

/// Whether a tensor of this dtype stores the scalar without change.
pub fn is_stored_exactly(dtype: DType, s: Scalar) -> bool {
    as_stored(dtype, s).is_some_and(|t| t.as_f64().to_bits() == s.as_f64().to_bits())
}

/// A scalar converted to a dtype; see [`as_stored`].
pub fn convert_scalar(s: Scalar, dtype: DType) -> Option<Scalar> {
    let mut bytes = [0_u8; 8];
    match dtype {
        d if d.is_float() && matches!(s, Scalar::Int(i) if i.unsigned_abs() > 1 << 53) => None,
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

/// The scalar of a scalar op on a tensor of this dtype, as the op uses it. Comparisons use it in the dtype of
/// the tensor; arithmetic on floats of 32 bits or less uses f32. `None` as for [`as_stored`].
pub fn scalar_operand(op: BinaryOp, s: Scalar, dtype: DType) -> Option<Scalar> {
    let wide = match dtype {
        DType::F16 | DType::BF16 if !op.is_comparison() => DType::F32,
        dtype => dtype,
    };
    let stored = as_stored(wide, s)?;
    let is_same = dtype.is_float() || stored.as_i64() == s.as_i64();
    is_same.then_some(stored)
}

/// `a op b` for operands of one dtype, or of f32 if `a` or `b` is the scalar of a scalar op. `None` if the
/// result is not certain to the last bit.
pub fn fold_binary(op: BinaryOp, a: Scalar, b: Scalar, dtype: DType) -> Option<Scalar> {
    use BinaryOp::*;
    if op.is_comparison() {
        return Some(Scalar::Bool(match (a, b) {
            (Scalar::Float(x), Scalar::Float(y)) => evaluate_comparison(op, x.0.partial_cmp(&y.0)?)?,
            _ => evaluate_comparison(op, a.as_i64().cmp(&b.as_i64()))?,
        }));
    }
    match (a, b) {
        (Scalar::Bool(x), Scalar::Bool(y)) => Some(Scalar::Bool(match op {
            And | Min => x && y,
            Or | Max => x || y,
            Xor => x != y,
            _ => return None,
        })),
        (Scalar::Int(x), Scalar::Int(y)) => {
            let value = match op {
                Add => x.checked_add(y)?,
                Sub => x.checked_sub(y)?,
                Mul => x.checked_mul(y)?,
                Max => x.max(y),
                Min => x.min(y),
                And => x & y,
                Or => x | y,
                Xor => x ^ y,
                FloorDiv if y > 0 => x.div_euclid(y),
                Rem if y > 0 => x.rem_euclid(y),
                Shl if (0..63).contains(&y) => x.checked_mul(1 << y)?,
                Shr => x >> if (0..64).contains(&y) { y } else { 63 },
                _ => return None,
            };
            convert_scalar(Scalar::Int(value), dtype)
        }
        // One operation in f64, rounded once more, is correctly rounded in every narrower type.
        (Scalar::Float(x), Scalar::Float(y)) => {
            let value = match op {
                Add => x.0 + y.0,
                Sub => x.0 - y.0,
                Mul => x.0 * y.0,
                Div => x.0 / y.0,
                _ => return None,
            };
            convert_scalar(Scalar::Float(FloatAttribute(value)), dtype)
        }
        _ => None,
    }
}

fn evaluate_comparison(op: BinaryOp, order: std::cmp::Ordering) -> Option<bool> {
    Some(match op {
        BinaryOp::Eq => order.is_eq(),
        BinaryOp::Ne => order.is_ne(),
        BinaryOp::Lt => order.is_lt(),
        BinaryOp::Le => order.is_le(),
        BinaryOp::Gt => order.is_gt(),
        BinaryOp::Ge => order.is_ge(),
        _ => return None,
    })
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
