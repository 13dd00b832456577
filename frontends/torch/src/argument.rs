//! Reads and displays the arguments and results of nodes, which are one-of objects of the schema.
//!
//! An alternative that no op here needs becomes [`Argument::Other`] with its name.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::schema::{Argument, ExportedGraph, JsonFloat, JsonStr, SymArgument, ValueName};

impl Argument<'_> {
    pub fn describe(&self) -> String {
        match self {
            Argument::None => "none".into(),
            Argument::Tensor(n) => format!("the tensor `{}`", &**n),
            Argument::Tensors(_) | Argument::OptionalTensors(_) => "a list of tensors".into(),
            Argument::Int(i) => format!("the integer {i}"),
            Argument::Ints(i) => format!("the integers {i:?}"),
            Argument::Float(x) => format!("the number {x:?}"),
            Argument::Floats(x) => format!("the numbers {x:?}"),
            Argument::Complex(a, b) => format!("the complex number {a:?} + {b:?}i"),
            Argument::Bool(b) => format!("{b}"),
            Argument::Bools(b) => format!("{b:?}"),
            Argument::String(s) => format!("\"{}\"", &**s),
            Argument::Strings(list) => format!("{:?}", list.iter().map(|s| &**s).collect::<Vec<&str>>()),
            Argument::SymInt(_) => "a symbolic integer".into(),
            Argument::SymInts(_) => "symbolic integers".into(),
            Argument::SymBool(_) => "a symbolic bool".into(),
            Argument::SymFloat(_) => "a symbolic number".into(),
            Argument::SymFloats(_) => "symbolic numbers".into(),
            Argument::ScalarType(_) => "a dtype".into(),
            Argument::CustomObj(n) => format!("the custom object `{}`", &**n),
            Argument::Operator(n) => format!("the op {}", &**n),
            Argument::ByRank(b) => b.numbers.describe(),
            Argument::Graph(_) => "a graph".into(),
            Argument::Other(kind) => format!("`{}`", &**kind),
        }
    }
}

/// The argument as it is written in a call, for the attributes of opaque ops.
impl fmt::Display for Argument<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Argument::Int(i) => write!(f, "{i}"),
            Argument::None => f.write_str("none"),
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
        struct ArgumentVisitor;
        impl<'de> Visitor<'de> for ArgumentVisitor {
            type Value = Argument<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an argument, an object with one `as_…` field")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Argument<'de>, A::Error> {
                let mut out = None;
                while let Some(key) = map.next_key::<JsonStr<'de>>()? {
                    let value = alternative(&key, &mut map)?;
                    out = out.or(value);
                }
                Ok(out.unwrap_or(Argument::None))
            }
        }
        deserializer.deserialize_map(ArgumentVisitor)
    }
}

/// The alternative `key` of an argument. `None` if it is null.
fn alternative<'de, A: MapAccess<'de>>(
    key: &JsonStr<'de>,
    map: &mut A,
) -> Result<Option<Argument<'de>>, A::Error> {
    Ok(match &**key {
        "as_none" => map.next_value::<Option<IgnoredAny>>()?.map(|_| Argument::None),
        "as_tensor" => map.next_value::<Option<ValueName<'de>>>()?.map(|t| Argument::Tensor(t.name)),
        "as_tensors" => map
            .next_value::<Option<Vec<ValueName<'de>>>>()?
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
        "as_float" => map.next_value::<Option<JsonFloat>>()?.map(|x| Argument::Float(x.0)),
        "as_floats" => map
            .next_value::<Option<Vec<JsonFloat>>>()?
            .map(|x| Argument::Floats(x.into_iter().map(|x| x.0).collect())),
        "as_complex" => {
            map.next_value::<Option<ComplexArgument>>()?.map(|z| Argument::Complex(z.real.0, z.imag.0))
        }
        "as_bool" => map.next_value::<Option<bool>>()?.map(Argument::Bool),
        "as_bools" => map.next_value::<Option<Vec<bool>>>()?.map(Argument::Bools),
        "as_string" => map.next_value::<Option<JsonStr<'de>>>()?.map(Argument::String),
        "as_strings" => map.next_value::<Option<Vec<JsonStr<'de>>>>()?.map(Argument::Strings),
        "as_sym_int" => map.next_value::<Option<SymArgument<'de>>>()?.map(Argument::SymInt),
        "as_sym_ints" => map.next_value::<Option<Vec<SymArgument<'de>>>>()?.map(Argument::SymInts),
        "as_sym_bool" => map.next_value::<Option<SymArgument<'de>>>()?.map(Argument::SymBool),
        "as_sym_float" => map.next_value::<Option<SymArgument<'de>>>()?.map(Argument::SymFloat),
        "as_sym_floats" => map.next_value::<Option<Vec<SymArgument<'de>>>>()?.map(Argument::SymFloats),
        "as_scalar_type" => map.next_value::<Option<u32>>()?.map(Argument::ScalarType),
        "as_custom_obj" => map.next_value::<Option<ValueName<'de>>>()?.map(|c| Argument::CustomObj(c.name)),
        "as_operator" => map.next_value::<Option<JsonStr<'de>>>()?.map(Argument::Operator),
        "as_graph" => {
            map.next_value::<Option<GraphArgument<'de>>>()?.map(|g| Argument::Graph(Box::new(g.graph)))
        }
        _ => map.next_value::<Option<IgnoredAny>>()?.map(|_| Argument::Other(key.clone())),
    })
}

#[derive(Deserialize)]
struct ComplexArgument {
    real: JsonFloat,
    imag: JsonFloat,
}

#[derive(Deserialize)]
struct GraphArgument<'a> {
    #[serde(borrow)]
    graph: ExportedGraph<'a>,
}

#[derive(Deserialize)]
struct OptionalTensor<'a> {
    #[serde(borrow)]
    as_tensor: Option<ValueName<'a>>,
}
