//! Whether a result is what it must be.

use symmc_ir::{BinaryOp, DType, Op, Tensor, UnaryOp};

/// The relative error that a result of this dtype may have.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-12,
        DType::F32 => 1e-5,
        DType::F16 => 1.0 / 1024.0,
        DType::BF16 => 1.0 / 128.0,
        _ => 0.0,
    }
}

/// Integers must agree exactly, floats within the tolerance of the dtype, relative to the value or to
/// `scale`, whichever is larger.
///
/// # Errors
/// A sentence that says where they differ.
pub fn agree(found: &Tensor, expected: &Tensor, scale: f64) -> Result<(), String> {
    if (found.dtype(), found.shape()) != (expected.dtype(), expected.shape()) {
        return Err(format!("found {found:?}, expected {expected:?}"));
    }
    if !found.dtype().is_float() {
        let (a, b) = (found.to_i64(), expected.to_i64());
        let position = a.iter().zip(&b).position(|(a, b)| a != b);
        return position.map_or(Ok(()), |i| Err(format!("element {i}: found {}, expected {}", a[i], b[i])));
    }
    let differs = |a: f64, b: f64| {
        let close = b.is_finite() && (a - b).abs() <= tolerance(found.dtype()) * b.abs().max(scale);
        !(close || a == b || a.is_nan() && b.is_nan())
    };
    let pairs: Vec<(f64, f64)> = found.to_f64().into_iter().zip(expected.to_f64()).collect();
    let wrong = pairs.iter().filter(|(a, b)| differs(*a, *b)).count();
    match pairs.iter().position(|(a, b)| differs(*a, *b)) {
        None => Ok(()),
        Some(i) => {
            let (a, b) = pairs[i];
            Err(format!("{wrong} of {} elements, first {i}: found {a:e}, expected {b:e}", pairs.len()))
        }
    }
}

/// The distance of the least numbers of a dtype.
fn least(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 5e-324,
        DType::F32 => 2f64.powi(-149),
        DType::F16 => 2f64.powi(-24),
        _ => 2f64.powi(-133),
    }
}

/// Whether each element of the result is one operation on elements of the operands, rounded once: then subnormal numbers and
/// the signs of zeros count.
fn is_exact(op: &Op) -> bool {
    use UnaryOp::{Abs, Ceil, Floor, Neg, Reciprocal, Relu, Round, Sign, Sqrt, Trunc};
    match op {
        Op::Unary(op) => {
            matches!(op, Abs | Ceil | Floor | Neg | Reciprocal | Relu | Round | Sign | Sqrt | Trunc)
        }
        Op::Binary(op) | Op::BinaryScalar { op, .. } => !matches!(op, BinaryOp::Pow | BinaryOp::Atan2),
        Op::Permuted { op, .. } => is_exact(op),
        Op::Reduce { .. }
        | Op::CumSum { .. }
        | Op::Softmax { .. }
        | Op::MatMul { .. }
        | Op::Attention { .. } => false,
        Op::GroupedMatMul | Op::AttentionGradient { .. } => false,
        Op::RmsNorm { .. } | Op::LayerNorm { .. } | Op::IndexAdd { .. } => false,
        Op::ScatterElements { combine, .. } => combine.is_none(),
        Op::IndexPut { accumulate, .. } => !accumulate,
        _ => true,
    }
}

/// As [`agree`] without a scale, each number relative to itself. Where the op is one operation, subnormal numbers may differ
/// in the last place only and zeros have the sign that is expected; elsewhere what is below the least normal number counts
/// as zero, and of a layer norm what is below the precision of the sum with the bias.
///
/// # Errors
/// Where they differ, at most five times.
pub fn alike(op: &Op, found: &Tensor, expected: &Tensor) -> Result<(), String> {
    if (found.dtype(), found.shape()) != (expected.dtype(), expected.shape()) || !found.dtype().is_float() {
        return agree(found, expected, 0.0);
    }
    let (dtype, exact) = (found.dtype(), is_exact(op));
    let slack = match (exact, dtype) {
        // The bias may cancel what was normalised, numbers around 1, in f32.
        (_, DType::F16 | DType::BF16 | DType::F32) if matches!(op, Op::LayerNorm { .. }) => 1e-6,
        (true, _) => 2.0 * least(dtype),
        (false, DType::F64) => f64::MIN_POSITIVE,
        (false, DType::F16) => 2.0 * least(dtype),
        (false, _) => f64::from(f32::MIN_POSITIVE),
    };
    let is_near = |a: f64, b: f64| {
        let near = b.is_finite() && (a - b).abs() <= tolerance(dtype) * b.abs() + slack;
        let zeros = !exact || a != 0.0 || b != 0.0 || a.is_sign_negative() == b.is_sign_negative();
        zeros && (near || a == b || a.is_nan() && b.is_nan())
    };
    let pairs = found.to_f64().into_iter().zip(expected.to_f64()).enumerate();
    let wrong: Vec<String> = pairs
        .filter(|(_, (a, b))| !is_near(*a, *b))
        .map(|(i, (a, b))| format!("element {i}: found {a:e}, expected {b:e}"))
        .collect();
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(format!("{} differ; {}", wrong.len(), wrong[..wrong.len().min(5)].join("; "))),
    }
}
