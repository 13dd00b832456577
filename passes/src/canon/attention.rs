//! Recognises attention that is written out, turns its masks into bounds, and groups repeated heads.

use symmc_ir::attention::{self, AttentionBound, AttentionOperands};
use symmc_ir::positions::{AxisView, MaskCondition};
use symmc_ir::{
    BinaryOp, DType, Dim, FloatAttribute, Op, ReductionKind, Scalar, TensorType, UnaryOp, ValueId, infer,
};

use super::masks::additive::{self, AdditiveMask};
use super::masks::bounds::{self, ConditionSplit};
use super::masks::{operands, row_visibility};
use crate::rewrite::{CandidateNode, Rewrite, RewriteRule, Rewriter};

pub const RULES: &[RewriteRule] = &[
    RewriteRule {
        name: "attention",
        equation: "matmul(softmax(c*tanh(matmul(q * s, transpose(k) * t) * r / c) + mask), v) = attention(q, k, v) with \
                   scale s*t*r, cap c, and the mask as bounds, where rows that see no column get the mean of v; if the mask \
                   cannot be bounds, it stays if its numbers are finite; scores and weights are not rounded",
        apply: recognize_attention,
    },
    RewriteRule {
        name: "full_mask",
        equation: "attention(q, k, v, full(true)) = attention(q, k, v, full(0.0)) = attention(q, k, v)",
        apply: full_mask,
    },
    RewriteRule {
        name: "mask_of_positions",
        equation: "attention(q, k, v, a & .. & z) = attention(q, k, v, z) with bounds a, .. if each of these compares the \
                   column with a value independent of it; select(m, x, -inf) counts as the mask m with x added; so does \
                   select(m, x, lowest) for x of moderate size, except that rows that see no column get the mean of v",
        apply: mask_of_positions,
    },
    RewriteRule {
        name: "grouped_heads",
        equation: "attention(q, repeat(k), repeat(v)) = attention(q, k, v) with heads in groups",
        apply: grouped_heads,
    },
];

/// The operands of a softmax taken apart: the scores before the masks, and the masks.
struct MaskedScores {
    /// The leading axes (all but the last two) of the shape in which masks are applied.
    leading: Vec<Dim>,
    before: ValueId,
    mask: AdditiveMask,
    /// Whole masks that are added to the scores.
    added: Vec<ValueId>,
    /// The factor that multiplies the masked scores.
    factor: f64,
    /// The least value of scores after the inner masks, and the condition under which a row stays above it.
    floor: Option<(f64, MaskCondition)>,
    /// Whether some mask selects scores instead of being added to them.
    chose: bool,
}

fn recognize_attention(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let (Op::MatMul { .. }, &[weights, v]) = (&node.op, &node.inputs[..]) else { return None };
    let (softmax, guarded) = match_nan_guard(cx, skip_casts_and_reshapes(cx, weights));
    let softmax = skip_casts_and_reshapes(cx, softmax);
    let (softmax, sunk) = match match_sink_slice(cx, softmax) {
        Some((weights, columns)) => (weights, Some(columns)),
        None => (softmax, None),
    };
    let (Op::Softmax { axis, log: false }, &[scores]) = cx.def(softmax)? else { return None };
    if *axis + 1 != cx.shape(scores).len() || has_other_users(cx, weights) {
        return None;
    }
    let (scores, sink) = match sunk {
        Some(columns) => with_sink(cx, scores, &columns).map(|(scores, sink)| (scores, Some(sink)))?,
        None => (scores, None),
    };
    // Masks may be per head and per batch while the softmax has these as one axis.
    let scores = skip_casts_and_reshapes(cx, scores);
    let shape = cx.shape(scores).to_vec();
    let leading = &shape[..shape.len().checked_sub(2)?];
    let scores = match_masked_scores(cx, scores)?;
    let (before, cap, within_cap) = match match_cap(cx, scores.before) {
        Some((x, cap, factor)) => (x, Some(cap), factor),
        None => (scores.before, None, 1.0),
    };
    let (before, outer) = match_scale(cx, before);
    let product = skip_casts_and_reshapes(cx, before);
    let (Op::MatMul { .. }, &[q, k]) = cx.def(product)? else { return None };
    let within = cx.shape(product)[..cx.shape(product).len() - 2].to_vec();
    let (q, q_scale) = match_scale(cx, q);
    let (k, k_scale) = match_transposed_keys(cx, k)?;
    let result_leading = &node.ty.shape[..node.ty.rank().checked_sub(2)?];
    let q = reshape_leading_axes(cx, q, &within, leading)?;
    let k = reshape_leading_axes(cx, k, &within, leading)?;
    let v = reshape_leading_axes(cx, v, result_leading, leading)?;
    // In attention, operands that the products broadcast have the heads of the query.
    let key_shape = with_leading_axes(cx.ty(k), leading)?;
    let value_shape = with_leading_axes(cx.ty(v), leading)?;
    let scale = FloatAttribute(scores.factor * within_cap * outer * q_scale * k_scale);
    // Attention cannot express a cap of scores that are multiplied again.
    let plain = Op::Attention { scale, cap, bounds: Vec::new(), sink: false, log_sum_exp: false };
    let dtypes = [cx.ty(q).dtype, cx.ty(k).dtype, cx.ty(v).dtype];
    let key_type = TensorType::new(node.ty.dtype, key_shape.clone());
    let value_type = TensorType::new(node.ty.dtype, value_shape.clone());
    let result = infer::infer_types(&plain, &[cx.ty(q), &key_type, &value_type], None).ok()??.pop()?;
    let fits = dtypes.iter().all(|d| *d == node.ty.dtype) && result.numel() == node.ty.numel();
    if !fits || cap.is_some() && scores.factor != 1.0 {
        return None;
    }
    let hides = match sink {
        Some(sink) if additive::is_moderate(cx, sink) => HiddenRowWeights::Zero,
        Some(_) => HiddenRowWeights::Unknown,
        None if guarded => HiddenRowWeights::Guarded,
        None => HiddenRowWeights::Weighed,
    };
    let VisibleBounds { bounds, mut operands, rows } = softmax_bounds(cx, &scores, &shape, hides)?;
    if let Some(sink) = sink {
        operands.push(reshape_leading_axes(cx, sink, &shape[..shape.len() - 2], leading)?);
    }
    let values = v;
    let k = cx.expand(k, key_shape);
    let v = cx.expand(v, value_shape);
    let op = Op::Attention { scale, cap, bounds, sink: sink.is_some(), log_sum_exp: false };
    let inputs = [vec![q, k, v], operands].concat();
    if result == node.ty && rows.is_none() {
        return Some(Rewrite::Node(op, inputs));
    }
    let y = cx.emit("heads", op, &inputs, result);
    let y = mean_for_hidden_rows(cx, y, rows, values)?;
    Some(Rewrite::Value(cx.reshape(y, node.ty.shape.clone())))
}

/// Whether other nodes need the weights, or the values that the weights are cast from. These are then
/// computed anyway, and attention would compute them again.
fn has_other_users(cx: &Rewriter, weights: ValueId) -> bool {
    match cx.def(weights) {
        _ if cx.is_shared(weights) => true,
        Some((Op::Cast | Op::Reshape | Op::Expand, &[x])) => has_other_users(cx, x),
        _ => false,
    }
}

/// The keys `[.., s, e]` whose transpose a value is, and the factor that multiplies them.
fn match_transposed_keys(cx: &mut Rewriter, k: ValueId) -> Option<(ValueId, f64)> {
    let (k, outer) = match_scale(cx, k);
    // Any permutation is one of the leading axes followed by a swap of the last two.
    let (Op::Permute { perm }, &[stored]) = cx.def(k)? else { return None };
    let mut perm = perm.clone();
    let (stored, inner) = match_scale(cx, stored);
    let last_axis = perm.len().checked_sub(1).filter(|last_axis| *last_axis > 0)?;
    perm.swap(last_axis - 1, last_axis);
    let ty = cx.ty(stored);
    let ty = TensorType::new(ty.dtype, perm.iter().map(|&axis| ty.shape[axis].clone()).collect::<Vec<_>>());
    let k = if perm.iter().copied().eq(0..=last_axis) {
        stored
    } else {
        cx.emit("heads", Op::Permute { perm }, &[stored], ty)
    };
    Some((k, outer * inner))
}

/// Replaces the leading axes of a value of matrices; leading axes of extent 1 broadcast.
fn reshape_leading_axes(cx: &mut Rewriter, value: ValueId, from: &[Dim], to: &[Dim]) -> Option<ValueId> {
    let shape = cx.shape(value);
    let Some(rank) = shape.len().checked_sub(2).filter(|_| from != to) else { return Some(value) };
    let (own_leading, tail) = shape.split_at(rank);
    let unit = Dim::from(1);
    let leading = if own_leading.iter().all(|d| *d == unit) {
        Vec::new()
    } else if own_leading == from {
        to.to_vec()
    } else {
        return None;
    };
    let wide = [&leading, tail].concat();
    Some(cx.reshape(value, wide))
}

/// The shape of a value of matrices with other leading axes.
fn with_leading_axes(ty: &TensorType, leading: &[Dim]) -> Option<Vec<Dim>> {
    let matrix = ty.shape.get(ty.rank().checked_sub(2)?..)?;
    Some([leading, matrix].concat())
}

/// Skips casts between floats and reshapes that keep the last two axes.
fn skip_casts_and_reshapes(cx: &Rewriter, mut value: ValueId) -> ValueId {
    loop {
        let inner = skip_float_cast(cx, skip_leading_reshape(cx, value));
        if inner == value {
            return value;
        }
        value = inner;
    }
}

/// Skips one reshape that keeps the last two axes.
fn skip_leading_reshape(cx: &Rewriter, value: ValueId) -> ValueId {
    let Some((Op::Reshape, &[x])) = cx.def(value) else { return value };
    let matrix = cx.shape(x).last_chunk::<2>();
    let keeps_matrix = matrix.is_some() && matrix == cx.shape(value).last_chunk::<2>();
    if keeps_matrix { x } else { value }
}

/// The weights that a softmax gives to rows whose columns a mask hides completely.
#[derive(Clone, Copy, PartialEq)]
enum HiddenRowWeights {
    /// Equal weights, or NaN.
    Weighed,
    /// As `Weighed`, with zeros instead of NaN.
    Guarded,
    /// Zeros: a sink has all the weight.
    Zero,
    /// Any: a sink of unknown size has a part of the weight.
    Unknown,
}

#[derive(Default)]
struct VisibleBounds {
    bounds: Vec<AttentionBound>,
    /// The operands after the values: the remaining mask, and the positions of the bounds.
    operands: Vec<ValueId>,
    /// Whether a row sees a column, if rows that see none have equal weights.
    rows: Option<ValueId>,
}

/// Replaces the result of rows that see nothing by the mean of the values, because their weights are equal.
fn mean_for_hidden_rows(cx: &mut Rewriter, y: ValueId, rows: Option<ValueId>, v: ValueId) -> Option<ValueId> {
    let Some(rows) = rows else { return Some(y) };
    let v = match match_repeated_heads(cx, v) {
        Some((v, shape)) => cx.reshape(v, shape),
        None => v,
    };
    row_visibility::emit_mean_for_hidden_rows(cx, y, rows, v)
}

/// Splits the masks before a softmax into bounds and a remaining mask.
///
/// Softmax does not treat all rows that see nothing in the same way. If it cannot be shown that each row
/// sees a column or has equal weights, finite numbers stay a mask.
fn softmax_bounds(
    cx: &mut Rewriter,
    scores: &MaskedScores,
    shape: &[Dim],
    unseen: HiddenRowWeights,
) -> Option<VisibleBounds> {
    if scores.mask.visible.is_empty() && scores.mask.rest.is_empty() {
        return Some(VisibleBounds::default());
    }
    let zero_rows = match unseen {
        HiddenRowWeights::Zero => true,
        HiddenRowWeights::Guarded => scores.mask.is_infinite(),
        HiddenRowWeights::Weighed | HiddenRowWeights::Unknown => false,
    };
    let plain = !scores.chose && scores.factor == 1.0;
    let condition = scores.mask.condition();
    let split = condition.and_then(|c| bounds::split_condition(cx, &c, shape)).filter(|s| s.gained || !plain);
    if let Some(visible) = split.and_then(|s| mask_bounds(cx, &scores.mask, &s, &[], shape, zero_rows))
        && (unseen != HiddenRowWeights::Unknown || visible.rows.is_none())
    {
        return Some(visible);
    }
    let finite = scores.mask.visible.iter().all(|(_, x)| x.is_finite());
    let moderate = scores.mask.rest.iter().all(|leaf| additive::is_moderate(cx, leaf.value));
    let are_weights_known = matches!(unseen, HiddenRowWeights::Zero | HiddenRowWeights::Guarded);
    if !plain || !(are_weights_known || finite && moderate) {
        return None;
    }
    let mut sum = *scores.added.first()?;
    for &mask in &scores.added[1..] {
        sum = emit_add(cx, sum, mask)?;
    }
    Some(VisibleBounds { operands: vec![sum], ..VisibleBounds::default() })
}

fn emit_add(cx: &mut Rewriter, x: ValueId, y: ValueId) -> Option<ValueId> {
    let shape = infer::broadcast_shapes(&[cx.shape(x), cx.shape(y)]).ok()?;
    let ty = TensorType::new(cx.ty(x).dtype, shape);
    (cx.ty(y).dtype == ty.dtype).then(|| cx.emit("bias", Op::Binary(BinaryOp::Add), &[x, y], ty))
}

/// Numbers that absorb scores of moderate size when added, and that every dtype except f16 represents as
/// finite.
const FINITE_HIDING_NUMBERS: std::ops::RangeInclusive<f64> = f32::MIN as f64..=-1e38;

/// Whether fully hidden rows have equal weights: a single number from [`FINITE_HIDING_NUMBERS`] hides.
fn hides_evenly(mask: &AdditiveMask) -> bool {
    matches!(&mask.visible[..], [(_, number)] if FINITE_HIDING_NUMBERS.contains(number))
}

/// The bounds and the remaining mask of a float mask that is split as `split`. `existing` are the bounds that
/// the attention already has. `zero_rows` says that rows that see nothing are zero.
fn mask_bounds(
    cx: &mut Rewriter,
    mask: &AdditiveMask,
    split: &ConditionSplit,
    existing: &[AttentionBound],
    shape: &[Dim],
    zero_rows: bool,
) -> Option<VisibleBounds> {
    let new = split.bounds.iter().map(|l| &l.bound);
    let moderate = mask.rest.iter().all(|leaf| additive::is_moderate(cx, leaf.value));
    let sees = split.rest.is_empty()
        && moderate
        && bounds::every_row_has_visible_column(cx, new.chain(existing), shape);
    let mut rows = None;
    if !sees && !zero_rows {
        if !moderate || !existing.is_empty() || !hides_evenly(mask) {
            return None;
        }
        rows = Some(row_visibility::emit_row_visibility(cx, split, shape)?);
    }
    let mut sum = None;
    for leaf in &mask.rest {
        let next = operands::emit_element(cx, leaf, shape)?;
        sum = Some(match sum {
            None => next,
            Some(other) => emit_add(cx, other, next)?,
        });
    }
    let witness_mask = operands::emit_witness_mask(cx, &split.rest, shape);
    let mask_operand = match (witness_mask, sum) {
        (Some(visible), Some(added)) => {
            let ty = TensorType::new(
                cx.ty(added).dtype,
                infer::broadcast_shapes(&[cx.shape(visible), cx.shape(added)]).ok()?,
            );
            let number = TensorType::new(ty.dtype, vec![]);
            let never =
                cx.emit("never", Op::Full(Scalar::Float(FloatAttribute(f64::NEG_INFINITY))), &[], number);
            Some(cx.emit("mask", Op::Select, &[visible, added, never], ty))
        }
        (visible, added) => visible.or(added),
    };
    let (bounds, positions) = bound_operands(cx, split, shape)?;
    Some(VisibleBounds { bounds, operands: mask_operand.into_iter().chain(positions).collect(), rows })
}

/// The bounds of a split, and the values of their operands.
fn bound_operands(
    cx: &mut Rewriter,
    split: &ConditionSplit,
    shape: &[Dim],
) -> Option<(Vec<AttentionBound>, Vec<ValueId>)> {
    let mut positions = Vec::new();
    for limit in split.bounds.iter().filter(|l| l.bound.operand) {
        positions.push(operands::emit_bound_operand(cx, limit, shape)?);
    }
    Some((split.bounds.iter().map(|l| l.bound.clone()).collect(), positions))
}

/// `x` and `c`, if the value is `x * c` or `x / (1/c)`, else the value and 1.
fn match_scale(cx: &Rewriter, value: ValueId) -> (ValueId, f64) {
    match cx.def(value) {
        Some((Op::BinaryScalar { op: BinaryOp::Mul, scalar, .. }, &[x])) => (x, scalar.as_f64()),
        Some((Op::BinaryScalar { op: BinaryOp::Div, scalar, scalar_left: false }, &[x])) => {
            (x, 1.0 / scalar.as_f64())
        }
        _ => (value, 1.0),
    }
}

/// `x`, `c` and `f`, if the value is `c * tanh(f * x / c)`.
fn match_cap(cx: &Rewriter, value: ValueId) -> Option<(ValueId, FloatAttribute, f64)> {
    let (tanh, cap) = match_scale(cx, skip_float_cast(cx, value));
    let (Op::Unary(UnaryOp::Tanh), &[x]) = cx.def(skip_float_cast(cx, tanh))? else { return None };
    let (x, inverse) = match_scale(cx, skip_float_cast(cx, x));
    (cap.is_finite() && cap > 0.0).then_some((x, FloatAttribute(cap), cap * inverse))
}

/// A float value before it was converted to another float dtype.
fn skip_float_cast(cx: &Rewriter, value: ValueId) -> ValueId {
    match cx.def(value) {
        Some((Op::Cast, &[x])) if cx.ty(x).dtype.is_float() && cx.ty(value).dtype.is_float() => x,
        _ => value,
    }
}

/// Separates scores from masks that are added to them or select them, and from constants that are added to
/// all of them.
fn match_masked_scores(cx: &mut Rewriter, scores: ValueId) -> Option<MaskedScores> {
    let shape = cx.shape(scores).to_vec();
    let leading = shape[..shape.len().checked_sub(2)?].to_vec();
    let added = Vec::new();
    let mut out = MaskedScores {
        leading,
        before: scores,
        mask: AdditiveMask::default(),
        added,
        factor: 1.0,
        floor: None,
        chose: false,
    };
    for _ in 0..MAX_MASKS {
        let value = skip_casts_and_reshapes(cx, out.before);
        let Some((op, inputs)) = cx.def(value) else { break };
        let op = op.clone();
        let inputs = inputs.to_vec();
        match (op, &inputs[..]) {
            (Op::BinaryScalar { op: BinaryOp::Add, scalar, .. }, &[x]) if scalar.as_f64().abs() < 1e6 => {
                out.before = x;
            }
            (Op::BinaryScalar { op: BinaryOp::Mul | BinaryOp::Div, .. }, _) => {
                let (x, factor) = match_scale(cx, value);
                let masked = matches!(
                    cx.def(skip_casts_and_reshapes(cx, x)),
                    Some((
                        Op::Binary(BinaryOp::Add) | Op::BinaryScalar { op: BinaryOp::Add, .. } | Op::Select,
                        _
                    ))
                );
                if !masked || !(1e-3..1e3).contains(&factor) {
                    break;
                }
                (out.before, out.factor) = (x, out.factor * factor);
            }
            (Op::BinaryScalar { op: BinaryOp::Max, scalar, .. }, &[x])
                if out.factor == 1.0
                    && out.floor.is_none()
                    && FINITE_HIDING_NUMBERS.contains(&scalar.as_f64()) =>
            {
                out.floor = Some((scalar.as_f64(), MaskCondition::constant(true)));
                (out.before, out.chose) = (x, true);
            }
            (Op::Binary(BinaryOp::Add), &[a, b]) => {
                let scored = [(a, b), (b, a)]
                    .into_iter()
                    .find(|&(x, _)| cx.shape(x) == cx.shape(value) && is_scores(cx, x));
                let Some((x, mask)) = scored else { break };
                let mask = out.align_leading_axes(cx, value, mask)?;
                let addend = additive::parse_additive_mask(cx, mask)
                    .through_view(&AxisView::broadcast(cx.shape(mask), &shape)?)?;
                out.apply_mask(addend)?;
                out.added.push(mask);
                out.before = x;
            }
            (Op::Select, &[c, x, y]) => {
                let (_, number, other) = additive::match_hiding_select(cx, cx.ty(value).dtype, c, x, y)?;
                if cx.shape(other) != cx.shape(value) {
                    break;
                }
                let c = out.align_leading_axes(cx, value, c)?;
                let visible =
                    cx.facts().mask_condition(c).through_view(&AxisView::broadcast(cx.shape(c), &shape)?)?;
                let visible = if other == x { visible } else { visible.negate() };
                out.apply_mask(AdditiveMask { visible: vec![(visible, number)], rest: Vec::new() })?;
                (out.before, out.chose) = (other, true);
            }
            _ => break,
        }
    }
    if let Some((number, visible)) = out.floor.take().filter(|f| f.1.is_constant() != Some(true)) {
        out.mask.visible.push((visible, number));
    }
    Some(out)
}

impl MaskedScores {
    /// Gives an operand that is combined with scores at `value` the leading axes of the masks.
    fn align_leading_axes(&self, cx: &mut Rewriter, value: ValueId, mask: ValueId) -> Option<ValueId> {
        let from = cx.shape(value)[..cx.shape(value).len() - 2].to_vec();
        reshape_leading_axes(cx, mask, &from, &self.leading)
    }

    /// Adds one more mask, which applies before the factor.
    fn apply_mask(&mut self, mut mask: AdditiveMask) -> Option<()> {
        if self.factor != 1.0 && !mask.rest.is_empty() {
            return None;
        }
        // Every hidden score is raised to the floor.
        if let Some((floor, visible)) = &mut self.floor {
            for (condition, number) in std::mem::take(&mut mask.visible) {
                if number > *floor {
                    return None;
                }
                *visible = std::mem::replace(visible, MaskCondition::constant(true)).and(condition)?;
            }
        }
        mask.visible.iter_mut().for_each(|(_, number)| *number *= self.factor);
        self.mask = std::mem::take(&mut self.mask).combine_masks(mask)?;
        Some(())
    }
}

/// Whether a value is a product of matrices, possibly under ops that come before a softmax.
fn is_scores(cx: &Rewriter, mut value: ValueId) -> bool {
    for _ in 0..4 * MAX_MASKS {
        value = match cx.def(value) {
            Some((Op::MatMul { .. }, _)) => return true,
            Some((Op::Cast | Op::Reshape | Op::BinaryScalar { .. } | Op::Unary(UnaryOp::Tanh), &[x])) => x,
            Some((Op::Binary(BinaryOp::Add), &[a, b])) => {
                if cx.shape(a) == cx.shape(value) {
                    a
                } else {
                    b
                }
            }
            Some((Op::Select, &[_, x, y])) => {
                if cx.shape(x) == cx.shape(value) {
                    x
                } else {
                    y
                }
            }
            _ => return false,
        };
    }
    false
}

/// The most masks between scores and their softmax.
const MAX_MASKS: usize = 6;

fn full_mask(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let Op::Attention { bounds, sink, .. } = &node.op else { return None };
    let operands = AttentionOperands::from_operands(bounds, *sink, &node.inputs)?;
    let neutral = match cx.known_full(*operands.mask?)? {
        Scalar::Bool(b) => b,
        s => s.as_f64() == 0.0,
    };
    neutral.then(|| Rewrite::Node(node.op.clone(), operands.with_mask(None)))
}

fn mask_of_positions(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let Op::Attention { scale, cap, bounds: old, sink, log_sum_exp } = &node.op else { return None };
    let qkv = AttentionOperands::from_operands(old, *sink, &node.inputs)?;
    let mask = *qkv.mask?;
    let mut shape = cx.shape(*qkv.q).to_vec();
    *shape.last_mut()? = cx.shape(*qkv.k).iter().rev().nth(1)?.clone();
    let view = AxisView::broadcast(cx.shape(mask), &shape)?;
    let VisibleBounds { mut bounds, operands: bound_operands, rows } = if cx.ty(mask).dtype == DType::Bool {
        let condition = cx.facts().mask_condition(mask).through_view(&view)?;
        let split = bounds::split_condition(cx, &condition, &shape).filter(|s| s.gained)?;
        let witness_mask = operands::emit_witness_mask(cx, &split.rest, &shape);
        let (new, positions) = bound_operands(cx, &split, &shape)?;
        VisibleBounds {
            bounds: new,
            operands: witness_mask.into_iter().chain(positions).collect(),
            rows: None,
        }
    } else {
        let mask = additive::parse_additive_mask(cx, mask).through_view(&view)?;
        let split = bounds::split_condition(cx, &mask.condition()?, &shape).filter(|s| s.gained)?;
        let zero_rows = mask.is_infinite() || qkv.sink.is_some_and(|&sink| additive::is_moderate(cx, sink));
        // The mean of the values is the result of hidden rows only if no sink takes a part of their weight.
        mask_bounds(cx, &mask, &split, old, &shape, zero_rows)
            .filter(|visible| qkv.sink.is_none() || visible.rows.is_none())?
    };
    let count = attention::position_operand_count(&bounds);
    let (mask_operands, positions) = bound_operands.split_at(bound_operands.len().checked_sub(count)?);
    if mask_operands.first() == Some(&mask) {
        return None;
    }
    let sunk = qkv.sink.copied();
    let inputs =
        [&[*qkv.q, *qkv.k, *qkv.v], mask_operands, qkv.positions, positions, sunk.as_slice()].concat();
    bounds.retain(|b| b.operand || !old.contains(b));
    let bounds = [&old[..], &bounds].concat();
    let op = Op::Attention { scale: *scale, cap: *cap, bounds, sink: *sink, log_sum_exp: *log_sum_exp };
    if rows.is_none() {
        return Some(Rewrite::Node(op, inputs));
    }
    if *log_sum_exp {
        // The sums of rows that see nothing would have to be replaced as well.
        return None;
    }
    let v = *qkv.v;
    let y = cx.emit("seen", op, &inputs, node.ty.clone());
    Some(Rewrite::Value(mean_for_hidden_rows(cx, y, rows, v)?))
}

/// The softmax within `select(is_nan(s), 0, s)`, which equals `s` where every row sees something, and
/// whether that select is there.
fn match_nan_guard(cx: &Rewriter, weights: ValueId) -> (ValueId, bool) {
    let Some((Op::Select, &[nan, zero, s])) = cx.def(weights) else { return (weights, false) };
    let zero = cx.known_full(zero).is_some_and(|s| s.as_f64() == 0.0);
    let guards = matches!(cx.def(nan), Some((Op::Unary(UnaryOp::IsNan), &[tested])) if tested == s);
    if zero && guards { (s, true) } else { (weights, false) }
}

/// The softmax of which a value is all columns except the last, and the number of these columns.
fn match_sink_slice(cx: &Rewriter, weights: ValueId) -> Option<(ValueId, Dim)> {
    let (Op::Slice { axis, start, step: 1 }, &[all_weights]) = cx.def(weights)? else { return None };
    let columns = cx.shape(weights).last()?;
    let all_columns = cx.shape(all_weights).last()?;
    let is_row_prefix = *axis + 1 == cx.shape(all_weights).len() && start.as_const() == Some(0);
    let but_one = *all_columns == columns.clone() + Dim::from(1);
    (is_row_prefix && but_one).then(|| (skip_casts_and_reshapes(cx, all_weights), columns.clone()))
}

/// The scores and the sink of a softmax: `columns` columns of scores, concatenated with one column. The
/// greatest element of each row may be subtracted first.
fn with_sink(cx: &Rewriter, value: ValueId, columns: &Dim) -> Option<(ValueId, ValueId)> {
    let mut value = skip_casts_and_reshapes(cx, value);
    if let Some((Op::Binary(BinaryOp::Sub), &[x, max])) = cx.def(value)
        && let Some((Op::Reduce { op: ReductionKind::Max, axes, keep: true }, &[reduced])) =
            cx.def(skip_casts_and_reshapes(cx, max))
        && skip_casts_and_reshapes(cx, reduced) == skip_casts_and_reshapes(cx, x)
        && axes[..] == [cx.shape(reduced).len() - 1]
    {
        value = skip_casts_and_reshapes(cx, x);
    }
    let (Op::Concat { axis }, &[scores, sink]) = cx.def(value)? else { return None };
    let widths = [scores, sink].map(|v| cx.shape(v).last().cloned());
    let fits = *axis + 1 == cx.shape(value).len() && widths == [Some(columns.clone()), Some(Dim::from(1))];
    // Attention takes one sink for all rows if the rows share it.
    let narrow = match cx.def(sink) {
        Some((Op::Expand, &[narrow])) => narrow,
        _ => sink,
    };
    fits.then_some((scores, narrow))
}

fn grouped_heads(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let (Op::Attention { .. }, [q, k, v, mask @ ..]) = (&node.op, &node.inputs[..]) else { return None };
    let (k, k_shape) = match_repeated_heads(cx, *k)?;
    let (v, v_shape) = match_repeated_heads(cx, *v)?;
    let heads = k_shape.len() - 3;
    // If k and v repeat heads differently, the heads do not form groups.
    if k_shape[heads] != v_shape[heads] {
        return None;
    }
    let mut inputs = vec![*q, cx.reshape(k, k_shape), cx.reshape(v, v_shape)];
    inputs.extend_from_slice(mask);
    Some(Rewrite::Node(node.op.clone(), inputs))
}

/// The value whose heads are repeated in `x [.., h, s, e]`, each head several times in a row, and its shape
/// `[.., g, s, e]` before the repetition.
fn match_repeated_heads(cx: &Rewriter, x: ValueId) -> Option<(ValueId, Vec<Dim>)> {
    let (op, &[inner]) = cx.def(x)? else { return None };
    let shape = cx.shape(x);
    let heads = shape.len().checked_sub(3)?;
    match op {
        // One head that is expanded.
        Op::Expand => {
            let mut narrow = shape.to_vec();
            narrow[heads] = Dim::from(1);
            (cx.shape(inner) == narrow).then_some((inner, narrow))
        }
        // [.., g, 1, s, e] expanded to [.., g, r, s, e] and flattened to [.., g*r, s, e].
        Op::Reshape => {
            let (Op::Expand, &[narrow]) = cx.def(inner)? else { return None };
            let wide = cx.shape(inner);
            let flattened = wide.len() == shape.len() + 1
                && wide[..heads] == shape[..heads]
                && wide[heads + 2..] == shape[heads + 1..];
            let mut repeated = wide.to_vec();
            *repeated.get_mut(heads + 1)? = Dim::from(1);
            let mut grouped = shape.to_vec();
            grouped[heads] = wide[heads].clone();
            (flattened && cx.shape(narrow) == repeated).then_some((narrow, grouped))
        }
        _ => None,
    }
}
