//! Collectives that run as one step because the program says so: they stand in a dispatch of the form `collectives` there.
//!
//! Which these are is decided where variants are chosen, since it depends on the schedule. Here they become units of their own, in an
//! order in which their nodes are neighbours.

use symmc_ir::{Dispatch, DispatchForm, NodeId};

use crate::deferred;
use crate::facts::DispatchFacts;
use crate::walk::{DispatchUnit, DispatchWalk, UnitAssignment};

/// The sets of collectives of a program, each with its nodes.
fn joint_sets<'a>(facts: &'a DispatchFacts<'_>) -> impl Iterator<Item = &'a Dispatch> {
    facts.graph.dispatches.iter().filter(|d| d.form == DispatchForm::Collectives)
}

/// These nodes, in an order in which they can run, as units: each set of collectives is one, in place of the last of them.
pub fn group_into_units(facts: &DispatchFacts<'_>, nodes: Vec<NodeId>) -> Vec<DispatchUnit> {
    let single = |id| DispatchUnit { form: None, nodes: vec![id] };
    if joint_sets(facts).next().is_none() {
        return nodes.into_iter().map(single).collect();
    }
    let mut missing: Vec<usize> = facts.graph.dispatches.iter().map(|d| d.nodes().count()).collect();
    let mut units = Vec::with_capacity(nodes.len());
    for id in nodes {
        let Some(set) = facts.set_of[id] else {
            units.push(single(id));
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

/// These nodes in an order in which those of each set of collectives are neighbours.
pub fn order_adjacent(facts: &DispatchFacts<'_>, nodes: Vec<NodeId>) -> Vec<NodeId> {
    if joint_sets(facts).next().is_none() {
        return nodes;
    }
    group_into_units(facts, nodes).into_iter().flat_map(|unit| unit.nodes).collect()
}

/// What becomes of a node of a set: it begins a unit, or joins that of the first.
pub fn assign_joint(walk: &DispatchWalk<'_>, id: NodeId) -> Option<UnitAssignment> {
    let set = walk.facts.set_of[id]?;
    let first = walk.facts.graph.dispatches[set].first;
    Some(match walk.unit_of(first).filter(|_| first != id) {
        Some(unit) => UnitAssignment::Joins(unit, Vec::new()),
        None => UnitAssignment::Begins(DispatchForm::Collectives),
    })
}
