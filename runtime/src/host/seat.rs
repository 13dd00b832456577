//! A rank's seat in a session: its peers have come and run the same, and are watched until it leaves.

use std::time::Duration;

use symmc_check::CheckedPlan;

use super::comm::Comm;
use super::coordinator::{Watched, identity};
use super::group::Group;
use super::job::HostConfig;
use super::join::{Joined, Purpose, Recorded};
use crate::error::RunError;

/// A seat in a session that is opened by all ranks of a group together.
#[derive(Debug)]
pub struct Seat {
    joined: Joined,
    /// How long rank 0 waits for the others at most when it closes.
    closing: Duration,
}

/// How a rank leaves a session in which it has no run in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaving {
    /// Its caller closed the session.
    Closed,
    /// Its caller dropped the session, and does not expect that this takes long.
    Dropped,
}

impl Leaving {
    /// How long rank 0 waits for the others, if it would wait for `closing` when it closes.
    fn longest(self, closing: Duration) -> Duration {
        match self {
            Leaving::Closed => closing,
            Leaving::Dropped => closing.min(Duration::from_millis(500)),
        }
    }
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
        let others = ("other programs in the session".to_string(), config.extendable.to_string());
        let terms = terms.into_iter().chain([callers, others]).collect();
        let identity = expect_ranks(plan, group).and_then(|()| identity(plan, terms, &[]));
        let identity = identity.map_err(|error| place.decline(error))?;
        let (groups, watched) = (config.groups(plan), Watched::Session);
        let joined =
            Joined::new(&place, &Purpose { plan, groups, config, watched, identity, settings: &[] })?;
        let closing = if group.is_within_process() { Duration::ZERO } else { config.limit };
        Ok(Seat { joined, closing })
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

    /// Leaves. Where ranks are processes, rank 0, which watches over the others, waits until they have ended the runs that it
    /// has ended, but no longer than the limit, or half a second if the session is dropped. Peers that begin another run than
    /// these are refused.
    pub fn leave(self, recorded: Recorded, runs: u64, leaving: Leaving) {
        self.comm().control().set_closed(self.comm().rank(), runs);
        self.joined.leave(recorded, leaving.longest(self.closing));
    }
}

fn expect_ranks(plan: &CheckedPlan, group: &Group) -> Result<(), RunError> {
    if plan.ranks == group.ranks() {
        return Ok(());
    }
    let (rank, expected, found) = (group.rank(), plan.ranks, group.ranks());
    Err(RunError::Invalid(format!("rank {rank}: the plan is for {expected} ranks, the group has {found}")))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, mpsc};

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    use super::super::channel::Channel;
    use super::super::comm::{CommConfig, World};
    use super::super::link::Link;
    use super::super::opening::{CoordinatedBy, Opening};
    use super::*;

    const LIMIT: Duration = Duration::from_secs(3600);

    /// Rank 0 leaves while rank 1 stays in a run that rank 0 has ended, and the coordinator goes on: it does not wait for the
    /// limit. A watchdog ends rank 1's run after 30 seconds.
    #[test]
    fn a_session_that_is_dropped_does_not_wait_for_peers_for_the_limit() {
        let world = World::create(2, 1, 64, 0).expect("shared memory");
        let comm = Comm::new(world, 0, CommConfig::new(2, LIMIT)).expect("a rank");
        let control = comm.control().clone();
        for rank in [0, 1] {
            control.begin_run(rank, Some((0, 0)));
        }
        control.begin_run(0, None);
        let flags = SockFlag::SOCK_CLOEXEC;
        let pair = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags);
        let (ours, _theirs) = pair.expect("sockets");
        let opening = Opening::new(0, CoordinatedBy::Rank0, LIMIT, Duration::ZERO);
        let link = Link::new(Channel::new(ours, 0), comm, opening, None, LIMIT);
        let (left, has_left) = mpsc::channel::<()>();
        let is_late = Arc::new(AtomicBool::new(false));
        let (told, late) = (control.clone(), is_late.clone());
        let coordinator = std::thread::spawn(move || {
            if has_left.recv_timeout(Duration::from_secs(30)).is_err() {
                late.store(true, Ordering::Relaxed);
                told.begin_run(1, None);
            }
            Ok(())
        });
        let joined = Joined::with_coordinator(link, coordinator);
        let seat = Seat { joined, closing: LIMIT };
        seat.leave(Recorded::All, 1, Leaving::Dropped);
        let _ = left.send(());
        assert!(!is_late.load(Ordering::Relaxed), "it waited for rank 1");
        assert_eq!(control.closed(0), Some(1));
        assert_eq!(
            (Leaving::Closed.longest(LIMIT), Leaving::Dropped.longest(Duration::ZERO)),
            (LIMIT, Duration::ZERO)
        );
    }
}
