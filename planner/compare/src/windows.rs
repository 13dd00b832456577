//! Windows: a few consecutive positions along the axes of a value, and the positions of operands that an op
//! needs for them.
//!
//! A window of a result is computed exactly. Along axes whose positions are computed independently, windows of
//! the operands suffice. Along other axes the op computes all positions, and the result is cut afterwards.

use symmc_ir::{Dim, Op, OperandAxis, ResultAxis};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AxisSpan {
    pub start: i64,
    pub count: i64,
}

/// The positions along each axis of a value; `None` for all.
pub type ValueWindow = Vec<Option<AxisSpan>>;

/// The computation of a window of an op's result.
#[derive(Clone, Debug)]
pub struct WindowedOp {
    pub op: Op,
    pub operands: Vec<ValueWindow>,
    /// The window of the result that the op then computes. It has all positions along the axes that remain to be cut.
    pub computed: ValueWindow,
}

/// The window with `None` for spans that cover a whole axis.
pub fn normalized(window: ValueWindow, shape: &[i64]) -> ValueWindow {
    window
        .into_iter()
        .zip(shape)
        .map(|(span, &extent)| span.filter(|s| s.start != 0 || s.count < extent))
        .collect()
}

pub fn window_extents(window: &ValueWindow, shape: &[i64]) -> Vec<i64> {
    window.iter().zip(shape).map(|(span, &extent)| span.map_or(extent, |s| s.count)).collect()
}

/// An op over a window of its results, which all have this shape. All dims of the op are numbers.
pub fn window_op(op: &Op, operands: &[&[i64]], shape: &[i64], window: &ValueWindow) -> WindowedOp {
    if let Some(slice) = window_slice(op, shape, window) {
        return slice;
    }
    let dims = |shape: &[i64]| -> Vec<Dim> { shape.iter().copied().map(Dim::from).collect() };
    let operand_dims: Vec<Vec<Dim>> = operands.iter().map(|shape| dims(shape)).collect();
    let operand_dims: Vec<&[Dim]> = operand_dims.iter().map(Vec::as_slice).collect();
    let axes = op.axes(&operand_dims, &[&dims(shape)]);
    let mut op = op.clone();
    let mut computed = window.clone();
    for (span, kind) in computed.iter_mut().zip(&axes.results) {
        let Some(AxisSpan { start, .. }) = *span else { continue };
        match kind {
            ResultAxis::Independent => {}
            ResultAxis::Joint => *span = None,
            ResultAxis::Positional => match op.starting_at(&Dim::from(start)) {
                Some(moved) => op = moved,
                None => *span = None,
            },
        }
    }
    let span_of = |axis: OperandAxis| match axis {
        OperandAxis::Aligned(result_axis) => computed[result_axis],
        OperandAxis::Outer(_) | OperandAxis::Broadcast | OperandAxis::Whole => None,
    };
    let operands = axes.operands.into_iter().map(|axes| axes.into_iter().map(span_of).collect());
    WindowedOp { op, operands: operands.collect(), computed }
}

/// A slice reads a window of its operand, also for its whole result.
fn window_slice(op: &Op, shape: &[i64], window: &ValueWindow) -> Option<WindowedOp> {
    let Op::Slice { axis, start, step } = op else { return None };
    let span = window.get(*axis)?.unwrap_or(AxisSpan { start: 0, count: shape[*axis] });
    let first = start.as_const()?.checked_add(step.checked_mul(span.start)?)?;
    let count = if span.count > 0 { step.checked_mul(span.count - 1)?.checked_add(1)? } else { 0 };
    let mut operand = window.clone();
    operand[*axis] = Some(AxisSpan { start: first, count });
    let op = Op::Slice { axis: *axis, start: Dim::from(0), step: *step };
    Some(WindowedOp { op, operands: vec![operand], computed: window.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: i64, count: i64) -> Option<AxisSpan> {
        Some(AxisSpan { start, count })
    }

    #[test]
    fn windows_reach_operands_along_independent_axes_alone() {
        let push = |op: Op, operands: &[&[i64]], shape: &[i64], window: ValueWindow| {
            let found = window_op(&op, operands, shape, &window);
            (found.operands, found.computed)
        };
        let window = vec![span(3, 2), span(1, 4)];
        let (operands, computed) = push(Op::MATMUL, &[&[9, 7], &[7, 8]], &[9, 8], window.clone());
        assert_eq!(operands, [vec![span(3, 2), None], vec![None, span(1, 4)]]);
        assert_eq!(computed, window);
        let (operands, computed) =
            push(Op::Softmax { axis: 1, log: false }, &[&[9, 8]], &[9, 8], window.clone());
        assert_eq!((operands, computed), (vec![vec![span(3, 2), None]], vec![span(3, 2), None]));
        let (operands, computed) = push(Op::Reshape, &[&[9, 2, 4]], &[9, 8], window.clone());
        assert_eq!((operands, computed), (vec![vec![span(3, 2), None, None]], vec![span(3, 2), None]));
        let (operands, _) =
            push(Op::Slice { axis: 0, start: Dim::from(5), step: 3 }, &[&[90, 8]], &[9, 8], window);
        assert_eq!(operands, [vec![span(14, 4), span(1, 4)]]);
    }

    #[test]
    fn an_operand_of_extent_one_is_read_whole() {
        let window = vec![span(3, 2), span(1, 4)];
        let found = window_op(&Op::Select, &[&[9, 8], &[1, 8], &[8]], &[9, 8], &window);
        assert_eq!(found.operands, [window, vec![None, span(1, 4)], vec![span(1, 4)]]);
    }
}
