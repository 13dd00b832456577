//! The proof over time: no races and no lost values within a run, and no races between a run and later runs.
//!
//! # Within a run
//! Each bucket is simulated once from the initial state. Every access on the examined ranks is recorded and
//! compared with the earlier accesses to the same bytes.
//!
//! # Between runs
//! Every pair of runs has to be compared, with any runs in between. The accesses of a run depend only on its
//! bucket. It therefore suffices to compare the recorded run of each bucket with all runs that may follow it.
//! The simulation follows every sequence of buckets after the recorded run. A sequence ends when every rank
//! knows that all ranks that access the same memory have left the recorded run. A sequence also ends when it
//! reaches a state of the clocks that another sequence has reached before ([`VectorClocks::summary`]). Two runs
//! are enough if all ranks meet in every run. Otherwise longer sequences are followed.
//!
//! # Many buckets
//! Lanes, waits and collectives alone decide what ranks know of each other. Buckets that agree in them have one
//! *form*. Only some accesses of the recorded run need a comparison with later runs ([`CrossRunConflicts`]).
//! They may still be in progress when the next run starts, and access bytes that some run accesses in conflict.
//! If there is no such access, later runs can only break the rules about landing zones. One bucket then
//! represents all buckets of its form, both as the recorded run and as a later one.

use std::collections::{BTreeSet, HashSet};

use symmc_ir::collective::SyncScope;
use symmc_ir::{EntityMap, ValueId};
use symmc_support::parallel;

use super::clock::{AccessStart, OrderFault, VectorClocks};
use super::cross_run::CrossRunConflicts;
use super::error::{AccessMoment, Accessor, CheckError, MemoryAccess};
use super::location::ValueLocation;
use super::memory::{AccessHistory, AccessOrder, AccessRecord, AccessSpan, START_OF_RUN};
use super::program::PlanPrograms;
use super::ranks::{PairExchange, SimulatedRanks};
use super::report::CheckReport;
use super::step::{BucketSchedule, CheckStep};

/// The number of errors after which the search stops.
const MAX_ERRORS: usize = 100;

/// Simulates runs of all buckets and returns the races, lost values and order faults found, each once. The steps
/// must have passed all other rules.
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
    report.simulated = ranks.count;
    report.examined = ranks.examined.len();
    let facts: Vec<BucketRunFacts> = schedules.iter().map(BucketRunFacts::new).collect();
    let peers: Vec<Vec<Vec<usize>>> = ranks
        .examined
        .iter()
        .map(|&rank| (0..ranks.cells.len()).map(|g| ranks.peers(g, rank).collect()).collect())
        .collect();
    let steps = schedules.iter().map(|s| s.steps.len()).sum();
    let conflicts = CrossRunConflicts::new(schedules);
    let proofs = parallel::map((0..schedules.len()).collect(), steps, |bucket| {
        let mut proof = RaceProof {
            programs,
            schedules,
            facts: &facts,
            ranks: &ranks,
            peers: &peers,
            errors: Vec::new(),
            seen: BTreeSet::new(),
            report: CheckReport::default(),
        };
        let (clocks, memories) = proof.first_run(bucket);
        proof.follow(bucket, &clocks, memories, &conflicts);
        (proof.errors, proof.report)
    });
    let mut errors: Vec<CheckError> = Vec::new();
    for (proved, of_bucket) in proofs {
        report.accesses += of_bucket.accesses;
        report.compared += of_bucket.compared;
        report.joins += of_bucket.joins;
        report.sequences += of_bucket.sequences;
        // The proofs of two buckets may find the same error in later runs.
        let new: Vec<CheckError> = proved.into_iter().filter(|e| !errors.contains(e)).collect();
        errors.extend(new);
        if errors.len() >= MAX_ERRORS {
            break;
        }
    }
    errors
}

/// Facts about a bucket that do not change during a run.
struct BucketRunFacts {
    /// The span of each value that lies in a space that steps may write.
    spans: EntityMap<ValueId, Option<AccessSpan>>,
    /// For each step the last step that waits for it.
    last_waiter: Vec<Option<usize>>,
}

impl BucketRunFacts {
    fn new(schedule: &BucketSchedule<'_>) -> Self {
        let spans = schedule.locations.iter().map(|(v, location)| {
            let location = location.as_ref()?;
            let simple = schedule.overlaps.is_simple(v);
            Some(AccessSpan { space: location.space?, low: location.low, high: location.high, simple })
        });
        let spans = spans.collect();
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

/// The state of a base value in the current run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ValueContent {
    Intact,
    Unwritten,
    /// This step overwrote bytes of the value.
    Lost(u32),
}

/// Accesses of one step to one value in the memory of one examined rank, all reads or all writes.
struct AccessBatch<'a> {
    bucket: usize,
    /// The index of the rank in [`SimulatedRanks::examined`].
    examined: usize,
    /// The accesses, each with the clocks under which it starts.
    accesses: Vec<(AccessRecord, AccessStart<'a>)>,
    /// The bucket of the earlier accesses that these are compared with.
    earlier: usize,
    /// Whether the earlier accesses belong to the same run.
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
    /// The races that are among the errors already.
    seen: BTreeSet<(MemoryAccess, MemoryAccess)>,
    report: CheckReport,
}

/// The earlier accesses with which the accesses of a run are compared.
enum ComparisonTarget<'m> {
    /// The accesses of the same run so far. The accesses of the run are recorded there.
    Own(&'m mut [AccessHistory], &'m mut Vec<ValueContent>),
    /// The accesses of a recorded run of this bucket. Nothing is recorded.
    Run(usize, &'m [AccessHistory]),
}

impl RaceProof<'_> {
    /// Simulates the first run of a bucket and records its accesses.
    fn first_run(&mut self, bucket: usize) -> (VectorClocks, Vec<AccessHistory>) {
        let schedule = &self.schedules[bucket];
        let mut clocks = VectorClocks::new(self.ranks);
        let mut memories = vec![AccessHistory::default(); self.ranks.examined.len()];
        let contents = schedule.locations.values().map(|location| match location {
            Some(ValueLocation { space: None, .. }) => ValueContent::Intact,
            _ => ValueContent::Unwritten,
        });
        let mut contents: Vec<ValueContent> = contents.collect();
        self.run(bucket, &mut clocks, ComparisonTarget::Own(&mut memories, &mut contents), |_| false);
        self.at_end(bucket, &contents);
        self.report.joins += clocks.joins;
        (clocks, memories)
    }

    /// Checks that outputs are intact, as the caller reads them, and bound parameters, as the next run needs them.
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

    /// Follows every sequence of runs after a recorded run of `bucket`. `after` are the clocks and `memories` the
    /// accesses at its end. A sequence ends when every rank knows that all ranks around it have left the recorded
    /// run.
    fn follow(
        &mut self,
        bucket: usize,
        after: &VectorClocks,
        mut memories: Vec<AccessHistory>,
        conflicts: &CrossRunConflicts,
    ) {
        let tick = after.next_start();
        // For each examined rank, itself and its peers in any group: the ranks that access its memory.
        let around: Vec<Vec<usize>> = self
            .ranks
            .examined
            .iter()
            .zip(self.peers)
            .map(|(&r, peers)| {
                let members: BTreeSet<usize> = peers.iter().flatten().copied().chain([r]).collect();
                members.into_iter().collect()
            })
            .collect();
        let mut start = after.clone();
        start.start_run(0);
        for ((memory, &rank), (peers, around)) in
            memories.iter_mut().zip(&self.ranks.examined).zip(self.peers.iter().zip(&around))
        {
            // A later access starts under the clock of the rank itself, or of a peer after its rendezvous with the
            // rank. Only an access before the rendezvous starts under what the peer alone knows.
            conflicts.retain_conflicts(memory, |old| {
                let starts =
                    if conflicts.accesses_before_rendezvous { around } else { std::slice::from_ref(&rank) };
                starts.iter().all(|&r| is_known_complete(&start.now(r, 0), old, rank, peers))
            });
        }
        let next_buckets: Vec<usize> = if !memories.iter().all(AccessHistory::is_empty) {
            (0..self.schedules.len()).collect()
        } else if conflicts.form[bucket] == bucket {
            // The first bucket of each form.
            (0..self.schedules.len()).filter(|&b| conflicts.form[b] == b).collect()
        } else {
            return;
        };
        let mut summaries: BTreeSet<Vec<u32>> = BTreeSet::new();
        let mut open = vec![after.clone()];
        while let Some(before) = open.pop() {
            for &next in &next_buckets {
                let mut clocks = before.clone();
                self.report.sequences += 1;
                let target = ComparisonTarget::Run(bucket, &memories);
                let done = self.run(next, &mut clocks, target, |clocks| {
                    around.iter().all(|ranks| clocks.all_know(ranks, tick))
                });
                if !done && summaries.insert(clocks.summary(tick)) {
                    open.push(clocks);
                }
                if self.errors.len() >= MAX_ERRORS {
                    return;
                }
            }
        }
    }

    /// Simulates a run of a bucket until `over` holds or the run ends. Returns whether the sequence ends here:
    /// `over` holds, or there are enough errors.
    fn run(
        &mut self,
        bucket: usize,
        clocks: &mut VectorClocks,
        mut against: ComparisonTarget<'_>,
        over: impl Fn(&VectorClocks) -> bool,
    ) -> bool {
        let schedules = self.schedules;
        let facts = self.facts;
        let schedule = &schedules[bucket];
        clocks.start_run(schedule.steps.len());
        self.write_bound_inputs(bucket, clocks, &mut against);
        let mut faults = Vec::new();
        for (index, step) in schedule.steps.iter().enumerate() {
            if (index == 0 || step.sync.is_some() || !step.waits.is_empty()) && over(clocks) {
                return true;
            }
            clocks.arrive(step, bucket, index, self.ranks, &mut faults);
            for fault in faults.drain(..) {
                self.report_fault(bucket, index, fault);
            }
            self.access_step(bucket, index, clocks, &mut against);
            let last_waiter = &facts[bucket].last_waiter;
            clocks.complete(step, index, self.ranks, last_waiter[index].is_some());
            for &awaited in &step.waits {
                if last_waiter.get(awaited) == Some(&Some(index)) {
                    clocks.forget(awaited);
                }
            }
            if self.errors.len() >= MAX_ERRORS {
                return true;
            }
        }
        over(clocks)
    }

    fn report_fault(&mut self, bucket: usize, step: usize, fault: OrderFault) {
        let location = self.schedules[bucket].step_location(step);
        let sync = self.schedules[bucket].steps[step].sync;
        let group = sync.map(|s| self.programs.groups[s.group].name.clone()).unwrap_or_default();
        let past = match &fault {
            OrderFault::Unordered(past) | OrderFault::Landing(past) => past,
        };
        let earlier = self.schedules[past.bucket].step_location(past.step);
        let error = match fault {
            OrderFault::Unordered(_) => CheckError::Unordered { earlier, at: location, group },
            OrderFault::Landing(_) => CheckError::LandingRace { earlier, at: location, group },
        };
        if !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    /// Applies the writes of bound inputs by the caller at the start of a run: all of them at the start of the first
    /// run, and at later starts only those that it writes before each run.
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
                    step: START_OF_RUN,
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

    /// Applies all accesses of a step, reads before writes.
    fn access_step(
        &mut self,
        bucket: usize,
        index: usize,
        clocks: &VectorClocks,
        against: &mut ComparisonTarget<'_>,
    ) {
        let schedules = self.schedules;
        let ranks = self.ranks;
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
                let own_start = if write {
                    clocks.start_of_result_writes(rank, step, ranks)
                } else {
                    clocks.now(rank, step.lane)
                };
                let by_peers =
                    if write { step.peer_writes.contains(&value) } else { step.peer_reads.contains(&value) };
                let own = AccessRecord {
                    value,
                    step: index as u32,
                    end: clocks.completion(index),
                    lane: step.lane as u8,
                    write,
                    accessor: Accessor::Own,
                    group: group as u16,
                };
                let mut accesses = vec![(own, own_start)];
                // If pairs meet, the write of a sender comes after the arrival and before the completion of its
                // receiver. The receiver's own write covers it.
                let covered_by_own = step.sync.is_some_and(|s| s.meets == SyncScope::Pairs);
                if by_peers && has_peers && !covered_by_own {
                    let peers =
                        AccessRecord { accessor: Accessor::Peers, end: clocks.last_touch(index), ..own };
                    accesses.push((peers, clocks.start_of_peer_accesses(rank, step, ranks)));
                }
                self.apply_accesses(bucket, examined, accesses, &step.keeps, against);
            }
        }
    }

    /// Compares accesses of one step to one value with the earlier ones, and records them if the target is the same
    /// run. A write makes its value intact, and makes all other values lost that share bytes with it and are not
    /// in `keeps`.
    fn apply_accesses(
        &mut self,
        bucket: usize,
        examined: usize,
        accesses: Vec<(AccessRecord, AccessStart<'_>)>,
        keeps: &HashSet<ValueId>,
        against: &mut ComparisonTarget<'_>,
    ) {
        let schedules = self.schedules;
        let facts = self.facts;
        let schedule = &schedules[bucket];
        let first = accesses[0].0;
        let Some(span) = facts[bucket].spans[first.value] else { return };
        self.report.accesses += accesses.len() as u64;
        match against {
            ComparisonTarget::Run(earlier, memories) => {
                let batch = AccessBatch { bucket, examined, accesses, earlier: *earlier, same_run: false };
                memories[examined].compare(span, first.write, &mut |old| self.judge(&batch, old));
            }
            ComparisonTarget::Own(memories, contents) => {
                let records: Vec<AccessRecord> = accesses.iter().map(|a| a.0).collect();
                let batch = AccessBatch { bucket, examined, accesses, earlier: bucket, same_run: true };
                let overwrites = &mut |other: ValueId| {
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
                    &mut |old| self.judge(&batch, old),
                    overwrites,
                );
                if first.write {
                    contents[symmc_ir::entity::Entity::index(first.value)] = ValueContent::Intact;
                }
            }
        }
    }

    /// Decides the order of an earlier access against a batch that conflicts with it, and reports a race.
    fn judge(&mut self, batch: &AccessBatch<'_>, old: &AccessRecord) -> AccessOrder {
        self.report.compared += 1;
        if batch.same_run && batch.accesses[0].0.step == old.step {
            return AccessOrder::Exempt;
        }
        let rank = self.ranks.examined[batch.examined];
        let peers = &self.peers[batch.examined];
        let unordered = batch.accesses.iter().find(|(_, start)| !is_known_complete(start, old, rank, peers));
        let Some((new, _)) = unordered else {
            return AccessOrder::Before;
        };
        if !self.share_bytes(batch, old.value, new.value) {
            return AccessOrder::Exempt;
        }
        let first = self.access(batch.earlier, old);
        let second = self.access(batch.bucket, new);
        if self.seen.insert((first.clone(), second.clone())) {
            self.errors.push(CheckError::Race { first, second });
        }
        AccessOrder::Race
    }

    /// Whether an earlier and a later value, whose spans overlap, may share bytes under the bindings of their runs.
    fn share_bytes(&self, batch: &AccessBatch<'_>, earlier: ValueId, later: ValueId) -> bool {
        let schedule = &self.schedules[batch.bucket];
        if batch.bucket != batch.earlier || earlier == later || schedule.share_bytes(earlier, later) {
            return true;
        }
        let locations = schedule.locations[earlier].as_ref().zip(schedule.locations[later].as_ref());
        !batch.same_run && locations.is_some_and(|(x, y)| x.overlaps_in_other_run(y, &schedule.symbols))
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
            START_OF_RUN => AccessMoment::Start { bucket },
            step => AccessMoment::Step(self.schedules[bucket].step_location(step as usize)),
        }
    }
}

/// Whether an access to the memory of `rank` is known to be complete under the clocks of `start`. The access was made
/// by the rank itself, by its caller, or by its peers. `peers` are the peers of the rank in each group.
fn is_known_complete(start: &AccessStart<'_>, old: &AccessRecord, rank: usize, peers: &[Vec<usize>]) -> bool {
    let accessors = match old.accessor {
        Accessor::Peers => &peers[old.group as usize][..],
        Accessor::Own | Accessor::Caller => std::slice::from_ref(&rank),
    };
    accessors.iter().all(|&r| start.knows(r, old.lane as usize, old.end))
}

impl CheckStep {
    /// The values that the step reads, then those that it writes, each with whether it is a write.
    fn accesses(&self) -> impl Iterator<Item = (ValueId, bool)> {
        self.reads.iter().map(|&v| (v, false)).chain(self.writes.iter().map(|&v| (v, true)))
    }
}
