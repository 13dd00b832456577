//! When a result may lie on bytes of an operand of the same step.
//!
//! - Element-wise ops, casts and copies: each element of the result lies exactly on the element of the
//!   operand that it is computed from, and no other.
//! - Softmax, norms and cumulative sums, which have read what they need of a row before they write it, and scatters, which
//!   change elements of their first operand: the same, on the first operand alone.
//! - Concatenation: the operand lies where it ends up, as one run; when it ends up in several places, in one
//!   of them. Or all of its base is an operand that does.
//! - Collectives whose contract allows it: exactly on the operand; for all-gather the operand is this
//!   rank's piece of the result, for reduce-scatter the result is this rank's piece of the operand.
//! - Dispatches: on operands that the contract of their form names, exactly and with elements of the same extents and size.
//! - Any op: the elements that it reads of the shared base are disjoint from the result.
//!
//! Everything else reads elements after others were written, in an order that this module does not know.

use std::collections::HashSet;

use symmc_ir::{CollectiveKind, Contract, Dim, DispatchForm, Graph, Node, NodeId, Op, TensorType, ValueId};

use super::context::{CheckContext, covers_base};
use super::location::{RankDisplacement, SymbolicRange, ValueLocation, are_disjoint};

/// What a result does to an operand whose base it overlaps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OverlayEffect {
    /// The op would read what it has written.
    Illegal,
    /// The bytes of the operand's base hold other values afterwards.
    Replaces,
    /// The bytes that are written hold the same values as before.
    Keeps,
}

#[derive(Clone, Copy)]
pub struct OperandRead {
    pub node: NodeId,
    /// Its number among the operands of the node.
    pub operand: usize,
    pub form: Option<DispatchForm>,
}

/// What a result of a step does to an operand of it, whose base it overlaps. `in_place` are the operands of a
/// concatenation that lie where they end up.
pub fn overlay(
    ctx: &CheckContext<'_>,
    reading: OperandRead,
    result: ValueId,
    contract: Option<&Contract>,
    in_place: &InPlaceConcat,
) -> OverlayEffect {
    let graph = &ctx.program.graph;
    let OperandRead { node, operand, form } = reading;
    let node = &graph.nodes[node];
    let x = node.inputs[operand];
    let layout = &ctx.program.layouts[x];
    let (Some(base), Some(location)) = (&ctx.locations[layout.base], &ctx.locations[result]) else {
        return OverlayEffect::Illegal;
    };
    let (tx, tr) = (graph.ty(x), graph.ty(result));
    let element = Dim::from(tx.dtype.size() as i64);
    let start = base.range.start.clone() + layout.offset.clone() * element.clone();
    let same_memory = base.range.memory == location.range.memory;
    let rule = match &node.op {
        _ if !same_memory => OverlayEffect::Illegal,
        _ if form.is_some_and(|form| !form_allows_overlay(form, reading, graph, result)) => {
            OverlayEffect::Illegal
        }
        Op::Concat { .. } if in_place.contains(x, layout.base) && base.range.rank == location.range.rank => {
            OverlayEffect::Keeps
        }
        Op::Concat { .. } => OverlayEffect::Illegal,
        _ if start != location.range.start || !layout.is_contiguous(tx) => OverlayEffect::Illegal,
        _ if form.is_some() => match same_elements((base, tx), (location, tr)) {
            true => OverlayEffect::Replaces,
            false => OverlayEffect::Illegal,
        },
        Op::Collective(c) if contract.is_some_and(|c| c.in_place) => {
            collective_effect(&c.kind, ctx.program.group_index(c.group), (base, tx), (location, tr))
        }
        op => element_on_element(op, operand, (base, tx), (location, tr)),
    };
    if rule != OverlayEffect::Illegal {
        return rule;
    }
    let extent = tx
        .shape
        .iter()
        .zip(&layout.strides)
        .fold(Dim::from(1), |sum, (n, stride)| sum + (n.clone() - Dim::from(1)) * stride.clone());
    let read = SymbolicRange { start: start.clone(), end: start + extent * element, ..base.range.clone() };
    if are_disjoint(&read, &location.range, ctx.symbols) {
        OverlayEffect::Replaces
    } else {
        OverlayEffect::Illegal
    }
}

/// Whether two contiguous values that start at one place have their elements at the same places.
fn same_elements(x: (&ValueLocation, &TensorType), r: (&ValueLocation, &TensorType)) -> bool {
    x.1.shape == r.1.shape && x.1.dtype.size() == r.1.dtype.size() && x.0.range.rank == r.0.range.rank
}

/// Whether a result of a dispatch may lie on an operand of one of its nodes, element on element.
fn form_allows_overlay(form: DispatchForm, reading: OperandRead, graph: &Graph, result: ValueId) -> bool {
    let overwriting = form.overwrite_rule(&graph.nodes[reading.node].op, reading.operand);
    graph.defining_node(result).is_some_and(|writer| overwriting.allows(reading.node, writer))
}

/// The rule for a contiguous operand that starts where its result does and has this number.
///
/// These are the check's own rules, which do not read the table of facts that the planner places by: an error there is
/// found here. Ops without a rule overwrite nothing. A test of the planner compares both for all ops.
fn element_on_element(
    op: &Op,
    operand: usize,
    x: (&ValueLocation, &TensorType),
    r: (&ValueLocation, &TensorType),
) -> OverlayEffect {
    match op {
        _ if !same_elements(x, r) => OverlayEffect::Illegal,
        Op::Copy => OverlayEffect::Keeps,
        Op::Unary(_) | Op::Binary(_) | Op::BinaryScalar { .. } | Op::Select | Op::Cast => {
            OverlayEffect::Replaces
        }
        Op::Softmax { .. }
        | Op::RmsNorm { .. }
        | Op::LayerNorm { .. }
        | Op::CumSum { .. }
        | Op::RotaryEmbedding { .. }
        | Op::ScatterElements { .. }
        | Op::IndexAdd { .. }
        | Op::IndexPut { .. }
            if operand == 0 =>
        {
            OverlayEffect::Replaces
        }
        _ => OverlayEffect::Illegal,
    }
}

/// The operands of a concatenation that lie at their own piece of the result, as one run.
#[derive(Default)]
pub struct InPlaceConcat {
    operands: HashSet<ValueId>,
    /// The bases of which an operand among these is all.
    bases: HashSet<ValueId>,
}

impl InPlaceConcat {
    /// Those of a node, as far as the memory of its result is that of their bases; none if it is no concatenation or
    /// its pieces are no runs.
    pub fn from_node(ctx: &CheckContext<'_>, node: &Node, result: ValueId) -> InPlaceConcat {
        let (graph, mut out) = (&ctx.program.graph, InPlaceConcat::default());
        let (Op::Concat { axis }, Some(location)) = (&node.op, &ctx.locations[result]) else { return out };
        if graph.ty(result).shape[..*axis].iter().any(|d| d.as_const() != Some(1)) {
            return out;
        }
        let mut piece = location.range.start.clone();
        for &x in &node.inputs {
            let (ty, layout) = (graph.ty(x), &ctx.program.layouts[x]);
            let start = ctx.locations[layout.base].as_ref().map(|base| {
                base.range.start.clone() + layout.offset.clone() * Dim::from(ty.dtype.size() as i64)
            });
            if start.is_some_and(|start| start == piece) && layout.is_contiguous(ty) {
                out.operands.insert(x);
                if covers_base(ctx.program, x) {
                    out.bases.insert(layout.base);
                }
            }
            piece = piece + ty.bytes();
        }
        out
    }

    /// Whether an operand, or all of its base, is among them.
    fn contains(&self, operand: ValueId, base: ValueId) -> bool {
        self.operands.contains(&operand) || self.bases.contains(&base)
    }
}

/// The rule for a collective whose operand starts where its result does on rank 0 of the group.
fn collective_effect(
    kind: &CollectiveKind,
    group: usize,
    x: (&ValueLocation, &TensorType),
    r: (&ValueLocation, &TensorType),
) -> OverlayEffect {
    let piece = |whole: &ValueLocation, part: &ValueLocation, ty: &TensorType| {
        let by_rank = |n: &RankDisplacement| n.group == group && n.stride == ty.bytes();
        whole.range.rank.is_none() && part.range.rank.as_ref().is_some_and(by_rank)
    };
    match kind {
        CollectiveKind::AllGather if piece(r.0, x.0, x.1) => OverlayEffect::Keeps,
        CollectiveKind::ReduceScatter(_) if piece(x.0, r.0, r.1) => OverlayEffect::Replaces,
        CollectiveKind::AllReduce(_) | CollectiveKind::Broadcast { .. } | CollectiveKind::Permute { .. }
            if x.0.range.rank == r.0.range.rank =>
        {
            OverlayEffect::Replaces
        }
        _ => OverlayEffect::Illegal,
    }
}
