//! Comparing a found tensor with the expected one.

use std::fmt;

use crate::tensor::Tensor;

/// How far a found tensor is from the expected one.
#[derive(Clone, PartialEq, Debug)]
pub struct Comparison {
    /// The number of elements compared.
    pub elements: usize,
    /// The largest absolute difference; infinite where one is infinite and the other is not the same
    /// infinity. Elements that are NaN on a side do not count here.
    pub max_abs: f64,
    /// The coordinates of that difference, and the found and the expected element there; `None` if all
    /// elements are equal.
    pub max_abs_at: Option<Difference>,
    /// The largest absolute value among the finite expected elements; 0 if there is none.
    pub largest_expected: f64,
    /// The number of elements that are NaN on one side only.
    pub nan_mismatch: usize,
    /// What differs if the tensors have not the same dtype and shape; then nothing else was compared.
    pub type_mismatch: Option<String>,
}

/// Two elements that differ.
#[derive(Clone, PartialEq, Debug)]
pub struct Difference {
    /// Their coordinates.
    pub at: Vec<usize>,
    /// The element found.
    pub found: f64,
    /// The element expected.
    pub expected: f64,
}

impl Comparison {
    /// Whether types agree, no NaN stands alone and no element differs by more than `tolerance`.
    pub fn within(&self, tolerance: f64) -> bool {
        self.type_mismatch.is_none() && self.nan_mismatch == 0 && self.max_abs <= tolerance
    }
    /// [`within`](Self::within) a fraction of the largest expected element.
    pub fn within_relative(&self, fraction: f64) -> bool {
        self.within(fraction * self.largest_expected)
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(what) = &self.type_mismatch {
            return f.write_str(what);
        }
        write!(f, "largest difference {:.3e}", self.max_abs)?;
        if let Some(d) = &self.max_abs_at {
            write!(f, " at {:?} (found {:e}, expected {:e})", d.at, d.found, d.expected)?;
        }
        write!(f, ", largest expected {:.3e}", self.largest_expected)?;
        if self.nan_mismatch > 0 {
            write!(f, ", {} NaN on one side only", self.nan_mismatch)?;
        }
        Ok(())
    }
}

/// Compares element by element. NaN equals NaN, an infinity equals itself, integers are compared exactly.
pub fn compare(found: &Tensor, expected: &Tensor) -> Comparison {
    let mut out = Comparison {
        elements: 0,
        max_abs: 0.0,
        max_abs_at: None,
        largest_expected: 0.0,
        nan_mismatch: 0,
        type_mismatch: None,
    };
    if (found.dtype(), found.shape()) != (expected.dtype(), expected.shape()) {
        out.type_mismatch = Some(format!(
            "expected {}{:?}, found {}{:?}",
            expected.dtype(),
            expected.shape(),
            found.dtype(),
            found.shape()
        ));
        return out;
    }
    out.elements = found.numel();
    let (a, b) = (found.to_f64(), expected.to_f64());
    let exact = (!found.dtype().is_float()).then(|| (found.to_i64(), expected.to_i64()));
    let mut worst = None;
    for i in 0..out.elements {
        if b[i].is_finite() {
            out.largest_expected = out.largest_expected.max(b[i].abs());
        }
        if a[i].is_nan() || b[i].is_nan() {
            out.nan_mismatch += usize::from(a[i].is_nan() != b[i].is_nan());
            continue;
        }
        let difference = match &exact {
            Some((a, b)) => a[i].abs_diff(b[i]) as f64,
            None if a[i] == b[i] => 0.0,
            None => (a[i] - b[i]).abs(),
        };
        if difference > out.max_abs {
            out.max_abs = difference;
            worst = Some(i);
        }
    }
    out.max_abs_at =
        worst.map(|i| Difference { at: coordinates(found.shape(), i), found: a[i], expected: b[i] });
    out
}

fn coordinates(shape: &[usize], mut position: usize) -> Vec<usize> {
    let mut out = vec![0; shape.len()];
    for (c, &extent) in out.iter_mut().zip(shape).rev() {
        *c = position % extent;
        position /= extent;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::DType;

    fn f32s(elements: &[f64]) -> Tensor {
        Tensor::from_f64(DType::F32, vec![elements.len()], elements).unwrap()
    }

    #[test]
    fn differences_are_found() {
        let c = compare(&f32s(&[1.0, -4.0, 3.0]), &f32s(&[1.0, -5.5, 2.0]));
        assert_eq!((c.max_abs, c.largest_expected, c.elements), (1.5, 5.5, 3));
        assert_eq!(c.max_abs_at, Some(Difference { at: vec![1], found: -4.0, expected: -5.5 }));
        assert!(c.within(1.5) && !c.within(1.4) && c.within_relative(0.3) && !c.within_relative(0.2));
    }

    #[test]
    fn special_values() {
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        assert!(compare(&f32s(&[inf, nan, -inf]), &f32s(&[inf, nan, -inf])).within(0.0));
        assert_eq!(compare(&f32s(&[nan, 1.0]), &f32s(&[1.0, nan])).nan_mismatch, 2);
        assert_eq!(compare(&f32s(&[1.0]), &f32s(&[inf])).max_abs, inf);
        assert_eq!(compare(&f32s(&[-inf]), &f32s(&[inf])).max_abs, inf);
    }

    #[test]
    fn integers_are_exact_and_types_must_agree() {
        let big = |x| Tensor::from_i64(DType::I64, vec![1, 1], &[x]).unwrap();
        let c = compare(&big(i64::MAX), &big(i64::MAX - 1));
        assert_eq!((c.max_abs, c.max_abs_at.map(|d| d.at)), (1.0, Some(vec![0, 0])));
        let c = compare(&big(0), &f32s(&[0.0]));
        assert_eq!(c.type_mismatch.as_deref(), Some("expected f32[1], found i64[1, 1]"));
        assert!(!c.within(f64::INFINITY));
        assert!(compare(&f32s(&[]), &f32s(&[])).within(0.0));
    }
}
