//! The part of the program JSON (schema 8) that an import reads, borrowed from the text.
//!
//! Unknown fields are skipped without being built, including stack traces and most other metadata. A newer minor
//! version of the schema therefore stays readable. [`crate::argument`] reads the arguments of nodes.

use std::borrow::{Borrow, Cow};
use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;

use indexmap::IndexMap;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, Visitor};

use crate::per_rank::PerRankArgument;

/// A string that borrows from the JSON text unless it has escapes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct JsonStr<'a>(pub Cow<'a, str>);

impl Deref for JsonStr<'_> {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for JsonStr<'_> {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for JsonStr<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct StrVisitor;
        impl<'de> Visitor<'de> for StrVisitor {
            type Value = JsonStr<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E>(self, s: &'de str) -> Result<JsonStr<'de>, E> {
                Ok(JsonStr(Cow::Borrowed(s)))
            }
            fn visit_str<E>(self, s: &str) -> Result<JsonStr<'de>, E> {
                Ok(JsonStr(Cow::Owned(s.to_string())))
            }
        }
        deserializer.deserialize_str(StrVisitor)
    }
}

/// A float. JSON has no infinities and no NaN, so they are strings.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct JsonFloat(pub f64);

impl<'de> Deserialize<'de> for JsonFloat {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FloatVisitor;
        impl Visitor<'_> for FloatVisitor {
            type Value = JsonFloat;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, \"Infinity\", \"-Infinity\" or \"NaN\"")
            }
            fn visit_f64<E>(self, x: f64) -> Result<JsonFloat, E> {
                Ok(JsonFloat(x))
            }
            fn visit_i64<E>(self, x: i64) -> Result<JsonFloat, E> {
                Ok(JsonFloat(x as f64))
            }
            fn visit_u64<E>(self, x: u64) -> Result<JsonFloat, E> {
                Ok(JsonFloat(x as f64))
            }
            fn visit_str<E: serde::de::Error>(self, s: &str) -> Result<JsonFloat, E> {
                match s {
                    "Infinity" | "inf" => Ok(JsonFloat(f64::INFINITY)),
                    "-Infinity" | "-inf" => Ok(JsonFloat(f64::NEG_INFINITY)),
                    "NaN" | "nan" => Ok(JsonFloat(f64::NAN)),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(s), &self)),
                }
            }
        }
        deserializer.deserialize_any(FloatVisitor)
    }
}

#[derive(Deserialize)]
pub(crate) struct ExportedProgram<'a> {
    #[serde(borrow)]
    pub graph_module: GraphModule<'a>,
    #[serde(borrow, default)]
    pub range_constraints: IndexMap<JsonStr<'a>, RangeConstraint>,
    pub schema_version: SchemaVersion,
    #[serde(borrow, default)]
    pub opset_version: IndexMap<JsonStr<'a>, i64>,
    /// The dialects for which the program was verified: `TRAINING`, or `ATEN`, in which no op writes its
    /// operands.
    #[serde(borrow, default)]
    pub verifiers: Vec<JsonStr<'a>>,
}

/// The version without the program, for programs of another schema.
#[derive(Deserialize)]
pub(crate) struct VersionOnly {
    pub schema_version: SchemaVersion,
}

#[derive(Deserialize, Clone, Copy)]
pub(crate) struct SchemaVersion {
    pub major: i64,
    pub minor: i64,
}

/// The bounds of a symbol, both included. An open end has no value.
#[derive(Deserialize, Clone, Copy)]
pub(crate) struct RangeConstraint {
    pub min_val: Option<i64>,
    pub max_val: Option<i64>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(crate) struct GraphModule<'a> {
    pub graph: ExportedGraph<'a>,
    pub signature: GraphSignature<'a>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(crate) struct ExportedGraph<'a> {
    #[serde(default)]
    pub inputs: Vec<Argument<'a>>,
    #[serde(default)]
    pub outputs: Vec<Argument<'a>>,
    pub nodes: Vec<ExportedNode<'a>>,
    pub tensor_values: HashMap<JsonStr<'a>, TensorMeta<'a>>,
    #[serde(default)]
    pub sym_int_values: HashMap<JsonStr<'a>, SymInt<'a>>,
    #[serde(default)]
    pub sym_bool_values: HashMap<JsonStr<'a>, SymBool<'a>>,
    #[serde(default)]
    pub sym_float_values: HashMap<JsonStr<'a>, SymFloat<'a>>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(crate) struct ExportedNode<'a> {
    pub target: JsonStr<'a>,
    pub inputs: Vec<NamedArgument<'a>>,
    pub outputs: Vec<Argument<'a>>,
    name: Option<JsonStr<'a>>,
    #[serde(default)]
    metadata: NodeMetadata<'a>,
}

/// The metadata of a node that has a meaning here.
#[derive(Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct NodeMetadata<'a> {
    /// The entries that tools add to nodes, as JSON.
    custom: Option<JsonStr<'a>>,
}

/// The entry of symmc's own frontend.
#[derive(Deserialize)]
struct OwnMetadata {
    #[serde(rename = "symmc.operator")]
    operator: Option<u64>,
}

impl<'a> ExportedNode<'a> {
    /// Creates a node that is not in the file.
    pub fn new(
        target: JsonStr<'a>,
        name: JsonStr<'a>,
        inputs: Vec<NamedArgument<'a>>,
        outputs: Vec<Argument<'a>>,
    ) -> ExportedNode<'a> {
        ExportedNode { target, inputs, outputs, name: Some(name), metadata: NodeMetadata::default() }
    }

    /// The number of the operator in place of which the program has this node and others.
    pub fn replaced_operator(&self) -> Option<u64> {
        let custom = self.metadata.custom.as_deref()?;
        serde_json::from_str::<OwnMetadata>(custom).ok()?.operator
    }

    /// The name of the node, of its first result, or its target, whichever is there first.
    pub fn name(&self) -> &str {
        self.name.as_deref().or_else(|| self.results().into_iter().flatten().next()).unwrap_or(&self.target)
    }

    /// The names of the results, with lists flattened. `None` for a result that does not exist.
    pub fn results(&self) -> Vec<Option<&str>> {
        let mut names = Vec::with_capacity(self.outputs.len());
        for output in &self.outputs {
            match output {
                Argument::Tensor(n) => names.push(Some(&**n)),
                Argument::Tensors(list) => names.extend(list.iter().map(|n| Some(&**n))),
                Argument::OptionalTensors(list) => names.extend(list.iter().map(Option::as_deref)),
                Argument::SymInt(s) | Argument::SymBool(s) | Argument::SymFloat(s) => {
                    names.push(s.as_name.as_deref());
                }
                _ => names.push(None),
            }
        }
        names
    }
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(crate) struct NamedArgument<'a> {
    pub name: JsonStr<'a>,
    pub arg: Argument<'a>,
}

pub(crate) enum Argument<'a> {
    None,
    Tensor(JsonStr<'a>),
    Tensors(Vec<JsonStr<'a>>),
    OptionalTensors(Vec<Option<JsonStr<'a>>>),
    Int(i64),
    Ints(Vec<i64>),
    Float(f64),
    Floats(Vec<f64>),
    /// The real and the imaginary part of a number.
    Complex(f64, f64),
    Bool(bool),
    Bools(Vec<bool>),
    String(JsonStr<'a>),
    Strings(Vec<JsonStr<'a>>),
    SymInt(SymArgument<'a>),
    SymInts(Vec<SymArgument<'a>>),
    SymBool(SymArgument<'a>),
    SymFloat(SymArgument<'a>),
    SymFloats(Vec<SymArgument<'a>>),
    ScalarType(u32),
    CustomObj(JsonStr<'a>),
    /// A number that differs between ranks. It results from merging programs and does not occur in archives.
    ByRank(PerRankArgument),
    /// The target of an op that a wrapper calls.
    Operator(JsonStr<'a>),
    Graph(Box<ExportedGraph<'a>>),
    /// The name of an alternative that no op here reads (device, layout, …).
    Other(JsonStr<'a>),
}

/// A reference by name or a literal, within arguments.
#[derive(Deserialize)]
pub(crate) struct SymArgument<'a> {
    #[serde(borrow)]
    pub as_name: Option<JsonStr<'a>>,
    pub as_int: Option<i64>,
    pub as_float: Option<JsonFloat>,
    pub as_bool: Option<bool>,
}

/// The declared type of a value of the graph.
#[derive(Clone, Deserialize)]
pub(crate) struct TensorMeta<'a> {
    pub dtype: u32,
    #[serde(borrow)]
    pub sizes: Vec<SymInt<'a>>,
    /// Strides in elements. Absent in programs that were not traced by PyTorch.
    #[serde(borrow, default)]
    pub strides: Vec<SymInt<'a>>,
    /// The offset of the first element in the storage, in elements. Absent if it is 0.
    #[serde(borrow, default)]
    pub storage_offset: Option<SymInt<'a>>,
    #[serde(default = "strided")]
    pub layout: u32,
}

/// The number of the strided layout, the only one that is supported.
pub(crate) const STRIDED: u32 = 7;

fn strided() -> u32 {
    STRIDED
}

#[derive(Clone, Deserialize)]
pub(crate) struct SymExpr<'a> {
    #[serde(borrow)]
    pub expr_str: JsonStr<'a>,
}

#[derive(Clone, Deserialize)]
pub(crate) struct SymInt<'a> {
    #[serde(borrow)]
    pub as_expr: Option<SymExpr<'a>>,
    pub as_int: Option<i64>,
}

#[derive(Deserialize)]
pub(crate) struct SymBool<'a> {
    #[serde(borrow)]
    pub as_expr: Option<SymExpr<'a>>,
    pub as_bool: Option<bool>,
}

#[derive(Deserialize)]
pub(crate) struct SymFloat<'a> {
    #[serde(borrow)]
    pub as_expr: Option<SymExpr<'a>>,
    pub as_float: Option<JsonFloat>,
}

#[derive(Deserialize)]
pub(crate) struct ValueName<'a> {
    #[serde(borrow)]
    pub name: JsonStr<'a>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(crate) struct GraphSignature<'a> {
    pub input_specs: Vec<InputSpec<'a>>,
    pub output_specs: Vec<OutputSpec<'a>>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(crate) struct InputSpec<'a> {
    pub user_input: Option<ArgumentSpec<'a>>,
    pub parameter: Option<ParameterSpec<'a>>,
    pub buffer: Option<BufferSpec<'a>>,
    pub tensor_constant: Option<TensorConstantSpec<'a>>,
    pub custom_obj: Option<CustomObjSpec<'a>>,
    pub constant_input: Option<ConstantInputSpec<'a>>,
    pub token: Option<IgnoredAny>,
}

/// An argument that is not a tensor and whose value is part of the program.
#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(crate) struct ConstantInputSpec<'a> {
    pub name: JsonStr<'a>,
    pub value: Argument<'a>,
}

#[derive(Deserialize)]
pub(crate) struct ArgumentSpec<'a> {
    #[serde(borrow)]
    pub arg: Argument<'a>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(crate) struct ParameterSpec<'a> {
    pub arg: ValueName<'a>,
    pub parameter_name: JsonStr<'a>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(crate) struct BufferSpec<'a> {
    pub arg: ValueName<'a>,
    pub buffer_name: JsonStr<'a>,
    #[serde(default)]
    pub persistent: bool,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(crate) struct TensorConstantSpec<'a> {
    pub arg: ValueName<'a>,
    pub tensor_constant_name: JsonStr<'a>,
}

#[derive(Deserialize)]
pub(crate) struct CustomObjSpec<'a> {
    #[serde(borrow)]
    pub arg: ValueName<'a>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(crate) struct OutputSpec<'a> {
    pub user_output: Option<ArgumentSpec<'a>>,
    pub loss_output: Option<ValueSpec<'a>>,
    pub gradient_to_parameter: Option<ValueSpec<'a>>,
    pub gradient_to_user_input: Option<ValueSpec<'a>>,
    pub buffer_mutation: Option<BufferMutation<'a>>,
    pub parameter_mutation: Option<ParameterMutation<'a>>,
    pub user_input_mutation: Option<UserInputMutation<'a>>,
    pub token: Option<IgnoredAny>,
}

#[derive(Deserialize)]
pub(crate) struct ValueSpec<'a> {
    #[serde(borrow)]
    pub arg: ValueName<'a>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(crate) struct BufferMutation<'a> {
    pub arg: ValueName<'a>,
    pub buffer_name: JsonStr<'a>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(crate) struct ParameterMutation<'a> {
    pub arg: ValueName<'a>,
    pub parameter_name: JsonStr<'a>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(crate) struct UserInputMutation<'a> {
    pub arg: ValueName<'a>,
    pub user_input_name: JsonStr<'a>,
}

/// `{name}_weights_config.json` and `{name}_constants_config.json`.
#[derive(Deserialize)]
pub(crate) struct PayloadConfig {
    pub config: IndexMap<String, TensorPayload>,
}

#[derive(Clone, Deserialize)]
pub(crate) struct TensorPayload {
    pub path_name: String,
    #[serde(default)]
    pub use_pickle: bool,
    pub tensor_meta: Option<StorageMeta>,
}

/// The layout of a tensor in its storage, in elements.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct StorageMeta {
    pub dtype: u32,
    pub sizes: Vec<StoredInt>,
    pub strides: Vec<StoredInt>,
    pub storage_offset: StoredInt,
    #[serde(default = "strided")]
    pub layout: u32,
    #[serde(default)]
    pub device: StoredDevice,
}

/// The device of a stored tensor. A tensor on the device `meta` has no data.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct StoredDevice {
    #[serde(default, rename = "type")]
    pub kind: String,
}

/// An extent of a stored tensor, which is always known.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct StoredInt {
    pub as_int: Option<i64>,
}

pub(crate) type WrittenOutput<'a> = (&'static str, &'a str, Option<&'a str>);

pub(crate) fn written_output<'a>(spec: &'a OutputSpec<'_>) -> Option<WrittenOutput<'a>> {
    if let Some(u) = &spec.user_output {
        return match &u.arg {
            Argument::Tensor(n) => Some(("the value", n, None)),
            _ => None,
        };
    }
    if let Some(b) = &spec.buffer_mutation {
        return Some(("a write to a buffer", &b.arg.name, Some(&b.buffer_name)));
    }
    if let Some(p) = &spec.parameter_mutation {
        return Some(("a write to a parameter", &p.arg.name, Some(&p.parameter_name)));
    }
    if let Some(u) = &spec.user_input_mutation {
        return Some(("a write to an argument", &u.arg.name, Some(&u.user_input_name)));
    }
    let plain = [
        ("the loss", &spec.loss_output),
        ("a gradient", &spec.gradient_to_parameter),
        ("a gradient of an argument", &spec.gradient_to_user_input),
    ];
    plain.into_iter().find_map(|(kind, s)| s.as_ref().map(|s| (kind, &*s.arg.name, None)))
}
