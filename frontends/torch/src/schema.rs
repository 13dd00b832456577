//! The part of the program JSON (schema 8) that an import reads, borrowed from the text.
//!
//! Unknown fields are skipped without being built, stack traces and other metadata among them. One-of
//! objects become enums; an alternative that no op here needs is [`Argument::Other`] with its name, so a
//! newer minor version of the schema stays readable.

use std::borrow::{Borrow, Cow};
use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;

use indexmap::IndexMap;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

/// A string that borrows from the JSON text unless it has escapes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Str<'a>(pub Cow<'a, str>);

impl Deref for Str<'_> {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Str<'_> {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Str<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Str<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E>(self, s: &'de str) -> Result<Str<'de>, E> {
                Ok(Str(Cow::Borrowed(s)))
            }
            fn visit_str<E>(self, s: &str) -> Result<Str<'de>, E> {
                Ok(Str(Cow::Owned(s.to_string())))
            }
        }
        deserializer.deserialize_str(V)
    }
}

/// A float; JSON has no infinities and NaN, they are strings.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Real(pub f64);

impl<'de> Deserialize<'de> for Real {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl Visitor<'_> for V {
            type Value = Real;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, \"Infinity\", \"-Infinity\" or \"NaN\"")
            }
            fn visit_f64<E>(self, x: f64) -> Result<Real, E> {
                Ok(Real(x))
            }
            fn visit_i64<E>(self, x: i64) -> Result<Real, E> {
                Ok(Real(x as f64))
            }
            fn visit_u64<E>(self, x: u64) -> Result<Real, E> {
                Ok(Real(x as f64))
            }
            fn visit_str<E: serde::de::Error>(self, s: &str) -> Result<Real, E> {
                match s {
                    "Infinity" | "inf" => Ok(Real(f64::INFINITY)),
                    "-Infinity" | "-inf" => Ok(Real(f64::NEG_INFINITY)),
                    "NaN" | "nan" => Ok(Real(f64::NAN)),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(s), &self)),
                }
            }
        }
        deserializer.deserialize_any(V)
    }
}

/// The whole program.
#[derive(Deserialize)]
pub(crate) struct Program<'a> {
    #[serde(borrow)]
    pub graph_module: GraphModule<'a>,
    #[serde(borrow, default)]
    pub range_constraints: IndexMap<Str<'a>, Range>,
    pub schema_version: SchemaVersion,
}

/// The version alone, for programs of another schema.
#[derive(Deserialize)]
pub(crate) struct VersionOnly {
    pub schema_version: SchemaVersion,
}

#[derive(Deserialize, Clone, Copy)]
pub(crate) struct SchemaVersion {
    pub major: i64,
    pub minor: i64,
}

/// The bounds of a symbol, both included; an open end has no value.
#[derive(Deserialize, Clone, Copy)]
pub(crate) struct Range {
    pub min_val: Option<i64>,
    pub max_val: Option<i64>,
}

#[derive(Deserialize)]
pub(crate) struct GraphModule<'a> {
    #[serde(borrow)]
    pub graph: Graph<'a>,
    #[serde(borrow)]
    pub signature: Signature<'a>,
}

#[derive(Deserialize)]
pub(crate) struct Graph<'a> {
    #[serde(borrow, default)]
    pub inputs: Vec<Argument<'a>>,
    #[serde(borrow, default)]
    pub outputs: Vec<Argument<'a>>,
    #[serde(borrow)]
    pub nodes: Vec<Node<'a>>,
    #[serde(borrow)]
    pub tensor_values: HashMap<Str<'a>, ValueMeta<'a>>,
    #[serde(borrow, default)]
    pub sym_int_values: HashMap<Str<'a>, SymInt<'a>>,
    #[serde(borrow, default)]
    pub sym_bool_values: HashMap<Str<'a>, SymBool<'a>>,
    #[serde(borrow, default)]
    pub sym_float_values: HashMap<Str<'a>, SymFloat>,
}

#[derive(Deserialize)]
pub(crate) struct Node<'a> {
    #[serde(borrow)]
    pub target: Str<'a>,
    #[serde(borrow)]
    pub inputs: Vec<NamedArgument<'a>>,
    #[serde(borrow)]
    pub outputs: Vec<Argument<'a>>,
    #[serde(borrow)]
    name: Option<Str<'a>>,
}

impl<'a> Node<'a> {
    /// The node's own name, else that of its first result, else its target.
    pub fn name(&self) -> &str {
        self.name.as_deref().or_else(|| self.results().into_iter().flatten().next()).unwrap_or(&self.target)
    }

    /// The names of the results, lists flattened; `None` for a result that does not exist.
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
pub(crate) struct NamedArgument<'a> {
    #[serde(borrow)]
    pub name: Str<'a>,
    #[serde(borrow)]
    pub arg: Argument<'a>,
}

/// The declared type of a value of the graph.
#[derive(Deserialize)]
pub(crate) struct ValueMeta<'a> {
    pub dtype: u32,
    #[serde(borrow)]
    pub sizes: Vec<SymInt<'a>>,
    #[serde(default = "strided")]
    pub layout: u32,
}

/// The number of the strided layout, the only one that is read.
pub(crate) const STRIDED: u32 = 7;

fn strided() -> u32 {
    STRIDED
}

#[derive(Deserialize)]
pub(crate) struct SymExpr<'a> {
    #[serde(borrow)]
    pub expr_str: Str<'a>,
}

#[derive(Deserialize)]
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
pub(crate) struct SymFloat {
    pub as_float: Option<Real>,
}

/// A reference by name or a literal, within arguments.
#[derive(Deserialize)]
pub(crate) struct SymArgument<'a> {
    #[serde(borrow)]
    pub as_name: Option<Str<'a>>,
    pub as_int: Option<i64>,
    pub as_float: Option<Real>,
    pub as_bool: Option<bool>,
}

#[derive(Deserialize)]
pub(crate) struct Named<'a> {
    #[serde(borrow)]
    pub name: Str<'a>,
}

#[derive(Deserialize)]
struct GraphArgument<'a> {
    #[serde(borrow)]
    graph: Graph<'a>,
}

#[derive(Deserialize)]
struct OptionalTensor<'a> {
    #[serde(borrow)]
    as_tensor: Option<Named<'a>>,
}

/// An argument or a result of a node.
pub(crate) enum Argument<'a> {
    None,
    Tensor(Str<'a>),
    Tensors(Vec<Str<'a>>),
    OptionalTensors(Vec<Option<Str<'a>>>),
    Int(i64),
    Ints(Vec<i64>),
    Float(f64),
    Floats(Vec<f64>),
    Bool(bool),
    Bools(Vec<bool>),
    String(Str<'a>),
    SymInt(SymArgument<'a>),
    SymInts(Vec<SymArgument<'a>>),
    SymBool(SymArgument<'a>),
    SymFloat(SymArgument<'a>),
    ScalarType(u32),
    CustomObj(Str<'a>),
    /// The body of a wrapper.
    Graph(Box<Graph<'a>>),
    /// An alternative that no op here reads (device, layout, …): its name.
    Other(Str<'a>),
}

impl Argument<'_> {
    /// What the argument is, for messages.
    pub fn describe(&self) -> String {
        match self {
            Argument::None => "none".into(),
            Argument::Tensor(n) => format!("the tensor `{}`", &**n),
            Argument::Tensors(_) | Argument::OptionalTensors(_) => "a list of tensors".into(),
            Argument::Int(i) => format!("the integer {i}"),
            Argument::Ints(i) => format!("the integers {i:?}"),
            Argument::Float(x) => format!("the number {x:?}"),
            Argument::Floats(x) => format!("the numbers {x:?}"),
            Argument::Bool(b) => format!("{b}"),
            Argument::Bools(b) => format!("{b:?}"),
            Argument::String(s) => format!("\"{}\"", &**s),
            Argument::SymInt(_) => "a symbolic integer".into(),
            Argument::SymInts(_) => "symbolic integers".into(),
            Argument::SymBool(_) => "a symbolic bool".into(),
            Argument::SymFloat(_) => "a symbolic number".into(),
            Argument::ScalarType(_) => "a dtype".into(),
            Argument::CustomObj(n) => format!("the custom object `{}`", &**n),
            Argument::Graph(_) => "a graph".into(),
            Argument::Other(kind) => format!("`{}`", &**kind),
        }
    }
}

/// The argument as it would stand in a call, for the attributes of opaque ops.
impl fmt::Display for Argument<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Argument::Int(i) => write!(f, "{i}"),
            Argument::Ints(i) => write!(f, "{i:?}"),
            Argument::Float(x) => write!(f, "{x:?}"),
            Argument::Floats(x) => write!(f, "{x:?}"),
            Argument::SymInt(s) => write!(f, "{s}"),
            Argument::SymInts(list) => {
                f.write_str("[")?;
                for (i, s) in list.iter().enumerate() {
                    write!(f, "{}{s}", if i > 0 { ", " } else { "" })?;
                }
                f.write_str("]")
            }
            Argument::ScalarType(code) => match crate::dtype::from_schema(*code) {
                Ok(dtype) => write!(f, "{dtype}"),
                Err(name) => f.write_str(&name),
            },
            other => f.write_str(&other.describe()),
        }
    }
}

impl fmt::Display for SymArgument<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.as_name, self.as_int) {
            (Some(name), _) => f.write_str(name),
            (None, Some(i)) => write!(f, "{i}"),
            (None, None) => f.write_str("?"),
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Argument<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Argument<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an argument, an object with one `as_…` field")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Argument<'de>, A::Error> {
                let mut out = None;
                while let Some(key) = map.next_key::<Str<'de>>()? {
                    let value = alternative(&key, &mut map)?;
                    out = out.or(value);
                }
                Ok(out.unwrap_or(Argument::None))
            }
        }
        deserializer.deserialize_map(V)
    }
}

/// The alternative `key` of an argument; `None` if it is null.
fn alternative<'de, A: MapAccess<'de>>(
    key: &Str<'de>,
    map: &mut A,
) -> Result<Option<Argument<'de>>, A::Error> {
    Ok(match &**key {
        "as_none" => map.next_value::<Option<IgnoredAny>>()?.map(|_| Argument::None),
        "as_tensor" => map.next_value::<Option<Named<'de>>>()?.map(|t| Argument::Tensor(t.name)),
        "as_tensors" => map
            .next_value::<Option<Vec<Named<'de>>>>()?
            .map(|t| Argument::Tensors(t.into_iter().map(|t| t.name).collect())),
        "as_optional_tensor" => map.next_value::<Option<OptionalTensor<'de>>>()?.map(|t| match t.as_tensor {
            Some(t) => Argument::Tensor(t.name),
            None => Argument::None,
        }),
        "as_optional_tensors" => map
            .next_value::<Option<Vec<OptionalTensor<'de>>>>()?
            .map(|t| Argument::OptionalTensors(t.into_iter().map(|t| t.as_tensor.map(|t| t.name)).collect())),
        "as_int" => map.next_value::<Option<i64>>()?.map(Argument::Int),
        "as_ints" => map.next_value::<Option<Vec<i64>>>()?.map(Argument::Ints),
        "as_float" => map.next_value::<Option<Real>>()?.map(|x| Argument::Float(x.0)),
        "as_floats" => map
            .next_value::<Option<Vec<Real>>>()?
            .map(|x| Argument::Floats(x.into_iter().map(|x| x.0).collect())),
        "as_bool" => map.next_value::<Option<bool>>()?.map(Argument::Bool),
        "as_bools" => map.next_value::<Option<Vec<bool>>>()?.map(Argument::Bools),
        "as_string" => map.next_value::<Option<Str<'de>>>()?.map(Argument::String),
        "as_sym_int" => map.next_value::<Option<SymArgument<'de>>>()?.map(Argument::SymInt),
        "as_sym_ints" => map.next_value::<Option<Vec<SymArgument<'de>>>>()?.map(Argument::SymInts),
        "as_sym_bool" => map.next_value::<Option<SymArgument<'de>>>()?.map(Argument::SymBool),
        "as_sym_float" => map.next_value::<Option<SymArgument<'de>>>()?.map(Argument::SymFloat),
        "as_scalar_type" => map.next_value::<Option<u32>>()?.map(Argument::ScalarType),
        "as_custom_obj" => map.next_value::<Option<Named<'de>>>()?.map(|c| Argument::CustomObj(c.name)),
        "as_graph" => {
            map.next_value::<Option<GraphArgument<'de>>>()?.map(|g| Argument::Graph(Box::new(g.graph)))
        }
        _ => map.next_value::<Option<IgnoredAny>>()?.map(|_| Argument::Other(key.clone())),
    })
}

#[derive(Deserialize)]
pub(crate) struct Signature<'a> {
    #[serde(borrow)]
    pub input_specs: Vec<InputSpec<'a>>,
    #[serde(borrow)]
    pub output_specs: Vec<OutputSpec<'a>>,
}

#[derive(Deserialize)]
pub(crate) struct InputSpec<'a> {
    #[serde(borrow)]
    pub user_input: Option<ArgumentSpec<'a>>,
    #[serde(borrow)]
    pub parameter: Option<ParameterSpec<'a>>,
    #[serde(borrow)]
    pub buffer: Option<BufferSpec<'a>>,
    #[serde(borrow)]
    pub tensor_constant: Option<TensorConstantSpec<'a>>,
    #[serde(borrow)]
    pub custom_obj: Option<CustomObjSpec<'a>>,
    pub constant_input: Option<IgnoredAny>,
    pub token: Option<IgnoredAny>,
}

#[derive(Deserialize)]
pub(crate) struct ArgumentSpec<'a> {
    #[serde(borrow)]
    pub arg: Argument<'a>,
}

#[derive(Deserialize)]
pub(crate) struct ParameterSpec<'a> {
    #[serde(borrow)]
    pub arg: Named<'a>,
    #[serde(borrow)]
    pub parameter_name: Str<'a>,
}

#[derive(Deserialize)]
pub(crate) struct BufferSpec<'a> {
    #[serde(borrow)]
    pub arg: Named<'a>,
    #[serde(borrow)]
    pub buffer_name: Str<'a>,
    #[serde(default)]
    pub persistent: bool,
}

#[derive(Deserialize)]
pub(crate) struct TensorConstantSpec<'a> {
    #[serde(borrow)]
    pub arg: Named<'a>,
    #[serde(borrow)]
    pub tensor_constant_name: Str<'a>,
}

#[derive(Deserialize)]
pub(crate) struct CustomObjSpec<'a> {
    #[serde(borrow)]
    pub arg: Named<'a>,
}

#[derive(Deserialize)]
pub(crate) struct OutputSpec<'a> {
    #[serde(borrow)]
    pub user_output: Option<ArgumentSpec<'a>>,
    #[serde(borrow)]
    pub loss_output: Option<NamedSpec<'a>>,
    #[serde(borrow)]
    pub gradient_to_parameter: Option<NamedSpec<'a>>,
    #[serde(borrow)]
    pub gradient_to_user_input: Option<NamedSpec<'a>>,
    #[serde(borrow)]
    pub buffer_mutation: Option<BufferMutation<'a>>,
    #[serde(borrow)]
    pub parameter_mutation: Option<ParameterMutation<'a>>,
    #[serde(borrow)]
    pub user_input_mutation: Option<UserInputMutation<'a>>,
    pub token: Option<IgnoredAny>,
}

#[derive(Deserialize)]
pub(crate) struct NamedSpec<'a> {
    #[serde(borrow)]
    pub arg: Named<'a>,
}

#[derive(Deserialize)]
pub(crate) struct BufferMutation<'a> {
    #[serde(borrow)]
    pub arg: Named<'a>,
    #[serde(borrow)]
    pub buffer_name: Str<'a>,
}

#[derive(Deserialize)]
pub(crate) struct ParameterMutation<'a> {
    #[serde(borrow)]
    pub arg: Named<'a>,
    #[serde(borrow)]
    pub parameter_name: Str<'a>,
}

#[derive(Deserialize)]
pub(crate) struct UserInputMutation<'a> {
    #[serde(borrow)]
    pub arg: Named<'a>,
    #[serde(borrow)]
    pub user_input_name: Str<'a>,
}

/// `{name}_weights_config.json` and `{name}_constants_config.json`.
#[derive(Deserialize)]
pub(crate) struct PayloadConfig {
    pub config: IndexMap<String, Payload>,
}

/// Where a tensor is stored.
#[derive(Deserialize)]
pub(crate) struct Payload {
    pub path_name: String,
    #[serde(default)]
    pub use_pickle: bool,
    pub tensor_meta: Option<StorageMeta>,
}

/// How a tensor lies in its storage, in elements.
#[derive(Deserialize)]
pub(crate) struct StorageMeta {
    pub dtype: u32,
    pub sizes: Vec<Extent>,
    pub strides: Vec<Extent>,
    pub storage_offset: Extent,
    #[serde(default = "strided")]
    pub layout: u32,
}

/// An extent of a stored tensor, which is always known.
#[derive(Deserialize)]
pub(crate) struct Extent {
    pub as_int: Option<i64>,
}
