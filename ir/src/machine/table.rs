//! The curves of a profile, with an index.
//!
//! Planning asks for curves more often than for anything else in a profile. The index is derived from the
//! curves whenever they change, so a lookup does not depend on the number of curves. Profiles are cloned for
//! each lowering, so clones share the curves.

use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::curve::CollectiveCurve;
use crate::collective::{CollectiveName, CollectiveVariant, ExitBarrier};

/// The curves of a profile, in the order of its file. Read them as a slice, and change them by
/// [`edit`](Self::edit).
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(from = "Vec<CollectiveCurve>", into = "Vec<CollectiveCurve>")]
pub struct CurveTable(Arc<IndexedCurves>);

#[derive(Clone, Debug, Default)]
struct IndexedCurves {
    curves: Vec<CollectiveCurve>,
    /// For each [use](use_number), the end of its part of `by_ranks`. Each part begins where the part before it
    /// ends.
    ends: Vec<usize>,
    /// The curves by use, in ascending order of ranks, as positions in `curves`.
    by_ranks: Vec<(u32, usize)>,
}

const EXITS: [ExitBarrier; 2] = [ExitBarrier::Kept, ExitBarrier::Dropped];
const USES: usize = CollectiveName::ALL.len() * CollectiveVariant::ALL.len() * EXITS.len();

/// A number below [`USES`] for what an estimate asks for.
fn use_number(collective: CollectiveName, variant: CollectiveVariant, exit: ExitBarrier) -> usize {
    let pair = collective as usize * CollectiveVariant::ALL.len() + variant as usize;
    pair * EXITS.len() + exit as usize
}

impl CurveTable {
    /// The curve for this number of ranks, or for the nearest number (the smaller of two equally near). Curves
    /// without a state of the exit barrier serve both.
    pub(super) fn nearest(
        &self,
        collective: CollectiveName,
        variant: CollectiveVariant,
        exit: ExitBarrier,
        ranks: u32,
    ) -> Option<&CollectiveCurve> {
        let IndexedCurves { curves, ends, by_ranks } = &*self.0;
        let number = use_number(collective, variant, exit);
        let start = number.checked_sub(1).map_or(Some(&0), |before| ends.get(before))?;
        let candidates = by_ranks.get(*start..*ends.get(number)?)?;
        let &(_, position) = candidates.iter().min_by_key(|(curve_ranks, _)| curve_ranks.abs_diff(ranks))?;
        curves.get(position)
    }

    /// Changes the curves, and derives the index again.
    pub fn edit(&mut self, change: impl FnOnce(&mut Vec<CollectiveCurve>)) {
        let mut curves = std::mem::take(self).into_vec();
        change(&mut curves);
        *self = curves.into();
    }

    fn into_vec(self) -> Vec<CollectiveCurve> {
        Arc::unwrap_or_clone(self.0).curves
    }
}

impl From<Vec<CollectiveCurve>> for CurveTable {
    fn from(curves: Vec<CollectiveCurve>) -> CurveTable {
        let mut uses: Vec<Vec<(u32, usize)>> = vec![Vec::new(); USES];
        for (position, curve) in curves.iter().enumerate() {
            for exit in EXITS.into_iter().filter(|&exit| curve.exit.is_none_or(|own| own == exit)) {
                uses[use_number(curve.collective, curve.variant, exit)].push((curve.ranks, position));
            }
        }
        let mut ends = Vec::with_capacity(USES);
        let mut by_ranks = Vec::with_capacity(curves.len() * EXITS.len());
        for mut of_use in uses {
            of_use.sort_unstable();
            by_ranks.append(&mut of_use);
            ends.push(by_ranks.len());
        }
        CurveTable(Arc::new(IndexedCurves { curves, ends, by_ranks }))
    }
}

impl From<CurveTable> for Vec<CollectiveCurve> {
    fn from(table: CurveTable) -> Vec<CollectiveCurve> {
        table.into_vec()
    }
}

impl FromIterator<CollectiveCurve> for CurveTable {
    fn from_iter<I: IntoIterator<Item = CollectiveCurve>>(curves: I) -> CurveTable {
        curves.into_iter().collect::<Vec<_>>().into()
    }
}

impl Deref for CurveTable {
    type Target = [CollectiveCurve];

    fn deref(&self) -> &[CollectiveCurve] {
        &self.0.curves
    }
}

impl PartialEq for CurveTable {
    fn eq(&self, other: &CurveTable) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.curves == other.0.curves
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::MachineProfile;

    /// The nearest curve by its definition.
    fn nearest_by_scan(
        curves: &[CollectiveCurve],
        collective: CollectiveName,
        variant: CollectiveVariant,
        exit: ExitBarrier,
        ranks: u32,
    ) -> Option<&CollectiveCurve> {
        curves
            .iter()
            .filter(|c| c.collective == collective && c.variant == variant)
            .filter(|c| c.exit.is_none_or(|own| own == exit))
            .min_by_key(|c| (c.ranks.abs_diff(ranks), c.ranks))
    }

    fn assert_index_agrees_with_scan(table: &CurveTable) {
        for &collective in CollectiveName::ALL {
            for &variant in CollectiveVariant::ALL {
                for exit in EXITS {
                    for ranks in [1, 2, 3, 4, 5, 6, 7, 8, 64, u32::MAX] {
                        let found = table.nearest(collective, variant, exit, ranks);
                        let expected = nearest_by_scan(table, collective, variant, exit, ranks);
                        assert_eq!(found, expected, "{collective} {variant} {exit:?} {ranks}");
                    }
                }
            }
        }
    }

    #[test]
    fn index_finds_what_a_scan_finds_after_edits() {
        for name in MachineProfile::builtin_names() {
            let mut table = MachineProfile::builtin(name).expect("built in").curves;
            assert_index_agrees_with_scan(&table);
            table.edit(|curves| curves.reverse());
            assert_index_agrees_with_scan(&table);
            table.edit(|curves| curves.iter_mut().step_by(3).for_each(|c| c.ranks += 3));
            table.edit(|curves| curves.iter_mut().step_by(4).for_each(|c| c.exit = None));
            assert_index_agrees_with_scan(&table);
            let clone = table.clone();
            table.edit(|curves| curves.retain(|c| c.variant != CollectiveVariant::Plain));
            assert_index_agrees_with_scan(&table);
            assert!(clone != table && clone.len() > table.len());
            table.edit(Vec::clear);
            assert_index_agrees_with_scan(&table);
        }
        assert_index_agrees_with_scan(&CurveTable::default());
    }
}
