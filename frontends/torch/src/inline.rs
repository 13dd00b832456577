//! Inlines ops that wrap a graph and do not change its values.

use crate::call::OpCall;
use crate::lower::{RuleFailure, RuleResult};
use crate::schema::{self, Argument, ExportedNode};
use crate::scope::{NameBinding, NameScope, tensor_names};
use symmc_import::{RuleCall, invalid_if, unsupported_if};

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

/// The scope of a wrapped graph, in which its inputs are bound to the operands of the call.
pub(crate) fn wrapped_scope<'p>(
    c: &OpCall<'_, 'p>,
    graph: &'p schema::ExportedGraph<'p>,
) -> RuleResult<NameScope<'p>> {
    let node = c.node;
    let autocast = node.target.contains("autocast");
    unsupported_if!(
        autocast
            && !node.inputs.iter().any(|i| &*i.name == "enabled" && matches!(i.arg, Argument::Bool(false))),
        "autocast is not supported: it converts operands implicitly"
    );
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
