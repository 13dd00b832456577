//! A walk over a program: the units so far, and those that are open.
//!
//! Open units are found by what a node looks for, not by a search of all of them: by their form from the youngest on, and by an
//! operand and the last collective that they wait for. A step of the walk takes time that is logarithmic in the number of open units,
//! however many there are.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use symmc_ir::{DispatchForm, EntityMap, NodeId, ValueId};

use crate::facts::DispatchFacts;

/// A part of a program that runs as one step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DispatchUnit {
    /// What its kernel is; none for a node that runs by itself.
    pub form: Option<DispatchForm>,
    pub nodes: Vec<NodeId>,
}

/// The units of a program so far.
pub struct DispatchWalk<'a> {
    pub facts: &'a DispatchFacts<'a>,
    pub units: Vec<DispatchUnit>,
    /// The units of each form that may still grow, by index.
    open: BTreeMap<DispatchForm, BTreeSet<usize>>,
    /// The last collective that each unit is or needs.
    waits: Vec<Option<NodeId>>,
    /// The open units that read a value and wait for a collective, by index.
    readers: HashMap<(ValueId, Option<NodeId>), BTreeSet<usize>>,
    last: Option<NodeId>,
    unit_of: EntityMap<NodeId, Option<usize>>,
}

/// What becomes of a node.
pub enum UnitAssignment {
    /// It joins this unit, with these views in front of it.
    Joins(usize, Vec<NodeId>),
    /// It begins a unit that may grow to this form.
    Begins(DispatchForm),
    /// It ends this unit, which is of this form with it.
    Ends(usize, DispatchForm),
    /// It joins the first of these units, which takes in the others and is of this form then, or begins one.
    Merges(Vec<usize>, DispatchForm),
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

    /// Puts the next node where it belongs: into a unit, or into one of its own.
    pub fn assign_node(&mut self, id: NodeId, place: Option<UnitAssignment>) {
        let joined = match &place {
            Some(UnitAssignment::Joins(unit, _) | UnitAssignment::Ends(unit, _)) => vec![*unit],
            Some(UnitAssignment::Merges(units, _)) => units.clone(),
            _ => Vec::new(),
        };
        // Whoever reads what a unit gives comes behind it.
        for unit in self.units_read_by(id).into_iter().filter(|u| !joined.contains(u)) {
            self.close(unit);
        }
        let unit = match place {
            Some(UnitAssignment::Joins(unit, views)) => {
                self.grow(unit, views.into_iter().chain([id]).collect());
                unit
            }
            Some(UnitAssignment::Ends(unit, form)) => {
                self.close(unit);
                self.units[unit].form = Some(form);
                self.units[unit].nodes.push(id);
                unit
            }
            Some(UnitAssignment::Merges(units, form)) if !units.is_empty() => self.merge(id, &units, form),
            Some(UnitAssignment::Begins(form) | UnitAssignment::Merges(_, form)) => {
                self.begin(id, Some(form))
            }
            None => self.begin(id, None),
        };
        self.unit_of[id] = Some(unit);
        self.last = Some(id);
        // What a collective reads waits for nothing else.
        let awaited = self.facts.node(id).outputs.iter().any(|&v| self.facts.communicated[v]);
        if awaited {
            self.close(unit);
        }
    }

    /// Adds a unit of one node, which may grow if it has a form.
    fn begin(&mut self, id: NodeId, form: Option<DispatchForm>) -> usize {
        let unit = self.units.len();
        self.units.push(DispatchUnit { form, nodes: Vec::new() });
        self.waits.push(None);
        if let Some(form) = form {
            self.open.entry(form).or_default().insert(unit);
        }
        self.grow(unit, vec![id]);
        unit
    }

    fn merge(&mut self, id: NodeId, units: &[usize], form: DispatchForm) -> usize {
        let to = units[0];
        let mut added = vec![id];
        for &from in &units[1..] {
            self.close(from);
            let moved = std::mem::take(&mut self.units[from].nodes);
            moved.iter().for_each(|&n| self.unit_of[n] = Some(to));
            added.extend(moved);
        }
        let before = self.units[to].form.replace(form);
        if before.and_then(|form| self.open.get_mut(&form)).is_some_and(|open| open.remove(&to)) {
            self.open.entry(form).or_default().insert(to);
        }
        self.grow(to, added);
        to
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
        let open = self.units[unit].form.and_then(|form| self.open.get_mut(&form));
        if open.is_some_and(|open| open.remove(&unit)) {
            self.unindex_unit(unit);
        }
    }

    /// Lets a unit no longer be found by what its nodes read.
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

    /// The open units of a form that are among the last `reach`, the youngest first.
    pub fn open_within(&self, form: DispatchForm, reach: usize) -> impl Iterator<Item = usize> + '_ {
        let oldest = self.units.len().saturating_sub(reach);
        self.open.get(&form).into_iter().flat_map(move |open| open.range(oldest..).rev().copied())
    }

    /// Those of these units that are open and of a form, the youngest first.
    pub fn open_among(&self, mut units: Vec<usize>, form: DispatchForm) -> Vec<usize> {
        units.retain(|unit| self.open.get(&form).is_some_and(|open| open.contains(unit)));
        units.sort_unstable_by(|a, b| b.cmp(a));
        units.dedup();
        units
    }

    /// The open units of a form that wait for the same collectives as a node and read an operand of it, the youngest first.
    pub fn units_sharing_operand(&self, form: DispatchForm, id: NodeId) -> impl Iterator<Item = usize> + '_ {
        let waits = self.facts.last_collectives[id];
        let operands = self.facts.node(id).inputs.iter();
        let mut sources: Vec<_> = operands
            .filter_map(|&v| self.readers.get(&(v, waits)))
            .map(|readers| readers.iter().rev().copied().peekable())
            .collect();
        let next = move || {
            let youngest = sources.iter_mut().filter_map(|s| s.peek().copied()).max()?;
            sources.iter_mut().for_each(|s| while s.next_if_eq(&youngest).is_some() {});
            Some(youngest)
        };
        std::iter::from_fn(next).filter(move |&u| self.units[u].form == Some(form))
    }

    /// The unit that the last step belongs to, if it is open, of this form, and waits for the same collectives as a node.
    pub fn last_unit(&self, form: DispatchForm, id: NodeId) -> Option<usize> {
        let unit = self.unit_of[self.last?]?;
        let is_last = self.last.as_ref() == self.units[unit].nodes.last();
        let fits = is_last
            && self.units[unit].form == Some(form)
            && self.waits[unit] == self.facts.last_collectives[id];
        (fits && self.is_open(unit)).then_some(unit)
    }

    pub fn is_open(&self, unit: usize) -> bool {
        let open = self.units[unit].form.and_then(|form| self.open.get(&form));
        open.is_some_and(|open| open.contains(&unit))
    }

    /// Whether merging units with a node would let something wait for a collective that it does not wait for otherwise.
    pub fn delays_users(&self, units: &[usize], id: NodeId) -> bool {
        let facts = self.facts;
        let needs = |unit: usize| self.waits[unit];
        let all = units.iter().map(|&u| needs(u)).max().flatten().max(facts.last_collectives[id]);
        let inside = |n: &NodeId| *n == id || units.iter().any(|&u| self.units[u].nodes.contains(n));
        units.iter().filter(|&&u| needs(u) < all).any(|&u| {
            let given = self.units[u].nodes.iter().flat_map(|&n| &facts.node(n).outputs);
            let mut users = given.flat_map(|&v| &facts.users[v]).filter(|n| !inside(n));
            users.any(|&n| facts.last_collectives[n] < all)
        })
    }

    /// The open unit of a form that gives a value its memory.
    pub fn open_producer(&self, value: ValueId, form: DispatchForm) -> Option<usize> {
        let unit = self.facts.defining_node(value).and_then(|n| self.unit_of[n])?;
        self.open.get(&form).is_some_and(|open| open.contains(&unit)).then_some(unit)
    }

    /// Whether a value is there before a node begins.
    pub fn is_before(&self, value: ValueId, node: NodeId) -> bool {
        self.facts.defining_node(value).is_none_or(|n| {
            // A unit is run in place of its last node.
            self.unit_of[n].and_then(|u| self.units[u].nodes.last()).is_some_and(|&last| last < node)
        })
    }
}
