//! Removes expansions of operands that the op broadcasts itself.
//!
//! If all operands of an op are expanded, the op works on the unexpanded operands, and its result is
//! expanded instead. An index of elements that is expanded along all other axes is an index of slices.

use symmc_ir::attention::AttentionOperands;
use symmc_ir::infer::broadcast_shapes;
use symmc_ir::{Dim, Op, ReductionKind, Scalar, TensorType, ValueId};

use crate::rewrite::{CandidateNode, Rewrite, RewriteRule, Rewriter};

pub const RULES: &[RewriteRule] = &[
    RewriteRule {
        name: "elementwise_of_expand",
        equation: "f(expand(x), y, ..) = expand(f(x, y, ..)) for element-wise f",
        apply: elementwise_of_expand,
    },
    RewriteRule {
        name: "select_of_full",
        equation: "select(c, full(s), full(t)) = expand(select(c, scalar s, scalar t))",
        apply: select_of_full,
    },
    RewriteRule {
        name: "matmul_of_expand",
        equation: "matmul(expand(x), y) = matmul(x, y) where only batch axes are expanded and y has them",
        apply: matmul_of_expand,
    },
    RewriteRule {
        name: "mask_of_expand",
        equation: "attention(.., expand(mask)) = attention(.., mask)",
        apply: mask_of_expand,
    },
    RewriteRule {
        name: "elements_of_expanded_index",
        equation: "gather_elements(x, expand(i)) = take(x, i) and scatter_elements(x, expand(i), y) = index_put(x, y, i) \
                   where i varies along the axis only, and other axes are whole",
        apply: elements_of_expanded_index,
    },
];

/// The value before an expand, or the value itself.
fn unexpanded(cx: &Rewriter, value: ValueId) -> ValueId {
    match cx.def(value) {
        Some((Op::Expand, &[x])) => x,
        _ => value,
    }
}

fn elementwise_of_expand(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    if !node.op.is_element_wise() {
        return None;
    }
    let inputs: Vec<ValueId> = node.inputs.iter().map(|&v| unexpanded(cx, v)).collect();
    if inputs == node.inputs {
        return None;
    }
    let shapes: Vec<&[Dim]> = inputs.iter().map(|&v| cx.shape(v)).collect();
    let shape = broadcast_shapes(&shapes).ok()?;
    if shape == node.ty.shape {
        return Some(Rewrite::Node(node.op.clone(), inputs));
    }
    let narrow = cx.emit("narrow", node.op.clone(), &inputs, TensorType::new(node.ty.dtype, shape));
    Some(Rewrite::Node(Op::Expand, vec![narrow]))
}

/// A tensor filled with one scalar is that scalar, expanded.
fn select_of_full(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let (Op::Select, &[cond, x, y]) = (&node.op, &node.inputs[..]) else { return None };
    if match_full(cx, x).is_none() && match_full(cx, y).is_none() {
        return None;
    }
    let [x, y] = [x, y].map(|v| match match_full(cx, v) {
        Some(s) => cx.emit("scalar", Op::Full(s), &[], TensorType::new(node.ty.dtype, vec![])),
        None => v,
    });
    let shape = broadcast_shapes(&[cx.shape(cond), cx.shape(x), cx.shape(y)]).ok()?;
    if shape == node.ty.shape {
        return Some(Rewrite::Node(Op::Select, vec![cond, x, y]));
    }
    let narrow = cx.emit("narrow", Op::Select, &[cond, x, y], TensorType::new(node.ty.dtype, shape));
    Some(Rewrite::Node(Op::Expand, vec![narrow]))
}

/// The scalar that fills a value of at least one axis.
fn match_full(cx: &Rewriter, value: ValueId) -> Option<Scalar> {
    match cx.def(value) {
        Some((Op::Full(_), _)) if !cx.shape(value).is_empty() => cx.known_full(value),
        _ => None,
    }
}

fn matmul_of_expand(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    if !node.op.is_matmul() {
        return None;
    }
    let inputs: Vec<ValueId> = node
        .inputs
        .iter()
        .map(|&v| {
            let x = unexpanded(cx, v);
            let wide = cx.shape(v);
            let narrow = cx.shape(x);
            let inner = narrow.len() >= 2 && narrow[narrow.len() - 2..] == wide[wide.len() - 2..];
            if inner { x } else { v }
        })
        .collect();
    if inputs == node.inputs {
        return None;
    }
    let batches = [inputs[0], inputs[1]].map(|v| &cx.shape(v)[..cx.shape(v).len() - 2]);
    let same_batch = broadcast_shapes(&batches).ok()? == node.ty.shape[..node.ty.rank() - 2];
    same_batch.then_some(Rewrite::Node(node.op.clone(), inputs))
}

fn mask_of_expand(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let Op::Attention { bounds, sink, .. } = &node.op else { return None };
    let operands = AttentionOperands::from_operands(bounds, *sink, &node.inputs)?;
    let mask = *operands.mask?;
    let narrow = unexpanded(cx, mask);
    (narrow != mask).then(|| Rewrite::Node(node.op.clone(), operands.with_mask(Some(narrow))))
}

/// PyTorch's `gather`, `scatter` and `scatter_add` take one index for each element. Programs expand the index of a
/// row to its elements.
fn elements_of_expanded_index(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let (axis, index, moved) = match (&node.op, &node.inputs[..]) {
        (&Op::GatherElements { axis }, &[_, index]) => (axis, index, node.ty.shape.to_vec()),
        (&Op::ScatterElements { axis, combine: None | Some(ReductionKind::Sum) }, &[_, index, source]) => {
            (axis, index, cx.shape(source).to_vec())
        }
        _ => return None,
    };
    let x = node.inputs[0];
    let mut other_axes = (0..moved.len()).filter(|&a| a != axis);
    if !other_axes.all(|a| moved[a] == cx.shape(x)[a]) {
        return None;
    }
    let narrow = unexpanded(cx, index);
    let missing = moved.len() - cx.shape(narrow).len();
    let own = axis.checked_sub(missing)?;
    let mut other_extents = cx.shape(narrow).iter().enumerate().filter(|&(a, _)| a != own).map(|(_, n)| n);
    if narrow == index || cx.shape(narrow)[own] != moved[axis] || !other_extents.all(|n| *n == Dim::from(1)) {
        return None;
    }
    let positions = cx.reshape(narrow, vec![moved[axis].clone()]);
    Some(match node.op {
        Op::ScatterElements { combine, .. } => {
            let op = Op::IndexPut { axis, accumulate: combine.is_some() };
            Rewrite::Node(op, vec![x, node.inputs[2], positions])
        }
        _ => Rewrite::Node(Op::Take { axis }, vec![x, positions]),
    })
}
