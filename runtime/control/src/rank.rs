//! The process of a rank that a launcher started: its task, and the memory that it received.

use std::fmt::Display;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{getsockopt, sockopt};
use serde::de::DeserializeOwned;

use crate::channel::{Channel, CoordinatorMessage, RankIdentity, RankMessage, WelcomeMessage};
use crate::communicator::RankCommunicator;
use crate::control::ControlSegment;
use crate::coordinator::PlanSubject;
use crate::domain::SharedRunMemory;
use crate::error::{Result, RunError};
use crate::join_terms::JoinTerm;
use crate::joined_rank::JoinedRank;
use crate::joining::{CoordinatorNotice, JoinTask};
use crate::link::{CoordinatorLink, CoordinatorLinkConfig};
use crate::memory::{MemorySegment, SegmentAccess};
use crate::opening::{CoordinatedBy, OpeningRank, unexpected_message};
use crate::steps::LocateStep;
use crate::trace::enter_rank_span;

const WELCOME: Duration = Duration::from_secs(30);
/// The maximum number of descriptors that follow a welcome: what the system lets a process open.
const MAX_DESCRIPTORS: usize = 1 << 20;
/// The maximum timeout of a run. Moments of the clock can be added to it.
const MAX_LIMIT: Duration = Duration::from_secs(1 << 60);

/// A rank that a launcher started, until it joins the others.
pub struct LaunchedRank {
    /// `None` once the rank has joined.
    channel: Option<Channel>,
    welcome: WelcomeMessage,
    /// `None` once the rank has joined.
    domain: Option<SharedRunMemory>,
    /// The segments of the task; the first has its text. `None` once a segment was mapped.
    segments: Vec<Option<OwnedFd>>,
    files: Vec<OwnedFd>,
}

/// Runs the task that the launcher at the other end of control socket `fd` assigned to this process. Failures are
/// reported to the launcher and are not errors here. Fails if `fd` is not a control socket, or the launcher's
/// messages are invalid.
pub fn rank_main(fd: RawFd, work: impl FnOnce(&mut LaunchedRank) -> Result<()>) -> Result<()> {
    let channel = Channel::new(control_socket(fd)?, 0);
    let (welcome, fds) = receive_welcome(&channel, Instant::now() + WELCOME)?
        .ok_or_else(|| unexpected_message("a welcome", &None))?;
    let _span = enter_rank_span(welcome.rank);
    tracing::debug!(target: "symmc::join", ranks = welcome.ranks, "started by a launcher");
    let mut fds = fds.into_iter();
    let domain = map_domain(&welcome, &mut fds);
    let segments = fds.by_ref().take(welcome.task.len()).map(Some).collect();
    let mut rank =
        LaunchedRank { channel: Some(channel), welcome, domain: None, segments, files: fds.collect() };
    let worked = domain.and_then(|domain| {
        rank.domain = Some(domain);
        work(&mut rank)
    });
    match (worked, &rank.channel) {
        (Err(error), Some(channel)) => channel.send(&RankMessage::Failed(error)),
        // Failures of a rank that joined were reported by its link.
        _ => Ok(()),
    }
}

fn control_socket(fd: RawFd) -> Result<OwnedFd> {
    // SAFETY: asking for the flags of a descriptor touches no memory.
    if fd < 3 || unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(not_a_control_socket(fd, "it is not open"));
    }
    // SAFETY: the descriptor is open, and nothing else in this process uses it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    getsockopt(&socket, sockopt::SockType).map_err(|e| match e {
        Errno::ENOTSOCK | Errno::EBADF => not_a_control_socket(fd, e),
        other => RunError::from_system_call("querying the control socket", "getsockopt", other),
    })?;
    Ok(socket)
}

fn not_a_control_socket(fd: RawFd, detail: impl Display) -> RunError {
    let problem = format!("descriptor {fd} is not a control socket ({detail})");
    RunError::Invalid(format!("{problem}: ranks are started by a launcher"))
}

impl LaunchedRank {
    pub fn rank(&self) -> u32 {
        self.welcome.rank
    }

    pub fn ranks(&self) -> u32 {
        self.welcome.ranks
    }

    /// The task of this rank. Fails if this program does not know it.
    pub fn receive_task<T: DeserializeOwned>(&mut self) -> Result<T> {
        let segment = self.map_segment(0, "the task of a rank", SegmentAccess::Read)?;
        // SAFETY: the launcher wrote the task before it sent the segment, and never writes it again.
        let text = unsafe { std::slice::from_raw_parts(segment.as_ptr(), segment.len()) };
        serde_json::from_slice(text).map_err(|e| RunError::system("reading the task of a rank", e))
    }

    /// Maps a segment of the task, once. Fails if it was not sent, or cannot be mapped.
    pub fn map_segment(&mut self, index: usize, what: &str, access: SegmentAccess) -> Result<MemorySegment> {
        let fd = self.segments.get_mut(index).and_then(Option::take);
        let sent = fd.zip(self.welcome.task.get(index).copied());
        let (fd, len) = sent.ok_or_else(|| RunError::system(format!("mapping {what}"), "it was not sent"))?;
        MemorySegment::map_shared(what, fd, len, access)
    }

    /// Takes the files that the task names.
    pub fn take_files(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.files)
    }

    /// Joins the other ranks; returns when all of them run the same plan with equal terms.
    pub fn join(
        &mut self,
        subject: PlanSubject,
        terms: &[JoinTerm],
        locate_step: LocateStep,
    ) -> Result<JoinedRank> {
        let WelcomeMessage { rank, limit, .. } = self.welcome;
        let identity = RankIdentity::new(subject, terms)?;
        let domain = self.domain.take().ok_or_else(already_joined)?;
        let opening = OpeningRank::new(rank, CoordinatedBy::Launcher, limit, Duration::ZERO);
        opening.expect_task(CoordinatorNotice::Welcome, JoinTask::Greet)?;
        let control = domain.control.clone();
        let config = CoordinatorLinkConfig { control, rank, by: CoordinatedBy::Launcher, locate_step, limit };
        let link = CoordinatorLink::new(self.channel.take().ok_or_else(already_joined)?, config, opening);
        match link.agree_on_identity(identity, terms) {
            Ok(()) => Ok(JoinedRank::new(link, RankCommunicator::new(domain, rank, limit))),
            Err(error) => Err(link.report_failure(error)),
        }
    }
}

/// The first message, and the descriptors of the shared memory; `None` if the connection was closed.
pub(crate) fn receive_welcome(
    channel: &Channel,
    until: Instant,
) -> Result<Option<(WelcomeMessage, Vec<OwnedFd>)>> {
    match channel.receive(Some(until))? {
        Some(CoordinatorMessage::Welcome(welcome)) => {
            let count = expect_valid_welcome(&welcome)?;
            Ok(channel.receive_fds(count, until)?.map(|fds| (welcome, fds)))
        }
        Some(CoordinatorMessage::Verdict(Some(error))) => Err(error),
        None => Ok(None),
        other => Err(unexpected_message("a welcome", &other)),
    }
}

/// The number of descriptors that follow a welcome. Fails if its numbers cannot be those of a run.
fn expect_valid_welcome(welcome: &WelcomeMessage) -> Result<usize> {
    let &WelcomeMessage { rank, ranks, files, limit, .. } = welcome;
    let invalid = |detail| Err(RunError::Protocol { rank: 0, detail });
    if rank >= ranks {
        return invalid(format!("a welcome for rank {rank} of {ranks}"));
    }
    if limit > MAX_LIMIT {
        return invalid(format!(
            "a timeout of {} s, expected at most {}",
            limit.as_secs(),
            MAX_LIMIT.as_secs()
        ));
    }
    let count = (2 + ranks as usize + welcome.task.len()).saturating_add(files);
    if count > MAX_DESCRIPTORS {
        return invalid(format!("a welcome with {count} descriptors, expected at most {MAX_DESCRIPTORS}"));
    }
    Ok(count)
}

fn already_joined() -> RunError {
    RunError::system("joining the other ranks", "this rank has joined them already")
}

pub(crate) fn map_domain(
    welcome: &WelcomeMessage,
    fds: &mut impl Iterator<Item = OwnedFd>,
) -> Result<SharedRunMemory> {
    let WelcomeMessage { ranks, groups, arena, .. } = *welcome;
    let control_bytes = ControlSegment::segment_bytes(ranks, groups);
    let control =
        ControlSegment::new(map_next_segment(fds, "the control segment", control_bytes)?, ranks, groups)?;
    let staging_bytes = SharedRunMemory::staging_size(ranks, groups);
    let staging = map_next_segment(fds, "the staging memory", staging_bytes)?;
    let mut arenas = Vec::with_capacity(ranks as usize);
    for _ in 0..ranks {
        arenas.push(map_next_segment(fds, "the symmetric arena", arena)?);
    }
    Ok(SharedRunMemory { arenas, control, staging })
}

fn map_next_segment(
    fds: &mut impl Iterator<Item = OwnedFd>,
    what: &str,
    len: usize,
) -> Result<Arc<MemorySegment>> {
    let fd = fds.next().ok_or_else(|| RunError::system("mapping shared memory", "it was not sent"))?;
    MemorySegment::map_shared(what, fd, len, SegmentAccess::ReadWrite).map(Arc::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The welcome of the only rank of a run with one group.
    fn single_rank_welcome() -> WelcomeMessage {
        WelcomeMessage { rank: 0, ranks: 1, groups: 1, arena: 64, task: vec![], files: 0, limit: WELCOME }
    }

    /// The result of a rank that gets this welcome and the memory of a run of one rank and one group.
    fn map_welcome(welcome: &WelcomeMessage) -> Result<SharedRunMemory> {
        let (rank, launcher) = Channel::connected_pair();
        let domain = SharedRunMemory::create(1, 1, 64, 0).expect("shared memory");
        launcher.send(&CoordinatorMessage::Welcome(welcome.clone())).expect("sent");
        let fds: Vec<_> = domain.fds().into_iter().flatten().collect();
        launcher.send_fds(&fds).expect("sent");
        drop(launcher);
        let received = receive_welcome(&rank, Instant::now() + WELCOME)?;
        let (welcome, fds) = received.ok_or_else(|| unexpected_message("a welcome", &None))?;
        map_domain(&welcome, &mut fds.into_iter())
    }

    /// A launcher, or rank 0, may die between the packets of a welcome.
    #[test]
    fn receives_no_welcome_from_closed_connection() {
        let welcome = WelcomeMessage { files: 200, ..single_rank_welcome() };
        let domain = SharedRunMemory::create(1, 1, 64, 0).expect("shared memory");
        let fds: Vec<_> = domain.fds().into_iter().flatten().collect();
        for packets in 0..3 {
            let (rank, launcher) = Channel::connected_pair();
            if packets > 0 {
                launcher.send(&CoordinatorMessage::Welcome(welcome.clone())).expect("sent");
            }
            if packets > 1 {
                launcher.send_fds(&fds).expect("sent");
            }
            drop(launcher);
            let received = receive_welcome(&rank, Instant::now() + WELCOME).expect("no error");
            assert!(received.is_none(), "after {packets} packets");
        }
    }

    /// Every number of a welcome, with values whose sums and products exceed their types.
    #[test]
    fn welcomes_with_impossible_numbers_are_errors() {
        let valid = single_rank_welcome();
        map_welcome(&valid).expect("the memory of the run");
        let mut invalid: Vec<WelcomeMessage> = Vec::new();
        let counts = (10..64).map(|bit| 1usize << bit).chain([usize::MAX, usize::MAX / 640]);
        for count in counts {
            invalid.push(WelcomeMessage { groups: count, ..valid.clone() });
            invalid.push(WelcomeMessage { files: count, ..valid.clone() });
            invalid.push(WelcomeMessage { arena: count, ..valid.clone() });
        }
        for ranks in [0, 2, 1 << 20, u32::MAX] {
            invalid.push(WelcomeMessage { ranks, ..valid.clone() });
        }
        invalid.push(WelcomeMessage { rank: 1, ..valid.clone() });
        invalid.push(WelcomeMessage { task: vec![usize::MAX], ..valid.clone() });
        invalid.push(WelcomeMessage { limit: Duration::MAX, ..valid.clone() });
        for welcome in &invalid {
            assert!(map_welcome(welcome).is_err(), "{welcome:?}");
        }
    }
}
