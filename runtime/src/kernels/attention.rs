//! Scaled dot-product attention without the matrix of scores.
//!
//! For each head, blocks of rows of `q` meet blocks of rows of `k` and `v`. The running maximum and sum of
//! each row rescale what was accumulated before (online softmax: Milakov and Gimelshein, 2018; blocked as in
//! FlashAttention, Dao et al., 2022). Scores, weights and sums are f32 (f64 for f64); the result is rounded
//! once. What a row does not see adds nothing to it, also where `v` is infinite or NaN there.

use symmc_ir::DType;

use super::KernelError;
use super::gemm::{Extents, Gemm, Matrix};
use super::matmul::{elements, read_matrix};
use super::norm::{exp_row, for_real, max_of};
use super::scratch::{Buffer, Scratch};
use super::strided::{Odometer, Reader, Strided, Writer};

/// Rows of `q` in a block.
const ROWS: usize = 64;
/// Rows of `k` and `v` in a block.
const COLUMNS: usize = 256;

/// The operands of an attention. `mask` has the shape of the scores once it is broadcast.
pub(super) struct Operands<'a> {
    pub q: &'a Strided,
    pub k: &'a Strided,
    pub v: &'a Strided,
    pub mask: Option<&'a Strided>,
}

/// The extents of one head, in the letters of [`symmc_ir::Op::Attention`].
#[derive(Clone, Copy)]
struct Head {
    l: usize,
    s: usize,
    e: usize,
    f: usize,
    causal: bool,
    scale: f64,
}

pub(super) fn attention(
    causal: bool,
    scale: f64,
    o: &Operands<'_>,
    result: &Strided,
    scratch: &mut Scratch,
) -> Result<(), KernelError> {
    let (head, group) = check(causal, scale, o, result)?;
    let rank = o.q.rank();
    let mut scores = o.q.shape();
    scores[rank - 1] = head.s;
    let mask = o.mask.map(|m| m.broadcast(&scores)).transpose()?;
    let mask = mask.as_ref();
    // Heads are the last of the outer axes: query heads as [g, h / g].
    let batch = rank - 3;
    let split = |v: &Strided| v.axes[..batch].to_vec();
    let mut positions = Odometer::new([
        &split(o.q)[..],
        &split(o.k)[..],
        &split(o.v)[..],
        &split(result)[..],
        &split(mask.unwrap_or(o.q))[..],
    ]);
    let inner = |v: &Strided| v.with_axes(v.axes[batch..].iter().copied());
    let (q, k, v, r) = (inner(o.q), inner(o.k), inner(o.v), inner(result));
    let mask = mask.map(inner);
    while let Some([qo, ko, vo, ro, mo]) = positions.next() {
        let mask = mask.as_ref().map(|m| m.at(mo));
        for kv in 0..k.n(0) {
            let at = |v: &Strided, offset: isize, head: usize| pick(&v.at(offset), head);
            let (k, v) = (at(&k, ko, kv), at(&v, vo, kv));
            let heads: Vec<_> = (kv * group..(kv + 1) * group)
                .map(|h| (at(&q, qo, h), at(&r, ro, h), mask.as_ref().map(|m| pick(m, h))))
                .collect();
            for_real!(o.q.dtype, R => run_heads::<R>(head, &heads, &k, &v, scratch));
        }
    }
    Ok(())
}

/// Element `index` of the first axis.
fn pick(v: &Strided, index: usize) -> Strided {
    v.cut(0, index, 1).with_axes(v.axes[1..].iter().copied())
}

/// Checks the shapes; gives the extents of a head and the number of query heads for each head of `k`.
fn check(causal: bool, scale: f64, o: &Operands<'_>, result: &Strided) -> Result<(Head, usize), KernelError> {
    let (q, k, v) = (o.q.shape(), o.k.shape(), o.v.shape());
    let misfit = || KernelError::Shape {
        what: "attention".into(),
        expected: "q [.., h, l, e], k [.., g, s, e], v [.., g, s, f] for [.., h, l, f]".into(),
        found: format!("{q:?}, {k:?}, {v:?} for {:?}", result.shape()),
    };
    let r = q.len();
    if r < 3
        || k.len() != r
        || v.len() != r
        || [o.k.dtype, o.v.dtype, result.dtype].iter().any(|&d| d != o.q.dtype)
    {
        return Err(misfit());
    }
    let head = Head { l: q[r - 2], s: k[r - 2], e: q[r - 1], f: v[r - 1], causal, scale };
    let mut expected = q.clone();
    expected[r - 1] = head.f;
    let fits = q[..r - 3] == k[..r - 3]
        && q[..r - 3] == v[..r - 3]
        && k[r - 3] == v[r - 3]
        && k[r - 1] == head.e
        && v[r - 2] == head.s
        && result.shape() == expected;
    let (h, g) = (q[r - 3], k[r - 3]);
    if !fits || (h != 0 && h.checked_rem(g) != Some(0)) {
        return Err(misfit());
    }
    Ok((head, h.checked_div(g).unwrap_or(0)))
}

/// A view as a matrix of `R`: where it lies, or converted into a buffer.
fn as_matrix<R: Gemm>(v: &Strided, scratch: &mut Scratch) -> (Matrix<R>, Option<Buffer<R>>) {
    if v.dtype == R::DTYPE {
        return (elements(v), None);
    }
    let mut buffer = scratch.take::<R>(v.numel());
    (read_matrix(v, &mut buffer), Some(buffer))
}

/// The query heads that share one head of `k` and `v`. Each comes with its result and mask.
fn run_heads<R: Gemm>(
    head: Head,
    heads: &[(Strided, Strided, Option<Strided>)],
    k: &Strided,
    v: &Strided,
    scratch: &mut Scratch,
) {
    let (keys, keys_buffer) = as_matrix::<R>(k, scratch);
    let (values, values_buffer) = as_matrix::<R>(v, scratch);
    // SAFETY: the matrix holds these rows.
    let finite = unsafe { all_finite(values, head) };
    let mut rows = Rows {
        head,
        keys,
        values,
        finite,
        scores: scratch.take(ROWS * COLUMNS),
        mask: scratch.take(ROWS * COLUMNS),
        sums: scratch.take(ROWS * head.f),
        max: [R::NEG_INFINITY; ROWS],
        total: [0.0; ROWS],
    };
    for (q, result, mask) in heads {
        for first in (0..head.l).step_by(ROWS) {
            let n = ROWS.min(head.l - first);
            let (queries, buffer) = as_matrix::<R>(&q.cut(0, first, n), scratch);
            rows.run(queries, first, n, mask.as_ref());
            Writer::new(&result.cut(0, first, n)).put(&rows.sums[..n * head.f]);
            buffer.into_iter().for_each(|b| scratch.give(b));
        }
    }
    let Rows { scores, mask, sums, .. } = rows;
    for buffer in [keys_buffer, values_buffer].into_iter().flatten().chain([scores, mask, sums]) {
        scratch.give(buffer);
    }
}

/// Whether all elements of `v` are finite.
///
/// # Safety
/// The matrix holds the rows of `v` of this head.
unsafe fn all_finite<R: Gemm>(values: Matrix<R>, head: Head) -> bool {
    // SAFETY: by the caller.
    let finite = |row: usize, column: usize| unsafe { *values.at(row, column).ptr }.is_finite();
    (0..head.s).all(|row| (0..head.f).all(|column| finite(row, column)))
}

/// A block of rows on its way through all blocks of `k` and `v`.
struct Rows<R> {
    head: Head,
    keys: Matrix<R>,
    values: Matrix<R>,
    /// Whether all values are finite, so that a weight of 0 leaves none of them.
    finite: bool,
    scores: Buffer<R>,
    mask: Buffer<R>,
    /// The weighted sums of the rows of `v`, scaled for the maximum so far.
    sums: Buffer<R>,
    max: [R; ROWS],
    /// The sums of the weights, scaled likewise.
    total: [f64; ROWS],
}

impl<R: Gemm> Rows<R> {
    /// Leaves the attention of rows `first..first + m` in `sums`.
    fn run(&mut self, queries: Matrix<R>, first: usize, m: usize, mask: Option<&Strided>) {
        let Head { s, e, f, causal, scale, .. } = self.head;
        self.sums[..m * f].fill(R::ZERO);
        self.max = [R::NEG_INFINITY; ROWS];
        self.total = [0.0; ROWS];
        let seen = if causal { s.min(first + m) } else { s };
        for start in (0..seen).step_by(COLUMNS) {
            let n = COLUMNS.min(seen - start);
            let scores = Matrix::dense(self.scores.as_mut_ptr(), n);
            let keys = self.keys.at(start, 0).transposed();
            // SAFETY: the matrices hold these rows, and `scores` is a buffer of its own.
            unsafe { R::gemm(Extents { m, k: e, n }, R::of(scale), queries, keys, R::ZERO, scores) };
            if let Some(mask) = mask {
                self.apply_mask(&mask.cut(0, first, m).cut(1, start, n), m * n);
            }
            for i in 0..m {
                let visible = if causal { (first + i + 1).saturating_sub(start).min(n) } else { n };
                self.weigh(i, n, visible);
            }
            if !self.finite {
                self.add_seen(first, m, start, n, mask.is_some_and(|mask| mask.dtype == DType::Bool));
                continue;
            }
            let sums = Matrix::dense(self.sums.as_mut_ptr(), f);
            let values = self.values.at(start, 0);
            // SAFETY: as above, with `sums` a buffer of its own.
            unsafe { R::gemm(Extents { m, k: n, n: f }, R::ONE, scores, values, R::ONE, sums) };
        }
        for i in 0..m {
            let row = &mut self.sums[i * f..(i + 1) * f];
            let scale = R::of(1.0 / self.total[i]);
            match self.total[i] == 0.0 {
                true => row.fill(R::ZERO),
                false => row.iter_mut().for_each(|x| *x *= scale),
            }
        }
    }

    /// Adds the weighted rows `start..start + n` of `v` to rows `first..first + m`, without what these do not see: a
    /// weight of 0 does not hide an infinite value. `masked` says that the mask is of bools.
    fn add_seen(&mut self, first: usize, m: usize, start: usize, n: usize, masked: bool) {
        let Head { f, causal, .. } = self.head;
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            let hidden = causal && start + j > first + i || masked && self.mask[i * n + j] == R::ZERO;
            if hidden {
                continue;
            }
            let weight = self.scores[i * n + j];
            for (column, sum) in self.sums[i * f..(i + 1) * f].iter_mut().enumerate() {
                // SAFETY: the matrix holds the row of `v`, and its columns are those of the sums.
                *sum += weight * unsafe { *self.values.at(start + j, column).ptr };
            }
        }
    }

    fn apply_mask(&mut self, mask: &Strided, n: usize) {
        let values = &mut self.mask[..n];
        Reader::<R>::new(mask).fill(values);
        let scores = self.scores[..n].iter_mut().zip(values);
        if mask.dtype == DType::Bool {
            scores.for_each(|(s, m)| *s = if *m == R::ZERO { R::NEG_INFINITY } else { *s });
        } else {
            scores.for_each(|(s, m)| *s += *m);
        }
    }

    /// Turns the `n` scores of row `i` into weights, of which the first `visible` count, and rescales what
    /// the row has accumulated.
    fn weigh(&mut self, i: usize, n: usize, visible: usize) {
        let f = self.head.f;
        let (row, hidden) = self.scores[i * n..(i + 1) * n].split_at_mut(visible);
        hidden.fill(R::ZERO);
        let max = max_of::<R>(row).max_nan(self.max[i]);
        if max == R::NEG_INFINITY {
            row.fill(R::ZERO);
            return;
        }
        let sum = exp_row::<R>(row, max);
        let shrink = (self.max[i] - max).exp();
        if shrink != R::ONE {
            self.sums[i * f..(i + 1) * f].iter_mut().for_each(|x| *x *= shrink);
        }
        self.total[i] = self.total[i] * shrink.wide() + sum;
        self.max[i] = max;
    }
}
