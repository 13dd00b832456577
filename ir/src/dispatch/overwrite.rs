//! The results of dispatches that may lie on operands.
//!
//! [`Dispatch::overwrite_rule`] is part of the contract of the kernels of a form. The planner places by it
//! and the plan check verifies by it. Their rules for single nodes are separate.

use super::space::loop_space;
use crate::dispatch_form::{Dispatch, DispatchForm};
use crate::graph::Graph;
use crate::ids::NodeId;
use crate::op::Op;

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

impl Dispatch {
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
