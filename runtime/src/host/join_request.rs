//! The join request of ranks that run a plan: the plan, the names of its steps, and the terms that must be
//! equal.

use symmc_control::{JoinRequest, JoinTerm, LocateStep, PlanSubject, RankProgress, RunKind, StepName};
use symmc_ir::text;
use symmc_plan::{ParsedPlan, Plan};

use super::config::HostConfig;
use crate::custom::op_display_name;
use crate::error::Result;

/// The request with which ranks join to run a plan. Fails if the symmetric arena would be larger than any
/// memory.
pub fn plan_join_request(
    plan: &ParsedPlan,
    config: &HostConfig,
    run_kind: RunKind,
    terms: Vec<JoinTerm>,
) -> Result<JoinRequest> {
    Ok(JoinRequest {
        subject: plan_subject(plan),
        terms,
        groups: config.session_groups(plan),
        arena: config.symmetric_bytes(plan)?,
        run_kind,
        locate_step: step_locator(plan),
        first: config.first,
        limit: config.limit,
    })
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
