//! Rules for a result that overlaps an operand of the same step. One of them must hold:
//!
//! - *Element-wise ops, casts and copies*: each element of the result lies exactly on the element of the operand
//!   from which it is computed.
//! - *Softmax, norms, cumulative sums and rotary embeddings* read all that they need of a row before they write it.
//!   *Scatters* change elements of their first operand. For both, the result lies exactly on the first operand.
//! - *Concatenation*: the operand is contiguous and lies at its own piece of the result, or at one of them if it
//!   occurs several times. An operand is also allowed if another operand is all of its base and lies so.
//! - *Collectives*, if their contract allows it: the result lies exactly on the operand. For an all-gather the
//!   operand is this rank's piece of the result. For a reduce-scatter the result is this rank's piece of the
//!   operand.
//! - *Dispatches*: the result lies exactly on an operand that the contract of the form names, with equal shapes and
//!   sizes of elements.
//! - *Any op*: the elements that it reads of the shared base are disjoint from the result.
//!
//! All other overlaps are rejected: the op may read an element after it was overwritten.

use std::collections::HashSet;

use symmc_ir::{CollectiveKind, Contract, Dim, Dispatch, Graph, Node, NodeId, Op, TensorType, ValueId};

use super::context::{CheckContext, covers_base};
use super::location::{SymbolicRange, ValueLocation, are_disjoint};

/// The effect of a result on an operand whose base it overlaps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OverlayEffect {
    /// The op may read bytes that it has overwritten.
    Illegal,
    /// The overlay is allowed, and the base of the operand is lost.
    Replaces,
    /// The overlay is allowed, and the written bytes hold the same data as before.
    Keeps,
}

/// An operand of a node of a step.
#[derive(Clone, Copy)]
pub struct OperandRead {
    pub node: NodeId,
    /// The index among the operands of the node.
    pub operand: usize,
    /// The step, if it is a dispatch.
    pub dispatch: Option<Dispatch>,
}

/// The effect of a result of a step on an operand of the step whose base it overlaps.
pub fn overlay(
    ctx: &CheckContext<'_>,
    reading: OperandRead,
    result: ValueId,
    contract: Option<&Contract>,
    in_place: &InPlaceConcat,
) -> OverlayEffect {
    let graph = &ctx.program.graph;
    let OperandRead { node, operand, dispatch } = reading;
    let node = &graph.nodes[node];
    let x = node.inputs[operand];
    let layout = &ctx.program.layouts[x];
    let (Some(base), Some(location)) = (&ctx.locations[layout.base], &ctx.locations[result]) else {
        return OverlayEffect::Illegal;
    };
    let tx = graph.ty(x);
    let tr = graph.ty(result);
    let element = Dim::from(tx.dtype.size() as i64);
    let start = base.range.start.clone() + layout.offset.clone() * element.clone();
    let read = PlacedValue { location: base, ty: tx };
    let written = PlacedValue { location, ty: tr };
    let same_memory = base.range.memory == location.range.memory;
    let same_start = start == location.range.start && layout.is_contiguous(tx);
    let effect = if !same_memory {
        OverlayEffect::Illegal
    } else if matches!(node.op, Op::Concat { .. }) {
        let is_in_place = in_place.contains(x, layout.base) && read.has_same_rank(written);
        if dispatch.is_none() && is_in_place { OverlayEffect::Keeps } else { OverlayEffect::Illegal }
    } else if !same_start {
        OverlayEffect::Illegal
    } else if let Some(dispatch) = dispatch {
        let is_allowed =
            dispatch_allows_overlay(dispatch, reading, graph, result) && same_elements(read, written);
        if is_allowed { OverlayEffect::Replaces } else { OverlayEffect::Illegal }
    } else {
        match &node.op {
            Op::Collective(c) if contract.is_some_and(|c| c.in_place) => {
                collective_effect(&c.kind, ctx.program.group_index(c.group), read, written)
            }
            op => element_on_element(op, operand, read, written),
        }
    };
    if effect != OverlayEffect::Illegal {
        return effect;
    }
    // No rule for the op applies. The overlap is still allowed if the op reads only bytes outside of the result.
    let extent = tx
        .shape
        .iter()
        .zip(&layout.strides)
        .fold(Dim::from(1), |sum, (n, stride)| sum + (n.clone() - Dim::from(1)) * stride.clone());
    let end = start.clone() + extent * element;
    let read_range = SymbolicRange { start, end, ..base.range.clone() };
    if are_disjoint(&read_range, &location.range, ctx.symbols) {
        OverlayEffect::Replaces
    } else {
        OverlayEffect::Illegal
    }
}

/// A value with its type and the location of its base.
#[derive(Clone, Copy)]
struct PlacedValue<'a> {
    location: &'a ValueLocation,
    ty: &'a TensorType,
}

impl PlacedValue<'_> {
    fn has_same_rank(&self, other: PlacedValue<'_>) -> bool {
        self.location.range.rank == other.location.range.rank
    }

    /// Whether this is each rank's own piece of a value that has the same place on all ranks of the group.
    fn is_own_piece_of(&self, whole: PlacedValue<'_>, group: usize) -> bool {
        let displacement = self.location.range.rank.as_ref();
        whole.location.range.rank.is_none()
            && displacement.is_some_and(|d| d.group == group && d.stride == self.ty.bytes())
    }
}

/// Whether two contiguous values with the same start have all their elements at the same bytes.
fn same_elements(x: PlacedValue<'_>, r: PlacedValue<'_>) -> bool {
    x.ty.shape == r.ty.shape && x.ty.dtype.size() == r.ty.dtype.size() && x.has_same_rank(r)
}

/// Whether the contract of a dispatch lets a result of the dispatch lie on an operand of one of its nodes.
fn dispatch_allows_overlay(dispatch: Dispatch, reading: OperandRead, graph: &Graph, result: ValueId) -> bool {
    let overwriting = dispatch.overwrite_rule(graph, reading.node, reading.operand);
    graph.defining_node(result).is_some_and(|writer| overwriting.allows(reading.node, writer))
}

/// The rule for a contiguous operand, with its index, that starts at the same byte as the result.
///
/// These rules belong to the check and do not use the table of facts by which the planner places results. So the
/// check finds errors in that table. A test of the planner compares both for all ops. An op without a rule may not
/// overwrite its operands.
fn element_on_element(op: &Op, operand: usize, x: PlacedValue<'_>, r: PlacedValue<'_>) -> OverlayEffect {
    match op {
        _ if !same_elements(x, r) => OverlayEffect::Illegal,
        Op::Copy => OverlayEffect::Keeps,
        Op::Unary(_) | Op::Binary(_) | Op::BinaryScalar { .. } | Op::Select | Op::Cast | Op::Bitcast => {
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

/// The operands of a concatenation that are contiguous and lie at their own piece of the result.
#[derive(Default)]
pub struct InPlaceConcat {
    operands: HashSet<ValueId>,
    /// The bases that one of these operands covers completely.
    bases: HashSet<ValueId>,
}

impl InPlaceConcat {
    /// The in-place operands of a node, under the assumption that they lie in the memory of the result. There are
    /// none if the node is not a concatenation, or if its pieces are not contiguous in the result.
    pub fn from_node(ctx: &CheckContext<'_>, node: &Node, result: ValueId) -> InPlaceConcat {
        let graph = &ctx.program.graph;
        let mut out = InPlaceConcat::default();
        let (Op::Concat { axis }, Some(location)) = (&node.op, &ctx.locations[result]) else { return out };
        if graph.ty(result).shape[..*axis].iter().any(|d| d.as_const() != Some(1)) {
            return out;
        }
        let mut piece = location.range.start.clone();
        for &x in &node.inputs {
            let ty = graph.ty(x);
            let layout = &ctx.program.layouts[x];
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

    /// Whether an operand lies in place itself or because an in-place operand covers its base.
    fn contains(&self, operand: ValueId, base: ValueId) -> bool {
        self.operands.contains(&operand) || self.bases.contains(&base)
    }
}

/// The rule for a collective whose operand starts at the same byte as its result on rank 0 of the group.
fn collective_effect(
    kind: &CollectiveKind,
    group: usize,
    x: PlacedValue<'_>,
    r: PlacedValue<'_>,
) -> OverlayEffect {
    match kind {
        CollectiveKind::AllGather if x.is_own_piece_of(r, group) => OverlayEffect::Keeps,
        CollectiveKind::ReduceScatter(_) if r.is_own_piece_of(x, group) => OverlayEffect::Replaces,
        CollectiveKind::AllReduce(_) | CollectiveKind::Broadcast { .. } | CollectiveKind::Permute { .. }
            if x.has_same_rank(r) =>
        {
            OverlayEffect::Replaces
        }
        _ => OverlayEffect::Illegal,
    }
}
