//! Compares a found tensor with the expected one, element by element.
//!
//! Integers and booleans are compared exactly. A float may differ by an absolute tolerance plus a fraction of
//! the expected element, `|found - expected| <= absolute + relative * |expected|`. NaN matches only NaN, and an
//! infinity only itself.
//!
//! The error of a sum in another order is a fraction of its terms, not of its result, and terms are about as
//! large as typical elements. [`Tolerance::for_dtype_of`] therefore derives the absolute part from the median
//! of the expected magnitudes, which no single large element affects. The fraction depends on the types in
//! which the element was computed, which its [`RoundingHistory`] records.

use std::fmt;

use super::rounding::RoundingHistory;
use super::spread::{NoiseSpread, SPREAD_FACTOR, distance};
use crate::tensor::Tensor;
use crate::types::DType;

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tolerance {
    /// The allowed difference for every element.
    pub absolute: f64,
    /// The allowed difference as a fraction of the expected element's magnitude.
    pub relative: f64,
    /// Whether an infinity or NaN may replace a finite element, if runs with noise show one.
    pub may_overflow: bool,
}

/// The maximum number of magnitudes for a median. Larger tensors are sampled evenly.
const MAX_MEDIAN_SAMPLES: usize = 1 << 20;

impl Tolerance {
    pub const EXACT: Tolerance = Tolerance { absolute: 0.0, relative: 0.0, may_overflow: false };

    pub fn absolute(absolute: f64) -> Tolerance {
        Tolerance { absolute, ..Tolerance::EXACT }
    }

    /// The default for results that other kernels computed in the same type, with sums in another order. It is
    /// a fraction of each element ([`default_fraction`](Self::default_fraction)), plus the same fraction of a
    /// typical element: the median of the magnitudes that are neither 0 nor infinite. Integers and booleans are
    /// exact.
    pub fn for_dtype_of(expected: &Tensor) -> Tolerance {
        Tolerance::for_history(&RoundingHistory::rounded_to(expected.dtype()), expected)
    }

    /// The default for results with this rounding history: as [`for_dtype_of`](Self::for_dtype_of), for the
    /// coarsest type that the result, or a value it was computed from, was rounded to. Integers, booleans, and
    /// results whose history has no rounding are exact.
    pub fn for_history(history: &RoundingHistory, expected: &Tensor) -> Tolerance {
        let relative = history.types().map(Tolerance::default_fraction).fold(0.0, f64::max);
        if relative == 0.0 || !expected.dtype().is_float() {
            return Tolerance::EXACT;
        }
        // Subnormal numbers have larger steps than any fraction of the number.
        let steps = 4.0 * history.types().map(smallest_step).fold(0.0, f64::max);
        let absolute = relative * typical_magnitude(expected) + steps;
        Tolerance { absolute, relative, may_overflow: history.may_overflow() }
    }

    /// For results that are stored in a finer type than values they were computed from: the tolerance of the
    /// stored type, as if the history had nothing coarser. Runs with noise widen it
    /// ([`widened_by_noise`](Self::widened_by_noise)).
    pub fn for_stored_type(history: &RoundingHistory, expected: &Tensor) -> Tolerance {
        let limit = Tolerance::for_history(history, expected);
        let fraction = Tolerance::default_fraction(expected.dtype());
        if fraction == 0.0 || fraction >= limit.relative { limit } else { limit.with_relative(fraction) }
    }

    /// This tolerance, widened to several times the largest move of a typical element in a run with noise, and
    /// at most to `limit`. No type determines how far rounding moves a result that is averaged over many
    /// rounded values.
    #[must_use]
    pub fn widened_by_noise(self, expected: &Tensor, noisy: &Tensor, limit: Tolerance) -> Tolerance {
        if limit.relative <= self.relative || expected.numel() != noisy.numel() {
            return self;
        }
        let typical = typical_magnitude(expected);
        let moves = (0..expected.numel()).map(|i| (expected.get_f64(i), noisy.get_f64(i)));
        let finite = moves.filter(|(e, n)| e.is_finite() && n.is_finite() && e.abs() + typical > 0.0);
        let max_deviation = finite.map(|(e, n)| (n - e).abs() / (e.abs() + typical)).fold(0.0, f64::max);
        limit.with_relative((SPREAD_FACTOR * max_deviation).clamp(self.relative, limit.relative))
    }

    fn with_relative(self, relative: f64) -> Tolerance {
        Tolerance { absolute: self.absolute * relative / self.relative, relative, ..self }
    }

    /// The allowed relative difference for elements of a dtype: 1e-9 for f64, 3e-5 for f32, 5e-3 for f16 and
    /// 4e-2 for bf16.
    pub fn default_fraction(dtype: DType) -> f64 {
        dtype.facts().precision.map_or(0.0, |p| p.tolerance)
    }

    fn allowed_difference(&self, expected: f64) -> f64 {
        // 0 times an infinity is NaN.
        if self.relative == 0.0 { self.absolute } else { self.absolute + self.relative * expected.abs() }
    }
}

impl fmt::Display for Tolerance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Tolerance::EXACT {
            return f.write_str("exact");
        }
        write!(f, "{:.1e} + {:.1e} of the element", self.absolute, self.relative)
    }
}

/// The distance between the numbers nearest to 0.
fn smallest_step(dtype: DType) -> f64 {
    dtype.facts().precision.map_or(0.0, |p| p.least)
}

/// The median of the magnitudes of finite elements other than 0 (the lower of two middle ones); 0 if there are
/// none.
fn typical_magnitude(tensor: &Tensor) -> f64 {
    let stride = tensor.numel().div_ceil(MAX_MEDIAN_SAMPLES).max(1);
    let elements = (0..tensor.numel()).step_by(stride).map(|i| tensor.get_f64(i).abs());
    let mut magnitudes: Vec<f64> = elements.filter(|x| x.is_finite() && *x > 0.0).collect();
    if magnitudes.is_empty() {
        return 0.0;
    }
    let middle = (magnitudes.len() - 1) / 2;
    *magnitudes.select_nth_unstable_by(middle, f64::total_cmp).1
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct TensorComparison {
    pub elements: usize,
    /// The number of elements that differ by more than the tolerance, or are NaN on one side only.
    pub beyond: usize,
    /// The largest absolute difference. It is infinite if one element is infinite and the other is not the same
    /// infinity. Elements that are NaN on either side are excluded.
    pub max_abs: f64,
    /// The largest difference as a multiple of the allowed difference of that element; infinite if no
    /// difference is allowed. Elements that are NaN on either side are excluded.
    pub of_tolerance: f64,
    /// The element that exceeds its allowed difference the most; `None` if all elements are equal.
    pub worst: Option<ElementDifference>,
    /// The number of elements that are NaN on one side only, and not allowed to be.
    pub nan_mismatch: usize,
    /// The number of elements that are infinite or NaN instead of finite, as the tolerance allows.
    pub overflowed: usize,
    /// The number of elements that differ by more than the tolerance, but by no more than rounding explains.
    pub sensitive: usize,
    /// A description of the different dtypes or shapes. If present, nothing else was compared.
    pub type_mismatch: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ElementDifference {
    pub at: Vec<usize>,
    /// The found element, with all its digits.
    pub found: String,
    pub expected: String,
}

impl TensorComparison {
    fn record_difference(&mut self, difference: f64, allowed: f64, within: bool) {
        self.beyond += usize::from(!within);
        if difference.is_nan() {
            self.nan_mismatch += 1;
        } else {
            self.max_abs = self.max_abs.max(difference);
            self.of_tolerance = self.of_tolerance.max(difference / allowed);
        }
    }

    /// Whether the types match, and every difference is within the tolerance or explained by rounding.
    pub fn is_equal(&self) -> bool {
        self.agrees() && self.max_abs == 0.0 && self.overflowed + self.sensitive == 0
    }

    /// Whether types agree and every element is within the tolerance.
    pub fn agrees(&self) -> bool {
        self.type_mismatch.is_none() && self.beyond == 0
    }
}

impl fmt::Display for TensorComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(mismatch) = &self.type_mismatch {
            return f.write_str(mismatch);
        }
        match (self.max_abs, self.of_tolerance) {
            (0.0, _) if self.beyond + self.sensitive == 0 => f.write_str("equal")?,
            (0.0, _) if self.sensitive == 0 => f.write_str("equal where both are numbers")?,
            (largest, share) if self.beyond == 0 => {
                write!(
                    f,
                    "largest absolute difference {largest:.2e}, at most {:.1} % of the tolerance",
                    100.0 * share
                )?;
            }
            (largest, times) if times.is_finite() => {
                write!(
                    f,
                    "largest absolute difference {largest:.2e}, up to {times:.3e} times the tolerance"
                )?;
            }
            (largest, _) => write!(f, "largest absolute difference {largest:.2e}")?,
        }
        if self.overflowed > 0 {
            let some = self.overflowed;
            let total = self.elements;
            write!(f, ", {some} of {total} elements infinite or NaN, which the numerics class allows")?;
        }
        if self.sensitive > 0 {
            let some = self.sensitive;
            let total = self.elements;
            write!(
                f,
                ", {some} of {total} elements beyond it, but no farther than noise on every rounding moves them"
            )?;
        }
        if self.beyond > 0 {
            write!(f, ", {} of {} elements beyond", self.beyond, self.elements)?;
        }
        if self.nan_mismatch > 0 {
            write!(f, ", {} NaN on one side only", self.nan_mismatch)?;
        }
        match &self.worst {
            Some(ElementDifference { at, found, expected }) if self.beyond > 0 => {
                write!(f, "; worst at {at:?}: found {found}, expected {expected}")
            }
            _ => Ok(()),
        }
    }
}

/// A count of the elements of f16 and bf16 that differ from the expected ones. NaN is equal to NaN.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NarrowDifferences {
    pub elements: usize,
    pub different: usize,
}

impl NarrowDifferences {
    /// Counts the elements of a tensor. Tensors of other dtypes are left out.
    pub fn count(&mut self, found: &Tensor, expected: &Tensor) {
        if expected.dtype().is_narrow_float() {
            self.elements += expected.numel();
            self.different += (0..expected.numel()).filter(|&i| distance(found, expected, i) != 0.0).count();
        }
    }
}

/// Compares element by element: integers and booleans exactly, floats within `tolerance`.
pub fn compare(found: &Tensor, expected: &Tensor, tolerance: Tolerance) -> TensorComparison {
    compare_within(found, expected, tolerance, None)
}

/// [`compare()`], but elements beyond the tolerance that rounding explains are counted separately
/// ([`TensorComparison::sensitive`]).
pub fn compare_with_spread(
    found: &Tensor,
    expected: &Tensor,
    tolerance: Tolerance,
    spread: &NoiseSpread,
) -> TensorComparison {
    compare_within(found, expected, tolerance, Some(spread))
}

fn compare_within(
    found: &Tensor,
    expected: &Tensor,
    tolerance: Tolerance,
    spread: Option<&NoiseSpread>,
) -> TensorComparison {
    let type_mismatch = type_mismatch(found, expected);
    let elements = if type_mismatch.is_some() { 0 } else { found.numel() };
    let mut out = TensorComparison { elements, type_mismatch, ..TensorComparison::default() };
    let tolerance = if found.dtype().is_float() { tolerance } else { Tolerance::EXACT };
    let mut worst: Option<(f64, usize)> = None;
    for i in 0..elements {
        let difference = distance(found, expected, i);
        if difference == 0.0 {
            continue;
        }
        let allowed = tolerance.allowed_difference(expected.get_f64(i));
        let within = difference.is_finite() && difference <= allowed;
        if !within && spread.is_some_and(|spread| spread.explains(i, found, expected)) {
            if tolerance.may_overflow && !difference.is_finite() && expected.get_f64(i).is_finite() {
                out.overflowed += 1;
            } else {
                out.sensitive += 1;
            }
            continue;
        }
        out.record_difference(difference, allowed, within);
        // The worst element is the one that exceeds its allowed difference the most; NaN is the worst.
        let excess = if within { difference / allowed } else { 1.0 + difference - allowed };
        let excess = if excess.is_nan() { f64::INFINITY } else { excess };
        if worst.is_none_or(|(largest, _)| excess > largest) {
            worst = Some((excess, i));
        }
    }
    out.worst = worst.map(|(_, i)| ElementDifference {
        at: coordinates(found.shape(), i),
        found: found.element_text(i),
        expected: expected.element_text(i),
    });
    out
}

/// The spread of the elements beyond the tolerance, before any run with noise.
pub fn spread_of_beyond(found: &Tensor, expected: &Tensor, tolerance: Tolerance) -> NoiseSpread {
    let tolerance = if found.dtype().is_float() { tolerance } else { Tolerance::EXACT };
    let elements = if type_mismatch(found, expected).is_some() { 0 } else { found.numel() };
    NoiseSpread::for_elements((0..elements).filter(|&i| !is_within(found, expected, tolerance, i)).collect())
}

/// The number of elements of a spread that neither the tolerance nor the spread explains.
pub fn count_unexplained(
    spread: &NoiseSpread,
    found: &Tensor,
    expected: &Tensor,
    tolerance: Tolerance,
) -> usize {
    let tolerance = if found.dtype().is_float() { tolerance } else { Tolerance::EXACT };
    let is_explained =
        |i: usize| is_within(found, expected, tolerance, i) || spread.explains(i, found, expected);
    spread.elements().filter(|&i| !is_explained(i)).count()
}

fn is_within(found: &Tensor, expected: &Tensor, tolerance: Tolerance, i: usize) -> bool {
    let difference = distance(found, expected, i);
    difference == 0.0
        || difference.is_finite() && difference <= tolerance.allowed_difference(expected.get_f64(i))
}

fn type_mismatch(found: &Tensor, expected: &Tensor) -> Option<String> {
    if (found.dtype(), found.shape()) == (expected.dtype(), expected.shape()) {
        return None;
    }
    Some(format!(
        "expected {}{:?}, found {}{:?}",
        expected.dtype(),
        expected.shape(),
        found.dtype(),
        found.shape()
    ))
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

    fn floats(dtype: DType, elements: &[f64]) -> Tensor {
        Tensor::from_f64(dtype, vec![elements.len()], elements).unwrap()
    }

    fn f32s(elements: &[f64]) -> Tensor {
        floats(DType::F32, elements)
    }

    /// Whether `found` matches `expected` with the default tolerance.
    fn passes(found: &Tensor, expected: &Tensor) -> bool {
        compare(found, expected, Tolerance::for_dtype_of(expected)).agrees()
    }

    #[test]
    fn differences_are_found() {
        let at_most = |x| compare(&f32s(&[1.0, -4.0, 3.0]), &f32s(&[1.0, -5.5, 2.0]), Tolerance::absolute(x));
        let c = at_most(1.4);
        assert_eq!((c.max_abs, c.of_tolerance, c.elements, c.beyond), (1.5, 1.5 / 1.4, 3, 1));
        let worst = ElementDifference { at: vec![1], found: "-4.0".into(), expected: "-5.5".into() };
        assert_eq!(c.worst, Some(worst));
        assert!(at_most(1.5).agrees() && !c.agrees());
        let half = Tolerance { relative: 0.5, ..Tolerance::EXACT };
        assert!(compare(&f32s(&[3.0]), &f32s(&[2.0]), half).agrees());
        assert!(!compare(&f32s(&[3.1]), &f32s(&[2.0]), half).agrees());
    }

    #[test]
    fn the_report_measures_against_the_tolerance() {
        let line = |found: &[f64], expected: &[f64], tolerance| {
            compare(&f32s(found), &f32s(expected), tolerance).to_string()
        };
        // Near zero a difference can be many times the element and still be insignificant.
        let near_zero = line(&[1e-9, 1.0], &[1e-12, 1.0], Tolerance::absolute(1e-6));
        assert_eq!(near_zero, "largest absolute difference 9.99e-10, at most 0.1 % of the tolerance");
        let beyond = line(&[3.0], &[1.0], Tolerance::absolute(0.5));
        assert!(
            beyond
                .starts_with("largest absolute difference 2.00e0, up to 4.000e0 times the tolerance, 1 of 1"),
            "{beyond}"
        );
        assert!(
            line(&[3.0], &[1.0], Tolerance::EXACT).starts_with("largest absolute difference 2.00e0, 1 of 1")
        );
        assert_eq!(line(&[3.0], &[3.0], Tolerance::EXACT), "equal");
        assert!(
            line(&[f64::NAN], &[1.0], Tolerance::EXACT).starts_with("equal where both are numbers, 1 of 1")
        );
    }

    #[test]
    fn non_finite_elements_are_allowed_if_noise_shows_them() {
        let inf = f64::INFINITY;
        let nan = f64::NAN;
        let f16 = Tolerance { may_overflow: true, ..Tolerance::absolute(0.1) };
        let with = |found: f64, expected: f64, noisy: &[f64]| {
            let actual = f32s(&[found]);
            let expected = f32s(&[expected]);
            let mut spread = NoiseSpread::without_moves(&expected);
            for &x in noisy {
                spread.widen(&expected, &f32s(&[x]));
            }
            compare_with_spread(&actual, &expected, f16, &spread)
        };
        let c = with(inf, 1e5, &[1e5, inf]);
        assert!(c.agrees() && c.overflowed == 1, "{c}");
        assert_eq!(c.to_string(), "equal, 1 of 1 elements infinite or NaN, which the numerics class allows");
        let allowed: [(f64, f64, &[f64]); 7] = [
            (nan, 1e5, &[nan]),
            (inf, 1e5, &[nan]),
            (2e5, 1e5, &[inf]),
            (3e5, inf, &[2e5]),
            (1e5, inf, &[2e5]),
            (5.0, nan, &[4.0]),
            (1.0, inf, &[1.0]),
        ];
        for (found, expected, noisy) in allowed {
            let c = with(found, expected, noisy);
            assert!(c.agrees(), "{found} for {expected} with {noisy:?}: {c}");
        }
        // Not explained: no such run, the other sign, below the upward moves, or far from the finite values
        // seen.
        let refused: [(f64, f64, &[f64]); 11] = [
            (nan, 1.0, &[1.0]),
            (inf, 1.0, &[]),
            (nan, 1.0, &[inf]),
            (-inf, 1e5, &[inf]),
            (0.0, 1e5, &[inf]),
            (2.0, 1.0, &[nan]),
            (1.0, inf, &[2e5]),
            (-3e5, inf, &[2e5]),
            (1.0, inf, &[]),
            (50.0, nan, &[4.0]),
            (-inf, inf, &[inf]),
        ];
        for (found, expected, noisy) in refused {
            assert!(!with(found, expected, noisy).agrees(), "{found} for {expected} with {noisy:?}");
        }
    }

    #[test]
    fn rounds_of_noise_look_at_elements_beyond_the_tolerance() {
        let expected = f32s(&[1.0, 2.0, 3.0, 4.0]);
        let actual = f32s(&[1.0, 2.5, 3.0, 5.0]);
        let tolerance = Tolerance::absolute(0.1);
        let mut spread = spread_of_beyond(&actual, &expected, tolerance);
        assert_eq!(spread.elements().collect::<Vec<_>>(), [1, 3]);
        assert_eq!(count_unexplained(&spread, &actual, &expected, tolerance), 2);
        spread.widen(&expected, &f32s(&[9.0, 2.2, 9.0, 4.1]));
        assert_eq!(count_unexplained(&spread, &actual, &expected, tolerance), 1);
        spread.widen(&expected, &f32s(&[1.0, 2.0, 3.0, 4.5]));
        assert_eq!(count_unexplained(&spread, &actual, &expected, tolerance), 0);
        let c = compare_with_spread(&actual, &expected, tolerance, &spread);
        assert!(c.agrees() && c.sensitive == 2, "{c}");
        // The spread does not cover an element that was within its tolerance.
        let worse = f32s(&[8.0, 2.5, 3.0, 5.0]);
        assert_eq!(compare_with_spread(&worse, &expected, tolerance, &spread).beyond, 1);
    }

    #[test]
    fn special_values() {
        let inf = f64::INFINITY;
        let nan = f64::NAN;
        let wide = Tolerance { absolute: inf, relative: inf, may_overflow: false };
        let near = |a: &[f64], b: &[f64], t| compare(&f32s(a), &f32s(b), t);
        assert!(near(&[inf, nan, -inf], &[inf, nan, -inf], Tolerance::EXACT).agrees());
        for tolerance in
            [Tolerance::EXACT, Tolerance { absolute: 1e9, relative: 1e9, may_overflow: false }, wide]
        {
            let c = near(&[nan, 1.0], &[1.0, nan], tolerance);
            assert_eq!((c.nan_mismatch, c.beyond, c.agrees()), (2, 2, false));
            for (a, b) in [(1.0, inf), (inf, 1.0), (-inf, inf), (nan, inf), (inf, nan)] {
                assert!(!near(&[a], &[b], tolerance).agrees(), "{a} for {b} under {tolerance:?}");
            }
            assert_eq!(near(&[-inf], &[inf], tolerance).max_abs, inf);
        }
    }

    #[test]
    fn integers_and_booleans_are_exact_whatever_the_tolerance() {
        let wide = Tolerance { absolute: 1e30, relative: 1.0, may_overflow: true };
        let [found, expected] =
            [i64::MAX, i64::MAX - 1].map(|x| Tensor::from_i64(DType::I64, vec![1, 1], &[x]).unwrap());
        let c = compare(&found, &expected, wide);
        assert_eq!((c.max_abs, c.beyond), (1.0, 1));
        let expected = "worst at [0, 0]: found 9223372036854775807, expected 9223372036854775806";
        assert!(c.to_string().ends_with(expected), "{c}");
        for dtype in [DType::Bool, DType::U8, DType::I32, DType::I64] {
            let [zero, one] = [0, 1].map(|x| Tensor::from_i64(dtype, vec![1], &[x]).unwrap());
            assert!(compare(&one, &one, wide).agrees());
            assert!(!compare(&one, &zero, wide).agrees() && !passes(&one, &zero), "{dtype}");
        }
    }

    #[test]
    fn types_must_agree() {
        let c = compare(&Tensor::zeros(DType::I64, [1, 1]).unwrap(), &f32s(&[0.0]), Tolerance::EXACT);
        assert_eq!(c.type_mismatch.as_deref(), Some("expected f32[1], found i64[1, 1]"));
        assert!(!c.agrees());
        assert!(compare(&f32s(&[]), &f32s(&[]), Tolerance::EXACT).agrees());
    }

    #[test]
    fn defaults_follow_the_typical_element_not_the_largest() {
        for (dtype, off) in [(DType::F64, 1e-7), (DType::F32, 1e-2), (DType::F16, 0.2), (DType::BF16, 0.5)] {
            // Wrong outputs of small numbers, one large element among typical ones, and few elements.
            for scale in [1e-3, 1.0, 100.0] {
                let ramp: Vec<f64> = (0..100).map(|i| scale * (1.0 + f64::from(i) / 100.0)).collect();
                let wrong: Vec<f64> = ramp.iter().map(|x| x * (1.0 + off)).collect();
                assert!(!passes(&floats(dtype, &wrong), &floats(dtype, &ramp)), "{dtype} {scale}");
            }
            let mut outlier = vec![0.5; 63];
            outlier.push(1000.0);
            let mut wrong = outlier.clone();
            wrong[7] += 2.0 * off;
            let expected = floats(dtype, &outlier);
            assert!(passes(&expected, &expected) && !passes(&floats(dtype, &wrong), &expected), "{dtype}");
            assert!(!passes(&floats(dtype, &[1.0 + 2.0 * off, 1000.0]), &floats(dtype, &[1.0, 1000.0])));
            // Zeros, such as those of a ReLU, do not affect the tolerance of other elements.
            let mut sparse = vec![0.0; 90];
            sparse.extend([1.0; 10]);
            let mut wrong = sparse.clone();
            wrong[3] = 2.0 * off;
            assert!(!passes(&floats(dtype, &wrong), &floats(dtype, &sparse)), "{dtype}");
        }
    }

    #[test]
    fn defaults_allow_sums_in_another_order() {
        // Elements near 0 among typical elements have errors relative to the typical ones.
        for (dtype, last_place) in [(DType::F32, -23), (DType::F16, -10), (DType::BF16, -7)] {
            let step = 2f64.powi(last_place);
            let expected = floats(dtype, &[1.0, -1.5, step, 0.0, 2.0]);
            let sums = floats(dtype, &[1.0 + step, -1.5, 3.0 * step, -2.0 * step, 2.0 - 2.0 * step]);
            assert!(passes(&sums, &expected), "{dtype}");
        }
        // Adjacent numbers among the smallest ones.
        let [found, expected] = [[3_u16, 9], [4, 8]].map(|bits| {
            let bytes: Vec<u8> = bits.iter().flat_map(|b| b.to_le_bytes()).collect();
            Tensor::new(DType::F16, vec![bits.len()], bytes).unwrap()
        });
        assert!(passes(&found, &expected));
    }
}
