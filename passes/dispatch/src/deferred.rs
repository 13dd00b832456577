//! The order in which nodes are divided into units: program order with two exceptions.
//!
//! A node that reads what a unit gives closes it.
//! - The gradient of a weight or bias, a reduction over rows or a product, stands between the steps of the gradient that goes on along
//!   the rows, and would divide them. Nothing in the program waits for such a gradient except what becomes of it until it is returned,
//!   so these come last.
//! - Where several element-wise nodes read one value, as in the gradient of a gated product, products that read what some of them give
//!   may stand between them. Element-wise nodes come as soon as the last element-wise node that they read.

use symmc_ir::entity::Entity;
use symmc_ir::{NodeId, Op, Table};

use crate::facts::Facts;

/// All nodes that are no views, in this order.
pub fn order(facts: &Facts<'_>) -> Vec<NodeId> {
    let graph = facts.graph;
    let ends = ends(facts);
    let mut deferred = Table::filled(false, graph.nodes.len());
    for (id, node) in graph.nodes.iter() {
        let follows = node.inputs.iter().filter_map(|&v| graph.def_node(v)).any(|n| deferred[n]);
        let gives_result = node.op == Op::MatMul && are_all_at_the_end(facts, id, &ends);
        deferred[id] = gives_result || ends[id] && (follows || reduces_rows(facts, id));
    }
    let mut order =
        Ordered { facts, deferred, is_placed: Table::filled(false, graph.nodes.len()), nodes: Vec::new() };
    let steps = || graph.nodes.keys().filter(|&id| !facts.is_view(id));
    steps().filter(|&id| !order.deferred[id]).collect::<Vec<_>>().into_iter().for_each(|id| order.place(id));
    let last: Vec<NodeId> = steps().filter(|&id| order.deferred[id]).collect();
    order.nodes.extend(last);
    order.nodes
}

/// The most nodes that come sooner because one that reads them does.
const MOST_SOONER: usize = 32;

/// An order that is being made.
struct Ordered<'a> {
    facts: &'a Facts<'a>,
    deferred: Table<NodeId, bool>,
    is_placed: Table<NodeId, bool>,
    nodes: Vec<NodeId>,
}

impl Ordered<'_> {
    /// Places a node, and then the element-wise nodes that read it, and so on.
    fn place(&mut self, id: NodeId) {
        let mut next = vec![id];
        while let Some(id) = next.pop() {
            let Some(missing) = self.missing(id, next.is_empty()) else { continue };
            for id in missing {
                self.is_placed[id] = true;
                self.nodes.push(id);
                let users = self.facts.node(id).outputs.iter().flat_map(|&v| &self.facts.users[v]);
                let joins = |user: &&NodeId| self.joins(**user, id);
                let mut users: Vec<NodeId> = users.filter(joins).copied().collect();
                users.sort_unstable();
                next.extend(users.into_iter().rev());
            }
        }
    }

    /// Whether an element-wise node may come right behind another.
    fn joins(&self, id: NodeId, before: NodeId) -> bool {
        let (node, other) = (self.facts.node(id), self.facts.node(before));
        let shape = |n: &symmc_ir::Node| n.outputs.first().map(|&v| self.facts.graph.ty(v).shape.clone());
        let is_free = !self.is_placed[id] && !self.deferred[id] && !self.facts.is_view(id);
        is_free && node.op.fits_map() && other.op.fits_map() && shape(node) == shape(other)
    }

    /// A node behind the element-wise nodes that it needs and that are not placed; none where it needs others. The first of a
    /// series comes in its turn: all that it needs is placed.
    fn missing(&self, id: NodeId, is_first: bool) -> Option<Vec<NodeId>> {
        if self.is_placed[id] {
            return None;
        }
        let (mut out, mut stack) = (Vec::new(), vec![(id, false)]);
        while let Some((n, is_done)) = stack.pop() {
            if out.contains(&n) {
                continue;
            }
            if is_done {
                out.push(n);
                continue;
            }
            stack.push((n, true));
            for source in self.facts.node(n).inputs.iter().filter_map(|&v| self.facts.source(v)) {
                if self.is_placed[source] || is_first {
                    continue;
                }
                if !self.joins(source, id) || stack.len() > MOST_SOONER {
                    return None;
                }
                stack.push((source, false));
            }
        }
        Some(out)
    }
}

/// Whether a node is a reduction that leaves the last axis.
fn reduces_rows(facts: &Facts<'_>, id: NodeId) -> bool {
    let node = facts.node(id);
    let rank = node.inputs.first().map_or(0, |&x| facts.graph.ty(x).rank());
    matches!(&node.op, Op::Reduce { axes, .. } if !axes.contains(&rank.saturating_sub(1)))
}

/// The nodes of which nothing but small steps up to results of the program needs what they give.
fn ends(facts: &Facts<'_>) -> Table<NodeId, bool> {
    let graph = facts.graph;
    let mut out = Table::filled(false, graph.nodes.len());
    for (id, node) in graph.nodes.iter().rev() {
        let small =
            node.op.fits_map() || node.op.is_view() || matches!(node.op, Op::Reduce { .. } | Op::Copy);
        let communicates = node.op.as_collective().is_some();
        out[id] = (small || communicates) && are_all_at_the_end(facts, id, &out);
    }
    out
}

/// Whether all that reads what a node gives is at the end of the program.
fn are_all_at_the_end(facts: &Facts<'_>, id: NodeId, ends: &Table<NodeId, bool>) -> bool {
    facts.node(id).outputs.iter().flat_map(|&v| &facts.users[v]).all(|&n| ends[n])
}

/// Puts units into an order in which they can run, near to that of their last nodes.
pub fn runnable<U>(facts: &Facts<'_>, units: Vec<U>, nodes: impl Fn(&U) -> &[NodeId]) -> Vec<U> {
    let mut unit_of = vec![usize::MAX; facts.graph.nodes.len()];
    for (u, unit) in units.iter().enumerate() {
        nodes(unit).iter().for_each(|n| unit_of[n.index()] = u);
    }
    let needs: Vec<Vec<usize>> = units
        .iter()
        .enumerate()
        .map(|(u, unit)| {
            let inputs = nodes(unit).iter().flat_map(|&n| &facts.node(n).inputs);
            let of = inputs.filter_map(|&v| facts.source(v)).map(|n| unit_of[n.index()]);
            let mut needs: Vec<usize> = of.filter(|&n| n != usize::MAX && n != u).collect();
            needs.sort_unstable();
            needs.dedup();
            needs
        })
        .collect();
    let mut order = Vec::with_capacity(units.len());
    let mut seen = vec![false; units.len()];
    for unit in 0..units.len() {
        let mut stack = vec![(unit, 0)];
        while let Some((u, next)) = stack.pop() {
            if next == 0 && std::mem::replace(&mut seen[u], true) {
                continue;
            }
            match needs[u].get(next) {
                Some(&needed) => stack.extend([(u, next + 1), (needed, 0)]),
                None => order.push(u),
            }
        }
    }
    let mut units: Vec<Option<U>> = units.into_iter().map(Some).collect();
    order.into_iter().filter_map(|u| units[u].take()).collect()
}
