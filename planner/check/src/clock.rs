//! Vector clocks of all ranks and lanes over a sequence of runs.
//!
//! A clock has one entry for each lane of each rank: the tick up to which the holder knows that lane to
//! have come. Ticks grow along the list of steps and from run to run, so that a tick names one point of one
//! step: its last touch of peers, or its completion. An access that ends at tick `t` of a lane happens
//! before whatever starts under a clock whose entry for that lane is `t` or more.
//!
//! All ranks run the same list, and a step only depends on earlier points of the list, so one pass over the
//! list visits every point after all that it depends on.
//!
//! What ranks learn from each other they learn together with all of their cell, so their clocks are kept once for all
//! that share them, each with what the rank knows of itself. Work and memory go by the clocks that differ, not by the
//! number of ranks.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};
use symmc_ir::collective::SyncScope;

use super::ranks::{PairExchange, SimulatedRanks};
use super::step::{CheckStep, StepSync};

pub const LANES: usize = 2;

/// A completed step that a later one is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PastStep {
    pub lane: usize,
    pub tick: u32,
    pub bucket: usize,
    pub step: usize,
}

#[derive(Clone, Default, Debug)]
struct GroupHistory {
    last: Option<PastStep>,
    /// The zone that the next collective by LL goes to.
    zone: usize,
    zones: [Option<PastStep>; 2],
}

/// Something that the clocks alone show to be wrong.
pub enum OrderFault {
    /// The step is not ordered after an earlier one on the same group.
    Unordered(PastStep),
    /// The step writes into a landing zone that is not known to be read.
    Landing(PastStep),
}

/// What a lane of a rank knows: a clock that others may share, and how far the rank's own lanes have come, whatever that
/// clock says of them.
#[derive(Clone, Debug)]
struct LaneClock {
    shared: Arc<[u32]>,
    own: [u32; LANES],
}

/// What is known where an access starts: the least of what those know who make it.
#[derive(Clone)]
pub struct AccessStart<'a>(SmallVec<[KnownClock<'a>; 1]>);

#[derive(Clone, Copy)]
struct KnownClock<'a> {
    shared: &'a [u32],
    own: Option<(usize, [u32; LANES])>,
}

impl AccessStart<'_> {
    /// Whether this lane of this rank is known to have come to `tick`.
    pub fn knows(&self, rank: usize, lane: usize, tick: u32) -> bool {
        self.0.iter().all(|known| {
            let own = known.own.filter(|(r, _)| *r == rank).map_or(0, |(_, own)| own[lane]);
            own >= tick || known.shared[rank * LANES + lane] >= tick
        })
    }
}

/// What those know who have met.
#[derive(Clone)]
enum RendezvousClocks {
    None,
    /// The clock of each cell of the group.
    Cells(Vec<Arc<[u32]>>),
    /// What each rank knows when it has met those with which it forms pairs.
    Pairs(Vec<LaneClock>),
}

#[derive(Clone)]
pub struct VectorClocks {
    /// What each lane of each rank knows, one after another.
    now: Vec<LaneClock>,
    /// The tick of the start of this run.
    base: u32,
    /// The tick of the start of the next run.
    next: u32,
    /// What all ranks know at the completion of steps that are waited for.
    kept: BTreeMap<usize, Vec<LaneClock>>,
    groups: Vec<GroupHistory>,
    rendezvous: RendezvousClocks,
    /// The number of clocks joined across ranks.
    pub joins: u64,
}

impl VectorClocks {
    pub fn new(ranks: &SimulatedRanks) -> Self {
        let lanes = ranks.count * LANES;
        let nothing = LaneClock { shared: vec![0; lanes].into(), own: [0; LANES] };
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
        &self.now[rank * LANES + lane]
    }

    /// What a lane of a rank knows: at the start of a run, or at the arrival of the step in that lane.
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

    /// Starts a run of `steps` steps: on each rank after all its lanes.
    pub fn start_run(&mut self, steps: usize) {
        self.base = self.next;
        self.next = self.base + 2 + 2 * steps as u32;
        self.kept.clear();
        let mut joins = JoinCache::default();
        for lanes in self.now.chunks_mut(LANES) {
            let shared =
                lanes[1..].iter().fold(lanes[0].shared.clone(), |all, l| joins.join_clocks(&all, &l.shared));
            lanes.fill(LaneClock { shared, own: [self.base; LANES] });
        }
    }

    /// Brings every rank to the arrival of a step, and every cell of its group to its rendezvous.
    pub fn arrive(
        &mut self,
        step: &CheckStep,
        (bucket, index): (usize, usize),
        ranks: &SimulatedRanks,
        faults: &mut Vec<OrderFault>,
    ) {
        for wait in &step.waits {
            let Some(kept) = self.kept.get(wait) else { continue };
            let mut joins = JoinCache::default();
            for (rank, kept) in kept.iter().enumerate() {
                self.now[rank * LANES + step.lane].join(kept, &mut joins);
            }
        }
        let Some(sync) = step.sync else { return };
        self.rendezvous = match PairExchange::from_step(step) {
            Some(exchange) => self.meet_in_pairs(exchange, step.lane, ranks),
            None => self.meet_in_cells(&ranks.cells[sync.group], step.lane),
        };
        self.compare_with_group(step, sync, (bucket, index), ranks, faults);
    }

    fn meet_in_cells(&mut self, cells: &[Vec<usize>], lane: usize) -> RendezvousClocks {
        // Cells whose ranks share the same clocks differ only in what these know of themselves.
        let mut known: HashMap<Vec<*const u32>, Arc<[u32]>> = HashMap::new();
        let mut met = Vec::with_capacity(cells.len());
        for cell in cells {
            let mut clocks: Vec<&Arc<[u32]>> =
                cell.iter().map(|&r| &self.lane_clock(r, lane).shared).collect();
            clocks.sort_unstable_by_key(|c| c.as_ptr());
            clocks.dedup_by_key(|c| c.as_ptr());
            let joined = known.entry(clocks.iter().map(|c| c.as_ptr()).collect()).or_insert_with(|| {
                let mut joined = clocks.first().map_or_else(Vec::new, |c| c.to_vec());
                clocks.iter().skip(1).for_each(|c| raise(&mut joined, c));
                joined.into()
            });
            let mut clock = joined.to_vec();
            for &r in cell {
                raise(&mut clock[r * LANES..(r + 1) * LANES], &self.lane_clock(r, lane).own);
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
                let (row, other) = (&mut met[rank], (other, self.lane_clock(other, lane)));
                let mut clock = row.shared.to_vec();
                raise(&mut clock, &other.1.shared);
                raise(&mut clock[other.0 * LANES..(other.0 + 1) * LANES], &other.1.own);
                row.shared = clock.into();
                self.joins += 1;
            }
        }
        RendezvousClocks::Pairs(met)
    }

    /// Compares a step with the earlier ones of its group.
    fn compare_with_group(
        &mut self,
        step: &CheckStep,
        sync: StepSync,
        (bucket, index): (usize, usize),
        ranks: &SimulatedRanks,
        faults: &mut Vec<OrderFault>,
    ) {
        let this = PastStep { lane: step.lane, tick: self.completion(index), bucket, step: index };
        let past = &self.groups[sync.group];
        let followed =
            |p: &PastStep| (0..ranks.count).all(|r| self.lane_clock(r, step.lane).own[p.lane] >= p.tick);
        if let Some(last) = past.last.filter(|p| !followed(p)) {
            faults.push(OrderFault::Unordered(last));
        }
        if sync.landing {
            let all_know = |p: &PastStep| {
                let cells = &ranks.cells[sync.group];
                cells.iter().all(|c| self.know_each_other(c, step.lane, p.lane..p.lane + 1, p.tick))
            };
            if let Some(last) = past.zones[past.zone].filter(|p| !all_know(p)) {
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

    /// What is known where a rank begins to write the results of a step.
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

    /// What is known where the peers of a rank begin to touch its memory: what each of them knows.
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

    /// What the cell of a rank knows after its rendezvous.
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

    /// Brings every rank to the completion of a step.
    pub fn complete(&mut self, step: &CheckStep, index: usize, ranks: &SimulatedRanks, waited_for: bool) {
        let (last_touch, completion) = (self.last_touch(index), self.completion(index));
        match (std::mem::replace(&mut self.rendezvous, RendezvousClocks::None), step.sync) {
            (RendezvousClocks::Pairs(met), _) => {
                met.into_iter().enumerate().for_each(|(r, row)| self.now[r * LANES + step.lane] = row);
            }
            (RendezvousClocks::Cells(met), Some(sync)) if sync.meets == SyncScope::Group || sync.exit => {
                for (cell, mut clock) in ranks.cells[sync.group].iter().zip(met) {
                    if sync.exit {
                        let mut touched = clock.to_vec();
                        cell.iter().for_each(|&peer| touched[peer * LANES + step.lane] = last_touch);
                        clock = touched.into();
                    }
                    cell.iter().for_each(|&r| self.now[r * LANES + step.lane].shared = clock.clone());
                }
            }
            _ => {}
        }
        let in_lane = self.now.iter_mut().skip(step.lane).step_by(LANES);
        in_lane.for_each(|row| row.own[step.lane] = completion);
        if waited_for {
            let in_lane = self.now.iter().skip(step.lane).step_by(LANES);
            self.kept.insert(index, in_lane.cloned().collect());
        }
    }

    /// Forgets what was known at the completion of a step that no later one waits for.
    pub fn forget(&mut self, step: usize) {
        self.kept.remove(&step);
    }

    /// Whether every lane of each of these ranks knows that each of them had come to `tick`.
    pub fn all_know(&self, ranks: &[usize], tick: u32) -> bool {
        (0..LANES).all(|lane| self.know_each_other(ranks, lane, 0..LANES, tick))
    }

    /// Whether this lane of each of these ranks knows that the lanes `of` each of them had come to `tick`.
    fn know_each_other(&self, ranks: &[usize], lane: usize, of: Range<usize>, tick: u32) -> bool {
        // Two of those that a clock does not know to have come, at most.
        let mut open: HashMap<*const u32, SmallVec<[usize; 2]>> = HashMap::new();
        ranks.iter().all(|&rank| {
            let row = self.lane_clock(rank, lane);
            let open = open.entry(row.shared.as_ptr()).or_insert_with(|| {
                let come = |r: usize| of.clone().all(|l| row.shared[r * LANES + l] >= tick);
                ranks.iter().copied().filter(|&r| !come(r)).take(2).collect()
            });
            let known = |l: usize| row.own[l].max(row.shared[rank * LANES + l]) >= tick;
            open.iter().all(|&r| r == rank && of.clone().all(known))
        })
    }

    /// All that matters for what may follow with regard to what happened before `tick`.
    pub fn summary(&self, tick: u32) -> Vec<u32> {
        let mut clocks: BTreeMap<Vec<u32>, u32> = BTreeMap::new();
        let mut of: HashMap<*const u32, u32> = HashMap::new();
        let mut out = Vec::new();
        for row in &self.now {
            let number = *of.entry(row.shared.as_ptr()).or_insert_with(|| {
                let (next, clock) = (clocks.len() as u32, row.shared.iter().map(|&t| t.min(tick)));
                *clocks.entry(clock.collect()).or_insert(next)
            });
            out.push(number);
            out.extend(row.own.iter().map(|&t| t.min(tick)));
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

/// Joined clocks, each made once. The clocks that they were made of are held, so that no other takes their address.
#[derive(Default)]
struct JoinCache(HashMap<(*const u32, *const u32), [Arc<[u32]>; 3]>);

impl JoinCache {
    fn join_clocks(&mut self, a: &Arc<[u32]>, b: &Arc<[u32]>) -> Arc<[u32]> {
        if Arc::ptr_eq(a, b) {
            return a.clone();
        }
        let join = || {
            let at_least = |x: &[u32], y: &[u32]| x.iter().zip(y).all(|(x, y)| x >= y);
            match (at_least(a, b), at_least(b, a)) {
                (true, _) => a.clone(),
                (_, true) => b.clone(),
                _ => a.iter().zip(b.iter()).map(|(&x, &y)| x.max(y)).collect(),
            }
        };
        let known = self.0.entry((a.as_ptr(), b.as_ptr()));
        known.or_insert_with(|| [join(), a.clone(), b.clone()])[0].clone()
    }
}

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
        let sync = StepSync { meets: SyncScope::Pairs, landing: false, ..LL };
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
                clocks.arrive(s, (0, i), ranks, &mut faults);
                clocks.complete(s, i, ranks, true);
            }
        }
        faults
    }

    const LL: StepSync = StepSync {
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
        let lines = [step(1, &[], Some(LL))];
        assert_eq!(faults(&lines, 5, &ranks).len(), 0);
        // A variant that pushes into landing zones and does not meet.
        let silent = [step(1, &[], Some(StepSync { meets: SyncScope::Nobody, ..LL }))];
        assert_eq!(faults(&silent, 2, &ranks).len(), 0);
        let found = faults(&silent, 3, &ranks);
        assert!(matches!(found[..], [OrderFault::Landing(PastStep { step: 0, .. })]));
        // In one run, with a rendezvous in between.
        let rendezvous = step(1, &[], Some(StepSync { landing: false, ..LL }));
        let mixed = [silent[0].clone(), silent[0].clone(), rendezvous];
        assert_eq!(faults(&mixed, 4, &ranks).len(), 0);
    }

    #[test]
    fn collectives_of_a_group_need_one_order() {
        let ranks = ranks(2, &[group(GroupMembers::World, 2)], &[]);
        let one = step(1, &[], Some(LL));
        let other = |waits: &[usize]| step(0, waits, Some(LL));
        assert!(matches!(faults(&[one.clone(), other(&[])], 1, &ranks)[..], [OrderFault::Unordered(_)]));
        assert_eq!(faults(&[one, other(&[0])], 3, &ranks).len(), 0);
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
            clocks.arrive(s, (0, i), &ranks, &mut faults);
            clocks.complete(s, i, &ranks, false);
            let arrived = |r: usize, of: usize| clocks.now(r, 1).knows(of, 1, start);
            let of = |r| (0..4).filter(|&of| arrived(r, of)).collect::<Vec<usize>>();
            knows.push((0..4).map(of).collect::<Vec<_>>());
        }
        assert_eq!(knows[0], [vec![0, 1], vec![0, 1], vec![2], vec![3]]);
        // Rank 2 learns of rank 0 through rank 1; rank 0 does not learn of rank 2.
        assert_eq!(knows[1], [vec![0, 1], vec![0, 1, 2], vec![0, 1, 2], vec![3]]);
        assert!(faults.is_empty());
    }
}
