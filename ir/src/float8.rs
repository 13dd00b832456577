//! Floats of 8 bits as PyTorch and ONNX define them (OCP 8-bit Floating Point Specification, and Microscaling
//! Formats Specification for the scale type).
//!
//! Conversions round to nearest even, also to subnormal numbers. As in PyTorch, a number beyond the largest finite one,
//! and infinity, becomes the largest one in e4m3, which has no infinity, and infinity in e5m2. The conversions have no
//! branches, so that loops over them vectorise.

/// 4 bits of exponent and 3 of mantissa. There is no infinity; the largest number is 448.
#[derive(Clone, Copy, PartialEq, Debug)]
#[repr(transparent)]
pub struct F8E4M3(u8);

/// 5 bits of exponent and 2 of mantissa: the upper half of an f16. The largest finite number is 57344.
#[derive(Clone, Copy, PartialEq, Debug)]
#[repr(transparent)]
pub struct F8E5M2(u8);

/// A power of two from 2^-127 to 2^127: 8 bits of exponent, no sign and no zero. It is a type of scales.
#[derive(Clone, Copy, PartialEq, Debug)]
#[repr(transparent)]
pub struct F8E8M0(u8);

/// The bits of an f32 for infinity. Larger magnitudes are NaN.
const F32_INFINITY: u32 = 0x7f80_0000;

/// 2^120, which moves the exponents of e4m3 to those of f32.
const POWER_120: f32 = f32::from_bits((127 + 120) << 23);
/// 2^112, which moves the exponents of e5m2 to those of f32.
const POWER_112: f32 = f32::from_bits((127 + 112) << 23);

/// Rounds the magnitude of an f32, as bits, to a float with `mantissa` bits of mantissa whose exponents have the bias
/// `bias`, to nearest even. The magnitude is below the overflow of that float.
#[inline(always)]
fn round_magnitude(magnitude: u32, mantissa: u32, bias: u32) -> u32 {
    let dropped = 23 - mantissa;
    let rebiased = magnitude.wrapping_sub((127 - bias) << 23);
    let half = (1 << (dropped - 1)) - 1;
    let normal = rebiased.wrapping_add(half + ((rebiased >> dropped) & 1)) >> dropped;
    // The last place of an f32 at this power of two is the smallest subnormal number of the result.
    let shift = ((127 + dropped + 1) - bias) << 23;
    let subnormal = (f32::from_bits(magnitude) + f32::from_bits(shift)).to_bits().wrapping_sub(shift);
    let least_normal = (127 - bias + 1) << 23;
    if magnitude < least_normal { subnormal } else { normal }
}

impl F8E4M3 {
    pub const LARGEST: f32 = 448.0;

    pub fn from_bits(bits: u8) -> Self {
        F8E4M3(bits)
    }

    #[inline(always)]
    pub fn to_bits(self) -> u8 {
        self.0
    }

    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        let magnitude = u32::from(self.0 & 0x7f);
        // The product is exact, and makes subnormal numbers normal.
        let finite = (f32::from_bits(magnitude << 20) * POWER_120).to_bits();
        let sign = u32::from(self.0 & 0x80) << 24;
        f32::from_bits(sign | if magnitude == 0x7f { 0x7fc0_0000 } else { finite })
    }

    #[inline(always)]
    pub fn from_f32(x: f32) -> Self {
        let magnitude = x.to_bits() & 0x7fff_ffff;
        let sign = (x.to_bits() >> 24) & 0x80;
        let rounded = round_magnitude(magnitude.min(F8E4M3::LARGEST.to_bits()), 3, 7);
        F8E4M3((sign | if magnitude > F32_INFINITY { 0x7f } else { rounded }) as u8)
    }
}

impl F8E5M2 {
    pub const LARGEST: f32 = 57344.0;

    pub fn from_bits(bits: u8) -> Self {
        F8E5M2(bits)
    }

    #[inline(always)]
    pub fn to_bits(self) -> u8 {
        self.0
    }

    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        let magnitude = u32::from(self.0 & 0x7f);
        let finite = (f32::from_bits(magnitude << 21) * POWER_112).to_bits();
        let sign = u32::from(self.0 & 0x80) << 24;
        let special = if magnitude == 0x7c { F32_INFINITY } else { 0x7fc0_0000 };
        f32::from_bits(sign | if magnitude < 0x7c { finite } else { special })
    }

    #[inline(always)]
    pub fn from_f32(x: f32) -> Self {
        const OVERFLOW: u32 = 65536f32.to_bits();
        let magnitude = x.to_bits() & 0x7fff_ffff;
        let sign = (x.to_bits() >> 24) & 0x80;
        let rounded = round_magnitude(magnitude.min(OVERFLOW), 2, 15);
        F8E5M2((sign | if magnitude > F32_INFINITY { 0x7f } else { rounded }) as u8)
    }
}

impl F8E8M0 {
    pub const LARGEST: f32 = f32::from_bits(254 << 23);

    pub fn from_bits(bits: u8) -> Self {
        F8E8M0(bits)
    }

    #[inline(always)]
    pub fn to_bits(self) -> u8 {
        self.0
    }

    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        let exponent = u32::from(self.0);
        let normal = exponent << 23;
        // 2^-127 is a subnormal f32.
        let special = if exponent == 0 { 1 << 22 } else { 0x7fc0_0000 };
        f32::from_bits(if matches!(exponent, 0 | 0xff) { special } else { normal })
    }

    /// The nearest power of two, of two at the same distance the larger. The sign is dropped; zero becomes 2^-127,
    /// infinity and NaN become NaN. A subnormal number above 2^-127 becomes 2^-126, as in PyTorch.
    #[inline(always)]
    pub fn from_f32(x: f32) -> Self {
        let magnitude = x.to_bits() & 0x7fff_ffff;
        let exponent = magnitude >> 23;
        let is_normal = u32::from(exponent > 0);
        let rounds_up = u32::from((magnitude & 0x7f_ffff) + is_normal > 0x40_0000);
        F8E8M0(if exponent == 0xff { 0xff } else { (exponent + rounds_up) as u8 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The finite number nearest to `x` among `numbers`, which ascend; of two at the same distance the one with even
    /// bits.
    fn nearest(numbers: &[f64], x: f64) -> usize {
        let distance = |i: &usize| (numbers[*i] - x).abs();
        let all = 0..numbers.len();
        let by_distance =
            |a: &usize, b: &usize| distance(a).total_cmp(&distance(b)).then((a % 2).cmp(&(b % 2)));
        all.min_by(by_distance).expect("there are numbers")
    }

    fn check_rounding(to_f32: impl Fn(u8) -> f32, from_f32: impl Fn(f32) -> u8, overflow: (u8, f64)) {
        let (overflow_bits, overflow_value) = overflow;
        let mut numbers: Vec<f64> = (0..overflow_bits).map(|bits| f64::from(to_f32(bits))).collect();
        assert!(numbers.is_sorted() && numbers[0] == 0.0, "{numbers:?}");
        numbers.push(overflow_value);
        for bits in (0..F32_INFINITY).step_by(9973).chain(numbers.windows(2).flat_map(|pair| {
            let middle = ((pair[0] + pair[1]) / 2.0) as f32;
            [middle.to_bits().wrapping_sub(1), middle.to_bits(), middle.to_bits() + 1]
        })) {
            let x = f32::from_bits(bits);
            let expected = nearest(&numbers, f64::from(x).min(overflow_value)) as u8;
            assert_eq!(from_f32(x), expected, "{x:e}");
            assert_eq!(from_f32(-x), expected | 0x80, "{x:e}");
        }
    }

    #[test]
    fn e4m3_rounds_to_nearest_even() {
        let convert = |x| F8E4M3::from_f32(x).to_bits();
        check_rounding(|bits| F8E4M3::from_bits(bits).to_f32(), convert, (0x7e, 448.0));
        assert_eq!(
            [f32::INFINITY, 1e30, 465.0, -f32::INFINITY, f32::NAN].map(convert),
            [0x7e, 0x7e, 0x7e, 0xfe, 0x7f]
        );
        assert!(F8E4M3::from_bits(0xff).to_f32().is_nan());
    }

    #[test]
    fn e5m2_rounds_to_nearest_even() {
        let convert = |x| F8E5M2::from_f32(x).to_bits();
        check_rounding(|bits| F8E5M2::from_bits(bits).to_f32(), convert, (0x7c, 65536.0));
        assert_eq!([f32::INFINITY, f32::NAN, 1e30, 61440.0].map(convert), [0x7c, 0x7f, 0x7c, 0x7c]);
        assert_eq!(F8E5M2::from_f32(61439.0).to_f32(), F8E5M2::LARGEST);
        assert_eq!(F8E5M2::from_bits(0xfc).to_f32(), f32::NEG_INFINITY);
        assert!(F8E5M2::from_bits(0x7d).to_f32().is_nan());
    }

    #[test]
    fn e8m0_rounds_to_powers_of_two() {
        for exponent in -127..=127 {
            let power = 2f64.powi(exponent);
            let bits = (exponent + 127) as u8;
            assert_eq!(f64::from(F8E8M0::from_bits(bits).to_f32()), power);
            assert_eq!(F8E8M0::from_f32(power as f32).to_bits(), bits);
            if exponent > -127 {
                assert_eq!(F8E8M0::from_f32((-1.49 * power) as f32).to_bits(), bits);
                assert_eq!(F8E8M0::from_f32((1.5 * power) as f32).to_bits(), bits + 1);
            }
        }
        assert_eq!(F8E8M0::from_f32(2f32.powi(-127) * 1.25).to_bits(), 1);
        assert_eq!(
            [0.0, -0.0, f32::NAN, f32::INFINITY].map(|x| F8E8M0::from_f32(x).to_bits()),
            [0, 0, 255, 255]
        );
        assert!(F8E8M0::from_bits(255).to_f32().is_nan());
    }
}
