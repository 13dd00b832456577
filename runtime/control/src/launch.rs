//! The launcher: this process starts one process for each rank.
//!
//! A rank inherits one control socket and receives the shared memory over it. Ranks die with the launcher
//! (`PR_SET_PDEATHSIG`), and the launcher kills and reaps every rank before it returns, whatever happened. It
//! waits for the process of a rank to begin for at most the timeout.

use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use serde::Serialize;

use crate::channel::{Channel, CoordinatorMessage, WelcomeMessage};
use crate::coordinator::{CoordinatedRank, Coordinator, ProcessEnd, RankProcesses};
use crate::domain::SharedRunMemory;
use crate::error::{Result, RunError};
use crate::memory::MemorySegment;
use crate::spawn::{CallFailure, RankCommand, RankProcess};
use crate::steps::LocateStep;
use crate::trace::enter_coordinator_span;

/// How long ranks have to exit after a run before they are killed.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);
const REAP_TIMEOUT: Duration = Duration::from_secs(5);

pub struct LaunchConfig<'a> {
    pub ranks: u32,
    /// The number of groups of ranks with separate flags.
    pub groups: usize,
    /// Bytes of the symmetric arena of each rank.
    pub arena: usize,
    /// The timeout of every wait.
    pub limit: Duration,
    pub locate_step: LocateStep,
    /// The segments of each rank in addition to the task, which has number 0.
    pub segments: &'a dyn Fn(u32) -> Vec<&'a MemorySegment>,
    pub files: Vec<BorrowedFd<'a>>,
}

/// Starts one process for each rank, which does a task; returns the answer of each. Fails if a process cannot
/// be started, or a rank failed, died or hung.
pub fn launch_ranks(
    config: LaunchConfig<'_>,
    command: &RankCommand,
    task: &impl Serialize,
) -> Result<Vec<String>> {
    let LaunchConfig { ranks, groups, arena, limit, locate_step, segments, files } = config;
    let text = serde_json::to_vec(task).map_err(|e| RunError::system("writing the task of ranks", e))?;
    let task = MemorySegment::create("the task", text.len())?;
    // SAFETY: the segment has as many bytes, and no other process has it yet.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), task.as_ptr(), text.len()) };
    let domain = SharedRunMemory::create(ranks, groups, arena, 0)?;

    let null = File::options().read(true).write(true).open("/dev/null");
    let null = null.map_err(|e| RunError::from_system_call("opening /dev/null", "open", e))?;
    let mut processes = LaunchedProcesses { children: Vec::new(), null };
    let mut members = Vec::new();
    for rank in 0..ranks {
        let channel = processes.spawn(command, rank, limit)?;
        let rank_segments: Vec<&MemorySegment> = [&task].into_iter().chain(segments(rank)).collect();
        let task = rank_segments.iter().map(|segment| segment.len()).collect();
        let welcome = WelcomeMessage { rank, ranks, groups, arena, task, files: files.len(), limit };
        channel.send(&CoordinatorMessage::Welcome(welcome))?;
        let fds = domain.fds().into_iter().chain(rank_segments.iter().map(|segment| segment.fd())).flatten();
        channel.send_fds(&fds.chain(files.iter().copied()).collect::<Vec<_>>())?;
        members.push(CoordinatedRank::new(channel));
    }
    let _span = enter_coordinator_span();
    let mut coordinator = Coordinator {
        processes: Some(&mut processes),
        ..Coordinator::new(locate_step, &domain.control, members, limit)
    };
    coordinator.run()?;
    let answers =
        std::mem::take(&mut coordinator.members).into_iter().map(CoordinatedRank::into_answer).collect();
    drop(coordinator);
    // Ranks that do not exit in time are killed.
    processes.wait_all(Instant::now() + EXIT_TIMEOUT);
    Ok(answers)
}

/// The processes of the ranks. None outlives this value.
struct LaunchedProcesses {
    children: Vec<RankProcess>,
    /// The file that they read from and write to.
    null: File,
}

impl RankProcesses for LaunchedProcesses {
    fn poll_exit(&mut self, rank: u32) -> Option<ProcessEnd> {
        let status = self.children.get_mut(rank as usize)?.poll_exit()?;
        Some(ProcessEnd { how: describe_exit(status), code: status.code() })
    }

    fn is_stopped(&mut self, rank: u32) -> bool {
        self.children.get_mut(rank as usize).is_some_and(RankProcess::is_stopped)
    }
}

impl LaunchedProcesses {
    /// Starts the process of a rank; returns the launcher's end of its control socket.
    fn spawn(&mut self, command: &RankCommand, rank: u32, limit: Duration) -> Result<Channel> {
        let failed = |failure: CallFailure| {
            let action = format!("starting rank {rank} ({})", command.program.display());
            RunError::from_system_call(action, failure.call, failure.error)
        };
        let pair = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
        let (ours, theirs): (OwnedFd, OwnedFd) =
            pair.map_err(|e| failed(CallFailure::new("socketpair", e)))?;
        let child = RankProcess::spawn(command, &theirs, &self.null).map_err(failed)?;
        tracing::debug!(target: "symmc::join", rank, pid = child.pid(), "started the process of a rank");
        self.children.push(child);
        let begun = self.children.last().map_or(Ok(true), |child| child.await_exec(limit));
        if begun.map_err(failed)? {
            return Ok(Channel::new(ours, rank));
        }
        let location = "before its program began".into();
        let limit_ms = limit.as_millis() as u64;
        Err(RunError::Stuck { rank, at: location, limit_ms })
    }

    /// Waits until all processes have exited; returns whether they have.
    fn wait_all(&mut self, until: Instant) -> bool {
        let mut pause = Duration::from_micros(50);
        loop {
            if self.children.iter_mut().all(|child| child.poll_exit().is_some()) {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        }
    }
}

impl Drop for LaunchedProcesses {
    fn drop(&mut self) {
        self.children.iter_mut().for_each(RankProcess::kill);
        self.wait_all(Instant::now() + REAP_TIMEOUT);
    }
}

fn describe_exit(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(number), _) => match Signal::try_from(number) {
            Ok(signal) => format!("signal {number}, {signal}"),
            Err(_) => format!("signal {number}"),
        },
        (None, Some(code)) => format!("exit code {code}"),
        (None, None) => "unknown status".into(),
    }
}
