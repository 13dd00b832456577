//! Small ONNX models, built message by message.

// Each test module uses only a part of this one.
#![allow(dead_code)]

use std::sync::Arc;

use prost::Message;
use symmc_ir::{DType, InputKind, SymbolBindings, Tensor};
use symmc_onnx::proto::{self, attribute_type as kind};
use symmc_onnx::{ImportError, ImportOptions, ImportOutput, ModelSource, import};

/// A model with one graph.
#[derive(Clone)]
pub struct Fake {
    pub model: proto::ModelProto,
    /// The bound of symbols without an upper bound.
    pub max_extent: i64,
}

/// The code of a dtype.
pub fn code(dtype: DType) -> i32 {
    dtype.facts().onnx
}

/// Parses `f32[tokens,4]` into a dtype and extents.
pub fn parse(ty: &str) -> (DType, Vec<&str>) {
    let (dtype, dims) =
        ty.strip_suffix(']').and_then(|t| t.split_once('[')).unwrap_or_else(|| panic!("{ty}"));
    let dims = dims.split(',').map(str::trim).filter(|d| !d.is_empty()).collect();
    (DType::from_name(dtype).unwrap_or_else(|| panic!("dtype {dtype}")), dims)
}

/// A declared value. An extent that is not a number is a name, and `?` is unknown.
pub fn value(name: &str, ty: &str) -> proto::ValueInfoProto {
    let (dtype, dims) = parse(ty);
    let dim = |text: &&str| match (text.parse(), *text) {
        (Ok(value), _) => proto::DimensionProto { dim_value: Some(value), dim_param: None },
        (_, "?") => proto::DimensionProto::default(),
        (_, name) => proto::DimensionProto { dim_value: None, dim_param: Some(name.to_string()) },
    };
    let shape = Some(proto::TensorShapeProto { dim: dims.iter().map(dim).collect() });
    let tensor_type = Some(proto::TensorTypeProto { elem_type: code(dtype), shape });
    proto::ValueInfoProto {
        name: name.into(),
        r#type: Some(proto::TypeProto { tensor_type, ..Default::default() }),
    }
}

/// A tensor of these numbers.
pub fn tensor(ty: &str, numbers: &[f64]) -> Tensor {
    let (dtype, dims) = parse(ty);
    let shape: Vec<usize> = dims.iter().map(|d| d.parse().expect("a number")).collect();
    Tensor::from_f64(dtype, shape, numbers).unwrap_or_else(|| panic!("{} numbers for {ty}", numbers.len()))
}

/// A stored tensor in raw form.
pub fn stored(name: &str, tensor: &Tensor) -> proto::TensorProto {
    proto::TensorProto {
        name: name.into(),
        dims: tensor.shape().iter().map(|&d| d as i64).collect(),
        data_type: code(tensor.dtype()),
        raw_data: Some(tensor.data().to_vec().into()),
        ..proto::TensorProto::default()
    }
}

/// An attribute: `1`, `0.5`, `'text'`, `[1,2]`, `[0.5]`, `['text']` or `{f32[1]: 2}`.
pub fn attribute(name: &str, text: &str) -> proto::AttributeProto {
    let mut a = proto::AttributeProto { name: name.into(), ..proto::AttributeProto::default() };
    if let Some(text) = text.strip_prefix('\'') {
        (a.r#type, a.s) = (kind::STRING, text.trim_end_matches('\'').as_bytes().to_vec().into());
    } else if let Some(list) = text.strip_prefix('[') {
        let items: Vec<&str> = list.trim_end_matches(']').split(',').filter(|i| !i.is_empty()).collect();
        if items.iter().any(|i| i.starts_with('\'')) {
            let texts = items.iter().map(|i| i.trim_matches('\'').as_bytes().to_vec().into());
            (a.r#type, a.strings) = (kind::STRINGS, texts.collect());
        } else if items.iter().any(|i| i.contains('.')) {
            let floats = items.iter().map(|i| i.parse().expect("a number"));
            (a.r#type, a.floats) = (kind::FLOATS, floats.collect());
        } else {
            let ints = items.iter().map(|i| i.parse().expect("an integer"));
            (a.r#type, a.ints) = (kind::INTS, ints.collect());
        }
    } else if let Some(constant) = text.strip_prefix('{') {
        let (ty, numbers) = constant.trim_end_matches('}').split_once(':').expect("a type and numbers");
        let numbers: Vec<f64> = numbers.split_whitespace().map(|n| n.parse().expect("a number")).collect();
        (a.r#type, a.t) = (kind::TENSOR, Some(Box::new(stored("", &tensor(ty, &numbers)))));
    } else if let Some(referred) = text.strip_prefix('@') {
        a.ref_attr_name = referred.into();
    } else if let Ok(i) = text.parse() {
        (a.r#type, a.i) = (kind::INT, i);
    } else {
        (a.r#type, a.f) = (kind::FLOAT, text.parse().unwrap_or_else(|_| panic!("attribute {text}")));
    }
    a
}

/// A node, from `domain::Op name=value …` and its operands and results.
pub fn node(call: &str, inputs: &[&str], outputs: &[&str]) -> proto::NodeProto {
    let (name, mut rest) = call.split_once(' ').unwrap_or((call, ""));
    let (domain, op) = name.rsplit_once("::").unwrap_or(("", name));
    let mut attributes = Vec::new();
    while let Some((key, after)) = rest.trim().split_once('=') {
        let end = match after.starts_with('{') {
            true => after.find('}').map_or(after.len(), |e| e + 1),
            false => after.find(' ').unwrap_or(after.len()),
        };
        attributes.push(attribute(key, &after[..end]));
        rest = &after[end..];
    }
    proto::NodeProto {
        input: inputs.iter().map(|i| (*i).to_string()).collect(),
        output: outputs.iter().map(|o| (*o).to_string()).collect(),
        name: String::new(),
        op_type: op.into(),
        attribute: attributes,
        domain: domain.into(),
        overload: String::new(),
    }
}

impl Fake {
    /// An empty program for this version of ONNX's operators.
    pub fn new(version: i64) -> Fake {
        let set = |domain: &str, version| proto::OperatorSetIdProto { domain: domain.into(), version };
        let model = proto::ModelProto {
            ir_version: 10,
            graph: Some(proto::GraphProto::default()),
            opset_import: vec![set("", version), set("com.microsoft", 1)],
            ..proto::ModelProto::default()
        };
        Fake { model, max_extent: ImportOptions::default().max_extent }
    }

    pub fn graph(&mut self) -> &mut proto::GraphProto {
        self.model.graph.as_mut().expect("a graph")
    }

    pub fn input(mut self, name: &str, ty: &str) -> Fake {
        self.graph().input.push(value(name, ty));
        self
    }

    pub fn declared(mut self, name: &str, ty: &str) -> Fake {
        self.graph().value_info.push(value(name, ty));
        self
    }

    pub fn stored(self, name: &str, ty: &str, numbers: &[f64]) -> Fake {
        self.held(stored(name, &tensor(ty, numbers)))
    }

    pub fn held(mut self, tensor: proto::TensorProto) -> Fake {
        self.graph().initializer.push(tensor);
        self
    }

    pub fn node(mut self, call: &str, inputs: &[&str], outputs: &[&str]) -> Fake {
        self.graph().node.push(node(call, inputs, outputs));
        self
    }

    pub fn output(mut self, name: &str) -> Fake {
        self.graph().output.push(proto::ValueInfoProto { name: name.into(), r#type: None });
        self
    }

    pub fn metadata(mut self, key: &str, value: &str) -> Fake {
        self.graph()
            .metadata_props
            .push(proto::StringStringEntryProto { key: key.into(), value: value.into() });
        self
    }

    pub fn function(mut self, function: proto::FunctionProto) -> Fake {
        self.model.functions.push(function);
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.model.encode_to_vec()
    }

    pub fn source(&self, name: &str) -> ModelSource {
        ModelSource { name: name.into(), bytes: self.bytes().into(), file: None, folder: None }
    }

    pub fn import(&self) -> Result<ImportOutput, ImportError> {
        let options = ImportOptions { max_extent: self.max_extent, ..ImportOptions::default() };
        import(&[self.source("model.onnx")], &options)
    }

    /// The program as text.
    pub fn text(&self) -> String {
        let imported = self.import().unwrap_or_else(|e| panic!("{e}"));
        symmc_ir::text::print(&imported.graph)
    }

    /// The message of the error that importing gives.
    pub fn error(&self) -> String {
        match self.import() {
            Ok(imported) => panic!("it imports:\n{}", symmc_ir::text::print(&imported.graph)),
            Err(e) => e.to_string(),
        }
    }
}

/// A graph attribute with these nodes and stored tensors, and the result `b`.
pub fn branch(
    name: &str,
    nodes: Vec<proto::NodeProto>,
    initializer: Vec<proto::TensorProto>,
) -> proto::AttributeProto {
    let graph = proto::GraphProto {
        node: nodes,
        initializer,
        output: vec![value("b", "f32[2]")],
        ..proto::GraphProto::default()
    };
    proto::AttributeProto {
        name: name.into(),
        r#type: proto::attribute_type::GRAPH,
        g: Some(Box::new(graph)),
        ..proto::AttributeProto::default()
    }
}

/// The results of a program of these arguments at these sizes.
pub fn run(fake: &Fake, sizes: &[i64], arguments: &[Tensor]) -> Vec<Vec<f64>> {
    let graph = fake.import().unwrap_or_else(|e| panic!("{e}")).graph;
    let mut bindings = SymbolBindings::new();
    for (symbol, size) in graph.symbols.keys().zip(sizes) {
        bindings.set(symbol, *size);
    }
    let mut arguments = arguments.iter().cloned().map(Arc::new);
    let inputs = graph.inputs.values().map(|input| match input.kind {
        InputKind::Argument => arguments.next().expect("an argument"),
        _ => input.data.clone().expect("a constant"),
    });
    let results = symmc_ir::interp::run(&graph, &bindings, &[inputs.collect()]).expect("results");
    results[0].iter().map(Tensor::to_f64).collect()
}
