//! Views by strides and their inverses: diagonals, windows along an axis, and elements at any strides.
//!
//! If extents are known, or windows are adjacent, the results are views in the graph as well. Otherwise they
//! are read by index. The graph then does not show that PyTorch has them in the memory of the operand, which
//! [`aliasing::note_alias`] records.

use symmc_import::{Emit, EmitFormulas, invalid, invalid_if, unsupported, unsupported_if};
use symmc_ir::{BinaryOp, DType, Dim, Op, Scalar, TensorType, ValueId};

use super::{RuleRow, row};
use crate::aliasing;
use crate::call::OpCall;
use crate::lower::EmitResult;

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("aten.diagonal aten.diagonal_copy", "permute, reshape, slice; index where extents vary", diagonal),
    row("aten.diag_embed aten.diag_embed_copy", "pad, select, permute", diag_embed),
    row("aten.unfold aten.unfold_copy", "slice, reshape, permute; take where windows overlap", unfold),
    row("aten.as_strided aten.as_strided_copy", "slice, reshape, permute, expand; take", as_strided),
];

fn diagonal(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.first_tensor()?;
    let rank = c.rank(x);
    let offset = c.int_or("offset", 0)?;
    let first = c.axis_or("dim1", 0, rank)?;
    let second = c.axis_or("dim2", 1, rank)?;
    invalid_if!(first == second, "expected two distinct axes, found {first} and {second}");
    let n = c.extent(x, first);
    let m = c.extent(x, second);
    let other_axes = (0..rank).filter(|&a| a != first && a != second);
    let perm: Vec<usize> = other_axes.chain([first, second]).collect();
    let x = c.permute(x, perm)?;
    let row = offset.min(0).saturating_neg();
    let column = offset.max(0);
    if let (Some(n), Some(m)) = (n.as_const(), m.as_const()) {
        let len = n.saturating_sub(row).min(m.saturating_sub(column)).max(0);
        let start = if len == 0 { 0 } else { row * m + column };
        let mut flat = c.shape(x);
        flat.truncate(rank - 2);
        flat.push(Dim::from(n) * Dim::from(m));
        let y = c.reshape(x, flat)?;
        return c.slice(y, rank - 2, start.into(), len.into(), m.saturating_add(1));
    }
    let len = (n - Dim::from(row)).min_with(&(m - Dim::from(column)));
    let len = if c.dim_bounds(&len).0 < 0 { len.max_with(&0.into()) } else { len };
    let rows = c.emit_positions(&row.into(), 1, len.clone())?;
    let columns = c.emit_positions(&column.into(), 1, len)?;
    let y = c.emit("index", Op::Index { axis: rank - 2 }, &[x, rows, columns])?;
    aliasing::note_alias(c, y, x);
    Ok(y)
}

/// Matrices whose diagonal is the last axis of `x`, on two new axes.
fn diag_embed(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.first_tensor()?;
    let rank = c.rank(x) + 1;
    let offset = c.int_or("offset", 0)?;
    let first = c.axis_within(c.int_or("dim1", -2)?, rank)?;
    let second = c.axis_within(c.int_or("dim2", -1)?, rank)?;
    invalid_if!(first == second, "expected two distinct axes, found {first} and {second}");
    let mut shape = c.shape(x);
    let Some(n) = shape.pop() else {
        return invalid!("expected a tensor with an axis, found none");
    };
    let size = n + Dim::from(offset.saturating_abs());
    // The elements by rows: the first ones lie below, if the diagonal does.
    let mut low = vec![Dim::from(0); rank - 1];
    low[rank - 2] = offset.min(0).saturating_neg().into();
    let rows = [shape.as_slice(), std::slice::from_ref(&size)].concat();
    let ty = TensorType::new(c.dtype(x), rows);
    let value = Scalar::Int(0).convert_to(ty.dtype);
    let rows = if offset == 0 { x } else { c.emit_as("pad", Op::Pad { low, value }, &[x], ty)? };
    let rows = c.unsqueeze(rows, rank - 1)?;
    let is_diagonal = c.compare_positions((size.clone(), size), BinaryOp::Eq, &offset.into())?;
    let y = c.formula([is_diagonal, rows], |[is_diagonal, rows]| is_diagonal.select(rows, 0))?;
    let mut others = 0..rank - 2;
    let mut perm = Vec::with_capacity(rank);
    for axis in 0..rank {
        perm.push(if axis == first {
            rank - 2
        } else if axis == second {
            rank - 1
        } else {
            others.next().unwrap_or(0)
        });
    }
    c.permute(y, perm)
}

/// `result[.., i, .., j]` is `x[.., i * step + j, ..]`.
fn unfold(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.first_tensor()?;
    let rank = c.rank(x);
    unsupported_if!(rank == 0, "the operand has no axis");
    let axis = c.axis("dimension", rank)?;
    let size = c.int("size")?;
    let step = c.int("step")?;
    let n = c.extent(x, axis);
    let beyond = n.clone() - Dim::from(size);
    invalid_if!(
        size < 0 || step < 1 || c.dim_bounds(&beyond).1 < 0,
        "expected windows of 0 to {n:?} elements that are at least 1 apart, found {size} and {step}"
    );
    unsupported_if!(
        c.dim_bounds(&beyond).0 < 0,
        "{n:?} elements of an axis may be fewer than the {size} of a window"
    );
    let count = beyond.floor_div(&step.into()) + Dim::from(1);
    let y = if size == step {
        let covered = c.slice(x, axis, 0.into(), count.clone() * Dim::from(size), 1)?;
        let mut shape = c.shape(x);
        shape.splice(axis..=axis, [count, size.into()]);
        c.reshape(covered, shape)?
    } else {
        let from = c.iota(count, 0, step, DType::I64)?;
        let y = c.formula([x, from], |[x, from]| {
            let from = from.unsqueeze(1);
            x.take(axis, from + from.map(|c, _| c.iota(size.into(), 0, 1, DType::I64)))
        })?;
        aliasing::note_alias(c, y, x);
        y
    };
    let perm = (0..=rank).filter(|&a| a != axis + 1).chain([axis + 1]).collect();
    c.permute(y, perm)
}

struct AsStridedAxis {
    /// The axis of the result.
    at: usize,
    size: Dim,
    stride: Dim,
}

fn as_strided(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.first_tensor()?;
    let shape = c.dims("size")?;
    let strides = c.dims("stride")?;
    invalid_if!(
        shape.len() != strides.len(),
        "expected a stride for each extent, found {sizes} and {strides}",
        sizes = shape.len(),
        strides = strides.len()
    );
    let Some(begin) = aliasing::storage_begin(c) else {
        return unsupported!("the storage offset of the operand is not known");
    };
    let offset = c.opt_dim("storage_offset")?.unwrap_or(begin.clone()) - begin;
    let x = flatten_in_memory_order(c, x)?;
    let sizes = shape.iter().zip(&strides).enumerate();
    let stepping =
        sizes.filter(|(_, (size, stride))| size.as_const() != Some(1) && stride.as_const() != Some(0));
    let axes: Vec<AsStridedAxis> = stepping
        .map(|(at, (size, stride))| AsStridedAxis { at, size: size.clone(), stride: stride.clone() })
        .collect();
    if shape.iter().any(|d| d.as_const() == Some(0)) {
        let y = c.slice(x, 0, 0.into(), 0.into(), 1)?;
        return c.reshape(y, shape);
    }
    let steps = axes.iter().map(|a| (a.size.clone() - Dim::from(1)) * a.stride.clone());
    let last_element = steps.fold(offset.clone(), |a, b| a + b);
    let low = axes.iter().map(|a| c.dim_bounds(&a.stride).0).chain([c.dim_bounds(&offset).0]).min();
    unsupported_if!(
        low.is_none_or(|low| low < 0) || c.dim_bounds(&(c.extent(x, 0) - last_element)).0 < 1,
        "the view may reach beyond the operand"
    );
    let y = take_strided(c, x, &offset, &axes)?;
    let mut narrow = vec![Dim::from(1); shape.len()];
    for axis in &axes {
        if let Some(extent) = narrow.get_mut(axis.at) {
            *extent = axis.size.clone();
        }
    }
    let y = c.reshape(y, narrow)?;
    c.expand(y, shape)
}

/// The elements of the operand in memory order, along one axis.
fn flatten_in_memory_order(c: &mut OpCall<'_, '_>, x: ValueId) -> EmitResult {
    let Some(order) = aliasing::memory_order(c) else {
        return unsupported!("the operand is not contiguous in memory, or its strides are not known");
    };
    let y = c.permute(x, order)?;
    c.reshape(y, vec![c.ty(y).numel()])
}

/// The elements at these steps from `offset` on, with one axis for each step.
fn take_strided(c: &mut OpCall<'_, '_>, x: ValueId, offset: &Dim, axes: &[AsStridedAxis]) -> EmitResult {
    let mut order: Vec<usize> = (0..axes.len()).collect();
    order.sort_by_key(|&a| {
        std::cmp::Reverse(axes.get(a).and_then(|a| a.stride.as_const()).unwrap_or(i64::MAX))
    });
    let dense: Vec<Dim> = order.iter().filter_map(|&a| Some(axes.get(a)?.size.clone())).collect();
    let strides: Vec<Dim> = order.iter().filter_map(|&a| Some(axes.get(a)?.stride.clone())).collect();
    if aliasing::is_row_major(&dense, &strides) == Some(true) {
        let numel = dense.iter().cloned().fold(Dim::from(1), |a, b| a * b);
        let piece = c.slice(x, 0, offset.clone(), numel, 1)?;
        let y = c.reshape(piece, dense)?;
        let mut back = vec![0; order.len()];
        for (to, &from) in order.iter().enumerate() {
            back[from] = to;
        }
        return c.permute(y, back);
    }
    let mut index = c.emit_dim(offset, DType::I64)?;
    for (i, axis) in axes.iter().enumerate() {
        let line = match axis.stride.as_const() {
            Some(stride) => c.iota(axis.size.clone(), 0, stride, DType::I64)?,
            None => {
                let line = c.iota(axis.size.clone(), 0, 1, DType::I64)?;
                let stride = c.emit_dim(&axis.stride, DType::I64)?;
                c.binary(BinaryOp::Mul, line, stride)?
            }
        };
        let mut shape = vec![Dim::from(1); axes.len() - i];
        shape[0] = axis.size.clone();
        let line = c.reshape(line, shape)?;
        index = c.binary(BinaryOp::Add, index, line)?;
    }
    let y = c.emit("take", Op::Take { axis: 0 }, &[x, index])?;
    aliasing::note_alias(c, y, x);
    Ok(y)
}
