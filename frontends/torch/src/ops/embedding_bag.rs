//! Bags of embeddings: rows of a table, reduced per bag. Bag `b` has the indices from `offsets[b]` up to
//! `offsets[b + 1]`.

use symmc_import::{Emit, EmitFormulas, RuleCall, invalid, invalid_if, unsupported_if};
use symmc_ir::{BinaryOp, DType, Dim, FloatAttribute, Op, ReductionKind, Scalar, TensorType, ValueId};

use super::{RuleRow, row, row_of_results};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleFailure, RuleResult};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row_of_results(
        "aten._embedding_bag aten._embedding_bag_forward_only",
        "take, index_add, or scatter for the largest",
        forward,
    ),
    row("aten._embedding_bag_backward aten._embedding_bag_dense_backward", "take, index_add", backward),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum BagMode {
    Sum,
    Mean,
    Max,
}

fn mode(c: &OpCall<'_, '_>) -> RuleResult<BagMode> {
    match c.int_or("mode", 0)? {
        0 => Ok(BagMode::Sum),
        1 => Ok(BagMode::Mean),
        2 => Ok(BagMode::Max),
        other => invalid!("expected mode 0, 1 or 2, found {other}"),
    }
}

struct EmbeddingBags {
    indices: ValueId,
    /// The bag of each index.
    bag_of_index: ValueId,
    count: Dim,
    /// 1 for each index that is not padding and 0 for padding, if there may be padding.
    counted_indices: Option<ValueId>,
    /// The number of indices of each bag that are not padding.
    sizes: ValueId,
}

impl EmbeddingBags {
    /// The bags that the arguments describe. `count` is their number.
    fn from_offsets(c: &mut OpCall<'_, '_>, count: Dim) -> RuleResult<EmbeddingBags> {
        let [indices, offsets] = c.tensors_named(["indices", "offsets"])?;
        let indices = if c.dtype(indices) == DType::Bool { c.cast(indices, DType::I64)? } else { indices };
        invalid_if!(
            c.rank(indices) != 1 || c.rank(offsets) != 1,
            "expected indices and offsets of one axis, found {a} and {b}",
            a = c.rank(indices),
            b = c.rank(offsets)
        );
        let n = c.extent(indices, 0);
        // An index belongs to the last bag that starts at it or before it. Offsets are in ascending order.
        let offsets = c.slice(offsets, 0, 0.into(), count.clone(), 1)?;
        let offsets = c.cast(offsets, DType::I64)?;
        let position = c.iota(n, 0, 1, DType::I64)?;
        let bag_of_index = c.formula([position, offsets], |[position, offsets]| {
            position.unsqueeze(1).ge(offsets).sum(&[1], false) - 1
        })?;
        let counted = find_counted_indices(c, indices)?;
        let ones = match counted {
            Some(counted) => c.cast(counted, DType::I64)?,
            None => c.full(Scalar::Int(1), DType::I64, c.shape(indices))?,
        };
        let none = c.full(Scalar::Int(0), DType::I64, vec![count.clone()])?;
        let sizes = c.emit("index_add", Op::IndexAdd { axis: 0 }, &[none, bag_of_index, ones])?;
        Ok(EmbeddingBags { indices, bag_of_index, count, counted_indices: counted, sizes })
    }

    /// The bags that the program has already computed in the forward op.
    fn from_computed(c: &mut OpCall<'_, '_>, count: Dim) -> RuleResult<EmbeddingBags> {
        let [indices, bag_of_index, sizes] = c.tensors_named(["indices", "offset2bag", "bag_size"])?;
        unsupported_if!(
            c.shape(bag_of_index) != c.shape(indices) || c.rank(bag_of_index) != 1,
            "`offset2bag` does not have the bag of each index"
        );
        let counted = find_counted_indices(c, indices)?;
        Ok(EmbeddingBags { indices, bag_of_index, count, counted_indices: counted, sizes })
    }

    /// Replaces the rows of padding indices by `other`.
    fn mask_padding(&self, c: &mut OpCall<'_, '_>, rows: ValueId, other: Scalar) -> EmitResult {
        let Some(counted) = self.counted_indices else { return Ok(rows) };
        c.formula([rows, counted], |[rows, counted]| counted.unsqueeze(1).select(rows, other))
    }

    /// Divides the rows of the bags by the number of indices of each.
    fn divide_by_sizes(&self, c: &mut OpCall<'_, '_>, rows: ValueId) -> EmitResult {
        c.formula([rows, self.sizes], |[rows, sizes]| rows / sizes.max(1).cast(rows.dtype()).unsqueeze(1))
    }
}

/// The indices that are not padding, if one of the table's rows is padding.
fn find_counted_indices(c: &mut OpCall<'_, '_>, indices: ValueId) -> RuleResult<Option<ValueId>> {
    match c.int_or("padding_idx", -1)? {
        padding @ 0.. => c.binary_scalar(BinaryOp::Ne, indices, Scalar::Int(padding)).map(Some),
        _ => Ok(None),
    }
}

/// Multiplies the row of each index by its weight, if there are weights.
fn weight_rows(c: &mut OpCall<'_, '_>, rows: ValueId) -> EmitResult {
    let Some(weights) = c.opt_tensor("per_sample_weights")? else { return Ok(rows) };
    c.formula([rows, weights], |[rows, weights]| rows * weights.cast(rows.dtype()).unsqueeze(1))
}

fn forward(c: &mut OpCall<'_, '_>) -> RuleResult {
    // These arguments only affect gradients.
    c.ignore(&["scale_grad_by_freq", "sparse"]);
    let [table, offsets] = c.tensors_named(["weight", "offsets"])?;
    let mode = mode(c)?;
    let trailing = i64::from(c.bool_or("include_last_offset", false)?);
    let count = c.extent(offsets, 0) - Dim::from(trailing);
    invalid_if!(c.dim_bounds(&count).1 < 0, "expected an offset for the end, found none");
    let bags = EmbeddingBags::from_offsets(c, count)?;
    let dtype = c.dtype(table);
    let rows = c.emit("take", Op::Take { axis: 0 }, &[table, bags.indices])?;
    let rows = c.cast(rows, dtype.compute_dtype())?;
    let rows = weight_rows(c, rows)?;
    let y = if mode == BagMode::Max { max_bags(c, &bags, rows)? } else { sum_bags(c, &bags, rows, mode)? };
    let y = c.cast(y, dtype)?;
    c.set_result(0, y);
    unsupported_if!(
        mode == BagMode::Max && c.is_result_read(3),
        "the positions of the largest elements are used, which is not supported"
    );
    // The other results are for gradients, and have these contents if a gradient needs them. Gradients of
    // sums do not need the sizes of bags, and PyTorch's CPU kernels leave them 0.
    let sizes = (mode != BagMode::Sum).then_some(bags.sizes);
    for (result, value) in [(1, Some(bags.bag_of_index)), (2, sizes), (3, None)] {
        if c.is_result_read(result) {
            let declared = c.declared_result_type(result)?;
            let value = match value.filter(|&v| c.shape(v) == declared.shape) {
                Some(value) => c.cast(value, declared.dtype)?,
                None => c.full(Scalar::Int(0), declared.dtype, declared.shape)?,
            };
            c.set_result(result, value);
        }
    }
    Ok(())
}

fn sum_bags(c: &mut OpCall<'_, '_>, bags: &EmbeddingBags, rows: ValueId, mode: BagMode) -> EmitResult {
    let rows = bags.mask_padding(c, rows, Scalar::Int(0))?;
    let dtype = c.dtype(rows);
    let width = c.extent(rows, 1);
    let none = c.full(Scalar::Int(0), dtype, vec![bags.count.clone(), width])?;
    let sum = c.emit("index_add", Op::IndexAdd { axis: 0 }, &[none, bags.bag_of_index, rows])?;
    if mode == BagMode::Sum { Ok(sum) } else { bags.divide_by_sizes(c, sum) }
}

/// The largest elements of the rows of each bag. They are 0 for empty bags.
fn max_bags(c: &mut OpCall<'_, '_>, bags: &EmbeddingBags, rows: ValueId) -> EmitResult {
    let lowest = Scalar::Float(FloatAttribute(f64::NEG_INFINITY));
    let rows = bags.mask_padding(c, rows, lowest)?;
    let shape = c.shape(rows);
    let bags_of_rows = c.unsqueeze(bags.bag_of_index, 1)?;
    let bags_of_rows = c.expand(bags_of_rows, shape.clone())?;
    let ty = TensorType::new(c.dtype(rows), vec![bags.count.clone(), c.extent(rows, 1)]);
    let none = c.full(lowest, ty.dtype, ty.shape.clone())?;
    let op = Op::ScatterElements { axis: 0, combine: Some(ReductionKind::Max) };
    let y = c.emit_as("scatter", op, &[none, bags_of_rows, rows], ty)?;
    c.formula([y, bags.sizes], |[y, sizes]| sizes.gt(0).unsqueeze(1).select(y, 0))
}

/// The gradient of the table: the gradient of each bag, added to the rows of its indices.
fn backward(c: &mut OpCall<'_, '_>) -> EmitResult {
    c.ignore(&["maximum_indices", "offset2bag", "bag_size"]);
    let gradient = c.tensor("grad")?;
    let count = c.extent(gradient, 0);
    let mode = mode(c)?;
    if mode == BagMode::Max || c.bool_or("scale_grad_by_freq", false)? || c.bool_or("sparse", false)? {
        let why =
            "gradients of max bags, gradients scaled by frequency and sparse gradients are not supported";
        return Err(RuleFailure::Opaque(why.into()));
    }
    let bags = if c.get("offsets").is_some() {
        EmbeddingBags::from_offsets(c, count)?
    } else {
        EmbeddingBags::from_computed(c, count)?
    };
    let dtype = c.dtype(gradient);
    let rows = c.dim("num_weights")?;
    let mut each = c.cast(gradient, dtype.compute_dtype())?;
    if mode == BagMode::Mean {
        each = bags.divide_by_sizes(c, each)?;
    }
    let each = c.emit("take", Op::Take { axis: 0 }, &[each, bags.bag_of_index])?;
    let each = weight_rows(c, each)?;
    let each = bags.mask_padding(c, each, Scalar::Int(0))?;
    let none = c.full(Scalar::Int(0), dtype.compute_dtype(), vec![rows, c.extent(each, 1)])?;
    let y = c.emit("index_add", Op::IndexAdd { axis: 0 }, &[none, bags.indices, each])?;
    c.cast(y, dtype)
}
