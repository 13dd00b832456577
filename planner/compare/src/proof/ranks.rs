//! Ranks as positions along the axes of a mesh.
//!
//! The groups of two programs divide the ranks into axes, such as the rows and columns of a mesh. A rank is then a
//! coordinate along each, and a group whose cells are runs along some of the axes moves elements between coordinates.
//! The cells of other groups are looked up, for which all coordinates have to be numbers.

use std::ops::Range;

use symmc_ir::{Dim, Replication};

pub struct RankMesh {
    /// The extents of the axes, outermost first.
    extents: Vec<u32>,
}

/// The ranks of the cells of a group.
pub type Cells = Vec<Vec<u32>>;

impl RankMesh {
    pub fn new<'c>(ranks: u32, groups: impl Iterator<Item = &'c Cells>) -> RankMesh {
        let mut ends = vec![1, ranks];
        for (stride, count) in groups.filter_map(uniform_stride) {
            let mut wider = ends.clone();
            wider.extend([stride, stride * count]);
            wider.sort_unstable();
            wider.dedup();
            if wider.windows(2).all(|pair| pair[1].is_multiple_of(pair[0])) {
                ends = wider;
            }
        }
        RankMesh { extents: ends.windows(2).rev().map(|pair| pair[1] / pair[0]).collect() }
    }

    pub fn extents(&self) -> &[u32] {
        &self.extents
    }

    /// The distance between the ranks of neighbouring positions along each axis.
    fn strides(&self) -> Vec<u32> {
        let mut stride = 1;
        let mut out: Vec<u32> = self
            .extents
            .iter()
            .rev()
            .map(|extent| {
                let own = stride;
                stride *= extent;
                own
            })
            .collect();
        out.reverse();
        out
    }

    pub fn coordinates(&self, rank: u32) -> Vec<u32> {
        self.strides().iter().zip(&self.extents).map(|(stride, extent)| rank / stride % extent).collect()
    }

    pub fn rank_of(&self, coordinates: &[i64]) -> Option<u32> {
        let terms = coordinates
            .iter()
            .zip(self.strides())
            .map(|(&c, stride)| u32::try_from(c).ok().map(|c| c * stride));
        terms.sum()
    }

    /// The axes along which the cells of a group lie, each cell in ascending order. `None` if there are none.
    pub fn axes_of(&self, cells: &Cells) -> Option<Range<usize>> {
        let (stride, count) = uniform_stride(cells)?;
        let strides = self.strides();
        let end = strides.iter().position(|s| *s == stride)? + 1;
        let start = strides.iter().zip(&self.extents).position(|(s, extent)| s * extent == stride * count)?;
        (start < end).then_some(start..end)
    }

    /// The axes along which all ranks hold the same bits.
    pub fn replicated_axes(&self, replication: &Replication) -> Vec<bool> {
        let ranks: u32 = self.extents.iter().product();
        let is_replicated = |(stride, extent): (u32, &u32)| {
            (0..ranks).all(|rank| replication.are_replicas(rank, rank - rank / stride % extent * stride))
        };
        self.strides().into_iter().zip(&self.extents).map(is_replicated).collect()
    }

    pub fn extent_dims(&self) -> Vec<Dim> {
        self.extents.iter().map(|&extent| Dim::from(i64::from(extent))).collect()
    }
}

/// The distance between neighbouring ranks of all cells, and the number of ranks of each, if these are the runs along
/// an axis of the ranks.
fn uniform_stride(cells: &Cells) -> Option<(u32, u32)> {
    let first = cells.first()?;
    let count = u32::try_from(first.len()).ok()?;
    let stride = first.get(1)?.checked_sub(first[0])?;
    let is_uniform = |cell: &Vec<u32>| {
        let start = cell.first().copied().unwrap_or(0);
        cell.len() == first.len()
            && start / stride.max(1) % count == 0
            && cell.iter().zip(0..).all(|(&rank, k)| rank == start + k * stride)
    };
    (stride > 0 && cells.iter().all(is_uniform)).then_some((stride, count))
}
