//! The parameters of a rank, from a file of tensors or from the weights that came with the program.

use std::collections::HashMap;
use std::sync::Arc;

use symmc_ir::{Graph, GraphInput, InputKind, Tensor};

use crate::error::Error;
use crate::tensors::TensorFile;
use crate::weights::Weights;

/// The parameter of a rank. It comes from the file if the file has it or a tensor tied to it. Otherwise it comes from the
/// weights of the program, if these are of all ranks or it is a buffer. `None` if there is no file and the program has no such
/// weight.
pub(crate) fn find_parameter(
    graph: &Graph,
    weights: &Weights,
    tensors: Option<&TensorFile>,
    rank: u32,
    input: &GraphInput,
    expected: &dyn Fn() -> String,
) -> Result<Option<Arc<Tensor>>, Error> {
    let source = graph.checkpoint_name(input);
    // Weights of an open number of ranks are those of the ranks that they came with.
    let ranks = graph.ranks.unwrap_or(weights.ranks.len() as u32);
    let own = weights.weights_of_rank(rank, ranks).and_then(|w| w.get(source)).cloned();
    let Some(file) = tensors else { return Ok(own) };
    if let Some(tensor) = file.weight(rank, source)? {
        return Ok(Some(tensor));
    }
    for name in weights.tied_names(source) {
        if let Some(tensor) = file.weight(rank, name)? {
            return Ok(Some(tensor));
        }
    }
    match own.or_else(|| weights.find_buffer(source).cloned()) {
        Some(tensor) => Ok(Some(tensor)),
        None => Err(Error::format(
            file.path(),
            format!("the weight rank{rank}.w.{source} is missing; expected {}", expected()),
        )),
    }
}

/// Refuses a parameter without a source if its value has the name of another parameter's source: a file of tensors would give
/// both the same tensor.
pub(crate) fn expect_distinct_names(graph: &Graph) -> Result<(), Error> {
    let parameters = || graph.inputs.values().filter(|i| i.kind == InputKind::Parameter);
    let sources: HashMap<&str, &GraphInput> =
        parameters().filter(|i| !i.source.is_empty()).map(|i| (i.source.as_str(), i)).collect();
    for input in parameters().filter(|i| i.source.is_empty()) {
        let name = graph.value_name(input.value);
        if let Some(other_input) = sources.get(name) {
            let other_name = graph.value_name(other_input.value);
            return Err(Error::invalid_request(format!(
                "the parameter %{name} has no source, so tensor files store it as {name:?}, which is the source of %{other_name}: \
                 give %{name} another source"
            )));
        }
    }
    Ok(())
}

/// Refuses a file that gives a rank another value for a constant of the program.
pub(crate) fn check_constant_matches(
    file: &TensorFile,
    rank: u32,
    input: &GraphInput,
    data: &Tensor,
) -> Result<(), Error> {
    // A constant without a source is not a weight of the program.
    let weight = if input.source.is_empty() { None } else { file.load_weight(rank, &input.source)? };
    match weight {
        Some(weight) if *weight != *data => Err(Error::format(
            file.path(),
            format!(
                "rank{rank}.w.{} differs from the constant of this name: the program must be opened or planned with \
                 these tensors, so that it becomes a parameter",
                input.source
            ),
        )),
        _ => Ok(()),
    }
}

/// The parameters of a rank, loaded into memory, by the names under which they are stored.
///
/// # Errors
/// A parameter is missing or cannot be read, or the file has another value for a constant.
pub(crate) fn load_parameters(
    graph: &Graph,
    weights: &Weights,
    tensors: Option<&TensorFile>,
    rank: u32,
) -> Result<Vec<(String, Arc<Tensor>)>, Error> {
    expect_distinct_names(graph)?;
    let mut out = Vec::new();
    for input in graph.inputs.values() {
        match (&input.data, tensors) {
            (Some(data), Some(file)) if input.kind == InputKind::Constant => {
                check_constant_matches(file, rank, input, data)?;
            }
            _ => {}
        }
        if input.kind != InputKind::Parameter {
            continue;
        }
        let expected = || graph.ty(input.value).dtype.to_string();
        let parameter = find_parameter(graph, weights, tensors, rank, input, &expected)?;
        let source = graph.checkpoint_name(input);
        let none =
            || Error::invalid_request(format!("no tensor file contains the weight {source} of rank {rank}"));
        let tensor = parameter.ok_or_else(none)?.load_to_memory();
        let unread =
            |e| Error::invalid_request(format!("the weight {source} of rank {rank} cannot be read: {e}"));
        out.push((source.to_string(), tensor.map_err(unread)?));
    }
    Ok(out)
}
