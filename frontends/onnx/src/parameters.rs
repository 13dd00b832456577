//! Decides which stored tensors are parameters: tensors that are neither small integers nor single numbers,
//! tensors that PyTorch lists as parameters, and tensors whose data differs between the files of the ranks.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use symmc_ir::{DType, Tensor};

use crate::node::normalize_domain;
use crate::proto;
use crate::tensor_data::{self, TensorFiles};

/// The metadata key under which `torch.onnx` stores the signature of the exported program.
const SIGNATURE: &str = "pkg.torch.export.ExportedProgram.graph_signature";

/// The largest constant that becomes part of the program, in bytes.
pub(crate) const MAX_CONSTANT: usize = 1 << 20;

/// Whether a stored tensor of this type is a constant, unless it is known to be a parameter. Constants are
/// integers (shapes, positions and masks) and single numbers.
pub(crate) fn is_constant(dtype: DType, shape: &[usize]) -> bool {
    let elements = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).unwrap_or(usize::MAX);
    let bytes = elements.saturating_mul(dtype.size());
    if dtype.is_float() { elements <= 1 } else { bytes <= MAX_CONSTANT }
}

/// Whether the rule of a node needs the floats in an operand at import. A tensor that only such operands read is no
/// parameter.
pub(crate) fn reads_numbers_at_import(node: &proto::NodeProto, operand: usize) -> bool {
    matches!(node.op_type.as_str(), "Resize" | "Upsample")
        && operand > 0
        && normalize_domain(&node.domain).is_empty()
}

/// The tensors that are parameters regardless of their type.
#[derive(Default)]
pub(crate) struct ParameterSet {
    /// The names of the parameters according to PyTorch.
    named: HashSet<String>,
    /// The tensors whose data differs between the files. They are identified by address, because names may
    /// differ too.
    differing: HashSet<*const proto::TensorProto>,
}

impl ParameterSet {
    pub fn contains(&self, tensor: &proto::TensorProto) -> bool {
        self.named.contains(&tensor.name) || self.differs(tensor)
    }

    /// Whether the data at this position of the program differs between the files.
    pub fn differs(&self, tensor: &proto::TensorProto) -> bool {
        self.differing.contains(&std::ptr::from_ref(tensor))
    }
}

pub(crate) fn find_parameters(models: &[proto::ModelProto], tensor_files: &[TensorFiles]) -> ParameterSet {
    let mut out = ParameterSet::default();
    let Some(first) = models.first() else { return out };
    let metadata = first.graph.iter().flat_map(|g| &g.metadata_props).chain(&first.metadata_props);
    for text in metadata.filter(|e| e.key == SIGNATURE).map(|e| e.value.as_str()) {
        let targets = text.lines().filter_map(|line| line.split_once(": PARAMETER target='"));
        out.named.extend(targets.filter_map(|(_, rest)| Some(rest.split_once('\'')?.0.to_string())));
    }
    let expected = tensor_uses(first);
    for (model, files) in models.iter().zip(tensor_files).skip(1) {
        for (a, b) in expected.iter().zip(&tensor_uses(model)) {
            if let Some(x) = read_comparable(a, &tensor_files[0])
                && let Some(y) = read_comparable(b, files)
                && x != y
            {
                out.differing.extend([a.tensor, b.tensor].map(std::ptr::from_ref));
            }
        }
    }
    out
}

/// The data of a tensor that is not a parameter by its type alone. A tensor that cannot be read is reported
/// where it is used.
fn read_comparable(tensor_use: &TensorUse<'_>, files: &TensorFiles) -> Option<Arc<Tensor>> {
    let small =
        tensor_data::stored_type(tensor_use.tensor).is_ok_and(|(dtype, shape)| is_constant(dtype, &shape));
    if !small && tensor_use.initializer {
        return None;
    }
    files.read_tensor(tensor_use.tensor).ok()
}

/// One use of a tensor that is stored in the file.
struct TensorUse<'p> {
    tensor: &'p proto::TensorProto,
    /// Whether the tensor is an initializer. Otherwise it is the value of a `Constant`.
    initializer: bool,
}

/// All uses in the order of the nodes. The order is the same for the same program with other names.
fn tensor_uses(model: &proto::ModelProto) -> Vec<TensorUse<'_>> {
    let mut out = Vec::new();
    if let Some(graph) = &model.graph {
        collect_graph_uses(graph, None, &mut out);
    }
    for function in &model.functions {
        collect_node_uses(&function.node, &VisibleInitializers::default(), &mut out);
    }
    out
}

/// The initializers that a graph sees by name: its own and those of the enclosing graphs.
#[derive(Default)]
struct VisibleInitializers<'a, 'p> {
    own: HashMap<&'p str, &'p proto::TensorProto>,
    around: Option<&'a VisibleInitializers<'a, 'p>>,
}

impl<'p> VisibleInitializers<'_, 'p> {
    fn get(&self, name: &str) -> Option<&'p proto::TensorProto> {
        self.own.get(name).copied().or_else(|| self.around?.get(name))
    }
}

fn collect_graph_uses<'p>(
    graph: &'p proto::GraphProto,
    around: Option<&VisibleInitializers<'_, 'p>>,
    out: &mut Vec<TensorUse<'p>>,
) {
    let own = graph.initializer.iter().map(|t| (t.name.as_str(), t)).collect();
    let names = VisibleInitializers { own, around };
    collect_node_uses(&graph.node, &names, out);
    let results = graph.output.iter().filter_map(|o| names.get(&o.name));
    out.extend(results.map(|tensor| TensorUse { tensor, initializer: true }));
}

fn collect_node_uses<'p>(
    nodes: &'p [proto::NodeProto],
    names: &VisibleInitializers<'_, 'p>,
    out: &mut Vec<TensorUse<'p>>,
) {
    for node in nodes {
        let operands = node.input.iter().filter_map(|name| names.get(name));
        out.extend(operands.map(|tensor| TensorUse { tensor, initializer: true }));
        for attribute in &node.attribute {
            let constant = attribute.t.as_deref().filter(|_| node.op_type == "Constant");
            out.extend(constant.map(|tensor| TensorUse { tensor, initializer: false }));
            if let Some(graph) = &attribute.g {
                collect_graph_uses(graph, Some(names), out);
            }
        }
    }
}
