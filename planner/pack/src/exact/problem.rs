//! A problem for the exact search: blocks without wrapped lifetimes or given offsets, in whole units.

use crate::block::{Block, BlockSpans, has_plain_lifetimes};

/// The largest sum of sizes and alignments, in units.
pub(super) const MAX_UNITS: u64 = 1 << 30;

/// The noise on the keys of ranks in later turns, as a fraction.
const RANK_NOISE: f64 = 0.05;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ExactAnswer {
    /// A packing with these offsets.
    Found(Vec<u64>),
    /// There is no such packing if sizes are rounded up to whole units.
    Impossible,
    /// The search reached its limit without an answer.
    Open,
}

/// A problem for the exact search. It contains only blocks with a size, and counts sizes in units.
pub struct ExactProblem {
    /// The index of each block in the list of given blocks.
    pub(super) block: Vec<usize>,
    pub(super) given: usize,
    /// The size of a unit in bytes.
    pub(super) unit: u64,
    pub(super) size: Vec<u32>,
    pub(super) align: Vec<u32>,
    /// The half-open range of sections of each block.
    pub(super) life: Vec<(usize, usize)>,
    pub(super) sections: usize,
    /// The number of 64-bit words of a set of blocks.
    pub(super) words: usize,
    /// For each section the set of blocks that start before it, and the set of those that end there or before.
    pub(super) started: Vec<u64>,
    pub(super) ended: Vec<u64>,
}

impl ExactProblem {
    /// A problem of at most `most` blocks, fewer than 2^16, without wrapped lifetimes or given offsets. `None`
    /// for others.
    pub fn new(blocks: &[Block], spans: &BlockSpans, most: usize) -> Option<Self> {
        if blocks.len() > most || !has_plain_lifetimes(blocks) {
            return None;
        }
        let unit = unit(blocks)?;
        let block: Vec<usize> = (0..blocks.len()).filter(|&b| blocks[b].size > 0).collect();
        let life: Vec<(usize, usize)> = block.iter().flat_map(|&b| spans.ranges_of(b)).collect();
        let words = block.len().div_ceil(64);
        let sections = spans.sections;
        let started = sets_up_to(sections, words, life.iter().map(|&(start, _)| start + 1));
        let ended = sets_up_to(sections, words, life.iter().map(|&(_, end)| end));
        let size = block.iter().map(|&b| blocks[b].size.div_ceil(unit) as u32).collect();
        let align = block.iter().map(|&b| (blocks[b].align / unit).max(1) as u32).collect();
        Some(ExactProblem {
            block,
            given: blocks.len(),
            unit,
            size,
            align,
            life,
            sections,
            words,
            started,
            ended,
        })
    }

    /// One word of the set of blocks that are alive in one of these sections.
    pub(super) fn alive_word(&self, from: usize, to: usize, word: usize) -> u64 {
        self.started[to * self.words + word] & !self.ended[from * self.words + word]
    }

    /// The smallest peak above this one that a packing can have.
    pub fn next_peak_above(&self, peak: u64) -> u64 {
        (peak / self.unit + 1) * self.unit
    }

    /// The rank of each block in a turn. The turns prefer long blocks, blocks that are both long and tall, or
    /// tall blocks. Later turns shuffle the ranks slightly.
    pub(super) fn rank(&self, turn: u64) -> Vec<u32> {
        let keys = (0..self.life.len()).map(|b| {
            let length = (self.life[b].1 - self.life[b].0) as f64;
            let size = self.size[b] as f64;
            let key = match turn % 3 {
                0 => length + size / 1e9,
                1 => length * size,
                _ => size + length / 1e9,
            };
            let noise =
                if turn < 12 { 0.0 } else { mix_bits(turn << 32 | b as u64) as f64 / u64::MAX as f64 };
            key * (1.0 + RANK_NOISE * noise)
        });
        let keys: Vec<f64> = keys.collect();
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_by(|&a, &b| keys[b].total_cmp(&keys[a]));
        let mut rank = vec![0; keys.len()];
        order.iter().zip(0..).for_each(|(&b, r)| rank[b] = r);
        rank
    }

    /// The offsets in bytes, by the indices of the given blocks.
    pub(super) fn offsets(&self, units: &[u32]) -> Vec<u64> {
        let mut offsets = vec![0; self.given];
        self.block.iter().zip(units).for_each(|(&b, &position)| offsets[b] = u64::from(position) * self.unit);
        offsets
    }
}

/// For each instant the set of the blocks whose instant is not later, given the instant of each block.
fn sets_up_to(sections: usize, words: usize, instants: impl Iterator<Item = usize>) -> Vec<u64> {
    let mut sets = vec![0u64; (sections + 1) * words];
    for (b, instant) in instants.enumerate() {
        sets[instant * words + b / 64] |= 1 << (b % 64);
    }
    for i in words..sets.len() {
        sets[i] |= sets[i - words];
    }
    sets
}

/// The unit: the largest number that divides all sizes, and divides or is a multiple of every alignment. If the
/// sum exceeds [`MAX_UNITS`] of these, the unit is a larger multiple that preserves alignments, and sizes are
/// rounded up. Blocks that rest on one another lie at multiples of the unit.
fn unit(blocks: &[Block]) -> Option<u64> {
    let sized = blocks.iter().filter(|b| b.size > 0);
    let mut unit = sized.clone().fold(0, |unit, b| gcd(unit, b.size)).max(1);
    while let Some(block) = find_uneven_block(blocks, unit) {
        unit = gcd(unit, block.align);
    }
    while sized.clone().map(|b| b.size.div_ceil(unit) + b.align / unit).sum::<u64>() > MAX_UNITS {
        unit *= 2;
    }
    find_uneven_block(blocks, unit).is_none().then_some(unit)
}

/// A block of which neither the alignment nor the unit is a multiple of the other.
fn find_uneven_block(blocks: &[Block], unit: u64) -> Option<&Block> {
    let mut sized = blocks.iter().filter(|b| b.size > 0);
    sized.find(|b| !unit.is_multiple_of(b.align.max(1)) && !b.align.is_multiple_of(unit))
}

/// A pseudo-random number: close arguments give unrelated results.
pub(super) fn mix_bits(from: u64) -> u64 {
    let x = (from ^ (from >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
