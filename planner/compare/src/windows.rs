//! Windows: a few consecutive positions along the axes of a value, and the positions of operands that an op
//! needs for them.
//!
//! A window of a result is computed exactly. Along axes whose positions are computed independently, windows of
//! the operands suffice. Along other axes the op computes all positions, and the result is cut afterwards.

use symmc_ir::attention::AttentionOperands;
use symmc_ir::{Dim, Op};

use crate::axes::kept_axes;

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
    // A slice needs a part of its operand also for its whole result.
    if window.iter().all(Option::is_none) && !matches!(op, Op::Slice { .. }) {
        return whole_op(op, operands, shape);
    }
    let pushed = WindowPusher { op, operands, shape, window };
    match op {
        Op::Permuted { op: inner, perm } => pushed.push_permuted_op(inner, perm),
        Op::Attention { .. } => pushed.push_attention(op, window.clone(), shape.to_vec()),
        Op::Full(_) => Some(WindowedOp { computed: window.clone(), ..whole_op(op, operands, shape) }),
        Op::Iota { start, step } => pushed.push_iota(*start, *step),
        op if op.is_element_wise() || matches!(op, Op::Copy | Op::Expand) => Some(pushed.push_broadcast(&[])),
        Op::Collective(c) => {
            let whole = c.kind.facts().preserves_positions();
            (operands.len() == 1).then(|| pushed.push_broadcast(if whole { &[] } else { &[0] }))
        }
        Op::Softmax { axis, .. } | Op::CumSum { axis } => Some(pushed.push_broadcast(&[*axis])),
        Op::Sort { axis, .. } | Op::TopK { axis, .. } | Op::Concat { axis } | Op::Shard { axis, .. } => {
            Some(pushed.push_broadcast(&[*axis]))
        }
        Op::RmsNorm { axes, .. } | Op::LayerNorm { axes, .. } => {
            let rank = shape.len();
            Some(pushed.push_broadcast(&(rank - (*axes).min(rank)..rank).collect::<Vec<_>>()))
        }
        Op::RotaryEmbedding { .. } => Some(pushed.push_broadcast(&[shape.len().saturating_sub(1)])),
        Op::Pad { low, .. } => Some(pushed.push_pad(low)),
        Op::MatMul { .. } => pushed.push_matmul(),
        Op::Reduce { axes, keep, .. } => pushed.push_reduce(axes, *keep),
        Op::ArgReduce { axis, keep, .. } => pushed.push_reduce(&[*axis], *keep),
        Op::Permute { perm } => pushed.push_permute(perm),
        Op::Slice { axis, start, step } => pushed.push_slice(*axis, start, *step),
        Op::Reshape => pushed.push_reshape(),
        Op::Take { axis } => pushed.push_take(*axis),
        Op::GatherElements { axis } => pushed.push_gather_elements(*axis),
        _ => None,
    }
    .unwrap_or_else(|| whole_op(op, operands, shape))
}

fn whole_op(op: &Op, operands: &[&[i64]], shape: &[i64]) -> WindowedOp {
    let whole_operands = operands.iter().map(|x| vec![None; x.len()]).collect();
    WindowedOp { op: op.clone(), operands: whole_operands, computed: vec![None; shape.len()] }
}

struct WindowPusher<'a> {
    op: &'a Op,
    operands: &'a [&'a [i64]],
    shape: &'a [i64],
    window: &'a ValueWindow,
}

impl WindowPusher<'_> {
    fn windowed_op(&self, operands: Vec<ValueWindow>, computed: ValueWindow) -> WindowedOp {
        WindowedOp { op: self.op.clone(), operands, computed }
    }

    fn window_without_axes(&self, axes: &[usize]) -> ValueWindow {
        self.window.iter().enumerate().map(|(a, span)| span.filter(|_| !axes.contains(&a))).collect()
    }

    /// An op whose operands broadcast to its result and whose positions are independent, except along some
    /// axes.
    fn push_broadcast(&self, except: &[usize]) -> WindowedOp {
        let computed = self.window_without_axes(except);
        let operands = self.operands.iter().map(|x| aligned(x, self.shape, &computed)).collect();
        self.windowed_op(operands, computed)
    }

    fn push_iota(&self, start: i64, step: i64) -> Option<WindowedOp> {
        let &[Some(span)] = &self.window[..] else { return None };
        let start = start.checked_add(step.checked_mul(span.start)?)?;
        Some(WindowedOp { op: Op::Iota { start, step }, operands: Vec::new(), computed: self.window.clone() })
    }

    fn push_pad(&self, low: &[Dim]) -> WindowedOp {
        let Some(x) = self.operands.first() else { return self.push_broadcast(&[]) };
        let padded = (0..self.shape.len()).filter(|&axis| {
            x.get(axis) != self.shape.get(axis)
                || low.get(axis).and_then(Dim::as_const).is_none_or(|low| low != 0)
        });
        self.push_broadcast(&padded.collect::<Vec<_>>())
    }

    fn push_matmul(&self) -> Option<WindowedOp> {
        let &[x, y] = self.operands else { return None };
        let row = self.shape.len().checked_sub(2)?;
        let of_x = x.len().checked_sub(2)?;
        let of_y = y.len().checked_sub(2)?;
        let mut windows = [aligned(x, self.shape, self.window), aligned(y, self.shape, self.window)];
        windows[0][of_x] = self.window[row];
        windows[0][of_x + 1] = None;
        windows[1][of_y] = None;
        windows[1][of_y + 1] = self.window[row + 1];
        Some(self.windowed_op(windows.to_vec(), self.window.clone()))
    }

    fn push_reduce(&self, axes: &[usize], keep: bool) -> Option<WindowedOp> {
        let &[x] = self.operands else { return None };
        let mut of_result = self.window.iter().copied();
        let spans = (0..x.len()).map(|axis| match (axes.contains(&axis), keep) {
            (true, true) => of_result.next().map(|_| None),
            (true, false) => Some(None),
            (false, _) => of_result.next(),
        });
        let operand = spans.collect::<Option<ValueWindow>>()?;
        let kept = if keep { axes } else { &[] };
        Some(self.windowed_op(vec![operand], self.window_without_axes(kept)))
    }

    fn push_permute(&self, perm: &[usize]) -> Option<WindowedOp> {
        let mut operand = vec![None; perm.len()];
        for (to, &from) in perm.iter().enumerate() {
            *operand.get_mut(from)? = *self.window.get(to)?;
        }
        Some(self.windowed_op(vec![operand], self.window.clone()))
    }

    fn push_slice(&self, axis: usize, start: &Dim, step: i64) -> Option<WindowedOp> {
        let span = self.window.get(axis)?.unwrap_or(AxisSpan { start: 0, count: self.shape[axis] });
        let start = start.as_const().filter(|_| step > 0)?;
        let first = start.checked_add(step.checked_mul(span.start)?)?;
        let count = if span.count > 0 { step.checked_mul(span.count - 1)?.checked_add(1)? } else { 0 };
        let mut operand = self.window.clone();
        operand[axis] = Some(AxisSpan { start: first, count });
        Some(WindowedOp {
            op: Op::Slice { axis, start: Dim::from(0), step },
            operands: vec![operand],
            computed: self.window.clone(),
        })
    }

    /// Leading and trailing axes with equal extents are read at the same position.
    fn push_reshape(&self) -> Option<WindowedOp> {
        let &[x] = self.operands else { return None };
        let kept = kept_axes(x, self.shape, |extent| *extent == 1);
        let mut operand = vec![None; x.len()];
        let mut computed = vec![None; self.shape.len()];
        for (of_x, of_result) in kept {
            operand[of_x] = self.window[of_result];
            computed[of_result] = self.window[of_result];
        }
        Some(self.windowed_op(vec![operand], computed))
    }

    fn push_take(&self, axis: usize) -> Option<WindowedOp> {
        let &[x, index] = self.operands else { return None };
        let inner = index.len();
        let mut operand: ValueWindow = self.window.get(..axis)?.to_vec();
        operand.push(None);
        operand.extend_from_slice(self.window.get(axis + inner..)?);
        let of_index = self.window.get(axis..axis + inner)?.to_vec();
        (operand.len() == x.len()).then(|| self.windowed_op(vec![operand, of_index], self.window.clone()))
    }

    fn push_gather_elements(&self, axis: usize) -> Option<WindowedOp> {
        let mut operand = self.window.clone();
        *operand.get_mut(axis)? = None;
        Some(self.windowed_op(vec![operand, self.window.clone()], self.window.clone()))
    }

    fn push_permuted_op(&self, inner: &Op, perm: &[usize]) -> Option<WindowedOp> {
        let mut window = vec![None; perm.len()];
        let mut shape = vec![0; perm.len()];
        for (to, &from) in perm.iter().enumerate() {
            *window.get_mut(from)? = *self.window.get(to)?;
            *shape.get_mut(from)? = *self.shape.get(to)?;
        }
        let found = self.push_attention(inner, window, shape)?;
        let computed = perm.iter().map(|&from| found.computed[from]).collect();
        let op = Op::Permuted { op: Box::new(found.op), perm: perm.to_vec() };
        Some(WindowedOp { op, operands: found.operands, computed })
    }

    /// Attention over a window of its result in its own order of axes.
    fn push_attention(&self, op: &Op, window: ValueWindow, shape: Vec<i64>) -> Option<WindowedOp> {
        let Op::Attention { scale, cap, bounds, sink, log_sum_exp: false } = op else { return None };
        let rank = shape.len();
        let heads = shape.len().checked_sub(3)?;
        let parts = AttentionOperands::from_operands(bounds, *sink, self.operands)?;
        let q = *parts.q;
        let k = *parts.k;
        let v = *parts.v;
        if [q, k, v].iter().any(|x| x.len() != rank) {
            return None;
        }
        let row = rank - 2;
        let feature = rank - 1;
        // If several heads of queries share one head of keys, they stay together.
        let grouped = k[heads] != q[heads] && k[heads] != 1 || v[heads] != k[heads];
        let mut computed = window;
        if grouped {
            computed[heads] = None;
        }
        let mut leading = computed.clone();
        leading[row] = None;
        leading[feature] = None;
        let mut rows = leading.clone();
        rows[row] = computed[row];
        let mut operands =
            vec![aligned(q, &shape, &rows), aligned(k, &shape, &leading), aligned(v, &shape, &leading)];
        operands[0][feature] = None;
        operands[2][feature] = computed[feature];
        // In keys and values, the axis of keys takes the place of the rows.
        operands[1][row] = None;
        operands[2][row] = None;
        // The other operands broadcast to the scores. Their last axis is that of the keys.
        for x in self.operands.iter().skip(3) {
            let mut of_rows = aligned(x, &shape, &rows);
            if let Some(last) = of_rows.last_mut() {
                *last = None;
            }
            operands.push(of_rows);
        }
        let mut bounds = bounds.clone();
        let start = computed[row].map_or(0, |span| span.start);
        for bound in bounds.iter_mut().filter(|b| b.row) {
            bound.add = bound.add.clone() + Dim::from(start);
        }
        let op = Op::Attention { scale: *scale, cap: *cap, bounds, sink: *sink, log_sum_exp: false };
        Some(WindowedOp { op, operands, computed })
    }
}

/// The window of an operand whose axes broadcast to those of a result, aligned at the last axis.
fn aligned(x: &[i64], shape: &[i64], window: &ValueWindow) -> ValueWindow {
    let rank = x.len();
    let spans = (0..rank).map(|axis| {
        let result_axis = (axis + shape.len()).checked_sub(rank)?;
        if x[axis] == shape[result_axis] && x[axis] != 1 { window[result_axis] } else { None }
    });
    spans.collect()
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
        assert_eq!(aligned(&[1, 8], &[9, 8], &vec![span(3, 2), span(1, 4)]), [None, span(1, 4)]);
        assert_eq!(aligned(&[8], &[9, 8], &vec![span(3, 2), None]), [None]);
    }
}
