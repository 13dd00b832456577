//! Variants that access the peers' arenas after a barrier: one-shot and two-shot all-reduce, pull and push.
//!
//! All of them have an entry barrier, so no peer's memory is accessed and no result is written before every
//! peer has arrived. Each rank begins with a different peer, so that they do not all read the same memory at
//! once.

use symmc_ir::collective::{AllToAllSplits, CollectiveKind, CollectiveReduceOp, CollectiveVariant};

use super::copy::StoreMode;
use super::running::{PerRank, RunningCollective, SLICE, copy_slices};
use crate::error::Result;

/// Slices of two-shot all-reduce begin at multiples of this.
const ALIGN: usize = 64;

pub(super) fn run(running: &RunningCollective) -> Result<()> {
    match (running.call.variant, running.call.kind) {
        (CollectiveVariant::OneShot, CollectiveKind::AllReduce(op)) => one_shot(running, *op),
        (CollectiveVariant::TwoShot, CollectiveKind::AllReduce(op)) => two_shot(running, *op),
        (CollectiveVariant::Pull | CollectiveVariant::PullCopies, CollectiveKind::AllGather) => {
            pull_all_gather(running)
        }
        (CollectiveVariant::Pull, CollectiveKind::ReduceScatter(op)) => pull_reduce_scatter(running, *op),
        (
            CollectiveVariant::Pull | CollectiveVariant::PullCopies,
            CollectiveKind::AllToAll(AllToAllSplits::Even),
        ) => pull_all_to_all(running),
        (CollectiveVariant::Pull, CollectiveKind::AllToAll(AllToAllSplits::Device)) => {
            super::splits::pull_rows(running)
        }
        (CollectiveVariant::Pull, CollectiveKind::DispatchRows | CollectiveKind::CombineRows) => {
            super::rows::pull(running)
        }
        (CollectiveVariant::Push, CollectiveKind::ReduceRows) => super::row_sums::push(running),
        (CollectiveVariant::Push | CollectiveVariant::Copies, CollectiveKind::AllGather) => {
            push_operand(running, PushedChunk::FullOperand)
        }
        (
            CollectiveVariant::Push | CollectiveVariant::Copies,
            CollectiveKind::AllToAll(AllToAllSplits::Even),
        ) => push_operand(running, PushedChunk::ReceiverChunk),
        (variant, kind) => {
            Err(running.call_error(format!("the variant {variant} does not run {} on the host", kind.name())))
        }
    }
}

fn one_shot(running: &RunningCollective, op: CollectiveReduceOp) -> Result<()> {
    let call = running.call;
    let result = running.region_address(&call.result, running.bytes)?;
    let operands = operand_addresses(running, running.bytes)?;
    running.await_barrier()?;
    // Each rank begins at another offset.
    let start = reduced_slice(running, running.me).0;
    reduce_range(running, op, &operands, &[result], start, call.elements);
    reduce_range(running, op, &operands, &[result], 0, start);
    running.exit_barrier()
}

fn two_shot(running: &RunningCollective, op: CollectiveReduceOp) -> Result<()> {
    let call = running.call;
    let operands = operand_addresses(running, running.bytes)?;
    let order = std::iter::once(running.me).chain(running.peer_numbers());
    let results = order
        .map(|p| running.peer_region_address(&call.result, p, running.bytes))
        .collect::<Result<PerRank<_>, _>>()?;
    running.await_barrier()?;
    let (from, to) = reduced_slice(running, running.me);
    reduce_range(running, op, &operands, &results, from, to);
    running.exit_barrier()
}

fn pull_reduce_scatter(running: &RunningCollective, op: CollectiveReduceOp) -> Result<()> {
    let call = running.call;
    let piece = running.bytes / running.n;
    let result = running.region_address(&call.result, piece)?;
    let mut operands = operand_addresses(running, running.bytes)?;
    for operand in &mut operands {
        *operand = operand.wrapping_add(running.me * piece);
    }
    running.await_barrier()?;
    reduce_range(running, op, &operands, &[result], 0, call.elements / running.n);
    running.exit_barrier()
}

fn pull_all_gather(running: &RunningCollective) -> Result<()> {
    let call = running.call;
    let result = running.region_address(&call.result, running.bytes * running.n)?;
    let operands = operand_addresses(running, running.bytes)?;
    running.await_barrier()?;
    for p in running.peer_numbers().chain([running.me]) {
        copy_slices(running, result.wrapping_add(p * running.bytes), operands[p], running.bytes);
    }
    running.exit_barrier()
}

fn pull_all_to_all(running: &RunningCollective) -> Result<()> {
    let call = running.call;
    let piece = running.bytes / running.n;
    let result = running.region_address(&call.result, running.bytes)?;
    let operands = operand_addresses(running, running.bytes)?;
    running.await_barrier()?;
    for p in running.peer_numbers().chain([running.me]) {
        let from = operands[p].wrapping_add(running.me * piece);
        copy_slices(running, result.wrapping_add(p * piece), from, piece);
    }
    running.exit_barrier()
}

enum PushedChunk {
    FullOperand,
    /// The piece of the operand with the receiver's number.
    ReceiverChunk,
}

fn push_operand(running: &RunningCollective, pieces: PushedChunk) -> Result<()> {
    let call = running.call;
    let (piece, total) = match pieces {
        PushedChunk::FullOperand => (running.bytes, running.bytes * running.n),
        PushedChunk::ReceiverChunk => (running.bytes / running.n, running.bytes),
    };
    let operand = running.region_address(&call.operand, running.bytes)?;
    let results = (0..running.n)
        .map(|p| running.peer_region_address(&call.result, p, total))
        .collect::<Result<PerRank<_>>>()?;
    running.await_barrier()?;
    for p in running.peer_numbers().chain([running.me]) {
        let from = match pieces {
            PushedChunk::FullOperand => operand,
            PushedChunk::ReceiverChunk => operand.wrapping_add(p * piece),
        };
        copy_slices(running, results[p].wrapping_add(running.me * piece), from, piece);
    }
    running.exit_barrier()
}

/// The operands of all ranks of the cell, by number.
fn operand_addresses(running: &RunningCollective, bytes: usize) -> Result<PerRank<*const u8>> {
    (0..running.n)
        .map(|p| running.peer_region_address(&running.call.operand, p, bytes).map(|a| a.cast_const()))
        .collect()
}

/// The elements that the rank of number `p` reduces when the work is divided.
fn reduced_slice(running: &RunningCollective, p: usize) -> (usize, usize) {
    let unit = ALIGN / running.call.dtype.size();
    let units = running.call.elements.div_ceil(unit);
    let start = (units * p / running.n * unit).min(running.call.elements);
    let end = (units * (p + 1) / running.n * unit).min(running.call.elements);
    (start, end)
}

fn reduce_range(
    running: &RunningCollective,
    op: CollectiveReduceOp,
    operands: &[*const u8],
    outs: &[*mut u8],
    from: usize,
    to: usize,
) {
    let size = running.call.dtype.size();
    let reducer = running.reducer(op);
    let stores = StoreMode::for_size(running.bytes);
    let mut start = from;
    while start < to {
        let elements = (SLICE / size).min(to - start);
        let sources: PerRank<*const u8> = operands.iter().map(|o| o.wrapping_add(start * size)).collect();
        let outs: PerRank<*mut u8> = outs.iter().map(|o| o.wrapping_add(start * size)).collect();
        // SAFETY: the ranges were checked against their arenas when their addresses were resolved; the entry
        // barrier has passed, so peers have arrived and the contract lets this rank access them.
        unsafe { reducer.reduce(&sources, &outs, elements, stores) };
        start += elements;
        running.delay_peer_access();
    }
    stores.fence();
}
