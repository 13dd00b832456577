//! The memory of one rank over time: who touched each byte last, and which values its bytes hold.
//!
//! Spaces are cut into pieces of bytes with one history. A piece keeps the accesses that later ones may have
//! to be compared with: an access is forgotten when another one stands in for it, because whatever
//! conflicts with the one conflicts with the other and comes after it only by coming after the other.
//!
//! Where a value lies apart from others although their spans meet, an access to it stands in for none but those to the
//! same value. Such *loose* accesses are no part of the pieces; each is kept once, with its span.

use std::collections::BTreeMap;

use smallvec::SmallVec;
use symmc_ir::ValueId;

use super::error::Accessor;
use super::location::SpaceId;

/// The step number of what the caller writes at the start of a run.
pub const START: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessRecord {
    pub value: ValueId,
    pub step: u32,
    /// The tick at which it ended, on every rank that made it.
    pub end: u32,
    pub lane: u8,
    pub write: bool,
    pub accessor: Accessor,
    pub group: u16,
}

impl AccessRecord {
    /// Whether both were made by the same lanes of the same ranks.
    fn same_makers(&self, other: &AccessRecord) -> bool {
        self.lane == other.lane
            && self.accessor == other.accessor
            && (self.accessor != Accessor::Peers || self.group == other.group)
    }
}

/// What an access finds about an earlier one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessOrder {
    /// It ended before this one starts.
    Before,
    /// Nothing is known, and nothing needs to be.
    Exempt,
    /// Nothing orders them although they share bytes.
    Race,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct ByteSegment {
    end: u64,
    records: SmallVec<[AccessRecord; 3]>,
    holds: SmallVec<[ValueId; 2]>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessSpan {
    pub space: SpaceId,
    pub low: u64,
    /// The byte behind the last.
    pub high: u64,
    /// Whether all values that share the memory with the touched one share bytes with it wherever their
    /// spans meet. Only then does the access stand in for those to other values.
    pub simple: bool,
}

#[derive(Clone, Debug, Default)]
struct SpaceHistory {
    pieces: BTreeMap<u64, ByteSegment>,
    loose: Vec<LooseItem<AccessRecord>>,
    /// The values that loose accesses wrote.
    held: Vec<LooseItem<ValueId>>,
}

/// Something about bytes within a span.
#[derive(Clone, Copy, Debug)]
struct LooseItem<T> {
    low: u64,
    high: u64,
    what: T,
}

impl<T: Copy> LooseItem<T> {
    fn overlaps(&self, span: &AccessSpan) -> bool {
        self.low < span.high && span.low < self.high
    }

    /// What lies in front of a span and behind it.
    fn remainder_outside(&self, span: &AccessSpan) -> impl Iterator<Item = Self> {
        let parts = [(self.low, self.high.min(span.low)), (self.low.max(span.high), self.high)];
        let what = self.what;
        parts.into_iter().filter(|(low, high)| low < high).map(move |(low, high)| LooseItem {
            low,
            high,
            what,
        })
    }
}

#[derive(Clone, Debug, Default)]
pub struct AccessHistory {
    spaces: BTreeMap<SpaceId, SpaceHistory>,
}

impl AccessHistory {
    /// Makes accesses of one step to one value, all reads or all writes. `judge` gives for an earlier access
    /// that conflicts its order against all of these. For a write, `replaces` tells for each other value
    /// that the bytes hold whether it is lost.
    pub fn record_accesses(
        &mut self,
        span: AccessSpan,
        accesses: &[AccessRecord],
        judge: &mut dyn FnMut(&AccessRecord) -> AccessOrder,
        replaces: &mut dyn FnMut(ValueId) -> bool,
    ) {
        let Some(&first) = accesses.first() else { return };
        if span.low >= span.high {
            return;
        }
        let history = self.spaces.entry(span.space).or_default();
        history.replace_loose(&span, accesses, judge);
        if first.write {
            history.held.retain(|held| !(held.overlaps(&span) && replaces(held.what)));
        }
        let space = &mut history.pieces;
        if !span.simple {
            for (_, piece) in range_mut(space, span.low, span.high) {
                piece.records.iter().filter(|old| old.write || first.write).for_each(|old| {
                    judge(old);
                });
                if first.write {
                    piece.holds.retain(|v| !replaces(*v));
                }
            }
            let AccessSpan { low, high, .. } = span;
            history.loose.extend(accesses.iter().map(|&what| LooseItem { low, high, what }));
            if first.write {
                history.held.push(LooseItem { low, high, what: first.value });
            }
            return;
        }
        split_segment(space, span.low);
        split_segment(space, span.high);
        fill(space, span.low, span.high);
        for (_, piece) in space.range_mut(span.low..span.high) {
            piece.records.retain(|old| {
                if old.write || first.write {
                    let order = judge(old);
                    !(first.write && order == AccessOrder::Before)
                } else {
                    !accesses.iter().any(|new| new.same_makers(old))
                }
            });
            piece.records.extend(accesses.iter().copied());
            if first.write {
                piece.holds.retain(|v| !replaces(*v));
                piece.holds.push(first.value);
            }
        }
        if first.write {
            merge(space, span.low, span.high);
        }
    }

    /// Compares accesses with all earlier ones, and leaves no trace.
    pub fn compare(
        &self,
        span: AccessSpan,
        write: bool,
        judge: &mut dyn FnMut(&AccessRecord) -> AccessOrder,
    ) {
        let Some(history) = self.spaces.get(&span.space).filter(|_| span.low < span.high) else { return };
        let space = &history.pieces;
        let before = space.range(..span.low).next_back().filter(|(_, p)| p.end > span.low);
        let pieces = before.into_iter().chain(space.range(span.low..span.high)).flat_map(|(_, p)| &p.records);
        let loose = history.loose.iter().filter(|l| l.overlaps(&span)).map(|l| &l.what);
        pieces.chain(loose).filter(|old| old.write || write).for_each(|old| {
            judge(old);
        });
    }

    /// Keeps the accesses, each with its space and bytes, for which `keep` says so, and what values the bytes hold no more.
    pub fn keep_accesses(&mut self, keep: impl Fn(SpaceId, (u64, u64), &AccessRecord) -> bool) {
        for (&space, history) in &mut self.spaces {
            history.held.clear();
            history.loose.retain(|l| keep(space, (l.low, l.high), &l.what));
            history.pieces.retain(|&low, piece| {
                piece.holds.clear();
                piece.records.retain(|record| keep(space, (low, piece.end), record));
                !piece.records.is_empty()
            });
        }
        self.spaces.retain(|_, history| !(history.loose.is_empty() && history.pieces.is_empty()));
    }

    pub fn is_empty(&self) -> bool {
        self.spaces.is_empty()
    }
}

impl SpaceHistory {
    /// Compares accesses with earlier loose ones, and forgets those that they stand in for.
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
            let stands_in = if old.what.write || first.write {
                judge(&old.what) == AccessOrder::Before && first.write
            } else {
                accesses.iter().any(|new| new.same_makers(&old.what))
            };
            if !stands_in || !(span.simple || old.what.value == first.value) {
                return true;
            }
            if old.what.value != first.value {
                outside.extend(old.remainder_outside(span));
            }
            false
        });
        self.loose.extend(outside);
    }
}

/// The pieces that meet these bytes.
fn range_mut(
    space: &mut BTreeMap<u64, ByteSegment>,
    low: u64,
    high: u64,
) -> impl Iterator<Item = (&u64, &mut ByteSegment)> {
    let from = space.range(..low).next_back().filter(|(_, p)| p.end > low).map_or(low, |(&at, _)| at);
    space.range_mut(from..high)
}

/// Divides the piece that `at` lies in, if it lies within one.
fn split_segment(space: &mut BTreeMap<u64, ByteSegment>, at: u64) {
    let Some((_, piece)) = space.range_mut(..at).next_back().filter(|(_, p)| p.end > at) else { return };
    let behind = piece.clone();
    piece.end = at;
    space.insert(at, behind);
}

/// Makes pieces without a history of the bytes that have none yet.
fn fill(space: &mut BTreeMap<u64, ByteSegment>, low: u64, high: u64) {
    let mut at = low;
    let mut gaps: SmallVec<[(u64, u64); 4]> = SmallVec::new();
    for (&start, piece) in space.range(low..high) {
        if start > at {
            gaps.push((at, start));
        }
        at = piece.end;
    }
    if at < high {
        gaps.push((at, high));
    }
    for (start, end) in gaps {
        space.insert(start, ByteSegment { end, ..ByteSegment::default() });
    }
}

/// Joins neighbours of equal history.
fn merge(space: &mut BTreeMap<u64, ByteSegment>, low: u64, high: u64) {
    let mut gone: SmallVec<[u64; 8]> = SmallVec::new();
    let mut last: Option<(u64, &ByteSegment)> = None;
    let mut ends: SmallVec<[(u64, u64); 8]> = SmallVec::new();
    for (&start, piece) in space.range(low..high) {
        match last {
            Some((kept, p)) if p.records == piece.records && p.holds == piece.holds => {
                gone.push(start);
                ends.push((kept, piece.end));
            }
            _ => last = Some((start, piece)),
        }
    }
    for start in gone {
        space.remove(&start);
    }
    for (kept, end) in ends {
        if let Some(piece) = space.get_mut(&kept) {
            piece.end = end;
        }
    }
}
