//! Recognises rotary position embeddings that are written out.
//!
//! Exporters write `x * cos + rotate_half(x) * sin`, or compute the two members of the pairs separately and
//! concatenate or stack them. The halves and the neighbours of `rotate_half` come from slices, from axes of
//! two, or from repeated numbers. In all these forms, each member of a pair is the same sum of two products.
//!
//! A candidate is therefore read backwards. The *pieces* of its last axis that hold the first and the second
//! members are traced through ops that only move elements, down to two products each. The factors are traced
//! in the same way until they are pieces of three values: the rotated value, the cosines and the sines.
//!
//! Deliberately not here: complex numbers, which the IR does not have.

use symmc_ir::{BinaryOp, Dim, Op, UnaryOp, ValueId, infer};

use super::views::match_unit_slice;
use crate::rewrite::{CandidateNode, Rewrite, RewriteRule, Rewriter};

pub const RULES: &[RewriteRule] = &[
    RewriteRule {
        name: "rotary_embedding",
        equation: "x * cos + rotate_half(x) * sin = (a * cos - b * sin, b * cos + a * sin) of the pairs (a, b) of x = \
                   rotary_embedding(x, cos, sin)",
        apply: recognize_rotary,
    },
    RewriteRule {
        name: "rotary_embedding_of_part",
        equation: "concat(rotary_embedding(x[..r]), x[r..]) = rotary_embedding(x) of width r",
        apply: rotary_of_slice,
    },
    RewriteRule {
        name: "rotary_embedding_between_casts",
        equation: "cast(rotary_embedding(cast(x), cos, sin)) = rotary_embedding(x, cos, sin)",
        apply: rotary_between_casts,
    },
];

/// The most ops through which a piece is traced.
const MAX_TRACED_OPS: usize = 16;

/// Elements of a value: `start`, `start + step`, … of its axes from `lead` on, flattened.
#[derive(Clone, PartialEq, Eq, Debug)]
struct RotaryPiece {
    value: ValueId,
    at: PieceRegion,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct PieceRegion {
    lead: usize,
    /// The extents of the leading axes where the piece is used. They equal those of the value except for
    /// axes of extent 1.
    rows: Vec<Dim>,
    start: i64,
    step: i64,
    len: i64,
    negative: bool,
}

/// A node, which need not be in the graph yet.
struct NodeRef<'a> {
    op: &'a Op,
    inputs: &'a [ValueId],
    shape: &'a [Dim],
}

impl<'a> NodeRef<'a> {
    fn of_value(cx: &'a Rewriter, value: ValueId) -> Option<Self> {
        let (op, inputs) = cx.def(value)?;
        Some(NodeRef { op, inputs, shape: cx.shape(value) })
    }
}

/// A product that is added, or subtracted if it is negative.
struct RotaryProduct {
    negative: bool,
    factors: [RotaryPiece; 2],
}

impl RotaryProduct {
    fn factors_in_order(&self, swapped: bool) -> [&RotaryPiece; 2] {
        let [x, y] = &self.factors;
        if swapped { [y, x] } else { [x, y] }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PairLayout {
    Halves,
    Neighbours,
}

impl PairLayout {
    /// The step between members of one kind, and the distance between the two members of a pair, for `half`
    /// pairs.
    fn step_and_distance(self, half: i64) -> (i64, i64) {
        match self {
            PairLayout::Halves => (1, half),
            PairLayout::Neighbours => (2, 1),
        }
    }
}

fn recognize_rotary(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let axis = node.ty.rank().checked_sub(1)?;
    let row_extent = node.ty.shape.last()?;
    let joins = match &node.op {
        Op::Binary(BinaryOp::Add | BinaryOp::Sub) => true,
        Op::Concat { axis: along } => *along == axis,
        Op::Reshape => matches!(cx.def(node.inputs[0]), Some((Op::Concat { .. }, _))),
        _ => false,
    };
    let width =
        row_extent.as_const().filter(|w| joins && node.ty.dtype.is_float() && *w >= 4 && w % 2 == 0)?;
    let layouts = [PairLayout::Halves, PairLayout::Neighbours];
    let (pairs, matched) =
        layouts.into_iter().find_map(|pairs| Some((pairs, match_rotation(cx, node, pairs)?)))?;
    let [x, cos, sin] = matched.operands.map(|operand| operand.emit(cx));
    let interleaved = matched.pairs == PairLayout::Neighbours;
    let op = Op::RotaryEmbedding { width: usize::try_from(width).ok()?, interleaved };
    let types = [cx.ty(x), cx.ty(cos), cx.ty(sin)];
    let fits = infer::infer_types(&op, &types, None)
        .is_ok_and(|t| t.as_deref() == Some(std::slice::from_ref(&node.ty)));
    if !fits || matched.pairs == pairs {
        return fits.then(|| Rewrite::Node(op, vec![x, cos, sin]));
    }
    let y = cx.emit("turned", op, &[x, cos, sin], node.ty.clone());
    let (step, distance) = matched.pairs.step_and_distance(width / 2);
    let halves = [0, distance].map(|start| {
        let slice = RowSlice {
            value: y,
            rows: node.ty.shape[..axis].to_vec(),
            extent: width,
            start,
            step,
            len: width / 2,
        };
        slice.emit(cx)
    });
    Some(Rewrite::Node(Op::Concat { axis }, halves.to_vec()))
}

struct RotaryMatch {
    /// The layout of pairs in the rotated operand, which may differ from that in the result.
    pairs: PairLayout,
    operands: [RowSlice; 3],
}

/// Elements of each row of a value.
struct RowSlice {
    value: ValueId,
    rows: Vec<Dim>,
    /// The number of elements in a row of the value.
    extent: i64,
    start: i64,
    step: i64,
    len: i64,
}

impl RowSlice {
    /// Extends a slice of first members to both members of their pairs.
    fn into_pairs(self) -> RowSlice {
        RowSlice { step: 1, len: 2 * self.len, ..self }
    }

    /// Emits the value that has only these elements.
    fn emit(self, cx: &mut Rewriter) -> ValueId {
        let flat = cx.reshape(self.value, [&self.rows[..], &[Dim::from(self.extent)]].concat());
        if self.len == self.extent {
            return flat;
        }
        let axis = self.rows.len();
        let mut ty = cx.ty(flat).clone();
        ty.shape[axis] = Dim::from(self.len);
        let op = Op::Slice { axis, start: Dim::from(self.start), step: self.step };
        cx.emit("part", op, &[flat], ty)
    }
}

/// The operands of the rotation that a node is, if the result has pairs in this layout.
fn match_rotation(cx: &Rewriter, node: &CandidateNode, pairs: PairLayout) -> Option<RotaryMatch> {
    let (row_extent, rows) = node.ty.shape.split_last()?;
    let half = row_extent.as_const()? / 2;
    let (step, distance) = pairs.step_and_distance(half);
    let node = NodeRef { op: &node.op, inputs: &node.inputs, shape: &node.ty.shape };
    let first_members =
        PieceRegion { lead: rows.len(), rows: rows.to_vec(), start: 0, step, len: half, negative: false };
    let second_members = PieceRegion { start: distance, ..first_members.clone() };
    let a = match_sum(cx, &node, &first_members, MAX_TRACED_OPS)?;
    let b = match_sum(cx, &node, &second_members, MAX_TRACED_OPS)?;
    // Pairs of neighbours may be written as halves, by concatenation; halves are never written as
    // neighbours.
    let operand_layouts: &[PairLayout] = match pairs {
        PairLayout::Halves => &[PairLayout::Halves, PairLayout::Neighbours],
        PairLayout::Neighbours => &[PairLayout::Neighbours],
    };
    // The first members are a * cos - b * sin, the second ones b * cos + a * sin.
    for &layout in operand_layouts {
        let wanted = RotaryPattern { rows, half, layout, each: layout == pairs };
        for first in operand_orders(&a) {
            for second in operand_orders(&b) {
                let matched = match_sums(cx, &wanted, [&first, &second]);
                if matched.is_some() {
                    return matched;
                }
            }
        }
    }
    None
}

struct RotaryPattern<'a> {
    rows: &'a [Dim],
    half: i64,
    /// The layout of pairs in the rotated operand.
    layout: PairLayout,
    /// Whether there may be a cosine for each element instead of each pair.
    each: bool,
}

/// A sum of two products. `own` and `other` hold the factors of the first and the second product, each as
/// the rotated factor followed by its cosine or sine.
struct RotarySum<'a> {
    own: [&'a RotaryPiece; 2],
    other: [&'a RotaryPiece; 2],
    negative: [bool; 2],
}

/// Yields the orders in which the products of a sum and their factors can be read.
fn operand_orders(sum: &[RotaryProduct; 2]) -> impl Iterator<Item = RotarySum<'_>> {
    (0..8).map(move |n: usize| {
        let own = &sum[n & 1];
        let other_product = &sum[1 - (n & 1)];
        RotarySum {
            own: own.factors_in_order(n & 2 != 0),
            other: other_product.factors_in_order(n & 4 != 0),
            negative: [own.negative, other_product.negative],
        }
    })
}

fn match_sums(
    cx: &Rewriter,
    wanted: &RotaryPattern<'_>,
    [first, second]: [&RotarySum<'_>; 2],
) -> Option<RotaryMatch> {
    let (step, distance) = wanted.layout.step_and_distance(wanted.half);
    // The first member occurs in a product with a cosine and in one with a sine, and so does the second.
    let own_a = trace_chain(cx, first.own[0]);
    let other_b = trace_chain(cx, first.other[0]);
    let own_b = trace_chain(cx, second.own[0]);
    let other_a = trace_chain(cx, second.other[0]);
    let mut roots = pieces_at_distance(&own_a, &other_b, distance)
        .filter(|(a, _)| a.at.step == step && a.at.rows == wanted.rows);
    let (a, negative_x) = roots.find_map(|(a, b)| {
        Some((a, [a.at.negative, b.at.negative, sign_in_chain(&own_b, b)?, sign_in_chain(&other_a, a)?]))
    })?;
    let negative_product = [first.negative[0], first.negative[1], second.negative[0], second.negative[1]];
    let negative_term = [0, 1, 2, 3].map(|i| negative_product[i] ^ negative_x[i]);
    let cos = [trace_chain(cx, first.own[1]), trace_chain(cx, second.own[1])];
    let sin = [trace_chain(cx, first.other[1]), trace_chain(cx, second.other[1])];
    // One number per pair takes fewer reads.
    let mut numbers = match_numbers(cx, wanted, false, &cos, &sin, negative_term);
    if numbers.is_none() && wanted.each {
        numbers = match_numbers(cx, wanted, true, &cos, &sin, negative_term);
    }
    let [cos, sin] = numbers?;
    Some(RotaryMatch { pairs: wanted.layout, operands: [a.to_row_slice(cx)?.into_pairs(), cos, sin] })
}

/// The sign of the elements of `root` in a chain.
fn sign_in_chain(chain: &[RotaryPiece], root: &RotaryPiece) -> Option<bool> {
    chain.iter().find(|piece| piece.same_elements(root)).map(|piece| piece.at.negative)
}

/// The cosines and sines that the chains of the first and the second members share: with `each` one for each
/// element, else one for each pair. `negative_term` holds the signs of `a * cos`, `b * sin`, `b * cos` and
/// `a * sin` without those of cosines and sines.
fn match_numbers(
    cx: &Rewriter,
    wanted: &RotaryPattern<'_>,
    each: bool,
    cos: &[Vec<RotaryPiece>; 2],
    sin: &[Vec<RotaryPiece>; 2],
    negative_term: [bool; 4],
) -> Option<[RowSlice; 2]> {
    let (step, distance) = wanted.layout.step_and_distance(wanted.half);
    let distance = if each { distance } else { 0 };
    let (cos_a, cos_b) =
        pieces_at_distance(&cos[0], &cos[1], distance).find(|(p, _)| !each || p.at.step == step)?;
    let (sin_a, sin_b) =
        pieces_at_distance(&sin[0], &sin[1], distance).find(|(p, _)| !each || p.at.step == step)?;
    let signs = [cos_a, sin_a, cos_b, sin_b].map(|p| p.at.negative);
    if [0, 1, 2, 3].map(|i| negative_term[i] ^ signs[i]) != [false, true, false, false] {
        return None;
    }
    let cos = cos_a.to_row_slice(cx)?;
    let sin = sin_a.to_row_slice(cx)?;
    Some(if each { [cos.into_pairs(), sin.into_pairs()] } else { [cos, sin] })
}

/// Pairs of pieces of one value, one from each chain, whose starts differ by `distance`.
fn pieces_at_distance<'a>(
    from: &'a [RotaryPiece],
    to: &'a [RotaryPiece],
    distance: i64,
) -> impl Iterator<Item = (&'a RotaryPiece, &'a RotaryPiece)> {
    from.iter().flat_map(move |a| {
        let matching = to.iter().find(|b| {
            let moved = PieceRegion { start: a.at.start + distance, negative: b.at.negative, ..a.at.clone() };
            a.value == b.value && b.at == moved
        });
        matching.map(|b| (a, b))
    })
}

impl RotaryPiece {
    fn same_elements(&self, other: &RotaryPiece) -> bool {
        let region = PieceRegion { negative: other.at.negative, ..self.at.clone() };
        self.value == other.value && region == other.at
    }

    fn to_row_slice(&self, cx: &Rewriter) -> Option<RowSlice> {
        let PieceRegion { lead, rows, start, step, len, .. } = self.at.clone();
        let extent = constant_extents(cx.shape(self.value), lead)?.iter().product();
        Some(RowSlice { value: self.value, rows, extent, start, step, len })
    }
}

/// A piece, followed by the pieces that it comes from, one op further each time.
fn trace_chain(cx: &Rewriter, piece: &RotaryPiece) -> Vec<RotaryPiece> {
    std::iter::successors(Some(piece.clone()), |p| trace_operand(cx, &NodeRef::of_value(cx, p.value)?, &p.at))
        .take(MAX_TRACED_OPS)
        .collect()
}

/// The two products whose sum the elements of a node are, at most `max_ops` ops away.
fn match_sum(
    cx: &Rewriter,
    node: &NodeRef<'_>,
    region: &PieceRegion,
    max_ops: usize,
) -> Option<[RotaryProduct; 2]> {
    let max_ops = max_ops.checked_sub(1)?;
    if let Op::Binary(op @ (BinaryOp::Add | BinaryOp::Sub)) = node.op {
        let [a, mut b] = operand_pieces(cx, node, region)?;
        b.at.negative ^= *op == BinaryOp::Sub;
        return Some([match_product(cx, &a, max_ops)?, match_product(cx, &b, max_ops)?]);
    }
    let piece = trace_operand(cx, node, region)?;
    match_sum(cx, &NodeRef::of_value(cx, piece.value)?, &piece.at, max_ops)
}

/// The product that a piece is, at most `max_ops` ops away.
fn match_product(cx: &Rewriter, piece: &RotaryPiece, max_ops: usize) -> Option<RotaryProduct> {
    let max_ops = max_ops.checked_sub(1)?;
    let node = NodeRef::of_value(cx, piece.value)?;
    if !matches!(node.op, Op::Binary(BinaryOp::Mul)) {
        return match_product(cx, &trace_operand(cx, &node, &piece.at)?, max_ops);
    }
    let mut factors = operand_pieces(cx, &node, &piece.at)?;
    factors.iter_mut().for_each(|f| f.at.negative = false);
    Some(RotaryProduct { negative: piece.at.negative, factors })
}

/// The elements of both operands from which an element-wise node computes the elements of `region`.
fn operand_pieces(cx: &Rewriter, node: &NodeRef<'_>, region: &PieceRegion) -> Option<[RotaryPiece; 2]> {
    let x = operand_piece(cx, node, region, *node.inputs.first()?)?;
    let y = operand_piece(cx, node, region, *node.inputs.get(1)?)?;
    Some([x, y])
}

/// The elements of one operand from which an element-wise node computes the elements of `region`; `None` if the
/// operand broadcasts to them.
fn operand_piece(
    cx: &Rewriter,
    node: &NodeRef<'_>,
    region: &PieceRegion,
    value: ValueId,
) -> Option<RotaryPiece> {
    let shape = cx.shape(value);
    let lead = region.lead.checked_sub(node.shape.len().checked_sub(shape.len())?)?;
    let same_shape = shape[lead..] == node.shape[region.lead..];
    same_shape.then(|| RotaryPiece {
        value,
        at: PieceRegion { lead, rows: shape[..lead].to_vec(), ..region.clone() },
    })
}

/// The extents of a shape from `lead` on, if all are numbers.
fn constant_extents(shape: &[Dim], lead: usize) -> Option<Vec<i64>> {
    shape.get(lead..)?.iter().map(Dim::as_const).collect()
}

/// The elements of the operand that a node moves or negates to give the elements of `region`.
fn trace_operand(cx: &Rewriter, node: &NodeRef<'_>, region: &PieceRegion) -> Option<RotaryPiece> {
    let &value = node.inputs.first()?;
    match node.op {
        Op::Unary(UnaryOp::Neg) => {
            Some(RotaryPiece { value, at: PieceRegion { negative: !region.negative, ..region.clone() } })
        }
        Op::Reshape => {
            trace_reshape(cx.shape(value), node, region).map(|region| RotaryPiece { value, at: region })
        }
        Op::Slice { axis, start, step } => {
            let cut = SliceParams { axis: *axis, start: start.as_const()?, step: *step };
            trace_slice(cx.shape(value), node, region, &cut).map(|region| RotaryPiece { value, at: region })
        }
        Op::Concat { axis } => trace_concat(cx, node, region, *axis),
        Op::Expand => {
            trace_expand(cx.shape(value), node, region).map(|region| RotaryPiece { value, at: region })
        }
        _ => None,
    }
}

/// The leading axes stay the same except those of extent 1, so no element moves in row-major order.
fn trace_reshape(from: &[Dim], node: &NodeRef<'_>, region: &PieceRegion) -> Option<PieceRegion> {
    let elements: i64 = constant_extents(node.shape, region.lead)?.iter().product();
    let rows = non_unit_extents(&node.shape[..region.lead]);
    let lead = (0..=from.len()).rev().find(|&lead| {
        non_unit_extents(&from[..lead]) == rows
            && constant_extents(from, lead).is_some_and(|t| t.iter().product::<i64>() == elements)
    })?;
    Some(PieceRegion { lead, ..region.clone() })
}

fn non_unit_extents(shape: &[Dim]) -> Vec<&Dim> {
    shape.iter().filter(|d| d.as_const() != Some(1)).collect()
}

struct SliceParams {
    axis: usize,
    start: i64,
    step: i64,
}

fn trace_slice(
    from: &[Dim],
    node: &NodeRef<'_>,
    region: &PieceRegion,
    cut: &SliceParams,
) -> Option<PieceRegion> {
    let kept_extents = constant_extents(node.shape, region.lead)?;
    let source_extents = constant_extents(from, region.lead)?;
    let axis = cut.axis.checked_sub(region.lead)?;
    let outer: i64 = kept_extents[..axis].iter().product();
    let inner: i64 = kept_extents[axis + 1..].iter().product();
    let (start, step) = match (outer, inner, kept_extents[axis]) {
        (1, 1, _) => (cut.start + region.start * cut.step, region.step * cut.step),
        (1, _, n) if n == 1 || cut.step == 1 => (region.start + cut.start * inner, region.step),
        (_, 1, 1) => (region.start * source_extents[axis] + cut.start, region.step * source_extents[axis]),
        _ => return None,
    };
    Some(PieceRegion { start, step, ..region.clone() })
}

fn trace_concat(cx: &Rewriter, node: &NodeRef<'_>, region: &PieceRegion, axis: usize) -> Option<RotaryPiece> {
    let axis_within = axis.checked_sub(region.lead)?;
    let extents = constant_extents(node.shape, region.lead)?;
    let outer: i64 = extents[..axis_within].iter().product();
    let inner: i64 = extents[axis_within + 1..].iter().product();
    let mut low = 0;
    for &value in node.inputs {
        let n = cx.shape(value).get(axis)?.as_const()?;
        let end = low + n;
        let first = region.start;
        let last_position = region.start + (region.len - 1) * region.step;
        if outer == 1 && low * inner <= first && last_position < end * inner {
            return Some(RotaryPiece {
                value,
                at: PieceRegion { start: first - low * inner, ..region.clone() },
            });
        }
        // One operand of a stack.
        let count = extents[axis_within];
        if inner == 1 && n == 1 && region.step % count == 0 && region.start % count == low {
            let region =
                PieceRegion { start: region.start / count, step: region.step / count, ..region.clone() };
            return Some(RotaryPiece { value, at: region });
        }
        low = end;
    }
    None
}

fn trace_expand(from: &[Dim], node: &NodeRef<'_>, region: &PieceRegion) -> Option<PieceRegion> {
    let lead = region.lead.checked_sub(node.shape.len().checked_sub(from.len())?)?;
    // Axes of extent 1 that were added or removed earlier would be counted wrong.
    if region.rows != node.shape[..region.lead] {
        return None;
    }
    let wide = constant_extents(node.shape, region.lead)?;
    let narrow = constant_extents(from, lead)?;
    let region = PieceRegion { lead, rows: from[..lead].to_vec(), ..region.clone() };
    if wide == narrow {
        return Some(region);
    }
    // Each element is repeated.
    let (n, _) = wide.split_last()?;
    let repeated = narrow.last() == Some(&1) && narrow[..narrow.len() - 1] == wide[..wide.len() - 1];
    (repeated && region.step % n == 0).then(|| PieceRegion {
        start: region.start / n,
        step: region.step / n,
        ..region
    })
}

fn rotary_of_slice(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let Op::Concat { axis } = node.op else { return None };
    if axis + 1 != node.ty.rank() {
        return None;
    }
    let join = node.inputs.windows(2).position(|w| {
        let Some((_, x, _)) = match_rotary(cx, w[0]) else { return false };
        match (match_unit_slice(cx, x, axis), match_unit_slice(cx, w[1], axis)) {
            (Some((x, start)), Some((y, next))) => x == y && start + cx.shape(w[0])[axis].clone() == next,
            _ => false,
        }
    })?;
    let (op, head, [cos, sin]) = match_rotary(cx, node.inputs[join])?;
    let (x, start) = match_unit_slice(cx, head, axis)?;
    let mut ty = cx.ty(head).clone();
    ty.shape[axis] = ty.shape[axis].clone() + cx.shape(node.inputs[join + 1])[axis].clone();
    let unrotated = cx.emit("part", Op::Slice { axis, start, step: 1 }, &[x], ty.clone());
    if node.inputs.len() == 2 {
        return Some(Rewrite::Node(op, vec![unrotated, cos, sin]));
    }
    let rotated = cx.emit("turned", op, &[unrotated, cos, sin], ty);
    let mut inputs = node.inputs.clone();
    inputs.splice(join..join + 2, [rotated]);
    Some(Rewrite::Node(node.op.clone(), inputs))
}

/// The rotation that gives a value, its operand, and its cosines and sines.
fn match_rotary(cx: &Rewriter, value: ValueId) -> Option<(Op, ValueId, [ValueId; 2])> {
    match cx.def(value) {
        Some((op @ Op::RotaryEmbedding { .. }, &[x, cos, sin])) => Some((op.clone(), x, [cos, sin])),
        _ => None,
    }
}

fn rotary_between_casts(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let (Op::Cast, &[wide]) = (&node.op, &node.inputs[..]) else { return None };
    let (op @ Op::RotaryEmbedding { .. }, &[inner, cos, sin]) = cx.def(wide)? else { return None };
    let op = op.clone();
    let (Op::Cast, &[x]) = cx.def(inner)? else { return None };
    let narrow =
        *cx.ty(x) == node.ty && node.ty.dtype.is_float() && node.ty.dtype.size() < cx.ty(wide).dtype.size();
    narrow.then(|| Rewrite::Node(op, vec![x, cos, sin]))
}
