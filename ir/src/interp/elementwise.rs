//! Element-wise ops: unary, binary, select, cast.
//!
//! Floats are computed in f64 and rounded once. Integers are computed in wrapping i64 and wrapped to their
//! dtype.

use super::array::{ArrayData, WideArray, broadcast_strides, for_each_offset, numel, round_to_dtype};
use super::error::{OpError, Result};
use crate::op::{BinaryOp, UnaryOp};
use crate::types::{DType, Scalar};

pub(super) fn unary(op: UnaryOp, x: &WideArray) -> Result<WideArray> {
    match &*x.data {
        ArrayData::Float(v) => match op {
            UnaryOp::IsNan => Ok(WideArray::from_bools(&x.shape, v.iter().map(|x| x.is_nan()))),
            UnaryOp::IsFinite => Ok(WideArray::from_bools(&x.shape, v.iter().map(|x| x.is_finite()))),
            _ => {
                let f = float_unary(op);
                Ok(WideArray::from_floats(x.dtype, &x.shape, v.iter().map(|&x| f(x)).collect()))
            }
        },
        ArrayData::Int(v) => {
            let f: fn(i64) -> i64 = match op {
                UnaryOp::Neg => i64::wrapping_neg,
                UnaryOp::Abs => i64::wrapping_abs,
                UnaryOp::Sign => i64::signum,
                UnaryOp::Not if x.dtype == DType::Bool => |x| x ^ 1,
                UnaryOp::Not => |x| !x,
                UnaryOp::Relu => |x| x.max(0),
                _ => return Err(OpError::DType { expected: "floating-point", found: x.dtype }),
            };
            Ok(WideArray::from_ints(x.dtype, &x.shape, v.iter().map(|&x| f(x)).collect()))
        }
    }
}

fn float_unary(op: UnaryOp) -> fn(f64) -> f64 {
    match op {
        UnaryOp::Neg => |x| -x,
        UnaryOp::Abs => f64::abs,
        // NaN gives zero too, as in PyTorch.
        UnaryOp::Sign => |x| f64::from(i8::from(x > 0.0) - i8::from(x < 0.0)),
        UnaryOp::Exp => f64::exp,
        UnaryOp::Log => f64::ln,
        UnaryOp::Sqrt => f64::sqrt,
        UnaryOp::Rsqrt => |x| 1.0 / x.sqrt(),
        UnaryOp::Reciprocal => |x| 1.0 / x,
        UnaryOp::Sin => f64::sin,
        UnaryOp::Cos => f64::cos,
        UnaryOp::Tanh => f64::tanh,
        UnaryOp::Erf => erf,
        UnaryOp::Floor => f64::floor,
        UnaryOp::Ceil => f64::ceil,
        UnaryOp::Round => f64::round_ties_even,
        UnaryOp::Trunc => f64::trunc,
        UnaryOp::Relu => |x| if x < 0.0 { 0.0 } else { x },
        UnaryOp::Sigmoid => |x| 1.0 / (1.0 + (-x).exp()),
        UnaryOp::Silu => |x| x / (1.0 + (-x).exp()),
        UnaryOp::Gelu => |x| 0.5 * x * erfc(-x * std::f64::consts::FRAC_1_SQRT_2),
        UnaryOp::GeluTanh => |x| {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        },
        // Unreachable: predicates give bool, and `not` is not defined on floats.
        UnaryOp::Not | UnaryOp::IsNan | UnaryOp::IsFinite => |_| f64::NAN,
    }
}

pub(super) fn binary(op: BinaryOp, x: &WideArray, y: &WideArray, shape: &[usize]) -> Result<WideArray> {
    match (&*x.data, &*y.data) {
        (ArrayData::Float(a), ArrayData::Float(b)) => {
            if op.is_comparison() {
                let f = comparison::<f64>(op);
                return Ok(WideArray::from_bools(shape, zip(a, &x.shape, b, &y.shape, shape, f).into_iter()));
            }
            let f = float_binary(op);
            Ok(WideArray::from_floats(x.dtype, shape, zip(a, &x.shape, b, &y.shape, shape, f)))
        }
        (ArrayData::Int(a), ArrayData::Int(b)) => {
            if op.is_comparison() {
                let f = comparison::<i64>(op);
                return Ok(WideArray::from_bools(shape, zip(a, &x.shape, b, &y.shape, shape, f).into_iter()));
            }
            let f = int_binary(op, x.dtype)?;
            let results = zip(a, &x.shape, b, &y.shape, shape, f);
            let elements = results
                .into_iter()
                .enumerate()
                .map(|(position, r)| r.ok_or(OpError::DivisionByZero { position }));
            Ok(WideArray::from_ints(x.dtype, shape, elements.collect::<Result<_, _>>()?))
        }
        _ => Err(OpError::DType { expected: "like-typed", found: y.dtype }),
    }
}

/// `x op scalar`, or `scalar op x`. For comparisons the scalar has the dtype of `x`. For arithmetic on f16,
/// bf16 and f32 it is an f32.
pub(super) fn binary_scalar(
    op: BinaryOp,
    x: &WideArray,
    scalar: Scalar,
    scalar_left: bool,
) -> Result<WideArray> {
    let wide = match x.dtype {
        dtype if op.is_comparison() => dtype,
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    let scalar = if x.dtype.is_float() {
        ArrayData::Float(vec![round_to_dtype(wide, scalar.as_f64())])
    } else {
        ArrayData::Int(vec![scalar.as_i64()])
    };
    let scalar = WideArray { dtype: x.dtype, shape: Vec::new(), data: scalar.into() };
    if scalar_left { binary(op, &scalar, x, &x.shape) } else { binary(op, x, &scalar, &x.shape) }
}

/// `f` over two operands broadcast to `shape`.
fn zip<T: Copy, R>(
    a: &[T],
    a_shape: &[usize],
    b: &[T],
    b_shape: &[usize],
    shape: &[usize],
    f: impl Fn(T, T) -> R,
) -> Vec<R> {
    if a_shape == b_shape && a_shape == shape {
        return a.iter().zip(b).map(|(&a, &b)| f(a, b)).collect();
    }
    let mut out = Vec::with_capacity(numel(shape));
    let sa = broadcast_strides(a_shape, shape);
    let sb = broadcast_strides(b_shape, shape);
    for_each_offset(shape, [&sa, &sb], |[i, j]| out.push(f(a[i], b[j])));
    out
}

fn comparison<T: PartialOrd>(op: BinaryOp) -> fn(T, T) -> bool {
    match op {
        BinaryOp::Eq => |a, b| a == b,
        BinaryOp::Ne => |a, b| a != b,
        BinaryOp::Lt => |a, b| a < b,
        BinaryOp::Le => |a, b| a <= b,
        BinaryOp::Gt => |a, b| a > b,
        // The remaining comparison.
        _ => |a, b| a >= b,
    }
}

fn float_binary(op: BinaryOp) -> fn(f64, f64) -> f64 {
    match op {
        BinaryOp::Add => |a, b| a + b,
        BinaryOp::Sub => |a, b| a - b,
        BinaryOp::Mul => |a, b| a * b,
        BinaryOp::Div => |a, b| a / b,
        BinaryOp::FloorDiv => floor_div,
        BinaryOp::Rem => |a, b| {
            let r = a % b;
            if r != 0.0 && (r < 0.0) != (b < 0.0) { r + b } else { r }
        },
        BinaryOp::Pow => f64::powf,
        BinaryOp::Atan2 => f64::atan2,
        BinaryOp::Max => float_max,
        BinaryOp::Min => float_min,
        // Unreachable: bitwise ops are not defined on floats, and comparisons give bool.
        _ => |_, _| f64::NAN,
    }
}

/// The floor of the exact quotient, as Python and PyTorch define it.
fn floor_div(a: f64, b: f64) -> f64 {
    if b == 0.0 {
        return a / b;
    }
    let r = a % b;
    let mut quotient = (a - r) / b;
    if r != 0.0 && (b < 0.0) != (r < 0.0) {
        quotient -= 1.0;
    }
    if quotient == 0.0 {
        return 0f64.copysign(a / b);
    }
    let floor = quotient.floor();
    if quotient - floor > 0.5 { floor + 1.0 } else { floor }
}

/// The larger; NaN if one is.
pub(super) fn float_max(a: f64, b: f64) -> f64 {
    if a.is_nan() || a >= b { a } else { b }
}

/// The smaller; NaN if one is.
pub(super) fn float_min(a: f64, b: f64) -> f64 {
    if a.is_nan() || a <= b { a } else { b }
}

/// The function returns `None` for a division by zero.
fn int_binary(op: BinaryOp, dtype: DType) -> Result<fn(i64, i64) -> Option<i64>> {
    Ok(match op {
        BinaryOp::Add => |a, b| Some(a.wrapping_add(b)),
        BinaryOp::Sub => |a, b| Some(a.wrapping_sub(b)),
        BinaryOp::Mul => |a, b| Some(a.wrapping_mul(b)),
        BinaryOp::FloorDiv => |a, b| {
            let r = if b == 0 { return None } else { a.wrapping_rem(b) };
            let q = a.wrapping_div(b);
            Some(if r != 0 && (r < 0) != (b < 0) { q - 1 } else { q })
        },
        BinaryOp::Rem => |a, b| {
            let r = if b == 0 { return None } else { a.wrapping_rem(b) };
            Some(if r != 0 && (r < 0) != (b < 0) { r + b } else { r })
        },
        BinaryOp::Pow => |a, b| Some(int_pow(a, b)),
        BinaryOp::Max => |a, b| Some(a.max(b)),
        BinaryOp::Min => |a, b| Some(a.min(b)),
        BinaryOp::And => |a, b| Some(a & b),
        BinaryOp::Or => |a, b| Some(a | b),
        BinaryOp::Xor => |a, b| Some(a ^ b),
        BinaryOp::Shl => |a, b| Some(shift_left(a, b)),
        BinaryOp::Shr => |a, b| Some(shift_right(a, b)),
        _ => return Err(OpError::DType { expected: "floating-point", found: dtype }),
    })
}

/// The bits of a narrower type that a shift by its width or more moves out are cut when the result is stored.
fn shift_left(x: i64, bits: i64) -> i64 {
    u32::try_from(bits).ok().and_then(|bits| x.checked_shl(bits)).unwrap_or(0)
}

/// Keeps the sign, so that the result is that of every width.
fn shift_right(x: i64, bits: i64) -> i64 {
    x >> if (0..64).contains(&bits) { bits } else { 63 }
}

/// Wrapping power. A negative exponent gives the truncated quotient: 0 unless the base is 1 or -1.
fn int_pow(base: i64, exponent: i64) -> i64 {
    if exponent < 0 {
        return match base {
            1 => 1,
            -1 if exponent % 2 == 0 => 1,
            -1 => -1,
            _ => 0,
        };
    }
    let mut out = 1i64;
    let mut square = base;
    let mut remaining = exponent;
    while remaining > 0 {
        if remaining & 1 == 1 {
            out = out.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        remaining >>= 1;
    }
    out
}

pub(super) fn select(cond: &WideArray, x: &WideArray, y: &WideArray, shape: &[usize]) -> Result<WideArray> {
    fn choose<T: Copy>(
        c: (&[i64], &[usize]),
        x: (&[T], &[usize]),
        y: (&[T], &[usize]),
        to: &[usize],
    ) -> Vec<T> {
        let mut out = Vec::with_capacity(numel(to));
        for_each_offset(
            to,
            [&broadcast_strides(c.1, to), &broadcast_strides(x.1, to), &broadcast_strides(y.1, to)],
            |[i, j, k]| out.push(if c.0[i] != 0 { x.0[j] } else { y.0[k] }),
        );
        out
    }
    let c = (cond.as_ints()?, cond.shape.as_slice());
    match (&*x.data, &*y.data) {
        (ArrayData::Float(a), ArrayData::Float(b)) => {
            Ok(WideArray::from_floats(x.dtype, shape, choose(c, (a, &x.shape), (b, &y.shape), shape)))
        }
        (ArrayData::Int(a), ArrayData::Int(b)) => {
            Ok(WideArray::from_ints(x.dtype, shape, choose(c, (a, &x.shape), (b, &y.shape), shape)))
        }
        _ => Err(OpError::DType { expected: "like-typed", found: y.dtype }),
    }
}

/// Floats outside the range of i64 become its nearest end, and NaN becomes 0. Narrower integers wrap.
pub(super) fn cast(x: &WideArray, dtype: DType) -> WideArray {
    let shape = &x.shape;
    match (&*x.data, dtype) {
        (ArrayData::Float(v), DType::Bool) => WideArray::from_bools(shape, v.iter().map(|&x| x != 0.0)),
        (ArrayData::Float(v), _) if dtype.is_float() => WideArray::from_floats(dtype, shape, v.clone()),
        (ArrayData::Float(v), _) => WideArray::from_ints(dtype, shape, v.iter().map(|&x| x as i64).collect()),
        // The conversion of an i64 by way of f64 would round twice.
        (ArrayData::Int(v), DType::F32) => {
            WideArray::from_floats(dtype, shape, v.iter().map(|&x| f64::from(x as f32)).collect())
        }
        (ArrayData::Int(v), _) if dtype.is_float() => {
            WideArray::from_floats(dtype, shape, v.iter().map(|&x| x as f64).collect())
        }
        (ArrayData::Int(v), _) => WideArray::from_ints(dtype, shape, v.clone()),
    }
}

/// The error function, to about 1e-15.
fn erf(x: f64) -> f64 {
    if x.is_nan() {
        x
    } else if x.abs() < 2.0 {
        erf_series(x)
    } else {
        (1.0 - erfc_fraction(x.abs())).copysign(x)
    }
}

/// `1 - erf(x)`, precise where the result is small.
fn erfc(x: f64) -> f64 {
    if x.is_nan() {
        x
    } else if x.abs() < 2.0 {
        1.0 - erf_series(x)
    } else if x > 0.0 {
        erfc_fraction(x)
    } else {
        2.0 - erfc_fraction(-x)
    }
}

/// `2/√π · exp(-x²) · Σ 2ⁿ x²ⁿ⁺¹ / (2n+1)!!`, whose terms have one sign (Abramowitz and Stegun 7.1.6).
fn erf_series(x: f64) -> f64 {
    let mut term = x;
    let mut sum = x;
    let mut n = 0.0;
    while term.abs() > 1e-17 * sum.abs() {
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

/// The continued fraction of erfc for `x >= 2`, evaluated from its tail (Abramowitz and Stegun 7.1.14).
fn erfc_fraction(x: f64) -> f64 {
    if x > 30.0 {
        return 0.0;
    }
    let mut tail = x;
    for k in (1..=60).rev() {
        tail = x + f64::from(k) / 2.0 / tail;
    }
    (-x * x).exp() / (std::f64::consts::PI.sqrt() * tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_function() {
        // Values of Abramowitz and Stegun, table 7.1, and of its asymptotic form.
        for (x, expected) in [
            (0.0, 0.0),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (1.9, 0.992_790_429_235_257_5),
            (2.0, 0.995_322_265_018_952_7),
            (3.0, 0.999_977_909_503_001_4),
        ] {
            assert!((erf(x) - expected).abs() < 1e-15, "erf({x}) = {}", erf(x));
            assert_eq!(erf(-x), -erf(x));
        }
        assert!((erfc(5.0) / 1.537_459_794_428_034_8e-12 - 1.0).abs() < 1e-13);
        assert!((erfc(-5.0) - 2.0).abs() < 1e-11);
        assert_eq!(erf(f64::INFINITY), 1.0);
        assert!(erf(f64::NAN).is_nan());
    }

    #[test]
    fn floor_division_of_floats() {
        for (a, b, expected) in [
            (7.0, 2.0, 3.0),
            (-7.0, 2.0, -4.0),
            (7.0, -2.0, -4.0),
            (1.0, 0.0, f64::INFINITY),
            (6.0, 3.0, 2.0),
        ] {
            assert_eq!(floor_div(a, b), expected, "{a} // {b}");
        }
        assert!(floor_div(0.0, 0.0).is_nan());
    }
}
