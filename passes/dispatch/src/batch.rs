//! Matrix products of one left operand as one step, as queries, keys and values are, with the rotary embeddings of what they give
//! where rows are few.

use symmc_ir::dispatch::{batched, turned};
use symmc_ir::{Dim, Form, NodeId, Op};

use crate::facts::Facts;
use crate::product::Product;
use crate::walk::{Place, Walk};

/// How many steps may stand between two of them.
const REACH: usize = 8;

/// The nodes that are no views, in an order in which products of one left operand stand side by side where others stood
/// between them, as the norms of heads do between queries, keys and values. None where that is program order. What is
/// element-wise between them is left there: it may be their epilogue.
pub fn side_by_side(facts: &Facts<'_>) -> Option<Vec<NodeId>> {
    facts.capabilities().batch?;
    let nodes = || facts.graph.nodes.keys().filter(|&n| !facts.is_view(n));
    let mut out: Vec<NodeId> = Vec::new();
    for id in nodes() {
        let at = place_beside(facts, &out, id).unwrap_or(out.len());
        out.insert(at, id);
    }
    (!nodes().eq(out.iter().copied())).then_some(out)
}

/// Where a product stands beside the last one of its left operand, if it may and does not stand there already.
fn place_beside(facts: &Facts<'_>, before: &[NodeId], id: NodeId) -> Option<usize> {
    let alike = |&&n: &&NodeId| is_flat(facts, n) && batched(facts.graph, n) == batched(facts.graph, id);
    let back = before.iter().rev().take(REACH).position(|n| is_flat(facts, id) && alike(&n))?;
    let between = &before[before.len() - back..];
    let sources: Vec<NodeId> = facts.node(id).inputs.iter().filter_map(|&v| facts.source(v)).collect();
    let op = |n: &NodeId| &facts.node(*n).op;
    let may_pass = between.iter().all(|n| op(n).as_collective().is_none() && !sources.contains(n));
    let parted = between.iter().any(|n| !op(n).fits_map() && *op(n) != Op::MatMul);
    (may_pass && parted).then_some(before.len() - back)
}

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
        let nodes = &walk.units[u].nodes;
        let mut products = products(facts, nodes);
        let turns = || nodes.iter().any(|&n| matches!(facts.node(n).op, Op::RotaryEmbedding { .. }));
        !read.contains(&u)
            && products.clone().count() < batch.products as usize
            && products.clone().all(|n| batched(facts.graph, n) == batched(facts.graph, id))
            && (!turns() || are_few(facts, products.by_ref().chain([id])))
    };
    let unit = walk.open_within(Form::Batch, REACH).find(joins);
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
    let Some(limits) = facts.capabilities().batch.and_then(|b| b.rotary) else { return Vec::new() };
    let of = |id| {
        let product = turned(facts.graph, &facts.users, id)?.product;
        let &[left, _] = &facts.node(product).inputs[..] else { return None };
        let beside = facts.users[left].iter().filter(|&&n| is_flat(facts, n));
        let columns = beside.filter_map(|&n| Some(Product::whole(facts, n)?.columns)).sum();
        let rows = Product::whole(facts, product)?.rows_of(facts);
        is_narrow(facts, columns).then_some((rows, u64::from(limits.rows)))
    };
    facts.graph.nodes.keys().filter_map(of).collect()
}

fn are_few(facts: &Facts<'_>, nodes: impl Iterator<Item = NodeId>) -> bool {
    let most = facts.capabilities().batch.and_then(|b| b.rotary).map_or(0, |r| u64::from(r.rows));
    let all: Option<Vec<Product>> = nodes.map(|n| Product::whole(facts, n)).collect();
    let all = all.unwrap_or_default();
    let Some(first) = all.first() else { return false };
    let alike = first.rows <= most && all.iter().all(|p| p.is_beside(first));
    alike && is_narrow(facts, all.iter().map(|p| p.columns).sum())
}

/// Whether turning what they give is worth it for products with so many columns.
fn is_narrow(facts: &Facts<'_>, columns: u64) -> bool {
    let multiprocessors = u64::from(facts.profile.multiprocessors.unwrap_or(1));
    let limits = facts.capabilities().batch.and_then(|b| b.rotary);
    limits.is_some_and(|limits| columns.div_ceil(multiprocessors.max(1)) <= u64::from(limits.columns))
}

fn products<'a>(facts: &'a Facts<'_>, nodes: &'a [NodeId]) -> impl Iterator<Item = NodeId> + Clone + use<'a> {
    nodes.iter().copied().filter(|&n| facts.node(n).op == Op::MatMul)
}

/// Whether a node is a product by one matrix.
fn is_flat(facts: &Facts<'_>, id: NodeId) -> bool {
    let node = facts.node(id);
    node.op == Op::MatMul && node.inputs.get(1).is_some_and(|&v| facts.graph.ty(v).rank() == 2)
}
