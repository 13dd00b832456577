//! Element types as they are stored, and the types that kernels compute in.
//!
//! A [`StoredElement`] is one stored dtype. A [`ComputeNumber`] is a type that kernels compute in: `f32` for
//! f32 and narrower floats, `f64` for f64, `i64` for integers and bool. Every conversion from a number to an
//! element rounds once, to nearest even; integers wrap.

use half::{bf16, f16};
use symmc_ir::float8::{F8E4M3, F8E5M2, F8E8M0};
use symmc_ir::tensor::round_to_odd;
use symmc_ir::{DType, Scalar};

use super::scratch::PooledNumber;

/// A stored element: plain bytes, any bit pattern is valid. The default methods convert through f32, for
/// types that are narrower than f32.
pub(super) trait StoredElement: Copy {
    fn to_f32(self) -> f32;
    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self.to_f32())
    }
    #[inline(always)]
    fn to_i64(self) -> i64 {
        self.to_f32() as i64
    }
    fn from_f32(x: f32) -> Self;
    #[inline(always)]
    fn from_f64(x: f64) -> Self {
        Self::from_f32(round_to_odd(x))
    }
    #[inline(always)]
    fn from_i64(x: i64) -> Self {
        Self::from_f64(x as f64)
    }
}

/// A stored bool: false is 0, every other byte reads as true, true is written as 1.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Bool(u8);

macro_rules! primitive_element {
    ($($t:ty, |$x:ident| $float_to:expr, $double_to:expr;)*) => { $(
        impl StoredElement for $t {
            #[inline(always)]
            fn to_f32(self) -> f32 { self as f32 }
            #[inline(always)]
            fn to_f64(self) -> f64 { self as f64 }
            #[inline(always)]
            fn to_i64(self) -> i64 { self as i64 }
            #[inline(always)]
            fn from_f32($x: f32) -> Self { $float_to }
            #[inline(always)]
            fn from_f64($x: f64) -> Self { $double_to }
            #[inline(always)]
            fn from_i64(x: i64) -> Self { x as $t }
        }
    )* };
}

primitive_element! {
    u8, |x| x as i64 as u8, x as i64 as u8;
    u16, |x| x as i64 as u16, x as i64 as u16;
    u32, |x| x as i64 as u32, x as i64 as u32;
    i8, |x| x as i64 as i8, x as i64 as i8;
    i16, |x| x as i64 as i16, x as i64 as i16;
    i32, |x| x as i64 as i32, x as i64 as i32;
    i64, |x| x as i64, x as i64;
    f32, |x| x, x as f32;
    f64, |x| f64::from(x), x;
}

impl StoredElement for Bool {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from(u8::from(self.0 != 0))
    }
    #[inline(always)]
    fn to_i64(self) -> i64 {
        i64::from(self.0 != 0)
    }
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        Bool(u8::from(x != 0.0))
    }
    #[inline(always)]
    fn from_f64(x: f64) -> Self {
        Bool(u8::from(x != 0.0))
    }
    #[inline(always)]
    fn from_i64(x: i64) -> Self {
        Bool(u8::from(x != 0))
    }
}

impl StoredElement for bf16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        let bits = x.to_bits();
        // Adding half of the last kept place, minus one if that place is even, rounds to nearest even.
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        let quiet = (bits >> 16) | 0x40;
        bf16::from_bits(if x.is_nan() { quiet } else { rounded } as u16)
    }
}

/// The difference of the exponent biases of f32 and f16, at the position of an f32's exponent.
const F16_BIAS: u32 = 112 << 23;

impl StoredElement for f16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        let magnitude = u32::from(self.to_bits() & 0x7fff);
        let sign = u32::from(self.to_bits() & 0x8000) << 16;
        // The largest exponent of each type represents infinity and NaN, so it moves by twice the bias.
        let special = if magnitude >= 0x7c00 { F16_BIAS } else { 0 };
        let normal = (magnitude << 13) + F16_BIAS + special;
        let subnormal = (magnitude as f32 * 2f32.powi(-24)).to_bits();
        f32::from_bits(sign | if magnitude < 0x400 { subnormal } else { normal })
    }
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        let bits = x.to_bits();
        let magnitude = bits & 0x7fff_ffff;
        let sign = (bits >> 16) & 0x8000;
        // As for bf16. A number that rounds up beyond the largest f16, or is larger, becomes infinity.
        let rebiased = magnitude.wrapping_sub(F16_BIAS);
        let normal = (rebiased.wrapping_add(0xfff + ((rebiased >> 13) & 1)) >> 13).min(0x7c00);
        // The last place of an f32 between 1/2 and 1 is that of a subnormal f16.
        let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
        let nan = 0x7e00 | (magnitude >> 13) & 0x3ff;
        let finite = if magnitude < 0x3880_0000 { subnormal } else { normal };
        f16::from_bits((sign | if magnitude > 0x7f80_0000 { nan } else { finite }) as u16)
    }
}

macro_rules! float8_element {
    ($($t:ty),*) => { $(
        impl StoredElement for $t {
            #[inline(always)]
            fn to_f32(self) -> f32 { <$t>::to_f32(self) }
            #[inline(always)]
            fn from_f32(x: f32) -> Self { <$t>::from_f32(x) }
        }
    )* };
}

float8_element!(F8E4M3, F8E5M2, F8E8M0);

/// A type that kernels compute in.
pub(super) trait ComputeNumber: PooledNumber + PartialOrd {
    /// The dtype that is stored as this type.
    const DTYPE: DType;
    fn from_element<E: StoredElement>(x: E) -> Self;
    fn to_element<E: StoredElement>(self) -> E;
    fn from_scalar(x: Scalar) -> Self;
}

macro_rules! number {
    ($($t:ty, $dtype:ident, $to:ident, $from:ident, |$s:ident| $scalar:expr;)*) => { $(
        impl ComputeNumber for $t {
            const DTYPE: DType = DType::$dtype;
            #[inline(always)]
            fn from_element<E: StoredElement>(x: E) -> Self { x.$to() }
            #[inline(always)]
            fn to_element<E: StoredElement>(self) -> E { E::$from(self) }
            fn from_scalar($s: Scalar) -> Self { $scalar }
        }
    )* };
}

number! {
    f32, F32, to_f32, from_f32, |s| s.as_f64() as f32;
    f64, F64, to_f64, from_f64, |s| s.as_f64();
    i64, I64, to_i64, from_i64, |s| s.as_i64();
}

/// Calls a generic function for the element type of a dtype: `for_element!(dtype, E => f::<E>(x))`.
macro_rules! for_element {
    ($dtype:expr, $e:ident => $body:expr) => {
        match $dtype {
            symmc_ir::DType::Bool => {
                type $e = $crate::kernels::element::Bool;
                $body
            }
            symmc_ir::DType::U8 => {
                type $e = u8;
                $body
            }
            symmc_ir::DType::U16 => {
                type $e = u16;
                $body
            }
            symmc_ir::DType::U32 => {
                type $e = u32;
                $body
            }
            symmc_ir::DType::I8 => {
                type $e = i8;
                $body
            }
            symmc_ir::DType::I16 => {
                type $e = i16;
                $body
            }
            symmc_ir::DType::I32 => {
                type $e = i32;
                $body
            }
            symmc_ir::DType::F8E4M3 => {
                type $e = symmc_ir::float8::F8E4M3;
                $body
            }
            symmc_ir::DType::F8E5M2 => {
                type $e = symmc_ir::float8::F8E5M2;
                $body
            }
            symmc_ir::DType::F8E8M0 => {
                type $e = symmc_ir::float8::F8E8M0;
                $body
            }
            symmc_ir::DType::I64 => {
                type $e = i64;
                $body
            }
            symmc_ir::DType::F16 => {
                type $e = half::f16;
                $body
            }
            symmc_ir::DType::BF16 => {
                type $e = half::bf16;
                $body
            }
            symmc_ir::DType::F32 => {
                type $e = f32;
                $body
            }
            symmc_ir::DType::F64 => {
                type $e = f64;
                $body
            }
        }
    };
}
pub(super) use for_element;

/// Calls a generic function for the type that a dtype is computed in: `for_number!(dtype, C => f::<C>(x))`.
macro_rules! for_number {
    ($dtype:expr, $c:ident => $body:expr) => {
        match $dtype {
            symmc_ir::DType::F64 => {
                type $c = f64;
                $body
            }
            dtype if dtype.is_float() => {
                type $c = f32;
                $body
            }
            _ => {
                type $c = i64;
                $body
            }
        }
    };
}
pub(super) use for_number;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_types_convert_as_the_half_crate_does() {
        for i in 0..=u16::MAX {
            let (h, b) = (f16::from_bits(i), bf16::from_bits(i));
            let is_same = |x: f32, y: f32| x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan();
            assert!(is_same(<f16 as StoredElement>::to_f32(h), h.to_f32()), "{i:x}");
            assert!(is_same(<bf16 as StoredElement>::to_f32(b), b.to_f32()), "{i:x}");
            for low in [0u32, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xf000, 0xffff] {
                let x = f32::from_bits(u32::from(i) << 16 | low);
                let (ours, theirs) = (<bf16 as StoredElement>::from_f32(x), bf16::from_f32(x));
                assert!(ours.to_bits() == theirs.to_bits() || x.is_nan() && ours.is_nan(), "{x:e}");
                let (ours, theirs) = (<f16 as StoredElement>::from_f32(x), f16::from_f32(x));
                assert!(ours.to_bits() == theirs.to_bits() || x.is_nan() && ours.is_nan(), "{x:e}");
            }
        }
    }

    #[test]
    fn f64_rounds_once_to_half_types() {
        // Just above the midpoint of 1 and its bf16 successor, by less than the precision of an f32.
        let x = 1.0 + 2f64.powi(-8) + 2f64.powi(-40);
        assert_eq!(<bf16 as StoredElement>::from_f64(x).to_f32(), 1.0 + 2f32.powi(-7));
        let x = 1.0 + 2f64.powi(-11) + 2f64.powi(-40);
        assert_eq!(f16::to_f32(<f16 as StoredElement>::from_f64(x)), 1.0 + 2f32.powi(-10));
        assert_eq!(<f16 as StoredElement>::from_f64(-1e9).to_f64(), f64::NEG_INFINITY);
    }
}
