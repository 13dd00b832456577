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
            let items = inner.split(',').map(str::trim).filter(|item| !item.is_empty());
            return items.map(Literal::parse).collect::<Option<_>>().map(Literal::List);
        }
        for quote in ['"', '\''] {
            if let Some(inner) = text.strip_prefix(quote) {
                let inner = inner.strip_suffix(quote)?;
                return Some(Literal::Text(inner.to_string()));
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
        ] {
            let value = Literal::parse(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(value.program_text().as_deref(), Ok(in_program));
            assert_eq!(Literal::parse(&value.to_string()), Some(value), "{text}");
        }
        assert_eq!(Literal::parse("None"), Some(Literal::None));
        assert!(Literal::None.program_text().is_err());
        assert!(Literal::Text("a b".into()).program_text().is_err());
        assert_eq!(Literal::parse("what"), None);
        assert_eq!(Literal::parse("\"open"), None);
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
