//! Removes ops that change nothing, and replaces ops that a simpler op expresses bit for bit.

use symmc_ir::positions::{ElementForm, is_stored_exactly};
use symmc_ir::{BinaryOp, DType, Dim, FloatAttribute, Op, Scalar, TensorType, UnaryOp, ValueId};

use crate::rewrite::{CandidateNode, Rewrite, RewriteRule, Rewriter};

pub const RULES: &[RewriteRule] = &[
    RewriteRule { name: "copy", equation: "copy(x) = x (values never change)", apply: copy },
    RewriteRule { name: "cast_to_same", equation: "cast(x) to the dtype of x = x", apply: cast_to_same },
    RewriteRule {
        name: "cast_of_widening",
        equation: "cast(cast(x)) = cast(x) where the inner cast loses nothing",
        apply: cast_of_widening,
    },
    RewriteRule {
        name: "scalar_operand",
        equation: "x op full(s) = expand(x op s); full(s) op x = expand(s op x)",
        apply: scalar_operand,
    },
    RewriteRule {
        name: "neutral_scalar",
        equation: "x * 1 = x / 1 = x ** 1 = x - 0.0 = x + -0.0 = x; for integers x + 0 = x - 0 = x // 1 = x; \
                   for bool x and true = x or false = x xor false = x",
        apply: neutral_scalar,
    },
    RewriteRule { name: "square", equation: "x ** 2 = x * x", apply: square },
    RewriteRule { name: "involution", equation: "neg(neg(x)) = not(not(x)) = x", apply: involution },
    RewriteRule {
        name: "select_known",
        equation: "select(full(c), x, y) = expand(x) if c, else expand(y); select(c, x, x) = expand(x)",
        apply: select_known,
    },
    RewriteRule {
        name: "index_of_rows",
        equation: "index(x, iota of axis 0, iota of axis 1, .., y) = gather_elements(x, y) along the last axis",
        apply: index_of_rows,
    },
];

fn copy(_: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    (node.op == Op::Copy).then(|| Rewrite::Value(node.inputs[0]))
}

fn cast_to_same(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let is_noop = node.op == Op::Cast && *cx.ty(node.inputs[0]) == node.ty;
    is_noop.then(|| Rewrite::Value(node.inputs[0]))
}

fn cast_of_widening(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    if node.op != Op::Cast {
        return None;
    }
    let middle = cx.ty(node.inputs[0]).dtype;
    let Some((Op::Cast, &[x])) = cx.def(node.inputs[0]) else { return None };
    middle.represents(cx.ty(x).dtype).then_some(Rewrite::Node(Op::Cast, vec![x]))
}

fn scalar_operand(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let Op::Binary(op) = node.op else { return None };
    for (scalar_left, x, s) in
        [(false, node.inputs[0], node.inputs[1]), (true, node.inputs[1], node.inputs[0])]
    {
        let Some(scalar) = exact_scalar(cx, s) else { continue };
        let op = Op::BinaryScalar { op, scalar, scalar_left };
        if cx.shape(x) == node.ty.shape {
            return Some(Rewrite::Node(op, vec![x]));
        }
        let ty = TensorType::new(node.ty.dtype, cx.shape(x));
        let narrow = cx.emit("narrow", op, &[x], ty);
        return Some(Rewrite::Node(Op::Expand, vec![narrow]));
    }
    None
}

/// The scalar that fills a value, if the value's dtype stores it exactly.
fn exact_scalar(cx: &Rewriter, value: ValueId) -> Option<Scalar> {
    let scalar = cx.known_full(value)?;
    is_stored_exactly(cx.ty(value).dtype, scalar).then_some(scalar)
}

fn neutral_scalar(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    use BinaryOp::*;
    let Op::BinaryScalar { op, scalar, scalar_left } = &node.op else { return None };
    let dtype = cx.ty(node.inputs[0]).dtype;
    let number = scalar.as_f64();
    let negative = number.is_sign_negative();
    let right = !scalar_left;
    let neutral = match (op, dtype) {
        (And, DType::Bool) => *scalar == Scalar::Bool(true),
        (Or | Xor, DType::Bool) => *scalar == Scalar::Bool(false),
        (_, DType::Bool) => false,
        (Mul, _) => number == 1.0,
        (Div | Pow, d) if d.is_float() => right && number == 1.0,
        (Sub, d) if d.is_float() => right && number == 0.0 && !negative,
        (Add, d) if d.is_float() => number == 0.0 && negative,
        (_, d) if d.is_float() => false,
        (Add, _) => number == 0.0,
        (Sub, _) => right && number == 0.0,
        (FloorDiv | Pow, _) => right && number == 1.0,
        _ => false,
    };
    neutral.then_some(Rewrite::Value(node.inputs[0]))
}

fn square(_: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let Op::BinaryScalar { op: BinaryOp::Pow, scalar, scalar_left: false } = node.op else { return None };
    let x = node.inputs[0];
    let two = matches!(scalar, Scalar::Int(2)) || scalar == Scalar::Float(FloatAttribute(2.0));
    two.then_some(Rewrite::Node(Op::Binary(BinaryOp::Mul), vec![x, x]))
}

fn involution(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let Op::Unary(op @ (UnaryOp::Neg | UnaryOp::Not)) = node.op else { return None };
    match cx.def(node.inputs[0]) {
        Some((Op::Unary(inner), &[x])) if *inner == op => Some(Rewrite::Value(x)),
        _ => None,
    }
}

fn select_known(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let (Op::Select, &[cond, x, y]) = (&node.op, &node.inputs[..]) else { return None };
    let chosen = match cx.known_full(cond) {
        Some(Scalar::Bool(true)) => x,
        Some(Scalar::Bool(false)) => y,
        _ if x == y => x,
        _ => return None,
    };
    Some(if cx.shape(chosen) == node.ty.shape {
        Rewrite::Value(chosen)
    } else {
        Rewrite::Node(Op::Expand, vec![chosen])
    })
}

fn index_of_rows(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let (Op::Index { axis: 0 }, Some((&x, indices))) = (&node.op, node.inputs.split_first()) else {
        return None;
    };
    let (&last_index, rows) = indices.split_last()?;
    let (extents, shape) = cx.shape(x).split_at_checked(rows.len())?;
    let has_one_index_per_row = shape.len() == 1 && !rows.is_empty() && cx.shape(last_index) == extents;
    if !has_one_index_per_row || !rows.iter().enumerate().all(|(axis, &v)| counts_along(cx, v, extents, axis))
    {
        return None;
    }
    let mut shape = extents.to_vec();
    shape.push(Dim::from(1));
    let axis = rows.len();
    let last_index = cx.reshape(last_index, shape.clone());
    let elements = cx.emit(
        "element",
        Op::GatherElements { axis },
        &[x, last_index],
        TensorType::new(node.ty.dtype, shape),
    );
    Some(Rewrite::Node(Op::Reshape, vec![elements]))
}

/// Whether each element of a value that broadcasts to `extents` is its own position along an axis of these.
fn counts_along(cx: &Rewriter, value: ValueId, extents: &[Dim], axis: usize) -> bool {
    let shape = cx.shape(value);
    let Some(value_axis) = (axis + shape.len()).checked_sub(extents.len()) else { return false };
    let Some((start, steps)) = cx.known_elements(value).and_then(ElementForm::as_series) else {
        return false;
    };
    start == 0
        && steps.iter().enumerate().all(|(a, &step)| step == i64::from(a == value_axis))
        && shape.get(value_axis) == extents.get(axis)
}
