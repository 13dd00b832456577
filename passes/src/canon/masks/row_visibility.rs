//! Computes which rows see a column at all, and the result of rows that do not.
//!
//! A row whose scores are all replaced by one lowest number has equal weights, which give the mean of the
//! values. Attention with bounds gives such a row zeros, or what the remaining mask lets it see. If it
//! cannot be shown that each row sees a column, visibility is computed: the bounds leave an interval of
//! columns for a row, and cumulative sums count the columns in it that the remaining mask keeps. No
//! intermediate value is as large as the scores.

use symmc_ir::{BinaryOp, BoundSide, DType, Dim, Op, ReductionKind, Scalar, TensorType, ValueId, infer};

use super::bounds::{ConditionSplit, PendingBound};
use super::operands::{self, emit_binary, emit_binary_scalar, emit_dim, emit_row_index, row_and_column_axes};
use crate::rewrite::Rewriter;

/// Emits a bool for each row of scores of this shape, `[.., l, 1]`: whether it sees a column. `None` if the
/// rest of the condition depends on rows.
pub fn emit_row_visibility(cx: &mut Rewriter, split: &ConditionSplit, scores: &[Dim]) -> Option<ValueId> {
    let [row, _] = row_and_column_axes(scores)?;
    let columns = scores.last()?;
    if split.rest.iter().any(|w| w.leaf.varies_along(row)) || columns.bounds(cx.symbols()).0 < 1 {
        return None;
    }
    let end = emit_dim(cx, columns, scores.len())?;
    let mut below = end;
    let mut from: Option<ValueId> = None;
    for limit in &split.bounds {
        let position = emit_bound_position(cx, limit, scores)?;
        match limit.bound.side {
            BoundSide::Below => below = emit_binary(cx, "below", BinaryOp::Min, below, position)?,
            BoundSide::From => {
                from = Some(match from {
                    None => position,
                    Some(other) => emit_binary(cx, "from", BinaryOp::Max, other, position)?,
                });
            }
        }
    }
    let mut below = emit_binary_scalar(cx, BinaryOp::Max, below, 0);
    if let Some(start) = from {
        let within = emit_binary(cx, "from", BinaryOp::Min, start, end)?;
        from = Some(emit_binary_scalar(cx, BinaryOp::Max, within, 0));
    }
    if let Some(rest) = operands::emit_witness_mask(cx, &split.rest, scores) {
        let counts = emit_prefix_counts(cx, rest)?;
        below = emit_gather(cx, counts, below)?;
        if let Some(start) = from {
            from = Some(emit_gather(cx, counts, start)?);
        }
    }
    let (high, low) = match from {
        Some(from) => (below, from),
        None => {
            let ty = TensorType::new(DType::Bool, cx.shape(below).to_vec());
            let op = Op::BinaryScalar { op: BinaryOp::Gt, scalar: Scalar::Int(0), scalar_left: false };
            return Some(cx.emit("sees", op, &[below], ty));
        }
    };
    let shape = infer::broadcast_shapes(&[cx.shape(high), cx.shape(low)]).ok()?;
    Some(cx.emit("sees", Op::Binary(BinaryOp::Gt), &[high, low], TensorType::new(DType::Bool, shape)))
}

/// Emits the column at which a bound lies in each row, as i64 `[.., l, 1]`.
fn emit_bound_position(cx: &mut Rewriter, limit: &PendingBound, scores: &[Dim]) -> Option<ValueId> {
    let bound = &limit.bound;
    let mut position = if bound.row {
        emit_row_index(cx, &bound.add, scores)?
    } else {
        emit_dim(cx, &bound.add, scores.len())?
    };
    if bound.operand {
        let mut x = operands::emit_bound_operand(cx, limit, scores)?;
        if cx.ty(x).dtype != DType::I64 {
            let ty = TensorType::new(DType::I64, cx.shape(x).to_vec());
            x = cx.emit("wide", Op::Cast, &[x], ty);
        }
        position = emit_binary(cx, "position", BinaryOp::Add, position, x)?;
    }
    if let Some(chunk) = bound.chunk {
        let chunk = i64::try_from(chunk).ok()?;
        position = emit_binary_scalar(cx, BinaryOp::FloorDiv, position, chunk);
        position = emit_binary_scalar(cx, BinaryOp::Mul, position, chunk);
        if bound.side == BoundSide::Below {
            position = emit_binary_scalar(cx, BinaryOp::Add, position, chunk);
        }
    }
    Some(position)
}

/// Emits the number of true elements of a bool mask `[.., s]` before each column and before the end, as
/// `[.., s + 1]`.
fn emit_prefix_counts(cx: &mut Rewriter, mask: ValueId) -> Option<ValueId> {
    let mut shape = cx.shape(mask).to_vec();
    let axis = shape.len().checked_sub(1)?;
    let sums = cx.emit("counts", Op::CumSum { axis }, &[mask], TensorType::new(DType::I64, shape.clone()));
    let columns = std::mem::replace(&mut shape[axis], Dim::from(1));
    let none = cx.emit("counts", Op::Full(Scalar::Int(0)), &[], TensorType::new(DType::I64, shape.clone()));
    shape[axis] = columns + Dim::from(1);
    Some(cx.emit("counts", Op::Concat { axis }, &[none, sums], TensorType::new(DType::I64, shape)))
}

/// Emits the elements of `[.., 1, n]` at the positions `[.., l, 1]`.
fn emit_gather(cx: &mut Rewriter, x: ValueId, positions: ValueId) -> Option<ValueId> {
    let positions = emit_transpose(cx, positions)?;
    let from = cx.shape(x).to_vec();
    let position_shape = cx.shape(positions).to_vec();
    let axis = position_shape.len().checked_sub(1)?;
    let outer = infer::broadcast_shapes(&[from.get(..axis)?, position_shape.get(..axis)?]).ok()?;
    let x = cx.expand(x, [&outer[..], &from[axis..=axis]].concat());
    let positions = cx.expand(positions, [&outer[..], &position_shape[axis..=axis]].concat());
    let ty = TensorType::new(DType::I64, cx.shape(positions).to_vec());
    let gathered = cx.emit("counts", Op::GatherElements { axis }, &[x, positions], ty);
    emit_transpose(cx, gathered)
}

/// Swaps the last two axes.
fn emit_transpose(cx: &mut Rewriter, x: ValueId) -> Option<ValueId> {
    let mut ty = cx.ty(x).clone();
    let [row, column] = row_and_column_axes(&ty.shape)?;
    let mut perm: Vec<usize> = (0..ty.shape.len()).collect();
    perm.swap(row, column);
    ty.shape.swap(row, column);
    Some(cx.emit("axes", Op::Permute { perm }, &[x], ty))
}

/// Replaces rows of an attention's result that see no column by the mean of the values `[.., g, s, f]`.
pub fn emit_mean_for_hidden_rows(
    cx: &mut Rewriter,
    y: ValueId,
    sees: ValueId,
    v: ValueId,
) -> Option<ValueId> {
    let ty = cx.ty(y).clone();
    let mut mean = cx.ty(v).clone();
    let axis = mean.shape.len().checked_sub(2)?;
    mean.shape[axis] = Dim::from(1);
    let shape = mean.shape.clone();
    let op = Op::Reduce { op: ReductionKind::Mean, axes: vec![axis], keep: true };
    let mut even = cx.emit("mean", op, &[v], mean);
    // Groups of heads share values.
    if let (Some(group_axis), Some(head_axis)) = (axis.checked_sub(1), ty.shape.len().checked_sub(3)) {
        let groups = shape[group_axis].clone();
        let heads = ty.shape[head_axis].clone();
        if groups != heads && groups.as_const() != Some(1) {
            let times = heads.exact_div(&groups)?;
            let (before, after) = shape.split_at(group_axis + 1);
            let narrow = [before, &[Dim::from(1)], after].concat();
            let wide = [before, &[times], after].concat();
            let merged_shape = [&shape[..group_axis], &[heads], after].concat();
            let each = cx.reshape(even, narrow);
            let each = cx.expand(each, wide);
            even = cx.reshape(each, merged_shape);
        }
    }
    Some(cx.emit("even", Op::Select, &[sees, y, even], ty))
}
