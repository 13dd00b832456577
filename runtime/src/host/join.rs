//! Ranks that another launcher started: torchrun, `mpirun` or Slurm.
//!
//! Each process finds its rank in the environment (`launchers`) and meets the others at an abstract Unix socket, where
//! rank 0 coordinates. The name of the socket is made of the user and of what identifies the run, so runs
//! do not meet each other; an abstract name vanishes with its process. Both sides accept only processes of
//! the same user, by the kernel's word. All ranks are on one host.
//!
//! No rank waits longer than its limit for the others, and the earliest limit ends the wait of all: a rank that
//! joins says how long it would still wait. What keeps one from running ends the run of all, also before it began. The
//! order of messages and the timeouts are those of [`super::joining`].

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, bind, connect, listen, socket};
use symmc_check::CheckedPlan;
use symmc_ir::{Bindings, Tensor};
use symmc_plan::Plan;
use symmc_support::parallel;

use super::channel::{Channel, FromRank, Identity, ToRank, Welcome, bound_sending, same_user};
use super::comm::{Comm, World};
use super::control::Progress;
use super::coordinator::{Coordinator, Member, Watched, identity, job_terms};
use super::engine::{Engines, RankRun};
use super::gather::{Gathering, LINGER};
use super::job::{HostConfig, Needs};
use super::joining::{Task, Told};
use super::link::Link;
use super::membership::Membership;
use super::opening::{CoordinatedBy, Opening};
use super::pulse::TICK;
use super::rank::{map_world, receive_welcome};
use super::rank_memory::LocalMemory;
use super::terms::Term;
use super::times::RunTimes;
use super::trace::enter_coordinator_span;
use crate::error::RunError;

/// How long a rank that cannot begin looks for rank 0, to tell it.
const DECLINING: Duration = Duration::from_secs(2);
/// The pause between two attempts to connect: the first, and the longest.
const RETRY: [Duration; 2] = [Duration::from_micros(100), Duration::from_millis(20)];

/// What one rank of such a run brings along.
#[derive(Clone, Debug)]
pub struct RankJob<'a> {
    /// The plan; the same on all ranks.
    pub plan: &'a CheckedPlan,
    /// The values of the imported program's symbols; the same on all ranks.
    pub bindings: Bindings,
    /// This rank's tensor for each input of the program, constants included.
    pub inputs: &'a [Arc<Tensor>],
    /// How often the plan runs, at least once; the same on all ranks.
    pub repeats: u32,
    /// What else must be the same on all ranks: the seed of drawn inputs, the file of recorded ones.
    pub settings: &'a [Term],
    /// How it runs.
    pub config: HostConfig,
}

/// Runs this process's rank together with the others on the engine that the job chooses; its outputs.
///
/// # Errors
/// The inputs do not fit the plan, an op has no kernel, the other ranks do not come or run something else, or a rank
/// failed.
pub fn run_rank(place: &Membership, job: &RankJob, engines: &Engines<'_>) -> Result<Vec<Tensor>, RunError> {
    run_rank_timed(place, job, engines).map(|(outputs, _)| outputs)
}

/// As [`run_rank`], with the times of this rank's runs.
///
/// # Errors
/// As [`run_rank`].
pub fn run_rank_timed(
    place: &Membership,
    job: &RankJob,
    engines: &Engines<'_>,
) -> Result<(Vec<Tensor>, RunTimes), RunError> {
    let needs = prepare(place, job).map_err(|error| place.decline(error))?;
    let terms = job_terms(job.plan, &job.bindings, job.repeats);
    let identity = identity(job.plan, terms, job.settings).map_err(|error| place.decline(error))?;
    let RankJob { plan, settings, config, .. } = job;
    let (groups, watched) = (needs.groups, Watched::Job);
    let joined = Joined::new(place, &Purpose { plan, groups, config, watched, identity, settings })?;
    let result = joined.run(job, engines, &needs);
    joined.ended().and(result)
}

/// What the job needs, once it is found to fit the run.
fn prepare(place: &Membership, job: &RankJob) -> Result<Needs, RunError> {
    if job.plan.ranks != place.ranks {
        let (rank, expected, found) = (place.rank, job.plan.ranks, place.ranks);
        return Err(RunError::Invalid(format!(
            "rank {rank}: the plan is for {expected} ranks, the run has {found}"
        )));
    }
    Needs::of(job.plan, &job.bindings, &[job.inputs.to_vec()], place.rank)
}

impl Membership {
    /// Notifies the other ranks that this one cannot begin, and why, so that none waits for it. Returns the error as all ranks
    /// get it. Ranks that cannot be reached in a moment are not notified.
    pub fn decline(&self, error: RunError) -> RunError {
        let error = error.reported_by(self.rank);
        tracing::warn!(target: "symmc::join", %error, "declining to join, notifying the other ranks");
        match self.rank {
            0 => {
                if let Ok(Some(listener)) = meeting_point(self) {
                    refuse(self, &listener, LINGER, &error);
                }
            }
            _ => {
                let told = connect_to(self, Instant::now() + DECLINING, DECLINING).and_then(|channel| {
                    let (rank, ranks, run) = (self.rank, self.ranks, self.run.clone());
                    channel.send(&FromRank::Decline { rank, ranks, run, error: error.clone() })
                });
                // This rank fails in any case; the others find out at their limit.
                let _ = told;
            }
        }
        error
    }

    /// The first message of this rank, which would wait for others so long.
    fn join(&self, left: Duration) -> FromRank {
        let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        FromRank::Join { rank: self.rank, ranks: self.ranks, run: self.run.clone(), left_ms }
    }
}

/// Tells the ranks that come in a moment that there will be no run.
fn refuse(place: &Membership, listener: &OwnedFd, limit: Duration, error: &RunError) {
    let mut gathering = Gathering::new(place, listener, limit);
    gathering.count_self();
    gathering.refuse(error.clone());
    // It ends with the error given.
    let _ = gathering.all();
}

/// What ranks join for.
pub(super) struct Purpose<'a> {
    pub plan: &'a CheckedPlan,
    /// Groups of ranks that have flags of their own.
    pub groups: usize,
    pub config: &'a HostConfig,
    pub watched: Watched,
    /// What must agree on all ranks.
    pub identity: Identity,
    pub settings: &'a [Term],
}

/// A rank that joined and found that all ranks run the same.
#[derive(Debug)]
pub(super) struct Joined {
    link: Link,
    /// On rank 0, who coordinates all.
    coordinator: Option<JoinHandle<Result<(), RunError>>>,
}

/// What ranks record of their runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recorded {
    /// When each begins and ends.
    All,
    /// While the rank waits for its end, if it does.
    Awaited,
}

impl Recorded {
    /// Whether a rank is not through the last run of another one, or has yet to begin what that one has ended.
    fn is_within(self, rank: &Progress, other: &Progress) -> bool {
        let has_ended = self == Recorded::All && other.beats > 0 && !other.running;
        (rank.running && rank.run <= other.run) || (has_ended && (rank.beats == 0 || rank.run < other.run))
    }
}

impl Joined {
    /// Joins as the rank of `place`.
    ///
    /// # Errors
    /// The other ranks do not come or run something else.
    pub fn new(place: &Membership, purpose: &Purpose<'_>) -> Result<Joined, RunError> {
        let until = Instant::now() + purpose.config.limit;
        if place.rank != 0 {
            return Ok(Joined { link: connect_link(place, purpose, until)?, coordinator: None });
        }
        let Some(listener) = meeting_point(place)? else {
            // Whoever is there says whether it is this run's.
            return match connect_link(place, purpose, Instant::now() + DECLINING) {
                Err(RunError::Absent { .. }) | Ok(_) => Err(RunError::Invalid(format!(
                    "another run of this user meets at the same point ({}): is MASTER_PORT in use?",
                    place.shown_run()
                ))),
                Err(error) => Err(error),
            };
        };
        let coordinator = start_coordinator(place, purpose, listener)?;
        match connect_link(place, purpose, until) {
            Ok(link) => Ok(Joined { link, coordinator: Some(coordinator) }),
            Err(error) => Err(explained(await_coordinator(coordinator), error)),
        }
    }

    /// Rank 0 with a coordinator of a test.
    #[cfg(test)]
    pub fn with_coordinator(link: Link, coordinator: JoinHandle<Result<(), RunError>>) -> Joined {
        Joined { link, coordinator: Some(coordinator) }
    }

    /// The link to the coordinator.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Runs a job.
    fn run(
        &self,
        job: &RankJob,
        engines: &Engines<'_>,
        needs: &Needs,
    ) -> Result<(Vec<Tensor>, RunTimes), RunError> {
        let link = &self.link;
        let comm = link.comm();
        let memory = LocalMemory::new(job.plan.arenas.ordinary, job.inputs, needs, &job.config.engine)
            .map_err(|error| link.report(error))?;
        let run = RankRun {
            plan: job.plan,
            bindings: &job.bindings,
            repeats: job.repeats,
            config: &job.config,
            comm,
        };
        // SAFETY: the memory is this rank's own and as large as the program says; the inputs live in the job.
        let ran = unsafe { engines.run(&run, &memory.rank(comm), &mut || link.start()) };
        link.finish(ran)?;
        Ok((memory.outputs(&needs.outputs)?, comm.control().times(comm.rank())))
    }

    /// Waits for the coordinator, which has said how the run ended, or says it soon.
    ///
    /// # Errors
    /// What ended the run.
    pub fn ended(self) -> Result<(), RunError> {
        let Joined { link, coordinator } = self;
        let verdict = coordinator.map_or(Ok(()), await_coordinator);
        drop(link);
        verdict
    }

    /// Leaves, without waiting for the others to leave: they may do so late, and wait for this rank before. Rank 0, whose
    /// coordinator goes on but lives no longer than this process, waits at most so long until they are through what it has
    /// run.
    pub fn leave(self, recorded: Recorded, wait: Duration) {
        let (control, me) = (self.link.comm().control().clone(), self.link.comm().rank());
        let own = control.progress(me);
        let others = (0..control.ranks()).filter(|&rank| rank != me);
        let within = |rank| recorded.is_within(&control.progress(rank), &own);
        // Who cannot be told finds out.
        let _ = self.link.done();
        drop(self.link);
        let Some(coordinator) = self.coordinator else { return };
        let until = Instant::now() + wait;
        let mut pause = Duration::from_micros(50);
        while !coordinator.is_finished() && others.clone().any(within) && Instant::now() < until {
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        }
    }
}

fn await_coordinator(coordinator: JoinHandle<Result<(), RunError>>) -> Result<(), RunError> {
    coordinator.join().unwrap_or_else(|_| Err(RunError::system("the coordinator", "panicked")))
}

/// The more informative of two errors: the coordinator's verdict, and the error that ended rank 0 itself.
fn explained(coordinator: Result<(), RunError>, own: RunError) -> RunError {
    match coordinator {
        // The coordinator sees an error of rank 0 only as the end or the absence of rank 0.
        Err(verdict) => match verdict.cause() {
            RunError::DiedOutside { rank: 0, .. } => own.reported_by(0),
            RunError::Absent { ranks, .. } if ranks.contains(&0) => own.reported_by(0),
            _ => verdict,
        },
        Ok(()) => own.reported_by(0),
    }
}

/// Starts the thread that gathers all ranks and coordinates them.
fn start_coordinator(
    place: &Membership,
    purpose: &Purpose<'_>,
    listener: OwnedFd,
) -> Result<JoinHandle<Result<(), RunError>>, RunError> {
    let listener = Arc::new(Mutex::new(Some(listener)));
    let take =
        |listener: &Mutex<Option<OwnedFd>>| listener.lock().unwrap_or_else(PoisonError::into_inner).take();
    let (theirs, place_of, config) = (listener.clone(), place.clone(), purpose.config.clone());
    let (plan, groups, watched) = (purpose.plan.clone(), purpose.groups, purpose.watched);
    let work = move || {
        let gathered = Gathered { place: &place_of, plan: &plan, groups, config: &config, watched };
        take(&theirs).map_or(Ok(()), |listener| gathered.coordinate(listener))
    };
    parallel::spawn(work).map_err(|e| {
        let error = RunError::of_call("starting the thread that coordinates the ranks", "clone", e);
        let error = error.reported_by(place.rank);
        take(&listener).into_iter().for_each(|l| refuse(place, &l, purpose.config.limit, &error));
        error
    })
}

/// Joins as the rank of `place`; returns when all ranks run the same.
fn connect_link(place: &Membership, purpose: &Purpose<'_>, until: Instant) -> Result<Link, RunError> {
    let limit = purpose.config.limit;
    tracing::debug!(target: "symmc::join", ranks = place.ranks, ?limit, "connecting to rank 0");
    let channel = connect_to(place, until, limit)?;
    let left = until.saturating_duration_since(Instant::now());
    channel.send(&place.join(left))?;
    let mut opening = Opening::new(place.rank, CoordinatedBy::Rank0, limit, limit.saturating_sub(left));
    tracing::debug!(target: "symmc::join", "connected, waiting until all ranks are");
    let mapped = await_welcome(place, &channel, &mut opening, limit).and_then(|(welcome, fds)| {
        let world = map_world(&welcome, &mut fds.into_iter())?;
        Comm::new(world, place.rank, purpose.config.comm(place.ranks))
    });
    let comm = mapped.map_err(|error| {
        let error = error.reported_by(place.rank);
        // The other ranks get this rank's error. A coordinator that is gone needs no notice.
        let _ = channel.send(&FromRank::Failed(error.clone()));
        error
    })?;
    let link = Link::new(channel, comm, opening, Some(purpose.plan.clone()), limit);
    let agreed = link.agree(purpose.identity.clone(), purpose.settings);
    match agreed.and_then(|()| expect_arena(purpose, link.comm())) {
        Ok(()) => Ok(link),
        Err(error) => Err(link.report(error)),
    }
}

/// The symmetric arena of ranks that run one plan is as large as each of them expects.
fn expect_arena(purpose: &Purpose<'_>, comm: &Comm) -> Result<(), RunError> {
    let expected = purpose.config.arena(purpose.plan)?;
    match comm.arena().len() == expected {
        true => Ok(()),
        false => Err(RunError::system("the symmetric arena", "has another size than this rank expects")),
    }
}

/// The first message of rank 0, which names the missing ranks where the run cannot be.
fn await_welcome(
    place: &Membership,
    channel: &Channel,
    opening: &mut Opening,
    limit: Duration,
) -> Result<(Welcome, Vec<OwnedFd>), RunError> {
    loop {
        if channel.readable(Some(Instant::now() + TICK))? {
            // The descriptors follow the message at once, unless rank 0 is stopped just then.
            let until = Instant::now() + limit;
            let received = receive_welcome(channel, until)
                .map_err(|error| if Instant::now() >= until { opening.stuck(limit) } else { error });
            let gone = || {
                let (how, when) = ("its process is gone".into(), "while the ranks joined".into());
                RunError::DiedOutside { rank: 0, how, when }.reported_by(place.rank)
            };
            let (welcome, fds) = received?.ok_or_else(gone)?;
            if welcome.ranks != place.ranks {
                let found = format!("a run of {} ranks, expected {}", welcome.ranks, place.ranks);
                return Err(RunError::Protocol { rank: 0, detail: found });
            }
            opening.expect_task(Told::Welcome, Task::Greet)?;
            return Ok((welcome, fds));
        }
        opening.expect_progress()?;
    }
}

/// The socket at which ranks meet; `None` if there is one already.
fn meeting_point(place: &Membership) -> Result<Option<OwnedFd>, RunError> {
    let failed = |call| move |e: Errno| RunError::of_call("opening the rendezvous point", call, e);
    let fd = seqpacket().map_err(failed("socket"))?;
    match bind(fd.as_raw_fd(), &place.address()?) {
        Err(Errno::EADDRINUSE) => return Ok(None),
        bound => bound.map_err(failed("bind"))?,
    }
    let backlog = Backlog::new(place.ranks.min(1024) as i32).unwrap_or(Backlog::MAXCONN);
    listen(&fd, backlog).map_err(failed("listen"))?;
    Ok(Some(fd))
}

fn seqpacket() -> nix::Result<OwnedFd> {
    socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)
}

/// Connects to rank 0, which may not be there yet.
fn connect_to(place: &Membership, until: Instant, limit: Duration) -> Result<Channel, RunError> {
    let address = place.address()?;
    let [mut pause, longest] = RETRY;
    loop {
        let fd = seqpacket().map_err(|e| RunError::of_call("opening a control socket", "socket", e))?;
        bound_sending(&fd);
        match connect(fd.as_raw_fd(), &address) {
            Ok(()) if same_user(&fd)? => return Ok(Channel::new(fd, 0)),
            Ok(()) => {
                return Err(RunError::Invalid(format!(
                    "the rendezvous point of {} belongs to another user",
                    place.shown_run()
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
            Err(e) => return Err(RunError::of_call("connecting to rank 0", "connect", e)),
        }
    }
}

/// What rank 0 coordinates once all ranks have come.
struct Gathered<'a> {
    place: &'a Membership,
    plan: &'a Plan,
    groups: usize,
    config: &'a HostConfig,
    watched: Watched,
}

impl Gathered<'_> {
    /// Sends the shared memory to all ranks.
    fn welcome_all(&self, channels: &[Channel], world: &World) -> Result<(), RunError> {
        let fds: Vec<_> = world.fds().into_iter().flatten().collect();
        for (rank, channel) in (0..).zip(channels) {
            let (ranks, groups) = (self.place.ranks, self.groups);
            let (arena, first) = (world.arenas[0].len(), self.config.first);
            let welcome = Welcome { rank, ranks, groups, arena, first, job: None, files: vec![] };
            channel.send(&ToRank::Welcome(welcome))?;
            channel.send_fds(&fds)?;
        }
        Ok(())
    }

    /// Gathers all ranks, then coordinates them.
    fn coordinate(&self, listener: OwnedFd) -> Result<(), RunError> {
        let Gathered { place, plan, groups, config, watched } = *self;
        let _span = enter_coordinator_span();
        let gathered = Gathering::new(place, &listener, config.limit).all()?;
        let channels = gathered.channels;
        // Who comes now belongs to no run any more.
        drop(listener);
        let result =
            config.arena(plan).and_then(|arena| World::create(place.ranks, groups, arena, config.first));
        let welcomed = result.and_then(|world| self.welcome_all(&channels, &world).map(|()| world));
        let world = welcomed.map_err(|error| {
            let error = error.reported_by(place.rank);
            for channel in &channels {
                // A rank that cannot be told is gone.
                let _ = channel.send(&ToRank::Verdict(Some(error.clone())));
            }
            error
        })?;
        let members = channels.into_iter().map(Member::new).collect();
        let mut coordinator = Coordinator {
            watched,
            plan,
            limit: config.limit,
            joining: gathered.machine,
            clock: gathered.clock,
            ..Coordinator::new(plan, &world.control, members, config.limit)
        };
        coordinator.run()
    }
}
