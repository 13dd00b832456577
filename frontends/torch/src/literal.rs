//! Values of arguments that are not tensors, as schemas and programs write them.

use std::fmt;

use symmc_ir::DType;

use crate::dtype;
use crate::schema::Argument;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Literal {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    Dtype(DType),
    List(Vec<Literal>),
}

impl Literal {
    /// Parses the value that a schema states: `1`, `1e-05`, `True`, `"text"`, `[1, 2]`, `None`, `bf16`.
    pub fn parse(text: &str) -> Option<Literal> {
        let text = text.trim();
        if let Some(inner) = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')) {
            let items = split_items(inner).ok()?;
            return items.into_iter().map(Literal::parse).collect::<Option<_>>().map(Literal::List);
        }
        for quote in ['"', '\''] {
            if let Some(inner) = text.strip_prefix(quote) {
                return parse_string(inner, quote).map(Literal::Text);
            }
        }
        match text {
            "None" | "none" => return Some(Literal::None),
            "True" | "true" => return Some(Literal::Bool(true)),
            "False" | "false" => return Some(Literal::Bool(false)),
            _ => {}
        }
        let dtype = || DType::from_name(text).map(Literal::Dtype);
        let int = text.parse().ok().map(Literal::Int);
        int.or_else(dtype).or_else(|| text.parse().ok().map(Literal::Float))
    }

    /// The value of an argument. `None` if it is a tensor, or not a constant.
    pub fn from_argument(argument: &Argument<'_>) -> Option<Literal> {
        Some(match argument {
            Argument::None => Literal::None,
            Argument::Bool(b) => Literal::Bool(*b),
            Argument::Int(i) => Literal::Int(*i),
            Argument::Float(x) => Literal::Float(*x),
            Argument::String(s) => Literal::Text(s.to_string()),
            Argument::ScalarType(code) => Literal::Dtype(dtype::from_schema(*code).ok()?),
            Argument::Bools(list) => Literal::List(list.iter().map(|b| Literal::Bool(*b)).collect()),
            Argument::Ints(list) => Literal::List(list.iter().map(|i| Literal::Int(*i)).collect()),
            Argument::Floats(list) => Literal::List(list.iter().map(|x| Literal::Float(*x)).collect()),
            Argument::Strings(list) => {
                Literal::List(list.iter().map(|s| Literal::Text(s.to_string())).collect())
            }
            _ => return None,
        })
    }

    /// Whether two values are equal. An integer equals the float of the same value.
    pub fn agrees_with(&self, other: &Literal) -> bool {
        match (self, other) {
            (Literal::Int(i), Literal::Float(x)) | (Literal::Float(x), Literal::Int(i)) => *x == *i as f64,
            (Literal::List(a), Literal::List(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.agrees_with(b))
            }
            (a, b) => a == b,
        }
    }

    /// Whether an argument of this type, as a schema writes it, can have the value.
    pub fn fits(&self, ty: &str) -> bool {
        if let Some(ty) = ty.strip_suffix('?') {
            return *self == Literal::None || self.fits(ty);
        }
        if let Some((item, _)) = ty.split_once('[') {
            return matches!(self, Literal::List(items) if items.iter().all(|i| i.fits(item)));
        }
        match ty {
            "int" | "SymInt" => matches!(self, Literal::Int(_)),
            "float" => matches!(self, Literal::Float(_) | Literal::Int(_)),
            "bool" => matches!(self, Literal::Bool(_)),
            "str" => matches!(self, Literal::Text(_)),
            "Scalar" => matches!(self, Literal::Int(_) | Literal::Float(_) | Literal::Bool(_)),
            "ScalarType" => matches!(self, Literal::Dtype(_)),
            _ => true,
        }
    }

    /// The value as the text of a program writes it. Fails for values that programs do not have.
    pub fn program_text(&self) -> Result<String, String> {
        Ok(match self {
            Literal::None => return Err("expected a value, found none".into()),
            Literal::Bool(b) => b.to_string(),
            Literal::Int(i) => i.to_string(),
            Literal::Float(x) if x.is_nan() => "nan".into(),
            Literal::Float(x) => format!("{x:?}"),
            Literal::Text(s) if is_word(s) => s.clone(),
            Literal::Text(s) => {
                return Err(format!("expected a word of letters, digits and `_`, found {s:?}"));
            }
            Literal::Dtype(dtype) => dtype.to_string(),
            Literal::List(items) => {
                let items = items.iter().map(Literal::program_text).collect::<Result<Vec<_>, _>>()?;
                format!("[{}]", items.join(", "))
            }
        })
    }
}

/// The contents of a string whose opening quote is before `text`. `None` if the string does not end with the
/// text.
fn parse_string(text: &str, quote: char) -> Option<String> {
    let mut contents = String::new();
    let mut chars = text.chars().peekable();
    loop {
        match chars.next()? {
            c if c == quote => return chars.next().is_none().then_some(contents),
            '\\' => {
                let escaped = match chars.next()? {
                    'a' => '\u{7}',
                    'b' => '\u{8}',
                    'f' => '\u{c}',
                    'n' => '\n',
                    'r' => '\r',
                    't' => '\t',
                    'v' => '\u{b}',
                    digit @ '0'..='7' => {
                        let mut code = digit.to_digit(8)?;
                        for _ in 0..2 {
                            let Some(next) = chars.peek().and_then(|c| c.to_digit(8)) else { break };
                            code = code * 8 + next;
                            chars.next();
                        }
                        char::from_u32(code)?
                    }
                    other => other,
                };
                contents.push(escaped);
            }
            c => contents.push(c),
        }
    }
}

/// The characters of a part of a schema that are not in strings, with their positions. Fails if a string has no
/// end.
pub(crate) fn unquoted(text: &str) -> Result<Vec<(usize, char)>, String> {
    let mut outside = Vec::with_capacity(text.len());
    let mut open: Option<char> = None;
    let mut is_escaped = false;
    for (position, c) in text.char_indices() {
        match open {
            Some(_) if is_escaped => is_escaped = false,
            Some(_) if c == '\\' => is_escaped = true,
            Some(quote) if c == quote => open = None,
            Some(_) => {}
            None if matches!(c, '"' | '\'') => open = Some(c),
            None => outside.push((position, c)),
        }
    }
    match open {
        None => Ok(outside),
        Some(quote) => Err(format!("expected a closing quote {quote}, found `{text}`")),
    }
}

/// The parts between commas outside of brackets and strings.
pub(crate) fn split_items(text: &str) -> Result<Vec<&str>, String> {
    let mut items = Vec::new();
    let mut depth = 0i32;
    let mut from = 0;
    for (position, c) in unquoted(text)? {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            ',' if depth == 0 => {
                items.push(text.get(from..position).unwrap_or("").trim());
                from = position + 1;
            }
            _ => {}
        }
        if depth < 0 {
            break;
        }
    }
    if depth != 0 {
        return Err(format!("expected balanced brackets, found `{text}`"));
    }
    items.push(text.get(from..).unwrap_or("").trim());
    items.retain(|p| !p.is_empty());
    Ok(items)
}

fn is_word(text: &str) -> bool {
    let fits = text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    fits && text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

/// As a schema writes it.
impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Literal::None => f.write_str("None"),
            Literal::Bool(true) => f.write_str("True"),
            Literal::Bool(false) => f.write_str("False"),
            Literal::Int(i) => write!(f, "{i}"),
            Literal::Float(x) => write!(f, "{x:?}"),
            Literal::Text(s) => write!(f, "{s:?}"),
            Literal::Dtype(dtype) => write!(f, "{dtype}"),
            Literal::List(items) => {
                let items: Vec<String> = items.iter().map(Literal::to_string).collect();
                write!(f, "[{}]", items.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_and_programs_write_the_same_values() {
        for (text, in_program) in [
            ("3", "3"),
            ("-1", "-1"),
            ("1e-05", "1e-5"),
            ("True", "true"),
            ("\"mean\"", "mean"),
            ("'mean'", "mean"),
            ("[1, 2]", "[1, 2]"),
            ("[]", "[]"),
            ("bf16", "bf16"),
            ("[[1, 2], []]", "[[1, 2], []]"),
        ] {
            let value = Literal::parse(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(value.program_text().as_deref(), Ok(in_program));
            assert_eq!(Literal::parse(&value.to_string()), Some(value), "{text}");
        }
        assert_eq!(Literal::parse("None"), Some(Literal::None));
        assert!(Literal::None.program_text().is_err());
        assert!(Literal::Text("a b".into()).program_text().is_err());
        for text in ["what", "\"open", "\"a\" \"b\"", "\"end\\\"", "[1, \"a]", "[1]]", "[1], [2]"] {
            assert_eq!(Literal::parse(text), None, "{text}");
        }
    }

    #[test]
    fn strings_of_schemas_have_escapes() {
        for (text, expected) in [
            (r#""""#, ""),
            (r#""a, b == [c] -> 'd'""#, "a, b == [c] -> 'd'"),
            (r#"'say "no"'"#, "say \"no\""),
            (r#""a\"b\\""#, "a\"b\\"),
            (r#""tab\tline\n\001\177é""#, "tab\tline\n\u{1}\u{7f}é"),
        ] {
            assert_eq!(Literal::parse(text), Some(Literal::Text(expected.into())), "{text}");
            let list = format!("[{text}, {text}]");
            let pair = Literal::List(vec![Literal::Text(expected.into()); 2]);
            assert_eq!(Literal::parse(&list), Some(pair), "{list}");
        }
    }

    #[test]
    fn types_of_schemas_accept_their_values() {
        let fits = |text: &str, ty: &str| Literal::parse(text).unwrap().fits(ty);
        assert!(fits("3", "int") && fits("3", "float") && fits("None", "int?") && fits("[1, 2]", "int[2]"));
        assert!(
            !fits("3.0", "int") && !fits("None", "int") && !fits("[1, 2.5]", "int[]") && !fits("1", "str")
        );
        let agree = |a: &str, b: &str| Literal::parse(a).unwrap().agrees_with(&Literal::parse(b).unwrap());
        assert!(
            agree("1", "1.0") && agree("[1, 2]", "[1.0, 2]") && !agree("1", "True") && !agree("[1]", "[]")
        );
    }
}
