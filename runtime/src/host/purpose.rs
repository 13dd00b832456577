//! What ranks join for when they run a plan: the plan, its steps by name, and the terms that must be alike.

use symmc_ir::text;
use symmc_plan::{Plan, ReadPlan};

use super::config::HostConfig;
use super::control::Progress;
use super::coordinator::{Subject, Watched};
use super::group::Group;
use super::join::Purpose;
use super::joined::JoinedRank;
use super::steps::{LocateStep, StepName};
use super::terms::Term;
use crate::custom::op_text;
use crate::error::RunError;

impl Purpose {
    /// What ranks join for to run a plan.
    ///
    /// # Errors
    /// The symmetric arena would be larger than any memory.
    pub fn of_plan(
        plan: &ReadPlan,
        config: &HostConfig,
        watched: Watched,
        terms: Vec<Term>,
    ) -> Result<Purpose, RunError> {
        Ok(Purpose {
            subject: subject(plan),
            terms,
            groups: config.groups(plan),
            arena: config.arena(plan)?,
            watched,
            locate_step: locate_steps(plan),
            comm: config.comm(plan.ranks),
        })
    }
}

impl JoinedRank {
    /// Joins as the group's rank for a session of `plan`; returns when all ranks have come. `terms` is what else must be alike
    /// on all of them.
    ///
    /// # Errors
    /// The group has another number of ranks, or the other ranks do not come or run something else.
    pub fn for_session(
        plan: &ReadPlan,
        group: &Group,
        config: &HostConfig,
        mut terms: Vec<Term>,
    ) -> Result<JoinedRank, RunError> {
        let place = group.next()?;
        terms.push(Term::text("bytes of symmetric memory for the caller", config.callers.to_string()));
        terms.push(Term::text("other programs in the session", config.extendable.to_string()));
        let purpose = expect_ranks(plan, group)
            .and_then(|()| Purpose::of_plan(plan, config, Watched::Session, terms))
            .map_err(|error| place.decline(error))?;
        let close_timeout = if group.is_within_process() { Default::default() } else { config.limit };
        Ok(JoinedRank::join(&place, &purpose)?.with_close_timeout(close_timeout))
    }
}

fn expect_ranks(plan: &Plan, group: &Group) -> Result<(), RunError> {
    if plan.ranks == group.ranks() {
        return Ok(());
    }
    let (rank, expected, found) = (group.rank(), plan.ranks, group.ranks());
    Err(RunError::Invalid(format!("rank {rank}: the plan is for {expected} ranks, the group has {found}")))
}

/// A plan as ranks compare it.
pub(crate) fn subject(plan: &Plan) -> Subject {
    Subject { hash: plan.hash(), about: about(plan) }
}

/// What people tell a plan from others by.
fn about(plan: &Plan) -> Vec<(String, String)> {
    let short = |text: &str| text.chars().take(12).collect::<String>();
    let ranges: Vec<String> = plan.buckets.iter().map(|bucket| bucket.range()).collect();
    let ranges: String = ranges.join("; ").chars().take(200).collect();
    let about = [
        ("program", plan.source.name.clone()),
        ("program text", short(&plan.source.hash)),
        ("machine", plan.machine.clone()),
        ("buckets", ranges),
        ("bytes of the symmetric arena", plan.arenas.symmetric.to_string()),
        ("bytes of the ordinary arena", plan.arenas.ordinary.to_string()),
    ];
    about.map(|(name, value)| (name.to_string(), value)).to_vec()
}

/// Names the steps of a plan.
pub(crate) fn locate_steps(plan: &ReadPlan) -> LocateStep {
    let plan = plan.clone();
    LocateStep::new(move |progress| locate_step(&plan, progress))
}

/// The step that a rank had begun. `None` outside of a run.
fn locate_step(plan: &Plan, progress: &Progress) -> Option<StepName> {
    let step = progress.step? as usize;
    let bucket = plan.buckets.get(progress.bucket as usize)?;
    let node = bucket.steps.get(step)?.node.clone();
    let graph = plan.programs.get(bucket.program).and_then(|p| text::parse(p).ok());
    let op = graph.and_then(|graph| {
        let (_, found) = graph.nodes.iter().find(|(id, _)| graph.node_name(*id) == node)?;
        Some(match found.op.as_collective() {
            Some(collective) => collective.kind.name().to_string(),
            None => op_text(&graph, &found.op),
        })
    });
    Some(StepName { step, node, op: op.unwrap_or_else(|| "step".into()) })
}
