//! Inlines bodies: the functions of the model, and the graphs of nodes.

use crate::lower::{ImportLowering, RuleFailure, RuleResult};
use crate::node::{describe_attribute, node_label, normalize_domain};
use crate::proto;
use crate::scope::{NameBinding, NameScope};
use crate::versions;
use symmc_import::invalid_if;

const MAX_DEPTH: usize = 32;

/// The function of the model that a node calls.
pub(crate) fn find_function<'p>(
    lowering: &ImportLowering<'p>,
    node: &'p proto::NodeProto,
) -> Option<&'p proto::FunctionProto> {
    let key = (normalize_domain(&node.domain), node.op_type.as_str(), node.overload.as_str());
    lowering.functions.get(&key).copied()
}

impl<'p> ImportLowering<'p> {
    /// Lowers a call of a function of the model.
    pub fn lower_function(
        &mut self,
        node: &'p proto::NodeProto,
        function: &'p proto::FunctionProto,
    ) -> RuleResult {
        let prefix = format!("{}{}.", self.scope.prefix, node_label(node));
        let scope = function_scope(self, node, function, prefix)?;
        let outputs: Vec<&'p str> = function.output.iter().map(String::as_str).collect();
        let (results, _) = self.lower_body(node, scope, &function.node, &outputs)?;
        self.bind_results(node, results)
    }

    /// Lowers the nodes of a body in its scope. Returns the bindings of its outputs, and the scope.
    pub fn lower_body(
        &mut self,
        node: &'p proto::NodeProto,
        scope: NameScope<'p>,
        nodes: &'p [proto::NodeProto],
        outputs: &[&'p str],
    ) -> RuleResult<(Vec<NameBinding<'p>>, NameScope<'p>)> {
        invalid_if!(self.outer.len() >= MAX_DEPTH, "calls are nested more than {MAX_DEPTH} deep");
        let mut results = Vec::new();
        let scope = self.lower_in_scope(scope, |inner| {
            inner.scope.mark_read_at_end(outputs.iter().copied());
            inner.lower_nodes(nodes)?;
            for name in outputs {
                let binding = inner.resolve_name(name).unwrap_or_else(|_| {
                    let node = node_label(node);
                    NameBinding::Unavailable(format!(
                        "the result `{name}` of `{node}`, which the body does not define"
                    ))
                });
                results.push(binding);
            }
            Ok(())
        })?;
        Ok((results, scope))
    }

    /// Binds the results of a node.
    pub fn bind_results(
        &mut self,
        node: &'p proto::NodeProto,
        results: impl IntoIterator<Item = NameBinding<'p>>,
    ) -> RuleResult {
        for (name, binding) in node.output.iter().zip(results) {
            if !name.is_empty() {
                self.scope.bind(name, binding).map_err(RuleFailure::Invalid)?;
            }
        }
        Ok(())
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
