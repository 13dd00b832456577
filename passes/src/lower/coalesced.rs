//! A program in which sets of collectives are one collective each (see [`super::coalesce`]).
//!
//! The operands of the members become rows that lie next to each other, and one collective runs on all of them:
//!
//! ```text
//! all_reduce(x), all_reduce(y)  →  r = all_reduce(concat(flat x, flat y)); r[..|x|], r[|x|..]
//! all_gather(x), all_gather(y)  →  r = all_gather(concat(flat x, flat y)) as [n, |x| + |y|]; r[:, ..|x|], r[:, |x|..]
//! ```
//!
//! A reduce-scatter and an all-to-all have an operand of as many rows as ranks, of which each rank receives one. Parts are ordered by
//! the alignment of their sizes, so that each part is as aligned as it is by itself.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use symmc_ir::entity::Entity;
use symmc_ir::{Collective, CollectiveKind, Dim, Graph, NodeId, Op, Output, Table, Type, ValueId};

use super::coalesce::{Rows, Set};
use crate::rewrite::{Names, copy_inputs};

pub struct Coalesced {
    pub graph: Graph,
    /// For each set the name of the collective that stands for it.
    pub names: Vec<String>,
}

/// The largest alignment that counts, in bytes.
const ALIGNMENT: i64 = 128;

/// The program in which each of these sets is one collective; `None` if sets have members that cannot be coalesced, that are in two
/// sets, or that need each other.
pub fn build(graph: &Graph, sets: &[Set]) -> Option<Coalesced> {
    let mut set_of: Vec<Option<usize>> = vec![None; graph.nodes.len()];
    for (s, set) in sets.iter().enumerate() {
        for id in set {
            if set_of.get_mut(id.index())?.replace(s).is_some() {
                return None;
            }
        }
    }
    let mut builder = Builder::new(graph);
    let mut names = vec![String::new(); sets.len()];
    for unit in order(graph, sets, &set_of)? {
        match unit {
            Unit::Node(id) => builder.node(id)?,
            Unit::Set(s) => names[s] = builder.coalesce(&sets[s])?,
        }
    }
    for output in &graph.outputs {
        let value = builder.map[output.value]?;
        builder.to.outputs.push(Output { value, kind: output.kind });
    }
    Some(Coalesced { graph: builder.to, names })
}

/// A node of the old program, or a set of them that becomes one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unit {
    Node(NodeId),
    Set(usize),
}

/// The units in an order in which they can run: program order, with each set in place of its last member. Nodes that need a result
/// of a set come after it. `None` if there is no such order.
pub fn order(graph: &Graph, sets: &[Set], set_of: &[Option<usize>]) -> Option<Vec<Unit>> {
    let unit = |id: NodeId| set_of[id.index()].map_or(Unit::Node(id), Unit::Set);
    let place = |unit: Unit| match unit {
        Unit::Node(id) => Some(id),
        Unit::Set(s) => sets[s].iter().max().copied(),
    };
    let mut missing: BTreeMap<Unit, usize> = BTreeMap::new();
    let mut users: BTreeMap<Unit, Vec<Unit>> = BTreeMap::new();
    for (id, node) in graph.nodes.iter() {
        let count = missing.entry(unit(id)).or_default();
        for def in node.inputs.iter().filter_map(|&v| graph.def_node(v)) {
            *count += 1;
            users.entry(unit(def)).or_default().push(unit(id));
        }
    }
    let free = missing.iter().filter(|(_, count)| **count == 0);
    let mut ready: BinaryHeap<Reverse<(Option<NodeId>, Unit)>> =
        free.map(|(&unit, _)| Reverse((place(unit), unit))).collect();
    let mut out = Vec::with_capacity(missing.len());
    while let Some(Reverse((_, unit))) = ready.pop() {
        out.push(unit);
        for &user in users.get(&unit).into_iter().flatten() {
            let count = missing.get_mut(&user)?;
            *count -= 1;
            if *count == 0 {
                ready.push(Reverse((place(user), user)));
            }
        }
    }
    (out.len() == missing.len()).then_some(out)
}

struct Builder<'a> {
    from: &'a Graph,
    to: Graph,
    names: Names,
    map: Table<ValueId, Option<ValueId>>,
    /// The pieces of coalesced results of one row, by the values that they stand for.
    pieces: HashMap<ValueId, Piece>,
}

/// A run of elements of a value with one axis.
struct Piece {
    of: ValueId,
    start: Dim,
    count: Dim,
}

struct Member {
    /// The operand, in the new program.
    operand: ValueId,
    /// The result, in the old program.
    result: ValueId,
    /// Its elements in each row of the coalesced operand.
    columns: Dim,
    /// Its elements in each row of the coalesced result.
    received: Dim,
}

impl<'a> Builder<'a> {
    fn new(from: &'a Graph) -> Self {
        let (to, map) = copy_inputs(from);
        let mut names = Names::default();
        from.values.values().for_each(|value| names.reserve(&value.name));
        Builder { from, to, names, map, pieces: HashMap::new() }
    }

    fn node(&mut self, id: NodeId) -> Option<()> {
        let node = &self.from.nodes[id];
        let inputs = node.inputs.iter().map(|&v| self.map[v]).collect::<Option<Vec<_>>>()?;
        let results = node.outputs.iter().map(|&v| &self.from.values[v]);
        let results = results.map(|v| (v.name.clone(), v.ty.clone())).collect();
        let new = self.to.add_node(node.op.clone(), inputs, results);
        for (&old, &new) in node.outputs.iter().zip(&self.to.nodes[new].outputs) {
            self.map[old] = Some(new);
        }
        Some(())
    }

    fn add(&mut self, name: String, op: Op, inputs: Vec<ValueId>, ty: Type) -> Option<ValueId> {
        let node = self.to.add_node(op, inputs, vec![(name, ty)]);
        self.to.nodes[node].outputs.first().copied()
    }

    fn reshape(&mut self, name: String, value: ValueId, shape: Vec<Dim>) -> Option<ValueId> {
        let ty = Type::new(self.to.ty(value).dtype, shape);
        if *self.to.ty(value) == ty {
            return Some(value);
        }
        let name = self.names.unique(&name);
        self.add(name, Op::Reshape, vec![value], ty)
    }

    /// Adds one collective in place of those of a set; gives its name.
    fn coalesce(&mut self, set: &Set) -> Option<String> {
        let &first = set.first()?;
        let collective = self.from.nodes[first].op.as_collective()?.clone();
        let rows = Rows::of(&collective.kind, self.from.group_size(collective.group)?)?;
        let mut members =
            set.iter().map(|&id| self.member(id, &collective, rows)).collect::<Option<Vec<_>>>()?;
        members.sort_by_key(|m| Reverse(alignment(&m.columns, self.to.ty(m.operand))));
        let name = self.from.node_name(first).to_string();
        let joined = match self.whole(&mut members, rows) {
            Some(whole) => whole,
            None => self.concat(&name, &members, rows)?,
        };
        let columns = sum(members.iter().map(|m| &m.received));
        let shape = match collective.kind {
            CollectiveKind::AllGather => vec![columns.clone() * Dim::from(rows.result)],
            CollectiveKind::ReduceScatter(_) => vec![Dim::from(1), columns.clone()],
            _ => in_rows(rows.result, columns.clone()),
        };
        let ty = Type::new(self.to.ty(joined).dtype, shape);
        let coalesced = self.names.unique(&format!("{name}.coalesced"));
        let result = self.add(coalesced.clone(), Op::Collective(collective), vec![joined], ty)?;
        let result = self.reshape(format!("{name}.rows"), result, in_rows(rows.result, columns))?;
        self.divide(&members, rows, result)?;
        Some(coalesced)
    }

    fn member(&self, id: NodeId, collective: &Collective, rows: Rows) -> Option<Member> {
        let node = &self.from.nodes[id];
        let own = node.op.as_collective()?;
        let same_cells = self.from.cells(own.group) == self.from.cells(collective.group);
        let (&[operand], &[result]) = (&node.inputs[..], &node.outputs[..]) else { return None };
        let operand = self.map[operand]?;
        let columns = self.to.ty(operand).numel().exact_div(&Dim::from(rows.operand))?;
        let received = self.from.ty(result).numel().exact_div(&Dim::from(rows.result))?;
        (own.kind == collective.kind && same_cells).then_some(Member { operand, result, columns, received })
    }

    /// The result of an earlier set whose pieces, one after another, are the operands. The members are sorted by their pieces then.
    fn whole(&self, members: &mut Vec<Member>, rows: Rows) -> Option<ValueId> {
        let found = members.iter().map(|m| self.pieces.get(&m.operand));
        let pieces = found.collect::<Option<Vec<&Piece>>>().filter(|_| rows.operand == 1)?;
        let whole = pieces.first()?.of;
        let by_start: HashMap<&Dim, usize> =
            pieces.iter().enumerate().filter(|(_, p)| p.of == whole).map(|(k, p)| (&p.start, k)).collect();
        let mut place = vec![None; pieces.len()];
        let mut end = Dim::from(0);
        for at in 0..pieces.len() {
            let &next = by_start.get(&end)?;
            if place[next].replace(at).is_some() {
                return None;
            }
            end = end + pieces[next].count.clone();
        }
        if self.to.ty(whole).shape != [end] {
            return None;
        }
        let mut placed: Vec<(Option<usize>, Member)> =
            place.into_iter().zip(std::mem::take(members)).collect();
        placed.sort_by_key(|(place, _)| *place);
        members.extend(placed.into_iter().map(|(_, member)| member));
        Some(whole)
    }

    /// The operands side by side.
    fn concat(&mut self, name: &str, members: &[Member], rows: Rows) -> Option<ValueId> {
        let mut parts = Vec::with_capacity(members.len());
        for m in members {
            let name = format!("{}.flat", self.to.name_of(m.operand));
            parts.push(self.reshape(name, m.operand, in_rows(rows.operand, m.columns.clone()))?);
        }
        let total = in_rows(rows.operand, sum(members.iter().map(|m| &m.columns)));
        let ty = Type::new(self.to.ty(*parts.first()?).dtype, total);
        let axis = ty.rank() - 1;
        let name = self.names.unique(&format!("{name}.parts"));
        self.add(name, Op::Concat { axis }, parts, ty)
    }

    /// The results of the members, each of them columns of the coalesced result.
    fn divide(&mut self, members: &[Member], rows: Rows, result: ValueId) -> Option<()> {
        let mut start = Dim::from(0);
        for m in members {
            let old = &self.from.values[m.result];
            let ty = Type::new(old.ty.dtype, in_rows(rows.result, m.received.clone()));
            let slice = Op::Slice { axis: ty.rank() - 1, start: start.clone(), step: 1 };
            let value = if ty == old.ty {
                self.add(old.name.clone(), slice, vec![result], ty)?
            } else {
                let name = self.names.unique(&format!("{}.flat", old.name));
                let part = self.add(name, slice, vec![result], ty)?;
                self.add(old.name.clone(), Op::Reshape, vec![part], old.ty.clone())?
            };
            self.map[m.result] = Some(value);
            if rows.result == 1 {
                let piece = Piece { of: result, start: start.clone(), count: m.received.clone() };
                self.pieces.insert(value, piece);
            }
            start = start + m.received.clone();
        }
        Some(())
    }
}

/// The shape of so many rows of so many columns; a single row has one axis.
fn in_rows(rows: i64, columns: Dim) -> Vec<Dim> {
    if rows == 1 { vec![columns] } else { vec![Dim::from(rows), columns] }
}

fn sum<'d>(dims: impl Iterator<Item = &'d Dim>) -> Dim {
    dims.fold(Dim::from(0), |sum, dim| sum + dim.clone())
}

/// The largest power of two, up to [`ALIGNMENT`], that divides the bytes of so many elements.
fn alignment(columns: &Dim, ty: &Type) -> i64 {
    let bytes = columns.clone() * Dim::from(ty.dtype.size() as i64);
    let mut alignment = ALIGNMENT;
    while alignment > 1 && !bytes.divisible_by(alignment) {
        alignment /= 2;
    }
    alignment
}
