//! All-to-all with sizes on the device, through staging or by reading the peers' operands.
//!
//! Every rank first publishes all its split sizes. Every rank therefore knows the whole matrix, and all agree
//! on whether it fits and on the number of chunks. With staging, each chunk then carries each peer's share of
//! the rows. Finally the unused rest of the result is zeroed and the received sizes are stored.

use symmc_control::{CHUNK, ChunkStage, chunk_share};

use super::copy::{StoreMode, copy_bytes};
use super::running::{PerRank, RunningCollective, copy_slices};
use crate::error::Result;

pub(super) fn run(running: &RunningCollective) -> Result<()> {
    let mut stage = ChunkStage::new(running);
    let (ends, rows) = exchange_sizes(running, &mut stage)?;
    exchange_rows(running, &mut stage, &rows, ends.operand, ends.result)?;
    fill_local_parts(running, &ends, &rows);
    Ok(())
}

/// Reads the peers' operands, once all have published their sizes, which shows that all have arrived.
pub(super) fn pull_rows(running: &RunningCollective) -> Result<()> {
    let operands =
        (0..running.n).map(|p| running.peer_region_address(&running.call.operand, p, running.bytes));
    let operands = operands.collect::<Result<PerRank<_>, _>>()?;
    let (ends, rows) = exchange_sizes(running, &mut ChunkStage::new(running))?;
    for p in running.peer_numbers() {
        let from = operands[p].wrapping_add(rows.peer_send_offset(p, running.me));
        copy_slices(
            running,
            ends.result.wrapping_add(rows.receive_offset(p)),
            from,
            rows.row_bytes(p, running.me),
        );
    }
    fill_local_parts(running, &ends, &rows);
    running.exit_barrier()
}

/// The addresses of a rank's operand, result and received sizes.
struct SplitAddresses {
    operand: *const u8,
    result: *mut u8,
    received: *mut u8,
}

/// Exchanges the sizes of all ranks.
fn exchange_sizes(
    running: &RunningCollective,
    stage: &mut ChunkStage,
) -> Result<(SplitAddresses, SplitRows)> {
    let call = running.call;
    let n = running.n;
    let Some((splits, received)) = &call.splits else {
        return Err(running.call_error("expected split sizes, found none".into()));
    };
    let row = call.row * call.dtype.size();
    // Rows without elements can have any number: nothing moves.
    let capacity = call.elements.checked_div(call.row).unwrap_or(usize::MAX);
    if call.row > 0 && capacity * call.row != call.elements {
        let row = call.row;
        let elements = call.elements;
        return Err(
            running.call_error(format!("expected whole rows of {row} elements, found {elements} elements"))
        );
    }
    let splits = running.region_address(splits, 8 * n)?;
    let received = running.region_address(received, 8 * n)?;
    let operand = running.region_address(&call.operand, running.bytes)?;
    let result = running.region_address(&call.result, running.bytes)?;
    let rows =
        SplitRows { sent: gather_split_matrix(running, stage, splits, capacity)?, me: running.me, row };
    Ok((SplitAddresses { operand, result, received }, rows))
}

/// Fills the parts without a peer: this rank's rows for itself, zeros after the received rows, and the
/// received sizes.
fn fill_local_parts(running: &RunningCollective, ends: &SplitAddresses, rows: &SplitRows) {
    let filled = rows.receive_offset(running.n);
    let destination = ends.result.wrapping_add(rows.receive_offset(running.me));
    let from = ends.operand.wrapping_add(rows.send_offset(running.me));
    // SAFETY: the sums of sizes fit operand and result; the sizes have room for `n` numbers.
    unsafe {
        copy_bytes(destination, from, rows.row_bytes(running.me, running.me), StoreMode::Cached);
        std::ptr::write_bytes(ends.result.wrapping_add(filled), 0, running.bytes - filled);
        for (p, sizes) in rows.sent.iter().enumerate() {
            let count = (sizes[running.me] as i64).to_le_bytes();
            std::ptr::copy_nonoverlapping(count.as_ptr(), ends.received.wrapping_add(8 * p), 8);
        }
    }
}

/// The numbers of rows that ranks send to each other, and their offsets on this rank.
struct SplitRows {
    /// The rows that each rank sends to each.
    sent: Vec<Vec<usize>>,
    me: usize,
    /// Bytes of one row.
    row: usize,
}

impl SplitRows {
    fn row_bytes(&self, from: usize, to: usize) -> usize {
        self.sent[from][to] * self.row
    }
    /// The offset in the operand of the rows for rank `p`, in bytes.
    fn send_offset(&self, p: usize) -> usize {
        self.peer_send_offset(self.me, p)
    }
    /// The offset in the operand of rank `from` of the rows for rank `to`, in bytes.
    fn peer_send_offset(&self, from: usize, to: usize) -> usize {
        self.sent[from][..to].iter().sum::<usize>() * self.row
    }
    /// The offset in the result of the rows of rank `p`, in bytes.
    fn receive_offset(&self, p: usize) -> usize {
        self.sent[..p].iter().map(|sizes| sizes[self.me]).sum::<usize>() * self.row
    }
    /// The most that a rank sends to a peer, in bytes.
    fn max_bytes_to_peer(&self) -> usize {
        let n = self.sent.len();
        let pairs = (0..n).flat_map(|a| (0..n).filter(move |&b| a != b).map(move |b| (a, b)));
        pairs.map(|(a, b)| self.row_bytes(a, b)).max().unwrap_or(0)
    }
}

/// Moves the rows between peers, chunk by chunk.
fn exchange_rows(
    running: &RunningCollective,
    stage: &mut ChunkStage,
    rows: &SplitRows,
    operand: *const u8,
    result: *mut u8,
) -> Result<()> {
    let share = chunk_share(running)?;
    for c in 0..rows.max_bytes_to_peer().div_ceil(share) {
        let start = c * share;
        let end = start + share;
        let chunk = stage.next_chunk();
        stage.acquire_chunk(chunk)?;
        for p in running.peer_numbers() {
            let bytes = rows.row_bytes(running.me, p);
            let range = start.min(bytes)..end.min(bytes);
            let destination = stage.chunk_address(running.me, chunk).wrapping_add(p * share);
            let from = operand.wrapping_add(rows.send_offset(p) + range.start);
            // SAFETY: the sums of sizes fit the operand; a part fits the peer's share of the chunk.
            unsafe { copy_bytes(destination, from, range.len(), StoreMode::Cached) };
        }
        stage.publish_chunk(chunk);
        stage.await_all_chunks(chunk)?;
        for p in running.peer_numbers() {
            let bytes = rows.row_bytes(p, running.me);
            let range = start.min(bytes)..end.min(bytes);
            let from = stage.chunk_address(p, chunk).wrapping_add(running.me * share);
            let destination = result.wrapping_add(rows.receive_offset(p) + range.start);
            // SAFETY: the sums of sizes fit the result; the chunk is not written before this rank drained it.
            unsafe { copy_bytes(destination, from, range.len(), StoreMode::Cached) };
        }
        stage.release_chunk(chunk);
    }
    Ok(())
}

/// The numbers of rows that each rank sends to each, once all have published theirs and all sums fit.
fn gather_split_matrix(
    running: &RunningCollective,
    stage: &mut ChunkStage,
    splits: *const u8,
    capacity: usize,
) -> Result<Vec<Vec<usize>>> {
    let n = running.n;
    let mut published: Vec<*const u8> = vec![splits; n];
    let chunk = stage.next_chunk();
    if n > 1 {
        if 8 * n > CHUNK {
            return Err(running.call_error(format!("expected at most {} ranks, found {n}", CHUNK / 8)));
        }
        stage.acquire_chunk(chunk)?;
        // SAFETY: the sizes are `n` numbers and fit a chunk, which this rank may write now.
        unsafe { copy_bytes(stage.chunk_address(running.me, chunk), splits, 8 * n, StoreMode::Cached) };
        stage.publish_chunk(chunk);
        stage.await_all_chunks(chunk)?;
        running.peer_numbers().for_each(|p| published[p] = stage.chunk_address(p, chunk));
    }
    let mut rows = Vec::with_capacity(n);
    for &sizes in &published {
        let row = (0..n).map(|i| {
            let mut bytes = [0; 8];
            // SAFETY: there are `n` numbers at the address, and `i` is below `n`.
            unsafe { std::ptr::copy_nonoverlapping(sizes.wrapping_add(8 * i), bytes.as_mut_ptr(), 8) };
            i64::from_le_bytes(bytes)
        });
        rows.push(row.collect::<Vec<i64>>());
    }
    if n > 1 {
        stage.release_chunk(chunk);
    }
    for (p, sizes) in rows.iter().enumerate() {
        let rank = running.call.cell[p];
        let received: Vec<i64> = rows.iter().map(|s| s[p]).collect();
        if !sizes_fit(sizes, capacity) {
            return Err(
                running.data_error(format!("rank {rank} sends {sizes:?} rows: expected at most {capacity}"))
            );
        }
        if !sizes_fit(&received, capacity) {
            let detail = format!("rank {rank} receives {received:?} rows: expected at most {capacity}");
            return Err(running.data_error(detail));
        }
    }
    Ok(rows.into_iter().map(|sizes| sizes.into_iter().map(|s| s as usize).collect()).collect())
}

/// Whether no size is negative and their sum is at most `capacity`.
fn sizes_fit(sizes: &[i64], capacity: usize) -> bool {
    let sum = sizes.iter().try_fold(0usize, |sum, &s| sum.checked_add(usize::try_from(s).ok()?));
    sum.is_some_and(|sum| sum <= capacity)
}
