//! Two products of one left matrix as a batch of two, by the library.
//!
//! Gate and up projections are two products of equal extents. One after the other, each leaves multiprocessors idle in
//! its last wave of tiles; as a batch they share it. A batch is described by the distances between its matrices, so
//! nothing moves in memory: the first product is only done where the second is. The weights must lie in the order of
//! the results, as the library (cuBLASLt of CUDA 13.0) takes no negative distances. All ranks decide alike, because they
//! would sum in different orders otherwise: only distances within one memory count that every rank lays out alike.

use smallvec::SmallVec;
use symmc_runtime::exec::{BoundStep, Located, Work as StepWork};

use super::fuse;
use super::gemm::{Gemm, Matrix};
use super::spans;
use crate::launch::Work;

/// How far behind a product its twin is looked for, in steps.
const REACH: usize = 8;

/// Joins twins. `done` says for each step in whose place its work is done, `lowered` what is done in each place; the
/// work of both is done in place of the second. `memory` says in which memory a value lies whose places are as far apart on
/// all ranks, if it lies in one.
pub fn join(
    list: &[BoundStep],
    done: &[usize],
    memory: &dyn Fn(&Located) -> Option<usize>,
    lowered: &mut [Vec<Work>],
) {
    let awaited = fuse::awaited(list);
    // Where the right matrix and the result lie. The left matrix is one: it may lie anywhere.
    let memories = |step: &BoundStep| match &step.work {
        StepWork::Kernel { operands, results, .. } => {
            let all = operands.iter().skip(1).chain(results).map(memory);
            all.collect::<Option<SmallVec<[usize; 4]>>>()
        }
        StepWork::Custom { .. } | StepWork::Collective(_) | StepWork::Dispatch(_) => None,
    };
    for place in 0..list.len() {
        let Some(own) = memories(&list[place]) else { continue };
        let found = twin(list, done, &awaited, lowered, place)
            .filter(|(other, _)| memories(&list[*other]).is_some_and(|others| others == own));
        if let Some((other, both)) = found {
            lowered[place].clear();
            lowered[other] = vec![Work::Gemm(both)];
        }
    }
}

/// The place of the twin of the product at `place`, and both as a batch.
fn twin(
    list: &[BoundStep],
    done: &[usize],
    awaited: &[bool],
    lowered: &[Vec<Work>],
    place: usize,
) -> Option<(usize, Gemm)> {
    let product = |place: usize| if let [Work::Gemm(gemm)] = lowered[place][..] { Some(gemm) } else { None };
    let first = product(place)?;
    for other in place + 1..list.len().min(place + 1 + REACH) {
        // A wait for a step in between stands for this one too.
        if awaited[other - 1] {
            return None;
        }
        // Neither needs what the other gives or may write where it reads.
        if !(0..=other).filter(|&s| done[s] == other).all(|s| spans::commute(&list[place], &list[s])) {
            return None;
        }
        if let Some(both) = product(other).and_then(|second| batch(&first, &second)) {
            return Some((other, both));
        }
    }
    None
}

/// Two products of one left matrix as one batch, in the order of their results.
fn batch(first: &Gemm, second: &Gemm) -> Option<Gemm> {
    let (low, high) = if first.c.at < second.c.at { (first, second) } else { (second, first) };
    let alike = |x: &Matrix, y: &Matrix| (x.step, x.order) == (y.step, y.order);
    let extents = |g: &Gemm| (g.dtype, g.m, g.n, g.k, g.batch, g.a);
    let fits = extents(low) == extents(high)
        && low.batch == 1
        && alike(&low.b, &high.b)
        && alike(&low.c, &high.c)
        && low.b.at < high.b.at
        && low.c.at < high.c.at;
    let size = low.dtype.size() as i64;
    let between = |x: &Matrix, y: &Matrix| {
        let bytes = y.at.wrapping_sub(x.at) as i64;
        (bytes % size == 0).then_some(Matrix { batch: (bytes / size) as isize, ..*x })
    };
    let (b, c) = (between(&low.b, &high.b)?, between(&low.c, &high.c)?);
    fits.then_some(Gemm { batch: 2, a: Matrix { batch: 0, ..low.a }, b, c, ..*low })
}
