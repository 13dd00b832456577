//! Rank 0 gathers the ranks of a run that another launcher started.
//!
//! Every process that connects sends its rank. A rank may connect twice, come from another run, be unable to
//! begin, or die meanwhile. Then the ranks that have joined get the error at once. Rank 0 still awaits the others
//! for a moment, so that all of them get the same error. If this process runs out of descriptors, a reserved one
//! is freed for this purpose, and the remaining processes are served one after another.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};

use crate::channel::{
    Channel, CoordinatorMessage, RankMessage, ReceiveOutcome, accept_connection, is_same_user,
};
use crate::error::{Result, RunError};
use crate::heartbeat::{ActiveClock, TICK};
use crate::joining::{CoordinatorMachine, JoinFault, JoinStage, JoinTimeouts, RankAnswer};
use crate::membership::Membership;

/// How long missing ranks are still awaited after the run has failed.
pub(crate) const LINGER: Duration = Duration::from_secs(2);

/// How long a connected process may take to send its rank while others wait for its descriptor.
const SAYING: Duration = Duration::from_millis(200);

pub(crate) struct GatheredRanks {
    /// The channel of each rank, by rank.
    pub channels: Vec<Channel>,
    pub machine: CoordinatorMachine,
    pub clock: ActiveClock,
}

struct ConnectedProcess {
    channel: Channel,
    /// Whether the peer process is this process.
    own: bool,
    rank: Option<u32>,
    /// Whether the peer process has closed the connection.
    gone: bool,
    /// Whether it was sent the error of the run.
    is_notified: bool,
}

impl ConnectedProcess {
    fn new(fd: OwnedFd, own: bool) -> ConnectedProcess {
        ConnectedProcess { channel: Channel::new(fd, 0), own, rank: None, gone: false, is_notified: false }
    }

    fn notify(&mut self, error: &RunError) {
        if !self.is_notified {
            // A process that cannot be notified is gone.
            let _ = self.channel.send(&CoordinatorMessage::Verdict(Some(error.clone())));
            self.is_notified = true;
        }
    }
}

pub(crate) struct RankGatherer<'a> {
    place: &'a Membership,
    listener: &'a OwnedFd,
    limit: Duration,
    machine: CoordinatorMachine,
    clock: ActiveClock,
    candidates: Vec<ConnectedProcess>,
    fault: Option<RunError>,
    /// A reserved descriptor, freed for a process that connects when there is no other.
    spare: Option<OwnedFd>,
    /// Whether this process has no descriptors left.
    is_starved: bool,
}

impl<'a> RankGatherer<'a> {
    pub fn new(membership: &'a Membership, listener: &'a OwnedFd, limit: Duration) -> Self {
        let mut clock = ActiveClock::start();
        let machine = CoordinatorMachine::new(membership.ranks, JoinTimeouts::new(limit), clock.now());
        let spare = listener.try_clone().ok();
        RankGatherer {
            place: membership,
            listener,
            limit,
            machine,
            clock,
            candidates: Vec::new(),
            fault: None,
            spare,
            is_starved: false,
        }
    }

    /// Fails the run: processes that connect from now on get this error. Only the first error counts.
    pub fn reject_run(&mut self, error: RunError) {
        if self.fault.is_none() {
            tracing::warn!(target: "symmc::join", %error, "the ranks cannot start");
            let now = self.clock.now();
            self.machine.shorten_gathering(now + LINGER);
            self.fault = Some(error);
        }
    }

    pub fn count_rank(&mut self, rank: u32) {
        let now = self.clock.now();
        // The order of the state machine, to welcome the ranks, follows from its stage.
        let _ = self.machine.accept_answer(rank, RankAnswer::Join, now);
    }

    /// Returns a channel to each rank once all have joined. Fails if a rank did not join, or one that joined
    /// cannot take part. All processes that connected have then been notified.
    pub fn gather_all(mut self) -> Result<GatheredRanks> {
        while self.machine.stage() == JoinStage::Gathering {
            let now = self.clock.now();
            if let Some(JoinFault::Absent(ranks)) = self.machine.check_timeouts(now, &|_| None) {
                let limit_ms = self.limit.as_millis() as u64;
                self.reject_run(RunError::Absent { ranks, limit_ms }.reported_by(self.place.rank));
                break;
            }
            if let Err(error) = self.process_next_event() {
                self.reject_run(error.reported_by(self.place.rank));
            }
            if let Some(error) = &self.fault {
                let joined = self.candidates.iter_mut().filter(|candidate| candidate.rank.is_some());
                joined.for_each(|candidate| candidate.notify(error));
            }
        }
        if let Some(error) = self.fault {
            self.candidates.iter_mut().for_each(|candidate| candidate.notify(&error));
            return Err(error);
        }
        self.reject_latecomers();
        let mut candidates: Vec<ConnectedProcess> =
            self.candidates.into_iter().filter(|g| g.rank.is_some()).collect();
        candidates.sort_by_key(|candidate| candidate.rank);
        let channels = candidates.into_iter().map(|candidate| candidate.channel).collect();
        Ok(GatheredRanks { channels, machine: self.machine, clock: self.clock })
    }

    /// Refuses processes that connected to a run that has all its ranks.
    fn reject_latecomers(&mut self) {
        while let Ok(Some(fd)) = accept_connection(self.listener, Instant::now()) {
            self.candidates.push(ConnectedProcess::new(fd, false));
        }
        let text = "all ranks of this run have joined already: was a rank started twice?".to_string();
        let error = RunError::Invalid(text);
        let unknown = self.candidates.iter_mut().filter(|candidate| candidate.rank.is_none());
        unknown.for_each(|candidate| candidate.notify(&error));
    }

    /// Waits until a process connects, sends a message or closes its end.
    fn process_next_event(&mut self) -> Result<()> {
        let present: Vec<usize> = (0..self.candidates.len()).filter(|&g| !self.candidates[g].gone).collect();
        let channels = present.iter().map(|&g| self.candidates[g].channel.fd());
        let sockets = std::iter::once(self.listener.as_fd()).chain(channels);
        let mut fds: Vec<PollFd> = sockets.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match poll(&mut fds, PollTimeout::try_from(TICK).unwrap_or(PollTimeout::ZERO)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(RunError::from_system_call("waiting for ranks", "poll", e)),
        }
        let events: Vec<bool> = fds.iter().map(|fd| fd.revents().is_some_and(|e| !e.is_empty())).collect();
        let mut result = Ok(());
        for (&candidate, _) in present.iter().zip(&events[1..]).filter(|(_, event)| **event) {
            result = result.and(self.handle_message(candidate));
        }
        if events[0] {
            result = result.and(self.accept_connection());
        }
        result
    }

    fn accept_connection(&mut self) -> Result<()> {
        let accepted = match accept_connection(self.listener, Instant::now()) {
            Err(error @ RunError::Exhausted { .. }) if self.spare.take().is_some() => {
                self.is_starved = true;
                return Err(error.reported_by(self.place.rank));
            }
            accepted => accepted?,
        };
        let Some(fd) = accepted else { return Ok(()) };
        if self.is_starved {
            self.reject_connection(fd);
        } else if is_same_user(&fd)? {
            let peer = getsockopt(&fd, sockopt::PeerCredentials);
            let own = peer.is_ok_and(|peer| peer.pid() as u32 == std::process::id());
            self.candidates.push(ConnectedProcess::new(fd, own));
        }
        Ok(())
    }

    /// Refuses a process with the reason, and closes its descriptor.
    fn reject_connection(&mut self, fd: OwnedFd) {
        let channel = Channel::new(fd, 0);
        if let Ok(Some(RankMessage::Join { rank, .. })) = channel.receive(Some(Instant::now() + SAYING)) {
            self.count_rank(rank);
        }
        // A process that cannot be notified is gone.
        let _ = channel.send(&CoordinatorMessage::Verdict(self.fault.clone()));
    }

    fn handle_message(&mut self, index: usize) -> Result<()> {
        let candidate = &mut self.candidates[index];
        match (candidate.channel.try_receive(), candidate.rank) {
            (Ok(ReceiveOutcome::Nothing), _) => Ok(()),
            (Ok(ReceiveOutcome::Message(RankMessage::Join { rank, ranks, run, left_ms })), None) => {
                let until = self.clock.now().saturating_add(Duration::from_millis(left_ms));
                self.machine.shorten_gathering(until);
                self.admit_rank(index, rank, ranks, &run)
            }
            (Ok(ReceiveOutcome::Message(RankMessage::Decline { rank, ranks, run, error })), None) => {
                candidate.gone = true;
                self.admit_rank(index, rank, ranks, &run).and(Err(error.reported_by(rank)))
            }
            (Ok(ReceiveOutcome::Message(RankMessage::Failed(error))), Some(rank)) => {
                candidate.gone = true;
                Err(error.reported_by(rank))
            }
            (Ok(ReceiveOutcome::End), Some(rank)) => {
                candidate.gone = true;
                let how = "its process is gone".into();
                let when = "while the ranks joined".into();
                Err(RunError::DiedOutside { rank, how, when }.reported_by(self.place.rank))
            }
            (Ok(ReceiveOutcome::Message(other)), Some(rank)) => {
                candidate.gone = true;
                let detail = format!("unexpected {other:?} while the ranks joined");
                Err(RunError::Protocol { rank, detail }.reported_by(self.place.rank))
            }
            (Err(error), rank) => {
                candidate.gone = true;
                // A process that sends something else before its rank is not a rank.
                let is_foreign = rank.is_none() && matches!(error, RunError::Protocol { .. });
                if is_foreign { Ok(()) } else { Err(error.reported_by(self.place.rank)) }
            }
            (Ok(_), None) => {
                candidate.gone = true;
                Ok(())
            }
        }
    }

    fn admit_rank(&mut self, index: usize, rank: u32, ranks: u32, run: &str) -> Result<()> {
        let expected = self.place.ranks;
        if run != self.place.run || ranks != expected || rank >= expected {
            let detail = format!("rank {rank} of {ranks} came to a run of {expected} ranks");
            return Err(RunError::Misplaced { rank, detail }.reported_by(self.place.rank));
        }
        let is_taken = self.candidates.iter().any(|g| g.rank == Some(rank));
        let candidate = &mut self.candidates[index];
        if is_taken || (rank == 0 && !candidate.own) {
            let detail = format!("two processes say that they are rank {rank} of this run");
            return Err(RunError::Misplaced { rank, detail }.reported_by(self.place.rank));
        }
        candidate.rank = Some(rank);
        candidate.channel.set_peer(rank);
        tracing::debug!(target: "symmc::join", rank, ranks, "a rank joined");
        self.count_rank(rank);
        Ok(())
    }
}
