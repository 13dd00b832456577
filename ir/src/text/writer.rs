//! Writes the small parts of the text form: names, lists, dims, types. The twin of `cursor.rs`.

use std::fmt::Write as _;

use super::quote::{is_bare, write_string};
use crate::dim::Dim;
use crate::graph::Graph;
use crate::ids::{GroupId, ValueId};
use crate::types::Type;

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
