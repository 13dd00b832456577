//! A walk over a program: the units so far, and those that are open.

use symmc_ir::{Form, NodeId, Table, ValueId};

use crate::facts::Facts;

/// A part of a program that runs as one step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unit {
    /// What its kernel is; none for a node that runs by itself.
    pub form: Option<Form>,
    /// Its nodes, in program order.
    pub nodes: Vec<NodeId>,
}

/// The units of a program so far.
pub struct Walk<'a> {
    pub facts: &'a Facts<'a>,
    /// In order of their first nodes.
    pub units: Vec<Unit>,
    /// The units that may still grow, by index, oldest first.
    open: Vec<usize>,
    /// The last node so far.
    last: Option<NodeId>,
    /// The unit of each node so far.
    unit_of: Table<NodeId, Option<usize>>,
}

/// What becomes of a node.
pub enum Place {
    /// It joins this unit, with these views in front of it.
    Joins(usize, Vec<NodeId>),
    /// It begins a unit that may grow to this form.
    Begins(Form),
    /// It ends this unit, which is of this form with it.
    Ends(usize, Form),
    /// It joins the first of these units, which takes in the others and is of this form then, or begins one.
    Merges(Vec<usize>, Form),
}

impl<'a> Walk<'a> {
    pub fn new(facts: &'a Facts<'a>) -> Self {
        let len = facts.graph.nodes.len();
        Walk {
            facts,
            units: Vec::with_capacity(len),
            open: Vec::new(),
            last: None,
            unit_of: Table::filled(None, len),
        }
    }

    /// Puts the next node where it belongs: into a unit, or into one of its own.
    pub fn put(&mut self, id: NodeId, place: Option<Place>) {
        let joined = match &place {
            Some(Place::Joins(unit, _) | Place::Ends(unit, _)) => vec![*unit],
            Some(Place::Merges(units, _)) => units.clone(),
            _ => Vec::new(),
        };
        // Whoever reads what a unit gives comes behind it.
        for unit in self.read(id).into_iter().filter(|u| !joined.contains(u)) {
            self.close(unit);
        }
        let unit = match place {
            Some(Place::Joins(unit, views)) => {
                self.units[unit].nodes.extend(views.into_iter().chain([id]));
                self.units[unit].nodes.sort_unstable();
                unit
            }
            Some(Place::Ends(unit, form)) => {
                self.units[unit].form = Some(form);
                self.units[unit].nodes.push(id);
                self.close(unit);
                unit
            }
            Some(Place::Merges(units, form)) if !units.is_empty() => self.merge(id, &units, form),
            other => {
                let form = match other {
                    Some(Place::Begins(form) | Place::Merges(_, form)) => Some(form),
                    _ => None,
                };
                self.open.extend(form.map(|_| self.units.len()));
                self.units.push(Unit { form, nodes: vec![id] });
                self.units.len() - 1
            }
        };
        self.unit_of[id] = Some(unit);
        self.last = Some(id);
        // What a collective reads waits for nothing else.
        let awaited = self.facts.node(id).outputs.iter().any(|&v| self.facts.communicated[v]);
        if awaited {
            self.close(unit);
        }
    }

    /// Puts a node and the nodes of open units into the first of them; gives its index.
    fn merge(&mut self, id: NodeId, units: &[usize], form: Form) -> usize {
        let to = units[0];
        for &from in &units[1..] {
            let nodes = std::mem::take(&mut self.units[from].nodes);
            nodes.iter().for_each(|&n| self.unit_of[n] = Some(to));
            self.units[to].nodes.extend(nodes);
            self.close(from);
        }
        self.units[to].nodes.push(id);
        self.units[to].nodes.sort_unstable();
        self.units[to].form = Some(form);
        to
    }

    /// Lets a unit grow no more.
    fn close(&mut self, unit: usize) {
        self.open.retain(|&u| u != unit);
    }

    /// The units whose values a node reads.
    pub fn read(&self, id: NodeId) -> Vec<usize> {
        let sources = self.facts.node(id).inputs.iter().filter_map(|&v| self.facts.source(v));
        sources.filter_map(|n| self.unit_of[n]).collect()
    }

    /// The open units of a form, with fewer nodes than this, the youngest first.
    pub fn open(&self, form: Form, most: u32) -> impl Iterator<Item = usize> + '_ {
        let fits =
            move |&u: &usize| self.units[u].form == Some(form) && self.units[u].nodes.len() < most as usize;
        self.open.iter().rev().copied().filter(fits)
    }

    /// Whether a unit may still grow.
    pub fn is_open(&self, unit: usize) -> bool {
        self.open.contains(&unit)
    }

    /// Whether a unit and a node wait for the same collectives.
    pub fn waits_alike(&self, unit: usize, id: NodeId) -> bool {
        self.units[unit].nodes.iter().filter_map(|&n| self.facts.needs[n]).max() == self.facts.needs[id]
    }

    /// Whether merging units with a node would let something wait for a collective that it does not wait for otherwise.
    pub fn delays(&self, units: &[usize], id: NodeId) -> bool {
        let facts = self.facts;
        let needs = |unit: usize| self.units[unit].nodes.iter().filter_map(|&n| facts.needs[n]).max();
        let all = units.iter().map(|&u| needs(u)).max().flatten().max(facts.needs[id]);
        let inside = |n: &NodeId| *n == id || units.iter().any(|&u| self.units[u].nodes.contains(n));
        units.iter().filter(|&&u| needs(u) < all).any(|&u| {
            let given = self.units[u].nodes.iter().flat_map(|&n| &facts.node(n).outputs);
            let mut users = given.flat_map(|&v| &facts.users[v]).filter(|n| !inside(n));
            users.any(|&n| facts.needs[n] < all)
        })
    }

    /// Whether a unit reads an operand of a node.
    pub fn shares(&self, unit: usize, id: NodeId) -> bool {
        let own = &self.facts.node(id).inputs;
        self.units[unit].nodes.iter().flat_map(|&n| &self.facts.node(n).inputs).any(|v| own.contains(v))
    }

    /// The open unit of a form that gives a value its memory.
    pub fn giver(&self, value: ValueId, form: Form) -> Option<usize> {
        let unit = self.facts.source(value).and_then(|n| self.unit_of[n])?;
        self.open(form, u32::MAX).find(|&u| u == unit)
    }

    /// Whether the last node of a unit is the last step so far.
    pub fn is_last(&self, unit: usize) -> bool {
        self.last.as_ref() == self.units[unit].nodes.last()
    }

    /// Whether a value is there before a node begins.
    pub fn is_before(&self, value: ValueId, node: NodeId) -> bool {
        self.facts.source(value).is_none_or(|n| {
            // A unit is run in place of its last node.
            self.unit_of[n].and_then(|u| self.units[u].nodes.last()).is_some_and(|&last| last < node)
        })
    }
}
