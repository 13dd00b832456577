//! Groups matrix products that share a left operand into one step, such as queries, keys and values. If rows
//! are few, the rotary embeddings of their results join them.

use symmc_ir::dispatch::{batch_key, find_rotated_product};
use symmc_ir::{Dim, NodeId, Op};

use crate::facts::DispatchFacts;
use crate::product::SkinnyProduct;
use crate::walk::{DispatchWalk, UnitAssignment, UnitKind};

/// The most steps between two of them.
const MAX_STEP_DISTANCE: usize = 8;

/// All nodes except views, in an order in which products of one left operand are adjacent even if other
/// nodes separate them in the program, as the norms of heads separate queries, keys and values. `None` if
/// that is program order. Element-wise nodes between products do not count as separating: they may be their
/// epilogue.
pub fn batched_node_order(facts: &DispatchFacts<'_>) -> Option<Vec<NodeId>> {
    facts.capabilities().batch?;
    let nodes: Vec<NodeId> = facts.graph.nodes.keys().filter(|&n| !facts.is_view(n)).collect();
    let mut out: Vec<NodeId> = Vec::with_capacity(nodes.len());
    for &id in &nodes {
        let position = position_after_batched(facts, &out, id).unwrap_or(out.len());
        out.insert(position, id);
    }
    (out != nodes).then_some(out)
}

/// The position right after the last product of the same left operand; `None` if the product may not move
/// there or needs no move.
fn position_after_batched(facts: &DispatchFacts<'_>, before: &[NodeId], id: NodeId) -> Option<usize> {
    if !is_matrix_product(facts, id) {
        return None;
    }
    let key = batch_key(facts.graph, id);
    let back = before
        .iter()
        .rev()
        .take(MAX_STEP_DISTANCE)
        .position(|&n| is_matrix_product(facts, n) && batch_key(facts.graph, n) == key)?;
    let between = &before[before.len() - back..];
    let sources: Vec<NodeId> = facts.node(id).inputs.iter().filter_map(|&v| facts.defining_node(v)).collect();
    let mut parted = false;
    for n in between {
        let op = &facts.node(*n).op;
        if op.as_collective().is_some() || sources.contains(n) {
            return None;
        }
        parted |= !op.fits_map() && !op.is_matmul();
    }
    parted.then_some(before.len() - back)
}

pub fn assign_batched(walk: &DispatchWalk<'_>, id: NodeId) -> Option<UnitAssignment> {
    let batch = walk.facts.capabilities().batch?;
    if let Op::RotaryEmbedding { .. } = walk.facts.node(id).op {
        return assign_rotary(walk, id);
    }
    if !is_matrix_product(walk.facts, id) {
        return None;
    }
    let facts = walk.facts;
    let read = walk.units_read_by(id);
    let key = batch_key(facts.graph, id);
    for unit in walk.open_within(UnitKind::Batch, MAX_STEP_DISTANCE).filter(|unit| !read.contains(unit)) {
        let nodes = &walk.units[unit].nodes;
        let products = products(facts, nodes);
        if products.clone().count() >= batch.products as usize
            || products.clone().any(|n| batch_key(facts.graph, n) != key)
        {
            continue;
        }
        let rotates = nodes.iter().any(|&n| matches!(facts.node(n).op, Op::RotaryEmbedding { .. }));
        if !rotates || are_few(facts, products.chain([id])) {
            return Some(UnitAssignment::Joins(unit, Vec::new()));
        }
    }
    Some(UnitAssignment::Begins(UnitKind::Batch))
}

/// Assigns a rotary embedding of a product's result.
fn assign_rotary(walk: &DispatchWalk<'_>, id: NodeId) -> Option<UnitAssignment> {
    let facts = walk.facts;
    let rotated = find_rotated_product(facts.graph, &facts.users, id)?;
    let unit = walk.open_producer(*facts.node(rotated.product).outputs.first()?, UnitKind::Batch)?;
    are_few(facts, products(facts, &walk.units[unit].nodes))
        .then_some(UnitAssignment::Joins(unit, rotated.views))
}

/// The rows of products that may be one step with rotary embeddings, and the most rows for which they are.
pub fn batch_row_limits(facts: &DispatchFacts<'_>) -> Vec<(Dim, u64)> {
    let Some(limits) = facts.capabilities().batch.and_then(|b| b.rotary) else { return Vec::new() };
    let rows = facts.graph.nodes.keys().filter_map(|id| rows_of_narrow_rotation(facts, id));
    rows.map(|rows| (rows, u64::from(limits.rows))).collect()
}

/// The rows of the product that a rotary embedding rotates, if the products of its left operand are narrow.
fn rows_of_narrow_rotation(facts: &DispatchFacts<'_>, id: NodeId) -> Option<Dim> {
    let product = find_rotated_product(facts.graph, &facts.users, id)?.product;
    let &[left, _] = &facts.node(product).inputs[..] else { return None };
    let products = facts.users[left].iter().filter(|&&n| is_matrix_product(facts, n));
    let columns = products.filter_map(|&n| Some(SkinnyProduct::full_product(facts, n)?.columns)).sum();
    let rows = SkinnyProduct::full_product(facts, product)?.rows_of(facts);
    is_narrow(facts, columns).then_some(rows)
}

fn are_few(facts: &DispatchFacts<'_>, nodes: impl Iterator<Item = NodeId>) -> bool {
    let max_rows = facts.capabilities().batch.and_then(|b| b.rotary).map_or(0, |r| u64::from(r.rows));
    let products: Option<Vec<SkinnyProduct>> = nodes.map(|n| SkinnyProduct::full_product(facts, n)).collect();
    let products = products.unwrap_or_default();
    let Some(first) = products.first() else { return false };
    // Pairs of columns are read from matrices of one dtype only.
    let can_share =
        first.rows <= max_rows && !first.reads_stored() && products.iter().all(|p| p.can_share_kernel(first));
    can_share && is_narrow(facts, products.iter().map(|p| p.columns).sum())
}

/// Whether it pays for products with this many columns to include rotary embeddings of their results.
fn is_narrow(facts: &DispatchFacts<'_>, columns: u64) -> bool {
    let multiprocessors = u64::from(facts.profile.multiprocessors.unwrap_or(1));
    let limits = facts.capabilities().batch.and_then(|b| b.rotary);
    limits.is_some_and(|limits| columns.div_ceil(multiprocessors.max(1)) <= u64::from(limits.columns))
}

fn products<'a>(
    facts: &'a DispatchFacts<'_>,
    nodes: &'a [NodeId],
) -> impl Iterator<Item = NodeId> + Clone + use<'a> {
    nodes.iter().copied().filter(|&n| facts.node(n).op.is_matmul())
}

/// Whether a node is a product with one matrix as its right operand.
fn is_matrix_product(facts: &DispatchFacts<'_>, id: NodeId) -> bool {
    let node = facts.node(id);
    node.op.is_matmul() && node.inputs.get(1).is_some_and(|&v| facts.graph.ty(v).rank() == 2)
}
