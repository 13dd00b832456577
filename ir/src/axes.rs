//! The correspondence of axes: the positions of operands that a position of a result depends on.
//!
//! [`Op::axes`] is a table with a row for every op, as [`Op::facts`] is, so a new op does not compile without
//! its axes. Analyses that follow an axis through a program, or compute a part of a value, read it. A row may
//! say less than is true: [`OperandAxis::Whole`] and [`ResultAxis::Joint`] are always right. A test compares
//! each row with the interpreter. The plan check does not read this table.
//!
//! Absent are policies. An op may be independent along an axis and still be a bad choice for a part, because
//! it rejects data or because a library sums in another order.

use crate::attention::AttentionOperands;
use crate::dim::Dim;
use crate::graph::{Graph, Node};
use crate::ids::ValueId;
use crate::op::Op;

/// The axes of the operands and results of an op at certain shapes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AxisMap {
    /// Each axis of each operand.
    pub operands: Vec<Vec<OperandAxis>>,
    /// Each axis of the results. If these differ in shape, each axis of the first, and all are joint.
    pub results: Vec<ResultAxis>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OperandAxis {
    /// A position along this axis of the results depends only on the same position of the operand. The operand
    /// may have more positions, which are not read.
    Aligned(usize),
    /// `n` equal parts of the axis are, in order, `n` equal parts of this axis of the result, for each `n` that
    /// divides both extents.
    Outer(usize),
    /// The only position is read for all positions of the result.
    Broadcast,
    /// A position of the result may depend on any positions.
    Whole,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResultAxis {
    /// Any adjacent positions of the results are the results of the op on these positions of all aligned axes.
    Independent,
    /// As [`Independent`](Self::Independent), but the op uses the numbers of the positions
    /// ([`Op::starting_at`]).
    Positional,
    /// The positions are computed together.
    Joint,
}

impl AxisMap {
    /// The axis of the results that is aligned with an axis of an operand.
    pub fn result_axis(&self, operand: usize, axis: usize) -> Option<usize> {
        match self.operands.get(operand)?.get(axis)? {
            OperandAxis::Aligned(result_axis) => Some(*result_axis),
            _ => None,
        }
    }

    /// The axis of an operand that is aligned with an axis of the results.
    pub fn operand_axis(&self, operand: usize, result_axis: usize) -> Option<usize> {
        self.operands.get(operand)?.iter().position(|axis| *axis == OperandAxis::Aligned(result_axis))
    }
}

impl Op {
    /// The correspondence of axes for operands and results of these shapes.
    pub fn axes(&self, operands: &[&[Dim]], results: &[&[Dim]]) -> AxisMap {
        let result = results.first().copied().unwrap_or_default();
        let table = AxisTable::new(operands, result);
        if results.iter().any(|other| *other != result) {
            return table.joint();
        }
        match self {
            Op::Full(_)
            | Op::Unary(_)
            | Op::Binary(_)
            | Op::BinaryScalar { .. }
            | Op::Select
            | Op::Cast
            | Op::Bitcast
            | Op::Expand
            | Op::Copy => table.broadcast_except(&[], ResultAxis::Joint),
            Op::Iota { .. } => table.broadcast_except(&[0], ResultAxis::Positional),
            Op::Slice { axis, .. } => table.broadcast_except(&[*axis], ResultAxis::Positional),
            Op::CumSum { axis }
            | Op::Softmax { axis, .. }
            | Op::TopK { axis, .. }
            | Op::Sort { axis, .. }
            | Op::Concat { axis }
            | Op::Shard { axis, .. } => table.broadcast_except(&[*axis], ResultAxis::Joint),
            Op::RmsNorm { axes, .. } | Op::LayerNorm { axes, .. } => table.broadcast_except_last(*axes),
            Op::RotaryEmbedding { .. } => table.broadcast_except_last(1),
            Op::Pad { low, .. } => table.pad(low),
            Op::Collective(c) if operands.len() == 1 => {
                let divided: &[usize] = if c.kind.facts().preserves_positions() { &[] } else { &[0] };
                table.broadcast_except(divided, ResultAxis::Joint)
            }

            Op::MatMul { .. } => table.matmul(),
            Op::GroupedMatMul => table.grouped_matmul(),
            Op::Reduce { axes, keep, .. } => table.reduce(axes, *keep),
            Op::ArgReduce { axis, keep, .. } => table.reduce(&[*axis], *keep),
            Op::Attention { .. } => table.attention(self),
            Op::Permuted { op, perm } => table.permuted(op, perm),

            Op::Take { axis } | Op::Index { axis } => table.index(*axis),
            Op::GatherElements { axis } => table.gather_elements(*axis),
            Op::ScatterElements { axis, .. } => table.scatter_elements(*axis),
            Op::IndexAdd { axis } => table.index_add(*axis),
            Op::IndexPut { axis, .. } => table.index_put(*axis),

            Op::Reshape => table.reshape(),
            Op::Permute { perm } => table.permute(perm),

            Op::Collective(_)
            | Op::Route(_)
            | Op::AttentionGradient { .. }
            | Op::Opaque { .. }
            | Op::Custom(_) => table.joint(),
        }
    }

    /// The op whose first position along its [positional](ResultAxis::Positional) axis is the position `start`
    /// of this op. `None` if no op computes that.
    pub fn starting_at(&self, start: &Dim) -> Option<Op> {
        let mut op = self.clone();
        match &mut op {
            Op::Iota { start: first, step } => {
                *first = first.checked_add(step.checked_mul(start.as_const()?)?)?
            }
            Op::Slice { start: first, step, .. } => *first = first.clone() + start.clone() * Dim::from(*step),
            Op::Attention { bounds, .. } => {
                bounds.iter_mut().filter(|b| b.row).for_each(|b| b.add = b.add.clone() + start.clone());
            }
            Op::Permuted { op, .. } => **op = op.starting_at(start)?,
            _ => return None,
        }
        Some(op)
    }
}

impl Graph {
    /// The correspondence of axes for the shapes of a node.
    pub fn node_axes(&self, node: &Node) -> AxisMap {
        let shape = |v: &ValueId| &self.ty(*v).shape[..];
        let operands: Vec<&[Dim]> = node.inputs.iter().map(shape).collect();
        let results: Vec<&[Dim]> = node.outputs.iter().map(shape).collect();
        node.op.axes(&operands, &results)
    }
}

/// The rows of the table for ops that do not only broadcast. At first all operands are read whole, and all axes
/// of the result are independent. Shapes that the op does not accept give fewer aligned axes.
struct AxisTable<'a> {
    operands: &'a [&'a [Dim]],
    result: &'a [Dim],
    map: AxisMap,
}

impl<'a> AxisTable<'a> {
    fn new(operands: &'a [&'a [Dim]], result: &'a [Dim]) -> AxisTable<'a> {
        let map = AxisMap {
            operands: operands.iter().map(|shape| vec![OperandAxis::Whole; shape.len()]).collect(),
            results: vec![ResultAxis::Independent; result.len()],
        };
        AxisTable { operands, result, map }
    }

    fn rank(&self, operand: usize) -> usize {
        self.operands.get(operand).map_or(0, |shape| shape.len())
    }

    fn set_result(&mut self, axis: usize, kind: ResultAxis) {
        if let Some(known) = self.map.results.get_mut(axis) {
            *known = kind;
        }
    }

    fn align(&mut self, operand: usize, axis: usize, result_axis: usize) {
        let known = self.map.operands.get_mut(operand).and_then(|axes| axes.get_mut(axis));
        if let (Some(known), true) = (known, result_axis < self.result.len()) {
            *known = OperandAxis::Aligned(result_axis);
        }
    }

    /// Aligns axes of equal extent. An axis of extent 1 is broadcast along any other.
    fn broadcast_axis(&mut self, operand: usize, axis: usize, result_axis: usize) {
        let extent = self.operands.get(operand).and_then(|shape| shape.get(axis));
        match (extent, self.result.get(result_axis)) {
            (Some(extent), Some(other)) if extent == other => self.align(operand, axis, result_axis),
            (Some(extent), Some(_)) if is_unit(extent) => {
                self.map.operands[operand][axis] = OperandAxis::Broadcast;
            }
            _ => {}
        }
    }

    /// Broadcasts the axes of an operand to those of the result, counted from the last, except some axes of the
    /// result.
    fn broadcast(&mut self, operand: usize, except: &[usize]) {
        let rank = self.rank(operand);
        for axis in 0..rank {
            let result_axis = (axis + self.result.len()).checked_sub(rank);
            if let Some(result_axis) = result_axis.filter(|a| !except.contains(a)) {
                self.broadcast_axis(operand, axis, result_axis);
            }
        }
    }

    fn joint(mut self) -> AxisMap {
        self.map.results.fill(ResultAxis::Joint);
        self.map
    }

    fn broadcast_except(mut self, except: &[usize], kind: ResultAxis) -> AxisMap {
        (0..self.operands.len()).for_each(|operand| self.broadcast(operand, except));
        except.iter().for_each(|&axis| self.set_result(axis, kind));
        self.map
    }

    fn broadcast_except_last(self, axes: usize) -> AxisMap {
        let rank = self.result.len();
        let last: Vec<usize> = (rank.saturating_sub(axes)..rank).collect();
        self.broadcast_except(&last, ResultAxis::Joint)
    }

    fn pad(self, low: &[Dim]) -> AxisMap {
        let x = self.operands.first().copied().unwrap_or_default();
        let moves = |axis: &usize| {
            low.get(*axis).and_then(Dim::as_const) != Some(0) || x.get(*axis) != self.result.get(*axis)
        };
        let moved: Vec<usize> = (0..self.result.len()).filter(moves).collect();
        self.broadcast_except(&moved, ResultAxis::Joint)
    }

    fn matmul(mut self) -> AxisMap {
        let Some(row) = self.result.len().checked_sub(2) else { return self.joint() };
        let column = row + 1;
        (0..2).for_each(|operand| self.broadcast(operand, &[row, column]));
        self.align(0, self.rank(0).saturating_sub(2), row);
        self.align(1, self.rank(1).saturating_sub(1), column);
        self.map
    }

    /// The numbers of rows are compared with the ends of groups.
    fn grouped_matmul(mut self) -> AxisMap {
        if self.rank(1) == 3 {
            self.align(0, 0, 0);
            self.align(1, 2, 1);
            self.set_result(0, ResultAxis::Positional);
        } else {
            self.align(0, 0, 1);
            self.align(1, 1, 2);
            self.set_result(0, ResultAxis::Joint);
        }
        self.map
    }

    fn reduce(mut self, axes: &[usize], keep: bool) -> AxisMap {
        let mut result_axis = 0;
        for axis in 0..self.rank(0) {
            let is_reduced = axes.contains(&axis);
            if !is_reduced {
                self.align(0, axis, result_axis);
            }
            result_axis += usize::from(keep || !is_reduced);
        }
        self.map
    }

    fn attention(mut self, op: &Op) -> AxisMap {
        let Op::Attention { bounds, sink, .. } = op else { return self.joint() };
        let parts = AttentionOperands::from_operands(bounds, *sink, self.operands);
        let (Some(parts), Some(head)) = (parts, self.result.len().checked_sub(3)) else {
            return self.joint();
        };
        let row = head + 1;
        let feature = head + 2;
        // If several heads of queries share one head of keys, they stay together. One head for all is broadcast.
        let query_heads = parts.q.get(head);
        let key_heads = parts.k.get(head);
        let is_shared = key_heads != query_heads && !key_heads.is_some_and(is_unit);
        let not_of_keys: &[usize] = if is_shared { &[head, row, feature] } else { &[row, feature] };
        self.broadcast(0, &[feature]);
        self.broadcast(1, not_of_keys);
        self.broadcast(2, not_of_keys);
        self.align(2, feature, feature);
        // All other operands broadcast to the scores, whose last axis is that of the keys.
        (3..self.operands.len()).for_each(|operand| self.broadcast(operand, &[feature]));
        if is_shared {
            self.set_result(head, ResultAxis::Joint);
        }
        if bounds.iter().any(|bound| bound.row) {
            self.set_result(row, ResultAxis::Positional);
        }
        self.map
    }

    fn permuted(self, op: &Op, perm: &[usize]) -> AxisMap {
        let mut shape = self.result.to_vec();
        for (&axis, extent) in perm.iter().zip(self.result) {
            match shape.get_mut(axis) {
                Some(known) => known.clone_from(extent),
                None => return self.joint(),
            }
        }
        let mut map = op.axes(self.operands, &[&shape]);
        let position = |axis: usize| perm.iter().position(|&a| a == axis).unwrap_or(axis);
        for axis in map.operands.iter_mut().flatten() {
            if let OperandAxis::Aligned(result_axis) = axis {
                *result_axis = position(*result_axis);
            }
        }
        map.results = perm.iter().map(|&axis| map.results[axis]).collect();
        map
    }

    /// The axes of the indices replace axes of the first operand.
    fn index(mut self, axis: usize) -> AxisMap {
        let indexed = self.operands.len().saturating_sub(1);
        let index_rank = (self.result.len() + indexed).saturating_sub(self.rank(0));
        self.align_unindexed(0, axis, indexed, index_rank);
        for operand in 1..self.operands.len() {
            let skipped = (axis + index_rank).saturating_sub(self.rank(operand));
            (0..self.rank(operand)).for_each(|a| self.broadcast_axis(operand, a, skipped + a));
        }
        self.map
    }

    /// Aligns the axes of an operand outside of `count` axes from `axis` on. In the result, `result_count` axes
    /// replace these.
    fn align_unindexed(&mut self, operand: usize, axis: usize, count: usize, result_count: usize) {
        (0..axis).for_each(|a| self.align(operand, a, a));
        (axis + count..self.rank(operand)).for_each(|a| self.align(operand, a, a - count + result_count));
    }

    fn gather_elements(mut self, axis: usize) -> AxisMap {
        self.align_unindexed(0, axis, 1, 1);
        (0..self.rank(1)).for_each(|a| self.align(1, a, a));
        self.map
    }

    fn scatter_elements(mut self, axis: usize) -> AxisMap {
        let index = self.operands.get(1).copied().unwrap_or_default();
        self.align(0, axis, axis);
        self.set_result(axis, ResultAxis::Joint);
        for a in (0..self.result.len()).filter(|&a| a != axis) {
            self.align(0, a, a);
            if index.get(a) == self.result.get(a) {
                self.align(1, a, a);
                self.align(2, a, a);
            } else {
                self.set_result(a, ResultAxis::Joint);
            }
        }
        self.map
    }

    fn index_add(mut self, axis: usize) -> AxisMap {
        (0..self.rank(0)).for_each(|a| self.align(0, a, a));
        self.align_unindexed(2, axis, 1, 1);
        self.set_result(axis, ResultAxis::Joint);
        self.map
    }

    /// The source broadcasts to the shape that the indices read.
    fn index_put(mut self, axis: usize) -> AxisMap {
        let indices = self.operands.get(2..).unwrap_or_default();
        let index_rank = indices.iter().map(|shape| shape.len()).max().unwrap_or(0);
        let read_rank = (self.result.len() + index_rank).saturating_sub(indices.len());
        (0..self.rank(0)).for_each(|a| self.align(0, a, a));
        for a in 0..self.rank(1) {
            let read_axis = (a + read_rank).saturating_sub(self.rank(1));
            if read_axis < axis {
                self.broadcast_axis(1, a, read_axis);
            } else if read_axis >= axis + index_rank {
                self.broadcast_axis(1, a, read_axis - index_rank + indices.len());
            }
        }
        (axis..axis + indices.len()).for_each(|a| self.set_result(a, ResultAxis::Joint));
        self.map
    }

    fn permute(mut self, perm: &[usize]) -> AxisMap {
        perm.iter().enumerate().for_each(|(result_axis, &axis)| self.align(0, axis, result_axis));
        self.map
    }

    /// An axis corresponds to the last axis of the result with as many elements before it. Trailing axes of equal
    /// extents are aligned as well: products of other extents may be equal in ways that dims do not show.
    fn reshape(mut self) -> AxisMap {
        let x = self.operands.first().copied().unwrap_or_default();
        let counts_before = leading_counts(self.result);
        for ((axis, extent), before) in x.iter().enumerate().zip(leading_counts(x)) {
            let result_axis = counts_before.iter().rposition(|count| *count == before);
            let equal = result_axis.filter(|&result_axis| self.result[result_axis] == *extent);
            self.map.operands[0][axis] = match (equal, result_axis) {
                (Some(result_axis), _) => OperandAxis::Aligned(result_axis),
                _ if is_unit(extent) => OperandAxis::Broadcast,
                (None, Some(result_axis)) => OperandAxis::Outer(result_axis),
                (None, None) => OperandAxis::Whole,
            };
        }
        let divided_axes = |shape: &[Dim]| -> Vec<usize> {
            (0..shape.len()).rev().filter(|&axis| !is_unit(&shape[axis])).collect()
        };
        let trailing = divided_axes(x).into_iter().zip(divided_axes(self.result));
        for (axis, result_axis) in trailing.take_while(|&(a, r)| x[a] == self.result[r]) {
            self.align(0, axis, result_axis);
        }
        for axis in 0..self.result.len() {
            let is_aligned = self.map.operands.iter().flatten().any(|a| *a == OperandAxis::Aligned(axis));
            if !is_aligned && !is_unit(&self.result[axis]) {
                self.set_result(axis, ResultAxis::Joint);
            }
        }
        self.map
    }
}

/// For each axis the number of elements before it.
fn leading_counts(shape: &[Dim]) -> Vec<Dim> {
    let mut count = Dim::from(1);
    let counts = shape.iter().map(|extent| {
        let next = count.clone() * extent.clone();
        std::mem::replace(&mut count, next)
    });
    counts.collect()
}

fn is_unit(extent: &Dim) -> bool {
    extent.as_const() == Some(1)
}
