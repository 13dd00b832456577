//! The schemas of the ops that have a rule, as ONNX and ONNX Runtime define them. `schemas.py` generates
//! `schemas.txt` from those packages.
//!
//! Each version of an op has its numbers of operands and results, and its attributes with their types and
//! defaults. Before its rule runs, a node is checked against the version in the program's operator set.

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

use symmc_ir::DType;

use crate::node::describe_attribute;
use crate::proto::{self, attribute_type as kind};

#[derive(Debug)]
pub(crate) struct OpSchema {
    /// The first version of the operator set that has this schema.
    pub since: i64,
    /// Whether the op is removed from this version on.
    pub deprecated: bool,
    operands: CountRange,
    results: CountRange,
    dtypes: OperandDtypes,
    pub attributes: Vec<AttributeSchema>,
}

#[derive(Clone, Copy, Debug)]
struct CountRange {
    least: usize,
    /// `None` if there is no limit.
    most: Option<usize>,
}

#[derive(Debug, Default)]
struct OperandDtypes {
    /// The type variable of each operand. The flag says whether variadic operands there may have different
    /// dtypes. The last entry holds for all further operands.
    variables: Vec<(&'static str, bool)>,
    /// The dtypes of each variable. Variables that also accept other values than tensors have none.
    accepted: Vec<(&'static str, Vec<DType>)>,
}

#[derive(Debug)]
pub(crate) struct AttributeSchema {
    pub name: &'static str,
    /// The name of its type in `schemas.txt`.
    pub what: &'static str,
    required: bool,
    default: Option<&'static str>,
}

struct SchemaTable {
    newest: i64,
    others: HashSet<&'static str>,
    versions: HashMap<&'static str, Vec<OpSchema>>,
}

pub(crate) fn newest_opset() -> i64 {
    schema_table().newest
}

/// Whether ONNX itself defines an op with this name.
pub(crate) fn is_standard(op: &str) -> bool {
    schema_table().others.contains(op) || schema_table().versions.contains_key(op)
}

/// All versions of an op, by its name including its domain.
pub(crate) fn op_versions(op: &str) -> &'static [OpSchema] {
    schema_table().versions.get(op).map_or(&[], Vec::as_slice)
}

fn schema_table() -> &'static SchemaTable {
    static ALL: OnceLock<SchemaTable> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut table = SchemaTable { newest: 0, others: HashSet::new(), versions: HashMap::new() };
        for line in include_str!("schemas.txt").lines() {
            let mut words = line.split(' ');
            match words.next() {
                Some("newest") => table.newest = words.next().and_then(|w| w.parse().ok()).unwrap_or(0),
                Some("others") => table.others.extend(words),
                Some(name) if !name.starts_with('#') => {
                    table.versions.entry(name).or_default().extend(parse_schema(words));
                }
                _ => {}
            }
        }
        table
    })
}

/// Parses `13 2..3 1..1 @T,T,V;T=hf;V=il alpha:float=1.0 axis:int!` or `11 deprecated`.
fn parse_schema(mut words: std::str::Split<'static, char>) -> Option<OpSchema> {
    let since = words.next()?.parse().ok()?;
    let first = words.next()?;
    let none = CountRange { least: 0, most: None };
    if first == "deprecated" {
        let dtypes = OperandDtypes::default();
        return Some(OpSchema {
            since,
            deprecated: true,
            operands: none,
            results: none,
            dtypes,
            attributes: vec![],
        });
    }
    let operands = CountRange::parse(first)?;
    let results = CountRange::parse(words.next()?)?;
    let dtypes = OperandDtypes::parse_dtypes(words.next()?)?;
    let attributes = words.map(|word| {
        let (name, ty) = word.split_once(':')?;
        let (ty, default) = ty.split_once('=').map_or((ty, None), |(ty, default)| (ty, Some(default)));
        let required = ty.ends_with('!');
        Some(AttributeSchema { name, what: ty.trim_end_matches('!'), required, default })
    });
    let attributes = attributes.collect::<Option<Vec<_>>>()?;
    Some(OpSchema { since, deprecated: false, operands, results, dtypes, attributes })
}

impl CountRange {
    /// Parses `2..3` or `2..`.
    fn parse(word: &str) -> Option<CountRange> {
        let (min, max) = word.split_once("..")?;
        Some(CountRange { least: min.parse().ok()?, most: max.parse().ok() })
    }
}

impl OperandDtypes {
    /// Parses `@T,T,V;T=hf;V=il`.
    fn parse_dtypes(word: &'static str) -> Option<OperandDtypes> {
        let mut sections = word.strip_prefix('@')?.split(';');
        let variables = sections.next()?.split(',').filter(|name| !name.is_empty());
        let variables = variables.map(|name| match name.strip_suffix('~') {
            Some(name) => (name, true),
            None => (name, false),
        });
        let accepted = sections.map(|section| {
            let (name, letters) = section.split_once('=')?;
            let dtypes = letters.chars().filter(|&c| c != NO_DTYPE).map(dtype_of_letter);
            Some((name, dtypes.collect::<Option<Vec<_>>>()?, letters))
        });
        let accepted = accepted.collect::<Option<Vec<_>>>()?;
        // A variable whose dtypes the IR does not have accepts no dtype. Ops with such variables have no
        // rule.
        let accepted = accepted.into_iter().filter(|(.., letters)| !letters.is_empty());
        Some(OperandDtypes {
            variables: variables.collect(),
            accepted: accepted.map(|(name, dtypes, _)| (name, dtypes)).collect(),
        })
    }

    /// Checks the dtypes of the operands that are known.
    fn check_operands(&self, op: &str, since: i64, dtypes: &[Option<DType>]) -> Result<(), String> {
        let mut bound: Vec<(&str, usize, DType)> = Vec::new();
        for (i, actual) in dtypes.iter().enumerate() {
            let (Some(actual), Some(&(name, may_differ))) =
                (*actual, self.variables.get(i).or(self.variables.last()))
            else {
                continue;
            };
            let accepted = self.accepted.iter().find(|(n, _)| *n == name);
            if let Some((_, accepted)) = accepted.filter(|(_, accepted)| !accepted.contains(&actual)) {
                let names: Vec<String> = accepted.iter().map(ToString::to_string).collect();
                let expected = if names.is_empty() { "another type".to_string() } else { names.join(", ") };
                return Err(format!(
                    "operand {i} of {op} as of version {since}: expected {expected}, found {actual}"
                ));
            }
            match bound.iter().find(|(n, ..)| *n == name) {
                Some(&(_, first, dtype)) if dtype != actual && !may_differ => {
                    return Err(format!(
                        "operand {i} of {op}: expected the dtype of operand {first}, {dtype}, found {actual}"
                    ));
                }
                Some(_) => {}
                None => bound.push((name, i, actual)),
            }
        }
        Ok(())
    }
}

/// Marks a type variable none of whose dtypes the IR has.
const NO_DTYPE: char = '-';

fn dtype_of_letter(letter: char) -> Option<DType> {
    Some(match letter {
        'b' => DType::Bool,
        'u' => DType::U8,
        'w' => DType::U16,
        'v' => DType::U32,
        'c' => DType::I8,
        's' => DType::I16,
        'i' => DType::I32,
        'l' => DType::I64,
        '4' => DType::F8E4M3,
        '5' => DType::F8E5M2,
        '8' => DType::F8E8M0,
        'h' => DType::F16,
        'y' => DType::BF16,
        'f' => DType::F32,
        'd' => DType::F64,
        _ => return None,
    })
}

impl CountRange {
    fn check_count(self, what: &str, found: usize) -> Result<(), String> {
        let expected = match (self.least, self.most) {
            (least, _) if found < least => least,
            (_, Some(most)) if found > most => most,
            _ => return Ok(()),
        };
        let bound = if self.most == Some(self.least) {
            ""
        } else if found < self.least {
            " at least"
        } else {
            " at most"
        };
        let plural = if expected == 1 { "" } else { "s" };
        Err(format!("expected{bound} {expected} {what}{plural}, found {found}"))
    }
}

impl OpSchema {
    pub fn attribute(&self, name: &str) -> Option<&AttributeSchema> {
        self.attributes.iter().find(|a| a.name == name)
    }

    /// Checks the known dtypes of the operands of a node. `op` is the name of the op in messages.
    pub fn check_dtypes(&self, op: &str, dtypes: &[Option<DType>]) -> Result<(), String> {
        self.dtypes.check_operands(op, self.since, dtypes)
    }

    /// Checks a node against this version of its op. `op` is its name in messages. `resolved` returns the
    /// attribute itself, or the attribute of the enclosing function call that it refers to.
    pub fn check_node<'p>(
        &self,
        op: &str,
        node: &'p proto::NodeProto,
        resolved: impl Fn(&'p proto::AttributeProto) -> Option<&'p proto::AttributeProto>,
    ) -> Result<(), String> {
        if self.deprecated {
            return Err(format!("{op} is not available from version {} of the operator set on", self.since));
        }
        // Operands at the end may be omitted by an empty name.
        let count = node.input.iter().rposition(|n| !n.is_empty()).map_or(0, |i| i + 1);
        self.operands.check_count("operand", count)?;
        self.results.check_count("result", node.output.len())?;
        for (i, a) in node.attribute.iter().enumerate() {
            let Some(declared) = self.attribute(&a.name) else {
                let names: Vec<&str> = self.attributes.iter().map(|a| a.name).collect();
                let names = if names.is_empty() { "none".to_string() } else { names.join(", ") };
                let since = self.since;
                return Err(format!(
                    "expected an attribute of {op} as of version {since} ({names}), found {}",
                    describe_attribute(a)
                ));
            };
            if node.attribute[..i].iter().any(|b| b.name == a.name) {
                return Err(format!("expected one attribute `{}`, found two", a.name));
            }
            if let Some(a) = resolved(a)
                && declared.what != attribute_type_name(a.r#type)
            {
                let name = declared.name;
                return Err(format!(
                    "expected {} as `{name}`, found {}",
                    describe_attribute_type(declared.what),
                    describe_attribute(a)
                ));
            }
        }
        let missing = self.attributes.iter().filter(|a| a.required).find(|required| {
            !node.attribute.iter().any(|a| a.name == required.name && resolved(a).is_some())
        });
        match missing {
            Some(missing) => Err(format!("expected an attribute `{}`, found none", missing.name)),
            None => Ok(()),
        }
    }
}

impl AttributeSchema {
    /// Whether an attribute has its default value.
    pub fn is_default(&self, a: &proto::AttributeProto) -> bool {
        let Some(default) = self.default else { return false };
        match a.r#type {
            kind::INT => default.parse() == Ok(a.i),
            kind::FLOAT => default.parse() == Ok(a.f),
            kind::STRING => default.as_bytes() == a.s,
            _ => false,
        }
    }
}

fn attribute_type_name(code: i32) -> &'static str {
    match code {
        kind::FLOAT => "float",
        kind::INT => "int",
        kind::STRING => "string",
        kind::TENSOR => "tensor",
        kind::GRAPH => "graph",
        kind::FLOATS => "floats",
        kind::INTS => "ints",
        kind::STRINGS => "strings",
        kind::SPARSE_TENSOR => "sparse",
        _ => "other",
    }
}

fn describe_attribute_type(what: &str) -> &'static str {
    match what {
        "float" => "a number",
        "int" => "an integer",
        "string" => "a string",
        "tensor" => "a tensor",
        "graph" => "a graph",
        "floats" => "numbers",
        "ints" => "integers",
        "strings" => "strings",
        _ => "another type",
    }
}
