//! The inputs and outputs of a program.
//!
//! Inputs of the graph that no stored tensor gives are arguments. Stored tensors that are read become parameters or
//! constants ([`crate::parameters`]).

use std::collections::HashSet;

use symmc_ir::{InputKind, Type};

use crate::error::Reason;
use crate::lower::Lowering;
use crate::proto;
use crate::scope::Binding;

/// The inputs that a caller gives.
pub(crate) fn arguments(graph: &proto::Graph) -> Vec<&proto::ValueInfo> {
    let stored: HashSet<&str> = graph.initializer.iter().map(|t| t.name.as_str()).collect();
    graph.input.iter().filter(|i| !stored.contains(i.name.as_str())).collect()
}

pub(crate) fn inputs<'p>(
    lowering: &mut Lowering<'p>,
    graph: &'p proto::Graph,
    arguments: &[&'p proto::ValueInfo],
) -> Result<(), Reason> {
    let error = |name: &str, message: String| Reason::Value { value: name.into(), message };
    lowering.scope.declare(graph.value_info.iter().chain(&graph.output).chain(&graph.input));
    lowering.scope.mark_read_at_end(graph.output.iter().map(|o| o.name.as_str()));
    for tensor in &graph.initializer {
        let name = tensor.name.as_str();
        lowering.scope.bind(name, Binding::Stored(tensor)).map_err(|m| error(name, m))?;
        lowering.initializers.insert(name);
    }
    for argument in arguments {
        let name = argument.name.as_str();
        let Some((dtype, dims)) = lowering.declared(name)? else {
            return Err(error(name, "expected a tensor with a dtype and a number of axes".into()));
        };
        let shape: Option<Vec<_>> = dims.into_iter().collect();
        let Some(shape) = shape else {
            return Err(error(name, "expected extents that are known or symbols".into()));
        };
        symmc_ir::dim::check_size(&shape).map_err(|m| error(name, m))?;
        let ty = Type::new(dtype, shape);
        let value = lowering.builder.input(InputKind::Argument, name, name, ty, None);
        lowering.scope.bind(name, Binding::Value(value)).map_err(|m| error(name, m))?;
    }
    // Parameters stand before the nodes, in the order in which these read them. One that cannot be read is told of
    // where it is used.
    for name in graph.node.iter().flat_map(|n| &n.input).filter(|n| !n.is_empty()) {
        let _ = lowering.resolve(name);
    }
    Ok(())
}

pub(crate) fn outputs<'p>(lowering: &mut Lowering<'p>, graph: &'p proto::Graph) -> Result<(), Reason> {
    if graph.output.is_empty() {
        return Err(Reason::Model("no outputs".into()));
    }
    for output in &graph.output {
        let name = output.name.as_str();
        let error = |message: String| Reason::Value { value: name.into(), message };
        let value = lowering.value(name).map_err(|stop| stop.into_error(error))?;
        lowering.builder.output(value);
    }
    Ok(())
}
