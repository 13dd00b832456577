//! Merges chains of views into one view, or none if nothing changes.
//!
//! Expansions move outwards over other views, so that the op that uses them can drop them
//! ([`super::broadcasts`]). Permutations that only move axes of extent 1 become reshapes, so that they merge
//! with their neighbours.

use symmc_ir::positions::{IntegerRange, non_unit_axes};
use symmc_ir::{Collective, CollectiveKind, Dim, Op, TensorType, ValueId};

use crate::rewrite::{CandidateNode, Rewrite, RewriteRule, Rewriter};

pub const RULES: &[RewriteRule] = &[
    RewriteRule {
        name: "view_of_nothing",
        equation: "reshape, expand, permute, slice, pad or concat that changes nothing = x",
        apply: view_of_nothing,
    },
    RewriteRule {
        name: "reshape_of_reshape",
        equation: "reshape(reshape(x)) = reshape(x)",
        apply: reshape_of_reshape,
    },
    RewriteRule {
        name: "reshape_of_reduction",
        equation: "reshape(reduce(x)) = reduce(x) with kept axes, if only these axes are added and the reduction has no other readers",
        apply: reshape_of_reduction,
    },
    RewriteRule {
        name: "permute_of_permute",
        equation: "permute(permute(x, p), q) = permute(x, p∘q)",
        apply: permute_of_permute,
    },
    RewriteRule {
        name: "permute_of_units",
        equation: "permute(x) that keeps the order of the axes longer than 1 = reshape(x)",
        apply: permute_of_units,
    },
    RewriteRule {
        name: "reshape_of_transpose",
        equation: "reshape(transpose(x)) = transpose(reshape(x)) of the last two axes, if only the axes before them change",
        apply: reshape_of_transpose,
    },
    RewriteRule {
        name: "expand_of_expand",
        equation: "expand(expand(x)) = expand(x)",
        apply: expand_of_expand,
    },
    RewriteRule {
        name: "reshape_of_expand",
        equation: "reshape(expand(x)) = expand(reshape(x)) if only axes of extent 1 are added or removed",
        apply: reshape_of_expand,
    },
    RewriteRule {
        name: "permute_of_expand",
        equation: "permute(expand(x)) = expand(permute(x))",
        apply: permute_of_expand,
    },
    RewriteRule {
        name: "slice_of_expand",
        equation: "slice(expand(x)) = expand(x) along an expanded axis, else expand(slice(x))",
        apply: slice_of_expand,
    },
    RewriteRule {
        name: "slice_of_slice",
        equation: "slice(slice(x, s, t), u, v) = slice(x, s + t*u, t*v) along one axis",
        apply: slice_of_slice,
    },
    RewriteRule {
        name: "slice_of_pad",
        equation: "slice(pad(x)) = slice(x) where it stays within x",
        apply: slice_of_pad,
    },
    RewriteRule {
        name: "slice_of_concat",
        equation: "slice(concat(.., x, ..)) = slice(x) where it stays within x",
        apply: slice_of_concat,
    },
    RewriteRule {
        name: "index_of_positions",
        equation: "take or index of x at constants and at arithmetic series, each along a separate axis = slice(x) with its axes moved",
        apply: index_of_positions,
    },
    RewriteRule {
        name: "concat_of_slices",
        equation: "concat(.., x[a..b], x[b..c], ..) = concat(.., x[a..c], ..)",
        apply: concat_of_slices,
    },
];

fn view_of_nothing(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let x = *node.inputs.first()?;
    let same_type = *cx.ty(x) == node.ty;
    let nothing = match &node.op {
        Op::Reshape | Op::Expand => true,
        Op::Permute { perm } => perm.iter().copied().eq(0..perm.len()),
        // With an unchanged extent, only a slice that starts at 0 fits.
        Op::Slice { start, step, axis } => {
            start.as_const() == Some(0) && (*step == 1 || node.ty.shape[*axis].as_const() == Some(1))
        }
        Op::Pad { low, .. } => low.iter().all(|l| l.as_const() == Some(0)),
        Op::Concat { .. } => node.inputs.len() == 1,
        _ => false,
    };
    (nothing && same_type).then_some(Rewrite::Value(x))
}

fn reshape_of_reshape(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    match (&node.op, cx.def(node.inputs.first().copied()?)) {
        (Op::Reshape, Some((Op::Reshape, &[x]))) => Some(Rewrite::Node(Op::Reshape, vec![x])),
        _ => None,
    }
}

fn reshape_of_reduction(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let (Op::Reshape, &[reduced]) = (&node.op, &node.inputs[..]) else { return None };
    let (Op::Reduce { op, axes, keep: false }, &[x]) = cx.def(reduced)? else { return None };
    let reduced_shape = cx.shape(x).iter().enumerate();
    let reduced_shape = reduced_shape.map(|(a, n)| if axes.contains(&a) { Dim::from(1) } else { n.clone() });
    let fits = reduced_shape.eq(node.ty.shape.iter().cloned()) && !cx.is_shared(reduced);
    fits.then(|| Rewrite::Node(Op::Reduce { op: *op, axes: axes.clone(), keep: true }, vec![x]))
}

fn permute_of_permute(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let Op::Permute { perm } = &node.op else { return None };
    let Some((Op::Permute { perm: inner }, &[x])) = cx.def(node.inputs[0]) else { return None };
    let perm = perm.iter().map(|&p| inner[p]).collect();
    Some(Rewrite::Node(Op::Permute { perm }, vec![x]))
}

fn permute_of_units(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let Op::Permute { perm } = &node.op else { return None };
    let x = node.inputs[0];
    let shape = cx.shape(x);
    let order: Vec<usize> = perm.iter().copied().filter(|&p| shape[p].as_const() != Some(1)).collect();
    order.is_sorted().then_some(Rewrite::Node(Op::Reshape, vec![x]))
}

fn reshape_of_transpose(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let (Op::Reshape, Some((Op::Permute { perm }, &[x]))) = (&node.op, cx.def(*node.inputs.first()?)) else {
        return None;
    };
    let row_axis = perm.len().checked_sub(2)?;
    let rank = node.ty.rank();
    let transposes =
        perm[..row_axis].iter().copied().eq(0..row_axis) && perm[row_axis..] == [row_axis + 1, row_axis];
    let keeps_matrix = rank >= 2 && node.ty.shape[rank - 2..] == cx.shape(node.inputs[0])[row_axis..];
    if !transposes || !keeps_matrix {
        return None;
    }
    let mut shape = node.ty.shape.clone();
    shape.swap(rank - 2, rank - 1);
    let y = cx.reshape(x, shape);
    let perm = (0..rank - 2).chain([rank - 1, rank - 2]).collect();
    Some(Rewrite::Node(Op::Permute { perm }, vec![y]))
}

/// The operand of an expand, if that is what gives `value`.
fn match_expand(cx: &Rewriter, value: ValueId) -> Option<ValueId> {
    match cx.def(value) {
        Some((Op::Expand, &[x])) => Some(x),
        _ => None,
    }
}

/// The shape of an expand's operand, with extent 1 for the axes that the expand adds in front.
fn pad_shape(cx: &Rewriter, x: ValueId, rank: usize) -> Vec<Dim> {
    let mut shape = vec![Dim::from(1); rank.saturating_sub(cx.shape(x).len())];
    shape.extend_from_slice(cx.shape(x));
    shape
}

fn expand_of_expand(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    if node.op != Op::Expand {
        return None;
    }
    let x = match_expand(cx, node.inputs[0])?;
    Some(Rewrite::Node(Op::Expand, vec![x]))
}

fn reshape_of_expand(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    if node.op != Op::Reshape {
        return None;
    }
    let x = match_expand(cx, node.inputs[0])?;
    let wide = cx.shape(node.inputs[0]);
    if !non_unit_axes(wide).map(|(_, d)| d).eq(non_unit_axes(&node.ty.shape).map(|(_, d)| d)) {
        return None;
    }
    let narrow = pad_shape(cx, x, wide.len());
    let mut shape = vec![Dim::from(1); node.ty.rank()];
    for ((to, _), (from, _)) in non_unit_axes(&node.ty.shape).zip(non_unit_axes(wide)) {
        shape[to] = narrow[from].clone();
    }
    let x = cx.reshape(x, shape);
    Some(Rewrite::Node(Op::Expand, vec![x]))
}

fn permute_of_expand(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let Op::Permute { perm } = &node.op else { return None };
    let x = match_expand(cx, node.inputs[0])?;
    let shape = pad_shape(cx, x, perm.len());
    let x = cx.reshape(x, shape.clone());
    let ty = TensorType::new(node.ty.dtype, perm.iter().map(|&p| shape[p].clone()).collect::<Vec<_>>());
    let x = cx.emit("permute", node.op.clone(), &[x], ty);
    Some(Rewrite::Node(Op::Expand, vec![x]))
}

fn slice_of_expand(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let Op::Slice { axis, start, step } = &node.op else { return None };
    let wide = node.inputs[0];
    let x = match_expand(cx, wide)?;
    let added = cx.shape(wide).len() - cx.shape(x).len();
    let x_axis = axis.checked_sub(added).filter(|&a| cx.shape(x)[a].as_const() != Some(1));
    let Some(x_axis) = x_axis else { return Some(Rewrite::Node(Op::Expand, vec![x])) };
    let mut ty = cx.ty(x).clone();
    ty.shape[x_axis] = node.ty.shape[*axis].clone();
    let x = cx.emit("slice", Op::Slice { axis: x_axis, start: start.clone(), step: *step }, &[x], ty);
    Some(Rewrite::Node(Op::Expand, vec![x]))
}

fn slice_of_slice(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let Op::Slice { axis, start, step } = &node.op else { return None };
    let Some((Op::Slice { axis: inner_axis, start: first, step: by }, &[x])) = cx.def(node.inputs[0]) else {
        return None;
    };
    let start = first.clone() + start.clone() * Dim::from(*by);
    let step = step.checked_mul(*by)?;
    (axis == inner_axis).then_some(Rewrite::Node(Op::Slice { axis: *axis, start, step }, vec![x]))
}

/// The first and the last position that a slice with this result type reads; `None` if the slice may be
/// empty.
fn span(cx: &Rewriter, axis: usize, start: &Dim, step: i64, ty: &TensorType) -> Option<(Dim, Dim)> {
    let extent = &ty.shape[axis];
    let last_position = start.clone() + (extent.clone() - Dim::from(1)) * Dim::from(step);
    (extent.bounds(cx.symbols()).0 >= 1).then(|| (start.clone(), last_position))
}

fn slice_of_pad(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let Op::Slice { axis, start, step } = &node.op else { return None };
    let Some((Op::Pad { low, .. }, &[x])) = cx.def(node.inputs[0]) else { return None };
    let shape = cx.shape(x);
    let padded = cx.shape(node.inputs[0]);
    let only = (0..low.len()).all(|a| a == *axis || (low[a].as_const() == Some(0) && shape[a] == padded[a]));
    let (first, last) = span(cx, *axis, start, *step, &node.ty)?;
    let low = low[*axis].clone();
    let end = low.clone() + shape[*axis].clone() - Dim::from(1);
    let within = low.provably_le(&first, cx.symbols()) && last.provably_le(&end, cx.symbols());
    let op = Op::Slice { axis: *axis, start: start.clone() - low, step: *step };
    (only && within).then_some(Rewrite::Node(op, vec![x]))
}

/// View rules that run last, because other passes match slices and concatenations.
pub const LAST_RULES: &[RewriteRule] = &[RewriteRule {
    name: "concat_of_gathered_pieces",
    equation: "concat(x[..m], x[m..2m], ..) along another axis, of the pieces of all ranks in an all_gather x = a reshape of a permuted \
               view of x",
    apply: concat_of_gathered_pieces,
}];

/// Concatenates the pieces of all ranks along an axis other than the first. The result is a view of the
/// gathered value with its axes in another order. One kernel stores that view, or the all_gather stores it
/// directly ([`symmc_ir::DispatchForm::Gather`]).
fn concat_of_gathered_pieces(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let Op::Concat { axis } = node.op else { return None };
    let piece = cx.shape(*node.inputs.first()?).to_vec();
    let Some((Op::Slice { .. }, &[x])) = cx.def(node.inputs[0]) else { return None };
    let (Op::Collective(Collective { kind: CollectiveKind::AllGather, group, .. }), _) = cx.def(x)? else {
        return None;
    };
    let ranks = cx.graph().group_size(*group)?;
    let is_complete = cx.shape(x)[0] == piece[0].clone() * Dim::from(i64::from(ranks));
    if axis == 0 || !is_complete || node.inputs.len() != ranks as usize {
        return None;
    }
    for (k, &v) in node.inputs.iter().enumerate() {
        let Some((Op::Slice { axis: 0, start, step: 1 }, &[source])) = cx.def(v) else { return None };
        if source != x || cx.shape(v) != piece || *start != piece[0].clone() * Dim::from(k as i64) {
            return None;
        }
    }
    let ranks = Dim::from(i64::from(ranks));
    let by_rank = [&[ranks][..], &piece].concat();
    let by_rank = cx.reshape(x, by_rank);
    let perm: Vec<usize> = (1..=axis).chain([0]).chain(axis + 1..=piece.len()).collect();
    let ty = cx.ty(by_rank).clone();
    let ty = TensorType::new(ty.dtype, perm.iter().map(|&a| ty.shape[a].clone()).collect::<Vec<_>>());
    let moved = cx.emit("moved", Op::Permute { perm }, &[by_rank], ty);
    Some(Rewrite::Value(cx.reshape(moved, node.ty.shape.clone())))
}

fn slice_of_concat(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let Op::Slice { axis, start, step } = &node.op else { return None };
    let Some((Op::Concat { axis: along }, pieces)) = cx.def(node.inputs[0]) else { return None };
    if axis != along {
        return None;
    }
    let (first, last) = span(cx, *axis, start, *step, &node.ty)?;
    let mut low = Dim::from(0);
    for &x in pieces {
        let next = low.clone() + cx.shape(x)[*axis].clone();
        let end = next.clone() - Dim::from(1);
        if low.provably_le(&first, cx.symbols()) && last.provably_le(&end, cx.symbols()) {
            let op = Op::Slice { axis: *axis, start: start.clone() - low, step: *step };
            return Some(Rewrite::Node(op, vec![x]));
        }
        low = next;
    }
    None
}

fn concat_of_slices(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let Op::Concat { axis } = node.op else { return None };
    let join = node.inputs.windows(2).position(|w| {
        match (match_unit_slice(cx, w[0], axis), match_unit_slice(cx, w[1], axis)) {
            (Some((x, start)), Some((y, next))) => x == y && start + cx.shape(w[0])[axis].clone() == next,
            _ => false,
        }
    })?;
    let (x, start) = match_unit_slice(cx, node.inputs[join], axis)?;
    let mut ty = cx.ty(node.inputs[join]).clone();
    ty.shape[axis] = ty.shape[axis].clone() + cx.shape(node.inputs[join + 1])[axis].clone();
    let joined = cx.emit("slice", Op::Slice { axis, start, step: 1 }, &[x], ty);
    let mut inputs = node.inputs.clone();
    inputs.splice(join..join + 2, [joined]);
    Some(Rewrite::Node(node.op.clone(), inputs))
}

/// The operand and the start of a slice of step 1 along an axis, if that gives `value`.
pub(super) fn match_unit_slice(cx: &Rewriter, value: ValueId, axis: usize) -> Option<(ValueId, Dim)> {
    match cx.def(value) {
        Some((Op::Slice { axis: along, start, step: 1 }, &[x])) if *along == axis => Some((x, start.clone())),
        _ => None,
    }
}

/// Replaces indexing at known positions by a view. If positions are not known to lie within the axis for all
/// sizes, they become a view only if the run checks them.
fn index_of_positions(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let (Op::Take { axis } | Op::Index { axis }) = &node.op else { return None };
    let (&x, indices) = node.inputs.split_first()?;
    let shape = cx.shape(x).to_vec();
    let inner = (node.ty.rank() + indices.len()).checked_sub(shape.len())?;
    // For each indexed axis: its start, its step, and the axis of the indices that advances it.
    let mut moved = Vec::with_capacity(indices.len());
    for (k, &index) in indices.iter().enumerate() {
        let form = cx.known_elements(index)?;
        let (start, step, along) = match form.as_full() {
            Some(s) => (s.as_i64(), 1, None),
            None => {
                let (start, own, step) = form.as_series_along_axis()?;
                (start, step, Some(own + inner.checked_sub(cx.shape(index).len())?))
            }
        };
        let count = along.map_or(Dim::from(1), |a| node.ty.shape[axis + a].clone());
        let last_position = Dim::from(start) + (count.clone() - Dim::from(1)) * Dim::from(step);
        let inside = cx.indices_are_checked()
            || IntegerRange::new(start, last_position.clone()).is_within_axis(&shape[axis + k], cx.symbols());
        let never = shape[axis + k].provably_le(&last_position, cx.symbols());
        let outside = start < 0 || step < 1 || never || !inside;
        let repeats_axis =
            along.is_some() && moved.iter().any(|m: &(i64, i64, Option<usize>, Dim)| m.2 == along);
        if outside || repeats_axis {
            return None;
        }
        moved.push((start, step, along, count));
    }
    let mut value = x;
    for (k, (start, step, _, count)) in moved.iter().enumerate() {
        let mut ty = cx.ty(value).clone();
        ty.shape[axis + k] = count.clone();
        let op = Op::Slice { axis: axis + k, start: Dim::from(*start), step: *step };
        value = cx.emit("part", op, &[value], ty);
    }
    let mut order: Vec<usize> = (0..moved.len()).collect();
    order.sort_by_key(|&k| moved[k].2);
    let perm: Vec<usize> =
        (0..*axis).chain(order.iter().map(|k| axis + k)).chain(axis + moved.len()..shape.len()).collect();
    let ty = cx.ty(value).clone();
    let turned = TensorType::new(ty.dtype, perm.iter().map(|&a| ty.shape[a].clone()).collect::<Vec<_>>());
    value = cx.emit("axes", Op::Permute { perm }, &[value], turned);
    let mut narrow = node.ty.shape.clone();
    for a in 0..inner {
        if !moved.iter().any(|m| m.2 == Some(a)) {
            narrow[axis + a] = Dim::from(1);
        }
    }
    value = cx.reshape(value, narrow.to_vec());
    Some(Rewrite::Value(cx.expand(value, node.ty.shape.to_vec())))
}
