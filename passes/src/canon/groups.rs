//! Merges collectives by the cells of their groups.
//!
//! The rules handle collectives on two groups with the same cells, and nested collectives on groups that
//! together cover the ranks of a third, as the rows and columns of a mesh cover the mesh.

use std::collections::{BTreeMap, BTreeSet};

use symmc_ir::{
    Collective, CollectiveKind, CollectiveReduceOp, Graph, GroupDef, GroupId, GroupMembers, NodeId, Op,
    ValueId,
};

use crate::rewrite::{CandidateNode, Rewrite, RewriteRule, Rewriter};

pub const RULES: &[RewriteRule] = &[
    RewriteRule {
        name: "equal_groups",
        equation: "a collective or a shard = the same on another group with the same cells, if the program has one",
        apply: equal_groups,
    },
    RewriteRule {
        name: "gather_of_gather",
        equation: "all_gather(all_gather(x)) = all_gather(x) on the group whose cells have the ranks of both in order",
        apply: gather_of_gather,
    },
    RewriteRule {
        name: "all_reduce_of_all_reduce",
        equation: "all_reduce(all_reduce(x)) = all_reduce(x) on the group whose cells have the ranks of both, for maxima, minima and \
                   sums of integers",
        apply: all_reduce_of_all_reduce,
    },
];

fn equal_groups(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let group = node.op.group()?;
    let graph = cx.graph();
    let same_groups: Vec<GroupId> =
        graph.groups.keys().filter(|&g| g != group && graph.have_same_cells(g, group)).collect();
    same_groups.into_iter().find_map(|same_group| {
        let mut op = node.op.clone();
        *op.group_mut()? = same_group;
        cx.existing(&op, &node.inputs, &node.ty).map(Rewrite::Value)
    })
}

/// A collective of a collective of the same kind, without other readers.
struct NestedCollective {
    kind: CollectiveKind,
    outer: GroupId,
    inner: GroupId,
    x: ValueId,
}

impl NestedCollective {
    fn match_node(cx: &Rewriter, node: &CandidateNode) -> Option<NestedCollective> {
        let (Op::Collective(outer), &[between]) = (&node.op, &node.inputs[..]) else { return None };
        let Some((Op::Collective(inner), &[x])) = cx.def(between) else { return None };
        let is_nested = inner.kind == outer.kind && !cx.is_shared(between);
        is_nested.then(|| NestedCollective {
            kind: outer.kind.clone(),
            outer: outer.group,
            inner: inner.group,
            x,
        })
    }

    fn with_group(&self, group: GroupId) -> Rewrite {
        let kind = self.kind.clone();
        Rewrite::Node(Op::Collective(Collective { kind, group, variant: None }), vec![self.x])
    }

    /// The group that covers the ranks of both, added if the program does not have it.
    fn group(&self, cx: &mut Rewriter, order: RankOrder) -> Option<GroupId> {
        let merged = MergedGroup::new(cx.graph(), self.inner, self.outer, order)?;
        match merged {
            MergedGroup::Known(group) => Some(group),
            MergedGroup::New { cells, name } => cx.find_or_add_group(cells, &name),
        }
    }
}

/// The group on which one collective replaces a collective on an inner group followed by one on an outer
/// group.
enum MergedGroup {
    Known(GroupId),
    New { cells: Vec<Vec<u32>>, name: String },
}

impl MergedGroup {
    fn new(graph: &Graph, inner: GroupId, outer: GroupId, order: RankOrder) -> Option<MergedGroup> {
        let cells = merged_cells(graph, inner, outer, order)?;
        if let Some(group) = graph.group_with_cells(&cells) {
            return Some(MergedGroup::Known(group));
        }
        if order == RankOrder::Any {
            let sorted = sorted_cells(cells.clone());
            for group in graph.groups.keys() {
                if graph.cells(group).map(sorted_cells).as_ref() == Some(&sorted) {
                    return Some(MergedGroup::Known(group));
                }
            }
        }
        let name = format!("{}.{}", graph.groups[inner].name, graph.groups[outer].name);
        Some(MergedGroup::New { name, cells })
    }
}

/// For each pair of inner and outer groups of nested all-reduces of one kind, the group that covers the
/// ranks of both. The group is added if the program does not have it.
pub(crate) fn merged_all_reduce_groups(graph: &mut Graph) -> BTreeMap<(GroupId, GroupId), GroupId> {
    let pairs: BTreeSet<(GroupId, GroupId)> =
        graph.nodes.keys().filter_map(|node| nested_all_reduce_groups(graph, node)).collect();
    let mut out = BTreeMap::new();
    for (inner, outer) in pairs {
        let group = match MergedGroup::new(graph, inner, outer, RankOrder::Any) {
            None => continue,
            Some(MergedGroup::Known(group)) => group,
            Some(MergedGroup::New { name, .. }) if graph.groups.values().any(|g| g.name == name) => continue,
            Some(MergedGroup::New { cells, name }) => {
                graph.groups.push(GroupDef { name, members: GroupMembers::Cells(cells) })
            }
        };
        out.insert((inner, outer), group);
    }
    out
}

/// The inner and the outer group of an all-reduce of an all-reduce of the same kind.
fn nested_all_reduce_groups(graph: &Graph, node: NodeId) -> Option<(GroupId, GroupId)> {
    let outer = as_all_reduce(graph, node)?;
    let inner = as_all_reduce(graph, graph.defining_node(*graph.nodes[node].inputs.first()?)?)?;
    (inner.kind == outer.kind).then_some((inner.group, outer.group))
}

fn as_all_reduce(graph: &Graph, node: NodeId) -> Option<&Collective> {
    match &graph.nodes[node].op {
        Op::Collective(c) if matches!(c.kind, CollectiveKind::AllReduce(_)) => Some(c),
        _ => None,
    }
}

/// Whether the order of the ranks of a cell changes the result.
#[derive(Clone, Copy, PartialEq, Debug)]
enum RankOrder {
    Given,
    Any,
}

fn sorted_cells(mut cells: Vec<Vec<u32>>) -> Vec<Vec<u32>> {
    cells.iter_mut().for_each(|cell| cell.sort_unstable());
    cells.sort_unstable();
    cells
}

/// The ranks whose operands each rank has after a collective on `inner` and then one on `outer`, in order,
/// as the cells of one group. `None` if these are not cells, or if a rank would be in a cell twice.
fn merged_cells(graph: &Graph, inner: GroupId, outer: GroupId, order: RankOrder) -> Option<Vec<Vec<u32>>> {
    let ranks = graph.ranks? as usize;
    let within = graph.cells(inner)?;
    let mut cell_of = vec![None; ranks];
    for (number, cell) in within.iter().enumerate() {
        cell.iter().for_each(|&rank| cell_of[rank as usize] = Some(number));
    }
    let mut cells: Vec<Vec<u32>> = Vec::new();
    let mut number_of = vec![None; ranks];
    for cell in graph.cells(outer)? {
        let mut from = Vec::new();
        for &rank in &cell {
            from.extend_from_slice(&within[cell_of[rank as usize]?]);
        }
        if order == RankOrder::Any {
            from.sort_unstable();
        }
        let existing = cells.iter().position(|existing| *existing == from);
        let number = existing.unwrap_or(cells.len());
        if existing.is_none() {
            cells.push(from);
        }
        cell.iter().for_each(|&rank| number_of[rank as usize] = Some(number));
    }
    let mut times = vec![0; ranks];
    cells.iter().flatten().for_each(|&rank| times[rank as usize] += 1);
    let are_cells = times.iter().all(|&n| n == 1)
        && cells
            .iter()
            .enumerate()
            .all(|(number, cell)| cell.iter().all(|&rank| number_of[rank as usize] == Some(number)));
    are_cells.then_some(cells)
}

fn gather_of_gather(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let nested =
        NestedCollective::match_node(cx, node).filter(|nested| nested.kind == CollectiveKind::AllGather)?;
    let group = nested.group(cx, RankOrder::Given)?;
    Some(nested.with_group(group))
}

fn all_reduce_of_all_reduce(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let nested = NestedCollective::match_node(cx, node)?;
    let CollectiveKind::AllReduce(op) = nested.kind else { return None };
    let order = match (op, node.ty.dtype.is_float()) {
        (CollectiveReduceOp::Avg, _) | (CollectiveReduceOp::Sum | CollectiveReduceOp::Prod, true) => {
            return None;
        }
        // If zeros with both signs occur, the first one is taken.
        (CollectiveReduceOp::Max | CollectiveReduceOp::Min, true) => RankOrder::Given,
        (_, false) => RankOrder::Any,
    };
    let group = nested.group(cx, order)?;
    Some(nested.with_group(group))
}
