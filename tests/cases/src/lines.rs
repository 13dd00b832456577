//! Lists of ops with the results that another implementation gives, a case on each line.

use symmc_ir::Tensor;

/// How far numbers may be from those of another implementation, absolutely and relative to them.
const TOLERANCE: f64 = 1e-4;

/// Whether a result has the type of another implementation's and its numbers: floats nearly, NaN and infinities exactly.
///
/// # Errors
/// What was expected and found.
pub fn near(found: &Tensor, expected: &Tensor) -> Result<(), String> {
    if (found.dtype(), found.shape()) != (expected.dtype(), expected.shape()) {
        return Err(format!("expected {expected:?}, found {found:?}"));
    }
    let (f, e) = (found.to_f64(), expected.to_f64());
    let near = |a: f64, b: f64| b.is_finite() && (a - b).abs() <= TOLERANCE * (1.0 + b.abs());
    let close = |a: f64, b: f64| a == b || a.is_nan() && b.is_nan() || near(a, b);
    match f.iter().zip(&e).all(|(a, b)| close(*a, *b)) {
        true => Ok(()),
        false => Err(format!("expected {e:?}, found {f:?}")),
    }
}

/// Checks every line but empty ones and comments, which begin with `#`.
///
/// # Panics
/// Lines fail: it names all of them.
pub fn every_line(text: &str, check: impl Fn(&str) -> Result<(), String>) {
    let lines = text.lines().map(str::trim).zip(1..);
    let cases: Vec<_> = lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#')).collect();
    let failure = |&(line, number): &(&str, usize)| {
        check(line).err().map(|e| format!("line {number}: {line}\n    {e}"))
    };
    let failures: Vec<String> = cases.iter().filter_map(failure).collect();
    assert!(failures.is_empty(), "{} of {} fail:\n{}", failures.len(), cases.len(), failures.join("\n"));
}

#[cfg(test)]
mod tests {
    use symmc_ir::DType;

    use super::*;

    #[test]
    fn only_an_infinity_is_near_an_infinity() {
        let tensor_of = |x| Tensor::from_f64(DType::F32, [1], &[x]).expect("one number");
        let is_near = |a, b| near(&tensor_of(a), &tensor_of(b)).is_ok();
        assert!(
            is_near(f64::INFINITY, f64::INFINITY) && is_near(f64::NAN, f64::NAN) && is_near(1.00005, 1.0)
        );
        assert!(!is_near(1.0, f64::INFINITY) && !is_near(f64::NEG_INFINITY, f64::INFINITY));
        assert!(!is_near(f64::INFINITY, 1.0) && !is_near(f64::NAN, 1.0) && !is_near(1.001, 1.0));
    }
}
