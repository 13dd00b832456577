//! The names of one graph of the program: their bindings, and where they are last read.
//!
//! The program is one graph. The body of a wrapper such as `wrap_with_set_grad_enabled` is another graph with
//! separate names.

use std::collections::HashMap;

use symmc_ir::ValueId;

use crate::schema::{self, Argument};

#[derive(Clone, Debug)]
pub(crate) enum NameBinding {
    Value(ValueId),
    /// No tensor, with a phrase that says why.
    Unavailable(String),
}

pub(crate) struct NameScope<'p> {
    pub graph: &'p schema::ExportedGraph<'p>,
    /// The prefix of the names of values, which makes them unique across graphs.
    pub prefix: String,
    /// The number of values that existed before this graph. Values from this index on belong to it.
    pub first_value: usize,
    pub position: usize,
    /// Whether operators convert their operands as within PyTorch's autocast.
    pub autocast: bool,
    values: HashMap<&'p str, NameBinding>,
    /// The position of the last node that reads a name. Outputs come after all nodes.
    last_read: HashMap<&'p str, usize>,
}

impl<'p> NameScope<'p> {
    pub fn new(graph: &'p schema::ExportedGraph<'p>, prefix: String, first_value: usize) -> Self {
        let mut last_read = HashMap::with_capacity(graph.tensor_values.len());
        for (position, node) in graph.nodes.iter().enumerate() {
            for name in node.inputs.iter().flat_map(|i| tensor_names(&i.arg)) {
                last_read.insert(name, position);
            }
        }
        for name in graph.outputs.iter().flat_map(tensor_names) {
            last_read.insert(name, usize::MAX);
        }
        let values = HashMap::with_capacity(graph.tensor_values.len());
        NameScope { graph, prefix, first_value, position: 0, autocast: false, values, last_read }
    }

    /// Marks a name as read by the program's outputs.
    pub fn mark_read_at_end(&mut self, name: &'p str) {
        self.last_read.insert(name, usize::MAX);
    }

    pub fn is_read(&self, name: &str) -> bool {
        self.last_read.contains_key(name)
    }

    /// Whether the graph or the program returns this name.
    pub fn is_returned(&self, name: &str) -> bool {
        self.last_read.get(name) == Some(&usize::MAX)
    }

    /// Whether anything after the current node reads a name.
    pub fn is_read_later(&self, name: &str) -> bool {
        self.last_read.get(name).is_some_and(|&position| position > self.position)
    }

    /// Binds a name. Fails if the name is already bound, or is not an identifier.
    pub fn bind(&mut self, name: &'p str, binding: NameBinding) -> Result<(), String> {
        let fits = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if name.is_empty() || !fits || name.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(format!("expected an identifier as the name of a value, found `{name}`"));
        }
        match self.values.insert(name, binding) {
            None => Ok(()),
            Some(_) => Err(format!("expected one definition of `{name}`, found two")),
        }
    }

    /// Binds every name of one value to another value.
    pub fn replace(&mut self, old: ValueId, new: ValueId) {
        for binding in self.values.values_mut() {
            match binding {
                NameBinding::Value(v) if *v == old => *v = new,
                _ => {}
            }
        }
    }

    /// Rebinds a name.
    pub fn rebind(&mut self, name: &'p str, binding: NameBinding) {
        self.values.insert(name, binding);
    }

    /// All names that are bound to tensors, sorted.
    pub fn tensors(&self) -> Vec<(&'p str, ValueId)> {
        let mut tensors = Vec::new();
        for (name, binding) in &self.values {
            if let NameBinding::Value(value) = binding {
                tensors.push((*name, *value));
            }
        }
        tensors.sort_unstable();
        tensors
    }

    /// The value of a name. Fails if it is not defined before this node, or is not a tensor.
    pub fn value(&self, name: &str) -> Result<ValueId, String> {
        match self.values.get(name) {
            Some(NameBinding::Value(v)) => Ok(*v),
            Some(NameBinding::Unavailable(why)) => Err(format!("`{name}` is {why}")),
            None => Err(format!("`{name}` is not defined before it is used")),
        }
    }
}

pub(crate) fn tensor_names<'a>(arg: &'a Argument<'_>) -> Vec<&'a str> {
    match arg {
        Argument::Tensor(n) => vec![n],
        Argument::Tensors(list) => list.iter().map(|n| &**n).collect(),
        Argument::OptionalTensors(list) => list.iter().flatten().map(|n| &**n).collect(),
        _ => Vec::new(),
    }
}
