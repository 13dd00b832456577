//! Bags of embeddings: rows of a table, combined by bag. Bag `b` has the indices from `offsets[b]` up to those of the next.

use symmc_import::Emit;
use symmc_ir::{BinaryOp, DType, Dim, Op, Reduction, Scalar, Type, ValueId};

use super::{Row, row, row_of_results};
use crate::call::Call;
use crate::lower::{Emitted, Lowered, Stop};

pub(super) const ROWS: &[Row] = &[
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
enum Mode {
    Sum,
    Mean,
    Max,
}

fn mode(c: &Call<'_, '_>) -> Lowered<Mode> {
    match c.int_or("mode", 0)? {
        0 => Ok(Mode::Sum),
        1 => Ok(Mode::Mean),
        2 => Ok(Mode::Max),
        other => Err(Stop::Broken(format!("expected mode 0, 1 or 2, found {other}"))),
    }
}

struct Bags {
    indices: ValueId,
    /// The bag of each index.
    of: ValueId,
    count: Dim,
    /// 1 for each index that counts and 0 for padding, where there may be some.
    counted: Option<ValueId>,
    /// How many indices that count each bag has.
    sizes: ValueId,
}

impl Bags {
    /// What the arguments say of `count` bags.
    fn of(c: &mut Call<'_, '_>, count: Dim) -> Lowered<Bags> {
        let (indices, offsets) = (c.tensor("indices")?, c.tensor("offsets")?);
        let indices = if c.dtype(indices) == DType::Bool { c.cast(indices, DType::I64)? } else { indices };
        if c.rank(indices) != 1 || c.rank(offsets) != 1 {
            let (a, b) = (c.rank(indices), c.rank(offsets));
            return Err(Stop::Broken(format!("expected indices and offsets of one axis, found {a} and {b}")));
        }
        let n = c.extent(indices, 0);
        // An index is of the last bag that begins at it or before; offsets rise.
        let offsets = c.slice(offsets, 0, 0.into(), count.clone(), 1)?;
        let offsets = c.cast(offsets, DType::I64)?;
        let position = c.iota(n, 0, 1, DType::I64)?;
        let position = c.unsqueeze(position, 1)?;
        let begun = c.binary(BinaryOp::Ge, position, offsets)?;
        let begun = c.reduce(Reduction::Sum, begun, vec![1], false)?;
        let of = c.with_scalar(BinaryOp::Sub, begun, Scalar::Int(1))?;
        let counted = counted(c, indices)?;
        let ones = match counted {
            Some(counted) => c.cast(counted, DType::I64)?,
            None => c.full(Scalar::Int(1), DType::I64, c.shape(indices))?,
        };
        let none = c.full(Scalar::Int(0), DType::I64, vec![count.clone()])?;
        let sizes = c.emit("index_add", Op::IndexAdd { axis: 0 }, &[none, of, ones])?;
        Ok(Bags { indices, of, count, counted, sizes })
    }

    /// The same where the program has computed it before.
    fn told(c: &mut Call<'_, '_>, count: Dim) -> Lowered<Bags> {
        let (indices, of, sizes) = (c.tensor("indices")?, c.tensor("offset2bag")?, c.tensor("bag_size")?);
        if c.shape(of) != c.shape(indices) || c.rank(of) != 1 {
            return Err(Stop::Opaque("it is not told the bag of each index".into()));
        }
        let counted = counted(c, indices)?;
        Ok(Bags { indices, of, count, counted, sizes })
    }

    /// Rows for the indices, which of padding are `other`.
    fn without_padding(&self, c: &mut Call<'_, '_>, rows: ValueId, other: Scalar) -> Emitted {
        let Some(counted) = self.counted else { return Ok(rows) };
        let counted = c.unsqueeze(counted, 1)?;
        let fill = c.full(other, c.dtype(rows), vec![])?;
        c.select(counted, rows, fill)
    }

    /// Rows for the bags divided by how many indices count in each.
    fn divided(&self, c: &mut Call<'_, '_>, rows: ValueId) -> Emitted {
        let sizes = c.with_scalar(BinaryOp::Max, self.sizes, Scalar::Int(1))?;
        let sizes = c.cast(sizes, c.dtype(rows))?;
        let sizes = c.unsqueeze(sizes, 1)?;
        c.binary(BinaryOp::Div, rows, sizes)
    }
}

/// Which indices count, where one of the table's rows is padding.
fn counted(c: &mut Call<'_, '_>, indices: ValueId) -> Lowered<Option<ValueId>> {
    match c.int_or("padding_idx", -1)? {
        padding @ 0.. => c.with_scalar(BinaryOp::Ne, indices, Scalar::Int(padding)).map(Some),
        _ => Ok(None),
    }
}

/// Rows for the indices times the weight of each, if there are weights.
fn weighted(c: &mut Call<'_, '_>, rows: ValueId) -> Emitted {
    let Some(weights) = c.opt_tensor("per_sample_weights")? else { return Ok(rows) };
    let weights = c.cast(weights, c.dtype(rows))?;
    let weights = c.unsqueeze(weights, 1)?;
    c.binary(BinaryOp::Mul, rows, weights)
}

fn forward(c: &mut Call<'_, '_>) -> Lowered {
    // These are about gradients.
    c.ignore(&["scale_grad_by_freq", "sparse"]);
    let (table, offsets) = (c.tensor("weight")?, c.tensor("offsets")?);
    let mode = mode(c)?;
    let last = i64::from(c.bool_or("include_last_offset", false)?);
    let count = c.extent(offsets, 0) - Dim::from(last);
    if c.bounds(&count).1 < 0 {
        return Err(Stop::Broken("expected an offset for the end, found none".into()));
    }
    let bags = Bags::of(c, count)?;
    let dtype = c.dtype(table);
    let rows = c.emit("take", Op::Take { axis: 0 }, &[table, bags.indices])?;
    let rows = c.cast(rows, dtype.wide())?;
    let rows = weighted(c, rows)?;
    let y = if mode == Mode::Max { largest(c, &bags, rows)? } else { summed(c, &bags, rows, mode)? };
    let y = c.cast(y, dtype)?;
    c.set(0, y);
    if mode == Mode::Max && c.wants(3) {
        return Err(Stop::Opaque("where its largest elements are from is used".into()));
    }
    // What else there is serves gradients: it has these contents wherever they need it. Those of sums need no sizes of bags,
    // and PyTorch's kernels for CPUs leave them 0.
    let sizes = (mode != Mode::Sum).then_some(bags.sizes);
    for (at, value) in [(1, Some(bags.of)), (2, sizes), (3, None)] {
        if c.wants(at) {
            let declared = c.declared(at)?;
            let value = match value.filter(|&v| c.shape(v) == declared.shape) {
                Some(value) => c.cast(value, declared.dtype)?,
                None => c.full(Scalar::Int(0), declared.dtype, declared.shape)?,
            };
            c.set(at, value);
        }
    }
    Ok(())
}

fn summed(c: &mut Call<'_, '_>, bags: &Bags, rows: ValueId, mode: Mode) -> Emitted {
    let rows = bags.without_padding(c, rows, Scalar::Int(0))?;
    let (dtype, width) = (c.dtype(rows), c.extent(rows, 1));
    let none = c.full(Scalar::Int(0), dtype, vec![bags.count.clone(), width])?;
    let sum = c.emit("index_add", Op::IndexAdd { axis: 0 }, &[none, bags.of, rows])?;
    if mode == Mode::Sum { Ok(sum) } else { bags.divided(c, sum) }
}

/// The largest elements of the rows of each bag; of empty bags 0.
fn largest(c: &mut Call<'_, '_>, bags: &Bags, rows: ValueId) -> Emitted {
    let least = Scalar::Float(symmc_ir::Float(f64::NEG_INFINITY));
    let rows = bags.without_padding(c, rows, least)?;
    let shape = c.shape(rows);
    let of = c.unsqueeze(bags.of, 1)?;
    let of = c.expand(of, shape.clone())?;
    let ty = Type::new(c.dtype(rows), vec![bags.count.clone(), c.extent(rows, 1)]);
    let none = c.full(least, ty.dtype, ty.shape.clone())?;
    let op = Op::ScatterElements { axis: 0, combine: Some(Reduction::Max) };
    let y = c.emit_as("scatter", op, &[none, of, rows], ty)?;
    let some = c.with_scalar(BinaryOp::Gt, bags.sizes, Scalar::Int(0))?;
    let some = c.unsqueeze(some, 1)?;
    let zero = c.full(Scalar::Int(0), c.dtype(y), vec![])?;
    c.select(some, y, zero)
}

/// The gradient of the table: that of each bag, at the rows of its indices.
fn backward(c: &mut Call<'_, '_>) -> Emitted {
    c.ignore(&["maximum_indices", "offset2bag", "bag_size"]);
    let gradient = c.tensor("grad")?;
    let count = c.extent(gradient, 0);
    let mode = mode(c)?;
    if mode == Mode::Max || c.bool_or("scale_grad_by_freq", false)? || c.bool_or("sparse", false)? {
        return Err(Stop::Opaque("it is that of largest elements, scaled by frequency, or sparse".into()));
    }
    let bags = if c.get("offsets").is_some() { Bags::of(c, count)? } else { Bags::told(c, count)? };
    let (dtype, rows) = (c.dtype(gradient), c.dim("num_weights")?);
    let mut each = c.cast(gradient, dtype.wide())?;
    if mode == Mode::Mean {
        each = bags.divided(c, each)?;
    }
    let each = c.emit("take", Op::Take { axis: 0 }, &[each, bags.of])?;
    let each = weighted(c, each)?;
    let each = bags.without_padding(c, each, Scalar::Int(0))?;
    let none = c.full(Scalar::Int(0), dtype.wide(), vec![rows, c.extent(each, 1)])?;
    let y = c.emit("index_add", Op::IndexAdd { axis: 0 }, &[none, bags.indices, each])?;
    c.cast(y, dtype)
}
