//! Elements by evaluation: functions of one integer for all integers of a range, and values that few nodes
//! compute from constants.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::facts::PositionFacts;
use crate::graph::{Graph, Node, ValueDef};
use crate::ids::ValueId;
use crate::interp;
use crate::op::Op;
use crate::tensor::Tensor;
use crate::text::op_dims;
use crate::types::TensorType;

/// The most nodes of a function that is evaluated.
const MAX_FUNCTION_NODES: usize = 12;
/// The maximum number of elements that are computed for a value.
const MAX_ELEMENTS: usize = 1 << 18;
/// The maximum number of nodes that compute a value from constants.
const MAX_CONSTANT_NODES: usize = 64;

/// Values that are computed from one integer, element by element, for several numbers as that integer.
pub struct IntegerFunction<'a> {
    facts: PositionFacts<'a>,
    count: usize,
    evaluated: HashMap<ValueId, Tensor>,
    /// The number of nodes that may still be evaluated.
    nodes_left: usize,
}

impl<'a> IntegerFunction<'a> {
    pub fn new(facts: PositionFacts<'a>, integer: ValueId, numbers: &[i64]) -> Option<Self> {
        let dtype = facts.graph.ty(integer).dtype;
        let tensor = Tensor::from_i64(dtype, vec![numbers.len()], numbers)?;
        Some(IntegerFunction {
            facts,
            count: numbers.len(),
            evaluated: HashMap::from([(integer, tensor)]),
            nodes_left: MAX_FUNCTION_NODES,
        })
    }

    /// The value for each number. `None` if it depends on anything else, or combines elements.
    pub fn evaluate(&mut self, value: ValueId) -> Option<&Tensor> {
        if !self.evaluated.contains_key(&value) {
            self.nodes_left = self.nodes_left.checked_sub(1)?;
            let (op, inputs) = self.facts.graph.definition(value)?;
            let tensor = self.evaluate_node(op, inputs, self.facts.graph.ty(value))?;
            self.evaluated.insert(value, tensor);
        }
        self.evaluated.get(&value)
    }

    /// The only result of a node over values of the function, for each number.
    pub fn evaluate_node(&mut self, op: &Op, inputs: &[ValueId], ty: &TensorType) -> Option<Tensor> {
        if !op.is_element_wise() && *op != Op::Reshape {
            return None;
        }
        let graph = self.facts.graph;
        let mut operands = Vec::with_capacity(inputs.len());
        for &input in inputs {
            operands.push(match self.facts.full(input) {
                Some(s) => {
                    evaluate_op(&Op::Full(s), &[], &[(graph.ty(input).dtype, &[self.count])])?.pop()?
                }
                None if graph.ty(input).numel() == ty.numel() => self.evaluate(input)?.clone(),
                None => return None,
            });
        }
        let operands: Vec<&Tensor> = operands.iter().collect();
        evaluate_op(op, &operands, &[(ty.dtype, &[self.count])])?.pop()
    }
}

fn evaluate_op(op: &Op, operands: &[&Tensor], results: &[interp::ResultType<'_>]) -> Option<Vec<Tensor>> {
    interp::evaluate(op, operands, results).ok()
}

impl<'a> PositionFacts<'a> {
    /// The integer from which some values are computed in other types, if there is one.
    pub fn nearest_integer(self, values: &[ValueId]) -> Option<ValueId> {
        let mut integer = None;
        let mut visited = Vec::new();
        let mut open = values.to_vec();
        while let Some(value) = open.pop() {
            if self.full(value).is_some() || visited.contains(&value) {
                continue;
            }
            let is_integer = self.graph.ty(value).dtype.integer_bounds().is_some();
            match self.graph.definition(value) {
                Some((op, inputs)) if !is_integer || *op == Op::Reshape => {
                    visited.push(value);
                    open.extend(inputs);
                }
                _ if is_integer && *integer.get_or_insert(value) == value => {}
                _ => return None,
            }
            if visited.len() > MAX_FUNCTION_NODES {
                return None;
            }
        }
        integer
    }

    /// The least and the greatest element of an integer value, from evaluating it as a function of an integer
    /// from which it is computed. `numbers` returns all numbers that such an integer can be, if they are few.
    /// Of several integers, the one whose evaluation shows most counts.
    pub fn evaluated_bounds(
        self,
        value: ValueId,
        numbers: impl Fn(ValueId) -> Option<Vec<i64>>,
    ) -> Option<[i64; 2]> {
        let mut candidates = vec![value];
        let mut next = 0;
        let mut best: Option<[i64; 2]> = None;
        while let Some(&candidate) = candidates.get(next).filter(|_| next <= MAX_FUNCTION_NODES) {
            next += 1;
            if candidate != value
                && self.graph.ty(candidate).dtype.integer_bounds().is_some()
                && let Some(numbers) = numbers(candidate)
                && let Some(mut function) = IntegerFunction::new(self, candidate, &numbers)
                && let Some(values) = function.evaluate(value).map(Tensor::to_i64)
                && let (Some(&least), Some(&greatest)) = (values.iter().min(), values.iter().max())
            {
                let [low, high] = best.unwrap_or([least, greatest]);
                best = Some([low.max(least), high.min(greatest)]);
            }
            let definition = self.graph.definition(candidate);
            let operands = definition.filter(|(op, _)| op.is_element_wise() || **op == Op::Reshape);
            for &operand in operands.map_or(&[][..], |(_, inputs)| inputs) {
                if !candidates.contains(&operand) {
                    candidates.push(operand);
                }
            }
        }
        best
    }
}

/// The elements of an integer value that few nodes compute from constants, all with known extents.
pub fn constant_elements(graph: &Graph, value: ValueId) -> Option<Vec<i64>> {
    let mut nodes = BTreeSet::new();
    let mut evaluated: HashMap<ValueId, Arc<Tensor>> = HashMap::new();
    let mut open = vec![value];
    let mut elements = 0_usize;
    while let Some(value) = open.pop() {
        let count = known_shape(graph, value)?.iter().try_fold(1_usize, |n, d| n.checked_mul(*d))?;
        elements = elements.checked_add(count).filter(|n| *n <= MAX_ELEMENTS)?;
        match graph.values[value].def {
            ValueDef::Input(input) => {
                evaluated.insert(value, graph.inputs[input].data.clone()?);
            }
            ValueDef::Node(node, _) if nodes.insert(node) => {
                let Node { op, inputs, .. } = &graph.nodes[node];
                let is_known = op_dims(op).iter().all(|d| d.as_const().is_some());
                (is_known && nodes.len() <= MAX_CONSTANT_NODES).then_some(())?;
                open.extend(inputs);
            }
            ValueDef::Node(..) => {}
        }
    }
    for node in nodes {
        let Node { op, inputs, outputs } = &graph.nodes[node];
        let operands = inputs.iter().map(|v| evaluated.get(v).map(|t| &**t)).collect::<Option<Vec<_>>>()?;
        let shapes = outputs.iter().map(|&v| known_shape(graph, v)).collect::<Option<Vec<_>>>()?;
        let types: Vec<_> = outputs.iter().zip(&shapes).map(|(&v, s)| (graph.ty(v).dtype, &s[..])).collect();
        let results = evaluate_op(op, &operands, &types)?;
        evaluated.extend(outputs.iter().copied().zip(results.into_iter().map(Arc::new)));
    }
    evaluated.get(&value).filter(|t| !t.dtype().is_float()).map(|t| t.to_i64())
}

/// The shape of a value, if it is the same at all sizes.
fn known_shape(graph: &Graph, value: ValueId) -> Option<Vec<usize>> {
    graph.ty(value).shape.iter().map(|extent| usize::try_from(extent.as_const()?).ok()).collect()
}
