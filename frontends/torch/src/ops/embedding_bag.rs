//! Bags of embeddings: rows of a table, combined by bag. Bag `b` has the indices from `offsets[b]` up to those of the next.

use symmc_import::Emit;
use symmc_ir::{BinaryOp, DType, Dim, Op, ReductionKind, Scalar, TensorType, ValueId};

use super::{RuleRow, row, row_of_results};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleFailure, RuleResult};

pub(super) const ROWS: &[RuleRow] = &[
    row_of_results("aten._embedding_bag", "take, index_add, or scatter for the largest", forward),
    row_of_results(
        "aten._embedding_bag_forward_only",
        "take, index_add, or scatter for the largest",
        forward,
    ),
    row("aten._embedding_bag_backward", "take, index_add", backward),
    row("aten._embedding_bag_dense_backward", "take, index_add", backward),
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
        other => Err(RuleFailure::Invalid(format!("expected mode 0, 1 or 2, found {other}"))),
    }
}

struct EmbeddingBags {
    indices: ValueId,
    /// The bag of each index.
    bag_of_index: ValueId,
    count: Dim,
    /// 1 for each index that counts and 0 for padding, where there may be some.
    counted_indices: Option<ValueId>,
    /// How many indices that count each bag has.
    sizes: ValueId,
}

impl EmbeddingBags {
    /// What the arguments say of `count` bags.
    fn from_offsets(c: &mut OpCall<'_, '_>, count: Dim) -> RuleResult<EmbeddingBags> {
        let (indices, offsets) = (c.tensor("indices")?, c.tensor("offsets")?);
        let indices = if c.dtype(indices) == DType::Bool { c.cast(indices, DType::I64)? } else { indices };
        if c.rank(indices) != 1 || c.rank(offsets) != 1 {
            let (a, b) = (c.rank(indices), c.rank(offsets));
            return Err(RuleFailure::Invalid(format!(
                "expected indices and offsets of one axis, found {a} and {b}"
            )));
        }
        let n = c.extent(indices, 0);
        // An index is of the last bag that begins at it or before; offsets rise.
        let offsets = c.slice(offsets, 0, 0.into(), count.clone(), 1)?;
        let offsets = c.cast(offsets, DType::I64)?;
        let position = c.iota(n, 0, 1, DType::I64)?;
        let position = c.unsqueeze(position, 1)?;
        let begun = c.binary(BinaryOp::Ge, position, offsets)?;
        let begun = c.reduce(ReductionKind::Sum, begun, vec![1], false)?;
        let of = c.binary_scalar(BinaryOp::Sub, begun, Scalar::Int(1))?;
        let counted = find_counted_indices(c, indices)?;
        let ones = match counted {
            Some(counted) => c.cast(counted, DType::I64)?,
            None => c.full(Scalar::Int(1), DType::I64, c.shape(indices))?,
        };
        let none = c.full(Scalar::Int(0), DType::I64, vec![count.clone()])?;
        let sizes = c.emit("index_add", Op::IndexAdd { axis: 0 }, &[none, of, ones])?;
        Ok(EmbeddingBags { indices, bag_of_index: of, count, counted_indices: counted, sizes })
    }

    /// The same where the program has computed it before.
    fn from_computed(c: &mut OpCall<'_, '_>, count: Dim) -> RuleResult<EmbeddingBags> {
        let (indices, of, sizes) = (c.tensor("indices")?, c.tensor("offset2bag")?, c.tensor("bag_size")?);
        if c.shape(of) != c.shape(indices) || c.rank(of) != 1 {
            return Err(RuleFailure::Opaque("it is not told the bag of each index".into()));
        }
        let counted = find_counted_indices(c, indices)?;
        Ok(EmbeddingBags { indices, bag_of_index: of, count, counted_indices: counted, sizes })
    }

    /// Rows for the indices, which of padding are `other`.
    fn mask_padding(&self, c: &mut OpCall<'_, '_>, rows: ValueId, other: Scalar) -> EmitResult {
        let Some(counted) = self.counted_indices else { return Ok(rows) };
        let counted = c.unsqueeze(counted, 1)?;
        let fill = c.full(other, c.dtype(rows), vec![])?;
        c.select(counted, rows, fill)
    }

    /// Rows for the bags divided by how many indices count in each.
    fn divide_by_sizes(&self, c: &mut OpCall<'_, '_>, rows: ValueId) -> EmitResult {
        let sizes = c.binary_scalar(BinaryOp::Max, self.sizes, Scalar::Int(1))?;
        let sizes = c.cast(sizes, c.dtype(rows))?;
        let sizes = c.unsqueeze(sizes, 1)?;
        c.binary(BinaryOp::Div, rows, sizes)
    }
}

/// Which indices count, where one of the table's rows is padding.
fn find_counted_indices(c: &mut OpCall<'_, '_>, indices: ValueId) -> RuleResult<Option<ValueId>> {
    match c.int_or("padding_idx", -1)? {
        padding @ 0.. => c.binary_scalar(BinaryOp::Ne, indices, Scalar::Int(padding)).map(Some),
        _ => Ok(None),
    }
}

/// Rows for the indices times the weight of each, if there are weights.
fn weight_rows(c: &mut OpCall<'_, '_>, rows: ValueId) -> EmitResult {
    let Some(weights) = c.opt_tensor("per_sample_weights")? else { return Ok(rows) };
    let weights = c.cast(weights, c.dtype(rows))?;
    let weights = c.unsqueeze(weights, 1)?;
    c.binary(BinaryOp::Mul, rows, weights)
}

fn forward(c: &mut OpCall<'_, '_>) -> RuleResult {
    // These are about gradients.
    c.ignore(&["scale_grad_by_freq", "sparse"]);
    let (table, offsets) = (c.tensor("weight")?, c.tensor("offsets")?);
    let mode = mode(c)?;
    let last = i64::from(c.bool_or("include_last_offset", false)?);
    let count = c.extent(offsets, 0) - Dim::from(last);
    if c.dim_bounds(&count).1 < 0 {
        return Err(RuleFailure::Invalid("expected an offset for the end, found none".into()));
    }
    let bags = EmbeddingBags::from_offsets(c, count)?;
    let dtype = c.dtype(table);
    let rows = c.emit("take", Op::Take { axis: 0 }, &[table, bags.indices])?;
    let rows = c.cast(rows, dtype.compute_dtype())?;
    let rows = weight_rows(c, rows)?;
    let y = if mode == BagMode::Max { max_bags(c, &bags, rows)? } else { sum_bags(c, &bags, rows, mode)? };
    let y = c.cast(y, dtype)?;
    c.set_result(0, y);
    if mode == BagMode::Max && c.is_result_read(3) {
        return Err(RuleFailure::Opaque("where its largest elements are from is used".into()));
    }
    // What else there is serves gradients: it has these contents wherever they need it. Those of sums need no sizes of bags,
    // and PyTorch's kernels for CPUs leave them 0.
    let sizes = (mode != BagMode::Sum).then_some(bags.sizes);
    for (at, value) in [(1, Some(bags.bag_of_index)), (2, sizes), (3, None)] {
        if c.is_result_read(at) {
            let declared = c.declared_result_type(at)?;
            let value = match value.filter(|&v| c.shape(v) == declared.shape) {
                Some(value) => c.cast(value, declared.dtype)?,
                None => c.full(Scalar::Int(0), declared.dtype, declared.shape)?,
            };
            c.set_result(at, value);
        }
    }
    Ok(())
}

fn sum_bags(c: &mut OpCall<'_, '_>, bags: &EmbeddingBags, rows: ValueId, mode: BagMode) -> EmitResult {
    let rows = bags.mask_padding(c, rows, Scalar::Int(0))?;
    let (dtype, width) = (c.dtype(rows), c.extent(rows, 1));
    let none = c.full(Scalar::Int(0), dtype, vec![bags.count.clone(), width])?;
    let sum = c.emit("index_add", Op::IndexAdd { axis: 0 }, &[none, bags.bag_of_index, rows])?;
    if mode == BagMode::Sum { Ok(sum) } else { bags.divide_by_sizes(c, sum) }
}

/// The largest elements of the rows of each bag; of empty bags 0.
fn max_bags(c: &mut OpCall<'_, '_>, bags: &EmbeddingBags, rows: ValueId) -> EmitResult {
    let least = Scalar::Float(symmc_ir::FloatAttribute(f64::NEG_INFINITY));
    let rows = bags.mask_padding(c, rows, least)?;
    let shape = c.shape(rows);
    let of = c.unsqueeze(bags.bag_of_index, 1)?;
    let of = c.expand(of, shape.clone())?;
    let ty = TensorType::new(c.dtype(rows), vec![bags.count.clone(), c.extent(rows, 1)]);
    let none = c.full(least, ty.dtype, ty.shape.clone())?;
    let op = Op::ScatterElements { axis: 0, combine: Some(ReductionKind::Max) };
    let y = c.emit_as("scatter", op, &[none, of, rows], ty)?;
    let some = c.binary_scalar(BinaryOp::Gt, bags.sizes, Scalar::Int(0))?;
    let some = c.unsqueeze(some, 1)?;
    let zero = c.full(Scalar::Int(0), c.dtype(y), vec![])?;
    c.select(some, y, zero)
}

/// The gradient of the table: that of each bag, at the rows of its indices.
fn backward(c: &mut OpCall<'_, '_>) -> EmitResult {
    c.ignore(&["maximum_indices", "offset2bag", "bag_size"]);
    let gradient = c.tensor("grad")?;
    let count = c.extent(gradient, 0);
    let mode = mode(c)?;
    if mode == BagMode::Max || c.bool_or("scale_grad_by_freq", false)? || c.bool_or("sparse", false)? {
        return Err(RuleFailure::Opaque(
            "it is that of largest elements, scaled by frequency, or sparse".into(),
        ));
    }
    let bags = if c.get("offsets").is_some() {
        EmbeddingBags::from_offsets(c, count)?
    } else {
        EmbeddingBags::from_computed(c, count)?
    };
    let (dtype, rows) = (c.dtype(gradient), c.dim("num_weights")?);
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
