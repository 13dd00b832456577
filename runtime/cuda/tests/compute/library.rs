//! Attention that a library computes, with what is in front of it and behind it, on the host.
//!
//! The library here is a reference that does what cuDNN does where data are not finite: in blocks of rows and columns of
//! which some row sees some column it multiplies what is not seen with 0, and a row that sees nothing is 0 / 0.

use symmc_cases::{Case, corpus};
use symmc_cuda::compute::Attentions;
use symmc_cuda::cudnn;
use symmc_ir::tensor::{read_f64, write_f64};
use symmc_ir::{DType, Op, Tensor};

use crate::emulate::run;

/// Rows and columns that are multiplied at once.
const BLOCK: usize = 64;

/// An element in memory.
unsafe fn load(at: u64, dtype: DType, index: i64) -> f64 {
    let place = std::ptr::with_exposed_provenance::<u8>(at as usize);
    // SAFETY: by the caller, the element exists.
    let bytes = unsafe {
        std::slice::from_raw_parts(place.offset(index as isize * dtype.size() as isize), dtype.size())
    };
    read_f64(dtype, bytes, 0)
}

/// Where a row of a tensor begins, in elements.
fn row(x: &cudnn::Tensor, at: [usize; 3]) -> i64 {
    at.iter().zip(x.strides).map(|(&i, stride)| i as i64 * stride).sum()
}

/// Computes an attention.
///
/// # Safety
/// Its operands and its result exist, and nothing else touches them.
pub(crate) unsafe fn attend(x: &cudnn::Attention) {
    let group = x.heads / x.key_heads;
    for (b, h) in (0..x.batch).flat_map(|b| (0..x.heads).map(move |h| (b, h))) {
        let sees = |i: usize, j: usize| {
            let (i, j) = (i as i64, j as i64);
            x.band.below.is_none_or(|below| j < i + below) && x.band.from.is_none_or(|from| j >= i + from)
        };
        for i in 0..x.queries {
            let scores: Vec<f64> = (0..x.keys)
                .map(|j| {
                    if !sees(i, j) {
                        return f64::NEG_INFINITY;
                    }
                    // SAFETY: by the caller.
                    unsafe { score(x, [b, h, i], j, group) }
                })
                .collect();
            let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
            let sum: f64 = weights.iter().sum();
            // What the first and the last row of the block see.
            let (first, last) = (i / BLOCK * BLOCK, (i / BLOCK + 1) * BLOCK - 1);
            let from = x.band.from.map_or(0, |from| first as i64 + from);
            let below = x.band.below.map_or(i64::MAX, |below| last as i64 + below);
            let touched = |j: usize| {
                let start = (j / BLOCK * BLOCK) as i64;
                start < below && start + BLOCK as i64 > from
            };
            for f in 0..x.f {
                let part = |j: usize| {
                    let at = row(&x.v, [b, h / group, j]) + f as i64;
                    // SAFETY: by the caller.
                    weights[j] / sum * unsafe { load(x.v.at, x.dtype, at) }
                };
                let total: f64 = (0..x.keys).filter(|&j| touched(j)).map(part).sum();
                let at = x.r.at as usize + (row(&x.r, [b, h, i]) as usize + f) * x.dtype.size();
                let place = std::ptr::with_exposed_provenance_mut::<u8>(at);
                // SAFETY: by the caller.
                let bytes = unsafe { std::slice::from_raw_parts_mut(place, x.dtype.size()) };
                write_f64(x.dtype, bytes, 0, total);
            }
        }
    }
}

/// The score of a column for a row.
///
/// # Safety
/// As [`attend`].
unsafe fn score(x: &cudnn::Attention, [b, h, i]: [usize; 3], j: usize, group: usize) -> f64 {
    let (q, k) = (row(&x.q, [b, h, i]), row(&x.k, [b, h / group, j]));
    // SAFETY: by the caller.
    let term = |e: i64| unsafe { load(x.q.at, x.dtype, q + e) * load(x.k.at, x.dtype, k + e) };
    let mut score = (0..x.e as i64).map(term).sum::<f64>() * f64::from(x.scale);
    if let Some(cap) = x.cap.map(f64::from) {
        score = cap * (score / cap).tanh();
    }
    if let Some(bias) = &x.bias {
        let at = [b, h, i, j].into_iter().zip(bias.extents).zip(bias.strides);
        let at = at.map(|((i, n), stride)| if n == 1 { 0 } else { i as i64 * stride }).sum();
        // SAFETY: by the caller.
        score += unsafe { load(bias.at, bias.dtype, at) };
    }
    score
}

/// Attention in the dtypes of the library: with masks of bools and of numbers, causal, in windows, with values that are not
/// finite here and there.
fn sample() -> Vec<Case> {
    let mut out = corpus();
    let fits = |x: &Tensor| {
        let elements = x.shape().last().copied().unwrap_or(0);
        x.dtype().size() == 2 && elements.is_multiple_of(8) && x.shape().iter().product::<usize>() < 1 << 16
    };
    out.retain(|c| {
        let op = if let Op::Permuted { op, .. } = &c.op { &**op } else { &c.op };
        let Op::Attention { bounds, .. } = op else { return false };
        !bounds.iter().any(|b| b.operand && b.row)
            && !["cache", "sink"].iter().any(|w| c.name.contains(w))
            && c.operands[..3].iter().all(|x| fits(&x.tensor))
    });
    out
}

#[test]
fn what_a_library_lets_in_is_taken_out_and_what_it_does_not_take_is_numbers_for_it() {
    let cases = sample();
    let bools = |c: &&Case| c.operands.get(3).is_some_and(|m| m.tensor.dtype() == DType::Bool);
    assert!(cases.iter().filter(bools).count() > 4);
    let Some(ran) = run("library", &cases, Attentions::Chosen) else { return };
    assert!(ran.wrong.is_empty(), "{} of {}\n{}", ran.wrong.len(), ran.all, ran.wrong.join("\n"));
    assert!(ran.by_library > 20, "{} of {}", ran.by_library, ran.all);
}
