//! Verifies that offsets are a packing, by a sweep over time that is independent of the search.
//!
//! At its start a block enters a map of the live blocks, sorted by offset, and at its end it leaves the map. A
//! block that enters may overlap neither neighbour. The largest sum of the sizes in the map is the bound.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::block::Block;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VerifiedPacking {
    pub peak: u64,
    pub bound: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum VerifyError {
    #[error("found {found} offsets, expected one for each of {blocks} blocks")]
    Count { found: usize, blocks: usize },
    #[error("blocks {first} and {second} are alive together and overlap")]
    Overlap {
        /// The index of the block that was alive first.
        first: usize,
        second: usize,
    },
    #[error(
        "block {block} lies at {offset}, expected a multiple of its alignment and its given offset, if any"
    )]
    Misplaced { block: usize, offset: u64 },
}

pub fn verify(blocks: &[Block], offsets: &[u64]) -> Result<VerifiedPacking, VerifyError> {
    if blocks.len() != offsets.len() {
        return Err(VerifyError::Count { found: offsets.len(), blocks: blocks.len() });
    }
    // At one instant, blocks that end leave before blocks that start enter.
    let mut events: Vec<(usize, bool, u32)> = Vec::with_capacity(2 * blocks.len());
    for (b, block) in blocks.iter().enumerate() {
        let offset = offsets[b];
        let align = block.align.max(1);
        if !offset.is_multiple_of(align) || block.offset.is_some_and(|fixed| fixed != offset) {
            return Err(VerifyError::Misplaced { block: b, offset });
        }
        let intervals = if block.start < block.end {
            [(block.start, block.end), (0, 0)]
        } else {
            [(block.start, usize::MAX), (0, block.end)]
        };
        for (start, end) in intervals.into_iter().filter(|(start, end)| start < end && block.size > 0) {
            events.push((start, true, b as u32));
            events.push((end, false, b as u32));
        }
    }
    events.sort_unstable();
    let mut alive: BTreeMap<u64, usize> = BTreeMap::new();
    let mut load = 0;
    let mut packing = VerifiedPacking::default();
    for (_, starts, b) in events {
        let b = b as usize;
        let from = offsets[b];
        let top = offsets[b] + blocks[b].size;
        if !starts {
            alive.remove(&from);
            load -= blocks[b].size;
            continue;
        }
        // All blocks in the map are disjoint, so only the highest one that starts below can overlap.
        if let Some((&low, &a)) = alive.range(..top).next_back()
            && low + blocks[a].size > from
        {
            return Err(VerifyError::Overlap { first: a, second: b });
        }
        alive.insert(from, b);
        load += blocks[b].size;
        packing = VerifiedPacking { peak: packing.peak.max(top), bound: packing.bound.max(load) };
    }
    Ok(packing)
}
