//! Slices, splits, concatenation, repetition, padding.

use symmc_import::{Emit, EmitFormulas, RuleCall, invalid, invalid_if, unsupported_if};
use symmc_ir::{BinaryOp, DType, Dim, Op, ValueId};

use super::{RuleRow, row, row_of_results};
use crate::call::{CallOperand, OpCall};
use crate::lower::{EmitResult, RuleResult};
use crate::shards;

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("aten.slice.Tensor aten.slice_copy", "slice", slice),
    row("aten.narrow", "slice", |c| {
        let x = c.first_tensor()?;
        let axis = c.axis("dim", c.rank(x))?;
        if c.has_data_size()? || c.packed_length(x, axis).is_some() {
            return data_rows(c, x, axis);
        }
        let n = c.extent(x, axis);
        let start = c.dim("start")?;
        let start = c.index_from_start(start, &n);
        let len = c.dim("length")?;
        c.slice(x, axis, start, len, 1)
    }),
    row("aten.select.int aten.select_copy", "slice, reshape", lower_select),
    row_of_results(
        "aten.split aten.split_copy aten.split_with_sizes aten.split_with_sizes_copy aten.chunk \
         aten.unsafe_chunk aten.unsafe_split aten.tensor_split",
        "slice",
        split,
    ),
    row_of_results("aten.unbind aten.unbind_copy", "slice, reshape", unbind),
    row("aten.cat aten.concat aten.concatenate", "concat", concat),
    row("aten.stack", "reshape, concat", stack),
    row("aten.repeat", "reshape, expand, reshape", |c| repeat(c, "repeats")),
    row("aten.tile", "reshape, expand, reshape", |c| repeat(c, "dims")),
    row("aten.repeat_interleave.self_int", "reshape, expand, reshape", repeat_interleave),
    row("symmc.whole_rows", "copy", |c| {
        let x = c.first_tensor()?;
        c.emit_plain("whole", Op::Copy, &[x], None).map(|results| results[0])
    }),
    row("aten.flip", "take", flip),
    row("aten.roll", "slice, concat", roll),
    row("aten.diff", "slice, sub", diff),
    row("aten.select_scatter", "slice, concat", |c| {
        let [x, source] = c.tensors_named(["self", "src"])?;
        let axis = c.axis("dim", c.rank(x))?;
        let n = c.extent(x, axis);
        if let Some(index) = index_by_rank(c, x, axis)? {
            let source = c.cast(source, c.dtype(x))?;
            let source = c.unsqueeze(source, axis)?;
            let op = Op::IndexPut { axis, accumulate: false };
            return c.emit("index_put", op, &[x, source, index]);
        }
        let index = c.dim("index")?;
        let start = c.index_from_start(index, &n);
        let source = c.unsqueeze(source, axis)?;
        replace_slice(c, x, source, axis, start)
    }),
    row("aten.slice_scatter", "slice, concat", slice_scatter),
];

pub(super) fn slice_range(c: &OpCall<'_, '_>, n: &Dim, step: i64) -> RuleResult<(Dim, Dim)> {
    invalid_if!(step < 1, "expected a step of at least 1, found {step}");
    let end = c.opt_dim("end")?.filter(|end| end.as_const() != Some(i64::MAX));
    Ok(c.slice_range(n, c.opt_dim("start")?.unwrap_or(0.into()), end, step))
}

fn slice(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.first_tensor()?;
    let axis = c.axis_or("dim", 0, c.rank(x))?;
    let step = c.int_or("step", 1)?;
    if c.has_data_size()? || c.packed_length(x, axis).is_some() {
        return data_rows(c, x, axis);
    }
    if let Some(y) = slice_by_rank(c, x, axis, step)? {
        return Ok(y);
    }
    let (start, len) = slice_range(c, &c.extent(x, axis), step)?;
    c.slice(x, axis, start, len, step)
}

/// The rows from a start on, of which one or their number depends on data. The declared result has their number.
fn data_rows(c: &mut OpCall<'_, '_>, x: ValueId, axis: usize) -> EmitResult {
    c.ignore(&["end", "length"]);
    let n = c.length(x, axis);
    if c.int_or("step", 1)? != 1 {
        return c.refuse_packed("it takes rows with a step", &n);
    }
    let start = c.opt_size("start")?.unwrap_or(0.into());
    let start = if start.as_const().is_some_and(|start| start < 0) { n + start } else { start };
    match c.declared_sizes(0)?.get(axis).cloned() {
        Some(length) => c.slice_rows(x, axis, &start, &length),
        None => invalid!("expected a result with an axis {axis}, found none"),
    }
}

/// A slice with a start that differs between ranks and the same length on all, as a gather by index.
fn slice_by_rank(c: &mut OpCall<'_, '_>, x: ValueId, axis: usize, step: i64) -> RuleResult<Option<ValueId>> {
    match rows_by_rank(c, x, axis, step)? {
        None => Ok(None),
        Some((SliceRows::Same(start), len)) => c.slice(x, axis, start, len, step).map(Some),
        Some((SliceRows::PerRank { index, positions }, len)) => {
            let count = positions.iter().flatten().max().map(|last| last + 1);
            let pieces = count.map(|count| len * Dim::from(count as i64));
            let x = match pieces.filter(|pieces| *pieces != c.extent(x, axis)) {
                Some(pieces) => c.slice(x, axis, 0.into(), pieces, 1)?,
                None => x,
            };
            c.take_rank_slice(x, axis, index, positions).map(Some)
        }
    }
}

/// The elements of an axis that a slice takes.
enum SliceRows {
    /// The elements from this position on, on all ranks.
    Same(Dim),
    /// The elements at an index that each rank has, with the positions of the ranks if their slices are equal
    /// pieces of the axis ([`shards::shard_positions`]).
    PerRank { index: ValueId, positions: Option<Vec<usize>> },
}

/// The elements and the length of a slice whose start or end differs between ranks. `None` if neither
/// differs.
fn rows_by_rank(
    c: &mut OpCall<'_, '_>,
    x: ValueId,
    axis: usize,
    step: i64,
) -> RuleResult<Option<(SliceRows, Dim)>> {
    if let Some(rows) = symbolic_rows(c, x, axis, step)? {
        return Ok(Some(rows));
    }
    let start = c.ints_by_rank("start");
    let end = c.ints_by_rank("end");
    let Some(ranks) = start.or(end).map(|(_, v)| v.len()) else { return Ok(None) };
    let n = c.extent(x, axis);
    let Some(extent) = n.as_const().filter(|_| step > 0) else {
        return invalid!(
            "a slice that differs between ranks: expected an axis of known extent and a positive step, found {n:?} and {step}"
        );
    };
    let raw = positions_by_rank(c, "start", 0, ranks)?;
    let starts: Vec<i64> = raw.iter().map(|&position| limit_position(position, extent)).collect();
    let ends = positions_by_rank(c, "end", i64::MAX, ranks)?;
    let ends = ends.into_iter().map(|position| limit_position(position, extent));
    let lengths: Vec<u64> = starts
        .iter()
        .zip(ends)
        .map(|(&start, end)| (end - start).max(0).unsigned_abs().div_ceil(step.unsigned_abs()))
        .collect();
    let len = match lengths.as_slice() {
        [len, rest @ ..] if raw == starts && rest.iter().all(|l| l == len) => i64::try_from(*len).ok(),
        _ => None,
    };
    let Some(len) = len else {
        return invalid!(
            "expected slices of the same length that start from 0 to {extent} on all ranks, found starts {raw:?} and \
             lengths {lengths:?}"
        );
    };
    let Some((start, _)) = start else {
        return Ok(Some((SliceRows::Same(starts.first().copied().unwrap_or(0).into()), len.into())));
    };
    let start = c.per_rank_input(start)?;
    let line = c.iota(len.into(), 0, step, DType::I64)?;
    let index = c.binary(BinaryOp::Add, line, start)?;
    let starts: Vec<Dim> = starts.into_iter().map(Dim::from).collect();
    let positions = if step == 1 { shards::shard_positions(&starts, &len.into(), &n) } else { None };
    Ok(Some((SliceRows::PerRank { index, positions }, len.into())))
}

fn positions_by_rank(c: &OpCall<'_, '_>, name: &str, default: i64, ranks: usize) -> RuleResult<Vec<i64>> {
    Ok(match c.ints_by_rank(name) {
        Some((_, positions)) => positions.to_vec(),
        None => vec![c.opt_int(name)?.unwrap_or(default); ranks],
    })
}

fn limit_position(at: i64, extent: i64) -> i64 {
    if at < 0 { at.saturating_add(extent).max(0) } else { at.min(extent) }
}

/// The elements and the length of a slice whose start is a size that differs between ranks, such as a
/// multiple of its length.
fn symbolic_rows(
    c: &mut OpCall<'_, '_>,
    x: ValueId,
    axis: usize,
    step: i64,
) -> RuleResult<Option<(SliceRows, Dim)>> {
    let start = c.dims_by_rank("start")?;
    let end = c.dims_by_rank("end")?;
    let Some(ranks) = start.as_ref().or(end.as_ref()).map(|(_, v)| v.len()) else { return Ok(None) };
    let n = c.extent(x, axis);
    let starts = match &start {
        Some((_, dims)) => dims.clone(),
        None => constant_dims_by_rank(c, "start", 0.into(), ranks)?,
    };
    let ends = match &end {
        Some((_, dims)) => dims.clone(),
        None => constant_dims_by_rank(c, "end", n.clone(), ranks)?,
    };
    let lengths: Vec<Dim> = starts.iter().zip(&ends).map(|(s, e)| e.clone() - s.clone()).collect();
    let is_inside = starts.iter().all(|start| c.dim_bounds(start).0 >= 0)
        && ends.iter().all(|end| c.dim_bounds(&(n.clone() - end.clone())).0 >= 0);
    let len = match lengths.as_slice() {
        [len, rest @ ..] if step == 1 && is_inside && rest.iter().all(|l| l == len) => len.clone(),
        _ => {
            return invalid!(
                "a slice that differs between ranks: expected slices of the same length within {n:?} and a step of 1 on all \
                 ranks, found starts {starts:?}, lengths {lengths:?} and a step of {step}"
            );
        }
    };
    match starts.first() {
        Some(first) if starts.iter().all(|s| s == first) => {
            return Ok(Some((SliceRows::Same(first.clone()), len)));
        }
        _ => {}
    }
    let rank = match start.as_ref().or(end.as_ref()) {
        Some((own, _)) => c.per_rank_input(own)?,
        None => return Ok(None),
    };
    let mut table = Vec::with_capacity(ranks);
    for start in &starts {
        let start = c.emit_dim(start, DType::I64)?;
        table.push(c.reshape(start, vec![1.into()])?);
    }
    let table = c.concat(&table, 0)?;
    let start = c.emit("take", Op::Take { axis: 0 }, &[table, rank])?;
    let line = c.iota(len.clone(), 0, 1, DType::I64)?;
    let index = c.binary(BinaryOp::Add, line, start)?;
    let positions = shards::shard_positions(&starts, &len, &n);
    Ok(Some((SliceRows::PerRank { index, positions }, len)))
}

/// A bound of a slice on each rank that differs between ranks as a number, or not at all.
fn constant_dims_by_rank(c: &OpCall<'_, '_>, name: &str, default: Dim, ranks: usize) -> RuleResult<Vec<Dim>> {
    if let Some((_, ints)) = c.ints_by_rank(name) {
        return Ok(ints.iter().map(|&i| Dim::from(i)).collect());
    }
    let bound = c.opt_dim(name)?.filter(|d| d.as_const() != Some(i64::MAX)).unwrap_or(default);
    Ok(vec![bound; ranks])
}

/// An element of an axis at a position that differs between ranks.
fn select_by_rank(c: &mut OpCall<'_, '_>, x: ValueId, axis: usize) -> RuleResult<Option<ValueId>> {
    let Some(index) = index_by_rank(c, x, axis)? else { return Ok(None) };
    let indices = c.ints_by_rank("index").map_or(&[][..], |(_, indices)| indices);
    let starts: Vec<Dim> = indices.iter().map(|&i| Dim::from(i)).collect();
    let positions = shards::shard_positions(&starts, &1.into(), &c.extent(x, axis));
    let slice = c.take_rank_slice(x, axis, index, positions)?;
    c.drop_axis(slice, axis).map(Some)
}

/// An index that differs between ranks, as a tensor of one element.
fn index_by_rank(c: &mut OpCall<'_, '_>, x: ValueId, axis: usize) -> RuleResult<Option<ValueId>> {
    let Some((index, indices)) = c.ints_by_rank("index") else { return Ok(None) };
    let n = c.extent(x, axis);
    let is_inside = n.as_const().is_some_and(|n| indices.iter().all(|i| (0..n).contains(i)));
    invalid_if!(
        !is_inside,
        "an index that differs between ranks: expected integers from 0 to a known extent, found {indices:?} of {n:?}"
    );
    let index = c.per_rank_input(index)?;
    c.reshape(index, vec![1.into()]).map(Some)
}

fn select_index(c: &mut OpCall<'_, '_>, x: ValueId, axis: usize, index: Dim) -> EmitResult {
    let n = c.extent(x, axis);
    let start = c.index_from_start(index, &n);
    let low = c.dim_bounds(&start).0;
    let high = c.dim_bounds(&(n.clone() - start.clone())).1;
    invalid_if!(
        low < 0 && c.dim_bounds(&start).1 < 0 || high <= 0,
        "expected an index within {n:?}, found {start:?}"
    );
    let slice = c.slice(x, axis, start, 1.into(), 1)?;
    c.drop_axis(slice, axis)
}

fn lower_select(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.first_tensor()?;
    let axis = c.axis("dim", c.rank(x))?;
    if let Some(y) = select_by_rank(c, x, axis)? {
        return Ok(y);
    }
    let index = c.dim("index")?;
    select_index(c, x, axis, index)
}

/// Splits into slices of the declared lengths, which must add up to the axis.
fn split(c: &mut OpCall<'_, '_>) -> RuleResult {
    c.ignore(&["split_size", "split_sizes", "chunks", "sections", "indices", "tensor_indices_or_sections"]);
    let x = c.first_tensor()?;
    let axis = c.axis_or("dim", 0, c.rank(x))?;
    if c.has_data_size()? || c.packed_length(x, axis).is_some() {
        return split_by_data(c, x, axis);
    }
    let mut lengths = Vec::with_capacity(c.result_count());
    for i in 0..c.result_count() {
        lengths.push(c.declared_result_type(i)?.shape.get(axis).cloned().unwrap_or(1.into()));
    }
    let pieces = c.split_by_lengths(x, axis, lengths)?;
    c.set_results(pieces)
}

/// Splits into rows of the declared numbers, some of which depend on data.
fn split_by_data(c: &mut OpCall<'_, '_>, x: ValueId, axis: usize) -> RuleResult {
    let mut start = Dim::from(0);
    for i in 0..c.result_count() {
        let length = c.declared_sizes(i)?.get(axis).cloned().unwrap_or(1.into());
        let piece = c.slice_rows(x, axis, &start, &length)?;
        start = start + length;
        c.set_result(i, piece);
    }
    Ok(())
}

fn unbind(c: &mut OpCall<'_, '_>) -> RuleResult {
    let x = c.first_tensor()?;
    let axis = c.axis_or("dim", 0, c.rank(x))?;
    let n = c.extent(x, axis);
    let count = c.result_count();
    invalid_if!(n.as_const() != Some(count as i64), "expected {n:?} results, found {count}");
    for i in 0..count {
        let y = select_index(c, x, axis, Dim::from(i as i64))?;
        c.set_result(i, y);
    }
    Ok(())
}

fn promote_tensors(c: &mut OpCall<'_, '_>, parts: Vec<ValueId>) -> RuleResult<Vec<ValueId>> {
    let operands: Vec<CallOperand> = parts.iter().map(|&p| CallOperand::Tensor(p)).collect();
    let dtype = c.common_dtype(&operands.iter().collect::<Vec<_>>());
    parts.into_iter().map(|p| c.cast(p, dtype)).collect()
}

fn concat(c: &mut OpCall<'_, '_>) -> EmitResult {
    let tensors = c.tensors("tensors")?;
    let tensors = promote_tensors(c, tensors)?;
    // PyTorch accepts empty tensors of one axis next to any shape.
    let not_empty: Vec<ValueId> = tensors
        .iter()
        .copied()
        .filter(|&p| c.rank(p) != 1 || c.ty(p).shape[0].as_const() != Some(0))
        .collect();
    let tensors = if not_empty.is_empty() { tensors } else { not_empty };
    let Some(&first) = tensors.first() else { return invalid!("expected at least one tensor, found none") };
    let axis = c.axis_or("dim", 0, c.rank(first))?;
    c.concat(&tensors, axis)
}

fn stack(c: &mut OpCall<'_, '_>) -> EmitResult {
    let tensors = c.tensors("tensors")?;
    let tensors = promote_tensors(c, tensors)?;
    let Some(&first) = tensors.first() else { return invalid!("expected at least one tensor, found none") };
    let axis = c.axis_or("dim", 0, c.rank(first) + 1)?;
    let tensors = tensors.into_iter().map(|p| c.unsqueeze(p, axis)).collect::<RuleResult<Vec<_>>>()?;
    c.concat(&tensors, axis)
}

fn repeat(c: &mut OpCall<'_, '_>, name: &str) -> EmitResult {
    let x = c.first_tensor()?;
    let mut repeats = c.dims(name)?;
    while repeats.len() < c.rank(x) && name == "dims" {
        repeats.insert(0, 1.into());
    }
    c.repeat(x, &repeats)
}

fn repeat_interleave(c: &mut OpCall<'_, '_>) -> EmitResult {
    // The output size follows from the other arguments.
    c.ignore(&["output_size"]);
    let x = c.first_tensor()?;
    let n = c.dim("repeats")?;
    let x = match c.opt_int("dim")? {
        Some(_) => x,
        None => c.reshape(x, vec![c.ty(x).numel()])?,
    };
    let axis = c.axis_or("dim", 0, c.rank(x))?;
    unsupported_if!(c.rank(x) == 0, "the operand has no axis");
    c.repeat_elements(x, axis, &n)
}

fn flip(c: &mut OpCall<'_, '_>) -> EmitResult {
    let mut y = c.first_tensor()?;
    for axis in c.opt_ints("dims")?.unwrap_or_default() {
        let axis = c.resolve_axis(axis, c.rank(y))?;
        if c.rank(y) > 0 {
            y = c.reverse_axis(y, axis)?;
        }
    }
    Ok(y)
}

fn roll(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.first_tensor()?;
    let shifts = c.opt_ints("shifts")?.unwrap_or_default();
    let axes = c.opt_ints("dims")?.unwrap_or_default();
    let shape = c.shape(x);
    let mut y = if axes.is_empty() { c.reshape(x, vec![c.ty(x).numel()])? } else { x };
    let axes = if axes.is_empty() { vec![0] } else { axes };
    for (shift, axis) in shifts.into_iter().zip(axes) {
        let axis = c.resolve_axis(axis, c.rank(y))?;
        let n = c.extent(y, axis);
        let shift = match n.as_const() {
            Some(n) => Dim::from(shift.checked_rem_euclid(n).unwrap_or(0)),
            None => Dim::from(shift).modulo(&n),
        };
        let head_length = n - shift.clone();
        let tail = c.slice(y, axis, head_length.clone(), shift.clone(), 1)?;
        if shift.as_const() != Some(0) {
            let head = c.slice(y, axis, 0.into(), head_length, 1)?;
            y = c.concat(&[tail, head], axis)?;
        }
    }
    c.reshape(y, shape)
}

fn diff(c: &mut OpCall<'_, '_>) -> EmitResult {
    let mut x = c.first_tensor()?;
    let axis = c.axis_or("dim", -1, c.rank(x))?;
    let times = c.int_or("n", 1)?;
    let tensors = [c.opt_tensor("prepend")?, Some(x), c.opt_tensor("append")?];
    if times == 0 {
        return Ok(x);
    }
    let tensors: Vec<ValueId> = tensors.into_iter().flatten().collect();
    if tensors.len() > 1 {
        let tensors = promote_tensors(c, tensors)?;
        x = c.concat(&tensors, axis)?;
    }
    for _ in 0..times.clamp(0, 64) {
        let len = c.extent(x, axis) - Dim::from(1);
        x = c.formula([x], |[x]| {
            let op = if x.dtype() == DType::Bool { BinaryOp::Xor } else { BinaryOp::Sub };
            x.slice(axis, 1, len.clone()).binary(op, x.slice(axis, 0, len))
        })?;
    }
    Ok(x)
}

/// `x` with the elements of an axis from `start` on replaced by `source`.
pub(crate) fn replace_slice(
    c: &mut OpCall<'_, '_>,
    x: ValueId,
    source: ValueId,
    axis: usize,
    start: Dim,
) -> EmitResult {
    let source = c.cast(source, c.dtype(x))?;
    let len = c.extent(source, axis);
    let n = c.extent(x, axis);
    let end = start.clone() + len;
    let mut pieces = Vec::with_capacity(3);
    if start.as_const() != Some(0) {
        pieces.push(c.slice(x, axis, 0.into(), start, 1)?);
    }
    pieces.push(source);
    let tail_length = n - end.clone();
    if tail_length.as_const() != Some(0) {
        pieces.push(c.slice(x, axis, end, tail_length, 1)?);
    }
    c.concat(&pieces, axis)
}

fn slice_scatter(c: &mut OpCall<'_, '_>) -> EmitResult {
    let [x, source] = c.tensors_named(["self", "src"])?;
    let axis = c.axis_or("dim", 0, c.rank(x))?;
    let step = c.int_or("step", 1)?;
    write_slice(c, x, source, axis, step)
}

/// `x` with `source` in place of the slice that the arguments describe.
pub(super) fn write_slice(
    c: &mut OpCall<'_, '_>,
    x: ValueId,
    source: ValueId,
    axis: usize,
    step: i64,
) -> EmitResult {
    let (rows, len) = match rows_by_rank(c, x, axis, step)? {
        Some(found) => found,
        None => {
            let (start, len) = slice_range(c, &c.extent(x, axis), step)?;
            (SliceRows::Same(start), len)
        }
    };
    let mut shape = c.shape(x);
    if let Some(d) = shape.get_mut(axis) {
        *d = len.clone();
    }
    let source = c.cast(source, c.dtype(x))?;
    let source = c.expand(source, shape)?;
    let index = match rows {
        SliceRows::Same(start) if step == 1 => return replace_slice(c, x, source, axis, start),
        SliceRows::Same(start) => c.emit_positions(&start, step, len)?,
        SliceRows::PerRank { index, .. } => index,
    };
    c.emit("index_put", Op::IndexPut { axis, accumulate: false }, &[x, source, index])
}
