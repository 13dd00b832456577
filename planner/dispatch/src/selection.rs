//! Groups the selection of the largest elements of short rows with what computes these rows, and with what is
//! computed from the selected elements: the choice of experts for each token, with scores, biases, groups of
//! experts and normalised weights.
//!
//! The kernel keeps a row of every value in shared memory. Separate steps would each take the time of a launch,
//! because there is little to compute.
//!
//! # Method
//! A selection begins with a `topk` and grows by whole units that compute its operands or read its results. A
//! unit joins only if no third unit depends on the selection and is needed by it.

use std::collections::BTreeSet;

use symmc_ir::machine::SelectionLimits;
use symmc_ir::{Dim, NodeId, Op, ReductionKind, ValueId};

use crate::facts::DispatchFacts;
use crate::product::reports;
use crate::walk::{Unit, UnitIndex, UnitKind};

/// The most units that are visited to find out whether one depends on another. A unit does not join if there
/// are more.
const MAX_VISITED_UNITS: usize = 256;

/// Lets units of short rows join the selections among them.
pub fn join_selections(facts: &DispatchFacts<'_>, units: &mut [Unit]) {
    let Some(limits) = facts.capabilities().selection else { return };
    let mut unit_of = UnitIndex::new(facts, units);
    for u in 0..units.len() {
        let &[topk] = &units[u].nodes[..] else { continue };
        let Op::TopK { .. } = facts.node(topk).op else { continue };
        let Some(rows) = facts.node(topk).inputs.first().and_then(|&x| facts.graph.ty(x).shape.first())
        else {
            continue;
        };
        let selection = Selection { facts, limits: &limits, rows };
        if selection.fits(&units[u].nodes) {
            selection.grow(units, &mut unit_of, u);
            let views = selection.views_inside(&units[u].nodes);
            units[u].nodes.extend(views);
            units[u].nodes.sort_unstable();
        }
    }
}

struct Selection<'a> {
    facts: &'a DispatchFacts<'a>,
    limits: &'a SelectionLimits,
    /// The number of rows.
    rows: &'a Dim,
}

impl Selection<'_> {
    /// The number of elements of a row of a value, if it has one for each of the rows.
    fn row_elements(&self, value: ValueId) -> Option<u64> {
        let (first, others) = self.facts.graph.ty(value).shape.split_first()?;
        let extents = others.iter().map(|d| d.as_const().and_then(|n| u64::try_from(n).ok()));
        let count = extents.into_iter().try_fold(1_u64, |n, d| n.checked_mul(d?))?;
        (first == self.rows && (1..=u64::from(self.limits.row)).contains(&count)).then_some(count)
    }

    /// The bytes of a row of all results of nodes.
    fn row_bytes(&self, nodes: &[NodeId]) -> Option<u64> {
        let results = nodes.iter().flat_map(|&n| &self.facts.node(n).outputs);
        results
            .map(|&v| {
                Some(
                    (self.row_elements(v)? * self.facts.graph.ty(v).dtype.size() as u64).next_multiple_of(16),
                )
            })
            .sum()
    }

    /// Whether nodes are ones that the kernel has.
    fn fits(&self, nodes: &[NodeId]) -> bool {
        nodes.iter().all(|&n| self.fits_node(n) && self.moves_members(n, nodes))
            && self.row_bytes(nodes).is_some_and(|bytes| bytes <= u64::from(self.limits.bytes))
            && nodes.len() <= self.limits.nodes as usize
    }

    /// Whether a node that only moves elements moves those of another of the nodes.
    fn moves_members(&self, id: NodeId, nodes: &[NodeId]) -> bool {
        let node = self.facts.node(id);
        match (&node.op, &node.inputs[..]) {
            (Op::Reshape | Op::Copy, &[x]) => {
                let source = self.facts.graph.defining_node(self.facts.base[x]);
                source.is_some_and(|source| nodes.contains(&source))
            }
            _ => true,
        }
    }

    fn fits_node(&self, id: NodeId) -> bool {
        let facts = self.facts;
        let node = facts.node(id);
        let is_last = |axis: usize, v: ValueId| axis > 0 && axis + 1 == facts.graph.ty(v).rank();
        let selected = || node.outputs.first().and_then(|&v| facts.graph.ty(v).shape.last()?.as_const());
        let fits_op = match (&node.op, &node.inputs[..]) {
            (Op::TopK { axis, .. }, &[x]) => {
                is_last(*axis, x)
                    && self.row_elements(x).is_some()
                    && selected().is_some_and(|k| k <= i64::from(self.limits.selected))
            }
            (Op::Softmax { axis, .. }, &[x]) => is_last(*axis, x),
            (Op::Reduce { op, axes, .. }, &[x]) => {
                let joins = matches!(
                    op,
                    ReductionKind::Sum | ReductionKind::Mean | ReductionKind::Max | ReductionKind::Min
                );
                joins && matches!(axes[..], [axis] if is_last(axis, x)) && self.row_elements(x).is_some()
            }
            (Op::GatherElements { axis }, &[x, index]) => {
                let outer = |v: ValueId| facts.graph.ty(v).shape.split_last().map(|(_, outer)| outer);
                is_last(*axis, x)
                    && outer(x) == outer(index)
                    && [x, index].iter().all(|&v| self.row_elements(v).is_some())
            }
            (Op::ScatterElements { axis, combine: None }, &[x, index, source]) => {
                is_last(*axis, x)
                    && facts.graph.ty(x).rank() == 2
                    && facts.graph.ty(index).shape == facts.graph.ty(source).shape
                    && [x, index, source].iter().all(|&v| self.row_elements(v).is_some())
            }
            (Op::Reshape | Op::Copy, &[x]) => self.row_elements(x).is_some() && !facts.is_view(id),
            (op, _) => op.fits_map() && !reports(facts, id),
        };
        fits_op
            && node
                .outputs
                .iter()
                .all(|&v| self.row_elements(v).is_some() && facts.base[v] == v && !facts.communicated[v])
    }

    /// Whether a value that nodes of the selection compute is read along rows.
    fn reads_rows(&self, value: ValueId) -> bool {
        let base = self.facts.base[value];
        let (Some(layout), Some(elements)) = (self.facts.layout(value), self.row_elements(base)) else {
            return false;
        };
        let Some((first, others)) = layout.strides.split_first() else { return false };
        let starts_inside = layout.offset.as_const().is_some_and(|o| o >= 0 && o < elements as i64);
        let steps =
            first.as_const() == Some(elements as i64) && others.iter().all(|s| s.as_const().is_some());
        base == value || (self.row_elements(value).is_some() && starts_inside && steps)
    }

    /// Adds the units around a selection, as long as any fits.
    fn grow(&self, units: &mut [Unit], unit_of: &mut UnitIndex, to: usize) {
        loop {
            let neighbour = self
                .neighbours(&units[to].nodes, unit_of)
                .into_iter()
                .find(|&from| from != to && self.joins(units, unit_of, from, to));
            let Some(from) = neighbour else { break };
            unit_of.join(units, from, to, UnitKind::Selection);
        }
    }

    /// The units that nodes read, and those that read them.
    fn neighbours(&self, nodes: &[NodeId], unit_of: &UnitIndex) -> BTreeSet<usize> {
        let facts = self.facts;
        let sources = nodes.iter().flat_map(|&n| &facts.node(n).inputs);
        let sources = sources.filter_map(|&v| facts.defining_node(v));
        let readers = nodes.iter().flat_map(|&n| &facts.node(n).outputs).flat_map(|&v| self.readers(v));
        sources.chain(readers).filter_map(|n| unit_of.of(n)).collect()
    }

    /// The nodes other than views that read a value or a view of it.
    fn readers(&self, value: ValueId) -> Vec<NodeId> {
        let facts = self.facts;
        let mut out = Vec::new();
        let mut open = vec![value];
        while let Some(value) = open.pop() {
            for &n in &facts.users[value] {
                if facts.is_view(n) { open.extend(&facts.node(n).outputs) } else { out.push(n) }
            }
        }
        out
    }

    fn joins(&self, units: &[Unit], unit_of: &UnitIndex, from: usize, to: usize) -> bool {
        let facts = self.facts;
        let (unit, selection) = (&units[from], &units[to]);
        let may_join = matches!(unit.kind, None | Some(UnitKind::Map | UnitKind::Rows | UnitKind::Selection));
        let joined_nodes: Vec<NodeId> = unit.nodes.iter().chain(&selection.nodes).copied().collect();
        let waits = |nodes: &[NodeId]| nodes.iter().filter_map(|&n| facts.last_collectives[n]).max();
        let is_inside = |v: ValueId| facts.defining_node(v).is_some_and(|n| joined_nodes.contains(&n));
        // Operands of element-wise nodes broadcast from the last axis on, but rows are along the first.
        let fits_rank = |n: NodeId, v: ValueId| {
            !facts.node(n).op.fits_map()
                || facts.result_shape(n).map(<[Dim]>::len) == Some(facts.graph.ty(v).rank())
        };
        let mut read = joined_nodes.iter().flat_map(|&n| facts.node(n).inputs.iter().map(move |&v| (n, v)));
        may_join
            && self.fits(&joined_nodes)
            && read.all(|(n, v)| !is_inside(v) || self.reads_rows(v) && fits_rank(n, v))
            && waits(&unit.nodes) == waits(&selection.nodes)
            && !self.is_needed_through_others(units, unit_of, &joined_nodes, [from, to])
    }

    /// Whether a unit outside of two depends on them, and they on it. Also true if the search would take too
    /// long.
    fn is_needed_through_others(
        &self,
        units: &[Unit],
        unit_of: &UnitIndex,
        nodes: &[NodeId],
        inside: [usize; 2],
    ) -> bool {
        let Some(&last_node) = nodes.iter().max() else { return false };
        let mut visited: BTreeSet<usize> = BTreeSet::new();
        let mut open: Vec<NodeId> = nodes.to_vec();
        while let Some(node) = open.pop() {
            for reader in self.facts.node(node).outputs.iter().flat_map(|&v| self.readers(v)) {
                let Some(unit) = unit_of.of(reader) else { return true };
                if inside.contains(&unit) {
                    if !nodes.contains(&node) {
                        return true;
                    }
                } else if reader < last_node && visited.insert(unit) {
                    // All nodes of a unit run after what any of them reads.
                    open.extend(&units[unit].nodes);
                    if visited.len() > MAX_VISITED_UNITS {
                        return true;
                    }
                }
            }
        }
        false
    }

    /// The views between nodes.
    fn views_inside(&self, nodes: &[NodeId]) -> Vec<NodeId> {
        let facts = self.facts;
        let mut out = Vec::new();
        for &v in nodes.iter().flat_map(|&n| &facts.node(n).inputs) {
            let mut value = v;
            let is_inside = facts.defining_node(value).is_some_and(|n| nodes.contains(&n));
            while is_inside && facts.base[value] != value {
                let Some(view) = facts.graph.defining_node(value) else { break };
                if !out.contains(&view) {
                    out.push(view);
                }
                value = facts.node(view).inputs[0];
            }
        }
        out
    }
}
