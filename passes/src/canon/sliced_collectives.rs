//! Runs one collective of a value instead of several of its slices.
//!
//! ```text
//! f(x[..a]), f(x[a..])  =  f(x)[..a], f(x)[a..]
//! ```
//!
//! This holds for collectives that keep the positions along the axis of the slices ([`Op::axes`]). All operands are
//! there at the same time, so one collective starts no later than the first of several. It is formed if the slices
//! are adjacent, and if start-up dominates the time of the messages or the slices would have to be copied because
//! their axis is not the leading one.
//!
//! The pass depends on all readers of a value, so it is not a rule of the rewriter.

use std::collections::{BTreeMap, BTreeSet};

use symmc_ir::{Collective, Dim, Graph, NodeId, Op, ResultAxis, TensorType, ValueId};

use super::collectives::MAX_JOINED_BYTES;
use crate::rewrite::{ReplacedCollective, UniqueNames, ValueMap, copy_inputs, copy_node, copy_outputs};

/// The name of the rule in reports.
const RULE: &str = "collectives_of_slices";

/// The graph with one collective for adjacent slices, and the collectives that it replaces.
pub struct JoinedSlices {
    pub graph: Graph,
    pub replaced: Vec<ReplacedCollective>,
}

/// A collective of a slice, or of the reshape of one.
struct SlicedCollective {
    node: NodeId,
    start: Dim,
    len: Dim,
}

/// Adjacent slices of one value whose collectives become one.
struct AdjacentSlices {
    x: ValueId,
    axis: usize,
    members: Vec<SlicedCollective>,
}

impl AdjacentSlices {
    /// The type of the slice that covers all members.
    fn ty(&self, graph: &Graph) -> TensorType {
        let mut ty = graph.ty(self.x).clone();
        ty.shape[self.axis] =
            self.members.iter().fold(Dim::from(0), |total, member| total + member.len.clone());
        ty
    }

    fn pays(&self, graph: &Graph) -> bool {
        self.members.len() > 1
            && (self.axis > 0 || self.ty(graph).bytes().upper_bound(&graph.symbols) <= MAX_JOINED_BYTES)
    }
}

/// Returns the graph with one collective for adjacent slices of a value, or `None` if there are none.
pub fn join_sliced_collectives(graph: &Graph) -> Option<JoinedSlices> {
    let joined: Vec<AdjacentSlices> =
        adjacent_slices(graph).into_iter().filter(|set| set.pays(graph)).collect();
    if joined.is_empty() {
        return None;
    }
    let mut copy = JoiningCopy::new(graph);
    let set_of_node: BTreeMap<NodeId, usize> = joined
        .iter()
        .enumerate()
        .flat_map(|(i, set)| set.members.iter().map(move |member| (member.node, i)))
        .collect();
    let mut done = BTreeSet::new();
    for (n, node) in graph.nodes.iter() {
        match set_of_node.get(&n) {
            Some(&set) if done.insert(set) => copy.join(&joined[set])?,
            Some(_) => {}
            None => {
                copy_node(graph, node, &mut copy.to, &mut copy.map)?;
            }
        }
    }
    copy.to.outputs = copy_outputs(graph, &copy.map)?;
    Some(JoinedSlices { graph: copy.to, replaced: copy.replaced })
}

/// All sets of adjacent slices, each in the order of its slices.
fn adjacent_slices(graph: &Graph) -> Vec<AdjacentSlices> {
    let mut sets: BTreeMap<(ValueId, usize), Vec<(&Collective, Vec<SlicedCollective>)>> = BTreeMap::new();
    for (node, _) in graph.nodes.iter() {
        let Some((collective, x, axis, member)) = sliced_collective(graph, node) else { continue };
        let of_value = sets.entry((x, axis)).or_default();
        match of_value.iter_mut().find(|(known, _)| *known == collective) {
            Some((_, members)) => members.push(member),
            None => of_value.push((collective, vec![member])),
        }
    }
    let mut out = Vec::new();
    for ((x, axis), of_value) in sets {
        for (_, mut members) in of_value {
            while !members.is_empty() {
                out.push(AdjacentSlices { x, axis, members: take_adjacent(&mut members) });
            }
        }
    }
    out
}

/// Takes the longest row of adjacent slices that begins with a slice that follows no other.
fn take_adjacent(members: &mut Vec<SlicedCollective>) -> Vec<SlicedCollective> {
    let end = |member: &SlicedCollective| member.start.clone() + member.len.clone();
    let follows_none = |member: &&SlicedCollective| members.iter().all(|other| end(other) != member.start);
    let mut start = members.iter().find(follows_none).unwrap_or(&members[0]).start.clone();
    let mut row = Vec::new();
    while let Some(next) = members.iter().position(|member| member.start == start) {
        let member = members.remove(next);
        start = end(&member);
        row.push(member);
    }
    row
}

/// The collective of a node, and the value, axis and positions of the slice that it communicates.
fn sliced_collective(graph: &Graph, n: NodeId) -> Option<(&Collective, ValueId, usize, SlicedCollective)> {
    let node = &graph.nodes[n];
    let (Op::Collective(collective), &[operand]) = (&node.op, &node.inputs[..]) else { return None };
    let sliced = match graph.definition(operand)? {
        (Op::Reshape, &[x]) if collective.kind.facts().preserves_positions() => x,
        _ => operand,
    };
    let (&Op::Slice { axis, ref start, step: 1 }, &[x]) = graph.definition(sliced)? else { return None };
    let axes = graph.node_axes(node);
    let keeps_positions = sliced != operand || axes.results.get(axis) == Some(&ResultAxis::Independent);
    let len = graph.ty(sliced).shape[axis].clone();
    keeps_positions.then(|| (collective, x, axis, SlicedCollective { node: n, start: start.clone(), len }))
}

struct JoiningCopy<'g> {
    from: &'g Graph,
    to: Graph,
    map: ValueMap,
    names: UniqueNames,
    replaced: Vec<ReplacedCollective>,
}

impl JoiningCopy<'_> {
    fn new(from: &Graph) -> JoiningCopy<'_> {
        let (to, map) = copy_inputs(from);
        let mut names = UniqueNames::default();
        from.values.values().for_each(|value| names.reserve(&value.name));
        JoiningCopy { from, to, map, names, replaced: Vec::new() }
    }

    /// Adds the collective of all slices, and the results of its members as slices of its result.
    fn join(&mut self, set: &AdjacentSlices) -> Option<()> {
        let first = set.members.first()?;
        let name = self.from.node_name(first.node);
        let start = first.start.clone();
        let mut ty = set.ty(self.from);
        let slice = Op::Slice { axis: set.axis, start: start.clone(), step: 1 };
        let operand_name = self.names.unique(&format!("{name}.slices"));
        let operand = self.add(slice, self.map[set.x]?, operand_name, ty.clone());
        let collective = self.from.nodes[first.node].op.clone();
        if !collective.as_collective()?.kind.facts().preserves_positions() {
            let result = *self.from.nodes[first.node].outputs.first()?;
            ty.shape[0] = self.from.ty(result).shape[0].clone();
        }
        let joined_name = self.names.unique(&format!("{name}.joined"));
        let joined = self.add(collective, operand, joined_name, ty.clone());
        for member in &set.members {
            let slice = Op::Slice { axis: set.axis, start: member.start.clone() - start.clone(), step: 1 };
            let own_name = self.from.node_name(member.node);
            let mut own_type = ty.clone();
            own_type.shape[set.axis] = member.len.clone();
            let slice_name = self.names.unique(&format!("{own_name}.own"));
            let own = self.add(slice, joined, slice_name, own_type);
            let result = *self.from.nodes[member.node].outputs.first()?;
            let result_type = self.from.ty(result).clone();
            self.map[result] = Some(self.add(Op::Reshape, own, own_name.to_string(), result_type));
            self.replaced.push(ReplacedCollective {
                collective: own_name.to_string(),
                rule: RULE,
                what: "one collective of a value replaces those of its slices".into(),
                by: vec![self.to.value_name(joined).to_string()],
            });
        }
        Some(())
    }

    fn add(&mut self, op: Op, x: ValueId, name: String, ty: TensorType) -> ValueId {
        let node = self.to.add_node(op, vec![x], vec![(name, ty)]);
        self.to.nodes[node].outputs[0]
    }
}
