//! Element-wise ops: unary, binary, select, cast, full and iota.
//!
//! Each works block by block: it reads a block of every operand as numbers, computes, and writes the block.
//! Floats are computed in f32 (f64 for f64), integers and bool in i64 with wrap-around at the stored width.

use symmc_ir::{BinaryOp, DType, Scalar, UnaryOp};

use super::element::{ComputeNumber, for_element, for_number};
use super::error::{KernelError, Result};
use super::math::RealNumber;
use super::simd::widened;
use super::strided::{BLOCK, StridedReader, StridedView, StridedWriter};

pub(super) fn unary(op: UnaryOp, x: &StridedView, result: &StridedView) -> Result<()> {
    expect_defined(op.supports_dtype(x.dtype), op.name(), x.dtype)?;
    match x.dtype {
        DType::F64 => map_blocks::<f64>(x, result, |b| unary_block(op, b)),
        d if d.is_float() => map_blocks::<f32>(x, result, |b| unary_block(op, b)),
        d => map_blocks::<i64>(x, result, |b| unary_int_block(op, d, b)),
    }
    Ok(())
}

fn expect_defined(takes: bool, op: &str, dtype: DType) -> Result<()> {
    if takes { Ok(()) } else { Err(KernelError::Undefined { op: op.into(), dtype }) }
}

pub(super) fn binary(op: BinaryOp, x: &StridedView, y: &StridedView, result: &StridedView) -> Result<()> {
    expect_defined(op.supports_dtype(x.dtype), op.name(), x.dtype)?;
    let shape = result.shape();
    let x = x.broadcast(&shape)?;
    let y = y.broadcast(&shape)?;
    for_number!(x.dtype, C => {
        let mut xs = StridedReader::<C>::new(&x);
        let mut ys = StridedReader::<C>::new(&y);
        let mut out = StridedWriter::<C>::new(result);
        let mut a = [C::default(); BLOCK];
        let mut b = [C::default(); BLOCK];
        for n in block_sizes(result.numel()) {
            xs.read_next(&mut a[..n]);
            ys.read_next(&mut b[..n]);
            C::combine(op, &mut a[..n], &b[..n])?;
            out.write_next(&a[..n]);
        }
    });
    Ok(())
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
        let mut xs = StridedReader::<C>::new(x);
        let mut out = StridedWriter::<C>::new(result);
        let scalar = if op.is_comparison() {
            for_element!(x.dtype, E => C::from_element(C::from_scalar(scalar).to_element::<E>()))
        } else {
            C::from_scalar(scalar)
        };
        let scalars = [scalar; BLOCK];
        let mut a = [C::default(); BLOCK];
        for n in block_sizes(result.numel()) {
            xs.read_next(&mut a[..n]);
            if scalar_left {
                let mut left_values = scalars;
                C::combine(op, &mut left_values[..n], &a[..n])?;
                out.write_next(&left_values[..n]);
            } else {
                C::combine(op, &mut a[..n], &scalars[..n])?;
                out.write_next(&a[..n]);
            }
        }
    });
    Ok(())
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
        let mut conditions = StridedReader::<i64>::new(&condition);
        let mut xs = StridedReader::<C>::new(&x);
        let mut ys = StridedReader::<C>::new(&y);
        let mut out = StridedWriter::<C>::new(result);
        let mut c = [0i64; BLOCK];
        let mut a = [C::default(); BLOCK];
        let mut b = [C::default(); BLOCK];
        for n in block_sizes(result.numel()) {
            conditions.read_next(&mut c[..n]);
            xs.read_next(&mut a[..n]);
            ys.read_next(&mut b[..n]);
            for i in 0..n {
                b[i] = if c[i] != 0 { a[i] } else { b[i] };
            }
            out.write_next(&b[..n]);
        }
    });
    Ok(())
}

pub(super) fn cast(x: &StridedView, result: &StridedView) {
    if x.dtype == result.dtype {
        super::strided::copy_view(x, result);
    } else if x.dtype == DType::F64 || x.dtype.is_float() && !result.dtype.is_float() {
        map_blocks::<f64>(x, result, |_| ());
    } else if x.dtype.is_float() {
        map_blocks::<f32>(x, result, |_| ());
    } else {
        map_blocks::<i64>(x, result, |_| ());
    }
}

pub(super) fn full(scalar: Scalar, result: &StridedView) {
    match (result.dtype.is_float(), scalar) {
        (true, _) => fill_with(result, |_| scalar.as_f64()),
        // A float other than 0 is true even if it truncates to 0.
        (false, Scalar::Float(x)) if result.dtype == DType::Bool => fill_with(result, |_| x.0),
        (false, _) => fill_with(result, |_| scalar.as_i64()),
    }
}

pub(super) fn iota(start: i64, step: i64, result: &StridedView) {
    fill_with(result, |i| start.wrapping_add(step.wrapping_mul(i as i64)));
}

/// Stores `f(i)` as element `i` in row-major order.
fn fill_with<C: ComputeNumber>(result: &StridedView, f: impl Fn(usize) -> C) {
    let mut out = StridedWriter::<C>::new(result);
    let mut buffer = [C::default(); BLOCK];
    let mut start = 0;
    for n in block_sizes(result.numel()) {
        for (i, b) in buffer[..n].iter_mut().enumerate() {
            *b = f(start + i);
        }
        out.write_next(&buffer[..n]);
        start += n;
    }
}

/// Reads `x` as `C`, applies `f` to each block and stores it.
fn map_blocks<C: ComputeNumber>(x: &StridedView, result: &StridedView, f: impl Fn(&mut [C])) {
    let mut xs = StridedReader::<C>::new(x);
    let mut out = StridedWriter::<C>::new(result);
    let mut buffer = [C::default(); BLOCK];
    for n in block_sizes(result.numel()) {
        xs.read_next(&mut buffer[..n]);
        f(&mut buffer[..n]);
        out.write_next(&buffer[..n]);
    }
}

/// The sizes of the blocks into which `n` elements are divided.
pub(super) fn block_sizes(n: usize) -> impl Iterator<Item = usize> {
    (0..n.div_ceil(BLOCK)).map(move |i| BLOCK.min(n - i * BLOCK))
}

#[inline(always)]
fn map_block<C: Copy>(block: &mut [C], f: impl Fn(C) -> C) {
    for x in block {
        *x = f(*x);
    }
}

#[inline(always)]
fn truth<R: RealNumber>(is_true: bool) -> R {
    if is_true { R::ONE } else { R::ZERO }
}

widened! {
fn unary_block<R: RealNumber>(op: UnaryOp, b: &mut [R]) {
    match op {
        UnaryOp::Neg => map_block(b, |x| -x),
        UnaryOp::Abs => map_block(b, R::abs),
        // Zero for NaN too, as in PyTorch.
        UnaryOp::Sign => map_block(b, |x| truth::<R>(x > R::ZERO) - truth::<R>(x < R::ZERO)),
        UnaryOp::Not => map_block(b, |x| truth(x == R::ZERO)),
        UnaryOp::Exp => map_block(b, R::exp),
        UnaryOp::Log => map_block(b, R::ln),
        UnaryOp::Sqrt => map_block(b, R::sqrt),
        UnaryOp::Rsqrt => map_block(b, |x| R::ONE / x.sqrt()),
        UnaryOp::Reciprocal => map_block(b, |x| R::ONE / x),
        UnaryOp::Sin => map_block(b, R::sin),
        UnaryOp::Cos => map_block(b, R::cos),
        UnaryOp::Tanh => map_block(b, R::tanh),
        UnaryOp::Erf => map_block(b, R::erf),
        UnaryOp::Floor => map_block(b, R::floor),
        UnaryOp::Ceil => map_block(b, R::ceil),
        UnaryOp::Round => map_block(b, R::round_even),
        UnaryOp::Trunc => map_block(b, R::trunc),
        UnaryOp::Relu => map_block(b, |x| if x < R::ZERO { R::ZERO } else { x }),
        UnaryOp::Sigmoid => map_block(b, R::sigmoid),
        UnaryOp::Silu => map_block(b, |x| x / (R::ONE + (-x).exp())),
        UnaryOp::Gelu => map_block(b, R::gelu),
        UnaryOp::GeluTanh => map_block(b, R::gelu_tanh),
        UnaryOp::IsNan => map_block(b, |x| truth(x.is_nan())),
        UnaryOp::IsFinite => map_block(b, |x| truth(x.is_finite())),
    }
}
}

fn unary_int_block(op: UnaryOp, dtype: DType, b: &mut [i64]) {
    match op {
        UnaryOp::Neg => map_block(b, i64::wrapping_neg),
        UnaryOp::Abs => map_block(b, i64::wrapping_abs),
        UnaryOp::Sign => map_block(b, i64::signum),
        UnaryOp::Relu => map_block(b, |x| x.max(0)),
        UnaryOp::Not if dtype == DType::Bool => map_block(b, |x| i64::from(x == 0)),
        _ => map_block(b, |x| !x),
    }
}

/// Binary ops on blocks of one number type. The result replaces the left operand; 1 and 0 represent true and
/// false.
pub(super) trait CombineBlocks: ComputeNumber {
    fn combine(op: BinaryOp, a: &mut [Self], b: &[Self]) -> Result<()>;
}

#[inline(always)]
fn zip_blocks<C: Copy>(a: &mut [C], b: &[C], f: impl Fn(C, C) -> C) {
    for (x, &y) in a.iter_mut().zip(b) {
        *x = f(*x, y);
    }
}

widened! {
fn combine_real<R: RealNumber>(op: BinaryOp, a: &mut [R], b: &[R]) {
    match op {
        BinaryOp::Add => zip_blocks(a, b, |x, y| x + y),
        BinaryOp::Sub => zip_blocks(a, b, |x, y| x - y),
        BinaryOp::Mul => zip_blocks(a, b, |x, y| x * y),
        BinaryOp::Div => zip_blocks(a, b, |x, y| x / y),
        BinaryOp::FloorDiv => zip_blocks(a, b, R::div_floor),
        BinaryOp::Rem => zip_blocks(a, b, R::rem_floor),
        BinaryOp::Pow => zip_blocks(a, b, |x, y| if y == R::of(2.0) { x * x } else { x.powf(y) }),
        BinaryOp::Atan2 => zip_blocks(a, b, R::atan2),
        BinaryOp::Max => zip_blocks(a, b, R::max_nan),
        BinaryOp::Min => zip_blocks(a, b, R::min_nan),
        BinaryOp::And => zip_blocks(a, b, |x, y| truth(x != R::ZERO && y != R::ZERO)),
        BinaryOp::Or => zip_blocks(a, b, |x, y| truth(x != R::ZERO || y != R::ZERO)),
        BinaryOp::Xor => zip_blocks(a, b, |x, y| truth((x != R::ZERO) != (y != R::ZERO))),
        // Unreachable: shifts are not defined on floats.
        BinaryOp::Shl | BinaryOp::Shr => {}
        BinaryOp::Eq => zip_blocks(a, b, |x, y| truth(x == y)),
        BinaryOp::Ne => zip_blocks(a, b, |x, y| truth(x != y)),
        BinaryOp::Lt => zip_blocks(a, b, |x, y| truth(x < y)),
        BinaryOp::Le => zip_blocks(a, b, |x, y| truth(x <= y)),
        BinaryOp::Gt => zip_blocks(a, b, |x, y| truth(x > y)),
        BinaryOp::Ge => zip_blocks(a, b, |x, y| truth(x >= y)),
    }
}
}

impl CombineBlocks for f32 {
    fn combine(op: BinaryOp, a: &mut [f32], b: &[f32]) -> Result<()> {
        combine_real(op, a, b);
        Ok(())
    }
}

impl CombineBlocks for f64 {
    fn combine(op: BinaryOp, a: &mut [f64], b: &[f64]) -> Result<()> {
        combine_real(op, a, b);
        Ok(())
    }
}

impl CombineBlocks for i64 {
    fn combine(op: BinaryOp, a: &mut [i64], b: &[i64]) -> Result<()> {
        if matches!(op, BinaryOp::FloorDiv | BinaryOp::Rem) && b.contains(&0) {
            return Err(KernelError::ZeroDivisor);
        }
        match op {
            BinaryOp::Add => zip_blocks(a, b, i64::wrapping_add),
            BinaryOp::Sub => zip_blocks(a, b, i64::wrapping_sub),
            BinaryOp::Mul => zip_blocks(a, b, i64::wrapping_mul),
            // Unreachable: these ops are not defined on integers.
            BinaryOp::Div | BinaryOp::Atan2 => {}
            BinaryOp::FloorDiv => zip_blocks(a, b, |x, y| {
                let q = x.wrapping_div(y);
                if x.wrapping_rem(y) != 0 && (x < 0) != (y < 0) { q - 1 } else { q }
            }),
            BinaryOp::Rem => zip_blocks(a, b, |x, y| {
                let r = x.wrapping_rem(y);
                if r != 0 && (r < 0) != (y < 0) { r + y } else { r }
            }),
            BinaryOp::Pow => zip_blocks(a, b, int_pow),
            BinaryOp::Max => zip_blocks(a, b, i64::max),
            BinaryOp::Min => zip_blocks(a, b, i64::min),
            BinaryOp::And => zip_blocks(a, b, |x, y| x & y),
            BinaryOp::Or => zip_blocks(a, b, |x, y| x | y),
            BinaryOp::Xor => zip_blocks(a, b, |x, y| x ^ y),
            BinaryOp::Shl => zip_blocks(a, b, |x, y| if (0..64).contains(&y) { x << y } else { 0 }),
            BinaryOp::Shr => zip_blocks(a, b, |x, y| x >> if (0..64).contains(&y) { y } else { 63 }),
            BinaryOp::Eq => zip_blocks(a, b, |x, y| i64::from(x == y)),
            BinaryOp::Ne => zip_blocks(a, b, |x, y| i64::from(x != y)),
            BinaryOp::Lt => zip_blocks(a, b, |x, y| i64::from(x < y)),
            BinaryOp::Le => zip_blocks(a, b, |x, y| i64::from(x <= y)),
            BinaryOp::Gt => zip_blocks(a, b, |x, y| i64::from(x > y)),
            BinaryOp::Ge => zip_blocks(a, b, |x, y| i64::from(x >= y)),
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
