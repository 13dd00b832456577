//! The dispatch forms, and for each form the results that may lie on an operand.
//!
//! [`Dispatch::overwrite_rule`] is part of the contract of the kernels of a form. The planner places by it
//! and the plan check verifies by it. Their rules for single nodes are separate.

use super::space::loop_space;
use crate::entity::Entity;
use crate::graph::Graph;
use crate::ids::NodeId;
use crate::named_enum;
use crate::op::Op;

named_enum! {
    DispatchForm {
        /// Element-wise nodes over one iteration space, reductions and norms over one axis of it, and rows that
        /// are taken at positions that are data.
        Loop = "loop",
        /// Matrix products, followed by element-wise nodes as their epilogue.
        Product = "product",
        /// Matrix products of one left operand, and rotary embeddings of their results.
        Batch = "batch",
        /// An all-reduce, a residual, and a norm.
        Reduction = "reduction",
        /// An all-gather, and a copy that stores its result with the axes in another order.
        Gather = "gather",
        /// The largest elements of short rows, and what is computed from such rows.
        Selection = "selection",
        Rotary = "rotary",
        /// Stores at positions that are data.
        Scatter = "scatter",
        /// Collectives of one group and variant.
        Collectives = "collectives",
    }
}

/// The results of a dispatch that may lie on an operand of one of its nodes, element on element.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OverwriteRule {
    Never,
    /// The results of the same node.
    SameNode,
    /// The results of the same node and of later nodes.
    SameOrLaterNode,
}

impl OverwriteRule {
    /// Whether the results of `writer` may lie on an operand that `reader` reads.
    pub fn allows(self, reader: NodeId, writer: NodeId) -> bool {
        match self {
            OverwriteRule::Never => false,
            OverwriteRule::SameNode => reader == writer,
            OverwriteRule::SameOrLaterNode => reader <= writer,
        }
    }
}

impl DispatchForm {
    /// Whether the result of a node has no memory if no node outside the dispatch reads it. Peers and the library
    /// address symmetric results, which therefore always have memory.
    pub(super) fn keeps_result_internal(self, op: &Op) -> bool {
        match (self, op) {
            (DispatchForm::Reduction, Op::Collective(c)) => {
                let contract = c.variant.and_then(|v| v.contract(&c.kind));
                contract.is_some_and(|c| !c.symmetric_result)
            }
            (DispatchForm::Gather, op) => op.as_collective().is_some(),
            (DispatchForm::Loop | DispatchForm::Product | DispatchForm::Selection, _)
            | (DispatchForm::Batch, Op::MatMul { .. }) => true,
            (
                DispatchForm::Batch
                | DispatchForm::Reduction
                | DispatchForm::Rotary
                | DispatchForm::Scatter
                | DispatchForm::Collectives,
                _,
            ) => false,
        }
    }
}

/// Nodes that run as one step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Dispatch {
    pub form: DispatchForm,
    /// The first node; it names the step.
    pub first: NodeId,
    /// The last node. All nodes between `first` and `last` belong to the dispatch.
    pub last: NodeId,
}

impl Dispatch {
    /// The nodes, in program order.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = NodeId> + Clone + use<> {
        (self.first.index()..=self.last.index()).map(NodeId::new)
    }

    pub fn contains(&self, node: NodeId) -> bool {
        (self.first..=self.last).contains(&node)
    }

    /// The results that may lie on operand `operand` of a node of the dispatch. Another step defines the operand.
    pub fn overwrite_rule(&self, graph: &Graph, node: NodeId, operand: usize) -> OverwriteRule {
        match (self.form, &graph.nodes[node].op) {
            (DispatchForm::Reduction, Op::Collective(c)) => {
                let contract = c.variant.and_then(|v| v.contract(&c.kind));
                if contract.is_some_and(|c| c.in_place) {
                    OverwriteRule::SameOrLaterNode
                } else {
                    OverwriteRule::Never
                }
            }
            (DispatchForm::Rotary | DispatchForm::Scatter, _) if operand == 0 => OverwriteRule::SameNode,
            (DispatchForm::Loop, _)
                if loop_space(graph, self.nodes()).is_some_and(|space| space.reduces_outer_axis()) =>
            {
                OverwriteRule::Never
            }
            (DispatchForm::Loop | DispatchForm::Product | DispatchForm::Reduction, op)
                if op.is_element_wise() =>
            {
                OverwriteRule::SameOrLaterNode
            }
            (DispatchForm::Loop, Op::Reduce { .. } | Op::RmsNorm { .. } | Op::LayerNorm { .. })
                if operand == 0 =>
            {
                OverwriteRule::SameOrLaterNode
            }
            _ => OverwriteRule::Never,
        }
    }
}
