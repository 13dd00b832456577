//! Element-wise work on several views of one shape, in blocks.
//!
//! A block is a rectangle of two axes. Blocks are visited in the order in which the result lies in memory. If an
//! operand is dense along another axis than the result, as a transposed matrix is, that axis is the other one of the
//! blocks, so that each cache line of the operand is read once.
//!
//! A kernel reads the blocks of all operands before it writes that of the result, so a result may lie on an operand
//! of the same layout. Blocks that are dense, and stored as the type that is computed in, are used in place. Others
//! are converted in a buffer.

use std::cmp::Reverse;
use std::mem::MaybeUninit;
use std::ops::Range;

use smallvec::SmallVec;
use symmc_ir::DType;

use super::element::{ComputeNumber, StoredElement, for_element};
use super::error::Result;
use super::simd::widened;
use super::strided::{StridedAxis, StridedView};

/// The most elements of a block.
const BLOCK_ELEMENTS: usize = 2048;
/// The most elements of a block that is dense in all views, so that no buffer is used.
const DENSE_ELEMENTS: usize = 8192;
/// The most columns of a block whose rows are the dense axis of an operand.
const TRANSPOSED_COLUMNS: usize = 32;
/// The most views of a kernel: a result and three operands.
const MAX_VIEWS: usize = 4;

/// Computes all elements of `result`, block by block. `compute` gets the numbers of each operand, and memory for
/// those of the result. The views must have one shape.
pub(super) fn map_blocks<C: ComputeNumber, const K: usize>(
    operands: [&StridedView; K],
    result: &StridedView,
    mut compute: impl FnMut([&[C]; K], &mut [C]) -> Result<()>,
) -> Result<()> {
    let mut buffers: [BlockBuffer<C>; K] = std::array::from_fn(|_| BlockBuffer::default());
    let mut out = BlockBuffer::default();
    let is_separate = operands.iter().all(|x| are_separate(x, result));
    let mut walk = BlockWalk::new(operands, result, is_separate.then_some(C::DTYPE));
    while let Some((sources, destination)) = walk.next() {
        let mut buffer = buffers.iter_mut();
        let numbers = sources.map(|block| block.read(buffer.next()));
        match destination.numbers_in_place::<C>().filter(|_| is_separate) {
            // SAFETY: the elements of the result are writable, and no operand shares bytes with them.
            Some(slice) => compute(numbers, unsafe { &mut *slice })?,
            None => {
                let out = out.numbers(destination.len());
                compute(numbers, out)?;
                destination.write(out);
            }
        }
    }
    Ok(())
}

/// Converts the elements of `x` to `C` and these to the elements of `result`, of the same shape.
pub(super) fn convert_blocks<C: ComputeNumber>(x: &StridedView, result: &StridedView) {
    let mut buffer = BlockBuffer::<C>::default();
    let mut walk = BlockWalk::new([x], result, None);
    while let Some(([source], destination)) = walk.next() {
        destination.write(source.read(Some(&mut buffer)));
    }
}

/// Memory for the numbers of a block. Numbers are initialised when they are first used, because kernels of small
/// values need few of them.
struct BlockBuffer<C> {
    numbers: [MaybeUninit<C>; BLOCK_ELEMENTS],
    initialised: usize,
    /// The address of the one element that these first numbers repeat.
    repeated: Option<(*mut u8, usize)>,
}

impl<C> Default for BlockBuffer<C> {
    fn default() -> Self {
        let numbers = [const { MaybeUninit::uninit() }; BLOCK_ELEMENTS];
        BlockBuffer { numbers, initialised: 0, repeated: None }
    }
}

impl<C: ComputeNumber> BlockBuffer<C> {
    fn numbers(&mut self, n: usize) -> &mut [C] {
        let numbers = &mut self.numbers[..n];
        if let Some(rest) = numbers.get_mut(self.initialised..) {
            rest.fill(MaybeUninit::new(C::default()));
            self.initialised = n;
        }
        // SAFETY: the first `n` numbers are initialised.
        unsafe { std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast(), n) }
    }
}

/// The bytes from the first to the last that a view reaches.
fn byte_range(view: &StridedView) -> Range<isize> {
    let mut range = view.ptr.addr() as isize..(view.ptr.addr() + view.dtype.size()) as isize;
    for axis in &view.axes {
        let reach = axis.stride.saturating_mul(axis.n.saturating_sub(1) as isize);
        if reach < 0 { range.start += reach } else { range.end += reach }
    }
    range
}

fn are_separate(x: &StridedView, y: &StridedView) -> bool {
    let (x, y) = (byte_range(x), byte_range(y));
    x.end <= y.start || y.end <= x.start
}

/// A block of one view. Its memory is that of the view.
#[derive(Clone, Copy, Debug)]
struct ViewBlock {
    ptr: *mut u8,
    dtype: DType,
    rows: StridedAxis,
    columns: StridedAxis,
}

impl ViewBlock {
    fn len(&self) -> usize {
        self.rows.n * self.columns.n
    }

    /// The elements as a slice, if they are dense and stored as `C`.
    fn numbers_in_place<C: ComputeNumber>(&self) -> Option<*mut [C]> {
        let size = size_of::<C>() as isize;
        let is_dense = self.dtype == C::DTYPE
            && (self.columns.n == 1 || self.columns.stride == size)
            && (self.rows.n == 1 || self.rows.stride == size * self.columns.n as isize);
        is_dense.then(|| std::ptr::slice_from_raw_parts_mut(self.ptr.cast(), self.len()))
    }

    /// The elements as numbers, in place or in `buffer`.
    fn read<'a, C: ComputeNumber>(&self, buffer: Option<&'a mut BlockBuffer<C>>) -> &'a [C] {
        if let Some(slice) = self.numbers_in_place::<C>() {
            // SAFETY: the creator of the view guarantees that its elements are readable. The kernel writes the result
            // after its last use of the slice.
            return unsafe { &*slice };
        }
        let Some(buffer) = buffer else { return &[] };
        // The element of a broadcast operand is often the same in block after block. No kernel writes it, because a
        // result lies only on operands of its own layout.
        let is_repeated = [self.rows, self.columns].iter().all(|axis| axis.n == 1 || axis.stride == 0);
        let has_numbers =
            is_repeated && buffer.repeated.is_some_and(|(ptr, n)| ptr == self.ptr && n >= self.len());
        buffer.repeated =
            if has_numbers { buffer.repeated } else { is_repeated.then_some((self.ptr, self.len())) };
        let numbers = buffer.numbers(self.len());
        if has_numbers {
            return numbers;
        }
        for_element!(self.dtype, E => load_block::<E, C>(self, numbers));
        numbers
    }

    /// Stores one number for each element.
    fn write<C: ComputeNumber>(&self, numbers: &[C]) {
        for_element!(self.dtype, E => store_block::<E, C>(self, numbers));
    }
}

widened! {
    /// Reads the elements of a block, whose type is `E`, in the order of its rows.
    fn load_block<E: StoredElement, C: ComputeNumber>(block: &ViewBlock, out: &mut [C]) {
        let (rows, columns) = (block.rows, block.columns);
        let at = |i: usize, j: usize| -> *const E {
            block.ptr.wrapping_offset(rows.stride * i as isize + columns.stride * j as isize).cast()
        };
        let is_transposed = rows.stride == size_of::<E>() as isize && columns.stride.abs() > rows.stride;
        if is_transposed && rows.n > 1 {
            // Squares of a power of two become vectors, whose elements are exchanged in registers.
            const SIDE: usize = 8;
            let (full_rows, full_columns) = (rows.n - rows.n % SIDE, columns.n - columns.n % SIDE);
            let firsts = |n: usize| (0..n).step_by(SIDE);
            for (j, i) in firsts(full_columns).flat_map(|j| firsts(full_rows).map(move |i| (j, i))) {
                // SAFETY: the view has these elements, `SIDE` dense ones in each of `SIDE` columns.
                let square: [[E; SIDE]; SIDE] =
                    std::array::from_fn(|k| unsafe { at(i, j + k).cast::<[E; SIDE]>().read_unaligned() });
                for k in 0..SIDE {
                    let line = &mut out[(i + k) * columns.n + j..][..SIDE];
                    for l in 0..SIDE {
                        line[l] = C::from_element(square[l][k]);
                    }
                }
            }
            for j in 0..columns.n {
                for i in if j < full_columns { full_rows } else { 0 }..rows.n {
                    // SAFETY: an element of the view.
                    out[i * columns.n + j] = C::from_element(unsafe { at(i, j).read() });
                }
            }
            return;
        }
        for (i, line) in out.chunks_exact_mut(columns.n).enumerate() {
            let first = at(i, 0);
            if columns.stride == size_of::<E>() as isize {
                for (j, number) in line.iter_mut().enumerate() {
                    // SAFETY: an element of the view.
                    *number = C::from_element(unsafe { first.add(j).read() });
                }
            } else if columns.stride == 0 {
                // SAFETY: the element that all columns share.
                line.fill(C::from_element(unsafe { first.read() }));
            } else {
                for (j, number) in line.iter_mut().enumerate() {
                    // SAFETY: an element of the view.
                    *number = C::from_element(unsafe { first.byte_offset(columns.stride * j as isize).read() });
                }
            }
        }
    }
}

widened! {
    /// Stores numbers as the elements of a block, whose type is `E`.
    fn store_block<E: StoredElement, C: ComputeNumber>(block: &ViewBlock, numbers: &[C]) {
        let (rows, columns) = (block.rows, block.columns);
        for (i, line) in numbers.chunks_exact(columns.n).enumerate() {
            let first: *mut E = block.ptr.wrapping_offset(rows.stride * i as isize).cast();
            if columns.stride == size_of::<E>() as isize {
                for (j, &number) in line.iter().enumerate() {
                    // SAFETY: an element of the view.
                    unsafe { first.add(j).write(number.to_element()) };
                }
            } else {
                for (j, &number) in line.iter().enumerate() {
                    // SAFETY: an element of the view.
                    unsafe { first.byte_offset(columns.stride * j as isize).write(number.to_element()) };
                }
            }
        }
    }
}

/// An axis of all views, with the strides of the result and of the operands.
#[derive(Clone, Copy, Debug)]
struct JointAxis {
    n: usize,
    strides: [isize; MAX_VIEWS],
}

/// The axes of all views from the slowest to the fastest of the result, merged where all views allow it.
fn joint_axes<const K: usize>(operands: [&StridedView; K], result: &StridedView) -> SmallVec<[JointAxis; 6]> {
    let mut axes: SmallVec<[JointAxis; 6]> = SmallVec::new();
    for (i, axis) in result.axes.iter().enumerate().filter(|(_, axis)| axis.n != 1) {
        let mut strides = [0; MAX_VIEWS];
        strides[0] = axis.stride;
        strides[1..].iter_mut().zip(operands).for_each(|(stride, x)| *stride = x.axes[i].stride);
        axes.push(JointAxis { n: axis.n, strides });
    }
    axes.sort_by_key(|axis| Reverse(axis.strides[0].unsigned_abs()));
    let mut merged: SmallVec<[JointAxis; 6]> = SmallVec::new();
    for axis in axes {
        match merged.last_mut() {
            Some(last) if (0..MAX_VIEWS).all(|k| last.strides[k] == axis.strides[k] * axis.n as isize) => {
                *last = JointAxis { n: last.n * axis.n, ..axis };
            }
            _ => merged.push(axis),
        }
    }
    merged
}

/// Iterates over the blocks of operands and of a result.
struct BlockWalk<const K: usize> {
    dtypes: [DType; MAX_VIEWS],
    /// The axes outside of blocks, each with the number of its positions that are done.
    outer: SmallVec<[(JointAxis, usize); 6]>,
    rows: JointAxis,
    columns: JointAxis,
    /// The extents of a whole block.
    extents: (usize, usize),
    /// The first row and column of the next block.
    next: (usize, usize),
    /// The first elements at the current position of the outer axes.
    starts: [*mut u8; MAX_VIEWS],
    has_ended: bool,
}

impl<const K: usize> BlockWalk<K> {
    /// `in_place` is the dtype of elements that need no buffer; `None` if all do.
    fn new(operands: [&StridedView; K], result: &StridedView, in_place: Option<DType>) -> Self {
        const SINGLE: JointAxis = JointAxis { n: 1, strides: [0; MAX_VIEWS] };
        let mut axes = joint_axes(operands, result);
        let has_ended = axes.iter().any(|axis| axis.n == 0);
        let columns = axes.pop().unwrap_or(SINGLE);
        let is_direct = in_place.is_some_and(|dtype| {
            let strides = &columns.strides[..=K];
            strides.iter().all(|&stride| stride == dtype.size() as isize)
                && operands.iter().chain([&result]).all(|view| view.dtype == dtype)
        });
        let dense_elsewhere = |axis: &JointAxis| {
            let faster = axis.strides.iter().zip(&columns.strides);
            faster
                .filter(|(s, c)| **s != 0 && s.unsigned_abs() < c.unsigned_abs())
                .map(|(s, _)| s.unsigned_abs())
                .min()
        };
        let transposed =
            (0..axes.len()).filter_map(|i| Some((dense_elsewhere(&axes[i])?, i))).min().map(|(_, i)| i);
        let max_columns = match transposed {
            Some(_) => TRANSPOSED_COLUMNS,
            None if is_direct && columns.n >= BLOCK_ELEMENTS => DENSE_ELEMENTS,
            None => BLOCK_ELEMENTS,
        };
        let width = columns.n.clamp(1, max_columns);
        let rows = match transposed {
            Some(i) => axes.remove(i),
            None if width < BLOCK_ELEMENTS => axes.pop().unwrap_or(SINGLE),
            None => SINGLE,
        };
        let height = rows.n.clamp(1, (BLOCK_ELEMENTS / width).max(1));
        let mut dtypes = [result.dtype; MAX_VIEWS];
        let mut starts = [result.ptr; MAX_VIEWS];
        for (k, x) in operands.iter().enumerate() {
            dtypes[k + 1] = x.dtype;
            starts[k + 1] = x.ptr;
        }
        let outer = axes.into_iter().map(|axis| (axis, 0)).collect();
        BlockWalk { dtypes, outer, rows, columns, extents: (height, width), next: (0, 0), starts, has_ended }
    }

    /// The next blocks, of the operands and of the result.
    fn next(&mut self) -> Option<([ViewBlock; K], ViewBlock)> {
        if self.has_ended {
            return None;
        }
        let (row, column) = self.next;
        let (height, width) = self.extents;
        let block = |k: usize| {
            let offset = self.rows.strides[k] * row as isize + self.columns.strides[k] * column as isize;
            ViewBlock {
                ptr: self.starts[k].wrapping_offset(offset),
                dtype: self.dtypes[k],
                rows: StridedAxis { n: height.min(self.rows.n - row), stride: self.rows.strides[k] },
                columns: StridedAxis {
                    n: width.min(self.columns.n - column),
                    stride: self.columns.strides[k],
                },
            }
        };
        let blocks = (std::array::from_fn(|k| block(k + 1)), block(0));
        self.next.1 += width;
        if self.next.1 >= self.columns.n {
            self.next = (row + height, 0);
        }
        if self.next.0 >= self.rows.n {
            self.next = (0, 0);
            self.advance_outer();
        }
        Some(blocks)
    }

    fn advance_outer(&mut self) {
        for (axis, done) in self.outer.iter_mut().rev() {
            *done += 1;
            let steps = if *done < axis.n { 1 } else { 1 - axis.n as isize };
            for (start, stride) in self.starts.iter_mut().zip(axis.strides) {
                *start = start.wrapping_offset(stride * steps);
            }
            if *done < axis.n {
                return;
            }
            *done = 0;
        }
        self.has_ended = true;
    }
}
