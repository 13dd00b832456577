//! Compositions: the nodes that one rule emits for one operator.
//!
//! Frameworks compute an operator in the compute dtype of its operands ([`compute_dtype`](symmc_ir::DType::compute_dtype)) and round each
//! result once. A rule describes the operator by ops in the dtype of the operands, each of which rounds.
//! [`Compositions::widen`] rewrites the finished graph: a value that an op of a rule computes for another op of
//! the same rule has the compute dtype. Rules need no casts for this, and cannot round an intermediate value by
//! accident. A rule that has to round one, because the framework does, calls [`Compositions::keep_rounding`].
//!
//! A rule with a single op that rounds is unchanged, whatever moves and selections surround it. So are dtypes
//! that are their own compute dtype. Operands keep the conversions that the rule emits. Products, attention,
//! collectives and opaque ops keep the dtypes of their operands and results, because their cost depends on these.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use symmc_ir::copying::{UniqueNames, ValueMap, copy_inputs, copy_node, copy_outputs};
use symmc_ir::entity::Entity;
use symmc_ir::{EntityMap, Graph, Node, NodeId, Op, OpCost, RoundingEffect, TensorType, ValueId};

/// The nodes of each rule of an import.
#[derive(Clone, Debug, Default)]
pub struct Compositions {
    /// The positions of the nodes of each rule, ascending.
    rules: Vec<Vec<usize>>,
    /// The operators that several nodes of the program stand for, by their numbers, as positions in `rules`.
    operators: HashMap<u64, usize>,
    /// Values that are rounded although other ops of their rule read them.
    rounded: BTreeSet<ValueId>,
}

impl Compositions {
    /// Records the nodes that a rule emitted. They include those of the rules that it applied.
    pub fn record(&mut self, nodes: Range<usize>) {
        self.rules.truncate(self.count_rules_before(nodes.start));
        if !nodes.is_empty() {
            self.rules.push(nodes.collect());
        }
    }

    /// Records the nodes that the rule of one node of the program emitted. The program has several nodes in place
    /// of an operator of the framework, which has this number.
    pub fn record_part(&mut self, operator: u64, nodes: Range<usize>) {
        if nodes.is_empty() {
            return;
        }
        self.rules.truncate(self.count_rules_before(nodes.start));
        let number = *self.operators.entry(operator).or_insert_with(|| {
            self.rules.push(Vec::new());
            self.rules.len() - 1
        });
        self.rules[number].extend(nodes);
    }

    /// The number of rules that began before this node.
    fn count_rules_before(&self, node: usize) -> usize {
        let later =
            self.rules.iter().rev().take_while(|rule| rule.first().is_none_or(|&first| first >= node));
        self.rules.len() - later.count()
    }

    /// Rounds a value before other ops of the rule read it.
    pub fn keep_rounding(&mut self, value: ValueId) {
        self.rounded.insert(value);
    }

    /// The graph with intermediate values in their compute dtypes. Inputs, outputs and the types of values that
    /// leave a rule stay the same.
    pub fn widen(self, graph: Graph) -> Graph {
        let mut rule_of: EntityMap<NodeId, Option<usize>> = EntityMap::filled(None, graph.nodes.len());
        for (number, rule) in self.rules.iter().enumerate() {
            rule.iter().for_each(|&position| rule_of[NodeId::new(position)] = Some(number));
        }
        let mut is_wide: EntityMap<ValueId, bool> = EntityMap::filled(false, graph.values.len());
        for rule in self.rules.iter().filter(|rule| rule.len() > 1) {
            self.mark_wide_values(&graph, rule, &rule_of, &mut is_wide);
        }
        if !is_wide.values().any(|wide| *wide) {
            return graph;
        }
        Widening::new(&graph, is_wide, rule_of).rebuild().unwrap_or(graph)
    }

    /// Marks the values that an op of a rule rounds and that reach, without leaving the rule, an op that depends
    /// on the rounding.
    fn mark_wide_values(
        &self,
        graph: &Graph,
        rule: &[usize],
        rule_of: &EntityMap<NodeId, Option<usize>>,
        is_wide: &mut EntityMap<ValueId, bool>,
    ) {
        let nodes = || rule.iter().map(|&position| NodeId::new(position));
        let values = || nodes().flat_map(|node| &graph.nodes[node].outputs);
        if !values().any(|&v| graph.ty(v).dtype.is_narrow_float()) {
            return;
        }
        let is_of_rule = |v: ValueId, node: NodeId| {
            graph.defining_node(v).is_some_and(|definition| rule_of[definition] == rule_of[node])
        };
        let mut rounds: BTreeSet<ValueId> = BTreeSet::new();
        for id in nodes().filter(|&id| may_compute_wide(&graph.nodes[id].op)) {
            let node = &graph.nodes[id];
            for (k, &result) in node.outputs.iter().enumerate() {
                let is_rounded = match node.op.facts().rounding[k.min(1)] {
                    // Conversions of operands stay.
                    RoundingEffect::Converts => node.inputs.iter().all(|&v| is_of_rule(v, id)),
                    RoundingEffect::Keeps => {
                        node.inputs.is_empty() || node.inputs.iter().any(|v| rounds.contains(v))
                    }
                    _ => true,
                };
                if is_rounded && graph.ty(result).dtype.is_narrow_float() && !self.rounded.contains(&result) {
                    rounds.insert(result);
                }
            }
        }
        for id in nodes().rev().filter(|&id| may_compute_wide(&graph.nodes[id].op)) {
            let node = &graph.nodes[id];
            if depends_on_rounding(&node.op) || node.outputs.iter().any(|&v| is_wide[v]) {
                node.inputs.iter().filter(|v| rounds.contains(v)).for_each(|&v| is_wide[v] = true);
            }
        }
    }
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
            } else if self.graph.ty(v).dtype.is_narrow_float() {
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
            let dtype = if dtype.is_narrow_float() { dtype.compute_dtype() } else { dtype };
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
        let is_rounded = dtype.is_narrow_float() && (!self.is_wide[result] || self.is_read_rounded[result]);
        if is_rounded { self.names.unique(&format!("{name}.{}", dtype.compute_dtype())) } else { name.into() }
    }

    /// A narrow value in its compute dtype.
    fn convert(&mut self, v: ValueId) -> Option<ValueId> {
        if let Some(value) = self.converted[v] {
            return Some(value);
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

#[cfg(test)]
mod tests {
    use super::*;
    use symmc_ir::text;

    const HEAD: &str = "program \"p\" ranks 1\narg %x: f16[4]\narg %y: f16[4]\narg %z: bf16[4]\narg %n: i64[4]\narg %w: f32[4]\n";

    /// The nodes and outputs of a program after widening. All nodes are those of one rule.
    fn widened(nodes: &str, configure: impl FnOnce(&Graph, &mut Compositions)) -> Vec<String> {
        let graph = text::parse(&format!("{HEAD}{nodes}")).expect("a program");
        let mut compositions = Compositions::default();
        compositions.record(0..graph.nodes.len());
        configure(&graph, &mut compositions);
        let graph = compositions.widen(graph);
        symmc_ir::verify::verify(&graph).expect("a graph that keeps the invariants");
        let printed = text::print(&graph);
        let is_shown = |line: &&str| line.starts_with('%') || line.starts_with("return");
        printed.lines().filter(is_shown).map(String::from).collect()
    }

    fn widened_rule(nodes: &str) -> Vec<String> {
        widened(nodes, |_, _| ())
    }

    #[test]
    fn values_between_ops_that_round_are_wide() {
        let rule = widened_rule(
            "%s: f16[4] = mul %x, %x\n%t: f16[] = reduce %s op=sum axes=[0] keep=false\n%r: f16[] = sqrt %t\n\
             return %r\n",
        );
        assert_eq!(
            rule,
            [
                "%x.f32: f32[4] = cast %x",
                "%s: f32[4] = mul %x.f32, %x.f32",
                "%t: f32[] = reduce %s op=sum axes=[0] keep=false",
                "%r.f32: f32[] = sqrt %t",
                "%r: f16[] = cast %r.f32",
                "return %r",
            ]
        );
    }

    #[test]
    fn single_ops_and_moves_stay_narrow() {
        for nodes in [
            "%s: f16[4] = mul %x, %y\nreturn %s\n",
            "%a: f16[4] = abs %x\n%b: f16[4] = max %a, %y\n%c: f16[2, 2] = reshape %b\nreturn %c\n",
            "%a: f16[4] = mul %x, 0.5\n%p: bool[4] = gt %x, 0.0\n%b: f16[4] = select %p, %x, %a\nreturn %b\n",
            "%a: f32[4] = mul %w, %w\n%b: f32[4] = sqrt %a\n%c: f16[4] = cast %b\nreturn %c\n",
            "%a: f16[4] = cast %n\n%b: f16[4] = mul %a, %x\nreturn %b\n",
        ] {
            let parsed = text::parse(&format!("{HEAD}{nodes}")).expect("a program");
            let mut compositions = Compositions::default();
            compositions.record(0..parsed.nodes.len());
            assert_eq!(compositions.widen(parsed.clone()), parsed, "{nodes}");
        }
    }

    #[test]
    fn values_that_leave_the_rule_are_rounded() {
        let rule = widened_rule(
            "%m: bf16[] = reduce %z op=mean axes=[0] keep=false\n%c: bf16[4] = sub %z, %m\n\
             %v: bf16[4] = mul %c, %c\nreturn %v, %m\n",
        );
        assert_eq!(
            rule,
            [
                "%z.f32: f32[4] = cast %z",
                "%m.f32: f32[] = reduce %z.f32 op=mean axes=[0] keep=false",
                "%m: bf16[] = cast %m.f32",
                "%c: f32[4] = sub %z.f32, %m.f32",
                "%v.f32: f32[4] = mul %c, %c",
                "%v: bf16[4] = cast %v.f32",
                "return %v",
                "return %m",
            ]
        );
    }

    #[test]
    fn conversions_within_a_rule_and_constants_are_wide() {
        let rule = widened_rule(
            "%k: i64[4] = iota start=70000 step=1\n%c: f16[4] = cast %k\n%h: f16[] = full value=0.1\n\
             %a: f16[4] = mul %x, %h\n%b: f16[4] = div %a, %c\nreturn %b\n",
        );
        assert_eq!(
            rule,
            [
                "%k: i64[4] = iota start=70000 step=1",
                "%c: f32[4] = cast %k",
                "%h: f32[] = full value=0.1",
                "%x.f32: f32[4] = cast %x",
                "%a: f32[4] = mul %x.f32, %h",
                "%b.f32: f32[4] = div %a, %c",
                "%b: f16[4] = cast %b.f32",
                "return %b",
            ]
        );
    }

    #[test]
    fn kept_roundings_and_products_separate_compositions() {
        let nodes = "%a: f16[4] = mul %x, %y\n%b: f16[4] = exp %a\nreturn %b\n";
        let widened_nodes = widened(nodes, |graph, compositions| {
            compositions
                .keep_rounding(graph.nodes.values().next().map(|node| node.outputs[0]).expect("a node"));
        });
        assert_eq!(widened_nodes.join("\n"), nodes.trim_end());
        let rule = widened_rule(
            "%r: f16[2, 2] = reshape %x\n%p: f16[2, 2] = matmul %r, %r\n%e: f16[2, 2] = exp %p\nreturn %e\n",
        );
        assert_eq!(
            rule,
            [
                "%r: f16[2, 2] = reshape %x",
                "%p: f16[2, 2] = matmul %r, %r",
                "%e: f16[2, 2] = exp %p",
                "return %e",
            ]
        );
    }

    #[test]
    fn rules_do_not_join_unless_they_are_parts_of_one_operator() {
        let nodes = "%a: f16[4] = mul %x, %y\n%b: f16[4] = exp %a\nreturn %b\n";
        let widened_after = |record: fn(&mut Compositions)| {
            let graph = text::parse(&format!("{HEAD}{nodes}")).expect("a program");
            let mut compositions = Compositions::default();
            record(&mut compositions);
            compositions.widen(graph)
        };
        let narrow = widened_after(|compositions| {
            compositions.record(0..1);
            compositions.record(1..2);
        });
        assert_eq!(narrow.nodes.len(), 2);
        let nested = widened_after(|compositions| {
            compositions.record(0..1);
            compositions.record(1..2);
            compositions.record(0..2);
        });
        assert_eq!(nested.nodes.len(), 5);
        let one_operator = widened_after(|compositions| {
            compositions.record(0..1);
            compositions.record_part(7, 0..1);
            compositions.record(1..2);
            compositions.record_part(7, 1..2);
        });
        assert_eq!(one_operator, nested);
    }
}
