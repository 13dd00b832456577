//! Inputs that are DTensors.
//!
//! `torch.export` gives such an input the shape of the whole tensor, and reads the tensor of the rank from it
//! by [`ACCESS`]. Every other node works with the tensor of the rank, so the input becomes that tensor.
//! Archives store DTensors as pickles ([`crate::pickle`]).

use std::collections::HashMap;

use crate::effects::bare_target;
use crate::schema::{Argument, ExportedGraph, ExportedNode, ExportedProgram, TensorMeta};
use crate::scope::tensor_names;

/// The op that reads a tensor inside of a tensor subclass.
pub(crate) const ACCESS: &str = "export.access_subclass_inner_tensor";

/// The attribute of a DTensor that is the tensor of the rank.
pub(crate) const LOCAL_TENSOR: &str = "_local_tensor";

/// Gives inputs that are DTensors the type of the tensor of the rank.
pub(crate) fn use_local_tensors(program: &mut ExportedProgram<'_>) {
    localize_inputs(&mut program.graph_module.graph);
}

fn localize_inputs(graph: &mut ExportedGraph<'_>) {
    let mut metas: HashMap<String, TensorMeta<'_>> = HashMap::new();
    for node in &mut graph.nodes {
        if let Some((name, result)) = local_access(node)
            && let Some(meta) = graph.tensor_values.get(result)
        {
            metas.entry(name.to_string()).or_insert_with(|| meta.clone());
        }
        for (name, meta) in localize_operands(node) {
            metas.entry(name).or_insert(meta);
        }
    }
    let inputs: Vec<&str> = graph.inputs.iter().flat_map(tensor_names).collect();
    for name in inputs {
        if let (Some(meta), Some(declared)) = (metas.remove(name), graph.tensor_values.get_mut(name)) {
            *declared = meta;
        }
    }
}

/// The tensor and the result of a node that reads the tensor of the rank.
fn local_access<'n>(node: &'n ExportedNode<'_>) -> Option<(&'n str, &'n str)> {
    if !bare_target(&node.target).starts_with(ACCESS) {
        return None;
    }
    let [tensor, attribute] = node.inputs.as_slice() else { return None };
    match (&tensor.arg, &attribute.arg, node.outputs.as_slice()) {
        (Argument::Tensor(name), Argument::String(attribute), [Argument::Tensor(result)]) => {
            (**attribute == *LOCAL_TENSOR).then_some((&**name, &**result))
        }
        _ => None,
    }
}

/// The operands of a wrapped graph that are DTensors there, with their types.
fn localize_operands<'p>(node: &mut ExportedNode<'p>) -> Vec<(String, TensorMeta<'p>)> {
    let Some(position) = node.inputs.iter().position(|i| matches!(i.arg, Argument::Graph(_))) else {
        return Vec::new();
    };
    let operands: Vec<String> =
        node.inputs[position..].iter().flat_map(|i| tensor_names(&i.arg)).map(str::to_string).collect();
    let Some(Argument::Graph(inner)) = node.inputs.get_mut(position).map(|i| &mut i.arg) else {
        return Vec::new();
    };
    localize_inputs(inner);
    let parameters: Vec<&str> = inner.inputs.iter().flat_map(tensor_names).collect();
    let is_accessed =
        |name: &str| inner.nodes.iter().filter_map(local_access).any(|(tensor, _)| tensor == name);
    let pairs = parameters.into_iter().zip(operands).filter(|(parameter, _)| is_accessed(parameter));
    pairs.filter_map(|(p, operand)| Some((operand, inner.tensor_values.get(p)?.clone()))).collect()
}
