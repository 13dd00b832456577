//! Recognises softmax and silu that are written out.
//!
//! The rules apply only in f32 and f64, where the fused form differs in the last bits at most. Narrower
//! types round every step.

use symmc_ir::{BinaryOp, DType, Op, ReductionKind, Scalar, UnaryOp, ValueId};

use crate::rewrite::{CandidateNode, Rewrite, RewriteRule, Rewriter};

pub const RULES: &[RewriteRule] = &[
    RewriteRule {
        name: "silu",
        equation: "x * sigmoid(x) = x / (1 + exp(-x)) = silu(x), for f32 and f64",
        apply: silu,
    },
    RewriteRule {
        name: "softmax",
        equation: "exp(x - max(x)) / sum(exp(x - max(x))) = softmax(x), for f32 and f64",
        apply: softmax,
    },
    RewriteRule {
        name: "between_casts",
        equation: "cast(f(cast(x))) = f(x) for silu and softmax, which compute in f32",
        apply: activation_between_casts,
    },
];

fn is_wide_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64)
}

fn silu(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let (Op::Binary(op), &[a, b]) = (&node.op, &node.inputs[..]) else { return None };
    let x = match op {
        BinaryOp::Mul if is_sigmoid(cx, b, a) => a,
        BinaryOp::Mul if is_sigmoid(cx, a, b) => b,
        BinaryOp::Div if match_one_plus_exp(cx, b) == Some(a) => a,
        _ => return None,
    };
    is_wide_float(node.ty.dtype).then_some(Rewrite::Node(Op::Unary(UnaryOp::Silu), vec![x]))
}

fn is_sigmoid(cx: &Rewriter, value: ValueId, x: ValueId) -> bool {
    matches!(cx.def(value), Some((Op::Unary(UnaryOp::Sigmoid), &[y])) if x == y)
}

/// `x`, if the value is `1 + exp(-x)`.
fn match_one_plus_exp(cx: &Rewriter, value: ValueId) -> Option<ValueId> {
    let (Op::BinaryScalar { op: BinaryOp::Add, scalar, .. }, &[exp]) = cx.def(value)? else { return None };
    let (Op::Unary(UnaryOp::Exp), &[negated]) = cx.def(exp)? else { return None };
    let (Op::Unary(UnaryOp::Neg), &[x]) = cx.def(negated)? else { return None };
    (Scalar::as_f64(*scalar) == 1.0).then_some(x)
}

fn softmax(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let (Op::Binary(BinaryOp::Div), &[e, sum]) = (&node.op, &node.inputs[..]) else { return None };
    let (Op::Reduce { op: ReductionKind::Sum, axes, keep: true }, &[summed]) = cx.def(sum)? else {
        return None;
    };
    let (Op::Unary(UnaryOp::Exp), &[difference]) = cx.def(e)? else { return None };
    let (Op::Binary(BinaryOp::Sub), &[x, max]) = cx.def(difference)? else { return None };
    let (Op::Reduce { op: ReductionKind::Max, axes: over, keep: true }, &[y]) = cx.def(max)? else {
        return None;
    };
    let &[axis] = &axes[..] else { return None };
    let matches =
        summed == e && x == y && axes == over && is_wide_float(node.ty.dtype) && *cx.ty(x) == node.ty;
    // If other nodes need these values, for example for a gradient, they are computed anyway.
    if !matches || [sum, max, difference].into_iter().any(|v| cx.is_shared(v)) {
        return None;
    }
    Some(Rewrite::Node(Op::Softmax { axis, log: false }, vec![x]))
}

fn activation_between_casts(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    if node.op != Op::Cast || !matches!(node.ty.dtype, DType::F16 | DType::BF16) {
        return None;
    }
    let (op, &[inner]) = cx.def(node.inputs[0])? else { return None };
    if !matches!(op, Op::Unary(UnaryOp::Silu) | Op::Softmax { .. }) || cx.is_shared(node.inputs[0]) {
        return None;
    }
    let op = op.clone();
    let (Op::Cast, &[x]) = cx.def(inner)? else { return None };
    (cx.ty(x).dtype == node.ty.dtype).then_some(Rewrite::Node(op, vec![x]))
}
