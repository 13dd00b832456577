//! Makes the planned program: the lowered program with the copies that placement forces.
//!
//! A value must be symmetric if the variant of a collective requires it. If a node defines the value, the node
//! produces it in the symmetric arena. Otherwise a copy is inserted for:
//! - a symmetric operand that is an argument (or a view of one) and is not bound,
//! - a symmetric operand that is a part of an output,
//! - an operand of a collective that is not contiguous in its base, or not aligned although peers access it,
//! - an output that is an input, a view, a value that is returned twice, or a value in the symmetric arena.
//!
//! A value is copied once, even if several collectives need the copy.

use std::collections::{BTreeSet, HashMap, HashSet};

use symmc_dispatch::DispatchUnit;
use symmc_ir::entity::Entity;
use symmc_ir::machine::MachineProfile;
use symmc_ir::{
    Dim, Dispatch, DispatchForm, EntityMap, Graph, GraphOutput, InputId, InputKind, Node, NodeId, Op,
    TensorType, Value, ValueId,
};
use symmc_plan::{CopyReason, PEER_ALIGN};

use crate::error::Result;
use crate::steps::{input_of, peer_contract, symmetric_positions};
use crate::views::ValueViews;

#[derive(Clone, PartialEq, Debug)]
pub struct PreparedGraph {
    pub graph: Graph,
    /// The value whose memory each value uses.
    pub base: EntityMap<ValueId, ValueId>,
    /// Whether a value is all of its base in row-major order.
    pub covers_base: EntityMap<ValueId, bool>,
    /// The bytes of each base, and 0 for views.
    pub bytes: EntityMap<ValueId, Dim>,
    /// The bases that must lie in the symmetric arena, including bound inputs.
    pub symmetric: EntityMap<ValueId, bool>,
    pub copies: Vec<InsertedCopy>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InsertedCopy {
    pub value: ValueId,
    pub source: ValueId,
    pub reason: CopyReason,
    /// The input that could be bound to avoid the copy.
    pub bind: Option<usize>,
}

/// The indices of the inputs that some collective needs in the symmetric arena and that may lie there. These
/// are parameters, constants, and the arguments in `bind`.
pub fn bound_inputs(graph: &Graph, views: &ValueViews, bind: &BTreeSet<InputId>) -> Result<BTreeSet<usize>> {
    let mut bound = BTreeSet::new();
    for (id, node) in graph.nodes.iter() {
        let peers = peer_contract(graph, id)?;
        for position in symmetric_positions(graph, id, peers.as_ref()).0 {
            let Some(&v) = node.inputs.get(position) else { continue };
            let Some(input) = input_of(graph, views.base(v)) else { continue };
            if !is_peer_reachable(graph, views, v) && peers.is_some() {
                continue;
            }
            if graph.inputs[input].kind != InputKind::Argument || bind.contains(&input) {
                bound.insert(input.index());
            }
        }
    }
    Ok(bound)
}

/// Inserts the copies and marks the values that must be symmetric.
pub fn prepare(graph: &Graph, views: &ValueViews, bound: &BTreeSet<usize>) -> Result<PreparedGraph> {
    let mut work = CopyInserter {
        graph,
        bound,
        outputs: graph.outputs.iter().map(|o| o.value).collect(),
        symmetric: EntityMap::filled(false, graph.values.len()),
        operand_copies: Vec::new(),
        views,
    };
    for (id, node) in graph.nodes.iter() {
        work.mark_symmetric(id, node)?;
    }
    Ok(work.build())
}

/// Whether peers can access a view: it is contiguous and starts at a multiple of [`PEER_ALIGN`] bytes of its
/// base.
fn is_peer_reachable(graph: &Graph, views: &ValueViews, value: ValueId) -> bool {
    let start = views.offset(value) * Dim::from(graph.ty(value).dtype.size() as i64);
    views.contiguous(graph, value) && start.is_divisible_by(PEER_ALIGN)
}

struct CopyInserter<'a> {
    graph: &'a Graph,
    bound: &'a BTreeSet<usize>,
    outputs: HashSet<ValueId>,
    views: &'a ValueViews,
    symmetric: EntityMap<ValueId, bool>,
    /// The operands to copy, in order of node and position.
    operand_copies: Vec<OperandCopy>,
}

struct OperandCopy {
    node: NodeId,
    position: usize,
    symmetric: bool,
    reason: CopyReason,
    bind: Option<usize>,
}

impl CopyInserter<'_> {
    /// Marks the operands and results of a node that must be symmetric, and records the operands that need a
    /// copy.
    fn mark_symmetric(&mut self, id: NodeId, node: &Node) -> Result<()> {
        let peers = peer_contract(self.graph, id)?;
        let (operands, results) = symmetric_positions(self.graph, id, peers.as_ref());
        for position in results {
            if let Some(&v) = node.outputs.get(position) {
                self.symmetric[v] = true;
            }
        }
        for (position, &v) in node.inputs.iter().enumerate() {
            let symmetric = operands.contains(&position);
            let contiguous = if peers.is_none() {
                true
            } else if symmetric {
                is_peer_reachable(self.graph, self.views, v)
            } else {
                self.views.contiguous(self.graph, v)
            };
            let copy = |reason, bind| OperandCopy { node: id, position, symmetric, reason, bind };
            let base = self.views.base(v);
            let input = input_of(self.graph, base).map(|i| i.index());
            if !contiguous {
                self.operand_copies.push(copy(CopyReason::Contiguous, None));
            } else if let (true, Some(i)) = (symmetric, input) {
                if self.bound.contains(&i) {
                    self.symmetric[base] = true;
                } else {
                    self.operand_copies.push(copy(CopyReason::SymmetricInput, Some(i)));
                }
            } else if symmetric {
                let is_partial = self.graph.ty(v).numel() != self.graph.ty(base).numel();
                if is_partial && self.outputs.contains(&base) && !self.symmetric[base] {
                    self.operand_copies.push(copy(CopyReason::SymmetricOutput, None));
                } else {
                    self.symmetric[base] = true;
                }
            }
        }
        Ok(())
    }

    /// Whether the value can be an output without a copy, unless it was returned before.
    fn returnable(&self, v: ValueId) -> bool {
        self.views.base(v) == v && !self.symmetric[v] && input_of(self.graph, v).is_none()
    }

    fn build(self) -> PreparedGraph {
        let graph = self.graph;
        let mut out = GraphRebuilder::new(graph);
        let mut returned = HashSet::new();
        // The output copies by the value that they copy. Early copies free symmetric memory. Late copies let a
        // view die in its output.
        let mut early: HashMap<ValueId, Vec<usize>> = HashMap::new();
        let mut late = Vec::new();
        for (k, output) in graph.outputs.iter().enumerate() {
            let v = output.value;
            if self.returnable(v) && returned.insert(v) {
                continue;
            }
            if self.symmetric[self.views.base(v)] && graph.defining_node(v).is_some() {
                early.entry(v).or_default().push(k);
            } else {
                late.push(k);
            }
        }
        let mut wanted = self.operand_copies.iter().peekable();
        let mut copy_of: HashMap<(ValueId, bool), ValueId> = HashMap::new();
        let mut copies: Vec<InsertedCopy> = Vec::new();
        let mut results: Vec<Option<ValueId>> = vec![None; graph.outputs.len()];
        for unit in units(graph) {
            let mut operands: Vec<(NodeId, Vec<ValueId>)> = Vec::with_capacity(unit.nodes.len());
            for &id in &unit.nodes {
                let node = &graph.nodes[id];
                let mut inputs: Vec<ValueId> = node.inputs.iter().map(|&v| out.map[v]).collect();
                while let Some(c) = wanted.next_if(|c| c.node == id) {
                    let v = node.inputs[c.position];
                    inputs[c.position] = *copy_of.entry((v, c.symmetric)).or_insert_with(|| {
                        let value = out.insert_copy(v, if c.symmetric { "symmetric" } else { "dense" });
                        copies.push(InsertedCopy {
                            value,
                            source: out.map[v],
                            reason: c.reason,
                            bind: c.bind,
                        });
                        value
                    });
                }
                operands.push((id, inputs));
            }
            out.copy_unit(unit.form, operands);
            for &v in unit.nodes.iter().flat_map(|&id| &graph.nodes[id].outputs) {
                for &k in early.get(&v).into_iter().flatten() {
                    results[k] = Some(out.insert_output_copy(v, &mut copies));
                }
            }
        }
        for k in late {
            results[k] = Some(out.insert_output_copy(graph.outputs[k].value, &mut copies));
        }
        let outputs = graph.outputs.iter().zip(results);
        out.graph.outputs = outputs
            .map(|(o, copy)| GraphOutput { value: copy.unwrap_or(out.map[o.value]), kind: o.kind })
            .collect();
        let symmetric = copy_of.iter().filter(|((_, s), _)| *s).map(|(_, &value)| value).collect();
        self.finish(out, copies, symmetric)
    }

    /// Transfers the properties of the old values to the new graph. Copies are bases that are not views. The
    /// copies in `symmetric_copies` lie in the symmetric arena.
    fn finish(
        &self,
        out: GraphRebuilder<'_>,
        copies: Vec<InsertedCopy>,
        symmetric_copies: Vec<ValueId>,
    ) -> PreparedGraph {
        let GraphRebuilder { graph, map, .. } = out;
        let mut symmetric = EntityMap::filled(false, graph.values.len());
        let mut base: EntityMap<ValueId, ValueId> = graph.values.keys().collect();
        let mut covers_base = EntityMap::filled(true, base.len());
        let mut bytes = EntityMap::filled(Dim::from(0), base.len());
        for (v, &w) in map.iter() {
            bytes[w] = self.views.bytes(v).clone();
            symmetric[w] = self.symmetric[v];
            base[w] = map[self.views.base(v)];
            covers_base[w] = self.views.covers_base(self.graph, v);
        }
        for v in symmetric_copies {
            symmetric[v] = true;
        }
        for c in &copies {
            bytes[c.value] = graph.ty(c.value).bytes();
        }
        PreparedGraph { graph, base, covers_base, bytes, symmetric, copies }
    }
}

/// The nodes of a program in order. Collectives that run as one step form one unit.
fn units(graph: &Graph) -> Vec<DispatchUnit> {
    let mut sets = graph.dispatches.iter().filter(|d| d.form == DispatchForm::Collectives).peekable();
    let mut units: Vec<DispatchUnit> = Vec::with_capacity(graph.nodes.len());
    for id in graph.nodes.keys() {
        match sets.peek() {
            Some(set) if set.contains(id) => {
                if set.first == id {
                    units.push(DispatchUnit { form: Some(set.form), nodes: set.nodes().collect() });
                }
                sets.next_if(|set| set.last == id);
            }
            _ => units.push(DispatchUnit { form: None, nodes: vec![id] }),
        }
    }
    units
}

struct GraphRebuilder<'a> {
    old: &'a Graph,
    graph: Graph,
    /// The new value of each old value that was copied already.
    map: EntityMap<ValueId, ValueId>,
    names: HashSet<String>,
    /// The next number to append to each name that is taken.
    next: HashMap<String, usize>,
}

impl<'a> GraphRebuilder<'a> {
    fn new(old: &'a Graph) -> Self {
        let mut graph = copy_tables(old);
        let mut map = EntityMap::filled(<ValueId as Entity>::new(0), old.values.len());
        for (_, input) in old.inputs.iter() {
            let value = &old.values[input.value];
            let name = value.name.clone();
            let source = input.source.clone();
            map[input.value] =
                graph.add_input(input.kind, name, source, value.ty.clone(), input.data.clone());
        }
        GraphRebuilder { old, graph, map, names: HashSet::new(), next: HashMap::new() }
    }

    fn copy_node(&mut self, id: NodeId, operands: Vec<ValueId>) -> NodeId {
        let node = &self.old.nodes[id];
        let results = node.outputs.iter().map(|&v| {
            let Value { name, ty, .. } = &self.old.values[v];
            (name.clone(), ty.clone())
        });
        let new = self.graph.add_node(node.op.clone(), operands, results.collect());
        for (&v, &w) in node.outputs.iter().zip(&self.graph.nodes[new].outputs) {
            self.map[v] = w;
        }
        new
    }

    /// Copies nodes with their operands as adjacent nodes, and as a dispatch if they are one step of a form.
    fn copy_unit(&mut self, form: Option<DispatchForm>, nodes: Vec<(NodeId, Vec<ValueId>)>) {
        let new: Vec<NodeId> = nodes.into_iter().map(|(id, operands)| self.copy_node(id, operands)).collect();
        if let (Some(form), Some(&first), Some(&last)) = (form, new.first(), new.last()) {
            self.graph.dispatches.push(Dispatch { form, first, last });
        }
    }

    fn insert_copy(&mut self, of: ValueId, suffix: &str) -> ValueId {
        if self.names.is_empty() {
            self.names = self.old.values.values().map(|v| v.name.clone()).collect();
        }
        let base = format!("{}.{suffix}", self.old.value_name(of));
        let mut name = base.clone();
        // Numbers below the next one are taken, so that many copies of one value do not each search from the
        // start.
        let next = self.next.entry(base.clone()).or_insert(2);
        while !self.names.insert(name.clone()) {
            name = format!("{base}.{next}");
            *next += 1;
        }
        let ty: TensorType = self.old.ty(of).clone();
        let node = self.graph.add_node(Op::Copy, vec![self.map[of]], vec![(name, ty)]);
        self.graph.nodes[node].outputs[0]
    }

    fn insert_output_copy(&mut self, of: ValueId, copies: &mut Vec<InsertedCopy>) -> ValueId {
        let value = self.insert_copy(of, "out");
        copies.push(InsertedCopy { value, source: self.map[of], reason: CopyReason::Output, bind: None });
        value
    }
}

/// The tables of a graph that the planner does not change.
fn copy_tables(old: &Graph) -> Graph {
    Graph {
        name: old.name.clone(),
        ranks: old.ranks,
        symbols: old.symbols.clone(),
        groups: old.groups.clone(),
        customs: old.customs.clone(),
        ..Graph::default()
    }
}

/// Rebuilds a program with its nodes in another order.
struct NodeReorder<'a> {
    old: &'a Graph,
    out: GraphRebuilder<'a>,
    /// The new node of each old node that was appended already.
    done: EntityMap<NodeId, Option<NodeId>>,
}

impl NodeReorder<'_> {
    /// Appends a node after its dependences. Only views may be missing among these.
    fn append_node(&mut self, node: NodeId) {
        let mut stack = vec![node];
        while let Some(&id) = stack.last() {
            if self.done[id].is_some() {
                stack.pop();
                continue;
            }
            let before = stack.len();
            self.missing_nodes(id, &mut stack);
            if stack.len() == before {
                let operands = self.old.nodes[id].inputs.iter().map(|&v| self.out.map[v]).collect();
                self.done[id] = Some(self.out.copy_node(id, operands));
                stack.pop();
            }
        }
    }

    /// The dependences of a node that were not appended yet.
    fn missing_nodes(&self, id: NodeId, into: &mut Vec<NodeId>) {
        let defs = self.old.nodes[id].inputs.iter().filter_map(|&v| self.old.defining_node(v));
        into.extend(defs.filter(|&n| self.done[n].is_none()));
    }

    /// Appends the nodes of a unit next to each other, after all their dependences.
    fn append_unit(&mut self, unit: &DispatchUnit) {
        let mut missing = Vec::new();
        unit.nodes.iter().for_each(|&n| self.missing_nodes(n, &mut missing));
        missing.retain(|n| !unit.nodes.contains(n));
        missing.into_iter().for_each(|n| self.append_node(n));
        unit.nodes.iter().for_each(|&n| self.append_node(n));
        let (Some(form), Some(&first), Some(&last)) = (unit.form, unit.nodes.first(), unit.nodes.last())
        else {
            return;
        };
        if let (Some(first), Some(last)) = (self.done[first], self.done[last]) {
            self.out.graph.dispatches.push(Dispatch { form, first, last });
        }
    }
}

impl PreparedGraph {
    /// The same program with the dispatches that a machine supports.
    pub fn with_dispatches(self, profile: &MachineProfile) -> PreparedGraph {
        if profile.dispatches.is_none() {
            return self;
        }
        let ordered = match symmc_dispatch::batched_order(&self.graph, &self.base, profile) {
            Some(units) => self.reordered(&units),
            None => self,
        };
        let units = symmc_dispatch::dispatch_units(&ordered.graph, &ordered.base, profile);
        if units.iter().any(|u| u.form.is_some()) { ordered.reordered(&units) } else { ordered }
    }

    /// The same program with its nodes in this order. The order names all nodes except views outside of
    /// dispatches. Each view comes before the first node that needs it.
    pub fn reordered(&self, order: &[DispatchUnit]) -> PreparedGraph {
        let done = EntityMap::filled(None, self.graph.nodes.len());
        let mut reorder = NodeReorder { old: &self.graph, out: GraphRebuilder::new(&self.graph), done };
        order.iter().for_each(|unit| reorder.append_unit(unit));
        // Unused views come last.
        self.graph.nodes.keys().for_each(|n| reorder.append_node(n));
        let mut out = reorder.out;
        let outputs = self.graph.outputs.iter();
        out.graph.outputs = outputs.map(|o| GraphOutput { value: out.map[o.value], kind: o.kind }).collect();
        let len = out.graph.values.len();
        let mut base: EntityMap<ValueId, ValueId> = out.graph.values.keys().collect();
        let mut covers_base = EntityMap::filled(false, len);
        let mut symmetric = EntityMap::filled(false, len);
        let mut bytes = EntityMap::filled(Dim::from(0), len);
        for (old, &new) in out.map.iter() {
            base[new] = out.map[self.base[old]];
            covers_base[new] = self.covers_base[old];
            symmetric[new] = self.symmetric[old];
            bytes[new] = self.bytes[old].clone();
        }
        let copies = self.copies.iter().map(|c| InsertedCopy {
            value: out.map[c.value],
            source: out.map[c.source],
            ..c.clone()
        });
        let copies = copies.collect();
        PreparedGraph { graph: out.graph, base, covers_base, bytes, symmetric, copies }
    }
}
