//! Values that consist of the shards of all ranks of a group, and their behaviour under views.

use symmc_ir::{AllToAllSplits, CollectiveKind, Dim, GroupId, NodeId, TensorType};

use super::terms::{ShardTerms, TermId};

/// A value that consists of the shards of all ranks, concatenated along an axis, or a window of that.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GatheredValue {
    pub axis: usize,
    pub group: GroupId,
    pub ranks: i64,
    /// The shard of a rank. Its extent is that of the value divided by the ranks, unless there is a window.
    pub shard: TermId,
    /// Whether the value differs between the ranks that read it. The shard then has one more leading axis,
    /// indexed by the reading rank.
    pub by_reader: bool,
    /// The window of all shards that the value has; `None` for all.
    pub window: Option<GatheredWindow>,
    /// The all_gather that the value comes from, or one of several.
    pub base: NodeId,
}

/// Positions along the gathered axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GatheredWindow {
    pub start: i64,
    pub len: i64,
}

/// The parts of shards in a window.
pub struct WindowSegments {
    /// Start and extent of each distinct part.
    pub parts: Vec<(i64, i64)>,
    /// For each rank with a part, in order, the index into `parts`.
    pub of_ranks: Vec<usize>,
    pub first_rank: i64,
}

impl WindowSegments {
    /// Concatenates the results of the ranks along the leading axis. `found` holds, for each part, the
    /// results of all ranks.
    pub fn in_order(&self, found: &[TermId], terms: &mut ShardTerms<'_>) -> Option<TermId> {
        let mut runs = Vec::new();
        let mut rank = self.first_rank;
        for run in self.of_ranks.chunk_by(|a, b| a == b) {
            let count = run.len() as i64;
            runs.push(terms.slice(*found.get(run[0])?, 0, rank, count));
            rank += count;
        }
        terms.concat(0, &runs)
    }
}

impl GatheredValue {
    pub fn shard_axis(&self) -> usize {
        self.axis + usize::from(self.by_reader)
    }

    pub fn shard_extent<'t>(&self, terms: &'t ShardTerms<'_>) -> &'t Dim {
        &terms.shape(self.shard)[self.shard_axis()]
    }

    /// The value with the readers as a leading axis, which is the same on all ranks.
    pub fn to_all_readers(&self) -> GatheredValue {
        GatheredValue { axis: self.shard_axis(), by_reader: false, ..self.clone() }
    }

    pub fn is_aligned(&self, other: &GatheredValue, terms: &ShardTerms<'_>) -> bool {
        (self.group, self.window, self.by_reader) == (other.group, other.window, other.by_reader)
            && self.shard_extent(terms) == other.shard_extent(terms)
    }

    pub fn segments(&self, terms: &ShardTerms<'_>) -> Option<WindowSegments> {
        let extent = self.shard_extent(terms).as_const().filter(|&s| s > 0)?;
        let window = self.window.unwrap_or(GatheredWindow { start: 0, len: extent * self.ranks });
        let mut out =
            WindowSegments { parts: Vec::new(), of_ranks: Vec::new(), first_rank: window.start / extent };
        for rank in 0..self.ranks {
            let start = (window.start - rank * extent).max(0);
            let end = (window.start + window.len - rank * extent).min(extent);
            if start < end {
                let part = (start, end - start);
                let known = out.parts.iter().position(|&p| p == part);
                if known.is_none() {
                    out.parts.push(part);
                }
                out.of_ranks.push(known.unwrap_or(out.parts.len() - 1));
            }
        }
        Some(out)
    }

    /// Collects the results of all ranks for this rank along a new leading axis.
    pub fn collect_from_ranks(&self, found: TermId, terms: &mut ShardTerms<'_>) -> Option<TermId> {
        if self.by_reader {
            return terms.collective(CollectiveKind::AllToAll(AllToAllSplits::Even), self.group, found);
        }
        let local = terms.with_leading(found, 1);
        terms.all_gather(self.group, local)
    }

    pub fn gather_shards(&self, ty: &TensorType, terms: &mut ShardTerms<'_>) -> Option<TermId> {
        if self.window.is_some() || self.by_reader {
            return None;
        }
        let leading = terms.move_axis(self.shard, self.axis, 0)?;
        let all = terms.all_gather(self.group, leading)?;
        let found = terms.move_axis(all, 0, self.axis)?;
        (terms.ty(found) == ty).then_some(found)
    }
}
