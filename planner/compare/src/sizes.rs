//! Selects the sizes at which a region is compared: both ends of each bucket, and sizes next to those at which
//! a condition changes.
//!
//! A condition changes with a `min`, `max`, quotient or remainder of sizes. It also changes if an extent
//! reaches a number with which positions are compared: a window, a chunk, an offset. The search varies one
//! symbol at a time, with small values of the others. Its limits are part of the result
//! ([`ChosenSizes::left_out`]). Sizes that the bounds checks of the source reject are not chosen, because no
//! run has them.

use std::collections::{BTreeSet, HashSet};

use symmc_ir::dim::DimBreakpoint;
use symmc_ir::text::forms::op_dims;
use symmc_ir::{Dim, Op, SymbolTable};
use symmc_plan::Bucket;

use crate::concrete::bindings;
use crate::number::NumberedProgram;
use crate::region::ComparedRegion;

/// The value of each symbol of a bucket.
pub type NamedSizes = Vec<(String, i64)>;

const MAX_COMPARED_SIZES: usize = 64;
/// The largest number of conditions of a region for which sizes are searched.
const MAX_CONDITIONS: usize = 4096;

/// The dims of a pair of regions, and the numbers with which positions may be compared.
#[derive(Default)]
pub struct SizeConditions {
    dims: Vec<Dim>,
    known: HashSet<Dim>,
    numbers: BTreeSet<i64>,
    /// Whether results depend on the numbers of positions.
    positions: bool,
}

#[derive(Debug)]
pub struct ChosenSizes {
    /// The selected sizes, starting with both ends.
    pub sizes: Vec<NamedSizes>,
    /// The index of the sizes that represent the upper end.
    pub upper: Option<usize>,
    /// Whether these are below the upper end of the bucket, because the bounds checks of the source reject
    /// that.
    pub is_bounded: bool,
    /// The number of sizes and conditions that were left out.
    pub left_out: u64,
}

impl SizeConditions {
    pub fn add(&mut self, program: &NumberedProgram<'_>, region: &ComparedRegion) {
        for &leaf in &region.leaves {
            if let Some(elements) = &program.elements[leaf] {
                self.dims([&elements.offset].into_iter().chain(&elements.strides).chain(&elements.shape));
            }
        }
        for &n in &region.nodes {
            let node = &program.graph.nodes[n];
            for dim in op_dims(&node.op) {
                let dim = program.map_dim(dim);
                self.dims([&dim]);
                self.numbers.extend(dim.as_const());
            }
            node.outputs.iter().for_each(|&v| self.dims(&program.types[v].shape));
            self.op(&node.op);
        }
    }

    fn op(&mut self, op: &Op) {
        match op {
            Op::Permuted { op, .. } => self.op(op),
            Op::Iota { start, step } => {
                self.add_number(*start as f64);
                self.add_number(*step as f64);
                self.positions = true;
            }
            Op::BinaryScalar { scalar, .. } | Op::Full(scalar) => self.add_number(scalar.as_f64()),
            Op::Attention { bounds, .. } | Op::AttentionGradient { bounds, .. } => {
                bounds.iter().filter_map(|b| b.chunk).for_each(|c| self.add_number(c as f64));
                self.positions |= !bounds.is_empty();
            }
            Op::CumSum { .. } => self.positions = true,
            _ => {}
        }
    }

    fn add_number(&mut self, number: f64) {
        if number.abs() < 1e12 {
            self.numbers.insert(number as i64);
        }
    }

    fn dims<'d>(&mut self, dims: impl IntoIterator<Item = &'d Dim>) {
        for dim in dims {
            if dim.as_const().is_none() && self.known.insert(dim.clone()) {
                self.dims.push(dim.clone());
            }
        }
    }

    /// The numbers with which positions may be compared, and at which a condition may change.
    pub fn compared_numbers(&self) -> impl Iterator<Item = i64> + '_ {
        self.numbers.iter().copied().filter(|_| self.positions)
    }

    pub fn choose_sizes(
        &self,
        symbols: &SymbolTable,
        bucket: &Bucket,
        is_valid: &dyn Fn(&NamedSizes) -> bool,
    ) -> ChosenSizes {
        let used: BTreeSet<&str> = self
            .dims
            .iter()
            .flat_map(Dim::symbols)
            .filter_map(|s| Some(symbols.get(s)?.name.as_str()))
            .collect();
        let mut ends = Self::bucket_boundaries(&used, bucket, false);
        if !ends.iter().any(is_valid) {
            // Other symbols may decide whether sizes are valid.
            ends = Self::bucket_boundaries(&used, bucket, true);
        }
        let [low, near, high] = ends;
        let mut search = ConditionSearch { symbols, left: MAX_CONDITIONS, left_out: 0 };
        let mut starts = vec![low.clone(), near.clone(), high.clone()];
        if !starts.iter().any(is_valid) {
            starts.extend(corners(&low, &high));
        }
        let lower = last_valid_sizes(&starts, &low, is_valid);
        let upper = last_valid_sizes(&starts, &high, is_valid);
        let base =
            [&near].into_iter().chain(&lower).chain(&upper).find(|s| is_valid(s)).unwrap_or(&near).clone();
        let mut out: Vec<NamedSizes> = lower.into_iter().collect();
        out.push(near);
        out.extend(upper.clone());
        for (name, &range) in bucket.symbols.iter().filter(|(name, _)| used.contains(name.as_str())) {
            // The upper end of each symbol alone, then where conditions change.
            let mut values = vec![range[1]];
            for turning_point in self.find_turning_points(&mut search, &base, name, range) {
                // A window counts from the position itself, so a condition may change one after its end.
                values.extend((-1..=2).map(|by| turning_point.saturating_add(by)));
            }
            for value in values.into_iter().filter(|v| (range[0]..=range[1]).contains(v)) {
                let sizes = base.iter().map(|(n, v)| (n.clone(), if n == name { value } else { *v }));
                out.push(sizes.collect());
            }
        }
        let mut distinct = BTreeSet::new();
        out.retain(|sizes| distinct.insert(sizes.clone()) && is_valid(sizes));
        let cut = out.len().saturating_sub(MAX_COMPARED_SIZES);
        out.truncate(MAX_COMPARED_SIZES);
        ChosenSizes {
            upper: upper.as_ref().and_then(|upper| out.iter().position(|s| s == upper)),
            is_bounded: upper.is_some_and(|upper| upper != high),
            left_out: search.left_out + cut as u64,
            sizes: out,
        }
    }

    /// The lower end of a bucket, sizes near it, and the upper end, for the symbols in `used` or for all.
    fn bucket_boundaries(used: &BTreeSet<&str>, bucket: &Bucket, all_symbols: bool) -> [NamedSizes; 3] {
        let choose = |choose_value: &dyn Fn(usize, [i64; 2]) -> i64| -> NamedSizes {
            let sizes = bucket.symbols.iter().enumerate().map(|(i, (name, range))| {
                let moves = all_symbols || used.contains(name.as_str());
                let value = if moves { choose_value(i, *range) } else { range[0] };
                (name.clone(), value.clamp(range[0], range[1].max(range[0])))
            });
            sizes.collect()
        };
        let near = choose(&|i, [low, _]| low.saturating_add(i as i64 % 4 + 1));
        [choose(&|_, [low, _]| low), near, choose(&|_, [_, high]| high)]
    }

    /// The values of one symbol at which a condition changes, with the other symbols as in `sizes`.
    fn find_turning_points(
        &self,
        search: &mut ConditionSearch<'_>,
        sizes: &NamedSizes,
        name: &str,
        range: [i64; 2],
    ) -> BTreeSet<i64> {
        let symbols = search.symbols;
        let mut bound = bindings(symbols, sizes);
        let Some(id) = symbols.iter().find(|(_, s)| s.name == name).map(|(id, _)| id) else {
            return BTreeSet::new();
        };
        let mut eval = |dim: &Dim, value: i64| {
            bound.set(id, value);
            dim.eval(&bound)
        };
        let mut out = BTreeSet::new();
        for dim in self.dims.iter().filter(|d| d.symbols().contains(&id)) {
            for switch in dim.breakpoints() {
                if !search.try_examine() {
                    continue;
                }
                match switch {
                    DimBreakpoint::Sign(d) => out.extend(find_sign_change(&mut |v| eval(&d, v), range)),
                    DimBreakpoint::Multiple(a, b) => {
                        let Some(k) = eval(&b, range[0]).filter(|k| *k > 1) else { continue };
                        // The first and the last multiple within the range, and the divisor itself.
                        let ends = range.map(|v| eval(&a, v).map(|a| a.div_euclid(k)));
                        let first = ends[0].and_then(|q| q.checked_add(1));
                        for q in [first, ends[1], Some(1)].into_iter().flatten() {
                            out.extend(find_sign_change(
                                &mut |v| eval(&a, v)?.checked_sub(q.checked_mul(k)?),
                                range,
                            ));
                        }
                    }
                }
            }
            if self.positions {
                for number in self.numbers.iter().filter_map(|n| n.checked_abs()) {
                    if search.try_examine() {
                        out.extend(find_sign_change(&mut |v| eval(dim, v)?.checked_sub(number), range));
                    }
                }
            }
        }
        out
    }
}

struct ConditionSearch<'a> {
    symbols: &'a SymbolTable,
    left: usize,
    left_out: u64,
}

impl ConditionSearch<'_> {
    /// Whether one more condition may be examined.
    fn try_examine(&mut self) -> bool {
        let may = self.left > 0;
        self.left -= usize::from(may);
        self.left_out += u64::from(!may);
        may
    }
}

/// Sizes with one symbol at its upper end and the others at their lower ends, or the other way round.
fn corners<'a>(low: &'a NamedSizes, high: &'a NamedSizes) -> impl Iterator<Item = NamedSizes> + 'a {
    (0..low.len()).flat_map(move |k| [replace_size(low, k, high), replace_size(high, k, low)])
}

/// The sizes with that of one symbol taken from other sizes.
fn replace_size(sizes: &NamedSizes, symbol: usize, others: &NamedSizes) -> NamedSizes {
    let mut replaced = sizes.clone();
    replaced[symbol] = others[symbol].clone();
    replaced
}

/// An end of a bucket, or the last valid sizes that are found between valid sizes and that end.
fn last_valid_sizes(
    from: &[NamedSizes],
    end: &NamedSizes,
    is_valid: &dyn Fn(&NamedSizes) -> bool,
) -> Option<NamedSizes> {
    if is_valid(end) {
        return Some(end.clone());
    }
    let start = from.iter().find(|s| is_valid(s))?;
    let mut valid = 0;
    let mut invalid = SEARCH_STEPS;
    while invalid - valid > 1 {
        let middle = valid + (invalid - valid) / 2;
        if is_valid(&sizes_between(start, end, middle)) { valid = middle } else { invalid = middle }
    }
    Some(sizes_between(start, end, valid))
}

/// The steps from the start to the end of the search of [`last_valid_sizes`].
const SEARCH_STEPS: i128 = 1 << 40;

fn sizes_between(start: &NamedSizes, end: &NamedSizes, step: i128) -> NamedSizes {
    let sizes = start.iter().zip(end).map(|((name, from), (_, to))| {
        let distance = (i128::from(*to) - i128::from(*from)) * step / SEARCH_STEPS;
        (name.clone(), i64::try_from(i128::from(*from) + distance).unwrap_or(*from))
    });
    sizes.collect()
}

/// The first value at which a monotonic function has changed its sign.
fn find_sign_change(f: &mut dyn FnMut(i64) -> Option<i64>, [low, high]: [i64; 2]) -> Option<i64> {
    let mut side = |v: i64| f(v).map(|x| x >= 0);
    let first = side(low)?;
    if side(high)? == first {
        return None;
    }
    let mut from = low;
    let mut end = high;
    while end - from > 1 {
        let middle = from + (end - from) / 2;
        if side(middle)? == first { from = middle } else { end = middle }
    }
    Some(end)
}
