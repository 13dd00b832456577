//! Compositions: the nodes that one rule emits for one operator.
//!
//! Frameworks compute an operator in the compute dtype of its operands ([`DType::compute_dtype`]) and round each
//! result once. A rule describes the operator by ops in the dtype of the operands, each of which rounds.
//! [`Compositions::widen`] rewrites the finished graph: a value that an op of a rule computes for another op of
//! the same rule has the compute dtype. Rules need no casts for this, and cannot round an intermediate value by
//! accident. A rule that has to round one, because the framework does, calls [`Compositions::keep_rounding`].
//!
//! A rule with a single op that rounds is unchanged, whatever moves and selections surround it. So are dtypes
//! that are their own compute dtype. Operands keep the conversions that the rule emits. Products, attention,
//! collectives and opaque ops keep the dtypes of their operands and results, because their cost depends on these.

use std::collections::BTreeSet;
use std::ops::Range;

use symmc_ir::copying::{UniqueNames, ValueMap, copy_inputs, copy_node, copy_outputs};
use symmc_ir::entity::Entity;
use symmc_ir::{
    DType, EntityMap, Graph, Node, NodeId, Op, OpCost, RoundingEffect, TensorType, ValueDef, ValueId,
};

/// The nodes of each rule of an import.
#[derive(Debug, Default)]
pub struct Compositions {
    /// The positions of the nodes of each rule that emitted several nodes, ascending and disjoint.
    rules: Vec<Range<usize>>,
    /// Values that are rounded although other ops of their rule read them.
    rounded: BTreeSet<ValueId>,
}

impl Compositions {
    /// Records the nodes that a rule emitted. They include those of the rules that it applied.
    pub fn record(&mut self, nodes: Range<usize>) {
        while self.rules.last().is_some_and(|inner| inner.start >= nodes.start) {
            self.rules.pop();
        }
        if nodes.len() > 1 {
            self.rules.push(nodes);
        }
    }

    /// Rounds a value before other ops of the rule read it.
    pub fn keep_rounding(&mut self, value: ValueId) {
        self.rounded.insert(value);
    }

    /// The graph with intermediate values in their compute dtypes. Inputs, outputs and the types of values that
    /// leave a rule stay the same.
    pub fn widen(self, graph: Graph) -> Graph {
        let mut is_wide: EntityMap<ValueId, bool> = EntityMap::filled(false, graph.values.len());
        for rule in &self.rules {
            self.mark_wide_values(&graph, rule, &mut is_wide);
        }
        if !is_wide.values().any(|wide| *wide) {
            return graph;
        }
        let mut rule_of: EntityMap<NodeId, Option<usize>> = EntityMap::filled(None, graph.nodes.len());
        for (number, rule) in self.rules.iter().enumerate() {
            rule.clone().for_each(|position| rule_of[NodeId::new(position)] = Some(number));
        }
        Widening::new(&graph, is_wide, rule_of).rebuild().unwrap_or(graph)
    }

    /// Marks the values that an op of a rule rounds and that reach, without leaving the rule, an op that depends
    /// on the rounding.
    fn mark_wide_values(&self, graph: &Graph, rule: &Range<usize>, is_wide: &mut EntityMap<ValueId, bool>) {
        let nodes = || rule.clone().map(|position| &graph.nodes[NodeId::new(position)]);
        let values = || nodes().flat_map(|node| &node.outputs);
        if !values().any(|&v| is_narrow(graph.ty(v).dtype)) {
            return;
        }
        let mut rounds: BTreeSet<ValueId> = BTreeSet::new();
        for node in nodes().filter(|node| may_compute_wide(&node.op)) {
            for (k, &result) in node.outputs.iter().enumerate() {
                let is_rounded = match node.op.facts().rounding[k.min(1)] {
                    // The operator's own conversions of its operands stay.
                    RoundingEffect::Converts => node.inputs.iter().all(|&v| is_defined_in(graph, v, rule)),
                    RoundingEffect::Keeps => {
                        node.inputs.is_empty() || node.inputs.iter().any(|v| rounds.contains(v))
                    }
                    _ => true,
                };
                if is_rounded && is_narrow(graph.ty(result).dtype) && !self.rounded.contains(&result) {
                    rounds.insert(result);
                }
            }
        }
        for node in nodes().rev().filter(|node| may_compute_wide(&node.op)) {
            if depends_on_rounding(&node.op) || node.outputs.iter().any(|&v| is_wide[v]) {
                node.inputs.iter().filter(|v| rounds.contains(v)).for_each(|&v| is_wide[v] = true);
            }
        }
    }
}

/// Whether floats of this dtype are computed in a wider one.
fn is_narrow(dtype: DType) -> bool {
    dtype.is_float() && dtype.compute_dtype() != dtype
}

/// Whether an op may have operands and results of the compute dtype in place of a narrow one.
fn may_compute_wide(op: &Op) -> bool {
    let is_cheap = matches!(op.facts().cost, OpCost::Bytes | OpCost::Sort);
    is_cheap && !op.is_opaque() && op.as_collective().is_none()
}

/// Whether an op gives another result if its operands are rounded than if its result is.
fn depends_on_rounding(op: &Op) -> bool {
    op.facts().rounding.iter().any(|effect| *effect != RoundingEffect::Keeps)
}

fn is_defined_in(graph: &Graph, v: ValueId, rule: &Range<usize>) -> bool {
    matches!(graph.values[v].def, ValueDef::Node(node, _) if rule.contains(&node.index()))
}

/// A graph whose wide values are being replaced.
struct Widening<'g> {
    graph: &'g Graph,
    is_wide: EntityMap<ValueId, bool>,
    rule_of: EntityMap<NodeId, Option<usize>>,
    /// Wide values that something else than a wide op of their rule reads.
    is_read_rounded: EntityMap<ValueId, bool>,
    to: Graph,
    /// The values of the new graph with the dtypes of the old one.
    map: ValueMap,
    /// The wide values, not rounded.
    unrounded: ValueMap,
    /// Narrow values, converted to their compute dtype.
    converted: ValueMap,
    names: UniqueNames,
}

impl<'g> Widening<'g> {
    fn new(
        graph: &'g Graph,
        is_wide: EntityMap<ValueId, bool>,
        rule_of: EntityMap<NodeId, Option<usize>>,
    ) -> Self {
        let (to, map) = copy_inputs(graph);
        let mut names = UniqueNames::default();
        graph.values.values().for_each(|value| names.reserve(&value.name));
        let none = || EntityMap::filled(None, graph.values.len());
        let mut widening = Widening {
            graph,
            is_wide,
            rule_of,
            is_read_rounded: EntityMap::filled(false, graph.values.len()),
            to,
            map,
            unrounded: none(),
            converted: none(),
            names,
        };
        widening.mark_read_rounded();
        widening
    }

    fn mark_read_rounded(&mut self) {
        for output in &self.graph.outputs {
            self.is_read_rounded[output.value] = true;
        }
        for (id, node) in self.graph.nodes.iter() {
            let runs_wide = self.runs_wide(id, node);
            for &v in &node.inputs {
                if !(runs_wide && self.is_wide_within(v, id)) {
                    self.is_read_rounded[v] = true;
                }
            }
        }
    }

    /// Whether a value is wide and computed by the rule of a node.
    fn is_wide_within(&self, v: ValueId, reader: NodeId) -> bool {
        let rule_of_value = self.graph.defining_node(v).and_then(|node| self.rule_of[node]);
        self.is_wide[v] && rule_of_value == self.rule_of[reader]
    }

    fn runs_wide(&self, id: NodeId, node: &Node) -> bool {
        let reads_wide = || node.inputs.iter().any(|&v| self.is_wide_within(v, id));
        node.outputs.iter().any(|&v| self.is_wide[v])
            || may_compute_wide(&node.op) && depends_on_rounding(&node.op) && reads_wide()
    }

    /// `None` if a value is missing, because the outputs would change.
    fn rebuild(mut self) -> Option<Graph> {
        for (id, node) in self.graph.nodes.iter() {
            if self.runs_wide(id, node) {
                self.copy_wide(id, node)?;
            } else {
                copy_node(self.graph, node, &mut self.to, &mut self.map)?;
            }
        }
        self.to.outputs = copy_outputs(self.graph, &self.map)?;
        Some(self.to)
    }

    /// Copies a node with its operands and results in their compute dtypes, and rounds the results that are read
    /// rounded.
    fn copy_wide(&mut self, id: NodeId, node: &Node) -> Option<()> {
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for &v in &node.inputs {
            inputs.push(if self.is_wide_within(v, id) {
                self.unrounded[v]?
            } else if is_narrow(self.graph.ty(v).dtype) {
                self.convert(v)?
            } else {
                self.map[v]?
            });
        }
        if let (Op::Cast, &[x], &[result]) = (&node.op, &inputs[..], &node.outputs[..]) {
            self.copy_wide_cast(x, result);
            return Some(());
        }
        let mut results = Vec::with_capacity(node.outputs.len());
        for &v in &node.outputs {
            let TensorType { dtype, shape } = self.graph.ty(v).clone();
            let dtype = if is_narrow(dtype) { dtype.compute_dtype() } else { dtype };
            results.push((self.unrounded_name(v), TensorType::new(dtype, shape)));
        }
        let new = self.to.add_node(node.op.clone(), inputs, results);
        for (k, &v) in node.outputs.iter().enumerate() {
            let value = self.to.nodes[new].outputs[k];
            self.set_unrounded(v, value);
        }
        Some(())
    }

    /// Copies a cast of an unrounded value, or a cast whose result stays unrounded.
    fn copy_wide_cast(&mut self, x: ValueId, result: ValueId) {
        let TensorType { dtype, shape } = self.graph.ty(result).clone();
        let is_wide = self.is_wide[result];
        let dtype = if is_wide { dtype.compute_dtype() } else { dtype };
        let name = if is_wide { self.unrounded_name(result) } else { self.graph.value_name(result).into() };
        let value = if self.to.ty(x).dtype != dtype {
            add_cast(&mut self.to, x, name, TensorType::new(dtype, shape))
        } else {
            if !is_wide {
                self.to.values[x].name = name;
            }
            x
        };
        if is_wide {
            self.set_unrounded(result, value);
        } else {
            self.map[result] = Some(value);
        }
    }

    /// Sets the value that stands for a result before it is rounded, and rounds it if necessary.
    fn set_unrounded(&mut self, result: ValueId, value: ValueId) {
        let ty = self.graph.ty(result);
        if *self.to.ty(value) == *ty {
            self.map[result] = Some(value);
            return;
        }
        if self.is_wide[result] {
            self.unrounded[result] = Some(value);
        }
        if !self.is_wide[result] || self.is_read_rounded[result] {
            let name = self.graph.value_name(result).to_string();
            self.map[result] = Some(add_cast(&mut self.to, value, name, ty.clone()));
        }
    }

    /// The name of a result before it is rounded. The rounded result, if there is one, has the name of the result.
    fn unrounded_name(&mut self, result: ValueId) -> String {
        let name = self.graph.value_name(result);
        let dtype = self.graph.ty(result).dtype;
        let is_rounded = is_narrow(dtype) && (!self.is_wide[result] || self.is_read_rounded[result]);
        if is_rounded { self.names.unique(&format!("{name}.{}", dtype.compute_dtype())) } else { name.into() }
    }

    /// A narrow value in its compute dtype.
    fn convert(&mut self, v: ValueId) -> Option<ValueId> {
        if let Some(known) = self.converted[v] {
            return Some(known);
        }
        let TensorType { dtype, shape } = self.graph.ty(v).clone();
        let wide = dtype.compute_dtype();
        let name = self.names.unique(&format!("{}.{wide}", self.graph.value_name(v)));
        let value = add_cast(&mut self.to, self.map[v]?, name, TensorType::new(wide, shape));
        self.converted[v] = Some(value);
        Some(value)
    }
}

fn add_cast(to: &mut Graph, x: ValueId, name: String, ty: TensorType) -> ValueId {
    let node = to.add_node(Op::Cast, vec![x], vec![(name, ty)]);
    to.nodes[node].outputs[0]
}
