//! Merges maps over one shape that read the same values into one kernel, even if other steps separate them.
//!
//! The gradient of a gated product has three such maps: the recomputed product, the gradient of the gate and
//! the gradient of the gated value. Matrix products separate them in program order, although they do not
//! have to. One kernel reads each operand once.
//!
//! Units are merged in pairs. Neither may depend on the other through a third unit. Neither may wait for a
//! collective for which the other does not wait. Collectives that depend on no computation are excepted,
//! because they can run concurrently with a product before both units.

use std::collections::BTreeSet;

use symmc_ir::{EntityMap, NodeId, Op, ValueId};

use crate::facts::DispatchFacts;
use crate::map;
use crate::walk::{Unit, UnitIndex, UnitKind};

/// The most units between two that are merged. The results of one of them stay in memory for that long.
const MAX_UNIT_DISTANCE: usize = 16;
/// The most units that are visited to find out whether one depends on another. Two units are not merged if
/// there are more.
const MAX_VISITED_UNITS: usize = 256;

/// Merges maps. The units are in an executable order, and those that were merged into others are left empty.
pub fn merge(facts: &DispatchFacts<'_>, units: Vec<Unit>) -> Vec<Unit> {
    let Some(max_nodes) = facts.capabilities().loops.map(|limits| limits.nodes as usize) else {
        return units;
    };
    let mut merging = MapMerger::new(facts, units);
    for later in 0..merging.units.len() {
        // The nearest unit first. The merged nodes are in the earlier unit, so later units find both at
        // once.
        for earlier in (later.saturating_sub(MAX_UNIT_DISTANCE)..later).rev() {
            let count = merging.units[earlier].nodes.len() + merging.units[later].nodes.len();
            if count <= max_nodes && merging.may_merge(earlier, later) {
                merging.merge_units(earlier, later);
                break;
            }
        }
    }
    merging.units
}

struct MapMerger<'a> {
    facts: &'a DispatchFacts<'a>,
    units: Vec<Unit>,
    unit_of: EntityMap<NodeId, Option<usize>>,
    /// For each node, whether it depends on no computation other than element-wise ops.
    is_early: EntityMap<NodeId, bool>,
    first_product: usize,
    /// For each unit, whether it, or a unit before it, was merged with a unit after it.
    is_spanned: Vec<bool>,
}

impl<'a> MapMerger<'a> {
    fn new(facts: &'a DispatchFacts<'a>, units: Vec<Unit>) -> Self {
        let mut unit_of = EntityMap::filled(None, facts.graph.nodes.len());
        for (u, unit) in units.iter().enumerate() {
            unit.nodes.iter().for_each(|&n| unit_of[n] = Some(u));
        }
        let first_product = units
            .iter()
            .position(|unit| unit.nodes.iter().any(|&n| facts.node(n).op.is_matmul()))
            .unwrap_or(units.len());
        let is_spanned = vec![false; units.len()];
        MapMerger { facts, units, unit_of, is_early: find_early_nodes(facts), first_product, is_spanned }
    }

    /// Whether two units may be merged, and then read less.
    fn may_merge(&self, earlier: usize, later: usize) -> bool {
        let [a, b] = [earlier, later].map(|u| &self.units[u]);
        let are_maps = [a, b].iter().all(|unit| unit.kind == Some(UnitKind::Map) && !unit.nodes.is_empty());
        are_maps
            && self.share_operands(a, b)
            && b.nodes.iter().all(|&n| map::fits_map_unit(self.facts, &a.nodes, n))
            && [a, b].iter().all(|unit| !self.is_communicated(unit))
            && self.waits_for_same_collectives(earlier, later)
            && !self.needs_through_others(later, earlier)
            && !self.needs_through_others(earlier, later)
    }

    fn share_operands(&self, a: &Unit, b: &Unit) -> bool {
        let facts = self.facts;
        let Some(shape) = a.nodes.first().and_then(|&n| facts.result_shape(n)) else { return false };
        let mut touched_by_a: BTreeSet<ValueId> = BTreeSet::new();
        for node in a.nodes.iter().map(|&n| facts.node(n)) {
            touched_by_a.extend(node.inputs.iter().chain(&node.outputs));
        }
        let mut read = b.nodes.iter().flat_map(|&n| &facts.node(n).inputs);
        read.any(|v| facts.graph.ty(*v).shape[..] == *shape && touched_by_a.contains(v))
    }

    /// Whether a collective reads a result of a unit, which then must not wait for anything else.
    fn is_communicated(&self, unit: &Unit) -> bool {
        let mut results = unit.nodes.iter().flat_map(|&n| &self.facts.node(n).outputs);
        results.any(|&v| self.facts.communicated[v])
    }

    /// Whether both units wait for the same collectives, or for ones that can run concurrently with a
    /// product before both.
    fn waits_for_same_collectives(&self, earlier: usize, later: usize) -> bool {
        let a = self.last_collective(earlier);
        let b = self.last_collective(later);
        a == b
            || (self.first_product < earlier && a.max(b).is_some_and(|collective| self.is_early[collective]))
    }

    fn last_collective(&self, unit: usize) -> Option<NodeId> {
        self.units[unit].nodes.iter().filter_map(|&n| self.facts.last_collectives[n]).max()
    }

    /// Whether a unit depends on another through a third. Also true if the search would take too long.
    fn needs_through_others(&self, unit: usize, other: usize) -> bool {
        // Units before both need neither of them, down to a position that no merged unit spans.
        let front = unit.min(other);
        let first = (0..front).rev().find(|&u| !self.is_spanned[u]).map_or(0, |u| u + 1);
        let mut visited = BTreeSet::from([unit]);
        let mut next: Vec<usize> = self.needed_units(unit).filter(|&u| u != other).collect();
        while let Some(u) = next.pop() {
            if u == other || visited.len() > MAX_VISITED_UNITS {
                return true;
            }
            if u >= first && visited.insert(u) {
                next.extend(self.needed_units(u));
            }
        }
        false
    }

    /// The other units whose results a unit reads.
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

/// For each node, whether only element-wise ops, views, copies and collectives lie between it and the inputs
/// of the program.
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

/// Lets rows that are taken at positions that are data join the maps that alone read them.
pub fn join_takes(facts: &DispatchFacts<'_>, units: &mut [Unit]) {
    let Some(limits) = facts.capabilities().loops else { return };
    let mut unit_of = UnitIndex::new(facts, units);
    for u in 0..units.len() {
        let &[take] = &units[u].nodes[..] else { continue };
        let Op::Take { axis: 0 } = facts.node(take).op else { continue };
        let result = facts.node(take).outputs[0];
        let readers = &facts.users[result];
        let Some(to) = readers.first().and_then(|&n| unit_of.of(n)) else { continue };
        let shape = facts.result_shape(take);
        let is_map = |&n: &NodeId| {
            let node = facts.node(n);
            facts.result_shape(n) == shape && (node.op.fits_map() || matches!(node.op, Op::Take { .. }))
        };
        let joins = units[to].kind == Some(UnitKind::Map)
            && !facts.returned[result]
            && !facts.communicated[result]
            && readers.iter().all(|n| units[to].nodes.contains(n))
            && units[to].nodes.iter().all(is_map)
            && units[to].nodes.len() < limits.nodes as usize;
        if joins {
            unit_of.join(units, u, to, UnitKind::Map);
        }
    }
}
