//! Vector clocks of all ranks and lanes over a sequence of runs. They decide the happens-before order.
//!
//! A clock has one entry for each lane of each rank. The entry is the last tick that the lane is known to have
//! reached. Ticks grow along the list of steps and from run to run. A tick names one point of one step: its last
//! touch of peers, or its completion. An access that ends at tick `t` of a lane happens before an access that
//! starts under a clock whose entry for that lane is at least `t`.
//!
//! All ranks run the same list, and a step depends only on earlier points of the list. One pass over the list
//! therefore visits every point after all points that it depends on.
//!
//! # Shared clocks
//! Ranks of a cell meet together, so they learn the same about all others. Their clock is stored once and shared.
//! Each rank adds the ticks of its own lanes ([`LaneClock`]). Work and memory grow with the number of distinct
//! clocks, not with the number of ranks.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};
use symmc_ir::collective::SyncScope;

use super::ranks::{PairExchange, SimulatedRanks};
use super::step::{CheckStep, StepSync};

pub const LANE_COUNT: usize = 2;

/// A completed step, for comparison with later steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PastStep {
    pub lane: usize,
    pub tick: u32,
    pub bucket: usize,
    pub step: usize,
}

#[derive(Clone, Default, Debug)]
struct GroupHistory {
    /// The last step of the group.
    last: Option<PastStep>,
    /// The landing zone that the next collective by LL uses.
    zone: usize,
    /// The last step that used each landing zone.
    zones: [Option<PastStep>; 2],
}

/// A violation of the order within a group. The clocks show it without any access to memory.
pub enum OrderFault {
    /// The step is not ordered after this earlier one of the same group.
    Unordered(PastStep),
    /// The step writes into a landing zone that some rank may still be reading in this earlier step.
    Landing(PastStep),
}

/// The clock of one lane of one rank: a clock that others may share, and the ticks of the rank's own lanes. For
/// the own lanes the larger of both entries counts.
#[derive(Clone, Debug)]
struct LaneClock {
    shared: Arc<[u32]>,
    own: [u32; LANE_COUNT],
}

/// The clocks under which an access starts, one for each rank that makes it. A fact is known at the start of the
/// access only if all of these ranks know it.
#[derive(Clone)]
pub struct AccessStart<'a>(SmallVec<[KnownClock<'a>; 1]>);

/// A clock of one rank, or of a cell after its rendezvous (`own` is `None` then).
#[derive(Clone, Copy)]
struct KnownClock<'a> {
    shared: &'a [u32],
    own: Option<(usize, [u32; LANE_COUNT])>,
}

impl AccessStart<'_> {
    /// Whether this lane of this rank is known to have reached `tick`.
    pub fn knows(&self, rank: usize, lane: usize, tick: u32) -> bool {
        self.0.iter().all(|clock| {
            let own = clock.own.filter(|(r, _)| *r == rank).map_or(0, |(_, own)| own[lane]);
            own >= tick || clock.shared[rank * LANE_COUNT + lane] >= tick
        })
    }
}

/// The clocks after the rendezvous of the current step.
#[derive(Clone)]
enum RendezvousClocks {
    None,
    /// The clock of each cell of the group. It is computed for every step with a group, and used only where the
    /// contract of the step says that the group meets.
    Cells(Vec<Arc<[u32]>>),
    /// The clock of each rank after it has met all ranks with which it forms pairs.
    Pairs(Vec<LaneClock>),
}

#[derive(Clone)]
pub struct VectorClocks {
    /// The current clock of each lane of each rank, at index `rank * LANE_COUNT + lane`.
    now: Vec<LaneClock>,
    /// The tick of the start of this run.
    base: u32,
    /// The tick of the start of the next run.
    next: u32,
    /// The clocks of all ranks at the completion of those steps that later steps wait for.
    kept: BTreeMap<usize, Vec<LaneClock>>,
    groups: Vec<GroupHistory>,
    rendezvous: RendezvousClocks,
    /// The number of clocks joined across ranks.
    pub joins: u64,
}

impl VectorClocks {
    pub fn new(ranks: &SimulatedRanks) -> Self {
        let lanes = ranks.count * LANE_COUNT;
        let nothing = LaneClock { shared: vec![0; lanes].into(), own: [0; LANE_COUNT] };
        VectorClocks {
            now: vec![nothing; lanes],
            base: 0,
            next: 1,
            kept: BTreeMap::new(),
            groups: vec![GroupHistory::default(); ranks.cells.len()],
            rendezvous: RendezvousClocks::None,
            joins: 0,
        }
    }

    fn lane_clock(&self, rank: usize, lane: usize) -> &LaneClock {
        &self.now[rank * LANE_COUNT + lane]
    }

    /// The current clock of a lane of a rank: at the start of a run, or at the arrival of the current step.
    pub fn now(&self, rank: usize, lane: usize) -> AccessStart<'_> {
        AccessStart(smallvec![self.lane_clock(rank, lane).known(rank)])
    }

    pub fn run_start(&self) -> u32 {
        self.base
    }

    pub fn next_start(&self) -> u32 {
        self.next
    }

    /// The tick of the last touch of peers by a step of this run.
    pub fn last_touch(&self, step: usize) -> u32 {
        self.base + 1 + 2 * step as u32
    }

    /// The tick of the completion of a step of this run.
    pub fn completion(&self, step: usize) -> u32 {
        self.base + 2 + 2 * step as u32
    }

    /// Starts a run of `steps` steps. On each rank the run starts after all its lanes have finished the run before.
    pub fn start_run(&mut self, steps: usize) {
        self.base = self.next;
        self.next = self.base + 2 + 2 * steps as u32;
        self.kept.clear();
        let mut joins = JoinCache::default();
        for lanes in self.now.chunks_mut(LANE_COUNT) {
            let shared = lanes[1..]
                .iter()
                .fold(lanes[0].shared.clone(), |joined, l| joins.join_clocks(&joined, &l.shared));
            lanes.fill(LaneClock { shared, own: [self.base; LANE_COUNT] });
        }
    }

    /// Advances every rank to the arrival of a step, and computes the clocks of its rendezvous.
    pub fn arrive(
        &mut self,
        step: &CheckStep,
        bucket: usize,
        index: usize,
        ranks: &SimulatedRanks,
        faults: &mut Vec<OrderFault>,
    ) {
        for wait in &step.waits {
            let Some(kept_clocks) = self.kept.get(wait) else { continue };
            let mut joins = JoinCache::default();
            for (rank, clock) in kept_clocks.iter().enumerate() {
                self.now[rank * LANE_COUNT + step.lane].join(clock, &mut joins);
            }
        }
        let Some(sync) = step.sync else { return };
        self.rendezvous = match PairExchange::from_step(step) {
            Some(exchange) => self.meet_in_pairs(exchange, step.lane, ranks),
            None => self.meet_in_cells(&ranks.cells[sync.group], step.lane),
        };
        self.compare_with_group(step, sync, bucket, index, ranks, faults);
    }

    fn meet_in_cells(&mut self, cells: &[Vec<usize>], lane: usize) -> RendezvousClocks {
        // Cells whose ranks have the same shared clocks differ only in the ticks of their own lanes. The join of the
        // shared clocks is therefore computed once for each set of shared clocks.
        let mut cache: HashMap<Vec<*const u32>, Arc<[u32]>> = HashMap::new();
        let mut met = Vec::with_capacity(cells.len());
        for cell in cells {
            let mut clocks: Vec<&Arc<[u32]>> =
                cell.iter().map(|&r| &self.lane_clock(r, lane).shared).collect();
            clocks.sort_unstable_by_key(|c| c.as_ptr());
            clocks.dedup_by_key(|c| c.as_ptr());
            let joined = cache.entry(clocks.iter().map(|c| c.as_ptr()).collect()).or_insert_with(|| {
                let mut joined = clocks.first().map_or_else(Vec::new, |c| c.to_vec());
                clocks.iter().skip(1).for_each(|c| raise(&mut joined, c));
                joined.into()
            });
            let mut clock = joined.to_vec();
            for &r in cell {
                raise(&mut clock[r * LANE_COUNT..(r + 1) * LANE_COUNT], &self.lane_clock(r, lane).own);
            }
            met.push(clock.into());
            self.joins += cell.len() as u64;
        }
        RendezvousClocks::Cells(met)
    }

    fn meet_in_pairs(
        &mut self,
        exchange: PairExchange<'_>,
        lane: usize,
        ranks: &SimulatedRanks,
    ) -> RendezvousClocks {
        let mut met: Vec<LaneClock> = (0..ranks.count).map(|r| self.lane_clock(r, lane).clone()).collect();
        for (from, to) in exchange.rank_pairs(&ranks.cells) {
            for (rank, other) in [(from, to), (to, from)] {
                let other_clock = self.lane_clock(other, lane);
                let mut clock = met[rank].shared.to_vec();
                raise(&mut clock, &other_clock.shared);
                raise(&mut clock[other * LANE_COUNT..(other + 1) * LANE_COUNT], &other_clock.own);
                met[rank].shared = clock.into();
                self.joins += 1;
            }
        }
        RendezvousClocks::Pairs(met)
    }

    /// Compares a step with earlier steps of its group. The step must arrive after the last of them on every rank.
    /// If the step writes a landing zone, then all ranks of a cell must know that all others have completed the
    /// last step that used this zone.
    fn compare_with_group(
        &mut self,
        step: &CheckStep,
        sync: StepSync,
        bucket: usize,
        index: usize,
        ranks: &SimulatedRanks,
        faults: &mut Vec<OrderFault>,
    ) {
        let this = PastStep { lane: step.lane, tick: self.completion(index), bucket, step: index };
        let past = &self.groups[sync.group];
        if let Some(last) = past.last {
            let is_completed =
                (0..ranks.count).all(|r| self.lane_clock(r, step.lane).own[last.lane] >= last.tick);
            if !is_completed {
                faults.push(OrderFault::Unordered(last));
            }
        }
        if sync.landing
            && let Some(last) = past.zones[past.zone]
        {
            let mut cells = ranks.cells[sync.group].iter();
            let all_know =
                cells.all(|c| self.know_each_other(c, step.lane, last.lane..last.lane + 1, last.tick));
            if !all_know {
                faults.push(OrderFault::Landing(last));
            }
        }
        let past = &mut self.groups[sync.group];
        past.last = Some(this);
        if sync.landing {
            past.zones[past.zone] = Some(this);
            past.zone = 1 - past.zone;
        }
    }

    /// The clock under which a rank begins to write the results of a step.
    pub fn start_of_result_writes(
        &self,
        rank: usize,
        step: &CheckStep,
        ranks: &SimulatedRanks,
    ) -> AccessStart<'_> {
        let met = step.sync.filter(|s| s.result_after_rendezvous);
        met.and_then(|sync| self.rendezvous_start(rank, sync, ranks))
            .unwrap_or_else(|| self.now(rank, step.lane))
    }

    /// The clocks under which the peers of a rank begin to touch its memory.
    pub fn start_of_peer_accesses(
        &self,
        rank: usize,
        step: &CheckStep,
        ranks: &SimulatedRanks,
    ) -> AccessStart<'_> {
        let met = step.sync.filter(|s| s.entry).and_then(|sync| self.rendezvous_start(rank, sync, ranks));
        met.unwrap_or_else(|| {
            let peers = step.sync.into_iter().flat_map(|sync| ranks.peers(sync.group, rank));
            AccessStart(peers.map(|p| self.lane_clock(p, step.lane).known(p)).collect())
        })
    }

    /// The clock of the rank's cell after the rendezvous. `None` if the current step has no such rendezvous.
    fn rendezvous_start(
        &self,
        rank: usize,
        sync: StepSync,
        ranks: &SimulatedRanks,
    ) -> Option<AccessStart<'_>> {
        let RendezvousClocks::Cells(cells) = &self.rendezvous else { return None };
        let shared = cells.get(ranks.cell_of(sync.group, rank)?)?;
        Some(AccessStart(smallvec![KnownClock { shared, own: None }]))
    }

    /// Advances every rank to the completion of a step. `waited_for` says whether a later step waits for it.
    pub fn complete(&mut self, step: &CheckStep, index: usize, ranks: &SimulatedRanks, waited_for: bool) {
        let last_touch = self.last_touch(index);
        let completion = self.completion(index);
        match (std::mem::replace(&mut self.rendezvous, RendezvousClocks::None), step.sync) {
            (RendezvousClocks::Pairs(met), _) => {
                met.into_iter()
                    .enumerate()
                    .for_each(|(r, clock)| self.now[r * LANE_COUNT + step.lane] = clock);
            }
            (RendezvousClocks::Cells(met), Some(sync)) if sync.meets == SyncScope::Group || sync.exit => {
                for (cell, mut clock) in ranks.cells[sync.group].iter().zip(met) {
                    if sync.exit {
                        let mut touched = clock.to_vec();
                        cell.iter().for_each(|&peer| touched[peer * LANE_COUNT + step.lane] = last_touch);
                        clock = touched.into();
                    }
                    cell.iter().for_each(|&r| self.now[r * LANE_COUNT + step.lane].shared = clock.clone());
                }
            }
            _ => {}
        }
        let in_lane = self.now.iter_mut().skip(step.lane).step_by(LANE_COUNT);
        in_lane.for_each(|clock| clock.own[step.lane] = completion);
        if waited_for {
            let in_lane = self.now.iter().skip(step.lane).step_by(LANE_COUNT);
            self.kept.insert(index, in_lane.cloned().collect());
        }
    }

    /// Drops the clocks of a completed step for which no later step waits.
    pub fn forget(&mut self, step: usize) {
        self.kept.remove(&step);
    }

    /// Whether every lane of each of these ranks knows that all lanes of all of them have reached `tick`.
    pub fn all_know(&self, ranks: &[usize], tick: u32) -> bool {
        (0..LANE_COUNT).all(|lane| self.know_each_other(ranks, lane, 0..LANE_COUNT, tick))
    }

    /// Whether `lane` of each of these ranks knows that `lanes` of all of them have reached `tick`.
    fn know_each_other(&self, ranks: &[usize], lane: usize, lanes: Range<usize>, tick: u32) -> bool {
        // For each shared clock, the ranks that it does not know to have reached the tick. A rank can only make up
        // for itself with its own ticks, so two such ranks decide the answer and no more are stored.
        let mut unknown: HashMap<*const u32, SmallVec<[usize; 2]>> = HashMap::new();
        ranks.iter().all(|&rank| {
            let clock = self.lane_clock(rank, lane);
            let unknown = unknown.entry(clock.shared.as_ptr()).or_insert_with(|| {
                let unreached = ranks
                    .iter()
                    .copied()
                    .filter(|&r| lanes.clone().any(|l| clock.shared[r * LANE_COUNT + l] < tick));
                unreached.take(2).collect()
            });
            unknown.iter().all(|&r| {
                r == rank
                    && lanes.clone().all(|l| clock.own[l].max(clock.shared[rank * LANE_COUNT + l]) >= tick)
            })
        })
    }

    /// The part of the state that decides which later accesses are ordered after points before `tick`. Two states
    /// with equal summaries allow the same continuations. Equal clocks get equal numbers, so that the summary does
    /// not depend on which clocks are shared.
    pub fn summary(&self, tick: u32) -> Vec<u32> {
        let mut clocks: BTreeMap<Vec<u32>, u32> = BTreeMap::new();
        let mut number_by_address: HashMap<*const u32, u32> = HashMap::new();
        let mut out = Vec::new();
        for LaneClock { shared, own } in &self.now {
            let number = *number_by_address.entry(shared.as_ptr()).or_insert_with(|| {
                let next = clocks.len() as u32;
                *clocks.entry(shared.iter().map(|&t| t.min(tick)).collect()).or_insert(next)
            });
            out.push(number);
            out.extend(own.iter().map(|&t| t.min(tick)));
        }
        for (clock, number) in clocks {
            out.push(number);
            out.extend(clock);
        }
        for g in &self.groups {
            out.push(g.zone as u32);
            let zones = g.zones.iter().map(|p| p.filter(|p| p.tick < tick).map_or(0, |p| p.tick));
            out.extend(zones);
        }
        out
    }
}

impl LaneClock {
    fn known(&self, rank: usize) -> KnownClock<'_> {
        KnownClock { shared: &self.shared, own: Some((rank, self.own)) }
    }

    fn join(&mut self, other: &LaneClock, joins: &mut JoinCache) {
        self.shared = joins.join_clocks(&self.shared, &other.shared);
        raise(&mut self.own, &other.own);
    }
}

/// Joins of shared clocks by the addresses of both, so that equal joins are computed and stored once. Each entry
/// keeps its two operands alive, so that no other clock can be allocated at their addresses.
#[derive(Default)]
struct JoinCache(HashMap<(*const u32, *const u32), [Arc<[u32]>; 3]>);

impl JoinCache {
    fn join_clocks(&mut self, a: &Arc<[u32]>, b: &Arc<[u32]>) -> Arc<[u32]> {
        if Arc::ptr_eq(a, b) {
            return a.clone();
        }
        let entry = self.0.entry((a.as_ptr(), b.as_ptr()));
        let [joined, ..] = entry.or_insert_with(|| {
            let joined = if is_at_least(a, b) {
                a.clone()
            } else if is_at_least(b, a) {
                b.clone()
            } else {
                a.iter().zip(b.iter()).map(|(&x, &y)| x.max(y)).collect()
            };
            [joined, a.clone(), b.clone()]
        });
        joined.clone()
    }
}

fn is_at_least(x: &[u32], y: &[u32]) -> bool {
    x.iter().zip(y).all(|(x, y)| x >= y)
}

/// Raises each entry of a clock to at least the entry of `by`.
fn raise(clock: &mut [u32], by: &[u32]) {
    clock.iter_mut().zip(by).for_each(|(a, &b)| *a = (*a).max(b));
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::HashSet;

    use symmc_ir::GroupMembers;

    use super::super::program::PlanGroup;
    use super::*;

    pub fn group(members: GroupMembers, size: u32) -> PlanGroup {
        PlanGroup { name: "g".into(), members, size }
    }

    fn step(lane: usize, waits: &[usize], sync: Option<StepSync>) -> CheckStep {
        CheckStep {
            lane,
            waits: waits.to_vec(),
            reads: Vec::new(),
            writes: Vec::new(),
            peer_reads: Vec::new(),
            peer_writes: Vec::new(),
            keeps: HashSet::new(),
            sync,
            pairs: Vec::new(),
        }
    }

    pub fn exchange_step(pairs: &[(u32, u32)]) -> CheckStep {
        let sync = StepSync { meets: SyncScope::Pairs, landing: false, ..LL_SYNC };
        CheckStep { pairs: pairs.to_vec(), ..step(1, &[], Some(sync)) }
    }

    pub fn ranks(count: usize, groups: &[PlanGroup], steps: &[CheckStep]) -> SimulatedRanks {
        let exchanges = steps.iter().filter_map(PairExchange::from_step).collect();
        SimulatedRanks::new(count, groups, &vec![true; groups.len()], &exchanges)
    }

    fn faults(steps: &[CheckStep], runs: usize, ranks: &SimulatedRanks) -> Vec<OrderFault> {
        let mut clocks = VectorClocks::new(ranks);
        let mut faults = Vec::new();
        for _ in 0..runs {
            clocks.start_run(steps.len());
            for (i, s) in steps.iter().enumerate() {
                clocks.arrive(s, 0, i, ranks, &mut faults);
                clocks.complete(s, i, ranks, true);
            }
        }
        faults
    }

    const LL_SYNC: StepSync = StepSync {
        group: 0,
        entry: false,
        meets: SyncScope::Group,
        result_after_rendezvous: true,
        exit: false,
        landing: true,
    };

    #[test]
    fn zones_in_turn_need_a_rendezvous_between_uses_of_one() {
        let ranks = ranks(3, &[group(GroupMembers::World, 3)], &[]);
        let lines = [step(1, &[], Some(LL_SYNC))];
        assert_eq!(faults(&lines, 5, &ranks).len(), 0);
        // A variant that pushes into landing zones and does not meet.
        let silent = [step(1, &[], Some(StepSync { meets: SyncScope::Nobody, ..LL_SYNC }))];
        assert_eq!(faults(&silent, 2, &ranks).len(), 0);
        let order_faults = faults(&silent, 3, &ranks);
        assert!(matches!(order_faults[..], [OrderFault::Landing(PastStep { step: 0, .. })]));
        // In one run, with a rendezvous in between.
        let rendezvous = step(1, &[], Some(StepSync { landing: false, ..LL_SYNC }));
        let mixed = [silent[0].clone(), silent[0].clone(), rendezvous];
        assert_eq!(faults(&mixed, 4, &ranks).len(), 0);
    }

    #[test]
    fn collectives_of_a_group_need_one_order() {
        let ranks = ranks(2, &[group(GroupMembers::World, 2)], &[]);
        let first = step(1, &[], Some(LL_SYNC));
        let unordered = [first.clone(), step(0, &[], Some(LL_SYNC))];
        assert!(matches!(faults(&unordered, 1, &ranks)[..], [OrderFault::Unordered(_)]));
        assert_eq!(faults(&[first, step(0, &[0], Some(LL_SYNC))], 3, &ranks).len(), 0);
    }

    #[test]
    fn pairs_know_of_each_other_and_nobody_else() {
        let world = [group(GroupMembers::World, 4)];
        let steps = [exchange_step(&[(0, 1)]), exchange_step(&[(1, 2)])];
        let ranks = ranks(4, &world, &steps);
        let mut clocks = VectorClocks::new(&ranks);
        let mut faults = Vec::new();
        clocks.start_run(steps.len());
        let start = clocks.run_start();
        let mut knows = Vec::new();
        for (i, s) in steps.iter().enumerate() {
            clocks.arrive(s, 0, i, &ranks, &mut faults);
            clocks.complete(s, i, &ranks, false);
            let known_ranks = (0..4).map(|rank| {
                let arrived = (0..4).filter(|&other| clocks.now(rank, 1).knows(other, 1, start));
                arrived.collect::<Vec<usize>>()
            });
            knows.push(known_ranks.collect::<Vec<_>>());
        }
        assert_eq!(knows[0], [vec![0, 1], vec![0, 1], vec![2], vec![3]]);
        // Rank 2 learns of rank 0 through rank 1; rank 0 does not learn of rank 2.
        assert_eq!(knows[1], [vec![0, 1], vec![0, 1, 2], vec![0, 1, 2], vec![3]]);
        assert!(faults.is_empty());
    }
}
