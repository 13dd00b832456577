//! Results with a number of rows that data determines: positions of elements that are not zero, masks as
//! indices, repetition, and distinct elements. [`crate::packed`] describes values with such rows.
//!
//! The operands bound the number of rows, except for repetition, where the program has to state a bound.

use symmc_import::emit::extent_product;
use symmc_import::{Emit, RuleCall, counting, invalid_if, unsupported, unsupported_if};
use symmc_ir::{BinaryOp, DType, Dim, Op, ReductionKind, Scalar, ValueDef, ValueId};

use super::{RuleRow, row, row_of_results};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleResult};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("aten.nonzero aten.argwhere", "cumsum, index_put, floor_div", |c| {
        let x = c.first_tensor()?;
        let sizes = c.declared_sizes(0)?;
        invalid_if!(sizes.len() != 2, "expected a result with 2 axes, found {}", sizes.len());
        let axes = coordinates(c, x, &sizes[0])?;
        if axes.is_empty() {
            return no_coordinates(c, x, &sizes[0]);
        }
        let columns = axes.into_iter().map(|axis| c.unsqueeze(axis, 1)).collect::<RuleResult<Vec<_>>>()?;
        c.concat(&columns, 1)
    }),
    row_of_results("aten.nonzero_numpy aten.where.default", "cumsum, index_put, floor_div", |c| {
        let x = c.first_tensor()?;
        let x = if c.rank(x) == 0 { c.reshape(x, vec![1.into()])? } else { x };
        let sizes = c.declared_sizes(0)?;
        let length = sizes.first().cloned().unwrap_or(1.into());
        let axes = coordinates(c, x, &length)?;
        c.set_results(axes)
    }),
    row("aten.nonzero_static", "cumsum, index_put, floor_div, select", nonzero_static),
    row("aten.masked_select", "cumsum, index_put, take", |c| {
        let [x, mask] = c.tensors_named(["self", "mask"])?;
        let sizes = c.declared_sizes(0)?;
        let length = sizes.first().cloned().unwrap_or(1.into());
        let mask = c.cast(mask, DType::Bool)?;
        let shapes = [c.shape(x), c.shape(mask)];
        let shapes: Vec<&[Dim]> = shapes.iter().map(Vec::as_slice).collect();
        let shape = symmc_ir::infer::broadcast_shapes(&shapes).map_err(crate::lower::RuleFailure::Invalid)?;
        let x = c.expand(x, shape.clone())?;
        let mask = c.expand(mask, shape.clone())?;
        let x = c.reshape(x, vec![extent_product(&shape)])?;
        let positions = true_positions(c, mask, &length)?;
        c.emit("take", Op::Take { axis: 0 }, &[x, positions])
    }),
    row("aten.repeat_interleave.Tensor", "cumsum, le, sum", |c| {
        let counts = c.tensor("repeats")?;
        let dtype = c.dtype(counts);
        let sizes = c.declared_sizes(0)?;
        let length = sizes.first().cloned().unwrap_or(1.into());
        let positions = repeated_positions(c, counts, &length)?;
        c.cast(positions, dtype)
    }),
    row("aten.repeat_interleave.self_Tensor", "cumsum, le, sum, take", |c| {
        let [x, counts] = c.tensors_named(["self", "repeats"])?;
        let (x, axis) = match c.opt_int("dim")? {
            Some(axis) => (x, c.resolve_axis(axis, c.rank(x))?),
            None => (c.reshape(x, vec![c.ty(x).numel()])?, 0),
        };
        unsupported_if!(c.rank(x) == 0, "the operand has no axis");
        let counts = if c.rank(counts) == 0 { c.reshape(counts, vec![1.into()])? } else { counts };
        let is_one_for_all = c.extent(counts, 0).as_const() == Some(1);
        let counts = if is_one_for_all { c.expand(counts, vec![c.extent(x, axis)])? } else { counts };
        let sizes = c.declared_sizes(0)?;
        let length = sizes.get(axis).cloned().unwrap_or(1.into());
        let positions = repeated_positions(c, counts, &length)?;
        c.emit("take", Op::Take { axis }, &[x, positions])
    }),
    row_of_results("aten._unique2 aten._unique", "sort, cumsum, index_put", |c| {
        // Sorted elements are one of the orders that PyTorch may give.
        c.ignore(&["sorted"]);
        let x = c.first_tensor()?;
        let x = c.reshape(x, vec![c.ty(x).numel()])?;
        let results = c.emit_all("sort", Op::Sort { axis: 0, descending: false }, &[x])?;
        distinct(c, results[0], Some(results[1]))
    }),
    row_of_results("aten.unique_consecutive", "cumsum, index_put", |c| {
        let x = c.first_tensor()?;
        if let Some(axis) = c.opt_int("dim")? {
            let is_only_axis = c.rank(x) == 1 && c.resolve_axis(axis, 1)? == 0;
            unsupported_if!(!is_only_axis, "equal slices of an axis are not supported");
        }
        let x = c.reshape(x, vec![c.ty(x).numel()])?;
        distinct(c, x, None)
    }),
];

/// The positions of the true elements of a mask in row-major order. `length` is their declared number.
pub(super) fn true_positions(c: &mut OpCall<'_, '_>, mask: ValueId, length: &Dim) -> EmitResult {
    let mask = c.reshape(mask, vec![c.ty(mask).numel()])?;
    let mask = c.without_rest(mask, Scalar::Bool(false))?;
    let n = c.extent(mask, 0);
    let [count, flags] = counting::count_true(c, mask)?;
    let zero = c.bind_length(length, count, &n)?;
    let capacity = c.capacity(length)?;
    let found = counting::first_positions(c, mask, flags, &capacity)?;
    let found = c.add_check(found, zero)?;
    c.set_packed(found, 0, length);
    Ok(found)
}

/// The coordinates of the elements that are not zero, in row-major order, for each axis.
pub(super) fn coordinates(c: &mut OpCall<'_, '_>, x: ValueId, length: &Dim) -> RuleResult<Vec<ValueId>> {
    let shape = c.shape(x);
    if shape.is_empty() {
        return Ok(Vec::new());
    }
    let mask = c.cast(x, DType::Bool)?;
    let positions = true_positions(c, mask, length)?;
    counting::coordinates(c, positions, &shape)
}

/// The coordinates of the first elements that are not zero. Rows after the last have the fill value.
fn nonzero_static(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.first_tensor()?;
    let size = c.dim("size")?;
    let fill = c.int_or("fill_value", -1)?;
    let shape = c.shape(x);
    let mask = c.cast(x, DType::Bool)?;
    let mask = c.reshape(mask, vec![c.ty(mask).numel()])?;
    let mask = c.without_rest(mask, Scalar::Bool(false))?;
    let [count, flags] = counting::count_true(c, mask)?;
    let positions = counting::first_positions(c, mask, flags, &size)?;
    let rows = c.iota(size.clone(), 0, 1, DType::I64)?;
    let is_row = c.binary(BinaryOp::Lt, rows, count)?;
    let fill = c.full(Scalar::Int(fill), DType::I64, vec![])?;
    let mut columns = Vec::with_capacity(shape.len());
    for axis in counting::coordinates(c, positions, &shape)? {
        let axis = c.select(is_row, axis, fill)?;
        columns.push(c.unsqueeze(axis, 1)?);
    }
    match columns.is_empty() {
        true => c.full(Scalar::Int(0), DType::I64, vec![size, 0.into()]),
        false => c.concat(&columns, 1),
    }
}

/// A matrix without columns: the coordinates of a tensor without axes.
fn no_coordinates(c: &mut OpCall<'_, '_>, x: ValueId, length: &Dim) -> EmitResult {
    let mask = c.cast(x, DType::Bool)?;
    let positions = true_positions(c, mask, length)?;
    let rows = c.extent(positions, 0);
    let empty = c.full(Scalar::Int(0), DType::I64, vec![rows, 0.into()])?;
    c.set_packed(empty, 0, length);
    Ok(empty)
}

/// Each position as often as its count says. The number of results may depend on data.
fn repeated_positions(c: &mut OpCall<'_, '_>, counts: ValueId, length: &Dim) -> EmitResult {
    let is_stated = c.get("output_size").is_some();
    check_constant_counts(c, counts, length)?;
    let counts = c.cast(counts, DType::I64)?;
    let counts = c.without_rest(counts, Scalar::Int(0))?;
    let n = c.extent(counts, 0);
    let sums = c.emit("cumsum", Op::CumSum { axis: 0 }, &[counts])?;
    let mut zero = None;
    if !is_stated || !c.is_data_size(length) {
        let total = c.reduce(ReductionKind::Sum, counts, vec![0], false)?;
        // A number of rows that no result has, if a count is negative.
        let negative = c.binary_scalar(BinaryOp::Lt, counts, Scalar::Int(0))?;
        let negative = c.reduce(ReductionKind::Any, negative, vec![0], false)?;
        let none = c.full(Scalar::Int(i64::MAX), DType::I64, vec![])?;
        let total = c.select(negative, none, total)?;
        zero = c.bind_length(length, total, &i64::MAX.into())?;
    }
    let capacity = c.capacity(length)?;
    let positions = c.iota(capacity, 0, 1, DType::I64)?;
    let positions = c.unsqueeze(positions, 1)?;
    let ends = c.unsqueeze(sums, 0)?;
    let passed = c.binary(BinaryOp::Le, ends, positions)?;
    let passed = c.cast(passed, DType::I64)?;
    let y = c.reduce(ReductionKind::Sum, passed, vec![1], false)?;
    // Rows after the last are unspecified, but indices all the same.
    let y = c.binary_dim(BinaryOp::Min, y, &(n - Dim::from(1)))?;
    let y = c.add_check(y, zero)?;
    c.set_packed(y, 0, length);
    Ok(y)
}

/// Fails if the counts are constants that do not add up to the number of results.
fn check_constant_counts(c: &OpCall<'_, '_>, counts: ValueId, length: &Dim) -> RuleResult {
    let graph = c.lowering.builder.graph();
    let mut source = counts;
    while let Some((Op::Cast | Op::Copy, &[x])) = graph.definition(source) {
        source = x;
    }
    let ValueDef::Input(input) = graph.values[source].def else { return Ok(()) };
    let (Some(data), Some(declared)) = (&graph.inputs[input].data, length.as_const()) else { return Ok(()) };
    let total: f64 = data.to_f64().iter().sum();
    invalid_if!(
        total != declared as f64,
        "expected {total} as `output_size`, the sum of the counts, found {declared}"
    );
    Ok(())
}

/// The first of each run of equal elements of a row, the run of each element, and the lengths of the runs.
/// `order` are the positions at which the elements of the row are in the operand.
fn distinct(c: &mut OpCall<'_, '_>, row: ValueId, order: Option<ValueId>) -> RuleResult {
    let sizes = c.declared_sizes(0)?;
    let Some(length) = sizes.first().cloned() else { return unsupported!("the results have no axis") };
    let n = c.extent(row, 0);
    let all = c.iota(n.clone(), 0, 1, DType::I64)?;
    let before = c.binary_scalar(BinaryOp::Sub, all, Scalar::Int(1))?;
    let before = c.binary_scalar(BinaryOp::Max, before, Scalar::Int(0))?;
    let previous = c.emit("take", Op::Take { axis: 0 }, &[row, before])?;
    let differs = c.binary(BinaryOp::Ne, row, previous)?;
    let is_first = c.binary_scalar(BinaryOp::Eq, all, Scalar::Int(0))?;
    let starts_run = c.binary(BinaryOp::Or, differs, is_first)?;
    let starts = true_positions(c, starts_run, &length)?;
    let values = c.emit("take", Op::Take { axis: 0 }, &[row, starts])?;
    c.set_result(0, values);
    let returns_inverse = c.bool_or("return_inverse", false)?;
    let returns_counts = c.bool_or("return_counts", false)?;
    if !returns_inverse && !returns_counts {
        return Ok(());
    }
    let flags = c.cast(starts_run, DType::I64)?;
    let sums = c.emit("cumsum", Op::CumSum { axis: 0 }, &[flags])?;
    let run = c.binary_scalar(BinaryOp::Sub, sums, Scalar::Int(1))?;
    if returns_inverse {
        let mut inverse = run;
        if let Some(order) = order {
            let zeros = c.full(Scalar::Int(0), DType::I64, vec![n])?;
            let op = Op::IndexPut { axis: 0, accumulate: false };
            inverse = c.emit("index_put", op, &[zeros, run, order])?;
            if let Some(rows) = c.packed_length(row, 0) {
                c.set_packed(inverse, 0, &rows);
            }
        }
        let shape = c.shape(c.first_tensor()?);
        let inverse = c.reshape(inverse, shape)?;
        c.set_result(1, inverse);
    }
    if returns_counts {
        let counts = run_lengths(c, run, &length)?;
        c.set_result(2, counts);
    }
    Ok(())
}

/// The number of elements of each run.
fn run_lengths(c: &mut OpCall<'_, '_>, run: ValueId, length: &Dim) -> EmitResult {
    let capacity = c.capacity(length)?;
    let n = c.extent(run, 0);
    let mut run = c.without_rest(run, Scalar::Int(i64::MAX))?;
    // Elements of no run are counted after the last one.
    run = c.binary_dim(BinaryOp::Min, run, &capacity)?;
    let zeros = c.full(Scalar::Int(0), DType::I64, vec![capacity.clone() + Dim::from(1)])?;
    let ones = c.full(Scalar::Int(1), DType::I64, vec![n])?;
    let op = Op::IndexPut { axis: 0, accumulate: true };
    let counts = c.emit("index_put", op, &[zeros, ones, run])?;
    let counts = c.slice(counts, 0, 0.into(), capacity, 1)?;
    c.set_packed(counts, 0, length);
    Ok(counts)
}
