//! Groups the reduction over the axis before the last with what computes its operand: element-wise nodes, and
//! rows that are taken at positions that are data. A mixture of experts ends with such a sum: the weighted
//! results of the experts of each token.
//!
//! The kernel reads each row once and stores only the result. Only nodes that nothing else reads join, and
//! element-wise nodes of the result that are its only readers.

use symmc_ir::machine::LoopLimits;
use symmc_ir::{NodeId, Op, ReductionKind, ValueId};

use crate::facts::DispatchFacts;
use crate::product::reports;
use crate::walk::{Unit, UnitIndex, UnitKind};

/// Lets the units that compute the operands of reductions join these, and those that read their results.
pub fn join_columns(facts: &DispatchFacts<'_>, units: &mut [Unit]) {
    let Some(limits) = facts.capabilities().loops else { return };
    let mut unit_of = UnitIndex::new(facts, units);
    for u in 0..units.len() {
        let Some(reduction) = units[u].nodes.first().and_then(|&n| ColumnReduction::new(facts, n, &limits))
        else {
            continue;
        };
        if units[u].nodes.len() > 1 {
            continue;
        }
        reduction.join_sources(facts, units, &mut unit_of, u);
        reduction.join_readers(facts, units, &mut unit_of, u);
    }
}

/// A reduction that can be one kernel with the nodes around it.
struct ColumnReduction<'a> {
    limits: &'a LoopLimits,
    operand: ValueId,
    result: ValueId,
}

impl<'a> ColumnReduction<'a> {
    fn new(facts: &DispatchFacts<'_>, id: NodeId, limits: &'a LoopLimits) -> Option<ColumnReduction<'a>> {
        let node = facts.node(id);
        let (Op::Reduce { op, axes, .. }, &[x], &[y]) = (&node.op, &node.inputs[..], &node.outputs[..])
        else {
            return None;
        };
        let shape = &facts.graph.ty(x).shape;
        let axis = shape.len().checked_sub(2)?;
        let combines =
            matches!(op, ReductionKind::Sum | ReductionKind::Mean | ReductionKind::Max | ReductionKind::Min);
        let terms = facts.bounds(&shape[axis]);
        let fits =
            combines && axes[..] == [axis] && terms[0] > 0 && terms[1] <= u64::from(limits.columns?.terms);
        (fits && facts.base[x] == x).then_some(ColumnReduction { limits, operand: x, result: y })
    }

    /// Whether a unit computes elements of the operand, each at its own position, and only `to` reads them.
    fn fits_before(&self, facts: &DispatchFacts<'_>, unit: &Unit, to: &Unit) -> bool {
        let shape = &facts.graph.ty(self.operand).shape[..];
        let inside = |n: &NodeId| unit.nodes.contains(n) || to.nodes.contains(n);
        unit.nodes.iter().all(|&id| {
            let node = facts.node(id);
            let is_kind = match (&node.op, &node.inputs[..]) {
                (Op::Take { axis: 0 }, _) => unit.nodes.len() == 1,
                (op, inputs) => {
                    let direct = |v: &ValueId| {
                        facts.base[*v] == *v && facts.graph.ty(*v).shape[..] == *shape
                            || facts.defining_node(*v).is_none_or(|n| !unit.nodes.contains(&n))
                    };
                    op.fits_map() && !reports(facts, id) && inputs.iter().all(direct)
                }
            };
            is_kind
                && facts.result_shape(id) == Some(shape)
                && node.outputs.iter().all(|&v| {
                    !facts.returned[v] && !facts.communicated[v] && facts.users[v].iter().all(inside)
                })
        })
    }

    /// Lets the units that compute the operand join, and those that these read.
    fn join_sources(
        &self,
        facts: &DispatchFacts<'_>,
        units: &mut [Unit],
        unit_of: &mut UnitIndex,
        to: usize,
    ) {
        let mut open = vec![self.operand];
        while let Some(value) = open.pop() {
            let source = facts.graph.defining_node(value).and_then(|n| unit_of.of(n)).filter(|&u| u != to);
            let Some(from) = source else { continue };
            let count = units[from].nodes.len() + units[to].nodes.len();
            if count <= self.limits.nodes as usize && self.fits_before(facts, &units[from], &units[to]) {
                let inputs = units[from].nodes.iter().flat_map(|&n| facts.node(n).inputs.iter().copied());
                open.extend(inputs.filter(|&v| facts.base[v] == v));
                unit_of.join(units, from, to, UnitKind::Columns);
            }
        }
    }

    /// Lets the element-wise nodes join that alone read the result.
    fn join_readers(
        &self,
        facts: &DispatchFacts<'_>,
        units: &mut [Unit],
        unit_of: &mut UnitIndex,
        to: usize,
    ) {
        let readers = &facts.users[self.result];
        let Some(from) = readers.first().and_then(|&n| unit_of.of(n)) else { return };
        let shape = &facts.graph.ty(self.result).shape;
        let is_map = |id: &NodeId| {
            let node = facts.node(*id);
            node.op.fits_map()
                && !reports(facts, *id)
                && facts.result_shape(*id) == Some(shape)
                && node.outputs.iter().all(|&v| !facts.communicated[v])
        };
        // Nodes that wait for other collectives would delay the reduction.
        let waits = |nodes: &[NodeId]| nodes.iter().filter_map(|&n| facts.last_collectives[n]).max();
        let joins = units[from].kind == Some(UnitKind::Map)
            && !facts.returned[self.result]
            && !facts.communicated[self.result]
            && readers.iter().all(|n| units[from].nodes.contains(n))
            && units[from].nodes.iter().all(is_map)
            && units[from].nodes.len() + units[to].nodes.len() <= self.limits.nodes as usize
            && waits(&units[from].nodes) == waits(&units[to].nodes);
        if joins {
            unit_of.join(units, from, to, UnitKind::Columns);
        }
    }
}
