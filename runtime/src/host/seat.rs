//! A rank's seat in a session: its peers have come and run the same, and are watched until it leaves.

use std::time::Duration;

use symmc_check::CheckedPlan;

use super::comm::Comm;
use super::coordinator::{Watched, identity};
use super::group::Group;
use super::job::{HostConfig, groups};
use super::join::{Joined, Purpose, Recorded};
use crate::error::RunError;

/// A seat in a session that is opened by all ranks of a group together.
#[derive(Debug)]
pub struct Seat {
    joined: Joined,
    /// How long rank 0 waits for the others at most when it leaves.
    farewell: Duration,
}

impl Seat {
    /// Takes the seat of the group's rank for a session of `plan`; returns when all ranks have come. `terms` is what else
    /// must be alike on all of them, by name.
    ///
    /// # Errors
    /// The group has another number of ranks, or the other ranks do not come or run something else.
    pub fn take(
        plan: &CheckedPlan,
        group: &Group,
        config: &HostConfig,
        terms: Vec<(String, String)>,
    ) -> Result<Seat, RunError> {
        let place = group.next()?;
        let callers = ("bytes of symmetric memory for the caller".to_string(), config.callers.to_string());
        let terms = terms.into_iter().chain([callers]).collect();
        let identity = expect_ranks(plan, group).and_then(|()| identity(plan, terms, &[]));
        let identity = identity.map_err(|error| place.decline(error))?;
        let (groups, watched) = (groups(plan), Watched::Session);
        let joined =
            Joined::new(&place, &Purpose { plan, groups, config, watched, identity, settings: &[] })?;
        let farewell = if group.is_within_process() { Duration::ZERO } else { config.limit };
        Ok(Seat { joined, farewell })
    }

    /// What the rank communicates by.
    pub fn comm(&self) -> &Comm {
        self.joined.link().comm()
    }

    /// Says that this rank is ready to run; returns when all are.
    ///
    /// # Errors
    /// A rank failed before.
    pub fn start(&self) -> Result<(), RunError> {
        self.joined.link().start()
    }

    /// Ends the session on all ranks, because of what happened on this one; the error that explains it best.
    pub fn fail(&self, error: RunError) -> RunError {
        self.comm().abort(&error);
        self.joined.link().report(error)
    }

    /// Whether the session goes on.
    ///
    /// # Errors
    /// Who ended it, and why.
    pub fn alive(&self) -> Result<(), RunError> {
        self.comm().control().abort_reason().map_or(Ok(()), Err)
    }

    /// Leaves. Where ranks are processes rank 0, which watches over the others, waits until they are through the runs that it
    /// has ended, but no longer than the limit.
    /// Peers that begin another run than these are refused.
    pub fn leave(self, recorded: Recorded, runs: u64) {
        self.comm().control().set_closed(self.comm().rank(), runs);
        self.joined.leave(recorded, self.farewell);
    }
}

fn expect_ranks(plan: &CheckedPlan, group: &Group) -> Result<(), RunError> {
    if plan.ranks == group.ranks() {
        return Ok(());
    }
    let (rank, expected, found) = (group.rank(), plan.ranks, group.ranks());
    Err(RunError::Invalid(format!("rank {rank}: the plan is for {expected} ranks, the group has {found}")))
}
