//! All-to-all with sizes on the device: the sizes go between ranks within the kernel, and nothing returns to the host.
//!
//! The library has none, so its plain variant is a kernel here too: it moves rows through a staging area in the control
//! region, and peers touch nothing of the plan. Sizes that do not fit are seen by all ranks of the cell alike, and
//! reported ([`super::unfit`]).

use super::call::Running;
use super::params::SplitsParams;
use super::peers::Sizes;
use super::prepared::Prepared;
use crate::device::launch::Param;
use crate::error::Result;
use symmc_ir::collective::Variant;
use symmc_runtime::exec::{BoundCollective, BoundRegion};

/// The most threads of a block: the parts of all peers are in registers.
const THREADS: u32 = 512;

pub(super) fn exchange(running: &Running, sizes: Option<Sizes>) -> Result<Prepared> {
    let Some(Sizes { sent, received }) = sizes else {
        return Err(running.unfit("expected sizes on the device, found none".into()));
    };
    let bound = running.bound;
    let row = bound.row * bound.dtype.size();
    let capacity = bound.elements.checked_div(bound.row).unwrap_or(0);
    if capacity * bound.row != bound.elements {
        let (row, elements) = (bound.row, bound.elements);
        return Err(running.unfit(format!("expected whole rows of {row} elements, found {elements}")));
    }
    let (tables, staging, slot) = running.exchange()?;
    let mut params = SplitsParams {
        base: running.group(),
        to: running.result,
        sizes: tables,
        staging,
        sent,
        received,
        row: row as u64,
        capacity: capacity as u64,
        slot: slot as u64,
        ..SplitsParams::default()
    };
    params.from[running.me] = running.operand;
    let pulls = bound.variant == Variant::Pull;
    for p in (0..running.n).filter(|_| pulls) {
        params.from[p] = running.operand_of(p, running.bytes)?;
    }
    let unit = unit(bound, row);
    let (kernel, n) = (if pulls { "splits_pull" } else { "splits_staged" }, running.n);
    let [blocks, threads] = running.grid(|b| &b.pull, running.units(running.bytes));
    Ok(Prepared {
        what: bound.kind.name().into(),
        body: format!("{kernel}<{unit}, {n}>"),
        params: ("SplitsParams", Param::of(&params)),
        beside: None,
        most_threads: THREADS,
        blocks: [blocks, threads.min(THREADS)],
    })
}

/// The unit in which rows of so many bytes move. It is the same on all ranks, for it says how rows lie in staging: it
/// follows from offsets, which are equal on all, and addresses begin at multiples of 16.
fn unit(bound: &BoundCollective, row: usize) -> &'static str {
    let starts = |r: &BoundRegion| bound.cell.iter().fold(0, |all, &rank| all | r.on(rank));
    match row | starts(&bound.operand) | starts(&bound.result) {
        a if a.is_multiple_of(16) => "Wide",
        a if a.is_multiple_of(8) => "u64",
        a if a.is_multiple_of(4) => "u32",
        a if a.is_multiple_of(2) => "u16",
        _ => "u8",
    }
}
