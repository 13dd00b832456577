//! The ranges of the buckets of a program.

use std::collections::BTreeSet;

use symmc_ir::{Graph, InputId, SymbolId};
use symmc_passes::{LowerConfig, PassError};
use symmc_plan::Decision;
use symmc_support::parallel;

use crate::config::{BucketSpec, Config};
use crate::divide::{self, BucketRequest, Chooser, Ranges};
use crate::error::Error;
use crate::pipeline::{BucketChoice, Choice, lower_config};
use crate::workload::find_symbol;

/// The most buckets of a plan.
const MAX_BUCKETS: usize = 4096;

/// The most of which nobody asks: each is planned, checked and kept.
pub const MAX_UNASKED: usize = 16;

/// The ranges of each bucket of a program in canonical form: as asked for, and of symbols of which nothing is asked divided
/// where dispatches change, and where other variants become faster, as long as these are few.
pub fn buckets(
    canonical: &Graph,
    config: &Config,
    bound: &BTreeSet<InputId>,
) -> Result<Vec<BucketRequest>, Error> {
    Ok(divided_ranges(canonical, config, bound)?.into_iter().map(BucketRequest::new).collect())
}

/// As [`buckets`].
fn divided_ranges(
    canonical: &Graph,
    config: &Config,
    bound: &BTreeSet<InputId>,
) -> Result<Vec<Ranges>, Error> {
    let mut all = bucket_ranges(canonical, &config.buckets)?;
    let unasked = unasked(canonical, config);
    if unasked.is_empty() {
        return Ok(all);
    }
    let limits = symmc_dispatch::limits(canonical, &config.profile);
    for (symbol, sizes) in limits.into_iter().filter(|(symbol, _)| unasked.contains(symbol)) {
        for size in sizes {
            let divided: Vec<Ranges> = all.iter().flat_map(|of| divided(of, symbol, size)).collect();
            if divided.len() <= MAX_UNASKED {
                all = divided;
            }
        }
    }
    if config.variants.as_ref().is_some_and(Vec::is_empty) {
        return Ok(all);
    }
    let symbols =
        divide::of_collectives(canonical).into_iter().filter(|s| unasked.contains(s)).collect::<Vec<_>>();
    let chooser = AtSizes { canonical, config, bound };
    let mut out: Vec<Ranges> = Vec::new();
    for (done, of) in all.iter().enumerate() {
        let most = MAX_UNASKED.saturating_sub(out.len() + all.len() - done - 1);
        out.extend(divide::divide(of, &symbols, (canonical.nodes.len(), most), &chooser)?);
    }
    Ok(out)
}

/// The symbols of which no buckets are asked for.
pub fn unasked(canonical: &Graph, config: &Config) -> BTreeSet<SymbolId> {
    let asked = |symbol: &SymbolId| {
        config.buckets.iter().any(|b| find_symbol(canonical, &b.symbol).is_ok_and(|s| s == *symbol))
    };
    canonical.symbols.keys().filter(|symbol| !asked(symbol)).collect()
}

/// Chooses variants for single sizes.
struct AtSizes<'a> {
    canonical: &'a Graph,
    config: &'a Config,
    bound: &'a BTreeSet<InputId>,
}

impl AtSizes<'_> {
    fn lowering(&self, symbols: &Ranges) -> LowerConfig {
        let bucket = BucketChoice { number: 0, symbols, choice: &Choice::default() };
        lower_config(self.canonical, self.config, self.bound, bucket)
    }

    fn failed(&self, error: PassError) -> Error {
        Error::pass(&self.canonical.name, error)
    }
}

impl Chooser for AtSizes<'_> {
    type Error = Error;

    fn choose(&self, points: Vec<Ranges>) -> Result<Vec<Vec<Decision>>, Error> {
        let nodes = points.len() * self.canonical.nodes.len();
        let chosen = parallel::map(points, nodes, |symbols| {
            symmc_passes::lower(self.canonical, &self.lowering(&symbols)).map(|(_, decisions, _)| decisions)
        });
        chosen.into_iter().collect::<Result<_, PassError>>().map_err(|e| self.failed(e))
    }

    fn computation_us(&self, point: &Ranges) -> Result<f64, Error> {
        symmc_passes::lower::computation_us(self.canonical, &self.lowering(point)).map_err(|e| self.failed(e))
    }
}

/// The ranges up to this size of a symbol, and those beyond it.
fn divided(of: &Ranges, symbol: SymbolId, size: i64) -> Vec<Ranges> {
    let Some(&(low, high)) = of.get(&symbol).filter(|(low, high)| (low..high).contains(&&size)) else {
        return vec![of.clone()];
    };
    let with = |range| {
        let mut out = of.clone();
        out.insert(symbol, range);
        out
    };
    vec![with((low, size)), with((size + 1, high))]
}

/// The ranges of each bucket: all combinations of the divided symbols.
fn bucket_ranges(graph: &Graph, specs: &[BucketSpec]) -> Result<Vec<Ranges>, Error> {
    let full: Ranges = graph.symbols.iter().map(|(id, s)| (id, (s.min, s.max))).collect();
    let count = specs.iter().map(|s| s.upper.len()).fold(1usize, usize::saturating_mul);
    if count > MAX_BUCKETS {
        let counts: Vec<String> =
            specs.iter().map(|s| format!("{} of {}", s.upper.len(), s.symbol)).collect();
        return Err(Error::request(format!(
            "expected at most {MAX_BUCKETS} buckets, found {count}, every combination of {}: name fewer upper \
             bounds, or divide fewer symbols",
            counts.join(" and ")
        )));
    }
    let mut all = vec![full];
    let mut divided = BTreeSet::new();
    for spec in specs {
        let id = find_symbol(graph, &spec.symbol)?;
        if !divided.insert(id) {
            return Err(Error::request(format!("the buckets of {} are given twice", spec.symbol)));
        }
        let ranges = split_range(spec, graph.symbols[id].min, graph.symbols[id].max)?;
        all = all
            .into_iter()
            .flat_map(|base| {
                ranges.iter().map(move |&range| {
                    let mut next = base.clone();
                    next.insert(id, range);
                    next
                })
            })
            .collect();
    }
    Ok(all)
}

fn split_range(spec: &BucketSpec, min: i64, max: i64) -> Result<Vec<(i64, i64)>, Error> {
    let name = &spec.symbol;
    let mut low = min;
    let mut ranges = Vec::new();
    for &high in &spec.upper {
        if !(min..=max).contains(&high) {
            return Err(Error::request(format!(
                "bucket {name}={high} is out of range: expected {min} to {max}"
            )));
        }
        if high < low {
            return Err(Error::request(format!("the buckets of {name} must ascend: {:?}", spec.upper)));
        }
        ranges.push((low, high));
        low = high + 1;
    }
    if ranges.is_empty() {
        return Err(Error::request(format!("the buckets of {name} are empty")));
    }
    Ok(ranges)
}
