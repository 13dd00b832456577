//! Removes permutations of rows that undo each other.
//!
//! A mixture of experts sorts its rows by expert, and takes results back to the order of tokens by the inverse
//! of that permutation. What is taken in sorted order only to be combined with results, such as the weights
//! of experts, need not be permuted at all.

use symmc_ir::positions::ElementForm;
use symmc_ir::{BinaryOp, DType, Dim, Op, Scalar, ValueDef, ValueId};

use crate::rewrite::{CandidateNode, Rewrite, RewriteRule, Rewriter};

pub const RULES: &[RewriteRule] = &[
    RewriteRule {
        name: "take_of_inverse",
        equation: "take(take(x, p), q) = take(sort(x), q) = x for a permutation p, that of the sort, and its inverse q",
        apply: take_of_inverse,
    },
    RewriteRule {
        name: "take_of_permuted_map",
        equation: "take(f(x, take(y, p)), q) = f(take(x, q), y) for a permutation p and its inverse q; \
                   take(cast(x), q) = cast(take(x, q)) to a wider dtype",
        apply: take_of_permuted_map,
    },
    RewriteRule {
        name: "reshape_of_take",
        equation: "reshape(f(take(x, i))) = f(take(x, reshape(i))) where only the axis of i is divided",
        apply: reshape_of_take,
    },
    RewriteRule {
        name: "take_of_repeated_rows",
        equation: "take(reshape(expand(x)), i) = take(x, floor_div(i, k)) where each row of x is repeated k times",
        apply: take_of_repeated_rows,
    },
];

/// The deepest nesting of element-wise ops through which a permutation moves.
const MAX_DEPTH: usize = 6;

/// The node that gives a value, and which of its results the value is.
fn definition<'a>(cx: &'a Rewriter<'_>, value: ValueId) -> Option<(&'a Op, &'a [ValueId], usize)> {
    let ValueDef::Node(node, which) = cx.graph().values[value].def else { return None };
    let node = &cx.graph().nodes[node];
    Some((&node.op, &node.inputs, which))
}

/// The vector of which a value is the sorting permutation.
fn sorted_by(cx: &Rewriter, value: ValueId) -> Option<ValueId> {
    match definition(cx, value)? {
        (Op::Sort { axis: 0, .. }, &[x], 1) if cx.ty(x).rank() == 1 => Some(x),
        _ => None,
    }
}

/// Whether a vector has the elements 0, 1, 2, …
fn counts_up(cx: &Rewriter, value: ValueId) -> bool {
    cx.known_elements(value).is_some_and(ElementForm::counts_up)
}

/// The permutation of which a value is the inverse: positions stored at the permutation, or its sorting
/// permutation.
fn inverse_of(cx: &Rewriter, value: ValueId) -> Option<ValueId> {
    let permutation = match definition(cx, value)? {
        (Op::IndexPut { axis: 0, accumulate: false }, &[_, positions, p], 0)
        | (Op::ScatterElements { axis: 0, combine: None }, &[_, p, positions], 0)
            if counts_up(cx, positions) && cx.shape(positions) == cx.shape(p) =>
        {
            p
        }
        (Op::Sort { axis: 0, descending: false }, &[p], 1) => p,
        _ => return None,
    };
    let is_whole = cx.shape(value) == cx.shape(permutation);
    (is_whole && sorted_by(cx, permutation).is_some()).then_some(permutation)
}

/// Whether two vectors are permutations that undo each other.
fn undo_each_other(cx: &Rewriter, a: ValueId, b: ValueId) -> bool {
    inverse_of(cx, a) == Some(b) || inverse_of(cx, b) == Some(a)
}

/// The rows that a value has in the order of `inverse`, if it has them permuted.
fn unpermuted(cx: &Rewriter, value: ValueId, inverse: ValueId) -> Option<ValueId> {
    match definition(cx, value)? {
        (Op::Take { axis: 0 } | Op::Index { axis: 0 }, &[x, p], 0) => {
            let is_whole = cx.shape(x).first() == cx.shape(p).first();
            (is_whole && undo_each_other(cx, p, inverse)).then_some(x)
        }
        (Op::Sort { axis: 0, .. }, &[x], 0) if cx.ty(x).rank() == 1 => {
            let permutation = inverse_of(cx, inverse)?;
            let ValueDef::Node(sort, _) = cx.graph().values[value].def else { return None };
            (cx.graph().defining_node(permutation) == Some(sort)).then_some(x)
        }
        _ => None,
    }
}

fn take_of_inverse(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let (Op::Take { axis: 0 } | Op::Index { axis: 0 }, &[x, q]) = (&node.op, &node.inputs[..]) else {
        return None;
    };
    unpermuted(cx, x, q).map(Rewrite::Value)
}

/// Whether rows of a value, read by `inverse`, are available without the permutation.
fn avoids_permutation(cx: &Rewriter, value: ValueId, inverse: ValueId, depth: usize) -> bool {
    if depth == 0 || unpermuted(cx, value, inverse).is_some() {
        return depth > 0;
    }
    let Some((op, inputs)) = cx.def(value) else { return false };
    match (op, inputs) {
        (Op::Take { axis: 0 }, &[_, index]) => {
            cx.ty(index).rank() == 1 && avoids_permutation(cx, index, inverse, depth - 1)
        }
        (Op::Reshape, &[x]) => {
            cx.shape(x).first() == cx.shape(value).first() && avoids_permutation(cx, x, inverse, depth - 1)
        }
        (op, inputs) if op.is_element_wise() => {
            inputs.iter().any(|&x| avoids_permutation(cx, x, inverse, depth - 1))
        }
        _ => false,
    }
}

/// The rows `index` of a value along its first axis.
fn take_rows(cx: &mut Rewriter, value: ValueId, index: ValueId) -> ValueId {
    let mut ty = cx.ty(value).clone();
    let rows = cx.shape(index).to_vec();
    ty.shape.splice(..1, rows);
    cx.emit("rows", Op::Take { axis: 0 }, &[value, index], ty)
}

fn take_of_permuted_map(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let (Op::Take { axis: 0 }, &[x, q]) = (&node.op, &node.inputs[..]) else { return None };
    if inverse_of(cx, q).is_none() && sorted_by(cx, q).is_none() {
        return None;
    }
    let (op, inputs) = cx.def(x)?;
    let widens = *op == Op::Cast && cx.ty(inputs[0]).dtype.size() < cx.ty(x).dtype.size();
    if cx.is_shared(x) || !(widens || avoids_permutation(cx, x, q, MAX_DEPTH)) {
        return None;
    }
    // `product_without_expert` may remove this selection, but only where it reads the product directly.
    if matches!((op, inputs), (Op::Select, &[_, _, y]) if matches!(cx.def(y), Some((Op::GroupedMatMul, _)))) {
        return None;
    }
    let op = op.clone();
    let inputs = inputs.to_vec();
    match op {
        Op::Take { axis: 0 } => {
            let index = take_rows(cx, inputs[1], q);
            Some(Rewrite::Node(op, vec![inputs[0], index]))
        }
        Op::Reshape => {
            let rows = take_rows(cx, inputs[0], q);
            Some(Rewrite::Node(op, vec![rows]))
        }
        op if op.is_element_wise() => {
            let rank = cx.ty(x).rank();
            let n = cx.shape(x).first()?.clone();
            let moved = |cx: &mut Rewriter, v: ValueId| {
                let has_rows = cx.ty(v).rank() == rank && cx.shape(v).first() == Some(&n);
                if has_rows { take_rows(cx, v, q) } else { v }
            };
            let operands = inputs.iter().map(|&v| moved(cx, v)).collect();
            Some(Rewrite::Node(op, operands))
        }
        _ => None,
    }
}

/// Whether a value is element-wise in rows that are taken by a vector, where nothing else reads it.
fn takes_rows(cx: &Rewriter, value: ValueId, depth: usize) -> bool {
    let Some((op, inputs)) = cx.def(value) else { return false };
    match op {
        Op::Take { axis: 0 } => {
            cx.ty(inputs[1]).rank() == 1 && cx.ty(value).rank() >= 2 && !cx.is_shared(value)
        }
        op if op.is_element_wise() && depth > 0 => {
            !cx.is_shared(value) && inputs.iter().any(|&x| takes_rows(cx, x, depth - 1))
        }
        _ => false,
    }
}

fn reshape_of_take(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let (Op::Reshape, &[x]) = (&node.op, &node.inputs[..]) else { return None };
    let shape = cx.shape(x).to_vec();
    let added = (node.ty.rank() + 1).checked_sub(shape.len()).filter(|&n| n > 1 && shape.len() > 1)?;
    let leading = node.ty.shape[..added].to_vec();
    let unit = Dim::from(1);
    let divides = node.ty.shape[added..] == shape[1..] && shape[1..].iter().any(|n| *n != unit);
    // Axes of extent 1 are no division.
    if !divides || leading.contains(&unit) || !takes_rows(cx, x, MAX_DEPTH) {
        return None;
    }
    let (op, inputs) = cx.def(x)?;
    let op = op.clone();
    let inputs = inputs.to_vec();
    if matches!(op, Op::Take { .. }) {
        let index = cx.reshape(inputs[1], leading);
        return Some(Rewrite::Node(op, vec![inputs[0], index]));
    }
    let mut operands = Vec::with_capacity(inputs.len());
    for v in inputs {
        let mut own = cx.shape(v).to_vec();
        operands.push(if own.len() < shape.len() {
            v
        } else {
            let rows = own.remove(0);
            let front = if rows == shape[0] { leading.clone() } else { vec![unit.clone(); added] };
            cx.reshape(v, front.into_iter().chain(own).collect())
        });
    }
    Some(Rewrite::Node(op, operands))
}

fn take_of_repeated_rows(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let (Op::Take { axis: 0 }, &[x, index]) = (&node.op, &node.inputs[..]) else { return None };
    let (Op::Reshape, &[wide]) = cx.def(x)? else { return None };
    let (Op::Expand, &[narrow]) = cx.def(wide)? else { return None };
    let [count, copies, row @ ..] = cx.shape(wide) else { return None };
    let unit = Dim::from(1);
    let [rows, single, ..] = cx.shape(narrow) else { return None };
    let repeats = rows == count && *single == unit && cx.shape(narrow)[2..] == *row;
    let is_whole = cx.shape(x)[1..] == *row && cx.shape(x)[0] == count.clone() * copies.clone();
    // Narrower integers may not hold the number of copies.
    let divides = matches!(cx.ty(index).dtype, DType::I32 | DType::I64);
    let copies = copies.as_const().filter(|&k| k > 1 && repeats && is_whole && divides)?;
    i32::try_from(copies).ok()?;
    let shape: Vec<Dim> = std::iter::once(count).chain(row).cloned().collect();
    let ty = cx.ty(index).clone();
    let divide = Op::BinaryScalar { op: BinaryOp::FloorDiv, scalar: Scalar::Int(copies), scalar_left: false };
    let index = cx.emit("row", divide, &[index], ty);
    let rows = cx.reshape(narrow, shape);
    Some(Rewrite::Node(node.op.clone(), vec![rows, index]))
}
