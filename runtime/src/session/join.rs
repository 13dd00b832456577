//! How the ranks of a plan join: they compare the plan and the terms that must be equal.

use symmc_control::{
    Group, JoinRequest, JoinTerm, JoinedRank, LocateStep, Membership, PlanSubject, RankConfig, RankProgress,
    RunKind, StepName,
};
use symmc_ir::text;
use symmc_plan::{ParsedPlan, Plan};

use super::caller_arena::CallerArena;
use super::layout::SessionLayout;
use crate::custom::op_display_name;
use crate::error::{Result, RunError};

/// The number of groups that a session reserves in addition to those of its first program, if it may have
/// others.
const SPARE_GROUPS: usize = 32;

/// Joins as the group's rank for a session of `plan`; returns when all ranks have joined. `terms` are other
/// settings that must be equal on all of them. Fails if the group has another number of ranks, or the other
/// ranks do not join or run something else.
pub fn join_session(
    plan: &ParsedPlan,
    group: &Group,
    config: &RankConfig,
    mut terms: Vec<JoinTerm>,
) -> Result<JoinedRank> {
    let membership = group.next_session_membership()?;
    terms.push(JoinTerm::text("bytes of symmetric memory for the caller", config.callers.to_string()));
    terms.push(JoinTerm::text("other programs in the session", config.extendable.to_string()));
    let purpose = expect_plan_ranks(plan, &membership, "group")
        .and_then(|()| plan_join_request(plan, config, RunKind::Session, terms))
        .map_err(|error| membership.decline(error))?;
    let close_timeout = if group.is_within_process() { Default::default() } else { config.limit };
    let joined = JoinedRank::join(&membership, &purpose)?.with_close_timeout(close_timeout);
    Ok(joined.with_chaos(config.chaos))
}

/// Fails if the ranks that join are not as many as those of the plan. `joins` is what they join.
pub(crate) fn expect_plan_ranks(plan: &Plan, membership: &Membership, joins: &str) -> Result<()> {
    let &Membership { rank, ranks, .. } = membership;
    if plan.ranks == ranks {
        return Ok(());
    }
    let expected = plan.ranks;
    Err(RunError::Invalid(format!("rank {rank}: the plan is for {expected} ranks, the {joins} has {ranks}")))
}

/// The request with which ranks join to run a plan. Fails if the symmetric arena would be larger than any
/// memory.
pub fn plan_join_request(
    plan: &ParsedPlan,
    config: &RankConfig,
    run_kind: RunKind,
    terms: Vec<JoinTerm>,
) -> Result<JoinRequest> {
    Ok(JoinRequest {
        subject: plan_subject(plan),
        terms,
        groups: session_groups(plan, config),
        arena: symmetric_bytes(plan, config)?,
        run_kind,
        locate_step: step_locator(plan),
        limit: config.limit,
    })
}

/// The bytes of symmetric memory that a session reserves on each rank.
pub(crate) fn symmetric_bytes(plan: &Plan, config: &RankConfig) -> Result<usize> {
    if config.extendable {
        return Ok(SessionLayout::reserved_capacity(plan));
    }
    Ok(CallerArena::new(plan, config.callers)?.end())
}

/// The number of groups of a session that begins with this plan.
pub(crate) fn session_groups(plan: &ParsedPlan, config: &RankConfig) -> usize {
    count_groups(plan) + if config.extendable { SPARE_GROUPS } else { 0 }
}

/// The number of groups with separate flags: those of the plan, and one for other exchanges between ranks.
pub(crate) fn count_groups(plan: &ParsedPlan) -> usize {
    let planned = plan.programs().map(|p| p.map_or(0, |p| p.graph.groups.len()));
    planned.fold(plan.source_program().groups.len(), usize::max) + 1
}

/// The identity of a plan that ranks compare.
pub fn plan_subject(plan: &Plan) -> PlanSubject {
    PlanSubject { hash: plan.hash(), about: describe_plan(plan) }
}

/// Properties that distinguish a plan from others in error messages.
fn describe_plan(plan: &Plan) -> Vec<(String, String)> {
    let ranges: Vec<String> = plan.buckets.iter().map(|bucket| bucket.describe_range()).collect();
    let ranges: String = ranges.join("; ").chars().take(200).collect();
    let about = [
        ("program", plan.source.name.clone()),
        ("program text", plan.source.hash.chars().take(12).collect()),
        ("machine", plan.machine.clone()),
        ("buckets", ranges),
        ("bytes of the symmetric arena", plan.arenas.symmetric.to_string()),
        ("bytes of the ordinary arena", plan.arenas.ordinary.to_string()),
    ];
    about.map(|(name, value)| (name.to_string(), value)).to_vec()
}

pub fn step_locator(plan: &ParsedPlan) -> LocateStep {
    let plan = plan.clone();
    LocateStep::new(move |progress| locate_step(&plan, progress))
}

/// The step that a rank had begun. `None` outside of a run.
fn locate_step(plan: &Plan, progress: &RankProgress) -> Option<StepName> {
    let step = progress.step? as usize;
    let bucket = plan.buckets.get(progress.bucket as usize)?;
    let node = bucket.steps.get(step)?.node.clone();
    let graph = plan.programs.get(bucket.program).and_then(|p| text::parse(p).ok());
    let op = graph.and_then(|graph| {
        let (_, found_node) = graph.nodes.iter().find(|(id, _)| graph.node_name(*id) == node)?;
        Some(match found_node.op.as_collective() {
            Some(collective) => collective.kind.name().to_string(),
            None => op_display_name(&graph, &found_node.op),
        })
    });
    Some(StepName { step, node, op: op.unwrap_or_else(|| "step".into()) })
}
