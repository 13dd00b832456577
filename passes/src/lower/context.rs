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
                names.clone().filter_map(|name| us.get(name)).fold(0.0, |most, &us| us.max(most))
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
    pub sizes: EntityMap<GroupId, u32>,
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
        self.sizes.get(group).copied().unwrap_or(1)
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

    /// The bytes for which the time of a collective is estimated (see [`symmc_ir::machine`]).
    pub fn collective_bytes(&self, kind: &CollectiveKind, operand: &TensorType, result: &TensorType) -> u64 {
        self.bytes(if kind.facts().is_sized_by_result() { result } else { operand })
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
        bytes: u64,
        copy_us: f64,
        surroundings: RegionSurroundings,
    ) -> Option<f64> {
        self.estimate_joint_us(&[(kind, bytes)], group, variant, copy_us, surroundings)
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
        let allowed = variant == CollectiveVariant::Plain
            || self.variants.as_ref().is_none_or(|v| v.contains(&variant));
        let &(first, _) = collectives.first()?;
        let contract = variant.contract(first).filter(|_| allowed)?;
        let n = self.ranks(group);
        for &(kind, bytes) in collectives {
            if self.symmetric.is_some_and(|most| variant.symmetric_bytes(kind, bytes, u64::from(n)) > most) {
                return None;
            }
        }
        let RegionSurroundings { concurrent_us, exit_kept } = surroundings;
        let profile = &self.profile;
        let kept =
            profile.estimate_added_us_of_collectives(collectives, variant, Some(true), n, concurrent_us)?;
        let mut plain = 0.0;
        for &(kind, bytes) in collectives {
            plain +=
                profile.estimate_added_us(kind, CollectiveVariant::Plain, None, bytes, n, concurrent_us)?;
        }
        let droppable =
            contract.exit_barrier == ExitBarrierPolicy::Droppable && !exit_kept && kept + copy_us <= plain;
        if !droppable {
            return Some(kept);
        }
        let dropped =
            profile.estimate_added_us_of_collectives(collectives, variant, Some(false), n, concurrent_us);
        dropped.or(Some(kept))
    }
}

/// Rounds an estimate, which people read and files store: nanoseconds are precise enough.
pub(super) fn round_us(us: f64) -> f64 {
    (us * 1000.0).round() / 1000.0
}
