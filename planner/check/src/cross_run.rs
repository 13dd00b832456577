//! The parts of a run that matter for later runs: the form of its bucket, and the accesses that may conflict with
//! accesses of later runs.

use std::collections::HashMap;

use symmc_ir::collective::SyncScope;

use super::location::SpaceId;
use super::memory::{AccessHistory, AccessRecord};
use super::step::{BucketSchedule, CheckStep, StepSync};

pub struct CrossRunConflicts {
    /// For each bucket the first bucket of its form. Buckets of one form have the same lanes, waits and collectives.
    pub form: Vec<usize>,
    /// Whether any step accesses the memory of its peers before it has met them. Peers may then access memory as
    /// soon as their run starts.
    pub accesses_before_rendezvous: bool,
    /// The bytes that runs of any bucket write, by space.
    written: HashMap<SpaceId, ByteIntervals>,
    /// The bytes that runs of any bucket read or write, by space.
    touched: HashMap<SpaceId, ByteIntervals>,
}

/// The properties of a step that decide how it orders ranks: lane, waits, group and pairs.
type OrderForm<'a> = (usize, &'a [usize], Option<StepSync>, &'a [(u32, u32)]);

impl CrossRunConflicts {
    pub fn new(schedules: &[BucketSchedule<'_>]) -> Self {
        let mut first: HashMap<Vec<OrderForm<'_>>, usize> = HashMap::new();
        let mut form = Vec::with_capacity(schedules.len());
        for (b, schedule) in schedules.iter().enumerate() {
            let of_step =
                schedule.steps.iter().map(|s| (s.lane, s.waits.as_slice(), s.sync, s.pairs.as_slice()));
            form.push(*first.entry(of_step.collect()).or_insert(b));
        }
        let accesses_before_rendezvous =
            schedules.iter().flat_map(|s| &s.steps).any(CheckStep::accesses_before_rendezvous);
        let mut written = HashMap::new();
        let mut touched = HashMap::new();
        for schedule in schedules {
            let by_caller = schedule.bound.iter().map(|(v, _)| v);
            let writes = schedule.steps.iter().flat_map(|s| &s.writes).chain(by_caller);
            let reads = schedule.steps.iter().flat_map(|s| &s.reads);
            for (v, write) in writes.map(|&v| (v, true)).chain(reads.map(|&v| (v, false))) {
                let Some((space, location)) =
                    schedule.locations[v].as_ref().and_then(|h| Some((h.space?, h)))
                else {
                    continue;
                };
                let bytes = (location.low, location.high);
                touched.entry(space).or_insert_with(ByteIntervals::default).0.push(bytes);
                if write {
                    written.entry(space).or_insert_with(ByteIntervals::default).0.push(bytes);
                }
            }
        }
        written.values_mut().chain(touched.values_mut()).for_each(ByteIntervals::merge_overlapping);
        CrossRunConflicts { form, accesses_before_rendezvous, written, touched }
    }

    /// Drops the accesses of a run with which no later run can conflict. These are the accesses that are known to be
    /// `complete`, reads of bytes that no run writes, and writes of bytes that no run accesses.
    pub fn retain_conflicts(&self, memory: &mut AccessHistory, complete: impl Fn(&AccessRecord) -> bool) {
        memory.keep_accesses(|space, bytes, record| {
            let conflicting = if record.write { &self.touched } else { &self.written };
            !complete(record) && conflicting.get(&space).is_some_and(|o| o.overlaps(bytes))
        });
    }
}

impl CheckStep {
    fn accesses_before_rendezvous(&self) -> bool {
        let reaches_peers = !self.peer_reads.is_empty() || !self.peer_writes.is_empty();
        reaches_peers && self.sync.is_some_and(|sync| !sync.entry && sync.meets != SyncScope::Pairs)
    }
}

/// A set of bytes, as disjoint intervals in ascending order.
#[derive(Default)]
struct ByteIntervals(Vec<(u64, u64)>);

impl ByteIntervals {
    fn merge_overlapping(&mut self) {
        self.0.sort_unstable();
        let mut out: Vec<(u64, u64)> = Vec::new();
        for &(low, high) in self.0.iter().filter(|(low, high)| low < high) {
            match out.last_mut() {
                Some(last) if low <= last.1 => last.1 = last.1.max(high),
                _ => out.push((low, high)),
            }
        }
        self.0 = out;
    }

    fn overlaps(&self, (low, high): (u64, u64)) -> bool {
        let next = self.0.partition_point(|i| i.1 <= low);
        self.0.get(next).is_some_and(|i| i.0 < high)
    }
}
