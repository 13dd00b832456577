//! Groups element-wise nodes with the norm of the rows that they compute: a residual is stored and not read
//! again.

use symmc_ir::{DispatchForm, NodeId, Op};

use crate::product::reports;
use crate::walk::{DispatchWalk, UnitAssignment};

pub fn assign_norm(walk: &DispatchWalk<'_>, id: NodeId) -> Option<UnitAssignment> {
    let facts = walk.facts;
    let max_row = facts.capabilities().norm?.row;
    let node = facts.node(id);
    if !matches!(node.op, Op::RmsNorm { axes: 1, .. } | Op::LayerNorm { axes: 1, .. }) {
        return None;
    }
    let (&x, other_operands) = node.inputs.split_first()?;
    let unit = walk.open_producer(x, DispatchForm::Map)?;
    let nodes = &walk.units[unit].nodes;
    let shape = facts.result_shape(id);
    let row = facts.graph.ty(x).shape.last()?.as_const()?;
    let fits = facts.base[x] == x
        && (1..=i64::from(max_row)).contains(&row)
        && nodes.iter().all(|&n| facts.result_shape(n) == shape && !reports(facts, n))
        && other_operands.iter().all(|&v| facts.defining_node(v).is_none_or(|n| !nodes.contains(&n)));
    fits.then_some(UnitAssignment::Ends(unit, DispatchForm::Norm))
}
