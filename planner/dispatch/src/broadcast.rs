//! Moves element-wise nodes whose result one kernel broadcasts into that kernel.
//!
//! A bias that is cast to f32 before it is added has one row, and the sum has many. As a step of its own the
//! cast takes a launch and stores a few numbers. Within the kernel each thread computes the elements that it
//! needs.

use symmc_ir::dispatch::LoopSpace;
use symmc_ir::{NodeId, Op};

use crate::facts::DispatchFacts;
use crate::product::reports;
use crate::walk::{Unit, UnitIndex, UnitKind};

/// Lets nodes of fewer elements join the units that are their only readers.
pub fn join_broadcasts(facts: &DispatchFacts<'_>, units: &mut [Unit]) {
    let Some(max_nodes) = facts.capabilities().loops.map(|limits| limits.nodes as usize) else { return };
    let mut unit_of = UnitIndex::new(facts, units);
    // Readers first, so that a chain of such nodes joins from its end.
    for node in facts.graph.nodes.keys().rev() {
        let Some(from) = unit_of.of(node) else { continue };
        let Some(to) = find_only_reader(facts, &unit_of, node).filter(|&to| to != from) else { continue };
        let may_leave = matches!(units[from].kind, None | Some(UnitKind::Map));
        if may_leave && units[to].nodes.len() < max_nodes && can_join(facts, &units[to], node) {
            units[from].nodes.retain(|&n| n != node);
            units[to].nodes.push(node);
            units[to].nodes.sort_unstable();
            units[to].kind.get_or_insert(UnitKind::Map);
            unit_of.assign(&[node], to);
        }
    }
}

/// The unit of all readers of a node's result.
fn find_only_reader(facts: &DispatchFacts<'_>, unit_of: &UnitIndex, node: NodeId) -> Option<usize> {
    let &[result] = &facts.node(node).outputs[..] else { return None };
    let (first, other_readers) = facts.users[result].split_first()?;
    let unit = unit_of.of(*first)?;
    let is_alone = !facts.returned[result] && other_readers.iter().all(|&n| unit_of.of(n) == Some(unit));
    is_alone.then_some(unit)
}

/// Whether a node can be one that the nodes of a unit broadcast.
fn can_join(facts: &DispatchFacts<'_>, unit: &Unit, node: NodeId) -> bool {
    let maps = match (unit.kind, &unit.nodes[..]) {
        (None | Some(UnitKind::Map | UnitKind::Product), nodes) => nodes,
        (Some(UnitKind::Norm), [maps @ .., norm]) => {
            // Weights that are computed join as units of rows.
            let read_by_norm = &facts.node(*norm).inputs;
            if facts.node(node).outputs.iter().any(|v| read_by_norm.contains(v)) {
                return false;
            }
            maps
        }
        _ => return false,
    };
    let is_map = |&n: &NodeId| facts.node(n).op.fits_map();
    let Some(shape) = maps.iter().rev().find(|n| is_map(n)).and_then(|&n| facts.result_shape(n)) else {
        return false;
    };
    let Some(own_shape) = facts.result_shape(node) else { return false };
    let is_broadcast = LoopSpace { shape, reduced_axis: None }.is_broadcast_shape(own_shape);
    let reads_unit = facts
        .node(node)
        .inputs
        .iter()
        .any(|&v| facts.defining_node(v).is_some_and(|source| unit.nodes.contains(&source)));
    let others_fit = unit.nodes.iter().all(|&n| match facts.node(n).op {
        Op::Take { .. } => facts.result_shape(n) == Some(shape),
        _ => true,
    });
    is_map(&node) && is_broadcast && !reads_unit && !reports(facts, node) && others_fit
}
