//! Values that are the shards of all ranks of a group one after another, and where they go through views.

use symmc_ir::{CollectiveKind, Dim, GroupId, NodeId, Splits, Type};

use super::terms::{TermId, Terms};

/// A value that is the shards of all ranks one after another along an axis, or a window of that.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gathered {
    /// The axis.
    pub axis: usize,
    /// The group whose ranks have the shards.
    pub group: GroupId,
    /// The number of its ranks.
    pub ranks: i64,
    /// The shard of a rank, of the extent of the value divided by the ranks unless there is a window.
    pub shard: TermId,
    /// Whether the value differs between the ranks that read it. Then the shard has one more leading axis: what it is to each rank.
    pub by_reader: bool,
    /// The part of all shards that the value has, if not all of it.
    pub window: Option<Window>,
    /// The all_gather that the value comes from, one of those if it comes from several.
    pub base: NodeId,
}

/// Positions along the gathered axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// The first.
    pub start: i64,
    /// How many.
    pub len: i64,
}

/// The parts into which the edges of a window divide each shard.
pub struct Segments {
    /// Start and extent of each part.
    pub parts: Vec<(i64, i64)>,
    /// Of the parts of all ranks in order, how many stand before the window.
    pub before: i64,
    /// How many are in the window.
    pub count: i64,
}

impl Gathered {
    /// The gathered axis of the shard.
    pub fn own_axis(&self) -> usize {
        self.axis + usize::from(self.by_reader)
    }

    /// The extent of a shard along the gathered axis.
    pub fn extent<'t>(&self, terms: &'t Terms<'_>) -> &'t Dim {
        &terms.shape(self.shard)[self.own_axis()]
    }

    /// The value with what it is to all ranks, which is the same on all of them.
    pub fn to_all_readers(&self) -> Gathered {
        Gathered { axis: self.own_axis(), by_reader: false, ..self.clone() }
    }

    /// Whether two values are gathered in the same way.
    pub fn is_aligned(&self, other: &Gathered, terms: &Terms<'_>) -> bool {
        let kind = |g: &Gathered| (g.group, g.window, g.by_reader);
        kind(self) == kind(other) && self.extent(terms) == other.extent(terms)
    }

    /// The parts of a shard that lie within the window or outside of it.
    pub fn segments(&self, terms: &Terms<'_>) -> Option<Segments> {
        let extent = self.extent(terms).as_const().filter(|&s| s > 0)?;
        let window = self.window.unwrap_or(Window { start: 0, len: extent * self.ranks });
        let end = window.start + window.len;
        let mut cuts = vec![0, window.start % extent, end % extent, extent];
        cuts.sort_unstable();
        cuts.dedup();
        let parts: Vec<(i64, i64)> = cuts.windows(2).map(|w| (w[0], w[1] - w[0])).collect();
        let place = |position: i64| {
            let within = parts.iter().position(|&(start, _)| start == position % extent)?;
            Some(position / extent * parts.len() as i64 + within as i64)
        };
        let before = place(window.start)?;
        let count = place(end)? - before;
        Some(Segments { parts, before, count })
    }

    /// The axis that the gathered axis of a value of this shape becomes under another shape, and the extent of a shard there.
    pub fn reshaped(&self, from: &[Dim], to: &[Dim], terms: &Terms<'_>) -> Option<(usize, Dim)> {
        let count = |dims: &[Dim]| dims.iter().cloned().fold(Dim::from(1), |all, d| all * d);
        let before = count(&from[..self.axis]);
        let mut leading = Dim::from(1);
        for (axis, extent) in to.iter().enumerate() {
            if leading == before {
                let part = match self.window {
                    None => extent.exact_div(&Dim::from(self.ranks)),
                    Some(_) => (*extent == from[self.axis]).then(|| self.extent(terms).clone()),
                };
                if let Some(part) = part {
                    return Some((axis, part));
                }
            }
            leading = leading * extent.clone();
        }
        None
    }

    /// What all ranks have found for this one in each of some parts of their shards, one after another along a new leading axis: by
    /// rank, then by part.
    pub fn collect(&self, parts: &[TermId], terms: &mut Terms<'_>) -> Option<TermId> {
        if !self.by_reader {
            let parts: Vec<TermId> = parts.iter().map(|&part| terms.with_leading(part, 1)).collect();
            let own = terms.concat(0, &parts)?;
            return terms.all_gather(self.group, own);
        }
        let mut apart = Vec::with_capacity(parts.len());
        for &part in parts {
            let mut shape = terms.shape(part).to_vec();
            shape.insert(1, Dim::from(1));
            apart.push(terms.reshape(part, shape));
        }
        let own = terms.concat(1, &apart)?;
        let all = terms.collective(CollectiveKind::AllToAll(Splits::Even), self.group, own)?;
        let mut shape = terms.shape(all)[1..].to_vec();
        shape[0] = Dim::from(self.ranks * parts.len() as i64);
        Some(terms.reshape(all, shape))
    }

    /// All shards as one value, gathered again.
    pub fn gather(&self, ty: &Type, terms: &mut Terms<'_>) -> Option<TermId> {
        if self.window.is_some() || self.by_reader {
            return None;
        }
        let leading = terms.move_axis(self.shard, self.axis, 0)?;
        let all = terms.all_gather(self.group, leading)?;
        let found = terms.move_axis(all, 0, self.axis)?;
        (terms.ty(found) == ty).then_some(found)
    }
}
