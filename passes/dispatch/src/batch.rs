//! Matrix products of one left operand, as queries, keys and values are, as one step.

use symmc_ir::dispatch::batched;
use symmc_ir::{Form, NodeId, Op};

use crate::facts::Facts;
use crate::walk::{Place, Walk};

/// How many steps may stand between two of them.
const REACH: usize = 8;

/// What becomes of a node.
pub fn place(walk: &Walk<'_>, id: NodeId) -> Option<Place> {
    let batch = walk.facts.capabilities().batch.filter(|_| is_flat(walk.facts, id))?;
    let (read, graph) = (walk.read(id), walk.facts.graph);
    let joins = |&u: &usize| {
        let near = walk.units.len() - u <= REACH && !read.contains(&u);
        near && walk.units[u].nodes.iter().all(|&n| batched(graph, n) == batched(graph, id))
    };
    let unit = walk.open(Form::Batch, batch.products).find(joins);
    Some(unit.map_or(Place::Begins(Form::Batch), |unit| Place::Joins(unit, Vec::new())))
}

/// Whether a node is a product by one matrix.
fn is_flat(facts: &Facts<'_>, id: NodeId) -> bool {
    let node = facts.node(id);
    node.op == Op::MatMul && node.inputs.get(1).is_some_and(|&v| facts.graph.ty(v).rank() == 2)
}
