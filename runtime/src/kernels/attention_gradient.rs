//! The gradients of attention, without the matrix of scores.
//!
//! For each head of keys, blocks of rows of the query heads that share it meet blocks of columns. Weights are computed again
//! from the log-sum-exp of each row (FlashAttention-2, Dao, 2023). The gradients of keys and values are accumulated in
//! f32 (f64 for f64) over all rows of the head, that of the queries over all columns of a block of rows; each is rounded once.

use std::ops::Range;

use symmc_ir::DType;
use symmc_ir::attention::{Operands, visible};

use super::attention::{
    COLUMNS, Head, Limit, ROWS, Scores, as_matrix, check, check_sums, limits, parts, pick,
};
use super::error::{KernelError, Result};
use super::gemm::{Extents, Gemm, Matrix};
use super::norm::for_real;
use super::scratch::{Buffer, Needs, Scratch};
use super::strided::{Odometer, Reader, Strided, Writer};

/// Operands: the gradient of the result, the result, the log-sum-exp, then those of the attention. Results: the gradients of
/// queries, keys and values.
pub(super) fn gradient(
    scores: &Scores<'_>,
    operands: &[Strided],
    results: &[Strided],
    scratch: &mut Scratch,
) -> Result<()> {
    let arity = || KernelError::Arity {
        op: "attention_gradient".into(),
        expected: "the gradient of the result, the result, the log-sum-exp, and the operands of attention"
            .into(),
        found: format!("{} operands and {} results", operands.len(), results.len()),
    };
    let (of_result, forward) = operands.split_first_chunk::<3>().ok_or_else(arity)?;
    let [dq, dk, dv] = results.first_chunk::<3>().ok_or_else(arity)?;
    let o = &parts(scores, forward)?;
    let (head, group) = check_all(scores, o, of_result, [dq, dk, dv])?;
    let limits = limits(scores.bounds, o, scratch)?;
    let rank = o.q.rank();
    let mut of_scores = o.q.shape();
    of_scores[rank - 1] = head.s;
    let mask = o.mask.map(|m| m.broadcast(&of_scores)).transpose()?;
    // Heads are the last of the outer axes.
    let batch = rank - 3;
    let [gradient, result, sums] = of_result;
    let all = [o.q, gradient, result, sums, dq, mask.as_ref().unwrap_or(o.q), o.k, o.v, dk, dv];
    let outer: [Vec<_>; 10] = all.map(|v| v.axes[..batch].to_vec());
    let inner = all.map(|v| v.with_axes(v.axes[batch..].iter().copied()));
    let mut positions = Odometer::new([0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(|i| &outer[i][..]));
    let mut first_head = 0;
    while let Some(offsets) = positions.next() {
        let at = |operand: usize, head: usize| pick(&inner[operand].at(offsets[operand]), head);
        for kv in 0..o.k.n(batch) {
            let heads: Vec<_> = (kv * group..(kv + 1) * group)
                .map(|h| QueryHead {
                    q: at(0, h),
                    gradient: at(1, h),
                    result: at(2, h),
                    sums: at(3, h),
                    of_q: at(4, h),
                    mask: mask.as_ref().map(|_| at(5, h)),
                    first_row: (first_head + h) * head.l,
                })
                .collect();
            let of_keys = KeyHead { k: at(6, kv), v: at(7, kv), of_k: at(8, kv), of_v: at(9, kv) };
            for_real!(o.q.dtype, R => run_heads::<R>(head, &heads, &of_keys, &limits, scratch));
        }
        first_head += o.q.n(batch);
    }
    limits.into_iter().filter_map(|l| l.positions).for_each(|p| scratch.give(p));
    Ok(())
}

/// Checks all shapes; gives the extents of a head and the number of query heads for each head of keys.
fn check_all(
    scores: &Scores<'_>,
    o: &Operands<'_, Strided>,
    [gradient, result, sums]: &[Strided; 3],
    gradients: [&Strided; 3],
) -> Result<(Head, usize)> {
    let found = check(scores, o, result)?;
    check(scores, o, gradient)?;
    check_sums(o, sums)?;
    for (of, x) in gradients.into_iter().zip([o.q, o.k, o.v]) {
        if of.dtype != x.dtype || of.shape() != x.shape() {
            return Err(KernelError::shape("a gradient of attention", &x.shape(), &of.shape()));
        }
    }
    Ok(found)
}

struct QueryHead {
    q: Strided,
    gradient: Strided,
    result: Strided,
    sums: Strided,
    of_q: Strided,
    mask: Option<Strided>,
    /// The number of its first row among the rows of all heads.
    first_row: usize,
}

struct KeyHead {
    k: Strided,
    v: Strided,
    of_k: Strided,
    of_v: Strided,
}

/// The buffers of the heads that share one head of keys, by the extents in the order of [`Head`].
pub(super) fn needs(dtype: DType, [l, s, e, f]: [usize; 4], out: &mut Needs) {
    for_real!(dtype, R => {
        let rows = ROWS.min(l);
        if dtype != <R as super::element::Number>::DTYPE {
            [s * e, s * f, rows * e, rows * f].into_iter().for_each(|n| out.add::<R>(n));
        }
        [ROWS * COLUMNS; 3].into_iter().for_each(|n| out.add::<R>(n));
        [ROWS * f, ROWS * e, s * e, s * f].into_iter().for_each(|n| out.add::<R>(n));
    });
}

/// The query heads that share one head of keys and values.
fn run_heads<R: Gemm>(
    head: Head,
    heads: &[QueryHead],
    of_keys: &KeyHead,
    limits: &[Limit<'_>],
    scratch: &mut Scratch,
) {
    let (keys, keys_buffer) = as_matrix::<R>(&of_keys.k, scratch);
    let (values, values_buffer) = as_matrix::<R>(&of_keys.v, scratch);
    let mut rows = Rows {
        head,
        keys,
        values,
        weights: scratch.take(ROWS * COLUMNS),
        of_scores: scratch.take(ROWS * COLUMNS),
        mask: scratch.take(ROWS * COLUMNS),
        result: scratch.take(ROWS * head.f),
        of_q: scratch.take(ROWS * head.e),
        of_k: scratch.take(head.s * head.e),
        of_v: scratch.take(head.s * head.f),
        sums: [R::ZERO; ROWS],
        means: [R::ZERO; ROWS],
        visible: std::array::from_fn(|_| 0..0),
    };
    rows.of_k.fill(R::ZERO);
    rows.of_v.fill(R::ZERO);
    for one in heads {
        for first in (0..head.l).step_by(ROWS) {
            let n = ROWS.min(head.l - first);
            let (queries, q_buffer) = as_matrix::<R>(&one.q.cut(0, first, n), scratch);
            let (gradients, g_buffer) = as_matrix::<R>(&one.gradient.cut(0, first, n), scratch);
            for (i, seen) in rows.visible[..n].iter_mut().enumerate() {
                *seen = visible(limits.iter().map(|l| l.of(one.first_row, first + i)), head.s);
            }
            rows.begin(one, gradients, first, n);
            let mask = one.mask.as_ref().map(|mask| mask.cut(0, first, n));
            rows.run(queries, gradients, n, mask.as_ref());
            Writer::new(&one.of_q.cut(0, first, n)).put(&rows.of_q[..n * head.e]);
            [q_buffer, g_buffer].into_iter().flatten().for_each(|b| scratch.give(b));
        }
    }
    Writer::new(&of_keys.of_k).put(&rows.of_k[..head.s * head.e]);
    Writer::new(&of_keys.of_v).put(&rows.of_v[..head.s * head.f]);
    let Rows { weights, of_scores, mask, result, of_q, of_k, of_v, .. } = rows;
    let buffers = [weights, of_scores, mask, result, of_q, of_k, of_v];
    for buffer in [keys_buffer, values_buffer].into_iter().flatten().chain(buffers) {
        scratch.give(buffer);
    }
}

/// A block of rows on its way through all blocks of columns.
struct Rows<R> {
    head: Head,
    keys: Matrix<R>,
    values: Matrix<R>,
    weights: Buffer<R>,
    of_scores: Buffer<R>,
    mask: Buffer<R>,
    result: Buffer<R>,
    /// The gradient of the queries of the block.
    of_q: Buffer<R>,
    /// The gradients of all keys and values of the head.
    of_k: Buffer<R>,
    of_v: Buffer<R>,
    /// The log-sum-exp of each row.
    sums: [R; ROWS],
    /// The sum of the gradient times the result of each row.
    means: [R; ROWS],
    /// The columns that the bounds leave to each row.
    visible: [Range<usize>; ROWS],
}

impl<R: Gemm> Rows<R> {
    /// Reads what is known of rows `first..first + m`.
    fn begin(&mut self, one: &QueryHead, gradients: Matrix<R>, first: usize, m: usize) {
        let f = self.head.f;
        Reader::<R>::new(&one.sums.cut(0, first, m)).fill(&mut self.sums[..m]);
        Reader::<R>::new(&one.result.cut(0, first, m)).fill(&mut self.result[..m * f]);
        for i in 0..m {
            // SAFETY: the matrix holds the row, whose columns are those of the result.
            let product =
                |j: usize| unsafe { *gradients.at(i, j).ptr }.wide() * self.result[i * f + j].wide();
            self.means[i] = R::of((0..f).map(product).sum());
            if self.sums[i] == R::NEG_INFINITY {
                self.visible[i] = 0..0;
            }
        }
        self.of_q[..m * self.head.e].fill(R::ZERO);
    }

    /// Adds what the `m` rows, which have begun, give to all gradients.
    fn run(&mut self, queries: Matrix<R>, gradients: Matrix<R>, m: usize, mask: Option<&Strided>) {
        let Head { e, f, scale, .. } = self.head;
        let seen = self.visible[..m].iter().filter(|r| !r.is_empty());
        let seen = seen.cloned().reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0);
        for start in seen.clone().step_by(COLUMNS) {
            let n = COLUMNS.min(seen.end - start);
            let weights = Matrix::dense(self.weights.as_mut_ptr(), n);
            let of_scores = Matrix::dense(self.of_scores.as_mut_ptr(), n);
            let (keys, values) = (self.keys.at(start, 0), self.values.at(start, 0));
            // SAFETY: the matrices hold these rows, and what is written are buffers of their own.
            unsafe {
                R::gemm(Extents { m, k: e, n }, R::of(scale), queries, keys.transposed(), R::ZERO, weights);
                R::gemm(Extents { m, k: f, n }, R::ONE, gradients, values.transposed(), R::ZERO, of_scores);
            }
            if let Some(mask) = mask {
                Reader::<R>::new(&mask.cut(1, start, n)).fill(&mut self.mask[..m * n]);
            }
            for i in 0..m {
                self.weigh(i, start, n, mask.map(|mask| mask.dtype == DType::Bool));
            }
            let of_q = Matrix::dense(self.of_q.as_mut_ptr(), e);
            let of_k = Matrix::dense(self.of_k.as_mut_ptr(), e).at(start, 0);
            let of_v = Matrix::dense(self.of_v.as_mut_ptr(), f).at(start, 0);
            // SAFETY: as above; rows `start..start + n` of the gradients exist.
            unsafe {
                R::gemm(Extents { m, k: n, n: e }, R::ONE, of_scores, keys, R::ONE, of_q);
                let (of_scores, weights) = (of_scores.transposed(), weights.transposed());
                R::gemm(Extents { m: n, k: m, n: e }, R::ONE, of_scores, queries, R::ONE, of_k);
                R::gemm(Extents { m: n, k: m, n: f }, R::ONE, weights, gradients, R::ONE, of_v);
            }
        }
    }

    /// Turns the scores of row `i` at the columns `start..start + n` into weights, and the gradients of these into those of
    /// products of queries and keys. `masked` says that there is a mask, and whether it is of bools.
    fn weigh(&mut self, i: usize, start: usize, n: usize, masked: Option<bool>) {
        let (sum, mean, scale) = (self.sums[i], self.means[i], R::of(self.head.scale));
        let row = i * n..(i + 1) * n;
        let of_scores = &mut self.of_scores[row.clone()];
        for (j, (weight, of_score)) in self.weights[row].iter_mut().zip(of_scores).enumerate() {
            let mask = self.mask[i * n + j];
            let hidden = !self.visible[i].contains(&(start + j)) || masked == Some(true) && mask == R::ZERO;
            if hidden {
                (*weight, *of_score) = (R::ZERO, R::ZERO);
                continue;
            }
            let bias = if masked == Some(false) { mask } else { R::ZERO };
            *weight = (*weight + bias - sum).exp();
            *of_score = *weight * (*of_score - mean) * scale;
        }
    }
}
