//! Schemas of custom ops that a caller declares in PyTorch's notation: `mylib::f(Tensor x, Tensor(a!) out, *,
//! float eps=1e-5) -> ()`. A `!` marks what the op writes.
//!
//! The schema of a definition ([`crate::definition`]) may also state the only value of an argument for which
//! the definition holds: `bool normalize == True`.

use crate::literal::{Literal, split_items, unquoted};

/// A target without the prefix `torch.ops.`.
pub(crate) fn bare_target(target: &str) -> &str {
    target.strip_prefix("torch.ops.").unwrap_or(target)
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct OpWrites {
    pub arguments: Vec<String>,
    /// The functional counterpart, which returns the new contents as results in the order of `arguments`.
    pub functional: Option<String>,
    /// The number of other results of the counterpart, which come first. If it is 0, the results of the op
    /// are what it wrote.
    pub own_results: usize,
    /// The written arguments that the op returns, if they are not the first ones.
    pub returned: Option<Vec<String>>,
}

/// The values of an argument for which a definition holds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AcceptedValue {
    /// `== any`: the argument does not matter.
    Any,
    Only(Literal),
}

#[derive(Clone, Debug)]
pub(crate) struct DeclaredArgument {
    /// The type as it is written: `Tensor(a!)`, `int?`, `float[2]`.
    pub ty: String,
    pub name: String,
    pub default: Option<Literal>,
    pub accepted: Option<AcceptedValue>,
}

#[derive(Clone, Debug)]
pub(crate) struct DeclaredOp {
    /// The target without `torch.ops.`, such as `mylib.f.default`.
    pub target: String,
    pub text: String,
    pub writes: OpWrites,
    pub arguments: Vec<DeclaredArgument>,
}

impl DeclaredArgument {
    fn parse(part: &str) -> Result<Self, String> {
        let declaration_end = part.find('=').unwrap_or(part.len());
        let (declaration, values) = part.split_at_checked(declaration_end).unwrap_or((part, ""));
        let (ty, name) = declaration
            .trim()
            .rsplit_once(char::is_whitespace)
            .ok_or_else(|| format!("expected a type and a name, found `{part}`"))?;
        let (default, accepted) = match split_at_accepted(values)? {
            Some((default, accepted)) => (default, Some(accepted.trim())),
            None => (values, None),
        };
        let default = default.trim().trim_start_matches('=').trim();
        let accepted = match accepted {
            None => None,
            Some("any") => Some(AcceptedValue::Any),
            Some(text) => match Literal::parse(text) {
                Some(value) => Some(AcceptedValue::Only(value)),
                None => return Err(format!("expected a value or `any` after `==`, found `{text}`")),
            },
        };
        Ok(DeclaredArgument {
            ty: ty.trim().to_string(),
            name: name.to_string(),
            default: Literal::parse(default),
            accepted,
        })
    }

    pub fn is_tensor(&self) -> bool {
        self.ty.starts_with("Tensor")
    }
}

impl DeclaredOp {
    pub fn parse(text: &str) -> Result<Self, String> {
        let (head, results) = split_at_arrow(text)?.ok_or("expected `-> results`, found no arrow")?;
        let head = head.trim();
        let (name, arguments) = head
            .strip_suffix(')')
            .and_then(|h| h.split_once('('))
            .ok_or_else(|| format!("expected `name(arguments)`, found `{head}`"))?;
        let name = name.trim();
        let (namespace, op) = name
            .split_once("::")
            .filter(|(n, o)| !n.is_empty() && !o.is_empty() && !name.contains(char::is_whitespace))
            .ok_or_else(|| format!("expected a name of the form `namespace::op`, found `{name}`"))?;
        let (op, overload) = op.split_once('.').unwrap_or((op, "default"));
        let mut written = Vec::new();
        let mut declared = Vec::new();
        for item in split_items(arguments)? {
            if item == "*" {
                continue;
            }
            let argument = DeclaredArgument::parse(item)?;
            if let Some(alias) = alias(&argument.ty)
                && alias.contains('!')
            {
                written.push((alias.to_string(), argument.name.clone()));
            }
            declared.push(argument);
        }
        let (own, returned) = parse_results(results.trim(), &written)?;
        let arguments: Vec<String> = written.into_iter().map(|(_, name)| name).collect();
        Ok(DeclaredOp {
            target: format!("{namespace}.{op}.{overload}"),
            text: text.to_string(),
            writes: OpWrites { arguments, functional: None, own_results: own, returned: Some(returned) },
            arguments: declared,
        })
    }
}

/// The number of results that are new tensors, and the written arguments among the results.
fn parse_results(text: &str, written: &[(String, String)]) -> Result<(usize, Vec<String>), String> {
    let inner = text.strip_prefix('(').and_then(|t| t.strip_suffix(')'));
    let mut own_count = 0;
    let mut returned = Vec::new();
    for item in split_items(inner.unwrap_or(text))? {
        match alias(item) {
            None => own_count += usize::from(item.starts_with("Tensor")),
            Some(alias) if alias.contains('!') => {
                let argument = written.iter().find(|(a, _)| a == alias).map(|(_, name)| name.clone());
                returned.push(argument.ok_or_else(|| format!("expected an argument ({alias}), found none"))?);
            }
            Some(_) => {
                return Err(format!(
                    "expected results that are new tensors or written arguments, found `{item}`"
                ));
            }
        }
    }
    if own_count > 0 && !returned.is_empty() {
        return Err("expected results that are all written arguments or all new tensors, found both".into());
    }
    Ok((own_count, returned))
}

/// The alias annotation of a type: `a!` in `Tensor(a!)[]`.
fn alias(ty: &str) -> Option<&str> {
    let annotation = ty.trim().strip_prefix("Tensor")?;
    let annotation = annotation.strip_prefix("[]").unwrap_or(annotation);
    annotation
        .strip_prefix('(')?
        .split_once(')')
        .map(|(alias, _)| alias.split("->").next().unwrap_or(alias).trim())
}

/// The arguments and the results of a schema, which an arrow outside of brackets separates.
fn split_at_arrow(text: &str) -> Result<Option<(&str, &str)>, String> {
    let mut depth = 0i32;
    let mut arrow = None;
    for (position, c) in unquoted(text)? {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '-' if text.get(position..).is_some_and(|rest| rest.starts_with("->")) => {
                arrow = Some(position);
                if depth == 0 {
                    break;
                }
            }
            _ => {}
        }
    }
    let sides = arrow.and_then(|position| Some((text.get(..position)?, text.get(position + 2..)?)));
    Ok(sides)
}

/// The parts before and after the first `==` outside of strings.
fn split_at_accepted(text: &str) -> Result<Option<(&str, &str)>, String> {
    let outside = unquoted(text)?;
    let mut starts = outside.into_iter().map(|(start, _)| start);
    let position = starts.find(|start| text.get(*start..).is_some_and(|rest| rest.starts_with("==")));
    Ok(position.and_then(|start| Some((text.get(..start)?, text.get(start + 2..)?))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_tell_what_is_written() {
        let read = |text: &str| {
            let d = DeclaredOp::parse(text).unwrap();
            let w = d.writes;
            (d.target, w.arguments.join(","), w.own_results, w.returned.unwrap_or_default().join(","))
        };
        assert_eq!(
            read("m::f(Tensor x, Tensor(a!) out) -> ()"),
            ("m.f.default".into(), "out".into(), 0, String::new())
        );
        assert_eq!(
            read("m::f.two(Tensor(a!)[] xs, Tensor? b=None, int[2] k=[1, 2], *, float e=1e-5) -> Tensor"),
            ("m.f.two".into(), "xs".into(), 1, String::new())
        );
        assert_eq!(
            read("m::f(Tensor(a!) x, Tensor(b!) y) -> (Tensor(b!), Tensor(a!))"),
            ("m.f.default".into(), "x,y".into(), 0, "y,x".into())
        );
        assert_eq!(
            read("m::f(Tensor(a! -> *) x, str s=\"->, (\", str t=')') -> Tensor(a!)"),
            ("m.f.default".into(), "x".into(), 0, "x".into())
        );
        for (text, expected) in [
            ("m::f(Tensor x, str s=\"a) -> Tensor", "expected a closing quote"),
            ("m::f(Tensor x)", "no arrow"),
            ("f(Tensor x) -> Tensor", "expected a name of the form `namespace::op`"),
            ("m::f(x) -> Tensor", "expected a type and a name"),
            ("m::f(Tensor x -> Tensor", "expected `name(arguments)`"),
            ("m::f(int[ x) -> Tensor", "balanced brackets"),
            ("m::f(Tensor(a) x) -> Tensor(a)", "new tensors or written arguments"),
            ("m::f(Tensor(a!) x) -> (Tensor, Tensor(a!))", "found both"),
            ("m::f(Tensor x) -> Tensor(a!)", "expected an argument (a!)"),
        ] {
            let error = DeclaredOp::parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
