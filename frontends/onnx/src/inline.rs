//! Nodes that run a graph of their own: calls of the model's functions, and branches whose condition is known. The
//! nodes of that graph take their place.

use crate::lower::{Lowered, Lowering, Stop, label};
use crate::ops;
use crate::proto;
use crate::scope::{Binding, Scope};
use crate::versions;

/// The deepest nesting of calls.
const MAX_DEPTH: usize = 32;

/// What takes the place of a node.
pub(crate) enum Body<'p> {
    Function(&'p proto::Function),
    Branch(&'p proto::Graph),
}

/// The graph that a node runs, if it is one that is put in its place.
pub(crate) fn body<'p>(lowering: &mut Lowering<'p>, node: &'p proto::Node) -> Lowered<Option<Body<'p>>> {
    let domain = ops::normalised(&node.domain);
    let key = (domain, node.op_type.as_str(), node.overload.as_str());
    if let Some(function) = lowering.functions.get(&key) {
        return Ok(Some(Body::Function(function)));
    }
    if !domain.is_empty() || node.op_type != "If" {
        return Ok(None);
    }
    let Some(condition) = node.input.first() else {
        return Err(Stop::Broken("expected a condition, found none".into()));
    };
    let name = match lowering.resolve(condition)? {
        Binding::Known(known, _) => match known.ints().as_ref().map(|i| i.dims.as_slice()) {
            Some([one]) if one.as_const() == Some(0) => "else_branch",
            Some([one]) if one.as_const().is_some() => "then_branch",
            _ => return Err(Stop::Opaque("its condition is not one constant".into())),
        },
        _ => return Err(Stop::Opaque("its condition depends on data".into())),
    };
    let branch = node.attribute.iter().find(|a| a.name == name).and_then(|a| a.g.as_deref());
    match branch {
        Some(graph) => Ok(Some(Body::Branch(graph))),
        None => Err(Stop::Broken(format!("expected a graph as `{name}`, found none"))),
    }
}

/// Lowers the nodes of a body in place of the node.
pub(crate) fn lower<'p>(lowering: &mut Lowering<'p>, node: &'p proto::Node, body: Body<'p>) -> Lowered {
    if lowering.outer.len() >= MAX_DEPTH {
        return Err(Stop::Broken(format!("calls are nested more than {MAX_DEPTH} deep")));
    }
    let prefix = format!("{}{}.", lowering.scope.prefix, label(node));
    let (scope, nodes, outputs) = match body {
        Body::Function(function) => {
            let outputs: Vec<&'p str> = function.output.iter().map(String::as_str).collect();
            (called(lowering, node, function, prefix)?, &function.node, outputs)
        }
        Body::Branch(graph) => {
            let mut scope = lowering.scope.branch(prefix);
            scope.declare(graph.value_info.iter().chain(&graph.output));
            for tensor in &graph.initializer {
                scope.bind(&tensor.name, Binding::Stored(tensor)).map_err(Stop::Broken)?;
            }
            let outputs: Vec<&'p str> = graph.output.iter().map(|o| o.name.as_str()).collect();
            (scope, &graph.node, outputs)
        }
    };
    let wanted = outputs.clone();
    let mut results = Vec::new();
    lowering.within(scope, |inner| {
        inner.scope.mark_read_at_end(wanted.iter().copied());
        inner.run_nodes(nodes)?;
        for name in &wanted {
            let binding = inner.resolve(name).unwrap_or_else(|_| {
                Binding::Nothing(format!(
                    "the result `{name}` of `{}`, which it does not define",
                    label(node)
                ))
            });
            results.push(binding);
        }
        Ok(())
    })?;
    for (name, binding) in node.output.iter().zip(results) {
        if !name.is_empty() {
            lowering.scope.bind(name, binding).map_err(Stop::Broken)?;
        }
    }
    Ok(())
}

/// The scope of the body of a called function.
fn called<'p>(
    lowering: &mut Lowering<'p>,
    node: &'p proto::Node,
    function: &'p proto::Function,
    prefix: String,
) -> Lowered<Scope<'p>> {
    if node.input.len() > function.input.len() {
        let (expected, found) = (function.input.len(), node.input.len());
        return Err(Stop::Broken(format!("expected {expected} operands at most, found {found}")));
    }
    if node.output.len() > function.output.len() {
        let (expected, found) = (function.output.len(), node.output.len());
        return Err(Stop::Broken(format!("expected {expected} results at most, found {found}")));
    }
    let mut opsets = lowering.scope.opsets.clone();
    opsets.extend(versions::by_domain(&function.opset_import)?);
    let mut scope = Scope::new(prefix, opsets);
    scope.declare(&function.value_info);
    for default in &function.attribute_proto {
        scope.attributes.insert(&default.name, default);
    }
    let declared = |name: &str| {
        function.attribute.iter().any(|a| a == name)
            || function.attribute_proto.iter().any(|a| a.name == name)
    };
    for given in &node.attribute {
        if !declared(&given.name) {
            let found = crate::call::describe(given);
            return Err(Stop::Broken(format!("expected an attribute of the function, found {found}")));
        }
        if let Some(resolved) = lowering.scope.attribute(given) {
            scope.attributes.insert(&given.name, resolved);
        }
    }
    for (i, parameter) in function.input.iter().enumerate() {
        let binding = match node.input.get(i).filter(|n| !n.is_empty()) {
            Some(name) => lowering.resolve(name)?,
            None => Binding::Absent,
        };
        scope.bind(parameter, binding).map_err(Stop::Broken)?;
    }
    Ok(scope)
}
