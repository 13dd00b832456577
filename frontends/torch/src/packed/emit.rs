//! Nodes with operands that have packed rows.

use symmc_import::emit::extent_product;
use symmc_import::{Emit, has_word};
use symmc_ir::entity::Entity;
use symmc_ir::{
    ArgOp, AxisMap, BinaryOp, DType, Dim, FloatAttribute, Op, OperandAxis, OperandUse, ReductionKind,
    ResultAxis, Scalar, TensorType, ValueId,
};

use crate::call::OpCall;
use crate::lower::RuleResult;
use crate::packed_rows::{PackedRows, op_of};

/// Operators whose results mix the rows of an operand and depend on the rows alone, and not on their number.
const MIXING: &str = "aten.sum aten.prod aten.amax aten.amin aten.max aten.min aten.any aten.all aten.mean aten.argmax \
     aten.argmin aten.mm aten.matmul aten.addmm aten.bmm aten.linear aten.einsum aten.softmax \
     aten._softmax aten.log_softmax aten._log_softmax aten.bincount aten.histc aten.count_nonzero \
     aten.linalg_vector_norm aten.norm aten.logsumexp aten.mse_loss aten.l1_loss aten.smooth_l1_loss aten.huber_loss \
     aten.soft_margin_loss aten.kl_div aten.poisson_nll_loss aten.binary_cross_entropy \
     aten.binary_cross_entropy_with_logits aten.margin_ranking_loss aten.hinge_embedding_loss aten.nll_loss \
     aten.nll_loss_nd aten.nll_loss_forward aten.cross_entropy_loss aten.var aten.std aten.var_mean aten.std_mean";

/// Operators that take rows of an operand at positions that data determines, or at each position and those before it.
const TAKING: &str = "aten.embedding aten.index_select aten.gather aten.take_along_dim aten.take aten.index \
     aten._unsafe_index aten.repeat_interleave aten.masked_select aten.masked_scatter aten.index_put \
     aten._unsafe_index_put aten._index_put_impl aten._unique2 aten._unique aten.unique_consecutive aten.cummax \
     aten.cummin aten.logcumsumexp";

/// Operators that sort rows and return them in order.
const SORTING: &str = "aten.sort aten.argsort aten.msort aten._unique2 aten._unique";

/// The operands with which a node is emitted, and the packed axis of its results.
struct PackedNode {
    inputs: Vec<ValueId>,
    rows: Option<PackedRows>,
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
    let node = PackedCall::new(c, op, inputs, types)?.represent(c)?;
    let results = c.emit_plain(hint, op.clone(), &node.inputs, types)?;
    if let Some(rows) = node.rows {
        results.iter().for_each(|&value| c.set_packed(value, rows.axis, &rows.length));
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

/// A node with packed rows, before it is emitted.
struct PackedCall<'a> {
    op: &'a Op,
    inputs: &'a [ValueId],
    /// The packed axis of each operand.
    rows: Vec<Option<PackedRows>>,
    results: Vec<TensorType>,
    axes: AxisMap,
}

impl<'a> PackedCall<'a> {
    fn new(
        c: &OpCall<'_, '_>,
        op: &'a Op,
        inputs: &'a [ValueId],
        types: Option<&[TensorType]>,
    ) -> RuleResult<PackedCall<'a>> {
        let rows = inputs.iter().map(|v| c.lowering.packed.rows(*v).cloned()).collect();
        let (results, axes) = c.typed_axes(op, inputs, types)?;
        Ok(PackedCall { op, inputs, rows, results, axes })
    }

    fn packed_operands(&self) -> impl Iterator<Item = (usize, &PackedRows)> {
        self.rows.iter().enumerate().filter_map(|(operand, rows)| Some((operand, rows.as_ref()?)))
    }

    /// Whether a row of the result may depend on all rows of an operand.
    fn is_mixed(&self, operand: usize, rows: &PackedRows) -> bool {
        self.axes.operands[operand].get(rows.axis).is_none_or(|axis| *axis == OperandAxis::Whole)
    }

    /// The node that gives the rows of the program, and its packed axis. If it mixes rows, the unspecified ones
    /// are replaced.
    fn represent(&self, c: &mut OpCall<'_, '_>) -> RuleResult<PackedNode> {
        let PackedCall { op, inputs, .. } = *self;
        // Ranks may have different numbers of rows.
        if op.group().is_some() {
            return refuse_any(c, op, &self.rows);
        }
        let Some((operand, mixed)) = self.packed_operands().find(|(k, rows)| self.is_mixed(*k, rows)) else {
            return self.represent_aligned(c);
        };
        let are_all_mixed = self.packed_operands().all(|(k, rows)| self.is_mixed(k, rows));
        let dtype = c.dtype(inputs[operand]);
        let (filled, rows) = match op {
            Op::Reduce { op: kind, .. } if mixes_rows(c) => (neutral_element(*kind, dtype), None),
            Op::ArgReduce { op, .. } if mixes_rows(c) => (Some(extreme(dtype, *op == ArgOp::Min)), None),
            Op::Softmax { .. } => (Some(Scalar::Float(FloatAttribute(f64::NEG_INFINITY))), Some(mixed)),
            Op::Sort { descending, .. } if has_word(SORTING, operator(c)) => {
                (Some(last_in_order(dtype, *descending)), Some(mixed))
            }
            Op::CumSum { .. } => {
                return Ok(PackedNode { inputs: inputs.to_vec(), rows: Some(mixed.clone()) });
            }
            Op::MatMul { .. } if are_all_mixed => {
                let mut inputs = inputs.to_vec();
                for (operand, value) in inputs.iter_mut().enumerate() {
                    let rows = moved(mixed, c.rank(*value) - 1 - operand);
                    *value = c.fill_rest(*value, &rows, Scalar::Int(0))?;
                }
                return Ok(PackedNode { inputs, rows: None });
            }
            Op::GroupedMatMul if are_all_mixed && self.has_grouped_rows(c) => {
                return Ok(PackedNode { inputs: inputs.to_vec(), rows: None });
            }
            // Positions are within the rows of the indexed axis.
            Op::Take { .. } | Op::Index { .. } | Op::GatherElements { .. }
                if has_word(TAKING, operator(c)) =>
            {
                return self.represent_aligned(c);
            }
            _ => (None, None),
        };
        let Some(filled) = filled else { return refuse(c, op, &mixed.length) };
        Ok(PackedNode { inputs: vec![c.fill_rest(inputs[operand], mixed, filled)?], rows: rows.cloned() })
    }

    /// Whether groups, which end within the rows, divide the rows of both matrices of a grouped product.
    fn has_grouped_rows(&self, c: &OpCall<'_, '_>) -> bool {
        match &self.rows[..] {
            [Some(of_x), Some(of_y), None] => c.rank(self.inputs[1]) == 2 && of_x.length == of_y.length,
            _ => false,
        }
    }

    /// A node that computes a row of its result from the same row of packed operands, except of those that it
    /// indexes.
    fn represent_aligned(&self, c: &mut OpCall<'_, '_>) -> RuleResult<PackedNode> {
        let PackedCall { op, inputs, .. } = *self;
        let mut node = PackedNode { inputs: inputs.to_vec(), rows: None };
        for (operand, rows) in self.packed_operands() {
            if self.is_mixed(operand, rows) {
                continue;
            }
            let of_result = self.result_rows(c, operand, rows);
            if of_result.is_none() || node.rows.is_some() && node.rows != of_result {
                return refuse(c, op, &rows.length);
            }
            node.rows = of_result;
            if matches!(op.operand_use(operand), OperandUse::Index { .. }) {
                node.inputs[operand] = c.fill_rest(inputs[operand], rows, Scalar::Int(0))?;
            }
        }
        let Some(rows) = &node.rows else { return Ok(node) };
        for (operand, &x) in inputs.iter().enumerate().filter(|(k, _)| self.rows[*k].is_none()) {
            let axis = self.axes.operand_axis(operand, rows.axis);
            let is_fixed = axis.is_some_and(|axis| c.extent(x, axis).as_const() != Some(1));
            if is_fixed && !is_created_here(c, x) {
                return c.refuse_packed("it combines rows with a value of fixed extent", &rows.length);
            }
        }
        Ok(node)
    }

    /// The packed axis of the results for that of an operand.
    fn result_rows(&self, c: &OpCall<'_, '_>, operand: usize, rows: &PackedRows) -> Option<PackedRows> {
        match self.axes.operands[operand][rows.axis] {
            OperandAxis::Aligned(axis) => {
                (self.axes.results[axis] != ResultAxis::Joint).then(|| moved(rows, axis))
            }
            OperandAxis::Outer(axis) => {
                let inner = extent_product(&c.shape(self.inputs[operand])[rows.axis + 1..]);
                let result_inner = extent_product(&self.results.first()?.shape[axis + 1..]);
                let length = (rows.length.clone() * inner).exact_div(&result_inner)?;
                Some(PackedRows { axis, length })
            }
            OperandAxis::Broadcast | OperandAxis::Whole => None,
        }
    }
}

fn moved(rows: &PackedRows, axis: usize) -> PackedRows {
    PackedRows { axis, length: rows.length.clone() }
}

/// Whether the operator mixes rows in a way that does not depend on their number.
fn mixes_rows(c: &OpCall<'_, '_>) -> bool {
    has_word(MIXING, operator(c))
}

/// The operator of a call, or the functional counterpart of one that writes.
fn operator<'a>(c: &OpCall<'_, 'a>) -> &'a str {
    op_of(&c.node.target).trim_end_matches('_')
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

/// Whether this call emitted a value without packed operands: ranges, masks and fills, whose first rows are
/// those of any length.
fn is_created_here(c: &OpCall<'_, '_>, x: ValueId) -> bool {
    !c.existed_before(x) || c.lowering.packed.masks.values().any(|v| v.index() == x.index())
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
