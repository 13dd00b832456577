//! The range of an integer value: the least and the greatest element, as far as its definition shows.
//!
//! Positions that a top-k or a sort returns lie within its axis, and ops that only move elements keep their
//! range. Ids of experts are such positions, so comparisons with their number are known.

use super::facts::PositionFacts;
use super::integer_range::{IntegerRange, exact_integers};
use super::linear::{MAX_CONSTANT, add_dims, scale_dim};
use crate::collective::CollectiveKind;
use crate::dim::Dim;
use crate::graph::ValueDef;
use crate::ids::ValueId;
use crate::op::{BinaryOp, Op, ReductionKind};
use crate::types::{DType, Scalar};

impl PositionFacts<'_> {
    /// The range of an integer or bool value.
    pub fn range(self, value: ValueId) -> Option<IntegerRange> {
        let ty = self.graph.ty(value);
        if ty.dtype == DType::Bool {
            return Some(IntegerRange::new(0, 1));
        }
        ty.dtype.integer_bounds()?;
        if let Some(range) = self.exact(value).and_then(|form| form.ends(&ty.shape)) {
            return Some(range);
        }
        self.cached_range(value, || {
            let ValueDef::Node(node, result) = self.graph.values[value].def else { return None };
            let node = &self.graph.nodes[node];
            let range = self.range_of_result(value, &node.op, &node.inputs, result)?;
            // Arithmetic that may wrap shows nothing.
            range.fits_type(ty.dtype, &self.graph.symbols).then_some(range)
        })
    }

    /// The range of a selection. If it may be negative by the ranges of its operands, it is evaluated: its
    /// outcome often excludes one of them.
    fn range_of_selection(self, value: ValueId, inputs: &[ValueId]) -> Option<IntegerRange> {
        let symbols = &self.graph.symbols;
        let by_operands = self.union_of_ranges(&inputs[1..]);
        if by_operands.as_ref().is_some_and(|range| range.is_at_least(0, symbols)) {
            return by_operands;
        }
        let bounds = self.evaluated_bounds(value, |integer| self.range(integer)?.few_integers(symbols));
        bounds.map(|[least, greatest]| IntegerRange::new(least, greatest)).or(by_operands)
    }

    /// The range of a value, which is the result with this number of a node.
    fn range_of_result(
        self,
        value: ValueId,
        op: &Op,
        inputs: &[ValueId],
        result: usize,
    ) -> Option<IntegerRange> {
        let extent = |axis: usize| self.graph.ty(inputs[0]).shape.get(axis).cloned();
        match op {
            Op::TopK { axis, .. } | Op::Sort { axis, .. } if result == 1 => {
                Some(IntegerRange::of_positions(&extent(*axis)?))
            }
            Op::ArgReduce { axis, .. } => Some(IntegerRange::of_positions(&extent(*axis)?)),
            Op::TopK { .. } | Op::Sort { .. } => self.range(inputs[0]),
            Op::Cast | Op::Reduce { op: ReductionKind::Max | ReductionKind::Min, .. } => {
                self.range(inputs[0])
            }
            Op::Select => self.range_of_selection(value, inputs),
            Op::BinaryScalar { op, scalar: Scalar::Int(s), scalar_left: false } => {
                match self.range(inputs[0]) {
                    Some(x) => range_of_scalar_op(*op, &x, *s),
                    None => self.range_of_clamp(*op, inputs[0], *s),
                }
            }
            Op::Reduce { op: ReductionKind::Sum, axes, .. } => self.range_of_sums(inputs[0], axes),
            Op::CumSum { axis } => self.range_of_sums(inputs[0], &[*axis]),
            // All ranks run the same program. Other collectives may add zeros.
            Op::Collective(c) if c.kind != CollectiveKind::AllGather => None,
            // The facts do not show the elements that a pad adds.
            Op::Pad { .. } => None,
            op => {
                let moved = op.moved_operands(inputs.len())?.into_iter().map(|k| inputs[k]);
                self.union_of_ranges(&moved.collect::<Vec<_>>())
            }
        }
    }

    /// The range of integers that are limited at both ends: `min(max(x, a), b)`, or the reverse.
    fn range_of_clamp(self, outer: BinaryOp, value: ValueId, s: i64) -> Option<IntegerRange> {
        let (&Op::BinaryScalar { op: inner, scalar: Scalar::Int(t), scalar_left: false }, _) =
            self.graph.definition(value)?
        else {
            return None;
        };
        let [least, greatest] = exact_integers(self.graph.ty(value).dtype)?;
        if [s, t].iter().any(|limit| !(least..=greatest).contains(limit)) {
            return None;
        }
        match (outer, inner) {
            (BinaryOp::Min, BinaryOp::Max) => Some(IntegerRange::new(t.min(s), s)),
            (BinaryOp::Max, BinaryOp::Min) => Some(IntegerRange::new(s, t.max(s))),
            _ => None,
        }
    }

    fn union_of_ranges(self, values: &[ValueId]) -> Option<IntegerRange> {
        let (&first, others) = values.split_first()?;
        let first = self.range(first)?;
        others.iter().try_fold(first, |range, &v| Some(range.union(&self.range(v)?)))
    }

    /// The range of sums over axes, or over a part of them, of elements that are not negative.
    fn range_of_sums(self, value: ValueId, axes: &[usize]) -> Option<IntegerRange> {
        let shape = &self.graph.ty(value).shape;
        let count = axes.iter().try_fold(Dim::from(1), |n, &a| Some(n * shape.get(a)?.clone()))?;
        let element = self.range(value)?;
        let symbols = &self.graph.symbols;
        let is_positive = element.is_at_least(0, symbols) && count.bounds(symbols).0 >= 0;
        let greatest = i64::checked_mul(element.bounds(symbols)[1], count.bounds(symbols).1)?;
        is_positive.then(|| IntegerRange::new(0, greatest))
    }
}

fn range_of_scalar_op(op: BinaryOp, x: &IntegerRange, s: i64) -> Option<IntegerRange> {
    let scalar = Dim::from(s);
    match op {
        BinaryOp::Add => x.map(|end| add_dims(end, &scalar)),
        BinaryOp::Sub => x.map(|end| add_dims(end, &Dim::from(s.checked_neg()?))),
        BinaryOp::Mul if s >= 0 => x.map(|end| scale_dim(end, s)),
        BinaryOp::FloorDiv if (1..MAX_CONSTANT).contains(&s) => x.map(|end| Some(end.floor_div(&scalar))),
        BinaryOp::Max => x.map(|end| Some(end.max_with(&scalar))),
        BinaryOp::Min => x.map(|end| Some(end.min_with(&scalar))),
        _ => None,
    }
}
