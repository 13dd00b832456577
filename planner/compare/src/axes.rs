//! Finds the axes along which a region computes each position independently and in the same way.
//!
//! A few positions are enough along such an axis: the region is compared on a prefix of them, for any extent.
//! Axes of values that are read at the same position form one set of [`AxisSets`]. A set is *fixed* if an op of
//! the region reads several of its positions for one result, or uses the number of the position.

use std::collections::HashMap;

use symmc_ir::attention::AttentionOperands;
use symmc_ir::{NodeId, Op, ValueId};

use crate::elements::is_unit;
use crate::number::NumberedProgram;
use crate::region::ComparedRegion;

type ValueAxis = (ValueId, usize);

pub struct AxisSets<'a> {
    program: &'a NumberedProgram<'a>,
    number: HashMap<ValueAxis, usize>,
    above: Vec<usize>,
    fixed: Vec<bool>,
}

/// The largest number of elements of a constant that a region reads whole.
const MOST_CONSTANT: i64 = 1 << 16;

impl<'a> AxisSets<'a> {
    pub fn new(program: &'a NumberedProgram<'a>, region: &ComparedRegion) -> AxisSets<'a> {
        let mut out = AxisSets { program, number: HashMap::new(), above: Vec::new(), fixed: Vec::new() };
        out.add(region.root);
        for &leaf in &region.leaves {
            out.add(leaf);
            let few = program.types[leaf].numel().upper_bound(&program.graph.symbols) <= MOST_CONSTANT;
            if ComparedRegion::is_constant(program, leaf) && few {
                out.fix_all(leaf);
            }
        }
        for &n in &region.nodes {
            let node = &program.graph.nodes[n];
            node.inputs.iter().chain(&node.outputs).for_each(|&v| out.add(v));
            out.node(n);
        }
        out
    }

    /// The set of an axis, if it is not fixed.
    pub fn free(&self, axis: ValueAxis) -> Option<usize> {
        let set = self.find(*self.number.get(&axis)?);
        (!self.fixed[set]).then_some(set)
    }

    fn add(&mut self, value: ValueId) {
        for axis in 0..self.program.types[value].rank() {
            let next = self.above.len();
            if *self.number.entry((value, axis)).or_insert(next) == next {
                self.above.push(next);
                self.fixed.push(false);
            }
        }
    }

    fn find(&self, mut at: usize) -> usize {
        while self.above[at] != at {
            at = self.above[at];
        }
        at
    }

    fn join(&mut self, a: ValueAxis, b: ValueAxis) {
        let (Some(&a), Some(&b)) = (self.number.get(&a), self.number.get(&b)) else { return };
        let a = self.find(a);
        let b = self.find(b);
        let low = a.min(b);
        let high = a.max(b);
        self.above[high] = low;
        self.fixed[low] |= self.fixed[high];
    }

    fn fix(&mut self, axis: ValueAxis) {
        if let Some(&at) = self.number.get(&axis) {
            let set = self.find(at);
            self.fixed[set] = true;
        }
    }

    fn fix_both(&mut self, a: ValueAxis, b: ValueAxis) {
        self.fix(a);
        self.fix(b);
    }

    fn fix_all(&mut self, value: ValueId) {
        (0..self.rank(value)).for_each(|axis| self.fix((value, axis)));
    }

    fn rank(&self, value: ValueId) -> usize {
        self.program.types[value].rank()
    }

    /// Joins the axes of an operand that broadcasts to a result with the axes of the result, except the last
    /// `skip` axes.
    fn broadcast(&mut self, x: ValueId, result: ValueId, skip: usize) {
        let own = self.rank(x);
        let rank = self.rank(result);
        for back in skip..own.min(rank) {
            let a = own - 1 - back;
            let r = rank - 1 - back;
            let extent = &self.program.types[x].shape[a];
            let of_result = &self.program.types[result].shape[r];
            if extent == of_result {
                self.join((x, a), (result, r));
            } else if !is_unit(extent) {
                self.fix((x, a));
                self.fix((result, r));
            }
        }
    }

    fn node(&mut self, id: NodeId) {
        let graph = self.program.graph;
        let node = &graph.nodes[id];
        let result = node.outputs[0];
        match (&node.op, &node.inputs[..]) {
            (Op::Full(_), _) => {}
            (op, inputs) if op.is_element_wise() || *op == Op::Copy => {
                inputs.iter().for_each(|&x| self.broadcast(x, result, 0));
            }
            (Op::Collective(c), &[x]) => {
                self.broadcast(x, result, 0);
                let whole = c.kind.facts().preserves_positions();
                if !whole {
                    self.fix_both((x, 0), (result, 0));
                }
            }
            (Op::MatMul { .. }, &[x, y]) => {
                let rx = self.rank(x);
                let ry = self.rank(y);
                let r = self.rank(result);
                self.broadcast(x, result, 2);
                self.broadcast(y, result, 2);
                self.join((x, rx - 2), (result, r - 2));
                self.join((y, ry - 1), (result, r - 1));
                self.fix_both((x, rx - 1), (y, ry - 2));
            }
            (Op::Reduce { axes, keep, .. }, &[x]) => self.join_reduced(x, result, axes, *keep),
            (Op::ArgReduce { axis, keep, .. }, &[x]) => self.join_reduced(x, result, &[*axis], *keep),
            (Op::Softmax { axis, .. } | Op::CumSum { axis }, &[x]) => {
                self.join_except_axis(x, &[result], *axis)
            }
            (Op::Sort { axis, .. } | Op::TopK { axis, .. }, &[x]) => {
                self.join_except_axis(x, &node.outputs, *axis)
            }
            (Op::RmsNorm { axes, .. } | Op::LayerNorm { axes, .. }, inputs) => {
                inputs.iter().for_each(|&x| self.broadcast(x, result, 0));
                let rank = self.rank(result);
                (rank - (*axes).min(rank)..rank).for_each(|axis| self.fix((result, axis)));
            }
            (Op::RotaryEmbedding { .. }, inputs) => {
                inputs.iter().for_each(|&x| self.broadcast(x, result, 1));
                inputs.iter().chain([&result]).for_each(|&v| {
                    let rank = self.rank(v);
                    self.fix((v, rank.saturating_sub(1)));
                });
            }
            (Op::Permute { perm }, &[x]) => {
                perm.iter().enumerate().for_each(|(to, &from)| self.join((x, from), (result, to)));
            }
            (Op::Expand, &[x]) => self.broadcast(x, result, 0),
            (Op::Slice { axis, .. } | Op::Concat { axis } | Op::Shard { axis, .. }, inputs) => {
                inputs.iter().for_each(|&x| self.join_except_axis(x, &[result], *axis));
            }
            (Op::Pad { .. }, &[x]) => {
                for axis in 0..self.rank(x) {
                    let same = self.program.types[x].shape[axis] == self.program.types[result].shape[axis];
                    if same {
                        self.join((x, axis), (result, axis));
                    } else {
                        self.fix_both((x, axis), (result, axis));
                    }
                }
            }
            (Op::Reshape, &[x]) => self.join_reshaped(x, result),
            (Op::GatherElements { axis }, &[x, index]) => {
                for a in 0..self.rank(x) {
                    self.join((index, a), (result, a));
                    let is_same = self.program.types[x].shape[a] == self.program.types[result].shape[a];
                    if a == *axis {
                        self.fix((x, a));
                    } else if is_same {
                        self.join((x, a), (result, a));
                    } else {
                        self.fix_both((x, a), (result, a));
                    }
                }
            }
            (Op::Take { axis }, &[x, index]) => self.join_take(x, index, result, *axis),
            (Op::Attention { .. }, _) if node.outputs.len() == 1 => {
                self.attention(&node.op, &node.inputs, result, &|axis| axis);
            }
            (Op::Permuted { op, perm }, inputs) if node.outputs.len() == 1 => {
                self.attention(op, inputs, result, &|axis| {
                    perm.iter().position(|&p| p == axis).unwrap_or(axis)
                });
            }
            _ => node.inputs.iter().chain(&node.outputs).for_each(|&v| self.fix_all(v)),
        }
    }

    fn join_reduced(&mut self, x: ValueId, result: ValueId, axes: &[usize], keep: bool) {
        let mut to = 0;
        for axis in 0..self.rank(x) {
            let is_reduced = axes.contains(&axis);
            if is_reduced {
                self.fix((x, axis))
            } else {
                self.join((x, axis), (result, to))
            }
            to += usize::from(keep || !is_reduced);
        }
    }

    /// Joins all axes except one, for an op that reads several positions along that axis.
    fn join_except_axis(&mut self, x: ValueId, results: &[ValueId], axis: usize) {
        for &result in results {
            for a in 0..self.rank(x) {
                if a == axis {
                    self.fix((result, a));
                } else {
                    self.join((x, a), (result, a));
                }
            }
        }
        self.fix((x, axis));
    }

    /// Leading and trailing axes with equal extents are read at the same position.
    fn join_reshaped(&mut self, x: ValueId, result: ValueId) {
        let program = self.program;
        let a = &program.types[x].shape;
        let b = &program.types[result].shape;
        let kept = kept_axes(a, b, is_unit);
        kept.iter().for_each(|&(of_x, of_result)| self.join((x, of_x), (result, of_result)));
        for axis in (0..a.len()).filter(|&axis| !is_unit(&a[axis])) {
            if !kept.iter().any(|&(of_x, _)| of_x == axis) {
                self.fix((x, axis));
            }
        }
        for axis in (0..b.len()).filter(|&axis| !is_unit(&b[axis])) {
            if !kept.iter().any(|&(_, of_result)| of_result == axis) {
                self.fix((result, axis));
            }
        }
    }

    fn join_take(&mut self, x: ValueId, index: ValueId, result: ValueId, axis: usize) {
        let inner = self.rank(index);
        self.fix((x, axis));
        (0..axis).for_each(|a| self.join((x, a), (result, a)));
        (0..inner).for_each(|a| self.join((index, a), (result, axis + a)));
        (axis + 1..self.rank(x)).for_each(|a| self.join((x, a), (result, a + inner - 1)));
    }

    /// Joins the axes of attention. Axis `i` of attention is axis `at(i)` of the result.
    fn attention(&mut self, op: &Op, inputs: &[ValueId], result: ValueId, at: &dyn Fn(usize) -> usize) {
        let Op::Attention { bounds, sink, .. } = op else { return };
        let Some(parts) = AttentionOperands::from_operands(bounds, *sink, inputs) else {
            return inputs.iter().chain([&result]).for_each(|&v| self.fix_all(v));
        };
        let q = *parts.q;
        let k = *parts.k;
        let v = *parts.v;
        let rank = self.rank(result);
        let Some(lead) = rank.checked_sub(3) else {
            return inputs.iter().chain([&result]).for_each(|&v| self.fix_all(v));
        };
        let types = &self.program.types;
        // One head of keys and values serves all heads of queries.
        let q_heads = types[q].shape.get(lead);
        let equal_heads = [k, v].into_iter().all(|x| types[x].shape.get(lead) == q_heads);
        let one_head = [k, v].into_iter().all(|x| types[x].shape.get(lead).is_some_and(is_unit));
        let same_rank = [q, k, v].iter().all(|&v| self.rank(v) == rank);
        let of_rows = bounds.iter().any(|b| b.row);
        for axis in 0..rank {
            let to = (result, at(axis));
            let joined = match axis {
                a if a + 1 == rank => {
                    self.join((v, a), to);
                    self.fix_both((q, a), (k, a));
                    continue;
                }
                a if a + 2 == rank => {
                    self.fix_both((k, a), (v, a));
                    self.join((q, a), to);
                    !of_rows
                }
                a => {
                    let all = same_rank && (a != lead || equal_heads || one_head);
                    let same = [k, v].iter().all(|&x| shapes_equal(self.program, x, q, a));
                    let units = [k, v].iter().all(|&x| types[x].shape.get(a).is_some_and(is_unit));
                    self.join((q, a), to);
                    if !units {
                        [k, v].iter().for_each(|&x| self.join((x, a), to));
                    }
                    all && (same || units)
                }
            };
            if !joined {
                self.fix(to);
            }
        }
        // The other operands broadcast to the scores.
        let others = inputs.iter().skip(3);
        for &x in others {
            let operand_rank = self.rank(x);
            for back in 0..operand_rank {
                let a = operand_rank - 1 - back;
                let axis = rank.checked_sub(1 + back);
                let unit = is_unit(&self.program.types[x].shape[a]);
                match axis.filter(|_| back > 0 && !unit) {
                    Some(axis) => self.join((x, a), (result, at(axis))),
                    None => self.fix((x, a)),
                }
            }
        }
    }
}

/// The pairs of axes of a value and of its reshape that are read at the same position: leading and trailing axes
/// with equal extents. Axes of extent 1 do not count.
pub fn kept_axes<E: PartialEq>(x: &[E], result: &[E], is_unit: impl Fn(&E) -> bool) -> Vec<(usize, usize)> {
    let own: Vec<usize> = (0..x.len()).filter(|&axis| !is_unit(&x[axis])).collect();
    let new: Vec<usize> = (0..result.len()).filter(|&axis| !is_unit(&result[axis])).collect();
    let equal = |a: usize, b: usize| x[a] == result[b];
    let pairs = || own.iter().copied().zip(new.iter().copied());
    let front = pairs().take_while(|&(a, b)| equal(a, b)).count();
    let rest = own.len().min(new.len()) - front;
    let back = own.iter().rev().copied().zip(new.iter().rev().copied()).take(rest);
    let back: Vec<(usize, usize)> = back.take_while(|&(a, b)| equal(a, b)).collect();
    pairs().take(front).chain(back).collect()
}

fn shapes_equal(program: &NumberedProgram<'_>, x: ValueId, y: ValueId, axis: usize) -> bool {
    program.types[x].shape.get(axis) == program.types[y].shape.get(axis)
}
