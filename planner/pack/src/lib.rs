//! Packing: finds offsets for memory blocks of known sizes and lifetimes, so that blocks that are alive
//! together do not overlap and the peak is small. The problem is known as dynamic storage allocation.
//!
//! # The model
//! Time is a sequence of instants. A [`Block`] is alive over a half-open range of them. If its range wraps, it
//! is alive from its start through the end of time, and from the beginning to its end, as in a program that
//! runs repeatedly. A wrapped block has one offset, and counts in peak and bound at all its instants.
//!
//! The *bound* is the largest sum of sizes alive at one instant. No packing has a lower peak. Blocks with a
//! given offset stay there and count in both.
//!
//! # The method
//! 1. Two sweeps through time start at the instant of the bound (`sweep.rs`). They give a packing in little
//!    time, often at the bound if the load peaks there.
//! 2. Blocks are placed one after another into the lowest gap (first fit) or the tightest gap (best fit) that
//!    is free for their whole lifetime. A portfolio of orders is tried. An order starts with the blocks that are
//!    alive at the instants of the bound: at one instant they stack without gaps, and all other blocks lie
//!    before or after it. An order ends early if it cannot become the best.
//! 3. If the problem is small and has a budget for it, an exact search tries peaks between the bound and the
//!    best so far. Otherwise, rounds follow that promote the blocks that end above the goal.
//!
//! The search ends at the bound or when its budgets are spent. It never reads a clock, so equal problems give
//! equal offsets.
//!
//! Stretches of time that no lifetime connects are packed separately, and those of equal shape once.
//!
//! # Data structures
//! Time is divided into *sections*: the instants whose set of live blocks is not contained in that of another
//! instant. A segment tree over the sections finds free gaps. Its nodes hold unions of offset ranges. There are
//! no lists of overlapping pairs, so memory stays near `n log n`. Time does too, unless thousands of gaps lie
//! between the blocks of one instant. Reading gaps counts as work.
//!
//! Deliberately absent: the choice of an order of operators.

mod block;
mod exact;
mod occupancy;
mod orders;
mod parts;
mod refine;
mod sweep;
mod table;
mod verify;

use thiserror::Error;

use block::BlockSpans;
use occupancy::Occupancy;
use orders::{FitRule, FoundPacking, PlacementOrder};

pub use block::Block;
pub use table::{BlockTable, NameList, TableError};
pub use verify::{VerifiedPacking, VerifyError, verify};

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Config {
    /// The number of block placements after which no further order is tried. The sweeps and the first order
    /// always run.
    pub work: u64,
    pub rounds: u64,
    /// The search ends at a peak at most this fraction above the bound.
    pub enough: f64,
    /// The number of block placements of the exact search, for problems that are small enough for it.
    pub exact: u64,
    /// The search also ends at a peak of at most this.
    pub capacity: Option<u64>,
}

impl Config {
    /// A configuration for a long search: seconds on hard problems.
    pub fn thorough() -> Self {
        Config { work: 1_000_000, rounds: 32, exact: 400_000, ..Config::default() }
    }
}

impl Default for Config {
    fn default() -> Self {
        Config { work: 100_000, rounds: 64, enough: 0.0, exact: 0, capacity: None }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Packing {
    pub offsets: Vec<u64>,
    /// The highest end of a block.
    pub peak: u64,
    /// The largest sum of sizes that are alive at one instant.
    pub bound: u64,
    /// The blocks that are alive at the first instant of the bound, in order of their index.
    pub at_bound: Vec<usize>,
    pub order: &'static str,
    /// The number of block placements that the search made. Other reads are converted into placements and
    /// included.
    pub work: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum PackError {
    #[error("blocks {first} and {second} have given offsets, are alive together and overlap")]
    Overlap { first: usize, second: usize },
    #[error("block {block} is given offset {offset}, expected a multiple of its alignment {align}")]
    Misaligned { block: usize, offset: u64, align: u64 },
    /// The sizes add up to more than 2^62 bytes.
    #[error("the sizes of the blocks add up to more than 2^62 bytes")]
    TooLarge,
}

/// Fails if given offsets contradict each other or an alignment, or if the sizes exceed 2^62 bytes.
pub fn pack(blocks: &[Block], config: &Config) -> Result<Packing, PackError> {
    let reach = blocks.iter().try_fold(0u64, |sum, b| {
        sum.checked_add(b.size)?
            .checked_add(b.align)?
            .checked_add(b.offset.unwrap_or(0))
            .filter(|&s| s < 1 << 62)
    });
    reach.ok_or(PackError::TooLarge)?;
    for (block, &Block { offset, align, .. }) in blocks.iter().enumerate() {
        if let Some(offset) = offset.filter(|o| !o.is_multiple_of(align.max(1))) {
            return Err(PackError::Misaligned { block, offset, align });
        }
    }
    let spans = BlockSpans::new(blocks);
    let loads = spans.loads(blocks);
    let (bound, instant) = max_load(&loads);
    let at_bound: Vec<usize> = match instant {
        Some(t) => (0..blocks.len()).filter(|&b| blocks[b].size > 0 && spans.alive_at(b, t)).collect(),
        None => Vec::new(),
    };
    let goal = (bound + (bound as f64 * config.enough) as u64).max(config.capacity.unwrap_or(0));
    let mut packing = Packing { bound, at_bound, ..Packing::default() };
    match parts::split_into_parts(blocks, &spans) {
        Some(parts) => pack_parts(blocks, &spans, parts, config, goal, &mut packing)?,
        None => {
            let ((peak, offsets, order), work) = pack_connected(blocks, &spans, &loads, config, goal)?;
            packing.peak = peak;
            packing.offsets = offsets;
            packing.order = order;
            packing.work = work;
        }
    }
    // The searches skip blocks of size 0.
    for (offset, block) in packing.offsets.iter_mut().zip(blocks) {
        if block.size == 0 {
            *offset = block.offset.unwrap_or(*offset);
        }
    }
    Ok(packing)
}

/// Packs the parts of a problem separately, with shares of the budgets.
fn pack_parts(
    blocks: &[Block],
    spans: &BlockSpans,
    parts: Vec<Vec<u32>>,
    config: &Config,
    goal: u64,
    packing: &mut Packing,
) -> Result<(), PackError> {
    let mut offsets = vec![0; blocks.len()];
    let mut part_offsets = parts::PartOffsets::default();
    for part in parts {
        part_offsets.place_part(blocks, spans, &part, &mut offsets, |part_blocks| {
            let config = Config {
                work: share_budget(config.work, part_blocks.len(), blocks.len()),
                exact: share_budget(config.exact, part_blocks.len(), blocks.len()),
                ..*config
            };
            let spans = BlockSpans::new(part_blocks);
            let ((peak, offsets, order), work) =
                pack_connected(part_blocks, &spans, &spans.loads(part_blocks), &config, goal)?;
            packing.work += work;
            if peak > packing.peak || packing.order.is_empty() {
                packing.peak = peak;
                packing.order = order;
            }
            Ok(offsets)
        })?;
    }
    packing.offsets = offsets;
    Ok(())
}

fn share_budget(budget: u64, part: usize, all: usize) -> u64 {
    (u128::from(budget) * part as u128 / all as u128) as u64
}

/// Packs blocks that form one part. Returns the work together with the result.
fn pack_connected(
    blocks: &[Block],
    spans: &BlockSpans,
    loads: &[u64],
    config: &Config,
    goal: u64,
) -> Result<(FoundPacking, u64), PackError> {
    let budget = config.work.min(config.rounds.saturating_mul(blocks.len() as u64));
    let swept = sweep::sweep(blocks, spans, loads);
    let mut best: Option<FoundPacking> = swept.map(|(peak, offsets)| (peak, offsets, "away from the bound"));
    let swept = if best.is_some() { blocks.len() as u64 } else { 0 };
    // A sweep exists only if no offset is given, so there are no given offsets to check.
    if let Some(packing) = best.take_if(|b| b.0 <= goal) {
        return Ok((packing, swept));
    }
    let mut search = OrderSearch::new(blocks, spans, swept, budget + swept);
    search.check_fixed_offsets()?;
    let mut orders = orders::portfolio(blocks, spans, loads);
    search.try_orders(orders.by_ref().take(FIRST_ORDERS), &mut best, goal);
    let mut refine_work = 0;
    if let Some(packing) = best.take_if(|b| b.0 > goal && config.exact > 0) {
        let (refined, work) = refine::refine(blocks, spans, packing, max_load(loads).0, goal, config.exact);
        best = Some(refined);
        refine_work = work;
    }
    search.try_orders(orders, &mut best, goal);
    let mut best = best.unwrap_or_default();
    if refine_work == 0 {
        best = search.promote(best, goal);
    }
    Ok((best, search.work() + refine_work))
}

/// The largest sum of sizes that are alive at one instant.
pub fn load_bound(blocks: &[Block]) -> u64 {
    max_load(&BlockSpans::new(blocks).loads(blocks)).0
}

fn max_load(loads: &[u64]) -> (u64, Option<usize>) {
    let mut best = (0, None);
    for (t, &load) in loads.iter().enumerate() {
        if best.1.is_none() || load > best.0 {
            best = (load, Some(t));
        }
    }
    best
}

/// The number of orders that are tried before an exact search.
const FIRST_ORDERS: usize = 2;

/// The number of offset ranges read or moved that counts as one placement.
const RANGES_PER_PLACEMENT: u64 = 512;

struct OrderSearch<'a> {
    blocks: &'a [Block],
    spans: &'a BlockSpans,
    occupancy: Occupancy,
    /// The placed blocks, plus the ranges that were read in search of their gaps.
    placed: u64,
    passed: u64,
    budget: u64,
    /// Whether any order has been tried.
    ordered: bool,
}

impl<'a> OrderSearch<'a> {
    /// A search after `placed` placements, with a budget that includes them.
    fn new(blocks: &'a [Block], spans: &'a BlockSpans, placed: u64, budget: u64) -> Self {
        let occupancy = Occupancy::new(spans.sections);
        OrderSearch { blocks, spans, occupancy, placed, passed: 0, budget, ordered: false }
    }

    fn work(&self) -> u64 {
        self.placed + (self.passed + self.occupancy.moved) / RANGES_PER_PLACEMENT
    }

    /// Whether the budget does not allow one more order.
    fn spent(&self) -> bool {
        self.work() + self.blocks.len() as u64 > self.budget
    }

    /// Tries these orders until one reaches the goal or the budget is spent. The very first order is always
    /// tried.
    fn try_orders(
        &mut self,
        mut orders: impl Iterator<Item = PlacementOrder>,
        best: &mut Option<FoundPacking>,
        goal: u64,
    ) {
        while best.as_ref().is_none_or(|b| b.0 > goal) && !(self.ordered && self.spent()) {
            // Orders are large, so each is made only when it is tried.
            let Some(order) = orders.next() else { break };
            self.ordered = true;
            let limit = best.as_ref().map(|b| b.0);
            let fit = order.fit;
            let name = order.name;
            if let Some((peak, offsets)) = self.place(&order.sequence(), fit, limit) {
                *best = Some((peak, offsets, name));
            }
        }
    }

    /// Places all blocks in this sequence, blocks with given offsets first. Returns the peak and the offsets.
    /// Returns nothing if the peak is not below `limit`, or if the budget is spent and the order takes twice
    /// the expected work.
    fn place(&mut self, sequence: &[u32], fit: FitRule, limit: Option<u64>) -> Option<(u64, Vec<u64>)> {
        let max_work = self.budget.max(self.work() + 2 * self.blocks.len() as u64);
        self.occupancy.clear();
        let mut offsets = vec![0; self.blocks.len()];
        let mut peak = 0;
        for (b, block) in self.blocks.iter().enumerate() {
            if let Some(offset) = block.offset {
                offsets[b] = offset;
                if block.size > 0 {
                    peak = peak.max(offset + block.size);
                }
                self.occupy(b, offset);
            }
        }
        for &b in sequence {
            let b = b as usize;
            let block = &self.blocks[b];
            self.placed += 1;
            if block.offset.is_some() || block.size == 0 {
                continue;
            }
            let offset = self.find_gap(b, fit);
            offsets[b] = offset;
            peak = peak.max(offset + block.size);
            if limit.is_some_and(|limit| peak >= limit || self.work() > max_work) {
                return None;
            }
            self.occupy(b, offset);
        }
        Some((peak, offsets))
    }

    fn find_gap(&mut self, block: usize, fit: FitRule) -> u64 {
        let mut occupied = self.occupancy.occupied_during(self.spans.ranges_of(block));
        let Block { size, align, .. } = self.blocks[block];
        let offset = match fit {
            FitRule::First => occupied.lowest_gap(size, align.max(1)),
            FitRule::Best => occupied.tightest_gap(size, align.max(1)),
        };
        self.passed += occupied.passed;
        offset
    }

    fn occupy(&mut self, block: usize, offset: u64) {
        for (from, to) in self.spans.ranges_of(block) {
            self.occupancy.occupy(from, to, offset, offset + self.blocks[block].size);
        }
    }

    /// Improves the best packing in rounds. Blocks that end above the goal gain weight and move to the front,
    /// until the goal or the budget is reached.
    fn promote(&mut self, mut best: FoundPacking, goal: u64) -> FoundPacking {
        let mut weight = vec![0u32; self.blocks.len()];
        let mut offsets = best.1.clone();
        let mut sequence: Vec<u32> = (0..self.blocks.len() as u32).collect();
        while best.0 > goal && !self.spent() {
            for (b, block) in self.blocks.iter().enumerate() {
                if offsets[b] + block.size > goal {
                    weight[b] += 1;
                }
            }
            // Blocks of equal weight keep the order of their offsets in the last packing.
            sequence.sort_by_key(|&b| (std::cmp::Reverse(weight[b as usize]), offsets[b as usize], b));
            let Some((peak, next)) = self.place(&sequence, FitRule::First, Some(u64::MAX)) else { break };
            offsets = next;
            if peak < best.0 {
                best = (peak, offsets.clone(), "promoted");
            }
        }
        best
    }

    /// Checks that given offsets do not overlap.
    fn check_fixed_offsets(&mut self) -> Result<(), PackError> {
        let fixed_blocks: Vec<usize> =
            (0..self.blocks.len()).filter(|&b| self.blocks[b].offset.is_some()).collect();
        for (i, &b) in fixed_blocks.iter().enumerate() {
            let block = &self.blocks[b];
            let offset = self.blocks[b].offset.unwrap_or(0);
            if self.occupancy.occupied_during(self.spans.ranges_of(b)).blocks_range(offset, block.size) {
                let mut earlier = fixed_blocks[..i].iter().copied();
                let first = earlier.find(|&a| {
                    let from = self.blocks[a].offset.unwrap_or(0);
                    from < offset + block.size
                        && offset < from + self.blocks[a].size
                        && self
                            .spans
                            .ranges_of(a)
                            .any(|(x, y)| self.spans.ranges_of(b).any(|(u, v)| x < v && u < y))
                });
                return Err(PackError::Overlap { first: first.unwrap_or(b), second: b });
            }
            self.occupy(b, offset);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
