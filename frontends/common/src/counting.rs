//! The positions of true elements, whose number is data. The results have room for as many as there can be.

use symmc_ir::{BinaryOp, DType, Dim, Op, ReductionKind, Scalar, ValueId};

use crate::emit::{Emit, extent_product};
use crate::failure::RuleResult;

/// The number of true elements of a row of bools, as an integer without axes, and the row as integers.
pub fn count_true<C: Emit>(c: &mut C, mask: ValueId) -> RuleResult<[ValueId; 2], C::Error> {
    let flags = c.cast(mask, DType::I64)?;
    Ok([c.reduce(ReductionKind::Sum, flags, vec![0], false)?, flags])
}

/// The positions of the first `capacity` true elements of a row, in order, followed by zeros. `flags` are its elements as
/// integers. The other elements are stored after the last position, which is cut off.
pub fn first_positions<C: Emit>(
    c: &mut C,
    mask: ValueId,
    flags: ValueId,
    capacity: &Dim,
) -> RuleResult<ValueId, C::Error> {
    let n = c.extent(mask, 0);
    let sums = c.emit("cumsum", Op::CumSum { axis: 0 }, &[flags])?;
    let number = c.binary_scalar(BinaryOp::Sub, sums, Scalar::Int(1))?;
    let end = c.emit_dim(capacity, DType::I64)?;
    let mut target = c.select(mask, number, end)?;
    if c.dim_bounds(&(n.clone() - capacity.clone())).1 > 0 {
        target = c.binary(BinaryOp::Min, target, end)?;
    }
    let zeros = c.full(Scalar::Int(0), DType::I64, vec![capacity.clone() + Dim::from(1)])?;
    let all = c.iota(n, 0, 1, DType::I64)?;
    let op = Op::IndexPut { axis: 0, accumulate: false };
    let found = c.emit("index_put", op, &[zeros, all, target])?;
    c.slice(found, 0, 0.into(), capacity.clone(), 1)
}

/// The coordinates of positions in row-major order of a shape, for each axis.
pub fn coordinates<C: Emit>(
    c: &mut C,
    positions: ValueId,
    shape: &[Dim],
) -> RuleResult<Vec<ValueId>, C::Error> {
    let mut axes = Vec::with_capacity(shape.len());
    for axis in 0..shape.len() {
        let stride = extent_product(&shape[axis + 1..]);
        let mut position = positions;
        if stride.as_const() != Some(1) {
            let stride = at_least_one(c, stride);
            position = c.binary_dim(BinaryOp::FloorDiv, position, &stride)?;
        }
        if axis > 0 {
            let extent = at_least_one(c, shape[axis].clone());
            position = c.binary_dim(BinaryOp::Rem, position, &extent)?;
        }
        axes.push(position);
    }
    Ok(axes)
}

/// The extent, or 1 if it is 0, as a divisor.
fn at_least_one<C: Emit>(c: &C, extent: Dim) -> Dim {
    if c.dim_bounds(&extent).0 > 0 { extent } else { extent.max_with(&1.into()) }
}
