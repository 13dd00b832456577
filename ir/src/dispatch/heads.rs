//! Rotary embeddings of the columns of a matrix product, head by head.

use crate::dim::Dim;
use crate::entity::EntityMap;
use crate::graph::Graph;
use crate::ids::{NodeId, ValueId};
use crate::layout::{Layout, view_layout};
use crate::op::{Op, ProductResult};

/// The matrix product whose columns a rotary embedding turns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RotatedProduct {
    pub product: NodeId,
    /// The views between the two, in program order.
    pub views: Vec<NodeId>,
}

/// The matrix product that a rotary embedding rotates. The embedding must rotate all columns of the product, in
/// heads as wide as its own rows, and nothing else may read them. `users` are the nodes that use each value.
pub fn find_rotated_product(
    graph: &Graph,
    users: &EntityMap<ValueId, Vec<NodeId>>,
    rotary: NodeId,
) -> Option<RotatedProduct> {
    let node = &graph.nodes[rotary];
    let (&Op::RotaryEmbedding { width, .. }, Some(&x)) = (&node.op, node.inputs.first()) else { return None };
    let mut value = x;
    let mut reader = rotary;
    let mut views = Vec::new();
    let product = loop {
        let is_only_use = users[value][..] == [reader] && graph.outputs.iter().all(|o| o.value != value);
        reader = graph.defining_node(value).filter(|_| is_only_use)?;
        match (&graph.nodes[reader].op, &graph.nodes[reader].inputs[..]) {
            (Op::MatMul { result: ProductResult::Rounded }, _) => break reader,
            (Op::Reshape | Op::Permute { .. }, &[before]) => value = before,
            _ => return None,
        }
        views.push(reader);
    };
    views.reverse();
    let ty = graph.ty(value);
    let mut layout = Layout { base: value, offset: Dim::from(0), strides: ty.contiguous_strides() };
    for &view in &views {
        let from = graph.nodes[view].inputs[0];
        let result = graph.nodes[view].outputs[0];
        layout = view_layout(&graph.nodes[view].op, &layout, graph.ty(from), graph.ty(result))?;
    }
    let columns = ty.shape.last()?.as_const()?;
    let is_full_width = graph.ty(x).shape.last()?.as_const() == i64::try_from(width).ok();
    (is_full_width && is_split_into_heads(&graph.ty(x).shape, &layout.strides, columns))
        .then_some(RotatedProduct { product, views })
}

/// Whether the last axis of a view of a matrix is a head, that is, adjacent columns of the matrix. The other
/// axes must be axes of heads or of rows.
fn is_split_into_heads(shape: &[Dim], strides: &[Dim], columns: i64) -> bool {
    let (Some((head, shape)), Some((along, strides))) = (shape.split_last(), strides.split_last()) else {
        return false;
    };
    let Some(head) = head.as_const().filter(|_| along.as_const() == Some(1)) else { return false };
    let mut elements = head;
    for (extent, stride) in shape.iter().zip(strides) {
        match (extent.as_const(), stride.as_const()) {
            (Some(1), _) => {}
            (Some(n), Some(s)) if s < columns => elements = elements.saturating_mul(n),
            _ if stride.is_divisible_by(columns) => {}
            _ => return false,
        }
    }
    elements == columns
}
