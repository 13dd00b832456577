//! Collectives, and custom ops that touch peers, on one rank: selects the variant, and notifies the peers of
//! errors.

use symmc_control::{RankCommunicator, RendezvousStep, StepRendezvous};
use symmc_ir::collective::{CollectiveVariant, SyncScope};

use super::running::RunningCollective;
use super::{direct, landing, put, staged};
use crate::call::{CollectiveCall, PeerCall, PeerMemory};
use crate::error::{Result, RunError};
use crate::exec::Communicator;

impl Communicator for RankCommunicator {
    fn begin_step(&self, step: usize) {
        self.begin_step(step);
    }

    /// Runs one collective on this rank. Fails with [`RunError::Step`] for a call that its variant or its
    /// memory cannot serve, [`RunError::Limit`] when peers do not come, [`RunError::Aborted`] or
    /// [`RunError::Reported`] when the run ended on another rank. Each failure ends the run on all ranks.
    ///
    /// # Safety
    /// `Private` regions point to memory of this rank as large as the call says. Nothing else touches the
    /// call's memory in ways that the contract of its variant does not order.
    unsafe fn run_collective(&self, call: &CollectiveCall) -> Result<()> {
        self.begin_step(call.step);
        let result = RunningCollective::new(self, call).and_then(|running| dispatch_variant(&running));
        result.inspect_err(|error| self.abort(error))
    }

    /// Runs `kernel` on this rank between the two barriers of a custom op that touches peers: every peer has
    /// arrived before it starts, and this returns when the kernels of all peers have ended. The kernel gets
    /// access to the peers' memory. Fails as [`run_collective`](Self::run_collective), and with the error of
    /// the kernel, which ends the run on all ranks too.
    ///
    /// # Safety
    /// Nothing touches the memory that the kernel touches in ways that an entry and an exit barrier do not
    /// order.
    unsafe fn run_custom(
        &self,
        call: &PeerCall<'_>,
        kernel: &mut dyn FnMut(&dyn PeerMemory) -> Result<()>,
    ) -> Result<()> {
        self.begin_step(call.step);
        let PeerCall { step, name: node, op, cell, group } = *call;
        let result = StepRendezvous::new(self, RendezvousStep { step, node, op, cell, group }).and_then(
            |rendezvous| {
                rendezvous.await_barrier()?;
                kernel(&rendezvous)?;
                rendezvous.await_barrier()
            },
        );
        result.inspect_err(|error| self.abort(error))
    }

    fn abort(&self, error: &RunError) {
        self.abort(error);
    }
}

impl PeerMemory for StepRendezvous<'_> {
    fn peer_address(&self, number: usize, offset: usize, bytes: usize) -> Result<*mut u8> {
        self.arena_address(number, offset, bytes)
    }

    fn on_peer_access(&self) {
        self.delay_peer_access();
    }
}

fn dispatch_variant(running: &RunningCollective) -> Result<()> {
    if running.n == 1 {
        return staged::run_single_rank(running);
    }
    if running.bytes == 0 && !running.call.kind.moves_by_data() {
        // There is nothing to move, but variants that synchronise still do.
        return match running.call.variant.contract(running.call.kind).map(|c| c.sync_scope) {
            Some(SyncScope::Group) => running.await_barrier(),
            Some(SyncScope::Pairs) => put::run(running),
            Some(SyncScope::Nobody) | None => Ok(()),
        };
    }
    running.delay_peer_access();
    match running.call.variant {
        variant if variant.is_library() => staged::run(running)?,
        CollectiveVariant::Ll => landing::run(running)?,
        CollectiveVariant::Put => put::run(running)?,
        _ => direct::run(running)?,
    }
    running.delay_peer_access();
    Ok(())
}
