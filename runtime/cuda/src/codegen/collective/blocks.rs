//! How large the grids of collectives are.
//!
//! A grid follows from the bytes of the call alone, so that it is the same on all ranks.

use super::control::{MAX_BLOCKS, MAX_RANKS};

/// The most threads of a block, which kernels are compiled for.
pub(super) const MAX_THREADS: u32 = 640;
/// The most units of a row that one thread has, in all-reduce with a norm.
const MAX_UNITS_PER_THREAD: u32 = 4;

/// The most blocks of a grid in which several blocks send each row.
const MAX_ROW_SENDERS: u32 = 64;

/// A grid whose blocks have whole rows. If it has more blocks than rows, each row has as many to send it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RowGrid {
    /// Blocks and threads of a block.
    pub blocks: [u32; 2],
    /// The most units of a row that one thread has.
    pub pieces: u32,
    /// The units of a row that one block sends.
    pub share: u32,
}

/// The grids of one variant.
///
/// Blocks of `threads` threads with one unit of work each are added, up to `blocks` blocks; beyond that blocks
/// get more threads, up to `most_threads`, and beyond that threads get more work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GridLimits {
    /// The threads of a block while blocks can be added.
    pub threads: u32,
    /// The most threads of a block, up to 640.
    pub most_threads: u32,
    /// The most blocks, up to [`MAX_BLOCKS`].
    pub blocks: u32,
}

impl GridLimits {
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

    /// The grid for `rows` rows of `units` units of work; `None` if a row is too large.
    pub(super) fn rows(&self, rows: usize, units: usize) -> Option<RowGrid> {
        let (rows, units) = (u32::try_from(rows).ok()?.max(1), u32::try_from(units).ok()?);
        let most_blocks = self.blocks.clamp(1, MAX_BLOCKS as u32);
        let most = self.most_threads.clamp(MAX_RANKS as u32, MAX_THREADS);
        let least = self.threads.clamp(MAX_RANKS as u32, most);
        let pieces = units.div_ceil(most).max(1);
        let threads = units.div_ceil(pieces).next_multiple_of(least.min(32)).clamp(least, most);
        let senders = (most_blocks.min(MAX_ROW_SENDERS) / rows).clamp(1, units.div_ceil(least).max(1));
        let share = units.div_ceil(senders).max(1).next_multiple_of(least.min(32));
        let blocks = rows.saturating_mul(units.div_ceil(share).max(1)).min(most_blocks);
        (pieces <= MAX_UNITS_PER_THREAD).then_some(RowGrid { blocks: [blocks, threads], pieces, share })
    }
}

/// How messages travel by `ll`: NCCL's protocols.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LlProtocol {
    /// Words of eight bytes, four of data.
    Ll,
    /// Lines of 128 bytes, 120 of data.
    Ll128,
}

impl LlProtocol {
    /// The kernels' type of it.
    pub fn name(self) -> &'static str {
        match self {
            LlProtocol::Ll => "Ll",
            LlProtocol::Ll128 => "Ll128",
        }
    }
}

/// The grids of all variants. A unit of work is 16 bytes of what one rank reduces or gets of each peer; by
/// LL it is 8 bytes of a message.
///
/// Each multiprocessor sends and asks for only so much at a time, so that from a few hundred KiB on every variant gains
/// from all of them; small ones do not, and blocks that meet cost two flags for each peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VariantGrids {
    pub ll: GridLimits,
    pub ll128: GridLimits,
    pub one_shot: GridLimits,
    pub two_shot: GridLimits,
    /// Two-shot by stores alone.
    pub pushed: GridLimits,
    pub reduce_scatter: GridLimits,
    pub pull: GridLimits,
    pub push: GridLimits,
    pub put: GridLimits,
    /// All-reduce with residual and norm: a block has whole rows, and few rows more blocks.
    pub norm: GridLimits,
}

impl Default for VariantGrids {
    fn default() -> Self {
        let blocks = |threads, blocks| GridLimits { threads, most_threads: 512, blocks };
        VariantGrids {
            ll: blocks(128, 64),
            ll128: GridLimits { threads: 256, most_threads: MAX_THREADS, blocks: 128 },
            one_shot: blocks(256, 128),
            two_shot: blocks(256, 128),
            pushed: blocks(512, 128),
            reduce_scatter: blocks(256, 128),
            pull: blocks(256, 128),
            push: blocks(256, 128),
            put: blocks(256, 128),
            norm: GridLimits { threads: 128, most_threads: MAX_THREADS, blocks: 128 },
        }
    }
}
