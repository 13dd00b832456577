//! Matrix product over the last two axes, with broadcast leading axes, and products of groups of rows.
//!
//! f32 and f64 operands are multiplied in place, whatever their strides. Half-precision operands are
//! converted to f32 block by block, with all of `k` in one block, so that every element of the result is
//! rounded at most once. Integers are multiplied in i64 and wrap.

use symmc_ir::{DType, Scalar};

use super::element::ComputeNumber;
use super::error::{KernelError, Result};
use super::gemm::{GemmExtents, GemmMatrix, GemmNumber};
use super::pointwise;
use super::scratch::{Scratch, ScratchNeeds};
use super::strided::{Odometer, StridedAxis, StridedReader, StridedView, StridedWriter, merge_axes};

/// The maximum number of f32 numbers of the right operand that are converted at once.
const BLOCK_NUMBERS: usize = 1 << 19;

pub(super) fn matmul(
    x: &StridedView,
    y: &StridedView,
    result: &StridedView,
    scratch: &mut Scratch,
) -> Result<()> {
    let (rank, e) = gemm_extents(x, y, result)?;
    let batch = &result.shape()[..rank - 2];
    let xo = batch_axes(x).broadcast(batch)?;
    let yo = batch_axes(y).broadcast(batch)?;
    let xm = matrix_axes(x);
    let ym = matrix_axes(y);
    let rm = matrix_axes(result);
    if result.numel() == 0 {
        return Ok(());
    }
    let folded = fold_batch(x, y, result, e);
    if let Some((x, r, e)) = folded {
        single_matmul(&x, &ym, &r, e, scratch);
        return Ok(());
    }
    let mut positions = Odometer::new([&xo.axes, &yo.axes, &result.axes[..rank - 2]]);
    while let Some([a, b, c]) = positions.next() {
        single_matmul(&xm.with_offset(a), &ym.with_offset(b), &rm.with_offset(c), e, scratch);
    }
    Ok(())
}

fn batch_axes(v: &StridedView) -> StridedView {
    v.with_axes(v.axes[..v.rank() - 2].iter().copied())
}

fn matrix_axes(v: &StridedView) -> StridedView {
    v.with_axes(v.axes[v.rank() - 2..].iter().copied())
}

fn gemm_extents(x: &StridedView, y: &StridedView, result: &StridedView) -> Result<(usize, GemmExtents)> {
    let is_unrounded = x.dtype.is_narrow_float() && result.dtype == x.dtype.compute_dtype();
    let factors_fit = x.dtype == y.dtype || y.dtype.is_stored_factor(x.dtype);
    let dtypes_fit = factors_fit && (x.dtype == result.dtype || is_unrounded);
    if dtypes_fit && x.rank() >= 2 && y.rank() >= 2 && result.rank() >= 2 {
        let (m, k) = matrix_shape(x);
        let (rows, n) = matrix_shape(y);
        if k == rows && matrix_shape(result) == (m, n) {
            return Ok((result.rank(), GemmExtents { m, k, n }));
        }
    }
    Err(KernelError::Shape {
        what: "matmul".into(),
        expected: "[.., m, k] and [.., k, n] for [.., m, n]".into(),
        found: format!("{:?} and {:?} for {:?}", x.shape(), y.shape(), result.shape()),
    })
}

fn matrix_shape(v: &StridedView) -> (usize, usize) {
    (v.axis_len(v.rank() - 2), v.axis_len(v.rank() - 1))
}

/// Multiplies each group of the rows of `x` by its own matrix of `y`, with zeros after the last group. Or,
/// for two matrices, computes the products of the groups that divide K. The ends are checked before anything
/// is written. Operands: `x`, `y`, the ends.
pub(super) fn grouped_matmul(
    [x, y, ends]: [&StridedView; 3],
    result: &StridedView,
    scratch: &mut Scratch,
) -> Result<()> {
    let divides_k = y.rank() == 2;
    let groups = if divides_k { result } else { y };
    let fits =
        x.rank() == 2 && groups.rank() == 3 && ends.shape()[..] == [groups.axis_len(0)] && x.dtype.is_float();
    if !fits {
        return Err(KernelError::Shape {
            what: "grouped_matmul".into(),
            expected: "floats [rows, k] and [groups, k, n], or [m, k] and [k, n], and [groups]".into(),
            found: format!("{:?}, {:?} and {:?}", x.shape(), y.shape(), ends.shape()),
        });
    }
    let (_, e) = gemm_extents(x, &matrix_axes(y), result)?;
    let rows = if divides_k { e.k } else { e.m };
    let mut group_ends = scratch.allocate::<i64>(ends.axis_len(0));
    StridedReader::new(ends).read_next(&mut group_ends);
    let mut start = 0;
    let mut ranges = Vec::with_capacity(group_ends.len());
    for (group, &end) in group_ends.iter().enumerate() {
        let within = usize::try_from(end).ok().filter(|end| (start..=rows).contains(end));
        let end = within.ok_or(KernelError::GroupEnd { end, rows })?;
        ranges.push((group, start, end - start));
        start = end;
    }
    scratch.return_buffer(group_ends);
    for (group, first, count) in ranges {
        if divides_k {
            let columns = x.slice_axis(1, first, count);
            let rows = y.slice_axis(0, first, count);
            if e.m > 0 && e.n > 0 {
                let out = group_matrix(result, group);
                single_matmul(&columns, &rows, &out, GemmExtents { k: count, ..e }, scratch);
            }
        } else if count > 0 && e.n > 0 {
            let rows = x.slice_axis(0, first, count);
            let out = result.slice_axis(0, first, count);
            single_matmul(&rows, &group_matrix(y, group), &out, GemmExtents { m: count, ..e }, scratch);
        }
    }
    if !divides_k && start < e.m {
        pointwise::full(Scalar::Int(0), &result.slice_axis(0, start, e.m - start));
    }
    Ok(())
}

fn group_matrix(v: &StridedView, group: usize) -> StridedView {
    v.slice_axis(0, group, 1).with_axes([v.axes[1], v.axes[2]])
}

/// A batch of products with one right matrix as a single product, if the rows of the batch have one stride.
fn fold_batch(
    x: &StridedView,
    y: &StridedView,
    result: &StridedView,
    e: GemmExtents,
) -> Option<(StridedView, StridedView, GemmExtents)> {
    let shared = y.axes[..y.rank() - 2].iter().all(|a| a.n == 1);
    if !shared || result.rank() == 2 || x.rank() != result.rank() {
        return None;
    }
    let x = fold_rows(x)?;
    let r = fold_rows(result)?;
    let m = r.axis_len(0);
    (x.axis_len(0) == m).then_some((x, r, GemmExtents { m, ..e }))
}

fn fold_rows(v: &StridedView) -> Option<StridedView> {
    let rows = merge_axes(&v.axes[..v.rank() - 1]);
    let column = v.axes[v.rank() - 1];
    match rows[..] {
        [] => Some(v.with_axes([StridedAxis { n: 1, stride: 0 }, column])),
        [rows] => Some(v.with_axes([rows, column])),
        _ => None,
    }
}

fn single_matmul(
    x: &StridedView,
    y: &StridedView,
    result: &StridedView,
    e: GemmExtents,
    scratch: &mut Scratch,
) {
    match x.dtype {
        DType::F32 => matmul_in_place::<f32>(x, y, result, e),
        DType::F64 => matmul_in_place::<f64>(x, y, result, e),
        DType::F16 | DType::BF16 => matmul_converted(x, y, result, e, scratch),
        _ => matmul_integers(x, y, result, e, scratch),
    }
}

fn matmul_in_place<C: GemmNumber>(x: &StridedView, y: &StridedView, result: &StridedView, e: GemmExtents) {
    // SAFETY: the views hold the matrices as elements of `C`, and the result of a product never overlaps an
    // operand.
    unsafe { C::gemm(e, C::ONE, as_matrix(x), as_matrix(y), C::ZERO, as_matrix(result)) };
}

/// The view, of two axes and stored as `C`, as a matrix. Byte strides are multiples of the element's size.
pub(super) fn as_matrix<C: ComputeNumber>(v: &StridedView) -> GemmMatrix<C> {
    let size = size_of::<C>() as isize;
    GemmMatrix { ptr: v.ptr.cast(), row: v.axes[0].stride / size, column: v.axes[1].stride / size }
}

/// The rows and columns of a result that are computed at once from converted operands.
fn block_size(e: GemmExtents) -> (usize, usize) {
    let columns = (BLOCK_NUMBERS / e.k.max(1)).clamp(8, e.n.max(8)).min(e.n);
    let rows = (BLOCK_NUMBERS / e.k.max(columns).max(1)).clamp(8, e.m.max(8)).min(e.m);
    (rows, columns)
}

pub(super) fn add_gemm_needs(dtype: DType, e: GemmExtents, out: &mut ScratchNeeds) {
    match dtype {
        DType::F32 | DType::F64 => {}
        DType::F16 | DType::BF16 => {
            let (rows, columns) = block_size(e);
            [rows * e.k, e.k * columns, rows * columns].into_iter().for_each(|n| out.add::<f32>(n));
        }
        _ => [e.m * e.k, e.k * e.n, e.n].into_iter().for_each(|n| out.add::<i64>(n)),
    }
}

fn matmul_converted(
    x: &StridedView,
    y: &StridedView,
    result: &StridedView,
    e: GemmExtents,
    scratch: &mut Scratch,
) {
    let (rows, columns) = block_size(e);
    let mut a = scratch.allocate::<f32>(rows * e.k);
    let mut b = scratch.allocate::<f32>(e.k * columns);
    let mut c = scratch.allocate::<f32>(rows * columns);
    for j in (0..e.n).step_by(columns) {
        let n = columns.min(e.n - j);
        let right = read_matrix(&y.slice_axis(1, j, n), &mut b);
        for i in (0..e.m).step_by(rows) {
            let m = rows.min(e.m - i);
            let lhs = read_matrix(&x.slice_axis(0, i, m), &mut a);
            let out = GemmMatrix::dense(c.as_mut_ptr(), n);
            // SAFETY: the three buffers hold their matrices and are distinct.
            unsafe { f32::gemm(GemmExtents { m, n, ..e }, 1.0, lhs, right, 0.0, out) };
            StridedWriter::new(&result.slice_axis(0, i, m).slice_axis(1, j, n)).write_next(&c[..m * n]);
        }
    }
    scratch.return_buffer(a);
    scratch.return_buffer(b);
    scratch.return_buffer(c);
}

/// Reads a matrix into `buffer` in its order in memory.
pub(super) fn read_matrix<C: ComputeNumber>(v: &StridedView, buffer: &mut [C]) -> GemmMatrix<C> {
    let by_column = v.axes[0].stride.abs() < v.axes[1].stride.abs();
    let n = v.numel();
    if by_column {
        StridedReader::new(&v.axis_last(0)).read_next(&mut buffer[..n]);
        GemmMatrix::dense(buffer.as_mut_ptr(), v.axis_len(0)).transposed()
    } else {
        StridedReader::new(v).read_next(&mut buffer[..n]);
        GemmMatrix::dense(buffer.as_mut_ptr(), v.axis_len(1))
    }
}

fn matmul_integers(
    x: &StridedView,
    y: &StridedView,
    result: &StridedView,
    e: GemmExtents,
    scratch: &mut Scratch,
) {
    let mut a = scratch.allocate::<i64>(e.m * e.k);
    let mut b = scratch.allocate::<i64>(e.k * e.n);
    let mut c = scratch.allocate::<i64>(e.n);
    StridedReader::new(x).read_next(&mut a);
    StridedReader::new(y).read_next(&mut b);
    let mut out = StridedWriter::new(result);
    for i in 0..e.m {
        c.fill(0);
        for k in 0..e.k {
            let x = a[i * e.k + k];
            for (c, &y) in c.iter_mut().zip(&b[k * e.n..(k + 1) * e.n]) {
                *c = c.wrapping_add(x.wrapping_mul(y));
            }
        }
        out.write_next(&c);
    }
    scratch.return_buffer(a);
    scratch.return_buffer(b);
    scratch.return_buffer(c);
}
