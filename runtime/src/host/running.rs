//! One collective in progress on one rank: the regions of a call, what no variant can serve, and the exit.

use std::ops::Deref;

use smallvec::SmallVec;
use symmc_ir::collective::{CollectiveKind, Exit, ReduceOp};
use symmc_plan::ExitBarrier;

use super::comm::Comm;
use super::copy::{Stores, copy};
use super::reduce::Reducer;
use super::rendezvous::{Rendezvous, StepInfo};
use crate::call::{CollectiveCall, Region, RegionMemory};
use crate::error::Result;

/// Bytes of one slice: between slices a rank may be delayed.
pub(super) const SLICE: usize = 256 << 10;

pub(super) struct Running<'a> {
    rendezvous: Rendezvous<'a>,
    pub call: &'a CollectiveCall<'a>,
    /// Bytes of the operand.
    pub bytes: usize,
}

impl<'a> Deref for Running<'a> {
    type Target = Rendezvous<'a>;

    fn deref(&self) -> &Rendezvous<'a> {
        &self.rendezvous
    }
}

impl<'a> Running<'a> {
    pub fn new(comm: &'a Comm, call: &'a CollectiveCall<'a>) -> Result<Self> {
        let op = call.kind.name();
        let info = StepInfo { step: call.step, node: call.name, op, cell: call.cell, group: call.group };
        let bytes = call.elements.saturating_mul(call.dtype.size());
        let running = Running { rendezvous: Rendezvous::new(comm, info)?, call, bytes };
        running.check()?;
        Ok(running)
    }

    /// Refuses what no variant can serve.
    fn check(&self) -> Result<()> {
        let (call, n) = (self.call, self.n);
        let Some(contract) = call.variant.contract(call.kind) else {
            return Err(self.fail(format!("the variant {} does not run this collective", call.variant)));
        };
        let pieces = call.kind.facts().operand_pieces && call.splits.is_none();
        if pieces && !call.elements.is_multiple_of(n) {
            return Err(self.fail(format!("expected a multiple of {n} elements, found {}", call.elements)));
        }
        let symmetric = |r: &Region| matches!(r.memory, RegionMemory::Symmetric);
        if contract.symmetric_operand && !symmetric(&call.operand) {
            return Err(self.fail("expected an operand in the symmetric arena".into()));
        }
        if contract.symmetric_result && !symmetric(&call.result) {
            return Err(self.fail("expected a result in the symmetric arena".into()));
        }
        let outside = |r: u32| r as usize >= n;
        match call.kind {
            CollectiveKind::Broadcast { root } if outside(*root) => {
                Err(self.fail(format!("expected a root below {n}, found {root}")))
            }
            CollectiveKind::Permute { pairs } if pairs.iter().any(|&(a, b)| outside(a) || outside(b)) => {
                Err(self.fail(format!("expected pairs of ranks below {n}, found {pairs:?}")))
            }
            _ => Ok(()),
        }
    }

    /// The exit barrier, unless the variant or the plan does without.
    pub fn exit(&self) -> Result<()> {
        let exit = self.call.variant.contract(self.call.kind).map(|c| c.exit);
        let dropped = self.call.exit == Some(ExitBarrier::Dropped);
        match exit {
            Some(Exit::Always) => self.meet(),
            Some(Exit::Droppable) if !dropped => self.meet(),
            _ => Ok(()),
        }
    }

    pub fn at(&self, region: &Region, bytes: usize) -> Result<*mut u8> {
        match region.memory {
            RegionMemory::Symmetric => self.on(region, self.me, bytes),
            RegionMemory::Private(base) => Ok(base.wrapping_add(region.offset)),
        }
    }

    /// The address of `bytes` bytes of a symmetric region on the rank of number `p`.
    pub fn on(&self, region: &Region, p: usize, bytes: usize) -> Result<*mut u8> {
        self.arena(p, region.on(self.info.cell[p]), bytes)
    }

    pub fn reducer(&self, op: ReduceOp) -> Reducer {
        Reducer::new(self.call.dtype, op)
    }
}

pub(super) type PerRank<T> = SmallVec<[T; 8]>;

/// Copies in slices; this rank may touch both at this time.
pub(super) fn copy_slices(running: &Running, to: *mut u8, from: *const u8, bytes: usize) {
    let stores = Stores::of(bytes * running.n);
    let mut at = 0;
    while at < bytes {
        let n = SLICE.min(bytes - at);
        // SAFETY: the ranges were checked against their arenas when their addresses were taken, or are this
        // rank's own; the contract lets this rank touch them now.
        unsafe { copy(to.wrapping_add(at), from.wrapping_add(at), n, stores) };
        at += n;
        running.touch();
    }
    stores.settle();
}
