//! The communicator of one rank: runs collectives under the contracts of their variants.
//!
//! Every collective passes the points that ARCHITECTURE.md lists: arrival, pre, meeting, post, exit,
//! completion. This file holds what all variants share: the state of each group, barriers, waits for
//! peers, addresses and their bounds, errors. The variants are in [`super::direct`] (pull, push, one- and
//! two-shot), [`super::landing`] (packets) and [`super::staged`] (plain).
//!
//! The collectives of one group are issued in one order, the same on every rank of a cell; different groups
//! may be driven by different threads. What fails on one rank aborts the run on all.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use smallvec::SmallVec;
use symmc_ir::collective::{CollectiveKind, Exit, ReduceOp, Variant};
use symmc_planner::plan::Barrier;

use super::chaos::Chaos;
use super::control::{Control, Counter, reached};
use super::memory::Segment;
use super::reduce::Reducer;
use super::staged;
use super::wait::{Ended, Spin, Waiter};
use crate::call::{CollectiveCall, Region, RegionMemory};
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

    /// Fresh memory for `ranks` ranks with symmetric arenas of `arena` bytes. Counters and packet epochs
    /// start at `first`, anything but [`CommConfig::first`] of the communicators is an error.
    pub fn create(ranks: u32, groups: usize, arena: usize, first: u32) -> Result<World, RunError> {
        let control = Arc::new(Segment::create("control", Control::size(ranks, groups))?);
        let control = Control::new(control, ranks, groups)?;
        control.preset(first);
        let arenas = (0..ranks).map(|_| Segment::create("arena", arena).map(Arc::new));
        Ok(World {
            arenas: arenas.collect::<Result<_, _>>()?,
            control,
            staging: Arc::new(Segment::create("staging", World::staging_size(ranks, groups))?),
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
    chaos: Option<Chaos>,
    groups: Vec<GroupState>,
    run: AtomicU64,
}

/// What a rank remembers of a group. All ranks of a cell hold the same values between collectives.
#[derive(Debug)]
pub(super) struct GroupState {
    /// Barriers passed.
    meets: AtomicU32,
    /// Chunks of the plain variant exchanged.
    pub chunks: AtomicU32,
    /// Collectives with packets done.
    pub packets: AtomicU64,
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
            landing_used: AtomicUsize::new(0),
        };
        Ok(Comm {
            waiter: Waiter::new(world.control.clone(), rank, config.limit, config.spin),
            chaos: config.chaos.map(|seed| Chaos::new(seed, rank)),
            groups: (0..groups).map(|_| state()).collect(),
            run: AtomicU64::new(0),
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

    /// The symmetric arena of this rank.
    pub fn arena(&self) -> &Segment {
        &self.world.arenas[self.rank as usize]
    }

    /// The control words of the run.
    pub fn control(&self) -> &Control {
        &self.world.control
    }

    /// Records that this rank begins repetition `run` of the plan in this bucket.
    pub fn begin_run(&self, run: u64, bucket: usize) {
        self.run.store(run, Ordering::Relaxed);
        self.world.control.begin_run(self.rank, Some((run, bucket as u32)));
    }

    /// Records that this rank has ended its last run.
    pub fn end_runs(&self) {
        self.world.control.begin_run(self.rank, None);
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
        self.world.control.begin_step(self.rank, call.step as u32);
        let result = Turn::new(self, call).and_then(|turn| turn.run());
        result.inspect_err(|error| {
            if !error.is_consequence() {
                self.abort(error);
            }
        })
    }

    /// Ends the run on all ranks for this reason.
    pub fn abort(&self, reason: &RunError) {
        self.world.control.abort(self.rank, &reason.to_string());
    }
}

/// One thing for each rank of a cell.
pub(super) type PerRank<T> = SmallVec<[T; 8]>;

/// One collective in progress on one rank.
pub(super) struct Turn<'a> {
    pub comm: &'a Comm,
    pub call: &'a CollectiveCall<'a>,
    pub group: &'a GroupState,
    /// This rank's number in its cell.
    pub me: usize,
    /// The number of ranks in the cell.
    pub n: usize,
    /// Bytes of the operand.
    pub bytes: usize,
    touches: Cell<u32>,
}

impl<'a> Turn<'a> {
    fn new(comm: &'a Comm, call: &'a CollectiveCall<'a>) -> Result<Self, RunError> {
        let n = call.cell.len();
        let me = call.cell.iter().position(|&r| r == comm.rank);
        let group = comm.groups.get(call.group);
        let bytes = call.elements.saturating_mul(call.dtype.size());
        let (Some(me), Some(group)) = (me, group) else {
            let found = format!("cell {:?} of group {} on rank {}", call.cell, call.group, comm.rank);
            return Err(step_error(comm, call, format!("expected a cell with this rank, found {found}")));
        };
        let turn = Turn { comm, call, group, me, n, bytes, touches: Cell::new(0) };
        if call.cell.iter().any(|&r| r >= comm.ranks()) {
            return Err(turn.fail(format!("expected ranks below {}, found {:?}", comm.ranks(), call.cell)));
        }
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
            let contract = self.call.variant.contract(self.call.kind);
            return if contract.is_some_and(|c| c.meets) { self.meet() } else { Ok(()) };
        }
        self.touch();
        match self.call.variant {
            Variant::Plain => staged::run(self)?,
            Variant::Packets => super::landing::run(self)?,
            _ => super::direct::run(self)?,
        }
        self.touch();
        Ok(())
    }

    /// Before or after a touch of a peer: delays the rank where the run asks for chaos.
    #[inline]
    pub fn touch(&self) {
        if let Some(chaos) = &self.comm.chaos {
            let touch = self.touches.get();
            self.touches.set(touch + 1);
            chaos.delay(self.comm.run.load(Ordering::Relaxed), self.call.step, touch);
        }
    }

    /// A barrier: returns when every peer has arrived at it.
    pub fn meet(&self) -> Result<(), RunError> {
        self.touch();
        let target = self.group.meets.load(Ordering::Relaxed).wrapping_add(1);
        self.group.meets.store(target, Ordering::Relaxed);
        self.advance(Counter::Meet, target);
        self.await_peers(Counter::Meet, target)?;
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

    /// The peers in the cell: their numbers, beginning after this rank's.
    #[inline]
    pub fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let (me, n) = (self.me, self.n);
        (1..n).map(move |i| if me + i < n { me + i } else { me + i - n })
    }

    /// Sets a counter of this rank and wakes peers that sleep.
    #[inline]
    pub fn advance(&self, counter: Counter, value: u32) {
        let control = &self.comm.world.control;
        control.counter(self.call.group, self.comm.rank, counter).store(value, Ordering::Release);
        self.ring();
    }

    /// Wakes peers that sleep.
    #[inline]
    pub fn ring(&self) {
        self.comm.world.control.ring(self.peers().map(|p| self.call.cell[p]));
    }

    /// Waits until the counters of all peers have reached `target`.
    #[inline]
    pub fn await_peers(&self, counter: Counter, target: u32) -> Result<(), RunError> {
        let ready = |p: usize| self.has_reached(p, counter, target);
        match self.comm.waiter.until(|| self.peers().all(ready)) {
            Ok(()) => Ok(()),
            Err(ended) => Err(self.ended(ended, ready)),
        }
    }

    /// Waits until the counter of peer `p` has reached `target`.
    pub fn await_peer(&self, p: usize, counter: Counter, target: u32) -> Result<(), RunError> {
        let ready = |q: usize| q != p || self.has_reached(q, counter, target);
        match self.comm.waiter.until(|| ready(p)) {
            Ok(()) => Ok(()),
            Err(ended) => Err(self.ended(ended, ready)),
        }
    }

    #[inline]
    fn has_reached(&self, p: usize, counter: Counter, target: u32) -> bool {
        let control = &self.comm.world.control;
        let word = control.counter(self.call.group, self.call.cell[p], counter);
        reached(word.load(Ordering::Acquire), target)
    }

    /// The error of a wait that ended early; `ready` tells which peers had come.
    #[cold]
    pub fn ended(&self, ended: Ended, ready: impl Fn(usize) -> bool) -> RunError {
        let aborted = self.comm.world.control.abort_reason();
        if let (Ended::Aborted, Some(reason)) = (ended, aborted) {
            return reason;
        }
        RunError::Limit {
            rank: self.comm.rank,
            peers: self.peers().filter(|&p| !ready(p)).map(|p| self.call.cell[p]).collect(),
            step: self.call.step,
            node: self.call.name.into(),
            op: self.call.kind.name().into(),
            run: self.comm.run.load(Ordering::Relaxed),
            limit_ms: self.comm.waiter.limit().as_millis() as u64,
        }
    }

    /// The address of `bytes` bytes of a region on this rank.
    pub fn at(&self, region: &Region, bytes: usize) -> Result<*mut u8, RunError> {
        match region.memory {
            RegionMemory::Symmetric => self.on(region, self.me, bytes),
            RegionMemory::Private(base) => {
                Ok(base.wrapping_add(region.offset).wrapping_add(region.by_rank * self.me))
            }
        }
    }

    /// The address of `bytes` bytes of a symmetric region on the rank of number `p`.
    pub fn on(&self, region: &Region, p: usize, bytes: usize) -> Result<*mut u8, RunError> {
        let offset = region.by_rank.checked_mul(p).and_then(|o| o.checked_add(region.offset));
        self.arena(p, offset.unwrap_or(usize::MAX), bytes)
    }

    /// The address of `bytes` bytes at `offset` in the symmetric arena of the rank of number `p`.
    pub fn arena(&self, p: usize, offset: usize, bytes: usize) -> Result<*mut u8, RunError> {
        let arena = &self.comm.world.arenas[self.call.cell[p] as usize];
        if offset.checked_add(bytes).is_none_or(|end| end > arena.len()) {
            let size = arena.len();
            return Err(self.fail(format!(
                "expected memory within the {size} bytes of the symmetric arena, found {bytes} bytes at {offset}"
            )));
        }
        // SAFETY: the offset lies within the arena.
        Ok(unsafe { arena.as_ptr().add(offset) })
    }

    /// The reduction of the call.
    pub fn reducer(&self, op: ReduceOp) -> Reducer {
        Reducer::new(self.call.dtype, op)
    }

    /// An error of this step.
    #[cold]
    pub fn fail(&self, detail: String) -> RunError {
        step_error(self.comm, self.call, detail)
    }
}

#[cold]
fn step_error(comm: &Comm, call: &CollectiveCall, detail: String) -> RunError {
    RunError::Step {
        rank: comm.rank,
        step: call.step,
        node: call.name.into(),
        op: call.kind.name().into(),
        detail,
    }
}
