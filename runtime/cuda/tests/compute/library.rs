//! Attention that a library computes, with the kernels before and after it, on the host.
//!
//! The library here is a reference that treats non-finite data like cuDNN. In blocks of rows and columns in
//! which some row sees some column, it multiplies hidden values by 0; a row that sees nothing is 0 / 0.

use symmc_cases::{OpCase, corpus};
use symmc_cuda::codegen::compute::AlgorithmSelection;
use symmc_cuda::cudnn;
use symmc_ir::tensor::{read_f64, write_f64};
use symmc_ir::{DType, Op, Tensor};

use symmc_cuda::device::launch::{DevicePtr, PortBases};

use crate::emulate::run;

/// The number of rows and columns that are multiplied at once.
const BLOCK: usize = 64;

/// Loads an element from memory.
unsafe fn load(at: DevicePtr, dtype: DType, index: i64) -> f64 {
    let address = std::ptr::with_exposed_provenance::<u8>(at.resolve(PortBases::NONE) as usize);
    // SAFETY: by the caller, the element exists.
    let bytes = unsafe {
        std::slice::from_raw_parts(address.offset(index as isize * dtype.size() as isize), dtype.size())
    };
    read_f64(dtype, bytes, 0)
}

/// Stores an element.
///
/// # Safety
/// The element exists, and nothing else accesses it.
unsafe fn store(at: DevicePtr, dtype: DType, index: i64, value: f64) {
    let address = std::ptr::with_exposed_provenance_mut::<u8>(at.resolve(PortBases::NONE) as usize);
    // SAFETY: by the caller.
    let bytes = unsafe {
        std::slice::from_raw_parts_mut(address.offset(index as isize * dtype.size() as isize), dtype.size())
    };
    write_f64(dtype, bytes, 0, value);
}

/// The offset of a row of a tensor, in elements.
fn row(x: &cudnn::AttentionTensor, at: [usize; 3]) -> i64 {
    at.iter().zip(x.strides).map(|(&i, stride)| i as i64 * stride).sum()
}

/// The attention with addresses instead of pointers to ports.
pub(crate) fn resolved(x: &cudnn::CudnnAttention, bases: PortBases<'_>) -> cudnn::CudnnAttention {
    let pointer = |at: DevicePtr| DevicePtr::from(at.resolve(bases));
    let tensor = |t: cudnn::AttentionTensor| cudnn::AttentionTensor { at: pointer(t.at), ..t };
    let gradient = |g: cudnn::AttentionGradient| cudnn::AttentionGradient {
        of_r: tensor(g.of_r),
        means: pointer(g.means),
        of_q: tensor(g.of_q),
        of_k: tensor(g.of_k),
        of_v: tensor(g.of_v),
    };
    cudnn::CudnnAttention {
        q: tensor(x.q),
        k: tensor(x.k),
        v: tensor(x.v),
        r: tensor(x.r),
        bias: x.bias.map(|bias| cudnn::AttentionBias { at: pointer(bias.at), ..bias }),
        sums: x.sums.map(tensor),
        gradient: x.gradient.map(gradient),
        ..*x
    }
}

/// Computes an attention.
///
/// # Safety
/// Its operands and its result exist, and nothing else accesses them.
pub(crate) unsafe fn attend(x: &cudnn::CudnnAttention) {
    if let Some(gradient) = &x.gradient {
        // SAFETY: by the caller.
        return unsafe { differentiate(x, gradient) };
    }
    let group = x.heads / x.key_heads;
    for (b, h) in (0..x.batch).flat_map(|b| (0..x.heads).map(move |h| (b, h))) {
        for i in 0..x.queries {
            // SAFETY: by the caller.
            let scores = unsafe { scores_of_row(x, [b, h, i]) };
            let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
            let sum: f64 = weights.iter().sum();
            if let Some(sums) = &x.sums {
                // SAFETY: by the caller.
                unsafe { store(sums.at, DType::F32, row(sums, [b, h, i]), top + sum.ln()) };
            }
            // The columns that the first and the last row of the block see.
            let (first, last) = (i / BLOCK * BLOCK, (i / BLOCK + 1) * BLOCK - 1);
            let from = x.band.from.map_or(0, |from| first as i64 + from);
            let below = x.band.below.map_or(i64::MAX, |below| last as i64 + below);
            let touched = |j: usize| {
                let start = (j / BLOCK * BLOCK) as i64;
                start < below && start + BLOCK as i64 > from
            };
            for f in 0..x.f {
                let term = |j: usize| {
                    let element = row(&x.v, [b, h / group, j]) + f as i64;
                    // SAFETY: by the caller.
                    weights[j] / sum * unsafe { load(x.v.at, x.dtype, element) }
                };
                let total: f64 = (0..x.keys).filter(|&j| touched(j)).map(term).sum();
                // SAFETY: by the caller.
                unsafe { store(x.r.at, x.dtype, row(&x.r, [b, h, i]) + f as i64, total) };
            }
        }
    }
}

/// The scores of a row; minus infinity outside of the band.
///
/// # Safety
/// As [`attend`].
unsafe fn scores_of_row(x: &cudnn::CudnnAttention, [b, h, i]: [usize; 3]) -> Vec<f64> {
    let sees = |j: usize| {
        let (i, j) = (i as i64, j as i64);
        x.band.below.is_none_or(|below| j < i + below) && x.band.from.is_none_or(|from| j >= i + from)
    };
    // SAFETY: by the caller.
    let score_of = |j: usize| unsafe { score(x, [b, h, i], j, x.heads / x.key_heads) };
    (0..x.keys).map(|j| if sees(j) { score_of(j) } else { f64::NEG_INFINITY }).collect()
}

/// Computes the gradients of an attention, and the sum of the gradient times the result of each row.
///
/// # Safety
/// As [`attend`].
unsafe fn differentiate(x: &cudnn::CudnnAttention, g: &cudnn::AttentionGradient) {
    let group = x.heads / x.key_heads;
    let sums = x.sums.as_ref().expect("gradients are computed from the sums");
    // SAFETY: by the caller.
    let element = |t: &cudnn::AttentionTensor, at: [usize; 3], i: usize| unsafe {
        load(t.at, x.dtype, row(t, at) + i as i64)
    };
    for (b, kh) in (0..x.batch).flat_map(|b| (0..x.key_heads).map(move |h| (b, h))) {
        let (mut of_k, mut of_v) = (vec![0.0; x.keys * x.e], vec![0.0; x.keys * x.f]);
        for (h, i) in (kh * group..(kh + 1) * group).flat_map(|h| (0..x.queries).map(move |i| (h, i))) {
            let query = [b, h, i];
            let mean: f64 = (0..x.f).map(|f| element(&g.of_r, query, f) * element(&x.r, query, f)).sum();
            let number = ((b * x.heads + h) * x.queries + i) as i64;
            // SAFETY: by the caller.
            let (scores, sum) = unsafe {
                store(g.means, DType::F32, number, mean);
                (scores_of_row(x, query), load(sums.at, DType::F32, row(sums, query)))
            };
            let mut of_q = vec![0.0; x.e];
            for (j, score) in scores.into_iter().enumerate() {
                let (weight, key) = ((score - sum).exp(), [b, kh, j]);
                let of_weight: f64 =
                    (0..x.f).map(|f| element(&g.of_r, query, f) * element(&x.v, key, f)).sum();
                let of_product = weight * (of_weight - mean) * f64::from(x.scale);
                for e in 0..x.e {
                    of_q[e] += of_product * element(&x.k, key, e);
                    of_k[j * x.e + e] += of_product * element(&x.q, query, e);
                }
                (0..x.f).for_each(|f| of_v[j * x.f + f] += weight * element(&g.of_r, query, f));
            }
            // SAFETY: by the caller.
            let store_query =
                |e: usize, value| unsafe { store(g.of_q.at, x.dtype, row(&g.of_q, query) + e as i64, value) };
            of_q.into_iter().enumerate().for_each(|(e, value)| store_query(e, value));
        }
        for j in 0..x.keys {
            for (t, n, all) in [(&g.of_k, x.e, &of_k), (&g.of_v, x.f, &of_v)] {
                let start = row(t, [b, kh, j]);
                // SAFETY: by the caller.
                (0..n).for_each(|i| unsafe { store(t.at, x.dtype, start + i as i64, all[j * n + i]) });
            }
        }
    }
}

/// The score of a column for a row.
///
/// # Safety
/// As [`attend`].
unsafe fn score(x: &cudnn::CudnnAttention, [b, h, i]: [usize; 3], j: usize, group: usize) -> f64 {
    let (q, k) = (row(&x.q, [b, h, i]), row(&x.k, [b, h / group, j]));
    // SAFETY: by the caller.
    let term = |e: i64| unsafe { load(x.q.at, x.dtype, q + e) * load(x.k.at, x.dtype, k + e) };
    let mut score = (0..x.e as i64).map(term).sum::<f64>() * f64::from(x.scale);
    if let Some(cap) = x.cap.map(f64::from) {
        score = cap * (score / cap).tanh();
    }
    if let Some(bias) = &x.bias {
        let index = [b, h, i, j].into_iter().zip(bias.extents).zip(bias.strides);
        let index = index.map(|((i, n), stride)| if n == 1 { 0 } else { i as i64 * stride }).sum();
        // SAFETY: by the caller.
        score += unsafe { load(bias.at, bias.dtype, index) };
    }
    score
}

/// Attention in the dtypes of the library: with bool and numeric masks, causal, with windows, and with some
/// values that are not finite.
fn sample() -> Vec<OpCase> {
    let mut out = corpus();
    let fits = |x: &Tensor| {
        let elements = x.shape().last().copied().unwrap_or(0);
        x.dtype().size() == 2 && elements.is_multiple_of(8) && x.shape().iter().product::<usize>() < 1 << 16
    };
    out.retain(|c| {
        let op = if let Op::Permuted { op, .. } = &c.op { &**op } else { &c.op };
        let (bounds, first) = match op {
            Op::Attention { bounds, .. } => (bounds, 0),
            Op::AttentionGradient { bounds, .. } => (bounds, 3),
            _ => return false,
        };
        !bounds.iter().any(|b| b.operand && b.row)
            && !["cache", "sink"].iter().any(|w| c.name.contains(w))
            && c.operands[first..first + 3].iter().all(|x| fits(&x.tensor))
    });
    out
}

#[test]
fn cudnn_attention_agrees_with_the_interpreter() {
    let cases = sample();
    let bools = |c: &&OpCase| c.operands.get(3).is_some_and(|m| m.tensor.dtype() == DType::Bool);
    assert!(cases.iter().filter(bools).count() > 4);
    let Some(ran) = run("library", &cases, AlgorithmSelection::Measured) else { return };
    assert!(ran.wrong.is_empty(), "{} of {}\n{}", ran.wrong.len(), ran.all, ran.wrong.join("\n"));
    assert!(ran.by_library > 20, "{} of {}", ran.by_library, ran.all);
    let gradients = cases.iter().filter(|c| c.name.contains("gradient")).count();
    assert!(gradients > 5, "{gradients} gradients");
}
