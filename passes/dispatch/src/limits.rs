//! Where the units of a program change with its sizes.
//!
//! A unit is one kernel at all sizes. Where a machine has the kernel for some of them only, a program for these and one for
//! the others are better than one without it.

use std::collections::{BTreeMap, BTreeSet};

use symmc_ir::dim::{Bindings, SymbolId};
use symmc_ir::layout::layouts;
use symmc_ir::machine::Profile;
use symmc_ir::{Dim, Graph};

use crate::facts::Facts;
use crate::{product, reduction};

/// An amount that grows with the sizes, and whether a kernel takes so much: from some amount on, or up to one.
pub struct Limit<'a> {
    pub amount: Dim,
    pub takes: Box<dyn Fn(u64) -> bool + 'a>,
}

/// The largest sizes before units change, of each symbol: the sizes up to each of them, and those beyond, may have other units.
pub fn limits(graph: &Graph, profile: &Profile) -> BTreeMap<SymbolId, BTreeSet<i64>> {
    let mut out: BTreeMap<SymbolId, BTreeSet<i64>> = BTreeMap::new();
    if profile.dispatches.is_none() {
        return out;
    }
    let base = layouts(graph).values().map(|layout| layout.base).collect();
    let facts = Facts::new(graph, &base, profile);
    for limit in product::limits(&facts).into_iter().chain(reduction::limits(&facts)) {
        if let Some((symbol, size)) = last(graph, &limit) {
            out.entry(symbol).or_default().insert(size);
        }
    }
    out
}

/// The last size of a symbol at which a kernel takes the amount as it does at the first, if it does not at all sizes. The
/// amount has to be by one symbol.
fn last(graph: &Graph, limit: &Limit<'_>) -> Option<(SymbolId, i64)> {
    let &[symbol] = &limit.amount.symbols()[..] else { return None };
    let takes = |size: i64| {
        let mut sizes = Bindings::new();
        sizes.set(symbol, size);
        limit.amount.eval(&sizes).map(|n| (limit.takes)(u64::try_from(n).unwrap_or(0)))
    };
    let range = graph.symbols.get(symbol)?;
    let (mut low, mut high) = (range.min, range.max);
    let first = takes(low)?;
    if takes(high)? == first {
        return None;
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if takes(middle)? == first { low = middle } else { high = middle }
    }
    Some((symbol, low))
}
