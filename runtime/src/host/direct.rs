//! Variants that reach into the peers' arenas behind a barrier: one-shot and two-shot all-reduce, pull and
//! push.
//!
//! All of them have an entry barrier, so no peer is touched and no result is written before every peer has
//! arrived. Ranks begin with different peers, so that they do not all read the same memory at once.

use symmc_ir::collective::{CollectiveKind, ReduceOp, Splits, Variant};

use super::copy::Stores;
use super::running::{PerRank, Running, SLICE, copy_slices};
use crate::error::Result;

/// Slices of two-shot all-reduce begin at multiples of this.
const ALIGN: usize = 64;

pub(super) fn run(running: &Running) -> Result<()> {
    match (running.call.variant, running.call.kind) {
        (Variant::OneShot, CollectiveKind::AllReduce(op)) => one_shot(running, *op),
        (Variant::TwoShot, CollectiveKind::AllReduce(op)) => two_shot(running, *op),
        (Variant::Pull | Variant::PullCopies, CollectiveKind::AllGather) => pull_all_gather(running),
        (Variant::Pull, CollectiveKind::ReduceScatter(op)) => pull_reduce_scatter(running, *op),
        (Variant::Pull | Variant::PullCopies, CollectiveKind::AllToAll(Splits::Even)) => {
            pull_all_to_all(running)
        }
        (Variant::Pull, CollectiveKind::AllToAll(Splits::Device)) => super::splits::pull(running),
        (Variant::Push | Variant::Copies, CollectiveKind::AllGather) => push(running, Pieces::Whole),
        (Variant::Push | Variant::Copies, CollectiveKind::AllToAll(Splits::Even)) => {
            push(running, Pieces::Each)
        }
        (variant, kind) => {
            Err(running.fail(format!("the variant {variant} does not run {} on the host", kind.name())))
        }
    }
}

fn one_shot(running: &Running, op: ReduceOp) -> Result<()> {
    let call = running.call;
    let result = running.at(&call.result, running.bytes)?;
    let operands = operands(running, running.bytes)?;
    running.meet()?;
    // Each rank begins at another place.
    let start = slice(running, running.me).0;
    reduce_range(running, op, &operands, &[result], start, call.elements);
    reduce_range(running, op, &operands, &[result], 0, start);
    running.exit()
}

fn two_shot(running: &Running, op: ReduceOp) -> Result<()> {
    let call = running.call;
    let operands = operands(running, running.bytes)?;
    let order = std::iter::once(running.me).chain(running.peers());
    let results =
        order.map(|p| running.on(&call.result, p, running.bytes)).collect::<Result<PerRank<_>, _>>()?;
    running.meet()?;
    let (from, to) = slice(running, running.me);
    reduce_range(running, op, &operands, &results, from, to);
    running.exit()
}

fn pull_reduce_scatter(running: &Running, op: ReduceOp) -> Result<()> {
    let call = running.call;
    let piece = running.bytes / running.n;
    let result = running.at(&call.result, piece)?;
    let mut operands = operands(running, running.bytes)?;
    for operand in &mut operands {
        *operand = operand.wrapping_add(running.me * piece);
    }
    running.meet()?;
    reduce_range(running, op, &operands, &[result], 0, call.elements / running.n);
    running.exit()
}

fn pull_all_gather(running: &Running) -> Result<()> {
    let call = running.call;
    let result = running.at(&call.result, running.bytes * running.n)?;
    let operands = operands(running, running.bytes)?;
    running.meet()?;
    for p in running.peers().chain([running.me]) {
        copy_slices(running, result.wrapping_add(p * running.bytes), operands[p], running.bytes);
    }
    running.exit()
}

fn pull_all_to_all(running: &Running) -> Result<()> {
    let call = running.call;
    let piece = running.bytes / running.n;
    let result = running.at(&call.result, running.bytes)?;
    let operands = operands(running, running.bytes)?;
    running.meet()?;
    for p in running.peers().chain([running.me]) {
        let from = operands[p].wrapping_add(running.me * piece);
        copy_slices(running, result.wrapping_add(p * piece), from, piece);
    }
    running.exit()
}

enum Pieces {
    Whole,
    /// The piece of the receiver's number.
    Each,
}

fn push(running: &Running, pieces: Pieces) -> Result<()> {
    let call = running.call;
    let (piece, total) = match pieces {
        Pieces::Whole => (running.bytes, running.bytes * running.n),
        Pieces::Each => (running.bytes / running.n, running.bytes),
    };
    let operand = running.at(&call.operand, running.bytes)?;
    let results =
        (0..running.n).map(|p| running.on(&call.result, p, total)).collect::<Result<PerRank<_>>>()?;
    running.meet()?;
    for p in running.peers().chain([running.me]) {
        let from = match pieces {
            Pieces::Whole => operand,
            Pieces::Each => operand.wrapping_add(p * piece),
        };
        copy_slices(running, results[p].wrapping_add(running.me * piece), from, piece);
    }
    running.exit()
}

/// The operands of all ranks of the cell, by number.
fn operands(running: &Running, bytes: usize) -> Result<PerRank<*const u8>> {
    (0..running.n).map(|p| running.on(&running.call.operand, p, bytes).map(|a| a.cast_const())).collect()
}

/// The elements that the rank of number `p` reduces when the work is divided.
fn slice(running: &Running, p: usize) -> (usize, usize) {
    let unit = ALIGN / running.call.dtype.size();
    let units = running.call.elements.div_ceil(unit);
    let at = |p: usize| (units * p / running.n * unit).min(running.call.elements);
    (at(p), at(p + 1))
}

fn reduce_range(
    running: &Running,
    op: ReduceOp,
    operands: &[*const u8],
    outs: &[*mut u8],
    from: usize,
    to: usize,
) {
    let size = running.call.dtype.size();
    let reducer = running.reducer(op);
    let stores = Stores::of(running.bytes);
    let mut at = from;
    while at < to {
        let elements = (SLICE / size).min(to - at);
        let sources: PerRank<*const u8> = operands.iter().map(|o| o.wrapping_add(at * size)).collect();
        let outs: PerRank<*mut u8> = outs.iter().map(|o| o.wrapping_add(at * size)).collect();
        // SAFETY: the ranges were checked against their arenas when their addresses were taken; the entry
        // barrier has passed, so peers have arrived and the contract lets this rank touch them.
        unsafe { reducer.reduce(&sources, &outs, elements, stores) };
        at += elements;
        running.touch();
    }
    stores.settle();
}
