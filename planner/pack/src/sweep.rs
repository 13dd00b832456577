//! A first packing in little time: two sweeps through time, starting at the instant of the bound.
//!
//! The blocks alive at the bound are stacked, the earliest at the bottom. One sweep goes to the end of time,
//! and one, mirrored, to its beginning. Blocks that end free their bytes, and blocks that start take the
//! tightest gap. Within the gap they take the side whose neighbour ends at about the same time, so that gaps
//! merge. The gaps are sorted by size, and the live blocks form a list by offset. A block costs O(log n),
//! regardless of the number of live blocks.
//!
//! Large traces are often packed at the bound by this alone. If sizes vary and the load stays high for long,
//! gaps remain between blocks, and orders that do not follow time give better packings.
//!
//! Deliberately absent: wrapped lifetimes and given offsets.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::block::{Block, BlockSpans, has_plain_lifetimes};

/// The number of gaps that are tried for a block before one is taken that has room for any alignment.
const MAX_TRIED_GAPS: usize = 16;

/// The peak and the offsets. `None` if there are wrapped lifetimes or given offsets.
pub fn sweep(blocks: &[Block], spans: &BlockSpans, loads: &[u64]) -> Option<(u64, Vec<u64>)> {
    if !has_plain_lifetimes(blocks) {
        return None;
    }
    let middle = loads.iter().zip(0u32..).max_by_key(|&(load, s)| (load, Reverse(s)))?.1;
    let sections = spans.sections as u32;
    let sized = || (0u32..).zip(blocks).filter(|(_, b)| b.size > 0).map(|(b, _)| b);
    let life = |b: u32| spans.ranges[b as usize][0];

    let mut stack: Vec<u32> = sized().filter(|&b| life(b).0 <= middle && middle < life(b).1).collect();
    stack.sort_unstable_by_key(|&b| (life(b).0, Reverse(blocks[b as usize].size), b));
    let mut offsets = vec![0; blocks.len()];
    let right = sized().filter(|&b| life(b).0 > middle).collect();
    let up = SweepPacker::new(blocks, &mut offsets, life).run(&stack, right);
    let left_blocks = sized().filter(|&b| life(b).1 <= middle).collect();
    // The lifetimes mirrored in time.
    let down = SweepPacker::new(blocks, &mut offsets, |b| (sections - life(b).1, sections - life(b).0))
        .run(&stack, left_blocks);
    Some((up.max(down), offsets))
}

struct SweepPacker<'a, L> {
    blocks: &'a [Block],
    offsets: &'a mut [u64],
    /// The lifetime of each block in the direction of this sweep.
    life: L,
    /// The neighbours of each live block by offset. Two extra entries after the blocks represent the ground
    /// below all blocks and the open space above all.
    below: Vec<u32>,
    above: Vec<u32>,
    /// The gaps between live blocks: size, offset and the block below.
    gaps: BTreeSet<(u64, u64, u32)>,
    peak: u64,
}

impl<'a, L: Fn(u32) -> (u32, u32)> SweepPacker<'a, L> {
    fn new(blocks: &'a [Block], offsets: &'a mut [u64], life: L) -> Self {
        let n = blocks.len();
        let mut below = vec![0; n + 2];
        let mut above = vec![0; n + 2];
        (above[n], below[n + 1]) = (n as u32 + 1, n as u32);
        SweepPacker { blocks, offsets, life, below, above, gaps: BTreeSet::new(), peak: 0 }
    }

    /// Stacks the first blocks and places the others, which start later. Returns the peak.
    fn run(mut self, stack: &[u32], mut births: Vec<u32>) -> u64 {
        for &b in stack {
            self.put_on_top(b);
        }
        births.sort_unstable_by_key(|&b| {
            let (start, end) = (self.life)(b);
            (start, Reverse(end), Reverse(self.blocks[b as usize].size), b)
        });
        let mut deaths = [stack, &births].concat();
        deaths.sort_unstable_by_key(|&b| ((self.life)(b).1, b));
        let mut deaths = deaths.into_iter().peekable();
        for b in births {
            let now = (self.life)(b).0;
            while let Some(dead) = deaths.next_if(|&d| (self.life)(d).1 <= now) {
                self.remove(dead);
            }
            self.place(b);
        }
        self.peak
    }

    /// Places a block into the tightest gap, or above all blocks.
    fn place(&mut self, b: u32) {
        let Block { size, align, .. } = self.blocks[b as usize];
        let align = align.max(1);
        let mut tight = self.gaps.range((size, 0, 0)..).take(MAX_TRIED_GAPS);
        let gap = tight
            .find(|&&(space, from, _)| from.next_multiple_of(align) + size <= from + space)
            .or_else(|| self.gaps.range((size + align - 1, 0, 0)..).next());
        let Some(&(space, from, under)) = gap else {
            return self.put_on_top(b);
        };
        let end = (self.life)(b).1;
        let top = self.distance_to_end(self.above[under as usize], end) < self.distance_to_end(under, end);
        self.insert_above(
            b,
            under,
            if top { (from + space - size) / align * align } else { from.next_multiple_of(align) },
        );
    }

    /// The distance of the end of a block from an instant. The bottom and the top are farthest away.
    fn distance_to_end(&self, other: u32, end: u32) -> u32 {
        let is_block = (other as usize) < self.blocks.len();
        if is_block { (self.life)(other).1.abs_diff(end) } else { u32::MAX }
    }

    fn put_on_top(&mut self, b: u32) {
        let under = self.below[self.blocks.len() + 1];
        self.insert_above(b, under, self.top(under).next_multiple_of(self.blocks[b as usize].align.max(1)));
    }

    /// Inserts a block at an offset in the gap above another block.
    fn insert_above(&mut self, b: u32, under: u32, at: u64) {
        if let Some(gap) = self.gap(under) {
            self.gaps.remove(&gap);
        }
        let over = self.above[under as usize];
        self.offsets[b as usize] = at;
        self.link(under, b);
        self.link(b, over);
        let new_gaps = [self.gap(under), self.gap(b)];
        self.gaps.extend(new_gaps.into_iter().flatten());
        self.peak = self.peak.max(self.top(b));
    }

    fn remove(&mut self, b: u32) {
        let under = self.below[b as usize];
        let over = self.above[b as usize];
        for gap in [self.gap(under), self.gap(b)].into_iter().flatten() {
            self.gaps.remove(&gap);
        }
        self.link(under, over);
        self.gaps.extend(self.gap(under));
    }

    fn link(&mut self, under: u32, over: u32) {
        self.above[under as usize] = over;
        self.below[over as usize] = under;
    }

    fn top(&self, b: u32) -> u64 {
        self.blocks.get(b as usize).map_or(0, |block| self.offsets[b as usize] + block.size)
    }

    /// The gap above a live block, if another block lies above it and leaves a gap.
    fn gap(&self, under: u32) -> Option<(u64, u64, u32)> {
        let start = self.top(under);
        let end = *self.offsets.get(self.above[under as usize] as usize)?;
        (end > start).then_some((end - start, start, under))
    }
}
