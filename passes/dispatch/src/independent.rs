//! Groups independent nodes of one kind into one kernel: rotary embeddings of queries and keys, stores of
//! keys and values into their caches.

use symmc_ir::{DispatchForm, NodeId, Op};

use crate::walk::{DispatchWalk, UnitAssignment};

/// The most steps between two of them.
const MAX_STEP_DISTANCE: usize = 8;

pub fn assign_independent(walk: &DispatchWalk<'_>, id: NodeId) -> Option<UnitAssignment> {
    let capabilities = walk.facts.capabilities();
    let (form, max_nodes) = match walk.facts.node(id).op {
        Op::RotaryEmbedding { .. } => (DispatchForm::Rotary, capabilities.rotary?.nodes),
        Op::IndexPut { .. } => (DispatchForm::Scatter, capabilities.scatter?.nodes),
        _ => return None,
    };
    let read = walk.units_read_by(id);
    let unit = walk
        .open_within(form, MAX_STEP_DISTANCE)
        .find(|&unit| !read.contains(&unit) && walk.units[unit].nodes.len() < max_nodes as usize);
    Some(unit.map_or(UnitAssignment::Begins(form), |unit| UnitAssignment::Joins(unit, Vec::new())))
}
