//! The gradients of attention, without the matrix of scores.
//!
//! For each head of keys, blocks of rows of the query heads that share it are combined with blocks of
//! columns. Weights are recomputed from the log-sum-exp of each row (FlashAttention-2, Dao, 2023). The
//! gradients of keys and values are accumulated in f32 (f64 for f64) over all rows of the head, and the
//! gradient of the queries over all columns of a block of rows. Each is rounded once.

use std::ops::Range;

use symmc_ir::DType;
use symmc_ir::attention::{AttentionOperands, visible_columns};

use super::attention::{
    AttentionParams, COLUMNS, ColumnLimit, HeadShape, ROWS, as_gemm_matrix, attention_operands,
    check_log_sum_exp, check_shapes, column_limits, select_leading,
};
use super::error::{KernelError, Result};
use super::gemm::{GemmExtents, GemmMatrix, GemmNumber};
use super::norm::for_real;
use super::scratch::{Scratch, ScratchBuffer, ScratchNeeds};
use super::strided::{Odometer, StridedReader, StridedView, StridedWriter};

/// Operands: the gradient of the result, the result, the log-sum-exp, then the operands of the attention.
/// Results: the gradients of queries, keys and values.
pub(super) fn attention_gradient(
    scores: &AttentionParams<'_>,
    operands: &[StridedView],
    results: &[StridedView],
    scratch: &mut Scratch,
) -> Result<()> {
    let gradients = results.first_chunk::<3>();
    let Some(((of_result, forward), [dq, dk, dv])) = operands.split_first_chunk::<3>().zip(gradients) else {
        return Err(KernelError::Arity {
            op: "attention_gradient".into(),
            expected:
                "the gradient of the result, the result, the log-sum-exp, and the operands of attention"
                    .into(),
            found: format!("{} operands and {} results", operands.len(), results.len()),
        });
    };
    let o = &attention_operands(scores, forward)?;
    let (head, group) = check_gradient_shapes(scores, o, of_result, [dq, dk, dv])?;
    let limits = column_limits(scores.bounds, o, scratch)?;
    let rank = o.q.rank();
    let mut of_scores = o.q.shape();
    of_scores[rank - 1] = head.s;
    let mask = o.mask.map(|m| m.broadcast(&of_scores)).transpose()?;
    // Heads are the last of the outer axes.
    let batch = rank - 3;
    let [gradient, result, sums] = of_result;
    let views = [o.q, gradient, result, sums, dq, mask.as_ref().unwrap_or(o.q), o.k, o.v, dk, dv];
    let outer: [Vec<_>; 10] = views.map(|v| v.axes[..batch].to_vec());
    let inner = views.map(|v| v.with_axes(v.axes[batch..].iter().copied()));
    let mut positions = Odometer::new([0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(|i| &outer[i][..]));
    let mut first_head = 0;
    while let Some(offsets) = positions.next() {
        let head_view =
            |operand: usize, head: usize| select_leading(&inner[operand].with_offset(offsets[operand]), head);
        for kv in 0..o.k.axis_len(batch) {
            let heads: Vec<_> = (kv * group..(kv + 1) * group)
                .map(|h| GradientQueryHead {
                    q: head_view(0, h),
                    gradient: head_view(1, h),
                    result: head_view(2, h),
                    sums: head_view(3, h),
                    q_gradient: head_view(4, h),
                    mask: mask.as_ref().map(|_| head_view(5, h)),
                    first_row: (first_head + h) * head.l,
                })
                .collect();
            let of_keys = GradientKeyHead {
                k: head_view(6, kv),
                v: head_view(7, kv),
                k_gradient: head_view(8, kv),
                v_gradient: head_view(9, kv),
            };
            for_real!(o.q.dtype, R => run_heads::<R>(head, &heads, &of_keys, &limits, scratch));
        }
        first_head += o.q.axis_len(batch);
    }
    limits.into_iter().filter_map(|l| l.positions).for_each(|p| scratch.return_buffer(p));
    Ok(())
}

/// Checks all shapes; returns the extents of a head and the number of query heads for each head of keys.
fn check_gradient_shapes(
    scores: &AttentionParams<'_>,
    o: &AttentionOperands<'_, StridedView>,
    [gradient, result, sums]: &[StridedView; 3],
    gradients: [&StridedView; 3],
) -> Result<(HeadShape, usize)> {
    let extents = check_shapes(scores, o, result)?;
    check_shapes(scores, o, gradient)?;
    check_log_sum_exp(o, sums)?;
    for (actual, x) in gradients.into_iter().zip([o.q, o.k, o.v]) {
        if actual.dtype != x.dtype || actual.shape() != x.shape() {
            return Err(KernelError::shape_mismatch("a gradient of attention", &x.shape(), &actual.shape()));
        }
    }
    Ok(extents)
}

struct GradientQueryHead {
    q: StridedView,
    gradient: StridedView,
    result: StridedView,
    sums: StridedView,
    q_gradient: StridedView,
    mask: Option<StridedView>,
    /// The number of its first row among the rows of all heads.
    first_row: usize,
}

struct GradientKeyHead {
    k: StridedView,
    v: StridedView,
    k_gradient: StridedView,
    v_gradient: StridedView,
}

/// The buffers of the heads that share one head of keys, by the extents in the order of [`HeadShape`].
pub(super) fn add_gradient_needs(dtype: DType, [l, s, e, f]: [usize; 4], out: &mut ScratchNeeds) {
    for_real!(dtype, R => {
        let rows = ROWS.min(l);
        if dtype != <R as super::element::ComputeNumber>::DTYPE {
            [s * e, s * f, rows * e, rows * f].into_iter().for_each(|n| out.add::<R>(n));
        }
        [ROWS * COLUMNS; 3].into_iter().for_each(|n| out.add::<R>(n));
        [ROWS * f, ROWS * e, s * e, s * f].into_iter().for_each(|n| out.add::<R>(n));
    });
}

/// Computes the query heads that share one head of keys and values.
fn run_heads<R: GemmNumber>(
    head: HeadShape,
    heads: &[GradientQueryHead],
    of_keys: &GradientKeyHead,
    limits: &[ColumnLimit<'_>],
    scratch: &mut Scratch,
) {
    let (keys, keys_buffer) = as_gemm_matrix::<R>(&of_keys.k, scratch);
    let (values, values_buffer) = as_gemm_matrix::<R>(&of_keys.v, scratch);
    let mut rows = GradientRows {
        head,
        keys,
        values,
        weights: scratch.allocate(ROWS * COLUMNS),
        score_gradient: scratch.allocate(ROWS * COLUMNS),
        mask: scratch.allocate(ROWS * COLUMNS),
        result: scratch.allocate(ROWS * head.f),
        q_gradient: scratch.allocate(ROWS * head.e),
        k_gradient: scratch.allocate(head.s * head.e),
        v_gradient: scratch.allocate(head.s * head.f),
        sums: [R::ZERO; ROWS],
        means: [R::ZERO; ROWS],
        visible: std::array::from_fn(|_| 0..0),
    };
    rows.k_gradient.fill(R::ZERO);
    rows.v_gradient.fill(R::ZERO);
    for query in heads {
        for first in (0..head.l).step_by(ROWS) {
            let n = ROWS.min(head.l - first);
            let (queries, q_buffer) = as_gemm_matrix::<R>(&query.q.slice_axis(0, first, n), scratch);
            let (gradients, g_buffer) = as_gemm_matrix::<R>(&query.gradient.slice_axis(0, first, n), scratch);
            for (i, columns) in rows.visible[..n].iter_mut().enumerate() {
                *columns = visible_columns(
                    limits.iter().map(|l| l.limit_of_row(query.first_row, first + i)),
                    head.s,
                );
            }
            rows.begin_rows(query, gradients, first, n);
            let mask = query.mask.as_ref().map(|mask| mask.slice_axis(0, first, n));
            rows.accumulate_rows(queries, gradients, n, mask.as_ref());
            StridedWriter::new(&query.q_gradient.slice_axis(0, first, n))
                .write_next(&rows.q_gradient[..n * head.e]);
            [q_buffer, g_buffer].into_iter().flatten().for_each(|b| scratch.return_buffer(b));
        }
    }
    StridedWriter::new(&of_keys.k_gradient).write_next(&rows.k_gradient[..head.s * head.e]);
    StridedWriter::new(&of_keys.v_gradient).write_next(&rows.v_gradient[..head.s * head.f]);
    let GradientRows {
        weights,
        score_gradient: of_scores,
        mask,
        result,
        q_gradient: of_q,
        k_gradient: of_k,
        v_gradient: of_v,
        ..
    } = rows;
    let buffers = [weights, of_scores, mask, result, of_q, of_k, of_v];
    for buffer in [keys_buffer, values_buffer].into_iter().flatten().chain(buffers) {
        scratch.return_buffer(buffer);
    }
}

/// A block of rows and its state while all blocks of columns are processed.
struct GradientRows<R> {
    head: HeadShape,
    keys: GemmMatrix<R>,
    values: GemmMatrix<R>,
    weights: ScratchBuffer<R>,
    score_gradient: ScratchBuffer<R>,
    mask: ScratchBuffer<R>,
    result: ScratchBuffer<R>,
    /// The gradient of the queries of the block.
    q_gradient: ScratchBuffer<R>,
    /// The gradients of all keys and values of the head.
    k_gradient: ScratchBuffer<R>,
    v_gradient: ScratchBuffer<R>,
    /// The log-sum-exp of each row.
    sums: [R; ROWS],
    /// The sum of the gradient times the result of each row.
    means: [R; ROWS],
    /// The columns that the bounds leave to each row.
    visible: [Range<usize>; ROWS],
}

impl<R: GemmNumber> GradientRows<R> {
    /// Reads the log-sum-exp and the results of rows `first..first + m`.
    fn begin_rows(&mut self, query: &GradientQueryHead, gradients: GemmMatrix<R>, first: usize, m: usize) {
        let f = self.head.f;
        StridedReader::<R>::new(&query.sums.slice_axis(0, first, m)).read_next(&mut self.sums[..m]);
        StridedReader::<R>::new(&query.result.slice_axis(0, first, m)).read_next(&mut self.result[..m * f]);
        for i in 0..m {
            // SAFETY: the matrix holds the row, whose columns are those of the result.
            let products = (0..f)
                .map(|j| unsafe { *gradients.element_at(i, j).ptr }.wide() * self.result[i * f + j].wide());
            self.means[i] = R::of(products.sum());
            if self.sums[i] == R::NEG_INFINITY {
                self.visible[i] = 0..0;
            }
        }
        self.q_gradient[..m * self.head.e].fill(R::ZERO);
    }

    /// Adds the contributions of the `m` rows, which must have begun, to all gradients.
    fn accumulate_rows(
        &mut self,
        queries: GemmMatrix<R>,
        gradients: GemmMatrix<R>,
        m: usize,
        mask: Option<&StridedView>,
    ) {
        let HeadShape { e, f, scale, .. } = self.head;
        let columns = self.visible[..m].iter().filter(|r| !r.is_empty());
        let columns = columns.cloned().reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0);
        for start in columns.clone().step_by(COLUMNS) {
            let n = COLUMNS.min(columns.end - start);
            let weights = GemmMatrix::dense(self.weights.as_mut_ptr(), n);
            let of_scores = GemmMatrix::dense(self.score_gradient.as_mut_ptr(), n);
            let keys = self.keys.element_at(start, 0);
            let values = self.values.element_at(start, 0);
            // SAFETY: the matrices hold these rows, and the results are separate buffers.
            unsafe {
                R::gemm(
                    GemmExtents { m, k: e, n },
                    R::of(scale),
                    queries,
                    keys.transposed(),
                    R::ZERO,
                    weights,
                );
                R::gemm(
                    GemmExtents { m, k: f, n },
                    R::ONE,
                    gradients,
                    values.transposed(),
                    R::ZERO,
                    of_scores,
                );
            }
            if let Some(mask) = mask {
                StridedReader::<R>::new(&mask.slice_axis(1, start, n)).read_next(&mut self.mask[..m * n]);
            }
            for i in 0..m {
                self.weigh_row(i, start, n, mask.map(|mask| mask.dtype == DType::Bool));
            }
            let of_q = GemmMatrix::dense(self.q_gradient.as_mut_ptr(), e);
            let of_k = GemmMatrix::dense(self.k_gradient.as_mut_ptr(), e).element_at(start, 0);
            let of_v = GemmMatrix::dense(self.v_gradient.as_mut_ptr(), f).element_at(start, 0);
            // SAFETY: as above; rows `start..start + n` of the gradients exist.
            unsafe {
                R::gemm(GemmExtents { m, k: n, n: e }, R::ONE, of_scores, keys, R::ONE, of_q);
                let of_scores = of_scores.transposed();
                let weights = weights.transposed();
                R::gemm(GemmExtents { m: n, k: m, n: e }, R::ONE, of_scores, queries, R::ONE, of_k);
                R::gemm(GemmExtents { m: n, k: m, n: f }, R::ONE, weights, gradients, R::ONE, of_v);
            }
        }
    }

    /// Turns the scores of row `i` at the columns `start..start + n` into weights, and the gradients of the
    /// weights into those of the products of queries and keys. `masked` says whether there is a mask, and
    /// whether it is of bools.
    fn weigh_row(&mut self, i: usize, start: usize, n: usize, masked: Option<bool>) {
        let sum = self.sums[i];
        let mean = self.means[i];
        let scale = R::of(self.head.scale);
        let row = i * n..(i + 1) * n;
        let of_scores = &mut self.score_gradient[row.clone()];
        for (j, (weight, of_score)) in self.weights[row].iter_mut().zip(of_scores).enumerate() {
            let mask = self.mask[i * n + j];
            let hidden = !self.visible[i].contains(&(start + j)) || masked == Some(true) && mask == R::ZERO;
            if hidden {
                *weight = R::ZERO;
                *of_score = R::ZERO;
                continue;
            }
            let bias = if masked == Some(false) { mask } else { R::ZERO };
            *weight = (*weight + bias - sum).exp();
            *of_score = *weight * (*of_score - mean) * scale;
        }
    }
}
