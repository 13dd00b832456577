//! Inputs of a lowering besides the program.
//!
//! [`LowerContext`] holds all inputs on which the solution of every region depends: the profile, the ranges
//! of the bucket, the permitted variants and rules. Two lowerings with equal contexts share solutions
//! ([`super::solutions`]), so an input on which a solution depends belongs there or in the
//! [`RegionKey`](super::region::RegionKey) of a region. [`AssumedSchedule`] holds facts about a schedule,
//! from which the keys of regions are derived.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use symmc_ir::machine::{MachineProfile, OperationCounts};
use symmc_ir::{
    CollectiveKind, CollectiveVariant, Dim, EntityMap, ExitBarrierPolicy, GroupId, Numerics, SymbolTable,
    TensorType,
};

/// The size at which the e-graph of a region stops growing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EGraphLimits {
    pub nodes: usize,
    pub iterations: usize,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub enum Overlap {
    /// All computation that is independent of a collective, as if a schedule could run all of it
    /// concurrently.
    #[default]
    Possible,
    /// The computation that a schedule runs concurrently: microseconds by the name of the collective, 0 for
    /// those that are missing.
    Scheduled(HashMap<String, f64>),
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

/// Facts about a schedule around the collectives of a region.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct RegionSurroundings {
    /// Microseconds of computation that can run concurrently with them.
    pub concurrent_us: f64,
    /// Whether droppable exit barriers are known to be kept.
    pub exit_kept: bool,
}

#[derive(Clone, Default)]
pub struct AssumedSchedule {
    pub overlap: Overlap,
    /// The names of the collectives whose droppable exit barriers the plan keeps.
    pub exits_kept: BTreeSet<String>,
}

impl AssumedSchedule {
    /// The computation concurrent with a step of these collectives, and whether the exit barrier of one of
    /// them is kept.
    pub fn surroundings_of<'n>(&self, names: impl Iterator<Item = &'n str> + Clone) -> RegionSurroundings {
        let concurrent_us = match &self.overlap {
            Overlap::Possible => 0.0,
            Overlap::Scheduled(us) => {
                names.clone().filter_map(|name| us.get(name)).fold(0.0, |max, &us| us.max(max))
            }
        };
        RegionSurroundings {
            concurrent_us,
            exit_kept: names.into_iter().any(|name| self.exits_kept.contains(name)),
        }
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
    /// The most bytes of symmetric memory that one collective may ask for.
    pub symmetric: Option<u64>,
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
        surroundings: RegionSurroundings,
    ) -> Option<f64> {
        if !self.fits_symmetric_limit(kind, group, variant, sizes.whole) {
            return None;
        }
        self.added_us(&[(kind, sizes.moved)], group, variant, copy_us, surroundings)
    }

    /// The same estimate for collectives that run as one step, compared with plain ones one after another.
    /// Each entry is a kind with its bytes.
    pub fn estimate_joint_us(
        &self,
        collectives: &[(&CollectiveKind, u64)],
        group: GroupId,
        variant: CollectiveVariant,
        copy_us: f64,
        surroundings: RegionSurroundings,
    ) -> Option<f64> {
        let fits =
            collectives.iter().all(|&(kind, bytes)| self.fits_symmetric_limit(kind, group, variant, bytes));
        if !fits {
            return None;
        }
        self.added_us(collectives, group, variant, copy_us, surroundings)
    }

    /// Whether a collective may have the symmetric memory that this variant asks for.
    fn fits_symmetric_limit(
        &self,
        kind: &CollectiveKind,
        group: GroupId,
        variant: CollectiveVariant,
        bytes: u64,
    ) -> bool {
        let ranks = u64::from(self.ranks(group));
        self.symmetric.is_none_or(|limit| variant.symmetric_bytes(kind, bytes, ranks) <= limit)
    }

    fn added_us(
        &self,
        collectives: &[(&CollectiveKind, u64)],
        group: GroupId,
        variant: CollectiveVariant,
        copy_us: f64,
        surroundings: RegionSurroundings,
    ) -> Option<f64> {
        let allowed = variant == CollectiveVariant::Plain
            || self.variants.as_ref().is_none_or(|v| v.contains(&variant));
        let &(first, _) = collectives.first()?;
        let contract = variant.contract(first).filter(|_| allowed)?;
        let n = self.ranks(group);
        let RegionSurroundings { concurrent_us, exit_kept } = surroundings;
        let profile = &self.profile;
        let kept_us =
            profile.estimate_added_us_of_collectives(collectives, variant, Some(true), n, concurrent_us)?;
        let mut plain = 0.0;
        for &(kind, bytes) in collectives {
            plain +=
                profile.estimate_added_us(kind, CollectiveVariant::Plain, None, bytes, n, concurrent_us)?;
        }
        let droppable =
            contract.exit_barrier == ExitBarrierPolicy::Droppable && !exit_kept && kept_us + copy_us <= plain;
        if !droppable {
            return Some(kept_us);
        }
        let dropped =
            profile.estimate_added_us_of_collectives(collectives, variant, Some(false), n, concurrent_us);
        dropped.or(Some(kept_us))
    }
}

/// Rounds an estimate, which people read and files store: nanoseconds are precise enough.
pub(super) fn round_us(us: f64) -> f64 {
    (us * 1000.0).round() / 1000.0
}
