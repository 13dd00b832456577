//! One rank behind a control socket: the process that a launcher started, and what it has in common with a
//! rank that joined by itself.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{getsockopt, sockopt};
use symmc_ir::entity::Entity;
use symmc_ir::{Bindings, SymbolId};
use symmc_plan::{Plan, ReadPlan};

use super::channel::{Channel, FromRank, ToRank, Welcome};
use super::comm::{Comm, World};
use super::control::Control;
use super::coordinator::{identity, job_terms};
use super::engine::{Engines, RankRun};
use super::inputs;
use super::joining::{Task, Told};
use super::launch::JobText;
use super::link::Link;
use super::memory::{Access, Segment};
use super::opening::{CoordinatedBy, Opening, unexpected};
use super::rank_memory::arena_size;
use super::terms::Term;
use super::trace::enter_rank_span;
use crate::error::RunError;
use crate::exec::{RankMemory, Span};

/// How long a rank waits for its launcher's first message.
const WELCOME: Duration = Duration::from_secs(30);

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
    getsockopt(&socket, sockopt::SockType).map_err(|e| match e {
        Errno::ENOTSOCK | Errno::EBADF => invalid(&e),
        other => RunError::of_call("looking at the control socket", "getsockopt", other),
    })?;
    let channel = Channel::new(socket, 0);
    let (welcome, fds) =
        receive_welcome(&channel, Instant::now() + WELCOME)?.ok_or_else(|| unexpected("a welcome", &None))?;
    let _span = enter_rank_span(welcome.rank);
    tracing::debug!(target: "symmc::join", ranks = welcome.ranks, "started by a launcher");
    match Launched::new(&welcome, fds) {
        // A failure of the run has been reported.
        Ok((rank, comm)) => rank.run(channel, &welcome, comm, engines).or(Ok(())),
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
    plan: ReadPlan,
    bindings: Bindings,
    job: JobText,
    memory: RankMemory,
    /// What `memory` points into.
    _segments: Vec<Segment>,
}

impl Launched {
    /// The rank, and its communicator.
    fn new(welcome: &Welcome, fds: Vec<OwnedFd>) -> Result<(Launched, Comm), RunError> {
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
        let plan = ReadPlan::read(Arc::new(plan))?;
        let mut bindings = Bindings::new();
        for (id, value) in job.bindings.iter().enumerate() {
            value.iter().for_each(|&v| bindings.set(SymbolId::new(id), v));
        }
        let comm = Comm::new(world, welcome.rank, job.config.comm(welcome.ranks))?;
        let ordinary = Segment::private("the ordinary arena", arena_size(plan.arenas.ordinary)?)?;
        let places = job.inputs.get(welcome.rank as usize).map_or(&[][..], |p| &p[..]);
        let files = inputs::take(files, places, &job.mutated, &job.config.engine)?;
        let input =
            |(i, (place, copy)): (usize, (&inputs::InputPlace, &Option<usize>))| match (copy, place.file) {
                (Some(at), _) => own.span(*at, place.len),
                (None, None) => shared.span(place.offset, place.len),
                (None, Some(_)) if files.sources.get(i).is_some_and(Option::is_some) => Ok(Span::NONE),
                (None, Some(_)) => {
                    let missing = || RunError::system("reading the job", "a file of inputs was not sent");
                    files.spans.get(i).copied().flatten().ok_or_else(missing)
                }
            };
        let memory = RankMemory {
            ordinary: ordinary.span(0, ordinary.len())?,
            symmetric: comm.arena().span(0, comm.arena().len())?,
            inputs: places.iter().zip(&job.mutated).enumerate().map(input).collect::<Result<_, _>>()?,
            sources: files.sources,
            outputs: job.outputs.iter().map(|&[at, len]| own.span(at, len)).collect::<Result<_, _>>()?,
        };
        segments.push(ordinary);
        segments.extend(files.segments);
        Ok((Launched { plan, bindings, job, memory, _segments: segments }, comm))
    }

    fn run(
        &self,
        channel: Channel,
        welcome: &Welcome,
        comm: Comm,
        engines: &Engines<'_>,
    ) -> Result<(), RunError> {
        let (repeats, config) = (self.job.repeats, &self.job.config);
        let opening = Opening::new(welcome.rank, CoordinatedBy::Launcher, config.limit, Duration::ZERO);
        opening.expect_task(Told::Welcome, Task::Greet)?;
        let link = Link::new(channel, comm, opening, None, config.limit);
        let run = RankRun { plan: &self.plan, bindings: &self.bindings, repeats, config, comm: link.comm() };
        // SAFETY: the launcher laid the spans out for the program; `within` saw that they exist.
        unsafe { run_job(&link, &run, &self.memory, &[], engines) }
    }
}

/// A job on one rank, from the comparison of plans to the verdict. A failure of this rank has been reported on return.
///
/// # Errors
/// What ended the run.
///
/// # Safety
/// As [`Engine::run`](super::Engine::run).
pub(super) unsafe fn run_job(
    link: &Link,
    run: &RankRun<'_>,
    memory: &RankMemory,
    settings: &[Term],
    engines: &Engines<'_>,
) -> Result<(), RunError> {
    let terms = job_terms(run.plan, run.bindings, run.repeats);
    let agreed = identity(run.plan, terms, settings).and_then(|identity| link.agree(identity, settings));
    // SAFETY: by the caller.
    let ran = agreed.and_then(|()| unsafe { engines.run(run, memory, &mut || link.start()) });
    link.finish(ran)
}
