//! Nodes that run a graph of their own: calls of the model's functions, and branches whose condition is known. The
//! nodes of that graph take their place.

use crate::lower::{Lowered, Lowering, Stop};
use crate::node::{describe, label, normalised};
use crate::proto;
use crate::scope::{Binding, Scope};
use crate::versions;

const MAX_DEPTH: usize = 32;

pub(crate) enum Body<'p> {
    Function(&'p proto::Function),
    Branch(&'p proto::Graph),
}

/// The graph that a node runs, if it is one that is put in its place.
pub(crate) fn body<'p>(lowering: &mut Lowering<'p>, node: &'p proto::Node) -> Lowered<Option<Body<'p>>> {
    let domain = normalised(&node.domain);
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

/// What a body needs to be lowered.
pub(crate) struct Inner<'p> {
    pub scope: Scope<'p>,
    pub nodes: &'p [proto::Node],
    pub outputs: Vec<&'p str>,
}

/// The body of a node with names of its own.
pub(crate) fn inner<'p>(
    lowering: &mut Lowering<'p>,
    node: &'p proto::Node,
    body: Body<'p>,
) -> Lowered<Inner<'p>> {
    if lowering.outer.len() >= MAX_DEPTH {
        return Err(Stop::Broken(format!("calls are nested more than {MAX_DEPTH} deep")));
    }
    let prefix = format!("{}{}.", lowering.scope.prefix, label(node));
    match body {
        Body::Function(function) => {
            let outputs = function.output.iter().map(String::as_str).collect();
            let scope = called(lowering, node, function, prefix)?;
            Ok(Inner { scope, nodes: &function.node, outputs })
        }
        Body::Branch(graph) => {
            let mut scope = lowering.scope.branch(prefix);
            scope.declare(graph.value_info.iter().chain(&graph.output));
            for tensor in &graph.initializer {
                scope.bind(&tensor.name, Binding::Stored(tensor)).map_err(Stop::Broken)?;
            }
            let outputs = graph.output.iter().map(|o| o.name.as_str()).collect();
            Ok(Inner { scope, nodes: &graph.node, outputs })
        }
    }
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
            let found = describe(given);
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
