//! Element-wise ops: unary, binary, select, cast, full and iota.
//!
//! Each works block by block ([`super::blocks`]): it reads a block of every operand as numbers, computes, and writes
//! the block.
//! Floats are computed in f32 (f64 for f64), integers and bool in i64 with wrap-around at the stored width.

use symmc_ir::{BinaryOp, DType, Scalar, UnaryOp};

use super::blocks::{convert_blocks, map_blocks};
use super::element::{ComputeNumber, for_element, for_number};
use super::error::{KernelError, Result};
use super::math::RealNumber;
use super::norm::for_real;
use super::simd::widened;
use super::strided::{BLOCK, StridedView, StridedWriter};

pub(super) fn unary(op: UnaryOp, x: &StridedView, result: &StridedView) -> Result<()> {
    expect_defined(op.supports_dtype(x.dtype), op.name(), x.dtype)?;
    if !x.dtype.is_float() {
        return map_blocks::<i64, 1>([x], result, |[numbers], out| {
            unary_int_block(op, x.dtype, numbers, out);
            Ok(())
        });
    }
    for_real!(x.dtype, R => {
        map_blocks::<R, 1>([x], result, |[numbers], out| {
            unary_block::<R>(op, numbers, out);
            Ok(())
        })
    })
}

fn expect_defined(takes: bool, op: &str, dtype: DType) -> Result<()> {
    if takes { Ok(()) } else { Err(KernelError::Undefined { op: op.into(), dtype }) }
}

pub(super) fn binary(op: BinaryOp, x: &StridedView, y: &StridedView, result: &StridedView) -> Result<()> {
    expect_defined(op.supports_dtype(x.dtype), op.name(), x.dtype)?;
    let shape = result.shape();
    let x = x.broadcast(&shape)?;
    let y = y.broadcast(&shape)?;
    for_number!(x.dtype, C => map_blocks::<C, 2>([&x, &y], result, |[x, y], out| C::combine(op, x, y, out)))
}

/// `x op scalar`, or `scalar op x`. For comparisons the scalar has the dtype of `x`.
pub(super) fn binary_scalar(
    op: BinaryOp,
    scalar: Scalar,
    scalar_left: bool,
    x: &StridedView,
    result: &StridedView,
) -> Result<()> {
    expect_defined(op.supports_dtype(x.dtype), op.name(), x.dtype)?;
    for_number!(x.dtype, C => {
        let scalar = if op.is_comparison() {
            for_element!(x.dtype, E => C::from_element(C::from_scalar(scalar).to_element::<E>()))
        } else {
            C::from_scalar(scalar)
        };
        map_blocks::<C, 1>([x], result, |[x], out| C::combine_scalar(op, scalar, scalar_left, x, out))
    })
}

pub(super) fn select(
    condition: &StridedView,
    x: &StridedView,
    y: &StridedView,
    result: &StridedView,
) -> Result<()> {
    let shape = result.shape();
    let condition = condition.broadcast(&shape)?;
    let x = x.broadcast(&shape)?;
    let y = y.broadcast(&shape)?;
    for_number!(x.dtype, C => {
        map_blocks::<C, 3>([&condition, &x, &y], result, |[condition, x, y], out| {
            select_block::<C>(condition, x, y, out);
            Ok(())
        })
    })
}

widened! {
    /// Conditions are numbers of the selected type; 0 is false.
    fn select_block<C: ComputeNumber>(condition: &[C], x: &[C], y: &[C], out: &mut [C]) {
        for (out, ((c, x), y)) in out.iter_mut().zip(condition.iter().zip(x).zip(y)) {
            *out = if *c != C::default() { *x } else { *y };
        }
    }
}

pub(super) fn cast(x: &StridedView, result: &StridedView) {
    if x.dtype == result.dtype {
        super::strided::copy_view(x, result);
    } else if x.dtype == DType::F64 || x.dtype.is_float() && !result.dtype.is_float() {
        convert_blocks::<f64>(x, result);
    } else if x.dtype.is_float() {
        convert_blocks::<f32>(x, result);
    } else {
        convert_blocks::<i64>(x, result);
    }
}

pub(super) fn full(scalar: Scalar, result: &StridedView) {
    for_element!(result.dtype, E => {
        let element: E = match (result.dtype.is_float(), scalar) {
            (true, _) => scalar.as_f64().to_element(),
            // A float other than 0 is true even if it truncates to 0.
            (false, Scalar::Float(x)) if result.dtype == DType::Bool => x.0.to_element(),
            (false, _) => scalar.as_i64().to_element(),
        };
        result.fill(element);
    });
}

pub(super) fn iota(start: i64, step: i64, result: &StridedView) {
    let mut out = StridedWriter::<i64>::new(result);
    let mut buffer = [0; BLOCK];
    let mut next = start;
    for n in block_sizes(result.numel()) {
        for element in &mut buffer[..n] {
            *element = next;
            next = next.wrapping_add(step);
        }
        out.write_next(&buffer[..n]);
    }
}

/// The sizes of the blocks into which `n` elements are divided.
pub(super) fn block_sizes(n: usize) -> impl Iterator<Item = usize> {
    (0..n.div_ceil(BLOCK)).map(move |i| BLOCK.min(n - i * BLOCK))
}

#[inline(always)]
fn map_block<C: Copy>(x: &[C], out: &mut [C], f: impl Fn(C) -> C) {
    for (out, &x) in out.iter_mut().zip(x) {
        *out = f(x);
    }
}

#[inline(always)]
fn truth<R: RealNumber>(is_true: bool) -> R {
    if is_true { R::ONE } else { R::ZERO }
}

widened! {
fn unary_block<R: RealNumber>(op: UnaryOp, x: &[R], out: &mut [R]) {
    match op {
        UnaryOp::Neg => map_block(x, out, |x| -x),
        UnaryOp::Abs => map_block(x, out, R::abs),
        // Zero for NaN too, as in PyTorch.
        UnaryOp::Sign => map_block(x, out, |x| truth::<R>(x > R::ZERO) - truth::<R>(x < R::ZERO)),
        UnaryOp::Not => map_block(x, out, |x| truth(x == R::ZERO)),
        UnaryOp::Exp => map_block(x, out, R::exp),
        UnaryOp::Log => map_block(x, out, R::ln),
        UnaryOp::Sqrt => map_block(x, out, R::sqrt),
        UnaryOp::Rsqrt => map_block(x, out, |x| R::ONE / x.sqrt()),
        UnaryOp::Reciprocal => map_block(x, out, |x| R::ONE / x),
        UnaryOp::Sin => R::sin_block(x, out),
        UnaryOp::Cos => R::cos_block(x, out),
        UnaryOp::Tanh => map_block(x, out, R::tanh),
        UnaryOp::Erf => map_block(x, out, R::erf),
        UnaryOp::Floor => map_block(x, out, R::floor),
        UnaryOp::Ceil => map_block(x, out, R::ceil),
        UnaryOp::Round => map_block(x, out, R::round_even),
        UnaryOp::Trunc => map_block(x, out, R::trunc),
        UnaryOp::Relu => map_block(x, out, |x| if x < R::ZERO { R::ZERO } else { x }),
        UnaryOp::Sigmoid => map_block(x, out, R::sigmoid),
        UnaryOp::Silu => map_block(x, out, |x| x / (R::ONE + (-x).exp())),
        UnaryOp::Gelu => map_block(x, out, R::gelu),
        UnaryOp::GeluTanh => map_block(x, out, R::gelu_tanh),
        UnaryOp::IsNan => map_block(x, out, |x| truth(x.is_nan())),
        UnaryOp::IsFinite => map_block(x, out, |x| truth(x.is_finite())),
    }
}
}

fn unary_int_block(op: UnaryOp, dtype: DType, x: &[i64], out: &mut [i64]) {
    match op {
        UnaryOp::Neg => map_block(x, out, i64::wrapping_neg),
        UnaryOp::Abs => map_block(x, out, i64::wrapping_abs),
        UnaryOp::Sign => map_block(x, out, i64::signum),
        UnaryOp::Relu => map_block(x, out, |x| x.max(0)),
        UnaryOp::Not if dtype == DType::Bool => map_block(x, out, |x| i64::from(x == 0)),
        _ => map_block(x, out, |x| !x),
    }
}

/// Binary ops on blocks of one number type; 1 and 0 represent true and false.
pub(super) trait CombineBlocks: ComputeNumber {
    fn combine(op: BinaryOp, x: &[Self], y: &[Self], out: &mut [Self]) -> Result<()>;

    /// `x op scalar`, or `scalar op x`.
    fn combine_scalar(
        op: BinaryOp,
        scalar: Self,
        scalar_left: bool,
        x: &[Self],
        out: &mut [Self],
    ) -> Result<()>;
}

#[inline(always)]
fn zip_blocks<C: Copy>(x: &[C], y: &[C], out: &mut [C], f: impl Fn(C, C) -> C) {
    for (out, (&x, &y)) in out.iter_mut().zip(x.iter().zip(y)) {
        *out = f(x, y);
    }
}

#[inline(always)]
fn combine_reals<R: RealNumber>(op: BinaryOp, x: &[R], y: &[R], out: &mut [R]) {
    match op {
        BinaryOp::Add => zip_blocks(x, y, out, |x, y| x + y),
        BinaryOp::Sub => zip_blocks(x, y, out, |x, y| x - y),
        BinaryOp::Mul => zip_blocks(x, y, out, |x, y| x * y),
        BinaryOp::Div => zip_blocks(x, y, out, |x, y| x / y),
        BinaryOp::FloorDiv => zip_blocks(x, y, out, R::div_floor),
        BinaryOp::Rem => zip_blocks(x, y, out, R::rem_floor),
        BinaryOp::Pow => zip_blocks(x, y, out, |x, y| if y == R::of(2.0) { x * x } else { x.powf(y) }),
        BinaryOp::Atan2 => zip_blocks(x, y, out, R::atan2),
        BinaryOp::Max => zip_blocks(x, y, out, R::max_nan),
        BinaryOp::Min => zip_blocks(x, y, out, R::min_nan),
        BinaryOp::And => zip_blocks(x, y, out, |x, y| truth((x != R::ZERO) & (y != R::ZERO))),
        BinaryOp::Or => zip_blocks(x, y, out, |x, y| truth((x != R::ZERO) | (y != R::ZERO))),
        BinaryOp::Xor => zip_blocks(x, y, out, |x, y| truth((x != R::ZERO) != (y != R::ZERO))),
        // Unreachable: shifts are not defined on floats.
        BinaryOp::Shl | BinaryOp::Shr => {}
        BinaryOp::Eq => zip_blocks(x, y, out, |x, y| truth(x == y)),
        BinaryOp::Ne => zip_blocks(x, y, out, |x, y| truth(x != y)),
        BinaryOp::Lt => zip_blocks(x, y, out, |x, y| truth(x < y)),
        BinaryOp::Le => zip_blocks(x, y, out, |x, y| truth(x <= y)),
        BinaryOp::Gt => zip_blocks(x, y, out, |x, y| truth(x > y)),
        BinaryOp::Ge => zip_blocks(x, y, out, |x, y| truth(x >= y)),
    }
}

widened! {
    fn combine_real_blocks<R: RealNumber>(op: BinaryOp, x: &[R], y: &[R], out: &mut [R]) {
        combine_reals(op, x, y, out);
    }
}

widened! {
    fn combine_real_scalar<R: RealNumber>(op: BinaryOp, scalar: R, scalar_left: bool, x: &[R], out: &mut [R]) {
        let scalars = [scalar; BLOCK];
        for (x, out) in x.chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
            let scalars = &scalars[..x.len()];
            let (x, y) = if scalar_left { (scalars, x) } else { (x, scalars) };
            combine_reals(op, x, y, out);
        }
    }
}

macro_rules! combine_real {
    ($($t:ty),*) => { $(
        impl CombineBlocks for $t {
            fn combine(op: BinaryOp, x: &[$t], y: &[$t], out: &mut [$t]) -> Result<()> {
                combine_real_blocks(op, x, y, out);
                Ok(())
            }
            fn combine_scalar(
                op: BinaryOp,
                scalar: $t,
                scalar_left: bool,
                x: &[$t],
                out: &mut [$t],
            ) -> Result<()> {
                combine_real_scalar(op, scalar, scalar_left, x, out);
                Ok(())
            }
        }
    )* };
}

combine_real!(f32, f64);

impl CombineBlocks for i64 {
    fn combine(op: BinaryOp, x: &[i64], y: &[i64], out: &mut [i64]) -> Result<()> {
        if matches!(op, BinaryOp::FloorDiv | BinaryOp::Rem) && y.contains(&0) {
            return Err(KernelError::ZeroDivisor);
        }
        match op {
            BinaryOp::Add => zip_blocks(x, y, out, i64::wrapping_add),
            BinaryOp::Sub => zip_blocks(x, y, out, i64::wrapping_sub),
            BinaryOp::Mul => zip_blocks(x, y, out, i64::wrapping_mul),
            // Unreachable: these ops are not defined on integers.
            BinaryOp::Div | BinaryOp::Atan2 => {}
            BinaryOp::FloorDiv => zip_blocks(x, y, out, |x, y| {
                let q = x.wrapping_div(y);
                if x.wrapping_rem(y) != 0 && (x < 0) != (y < 0) { q - 1 } else { q }
            }),
            BinaryOp::Rem => zip_blocks(x, y, out, |x, y| {
                let r = x.wrapping_rem(y);
                if r != 0 && (r < 0) != (y < 0) { r + y } else { r }
            }),
            BinaryOp::Pow => zip_blocks(x, y, out, int_pow),
            BinaryOp::Max => zip_blocks(x, y, out, i64::max),
            BinaryOp::Min => zip_blocks(x, y, out, i64::min),
            BinaryOp::And => zip_blocks(x, y, out, |x, y| x & y),
            BinaryOp::Or => zip_blocks(x, y, out, |x, y| x | y),
            BinaryOp::Xor => zip_blocks(x, y, out, |x, y| x ^ y),
            BinaryOp::Shl => zip_blocks(x, y, out, |x, y| if (0..64).contains(&y) { x << y } else { 0 }),
            BinaryOp::Shr => zip_blocks(x, y, out, |x, y| x >> if (0..64).contains(&y) { y } else { 63 }),
            BinaryOp::Eq => zip_blocks(x, y, out, |x, y| i64::from(x == y)),
            BinaryOp::Ne => zip_blocks(x, y, out, |x, y| i64::from(x != y)),
            BinaryOp::Lt => zip_blocks(x, y, out, |x, y| i64::from(x < y)),
            BinaryOp::Le => zip_blocks(x, y, out, |x, y| i64::from(x <= y)),
            BinaryOp::Gt => zip_blocks(x, y, out, |x, y| i64::from(x > y)),
            BinaryOp::Ge => zip_blocks(x, y, out, |x, y| i64::from(x >= y)),
        }
        Ok(())
    }
    fn combine_scalar(
        op: BinaryOp,
        scalar: i64,
        scalar_left: bool,
        x: &[i64],
        out: &mut [i64],
    ) -> Result<()> {
        let scalars = [scalar; BLOCK];
        for (x, out) in x.chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
            let scalars = &scalars[..x.len()];
            let (x, y) = if scalar_left { (scalars, x) } else { (x, scalars) };
            Self::combine(op, x, y, out)?;
        }
        Ok(())
    }
}

/// `x` to the power `e`, wrapping; a negative power is the integer part of the exact one.
fn int_pow(x: i64, e: i64) -> i64 {
    if e < 0 {
        return match x {
            1 => 1,
            -1 => 1 - 2 * (e & 1),
            _ => 0,
        };
    }
    let mut power = 1i64;
    let mut base = x;
    let mut remaining = e;
    while remaining > 0 {
        if remaining & 1 == 1 {
            power = power.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        remaining >>= 1;
    }
    power
}
