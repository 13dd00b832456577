//! Lets products of few rows read right matrices of 8 bits as they are stored.
//!
//! ```text
//! matmul(x, permute(cast(w)))  =  matmul(x, permute(w))
//! ```
//!
//! Both sides have the same bits: the dtype of `x` represents all numbers of `w`. The right side reads half of the bytes,
//! and does not write the cast. A machine has kernels for it up to a number of rows, and for rows of `w` along K, as
//! layers store their weights. With more rows the cast costs less than the product, which the library computes.

use symmc_ir::{Dim, Graph, Node, Op, TensorType, ValueId};

use crate::rewrite::{UniqueNames, compact, copy_inputs, copy_node, copy_outputs};

/// K must be a multiple of this, so that lines of a matrix are read in accesses of 16 bytes.
const K_MULTIPLE: i64 = 16;

/// Whether a program has casts that products may not need.
pub(super) fn may_apply(graph: &Graph) -> bool {
    graph.nodes.values().any(|node| {
        let types = || (graph.ty(node.inputs[0]).dtype, graph.ty(node.outputs[0]).dtype);
        node.op == Op::Cast && types().0.is_stored_factor(types().1)
    })
}

/// The program with products of at most this number of rows in the form of the right side. `None` if there are none.
pub(super) fn read_stored_factors(graph: &Graph, max_rows: u32) -> Option<Graph> {
    let mut names = UniqueNames::default();
    graph.values.values().for_each(|value| names.reserve(&value.name));
    let (mut copy, mut map) = copy_inputs(graph);
    let mut has_changed = false;
    for node in graph.nodes.values() {
        let stored = stored_factor(graph, node, max_rows).and_then(|stored| map[stored]);
        let Some(stored) = stored else {
            copy_node(graph, node, &mut copy, &mut map)?;
            continue;
        };
        has_changed = true;
        let TensorType { dtype, shape } = copy.ty(stored).clone();
        let transposed = TensorType::new(dtype, shape.into_iter().rev().collect::<Vec<_>>());
        let name = names.unique(&format!("{}.stored", graph.value_name(node.outputs[0])));
        let view = copy.add_node(Op::Permute { perm: vec![1, 0] }, vec![stored], vec![(name, transposed)]);
        let factor = node.inputs[1];
        let cast = map[factor].replace(copy.nodes[view].outputs[0]);
        copy_node(graph, node, &mut copy, &mut map)?;
        map[factor] = cast;
    }
    copy.outputs = copy_outputs(graph, &map)?;
    has_changed.then(|| compact(&copy))
}

/// The stored matrix whose transposed cast is the right matrix of a product, if the product can read it.
fn stored_factor(graph: &Graph, node: &Node, max_rows: u32) -> Option<ValueId> {
    let (Op::MatMul { .. }, &[x, y], &[result]) = (&node.op, &node.inputs[..], &node.outputs[..]) else {
        return None;
    };
    let (Op::Permute { perm }, &[cast]) = graph.definition(y)? else { return None };
    let (Op::Cast, &[stored]) = graph.definition(cast)? else { return None };
    let TensorType { dtype, shape } = graph.ty(stored);
    let [_, k] = &shape[..] else { return None };
    let (_, leading) = graph.ty(result).shape.split_last()?;
    let rows = leading.iter().cloned().fold(Dim::from(1), |rows, extent| rows * extent);
    let fits = perm[..] == [1, 0]
        && dtype.is_stored_factor(graph.ty(x).dtype)
        && rows.bounds(&graph.symbols).1 <= i64::from(max_rows)
        && k.is_divisible_by(K_MULTIPLE);
    fits.then_some(stored)
}
