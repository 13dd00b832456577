//! The iteration space of a loop, and the shapes that its nodes may have.

use crate::dim::Dim;
use crate::graph::Graph;
use crate::ids::NodeId;
use crate::infer::broadcast_shapes;
use crate::op::Op;
use crate::symbol::SymbolTable;

/// The iteration space of a [`DispatchForm::Loop`](crate::DispatchForm::Loop).
#[derive(Clone, Copy, Debug)]
pub struct LoopSpace<'a> {
    pub shape: &'a [Dim],
    /// The axis that the loop reduces: the last one, or the one before.
    pub reduced_axis: Option<usize>,
}

/// The axis of an operand of this rank that an op of a loop reduces. `None` if it reduces none or several.
pub fn reduced_axis(op: &Op, rank: usize) -> Option<usize> {
    match op {
        Op::Reduce { axes, .. } => match axes[..] {
            [axis] => Some(axis),
            _ => None,
        },
        Op::RmsNorm { axes: 1, .. } | Op::LayerNorm { axes: 1, .. } => rank.checked_sub(1),
        _ => None,
    }
}

/// The space of a loop of these nodes: the shape of the first reduced operand or, without reductions, of the result of
/// the last element-wise node.
pub fn loop_space(
    graph: &Graph,
    nodes: impl DoubleEndedIterator<Item = NodeId> + Clone,
) -> Option<LoopSpace<'_>> {
    let nodes = nodes.map(|n| &graph.nodes[n]);
    let reduced = nodes.clone().find_map(|node| {
        let shape = &graph.ty(*node.inputs.first()?).shape[..];
        let axis = reduced_axis(&node.op, shape.len())?;
        Some(LoopSpace { shape, reduced_axis: Some(axis) })
    });
    // The last element-wise node is never a broadcast node, because a later node reads those.
    reduced.or_else(|| {
        let last = nodes.rev().find(|node| node.op.fits_map())?;
        Some(LoopSpace { shape: &graph.ty(*last.outputs.first()?).shape, reduced_axis: None })
    })
}

impl LoopSpace<'_> {
    /// Whether the reduced axis, if there is one, is one that loops reduce: the last, or the one before.
    pub fn has_allowed_axis(&self) -> bool {
        self.reduced_axis.is_none_or(|axis| axis + 2 >= self.shape.len())
    }

    /// Whether each reduction has at least one term for all sizes.
    pub fn has_terms(&self, symbols: &SymbolTable) -> bool {
        let reduced = self.reduced_axis.and_then(|axis| self.shape.get(axis));
        reduced.is_none_or(|extent| extent.bounds(symbols).0 >= 1)
    }

    /// Whether the loop reduces the axis before the last.
    pub fn reduces_outer_axis(&self) -> bool {
        self.reduced_axis.is_some_and(|axis| axis + 1 != self.shape.len())
    }

    pub fn reduces_rows(&self) -> bool {
        self.reduced_axis.is_some_and(|axis| axis + 1 == self.shape.len())
    }

    /// Whether a shape has one element for each element of the results of reductions. Reductions of the last axis
    /// keep it with extent 1.
    pub fn is_reduced_shape(&self, shape: &[Dim]) -> bool {
        let Some((axis, (before, after))) = self
            .reduced_axis
            .and_then(|axis| Some((axis, (self.shape.get(..axis)?, self.shape.get(axis + 1..)?))))
        else {
            return false;
        };
        let is_kept = shape.len() == self.shape.len()
            && shape[..axis] == *before
            && shape[axis] == Dim::from(1)
            && shape[axis + 1..] == *after;
        let is_dropped =
            || shape.len() + 1 == self.shape.len() && shape[..axis] == *before && shape[axis..] == *after;
        is_kept || self.reduces_outer_axis() && is_dropped()
    }

    /// Whether a shape is smaller than the space and broadcasts to it.
    pub fn is_broadcast_shape(&self, shape: &[Dim]) -> bool {
        shape != self.shape && broadcast_shapes(&[shape, self.shape]).is_ok_and(|joint| joint == self.shape)
    }
}
