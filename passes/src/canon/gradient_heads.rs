//! Groups the heads in gradients of attention whose keys and values are repeated.
//!
//! A program that repeats heads of keys for the queries that share them sums the gradients of the copies. If
//! the keys and values of a gradient of attention are repeated in the same way, and every reader of their
//! gradients sums the copies, the op takes the unrepeated heads and does the sum. The pass depends on all
//! readers, so it is not a rule of the rewriter.

use symmc_ir::{Dim, EntityMap, Graph, NodeId, Op, ReductionKind, TensorType, ValueDef, ValueId};

/// Returns the graph in which gradients take unrepeated heads of keys and values, or `None` if there are
/// none to group.
pub fn group_gradient_heads(graph: &Graph) -> Option<Graph> {
    if !graph.nodes.values().any(|node| matches!(node.op, Op::AttentionGradient { .. })) {
        return None;
    }
    let users = graph.users();
    let mut out = graph.clone();
    let mut changed = false;
    for (id, node) in graph.nodes.iter() {
        let (Op::AttentionGradient { .. }, &[_, of_k, of_v]) = (&node.op, &node.outputs[..]) else {
            continue;
        };
        let Some(&[k, v]) = node.inputs.get(4..6).and_then(|x| x.first_chunk::<2>()) else { continue };
        let search = HeadSearch { graph, users: &users, node: id };
        let repeated = [(k, of_k), (v, of_v)].map(|(x, of_x)| search.find_repeated_heads(x, of_x));
        let [Some(k), Some(v)] = repeated else { continue };
        if k.heads() != v.heads() {
            continue;
        }
        k.remove_repetition(&mut out);
        v.remove_repetition(&mut out);
        changed = true;
    }
    changed.then_some(out)
}

/// Repeated heads of keys or values, with their gradient, which is summed over the copies.
struct RepeatedHeads {
    expand: NodeId,
    /// The node that flattens heads and copies into one axis.
    flatten: NodeId,
    /// `[.., g, 1, s, e]`.
    single: Vec<Dim>,
    /// `[.., g, s, e]`.
    narrow: Vec<Dim>,
    /// The gradient, and its reshape to separate axes of heads and copies.
    gradient: ValueId,
    split: ValueId,
    sums: Vec<NodeId>,
}

impl RepeatedHeads {
    fn heads(&self) -> Option<&Dim> {
        self.narrow.get(self.narrow.len().checked_sub(3)?)
    }

    fn remove_repetition(&self, graph: &mut Graph) {
        let expanded = graph.nodes[self.expand].outputs[0];
        let flat = graph.nodes[self.flatten].outputs[0];
        let shapes = [
            (expanded, &self.single),
            (flat, &self.narrow),
            (self.gradient, &self.narrow),
            (self.split, &self.single),
        ];
        for (value, shape) in shapes {
            graph.values[value].ty = TensorType::new(graph.ty(value).dtype, shape.clone());
        }
        // Without copies, the expand and the sums are reshapes.
        for &node in self.sums.iter().chain([&self.expand]) {
            graph.nodes[node].op = Op::Reshape;
        }
    }
}

struct HeadSearch<'g> {
    graph: &'g Graph,
    users: &'g EntityMap<ValueId, Vec<NodeId>>,
    node: NodeId,
}

impl HeadSearch<'_> {
    /// The node that gives a value as its only result, and its first operand.
    fn def(&self, value: ValueId) -> Option<(NodeId, &Op, ValueId)> {
        let ValueDef::Node(id, 0) = self.graph.values[value].def else { return None };
        let node = &self.graph.nodes[id];
        (node.outputs.len() == 1).then_some((id, &node.op, *node.inputs.first()?))
    }

    /// The readers of a value that is not an output.
    fn readers(&self, value: ValueId) -> Option<&[NodeId]> {
        let is_output = self.graph.outputs.iter().any(|o| o.value == value);
        (!is_output).then_some(&self.users[value][..])
    }

    /// Matches repeated heads of keys or values `x` and their gradient. `x` is `[.., g, 1, s, e]`, expanded
    /// to `[.., g, r, s, e]` and flattened to `[.., g * r, s, e]`. The gradient is reshaped back and summed
    /// over `r`.
    fn find_repeated_heads(&self, x: ValueId, gradient: ValueId) -> Option<RepeatedHeads> {
        let (flatten, Op::Reshape, wide) = self.def(x)? else { return None };
        let (expand, Op::Expand, single) = self.def(wide)? else { return None };
        let x_shape = &self.graph.ty(x).shape;
        let wide_shape = &self.graph.ty(wide).shape;
        let heads = x_shape.len().checked_sub(3)?;
        let mut expected = wide_shape.clone();
        *expected.get_mut(heads + 1)? = Dim::from(1);
        let mut narrow = x_shape.clone();
        narrow[heads] = wide_shape[heads].clone();
        let flattened = wide_shape.len() == x_shape.len() + 1
            && wide_shape[..heads] == x_shape[..heads]
            && wide_shape[heads + 2..] == x_shape[heads + 1..];
        // The node itself may read the heads only as keys and values; heads that it reads as queries, for
        // example, stay unchanged.
        let inputs = self.graph.nodes[self.node].inputs.iter().enumerate();
        let is_only_use = self.readers(wide)?.iter().all(|&n| n == flatten)
            && self.readers(x)?.iter().all(|&n| n == self.node)
            && inputs.filter(|(_, v)| **v == x).all(|(index, _)| matches!(index, 4 | 5));
        if !flattened || self.graph.ty(single).shape != expected || !is_only_use {
            return None;
        }
        let &[back] = self.readers(gradient)? else { return None };
        let (Op::Reshape, &[split]) = (&self.graph.nodes[back].op, &self.graph.nodes[back].outputs[..])
        else {
            return None;
        };
        let sums = self.readers(split)?;
        let sums_copies = !sums.is_empty()
            && sums.iter().all(|&n| match &self.graph.nodes[n].op {
                Op::Reduce { op: ReductionKind::Sum, axes, .. } => axes[..] == [heads + 1],
                _ => false,
            });
        (self.graph.ty(split).shape == *wide_shape && sums_copies).then(|| RepeatedHeads {
            expand,
            flatten,
            single: expected,
            narrow,
            gradient,
            split,
            sums: sums.to_vec(),
        })
    }
}
