//! Exchanges of rows that tables select: dispatch-rows and combine-rows, by reading the peers' operands, and
//! reduce-rows, by writing sums into the peers' results. Each of them also goes through staging.
//!
//! The library has no such collectives, so the plain variants are kernels here too. They move rows through the
//! staging area in the control region, and peers access no memory of the plan. An entry of a table that is out
//! of range is reported ([`super::read_invalid_row_entry`]) and skipped; the table is never used as an address
//! without this check.

use symmc_ir::DType;
use symmc_ir::collective::CollectiveVariant;
use symmc_plan::ExitBarrier;
use symmc_runtime::call::{RowTableKind, RowTables};
use symmc_runtime::exec::ResolvedRegion;

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
    let is_direct = bound.variant != CollectiveVariant::Plain || running.n == 1;
    if is_direct && !matches!(tables.tables, RowTableKind::Reduce { .. }) {
        for p in 0..running.n {
            params.from[p] = running.operand_of(p, running.bytes)?;
        }
    } else {
        params.from[running.me] = running.operand;
    }
    if !is_direct {
        stage(running, &tables, &mut params)?;
    }
    let keeps_exit = running.n > 1 && bound.exit.unwrap_or(ExitBarrier::Kept) == ExitBarrier::Kept;
    let n = running.n;
    let unit = splits::unit(bound, row);
    let is_vector = unit == "Wide";
    let entries = tables.slots.clamp(1, MAX_ENTRIES);
    let has_many = tables.slots > MAX_ENTRIES;
    let units = running.units(moved_bytes(running, &tables, row)) / UNITS_IN_FLIGHT;
    let [blocks, threads] = running.grid(|b| &b.pull, units);
    let body = match &tables.tables {
        RowTableKind::Dispatch { .. } if is_direct => {
            format!("dispatch_pull<{unit}, {n}, {entries}, {keeps_exit}>")
        }
        RowTableKind::Dispatch { .. } => format!("dispatch_staged<{unit}, {n}>"),
        RowTableKind::Combine { weights, .. } => {
            let items = element(bound.dtype);
            let weights = weights_name(*weights);
            if is_direct {
                format!(
                    "combine_pull<{items}, {weights}, {n}, {entries}, {has_many}, {is_vector}, {keeps_exit}>"
                )
            } else {
                format!("combine_staged<{items}, {weights}, {n}, {is_vector}>")
            }
        }
        RowTableKind::Reduce { all_weights, sums, .. } => {
            let items = element(bound.dtype);
            let weights = weights_name(*all_weights);
            let is_vector = is_vector && are_sums_aligned(running);
            set_sums(running, *sums, &mut params)?;
            if is_direct {
                let lanes = threads.min(THREADS).min(32);
                format!("reduce_push<{items}, {weights}, {n}, {entries}, {is_vector}, {lanes}>")
            } else {
                format!("reduce_staged<{items}, {weights}, {n}, {is_vector}>")
            }
        }
    };
    Ok(KernelCall {
        what: bound.kind.name().into(),
        body,
        params: ("RowExchangeParams", KernelParam::from_value(&params)),
        extra_param: None,
        most_threads: THREADS,
        blocks: [blocks, threads.min(THREADS)],
    })
}

/// The kernels' type name of the weights.
fn weights_name(weights: Option<(DevicePtr, DType)>) -> String {
    weights.map_or_else(|| "Ones".to_string(), |(_, dtype)| element(dtype))
}

/// The sums that peers write, if the collective is a reduction.
fn sums_region<'a>(running: &'a RankCollective) -> Option<&'a ResolvedRegion> {
    match running.bound.rows.as_ref().map(|rows| &rows.tables) {
        Some(RowTableKind::Reduce { sums, .. }) => Some(sums),
        _ => None,
    }
}

/// Whether the sums of all ranks begin at multiples of 16 bytes.
fn are_sums_aligned(running: &RankCollective) -> bool {
    let cell = &running.bound.cell;
    sums_region(running)
        .is_some_and(|sums| cell.iter().all(|&rank| sums.offset_on_rank(rank).is_multiple_of(16)))
}

/// Adds the sums of all ranks that this rank reads or writes.
fn set_sums(running: &RankCollective, own: DevicePtr, params: &mut RowExchangeParams) -> Result<()> {
    params.sums[running.me] = own;
    if running.bound.variant == CollectiveVariant::Plain {
        return Ok(());
    }
    let Some(region) = sums_region(running) else {
        return Err(running.unsupported("expected sums of a reduction, found none".into()));
    };
    let row = running.bound.row_elements * running.bound.dtype.compute_dtype().size();
    let bytes = params.tokens as usize * (running.n - 1) * row;
    for p in running.peers_then_self().filter(|&p| p != running.me) {
        params.sums[p] = running.region_of("sums", region, p, bytes)?;
    }
    Ok(())
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
        RowTableKind::Combine { .. } | RowTableKind::Reduce { .. } => (tables.capacity, tables.tokens),
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
        RowTableKind::Combine { rows, weights }
        | RowTableKind::Reduce { all_rows: rows, all_weights: weights, .. } => {
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
        // The sums of a part of a row.
        RowTableKind::Reduce { .. } => {
            let dtype = running.bound.dtype;
            (0, slot / (dtype.compute_dtype().size() / dtype.size()).max(1) / 16 * 16)
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
        RowTableKind::Combine { .. } | RowTableKind::Reduce { .. } => {
            tables.tokens.saturating_mul(tables.slots.max(1))
        }
    };
    rows.saturating_mul(row)
}
