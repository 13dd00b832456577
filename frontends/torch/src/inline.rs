//! Inlines ops that wrap a graph, and branches with a constant condition.
//!
//! Operators within autocast convert their floats to the dtype of autocast, to f32 or to the widest dtype, by lists of
//! operators in PyTorch. The declared dtype of a result states which: floats of 32 or 16 bits are converted to it.

use crate::call::OpCall;
use crate::effects;
use crate::error::{ImportError, Result};
use crate::lower::{ImportLowering, RuleFailure, RuleResult};
use crate::schema::{self, Argument, ExportedGraph, ExportedNode};
use crate::scope::{NameBinding, NameScope, tensor_names};
use symmc_import::{RuleCall, invalid_if};
use symmc_ir::{DType, Op, TensorType, ValueDef, ValueId};

/// The wrappers, without `torch.ops.higher_order.`. Each runs its graph on the tensors that follow it.
const WRAPPERS: [&str; 6] = [
    "wrap_with_set_grad_enabled",
    "wrap_with_autocast",
    "wrap_activation_checkpoint",
    "tag_activation_checkpoint",
    "invoke_subgraph",
    "wrap",
];

pub(crate) fn wrapped_graph<'p>(node: &'p ExportedNode<'p>) -> Option<&'p schema::ExportedGraph<'p>> {
    let name = node.target.strip_prefix("torch.ops.higher_order.")?;
    if !WRAPPERS.contains(&name.split('.').next()?) {
        return None;
    }
    node.inputs.iter().find_map(|i| match &i.arg {
        Argument::Graph(g) => Some(&**g),
        _ => None,
    })
}

pub(crate) fn is_branch(node: &ExportedNode<'_>) -> bool {
    effects::bare_target(&node.target).split('.').nth(1) == Some("cond")
}

/// The graphs of a `cond`: the branch for true, then that for false.
pub(crate) fn branch_graphs<'p>(
    node: &'p ExportedNode<'p>,
) -> impl Iterator<Item = &'p schema::ExportedGraph<'p>> {
    node.inputs.iter().filter_map(|i| match &i.arg {
        Argument::Graph(g) => Some(&**g),
        _ => None,
    })
}

/// The branch of a `cond` that is taken, if its condition is a constant.
pub(crate) fn taken_branch<'p>(c: &OpCall<'_, 'p>) -> Option<&'p schema::ExportedGraph<'p>> {
    let node = c.node;
    if !is_branch(node) {
        return None;
    }
    let holds = match &node.inputs.first()?.arg {
        Argument::Bool(holds) => *holds,
        Argument::SymBool(condition) => condition.as_bool?,
        Argument::Tensor(name) => constant_truth(c, c.lowering.scope.value(name).ok()?)?,
        _ => return None,
    };
    branch_graphs(node).take(2).nth(usize::from(!holds))
}

/// Whether a constant of one element is not zero.
fn constant_truth(c: &OpCall<'_, '_>, mut value: ValueId) -> Option<bool> {
    let graph = c.lowering.builder.graph();
    while let Some(node) = graph.defining_node(value) {
        let node = &graph.nodes[node];
        if !matches!(node.op, Op::Copy | Op::Reshape) {
            return match node.op {
                Op::Full(scalar) => Some(scalar.as_f64() != 0.0),
                _ => None,
            };
        }
        value = *node.inputs.first()?;
    }
    let ValueDef::Input(input) = graph.values[value].def else { return None };
    let data = graph.inputs[input].data.as_ref().filter(|data| data.numel() == 1)?;
    Some(data.to_f64().first().is_some_and(|x| *x != 0.0))
}

impl<'p> ImportLowering<'p> {
    /// Converts the operands of a node within autocast. Returns the names that were bound to converted values, with
    /// their own values.
    pub fn convert_for_autocast(&mut self, node: &'p ExportedNode<'p>) -> Result<Vec<(&'p str, ValueId)>> {
        let is_converted = |dtype: DType| dtype.is_float() && dtype != DType::F64;
        let mut declared = None;
        for name in node.results().into_iter().flatten() {
            if self.scope.graph.tensor_values.contains_key(name) && !self.is_complex(name) {
                declared = Some(self.declared_type(name)?.dtype).filter(|d| is_converted(*d));
                break;
            }
        }
        let Some(declared) = declared else { return Ok(Vec::new()) };
        let mut converted = Vec::new();
        for name in node.inputs.iter().flat_map(|i| tensor_names(&i.arg)) {
            let Ok(value) = self.scope.value(name) else { continue };
            let ty = self.builder.graph().ty(value).clone();
            if !is_converted(ty.dtype) || ty.dtype == declared || self.packed.rows(value).is_some() {
                continue;
            }
            let label = format!("{}{}.autocast", self.scope.prefix, node.name());
            let ty = TensorType::new(declared, ty.shape);
            let cast = self.builder.op_as(&label, Op::Cast, &[value], ty);
            let cast = cast.map_err(|e| ImportError::Node {
                node: node.name().into(),
                op: node.target.to_string(),
                message: e.message,
            })?;
            converted.push((name, value));
            self.scope.rebind(name, NameBinding::Value(cast));
        }
        Ok(converted)
    }
}

/// The scope of a wrapped graph, in which its inputs are bound to the operands of the call.
pub(crate) fn wrapped_scope<'p>(
    c: &OpCall<'_, 'p>,
    graph: &'p schema::ExportedGraph<'p>,
) -> RuleResult<NameScope<'p>> {
    let node = c.node;
    let operands: Vec<&str> = node
        .inputs
        .iter()
        .skip_while(|i| !matches!(i.arg, Argument::Graph(_)))
        .flat_map(|i| tensor_names(&i.arg))
        .collect();
    let parameters: Vec<&'p str> = graph.inputs.iter().flat_map(tensor_names).collect();
    invalid_if!(
        operands.len() != parameters.len(),
        "expected {} tensors for the wrapped graph, found {}",
        parameters.len(),
        operands.len()
    );
    let first_value = c.lowering.builder.graph().values.len();
    let mut inner = NameScope::new(graph, format!("{}.", c.label), first_value);
    inner.autocast = if node.target.contains("autocast") {
        !node.inputs.iter().any(|i| &*i.name == "enabled" && matches!(i.arg, Argument::Bool(false)))
    } else {
        c.lowering.scope.autocast
    };
    for (parameter, operand) in parameters.into_iter().zip(operands) {
        let value = c.lowering.scope.value(operand).map_err(RuleFailure::Invalid)?;
        inner.bind(parameter, NameBinding::Value(value)).map_err(RuleFailure::Invalid)?;
    }
    Ok(inner)
}

/// Sets the results of the call to those of the wrapped graph.
pub(crate) fn set_wrapped_results(
    c: &mut OpCall<'_, '_>,
    graph: &schema::ExportedGraph<'_>,
    inner: &NameScope<'_>,
) -> RuleResult {
    for (i, name) in graph.outputs.iter().flat_map(tensor_names).enumerate() {
        let value = inner.value(name).map_err(RuleFailure::Invalid)?;
        c.set_result(i, value);
    }
    Ok(())
}

/// Lowers the nodes of a wrapped graph in place of the call.
pub(crate) fn lower_wrapped_graph<'p>(call: &mut OpCall<'_, 'p>, graph: &'p ExportedGraph<'p>) -> RuleResult {
    let inner = wrapped_scope(call, graph)?;
    let outer = std::mem::replace(&mut call.lowering.scope, inner);
    let ran = call.lowering.lower_nodes();
    let inner = std::mem::replace(&mut call.lowering.scope, outer);
    ran?;
    set_wrapped_results(call, graph, &inner)
}
