//! Matrix products of f32 and f64 matrices over raw memory, shared by matmul and attention.

use super::element::ComputeNumber;
use super::math::RealNumber;
use super::simd::widened;

/// A matrix in memory: its first element, and the distances between rows and between columns in elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct GemmMatrix<C> {
    pub ptr: *mut C,
    pub row: isize,
    pub column: isize,
}

impl<C> GemmMatrix<C> {
    pub fn dense(ptr: *mut C, columns: usize) -> Self {
        GemmMatrix { ptr, row: columns as isize, column: 1 }
    }
    pub fn element_at(self, row: usize, column: usize) -> Self {
        let offset = self.row * row as isize + self.column * column as isize;
        GemmMatrix { ptr: self.ptr.wrapping_offset(offset), ..self }
    }
    pub fn transposed(self) -> Self {
        GemmMatrix { ptr: self.ptr, row: self.column, column: self.row }
    }
}

/// The extents of a product: `c[m, n] = a[m, k] b[k, n]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct GemmExtents {
    pub m: usize,
    pub k: usize,
    pub n: usize,
}

pub(super) trait GemmNumber: RealNumber {
    /// `c = alpha a b + beta c`; with `beta` 0, `c` is not read.
    ///
    /// # Safety
    /// All elements of the three matrices must exist, and `c` must not overlap `a` or `b`.
    unsafe fn gemm(
        e: GemmExtents,
        alpha: Self,
        a: GemmMatrix<Self>,
        b: GemmMatrix<Self>,
        beta: Self,
        c: GemmMatrix<Self>,
    );
}

macro_rules! gemm {
    ($t:ty, $function:ident) => {
        impl GemmNumber for $t {
            unsafe fn gemm(
                e: GemmExtents,
                alpha: $t,
                a: GemmMatrix<$t>,
                b: GemmMatrix<$t>,
                beta: $t,
                c: GemmMatrix<$t>,
            ) {
                if has_few_rows(e.m, a, b, c) {
                    // SAFETY: the caller's promise; the strides are as `has_few_rows` found them.
                    return unsafe { rows_times_matrix(e, alpha, a, b, beta, c) };
                }
                // SAFETY: the caller's promise.
                unsafe {
                    matrixmultiply::$function(
                        e.m, e.k, e.n, alpha, a.ptr, a.row, a.column, b.ptr, b.row, b.column, beta, c.ptr,
                        c.row, c.column,
                    );
                }
            }
        }
    };
}

gemm!(f32, sgemm);
gemm!(f64, dgemm);

/// Whether the product of a few rows with a matrix is faster if the matrix is read directly, without packing
/// it.
fn has_few_rows<C>(m: usize, a: GemmMatrix<C>, b: GemmMatrix<C>, c: GemmMatrix<C>) -> bool {
    m <= 3 && a.column == 1 && c.column == 1 && (b.row == 1 || b.column == 1)
}

/// [`GemmNumber::gemm`] for few rows: dot products along the columns of `b` if they are dense, otherwise sums
/// of its rows.
///
/// # Safety
/// As [`GemmNumber::gemm`], where `a` and `c` have dense rows and `b` has dense rows or columns.
unsafe fn rows_times_matrix<C: GemmNumber>(
    e: GemmExtents,
    alpha: C,
    a: GemmMatrix<C>,
    b: GemmMatrix<C>,
    beta: C,
    c: GemmMatrix<C>,
) {
    for i in 0..e.m {
        // SAFETY: row `i` of `a` and of `c`, which do not overlap.
        let (x, y) = unsafe {
            let x = std::slice::from_raw_parts(a.element_at(i, 0).ptr.cast_const(), e.k);
            (x, std::slice::from_raw_parts_mut(c.element_at(i, 0).ptr, e.n))
        };
        if beta == C::ZERO {
            y.fill(C::ZERO);
        } else if beta != C::ONE {
            y.iter_mut().for_each(|y| *y *= beta);
        }
        if b.row == 1 {
            for (j, y) in y.iter_mut().enumerate() {
                // SAFETY: column `j` of `b`, dense.
                let column = unsafe { std::slice::from_raw_parts(b.element_at(0, j).ptr.cast_const(), e.k) };
                *y += alpha * dot_product(x, column);
            }
        } else {
            // SAFETY: rows of `b`, dense.
            unsafe { add_scaled_rows(alpha, x, b, y) };
        }
    }
}

/// The number of rows that [`add_scaled_rows`] adds before it adds their sum: this keeps rounding errors from
/// growing with `k`.
const ROWS_PER_SUM: usize = 64;

/// # Safety
/// `b` must have `x.len()` dense rows of `y.len()` elements.
unsafe fn add_scaled_rows<C: GemmNumber>(alpha: C, x: &[C], b: GemmMatrix<C>, y: &mut [C]) {
    const COLUMNS_PER_BLOCK: usize = 256;
    for (first, y) in y.chunks_mut(COLUMNS_PER_BLOCK).enumerate() {
        for (group, x) in x.chunks(ROWS_PER_SUM).enumerate() {
            let mut sum = [C::ZERO; COLUMNS_PER_BLOCK];
            let sum = &mut sum[..y.len()];
            for (k, &x) in x.iter().enumerate() {
                let row = b.element_at(group * ROWS_PER_SUM + k, first * COLUMNS_PER_BLOCK);
                // SAFETY: a part of a row of `b`.
                let row = unsafe { std::slice::from_raw_parts(row.ptr.cast_const(), y.len()) };
                add_scaled::<C>(sum, x, row);
            }
            add_scaled::<C>(y, alpha, sum);
        }
    }
}

widened! {
    fn add_scaled<C: RealNumber>(sums: &mut [C], factor: C, x: &[C]) {
        sums.iter_mut().zip(x).for_each(|(sum, &x)| *sum += factor * x);
    }
}

widened! {
    /// The dot product, in lanes over chunks whose sums are added in f64.
    pub(super) fn dot_product<C: RealNumber>(x: &[C], y: &[C]) -> C {
        const LANES: usize = 32;
        const CHUNK_ELEMENTS: usize = 2048;
        let mut total = 0.0;
        for (x, y) in x.chunks(CHUNK_ELEMENTS).zip(y.chunks(CHUNK_ELEMENTS)) {
            let mut lanes = [C::ZERO; LANES];
            let (xs, x_rest) = x.as_chunks::<LANES>();
            let (ys, y_rest) = y.as_chunks::<LANES>();
            let tail: f64 = x_rest.iter().zip(y_rest).map(|(&x, &y)| (x * y).wide()).sum();
            for (x, y) in xs.iter().zip(ys) {
                for i in 0..LANES {
                    lanes[i] += x[i] * y[i];
                }
            }
            total += lanes.iter().map(|l| l.wide()).sum::<f64>() + tail;
        }
        C::of(total)
    }
}

/// The sum in f64, in lanes.
#[inline(always)]
pub(super) fn sum_mapped<C: ComputeNumber, R: RealNumber>(x: &[C], f: impl Fn(C) -> R) -> f64 {
    const LANES: usize = 16;
    let mut lanes = [0.0; LANES];
    let (runs, rest) = x.as_chunks::<LANES>();
    for run in runs {
        for i in 0..LANES {
            lanes[i] += f(run[i]).wide();
        }
    }
    // Other uses of the lanes would keep them out of registers.
    let tail: f64 = rest.iter().map(|&x| f(x).wide()).sum();
    // A tree of additions here would make the compiler choose narrow vectors above.
    lanes.iter().sum::<f64>() + tail
}
