//! A plan as code works with it: programs are graphs, names are ids, offsets are dims.
//!
//! A written plan names programs, values, nodes and groups by text. Whoever works with one reads each program once
//! ([`ReadProgram::read`]) and resolves against it what a bucket says of symbols, places and steps. Asked here is only that
//! names and texts mean something; whether the plan is safe is the business of the check.

use std::collections::HashMap;

use symmc_ir::entity::Entity;
use symmc_ir::layout::{Layout, layouts};
use symmc_ir::text::{self, ParseError};
use symmc_ir::verify::{Violation, verify_derived};
use symmc_ir::{Dim, Dispatch, Graph, GroupId, NodeId, Symbol, Symbols, Table, ValueId};
use thiserror::Error;

use crate::{Bucket, Memory, Place, Step};

#[derive(Clone, Debug)]
pub struct ReadProgram {
    pub graph: Graph,
    /// Where each value lies within its base.
    pub layouts: Table<ValueId, Layout>,
    dispatch_of: Table<NodeId, Option<usize>>,
    inner: Table<ValueId, bool>,
    names: HashMap<String, ValueId>,
}

#[derive(Clone, PartialEq, Debug, Error)]
pub enum Unread {
    #[error("{0}")]
    Text(ParseError),
    #[error("{}", .0.first().map(ToString::to_string).unwrap_or_default())]
    Invalid(Vec<Violation>),
}

/// What a bucket says of something that its program does not have.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Unresolved {
    #[error("it has symbols {found:?}, its program {expected:?}")]
    BucketSymbols { expected: Vec<String>, found: Vec<String> },
    #[error("%{value} has no place")]
    PlaceMissing { value: String },
    #[error("a place is given for %{value}, which is no base value of the program")]
    PlaceUnknown { value: String },
    #[error("the place of %{value} has {text:?}: {error}")]
    PlaceDim { value: String, text: String, error: String },
    #[error("the place of %{value} counts ranks within {group}, which does not exist")]
    PlaceGroup { value: String, group: String },
    #[error("step {step}: %{found} names no node that is a step")]
    StepUnknown { step: usize, found: String },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placed {
    pub memory: Memory,
    /// The position of its first byte in the memory.
    pub offset: Dim,
    /// The group that this rank counts in, and the bytes that are added for each rank before it there.
    pub by_rank: Option<(GroupId, Dim)>,
}

/// What a step runs: a node, or those of a dispatch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The node, or the first one of the dispatch.
    pub first: NodeId,
    pub dispatch: Option<Dispatch>,
}

impl ReadProgram {
    pub fn read(text: &str) -> Result<ReadProgram, Unread> {
        let graph = text::parse(text).map_err(Unread::Text)?;
        verify_derived(&graph).map_err(Unread::Invalid)?;
        let layouts = layouts(&graph);
        let (dispatch_of, inner) = (graph.dispatch_of(), graph.inner(|v| layouts[v].base));
        let names = graph.values.iter().map(|(id, v)| (v.name.clone(), id)).collect();
        Ok(ReadProgram { graph, layouts, dispatch_of, inner, names })
    }

    pub fn named(&self, name: &str) -> Option<ValueId> {
        self.names.get(name).copied()
    }

    pub(crate) fn layout(&self, value: ValueId) -> &Layout {
        &self.layouts[value]
    }

    pub fn base(&self, value: ValueId) -> ValueId {
        self.layouts[value].base
    }

    /// Whether a value has no memory, because only the nodes of one dispatch know it.
    pub fn is_inner(&self, value: ValueId) -> bool {
        self.inner[value]
    }

    /// Whether a value has memory of its own.
    pub fn has_memory(&self, value: ValueId) -> bool {
        self.base(value) == value && !self.inner[value]
    }

    /// Whether a node only gives another view of memory.
    pub fn is_view(&self, node: NodeId) -> bool {
        let node = &self.graph.nodes[node];
        node.op.is_view() && node.outputs.first().is_some_and(|&v| self.base(v) != v)
    }

    pub fn symbols(&self, bucket: &Bucket) -> Result<Symbols, Unresolved> {
        let symbols = &self.graph.symbols;
        let ranged = |s: &Symbol| {
            let &[min, max] = bucket.symbols.get(&s.name)?;
            Some(Symbol { min, max, ..s.clone() })
        };
        let found: Option<Symbols> = symbols.values().map(ranged).collect();
        found.filter(|_| bucket.symbols.len() == symbols.len()).ok_or_else(|| Unresolved::BucketSymbols {
            expected: symbols.values().map(|s| s.name.clone()).collect(),
            found: bucket.symbols.keys().cloned().collect(),
        })
    }

    /// Where each value with memory of its own lies, and what does not resolve.
    pub fn places(
        &self,
        bucket: &Bucket,
        symbols: &Symbols,
    ) -> (Table<ValueId, Option<Placed>>, Vec<Unresolved>) {
        let mut errors = Vec::new();
        let mut out = Table::filled(None, self.graph.values.len());
        for (name, place) in &bucket.places {
            match self.named(name).filter(|&v| self.has_memory(v)) {
                Some(value) => match self.place(name, place, symbols) {
                    Ok(placed) => out[value] = Some(placed),
                    Err(error) => errors.push(error),
                },
                None => errors.push(Unresolved::PlaceUnknown { value: name.clone() }),
            }
        }
        let values = self.graph.values.iter().filter(|&(id, _)| self.has_memory(id)).map(|(_, v)| &v.name);
        let missing = values.filter(|&name| !bucket.places.contains_key(name));
        errors.extend(missing.map(|value| Unresolved::PlaceMissing { value: value.clone() }));
        (out, errors)
    }

    pub(crate) fn place(&self, name: &str, place: &Place, symbols: &Symbols) -> Result<Placed, Unresolved> {
        let dim = |text: &str| {
            // Most offsets are numbers.
            if (1..18).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit()) {
                return Ok(Dim::from(text.bytes().fold(0, |n: i64, b| 10 * n + i64::from(b - b'0'))));
            }
            text::parse_dim(text, symbols).map_err(|error| Unresolved::PlaceDim {
                value: name.to_string(),
                text: text.to_string(),
                error: error.to_string(),
            })
        };
        let offset = dim(&place.offset)?;
        let by_rank = match &place.by_rank {
            None => None,
            Some(by_rank) => {
                let stride = dim(&by_rank.stride)?;
                let group = self.graph.groups.iter().find(|(_, g)| g.name == by_rank.group);
                let (group, _) = group.ok_or_else(|| Unresolved::PlaceGroup {
                    value: name.to_string(),
                    group: by_rank.group.clone(),
                })?;
                Some((group, stride))
            }
        };
        Ok(Placed { memory: place.memory, offset, by_rank })
    }

    pub fn runs(&self, bucket: &Bucket) -> impl Iterator<Item = Result<Run, Unresolved>> {
        let unknown = |(step, s): (usize, &Step)| Unresolved::StepUnknown { step, found: s.node.clone() };
        bucket.steps.iter().enumerate().map(move |s| self.run(&s.1.node).ok_or_else(|| unknown(s)))
    }

    /// A step is named by its node, or by the first one of its dispatch; a node by its first result.
    fn run(&self, name: &str) -> Option<Run> {
        let first = self.graph.def_node(self.named(name)?)?;
        let dispatch = self.dispatch_of[first].and_then(|d| self.graph.dispatches.get(d)).copied();
        let named = self.graph.node_name(first) == name && !self.is_view(first);
        let begins = dispatch.is_none_or(|d| d.first == first);
        (named && begins).then_some(Run { first, dispatch })
    }
}

impl Unresolved {
    /// The name of the rule that is broken, the same whatever breaks it.
    pub fn kind(&self) -> &'static str {
        match self {
            Unresolved::BucketSymbols { .. } => "BucketSymbols",
            Unresolved::PlaceMissing { .. } => "PlaceMissing",
            Unresolved::PlaceUnknown { .. } => "PlaceUnknown",
            Unresolved::PlaceDim { .. } => "PlaceDim",
            Unresolved::PlaceGroup { .. } => "PlaceGroup",
            Unresolved::StepUnknown { .. } => "StepUnknown",
        }
    }
}

impl Run {
    /// Its nodes, in program order.
    pub fn nodes(self) -> impl Iterator<Item = NodeId> {
        let last = self.dispatch.map_or(self.first, |d| d.last);
        (self.first.index()..=last.index()).map(NodeId::new)
    }

    /// The operands that other steps define, each with the node that reads it and its number there.
    pub fn operands(self, program: &ReadProgram) -> impl Iterator<Item = (NodeId, usize, ValueId)> + '_ {
        let graph = &program.graph;
        let all =
            self.nodes().flat_map(|n| graph.nodes[n].inputs.iter().enumerate().map(move |(k, &x)| (n, k, x)));
        let own = move |x: ValueId| {
            let def = graph.def_node(program.base(x));
            self.dispatch.zip(def).is_some_and(|(dispatch, n)| dispatch.has(n))
        };
        all.filter(move |(_, _, x)| !own(*x))
    }

    pub fn results(self, program: &ReadProgram) -> Vec<ValueId> {
        let all = self.nodes().flat_map(|n| program.graph.nodes[n].outputs.iter().copied());
        all.filter(|&v| !program.inner[v]).collect()
    }
}
