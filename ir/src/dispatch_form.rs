//! The forms of dispatches.

use crate::entity::Entity;
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

impl DispatchForm {
    /// Whether the result of a node has no memory if no node outside the dispatch reads it. Peers and the library
    /// address symmetric results, which therefore always have memory.
    pub(crate) fn keeps_result_internal(self, op: &Op) -> bool {
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
}
