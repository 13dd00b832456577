//! Exact search: is there a packing of at most this peak?
//!
//! A depth-first search over *canonical* packings (Moffitt, MiniMalloc, ASPLOS 2023): blocks are placed from the
//! bottom up, by ascending offset and, at equal offsets, by rank; each rests on the ground or on a block under
//! it. Every packing can be pushed down into a canonical one, so nothing is lost. A branch ends where
//! - the blocks that are left cannot be stacked: in some section of time they end above the capacity even if only
//!   the lowest offset that each can still have counts (one machine, jobs with release times). A block whose
//!   lowest offset the search has passed is released above the lowest of its neighbours that may still come under it;
//! - a block that is left would fit whole under the next one, which is another branch;
//! - the same blocks with the same lowest offsets have failed before;
//! - what failed had nothing above it: other offsets for it do not help the rest.
//!
//! Groups of blocks that no block connects in time any more are searched one by one. Several ranks take turns
//! with limits that grow, in numbers of placements: the search never looks at a clock.
//!
//! Not here: wrapped lifetimes and given offsets.

use std::collections::HashMap;

use super::{Block, Spans};

/// The number of placements of the first turn of each rank.
const FIRST_TURN: u64 = 1_500;

/// The number of neighbours whose reading counts as one placement.
const SCANNED: u64 = 16_384;

/// The number of failures that a turn remembers at most.
const REMEMBERED: usize = 1 << 18;

/// What a search came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// These offsets.
    Found(Vec<u64>),
    /// There is no such packing.
    Impossible,
    /// The limit was reached first.
    Open,
}

enum End {
    Found,
    None,
    Spent,
}

/// A problem for exact search.
pub struct Exact {
    size: Vec<u64>,
    align: Vec<u64>,
    /// The half-open range of sections of each block. A section is a set of blocks alive together that is in
    /// no other.
    life: Vec<(usize, usize)>,
    /// The blocks that are alive together with each.
    meets: Vec<Vec<u32>>,
    /// The blocks of some size, by start.
    all: Vec<u32>,
    /// The ranks that take turns.
    ranks: Vec<Vec<u32>>,
    sections: usize,
    /// The number of placements that were made.
    pub work: u64,
}

impl Exact {
    /// A problem of at most `most` blocks without wrapped lifetimes and given offsets.
    pub fn new(blocks: &[Block], spans: &Spans, most: usize) -> Option<Self> {
        if blocks.len() > most || blocks.iter().any(|b| b.end <= b.start || b.offset.is_some()) {
            return None;
        }
        let tops = sections(blocks, spans);
        let at = |t: u32| tops.partition_point(|&x| x < t);
        let life: Vec<(usize, usize)> = spans.parts.iter().map(|p| (at(p[0].0), at(p[0].1))).collect();
        let mut all: Vec<u32> = (0..blocks.len() as u32).filter(|&b| blocks[b as usize].size > 0).collect();
        all.sort_by_key(|&b| (life[b as usize], b));
        let mut meets = vec![Vec::new(); blocks.len()];
        for (i, &a) in all.iter().enumerate() {
            for &b in all[i + 1..].iter().take_while(|&&b| life[b as usize].0 < life[a as usize].1) {
                meets[a as usize].push(b);
                meets[b as usize].push(a);
            }
        }
        let size: Vec<u64> = blocks.iter().map(|b| b.size).collect();
        let align = blocks.iter().map(|b| b.align.max(1)).collect();
        let ranks = ranks(blocks, &life, &all, tops.len());
        Some(Exact { size, align, life, meets, all, ranks, sections: tops.len(), work: 0 })
    }

    /// Looks for a packing of at most this peak with about `limit` placements.
    pub fn within(&mut self, capacity: u64, limit: u64) -> Answer {
        let stop = self.work.saturating_add(limit);
        let mut turn = FIRST_TURN;
        while self.work < stop {
            for rank in &self.ranks {
                let left = stop.saturating_sub(self.work).min(turn);
                let mut search = Search::new(self, rank, capacity, left);
                let end = search.components(&self.all, 0, 0);
                let (used, offsets) = (search.used, search.offset);
                self.work += used.max(1);
                match end {
                    End::Found => return Answer::Found(offsets),
                    End::None => return Answer::Impossible,
                    End::Spent => {}
                }
            }
            turn *= 4;
        }
        Answer::Open
    }
}

/// The instants whose sets of live blocks are in no other's: the last start before an end.
fn sections(blocks: &[Block], spans: &Spans) -> Vec<u32> {
    let (mut starts, mut ends) = (vec![false; spans.instants + 1], vec![false; spans.instants + 1]);
    for (block, parts) in blocks.iter().zip(&spans.parts) {
        if block.size > 0 {
            starts[parts[0].0 as usize] = true;
            ends[parts[0].1 as usize] = true;
        }
    }
    let (mut tops, mut open) = (Vec::new(), None);
    for t in 0..=spans.instants {
        if ends[t] {
            tops.extend(open.take());
        }
        if starts[t] {
            open = Some(t as u32);
        }
    }
    tops
}

/// The ranks of the blocks by several orders of the load of their fullest section, their length and their size.
fn ranks(blocks: &[Block], life: &[(usize, usize)], all: &[u32], sections: usize) -> Vec<Vec<u32>> {
    let mut load = vec![0u64; sections];
    for &b in all {
        let (from, to) = life[b as usize];
        load[from..to].iter_mut().for_each(|l| *l += blocks[b as usize].size);
    }
    let key = |b: u32| {
        let ((from, to), block) = (life[b as usize], &blocks[b as usize]);
        (load[from..to].iter().copied().max().unwrap_or(0), (block.end - block.start) as u64, block.size)
    };
    let order = |by: fn((u64, u64, u64)) -> (u64, u64, u64)| {
        let mut sorted = all.to_vec();
        sorted.sort_by_key(|&b| (std::cmp::Reverse(by(key(b))), b));
        let mut rank = vec![0; blocks.len()];
        sorted.iter().zip(0..).for_each(|(&b, r)| rank[b as usize] = r);
        rank
    };
    vec![
        order(|(load, length, size)| (load, length, size)),
        order(|(load, length, size)| (load, size, length)),
        order(|(load, length, size)| (length, load, size)),
    ]
}

struct Search<'a> {
    problem: &'a Exact,
    rank: &'a [u32],
    capacity: u64,
    limit: u64,
    used: u64,
    offset: Vec<u64>,
    placed: Vec<bool>,
    /// The lowest offset that each block can still have.
    low: Vec<u64>,
    /// What `low` was, for going back.
    trail: Vec<(u32, u64)>,
    /// How high each section is stacked.
    height: Vec<u64>,
    /// The blocks that are left by the offset at which they may come.
    releases: Vec<(u64, u32)>,
    /// Groups with their lowest offsets, by hash, and the least floor and rank with which they failed.
    failed: HashMap<u128, (u64, u32)>,
}

impl<'a> Search<'a> {
    fn new(problem: &'a Exact, rank: &'a [u32], capacity: u64, limit: u64) -> Self {
        let blocks = problem.size.len();
        Search {
            problem,
            rank,
            capacity,
            limit,
            used: 0,
            offset: vec![0; blocks],
            placed: vec![false; blocks],
            low: vec![0; blocks],
            trail: Vec::new(),
            height: vec![0; problem.sections],
            releases: Vec::new(),
            failed: HashMap::new(),
        }
    }

    /// Splits blocks, sorted by start, where none spans, and solves the parts.
    fn components(&mut self, group: &[u32], floor: u64, rank: u32) -> End {
        let mut parts = Vec::new();
        let (mut first, mut reach) = (0, 0);
        for (i, &b) in group.iter().enumerate() {
            let (from, to) = self.problem.life[b as usize];
            if i > first && from >= reach {
                parts.push(&group[first..i]);
                first = i;
            }
            reach = reach.max(to);
        }
        if first < group.len() {
            parts.push(&group[first..]);
        }
        parts.sort_by_key(|p| p.len());
        for part in parts {
            match self.part(part, floor, rank) {
                End::Found => {}
                other => return other,
            }
        }
        End::Found
    }

    /// Places blocks that belong together, none below `floor`, nor at it with a smaller rank.
    fn part(&mut self, group: &[u32], floor: u64, rank: u32) -> End {
        let mut order: Vec<(u64, u32, u32)> =
            group.iter().map(|&b| (self.low[b as usize], self.rank[b as usize], b)).collect();
        order.sort_unstable();
        if !self.stackable(&order, floor, rank) {
            return End::None;
        }
        let key = self.key(group);
        if self.failed.get(&key).is_some_and(|&failed| failed <= (floor, rank)) {
            return End::None;
        }
        let end = self.branch(group, &order, floor, rank);
        if matches!(end, End::None) && self.failed.len() < REMEMBERED {
            let failed = self.failed.entry(key).or_insert((floor, rank));
            *failed = (*failed).min((floor, rank));
        }
        end
    }

    fn key(&self, group: &[u32]) -> u128 {
        const ODD: u128 = 0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835;
        group.iter().fold(0, |hash, &b| {
            let mixed = (hash ^ (u128::from(self.low[b as usize]) << 32 | u128::from(b))).wrapping_mul(ODD);
            mixed ^ (mixed >> 61)
        })
    }

    /// Tries each block that may come next, sorted by offset and rank.
    fn branch(&mut self, group: &[u32], order: &[(u64, u32, u32)], floor: u64, rank: u32) -> End {
        let lid = order.iter().map(|&(low, _, b)| low + self.problem.size[b as usize]).min().unwrap_or(0);
        for &(low, r, b) in order {
            if low >= lid {
                break;
            }
            if (low, r) < (floor, rank) {
                continue;
            }
            if self.used >= self.limit {
                return End::Spent;
            }
            self.used += 1;
            let mark = self.trail.len();
            let covered = self.put(b, low);
            let rest: Vec<u32> = group.iter().copied().filter(|&o| o != b).collect();
            match self.components(&rest, low, r) {
                End::None => {}
                end => return end,
            }
            for &o in group {
                self.placed[o as usize] = false;
            }
            while self.trail.len() > mark {
                if let Some((o, low)) = self.trail.pop() {
                    self.low[o as usize] = low;
                }
            }
            if !covered {
                return End::None;
            }
        }
        End::None
    }

    /// Places a block; whether a block that is left is alive together with it.
    fn put(&mut self, b: u32, low: u64) -> bool {
        let problem = self.problem;
        self.offset[b as usize] = low;
        self.placed[b as usize] = true;
        let end = low + problem.size[b as usize];
        let mut covered = false;
        for &o in problem.meets[b as usize].iter() {
            let at = o as usize;
            if self.placed[at] {
                continue;
            }
            covered = true;
            let above = end.next_multiple_of(problem.align[at]);
            if self.low[at] < above {
                self.trail.push((o, self.low[at]));
                self.low[at] = above;
            }
        }
        covered
    }

    /// Whether the blocks that are left may end below the capacity in each section.
    fn stackable(&mut self, order: &[(u64, u32, u32)], floor: u64, rank: u32) -> bool {
        let (problem, mut releases) = (self.problem, std::mem::take(&mut self.releases));
        releases.clear();
        let mut scanned = 0;
        let top = |o: u32| self.low[o as usize].max(floor) + problem.size[o as usize];
        releases.extend(order.iter().map(|&(low, r, b)| {
            if (low, r) >= (floor, rank) {
                return (low, b);
            }
            scanned += problem.meets[b as usize].len() as u64;
            let under = problem.meets[b as usize].iter().filter(|&&o| !self.placed[o as usize]);
            (under.map(|&o| top(o)).min().unwrap_or(u64::MAX / 2), b)
        }));
        // Looking through many neighbours counts as placements too.
        self.used += scanned / SCANNED;
        releases.sort_unstable();
        let lives = order.iter().map(|o| problem.life[o.2 as usize]);
        let (from, to) = lives.fold((usize::MAX, 0), |(a, b), (from, to)| (a.min(from), b.max(to)));
        self.height[from.min(to)..to].fill(0);
        let stacks = releases.iter().all(|&(release, b)| {
            let (from, to) = problem.life[b as usize];
            let size = problem.size[b as usize];
            let raised = self.height[from..to].iter_mut().map(|height| {
                *height = (*height).max(release) + size;
                *height
            });
            raised.max().unwrap_or(0) <= self.capacity
        });
        self.releases = releases;
        stacks
    }
}
