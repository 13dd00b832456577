//! The inputs and outputs of a session as its caller sees them, and the search for them by name.

use symmc_ir::entity::Entity;
use symmc_ir::message::list_names;
use symmc_ir::{DType, Graph, InputId, InputKind, OutputKind, SymbolBindings, ValueId};
use symmc_runtime::session::Port;

use crate::error::Error;

/// The role of a value for the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ValueKind {
    /// An input that changes from run to run.
    Argument,
    /// An input that is given once, such as a weight.
    Parameter,
    /// An input whose data is part of the program.
    Constant,
    /// An output.
    Output,
}

/// An input or an output, at the sizes that are set.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SessionValue {
    /// The name of the value in the program.
    pub name: String,
    /// The name under which a weight is stored. For an argument, its name in the file of the program, if it has one.
    pub source: Option<String>,
    /// The role of the value.
    pub kind: ValueKind,
    /// The type of the elements.
    pub dtype: DType,
    /// The extent of each axis, in elements.
    pub extents: Vec<usize>,
    /// The size in bytes.
    pub bytes: usize,
    /// For an output, the name of the input that it replaces.
    pub replaces: Option<String>,
    /// For an output, the axes of which only the first elements are the result. Their number is data
    /// ([`Session::read_extents`](crate::Session::read_extents)).
    pub counted_axes: Vec<usize>,
}

/// The preferred one if an input and an output have the same name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PortPreference {
    Input,
    Output,
    Either,
}

/// All inputs, followed by all outputs.
pub(super) fn list_values(
    graph: &Graph,
    bindings: &SymbolBindings,
) -> Result<Vec<(Port, SessionValue)>, Error> {
    let mut out = Vec::new();
    for (id, input) in graph.inputs.iter() {
        let kind = match input.kind {
            InputKind::Argument => ValueKind::Argument,
            _ if input.data.is_some() => ValueKind::Constant,
            _ => ValueKind::Parameter,
        };
        let source = Some(input.source.clone()).filter(|source| !source.is_empty());
        out.push((
            Port::Input(id.index()),
            SessionValue { source, ..describe_value(graph, bindings, input.value, kind)? },
        ));
    }
    for (k, output) in graph.outputs.iter().enumerate() {
        let replaces = match output.kind {
            OutputKind::Mutates(input) => Some(graph.value_name(graph.inputs[input].value).to_string()),
            OutputKind::Returned => None,
            OutputKind::Length { .. } => continue,
        };
        let counted_axes = graph.output_lengths(k).map(|(axis, _)| axis).collect();
        let value = describe_value(graph, bindings, output.value, ValueKind::Output)?;
        out.push((Port::Output(k), SessionValue { replaces, counted_axes, ..value }));
    }
    Ok(out)
}

fn describe_value(
    graph: &Graph,
    bindings: &SymbolBindings,
    id: ValueId,
    kind: ValueKind,
) -> Result<SessionValue, Error> {
    let (ty, name) = (graph.ty(id), graph.value_name(id).to_string());
    let unsized_ = || {
        Error::invalid_request(format!(
            "the size of %{name} is not known yet: set {}",
            unset_symbols(graph, bindings)
        ))
    };
    let extents = ty.concrete_shape(bindings).ok_or_else(unsized_)?;
    let bytes = extents.iter().try_fold(ty.dtype.size(), |n, &d| n.checked_mul(d)).ok_or_else(unsized_)?;
    let counted_axes = Vec::new();
    Ok(SessionValue {
        name,
        source: None,
        kind,
        dtype: ty.dtype,
        extents,
        bytes,
        replaces: None,
        counted_axes,
    })
}

/// Checks that memory is large enough for an input or output whose size does not depend on symbols.
pub(super) fn check_capacity(graph: &Graph, port: Port, found: usize) -> Result<(), Error> {
    let id = match port {
        Port::Input(i) => graph.inputs.values().nth(i).map(|input| input.value),
        Port::Output(k) => graph.outputs.get(k).map(|output| output.value),
    };
    let unknown = || Error::invalid_request(format!("{}: there is no {port:?}", graph.name));
    let id = id.ok_or_else(unknown)?;
    let ty = graph.ty(id);
    let extents = ty.concrete_shape(&SymbolBindings::new());
    let bytes =
        extents.and_then(|extents| extents.iter().try_fold(ty.dtype.size(), |n, &d| n.checked_mul(d)));
    match bytes.filter(|&bytes| bytes > found) {
        Some(bytes) => Err(Error::invalid_request(format!(
            "%{}: the memory of {found} bytes is too small: expected {bytes}",
            graph.value_name(id)
        ))),
        None => Ok(()),
    }
}

/// The names of the symbols without a value.
pub(super) fn unset_symbols(graph: &Graph, bindings: &SymbolBindings) -> String {
    let unset = graph.symbols.iter().filter(|(id, _)| bindings.get(*id).is_none());
    unset.map(|(_, symbol)| symbol.name.clone()).collect::<Vec<_>>().join(", ")
}

/// The input or output of a name: the name of the value, the stored name of a weight, or `in.<i>`, `w.<name>`, `out.<i>`.
pub(super) fn find_port(graph: &Graph, name: &str, prefer: PortPreference) -> Result<Port, Error> {
    let name = name.strip_prefix('%').unwrap_or(name);
    let input = find_input(graph, name);
    let output = find_output(graph, name);
    match (input, output, prefer) {
        (Some(input), Some(_), PortPreference::Input) | (Some(input), None, _) => Ok(input),
        (Some(_), Some(output), PortPreference::Output) | (None, Some(output), _) => Ok(output),
        (Some(_), Some(_), PortPreference::Either) => Err(Error::invalid_request(format!(
            "{name} is an input and an output: name it in.<i>, w.<name> or out.<i>"
        ))),
        (None, None, _) => Err(unknown_port_error(graph, name)),
    }
}

fn find_input(graph: &Graph, name: &str) -> Option<Port> {
    let is_argument = |id: &InputId| graph.inputs[*id].kind == InputKind::Argument;
    if let Some(number) = name.strip_prefix("in.").and_then(|n| n.parse::<usize>().ok()) {
        let mut arguments = graph.inputs.keys().filter(is_argument);
        return arguments.nth(number).map(|id| Port::Input(id.index()));
    }
    let has_value_name = |id: &InputId| graph.value_name(graph.inputs[*id].value) == name;
    let has_source = |id: &InputId| {
        let source = &graph.inputs[*id].source;
        !source.is_empty() && source == name.strip_prefix("w.").unwrap_or(name)
    };
    // A weight without a source is stored under the name of its value.
    let has_stored_name = |id: &InputId| {
        !is_argument(id) && name.strip_prefix("w.") == Some(graph.checkpoint_name(&graph.inputs[*id]))
    };
    let mut input = graph.inputs.keys().find(has_value_name);
    input = input.or_else(|| graph.inputs.keys().find(has_source));
    input = input.or_else(|| graph.inputs.keys().find(has_stored_name));
    input.map(|id| Port::Input(id.index()))
}

fn find_output(graph: &Graph, name: &str) -> Option<Port> {
    if let Some(number) = name.strip_prefix("out.").and_then(|n| n.parse::<usize>().ok()) {
        let returned = graph.outputs.iter().enumerate().filter(|(_, o)| o.kind == OutputKind::Returned);
        return returned.map(|(k, _)| Port::Output(k)).nth(number);
    }
    graph.outputs.iter().position(|o| graph.value_name(o.value) == name).map(Port::Output)
}

fn unknown_port_error(graph: &Graph, name: &str) -> Error {
    const NAMED: usize = 8;
    let value_name = |id: ValueId| format!("%{}", graph.value_name(id));
    let inputs_of = |kind: InputKind| graph.inputs.values().filter(move |input| input.kind == kind);
    let arguments = inputs_of(InputKind::Argument).map(|input| value_name(input.value));
    let outputs = graph.outputs.iter().map(|output| value_name(output.value));
    let values: Vec<String> = arguments.chain(outputs).collect();
    let weights = inputs_of(InputKind::Parameter).map(|input| format!("w.{}", graph.checkpoint_name(input)));
    let weights: Vec<String> = weights.collect();
    let of_weights = if weights.is_empty() {
        String::new()
    } else {
        format!(", or a weight: {}", list_names(&weights, NAMED))
    };
    Error::invalid_request(format!(
        "{}: there is no input or output {name}; expected one of {}{of_weights}",
        graph.name,
        list_names(&values, NAMED)
    ))
}
