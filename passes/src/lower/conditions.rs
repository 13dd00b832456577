//! Conditions under which the variants of collectives are chosen: what is known about their schedule, and the
//! forms that are permitted.

use std::collections::BTreeMap;

use symmc_ir::CollectiveVariant;

/// The conditions of a collective.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CollectiveConditions {
    /// The eighths of its time in which computation runs concurrently, at most 8.
    pub hidden_eighths: u8,
    /// Whether the plan keeps its droppable exit barrier. Other collectives count as having dropped theirs if
    /// that cannot lose to plain.
    pub exit_kept: bool,
    /// The variants that may run it. A collective that none of them can run takes any variant.
    pub variants: VariantSet,
    /// Whether rules may replace it by other collectives.
    pub rewriting: bool,
    /// The most bytes of symmetric memory that it may ask for ([`CollectiveVariant::symmetric_bytes`]).
    pub max_symmetric_bytes: u64,
}

impl Default for CollectiveConditions {
    fn default() -> Self {
        CollectiveConditions {
            hidden_eighths: 0,
            exit_kept: false,
            variants: VariantSet::ALL,
            rewriting: true,
            max_symmetric_bytes: u64::MAX,
        }
    }
}

impl CollectiveConditions {
    /// The fraction of its time in which computation runs concurrently.
    pub fn hidden_fraction(self) -> f64 {
        f64::from(self.hidden_eighths.min(8)) / 8.0
    }

    /// The conditions of collectives that are decided together.
    fn joined(self, other: CollectiveConditions) -> CollectiveConditions {
        CollectiveConditions {
            hidden_eighths: self.hidden_eighths.max(other.hidden_eighths),
            exit_kept: self.exit_kept || other.exit_kept,
            variants: VariantSet(self.variants.0 & other.variants.0),
            rewriting: self.rewriting && other.rewriting,
            max_symmetric_bytes: self.max_symmetric_bytes.min(other.max_symmetric_bytes),
        }
    }
}

/// The conditions of the collectives of a program.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct LowerConditions {
    /// The conditions of the collectives that `by_name` does not have.
    pub default: CollectiveConditions,
    /// The conditions of single collectives, by the names of their results.
    pub by_name: BTreeMap<String, CollectiveConditions>,
}

impl LowerConditions {
    /// These conditions for all collectives.
    pub fn uniform(default: CollectiveConditions) -> LowerConditions {
        LowerConditions { default, by_name: BTreeMap::new() }
    }

    /// The conditions of collectives that are decided together.
    pub fn of<'n>(&self, names: impl Iterator<Item = &'n str>) -> CollectiveConditions {
        let conditions = names.map(|name| self.by_name.get(name).copied().unwrap_or(self.default));
        conditions.reduce(CollectiveConditions::joined).unwrap_or(self.default)
    }

    /// Changes all conditions.
    pub fn change_all(&mut self, change: impl Fn(&mut CollectiveConditions)) {
        change(&mut self.default);
        self.by_name.values_mut().for_each(change);
    }

    /// The conditions of one collective, to be changed.
    pub fn entry(&mut self, name: &str) -> &mut CollectiveConditions {
        self.by_name.entry(name.to_string()).or_insert(self.default)
    }
}

/// A set of variants, as bits in the order of [`CollectiveVariant::ALL`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct VariantSet(u32);

impl VariantSet {
    pub const ALL: VariantSet = VariantSet(u32::MAX);

    pub fn contains(self, variant: CollectiveVariant) -> bool {
        self.0 & (1 << variant as u32) != 0
    }

    /// The variants of the set, in the order of [`CollectiveVariant::ALL`].
    pub fn iter(self) -> impl Iterator<Item = CollectiveVariant> {
        CollectiveVariant::ALL.iter().copied().filter(move |&variant| self.contains(variant))
    }
}

impl FromIterator<CollectiveVariant> for VariantSet {
    fn from_iter<I: IntoIterator<Item = CollectiveVariant>>(variants: I) -> VariantSet {
        VariantSet(variants.into_iter().fold(0, |bits, variant| bits | 1 << variant as u32))
    }
}
