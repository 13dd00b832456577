//! How large the grids of collectives are.
//!
//! A grid follows from the bytes of the call alone, so that it is the same on all ranks.

use super::control::{MAX_BLOCKS, MAX_RANKS};

/// The most threads of a block, which kernels are compiled for.
const MAX_THREADS: u32 = 512;
/// The same for all-reduce with a norm.
pub(super) const MAX_NORM_THREADS: u32 = 1024;

/// The grids of one variant.
///
/// Blocks of `threads` threads with one unit of work each are added, up to `blocks` blocks; beyond that blocks
/// get more threads, up to `most_threads`, and beyond that threads get more work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blocks {
    /// The threads of a block while blocks can be added.
    pub threads: u32,
    /// The most threads of a block, up to 512.
    pub most_threads: u32,
    /// The most blocks, up to [`MAX_BLOCKS`].
    pub blocks: u32,
}

impl Blocks {
    /// Blocks and threads of a block for so many units of work.
    pub fn grid(&self, units: usize) -> [u32; 2] {
        // Each rank of the cell needs a thread to wait for it.
        let least = self.threads.clamp(MAX_RANKS as u32, MAX_THREADS);
        let most = self.most_threads.clamp(least, MAX_THREADS);
        let most_blocks = self.blocks.clamp(1, MAX_BLOCKS as u32);
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        let blocks = units.div_ceil(least).clamp(1, most_blocks);
        let threads = units.div_ceil(blocks).min(most).next_multiple_of(least.min(32));
        [blocks, threads.clamp(least, most)]
    }

    /// Blocks and threads of a block for `rows` rows of `units` units of work, a row to a block.
    pub(super) fn rows(&self, rows: usize, units: usize) -> [u32; 2] {
        let least = self.threads.clamp(MAX_RANKS as u32, MAX_NORM_THREADS);
        let most = self.most_threads.clamp(least, MAX_NORM_THREADS);
        let blocks =
            u32::try_from(rows).unwrap_or(u32::MAX).clamp(1, self.blocks.clamp(1, MAX_BLOCKS as u32));
        let threads = u32::try_from(units).unwrap_or(u32::MAX).min(most).next_multiple_of(least.min(32));
        [blocks, threads.clamp(least, most)]
    }
}

/// The grids of all variants. A unit of work is 16 bytes of what one rank reduces or gets of each peer; for
/// packets it is 8 bytes of a message.
///
/// Packets meet no peer, so more blocks cost nothing and spread the stores; blocks that meet cost two flags
/// for each peer.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct BlockCounts {
    pub packets: Blocks,
    pub one_shot: Blocks,
    pub two_shot: Blocks,
    pub reduce_scatter: Blocks,
    pub pull: Blocks,
    pub push: Blocks,
    pub put: Blocks,
    /// All-reduce with residual and norm, up to 1024 threads: a block has whole rows.
    pub norm: Blocks,
}

impl Default for BlockCounts {
    fn default() -> Self {
        let blocks = |threads, blocks| Blocks { threads, most_threads: MAX_THREADS, blocks };
        BlockCounts {
            packets: blocks(128, 64),
            one_shot: blocks(256, 48),
            two_shot: blocks(256, 48),
            reduce_scatter: blocks(256, 48),
            pull: blocks(256, 48),
            push: blocks(256, 48),
            put: blocks(256, 32),
            norm: Blocks { threads: 128, most_threads: MAX_NORM_THREADS, blocks: MAX_BLOCKS as u32 },
        }
    }
}
