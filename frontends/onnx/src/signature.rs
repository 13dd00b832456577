//! The inputs and outputs of a program.
//!
//! Inputs of the graph that no stored tensor gives are arguments. Stored tensors that are read become parameters or
//! constants ([`crate::lower`]).

use std::collections::HashSet;
use std::sync::Arc;

use indexmap::IndexMap;
use symmc_ir::{InputKind, Tensor, Type};

use crate::data::{self, Beside};
use crate::error::Reason;
use crate::lower::{Lowering, Stop, is_constant};
use crate::proto;
use crate::scope::Binding;

/// Where `torch.onnx` keeps what the inputs of the exported program are.
const SIGNATURE: &str = "pkg.torch.export.ExportedProgram.graph_signature";

/// The inputs that a caller gives.
pub(crate) fn arguments(graph: &proto::Graph) -> Vec<&proto::ValueInfo> {
    let stored: HashSet<&str> = graph.initializer.iter().map(|t| t.name.as_str()).collect();
    graph.input.iter().filter(|i| !stored.contains(i.name.as_str())).collect()
}

/// The stored tensors that are parameters whatever they look like: those that PyTorch says are, and those whose data
/// differ between the files.
pub(crate) fn parameters(models: &[proto::Model], beside: &[Beside]) -> HashSet<String> {
    let graphs: Vec<&proto::Graph> = models.iter().filter_map(|m| m.graph.as_ref()).collect();
    let Some(first) = graphs.first() else { return HashSet::new() };
    let metadata = first.metadata_props.iter().chain(&models[0].metadata_props);
    let mut out: HashSet<String> = HashSet::new();
    for text in metadata.filter(|e| e.key == SIGNATURE).map(|e| e.value.as_str()) {
        let targets = text.lines().filter_map(|line| line.split_once(": PARAMETER target='"));
        out.extend(targets.filter_map(|(_, rest)| Some(rest.split_once('\'')?.0.to_string())));
    }
    let mut known: IndexMap<&str, Arc<Tensor>> = IndexMap::new();
    for (graph, beside) in graphs.iter().zip(beside).filter(|_| graphs.len() > 1) {
        for tensor in &graph.initializer {
            let small = data::layout(tensor).is_ok_and(|(dtype, shape)| is_constant(dtype, &shape));
            // What cannot be read is told where it is used.
            let Some(data) = small.then(|| beside.load(tensor).ok()).flatten() else { continue };
            match known.get(tensor.name.as_str()) {
                None => drop(known.insert(&tensor.name, Arc::new(data))),
                Some(first) if **first == data => {}
                Some(_) => drop(out.insert(tensor.name.clone())),
            }
        }
    }
    out
}

/// Adds the arguments and names the stored tensors.
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

/// Adds the outputs.
pub(crate) fn outputs<'p>(lowering: &mut Lowering<'p>, graph: &'p proto::Graph) -> Result<(), Reason> {
    if graph.output.is_empty() {
        return Err(Reason::Model("no outputs".into()));
    }
    for output in &graph.output {
        let name = output.name.as_str();
        let error = |message: String| Reason::Value { value: name.into(), message };
        let value = lowering.value(name).map_err(|stop| match stop {
            Stop::Error(e) => e,
            Stop::Broken(m) | Stop::Opaque(m) => error(m),
        })?;
        lowering.builder.output(value);
    }
    Ok(())
}
