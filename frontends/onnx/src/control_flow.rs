//! Nodes that run graphs: `If`, `Loop` and `Scan`.
//!
//! A branch with a constant condition, and the iterations of a loop with a constant number of them, are inlined. If a
//! condition depends on data, both branches are inlined and their results selected ([`symmc_import::branches`]). If that is not possible and the condition depends on sizes, it is required to have the value
//! that it has at the upper ends of all sizes.

use std::collections::HashMap;
use std::sync::Arc;

use symmc_import::{
    Compositions, Emit, UnsupportedOps, branches, invalid, invalid_if, requirement, unsupported,
    unsupported_if,
};
use symmc_ir::{BinaryOp, DType, Dim, GraphBuilder, SymbolBindings, Tensor, ValueId};

use crate::emit::DetachedEmitter;
use crate::known_values::{KnownValue, SizeCondition};
use crate::lower::{CountedAxis, ImportLowering, RuleFailure, RuleResult};
use crate::node::{CONTROL_FLOW, node_label};
use crate::proto;
use crate::ranks::RankCount;
use crate::scope::{NameBinding, NameScope};
use crate::symbols::ProgramSymbols;

/// The control-flow operators, with the ops that replace them.
pub(crate) const SUPPORTED: [(&str, &str); CONTROL_FLOW.len()] = [
    (CONTROL_FLOW[0], "(a branch), select of both branches"),
    (CONTROL_FLOW[1], "(the nodes of all iterations), concat"),
    (CONTROL_FLOW[2], "(the nodes of all iterations), slice, concat"),
];

/// The most attempts to lower nodes that run graphs. Each copies the program, so that it can be undone.
const MAX_ATTEMPTS: usize = 2048;

/// The most iterations of a loop that are inlined.
const MAX_ITERATIONS: i64 = 1024;

/// The condition of a branch.
enum Condition {
    Constant(bool),
    Sizes(ValueId, SizeCondition),
    Data(ValueId),
}

/// The state before an attempt to lower nodes, which a failed attempt restores.
struct Snapshot<'p> {
    builder: GraphBuilder,
    compositions: Compositions,
    symbols: ProgramSymbols,
    scope: NameScope<'p>,
    outer: Vec<NameScope<'p>>,
    ranks: RankCount,
    weights: indexmap::IndexMap<String, Arc<Tensor>>,
    opaque: UnsupportedOps,
    untyped: UnsupportedOps,
    notes: Vec<String>,
    counted: HashMap<ValueId, CountedAxis>,
}

fn graph_attribute<'p>(node: &'p proto::NodeProto, name: &str) -> RuleResult<&'p proto::GraphProto> {
    let attribute = node.attribute.iter().find(|a| a.name == name);
    match attribute.and_then(|a| a.g.as_deref()) {
        Some(graph) => Ok(graph),
        None => invalid!("expected a graph as `{name}`, found none"),
    }
}

fn ints_attribute<'p>(node: &'p proto::NodeProto, name: &str) -> &'p [i64] {
    node.attribute.iter().find(|a| a.name == name).map_or(&[], |a| a.ints.as_slice())
}

impl<'p> ImportLowering<'p> {
    pub fn lower_control_flow(&mut self, node: &'p proto::NodeProto) -> RuleResult {
        unsupported_if!(self.scratch, "the node runs a graph");
        self.check_no_counted_operands(node)?;
        match node.op_type.as_str() {
            "If" => self.lower_if(node),
            "Loop" => self.attempt(|lowering| lowering.lower_loop(node)),
            _ => self.attempt(|lowering| lowering.lower_scan(node)),
        }
    }

    fn lower_if(&mut self, node: &'p proto::NodeProto) -> RuleResult {
        let branch = |holds: bool| graph_attribute(node, if holds { "then_branch" } else { "else_branch" });
        let (condition, sizes) = match self.condition(node)? {
            Condition::Constant(holds) => {
                let results = self.lower_branch(node, branch(holds)?, "")?;
                return self.bind_results(node, results);
            }
            Condition::Sizes(value, condition) => (value, Some(condition)),
            Condition::Data(value) => (value, None),
        };
        let branches = [branch(true)?, branch(false)?];
        let both = self.attempt(|lowering| lowering.lower_both(node, condition, branches));
        let Err(RuleFailure::Opaque(why)) = both else { return both };
        let Some(sizes) = sizes else { return unsupported!("the condition depends on data: {why}") };
        let Some((holds, requirements)) = self.usual_outcome(&sizes) else {
            return unsupported!("the condition depends on sizes: {why}");
        };
        let label = format!("{}{}.assumed", self.scope.prefix, node_label(node));
        let taken = branch(holds)?;
        self.attempt(|lowering| {
            for [least, most] in &requirements {
                requirement::require_at_most(&mut lowering.builder, &label, least, most)
                    .map_err(RuleFailure::Invalid)?;
            }
            let results = lowering.lower_branch(node, taken, "")?;
            lowering.bind_results(node, results)
        })?;
        self.has_assumed_branches = true;
        let table = &self.symbols.table;
        let [least, most] = &requirements[0];
        let relation = if requirements.len() > 1 { "equal to" } else { "at most" };
        self.notes.push(format!(
            "assuming {} is {relation} {}, because the branches of `{}` cannot both be computed: {why}",
            least.display(table),
            most.display(table),
            node_label(node),
        ));
        Ok(())
    }

    fn condition(&mut self, node: &'p proto::NodeProto) -> RuleResult<Condition> {
        let Some(name) = node.input.first() else { return invalid!("expected a condition, found none") };
        if let NameBinding::Known(value, _) = self.resolve_name(name)?
            && let Some(truth) = as_truth(&value)
        {
            return Ok(Condition::Constant(truth));
        }
        let sizes = self.scope.size_conditions.get(name.as_str()).cloned();
        let value = self.resolve_value(name)?;
        let ty = self.builder.graph().ty(value);
        invalid_if!(
            ty.numel().as_const() != Some(1),
            "expected a condition of one element, found {} axes",
            ty.rank()
        );
        Ok(match sizes {
            Some(sizes) => Condition::Sizes(value, sizes),
            None => Condition::Data(value),
        })
    }

    /// The value that a condition has at the upper ends of all sizes, with two expressions of which the first is at most
    /// the second where the condition has that value.
    fn usual_outcome(&self, condition: &SizeCondition) -> Option<(bool, Vec<[Dim; 2]>)> {
        let mut largest = SymbolBindings::new();
        for (id, symbol) in self.symbols.table.iter() {
            largest.set(id, symbol.max);
        }
        let SizeCondition { op, left, right } = condition;
        let (x, y) = (left.eval(&largest)?, right.eval(&largest)?);
        let at_most = |a: &Dim, b: &Dim| vec![[a.clone(), b.clone()]];
        let below = |a: &Dim, b: &Dim| vec![[a.clone() + Dim::from(1), b.clone()]];
        Some(match op {
            BinaryOp::Eq if x == y => (true, [at_most(left, right), at_most(right, left)].concat()),
            BinaryOp::Eq if x < y => (false, below(left, right)),
            BinaryOp::Eq => (false, below(right, left)),
            BinaryOp::Lt if x < y => (true, below(left, right)),
            BinaryOp::Lt => (false, at_most(right, left)),
            BinaryOp::Le if x <= y => (true, at_most(left, right)),
            BinaryOp::Le => (false, below(right, left)),
            BinaryOp::Gt if x > y => (true, below(right, left)),
            BinaryOp::Gt => (false, at_most(left, right)),
            BinaryOp::Ge if x >= y => (true, at_most(right, left)),
            BinaryOp::Ge => (false, below(left, right)),
            _ => return None,
        })
    }

    /// Lowers a branch of a node. Returns the bindings of its results.
    fn lower_branch(
        &mut self,
        node: &'p proto::NodeProto,
        graph: &'p proto::GraphProto,
        name: &str,
    ) -> RuleResult<Vec<NameBinding<'p>>> {
        let scope = self.graph_scope(node, graph, name)?;
        let outputs: Vec<&'p str> = graph.output.iter().map(|o| o.name.as_str()).collect();
        Ok(self.lower_body(node, scope, &graph.node, &outputs)?.0)
    }

    /// The scope of a graph of a node. `name` distinguishes several graphs of it.
    fn graph_scope(
        &mut self,
        node: &'p proto::NodeProto,
        graph: &'p proto::GraphProto,
        name: &str,
    ) -> RuleResult<NameScope<'p>> {
        let dot = if name.is_empty() { "" } else { "." };
        let prefix = format!("{}{}.{name}{dot}", self.scope.prefix, node_label(node));
        let mut scope = self.scope.branch(prefix);
        scope.declare(graph.value_info.iter().chain(&graph.output));
        for tensor in &graph.initializer {
            scope.bind(&tensor.name, NameBinding::Stored(tensor)).map_err(RuleFailure::Invalid)?;
        }
        Ok(scope)
    }

    /// Lowers both branches, and selects their results.
    fn lower_both(
        &mut self,
        node: &'p proto::NodeProto,
        condition: ValueId,
        graphs: [&'p proto::GraphProto; 2],
    ) -> RuleResult {
        let label = format!("{}{}", self.scope.prefix, node_label(node));
        let mut emitter = DetachedEmitter { builder: &mut self.builder, label: &label };
        let condition = emitter.reshape(condition, vec![])?;
        let condition = emitter.cast(condition, DType::Bool)?;
        let outer = self.guard;
        let mut lower_guarded = |holds: bool, name: &str| {
            let mut emitter = DetachedEmitter { builder: &mut self.builder, label: &label };
            let guard = branches::emit_guard(&mut emitter, condition, holds, outer)?;
            let first = self.builder.graph().nodes.len();
            self.guard = Some(guard);
            let lowered = self.lower_branch(node, graphs[usize::from(!holds)], name);
            self.guard = outer;
            branches::check_nodes(self.builder.graph(), first, guard)?;
            lowered
        };
        let then_results = lower_guarded(true, "then_branch")?;
        let else_results = lower_guarded(false, "else_branch")?;
        invalid_if!(
            then_results.len() != else_results.len(),
            "expected the same number of results of both branches, found {} and {}",
            then_results.len(),
            else_results.len()
        );
        let mut results = Vec::new();
        for (name, (x, y)) in node.output.iter().zip(then_results.into_iter().zip(else_results)) {
            let x = self.value_of(name, x)?;
            let y = self.value_of(name, y)?;
            let types = [x, y].map(|v| self.builder.graph().ty(v).clone());
            unsupported_if!(
                types[0] != types[1],
                "the result `{name}` is {} in one branch and {} in the other",
                symmc_import::declared::display_type(&types[0], &self.symbols.table),
                symmc_import::declared::display_type(&types[1], &self.symbols.table)
            );
            let mut emitter = DetachedEmitter { builder: &mut self.builder, label: &label };
            results.push(NameBinding::Value(emitter.select(condition, x, y)?));
        }
        self.bind_results(node, results)
    }

    /// The value of a result of a body.
    fn value_of(&mut self, name: &str, binding: NameBinding<'p>) -> RuleResult<ValueId> {
        match binding {
            NameBinding::Value(v) if self.counted.contains_key(&v) => {
                unsupported!("the result `{name}` has a number of elements that depends on data")
            }
            NameBinding::Value(v) | NameBinding::Known(_, Some(v)) => Ok(v),
            NameBinding::Known(known, None) => self.emit_known(name, &known),
            NameBinding::Unavailable(why) => invalid!("`{name}` is {why}"),
            NameBinding::Untyped => unsupported!("a result has an operator without support"),
            NameBinding::Sequence(_) | NameBinding::Omitted | NameBinding::Stored(_) => {
                unsupported!("the result `{name}` is no tensor")
            }
        }
    }

    /// Inlines the iterations of a loop. Operands: the most iterations, the condition, the first states.
    fn lower_loop(&mut self, node: &'p proto::NodeProto) -> RuleResult {
        let body = graph_attribute(node, "body")?;
        let operand = |i: usize| node.input.get(i).map(String::as_str).filter(|n| !n.is_empty());
        let most =
            operand(0).map(|name| self.constant_operand(name, "the number of iterations")).transpose()?;
        let mut condition = match operand(1) {
            Some(name) => self.constant_operand(name, "the condition of the loop")? != 0,
            None => true,
        };
        let mut states = Vec::new();
        for name in node.input.iter().skip(2) {
            states.push(if name.is_empty() { NameBinding::Omitted } else { self.resolve_name(name)? });
        }
        invalid_if!(
            body.input.len() != states.len() + 2 || body.output.len() < states.len() + 1,
            "expected a body of {} operands and at least {} results, found {} and {}",
            states.len() + 2,
            states.len() + 1,
            body.input.len(),
            body.output.len()
        );
        let mut stacked: Vec<Vec<ValueId>> = vec![Vec::new(); body.output.len() - states.len() - 1];
        let mut stored = None;
        let mut i = 0i64;
        while condition && most.is_none_or(|most| i < most) {
            unsupported_if!(i >= MAX_ITERATIONS, "more than {MAX_ITERATIONS} iterations are not supported");
            let mut operands = vec![known_number(DType::I64, i)?, known_number(DType::Bool, 1)?];
            operands.append(&mut states);
            let mut results = self.lower_iteration(node, body, i, operands, &mut stored)?.into_iter();
            condition = match results.next() {
                Some(NameBinding::Known(value, _)) => as_truth(&value).unwrap_or(false),
                Some(NameBinding::Untyped) => {
                    return unsupported!("the condition has an operator without support");
                }
                _ => return unsupported!("the condition of the loop depends on data"),
            };
            states = results.by_ref().take(body.input.len() - 2).collect();
            for (stack, result) in stacked.iter_mut().zip(results) {
                let result = self.value_of(node_label(node), result)?;
                stack.push(result);
            }
            i += 1;
        }
        let label = format!("{}{}", self.scope.prefix, node_label(node));
        for parts in stacked {
            states.push(if parts.is_empty() {
                NameBinding::Unavailable("the results of a loop without iterations".into())
            } else {
                NameBinding::Value(self.stack(&label, &parts, 0)?)
            });
        }
        self.bind_results(node, states)
    }

    /// Inlines the iterations over the positions of the scanned operands.
    fn lower_scan(&mut self, node: &'p proto::NodeProto) -> RuleResult {
        let version = self.scope.opsets.get("").copied().unwrap_or(0);
        unsupported_if!(version < 9, "version {version} scans batches, which is not supported");
        let body = graph_attribute(node, "body")?;
        let scanned = node.attribute.iter().find(|a| a.name == "num_scan_inputs").map_or(0, |a| a.i);
        let state_count = usize::try_from(scanned).ok().and_then(|n| node.input.len().checked_sub(n));
        let Some(state_count) = state_count.filter(|n| *n <= body.output.len() && scanned > 0) else {
            return invalid!("expected 1 to {} scanned operands, found {scanned}", node.input.len());
        };
        invalid_if!(
            body.input.len() != node.input.len(),
            "expected a body of {} operands, found {}",
            node.input.len(),
            body.input.len()
        );
        let setting = |name: &str, i: usize| ints_attribute(node, name).get(i).copied().unwrap_or(0);
        let label = format!("{}{}", self.scope.prefix, node_label(node));
        let mut states = Vec::new();
        for name in node.input.iter().take(state_count) {
            states.push(self.resolve_name(name)?);
        }
        let mut operands = Vec::new();
        let mut count = None;
        for (i, name) in node.input.iter().skip(state_count).enumerate() {
            let value = self.resolve_value(name)?;
            let emitter = DetachedEmitter { builder: &mut self.builder, label: &label };
            let axis = emitter.axis_within(setting("scan_input_axes", i), emitter.rank(value))?;
            let extent = emitter.extent(value, axis);
            let Some(extent) = extent.as_const() else {
                return unsupported!("the number of iterations is symbolic");
            };
            invalid_if!(
                count.is_some_and(|count| count != extent),
                "expected scanned operands of equal lengths, found {} and {extent}",
                count.unwrap_or(0)
            );
            count = Some(extent);
            operands.push((value, axis, setting("scan_input_directions", i) != 0));
        }
        let count = count.unwrap_or(0);
        unsupported_if!(count > MAX_ITERATIONS, "more than {MAX_ITERATIONS} iterations are not supported");
        unsupported_if!(count == 0, "a scan without iterations is not supported");
        let mut stacked: Vec<Vec<ValueId>> = vec![Vec::new(); body.output.len() - state_count];
        let mut stored = None;
        for i in 0..count {
            let mut emitter = DetachedEmitter { builder: &mut self.builder, label: &label };
            let mut inputs = std::mem::take(&mut states);
            for &(value, axis, reverse) in &operands {
                let position = if reverse { count - 1 - i } else { i };
                let part = emitter.slice(value, axis, position.into(), 1.into(), 1)?;
                inputs.push(NameBinding::Value(emitter.drop_axis(part, axis)?));
            }
            let mut results = self.lower_iteration(node, body, i, inputs, &mut stored)?.into_iter();
            states = results.by_ref().take(state_count).collect();
            for (stack, result) in stacked.iter_mut().zip(results) {
                let result = self.value_of(node_label(node), result)?;
                stack.push(result);
            }
        }
        for (i, mut parts) in stacked.into_iter().enumerate() {
            if setting("scan_output_directions", i) != 0 {
                parts.reverse();
            }
            let stack = self.stack(&label, &parts, setting("scan_output_axes", i))?;
            states.push(NameBinding::Value(stack));
        }
        self.bind_results(node, states)
    }

    /// Lowers one iteration. `stored` are the stored tensors of the body that an earlier iteration has read.
    fn lower_iteration(
        &mut self,
        node: &'p proto::NodeProto,
        body: &'p proto::GraphProto,
        i: i64,
        operands: Vec<NameBinding<'p>>,
        stored: &mut Option<NameScope<'p>>,
    ) -> RuleResult<Vec<NameBinding<'p>>> {
        let mut scope = self.graph_scope(node, body, &i.to_string())?;
        for tensor in &body.initializer {
            if let Some((name, binding)) = stored.as_ref().and_then(|s| s.get(&tensor.name)) {
                scope.rebind(name, binding.clone());
            }
        }
        for (parameter, operand) in body.input.iter().zip(operands) {
            scope.bind(&parameter.name, operand).map_err(RuleFailure::Invalid)?;
        }
        let outputs: Vec<&'p str> = body.output.iter().map(|o| o.name.as_str()).collect();
        let (results, scope) = self.lower_body(node, scope, &body.node, &outputs)?;
        stored.get_or_insert(scope);
        Ok(results)
    }

    /// The tensors along a new axis.
    fn stack(&mut self, label: &str, parts: &[ValueId], axis: i64) -> RuleResult<ValueId> {
        let mut emitter = DetachedEmitter { builder: &mut self.builder, label };
        let rank = parts.first().map_or(0, |v| emitter.rank(*v));
        let axis = emitter.axis_within(axis, rank + 1)?;
        let mut rows = Vec::with_capacity(parts.len());
        for part in parts {
            rows.push(emitter.unsqueeze(*part, axis)?);
        }
        emitter.concat(&rows, axis)
    }

    /// The number in an operand that must be a constant.
    fn constant_operand(&mut self, name: &str, what: &str) -> RuleResult<i64> {
        if let NameBinding::Known(value, _) = self.resolve_name(name)?
            && let Some([number]) = value.as_ints().as_ref().map(|i| i.dims.as_slice())
        {
            return number
                .as_const()
                .ok_or_else(|| RuleFailure::Opaque(format!("{what} is symbolic, not a constant")));
        }
        unsupported!("{what} depends on data")
    }

    /// Undoes everything if the attempt fails. Every failure makes the node opaque.
    fn attempt(&mut self, lower: impl FnOnce(&mut Self) -> RuleResult) -> RuleResult {
        self.attempts += 1;
        unsupported_if!(
            self.attempts > MAX_ATTEMPTS,
            "more than {MAX_ATTEMPTS} nodes that run graphs are not supported"
        );
        let snapshot = Snapshot {
            builder: self.builder.clone(),
            compositions: self.compositions.clone(),
            symbols: self.symbols.clone(),
            scope: self.scope.clone(),
            outer: self.outer.clone(),
            ranks: self.ranks.clone(),
            weights: self.weights.clone(),
            opaque: self.opaque.clone(),
            untyped: self.untyped.clone(),
            notes: self.notes.clone(),
            counted: self.counted.clone(),
        };
        let lowered = lower(self);
        let Err(failure) = lowered else { return lowered };
        self.builder = snapshot.builder;
        self.compositions = snapshot.compositions;
        self.symbols = snapshot.symbols;
        self.scope = snapshot.scope;
        self.outer = snapshot.outer;
        self.ranks = snapshot.ranks;
        self.weights = snapshot.weights;
        self.opaque = snapshot.opaque;
        self.untyped = snapshot.untyped;
        self.notes = snapshot.notes;
        self.counted = snapshot.counted;
        match failure {
            RuleFailure::Error(error) => Err(RuleFailure::Opaque(error.to_string())),
            RuleFailure::Invalid(why) | RuleFailure::Opaque(why) => Err(RuleFailure::Opaque(why)),
        }
    }
}

/// Whether a known value of one element is not zero.
fn as_truth(value: &KnownValue) -> Option<bool> {
    match value.as_ints()?.dims.as_slice() {
        [one] => one.as_const().map(|n| n != 0),
        _ => None,
    }
}

fn known_number<'p>(dtype: DType, number: i64) -> RuleResult<NameBinding<'p>> {
    let tensor = Tensor::from_i64(dtype, vec![], &[number]);
    let tensor = tensor.ok_or_else(|| RuleFailure::Invalid(format!("{number} is no {dtype}")))?;
    Ok(NameBinding::Known(KnownValue::Data(Arc::new(tensor)), None))
}
