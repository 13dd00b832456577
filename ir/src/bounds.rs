//! Bounds checks: conditions on the sizes of a run under which no node reads outside an axis.
//!
//! Extents, starts of slices and indices may depend on symbols, so the sizes of a run decide whether a program
//! stays within its axes. [`BoundsChecks::derive`] derives the conditions from a program. There is one
//! condition for each slice, `topk`, gather or scatter of elements. There is also one for each index operand
//! whose elements are known before the run: a series ([`crate::closed_form`]), or a value computed from
//! constants. Conditions that hold for all values of the symbols are omitted.
//!
//! Every backend evaluates the conditions of the *source* of a plan when it binds the sizes of a run, before
//! any step. Passes may therefore merge, move and drop slices, and turn indices into slices, as long as these
//! conditions cover the indices of the source. A rewrite cannot lose a check that is not derived from its
//! result. Nodes that no output needs are checked as well, as in the interpreter.
//!
//! Indices that are data (arguments, parameters, values computed from them) are not covered. Kernels check them
//! when they read.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;

use crate::closed_form::{ClosedForm, is_range_within_axis};
use crate::dim::{Dim, SymbolBindings};
use crate::entity::EntityMap;
use crate::graph::{Graph, GraphOutput, InputKind, Node, OutputKind, ValueDef};
use crate::ids::{NodeId, ValueId};
use crate::interp;
use crate::op::Op;
use crate::symbol::SymbolTable;
use crate::tensor::Tensor;
use crate::text::{op_dims, op_name};

/// The maximum number of elements that are computed for an index operand. Larger operands that are not series
/// are checked by kernels only.
const MAX_ELEMENTS: usize = 1 << 18;
/// The maximum number of nodes that are evaluated for an index operand. Operands that need more are checked by
/// kernels only.
const MAX_NODES: usize = 64;

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
    Within {
        first: Dim,
        last: Dim,
    },
    AtLeast(Dim),
}

impl BoundsChecks {
    /// Derives the bounds checks of a program that satisfies the verifier.
    pub fn derive(graph: &Graph) -> Self {
        let mut indices =
            IndexRanges { graph, known: ClosedForm::of_graph(graph), constants: HashMap::new() };
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
        match &node.op {
            // Frontends state a requirement as a slice of an iota.
            Op::Slice { axis, start, step: 1 } if start.as_const() == Some(0) && is_unit_iota(graph, x) => {
                let required = BoundsCondition::AtLeast(result[*axis].clone());
                self.push_check(
                    graph,
                    BoundsCheck { node: id, operand: x, axis: *axis, required, counts: vec![] },
                );
            }
            Op::Slice { axis, start, step } => {
                let count = result[*axis].clone();
                let last_position = start.clone() + (count.clone() - Dim::from(1)) * Dim::from(*step);
                let required = BoundsCondition::Within { first: start.clone(), last: last_position };
                self.push_check(
                    graph,
                    BoundsCheck { node: id, operand: x, axis: *axis, required, counts: vec![count] },
                );
            }
            Op::TopK { axis, .. } => {
                let required = BoundsCondition::AtLeast(result[*axis].clone());
                self.push_check(
                    graph,
                    BoundsCheck { node: id, operand: x, axis: *axis, required, counts: vec![] },
                );
            }
            Op::GatherElements { axis } | Op::ScatterElements { axis, .. } => {
                let index = &graph.ty(node.inputs[1]).shape;
                for (a, extent) in index.iter().enumerate().filter(|(a, _)| a != axis) {
                    let required = BoundsCondition::AtLeast(extent.clone());
                    self.push_check(
                        graph,
                        BoundsCheck { node: id, operand: x, axis: a, required, counts: vec![] },
                    );
                }
            }
            _ => {}
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
            let Some((first, last)) = indices.range_of_indices(index) else {
                covered = false;
                continue;
            };
            let counts: Vec<Dim> = shape.iter().filter(|d| d.bounds(&graph.symbols).0 < 1).cloned().collect();
            let may_be_empty = !counts.is_empty();
            let required = BoundsCondition::Within { first, last };
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
            BoundsCondition::Within { first, last } => is_range_within_axis(first, last, extent, symbols),
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
            BoundsCondition::Within { first, last } => {
                let inside =
                    |dim: &Dim| matches!((dim.eval(bindings), n), (Some(i), Some(n)) if 0 <= i && i < n);
                let Some(index) = [first, last].into_iter().find(|dim| !inside(dim)) else { return Ok(()) };
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
    known: EntityMap<ValueId, Option<ClosedForm>>,
    /// The least and the greatest element of values computed from constants, if known.
    constants: HashMap<ValueId, Option<(i64, i64)>>,
}

impl IndexRanges<'_> {
    fn range_of_indices(&mut self, index: ValueId) -> Option<(Dim, Dim)> {
        if let Some(form) = &self.known[index] {
            return form.value_range(&self.graph.ty(index).shape);
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
            Some((*elements.iter().min()?, *elements.iter().max()?))
        });
        range.map(|(min, max)| (Dim::from(min), Dim::from(max)))
    }
}

/// The elements of an integer value that few nodes compute from constants, all with known extents.
fn constant_elements(graph: &Graph, value: ValueId) -> Option<Vec<i64>> {
    let mut nodes = BTreeSet::new();
    let mut inputs = BTreeSet::new();
    let mut open = vec![value];
    let mut elements = 0_usize;
    while let Some(value) = open.pop() {
        let extents = graph.ty(value).shape.iter().map(|d| usize::try_from(d.as_const()?).ok());
        let count = extents.into_iter().try_fold(1_usize, |n, d| n.checked_mul(d?))?;
        elements = elements.checked_add(count).filter(|n| *n <= MAX_ELEMENTS)?;
        match graph.values[value].def {
            ValueDef::Input(input) => {
                graph.inputs[input].data.as_ref()?;
                inputs.insert(input);
            }
            ValueDef::Node(node, _) if nodes.insert(node) => {
                let Node { op, inputs, .. } = &graph.nodes[node];
                let is_known = op_dims(op).iter().all(|d| d.as_const().is_some());
                let is_local = !op.is_opaque() && op.as_collective().is_none();
                (is_known && is_local && nodes.len() <= MAX_NODES).then_some(())?;
                open.extend(inputs);
            }
            ValueDef::Node(..) => {}
        }
    }
    let mut subgraph = Graph { ranks: Some(1), ..Graph::new("constants") };
    let mut new = HashMap::new();
    for id in inputs {
        let input = &graph.inputs[id];
        let old = &graph.values[graph.inputs[id].value];
        let name = old.name.clone();
        let ty = old.ty.clone();
        let data = input.data.clone();
        new.insert(input.value, subgraph.add_input(InputKind::Constant, name, "", ty, data));
    }
    for id in nodes {
        let Node { op, inputs, outputs } = &graph.nodes[id];
        let operands = inputs.iter().map(|v| new.get(v).copied()).collect::<Option<_>>()?;
        let results = outputs.iter().map(|&v| (graph.value_name(v).to_string(), graph.ty(v).clone()));
        let node = subgraph.add_node(op.clone(), operands, results.collect());
        new.extend(outputs.iter().copied().zip(subgraph.nodes[node].outputs.iter().copied()));
    }
    subgraph.outputs.push(GraphOutput { value: *new.get(&value)?, kind: OutputKind::Returned });
    let data = subgraph.inputs.values().filter_map(|input| input.data.clone()).collect();
    let evaluated = interp::run(&subgraph, &SymbolBindings::new(), &[data]).ok()?;
    evaluated.first()?.first().filter(|t| !t.dtype().is_float()).map(Tensor::to_i64)
}
