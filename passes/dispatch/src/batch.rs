//! Matrix products of one left operand as one step, as queries, keys and values are, with the rotary embeddings of what they give
//! where rows are few.

use symmc_ir::dispatch::{batched, turned};
use symmc_ir::{Dim, Form, NodeId, Op};

use crate::facts::Facts;
use crate::product::Product;
use crate::walk::{Place, Walk};

/// How many steps may stand between two of them.
const REACH: usize = 8;

/// What becomes of a node.
pub fn place(walk: &Walk<'_>, id: NodeId) -> Option<Place> {
    let batch = walk.facts.capabilities().batch?;
    if let Op::RotaryEmbedding { .. } = walk.facts.node(id).op {
        return turn(walk, id);
    }
    if !is_flat(walk.facts, id) {
        return None;
    }
    let (read, facts) = (walk.read(id), walk.facts);
    let joins = |&u: &usize| {
        let near = walk.units.len() - u <= REACH && !read.contains(&u);
        let nodes = &walk.units[u].nodes;
        let mut products = products(facts, nodes);
        let turns = || nodes.iter().any(|&n| matches!(facts.node(n).op, Op::RotaryEmbedding { .. }));
        near && products.clone().count() < batch.products as usize
            && products.clone().all(|n| batched(facts.graph, n) == batched(facts.graph, id))
            && (!turns() || are_few(facts, products.by_ref().chain([id])))
    };
    let unit = walk.open(Form::Batch, u32::MAX).find(joins);
    Some(unit.map_or(Place::Begins(Form::Batch), |unit| Place::Joins(unit, Vec::new())))
}

/// What becomes of a rotary embedding of what a product gives.
fn turn(walk: &Walk<'_>, id: NodeId) -> Option<Place> {
    let facts = walk.facts;
    let of = turned(facts.graph, &facts.users, id)?;
    let unit = walk.giver(*facts.node(of.product).outputs.first()?, Form::Batch)?;
    are_few(facts, products(facts, &walk.units[unit].nodes)).then_some(Place::Joins(unit, of.views))
}

/// The rows of products that may be one step with rotary embeddings, and how many of them.
pub fn limits(facts: &Facts<'_>) -> Vec<(Dim, u64)> {
    let Some(most) = facts.capabilities().batch.map(|b| u64::from(b.rotary_rows)) else { return Vec::new() };
    let of = |id| {
        let product = Product::whole(facts, turned(facts.graph, &facts.users, id)?.product)?;
        Some((product.rows_of(facts), most))
    };
    facts.graph.nodes.keys().filter_map(of).collect()
}

/// Whether products are one kernel that has rotary embeddings in its epilogue.
fn are_few(facts: &Facts<'_>, mut nodes: impl Iterator<Item = NodeId>) -> bool {
    let most = facts.capabilities().batch.map_or(0, |b| u64::from(b.rotary_rows));
    let first = nodes.next().and_then(|n| Product::whole(facts, n)).filter(|p| p.rows <= most);
    first.is_some_and(|first| nodes.all(|n| Product::whole(facts, n).is_some_and(|p| p.is_beside(&first))))
}

fn products<'a>(facts: &'a Facts<'_>, nodes: &'a [NodeId]) -> impl Iterator<Item = NodeId> + Clone + use<'a> {
    nodes.iter().copied().filter(|&n| facts.node(n).op == Op::MatMul)
}

/// Whether a node is a product by one matrix.
fn is_flat(facts: &Facts<'_>, id: NodeId) -> bool {
    let node = facts.node(id);
    node.op == Op::MatMul && node.inputs.get(1).is_some_and(|&v| facts.graph.ty(v).rank() == 2)
}
