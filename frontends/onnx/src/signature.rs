//! The inputs and outputs of a program.
//!
//! Inputs of the graph that are not stored tensors are arguments. Stored tensors that are read become
//! parameters or constants ([`crate::parameters`]).

use std::collections::HashSet;

use symmc_ir::{GraphOutput, InputKind, OutputKind, TensorType};

use crate::error::FailureReason;
use crate::lower::ImportLowering;
use crate::parameters::reads_numbers_at_import;
use crate::proto;
use crate::scope::NameBinding;

/// The inputs that the caller of the program passes.
pub(crate) fn caller_inputs(graph: &proto::GraphProto) -> Vec<&proto::ValueInfoProto> {
    let stored: HashSet<&str> = graph.initializer.iter().map(|t| t.name.as_str()).collect();
    graph.input.iter().filter(|i| !stored.contains(i.name.as_str())).collect()
}

pub(crate) fn lower_inputs<'p>(
    lowering: &mut ImportLowering<'p>,
    graph: &'p proto::GraphProto,
    arguments: &[&'p proto::ValueInfoProto],
) -> Result<(), FailureReason> {
    lowering.scope.declare(graph.value_info.iter().chain(&graph.output).chain(&graph.input));
    lowering.scope.mark_read_at_end(graph.output.iter().map(|o| o.name.as_str()));
    for tensor in &graph.initializer {
        let name = tensor.name.as_str();
        lowering.scope.bind(name, NameBinding::Stored(tensor)).map_err(|m| value_error(name, m))?;
        lowering.initializers.insert(name);
    }
    for argument in arguments {
        let name = argument.name.as_str();
        let Some((dtype, dims)) = lowering.partial_declared_type(name)? else {
            return Err(value_error(name, "expected a tensor with a dtype and a number of axes".into()));
        };
        let shape: Option<Vec<_>> = dims.into_iter().collect();
        let Some(shape) = shape else {
            return Err(value_error(name, "expected extents that are known or symbols".into()));
        };
        symmc_ir::dim::check_shape_complexity(&shape).map_err(|m| value_error(name, m))?;
        let ty = TensorType::new(dtype, shape);
        let value = lowering.builder.input(InputKind::Argument, name, name, ty, None);
        let binding = lowering.fix_argument(name, value).map_err(|m| value_error(name, m))?;
        lowering.scope.bind(name, binding).map_err(|m| value_error(name, m))?;
    }
    // Parameters come before the nodes, in the order in which the nodes read them. A tensor that cannot be
    // read is reported where it is used.
    for node in &graph.node {
        let operands = node.input.iter().enumerate().filter(|(_, name)| !name.is_empty());
        for (_, name) in operands.filter(|(i, _)| !reads_numbers_at_import(node, *i)) {
            let _ = lowering.resolve_name(name);
        }
    }
    Ok(())
}

pub(crate) fn lower_outputs<'p>(
    lowering: &mut ImportLowering<'p>,
    graph: &'p proto::GraphProto,
) -> Result<(), FailureReason> {
    if graph.output.is_empty() {
        return Err(FailureReason::Model("no outputs".into()));
    }
    let mut lengths = Vec::new();
    for (position, output) in graph.output.iter().enumerate() {
        let name = output.name.as_str();
        let value = lowering
            .resolve_value(name)
            .and_then(|value| {
                lengths.extend(lowering.counted.get(&value).map(|counted| (position, *counted)));
                if lowering.fixed_arguments.is_empty() {
                    Ok(value)
                } else {
                    lowering.check_fixed_arguments(value)
                }
            })
            .map_err(|stop| stop.into_error(|message| value_error(name, message)))?;
        lowering.builder.output(value);
    }
    for (output, counted) in lengths {
        let kind = OutputKind::Length { output, axis: counted.axis };
        lowering.builder.graph_mut().outputs.push(GraphOutput { value: counted.count, kind });
    }
    Ok(())
}

fn value_error(name: &str, message: String) -> FailureReason {
    FailureReason::Value { value: name.into(), message }
}
