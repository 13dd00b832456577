//! Sizes at which the units of a program change.
//!
//! A unit is one step at all sizes. If a machine can run it as one step only at small sizes, one program for
//! these and one for the others are better than one program without the unit.

use std::collections::{BTreeMap, BTreeSet};

use symmc_ir::machine::MachineProfile;
use symmc_ir::{Dim, Graph, SymbolBindings, SymbolId};

use crate::facts::{DispatchFacts, base_values};
use crate::{batch, product};

/// For each symbol, the largest sizes up to which there may be units that do not exist beyond.
pub fn unit_size_limits(graph: &Graph, profile: &MachineProfile) -> BTreeMap<SymbolId, BTreeSet<i64>> {
    let mut out: BTreeMap<SymbolId, BTreeSet<i64>> = BTreeMap::new();
    if profile.dispatches.is_none() {
        return out;
    }
    let base = base_values(graph);
    let facts = DispatchFacts::new(graph, &base, profile);
    for (amount, limit) in
        product::product_row_limits(&facts).into_iter().chain(batch::batch_row_limits(&facts))
    {
        if let Some((symbol, size)) = last_size_within(graph, &amount, limit) {
            out.entry(symbol).or_default().insert(size);
        }
    }
    out
}

/// The symbol on which alone an increasing amount depends, and its largest size at which the amount is at
/// most `most`. `None` if no size or every size qualifies.
fn last_size_within(graph: &Graph, amount: &Dim, most: u64) -> Option<(SymbolId, i64)> {
    let &[symbol] = &amount.symbols()[..] else { return None };
    let fits = |size: i64| {
        let mut sizes = SymbolBindings::new();
        sizes.set(symbol, size);
        amount.eval(&sizes).map(|n| u64::try_from(n).unwrap_or(0) <= most)
    };
    let range = graph.symbols.get(symbol)?;
    let mut low = range.min;
    let mut high = range.max;
    if !fits(low)? || fits(high)? {
        return None;
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle)? { low = middle } else { high = middle }
    }
    Some((symbol, low))
}
