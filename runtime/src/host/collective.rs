//! Collectives, and custom ops that touch peers, on one rank: selects the variant, and notifies the peers of
//! errors.

use symmc_ir::DType;
use symmc_ir::collective::{CollectiveKind, CollectiveVariant, SyncScope};

use super::comm::HostCommunicator;
use super::rendezvous::{RendezvousStep, StepRendezvous};
use super::running::RunningCollective;
use super::{direct, landing, put, staged};
use crate::call::{CallRegion, CollectiveCall, PeerCall, PeerMemory, RegionMemory};
use crate::error::{Result, RunError};
use crate::exec::Communicator;

impl HostCommunicator {
    /// Returns the bytes of every rank, by rank. All ranks call this at the same point with the same number
    /// of bytes, and not while the plan runs on the host. Fails if a peer failed, or did not come before the
    /// timeout.
    pub fn exchange_bytes(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let cell: Vec<u32> = (0..self.ranks()).collect();
        let mut operand = mine.to_vec();
        let mut gathered = vec![0u8; operand.len() * cell.len()];
        let call = CollectiveCall {
            step: 0,
            name: "exchange",
            kind: &CollectiveKind::AllGather,
            variant: CollectiveVariant::Plain,
            exit: None,
            cell: &cell,
            // The last group is not a group of the plan.
            group: self.control().groups().saturating_sub(1),
            dtype: DType::U8,
            elements: operand.len(),
            row: 1,
            operand: private_region(&mut operand),
            result: private_region(&mut gathered),
            landing: None,
            splits: None,
            rows: None,
        };
        // SAFETY: both regions are buffers of this call, as large as it says.
        unsafe { self.run_collective(&call)? };
        // The exchange was not a step of the plan.
        self.domain.control.end_step(self.rank);
        Ok(gathered.chunks(operand.len().max(1)).map(<[u8]>::to_vec).collect())
    }

    /// Runs one collective on this rank. Fails with [`RunError::Step`] for a call that its variant or its
    /// memory cannot serve, [`RunError::Limit`] when peers do not come, [`RunError::Aborted`] or
    /// [`RunError::Reported`] when the run ended on another rank. Each failure ends the run on all ranks.
    ///
    /// # Safety
    /// `Private` regions point to memory of this rank as large as the call says. Nothing else touches the
    /// call's memory in ways that the contract of its variant does not order.
    pub unsafe fn run_collective(&self, call: &CollectiveCall) -> Result<()> {
        self.begin_step(call.step);
        let result = RunningCollective::new(self, call).and_then(|running| dispatch_variant(&running));
        result.inspect_err(|error| self.abort_unless_consequence(error))
    }

    /// Runs `kernel` on this rank between the two barriers of a custom op that touches peers: every peer has
    /// arrived before it starts, and this returns when the kernels of all peers have ended. The kernel gets
    /// access to the peers' memory. Fails as [`run_collective`](Self::run_collective), and with the error of
    /// the kernel, which ends the run on all ranks too.
    ///
    /// # Safety
    /// Nothing touches the memory that the kernel touches in ways that an entry and an exit barrier do not
    /// order.
    pub unsafe fn run_custom(
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
        result.inspect_err(|error| self.abort_unless_consequence(error))
    }

    fn abort_unless_consequence(&self, error: &RunError) {
        if !error.is_consequence() {
            self.abort(error);
        }
    }
}

fn private_region(bytes: &mut [u8]) -> CallRegion<'static> {
    CallRegion { memory: RegionMemory::Private(bytes.as_mut_ptr()), offset: 0, by_rank: None }
}

impl Communicator for HostCommunicator {
    fn begin_step(&self, step: usize) {
        self.begin_step(step);
    }

    unsafe fn run_collective(&self, call: &CollectiveCall<'_>) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { HostCommunicator::run_collective(self, call) }
    }

    unsafe fn run_custom(
        &self,
        call: &PeerCall<'_>,
        kernel: &mut dyn FnMut(&dyn PeerMemory) -> Result<()>,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { HostCommunicator::run_custom(self, call, kernel) }
    }

    fn abort(&self, error: &RunError) {
        if !error.is_consequence() {
            HostCommunicator::abort(self, error);
        }
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::comm::CommConfig;
    use super::*;
    use symmc_control::SharedRunMemory;

    #[test]
    fn ranks_that_told_each_other_something_are_within_no_step() {
        let domain = SharedRunMemory::create(2, 1, 64, 0).expect("shared memory");
        let config = CommConfig::new(2, Duration::from_secs(20));
        let exchange = |rank: u32| {
            let comm = HostCommunicator::new(domain.clone(), rank, config).expect("a rank");
            comm.exchange_bytes(&[rank as u8]).expect("both are there")
        };
        let exchange = &exchange;
        let results = std::thread::scope(|scope| {
            [0, 1].map(|rank| scope.spawn(move || exchange(rank))).map(|thread| thread.join())
        });
        for (rank, told) in results.into_iter().enumerate() {
            assert_eq!(told.expect("a rank"), [[0], [1]]);
            assert_eq!(domain.control.progress(rank as u32).step, None);
        }
    }
}
