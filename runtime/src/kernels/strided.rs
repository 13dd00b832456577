//! Walking strided memory.
//!
//! A [`StridedView`] is a view with byte strides that kernels permute, broadcast and slice. A
//! [`StridedReader`] reads its elements in row-major order in blocks of numbers, a [`StridedWriter`] stores
//! blocks. Both convert between the stored and the computed type and process runs of equal stride at once.
//! Element-wise kernels read a block of every operand before they write that block of the result, so a result
//! may lie on an operand of the same layout. [`copy_view`] moves elements without interpreting them.

use std::marker::PhantomData;

use smallvec::SmallVec;
use symmc_ir::{DType, Op};

use super::element::{ComputeNumber, StoredElement, for_element};
use super::error::{KernelError, Result};
use super::view::{TensorView, TensorViewMut};

/// The number of numbers that kernels process at once.
pub(super) const BLOCK: usize = 512;

/// One axis: its extent, and the distance between neighbours in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct StridedAxis {
    pub n: usize,
    pub stride: isize,
}

pub(super) type Axes = SmallVec<[StridedAxis; 6]>;

/// A view with byte strides. The guarantees of its memory are those of the view that it was made from.
#[derive(Clone, Debug)]
pub(super) struct StridedView {
    pub ptr: *mut u8,
    pub dtype: DType,
    pub axes: Axes,
}

impl From<&TensorView<'_>> for StridedView {
    fn from(view: &TensorView<'_>) -> Self {
        let axes = byte_axes(view.dtype(), view.shape(), view.strides());
        StridedView { ptr: view.as_ptr().cast_mut(), dtype: view.dtype(), axes }
    }
}

impl From<&mut TensorViewMut<'_>> for StridedView {
    fn from(view: &mut TensorViewMut<'_>) -> Self {
        let axes = byte_axes(view.dtype(), view.shape(), view.strides());
        StridedView { ptr: view.as_mut_ptr(), dtype: view.dtype(), axes }
    }
}

fn byte_axes(dtype: DType, shape: &[usize], strides: &[isize]) -> Axes {
    let size = dtype.size() as isize;
    shape.iter().zip(strides).map(|(&n, &s)| StridedAxis { n, stride: s * size }).collect()
}

impl StridedView {
    /// Row-major memory of this shape at `ptr`.
    pub fn contiguous(dtype: DType, shape: &[usize], ptr: *mut u8) -> Self {
        let mut axes: Axes = shape.iter().map(|&n| StridedAxis { n, stride: 0 }).collect();
        let mut stride = dtype.size() as isize;
        for axis in axes.iter_mut().rev() {
            axis.stride = stride;
            stride *= axis.n.max(1) as isize;
        }
        StridedView { ptr, dtype, axes }
    }
    /// The layout of a view without memory; strides count elements.
    pub fn without_address(dtype: DType, shape: &[usize], strides: &[isize]) -> Self {
        StridedView { ptr: std::ptr::null_mut(), dtype, axes: byte_axes(dtype, shape, strides) }
    }
    pub fn rank(&self) -> usize {
        self.axes.len()
    }
    pub fn axis_len(&self, axis: usize) -> usize {
        self.axes[axis].n
    }
    pub fn shape(&self) -> SmallVec<[usize; 6]> {
        self.axes.iter().map(|a| a.n).collect()
    }
    pub fn numel(&self) -> usize {
        axes_numel(&self.axes)
    }
    /// The same axes from another first element.
    pub fn with_offset(&self, byte_offset: isize) -> Self {
        StridedView { ptr: self.ptr.wrapping_offset(byte_offset), dtype: self.dtype, axes: self.axes.clone() }
    }
    /// The same first element with other axes.
    pub fn with_axes(&self, axes: impl IntoIterator<Item = StridedAxis>) -> Self {
        StridedView { ptr: self.ptr, dtype: self.dtype, axes: axes.into_iter().collect() }
    }
    /// The `n` elements of `axis` from `start` on.
    pub fn slice_axis(&self, axis: usize, start: usize, n: usize) -> Self {
        let mut out = self.with_offset(self.axes[axis].stride * start as isize);
        out.axes[axis].n = n;
        out
    }
    /// Moves `axis` after all others.
    pub fn axis_last(&self, axis: usize) -> Self {
        let mut out = self.clone();
        let moved = out.axes.remove(axis);
        out.axes.push(moved);
        out
    }
    /// Axis `i` as axis `perm[i]`; `None` if `perm` is not a permutation of the axes.
    pub fn unpermuted(&self, perm: &[usize]) -> Option<Self> {
        let mut axes: SmallVec<[Option<StridedAxis>; 6]> = SmallVec::from_elem(None, self.rank());
        for (i, &axis) in perm.iter().enumerate() {
            *axes.get_mut(axis)? = Some(*self.axes.get(i)?);
        }
        let axes: Option<Axes> = axes.into_iter().collect();
        axes.map(|axes| self.with_axes(axes))
    }
    /// Broadcast to `shape`: axes of extent 1 and missing leading axes get stride 0.
    pub fn broadcast(&self, shape: &[usize]) -> Result<Self> {
        let new = shape.len().checked_sub(self.rank()).ok_or_else(|| self.broadcast_error(shape))?;
        let mut axes: Axes = shape.iter().map(|&n| StridedAxis { n, stride: 0 }).collect();
        for (axis, own) in axes[new..].iter_mut().zip(&self.axes) {
            match own.n {
                n if n == axis.n => axis.stride = own.stride,
                1 => {}
                _ => return Err(self.broadcast_error(shape)),
            }
        }
        Ok(StridedView { ptr: self.ptr, dtype: self.dtype, axes })
    }

    fn broadcast_error(&self, shape: &[usize]) -> KernelError {
        KernelError::Shape {
            what: "an operand".into(),
            expected: format!("a shape that broadcasts to {shape:?}"),
            found: format!("{:?}", self.shape()),
        }
    }
    /// Stores an element of the dtype everywhere.
    pub fn fill<E: StoredElement>(&self, element: E) {
        let mut axes = merge_axes(&self.axes);
        let inner = axes.pop().unwrap_or(StridedAxis { n: 1, stride: 0 });
        let mut outer = Odometer::new([&axes]);
        while let Some([offset]) = outer.next() {
            let run = self.ptr.wrapping_offset(offset);
            if inner.stride == size_of::<E>() as isize {
                // SAFETY: the elements of a dense run of the view, whose creator guarantees that they are writable.
                unsafe { std::slice::from_raw_parts_mut(run.cast::<E>(), inner.n) }.fill(element);
                continue;
            }
            for i in 0..inner.n as isize {
                // SAFETY: an element of the run.
                unsafe { run.wrapping_offset(inner.stride * i).cast::<E>().write(element) };
            }
        }
    }
    /// Whether both are the same elements in the same order.
    pub fn same_memory(&self, other: &StridedView) -> bool {
        self.ptr == other.ptr
            && self.dtype == other.dtype
            && merge_axes(&self.axes) == merge_axes(&other.axes)
    }
    /// Whether the elements are one dense run in row-major order.
    pub fn is_contiguous(&self) -> bool {
        match merge_axes(&self.axes)[..] {
            [] => true,
            [only] => only.n <= 1 || only.stride == self.dtype.size() as isize,
            _ => false,
        }
    }
}

/// The results of an op whose results are permuted, with the axes in the op's order.
pub(super) fn unpermuted_results(
    op: &Op,
    perm: &[usize],
    results: &[StridedView],
) -> Option<SmallVec<[StridedView; 2]>> {
    let count = op.permuted_results();
    let views = results.iter().enumerate();
    views.map(|(i, r)| if i < count { r.unpermuted(perm) } else { Some(r.clone()) }).collect()
}

pub(super) fn axes_numel(axes: &[StridedAxis]) -> usize {
    axes.iter().map(|a| a.n).product()
}

/// The fewest axes that reach the same elements in the same order. No axis has extent 1; an empty view has
/// one axis of extent 0.
pub(super) fn merge_axes(axes: &[StridedAxis]) -> Axes {
    let mut out = Axes::new();
    for &axis in axes {
        match axis.n {
            0 => return SmallVec::from_slice(&[StridedAxis { n: 0, stride: 0 }]),
            1 => continue,
            _ => {}
        }
        match out.last_mut() {
            Some(last) if last.stride == axis.stride * axis.n as isize => {
                *last = StridedAxis { n: last.n * axis.n, stride: axis.stride };
            }
            _ => out.push(axis),
        }
    }
    out
}

/// Iterates over the positions of some axes in row-major order, keeping one byte offset for each of `K`
/// stride tables.
pub(super) struct Odometer<const K: usize> {
    extents: SmallVec<[usize; 6]>,
    strides: SmallVec<[[isize; K]; 6]>,
    index: SmallVec<[usize; 6]>,
    /// The byte offset of the current position under each table.
    pub offsets: [isize; K],
    left: usize,
}

impl<const K: usize> Odometer<K> {
    /// Iterates over the axes of `K` tables of equal extents.
    pub fn new(tables: [&[StridedAxis]; K]) -> Self {
        let extents: SmallVec<[usize; 6]> = tables[0].iter().map(|a| a.n).collect();
        let strides = (0..extents.len()).map(|i| std::array::from_fn(|k| tables[k][i].stride)).collect();
        let remaining = extents.iter().product();
        Odometer {
            index: SmallVec::from_elem(0, extents.len()),
            extents,
            strides,
            offsets: [0; K],
            left: remaining,
        }
    }
    /// Returns the offsets of the current position, then advances; `None` after the last.
    pub fn next(&mut self) -> Option<[isize; K]> {
        self.left = self.left.checked_sub(1)?;
        let now = self.offsets;
        for axis in (0..self.extents.len()).rev() {
            self.index[axis] += 1;
            if self.index[axis] < self.extents[axis] {
                for (o, s) in self.offsets.iter_mut().zip(self.strides[axis]) {
                    *o += s;
                }
                break;
            }
            self.index[axis] = 0;
            for (o, s) in self.offsets.iter_mut().zip(self.strides[axis]) {
                *o -= s * (self.extents[axis] - 1) as isize;
            }
        }
        Some(now)
    }
}

/// The position within a view, shared by [`StridedReader`] and [`StridedWriter`].
struct StridedCursor {
    dtype: DType,
    outer: Odometer<1>,
    inner: StridedAxis,
    /// The first element of the current inner run, and the number of its elements that are done.
    run: *mut u8,
    done: usize,
    start: *mut u8,
}

impl StridedCursor {
    fn new(view: &StridedView) -> Self {
        let mut axes = merge_axes(&view.axes);
        let inner = axes.pop().unwrap_or(StridedAxis { n: 1, stride: 0 });
        let mut outer = Odometer::new([&axes]);
        outer.next();
        StridedCursor { dtype: view.dtype, outer, inner, run: view.ptr, done: 0, start: view.ptr }
    }

    /// The number of elements that the next run has.
    fn remaining_run(&self) -> usize {
        if self.done == self.inner.n { self.inner.n } else { self.inner.n - self.done }
    }

    /// The next up to `wanted` elements of equal stride: a pointer to the first, and their number.
    fn advance(&mut self, wanted: usize) -> (*mut u8, usize) {
        if self.done == self.inner.n {
            let offset = self.outer.next().map_or(0, |[o]| o);
            self.run = self.start.wrapping_offset(offset);
            self.done = 0;
        }
        let n = wanted.min(self.inner.n - self.done);
        let ptr = self.run.wrapping_offset(self.inner.stride * self.done as isize);
        self.done += n;
        (ptr, n)
    }
}

/// Reads the elements of a view in row-major order, as numbers. Callers must not request more elements than
/// the view has.
pub(super) struct StridedReader<C> {
    cursor: StridedCursor,
    left: usize,
    number: PhantomData<C>,
}

impl<C: ComputeNumber> StridedReader<C> {
    pub fn new(view: &StridedView) -> Self {
        StridedReader { cursor: StridedCursor::new(view), left: view.numel(), number: PhantomData }
    }

    /// The next elements, as many as `buffer` has: in place if they are dense and stored as numbers of this type,
    /// otherwise in the buffer.
    pub fn next_block<'b>(&mut self, buffer: &'b mut [C]) -> &'b [C] {
        let StridedCursor { dtype, inner, .. } = self.cursor;
        let is_dense = dtype == C::DTYPE && inner.stride == dtype.size() as isize;
        let n = buffer.len();
        if is_dense && n > 0 && n <= self.left && self.cursor.remaining_run() >= n {
            self.left -= n;
            let (ptr, _) = self.cursor.advance(n);
            // SAFETY: elements of the view, whose creator guarantees that they are readable. Kernels write their results
            // after the last use of the block.
            return unsafe { std::slice::from_raw_parts(ptr.cast(), n) };
        }
        self.read_next(buffer);
        buffer
    }

    /// Fills `out` with the next elements.
    pub fn read_next(&mut self, out: &mut [C]) {
        assert!(out.len() <= self.left, "a reader ran past its view");
        self.left -= out.len();
        let mut filled = 0;
        while filled < out.len() {
            let (ptr, n) = self.cursor.advance(out.len() - filled);
            // SAFETY: the cursor returns `n` elements of the view, whose creator guarantees that they are
            // readable.
            unsafe {
                load_strided(self.cursor.dtype, ptr, self.cursor.inner.stride, &mut out[filled..filled + n])
            };
            filled += n;
        }
    }
}

/// Stores numbers into a view in row-major order. Callers must not store more elements than the view has.
pub(super) struct StridedWriter<C> {
    cursor: StridedCursor,
    left: usize,
    number: PhantomData<C>,
}

impl<C: ComputeNumber> StridedWriter<C> {
    pub fn new(view: &StridedView) -> Self {
        StridedWriter { cursor: StridedCursor::new(view), left: view.numel(), number: PhantomData }
    }

    /// Stores the next elements.
    pub fn write_next(&mut self, data: &[C]) {
        assert!(data.len() <= self.left, "a writer ran past its view");
        self.left -= data.len();
        let mut stored = 0;
        while stored < data.len() {
            let (ptr, n) = self.cursor.advance(data.len() - stored);
            // SAFETY: the cursor returns `n` elements of the view, whose creator guarantees that they are
            // writable.
            unsafe {
                store_strided(self.cursor.dtype, ptr, self.cursor.inner.stride, &data[stored..stored + n])
            };
            stored += n;
        }
    }
}

/// Reads `out.len()` elements from `ptr` on, `stride` bytes apart.
///
/// # Safety
/// They must be readable and aligned.
unsafe fn load_strided<C: ComputeNumber>(dtype: DType, ptr: *const u8, stride: isize, out: &mut [C]) {
    if dtype == C::DTYPE && stride == dtype.size() as isize {
        // SAFETY: `C` is the stored type; the elements are dense, and `out` is memory of this thread alone.
        return unsafe { std::ptr::copy_nonoverlapping(ptr.cast::<C>(), out.as_mut_ptr(), out.len()) };
    }
    for_element!(dtype, E => {
        // SAFETY: the caller's promise, with `E` the stored type of `dtype`.
        unsafe { load_elements::<E, C>(ptr, stride, out) }
    });
}

/// # Safety
/// As [`load_strided`], for elements of type `E`.
unsafe fn load_elements<E: StoredElement, C: ComputeNumber>(ptr: *const u8, stride: isize, out: &mut [C]) {
    let size = size_of::<E>() as isize;
    match stride {
        0 => {
            // SAFETY: the one element is readable when there is any.
            let x = if out.is_empty() { return } else { unsafe { ptr.cast::<E>().read() } };
            out.fill(C::from_element(x));
        }
        s if s == size => {
            let from = ptr.cast::<E>();
            for (i, o) in out.iter_mut().enumerate() {
                // SAFETY: element `i` of a dense run.
                *o = C::from_element(unsafe { from.add(i).read() });
            }
        }
        _ => {
            for (i, o) in out.iter_mut().enumerate() {
                // SAFETY: element `i` of the run.
                *o = C::from_element(unsafe { ptr.offset(stride * i as isize).cast::<E>().read() });
            }
        }
    }
}

/// Writes `data` from `ptr` on, `stride` bytes apart.
///
/// # Safety
/// The elements must be writable and aligned.
unsafe fn store_strided<C: ComputeNumber>(dtype: DType, ptr: *mut u8, stride: isize, data: &[C]) {
    if dtype == C::DTYPE && stride == dtype.size() as isize {
        // SAFETY: `C` is the stored type; the elements are dense, and `data` is memory of this thread alone.
        return unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), ptr.cast::<C>(), data.len()) };
    }
    for_element!(dtype, E => {
        if stride == size_of::<E>() as isize {
            let destination = ptr.cast::<E>();
            for (i, &x) in data.iter().enumerate() {
                // SAFETY: element `i` of a dense run.
                unsafe { destination.add(i).write(x.to_element()) };
            }
        } else {
            for (i, &x) in data.iter().enumerate() {
                // SAFETY: element `i` of the run.
                unsafe { ptr.offset(stride * i as isize).cast::<E>().write(x.to_element()) };
            }
        }
    });
}

/// Copies every element of `from` to the same position of `to`. The shapes and dtypes must be equal. The
/// two may be the same memory; they must not overlap otherwise.
pub(super) fn copy_view(from: &StridedView, to: &StridedView) {
    debug_assert_eq!((from.dtype, from.shape()), (to.dtype, to.shape()));
    if !from.same_memory(to) {
        CopyPlan::new(&from.axes, &to.axes, from.dtype.size()).run(from.ptr, to.ptr);
    }
}

/// A strided copy that is planned once and run at many addresses.
pub(super) struct CopyPlan {
    axes: SmallVec<[(usize, isize, isize); 6]>,
    size: usize,
}

impl CopyPlan {
    /// A copy between views of equal extents whose elements have `size` bytes.
    pub fn new(from: &[StridedAxis], to: &[StridedAxis], size: usize) -> Self {
        let mut axes: SmallVec<[(usize, isize, isize); 6]> = SmallVec::new();
        for (f, t) in from.iter().zip(to) {
            match (f.n, axes.last_mut()) {
                (1, _) => {}
                (n, Some(last)) if last.1 == f.stride * n as isize && last.2 == t.stride * n as isize => {
                    *last = (last.0 * n, f.stride, t.stride);
                }
                (n, _) => axes.push((n, f.stride, t.stride)),
            }
        }
        CopyPlan { axes, size }
    }

    /// Copies from `from` to `to`, whose elements must be readable and writable.
    pub fn run(&self, from: *const u8, to: *mut u8) {
        self.copy_level(&self.axes, from, to);
    }

    fn copy_level(&self, axes: &[(usize, isize, isize)], from: *const u8, to: *mut u8) {
        let size = self.size as isize;
        match *axes {
            // SAFETY: the views for which the plan was made hold these elements; the two do not overlap.
            [] => unsafe { std::ptr::copy_nonoverlapping(from, to, self.size) },
            [(n, f, t)] if f == size && t == size => {
                // SAFETY: as above; both runs are dense.
                unsafe { std::ptr::copy_nonoverlapping(from, to, n * self.size) }
            }
            [(n, f, t)] => self.copy_innermost(n, from, f, to, t),
            // Rows of one side are columns of the other.
            [outer, inner] if outer.1.abs() < inner.1.abs() && inner.2.abs() < outer.2.abs() => {
                match self.size {
                    // SAFETY: the views for which the plan was made hold these elements, of this size and alignment.
                    1 => unsafe { copy_tiles::<u8>(outer, inner, from, to) },
                    // SAFETY: the same.
                    2 => unsafe { copy_tiles::<u16>(outer, inner, from, to) },
                    // SAFETY: the same.
                    4 => unsafe { copy_tiles::<u32>(outer, inner, from, to) },
                    // SAFETY: the same.
                    _ => unsafe { copy_tiles::<u64>(outer, inner, from, to) },
                }
            }
            [(n, f, t), ref rest @ ..] => {
                for i in 0..n as isize {
                    self.copy_level(rest, from.wrapping_offset(f * i), to.wrapping_offset(t * i));
                }
            }
        }
    }

    /// Copies `n` elements at these strides.
    fn copy_innermost(&self, n: usize, from: *const u8, f: isize, to: *mut u8, t: isize) {
        match self.size {
            // SAFETY: the views for which the plan was made hold these elements, of this size and alignment.
            1 => unsafe { copy_run::<u8>(n, from, f, to, t) },
            // SAFETY: the same.
            2 => unsafe { copy_run::<u16>(n, from, f, to, t) },
            // SAFETY: the same.
            4 => unsafe { copy_run::<u32>(n, from, f, to, t) },
            // SAFETY: the same.
            _ => unsafe { copy_run::<u64>(n, from, f, to, t) },
        }
    }
}

/// Copies in tiles, which keep the cache lines of both sides in the cache. Squares of elements that are dense along
/// one axis on each side are exchanged in registers.
///
/// # Safety
/// The elements of type `T` of both axes, each with its extent and its strides on both sides, must be readable from
/// `from` on and writable from `to` on.
unsafe fn copy_tiles<T: Copy>(
    outer: (usize, isize, isize),
    inner: (usize, isize, isize),
    from: *const u8,
    to: *mut u8,
) {
    const TILE: usize = 64;
    const SIDE: usize = 8;
    let size = size_of::<T>() as isize;
    let side = if outer.1 == size && inner.2 == size { SIDE } else { usize::MAX };
    let source = |i: usize, j: usize| from.wrapping_offset(outer.1 * i as isize + inner.1 * j as isize);
    let target = |i: usize, j: usize| to.wrapping_offset(outer.2 * i as isize + inner.2 * j as isize);
    for first_row in (0..outer.0).step_by(TILE) {
        let rows = TILE.min(outer.0 - first_row);
        for j in (0..inner.0).step_by(SIDE) {
            let columns = SIDE.min(inner.0 - j);
            let mut i = first_row;
            while i < first_row + rows {
                if side <= columns && i + side <= first_row + rows {
                    // SAFETY: `SIDE` dense elements of each of `SIDE` columns of the source, and as many rows of the
                    // target.
                    unsafe {
                        let square: [[T; SIDE]; SIDE] =
                            std::array::from_fn(|k| source(i, j + k).cast::<[T; SIDE]>().read_unaligned());
                        let lines: [[T; SIDE]; SIDE] =
                            std::array::from_fn(|k| std::array::from_fn(|l| square[l][k]));
                        for (k, line) in lines.into_iter().enumerate() {
                            target(i + k, j).cast::<[T; SIDE]>().write_unaligned(line);
                        }
                    }
                    i += SIDE;
                } else {
                    // SAFETY: the elements of a part of a row.
                    unsafe { copy_run::<T>(columns, source(i, j), inner.1, target(i, j), inner.2) };
                    i += 1;
                }
            }
        }
    }
}

/// # Safety
/// `n` elements of type `T` must be readable from `from` on and writable from `to` on, at these strides.
unsafe fn copy_run<T: Copy>(n: usize, from: *const u8, f: isize, to: *mut u8, t: isize) {
    for i in 0..n as isize {
        // SAFETY: element `i` of each run.
        unsafe { to.offset(t * i).cast::<T>().write(from.offset(f * i).cast::<T>().read()) };
    }
}
