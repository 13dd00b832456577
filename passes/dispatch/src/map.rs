//! Element-wise nodes over one shape as one kernel.
//!
//! A node joins a unit that gives it an operand, as it is and not a view of it; or, where both wait for the same collectives,
//! one that reads an operand of it or that stands right in front of it.

use symmc_ir::{Form, NodeId, ValueId};

use crate::facts::Facts;
use crate::walk::{Place, Walk};

/// What becomes of a node.
pub fn place(walk: &Walk<'_>, id: NodeId) -> Option<Place> {
    let facts = walk.facts;
    let most = facts.capabilities().map.filter(|_| facts.node(id).op.fits_map())?.nodes;
    let read = walk.read(id);
    let joins = |&u: &usize| {
        let near = || walk.waits_alike(u, id) && (walk.is_last(u) || walk.shares(u, id));
        fits(facts, &walk.units[u].nodes, id) && (read.contains(&u) || near())
    };
    let unit = walk.open(Form::Map, most).find(joins);
    Some(unit.map_or(Place::Begins(Form::Map), |unit| Place::Joins(unit, Vec::new())))
}

/// Whether a node has the shape of others, and reads what they give at the same positions.
fn fits(facts: &Facts<'_>, nodes: &[NodeId], id: NodeId) -> bool {
    let shape = |n: NodeId| facts.node(n).outputs.first().map(|&v| &facts.graph.ty(v).shape);
    let inside = |v: ValueId| facts.source(v).is_some_and(|n| nodes.contains(&n));
    let same = |&v: &ValueId| facts.base[v] == v || !inside(v);
    nodes.first().is_some_and(|&n| shape(n) == shape(id)) && facts.node(id).inputs.iter().all(same)
}
