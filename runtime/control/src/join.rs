//! Ranks that another launcher started: torchrun, `mpirun` or Slurm.
//!
//! Each process finds its rank in the environment (`launchers`) and meets the others at an abstract Unix
//! socket, where rank 0 coordinates. The socket's name is derived from the user and from what identifies the
//! run, so different runs do not meet. An abstract name vanishes with its process. Both sides accept only
//! processes of the same user, as reported by the kernel. All ranks are on one host.
//!
//! No rank waits for the others beyond its timeout, and the earliest timeout ends the wait of all: a joining
//! rank sends how long it would still wait. A failure that keeps one rank from running ends the run of all
//! ranks, even before the run has begun. The order of messages and the timeouts are those of
//! [`crate::joining`].

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, bind, connect, listen, socket};
use symmc_support::parallel;

use crate::channel::{
    Channel, CoordinatorMessage, RankIdentity, RankMessage, WelcomeMessage, is_same_user, set_send_timeout,
};
use crate::communicator::RankCommunicator;
use crate::coordinator::{CoordinatedRank, Coordinator, PlanSubject, RunKind};
use crate::domain::SharedRunMemory;
use crate::error::{Result, RunError};
use crate::gather::{LINGER, RankGatherer};
use crate::heartbeat::TICK;
use crate::join_terms::JoinTerm;
use crate::joined_rank::{JoinedRank, await_coordinator};
use crate::joining::{CoordinatorNotice, JoinTask};
use crate::link::{CoordinatorLink, CoordinatorLinkConfig};
use crate::membership::Membership;
use crate::opening::{CoordinatedBy, OpeningRank};
use crate::rank::{map_domain, receive_welcome};
use crate::steps::LocateStep;
use crate::trace::enter_coordinator_span;

/// How long a rank that cannot begin tries to reach rank 0, to notify it.
const DECLINING: Duration = Duration::from_secs(2);
/// The pause between two attempts to connect: the first, and the longest.
const RETRY: [Duration; 2] = [Duration::from_micros(100), Duration::from_millis(20)];

#[derive(Clone)]
pub struct JoinRequest {
    pub subject: PlanSubject,
    /// Other settings that must be equal on all ranks.
    pub terms: Vec<JoinTerm>,
    /// The number of groups of ranks with separate flags.
    pub groups: usize,
    /// Bytes of the symmetric arena of each rank.
    pub arena: usize,
    pub run_kind: RunKind,
    pub locate_step: LocateStep,
    /// The timeout of every wait.
    pub limit: Duration,
}

impl Membership {
    /// Notifies the other ranks that this one cannot begin, and why, so that none waits for it. Returns the
    /// error that all ranks get. Ranks that cannot be reached within a moment are not notified.
    pub fn decline(&self, error: RunError) -> RunError {
        let error = error.reported_by(self.rank);
        tracing::warn!(target: "symmc::join", %error, "declining to join, notifying the other ranks");
        match self.rank {
            0 => {
                if let Ok(Some(listener)) = bind_meeting_socket(self) {
                    reject_ranks(self, &listener, LINGER, &error);
                }
            }
            _ => {
                let notified =
                    connect_to_coordinator(self, Instant::now() + DECLINING, DECLINING).and_then(|channel| {
                        let Membership { rank, ranks, run } = self.clone();
                        channel.send(&RankMessage::Decline { rank, ranks, run, error: error.clone() })
                    });
                // This rank fails in any case; without the notice the others find out at their timeout.
                let _ = notified;
            }
        }
        error
    }

    /// The first message of this rank, which would wait for the others for `remaining` more.
    fn join_message(&self, remaining: Duration) -> RankMessage {
        let left_ms = u64::try_from(remaining.as_millis()).unwrap_or(u64::MAX);
        RankMessage::Join { rank: self.rank, ranks: self.ranks, run: self.run.clone(), left_ms }
    }
}

/// Notifies ranks that connect within a moment that there will be no run.
fn reject_ranks(membership: &Membership, listener: &OwnedFd, limit: Duration, error: &RunError) {
    let mut gathering = RankGatherer::new(membership, listener, limit);
    gathering.count_rank(membership.rank);
    gathering.reject_run(error.clone());
    // Gathering always ends with the given error.
    let _ = gathering.gather_all();
}

impl JoinedRank {
    /// Joins as the rank of `membership`; returns when all ranks have joined and run the same plan with the same
    /// settings. Fails if the other ranks do not join or run something else.
    pub fn join(membership: &Membership, purpose: &JoinRequest) -> Result<JoinedRank> {
        let identity = RankIdentity::new(purpose.subject.clone(), &purpose.terms);
        let identity = identity.map_err(|error| membership.decline(error))?;
        let until = Instant::now() + purpose.limit;
        if membership.rank != 0 {
            return connect_rank(membership, purpose, identity, until);
        }
        let Some(listener) = bind_meeting_socket(membership)? else {
            // The process that is already bound to the address tells whether it belongs to this run.
            return match connect_rank(membership, purpose, identity, Instant::now() + DECLINING) {
                Err(RunError::Absent { .. }) | Ok(_) => Err(RunError::Invalid(format!(
                    "another run of this user has the same rendezvous address ({}): is MASTER_PORT in use?",
                    membership.public_run_name()
                ))),
                Err(error) => Err(error),
            };
        };
        let coordinator = start_coordinator(membership, purpose, listener)?;
        match connect_rank(membership, purpose, identity, until) {
            Ok(rank) => Ok(rank.with_coordinator(coordinator)),
            Err(error) => Err(explaining_error(await_coordinator(coordinator), error)),
        }
    }
}

/// The more informative of two errors: the coordinator's verdict, and the error that ended rank 0 itself.
fn explaining_error(coordinator: Result<()>, own: RunError) -> RunError {
    match coordinator {
        // The coordinator sees an error of rank 0 only as the exit or the absence of rank 0.
        Err(verdict) => match verdict.cause() {
            RunError::DiedOutside { rank: 0, .. } => own.reported_by(0),
            RunError::Absent { ranks, .. } if ranks.contains(&0) => own.reported_by(0),
            _ => verdict,
        },
        Ok(()) => own.reported_by(0),
    }
}

fn start_coordinator(
    membership: &Membership,
    purpose: &JoinRequest,
    listener: OwnedFd,
) -> Result<JoinHandle<Result<()>>> {
    let listener = Arc::new(Mutex::new(Some(listener)));
    let theirs = listener.clone();
    let gathered = GatheredRun { place: membership.clone(), purpose: purpose.clone() };
    let started = parallel::spawn_detached(move || match take_listener(&theirs) {
        Some(listener) => gathered.coordinate_run(listener),
        None => Ok(()),
    });
    started.map_err(|e| {
        let error = RunError::from_system_call("starting the thread that coordinates the ranks", "clone", e);
        let error = error.reported_by(membership.rank);
        if let Some(listener) = take_listener(&listener) {
            reject_ranks(membership, &listener, purpose.limit, &error);
        }
        error
    })
}

fn take_listener(listener: &Mutex<Option<OwnedFd>>) -> Option<OwnedFd> {
    listener.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Joins as the rank of `membership`; returns when all ranks have the same identity.
fn connect_rank(
    membership: &Membership,
    purpose: &JoinRequest,
    identity: RankIdentity,
    until: Instant,
) -> Result<JoinedRank> {
    let limit = purpose.limit;
    tracing::debug!(target: "symmc::join", ranks = membership.ranks, ?limit, "connecting to rank 0");
    let channel = connect_to_coordinator(membership, until, limit)?;
    let remaining = until.saturating_duration_since(Instant::now());
    channel.send(&membership.join_message(remaining))?;
    let mut opening =
        OpeningRank::new(membership.rank, CoordinatedBy::Rank0, limit, limit.saturating_sub(remaining));
    opening.watch_process(channel.peer_process());
    tracing::debug!(target: "symmc::join", "connected, waiting until all ranks are");
    let mapped = await_welcome(membership, &channel, &mut opening, limit)
        .and_then(|(welcome, fds)| map_domain(&welcome, &mut fds.into_iter()));
    let domain = mapped.map_err(|error| {
        let error = error.reported_by(membership.rank);
        // The other ranks get this rank's error. A coordinator that is gone needs no notice.
        let _ = channel.send(&RankMessage::Failed(error.clone()));
        error
    })?;
    let config = CoordinatorLinkConfig {
        control: domain.control.clone(),
        rank: membership.rank,
        by: CoordinatedBy::Rank0,
        locate_step: purpose.locate_step.clone(),
        limit,
    };
    let link = CoordinatorLink::new(channel, config, opening);
    let agreed = link.agree_on_identity(identity, &purpose.terms);
    match agreed.and_then(|()| expect_arena_size(purpose, membership.rank, &domain)) {
        Ok(()) => Ok(JoinedRank::new(link, RankCommunicator::new(domain, membership.rank, purpose.limit))),
        Err(error) => Err(link.report_failure(error)),
    }
}

/// Checks that the symmetric arena of this rank has the size that the rank expects. The arenas of all ranks
/// are equal.
fn expect_arena_size(purpose: &JoinRequest, rank: u32, domain: &SharedRunMemory) -> Result<()> {
    if domain.arenas.get(rank as usize).is_some_and(|arena| arena.len() == purpose.arena) {
        return Ok(());
    }
    Err(RunError::system("the symmetric arena", "its size differs from what this rank expects"))
}

/// The first message of rank 0. If the run failed, it is an error that names the missing ranks.
fn await_welcome(
    membership: &Membership,
    channel: &Channel,
    opening: &mut OpeningRank,
    limit: Duration,
) -> Result<(WelcomeMessage, Vec<OwnedFd>)> {
    loop {
        if channel.wait_readable(Some(Instant::now() + TICK))? {
            // The descriptors follow the message at once, unless rank 0 is stopped in between.
            let until = Instant::now() + limit;
            let received = receive_welcome(channel, until)
                .map_err(|error| if Instant::now() >= until { opening.stuck_error(limit) } else { error });
            let (welcome, fds) = received?.ok_or_else(|| {
                let how = "its process is gone".into();
                let when = "while the ranks joined".into();
                RunError::DiedOutside { rank: 0, how, when }.reported_by(membership.rank)
            })?;
            if welcome.ranks != membership.ranks {
                let detail = format!("a run of {} ranks, expected {}", welcome.ranks, membership.ranks);
                return Err(RunError::Protocol { rank: 0, detail });
            }
            opening.expect_task(CoordinatorNotice::Welcome, JoinTask::Greet)?;
            return Ok((welcome, fds));
        }
        opening.expect_progress()?;
    }
}

/// Binds the socket at which ranks meet; `None` if another process has bound it already.
fn bind_meeting_socket(membership: &Membership) -> Result<Option<OwnedFd>> {
    let fd = seqpacket_socket().map_err(|e| meeting_error("socket", e))?;
    match bind(fd.as_raw_fd(), &membership.address()?) {
        Err(Errno::EADDRINUSE) => return Ok(None),
        bound => bound.map_err(|e| meeting_error("bind", e))?,
    }
    let backlog = Backlog::new(membership.ranks.min(1024) as i32).unwrap_or(Backlog::MAXCONN);
    listen(&fd, backlog).map_err(|e| meeting_error("listen", e))?;
    Ok(Some(fd))
}

fn meeting_error(call: &'static str, error: Errno) -> RunError {
    RunError::from_system_call("opening the rendezvous point", call, error)
}

fn seqpacket_socket() -> nix::Result<OwnedFd> {
    socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)
}

/// Connects to rank 0, which may not have started yet.
fn connect_to_coordinator(membership: &Membership, until: Instant, limit: Duration) -> Result<Channel> {
    let address = membership.address()?;
    let [mut pause, longest] = RETRY;
    loop {
        let fd = seqpacket_socket()
            .map_err(|e| RunError::from_system_call("opening a control socket", "socket", e))?;
        set_send_timeout(&fd);
        match connect(fd.as_raw_fd(), &address) {
            Ok(()) if is_same_user(&fd)? => return Ok(Channel::new(fd, 0)),
            Ok(()) => {
                return Err(RunError::Invalid(format!(
                    "the rendezvous address of {} belongs to another user",
                    membership.public_run_name()
                )));
            }
            Err(Errno::ECONNREFUSED | Errno::ENOENT | Errno::EAGAIN | Errno::EINTR) => {
                if Instant::now() >= until {
                    let limit_ms = limit.as_millis() as u64;
                    return Err(RunError::Absent { ranks: vec![0], limit_ms });
                }
                std::thread::sleep(pause);
                pause = (pause * 2).min(longest);
            }
            Err(e) => return Err(RunError::from_system_call("connecting to rank 0", "connect", e)),
        }
    }
}

/// The run that rank 0 coordinates once all ranks have joined.
struct GatheredRun {
    place: Membership,
    purpose: JoinRequest,
}

impl GatheredRun {
    fn welcome_all(&self, channels: &[Channel], domain: &SharedRunMemory) -> Result<()> {
        let fds: Vec<_> = domain.fds().into_iter().flatten().collect();
        for (rank, channel) in (0..).zip(channels) {
            let welcome = WelcomeMessage {
                rank,
                ranks: self.place.ranks,
                groups: self.purpose.groups,
                arena: self.purpose.arena,
                task: vec![],
                files: 0,
                limit: self.purpose.limit,
            };
            channel.send(&CoordinatorMessage::Welcome(welcome))?;
            channel.send_fds(&fds)?;
        }
        Ok(())
    }

    fn coordinate_run(&self, listener: OwnedFd) -> Result<()> {
        let GatheredRun { place, purpose } = self;
        let limit = purpose.limit;
        let _span = enter_coordinator_span();
        let gathered = RankGatherer::new(place, &listener, limit).gather_all()?;
        let channels = gathered.channels;
        // Processes that connect from now on belong to no run.
        drop(listener);
        let created = SharedRunMemory::create(place.ranks, purpose.groups, purpose.arena, 0);
        let welcomed = created.and_then(|domain| self.welcome_all(&channels, &domain).map(|()| domain));
        let domain = welcomed.map_err(|error| {
            let error = error.reported_by(place.rank);
            for channel in &channels {
                // A rank that cannot be notified is gone.
                let _ = channel.send(&CoordinatorMessage::Verdict(Some(error.clone())));
            }
            error
        })?;
        let members = channels.into_iter().map(CoordinatedRank::new).collect();
        let mut coordinator = Coordinator {
            run_kind: purpose.run_kind,
            joining: gathered.machine,
            clock: gathered.clock,
            ..Coordinator::new(purpose.locate_step.clone(), &domain.control, members, limit)
        };
        coordinator.run()
    }
}
