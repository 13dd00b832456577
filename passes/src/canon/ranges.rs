//! The least and the greatest element of an integer value, as far as its definition shows.
//!
//! Positions that a top-k or a sort returns lie within its axis, and ops that only move elements keep their
//! range. Ids of experts are such positions, so comparisons with their number are known.

use symmc_ir::closed_form::ClosedFormContext;
use symmc_ir::{
    BinaryOp, CollectiveKind, DType, Dim, Op, ReductionKind, Scalar, SymbolTable, ValueDef, ValueId,
};

use super::integer_functions::evaluated_bounds;

/// The most nodes that are visited for the range of one value.
const MAX_VISITED_NODES: usize = 48;
/// The most integers for which a function is evaluated.
pub const MAX_EVALUATED_INTEGERS: i64 = 4096;

/// Bounds of the elements of an integer or bool value, both inclusive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IntegerRange {
    pub least: Dim,
    pub greatest: Dim,
}

impl IntegerRange {
    fn new(least: impl Into<Dim>, greatest: impl Into<Dim>) -> IntegerRange {
        IntegerRange { least: least.into(), greatest: greatest.into() }
    }

    pub fn of_one(number: i64) -> IntegerRange {
        IntegerRange::new(number, number)
    }

    /// The positions along an axis of this extent.
    fn of_positions(extent: &Dim) -> IntegerRange {
        IntegerRange::new(0, extent.clone() - Dim::from(1))
    }

    fn union(self, other: &IntegerRange) -> IntegerRange {
        IntegerRange {
            least: self.least.min_with(&other.least),
            greatest: self.greatest.max_with(&other.greatest),
        }
    }

    /// The numbers between which all elements lie at all sizes.
    pub fn bounds(&self, symbols: &SymbolTable) -> [i64; 2] {
        [self.least.bounds(symbols).0, self.greatest.bounds(symbols).1]
    }

    /// All integers of the range, if they are few.
    pub fn few_integers(&self, symbols: &SymbolTable) -> Option<Vec<i64>> {
        let [least, greatest] = self.bounds(symbols);
        let are_few = greatest.checked_sub(least).is_some_and(|n| (0..MAX_EVALUATED_INTEGERS).contains(&n));
        are_few.then(|| (least..=greatest).collect())
    }

    /// Whether all elements are at least this.
    pub fn is_at_least(&self, least: i64, symbols: &SymbolTable) -> bool {
        Dim::from(least).provably_le(&self.least, symbols)
    }

    /// Whether all elements are at most this.
    pub fn is_at_most(&self, greatest: &Dim, symbols: &SymbolTable) -> bool {
        self.greatest.provably_le(greatest, symbols)
    }

    /// Whether a tensor of this dtype stores each integer between the bounds without change.
    pub fn fits_type(&self, dtype: DType, symbols: &SymbolTable) -> bool {
        let Some([least, greatest]) = exact_integers(dtype) else { return false };
        let [low, high] = self.bounds(symbols);
        least <= low && high <= greatest
    }
}

/// The integers that a dtype stores, each exactly.
fn exact_integers(dtype: DType) -> Option<[i64; 2]> {
    let magnitude = |bits: u32| [-(1_i64 << bits), 1_i64 << bits];
    Some(match dtype {
        // The ends also stand for bounds that overflowed.
        DType::I64 => [i64::MIN + 1, i64::MAX - 1],
        DType::BF16 => magnitude(8),
        DType::F16 => magnitude(11),
        DType::F32 => magnitude(24),
        DType::F64 => magnitude(53),
        DType::Bool | DType::U8 | DType::I32 => dtype.integer_bounds()?.into(),
    })
}

/// The range of an integer or bool value.
pub fn range_of(cx: ClosedFormContext<'_>, value: ValueId) -> Option<IntegerRange> {
    RangeSearch { cx, left: MAX_VISITED_NODES, evaluates: true }.range_of(value)
}

struct RangeSearch<'a> {
    cx: ClosedFormContext<'a>,
    left: usize,
    /// Whether selections are evaluated: their outcome often excludes one of the operands.
    evaluates: bool,
}

impl RangeSearch<'_> {
    fn range_of(&mut self, value: ValueId) -> Option<IntegerRange> {
        let graph = self.cx.graph;
        let ty = graph.ty(value);
        if ty.dtype.is_float() {
            return None;
        }
        if ty.dtype == DType::Bool {
            return Some(IntegerRange::new(0, 1));
        }
        if let Some((least, greatest)) = self.cx.known[value].as_ref().and_then(|k| k.value_range(&ty.shape))
        {
            return Some(IntegerRange { least, greatest });
        }
        self.left = self.left.checked_sub(1)?;
        let ValueDef::Node(node, which) = graph.values[value].def else { return None };
        let node = &graph.nodes[node];
        let range = match node.op {
            Op::Select if self.evaluates => self.of_selection(value, &node.inputs),
            _ => self.of_node(&node.op, &node.inputs, which),
        }?;
        // Arithmetic that may wrap shows nothing.
        range.fits_type(ty.dtype, &graph.symbols).then_some(range)
    }

    /// The range of a selection. If it may be negative by the ranges of its operands, it is evaluated.
    fn of_selection(&mut self, value: ValueId, inputs: &[ValueId]) -> Option<IntegerRange> {
        let symbols = &self.cx.graph.symbols;
        let by_operands = self.union_of(&inputs[1..]);
        if by_operands.as_ref().is_some_and(|range| range.is_at_least(0, symbols)) {
            return by_operands;
        }
        let few_integers = |integer: ValueId| {
            let mut search = RangeSearch { cx: self.cx, left: MAX_VISITED_NODES, evaluates: false };
            search.range_of(integer)?.few_integers(symbols)
        };
        let bounds = evaluated_bounds(self.cx, value, few_integers);
        bounds.map(|[least, greatest]| IntegerRange::new(least, greatest)).or(by_operands)
    }

    /// The range of the result with this number.
    fn of_node(&mut self, op: &Op, inputs: &[ValueId], which: usize) -> Option<IntegerRange> {
        let shape = |k: usize| &self.cx.graph.ty(inputs[k]).shape;
        let extent = |axis: usize| shape(0).get(axis).cloned();
        match op {
            Op::TopK { axis, .. } | Op::Sort { axis, .. } if which == 1 => {
                Some(IntegerRange::of_positions(&extent(*axis)?))
            }
            Op::ArgReduce { axis, .. } => Some(IntegerRange::of_positions(&extent(*axis)?)),
            Op::TopK { .. }
            | Op::Sort { .. }
            | Op::Reshape
            | Op::Permute { .. }
            | Op::Slice { .. }
            | Op::Expand
            | Op::Copy
            | Op::Cast
            | Op::Shard { .. }
            | Op::Take { .. }
            | Op::Index { .. }
            | Op::GatherElements { .. } => self.range_of(inputs[0]),
            Op::Concat { .. } => self.union_of(inputs),
            Op::Select => self.union_of(&inputs[1..]),
            Op::IndexPut { accumulate: false, .. } => self.union_of(&inputs[..2]),
            Op::ScatterElements { combine: None, .. } => self.union_of(&[inputs[0], inputs[2]]),
            Op::BinaryScalar { op, scalar: Scalar::Int(s), scalar_left: false } => {
                match self.range_of(inputs[0]) {
                    Some(x) => of_scalar_op(*op, x, *s),
                    None => self.of_clamp(*op, inputs[0], *s),
                }
            }
            Op::Reduce { op: ReductionKind::Sum, axes, .. } => {
                let count = axes.iter().map(|&a| shape(0)[a].clone());
                let count = count.fold(Dim::from(1), |n, d| n * d);
                self.sum_of(inputs[0], &count)
            }
            Op::CumSum { axis } => {
                let count = extent(*axis)?;
                self.sum_of(inputs[0], &count)
            }
            Op::Reduce { op: ReductionKind::Max | ReductionKind::Min, .. } => self.range_of(inputs[0]),
            // All ranks run the same program.
            Op::Collective(c) if c.kind == CollectiveKind::AllGather => self.range_of(inputs[0]),
            _ => None,
        }
    }

    /// The range of integers that are limited at both ends: `min(max(x, a), b)`, or the reverse.
    fn of_clamp(&self, outer: BinaryOp, value: ValueId, s: i64) -> Option<IntegerRange> {
        let (&Op::BinaryScalar { op: inner, scalar: Scalar::Int(t), scalar_left: false }, _) =
            self.cx.graph.definition(value)?
        else {
            return None;
        };
        let [least, greatest] = exact_integers(self.cx.graph.ty(value).dtype)?;
        if [s, t].iter().any(|limit| !(least..=greatest).contains(limit)) {
            return None;
        }
        match (outer, inner) {
            (BinaryOp::Min, BinaryOp::Max) => Some(IntegerRange::new(t.min(s), s)),
            (BinaryOp::Max, BinaryOp::Min) => Some(IntegerRange::new(s, t.max(s))),
            _ => None,
        }
    }

    fn union_of(&mut self, values: &[ValueId]) -> Option<IntegerRange> {
        let (&first, others) = values.split_first()?;
        let first = self.range_of(first)?;
        others.iter().try_fold(first, |range, &v| Some(range.union(&self.range_of(v)?)))
    }

    /// The range of sums of up to `count` elements that are not negative.
    fn sum_of(&mut self, value: ValueId, count: &Dim) -> Option<IntegerRange> {
        let element = self.range_of(value)?;
        let symbols = &self.cx.graph.symbols;
        let is_positive = element.is_at_least(0, symbols) && count.bounds(symbols).0 >= 0;
        let greatest = i64::checked_mul(element.bounds(symbols)[1], count.bounds(symbols).1)?;
        is_positive.then(|| IntegerRange::new(0, greatest))
    }
}

fn of_scalar_op(op: BinaryOp, x: IntegerRange, s: i64) -> Option<IntegerRange> {
    let IntegerRange { least, greatest } = x;
    let scalar = Dim::from(s);
    let of_ends =
        |f: &dyn Fn(Dim) -> Dim| IntegerRange { least: f(least.clone()), greatest: f(greatest.clone()) };
    match op {
        BinaryOp::Add => Some(of_ends(&|end| end + scalar.clone())),
        BinaryOp::Sub => Some(of_ends(&|end| end - scalar.clone())),
        BinaryOp::Mul if s >= 0 => Some(of_ends(&|end| end * scalar.clone())),
        BinaryOp::FloorDiv if s > 0 => Some(of_ends(&|end| end.floor_div(&scalar))),
        BinaryOp::Max => Some(of_ends(&|end| end.max_with(&scalar))),
        BinaryOp::Min => Some(of_ends(&|end| end.min_with(&scalar))),
        _ => None,
    }
}
