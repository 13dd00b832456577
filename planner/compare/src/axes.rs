//! Finds the axes along which a region computes each position independently and in the same way.
//!
//! A few positions are enough along such an axis: the region is compared on a prefix of them, for any extent.
//! Axes of values that are read at the same position form one set of [`AxisSets`]. A set is *fixed* if an op of
//! the region reads several of its positions for one result, or uses the number of the position.

use std::collections::HashMap;

use symmc_ir::{Dim, NodeId, OperandAxis, ResultAxis, ValueId};

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

    fn fix_all(&mut self, value: ValueId) {
        (0..self.rank(value)).for_each(|axis| self.fix((value, axis)));
    }

    fn rank(&self, value: ValueId) -> usize {
        self.program.types[value].rank()
    }

    /// Joins aligned axes, and fixes all others, except those that are broadcast.
    fn node(&mut self, id: NodeId) {
        let program = self.program;
        let node = &program.graph.nodes[id];
        let shape = |value: &ValueId| &program.types[*value].shape[..];
        let operand_shapes: Vec<&[Dim]> = node.inputs.iter().map(shape).collect();
        let result_shapes: Vec<&[Dim]> = node.outputs.iter().map(shape).collect();
        let map = node.op.axes(&operand_shapes, &result_shapes);
        for &result in &node.outputs {
            for axis in 0..self.rank(result) {
                if map.results.get(axis) != Some(&ResultAxis::Independent) {
                    self.fix((result, axis));
                }
            }
        }
        for (&x, axes) in node.inputs.iter().zip(&map.operands) {
            for (axis, kind) in axes.iter().enumerate() {
                match *kind {
                    OperandAxis::Aligned(result_axis) => {
                        for result in &node.outputs {
                            self.join((x, axis), (*result, result_axis));
                            if shape(&x).get(axis) != shape(result).get(result_axis) {
                                self.fix((x, axis));
                            }
                        }
                    }
                    OperandAxis::Broadcast => {}
                    OperandAxis::Outer(_) | OperandAxis::Whole => self.fix((x, axis)),
                }
            }
        }
    }
}
