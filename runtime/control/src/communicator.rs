//! The communicator of one rank: the shared memory of a run, and the progress of the rank.
//!
//! The collectives of one group are issued in one order, the same on every rank of a cell. Different groups
//! may be driven by different threads. A failure on one rank aborts the run on all.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::chaos::Chaos;
use crate::control::{ControlSegment, GroupCounter};
use crate::domain::SharedRunMemory;
use crate::error::RunError;
use crate::memory::MemorySegment;
use crate::wait::{SpinConfig, Waiter};

/// There is one for each rank of a run, since communicators count the collectives of each group.
#[derive(Debug)]
pub struct RankCommunicator {
    pub(crate) domain: SharedRunMemory,
    pub(crate) rank: u32,
    pub(crate) waiter: Waiter,
    pub(crate) chaos: Option<Chaos>,
    pub(crate) groups: Vec<GroupState>,
    pub(crate) run: AtomicU64,
}

/// The collectives of a group that a rank has begun. All ranks of a cell hold the same values between
/// collectives.
#[derive(Debug)]
pub struct GroupState {
    /// Collectives by `ll`.
    pub ll: AtomicU64,
    /// Collectives with puts.
    pub puts: AtomicU64,
    /// The largest number of bytes of a landing zone that collectives of the group have used.
    pub landing_used: AtomicUsize,
}

impl RankCommunicator {
    /// The communicator of `rank`, whose waits end after `limit`.
    ///
    /// # Panics
    /// The shared memory does not have this rank.
    pub fn new(domain: SharedRunMemory, rank: u32, limit: Duration) -> RankCommunicator {
        let control = &domain.control;
        assert!(rank < control.ranks() && domain.arenas.len() == control.ranks() as usize);
        let groups = (0..control.groups()).map(|group| GroupState {
            // Epochs start at the value of the counters, which tests preset.
            ll: AtomicU64::new(u64::from(
                control.counter(group, rank, GroupCounter::Meet).load(Ordering::Relaxed),
            )),
            puts: AtomicU64::new(0),
            landing_used: AtomicUsize::new(0),
        });
        let spin = SpinConfig::for_threads(control.ranks() as usize);
        RankCommunicator {
            waiter: Waiter::new(control.clone(), rank, limit, spin),
            chaos: None,
            groups: groups.collect(),
            run: AtomicU64::new(0),
            domain,
            rank,
        }
    }

    pub(crate) fn with_spin(self, spin: SpinConfig) -> RankCommunicator {
        let waiter = Waiter::new(self.domain.control.clone(), self.rank, self.waiter.limit(), spin);
        RankCommunicator { waiter, ..self }
    }

    /// Delays the rank at random around every access to a peer, if there is a seed. A rank runs its lanes on
    /// two threads then.
    pub fn with_chaos(self, seed: Option<u64>) -> RankCommunicator {
        let Some(seed) = seed else { return self };
        let spin = SpinConfig::for_threads(2 * self.ranks() as usize);
        let chaos = Some(Chaos::new(seed, self.rank));
        RankCommunicator { chaos, ..self.with_spin(spin) }
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

    /// The arena of this rank.
    pub fn arena(&self) -> &Arc<MemorySegment> {
        &self.domain.arenas[self.rank as usize]
    }

    /// The memory that the ranks share.
    pub fn memory(&self) -> &SharedRunMemory {
        &self.domain
    }

    pub fn control(&self) -> &ControlSegment {
        &self.domain.control
    }

    pub fn waiter(&self) -> &Waiter {
        &self.waiter
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

    /// Ends the run on all ranks, unless the error only reports that the run has ended.
    pub fn abort(&self, error: &RunError) {
        if !error.is_consequence() {
            self.domain.control.abort(self.rank, error);
        }
    }
}
