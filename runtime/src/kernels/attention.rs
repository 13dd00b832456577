//! Scaled dot-product attention without the matrix of scores.
//!
//! For each head, blocks of rows of `q` meet blocks of rows of `k` and `v`. The running maximum and sum of
//! each row rescale what was accumulated before (online softmax: Milakov and Gimelshein, 2018; blocked as in
//! FlashAttention, Dao et al., 2022). Scores, weights and sums are f32 (f64 for f64); the result is rounded
//! once. What a row does not see adds nothing to it, also where `v` is infinite or NaN there. What bounds leave to a row
//! is an interval, so blocks of `k` and `v` that no row of a block sees are passed over.

use std::ops::Range;

use symmc_ir::attention::{Bound, Operands, visible};
use symmc_ir::{DType, Side};

use super::error::{KernelError, Result};
use super::gemm::{Extents, Gemm, Matrix};
use super::matmul::{elements, read_matrix};
use super::norm::{exp_row, for_real, max_of};
use super::scratch::{Buffer, Needs, Scratch};
use super::strided::{Odometer, Reader, Strided, Writer};

/// Rows of `q` in a block.
pub(super) const ROWS: usize = 64;
/// Rows of `k` and `v` in a block.
pub(super) const COLUMNS: usize = 256;

/// The attributes of an attention; what bounds add is constant.
pub(super) struct Scores<'a> {
    pub scale: f64,
    pub cap: Option<f64>,
    pub bounds: &'a [Bound],
    pub sink: bool,
}

/// The extents of one head, in the letters of [`symmc_ir::Op::Attention`].
#[derive(Clone, Copy)]
pub(super) struct Head {
    pub l: usize,
    pub s: usize,
    pub e: usize,
    pub f: usize,
    pub scale: f64,
    pub cap: Option<f64>,
}

pub(super) fn attention(
    scores: &Scores<'_>,
    operands: &[Strided],
    results: &[Strided],
    scratch: &mut Scratch,
) -> Result<()> {
    let o = &parts(scores, operands)?;
    let (result, sums) = (&results[0], results.get(1));
    let (head, group) = check(scores, o, result)?;
    if let Some(sums) = sums {
        check_sums(o, sums)?;
    }
    let limits = limits(scores.bounds, o, scratch)?;
    let sinks = match o.sink {
        None => None,
        Some(x) => {
            let mut rows = o.q.shape();
            rows[o.q.rank() - 1] = 1;
            let x = x.broadcast(&rows)?;
            let mut all = scratch.take::<f64>(x.numel());
            Reader::new(&x).fill(&mut all);
            Some(all)
        }
    };
    let hidden = Hidden { limits: &limits, sinks: sinks.as_deref() };
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
        &split(sums.unwrap_or(o.q))[..],
    ]);
    let inner = |v: &Strided| v.with_axes(v.axes[batch..].iter().copied());
    let (q, k, v, r) = (inner(o.q), inner(o.k), inner(o.v), inner(result));
    let (mask, sums) = (mask.map(inner), sums.map(inner));
    let mut first_head = 0;
    while let Some([qo, ko, vo, ro, mo, so]) = positions.next() {
        let mask = mask.as_ref().map(|m| m.at(mo));
        let sums = sums.as_ref().map(|s| s.at(so));
        for kv in 0..k.n(0) {
            let at = |v: &Strided, offset: isize, head: usize| pick(&v.at(offset), head);
            let (k, v) = (at(&k, ko, kv), at(&v, vo, kv));
            let heads: Vec<_> = (kv * group..(kv + 1) * group)
                .map(|h| QueryHead {
                    q: at(&q, qo, h),
                    result: at(&r, ro, h),
                    mask: mask.as_ref().map(|m| pick(m, h)),
                    sums: sums.as_ref().map(|s| pick(s, h)),
                    first_row: (first_head + h) * head.l,
                })
                .collect();
            for_real!(o.q.dtype, R => run_heads::<R>(head, &heads, &hidden, &k, &v, scratch));
        }
        first_head += q.n(0);
    }
    limits.into_iter().filter_map(|l| l.positions).for_each(|p| scratch.give(p));
    sinks.into_iter().for_each(|s| scratch.give(s));
    Ok(())
}

/// The operands by what they are.
pub(super) fn parts<'a>(scores: &Scores<'_>, operands: &'a [Strided]) -> Result<Operands<'a, Strided>> {
    Operands::of(scores.bounds, scores.sink, operands).ok_or_else(|| KernelError::Arity {
        op: "attention".into(),
        expected: format!(
            "q, k, v, a mask or none, {} positions, and a sink: {}",
            symmc_ir::attention::positions(scores.bounds),
            scores.sink
        ),
        found: format!("{} operands", operands.len()),
    })
}

/// Checks the type of the log-sum-exp.
pub(super) fn check_sums(o: &Operands<'_, Strided>, sums: &Strided) -> Result<()> {
    let (q, found) = (o.q.shape(), sums.shape());
    let expected = &q[..q.len() - 1];
    if sums.dtype == o.q.dtype.wide() && found[..] == *expected {
        return Ok(());
    }
    let what = "the log-sum-exp of attention".into();
    let expected = format!("{}{expected:?}", o.q.dtype.wide());
    Err(KernelError::Shape { what, expected, found: format!("{}{found:?}", sums.dtype) })
}

/// What is known of the rows of all heads beside their scores.
struct Hidden<'a> {
    /// Which columns each sees.
    limits: &'a [Limit<'a>],
    /// One more score of each.
    sinks: Option<&'a [f64]>,
}

pub(super) struct Limit<'a> {
    bound: &'a Bound,
    add: i64,
    /// The operand at each row of all heads.
    pub positions: Option<Buffer<i64>>,
}

impl Limit<'_> {
    /// The limit of row `i` of a head whose first row is `first` of all rows.
    pub fn of(&self, first: usize, i: usize) -> (Side, i64) {
        let position = self.positions.as_ref().map_or(0, |p| p[first + i]);
        (self.bound.side, self.bound.limit(i, self.add, position))
    }
}

pub(super) fn limits<'a>(
    bounds: &'a [Bound],
    o: &Operands<'_, Strided>,
    scratch: &mut Scratch,
) -> Result<Vec<Limit<'a>>> {
    let mut rows = o.q.shape();
    if let Some(columns) = rows.last_mut() {
        *columns = 1;
    }
    let mut operands = o.positions.iter();
    let mut out = Vec::with_capacity(bounds.len());
    for bound in bounds {
        let open = || KernelError::Shape {
            what: "a bound of attention".into(),
            expected: "a position of known size".into(),
            found: format!("{:?}", bound.add),
        };
        let add = bound.add.as_const().ok_or_else(open)?;
        let operand = if bound.operand { operands.next() } else { None };
        let positions = match operand {
            None => None,
            Some(x) => {
                let x = x.broadcast(&rows)?;
                let mut all = scratch.take::<i64>(x.numel());
                Reader::new(&x).fill(&mut all);
                Some(all)
            }
        };
        out.push(Limit { bound, add, positions });
    }
    Ok(out)
}

/// A head of `q` with its result and mask.
struct QueryHead {
    q: Strided,
    result: Strided,
    mask: Option<Strided>,
    /// Where the log-sum-exp of its rows goes, if that is wanted.
    sums: Option<Strided>,
    /// The number of its first row among the rows of all heads.
    first_row: usize,
}

/// Element `index` of the first axis.
pub(super) fn pick(v: &Strided, index: usize) -> Strided {
    v.cut(0, index, 1).with_axes(v.axes[1..].iter().copied())
}

/// Checks the shapes; gives the extents of a head and the number of query heads for each head of `k`.
pub(super) fn check(
    scores: &Scores<'_>,
    o: &Operands<'_, Strided>,
    result: &Strided,
) -> Result<(Head, usize)> {
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
    let &Scores { scale, cap, .. } = scores;
    let head = Head { l: q[r - 2], s: k[r - 2], e: q[r - 1], f: v[r - 1], scale, cap };
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
pub(super) fn as_matrix<R: Gemm>(v: &Strided, scratch: &mut Scratch) -> (Matrix<R>, Option<Buffer<R>>) {
    if v.dtype == R::DTYPE {
        return (elements(v), None);
    }
    let mut buffer = scratch.take::<R>(v.numel());
    (read_matrix(v, &mut buffer), Some(buffer))
}

/// The buffers of the heads that share one head of `k` and `v`, by the extents in the order of [`Head`].
pub(super) fn needs(dtype: DType, [l, s, e, f]: [usize; 4], out: &mut Needs) {
    for_real!(dtype, R => {
        if dtype != <R as super::element::Number>::DTYPE {
            [s * e, s * f, ROWS.min(l) * e].into_iter().for_each(|n| out.add::<R>(n));
        }
        [ROWS * COLUMNS, ROWS * COLUMNS, ROWS * f].into_iter().for_each(|n| out.add::<R>(n));
    });
}

/// The query heads that share one head of `k` and `v`.
fn run_heads<R: Gemm>(
    head: Head,
    heads: &[QueryHead],
    hidden: &Hidden<'_>,
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
        visible: std::array::from_fn(|_| 0..0),
    };
    for one in heads {
        for first in (0..head.l).step_by(ROWS) {
            let n = ROWS.min(head.l - first);
            let (queries, buffer) = as_matrix::<R>(&one.q.cut(0, first, n), scratch);
            for (i, seen) in rows.visible[..n].iter_mut().enumerate() {
                *seen = visible(hidden.limits.iter().map(|l| l.of(one.first_row, first + i)), head.s);
            }
            let sinks = hidden.sinks.and_then(|s| s.get(one.first_row + first..one.first_row + first + n));
            rows.begin(n, sinks);
            rows.run(queries, first, n, one.mask.as_ref());
            Writer::new(&one.result.cut(0, first, n)).put(&rows.sums[..n * head.f]);
            if let Some(sums) = &one.sums {
                Writer::new(&sums.cut(0, first, n)).put(&rows.log_sum_exp()[..n]);
            }
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
    /// The columns that the bounds leave to each row.
    visible: [Range<usize>; ROWS],
}

impl<R: Gemm> Rows<R> {
    /// Sets `m` rows to what they are before any column: a sink is a score whose value is zero.
    fn begin(&mut self, m: usize, sinks: Option<&[f64]>) {
        self.sums[..m * self.head.f].fill(R::ZERO);
        self.max = [R::NEG_INFINITY; ROWS];
        self.total = [0.0; ROWS];
        let sinks = sinks.unwrap_or_default().iter().enumerate();
        for (i, &sink) in sinks.filter(|s| *s.1 != f64::NEG_INFINITY) {
            (self.max[i], self.total[i]) = (R::of(sink), 1.0);
        }
    }

    /// The log-sum-exp of each row: minus infinity where nothing is seen.
    fn log_sum_exp(&self) -> [R; ROWS] {
        std::array::from_fn(|i| match self.total[i] == 0.0 {
            true => R::NEG_INFINITY,
            false => R::of(self.max[i].wide() + self.total[i].ln()),
        })
    }

    /// Leaves the attention of rows `first..first + m`, which have begun, in `sums`.
    fn run(&mut self, queries: Matrix<R>, first: usize, m: usize, mask: Option<&Strided>) {
        let Head { e, f, scale, cap, .. } = self.head;
        let seen = self.visible[..m].iter().filter(|r| !r.is_empty());
        let seen = seen.cloned().reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0);
        for start in seen.clone().step_by(COLUMNS) {
            let n = COLUMNS.min(seen.end - start);
            let scores = Matrix::dense(self.scores.as_mut_ptr(), n);
            let keys = self.keys.at(start, 0).transposed();
            // SAFETY: the matrices hold these rows, and `scores` is a buffer of its own.
            unsafe { R::gemm(Extents { m, k: e, n }, R::of(scale), queries, keys, R::ZERO, scores) };
            if let Some(cap) = cap {
                let scores = self.scores[..m * n].iter_mut();
                scores.for_each(|x| *x = R::of(cap) * (*x / R::of(cap)).tanh());
            }
            if let Some(mask) = mask {
                self.apply_mask(&mask.cut(0, first, m).cut(1, start, n), m * n);
            }
            for i in 0..m {
                self.weigh(i, start, n);
            }
            if !self.finite {
                self.add_seen(m, start, n, mask.is_some_and(|mask| mask.dtype == DType::Bool));
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
            if self.total[i] == 0.0 { row.fill(R::ZERO) } else { row.iter_mut().for_each(|x| *x *= scale) }
        }
    }

    /// Adds the weighted rows `start..start + n` of `v` to the `m` rows, without what these do not see: a weight of 0
    /// does not hide an infinite value. `masked` says that the mask is of bools.
    fn add_seen(&mut self, m: usize, start: usize, n: usize, masked: bool) {
        let f = self.head.f;
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            let hidden = !self.visible[i].contains(&(start + j)) || masked && self.mask[i * n + j] == R::ZERO;
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

    /// Turns the scores of row `i` at the columns `start..start + n` into weights, of which those count that the row
    /// sees, and rescales what the row has accumulated.
    fn weigh(&mut self, i: usize, start: usize, n: usize) {
        let f = self.head.f;
        let column = |at: usize| at.saturating_sub(start).min(n);
        let (from, below) = (column(self.visible[i].start), column(self.visible[i].end));
        let scores = &mut self.scores[i * n..(i + 1) * n];
        scores[..from].fill(R::ZERO);
        scores[below..].fill(R::ZERO);
        let row = &mut scores[from..below];
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
