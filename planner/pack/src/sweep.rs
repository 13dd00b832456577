//! A first packing in little time: two sweeps through time, away from the instant of the bound.
//!
//! The blocks alive at the bound are stacked, the earliest at the bottom. From there one sweep goes to the end of time
//! and one, mirrored, to its beginning: blocks that end give their bytes back, those that start take the tightest gap,
//! and in it the side whose neighbour ends at about the same time as they do, so that gaps merge. The gaps are kept by
//! size and the live blocks as a list by offset: a block costs O(log n) however many are alive.
//!
//! Large traces are often packed at the bound by this alone. Where sizes vary and the load is high for long, gaps
//! stay between blocks, and orders that do not follow time do better.
//!
//! Not here: wrapped lifetimes and given offsets.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::block::{Block, BlockSpans, has_plain_lifetimes};

/// The number of gaps that are tried for a block before one is taken that has room for any alignment.
const TRIED: usize = 16;

/// The peak and the offsets, if there are neither wrapped lifetimes nor given offsets.
pub fn sweep(blocks: &[Block], spans: &BlockSpans, loads: &[u64]) -> Option<(u64, Vec<u64>)> {
    if !has_plain_lifetimes(blocks) {
        return None;
    }
    let middle = loads.iter().zip(0u32..).max_by_key(|&(load, s)| (load, Reverse(s)))?.1;
    let last = spans.sections as u32;
    let sized = || (0u32..).zip(blocks).filter(|(_, b)| b.size > 0).map(|(b, _)| b);
    let life = |b: u32| spans.ranges[b as usize][0];
    let mirrored = |b: u32| (last - life(b).1, last - life(b).0);

    let mut stack: Vec<u32> = sized().filter(|&b| life(b).0 <= middle && middle < life(b).1).collect();
    stack.sort_unstable_by_key(|&b| (life(b).0, Reverse(blocks[b as usize].size), b));
    let mut offsets = vec![0; blocks.len()];
    let right = sized().filter(|&b| life(b).0 > middle).collect();
    let up = SweepPacker::new(blocks, &mut offsets, life).run(&stack, right);
    let left = sized().filter(|&b| life(b).1 <= middle).collect();
    let down = SweepPacker::new(blocks, &mut offsets, mirrored).run(&stack, left);
    Some((up.max(down), offsets))
}

struct SweepPacker<'a, L> {
    blocks: &'a [Block],
    offsets: &'a mut [u64],
    /// The lifetime of a block as this sweep sees it.
    life: L,
    /// The neighbours of each live block by offset. Behind the blocks stand the ground below all and the sky above all.
    below: Vec<u32>,
    above: Vec<u32>,
    /// The gaps between live blocks: size, offset and the block below.
    gaps: BTreeSet<(u64, u64, u32)>,
    peak: u64,
}

impl<'a, L: Fn(u32) -> (u32, u32)> SweepPacker<'a, L> {
    fn new(blocks: &'a [Block], offsets: &'a mut [u64], life: L) -> Self {
        let n = blocks.len();
        let (mut below, mut above) = (vec![0; n + 2], vec![0; n + 2]);
        (above[n], below[n + 1]) = (n as u32 + 1, n as u32);
        SweepPacker { blocks, offsets, life, below, above, gaps: BTreeSet::new(), peak: 0 }
    }

    /// Stacks the first blocks and places the others, which start later; the peak.
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

    /// Puts a block into the tightest gap, or above all.
    fn place(&mut self, b: u32) {
        let Block { size, align, .. } = self.blocks[b as usize];
        let align = align.max(1);
        let fits = |gap: &&(u64, u64, u32)| gap.1.next_multiple_of(align) + size <= gap.1 + gap.0;
        let tight = self.gaps.range((size, 0, 0)..).take(TRIED).find(fits);
        let roomy = || self.gaps.range((size + align - 1, 0, 0)..).next();
        let Some(&(space, at, under)) = tight.or_else(roomy) else {
            return self.put_on_top(b);
        };
        let end = (self.life)(b).1;
        let apart = |other: u32| match (other as usize) < self.blocks.len() {
            true => (self.life)(other).1.abs_diff(end),
            false => u32::MAX,
        };
        let top = apart(self.above[under as usize]) < apart(under);
        self.insert_above(
            b,
            under,
            if top { (at + space - size) / align * align } else { at.next_multiple_of(align) },
        );
    }

    fn put_on_top(&mut self, b: u32) {
        let under = self.below[self.blocks.len() + 1];
        self.insert_above(b, under, self.top(under).next_multiple_of(self.blocks[b as usize].align.max(1)));
    }

    /// Puts a block at an offset in the gap above another.
    fn insert_above(&mut self, b: u32, under: u32, at: u64) {
        if let Some(gap) = self.gap(under) {
            self.gaps.remove(&gap);
        }
        let over = self.above[under as usize];
        self.offsets[b as usize] = at;
        self.link(under, b);
        self.link(b, over);
        let both = [self.gap(under), self.gap(b)];
        self.gaps.extend(both.into_iter().flatten());
        self.peak = self.peak.max(self.top(b));
    }

    fn remove(&mut self, b: u32) {
        let (under, over) = (self.below[b as usize], self.above[b as usize]);
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

    /// The gap above a live block, if there is one under another.
    fn gap(&self, under: u32) -> Option<(u64, u64, u32)> {
        let start = self.top(under);
        let end = *self.offsets.get(self.above[under as usize] as usize)?;
        (end > start).then_some((end - start, start, under))
    }
}
