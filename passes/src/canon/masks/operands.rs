//! Emits the values that bounds and masks read: operands of bounds, sums of elements, and remaining masks.

use symmc_ir::positions::{AtomWitness, AxisIndex, ElementRef, LinearExpr};
use symmc_ir::{
    BinaryOp, BoundSide, DType, Dim, Op, ReductionKind, Scalar, TensorType, UnaryOp, ValueId, infer,
};

use super::bounds::{BoundOperand, PendingBound};
use crate::rewrite::Rewriter;

/// A position beyond all extents.
const BEYOND_ALL_POSITIONS: i64 = 1 << 41;

/// Emits the operand of a bound as a value that broadcasts to the rows of the scores; `None` if it has none.
pub fn emit_bound_operand(cx: &mut Rewriter, limit: &PendingBound, scores: &[Dim]) -> Option<ValueId> {
    match &limit.operand {
        BoundOperand::Sum(terms) => emit_element_sum(cx, terms, scores),
        BoundOperand::Rows(rows) => {
            let witness = emit_witness(cx, rows, scores)?;
            let ty = TensorType::new(DType::I64, cx.shape(witness).to_vec());
            let number = cx.emit("rows", Op::Cast, &[witness], ty.clone());
            let op = Op::BinaryScalar {
                op: BinaryOp::Mul,
                scalar: Scalar::Int(BEYOND_ALL_POSITIONS),
                scalar_left: false,
            };
            Some(cx.emit("limit", op, &[number], ty))
        }
        BoundOperand::Chunk { of, less, by } => {
            let position = emit_linear(cx, of, scores)?;
            let mut boundary = emit_binary_scalar(cx, BinaryOp::FloorDiv, position, *by);
            boundary = emit_binary_scalar(cx, BinaryOp::Mul, boundary, *by);
            if limit.bound.side == BoundSide::Below {
                boundary = emit_binary_scalar(cx, BinaryOp::Add, boundary, *by);
            }
            let less = emit_linear(cx, less, scores)?;
            emit_binary(cx, "chunk", BinaryOp::Sub, boundary, less)
        }
        BoundOperand::Segment { leaf, axis } => {
            let value = emit_segment_boundary(cx, limit.bound.side, leaf.value, *axis)?;
            emit_element(cx, &ElementRef { value, axis_indices: leaf.axis_indices.clone() }, scores)
        }
    }
}

/// Emits a sum of elements as a value that broadcasts to the rows of the scores; `None` if it has no terms.
fn emit_element_sum(cx: &mut Rewriter, terms: &[(i64, ElementRef)], scores: &[Dim]) -> Option<ValueId> {
    let mut sum = None;
    for (times, leaf) in terms {
        let mut x = emit_element(cx, leaf, scores)?;
        if terms.len() > 1 || *times != 1 {
            let ty = TensorType::new(DType::I64, cx.shape(x).to_vec());
            if cx.ty(x).dtype != DType::I64 {
                x = cx.emit("wide", Op::Cast, &[x], ty.clone());
            }
            if *times != 1 {
                let op =
                    Op::BinaryScalar { op: BinaryOp::Mul, scalar: Scalar::Int(*times), scalar_left: false };
                x = cx.emit("times", op, &[x], ty);
            }
        }
        sum = Some(match sum {
            None => x,
            Some(other) => emit_binary(cx, "position", BinaryOp::Add, other, x)?,
        });
    }
    sum
}

/// Emits the conjunction of some witnesses as a mask; `None` if there are none.
pub fn emit_witness_mask(cx: &mut Rewriter, witnesses: &[AtomWitness], scores: &[Dim]) -> Option<ValueId> {
    let mut conjunction = None;
    for witness in witnesses {
        let next = emit_witness(cx, witness, scores)?;
        conjunction = Some(match conjunction {
            None => next,
            Some(previous) => emit_binary(cx, "mask", BinaryOp::And, previous, next)?,
        });
    }
    conjunction
}

/// Emits a binary op on two values that broadcast together.
pub fn emit_binary(cx: &mut Rewriter, part: &str, op: BinaryOp, x: ValueId, y: ValueId) -> Option<ValueId> {
    let shape = infer::broadcast_shapes(&[cx.shape(x), cx.shape(y)]).ok()?;
    let ty = TensorType::new(cx.ty(x).dtype, shape);
    Some(cx.emit(part, Op::Binary(op), &[x, y], ty))
}

fn emit_witness(cx: &mut Rewriter, witness: &AtomWitness, scores: &[Dim]) -> Option<ValueId> {
    let value = emit_element(cx, &witness.leaf, scores)?;
    let ty = cx.ty(value).clone();
    Some(if witness.negated { cx.emit("not", Op::Unary(UnaryOp::Not), &[value], ty) } else { value })
}

/// Emits a leaf as a value with the axes of a shape, with extent 1 for axes on which it does not depend.
pub fn emit_element(cx: &mut Rewriter, leaf: &ElementRef, shape: &[Dim]) -> Option<ValueId> {
    let mut value = leaf.value;
    let mut order = Vec::new();
    for (axis, index) in leaf.axis_indices.iter().enumerate() {
        let (start, count) = match index {
            AxisIndex::Fixed(position) => (position.clone(), Dim::from(1)),
            AxisIndex::Along { axis: to, start } => {
                order.push((*to, axis));
                (start.clone(), shape.get(*to)?.clone())
            }
        };
        let mut ty = cx.ty(value).clone();
        if ty.shape[axis] != count {
            ty.shape[axis] = count;
            value = cx.emit("part", Op::Slice { axis, start, step: 1 }, &[value], ty);
        }
    }
    order.sort_unstable();
    // Two axes that follow the same axis would form a diagonal.
    if order.windows(2).any(|w| w[0].0 == w[1].0) {
        return None;
    }
    let fixed = (0..leaf.axis_indices.len()).filter(|a| !order.iter().any(|(_, axis)| axis == a));
    let perm: Vec<usize> = fixed.chain(order.iter().map(|(_, axis)| *axis)).collect();
    let ty = cx.ty(value).clone();
    let turned = TensorType::new(ty.dtype, perm.iter().map(|&a| ty.shape[a].clone()).collect::<Vec<_>>());
    let value = cx.emit("axes", Op::Permute { perm }, &[value], turned);
    let mut wide = vec![Dim::from(1); shape.len()];
    order.iter().for_each(|&(to, _)| wide[to] = shape[to].clone());
    Some(cx.reshape(value, wide))
}

/// Emits a sum of positions that depends only on rows, as i64 `[.., l, 1]`.
fn emit_linear(cx: &mut Rewriter, x: &LinearExpr, scores: &[Dim]) -> Option<ValueId> {
    let [row, _] = row_and_column_axes(scores)?;
    let mut sum = emit_dim(cx, &x.constant, scores.len())?;
    if x.steps[row] != 0 {
        let index = emit_row_index(cx, &Dim::from(0), scores)?;
        let moved = emit_binary_scalar(cx, BinaryOp::Mul, index, x.steps[row]);
        sum = emit_binary(cx, "position", BinaryOp::Add, sum, moved)?;
    }
    let Some(mut terms) = emit_element_sum(cx, &x.terms, scores) else { return Some(sum) };
    if cx.ty(terms).dtype != DType::I64 {
        let ty = TensorType::new(DType::I64, cx.shape(terms).to_vec());
        terms = cx.emit("wide", Op::Cast, &[terms], ty);
    }
    emit_binary(cx, "position", BinaryOp::Add, sum, terms)
}

/// For each element of a cumulative sum of bools, emits the start of the run of elements equal to it, or the
/// position after the run for the side below. The sums are at most as large as the axis.
fn emit_segment_boundary(cx: &mut Rewriter, side: BoundSide, sums: ValueId, axis: usize) -> Option<ValueId> {
    let shape = cx.shape(sums).to_vec();
    let mut rooms = shape.clone();
    rooms[axis] = shape[axis].clone() + Dim::from(1);
    let (start, combine) = match side {
        BoundSide::From => (0, ReductionKind::Min),
        BoundSide::Below => (1, ReductionKind::Max),
    };
    let fill = if side == BoundSide::From { i64::MAX } else { 0 };
    let none = cx.emit("segment", Op::Full(Scalar::Int(fill)), &[], i64_type(rooms.clone()));
    let positions = cx.emit("segment", Op::Iota { start, step: 1 }, &[], i64_type(vec![shape[axis].clone()]));
    let mut along = vec![Dim::from(1); shape.len()];
    along[axis] = shape[axis].clone();
    let positions = cx.reshape(positions, along);
    let positions = cx.expand(positions, shape.clone());
    let scatter = Op::ScatterElements { axis, combine: Some(combine) };
    let ends = cx.emit("segment", scatter, &[none, sums, positions], i64_type(rooms));
    Some(cx.emit("segment", Op::GatherElements { axis }, &[ends, sums], i64_type(shape)))
}

fn i64_type(shape: Vec<Dim>) -> TensorType {
    TensorType::new(DType::I64, shape)
}

pub fn emit_binary_scalar(cx: &mut Rewriter, op: BinaryOp, x: ValueId, number: i64) -> ValueId {
    let ty = cx.ty(x).clone();
    cx.emit("limit", Op::BinaryScalar { op, scalar: Scalar::Int(number), scalar_left: false }, &[x], ty)
}

/// Emits a dim as a value of this rank.
pub fn emit_dim(cx: &mut Rewriter, dim: &Dim, rank: usize) -> Option<ValueId> {
    let ty = TensorType::new(DType::I64, vec![Dim::from(1); rank]);
    if let Some(number) = dim.as_const() {
        return Some(cx.emit("number", Op::Full(Scalar::Int(number)), &[], ty));
    }
    let number = emit_range(cx, dim, Dim::from(1))?;
    Some(cx.reshape(number, ty.shape))
}

/// Emits `count` consecutive integers from `start` on.
fn emit_range(cx: &mut Rewriter, start: &Dim, count: Dim) -> Option<ValueId> {
    if let Some(start) = start.as_const() {
        return Some(cx.emit("row", Op::Iota { start, step: 1 }, &[], i64_type(vec![count])));
    }
    if start.bounds(cx.symbols()).0 < 0 {
        return None;
    }
    let integers =
        cx.emit("row", Op::Iota { start: 0, step: 1 }, &[], i64_type(vec![start.clone() + count.clone()]));
    Some(cx.emit(
        "row",
        Op::Slice { axis: 0, start: start.clone(), step: 1 },
        &[integers],
        i64_type(vec![count]),
    ))
}

/// Emits the index of each row plus `start`, as i64 `[.., l, 1]`.
pub fn emit_row_index(cx: &mut Rewriter, start: &Dim, scores: &[Dim]) -> Option<ValueId> {
    let [row, _] = row_and_column_axes(scores)?;
    let rows = emit_range(cx, start, scores[row].clone())?;
    let mut shape = vec![Dim::from(1); scores.len()];
    shape[row] = scores[row].clone();
    Some(cx.reshape(rows, shape))
}

/// The axes of rows and columns, which are the last two.
pub fn row_and_column_axes(scores: &[Dim]) -> Option<[usize; 2]> {
    let column = scores.len().checked_sub(1)?;
    Some([column.checked_sub(1)?, column])
}
