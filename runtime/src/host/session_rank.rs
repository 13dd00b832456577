//! A rank that has joined the others, with its communicator: what sessions run as.

use serde::Serialize;
use symmc_control::{Group, JoinedRank, Leaving, Recorded, Term, Watched};
use symmc_plan::{Plan, ReadPlan};

use super::comm::{Comm, CommConfig};
use super::config::HostConfig;
use super::purpose::plan_purpose;
use crate::error::{Result, RunError};

/// A rank that has joined the others, with its communicator. There is one for each rank that joined, since communicators count
/// the collectives of each group.
#[derive(Debug)]
pub struct SessionRank {
    joined: JoinedRank,
    comm: Comm,
}

impl SessionRank {
    /// A rank that has joined, and communicates like this. Fails if the memory that the ranks share does not have this
    /// rank. The run has ended then.
    pub fn new(joined: JoinedRank, config: CommConfig) -> Result<SessionRank> {
        match Comm::new(joined.domain().clone(), joined.rank(), config) {
            Ok(comm) => Ok(SessionRank { joined, comm }),
            Err(error) => Err(joined.fail(error)),
        }
    }

    /// Joins as the group's rank for a session of `plan`; returns when all ranks have come. `terms` is what else must be alike
    /// on all of them. Fails if the group has another number of ranks, or the other ranks do not come or run something
    /// else.
    pub fn for_session(
        plan: &ReadPlan,
        group: &Group,
        config: &HostConfig,
        mut terms: Vec<Term>,
    ) -> Result<SessionRank> {
        let place = group.next_session()?;
        terms.push(Term::text("bytes of symmetric memory for the caller", config.callers.to_string()));
        terms.push(Term::text("other programs in the session", config.extendable.to_string()));
        let purpose = expect_ranks(plan, group)
            .and_then(|()| plan_purpose(plan, config, Watched::Session, terms))
            .map_err(|error| place.decline(error))?;
        let close_timeout = if group.is_within_process() { Default::default() } else { config.limit };
        let joined = JoinedRank::join(&place, &purpose)?.with_close_timeout(close_timeout);
        SessionRank::new(joined, config.comm(plan.ranks))
    }

    pub fn comm(&self) -> &Comm {
        &self.comm
    }

    pub fn start(&self) -> Result<()> {
        self.joined.start()
    }

    pub fn fail(&self, error: RunError) -> RunError {
        self.joined.fail(error)
    }

    pub fn alive(&self) -> Result<()> {
        self.joined.alive()
    }

    pub fn send_answer(&self, answer: &impl Serialize) -> Result<()> {
        self.joined.send_answer(answer)
    }

    pub fn conclude(self, result: Result<()>) -> Result<()> {
        self.joined.conclude(result)
    }

    pub fn leave(self, recorded: Recorded, runs: u64, leaving: Leaving) {
        self.joined.leave(recorded, runs, leaving);
    }
}

fn expect_ranks(plan: &Plan, group: &Group) -> Result<()> {
    if plan.ranks == group.ranks() {
        return Ok(());
    }
    let (rank, expected, found) = (group.rank(), plan.ranks, group.ranks());
    Err(RunError::Invalid(format!("rank {rank}: the plan is for {expected} ranks, the group has {found}")))
}
