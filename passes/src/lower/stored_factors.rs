//! Lets products of few rows read right matrices of 8 bits as they are stored.
//!
//! ```text
//! matmul(x, permute(cast(w)))  =  matmul(x, permute(w))
//! ```
//!
//! Both sides have the same bits: the dtype of `x` represents all numbers of `w`. The right side reads half of the bytes,
//! and does not write the cast. A machine has kernels for it up to a number of rows, and for rows of `w` along K, as
//! layers store their weights. With more rows the cast costs less than the product, which the library computes.

use symmc_ir::{Dim, Op, TensorType};

use crate::rewrite::{CandidateNode, Rewrite, RewriteRule, Rewriter};

pub(super) const RULES: &[RewriteRule] = &[RewriteRule {
    name: "stored_factor",
    equation: "matmul(x, permute(cast(w))) = matmul(x, permute(w)) where the dtype of x represents the numbers of w",
    apply: read_stored_factor,
}];

/// K must be a multiple of this, so that lines of a matrix are read in accesses of 16 bytes.
const K_MULTIPLE: i64 = 16;

/// Whether a program has products whose right matrices the rule may change.
pub(super) fn may_apply(graph: &symmc_ir::Graph) -> bool {
    graph.nodes.values().any(|node| {
        let types = || (graph.ty(node.inputs[0]).dtype, graph.ty(node.outputs[0]).dtype);
        node.op == Op::Cast && types().0.is_stored_factor(types().1)
    })
}

fn read_stored_factor(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let (Op::MatMul { .. }, &[x, y]) = (&node.op, &node.inputs[..]) else { return None };
    let (Op::Permute { perm }, &[cast]) = cx.def(y)? else { return None };
    let is_transposed = perm[..] == [1, 0];
    let (Op::Cast, &[stored]) = cx.def(cast)? else { return None };
    let TensorType { dtype, shape } = cx.ty(stored).clone();
    let [columns, k] = &shape[..] else { return None };
    let leading = &node.ty.shape[..node.ty.rank() - 1];
    let rows = leading.iter().cloned().fold(Dim::from(1), |rows, extent| rows * extent);
    let limits = symmc_ir::machine::DispatchCapabilities::GPU.product?;
    let max_rows = i64::from(limits.stored_rows?);
    let fits = is_transposed
        && dtype.is_stored_factor(cx.ty(x).dtype)
        && rows.bounds(cx.symbols()).1 <= max_rows
        && k.is_divisible_by(K_MULTIPLE);
    if !fits {
        return None;
    }
    let ty = TensorType::new(dtype, vec![k.clone(), columns.clone()]);
    let transposed = cx.emit("stored", Op::Permute { perm: vec![1, 0] }, &[stored], ty);
    Some(Rewrite::Node(node.op.clone(), vec![x, transposed]))
}
