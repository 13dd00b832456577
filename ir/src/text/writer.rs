//! Writes the basic elements of the text form: names, lists, dims, types. The counterpart of `cursor.rs`.

use std::fmt::Write as _;

use crate::dim::Dim;
use crate::graph::Graph;
use crate::ids::{GroupId, ValueId};
use crate::quote::{is_bare, write_string};
use crate::types::TensorType;

pub(super) struct TextWriter<'a> {
    pub graph: &'a Graph,
    pub out: String,
}

impl TextWriter<'_> {
    pub fn push_str(&mut self, text: &str) {
        self.out.push_str(text);
    }

    /// Writing to a string does not fail.
    pub fn push_display(&mut self, what: impl std::fmt::Display) {
        let _ = write!(self.out, "{what}");
    }

    pub fn push_string(&mut self, text: &str) {
        let _ = write_string(&mut self.out, text);
    }

    pub fn push_name(&mut self, sigil: &str, name: &str) {
        self.push_str(sigil);
        if is_bare(name) { self.push_str(name) } else { self.push_string(name) }
    }

    pub fn push_value(&mut self, id: ValueId) {
        match self.graph.values.get(id) {
            Some(value) => self.push_name("%", &value.name),
            None => self.push_str("%?"),
        }
    }

    pub fn push_group(&mut self, id: GroupId) {
        match self.graph.groups.get(id) {
            Some(group) => self.push_name("@", &group.name),
            None => self.push_str("@?"),
        }
    }

    pub fn push_list<T>(&mut self, items: &[T], mut one: impl FnMut(&mut Self, &T)) {
        self.push_str("[");
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                self.push_str(", ");
            }
            one(self, item);
        }
        self.push_str("]");
    }

    pub fn push_dim(&mut self, dim: &Dim) {
        self.push_display(dim.display(&self.graph.symbols));
    }

    pub fn push_type(&mut self, ty: &TensorType) {
        self.push_str(ty.dtype.name());
        self.push_list(&ty.shape, Self::push_dim);
    }
}
