//! Gathering and scattering: take, index, gather, scatter, index-add and index-put.
//!
//! Indices are read and checked before anything moves: an index that is negative or beyond its axis is an
//! error that names it. Stores happen in row-major order of the indices, so the last of equal indices wins.
//! Accumulation happens in f64 or i64 over a copy of the operand, so the result is rounded once.

use symmc_ir::{DType, ReductionKind};

use super::error::{KernelError, Result};
use super::reduce::Accumulate;
use super::scratch::{Scratch, ScratchBuffer};
use super::strided::{
    CopyPlan, Odometer, StridedAxis, StridedReader, StridedView, StridedWriter, copy_view, merge_axes,
};

/// Reads indices as offsets along an axis: checked against its extent and multiplied by `stride`.
fn index_offsets(
    indices: &StridedView,
    axis: usize,
    extent: usize,
    stride: isize,
    scratch: &mut Scratch,
) -> Result<ScratchBuffer<i64>> {
    let mut out = scratch.allocate::<i64>(indices.numel());
    StridedReader::new(indices).read_next(&mut out);
    for i in out.iter_mut() {
        *i = resolve_position(*i, axis, extent)? as i64 * stride as i64;
    }
    Ok(out)
}

/// The position of an index on an axis of this extent.
fn resolve_position(index: i64, axis: usize, extent: usize) -> Result<usize> {
    let within = usize::try_from(index).ok().filter(|&i| i < extent);
    within.ok_or(KernelError::Index { index, axis, extent })
}

/// [`index_offsets`] broadcast to a shape.
fn broadcast_offsets(
    indices: &StridedView,
    axis: usize,
    along: StridedAxis,
    shape: &[usize],
    scratch: &mut Scratch,
) -> Result<ScratchBuffer<i64>> {
    let mut offsets = index_offsets(indices, axis, along.n, along.stride, scratch)?;
    if indices.shape()[..] == *shape {
        return Ok(offsets);
    }
    let mut out = scratch.allocate::<i64>(shape.iter().product());
    let view = StridedView::contiguous(DType::I64, &indices.shape(), offsets.as_mut_ptr().cast());
    StridedReader::new(&view.broadcast(shape)?).read_next(&mut out);
    scratch.return_buffer(offsets);
    Ok(out)
}

/// The sums of the offsets of several index tensors on neighbouring axes, over their common shape.
fn joint_offsets(
    indices: &[StridedView],
    axis: usize,
    x: &StridedView,
    shape: &[usize],
    scratch: &mut Scratch,
) -> Result<ScratchBuffer<i64>> {
    let mut sum = scratch.allocate::<i64>(shape.iter().product());
    sum.fill(0);
    for (i, indices) in indices.iter().enumerate() {
        let offsets = broadcast_offsets(indices, axis + i, x.axes[axis + i], shape, scratch)?;
        sum.iter_mut().zip(offsets.iter()).for_each(|(s, o)| *s += o);
        scratch.return_buffer(offsets);
    }
    Ok(sum)
}

fn common_shape(indices: &[StridedView]) -> Result<Vec<usize>> {
    let rank = indices.iter().map(StridedView::rank).max().unwrap_or(0);
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

/// The memory layout of indexing: the shape of the indexed form `[before, at, rest]`, and its parts.
struct IndexedLayout {
    at: Vec<usize>,
    /// The extents of the axes before the indexed ones, and after them.
    before: Vec<StridedAxis>,
    rest: Vec<StridedAxis>,
    shape: Vec<usize>,
}

fn indexed_layout(axis: usize, x: &StridedView, indices: &[StridedView]) -> Result<IndexedLayout> {
    let index_shape = common_shape(indices)?;
    if axis + indices.len() > x.rank() {
        return Err(KernelError::Shape {
            what: "indexing".into(),
            expected: format!("an operand with at least {} axes", axis + indices.len()),
            found: format!("{:?}", x.shape()),
        });
    }
    let before = x.axes[..axis].to_vec();
    let inner = x.axes[axis + indices.len()..].to_vec();
    let shape = before
        .iter()
        .map(|a| a.n)
        .chain(index_shape.iter().copied())
        .chain(inner.iter().map(|a| a.n))
        .collect();
    Ok(IndexedLayout { at: index_shape, before, rest: inner, shape })
}

/// `x` at the indices, which replace its axes from `axis` on.
pub(super) fn index_axes(
    axis: usize,
    x: &StridedView,
    indices: &[StridedView],
    result: &StridedView,
    scratch: &mut Scratch,
) -> Result<()> {
    let i = indexed_layout(axis, x, indices)?;
    if result.shape()[..] != i.shape[..] || result.dtype != x.dtype {
        return Err(KernelError::shape_mismatch("the result of indexing", &i.shape, &result.shape()));
    }
    let offsets = joint_offsets(indices, axis, x, &i.at, scratch)?;
    let (before, positions, inner) = split_axes(result, axis, i.at.len());
    let plan = CopyPlan::new(&i.rest, inner, x.dtype.size());
    let line = merge_axes(positions);
    if result.numel() > 0 && i.rest.iter().all(|axis| axis.n == 1) && line.len() <= 1 {
        let line = line.first().copied().unwrap_or(StridedAxis { n: 1, stride: 0 });
        let mut outer = Odometer::new([&i.before, before]);
        while let Some([from, to]) = outer.next() {
            let source = x.ptr.wrapping_offset(from);
            let target = result.ptr.wrapping_offset(to);
            gather_elements(x.dtype.size(), source, &offsets, 0, target, line.stride);
        }
    } else if result.numel() > 0 {
        let mut outer = Odometer::new([&i.before, before]);
        while let Some([from, to]) = outer.next() {
            let mut places = Odometer::new([positions]);
            for &offset in offsets.iter() {
                let [position] = places.next().unwrap_or([0]);
                plan.run(
                    x.ptr.wrapping_offset(from + offset as isize),
                    result.ptr.wrapping_offset(to + position),
                );
            }
        }
    }
    scratch.return_buffer(offsets);
    Ok(())
}

/// The axes of a view in three parts: those before `axis`, `n` from `axis` on, and those after them.
fn split_axes(v: &StridedView, axis: usize, n: usize) -> (&[StridedAxis], &[StridedAxis], &[StridedAxis]) {
    let (before, tail) = v.axes.split_at(axis);
    let (indexed, rest) = tail.split_at(n);
    (before, indexed, rest)
}

pub(super) fn gather(
    axis: usize,
    x: &StridedView,
    indices: &StridedView,
    result: &StridedView,
    scratch: &mut Scratch,
) -> Result<()> {
    if result.shape() != indices.shape() || result.dtype != x.dtype {
        return Err(KernelError::shape_mismatch("the result of gather", &indices.shape(), &result.shape()));
    }
    check_index_shape(axis, x, indices)?;
    let offsets = index_offsets(indices, axis, x.axis_len(axis), x.axes[axis].stride, scratch)?;
    let mut from = x.axes.clone();
    from[axis].stride = 0;
    clip_axes(&mut from, indices);
    let mut to = result.axes.clone();
    if let (Some(last), Some(last_from)) = (to.pop(), from.pop()) {
        let mut positions = Odometer::new([&from, &to]);
        for line in offsets.chunks(last.n.max(1)) {
            let Some([from, to]) = positions.next() else { break };
            let source = x.ptr.wrapping_offset(from);
            let target = result.ptr.wrapping_offset(to);
            gather_elements(x.dtype.size(), source, line, last_from.stride, target, last.stride);
        }
    } else if let Some(&offset) = offsets.first() {
        gather_elements(x.dtype.size(), x.ptr, &[offset], 0, result.ptr, 0);
    }
    scratch.return_buffer(offsets);
    Ok(())
}

/// Copies one element of `size` bytes for each offset. The source advances by `step` bytes from each to the next, the
/// target by `stride`. All of these elements must exist.
fn gather_elements(size: usize, from: *const u8, offsets: &[i64], step: isize, to: *mut u8, stride: isize) {
    match size {
        1 => gather_typed::<u8>(from, offsets, step, to, stride),
        2 => gather_typed::<u16>(from, offsets, step, to, stride),
        4 => gather_typed::<u32>(from, offsets, step, to, stride),
        _ => gather_typed::<u64>(from, offsets, step, to, stride),
    }
}

fn gather_typed<T: Copy>(from: *const u8, offsets: &[i64], step: isize, to: *mut u8, stride: isize) {
    for (i, &offset) in offsets.iter().enumerate() {
        let source = from.wrapping_offset(offset as isize + step * i as isize);
        let target = to.wrapping_offset(stride * i as isize);
        // SAFETY: the offsets were checked against the extents, so both are elements of the views of the caller, of
        // this size and alignment.
        unsafe { target.cast::<T>().write(source.cast::<T>().read()) };
    }
}

/// Gives `axes` the extents of `indices`.
fn clip_axes(axes: &mut [StridedAxis], indices: &StridedView) {
    for (a, i) in axes.iter_mut().zip(&indices.axes) {
        a.n = i.n;
    }
}

/// Checks that `indices` is no larger than `x` along any axis except `axis`.
fn check_index_shape(axis: usize, x: &StridedView, indices: &StridedView) -> Result<()> {
    let fits = axis < x.rank()
        && indices.rank() == x.rank()
        && (0..x.rank()).all(|a| a == axis || indices.axis_len(a) <= x.axis_len(a));
    if fits {
        return Ok(());
    }
    Err(KernelError::Shape {
        what: "the index".into(),
        expected: format!("at most {:?} along all axes except {axis}", x.shape()),
        found: format!("{:?}", indices.shape()),
    })
}

/// The operands of a scatter: `x` with `src` combined into the elements that `index` selects.
pub(super) struct ScatterOperands<'a> {
    pub x: &'a StridedView,
    pub index: &'a StridedView,
    pub src: &'a StridedView,
}

pub(super) fn scatter(
    axis: usize,
    combine: Option<ReductionKind>,
    s: &ScatterOperands<'_>,
    result: &StridedView,
    scratch: &mut Scratch,
) -> Result<()> {
    expect_same_shape("the result of scatter", s.x, result)?;
    expect_same_shape("the source of scatter", s.index, s.src)?;
    check_index_shape(axis, s.x, s.index)?;
    let offsets = index_offsets(s.index, axis, s.x.axis_len(axis), 1, scratch)?;
    scatter_pieces(combine, s.x, &[], result, scratch, &|target, put| {
        let mut indices = offsets.iter();
        let mut axes = target.axes.clone();
        axes[axis].stride = 0;
        clip_axes(&mut axes, s.index);
        let mut positions = Odometer::new([&axes, &s.src.axes]);
        while let (Some([to, from]), Some(&i)) = (positions.next(), indices.next()) {
            put(to + target.axes[axis].stride * i as isize, s.src.ptr.wrapping_offset(from));
        }
    });
    scratch.return_buffer(offsets);
    Ok(())
}

fn expect_same_shape(what: &str, expected: &StridedView, found: &StridedView) -> Result<()> {
    if expected.shape() == found.shape() {
        return Ok(());
    }
    Err(KernelError::shape_mismatch(what, &expected.shape(), &found.shape()))
}

/// `x` with `src` combined at the positions that [`index_axes`] with the same indices reads.
pub(super) fn index_put(
    axis: usize,
    combine: Option<ReductionKind>,
    x: &StridedView,
    src: &StridedView,
    indices: &[StridedView],
    result: &StridedView,
    scratch: &mut Scratch,
) -> Result<()> {
    expect_same_shape("the result of an indexed store", x, result)?;
    let i = indexed_layout(axis, x, indices)?;
    let src = src.broadcast(&i.shape)?;
    // Positions along each indexed axis. The memory of the target is not known yet.
    let mut along = Vec::with_capacity(indices.len());
    for (k, t) in indices.iter().enumerate() {
        let positions = StridedAxis { n: x.axis_len(axis + k), stride: 1 };
        along.push(broadcast_offsets(t, axis + k, positions, &i.at, scratch)?);
    }
    let (src_before, src_at, src_rest) = split_axes(&src, axis, i.at.len());
    scatter_pieces(combine, x, src_rest, result, scratch, &|target, put| {
        let (before, indexed, _) = split_axes(target, axis, indices.len());
        let mut outer = Odometer::new([before, src_before]);
        while let Some([to, from]) = outer.next() {
            let mut places = Odometer::new([src_at]);
            let mut j = 0;
            while let Some([position]) = places.next() {
                let offset =
                    indexed.iter().zip(&along).fold(to, |offset, (a, i)| offset + a.stride * i[j] as isize);
                put(offset, src.ptr.wrapping_offset(from + position));
                j += 1;
            }
        }
    });
    along.into_iter().for_each(|a| scratch.return_buffer(a));
    Ok(())
}

/// The changes of a scatter. The function is called once with the memory to change, which has the extents of
/// `x`, and with a callback. It calls the callback with the byte offset of each target and the address of its
/// source.
type Changes<'a> = &'a dyn Fn(&StridedView, &mut dyn FnMut(isize, *const u8));

/// Writes `x` with scattered changes to `result`: sources are stored, or combined with the existing elements.
/// Each target and its source are the first elements of pieces whose axes are the last axes of `x`; `piece`
/// are those of the source.
fn scatter_pieces(
    combine: Option<ReductionKind>,
    x: &StridedView,
    piece: &[StridedAxis],
    result: &StridedView,
    scratch: &mut Scratch,
    changes: Changes<'_>,
) {
    match combine {
        None => {
            copy_view(x, result);
            let plan = CopyPlan::new(piece, &result.axes[x.rank() - piece.len()..], x.dtype.size());
            changes(result, &mut |to, from| plan.run(from, result.ptr.wrapping_offset(to)));
        }
        Some(op) if x.dtype.is_float() => combine_pieces::<f64>(op, x, piece, result, scratch, changes),
        Some(op) => combine_pieces::<i64>(op, x, piece, result, scratch, changes),
    }
}

/// [`scatter_pieces`] with combination in numbers of type `A`.
fn combine_pieces<A: Accumulate>(
    op: ReductionKind,
    x: &StridedView,
    piece: &[StridedAxis],
    result: &StridedView,
    scratch: &mut Scratch,
    changes: Changes<'_>,
) {
    let mut sums = scratch.allocate::<A>(x.numel());
    StridedReader::new(x).read_next(&mut sums);
    let mut counts = scratch.allocate::<i64>(if op == ReductionKind::Mean { x.numel() } else { 0 });
    counts.fill(1);
    let wide = StridedView::contiguous(A::DTYPE, &x.shape(), sums.as_mut_ptr().cast());
    let piece = StridedView { ptr: x.ptr, dtype: x.dtype, axes: piece.into() };
    let mut values = scratch.allocate::<A>(piece.numel());
    changes(&wide, &mut |to, from| {
        if values.is_empty() {
            return;
        }
        StridedReader::new(&StridedView { ptr: from.cast_mut(), ..piece.clone() }).read_next(&mut values);
        // The pieces are the last axes of dense memory, so they are dense.
        let first = to as usize / size_of::<A>();
        let touched = first..first + values.len();
        A::accumulate_each(op, &mut sums[touched.clone()], &values);
        counts.get_mut(touched).into_iter().flatten().for_each(|count| *count += 1);
    });
    if op == ReductionKind::Mean {
        sums.iter_mut().zip(counts.iter()).for_each(|(sum, &count)| *sum = sum.divide(count as usize));
    }
    StridedWriter::new(result).write_next(&sums);
    scratch.return_buffer(values);
    scratch.return_buffer(sums);
    scratch.return_buffer(counts);
}

/// `x` with `src` added at the rows `indices` along `axis`.
pub(super) fn index_add(
    axis: usize,
    s: &ScatterOperands<'_>,
    result: &StridedView,
    scratch: &mut Scratch,
) -> Result<()> {
    index_put(axis, Some(ReductionKind::Sum), s.x, s.src, std::slice::from_ref(s.index), result, scratch)
}
