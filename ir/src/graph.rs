//! The program: values, nodes, inputs, outputs and groups. Ids and symbols are in [`crate::ids`] and
//! [`crate::symbol`].
//!
//! Nodes are in program order, which is a topological order: a node's operands are inputs or results of earlier
//! nodes. The numbered invariants are in [`crate::verify`].

use std::borrow::Cow;
use std::sync::Arc;

use indexmap::IndexMap;

use crate::dispatch_form::Dispatch;
use crate::entity::EntityMap;
use crate::ids::{CustomId, GroupId, InputId, NodeId, ValueId};
use crate::op::Op;
use crate::symbol::SymbolTable;
use crate::tensor::Tensor;
use crate::types::TensorType;

/// The members of a group: cells of equal size. Every rank belongs to exactly one cell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GroupMembers {
    World,
    /// A partition of the ranks. The position within a cell is the rank within the group.
    Cells(Vec<Vec<u32>>),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupDef {
    /// A unique name.
    pub name: String,
    pub members: GroupMembers,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum InputKind {
    /// The caller passes it for each run.
    Argument,
    /// The caller passes it once, before the first run: a weight or a buffer. It may differ between ranks.
    Parameter,
    /// Part of the program.
    Constant,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GraphInput {
    pub value: ValueId,
    pub kind: InputKind,
    /// The name in the program's origin (`l.0.qkv.weight`), or empty. See [`Graph::checkpoint_name`].
    pub source: String,
    /// The data of a constant; `None` for all other kinds.
    pub data: Option<Arc<Tensor>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OutputKind {
    Returned,
    /// Replaces the content of an input; the next run reads the new content.
    Mutates(InputId),
    /// The number of elements of another output along an axis, a scalar of i64. The elements of that output after them are
    /// unspecified, and interfaces leave them out ([`Graph::cut_outputs`]).
    Length {
        output: usize,
        axis: usize,
    },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GraphOutput {
    pub value: ValueId,
    pub kind: OutputKind,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ValueDef {
    Input(InputId),
    /// The `usize`-th result of a node.
    Node(NodeId, usize),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Value {
    /// A unique name, an identifier that may contain dots.
    pub name: String,
    pub ty: TensorType,
    pub def: ValueDef,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    pub op: Op,
    pub inputs: Vec<ValueId>,
    /// The results, at least one.
    pub outputs: Vec<ValueId>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CustomOp {
    /// A unique name, `namespace::op`.
    pub name: String,
    pub symmetric_operands: Vec<usize>,
    /// Positions of the results that must lie in the symmetric arena.
    pub symmetric_results: Vec<usize>,
    /// The group whose peers it accesses, if any. Such an op has an entry barrier, a rendezvous of the group
    /// and an exit barrier.
    pub group: Option<GroupId>,
}

/// A tensor program that every rank runs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Graph {
    pub name: String,
    /// The number of ranks; `None` while the program leaves it open.
    pub ranks: Option<u32>,
    pub symbols: SymbolTable,
    pub groups: EntityMap<GroupId, GroupDef>,
    pub customs: EntityMap<CustomId, CustomOp>,
    pub inputs: EntityMap<InputId, GraphInput>,
    pub values: EntityMap<ValueId, Value>,
    /// All nodes, in program order.
    pub nodes: EntityMap<NodeId, Node>,
    /// Sets of nodes that run as one step, in program order. Every other node is a step. The results of a
    /// program do not depend on dispatches, and passes drop them.
    pub dispatches: Vec<Dispatch>,
    pub outputs: Vec<GraphOutput>,
}

impl Graph {
    pub fn new(name: impl Into<String>) -> Self {
        Graph { name: name.into(), ..Graph::default() }
    }

    /// A graph of the same name, ranks, symbols, groups and custom ops, without inputs and nodes.
    pub fn without_nodes(&self) -> Self {
        Graph {
            ranks: self.ranks,
            symbols: self.symbols.clone(),
            groups: self.groups.clone(),
            customs: self.customs.clone(),
            ..Graph::new(self.name.clone())
        }
    }

    pub fn add_input(
        &mut self,
        kind: InputKind,
        name: impl Into<String>,
        source: impl Into<String>,
        ty: TensorType,
        data: Option<Arc<Tensor>>,
    ) -> ValueId {
        let id = <InputId as crate::entity::Entity>::new(self.inputs.len());
        let value = self.values.push(Value { name: name.into(), ty, def: ValueDef::Input(id) });
        self.inputs.push(GraphInput { value, kind, source: source.into(), data });
        value
    }

    /// Adds a node with results of these names and types. A scalar attribute of the op is converted to the
    /// dtype of the first operand, or of the first result if there is no operand.
    pub fn add_node(&mut self, op: Op, inputs: Vec<ValueId>, results: Vec<(String, TensorType)>) -> NodeId {
        let id = <NodeId as crate::entity::Entity>::new(self.nodes.len());
        let operand = inputs.first().map(|&v| self.ty(v).dtype);
        let op = match operand.or_else(|| Some(results.first()?.1.dtype)) {
            Some(dtype) => op.with_scalar_dtype(dtype),
            None => op,
        };
        let outputs = results
            .into_iter()
            .enumerate()
            .map(|(i, (name, ty))| self.values.push(Value { name, ty, def: ValueDef::Node(id, i) }))
            .collect();
        self.nodes.push(Node { op, inputs, outputs })
    }

    pub fn ty(&self, value: ValueId) -> &TensorType {
        &self.values[value].ty
    }

    /// The name of a value, without the leading `%`.
    pub fn value_name(&self, value: ValueId) -> &str {
        &self.values[value].name
    }

    /// The name of an input in checkpoint files: its source, or the name of its value if it has none.
    pub fn checkpoint_name<'g>(&'g self, input: &'g GraphInput) -> &'g str {
        if input.source.is_empty() { self.value_name(input.value) } else { &input.source }
    }

    /// The name of a node: that of its first result.
    pub fn node_name(&self, node: NodeId) -> &str {
        self.nodes[node].outputs.first().map_or("", |&v| self.value_name(v))
    }

    pub fn defining_node(&self, value: ValueId) -> Option<NodeId> {
        match self.values[value].def {
            ValueDef::Node(n, _) => Some(n),
            ValueDef::Input(_) => None,
        }
    }

    /// The op and the operands of the node that gives this value as its only result.
    pub fn definition(&self, value: ValueId) -> Option<(&Op, &[ValueId])> {
        let node = &self.nodes[self.defining_node(value)?];
        (node.outputs.len() == 1).then_some((&node.op, &node.inputs[..]))
    }

    /// The nodes that use each value, in program order, each once.
    pub fn users(&self) -> EntityMap<ValueId, Vec<NodeId>> {
        let mut users: EntityMap<ValueId, Vec<NodeId>> = EntityMap::filled(Vec::new(), self.values.len());
        for (id, node) in self.nodes.iter() {
            for &v in &node.inputs {
                if users[v].last() != Some(&id) {
                    users[v].push(id);
                }
            }
        }
        users
    }

    /// For each node the last collective among the node itself and the nodes that it depends on.
    pub fn last_collectives(&self) -> EntityMap<NodeId, Option<NodeId>> {
        let mut out: EntityMap<NodeId, Option<NodeId>> = EntityMap::filled(None, self.nodes.len());
        for (n, node) in self.nodes.iter() {
            let before = node.inputs.iter().filter_map(|&v| out[self.defining_node(v)?]).max();
            out[n] = if node.op.as_collective().is_some() { Some(n) } else { before };
        }
        out
    }

    /// The cells of a group: lists of ranks that partition all ranks. `None` while the number of ranks is open.
    pub fn cells(&self, group: GroupId) -> Option<Vec<Vec<u32>>> {
        match &self.groups[group].members {
            GroupMembers::World => Some(vec![(0..self.ranks?).collect()]),
            GroupMembers::Cells(cells) => Some(cells.clone()),
        }
    }

    /// For each rank its position within its cell of the group. `None` while the number of ranks is open.
    pub fn ranks_within_cells(&self, group: GroupId) -> Option<Vec<usize>> {
        let mut numbers = vec![0; self.ranks? as usize];
        for cell in self.cells(group)? {
            for (number, rank) in cell.into_iter().enumerate() {
                *numbers.get_mut(rank as usize)? = number;
            }
        }
        Some(numbers)
    }

    /// Whether all ranks of each cell of `within` have the same position in their cells of `group`. False while
    /// the number of ranks is open.
    pub fn has_equal_rank_within(&self, group: GroupId, within: GroupId) -> bool {
        let (Some(numbers), Some(cells)) = (self.ranks_within_cells(group), self.cells(within)) else {
            return false;
        };
        cells.iter().all(|cell| {
            let first = cell.first().and_then(|&rank| numbers.get(rank as usize));
            cell.iter().all(|&rank| numbers.get(rank as usize) == first)
        })
    }

    /// Whether two groups have the same cells, each with its ranks in the same order. False while the number of
    /// ranks is open.
    pub fn have_same_cells(&self, a: GroupId, b: GroupId) -> bool {
        let members = |group| &self.groups[group].members;
        if a == b || self.ranks.is_some() && members(a) == members(b) {
            return true;
        }
        // The cells of most groups differ in the first one. Only the others are sorted.
        let cell_of_first_rank = |group| match members(group) {
            GroupMembers::World => None,
            GroupMembers::Cells(cells) => cells.iter().find(|cell| cell.contains(&0)),
        };
        let may_differ = cell_of_first_rank(a).zip(cell_of_first_rank(b)).is_some_and(|(a, b)| a != b);
        !may_differ && self.sorted_cells(a).is_some_and(|cells| Some(cells) == self.sorted_cells(b))
    }

    /// The first group with these cells, in any order of the cells and with the ranks of each cell in this
    /// order.
    pub fn group_with_cells(&self, cells: &[Vec<u32>]) -> Option<GroupId> {
        let mut cells: Vec<Cow<'_, [u32]>> = cells.iter().map(Cow::from).collect();
        cells.sort_unstable();
        self.groups.keys().find(|&group| self.sorted_cells(group).as_ref() == Some(&cells))
    }

    fn sorted_cells(&self, group: GroupId) -> Option<Vec<Cow<'_, [u32]>>> {
        let mut cells: Vec<Cow<'_, [u32]>> = match &self.groups[group].members {
            GroupMembers::World => vec![Cow::Owned((0..self.ranks?).collect())],
            GroupMembers::Cells(cells) => cells.iter().map(Cow::from).collect(),
        };
        cells.sort_unstable();
        Some(cells)
    }

    /// The number of ranks in each cell of a group. `None` while the number of ranks is open.
    pub fn group_size(&self, group: GroupId) -> Option<u32> {
        match &self.groups[group].members {
            GroupMembers::World => self.ranks,
            GroupMembers::Cells(cells) => cells.first().map(|c| c.len() as u32),
        }
    }

    pub fn values_by_name(&self) -> IndexMap<&str, ValueId> {
        self.values.iter().map(|(id, v)| (v.name.as_str(), id)).collect()
    }
}
