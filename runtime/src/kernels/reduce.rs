//! Reductions, arg-reductions and running sums.
//!
//! Floats are summed in f64 over short runs of f32, integers in i64, so the order of summation does not
//! show. Maximum and minimum give NaN where any element is NaN.

use symmc_ir::{ArgOp, DType, Reduction};

use super::KernelError;
use super::element::{Number, for_number};
use super::gemm::sum_by;
use super::pointwise::blocks;
use super::scratch::Scratch;
use super::strided::{BLOCK, Reader, Strided, Writer};

/// What a float reduction does to its accumulator.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fold {
    Sum,
    Prod,
    Max,
    Min,
    Any,
    All,
}

impl Fold {
    fn of(op: Reduction) -> Self {
        match op {
            Reduction::Sum | Reduction::Mean => Fold::Sum,
            Reduction::Prod => Fold::Prod,
            Reduction::Max => Fold::Max,
            Reduction::Min => Fold::Min,
            Reduction::Any => Fold::Any,
            Reduction::All => Fold::All,
        }
    }
}

/// A type that reductions accumulate in: f64 or i64.
trait Accumulate: Number {
    fn start(fold: Fold) -> Self;
    fn step(fold: Fold, acc: Self, x: Self) -> Self;
    /// The accumulation of a whole run onto `acc`.
    fn run(fold: Fold, acc: Self, xs: &[Self]) -> Self {
        xs.iter().fold(acc, |acc, &x| Self::step(fold, acc, x))
    }
    fn divide(self, count: usize) -> Self;
}

impl Accumulate for f64 {
    fn start(fold: Fold) -> Self {
        match fold {
            Fold::Sum | Fold::Any => 0.0,
            Fold::Prod | Fold::All => 1.0,
            Fold::Max => f64::NEG_INFINITY,
            Fold::Min => f64::INFINITY,
        }
    }
    #[inline(always)]
    fn step(fold: Fold, acc: Self, x: Self) -> Self {
        match fold {
            Fold::Sum => acc + x,
            Fold::Prod => acc * x,
            Fold::Max => {
                if x > acc || x.is_nan() {
                    x
                } else {
                    acc
                }
            }
            Fold::Min => {
                if x < acc || x.is_nan() {
                    x
                } else {
                    acc
                }
            }
            Fold::Any => {
                if x != 0.0 {
                    1.0
                } else {
                    acc
                }
            }
            Fold::All => {
                if x == 0.0 {
                    0.0
                } else {
                    acc
                }
            }
        }
    }
    fn run(fold: Fold, acc: Self, xs: &[Self]) -> Self {
        match fold {
            Fold::Sum => acc + sum_by(xs, |x| x),
            _ => xs.iter().fold(acc, |acc, &x| Self::step(fold, acc, x)),
        }
    }
    fn divide(self, count: usize) -> Self {
        self / count as f64
    }
}

impl Accumulate for i64 {
    fn start(fold: Fold) -> Self {
        match fold {
            Fold::Sum | Fold::Any => 0,
            Fold::Prod | Fold::All => 1,
            Fold::Max => i64::MIN,
            Fold::Min => i64::MAX,
        }
    }
    #[inline(always)]
    fn step(fold: Fold, acc: Self, x: Self) -> Self {
        match fold {
            Fold::Sum => acc.wrapping_add(x),
            Fold::Prod => acc.wrapping_mul(x),
            Fold::Max => acc.max(x),
            Fold::Min => acc.min(x),
            Fold::Any => acc | i64::from(x != 0),
            Fold::All => acc & i64::from(x != 0),
        }
    }
    fn divide(self, count: usize) -> Self {
        self.checked_div(count as i64).unwrap_or(0)
    }
}

pub(super) fn reduce(
    op: Reduction,
    axes: &[usize],
    keep: bool,
    x: &Strided,
    result: &Strided,
    scratch: &mut Scratch,
) -> Result<(), KernelError> {
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
fn kept_axes(axes: &[usize], keep: bool, x: &Strided, result: &Strided) -> Result<Vec<usize>, KernelError> {
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
    let fold = Fold::of(op);
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
            let mut acc = A::start(fold);
            for n in blocks(count) {
                xs.fill(&mut buffer[..n]);
                acc = A::run(fold, acc, &buffer[..n]);
            }
            out.put(&[finish(acc)]);
        }
        return;
    }
    let mut accs = scratch.take::<A>(width);
    let mut line = scratch.take::<A>(width);
    for _ in 0..rows {
        accs.fill(A::start(fold));
        for _ in 0..count {
            xs.fill(&mut line);
            for (acc, &x) in accs.iter_mut().zip(&line) {
                *acc = A::step(fold, *acc, x);
            }
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
) -> Result<(), KernelError> {
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
            out.put(&[extreme(op, &row) as i64]);
        }
        scratch.give(row);
    });
    Ok(())
}

/// The position of the first extreme element; the first NaN if there is one.
fn extreme<C: Number>(op: ArgOp, row: &[C]) -> usize {
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

pub(super) fn cumsum(
    axis: usize,
    x: &Strided,
    result: &Strided,
    scratch: &mut Scratch,
) -> Result<(), KernelError> {
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
        let mut acc = A::start(Fold::Sum);
        for x in &mut row {
            acc = A::step(Fold::Sum, acc, *x);
            *x = acc;
        }
        out.put(&row);
    }
    scratch.give(row);
}
