//! Builds a graph node by node, deriving result types and unique names.

use std::collections::HashMap;
use std::sync::Arc;

use thiserror::Error;

use crate::collective::{Collective, CollectiveKind};
use crate::dim::Dim;
use crate::graph::{Graph, GraphOutput, GroupDef, GroupMembers, InputKind, OutputKind};
use crate::ids::{GroupId, ValueId};
use crate::infer;
use crate::op::Op;
use crate::symbol::{Symbol, SymbolId};
use crate::tensor::Tensor;
use crate::text::with_symbol_names;
use crate::types::TensorType;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("%{name}: {message}")]
pub struct BuildError {
    /// The name of the node's first result.
    pub name: String,
    pub message: String,
}

#[derive(Clone, Debug, Default)]
pub struct GraphBuilder {
    graph: Graph,
    /// For each requested name, the number of values with that name or a suffixed form of it.
    taken: HashMap<String, usize>,
}

impl GraphBuilder {
    /// Starts an empty graph for `ranks` ranks (`None` leaves the number open).
    pub fn new(name: impl Into<String>, ranks: Option<u32>) -> Self {
        let mut graph = Graph::new(name);
        graph.ranks = ranks;
        GraphBuilder { graph, taken: HashMap::new() }
    }

    pub fn from_graph(graph: Graph) -> Self {
        let name_counts = graph.values.values().map(|v| (v.name.clone(), 1)).collect();
        GraphBuilder { graph, taken: name_counts }
    }

    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The graph so far, for changes that have no method here (renaming, custom ops).
    pub fn graph_mut(&mut self) -> &mut Graph {
        &mut self.graph
    }

    /// Returns the graph. The caller verifies it.
    pub fn finish(self) -> Graph {
        self.graph
    }

    pub fn symbol(&mut self, name: impl Into<String>, min: i64, max: i64) -> SymbolId {
        self.graph.symbols.push(Symbol { name: name.into(), min, max, alias: None })
    }

    /// The group with this name. It is added with these members if it is new.
    pub fn group(&mut self, name: &str, members: GroupMembers) -> GroupId {
        let existing = self.graph.groups.iter().find(|(_, g)| g.name == name).map(|(id, _)| id);
        match existing {
            Some(id) => id,
            None => self.graph.groups.push(GroupDef { name: name.to_string(), members }),
        }
    }

    pub fn input(
        &mut self,
        kind: InputKind,
        name: &str,
        source: &str,
        ty: TensorType,
        data: Option<Arc<Tensor>>,
    ) -> ValueId {
        let name = self.unique_name(name);
        self.graph.add_input(kind, name, source, ty, data)
    }

    /// Adds a node whose op determines the result types; returns all results. Fails if the operands break the
    /// op's typing rule, if the op's result type must be declared, or if an operand, a group or a custom op is
    /// not in this graph.
    pub fn node(&mut self, name: &str, op: Op, inputs: &[ValueId]) -> Result<Vec<ValueId>, BuildError> {
        self.check_references(name, &op, inputs)?;
        let operands: Vec<&TensorType> = inputs.iter().map(|&v| self.graph.ty(v)).collect();
        let n = self.group_size_of(&op);
        let types = infer::infer_types(&op, &operands, n)
            .map_err(|message| self.error(name, &message))?
            .ok_or_else(|| self.error(name, "the result type of this op must be declared"))?;
        Ok(self.push(name, op, inputs, types))
    }

    /// Adds a node with declared result types; returns all results. Fails if operands or results break the op's
    /// typing rule, or if an operand, a group or a custom op is not in this graph.
    pub fn node_as(
        &mut self,
        name: &str,
        op: Op,
        inputs: &[ValueId],
        types: Vec<TensorType>,
    ) -> Result<Vec<ValueId>, BuildError> {
        self.check_references(name, &op, inputs)?;
        let operands: Vec<&TensorType> = inputs.iter().map(|&v| self.graph.ty(v)).collect();
        let results: Vec<&TensorType> = types.iter().collect();
        infer::check_types(&op, &operands, &results, self.group_size_of(&op))
            .map_err(|message| self.error(name, &message))?;
        Ok(self.push(name, op, inputs, types))
    }

    fn error(&self, name: &str, message: &str) -> BuildError {
        let message = with_symbol_names(message, &self.graph.symbols);
        BuildError { name: name.to_string(), message }
    }

    /// [`node`](Self::node) for an op with one result.
    pub fn op(&mut self, name: &str, op: Op, inputs: &[ValueId]) -> Result<ValueId, BuildError> {
        self.node(name, op, inputs).map(|r| r[0])
    }

    /// [`node_as`](Self::node_as) for an op with one result.
    pub fn op_as(
        &mut self,
        name: &str,
        op: Op,
        inputs: &[ValueId],
        ty: TensorType,
    ) -> Result<ValueId, BuildError> {
        self.node_as(name, op, inputs, vec![ty]).map(|r| r[0])
    }

    /// Fails if the numbers of elements differ, or if the operand is not in this graph.
    pub fn reshape(&mut self, name: &str, x: ValueId, shape: Vec<Dim>) -> Result<ValueId, BuildError> {
        self.check_references(name, &Op::Reshape, &[x])?;
        let ty = TensorType::new(self.graph.ty(x).dtype, shape);
        self.op_as(name, Op::Reshape, &[x], ty)
    }

    /// Adds a collective without a variant.
    pub fn collective(
        &mut self,
        name: &str,
        kind: CollectiveKind,
        group: GroupId,
        inputs: &[ValueId],
    ) -> Result<Vec<ValueId>, BuildError> {
        self.node(name, Op::Collective(Collective { kind, group, variant: None }), inputs)
    }

    /// Gives a value this name, or a name with this prefix if the name is taken.
    pub fn rename(&mut self, value: ValueId, name: &str) -> Result<(), BuildError> {
        self.check_references(name, &Op::Copy, &[value])?;
        self.graph.values[value].name = self.unique_name(name);
        Ok(())
    }

    /// Declares a returned output. The verifier checks that the value is in this graph.
    pub fn output(&mut self, value: ValueId) {
        self.graph.outputs.push(GraphOutput { value, kind: OutputKind::Returned });
    }

    /// Checks that all ids that a node refers to are in this graph, except symbols of dims, which the verifier
    /// checks.
    fn check_references(&self, name: &str, op: &Op, inputs: &[ValueId]) -> Result<(), BuildError> {
        let graph = &self.graph;
        if let Some(v) = inputs.iter().find(|&&v| graph.values.get(v).is_none()) {
            return Err(self.reference_error(name, "value", v, graph.values.len()));
        }
        if let Some(group) = op.group().filter(|group| graph.groups.get(*group).is_none()) {
            return Err(self.reference_error(name, "group", &group, graph.groups.len()));
        }
        match op {
            Op::Custom(id) if graph.customs.get(*id).is_none() => {
                Err(self.reference_error(name, "custom op", id, graph.customs.len()))
            }
            _ => Ok(()),
        }
    }

    fn reference_error(
        &self,
        name: &str,
        what: &str,
        id: &dyn std::fmt::Display,
        count: usize,
    ) -> BuildError {
        let plural = if count == 1 { "" } else { "s" };
        self.error(name, &format!("{what} {id} is out of range: the graph has {count} {what}{plural}"))
    }

    fn group_size_of(&self, op: &Op) -> Option<u32> {
        op.group().and_then(|group| self.graph.group_size(group))
    }

    fn push(&mut self, name: &str, op: Op, inputs: &[ValueId], types: Vec<TensorType>) -> Vec<ValueId> {
        let results: Vec<(String, TensorType)> = types
            .into_iter()
            .enumerate()
            .map(|(i, ty)| {
                (self.unique_name(&if i == 0 { name.to_string() } else { format!("{name}.{i}") }), ty)
            })
            .collect();
        let node = self.graph.add_node(op, inputs.to_vec(), results);
        self.graph.nodes[node].outputs.clone()
    }

    /// An unused name: `wanted` with all characters except letters, digits, `_` and `.` replaced, followed by a
    /// number if it is taken.
    fn unique_name(&mut self, wanted: &str) -> String {
        let mut base: String = wanted
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == '.' { c } else { '_' })
            .collect();
        if base.is_empty() || base.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
            base.insert(0, '_');
        }
        let mut name = base.clone();
        while self.taken.contains_key(&name) {
            let n = self.taken.get_mut(&base).map_or(1, |n| {
                *n += 1;
                *n
            });
            name = format!("{base}.{n}");
        }
        self.taken.insert(name.clone(), 1);
        name
    }
}
