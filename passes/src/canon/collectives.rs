//! Removes collectives that need not run, and joins several into one.
//!
//! Every rule keeps the bits of the program, except for orders of summation that a collective chooses.

use symmc_ir::{
    AllToAllSplits, Collective, CollectiveKind, DType, FloatAttribute, GroupId, Op, Scalar, TensorType,
    ValueId,
};

use crate::rewrite::{CandidateNode, Rewrite, RewriteRule, Rewriter};

/// The most bytes of collectives that are joined. Up to this size, latency dominates the time of a message.
/// Larger collectives are faster apart, because each can run concurrently with computation.
pub(super) const MAX_JOINED_BYTES: i64 = 256 << 10;

pub const RULES: &[RewriteRule] = &[
    RewriteRule {
        name: "group_of_one",
        equation: "a collective or a shard on groups of one rank = x; permute without a sender = full(0)",
        apply: group_of_one,
    },
    RewriteRule {
        name: "exchange_of_exchange",
        equation: "all_to_all(all_to_all(x)) = x with even splits on one group",
        apply: exchange_of_exchange,
    },
    RewriteRule {
        name: "element_wise_of_gathers",
        equation: "f(all_gather(x), all_gather(y)) = all_gather(f(x, y)) on one group, if the gathers have no other readers and \
                   the result has no wider type",
        apply: element_wise_of_gathers,
    },
    RewriteRule {
        name: "concat_of_collectives",
        equation: "concat(all_reduce(x), all_reduce(y), ..) = all_reduce(concat(x, y, ..)), also if these are reshaped, and the \
                   same for all_gathers along an axis other than theirs, if they are small and have no other readers",
        apply: concat_of_collectives,
    },
    RewriteRule {
        name: "send_of_send",
        equation: "permute_ranks(permute_ranks(x)) = permute_ranks(x) by the pairs of both, = x if each rank sends to itself; \
                   broadcast(permute_ranks(x)) = broadcast(x) from the rank that sends to the root, on one group, if the \
                   inner one has no other readers",
        apply: send_of_send,
    },
    RewriteRule {
        name: "collective_of_expanded",
        equation: "f(expand(x)) = expand(f(x)) if the collective f keeps the positions along the expanded axes",
        apply: collective_of_expanded,
    },
];

fn group_of_one(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    if cx.graph().group_size(node.op.group()?) != Some(1) {
        return None;
    }
    let Op::Collective(c) = &node.op else { return Some(Rewrite::Value(*node.inputs.first()?)) };
    match &c.kind {
        // The result differs from the operand: rows are elsewhere, or zero.
        kind if kind.moves_by_data() => None,
        CollectiveKind::Permute { pairs } if pairs.is_empty() => zeros(&node.ty),
        _ => Some(Rewrite::Value(*node.inputs.first()?)),
    }
}

/// The zeros that ranks without a sender receive.
fn zeros(ty: &TensorType) -> Option<Rewrite> {
    let zero = match ty.dtype {
        DType::Bool => Scalar::Bool(false),
        dtype if dtype.is_float() => Scalar::Float(FloatAttribute(0.0)),
        _ => Scalar::Int(0),
    };
    Some(Rewrite::Node(Op::Full(zero), vec![]))
}

fn exchange_of_exchange(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let group = even_exchange_group(&node.op)?;
    let (inner, operands) = cx.def(*node.inputs.first()?)?;
    let is_inverse = even_exchange_group(inner) == Some(group);
    (is_inverse && *cx.ty(operands[0]) == node.ty).then(|| Rewrite::Value(operands[0]))
}

/// The group of an all_to_all with even splits.
fn even_exchange_group(op: &Op) -> Option<GroupId> {
    match op {
        Op::Collective(Collective {
            kind: CollectiveKind::AllToAll(AllToAllSplits::Even), group, ..
        }) => Some(*group),
        _ => None,
    }
}

/// Whether there are at least two values, all different.
fn are_distinct(values: &[ValueId]) -> bool {
    values.len() > 1 && values.iter().enumerate().all(|(i, v)| !values[..i].contains(v))
}

/// The collective that gives a value without other readers, and its operand.
fn unshared_collective_of<'r>(cx: &'r Rewriter, v: ValueId) -> Option<(&'r Collective, ValueId)> {
    match cx.def(v)? {
        (Op::Collective(c), &[x]) if !cx.is_shared(v) => Some((c, x)),
        _ => None,
    }
}

/// As [`collective_of`], but also matches a reshaped all_reduce, whose operand can be reshaped instead.
fn reshaped_collective_of<'r>(cx: &'r Rewriter, v: ValueId) -> Option<(&'r Collective, ValueId)> {
    match cx.def(v)? {
        (Op::Reshape, &[reduced]) if !cx.is_shared(v) => unshared_collective_of(cx, reduced)
            .filter(|(c, _)| matches!(c.kind, CollectiveKind::AllReduce(_))),
        _ => unshared_collective_of(cx, v),
    }
}

fn element_wise_of_gathers(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    if !node.op.is_element_wise() || node.op.divides_integers(node.ty.dtype) || !are_distinct(&node.inputs) {
        return None;
    }
    let gathers: Option<Vec<_>> = node.inputs.iter().map(|&v| unshared_collective_of(cx, v)).collect();
    let gathers = gathers?;
    let gather = gathers[0].0.clone();
    let are_equal = gathers.iter().all(|(c, x)| **c == gather && cx.shape(*x) == cx.shape(gathers[0].1));
    let widest = gathers.iter().map(|(_, x)| cx.ty(*x).dtype.size()).max()?;
    if gather.kind != CollectiveKind::AllGather || !are_equal || node.ty.dtype.size() > widest {
        return None;
    }
    let operands: Vec<ValueId> = gathers.iter().map(|(_, x)| *x).collect();
    let ty = TensorType::new(node.ty.dtype, cx.shape(operands[0]));
    let local = cx.emit("own", node.op.clone(), &operands, ty);
    Some(Rewrite::Node(Op::Collective(gather), vec![local]))
}

fn concat_of_collectives(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let Op::Concat { axis } = node.op else { return None };
    let bytes = node.ty.bytes().upper_bound(cx.symbols());
    if !are_distinct(&node.inputs) || bytes > MAX_JOINED_BYTES {
        return None;
    }
    let collectives: Option<Vec<_>> = node.inputs.iter().map(|&v| reshaped_collective_of(cx, v)).collect();
    let collectives = collectives?;
    let first = collectives[0].0.clone();
    let can_be_one = match first.kind {
        CollectiveKind::AllReduce(_) => true,
        CollectiveKind::AllGather => axis > 0,
        _ => false,
    };
    if !can_be_one || collectives.iter().any(|(c, _)| **c != first) {
        return None;
    }
    let mut operands: Vec<ValueId> = collectives.iter().map(|(_, x)| *x).collect();
    let mut shape = node.ty.shape.clone();
    if first.kind == CollectiveKind::AllGather {
        shape[0] = cx.shape(operands[0])[0].clone();
    } else {
        for (operand, &result) in operands.iter_mut().zip(&node.inputs) {
            let shape = cx.shape(result).to_vec();
            *operand = cx.reshape(*operand, shape);
        }
    }
    let local = cx.emit("own", Op::Concat { axis }, &operands, TensorType::new(node.ty.dtype, shape));
    Some(Rewrite::Node(Op::Collective(first), vec![local]))
}

fn send_of_send(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let Op::Collective(outer) = &node.op else { return None };
    let (inner, x) = unshared_collective_of(cx, *node.inputs.first()?)?;
    let CollectiveKind::Permute { .. } = inner.kind else { return None };
    if !cx.graph().have_same_cells(inner.group, outer.group) {
        return None;
    }
    let kind = match &outer.kind {
        CollectiveKind::Broadcast { root } => {
            CollectiveKind::Broadcast { root: inner.kind.sender_to(*root)? }
        }
        CollectiveKind::Permute { pairs } => {
            let senders = pairs.iter().filter_map(|&(from, to)| Some((inner.kind.sender_to(from)?, to)));
            CollectiveKind::Permute { pairs: senders.collect() }
        }
        _ => return None,
    };
    let ranks = cx.graph().group_size(outer.group)?;
    if (0..ranks).all(|rank| kind.sender_to(rank) == Some(rank)) {
        return Some(Rewrite::Value(x));
    }
    if kind == (CollectiveKind::Permute { pairs: Vec::new() }) {
        return zeros(&node.ty);
    }
    let sent = Collective { kind, group: outer.group, variant: None };
    Some(Rewrite::Node(Op::Collective(sent), vec![x]))
}

fn collective_of_expanded(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let (Op::Collective(c), &[expanded]) = (&node.op, &node.inputs[..]) else { return None };
    let (Op::Expand, &[x]) = cx.def(expanded)? else { return None };
    let keeps_positions = c.kind.facts().preserves_positions();
    let result_shape = cx.shape(expanded);
    let has_leading_axis =
        cx.shape(x).len() == result_shape.len() && cx.shape(x).first() == result_shape.first();
    if c.kind.moves_by_data() || !keeps_positions && !has_leading_axis {
        return None;
    }
    let mut ty = cx.ty(x).clone();
    if !keeps_positions {
        ty.shape[0] = node.ty.shape[0].clone();
    }
    ty.dtype = node.ty.dtype;
    let result = cx.emit("own", node.op.clone(), &[x], ty);
    Some(Rewrite::Node(Op::Expand, vec![result]))
}
