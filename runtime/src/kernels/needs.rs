//! What kernels need beside their operands and results while they run, told from shapes alone.
//!
//! For every op an upper bound of the buffers that its kernel takes at once; a test holds it against what kernels take of
//! the cases of all ops. Memory of the library of products and of custom kernels is not in it.

use symmc_ir::attention::Operands;
use symmc_ir::{DType, Op, Reduction};

use super::element::for_number;
use super::error::arity;
use super::gemm::Extents;
use super::norm::for_real;
use super::scratch::Needs;
use super::strided::{Strided, numel, unpermuted};
use super::{attention, attention_gradient, matmul};

/// An operand or a result without its address: dtype, extents, and strides in elements.
pub type Shaped<'a> = (DType, &'a [usize], &'a [isize]);

/// The buffers that an op takes at once; none for what it refuses, and for ops without a kernel.
pub fn needs(op: &Op, operands: &[Shaped<'_>], results: &[Shaped<'_>]) -> Needs {
    let strided = |&(dtype, shape, strides): &Shaped<'_>| Strided::unplaced(dtype, shape, strides);
    let operands: Vec<Strided> = operands.iter().map(strided).collect();
    let results: Vec<Strided> = results.iter().map(strided).collect();
    let mut out = Needs::default();
    let _ = of(op, &operands, &results, &mut out);
    out
}

/// `None` where the operands do not fit the op.
fn of(op: &Op, x: &[Strided], r: &[Strided], out: &mut Needs) -> Option<()> {
    arity(op, x.len(), r.len()).ok()?;
    match op {
        Op::MatMul => product(&x[0], &x[1], &r[0], out)?,
        Op::GroupedMatMul => {
            out.add::<i64>(extent(&x[2], 0)?);
            let (m, k, n) = (extent(&x[0], 0)?, extent(&x[0], 1)?, extent_back(&x[1], 1)?);
            matmul::needs(r[0].dtype, Extents { m, k, n }, out);
        }
        Op::Reduce { axes, .. } => {
            let last = axes.last()?;
            let width: usize =
                (last + 1..x[0].rank()).filter(|a| !axes.contains(a)).map(|a| x[0].n(a)).product();
            let buffers = if width == 1 { 0 } else { 2 };
            (0..buffers).for_each(|_| wide(x[0].dtype, width, out));
        }
        Op::ArgReduce { axis, .. } => for_number!(x[0].dtype, C => out.add::<C>(extent(&x[0], *axis)?)),
        Op::CumSum { axis } => match r[0].dtype {
            DType::I64 => out.add::<i64>(extent(&x[0], *axis)?),
            _ => out.add::<f64>(extent(&x[0], *axis)?),
        },
        Op::Softmax { axis, .. } => for_real!(x[0].dtype, R => out.add::<R>(extent(&x[0], *axis)?)),
        Op::RmsNorm { axes, .. } | Op::LayerNorm { axes, .. } => {
            let n = numel(x[0].axes.get(x[0].rank().checked_sub(*axes)?..)?);
            for_real!(x[0].dtype, R => x.iter().for_each(|_| out.add::<R>(n)));
        }
        Op::Attention { bounds, sink, .. } => {
            let o = Operands::of(bounds, *sink, x)?;
            let (l, e) = (extent_back(o.q, 2)?, extent_back(o.q, 1)?);
            let (s, f) = (extent_back(o.k, 2)?, extent_back(o.v, 1)?);
            let rows = o.q.numel() / e.max(1);
            o.positions.iter().for_each(|_| out.add::<i64>(rows));
            o.sink.iter().for_each(|_| out.add::<f64>(rows));
            attention::needs(o.q.dtype, [l, s, e, f], out);
        }
        Op::AttentionGradient { bounds, .. } => {
            let o = Operands::of(bounds, false, x.get(3..)?)?;
            let (l, e) = (extent_back(o.q, 2)?, extent_back(o.q, 1)?);
            let (s, f) = (extent_back(o.k, 2)?, extent_back(o.v, 1)?);
            let rows = o.q.numel() / e.max(1);
            o.positions.iter().for_each(|_| out.add::<i64>(rows));
            attention_gradient::needs(o.q.dtype, [l, s, e, f], out);
        }
        Op::Permuted { op, perm } => of(op, x, &unpermuted(op, perm, r)?, out)?,
        Op::RotaryEmbedding { width, .. } => {
            let is_wide = x[0].dtype == DType::F64 || x[1].dtype == DType::F64;
            let sizes = [extent_back(&x[0], 1)?, *width, *width, *width, *width];
            sizes.into_iter().for_each(|n| if is_wide { out.add::<f64>(n) } else { out.add::<f32>(n) });
        }
        Op::Take { .. } | Op::Index { .. } => {
            let at = positions(&x[1..]);
            (0..3).for_each(|_| out.add::<i64>(at));
        }
        Op::GatherElements { .. } => out.add::<i64>(x[1].numel()),
        Op::ScatterElements { combine, .. } => {
            out.add::<i64>(x[1].numel());
            combined(*combine, &x[0], 1, out);
        }
        Op::IndexAdd { axis } => stored(*axis, Some(Reduction::Sum), &x[0], &x[1..2], out)?,
        Op::IndexPut { axis, accumulate } => {
            stored(*axis, accumulate.then_some(Reduction::Sum), &x[0], &x[2..], out)?;
        }
        Op::TopK { axis, .. } | Op::Sort { axis, .. } => {
            let (n, k) = (extent(&x[0], *axis)?, extent(&r[0], *axis)?);
            for_number!(x[0].dtype, C => [n, k].into_iter().for_each(|n| out.add::<C>(n)));
            out.add::<i64>(n);
        }
        Op::Reshape | Op::Copy if !x[0].is_contiguous() && !r[0].is_contiguous() => {
            out.add::<i64>((x[0].numel() * x[0].dtype.size()).div_ceil(8));
        }
        _ => {}
    }
    Some(())
}

fn extent(v: &Strided, axis: usize) -> Option<usize> {
    v.axes.get(axis).map(|a| a.n)
}

/// An extent counted from the last axis, which is 1.
fn extent_back(v: &Strided, axis: usize) -> Option<usize> {
    extent(v, v.rank().checked_sub(axis)?)
}

/// What sums are taken in.
fn wide(dtype: DType, n: usize, out: &mut Needs) {
    if dtype.is_float() { out.add::<f64>(n) } else { out.add::<i64>(n) }
}

/// Products of matrices; a batch may be one product of all its rows.
fn product(x: &Strided, y: &Strided, r: &Strided, out: &mut Needs) -> Option<()> {
    let (k, n) = (extent_back(x, 1)?, extent_back(y, 1)?);
    let m = r.numel() / n.max(1);
    matmul::needs(r.dtype, Extents { m, k, n }, out);
    Some(())
}

/// The number of positions that index tensors name together.
fn positions(indices: &[Strided]) -> usize {
    let rank = indices.iter().map(Strided::rank).max().unwrap_or(0);
    let along = |back: usize| indices.iter().filter_map(|t| extent_back(t, back)).max().unwrap_or(1);
    let common = (1..=rank).map(along).fold(1, usize::saturating_mul);
    indices.iter().map(Strided::numel).max().unwrap_or(0).max(common)
}

/// An indexed store.
fn stored(
    axis: usize,
    combine: Option<Reduction>,
    x: &Strided,
    indices: &[Strided],
    out: &mut Needs,
) -> Option<()> {
    let at = positions(indices);
    // One more while indices are broadcast.
    (0..=indices.len()).for_each(|_| out.add::<i64>(at));
    combined(combine, x, numel(x.axes.get(axis + indices.len()..)?), out);
    Some(())
}

/// A scatter that combines, of pieces of so many elements.
fn combined(combine: Option<Reduction>, x: &Strided, piece: usize, out: &mut Needs) {
    let Some(op) = combine else { return };
    wide(x.dtype, x.numel(), out);
    out.add::<i64>(if op == Reduction::Mean { x.numel() } else { 0 });
    wide(x.dtype, piece, out);
}
