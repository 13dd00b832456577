//! The offsets that are taken over a range of instants, as a segment tree over time.
//!
//! A node represents a range of instants. It holds two unions of offset ranges: `cover` has those that blocks
//! take over the whole range, and `any` has those that are taken at some instant of the range. A block adds
//! itself to the cover of O(log n) nodes, and to the `any` of these and of their ancestors, up to the first
//! that contains the range already. Higher ancestors then contain it too. The offsets taken at some instant of
//! a query range are the union of `any` at the nodes that tile the range and of `cover` at their ancestors:
//! O(log n) unions. In a dense packing most of a union is one range from the ground up, which is stored in the
//! node itself, so short lifetimes access little memory.

use smallvec::SmallVec;

#[derive(Clone, Default)]
struct RangeUnion {
    /// The end of the range that starts at 0.
    ground: u64,
    /// The other ranges, sorted and disjoint from each other and from the ground. Most nodes of short stretches
    /// have at most two.
    rest: SmallVec<[(u64, u64); 2]>,
}

impl RangeUnion {
    /// Adds a range. Returns whether the union changed.
    fn add_range(&mut self, from: u64, to: u64) -> bool {
        if from <= self.ground {
            if to <= self.ground {
                return false;
            }
            let swallowed = self.rest.partition_point(|r| r.0 <= to);
            self.ground = self.rest[..swallowed].last().map_or(to, |r| r.1.max(to));
            self.rest.drain(..swallowed);
            return true;
        }
        let first = self.rest.partition_point(|r| r.1 < from);
        let end = first + self.rest[first..].iter().take_while(|r| r.0 <= to).count();
        match self.rest[first..end] {
            [] => self.rest.insert(first, (from, to)),
            [only] if only.0 <= from && to <= only.1 => return false,
            [low, ..] => {
                self.rest[first] = (low.0.min(from), self.rest[end - 1].1.max(to));
                self.rest.drain(first + 1..end);
            }
        }
        true
    }

    fn clear(&mut self) {
        self.ground = 0;
        self.rest.clear();
    }

    fn is_empty(&self) -> bool {
        self.ground == 0 && self.rest.is_empty()
    }
}

pub struct Occupancy {
    /// The number of leaves, a power of two. Node 1 is the root, and node `i` has the children `2i` and `2i +
    /// 1`.
    leaves: usize,
    any: Vec<RangeUnion>,
    /// The covers of inner nodes. A leaf needs none, because ranges taken at a leaf are taken for all of it.
    cover: Vec<RangeUnion>,
    used: Vec<u32>,
    /// The number of existing ranges that insertions met. At most this many were moved.
    pub moved: u64,
}

impl Occupancy {
    /// An empty tree over `instants` instants.
    pub fn new(instants: usize) -> Self {
        let leaves = instants.next_power_of_two().max(1);
        Occupancy {
            leaves,
            any: vec![RangeUnion::default(); 2 * leaves],
            cover: vec![RangeUnion::default(); leaves],
            used: Vec::new(),
            moved: 0,
        }
    }

    pub fn clear(&mut self) {
        for node in self.used.drain(..) {
            self.any[node as usize].clear();
            if let Some(cover) = self.cover.get_mut(node as usize) {
                cover.clear();
            }
        }
    }

    /// Marks the offsets `low..high` as taken over the instants `from..to`.
    pub fn occupy(&mut self, from: usize, to: usize, low: u64, high: u64) {
        let mut l = from + self.leaves;
        let mut r = to + self.leaves;
        while l < r {
            if l % 2 == 1 {
                self.occupy_node(l, low, high);
                l += 1;
            }
            if r % 2 == 1 {
                r -= 1;
                self.occupy_node(r, low, high);
            }
            (l, r) = (l / 2, r / 2);
        }
    }

    fn occupy_node(&mut self, mut node: usize, low: u64, high: u64) {
        if let Some(cover) = self.cover.get_mut(node) {
            cover.add_range(low, high);
        }
        while node > 0 {
            if self.any[node].is_empty() {
                self.used.push(node as u32);
            }
            self.moved += self.any[node].rest.len() as u64;
            if !self.any[node].add_range(low, high) {
                break;
            }
            node /= 2;
        }
    }

    /// The offsets that are taken at some instant of these half-open ranges.
    pub fn occupied_during(&self, ranges: impl Iterator<Item = (usize, usize)>) -> OccupiedOffsets<'_> {
        let mut occupied = OccupiedOffsets { solid: 0, unions: Unions::new(), passed: 0 };
        for (from, to) in ranges {
            let mut l = from + self.leaves;
            let mut r = to + self.leaves;
            while l < r {
                if l % 2 == 1 {
                    occupied.add_union(&self.any[l]);
                    l += 1;
                }
                if r % 2 == 1 {
                    r -= 1;
                    occupied.add_union(&self.any[r]);
                }
                (l, r) = (l / 2, r / 2);
            }
            // Visits the ancestors of the first and the last instant. Ancestors inside the range cover no more
            // than the tiles above them.
            let mut l = (from + self.leaves) / 2;
            let mut r = (to - 1 + self.leaves) / 2;
            while l > 0 {
                occupied.add_union(&self.cover[l]);
                if r != l {
                    occupied.add_union(&self.cover[r]);
                }
                (l, r) = (l / 2, r / 2);
            }
        }
        occupied
    }
}

/// Sorted unions of ranges, without the ranges that were passed.
type Unions<'a> = SmallVec<[&'a [(u64, u64)]; 32]>;

pub struct OccupiedOffsets<'a> {
    /// All offsets below this are taken.
    solid: u64,
    unions: Unions<'a>,
    /// The number of ranges read so far.
    pub passed: u64,
}

impl<'a> OccupiedOffsets<'a> {
    fn add_union(&mut self, union: &'a RangeUnion) {
        self.solid = self.solid.max(union.ground);
        if !union.rest.is_empty() {
            self.unions.push(&union.rest);
        }
    }

    /// Whether part of `offset..offset + size` is taken.
    pub fn blocks_range(mut self, offset: u64, size: u64) -> bool {
        self.solid > offset || self.free_from(offset, size, 1) != offset
    }

    /// The lowest multiple of `align` at which `size` bytes are free.
    pub fn lowest_gap(&mut self, size: u64, align: u64) -> u64 {
        self.free_from(self.solid, size, align)
    }

    /// The start of the smallest gap that holds `size` bytes at a multiple of `align`, and the lowest among
    /// equals. The open space above everything counts as the largest gap.
    pub fn tightest_gap(&mut self, size: u64, align: u64) -> u64 {
        let mut best: Option<(u64, u64)> = None;
        let mut offset = self.free_from(self.solid, size, align);
        loop {
            let end = self.unions.iter().filter_map(|u| u.first()).map(|r| r.0).min();
            let gap = end.map_or(u64::MAX, |end| end - offset);
            if best.is_none_or(|b| gap < b.0) {
                best = Some((gap, offset));
            }
            match end {
                Some(end) if gap != size => offset = self.free_from(end, size, align),
                _ => break,
            }
        }
        best.map_or(offset, |b| b.1)
    }

    /// The lowest multiple of `align` at or above `from` at which `size` bytes are free. Passes ranges that end
    /// at or below it.
    fn free_from(&mut self, from: u64, size: u64, align: u64) -> u64 {
        self.unions.retain(|u| u.last().is_some_and(|r| r.1 > from));
        let mut offset = from;
        loop {
            let before = offset;
            for union in &mut self.unions {
                while let Some(&(_, end)) = union.first().filter(|r| r.0 < offset + size) {
                    offset = offset.max(end);
                    self.passed += 1;
                    *union = match union[1..].first() {
                        Some(next) if next.1 <= offset => &union[union.partition_point(|r| r.1 <= offset)..],
                        _ => &union[1..],
                    };
                }
            }
            let aligned = offset.next_multiple_of(align);
            if aligned == before {
                return offset;
            }
            offset = aligned;
        }
    }
}
