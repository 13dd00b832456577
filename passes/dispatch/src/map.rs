//! Groups element-wise nodes over one shape into one kernel.
//!
//! A node joins the units that compute its operands, unless it reads them through views, and merges these
//! units. Open units never depend on each other, so this is safe. Otherwise, a node joins a unit that reads
//! one of its operands, or the unit directly before it, if both wait for the same collectives.

use symmc_ir::{DispatchForm, NodeId, ValueId};

use crate::facts::DispatchFacts;
use crate::walk::{DispatchWalk, UnitAssignment};

pub fn assign_map(walk: &DispatchWalk<'_>, id: NodeId) -> Option<UnitAssignment> {
    let facts = walk.facts;
    let most = facts.capabilities().map.filter(|_| facts.node(id).op.fits_map())?.nodes;
    let mut units: Vec<usize> = Vec::new();
    let mut count = 1;
    for unit in walk.open_among(walk.units_read_by(id), DispatchForm::Map) {
        let nodes = &walk.units[unit].nodes;
        if fits_map_unit(facts, nodes, id) && count + nodes.len() <= most as usize {
            count += nodes.len();
            units.push(unit);
        }
    }
    while units.len() > 1 && walk.delays_users(&units, id) {
        units.pop();
    }
    if units.is_empty() {
        let room = |&u: &usize| {
            let nodes = &walk.units[u].nodes;
            nodes.len() < most as usize && fits_map_unit(facts, nodes, id)
        };
        let sharing = walk.units_sharing_operand(DispatchForm::Map, id).find(room);
        let last = walk.last_unit(DispatchForm::Map, id).filter(room);
        units.extend(sharing.max(last));
    }
    Some(UnitAssignment::Merges(units, DispatchForm::Map))
}

/// Whether a node has the shape of the others, and reads their results at the same positions.
pub fn fits_map_unit(facts: &DispatchFacts<'_>, nodes: &[NodeId], id: NodeId) -> bool {
    let shape = |n: NodeId| facts.node(n).outputs.first().map(|&v| &facts.graph.ty(v).shape);
    let inside = |v: ValueId| facts.defining_node(v).is_some_and(|n| nodes.contains(&n));
    let same = |&v: &ValueId| facts.base[v] == v || !inside(v);
    nodes.first().is_some_and(|&n| shape(n) == shape(id)) && facts.node(id).inputs.iter().all(same)
}
