//! What bounds and masks read, as values: operands of bounds, sums of elements, masks that are left.

use symmc_ir::{BinaryOp, DType, Dim, Op, Reduction, Scalar, Side, Type, UnaryOp, ValueId, infer};

use super::bounds::{BoundOperand, Limit};
use super::condition::Witness;
use super::linear::{Leaf, Linear, Place};
use crate::rewrite::Rewriter;

/// Positions beyond all extents.
const FAR: i64 = 1 << 41;

/// The operand of a bound as a value that broadcasts to the rows of the scores; `None` if it has none.
pub fn operand(cx: &mut Rewriter, limit: &Limit, scores: &[Dim]) -> Option<ValueId> {
    match &limit.operand {
        BoundOperand::Sum(terms) => sum(cx, terms, scores),
        BoundOperand::Rows(rows) => {
            let seen = witness(cx, rows, scores)?;
            let ty = Type::new(DType::I64, cx.shape(seen).to_vec());
            let number = cx.emit("rows", Op::Cast, &[seen], ty.clone());
            let op = Op::BinaryScalar { op: BinaryOp::Mul, scalar: Scalar::Int(FAR), scalar_left: false };
            Some(cx.emit("limit", op, &[number], ty))
        }
        BoundOperand::Chunk { of, less, by } => {
            let of = number(cx, of, scores)?;
            let mut at = with(cx, BinaryOp::FloorDiv, of, *by);
            at = with(cx, BinaryOp::Mul, at, *by);
            if limit.bound.side == Side::Below {
                at = with(cx, BinaryOp::Add, at, *by);
            }
            let less = number(cx, less, scores)?;
            both(cx, "chunk", BinaryOp::Sub, at, less)
        }
        BoundOperand::Segment { leaf, axis } => {
            let value = segment(cx, limit.bound.side, leaf.value, *axis)?;
            placed(cx, &Leaf { value, at: leaf.at.clone() }, scores)
        }
    }
}

/// A sum of elements as a value that broadcasts to the rows of the scores; `None` if it has no terms.
fn sum(cx: &mut Rewriter, terms: &[(i64, Leaf)], scores: &[Dim]) -> Option<ValueId> {
    let mut sum = None;
    for (times, leaf) in terms {
        let mut x = placed(cx, leaf, scores)?;
        if terms.len() > 1 || *times != 1 {
            let ty = Type::new(DType::I64, cx.shape(x).to_vec());
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
            Some(other) => both(cx, "position", BinaryOp::Add, other, x)?,
        });
    }
    sum
}

/// All of some witnesses as a mask; `None` if there are none.
pub fn mask(cx: &mut Rewriter, rest: &[Witness], scores: &[Dim]) -> Option<ValueId> {
    let mut all = None;
    for one in rest {
        let next = witness(cx, one, scores)?;
        all = Some(match all {
            None => next,
            Some(other) => both(cx, "mask", BinaryOp::And, other, next)?,
        });
    }
    all
}

/// An op of two values that broadcast together.
pub fn both(cx: &mut Rewriter, part: &str, op: BinaryOp, x: ValueId, y: ValueId) -> Option<ValueId> {
    let shape = infer::broadcast(&[cx.shape(x), cx.shape(y)]).ok()?;
    let ty = Type::new(cx.ty(x).dtype, shape);
    Some(cx.emit(part, Op::Binary(op), &[x, y], ty))
}

fn witness(cx: &mut Rewriter, of: &Witness, scores: &[Dim]) -> Option<ValueId> {
    let value = placed(cx, &of.leaf, scores)?;
    let ty = cx.ty(value).clone();
    Some(if of.negated { cx.emit("not", Op::Unary(UnaryOp::Not), &[value], ty) } else { value })
}

/// A leaf as a value whose axes are those of a shape, of extent 1 where it does not move along them.
pub fn placed(cx: &mut Rewriter, leaf: &Leaf, shape: &[Dim]) -> Option<ValueId> {
    let mut value = leaf.value;
    let mut order = Vec::new();
    for (axis, place) in leaf.at.iter().enumerate() {
        let (start, count) = match place {
            Place::Fixed(at) => (at.clone(), Dim::from(1)),
            Place::Along { axis: to, start } => {
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
    // Two axes that move along one would be a diagonal.
    if order.windows(2).any(|w| w[0].0 == w[1].0) {
        return None;
    }
    let fixed = (0..leaf.at.len()).filter(|a| !order.iter().any(|(_, axis)| axis == a));
    let perm: Vec<usize> = fixed.chain(order.iter().map(|(_, axis)| *axis)).collect();
    let ty = cx.ty(value).clone();
    let turned = Type::new(ty.dtype, perm.iter().map(|&a| ty.shape[a].clone()).collect::<Vec<_>>());
    let value = cx.emit("axes", Op::Permute { perm }, &[value], turned);
    let mut wide = vec![Dim::from(1); shape.len()];
    order.iter().for_each(|&(to, _)| wide[to] = shape[to].clone());
    Some(cx.reshape(value, wide))
}

/// What a sum of positions that moves along rows alone is for each row, as i64 `[.., l, 1]`.
fn number(cx: &mut Rewriter, x: &Linear, scores: &[Dim]) -> Option<ValueId> {
    let [row, _] = split_axes(scores)?;
    let mut at = dim(cx, &x.constant, scores.len())?;
    if x.steps[row] != 0 {
        let index = of_rows(cx, &Dim::from(0), scores)?;
        let moved = with(cx, BinaryOp::Mul, index, x.steps[row]);
        at = both(cx, "position", BinaryOp::Add, at, moved)?;
    }
    let Some(mut terms) = sum(cx, &x.terms, scores) else { return Some(at) };
    if cx.ty(terms).dtype != DType::I64 {
        let ty = Type::new(DType::I64, cx.shape(terms).to_vec());
        terms = cx.emit("wide", Op::Cast, &[terms], ty);
    }
    both(cx, "position", BinaryOp::Add, at, terms)
}

/// For each element of a cumulative sum of bools where the elements that equal it begin, or behind the last of them on the side
/// below. The sums are at most as large as the axis.
fn segment(cx: &mut Rewriter, side: Side, sums: ValueId, axis: usize) -> Option<ValueId> {
    let shape = cx.shape(sums).to_vec();
    let mut rooms = shape.clone();
    rooms[axis] = shape[axis].clone() + Dim::from(1);
    let (start, combine) = match side {
        Side::From => (0, Reduction::Min),
        Side::Below => (1, Reduction::Max),
    };
    let of = |shape: Vec<Dim>| Type::new(DType::I64, shape);
    let fill = if side == Side::From { i64::MAX } else { 0 };
    let none = cx.emit("segment", Op::Full(Scalar::Int(fill)), &[], of(rooms.clone()));
    let at = cx.emit("segment", Op::Iota { start, step: 1 }, &[], of(vec![shape[axis].clone()]));
    let mut along = vec![Dim::from(1); shape.len()];
    along[axis] = shape[axis].clone();
    let at = cx.reshape(at, along);
    let at = cx.expand(at, shape.clone());
    let scatter = Op::ScatterElements { axis, combine: Some(combine) };
    let ends = cx.emit("segment", scatter, &[none, sums, at], of(rooms));
    Some(cx.emit("segment", Op::GatherElements { axis }, &[ends, sums], of(shape)))
}

pub fn with(cx: &mut Rewriter, op: BinaryOp, x: ValueId, number: i64) -> ValueId {
    let ty = cx.ty(x).clone();
    cx.emit("limit", Op::BinaryScalar { op, scalar: Scalar::Int(number), scalar_left: false }, &[x], ty)
}

/// The number that a dim is, as a value of so many axes.
pub fn dim(cx: &mut Rewriter, dim: &Dim, rank: usize) -> Option<ValueId> {
    let ty = Type::new(DType::I64, vec![Dim::from(1); rank]);
    if let Some(number) = dim.as_const() {
        return Some(cx.emit("number", Op::Full(Scalar::Int(number)), &[], ty));
    }
    let at = counted_from(cx, dim, Dim::from(1))?;
    Some(cx.reshape(at, ty.shape))
}

/// As many integers as an extent, in a row, from a dim on.
fn counted_from(cx: &mut Rewriter, start: &Dim, count: Dim) -> Option<ValueId> {
    let of = |n: Dim| Type::new(DType::I64, vec![n]);
    if let Some(start) = start.as_const() {
        return Some(cx.emit("row", Op::Iota { start, step: 1 }, &[], of(count)));
    }
    if start.bounds(cx.symbols()).0 < 0 {
        return None;
    }
    let all = cx.emit("row", Op::Iota { start: 0, step: 1 }, &[], of(start.clone() + count.clone()));
    Some(cx.emit("row", Op::Slice { axis: 0, start: start.clone(), step: 1 }, &[all], of(count)))
}

/// The index of each row and a dim, as i64 `[.., l, 1]`.
pub fn of_rows(cx: &mut Rewriter, start: &Dim, scores: &[Dim]) -> Option<ValueId> {
    let [row, _] = split_axes(scores)?;
    let all = counted_from(cx, start, scores[row].clone())?;
    let mut shape = vec![Dim::from(1); scores.len()];
    shape[row] = scores[row].clone();
    Some(cx.reshape(all, shape))
}

/// The axes of rows and of columns, the last two.
pub fn split_axes(scores: &[Dim]) -> Option<[usize; 2]> {
    let column = scores.len().checked_sub(1)?;
    Some([column.checked_sub(1)?, column])
}
