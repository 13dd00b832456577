//! Turns the nodes of a program into nodes of a graph, one after another.
//!
//! Each op has a rule ([`crate::ops`]) that emits nodes for it. Around the rules, this module follows known values, puts
//! the bodies of functions and of decided branches in the place of their calls, keeps ONNX's names for results, and holds
//! each result against the type that the program declares for it. An op without a rule becomes opaque if its result
//! types are declared.

use symmc_ir::text::with_symbol_names;
use symmc_ir::{DType, Op};

use crate::call::Call;
use crate::error::Reason;
use crate::inline::{self, Body, Inner};
use crate::lower::{Lowered, Lowering, Stop};
use crate::node::{describe, display_name, label, normalised};
use crate::ops;
use crate::proto;
use crate::scope::Binding;
use crate::{evaluate, fold};

/// The most nodes that calls of functions may expand to.
const MAX_NODES: usize = 1 << 18;

impl<'p> Lowering<'p> {
    pub fn run(&mut self, nodes: &'p [proto::Node]) -> Result<(), Reason> {
        self.run_nodes(nodes)?;
        self.notes.extend(self.opaque.notes());
        Ok(())
    }

    pub fn run_nodes(&mut self, nodes: &'p [proto::Node]) -> Result<(), Reason> {
        self.scope.mark_read(nodes);
        nodes.iter().try_for_each(|node| self.node(node))
    }

    fn node(&mut self, node: &'p proto::Node) -> Result<(), Reason> {
        let error = |message| Reason::Node { node: label(node).to_string(), op: display_name(node), message };
        self.nodes += 1;
        if self.nodes > MAX_NODES && !self.outer.is_empty() {
            return Err(error(format!("functions expand to more than {MAX_NODES} nodes")));
        }
        let lowered = match inline::body(self, node) {
            Ok(Some(body)) => self.body(node, body),
            Ok(None) => self.by_rule(node),
            Err(stop) => Err(stop),
        };
        let lowered = match lowered {
            Err(Stop::Opaque(why)) => self.opaque(node, &why),
            other => other,
        };
        // Messages of the IR have ids of symbols.
        let named = |message: String| error(with_symbol_names(&message, &self.symbols.table));
        lowered.map_err(|stop| stop.into_error(named))
    }

    fn body(&mut self, node: &'p proto::Node, body: Body<'p>) -> Lowered {
        let Inner { scope, nodes, outputs } = inline::inner(self, node, body)?;
        let mut results = Vec::new();
        self.within(scope, |inner| {
            inner.scope.mark_read_at_end(outputs.iter().copied());
            inner.run_nodes(nodes)?;
            for name in &outputs {
                let binding = inner.resolve(name).unwrap_or_else(|_| {
                    let of = label(node);
                    Binding::Nothing(format!("the result `{name}` of `{of}`, which it does not define"))
                });
                results.push(binding);
            }
            Ok(())
        })?;
        for (name, binding) in node.output.iter().zip(results) {
            if !name.is_empty() {
                self.scope.bind(name, binding).map_err(Stop::Broken)?;
            }
        }
        Ok(())
    }

    fn by_rule(&mut self, node: &'p proto::Node) -> Lowered {
        let Some(row) = ops::find(&node.domain, &node.op_type) else {
            let standard = normalised(&node.domain).is_empty() && ops::schemas::is_standard(&node.op_type);
            let why = if standard { "this op of ONNX is not supported" } else { "no rule for it" };
            return Err(Stop::Opaque(why.into()));
        };
        let Some(version) = self.scope.opsets.get(normalised(&node.domain)).copied() else {
            return Err(Stop::Broken(format!(
                "expected an import of the operators of `{}`, found none",
                node.domain
            )));
        };
        let schema = ops::definition(row, version).map_err(Stop::Broken)?;
        schema.check(row.name, node, |a| self.scope.attribute(a)).map_err(Stop::Broken)?;
        let dtypes: Vec<Option<DType>> = node.input.iter().map(|name| self.dtype_of(name)).collect();
        schema.check_dtypes(row.name, &dtypes).map_err(Stop::Broken)?;
        let mut call = Call::new(self, node, version, schema);
        if fold::ints(&mut call)? || evaluate::constants(&mut call, row.rule.rule)? {
            return call.finish();
        }
        call.start();
        row.rule.rule.apply(&mut call)?;
        call.finish()
    }

    /// Represents a node as an opaque op with its declared results.
    fn opaque(&mut self, node: &'p proto::Node, why: &str) -> Lowered {
        let op = display_name(node);
        if self.scratch {
            return Err(Stop::Opaque(why.to_string()));
        }
        let mut operands = Vec::new();
        for name in node.input.iter().filter(|n| !n.is_empty()) {
            operands.push(self.value(name)?);
        }
        let wanted: Vec<&'p str> =
            node.output.iter().map(String::as_str).filter(|n| self.scope.is_read(n)).collect();
        let mut types = Vec::new();
        for name in &wanted {
            let declared = self.declared_type(name)?;
            types.push(declared.ok_or_else(|| {
                Stop::Broken(format!(
                    "{why}, and the program does not declare the type of its result `{name}`; onnx.shape_inference declares those of ONNX's own ops"
                ))
            })?);
        }
        self.opaque.count(&op, &with_symbol_names(why, &self.symbols.table));
        if wanted.is_empty() {
            return Ok(());
        }
        let attributes: Vec<String> = node.attribute.iter().map(describe).collect();
        let op = Op::Opaque { name: op, attributes: attributes.join(", ") };
        let label = format!("{}{}.opaque", self.scope.prefix, label(node));
        let results = self.builder.node_as(&label, op, &operands, types)?;
        for (name, value) in wanted.into_iter().zip(results) {
            let shown = format!("{}{name}", self.scope.prefix);
            self.builder.rename(value, &shown)?;
            self.scope.bind(name, Binding::Value(value)).map_err(Stop::Broken)?;
        }
        Ok(())
    }
}
