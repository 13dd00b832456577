//! A rank that has joined the others, with its communicator: the rank that a session runs as.

use serde::Serialize;
use symmc_control::{Group, JoinTerm, JoinedRank, LeaveMode, ProgressRecording, RunKind};
use symmc_plan::{ParsedPlan, Plan};

use super::comm::{CommConfig, HostCommunicator};
use super::config::HostConfig;
use super::join_request::plan_join_request;
use crate::error::{Result, RunError};

/// A rank that has joined the others, with its communicator. There is one for each joined rank, since
/// communicators count the collectives of each group.
#[derive(Debug)]
pub struct SessionRank {
    joined: JoinedRank,
    comm: HostCommunicator,
}

impl SessionRank {
    /// Creates the communicator of a rank that has joined. If the shared memory does not have this rank, this
    /// fails and the run ends.
    pub fn new(joined: JoinedRank, config: CommConfig) -> Result<SessionRank> {
        match HostCommunicator::new(joined.domain().clone(), joined.rank(), config) {
            Ok(comm) => Ok(SessionRank { joined, comm }),
            Err(error) => Err(joined.fail_run(error)),
        }
    }

    /// Joins as the group's rank for a session of `plan`; returns when all ranks have joined. `terms` are
    /// other settings that must be equal on all of them. Fails if the group has another number of ranks, or
    /// the other ranks do not join or run something else.
    pub fn join_session(
        plan: &ParsedPlan,
        group: &Group,
        config: &HostConfig,
        mut terms: Vec<JoinTerm>,
    ) -> Result<SessionRank> {
        let membership = group.next_session_membership()?;
        terms.push(JoinTerm::text("bytes of symmetric memory for the caller", config.callers.to_string()));
        terms.push(JoinTerm::text("other programs in the session", config.extendable.to_string()));
        let purpose = expect_group_size(plan, group)
            .and_then(|()| plan_join_request(plan, config, RunKind::Session, terms))
            .map_err(|error| membership.decline(error))?;
        let close_timeout = if group.is_within_process() { Default::default() } else { config.limit };
        let joined = JoinedRank::join(&membership, &purpose)?.with_close_timeout(close_timeout);
        SessionRank::new(joined, config.comm_config(plan.ranks))
    }

    pub fn comm(&self) -> &HostCommunicator {
        &self.comm
    }

    pub fn start(&self) -> Result<()> {
        self.joined.start()
    }

    pub fn fail_run(&self, error: RunError) -> RunError {
        self.joined.fail_run(error)
    }

    pub fn expect_running(&self) -> Result<()> {
        self.joined.expect_running()
    }

    pub fn send_answer(&self, answer: &impl Serialize) -> Result<()> {
        self.joined.send_answer(answer)
    }

    pub fn conclude_job(self, result: Result<()>) -> Result<()> {
        self.joined.conclude_job(result)
    }

    pub fn leave_session(self, recorded: ProgressRecording, runs: u64, leaving: LeaveMode) {
        self.joined.leave_session(recorded, runs, leaving);
    }
}

fn expect_group_size(plan: &Plan, group: &Group) -> Result<()> {
    if plan.ranks == group.ranks() {
        return Ok(());
    }
    let rank = group.rank();
    let expected = plan.ranks;
    let group_ranks = group.ranks();
    Err(RunError::Invalid(format!(
        "rank {rank}: the plan is for {expected} ranks, the group has {group_ranks}"
    )))
}
