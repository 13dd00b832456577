//! Small `.pt2` archives for tests, written from text.
//!
//! A type is `f32[2, s0, 2*s0]`. Arguments are `name=value` separated by blanks, where a value is `%x` (a tensor),
//! `[%a,%b]`, `[%]` (no tensors), `[%a,none]`, `3`, `[1,-1]`, `[$n,2]` (`$n` names a symbolic integer), `1.5`, `inf`, `true`,
//! `'text'`, `['a','b']`, `:f32` (a dtype), `none`, `@mylib.f.default` (an op), or `<obj>` (a custom object).

#![allow(dead_code)]

pub mod container;

use std::io::{Cursor, Write};

use serde_json::{Map, Value, json};
use symmc_torch::{ImportError, ImportOptions, ImportOutput};
use zip::write::SimpleFileOptions;

/// The number of a dtype, by its name in the IR or of one that the IR does not have.
pub fn dtype_code(name: &str) -> u32 {
    match name {
        "c64" => 10,
        "u64" => 35,
        _ => symmc_ir::DType::from_name(name).unwrap_or_else(|| panic!("no dtype {name}")).facts().torch.0,
    }
}

/// A symbol as PyTorch prints it. Other expressions are unchanged.
fn expression(text: &str) -> String {
    if text.chars().all(|c| c.is_ascii_alphanumeric()) {
        format!("Symbol('{text}', positive=True, integer=True)")
    } else {
        text.to_string()
    }
}

/// The metadata of `f32[2, s0]`.
pub fn meta(ty: &str) -> Value {
    let (dtype, dims) = ty.trim().strip_suffix(']').and_then(|t| t.split_once('[')).expect("a type");
    let sizes: Vec<Value> = dims
        .split(',')
        .map(str::trim)
        .filter(|d| !d.is_empty())
        .map(|d| match d.parse::<i64>() {
            Ok(i) => json!({"as_int": i}),
            Err(_) => json!({"as_expr": {"expr_str": expression(d), "hint": {"as_int": 8}}}),
        })
        .collect();
    let mut strides = Vec::new();
    let mut stride = 1i64;
    for s in sizes.iter().rev() {
        strides.insert(0, json!({"as_int": stride}));
        stride = stride.saturating_mul(s["as_int"].as_i64().unwrap_or(1).max(1));
    }
    json!({
        "dtype": dtype_code(dtype), "sizes": sizes, "strides": strides, "storage_offset": {"as_int": 0},
        "requires_grad": false, "device": {"type": "cuda", "index": 0}, "layout": 7, "a_newer_field": [1, {}],
    })
}

fn int(text: &str) -> Option<Value> {
    text.parse::<i64>().ok().map(|i| json!(i))
}

fn argument(text: &str) -> Value {
    if let Some(name) = text.strip_prefix('%') {
        return json!({"as_tensor": {"name": name}});
    }
    if let Some(name) = text.strip_prefix('$') {
        return json!({"as_sym_int": {"as_name": name}});
    }
    if let Some(name) = text.strip_prefix('~') {
        return json!({"as_sym_float": {"as_name": name}});
    }
    if let Some(name) = text.strip_prefix('?') {
        return json!({"as_sym_bool": {"as_name": name}});
    }
    if let Some(op) = text.strip_prefix('@') {
        return json!({"as_operator": format!("torch.ops.{op}")});
    }
    if let Some(dtype) = text.strip_prefix(':') {
        return json!({"as_scalar_type": dtype_code(dtype)});
    }
    if let Some(list) = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')) {
        let items: Vec<&str> = list.split(',').filter(|i| !i.is_empty()).collect();
        if items == ["%"] {
            return json!({"as_tensors": []});
        }
        let tensor = |i: &str| json!({"name": i.trim_start_matches('%')});
        return if items.iter().any(|i| i.starts_with('%')) {
            if items.contains(&"none") {
                let optional = |i: &&str| match *i {
                    "none" => json!({"as_none": true}),
                    i => json!({"as_tensor": tensor(i)}),
                };
                json!({"as_optional_tensors": items.iter().map(optional).collect::<Vec<_>>()})
            } else {
                json!({"as_tensors": items.iter().map(|i| tensor(i)).collect::<Vec<_>>()})
            }
        } else if items.iter().any(|i| matches!(*i, "true" | "false")) {
            json!({"as_bools": items.iter().map(|i| *i == "true").collect::<Vec<_>>()})
        } else if items.iter().any(|i| i.starts_with('\'')) {
            json!({"as_strings": items.iter().map(|i| i.trim_matches('\'')).collect::<Vec<_>>()})
        } else if items.iter().any(|i| i.starts_with('$')) {
            let sym = |i: &&str| match i.strip_prefix('$') {
                Some(name) => json!({"as_name": name}),
                None => json!({"as_int": int(i)}),
            };
            json!({"as_sym_ints": items.iter().map(sym).collect::<Vec<_>>()})
        } else if items.iter().any(|i| i.contains('.')) {
            let float = |i: &&str| i.parse::<f64>().unwrap_or_else(|_| panic!("number {i}"));
            json!({"as_floats": items.iter().map(float).collect::<Vec<_>>()})
        } else {
            json!({"as_ints": items.iter().map(|i| int(i)).collect::<Vec<_>>()})
        };
    }
    match text {
        "none" => json!({"as_none": true}),
        "true" | "false" => json!({"as_bool": text == "true"}),
        "<obj>" => json!({"as_custom_obj": {"name": "obj", "class_fqn": "__torch__.Group"}}),
        "inf" => json!({"as_float": "Infinity"}),
        "-inf" => json!({"as_float": "-Infinity"}),
        "NaN" => json!({"as_float": "NaN"}),
        _ if text.starts_with('\'') => json!({"as_string": text.trim_matches('\'')}),
        _ => match int(text) {
            Some(i) => json!({"as_int": i}),
            None => json!({"as_float": text.parse::<f64>().unwrap_or_else(|_| panic!("argument {text}"))}),
        },
    }
}

/// A program under construction.
#[derive(Clone)]
pub struct Fake {
    pub inputs: Vec<Value>,
    pub input_specs: Vec<Value>,
    pub output_specs: Vec<Value>,
    pub nodes: Vec<Value>,
    pub values: Map<String, Value>,
    pub sym_ints: Map<String, Value>,
    pub sym_floats: Map<String, Value>,
    pub sym_bools: Map<String, Value>,
    pub ranges: Map<String, Value>,
    pub schema: (i64, i64),
    /// The dialects for which the program was verified.
    pub dialect: &'static str,
    pub files: Vec<(String, Vec<u8>)>,
    pub weights: Map<String, Value>,
    pub constants: Map<String, Value>,
}

impl Fake {
    pub fn new() -> Self {
        Fake {
            inputs: vec![],
            input_specs: vec![],
            output_specs: vec![],
            nodes: vec![],
            values: Map::new(),
            sym_ints: Map::new(),
            sym_floats: Map::new(),
            sym_bools: Map::new(),
            ranges: Map::new(),
            schema: (8, 17),
            dialect: "TRAINING",
            files: vec![("archive_format".into(), b"pt2".to_vec()), ("byteorder".into(), b"little".to_vec())],
            weights: Map::new(),
            constants: Map::new(),
        }
    }

    pub fn value(&mut self, name: &str, ty: &str) {
        self.values.insert(name.into(), meta(ty));
    }

    fn input_value(&mut self, name: &str, ty: &str) {
        self.value(name, ty);
        self.inputs.push(json!({"as_tensor": {"name": name}}));
    }

    /// A user input.
    pub fn input(mut self, name: &str, ty: &str) -> Self {
        self.input_value(name, ty);
        self.input_specs.push(json!({"user_input": {"arg": {"as_tensor": {"name": name}}}}));
        self
    }

    /// A parameter whose stored name is its name, with raw data.
    pub fn parameter(mut self, name: &str, ty: &str, data: Option<&[u8]>) -> Self {
        self.input_value(name, ty);
        self.input_specs.push(json!({"parameter": {"arg": {"name": name}, "parameter_name": name}}));
        self.stored("weights", name, ty, data);
        self
    }

    pub fn buffer(mut self, name: &str, ty: &str, persistent: bool, data: Option<&[u8]>) -> Self {
        self.input_value(name, ty);
        let spec = json!({"arg": {"name": name}, "buffer_name": name, "persistent": persistent});
        self.input_specs.push(json!({ "buffer": spec }));
        self.stored(if persistent { "weights" } else { "constants" }, name, ty, data);
        self
    }

    pub fn stored(&mut self, kind: &str, name: &str, ty: &str, data: Option<&[u8]>) {
        let path = format!("{}_{name}", &kind[..1]);
        let payload =
            json!({"path_name": path, "is_param": true, "use_pickle": false, "tensor_meta": meta(ty)});
        if kind == "weights" { &mut self.weights } else { &mut self.constants }.insert(name.into(), payload);
        if let Some(data) = data {
            self.files.push((format!("data/{kind}/{path}"), data.to_vec()));
        }
    }

    /// A node with results `y: f32[2]`, `_` for none, `[a: f32[1]; b: f32[1]]` for a list.
    pub fn node(mut self, target: &str, arguments: &str, results: &[(&str, &str)]) -> Self {
        self.push_node(target, arguments, results, false);
        self
    }

    /// A node whose results are one list.
    pub fn list_node(mut self, target: &str, arguments: &str, results: &[(&str, &str)]) -> Self {
        self.push_node(target, arguments, results, true);
        self
    }

    fn push_node(&mut self, target: &str, arguments: &str, results: &[(&str, &str)], list: bool) {
        let inputs: Vec<Value> = arguments
            .split_whitespace()
            .map(|a| {
                let (name, value) = a.split_once('=').expect("name=value");
                json!({"name": name, "arg": argument(value), "kind": 1})
            })
            .collect();
        for (name, ty) in results.iter().filter(|r| !r.0.starts_with('$')) {
            self.value(name, ty);
        }
        let names: Vec<Value> = results.iter().map(|r| json!({"name": r.0})).collect();
        let outputs = if list {
            vec![json!({ "as_tensors": names })]
        } else {
            let result = |r: &(&str, &str)| match r.0.strip_prefix('$') {
                Some(name) => json!({"as_sym_int": {"as_name": name}}),
                None => json!({"as_tensor": {"name": r.0}}),
            };
            results.iter().map(result).collect()
        };
        let target =
            if target.contains("operator") { target.to_string() } else { format!("torch.ops.{target}") };
        self.nodes.push(json!({
            "target": target, "inputs": inputs, "outputs": outputs,
            "metadata": {"stack_trace": "a \"quoted\" trace\n"}, "name": results.first().map(|r| r.0),
        }));
    }

    /// A symbolic integer of this sympy expression.
    pub fn sym_int(mut self, name: &str, expression_text: &str) -> Self {
        let value = json!({"as_expr": {"expr_str": expression(expression_text), "hint": {"as_int": 8}}});
        self.sym_ints.insert(name.into(), value);
        self
    }

    /// A node whose result is a symbolic integer.
    pub fn int_node(mut self, target: &str, arguments: &str, result: &str) -> Self {
        self.push_node(target, arguments, &[], false);
        if let Some(node) = self.nodes.last_mut() {
            node["outputs"] = json!([{"as_sym_int": {"as_name": result}}]);
        }
        self
    }

    /// A symbolic float of this expression, as PyTorch writes it.
    pub fn sym_float(mut self, name: &str, expression: &str) -> Self {
        let value = json!({"as_expr": {"expr_str": expression, "hint": {"as_float": 2.0}}});
        self.sym_floats.insert(name.into(), value);
        self
    }

    /// Marks the program as the output of `run_decompositions()`: its ops write nothing.
    pub fn functional(mut self) -> Self {
        self.dialect = "ATEN";
        self
    }

    pub fn range(mut self, symbol: &str, min: Option<i64>, max: Option<i64>) -> Self {
        self.ranges.insert(symbol.into(), json!({"min_val": min, "max_val": max}));
        self
    }

    pub fn output(mut self, name: &str) -> Self {
        self.output_specs.push(json!({"user_output": {"arg": {"as_tensor": {"name": name}}}}));
        self
    }

    pub fn program(&self) -> Value {
        let outputs: Vec<Value> = self.output_specs.iter().map(|_| json!({"as_none": true})).collect();
        json!({
            "graph_module": {
                "graph": {
                    "inputs": self.inputs, "outputs": outputs, "nodes": self.nodes,
                    "tensor_values": self.values, "sym_int_values": self.sym_ints,
                    "sym_float_values": self.sym_floats,
                    "sym_bool_values": self.sym_bools, "is_single_tensor_return": false,
                },
                "signature": {"input_specs": self.input_specs, "output_specs": self.output_specs},
                "module_call_graph": [{"fqn": "", "signature": null}],
            },
            "opset_version": {"aten": 10},
            "range_constraints": self.ranges,
            "schema_version": {"major": self.schema.0, "minor": self.schema.1},
            "verifiers": [self.dialect],
        })
    }

    /// The entries of the archive.
    pub fn entries(&self) -> Vec<(String, Vec<u8>)> {
        let mut files = self.files.clone();
        files.push(("models/model.json".into(), self.program().to_string().into_bytes()));
        for (kind, config) in [("weights", &self.weights), ("constants", &self.constants)] {
            let text = json!({ "config": config }).to_string();
            files.push((format!("data/{kind}/model_{kind}_config.json"), text.into_bytes()));
        }
        files
    }

    pub fn bytes(&self) -> Vec<u8> {
        zipped("some_name/", &self.entries())
    }

    /// Imports with schemas of custom ops.
    pub fn import_with(&self, schemas: &[&str]) -> Result<ImportOutput, ImportError> {
        let schemas = schemas.iter().map(|s| s.to_string()).collect();
        let options = ImportOptions { ranks: Some(1), schemas, ..ImportOptions::default() };
        symmc_torch::import(&self.bytes(), &options)
    }

    pub fn import(&self) -> Result<ImportOutput, ImportError> {
        symmc_torch::import(&self.bytes(), &ImportOptions::default())
    }

    /// The message of the error that importing gives.
    pub fn error(&self) -> String {
        match self.import() {
            Ok(_) => panic!("it imports"),
            Err(e) => e.to_string(),
        }
    }
}

pub fn zipped(root: &str, entries: &[(String, Vec<u8>)]) -> Vec<u8> {
    use zip::CompressionMethod::{Deflated, Stored};
    zipped_as(root, entries, |i| if i % 2 == 0 { Stored } else { Deflated })
}

pub fn zipped_as(
    root: &str,
    entries: &[(String, Vec<u8>)],
    method: impl Fn(usize) -> zip::CompressionMethod,
) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (i, (name, data)) in entries.iter().enumerate() {
        let options = SimpleFileOptions::default().compression_method(method(i));
        zip.start_file(format!("{root}{name}"), options).unwrap();
        zip.write_all(data).unwrap();
    }
    zip.finish().unwrap().into_inner()
}
