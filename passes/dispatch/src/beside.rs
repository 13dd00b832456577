//! Nodes of one kind that do not need each other as one kernel: rotary embeddings of queries and keys, stores of keys and values
//! into their caches.

use symmc_ir::{Form, NodeId, Op};

use crate::walk::{Place, Walk};

/// How many steps may stand between two of them.
const REACH: usize = 8;

pub fn place(walk: &Walk<'_>, id: NodeId) -> Option<Place> {
    let capabilities = walk.facts.capabilities();
    let (form, most) = match walk.facts.node(id).op {
        Op::RotaryEmbedding { .. } => (Form::Rotary, capabilities.rotary?.nodes),
        Op::IndexPut { .. } => (Form::Scatter, capabilities.scatter?.nodes),
        _ => return None,
    };
    let read = walk.read(id);
    let joins = |&u: &usize| !read.contains(&u) && walk.units[u].nodes.len() < most as usize;
    let unit = walk.open_within(form, REACH).find(joins);
    Some(unit.map_or(Place::Begins(form), |unit| Place::Joins(unit, Vec::new())))
}
