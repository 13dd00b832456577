//! Scaled dot-product attention without the matrix of scores.
//!
//! For each head, blocks of rows of `q` are combined with blocks of rows of `k` and `v`. The running maximum
//! and sum of each row rescale the earlier sums (online softmax: Milakov and Gimelshein, 2018; blocked as in
//! FlashAttention, Dao et al., 2022). Scores, weights and sums are f32 (f64 for f64); the result is rounded
//! once. A column that a row does not see adds nothing to it, even if `v` is infinite or NaN there. The
//! columns that the bounds leave to a row form an interval, so blocks of `k` and `v` that no row of a block
//! sees are skipped.

use std::ops::Range;

use symmc_ir::attention::{AttentionBound, AttentionOperands, visible_columns};
use symmc_ir::{BoundSide, DType};

use super::error::{KernelError, Result};
use super::gemm::{GemmExtents, GemmMatrix, GemmNumber};
use super::matmul::{as_matrix, read_matrix};
use super::norm::{exp_row, for_real, row_max};
use super::scratch::{Scratch, ScratchBuffer, ScratchNeeds};
use super::strided::{Odometer, StridedReader, StridedView, StridedWriter};

/// Rows of `q` in a block.
pub(super) const ROWS: usize = 64;
/// Rows of `k` and `v` in a block.
pub(super) const COLUMNS: usize = 256;

/// The attributes of an attention. The added offsets of the bounds are constants.
pub(super) struct AttentionParams<'a> {
    pub scale: f64,
    pub cap: Option<f64>,
    pub bounds: &'a [AttentionBound],
    pub sink: bool,
}

/// The extents of one head, with the letters of [`symmc_ir::Op::Attention`].
#[derive(Clone, Copy)]
pub(super) struct HeadShape {
    pub l: usize,
    pub s: usize,
    pub e: usize,
    pub f: usize,
    pub scale: f64,
    pub cap: Option<f64>,
}

pub(super) fn attention(
    scores: &AttentionParams<'_>,
    operands: &[StridedView],
    results: &[StridedView],
    scratch: &mut Scratch,
) -> Result<()> {
    let o = &attention_operands(scores, operands)?;
    let result = &results[0];
    let sums = results.get(1);
    let (head, group) = check_shapes(scores, o, result)?;
    if let Some(sums) = sums {
        check_log_sum_exp(o, sums)?;
    }
    let limits = column_limits(scores.bounds, o, scratch)?;
    let sinks = match o.sink {
        None => None,
        Some(x) => {
            let mut rows = o.q.shape();
            rows[o.q.rank() - 1] = 1;
            let x = x.broadcast(&rows)?;
            let mut elements = scratch.allocate::<f64>(x.numel());
            StridedReader::new(&x).read_next(&mut elements);
            Some(elements)
        }
    };
    let hidden = RowVisibility { limits: &limits, sinks: sinks.as_deref() };
    let rank = o.q.rank();
    let mut scores = o.q.shape();
    scores[rank - 1] = head.s;
    let mask = o.mask.map(|m| m.broadcast(&scores)).transpose()?;
    let mask = mask.as_ref();
    // Heads are the last of the outer axes: query heads as [g, h / g].
    let batch = rank - 3;
    let mut positions = Odometer::new([
        &o.q.axes[..batch],
        &o.k.axes[..batch],
        &o.v.axes[..batch],
        &result.axes[..batch],
        &mask.unwrap_or(o.q).axes[..batch],
        &sums.unwrap_or(o.q).axes[..batch],
    ]);
    let q = without_leading_axes(o.q, batch);
    let k = without_leading_axes(o.k, batch);
    let v = without_leading_axes(o.v, batch);
    let r = without_leading_axes(result, batch);
    let mask = mask.map(|mask| without_leading_axes(mask, batch));
    let sums = sums.map(|sums| without_leading_axes(sums, batch));
    let mut first_head = 0;
    while let Some([qo, ko, vo, ro, mo, so]) = positions.next() {
        let mask = mask.as_ref().map(|m| m.with_offset(mo));
        let sums = sums.as_ref().map(|s| s.with_offset(so));
        for kv in 0..k.axis_len(0) {
            let k = select_leading(&k.with_offset(ko), kv);
            let v = select_leading(&v.with_offset(vo), kv);
            let heads: Vec<_> = (kv * group..(kv + 1) * group)
                .map(|h| AttentionQueryHead {
                    q: select_leading(&q.with_offset(qo), h),
                    result: select_leading(&r.with_offset(ro), h),
                    mask: mask.as_ref().map(|m| select_leading(m, h)),
                    sums: sums.as_ref().map(|s| select_leading(s, h)),
                    first_row: (first_head + h) * head.l,
                })
                .collect();
            for_real!(o.q.dtype, R => run_heads::<R>(head, &heads, &hidden, &k, &v, scratch));
        }
        first_head += q.axis_len(0);
    }
    limits.into_iter().filter_map(|l| l.positions).for_each(|p| scratch.return_buffer(p));
    sinks.into_iter().for_each(|s| scratch.return_buffer(s));
    Ok(())
}

/// The operands by role.
pub(super) fn attention_operands<'a>(
    scores: &AttentionParams<'_>,
    operands: &'a [StridedView],
) -> Result<AttentionOperands<'a, StridedView>> {
    AttentionOperands::from_operands(scores.bounds, scores.sink, operands).ok_or_else(|| KernelError::Arity {
        op: "attention".into(),
        expected: format!(
            "q, k, v, a mask or none, {} positions, and a sink: {}",
            symmc_ir::attention::position_operand_count(scores.bounds),
            scores.sink
        ),
        found: format!("{} operands", operands.len()),
    })
}

/// Checks the type of the log-sum-exp.
pub(super) fn check_log_sum_exp(o: &AttentionOperands<'_, StridedView>, sums: &StridedView) -> Result<()> {
    let q = o.q.shape();
    let shape = sums.shape();
    let expected = &q[..q.len() - 1];
    if sums.dtype == o.q.dtype.compute_dtype() && shape[..] == *expected {
        return Ok(());
    }
    Err(KernelError::Shape {
        what: "the log-sum-exp of attention".into(),
        expected: format!("{}{expected:?}", o.q.dtype.compute_dtype()),
        found: format!("{}{shape:?}", sums.dtype),
    })
}

/// Properties of the rows of all heads in addition to their scores.
struct RowVisibility<'a> {
    /// The columns that each row sees.
    limits: &'a [ColumnLimit<'a>],
    /// One more score of each row.
    sinks: Option<&'a [f64]>,
}

pub(super) struct ColumnLimit<'a> {
    bound: &'a AttentionBound,
    add: i64,
    /// The operand at each row of all heads.
    pub positions: Option<ScratchBuffer<i64>>,
}

impl ColumnLimit<'_> {
    /// The limit of row `i` of a head; `first` is the head's first row among all rows.
    pub fn limit_of_row(&self, first: usize, i: usize) -> (BoundSide, i64) {
        let position = self.positions.as_ref().map_or(0, |p| p[first + i]);
        (self.bound.side, self.bound.limit(i, self.add, position))
    }
}

pub(super) fn column_limits<'a>(
    bounds: &'a [AttentionBound],
    o: &AttentionOperands<'_, StridedView>,
    scratch: &mut Scratch,
) -> Result<Vec<ColumnLimit<'a>>> {
    let mut rows = o.q.shape();
    if let Some(columns) = rows.last_mut() {
        *columns = 1;
    }
    let mut operands = o.positions.iter();
    let mut out = Vec::with_capacity(bounds.len());
    for bound in bounds {
        let add = bound.add.as_const().ok_or_else(|| KernelError::Shape {
            what: "a bound of attention".into(),
            expected: "a position of known size".into(),
            found: format!("{:?}", bound.add),
        })?;
        let operand = if bound.operand { operands.next() } else { None };
        let positions = match operand {
            None => None,
            Some(x) => {
                let x = x.broadcast(&rows)?;
                let mut elements = scratch.allocate::<i64>(x.numel());
                StridedReader::new(&x).read_next(&mut elements);
                Some(elements)
            }
        };
        out.push(ColumnLimit { bound, add, positions });
    }
    Ok(out)
}

/// A head of `q` with its result and mask.
struct AttentionQueryHead {
    q: StridedView,
    result: StridedView,
    mask: Option<StridedView>,
    /// The destination of the log-sum-exp of its rows, if it is requested.
    sums: Option<StridedView>,
    /// The number of its first row among the rows of all heads.
    first_row: usize,
}

fn without_leading_axes(v: &StridedView, count: usize) -> StridedView {
    v.with_axes(v.axes[count..].iter().copied())
}

/// Element `index` of the first axis.
pub(super) fn select_leading(v: &StridedView, index: usize) -> StridedView {
    v.slice_axis(0, index, 1).with_axes(v.axes[1..].iter().copied())
}

/// Checks the shapes; returns the extents of a head and the number of query heads for each head of `k`.
pub(super) fn check_shapes(
    scores: &AttentionParams<'_>,
    o: &AttentionOperands<'_, StridedView>,
    result: &StridedView,
) -> Result<(HeadShape, usize)> {
    let q = o.q.shape();
    let k = o.k.shape();
    let v = o.v.shape();
    let r = q.len();
    if r < 3
        || k.len() != r
        || v.len() != r
        || [o.k.dtype, o.v.dtype, result.dtype].iter().any(|&d| d != o.q.dtype)
    {
        return Err(attention_shape_error(o, result));
    }
    let &AttentionParams { scale, cap, .. } = scores;
    let head = HeadShape { l: q[r - 2], s: k[r - 2], e: q[r - 1], f: v[r - 1], scale, cap };
    let mut expected = q.clone();
    expected[r - 1] = head.f;
    let fits = q[..r - 3] == k[..r - 3]
        && q[..r - 3] == v[..r - 3]
        && k[r - 3] == v[r - 3]
        && k[r - 1] == head.e
        && v[r - 2] == head.s
        && result.shape() == expected;
    let h = q[r - 3];
    let g = k[r - 3];
    if !fits || (h != 0 && h.checked_rem(g) != Some(0)) {
        return Err(attention_shape_error(o, result));
    }
    Ok((head, h.checked_div(g).unwrap_or(0)))
}

fn attention_shape_error(o: &AttentionOperands<'_, StridedView>, result: &StridedView) -> KernelError {
    let q = o.q.shape();
    let k = o.k.shape();
    let v = o.v.shape();
    KernelError::Shape {
        what: "attention".into(),
        expected: "q [.., h, l, e], k [.., g, s, e], v [.., g, s, f] for [.., h, l, f]".into(),
        found: format!("{q:?}, {k:?}, {v:?} for {:?}", result.shape()),
    }
}

/// A view as a matrix of `R`: in place, or converted into a buffer.
pub(super) fn as_gemm_matrix<R: GemmNumber>(
    v: &StridedView,
    scratch: &mut Scratch,
) -> (GemmMatrix<R>, Option<ScratchBuffer<R>>) {
    if v.dtype == R::DTYPE {
        return (as_matrix(v), None);
    }
    let mut buffer = scratch.allocate::<R>(v.numel());
    (read_matrix(v, &mut buffer), Some(buffer))
}

/// The buffers of the heads that share one head of `k` and `v`, by the extents in the order of [`HeadShape`].
pub(super) fn add_head_needs(dtype: DType, [l, s, e, f]: [usize; 4], out: &mut ScratchNeeds) {
    for_real!(dtype, R => {
        if dtype != <R as super::element::ComputeNumber>::DTYPE {
            [s * e, s * f, ROWS.min(l) * e].into_iter().for_each(|n| out.add::<R>(n));
        }
        [ROWS * COLUMNS, ROWS * COLUMNS, ROWS * f].into_iter().for_each(|n| out.add::<R>(n));
    });
}

/// Computes the query heads that share one head of `k` and `v`.
fn run_heads<R: GemmNumber>(
    head: HeadShape,
    heads: &[AttentionQueryHead],
    hidden: &RowVisibility<'_>,
    k: &StridedView,
    v: &StridedView,
    scratch: &mut Scratch,
) {
    let (keys, keys_buffer) = as_gemm_matrix::<R>(k, scratch);
    let (values, values_buffer) = as_gemm_matrix::<R>(v, scratch);
    // SAFETY: the matrix holds these rows.
    let finite = unsafe { all_finite(values, head) };
    let mut rows = AttentionRows {
        head,
        keys,
        values,
        finite,
        scores: scratch.allocate(ROWS * COLUMNS),
        mask: scratch.allocate(ROWS * COLUMNS),
        sums: scratch.allocate(ROWS * head.f),
        max: [R::NEG_INFINITY; ROWS],
        total: [0.0; ROWS],
        visible: std::array::from_fn(|_| 0..0),
    };
    for one in heads {
        for first in (0..head.l).step_by(ROWS) {
            let n = ROWS.min(head.l - first);
            let (queries, buffer) = as_gemm_matrix::<R>(&one.q.slice_axis(0, first, n), scratch);
            for (i, columns) in rows.visible[..n].iter_mut().enumerate() {
                *columns = visible_columns(
                    hidden.limits.iter().map(|l| l.limit_of_row(one.first_row, first + i)),
                    head.s,
                );
            }
            let sinks = hidden.sinks.and_then(|s| s.get(one.first_row + first..one.first_row + first + n));
            rows.begin_rows(n, sinks);
            rows.attend_rows(queries, first, n, one.mask.as_ref());
            StridedWriter::new(&one.result.slice_axis(0, first, n)).write_next(&rows.sums[..n * head.f]);
            if let Some(sums) = &one.sums {
                StridedWriter::new(&sums.slice_axis(0, first, n)).write_next(&rows.log_sum_exp()[..n]);
            }
            buffer.into_iter().for_each(|b| scratch.return_buffer(b));
        }
    }
    let AttentionRows { scores, mask, sums, .. } = rows;
    for buffer in [keys_buffer, values_buffer].into_iter().flatten().chain([scores, mask, sums]) {
        scratch.return_buffer(buffer);
    }
}

/// Whether all elements of `v` are finite.
///
/// # Safety
/// The matrix holds the rows of `v` of this head.
unsafe fn all_finite<R: GemmNumber>(values: GemmMatrix<R>, head: HeadShape) -> bool {
    (0..head.s).all(|row| {
        // SAFETY: by the caller.
        (0..head.f).all(|column| unsafe { *values.element_at(row, column).ptr }.is_finite())
    })
}

/// A block of rows and its state while all blocks of `k` and `v` are processed.
struct AttentionRows<R> {
    head: HeadShape,
    keys: GemmMatrix<R>,
    values: GemmMatrix<R>,
    /// Whether all values are finite, so that a weight of 0 removes them.
    finite: bool,
    scores: ScratchBuffer<R>,
    mask: ScratchBuffer<R>,
    /// The weighted sums of the rows of `v`, scaled for the maximum so far.
    sums: ScratchBuffer<R>,
    max: [R; ROWS],
    /// The sums of the weights, scaled in the same way.
    total: [f64; ROWS],
    /// The columns that the bounds leave to each row.
    visible: [Range<usize>; ROWS],
}

impl<R: GemmNumber> AttentionRows<R> {
    /// Initialises `m` rows to the state before any column: a sink is a score whose value is zero.
    fn begin_rows(&mut self, m: usize, sinks: Option<&[f64]>) {
        self.sums[..m * self.head.f].fill(R::ZERO);
        self.max = [R::NEG_INFINITY; ROWS];
        self.total = [0.0; ROWS];
        let sinks = sinks.unwrap_or_default().iter().enumerate();
        for (i, &sink) in sinks.filter(|s| *s.1 != f64::NEG_INFINITY) {
            (self.max[i], self.total[i]) = (R::of(sink), 1.0);
        }
    }

    /// The log-sum-exp of each row: minus infinity if the row sees nothing.
    fn log_sum_exp(&self) -> [R; ROWS] {
        std::array::from_fn(|i| {
            if self.total[i] == 0.0 {
                return R::NEG_INFINITY;
            }
            R::of(self.max[i].wide() + self.total[i].ln())
        })
    }

    /// Computes the attention of rows `first..first + m`, which must have begun, in `sums`.
    fn attend_rows(&mut self, queries: GemmMatrix<R>, first: usize, m: usize, mask: Option<&StridedView>) {
        let HeadShape { e, f, scale, cap, .. } = self.head;
        let columns = self.visible[..m].iter().filter(|r| !r.is_empty());
        let columns = columns.cloned().reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0);
        for start in columns.clone().step_by(COLUMNS) {
            let n = COLUMNS.min(columns.end - start);
            let scores = GemmMatrix::dense(self.scores.as_mut_ptr(), n);
            let keys = self.keys.element_at(start, 0).transposed();
            // SAFETY: the matrices hold these rows, and `scores` is a separate buffer.
            unsafe { R::gemm(GemmExtents { m, k: e, n }, R::of(scale), queries, keys, R::ZERO, scores) };
            if let Some(cap) = cap {
                let scores = self.scores[..m * n].iter_mut();
                scores.for_each(|x| *x = R::of(cap) * (*x / R::of(cap)).tanh());
            }
            if let Some(mask) = mask {
                self.apply_mask(&mask.slice_axis(0, first, m).slice_axis(1, start, n), m * n);
            }
            for i in 0..m {
                self.weigh_row(i, start, n);
            }
            if !self.finite {
                self.add_visible_columns(m, start, n, mask.is_some_and(|mask| mask.dtype == DType::Bool));
                continue;
            }
            let sums = GemmMatrix::dense(self.sums.as_mut_ptr(), f);
            let values = self.values.element_at(start, 0);
            // SAFETY: as above; `sums` is a separate buffer.
            unsafe { R::gemm(GemmExtents { m, k: n, n: f }, R::ONE, scores, values, R::ONE, sums) };
        }
        for i in 0..m {
            let row = &mut self.sums[i * f..(i + 1) * f];
            let scale = R::of(1.0 / self.total[i]);
            if self.total[i] == 0.0 { row.fill(R::ZERO) } else { row.iter_mut().for_each(|x| *x *= scale) }
        }
    }

    /// Adds the weighted rows `start..start + n` of `v` to the `m` rows, except columns that a row does not
    /// see: a weight of 0 does not hide an infinite value. `masked` says that the mask is of bools.
    fn add_visible_columns(&mut self, m: usize, start: usize, n: usize, masked: bool) {
        let f = self.head.f;
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            let hidden = !self.visible[i].contains(&(start + j)) || masked && self.mask[i * n + j] == R::ZERO;
            if hidden {
                continue;
            }
            let weight = self.scores[i * n + j];
            for (column, sum) in self.sums[i * f..(i + 1) * f].iter_mut().enumerate() {
                // SAFETY: the matrix holds the row of `v`, and its columns are those of the sums.
                *sum += weight * unsafe { *self.values.element_at(start + j, column).ptr };
            }
        }
    }

    fn apply_mask(&mut self, mask: &StridedView, n: usize) {
        let values = &mut self.mask[..n];
        StridedReader::<R>::new(mask).read_next(values);
        let scores = self.scores[..n].iter_mut().zip(values);
        if mask.dtype == DType::Bool {
            scores.for_each(|(s, m)| *s = if *m == R::ZERO { R::NEG_INFINITY } else { *s });
        } else {
            scores.for_each(|(s, m)| *s += *m);
        }
    }

    /// Turns the scores of row `i` at the columns `start..start + n` into weights of the columns that the row
    /// sees, and rescales the earlier sums of the row.
    fn weigh_row(&mut self, i: usize, start: usize, n: usize) {
        let f = self.head.f;
        let from = self.visible[i].start.saturating_sub(start).min(n);
        let below = self.visible[i].end.saturating_sub(start).min(n);
        let scores = &mut self.scores[i * n..(i + 1) * n];
        scores[..from].fill(R::ZERO);
        scores[below..].fill(R::ZERO);
        let row = &mut scores[from..below];
        let max = row_max::<R>(row).max_nan(self.max[i]);
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
