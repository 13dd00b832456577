//! Maps over one shape that read the same values, as one kernel, where other steps stand between them.
//!
//! The gradient of a gated product has three such maps: the product computed again, the gradient of the gate and that of the gated
//! value. Matrix products stand between them in program order, although these do not have to. One kernel reads each operand once.
//!
//! Units are merged two by two. Neither may need the other by way of a third unit, and neither may wait for a collective that the
//! other does not wait for, except for one that depends on no computation and can therefore run beside a product in front of both.

use std::collections::BTreeSet;

use symmc_ir::{DispatchForm, EntityMap, NodeId, Op, ValueId};

use crate::facts::DispatchFacts;
use crate::map;
use crate::walk::DispatchUnit;

/// How many units may stand between two that are merged: what one of them gives is in memory for as long.
const REACH: usize = 16;
/// How many units are looked at to find out whether one needs another. Two are not merged if there are more.
const LOOKED_AT: usize = 256;

/// Merges maps. The units are in an order in which they can run, and those that were merged into others are left empty.
pub fn merge(facts: &DispatchFacts<'_>, units: Vec<DispatchUnit>) -> Vec<DispatchUnit> {
    let Some(most) = facts.capabilities().map.map(|map| map.nodes as usize) else { return units };
    let mut merging = MapMerger::new(facts, units);
    for later in 0..merging.units.len() {
        // The nearest first. What is merged lies in the earlier one, which later ones find by itself.
        for earlier in (later.saturating_sub(REACH)..later).rev() {
            let count = merging.units[earlier].nodes.len() + merging.units[later].nodes.len();
            if count <= most && merging.may_merge(earlier, later) {
                merging.merge_units(earlier, later);
                break;
            }
        }
    }
    merging.units
}

struct MapMerger<'a> {
    facts: &'a DispatchFacts<'a>,
    units: Vec<DispatchUnit>,
    unit_of: EntityMap<NodeId, Option<usize>>,
    /// Whether nodes depend on no computation but element-wise one.
    is_early: EntityMap<NodeId, bool>,
    first_product: usize,
    /// For each unit, whether one in front of it or itself took in one behind it.
    is_spanned: Vec<bool>,
}

impl<'a> MapMerger<'a> {
    fn new(facts: &'a DispatchFacts<'a>, units: Vec<DispatchUnit>) -> Self {
        let mut unit_of = EntityMap::filled(None, facts.graph.nodes.len());
        for (u, unit) in units.iter().enumerate() {
            unit.nodes.iter().for_each(|&n| unit_of[n] = Some(u));
        }
        let has_product = |unit: &DispatchUnit| unit.nodes.iter().any(|&n| facts.node(n).op == Op::MatMul);
        let first_product = units.iter().position(has_product).unwrap_or(units.len());
        let is_spanned = vec![false; units.len()];
        MapMerger { facts, units, unit_of, is_early: find_early_nodes(facts), first_product, is_spanned }
    }

    /// Whether two units may be one, and read less then.
    fn may_merge(&self, earlier: usize, later: usize) -> bool {
        let [a, b] = [earlier, later].map(|u| &self.units[u]);
        let are_maps =
            [a, b].iter().all(|unit| unit.form == Some(DispatchForm::Map) && !unit.nodes.is_empty());
        are_maps
            && self.share_operands(a, b)
            && b.nodes.iter().all(|&n| map::fits_map_unit(self.facts, &a.nodes, n))
            && [a, b].iter().all(|unit| !self.is_communicated(unit))
            && self.waits_for_same_collectives(earlier, later)
            && !self.needs_through_others(later, earlier)
            && !self.needs_through_others(earlier, later)
    }

    fn share_operands(&self, a: &DispatchUnit, b: &DispatchUnit) -> bool {
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
    fn is_communicated(&self, unit: &DispatchUnit) -> bool {
        let mut given = unit.nodes.iter().flat_map(|&n| &self.facts.node(n).outputs);
        given.any(|&v| self.facts.communicated[v])
    }

    /// Whether both units wait for the same collectives, or for ones that run beside a product in front of both.
    fn waits_for_same_collectives(&self, earlier: usize, later: usize) -> bool {
        let last =
            |u: usize| self.units[u].nodes.iter().filter_map(|&n| self.facts.last_collectives[n]).max();
        let [a, b] = [last(earlier), last(later)];
        a == b
            || (self.first_product < earlier && a.max(b).is_some_and(|collective| self.is_early[collective]))
    }

    /// Whether a unit needs another by way of a third; true as well if that would take long to find out.
    fn needs_through_others(&self, unit: usize, other: usize) -> bool {
        // What stands in front of both needs neither, down to a place that no merged unit spans.
        let front = unit.min(other);
        let first = (0..front).rev().find(|&u| !self.is_spanned[u]).map_or(0, |u| u + 1);
        let mut seen = BTreeSet::from([unit]);
        let mut next: Vec<usize> = self.needed_units(unit).filter(|&u| u != other).collect();
        while let Some(u) = next.pop() {
            if u == other || seen.len() > LOOKED_AT {
                return true;
            }
            if u >= first && seen.insert(u) {
                next.extend(self.needed_units(u));
            }
        }
        false
    }

    /// The other units that give what a unit reads.
    fn needed_units(&self, unit: usize) -> impl Iterator<Item = usize> {
        let inputs = self.units[unit].nodes.iter().flat_map(|&n| &self.facts.node(n).inputs);
        let sources = inputs.filter_map(|&v| self.facts.defining_node(v));
        sources.filter_map(|n| self.unit_of[n]).filter(move |&u| u != unit)
    }

    fn merge_units(&mut self, earlier: usize, later: usize) {
        let nodes = std::mem::take(&mut self.units[later].nodes);
        nodes.iter().for_each(|&n| self.unit_of[n] = Some(earlier));
        self.units[earlier].nodes.extend(nodes);
        self.units[earlier].nodes.sort_unstable();
        self.is_spanned[earlier..later].fill(true);
    }
}

/// For each node, whether it depends on inputs of the program by element-wise work, views, copies and collectives alone.
fn find_early_nodes(facts: &DispatchFacts<'_>) -> EntityMap<NodeId, bool> {
    let graph = facts.graph;
    let mut out = EntityMap::filled(false, graph.nodes.len());
    for (id, node) in graph.nodes.iter() {
        let op = &node.op;
        let small = op.fits_map() || op.is_view() || *op == Op::Copy || op.as_collective().is_some();
        out[id] = small && node.inputs.iter().all(|&v| graph.defining_node(v).is_none_or(|n| out[n]));
    }
    out
}
