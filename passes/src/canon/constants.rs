//! Turns values whose elements are known into a `full`, or an `iota` under views.

use symmc_ir::{Dim, Op, TensorType};

use crate::rewrite::{CandidateNode, Rewrite, RewriteRule, Rewriter};

pub const RULES: &[RewriteRule] = &[
    RewriteRule { name: "known_full", equation: "x where every element is s = full(s)", apply: known_full },
    RewriteRule {
        name: "known_series",
        equation: "x where element i is a + b * i[axis] = expand(reshape(iota(a, b)))",
        apply: known_series,
    },
];

fn known_full(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    if matches!(node.op, Op::Full(_)) {
        return None;
    }
    let s = cx.facts().exact_of_node(&node.op, &node.inputs, &node.ty)?.as_full()?;
    Some(Rewrite::Node(Op::Full(s), vec![]))
}

fn known_series(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    if matches!(node.op, Op::Iota { .. } | Op::Full(_)) {
        return None;
    }
    let form = cx.facts().exact_of_node(&node.op, &node.inputs, &node.ty)?;
    let (start, axis, step) = form.as_series_along_axis()?;
    let extent = &node.ty.shape[axis];
    let iota =
        cx.emit("iota", Op::Iota { start, step }, &[], TensorType::new(node.ty.dtype, vec![extent.clone()]));
    let mut shape = vec![Dim::from(1); node.ty.rank()];
    shape[axis] = extent.clone();
    let (op, x) = match (shape == node.ty.shape, node.ty.rank()) {
        (true, 1) => return Some(Rewrite::Value(iota)),
        (true, _) => (Op::Reshape, iota),
        (false, _) => (Op::Expand, cx.reshape(iota, shape)),
    };
    let canonical = node.op == op && node.inputs == [x];
    (!canonical).then_some(Rewrite::Node(op, vec![x]))
}
