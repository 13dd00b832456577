//! Exchanges of rows that tables select: dispatch-rows and combine-rows, by reading the peers' operands or
//! through staging.
//!
//! With staging, every rank publishes its operand chunk by chunk, and each rank copies the parts of rows that
//! it needs. A combination collects all its rows first, because its sums are in order of slot.

use symmc_control::{CHUNK, ChunkStage};
use symmc_ir::types::DType;

use super::copy::{StoreMode, copy_bytes};
use super::running::{PerRank, RunningCollective};
use crate::call::{CallRegion, RowTableKind, RowTables};
use crate::error::{Result, RunError};
use crate::kernels::{RowSum, read_float};

/// A row of the operand of a rank of the cell.
#[derive(Clone, Copy)]
struct RowSource {
    rank: usize,
    row: usize,
}

/// An exchange on one rank.
struct RowExchange<'a> {
    running: &'a RunningCollective<'a>,
    tables: &'a RowTables<CallRegion<'a>>,
    result: *mut u8,
    /// The bytes of a row.
    row_bytes: usize,
    /// The source of each row of a dispatch, or of each slot of a combination.
    sources: Vec<Option<RowSource>>,
}

/// Reads the peers' operands between an entry and an exit barrier.
pub(super) fn pull(running: &RunningCollective) -> Result<()> {
    let operands =
        (0..running.n).map(|p| running.peer_region_address(&running.call.operand, p, running.bytes));
    let operands = operands.collect::<Result<PerRank<_>, _>>()?;
    let exchange = RowExchange::new(running)?;
    running.await_barrier()?;
    exchange.store_results(|_, source| {
        operands[source.rank].wrapping_add(source.row * exchange.row_bytes).cast_const()
    })?;
    running.delay_peer_access();
    running.exit_barrier()
}

/// Moves the operands of peers through staging.
pub(super) fn run_staged(running: &RunningCollective) -> Result<()> {
    let exchange = RowExchange::new(running)?;
    let operand = running.region_address(&running.call.operand, running.bytes)?;
    if running.n == 1 {
        return exchange
            .store_results(|_, source| operand.wrapping_add(source.row * exchange.row_bytes).cast_const());
    }
    let collected = exchange.collect_rows(operand)?;
    exchange.store_results(|position, _| collected.as_ptr().wrapping_add(position * exchange.row_bytes))
}

impl<'a> RowExchange<'a> {
    fn new(running: &'a RunningCollective<'a>) -> Result<Self> {
        let call = running.call;
        let Some(tables) = &call.rows else {
            return Err(running.call_error("expected tables of rows, found none".into()));
        };
        let size = call.dtype.size();
        let (rows, results) = match tables.tables {
            RowTableKind::Dispatch { .. } => (tables.tokens, tables.capacity),
            RowTableKind::Combine { .. } => (tables.capacity, tables.tokens),
            RowTableKind::Reduce { .. } => return Err(unexpected_tables(running)),
        };
        if call.elements != rows * call.row {
            let (row, elements) = (call.row, call.elements);
            return Err(running
                .call_error(format!("expected {rows} rows of {row} elements, found {elements} elements")));
        }
        let row_bytes = call.row * size;
        let result = running.region_address(&call.result, results * row_bytes)?;
        let mut exchange = RowExchange { running, tables, result, row_bytes, sources: Vec::new() };
        exchange.sources = exchange.read_sources()?;
        Ok(exchange)
    }

    fn read_sources(&self) -> Result<Vec<Option<RowSource>>> {
        let RowTables { tokens, slots, capacity, .. } = *self.tables;
        let n = self.running.n;
        let (role, entries, rows_per_rank, divisor) = match &self.tables.tables {
            RowTableKind::Dispatch { slots: region, .. } => {
                ("slot", read_table(self.running, region, capacity)?, tokens, slots.max(1))
            }
            RowTableKind::Combine { rows, .. } => {
                ("row", read_table(self.running, rows, tokens * slots)?, capacity, 1)
            }
            RowTableKind::Reduce { .. } => return Err(unexpected_tables(self.running)),
        };
        let limit = n * rows_per_rank * divisor;
        let mut sources = Vec::with_capacity(entries.len());
        for (position, entry) in entries.into_iter().enumerate() {
            let row = usize::try_from(entry).ok().map(|entry| entry / divisor);
            if row.is_some_and(|row| row >= n * rows_per_rank) {
                return Err(self.running.data_error(format!(
                    "the {role} {entry} at position {position} is out of range: expected less than {limit}"
                )));
            }
            sources.push(row.map(|row| RowSource { rank: row / rows_per_rank, row: row % rows_per_rank }));
        }
        Ok(sources)
    }

    /// Stores all results. `locate` returns the address of a source, given by its position among the sources
    /// and by its row.
    fn store_results(&self, locate: impl Fn(usize, RowSource) -> *const u8) -> Result<()> {
        match &self.tables.tables {
            RowTableKind::Dispatch { .. } => self.store_rows(locate),
            RowTableKind::Combine { weights, .. } => {
                let weights = match weights {
                    Some(weights) => read_weights(self.running, weights, self.sources.len())?,
                    None => Vec::new(),
                };
                self.store_sums(&weights, locate);
            }
            RowTableKind::Reduce { .. } => return Err(unexpected_tables(self.running)),
        }
        Ok(())
    }

    fn store_rows(&self, locate: impl Fn(usize, RowSource) -> *const u8) {
        let stores = StoreMode::for_size(self.sources.len() * self.row_bytes);
        for (row, source) in self.sources.iter().enumerate() {
            let destination = self.result.wrapping_add(row * self.row_bytes);
            // SAFETY: the result has a row for each source; the row at the source was checked to be in range
            // of the operand, which the contract lets this rank read now.
            unsafe {
                match source {
                    Some(source) => copy_bytes(destination, locate(row, *source), self.row_bytes, stores),
                    None => std::ptr::write_bytes(destination, 0, self.row_bytes),
                }
            }
        }
        stores.fence();
    }

    /// `weights` is empty if all weights are 1.
    fn store_sums(&self, weights: &[f64], locate: impl Fn(usize, RowSource) -> *const u8) {
        let mut sum = RowSum::new(self.running.call.dtype, self.running.call.row);
        let mut sum_of_rank = RowSum::new(self.running.call.dtype, self.running.call.row);
        for token in 0..self.tables.tokens {
            sum.clear();
            let slots = token * self.tables.slots..(token + 1) * self.tables.slots;
            for rank in 0..self.running.n {
                sum_of_rank.clear();
                for slot in slots.clone() {
                    let Some(source) = self.sources[slot].filter(|source| source.rank == rank) else {
                        continue;
                    };
                    let weight = weights.get(slot).copied().unwrap_or(1.0);
                    // SAFETY: as for a dispatched row.
                    unsafe { sum_of_rank.add(locate(slot, source), weight) };
                }
                sum.add_sum(&sum_of_rank);
            }
            // SAFETY: the result has a row for each token.
            unsafe { sum.store(self.result.wrapping_add(token * self.row_bytes)) };
        }
    }

    /// The row of each source, one after another, from the operands that all ranks publish.
    fn collect_rows(&self, operand: *const u8) -> Result<Vec<u8>> {
        let mut collected = vec![0u8; self.sources.len() * self.row_bytes];
        let bytes = self.running.bytes;
        let mut stage = ChunkStage::new(self.running);
        for start in (0..bytes.max(1)).step_by(CHUNK) {
            let range = start..(start + CHUNK).min(bytes);
            let chunk = stage.next_chunk();
            stage.acquire_chunk(chunk)?;
            let own = stage.chunk_address(self.running.me, chunk);
            // SAFETY: the part lies in the operand and fits a chunk, which this rank may write now.
            unsafe { copy_bytes(own, operand.wrapping_add(range.start), range.len(), StoreMode::Cached) };
            stage.publish_chunk(chunk);
            stage.await_all_chunks(chunk)?;
            for (position, source) in self.sources.iter().enumerate() {
                let Some(source) = source else { continue };
                let row = source.row * self.row_bytes;
                let from = row.max(range.start);
                let end = (row + self.row_bytes).min(range.end);
                if from < end {
                    let published = stage.chunk_address(source.rank, chunk).wrapping_add(from - range.start);
                    let offset = position * self.row_bytes + (from - row);
                    let out = collected[offset..offset + (end - from)].as_mut_ptr();
                    // SAFETY: all ranks have published this part, and keep it until it is released.
                    unsafe { copy_bytes(out, published, end - from, StoreMode::Cached) };
                }
            }
            stage.release_chunk(chunk);
        }
        Ok(collected)
    }
}

fn unexpected_tables(running: &RunningCollective) -> RunError {
    running.call_error("expected tables of a dispatch or a combination, found those of a reduction".into())
}

/// The i64 elements of a table.
pub(super) fn read_table(
    running: &RunningCollective,
    region: &CallRegion<'_>,
    count: usize,
) -> Result<Vec<i64>> {
    let elements = running.region_address(region, 8 * count)?.cast::<i64>();
    // SAFETY: the region holds `count` numbers of this rank, which the plan keeps unchanged during the step.
    Ok((0..count).map(|i| unsafe { elements.add(i).read_unaligned() }).collect())
}

/// The weights of `count` slots.
pub(super) fn read_weights(
    running: &RunningCollective,
    (region, dtype): &(CallRegion<'_>, DType),
    count: usize,
) -> Result<Vec<f64>> {
    let size = dtype.size();
    let weights = running.region_address(region, count * size)?;
    // SAFETY: the region holds a weight for each slot, aligned to its dtype.
    Ok((0..count).map(|i| unsafe { read_float(*dtype, weights.wrapping_add(i * size)) }).collect())
}
