//! Bounds checks: conditions on the sizes of a run under which no node reads outside an axis.
//!
//! Extents, starts of slices and indices may depend on symbols, so the sizes of a run decide whether a program
//! stays within its axes. [`BoundsChecks::derive`] derives the conditions from a program. There is one
//! condition for each slice, `topk`, gather or scatter of elements. There is also one for each index operand
//! whose elements are known before the run: a series ([`crate::positions`]), or a value computed from
//! constants. Conditions that hold for all values of the symbols are omitted.
//!
//! Every backend evaluates the conditions of the *source* of a plan when it binds the sizes of a run, before
//! any step. Passes may therefore merge, move and drop slices, and turn indices into slices, as long as these
//! conditions cover the indices of the source. A rewrite cannot lose a check that is not derived from its
//! result. Nodes that no output needs are checked as well, as in the interpreter.
//!
//! Indices that are data (arguments, parameters, values computed from them) are not covered. Kernels check them
//! when they read.

use std::collections::{HashMap, HashSet};
use std::fmt;

use crate::dim::{Dim, SymbolBindings};
use crate::graph::{Graph, Node, ValueDef};
use crate::ids::{NodeId, ValueId};
use crate::op::{ExtentRule, Op};
use crate::positions::{IntegerRange, PositionCache, constant_elements};
use crate::symbol::SymbolTable;
use crate::text::op_name;

/// An error: a node reads outside an axis at the sizes of a run.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("%{node} ({op}): {message}")]
pub struct OutOfBounds {
    /// The name of the node's first result.
    pub node: String,
    pub op: &'static str,
    /// The index, the axis and the extent of the axis.
    pub message: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BoundsChecks {
    checks: Vec<BoundsCheck>,
    /// Nodes with index operands for which [`covers`](Self::covers) holds.
    covered: HashSet<NodeId>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct BoundsCheck {
    node: NodeId,
    operand: ValueId,
    axis: usize,
    required: BoundsCondition,
    /// The node reads nothing, and the check is skipped, unless each of these is at least 1.
    counts: Vec<Dim>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum BoundsCondition {
    /// The least and the greatest index lie within the axis.
    Within(IntegerRange),
    AtLeast(Dim),
}

impl BoundsChecks {
    /// Derives the bounds checks of a program that satisfies the verifier.
    pub fn derive(graph: &Graph) -> Self {
        let facts = PositionCache::of_graph(graph);
        let mut indices = IndexRanges { graph, facts, constants: HashMap::new() };
        let mut out = BoundsChecks::default();
        for (id, node) in graph.nodes.iter() {
            out.add_extent_checks(graph, id, node);
            out.add_index_checks(&mut indices, id, node);
        }
        out
    }

    /// Whether runs ensure that all known elements of this node's index operands lie within their axes. This is
    /// the case if they do for all sizes, or if a check tests it for the sizes of the run. A check of an
    /// operand that may be empty does not count, because it is then skipped.
    pub fn covers(&self, node: NodeId) -> bool {
        self.covered.contains(&node)
    }

    pub fn is_empty(&self) -> bool {
        self.checks.is_empty()
    }

    pub fn evaluate(&self, graph: &Graph, bindings: &SymbolBindings) -> Result<(), OutOfBounds> {
        self.checks.iter().try_for_each(|check| check.evaluate(graph, bindings))
    }

    /// Adds the conditions that depend only on extents and attributes.
    fn add_extent_checks(&mut self, graph: &Graph, id: NodeId, node: &Node) {
        let (Some(&x), Some(&y)) = (node.inputs.first(), node.outputs.first()) else { return };
        let result = &graph.ty(y).shape;
        let mut add = |axis, required, counts| {
            self.push_check(graph, BoundsCheck { node: id, operand: x, axis, required, counts });
        };
        match node.op.facts().extents {
            ExtentRule::Any => {}
            // Frontends state a requirement as a slice of an iota.
            ExtentRule::PositionsOfOperand { axis, start, step: 1 }
                if start.as_const() == Some(0) && is_unit_iota(graph, x) =>
            {
                add(axis, BoundsCondition::AtLeast(result[axis].clone()), vec![]);
            }
            ExtentRule::PositionsOfOperand { axis, start, step } => {
                let count = result[axis].clone();
                let last_position = start.clone() + (count.clone() - Dim::from(1)) * Dim::from(step);
                let read = IntegerRange::new(start.clone(), last_position);
                add(axis, BoundsCondition::Within(read), vec![count]);
            }
            ExtentRule::AtMostOperand { axis } => {
                add(axis, BoundsCondition::AtLeast(result[axis].clone()), vec![]);
            }
            ExtentRule::IndexAtMostOperand { except } => {
                let index = &graph.ty(node.inputs[1]).shape;
                for (axis, extent) in index.iter().enumerate().filter(|(axis, _)| *axis != except) {
                    add(axis, BoundsCondition::AtLeast(extent.clone()), vec![]);
                }
            }
        }
    }

    /// Adds the conditions of the index operands of a node, as far as their elements are known.
    fn add_index_checks(&mut self, indices: &mut IndexRanges<'_>, id: NodeId, node: &Node) {
        let graph = indices.graph;
        let operands = node.op.index_operands(node.inputs.len());
        let mut covered = !operands.is_empty();
        for (position, axis) in operands {
            let operand = node.inputs[0];
            let index = node.inputs[position];
            let shape = &graph.ty(index).shape;
            let Some(range) = indices.range_of_indices(index) else {
                covered = false;
                continue;
            };
            let counts: Vec<Dim> = shape.iter().filter(|d| d.bounds(&graph.symbols).0 < 1).cloned().collect();
            let may_be_empty = !counts.is_empty();
            let required = BoundsCondition::Within(range);
            let check = BoundsCheck { node: id, operand, axis, required, counts };
            covered &= !may_be_empty || check.always_holds(graph);
            self.push_check(graph, check);
        }
        if covered {
            self.covered.insert(id);
        }
    }

    fn push_check(&mut self, graph: &Graph, check: BoundsCheck) {
        if !check.always_holds(graph) {
            self.checks.push(check);
        }
    }
}

/// Whether a value is an iota with the elements 0, 1, 2, …
fn is_unit_iota(graph: &Graph, value: ValueId) -> bool {
    let ValueDef::Node(node, _) = graph.values[value].def else { return false };
    matches!(graph.nodes[node].op, Op::Iota { start: 0, step: 1 })
}

impl BoundsCheck {
    fn extent<'g>(&self, graph: &'g Graph) -> &'g Dim {
        &graph.ty(self.operand).shape[self.axis]
    }

    fn always_holds(&self, graph: &Graph) -> bool {
        let extent = self.extent(graph);
        let symbols = &graph.symbols;
        match &self.required {
            BoundsCondition::Within(range) => range.is_within_axis(extent, symbols),
            BoundsCondition::AtLeast(count) => count.provably_le(extent, symbols),
        }
    }

    fn evaluate(&self, graph: &Graph, bindings: &SymbolBindings) -> Result<(), OutOfBounds> {
        if self.counts.iter().any(|count| count.eval(bindings).is_some_and(|n| n < 1)) {
            return Ok(());
        }
        let extent = self.extent(graph);
        let n = extent.eval(bindings);
        let shown =
            |dim: &Dim| EvaluatedDim { dim, value: dim.eval(bindings), symbols: &graph.symbols }.to_string();
        let axis = self.axis;
        let operand = graph.value_name(self.operand);
        let message = match &self.required {
            BoundsCondition::Within(IntegerRange { least, greatest }) => {
                let inside =
                    |dim: &Dim| matches!((dim.eval(bindings), n), (Some(i), Some(n)) if 0 <= i && i < n);
                let Some(index) = [least, greatest].into_iter().find(|dim| !inside(dim)) else {
                    return Ok(());
                };
                let index = shown(index);
                let extent = shown(extent);
                format!("index {index} is outside axis {axis} of %{operand}, whose extent is {extent}")
            }
            BoundsCondition::AtLeast(count) => {
                if matches!((count.eval(bindings), n), (Some(count), Some(n)) if count <= n) {
                    return Ok(());
                }
                let count = shown(count);
                let extent = shown(extent);
                format!("expected at most {extent} elements along axis {axis} of %{operand}, found {count}")
            }
        };
        let node = &graph.nodes[self.node];
        Err(OutOfBounds { node: graph.node_name(self.node).to_string(), op: op_name(&node.op), message })
    }
}

/// A dim with its value: `5`, `n = 3`.
struct EvaluatedDim<'a> {
    dim: &'a Dim,
    value: Option<i64>,
    symbols: &'a SymbolTable,
}

impl fmt::Display for EvaluatedDim<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.dim.as_const().is_none() {
            write!(f, "{} = ", self.dim.display(self.symbols))?;
        }
        match self.value {
            Some(value) => write!(f, "{value}"),
            None => f.write_str("undefined"),
        }
    }
}

struct IndexRanges<'g> {
    graph: &'g Graph,
    facts: PositionCache,
    /// The ranges of values computed from constants, if known.
    constants: HashMap<ValueId, Option<IntegerRange>>,
}

impl IndexRanges<'_> {
    /// The least and the greatest index, exactly: a wider range would reject runs.
    fn range_of_indices(&mut self, index: ValueId) -> Option<IntegerRange> {
        let form = self.facts.facts(self.graph).exact(index);
        if let Some(range) = form.and_then(|form| form.ends(&self.graph.ty(index).shape)) {
            return Some(range);
        }
        let mut value = index;
        // Ops that preserve all elements may have any shape.
        while let ValueDef::Node(node, _) = self.graph.values[value].def {
            let Node { op, inputs, .. } = &self.graph.nodes[node];
            if !matches!(op, Op::Reshape | Op::Permute { .. } | Op::Expand | Op::Copy) {
                break;
            }
            value = *inputs.first()?;
        }
        let range = self.constants.entry(value).or_insert_with(|| {
            let elements = constant_elements(self.graph, value)?;
            Some(IntegerRange::new(*elements.iter().min()?, *elements.iter().max()?))
        });
        range.clone()
    }
}
