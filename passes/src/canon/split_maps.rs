//! Computes values that are read only in parts part by part.
//!
//! The halves of a gate, and columns of gate and value that alternate, are slices of one product. If a bias
//! is added to the product first, the sum would be stored for the slices to read. If all readers of an
//! element-wise result are slices that do not overlap, the op is applied to slices of its operands instead.
//! It then joins the kernel of the slices' readers, and nothing is stored. Rows that are taken at positions
//! from data, such as a bias for each expert, are split in the same way.
//!
//! Every element is computed once as before, so bits stay the same. A value stays whole if its readers
//! store the parts anyway, or if the kernel of its operand would store it: the end of a norm or of a
//! collective.
//!
//! The analysis depends on all readers of a value, so it is not a rule of the rewriter, which sees a node
//! before its readers.

use std::collections::HashMap;

use symmc_ir::{Dim, EntityMap, Graph, Node, Op, ValueDef, ValueId};

use crate::rewrite::{ValueMap, copy_inputs, copy_node, copy_outputs};

/// The most parts of a value.
const MAX_PARTS: usize = 8;

/// Positions along an axis.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct AxisPart {
    axis: usize,
    start: Dim,
    len: Dim,
    step: i64,
}

impl AxisPart {
    /// The part that a node takes, if it is a slice.
    fn of_slice(graph: &Graph, node: &Node) -> Option<AxisPart> {
        let (Op::Slice { axis, start, step }, &[result]) = (&node.op, &node.outputs[..]) else { return None };
        let len = graph.ty(result).shape.get(*axis)?.clone();
        Some(AxisPart { axis: *axis, start: start.clone(), len, step: *step })
    }

    fn along(&self, axis: usize) -> AxisPart {
        AxisPart { axis, ..self.clone() }
    }

    fn is_disjoint_from(&self, other: &AxisPart, graph: &Graph) -> bool {
        if self.axis != other.axis || self.step != other.step {
            return false;
        }
        let distance = (self.start.clone() - other.start.clone()).as_const();
        let alternates = distance.is_some_and(|d| d.checked_rem(self.step).is_some_and(|rest| rest != 0));
        alternates || self.ends_before(other, graph) || other.ends_before(self, graph)
    }

    fn ends_before(&self, other: &AxisPart, graph: &Graph) -> bool {
        let end = self.start.clone() + self.len.clone() * Dim::from(self.step);
        self.step > 0 && end.provably_le(&other.start, &graph.symbols)
    }
}

/// How a value is read.
#[derive(Clone, PartialEq, Debug)]
enum Reads {
    Parts(Vec<AxisPart>),
    Whole,
}

impl Reads {
    fn add(&mut self, parts: &[AxisPart]) {
        let Reads::Parts(read_parts) = self else { return };
        for part in parts {
            if !read_parts.contains(part) {
                read_parts.push(part.clone());
            }
        }
    }
}

/// Returns the graph in which element-wise results that are read in parts are computed in these parts. `None` if
/// no result is read so.
pub fn split_maps(graph: &Graph) -> Option<Graph> {
    if !graph.nodes.values().any(|node| matches!(node.op, Op::Slice { .. })) {
        return None;
    }
    let split = find_split_values(graph);
    if !split.values().any(Option::is_some) {
        return None;
    }
    MapSplitter::new(graph, split).graph()
}

/// The parts in which values are computed; `None` for those that stay whole.
fn find_split_values(graph: &Graph) -> EntityMap<ValueId, Option<Vec<AxisPart>>> {
    let count = graph.values.len();
    let mut split: EntityMap<ValueId, Option<Vec<AxisPart>>> = EntityMap::filled(None, count);
    let mut reads: EntityMap<ValueId, Reads> = EntityMap::filled(Reads::Parts(Vec::new()), count);
    // Whether all readers of a value are element-wise, and there are some.
    let mut is_mapped: EntityMap<ValueId, Option<bool>> = EntityMap::filled(None, count);
    for output in &graph.outputs {
        reads[output.value] = Reads::Whole;
        is_mapped[output.value] = Some(false);
    }
    for node in graph.nodes.values().rev() {
        if let &[result] = &node.outputs[..]
            && let Reads::Parts(parts) = &reads[result]
            && can_split(graph, node, parts)
        {
            let result_parts = parts.clone();
            let axes = graph.node_axes(node);
            for (k, &operand) in node.inputs.iter().enumerate() {
                match axes.operand_axis(k, result_parts[0].axis) {
                    Some(axis) if node.op.is_element_wise() => {
                        let operand_parts: Vec<AxisPart> =
                            result_parts.iter().map(|part| part.along(axis)).collect();
                        reads[operand].add(&operand_parts);
                    }
                    _ => reads[operand] = Reads::Whole,
                }
            }
            split[result] = Some(result_parts);
        } else {
            let axis_part = AxisPart::of_slice(graph, node);
            let read_part = axis_part.filter(|_| node.outputs.iter().all(|&v| is_mapped[v] == Some(true)));
            for &operand in &node.inputs {
                match &read_part {
                    Some(part) => reads[operand].add(std::slice::from_ref(part)),
                    None => reads[operand] = Reads::Whole,
                }
            }
        }
        for &operand in &node.inputs {
            let others_mapped = is_mapped[operand].unwrap_or(true);
            is_mapped[operand] = Some(others_mapped && node.op.is_element_wise());
        }
    }
    split
}

/// Whether a node can be applied to parts of its result, and should be.
fn can_split(graph: &Graph, node: &Node, parts: &[AxisPart]) -> bool {
    let (Some(first), &[result]) = (parts.first(), &node.outputs[..]) else { return false };
    let ty = graph.ty(result);
    let disjoint = parts.len() <= MAX_PARTS
        && parts.iter().enumerate().all(|(i, a)| parts[..i].iter().all(|b| a.is_disjoint_from(b, graph)));
    let axes = graph.node_axes(node);
    let is_sliced = |operand: usize| axes.operand_axis(operand, first.axis).is_some();
    let supported = match node.op {
        Op::Take { axis: 0 } => is_sliced(0),
        _ => node.op.is_element_wise(),
    };
    let sliced: Vec<ValueId> =
        (0..node.inputs.len()).filter(|&k| is_sliced(k)).map(|k| node.inputs[k]).collect();
    let is_narrow = |&v: &ValueId| graph.ty(v).dtype.size() <= ty.dtype.size();
    disjoint
        && supported
        && !node.op.divides_integers(ty.dtype)
        && !sliced.is_empty()
        && sliced.iter().all(is_narrow)
        && (!node.op.is_element_wise() || sliced.iter().all(|&v| can_be_read_in_parts(graph, v)))
}

/// Whether nothing is lost if the element-wise reader of a value is applied to its slices: inputs and products
/// are stored as they are, and element-wise values join the kernel of the slices. Norms and collectives can
/// apply an op to their whole result only.
fn can_be_read_in_parts(graph: &Graph, mut value: ValueId) -> bool {
    loop {
        let ValueDef::Node(node, _) = graph.values[value].def else { return true };
        let node = &graph.nodes[node];
        match &node.op {
            op if op.is_view() => value = node.inputs[0],
            op => {
                return op.is_element_wise()
                    || matches!(op, Op::Take { axis: 0 } | Op::MatMul { .. } | Op::GroupedMatMul);
            }
        }
    }
}

struct MapSplitter<'g> {
    from: &'g Graph,
    split: EntityMap<ValueId, Option<Vec<AxisPart>>>,
    to: Graph,
    /// The new value for each value that stays whole, and for each slice of a split one.
    map: ValueMap,
    parts: HashMap<(ValueId, AxisPart), ValueId>,
}

impl<'g> MapSplitter<'g> {
    fn new(from: &'g Graph, split: EntityMap<ValueId, Option<Vec<AxisPart>>>) -> Self {
        let (to, map) = copy_inputs(from);
        MapSplitter { from, split, to, map, parts: HashMap::new() }
    }

    /// Builds the graph. Returns `None` if a value is missing, because the outputs would change.
    fn graph(mut self) -> Option<Graph> {
        let from = self.from;
        for node in from.nodes.values() {
            match node.outputs[..] {
                [result] if self.split[result].is_some() => self.split_node(node, result)?,
                _ => self.copy_node(node)?,
            }
        }
        self.to.outputs = copy_outputs(from, &self.map)?;
        Some(self.to)
    }

    fn split_node(&mut self, node: &Node, result: ValueId) -> Option<()> {
        let axes = self.from.node_axes(node);
        for part in self.split[result].clone()? {
            let mut inputs = Vec::with_capacity(node.inputs.len());
            for (k, &operand) in node.inputs.iter().enumerate() {
                inputs.push(match axes.operand_axis(k, part.axis) {
                    Some(axis) => self.part(operand, &part.along(axis))?,
                    None => self.map[operand]?,
                });
            }
            let mut ty = self.from.ty(result).clone();
            ty.shape[part.axis] = part.len.clone();
            let name = format!("{}.part", self.from.value_name(result));
            let new = self.to.add_node(node.op.clone(), inputs, vec![(name, ty)]);
            let value = *self.to.nodes[new].outputs.first()?;
            self.parts.insert((result, part), value);
        }
        Some(())
    }

    fn copy_node(&mut self, node: &Node) -> Option<()> {
        let split_operand = node.inputs.first().filter(|&&v| self.split[v].is_some());
        if let (Some(&operand), &[result]) = (split_operand, &node.outputs[..]) {
            let axis_part = AxisPart::of_slice(self.from, node)?;
            self.map[result] = Some(self.part(operand, &axis_part)?);
            return Some(());
        }
        copy_node(self.from, node, &mut self.to, &mut self.map).map(|_| ())
    }

    /// A part of a value. A value that stays whole is sliced.
    fn part(&mut self, value: ValueId, part: &AxisPart) -> Option<ValueId> {
        if let Some(&existing) = self.parts.get(&(value, part.clone())) {
            return Some(existing);
        }
        let source = self.map[value]?;
        let mut ty = self.from.ty(value).clone();
        *ty.shape.get_mut(part.axis)? = part.len.clone();
        let op = Op::Slice { axis: part.axis, start: part.start.clone(), step: part.step };
        let name = format!("{}.part", self.from.value_name(value));
        let new = self.to.add_node(op, vec![source], vec![(name, ty)]);
        let sliced = *self.to.nodes[new].outputs.first()?;
        self.parts.insert((value, part.clone()), sliced);
        Some(sliced)
    }
}
