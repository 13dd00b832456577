//! Results with a number of elements that data determines ([`crate::counted`]).

use std::sync::Arc;

use symmc_import::{Emit, RuleCall, counting, invalid_if, unsupported_if};
use symmc_ir::{BinaryOp, DType, Dim, Op, Scalar, Tensor, ValueId};

use super::{RuleRow, row_of_results};
use crate::call::OpCall;
use crate::known_values::KnownValue;
use crate::lower::{CountedAxis, EmitResult, RuleResult};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row_of_results("NonZero", 13, "cumsum, index_put, floor_div", non_zero),
    row_of_results("Unique", 28, "sort, cumsum, index_put", unique),
];

fn non_zero(c: &mut OpCall<'_, '_>) -> RuleResult {
    if let Some(data) = c.constant_data(0)? {
        c.set_known(0, KnownValue::Data(Arc::new(constant_positions(&data)?)));
        return Ok(());
    }
    unsupported_if!(c.lowering.scratch, "the number of elements of the result depends on data");
    let x = c.tensor(0)?;
    let shape = c.shape(x);
    unsupported_if!(shape.is_empty(), "an operand without axes is not supported");
    let mask = c.cast(x, DType::Bool)?;
    let mask = c.reshape(mask, vec![c.ty(x).numel()])?;
    let mask = c.without_uncounted(mask, Scalar::Bool(false))?;
    let (positions, counted) = true_positions(c, mask)?;
    let rows = counting::coordinates(c, positions, &shape)?;
    let rows = rows.into_iter().map(|row| c.unsqueeze(row, 0)).collect::<RuleResult<Vec<_>>>()?;
    let y = c.concat(&rows, 0)?;
    c.set_counted(y, CountedAxis { axis: 1, ..counted });
    c.set_only_result(y)
}

/// The positions of the true elements of a row.
pub(super) fn true_positions(c: &mut OpCall<'_, '_>, mask: ValueId) -> RuleResult<(ValueId, CountedAxis)> {
    let capacity = c.extent(mask, 0);
    let [count, flags] = counting::count_true(c, mask)?;
    let positions = counting::first_positions(c, mask, flags, &capacity)?;
    Ok((positions, CountedAxis { axis: 0, count }))
}

fn constant_positions(data: &Tensor) -> RuleResult<Tensor> {
    let shape = data.shape();
    let found: Vec<usize> = (0..data.numel()).filter(|&i| data.get_f64(i) != 0.0).collect();
    unsupported_if!(shape.is_empty(), "an operand without axes is not supported");
    let mut elements = Vec::with_capacity(shape.len() * found.len());
    for axis in 0..shape.len() {
        let stride: usize = shape[axis + 1..].iter().product();
        let coordinate = |&position: &usize| (position / stride.max(1) % shape[axis].max(1)) as i64;
        elements.extend(found.iter().map(coordinate));
    }
    let tensor = Tensor::from_i64(DType::I64, vec![shape.len(), found.len()], &elements);
    tensor.ok_or_else(|| crate::lower::RuleFailure::Invalid("the positions have no type".into()))
}

fn unique(c: &mut OpCall<'_, '_>) -> RuleResult {
    unsupported_if!(c.lowering.scratch, "the number of elements of the result depends on data");
    unsupported_if!(c.int_or("sorted", 1)? == 0, "elements in order of occurrence are not supported");
    let x = c.tensor(0)?;
    if let Some(axis) = c.opt_int("axis")? {
        let axis = c.resolve_axis(axis, c.rank(x))?;
        unsupported_if!(c.rank(x) != 1 || axis != 0, "equal slices of an axis are not supported");
    }
    let n = c.ty(x).numel();
    let row = c.reshape(x, vec![n.clone()])?;
    let sorted = c.emit_all("sort", Op::Sort { axis: 0, descending: false }, &[row])?;
    let &[row, order] = sorted.as_slice() else {
        return symmc_import::invalid!("expected two results of sort");
    };
    let starts_run = run_starts(c, row)?;
    let (starts, counted) = true_positions(c, starts_run)?;
    c.set_counted(starts, counted);
    let values = c.emit("take", Op::Take { axis: 0 }, &[row, starts])?;
    c.set_result(0, values);
    if c.is_result_read(1) {
        let first = c.emit("take", Op::Take { axis: 0 }, &[order, starts])?;
        c.set_result(1, first);
    }
    let flags = c.cast(starts_run, DType::I64)?;
    let sums = c.emit("cumsum", Op::CumSum { axis: 0 }, &[flags])?;
    let run = c.binary_scalar(BinaryOp::Sub, sums, Scalar::Int(1))?;
    let zeros = c.full(Scalar::Int(0), DType::I64, vec![n.clone()])?;
    if c.is_result_read(2) {
        let op = Op::IndexPut { axis: 0, accumulate: false };
        let inverse = c.emit("index_put", op, &[zeros, run, order])?;
        c.set_result(2, inverse);
    }
    if c.is_result_read(3) {
        let ones = c.full(Scalar::Int(1), DType::I64, vec![n])?;
        let op = Op::IndexPut { axis: 0, accumulate: true };
        let counts = c.emit("index_put", op, &[zeros, ones, run])?;
        c.set_counted(counts, counted);
        c.set_result(3, counts);
    }
    Ok(())
}

/// Whether each element of a row differs from the one before it.
fn run_starts(c: &mut OpCall<'_, '_>, row: ValueId) -> EmitResult {
    let all = c.iota(c.extent(row, 0), 0, 1, DType::I64)?;
    let before = c.binary_scalar(BinaryOp::Sub, all, Scalar::Int(1))?;
    let before = c.binary_scalar(BinaryOp::Max, before, Scalar::Int(0))?;
    let previous = c.emit("take", Op::Take { axis: 0 }, &[row, before])?;
    let differs = c.binary(BinaryOp::Ne, row, previous)?;
    let is_first = c.binary_scalar(BinaryOp::Eq, all, Scalar::Int(0))?;
    c.binary(BinaryOp::Or, differs, is_first)
}

/// The elements of an axis where a condition holds that is data.
pub(super) fn compress_by_data(c: &mut OpCall<'_, '_>, x: ValueId, axis: usize) -> EmitResult {
    unsupported_if!(c.lowering.scratch, "the number of elements of the result depends on data");
    let condition = c.tensor(1)?;
    let condition = c.cast(condition, DType::Bool)?;
    invalid_if!(c.rank(condition) != 1, "expected a condition with one axis, found {}", c.rank(condition));
    let excess: Dim = c.extent(condition, 0) - c.extent(x, axis);
    unsupported_if!(c.dim_bounds(&excess).1 > 0, "the condition may be longer than the axis");
    let (positions, counted) = true_positions(c, condition)?;
    c.set_counted(positions, counted);
    c.emit("take", Op::Take { axis }, &[x, positions])
}
