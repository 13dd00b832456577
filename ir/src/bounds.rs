//! Bounds checks: what the sizes of a run must satisfy so that no node reads outside of an axis.
//!
//! Extents, starts of slices and indices may depend on symbols, so whether a program stays within its axes can depend on
//! the sizes of a run. [`BoundsChecks::of`] derives the conditions from a program: one for each slice, `topk`, gather or
//! scatter of elements, and for each index operand whose elements are known without running (a constant, a series, or
//! what is computed from these; see [`crate::known`]). Conditions that hold for all values of the symbols are left out.
//!
//! Every backend evaluates the conditions of the *source* of a plan when it binds the sizes of a run, before any step.
//! Passes may therefore merge, move and drop slices, and turn indices into slices, as long as these conditions cover
//! what the source indexes: a rewrite cannot lose a check that is not derived from its result. A node counts whether or
//! not an output needs it, as in the interpreter.
//!
//! Indices that are data (arguments, parameters, what is computed from them) are not here: kernels check them where they
//! read.

use std::collections::HashSet;
use std::fmt;

use crate::dim::{Bindings, Dim};
use crate::entity::Table;
use crate::graph::{Def, Graph, Node};
use crate::ids::{NodeId, ValueId};
use crate::known::{Known, Symbols, is_within};
use crate::op::Op;
use crate::text::op_name;
use crate::types::DType;

/// Index operands with more elements than this are checked by the kernels alone, unless they are series.
const MAX_ELEMENTS: usize = 1 << 20;

/// A node that reads outside of an axis at the sizes of a run.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("%{node} ({op}): {message}")]
pub struct OutOfBounds {
    /// The name of the node's first result.
    pub node: String,
    /// The name of its op.
    pub op: &'static str,
    /// The index, the axis and its extent.
    pub message: String,
}

/// The bounds checks of a program (see the [module](self)).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BoundsChecks {
    checks: Vec<BoundsCheck>,
    /// Nodes with index operands for which [`covers`](Self::covers) holds.
    covered: HashSet<NodeId>,
}

/// One condition on the sizes.
#[derive(Clone, PartialEq, Eq, Debug)]
struct BoundsCheck {
    node: NodeId,
    operand: ValueId,
    axis: usize,
    required: Required,
    /// Nothing is read unless each of these is at least 1.
    counts: Vec<Dim>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Required {
    /// The least and the greatest index lie within the axis.
    Within { first: Dim, last: Dim },
    /// The axis has at least this many elements.
    AtLeast(Dim),
}

impl BoundsChecks {
    /// Derives the bounds checks of a program that satisfies the verifier.
    pub fn of(graph: &Graph) -> Self {
        let known = Known::of_graph(graph);
        let mut out = BoundsChecks::default();
        for (id, node) in graph.nodes.iter() {
            out.add_extents(graph, id, node);
            out.add_indices(graph, &known, id, node);
        }
        out
    }

    /// Whether runs ensure that all known elements of this node's index operands lie within their axes: they do for all sizes,
    /// or a check here says so for the sizes of the run. A check of an operand that may have no elements does not, because
    /// it is skipped then.
    pub fn covers(&self, node: NodeId) -> bool {
        self.covered.contains(&node)
    }

    /// Whether no size can violate a check.
    pub fn is_empty(&self) -> bool {
        self.checks.is_empty()
    }

    /// Evaluates the checks for the sizes of a run.
    ///
    /// # Errors
    /// The first node that reads outside of an axis.
    pub fn evaluate(&self, graph: &Graph, bindings: &Bindings) -> Result<(), OutOfBounds> {
        self.checks.iter().try_for_each(|check| check.evaluate(graph, bindings))
    }

    /// Adds what depends on extents and attributes alone.
    fn add_extents(&mut self, graph: &Graph, id: NodeId, node: &Node) {
        let (Some(&x), Some(&y)) = (node.inputs.first(), node.outputs.first()) else { return };
        let result = &graph.ty(y).shape;
        match &node.op {
            Op::Slice { axis, start, step } => {
                let count = result[*axis].clone();
                let last = start.clone() + (count.clone() - Dim::from(1)) * Dim::from(*step);
                let required = Required::Within { first: start.clone(), last };
                self.add(
                    graph,
                    BoundsCheck { node: id, operand: x, axis: *axis, required, counts: vec![count] },
                );
            }
            Op::TopK { axis, .. } => {
                let required = Required::AtLeast(result[*axis].clone());
                self.add(graph, BoundsCheck { node: id, operand: x, axis: *axis, required, counts: vec![] });
            }
            Op::GatherElements { axis } | Op::ScatterElements { axis, .. } => {
                let index = &graph.ty(node.inputs[1]).shape;
                for (a, extent) in index.iter().enumerate().filter(|(a, _)| a != axis) {
                    let required = Required::AtLeast(extent.clone());
                    self.add(graph, BoundsCheck { node: id, operand: x, axis: a, required, counts: vec![] });
                }
            }
            _ => {}
        }
    }

    /// Adds what the index operands of a node read, as far as it is known.
    fn add_indices(&mut self, graph: &Graph, known: &Table<ValueId, Option<Known>>, id: NodeId, node: &Node) {
        let operands = node.op.index_operands(node.inputs.len());
        let mut covered = !operands.is_empty();
        for (position, axis) in operands {
            let (operand, index) = (node.inputs[0], node.inputs[position]);
            let shape = &graph.ty(index).shape;
            let ends = match &known[index] {
                Some(known) => known.ends(shape),
                None => constant_ends(graph, index),
            };
            let Some((first, last)) = ends else {
                covered = false;
                continue;
            };
            let counts: Vec<Dim> = shape.iter().filter(|d| d.bounds(&graph.symbols).0 < 1).cloned().collect();
            let may_be_empty = !counts.is_empty();
            let required = Required::Within { first, last };
            let check = BoundsCheck { node: id, operand, axis, required, counts };
            covered &= !may_be_empty || check.always_holds(graph);
            self.add(graph, check);
        }
        if covered {
            self.covered.insert(id);
        }
    }

    fn add(&mut self, graph: &Graph, check: BoundsCheck) {
        if !check.always_holds(graph) {
            self.checks.push(check);
        }
    }
}

impl BoundsCheck {
    fn extent<'g>(&self, graph: &'g Graph) -> &'g Dim {
        &graph.ty(self.operand).shape[self.axis]
    }

    fn always_holds(&self, graph: &Graph) -> bool {
        let (extent, symbols) = (self.extent(graph), &graph.symbols);
        match &self.required {
            Required::Within { first, last } => is_within(first, last, extent, symbols),
            Required::AtLeast(count) => count.provably_le(extent, symbols),
        }
    }

    fn evaluate(&self, graph: &Graph, bindings: &Bindings) -> Result<(), OutOfBounds> {
        if self.counts.iter().any(|count| count.eval(bindings).is_some_and(|n| n < 1)) {
            return Ok(());
        }
        let extent = self.extent(graph);
        let n = extent.eval(bindings);
        let shown = |dim: &Dim| Shown { dim, value: dim.eval(bindings), symbols: &graph.symbols }.to_string();
        let (axis, operand) = (self.axis, graph.name_of(self.operand));
        let message = match &self.required {
            Required::Within { first, last } => {
                let inside =
                    |dim: &Dim| matches!((dim.eval(bindings), n), (Some(i), Some(n)) if 0 <= i && i < n);
                let Some(index) = [first, last].into_iter().find(|dim| !inside(dim)) else { return Ok(()) };
                let (index, extent) = (shown(index), shown(extent));
                format!("index {index} is outside axis {axis} of %{operand}, whose extent is {extent}")
            }
            Required::AtLeast(count) => {
                if matches!((count.eval(bindings), n), (Some(count), Some(n)) if count <= n) {
                    return Ok(());
                }
                let (count, extent) = (shown(count), shown(extent));
                format!("expected at most {extent} elements along axis {axis} of %{operand}, found {count}")
            }
        };
        let node = &graph.nodes[self.node];
        Err(OutOfBounds { node: graph.node_name(self.node).to_string(), op: op_name(&node.op), message })
    }
}

/// A dim with its value: `5`, `n = 3`.
struct Shown<'a> {
    dim: &'a Dim,
    value: Option<i64>,
    symbols: &'a Symbols,
}

impl fmt::Display for Shown<'_> {
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

/// The least and the greatest element of what is a constant under ops that keep its elements.
fn constant_ends(graph: &Graph, mut value: ValueId) -> Option<(Dim, Dim)> {
    let input = loop {
        match graph.values[value].def {
            Def::Input(input) => break &graph.inputs[input],
            Def::Node(node, _) => {
                let Node { op, inputs, .. } = &graph.nodes[node];
                let x = *inputs.first()?;
                let (from, to) = (graph.ty(x).dtype, graph.ty(value).dtype);
                let same = match op {
                    Op::Reshape | Op::Permute { .. } | Op::Expand | Op::Copy => true,
                    // Every element of a narrower integer type is one of i64.
                    Op::Cast => to == DType::I64 && !from.is_float(),
                    _ => false,
                };
                value = same.then_some(x)?;
            }
        }
    };
    let data = input.data.as_ref().filter(|t| !t.dtype().is_float() && t.numel() <= MAX_ELEMENTS)?;
    let elements = data.to_i64();
    Some((Dim::from(*elements.iter().min()?), Dim::from(*elements.iter().max()?)))
}
