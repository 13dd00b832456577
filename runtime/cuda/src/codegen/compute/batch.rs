//! Products of one left matrix. Few rows use one kernel (`skinny.rs`), which can also apply rotary embeddings
//! to the results. Two products of the same extents become a batch of the library.
//!
//! The library computes two products at once, given the distances between their matrices. The weights must be
//! in the order of the results, because the library (cuBLASLt of CUDA 13.0) rejects negative distances. All
//! ranks must decide in the same way, because otherwise they would sum in different orders. Therefore only
//! distances within one memory count that every rank lays out in the same way.

use std::fmt::Write as _;

use smallvec::SmallVec;
use symmc_runtime::exec::LocatedTensor;

use super::gemm::{DeviceMatrix, Gemm};
use super::lowering::{BoundOperation, KernelLowering};
use super::rotary::{self, RotaryEpilogue};
use super::skinny::{self, ProductEpilogue};
use super::{matmul, text};
use crate::codegen::command::{Commands, GpuCommand};
use crate::device::launch::KernelParam;
use crate::error::Result;

/// Lowers products as one command or as several; with rotary embeddings of their results as one kernel, or
/// `None` if there is no such kernel. `memory` identifies the memory of a value if its distances are the same
/// on all ranks.
pub fn lower(
    steps: &[BoundOperation<'_>],
    memory: &dyn Fn(&LocatedTensor) -> Option<usize>,
    l: &mut KernelLowering<'_>,
) -> Result<Option<Vec<GpuCommand>>> {
    if steps.iter().any(|step| !step.op.is_matmul()) {
        rotary_products(steps, l)
    } else {
        plain_products(steps, memory, l).map(Some)
    }
}

/// Lowers products, and rotary embeddings of their results, to one kernel.
fn rotary_products(
    steps: &[BoundOperation<'_>],
    l: &mut KernelLowering<'_>,
) -> Result<Option<Vec<GpuCommand>>> {
    let (products, rotaries): (SmallVec<[_; 4]>, SmallVec<[&BoundOperation<'_>; 4]>) =
        steps.iter().partition(|step| step.op.is_matmul());
    if products.iter().any(|step| step.results.iter().any(|r| r.shape.contains(&0))) {
        return Ok(Some(Vec::new()));
    }
    let Some((gemms, steady)) = library_products(&products, l)? else { return Ok(None) };
    let mut halves = SmallVec::<[Option<usize>; 4]>::new();
    let mut rotary_count = 0;
    let mut epilogue = ProductEpilogue::default();
    for (p, (product, gemm)) in products.iter().zip(&gemms).enumerate() {
        let mut rotation = None;
        for step in &rotaries {
            rotation = rotation.or(rotary::rotary_epilogue(step, &product.results[0], p, l)?);
        }
        halves.push(rotation.as_ref().map(|rotation| rotation.half));
        match rotation {
            Some(RotaryEpilogue { layout, params, .. }) => {
                rotary_count += 1;
                epilogue.layouts.push_str(&layout);
                epilogue.declared.push(format!("const void *c{p}, const void *s{p}, void *r{p}"));
                epilogue.params.extend(params.map(KernelParam::from));
                let _ = writeln!(
                    epilogue.body,
                    "if (product == {p}) turn_pair<@_R{p}>(c{p}, s{p}, r{p}, row, column, sum);"
                );
            }
            None => epilogue.store_pairs(p, gemm),
        }
    }
    if rotary_count != rotaries.len() {
        return Ok(None);
    }
    l.preludes();
    l.source.prelude(text::ROTARY_SOURCE);
    Ok(skinny::column_pair_kernel(&gemms, &halves, steady, epilogue, l).map(|work| vec![work]))
}

fn plain_products(
    steps: &[BoundOperation<'_>],
    memory: &dyn Fn(&LocatedTensor) -> Option<usize>,
    l: &mut KernelLowering<'_>,
) -> Commands {
    if let Some(work) = single_kernel(steps, l)? {
        return Ok(vec![work]);
    }
    let mut works: Vec<(GpuCommand, Option<SmallVec<[usize; 2]>>)> = Vec::with_capacity(steps.len());
    for step in steps {
        // There is a single left matrix, which may be anywhere.
        let placed = step.operands.iter().skip(1).chain(step.results);
        let memories = placed.map(memory).collect::<Option<SmallVec<[usize; 2]>>>();
        for work in super::lower(step, l)? {
            let pair = works.iter_mut().find_map(|(before, read)| match (&*before, &work) {
                (GpuCommand::Gemm(first), GpuCommand::Gemm(second))
                    if memories.is_some() && *read == memories =>
                {
                    merge_into_batch(first, second).map(|merged| (before, merged))
                }
                _ => None,
            });
            match pair {
                Some((before, merged)) => *before = GpuCommand::Gemm(merged),
                None => works.push((work, memories.clone())),
            }
        }
    }
    Ok(works.into_iter().map(|(work, _)| work).collect())
}

/// A single kernel of our own for all products, if it is faster.
fn single_kernel(steps: &[BoundOperation<'_>], l: &mut KernelLowering<'_>) -> Result<Option<GpuCommand>> {
    let steps: SmallVec<[&BoundOperation<'_>; 4]> = steps.iter().collect();
    let several = library_products(&steps, l)?.filter(|(gemms, _)| gemms.len() > 1);
    Ok(several.and_then(|(gemms, steady)| skinny::sequential_kernel(&gemms, steady, l)))
}

/// The products as library calls, and whether nothing writes their right matrices while the program runs.
fn library_products(
    steps: &[&BoundOperation<'_>],
    l: &KernelLowering<'_>,
) -> Result<Option<(SmallVec<[Gemm; 4]>, bool)>> {
    let mut gemms = SmallVec::new();
    let mut steady = true;
    for step in steps {
        super::lowering::arity(step.op, step.operands.len(), step.results.len())?;
        let [left, right] = step.operands else { return Ok(None) };
        let Some(gemm) = matmul::single_library_product(left, right, &step.results[0], l)? else {
            return Ok(None);
        };
        gemms.push(gemm);
        steady &= l.is_never_written(right);
    }
    Ok(Some((gemms, steady)))
}

/// Two products of one left matrix as one batch, in the order of their results.
fn merge_into_batch(first: &Gemm, second: &Gemm) -> Option<Gemm> {
    let is_first_lower = second.c.at.distance_from(first.c.at)? > 0;
    let (low, high) = if is_first_lower { (first, second) } else { (second, first) };
    let same_extents = (low.dtype, low.result_dtype, low.m, low.n, low.k, low.batch, low.a)
        == (high.dtype, high.result_dtype, high.m, high.n, high.k, high.batch, high.a);
    let fits = same_extents
        && low.batch == 1
        && (low.b.step, low.b.order) == (high.b.step, high.b.order)
        && (low.c.step, low.c.order) == (high.c.step, high.c.order);
    let b = merge_matrices(&low.b, &high.b, low.dtype.size() as i64)?;
    let c = merge_matrices(&low.c, &high.c, low.result_dtype.size() as i64)?;
    fits.then_some(Gemm { batch: 2, a: DeviceMatrix { batch: 0, ..low.a }, b, c, ..*low })
}

fn merge_matrices(low: &DeviceMatrix, high: &DeviceMatrix, element_size: i64) -> Option<DeviceMatrix> {
    let bytes = high.at.distance_from(low.at).filter(|&bytes| bytes > 0)?;
    (bytes % element_size == 0).then_some(DeviceMatrix { batch: (bytes / element_size) as isize, ..*low })
}
