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

use symmc_ir::collective::SyncScope;
use symmc_ir::{EntityMap, ValueId};
use symmc_support::parallel;

use super::clock::{AccessStart, OrderFault, PastStep, VectorClocks};
use super::cross_run::CrossRunConflicts;
use super::error::{AccessMoment, Accessor, CheckError, MemoryAccess};
use super::location::ValueLocation;
use super::memory::{AccessHistory, AccessOrder, AccessRecord, AccessSpan, START};
use super::program::PlanPrograms;
use super::ranks::{PairExchange, SimulatedRanks};
use super::report::CheckReport;
use super::step::{BucketSchedule, CheckStep};

/// After this many errors no more are looked for.
const ENOUGH: usize = 100;

pub fn check(
    programs: &PlanPrograms,
    schedules: &[BucketSchedule<'_>],
    ranks: u32,
    report: &mut CheckReport,
) -> Vec<CheckError> {
    let mut used = vec![false; programs.groups.len()];
    for sync in schedules.iter().flat_map(|s| &s.steps).filter_map(|s| s.sync) {
        used[sync.group] = true;
    }
    let exchanges: BTreeSet<PairExchange<'_>> =
        schedules.iter().flat_map(|s| &s.steps).filter_map(PairExchange::from_step).collect();
    let ranks = SimulatedRanks::new(ranks as usize, &programs.groups, &used, &exchanges);
    (report.simulated, report.examined) = (ranks.count, ranks.examined.len());
    let facts: Vec<BucketRunFacts> = schedules.iter().map(BucketRunFacts::new).collect();
    let peers = |&r: &usize| (0..ranks.cells.len()).map(|g| ranks.peers(g, r).collect()).collect();
    let peers: Vec<Vec<Vec<usize>>> = ranks.examined.iter().map(peers).collect();
    let steps = schedules.iter().map(|s| s.steps.len()).sum();
    let left = CrossRunConflicts::new(schedules);
    let proofs = parallel::map((0..schedules.len()).collect(), steps, |bucket| {
        let (ranks, facts, peers, left) = (&ranks, &facts, &peers, &left);
        let (errors, seen, report) = (Vec::new(), BTreeSet::new(), CheckReport::default());
        let mut proof = RaceProof { programs, schedules, facts, peers, ranks, errors, seen, report };
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
struct BucketRunFacts {
    /// What each value occupies, if it lies in memory that steps write.
    spans: EntityMap<ValueId, Option<AccessSpan>>,
    last_waiter: Vec<Option<usize>>,
}

impl BucketRunFacts {
    fn new(schedule: &BucketSchedule<'_>) -> Self {
        let span = |(v, location): (ValueId, &Option<ValueLocation>)| {
            let location = location.as_ref()?;
            let simple = schedule.overlaps.is_simple(v);
            Some(AccessSpan { space: location.space?, low: location.low, high: location.high, simple })
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
        BucketRunFacts { spans, last_waiter }
    }
}

/// What the bytes of a value hold.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ValueContent {
    Intact,
    /// Nothing yet.
    Unwritten,
    /// What this step wrote over it.
    Lost(u32),
}

/// Accesses of one step to one value of one examined rank, all reads or all writes.
struct AccessBatch<'a> {
    bucket: usize,
    /// The position of the rank among those examined.
    examined: usize,
    /// The accesses, each with the clock under which it starts.
    accesses: Vec<(AccessRecord, AccessStart<'a>)>,
    /// The bucket of the earlier accesses that these are compared with.
    earlier: usize,
    /// Whether those are of the same run.
    same_run: bool,
}

struct RaceProof<'a> {
    programs: &'a PlanPrograms,
    schedules: &'a [BucketSchedule<'a>],
    facts: &'a [BucketRunFacts],
    ranks: &'a SimulatedRanks,
    /// For each examined rank and each group, its peers.
    peers: &'a [Vec<Vec<usize>>],
    errors: Vec<CheckError>,
    /// The races among the errors.
    seen: BTreeSet<(MemoryAccess, MemoryAccess)>,
    report: CheckReport,
}

/// Where the accesses of a run go.
enum ComparisonTarget<'m> {
    /// They are recorded, and compared with the earlier ones of the same run.
    Own(&'m mut [AccessHistory], &'m mut Vec<ValueContent>),
    /// They are compared with those of the last run of this bucket.
    Run(usize, &'m [AccessHistory]),
}

impl RaceProof<'_> {
    /// Runs a bucket from nothing.
    fn first_run(&mut self, bucket: usize) -> (VectorClocks, Vec<AccessHistory>) {
        let schedule = &self.schedules[bucket];
        let mut clocks = VectorClocks::new(self.ranks);
        let mut memories = vec![AccessHistory::default(); self.ranks.examined.len()];
        let content = |h: &Option<ValueLocation>| match h {
            Some(ValueLocation { space: None, .. }) => ValueContent::Intact,
            _ => ValueContent::Unwritten,
        };
        let mut contents: Vec<ValueContent> = schedule.locations.values().map(content).collect();
        self.run(bucket, &mut clocks, ComparisonTarget::Own(&mut memories, &mut contents), |_| false);
        self.at_end(bucket, &contents);
        self.report.joins += clocks.joins;
        (clocks, memories)
    }

    /// The caller reads all outputs, and bound parameters serve the next run.
    fn at_end(&mut self, bucket: usize, contents: &[ValueContent]) {
        let schedule = &self.schedules[bucket];
        let outputs = schedule.program.graph.outputs.iter().map(|o| o.value);
        let lasting = schedule.bound.iter().filter(|(_, each_run)| !each_run).map(|(v, _)| *v);
        for v in outputs.chain(lasting) {
            self.check_intact(bucket, AccessMoment::End { bucket }, v, contents);
        }
    }

    fn check_intact(
        &mut self,
        bucket: usize,
        reader: AccessMoment,
        value: ValueId,
        contents: &[ValueContent],
    ) {
        let schedule = &self.schedules[bucket];
        if let ValueContent::Lost(step) = contents[symmc_ir::entity::Entity::index(value)] {
            let value = schedule.program.graph.value_name(value).to_string();
            self.errors.push(CheckError::Lost { reader, value, lost: self.moment(bucket, step) });
        }
    }

    /// Follows every sequence of runs after one of `bucket`, until no rank can meet what that one left.
    fn follow(
        &mut self,
        bucket: usize,
        after: &VectorClocks,
        mut memories: Vec<AccessHistory>,
        left: &CrossRunConflicts,
    ) {
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
        start.start_run(0);
        for ((memory, &rank), (peers, around)) in
            memories.iter_mut().zip(&self.ranks.examined).zip(self.peers.iter().zip(&around))
        {
            left.retain_conflicts(memory, |old| {
                let knows = |of: usize| is_known_complete(&start.now(of, 0), old, rank, peers);
                if left.accesses_before_rendezvous { around.iter().all(|&r| knows(r)) } else { knows(rank) }
            });
        }
        let next: Vec<usize> = match memories.iter().all(AccessHistory::is_empty) {
            true if left.form[bucket] != bucket => return,
            true => (0..self.schedules.len()).filter(|&b| left.form[b] == b).collect(),
            false => (0..self.schedules.len()).collect(),
        };
        let over = |clocks: &VectorClocks| around.iter().all(|ranks| clocks.all_know(ranks, tick));
        let mut known: BTreeSet<Vec<u32>> = BTreeSet::new();
        let mut open = vec![after.clone()];
        while let Some(before) = open.pop() {
            for &next in &next {
                let mut clocks = before.clone();
                self.report.sequences += 1;
                let done = self.run(next, &mut clocks, ComparisonTarget::Run(bucket, &memories), over);
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
        clocks: &mut VectorClocks,
        mut against: ComparisonTarget<'_>,
        over: impl Fn(&VectorClocks) -> bool,
    ) -> bool {
        let (schedules, facts) = (self.schedules, self.facts);
        let schedule = &schedules[bucket];
        clocks.start_run(schedule.steps.len());
        self.write_bound_inputs(bucket, clocks, &mut against);
        let mut faults = Vec::new();
        for (index, step) in schedule.steps.iter().enumerate() {
            if (index == 0 || step.sync.is_some() || !step.waits.is_empty()) && over(clocks) {
                return true;
            }
            clocks.arrive(step, (bucket, index), self.ranks, &mut faults);
            for fault in faults.drain(..) {
                self.report_fault(bucket, index, fault);
            }
            self.access_step(bucket, index, clocks, &mut against);
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

    fn report_fault(&mut self, bucket: usize, step: usize, fault: OrderFault) {
        let at = self.schedules[bucket].step_location(step);
        let sync = self.schedules[bucket].steps[step].sync;
        let group = sync.map(|s| self.programs.groups[s.group].name.clone()).unwrap_or_default();
        let then = |p: &PastStep| self.schedules[p.bucket].step_location(p.step);
        let error = match fault {
            OrderFault::Unordered(p) => CheckError::Unordered { earlier: then(&p), at, group },
            OrderFault::Landing(p) => CheckError::LandingRace { earlier: then(&p), at, group },
        };
        if !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    /// The caller writes bound inputs: parameters before the first run, the others before each.
    fn write_bound_inputs(
        &mut self,
        bucket: usize,
        clocks: &VectorClocks,
        against: &mut ComparisonTarget<'_>,
    ) {
        let schedules = self.schedules;
        for &(value, each_run) in &schedules[bucket].bound {
            if !each_run && matches!(against, ComparisonTarget::Run(..)) {
                continue;
            }
            for examined in 0..self.ranks.examined.len() {
                let start = clocks.now(self.ranks.examined[examined], 0);
                let record = AccessRecord {
                    value,
                    step: START,
                    end: clocks.run_start(),
                    lane: 0,
                    write: true,
                    accessor: Accessor::Caller,
                    group: 0,
                };
                self.apply_accesses(bucket, examined, vec![(record, start)], &HashSet::new(), against);
            }
        }
    }

    /// All accesses of a step, reads before writes.
    fn access_step(
        &mut self,
        bucket: usize,
        index: usize,
        clocks: &VectorClocks,
        against: &mut ComparisonTarget<'_>,
    ) {
        let (schedules, ranks) = (self.schedules, self.ranks);
        let step = &schedules[bucket].steps[index];
        if let ComparisonTarget::Own(_, contents) = against {
            for &v in &step.reads {
                self.check_intact(
                    bucket,
                    AccessMoment::Step(schedules[bucket].step_location(index)),
                    v,
                    contents,
                );
            }
        }
        let group = step.sync.map_or(0, |s| s.group);
        for (examined, &rank) in ranks.examined.iter().enumerate() {
            let has_peers = step.sync.is_some() && !self.peers[examined][group].is_empty();
            for (value, write) in step.accesses() {
                let (own_start, by_peers) = match write {
                    false => (clocks.now(rank, step.lane), step.peer_reads.contains(&value)),
                    true => {
                        (clocks.start_of_result_writes(rank, step, ranks), step.peer_writes.contains(&value))
                    }
                };
                let (end, lane) = (clocks.completion(index), step.lane as u8);
                let own = AccessRecord {
                    value,
                    step: index as u32,
                    end,
                    lane,
                    write,
                    accessor: Accessor::Own,
                    group: group as u16,
                };
                let mut accesses = vec![(own, own_start)];
                // What a sender writes lies within what its receiver writes: after its arrival, before its
                // completion.
                let within_own = step.sync.is_some_and(|s| s.meets == SyncScope::Pairs);
                if by_peers && has_peers && !within_own {
                    let peers =
                        AccessRecord { accessor: Accessor::Peers, end: clocks.last_touch(index), ..own };
                    accesses.push((peers, clocks.start_of_peer_accesses(rank, step, ranks)));
                }
                self.apply_accesses(bucket, examined, accesses, &step.keeps, against);
            }
        }
    }

    fn apply_accesses(
        &mut self,
        bucket: usize,
        examined: usize,
        accesses: Vec<(AccessRecord, AccessStart<'_>)>,
        keeps: &HashSet<ValueId>,
        against: &mut ComparisonTarget<'_>,
    ) {
        let (schedules, facts) = (self.schedules, self.facts);
        let schedule = &schedules[bucket];
        let first = accesses[0].0;
        let Some(span) = facts[bucket].spans[first.value] else { return };
        self.report.accesses += accesses.len() as u64;
        match against {
            ComparisonTarget::Run(earlier, memories) => {
                let touch = AccessBatch { bucket, examined, accesses, earlier: *earlier, same_run: false };
                memories[examined].compare(span, first.write, &mut |old| self.judge(&touch, old));
            }
            ComparisonTarget::Own(memories, contents) => {
                let records: Vec<AccessRecord> = accesses.iter().map(|a| a.0).collect();
                let touch = AccessBatch { bucket, examined, accesses, earlier: bucket, same_run: true };
                let replaces = &mut |other: ValueId| {
                    if other == first.value
                        || keeps.contains(&other)
                        || !schedule.share_bytes(first.value, other)
                    {
                        return false;
                    }
                    contents[symmc_ir::entity::Entity::index(other)] = ValueContent::Lost(first.step);
                    true
                };
                memories[examined].record_accesses(
                    span,
                    &records,
                    &mut |old| self.judge(&touch, old),
                    replaces,
                );
                if first.write {
                    contents[symmc_ir::entity::Entity::index(first.value)] = ValueContent::Intact;
                }
            }
        }
    }

    /// The order of an earlier access that conflicts with these.
    fn judge(&mut self, touch: &AccessBatch<'_>, old: &AccessRecord) -> AccessOrder {
        self.report.compared += 1;
        if touch.same_run && touch.accesses[0].0.step == old.step {
            return AccessOrder::Exempt;
        }
        let rank = self.ranks.examined[touch.examined];
        let before =
            |start: &AccessStart<'_>| is_known_complete(start, old, rank, &self.peers[touch.examined]);
        let Some(new) = touch.accesses.iter().find(|(_, start)| !before(start)).map(|(new, _)| *new) else {
            return AccessOrder::Before;
        };
        if !self.share_bytes(touch, old.value, new.value) {
            return AccessOrder::Exempt;
        }
        let pair = (self.access(touch.earlier, old), self.access(touch.bucket, &new));
        if self.seen.insert(pair.clone()) {
            self.errors.push(CheckError::Race { first: pair.0, second: pair.1 });
        }
        AccessOrder::Race
    }

    /// Whether an earlier and a later value, whose spans meet, share bytes under the bindings of their runs.
    fn share_bytes(&self, touch: &AccessBatch<'_>, earlier: ValueId, later: ValueId) -> bool {
        let schedule = &self.schedules[touch.bucket];
        if touch.bucket != touch.earlier || earlier == later || schedule.share_bytes(earlier, later) {
            return true;
        }
        let locations = schedule.locations[earlier].as_ref().zip(schedule.locations[later].as_ref());
        !touch.same_run && locations.is_some_and(|(x, y)| x.overlaps_in_other_run(y, &schedule.symbols))
    }

    fn access(&self, bucket: usize, record: &AccessRecord) -> MemoryAccess {
        MemoryAccess {
            moment: self.moment(bucket, record.step),
            accessor: record.accessor,
            write: record.write,
            value: self.schedules[bucket].program.graph.value_name(record.value).to_string(),
        }
    }

    fn moment(&self, bucket: usize, step: u32) -> AccessMoment {
        match step {
            START => AccessMoment::Start { bucket },
            step => AccessMoment::Step(self.schedules[bucket].step_location(step as usize)),
        }
    }
}

/// Whether whoever starts knows that an access to the memory of `rank` is over, made by it or its `peers` in each group.
fn is_known_complete(start: &AccessStart<'_>, old: &AccessRecord, rank: usize, peers: &[Vec<usize>]) -> bool {
    let ended = |r: usize| start.knows(r, old.lane as usize, old.end);
    match old.accessor {
        Accessor::Peers => peers[old.group as usize].iter().all(|&p| ended(p)),
        Accessor::Own | Accessor::Caller => ended(rank),
    }
}

impl CheckStep {
    /// Each value that the step touches and whether it writes it, reads first.
    fn accesses(&self) -> impl Iterator<Item = (ValueId, bool)> {
        self.reads.iter().map(|&v| (v, false)).chain(self.writes.iter().map(|&v| (v, true)))
    }
}
