//! Nodes with operands that have packed rows.

use symmc_import::Emit;
use symmc_ir::entity::Entity;
use symmc_ir::{ArgOp, BinaryOp, DType, Dim, FloatAttribute, Op, ReductionKind, Scalar, TensorType, ValueId};

use super::axes::{moved, reduced, reshaped};
use crate::call::OpCall;
use crate::lower::RuleResult;
use crate::packed_rows::{PackedRows, op_of};

/// Operators whose results mix the rows of an operand and depend on the rows alone, and not on their number.
const MIXING: &[&str] = &[
    "aten.sum",
    "aten.prod",
    "aten.amax",
    "aten.amin",
    "aten.max",
    "aten.min",
    "aten.any",
    "aten.all",
    "aten.mean",
    "aten.argmax",
    "aten.argmin",
    "aten.mm",
    "aten.matmul",
    "aten.addmm",
    "aten.bmm",
    "aten.linear",
    "aten.einsum",
    "aten.softmax",
    "aten._softmax",
    "aten.log_softmax",
    "aten._log_softmax",
    "aten.bincount",
    "aten.histc",
    "aten.count_nonzero",
];

/// The operands with which a node is emitted, and the packed axis of each result.
struct PackedNode {
    inputs: Vec<ValueId>,
    results: Vec<Option<PackedRows>>,
}

impl PackedNode {
    fn of(inputs: &[ValueId], rows: Option<PackedRows>) -> PackedNode {
        PackedNode { inputs: inputs.to_vec(), results: vec![rows.clone(), rows] }
    }
}

/// Emits a node that may have operands with packed rows. `None` if no operand has them.
pub(crate) fn emit_packed(
    c: &mut OpCall<'_, '_>,
    hint: &str,
    op: &Op,
    inputs: &[ValueId],
    types: Option<&[TensorType]>,
) -> RuleResult<Option<Vec<ValueId>>> {
    if !c.lowering.packed.any(inputs) {
        return Ok(None);
    }
    if let Some(result) = emit_composed(c, op, inputs)? {
        return Ok(Some(vec![result]));
    }
    let node = represent(c, op, inputs, types)?;
    let results = c.emit_plain(hint, op.clone(), &node.inputs, types)?;
    for (&value, rows) in results.iter().zip(node.results) {
        if let Some(rows) = rows {
            c.set_packed(value, rows.axis, &rows.length);
        }
    }
    Ok(Some(results))
}

fn refuse<T>(c: &OpCall<'_, '_>, op: &Op, length: &Dim) -> RuleResult<T> {
    let name = symmc_ir::text::op_name(op);
    c.refuse_packed(&format!("it mixes or moves rows (`{name}`)"), length)
}

/// Refuses a node, of whose operands the first with packed rows is named.
fn refuse_any<T>(c: &OpCall<'_, '_>, op: &Op, rows: &[Option<PackedRows>]) -> RuleResult<T> {
    let length = rows.iter().flatten().next().map_or(Dim::from(0), |r| r.length.clone());
    refuse(c, op, &length)
}

fn represent(
    c: &mut OpCall<'_, '_>,
    op: &Op,
    inputs: &[ValueId],
    types: Option<&[TensorType]>,
) -> RuleResult<PackedNode> {
    let rows: Vec<Option<PackedRows>> = inputs.iter().map(|v| c.lowering.packed.rows(*v).cloned()).collect();
    let Some(any) = rows.iter().flatten().next().cloned() else { return Ok(PackedNode::of(inputs, None)) };
    let first = rows.first().cloned().flatten();
    let x = inputs[0];
    Ok(match op {
        Op::Unary(_) | Op::BinaryScalar { .. } | Op::Cast | Op::Copy => PackedNode::of(inputs, first),
        Op::Binary(_) | Op::Select | Op::Expand => {
            let rank = match types.and_then(|t| t.first()) {
                Some(ty) => ty.rank(),
                None => inputs.iter().map(|v| c.rank(*v)).max().unwrap_or(0),
            };
            PackedNode::of(inputs, Some(broadcast_rows(c, op, inputs, &rows, rank)?))
        }
        Op::MatMul { .. } => matrix_product(c, op, inputs, &rows)?,
        Op::GroupedMatMul => grouped_product(c, op, inputs, &rows)?,
        Op::Reduce { op: kind, axes, .. } if axes.contains(&any.axis) => {
            let neutral = neutral_element(*kind, c.dtype(x));
            let Some(neutral) = neutral.filter(|_| mixes_rows(c)) else { return refuse(c, op, &any.length) };
            PackedNode::of(&[c.fill_rest(x, &any, neutral)?], None)
        }
        Op::Reduce { axes, keep, .. } => PackedNode::of(inputs, Some(reduced(&any, axes, *keep))),
        Op::ArgReduce { op: kind, axis, .. } if *axis == any.axis => {
            if !mixes_rows(c) {
                return refuse(c, op, &any.length);
            }
            let kind = if *kind == ArgOp::Max { ReductionKind::Max } else { ReductionKind::Min };
            let Some(neutral) = neutral_element(kind, c.dtype(x)) else { return refuse(c, op, &any.length) };
            PackedNode::of(&[c.fill_rest(x, &any, neutral)?], None)
        }
        Op::ArgReduce { axis, keep, .. } => PackedNode::of(inputs, Some(reduced(&any, &[*axis], *keep))),
        Op::CumSum { .. } => PackedNode::of(inputs, first),
        Op::Softmax { axis, .. } if *axis == any.axis => {
            let least = Scalar::Float(FloatAttribute(f64::NEG_INFINITY));
            PackedNode::of(&[c.fill_rest(x, &any, least)?], first)
        }
        Op::Softmax { .. } => PackedNode::of(inputs, first),
        Op::RmsNorm { axes, .. } | Op::LayerNorm { axes, .. } => {
            let outside = first.as_ref().is_some_and(|rows| rows.axis + axes < c.rank(x));
            if !outside || rows.iter().skip(1).any(Option::is_some) {
                return refuse(c, op, &any.length);
            }
            PackedNode::of(inputs, first)
        }
        Op::Sort { axis, descending } => {
            let input = if *axis == any.axis {
                let last = last_in_order(c.dtype(x), *descending);
                c.fill_rest(x, &any, last)?
            } else {
                x
            };
            PackedNode::of(&[input], first)
        }
        Op::TopK { axis, .. } if *axis != any.axis => PackedNode::of(inputs, first),
        Op::Take { axis } | Op::Index { axis } => indexed(c, op, *axis, inputs, &rows)?,
        Op::GatherElements { axis } => gathered(c, op, *axis, inputs, &rows)?,
        Op::Concat { axis } if rows.iter().flatten().all(|r| r.axis != *axis) => {
            let same = rows.iter().all(|r| r.as_ref() == Some(&any));
            if !same {
                return refuse(c, op, &any.length);
            }
            PackedNode::of(inputs, first)
        }
        Op::Pad { low, .. } => {
            let kept = types.and_then(|t| t.first()).is_some_and(|ty| {
                ty.shape.get(any.axis) == Some(&c.extent(x, any.axis))
                    && low.get(any.axis).and_then(Dim::as_const) == Some(0)
            });
            if !kept {
                return refuse(c, op, &any.length);
            }
            PackedNode::of(inputs, first)
        }
        Op::Reshape => {
            let to = types.and_then(|t| t.first()).map(|ty| ty.shape.clone()).unwrap_or_default();
            match reshaped(&any, &c.shape(x), &to) {
                Some(rows) => PackedNode::of(inputs, Some(rows)),
                None => return refuse(c, op, &any.length),
            }
        }
        Op::Permute { perm } => {
            let axis = perm.iter().position(|a| *a == any.axis).unwrap_or(any.axis);
            PackedNode::of(inputs, Some(moved(&any, axis)))
        }
        Op::Slice { axis, .. } if *axis != any.axis => PackedNode::of(inputs, first),
        _ => return refuse(c, op, &any.length),
    })
}

/// Whether the operator mixes rows in a way that does not depend on their number.
fn mixes_rows(c: &OpCall<'_, '_>) -> bool {
    MIXING.contains(&op_of(&c.node.target))
}

/// Nodes that become several.
fn emit_composed(c: &mut OpCall<'_, '_>, op: &Op, inputs: &[ValueId]) -> RuleResult<Option<ValueId>> {
    let rows: Vec<Option<PackedRows>> = inputs.iter().map(|v| c.lowering.packed.rows(*v).cloned()).collect();
    match op {
        Op::Reduce { op: ReductionKind::Mean, axes, keep } => {
            let Some(rows) = rows[0].clone().filter(|rows| axes.contains(&rows.axis)) else {
                return Ok(None);
            };
            if !mixes_rows(c) {
                return Ok(None);
            }
            mean(c, inputs[0], &rows, axes, *keep).map(Some)
        }
        Op::Concat { axis } if rows.iter().flatten().any(|r| r.axis == *axis) => {
            concatenated(c, inputs, *axis).map(Some)
        }
        Op::ScatterElements { .. } | Op::IndexAdd { .. } | Op::IndexPut { .. } => {
            scattered(c, op, inputs, &rows).map(Some)
        }
        _ => Ok(None),
    }
}

fn mean(
    c: &mut OpCall<'_, '_>,
    x: ValueId,
    rows: &PackedRows,
    axes: &[usize],
    keep: bool,
) -> RuleResult<ValueId> {
    let dtype = c.dtype(x);
    let x = c.fill_rest(x, rows, Scalar::Int(0))?;
    let x = c.cast(x, dtype.compute_dtype())?;
    let sum = c.reduce(ReductionKind::Sum, x, axes.to_vec(), keep)?;
    let others = axes.iter().filter(|a| **a != rows.axis).map(|a| c.extent(x, *a));
    let length = others.fold(rows.length.clone(), |product, extent| product * extent);
    let count = c.emit_size(&length)?;
    let count = c.cast(count, dtype.compute_dtype())?;
    let y = c.binary(BinaryOp::Div, sum, count)?;
    c.cast(y, dtype)
}

/// The packed axis of the result of an element-wise node.
fn broadcast_rows(
    c: &OpCall<'_, '_>,
    op: &Op,
    inputs: &[ValueId],
    rows: &[Option<PackedRows>],
    rank: usize,
) -> RuleResult<PackedRows> {
    let mut found: Option<PackedRows> = None;
    for (x, rows) in inputs.iter().zip(rows) {
        let Some(rows) = rows else { continue };
        let here = moved(rows, (rows.axis + rank).saturating_sub(c.rank(*x)));
        match &found {
            Some(other) if *other != here => return refuse(c, op, &here.length),
            _ => found = Some(here),
        }
    }
    let Some(found) = found else { return c.refuse_packed("an operand has no rows", &Dim::from(0)) };
    for (x, rows) in inputs.iter().zip(rows) {
        if rows.is_none() && !is_created_here(c, *x) {
            let axis = (found.axis + c.rank(*x)).checked_sub(rank);
            let extent = axis.map(|axis| c.extent(*x, axis));
            if extent.is_some_and(|extent| extent.as_const() != Some(1)) {
                let what = "it combines rows with a value of fixed extent";
                return c.refuse_packed(what, &found.length);
            }
        }
    }
    Ok(found)
}

/// Whether this call emitted a value without packed operands: ranges, masks and fills, whose first rows are
/// those of any length.
fn is_created_here(c: &OpCall<'_, '_>, x: ValueId) -> bool {
    !c.existed_before(x) || c.lowering.packed.masks.values().any(|v| v.index() == x.index())
}

fn matrix_product(
    c: &mut OpCall<'_, '_>,
    op: &Op,
    inputs: &[ValueId],
    rows: &[Option<PackedRows>],
) -> RuleResult<PackedNode> {
    let &[x, y] = inputs else { return refuse(c, op, &Dim::from(0)) };
    let rank = c.rank(x).max(c.rank(y));
    let mut inner = None;
    let mut found: Option<PackedRows> = None;
    for (operand, (value, rows)) in [x, y].into_iter().zip(rows).enumerate() {
        let Some(rows) = rows else { continue };
        let from_end = c.rank(value) - rows.axis;
        let contracted = if operand == 0 { from_end == 1 } else { from_end == 2 };
        if contracted {
            inner = Some(rows.clone());
            continue;
        }
        let here = moved(rows, rank - from_end);
        match &found {
            Some(other) if *other != here => return refuse(c, op, &here.length),
            _ => found = Some(here),
        }
    }
    match (inner, found) {
        (None, found) => Ok(PackedNode::of(inputs, found)),
        (Some(length), None) => {
            let mut masked = Vec::with_capacity(2);
            for (operand, value) in [x, y].into_iter().enumerate() {
                let rank = c.rank(value);
                let axis = if operand == 0 { rank - 1 } else { rank - 2 };
                masked.push(c.fill_rest(value, &moved(&length, axis), Scalar::Int(0))?);
            }
            Ok(PackedNode::of(&masked, None))
        }
        (Some(inner), Some(_)) => refuse(c, op, &inner.length),
    }
}

/// The groups of a grouped product end within the rows, so what follows them is in no group.
fn grouped_product(
    c: &OpCall<'_, '_>,
    op: &Op,
    inputs: &[ValueId],
    rows: &[Option<PackedRows>],
) -> RuleResult<PackedNode> {
    match rows {
        [Some(of_x), None, None] if of_x.axis == 0 && c.rank(inputs[1]) == 3 => {
            Ok(PackedNode::of(inputs, Some(of_x.clone())))
        }
        [Some(of_x), Some(of_y), None]
            if of_x.axis == 1 && of_y.axis == 0 && of_x.length == of_y.length && c.rank(inputs[1]) == 2 =>
        {
            Ok(PackedNode::of(inputs, None))
        }
        _ => refuse_any(c, op, rows),
    }
}

fn indexed(
    c: &mut OpCall<'_, '_>,
    op: &Op,
    axis: usize,
    inputs: &[ValueId],
    rows: &[Option<PackedRows>],
) -> RuleResult<PackedNode> {
    let indices = inputs.len() - 1;
    let index_rank = inputs[1..].iter().map(|v| c.rank(*v)).max().unwrap_or(0);
    let mut found = None;
    let mut operands = vec![inputs[0]];
    if let Some(rows) = rows[0].as_ref().filter(|r| !(axis..axis + indices).contains(&r.axis)) {
        let at = if rows.axis < axis { rows.axis } else { rows.axis + index_rank - indices };
        found = Some(moved(rows, at));
    }
    for (&index, rows) in inputs[1..].iter().zip(&rows[1..]) {
        let Some(rows) = rows else {
            operands.push(index);
            continue;
        };
        let here = moved(rows, axis + rows.axis + index_rank - c.rank(index));
        if found.as_ref().is_some_and(|other| *other != here) {
            return refuse(c, op, &rows.length);
        }
        found = Some(here);
        operands.push(c.fill_rest(index, rows, Scalar::Int(0))?);
    }
    Ok(PackedNode { inputs: operands, results: vec![found] })
}

fn gathered(
    c: &mut OpCall<'_, '_>,
    op: &Op,
    axis: usize,
    inputs: &[ValueId],
    rows: &[Option<PackedRows>],
) -> RuleResult<PackedNode> {
    match rows {
        [of_x, Some(of_index)]
            if of_x.as_ref().is_none_or(|r| r.axis == axis || r == of_index)
                && (of_x.is_some() || of_index.axis == axis) =>
        {
            let index = c.fill_rest(inputs[1], of_index, Scalar::Int(0))?;
            Ok(PackedNode { inputs: vec![inputs[0], index], results: vec![Some(of_index.clone())] })
        }
        [Some(of_x), None] if of_x.axis == axis => Ok(PackedNode::of(inputs, None)),
        _ => refuse_any(c, op, rows),
    }
}

/// Concatenation along the packed axis: a gather of the rows of all operands, one after the other.
fn concatenated(c: &mut OpCall<'_, '_>, inputs: &[ValueId], axis: usize) -> RuleResult<ValueId> {
    let lengths: Vec<Dim> = inputs.iter().map(|v| c.length(*v, axis)).collect();
    for v in inputs {
        if let Some(rows) = c.lowering.packed.rows(*v).filter(|rows| rows.axis != axis) {
            return refuse(c, &Op::Concat { axis }, &rows.length);
        }
    }
    let total = lengths.iter().cloned().fold(Dim::from(0), |sum, length| sum + length);
    let all = c.emit_plain("concat", Op::Concat { axis }, inputs, None)?[0];
    let capacity = c.capacity(&total)?;
    let positions = c.iota(capacity, 0, 1, DType::I64)?;
    let mut index = positions;
    let mut start = Dim::from(0);
    for (value, length) in inputs.iter().zip(&lengths).take(inputs.len() - 1) {
        start = start + length.clone();
        let first = c.emit_size(&start)?;
        let passed = c.binary(BinaryOp::Ge, positions, first)?;
        let passed = c.cast(passed, DType::I64)?;
        // Behind the end of an operand, the rest of its rows is skipped.
        let extent = c.extent(*value, axis);
        let skipped = c.emit_size(&(extent - length.clone()))?;
        let skipped = c.binary(BinaryOp::Mul, passed, skipped)?;
        index = c.binary(BinaryOp::Add, index, skipped)?;
    }
    let last = c.extent(all, axis) - Dim::from(1);
    let last = c.emit_dim(&last, DType::I64)?;
    let index = c.binary(BinaryOp::Min, index, last)?;
    let y = c.emit_plain("packed", Op::Take { axis }, &[all, index], None)?[0];
    c.set_packed(y, axis, &total);
    Ok(y)
}

/// Rows that are written by index. The unspecified rows go to one more row, which is cut off.
fn scattered(
    c: &mut OpCall<'_, '_>,
    op: &Op,
    inputs: &[ValueId],
    rows: &[Option<PackedRows>],
) -> RuleResult<ValueId> {
    let (axis, index_at, source_at) = match op {
        Op::IndexPut { axis, .. } if inputs.len() == 3 => (*axis, 2, 1),
        Op::ScatterElements { axis, .. } | Op::IndexAdd { axis } => (*axis, 1, 2),
        _ => return refuse_any(c, op, rows),
    };
    let mut operands = inputs.to_vec();
    let base = inputs[0];
    let of_base = rows[0].clone();
    if let Some(of_base) = of_base.as_ref().filter(|r| r.axis != axis) {
        return refuse(c, op, &of_base.length);
    }
    let Some(of_index) = rows[index_at].clone() else {
        if let Some(of_source) = &rows[source_at] {
            return refuse(c, op, &of_source.length);
        }
        let y = c.emit_plain("scatter", op.clone(), inputs, None)?[0];
        if let Some(rows) = of_base {
            c.lowering.packed.set(y, rows);
        }
        return Ok(y);
    };
    let source_rows = rows[source_at].as_ref();
    let aligned =
        source_rows.is_none_or(|r| r.length == of_index.length) && of_index.axis == axis.min(of_index.axis);
    let broadcast =
        source_rows.is_some() || c.rank(inputs[source_at]) == 0 || is_created_here(c, inputs[source_at]);
    if !aligned || !broadcast {
        return refuse(c, op, &of_index.length);
    }
    let extent = c.extent(base, axis);
    let mut ty = c.ty(base).clone();
    ty.shape[axis] = extent.clone() + Dim::from(1);
    let low = vec![Dim::from(0); c.rank(base)];
    let wider =
        c.emit_plain("wider", Op::Pad { low, value: zero_of(c.dtype(base)) }, &[base], Some(&[ty]))?[0];
    let end = c.emit_dim(&extent, c.dtype(inputs[index_at]))?;
    let mask = c.emit_mask(&of_index.length, &c.extent(inputs[index_at], of_index.axis))?;
    let mut shape = vec![Dim::from(1); c.rank(inputs[index_at]) - of_index.axis];
    shape[0] = c.extent(inputs[index_at], of_index.axis);
    let mask = c.reshape(mask, shape)?;
    operands[0] = wider;
    operands[index_at] = c.emit_plain("index", Op::Select, &[mask, inputs[index_at], end], None)?[0];
    let y = c.emit_plain("scatter", op.clone(), &operands, None)?[0];
    let ty = c.ty(base).clone();
    let y = c.emit_plain("kept", Op::Slice { axis, start: 0.into(), step: 1 }, &[y], Some(&[ty]))?[0];
    if let Some(rows) = of_base {
        c.lowering.packed.set(y, rows);
    }
    Ok(y)
}

fn zero_of(dtype: DType) -> Scalar {
    Scalar::Int(0).convert_to(dtype)
}

/// The element that does not change a reduction.
fn neutral_element(kind: ReductionKind, dtype: DType) -> Option<Scalar> {
    Some(match kind {
        ReductionKind::Sum | ReductionKind::Any => Scalar::Int(0),
        ReductionKind::Prod | ReductionKind::All => Scalar::Int(1),
        ReductionKind::Max => extreme(dtype, false),
        ReductionKind::Min => extreme(dtype, true),
        ReductionKind::Mean => return None,
    })
}

/// The largest or the smallest value of a dtype.
fn extreme(dtype: DType, largest: bool) -> Scalar {
    if dtype.is_float() {
        return Scalar::Float(FloatAttribute(if largest { f64::INFINITY } else { f64::NEG_INFINITY }));
    }
    match dtype {
        DType::Bool => Scalar::Bool(largest),
        _ => Scalar::Int(if largest { i64::MAX } else { i64::MIN }).saturate_to(dtype),
    }
}

/// The value that no other follows in sorted order. NaN counts as the largest float.
fn last_in_order(dtype: DType, descending: bool) -> Scalar {
    match dtype.is_float() && !descending {
        true => Scalar::Float(FloatAttribute(f64::NAN)),
        false => extreme(dtype, !descending),
    }
}
