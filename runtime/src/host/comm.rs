//! The communicator of one rank: the shared memory of a run, the state of each group, and the progress of the
//! rank.
//!
//! Every collective passes the points that docs/design/collectives.md lists: arrival, before the rendezvous,
//! rendezvous, after the rendezvous, exit barrier, completion. Barriers, waits and errors are in [`super::rendezvous`], the regions of a call in
//! [`super::running`]. The variants are in [`super::direct`] (pull, push, one- and two-shot), [`super::put`],
//! [`super::landing`] (`ll`) and [`super::staged`] (plain); [`super::collective`] selects one of them.
//!
//! The collectives of one group are issued in one order, the same on every rank of a cell. Different groups
//! may be driven by different threads. A failure on one rank aborts the run on all.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use symmc_control::{ControlSegment, MemorySegment, SharedRunMemory, SpinConfig, Waiter};

use super::chaos::Chaos;
use crate::error::{Result, RunError};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommConfig {
    pub limit: Duration,
    /// The seed of random delays, if they are requested.
    pub chaos: Option<u64>,
    pub spin: SpinConfig,
    /// The first value of counters and epochs of LL, the same on all ranks. 0 except in tests of the
    /// wrap-around.
    pub first: u32,
}

impl CommConfig {
    pub fn new(ranks: u32, limit: Duration) -> Self {
        CommConfig { limit, chaos: None, spin: SpinConfig::for_threads(ranks as usize), first: 0 }
    }
}

#[derive(Debug)]
pub struct HostCommunicator {
    pub(super) domain: SharedRunMemory,
    pub(super) rank: u32,
    pub(super) waiter: Waiter,
    pub(super) chaos: Option<Chaos>,
    pub(super) groups: Vec<GroupState>,
    pub(super) run: AtomicU64,
}

/// A rank's state of a group. All ranks of a cell hold the same values between collectives.
#[derive(Debug)]
pub(super) struct GroupState {
    /// Barriers passed.
    pub meets: AtomicU32,
    /// Chunks of the plain variant exchanged.
    pub chunks: AtomicU32,
    /// Collectives by `ll` done.
    pub ll: AtomicU64,
    /// Collectives with puts begun.
    pub puts: AtomicU64,
    /// The largest number of bytes of a landing zone that collectives of the group have used.
    pub landing_used: AtomicUsize,
}

impl HostCommunicator {
    pub fn new(domain: SharedRunMemory, rank: u32, config: CommConfig) -> Result<HostCommunicator> {
        let ranks = domain.control.ranks();
        let groups = domain.control.groups();
        if rank >= ranks || domain.arenas.len() != ranks as usize {
            let arenas = domain.arenas.len();
            return Err(RunError::Invalid(format!("rank {rank} of {ranks} ranks with {arenas} arenas")));
        }
        let groups = (0..groups).map(|_| GroupState {
            meets: AtomicU32::new(config.first),
            chunks: AtomicU32::new(config.first),
            ll: AtomicU64::new(u64::from(config.first)),
            puts: AtomicU64::new(0),
            landing_used: AtomicUsize::new(0),
        });
        Ok(HostCommunicator {
            waiter: Waiter::new(domain.control.clone(), rank, config.limit, config.spin),
            chaos: config.chaos.map(|seed| Chaos::new(seed, rank)),
            groups: groups.collect(),
            run: AtomicU64::new(0),
            domain,
            rank,
        })
    }

    pub fn rank(&self) -> u32 {
        self.rank
    }

    pub fn ranks(&self) -> u32 {
        self.domain.control.ranks()
    }

    /// This rank's part of the memory that the ranks share in addition to their arenas, in bytes.
    pub fn shared_bytes(&self) -> usize {
        SharedRunMemory::bytes_per_rank(self.ranks(), self.domain.control.groups())
    }

    pub fn arena(&self) -> &MemorySegment {
        &self.domain.arenas[self.rank as usize]
    }

    /// The arena of this rank, for users that keep it beyond the run.
    pub fn shared_arena(&self) -> &Arc<MemorySegment> {
        &self.domain.arenas[self.rank as usize]
    }

    /// The memory that the ranks share.
    pub fn memory(&self) -> &SharedRunMemory {
        &self.domain
    }

    pub fn control(&self) -> &ControlSegment {
        &self.domain.control
    }

    /// Records that this rank begins repetition `run` of the plan in this bucket.
    pub fn begin_run(&self, run: u64, bucket: usize) {
        self.run.store(run, Ordering::Relaxed);
        self.domain.control.begin_run(self.rank, Some((run, bucket as u32)));
    }

    /// Records that this rank has ended a run, and may begin another.
    pub fn end_run(&self) {
        self.domain.control.begin_run(self.rank, None);
    }

    /// Records that this rank begins a step. Collectives call this themselves.
    pub fn begin_step(&self, step: usize) {
        self.domain.control.begin_step(self.rank, step as u32);
    }

    pub fn abort(&self, reason: &RunError) {
        self.domain.control.abort(self.rank, reason);
    }
}
