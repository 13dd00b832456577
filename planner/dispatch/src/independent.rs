//! Groups independent nodes of one kind into one kernel: rotary embeddings of queries and keys, stores of
//! keys and values into their caches.

use symmc_ir::{NodeId, Op};

use crate::walk::{DispatchWalk, UnitAssignment, UnitKind};

/// The most steps between two of them.
const MAX_STEP_DISTANCE: usize = 8;

pub fn assign_independent(walk: &DispatchWalk<'_>, id: NodeId) -> Option<UnitAssignment> {
    let capabilities = walk.facts.capabilities();
    let (kind, max_nodes) = match walk.facts.node(id).op {
        Op::RotaryEmbedding { .. } => (UnitKind::Rotary, capabilities.rotary?.nodes),
        Op::IndexPut { .. } => (UnitKind::Scatter, capabilities.scatter?.nodes),
        _ => return None,
    };
    let read = walk.units_read_by(id);
    let unit = walk
        .open_within(kind, MAX_STEP_DISTANCE)
        .find(|&unit| !read.contains(&unit) && walk.units[unit].nodes.len() < max_nodes as usize);
    Some(unit.map_or(UnitAssignment::Begins(kind), |unit| UnitAssignment::Joins(unit, Vec::new())))
}
