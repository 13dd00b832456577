//! Lowers the nodes of a program to graph nodes, in order.
//!
//! Each target has a rule ([`crate::ops`]) that emits graph nodes for it. Around the rules, this module keeps
//! PyTorch's names for results and checks each result against its declared type. If the two only look
//! different (`2*(s0//2)` for a known even `s0`), the computed type is used; a real difference is an error. A
//! target without a rule becomes an opaque op.

use crate::aliasing;
use crate::auto_functionalized;
use crate::branches;
use crate::call::OpCall;
use crate::effects::{self, OpEffect};
use crate::error::{ImportError, Result};
use crate::expand;
use crate::inline;
use crate::inplace;
use crate::lower::{ImportLowering, RuleFailure, RuleResult};
use crate::operand_dtypes;
use crate::ops;
use crate::packed_rows;
use crate::schema::{Argument, ExportedNode};
use crate::scope::{NameBinding, tensor_names};
use symmc_import::unsupported;

impl<'p> ImportLowering<'p> {
    pub fn lower_nodes(&mut self) -> Result<()> {
        let graph = self.scope.graph;
        for (position, node) in graph.nodes.iter().enumerate() {
            self.scope.position = position;
            self.lower_node(node)?;
        }
        Ok(())
    }

    pub fn lower_program_nodes(&mut self) -> Result<()> {
        self.lower_nodes()?;
        self.notes.extend(self.opaque.opaque_note());
        Ok(())
    }

    fn lower_node(&mut self, node: &'p ExportedNode<'p>) -> Result<()> {
        let effect = self.effects.classify_node(node);
        let first = self.builder.graph().nodes.len();
        let is_converted =
            self.scope.autocast && effect == OpEffect::Pure && inline::wrapped_graph(node).is_none();
        let own_operands = if is_converted { self.convert_for_autocast(node)? } else { Vec::new() };
        let mut call = OpCall::new(self, node);
        let lowered = lower_call(&mut call, &effect).and_then(|()| call.finish());
        let lowered = match lowered {
            Err(RuleFailure::Opaque(why)) => self.lower_opaque(node, &effect, &why),
            other => other,
        };
        for (name, value) in own_operands {
            self.scope.rebind(name, NameBinding::Value(value));
        }
        if let Some(operator) = node.replaced_operator() {
            let end = self.builder.graph().nodes.len();
            self.compositions.record_part(operator, first..end);
        }
        lowered.map_err(|stop| {
            stop.into_error(|message| ImportError::Node {
                node: node.name().into(),
                op: node.target.to_string(),
                message,
            })
        })
    }

    /// Lowers a node that writes nothing to an opaque op with its declared results.
    fn lower_opaque(&mut self, node: &'p ExportedNode<'p>, effect: &OpEffect, why: &str) -> RuleResult {
        if let Some(refusal) = self.explain_unrepresented(node, effect) {
            return Err(RuleFailure::Invalid(refusal));
        }
        let tensors: Vec<&'p str> = node
            .results()
            .into_iter()
            .flatten()
            .filter(|n| self.scope.graph.tensor_values.contains_key(*n))
            .collect();
        let types = tensors.iter().map(|n| self.declared_type(n)).collect::<Result<Vec<_>, _>>()?;
        let results = self.emit_opaque(node, why, types)?;
        if self.in_place && effects::returns_views(&node.target) {
            let operand = node.inputs.iter().flat_map(|i| tensor_names(&i.arg)).next();
            if let Some(operand) = operand {
                let operand = self.scope.value(operand).map_err(RuleFailure::Invalid)?;
                self.possible_aliases.extend(results.iter().map(|&r| (r, operand)));
            }
        }
        for (name, value) in tensors.into_iter().zip(results) {
            self.builder.graph_mut().values[value].name = format!("{}{name}", self.scope.prefix);
            self.scope.bind(name, NameBinding::Value(value)).map_err(RuleFailure::Invalid)?;
        }
        Ok(())
    }

    /// The reason for which an opaque op cannot represent a node, if there is one.
    fn explain_unrepresented(&mut self, node: &'p ExportedNode<'p>, effect: &OpEffect) -> Option<String> {
        let advice = inplace::ADVICE;
        match effect {
            OpEffect::Pure => None,
            OpEffect::Writes(_) => Some(format!("it writes its operand; {advice}")),
            OpEffect::Resizes => {
                Some(format!("it changes the shape or the storage of its operand in place; {advice}"))
            }
            OpEffect::Draws => Some(effects::DRAWS_ERROR.into()),
            OpEffect::External => Some("it has a side effect, which is not supported".into()),
            OpEffect::UnclearWrites => {
                Some(format!("its name says that it writes its operand, and it is not supported; {advice}"))
            }
            OpEffect::Unknown => {
                let call = OpCall::new(self, node);
                let operands = call.node.inputs.iter().flat_map(|i| tensor_names(&i.arg));
                let noticed = operands
                    .filter_map(|n| call.lowering.scope.value(n).ok())
                    .find_map(|v| inplace::find_observer(&call, v));
                let reason = if node.results().is_empty() {
                    "it has no result, so it must have a side effect".into()
                } else if let Some(observer) = noticed {
                    format!("it may write {observer}")
                } else {
                    return None;
                };
                Some(format!(
                    "{reason}: the program does not state what this operator writes; declare its schema \
                     (such as {}, with Tensor(a!) for arguments that it writes) or define it by a program; {advice}",
                    example_schema(node)
                ))
            }
        }
    }
}

fn lower_call(call: &mut OpCall<'_, '_>, effect: &OpEffect) -> RuleResult {
    if let Some(graph) = inline::wrapped_graph(call.node).or_else(|| inline::taken_branch(call)) {
        return inline::lower_wrapped_graph(call, graph);
    }
    if inline::is_branch(call.node) {
        return branches::lower_both(call);
    }
    if ops::complex::involves_complex(call) {
        return lower_complex_call(call, effect);
    }
    if let Some(op) = effects::functionalized_op(call.node) {
        return auto_functionalized::lower_functionalized(call, op);
    }
    if let Some(definitions) = call.lowering.definitions.find(&call.node.target).cloned() {
        return match effect {
            OpEffect::Writes(writes) => inplace::lower_in_place_by_definition(call, writes, &definitions),
            _ => {
                let own_results = call.result_count();
                expand::lower_by_definition(call, &definitions, own_results)?;
                call.check_all_read()
            }
        };
    }
    match effect {
        OpEffect::Writes(writes) => inplace::lower_in_place(call, writes),
        OpEffect::Resizes | OpEffect::UnclearWrites => {
            unsupported!("this operator is not supported")
        }
        _ => match ops::find_rule(&call.node.target) {
            Some(rule) => {
                call.extent_arguments = packed_rows::takes_extents(&call.node.target);
                operand_dtypes::check_operand_dtypes(call, &call.node.target)?;
                rule.apply(call)?;
                call.check_all_read()?;
                aliasing::separate_results(call)
            }
            None => unsupported!("this operator is not supported"),
        },
    }
}

fn lower_complex_call(call: &mut OpCall<'_, '_>, effect: &OpEffect) -> RuleResult {
    match effect {
        OpEffect::Writes(writes) => {
            let target = writes.functional.as_deref().unwrap_or_default();
            inplace::lower_in_place_by_rule(call, writes, |c| {
                ops::complex::lower_complex(c, target, ops::find_rule(target))
            })
        }
        OpEffect::Resizes | OpEffect::UnclearWrites => Err(ops::complex::unsupported_complex_op()),
        _ => {
            let target = effects::bare_target(&call.node.target);
            ops::complex::lower_complex(call, target, ops::find_rule(target))?;
            call.check_all_read()?;
            aliasing::separate_results(call)
        }
    }
}

/// A possible schema of a node's op, on the assumption that it is pure.
fn example_schema(node: &ExportedNode<'_>) -> String {
    let target = effects::bare_target(&node.target);
    let (op, overload) = target.rsplit_once('.').unwrap_or((target, ""));
    let overload = if matches!(overload, "default" | "") { String::new() } else { format!(".{overload}") };
    let inputs = node.inputs.iter();
    let arguments: Vec<String> = inputs.map(|i| format!("{} {}", schema_type(&i.arg), &*i.name)).collect();
    let results: Vec<&str> = node.outputs.iter().map(schema_type).collect();
    let results = match results.as_slice() {
        [one] => one.to_string(),
        many => format!("({})", many.join(", ")),
    };
    format!("`{}{overload}({}) -> {results}`", op.replacen('.', "::", 1), arguments.join(", "))
}

fn schema_type(argument: &Argument<'_>) -> &'static str {
    match argument {
        Argument::Tensor(_) => "Tensor",
        Argument::Tensors(_) => "Tensor[]",
        Argument::OptionalTensors(_) => "Tensor?[]",
        Argument::Int(_) | Argument::SymInt(_) => "int",
        Argument::Ints(_) | Argument::SymInts(_) => "int[]",
        Argument::Float(_) | Argument::SymFloat(_) => "float",
        Argument::Floats(_) => "float[]",
        Argument::Bool(_) | Argument::SymBool(_) => "bool",
        Argument::String(_) => "str",
        _ => "Any",
    }
}
