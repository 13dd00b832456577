//! Builds a program in which sets of collectives are one collective each (see [`super::coalesce`]).
//!
//! The operands of the members become rows that lie next to each other, and one collective runs on all of
//! them:
//!
//! ```text
//! all_reduce(x), all_reduce(y)  →  r = all_reduce(concat(flat x, flat y)); r[..|x|], r[|x|..]
//! all_gather(x), all_gather(y)  →  r = all_gather(concat(flat x, flat y)) as [n, |x| + |y|]; r[:, ..|x|],
//! r[:, |x|..]
//! ```
//!
//! The operand of a reduce-scatter or an all-to-all has as many rows as ranks, and each rank receives one of
//! them. Parts are ordered by the alignment of their sizes, so that packing does not reduce the alignment of
//! any part.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use symmc_ir::entity::Entity;
use symmc_ir::{
    Collective, CollectiveKind, Dim, EntityMap, Graph, GraphOutput, NodeId, Op, TensorType, ValueId,
};

use super::coalesce::{CollectiveSet, MemberRows};
use crate::rewrite::{UniqueNames, copy_inputs, copy_node};

pub struct CoalescedProgram {
    pub graph: Graph,
    /// For each set, the name of the collective that replaces it.
    pub names: Vec<String>,
}

/// The largest relevant alignment, in bytes.
const MAX_ALIGNMENT_BYTES: i64 = 128;

/// Returns the program in which each of these sets is one collective. `None` if a member cannot be coalesced
/// or is in two sets, or if sets depend on each other.
pub fn coalesce_sets(graph: &Graph, sets: &[CollectiveSet]) -> Option<CoalescedProgram> {
    let mut set_of: Vec<Option<usize>> = vec![None; graph.nodes.len()];
    for (s, set) in sets.iter().enumerate() {
        for id in set {
            if set_of.get_mut(id.index())?.replace(s).is_some() {
                return None;
            }
        }
    }
    let mut builder = CoalescedBuilder::new(graph);
    let mut names = vec![String::new(); sets.len()];
    for unit in order_units(graph, sets, &set_of)? {
        match unit {
            NodeOrSet::Node(id) => builder.node(id)?,
            NodeOrSet::Set(s) => names[s] = builder.coalesce(&sets[s])?,
        }
    }
    for output in &graph.outputs {
        let value = builder.map[output.value]?;
        builder.to.outputs.push(GraphOutput { value, kind: output.kind });
    }
    Some(CoalescedProgram { graph: builder.to, names })
}

/// A node of the old program, or a set of nodes that becomes one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeOrSet {
    Node(NodeId),
    Set(usize),
}

/// The units in an executable order: program order, with each set in place of its last member. Nodes that
/// need a result of a set come after it. `None` if there is no such order.
pub fn order_units(
    graph: &Graph,
    sets: &[CollectiveSet],
    set_of: &[Option<usize>],
) -> Option<Vec<NodeOrSet>> {
    let mut missing: BTreeMap<NodeOrSet, usize> = BTreeMap::new();
    let mut users: BTreeMap<NodeOrSet, Vec<NodeOrSet>> = BTreeMap::new();
    for (id, node) in graph.nodes.iter() {
        let unit = unit_of_node(id, set_of);
        let count = missing.entry(unit).or_default();
        for def in node.inputs.iter().filter_map(|&v| graph.defining_node(v)) {
            *count += 1;
            users.entry(unit_of_node(def, set_of)).or_default().push(unit);
        }
    }
    let free = missing.iter().filter(|(_, count)| **count == 0);
    let mut ready: BinaryHeap<Reverse<(Option<NodeId>, NodeOrSet)>> =
        free.map(|(&unit, _)| Reverse((last_node(unit, sets), unit))).collect();
    let mut out = Vec::with_capacity(missing.len());
    while let Some(Reverse((_, unit))) = ready.pop() {
        out.push(unit);
        for &user in users.get(&unit).into_iter().flatten() {
            let count = missing.get_mut(&user)?;
            *count -= 1;
            if *count == 0 {
                ready.push(Reverse((last_node(user, sets), user)));
            }
        }
    }
    (out.len() == missing.len()).then_some(out)
}

fn unit_of_node(id: NodeId, set_of: &[Option<usize>]) -> NodeOrSet {
    set_of[id.index()].map_or(NodeOrSet::Node(id), NodeOrSet::Set)
}

fn last_node(unit: NodeOrSet, sets: &[CollectiveSet]) -> Option<NodeId> {
    match unit {
        NodeOrSet::Node(id) => Some(id),
        NodeOrSet::Set(s) => sets[s].iter().max().copied(),
    }
}

struct CoalescedBuilder<'a> {
    from: &'a Graph,
    to: Graph,
    names: UniqueNames,
    map: EntityMap<ValueId, Option<ValueId>>,
    /// The slices of single-row coalesced results, by the values that they replace.
    pieces: HashMap<ValueId, ResultSlice>,
}

/// Consecutive elements of a value with one axis.
struct ResultSlice {
    of: ValueId,
    start: Dim,
    count: Dim,
}

struct SetMember {
    /// The operand, in the new program.
    operand: ValueId,
    /// The result, in the old program.
    result: ValueId,
    /// Its elements in each row of the coalesced operand.
    columns: Dim,
    /// Its elements in each row of the coalesced result.
    received: Dim,
}

impl<'a> CoalescedBuilder<'a> {
    fn new(from: &'a Graph) -> Self {
        let (to, map) = copy_inputs(from);
        let mut names = UniqueNames::default();
        from.values.values().for_each(|value| names.reserve(&value.name));
        CoalescedBuilder { from, to, names, map, pieces: HashMap::new() }
    }

    fn node(&mut self, id: NodeId) -> Option<()> {
        copy_node(self.from, &self.from.nodes[id], &mut self.to, &mut self.map).map(|_| ())
    }

    fn add(&mut self, name: String, op: Op, inputs: Vec<ValueId>, ty: TensorType) -> Option<ValueId> {
        let node = self.to.add_node(op, inputs, vec![(name, ty)]);
        self.to.nodes[node].outputs.first().copied()
    }

    fn reshape(&mut self, name: String, value: ValueId, shape: Vec<Dim>) -> Option<ValueId> {
        let ty = TensorType::new(self.to.ty(value).dtype, shape);
        if *self.to.ty(value) == ty {
            return Some(value);
        }
        let name = self.names.unique(&name);
        self.add(name, Op::Reshape, vec![value], ty)
    }

    /// Adds one collective that replaces those of a set, and returns its name.
    fn coalesce(&mut self, set: &CollectiveSet) -> Option<String> {
        let &first = set.first()?;
        let collective = self.from.nodes[first].op.as_collective()?.clone();
        let rows = MemberRows::for_kind(&collective.kind, self.from.group_size(collective.group)?)?;
        let mut members =
            set.iter().map(|&id| self.member(id, &collective, rows)).collect::<Option<Vec<_>>>()?;
        members.sort_by_key(|m| Reverse(alignment(&m.columns, self.to.ty(m.operand))));
        let name = self.from.node_name(first).to_string();
        let joined = match self.existing_joined_operand(&mut members, rows) {
            Some(operand) => operand,
            None => self.concat(&name, &members, rows)?,
        };
        let columns = sum_dims(members.iter().map(|m| &m.received));
        let shape = match collective.kind {
            CollectiveKind::AllGather => vec![columns.clone() * Dim::from(rows.result)],
            CollectiveKind::ReduceScatter(_) => vec![Dim::from(1), columns.clone()],
            _ => rows_shape(rows.result, columns.clone()),
        };
        let ty = TensorType::new(self.to.ty(joined).dtype, shape);
        let coalesced = self.names.unique(&format!("{name}.coalesced"));
        let result = self.add(coalesced.clone(), Op::Collective(collective), vec![joined], ty)?;
        let result = self.reshape(format!("{name}.rows"), result, rows_shape(rows.result, columns))?;
        self.split_result(&members, rows, result)?;
        Some(coalesced)
    }

    fn member(&self, id: NodeId, collective: &Collective, rows: MemberRows) -> Option<SetMember> {
        let node = &self.from.nodes[id];
        let own_collective = node.op.as_collective()?;
        let same_cells = self.from.cells(own_collective.group) == self.from.cells(collective.group);
        let (&[operand], &[result]) = (&node.inputs[..], &node.outputs[..]) else { return None };
        let operand = self.map[operand]?;
        let columns = self.to.ty(operand).numel().exact_div(&Dim::from(rows.operand))?;
        let received = self.from.ty(result).numel().exact_div(&Dim::from(rows.result))?;
        (own_collective.kind == collective.kind && same_cells).then_some(SetMember {
            operand,
            result,
            columns,
            received,
        })
    }

    /// The result of an earlier set whose pieces, in order, are the operands. The members are then sorted by
    /// their pieces.
    fn existing_joined_operand(&self, members: &mut Vec<SetMember>, rows: MemberRows) -> Option<ValueId> {
        let operand_pieces = members.iter().map(|m| self.pieces.get(&m.operand));
        let pieces = operand_pieces.collect::<Option<Vec<&ResultSlice>>>().filter(|_| rows.operand == 1)?;
        let joined = pieces.first()?.of;
        let by_start: HashMap<&Dim, usize> =
            pieces.iter().enumerate().filter(|(_, p)| p.of == joined).map(|(k, p)| (&p.start, k)).collect();
        let mut positions = vec![None; pieces.len()];
        let mut end = Dim::from(0);
        for position in 0..pieces.len() {
            let &next = by_start.get(&end)?;
            if positions[next].replace(position).is_some() {
                return None;
            }
            end = end + pieces[next].count.clone();
        }
        if self.to.ty(joined).shape != [end] {
            return None;
        }
        let mut placed: Vec<(Option<usize>, SetMember)> =
            positions.into_iter().zip(std::mem::take(members)).collect();
        placed.sort_by_key(|(position, _)| *position);
        members.extend(placed.into_iter().map(|(_, member)| member));
        Some(joined)
    }

    /// Concatenates the operands along rows.
    fn concat(&mut self, name: &str, members: &[SetMember], rows: MemberRows) -> Option<ValueId> {
        let mut reshaped = Vec::with_capacity(members.len());
        for m in members {
            let name = format!("{}.flat", self.to.value_name(m.operand));
            reshaped.push(self.reshape(name, m.operand, rows_shape(rows.operand, m.columns.clone()))?);
        }
        let total = rows_shape(rows.operand, sum_dims(members.iter().map(|m| &m.columns)));
        let ty = TensorType::new(self.to.ty(*reshaped.first()?).dtype, total);
        let axis = ty.rank() - 1;
        let name = self.names.unique(&format!("{name}.parts"));
        self.add(name, Op::Concat { axis }, reshaped, ty)
    }

    /// Splits the coalesced result into the results of the members, each of which is a range of columns.
    fn split_result(&mut self, members: &[SetMember], rows: MemberRows, result: ValueId) -> Option<()> {
        let mut start = Dim::from(0);
        for m in members {
            let old = &self.from.values[m.result];
            let ty = TensorType::new(old.ty.dtype, rows_shape(rows.result, m.received.clone()));
            let slice = Op::Slice { axis: ty.rank() - 1, start: start.clone(), step: 1 };
            let value = if ty == old.ty {
                self.add(old.name.clone(), slice, vec![result], ty)?
            } else {
                let name = self.names.unique(&format!("{}.flat", old.name));
                let sliced = self.add(name, slice, vec![result], ty)?;
                self.add(old.name.clone(), Op::Reshape, vec![sliced], old.ty.clone())?
            };
            self.map[m.result] = Some(value);
            if rows.result == 1 {
                let piece = ResultSlice { of: result, start: start.clone(), count: m.received.clone() };
                self.pieces.insert(value, piece);
            }
            start = start + m.received.clone();
        }
        Some(())
    }
}

/// The shape of `rows` rows of `columns` columns; a single row has one axis.
fn rows_shape(rows: i64, columns: Dim) -> Vec<Dim> {
    if rows == 1 { vec![columns] } else { vec![Dim::from(rows), columns] }
}

fn sum_dims<'d>(dims: impl Iterator<Item = &'d Dim>) -> Dim {
    dims.fold(Dim::from(0), |sum, dim| sum + dim.clone())
}

/// The largest power of two, up to [`MAX_ALIGNMENT_BYTES`], that divides the bytes of this many elements.
fn alignment(columns: &Dim, ty: &TensorType) -> i64 {
    let bytes = columns.clone() * Dim::from(ty.dtype.size() as i64);
    let mut alignment = MAX_ALIGNMENT_BYTES;
    while alignment > 1 && !bytes.is_divisible_by(alignment) {
        alignment /= 2;
    }
    alignment
}
