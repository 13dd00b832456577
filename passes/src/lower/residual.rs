//! All-reduces whose kernel may add the residual that follows them ([`Profile::saved_us`]).
//!
//! Counted are those of which it is sure enough: nothing but the addition reads the reduction, both operands and the
//! sum lie contiguously and have one shape, and the residual is there when the all-reduce begins. An addition that shares
//! its kernel with an element-wise step or a product next to it would not have cost one of its own, so it does not count.
//! What may run beside the reduction is little ([`super::beside`]).
//!
//! This judges dependences, and what they leave open by the order of the program, not that of the plan. Known: with
//! `--order program` or `list` another collective may stand between a reduction and its addition, which count as one
//! kernel here and are two.
//!
//! [`Profile::saved_us`]: symmc_ir::machine::Profile::saved_us

use std::collections::BTreeSet;

use symmc_ir::graph::{Graph, Node, ValueId};
use symmc_ir::layout::{Layout, layouts};
use symmc_ir::{BinaryOp, CollectiveKind, DType, NodeId, Op, Table};

use super::context::Context;

/// So many elements always divide into rows of the kernel by packets; of other numbers it takes only some. In two shots
/// the profile asks that the largest size divides into slices, which other sizes of a bucket need not do.
const ELEMENTS: i64 = 1024;

/// The results of all-reduces that count, on a machine that fuses them.
pub fn added(graph: &Graph, context: &Context) -> BTreeSet<ValueId> {
    if !context.profile.fuses_residual {
        return BTreeSet::new();
    }
    let layouts = layouts(graph);
    let facts = Facts { graph, readers: readers(graph, &layouts), needs: graph.last_collectives(), layouts };
    graph.nodes.values().filter_map(|node| facts.reduction(node)).collect()
}

/// What is known of a program.
struct Facts<'a> {
    graph: &'a Graph,
    layouts: Table<ValueId, Layout>,
    /// For each base the nodes that read it or a view of it, in program order, once for each operand.
    readers: Table<ValueId, Vec<Reader>>,
    /// For each node the last collective that it is or needs.
    needs: Table<NodeId, Option<NodeId>>,
}

/// Who reads a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reader {
    Node(NodeId),
    /// The caller, after all nodes.
    Output,
}

impl Facts<'_> {
    /// The reduction that a node adds a residual to, if that counts.
    fn reduction(&self, node: &Node) -> Option<ValueId> {
        let (Op::Binary(BinaryOp::Add), &[x, y], &[sum]) = (&node.op, &node.inputs[..], &node.outputs[..])
        else {
            return None;
        };
        let ty = self.graph.ty(sum);
        let whole = |v: ValueId| self.graph.ty(v) == ty && self.layouts[v].is_contiguous(ty);
        let fits = matches!(ty.dtype, DType::F32 | DType::F16 | DType::BF16)
            && ty.numel().divisible_by(ELEMENTS)
            && whole(x)
            && whole(y);
        if !fits || self.joins_the_next(sum) {
            return None;
        }
        let of = |reduced: ValueId, residual: ValueId| {
            let base = self.layouts[reduced].base;
            let reduce = self.graph.def_node(base)?;
            let counts = self.is_all_reduce(reduce)
                && self.readers[base].len() == 1
                && self.graph.ty(base).numel() == ty.numel()
                && self.is_there(residual, reduce)
                && !self.joins_the_last(residual);
            counts.then_some(base)
        };
        of(x, y).or_else(|| of(y, x))
    }

    fn is_all_reduce(&self, node: NodeId) -> bool {
        let collective = self.graph.nodes[node].op.as_collective();
        collective.is_some_and(|c| matches!(c.kind, CollectiveKind::AllReduce(_)))
    }

    /// Whether a value needs no collective from `reduce` on.
    fn is_there(&self, value: ValueId, reduce: NodeId) -> bool {
        self.graph.def_node(value).and_then(|n| self.needs[n]).is_none_or(|last| last < reduce)
    }

    /// Whether the first that reads a sum is a step that would be one kernel with the addition.
    fn joins_the_next(&self, sum: ValueId) -> bool {
        let Some(&Reader::Node(next)) = self.readers[sum].first() else { return false };
        let next = &self.graph.nodes[next];
        let shape = |v: ValueId| &self.graph.ty(v).shape;
        next.op.is_element_wise() && next.outputs.iter().all(|&v| shape(v) == shape(sum))
    }

    /// Whether a residual is made for the addition alone, by a step that would be one kernel with it.
    fn joins_the_last(&self, residual: ValueId) -> bool {
        let base = self.layouts[residual].base;
        let op = self.graph.def_node(base).map(|n| &self.graph.nodes[n].op);
        self.readers[base].len() == 1
            && op.is_some_and(|op| op.is_element_wise() || matches!(op, Op::Full(_) | Op::MatMul))
    }
}

fn readers(graph: &Graph, layouts: &Table<ValueId, Layout>) -> Table<ValueId, Vec<Reader>> {
    let mut out = Table::filled(Vec::new(), graph.values.len());
    for (n, node) in graph.nodes.iter() {
        // A view reads nothing; who reads it reads its base.
        let reads = node.outputs.iter().any(|&v| layouts[v].base == v);
        node.inputs.iter().filter(|_| reads).for_each(|&v| out[layouts[v].base].push(Reader::Node(n)));
    }
    graph.outputs.iter().for_each(|o| out[layouts[o.value].base].push(Reader::Output));
    out
}
