//! Groups element-wise nodes over one shape into one kernel.
//!
//! A node joins the units that compute its operands, unless it reads them through views, and merges these
//! units. Open units never depend on each other, so this is safe. Otherwise, a node joins a unit that reads
//! one of its operands, or the unit directly before it, if both wait for the same collectives.

use symmc_ir::NodeId;

use crate::facts::DispatchFacts;
use crate::walk::{DispatchWalk, UnitAssignment, UnitKind};

pub fn assign_map(walk: &DispatchWalk<'_>, id: NodeId) -> Option<UnitAssignment> {
    let facts = walk.facts;
    let max_nodes = facts.capabilities().loops.filter(|_| facts.node(id).op.fits_map())?.nodes;
    let mut units: Vec<usize> = Vec::new();
    let mut count = 1;
    for unit in walk.open_among(walk.units_read_by(id), UnitKind::Map) {
        let nodes = &walk.units[unit].nodes;
        if fits_map_unit(facts, nodes, id) && count + nodes.len() <= max_nodes as usize {
            count += nodes.len();
            units.push(unit);
        }
    }
    while units.len() > 1 && walk.delays_users(&units, id) {
        units.pop();
    }
    if units.is_empty() {
        let max_nodes = max_nodes as usize;
        let sharing =
            walk.units_sharing_operand(UnitKind::Map, id).find(|&unit| has_room(walk, unit, id, max_nodes));
        let last_unit = walk.last_unit(UnitKind::Map, id).filter(|&unit| has_room(walk, unit, id, max_nodes));
        units.extend(sharing.max(last_unit));
    }
    Some(UnitAssignment::Merges(units, UnitKind::Map))
}

/// Whether a node can join a unit that may have at most this many nodes.
fn has_room(walk: &DispatchWalk<'_>, unit: usize, id: NodeId, max_nodes: usize) -> bool {
    let nodes = &walk.units[unit].nodes;
    nodes.len() < max_nodes && fits_map_unit(walk.facts, nodes, id)
}

/// Whether a node has the shape of the others, and reads their results at the same positions.
pub fn fits_map_unit(facts: &DispatchFacts<'_>, nodes: &[NodeId], id: NodeId) -> bool {
    let Some(&first) = nodes.first() else { return false };
    facts.result_shape(first) == facts.result_shape(id)
        && facts.node(id).inputs.iter().all(|&v| {
            facts.base[v] == v || facts.defining_node(v).is_none_or(|source| !nodes.contains(&source))
        })
}
