//! Overlaps communication with computation, by list scheduling on two lanes in estimated time.
//!
//! The compute lane takes the first step of the initial order whose operands are available. The communication
//! lane takes collectives of two kinds:
//! - A collective that needs results of the computation starts as soon as these are available.
//! - A *prefetch* needs only inputs, or inputs after little computation such as casts of parameters. It could
//!   start at any time, but its result takes memory from then on. Its latest start is the time from which it
//!   ends just before the first step that uses it, with all prefetches one after another. It starts earlier by
//!   a set part of its own time (the lead of [`Prefetches::new`]). The computation that it needs is moved ahead
//!   accordingly.
//!
//! A collective that no step uses, such as a gather that the program returns, has no such deadline. It runs
//! when no prefetch has to start in the meantime.
//!
//! Memory is taken when a step starts. It is free again when its last user ends or, for a collective, when the
//! first computation after the collective's end starts. A step that would exceed the budget waits until others
//! free memory.
//!
//! The result is a list in which a collective stands at its start and a computation at its end. A collective
//! therefore stands before all steps that end after it starts. No placement gives it bytes that these steps
//! still use, and it never waits for them.

use std::collections::{BTreeSet, VecDeque};

use symmc_ir::machine::timeline::{FULL_RATE, Timeline, simulate_timeline};
use symmc_plan::Lane;

use super::memory::{LiveMemory, total_bytes};
use super::model::TaskGraph;

/// An order of the steps with the time that each collective may be in flight.
pub struct OverlappedOrder {
    pub order: Vec<u32>,
    /// For each position of the order, the first later position at which bytes that the step used may be
    /// overwritten.
    pub joined: Vec<u32>,
    /// The largest number of live bytes, by the model.
    pub peak: u64,
}

/// Overlaps communication with computation, starting from `order` with its `prefetches`. At most `budget` bytes
/// of both arenas are live at once, unless computation would otherwise never continue.
pub fn overlap(tasks: &TaskGraph, order: &[u32], prefetches: &Prefetches, budget: u64) -> OverlappedOrder {
    OverlapScheduler::new(tasks, order, prefetches, budget).run()
}

/// The timeline of an order, by position. The compute lane waits for each collective at its join (see
/// [`crate::liveness::Liveness::joined`]). A collective waits for all computation before it, because it may be
/// given the bytes of that computation.
pub fn simulate_order(tasks: &TaskGraph, order: &[u32], joined: &[u32]) -> Timeline {
    let mut position_of = vec![0usize; tasks.len()];
    order.iter().enumerate().for_each(|(position, &s)| position_of[s as usize] = position);
    // For each position the last collective that is joined by then.
    let mut due = vec![None; tasks.len() + 1];
    for (position, &s) in order.iter().enumerate() {
        if tasks.timed[s as usize].communicates {
            let due = &mut due[joined[position] as usize];
            *due = (*due).max(Some(position));
        }
    }
    // A join in front of a collective also holds for the computation after it.
    for position in 1..due.len() {
        due[position] = due[position].max(due[position - 1]);
    }
    let steps: Vec<_> = order.iter().map(|&s| tasks.timed[s as usize]).collect();
    // For each position the last computation before it.
    let mut computed = vec![None; steps.len()];
    for position in 1..steps.len() {
        computed[position] =
            if steps[position - 1].communicates { computed[position - 1] } else { Some(position - 1) };
    }
    simulate_timeline(&steps, tasks.crossing, |position, wait| {
        tasks.before.row(order[position] as usize).iter().for_each(|&b| wait(position_of[b as usize]));
        let reused = if steps[position].communicates { computed[position] } else { due[position] };
        reused.into_iter().for_each(wait);
    })
}

/// The estimated time of an order in nanoseconds, see [`simulate_order`].
pub fn makespan(tasks: &TaskGraph, order: &[u32], joined: &[u32]) -> u64 {
    simulate_order(tasks, order, joined).total
}

pub struct Prefetches {
    /// For each step the time of its turn. For a computation this is the amount of computation before it, and
    /// for a collective its latest start.
    turn: Vec<u64>,
    /// For each prefetch the earliest start, on the same time scale.
    earliest: Vec<Option<u64>>,
    /// The computation that is moved ahead for prefetches.
    moved: Vec<bool>,
    unused: Vec<bool>,
}

/// The largest number of steps that are moved ahead for one prefetch, and the nanoseconds that they may take in
/// addition to the time of the prefetch: a cast of a small parameter takes longer than its gather.
const MAX_MOVED_STEPS: usize = 16;
const MAX_MOVED_NS: u64 = 20_000;

/// The turn of the first step, as an offset of all turns. If communication takes longer than computation,
/// latest starts lie before the first step. The offset keeps them from being clamped to 0, so that prefetches
/// keep the order of their uses.
const FIRST_TURN: u64 = 1 << 60;

impl Prefetches {
    /// The prefetches of an order. They start earlier than their latest start by `lead` percent of their time.
    pub fn new(tasks: &TaskGraph, order: &[u32], lead: u64) -> Prefetches {
        let mut ahead: Vec<Vec<u32>> = vec![Vec::new(); tasks.len()];
        let mut moved = vec![false; tasks.len()];
        let mut is_prefetch = vec![false; tasks.len()];
        let mut unused = vec![false; tasks.len()];
        for &s in order.iter().filter(|&&s| tasks.lane[s as usize] == Lane::Comm) {
            if let Some(feeds) = prefetch_inputs(tasks, s as usize) {
                feeds.iter().for_each(|&f| moved[f as usize] = true);
                ahead[s as usize] = feeds;
                is_prefetch[s as usize] = true;
                unused[s as usize] = tasks.after.row(s as usize).is_empty();
            }
        }
        let mut turn = vec![FIRST_TURN; tasks.len()];
        let mut now = FIRST_TURN;
        // The begin of each step that is not moved, ascending.
        let mut begins = vec![FIRST_TURN];
        for &s in order {
            turn[s as usize] = now;
            if tasks.lane[s as usize] == Lane::Compute && !moved[s as usize] {
                begins.push(now);
                now = now.saturating_add(tasks.timed[s as usize].time);
            }
        }
        let used_prefetches = order.iter().filter(|&&s| is_prefetch[s as usize] && !unused[s as usize]);
        let mut by_use: Vec<(u64, u32)> = used_prefetches
            .map(|&s| {
                let users = tasks.after.row(s as usize).iter();
                (users.map(|&user| turn[user as usize]).min().unwrap_or(now), s)
            })
            .collect();
        by_use.sort_unstable();
        let mut earliest = vec![None; tasks.len()];
        for s in (0..tasks.len()).filter(|&s| unused[s]) {
            turn[s] = now;
            earliest[s] = Some(0);
        }
        let mut next = u64::MAX;
        // The earliest start of the next prefetch in order of use, and of the computation that is moved ahead
        // for it. No prefetch that is used earlier has to wait for these.
        let mut start = u64::MAX;
        let mut before = u64::MAX;
        for &(used, s) in by_use.iter().rev() {
            let s = s as usize;
            let time = concurrent_time(tasks, s);
            next = next.min(used).saturating_sub(time.saturating_add(tasks.crossing));
            start = start.min(next.saturating_sub(time.saturating_mul(lead) / 100));
            turn[s] = next;
            earliest[s] = Some(start);
            before = before.min(start);
            for &f in ahead[s].iter().rev() {
                before = before.saturating_sub(tasks.timed[f as usize].time);
                // The computation is inserted before the step that would run at that time.
                let begin = begins[begins.partition_point(|&b| b <= before).saturating_sub(1)];
                turn[f as usize] = turn[f as usize].min(begin.min(before));
            }
        }
        Prefetches { turn, earliest, moved, unused }
    }
}

/// The steps that a collective needs before it can start, in order, if they are few enough to be moved ahead.
/// There must be no other collective among them, and they must not take longer than the collective or than
/// [`MAX_MOVED_NS`].
fn prefetch_inputs(tasks: &TaskGraph, collective: usize) -> Option<Vec<u32>> {
    let mut inputs = BTreeSet::new();
    let mut open = vec![collective];
    let mut time = 0u64;
    while let Some(s) = open.pop() {
        for &b in tasks.before.row(s) {
            if !inputs.insert(b) {
                continue;
            }
            time = time.saturating_add(tasks.timed[b as usize].time);
            let little =
                inputs.len() <= MAX_MOVED_STEPS && time <= tasks.timed[collective].time.max(MAX_MOVED_NS);
            if tasks.lane[b as usize] == Lane::Comm || !little {
                return None;
            }
            open.push(b as usize);
        }
    }
    Some(inputs.into_iter().collect())
}

/// A running step with its start and end. For a collective it also has the position in the order.
#[derive(Clone, Copy, PartialEq, Eq)]
struct RunningStep {
    step: usize,
    start: u64,
    end: u64,
    place: usize,
}

struct OverlapScheduler<'a> {
    tasks: &'a TaskGraph,
    prefetches: &'a Prefetches,
    budget: u64,
    /// The steps in the initial order, and the rank of each step there.
    from: &'a [u32],
    rank: Vec<u32>,
    /// The first rank of a computation that has not started and was not moved ahead.
    frontier: usize,
    started: Vec<bool>,
    /// For each step the number of dependences that have not ended.
    missing: Vec<u32>,
    memory: LiveMemory<'a>,
    now: u64,
    computing: Option<RunningStep>,
    communicating: Option<RunningStep>,
    /// The ready steps by turn and rank, in five queues: computation, collectives, computation that is moved
    /// ahead, prefetches, and collectives that no step uses. Steps of the last three queues wait for their time
    /// and must not hide the others.
    ready: [BTreeSet<(u64, u32)>; 5],
    /// The prefetches that steps use and that have not started, by turn.
    pending: BTreeSet<(u64, u32)>,
    /// The first queue holds collectives that have ended and whose memory no computation may take over yet. The
    /// second holds those whose memory the running computation may take over.
    ended: VecDeque<RunningStep>,
    joining: Vec<usize>,
    /// The bytes of the second queue.
    held: u64,
    /// The position of each collective that has started.
    place: Vec<usize>,
    out: OverlappedOrder,
}

/// The indices in [`Scheduler::ready`] of prefetches, and of collectives that no step uses.
const READY_PREFETCH: usize = 3;
const READY_UNUSED: usize = 4;

/// The number of ready steps that are tried for one that fits the budget.
const LOOKED_AT: usize = 8;
/// The margin on the estimated time of a collective, in percent, that passes before its memory is taken over.
const MEMORY_REUSE_MARGIN: u64 = 25;

impl<'a> OverlapScheduler<'a> {
    fn new(tasks: &'a TaskGraph, from: &'a [u32], prefetches: &'a Prefetches, budget: u64) -> Self {
        let mut rank = vec![0; tasks.len()];
        from.iter().enumerate().for_each(|(i, &s)| rank[s as usize] = i as u32);
        let joined = vec![tasks.len() as u32; tasks.len()];
        let pending = (0..tasks.len())
            .filter(|&s| prefetches.earliest[s].is_some() && !prefetches.unused[s])
            .map(|s| (prefetches.turn[s], rank[s]))
            .collect();
        OverlapScheduler {
            tasks,
            prefetches,
            budget,
            from,
            rank,
            frontier: 0,
            started: vec![false; tasks.len()],
            missing: (0..tasks.len()).map(|s| tasks.before.row(s).len() as u32).collect(),
            memory: LiveMemory::new(tasks),
            now: 0,
            computing: None,
            communicating: None,
            ready: Default::default(),
            pending,
            ended: VecDeque::new(),
            joining: Vec::new(),
            held: 0,
            place: vec![0; tasks.len()],
            out: OverlappedOrder { order: Vec::with_capacity(tasks.len()), joined, peak: 0 },
        }
    }

    fn run(mut self) -> OverlappedOrder {
        for s in 0..self.tasks.len() {
            if self.missing[s] == 0 {
                self.enable(s);
            }
        }
        self.advance_frontier();
        loop {
            self.start_communication();
            self.start_computation();
            if self.computing.is_none() && self.communicating.is_none() && !self.force_start() {
                break;
            }
            self.advance_time();
        }
        debug_assert_eq!(self.out.order.len(), self.tasks.len());
        self.out
    }

    fn enable(&mut self, s: usize) {
        let kind = self.ready_queue(s);
        self.ready[kind].insert((self.prefetches.turn[s], self.rank[s]));
    }

    /// The index of the queue in [`Self::ready`] for a step.
    fn ready_queue(&self, s: usize) -> usize {
        if self.prefetches.unused[s] {
            return READY_UNUSED;
        }
        let waits = self.prefetches.moved[s] || self.prefetches.earliest[s].is_some();
        self.tasks.lane[s] as usize + if waits { 2 } else { 0 }
    }

    fn first_ready(&self, kind: usize) -> impl Iterator<Item = usize> + Clone {
        self.ready[kind].iter().take(LOOKED_AT).map(|&(_, rank)| self.from[rank as usize] as usize)
    }

    /// The priority among steps that could start now.
    fn start_priority(&self, s: usize) -> (u64, bool, u32) {
        (self.prefetches.turn[s], !self.prefetches.moved[s], self.rank[s])
    }

    /// The time of computation that has been done, without moved steps.
    fn progress(&self) -> u64 {
        match &self.computing {
            Some(r) if !self.prefetches.moved[r.step] => {
                self.prefetches.turn[r.step].saturating_add(self.now - r.start)
            }
            _ => self.frontier_turn(),
        }
    }

    /// The turn of the first computation that has not started.
    fn frontier_turn(&self) -> u64 {
        self.from.get(self.frontier).map_or(u64::MAX, |&s| self.prefetches.turn[s as usize])
    }

    fn advance_frontier(&mut self) {
        let passed =
            |s: usize| self.started[s] || self.prefetches.moved[s] || self.tasks.lane[s] == Lane::Comm;
        let mut frontier = self.frontier;
        while self.from.get(frontier).is_some_and(|&s| passed(s as usize)) {
            frontier += 1;
        }
        self.frontier = frontier;
    }

    /// Whether a step fits the budget if it starts now. A collective stands before the running computation in
    /// the order, and that computation has not taken over the memory of earlier collectives at this position.
    fn fits(&self, s: usize) -> bool {
        let added = self.memory.added_bytes(s);
        let held_bytes = if self.tasks.lane[s] == Lane::Comm { self.held } else { 0 };
        let live = total_bytes(self.memory.live).saturating_add(held_bytes);
        added == [0; 2] || live.saturating_add(total_bytes(added)) <= self.budget
    }

    /// Starts the first collective whose time has come and that fits the budget.
    fn start_communication(&mut self) {
        if self.communicating.is_some() {
            return;
        }
        let progress = self.progress();
        let candidates = [1, READY_PREFETCH].into_iter().filter_map(|kind| {
            self.first_ready(kind)
                .filter(|&s| self.prefetches.earliest[s].is_none_or(|e| e <= progress))
                .find(|&s| self.fits(s))
        });
        // A prefetch that has to start before this collective ends goes first.
        let next = self.pending.first().map_or(u64::MAX, |&(turn, _)| turn);
        let chosen = candidates.min_by_key(|&s| self.start_priority(s)).or_else(|| {
            self.first_ready(READY_UNUSED)
                .filter(|&s| progress.saturating_add(concurrent_time(self.tasks, s)) <= next)
                .find(|&s| self.fits(s))
        });
        if let Some(s) = chosen {
            self.start_step(s);
        }
    }

    /// Starts the first computation whose turn has come and that fits the budget. If none fits, it waits for
    /// collectives in flight. If there are none, it starts the first computation anyway.
    fn start_computation(&mut self) {
        if self.computing.is_some() {
            return;
        }
        self.take_over(None);
        let mut chosen = self.first_due(|this, s| this.fits(s));
        if chosen.is_none() && self.communicating.is_none() {
            // Nothing is in flight, so the memory of all ended collectives can be taken over.
            while !self.ended.is_empty() {
                self.take_over_first();
            }
            chosen = self.first_due(|this, s| this.fits(s)).or_else(|| self.first_due(|_, _| true));
        }
        if let Some(s) = chosen {
            self.start_step(s);
        }
    }

    /// The first ready computation whose turn has come and for which `is_fine` holds.
    fn first_due(&self, is_fine: impl Fn(&Self, usize) -> bool) -> Option<usize> {
        let turn = self.frontier_turn();
        let candidates = [0, 2].into_iter().filter_map(|kind| {
            self.first_ready(kind)
                .filter(|&s| !self.prefetches.moved[s] || self.prefetches.turn[s] <= turn)
                .find(|&s| is_fine(self, s))
        });
        candidates.min_by_key(|&s| self.start_priority(s))
    }

    /// Starts the first ready step although it may exceed the budget. Returns false if there is none.
    fn force_start(&mut self) -> bool {
        let first = (0..self.ready.len()).filter_map(|kind| self.first_ready(kind).next());
        let Some(s) = first.min_by_key(|&s| self.start_priority(s)) else { return false };
        self.start_step(s);
        true
    }

    fn start_step(&mut self, s: usize) {
        let lane = self.tasks.lane[s];
        let kind = self.ready_queue(s);
        self.ready[kind].remove(&(self.prefetches.turn[s], self.rank[s]));
        self.pending.remove(&(self.prefetches.turn[s], self.rank[s]));
        self.started[s] = true;
        let time = match self.prefetches.earliest[s] {
            Some(_) => concurrent_time(self.tasks, s),
            None => self.tasks.timed[s].time,
        };
        let start = self.now;
        let end = self.now.saturating_add(time);
        let running = RunningStep { step: s, start, end, place: self.out.order.len() };
        if lane == Lane::Comm {
            self.memory.begin_step(s);
            self.place[s] = running.place;
            self.out.order.push(s as u32);
            self.communicating = Some(running);
        } else {
            self.take_over(Some(s));
            self.memory.begin_step(s);
            self.computing = Some(running);
            self.advance_frontier();
        }
        self.out.peak = self.out.peak.max(total_bytes(self.memory.live));
    }

    /// Lets the next computation take over the memory of collectives that have certainly ended: those whose
    /// estimate has passed by a margin and, if `next` is known, those that it waits for and all before them.
    fn take_over(&mut self, next: Option<usize>) {
        let awaited = next.into_iter().flat_map(|s| self.tasks.before.row(s)).map(|&b| b as usize);
        let awaited = awaited.filter(|&b| self.tasks.lane[b] == Lane::Comm).map(|b| self.place[b]).max();
        while let Some(c) = self.ended.front() {
            let late = (c.end - c.start).saturating_mul(MEMORY_REUSE_MARGIN) / 100 + self.tasks.crossing;
            if Some(c.place) > awaited && c.end.saturating_add(late) > self.now {
                break;
            }
            self.take_over_first();
        }
    }

    /// Lets the next computation take over the memory of the first collective that has ended.
    fn take_over_first(&mut self) {
        let Some(c) = self.ended.pop_front() else { return };
        let before = total_bytes(self.memory.live);
        self.memory.end_step(c.step);
        self.held = self.held.saturating_add(before.saturating_sub(total_bytes(self.memory.live)));
        self.joining.push(c.place);
    }

    /// Advances to the next time at which a step ends or a prefetch is due.
    fn advance_time(&mut self) {
        let ends = [self.computing, self.communicating].into_iter().flatten().map(|r| r.end);
        let mut next = ends.min().unwrap_or(self.now);
        if self.communicating.is_none() && self.computing.is_some_and(|r| !self.prefetches.moved[r.step]) {
            let progress = self.progress();
            let earliest = self.first_ready(3).filter_map(|s| self.prefetches.earliest[s]);
            let due = earliest.filter_map(|e| e.checked_sub(progress).filter(|&d| d > 0));
            next = due.map(|d| self.now.saturating_add(d)).fold(next, u64::min);
        }
        self.now = self.now.max(next);
        if let Some(c) = self.communicating.take_if(|r| r.end <= self.now) {
            self.ended.push_back(c);
            self.unblock_users(c.step);
        }
        if let Some(c) = self.computing.take_if(|r| r.end <= self.now) {
            let position = self.out.order.len();
            self.out.order.push(c.step as u32);
            self.out.joined[position] = position as u32 + 1;
            for c in self.joining.drain(..) {
                self.out.joined[c] = position as u32;
            }
            self.held = 0;
            self.memory.end_step(c.step);
            self.unblock_users(c.step);
        }
    }

    fn unblock_users(&mut self, s: usize) {
        for &a in self.tasks.after.row(s) {
            self.missing[a as usize] -= 1;
            if self.missing[a as usize] == 0 {
                self.enable(a as usize);
            }
        }
    }
}

fn concurrent_time(tasks: &TaskGraph, s: usize) -> u64 {
    let t = tasks.timed[s];
    (u128::from(t.time) * u128::from(FULL_RATE) / u128::from(t.rate.max(1))) as u64
}

#[cfg(test)]
mod tests {
    use symmc_ir::machine::timeline::TimedStep;
    use symmc_support::random::SplitMix;

    use super::*;
    use crate::order::model::{IndexLists, MemoryClass};

    /// Steps of one value each, from their dependences, bytes, times, and whether they communicate.
    fn tasks(steps: &[(&[u32], u64, u64, bool)]) -> TaskGraph {
        let classes = steps.iter().map(|s| MemoryClass { bytes: s.1, arena: 0 }).collect();
        let mut tasks = TaskGraph::of_values(steps.iter().map(|s| s.0.to_vec()), classes);
        for (s, &(.., time, communicates)) in steps.iter().enumerate() {
            tasks.timed[s] = TimedStep { communicates, ..TimedStep::compute(time) };
            tasks.lane[s] = if communicates { Lane::Comm } else { Lane::Compute };
        }
        tasks.over = IndexLists::from_rows(steps.iter().map(|_| Vec::new()));
        tasks
    }

    /// Layers with a cast, a gather of the cast, and a product that reads the gather and the previous product.
    fn layers(count: u32) -> TaskGraph {
        let rows: Vec<(Vec<u32>, u64, u64, bool)> = (0..count)
            .flat_map(|l| {
                let product = if l == 0 { vec![1] } else { vec![3 * l - 1, 3 * l + 1] };
                [(vec![], 10, 5, false), (vec![3 * l], 100, 50, true), (product, 1, 200, false)]
            })
            .collect();
        tasks(&rows.iter().map(|r| (&r.0[..], r.1, r.2, r.3)).collect::<Vec<_>>())
    }

    #[test]
    fn gathers_of_parameters_run_beside_the_product_in_front() {
        let tasks = layers(6);
        let from: Vec<u32> = (0..18).collect();
        let overlapped = overlap(&tasks, &from, &Prefetches::new(&tasks, &from, 25), u64::MAX);
        // All gathers except the first are hidden. Casts run on the compute lane, the second one during the
        // first gather.
        assert_eq!(
            makespan(&tasks, &overlapped.order, &overlapped.joined),
            6 * (5 + 200) + 50 - 5,
            "{:?}",
            overlapped.order
        );
        // Two landing buffers are enough, because gathers start just in time.
        assert!(overlapped.peak < 2 * 100 + 3 * 10 + 2 * 2 + 10, "{}", overlapped.peak);
        // With room for one gather nothing overlaps.
        let overlapped = overlap(&tasks, &from, &Prefetches::new(&tasks, &from, 25), 150);
        assert!(
            makespan(&tasks, &overlapped.order, &overlapped.joined) >= 6 * (50 + 200),
            "{:?}",
            overlapped.order
        );
        assert!(overlapped.peak <= 150, "{}", overlapped.peak);
    }

    /// If communication takes longer than computation, all gathers are late. The gather that is used first goes
    /// first, also if it is small and its cast takes longer than the gather itself.
    #[test]
    fn late_gathers_of_parameters_keep_the_order_of_their_uses() {
        let mut rows: Vec<(Vec<u32>, u64, u64, bool)> = Vec::new();
        let sizes = [2u64, 500, 2, 700, 500, 3, 900, 2];
        // The last parameter comes first in the initial order.
        for &time in sizes.iter().rev() {
            let cast = rows.len() as u32;
            rows.extend([(vec![], time, 5, false), (vec![cast], time, time, true)]);
        }
        let count = sizes.len() as u32;
        for k in 0..count {
            let gather = 2 * (count - 1 - k) + 1;
            let product = if k == 0 { vec![gather] } else { vec![2 * count + k - 1, gather] };
            rows.push((product, 1, 20, false));
        }
        let tasks = tasks(&rows.iter().map(|r| (&r.0[..], r.1, r.2, r.3)).collect::<Vec<_>>());
        let from: Vec<u32> = (0..tasks.len() as u32).collect();
        for lead in [0, 25, 150] {
            let overlapped = overlap(&tasks, &from, &Prefetches::new(&tasks, &from, lead), u64::MAX);
            let gathers = overlapped.order.iter().copied().filter(|&s| tasks.lane[s as usize] == Lane::Comm);
            let expected: Vec<u32> = (0..count).map(|k| 2 * (count - 1 - k) + 1).collect();
            assert_eq!(gathers.collect::<Vec<_>>(), expected, "{:?}", overlapped.order);
            // Gathers follow each other without gaps, except for casts that a small gather does not hide.
            let total = sizes.iter().sum::<u64>() + 5 * u64::from(count) + 20;
            assert!(
                makespan(&tasks, &overlapped.order, &overlapped.joined) <= total,
                "{:?}",
                overlapped.order
            );
        }
    }

    #[test]
    fn reductions_that_nobody_reads_drain_beside_computation() {
        let tasks = tasks(&[
            (&[], 10, 100, false),
            (&[0], 10, 60, true),
            (&[], 10, 100, false),
            (&[2], 10, 60, true),
            (&[], 10, 100, false),
        ]);
        let overlapped =
            overlap(&tasks, &[0, 1, 2, 3, 4], &Prefetches::new(&tasks, &[0, 1, 2, 3, 4], 25), u64::MAX);
        assert_eq!(makespan(&tasks, &overlapped.order, &overlapped.joined), 300);
    }

    /// Twenty gathers that are not due do not keep a reduction from overlapping the first product.
    #[test]
    fn prefetches_that_are_not_due_do_not_hide_reductions() {
        let mut rows: Vec<(Vec<u32>, u64, u64, bool)> =
            vec![(vec![], 10, 1000, false), (vec![0], 10, 400, true)];
        for _ in 0..20 {
            let gather = rows.len() as u32;
            let last_row = if rows.len() == 2 { 0 } else { rows.len() as u32 - 1 };
            rows.push((vec![], 100, 50, true));
            rows.push((vec![gather, last_row], 10, 1000, false));
        }
        let tasks = tasks(&rows.iter().map(|r| (&r.0[..], r.1, r.2, r.3)).collect::<Vec<_>>());
        // The reduction is last in the initial order.
        let from: Vec<u32> = [0].into_iter().chain(2..tasks.len() as u32).chain([1]).collect();
        let overlapped = overlap(&tasks, &from, &Prefetches::new(&tasks, &from, 25), u64::MAX);
        let time = simulate_order(&tasks, &overlapped.order, &overlapped.joined);
        let position = overlapped.order.iter().position(|&s| s == 1).expect("it runs");
        assert!(
            time.spans[position].0 <= 1100 && time.total == 21 * 1000,
            "{:?} {}",
            time.spans[position],
            time.total
        );
    }

    /// Gathers that the program returns run in idle time of the lane, and do not make a prefetch start earlier
    /// than needed.
    #[test]
    fn collectives_that_no_step_uses_leave_prefetches_their_time() {
        let layers = layers(6);
        let used = |tasks: &TaskGraph| {
            let from: Vec<u32> = (0..tasks.len() as u32).collect();
            let prefetches = Prefetches::new(tasks, &from, 25);
            let overlapped = overlap(tasks, &from, &prefetches, u64::MAX);
            (makespan(tasks, &overlapped.order, &overlapped.joined), overlapped.peak, prefetches.turn)
        };
        let base = used(&layers);
        let mut rows: Vec<(Vec<u32>, u64, u64, bool)> = (0..layers.len())
            .map(|s| {
                let communicates = layers.lane[s] == Lane::Comm;
                (layers.before.row(s).to_vec(), layers.classes[s].bytes, layers.timed[s].time, communicates)
            })
            .collect();
        rows.extend((0..4).map(|_| (vec![], 0, 100, true)));
        let tasks = tasks(&rows.iter().map(|r| (&r.0[..], r.1, r.2, r.3)).collect::<Vec<_>>());
        let (time, peak, turn) = used(&tasks);
        assert_eq!(turn[..layers.len()], base.2);
        assert_eq!((time, peak), (base.0, base.1), "beside all that was there before");
    }

    /// For random dependences, times and budgets, each step occurs once and after its dependences, and joins
    /// come after their steps.
    #[test]
    fn every_order_is_one_of_the_program() {
        let mut rng = SplitMix(3);
        for round in 0..400 {
            let mut tasks = TaskGraph::random(&mut rng, 1 + round % 60, 1 + round % 3);
            for s in 0..tasks.len() {
                let communicates = rng.one_in(3);
                tasks.lane[s] = if communicates { Lane::Comm } else { Lane::Compute };
                tasks.timed[s] = TimedStep { communicates, ..TimedStep::compute(rng.below(100) as u64) };
            }
            let from: Vec<u32> = (0..tasks.len() as u32).collect();
            let budget = rng.pick(&[0, 50, 500, u64::MAX]);
            let OverlappedOrder { order, joined, .. } =
                overlap(&tasks, &from, &Prefetches::new(&tasks, &from, rng.pick(&[0, 25, 150])), budget);
            let mut position_of = vec![usize::MAX; tasks.len()];
            order.iter().enumerate().for_each(|(position, &s)| position_of[s as usize] = position);
            assert!(order.len() == tasks.len() && position_of.iter().all(|&p| p != usize::MAX), "{order:?}");
            for (position, &s) in order.iter().enumerate() {
                assert!(
                    tasks.before.row(s as usize).iter().all(|&b| position_of[b as usize] < position),
                    "{order:?}"
                );
                let next = joined[position] as usize;
                assert!(next > position && next <= order.len());
                assert!(tasks.lane[s as usize] == Lane::Comm || next == position + 1);
                // Readers of a collective wait for it, so its memory is not needed for longer than the last
                // reader says.
                let first =
                    tasks.after.row(s as usize).iter().filter(|&&a| tasks.lane[a as usize] == Lane::Compute);
                let first = first.map(|&a| position_of[a as usize]).min();
                assert!(first.is_none_or(|f| next <= f), "{order:?} {joined:?} at {position}");
            }
            assert!(makespan(&tasks, &order, &joined) > 0 || tasks.timed.iter().all(|t| t.time == 0));
        }
    }
}
