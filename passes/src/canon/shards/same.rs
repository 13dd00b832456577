//! Values that are the same on all ranks of each cell of a group, bit for bit.

use symmc_ir::{Collective, CollectiveKind, Graph, GroupId, InputKind, Node, Op, ReduceOp, Table, ValueId};

/// Which values are the same on all ranks of each cell of a group.
///
/// Sums of floats count as different, since a variant may add in another order on each rank. Ops are deterministic: the same
/// operands give the same results on all ranks.
pub fn same_values(graph: &Graph, group: GroupId) -> Table<ValueId, bool> {
    let mut same = Table::filled(false, graph.values.len());
    for input in graph.inputs.values() {
        same[input.value] = input.kind == InputKind::Constant;
    }
    for node in graph.nodes.values() {
        let is_same = match &node.op {
            Op::Collective(c) => gives_same(graph, node, c) && covers(graph, c.group, group),
            Op::Opaque { .. } | Op::Custom(_) | Op::Shard { .. } => false,
            _ => node.inputs.iter().all(|&v| same[v]),
        };
        node.outputs.iter().for_each(|&v| same[v] = is_same);
    }
    same
}

/// Whether a collective gives all ranks of a cell the same bits.
fn gives_same(graph: &Graph, node: &Node, collective: &Collective) -> bool {
    let is_float = node.inputs.iter().any(|&v| graph.ty(v).dtype.is_float());
    match &collective.kind {
        CollectiveKind::AllReduce(op) => !is_float || matches!(op, ReduceOp::Max | ReduceOp::Min),
        CollectiveKind::AllGather | CollectiveKind::Broadcast { .. } => true,
        CollectiveKind::ReduceScatter(_) | CollectiveKind::AllToAll(_) | CollectiveKind::Permute { .. } => {
            false
        }
    }
}

/// Whether each cell of `inner` lies within a cell of `outer`.
fn covers(graph: &Graph, outer: GroupId, inner: GroupId) -> bool {
    let (Some(outer), Some(inner)) = (graph.cells(outer), graph.cells(inner)) else { return false };
    inner.iter().all(|cell| outer.iter().any(|wide| cell.iter().all(|rank| wide.contains(rank))))
}
