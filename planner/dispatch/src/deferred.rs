//! The order in which nodes are divided into units: program order, except that reductions over rows come
//! after other readers of their operands.
//!
//! A node that reads a result of a unit closes the unit. The gradient of a weight or bias is a reduction
//! over rows. It stands between the steps that continue the gradient along the rows, and would divide them.
//! Nothing in the program waits for such a gradient except its own path to an output.

use symmc_ir::entity::Entity;
use symmc_ir::{EntityMap, NodeId, Op};

use crate::facts::DispatchFacts;

/// All nodes except views. Reductions over rows at the end of the program, and the readers of their results,
/// come last.
pub fn deferred_order(facts: &DispatchFacts<'_>) -> Vec<NodeId> {
    let graph = facts.graph;
    let ends = find_trailing_nodes(facts);
    let mut deferred = EntityMap::filled(false, graph.nodes.len());
    let mut first = Vec::with_capacity(graph.nodes.len());
    let mut late_nodes = Vec::new();
    for (id, node) in graph.nodes.iter() {
        let follows = node.inputs.iter().filter_map(|&v| graph.defining_node(v)).any(|n| deferred[n]);
        deferred[id] = ends[id] && (follows || reduces_rows(facts, id));
        if !facts.is_view(id) {
            if deferred[id] { late_nodes.push(id) } else { first.push(id) }
        }
    }
    first.append(&mut late_nodes);
    first
}

/// Whether a node is a reduction that keeps the last axis.
fn reduces_rows(facts: &DispatchFacts<'_>, id: NodeId) -> bool {
    let node = facts.node(id);
    let rank = node.inputs.first().map_or(0, |&x| facts.graph.ty(x).rank());
    matches!(&node.op, Op::Reduce { axes, .. } if !axes.contains(&rank.saturating_sub(1)))
}

/// The nodes whose results reach only program outputs, through small steps. Collectives that run as one step
/// are never among them, because the whole set and its operands would have to be.
fn find_trailing_nodes(facts: &DispatchFacts<'_>) -> EntityMap<NodeId, bool> {
    let graph = facts.graph;
    let mut out = EntityMap::filled(false, graph.nodes.len());
    for (id, node) in graph.nodes.iter().rev() {
        let small = node.op.fits_map()
            || node.op.is_view()
            || matches!(node.op, Op::Reduce { .. } | Op::Copy | Op::Concat { .. });
        let communicates = node.op.as_collective().is_some();
        let users = node.outputs.iter().flat_map(|&v| &facts.users[v]);
        out[id] = (small || communicates) && facts.set_of[id].is_none() && users.into_iter().all(|n| out[*n]);
    }
    out
}

/// Sorts units into an executable order close to that of their last nodes.
pub fn order_runnable<U>(
    facts: &DispatchFacts<'_>,
    units: Vec<U>,
    nodes: impl Fn(&U) -> &[NodeId],
) -> Vec<U> {
    let mut unit_of = vec![usize::MAX; facts.graph.nodes.len()];
    for (u, unit) in units.iter().enumerate() {
        nodes(unit).iter().for_each(|n| unit_of[n.index()] = u);
    }
    let needs: Vec<Vec<usize>> = units
        .iter()
        .enumerate()
        .map(|(u, unit)| {
            let inputs = nodes(unit).iter().flat_map(|&n| &facts.node(n).inputs);
            let sources = inputs.filter_map(|&v| facts.defining_node(v)).map(|n| unit_of[n.index()]);
            let mut needs: Vec<usize> = sources.filter(|&n| n != usize::MAX && n != u).collect();
            needs.sort_unstable();
            needs.dedup();
            needs
        })
        .collect();
    let mut order = Vec::with_capacity(units.len());
    let mut visited = vec![false; units.len()];
    for unit in 0..units.len() {
        let mut stack = vec![(unit, 0)];
        while let Some((u, next)) = stack.pop() {
            if next == 0 && std::mem::replace(&mut visited[u], true) {
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
