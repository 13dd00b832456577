//! Reductions, arg-reductions and cumulative sums.
//!
//! Floats are summed in f64, integers in i64, so the order of summation affects results in the last places only.
//! Maximum and minimum are NaN if any element is NaN.

use symmc_ir::{ArgOp, DType, ReductionKind};

use super::element::{ComputeNumber, for_number};
use super::error::{KernelError, Result};
use super::gemm::sum_mapped;
use super::pointwise::block_sizes;
use super::scratch::Scratch;
use super::simd::widened;
use super::sort::is_nan;
use super::strided::{BLOCK, StridedReader, StridedView, StridedWriter};

/// A type in which reductions and scatters accumulate: f64 or i64.
pub(super) trait Accumulate: ComputeNumber {
    fn start(op: ReductionKind) -> Self;
    /// Accumulates a run onto `acc`.
    fn accumulate_run<C: AccumulatedAs<Self>>(op: ReductionKind, acc: Self, xs: &[C]) -> Self;
    /// Accumulates each element of `xs` onto its own accumulator.
    fn accumulate_each<C: AccumulatedAs<Self>>(op: ReductionKind, accs: &mut [Self], xs: &[C]);
    fn add(self, x: Self) -> Self;
    fn divide(self, count: usize) -> Self;
}

/// A type whose numbers are accumulated in `A`.
pub(super) trait AccumulatedAs<A>: ComputeNumber {
    fn widened(self) -> A;
}

impl AccumulatedAs<f64> for f32 {
    #[inline(always)]
    fn widened(self) -> f64 {
        f64::from(self)
    }
}

impl<A: Accumulate> AccumulatedAs<A> for A {
    #[inline(always)]
    fn widened(self) -> A {
        self
    }
}

#[inline(always)]
fn zip_accumulators<C: AccumulatedAs<A>, A: Copy>(accs: &mut [A], xs: &[C], f: impl Fn(A, A) -> A) {
    for (acc, &x) in accs.iter_mut().zip(xs) {
        *acc = f(*acc, x.widened());
    }
}

/// Combines the elements of a run in lanes, for functions that give the same in any order; `None` without elements.
#[inline(always)]
fn fold_lanes<C: ComputeNumber>(xs: &[C], f: impl Fn(C, C) -> C) -> Option<C> {
    const LANES: usize = 32;
    let mut lanes = [*xs.first()?; LANES];
    let (runs, rest) = xs.as_chunks::<LANES>();
    for run in runs {
        for i in 0..LANES {
            lanes[i] = f(lanes[i], run[i]);
        }
    }
    // Other uses of the lanes would keep them out of registers.
    let tail = rest.iter().copied().reduce(&f);
    lanes.into_iter().chain(tail).reduce(f)
}

/// The larger number, NaN if either is.
#[inline(always)]
fn larger<C: ComputeNumber>(acc: C, x: C) -> C {
    if (x > acc) | is_nan(x) { x } else { acc }
}

/// The smaller number, NaN if either is.
#[inline(always)]
fn smaller<C: ComputeNumber>(acc: C, x: C) -> C {
    if (x < acc) | is_nan(x) { x } else { acc }
}

impl Accumulate for f64 {
    fn start(op: ReductionKind) -> Self {
        match op {
            ReductionKind::Sum | ReductionKind::Mean | ReductionKind::Any => 0.0,
            ReductionKind::Prod | ReductionKind::All => 1.0,
            ReductionKind::Max => f64::NEG_INFINITY,
            ReductionKind::Min => f64::INFINITY,
        }
    }
    fn accumulate_run<C: AccumulatedAs<f64>>(op: ReductionKind, acc: f64, xs: &[C]) -> f64 {
        accumulate_floats(op, acc, xs)
    }
    fn accumulate_each<C: AccumulatedAs<f64>>(op: ReductionKind, accs: &mut [f64], xs: &[C]) {
        accumulate_each_float(op, accs, xs);
    }
    fn add(self, x: f64) -> f64 {
        self + x
    }
    fn divide(self, count: usize) -> f64 {
        self / count as f64
    }
}

impl Accumulate for i64 {
    fn start(op: ReductionKind) -> Self {
        match op {
            ReductionKind::Sum | ReductionKind::Mean | ReductionKind::Any => 0,
            ReductionKind::Prod | ReductionKind::All => 1,
            ReductionKind::Max => i64::MIN,
            ReductionKind::Min => i64::MAX,
        }
    }
    fn accumulate_run<C: AccumulatedAs<i64>>(op: ReductionKind, acc: i64, xs: &[C]) -> i64 {
        accumulate_integers(op, acc, xs)
    }
    fn accumulate_each<C: AccumulatedAs<i64>>(op: ReductionKind, accs: &mut [i64], xs: &[C]) {
        accumulate_each_integer(op, accs, xs);
    }
    fn add(self, x: i64) -> i64 {
        self.wrapping_add(x)
    }
    fn divide(self, count: usize) -> i64 {
        // Rounds towards minus infinity: counts are positive.
        self.checked_div_euclid(count as i64).unwrap_or(0)
    }
}

widened! {
    fn accumulate_floats<C: AccumulatedAs<f64>>(op: ReductionKind, acc: f64, xs: &[C]) -> f64 {
        match op {
            ReductionKind::Sum | ReductionKind::Mean => acc + sum_mapped(xs, C::widened),
            ReductionKind::Prod => xs.iter().fold(acc, |acc, x| acc * x.widened()),
            ReductionKind::Max => fold_lanes(xs, larger).map_or(acc, |x| larger(acc, x.widened())),
            ReductionKind::Min => fold_lanes(xs, smaller).map_or(acc, |x| smaller(acc, x.widened())),
            ReductionKind::Any => any_float(acc, truth(any(xs, |x| x != C::default()))),
            ReductionKind::All => all_floats(acc, truth(!any(xs, |x| x == C::default()))),
        }
    }
}

widened! {
    fn accumulate_each_float<C: AccumulatedAs<f64>>(op: ReductionKind, accs: &mut [f64], xs: &[C]) {
        match op {
            ReductionKind::Sum | ReductionKind::Mean => zip_accumulators(accs, xs, |acc, x| acc + x),
            ReductionKind::Prod => zip_accumulators(accs, xs, |acc, x| acc * x),
            ReductionKind::Max => zip_accumulators(accs, xs, larger),
            ReductionKind::Min => zip_accumulators(accs, xs, smaller),
            ReductionKind::Any => zip_accumulators(accs, xs, any_float),
            ReductionKind::All => zip_accumulators(accs, xs, all_floats),
        }
    }
}

#[inline(always)]
fn any_float(acc: f64, x: f64) -> f64 {
    truth((acc != 0.0) | (x != 0.0))
}

#[inline(always)]
fn all_floats(acc: f64, x: f64) -> f64 {
    truth((acc != 0.0) & (x != 0.0))
}

#[inline(always)]
fn truth(is_true: bool) -> f64 {
    if is_true { 1.0 } else { 0.0 }
}

widened! {
    fn accumulate_integers<C: AccumulatedAs<i64>>(op: ReductionKind, acc: i64, xs: &[C]) -> i64 {
        let xs = xs.iter().map(|x| x.widened());
        match op {
            ReductionKind::Sum | ReductionKind::Mean => xs.fold(acc, i64::wrapping_add),
            ReductionKind::Prod => xs.fold(acc, i64::wrapping_mul),
            ReductionKind::Max => xs.fold(acc, i64::max),
            ReductionKind::Min => xs.fold(acc, i64::min),
            ReductionKind::Any => xs.fold(acc, |acc, x| i64::from(acc != 0 || x != 0)),
            ReductionKind::All => xs.fold(acc, |acc, x| i64::from(acc != 0 && x != 0)),
        }
    }
}

widened! {
    fn accumulate_each_integer<C: AccumulatedAs<i64>>(op: ReductionKind, accs: &mut [i64], xs: &[C]) {
        match op {
            ReductionKind::Sum | ReductionKind::Mean => zip_accumulators(accs, xs, i64::wrapping_add),
            ReductionKind::Prod => zip_accumulators(accs, xs, i64::wrapping_mul),
            ReductionKind::Max => zip_accumulators(accs, xs, i64::max),
            ReductionKind::Min => zip_accumulators(accs, xs, i64::min),
            ReductionKind::Any => zip_accumulators(accs, xs, |acc, x| i64::from(acc != 0 || x != 0)),
            ReductionKind::All => zip_accumulators(accs, xs, |acc, x| i64::from(acc != 0 && x != 0)),
        }
    }
}

pub(super) fn reduce(
    op: ReductionKind,
    axes: &[usize],
    keep: bool,
    x: &StridedView,
    result: &StridedView,
    scratch: &mut Scratch,
) -> Result<()> {
    let kept_axes = remaining_axes(axes, keep, x, result)?;
    let count: usize = axes.iter().map(|&a| x.axis_len(a)).product();
    if count == 0 && result.numel() > 0 && matches!(op, ReductionKind::Max | ReductionKind::Min) {
        return Err(KernelError::Empty { op: op.name().into() });
    }
    match x.dtype {
        DType::F64 => reduce_axes::<f64, f64>(op, axes, &kept_axes, x, result, scratch),
        d if d.is_float() => reduce_axes::<f32, f64>(op, axes, &kept_axes, x, result, scratch),
        _ => reduce_axes::<i64, i64>(op, axes, &kept_axes, x, result, scratch),
    }
    Ok(())
}

/// The axes that are not reduced. Checks the shape of the result.
fn remaining_axes(axes: &[usize], keep: bool, x: &StridedView, result: &StridedView) -> Result<Vec<usize>> {
    let kept_axes: Vec<usize> = (0..x.rank()).filter(|a| !axes.contains(a)).collect();
    let expected: Vec<usize> = if keep {
        (0..x.rank()).map(|a| if axes.contains(&a) { 1 } else { x.axis_len(a) }).collect()
    } else {
        kept_axes.iter().map(|&a| x.axis_len(a)).collect()
    };
    if axes.iter().any(|&a| a >= x.rank()) || result.shape()[..] != expected[..] {
        return Err(KernelError::shape_mismatch("the result of a reduction", &expected, &result.shape()));
    }
    Ok(kept_axes)
}

/// Reduces in three nested parts: the kept axes before the last reduced one, the reduced axes, and the kept
/// axes after the last reduced one, which are accumulated together.
fn reduce_axes<C: AccumulatedAs<A>, A: Accumulate>(
    op: ReductionKind,
    axes: &[usize],
    kept_axes: &[usize],
    x: &StridedView,
    result: &StridedView,
    scratch: &mut Scratch,
) {
    let last_reduced = axes.last().copied();
    let inner: Vec<usize> =
        kept_axes.iter().copied().filter(|&a| last_reduced.is_some_and(|l| a > l)).collect();
    let outer: Vec<usize> = kept_axes.iter().copied().filter(|&a| !inner.contains(&a)).collect();
    let rows = axes_product(x, &outer);
    let count = axes_product(x, axes);
    let width = axes_product(x, &inner);
    let order = outer.iter().chain(axes).chain(&inner).map(|&a| x.axes[a]);
    let mut xs = StridedReader::<C>::new(&x.with_axes(order));
    let mut out = StridedWriter::<A>::new(result);
    let is_mean = op == ReductionKind::Mean;
    if width == 1 {
        let mut buffer = [C::default(); BLOCK];
        for _ in 0..rows {
            let mut acc = A::start(op);
            for n in block_sizes(count) {
                acc = A::accumulate_run(op, acc, xs.next_block(&mut buffer[..n]));
            }
            out.write_next(&[if is_mean { acc.divide(count) } else { acc }]);
        }
        return;
    }
    let mut accs = scratch.allocate::<A>(width);
    let mut line = scratch.allocate::<C>(width);
    for _ in 0..rows {
        accs.fill(A::start(op));
        for _ in 0..count {
            A::accumulate_each(op, &mut accs, xs.next_block(&mut line));
        }
        if is_mean {
            accs.iter_mut().for_each(|acc| *acc = acc.divide(count));
        }
        out.write_next(&accs);
    }
    scratch.return_buffer(accs);
    scratch.return_buffer(line);
}

fn axes_product(x: &StridedView, axes: &[usize]) -> usize {
    axes.iter().map(|&axis| x.axis_len(axis)).product()
}

pub(super) fn arg_reduce(
    op: ArgOp,
    axis: usize,
    keep: bool,
    x: &StridedView,
    result: &StridedView,
    scratch: &mut Scratch,
) -> Result<()> {
    remaining_axes(&[axis], keep, x, result)?;
    let n = x.axis_len(axis);
    if n == 0 && result.numel() > 0 {
        return Err(KernelError::Empty { op: op.name().into() });
    }
    for_number!(x.dtype, C => {
        let mut xs = StridedReader::<C>::new(&x.axis_last(axis));
        let mut out = StridedWriter::<i64>::new(result);
        let mut row = scratch.allocate::<C>(n);
        for _ in 0..result.numel() {
            xs.read_next(&mut row);
            out.write_next(&[arg_extreme(op, &row) as i64]);
        }
        scratch.return_buffer(row);
    });
    Ok(())
}

widened! {
    /// The index of the first largest or smallest element; of the first NaN if there is one.
    fn arg_extreme<C: ComputeNumber>(op: ArgOp, row: &[C]) -> usize {
        let best = match op {
            ArgOp::Max => fold_lanes(row, larger),
            ArgOp::Min => fold_lanes(row, smaller),
        };
        let Some(best) = best else { return 0 };
        if is_nan(best) {
            return row.iter().position(|&x| is_nan(x)).unwrap_or(0);
        }
        const RUN: usize = 64;
        let run = row.chunks(RUN).position(|run| any(run, |x| x == best)).unwrap_or(0);
        run * RUN + row[run * RUN..].iter().position(|&x| x == best).unwrap_or(0)
    }
}

#[inline(always)]
fn any<C: ComputeNumber>(row: &[C], is_wanted: impl Fn(C) -> bool) -> bool {
    row.iter().fold(false, |any, &x| any | is_wanted(x))
}

pub(super) fn cumsum(
    axis: usize,
    x: &StridedView,
    result: &StridedView,
    scratch: &mut Scratch,
) -> Result<()> {
    if axis >= x.rank() || x.shape() != result.shape() {
        return Err(KernelError::shape_mismatch("the result of cumsum", &x.shape(), &result.shape()));
    }
    match result.dtype {
        DType::I64 => running_sum::<i64>(axis, x, result, scratch),
        _ => running_sum::<f64>(axis, x, result, scratch),
    }
    Ok(())
}

fn running_sum<A: Accumulate>(axis: usize, x: &StridedView, result: &StridedView, scratch: &mut Scratch) {
    let n = x.axis_len(axis);
    let mut xs = StridedReader::<A>::new(&x.axis_last(axis));
    let mut out = StridedWriter::<A>::new(&result.axis_last(axis));
    let mut row = scratch.allocate::<A>(n);
    for _ in 0..x.numel().checked_div(n).unwrap_or(0) {
        xs.read_next(&mut row);
        let mut acc = A::start(ReductionKind::Sum);
        for x in row.iter_mut() {
            acc = acc.add(*x);
            *x = acc;
        }
        out.write_next(&row);
    }
    scratch.return_buffer(row);
}
