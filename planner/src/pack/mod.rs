//! Packing: offsets for memory blocks of known sizes and lifetimes, so that blocks that are alive together
//! do not overlap, with a small peak. The problem is known as dynamic storage allocation.
//!
//! # The model
//! Time is a row of instants. A [`Block`] is alive over a half-open range of them, or, when its range
//! wraps, from its start through the end of time and on from the beginning to its end, as in a program
//! that runs again and again. Peak and bound of a wrapped block count at all its instants; it has one
//! offset.
//!
//! The *bound* is the largest sum of sizes alive at one instant; no packing has a lower peak. Blocks with a
//! given offset stay there and count in both.
//!
//! # The method
//! Blocks are placed one after another into the lowest (first fit) or tightest (best fit) gap that is free
//! for their whole lifetime. A portfolio of orders is tried, led by the blocks that are alive at the
//! instants of the bound: at one instant they stack without gaps, and everything else lies to the left or to the
//! right of it. Where a budget for it is given and the problem is small, an exact search then tries peaks between the
//! bound and the best so far; elsewhere, rounds that promote the blocks that stuck out follow. The search ends at
//! the bound or when its budgets are spent; it never looks at a clock, so equal problems give equal offsets.
//!
//! Stretches of time that no lifetime connects are packed one by one, those of one shape once.
//!
//! Free gaps come from a segment tree over time whose nodes hold unions of offset ranges.
//! There are no lists of overlapping pairs, so time and memory stay near `n log n`.
//!
//! Blocks can be tied to one another ([`pack_tied`]).
//!
//! Not here: the choice of an order of operators.

mod exact;
mod occupancy;
mod orders;
mod parts;
mod refine;
mod table;
mod ties;
mod verify;

use thiserror::Error;

use occupancy::Occupancy;
use orders::Fit;

pub use table::{Table, TableError};
pub use ties::{Tie, TieError, pack_tied};
pub use verify::{Verified, VerifyError, verify};

/// A block of memory to place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// The first instant at which it is alive.
    pub start: usize,
    /// The first instant at which it is not alive any more. With `end <= start` the lifetime wraps: it is
    /// alive at all instants from `start` on and at all instants before `end`.
    pub end: usize,
    /// Its size in bytes.
    pub size: u64,
    /// Its offset is a multiple of this; 0 counts as 1.
    pub align: u64,
    /// Where it must lie, if that is given.
    pub offset: Option<u64>,
}

impl Block {
    /// A block that is alive over `start..end`, of any offset.
    pub fn new(start: usize, end: usize, size: u64) -> Self {
        Block { start, end, size, align: 1, offset: None }
    }
}

/// How much to search.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Config {
    /// The number of block placements after which no further order is tried.
    pub work: u64,
    /// The number of orders that are tried at most.
    pub rounds: u64,
    /// A peak at most this fraction above the bound ends the search.
    pub enough: f64,
    /// The number of block placements of the exact search, for problems that are small enough for it.
    pub exact: u64,
    /// A peak at most this ends the search too.
    pub capacity: Option<u64>,
}

impl Config {
    /// A search that takes its time: seconds on hard problems.
    pub fn thorough() -> Self {
        Config { work: 1_000_000, rounds: 32, exact: 400_000, ..Config::default() }
    }
}

impl Default for Config {
    fn default() -> Self {
        Config { work: 100_000, rounds: 64, enough: 0.0, exact: 0, capacity: None }
    }
}

/// Offsets and what they reach.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Packing {
    /// The offset of each block.
    pub offsets: Vec<u64>,
    /// The highest end of a block.
    pub peak: u64,
    /// The largest sum of sizes that are alive at one instant.
    pub bound: u64,
    /// The blocks that are alive at the first instant of the bound, in order of their index.
    pub at_bound: Vec<usize>,
    /// The name of the order that won.
    pub order: &'static str,
    /// The number of block placements that the search made.
    pub work: u64,
}

/// A problem that has no packing.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum PackError {
    /// Two blocks with given offsets overlap in time and bytes.
    #[error("blocks {first} and {second} have given offsets, are alive together and overlap")]
    Overlap {
        /// The index of one block.
        first: usize,
        /// The index of the other.
        second: usize,
    },
    /// A given offset is no multiple of the block's alignment.
    #[error("block {block} is given offset {offset}, which is no multiple of its alignment {align}")]
    Misaligned {
        /// The index of the block.
        block: usize,
        /// Its given offset.
        offset: u64,
        /// Its alignment.
        align: u64,
    },
    /// The sizes add up to more than 2^62 bytes.
    #[error("the sizes of the blocks add up to more than 2^62 bytes")]
    TooLarge,
}

/// Packs `blocks`.
///
/// # Errors
/// Given offsets that contradict each other or an alignment, or sizes beyond 2^62 bytes.
pub fn pack(blocks: &[Block], config: &Config) -> Result<Packing, PackError> {
    let reach = blocks.iter().try_fold(0u64, |sum, b| {
        sum.checked_add(b.size)?
            .checked_add(b.align)?
            .checked_add(b.offset.unwrap_or(0))
            .filter(|&s| s < 1 << 62)
    });
    reach.ok_or(PackError::TooLarge)?;
    let spans = Spans::new(blocks);
    let loads = spans.loads(blocks);
    let (bound, instant) = highest(&loads);
    let at_bound: Vec<usize> = match instant {
        Some(t) => (0..blocks.len()).filter(|&b| blocks[b].size > 0 && spans.alive_at(b, t)).collect(),
        None => Vec::new(),
    };
    let goal = (bound + (bound as f64 * config.enough) as u64).max(config.capacity.unwrap_or(0));
    let Some(parts) = parts::parts(blocks, &spans) else {
        let ((peak, offsets, order), work) = whole(blocks, &spans, &loads, config, goal)?;
        return Ok(Packing { offsets, peak, bound, at_bound, order, work });
    };
    let mut packing = Packing { offsets: vec![0; blocks.len()], bound, at_bound, ..Packing::default() };
    let (mut offsets, mut known) = (std::mem::take(&mut packing.offsets), parts::Known::default());
    for part in parts {
        known.place(blocks, &spans, &part, &mut offsets, |own| {
            let share = |budget: u64| (u128::from(budget) * own.len() as u128 / blocks.len() as u128) as u64;
            let config = Config { work: share(config.work), exact: share(config.exact), ..*config };
            let spans = Spans::new(own);
            let ((peak, offsets, order), work) = whole(own, &spans, &spans.loads(own), &config, goal)?;
            packing.work += work;
            if peak > packing.peak || packing.order.is_empty() {
                (packing.peak, packing.order) = (peak, order);
            }
            Ok(offsets)
        })?;
    }
    Ok(Packing { offsets, ..packing })
}

/// Packs blocks that no instant parts. The work stands beside the result.
fn whole(
    blocks: &[Block],
    spans: &Spans,
    loads: &[u64],
    config: &Config,
    goal: u64,
) -> Result<(Found, u64), PackError> {
    let budget = config.work.min(config.rounds.saturating_mul(blocks.len() as u64));
    let mut search = Search { blocks, spans, occupancy: Occupancy::new(spans.instants), work: 0 };
    search.check_given()?;
    let mut best: Option<Found> = None;
    for order in orders::portfolio(blocks, spans, loads) {
        if best.is_some() && search.work + blocks.len() as u64 > budget {
            break;
        }
        let sequence = order.sequence();
        let (peak, offsets) = search.place(&sequence, order.fit);
        if best.as_ref().is_none_or(|b| peak < b.0) {
            best = Some((peak, offsets, order.name));
        }
        if best.as_ref().is_some_and(|b| b.0 <= goal) {
            break;
        }
    }
    let mut best = best.unwrap_or_default();
    let mut more = 0;
    if best.0 > goal && config.exact > 0 {
        let bound = highest(loads).0;
        (best, more) = refine::refine(blocks, spans, best, (bound, goal), config.exact);
    }
    if more == 0 {
        best = search.promote(best, goal, budget);
    }
    Ok((best, search.work + more))
}

/// The largest sum of sizes that are alive at one instant.
pub fn bound(blocks: &[Block]) -> u64 {
    highest(&Spans::new(blocks).loads(blocks)).0
}

fn highest(loads: &[u64]) -> (u64, Option<usize>) {
    let mut best = (0, None);
    for (t, &load) in loads.iter().enumerate() {
        if best.1.is_none() || load > best.0 {
            best = (load, Some(t));
        }
    }
    best
}

/// The greatest common divisor.
fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

/// Lifetimes over compressed instants: only those at which a block starts or ends are kept.
struct Spans {
    instants: usize,
    /// Up to two half-open ranges a block; the second one is empty unless the lifetime wraps.
    parts: Vec<[(u32, u32); 2]>,
}

impl Spans {
    fn new(blocks: &[Block]) -> Self {
        let times = Times::new(blocks);
        let at = |t: usize| times.at(t);
        // The last kept instant is the end of the latest range, and alive only in wrapped lifetimes.
        let all = times.count;
        let parts = blocks
            .iter()
            .map(|b| match b.start < b.end {
                true => [(at(b.start), at(b.end)), (0, 0)],
                false => [(at(b.start), all), (0, at(b.end))],
            })
            .collect();
        Spans { instants: times.count as usize, parts }
    }

    /// The half-open ranges of a block that are not empty.
    fn of(&self, block: usize) -> impl Iterator<Item = (usize, usize)> + use<'_> {
        self.parts[block].iter().filter(|p| p.0 < p.1).map(|p| (p.0 as usize, p.1 as usize))
    }

    fn alive_at(&self, block: usize, instant: usize) -> bool {
        self.of(block).any(|(from, to)| from <= instant && instant < to)
    }

    /// The sum of sizes alive at each instant.
    fn loads(&self, blocks: &[Block]) -> Vec<u64> {
        let mut change = vec![0i64; self.instants + 1];
        for (b, block) in blocks.iter().enumerate() {
            for (from, to) in self.of(b) {
                change[from] = change[from].wrapping_add(block.size as i64);
                change[to] = change[to].wrapping_sub(block.size as i64);
            }
        }
        let mut load = 0i64;
        change[..self.instants]
            .iter()
            .map(|c| {
                load = load.wrapping_add(*c);
                load as u64
            })
            .collect()
    }
}

/// The instants that are kept, and how many of them come before each.
struct Times {
    /// The kept ones where instants are far apart, the number before each instant where they are not.
    sorted: Vec<usize>,
    before: Vec<u32>,
    count: u32,
}

impl Times {
    fn new(blocks: &[Block]) -> Self {
        let each = || blocks.iter().flat_map(|b| [b.start, b.end]).chain([0]);
        let last = each().max().unwrap_or(0);
        if last / 8 > blocks.len() {
            let mut sorted: Vec<usize> = each().collect();
            sorted.sort_unstable();
            sorted.dedup();
            let count = sorted.len() as u32;
            return Times { sorted, before: Vec::new(), count };
        }
        let mut before = vec![0; last + 1];
        each().for_each(|t| before[t] = 1);
        let mut count = 0;
        for t in &mut before {
            count += std::mem::replace(t, count);
        }
        Times { sorted: Vec::new(), before, count }
    }

    fn at(&self, t: usize) -> u32 {
        match self.before.get(t) {
            Some(&before) => before,
            None => self.sorted.partition_point(|&x| x < t) as u32,
        }
    }
}

/// A peak, its offsets and the name of the order that gave them.
type Found = (u64, Vec<u64>, &'static str);

struct Search<'a> {
    blocks: &'a [Block],
    spans: &'a Spans,
    occupancy: Occupancy,
    work: u64,
}

impl Search<'_> {
    /// Places all blocks in this sequence, given offsets first; returns the peak and the offsets.
    fn place(&mut self, sequence: &[u32], fit: Fit) -> (u64, Vec<u64>) {
        self.occupancy.clear();
        self.work += sequence.len() as u64;
        let mut offsets = vec![0; self.blocks.len()];
        let mut peak = 0;
        for (b, block) in self.blocks.iter().enumerate() {
            if let Some(offset) = block.offset {
                offsets[b] = offset;
                peak = peak.max(offset + block.size);
                self.occupy(b, offset);
            }
        }
        for &b in sequence {
            let (b, block) = (b as usize, &self.blocks[b as usize]);
            if block.offset.is_some() || block.size == 0 {
                continue;
            }
            let gaps = self.occupancy.over(self.spans.of(b));
            let offset = match fit {
                Fit::First => gaps.lowest(block.size, block.align.max(1)),
                Fit::Best => gaps.tightest(block.size, block.align.max(1)),
            };
            offsets[b] = offset;
            peak = peak.max(offset + block.size);
            self.occupy(b, offset);
        }
        (peak, offsets)
    }

    fn occupy(&mut self, block: usize, offset: u64) {
        let size = self.blocks[block].size;
        if size > 0 {
            for (from, to) in self.spans.of(block) {
                self.occupancy.add(from, to, offset, offset + size);
            }
        }
    }

    /// Repeats from the best packing so far: blocks that end above the goal move to the front, each round
    /// adding to their weight, until the goal or the budget is reached.
    fn promote(&mut self, mut best: Found, goal: u64, budget: u64) -> Found {
        let mut weight = vec![0u32; self.blocks.len()];
        let mut offsets = best.1.clone();
        let mut sequence: Vec<u32> = (0..self.blocks.len() as u32).collect();
        while best.0 > goal && self.work + self.blocks.len() as u64 <= budget {
            for (b, block) in self.blocks.iter().enumerate() {
                if offsets[b] + block.size > goal {
                    weight[b] += 1;
                }
            }
            // Within a weight, from the bottom of the last packing up.
            sequence.sort_by_key(|&b| (std::cmp::Reverse(weight[b as usize]), offsets[b as usize], b));
            let (peak, next) = self.place(&sequence, Fit::First);
            offsets = next;
            if peak < best.0 {
                best = (peak, offsets.clone(), "promoted");
            }
        }
        best
    }

    /// Given offsets are aligned and do not overlap.
    fn check_given(&mut self) -> Result<(), PackError> {
        let given: Vec<usize> = (0..self.blocks.len()).filter(|&b| self.blocks[b].offset.is_some()).collect();
        for (i, &b) in given.iter().enumerate() {
            let (block, offset) = (&self.blocks[b], self.blocks[b].offset.unwrap_or(0));
            if offset % block.align.max(1) != 0 {
                return Err(PackError::Misaligned { block: b, offset, align: block.align });
            }
            if self.occupancy.over(self.spans.of(b)).blocked(offset, block.size).is_some() {
                let touches = |&&a: &&usize| {
                    let (from, other) = (self.blocks[a].offset.unwrap_or(0), &self.blocks[a]);
                    from < offset + block.size
                        && offset < from + other.size
                        && self.spans.of(a).any(|(x, y)| self.spans.of(b).any(|(u, v)| x < v && u < y))
                };
                let first = given[..i].iter().find(touches).copied().unwrap_or(b);
                return Err(PackError::Overlap { first, second: b });
            }
            self.occupy(b, offset);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
