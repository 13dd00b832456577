//! Groups element-wise nodes with the norm of the rows that they compute: a residual is stored and not read
//! again.

use symmc_ir::{DispatchForm, NodeId, Op, ValueId};

use crate::product::reports;
use crate::walk::{DispatchWalk, UnitAssignment};

pub fn assign_norm(walk: &DispatchWalk<'_>, id: NodeId) -> Option<UnitAssignment> {
    let facts = walk.facts;
    let most = facts.capabilities().norm?.row;
    let node = facts.node(id);
    if !matches!(node.op, Op::RmsNorm { axes: 1, .. } | Op::LayerNorm { axes: 1, .. }) {
        return None;
    }
    let (&x, others) = node.inputs.split_first()?;
    let unit = walk.open_producer(x, DispatchForm::Map)?;
    let nodes = &walk.units[unit].nodes;
    let shape = |n: NodeId| facts.node(n).outputs.first().map(|&v| &facts.graph.ty(v).shape);
    let row = facts.graph.ty(x).shape.last()?.as_const()?;
    let inside = |v: &ValueId| facts.defining_node(*v).is_some_and(|n| nodes.contains(&n));
    let fits = facts.base[x] == x
        && (1..=i64::from(most)).contains(&row)
        && nodes.iter().all(|&n| shape(n) == shape(id) && !reports(facts, n))
        && !others.iter().any(inside);
    fits.then_some(UnitAssignment::Ends(unit, DispatchForm::Norm))
}
