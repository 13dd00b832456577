//! Matrix product over the last two axes, with broadcast leading axes, and products of groups of rows.
//!
//! f32 and f64 operands are multiplied where they lie, whatever their strides. Half-precision operands are
//! converted to f32 block by block, with the whole of `k` in one block, so that every element of the result
//! is rounded once. Integers are multiplied in i64 and wrap.

use symmc_ir::{DType, Scalar};

use super::element::Number;
use super::error::{KernelError, Result};
use super::gemm::{Extents, Gemm, Matrix};
use super::pointwise;
use super::scratch::{Needs, Scratch};
use super::strided::{Odometer, Reader, Strided, Writer};

/// The most f32 numbers of the right operand that are converted at once.
const BLOCK_NUMBERS: usize = 1 << 19;

pub(super) fn matmul(x: &Strided, y: &Strided, result: &Strided, scratch: &mut Scratch) -> Result<()> {
    let (rank, e) = extents(x, y, result)?;
    let batch = &result.shape()[..rank - 2];
    let matrix = |v: &Strided| v.with_axes(v.axes[v.rank() - 2..].iter().copied());
    let outer = |v: &Strided| v.with_axes(v.axes[..v.rank() - 2].iter().copied()).broadcast(batch);
    let (xo, yo) = (outer(x)?, outer(y)?);
    let (xm, ym, rm) = (matrix(x), matrix(y), matrix(result));
    if result.numel() == 0 {
        return Ok(());
    }
    let whole = fold_batch(x, y, result, e);
    if let Some((x, r, e)) = whole {
        one(&x, &ym, &r, e, scratch);
        return Ok(());
    }
    let mut positions = Odometer::new([&xo.axes, &yo.axes, &result.axes[..rank - 2]]);
    while let Some([a, b, c]) = positions.next() {
        one(&xm.at(a), &ym.at(b), &rm.at(c), e, scratch);
    }
    Ok(())
}

fn extents(x: &Strided, y: &Strided, result: &Strided) -> Result<(usize, Extents)> {
    let misfit = || KernelError::Shape {
        what: "matmul".into(),
        expected: "[.., m, k] and [.., k, n] for [.., m, n]".into(),
        found: format!("{:?} and {:?} for {:?}", x.shape(), y.shape(), result.shape()),
    };
    if x.rank() < 2 || y.rank() < 2 || result.rank() < 2 || x.dtype != y.dtype || x.dtype != result.dtype {
        return Err(misfit());
    }
    let tail = |v: &Strided| (v.n(v.rank() - 2), v.n(v.rank() - 1));
    let ((m, k), (k2, n), r) = (tail(x), tail(y), tail(result));
    if k != k2 || r != (m, n) {
        return Err(misfit());
    }
    Ok((result.rank(), Extents { m, k, n }))
}

/// Each group of the rows of `x` times its own matrix of `y`; zeros behind the last. Or, of two matrices, the products of
/// the groups that divide K. The ends are checked before anything is written. Operands: `x`, `y`, the ends.
pub(super) fn grouped([x, y, ends]: [&Strided; 3], result: &Strided, scratch: &mut Scratch) -> Result<()> {
    let divides_k = y.rank() == 2;
    let groups = if divides_k { result } else { y };
    let fits = x.rank() == 2 && groups.rank() == 3 && ends.shape()[..] == [groups.n(0)] && x.dtype.is_float();
    if !fits {
        return Err(KernelError::Shape {
            what: "grouped_matmul".into(),
            expected: "floats [rows, k] and [groups, k, n], or [m, k] and [k, n], and [groups]".into(),
            found: format!("{:?}, {:?} and {:?}", x.shape(), y.shape(), ends.shape()),
        });
    }
    let matrix = |of: &Strided, group: usize| of.cut(0, group, 1).with_axes([of.axes[1], of.axes[2]]);
    let (_, e) = extents(x, &y.with_axes(y.axes[y.rank() - 2..].iter().copied()), result)?;
    let rows = if divides_k { e.k } else { e.m };
    let mut given = scratch.take::<i64>(ends.n(0));
    Reader::new(ends).fill(&mut given);
    let (mut start, mut parts) = (0, Vec::with_capacity(given.len()));
    for (group, &end) in given.iter().enumerate() {
        let within = usize::try_from(end).ok().filter(|end| (start..=rows).contains(end));
        let end = within.ok_or(KernelError::GroupEnd { end, rows })?;
        parts.push((group, start, end - start));
        start = end;
    }
    scratch.give(given);
    for (group, first, own) in parts {
        if divides_k {
            let (columns, rows) = (x.cut(1, first, own), y.cut(0, first, own));
            if e.m > 0 && e.n > 0 {
                one(&columns, &rows, &matrix(result, group), Extents { k: own, ..e }, scratch);
            }
        } else if own > 0 && e.n > 0 {
            let (rows, out) = (x.cut(0, first, own), result.cut(0, first, own));
            one(&rows, &matrix(y, group), &out, Extents { m: own, ..e }, scratch);
        }
    }
    if !divides_k && start < e.m {
        pointwise::full(Scalar::Int(0), &result.cut(0, start, e.m - start));
    }
    Ok(())
}

/// A batch of products with one right matrix as a single product, where the rows of the batch lie at one
/// stride.
fn fold_batch(x: &Strided, y: &Strided, result: &Strided, e: Extents) -> Option<(Strided, Strided, Extents)> {
    let shared = y.axes[..y.rank() - 2].iter().all(|a| a.n == 1);
    if !shared || result.rank() == 2 || x.rank() != result.rank() {
        return None;
    }
    let fold = |v: &Strided| {
        let rows = super::strided::merge(&v.axes[..v.rank() - 1]);
        let column = v.axes[v.rank() - 1];
        match rows[..] {
            [] => Some(v.with_axes([super::strided::Axis { n: 1, stride: 0 }, column])),
            [rows] => Some(v.with_axes([rows, column])),
            _ => None,
        }
    };
    let (x, r) = (fold(x)?, fold(result)?);
    let m = r.n(0);
    (x.n(0) == m).then_some((x, r, Extents { m, ..e }))
}

fn one(x: &Strided, y: &Strided, result: &Strided, e: Extents, scratch: &mut Scratch) {
    match result.dtype {
        DType::F32 => direct::<f32>(x, y, result, e),
        DType::F64 => direct::<f64>(x, y, result, e),
        DType::F16 | DType::BF16 => converted(x, y, result, e, scratch),
        _ => integers(x, y, result, e, scratch),
    }
}

fn direct<C: Gemm>(x: &Strided, y: &Strided, result: &Strided, e: Extents) {
    // SAFETY: the views hold the matrices as elements of `C`, and a result of a product never lies on an
    // operand.
    unsafe { C::gemm(e, C::ONE, elements(x), elements(y), C::ZERO, elements(result)) };
}

/// The view, of two axes and stored as `C`, as a matrix. Byte strides are multiples of the element's size.
pub(super) fn elements<C: Number>(v: &Strided) -> Matrix<C> {
    let size = size_of::<C>() as isize;
    Matrix { ptr: v.ptr.cast(), row: v.axes[0].stride / size, column: v.axes[1].stride / size }
}

/// The rows and columns of a result that are computed from converted operands at once.
fn block(e: Extents) -> (usize, usize) {
    let columns = (BLOCK_NUMBERS / e.k.max(1)).clamp(8, e.n.max(8)).min(e.n);
    let rows = (BLOCK_NUMBERS / e.k.max(columns).max(1)).clamp(8, e.m.max(8)).min(e.m);
    (rows, columns)
}

pub(super) fn needs(dtype: DType, e: Extents, out: &mut Needs) {
    match dtype {
        DType::F32 | DType::F64 => {}
        DType::F16 | DType::BF16 => {
            let (rows, columns) = block(e);
            [rows * e.k, e.k * columns, rows * columns].into_iter().for_each(|n| out.add::<f32>(n));
        }
        _ => [e.m * e.k, e.k * e.n, e.n].into_iter().for_each(|n| out.add::<i64>(n)),
    }
}

fn converted(x: &Strided, y: &Strided, result: &Strided, e: Extents, scratch: &mut Scratch) {
    let (rows, columns) = block(e);
    let mut a = scratch.take::<f32>(rows * e.k);
    let mut b = scratch.take::<f32>(e.k * columns);
    let mut c = scratch.take::<f32>(rows * columns);
    for j in (0..e.n).step_by(columns) {
        let n = columns.min(e.n - j);
        let right = read_matrix(&y.cut(1, j, n), &mut b);
        for i in (0..e.m).step_by(rows) {
            let m = rows.min(e.m - i);
            let left = read_matrix(&x.cut(0, i, m), &mut a);
            let out = Matrix::dense(c.as_mut_ptr(), n);
            // SAFETY: the three buffers hold their matrices and are distinct.
            unsafe { f32::gemm(Extents { m, n, ..e }, 1.0, left, right, 0.0, out) };
            Writer::new(&result.cut(0, i, m).cut(1, j, n)).put(&c[..m * n]);
        }
    }
    scratch.give(a);
    scratch.give(b);
    scratch.give(c);
}

/// Reads a matrix into `buffer` in the order in which it lies in memory.
pub(super) fn read_matrix<C: Number>(v: &Strided, buffer: &mut [C]) -> Matrix<C> {
    let by_column = v.axes[0].stride.abs() < v.axes[1].stride.abs();
    let n = v.numel();
    if by_column {
        Reader::new(&v.axis_last(0)).fill(&mut buffer[..n]);
        Matrix::dense(buffer.as_mut_ptr(), v.n(0)).transposed()
    } else {
        Reader::new(v).fill(&mut buffer[..n]);
        Matrix::dense(buffer.as_mut_ptr(), v.n(1))
    }
}

fn integers(x: &Strided, y: &Strided, result: &Strided, e: Extents, scratch: &mut Scratch) {
    let mut a = scratch.take::<i64>(e.m * e.k);
    let mut b = scratch.take::<i64>(e.k * e.n);
    let mut c = scratch.take::<i64>(e.n);
    Reader::new(x).fill(&mut a);
    Reader::new(y).fill(&mut b);
    let mut out = Writer::new(result);
    for i in 0..e.m {
        c.fill(0);
        for k in 0..e.k {
            let x = a[i * e.k + k];
            for (c, &y) in c.iter_mut().zip(&b[k * e.n..(k + 1) * e.n]) {
                *c = c.wrapping_add(x.wrapping_mul(y));
            }
        }
        out.put(&c);
    }
    scratch.give(a);
    scratch.give(b);
    scratch.give(c);
}
