//! Scalar functions in f32 and f64 that std lacks or that must be fast over blocks.

use std::sync::LazyLock;

use super::element::ComputeNumber;
use super::polynomials;

/// The functions of a floating-point type that element-wise functions and normalisations need.
pub(super) trait RealNumber:
    ComputeNumber
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + std::ops::Neg<Output = Self>
    + std::ops::Rem<Output = Self>
    + std::ops::AddAssign
    + std::ops::MulAssign
{
    const ZERO: Self;
    const ONE: Self;
    const NEG_INFINITY: Self;
    fn of(x: f64) -> Self;
    fn wide(self) -> f64;
    fn abs(self) -> Self;
    fn exp(self) -> Self;
    fn ln(self) -> Self;
    fn sqrt(self) -> Self;
    fn tanh(self) -> Self;
    fn floor(self) -> Self;
    fn ceil(self) -> Self;
    fn round_even(self) -> Self;
    fn trunc(self) -> Self;
    fn powf(self, e: Self) -> Self;
    fn atan2(self, other: Self) -> Self;
    fn is_nan(self) -> bool;
    fn is_finite(self) -> bool;

    fn erf(self) -> Self;
    /// `x` times the normal distribution function.
    fn gelu(self) -> Self;
    /// The sines, or the cosines, of all elements of a block.
    fn sin_block(x: &[Self], out: &mut [Self]);
    fn cos_block(x: &[Self], out: &mut [Self]);
    /// `1 / (1 + e^-x)`.
    #[inline(always)]
    fn sigmoid(self) -> Self {
        Self::ONE / (Self::ONE + (-self).exp())
    }
    /// The approximation of [`gelu`](Self::gelu) by tanh. Since `(1 + tanh u) / 2` is the logistic function
    /// of `2 u`, there is no cancellation.
    #[inline(always)]
    fn gelu_tanh(self) -> Self {
        let x = self;
        let u = Self::of(SQRT_2_OVER_PI) * (x + Self::of(0.044715) * x * x * x);
        x * (u + u).sigmoid()
    }
    /// The larger number; the first if both are equal, NaN if either is NaN.
    #[inline(always)]
    fn max_nan(self, other: Self) -> Self {
        if (self >= other) | self.is_nan() { self } else { other }
    }
    /// The smaller number; the first if both are equal, NaN if either is NaN.
    #[inline(always)]
    fn min_nan(self, other: Self) -> Self {
        if (self <= other) | self.is_nan() { self } else { other }
    }
    /// The remainder with the sign of the divisor.
    fn rem_floor(self, divisor: Self) -> Self {
        let r = self % divisor;
        if r != Self::ZERO && (r < Self::ZERO) != (divisor < Self::ZERO) { r + divisor } else { r }
    }
    /// The quotient rounded down; division by zero gives the same as true division.
    fn div_floor(self, divisor: Self) -> Self {
        Self::of(exact_floor_div(self.wide(), divisor.wide()))
    }
}

/// The floor of the exact quotient, as Python and PyTorch define it; zero has the sign of the quotient.
fn exact_floor_div(x: f64, y: f64) -> f64 {
    if y == 0.0 {
        return x / y;
    }
    let r = x % y;
    // The quotient is nearly integral: the dividend was reduced to a multiple of the divisor. Division by an
    // infinity gives 0.
    let integral = (x - r) / y;
    let quotient = if r != 0.0 && (r < 0.0) != (y < 0.0) { integral - 1.0 } else { integral };
    if quotient == 0.0 { 0f64.copysign(x / y) } else { quotient.round_ties_even() }
}

const SQRT_2_OVER_PI: f64 = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;

macro_rules! real {
    ($t:ident, { $($functions:tt)* }) => {
        impl RealNumber for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const NEG_INFINITY: Self = $t::NEG_INFINITY;
            #[inline(always)]
            fn of(x: f64) -> Self { x as $t }
            #[inline(always)]
            fn wide(self) -> f64 { self as f64 }
            #[inline(always)]
            fn abs(self) -> Self { $t::abs(self) }
            #[inline(always)]
            fn sqrt(self) -> Self { $t::sqrt(self) }
            #[inline(always)]
            fn floor(self) -> Self { $t::floor(self) }
            #[inline(always)]
            fn ceil(self) -> Self { $t::ceil(self) }
            #[inline(always)]
            fn round_even(self) -> Self { $t::round_ties_even(self) }
            #[inline(always)]
            fn trunc(self) -> Self { $t::trunc(self) }
            fn powf(self, e: Self) -> Self { $t::powf(self, e) }
            fn atan2(self, other: Self) -> Self { $t::atan2(self, other) }
            #[inline(always)]
            fn is_nan(self) -> bool { $t::is_nan(self) }
            #[inline(always)]
            fn is_finite(self) -> bool { $t::is_finite(self) }
            $($functions)*
        }
    };
}

real!(f32, {
    #[inline(always)]
    fn exp(self) -> f32 {
        polynomials::exp(self)
    }
    #[inline(always)]
    fn ln(self) -> f32 {
        polynomials::ln(self)
    }
    #[inline(always)]
    fn tanh(self) -> f32 {
        polynomials::tanh(self)
    }
    #[inline(always)]
    fn erf(self) -> f32 {
        polynomials::erf(self)
    }
    #[inline(always)]
    fn gelu(self) -> f32 {
        polynomials::gelu(self)
    }
    #[inline(always)]
    fn sin_block(x: &[f32], out: &mut [f32]) {
        map_angles(x, out, polynomials::sin, f32::sin);
    }
    #[inline(always)]
    fn cos_block(x: &[f32], out: &mut [f32]) {
        map_angles(x, out, polynomials::cos, f32::cos);
    }
});

real!(f64, {
    fn exp(self) -> f64 {
        f64::exp(self)
    }
    fn ln(self) -> f64 {
        f64::ln(self)
    }
    fn tanh(self) -> f64 {
        f64::tanh(self)
    }
    fn erf(self) -> f64 {
        erf(self)
    }
    fn gelu(self) -> f64 {
        let scaled = self * std::f64::consts::FRAC_1_SQRT_2;
        // The sum with 1 cancels where the error function is near -1.
        let above = if scaled <= -ERFC_START { erfc_fraction(-scaled) } else { 1.0 + erf(scaled) };
        0.5 * self * above
    }
    fn sin_block(x: &[f64], out: &mut [f64]) {
        out.iter_mut().zip(x).for_each(|(y, x)| *y = x.sin());
    }
    fn cos_block(x: &[f64], out: &mut [f64]) {
        out.iter_mut().zip(x).for_each(|(y, x)| *y = x.cos());
    }
});

/// Applies `reduced` to each angle that it accepts, and `any` to the large ones.
#[inline(always)]
fn map_angles(x: &[f32], out: &mut [f32], reduced: impl Fn(f32) -> f32, any: impl Fn(f32) -> f32) {
    let is_large = |x: f32| x.abs() >= polynomials::MAX_REDUCED_ANGLE;
    out.iter_mut().zip(x).for_each(|(y, &x)| *y = reduced(x));
    if x.iter().fold(false, |large, &x| large | is_large(x)) {
        for (y, &x) in out.iter_mut().zip(x).filter(|(_, x)| is_large(**x)) {
            *y = any(x);
        }
    }
}

/// The distance between the points around which [`erf`] is expanded.
const ERF_STEP: f64 = 0.125;
/// From this argument on `erf` is 1 in f64.
const ERF_END: f64 = 6.0;
const ERF_TERMS: usize = 12;

/// The error function, to within a few units in the last place of f64, from Taylor polynomials around the
/// multiples of 1/8. The derivatives of erf are `2/√π e^(-c²)` times Hermite polynomials (Abramowitz and Stegun,
/// 7.1.19).
pub(super) fn erf(x: f64) -> f64 {
    static ERF_TABLE: LazyLock<Vec<[f64; ERF_TERMS]>> = LazyLock::new(|| {
        (0..=(ERF_END / ERF_STEP) as usize).map(|i| erf_expansion(i as f64 * ERF_STEP)).collect()
    });
    let a = x.abs().min(ERF_END);
    let near = (a / ERF_STEP + 0.5) as usize;
    let h = a - near as f64 * ERF_STEP;
    let y = ERF_TABLE[near].iter().rev().fold(0.0, |y, c| y * h + c);
    let y = if a >= ERF_END { 1.0 } else { y };
    // The minimum above drops NaN.
    if x.is_nan() { x } else { y.copysign(x) }
}

/// From this argument on [`erfc_fraction`] is precise.
const ERFC_START: f64 = 2.0;

/// `1 - erf(x)` from [`ERFC_START`] on, as a continued fraction (Abramowitz and Stegun 7.1.14).
fn erfc_fraction(x: f64) -> f64 {
    const SERIES_TERMS: u32 = 50;
    let tail = (1..=SERIES_TERMS).rev().fold(x, |tail, k| x + f64::from(k) / 2.0 / tail);
    (-x * x).exp() * (std::f64::consts::FRAC_2_SQRT_PI / 2.0) / tail
}

/// The Taylor coefficients of erf around `c`.
fn erf_expansion(c: f64) -> [f64; ERF_TERMS] {
    let scale = std::f64::consts::FRAC_2_SQRT_PI * (-c * c).exp();
    let mut out = [0.0; ERF_TERMS];
    // erf(c) = 2/√π e^(-c²) Σ 2^n c^(2n+1) / (1·3·…·(2n+1)), all terms positive (7.1.6).
    let mut term = c;
    let mut sum = 0.0;
    let mut n = 0.0;
    while term > sum * 1e-18 {
        sum += term;
        n += 1.0;
        term *= 2.0 * c * c / (2.0 * n + 1.0);
    }
    out[0] = scale * sum;
    // Coefficient k+1 is scale (-1)^k H_k(c) / (k+1)!, with H_{k+1} = 2c H_k - 2k H_{k-1}.
    let mut previous = 0.0;
    let mut hermite = 1.0;
    let mut factorial = 1.0;
    for k in 0..ERF_TERMS - 1 {
        factorial *= (k + 1) as f64;
        out[k + 1] = scale * hermite / factorial * if k % 2 == 0 { 1.0 } else { -1.0 };
        (previous, hermite) = (hermite, 2.0 * c * hermite - 2.0 * k as f64 * previous);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_agrees_with_tabulated_values() {
        // Abramowitz and Stegun, table 7.1, to ten places.
        for (x, y) in [
            (0.0, 0.0),
            (0.02, 0.022_564_574_7),
            (0.5, 0.520_499_877_8),
            (1.0, 0.842_700_792_9),
            (1.06, 0.866_143_586_6),
            (1.5, 0.966_105_146_5),
            (2.0, 0.995_322_265_0),
        ] {
            assert!((erf(x) - y).abs() < 1e-10, "erf({x}) = {}", erf(x));
            assert_eq!(erf(-x), -erf(x));
        }
        assert_eq!(erf(7.0), 1.0);
        assert!(erf(f64::NAN).is_nan());
    }

    #[test]
    fn erf_is_continuous_between_expansions() {
        for i in 0..47 {
            let border = (f64::from(i) + 0.5) * ERF_STEP;
            let (below, above) = (erf(border * (1.0 - 1e-15)), erf(border * (1.0 + 1e-15)));
            assert!((above - below).abs() <= 4e-15 * above, "at {border}: {below:e} {above:e}");
        }
    }

    #[test]
    fn gelu_keeps_the_precision_of_its_tail() {
        for (x, expected) in [(-3.0, -0.004_049_694_094_890_283), (-7.0, -8.958_687_807_200_845e-12)] {
            assert!((f64::gelu(x) / expected - 1.0).abs() < 1e-12, "gelu({x}) = {:e}", f64::gelu(x));
        }
        assert!(f64::NEG_INFINITY.gelu().is_nan() && f64::NAN.gelu().is_nan());
    }

    #[test]
    fn remainders_take_the_sign_of_the_divisor() {
        assert_eq!((-7f32).rem_floor(3.0), 2.0);
        assert_eq!(7f32.rem_floor(-3.0), -2.0);
        assert_eq!((-7f32).div_floor(3.0), -3.0);
        assert_eq!(6f32.div_floor(3.0), 2.0);
        assert_eq!(1f32.div_floor(0.0), f32::INFINITY);
        assert_eq!((-2f32).div_floor(f32::INFINITY), -1.0);
        assert_eq!(2f32.div_floor(f32::INFINITY), 0.0);
        assert!(f32::INFINITY.div_floor(2.0).is_nan() && f32::NAN.div_floor(2.0).is_nan());
    }
}

#[cfg(test)]
mod polynomial_tests {
    use super::polynomials::{cos, erf, exp, gelu, ln, sin, tanh};

    /// Numbers of all magnitudes and both signs between `low` and `high`.
    fn numbers(low: f32, high: f32) -> impl Iterator<Item = f32> {
        let bits = (0..=u32::MAX / 4001).map(|i| f32::from_bits(i * 4001));
        bits.filter(move |x| (low..=high).contains(x))
    }

    /// The largest distance from the expected results, in units in their last place.
    fn largest_error(low: f32, high: f32, function: fn(f32) -> f32, exact: fn(f64) -> f64) -> f64 {
        let error = |x: f32| {
            let expected = exact(f64::from(x));
            let rounded = expected.abs() as f32;
            let unit = f64::from(f32::from_bits(rounded.max(f32::MIN_POSITIVE).to_bits() + 1))
                - f64::from(rounded.max(f32::MIN_POSITIVE));
            (f64::from(function(x)) - expected).abs() / unit
        };
        numbers(low, high).map(error).fold(0.0, f64::max)
    }

    #[test]
    fn errors_are_within_their_bounds() {
        let infinity = f32::INFINITY;
        let cases: [(&str, f64, f64); 7] = [
            ("exp", 2.0, largest_error(-87.0, 88.7, exp, f64::exp)),
            ("ln", 2.0, largest_error(1e-45, f32::MAX, ln, f64::ln)),
            ("sin", 2.0, largest_error(-0.999e6, 0.999e6, sin, f64::sin)),
            ("cos", 2.0, largest_error(-0.999e6, 0.999e6, cos, f64::cos)),
            ("tanh", 4.0, largest_error(-infinity, infinity, tanh, f64::tanh)),
            ("erf", 4.0, largest_error(-infinity, infinity, erf, super::erf)),
            ("gelu", 64.0, largest_error(-13.0, infinity, gelu, <f64 as super::RealNumber>::gelu)),
        ];
        for (name, bound, error) in cases {
            assert!(error <= bound, "{name}: {error} units in the last place");
        }
    }

    #[test]
    fn special_numbers_have_the_results_of_the_standard_library() {
        type Function = fn(f32) -> f32;
        let cases: [(Function, Function); 5] =
            [(exp, f32::exp), (ln, f32::ln), (sin, f32::sin), (cos, f32::cos), (tanh, f32::tanh)];
        let least = f32::from_bits(1);
        let specials = [
            0.0,
            -0.0,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            least,
            -least,
            1.0,
            -1.0,
            f32::MIN_POSITIVE,
        ];
        for (number, (ours, theirs)) in cases.into_iter().enumerate() {
            for x in specials {
                let (found, expected) = (ours(x), theirs(x));
                let is_same = found == expected && found.is_sign_negative() == expected.is_sign_negative();
                let is_close = (found - expected).abs() <= 2.0 * f32::EPSILON * expected.abs();
                assert!(
                    is_same || is_close || found.is_nan() && expected.is_nan(),
                    "{number}: {found} at {x}"
                );
            }
        }
        assert_eq!((exp(-104.0), exp(1000.0)), (0.0, f32::INFINITY));
        for x in specials {
            assert_eq!(erf(x).is_sign_negative(), x.is_sign_negative());
            assert_eq!(erf(x).is_nan() || gelu(x).is_nan(), x.is_nan() || x == f32::NEG_INFINITY);
        }
        assert_eq!(
            (erf(f32::INFINITY), erf(f32::NEG_INFINITY), gelu(f32::INFINITY)),
            (1.0, -1.0, f32::INFINITY)
        );
    }
}
