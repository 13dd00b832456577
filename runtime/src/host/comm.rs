//! The communicator of one rank: runs collectives under the contracts of their variants.
//!
//! Every collective passes the points that ARCHITECTURE.md lists: arrival, pre, meeting, post, exit,
//! completion. This file holds what all variants share: the state of each group, the regions of a call and
//! what no variant can serve; barriers, waits and errors are in [`super::meeting`]. The variants are in
//! [`super::direct`] (pull, push, one- and two-shot), [`super::put`], [`super::landing`] (packets) and
//! [`super::staged`] (plain).
//!
//! The collectives of one group are issued in one order, the same on every rank of a cell; different groups
//! may be driven by different threads. What fails on one rank aborts the run on all.

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;
use symmc_ir::DType;
use symmc_ir::collective::{CollectiveKind, Exit, Meets, ReduceOp, Variant};
use symmc_plan::Barrier;

use super::chaos::Chaos;
use super::control::Control;
use super::meeting::{Meeting, Site};
use super::memory::Segment;
use super::reduce::Reducer;
use super::staged;
use super::times::Clock;
use super::wait::{Spin, Waiter};
use crate::call::{CollectiveCall, PeerCall, PeerMemory, Region, RegionMemory};
use crate::error::RunError;

/// The shared memory of a run, as one process maps it.
#[derive(Clone, Debug)]
pub struct World {
    /// The symmetric arena of each rank.
    pub arenas: Vec<Arc<Segment>>,
    /// The control words.
    pub control: Control,
    /// Staging of the plain variant; [`World::staging_size`] bytes.
    pub staging: Arc<Segment>,
}

impl World {
    /// The bytes of staging for this many ranks and groups. Untouched parts cost nothing.
    pub fn staging_size(ranks: u32, groups: usize) -> usize {
        groups * ranks as usize * staged::PER_RANK
    }

    /// A rank's part of what the ranks have together beside their arenas.
    pub fn part(ranks: u32, groups: usize) -> usize {
        let all = Control::size(ranks, groups) + World::staging_size(ranks, groups);
        all.div_ceil(ranks.max(1) as usize)
    }

    /// Fresh memory for `ranks` ranks with symmetric arenas of `arena` bytes. Counters and packet epochs
    /// start at `first`, anything but [`CommConfig::first`] of the communicators is an error.
    pub fn create(ranks: u32, groups: usize, arena: usize, first: u32) -> Result<World, RunError> {
        let control = Arc::new(Segment::create("the control segment", Control::size(ranks, groups))?);
        let control = Control::new(control, ranks, groups)?;
        control.preset(first);
        let arenas = (0..ranks).map(|_| Segment::create("the symmetric arena", arena).map(Arc::new));
        Ok(World {
            arenas: arenas.collect::<Result<_, _>>()?,
            control,
            staging: Arc::new(Segment::create("the staging memory", World::staging_size(ranks, groups))?),
        })
    }
}

/// How a rank communicates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommConfig {
    /// The longest wait for peers.
    pub limit: Duration,
    /// The seed of random delays, if wanted.
    pub chaos: Option<u64>,
    /// How long waits spin before they sleep.
    pub spin: Spin,
    /// Where counters and packet epochs start, the same on all ranks. 0 but in tests of the wrap-around.
    pub first: u32,
}

impl CommConfig {
    /// Suitable for `ranks` ranks on this machine.
    pub fn new(ranks: u32, limit: Duration) -> Self {
        CommConfig { limit, chaos: None, spin: Spin::for_threads(ranks as usize), first: 0 }
    }
}

/// The communicator of one rank.
#[derive(Debug)]
pub struct Comm {
    pub(super) world: World,
    pub(super) rank: u32,
    pub(super) waiter: Waiter,
    pub(super) chaos: Option<Chaos>,
    pub(super) groups: Vec<GroupState>,
    pub(super) run: AtomicU64,
    clock: Mutex<Clock>,
}

/// What a rank remembers of a group. All ranks of a cell hold the same values between collectives.
#[derive(Debug)]
pub(super) struct GroupState {
    /// Barriers passed.
    pub meets: AtomicU32,
    /// Chunks of the plain variant exchanged.
    pub chunks: AtomicU32,
    /// Collectives with packets done.
    pub packets: AtomicU64,
    /// Collectives with puts begun.
    pub puts: AtomicU64,
    /// The bytes that packets ever used of a landing zone.
    pub landing_used: AtomicUsize,
}

impl Comm {
    /// The communicator of `rank` in `world`.
    pub fn new(world: World, rank: u32, config: CommConfig) -> Result<Comm, RunError> {
        let (ranks, groups) = (world.control.ranks(), world.control.groups());
        if rank >= ranks || world.arenas.len() != ranks as usize {
            let found = world.arenas.len();
            return Err(RunError::Invalid(format!("rank {rank} of {ranks} ranks with {found} arenas")));
        }
        let state = || GroupState {
            meets: AtomicU32::new(config.first),
            chunks: AtomicU32::new(config.first),
            packets: AtomicU64::new(u64::from(config.first)),
            puts: AtomicU64::new(0),
            landing_used: AtomicUsize::new(0),
        };
        Ok(Comm {
            waiter: Waiter::new(world.control.clone(), rank, config.limit, config.spin),
            chaos: config.chaos.map(|seed| Chaos::new(seed, rank)),
            groups: (0..groups).map(|_| state()).collect(),
            run: AtomicU64::new(0),
            clock: Mutex::default(),
            world,
            rank,
        })
    }

    /// The rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The number of ranks.
    pub fn ranks(&self) -> u32 {
        self.world.control.ranks()
    }

    /// Its part of what the ranks have together beside their arenas, in bytes.
    pub fn part(&self) -> usize {
        World::part(self.ranks(), self.world.control.groups())
    }

    /// The symmetric arena of this rank.
    pub fn arena(&self) -> &Segment {
        &self.world.arenas[self.rank as usize]
    }

    /// The same, for who keeps it beyond the run.
    pub fn arena_kept(&self) -> &Arc<Segment> {
        &self.world.arenas[self.rank as usize]
    }

    /// The control words of the run.
    pub fn control(&self) -> &Control {
        &self.world.control
    }

    /// Records that this rank begins repetition `run` of the plan in this bucket.
    pub fn begin_run(&self, run: u64, bucket: usize) {
        self.run.store(run, Ordering::Relaxed);
        self.clock.lock().unwrap_or_else(PoisonError::into_inner).begin();
        self.world.control.begin_run(self.rank, Some((run, bucket as u32)));
    }

    /// Records that this rank has ended its last run.
    pub fn end_runs(&self) {
        let mut clock = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        clock.end();
        self.world.control.set_times(self.rank, clock.times());
        self.world.control.begin_run(self.rank, None);
    }

    /// Records that this rank has ended a run, and may begin another.
    pub fn end_run(&self) {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner).end();
        self.world.control.begin_run(self.rank, None);
    }

    /// Every rank's bytes, by rank. All ranks call this at the same point with equally many; not while the
    /// plan runs on the host.
    ///
    /// # Errors
    /// A peer failed, or did not come within the limit.
    pub fn exchange(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, RunError> {
        let cell: Vec<u32> = (0..self.ranks()).collect();
        let mut operand = mine.to_vec();
        let mut all = vec![0u8; operand.len() * cell.len()];
        let private = |bytes: &mut [u8]| Region {
            memory: RegionMemory::Private(bytes.as_mut_ptr()),
            offset: 0,
            by_rank: None,
        };
        let call = CollectiveCall {
            step: 0,
            name: "exchange",
            kind: &CollectiveKind::AllGather,
            variant: Variant::Plain,
            exit: None,
            cell: &cell,
            // The last group is no group of the plan.
            group: self.control().groups().saturating_sub(1),
            dtype: DType::U8,
            elements: operand.len(),
            row: 1,
            operand: private(&mut operand),
            result: private(&mut all),
            landing: None,
            splits: None,
        };
        // SAFETY: both regions are buffers of this call, as large as it says.
        unsafe { self.collective(&call)? };
        // It was no step of the plan.
        self.world.control.end_step(self.rank);
        Ok(all.chunks(operand.len().max(1)).map(<[u8]>::to_vec).collect())
    }

    /// Records that this rank begins a step. Collectives record themselves.
    pub fn begin_step(&self, step: usize) {
        self.world.control.begin_step(self.rank, step as u32);
    }

    /// Runs one collective on this rank.
    ///
    /// # Errors
    /// [`RunError::Step`] for a call that its variant or its memory cannot serve, [`RunError::Limit`] when
    /// peers do not come, [`RunError::Aborted`] when the run ended elsewhere. Each ends the run on all
    /// ranks.
    ///
    /// # Safety
    /// `Private` regions point to memory of this rank as large as the call says. Nobody else touches the
    /// call's memory in ways that the contract of its variant does not order.
    pub unsafe fn collective(&self, call: &CollectiveCall) -> Result<(), RunError> {
        self.begin_step(call.step);
        let result = Turn::new(self, call).and_then(|turn| turn.run());
        result.inspect_err(|error| self.tell(error))
    }

    /// Runs `kernel` on this rank between the two barriers of a custom op that touches peers: every peer has
    /// arrived before it starts, and this returns when the kernels of all peers have ended. The kernel is given
    /// the peers' memory.
    ///
    /// # Errors
    /// As [`collective`](Self::collective), and the error of the kernel, which ends the run on all ranks too.
    ///
    /// # Safety
    /// Nobody touches what the kernel touches in ways that an entry and an exit barrier do not order.
    pub unsafe fn custom(
        &self,
        call: &PeerCall<'_>,
        kernel: &mut dyn FnMut(&dyn PeerMemory) -> Result<(), RunError>,
    ) -> Result<(), RunError> {
        self.begin_step(call.step);
        let PeerCall { step, name: node, op, cell, group } = *call;
        let result = Meeting::new(self, Site { step, node, op, cell, group }).and_then(|meeting| {
            meeting.meet()?;
            kernel(&meeting)?;
            meeting.meet()
        });
        result.inspect_err(|error| self.tell(error))
    }

    /// Tells the peers of an error that began here.
    fn tell(&self, error: &RunError) {
        if !error.is_consequence() {
            self.abort(error);
        }
    }

    /// Ends the run on all ranks for this reason.
    pub fn abort(&self, reason: &RunError) {
        self.world.control.abort(self.rank, &reason.to_string());
    }
}

impl PeerMemory for Meeting<'_> {
    fn at(&self, number: usize, offset: usize, bytes: usize) -> Result<*mut u8, RunError> {
        self.arena(number, offset, bytes)
    }

    fn touch(&self) {
        Meeting::touch(self);
    }
}

/// One thing for each rank of a cell.
pub(super) type PerRank<T> = SmallVec<[T; 8]>;

/// One collective in progress on one rank.
pub(super) struct Turn<'a> {
    meeting: Meeting<'a>,
    pub call: &'a CollectiveCall<'a>,
    /// Bytes of the operand.
    pub bytes: usize,
}

impl<'a> Deref for Turn<'a> {
    type Target = Meeting<'a>;

    fn deref(&self) -> &Meeting<'a> {
        &self.meeting
    }
}

impl<'a> Turn<'a> {
    fn new(comm: &'a Comm, call: &'a CollectiveCall<'a>) -> Result<Self, RunError> {
        let op = call.kind.name();
        let site = Site { step: call.step, node: call.name, op, cell: call.cell, group: call.group };
        let bytes = call.elements.saturating_mul(call.dtype.size());
        let turn = Turn { meeting: Meeting::new(comm, site)?, call, bytes };
        turn.check()?;
        Ok(turn)
    }

    /// Refuses what no variant can serve.
    fn check(&self) -> Result<(), RunError> {
        let (call, n) = (self.call, self.n);
        let Some(contract) = call.variant.contract(call.kind) else {
            return Err(self.fail(format!("the variant {} does not run this collective", call.variant)));
        };
        let pieces = matches!(call.kind, CollectiveKind::ReduceScatter(_) | CollectiveKind::AllToAll(_))
            && call.splits.is_none();
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

    fn run(&self) -> Result<(), RunError> {
        if self.n == 1 {
            return super::staged::alone(self);
        }
        if self.bytes == 0 && self.call.splits.is_none() {
            // Nothing to move; what meets still meets.
            return match self.call.variant.contract(self.call.kind).map(|c| c.meets) {
                Some(Meets::Group) => self.meet(),
                Some(Meets::Pairs) => super::put::run(self),
                Some(Meets::Nobody) | None => Ok(()),
            };
        }
        self.touch();
        match self.call.variant {
            variant if variant.is_library() => staged::run(self)?,
            Variant::Packets => super::landing::run(self)?,
            Variant::Put => super::put::run(self)?,
            _ => super::direct::run(self)?,
        }
        self.touch();
        Ok(())
    }

    /// The exit barrier, unless the variant or the plan does without.
    pub fn exit(&self) -> Result<(), RunError> {
        let exit = self.call.variant.contract(self.call.kind).map(|c| c.exit);
        let dropped = self.call.exit == Some(Barrier::Dropped);
        match exit {
            Some(Exit::Always) => self.meet(),
            Some(Exit::Droppable) if !dropped => self.meet(),
            _ => Ok(()),
        }
    }

    /// The address of `bytes` bytes of a region on this rank.
    pub fn at(&self, region: &Region, bytes: usize) -> Result<*mut u8, RunError> {
        match region.memory {
            RegionMemory::Symmetric => self.on(region, self.me, bytes),
            RegionMemory::Private(base) => Ok(base.wrapping_add(region.offset)),
        }
    }

    /// The address of `bytes` bytes of a symmetric region on the rank of number `p`.
    pub fn on(&self, region: &Region, p: usize, bytes: usize) -> Result<*mut u8, RunError> {
        self.arena(p, region.on(self.site.cell[p]), bytes)
    }

    /// The reduction of the call.
    pub fn reducer(&self, op: ReduceOp) -> Reducer {
        Reducer::new(self.call.dtype, op)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_told_each_other_something_are_within_no_step() {
        let world = World::create(2, 1, 64, 0).expect("shared memory");
        let config = CommConfig::new(2, Duration::from_secs(20));
        let told = |rank: u32| {
            let comm = Comm::new(world.clone(), rank, config).expect("a rank");
            comm.exchange(&[rank as u8]).expect("both are there")
        };
        let told = &told;
        let both = std::thread::scope(|scope| {
            [0, 1].map(|rank| scope.spawn(move || told(rank))).map(|thread| thread.join())
        });
        for (rank, told) in both.into_iter().enumerate() {
            assert_eq!(told.expect("a rank"), [[0], [1]]);
            assert_eq!(world.control.progress(rank as u32).step, None);
        }
    }
}
