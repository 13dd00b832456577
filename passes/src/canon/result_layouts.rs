//! Stores results in the order in which they are read.
//!
//! Attention gives `[.., h, l, f]`, its gradient gives results of the same form, and most programs continue
//! with `[.., l, h, f]`, all heads of a row contiguous. A reshape of the permuted result would copy it. If
//! every reader permutes a result in the same way, possibly after a reshape that only adds or removes axes
//! of extent 1, the result is stored in the permuted order. The pass depends on all readers, so it is not a
//! rule of the rewriter, which sees a node before its readers.

use symmc_ir::positions::non_unit_axes;
use symmc_ir::{Graph, NodeId, Op, TensorType, ValueId};

/// Returns the graph with results of attention stored as all their readers permute them, or `None` if there
/// are none.
pub fn store_as_read(graph: &Graph) -> Option<Graph> {
    if !graph.nodes.values().any(|node| node.op.is_permutable()) {
        return None;
    }
    let mut readers: Vec<Vec<NodeId>> = vec![Vec::new(); graph.values.len()];
    for (id, node) in graph.nodes.iter() {
        node.inputs.iter().for_each(|&v| readers[value_index(v)].push(id));
    }
    for output in &graph.outputs {
        // The caller of the program reads the output unpermuted.
        readers[value_index(output.value)].clear();
    }
    let mut out = graph.clone();
    let mut changed = false;
    for (id, node) in graph.nodes.iter() {
        let results = node.outputs.get(..node.op.permuted_results()).unwrap_or_default();
        let orders: Option<Vec<ReadPermutation<'_>>> =
            results.iter().map(|&r| find_read_permutation(graph, &readers, r)).collect();
        let Some(orders) = orders else { continue };
        let Some((first, other_orders)) = orders.split_first() else { continue };
        if other_orders.iter().any(|other| other.stored != first.stored) {
            continue;
        }
        for (&result, ReadPermutation { read, perm, stored }) in results.iter().zip(&orders) {
            out.values[result].ty = permute_type(graph.ty(result), stored);
            out.values[*read].ty = permute_type(graph.ty(*read), perm);
            for &reader in &readers[value_index(*read)] {
                out.nodes[reader].op = Op::Permute { perm: (0..perm.len()).collect() };
            }
        }
        out.nodes[id].op = Op::Permuted { op: Box::new(node.op.clone()), perm: first.stored.clone() };
        changed = true;
    }
    changed.then_some(out)
}

/// How the readers of a result permute it.
struct ReadPermutation<'g> {
    /// The value that they read: the result, or its reshape.
    read: ValueId,
    /// Their permutation of `read`.
    perm: &'g [usize],
    /// The same permutation of the result itself.
    stored: Vec<usize>,
}

fn find_read_permutation<'g>(
    graph: &'g Graph,
    readers: &[Vec<NodeId>],
    result: ValueId,
) -> Option<ReadPermutation<'g>> {
    let between = unit_reshape_reader(graph, &readers[value_index(result)]);
    let read = between.map_or(result, |reshape| graph.nodes[reshape].outputs[0]);
    let perm = common_permutation(graph, &readers[value_index(read)])?;
    Some(ReadPermutation { read, perm, stored: lift_permutation(graph, result, read, perm) })
}

fn value_index(value: ValueId) -> usize {
    symmc_ir::entity::Entity::index(value)
}

fn permute_type(ty: &TensorType, perm: &[usize]) -> TensorType {
    TensorType::new(ty.dtype, perm.iter().filter_map(|&axis| ty.shape.get(axis).cloned()).collect::<Vec<_>>())
}

/// The only reader, if it is a reshape that only adds or removes axes of extent 1.
fn unit_reshape_reader(graph: &Graph, readers: &[NodeId]) -> Option<NodeId> {
    let &[reader] = readers else { return None };
    let node = &graph.nodes[reader];
    let (Op::Reshape, &[x], &[y]) = (&node.op, &node.inputs[..], &node.outputs[..]) else { return None };
    let from = non_unit_axes(&graph.ty(x).shape).map(|(_, extent)| extent);
    let result_extents = non_unit_axes(&graph.ty(y).shape).map(|(_, extent)| extent);
    from.eq(result_extents).then_some(reader)
}

/// The permutation of `result` that keeps its elements in the order of `perm` of `read`. Both have the same
/// axes except those of extent 1.
fn lift_permutation(graph: &Graph, result: ValueId, read: ValueId, perm: &[usize]) -> Vec<usize> {
    if result == read {
        return perm.to_vec();
    }
    let result_axes: Vec<usize> = non_unit_axes(&graph.ty(result).shape).map(|(axis, _)| axis).collect();
    let read_axes: Vec<usize> = non_unit_axes(&graph.ty(read).shape).map(|(axis, _)| axis).collect();
    let mut lifted: Vec<usize> =
        (0..graph.ty(result).rank()).filter(|axis| !result_axes.contains(axis)).collect();
    for axis in perm {
        if let Some(k) = read_axes.iter().position(|a| a == axis) {
            lifted.push(result_axes[k]);
        }
    }
    lifted
}

/// The permutation that all these nodes apply to their operand, if it is the same one and keeps the last
/// axis last, so that rows stay contiguous.
fn common_permutation<'g>(graph: &'g Graph, readers: &[NodeId]) -> Option<&'g [usize]> {
    let (&first, other_readers) = readers.split_first()?;
    let Op::Permute { perm } = &graph.nodes[first].op else { return None };
    let same_op = other_readers.iter().all(|&id| graph.nodes[id].op == graph.nodes[first].op);
    (same_op && perm.last().is_some_and(|&last_axis| last_axis + 1 == perm.len())).then_some(&perm[..])
}
