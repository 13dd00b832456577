//! Regions: the parts of a program that become e-graphs.
//!
//! A region holds collectives that feed one another, and the adjacent sums and casts that the rules in use
//! can move across a collective. Everything else is a leaf. Regions that are equal up to the names of their
//! values have equal forms. With the conditions of a lowering, a form is a [`RegionKey`], which holds everything on
//! which a choice depends, so that equal regions are solved once.
//!
//! The work of a choice grows with the cube of the region's size, so long chains are cut into pieces of
//! [`MAX_REGION_NODES`] nodes. Rules do not see across the ends of a piece, and a result of one piece is a
//! leaf of the next.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use petgraph::unionfind::UnionFind;
use symmc_ir::entity::Entity;
use symmc_ir::layout::{Layout, view_layout};
use symmc_ir::{
    BinaryOp, CollectiveKind, CollectiveName, CollectiveReduceOp, CollectiveVariant, Dim, Graph, GroupId,
    InputId, Node, NodeId, Numerics, NumericsClass, Op, TensorType, ValueDef, ValueId,
};

use super::conditions::{CollectiveConditions, LowerConditions};
use super::context::LowerContext;
use super::language::ClassValue;
use super::sums;
use crate::rewrite::moves_elements;

pub struct RewriteRegion {
    pub nodes: Vec<NodeId>,
    /// The values that the region uses but does not define, in order of first use.
    pub leaves: Vec<ValueId>,
    pub form: Arc<RegionForm>,
}

impl RewriteRegion {
    /// The key of the region in a lowering of its program under these conditions.
    pub fn key(&self, graph: &Graph, conditions: &LowerConditions) -> RegionKey {
        let collectives = self.nodes.iter().filter(|&&n| graph.nodes[n].op.as_collective().is_some());
        let conditions = conditions.of(collectives.map(|&n| graph.node_name(n)));
        RegionKey { form: self.form.clone(), conditions }
    }
}

/// Everything on which a choice depends, besides the [`LowerContext`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RegionKey {
    pub form: Arc<RegionForm>,
    pub conditions: CollectiveConditions,
}

/// The nodes of a region, with facts about their operands and results.
#[derive(PartialEq, Eq, Hash, Debug)]
pub struct RegionForm {
    pub nodes: Vec<RegionNode>,
    pub leaves: Vec<ClassValue>,
}

#[derive(PartialEq, Eq, Hash, Debug)]
pub struct RegionNode {
    pub op: Op,
    pub operands: Vec<RegionOperand>,
    pub types: Vec<TensorType>,
    pub uses: Vec<ResultUse>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RegionOperand {
    Leaf(usize),
    /// A result of an earlier node of the region.
    Inner(usize, usize),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ResultUse {
    /// Whether a node outside of the region reads it, or it is an output.
    pub outside: bool,
    pub output: bool,
    /// The names and variants of collectives that can be one step with the following node
    /// (`symmc_dispatch::fusible_collectives`).
    pub fused: Vec<(CollectiveName, CollectiveVariant)>,
}

pub const MAX_REGION_NODES: usize = 48;

pub fn find_regions(graph: &Graph, bound: &BTreeSet<InputId>, context: &LowerContext) -> Vec<RewriteRegion> {
    let numerics = context.numerics;
    let sums = if numerics.allows(NumericsClass::Reassociate) {
        sums::joined_additions(graph)
    } else {
        BTreeMap::new()
    };
    let pieces = split_members(graph, &region_members(graph, numerics, &sums), &sums);
    let mut piece_of: Vec<Option<usize>> = vec![None; graph.nodes.len()];
    for (i, nodes) in pieces.iter().enumerate() {
        nodes.iter().for_each(|n| piece_of[n.index()] = Some(i));
    }
    let outputs: BTreeSet<ValueId> = graph.outputs.iter().map(|o| o.value).collect();
    let outside = used_outside(graph, &piece_of, &outputs);
    let facts = RegionFacts {
        bound,
        outputs,
        outside,
        fused: symmc_dispatch::fusible_collectives(graph, &context.profile),
    };
    pieces.into_iter().map(|nodes| build_region(graph, nodes, &facts)).collect()
}

/// Connected members, in program order, in pieces of at most [`MAX_REGION_NODES`] nodes; the pieces are
/// sorted by their first nodes.
fn split_members(
    graph: &Graph,
    members: &BTreeSet<NodeId>,
    sums: &BTreeMap<NodeId, Vec<NodeId>>,
) -> Vec<Vec<NodeId>> {
    let mut connected = UnionFind::<usize>::new(graph.nodes.len());
    let mut reduced: HashMap<(ValueId, CollectiveReduceOp, GroupId), NodeId> = HashMap::new();
    for &n in members {
        let node = &graph.nodes[n];
        for d in node.inputs.iter().filter_map(|&v| graph.defining_node(v)) {
            // A sum of another tree is a term of this tree, not a part of it.
            let is_joined = sums.get(&n).is_none_or(|inside| inside.contains(&d));
            if members.contains(&d) && is_joined {
                connected.union(n.index(), d.index());
            }
        }
        // Reductions of one value can share their work.
        if let Some((op, group)) = as_reduction(node) {
            let first = *reduced.entry((node.inputs[0], op, group)).or_insert(n);
            connected.union(n.index(), first.index());
        }
    }
    let mut components: BTreeMap<usize, Vec<NodeId>> = BTreeMap::new();
    for &n in members {
        components.entry(connected.find(n.index())).or_default().push(n);
    }
    let mut pieces: Vec<Vec<NodeId>> = components
        .values()
        .flat_map(|nodes| nodes.chunks(MAX_REGION_NODES))
        .map(<[NodeId]>::to_vec)
        .collect();
    pieces.sort_by_key(|nodes| nodes.first().copied());
    pieces
}

fn region_members(
    graph: &Graph,
    numerics: Numerics,
    sums: &BTreeMap<NodeId, Vec<NodeId>>,
) -> BTreeSet<NodeId> {
    let narrows = numerics.allows(NumericsClass::Narrow) || numerics.allows(NumericsClass::NarrowF16);
    let mut out = BTreeSet::new();
    for (n, node) in graph.nodes.iter() {
        let is_member = match &node.op {
            Op::Collective(_) => true,
            Op::Binary(BinaryOp::Add) => sums.contains_key(&n),
            Op::Cast => {
                let x = node.inputs[0];
                (narrows && is_all_reduced(graph, x))
                    || (compare_cast_bytes(graph, n) == Ordering::Less && is_moved_by_collective(graph, x))
            }
            _ => false,
        };
        if is_member {
            out.insert(n);
        }
        // Add casts that feed a collective. If they feed an all-reduce, only maxima and minima can be
        // computed before the cast in every plan.
        let takes_any = as_all_reduce(node)
            .is_some_and(|op| narrows || matches!(op, CollectiveReduceOp::Max | CollectiveReduceOp::Min));
        let kind = node.op.as_collective().map(|c| &c.kind);
        let takes_wider = moves_elements(&node.op) || matches!(kind, Some(CollectiveKind::ReduceScatter(_)));
        let casts = node
            .inputs
            .iter()
            .filter_map(|&v| graph.defining_node(v))
            .filter(|&d| graph.nodes[d].op == Op::Cast);
        out.extend(
            casts
                .filter(|&d| takes_any || (takes_wider && compare_cast_bytes(graph, d) == Ordering::Greater)),
        );
    }
    out
}

/// Whether a value is the result of an all-reduce.
fn is_all_reduced(graph: &Graph, v: ValueId) -> bool {
    graph.defining_node(v).is_some_and(|n| as_all_reduce(&graph.nodes[n]).is_some())
}

/// Whether a value is the result of a collective that only moves elements.
fn is_moved_by_collective(graph: &Graph, v: ValueId) -> bool {
    graph.defining_node(v).is_some_and(|n| moves_elements(&graph.nodes[n].op))
}

/// Compares the size of the elements of a cast's result with that of its operand.
fn compare_cast_bytes(graph: &Graph, cast: NodeId) -> Ordering {
    let node = &graph.nodes[cast];
    let result = graph.ty(node.outputs[0]).dtype;
    let operand = graph.ty(node.inputs[0]).dtype;
    result.size().cmp(&operand.size())
}

fn as_reduction(node: &Node) -> Option<(CollectiveReduceOp, GroupId)> {
    let collective = node.op.as_collective()?;
    match collective.kind {
        CollectiveKind::AllReduce(op) | CollectiveKind::ReduceScatter(op) => Some((op, collective.group)),
        _ => None,
    }
}

fn as_all_reduce(node: &Node) -> Option<CollectiveReduceOp> {
    match node.op.as_collective()?.kind {
        CollectiveKind::AllReduce(op) => Some(op),
        _ => None,
    }
}

/// The outputs, and the values that a node outside of their defining piece reads.
fn used_outside(graph: &Graph, piece_of: &[Option<usize>], outputs: &BTreeSet<ValueId>) -> BTreeSet<ValueId> {
    let mut out = outputs.clone();
    for (n, node) in graph.nodes.iter() {
        for &v in &node.inputs {
            let defining_piece = graph.defining_node(v).and_then(|d| piece_of[d.index()]);
            if defining_piece.is_some_and(|piece| piece_of[n.index()] != Some(piece)) {
                out.insert(v);
            }
        }
    }
    out
}

/// Facts about the values of a program.
struct RegionFacts<'a> {
    bound: &'a BTreeSet<InputId>,
    outputs: BTreeSet<ValueId>,
    outside: BTreeSet<ValueId>,
    fused: BTreeSet<(ValueId, CollectiveVariant)>,
}

fn build_region(graph: &Graph, nodes: Vec<NodeId>, facts: &RegionFacts<'_>) -> RewriteRegion {
    let positions: BTreeMap<NodeId, usize> = nodes.iter().enumerate().map(|(i, &n)| (n, i)).collect();
    let mut leaves: Vec<ValueId> = Vec::new();
    let mut keys = Vec::with_capacity(nodes.len());
    for &n in &nodes {
        let node = &graph.nodes[n];
        let mut operands = Vec::with_capacity(node.inputs.len());
        for &v in &node.inputs {
            let inner = match graph.values[v].def {
                ValueDef::Node(d, i) => positions.get(&d).map(|&inner| RegionOperand::Inner(inner, i)),
                ValueDef::Input(_) => None,
            };
            operands.push(inner.unwrap_or_else(|| {
                let leaf = leaves.iter().position(|&l| l == v).unwrap_or_else(|| {
                    leaves.push(v);
                    leaves.len() - 1
                });
                RegionOperand::Leaf(leaf)
            }));
        }
        let mut uses = Vec::with_capacity(node.outputs.len());
        for &v in &node.outputs {
            uses.push(ResultUse {
                outside: facts.outside.contains(&v),
                output: facts.outputs.contains(&v),
                fused: fused_variants(node, v, facts),
            });
        }
        let types = node.outputs.iter().map(|&v| graph.ty(v).clone()).collect();
        keys.push(RegionNode { op: node.op.clone(), operands, types, uses });
    }
    let leaf_facts = leaves.iter().map(|&v| leaf(graph, v, facts)).collect();
    let form = Arc::new(RegionForm { nodes: keys, leaves: leaf_facts });
    RewriteRegion { nodes, leaves, form }
}

/// The variants of a collective that can be one step with the node that reads its result.
fn fused_variants(
    node: &Node,
    result: ValueId,
    facts: &RegionFacts<'_>,
) -> Vec<(CollectiveName, CollectiveVariant)> {
    let Some(collective) = node.op.as_collective() else { return Vec::new() };
    let name = collective.kind.collective_name();
    let variants = CollectiveVariant::ALL.iter().filter(|&&v| facts.fused.contains(&(result, v)));
    variants.map(|&variant| (name, variant)).collect()
}

/// The facts about a leaf. The caller decides where outputs and inputs lie; only bound inputs lie in the
/// symmetric arena.
fn leaf(graph: &Graph, v: ValueId, facts: &RegionFacts<'_>) -> ClassValue {
    let layout = layout(graph, v);
    let placeable = is_placeable(graph, v, facts.bound, &facts.outputs);
    let ty = graph.ty(v).clone();
    ClassValue { contiguous: layout.is_contiguous(&ty), placeable, types: vec![ty] }
}

/// Whether a value can lie in the symmetric arena.
pub(super) fn is_placeable(
    graph: &Graph,
    v: ValueId,
    bound: &BTreeSet<InputId>,
    outputs: &BTreeSet<ValueId>,
) -> bool {
    let base = layout(graph, v).base;
    match graph.values[base].def {
        ValueDef::Input(input) => bound.contains(&input),
        ValueDef::Node(..) => !outputs.contains(&base),
    }
}

fn layout(graph: &Graph, v: ValueId) -> Layout {
    let ty = graph.ty(v);
    let view = graph.defining_node(v).map(|n| &graph.nodes[n]).filter(|n| n.op.is_view());
    if let Some(node) = view
        && let Some(&x) = node.inputs.first()
        && let Some(layout) = view_layout(&node.op, &layout(graph, x), graph.ty(x), ty)
    {
        return layout;
    }
    Layout { base: v, offset: Dim::from(0), strides: ty.contiguous_strides() }
}
