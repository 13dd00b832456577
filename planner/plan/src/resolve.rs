//! A plan in resolved form: programs are graphs, names are ids, offsets are dims.
//!
//! The wire form refers to programs, values, nodes and groups by text. Users of a plan parse each program once
//! ([`ParsedProgram::parse`]), and resolve symbols, places and steps of a bucket against it. This module checks
//! only that names and texts can be resolved. The plan check verifies that the plan is safe.

use std::collections::HashMap;

use symmc_ir::entity::Entity;
use symmc_ir::layout::{Layout, compute_layouts};
use symmc_ir::text::{self, ParseError};
use symmc_ir::verify::{Violation, verify_derived};
use symmc_ir::{Dim, Dispatch, EntityMap, Graph, GroupId, NodeId, Symbol, SymbolTable, ValueId};
use thiserror::Error;

use crate::{Bucket, MemoryRef, ValuePlacement};

#[derive(Clone, Debug)]
pub struct ParsedProgram {
    pub graph: Graph,
    /// The layout of each value within its base.
    pub layouts: EntityMap<ValueId, Layout>,
    dispatch_of: EntityMap<NodeId, Option<usize>>,
    inner: EntityMap<ValueId, bool>,
    names: HashMap<String, ValueId>,
}

#[derive(Clone, PartialEq, Debug, Error)]
pub enum ProgramReadError {
    #[error("{0}")]
    Text(ParseError),
    #[error("{}", .0.first().map(ToString::to_string).unwrap_or_default())]
    Invalid(Vec<Violation>),
}

/// A part of a bucket that its program does not have, or that is missing.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ResolveError {
    #[error("the bucket has symbols {found:?}, but its program has symbols {expected:?}")]
    BucketSymbols { expected: Vec<String>, found: Vec<String> },
    #[error("%{value} has no place")]
    PlaceMissing { value: String },
    #[error("a place is given for %{value}, which is not a base value of the program")]
    PlaceUnknown { value: String },
    #[error("the place of %{value} contains {text:?}: {error}")]
    PlaceDim { value: String, text: String, error: String },
    #[error("the place of %{value} depends on the rank within group {group}, which does not exist")]
    PlaceGroup { value: String, group: String },
    #[error("step {step}: %{found} does not name a node that is a step")]
    StepUnknown { step: usize, found: String },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResolvedPlacement {
    pub memory: MemoryRef,
    /// The offset of the first byte within the memory.
    pub offset: Dim,
    /// The group whose ranks are counted, and the bytes that are added for each rank before this one.
    pub by_rank: Option<(GroupId, Dim)>,
}

/// The nodes of a step: one node, or the nodes of a dispatch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepNodes {
    /// The node, or the first node of the dispatch.
    pub first: NodeId,
    pub dispatch: Option<Dispatch>,
}

impl ParsedProgram {
    pub fn parse(text: &str) -> Result<ParsedProgram, ProgramReadError> {
        let graph = text::parse(text).map_err(ProgramReadError::Text)?;
        verify_derived(&graph).map_err(ProgramReadError::Invalid)?;
        Ok(ParsedProgram::from_graph(graph))
    }

    /// The program of a valid graph.
    pub fn from_graph(graph: Graph) -> ParsedProgram {
        let layouts = compute_layouts(&graph);
        let dispatch_of = graph.dispatch_by_node();
        let inner = graph.dispatch_internal_values(|v| layouts[v].base);
        let names = graph.values.iter().map(|(id, v)| (v.name.clone(), id)).collect();
        ParsedProgram { graph, layouts, dispatch_of, inner, names }
    }

    pub fn value_by_name(&self, name: &str) -> Option<ValueId> {
        self.names.get(name).copied()
    }

    pub(crate) fn layout(&self, value: ValueId) -> &Layout {
        &self.layouts[value]
    }

    pub fn base(&self, value: ValueId) -> ValueId {
        self.layouts[value].base
    }

    /// Whether a value has no memory because only the nodes of one dispatch use it.
    pub fn is_dispatch_internal(&self, value: ValueId) -> bool {
        self.inner[value]
    }

    /// Whether a value has its own memory, that is, it is neither a view nor internal to a dispatch.
    pub fn has_memory(&self, value: ValueId) -> bool {
        self.base(value) == value && !self.inner[value]
    }

    /// Whether a node only yields another view of existing memory.
    pub fn is_view(&self, node: NodeId) -> bool {
        let node = &self.graph.nodes[node];
        node.op.is_view() && node.outputs.first().is_some_and(|&v| self.base(v) != v)
    }

    pub fn resolve_symbols(&self, bucket: &Bucket) -> Result<SymbolTable, ResolveError> {
        let symbols = &self.graph.symbols;
        let ranged = symbols.values().map(|symbol| {
            let &[min, max] = bucket.symbols.get(&symbol.name)?;
            Some(Symbol { min, max, ..symbol.clone() })
        });
        let resolved: Option<SymbolTable> = ranged.collect();
        resolved.filter(|_| bucket.symbols.len() == symbols.len()).ok_or_else(|| {
            ResolveError::BucketSymbols {
                expected: symbols.values().map(|s| s.name.clone()).collect(),
                found: bucket.symbols.keys().cloned().collect(),
            }
        })
    }

    /// The place of each value with memory, and the entries that do not resolve.
    pub fn resolve_placements(
        &self,
        bucket: &Bucket,
        symbols: &SymbolTable,
    ) -> (EntityMap<ValueId, Option<ResolvedPlacement>>, Vec<ResolveError>) {
        let mut errors = Vec::new();
        let mut out = EntityMap::filled(None, self.graph.values.len());
        for (name, placement) in &bucket.places {
            match self.value_by_name(name).filter(|&v| self.has_memory(v)) {
                Some(value) => match self.resolve_placement(name, placement, symbols) {
                    Ok(placed) => out[value] = Some(placed),
                    Err(error) => errors.push(error),
                },
                None => errors.push(ResolveError::PlaceUnknown { value: name.clone() }),
            }
        }
        let values = self.graph.values.iter().filter(|&(id, _)| self.has_memory(id)).map(|(_, v)| &v.name);
        let missing = values.filter(|&name| !bucket.places.contains_key(name));
        errors.extend(missing.map(|value| ResolveError::PlaceMissing { value: value.clone() }));
        (out, errors)
    }

    pub(crate) fn resolve_placement(
        &self,
        name: &str,
        place: &ValuePlacement,
        symbols: &SymbolTable,
    ) -> Result<ResolvedPlacement, ResolveError> {
        let offset = parse_placement_dim(name, &place.offset, symbols)?;
        let by_rank = match &place.by_rank {
            None => None,
            Some(by_rank) => {
                let stride = parse_placement_dim(name, &by_rank.stride, symbols)?;
                let group = self.graph.groups.iter().find(|(_, g)| g.name == by_rank.group);
                let (group, _) = group.ok_or_else(|| ResolveError::PlaceGroup {
                    value: name.to_string(),
                    group: by_rank.group.clone(),
                })?;
                Some((group, stride))
            }
        };
        Ok(ResolvedPlacement { memory: place.memory, offset, by_rank })
    }

    pub fn resolve_steps(&self, bucket: &Bucket) -> impl Iterator<Item = Result<StepNodes, ResolveError>> {
        bucket.steps.iter().enumerate().map(move |(index, step)| {
            let nodes = self.resolve_step(&step.node);
            nodes.ok_or_else(|| ResolveError::StepUnknown { step: index, found: step.node.clone() })
        })
    }

    /// Finds a step by its name: the name of its node or of the first node of its dispatch. The name of a node
    /// is that of its first result.
    fn resolve_step(&self, name: &str) -> Option<StepNodes> {
        let first = self.graph.defining_node(self.value_by_name(name)?)?;
        let dispatch = self.dispatch_of[first].and_then(|d| self.graph.dispatches.get(d)).copied();
        let named = self.graph.node_name(first) == name && !self.is_view(first);
        let begins = dispatch.is_none_or(|d| d.first == first);
        (named && begins).then_some(StepNodes { first, dispatch })
    }
}

/// Parses a dim of the placement of the value with this name.
fn parse_placement_dim(name: &str, text: &str, symbols: &SymbolTable) -> Result<Dim, ResolveError> {
    // Most offsets are numbers.
    if (1..18).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit()) {
        return Ok(Dim::from(text.bytes().fold(0, |n: i64, b| 10 * n + i64::from(b - b'0'))));
    }
    text::parse_dim(text, symbols).map_err(|error| ResolveError::PlaceDim {
        value: name.to_string(),
        text: text.to_string(),
        error: error.to_string(),
    })
}

impl ResolveError {
    /// The name of the kind of error, which does not depend on its fields.
    pub fn kind(&self) -> &'static str {
        match self {
            ResolveError::BucketSymbols { .. } => "BucketSymbols",
            ResolveError::PlaceMissing { .. } => "PlaceMissing",
            ResolveError::PlaceUnknown { .. } => "PlaceUnknown",
            ResolveError::PlaceDim { .. } => "PlaceDim",
            ResolveError::PlaceGroup { .. } => "PlaceGroup",
            ResolveError::StepUnknown { .. } => "StepUnknown",
        }
    }
}

impl StepNodes {
    /// The nodes, in program order.
    pub fn nodes(self) -> impl Iterator<Item = NodeId> {
        let last_node = self.dispatch.map_or(self.first, |d| d.last);
        (self.first.index()..=last_node.index()).map(NodeId::new)
    }

    /// The operands that other steps define: the node that reads each, the operand's position there, and the
    /// value.
    pub fn operands(self, program: &ParsedProgram) -> impl Iterator<Item = (NodeId, usize, ValueId)> + '_ {
        let graph = &program.graph;
        let reads =
            self.nodes().flat_map(|n| graph.nodes[n].inputs.iter().enumerate().map(move |(k, &x)| (n, k, x)));
        reads.filter(move |&(_, _, x)| {
            let def = graph.defining_node(program.base(x));
            !self.dispatch.zip(def).is_some_and(|(dispatch, n)| dispatch.contains(n))
        })
    }

    pub fn results(self, program: &ParsedProgram) -> Vec<ValueId> {
        let values = self.nodes().flat_map(|n| program.graph.nodes[n].outputs.iter().copied());
        values.filter(|&v| !program.inner[v]).collect()
    }
}
