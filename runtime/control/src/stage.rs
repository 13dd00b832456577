//! Staging: separate memory through which the data of a collective passes, chunk by chunk.
//!
//! Each rank has two chunks of staging for each group. All ranks of a cell count the chunks that they
//! exchange in the same way; chunk `c` lies in staging `c % 2`. A rank writes a chunk once all peers have
//! drained the one before the last (`drained` ≥ `c - 1`), then sets `filled` to `c + 1`. A reader waits for
//! that, and sets `drained` to `c + 1` when it has read everything that it needs from that chunk of all
//! peers.

use crate::control::GroupCounter;
use crate::domain::{CHUNK, PER_RANK};
use crate::error::Result;
use crate::rendezvous::StepRendezvous;

pub struct ChunkStage<'a> {
    step: &'a StepRendezvous<'a>,
    next: u32,
}

impl<'a> ChunkStage<'a> {
    /// The staging of a step, in which every rank publishes each chunk that it counts.
    pub fn new(step: &'a StepRendezvous<'a>) -> Self {
        ChunkStage { step, next: step.own_counter(GroupCounter::Filled) }
    }

    pub fn next_chunk(&mut self) -> u32 {
        let chunk = self.next;
        self.next = chunk.wrapping_add(1);
        chunk
    }

    /// The memory of a chunk of rank number `p`: [`CHUNK`] bytes.
    pub fn chunk_address(&self, p: usize, chunk: u32) -> *mut u8 {
        let domain = &self.step.comm.domain;
        let rank = self.step.info.cell[p] as usize;
        let slot = self.step.info.group * domain.arenas.len() + rank;
        domain.staging.as_ptr().wrapping_add(slot * PER_RANK + (chunk % 2) as usize * CHUNK)
    }

    /// Waits until this rank may write its memory of a chunk.
    pub fn acquire_chunk(&self, chunk: u32) -> Result<()> {
        self.step.await_peers(GroupCounter::Drained, chunk.wrapping_sub(1))
    }

    /// Publishes this rank's chunk to the peers.
    pub fn publish_chunk(&self, chunk: u32) {
        self.step.delay_peer_access();
        self.step.advance_counter(GroupCounter::Filled, chunk.wrapping_add(1));
    }

    pub fn await_all_chunks(&self, chunk: u32) -> Result<()> {
        self.step.await_peers(GroupCounter::Filled, chunk.wrapping_add(1))?;
        self.step.delay_peer_access();
        Ok(())
    }

    /// Waits for a chunk of rank number `p`.
    pub fn await_peer_chunk(&self, p: usize, chunk: u32) -> Result<()> {
        self.step.await_peer(p, GroupCounter::Filled, chunk.wrapping_add(1))
    }

    /// Releases a chunk of all peers after this rank has read it.
    pub fn release_chunk(&self, chunk: u32) {
        self.step.delay_peer_access();
        self.step.advance_counter(GroupCounter::Drained, chunk.wrapping_add(1));
    }
}

/// Bytes of each peer in a chunk that is divided among the peers, a multiple of 8.
pub fn chunk_share(step: &StepRendezvous) -> Result<usize> {
    let share = CHUNK / step.n / 8 * 8;
    if share == 0 {
        return Err(step.call_error(format!("expected at most {} ranks, found {}", CHUNK / 8, step.n)));
    }
    Ok(share)
}
