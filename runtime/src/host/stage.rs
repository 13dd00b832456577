//! Staging: separate memory through which the data of a collective passes, chunk by chunk.
//!
//! Each rank has two chunks of staging for each group. All ranks of a cell count the chunks that they
//! exchange in the same way; chunk `c` lies in staging `c % 2`. A rank writes a chunk once all peers have
//! drained the one before the last (`drained` ≥ `c - 1`), then sets `filled` to `c + 1`. A reader waits for
//! that, and sets `drained` to `c + 1` when it has read everything that it needs from that chunk of all
//! peers.

use std::sync::atomic::Ordering;

use symmc_control::{CHUNK, GroupCounter, PER_RANK};

use super::running::RunningCollective;
use crate::error::Result;

pub(super) struct ChunkStage<'a> {
    running: &'a RunningCollective<'a>,
    next: u32,
}

impl<'a> ChunkStage<'a> {
    pub fn new(running: &'a RunningCollective<'a>) -> Self {
        ChunkStage { running, next: running.group.chunks.load(Ordering::Relaxed) }
    }

    pub fn next_chunk(&mut self) -> u32 {
        let chunk = self.next;
        self.next = chunk.wrapping_add(1);
        self.running.group.chunks.store(self.next, Ordering::Relaxed);
        chunk
    }

    /// The memory of a chunk of rank number `p`: [`CHUNK`] bytes.
    pub fn chunk_address(&self, p: usize, chunk: u32) -> *mut u8 {
        let domain = &self.running.comm.domain;
        let rank = self.running.call.cell[p] as usize;
        let slot = self.running.call.group * domain.arenas.len() + rank;
        domain.staging.as_ptr().wrapping_add(slot * PER_RANK + (chunk % 2) as usize * CHUNK)
    }

    /// Waits until this rank may write its memory of a chunk.
    pub fn acquire_chunk(&self, chunk: u32) -> Result<()> {
        self.running.await_peers(GroupCounter::Drained, chunk.wrapping_sub(1))
    }

    /// Publishes this rank's chunk to the peers.
    pub fn publish_chunk(&self, chunk: u32) {
        self.running.delay_peer_access();
        self.running.advance_counter(GroupCounter::Filled, chunk.wrapping_add(1));
    }

    pub fn await_all_chunks(&self, chunk: u32) -> Result<()> {
        self.running.await_peers(GroupCounter::Filled, chunk.wrapping_add(1))?;
        self.running.delay_peer_access();
        Ok(())
    }

    /// Waits for a chunk of rank number `p`.
    pub fn await_peer_chunk(&self, p: usize, chunk: u32) -> Result<()> {
        self.running.await_peer(p, GroupCounter::Filled, chunk.wrapping_add(1))
    }

    /// Releases a chunk of all peers after this rank has read it.
    pub fn release_chunk(&self, chunk: u32) {
        self.running.delay_peer_access();
        self.running.advance_counter(GroupCounter::Drained, chunk.wrapping_add(1));
    }
}

/// Bytes of each peer in a chunk that is divided among the peers, a multiple of 8.
pub(super) fn chunk_share(running: &RunningCollective) -> Result<usize> {
    let share = CHUNK / running.n / 8 * 8;
    if share == 0 {
        return Err(running.call_error(format!("expected at most {} ranks, found {}", CHUNK / 8, running.n)));
    }
    Ok(share)
}
