//! The memory of one rank over time: the last accesses to each byte, and the values that its bytes hold.
//!
//! A space is divided into segments of bytes with equal history. A segment keeps the accesses with which later ones
//! may have to be compared. A new access *replaces* an earlier one if every later access that conflicts with the
//! earlier one also conflicts with the new one, and is ordered after the earlier one if it is ordered after the new
//! one. Replaced accesses are dropped:
//! - a write replaces each access that ended before the write starts;
//! - a read replaces an earlier read by the same lane of the same ranks.
//!
//! A value may be disjoint from others although their spans overlap. An access to it replaces only accesses to the
//! same value. Such *loose* accesses are not part of the segments. Each is stored once, with its span.

use std::collections::BTreeMap;

use smallvec::SmallVec;
use symmc_ir::ValueId;

use super::error::Accessor;
use super::location::SpaceId;

/// The step number of accesses by the caller at the start of a run.
pub const START_OF_RUN: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessRecord {
    pub value: ValueId,
    pub step: u32,
    /// The tick at which the access ended, on every rank that made it.
    pub end: u32,
    pub lane: u8,
    pub write: bool,
    pub accessor: Accessor,
    /// The group whose ranks are the peers, for an access by peers.
    pub group: u16,
}

impl AccessRecord {
    /// Whether both accesses were made by the same lane of the same ranks.
    fn same_makers(&self, other: &AccessRecord) -> bool {
        self.lane == other.lane
            && self.accessor == other.accessor
            && (self.accessor != Accessor::Peers || self.group == other.group)
    }
}

/// The order of an earlier access with regard to a new one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessOrder {
    /// The earlier access ended before the new one starts.
    Before,
    /// The accesses are unordered and need no order: both belong to one step, or their values share no bytes.
    Exempt,
    /// The accesses share bytes and are unordered.
    Race,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct ByteSegment {
    /// The exclusive end.
    end: u64,
    records: SmallVec<[AccessRecord; 3]>,
    /// The values that the bytes hold.
    holds: SmallVec<[ValueId; 2]>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessSpan {
    pub space: SpaceId,
    pub low: u64,
    /// The exclusive end.
    pub high: u64,
    /// Whether the accessed value shares bytes with every value of its memory whose span overlaps its own. Only
    /// then can the access replace accesses to other values.
    pub simple: bool,
}

#[derive(Clone, Debug, Default)]
struct SpaceHistory {
    /// Disjoint segments by their first byte.
    segments: BTreeMap<u64, ByteSegment>,
    loose: Vec<LooseItem<AccessRecord>>,
    /// The values that loose accesses wrote and that are not lost.
    held: Vec<LooseItem<ValueId>>,
}

/// An item that applies to the bytes of a span.
#[derive(Clone, Copy, Debug)]
struct LooseItem<T> {
    low: u64,
    high: u64,
    item: T,
}

impl<T: Copy> LooseItem<T> {
    fn overlaps(&self, span: &AccessSpan) -> bool {
        self.low < span.high && span.low < self.high
    }

    /// The same item for its bytes before a span and for those after it.
    fn remainder_outside(&self, span: &AccessSpan) -> impl Iterator<Item = Self> {
        let remainders = [(self.low, self.high.min(span.low)), (self.low.max(span.high), self.high)];
        let item = self.item;
        remainders.into_iter().filter(|(low, high)| low < high).map(move |(low, high)| LooseItem {
            low,
            high,
            item,
        })
    }
}

#[derive(Clone, Debug, Default)]
pub struct AccessHistory {
    spaces: BTreeMap<SpaceId, SpaceHistory>,
}

impl AccessHistory {
    /// Records accesses of one step to one value, all reads or all writes. `judge` decides for each earlier access
    /// that conflicts its order with regard to all of these. For a write, `overwrites` decides for each other value
    /// that the bytes hold whether it is lost.
    pub fn record_accesses(
        &mut self,
        span: AccessSpan,
        accesses: &[AccessRecord],
        judge: &mut dyn FnMut(&AccessRecord) -> AccessOrder,
        overwrites: &mut dyn FnMut(ValueId) -> bool,
    ) {
        let Some(&first) = accesses.first() else { return };
        if span.low >= span.high {
            return;
        }
        let history = self.spaces.entry(span.space).or_default();
        history.replace_loose(&span, accesses, judge);
        if first.write {
            history.held.retain(|held_item| !(held_item.overlaps(&span) && overwrites(held_item.item)));
        }
        let space = &mut history.segments;
        if !span.simple {
            for (_, segment) in range_mut(space, span.low, span.high) {
                segment.records.iter().filter(|old| old.write || first.write).for_each(|old| {
                    judge(old);
                });
                if first.write {
                    segment.holds.retain(|v| !overwrites(*v));
                }
            }
            let AccessSpan { low, high, .. } = span;
            history.loose.extend(accesses.iter().map(|&item| LooseItem { low, high, item }));
            if first.write {
                history.held.push(LooseItem { low, high, item: first.value });
            }
            return;
        }
        split_segment(space, span.low);
        split_segment(space, span.high);
        fill_gaps(space, span.low, span.high);
        for (_, segment) in space.range_mut(span.low..span.high) {
            segment.records.retain(|old| {
                if old.write || first.write {
                    let order = judge(old);
                    !(first.write && order == AccessOrder::Before)
                } else {
                    !accesses.iter().any(|new| new.same_makers(old))
                }
            });
            segment.records.extend(accesses.iter().copied());
            if first.write {
                segment.holds.retain(|v| !overwrites(*v));
                segment.holds.push(first.value);
            }
        }
        if first.write {
            merge_segments(space, span.low, span.high);
        }
    }

    /// Calls `judge` for all recorded accesses that conflict with an access to this span. Records nothing.
    pub fn compare(
        &self,
        span: AccessSpan,
        write: bool,
        judge: &mut dyn FnMut(&AccessRecord) -> AccessOrder,
    ) {
        let Some(history) = self.spaces.get(&span.space).filter(|_| span.low < span.high) else { return };
        let space = &history.segments;
        let before = space.range(..span.low).next_back().filter(|(_, s)| s.end > span.low);
        let segments = before.into_iter().chain(space.range(span.low..span.high));
        let records = segments.flat_map(|(_, s)| &s.records);
        let loose = history.loose.iter().filter(|l| l.overlaps(&span)).map(|l| &l.item);
        records.chain(loose).filter(|old| old.write || write).for_each(|old| {
            judge(old);
        });
    }

    /// Drops all accesses except those that `keep` selects by space, bytes and record. Also drops the information
    /// which values the bytes hold.
    pub fn keep_accesses(&mut self, keep: impl Fn(SpaceId, (u64, u64), &AccessRecord) -> bool) {
        for (&space, history) in &mut self.spaces {
            history.held.clear();
            history.loose.retain(|l| keep(space, (l.low, l.high), &l.item));
            history.segments.retain(|&low, segment| {
                segment.holds.clear();
                segment.records.retain(|record| keep(space, (low, segment.end), record));
                !segment.records.is_empty()
            });
        }
        self.spaces.retain(|_, history| !(history.loose.is_empty() && history.segments.is_empty()));
    }

    pub fn is_empty(&self) -> bool {
        self.spaces.is_empty()
    }
}

impl SpaceHistory {
    /// Compares accesses with earlier loose ones, and drops those that they replace.
    fn replace_loose(
        &mut self,
        span: &AccessSpan,
        accesses: &[AccessRecord],
        judge: &mut dyn FnMut(&AccessRecord) -> AccessOrder,
    ) {
        let Some(&first) = accesses.first() else { return };
        let mut outside: SmallVec<[LooseItem<AccessRecord>; 4]> = SmallVec::new();
        self.loose.retain(|old| {
            if !old.overlaps(span) {
                return true;
            }
            let replaced = if old.item.write || first.write {
                judge(&old.item) == AccessOrder::Before && first.write
            } else {
                accesses.iter().any(|new| new.same_makers(&old.item))
            };
            if !replaced || !(span.simple || old.item.value == first.value) {
                return true;
            }
            // The access to another value still counts for its bytes outside of the span.
            if old.item.value != first.value {
                outside.extend(old.remainder_outside(span));
            }
            false
        });
        self.loose.extend(outside);
    }
}

/// The segments that overlap these bytes.
fn range_mut(
    space: &mut BTreeMap<u64, ByteSegment>,
    low: u64,
    high: u64,
) -> impl Iterator<Item = (&u64, &mut ByteSegment)> {
    let from = space.range(..low).next_back().filter(|(_, p)| p.end > low).map_or(low, |(&start, _)| start);
    space.range_mut(from..high)
}

/// Splits the segment that contains `at`, unless `at` is its first byte.
fn split_segment(space: &mut BTreeMap<u64, ByteSegment>, at: u64) {
    let Some((_, segment)) = space.range_mut(..at).next_back().filter(|(_, s)| s.end > at) else { return };
    let upper = segment.clone();
    segment.end = at;
    space.insert(at, upper);
}

/// Inserts segments with an empty history for the bytes that no segment covers.
fn fill_gaps(space: &mut BTreeMap<u64, ByteSegment>, low: u64, high: u64) {
    let mut covered_to = low;
    let mut gaps: SmallVec<[(u64, u64); 4]> = SmallVec::new();
    for (&start, segment) in space.range(low..high) {
        if start > covered_to {
            gaps.push((covered_to, start));
        }
        covered_to = segment.end;
    }
    if covered_to < high {
        gaps.push((covered_to, high));
    }
    for (start, end) in gaps {
        space.insert(start, ByteSegment { end, ..ByteSegment::default() });
    }
}

/// Merges adjacent segments with equal history. All bytes from `low` to `high` are covered by segments.
fn merge_segments(space: &mut BTreeMap<u64, ByteSegment>, low: u64, high: u64) {
    let mut removed: SmallVec<[u64; 8]> = SmallVec::new();
    let mut previous: Option<(u64, &ByteSegment)> = None;
    let mut new_ends: SmallVec<[(u64, u64); 8]> = SmallVec::new();
    for (&start, segment) in space.range(low..high) {
        match previous {
            Some((kept_start, s)) if s.records == segment.records && s.holds == segment.holds => {
                removed.push(start);
                new_ends.push((kept_start, segment.end));
            }
            _ => previous = Some((start, segment)),
        }
    }
    for start in removed {
        space.remove(&start);
    }
    for (kept_start, end) in new_ends {
        if let Some(segment) = space.get_mut(&kept_start) {
            segment.end = end;
        }
    }
}
