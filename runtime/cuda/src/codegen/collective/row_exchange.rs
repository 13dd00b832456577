//! Exchanges of rows that tables select: dispatch-rows and combine-rows, by reading the peers' operands or
//! through staging.
//!
//! The library has no such collectives, so the plain variants are kernels here too. They move rows through the
//! staging area in the control region, and peers access no memory of the plan. An entry of a table that is out
//! of range is reported ([`super::read_invalid_row_entry`]) and skipped; the table is never used as an address
//! without this check.

use symmc_ir::DType;
use symmc_ir::collective::CollectiveVariant;
use symmc_plan::ExitBarrier;
use symmc_runtime::call::{RowTableKind, RowTables};

use super::call::RankCollective;
use super::kernel_call::{KernelCall, element};
use super::params::RowExchangeParams;
use super::splits;
use crate::device::launch::{DevicePtr, KernelParam};
use crate::error::Result;

/// The largest number of threads per block: the rows of all slots of a token are in registers.
const THREADS: u32 = 512;
/// The largest number of slots of a token that a kernel handles at a time.
const MAX_ENTRIES: usize = 8;
/// The number of 16-byte units that a thread moves before it waits for one.
const UNITS_IN_FLIGHT: usize = 2;

/// The kernel of an exchange of rows that are not empty.
pub(super) fn exchange(running: &RankCollective, tables: Option<RowTables<DevicePtr>>) -> Result<KernelCall> {
    let Some(tables) = tables else {
        return Err(running.unsupported("expected tables of rows, found none".into()));
    };
    let bound = running.bound;
    let row = bound.row_elements * bound.dtype.size();
    let mut params = parameters(running, &tables, row)?;
    // A single rank reads its own operand, as if it pulled.
    let pulls = bound.variant == CollectiveVariant::Pull || running.n == 1;
    if pulls {
        for p in 0..running.n {
            params.from[p] = running.operand_of(p, running.bytes)?;
        }
    } else {
        params.from[running.me] = running.operand;
        stage(running, &tables, &mut params)?;
    }
    let keeps_exit = running.n > 1 && bound.exit.unwrap_or(ExitBarrier::Kept) == ExitBarrier::Kept;
    let n = running.n;
    let unit = splits::unit(bound, row);
    let entries = tables.slots.clamp(1, MAX_ENTRIES);
    let body = match &tables.tables {
        RowTableKind::Dispatch { .. } if pulls => {
            format!("dispatch_pull<{unit}, {n}, {entries}, {keeps_exit}>")
        }
        RowTableKind::Dispatch { .. } => format!("dispatch_staged<{unit}, {n}>"),
        RowTableKind::Combine { weights, .. } => {
            let items = element(bound.dtype);
            let weights = weights.map_or_else(|| "Ones".to_string(), |(_, dtype)| element(dtype));
            let is_vector = unit == "Wide";
            if pulls {
                format!("combine_pull<{items}, {weights}, {n}, {entries}, {is_vector}, {keeps_exit}>")
            } else {
                format!("combine_staged<{items}, {weights}, {n}, {is_vector}>")
            }
        }
    };
    let units = running.units(moved_bytes(running, &tables, row)) / UNITS_IN_FLIGHT;
    let [blocks, threads] = running.grid(|b| &b.pull, units);
    Ok(KernelCall {
        what: bound.kind.name().into(),
        body,
        params: ("RowExchangeParams", KernelParam::from_value(&params)),
        extra_param: None,
        most_threads: THREADS,
        blocks: [blocks, threads.min(THREADS)],
    })
}

/// The parameters except the operands and the staging areas.
fn parameters(
    running: &RankCollective,
    tables: &RowTables<DevicePtr>,
    row: usize,
) -> Result<RowExchangeParams> {
    let bound = running.bound;
    let (rows, rows_of_result) = match tables.tables {
        RowTableKind::Dispatch { .. } => (tables.tokens, tables.capacity),
        RowTableKind::Combine { .. } => (tables.capacity, tables.tokens),
    };
    if rows.checked_mul(bound.row_elements) != Some(bound.elements) {
        let (row, elements) = (bound.row_elements, bound.elements);
        return Err(
            running.unsupported(format!("expected {rows} rows of {row} elements, found {elements} elements"))
        );
    }
    let slots_of_all = tables.tokens.checked_mul(tables.slots).and_then(|slots| slots.checked_mul(running.n));
    let rows_of_all = tables.capacity.checked_mul(running.n);
    let bytes = rows_of_result.max(rows).checked_mul(row).and_then(|bytes| bytes.checked_mul(running.n));
    let (Some(_), Some(_), Some(_)) = (slots_of_all, rows_of_all, bytes) else {
        return Err(running.unsupported(format!(
            "the sizes of {} tokens of {} slots and {} rows of {row} bytes are too large",
            tables.tokens, tables.slots, tables.capacity
        )));
    };
    let mut params = RowExchangeParams {
        base: running.group(),
        to: running.result,
        tokens: tables.tokens as u64,
        slots: tables.slots as u64,
        capacity: tables.capacity as u64,
        row: row as u64,
        ..RowExchangeParams::default()
    };
    match tables.tables {
        RowTableKind::Dispatch { slots, all_rows } => {
            (params.row_table, params.row_slots) = (all_rows, slots);
        }
        RowTableKind::Combine { rows, weights } => {
            params.row_table = rows;
            let dtypes = [Some(bound.dtype), weights.map(|(_, dtype)| dtype)];
            if let Some(dtype) = dtypes.into_iter().flatten().find(|dtype: &DType| !dtype.is_float()) {
                return Err(running.unsupported(format!("expected floats, found {dtype}")));
            }
            if let Some((weights, _)) = weights {
                params.weights = weights;
            }
        }
    }
    Ok(params)
}

/// Adds the staging areas, and how they are divided.
fn stage(
    running: &RankCollective,
    tables: &RowTables<DevicePtr>,
    params: &mut RowExchangeParams,
) -> Result<()> {
    let (_, staging, slot) = running.exchange_areas()?;
    let (front, room) = match tables.tables {
        RowTableKind::Dispatch { .. } => (0, slot),
        // The entries of a token, and then its rows.
        RowTableKind::Combine { .. } => {
            let front = (tables.slots * 8).next_multiple_of(16);
            (front, slot.saturating_sub(front) / tables.slots.max(1) / 16 * 16)
        }
    };
    if room == 0 {
        let slots = tables.slots;
        return Err(running.unsupported(format!(
            "expected fewer slots of a token, found {slots}: {slot} bytes of staging do not hold their rows"
        )));
    }
    (params.staging, params.slot) = (staging, slot as u64);
    (params.front, params.room) = (front as u64, room as u64);
    Ok(())
}

/// An upper bound of the bytes that this rank loads and stores, for the size of the grid.
fn moved_bytes(running: &RankCollective, tables: &RowTables<DevicePtr>, row: usize) -> usize {
    let rows = match tables.tables {
        RowTableKind::Dispatch { .. } => tables.tokens.saturating_mul(running.n).max(tables.capacity),
        RowTableKind::Combine { .. } => tables.tokens.saturating_mul(tables.slots.max(1)),
    };
    rows.saturating_mul(row)
}
