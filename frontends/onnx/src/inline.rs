//! Inlines nodes that run a graph: calls of the model's functions, and branches with a known condition.

use crate::lower::{ImportLowering, RuleFailure, RuleResult};
use crate::node::{describe_attribute, node_label, normalize_domain};
use crate::proto;
use crate::scope::{NameBinding, NameScope};
use crate::versions;
use symmc_import::{invalid, invalid_if, unsupported};

const MAX_DEPTH: usize = 32;

pub(crate) enum InlinedBody<'p> {
    Function(&'p proto::FunctionProto),
    Branch(&'p proto::GraphProto),
}

/// The body that replaces a node, if the node is to be inlined.
pub(crate) fn find_inlined_body<'p>(
    lowering: &mut ImportLowering<'p>,
    node: &'p proto::NodeProto,
) -> RuleResult<Option<InlinedBody<'p>>> {
    let domain = normalize_domain(&node.domain);
    let key = (domain, node.op_type.as_str(), node.overload.as_str());
    if let Some(function) = lowering.functions.get(&key) {
        return Ok(Some(InlinedBody::Function(function)));
    }
    if !domain.is_empty() || node.op_type != "If" {
        return Ok(None);
    }
    let Some(condition) = node.input.first() else { return invalid!("expected a condition, found none") };
    let name = match lowering.resolve_name(condition)? {
        NameBinding::Known(value, _) => match value.as_ints().as_ref().map(|i| i.dims.as_slice()) {
            Some([one]) if one.as_const() == Some(0) => "else_branch",
            Some([one]) if one.as_const().is_some() => "then_branch",
            _ => return unsupported!("the condition is not a single constant"),
        },
        _ => return unsupported!("the condition depends on data"),
    };
    let branch = node.attribute.iter().find(|a| a.name == name).and_then(|a| a.g.as_deref());
    match branch {
        Some(graph) => Ok(Some(InlinedBody::Branch(graph))),
        None => invalid!("expected a graph as `{name}`, found none"),
    }
}

/// A body that is ready to be lowered.
pub(crate) struct BodyScope<'p> {
    pub scope: NameScope<'p>,
    pub nodes: &'p [proto::NodeProto],
    pub outputs: Vec<&'p str>,
}

/// Prepares the body of a node, with a new scope.
pub(crate) fn prepare_body<'p>(
    lowering: &mut ImportLowering<'p>,
    node: &'p proto::NodeProto,
    body: InlinedBody<'p>,
) -> RuleResult<BodyScope<'p>> {
    invalid_if!(lowering.outer.len() >= MAX_DEPTH, "calls are nested more than {MAX_DEPTH} deep");
    let prefix = format!("{}{}.", lowering.scope.prefix, node_label(node));
    match body {
        InlinedBody::Function(function) => {
            let outputs = function.output.iter().map(String::as_str).collect();
            let scope = function_scope(lowering, node, function, prefix)?;
            Ok(BodyScope { scope, nodes: &function.node, outputs })
        }
        InlinedBody::Branch(graph) => {
            let mut scope = lowering.scope.branch(prefix);
            scope.declare(graph.value_info.iter().chain(&graph.output));
            for tensor in &graph.initializer {
                scope.bind(&tensor.name, NameBinding::Stored(tensor)).map_err(RuleFailure::Invalid)?;
            }
            let outputs = graph.output.iter().map(|o| o.name.as_str()).collect();
            Ok(BodyScope { scope, nodes: &graph.node, outputs })
        }
    }
}

fn function_scope<'p>(
    lowering: &mut ImportLowering<'p>,
    node: &'p proto::NodeProto,
    function: &'p proto::FunctionProto,
    prefix: String,
) -> RuleResult<NameScope<'p>> {
    invalid_if!(
        node.input.len() > function.input.len(),
        "expected at most {expected} operands, found {count}",
        expected = function.input.len(),
        count = node.input.len()
    );
    invalid_if!(
        node.output.len() > function.output.len(),
        "expected at most {expected} results, found {count}",
        expected = function.output.len(),
        count = node.output.len()
    );
    let mut opsets = lowering.scope.opsets.clone();
    opsets.extend(versions::opset_versions(&function.opset_import)?);
    let mut scope = NameScope::new(prefix, opsets);
    scope.declare(&function.value_info);
    for default in &function.attribute_proto {
        scope.attributes.insert(&default.name, default);
    }
    for passed in &node.attribute {
        let is_declared = function.attribute.contains(&passed.name)
            || function.attribute_proto.iter().any(|a| a.name == passed.name);
        invalid_if!(
            !is_declared,
            "expected an attribute of the function, found {attribute}",
            attribute = describe_attribute(passed)
        );
        if let Some(resolved) = lowering.scope.resolve_attribute(passed) {
            scope.attributes.insert(&passed.name, resolved);
        }
    }
    for (i, parameter) in function.input.iter().enumerate() {
        let binding = match node.input.get(i).filter(|n| !n.is_empty()) {
            Some(name) => lowering.resolve_name(name)?,
            None => NameBinding::Omitted,
        };
        scope.bind(parameter, binding).map_err(RuleFailure::Invalid)?;
    }
    Ok(scope)
}
