//! The names of one graph of the program: their bindings, and the names that are read.
//!
//! The program is one graph. The body of a function is another graph with separate names. The body of a
//! branch also sees the names of the enclosing scope.

use std::collections::{HashMap, HashSet};

use symmc_ir::ValueId;

use crate::known_values::{KnownValue, SizeCondition};
use crate::proto;

#[derive(Clone, Debug)]
pub(crate) enum NameBinding<'p> {
    Value(ValueId),
    /// A known value, and the graph value that holds it once it was emitted.
    Known(KnownValue, Option<ValueId>),
    /// A stored tensor that has not been read yet.
    Stored(&'p proto::TensorProto),
    Sequence(Vec<ValueId>),
    /// An operand that the function call omits.
    Omitted,
    /// A result of an op whose result types are not known.
    Untyped,
    /// No tensor, with a phrase that says why.
    Unavailable(String),
}

#[derive(Clone)]
pub(crate) struct NameScope<'p> {
    /// The prefix of the names of values, which makes them unique across graphs.
    pub prefix: String,
    /// Whether names of the enclosing scope are visible.
    pub inner: bool,
    /// The versions of the operator sets by domain.
    pub opsets: HashMap<&'p str, i64>,
    /// The attributes of the function call whose body this is.
    pub attributes: HashMap<&'p str, &'p proto::AttributeProto>,
    pub declared: HashMap<&'p str, &'p proto::TypeProto>,
    /// The conditions on sizes that results are, by the names of the results.
    pub size_conditions: HashMap<&'p str, SizeCondition>,
    values: HashMap<&'p str, NameBinding<'p>>,
    read: HashSet<&'p str>,
}

impl<'p> NameScope<'p> {
    pub fn new(prefix: String, opsets: HashMap<&'p str, i64>) -> Self {
        NameScope {
            prefix,
            inner: false,
            opsets,
            attributes: HashMap::new(),
            declared: HashMap::new(),
            size_conditions: HashMap::new(),
            values: HashMap::new(),
            read: HashSet::new(),
        }
    }

    pub fn branch(&self, prefix: String) -> NameScope<'p> {
        let mut scope = NameScope::new(prefix, self.opsets.clone());
        scope.attributes.clone_from(&self.attributes);
        scope.inner = true;
        scope
    }

    /// The attribute itself, or the attribute of the enclosing function call that it refers to.
    pub fn resolve_attribute(&self, a: &'p proto::AttributeProto) -> Option<&'p proto::AttributeProto> {
        if a.ref_attr_name.is_empty() {
            Some(a)
        } else {
            self.attributes.get(a.ref_attr_name.as_str()).copied()
        }
    }

    pub fn declare(&mut self, values: impl IntoIterator<Item = &'p proto::ValueInfoProto>) {
        for value in values {
            if let Some(ty) = &value.r#type {
                self.declared.insert(&value.name, ty);
            }
        }
    }

    pub fn mark_read(&mut self, nodes: &'p [proto::NodeProto]) {
        for node in nodes {
            self.read.extend(node.input.iter().map(String::as_str));
            for graph in node.attribute.iter().filter_map(|a| a.g.as_deref()) {
                self.mark_read(&graph.node);
                self.mark_read_at_end(graph.output.iter().map(|o| o.name.as_str()));
            }
        }
    }

    /// Marks names that are read after all nodes.
    pub fn mark_read_at_end(&mut self, names: impl IntoIterator<Item = &'p str>) {
        self.read.extend(names);
    }

    pub fn is_read(&self, name: &str) -> bool {
        self.read.contains(name)
    }

    /// Binds a name. Fails if the name is bound already.
    pub fn bind(&mut self, name: &'p str, binding: NameBinding<'p>) -> Result<(), String> {
        match self.values.insert(name, binding) {
            None => Ok(()),
            Some(_) => Err(format!("expected one definition of `{name}`, found two")),
        }
    }

    /// Rebinds a name to another form of the same value.
    pub fn rebind(&mut self, name: &'p str, binding: NameBinding<'p>) {
        self.values.insert(name, binding);
    }

    /// The binding of a name, with the name as the program stores it.
    pub fn get(&self, name: &str) -> Option<(&'p str, &NameBinding<'p>)> {
        self.values.get_key_value(name).map(|(k, v)| (*k, v))
    }
}
