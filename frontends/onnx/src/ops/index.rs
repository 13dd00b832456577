//! Reading and writing by index. Negative indices of ONNX count from the end, which the IR does not support.
//! An index is therefore wrapped, unless the nodes that compute it show that it is never negative.

use symmc_import::{Emit, EmitFormulas, RuleCall, invalid, invalid_if, unsupported, unsupported_if};
use symmc_ir::{DType, Dim, Op, ReductionKind, ValueId};

use super::{RuleRow, row, row_of_results};
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
        unsupported_if!(c.flag("batch_dims")?, "batch axes are not supported");
        let mut operands = vec![x];
        operands.extend(coordinate_indices(c, x)?);
        c.emit("index", Op::Index { axis: 0 }, &operands)
    }),
    row_of_results("ScatterElements", 18, "scatter", scatter),
    row_of_results("Scatter", 9, "scatter", scatter),
    row("ScatterND", 18, "index_put", |c| {
        let x = c.tensor(0)?;
        let source = c.tensor(2)?;
        let accumulate = match c.opt_string("reduction")? {
            None | Some("none") => false,
            Some("add") => true,
            Some(other) => return unsupported!("the reduction `{other}` is not supported"),
        };
        let mut operands = vec![x, source];
        operands.extend(coordinate_indices(c, x)?);
        c.emit("index_put", Op::IndexPut { axis: 0, accumulate }, &operands)
    }),
    row("OneHot", 28, "eq with an iota, select", one_hot),
];

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

/// The indices into the first axes of `x`, from the last axis of operand 1.
fn coordinate_indices(c: &mut OpCall<'_, '_>, x: ValueId) -> RuleResult<Vec<ValueId>> {
    let index = c.tensor(1)?;
    let Some(last) = c.rank(index).checked_sub(1) else {
        return invalid!("expected indices with an axis, found none");
    };
    let count = c.extent(index, last).as_const();
    let Some(count) = count.filter(|n| (1..=c.rank(x) as i64).contains(n)) else {
        let rank = c.rank(x);
        let extent = c.extent(index, last);
        return invalid!("expected 1 to {rank} coordinates, found {}", c.display_dim(&extent));
    };
    let mut out = Vec::new();
    for axis in 0..count as usize {
        let coordinate = c.slice(index, last, (axis as i64).into(), 1.into(), 1)?;
        let coordinate = c.drop_axis(coordinate, last)?;
        out.push(c.wrap_negative_index(coordinate, &c.extent(x, axis))?);
    }
    Ok(out)
}

fn scatter(c: &mut OpCall<'_, '_>) -> RuleResult {
    let [x, index, source] = c.first_tensors()?;
    let axis = c.axis_or("axis", 0, c.rank(x))?;
    let combine = match c.opt_string("reduction")? {
        None | Some("none") => None,
        Some("add") => Some(ReductionKind::Sum),
        Some("mul") => Some(ReductionKind::Prod),
        Some("max") => Some(ReductionKind::Max),
        Some("min") => Some(ReductionKind::Min),
        Some(other) => return invalid!("expected a known reduction, found `{other}`"),
    };
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
