//! Which offsets are taken over a range of instants: a segment tree over time.
//!
//! A node stands for a range of instants. It holds two unions of offset ranges: those taken for the whole
//! of its range by blocks that cover it (`cover`), and those taken at some instant of it (`any`). A block
//! adds itself to the cover of O(log n) nodes and to the `any` of these and their ancestors. What is taken
//! at some instant of a query range is the union of `any` at the nodes that tile it and of `cover` at
//! their ancestors: O(log n) unions. In a dense packing each union has few gaps, which keeps all of them
//! short.

/// A union of half-open ranges: sorted, apart from each other.
#[derive(Clone, Default)]
struct Union(Vec<(u64, u64)>);

impl Union {
    fn add(&mut self, from: u64, to: u64) {
        let first = self.0.partition_point(|r| r.1 < from);
        let mut last = first;
        let mut merged = (from, to);
        while let Some(&(a, b)) = self.0.get(last).filter(|r| r.0 <= to) {
            merged = (merged.0.min(a), merged.1.max(b));
            last += 1;
        }
        match last - first {
            0 => self.0.insert(first, merged),
            1 => self.0[first] = merged,
            _ => {
                self.0[first] = merged;
                self.0.drain(first + 1..last);
            }
        }
    }

    /// The end of a range that overlaps `offset..offset + size`.
    fn blocked(&self, offset: u64, size: u64) -> Option<u64> {
        let at = self.0.partition_point(|r| r.1 <= offset);
        self.0.get(at).filter(|r| r.0 < offset + size).map(|r| r.1)
    }

    /// The start of the first range at or above `offset`, which lies in no range.
    fn next_start(&self, offset: u64) -> Option<u64> {
        self.0.get(self.0.partition_point(|r| r.1 <= offset)).map(|r| r.0)
    }
}

/// See the [module](self).
pub struct Occupancy {
    /// The number of leaves, a power of two; node 1 is the root, node `i` has the children `2i`, `2i + 1`.
    leaves: usize,
    any: Vec<Union>,
    cover: Vec<Union>,
    used: Vec<u32>,
}

impl Occupancy {
    /// Nothing taken over `instants` instants.
    pub fn new(instants: usize) -> Self {
        let leaves = instants.next_power_of_two().max(1);
        let empty = vec![Union::default(); 2 * leaves];
        Occupancy { leaves, any: empty.clone(), cover: empty, used: Vec::new() }
    }

    /// Takes nothing any more.
    pub fn clear(&mut self) {
        for node in self.used.drain(..) {
            self.any[node as usize].0.clear();
            self.cover[node as usize].0.clear();
        }
    }

    /// Takes the offsets `low..high` over the instants `from..to`.
    pub fn add(&mut self, from: usize, to: usize, low: u64, high: u64) {
        let (mut l, mut r) = (from + self.leaves, to + self.leaves);
        while l < r {
            if l % 2 == 1 {
                self.take(l, low, high);
                l += 1;
            }
            if r % 2 == 1 {
                r -= 1;
                self.take(r, low, high);
            }
            (l, r) = (l / 2, r / 2);
        }
        // Every ancestor of a tile contains the first or the last instant; the tiles themselves take part
        // again, which changes nothing.
        let (mut l, mut r) = (from + self.leaves, to - 1 + self.leaves);
        while l > 0 {
            self.touch(l, low, high);
            if r != l {
                self.touch(r, low, high);
            }
            (l, r) = (l / 2, r / 2);
        }
    }

    fn take(&mut self, node: usize, low: u64, high: u64) {
        self.cover[node].add(low, high);
        self.touch(node, low, high);
    }

    fn touch(&mut self, node: usize, low: u64, high: u64) {
        if self.any[node].0.is_empty() {
            self.used.push(node as u32);
        }
        self.any[node].add(low, high);
    }

    /// What is taken at some instant of these half-open ranges.
    pub fn over(&self, ranges: impl Iterator<Item = (usize, usize)>) -> Taken<'_> {
        let mut unions = Vec::with_capacity(48);
        for (from, to) in ranges {
            let (mut l, mut r) = (from + self.leaves, to + self.leaves);
            while l < r {
                if l % 2 == 1 {
                    unions.push(&self.any[l]);
                    l += 1;
                }
                if r % 2 == 1 {
                    r -= 1;
                    unions.push(&self.any[r]);
                }
                (l, r) = (l / 2, r / 2);
            }
            // Ancestors of the first and the last instant; those inside the range cover less than the
            // tiles above them already tell.
            let (mut l, mut r) = (from + self.leaves, to - 1 + self.leaves);
            while l > 0 {
                unions.push(&self.cover[l]);
                if r != l {
                    unions.push(&self.cover[r]);
                }
                (l, r) = (l / 2, r / 2);
            }
        }
        unions.retain(|u| !u.0.is_empty());
        Taken { unions }
    }
}

/// The union of several unions.
pub struct Taken<'a> {
    unions: Vec<&'a Union>,
}

impl Taken<'_> {
    /// The end of some range that overlaps `offset..offset + size`.
    pub fn blocked(&self, offset: u64, size: u64) -> Option<u64> {
        self.unions.iter().find_map(|u| u.blocked(offset, size))
    }

    /// The lowest multiple of `align` at which `size` bytes are free.
    pub fn lowest(&self, size: u64, align: u64) -> u64 {
        // What is taken from the ground up is passed at once, and with it the unions that end there.
        let ground = |u: &&Union| u.0.first().filter(|r| r.0 == 0).map_or(0, |r| r.1);
        let solid = self.unions.iter().map(ground).max().unwrap_or(0);
        let above = self.unions.iter().copied().filter(|u| u.0.last().is_some_and(|r| r.1 > solid));
        free_from(&above.collect::<Vec<&Union>>(), solid, size, align)
    }

    /// The start of the smallest gap that holds `size` bytes at a multiple of `align`, the lowest of
    /// equals. The open space above everything counts as the largest gap.
    pub fn tightest(&self, size: u64, align: u64) -> u64 {
        let mut best: Option<(u64, u64)> = None;
        let mut offset = free_from(&self.unions, 0, size, align);
        loop {
            let end = self.unions.iter().filter_map(|u| u.next_start(offset)).min();
            let gap = end.map_or(u64::MAX, |end| end - offset);
            if best.is_none_or(|b| gap < b.0) {
                best = Some((gap, offset));
            }
            match end {
                Some(end) if gap != size => offset = free_from(&self.unions, end, size, align),
                _ => break,
            }
        }
        best.map_or(offset, |b| b.1)
    }
}

/// The lowest multiple of `align` from `from` on at which `size` bytes are free.
fn free_from(unions: &[&Union], from: u64, size: u64, align: u64) -> u64 {
    let mut offset = from.next_multiple_of(align);
    loop {
        let before = offset;
        for u in unions {
            while let Some(end) = u.blocked(offset, size) {
                offset = end.next_multiple_of(align);
            }
        }
        if offset == before {
            return offset;
        }
    }
}
