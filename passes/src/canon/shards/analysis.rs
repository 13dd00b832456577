//! Finds values that are gathered shards, and the terms that can replace values computed from them.

use std::collections::{HashMap, HashSet};

use symmc_ir::{
    ArgOp, CollectiveKind, Dim, EntityMap, Graph, GroupId, Node, NodeId, Op, OperandAxis, ReductionKind,
    Replication, ResultAxis, TensorType, ValueId,
};

use super::gathered::{GatheredValue, GatheredWindow};
use super::picks::{pick_elements, take_slices};
use super::reductions::{ReduceParams, arg_reduce, reduce, softmax, top_k};
use super::sizes::JudgedSizes;
use super::terms::{ShardTerms, TermId};

/// The relation of a value to the shards of a gathered value.
#[derive(Clone, PartialEq, Eq, Debug)]
enum ShardFact {
    Gathered(GatheredValue),
    /// A value that is computed from the shard of the rank with this number.
    Piece {
        rank: i64,
        group: GroupId,
        shard: TermId,
        base: NodeId,
    },
}

#[derive(Clone, Copy, Debug)]
pub struct ShardReplacement {
    /// A term of the same type as the replaced value.
    pub term: TermId,
    /// An all_gather that the value is computed from.
    pub base: NodeId,
}

pub struct ShardAnalysis<'g> {
    graph: &'g Graph,
    pub terms: ShardTerms<'g>,
    facts: EntityMap<ValueId, Option<ShardFact>>,
    pub replacements: EntityMap<ValueId, Option<ShardReplacement>>,
    /// For each all_gather, another one that must be replaced together with it.
    joined: HashMap<NodeId, NodeId>,
    replication: EntityMap<ValueId, Replication>,
    users: EntityMap<ValueId, Vec<NodeId>>,
}

impl<'g> ShardAnalysis<'g> {
    /// Finds the gathered values of a graph that come from these all_gathers.
    pub fn new(graph: &'g Graph, bases: &HashSet<NodeId>) -> Self {
        let values = graph.values.len();
        let mut out = ShardAnalysis {
            graph,
            terms: ShardTerms::new(graph),
            facts: EntityMap::filled(None, values),
            replacements: EntityMap::filled(None, values),
            joined: HashMap::new(),
            replication: Replication::of_graph(graph),
            users: graph.users(),
        };
        for (id, node) in graph.nodes.iter() {
            if bases.contains(&id) {
                out.facts[node.outputs[0]] = out.gather_base(id, node).map(ShardFact::Gathered);
            } else if node.inputs.iter().any(|&v| out.facts[v].is_some()) {
                out.analyze_node(node);
            }
        }
        out
    }

    /// The representative of all all_gathers that must be replaced together with this one.
    pub fn leader(&self, mut base: NodeId) -> NodeId {
        while let Some(&next) = self.joined.get(&base) {
            base = next;
        }
        base
    }

    fn join_gathers(&mut self, a: NodeId, b: NodeId) {
        let a = self.leader(a);
        let b = self.leader(b);
        if a != b {
            self.joined.insert(b, a);
        }
    }

    /// The all_gather of this node, as a gathered value.
    fn gather_base(&mut self, id: NodeId, node: &Node) -> Option<GatheredValue> {
        let group = node.op.as_collective()?.group;
        let ranks = i64::from(self.graph.group_size(group)?);
        let shard = self.terms.source(*node.inputs.first()?);
        Some(GatheredValue { axis: 0, group, ranks, shard, by_reader: false, window: None, base: id })
    }

    fn as_gathered(&self, v: ValueId) -> Option<&GatheredValue> {
        match &self.facts[v] {
            Some(ShardFact::Gathered(g)) => Some(g),
            _ => None,
        }
    }

    /// Whether the ranks of each cell of a group hold the same bits of a value.
    fn is_replicated(&self, v: ValueId, group: GroupId) -> bool {
        self.graph.cells(group).is_some_and(|cells| self.replication[v].is_uniform_within_cells(&cells))
    }

    fn analyze_node(&mut self, node: &Node) {
        let Some(&x) = node.inputs.first() else { return };
        let replaced = self.as_gathered(x).cloned().and_then(|g| self.replace_reduction(node, &g));
        for (&v, (term, base)) in node.outputs.iter().zip(replaced.unwrap_or_default()) {
            if self.terms.ty(term) == self.graph.ty(v) {
                self.replacements[v] = Some(ShardReplacement { term, base });
            }
        }
        if let [result] = node.outputs[..] {
            self.facts[result] = self.node_fact(node, self.graph.ty(result));
            if let (Some(ShardFact::Gathered(g)), Op::Reduce { .. } | Op::ArgReduce { .. }) =
                (self.facts[result].clone(), &node.op)
                && let Some(term) = g.gather_shards(self.graph.ty(result), &mut self.terms)
            {
                self.replacements[result] = Some(ShardReplacement { term, base: g.base });
            }
        }
    }

    /// The terms that replace the results of a node that reduces a gathered value along its axis.
    fn replace_reduction(&mut self, node: &Node, g: &GatheredValue) -> Option<Vec<(TermId, NodeId)>> {
        let ty = self.graph.ty(*node.outputs.first()?);
        let found = match &node.op {
            Op::Reduce { op, axes, .. } if self.has_arg_reduce(node, *op, axes) => {
                let op = if *op == ReductionKind::Max { ArgOp::Max } else { ArgOp::Min };
                vec![arg_reduce(&mut self.terms, g, op, &ty.shape)?.value]
            }
            Op::Reduce { op, axes, keep } if axes.contains(&g.axis) => {
                vec![reduce(&mut self.terms, g, ReduceParams { op: *op, axes, keep: *keep })?]
            }
            Op::ArgReduce { op, axis, .. } if *axis == g.axis => {
                vec![arg_reduce(&mut self.terms, g, *op, &ty.shape)?.place]
            }
            Op::TopK { axis, largest } if *axis == g.axis => {
                top_k(&mut self.terms, g, *largest, ty.shape[*axis].as_const()?)?.to_vec()
            }
            Op::GatherElements { axis } | Op::Take { axis } if *axis == g.axis => {
                let index = *node.inputs.get(1)?;
                let same = self.is_replicated(index, g.group);
                let index = self.terms.source(index);
                let is_take = matches!(node.op, Op::Take { .. });
                let found = if is_take { take_slices } else { pick_elements };
                vec![found(&mut self.terms, g, index, same)?]
            }
            _ => return None,
        };
        Some(found.into_iter().map(|term| (self.terms.reshape(term, ty.shape.clone()), g.base)).collect())
    }

    /// Whether the position of the element that this reduction of a gathered value finds is needed as well.
    fn has_arg_reduce(&self, node: &Node, op: ReductionKind, axes: &[usize]) -> bool {
        let (Some(&x), &[axis]) = (node.inputs.first(), axes) else { return false };
        let position_op = match op {
            ReductionKind::Max => ArgOp::Max,
            ReductionKind::Min => ArgOp::Min,
            _ => return false,
        };
        self.as_gathered(x).is_some_and(|g| g.axis == axis)
            && self.users[x].iter().any(|&user| match &self.graph.nodes[user].op {
                Op::ArgReduce { op, axis: along, .. } => *op == position_op && *along == axis,
                _ => false,
            })
    }

    fn node_fact(&mut self, node: &Node, ty: &TensorType) -> Option<ShardFact> {
        if let Op::Concat { axis } = node.op {
            return self.concat(node, axis).map(ShardFact::Gathered);
        }
        if node.inputs.iter().any(|&v| matches!(self.facts[v], Some(ShardFact::Piece { .. }))) {
            return self.piece(node, ty);
        }
        if node.op.is_element_wise() {
            return self.element_wise(node, ty).map(ShardFact::Gathered);
        }
        let g = self.as_gathered(node.inputs[0])?.clone();
        match &node.op {
            Op::Slice { axis, start, step: 1 } if *axis == g.axis => self.window(&g, start, &ty.shape[*axis]),
            Op::Softmax { axis, log } if *axis == g.axis => {
                let shard = softmax(&mut self.terms, &g, *log)?;
                Some(ShardFact::Gathered(GatheredValue { shard, ..g }))
            }
            // Each rank has another part of the result of an op with a group.
            op if node.inputs.len() > 1 || op.group().is_some() => None,
            op => {
                let from = &self.graph.ty(node.inputs[0]).shape;
                let (axis, extent) = gathered_axis_after(op, &g, from, ty, &self.terms)?;
                let mut shard_type = ty.clone();
                shard_type.shape[axis] = extent;
                let mut op = op.clone();
                if g.by_reader {
                    op = with_leading_axis(op, from.len() == ty.rank())?;
                    shard_type.shape.insert(0, Dim::from(g.ranks));
                }
                let shard = self.terms.op_as(op, &[g.shard], vec![shard_type]);
                Some(ShardFact::Gathered(GatheredValue { axis, shard, ..g }))
            }
        }
    }

    /// An element-wise function of gathered values and other values.
    fn element_wise(&mut self, node: &Node, ty: &TensorType) -> Option<GatheredValue> {
        if node.op.divides_integers(ty.dtype) {
            return None;
        }
        let axes = self.graph.node_axes(node);
        let (first, axis) = node.inputs.iter().enumerate().find_map(|(k, &v)| {
            let g = self.as_gathered(v)?;
            Some((g.clone(), axes.result_axis(k, g.axis)?))
        })?;
        let extent = first.shard_extent(&self.terms).clone();
        let mut operands = Vec::with_capacity(node.inputs.len());
        let mut by_reader = false;
        for (k, &v) in node.inputs.iter().enumerate() {
            let aligned = self.as_gathered(v).filter(|g| axes.result_axis(k, g.axis) == Some(axis)).cloned();
            let (shard, differs) = match aligned {
                Some(g) => {
                    let is_same_part = (g.group, g.window) == (first.group, first.window);
                    if !is_same_part || *g.shard_extent(&self.terms) != extent {
                        return None;
                    }
                    self.join_gathers(first.base, g.base);
                    (self.shard_of_rank(&g, ty.rank()), g.by_reader)
                }
                None => self.operand_of_shards(v, axes.operand_axis(k, axis), &first, ty.rank())?,
            };
            operands.push(shard);
            by_reader |= differs;
        }
        let mut shard_type = ty.clone();
        shard_type.shape[axis] = extent;
        if by_reader {
            shard_type.shape.insert(0, Dim::from(first.ranks));
        }
        let shard = self.terms.op_as(node.op.clone(), &operands, vec![shard_type]);
        Some(GatheredValue { axis, shard, by_reader, ..first })
    }

    /// The shard of a gathered value, broadcast to `rank` axes, plus the leading axis that it may have.
    fn shard_of_rank(&mut self, g: &GatheredValue, rank: usize) -> TermId {
        if !g.by_reader {
            return g.shard;
        }
        let mut shape = self.terms.shape(g.shard).to_vec();
        let missing = rank + 1 - shape.len();
        shape.splice(1..1, std::iter::repeat_n(Dim::from(1), missing));
        self.terms.reshape(g.shard, shape)
    }

    /// The term that combines with shards of `rank` axes, and whether it differs by reader.
    ///
    /// If a value is broadcast along the axis of the shards, the term is the value itself if it is the same
    /// on all ranks, else its values on all ranks, gathered. For any other value, the term is this rank's
    /// piece of it along `axis`.
    fn operand_of_shards(
        &mut self,
        v: ValueId,
        axis: Option<usize>,
        x: &GatheredValue,
        rank: usize,
    ) -> Option<(TermId, bool)> {
        let is_same = self.is_replicated(v, x.group);
        let whole = self.terms.source(v);
        match axis {
            Some(axis) => {
                let piece = Op::Shard { axis, group: x.group };
                let has_pieces = is_same && x.window.is_none();
                Some((has_pieces.then(|| self.terms.op(piece, &[whole]))??, false))
            }
            None if is_same => Some((whole, false)),
            None => {
                let missing = rank - self.graph.ty(v).rank();
                let local = self.terms.with_leading(whole, missing + 1);
                Some((self.terms.all_gather(x.group, local)?, true))
            }
        }
    }

    /// A slice along the axis of the shards: the shard of one rank, or a window.
    fn window(&mut self, g: &GatheredValue, start: &Dim, len: &Dim) -> Option<ShardFact> {
        let extent = g.shard_extent(&self.terms).clone();
        if g.window.is_none()
            && !g.by_reader
            && *len == extent
            && let Some(rank) = start.exact_div(&extent).and_then(|d| d.as_const())
        {
            return Some(ShardFact::Piece { rank, group: g.group, shard: g.shard, base: g.base });
        }
        extent.as_const()?;
        let start = start.as_const()? + g.window.map_or(0, |w| w.start);
        let window = Some(GatheredWindow { start, len: len.as_const().filter(|&len| len > 0)? });
        Some(ShardFact::Gathered(GatheredValue { window, ..g.clone() }))
    }

    /// An element-wise function of the shard of one rank and values that are the same on all ranks.
    fn piece(&mut self, node: &Node, ty: &TensorType) -> Option<ShardFact> {
        let is_function = node.op.is_element_wise() && !node.op.divides_integers(ty.dtype)
            || node.op.is_view()
            || matches!(node.op, Op::Copy | Op::Reduce { .. } | Op::ArgReduce { .. } | Op::Softmax { .. });
        if !is_function {
            return None;
        }
        let pieces = node.inputs.iter().find_map(|&v| match &self.facts[v] {
            Some(ShardFact::Piece { rank, group, base, .. }) => Some((*rank, *group, *base)),
            _ => None,
        });
        let (rank, group, base) = pieces?;
        let mut operands = Vec::with_capacity(node.inputs.len());
        for &v in &node.inputs {
            match self.facts[v].clone() {
                Some(ShardFact::Piece { rank: r, group: g, shard, base: b }) if (r, g) == (rank, group) => {
                    self.join_gathers(base, b);
                    operands.push(shard);
                }
                _ if self.is_replicated(v, group) => operands.push(self.terms.source(v)),
                _ => return None,
            }
        }
        let shard = self.terms.op_as(node.op.clone(), &operands, vec![ty.clone()]);
        Some(ShardFact::Piece { rank, group, shard, base })
    }

    /// Concatenates the shards of all ranks in order, or gathered values along another axis.
    fn concat(&mut self, node: &Node, axis: usize) -> Option<GatheredValue> {
        match self.facts[node.inputs[0]].clone()? {
            ShardFact::Piece { group, shard, base, .. } => {
                let ranks = i64::from(self.graph.group_size(group)?);
                let is_in_order = node.inputs.iter().enumerate().all(|(i, &v)| {
                    matches!(&self.facts[v], Some(ShardFact::Piece { rank, group: g, shard: s, .. })
                        if (*rank, *g, *s) == (i as i64, group, shard))
                });
                let is_all = is_in_order && node.inputs.len() as i64 == ranks;
                let gathered =
                    GatheredValue { axis, group, ranks, shard, by_reader: false, window: None, base };
                is_all.then_some(gathered)
            }
            ShardFact::Gathered(first) => {
                let mut shards = Vec::with_capacity(node.inputs.len());
                for &v in &node.inputs {
                    let g = self.as_gathered(v)?.clone();
                    if g.axis == axis || g.axis != first.axis || !first.is_aligned(&g, &self.terms) {
                        return None;
                    }
                    self.join_gathers(first.base, g.base);
                    shards.push(g.shard);
                }
                let shard = self.terms.concat(axis + first.shard_axis() - first.axis, &shards)?;
                Some(GatheredValue { shard, ..first })
            }
        }
    }
}

/// For an op with one operand that computes each shard's part of the result from that shard alone: the axis
/// of the result along which the shards lie, and the extent of a shard there.
fn gathered_axis_after(
    op: &Op,
    g: &GatheredValue,
    from: &[Dim],
    ty: &TensorType,
    terms: &ShardTerms<'_>,
) -> Option<(usize, Dim)> {
    let axes = op.axes(&[from], &[&ty.shape]);
    match *axes.operands.first()?.get(g.axis)? {
        OperandAxis::Aligned(axis) if axes.results[axis] == ResultAxis::Independent => {
            Some((axis, g.shard_extent(terms).clone()))
        }
        OperandAxis::Outer(axis) if g.window.is_none() => {
            Some((axis, ty.shape[axis].exact_div(&Dim::from(g.ranks))?))
        }
        _ => None,
    }
}

/// An op with one operand, changed for an operand with one more leading axis; `None` if that is impossible.
fn with_leading_axis(op: Op, same_rank: bool) -> Option<Op> {
    Some(match op {
        Op::Permute { perm } => {
            Op::Permute { perm: std::iter::once(0).chain(perm.into_iter().map(|a| a + 1)).collect() }
        }
        Op::Slice { axis, start, step } => Op::Slice { axis: axis + 1, start, step },
        Op::Pad { low, value } => Op::Pad { low: std::iter::once(Dim::from(0)).chain(low).collect(), value },
        Op::Softmax { axis, log } => Op::Softmax { axis: axis + 1, log },
        Op::CumSum { axis } => Op::CumSum { axis: axis + 1 },
        Op::Reduce { op, axes, keep } => {
            Op::Reduce { op, axes: axes.into_iter().map(|a| a + 1).collect(), keep }
        }
        Op::ArgReduce { op, axis, keep } => Op::ArgReduce { op, axis: axis + 1, keep },
        // An expansion adds its new axes in front.
        Op::Expand if same_rank => Op::Expand,
        op @ (Op::Reshape | Op::Copy | Op::RmsNorm { .. } | Op::LayerNorm { .. }) => op,
        _ => return None,
    })
}

/// The all_gathers among more than one rank whose result has at least `bytes` bytes.
pub fn large_gathers(graph: &Graph, bytes: i64, sizes: JudgedSizes) -> HashSet<NodeId> {
    let mut large = HashSet::new();
    for (id, node) in graph.nodes.iter() {
        let Some(c) = node.op.as_collective() else { continue };
        if c.kind == CollectiveKind::AllGather
            && graph.group_size(c.group).is_some_and(|n| n > 1)
            && sizes.bytes(graph, graph.ty(node.outputs[0])) >= bytes
        {
            large.insert(id);
        }
    }
    large
}
