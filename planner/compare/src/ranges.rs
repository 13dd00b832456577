//! Bounds of integers, and comparisons that they decide.
//!
//! Positions that sorts and selections return lie within their axis, whatever the data are. A comparison of such a
//! position with a limit may therefore have one result only. Bounds of values without an entry are not known.

use std::collections::HashMap;

use symmc_ir::{
    BinaryOp, CollectiveKind, CollectiveReduceOp, DType, Dim, Graph, Node, Op, ReductionKind, Scalar, Tensor,
    ValueId,
};

/// The least and the largest element of an integer value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IntegerBounds {
    pub least: i64,
    pub largest: i64,
}

impl IntegerBounds {
    pub fn new(least: i64, largest: i64) -> IntegerBounds {
        IntegerBounds { least, largest }
    }

    /// The bounds of the elements of tensors. `None` if they have floats or no elements.
    pub fn of_tensors<'t>(tensors: impl Iterator<Item = &'t Tensor>) -> Option<IntegerBounds> {
        let mut out: Option<IntegerBounds> = None;
        for tensor in tensors {
            if tensor.dtype().is_float() {
                return None;
            }
            for i in 0..tensor.numel() {
                let x = tensor.get_i64(i);
                let single = IntegerBounds::new(x, x);
                out = Some(out.map_or(single, |bounds| bounds.join(single)));
            }
        }
        out
    }

    fn join(self, other: IntegerBounds) -> IntegerBounds {
        IntegerBounds::new(self.least.min(other.least), self.largest.max(other.largest))
    }

    fn fits(self, dtype: DType) -> bool {
        dtype.integer_bounds().is_some_and(|(low, high)| low <= self.least && self.largest <= high)
    }
}

/// The bounds of the result of a node with the index `k`.
pub fn derive_bounds(
    graph: &Graph,
    node: &Node,
    k: usize,
    known: &HashMap<ValueId, IntegerBounds>,
) -> Option<IntegerBounds> {
    let bounds_of = |operand: usize| node.inputs.get(operand).and_then(|v| known.get(v)).copied();
    let extent = |axis: usize| {
        let shape = &graph.ty(*node.inputs.first()?).shape;
        shape.get(axis).and_then(Dim::as_const).filter(|extent| *extent > 0)
    };
    let position = |axis: usize| extent(axis).map(|extent| IntegerBounds::new(0, extent - 1));
    let bounds = match &node.op {
        Op::TopK { axis, .. } | Op::Sort { axis, .. } if k == 1 => position(*axis)?,
        Op::TopK { .. } | Op::Sort { .. } => bounds_of(0)?,
        Op::ArgReduce { axis, .. } => position(*axis)?,
        Op::Reduce { op: ReductionKind::Max | ReductionKind::Min, axes, .. } => {
            axes.iter().all(|&axis| extent(axis).is_some()).then(|| bounds_of(0))??
        }
        Op::Cast => bounds_of(0)?,
        Op::Select => bounds_of(1)?.join(bounds_of(2)?),
        Op::BinaryScalar { op, scalar: Scalar::Int(c), scalar_left: false } => {
            combine_bounds(*op, bounds_of(0), IntegerBounds::new(*c, *c))?
        }
        Op::Binary(op) => combine_bounds(*op, bounds_of(0), bounds_of(1)?)?,
        Op::Collective(c) => match &c.kind {
            CollectiveKind::AllReduce(CollectiveReduceOp::Max | CollectiveReduceOp::Min) => bounds_of(k)?,
            _ => join_moved(node, &bounds_of)?,
        },
        _ => join_moved(node, &bounds_of)?,
    };
    bounds.fits(graph.ty(*node.outputs.get(k)?).dtype).then_some(bounds)
}

fn combine_bounds(op: BinaryOp, x: Option<IntegerBounds>, y: IntegerBounds) -> Option<IntegerBounds> {
    let combine = |f: fn(i64, i64) -> Option<i64>| {
        let x = x?;
        let ends =
            [f(x.least, y.least)?, f(x.least, y.largest)?, f(x.largest, y.least)?, f(x.largest, y.largest)?];
        Some(IntegerBounds::new(*ends.iter().min()?, *ends.iter().max()?))
    };
    match op {
        BinaryOp::Add => combine(i64::checked_add),
        BinaryOp::Sub => combine(i64::checked_sub),
        BinaryOp::Mul => combine(i64::checked_mul),
        BinaryOp::Min => combine(|x, y| Some(x.min(y))),
        BinaryOp::Max => combine(|x, y| Some(x.max(y))),
        BinaryOp::FloorDiv if y.least > 0 => combine(|x, y| Some(x.div_euclid(y))),
        BinaryOp::Rem if y.least > 0 => Some(IntegerBounds::new(0, y.largest - 1)),
        _ => None,
    }
}

/// The bounds of the results of an op that moves elements of its operands, or pads them with zeros.
fn join_moved(node: &Node, bounds_of: &dyn Fn(usize) -> Option<IntegerBounds>) -> Option<IntegerBounds> {
    let mut out = match &node.op {
        Op::Pad { value: Scalar::Int(value), .. } => IntegerBounds::new(*value, *value),
        Op::Collective(_) => IntegerBounds::new(0, 0),
        _ => bounds_of(0)?,
    };
    for k in node.op.moved_operands(node.inputs.len())? {
        out = out.join(bounds_of(k)?);
    }
    Some(out)
}

/// The result of a comparison of integers, if bounds decide it for all elements.
pub fn decide_comparison(node: &Node, known: &HashMap<ValueId, IntegerBounds>) -> Option<bool> {
    let bounds_of = |operand: usize| node.inputs.get(operand).and_then(|v| known.get(v)).copied();
    let (op, x, y) = match &node.op {
        Op::Binary(op) => (*op, bounds_of(0)?, bounds_of(1)?),
        Op::BinaryScalar { op, scalar: Scalar::Int(c), scalar_left } => {
            let scalar = IntegerBounds::new(*c, *c);
            if *scalar_left { (*op, scalar, bounds_of(0)?) } else { (*op, bounds_of(0)?, scalar) }
        }
        _ => return None,
    };
    let is_below = x.largest < y.least;
    let is_above = x.least > y.largest;
    let is_at_most = x.largest <= y.least;
    let is_at_least = x.least >= y.largest;
    match op {
        BinaryOp::Lt | BinaryOp::Ge if is_below || is_at_least => Some((op == BinaryOp::Lt) == is_below),
        BinaryOp::Gt | BinaryOp::Le if is_above || is_at_most => Some((op == BinaryOp::Gt) == is_above),
        BinaryOp::Eq | BinaryOp::Ne if is_below || is_above => Some(op == BinaryOp::Ne),
        _ => None,
    }
}
