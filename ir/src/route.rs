//! The routing of tokens to experts: an op that computes which rank and which row each copy of a token goes to.
//!
//! `n` ranks share `experts` experts: rank `p` has the experts from `p * local` up to `(p + 1) * local`, where
//! `local = experts / n`. Each of the `t` tokens of a rank has `k` *slots*, each with the id of an expert, or -1
//! for none. All ranks know the ids of all tokens, so each rank computes the whole routing, and no
//! rank sends sizes to another.
//!
//! The *capacity* `c` is the number of rows that each rank receives at most. A *global row* is `p * c + r` for
//! row `r` of rank `p`, and a *global slot* is `(p * t + token) * k + slot` for a token of rank `p`.

use std::sync::Arc;

use crate::ids::GroupId;
use crate::named_enum;

/// The attributes of [`Op::Route`](crate::op::Op::Route).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Route {
    /// The number of experts of all ranks together.
    pub experts: u32,
    /// Each section of rows starts at a multiple of this number, except in the layout `batched`.
    pub align: u32,
    pub layout: RouteLayout,
    pub scope: RouteScope,
}

named_enum! {
    /// The order of the rows that a rank receives.
    RouteLayout {
        /// One row for each slot. Sections are the local experts. Within a section, rows are in order of source
        /// rank, token and slot.
        Expert = "expert",
        /// As `expert`, but each section has an equal share of the capacity: section `s` starts at
        /// `s * (capacity / sections)`, whatever the alignment is. It ends after its last row.
        Batched = "batched",
        /// One row for each token that has an expert on the rank, for its first such slot. Sections are the
        /// source ranks. Within a section, rows are in order of token.
        Rank = "rank",
    }
}

/// The ranks that share the experts.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum RouteScope {
    /// Each rank has all experts, and routes its own tokens.
    Local,
    /// The ranks of each cell of a group.
    Group(GroupId),
    /// The rank at position `rank` of this cell. Only resolved programs have this scope; the verifier rejects
    /// it in graphs.
    Position { rank: u32, cell: Arc<[u32]> },
}

impl Route {
    /// The group whose ranks share the experts.
    pub fn group(&self) -> Option<GroupId> {
        match self.scope {
            RouteScope::Group(group) => Some(group),
            RouteScope::Local | RouteScope::Position { .. } => None,
        }
    }

    /// The number of ranks, if it is known from the scope; `in_group` is the number of ranks of a cell.
    pub fn rank_count(&self, in_group: Option<u32>) -> Option<u32> {
        match self.scope {
            RouteScope::Local => Some(1),
            RouteScope::Group(_) => in_group,
            RouteScope::Position { ref cell, .. } => u32::try_from(cell.len()).ok(),
        }
    }

    /// The number of sections of the rows of a rank: its experts, or the source ranks.
    pub fn section_count(&self, ranks: u32) -> u32 {
        match self.layout {
            RouteLayout::Expert | RouteLayout::Batched => self.experts / ranks.max(1),
            RouteLayout::Rank => ranks,
        }
    }

    /// The most rows of a section, if each section has an equal share of the capacity.
    pub fn section_capacity(&self, ranks: usize, capacity: usize) -> Option<usize> {
        let sections = self.experts as usize / ranks.max(1);
        (self.layout == RouteLayout::Batched).then(|| capacity / sections.max(1))
    }
}
