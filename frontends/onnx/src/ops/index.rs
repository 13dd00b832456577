//! Reading and writing by index. Negative indices of ONNX count from the end, which the IR does not support.
//! An index is therefore wrapped, unless the nodes that compute it show that it is never negative.

use symmc_import::emit::extent_product;
use symmc_import::{Emit, EmitFormulas, RuleCall, invalid, invalid_if, unsupported, unsupported_if};
use symmc_ir::{BinaryOp, DType, Dim, Op, ReductionKind, ValueId};

use super::{RuleRow, counted, row, row_of_results};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleResult};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row_of_results("Gather", 13, "take; slice where the index is a constant", gather),
    row("GatherElements", 13, "gather", |c| {
        let [x, index] = c.first_tensors()?;
        let axis = c.axis_or("axis", 0, c.rank(x))?;
        let index = c.wrap_negative_index(index, &c.extent(x, axis))?;
        c.emit("gather", Op::GatherElements { axis }, &[x, index])
    }),
    row("GatherND", 13, "index", |c| {
        let x = c.tensor(0)?;
        let batch = c.int_or("batch_dims", 0)?;
        let index = c.tensor(1)?;
        let limit = c.rank(x).min(c.rank(index)) as i64;
        invalid_if!(
            !(0..limit).contains(&batch),
            "expected batch_dims from 0 to {}, found {batch}",
            limit - 1
        );
        let batch = batch as usize;
        let coordinates = coordinate_indices(c, x, batch)?;
        // The positions of the batch are coordinates as well.
        let shape = c.shape(index)[..c.rank(index) - 1].to_vec();
        let mut operands = vec![x];
        for axis in 0..batch {
            let positions = c.iota(shape[axis].clone(), 0, 1, DType::I64)?;
            let mut line = vec![Dim::from(1); shape.len()];
            line[axis] = shape[axis].clone();
            let positions = c.reshape(positions, line)?;
            operands.push(c.expand(positions, shape.clone())?);
        }
        for coordinate in coordinates {
            operands.push(if batch > 0 { c.cast(coordinate, DType::I64)? } else { coordinate });
        }
        c.emit("index", Op::Index { axis: 0 }, &operands)
    }),
    row_of_results("ScatterElements", 18, "scatter", scatter),
    row_of_results("Scatter", 9, "scatter", scatter),
    row("ScatterND", 18, "index_put, scatter", scatter_nd),
    row("TensorScatter", 24, "scatter", tensor_scatter),
    row("ReverseSequence", 28, "gather", reverse_sequence),
    row("OneHot", 28, "eq with an iota, select", one_hot),
    row("Compress", 28, "slice, concat; cumsum, index_put, take", compress),
];

/// The elements of an axis, or of all axes as one, where a constant condition holds. The elements after the condition are left out.
fn compress(c: &mut OpCall<'_, '_>) -> EmitResult {
    let mut x = c.tensor(0)?;
    let axis = match c.opt_int("axis")? {
        Some(axis) => c.resolve_axis(axis, c.rank(x))?,
        None => {
            x = c.reshape(x, vec![c.ty(x).numel()])?;
            0
        }
    };
    let Some(condition) = c.constant_data(1)? else {
        return counted::compress_by_data(c, x, axis);
    };
    let Some(n) = c.extent(x, axis).as_const() else {
        return unsupported!("an axis of symbolic extent is not supported");
    };
    let is_kept = condition.to_f64();
    invalid_if!(is_kept.len() as i64 > n, "expected at most {n} conditions, found {}", is_kept.len());
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for position in (0..is_kept.len()).filter(|&i| is_kept[i] != 0.0) {
        match runs.last_mut() {
            Some((start, len)) if *start + *len == position => *len += 1,
            _ => runs.push((position, 1)),
        }
    }
    unsupported_if!(runs.len() > MAX_RUNS, "more than {MAX_RUNS} separate slices are not supported");
    let slices =
        runs.into_iter().map(|(start, len)| c.slice(x, axis, (start as i64).into(), (len as i64).into(), 1));
    let slices = slices.collect::<RuleResult<Vec<_>>>()?;
    if slices.is_empty() { c.slice(x, axis, 0.into(), 0.into(), 1) } else { c.concat(&slices, axis) }
}

/// The most slices of one operand.
const MAX_RUNS: usize = 1024;

/// A gather at a constant index becomes a slice, which is a view.
fn gather(c: &mut OpCall<'_, '_>) -> RuleResult {
    let x = c.tensor(0)?;
    let axis = c.axis_or("axis", 0, c.rank(x))?;
    let n = c.extent(x, axis);
    if let Some(data) = c.constant_data(1)?.filter(|d| d.numel() == 1 && d.shape().len() <= 1) {
        let index = data.to_i64()[0];
        let start = c.index_from_start(Dim::from(index), &n);
        let low = c.dim_bounds(&start).1;
        let high = c.dim_bounds(&(n.clone() - start.clone())).1;
        invalid_if!(
            low < 0 || high <= 0,
            "expected an index from -{0} to {0} - 1, found {index}",
            c.display_dim(&n)
        );
        let slice = c.slice(x, axis, start, 1.into(), 1)?;
        let y = if data.shape().is_empty() { c.drop_axis(slice, axis)? } else { slice };
        return c.set_only_result(y);
    }
    let index = c.tensor(1)?;
    let index = c.wrap_negative_index(index, &n)?;
    let y = c.emit("take", Op::Take { axis }, &[x, index])?;
    c.set_only_result(y)
}

/// The indices into the axes of `x` from `first` on, from the last axis of operand 1.
fn coordinate_indices(c: &mut OpCall<'_, '_>, x: ValueId, first: usize) -> RuleResult<Vec<ValueId>> {
    let index = c.tensor(1)?;
    let Some(last) = c.rank(index).checked_sub(1) else {
        return invalid!("expected indices with an axis, found none");
    };
    let count = c.extent(index, last).as_const();
    let Some(count) = count.filter(|n| (1..=(c.rank(x) - first) as i64).contains(n)) else {
        let rank = c.rank(x) - first;
        let extent = c.extent(index, last);
        return invalid!("expected 1 to {rank} coordinates, found {}", c.display_dim(&extent));
    };
    let mut out = Vec::new();
    for axis in 0..count as usize {
        let coordinate = c.slice(index, last, (axis as i64).into(), 1.into(), 1)?;
        let coordinate = c.drop_axis(coordinate, last)?;
        out.push(c.wrap_negative_index(coordinate, &c.extent(x, first + axis))?);
    }
    Ok(out)
}

fn scatter_nd(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.tensor(0)?;
    let source = c.tensor(2)?;
    let combine = combination(c)?;
    let indices = coordinate_indices(c, x, 0)?;
    if matches!(combine, None | Some(ReductionKind::Sum)) {
        let accumulate = combine.is_some();
        let operands = [[x, source].as_slice(), &indices].concat();
        return c.emit("index_put", Op::IndexPut { axis: 0, accumulate }, &operands);
    }
    // The first axes as one, with the position in it.
    let shape = c.shape(x);
    let (first, rest) = shape.split_at(indices.len());
    let mut position: Option<ValueId> = None;
    for (index, extent) in indices.iter().zip(first) {
        let index = c.cast(*index, DType::I64)?;
        position = Some(match position {
            Some(outer) => {
                let extent = c.emit_dim(extent, DType::I64)?;
                c.formula([outer, index, extent], |[outer, index, extent]| outer * extent + index)?
            }
            None => index,
        });
    }
    let Some(position) = position else { return invalid!("expected at least one coordinate, found none") };
    let count = extent_product(&c.shape(position));
    let flat = |count: Dim| [&[count], rest].concat();
    let source = c.reshape(source, flat(count.clone()))?;
    let column = [vec![count.clone()], vec![Dim::from(1); rest.len()]].concat();
    let position = c.reshape(position, column)?;
    let position = c.expand(position, flat(count))?;
    let x = c.reshape(x, flat(extent_product(first)))?;
    let y = c.emit("scatter", Op::ScatterElements { axis: 0, combine }, &[x, position, source])?;
    c.reshape(y, shape)
}

/// Stores operand 1 in the cache of operand 0 along an axis, from a position of each batch on.
fn tensor_scatter(c: &mut OpCall<'_, '_>) -> EmitResult {
    let [x, update] = c.first_tensors()?;
    let rank = c.rank(x);
    let axis = c.axis_or("axis", -2, rank)?;
    invalid_if!(axis == 0, "expected another axis than that of the batch");
    let circular = match c.opt_string("mode")? {
        None | Some("linear") => false,
        Some("circular") => true,
        Some(other) => return invalid!("expected mode linear or circular, found `{other}`"),
    };
    let shape = c.shape(update);
    let along = |axis: usize, extent: &Dim| {
        let mut line = vec![Dim::from(1); rank];
        line[axis] = extent.clone();
        line
    };
    let positions = c.iota(shape[axis].clone(), 0, 1, DType::I64)?;
    let mut positions = c.reshape(positions, along(axis, &shape[axis]))?;
    if let Some(first) = c.opt_tensor(2)? {
        let first = c.cast(first, DType::I64)?;
        let first = c.reshape(first, along(0, &shape[0]))?;
        positions = c.binary(BinaryOp::Add, positions, first)?;
    }
    if circular {
        let extent = c.emit_dim(&c.extent(x, axis), DType::I64)?;
        positions = c.binary(BinaryOp::Rem, positions, extent)?;
    }
    let positions = c.expand(positions, shape)?;
    c.emit("scatter", Op::ScatterElements { axis, combine: None }, &[x, positions, update])
}

/// Reverses the first elements of the time axis, whose number operand 1 gives for each entry of the batch.
fn reverse_sequence(c: &mut OpCall<'_, '_>) -> EmitResult {
    let [x, lengths] = c.first_tensors()?;
    let shape = c.shape(x);
    let rank = shape.len();
    let batch = c.axis_or("batch_axis", 1, rank)?;
    let time = c.axis_or("time_axis", 0, rank)?;
    invalid_if!(batch == time, "expected two different axes, found {batch} twice");
    let along = |axis: usize| {
        let mut line = vec![Dim::from(1); rank];
        line[axis] = shape[axis].clone();
        line
    };
    let steps = c.iota(shape[time].clone(), 0, 1, DType::I64)?;
    let steps = c.reshape(steps, along(time))?;
    let lengths = c.cast(lengths, DType::I64)?;
    let lengths = c.reshape(lengths, along(batch))?;
    let positions =
        c.formula([steps, lengths], |[steps, lengths]| steps.lt(lengths).select(lengths - steps - 1, steps))?;
    let positions = c.expand(positions, shape)?;
    c.emit("gather", Op::GatherElements { axis: time }, &[x, positions])
}

/// How an op combines what it stores with what is there; `None` if it replaces it.
fn combination(c: &OpCall<'_, '_>) -> RuleResult<Option<ReductionKind>> {
    Ok(match c.opt_string("reduction")? {
        None | Some("none") => None,
        Some("add") => Some(ReductionKind::Sum),
        Some("mul") => Some(ReductionKind::Prod),
        Some("max") => Some(ReductionKind::Max),
        Some("min") => Some(ReductionKind::Min),
        Some(other) => return invalid!("expected a known reduction, found `{other}`"),
    })
}

fn scatter(c: &mut OpCall<'_, '_>) -> RuleResult {
    let [x, index, source] = c.first_tensors()?;
    let axis = c.axis_or("axis", 0, c.rank(x))?;
    let combine = combination(c)?;
    let index = c.wrap_negative_index(index, &c.extent(x, axis))?;
    let y = c.emit("scatter", Op::ScatterElements { axis, combine }, &[x, index, source])?;
    c.set_only_result(y)
}

/// Operand 2 has the value of the other elements, followed by the value of the selected one.
fn one_hot(c: &mut OpCall<'_, '_>) -> EmitResult {
    let index = c.tensor(0)?;
    let depth = match c.ints(1, "the depth")?.dims.as_slice() {
        [one] => one.clone(),
        many => return invalid!("expected one number as depth, found {}", many.len()),
    };
    let values = c.tensor(2)?;
    let rank = c.rank(index) + 1;
    let axis = c.axis_or("axis", -1, rank)?;
    let index = c.cast(index, DType::I64)?;
    let index = c.wrap_negative_index(index, &depth)?;
    let mut line = vec![Dim::from(1); rank];
    line[axis] = depth.clone();
    c.formula([index, values], |[index, values]| {
        let index = index.unsqueeze(axis);
        let classes = index.map(|c, _| c.iota(depth, 0, 1, DType::I64)).reshape(line);
        let is_class = index.eq(classes);
        let off = values.slice(0, 0, 1).reshape(vec![]);
        let on = values.slice(0, 1, 1).reshape(vec![]);
        is_class.select(on, off)
    })
}
