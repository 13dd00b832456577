//! Staging: memory of its own through which the data of a collective pass, chunk by chunk.
//!
//! Each rank has two chunks of staging for each group. All ranks of a cell count the chunks that they
//! exchange in the same way; chunk `c` lies in staging `c % 2`. A rank writes a chunk once all peers have
//! drained the one before the last (`drained` ≥ `c - 1`), then sets `filled` to `c + 1`; a reader waits for
//! that, and sets `drained` to `c + 1` when it needs nothing of that chunk any more from anybody.

use std::sync::atomic::Ordering;

use symmc_control::{CHUNK, Counter, PER_RANK};

use super::running::Running;
use crate::error::Result;

pub(super) struct Stage<'a> {
    running: &'a Running<'a>,
    next: u32,
}

impl<'a> Stage<'a> {
    pub fn new(running: &'a Running<'a>) -> Self {
        Stage { running, next: running.group.chunks.load(Ordering::Relaxed) }
    }

    pub fn next(&mut self) -> u32 {
        let chunk = self.next;
        self.next = chunk.wrapping_add(1);
        self.running.group.chunks.store(self.next, Ordering::Relaxed);
        chunk
    }

    /// The memory of a chunk of rank number `p`: [`CHUNK`] bytes.
    pub fn slot(&self, p: usize, chunk: u32) -> *mut u8 {
        let domain = &self.running.comm.domain;
        let rank = self.running.call.cell[p] as usize;
        let slot = self.running.call.group * domain.arenas.len() + rank;
        domain.staging.as_ptr().wrapping_add(slot * PER_RANK + (chunk % 2) as usize * CHUNK)
    }

    /// Waits until this rank may write its memory of a chunk.
    pub fn acquire(&self, chunk: u32) -> Result<()> {
        self.running.await_peers(Counter::Drained, chunk.wrapping_sub(1))
    }

    /// Hands this rank's chunk to the peers.
    pub fn publish(&self, chunk: u32) {
        self.running.touch();
        self.running.advance(Counter::Filled, chunk.wrapping_add(1));
    }

    pub fn await_all(&self, chunk: u32) -> Result<()> {
        self.running.await_peers(Counter::Filled, chunk.wrapping_add(1))?;
        self.running.touch();
        Ok(())
    }

    /// Waits for a chunk of rank number `p`.
    pub fn await_one(&self, p: usize, chunk: u32) -> Result<()> {
        self.running.await_peer(p, Counter::Filled, chunk.wrapping_add(1))
    }

    /// Says that this rank needs nothing of a chunk any more.
    pub fn drained(&self, chunk: u32) {
        self.running.touch();
        self.running.advance(Counter::Drained, chunk.wrapping_add(1));
    }
}

/// Bytes that each peer has in a chunk that is divided among the peers, a multiple of 8.
pub(super) fn share(running: &Running) -> Result<usize> {
    match CHUNK / running.n / 8 * 8 {
        0 => Err(running.fail(format!("expected at most {} ranks, found {}", CHUNK / 8, running.n))),
        share => Ok(share),
    }
}
