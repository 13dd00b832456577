//! Whether a result is what it must be.

use symmc_ir::{DType, Tensor};

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
        let at = a.iter().zip(&b).position(|(a, b)| a != b);
        return at.map_or(Ok(()), |i| Err(format!("element {i}: found {}, expected {}", a[i], b[i])));
    }
    let differs = |a: f64, b: f64| {
        let close = (a - b).abs() <= tolerance(found.dtype()) * b.abs().max(scale);
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
