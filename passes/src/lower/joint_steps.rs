//! Runs several collectives as one step, each with its own operand and result, with one start-up and one
//! pair of barriers (a dispatch of the form `collectives`).
//!
//! Unlike a coalesced collective, such a set needs no copies, and its collectives may have several kinds and
//! dtypes. All of them use one variant. Sets are found like those of coalesced collectives (`coalesce`).
//! They are formed after the variants of single collectives are chosen, so rewriting does not see them. A
//! member that rewriting has replaced leaves its set.

use std::collections::{BTreeSet, HashMap};

use symmc_ir::entity::Entity;
use symmc_ir::{
    Collective, CollectiveVariant, Dispatch, DispatchForm, Graph, GraphOutput, GroupId, InputId, NodeId, Op,
};
use symmc_plan::{AppliedRule, Decision};

use super::coalesce::{CollectiveSet, sized_collective};
use super::coalesced_graph::{NodeOrSet, order_units};
use super::conditions::{CollectiveConditions, LowerConditions};
use super::context::{LowerContext, round_us};
use super::decisions::alternative_without_copies;
use super::joint_costs::{JointLossModel, JointLosses, best_joint_variant, sum_losses};
use crate::rewrite::{copy_inputs, copy_node};

/// The name of the rule in decisions.
pub const JOINT_STEP_RULE: &str = "run_collectives_together";

/// Returns the program in which sets of collectives, given by the names of their results, are steps, and the
/// number of these steps. Updates the decisions of the members. Sets that cannot be steps are unchanged.
pub fn join_steps(
    graph: Graph,
    sets: &[Vec<String>],
    bound: &BTreeSet<InputId>,
    context: &LowerContext,
    conditions: &LowerConditions,
    decisions: &mut [Decision],
) -> (Graph, usize) {
    let mut steps = find_joint_steps(&graph, sets, bound, context, conditions, decisions);
    let mut joined = with_steps(&graph, &steps);
    if joined.is_none() {
        // Some sets depend on each other: add each set that is compatible with those before it.
        for set in std::mem::take(&mut steps) {
            steps.push(set);
            match with_steps(&graph, &steps) {
                Some(with_set) => joined = Some(with_set),
                None => drop(steps.pop()),
            }
        }
    }
    let Some(joined) = joined.filter(|_| !steps.is_empty()) else { return (graph, 0) };
    for set in &steps {
        set.update_decisions(&graph, context, decisions);
    }
    (joined, steps.len())
}

struct JointStep {
    members: CollectiveSet,
    group: GroupId,
    variant: CollectiveVariant,
    us: f64,
}

/// The program in which these sets are steps; `None` if they depend on each other.
fn with_steps(graph: &Graph, steps: &[JointStep]) -> Option<Graph> {
    let mut chosen = graph.clone();
    for set in steps {
        for &id in &set.members {
            if let Op::Collective(c) = &mut chosen.nodes[id].op {
                c.variant = Some(set.variant);
                // The groups have the same cells, so one of them represents all.
                c.group = set.group;
            }
        }
    }
    let members: Vec<CollectiveSet> = steps.iter().map(|set| set.members.clone()).collect();
    make_adjacent(&chosen, &members)
}

fn find_joint_steps(
    graph: &Graph,
    sets: &[Vec<String>],
    bound: &BTreeSet<InputId>,
    context: &LowerContext,
    conditions: &LowerConditions,
    decisions: &[Decision],
) -> Vec<JointStep> {
    let by_itself = decisions.iter().filter(|d| d.nodes[..] == [d.collective.clone()]);
    let by_itself: BTreeSet<&str> = by_itself.map(|d| d.collective.as_str()).collect();
    let mut nodes: HashMap<&str, NodeId> = HashMap::new();
    for (id, node) in graph.nodes.iter() {
        let name = graph.node_name(id);
        if by_itself.contains(name) && sized_collective(graph, context, node).is_some() {
            nodes.insert(name, id);
        }
    }
    let losses = JointLossModel::new(graph, context, bound);
    let mut out = Vec::new();
    for set in sets {
        let mut members: CollectiveSet =
            set.iter().filter_map(|name| nodes.get(name.as_str()).copied()).collect();
        members.sort_unstable();
        let collectives: Vec<(&Collective, u64)> =
            members.iter().filter_map(|&id| sized_collective(graph, context, &graph.nodes[id])).collect();
        let Some(&(first, _)) = collectives.first().filter(|_| collectives.len() > 1) else { continue };
        if collectives.iter().any(|(c, _)| !graph.have_same_cells(c.group, first.group)) {
            continue;
        }
        let lost = members
            .iter()
            .zip(&collectives)
            .map(|(&id, (c, _))| losses.collective_losses(&graph.nodes[id], c));
        let lost = lost.fold(JointLosses::from([Some(0.0); 3]), sum_losses);
        let around = conditions.of(members.iter().map(|&id| graph.node_name(id)));
        if let Some((variant, us)) = best_joint_variant(context, &collectives, &lost, around) {
            out.push(JointStep { members, group: first.group, variant, us });
        }
    }
    out
}

impl JointStep {
    /// Updates the decisions of the members. The time of the step is divided among them in proportion to
    /// their times alone.
    fn update_decisions(&self, graph: &Graph, context: &LowerContext, decisions: &mut [Decision]) {
        let chosen = format!("together.{}", self.variant);
        let all_us: f64 = self.members.iter().filter_map(|&id| self.alone_us(graph, context, id)).sum();
        for &id in &self.members {
            let Some(decision) = decisions.iter_mut().find(|d| d.collective == graph.node_name(id)) else {
                continue;
            };
            let alone_us = self.alone_us(graph, context, id).filter(|_| all_us > 0.0);
            let share = alone_us.map_or(0.0, |us| us / all_us);
            let us = round_us(self.us * share);
            decision.chosen.clone_from(&chosen);
            decision.alternatives.push(alternative_without_copies(&chosen, us));
            decision.alternatives.sort_by(|a, b| a.us.total_cmp(&b.us));
            // A rule with a time describes how the collective would run alone.
            decision.rules.retain(|rule| rule.us.is_none());
            decision.rules.push(AppliedRule { name: JOINT_STEP_RULE.into(), us: Some(us) });
        }
    }

    /// The time of a member alone.
    fn alone_us(&self, graph: &Graph, context: &LowerContext, id: NodeId) -> Option<f64> {
        let (c, bytes) = sized_collective(graph, context, &graph.nodes[id])?;
        context.estimate_us(
            &c.kind,
            c.group,
            self.variant,
            bytes.into(),
            0.0,
            CollectiveConditions::default(),
        )
    }
}

/// The program with the nodes of each set adjacent, as a dispatch; `None` if sets depend on each other.
fn make_adjacent(from: &Graph, sets: &[CollectiveSet]) -> Option<Graph> {
    let mut set_of: Vec<Option<usize>> = vec![None; from.nodes.len()];
    for (s, set) in sets.iter().enumerate() {
        for id in set {
            if set_of.get_mut(id.index())?.replace(s).is_some() {
                return None;
            }
        }
    }
    let (mut to, mut map) = copy_inputs(from);
    for unit in order_units(from, sets, &set_of)? {
        match unit {
            NodeOrSet::Node(id) => {
                copy_node(from, &from.nodes[id], &mut to, &mut map)?;
            }
            NodeOrSet::Set(s) => {
                let mut new = Vec::with_capacity(sets[s].len());
                for &id in &sets[s] {
                    new.push(copy_node(from, &from.nodes[id], &mut to, &mut map)?);
                }
                let &first = new.first()?;
                let &last = new.last()?;
                to.dispatches.push(Dispatch { form: DispatchForm::Collectives, first, last });
            }
        }
    }
    for output in &from.outputs {
        to.outputs.push(GraphOutput { value: map[output.value]?, kind: output.kind });
    }
    Some(to)
}
