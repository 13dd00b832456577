//! What a run leaves to those after it: forms of buckets, and accesses that later runs may conflict with.

use std::collections::HashMap;

use symmc_ir::collective::SyncScope;

use super::location::SpaceId;
use super::memory::{AccessHistory, AccessRecord};
use super::step::{BucketSchedule, CheckStep, StepSync};

pub struct CrossRunConflicts {
    /// For each bucket the first of its form: of the same lanes, waits and collectives.
    pub form: Vec<usize>,
    /// Whether any step touches its peers before it has met them, so that they may do so as soon as a run starts.
    pub accesses_before_rendezvous: bool,
    /// The bytes that runs of any bucket write, and those that they touch, by space.
    written: HashMap<SpaceId, ByteIntervals>,
    touched: HashMap<SpaceId, ByteIntervals>,
}

/// What the order of a step depends on.
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
        let is_blind = |s: &CheckStep| {
            let touches = !s.peer_reads.is_empty() || !s.peer_writes.is_empty();
            touches && s.sync.is_some_and(|sync| !sync.entry && sync.meets != SyncScope::Pairs)
        };
        let blind = schedules.iter().flat_map(|s| &s.steps).any(is_blind);
        let (mut written, mut touched) = (HashMap::new(), HashMap::new());
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
        CrossRunConflicts { form, accesses_before_rendezvous: blind, written, touched }
    }

    /// Keeps the accesses of a run that those after it may conflict with: not known to be `over`, on bytes that any run
    /// writes, or touches where they write.
    pub fn retain_conflicts(&self, memory: &mut AccessHistory, over: impl Fn(&AccessRecord) -> bool) {
        memory.keep_accesses(|space, bytes, record| {
            let others = if record.write { &self.touched } else { &self.written };
            !over(record) && others.get(&space).is_some_and(|o| o.overlaps(bytes))
        });
    }
}

/// Bytes, as intervals that are apart and ascend.
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
        let behind = self.0.partition_point(|i| i.1 <= low);
        self.0.get(behind).is_some_and(|i| i.0 < high)
    }
}
