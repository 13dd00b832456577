//! Collectives that run as one step because the program says so, by a dispatch of the form `collectives`.
//!
//! The sets are chosen together with the variants, because they depend on the schedule. Here they become
//! units, in an order in which their nodes are adjacent.

use symmc_ir::{Dispatch, DispatchForm, NodeId};

use crate::deferred;
use crate::facts::DispatchFacts;
use crate::walk::{DispatchUnit, DispatchWalk, UnitAssignment, UnitKind};

/// The sets of collectives of a program.
fn joint_sets<'a>(facts: &'a DispatchFacts<'_>) -> impl Iterator<Item = &'a Dispatch> {
    facts.graph.dispatches.iter().filter(|d| d.form == DispatchForm::Collectives)
}

/// Groups nodes, given in an executable order, into units. Each set of collectives is one unit, in place of
/// its last node.
pub fn group_into_units(facts: &DispatchFacts<'_>, nodes: Vec<NodeId>) -> Vec<DispatchUnit> {
    if joint_sets(facts).next().is_none() {
        return nodes.into_iter().map(single_unit).collect();
    }
    let mut missing: Vec<usize> = facts.graph.dispatches.iter().map(|d| d.nodes().count()).collect();
    let mut units = Vec::with_capacity(nodes.len());
    for id in nodes {
        let Some(set) = facts.set_of[id] else {
            units.push(single_unit(id));
            continue;
        };
        missing[set] -= 1;
        if missing[set] == 0 {
            let nodes = facts.graph.dispatches[set].nodes().collect();
            units.push(DispatchUnit { form: Some(DispatchForm::Collectives), nodes });
        }
    }
    deferred::order_runnable(facts, units, |unit| &unit.nodes)
}

fn single_unit(id: NodeId) -> DispatchUnit {
    DispatchUnit { form: None, nodes: vec![id] }
}

/// Reorders nodes so that those of each set of collectives are adjacent.
pub fn order_adjacent(facts: &DispatchFacts<'_>, nodes: Vec<NodeId>) -> Vec<NodeId> {
    if joint_sets(facts).next().is_none() {
        return nodes;
    }
    group_into_units(facts, nodes).into_iter().flat_map(|unit| unit.nodes).collect()
}

/// Assigns a node of a set: it begins a unit, or joins the unit of the set's first node.
pub fn assign_joint(walk: &DispatchWalk<'_>, id: NodeId) -> Option<UnitAssignment> {
    let set = walk.facts.set_of[id]?;
    let first = walk.facts.graph.dispatches[set].first;
    Some(match walk.unit_of(first).filter(|_| first != id) {
        Some(unit) => UnitAssignment::Joins(unit, Vec::new()),
        None => UnitAssignment::Begins(UnitKind::Collectives),
    })
}
