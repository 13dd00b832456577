//! Simplifies products that flatten the leading axes of their operand and restore them afterwards, and products
//! whose unrounded sums are only rounded.

use symmc_ir::{Op, TensorType};

use crate::rewrite::{CandidateNode, Rewrite, RewriteRule, Rewriter};

pub const RULES: &[RewriteRule] = &[
    RewriteRule {
        name: "matmul_of_flattened",
        equation: "reshape(matmul(reshape(x), w)) = matmul(reshape(x), w) where w has two axes and the last axis stays",
        apply: matmul_of_flattened,
    },
    RewriteRule {
        name: "rounded_matmul",
        equation: "cast(matmul_unrounded(x, y)) = matmul(x, y) where the cast is to the dtype of x, also with a reshape \
                   between them",
        apply: rounded_matmul,
    },
];

/// Other readers of the sums would keep a second product.
fn rounded_matmul(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let (Op::Cast, &[cast]) = (&node.op, &node.inputs[..]) else { return None };
    let (sums, is_reshaped) = match cx.def(cast)? {
        (Op::Reshape, &[sums]) => (sums, true),
        _ => (cast, false),
    };
    let (&Op::MATMUL_UNROUNDED, &[x, y]) = cx.def(sums)? else { return None };
    let is_shared = cx.is_shared(cast) || cx.is_shared(sums);
    if is_shared || node.ty.dtype != cx.ty(x).dtype {
        return None;
    }
    if !is_reshaped {
        return Some(Rewrite::Node(Op::MATMUL, vec![x, y]));
    }
    let ty = TensorType::new(node.ty.dtype, cx.shape(sums));
    let product = cx.emit("rounded", Op::MATMUL, &[x, y], ty);
    Some(Rewrite::Node(Op::Reshape, vec![product]))
}

/// The operand must already be a reshape. Replacing one reshape by another costs nothing, while a reshape of
/// a strided view would be a copy.
fn matmul_of_flattened(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let product = cx.def(*node.inputs.first()?);
    let (Op::Reshape, Some((product @ Op::MatMul { .. }, &[flat, w]))) = (&node.op, product) else {
        return None;
    };
    let product = product.clone();
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
    Some(Rewrite::Node(product, vec![x, w]))
}
