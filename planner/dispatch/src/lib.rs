//! Divides the nodes of a program into steps.
//!
//! [`dispatch_units`] divides a lowered program, which already has every copy that placement needs, into
//! units: single nodes, and groups of nodes that are one kernel. The capabilities of the machine say which
//! nodes may be one kernel, and [`symmc_ir::dispatch`] defines the forms. All stages after this pass (order,
//! placement, packing, the check, the backends) treat a unit as one step.
//!
//! # Method
//! One walk in program order (`deferred` lists the exceptions) keeps a set of open units. A unit is closed
//! as soon as a node outside of it reads a result of its nodes. Units therefore never depend on each other
//! in a cycle, and the order of the walk, with each unit in place of its last node, is executable. Matrix
//! products join at the end: only the nodes of one unit read them, so they can run in its place.
//!
//! Deliberately not here: whether a product or a collective is faster in another variant (the lowering), and
//! the order in which units run (the planner).

mod batch;
mod broadcast;
mod columns;
mod deferred;
mod facts;
mod gather;
mod independent;
mod joint_collectives;
mod limits;
mod map;
mod merge;
mod product;
mod reduction;
mod rows;
mod selection;
mod walk;

use std::collections::{BTreeSet, HashSet};

use symmc_ir::machine::{DispatchCapabilities, MachineProfile};
use symmc_ir::{BinaryOp, CollectiveKind, CollectiveVariant, EntityMap, Graph, NodeId, Op, ValueId};

use walk::{DispatchWalk, Unit, UnitKind};

pub use limits::unit_size_limits;
pub use walk::DispatchUnit;

/// The units from which to start looking for [`dispatch_units`], one for each node except views, if their
/// order differs from program order; `None` otherwise. Collectives that run as one step are one unit.
pub fn batched_order(
    graph: &Graph,
    base: &EntityMap<ValueId, ValueId>,
    profile: &MachineProfile,
) -> Option<Vec<DispatchUnit>> {
    let facts = facts::DispatchFacts::new(graph, base, profile);
    Some(joint_collectives::group_into_units(&facts, batch::batched_node_order(&facts)?))
}

/// The units of a program on a machine, in an executable order. `base` gives the value whose memory each
/// value uses. A view is in a unit only if it is part of its kernel.
pub fn dispatch_units(
    graph: &Graph,
    base: &EntityMap<ValueId, ValueId>,
    profile: &MachineProfile,
) -> Vec<DispatchUnit> {
    let units = divide_into_units(&facts::DispatchFacts::new(graph, base, profile));
    let form = |unit: &Unit| unit.kind.map(UnitKind::form);
    units.into_iter().map(|unit| DispatchUnit { form: form(&unit), nodes: unit.nodes }).collect()
}

fn divide_into_units(facts: &facts::DispatchFacts<'_>) -> Vec<Unit> {
    let mut units = with_rows(facts);
    product::join_products(facts, &mut units);
    let mut units = merge::merge(facts, order_nonempty_units(facts, units));
    merge::join_takes(facts, &mut units);
    broadcast::join_broadcasts(facts, &mut units);
    finished(facts, units)
}

/// The units before matrix products join them.
fn with_rows(facts: &facts::DispatchFacts<'_>) -> Vec<Unit> {
    let units = walk_units(facts, &BTreeSet::new());
    if !units.iter().any(|unit| unit.kind == Some(UnitKind::Rows) && unit.nodes.len() > 1) {
        return units;
    }
    let reductions = facts.graph.nodes.iter().filter(|(_, n)| matches!(n.op, Op::Reduce { .. }));
    let separate_units = walk_units(facts, &reductions.map(|(id, _)| id).collect());
    let refused: BTreeSet<NodeId> =
        rows::unprofitable_reductions(facts, &units, &separate_units).into_iter().collect();
    if refused.is_empty() { units } else { walk_units(facts, &refused) }
}

/// Walks the program. The reductions in `refused` do not become units of rows.
fn walk_units(facts: &facts::DispatchFacts<'_>, refused: &BTreeSet<NodeId>) -> Vec<Unit> {
    let mut walk = DispatchWalk::new(facts);
    for id in joint_collectives::order_adjacent(facts, deferred::deferred_order(facts)) {
        let assignment = joint_collectives::assign_joint(&walk, id)
            .or_else(|| reduction::assign_reduction(&walk, id))
            .or_else(|| gather::assign_gather(&walk, id))
            .or_else(|| batch::assign_batched(&walk, id))
            .or_else(|| independent::assign_independent(&walk, id))
            .or_else(|| rows::assign_rows(&walk, id, refused))
            .or_else(|| rows::assign_norm(&walk, id))
            .or_else(|| map::assign_map(&walk, id));
        walk.assign_node(id, assignment);
    }
    let mut units = walk.units;
    rows::join_maps(facts, &mut units);
    selection::join_selections(facts, &mut units);
    columns::join_columns(facts, &mut units);
    units
}

/// Sorts units into an executable order. A unit of one node has no form.
fn finished(facts: &facts::DispatchFacts<'_>, units: Vec<Unit>) -> Vec<Unit> {
    let mut units = order_nonempty_units(facts, units);
    for unit in &mut units {
        unit.kind = unit.kind.filter(|_| unit.nodes.len() > 1);
    }
    units
}

/// Drops units without nodes and sorts the others into an executable order.
fn order_nonempty_units(facts: &facts::DispatchFacts<'_>, mut units: Vec<Unit>) -> Vec<Unit> {
    units.retain(|unit| !unit.nodes.is_empty());
    units.sort_by_key(|unit| unit.nodes.last().copied());
    deferred::order_runnable(facts, units, |unit| &unit.nodes)
}

/// Whether a node that could share a kernel with a collective depends on one: an addition after an
/// all-reduce, or a possible copy of a permutation after an all-gather.
fn follows_collectives(graph: &Graph, capabilities: &DispatchCapabilities) -> bool {
    let adds = capabilities.reduction.is_some();
    let copies = capabilities.gather.is_some();
    let mut reduced: EntityMap<ValueId, bool> = EntityMap::filled(false, graph.values.len());
    let mut gathered = reduced.clone();
    let mut permuted = reduced.clone();
    graph.nodes.values().any(|node| {
        let [reduces, gathers] = match node.op.as_collective().map(|c| &c.kind) {
            Some(CollectiveKind::AllReduce(_)) => [adds, false],
            Some(CollectiveKind::AllGather) => [false, copies],
            _ => [false; 2],
        };
        let of_reduction = node.inputs.iter().any(|&v| reduced[v]);
        let of_gather = node.inputs.iter().any(|&v| gathered[v]);
        let of_permuted = node.inputs.iter().any(|&v| permuted[v]);
        for &v in &node.outputs {
            reduced[v] = of_reduction || reduces;
            gathered[v] = gathers || of_gather && node.op == Op::Reshape;
            permuted[v] = of_gather && matches!(node.op, Op::Permute { .. });
        }
        let is_residual = of_reduction && node.op == Op::Binary(BinaryOp::Add);
        is_residual || of_permuted && matches!(node.op, Op::Reshape | Op::Copy | Op::Permute { .. })
    })
}

/// The results of collectives whose kernel can also do the single step that reads them, each with the
/// variants that have such a kernel. The step is the only reader, and would otherwise be a step of its own.
/// These are all-reduces with the addition of a residual, and all-gathers with a copy that permutes axes.
/// The collectives of the program do not have variants yet.
pub fn fusible_collectives(
    graph: &Graph,
    profile: &MachineProfile,
) -> BTreeSet<(ValueId, CollectiveVariant)> {
    let capabilities = &profile.dispatches;
    let mut out = BTreeSet::new();
    if !follows_collectives(graph, capabilities) {
        return out;
    }
    let base = facts::base_values(graph);
    let mut facts = facts::DispatchFacts::new(graph, &base, profile);
    let mut single: HashSet<NodeId> = HashSet::new();
    for unit in divide_into_units(&facts) {
        // If a norm is one kernel with only the addition, it becomes a step of its own after a reduction.
        if unit.kind.is_none() || (unit.kind == Some(UnitKind::Norm) && unit.nodes.len() == 2) {
            single.extend(unit.nodes);
        }
    }
    let variants: BTreeSet<CollectiveVariant> =
        reduction::RESIDUAL_VARIANTS.into_iter().chain(gather::ROW_STORE_VARIANTS).collect();
    for variant in variants {
        facts.assumed = Some(variant);
        // Products join none of these units.
        for unit in finished(&facts, with_rows(&facts)) {
            let follows = match unit.kind {
                Some(UnitKind::Reduction) => unit.nodes.iter().find(|n| is_addition(graph, **n)),
                Some(UnitKind::Gather) => unit.nodes.last(),
                _ => None,
            };
            let Some(&follows) = follows else { continue };
            let mut before =
                unit.nodes.iter().take_while(|&&n| n < follows).flat_map(|&n| &graph.nodes[n].outputs);
            let stay_inside = before
                .clone()
                .all(|&v| !facts.returned[v] && facts.users[v].iter().all(|user| unit.nodes.contains(user)));
            if let Some(&communicated) = before.next()
                && stay_inside
                && single.contains(&follows)
            {
                out.insert((communicated, variant));
            }
        }
    }
    out
}

fn is_addition(graph: &Graph, node: NodeId) -> bool {
    graph.nodes[node].op == Op::Binary(BinaryOp::Add)
}
