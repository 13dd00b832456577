//! Gathering and scattering: take, index, gather, scatter, index-add and index-put.
//!
//! Indices are read and checked before anything moves: one that is negative or beyond its axis is an error
//! that names it. Stores happen in row-major order of the indices, so that the last of
//! equal indices wins. Accumulation happens in f64 or i64 over a copy of the operand, so that the result is
//! rounded once.

use symmc_ir::{DType, Reduction};

use super::error::{KernelError, Result};
use super::reduce::Accumulate;
use super::scratch::{Buffer, Scratch};
use super::strided::{Axis, CopyPlan, Odometer, Reader, Strided, Writer, copy};

/// Reads indices as offsets along an axis: checked against its extent and multiplied by `stride`.
fn offsets(
    indices: &Strided,
    axis: usize,
    extent: usize,
    stride: isize,
    scratch: &mut Scratch,
) -> Result<Buffer<i64>> {
    let mut out = scratch.take::<i64>(indices.numel());
    Reader::new(indices).fill(&mut out);
    for i in out.iter_mut() {
        *i = position(*i, axis, extent)? as i64 * stride as i64;
    }
    Ok(out)
}

/// The position that an index means on an axis of this extent.
fn position(index: i64, axis: usize, extent: usize) -> Result<usize> {
    let within = usize::try_from(index).ok().filter(|&i| i < extent);
    within.ok_or(KernelError::Index { index, axis, extent })
}

/// [`offsets`] broadcast to a shape.
fn broadcast_offsets(
    indices: &Strided,
    axis: usize,
    along: Axis,
    shape: &[usize],
    scratch: &mut Scratch,
) -> Result<Buffer<i64>> {
    let mut own = offsets(indices, axis, along.n, along.stride, scratch)?;
    if indices.shape()[..] == *shape {
        return Ok(own);
    }
    let mut out = scratch.take::<i64>(shape.iter().product());
    let view = Strided::contiguous(DType::I64, &indices.shape(), own.as_mut_ptr().cast());
    Reader::new(&view.broadcast(shape)?).fill(&mut out);
    scratch.give(own);
    Ok(out)
}

/// The sums of the offsets of several index tensors on neighbouring axes, over their common shape.
fn joint_offsets(
    indices: &[Strided],
    axis: usize,
    x: &Strided,
    shape: &[usize],
    scratch: &mut Scratch,
) -> Result<Buffer<i64>> {
    let mut sum = scratch.take::<i64>(shape.iter().product());
    sum.fill(0);
    for (i, indices) in indices.iter().enumerate() {
        let one = broadcast_offsets(indices, axis + i, x.axes[axis + i], shape, scratch)?;
        sum.iter_mut().zip(one.iter()).for_each(|(s, o)| *s += o);
        scratch.give(one);
    }
    Ok(sum)
}

fn common_shape(indices: &[Strided]) -> Result<Vec<usize>> {
    let rank = indices.iter().map(Strided::rank).max().unwrap_or(0);
    let mut out = vec![1; rank];
    for t in indices {
        for (&n, o) in t.shape().iter().rev().zip(out.iter_mut().rev()) {
            match (*o, n) {
                (1, n) => *o = n,
                (o, n) if o == n || n == 1 => {}
                (o, n) => {
                    return Err(KernelError::Shape {
                        what: "the indices".into(),
                        expected: "shapes that broadcast together".into(),
                        found: format!("extents {o} and {n}"),
                    });
                }
            }
        }
    }
    Ok(out)
}

/// Where indexing moves data: the shape of the indexed form `[before, at, rest]`, and its pieces.
struct Indexed {
    at: Vec<usize>,
    /// The extents of the axes before the indexed ones, and behind them.
    before: Vec<Axis>,
    rest: Vec<Axis>,
    shape: Vec<usize>,
}

fn indexed(axis: usize, x: &Strided, indices: &[Strided]) -> Result<Indexed> {
    let at = common_shape(indices)?;
    if axis + indices.len() > x.rank() {
        return Err(KernelError::Shape {
            what: "indexing".into(),
            expected: format!("an operand with at least {} axes", axis + indices.len()),
            found: format!("{:?}", x.shape()),
        });
    }
    let before = x.axes[..axis].to_vec();
    let rest = x.axes[axis + indices.len()..].to_vec();
    let shape =
        before.iter().map(|a| a.n).chain(at.iter().copied()).chain(rest.iter().map(|a| a.n)).collect();
    Ok(Indexed { at, before, rest, shape })
}

/// `x` at the indices, which stand for its axes from `axis` on.
pub(super) fn index(
    axis: usize,
    x: &Strided,
    indices: &[Strided],
    result: &Strided,
    scratch: &mut Scratch,
) -> Result<()> {
    let i = indexed(axis, x, indices)?;
    if result.shape()[..] != i.shape[..] || result.dtype != x.dtype {
        return Err(KernelError::shape("the result of indexing", &i.shape, &result.shape()));
    }
    let at = joint_offsets(indices, axis, x, &i.at, scratch)?;
    let (before, positions, rest) = parts(result, axis, i.at.len());
    let plan = CopyPlan::new(&i.rest, rest, x.dtype.size());
    if result.numel() > 0 {
        let mut outer = Odometer::new([&i.before, before]);
        while let Some([from, to]) = outer.next() {
            let mut places = Odometer::new([positions]);
            for &offset in at.iter() {
                let [place] = places.next().unwrap_or([0]);
                plan.run(
                    x.ptr.wrapping_offset(from + offset as isize),
                    result.ptr.wrapping_offset(to + place),
                );
            }
        }
    }
    scratch.give(at);
    Ok(())
}

/// The axes of a view in three parts: before, `n` from `axis` on, and behind.
fn parts(v: &Strided, axis: usize, n: usize) -> (&[Axis], &[Axis], &[Axis]) {
    let (before, tail) = v.axes.split_at(axis);
    let (at, rest) = tail.split_at(n);
    (before, at, rest)
}

pub(super) fn gather(
    axis: usize,
    x: &Strided,
    indices: &Strided,
    result: &Strided,
    scratch: &mut Scratch,
) -> Result<()> {
    if result.shape() != indices.shape() || result.dtype != x.dtype {
        return Err(KernelError::shape("the result of gather", &indices.shape(), &result.shape()));
    }
    check_within(axis, x, indices)?;
    let at = offsets(indices, axis, x.n(axis), x.axes[axis].stride, scratch)?;
    let mut from = x.axes.clone();
    from[axis].stride = 0;
    clip(&mut from, indices);
    let element = CopyPlan::new(&[], &[], x.dtype.size());
    let mut positions = Odometer::new([&from, &result.axes]);
    for &along in at.iter() {
        let Some([from, to]) = positions.next() else { break };
        element.run(x.ptr.wrapping_offset(from + along as isize), result.ptr.wrapping_offset(to));
    }
    scratch.give(at);
    Ok(())
}

/// Gives `axes` the extents of `indices`.
fn clip(axes: &mut [Axis], indices: &Strided) {
    for (a, i) in axes.iter_mut().zip(&indices.axes) {
        a.n = i.n;
    }
}

/// Checks that `indices` is no larger than `x` along any axis but `axis`.
fn check_within(axis: usize, x: &Strided, indices: &Strided) -> Result<()> {
    let fits = axis < x.rank()
        && indices.rank() == x.rank()
        && (0..x.rank()).all(|a| a == axis || indices.n(a) <= x.n(a));
    match fits {
        true => Ok(()),
        false => Err(KernelError::Shape {
            what: "the index".into(),
            expected: format!("at most {:?} along the axes but {axis}", x.shape()),
            found: format!("{:?}", indices.shape()),
        }),
    }
}

/// The operands of a scatter: `x` with `src` combined into the elements that `index` names.
pub(super) struct Scatter<'a> {
    pub x: &'a Strided,
    pub index: &'a Strided,
    pub src: &'a Strided,
}

pub(super) fn scatter(
    axis: usize,
    combine: Option<Reduction>,
    s: &Scatter<'_>,
    result: &Strided,
    scratch: &mut Scratch,
) -> Result<()> {
    same_shape("the result of scatter", s.x, result)?;
    same_shape("the source of scatter", s.index, s.src)?;
    check_within(axis, s.x, s.index)?;
    let at = offsets(s.index, axis, s.x.n(axis), 1, scratch)?;
    scattered(combine, s.x, &[], result, scratch, &|target, put| {
        let mut indices = at.iter();
        let mut to = target.axes.clone();
        to[axis].stride = 0;
        clip(&mut to, s.index);
        let mut positions = Odometer::new([&to, &s.src.axes]);
        while let (Some([to, from]), Some(&i)) = (positions.next(), indices.next()) {
            put(to + target.axes[axis].stride * i as isize, s.src.ptr.wrapping_offset(from));
        }
    });
    scratch.give(at);
    Ok(())
}

fn same_shape(what: &str, expected: &Strided, found: &Strided) -> Result<()> {
    match expected.shape() == found.shape() {
        true => Ok(()),
        false => Err(KernelError::shape(what, &expected.shape(), &found.shape())),
    }
}

/// `x` with `src` combined at the positions that [`index`] with the same indices reads.
pub(super) fn index_put(
    axis: usize,
    combine: Option<Reduction>,
    x: &Strided,
    src: &Strided,
    indices: &[Strided],
    result: &Strided,
    scratch: &mut Scratch,
) -> Result<()> {
    same_shape("the result of an indexed store", x, result)?;
    let i = indexed(axis, x, indices)?;
    let src = src.broadcast(&i.shape)?;
    // Positions along each indexed axis, before the memory of the target is known.
    let mut along = Vec::with_capacity(indices.len());
    for (k, t) in indices.iter().enumerate() {
        let positions = Axis { n: x.n(axis + k), stride: 1 };
        along.push(broadcast_offsets(t, axis + k, positions, &i.at, scratch)?);
    }
    let (src_before, src_at, src_rest) = parts(&src, axis, i.at.len());
    scattered(combine, x, src_rest, result, scratch, &|target, put| {
        let (before, at, _) = parts(target, axis, indices.len());
        let mut outer = Odometer::new([before, src_before]);
        while let Some([to, from]) = outer.next() {
            let mut places = Odometer::new([src_at]);
            let mut j = 0;
            while let Some([place]) = places.next() {
                let to = at.iter().zip(&along).fold(to, |to, (a, i)| to + a.stride * i[j] as isize);
                put(to, src.ptr.wrapping_offset(from + place));
                j += 1;
            }
        }
    });
    along.into_iter().for_each(|a| scratch.give(a));
    Ok(())
}

/// What a scatter changes: it is called once with the memory to change, of the extents of `x`, and a
/// function that it calls with the byte offset of each target and the address of its source.
type Changes<'a> = &'a dyn Fn(&Strided, &mut dyn FnMut(isize, *const u8));

/// Puts `x` with scattered changes into `result`, stored or combined with what is there. Each target and its source are the first elements of
/// pieces whose axes are the last ones of `x`; those of the source are `piece`.
fn scattered(
    combine: Option<Reduction>,
    x: &Strided,
    piece: &[Axis],
    result: &Strided,
    scratch: &mut Scratch,
    changes: Changes<'_>,
) {
    match combine {
        None => {
            copy(x, result);
            let plan = CopyPlan::new(piece, &result.axes[x.rank() - piece.len()..], x.dtype.size());
            changes(result, &mut |to, from| plan.run(from, result.ptr.wrapping_offset(to)));
        }
        Some(op) if x.dtype.is_float() => combined::<f64>(op, x, piece, result, scratch, changes),
        Some(op) => combined::<i64>(op, x, piece, result, scratch, changes),
    }
}

/// [`scattered`] with combination in numbers of type `A`.
fn combined<A: Accumulate>(
    op: Reduction,
    x: &Strided,
    piece: &[Axis],
    result: &Strided,
    scratch: &mut Scratch,
    changes: Changes<'_>,
) {
    let mut sums = scratch.take::<A>(x.numel());
    Reader::new(x).fill(&mut sums);
    let mut counts = scratch.take::<i64>(if op == Reduction::Mean { x.numel() } else { 0 });
    counts.fill(1);
    let wide = Strided::contiguous(A::DTYPE, &x.shape(), sums.as_mut_ptr().cast());
    let piece = Strided { ptr: x.ptr, dtype: x.dtype, axes: piece.into() };
    let mut values = scratch.take::<A>(piece.numel());
    changes(&wide, &mut |to, from| {
        if values.is_empty() {
            return;
        }
        Reader::new(&Strided { ptr: from.cast_mut(), ..piece.clone() }).fill(&mut values);
        // The pieces are the last axes of dense memory: they are dense.
        let first = to as usize / size_of::<A>();
        let touched = first..first + values.len();
        A::beside(op, &mut sums[touched.clone()], &values);
        counts.get_mut(touched).into_iter().flatten().for_each(|count| *count += 1);
    });
    if op == Reduction::Mean {
        sums.iter_mut().zip(counts.iter()).for_each(|(sum, &count)| *sum = sum.divide(count as usize));
    }
    Writer::new(result).put(&sums);
    scratch.give(values);
    scratch.give(sums);
    scratch.give(counts);
}

/// `x` with `src` added at the rows `indices` along `axis`.
pub(super) fn index_add(axis: usize, s: &Scatter<'_>, result: &Strided, scratch: &mut Scratch) -> Result<()> {
    index_put(axis, Some(Reduction::Sum), s.x, s.src, std::slice::from_ref(s.index), result, scratch)
}
