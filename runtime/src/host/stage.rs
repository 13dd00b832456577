//! Staging: memory of its own through which the data of a collective pass, chunk by chunk.
//!
//! Each rank has two chunks of staging for each group. All ranks of a cell count the chunks that they
//! exchange in the same way; chunk `c` lies in staging `c % 2`. A rank writes a chunk once all peers have
//! drained the one before the last (`drained` ≥ `c - 1`), then sets `filled` to `c + 1`; a reader waits for
//! that, and sets `drained` to `c + 1` when it needs nothing of that chunk any more from anybody.

use std::sync::atomic::Ordering;

use super::comm::{CHUNK, PER_RANK};
use super::control::Counter;
use super::turn::Turn;
use crate::error::RunError;

/// The staging of one collective.
pub(super) struct Stage<'a> {
    turn: &'a Turn<'a>,
    next: u32,
}

impl<'a> Stage<'a> {
    pub fn new(turn: &'a Turn<'a>) -> Self {
        Stage { turn, next: turn.group.chunks.load(Ordering::Relaxed) }
    }

    /// The next chunk.
    pub fn next(&mut self) -> u32 {
        let chunk = self.next;
        self.next = chunk.wrapping_add(1);
        self.turn.group.chunks.store(self.next, Ordering::Relaxed);
        chunk
    }

    /// The memory of a chunk of rank number `p`: [`CHUNK`] bytes.
    pub fn slot(&self, p: usize, chunk: u32) -> *mut u8 {
        let world = &self.turn.comm.world;
        let rank = self.turn.call.cell[p] as usize;
        let slot = self.turn.call.group * world.arenas.len() + rank;
        world.staging.as_ptr().wrapping_add(slot * PER_RANK + (chunk % 2) as usize * CHUNK)
    }

    /// Waits until this rank may write its memory of a chunk.
    pub fn acquire(&self, chunk: u32) -> Result<(), RunError> {
        self.turn.await_peers(Counter::Drained, chunk.wrapping_sub(1))
    }

    /// Hands this rank's chunk to the peers.
    pub fn publish(&self, chunk: u32) {
        self.turn.touch();
        self.turn.advance(Counter::Filled, chunk.wrapping_add(1));
    }

    /// Waits for a chunk of every peer.
    pub fn await_all(&self, chunk: u32) -> Result<(), RunError> {
        self.turn.await_peers(Counter::Filled, chunk.wrapping_add(1))?;
        self.turn.touch();
        Ok(())
    }

    /// Waits for a chunk of rank number `p`.
    pub fn await_one(&self, p: usize, chunk: u32) -> Result<(), RunError> {
        self.turn.await_peer(p, Counter::Filled, chunk.wrapping_add(1))
    }

    /// Says that this rank needs nothing of a chunk any more.
    pub fn drained(&self, chunk: u32) {
        self.turn.touch();
        self.turn.advance(Counter::Drained, chunk.wrapping_add(1));
    }
}

/// Bytes that each peer has in a chunk that is divided among the peers, a multiple of 8.
pub(super) fn share(turn: &Turn) -> Result<usize, RunError> {
    match CHUNK / turn.n / 8 * 8 {
        0 => Err(turn.fail(format!("expected at most {} ranks, found {}", CHUNK / 8, turn.n))),
        share => Ok(share),
    }
}
