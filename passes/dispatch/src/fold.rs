//! Groups the reduction over the axis before the last with what computes its operand: element-wise nodes, and
//! rows that are taken at positions that are data. A mixture of experts ends with such a sum: the weighted
//! results of the experts of each token.
//!
//! The kernel reads each row once and stores only the result. Only nodes that nothing else reads join, and
//! element-wise nodes of the result that are its only readers.

use symmc_ir::machine::FoldLimits;
use symmc_ir::{DispatchForm, NodeId, Op, ReductionKind, ValueId};

use crate::facts::DispatchFacts;
use crate::product::reports;
use crate::walk::DispatchUnit;

/// Lets the units that compute the operands of reductions join these, and those that read their results.
pub fn join_folds(facts: &DispatchFacts<'_>, units: &mut [DispatchUnit]) {
    let Some(limits) = facts.capabilities().fold else { return };
    let mut unit_of = UnitIndex::new(facts, units);
    for u in 0..units.len() {
        let Some(fold) = units[u].nodes.first().and_then(|&n| Fold::new(facts, n, &limits)) else { continue };
        if units[u].nodes.len() > 1 {
            continue;
        }
        fold.join_sources(facts, units, &mut unit_of, u);
        fold.join_readers(facts, units, &mut unit_of, u);
    }
}

/// Lets rows that are taken at positions that are data join the maps that alone read them.
pub fn join_takes(facts: &DispatchFacts<'_>, units: &mut [DispatchUnit]) {
    let Some(limits) = facts.capabilities().map else { return };
    let mut unit_of = UnitIndex::new(facts, units);
    for u in 0..units.len() {
        let &[take] = &units[u].nodes[..] else { continue };
        let Op::Take { axis: 0 } = facts.node(take).op else { continue };
        let result = facts.node(take).outputs[0];
        let readers = &facts.users[result];
        let Some(to) = readers.first().and_then(|&n| unit_of.of(n)) else { continue };
        let shape = facts.result_shape(take);
        let is_map = |&n: &NodeId| {
            let node = facts.node(n);
            facts.result_shape(n) == shape && (node.op.fits_map() || matches!(node.op, Op::Take { .. }))
        };
        let joins = units[to].form == Some(DispatchForm::Map)
            && !facts.returned[result]
            && !facts.communicated[result]
            && readers.iter().all(|n| units[to].nodes.contains(n))
            && units[to].nodes.iter().all(is_map)
            && units[to].nodes.len() < limits.nodes as usize;
        if joins {
            unit_of.join(units, u, to, DispatchForm::Map);
        }
    }
}

/// For each node, the number of its unit.
pub struct UnitIndex(Vec<usize>);

impl UnitIndex {
    pub fn new(facts: &DispatchFacts<'_>, units: &[DispatchUnit]) -> UnitIndex {
        let mut out = UnitIndex(vec![usize::MAX; facts.graph.nodes.len()]);
        units.iter().enumerate().for_each(|(u, unit)| out.assign(&unit.nodes, u));
        out
    }

    pub fn of(&self, node: NodeId) -> Option<usize> {
        use symmc_ir::entity::Entity;
        self.0.get(node.index()).copied().filter(|&u| u != usize::MAX)
    }

    fn assign(&mut self, nodes: &[NodeId], unit: usize) {
        use symmc_ir::entity::Entity;
        nodes.iter().for_each(|n| self.0[n.index()] = unit);
    }

    /// Moves the nodes of a unit into another one of this form.
    pub fn join(&mut self, units: &mut [DispatchUnit], from: usize, to: usize, form: DispatchForm) {
        let moved = std::mem::take(&mut units[from].nodes);
        self.assign(&moved, to);
        units[to].nodes.extend(moved);
        units[to].nodes.sort_unstable();
        units[to].form = Some(form);
    }
}

/// A reduction that can be one kernel with the nodes around it.
struct Fold<'a> {
    limits: &'a FoldLimits,
    operand: ValueId,
    result: ValueId,
}

impl<'a> Fold<'a> {
    fn new(facts: &DispatchFacts<'_>, id: NodeId, limits: &'a FoldLimits) -> Option<Fold<'a>> {
        let node = facts.node(id);
        let (Op::Reduce { op, axes, .. }, &[x], &[y]) = (&node.op, &node.inputs[..], &node.outputs[..])
        else {
            return None;
        };
        let shape = &facts.graph.ty(x).shape;
        let axis = shape.len().checked_sub(2)?;
        let folds =
            matches!(op, ReductionKind::Sum | ReductionKind::Mean | ReductionKind::Max | ReductionKind::Min);
        let terms = facts.bounds(&shape[axis]);
        let fits = folds && axes[..] == [axis] && terms[0] > 0 && terms[1] <= u64::from(limits.terms);
        (fits && facts.base[x] == x).then_some(Fold { limits, operand: x, result: y })
    }

    /// Whether a unit computes elements of the operand, each at its own position, and only `to` reads them.
    fn fits_before(&self, facts: &DispatchFacts<'_>, unit: &DispatchUnit, to: &DispatchUnit) -> bool {
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
        units: &mut [DispatchUnit],
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
                unit_of.join(units, from, to, DispatchForm::Fold);
            }
        }
    }

    /// Lets the element-wise nodes join that alone read the result.
    fn join_readers(
        &self,
        facts: &DispatchFacts<'_>,
        units: &mut [DispatchUnit],
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
        let joins = units[from].form == Some(DispatchForm::Map)
            && !facts.returned[self.result]
            && !facts.communicated[self.result]
            && readers.iter().all(|n| units[from].nodes.contains(n))
            && units[from].nodes.iter().all(is_map)
            && units[from].nodes.len() + units[to].nodes.len() <= self.limits.nodes as usize
            && waits(&units[from].nodes) == waits(&units[to].nodes);
        if joins {
            unit_of.join(units, from, to, DispatchForm::Fold);
        }
    }
}
