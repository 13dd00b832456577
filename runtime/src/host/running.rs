//! One collective in progress on one rank: the regions of a call, checks of the call, and the exit.

use std::ops::Deref;

use smallvec::SmallVec;
use symmc_control::{RankCommunicator, RendezvousStep, StepRendezvous};
use symmc_ir::collective::{CollectiveKind, CollectiveReduceOp, ExitBarrierPolicy};
use symmc_plan::ExitBarrier;

use super::copy::{StoreMode, copy_bytes};
use super::reduce::Reducer;
use crate::call::{CallRegion, CollectiveCall, RegionMemory, RowTableKind, RowTables};
use crate::error::Result;

/// Bytes of one slice: between slices a rank may be delayed.
pub(super) const SLICE: usize = 256 << 10;

pub(super) struct RunningCollective<'a> {
    rendezvous: StepRendezvous<'a>,
    pub call: &'a CollectiveCall<'a>,
    /// Bytes of the operand.
    pub bytes: usize,
}

impl<'a> Deref for RunningCollective<'a> {
    type Target = StepRendezvous<'a>;

    fn deref(&self) -> &StepRendezvous<'a> {
        &self.rendezvous
    }
}

impl<'a> RunningCollective<'a> {
    pub fn new(comm: &'a RankCommunicator, call: &'a CollectiveCall<'a>) -> Result<Self> {
        let op = call.kind.name();
        let info =
            RendezvousStep { step: call.step, node: call.name, op, cell: call.cell, group: call.group };
        let bytes = call.elements.saturating_mul(call.dtype.size());
        let running = RunningCollective { rendezvous: StepRendezvous::new(comm, info)?, call, bytes };
        running.check_supported()?;
        Ok(running)
    }

    /// Refuses calls that no variant can serve.
    fn check_supported(&self) -> Result<()> {
        let call = self.call;
        let n = self.n;
        let Some(contract) = call.variant.contract(call.kind) else {
            return Err(self.call_error(format!("the variant {} does not run this collective", call.variant)));
        };
        let pieces = call.kind.facts().operand_pieces && !call.kind.moves_by_data();
        if pieces && !call.elements.is_multiple_of(n) {
            return Err(
                self.call_error(format!("expected a multiple of {n} elements, found {}", call.elements))
            );
        }
        if contract.symmetric_operand && !is_symmetric(&call.operand) {
            return Err(self.call_error("expected an operand in the symmetric arena".into()));
        }
        let written = match &call.rows {
            Some(RowTables { tables: RowTableKind::Reduce { sums, .. }, .. }) => sums,
            _ => &call.result,
        };
        if contract.symmetric_result && !is_symmetric(written) {
            return Err(self.call_error("expected a result in the symmetric arena".into()));
        }
        match call.kind {
            CollectiveKind::Broadcast { root } if *root as usize >= n => {
                Err(self.call_error(format!("expected a root below {n}, found {root}")))
            }
            CollectiveKind::Permute { pairs }
                if pairs.iter().any(|&(from, to)| from as usize >= n || to as usize >= n) =>
            {
                Err(self.call_error(format!("expected pairs of ranks below {n}, found {pairs:?}")))
            }
            _ => Ok(()),
        }
    }

    /// The exit barrier, unless the variant has none or the plan drops it.
    pub fn exit_barrier(&self) -> Result<()> {
        let exit = self.call.variant.contract(self.call.kind).map(|c| c.exit_barrier);
        let dropped = self.call.exit == Some(ExitBarrier::Dropped);
        match exit {
            Some(ExitBarrierPolicy::Always) => self.await_barrier(),
            Some(ExitBarrierPolicy::Droppable) if !dropped => self.await_barrier(),
            _ => Ok(()),
        }
    }

    pub fn region_address(&self, region: &CallRegion, bytes: usize) -> Result<*mut u8> {
        match region.memory {
            RegionMemory::Symmetric => self.peer_region_address(region, self.me, bytes),
            RegionMemory::Private(base) => Ok(base.wrapping_add(region.offset)),
        }
    }

    /// The address of `bytes` bytes of a symmetric region on rank number `p`.
    pub fn peer_region_address(&self, region: &CallRegion, p: usize, bytes: usize) -> Result<*mut u8> {
        self.arena_address(p, region.offset_on_rank(self.info.cell[p]), bytes)
    }

    pub fn reducer(&self, op: CollectiveReduceOp) -> Reducer {
        Reducer::new(self.call.dtype, op)
    }
}

fn is_symmetric(region: &CallRegion) -> bool {
    matches!(region.memory, RegionMemory::Symmetric)
}

pub(super) type PerRank<T> = SmallVec<[T; 8]>;

/// Copies in slices; the contract must let this rank touch both ranges now.
pub(super) fn copy_slices(running: &RunningCollective, to: *mut u8, from: *const u8, bytes: usize) {
    let stores = StoreMode::for_size(bytes * running.n);
    let mut offset = 0;
    while offset < bytes {
        let n = SLICE.min(bytes - offset);
        // SAFETY: the ranges were checked against their arenas when their addresses were resolved, or belong
        // to this rank; the contract lets this rank touch them now.
        unsafe { copy_bytes(to.wrapping_add(offset), from.wrapping_add(offset), n, stores) };
        offset += n;
        running.delay_peer_access();
    }
    stores.fence();
}
