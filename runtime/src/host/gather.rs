//! Rank 0 gathers the ranks of a run that another launcher started.
//!
//! Every process that connects says which rank it is. When a rank is there twice, comes from another run, cannot
//! begin or dies meanwhile, the others are still awaited for a moment, so that all of them learn the same.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};

use super::channel::{Channel, FromRank, ToRank, accept, same_user};
use super::membership::Membership;
use crate::error::RunError;

/// How long ranks that have not come are awaited once the run cannot be.
pub(super) const LINGER: Duration = Duration::from_secs(2);

/// A process that connected.
struct Guest {
    channel: Channel,
    /// Whether the process at the other end is this one.
    own: bool,
    /// The rank that it says it is.
    rank: Option<u32>,
    /// Whether it has closed its end.
    gone: bool,
}

/// The processes that came so far.
pub(super) struct Gathering<'a> {
    place: &'a Membership,
    listener: &'a OwnedFd,
    limit: Duration,
    until: Instant,
    /// The ranks that are to come.
    awaited: Vec<u32>,
    guests: Vec<Guest>,
    fault: Option<RunError>,
}

impl<'a> Gathering<'a> {
    /// Awaits the ranks of the run of `place` for `limit`.
    pub fn new(place: &'a Membership, listener: &'a OwnedFd, limit: Duration) -> Self {
        let until = Instant::now() + limit;
        let awaited = (0..place.ranks).collect();
        Gathering { place, listener, limit, until, awaited, guests: Vec::new(), fault: None }
    }

    /// The run cannot be: whoever comes is told so.
    pub fn refuse(&mut self, error: RunError) {
        if self.fault.is_none() {
            self.until = self.until.min(Instant::now() + LINGER);
            self.fault = Some(error);
        }
    }

    /// This process's own rank need not come.
    pub fn seat_self(&mut self) {
        self.awaited.retain(|&rank| rank != self.place.rank);
    }

    /// A channel to each rank, once all have come.
    ///
    /// # Errors
    /// Ranks did not come, or one that came cannot take part. All that came have been told.
    pub fn all(mut self) -> Result<Vec<Channel>, RunError> {
        let mut absent = self.absent();
        while !absent.is_empty() && Instant::now() < self.until {
            if let Err(error) = self.step() {
                self.refuse(error);
            }
            absent = self.absent();
        }
        if !absent.is_empty() {
            let limit_ms = self.limit.as_millis() as u64;
            self.refuse(RunError::Absent { ranks: absent, limit_ms });
        }
        if let Some(error) = self.fault {
            for guest in &self.guests {
                // A process that cannot be told is gone.
                let _ = guest.channel.send(&ToRank::Verdict(Some(error.clone())));
            }
            return Err(error);
        }
        self.turn_away();
        let mut guests: Vec<Guest> = self.guests.into_iter().filter(|g| g.rank.is_some()).collect();
        guests.sort_by_key(|guest| guest.rank);
        Ok(guests.into_iter().map(|guest| guest.channel).collect())
    }

    /// Tells those who came to a run that has all its ranks.
    fn turn_away(&mut self) {
        while let Ok(Some(fd)) = accept(self.listener, Instant::now()) {
            self.guests.push(Guest { channel: Channel::new(fd, 0), own: false, rank: None, gone: false });
        }
        let all = "all ranks of this run are there already: was a rank started twice?".to_string();
        for guest in self.guests.iter().filter(|guest| guest.rank.is_none()) {
            // A process that cannot be told is gone.
            let _ = guest.channel.send(&ToRank::Verdict(Some(RunError::Invalid(all.clone()))));
        }
    }

    /// The ranks that have not come.
    fn absent(&self) -> Vec<u32> {
        let here = |rank: u32| self.guests.iter().any(|g| g.rank == Some(rank));
        self.awaited.iter().copied().filter(|&rank| !here(rank)).collect()
    }

    /// Waits for someone who comes, speaks or leaves.
    fn step(&mut self) -> Result<(), RunError> {
        let left = self.until.saturating_duration_since(Instant::now()).as_millis().min(1 << 30) + 1;
        let heard: Vec<usize> = (0..self.guests.len()).filter(|&g| !self.guests[g].gone).collect();
        let channels = heard.iter().map(|&g| self.guests[g].channel.fd());
        let all = std::iter::once(self.listener.as_fd()).chain(channels);
        let mut fds: Vec<PollFd> = all.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(RunError::system("waiting for ranks", e)),
        }
        let events: Vec<bool> = fds.iter().map(|fd| fd.revents().is_some_and(|e| !e.is_empty())).collect();
        let mut result = Ok(());
        for (&guest, _) in heard.iter().zip(&events[1..]).filter(|(_, event)| **event) {
            result = result.and(self.hear(guest));
        }
        if events[0] {
            result = result.and(self.welcome());
        }
        result
    }

    /// Takes a connection.
    fn welcome(&mut self) -> Result<(), RunError> {
        let Some(fd) = accept(self.listener, Instant::now())? else { return Ok(()) };
        if same_user(&fd) {
            let peer = getsockopt(&fd, sockopt::PeerCredentials);
            let own = peer.is_ok_and(|peer| peer.pid() as u32 == std::process::id());
            self.guests.push(Guest { channel: Channel::new(fd, 0), own, rank: None, gone: false });
        }
        Ok(())
    }

    /// Handles the next message of a process.
    fn hear(&mut self, at: usize) -> Result<(), RunError> {
        let guest = &mut self.guests[at];
        match (guest.channel.receive(Some(Instant::now())), guest.rank) {
            (Ok(Some(FromRank::Join { rank, ranks, run, left_ms })), None) => {
                self.until = self.until.min(Instant::now() + Duration::from_millis(left_ms));
                self.seat(at, rank, ranks, &run)
            }
            (Ok(Some(FromRank::Decline { rank, ranks, run, error })), None) => {
                guest.gone = true;
                self.seat(at, rank, ranks, &run).and(Err(error))
            }
            (Ok(None), Some(rank)) => {
                guest.gone = true;
                let (how, when) = ("its process is gone".into(), "while the ranks joined".into());
                Err(RunError::DiedOutside { rank, how, when })
            }
            // A process that says nothing sensible is not a rank.
            _ => {
                guest.gone = true;
                Ok(())
            }
        }
    }

    /// Takes a process for the rank that it says it is.
    fn seat(&mut self, at: usize, rank: u32, ranks: u32, run: &str) -> Result<(), RunError> {
        let expected = self.place.ranks;
        if run != self.place.run || ranks != expected || rank >= expected {
            return Err(RunError::Invalid(format!(
                "rank {rank} of {ranks} came to a run of {expected} ranks"
            )));
        }
        let known = self.guests.iter().any(|g| g.rank == Some(rank));
        let guest = &mut self.guests[at];
        if known || (rank == 0 && !guest.own) {
            return Err(RunError::Invalid(format!(
                "two processes say that they are rank {rank} of this run"
            )));
        }
        guest.rank = Some(rank);
        guest.channel.set_peer(rank);
        Ok(())
    }
}
