//! Element-wise nodes over one shape as one kernel.
//!
//! A node joins the units that give it operands, as they are and not views of them, and merges them: units that are open do not need
//! each other. Or, where both wait for the same collectives, it joins a unit that reads an operand of it or that stands right in front
//! of it.

use symmc_ir::{Form, NodeId, ValueId};

use crate::facts::Facts;
use crate::walk::{Place, Walk};

pub fn place(walk: &Walk<'_>, id: NodeId) -> Option<Place> {
    let facts = walk.facts;
    let most = facts.capabilities().map.filter(|_| facts.node(id).op.fits_map())?.nodes;
    let mut units: Vec<usize> = Vec::new();
    let mut count = 1;
    for unit in walk.open_among(walk.read(id), Form::Map) {
        let nodes = &walk.units[unit].nodes;
        if fits(facts, nodes, id) && count + nodes.len() <= most as usize {
            count += nodes.len();
            units.push(unit);
        }
    }
    while units.len() > 1 && walk.delays(&units, id) {
        units.pop();
    }
    if units.is_empty() {
        let room = |&u: &usize| {
            let nodes = &walk.units[u].nodes;
            nodes.len() < most as usize && fits(facts, nodes, id)
        };
        let sharing = walk.sharing(Form::Map, id).find(room);
        let last = walk.last(Form::Map, id).filter(room);
        units.extend(sharing.max(last));
    }
    Some(Place::Merges(units, Form::Map))
}

/// Whether a node has the shape of others, and reads what they give at the same positions.
pub fn fits(facts: &Facts<'_>, nodes: &[NodeId], id: NodeId) -> bool {
    let shape = |n: NodeId| facts.node(n).outputs.first().map(|&v| &facts.graph.ty(v).shape);
    let inside = |v: ValueId| facts.source(v).is_some_and(|n| nodes.contains(&n));
    let same = |&v: &ValueId| facts.base[v] == v || !inside(v);
    nodes.first().is_some_and(|&n| shape(n) == shape(id)) && facts.node(id).inputs.iter().all(same)
}
