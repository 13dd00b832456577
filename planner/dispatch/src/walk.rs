//! A walk over a program, with the units so far, some of which are open.
//!
//! Open units are found through indices, not by a search of all of them: by their kind, from the youngest
//! on, and by an operand and the last collective for which they wait. A step of the walk takes time
//! logarithmic in the number of open units.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use symmc_ir::entity::Entity;
use symmc_ir::{DispatchForm, EntityMap, NodeId, ValueId};

use crate::facts::DispatchFacts;

/// A part of a program that runs as one step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DispatchUnit {
    /// The form of its kernel; `None` for a single node.
    pub form: Option<DispatchForm>,
    pub nodes: Vec<NodeId>,
}

/// A [`DispatchUnit`] to which nodes may still be added.
#[derive(Clone, Debug)]
pub struct Unit {
    /// How it grows; `None` for a single node that stays alone.
    pub kind: Option<UnitKind>,
    pub nodes: Vec<NodeId>,
}

/// How a unit grows. Loops grow in four ways, by what they reduce.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum UnitKind {
    /// A loop without reductions.
    Map,
    /// A map and the norm of the rows of one of its values. It is complete.
    Norm,
    /// A loop with reductions of the last axis.
    Rows,
    /// A loop with the reduction of the axis before the last.
    Columns,
    Product,
    Batch,
    Reduction,
    Gather,
    Selection,
    Rotary,
    Scatter,
    Collectives,
}

impl UnitKind {
    pub fn form(self) -> DispatchForm {
        match self {
            UnitKind::Map | UnitKind::Norm | UnitKind::Rows | UnitKind::Columns => DispatchForm::Loop,
            UnitKind::Product => DispatchForm::Product,
            UnitKind::Batch => DispatchForm::Batch,
            UnitKind::Reduction => DispatchForm::Reduction,
            UnitKind::Gather => DispatchForm::Gather,
            UnitKind::Selection => DispatchForm::Selection,
            UnitKind::Rotary => DispatchForm::Rotary,
            UnitKind::Scatter => DispatchForm::Scatter,
            UnitKind::Collectives => DispatchForm::Collectives,
        }
    }
}

/// The units of a program so far, with indices of the open ones.
pub struct DispatchWalk<'a> {
    pub facts: &'a DispatchFacts<'a>,
    pub units: Vec<Unit>,
    /// The open units of each kind.
    open: BTreeMap<UnitKind, BTreeSet<usize>>,
    /// For each unit, the last collective that it is or depends on.
    waits: Vec<Option<NodeId>>,
    /// The open units that read a value and wait for a collective.
    readers: HashMap<(ValueId, Option<NodeId>), BTreeSet<usize>>,
    last: Option<NodeId>,
    unit_of: EntityMap<NodeId, Option<usize>>,
}

/// The unit to which a node belongs.
pub enum UnitAssignment {
    /// It joins this unit, after these views.
    Joins(usize, Vec<NodeId>),
    /// It begins a unit that may grow to this kind.
    Begins(UnitKind),
    /// It joins this unit, which is then complete and has this kind.
    Ends(usize, UnitKind),
    /// It joins the first of these units, which takes in the others and then has this kind. It begins a new
    /// unit if there are none.
    Merges(Vec<usize>, UnitKind),
}

impl<'a> DispatchWalk<'a> {
    pub fn new(facts: &'a DispatchFacts<'a>) -> Self {
        let len = facts.graph.nodes.len();
        DispatchWalk {
            facts,
            units: Vec::with_capacity(len),
            open: BTreeMap::new(),
            waits: Vec::with_capacity(len),
            readers: HashMap::new(),
            last: None,
            unit_of: EntityMap::filled(None, len),
        }
    }

    /// Adds the next node to a unit, or to a new one.
    pub fn assign_node(&mut self, id: NodeId, assignment: Option<UnitAssignment>) {
        let joined = match &assignment {
            Some(UnitAssignment::Joins(unit, _) | UnitAssignment::Ends(unit, _)) => vec![*unit],
            Some(UnitAssignment::Merges(units, _)) => units.clone(),
            _ => Vec::new(),
        };
        // Readers of a unit's results come after it, so those units are complete.
        for unit in self.units_read_by(id).into_iter().filter(|u| !joined.contains(u)) {
            self.close(unit);
        }
        let unit = match assignment {
            Some(UnitAssignment::Joins(unit, views)) => {
                self.grow(unit, views.into_iter().chain([id]).collect());
                unit
            }
            Some(UnitAssignment::Ends(unit, kind)) => {
                self.close(unit);
                self.units[unit].kind = Some(kind);
                self.units[unit].nodes.push(id);
                unit
            }
            Some(UnitAssignment::Merges(units, kind)) if !units.is_empty() => self.merge(id, &units, kind),
            Some(UnitAssignment::Begins(kind) | UnitAssignment::Merges(_, kind)) => {
                self.begin(id, Some(kind))
            }
            None => self.begin(id, None),
        };
        self.unit_of[id] = Some(unit);
        self.last = Some(id);
        // An operand of a collective must not wait for anything else.
        let awaited = self.facts.node(id).outputs.iter().any(|&v| self.facts.communicated[v]);
        if awaited {
            self.close(unit);
        }
    }

    /// Adds a unit of one node, which may grow if it has a kind.
    fn begin(&mut self, id: NodeId, kind: Option<UnitKind>) -> usize {
        let unit = self.units.len();
        self.units.push(Unit { kind, nodes: Vec::new() });
        self.waits.push(None);
        if let Some(kind) = kind {
            self.open.entry(kind).or_default().insert(unit);
        }
        self.grow(unit, vec![id]);
        unit
    }

    fn merge(&mut self, id: NodeId, units: &[usize], kind: UnitKind) -> usize {
        let target = units[0];
        let mut added = vec![id];
        for &from in &units[1..] {
            self.close(from);
            let moved = std::mem::take(&mut self.units[from].nodes);
            moved.iter().for_each(|&n| self.unit_of[n] = Some(target));
            added.extend(moved);
        }
        let before = self.units[target].kind.replace(kind);
        if before.and_then(|kind| self.open.get_mut(&kind)).is_some_and(|open| open.remove(&target)) {
            self.open.entry(kind).or_default().insert(target);
        }
        self.grow(target, added);
        target
    }

    fn grow(&mut self, unit: usize, added: Vec<NodeId>) {
        let waits = added.iter().filter_map(|&n| self.facts.last_collectives[n]).max().max(self.waits[unit]);
        let mut first_new = self.units[unit].nodes.len();
        if waits != self.waits[unit] {
            self.unindex_unit(unit);
            self.waits[unit] = waits;
            first_new = 0;
        }
        self.units[unit].nodes.extend(added);
        if self.is_open(unit) {
            for &n in &self.units[unit].nodes[first_new..] {
                for &v in &self.facts.node(n).inputs {
                    self.readers.entry((v, waits)).or_default().insert(unit);
                }
            }
        }
        self.units[unit].nodes.sort_unstable();
    }

    fn close(&mut self, unit: usize) {
        let open = self.units[unit].kind.and_then(|kind| self.open.get_mut(&kind));
        if open.is_some_and(|open| open.remove(&unit)) {
            self.unindex_unit(unit);
        }
    }

    /// Removes a unit from the index of readers.
    fn unindex_unit(&mut self, unit: usize) {
        let waits = self.waits[unit];
        for &v in self.units[unit].nodes.iter().flat_map(|&n| &self.facts.node(n).inputs) {
            if let Entry::Occupied(mut readers) = self.readers.entry((v, waits)) {
                readers.get_mut().remove(&unit);
                if readers.get().is_empty() {
                    readers.remove();
                }
            }
        }
    }

    pub fn unit_of(&self, id: NodeId) -> Option<usize> {
        self.unit_of[id]
    }

    pub fn units_read_by(&self, id: NodeId) -> Vec<usize> {
        let sources = self.facts.node(id).inputs.iter().filter_map(|&v| self.facts.defining_node(v));
        sources.filter_map(|n| self.unit_of[n]).collect()
    }

    /// The open units of a kind among the last `reach`, youngest first.
    pub fn open_within(&self, kind: UnitKind, reach: usize) -> impl Iterator<Item = usize> + '_ {
        let oldest = self.units.len().saturating_sub(reach);
        self.open.get(&kind).into_iter().flat_map(move |open| open.range(oldest..).rev().copied())
    }

    /// Filters these units to the open ones of a kind, youngest first.
    pub fn open_among(&self, mut units: Vec<usize>, kind: UnitKind) -> Vec<usize> {
        units.retain(|unit| self.open.get(&kind).is_some_and(|open| open.contains(unit)));
        units.sort_unstable_by(|a, b| b.cmp(a));
        units.dedup();
        units
    }

    /// The open units of a kind that wait for the same collectives as a node and share an operand with it,
    /// youngest first.
    pub fn units_sharing_operand(&self, kind: UnitKind, id: NodeId) -> impl Iterator<Item = usize> + '_ {
        let waits = self.facts.last_collectives[id];
        let operands = self.facts.node(id).inputs.iter();
        let mut sources: Vec<_> = operands
            .filter_map(|&v| self.readers.get(&(v, waits)))
            .map(|readers| readers.iter().rev().copied().peekable())
            .collect();
        let units = std::iter::from_fn(move || {
            let youngest = sources.iter_mut().filter_map(|s| s.peek().copied()).max()?;
            sources.iter_mut().for_each(|s| while s.next_if_eq(&youngest).is_some() {});
            Some(youngest)
        });
        units.filter(move |&u| self.units[u].kind == Some(kind))
    }

    /// The unit of the last node, if the unit is open, has this kind, and waits for the same collectives as
    /// `id`.
    pub fn last_unit(&self, kind: UnitKind, id: NodeId) -> Option<usize> {
        let unit = self.unit_of[self.last?]?;
        let is_last = self.last.as_ref() == self.units[unit].nodes.last();
        let fits = is_last
            && self.units[unit].kind == Some(kind)
            && self.waits[unit] == self.facts.last_collectives[id];
        (fits && self.is_open(unit)).then_some(unit)
    }

    pub fn is_open(&self, unit: usize) -> bool {
        let open = self.units[unit].kind.and_then(|kind| self.open.get(&kind));
        open.is_some_and(|open| open.contains(&unit))
    }

    /// Whether merging units with a node would make a reader wait for a collective for which it does not
    /// wait otherwise.
    pub fn delays_users(&self, units: &[usize], id: NodeId) -> bool {
        let facts = self.facts;
        let joint_wait = units.iter().map(|&u| self.waits[u]).max().flatten().max(facts.last_collectives[id]);
        units.iter().filter(|&&u| self.waits[u] < joint_wait).any(|&u| {
            let results = self.units[u].nodes.iter().flat_map(|&n| &facts.node(n).outputs);
            results.flat_map(|&v| &facts.users[v]).any(|&user| {
                let is_merged = user == id || units.iter().any(|&u| self.units[u].nodes.contains(&user));
                !is_merged && facts.last_collectives[user] < joint_wait
            })
        })
    }

    /// The open unit of a kind that computes the value's base.
    pub fn open_producer(&self, value: ValueId, kind: UnitKind) -> Option<usize> {
        let unit = self.facts.defining_node(value).and_then(|n| self.unit_of[n])?;
        self.open.get(&kind).is_some_and(|open| open.contains(&unit)).then_some(unit)
    }

    /// Whether a value is available before a node begins.
    pub fn is_before(&self, value: ValueId, node: NodeId) -> bool {
        self.facts.defining_node(value).is_none_or(|n| {
            // A unit runs in place of its last node.
            self.unit_of[n].and_then(|u| self.units[u].nodes.last()).is_some_and(|&last| last < node)
        })
    }
}

/// For each node, the number of its unit.
pub struct UnitIndex(Vec<usize>);

impl UnitIndex {
    pub fn new(facts: &DispatchFacts<'_>, units: &[Unit]) -> UnitIndex {
        let mut out = UnitIndex(vec![usize::MAX; facts.graph.nodes.len()]);
        units.iter().enumerate().for_each(|(u, unit)| out.assign(&unit.nodes, u));
        out
    }

    /// `None` if the node is a view in no unit.
    pub fn of(&self, node: NodeId) -> Option<usize> {
        self.0.get(node.index()).copied().filter(|&u| u != usize::MAX)
    }

    pub fn assign(&mut self, nodes: &[NodeId], unit: usize) {
        nodes.iter().for_each(|n| self.0[n.index()] = unit);
    }

    /// Moves the nodes of a unit into another one, which then has this kind.
    pub fn join(&mut self, units: &mut [Unit], from: usize, to: usize, kind: UnitKind) {
        let moved = std::mem::take(&mut units[from].nodes);
        self.assign(&moved, to);
        units[to].nodes.extend(moved);
        units[to].nodes.sort_unstable();
        units[to].kind = Some(kind);
    }
}
