//! The ranges of the buckets of a program.

use std::collections::{BTreeSet, HashSet};

use indexmap::IndexMap;
use symmc_ir::{Graph, Symbol, SymbolId};
use symmc_passes::lower::{ReturnedSums, choose_row_sums};
use symmc_passes::{LowerConfig, PassError};
use symmc_plan::Decision;
use symmc_support::parallel;

use crate::divide::{self, BucketRequest, SymbolRanges, VariantChooser};
use crate::error::{DriverError, Result};
use crate::options::CompileOptions;
use crate::pipeline::{lower_config, program_of_bucket};

const MAX_BUCKETS: usize = 4096;

/// The most buckets that are made without being requested: each is planned, checked and stored.
pub const MAX_UNASKED: usize = 16;

/// The ranges of each bucket of a program in canonical form. Symbols with requested buckets are divided as
/// requested. All others are divided where dispatches change and where other variants become faster, up to
/// [`MAX_UNASKED`] buckets.
pub fn initial_buckets(canonical: &Graph, options: &CompileOptions) -> Result<Vec<BucketRequest>> {
    Ok(divided_ranges(canonical, options)?.into_iter().map(BucketRequest::new).collect())
}

fn divided_ranges(canonical: &Graph, options: &CompileOptions) -> Result<Vec<SymbolRanges>> {
    let mut all_ranges = bucket_ranges(canonical, &options.buckets)?;
    let unasked = automatic_symbols(canonical, options);
    if unasked.is_empty() {
        return Ok(all_ranges);
    }
    let limits = symmc_dispatch::unit_size_limits(canonical, &options.profile);
    for (symbol, sizes) in limits.into_iter().filter(|(symbol, _)| unasked.contains(symbol)) {
        for size in sizes {
            let divided: Vec<SymbolRanges> =
                all_ranges.iter().flat_map(|ranges| split_at_size(ranges, symbol, size)).collect();
            if divided.len() <= MAX_UNASKED {
                all_ranges = divided;
            }
        }
    }
    if options.variants.as_ref().is_some_and(Vec::is_empty) {
        return Ok(all_ranges);
    }
    let symbols =
        divide::collective_symbols(canonical).into_iter().filter(|s| unasked.contains(s)).collect::<Vec<_>>();
    let chooser = PointVariantChooser { canonical, options };
    let mut out: Vec<SymbolRanges> = Vec::new();
    for (done, ranges) in all_ranges.iter().enumerate() {
        let max_buckets = MAX_UNASKED.saturating_sub(out.len() + all_ranges.len() - done - 1);
        out.extend(divide::divide_ranges(ranges, &symbols, canonical.nodes.len(), max_buckets, &chooser)?);
    }
    Ok(out)
}

pub fn automatic_symbols(canonical: &Graph, options: &CompileOptions) -> BTreeSet<SymbolId> {
    canonical.symbols.keys().filter(|symbol| !options.buckets.contains_key(symbol)).collect()
}

/// Chooses variants for single sizes.
struct PointVariantChooser<'a> {
    canonical: &'a Graph,
    options: &'a CompileOptions,
}

impl PointVariantChooser<'_> {
    fn lower_config_at(&self, symbols: &SymbolRanges) -> LowerConfig {
        lower_config(self.canonical, self.options, symbols)
    }
}

impl VariantChooser for PointVariantChooser<'_> {
    type Error = DriverError;

    fn choose_variants(&self, points: Vec<SymbolRanges>) -> Result<Vec<Vec<Decision>>> {
        let nodes = points.len() * self.canonical.nodes.len();
        let chosen = parallel::map(points, nodes, |symbols| {
            let config = self.lower_config_at(&symbols);
            // Products stay where they are, so that all sizes have the same collectives.
            let (program, sums) = choose_row_sums(self.canonical, &config)?;
            let (_, mut decisions, _) = symmc_passes::lower(&program, &config)?;
            compare_forms(self.canonical, &sums, &mut decisions);
            Ok(decisions)
        });
        Ok(chosen.into_iter().collect::<Result<_, PassError>>()?)
    }

    fn computation_us(&self, point: &SymbolRanges) -> Result<f64> {
        let (program, _) = program_of_bucket(self.canonical, self.options, point)?;
        Ok(symmc_passes::lower::computation_us(&program, &self.lower_config_at(point))?)
    }
}

/// Gives all sizes a decision for each collective of the program, in its order, whichever form they have.
fn compare_forms(canonical: &Graph, sums: &[ReturnedSums], decisions: &mut Vec<Decision>) {
    if sums.is_empty() {
        return;
    }
    let names: HashSet<&str> = canonical.nodes.keys().map(|n| canonical.node_name(n)).collect();
    decisions.retain(|decision| names.contains(decision.collective.as_str()));
    for decision in decisions {
        if let Some(returned) = sums.iter().find(|sums| sums.collective == decision.collective) {
            returned.compare_forms(decision);
        }
    }
}

/// The ranges up to a size of a symbol, and those beyond it.
fn split_at_size(ranges: &SymbolRanges, symbol: SymbolId, size: i64) -> Vec<SymbolRanges> {
    let Some(&(low, high)) = ranges.get(&symbol).filter(|(low, high)| (low..high).contains(&&size)) else {
        return vec![ranges.clone()];
    };
    let mut lower = ranges.clone();
    lower.insert(symbol, (low, size));
    let mut upper = ranges.clone();
    upper.insert(symbol, (size + 1, high));
    vec![lower, upper]
}

/// The ranges of each bucket: all combinations of the divided symbols.
fn bucket_ranges(graph: &Graph, upper_ends: &IndexMap<SymbolId, Vec<i64>>) -> Result<Vec<SymbolRanges>> {
    let full: SymbolRanges = graph.symbols.iter().map(|(id, s)| (id, (s.min, s.max))).collect();
    let count = upper_ends.values().map(Vec::len).fold(1usize, usize::saturating_mul);
    if count > MAX_BUCKETS {
        let counts: Vec<String> = upper_ends
            .iter()
            .map(|(&id, upper)| format!("{} of {}", upper.len(), graph.symbols[id].name))
            .collect();
        return Err(DriverError::Option(format!(
            "expected at most {MAX_BUCKETS} buckets, found {count}, every combination of {}: name fewer upper \
             bounds, or divide fewer symbols",
            counts.join(" and ")
        )));
    }
    let mut all_ranges = vec![full];
    for (&id, upper) in upper_ends {
        let ranges = split_range(&graph.symbols[id], upper)?;
        let divided = all_ranges.into_iter().flat_map(|base| {
            ranges.iter().map(move |&range| {
                let mut next = base.clone();
                next.insert(id, range);
                next
            })
        });
        all_ranges = divided.collect();
    }
    Ok(all_ranges)
}

fn split_range(symbol: &Symbol, upper: &[i64]) -> Result<Vec<(i64, i64)>> {
    let Symbol { name, min, max, .. } = symbol;
    let mut low = *min;
    let mut ranges = Vec::new();
    for &high in upper {
        if !(*min..=*max).contains(&high) {
            let message =
                format!("bucket bound {high} of symbol {name} is out of range: expected {min} to {max}");
            return Err(DriverError::Option(message));
        }
        if high < low {
            return Err(DriverError::Option(format!(
                "the bucket bounds of symbol {name} must ascend, found {upper:?}"
            )));
        }
        ranges.push((low, high));
        low = high + 1;
    }
    if ranges.is_empty() {
        return Err(DriverError::Option(format!(
            "symbol {name} needs at least one bucket bound, found none"
        )));
    }
    Ok(ranges)
}
