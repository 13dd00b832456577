//! Calls that leave arguments to PyTorch's defaults, with every dtype, and what PyTorch gives (`calls.txt`, made by
//! `tools/calls.py`). Each call is refused, or gives the same within a few roundings of its dtype.

use symmc_ir::{DType, Tensor};
use symmc_torch::ImportError;

use crate::ops::{Outcome, case, expected, outcome};

/// How far results may be apart, relative to the largest number of the result: a few roundings to its dtype.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => 3.0 / 256.0,
        DType::F16 => 3.0 / 2048.0,
        DType::F32 => 4e-6,
        DType::F64 => 1e-12,
        _ => 0.0,
    }
}

fn differ(found: &Tensor, expected: &Tensor) -> Option<String> {
    if (found.dtype(), found.shape()) != (expected.dtype(), expected.shape()) {
        return Some(format!("expected {expected:?}, found {found:?}"));
    }
    let (f, e) = (found.to_f64(), expected.to_f64());
    let largest = e.iter().filter(|x| x.is_finite()).fold(0.0f64, |a, x| a.max(x.abs()));
    let slack = tolerance(found.dtype()) * largest;
    let same = |(a, b): (&f64, &f64)| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= slack;
    (!f.iter().zip(&e).all(same)).then(|| format!("expected {e:?}, found {f:?}"))
}

#[test]
fn arguments_left_out_mean_what_they_mean_in_pytorch() {
    let (mut agreed, mut refused, mut wrong) = (0, Vec::new(), Vec::new());
    for line in include_str!("calls.txt").lines() {
        let case = case(line);
        match outcome(&case) {
            Ok(Outcome::Results(found)) => {
                let pairs = found.iter().zip(expected(&case));
                match pairs.into_iter().find_map(|(f, e)| differ(f, &e)) {
                    None => agreed += 1,
                    Some(how) => wrong.push(format!("{line}\n    {how}")),
                }
            }
            Ok(Outcome::Refused(error @ ImportError::Type { .. })) => {
                wrong.push(format!("{line}\n    {error}"))
            }
            Ok(Outcome::Refused(error)) => refused.push(format!("{line}\n    {error}")),
            Ok(Outcome::Opaque(op)) => refused.push(format!("{line}\n    opaque: {op}")),
            Err(error) => wrong.push(format!("{line}\n    {error}")),
        }
    }
    assert!(agreed > 4000 && refused.len() < 300, "{agreed} agreed, {} refused: {refused:#?}", refused.len());
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}
