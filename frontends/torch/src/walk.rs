//! Turns the nodes of a program into nodes of a graph, one after another.
//!
//! Each target has a rule ([`crate::ops`]) that emits nodes for it. Around the rules, this module keeps PyTorch's names
//! for results, and holds each result against the type that the program declares for it: where the two only look
//! different (`2*(s0//2)` for a known even `s0`), the type that the operands give stands; a real difference is an
//! error. A target without a rule becomes an opaque op.

use crate::call::Call;
use crate::effects::{self, Effect};
use crate::error::{ImportError, Result};
use crate::functionalised;
use crate::inline;
use crate::inplace;
use crate::lower::{Lowered, Lowering, Stop};
use crate::operands;
use crate::ops;
use crate::schema::{Argument, Graph, Node};
use crate::scope::{Binding, tensor_names};
use crate::sharing;

impl<'p> Lowering<'p> {
    pub fn run_scope(&mut self) -> Result<()> {
        let graph = self.scope.graph;
        for (position, node) in graph.nodes.iter().enumerate() {
            self.scope.position = position;
            self.node(node)?;
        }
        Ok(())
    }

    pub fn run(&mut self) -> Result<()> {
        self.run_scope()?;
        self.notes.extend(self.opaque.notes());
        Ok(())
    }

    fn node(&mut self, node: &'p Node<'p>) -> Result<()> {
        let error = |message: String| ImportError::Node {
            node: node.name().into(),
            op: node.target.to_string(),
            message,
        };
        let effect = self.effects.of(node);
        let mut call = Call::new(self, node);
        let lowered = lowered(&mut call, &effect).and_then(|()| call.finish());
        let lowered = match lowered {
            Err(Stop::Opaque(why)) => self.opaque(node, &effect, &why),
            other => other,
        };
        lowered.map_err(|stop| stop.into_error(error))
    }

    /// Represents a node that writes nothing as an opaque op with its declared results.
    fn opaque(&mut self, node: &'p Node<'p>, effect: &Effect, why: &str) -> Lowered {
        if let Some(refusal) = self.unrepresented(node, effect) {
            return Err(Stop::Broken(refusal));
        }
        let tensors: Vec<&'p str> = node
            .results()
            .into_iter()
            .flatten()
            .filter(|n| self.scope.graph.tensor_values.contains_key(*n))
            .collect();
        let types = tensors.iter().map(|n| self.declared(n)).collect::<Result<Vec<_>, _>>()?;
        let results = self.opaque_op(node, why, types)?;
        if self.in_place && effects::is_view(&node.target) {
            let operand = node.inputs.iter().flat_map(|i| tensor_names(&i.arg)).next();
            if let Some(operand) = operand {
                let operand = self.scope.value(operand).map_err(Stop::Broken)?;
                self.entangled.extend(results.iter().map(|&r| (r, operand)));
            }
        }
        for (name, value) in tensors.into_iter().zip(results) {
            self.builder.graph_mut().values[value].name = format!("{}{name}", self.scope.prefix);
            self.scope.bind(name, Binding::Value(value)).map_err(Stop::Broken)?;
        }
        Ok(())
    }

    /// Why an opaque op would not do all that a node does.
    fn unrepresented(&mut self, node: &'p Node<'p>, effect: &Effect) -> Option<String> {
        let advice = inplace::ADVICE;
        match effect {
            Effect::Pure => None,
            Effect::Writes(_) => Some(format!("it writes its operand; {advice}")),
            Effect::Resizes => {
                Some(format!("it changes the shape or the storage of its operand in place; {advice}"))
            }
            Effect::Draws => Some(effects::DRAWS.into()),
            Effect::Outside => {
                Some("it has an effect besides its results, which a program cannot have".into())
            }
            Effect::Unclear => {
                Some(format!("it writes its operand by its name, and there is no rule for it; {advice}"))
            }
            Effect::Unknown => {
                let call = Call::new(self, node);
                let operands = call.node.inputs.iter().flat_map(|i| tensor_names(&i.arg));
                let noticed = operands
                    .filter_map(|n| call.lowering.scope.value(n).ok())
                    .find_map(|v| inplace::would_notice(&call, v));
                let what = match (node.results().is_empty(), noticed) {
                    (true, _) => "it gives no result, so it must have an effect".into(),
                    (false, Some(who)) => format!("it may write {who}"),
                    (false, None) => return None,
                };
                Some(format!(
                    "{what}: the program does not tell what this op writes, and neither does a declared schema \
                     (such as {}, with Tensor(a!) for what it writes); {advice}",
                    example(node)
                ))
            }
        }
    }
}

fn lowered(call: &mut Call<'_, '_>, effect: &Effect) -> Lowered {
    if let Some(graph) = inline::body(call.node) {
        return wrapped(call, graph);
    }
    if ops::complex::touches(call) {
        return of_complex(call, effect);
    }
    if let Some(op) = effects::called(call.node) {
        return functionalised::lower(call, op);
    }
    match effect {
        Effect::Writes(writes) => inplace::lower(call, writes),
        Effect::Resizes | Effect::Unclear => Err(Stop::Opaque("no rule for it".into())),
        _ => match ops::find(&call.node.target) {
            Some(rule) => {
                operands::check(call, &call.node.target)?;
                rule.apply(call)?;
                call.all_read()?;
                sharing::separate_results(call)
            }
            None => Err(Stop::Opaque("no rule for it".into())),
        },
    }
}

fn of_complex(call: &mut Call<'_, '_>, effect: &Effect) -> Lowered {
    match effect {
        Effect::Writes(writes) => {
            let target = writes.functional.as_deref().unwrap_or_default();
            inplace::lower_by(call, writes, |c| ops::complex::apply(c, target, ops::find(target)))
        }
        Effect::Resizes | Effect::Unclear => Err(ops::complex::unknown()),
        _ => {
            let target = effects::bare(&call.node.target);
            ops::complex::apply(call, target, ops::find(target))?;
            call.all_read()?;
            sharing::separate_results(call)
        }
    }
}

/// Lowers the nodes of a wrapped graph in place of the call.
fn wrapped<'p>(call: &mut Call<'_, 'p>, graph: &'p Graph<'p>) -> Lowered {
    let inner = inline::scope(call, graph)?;
    let outer = std::mem::replace(&mut call.lowering.scope, inner);
    let ran = call.lowering.run_scope();
    let inner = std::mem::replace(&mut call.lowering.scope, outer);
    ran?;
    inline::results(call, graph, &inner)
}

/// What the schema of a node's op may be, if it is pure.
fn example(node: &Node<'_>) -> String {
    let target = effects::bare(&node.target);
    let (op, overload) = target.rsplit_once('.').unwrap_or((target, ""));
    let overload = if matches!(overload, "default" | "") { String::new() } else { format!(".{overload}") };
    let ty = |arg: &Argument<'_>| match arg {
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
    };
    let arguments: Vec<String> = node.inputs.iter().map(|i| format!("{} {}", ty(&i.arg), &*i.name)).collect();
    let results: Vec<&str> = node.outputs.iter().map(ty).collect();
    let results = match results.as_slice() {
        [one] => one.to_string(),
        many => format!("({})", many.join(", ")),
    };
    format!("`{}{overload}({}) -> {results}`", op.replacen('.', "::", 1), arguments.join(", "))
}
