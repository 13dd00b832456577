//! Rotary embeddings that do not need each other as one kernel: queries and keys.

use symmc_ir::{Form, NodeId, Op};

use crate::walk::{Place, Walk};

/// How many steps may stand between two of them.
const REACH: usize = 8;

/// What becomes of a node.
pub fn place(walk: &Walk<'_>, id: NodeId) -> Option<Place> {
    let rotary = walk.facts.capabilities().rotary?;
    if !matches!(walk.facts.node(id).op, Op::RotaryEmbedding { .. }) {
        return None;
    }
    let read = walk.read(id);
    let near = |&u: &usize| !read.contains(&u) && walk.units.len() - u <= REACH;
    let unit = walk.open(Form::Rotary, rotary.nodes).find(near);
    Some(unit.map_or(Place::Begins(Form::Rotary), |unit| Place::Joins(unit, Vec::new())))
}
