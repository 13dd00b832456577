//! Results that are stored in the order in which they are read.
//!
//! Attention gives `[.., h, l, f]`, and most programs go on with `[.., l, h, f]`, all heads of a row in a run: a reshape of the
//! permuted result would copy it. Where every reader permutes a result in the same way, it is stored so. That rests on all
//! readers, so it is no rule of the rewriter, which sees a node before those that read it.

use symmc_ir::{Graph, NodeId, Op, Type, ValueId};

/// The graph with results of attention stored as all their readers permute them; `None` if there are none.
pub fn as_read(graph: &Graph) -> Option<Graph> {
    let mut readers: Vec<Vec<NodeId>> = vec![Vec::new(); graph.values.len()];
    for (id, node) in graph.nodes.iter() {
        node.inputs.iter().for_each(|&v| readers[index(v)].push(id));
    }
    let returned = |v: ValueId| graph.outputs.iter().any(|o| o.value == v);
    let mut out = graph.clone();
    let mut found = false;
    for (id, node) in graph.nodes.iter() {
        let (Op::Attention { .. }, &[result]) = (&node.op, &node.outputs[..]) else { continue };
        let Some(perm) = common(graph, &readers[index(result)]).filter(|_| !returned(result)) else {
            continue;
        };
        let ty = graph.ty(result);
        let shape: Vec<_> = perm.iter().filter_map(|&axis| ty.shape.get(axis).cloned()).collect();
        out.values[result].ty = Type::new(ty.dtype, shape);
        out.nodes[id].op = Op::Permuted { op: Box::new(node.op.clone()), perm: perm.to_vec() };
        for &reader in &readers[index(result)] {
            out.nodes[reader].op = Op::Permute { perm: (0..perm.len()).collect() };
        }
        found = true;
    }
    found.then_some(out)
}

fn index(value: ValueId) -> usize {
    symmc_ir::entity::Entity::index(value)
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
