//! The extents of grouped products, and the choice of tiles for their kernel with warp-group MMA.
//!
//! Only the average number of rows of a group is known before the run. The times were measured on an H100 with 1
//! to 1024 rows per group, 8 and 32 groups, and K from 768 to 4096, where the choice is within 6 % of the
//! faster shape. Tiles of 256 columns, of which two groups of warps compute 64 rows each and store them at the
//! same time, are slower.

use symmc_runtime::exec::LocatedTensor;

use super::lowering::mismatch_error;
use super::machine::KernelTarget;
use crate::error::Result;

/// The rows of a tile and the K of a stage, with warp-group MMA.
const ROWS_PER_TILE: usize = 128;
pub(super) const TILE_K: usize = 64;
pub(super) const WGMMA_THREADS: u32 = 384;
/// The smallest and the largest number of stages, and the smallest one if results are stored from shared
/// memory.
const STAGE_RANGE: [usize; 2] = [3, 8];
const STAGES_WITH_BOXES: usize = 4;
/// The bytes of the barriers of a stage, and of the other barriers with the padding to a multiple of 1024.
const STAGE_BARRIERS: usize = 16;
const OTHER_BYTES: usize = 32 + 1024;
/// The most groups whose ends a block holds in shared memory.
const MAX_GROUPS: usize = 2048;

/// A number of columns of a tile, with the time of a stage and the time that a tile takes in addition, in
/// nanoseconds.
struct TileShape {
    columns: usize,
    stage_time: usize,
    tile_time: usize,
}

const TILE_SHAPES: [TileShape; 2] = [
    TileShape { columns: 128, stage_time: 375, tile_time: 1180 },
    TileShape { columns: 192, stage_time: 544, tile_time: 1020 },
];
/// The columns of a tile if wider tiles leave most multiprocessors idle: fewer than one in this many has a
/// tile.
const NARROW_COLUMNS: usize = 64;
const NARROW_IF_BELOW: usize = 3;

/// The extents of a product of `m` rows by `n` columns, whose rows, or whose `k`, are divided into groups.
#[derive(Clone, Copy)]
pub(super) struct GroupedSizes {
    pub m: usize,
    pub k: usize,
    pub n: usize,
    pub groups: usize,
    pub divide_k: bool,
}

impl GroupedSizes {
    pub fn from_operands([x, y, ends]: [&LocatedTensor; 3], result: &LocatedTensor) -> Result<Self> {
        let e = match (&x.shape[..], &y.shape[..], &ends.shape[..]) {
            (&[m, k], &[groups, inner, n], &[declared]) if k == inner && groups == declared => {
                GroupedSizes { m, k, n, groups, divide_k: false }
            }
            (&[m, k], &[inner, n], &[groups]) if k == inner => {
                GroupedSizes { m, k, n, groups, divide_k: true }
            }
            _ => {
                let expected = "[rows, k] and [groups, k, n], or [m, k] and [k, n], and [groups]";
                return Err(mismatch_error("grouped_matmul", expected, (&x.shape, &y.shape, &ends.shape)));
            }
        };
        let shape = if e.divide_k { vec![e.groups, e.m, e.n] } else { vec![e.m, e.n] };
        let fits = result.shape[..] == shape[..]
            && x.dtype == y.dtype
            && x.dtype == result.dtype
            && x.dtype.is_float();
        if fits { Ok(e) } else { Err(mismatch_error("the result of grouped_matmul", shape, &result.shape)) }
    }

    /// The number of tiles of `rows` rows that the worst division needs.
    pub fn tiles(self, rows: usize) -> usize {
        if self.divide_k {
            return self.groups * self.m.div_ceil(rows);
        }
        // Each piece that has rows (the groups and the rest after them) may have one partial tile.
        let pieces = self.m.min(self.groups + 1);
        (self.m + pieces * (rows - 1)) / rows
    }

    /// The number of tiles of rows that equal groups need on average.
    fn average_tiles(self) -> usize {
        if self.divide_k {
            return self.tiles(ROWS_PER_TILE);
        }
        let used = self.m.min(self.groups);
        used.max(self.m.div_ceil(ROWS_PER_TILE) + used / 2)
    }

    /// The number of stages of a tile of an average group.
    fn steps(self) -> usize {
        let terms = if self.divide_k { self.k / self.groups.max(1) + TILE_K / 2 } else { self.k };
        terms.div_ceil(TILE_K)
    }

    /// Whether all numbers that the kernel with warp-group MMA computes fit 32 bits.
    fn fits_32_bits(self) -> bool {
        let rows = if self.divide_k { self.m } else { self.m.saturating_add(ROWS_PER_TILE) };
        let tiles =
            rows.div_ceil(ROWS_PER_TILE).saturating_mul(self.groups + 1).saturating_mul(self.n.div_ceil(64));
        [self.m, self.k, self.n, tiles].into_iter().all(|n| n < (i32::MAX - 1024) as usize)
    }
}

/// How many elements of a row of the result are stored at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ResultStores {
    /// Eight, which are adjacent and aligned to 16 bytes.
    Eights,
    Single,
}

/// Tiles of 128 rows and the memory of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct WgmmaTiling {
    pub columns: usize,
    pub stages: usize,
    /// Whether results are stored by TMA, from shared memory.
    pub stores_boxes: bool,
    pub shared: usize,
    /// The number of blocks.
    pub blocks: usize,
}

impl WgmmaTiling {
    /// The fastest tiling, if one fits.
    pub fn choose(e: GroupedSizes, stores: ResultStores, machine: &KernelTarget) -> Option<WgmmaTiling> {
        let empty = [e.m, e.k, e.n, e.groups].contains(&0);
        if !machine.wgmma || empty || e.groups > MAX_GROUPS || !e.fits_32_bits() {
            return None;
        }
        let multiprocessors = (machine.multiprocessors as usize).max(1);
        let tiles = |columns| e.average_tiles() * e.n.div_ceil(columns);
        if tiles(TILE_SHAPES[0].columns) * NARROW_IF_BELOW < multiprocessors {
            return WgmmaTiling::fit(NARROW_COLUMNS, e, stores, machine);
        }
        let reading = e.reading_time(machine);
        let time = |shape: &TileShape| {
            let tile = e.steps() * shape.stage_time + shape.tile_time;
            (tiles(shape.columns).div_ceil(multiprocessors) * tile).max(reading)
        };
        let fitting =
            TILE_SHAPES.iter().filter_map(|s| Some((s, WgmmaTiling::fit(s.columns, e, stores, machine)?)));
        fitting.min_by_key(|(shape, _)| time(shape)).map(|(_, tiling)| tiling)
    }

    fn fit(
        columns: usize,
        e: GroupedSizes,
        stores: ResultStores,
        machine: &KernelTarget,
    ) -> Option<WgmmaTiling> {
        let stage = (ROWS_PER_TILE + columns) * TILE_K * 2 + STAGE_BARRIERS;
        // The sums of warps, and the ends and the tiles of groups.
        let tables = 4 * (WGMMA_THREADS as usize / 32 + 2 * (e.groups + 1));
        let stages_next_to = |boxes: usize| {
            let room = machine.shared.saturating_sub(OTHER_BYTES + tables + boxes);
            (room / stage).min(STAGE_RANGE[1])
        };
        let boxes = ROWS_PER_TILE * columns * 2;
        let stores_boxes = stores == ResultStores::Eights && stages_next_to(boxes) >= STAGES_WITH_BOXES;
        let boxes = if stores_boxes { boxes } else { 0 };
        let stages = stages_next_to(boxes);
        let tiles = e.tiles(ROWS_PER_TILE) * e.n.div_ceil(columns);
        (stages >= STAGE_RANGE[0]).then_some(WgmmaTiling {
            columns,
            stages,
            stores_boxes,
            shared: stages * stage + OTHER_BYTES + tables + boxes,
            blocks: tiles.min(machine.multiprocessors as usize).max(1),
        })
    }
}

impl GroupedSizes {
    /// The time in nanoseconds in which memory delivers the operands and takes the result, at seven eighths of
    /// its peak bandwidth.
    fn reading_time(self, machine: &KernelTarget) -> usize {
        let matrices = if self.divide_k { self.groups * self.m } else { self.m.min(self.groups) * self.k };
        let rows = if self.divide_k { self.k * (self.m + self.n) } else { self.m * (self.k + self.n) };
        let bytes = 2 * (matrices * self.n + rows);
        (bytes * 8).checked_div(machine.bandwidth as usize * 7).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The columns, the stages and whether results are stored by TMA.
    fn choice(sizes: [usize; 4], divide_k: bool, shared: usize) -> Option<(usize, usize, bool)> {
        let [m, k, n, groups] = sizes;
        let machine = KernelTarget { shared, bandwidth: 3352, ..KernelTarget::PROFILE_GPU };
        let tiling =
            WgmmaTiling::choose(GroupedSizes { m, k, n, groups, divide_k }, ResultStores::Eights, &machine)?;
        assert!(tiling.shared <= shared && tiling.blocks <= 132, "{tiling:?}");
        Some((tiling.columns, tiling.stages, tiling.stores_boxes))
    }

    #[test]
    fn tiles_are_as_wide_as_the_rows_of_groups_are_many() {
        let shared_bytes = 225 << 10;
        // One row for two experts of eight: 32 tiles of 128 columns.
        assert_eq!(choice([2, 4096, 2048, 8], false, shared_bytes), Some((64, 8, true)));
        // Bounded by reading the matrices.
        assert_eq!(choice([128, 2048, 1536, 32], false, shared_bytes), Some((128, 5, true)));
        assert_eq!(choice([2048, 2048, 1536, 32], false, shared_bytes), Some((128, 5, true)));
        assert_eq!(choice([8192, 2048, 1536, 32], false, shared_bytes), Some((192, 4, true)));
        assert_eq!(choice([32768, 768, 2048, 32], false, shared_bytes), Some((192, 4, true)));
        assert_eq!(choice([2048, 8192, 1536, 32], true, shared_bytes), Some((192, 4, true)));
        // Less shared memory: results are stored directly, or the tiles do not fit.
        assert_eq!(choice([32768, 768, 2048, 32], false, 180 << 10), Some((192, 4, false)));
        assert_eq!(choice([32768, 768, 2048, 32], false, 64 << 10), None);
        // Empty products, too many groups, and numbers beyond 32 bits.
        assert_eq!(choice([8, 0, 64, 2], false, shared_bytes), None);
        assert_eq!(choice([8, 64, 64, 5000], false, shared_bytes), None);
        assert_eq!(choice([1 << 30, 64, 4096, 2000], false, shared_bytes), None);
    }
}
