//! Definitions of custom ops: programs in the text form that replace calls of an op.
//!
//! The name of the program is the schema of the op. Its arguments are the tensors of the call, and what it
//! returns are the results. In the text, `$name` stands for an argument that is not a tensor, `$name.dtype`
//! and `$name.0` for the dtype and an extent of a tensor, and `$name.size` for the number of ranks of the group
//! that an argument names. [`crate::expand`] puts these values in and adds the nodes to the imported program.
//!
//! An op may have several definitions, which differ in the values that they accept (`== value` in the schema)
//! and in the tensors that they take. The first one that accepts a call defines it.

use std::sync::Arc;

use indexmap::IndexMap;
use symmc_ir::text;

use crate::custom_schema::{DeclaredArgument, DeclaredOp, bare_target};
use crate::error::{ImportError, Result};
use crate::literal::Literal;
use crate::schema::{Argument, ExportedNode};

/// The property of a call whose value replaces a placeholder.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Placeholder {
    /// The value of an argument that is not a tensor.
    Value(String),
    /// The cells of the group that an argument names.
    Cells(String),
    /// The number of ranks of the group that an argument names.
    GroupSize(String),
    Dtype(String),
    Extent(String, usize),
}

impl Placeholder {
    pub fn argument(&self) -> &str {
        match self {
            Placeholder::Value(name)
            | Placeholder::Cells(name)
            | Placeholder::GroupSize(name)
            | Placeholder::Dtype(name)
            | Placeholder::Extent(name, _) => name,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TextPiece {
    Text(String),
    Placeholder(Placeholder),
}

#[derive(Clone, Debug)]
pub(crate) struct OpDefinition {
    pub declared: DeclaredOp,
    pub pieces: Vec<TextPiece>,
}

impl OpDefinition {
    fn read(text: &str) -> Result<Self> {
        OpDefinition::parse(text).map_err(|message| {
            let op = text::program_name(text).ok();
            let op = op.and_then(|name| Some(name.split('(').next()?.trim().to_string()));
            ImportError::Definition { op: op.unwrap_or_default(), message }
        })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let schema = text::program_name(text).map_err(|e| e.to_string())?;
        let declared = DeclaredOp::parse(&schema)
            .map_err(|message| format!("expected a schema as the name of the program: {message}"))?;
        if let Some(list) = declared.arguments.iter().find(|a| a.is_tensor() && a.ty.contains('[')) {
            return Err(format!("`{}` is a list of tensors, which definitions do not take", list.name));
        }
        let pieces = split_text(text, &declared.arguments)?;
        Ok(OpDefinition { declared, pieces })
    }

    fn placeholders(&self) -> impl Iterator<Item = &Placeholder> {
        self.pieces.iter().filter_map(|piece| match piece {
            TextPiece::Placeholder(placeholder) => Some(placeholder),
            TextPiece::Text(_) => None,
        })
    }

    pub fn has_placeholder_of(&self, argument: &str) -> bool {
        self.placeholders().any(|p| p.argument() == argument)
    }

    /// Whether an argument names a group.
    pub fn is_group(&self, argument: &str) -> bool {
        self.placeholders().any(|p| match p {
            Placeholder::Cells(name) | Placeholder::GroupSize(name) => name == argument,
            _ => false,
        })
    }
}

/// The op that a definition is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefinedOp {
    /// The target without `torch.ops.`, such as `mylib.f.default`.
    pub target: String,
    /// The arguments that name groups of ranks.
    pub groups: Vec<String>,
}

/// Reads the op that a definition is for. Fails if the definition cannot be read.
pub fn read_defined_op(text: &str) -> Result<DefinedOp> {
    let definition = OpDefinition::read(text)?;
    let arguments = definition.declared.arguments.iter().map(|argument| &argument.name);
    let groups = arguments.filter(|name| definition.is_group(name)).cloned().collect();
    Ok(DefinedOp { target: definition.declared.target, groups })
}

/// The text between placeholders, and the placeholders.
fn split_text(text: &str, arguments: &[DeclaredArgument]) -> Result<Vec<TextPiece>, String> {
    let mut pieces = Vec::new();
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let states_group = line.trim_start().starts_with("group");
        let mut remaining = line;
        while let Some(start) = find_placeholder(remaining) {
            let (before, from_placeholder) = remaining.split_at_checked(start).unwrap_or((remaining, ""));
            pieces.push(TextPiece::Text(before.to_string()));
            let (placeholder, length) = read_placeholder(from_placeholder, arguments, states_group)
                .map_err(|message| format!("line {}: {message}", number + 1))?;
            pieces.push(TextPiece::Placeholder(placeholder));
            remaining = from_placeholder.get(length..).unwrap_or("");
        }
        pieces.push(TextPiece::Text(remaining.to_string()));
    }
    Ok(pieces)
}

/// The first `$` of a line that is in neither a string nor a comment.
fn find_placeholder(line: &str) -> Option<usize> {
    let mut in_string = false;
    let mut escaped = false;
    for (position, c) in line.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if in_string => escaped = true,
            '"' => in_string = !in_string,
            '/' if !in_string && line.get(position..).is_some_and(|rest| rest.starts_with("//")) => {
                return None;
            }
            '$' if !in_string => return Some(position),
            _ => {}
        }
    }
    None
}

/// The placeholder that `text` begins with, and its length.
fn read_placeholder(
    text: &str,
    arguments: &[DeclaredArgument],
    states_group: bool,
) -> Result<(Placeholder, usize), String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let word = |from: usize| {
        let tail = text.get(from..).unwrap_or("");
        tail.get(..tail.find(|c| !is_part(c)).unwrap_or(tail.len())).unwrap_or("")
    };
    let name = word(1);
    let Some(argument) = arguments.iter().find(|a| a.name == name) else {
        let names: Vec<&str> = arguments.iter().map(|a| a.name.as_str()).collect();
        return Err(format!("`${name}` is no argument of the schema; it has {}", names.join(", ")));
    };
    let end = 1 + name.len();
    let property = match text.get(end..) {
        Some(rest) if rest.starts_with('.') => word(end + 1),
        _ => "",
    };
    let name = name.to_string();
    let placeholder = match (argument.is_tensor(), property) {
        (true, "dtype") => Placeholder::Dtype(name),
        (true, axis) => match axis.parse() {
            Ok(axis) => Placeholder::Extent(name, axis),
            Err(_) => {
                return Err(format!(
                    "expected `${name}.dtype` or an extent such as `${name}.0` of the tensor `{name}`"
                ));
            }
        },
        (false, "size") => Placeholder::GroupSize(name),
        (false, "") if states_group => Placeholder::Cells(name),
        (false, "") => Placeholder::Value(name),
        (false, other) => {
            return Err(format!("expected `${name}` or `${name}.size`, found `${name}.{other}`"));
        }
    };
    let length = if property.is_empty() { end } else { end + 1 + property.len() };
    Ok((placeholder, length))
}

/// The definitions of a caller, by target.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpDefinitions {
    by_target: IndexMap<String, Arc<Vec<OpDefinition>>>,
}

impl OpDefinitions {
    pub fn parse(texts: &[String]) -> Result<Self> {
        let mut by_target: IndexMap<String, Vec<OpDefinition>> = IndexMap::new();
        for text in texts {
            let definition = OpDefinition::read(text)?;
            by_target.entry(definition.declared.target.clone()).or_default().push(definition);
        }
        let by_target = by_target.into_iter().map(|(target, definitions)| (target, Arc::new(definitions)));
        Ok(OpDefinitions { by_target: by_target.collect() })
    }

    /// The definitions of the op of a target.
    pub fn find(&self, target: &str) -> Option<&Arc<Vec<OpDefinition>>> {
        self.by_target.get(bare_target(target))
    }

    pub fn declared_ops(&self) -> impl Iterator<Item = &DeclaredOp> {
        self.by_target
            .values()
            .flat_map(|definitions| definitions.iter())
            .map(|definition| &definition.declared)
    }

    /// The groups that a call of a defined op names.
    pub fn group_names<'n>(&self, target: &str, node: &'n ExportedNode<'_>) -> Vec<String> {
        let mut names = Vec::new();
        let definitions = self.find(target).map_or(&[][..], |definitions| definitions.as_slice());
        for definition in definitions {
            for argument in definition.declared.arguments.iter().filter(|a| definition.is_group(&a.name)) {
                let passed: Option<&'n Argument<'_>> =
                    node.inputs.iter().find(|i| *i.name == *argument.name).map(|i| &i.arg);
                let name = match (passed, &argument.default) {
                    (Some(Argument::String(name)), _) => name.to_string(),
                    (None, Some(Literal::Text(name))) => name.clone(),
                    _ => continue,
                };
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_stand_for_arguments_of_the_schema() {
        let text = "program \"m::f(Tensor x, int n, str g) -> Tensor\" ranks ? // $none\n\
            group @g $g\narg %x: $x.dtype[$n, $x.1]\n%y: $x.dtype[$g.size*$n] = f %x\n";
        let definition = OpDefinition::parse(text).unwrap();
        let name = |n: &str| n.to_string();
        let expected = [
            Placeholder::Cells(name("g")),
            Placeholder::Dtype(name("x")),
            Placeholder::Value(name("n")),
            Placeholder::Extent(name("x"), 1),
            Placeholder::Dtype(name("x")),
            Placeholder::GroupSize(name("g")),
            Placeholder::Value(name("n")),
        ];
        assert_eq!(definition.placeholders().cloned().collect::<Vec<_>>(), expected);
        let defined = DefinedOp { target: "m.f.default".into(), groups: vec!["g".into()] };
        assert_eq!(read_defined_op(text).ok(), Some(defined));
        let back: String = definition
            .pieces
            .iter()
            .map(|piece| match piece {
                TextPiece::Text(text) => text.as_str(),
                TextPiece::Placeholder(_) => "_",
            })
            .collect();
        assert_eq!(back.lines().nth(2), Some("arg %x: _[_, _]"));
    }

    #[test]
    fn definitions_that_cannot_be_read_are_rejected() {
        let schema = "m::f(Tensor x, int n) -> Tensor";
        let body = |body: &str| format!("program \"{schema}\" ranks ?\n{body}\n");
        for (text, expected) in [
            ("param %x: f32[2]\n".to_string(), "expected `program`"),
            ("program \"two layers\" ranks 2\n".into(), "expected a schema as the name of the program"),
            ("program \"m::f(Tensor[] xs) -> Tensor\" ranks 2\n".into(), "`xs` is a list of tensors"),
            (
                "program \"m::f(int n == what) -> Tensor\" ranks 2\n".into(),
                "expected a value or `any` after `==`",
            ),
            (body("arg %x: f32[$m]"), "line 2: `$m` is no argument of the schema; it has x, n"),
            (body("arg %x: f32[$x]"), "line 2: expected `$x.dtype` or an extent"),
            (body("arg %x: f32[$n.dtype]"), "line 2: expected `$n` or `$n.size`, found `$n.dtype`"),
        ] {
            let error = OpDefinition::parse(&text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
