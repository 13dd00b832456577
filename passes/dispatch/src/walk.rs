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
        let joined = match place {
            Some(Place::Joins(unit, _) | Place::Ends(unit, _)) => Some(unit),
            _ => None,
        };
        // Whoever reads what a unit gives comes behind it.
        for unit in self.read(id).into_iter().filter(|u| Some(*u) != joined) {
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
            other => {
                let form = if let Some(Place::Begins(form)) = other { Some(form) } else { None };
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
