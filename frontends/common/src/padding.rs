//! Padding of an axis with elements of the operand itself.

use symmc_ir::{BinaryOp, Dim, Op, Scalar, TensorType, ValueId};

use crate::emit::Emit;
use crate::failure::RuleResult;
use crate::formula::EmitFormulas;
use crate::{invalid_if, unsupported};

/// The elements that surround an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PaddingMode {
    /// The elements of the axis in reverse order, without the element at the border. They repeat if they are too few.
    Reflect,
    /// The element at the border, repeated.
    Edge,
    /// The elements of the axis, from its other end on.
    Wrap,
}

/// The numbers of elements to add before and after an axis. Negative numbers remove elements.
#[derive(Clone, Debug)]
pub struct AxisPadding {
    pub axis: usize,
    pub before: Dim,
    pub after: Dim,
}

/// Pads axes with a number.
pub fn pad_with_number<C: Emit>(
    c: &mut C,
    x: ValueId,
    paddings: &[AxisPadding],
    value: Scalar,
) -> RuleResult<ValueId, C::Error> {
    let dtype = c.dtype(x);
    let mut shape = c.shape(x);
    let mut low = vec![Dim::from(0); shape.len()];
    for AxisPadding { axis, before, after } in paddings {
        c.require_cropped(&shape[*axis], before, after)?;
        shape[*axis] = shape[*axis].clone() + before.clone() + after.clone();
        low[*axis] = low[*axis].clone() + before.clone();
    }
    if paddings.iter().all(|p| p.before.as_const() == Some(0) && p.after.as_const() == Some(0)) {
        return Ok(x);
    }
    let op = Op::Pad { low, value: value.convert_to(dtype) };
    c.emit_as("pad", op, &[x], TensorType::new(dtype, shape))
}

/// Pads axes with elements of the operand, one after the other. Elements are removed before others are added, except
/// that the elements at the borders stay known.
pub fn pad_with_elements<C: Emit>(
    c: &mut C,
    x: ValueId,
    paddings: &[AxisPadding],
    mode: PaddingMode,
) -> RuleResult<ValueId, C::Error> {
    let mut y = x;
    let mut added = Vec::new();
    for padding in paddings {
        let AxisPadding { axis, before, after } = padding;
        if mode == PaddingMode::Edge {
            c.require_cropped(&c.extent(y, *axis), before, after)?;
            added.push(padding.clone());
            continue;
        }
        let (start, before) = removed_and_added(c, before)?;
        let (end, after) = removed_and_added(c, after)?;
        let len = c.extent(y, *axis) - start.clone() - end.clone();
        c.require_at_most("cropped", &(start.clone() + end), &c.extent(y, *axis))?;
        y = c.slice(y, *axis, start, len, 1)?;
        added.push(AxisPadding { axis: *axis, before, after });
    }
    for padding in &added {
        y = pad_axis(c, y, padding, mode)?;
    }
    Ok(y)
}

/// The number of elements that a padding removes, and the number that it adds.
fn removed_and_added<C: Emit>(c: &C, padding: &Dim) -> RuleResult<(Dim, Dim), C::Error> {
    match c.dim_bounds(padding) {
        (0.., _) => Ok((0.into(), padding.clone())),
        (_, ..=0) => Ok((Dim::from(0) - padding.clone(), 0.into())),
        _ => unsupported!("a padding of {padding:?} may add or remove elements"),
    }
}

fn pad_axis<C: Emit>(
    c: &mut C,
    x: ValueId,
    AxisPadding { axis, before, after }: &AxisPadding,
    mode: PaddingMode,
) -> RuleResult<ValueId, C::Error> {
    let n = c.extent(x, *axis);
    if before.as_const() == Some(0) && after.as_const() == Some(0) {
        return Ok(x);
    }
    let index = padded_index(c, &n, before, after, mode)?;
    c.emit("take", Op::Take { axis: *axis }, &[x, index])
}

/// The positions of the elements of a padded axis of extent `n`.
fn padded_index<C: Emit>(
    c: &mut C,
    n: &Dim,
    before: &Dim,
    after: &Dim,
    mode: PaddingMode,
) -> RuleResult<ValueId, C::Error> {
    let last = n.clone() - Dim::from(1);
    let count = n.clone() + before.clone() + after.clone();
    let positions = c.emit_positions(&(Dim::from(0) - before.clone()), 1, count)?;
    c.formula([positions], |[positions]| match mode {
        PaddingMode::Edge => positions.max(0).binary_dim(BinaryOp::Min, &last),
        PaddingMode::Wrap => positions.binary_dim(BinaryOp::Rem, n),
        PaddingMode::Reflect => {
            // An axis of one element is its own reflection.
            let period = Dim::from(2) * last;
            let within = positions.binary_dim(BinaryOp::Rem, &period.max_with(&1.into()));
            let reflected = (-within).binary_dim(BinaryOp::Add, &period);
            within.min(reflected)
        }
    })
}

/// The gradient of an operand of the shape `to` of [`pad_with_elements`], whose paddings are not negative.
pub fn padding_gradient<C: Emit>(
    c: &mut C,
    gradient: ValueId,
    to: &[Dim],
    paddings: &[AxisPadding],
    mode: PaddingMode,
) -> RuleResult<ValueId, C::Error> {
    let dtype = c.dtype(gradient);
    let rank = c.rank(gradient);
    invalid_if!(rank != to.len(), "expected {} axes of the gradient, found {rank}", to.len());
    let mut y = c.cast(gradient, dtype.compute_dtype())?;
    for AxisPadding { axis, before, after } in paddings {
        if c.dim_bounds(before).0 < 0 || c.dim_bounds(after).0 < 0 {
            return unsupported!("gradients of negative paddings are not supported");
        }
        let index = padded_index(c, &to[*axis], before, after, mode)?;
        let mut shape = c.shape(y);
        shape[*axis] = to[*axis].clone();
        let zeros = c.full(Scalar::Int(0), c.dtype(y), shape)?;
        y = c.emit("index_put", Op::IndexPut { axis: *axis, accumulate: true }, &[zeros, y, index])?;
    }
    c.cast(y, dtype)
}
