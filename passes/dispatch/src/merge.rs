//! Maps over one shape that read the same values, as one kernel, where other steps stand between them.
//!
//! The gradient of a gated product has three such maps: the product computed again, the gradient of the gate and that of the gated
//! value. Matrix products stand between them in program order, although these do not have to. One kernel reads each operand once.
//!
//! Units are merged two by two. Neither may need the other by way of a third unit, and neither may wait for a collective that the
//! other does not wait for, except for one that depends on no computation and can therefore run beside a product in front of both.

use std::collections::BTreeSet;

use symmc_ir::{Form, NodeId, Op, Table, ValueId};

use crate::facts::Facts;
use crate::map;
use crate::walk::Unit;

/// How many units may stand between two that are merged: what one of them gives is in memory for as long.
const REACH: usize = 16;
/// How many units are looked at to find out whether one needs another. Two are not merged if there are more.
const LOOKED_AT: usize = 256;

/// Merges maps. The units are in an order in which they can run, and those that were merged into others are left empty.
pub fn merge(facts: &Facts<'_>, units: Vec<Unit>) -> Vec<Unit> {
    let Some(most) = facts.capabilities().map.map(|map| map.nodes as usize) else { return units };
    let mut merging = Merging::new(facts, units);
    for later in 0..merging.units.len() {
        // The nearest first. What is merged lies in the earlier one, which later ones find by itself.
        for earlier in (later.saturating_sub(REACH)..later).rev() {
            let count = merging.units[earlier].nodes.len() + merging.units[later].nodes.len();
            if count <= most && merging.may_merge(earlier, later) {
                merging.merge(earlier, later);
                break;
            }
        }
    }
    merging.units
}

struct Merging<'a> {
    facts: &'a Facts<'a>,
    units: Vec<Unit>,
    unit_of: Table<NodeId, Option<usize>>,
    /// Whether nodes depend on no computation but element-wise one.
    is_early: Table<NodeId, bool>,
    first_product: usize,
    /// For each unit, whether one in front of it or itself took in one behind it.
    is_spanned: Vec<bool>,
}

impl<'a> Merging<'a> {
    fn new(facts: &'a Facts<'a>, units: Vec<Unit>) -> Self {
        let mut unit_of = Table::filled(None, facts.graph.nodes.len());
        for (u, unit) in units.iter().enumerate() {
            unit.nodes.iter().for_each(|&n| unit_of[n] = Some(u));
        }
        let has_product = |unit: &Unit| unit.nodes.iter().any(|&n| facts.node(n).op == Op::MatMul);
        let first_product = units.iter().position(has_product).unwrap_or(units.len());
        let is_spanned = vec![false; units.len()];
        Merging { facts, units, unit_of, is_early: early(facts), first_product, is_spanned }
    }

    /// Whether two units may be one, and read less then.
    fn may_merge(&self, earlier: usize, later: usize) -> bool {
        let [a, b] = [earlier, later].map(|u| &self.units[u]);
        let are_maps = [a, b].iter().all(|unit| unit.form == Some(Form::Map) && !unit.nodes.is_empty());
        are_maps
            && self.share(a, b)
            && b.nodes.iter().all(|&n| map::fits(self.facts, &a.nodes, n))
            && [a, b].iter().all(|unit| !self.is_communicated(unit))
            && self.waits_in_time(earlier, later)
            && !self.needs_otherwise(later, earlier)
            && !self.needs_otherwise(earlier, later)
    }

    fn share(&self, a: &Unit, b: &Unit) -> bool {
        let facts = self.facts;
        let shape = |v: &ValueId| &facts.graph.ty(*v).shape;
        let Some(whole) = a.nodes.first().and_then(|&n| facts.node(n).outputs.first()).map(shape) else {
            return false;
        };
        let touched = |n: &NodeId| facts.node(*n).inputs.iter().chain(&facts.node(*n).outputs);
        let of_a: BTreeSet<ValueId> = a.nodes.iter().flat_map(touched).copied().collect();
        let read = b.nodes.iter().flat_map(|&n| &facts.node(n).inputs);
        read.into_iter().any(|v| shape(v) == whole && of_a.contains(v))
    }

    /// Whether a collective reads what a unit gives: it waits for nothing else.
    fn is_communicated(&self, unit: &Unit) -> bool {
        let mut given = unit.nodes.iter().flat_map(|&n| &self.facts.node(n).outputs);
        given.any(|&v| self.facts.communicated[v])
    }

    /// Whether both units wait for the same collectives, or for ones that run beside a product in front of both.
    fn waits_in_time(&self, earlier: usize, later: usize) -> bool {
        let last = |u: usize| self.units[u].nodes.iter().filter_map(|&n| self.facts.needs[n]).max();
        let [a, b] = [last(earlier), last(later)];
        a == b
            || (self.first_product < earlier && a.max(b).is_some_and(|collective| self.is_early[collective]))
    }

    /// Whether a unit needs another by way of a third; true as well if that would take long to find out.
    fn needs_otherwise(&self, unit: usize, other: usize) -> bool {
        // What stands in front of both needs neither, down to a place that no merged unit spans.
        let front = unit.min(other);
        let first = (0..front).rev().find(|&u| !self.is_spanned[u]).map_or(0, |u| u + 1);
        let mut seen = BTreeSet::from([unit]);
        let mut next: Vec<usize> = self.needed(unit).filter(|&u| u != other).collect();
        while let Some(u) = next.pop() {
            if u == other || seen.len() > LOOKED_AT {
                return true;
            }
            if u >= first && seen.insert(u) {
                next.extend(self.needed(u));
            }
        }
        false
    }

    /// The other units that give what a unit reads.
    fn needed(&self, unit: usize) -> impl Iterator<Item = usize> {
        let inputs = self.units[unit].nodes.iter().flat_map(|&n| &self.facts.node(n).inputs);
        let sources = inputs.filter_map(|&v| self.facts.source(v));
        sources.filter_map(|n| self.unit_of[n]).filter(move |&u| u != unit)
    }

    fn merge(&mut self, earlier: usize, later: usize) {
        let nodes = std::mem::take(&mut self.units[later].nodes);
        nodes.iter().for_each(|&n| self.unit_of[n] = Some(earlier));
        self.units[earlier].nodes.extend(nodes);
        self.units[earlier].nodes.sort_unstable();
        self.is_spanned[earlier..later].fill(true);
    }
}

/// For each node, whether it depends on inputs of the program by element-wise work, views, copies and collectives alone.
fn early(facts: &Facts<'_>) -> Table<NodeId, bool> {
    let graph = facts.graph;
    let mut out = Table::filled(false, graph.nodes.len());
    for (id, node) in graph.nodes.iter() {
        let op = &node.op;
        let small = op.fits_map() || op.is_view() || *op == Op::Copy || op.as_collective().is_some();
        out[id] = small && node.inputs.iter().all(|&v| graph.def_node(v).is_none_or(|n| out[n]));
    }
    out
}
