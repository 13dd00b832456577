//! Reductions, arg-reductions and cumulative sums.
//!
//! Floats are summed in f64 over short runs of f32, integers in i64, so the order of summation does not
//! show. Maximum and minimum give NaN where any element is NaN.

use symmc_ir::{ArgOp, DType, Reduction};

use super::element::{Number, for_number};
use super::error::{KernelError, Result};
use super::gemm::sum_by;
use super::pointwise::blocks;
use super::scratch::Scratch;
use super::strided::{BLOCK, Reader, Strided, Writer};

/// A type that reductions and scatters accumulate in: f64 or i64.
pub(super) trait Accumulate: Number {
    fn start(op: Reduction) -> Self;
    /// The accumulation of a run onto `acc`.
    fn run(op: Reduction, acc: Self, xs: &[Self]) -> Self;
    /// The accumulation of each element of `xs` onto its own accumulator.
    fn beside(op: Reduction, accs: &mut [Self], xs: &[Self]);
    fn add(self, x: Self) -> Self;
    fn divide(self, count: usize) -> Self;
}

#[inline(always)]
fn zip<A: Copy>(accs: &mut [A], xs: &[A], f: impl Fn(A, A) -> A) {
    for (acc, &x) in accs.iter_mut().zip(xs) {
        *acc = f(*acc, x);
    }
}

#[inline(always)]
fn max_nan(acc: f64, x: f64) -> f64 {
    if x > acc || x.is_nan() { x } else { acc }
}

#[inline(always)]
fn min_nan(acc: f64, x: f64) -> f64 {
    if x < acc || x.is_nan() { x } else { acc }
}

impl Accumulate for f64 {
    fn start(op: Reduction) -> Self {
        match op {
            Reduction::Sum | Reduction::Mean | Reduction::Any => 0.0,
            Reduction::Prod | Reduction::All => 1.0,
            Reduction::Max => f64::NEG_INFINITY,
            Reduction::Min => f64::INFINITY,
        }
    }
    fn run(op: Reduction, acc: f64, xs: &[f64]) -> f64 {
        match op {
            Reduction::Sum | Reduction::Mean => acc + sum_by(xs, |x| x),
            Reduction::Prod => xs.iter().fold(acc, |acc, x| acc * x),
            Reduction::Max => xs.iter().copied().fold(acc, max_nan),
            Reduction::Min => xs.iter().copied().fold(acc, min_nan),
            Reduction::Any => f64::from(u8::from(acc != 0.0 || xs.iter().any(|&x| x != 0.0))),
            Reduction::All => f64::from(u8::from(acc != 0.0 && xs.iter().all(|&x| x != 0.0))),
        }
    }
    fn beside(op: Reduction, accs: &mut [f64], xs: &[f64]) {
        match op {
            Reduction::Sum | Reduction::Mean => zip(accs, xs, |acc, x| acc + x),
            Reduction::Prod => zip(accs, xs, |acc, x| acc * x),
            Reduction::Max => zip(accs, xs, max_nan),
            Reduction::Min => zip(accs, xs, min_nan),
            Reduction::Any => zip(accs, xs, |acc, x| f64::from(u8::from(acc != 0.0 || x != 0.0))),
            Reduction::All => zip(accs, xs, |acc, x| f64::from(u8::from(acc != 0.0 && x != 0.0))),
        }
    }
    fn add(self, x: f64) -> f64 {
        self + x
    }
    fn divide(self, count: usize) -> f64 {
        self / count as f64
    }
}

impl Accumulate for i64 {
    fn start(op: Reduction) -> Self {
        match op {
            Reduction::Sum | Reduction::Mean | Reduction::Any => 0,
            Reduction::Prod | Reduction::All => 1,
            Reduction::Max => i64::MIN,
            Reduction::Min => i64::MAX,
        }
    }
    fn run(op: Reduction, acc: i64, xs: &[i64]) -> i64 {
        match op {
            Reduction::Sum | Reduction::Mean => xs.iter().fold(acc, |acc, &x| acc.wrapping_add(x)),
            Reduction::Prod => xs.iter().fold(acc, |acc, &x| acc.wrapping_mul(x)),
            Reduction::Max => xs.iter().fold(acc, |acc, &x| acc.max(x)),
            Reduction::Min => xs.iter().fold(acc, |acc, &x| acc.min(x)),
            Reduction::Any => i64::from(acc != 0 || xs.iter().any(|&x| x != 0)),
            Reduction::All => i64::from(acc != 0 && xs.iter().all(|&x| x != 0)),
        }
    }
    fn beside(op: Reduction, accs: &mut [i64], xs: &[i64]) {
        match op {
            Reduction::Sum | Reduction::Mean => zip(accs, xs, i64::wrapping_add),
            Reduction::Prod => zip(accs, xs, i64::wrapping_mul),
            Reduction::Max => zip(accs, xs, i64::max),
            Reduction::Min => zip(accs, xs, i64::min),
            Reduction::Any => zip(accs, xs, |acc, x| i64::from(acc != 0 || x != 0)),
            Reduction::All => zip(accs, xs, |acc, x| i64::from(acc != 0 && x != 0)),
        }
    }
    fn add(self, x: i64) -> i64 {
        self.wrapping_add(x)
    }
    fn divide(self, count: usize) -> i64 {
        // Towards minus infinity: counts are positive.
        self.checked_div_euclid(count as i64).unwrap_or(0)
    }
}

pub(super) fn reduce(
    op: Reduction,
    axes: &[usize],
    keep: bool,
    x: &Strided,
    result: &Strided,
    scratch: &mut Scratch,
) -> Result<()> {
    let kept = kept_axes(axes, keep, x, result)?;
    let count: usize = axes.iter().map(|&a| x.n(a)).product();
    if count == 0 && result.numel() > 0 && matches!(op, Reduction::Max | Reduction::Min) {
        return Err(KernelError::Empty { op: op.name().into() });
    }
    if x.dtype.is_float() {
        accumulate::<f64>(op, axes, &kept, x, result, scratch);
    } else {
        accumulate::<i64>(op, axes, &kept, x, result, scratch);
    }
    Ok(())
}

/// The axes that are not reduced. Checks the shape of the result.
fn kept_axes(axes: &[usize], keep: bool, x: &Strided, result: &Strided) -> Result<Vec<usize>> {
    let kept: Vec<usize> = (0..x.rank()).filter(|a| !axes.contains(a)).collect();
    let expected: Vec<usize> = match keep {
        true => (0..x.rank()).map(|a| if axes.contains(&a) { 1 } else { x.n(a) }).collect(),
        false => kept.iter().map(|&a| x.n(a)).collect(),
    };
    if axes.iter().any(|&a| a >= x.rank()) || result.shape()[..] != expected[..] {
        return Err(KernelError::shape("the result of a reduction", &expected, &result.shape()));
    }
    Ok(kept)
}

/// Reduces in three nested parts: the kept axes before the last reduced one, the reduced axes, and the kept
/// axes behind the last reduced one, which are accumulated side by side.
fn accumulate<A: Accumulate>(
    op: Reduction,
    axes: &[usize],
    kept: &[usize],
    x: &Strided,
    result: &Strided,
    scratch: &mut Scratch,
) {
    let last = axes.last().copied();
    let inner: Vec<usize> = kept.iter().copied().filter(|&a| last.is_some_and(|l| a > l)).collect();
    let outer: Vec<usize> = kept.iter().copied().filter(|&a| !inner.contains(&a)).collect();
    let size = |axes: &[usize]| axes.iter().map(|&a| x.n(a)).product::<usize>();
    let (rows, count, width) = (size(&outer), size(axes), size(&inner));
    let order = outer.iter().chain(axes).chain(&inner).map(|&a| x.axes[a]);
    let mut xs = Reader::<A>::new(&x.with_axes(order));
    let mut out = Writer::<A>::new(result);
    let finish = |acc: A| if op == Reduction::Mean { acc.divide(count) } else { acc };
    if width == 1 {
        let mut buffer = [A::default(); BLOCK];
        for _ in 0..rows {
            let mut acc = A::start(op);
            for n in blocks(count) {
                xs.fill(&mut buffer[..n]);
                acc = A::run(op, acc, &buffer[..n]);
            }
            out.put(&[finish(acc)]);
        }
        return;
    }
    let mut accs = scratch.take::<A>(width);
    let mut line = scratch.take::<A>(width);
    for _ in 0..rows {
        accs.fill(A::start(op));
        for _ in 0..count {
            xs.fill(&mut line);
            A::beside(op, &mut accs, &line);
        }
        accs.iter_mut().for_each(|acc| *acc = finish(*acc));
        out.put(&accs);
    }
    scratch.give(accs);
    scratch.give(line);
}

pub(super) fn arg_reduce(
    op: ArgOp,
    axis: usize,
    keep: bool,
    x: &Strided,
    result: &Strided,
    scratch: &mut Scratch,
) -> Result<()> {
    kept_axes(&[axis], keep, x, result)?;
    let n = x.n(axis);
    if n == 0 && result.numel() > 0 {
        return Err(KernelError::Empty { op: op.name().into() });
    }
    for_number!(x.dtype, C => {
        let mut xs = Reader::<C>::new(&x.axis_last(axis));
        let mut out = Writer::<i64>::new(result);
        let mut row = scratch.take::<C>(n);
        for _ in 0..result.numel() {
            xs.fill(&mut row);
            out.put(&[arg_of(op, &row) as i64]);
        }
        scratch.give(row);
    });
    Ok(())
}

/// The index of the first of the largest or smallest elements; of the first NaN if there is one.
fn arg_of<C: Number>(op: ArgOp, row: &[C]) -> usize {
    let mut best = 0;
    for (i, &x) in row.iter().enumerate() {
        let unordered = |y: C| y.partial_cmp(&y).is_none();
        if unordered(row[best]) {
            break;
        }
        let better = match op {
            ArgOp::Max => x > row[best],
            ArgOp::Min => x < row[best],
        };
        if better || unordered(x) {
            best = i;
        }
    }
    best
}

pub(super) fn cumsum(axis: usize, x: &Strided, result: &Strided, scratch: &mut Scratch) -> Result<()> {
    if axis >= x.rank() || x.shape() != result.shape() {
        return Err(KernelError::shape("the result of cumsum", &x.shape(), &result.shape()));
    }
    match result.dtype {
        DType::I64 => running::<i64>(axis, x, result, scratch),
        _ => running::<f64>(axis, x, result, scratch),
    }
    Ok(())
}

fn running<A: Accumulate>(axis: usize, x: &Strided, result: &Strided, scratch: &mut Scratch) {
    let n = x.n(axis);
    let mut xs = Reader::<A>::new(&x.axis_last(axis));
    let mut out = Writer::<A>::new(&result.axis_last(axis));
    let mut row = scratch.take::<A>(n);
    for _ in 0..x.numel().checked_div(n).unwrap_or(0) {
        xs.fill(&mut row);
        let mut acc = A::start(Reduction::Sum);
        for x in row.iter_mut() {
            acc = acc.add(*x);
            *x = acc;
        }
        out.put(&row);
    }
    scratch.give(row);
}
