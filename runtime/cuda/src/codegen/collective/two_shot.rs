//! All-reduce as two-shot: each rank reduces one slice of all operands and sends the result to all ranks.
//!
//! Large tensors use stores only. The kernel can then also add a residual to the result, chunk by chunk as it
//! arrives.

use symmc_ir::DType;
use symmc_ir::collective::{CollectiveKind as Kind, CollectiveReduceOp, CollectiveVariant};
use symmc_plan::ExitBarrier;
use symmc_runtime::exec::{MemorySpace, ResolvedCollective};

use super::barrier::{self, BarrierReduction};
use super::blocks::MAX_THREADS;
use super::call::RankCollective;
use super::kernel_call::{KernelCall, reduction};
use super::params::{Addition, BarrierParams, PushedParams};
use super::peers::PeerContext;
use crate::codegen::command::GpuCommand;
use crate::codegen::compile::KernelSource;
use crate::device::launch::{Address, DevicePtr, KernelParam};
use crate::error::Result;

/// The largest number of threads per block by stores only, so that registers remain for the addition. The
/// grid does not depend on the addition, because it is the same on all ranks.
const PUSHED_THREADS: u32 = 512;

pub(super) fn reduce(running: &RankCollective, op: CollectiveReduceOp) -> Result<KernelCall> {
    if let Some(slice) = pushed_slice_bytes(running) {
        return pushed_kernel(running, op, slice, None);
    }
    let size = running.bound.dtype.size();
    let elements = running.bound.elements;
    let units = running.units(running.bytes);
    let unit = 16 / size;
    let [from, to] = [running.me, running.me + 1].map(|p| (units * p / running.n * unit).min(elements));
    let offset = (from * size) as Address;
    let mut call = BarrierParams { base: running.group(), ..BarrierParams::default() };
    for p in 0..running.n {
        call.from[p] = running.operand_of(p, running.bytes)? + offset;
    }
    for (slot, p) in call.to.iter_mut().zip(running.peers_then_self()) {
        *slot = running.result_of(p, running.bytes)? + offset;
    }
    let how = BarrierReduction { op, output_count: running.n, elements: to - from, exit: ExitBarrier::Kept };
    // Slices differ by at most a unit; grids are equal.
    let blocks = running.grid(|b| &b.two_shot, units.div_ceil(running.n));
    Ok(barrier::reduction_kernel(running, call, how, blocks, "two_shot"))
}

/// The bytes of a slice of a two-shot all-reduce by stores only, if that form is possible. The answer is the
/// same on all ranks, because offsets are.
fn pushed_slice_bytes(running: &RankCollective) -> Option<usize> {
    let [operand, result] = [&running.bound.operand, &running.bound.result];
    let slice = running.bytes / running.n;
    let fits = running.thresholds().uses_stores_only(running.bytes as u64, running.n as u64)
        && slice.is_multiple_of(16)
        && running.bytes.is_multiple_of(running.n)
        && [operand, result].iter().all(|r| r.space == MemorySpace::Symmetric && r.by_rank.is_none())
        && (operand.offset | result.offset).is_multiple_of(16)
        && (operand.offset == result.offset || operand.offset.abs_diff(result.offset) >= running.bytes);
    fits.then_some(slice)
}

fn pushed_kernel(
    running: &RankCollective,
    op: CollectiveReduceOp,
    slice: usize,
    addition: Option<&Addition>,
) -> Result<KernelCall> {
    let (element, operation) = reduction(running.bound.dtype, op);
    let n = running.n;
    let slice_offset = |p: usize| (p * slice) as Address;
    let mut call = PushedParams { base: running.group(), ..PushedParams::default() };
    for (i, p) in running.peers_then_self().enumerate() {
        call.from[i] = running.operand + slice_offset(p);
        call.to[i] = running.result_of(p, running.bytes)? + slice_offset(running.me);
        call.slots[p] = running.result + slice_offset(p);
    }
    call.slice = slice as u64;
    let [blocks, threads] = running.grid(|b| &b.pushed, running.units(slice));
    let in_place = running.operand == running.result;
    let (kernel, most_threads) = match addition {
        Some(_) => ("pushed_add", PUSHED_THREADS),
        None => ("pushed_reduce", MAX_THREADS),
    };
    Ok(KernelCall {
        what: format!("{kernel}_{}", running.bound.dtype),
        body: format!("{kernel}<{element}, {operation}, {n}, {}, {in_place}>", (8 / n).max(1)),
        params: ("PushedParams", KernelParam::from_value(&call)),
        extra_param: addition.map(|a| ("Addition", KernelParam::from_value(a))),
        most_threads,
        blocks: [blocks, threads.min(PUSHED_THREADS)],
    })
}

/// The launch of `call` on this rank with its operand and result at these addresses, including the addition;
/// `None` if it does not take the form by stores only.
pub fn lower_addition(
    step: usize,
    call: &ResolvedCollective,
    [operand, result]: [DevicePtr; 2],
    addition: &Addition,
    peers: &PeerContext,
    source: &mut KernelSource,
) -> Result<Option<GpuCommand>> {
    let (CollectiveVariant::TwoShot, Kind::AllReduce(op)) = (call.variant, &call.kind) else {
        return Ok(None);
    };
    let fits = matches!(call.dtype, DType::F32 | DType::F16 | DType::BF16)
        && call.cell.len() > 1
        && addition.residual.is_multiple_of(16)
        && addition.sum.is_multiple_of(16);
    if !fits {
        return Ok(None);
    }
    let running = RankCollective::new(step, call, [operand, result], peers)?;
    let Some(slice) = pushed_slice_bytes(&running) else { return Ok(None) };
    let kernel = pushed_kernel(&running, *op, slice, Some(addition))?.launch(peers, source);
    Ok(Some(GpuCommand::Kernel(kernel)))
}
