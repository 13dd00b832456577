//! One rank behind a control socket: the process that a launcher started, and what it has in common with a
//! rank that joined by itself.

use std::cell::Cell;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, sockopt};
use symmc_ir::dim::SymbolId;
use symmc_ir::entity::Entity;
use symmc_ir::{Bindings, parallel};
use symmc_planner::plan::Plan;

use super::channel::{Channel, FromRank, ToRank, Welcome};
use super::comm::{Comm, World};
use super::control::Control;
use super::coordinator::hello;
use super::engine::{Engines, RankRun};
use super::inputs;
use super::launch::{InputPlace, JobText};
use super::memory::{Access, Segment};
use super::terms::Term;
use super::walk::arena_size;
use crate::error::RunError;
use crate::exec::{RankMemory, Span};

/// How long a rank waits for its launcher's first message.
const WELCOME: Duration = Duration::from_secs(30);
/// How often a listening rank looks whether it is still to listen.
const TICK: Duration = Duration::from_millis(50);

/// Runs the rank behind the control socket `fd`, which a launcher passed to this process, on the engine that
/// the job chooses, and returns when the run has ended. Failures of the run are reported to the launcher and are
/// not errors here.
///
/// # Errors
/// `fd` is no control socket, or the launcher cannot be understood.
pub fn rank_main(fd: RawFd, engines: &Engines<'_>) -> Result<(), RunError> {
    let invalid = |detail: &dyn std::fmt::Display| {
        let what = format!("descriptor {fd} is no control socket ({detail})");
        RunError::Invalid(format!("{what}: ranks are started by a launcher"))
    };
    // SAFETY: asking for the flags of a descriptor touches no memory.
    if fd < 3 || unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(invalid(&"it is not open"));
    }
    // SAFETY: the descriptor is open, and nothing else in this process uses it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    getsockopt(&socket, sockopt::SockType).map_err(|e| invalid(&e))?;
    let channel = Channel::new(socket, 0);
    let (welcome, fds) =
        receive_welcome(&channel, Instant::now() + WELCOME)?.ok_or_else(|| unexpected("a welcome", &None))?;
    match Launched::new(&welcome, fds) {
        // A failure of the run has been reported.
        Ok(rank) => rank.run(&channel, &welcome, engines).or(Ok(())),
        Err(error) => channel.send(&FromRank::Failed(error)),
    }
}

/// The first message, and the descriptors of the shared memory; `None` when the other end is gone.
pub(super) fn receive_welcome(
    channel: &Channel,
    until: Instant,
) -> Result<Option<(Welcome, Vec<OwnedFd>)>, RunError> {
    match channel.receive(Some(until))? {
        Some(ToRank::Welcome(welcome)) => {
            let count = 2 + welcome.ranks as usize + welcome.job.map_or(0, |j| j.len()) + welcome.files.len();
            let fds = channel.receive_fds(count, until)?;
            Ok(Some((welcome, fds)))
        }
        Some(ToRank::Verdict(Some(error))) => Err(error),
        None => Ok(None),
        other => Err(unexpected("a welcome", &other)),
    }
}

/// Maps the shared memory of a run.
pub(super) fn map_world(
    welcome: &Welcome,
    fds: &mut impl Iterator<Item = OwnedFd>,
) -> Result<World, RunError> {
    let Welcome { ranks, groups, arena, .. } = *welcome;
    let mut map = |what, len| {
        let fd = fds.next().ok_or_else(|| RunError::system("mapping shared memory", "it was not sent"))?;
        Segment::map(what, fd, len, Access::ReadWrite).map(Arc::new)
    };
    let control = Control::new(map("the control segment", Control::size(ranks, groups))?, ranks, groups)?;
    let staging = map("the staging memory", World::staging_size(ranks, groups))?;
    let arenas = (0..ranks).map(|_| map("the symmetric arena", arena)).collect::<Result<_, _>>()?;
    Ok(World { arenas, control, staging })
}

/// A rank that the launcher started: the job and the tensors lie in shared memory.
struct Launched {
    plan: Plan,
    bindings: Bindings,
    job: JobText,
    comm: Comm,
    memory: RankMemory,
    /// What `memory` points into.
    _segments: Vec<Segment>,
}

impl Launched {
    fn new(welcome: &Welcome, fds: Vec<OwnedFd>) -> Result<Launched, RunError> {
        let mut fds = fds.into_iter();
        let world = map_world(welcome, &mut fds)?;
        let lens = welcome.job.unwrap_or_default();
        let access = [Access::Read, Access::Read, Access::ReadWrite];
        let map = |((fd, len), access)| Segment::map("the job with its inputs and outputs", fd, len, access);
        let own = fds.by_ref().take(lens.len()).zip(lens).zip(access).map(map);
        let mut segments: Vec<Segment> = own.collect::<Result<_, _>>()?;
        let files: Vec<_> = fds.zip(welcome.files.iter().copied()).collect();
        let [text, shared, own] = &segments[..] else {
            return Err(RunError::system("mapping the job", "it was not sent"));
        };
        // SAFETY: the launcher wrote the job before it sent the segment, and never writes it again.
        let text = unsafe { std::slice::from_raw_parts(text.as_ptr(), text.len()) };
        let job: JobText =
            serde_json::from_slice(text).map_err(|e| RunError::system("reading the job", e))?;
        let plan = Plan::from_json(&job.plan).map_err(|e| RunError::Invalid(e.to_string()))?;
        let mut bindings = Bindings::new();
        for (id, value) in job.bindings.iter().enumerate() {
            value.iter().for_each(|&v| bindings.set(SymbolId::new(id), v));
        }
        let comm = Comm::new(world, welcome.rank, job.config.comm(welcome.ranks))?;
        let ordinary = Segment::private("the ordinary arena", arena_size(plan.arenas.ordinary)?)?;
        let places = job.inputs.get(welcome.rank as usize).map_or(&[][..], |p| &p[..]);
        let files = inputs::take(files, places, &job.mutated, &job.config.engine)?;
        let input = |(i, (place, copy)): (usize, (&InputPlace, &Option<usize>))| match (copy, place.file) {
            (Some(at), _) => within(own, *at, place.len),
            (None, None) => within(shared, place.offset, place.len),
            (None, Some(_)) => {
                let missing = || RunError::system("reading the job", "a file of inputs was not sent");
                files.spans.get(i).copied().flatten().ok_or_else(missing)
            }
        };
        let memory = RankMemory {
            ordinary: within(&ordinary, 0, ordinary.len())?,
            symmetric: within(comm.arena(), 0, comm.arena().len())?,
            inputs: places.iter().zip(&job.mutated).enumerate().map(input).collect::<Result<_, _>>()?,
            outputs: job.outputs.iter().map(|&[at, len]| within(own, at, len)).collect::<Result<_, _>>()?,
        };
        segments.push(ordinary);
        segments.extend(files.segments);
        Ok(Launched { plan, bindings, job, comm, memory, _segments: segments })
    }

    fn run(&self, channel: &Channel, welcome: &Welcome, engines: &Engines<'_>) -> Result<(), RunError> {
        let (repeats, config) = (self.job.repeats, &self.job.config);
        let comm = &self.comm;
        let run = RankRun { plan: &self.plan, bindings: &self.bindings, repeats, config, comm };
        // SAFETY: the launcher laid the spans out for the program; `within` saw that they exist.
        unsafe { Protocol { channel, welcome, run: &run, settings: &[], engines }.start(&self.memory) }
    }
}

/// Bytes of a segment.
pub(super) fn within(segment: &Segment, offset: usize, len: usize) -> Result<Span, RunError> {
    let fits = offset.checked_add(len).is_some_and(|end| end <= segment.len());
    let span = Span { ptr: segment.as_ptr().wrapping_add(offset), len };
    let outside = || RunError::system("reading the job", "a tensor lies outside of its segment");
    fits.then_some(span).ok_or_else(outside)
}

/// A rank's side of the protocol.
pub(super) struct Protocol<'a> {
    pub channel: &'a Channel,
    pub welcome: &'a Welcome,
    pub run: &'a RankRun<'a>,
    /// What else must be alike on all ranks.
    pub settings: &'a [Term],
    pub engines: &'a Engines<'a>,
}

type Verdict = Result<(), RunError>;

/// Where the verdict comes from.
struct Verdicts {
    /// From the thread that listens.
    received: mpsc::Receiver<Verdict>,
    /// Whether there is one.
    listening: Cell<bool>,
}

impl Protocol<'_> {
    /// From the comparison of plans to the verdict. A failure of this rank has been reported on return.
    ///
    /// # Safety
    /// As [`Engine::run`](super::Engine::run).
    pub unsafe fn start(&self, memory: &RankMemory) -> Verdict {
        let comm = self.run.comm;
        let (verdicts, received) = mpsc::channel();
        let verdict = Verdicts { received, listening: Cell::new(false) };
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let ended = &ended;
            let mut verdicts = Some(verdicts);
            let mut start = || {
                self.channel.send(&FromRank::Ready)?;
                self.expect(&ToRank::Start)?;
                if let Some(verdicts) = verdicts.take() {
                    let listen = move || self.listen(comm, ended, &verdicts);
                    // Without a listener the abort word alone ends this rank's waits early.
                    verdict.listening.set(parallel::start(scope, listen).is_ok());
                }
                Ok(())
            };
            let RankRun { plan, bindings, repeats, .. } = *self.run;
            let agreed = agree(self.channel, self.welcome.rank, plan, bindings, repeats, self.settings);
            // SAFETY: by the caller.
            let ran = agreed.and_then(|()| unsafe { self.engines.run(self.run, memory, &mut start) });
            let result = match ran {
                Ok(()) => {
                    self.channel.send(&FromRank::Done).and_then(|()| self.await_verdict(&verdict, comm))
                }
                Err(error) => Err(self.report(error, &verdict, comm)),
            };
            ended.store(true, Ordering::Relaxed);
            result
        })
    }

    /// Tells the coordinator of a failure; the error that explains it best.
    fn report(&self, error: RunError, verdict: &Verdicts, comm: &Comm) -> RunError {
        // The coordinator may have ended the run itself; then it does not listen any more.
        let _ = self.channel.send(&FromRank::Failed(error.clone()));
        match error.is_consequence().then(|| self.await_verdict(verdict, comm)) {
            Some(Err(cause)) if !cause.is_consequence() => cause,
            _ => error,
        }
    }

    /// Waits for one message. The coordinator's limits bound the wait.
    fn expect(&self, expected: &ToRank) -> Result<(), RunError> {
        expect(self.channel, self.welcome.rank, expected)
    }

    /// Waits for the verdict while the rank runs; ends the run if it is bad or cannot come any more.
    fn listen(&self, comm: &Comm, ended: &AtomicBool, verdicts: &mpsc::Sender<Verdict>) {
        let message = loop {
            if ended.load(Ordering::Relaxed) {
                return;
            }
            match self.channel.readable(Some(Instant::now() + TICK)) {
                Ok(true) => break self.channel.receive::<ToRank>(None),
                Ok(false) => {}
                Err(error) => break Err(error),
            }
        };
        let verdict = self.verdict_of(message);
        if let Err(error) = &verdict {
            comm.abort(error);
        }
        // The rank may have ended without waiting for it.
        let _ = verdicts.send(verdict);
    }

    fn verdict_of(&self, message: Result<Option<ToRank>, RunError>) -> Verdict {
        match message? {
            Some(ToRank::Verdict(None)) => Ok(()),
            Some(ToRank::Verdict(Some(error))) => Err(error),
            None => Err(self.coordinator_gone()),
            other => Err(unexpected("a verdict", &other)),
        }
    }

    /// The verdict, if it comes within a tick: from the thread that listens, or else from the socket.
    fn next_verdict(&self, verdict: &Verdicts) -> Option<Verdict> {
        if verdict.listening.get() {
            return match verdict.received.recv_timeout(TICK) {
                Ok(verdict) => Some(verdict),
                Err(mpsc::RecvTimeoutError::Disconnected) => Some(Err(self.coordinator_gone())),
                Err(mpsc::RecvTimeoutError::Timeout) => None,
            };
        }
        match self.channel.readable(Some(Instant::now() + TICK)) {
            Ok(true) => Some(self.verdict_of(self.channel.receive(None))),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// The coordinator's verdict, which comes when all ranks have ended.
    fn await_verdict(&self, verdict: &Verdicts, comm: &Comm) -> Verdict {
        let ranks = self.welcome.ranks;
        let beats = || (0..ranks).map(|r| comm.control().progress(r).beats).collect::<Vec<_>>();
        let limit = self.run.config.limit;
        let (mut last, mut since) = (beats(), Instant::now());
        loop {
            if let Some(verdict) = self.next_verdict(verdict) {
                return verdict;
            }
            let now = beats();
            if now != last {
                (last, since) = (now, Instant::now());
            }
            // The coordinator gives up on ranks earlier than this.
            if since.elapsed() > limit + Duration::from_secs(5) {
                let at = "as coordinator after the last step".into();
                let error = RunError::Stuck { rank: 0, at, limit_ms: limit.as_millis() as u64 };
                comm.abort(&error);
                return Err(error);
            }
        }
    }

    fn coordinator_gone(&self) -> RunError {
        coordinator_gone(self.welcome.rank)
    }
}

/// Says what this rank runs; returns when all ranks run the same.
pub(super) fn agree(
    channel: &Channel,
    rank: u32,
    plan: &Plan,
    bindings: &Bindings,
    repeats: u32,
    settings: &[Term],
) -> Result<(), RunError> {
    channel.send(&hello(plan, bindings, repeats, settings)?)?;
    match channel.receive::<ToRank>(None)? {
        Some(ToRank::Proceed) => return Ok(()),
        Some(ToRank::Digest) => {}
        Some(ToRank::Verdict(Some(error))) => return Err(error),
        None => return Err(coordinator_gone(rank)),
        other => return Err(unexpected(&format!("{:?}", ToRank::Proceed), &other)),
    }
    let digests = settings.iter().filter_map(|term| term.digest().transpose()).collect::<Result<_, _>>()?;
    channel.send(&FromRank::Digests(digests))?;
    expect(channel, rank, &ToRank::Proceed)
}

/// Waits for one message.
fn expect(channel: &Channel, rank: u32, expected: &ToRank) -> Result<(), RunError> {
    match channel.receive::<ToRank>(None)? {
        Some(message) if message == *expected => Ok(()),
        Some(ToRank::Verdict(Some(error))) => Err(error),
        None => Err(coordinator_gone(rank)),
        other => Err(unexpected(&format!("{expected:?}"), &other)),
    }
}

fn coordinator_gone(rank: u32) -> RunError {
    RunError::Aborted { rank, reason: "the coordinator of the run is gone".into() }
}

fn unexpected(expected: &str, found: &Option<ToRank>) -> RunError {
    let found = match found {
        Some(message) => format!("{message:?}"),
        None => "the end".into(),
    };
    RunError::Protocol { rank: 0, detail: format!("expected {expected}, found {found}") }
}
