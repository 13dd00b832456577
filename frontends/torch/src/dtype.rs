//! PyTorch's dtypes and its promotion rules.
//!
//! PyTorch accepts operands of different dtypes; the IR does not. [`result_type`] is PyTorch's rule for the
//! common dtype. Within a category (bool, integer, floating-point), tensors with axes take precedence over
//! tensors without, which take precedence over Python scalars. A higher category takes precedence over all.

use symmc_ir::float8::{F8E4M3, F8E5M2, F8E8M0};
use symmc_ir::{DType, FloatAttribute, Scalar, Tensor};

/// PyTorch's default floating-point dtype: the dtype of a Python float next to integers.
pub(crate) const DEFAULT_FLOAT: DType = DType::F32;

/// The dtype of a `ScalarType` of the schema. Fails with the name of a dtype that the IR does not have.
pub(crate) fn from_schema(code: u32) -> Result<DType, String> {
    let dtype = DType::ALL.iter().find(|dtype| dtype.facts().torch.0 == code);
    dtype.copied().ok_or_else(|| unsupported_dtype_name(code))
}

/// The dtype of the components of a complex `ScalarType`.
pub(crate) fn complex_component_dtype(code: u32) -> Option<DType> {
    match code {
        10 => Some(DType::F32),
        11 => Some(DType::F64),
        _ => None,
    }
}

fn unsupported_dtype_name(code: u32) -> String {
    let name = match code {
        0 => "unknown",
        9 => "complex32",
        10 => "complex64",
        11 => "complex128",
        31 => "float8_e4m3fnuz",
        32 => "float8_e5m2fnuz",
        35 => "uint64",
        _ => return format!("a dtype of number {code}"),
    };
    format!("dtype {name}")
}

/// The precedence of an operand in promotion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum PromotionPriority {
    Scalar,
    NoAxes,
    Tensor,
}

fn category(d: DType) -> u8 {
    match d {
        DType::Bool => 0,
        dtype if dtype.is_integer() => 1,
        _ => 2,
    }
}

/// The smallest dtype to which both convert.
pub(crate) fn promote(a: DType, b: DType) -> DType {
    use DType::{F32, F64};
    if a == b {
        return a;
    }
    match (category(a), category(b)) {
        (x, y) if x < y => b,
        (x, y) if x > y => a,
        (1, _) => promote_integers(a, b),
        // PyTorch promotes no float of 8 bits: the importer of each operator says so.
        _ if a == F64 || b == F64 => F64,
        // The result of f16 with bf16 is f32, as is that of f32 with either.
        _ => F32,
    }
}

/// The smallest dtype of integers that represents both, or i64, which PyTorch takes for unsigned and signed integers of
/// 32 bits too.
fn promote_integers(a: DType, b: DType) -> DType {
    let signed = [DType::I8, DType::I16, DType::I32, DType::I64];
    let represents_both = |dtype: &DType| dtype.represents(a) && dtype.represents(b);
    [a, b].into_iter().chain(signed).find(represents_both).unwrap_or(DType::I64)
}

/// The common dtype of these operands. `None` without operands.
pub(crate) fn result_type(operands: &[(PromotionPriority, DType)]) -> Option<DType> {
    let promoted = |w: PromotionPriority| operands.iter().filter(|o| o.0 == w).map(|o| o.1).reduce(promote);
    let tensors = promoted(PromotionPriority::Tensor);
    let scalars = combine(promoted(PromotionPriority::NoAxes), promoted(PromotionPriority::Scalar));
    combine(tensors, scalars)
}

/// The common dtype of operands of a higher and a lower priority.
fn combine(higher: Option<DType>, lower: Option<DType>) -> Option<DType> {
    match (higher, lower) {
        (Some(h), Some(l)) if category(l) > category(h) => Some(promote(h, l)),
        (Some(h), _) => Some(h),
        (None, l) => l,
    }
}

pub(crate) fn scalar_dtype(s: Scalar) -> DType {
    match s {
        Scalar::Bool(_) => DType::Bool,
        Scalar::Int(_) => DType::I64,
        Scalar::Float(_) => DEFAULT_FLOAT,
    }
}

/// The largest finite number of a dtype, rounded to f64.
pub(crate) fn greatest(dtype: DType) -> f64 {
    match dtype {
        DType::Bool => 1.0,
        DType::F8E4M3 => f64::from(F8E4M3::LARGEST),
        DType::F8E5M2 => f64::from(F8E5M2::LARGEST),
        DType::F8E8M0 => f64::from(F8E8M0::LARGEST),
        DType::F16 => 65504.0,
        DType::BF16 => f64::from(f32::from_bits(0x7F7F_0000)),
        DType::F32 => f64::from(f32::MAX),
        DType::F64 => f64::MAX,
        integer => integer.integer_bounds().map_or(0.0, |(_, largest)| largest as f64),
    }
}

/// The smallest finite number of a dtype.
pub(crate) fn least(dtype: DType) -> f64 {
    match dtype {
        DType::Bool => 0.0,
        DType::F8E8M0 => dtype.facts().precision.map_or(0.0, |precision| precision.least),
        float if float.is_float() => -greatest(float),
        integer => integer.integer_bounds().map_or(0.0, |(least, _)| least as f64),
    }
}

/// Whether PyTorch converts a number to a dtype without an error.
pub(crate) fn fits(number: Scalar, dtype: DType) -> bool {
    let within = |x: f64| least(dtype) <= x && x <= greatest(dtype);
    match number {
        _ if dtype == DType::Bool => true,
        Scalar::Bool(_) => true,
        // A negative integer becomes unsigned if its magnitude fits.
        Scalar::Int(i) if least(dtype) == 0.0 => within(i.unsigned_abs() as f64),
        Scalar::Int(i) => within(i as f64),
        Scalar::Float(x) => within(x.0) || dtype.is_float() && !x.0.is_finite(),
    }
}

/// The scalar as a tensor of this dtype holds it: rounded if the dtype is a floating-point one.
pub(crate) fn round_scalar(s: Scalar, dtype: DType) -> Scalar {
    match Tensor::from_f64(dtype, [], &[s.as_f64()]) {
        Some(one) if dtype.is_float() => {
            one.to_f64().first().map_or(s, |&x| Scalar::Float(FloatAttribute(x)))
        }
        _ => s,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use DType::*;

    #[test]
    fn promotion_follows_pytorch() {
        let t = |d| (PromotionPriority::Tensor, d);
        let z = |d| (PromotionPriority::NoAxes, d);
        let s = |d| (PromotionPriority::Scalar, d);
        for (operands, expected) in [
            (vec![t(I64), s(F32)], F32),
            (vec![t(BF16), s(F32)], BF16),
            (vec![t(BF16), z(F32)], BF16),
            (vec![t(BF16), t(F32)], F32),
            (vec![t(BF16), t(F16)], F32),
            (vec![t(I32), z(I64)], I32),
            (vec![t(I32), z(F64)], F64),
            (vec![t(Bool), s(I64)], I64),
            (vec![t(Bool), t(U8)], U8),
            (vec![t(U8), t(I32)], I32),
            (vec![z(I32), s(F32)], F32),
            (vec![z(F64), t(F16)], F16),
        ] {
            assert_eq!(result_type(&operands), Some(expected), "{operands:?}");
        }
    }
}
