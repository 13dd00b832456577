//! Reduce-rows: each rank adds its own rows of the tokens of all ranks, and the rank of a token adds the sums.
//! The sums of peers come by pushing or through staging.

use std::ops::Range;

use symmc_control::{CHUNK, ChunkStage};

use super::copy::{StoreMode, copy_bytes};
use super::rows::{read_table, read_weights};
use super::running::{PerRank, RunningCollective};
use crate::call::{CallRegion, RowTableKind, RowTables};
use crate::error::Result;
use crate::kernels::RowSum;

/// A reduction on one rank.
struct RowReduction<'a> {
    running: &'a RunningCollective<'a>,
    tokens: usize,
    slots: usize,
    operand: *const u8,
    result: *mut u8,
    /// The sums of the other ranks, a result.
    sums: CallRegion<'a>,
    /// The row of this rank that each slot of all ranks has, if any.
    own_rows: Vec<Option<usize>>,
    /// Empty if all weights are 1.
    weights: Vec<f64>,
    sum: RowSum,
}

/// Writes the sums for the tokens of peers into their results between an entry and an exit barrier.
pub(super) fn push(running: &RunningCollective) -> Result<()> {
    let mut reduction = RowReduction::new(running)?;
    let bytes = reduction.sums_bytes();
    let sums = (0..running.n).map(|p| running.peer_region_address(&reduction.sums, p, bytes));
    let sums = sums.collect::<Result<PerRank<_>>>()?;
    running.await_barrier()?;
    for p in running.peer_numbers() {
        let piece = reduction.piece_of(p, running.me);
        for token in 0..reduction.tokens {
            reduction.add_own_rows(p, token);
            let offset = reduction.sum_offset(piece, token);
            // SAFETY: the result of the peer has a row for each token and other rank, and only this rank
            // writes this piece of it.
            unsafe { reduction.sum.store_accumulated(sums[p].wrapping_add(offset)) };
        }
        running.delay_peer_access();
    }
    running.exit_barrier()?;
    reduction.store_results(sums[running.me]);
    Ok(())
}

/// Moves the sums through staging.
pub(super) fn run_staged(running: &RunningCollective) -> Result<()> {
    let mut reduction = RowReduction::new(running)?;
    let bytes = reduction.sums_bytes();
    let sums = running.region_address(&reduction.sums, bytes)?;
    if running.n > 1 {
        reduction.exchange_sums(sums)?;
    }
    reduction.store_results(sums);
    Ok(())
}

impl<'a> RowReduction<'a> {
    fn new(running: &'a RunningCollective<'a>) -> Result<Self> {
        let call = running.call;
        let Some(RowTables { tables, tokens, slots, capacity }) = &call.rows else {
            return Err(running.call_error("expected tables of rows, found none".into()));
        };
        let RowTableKind::Reduce { all_rows, all_weights, sums } = tables else {
            return Err(running.call_error("expected the rows of all ranks".into()));
        };
        if call.elements != capacity * call.row {
            let (row, elements) = (call.row, call.elements);
            return Err(running.call_error(format!(
                "expected {capacity} rows of {row} elements, found {elements} elements"
            )));
        }
        let count = running.n * tokens * slots;
        let weights = all_weights.as_ref().map(|weights| read_weights(running, weights, count));
        let row_bytes = call.row * call.dtype.size();
        Ok(RowReduction {
            running,
            tokens: *tokens,
            slots: *slots,
            operand: running.region_address(&call.operand, running.bytes)?,
            result: running.region_address(&call.result, tokens * row_bytes)?,
            sums: *sums,
            own_rows: own_rows(running, &read_table(running, all_rows, count)?, *capacity)?,
            weights: weights.transpose()?.unwrap_or_default(),
            sum: RowSum::new(call.dtype, call.row),
        })
    }

    fn row_bytes(&self) -> usize {
        self.running.call.row * self.running.call.dtype.size()
    }

    fn sums_bytes(&self) -> usize {
        self.sum_offset(self.running.n - 1, 0)
    }

    /// The piece of the sums of rank `p` that rank `from` writes.
    fn piece_of(&self, p: usize, from: usize) -> usize {
        (from + self.running.n - p - 1) % self.running.n
    }

    /// The offset of a token of a piece in the sums.
    fn sum_offset(&self, piece: usize, token: usize) -> usize {
        (piece * self.tokens + token) * self.sum.accumulated_bytes()
    }

    /// Makes `sum` the sum of this rank's rows of a token of rank `p`.
    fn add_own_rows(&mut self, p: usize, token: usize) {
        self.sum.clear();
        let start = (p * self.tokens + token) * self.slots;
        for slot in start..start + self.slots {
            let Some(row) = self.own_rows[slot] else { continue };
            let weight = self.weights.get(slot).copied().unwrap_or(1.0);
            // SAFETY: the row was checked to be in range of this rank's operand.
            unsafe { self.sum.add(self.operand.wrapping_add(row * self.row_bytes()), weight) };
        }
    }

    /// Adds this rank's rows of each token to the sums of the other ranks, which are at `sums`.
    fn store_results(&mut self, sums: *const u8) {
        let mut total = RowSum::new(self.running.call.dtype, self.running.call.row);
        for token in 0..self.tokens {
            total.clear();
            for rank in 0..self.running.n {
                if rank == self.running.me {
                    self.add_own_rows(rank, token);
                } else {
                    let offset = self.sum_offset(self.piece_of(self.running.me, rank), token);
                    // SAFETY: the sums have a row for each token and other rank, which is complete.
                    unsafe { self.sum.load_accumulated(sums.wrapping_add(offset)) };
                }
                total.add_sum(&self.sum);
            }
            // SAFETY: the result has a row for each token.
            unsafe { total.store(self.result.wrapping_add(token * self.row_bytes())) };
        }
    }

    /// Publishes this rank's sums for the tokens of all ranks, and takes those of the peers for its own.
    fn exchange_sums(&mut self, sums: *mut u8) -> Result<()> {
        let running = self.running;
        let piece_bytes = self.sum_offset(1, 0);
        let mut own = vec![0u64; (running.n * piece_bytes).div_ceil(8)];
        let published = own.as_mut_ptr().cast::<u8>();
        for p in 0..running.n {
            for token in 0..self.tokens {
                self.add_own_rows(p, token);
                // SAFETY: there is a row for each token of all ranks, aligned to 8 bytes or to its f32.
                unsafe { self.sum.store_accumulated(published.wrapping_add(self.sum_offset(p, token))) };
            }
        }
        let bytes = running.n * piece_bytes;
        let wanted = running.me * piece_bytes..(running.me + 1) * piece_bytes;
        let mut stage = ChunkStage::new(running);
        for start in (0..bytes.max(1)).step_by(CHUNK) {
            let range = start..(start + CHUNK).min(bytes);
            let chunk = stage.next_chunk();
            stage.acquire_chunk(chunk)?;
            let slot = stage.chunk_address(running.me, chunk);
            // SAFETY: the part lies in `own` and fits a chunk, which this rank may write now.
            unsafe { copy_bytes(slot, published.wrapping_add(range.start), range.len(), StoreMode::Cached) };
            stage.publish_chunk(chunk);
            stage.await_all_chunks(chunk)?;
            let overlapping = overlap(&range, &wanted);
            for p in running.peer_numbers().filter(|_| !overlapping.is_empty()) {
                let from = stage.chunk_address(p, chunk).wrapping_add(overlapping.start - range.start);
                let piece = self.piece_of(running.me, p) * piece_bytes;
                let destination = sums.wrapping_add(piece + (overlapping.start - wanted.start));
                // SAFETY: all ranks have published this part, and keep it until it is released. The sums have
                // a piece for each other rank.
                unsafe { copy_bytes(destination, from, overlapping.len(), StoreMode::Cached) };
            }
            stage.release_chunk(chunk);
        }
        Ok(())
    }
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    a.start.max(b.start)..a.end.min(b.end)
}

/// The row of this rank that each slot has, if any.
fn own_rows(running: &RunningCollective, rows: &[i64], capacity: usize) -> Result<Vec<Option<usize>>> {
    let limit = running.n * capacity;
    let mut out = Vec::with_capacity(rows.len());
    for (position, &entry) in rows.iter().enumerate() {
        let row = usize::try_from(entry).ok();
        if row.is_some_and(|row| row >= limit) {
            return Err(running.data_error(format!(
                "the row {entry} at position {position} is out of range: expected less than {limit}"
            )));
        }
        let own = row.and_then(|row| row.checked_sub(running.me * capacity));
        out.push(own.filter(|&row| row < capacity));
    }
    Ok(out)
}
