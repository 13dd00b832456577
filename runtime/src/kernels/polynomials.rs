//! Elementary functions of f32 without branches, so that loops over them vectorise.
//!
//! Each function reduces its argument and evaluates a polynomial in f32, without fused operations: all CPUs give
//! the same bits. The coefficients were fitted for this file by the least largest relative error (iteratively
//! reweighted least squares on Chebyshev nodes, with 40 digits). The tests of `math` compare each function with f64, over its
//! range and at NaN, infinities, zeros and subnormal numbers.

/// Adding and subtracting 1.5 * 2^23 rounds to the nearest integer.
const ROUNDING_ADDEND: f32 = 12_582_912.0;

/// Evaluates a polynomial; the coefficients are in ascending order.
#[inline(always)]
fn polynomial<const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let mut sum = 0.0;
    for (i, c) in coefficients.into_iter().rev().enumerate() {
        sum = if i == 0 { c } else { sum * x + c };
    }
    sum
}

/// `e^x`, within 2 units in the last place.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    exp_bounded(x.clamp(-104.0, 89.0))
}

/// `e^x` from -104 to 89: `x = n ln 2 + r` with `|r| <= ln 2 / 2`, a polynomial in `r`, and a scaling by `2^n` in two
/// factors.
#[inline(always)]
fn exp_bounded(x: f32) -> f32 {
    // ln 2 in two parts, the first with enough trailing zeros that `n * LN2_HIGH` is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let shifted = x * std::f32::consts::LOG2_E + ROUNDING_ADDEND;
    let n = shifted - ROUNDING_ADDEND;
    let r = (x - n * LN2_HIGH) - n * LN2_LOW;
    let p = polynomial(r, [1.0, 1.0, 0.5, 0.166_664, 0.041_665_833, 0.008_381_1, 0.001_397_164_5]);
    // The integer is in the low bits of `shifted`. For a NaN it is arbitrary, but `p` is NaN.
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUNDING_ADDEND.to_bits() as i32);
    let half = n >> 1;
    p * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

#[inline(always)]
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits((exponent.wrapping_add(127) << 23) as u32)
}

/// The natural logarithm, within 2 units in the last place: `x = m 2^n` with `m` around 1, and a polynomial in
/// `m - 1`.
#[inline(always)]
pub(super) fn ln(x: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let is_subnormal = x < f32::MIN_POSITIVE;
    let normal = if is_subnormal { x * 8_388_608.0 } else { x };
    // The exponent relative to the square root of 1/2, so that `m` is from there to the square root of 2.
    let offset = normal.to_bits().wrapping_sub(std::f32::consts::FRAC_1_SQRT_2.to_bits());
    let exponent = (offset as i32) >> 23;
    let m = f32::from_bits(normal.to_bits().wrapping_sub((exponent << 23) as u32));
    let n = exponent as f32 - if is_subnormal { 23.0 } else { 0.0 };
    let f = m - 1.0;
    let p = polynomial(
        f,
        [
            0.333_333_3,
            -0.250_008_2,
            0.200_012_27,
            -0.166_233_57,
            0.142_017_57,
            -0.131_601_82,
            0.127_615_77,
            -0.076_344_97,
        ],
    );
    let square = f * f;
    let y = n * LN2_LOW + (f * square * p - 0.5 * square);
    let y = y + f + n * LN2_HIGH;
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    let y = if x < 0.0 { f32::NAN } else { y };
    // Also NaN.
    if x < f32::INFINITY { y } else { x }
}

/// From this magnitude on, arguments of sine and cosine are reduced by the standard library.
pub(super) const MAX_REDUCED_ANGLE: f32 = 1_000_000.0;

/// The sine within 2 units in the last place, for angles below [`MAX_REDUCED_ANGLE`].
#[inline(always)]
pub(super) fn sin(x: f32) -> f32 {
    sin_of_quadrant(x, 0)
}

/// The cosine within 2 units in the last place, for angles below [`MAX_REDUCED_ANGLE`].
#[inline(always)]
pub(super) fn cos(x: f32) -> f32 {
    sin_of_quadrant(x, 1)
}

/// The sine of `x` plus `quadrants` right angles: `x` is reduced by multiples of a right angle in f64, and the
/// sine or the cosine of the rest is a polynomial.
#[inline(always)]
fn sin_of_quadrant(x: f32, quadrants: i32) -> f32 {
    // A right angle in two parts, the first with 33 bits, so that its multiples up to 2^20 are exact.
    const HIGH: f64 = 1.570_796_326_734_125_6;
    const LOW: f64 = 6.077_100_506_506_192e-11;
    // Adding and subtracting 1.5 * 2^52 rounds to the nearest integer, which is then in the low bits.
    const ROUNDING_ADDEND: f64 = 6_755_399_441_055_744.0;
    let wide = f64::from(x);
    let shifted = wide * std::f64::consts::FRAC_2_PI + ROUNDING_ADDEND;
    let n = shifted - ROUNDING_ADDEND;
    let r = ((wide - n * HIGH) - n * LOW) as f32;
    let quadrant = (shifted.to_bits() as i32).wrapping_add(quadrants);
    let t = r * r;
    // The sine of -0 is -0.
    let sin = r * (1.0 + t * polynomial(t, [-0.166_666_67, 0.008_333_329, -0.000_198_393_3, 2.718_274_6e-6]));
    let cos = 1.0 + t * (t * polynomial(t, [0.041_666_646, -0.001_388_736_4, 2.443_808_8e-5]) - 0.5);
    let y = if quadrant & 1 == 0 { sin } else { cos };
    f32::from_bits(y.to_bits() ^ ((quadrant as u32 & 2) << 30))
}

/// The hyperbolic tangent, within 4 units in the last place: a polynomial around 0, and
/// `1 - 2 / (e^2|x| + 1)` elsewhere.
#[inline(always)]
pub(super) fn tanh(x: f32) -> f32 {
    const MAX_NEAR: f32 = 0.6;
    let a = x.abs();
    let t = x * x;
    let terms = [-0.333_333, 0.133_319_59, -0.053_786_684, 0.020_805_381, -0.005_905_865];
    let near = x * (1.0 + t * polynomial(t, terms));
    let far = (1.0 - 2.0 / (exp(a + a) + 1.0)).copysign(x);
    if a < MAX_NEAR { near } else { far }
}

/// The error function, within 4 units in the last place: a polynomial around 0, and one minus twice
/// [`normal_tail`] elsewhere.
#[inline(always)]
pub(super) fn erf(x: f32) -> f32 {
    let t = x * x;
    let terms = [
        std::f32::consts::FRAC_2_SQRT_PI,
        -0.376_126_26,
        0.112_835_854,
        -0.026_853_811,
        0.005_188_327_3,
        -8.010_19e-4,
        7.853_855e-5,
    ];
    let near = x * polynomial(t, terms);
    let tail = normal_tail(x.abs() * std::f32::consts::SQRT_2);
    let far = (1.0 - (tail + tail)).copysign(x);
    if t < 1.0 {
        near
    } else if x.is_nan() {
        x
    } else {
        far
    }
}

/// `x` times the normal distribution function, with a relative error below 2^-18, also where the function is near 0.
#[inline(always)]
pub(super) fn gelu(x: f32) -> f32 {
    let tail = normal_tail(x.abs());
    x * if x < 0.0 { tail } else { 1.0 - tail }
}

/// The probability of a standard normal variable above `x`, which is not negative: `e^(-x²/2)` times a polynomial in
/// `1 / (1 + 0.3 x)`, as in Abramowitz and Stegun 26.2.17. The relative error is below 2^-20 up to 4, and grows with
/// the rounding of the square to 2^-18.
#[inline(always)]
fn normal_tail(x: f32) -> f32 {
    // The tail is 0 in f32 before this argument. The minimum drops NaN.
    const END: f32 = 14.4;
    let x = x.min(END);
    let weight = exp_bounded(x * x * -0.5);
    let t = 1.0 / (1.0 + 0.3 * x);
    let terms = [
        0.119_650_185,
        0.120_363_325,
        0.102_963_7,
        0.115_564_48,
        -0.020_577_393,
        0.154_619_23,
        -0.108_641_27,
        0.010_569_531,
        0.005_488_259,
    ];
    weight * t * polynomial(t, terms)
}
