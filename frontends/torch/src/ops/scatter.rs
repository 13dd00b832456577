//! Writing by index: `index_put`, `index_add`, `scatter` and similar ops, in functional form.

use symmc_import::emit::extent_product;
use symmc_import::{Emit, EmitFormulas, RuleCall, invalid, invalid_if, unsupported, unsupported_if};
use symmc_ir::{BinaryOp, DType, Dim, FloatAttribute, Op, ReductionKind, Scalar, ValueId};

use super::index::{AdvancedIndexing, as_row, is_mask, on_row, resolve_indexing};
use super::{RuleRow, row, row_of_results};
use crate::call::{CallOperand, OpCall};
use crate::lower::{EmitResult, RuleFailure, RuleResult};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row_of_results(
        "aten.index_put aten._unsafe_index_put aten._index_put_impl",
        "index_put; select for a mask",
        index_put,
    ),
    row("aten.masked_scatter", "cumsum, take, select", masked_scatter),
    row("aten.masked_scatter_backward", "cumsum, index_put", masked_scatter_backward),
    row_of_results("aten.index_add", "index_add", index_add),
    row_of_results("aten.index_copy", "index_put", |c| {
        let [x, index, source] = c.tensors_named(["self", "index", "source"])?;
        let axis = c.axis("dim", c.rank(x))?;
        let index = as_row(c, index)?;
        on_row(c, x, |c, x| {
            c.emit("index_put", Op::IndexPut { axis, accumulate: false }, &[x, source, index])
        })
    }),
    row_of_results("aten.index_fill", "index_put", |c| {
        let [x, index] = c.tensors_named(["self", "index"])?;
        let axis = c.axis("dim", c.rank(x))?;
        let value = c.operand("value")?;
        // In contrast to similar ops, PyTorch's index_fill accepts indices that count from the end.
        let index = c.wrap_index(index, x, axis)?;
        let index = as_row(c, index)?;
        let source = c.as_tensor(&value, c.dtype(x))?;
        on_row(c, x, |c, x| {
            c.emit("index_put", Op::IndexPut { axis, accumulate: false }, &[x, source, index])
        })
    }),
    row("aten.scatter", "scatter", |c| {
        let combine = match c.opt_string("reduce")? {
            None => None,
            Some("add") => Some(ReductionKind::Sum),
            Some("multiply") => Some(ReductionKind::Prod),
            Some(other) => return invalid!("expected reduce add or multiply, found `{other}`"),
        };
        scatter(c, combine)
    }),
    row("aten.scatter_add", "scatter", |c| scatter(c, Some(ReductionKind::Sum))),
    row("aten.scatter_reduce", "scatter; div for means", scatter_reduce),
    row("aten.embedding_dense_backward", "index_put", |c| {
        let [gradient, index] = c.tensors_named(["grad_output", "indices"])?;
        unsupported_if!(c.bool_or("scale_grad_by_freq", false)?, "scale_grad_by_freq is not supported");
        let rows = c.dim("num_weights")?;
        let width = c.shape(gradient).last().cloned().unwrap_or(1.into());
        let rank = c.rank(index);
        let padding = c.int_or("padding_idx", -1)?;
        let gradient = c.formula([gradient, index], |[gradient, index]| {
            let zero = gradient.constant(0.0);
            if padding >= 0 { index.eq(padding).unsqueeze(rank).select(zero, gradient) } else { gradient }
        })?;
        let table = c.full(Scalar::Int(0), c.dtype(gradient), vec![rows, width])?;
        let op = Op::IndexPut { axis: 0, accumulate: true };
        c.emit("index_put", op, &[table, gradient, index])
    }),
];

fn index_put(c: &mut OpCall<'_, '_>) -> RuleResult {
    c.ignore(&["unsafe"]);
    let [x, values] = c.tensors_named(["self", "values"])?;
    let accumulate = c.bool_or("accumulate", false)?;
    let values = c.cast(values, c.dtype(x))?;
    let list = c.opt_tensors("indices")?;
    if list.iter().flatten().any(|index| is_mask(c, *index)) {
        let Some((&Some(mask), leading)) =
            list.split_last().filter(|(_, rest)| rest.iter().all(Option::is_none))
        else {
            return unsupported!("a mask among other indices is not supported");
        };
        let y = masked_put(c, x, (mask, leading.len()), values, accumulate)?;
        return c.set_only_result(y);
    }
    let AdvancedIndexing { x, axis, indices, perm } = resolve_indexing(c, x)?;
    invalid_if!(indices.is_empty(), "expected an index, found none");
    let operands: Vec<ValueId> = [&[x, values], indices.as_slice()].concat();
    let y = c.emit("index_put", Op::IndexPut { axis, accumulate }, &operands)?;
    let mut back = vec![0; perm.len()];
    for (to, &from) in perm.iter().enumerate() {
        back[from] = to;
    }
    let y = c.permute(y, back)?;
    c.set_only_result(y)
}

/// The number of true elements before each element of a mask, in order.
fn true_elements_before(c: &mut OpCall<'_, '_>, mask: ValueId) -> EmitResult {
    let flat = c.reshape(mask, vec![c.ty(mask).numel()])?;
    c.formula([flat], |[flat]| (flat.cast(DType::I64).cumulative_sum(0) - 1).max(0))
}

/// Replaces the elements where a mask is true by those of the source, in order. More of them than the source has are a
/// run-time error, as an index beyond its end.
fn masked_scatter(c: &mut OpCall<'_, '_>) -> EmitResult {
    let [x, mask, source] = c.tensors_named(["self", "mask", "source"])?;
    let mask = c.cast(mask, DType::Bool)?;
    let shapes = [c.shape(x), c.shape(mask)];
    let shapes: Vec<&[Dim]> = shapes.iter().map(Vec::as_slice).collect();
    let shape = symmc_ir::infer::broadcast_shapes(&shapes).map_err(RuleFailure::Invalid)?;
    let x = c.expand(x, shape.clone())?;
    let mask = c.expand(mask, shape.clone())?;
    let source = c.reshape(source, vec![c.ty(source).numel()])?;
    if c.extent(source, 0).as_const() == Some(0) {
        return Ok(x);
    }
    let mut positions = true_elements_before(c, mask)?;
    if let Some(length) = c.packed_length(source, 0) {
        let count = c.emit_size(&length)?;
        let beyond = c.formula([mask, positions, count], |[mask, positions, count]| {
            mask.reshape(positions.shape()) & positions.ge(count)
        })?;
        let beyond = c.without_rest(beyond, Scalar::Bool(false))?;
        let beyond = c.reduce(ReductionKind::Any, beyond, vec![0], false)?;
        let zero = c.emit_check(beyond)?;
        positions = c.add_check(positions, Some(zero))?;
    }
    c.formula([x, mask, source, positions], |[x, mask, source, positions]| {
        mask.select(source.take(0, positions).reshape(shape), x)
    })
}

/// The gradient of the source: the elements of the gradient where the mask is true, followed by zeros.
fn masked_scatter_backward(c: &mut OpCall<'_, '_>) -> EmitResult {
    let [gradient, mask] = c.tensors_named(["grad_output", "mask"])?;
    let sizes = c.dims("sizes")?;
    let mask = c.cast(mask, DType::Bool)?;
    let shape = c.shape(gradient);
    let mask = c.expand(mask, shape)?;
    let positions = true_elements_before(c, mask)?;
    let kept = c.formula([gradient, mask], |[gradient, mask]| mask.select(gradient, 0))?;
    let kept = c.reshape(kept, vec![c.ty(kept).numel()])?;
    let zeros = c.full(Scalar::Int(0), c.dtype(gradient), vec![extent_product(&sizes)])?;
    let op = Op::IndexPut { axis: 0, accumulate: true };
    let y = c.emit("index_put", op, &[zeros, kept, positions])?;
    c.reshape(y, sizes)
}

/// Stores values, or adds them, wherever a mask over the axes from `first` on is true. There is a value for each true
/// element, in order, or one for all.
fn masked_put(
    c: &mut OpCall<'_, '_>,
    x: ValueId,
    (mask, first): (ValueId, usize),
    values: ValueId,
    accumulate: bool,
) -> EmitResult {
    let shape = c.shape(x);
    let masked_axes = first..first + c.rank(mask);
    invalid_if!(
        shape.get(masked_axes.clone()) != Some(&c.shape(mask)[..]),
        "expected a mask of {shape:?} from axis {first} on, found {:?}",
        c.shape(mask)
    );
    let mask = c.cast(mask, DType::Bool)?;
    let inner = shape[masked_axes.end..].to_vec();
    let mut flat_shape = shape[..first].to_vec();
    flat_shape.push(c.ty(mask).numel());
    flat_shape.extend(inner.iter().cloned());
    let flat = c.reshape(x, flat_shape.clone())?;
    let flat_mask = c.reshape(mask, vec![c.ty(mask).numel()])?;
    let values = values_of_elements(c, flat_mask, values, inner.len())?;
    let values = if accumulate { c.binary(BinaryOp::Add, flat, values)? } else { values };
    let mut mask_shape = vec![Dim::from(1); inner.len() + 1];
    mask_shape[0] = c.extent(flat_mask, 0);
    let flat_mask = c.reshape(flat_mask, mask_shape)?;
    let y = c.select(flat_mask, values, flat)?;
    c.reshape(y, shape)
}

/// The value of each element of a mask, where the true elements have the rows of `values` in order. `inner` axes of the
/// values follow that of the rows. Values without such an axis, or with one row, are those of all elements.
fn values_of_elements(c: &mut OpCall<'_, '_>, mask: ValueId, values: ValueId, inner: usize) -> EmitResult {
    let Some(axis) = c.rank(values).checked_sub(inner + 1) else { return Ok(values) };
    let length = c.length(values, axis);
    if length.as_const() == Some(1) {
        return Ok(values);
    }
    let flags = c.cast(mask, DType::I64)?;
    let flags = c.without_rest(flags, Scalar::Int(0))?;
    let count = c.reduce(ReductionKind::Sum, flags, vec![0], false)?;
    let expected = c.emit_size(&length)?;
    let differs = c.binary(BinaryOp::Ne, count, expected)?;
    let zero = c.emit_check(differs)?;
    let mut low = vec![Dim::from(0); c.rank(values)];
    low[axis] = 1.into();
    let mut ty = c.ty(values).clone();
    ty.shape[axis] = ty.shape[axis].clone() + Dim::from(1);
    let nothing = Scalar::Int(0).convert_to(ty.dtype);
    // The row in front of the others is that of false elements, which may be all.
    let values = c.emit_plain("values", Op::Pad { low, value: nothing }, &[values], Some(&[ty]))?[0];
    let number = c.emit("cumsum", Op::CumSum { axis: 0 }, &[flags])?;
    let number = c.add_check(number, Some(zero))?;
    c.emit("take", Op::Take { axis }, &[values, number])
}

fn index_add(c: &mut OpCall<'_, '_>) -> RuleResult {
    let [x, index] = c.tensors_named(["self", "index"])?;
    let mut source = c.tensor("source")?;
    let axis = c.axis("dim", c.rank(x))?;
    let index = as_row(c, index)?;
    match c.opt_scalar("alpha")? {
        Some(alpha) if alpha.as_f64() != 1.0 => {
            let dtype = c.dtype(source);
            source = c.emit_binary(
                BinaryOp::Mul,
                &CallOperand::Tensor(source),
                &CallOperand::Scalar(alpha),
                dtype,
            )?;
        }
        _ => {}
    }
    let mut source = c.cast(source, c.dtype(x))?;
    if c.rank(x) == 0 {
        source = as_row(c, source)?;
    }
    on_row(c, x, |c, x| c.emit("index_add", Op::IndexAdd { axis }, &[x, index, source]))
}

fn scatter(c: &mut OpCall<'_, '_>, combine: Option<ReductionKind>) -> EmitResult {
    let x = c.first_tensor()?;
    let source = scatter_source(c, c.dtype(x))?;
    scatter_into(c, x, source, combine)
}

/// The source of a scatter, with the extents of the index and at least one axis.
fn scatter_source(c: &mut OpCall<'_, '_>, dtype: DType) -> EmitResult {
    let index = c.tensor("index")?;
    let index = as_row(c, index)?;
    let shape = c.shape(index);
    match (c.opt_operand("src")?, c.opt_operand("value")?) {
        (Some(CallOperand::Tensor(source)), _) => {
            let source = c.cast(source, dtype)?;
            let mut source = as_row(c, source)?;
            for (a, n) in shape.iter().enumerate() {
                source = c.slice(source, a, 0.into(), n.clone(), 1)?;
            }
            Ok(source)
        }
        (Some(value), _) | (None, Some(value)) => {
            let value = c.as_tensor(&value, dtype)?;
            c.expand(value, shape)
        }
        (None, None) => invalid!("expected `src` or `value`, found neither"),
    }
}

/// `x` with the source stored, or combined, at the positions that the arguments give.
fn scatter_into(
    c: &mut OpCall<'_, '_>,
    x: ValueId,
    source: ValueId,
    combine: Option<ReductionKind>,
) -> EmitResult {
    let axis = c.axis("dim", c.rank(x))?;
    let index = c.tensor("index")?;
    let index = as_row(c, index)?;
    let shape = c.shape(x);
    let row = as_row(c, x)?;
    let y = c.emit("scatter", Op::ScatterElements { axis, combine }, &[row, index, source])?;
    c.reshape(y, shape)
}

/// Elements of the operand take part. Without `include_self`, positions with scattered elements only use
/// these.
fn scatter_reduce(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.first_tensor()?;
    let dtype = c.dtype(x);
    let (combine, nothing) = match c.opt_string("reduce")? {
        Some("sum" | "mean") => (ReductionKind::Sum, Scalar::Int(0)),
        Some("prod") => (ReductionKind::Prod, Scalar::Int(1)),
        Some("amax") => (ReductionKind::Max, extreme_scalar(dtype, i64::MIN, f64::NEG_INFINITY)),
        Some("amin") => (ReductionKind::Min, extreme_scalar(dtype, i64::MAX, f64::INFINITY)),
        other => return unsupported!("the reduction `{}` is not supported", other.unwrap_or("none")),
    };
    let source = scatter_source(c, dtype)?;
    let shape = c.shape(source);
    let takes_part = c.bool_or("include_self", true)?;
    let base = if takes_part {
        x
    } else {
        let nothing = c.full(nothing, dtype, shape.clone())?;
        scatter_into(c, x, nothing, None)?
    };
    let mut y = scatter_into(c, base, source, Some(combine))?;
    if c.opt_string("reduce")? == Some("mean") {
        let none = c.full(Scalar::Int(i64::from(takes_part)), dtype, c.shape(x))?;
        let ones = c.full(Scalar::Int(1), dtype, shape)?;
        let count = scatter_into(c, none, ones, Some(ReductionKind::Sum))?;
        let op = if dtype.is_float() { BinaryOp::Div } else { BinaryOp::FloorDiv };
        y = c.formula([y, count], |[y, count]| y.binary(op, count.max(1)))?;
    }
    Ok(y)
}

/// The least or the largest number of a dtype. Floats have `float`, and other dtypes `int`.
fn extreme_scalar(dtype: DType, int: i64, float: f64) -> Scalar {
    match dtype {
        DType::Bool => Scalar::Bool(int > 0),
        _ if dtype.is_float() => Scalar::Float(FloatAttribute(float)),
        _ => Scalar::Int(int).saturate_to(dtype),
    }
}
