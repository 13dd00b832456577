//! The plain variant: data passes through staging memory of its own, so that operands and results may lie
//! anywhere ([`super::stage`]). Also the collectives of a cell of one rank.
//!
//! All kinds but broadcast and permute wait for the first chunk of every peer before they write a result.

use symmc_control::CHUNK;
use symmc_ir::collective::{CollectiveKind, ReduceOp, Splits};

use super::copy::{Stores, copy};
use super::running::{PerRank, Running};
use super::stage::{Stage, share};
use crate::error::Result;

/// All-reduce up to this many bytes from all peers together is reduced by every rank.
const ONE_PHASE: usize = 64 << 10;

pub(super) fn run(running: &Running) -> Result<()> {
    match running.call.kind {
        CollectiveKind::AllReduce(op) if running.bytes * (running.n - 1) <= ONE_PHASE => {
            reduce_small(running, *op)
        }
        CollectiveKind::AllReduce(op) => all_reduce(running, *op),
        CollectiveKind::AllGather => all_gather(running),
        CollectiveKind::ReduceScatter(op) => reduce_scatter(running, *op),
        CollectiveKind::AllToAll(Splits::Even) => all_to_all(running),
        CollectiveKind::AllToAll(Splits::Device) => super::splits::run(running),
        CollectiveKind::Broadcast { root } => broadcast(running, *root as usize),
        CollectiveKind::Permute { pairs } => permute(running, pairs),
    }
}

/// The collective of a cell of one rank.
pub(super) fn alone(running: &Running) -> Result<()> {
    let call = running.call;
    if call.splits.is_some() {
        return super::splits::run(running);
    }
    let (operand, result) =
        (running.at(&call.operand, running.bytes)?, running.at(&call.result, running.bytes)?);
    let nobody_sends = matches!(call.kind, CollectiveKind::Permute { pairs } if pairs.is_empty());
    // SAFETY: both hold the bytes of the operand and are this rank's own.
    unsafe {
        match nobody_sends {
            true => std::ptr::write_bytes(result, 0, running.bytes),
            false => copy(result, operand, running.bytes, Stores::Cached),
        }
    }
    Ok(())
}

/// Element ranges of at most `most` elements that cover `elements`.
fn ranges(elements: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..elements.div_ceil(most)).map(move |i| (i * most, ((i + 1) * most).min(elements)))
}

/// One chunk, which every rank reduces as a whole.
fn reduce_small(running: &Running, op: ReduceOp) -> Result<()> {
    let call = running.call;
    let (operand, result) =
        (running.at(&call.operand, running.bytes)?, running.at(&call.result, running.bytes)?);
    let mut stage = Stage::new(running);
    let chunk = stage.next();
    stage.acquire(chunk)?;
    // SAFETY: the operand is smaller than a chunk; staging is this rank's to write until it publishes.
    unsafe { copy(stage.slot(running.me, chunk), operand, running.bytes, Stores::Cached) };
    stage.publish(chunk);
    stage.await_all(chunk)?;
    let sources: PerRank<*const u8> = (0..running.n)
        .map(|p| if p == running.me { operand.cast_const() } else { stage.slot(p, chunk).cast_const() })
        .collect();
    // SAFETY: all sources hold the operand's elements and are not written until this rank has drained.
    unsafe { running.reducer(op).reduce(&sources, &[result], call.elements, Stores::Cached) };
    stage.drained(chunk);
    Ok(())
}

/// Two chunks at a time: operands, of which each rank reduces one slice, then the reduced slices.
fn all_reduce(running: &Running, op: ReduceOp) -> Result<()> {
    let call = running.call;
    let size = call.dtype.size();
    let (operand, result) =
        (running.at(&call.operand, running.bytes)?, running.at(&call.result, running.bytes)?);
    let reducer = running.reducer(op);
    let mut stage = Stage::new(running);
    for (from, to) in ranges(call.elements, CHUNK / size) {
        // Byte offsets within the chunk of the slice of number `p`.
        let slice = |p: usize| ((to - from) * p / running.n * size, (to - from) * (p + 1) / running.n * size);
        let (operand, result) = (operand.wrapping_add(from * size), result.wrapping_add(from * size));
        let (low, high) = slice(running.me);
        let (raw, reduced) = (stage.next(), stage.next());

        stage.acquire(raw)?;
        for p in running.peers() {
            let (low, high) = slice(p);
            let to = stage.slot(running.me, raw).wrapping_add(low);
            // SAFETY: the slice lies within operand and chunk; the chunk is this rank's to write.
            unsafe { copy(to, operand.wrapping_add(low), high - low, Stores::Cached) };
        }
        stage.publish(raw);
        stage.await_all(raw)?;

        stage.acquire(reduced)?;
        let own = stage.slot(running.me, reduced);
        let sources: PerRank<*const u8> = (0..running.n)
            .map(|p| if p == running.me { operand.cast_const() } else { stage.slot(p, raw).cast_const() })
            .map(|base| base.wrapping_add(low))
            .collect();
        // SAFETY: slices lie within operand, result and chunks; published chunks are not written before
        // this rank has drained them.
        unsafe {
            reducer.reduce(&sources, &[result.wrapping_add(low), own], (high - low) / size, Stores::Cached)
        };
        stage.publish(reduced);
        for p in running.peers() {
            stage.await_one(p, reduced)?;
            let (low, high) = slice(p);
            // SAFETY: as above.
            unsafe { copy(result.wrapping_add(low), stage.slot(p, reduced), high - low, Stores::Cached) };
        }
        stage.drained(reduced);
    }
    Ok(())
}

fn all_gather(running: &Running) -> Result<()> {
    let call = running.call;
    let (operand, result) =
        (running.at(&call.operand, running.bytes)?, running.at(&call.result, running.bytes * running.n)?);
    let mut stage = Stage::new(running);
    for (from, to) in ranges(running.bytes, CHUNK) {
        let chunk = stage.next();
        stage.acquire(chunk)?;
        // SAFETY: the range lies within operand and chunk; the chunk is this rank's to write.
        unsafe { copy(stage.slot(running.me, chunk), operand.wrapping_add(from), to - from, Stores::Cached) };
        stage.publish(chunk);
        stage.await_all(chunk)?;
        for p in running.peers().chain([running.me]) {
            let source = if p == running.me { operand.wrapping_add(from) } else { stage.slot(p, chunk) };
            // SAFETY: the range lies within the piece of the result; the chunk is not written before this
            // rank has drained it.
            unsafe { copy(result.wrapping_add(p * running.bytes + from), source, to - from, Stores::Cached) };
        }
        stage.drained(chunk);
    }
    Ok(())
}

/// Puts a range of every peer's piece of the operand into this rank's chunk at `slot`, `share` bytes
/// for each.
fn stage_pieces(
    running: &Running,
    slot: *mut u8,
    share: usize,
    (operand, piece): (*const u8, usize),
    bytes: usize,
) {
    for p in running.peers() {
        let to = slot.wrapping_add(p * share);
        // SAFETY: the range lies within the operand's piece and within the peer's share of the chunk.
        unsafe { copy(to, operand.wrapping_add(p * piece), bytes, Stores::Cached) };
    }
}

fn reduce_scatter(running: &Running, op: ReduceOp) -> Result<()> {
    let call = running.call;
    let size = call.dtype.size();
    let (elements, piece) = (call.elements / running.n, running.bytes / running.n);
    let (operand, result) = (running.at(&call.operand, running.bytes)?, running.at(&call.result, piece)?);
    let reducer = running.reducer(op);
    let share = share(running)?;
    let mut stage = Stage::new(running);
    for (from, to) in ranges(elements, share / size) {
        let chunk = stage.next();
        let operand = operand.wrapping_add(from * size);
        stage.acquire(chunk)?;
        stage_pieces(running, stage.slot(running.me, chunk), share, (operand, piece), (to - from) * size);
        stage.publish(chunk);
        stage.await_all(chunk)?;
        let sources: PerRank<*const u8> = (0..running.n)
            .map(|p| match p == running.me {
                true => operand.cast_const().wrapping_add(p * piece),
                false => stage.slot(p, chunk).cast_const().wrapping_add(running.me * share),
            })
            .collect();
        // SAFETY: ranges lie within their pieces; chunks are not written before this rank has drained them.
        unsafe { reducer.reduce(&sources, &[result.wrapping_add(from * size)], to - from, Stores::Cached) };
        stage.drained(chunk);
    }
    Ok(())
}

fn all_to_all(running: &Running) -> Result<()> {
    let call = running.call;
    let piece = running.bytes / running.n;
    let (operand, result) =
        (running.at(&call.operand, running.bytes)?, running.at(&call.result, running.bytes)?);
    let share = share(running)?;
    let mut stage = Stage::new(running);
    for (from, to) in ranges(piece, share) {
        let chunk = stage.next();
        let operand = operand.wrapping_add(from);
        stage.acquire(chunk)?;
        stage_pieces(running, stage.slot(running.me, chunk), share, (operand, piece), to - from);
        stage.publish(chunk);
        stage.await_all(chunk)?;
        for p in running.peers().chain([running.me]) {
            let source = match p == running.me {
                true => operand.wrapping_add(p * piece),
                false => stage.slot(p, chunk).wrapping_add(running.me * share),
            };
            // SAFETY: ranges lie within their pieces; chunks are not written before this rank drained them.
            unsafe { copy(result.wrapping_add(p * piece + from), source, to - from, Stores::Cached) };
        }
        stage.drained(chunk);
    }
    Ok(())
}

fn broadcast(running: &Running, root: usize) -> Result<()> {
    let call = running.call;
    let (operand, result) =
        (running.at(&call.operand, running.bytes)?, running.at(&call.result, running.bytes)?);
    let mut stage = Stage::new(running);
    for (from, to) in ranges(running.bytes, CHUNK) {
        let chunk = stage.next();
        let source = if running.me == root {
            stage.acquire(chunk)?;
            // SAFETY: the range lies within operand and chunk; the chunk is this rank's to write.
            unsafe { copy(stage.slot(root, chunk), operand.wrapping_add(from), to - from, Stores::Cached) };
            operand.wrapping_add(from)
        } else {
            stage.await_one(root, chunk)?;
            stage.slot(root, chunk)
        };
        stage.publish(chunk);
        // SAFETY: the range lies within the result; the chunk is not written before this rank drained it.
        unsafe { copy(result.wrapping_add(from), source, to - from, Stores::Cached) };
        stage.drained(chunk);
    }
    Ok(())
}

fn permute(running: &Running, pairs: &[(u32, u32)]) -> Result<()> {
    let call = running.call;
    let (operand, result) =
        (running.at(&call.operand, running.bytes)?, running.at(&call.result, running.bytes)?);
    let sends = pairs.iter().any(|&(from, _)| from as usize == running.me);
    let sender = pairs.iter().find(|&&(_, to)| to as usize == running.me).map(|&(from, _)| from as usize);
    let mut stage = Stage::new(running);
    for (from, to) in ranges(running.bytes, CHUNK) {
        let chunk = stage.next();
        let operand = operand.wrapping_add(from);
        if sends {
            stage.acquire(chunk)?;
            // SAFETY: the range lies within operand and chunk; the chunk is this rank's to write.
            unsafe { copy(stage.slot(running.me, chunk), operand, to - from, Stores::Cached) };
        }
        stage.publish(chunk);
        let result = result.wrapping_add(from);
        match sender {
            Some(p) if p != running.me => {
                stage.await_one(p, chunk)?;
                // SAFETY: the range lies within the result; the chunk is not written before this rank
                // drained it.
                unsafe { copy(result, stage.slot(p, chunk), to - from, Stores::Cached) };
            }
            // SAFETY: the range lies within operand and result, which are this rank's own.
            Some(_) => unsafe { copy(result, operand, to - from, Stores::Cached) },
            // SAFETY: the range lies within the result.
            None => unsafe { std::ptr::write_bytes(result, 0, to - from) },
        }
        stage.drained(chunk);
    }
    Ok(())
}
