//! Computes only the used part of values, for example the last token before the head of a prefill.
//!
//! The parts are found from the outputs backwards. A slice uses a part of its operand. An op passes a part on to
//! its operands if their axes are aligned with that of the part ([`Op::axes`]). Collectives pass parts on as
//! well, because the program is the same on all ranks. A value that is used in several parts is computed whole,
//! and so are results of the program.
//!
//! For a part of one shard of a gathered value, every rank gives that part of its own shard. The last token
//! is therefore also found if shards of the vocabulary are gathered, split and concatenated, or if shards of
//! tokens are gathered.
//!
//! The analysis depends on all readers of a value, so it is not a rule of the rewriter, which sees a node
//! before its readers.
//!
//! Bits stay the same except for orders of summation that a library or a collective chooses by size. Ops
//! that report bad data are not computed in part, so that a run still fails.

use std::collections::HashMap;

use symmc_ir::{
    CollectiveKind, Dim, EntityMap, Graph, Node, NodeId, Op, OpCost, RejectedData, ResultAxis, TensorType,
    ValueDef, ValueId,
};

use crate::rewrite::{ValueMap, copy_inputs, copy_outputs, keeps_effects};

/// A part of a value: `len` positions along an axis from `start` on, in each shard if the axis has several.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct DemandedSlice {
    axis: usize,
    start: Dim,
    len: Dim,
    shards: u32,
}

impl DemandedSlice {
    fn extent(&self) -> Dim {
        self.len.clone() * Dim::from(i64::from(self.shards))
    }

    /// The demand for the same positions along another axis.
    fn demand_along(&self, axis: usize) -> ValueDemand {
        ValueDemand::Part(DemandedSlice { axis, ..self.clone() })
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum ValueDemand {
    Nothing,
    Part(DemandedSlice),
    Whole,
}

impl ValueDemand {
    fn join(&mut self, other: ValueDemand) {
        match (&*self, &other) {
            (ValueDemand::Nothing, _) => *self = other,
            (_, ValueDemand::Nothing) => {}
            (a, b) if a == b => {}
            _ => *self = ValueDemand::Whole,
        }
    }
}

/// Returns the graph in which values are computed only in the part that is used, or `None` if all computed
/// values are used whole.
pub fn narrow_to_demanded(graph: &Graph) -> Option<Graph> {
    let used = compute_demands(graph);
    let computes_part = graph.nodes.values().any(|node| {
        let in_part = matches!(node.outputs[..], [v] if matches!(used[v], ValueDemand::Part(_)));
        in_part && !node.op.is_view()
    });
    if !computes_part {
        return None;
    }
    DemandRewriter::new(graph, used).graph()
}

/// The part of each value that is used. If an op cannot pass a part on, its result counts as used whole.
fn compute_demands(graph: &Graph) -> EntityMap<ValueId, ValueDemand> {
    let mut used = EntityMap::filled(ValueDemand::Nothing, graph.values.len());
    graph.outputs.iter().for_each(|o| used[o.value] = ValueDemand::Whole);
    for (id, node) in graph.nodes.iter().rev() {
        let needs = match node.outputs[..] {
            [result] => {
                let needs = match &used[result] {
                    ValueDemand::Part(part) => {
                        narrow_node(graph, node, part).map(|narrowed| narrowed.operands)
                    }
                    _ => None,
                };
                if needs.is_none() && used[result] != ValueDemand::Nothing {
                    used[result] = ValueDemand::Whole;
                }
                needs
            }
            ref results => {
                results.iter().for_each(|&v| used[v].join(ValueDemand::Whole));
                None
            }
        };
        let is_needed =
            keeps_effects(&node.op) || node.outputs.iter().any(|&v| used[v] != ValueDemand::Nothing);
        if !is_needed {
            continue;
        }
        let needs = needs.unwrap_or_else(|| operands_for_whole(graph, id));
        for (&v, need) in node.inputs.iter().zip(needs) {
            let need = match &need {
                ValueDemand::Part(part) => {
                    slice_of_each_shard(graph, v, part).map_or(need, |(_, part)| ValueDemand::Part(part))
                }
                _ => need,
            };
            used[v].join(need);
        }
    }
    for input in graph.inputs.values() {
        used[input.value] = ValueDemand::Whole;
    }
    used
}

fn operands_for_whole(graph: &Graph, id: NodeId) -> Vec<ValueDemand> {
    let node = &graph.nodes[id];
    match slice_of(graph, node) {
        Some(part) => vec![ValueDemand::Part(part)],
        None => vec![ValueDemand::Whole; node.inputs.len()],
    }
}

/// The part that a slice takes of its operand, if that is at most half of it.
fn slice_of(graph: &Graph, node: &Node) -> Option<DemandedSlice> {
    let Op::Slice { axis, start, step: 1 } = &node.op else { return None };
    let x = node.inputs.first()?;
    let result = node.outputs.first()?;
    let [extent, len] = [x, result].map(|&v| graph.ty(v).shape[*axis].clone());
    is_small(graph, &len, &extent).then(|| DemandedSlice {
        axis: *axis,
        start: start.clone(),
        len,
        shards: 1,
    })
}

fn is_small(graph: &Graph, len: &Dim, extent: &Dim) -> bool {
    extent.upper_bound(&graph.symbols) >= len.upper_bound(&graph.symbols).saturating_mul(2)
}

/// The number of shards that are gathered in a value, and the extent of each.
fn shards_of(graph: &Graph, v: ValueId) -> Option<(u32, &Dim)> {
    let ValueDef::Node(node, _) = graph.values[v].def else { return None };
    let node = &graph.nodes[node];
    match &node.op {
        Op::Collective(c) if c.kind == CollectiveKind::AllGather => {
            Some((graph.group_size(c.group)?, graph.ty(*node.inputs.first()?).shape.first()?))
        }
        _ => None,
    }
}

/// For a small part of one shard of a gathered value: the index of the shard, and the same part of each
/// shard.
fn slice_of_each_shard(graph: &Graph, v: ValueId, part: &DemandedSlice) -> Option<(u32, DemandedSlice)> {
    let (shards, extent) = shards_of(graph, v)?;
    if part.axis != 0 || part.shards != 1 || !is_small(graph, &part.len, extent) {
        return None;
    }
    let last = extent.clone() - part.len.clone();
    (0..shards).find_map(|shard| {
        let start = part.start.clone() - extent.clone() * Dim::from(i64::from(shard));
        let symbols = &graph.symbols;
        let is_inside = Dim::from(0).provably_le(&start, symbols) && start.provably_le(&last, symbols);
        is_inside.then(|| (shard, DemandedSlice { start, shards, ..part.clone() }))
    })
}

/// The part of a gathered value that corresponds to a part of its reshape, if the reshape has separate axes
/// for shards and their rows.
fn slice_of_split_shards(
    graph: &Graph,
    shape: &[Dim],
    part: &DemandedSlice,
    x: ValueId,
) -> Option<DemandedSlice> {
    let (shards, extent) = shards_of(graph, x)?;
    let is_split = part.axis == 1 && shape[0] == Dim::from(i64::from(shards)) && shape[1] == *extent;
    is_split.then(|| DemandedSlice { axis: 0, shards, ..part.clone() })
}

/// The computation of a part of a node's result.
struct NarrowedNode {
    op: Op,
    operands: Vec<ValueDemand>,
}

/// The computation of a part of the one result of a node; `None` if the result is computed whole.
fn narrow_node(graph: &Graph, node: &Node, part: &DemandedSlice) -> Option<NarrowedNode> {
    let ty = graph.ty(node.outputs[0]);
    let mut op = node.op.clone();
    let from_part = |op, part| Some(NarrowedNode { op, operands: vec![ValueDemand::Part(part)] });
    match &op {
        Op::Slice { axis, start, step: 1 } if *axis == part.axis => {
            let start = start.clone() + part.start.clone();
            return from_part(op, DemandedSlice { start, ..part.clone() });
        }
        Op::Slice { .. } => return None,
        Op::Collective(c) if c.kind == CollectiveKind::AllGather && part.shards > 1 => {
            return from_part(op, DemandedSlice { shards: 1, ..part.clone() });
        }
        _ => {}
    }
    if op.divides_integers(ty.dtype) || op.facts().rejected_data == RejectedData::Positions {
        return None;
    }
    let axes = graph.node_axes(node);
    match axes.results[part.axis] {
        ResultAxis::Independent => {}
        ResultAxis::Positional => op = op.starting_at(&part.start)?,
        ResultAxis::Joint if op == Op::Reshape => {
            return from_part(op, slice_of_split_shards(graph, &ty.shape, part, node.inputs[0])?);
        }
        ResultAxis::Joint => return None,
    }
    let is_product = !matches!(op.facts().cost, OpCost::Bytes | OpCost::Sort);
    let mut operands = Vec::with_capacity(node.inputs.len());
    for (operand, &v) in node.inputs.iter().enumerate() {
        let axis = axes.operand_axis(operand, part.axis);
        // Products keep all of their columns, so that matrices are read whole.
        if is_product && axis.is_some_and(|axis| axis + 1 == graph.ty(v).rank()) {
            return None;
        }
        operands.push(axis.map_or(ValueDemand::Whole, |axis| part.demand_along(axis)));
    }
    let is_of_operand = op == Op::Expand || operands.iter().any(|need| *need != ValueDemand::Whole);
    is_of_operand.then_some(NarrowedNode { op, operands })
}

struct DemandRewriter<'g> {
    from: &'g Graph,
    used: EntityMap<ValueId, ValueDemand>,
    to: Graph,
    /// The new value for each value: its used part, or the whole.
    map: ValueMap,
    slices: HashMap<(ValueId, DemandedSlice), ValueId>,
}

impl<'g> DemandRewriter<'g> {
    fn new(from: &'g Graph, used: EntityMap<ValueId, ValueDemand>) -> Self {
        let (to, map) = copy_inputs(from);
        DemandRewriter { from, used, to, map, slices: HashMap::new() }
    }

    /// Builds the graph. Returns `None` if a value is missing, because the outputs would change.
    fn graph(mut self) -> Option<Graph> {
        let from = self.from;
        for (id, node) in from.nodes.iter() {
            self.rewrite_node(id, node)?;
        }
        self.to.outputs = copy_outputs(from, &self.map)?;
        Some(self.to)
    }

    fn rewrite_node(&mut self, id: NodeId, node: &Node) -> Option<()> {
        if !keeps_effects(&node.op) && node.outputs.iter().all(|&v| self.used[v] == ValueDemand::Nothing) {
            return Some(());
        }
        let part = match node.outputs[..] {
            [v] => match &self.used[v] {
                ValueDemand::Part(part) => Some(part.clone()),
                ValueDemand::Nothing | ValueDemand::Whole => None,
            },
            _ => None,
        };
        let narrowed = part.as_ref().and_then(|part| narrow_node(self.from, node, part));
        let NarrowedNode { op, operands: needs } = narrowed.unwrap_or_else(|| NarrowedNode {
            op: node.op.clone(),
            operands: operands_for_whole(self.from, id),
        });
        if let (Op::Slice { .. }, [ValueDemand::Part(taken)], &[x], &[result]) =
            (&node.op, &needs[..], &node.inputs[..], &node.outputs[..])
        {
            self.map[result] = Some(self.demanded_slice(x, taken, self.from.value_name(result))?);
            return Some(());
        }
        let operands = node.inputs.iter().zip(&needs).map(|(&v, need)| self.operand(v, need));
        let inputs = operands.collect::<Option<Vec<ValueId>>>()?;
        let results = node.outputs.iter().map(|&v| {
            let mut ty = self.from.ty(v).clone();
            if let Some(part) = &part {
                ty.shape[part.axis] = part.extent();
            }
            (self.from.value_name(v).to_string(), ty)
        });
        let results: Vec<(String, TensorType)> = results.collect();
        let new = self.to.add_node(op, inputs, results);
        for (&old, &new) in node.outputs.iter().zip(&self.to.nodes[new].outputs) {
            self.map[old] = Some(new);
        }
        Some(())
    }

    fn operand(&mut self, v: ValueId, need: &ValueDemand) -> Option<ValueId> {
        match need {
            ValueDemand::Part(part) => {
                self.demanded_slice(v, part, &format!("{}.used", self.from.value_name(v)))
            }
            ValueDemand::Nothing | ValueDemand::Whole => self.map[v],
        }
    }

    /// A part of a value. Returns the new value if it is exactly this part, else a slice, which is added
    /// under `name` unless it exists.
    fn demanded_slice(&mut self, v: ValueId, part: &DemandedSlice, name: &str) -> Option<ValueId> {
        let found = self.map[v]?;
        if self.used[v] == ValueDemand::Part(part.clone()) {
            return Some(found);
        }
        if let Some(&slice) = self.slices.get(&(v, part.clone())) {
            return Some(slice);
        }
        let slice = match slice_of_each_shard(self.from, v, part) {
            Some((shard, kept)) if self.used[v] == ValueDemand::Part(kept.clone()) => {
                let start = part.len.clone() * Dim::from(i64::from(shard));
                self.slice(found, &DemandedSlice { start, ..part.clone() }, name)
            }
            _ if part.shards > 1 => self.slice_of_shards(found, part, name)?,
            _ => self.slice(found, part, name),
        };
        self.slices.insert((v, part.clone()), slice);
        Some(slice)
    }

    fn slice(&mut self, x: ValueId, part: &DemandedSlice, name: &str) -> ValueId {
        let mut shape = self.to.ty(x).shape.clone();
        shape[part.axis] = part.len.clone();
        self.view(x, Op::Slice { axis: part.axis, start: part.start.clone(), step: 1 }, shape, name)
    }

    /// A part of each shard of a gathered value that is computed whole.
    fn slice_of_shards(&mut self, x: ValueId, part: &DemandedSlice, name: &str) -> Option<ValueId> {
        let shape = self.to.ty(x).shape.clone();
        let (rows, rest) = shape.split_first()?;
        let shards = Dim::from(i64::from(part.shards));
        let split = [&[shards.clone(), rows.exact_div(&shards)?], rest].concat();
        let split = self.view(x, Op::Reshape, split, &format!("{name}.shards"));
        let taken = DemandedSlice { axis: 1, ..part.clone() };
        let taken = self.slice(split, &taken, &format!("{name}.rows"));
        let shape = [&[part.extent()], rest].concat();
        Some(self.view(taken, Op::Reshape, shape, name))
    }

    fn view(&mut self, x: ValueId, op: Op, shape: Vec<Dim>, name: &str) -> ValueId {
        let ty = TensorType::new(self.to.ty(x).dtype, shape);
        let node = self.to.add_node(op, vec![x], vec![(name.to_string(), ty)]);
        self.to.nodes[node].outputs[0]
    }
}
