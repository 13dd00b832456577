//! Variants that reach into the peers' arenas behind a barrier: one-shot and two-shot all-reduce, pull and
//! push.
//!
//! All of them have an entry barrier, so no peer is touched and no result is written before every peer has
//! arrived. Ranks begin with different peers, so that they do not all read the same memory at once.

use symmc_ir::collective::{CollectiveKind, ReduceOp, Splits, Variant};

use super::copy::Stores;
use super::turn::{PerRank, SLICE, Turn, copy_slices};
use crate::error::RunError;

/// Slices of two-shot all-reduce begin at multiples of this.
const ALIGN: usize = 64;

pub(super) fn run(turn: &Turn) -> Result<(), RunError> {
    match (turn.call.variant, turn.call.kind) {
        (Variant::OneShot, CollectiveKind::AllReduce(op)) => one_shot(turn, *op),
        (Variant::TwoShot, CollectiveKind::AllReduce(op)) => two_shot(turn, *op),
        (Variant::Pull, CollectiveKind::AllGather) => pull_all_gather(turn),
        (Variant::Pull, CollectiveKind::ReduceScatter(op)) => pull_reduce_scatter(turn, *op),
        (Variant::Pull, CollectiveKind::AllToAll(Splits::Even)) => pull_all_to_all(turn),
        (Variant::Pull, CollectiveKind::AllToAll(Splits::Device)) => super::splits::pull(turn),
        (Variant::Push | Variant::Copies, CollectiveKind::AllGather) => push(turn, Pieces::Whole),
        (Variant::Push | Variant::Copies, CollectiveKind::AllToAll(Splits::Even)) => push(turn, Pieces::Each),
        (variant, kind) => {
            Err(turn.fail(format!("the variant {variant} does not run {} on the host", kind.name())))
        }
    }
}

fn one_shot(turn: &Turn, op: ReduceOp) -> Result<(), RunError> {
    let call = turn.call;
    let result = turn.at(&call.result, turn.bytes)?;
    let operands = operands(turn, turn.bytes)?;
    turn.meet()?;
    // Each rank begins at another place.
    let start = slice(turn, turn.me).0;
    reduce_range(turn, op, &operands, &[result], start, call.elements);
    reduce_range(turn, op, &operands, &[result], 0, start);
    turn.exit()
}

fn two_shot(turn: &Turn, op: ReduceOp) -> Result<(), RunError> {
    let call = turn.call;
    let operands = operands(turn, turn.bytes)?;
    let order = std::iter::once(turn.me).chain(turn.peers());
    let results = order.map(|p| turn.on(&call.result, p, turn.bytes)).collect::<Result<PerRank<_>, _>>()?;
    turn.meet()?;
    let (from, to) = slice(turn, turn.me);
    reduce_range(turn, op, &operands, &results, from, to);
    turn.exit()
}

fn pull_reduce_scatter(turn: &Turn, op: ReduceOp) -> Result<(), RunError> {
    let call = turn.call;
    let piece = turn.bytes / turn.n;
    let result = turn.at(&call.result, piece)?;
    let mut operands = operands(turn, turn.bytes)?;
    for operand in &mut operands {
        *operand = operand.wrapping_add(turn.me * piece);
    }
    turn.meet()?;
    reduce_range(turn, op, &operands, &[result], 0, call.elements / turn.n);
    turn.exit()
}

fn pull_all_gather(turn: &Turn) -> Result<(), RunError> {
    let call = turn.call;
    let result = turn.at(&call.result, turn.bytes * turn.n)?;
    let operands = operands(turn, turn.bytes)?;
    turn.meet()?;
    for p in turn.peers().chain([turn.me]) {
        copy_slices(turn, result.wrapping_add(p * turn.bytes), operands[p], turn.bytes);
    }
    turn.exit()
}

fn pull_all_to_all(turn: &Turn) -> Result<(), RunError> {
    let call = turn.call;
    let piece = turn.bytes / turn.n;
    let result = turn.at(&call.result, turn.bytes)?;
    let operands = operands(turn, turn.bytes)?;
    turn.meet()?;
    for p in turn.peers().chain([turn.me]) {
        let from = operands[p].wrapping_add(turn.me * piece);
        copy_slices(turn, result.wrapping_add(p * piece), from, piece);
    }
    turn.exit()
}

/// What a rank sends to each.
enum Pieces {
    /// Its whole operand.
    Whole,
    /// The piece of the receiver's number.
    Each,
}

fn push(turn: &Turn, pieces: Pieces) -> Result<(), RunError> {
    let call = turn.call;
    let (piece, total) = match pieces {
        Pieces::Whole => (turn.bytes, turn.bytes * turn.n),
        Pieces::Each => (turn.bytes / turn.n, turn.bytes),
    };
    let operand = turn.at(&call.operand, turn.bytes)?;
    let results =
        (0..turn.n).map(|p| turn.on(&call.result, p, total)).collect::<Result<PerRank<_>, RunError>>()?;
    turn.meet()?;
    for p in turn.peers().chain([turn.me]) {
        let from = match pieces {
            Pieces::Whole => operand,
            Pieces::Each => operand.wrapping_add(p * piece),
        };
        copy_slices(turn, results[p].wrapping_add(turn.me * piece), from, piece);
    }
    turn.exit()
}

/// The operands of all ranks of the cell, by number.
fn operands(turn: &Turn, bytes: usize) -> Result<PerRank<*const u8>, RunError> {
    (0..turn.n).map(|p| turn.on(&turn.call.operand, p, bytes).map(|a| a.cast_const())).collect()
}

/// The elements that the rank of number `p` reduces when the work is divided.
fn slice(turn: &Turn, p: usize) -> (usize, usize) {
    let unit = ALIGN / turn.call.dtype.size();
    let units = turn.call.elements.div_ceil(unit);
    let at = |p: usize| (units * p / turn.n * unit).min(turn.call.elements);
    (at(p), at(p + 1))
}

/// Reduces the elements from `from` to `to` into all `outs`.
fn reduce_range(turn: &Turn, op: ReduceOp, operands: &[*const u8], outs: &[*mut u8], from: usize, to: usize) {
    let size = turn.call.dtype.size();
    let reducer = turn.reducer(op);
    let stores = Stores::of(turn.bytes);
    let mut at = from;
    while at < to {
        let elements = (SLICE / size).min(to - at);
        let sources: PerRank<*const u8> = operands.iter().map(|o| o.wrapping_add(at * size)).collect();
        let outs: PerRank<*mut u8> = outs.iter().map(|o| o.wrapping_add(at * size)).collect();
        // SAFETY: the ranges were checked against their arenas when their addresses were taken; the entry
        // barrier has passed, so peers have arrived and the contract lets this rank touch them.
        unsafe { reducer.reduce(&sources, &outs, elements, stores) };
        at += elements;
        turn.touch();
    }
    stores.settle();
}
