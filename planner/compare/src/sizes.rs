//! The sizes at which a region is compared: both ends of each bucket, and sizes next to those where a condition changes.
//!
//! Conditions change where a `min`, `max`, quotient or remainder of sizes does, and where an extent reaches a number that
//! positions are compared with: a window, a chunk, an offset. The search varies one symbol at a time, with small values of the
//! others, and is limited in dims, numbers and sizes.

use std::collections::BTreeSet;

use symmc_ir::dim::Switch;
use symmc_ir::text::forms::op_dims;
use symmc_ir::{Dim, Op, Symbol, SymbolId, Table};
use symmc_plan::Bucket;

use crate::concrete::bindings;
use crate::number::Numbered;
use crate::region::Region;

/// The value of each symbol of a bucket.
pub type Sizes = Vec<(String, i64)>;

/// The most sizes of a bucket at which a region is compared.
const MOST_SIZES: usize = 40;
/// The most dims and numbers of a region that are considered.
const MOST_DIMS: usize = 64;
const MOST_NUMBERS: usize = 24;

/// The dims of a pair of regions, and the numbers that positions may be compared with.
#[derive(Default)]
pub struct Conditions {
    dims: Vec<Dim>,
    numbers: BTreeSet<i64>,
    /// Whether positions count.
    positions: bool,
}

impl Conditions {
    /// Adds those of a region.
    pub fn add(&mut self, program: &Numbered<'_>, region: &Region) {
        for &leaf in &region.leaves {
            if let Some(elements) = &program.elements[leaf] {
                self.dims([&elements.offset].into_iter().chain(&elements.strides).chain(&elements.shape));
            }
        }
        for &n in &region.nodes {
            let node = &program.graph.nodes[n];
            for dim in op_dims(&node.op) {
                let dim = program.dim(dim);
                self.dims([&dim]);
                self.numbers.extend(dim.as_const());
            }
            node.outputs.iter().for_each(|&v| self.dims(&program.types[v].shape));
            self.op(&node.op);
        }
    }

    fn op(&mut self, op: &Op) {
        let mut number = |x: f64| {
            if x.abs() < 1e12 {
                self.numbers.insert(x as i64);
            }
        };
        match op {
            Op::Permuted { op, .. } => self.op(op),
            Op::Iota { start, step } => {
                number(*start as f64);
                number(*step as f64);
                self.positions = true;
            }
            Op::BinaryScalar { scalar, .. } | Op::Full(scalar) => number(scalar.as_f64()),
            Op::Attention { bounds, .. } => {
                bounds.iter().filter_map(|b| b.chunk).for_each(|c| number(c as f64));
                self.positions |= !bounds.is_empty();
            }
            Op::CumSum { .. } => self.positions = true,
            _ => {}
        }
    }

    fn dims<'d>(&mut self, dims: impl IntoIterator<Item = &'d Dim>) {
        for dim in dims {
            if dim.as_const().is_none() && self.dims.len() < MOST_DIMS && !self.dims.contains(dim) {
                self.dims.push(dim.clone());
            }
        }
    }

    /// The sizes of a bucket, those at its ends first.
    pub fn sizes(&self, symbols: &Table<SymbolId, Symbol>, bucket: &Bucket) -> Vec<Sizes> {
        let used: BTreeSet<&str> = self
            .dims
            .iter()
            .flat_map(Dim::symbols)
            .filter_map(|s| Some(symbols.get(s)?.name.as_str()))
            .collect();
        let ranges: Vec<(&String, [i64; 2])> =
            bucket.symbols.iter().map(|(name, &range)| (name, range)).collect();
        let with = |value: &dyn Fn(usize, &str, [i64; 2]) -> i64| -> Sizes {
            let one = |(i, &(name, range)): (usize, &(&String, [i64; 2]))| {
                let value = if used.contains(name.as_str()) { value(i, name, range) } else { range[0] };
                (name.clone(), value.clamp(range[0], range[1].max(range[0])))
            };
            ranges.iter().enumerate().map(one).collect()
        };
        let low = with(&|_, _, [low, _]| low);
        let near = with(&|i, _, [low, _]| low.saturating_add(i as i64 % 4 + 1));
        let high = with(&|_, _, [_, high]| high);
        let mut out = vec![low, near.clone(), high];
        for &(name, range) in ranges.iter().filter(|(name, _)| used.contains(name.as_str())) {
            for at in self.turns(symbols, &near, name, range) {
                // A window counts from the position itself, so a condition may change one after its end.
                let around = (-1..=2).map(|by| at.saturating_add(by));
                for value in around.filter(|v| (range[0]..=range[1]).contains(v)) {
                    let one = |(n, v): &(String, i64)| (n.clone(), if n == name { value } else { *v });
                    out.push(near.iter().map(one).collect());
                }
            }
        }
        let mut seen = BTreeSet::new();
        out.retain(|sizes| seen.insert(sizes.clone()));
        out.truncate(MOST_SIZES);
        out
    }

    /// Values of one symbol at which a condition changes, with the others as in `at`.
    fn turns(
        &self,
        symbols: &Table<SymbolId, Symbol>,
        at: &Sizes,
        name: &str,
        range: [i64; 2],
    ) -> BTreeSet<i64> {
        let eval = |dim: &Dim, value: i64| {
            let sizes: Sizes =
                at.iter().map(|(n, v)| (n.clone(), if n == name { value } else { *v })).collect();
            dim.eval(&bindings(symbols, &sizes))
        };
        let moves =
            |dim: &Dim| dim.symbols().into_iter().any(|s| symbols.get(s).is_some_and(|s| s.name == name));
        let mut out = BTreeSet::new();
        for dim in self.dims.iter().filter(|d| moves(d)) {
            for switch in dim.switches() {
                match switch {
                    Switch::Sign(d) => out.extend(root(&|v| eval(&d, v), range)),
                    Switch::Multiple(a, b) => {
                        let Some(k) = eval(&b, range[0]).filter(|k| *k > 1) else { continue };
                        let rest = |v: i64| eval(&a, v).map(|a| a.rem_euclid(k));
                        let first = (range[0]..=range[1]).take(64).find(|&v| rest(v) == Some(0));
                        let last = (range[0]..=range[1]).rev().take(64).find(|&v| rest(v) == Some(0));
                        out.extend(first.into_iter().chain(last));
                        let once = |v: i64| Some(eval(&a, v)? - k);
                        out.extend(root(&once, range));
                    }
                }
            }
            if self.positions {
                for &number in self.numbers.iter().take(MOST_NUMBERS) {
                    out.extend(root(&|v| eval(dim, v)?.checked_sub(number.checked_abs()?), range));
                }
            }
        }
        out
    }
}

/// The first value from which on a function that grows or falls is on the other side of 0.
fn root(f: &dyn Fn(i64) -> Option<i64>, [low, high]: [i64; 2]) -> Option<i64> {
    let side = |v: i64| f(v).map(|x| x >= 0);
    let first = side(low)?;
    if side(high)? == first {
        return None;
    }
    let (mut from, mut to) = (low, high);
    while to - from > 1 {
        let middle = from + (to - from) / 2;
        if side(middle)? == first { from = middle } else { to = middle }
    }
    Some(to)
}
