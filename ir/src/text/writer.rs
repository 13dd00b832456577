//! Writes the small parts of the text form: names, lists, dims, types. The twin of `cursor.rs`.

use std::fmt::Write as _;

use crate::dim::Dim;
use crate::graph::{Graph, GroupId, ValueId};
use crate::types::Type;

/// Whether a value or a group can be written without quotes.
fn is_bare(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_' || c == b'.')
}

/// Whether a symbol can be written without quotes.
pub(crate) fn is_identifier(name: &str) -> bool {
    is_bare(name) && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

/// Writes `text` as a string literal.
pub(crate) fn write_string(out: &mut impl std::fmt::Write, text: &str) -> std::fmt::Result {
    out.write_char('"')?;
    for c in text.chars() {
        match c {
            '"' => out.write_str("\\\"")?,
            '\\' => out.write_str("\\\\")?,
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            c if c.is_control() => write!(out, "\\u{{{:x}}}", u32::from(c))?,
            c => out.write_char(c)?,
        }
    }
    out.write_char('"')
}

/// A text that is being written.
pub(super) struct Writer<'a> {
    pub graph: &'a Graph,
    pub out: String,
}

impl Writer<'_> {
    pub fn put(&mut self, text: &str) {
        self.out.push_str(text);
    }

    /// Writing to a string does not fail.
    pub fn show(&mut self, what: impl std::fmt::Display) {
        let _ = write!(self.out, "{what}");
    }

    pub fn string(&mut self, text: &str) {
        let _ = write_string(&mut self.out, text);
    }

    pub fn name(&mut self, sigil: &str, name: &str) {
        self.put(sigil);
        if is_bare(name) { self.put(name) } else { self.string(name) }
    }

    pub fn value(&mut self, id: ValueId) {
        match self.graph.values.get(id) {
            Some(value) => self.name("%", &value.name),
            None => self.put("%?"),
        }
    }

    pub fn group(&mut self, id: GroupId) {
        match self.graph.groups.get(id) {
            Some(group) => self.name("@", &group.name),
            None => self.put("@?"),
        }
    }

    pub fn list<T>(&mut self, items: &[T], mut one: impl FnMut(&mut Self, &T)) {
        self.put("[");
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                self.put(", ");
            }
            one(self, item);
        }
        self.put("]");
    }

    pub fn dim(&mut self, dim: &Dim) {
        self.show(dim.display(&self.graph.symbols));
    }

    pub fn ty(&mut self, ty: &Type) {
        self.put(ty.dtype.name());
        self.list(&ty.shape, Self::dim);
    }
}
