//! All-to-all with sizes on the device: ranks exchange the sizes inside the kernel, without the host.
//!
//! The library has no such collective, so the plain variant is a kernel here too. It moves rows through a
//! staging area in the control region, and peers access no memory of the plan. All ranks of the cell detect
//! invalid sizes together and report them ([`super::read_invalid_splits`]).

use super::call::RankCollective;
use super::kernel_call::KernelCall;
use super::params::SplitsParams;
use crate::codegen::addresses::SplitPointers;
use crate::device::launch::KernelParam;
use crate::error::Result;
use symmc_ir::collective::CollectiveVariant;
use symmc_runtime::exec::ResolvedCollective;

/// The largest number of threads per block: the parts of all peers are in registers.
const THREADS: u32 = 512;

pub(super) fn exchange(running: &RankCollective, sizes: Option<SplitPointers>) -> Result<KernelCall> {
    let Some(SplitPointers { sent, received }) = sizes else {
        return Err(running.unsupported("expected sizes on the device, found none".into()));
    };
    let bound = running.bound;
    let row = bound.row_elements * bound.dtype.size();
    let capacity = bound.elements.checked_div(bound.row_elements).unwrap_or(0);
    if capacity * bound.row_elements != bound.elements {
        let row = bound.row_elements;
        let elements = bound.elements;
        return Err(running.unsupported(format!("expected whole rows of {row} elements, found {elements}")));
    }
    let (tables, staging, slot) = running.exchange_areas()?;
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
    let pulls = bound.variant == CollectiveVariant::Pull;
    for p in (0..running.n).filter(|_| pulls) {
        params.from[p] = running.operand_of(p, running.bytes)?;
    }
    let unit = unit(bound, row);
    let kernel = if pulls { "splits_pull" } else { "splits_staged" };
    let n = running.n;
    let [blocks, threads] = running.grid(|b| &b.pull, running.units(running.bytes));
    Ok(KernelCall {
        what: bound.kind.name().into(),
        body: format!("{kernel}<{unit}, {n}>"),
        params: ("SplitsParams", KernelParam::from_value(&params)),
        extra_param: None,
        most_threads: THREADS,
        blocks: [blocks, threads.min(THREADS)],
    })
}

/// The unit in which rows of `row` bytes move. It must be the same on all ranks, because it determines the
/// layout in staging. It depends only on offsets, which are equal on all ranks; base addresses are multiples
/// of 16.
pub(super) fn unit(bound: &ResolvedCollective, row: usize) -> &'static str {
    let mut alignment_bits = row;
    for &rank in &bound.cell {
        alignment_bits |= bound.operand.offset_on_rank(rank) | bound.result.offset_on_rank(rank);
    }
    match alignment_bits {
        a if a.is_multiple_of(16) => "Wide",
        a if a.is_multiple_of(8) => "u64",
        a if a.is_multiple_of(4) => "u32",
        a if a.is_multiple_of(2) => "u16",
        _ => "u8",
    }
}
