//! Results that are stored in the order in which they are read.
//!
//! Attention gives `[.., h, l, f]`, its gradient results of that form, and most programs go on with `[.., l, h, f]`, all heads of a row in a run: a reshape of the
//! permuted result would copy it. Where every reader permutes a result in the same way, perhaps behind a reshape that takes
//! axes of extent 1 away or adds some, it is stored so. That rests on all readers, so it is no rule of the rewriter, which
//! sees a node before those that read it.

use symmc_ir::known::non_unit;
use symmc_ir::{Graph, NodeId, Op, Type, ValueId};

/// The graph with results of attention stored as all their readers permute them; `None` if there are none.
pub fn as_read(graph: &Graph) -> Option<Graph> {
    if !graph.nodes.values().any(|node| node.op.is_permutable()) {
        return None;
    }
    let mut readers: Vec<Vec<NodeId>> = vec![Vec::new(); graph.values.len()];
    for (id, node) in graph.nodes.iter() {
        node.inputs.iter().for_each(|&v| readers[index(v)].push(id));
    }
    for output in &graph.outputs {
        // Whoever calls the program reads it as it is.
        readers[index(output.value)].clear();
    }
    let mut out = graph.clone();
    let mut found = false;
    for (id, node) in graph.nodes.iter() {
        let results = node.outputs.get(..node.op.permuted_results()).unwrap_or_default();
        let orders: Option<Vec<Order<'_>>> = results.iter().map(|&r| order(graph, &readers, r)).collect();
        let Some(orders) = orders else { continue };
        let Some((first, rest)) = orders.split_first() else { continue };
        if rest.iter().any(|other| other.stored != first.stored) {
            continue;
        }
        for (&result, Order { read, perm, stored }) in results.iter().zip(&orders) {
            out.values[result].ty = permuted(graph.ty(result), stored);
            out.values[*read].ty = permuted(graph.ty(*read), perm);
            for &reader in &readers[index(*read)] {
                out.nodes[reader].op = Op::Permute { perm: (0..perm.len()).collect() };
            }
        }
        out.nodes[id].op = Op::Permuted { op: Box::new(node.op.clone()), perm: first.stored.clone() };
        found = true;
    }
    found.then_some(out)
}

/// How the readers of a result permute it.
struct Order<'g> {
    /// What they read: the result, or its reshape.
    read: ValueId,
    /// Their permutation of that.
    perm: &'g [usize],
    /// The same permutation of the result itself.
    stored: Vec<usize>,
}

fn order<'g>(graph: &'g Graph, readers: &[Vec<NodeId>], result: ValueId) -> Option<Order<'g>> {
    let between = units_alone(graph, &readers[index(result)]);
    let read = between.map_or(result, |reshape| graph.nodes[reshape].outputs[0]);
    let perm = common(graph, &readers[index(read)])?;
    Some(Order { read, perm, stored: lifted(graph, result, read, perm) })
}

fn index(value: ValueId) -> usize {
    symmc_ir::entity::Entity::index(value)
}

fn permuted(ty: &Type, perm: &[usize]) -> Type {
    Type::new(ty.dtype, perm.iter().filter_map(|&axis| ty.shape.get(axis).cloned()).collect::<Vec<_>>())
}

/// The reader, if it is one and reshapes such that only axes of extent 1 come and go.
fn units_alone(graph: &Graph, readers: &[NodeId]) -> Option<NodeId> {
    let &[reader] = readers else { return None };
    let node = &graph.nodes[reader];
    let (Op::Reshape, &[x], &[y]) = (&node.op, &node.inputs[..], &node.outputs[..]) else { return None };
    let extents = |v| non_unit(&graph.ty(v).shape).map(|(_, extent)| extent);
    extents(x).eq(extents(y)).then_some(reader)
}

/// The permutation of `result` that keeps its elements in the order of `perm` of `read`, which has the same axes but for
/// those of extent 1.
fn lifted(graph: &Graph, result: ValueId, read: ValueId, perm: &[usize]) -> Vec<usize> {
    if result == read {
        return perm.to_vec();
    }
    let axes = |v: ValueId| non_unit(&graph.ty(v).shape).map(|(axis, _)| axis).collect::<Vec<_>>();
    let (own, seen) = (axes(result), axes(read));
    let place = |axis: &usize| seen.iter().position(|s| s == axis).map(|place| own[place]);
    let units = (0..graph.ty(result).rank()).filter(|axis| !own.contains(axis));
    units.chain(perm.iter().filter_map(place)).collect()
}

/// How all of these nodes permute their operand, if they do it in the same way and its last axis stays the last: elements
/// of a row are stored in runs.
fn common<'g>(graph: &'g Graph, readers: &[NodeId]) -> Option<&'g [usize]> {
    let permutes = |&id: &NodeId| match &graph.nodes[id].op {
        Op::Permute { perm } => Some(&perm[..]),
        _ => None,
    };
    let (first, rest) = readers.split_first()?;
    let perm = permutes(first)?;
    let same = rest.iter().all(|id| permutes(id) == Some(perm));
    (same && perm.last().is_some_and(|&last| last + 1 == perm.len())).then_some(perm)
}
