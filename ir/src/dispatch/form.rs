//! The forms, and which results of each may lie on what it reads.
//!
//! [`Form::overwriting`] is the contract of the kernels of a form. The planner places by it, and the check proves by it: what
//! either adds for single nodes is its own.

use crate::entity::Entity;
use crate::ids::NodeId;
use crate::named_enum;
use crate::op::Op;

named_enum! {
    DispatchForm {
        /// Element-wise nodes over one shape.
        Map = "map",
        /// Matrix products, and element-wise nodes behind them as their epilogue.
        Product = "product",
        /// Matrix products side by side, and rotary embeddings of what they give.
        Batch = "batch",
        /// An all-reduce, a residual, and a norm.
        Reduction = "reduction",
        /// An all-gather, and a copy that stores its result with its axes in another order.
        Gather = "gather",
        /// Element-wise nodes over one shape, and the norm of the rows of what one of them gives.
        Norm = "norm",
        /// Reductions of rows, and element-wise nodes before, between and after them.
        Rows = "rows",
        Rotary = "rotary",
        /// Stores at positions that are data.
        Scatter = "scatter",
        /// Collectives of one group and variant.
        Collectives = "collectives",
    }
}

/// Which results of a dispatch may lie on an operand of one of its nodes, element on element.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OverwriteRule {
    Never,
    /// Those of the same node.
    SameNode,
    /// Those of the same node and of nodes behind it.
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
    /// Which results may lie on this operand of a node, which other steps define.
    pub fn overwrite_rule(self, op: &Op, operand: usize) -> OverwriteRule {
        match (self, op) {
            (DispatchForm::Reduction, Op::Collective(c)) => {
                let contract = c.variant.and_then(|v| v.contract(&c.kind));
                if contract.is_some_and(|c| c.in_place) {
                    OverwriteRule::SameOrLaterNode
                } else {
                    OverwriteRule::Never
                }
            }
            (DispatchForm::Rotary | DispatchForm::Scatter, _) if operand == 0 => OverwriteRule::SameNode,
            (
                DispatchForm::Map
                | DispatchForm::Product
                | DispatchForm::Reduction
                | DispatchForm::Norm
                | DispatchForm::Rows,
                op,
            ) if op.is_element_wise() => OverwriteRule::SameOrLaterNode,
            (DispatchForm::Rows, Op::Reduce { .. }) => OverwriteRule::SameOrLaterNode,
            _ => OverwriteRule::Never,
        }
    }

    /// Whether what a node gives has no memory if nothing else reads it.
    pub(super) fn keeps_result_internal(self, op: &Op) -> bool {
        match (self, op) {
            (DispatchForm::Reduction, Op::Collective(c)) => {
                let contract = c.variant.and_then(|v| v.contract(&c.kind));
                contract.is_some_and(|c| !c.peer_access.writes_result())
            }
            (DispatchForm::Gather, op) => op.as_collective().is_some(),
            (DispatchForm::Map | DispatchForm::Product | DispatchForm::Norm | DispatchForm::Rows, _)
            | (DispatchForm::Batch, Op::MatMul) => true,
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
    /// The first of the nodes, by which the step is named.
    pub first: NodeId,
    /// The last of them; all between the two belong to it.
    pub last: NodeId,
}

impl Dispatch {
    /// Its nodes, in program order.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = NodeId> + use<> {
        (self.first.index()..=self.last.index()).map(NodeId::new)
    }

    pub fn contains(&self, node: NodeId) -> bool {
        (self.first..=self.last).contains(&node)
    }
}
