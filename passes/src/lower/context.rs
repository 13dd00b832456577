//! Inputs of a lowering besides the program.
//!
//! [`LowerContext`] holds all inputs on which the solution of every region depends: the profile, the ranges
//! of the bucket, the permitted variants and rules. Two lowerings with equal contexts share solutions
//! ([`super::solutions`]), so an input on which a solution depends belongs there or in the
//! [`RegionKey`](super::region::RegionKey) of a region.

use std::collections::BTreeMap;

use symmc_ir::machine::{MachineProfile, OperationCounts};
use symmc_ir::{
    CollectiveKind, CollectiveVariant, Dim, EntityMap, ExitBarrierPolicy, GroupId, Numerics, SymbolTable,
    TensorType,
};

use super::conditions::CollectiveConditions;

/// The size at which the e-graph of a region stops growing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EGraphLimits {
    pub nodes: usize,
    pub iterations: usize,
}

/// The sizes of a collective in bytes at the upper ends of the bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CollectiveSizes {
    /// The bytes for which the time is estimated ([`CollectiveKind::estimated_bytes`]).
    pub moved: u64,
    /// The whole operand or result, for which there must be memory. For exchanges of rows this is more than
    /// what moves.
    pub whole: u64,
}

impl From<u64> for CollectiveSizes {
    fn from(bytes: u64) -> Self {
        CollectiveSizes { moved: bytes, whole: bytes }
    }
}

#[derive(Clone, PartialEq)]
pub struct LowerContext {
    pub profile: MachineProfile,
    /// The cells of each group.
    pub cells: EntityMap<GroupId, Vec<Vec<u32>>>,
    pub symbols: SymbolTable,
    /// The variants that may be chosen; `None` for all.
    pub variants: Option<Vec<CollectiveVariant>>,
    pub numerics: Numerics,
    pub limits: EGraphLimits,
    /// For each inner and outer group of nested all-reduces of one kind, the group that covers the ranks of
    /// both.
    pub merged_groups: BTreeMap<(GroupId, GroupId), GroupId>,
}

impl LowerContext {
    pub fn ranks(&self, group: GroupId) -> u32 {
        self.cells.get(group).and_then(|cells| cells.first()).map_or(1, |cell| cell.len() as u32)
    }

    pub fn bytes(&self, ty: &TensorType) -> u64 {
        self.upper_bound(&ty.bytes())
    }

    pub fn upper_bound(&self, dim: &Dim) -> u64 {
        u64::try_from(dim.upper_bound(&self.symbols)).unwrap_or(0)
    }

    pub fn copy_us(&self, ty: &TensorType) -> f64 {
        self.profile.copy_us(self.bytes(ty))
    }

    /// The time of a kernel that copies this many bytes within a rank.
    pub fn copy_kernel_us(&self, bytes: u64) -> f64 {
        self.profile.compute_us(bytes.saturating_mul(2), OperationCounts::default())
    }

    /// The sizes of a collective with these types of operands and results.
    pub fn collective_sizes(
        &self,
        kind: &CollectiveKind,
        operands: &[&TensorType],
        results: &[&TensorType],
    ) -> CollectiveSizes {
        let total_bytes = kind.sized_type(operands, results).map_or(0, |ty| self.bytes(ty));
        let estimated = kind.estimated_bytes(operands, results);
        CollectiveSizes {
            moved: estimated.map_or(total_bytes, |bytes| self.upper_bound(&bytes)),
            whole: total_bytes,
        }
    }

    /// The time that a collective adds to a run; `None` if this variant may not run it.
    ///
    /// A droppable exit barrier that is not known to be kept counts as dropped if the variant is no slower
    /// than plain even with the barrier; otherwise it counts as kept. The choice therefore never loses to
    /// plain, whether or not the barrier is dropped.
    pub fn estimate_us(
        &self,
        kind: &CollectiveKind,
        group: GroupId,
        variant: CollectiveVariant,
        sizes: CollectiveSizes,
        copy_us: f64,
        conditions: CollectiveConditions,
    ) -> Option<f64> {
        if !self.fits_symmetric_limit(kind, group, variant, sizes.whole, conditions) {
            return None;
        }
        self.added_us(&[(kind, sizes.moved)], group, variant, copy_us, conditions)
    }

    /// The same estimate for collectives that run as one step, compared with plain ones one after another.
    /// Each entry is a kind with its bytes.
    pub fn estimate_joint_us(
        &self,
        collectives: &[(&CollectiveKind, u64)],
        group: GroupId,
        variant: CollectiveVariant,
        copy_us: f64,
        conditions: CollectiveConditions,
    ) -> Option<f64> {
        let fits = collectives
            .iter()
            .all(|&(kind, bytes)| self.fits_symmetric_limit(kind, group, variant, bytes, conditions));
        if !fits {
            return None;
        }
        self.added_us(collectives, group, variant, copy_us, conditions)
    }

    /// Whether a collective may have the symmetric memory that this variant asks for.
    fn fits_symmetric_limit(
        &self,
        kind: &CollectiveKind,
        group: GroupId,
        variant: CollectiveVariant,
        bytes: u64,
        conditions: CollectiveConditions,
    ) -> bool {
        let ranks = u64::from(self.ranks(group));
        variant.symmetric_bytes(kind, bytes, ranks) <= conditions.max_symmetric_bytes
    }

    fn added_us(
        &self,
        collectives: &[(&CollectiveKind, u64)],
        group: GroupId,
        variant: CollectiveVariant,
        copy_us: f64,
        conditions: CollectiveConditions,
    ) -> Option<f64> {
        let allowed = variant == CollectiveVariant::Plain
            || self.variants.as_ref().is_none_or(|v| v.contains(&variant));
        let &(first, _) = collectives.first()?;
        let contract = variant.contract(first).filter(|_| allowed)?;
        let n = self.ranks(group);
        let hidden = conditions.hidden_fraction();
        let estimate = |collectives: &[(&CollectiveKind, u64)], variant, exit| {
            self.profile.estimate_added_us(collectives, variant, exit, n, hidden)
        };
        let kept_us = estimate(collectives, variant, Some(true))?;
        let mut plain_us = 0.0;
        for &collective in collectives {
            plain_us += estimate(&[collective], CollectiveVariant::Plain, None)?;
        }
        let droppable = contract.exit_barrier == ExitBarrierPolicy::Droppable
            && !conditions.exit_kept
            && kept_us + copy_us <= plain_us;
        if !droppable {
            return Some(kept_us);
        }
        estimate(collectives, variant, Some(false)).or(Some(kept_us))
    }
}

/// Rounds an estimate, which people read and files store: nanoseconds are precise enough.
pub(super) fn round_us(us: f64) -> f64 {
    (us * 1000.0).round() / 1000.0
}
