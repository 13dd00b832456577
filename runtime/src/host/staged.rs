//! The plain variant: data passes through separate staging memory, so that operands and results may lie
//! anywhere ([`super::stage`]). Also the collectives of a cell of one rank.
//!
//! All kinds except broadcast and permute wait for the first chunk of every peer before they write a result.

use symmc_control::{CHUNK, ChunkStage, chunk_share};
use symmc_ir::collective::{AllToAllSplits, CollectiveKind, CollectiveReduceOp};

use super::copy::{StoreMode, copy_bytes};
use super::running::{PerRank, RunningCollective};
use crate::error::Result;

/// An all-reduce of up to this many bytes from all peers together is reduced completely by every rank.
const ONE_PHASE: usize = 64 << 10;

pub(super) fn run(running: &RunningCollective) -> Result<()> {
    match running.call.kind {
        CollectiveKind::AllReduce(op) if running.bytes * (running.n - 1) <= ONE_PHASE => {
            reduce_small(running, *op)
        }
        CollectiveKind::AllReduce(op) => all_reduce(running, *op),
        CollectiveKind::AllGather => all_gather(running),
        CollectiveKind::ReduceScatter(op) => reduce_scatter(running, *op),
        CollectiveKind::AllToAll(AllToAllSplits::Even) => all_to_all(running),
        CollectiveKind::AllToAll(AllToAllSplits::Device) => super::splits::run(running),
        CollectiveKind::DispatchRows | CollectiveKind::CombineRows => super::rows::run_staged(running),
        CollectiveKind::ReduceRows => super::row_sums::run_staged(running),
        CollectiveKind::Broadcast { root } => broadcast(running, *root as usize),
        CollectiveKind::Permute { pairs } => permute(running, pairs),
    }
}

/// The collective of a cell of one rank.
pub(super) fn run_single_rank(running: &RunningCollective) -> Result<()> {
    let call = running.call;
    if call.splits.is_some() {
        return super::splits::run(running);
    }
    if *call.kind == CollectiveKind::ReduceRows {
        return super::row_sums::run_staged(running);
    }
    if call.rows.is_some() {
        return super::rows::run_staged(running);
    }
    let operand = running.region_address(&call.operand, running.bytes)?;
    let result = running.region_address(&call.result, running.bytes)?;
    let nobody_sends = matches!(call.kind, CollectiveKind::Permute { pairs } if pairs.is_empty());
    // SAFETY: both hold the bytes of the operand and belong to this rank.
    unsafe {
        if nobody_sends {
            std::ptr::write_bytes(result, 0, running.bytes);
        } else {
            copy_bytes(result, operand, running.bytes, StoreMode::Cached);
        }
    }
    Ok(())
}

/// Element ranges of at most `max_elements` elements that cover `elements`.
fn chunk_ranges(elements: usize, max_elements: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..elements.div_ceil(max_elements))
        .map(move |i| (i * max_elements, ((i + 1) * max_elements).min(elements)))
}

/// One chunk, which every rank reduces completely.
fn reduce_small(running: &RunningCollective, op: CollectiveReduceOp) -> Result<()> {
    let call = running.call;
    let operand = running.region_address(&call.operand, running.bytes)?;
    let result = running.region_address(&call.result, running.bytes)?;
    let mut stage = ChunkStage::new(running);
    let chunk = stage.next_chunk();
    stage.acquire_chunk(chunk)?;
    // SAFETY: the operand is smaller than a chunk; this rank may write its staging until it publishes.
    unsafe { copy_bytes(stage.chunk_address(running.me, chunk), operand, running.bytes, StoreMode::Cached) };
    stage.publish_chunk(chunk);
    stage.await_all_chunks(chunk)?;
    let sources: PerRank<*const u8> =
        (0..running.n)
            .map(|p| {
                if p == running.me {
                    operand.cast_const()
                } else {
                    stage.chunk_address(p, chunk).cast_const()
                }
            })
            .collect();
    // SAFETY: all sources hold the operand's elements and are not written until this rank has drained.
    unsafe { running.reducer(op).reduce(&sources, &[result], call.elements, StoreMode::Cached) };
    stage.release_chunk(chunk);
    Ok(())
}

/// Two chunks at a time: the operands, then the slices that each rank has reduced.
fn all_reduce(running: &RunningCollective, op: CollectiveReduceOp) -> Result<()> {
    let call = running.call;
    let size = call.dtype.size();
    let operand = running.region_address(&call.operand, running.bytes)?;
    let result = running.region_address(&call.result, running.bytes)?;
    let reducer = running.reducer(op);
    let mut stage = ChunkStage::new(running);
    for (from, to) in chunk_ranges(call.elements, CHUNK / size) {
        // Byte offsets within the chunk of the slice of number `p`.
        let slice = |p: usize| ((to - from) * p / running.n * size, (to - from) * (p + 1) / running.n * size);
        let operand = operand.wrapping_add(from * size);
        let result = result.wrapping_add(from * size);
        let (low, high) = slice(running.me);
        let raw = stage.next_chunk();
        let reduced = stage.next_chunk();

        stage.acquire_chunk(raw)?;
        for p in running.peer_numbers() {
            let (low, high) = slice(p);
            let destination = stage.chunk_address(running.me, raw).wrapping_add(low);
            // SAFETY: the slice lies within operand and chunk; this rank may write the chunk now.
            unsafe { copy_bytes(destination, operand.wrapping_add(low), high - low, StoreMode::Cached) };
        }
        stage.publish_chunk(raw);
        stage.await_all_chunks(raw)?;

        stage.acquire_chunk(reduced)?;
        let reduced_slice = stage.chunk_address(running.me, reduced);
        let sources: PerRank<*const u8> = (0..running.n)
            .map(|p| {
                if p == running.me { operand.cast_const() } else { stage.chunk_address(p, raw).cast_const() }
            })
            .map(|base| base.wrapping_add(low))
            .collect();
        // SAFETY: slices lie within operand, result and chunks; published chunks are not written before
        // this rank has drained them.
        unsafe {
            reducer.reduce(
                &sources,
                &[result.wrapping_add(low), reduced_slice],
                (high - low) / size,
                StoreMode::Cached,
            )
        };
        stage.publish_chunk(reduced);
        for p in running.peer_numbers() {
            stage.await_peer_chunk(p, reduced)?;
            let (low, high) = slice(p);
            // SAFETY: as above.
            unsafe {
                copy_bytes(
                    result.wrapping_add(low),
                    stage.chunk_address(p, reduced),
                    high - low,
                    StoreMode::Cached,
                )
            };
        }
        stage.release_chunk(reduced);
    }
    Ok(())
}

fn all_gather(running: &RunningCollective) -> Result<()> {
    let call = running.call;
    let operand = running.region_address(&call.operand, running.bytes)?;
    let result = running.region_address(&call.result, running.bytes * running.n)?;
    let mut stage = ChunkStage::new(running);
    for (from, to) in chunk_ranges(running.bytes, CHUNK) {
        let chunk = stage.next_chunk();
        stage.acquire_chunk(chunk)?;
        // SAFETY: the range lies within operand and chunk; this rank may write the chunk now.
        unsafe {
            copy_bytes(
                stage.chunk_address(running.me, chunk),
                operand.wrapping_add(from),
                to - from,
                StoreMode::Cached,
            )
        };
        stage.publish_chunk(chunk);
        stage.await_all_chunks(chunk)?;
        for p in running.peer_numbers().chain([running.me]) {
            let source =
                if p == running.me { operand.wrapping_add(from) } else { stage.chunk_address(p, chunk) };
            // SAFETY: the range lies within the piece of the result; the chunk is not written before this
            // rank has drained it.
            unsafe {
                copy_bytes(
                    result.wrapping_add(p * running.bytes + from),
                    source,
                    to - from,
                    StoreMode::Cached,
                )
            };
        }
        stage.release_chunk(chunk);
    }
    Ok(())
}

/// Copies a range of every peer's piece of the operand into this rank's chunk at `slot`, `share` bytes for
/// each.
fn stage_pieces(
    running: &RunningCollective,
    slot: *mut u8,
    share: usize,
    operand: *const u8,
    piece: usize,
    bytes: usize,
) {
    for p in running.peer_numbers() {
        let destination = slot.wrapping_add(p * share);
        // SAFETY: the range lies within the operand's piece and within the peer's share of the chunk.
        unsafe { copy_bytes(destination, operand.wrapping_add(p * piece), bytes, StoreMode::Cached) };
    }
}

fn reduce_scatter(running: &RunningCollective, op: CollectiveReduceOp) -> Result<()> {
    let call = running.call;
    let size = call.dtype.size();
    let elements = call.elements / running.n;
    let piece = running.bytes / running.n;
    let operand = running.region_address(&call.operand, running.bytes)?;
    let result = running.region_address(&call.result, piece)?;
    let reducer = running.reducer(op);
    let share = chunk_share(running)?;
    let mut stage = ChunkStage::new(running);
    for (from, to) in chunk_ranges(elements, share / size) {
        let chunk = stage.next_chunk();
        let operand = operand.wrapping_add(from * size);
        stage.acquire_chunk(chunk)?;
        stage_pieces(
            running,
            stage.chunk_address(running.me, chunk),
            share,
            operand,
            piece,
            (to - from) * size,
        );
        stage.publish_chunk(chunk);
        stage.await_all_chunks(chunk)?;
        let sources: PerRank<*const u8> = (0..running.n)
            .map(|p| {
                if p == running.me {
                    operand.cast_const().wrapping_add(p * piece)
                } else {
                    stage.chunk_address(p, chunk).cast_const().wrapping_add(running.me * share)
                }
            })
            .collect();
        // SAFETY: ranges lie within their pieces; chunks are not written before this rank has drained them.
        unsafe {
            reducer.reduce(&sources, &[result.wrapping_add(from * size)], to - from, StoreMode::Cached)
        };
        stage.release_chunk(chunk);
    }
    Ok(())
}

fn all_to_all(running: &RunningCollective) -> Result<()> {
    let call = running.call;
    let piece = running.bytes / running.n;
    let operand = running.region_address(&call.operand, running.bytes)?;
    let result = running.region_address(&call.result, running.bytes)?;
    let share = chunk_share(running)?;
    let mut stage = ChunkStage::new(running);
    for (from, to) in chunk_ranges(piece, share) {
        let chunk = stage.next_chunk();
        let operand = operand.wrapping_add(from);
        stage.acquire_chunk(chunk)?;
        stage_pieces(running, stage.chunk_address(running.me, chunk), share, operand, piece, to - from);
        stage.publish_chunk(chunk);
        stage.await_all_chunks(chunk)?;
        for p in running.peer_numbers().chain([running.me]) {
            let source = if p == running.me {
                operand.wrapping_add(p * piece)
            } else {
                stage.chunk_address(p, chunk).wrapping_add(running.me * share)
            };
            // SAFETY: ranges lie within their pieces; chunks are not written before this rank drained them.
            unsafe {
                copy_bytes(result.wrapping_add(p * piece + from), source, to - from, StoreMode::Cached)
            };
        }
        stage.release_chunk(chunk);
    }
    Ok(())
}

fn broadcast(running: &RunningCollective, root: usize) -> Result<()> {
    let call = running.call;
    let operand = running.region_address(&call.operand, running.bytes)?;
    let result = running.region_address(&call.result, running.bytes)?;
    let mut stage = ChunkStage::new(running);
    for (from, to) in chunk_ranges(running.bytes, CHUNK) {
        let chunk = stage.next_chunk();
        let source = if running.me == root {
            stage.acquire_chunk(chunk)?;
            // SAFETY: the range lies within operand and chunk; this rank may write the chunk now.
            unsafe {
                copy_bytes(
                    stage.chunk_address(root, chunk),
                    operand.wrapping_add(from),
                    to - from,
                    StoreMode::Cached,
                )
            };
            operand.wrapping_add(from)
        } else {
            stage.await_peer_chunk(root, chunk)?;
            stage.chunk_address(root, chunk)
        };
        stage.publish_chunk(chunk);
        // SAFETY: the range lies within the result; the chunk is not written before this rank drained it.
        unsafe { copy_bytes(result.wrapping_add(from), source, to - from, StoreMode::Cached) };
        stage.release_chunk(chunk);
    }
    Ok(())
}

fn permute(running: &RunningCollective, pairs: &[(u32, u32)]) -> Result<()> {
    let call = running.call;
    let operand = running.region_address(&call.operand, running.bytes)?;
    let result = running.region_address(&call.result, running.bytes)?;
    let sends = pairs.iter().any(|&(from, _)| from as usize == running.me);
    let sender = pairs.iter().find(|&&(_, to)| to as usize == running.me).map(|&(from, _)| from as usize);
    let mut stage = ChunkStage::new(running);
    for (from, to) in chunk_ranges(running.bytes, CHUNK) {
        let chunk = stage.next_chunk();
        let operand = operand.wrapping_add(from);
        if sends {
            stage.acquire_chunk(chunk)?;
            // SAFETY: the range lies within operand and chunk; this rank may write the chunk now.
            unsafe {
                copy_bytes(stage.chunk_address(running.me, chunk), operand, to - from, StoreMode::Cached)
            };
        }
        stage.publish_chunk(chunk);
        let result = result.wrapping_add(from);
        match sender {
            Some(p) if p != running.me => {
                stage.await_peer_chunk(p, chunk)?;
                // SAFETY: the range lies within the result; the chunk is not written before this rank
                // drained it.
                unsafe { copy_bytes(result, stage.chunk_address(p, chunk), to - from, StoreMode::Cached) };
            }
            // SAFETY: the range lies within operand and result, which belong to this rank.
            Some(_) => unsafe { copy_bytes(result, operand, to - from, StoreMode::Cached) },
            // SAFETY: the range lies within the result.
            None => unsafe { std::ptr::write_bytes(result, 0, to - from) },
        }
        stage.release_chunk(chunk);
    }
    Ok(())
}
