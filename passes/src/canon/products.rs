//! Simplifies products that flatten the leading axes of their operand and restore them afterwards.

use symmc_ir::{Op, TensorType};

use crate::rewrite::{CandidateNode, Rewrite, RewriteRule, Rewriter};

pub const RULES: &[RewriteRule] = &[RewriteRule {
    name: "matmul_of_flattened",
    equation: "reshape(matmul(reshape(x), w)) = matmul(reshape(x), w) where w has two axes and the last axis stays",
    apply: matmul_of_flattened,
}];

/// The operand must already be a reshape. Replacing one reshape by another costs nothing, while a reshape of
/// a strided view would be a copy.
fn matmul_of_flattened(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let product = cx.def(*node.inputs.first()?);
    let (Op::Reshape, Some((Op::MatMul, &[flat, w]))) = (&node.op, product) else { return None };
    let Some((Op::Reshape, _)) = cx.def(flat) else { return None };
    let [inner, columns] = cx.shape(w) else { return None };
    let (last, leading) = node.ty.shape.split_last()?;
    if last != columns || leading.is_empty() || cx.shape(flat).len() != 2 {
        return None;
    }
    let mut shape = leading.to_vec();
    shape.push(inner.clone());
    let fits = TensorType::new(node.ty.dtype, shape.clone()).numel() == cx.ty(flat).numel();
    if !fits {
        return None;
    }
    let x = cx.reshape(flat, shape);
    Some(Rewrite::Node(Op::MatMul, vec![x, w]))
}
