//! The grid sizes of collectives.
//!
//! A grid depends only on the bytes of the call, so it is equal on all ranks.

use super::control::{MAX_BLOCKS, MAX_RANKS};

/// The largest number of threads per block that kernels are compiled for.
pub(super) const MAX_THREADS: u32 = 640;
/// The largest number of units of a row per thread, in all-reduce with a norm.
const MAX_UNITS_PER_THREAD: u32 = 4;

/// The largest number of blocks of a grid in which several blocks send each row.
const MAX_ROW_SENDERS: u32 = 64;

/// A grid of blocks that handle whole rows. If it has more blocks than rows, several blocks send each row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RowGrid {
    /// Blocks, and threads per block.
    pub blocks: [u32; 2],
    /// The largest number of units of a row per thread.
    pub pieces: u32,
    /// The number of units of a row that one block sends.
    pub share: u32,
}

/// The grids of one variant.
///
/// First, blocks of `threads` threads with one unit of work each are added, up to `blocks` blocks. Beyond
/// that, blocks get more threads, up to `most_threads`; then threads get more work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GridLimits {
    /// The number of threads per block while blocks can be added.
    pub threads: u32,
    /// The largest number of threads per block, up to 640.
    pub most_threads: u32,
    /// The largest number of blocks, up to [`MAX_BLOCKS`].
    pub blocks: u32,
}

impl GridLimits {
    /// Blocks, and threads per block, for this many units of work.
    pub fn grid(&self, units: usize) -> [u32; 2] {
        // Each rank of the cell needs a thread that waits for it.
        let min_threads = self.threads.clamp(MAX_RANKS as u32, MAX_THREADS);
        let max_threads = self.most_threads.clamp(min_threads, MAX_THREADS);
        let most_blocks = self.blocks.clamp(1, MAX_BLOCKS as u32);
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        let blocks = units.div_ceil(min_threads).clamp(1, most_blocks);
        let threads = units.div_ceil(blocks).min(max_threads).next_multiple_of(min_threads.min(32));
        [blocks, threads.clamp(min_threads, max_threads)]
    }

    /// The grid for `rows` rows of `units` units of work each; `None` if a row is too large.
    pub(super) fn rows(&self, rows: usize, units: usize) -> Option<RowGrid> {
        let rows = u32::try_from(rows).ok()?.max(1);
        let units = u32::try_from(units).ok()?;
        let most_blocks = self.blocks.clamp(1, MAX_BLOCKS as u32);
        let max_threads = self.most_threads.clamp(MAX_RANKS as u32, MAX_THREADS);
        let min_threads = self.threads.clamp(MAX_RANKS as u32, max_threads);
        let pieces = units.div_ceil(max_threads).max(1);
        let threads =
            units.div_ceil(pieces).next_multiple_of(min_threads.min(32)).clamp(min_threads, max_threads);
        let senders = (most_blocks.min(MAX_ROW_SENDERS) / rows).clamp(1, units.div_ceil(min_threads).max(1));
        let share = units.div_ceil(senders).max(1).next_multiple_of(min_threads.min(32));
        let blocks = rows.saturating_mul(units.div_ceil(share).max(1)).min(most_blocks);
        (pieces <= MAX_UNITS_PER_THREAD).then_some(RowGrid { blocks: [blocks, threads], pieces, share })
    }
}

/// The message protocol of `ll`: one of NCCL's protocols.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LlProtocol {
    /// Words of eight bytes, four of them data.
    Ll,
    /// Lines of 128 bytes, 120 of them data.
    Ll128,
}

impl LlProtocol {
    /// The kernels' type name of the protocol.
    pub fn name(self) -> &'static str {
        match self {
            LlProtocol::Ll => "Ll",
            LlProtocol::Ll128 => "Ll128",
        }
    }
}

/// The grids of all variants. A unit of work is 16 bytes that one rank reduces or receives from each peer;
/// with LL it is 8 bytes of a message.
///
/// One multiprocessor can have only a limited number of requests in flight, so every variant gains from all
/// multiprocessors from a few hundred KiB on. Small calls do not gain, and each block that synchronizes costs
/// two flags per peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VariantGrids {
    pub ll: GridLimits,
    pub ll128: GridLimits,
    pub one_shot: GridLimits,
    pub two_shot: GridLimits,
    /// Two-shot by stores only.
    pub pushed: GridLimits,
    pub reduce_scatter: GridLimits,
    pub pull: GridLimits,
    pub push: GridLimits,
    pub put: GridLimits,
    /// All-reduce with residual and norm: a block handles whole rows; if there are few rows, more blocks
    /// share them.
    pub norm: GridLimits,
}

impl Default for VariantGrids {
    fn default() -> Self {
        let usual = GridLimits { threads: 256, most_threads: 512, blocks: 128 };
        VariantGrids {
            ll: GridLimits { threads: 128, most_threads: 512, blocks: 64 },
            ll128: GridLimits { threads: 256, most_threads: MAX_THREADS, blocks: 128 },
            one_shot: usual,
            two_shot: usual,
            pushed: GridLimits { threads: 512, most_threads: 512, blocks: 128 },
            reduce_scatter: usual,
            pull: usual,
            push: usual,
            put: usual,
            norm: GridLimits { threads: 128, most_threads: MAX_THREADS, blocks: 128 },
        }
    }
}
