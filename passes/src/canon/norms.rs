//! Recognises root-mean-square norms that are written out.
//!
//! The written form is `x * rsqrt(mean(x * x) + eps)`, often between casts to f32 and back. It is recognised
//! in steps: first the norm in its own dtype, then the casts around it, then the weight. If other nodes need
//! the root or the mean, as in training graphs, the norm stays as it is: its reduction has to run anyway,
//! and one step can do both.

use symmc_ir::{BinaryOp, DType, FloatAttribute, Op, ReductionKind, UnaryOp, ValueId};

use crate::rewrite::{CandidateNode, Rewrite, RewriteRule, Rewriter};

pub const RULES: &[RewriteRule] = &[
    RewriteRule {
        name: "rms_norm",
        equation: "x * rsqrt(mean(x * x) + eps) = x * (1 / sqrt(mean(x * x) + eps)) = x / sqrt(mean(x * x) + eps) = \
                   rms_norm(x), for f32 and f64",
        apply: rms_norm,
    },
    RewriteRule {
        name: "rms_norm_between_casts",
        equation: "cast(rms_norm(cast(x))) = rms_norm(x); cast(rms_norm(cast(x), cast(w))) = rms_norm(x, w), \
                   rounding last",
        apply: rms_norm_between_casts,
    },
    RewriteRule {
        name: "rms_norm_weight",
        equation: "rms_norm(x) * w = rms_norm(x, w), rounding first",
        apply: weight,
    },
];

fn rms_norm(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let (Op::Binary(op), &[a, b]) = (&node.op, &node.inputs[..]) else { return None };
    if !matches!(node.ty.dtype, DType::F32 | DType::F64) {
        return None;
    }
    let matched = match op {
        BinaryOp::Mul => {
            match_norm_scale(cx, a, b, UnaryOp::Rsqrt).or_else(|| match_norm_scale(cx, b, a, UnaryOp::Rsqrt))
        }
        BinaryOp::Div => match_norm_scale(cx, a, b, UnaryOp::Sqrt),
        _ => None,
    };
    let (x, axes, eps) = matched?;
    Some(Rewrite::Node(Op::RmsNorm { axes, eps, round_first: true }, vec![x]))
}

/// Whether `scale` is `root(mean(x * x) + eps)` over the last axes of `x`: `x`, their number and `eps`.
fn match_norm_scale(
    cx: &Rewriter,
    x: ValueId,
    scale: ValueId,
    root: UnaryOp,
) -> Option<(ValueId, usize, FloatAttribute)> {
    let (matched_root, sum) = match_root(cx, scale)?;
    let (Op::BinaryScalar { op: BinaryOp::Add, scalar, .. }, &[mean]) = cx.def(sum)? else { return None };
    let (Op::Reduce { op: ReductionKind::Mean, axes, keep: true }, &[square]) = cx.def(mean)? else {
        return None;
    };
    let (Op::Binary(BinaryOp::Mul), &[y, z]) = cx.def(square)? else { return None };
    let are_last_axes = axes.iter().copied().eq(cx.shape(x).len() - axes.len()..cx.shape(x).len());
    let matches = matched_root == root && (x, x) == (y, z) && are_last_axes && !axes.is_empty();
    // If other nodes need the mean or the root, for example for a gradient, the norm would read the operand
    // a second time.
    if !matches || [scale, sum, mean].into_iter().any(|v| cx.is_shared(v)) {
        return None;
    }
    Some((x, axes.len(), FloatAttribute(scalar.as_f64())))
}

/// The root op of a value and its operand; `1 / sqrt(x)` counts as `rsqrt(x)`.
fn match_root(cx: &Rewriter, value: ValueId) -> Option<(UnaryOp, ValueId)> {
    let inverted = match cx.def(value)? {
        (Op::Unary(UnaryOp::Reciprocal), &[x]) => x,
        (Op::BinaryScalar { op: BinaryOp::Div, scalar, scalar_left: true }, &[x])
            if scalar.as_f64() == 1.0 =>
        {
            x
        }
        (Op::Unary(op), &[x]) => return Some((*op, x)),
        _ => return None,
    };
    match cx.def(inverted)? {
        (Op::Unary(UnaryOp::Sqrt), &[x]) => Some((UnaryOp::Rsqrt, x)),
        _ => None,
    }
}

/// The operand of a widening cast, if the cast gives `value` and the operand has dtype `from`.
fn match_widened(cx: &Rewriter, value: ValueId, from: DType) -> Option<ValueId> {
    match cx.def(value) {
        Some((Op::Cast, &[x])) if cx.ty(x).dtype == from => Some(x),
        _ => None,
    }
}

fn rms_norm_between_casts(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    if node.op != Op::Cast || !matches!(node.ty.dtype, DType::F16 | DType::BF16) {
        return None;
    }
    let Some((Op::RmsNorm { axes, eps, .. }, inputs)) = cx.def(node.inputs[0]) else { return None };
    if cx.is_shared(node.inputs[0]) {
        return None;
    }
    let inputs = inputs.iter().map(|&v| match_widened(cx, v, node.ty.dtype)).collect::<Option<Vec<_>>>()?;
    let op = Op::RmsNorm { axes: *axes, eps: *eps, round_first: inputs.len() == 1 };
    Some(Rewrite::Node(op, inputs))
}

fn weight(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let (Op::Binary(BinaryOp::Mul), &[a, b]) = (&node.op, &node.inputs[..]) else { return None };
    for (normed, w) in [(a, b), (b, a)] {
        let Some((Op::RmsNorm { axes, eps, .. }, &[x])) = cx.def(normed) else { continue };
        let tail = &cx.shape(x)[cx.shape(x).len() - axes..];
        if cx.shape(w) == tail && *cx.ty(x) == node.ty {
            let op = Op::RmsNorm { axes: *axes, eps: *eps, round_first: true };
            return Some(Rewrite::Node(op, vec![x, w]));
        }
    }
    None
}
