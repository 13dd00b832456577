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
//! # Fewer ranks
//! A conflict is between two ranks over the memory of a third. When every group that is used holds all ranks
//! in one cell, the ranks are exchangeable: what a rank knows of another is the same for all pairs, and three
//! ranks show all there is to see. Elsewhere, and where pairs of ranks meet, all ranks are simulated; memory is
//! then examined on one of each class of ranks that a symmetry of all groups and pairs exchanges
//! ([`Ranks::examined`]).

use std::collections::{BTreeMap, BTreeSet};

use symmc_ir::Members;
use symmc_ir::collective::Meets;

use super::program::Group;
use super::step::{Step, Sync};

/// Lanes of a rank.
pub const LANES: usize = 2;

/// The ranks that are simulated and the cells of the groups among them.
pub struct Ranks {
    /// How many.
    pub count: usize,
    /// The cells of each group; none for a group that is not used.
    pub cells: Vec<Vec<Vec<usize>>>,
    /// The ranks whose memory is examined.
    pub examined: Vec<usize>,
}

/// The pairs of ranks that meet in a step: its group, and their numbers within each cell.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Exchange<'a> {
    group: usize,
    pairs: &'a [(u32, u32)],
}

impl<'a> Exchange<'a> {
    /// That of a step in which pairs meet.
    pub fn of(step: &'a Step) -> Option<Self> {
        let sync = step.sync.filter(|s| s.meets == Meets::Pairs)?;
        Some(Exchange { group: sync.group, pairs: &step.pairs })
    }

    /// The ranks of the pairs, sender first.
    fn ranks(self, cells: &[Vec<Vec<usize>>]) -> impl Iterator<Item = (usize, usize)> {
        let rank = |cell: &[usize], number: u32| cell.get(number as usize).copied();
        cells[self.group].iter().flat_map(move |cell| {
            self.pairs.iter().filter_map(move |&(from, to)| Some((rank(cell, from)?, rank(cell, to)?)))
        })
    }
}

impl Ranks {
    /// The ranks to simulate for `ranks` ranks of which the groups in `used` and `exchanges` order some.
    pub fn new(ranks: usize, groups: &[Group], used: &[bool], exchanges: &BTreeSet<Exchange<'_>>) -> Self {
        let whole = |g: &Group| match &g.members {
            Members::World => true,
            Members::Cells(cells) => cells.len() == 1,
        };
        let in_use = || groups.iter().zip(used).filter(|(_, used)| **used).map(|(g, _)| g);
        if exchanges.is_empty() && in_use().all(whole) {
            let count = ranks.min(3);
            let cells =
                used.iter().map(|&u| if u { vec![(0..count).collect()] } else { Vec::new() }).collect();
            return Ranks { count, cells, examined: vec![0] };
        }
        let cells: Vec<Vec<Vec<usize>>> =
            groups.iter().zip(used).map(|(g, &u)| cells_of(g, u, ranks)).collect();
        let pairs: Vec<BTreeSet<(usize, usize)>> =
            exchanges.iter().map(|e| e.ranks(&cells).collect()).collect();
        let mut examined: Vec<usize> = Vec::new();
        for r in 0..ranks {
            if !examined.iter().any(|&e| exchangeable(e, r, ranks, (&cells, &pairs))) {
                examined.push(r);
            }
        }
        Ranks { count: ranks, cells, examined }
    }

    /// The peers of a rank in a group.
    pub fn peers(&self, group: usize, rank: usize) -> Vec<usize> {
        let cell = self.cells[group].iter().find(|c| c.contains(&rank));
        cell.map(|c| c.iter().copied().filter(|&r| r != rank).collect()).unwrap_or_default()
    }
}

fn cells_of(group: &Group, used: bool, ranks: usize) -> Vec<Vec<usize>> {
    match (&group.members, used) {
        (_, false) => Vec::new(),
        (Members::World, true) => vec![(0..ranks).collect()],
        (Members::Cells(cells), true) => {
            cells.iter().map(|c| c.iter().map(|&r| r as usize).collect()).collect()
        }
    }
}

/// The cells of each group, and the pairs that meet in each exchange.
type Structure<'a> = (&'a [Vec<Vec<usize>>], &'a [BTreeSet<(usize, usize)>]);

/// Whether one of three simple permutations takes rank `a` to rank `b`, every cell of every group to a cell
/// of that group and every pair of every exchange to a pair of that exchange.
fn exchangeable(a: usize, b: usize, ranks: usize, (cells, pairs): Structure<'_>) -> bool {
    let keeps = |map: &dyn Fn(usize) -> usize| keeps_pairs(pairs, map) && keeps_cells(ranks, cells, map);
    let swap = |r: usize| match r {
        r if r == a => b,
        r if r == b => a,
        r => r,
    };
    keeps(&|r| (r + ranks + b - a) % ranks)
        || (ranks.is_power_of_two() && keeps(&|r| r ^ (a ^ b)))
        || keeps(&swap)
}

fn keeps_pairs(pairs: &[BTreeSet<(usize, usize)>], map: &dyn Fn(usize) -> usize) -> bool {
    pairs.iter().all(|of| of.iter().all(|&(from, to)| of.contains(&(map(from), map(to)))))
}

fn keeps_cells(ranks: usize, cells: &[Vec<Vec<usize>>], map: &dyn Fn(usize) -> usize) -> bool {
    cells.iter().filter(|c| !c.is_empty()).all(|cells| {
        let mut cell_of = vec![usize::MAX; ranks];
        for (i, cell) in cells.iter().enumerate() {
            cell.iter().filter(|&&r| r < ranks).for_each(|&r| cell_of[r] = i);
        }
        cells.iter().all(|cell| {
            let target = |r: &usize| cell_of.get(map(*r)).copied();
            cell.first().map(target) == cell.last().map(target)
                && cell.windows(2).all(|w| target(&w[0]) == target(&w[1]))
        })
    })
}

/// A completed step that a later one is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Past {
    /// The lane that ran it.
    pub lane: usize,
    /// The tick of its completion.
    pub tick: u32,
    /// The bucket of its run.
    pub bucket: usize,
    /// The step.
    pub step: usize,
}

/// What is remembered of the collectives of a group.
#[derive(Clone, Default, Debug)]
struct GroupPast {
    last: Option<Past>,
    /// The zone that the next packets go to.
    zone: usize,
    zones: [Option<Past>; 2],
}

/// Something that the clocks alone show to be wrong.
pub enum Fault {
    /// The step is not ordered after an earlier one on the same group.
    Unordered(Past),
    /// The step writes into a landing zone that is not known to be read.
    Landing(Past),
}

/// The clocks of all ranks; see the [module](self).
#[derive(Clone)]
pub struct Clocks {
    width: usize,
    /// The clock of each lane of each rank, one after another.
    now: Vec<u32>,
    /// The tick of the start of this run.
    base: u32,
    /// The tick of the start of the next run.
    next: u32,
    /// The clocks of all ranks at the completion of steps that are waited for.
    kept: BTreeMap<usize, Vec<u32>>,
    groups: Vec<GroupPast>,
    /// One clock for each cell of the group of the step that is at its meeting; where pairs meet, one for each
    /// rank at its completion.
    meeting: Vec<u32>,
    /// The number of clocks joined across ranks.
    pub joins: u64,
}

impl Clocks {
    /// Before the first run.
    pub fn new(ranks: &Ranks) -> Self {
        let width = ranks.count * LANES;
        Clocks {
            width,
            now: vec![0; width * width],
            base: 0,
            next: 1,
            kept: BTreeMap::new(),
            groups: vec![GroupPast::default(); ranks.cells.len()],
            meeting: Vec::new(),
            joins: 0,
        }
    }

    /// The clock of a lane of a rank: at the start of a run, or at the arrival of the step in that lane.
    pub fn now(&self, rank: usize, lane: usize) -> &[u32] {
        let at = (rank * LANES + lane) * self.width;
        &self.now[at..at + self.width]
    }

    fn now_mut(&mut self, rank: usize, lane: usize) -> &mut [u32] {
        let at = (rank * LANES + lane) * self.width;
        &mut self.now[at..at + self.width]
    }

    /// The tick of the start of this run.
    pub fn base(&self) -> u32 {
        self.base
    }

    /// The tick of the start of the next run.
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
    pub fn start(&mut self, steps: usize) {
        self.base = self.next;
        self.next = self.base + 2 + 2 * steps as u32;
        self.kept.clear();
        for rank in 0..self.width / LANES {
            let mut joined = self.now(rank, 0).to_vec();
            (1..LANES).for_each(|lane| join(&mut joined, self.now(rank, lane)));
            joined[rank * LANES..(rank + 1) * LANES].fill(self.base);
            (0..LANES).for_each(|lane| self.now_mut(rank, lane).copy_from_slice(&joined));
        }
    }

    /// Brings every rank to the arrival of a step, and every cell of its group to its meeting.
    pub fn arrive(
        &mut self,
        step: &Step,
        (bucket, index): (usize, usize),
        ranks: &Ranks,
        faults: &mut Vec<Fault>,
    ) {
        for wait in &step.waits {
            let Some(kept) = self.kept.get(wait) else { continue };
            for rank in 0..ranks.count {
                let at = (rank * LANES + step.lane) * self.width;
                join(&mut self.now[at..at + self.width], &kept[rank * self.width..(rank + 1) * self.width]);
            }
        }
        let Some(sync) = step.sync else { return };
        self.meeting.clear();
        if let Some(exchange) = Exchange::of(step) {
            self.meet_in_pairs(exchange, step.lane, ranks);
            return self.remember(step, sync, (bucket, index), ranks, faults);
        }
        for cell in &ranks.cells[sync.group] {
            let from = self.meeting.len();
            self.meeting.resize(from + self.width, 0);
            for &rank in cell {
                let at = (rank * LANES + step.lane) * self.width;
                join(&mut self.meeting[from..], &self.now[at..at + self.width]);
            }
            self.joins += cell.len() as u64;
        }
        self.remember(step, sync, (bucket, index), ranks, faults);
    }

    /// What each rank knows when it has met those with which it forms pairs.
    fn meet_in_pairs(&mut self, exchange: Exchange<'_>, lane: usize, ranks: &Ranks) {
        let width = self.width;
        let arrival = |rank: usize| (rank * LANES + lane) * width;
        for rank in 0..ranks.count {
            self.meeting.extend_from_slice(&self.now[arrival(rank)..arrival(rank) + width]);
        }
        for (from, to) in exchange.ranks(&ranks.cells) {
            for (rank, other) in [(from, to), (to, from)] {
                let other = &self.now[arrival(other)..arrival(other) + width];
                join(&mut self.meeting[rank * width..(rank + 1) * width], other);
                self.joins += 1;
            }
        }
    }

    /// Compares a step with the earlier ones of its group.
    fn remember(
        &mut self,
        step: &Step,
        sync: Sync,
        (bucket, index): (usize, usize),
        ranks: &Ranks,
        faults: &mut Vec<Fault>,
    ) {
        let this = Past { lane: step.lane, tick: self.completion(index), bucket, step: index };
        let past = &self.groups[sync.group];
        let knows = |rank: usize, of: usize, past: &Past| {
            self.now(rank, step.lane)[of * LANES + past.lane] >= past.tick
        };
        if let Some(last) = past.last.filter(|p| !(0..ranks.count).all(|r| knows(r, r, p))) {
            faults.push(Fault::Unordered(last));
        }
        if sync.landing {
            let all_know = |p: &Past| {
                ranks.cells[sync.group].iter().all(|c| c.iter().all(|&q| c.iter().all(|&r| knows(q, r, p))))
            };
            if let Some(last) = past.zones[past.zone].filter(|p| !all_know(p)) {
                faults.push(Fault::Landing(last));
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
    pub fn of_results(&self, rank: usize, step: &Step, ranks: &Ranks) -> &[u32] {
        match step.sync {
            Some(sync) if sync.result_after_meeting => self.met(rank, sync, ranks),
            _ => self.now(rank, step.lane),
        }
    }

    /// Stores the clock under which all peers of a rank begin to touch its memory: what each of them knows.
    pub fn of_peers(&self, rank: usize, step: &Step, ranks: &Ranks, out: &mut Vec<u32>) {
        out.clear();
        let Some(sync) = step.sync else { return };
        if sync.entry {
            out.extend_from_slice(self.met(rank, sync, ranks));
            return;
        }
        out.resize(self.width, u32::MAX);
        for peer in ranks.peers(sync.group, rank) {
            out.iter_mut().zip(self.now(peer, step.lane)).for_each(|(o, &n)| *o = (*o).min(n));
        }
    }

    fn met(&self, rank: usize, sync: Sync, ranks: &Ranks) -> &[u32] {
        let cell = ranks.cells[sync.group].iter().position(|c| c.contains(&rank)).unwrap_or(0);
        &self.meeting[cell * self.width..(cell + 1) * self.width]
    }

    /// Brings every rank to the completion of a step.
    pub fn complete(&mut self, step: &Step, index: usize, ranks: &Ranks, waited_for: bool) {
        let (last_touch, completion) = (self.last_touch(index), self.completion(index));
        if Exchange::of(step).is_some() {
            for rank in 0..ranks.count {
                let at = (rank * LANES + step.lane) * self.width;
                let met = &self.meeting[rank * self.width..(rank + 1) * self.width];
                self.now[at..at + self.width].copy_from_slice(met);
            }
        } else if let Some(sync) = step.sync {
            for (c, cell) in ranks.cells[sync.group].iter().enumerate() {
                for &rank in cell {
                    let at = (rank * LANES + step.lane) * self.width;
                    let now = &mut self.now[at..at + self.width];
                    if sync.meets == Meets::Group || sync.exit {
                        now.copy_from_slice(&self.meeting[c * self.width..(c + 1) * self.width]);
                    }
                    if sync.exit {
                        cell.iter().for_each(|&peer| now[peer * LANES + step.lane] = last_touch);
                    }
                }
            }
        }
        for rank in 0..ranks.count {
            self.now_mut(rank, step.lane)[rank * LANES + step.lane] = completion;
        }
        if waited_for {
            let all = (0..ranks.count).flat_map(|rank| self.now(rank, step.lane)).copied().collect();
            self.kept.insert(index, all);
        }
    }

    /// Whether every lane of each of these ranks knows that each of them had come to `tick`.
    pub fn all_know(&self, ranks: &[usize], tick: u32) -> bool {
        let knows = |r: usize, lane: usize| {
            let now = self.now(r, lane);
            ranks.iter().all(|&of| now[of * LANES..(of + 1) * LANES].iter().all(|&t| t >= tick))
        };
        ranks.iter().all(|&r| (0..LANES).all(|lane| knows(r, lane)))
    }

    /// All that matters for what may follow with regard to what happened before `tick`.
    pub fn summary(&self, tick: u32) -> Vec<u32> {
        let mut out: Vec<u32> = self.now.iter().map(|&t| t.min(tick)).collect();
        for g in &self.groups {
            out.push(g.zone as u32);
            let zones = g.zones.iter().map(|p| p.filter(|p| p.tick < tick).map_or(0, |p| p.tick));
            out.extend(zones);
        }
        out
    }
}

fn join(into: &mut [u32], from: &[u32]) {
    into.iter_mut().zip(from).for_each(|(a, &b)| *a = (*a).max(b));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(members: Members, size: u32) -> Group {
        Group { name: "g".into(), members, size }
    }

    fn step(lane: usize, waits: &[usize], sync: Option<Sync>) -> Step {
        Step {
            lane,
            waits: waits.to_vec(),
            reads: Vec::new(),
            writes: Vec::new(),
            peer_reads: Vec::new(),
            peer_writes: Vec::new(),
            keeps: std::collections::HashSet::new(),
            sync,
            pairs: Vec::new(),
        }
    }

    fn put(pairs: &[(u32, u32)]) -> Step {
        let sync = Sync { meets: Meets::Pairs, landing: false, ..PACKETS };
        Step { pairs: pairs.to_vec(), ..step(1, &[], Some(sync)) }
    }

    fn ranks(count: usize, groups: &[Group], steps: &[Step]) -> Ranks {
        let exchanges = steps.iter().filter_map(Exchange::of).collect();
        Ranks::new(count, groups, &vec![true; groups.len()], &exchanges)
    }

    fn faults(steps: &[Step], runs: usize, ranks: &Ranks) -> Vec<Fault> {
        let mut clocks = Clocks::new(ranks);
        let mut faults = Vec::new();
        for _ in 0..runs {
            clocks.start(steps.len());
            for (i, s) in steps.iter().enumerate() {
                clocks.arrive(s, (0, i), ranks, &mut faults);
                clocks.complete(s, i, ranks, true);
            }
        }
        faults
    }

    const PACKETS: Sync = Sync {
        group: 0,
        entry: false,
        meets: Meets::Group,
        result_after_meeting: true,
        exit: false,
        landing: true,
    };

    #[test]
    fn zones_in_turn_need_a_meeting_between_uses_of_one() {
        let ranks = ranks(3, &[group(Members::World, 3)], &[]);
        let packets = [step(1, &[], Some(PACKETS))];
        assert_eq!(faults(&packets, 5, &ranks).len(), 0);
        // A variant that pushes into landing zones and does not meet.
        let silent = [step(1, &[], Some(Sync { meets: Meets::Nobody, ..PACKETS }))];
        assert_eq!(faults(&silent, 2, &ranks).len(), 0);
        let found = faults(&silent, 3, &ranks);
        assert!(matches!(found[..], [Fault::Landing(Past { step: 0, .. })]));
        // In one run, with a meeting in between.
        let meeting = step(1, &[], Some(Sync { landing: false, ..PACKETS }));
        let mixed = [silent[0].clone(), silent[0].clone(), meeting];
        assert_eq!(faults(&mixed, 4, &ranks).len(), 0);
    }

    #[test]
    fn collectives_of_a_group_need_one_order() {
        let ranks = ranks(2, &[group(Members::World, 2)], &[]);
        let one = step(1, &[], Some(PACKETS));
        let other = |waits: &[usize]| step(0, waits, Some(PACKETS));
        assert!(matches!(faults(&[one.clone(), other(&[])], 1, &ranks)[..], [Fault::Unordered(_)]));
        assert_eq!(faults(&[one, other(&[0])], 3, &ranks).len(), 0);
    }

    #[test]
    fn ranks_that_symmetry_exchanges_are_examined_once() {
        let pairs = |c: &[[u32; 2]]| Members::Cells(c.iter().map(|c| c.to_vec()).collect());
        let mesh = [group(pairs(&[[0, 1], [2, 3]]), 2), group(pairs(&[[0, 2], [1, 3]]), 2)];
        let found = ranks(4, &mesh, &[]);
        assert_eq!((found.count, found.examined.as_slice()), (4, &[0][..]));
        assert_eq!(found.peers(1, 0), [2]);
        let odd =
            [group(pairs(&[[0, 1], [2, 3]]), 2), group(Members::Cells(vec![vec![0, 1, 2], vec![3]]), 3)];
        assert!(ranks(4, &odd, &[]).examined.len() > 1);
        let world = [group(Members::World, 8)];
        assert_eq!(ranks(8, &world, &[]).count, 3);
        let of = |pairs: &[(u32, u32)]| {
            let found = ranks(8, &world, &[put(pairs)]);
            assert_eq!(found.count, 8);
            found.examined
        };
        let to_all: Vec<(u32, u32)> = [0, 1, 2, 4, 5, 6, 7].map(|r| (3, r)).to_vec();
        assert_eq!(of(&to_all), [0, 3]);
        assert_eq!(of(&(0..8).map(|r| (r, (r + 1) % 8)).collect::<Vec<_>>()), [0]);
        assert_eq!(of(&[(0, 1), (1, 2)]), [0, 1, 2, 3]);
        assert_eq!(of(&[]), [0]);
    }

    #[test]
    fn pairs_know_of_each_other_and_nobody_else() {
        let world = [group(Members::World, 4)];
        let steps = [put(&[(0, 1)]), put(&[(1, 2)])];
        let ranks = ranks(4, &world, &steps);
        let mut clocks = Clocks::new(&ranks);
        let mut faults = Vec::new();
        clocks.start(steps.len());
        let start = clocks.base();
        let mut knows = Vec::new();
        for (i, s) in steps.iter().enumerate() {
            clocks.arrive(s, (0, i), &ranks, &mut faults);
            clocks.complete(s, i, &ranks, false);
            let arrived = |r: usize, of: usize| clocks.now(r, 1)[of * LANES + 1] >= start;
            let of = |r| (0..4).filter(|&of| arrived(r, of)).collect::<Vec<usize>>();
            knows.push((0..4).map(of).collect::<Vec<_>>());
        }
        assert_eq!(knows[0], [vec![0, 1], vec![0, 1], vec![2], vec![3]]);
        // Rank 2 learns of rank 0 through rank 1; rank 0 does not learn of rank 2.
        assert_eq!(knows[1], [vec![0, 1], vec![0, 1, 2], vec![0, 1, 2], vec![3]]);
        assert!(faults.is_empty());
    }
}
