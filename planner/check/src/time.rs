//! The proof over time: races and lost values within a run, and races between a run and those after it.
//!
//! Each bucket is run once from nothing, with every access recorded on the examined ranks. What a later run
//! does is the same in every run of its bucket, so that only its accesses have to be compared with those
//! of the first run: from the end of the first run every sequence of buckets is followed until every rank
//! knows that all others have left the first run, or nothing new can be learnt. Two runs are enough where
//! every run meets; where one does not, longer sequences are followed.
//!
//! # Many buckets
//! What ranks know of each other follows from lanes, waits and collectives alone: buckets that agree in those have one
//! *form*. Of the accesses of the first run only those are compared with later ones that may still be in the air when
//! the next run starts, on bytes that any run touches in conflict (`Left`). Where nothing of that kind is left, the runs
//! that follow can only be wrong about landing zones, and one bucket stands for all of its form, before and after.

use std::collections::{BTreeSet, HashSet};

use symmc_ir::collective::Meets;
use symmc_ir::{Table, ValueId};
use symmc_support::parallel;

use super::clock::{Clocks, Fault, Past, Start};
use super::error::{Access, CheckError, Moment, Who};
use super::left::Left;
use super::memory::{MemoryOfRank, Order, Record, START, Span};
use super::place::Location;
use super::program::Programs;
use super::ranks::{Exchange, Ranks};
use super::report::Report;
use super::step::{Schedule, Step};

/// After this many errors no more are looked for.
const ENOUGH: usize = 100;

pub fn check(
    programs: &Programs,
    schedules: &[Schedule<'_>],
    ranks: u32,
    report: &mut Report,
) -> Vec<CheckError> {
    let mut used = vec![false; programs.groups.len()];
    for sync in schedules.iter().flat_map(|s| &s.steps).filter_map(|s| s.sync) {
        used[sync.group] = true;
    }
    let exchanges: BTreeSet<Exchange<'_>> =
        schedules.iter().flat_map(|s| &s.steps).filter_map(Exchange::of).collect();
    let ranks = Ranks::new(ranks as usize, &programs.groups, &used, &exchanges);
    (report.simulated, report.examined) = (ranks.count, ranks.examined.len());
    let facts: Vec<Facts> = schedules.iter().map(Facts::new).collect();
    let peers = |&r: &usize| (0..ranks.cells.len()).map(|g| ranks.peers(g, r).collect()).collect();
    let peers: Vec<Vec<Vec<usize>>> = ranks.examined.iter().map(peers).collect();
    let steps = schedules.iter().map(|s| s.steps.len()).sum();
    let left = Left::new(schedules);
    let proofs = parallel::map((0..schedules.len()).collect(), steps, |bucket| {
        let (ranks, facts, peers, left) = (&ranks, &facts, &peers, &left);
        let (errors, seen, report) = (Vec::new(), BTreeSet::new(), Report::default());
        let mut proof = Proof { programs, schedules, facts, peers, ranks, errors, seen, report };
        let (clocks, memories) = proof.first_run(bucket);
        proof.follow(bucket, &clocks, memories, left);
        (proof.errors, proof.report)
    });
    let mut errors: Vec<CheckError> = Vec::new();
    for (found, of_bucket) in proofs {
        report.accesses += of_bucket.accesses;
        report.compared += of_bucket.compared;
        report.joins += of_bucket.joins;
        report.sequences += of_bucket.sequences;
        // The runs after those of two buckets may show the same.
        let new: Vec<CheckError> = found.into_iter().filter(|e| !errors.contains(e)).collect();
        errors.extend(new);
        if errors.len() >= ENOUGH {
            break;
        }
    }
    errors
}

/// What does not change while a bucket runs.
struct Facts {
    /// What each value occupies, if it lies in memory that steps write.
    spans: Table<ValueId, Option<Span>>,
    last_waiter: Vec<Option<usize>>,
}

impl Facts {
    fn new(schedule: &Schedule<'_>) -> Self {
        let span = |(v, location): (ValueId, &Option<Location>)| {
            let location = location.as_ref()?;
            let simple = schedule.overlaps.is_simple(v);
            Some(Span { space: location.space?, low: location.low, high: location.high, simple })
        };
        let spans = schedule.locations.iter().map(span).collect();
        let mut last_waiter = vec![None; schedule.steps.len()];
        for (s, step) in schedule.steps.iter().enumerate() {
            for &w in &step.waits {
                if let Some(last) = last_waiter.get_mut(w) {
                    *last = Some(s);
                }
            }
        }
        Facts { spans, last_waiter }
    }
}

/// What the bytes of a value hold.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    Intact,
    /// Nothing yet.
    Unwritten,
    /// What this step wrote over it.
    Lost(u32),
}

/// Accesses of one step to one value of one examined rank, all reads or all writes.
struct Touch<'a> {
    bucket: usize,
    /// The position of the rank among those examined.
    examined: usize,
    /// The accesses, each with the clock under which it starts.
    accesses: Vec<(Record, Start<'a>)>,
    /// The bucket of the earlier accesses that these are compared with.
    earlier: usize,
    /// Whether those are of the same run.
    same_run: bool,
}

struct Proof<'a> {
    programs: &'a Programs,
    schedules: &'a [Schedule<'a>],
    facts: &'a [Facts],
    ranks: &'a Ranks,
    /// For each examined rank and each group, its peers.
    peers: &'a [Vec<Vec<usize>>],
    errors: Vec<CheckError>,
    /// The races among the errors.
    seen: BTreeSet<(Access, Access)>,
    report: Report,
}

/// Where the accesses of a run go.
enum Against<'m> {
    /// They are recorded, and compared with the earlier ones of the same run.
    Own(&'m mut [MemoryOfRank], &'m mut Vec<Content>),
    /// They are compared with those of the last run of this bucket.
    Run(usize, &'m [MemoryOfRank]),
}

impl Proof<'_> {
    /// Runs a bucket from nothing.
    fn first_run(&mut self, bucket: usize) -> (Clocks, Vec<MemoryOfRank>) {
        let schedule = &self.schedules[bucket];
        let mut clocks = Clocks::new(self.ranks);
        let mut memories = vec![MemoryOfRank::default(); self.ranks.examined.len()];
        let content = |h: &Option<Location>| match h {
            Some(Location { space: None, .. }) => Content::Intact,
            _ => Content::Unwritten,
        };
        let mut contents: Vec<Content> = schedule.locations.values().map(content).collect();
        self.run(bucket, &mut clocks, Against::Own(&mut memories, &mut contents), |_| false);
        self.at_end(bucket, &contents);
        self.report.joins += clocks.joins;
        (clocks, memories)
    }

    /// The caller reads all outputs, and bound parameters serve the next run.
    fn at_end(&mut self, bucket: usize, contents: &[Content]) {
        let schedule = &self.schedules[bucket];
        let outputs = schedule.program.graph.outputs.iter().map(|o| o.value);
        let lasting = schedule.bound.iter().filter(|(_, each_run)| !each_run).map(|(v, _)| *v);
        for v in outputs.chain(lasting) {
            self.intact(bucket, Moment::End { bucket }, v, contents);
        }
    }

    fn intact(&mut self, bucket: usize, reader: Moment, value: ValueId, contents: &[Content]) {
        let schedule = &self.schedules[bucket];
        if let Content::Lost(step) = contents[symmc_ir::entity::Entity::index(value)] {
            let value = schedule.program.graph.name_of(value).to_string();
            self.errors.push(CheckError::Lost { reader, value, lost: self.moment(bucket, step) });
        }
    }

    /// Follows every sequence of runs after one of `bucket`, until no rank can meet what that one left.
    fn follow(&mut self, bucket: usize, after: &Clocks, mut memories: Vec<MemoryOfRank>, left: &Left) {
        let tick = after.next_start();
        let around: Vec<Vec<usize>> = self
            .ranks
            .examined
            .iter()
            .zip(self.peers)
            .map(|(&r, peers)| {
                let all: BTreeSet<usize> = peers.iter().flatten().copied().chain([r]).collect();
                all.into_iter().collect()
            })
            .collect();
        let mut start = after.clone();
        start.start(0);
        for ((memory, &rank), (peers, around)) in
            memories.iter_mut().zip(&self.ranks.examined).zip(self.peers.iter().zip(&around))
        {
            left.keep(memory, |old| {
                let knows = |of: usize| known_over(&start.now(of, 0), old, rank, peers);
                if left.blind { around.iter().all(|&r| knows(r)) } else { knows(rank) }
            });
        }
        let next: Vec<usize> = match memories.iter().all(MemoryOfRank::is_empty) {
            true if left.form[bucket] != bucket => return,
            true => (0..self.schedules.len()).filter(|&b| left.form[b] == b).collect(),
            false => (0..self.schedules.len()).collect(),
        };
        let over = |clocks: &Clocks| around.iter().all(|ranks| clocks.all_know(ranks, tick));
        let mut known: BTreeSet<Vec<u32>> = BTreeSet::new();
        let mut open = vec![after.clone()];
        while let Some(before) = open.pop() {
            for &next in &next {
                let mut clocks = before.clone();
                self.report.sequences += 1;
                let done = self.run(next, &mut clocks, Against::Run(bucket, &memories), over);
                if !done && known.insert(clocks.summary(tick)) {
                    open.push(clocks);
                }
                if self.errors.len() >= ENOUGH {
                    return;
                }
            }
        }
    }

    /// Runs a bucket until `over`; whether that came.
    fn run(
        &mut self,
        bucket: usize,
        clocks: &mut Clocks,
        mut against: Against<'_>,
        over: impl Fn(&Clocks) -> bool,
    ) -> bool {
        let (schedules, facts) = (self.schedules, self.facts);
        let schedule = &schedules[bucket];
        clocks.start(schedule.steps.len());
        self.bound_inputs(bucket, clocks, &mut against);
        let mut faults = Vec::new();
        for (index, step) in schedule.steps.iter().enumerate() {
            if (index == 0 || step.sync.is_some() || !step.waits.is_empty()) && over(clocks) {
                return true;
            }
            clocks.arrive(step, (bucket, index), self.ranks, &mut faults);
            for fault in faults.drain(..) {
                self.fault(bucket, index, fault);
            }
            self.step(bucket, index, clocks, &mut against);
            let last_waiter = &facts[bucket].last_waiter;
            clocks.complete(step, index, self.ranks, last_waiter[index].is_some());
            let done = |&&w: &&usize| last_waiter.get(w) == Some(&Some(index));
            step.waits.iter().filter(done).for_each(|&w| clocks.forget(w));
            if self.errors.len() >= ENOUGH {
                return true;
            }
        }
        over(clocks)
    }

    fn fault(&mut self, bucket: usize, step: usize, fault: Fault) {
        let at = self.schedules[bucket].at(step);
        let sync = self.schedules[bucket].steps[step].sync;
        let group = sync.map(|s| self.programs.groups[s.group].name.clone()).unwrap_or_default();
        let then = |p: &Past| self.schedules[p.bucket].at(p.step);
        let error = match fault {
            Fault::Unordered(p) => CheckError::Unordered { earlier: then(&p), at, group },
            Fault::Landing(p) => CheckError::LandingRace { earlier: then(&p), at, group },
        };
        if !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    /// The caller writes bound inputs: parameters before the first run, the others before each.
    fn bound_inputs(&mut self, bucket: usize, clocks: &Clocks, against: &mut Against<'_>) {
        let schedules = self.schedules;
        for &(value, each_run) in &schedules[bucket].bound {
            if !each_run && matches!(against, Against::Run(..)) {
                continue;
            }
            for examined in 0..self.ranks.examined.len() {
                let start = clocks.now(self.ranks.examined[examined], 0);
                let record = Record {
                    value,
                    step: START,
                    end: clocks.base(),
                    lane: 0,
                    write: true,
                    who: Who::Caller,
                    group: 0,
                };
                self.touch(bucket, examined, vec![(record, start)], &HashSet::new(), against);
            }
        }
    }

    /// All accesses of a step, reads before writes.
    fn step(&mut self, bucket: usize, index: usize, clocks: &Clocks, against: &mut Against<'_>) {
        let (schedules, ranks) = (self.schedules, self.ranks);
        let step = &schedules[bucket].steps[index];
        if let Against::Own(_, contents) = against {
            for &v in &step.reads {
                self.intact(bucket, Moment::Step(schedules[bucket].at(index)), v, contents);
            }
        }
        let group = step.sync.map_or(0, |s| s.group);
        for (examined, &rank) in ranks.examined.iter().enumerate() {
            let has_peers = step.sync.is_some() && !self.peers[examined][group].is_empty();
            for (value, write) in step.touches() {
                let (own_start, by_peers) = match write {
                    false => (clocks.now(rank, step.lane), step.peer_reads.contains(&value)),
                    true => (clocks.of_results(rank, step, ranks), step.peer_writes.contains(&value)),
                };
                let (end, lane) = (clocks.completion(index), step.lane as u8);
                let own = Record {
                    value,
                    step: index as u32,
                    end,
                    lane,
                    write,
                    who: Who::Own,
                    group: group as u16,
                };
                let mut accesses = vec![(own, own_start)];
                // What a sender writes lies within what its receiver writes: after its arrival, before its
                // completion.
                let within_own = step.sync.is_some_and(|s| s.meets == Meets::Pairs);
                if by_peers && has_peers && !within_own {
                    let peers = Record { who: Who::Peers, end: clocks.last_touch(index), ..own };
                    accesses.push((peers, clocks.of_peers(rank, step, ranks)));
                }
                self.touch(bucket, examined, accesses, &step.keeps, against);
            }
        }
    }

    fn touch(
        &mut self,
        bucket: usize,
        examined: usize,
        accesses: Vec<(Record, Start<'_>)>,
        keeps: &HashSet<ValueId>,
        against: &mut Against<'_>,
    ) {
        let (schedules, facts) = (self.schedules, self.facts);
        let schedule = &schedules[bucket];
        let first = accesses[0].0;
        let Some(span) = facts[bucket].spans[first.value] else { return };
        self.report.accesses += accesses.len() as u64;
        match against {
            Against::Run(earlier, memories) => {
                let touch = Touch { bucket, examined, accesses, earlier: *earlier, same_run: false };
                memories[examined].compare(span, first.write, &mut |old| self.judge(&touch, old));
            }
            Against::Own(memories, contents) => {
                let records: Vec<Record> = accesses.iter().map(|a| a.0).collect();
                let touch = Touch { bucket, examined, accesses, earlier: bucket, same_run: true };
                let replaces = &mut |other: ValueId| {
                    if other == first.value || keeps.contains(&other) || !schedule.share(first.value, other) {
                        return false;
                    }
                    contents[symmc_ir::entity::Entity::index(other)] = Content::Lost(first.step);
                    true
                };
                memories[examined].touch(span, &records, &mut |old| self.judge(&touch, old), replaces);
                if first.write {
                    contents[symmc_ir::entity::Entity::index(first.value)] = Content::Intact;
                }
            }
        }
    }

    /// The order of an earlier access that conflicts with these.
    fn judge(&mut self, touch: &Touch<'_>, old: &Record) -> Order {
        self.report.compared += 1;
        if touch.same_run && touch.accesses[0].0.step == old.step {
            return Order::Exempt;
        }
        let rank = self.ranks.examined[touch.examined];
        let before = |start: &Start<'_>| known_over(start, old, rank, &self.peers[touch.examined]);
        let Some(new) = touch.accesses.iter().find(|(_, start)| !before(start)).map(|(new, _)| *new) else {
            return Order::Before;
        };
        if !self.share_bytes(touch, old.value, new.value) {
            return Order::Exempt;
        }
        let pair = (self.access(touch.earlier, old), self.access(touch.bucket, &new));
        if self.seen.insert(pair.clone()) {
            self.errors.push(CheckError::Race { first: pair.0, second: pair.1 });
        }
        Order::Race
    }

    /// Whether an earlier and a later value, whose spans meet, share bytes under the bindings of their runs.
    fn share_bytes(&self, touch: &Touch<'_>, earlier: ValueId, later: ValueId) -> bool {
        let schedule = &self.schedules[touch.bucket];
        if touch.bucket != touch.earlier || earlier == later || schedule.share(earlier, later) {
            return true;
        }
        let locations = schedule.locations[earlier].as_ref().zip(schedule.locations[later].as_ref());
        !touch.same_run && locations.is_some_and(|(x, y)| x.overlaps_in_other_run(y, &schedule.symbols))
    }

    fn access(&self, bucket: usize, record: &Record) -> Access {
        Access {
            moment: self.moment(bucket, record.step),
            who: record.who,
            write: record.write,
            value: self.schedules[bucket].program.graph.name_of(record.value).to_string(),
        }
    }

    fn moment(&self, bucket: usize, step: u32) -> Moment {
        match step {
            START => Moment::Start { bucket },
            step => Moment::Step(self.schedules[bucket].at(step as usize)),
        }
    }
}

/// Whether whoever starts knows that an access to the memory of `rank` is over, made by it or its `peers` in each group.
fn known_over(start: &Start<'_>, old: &Record, rank: usize, peers: &[Vec<usize>]) -> bool {
    let ended = |r: usize| start.knows(r, old.lane as usize, old.end);
    match old.who {
        Who::Peers => peers[old.group as usize].iter().all(|&p| ended(p)),
        Who::Own | Who::Caller => ended(rank),
    }
}

impl Step {
    /// Each value that the step touches and whether it writes it, reads first.
    fn touches(&self) -> impl Iterator<Item = (ValueId, bool)> {
        self.reads.iter().map(|&v| (v, false)).chain(self.writes.iter().map(|&v| (v, true)))
    }
}
