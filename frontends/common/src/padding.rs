//! Padding of an axis with elements of the operand itself.

use symmc_ir::{BinaryOp, Dim, Op, Scalar, TensorType, ValueId};

use crate::emit::Emit;
use crate::failure::RuleResult;
use crate::formula::EmitFormulas;
use crate::unsupported;

/// The elements that surround an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PaddingMode {
    /// Those of the axis in reverse order, without the one at the border, as often as needed.
    Reflect,
    /// The one at the border.
    Edge,
    /// Those of the axis, from its other end on.
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

/// Pads axes with elements of the operand, one after the other. Elements are removed before others are added.
pub fn pad_with_elements<C: Emit>(
    c: &mut C,
    x: ValueId,
    paddings: &[AxisPadding],
    mode: PaddingMode,
) -> RuleResult<ValueId, C::Error> {
    let mut y = x;
    let mut added = Vec::new();
    for AxisPadding { axis, before, after } in paddings {
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
    let last = n.clone() - Dim::from(1);
    let positions =
        c.emit_positions(&(Dim::from(0) - before.clone()), 1, n.clone() + before.clone() + after.clone())?;
    c.formula([x, positions], |[x, positions]| {
        let index = match mode {
            PaddingMode::Edge => positions.max(0).binary_dim(BinaryOp::Min, &last),
            PaddingMode::Wrap => positions.binary_dim(BinaryOp::Rem, &n),
            PaddingMode::Reflect => {
                // An axis of one element is its own reflection.
                let period = Dim::from(2) * last;
                let within = positions.binary_dim(BinaryOp::Rem, &period.max_with(&1.into()));
                let reflected = (-within).binary_dim(BinaryOp::Add, &period);
                within.min(reflected)
            }
        };
        x.take(*axis, index)
    })
}
