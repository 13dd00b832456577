//! The coordinator of a run: compares the plans of the ranks, starts the ranks together, watches them, and
//! decides why a run ended.
//!
//! The coordinator exchanges messages with every rank over a control socket and reads the progress of each from the
//! control segment. Until all ranks have started it follows the state machine of [`crate::joining`]. When the
//! run fails it sets the abort word, which ends every wait. It then collects errors for a moment longer, in
//! case one explains the failure better (a rank that died explains why another one timed out). Finally it
//! notifies every rank.

use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use symmc_support::shorten_middle;

use crate::channel::{Channel, CoordinatorMessage, PROTOCOL, RankIdentity, RankMessage, ReceiveOutcome};
use crate::control::{ControlSegment, RankProgress};
use crate::culprit;
use crate::error::{Result, RunError};
use crate::heartbeat::{ActiveClock, Observer, TICK};
use crate::join_terms::JoinTerm;
use crate::joining::{
    AnswerEffect, CoordinatorMachine, CoordinatorOrder, JoinFault, JoinStage, JoinTimeouts, RankAnswer,
};
use crate::steps::{LocateStep, StepName};

/// How long after the first failure errors of other ranks are collected.
const GRACE: Duration = Duration::from_millis(150);
/// Additional time before a rank without progress is reported. Its peers' waits end earlier, and their errors
/// have more detail.
const PATIENCE: Duration = Duration::from_secs(1);

/// The maximum length of a property of a plan, which may be a name.
const MAX_ABOUT_BYTES: usize = 1024;
/// The maximum size of the answer of a rank, which consists of several messages.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// The name and version that ranks compare.
pub(crate) fn symmc_version() -> String {
    format!("symmc {}", env!("CARGO_PKG_VERSION"))
}

#[derive(Clone, Debug)]
pub struct PlanSubject {
    pub hash: String,
    /// Properties that distinguish the plan from others in error messages.
    pub about: Vec<(String, String)>,
}

impl RankIdentity {
    /// The identity that a rank sends: its plan and its terms.
    pub fn new(subject: PlanSubject, terms: &[JoinTerm]) -> Result<RankIdentity> {
        let contents = terms.iter().filter(|t| t.is_content()).map(|t| t.name.clone()).collect();
        let terms = terms.iter().map(JoinTerm::compared_value).collect::<Result<_, _>>()?;
        let PlanSubject { hash: plan, mut about } = subject;
        about.iter_mut().for_each(|(_, value)| *value = shorten_middle(value, MAX_ABOUT_BYTES));
        Ok(RankIdentity { protocol: PROTOCOL, version: symmc_version(), plan, about, terms, contents })
    }
}

fn describe_version(identity: &RankIdentity) -> String {
    format!("{}, protocol {}", identity.version, identity.protocol)
}

/// Describes a plan by its hash and by the properties that differ from those of `other`.
fn describe_plan(identity: &RankIdentity, other: &RankIdentity) -> String {
    let differ = identity.about.iter().filter(|term| !other.about.contains(term));
    let differ: Vec<String> = differ.map(|(name, value)| format!("{name} {value}")).collect();
    if differ.is_empty() {
        format!("the plan {} (same program, compiled differently)", identity.plan)
    } else {
        format!("the plan {} ({})", identity.plan, differ.join(", "))
    }
}

/// The terms of `a` that `b` lacks or has with another value: `with tokens=7, seed=1`.
fn differing_terms(a: &[(String, String)], b: &[(String, String)]) -> String {
    let differ: Vec<String> =
        a.iter().filter(|t| !b.contains(t)).map(|(name, value)| format!("{name}={value}")).collect();
    if differ.is_empty() { "without these settings".into() } else { format!("with {}", differ.join(", ")) }
}

impl RankIdentity {
    /// Whether the two identities differ at most in the identities of their contents.
    fn differs_only_in_contents(&self, other: &RankIdentity) -> bool {
        self.protocol == other.protocol
            && self.version == other.version
            && self.plan == other.plan
            && self.contents == other.contents
            && self.text_terms() == other.text_terms()
    }

    fn text_terms(&self) -> Vec<(String, String)> {
        self.terms.iter().filter(|(name, _)| !self.contents.contains(name)).cloned().collect()
    }
}

/// The phase of a rank, as the coordinator sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RankPhase {
    /// The rank is joining; its task depends on the stage.
    Joining,
    Running,
    /// The rank has run the plan.
    Done,
    /// The rank failed, or its process is gone.
    Gone,
}

#[derive(Debug)]
pub(crate) struct CoordinatedRank {
    channel: Channel,
    phase: RankPhase,
    identity: Option<RankIdentity>,
    answer: String,
    /// Its progress counter when that last changed, with the time of the change in `since`.
    beats: u64,
    since: Duration,
    /// The time at which its process was first seen stopped, while it is.
    stopped: Option<Duration>,
}

impl CoordinatedRank {
    pub fn new(channel: Channel) -> Self {
        CoordinatedRank {
            channel,
            phase: RankPhase::Joining,
            identity: None,
            answer: String::new(),
            beats: 0,
            since: Duration::ZERO,
            stopped: None,
        }
    }

    pub fn into_answer(self) -> String {
        self.answer
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunKind {
    /// A job: ranks run from start to end.
    Job,
    /// A session: between runs ranks may take as long as their callers want, until one of them closes its
    /// session.
    Session,
}

/// The processes of ranks that a launcher started.
pub(crate) trait RankProcesses {
    fn poll_exit(&mut self, rank: u32) -> Option<ProcessEnd>;

    fn is_stopped(&mut self, rank: u32) -> bool;
}

pub(crate) struct Coordinator<'a> {
    pub run_kind: RunKind,
    pub locate_step: LocateStep,
    pub control: &'a ControlSegment,
    pub limit: Duration,
    pub members: Vec<CoordinatedRank>,
    pub joining: CoordinatorMachine,
    pub clock: ActiveClock,
    /// The processes of ranks, if this process started them. Otherwise this is the process of rank 0.
    pub processes: Option<&'a mut dyn RankProcesses>,
    pub observer: Observer,
}

impl<'a> Coordinator<'a> {
    /// Coordinates a job of ranks that have just been sent the shared memory.
    pub fn new(
        locate_step: LocateStep,
        control: &'a ControlSegment,
        members: Vec<CoordinatedRank>,
        limit: Duration,
    ) -> Self {
        let mut clock = ActiveClock::start();
        let joining =
            CoordinatorMachine::after_welcome(control.ranks(), JoinTimeouts::new(limit), clock.now());
        let observer = Observer::new(control);
        Coordinator {
            run_kind: RunKind::Job,
            locate_step,
            control,
            limit,
            members,
            joining,
            clock,
            processes: None,
            observer,
        }
    }

    /// Coordinates the run from the first message of every rank to the end, and notifies every rank of the
    /// result.
    pub fn run(&mut self) -> Result<()> {
        let result = self.run_to_end();
        match &result {
            Ok(()) => tracing::debug!(target: "symmc::run", "all ranks have finished"),
            Err(error) => tracing::warn!(target: "symmc::run", %error, "ending the run on all ranks"),
        }
        let verdict = CoordinatorMessage::Verdict(result.as_ref().err().cloned());
        // Rank 0 is last: it may end this process as soon as it is notified.
        for member in self.members.iter().rev() {
            // A rank that cannot be notified is gone.
            let _ = member.channel.send(&verdict);
        }
        result
    }

    fn run_to_end(&mut self) -> Result<()> {
        let mut errors: Vec<RunError> = Vec::new();
        let mut deadline = None;
        loop {
            if let Err(error) = self.process_next_event(errors.is_empty()) {
                let error = self.as_reported(error);
                if errors.is_empty() {
                    self.control.abort(error.reporter().unwrap_or(0), &error);
                    deadline = Some(Instant::now() + GRACE);
                }
                errors.push(error);
            }
            let gone = self.members.iter().all(|m| m.phase == RankPhase::Gone);
            if deadline.is_some_and(|deadline| gone || Instant::now() >= deadline) {
                return Err(explaining_error(errors));
            }
            if errors.is_empty() && self.members.iter().all(|m| m.phase == RankPhase::Done) {
                return Ok(());
            }
        }
    }

    /// Marks an error that the coordinator found as reported by rank 0, if this is the process of rank 0.
    fn as_reported(&self, error: RunError) -> RunError {
        if self.processes.is_none() { error.reported_by(0) } else { error }
    }

    /// Waits for the next event and handles it. Detects ranks that are late, unless the run has failed.
    fn process_next_event(&mut self, goes_well: bool) -> Result<()> {
        for rank in self.poll_channels()? {
            self.handle_message(rank)?;
        }
        let now = self.clock.now();
        self.control.publish_coordinator_heartbeat();
        if !goes_well {
            return Ok(());
        }
        match self.joining.stage() {
            JoinStage::Started => {
                self.check_closed(now)?;
                self.check_progress(now)
            }
            _ => self.check_joining(now),
        }
    }

    /// The ranks with a message or a closed connection.
    fn poll_channels(&self) -> Result<Vec<usize>> {
        let mut ranks = Vec::new();
        let mut fds = Vec::new();
        for (rank, member) in self.members.iter().enumerate() {
            if member.phase != RankPhase::Gone && member.phase != RankPhase::Done {
                ranks.push(rank);
                fds.push(PollFd::new(member.channel.fd(), PollFlags::POLLIN));
            }
        }
        let tick = PollTimeout::try_from(TICK).unwrap_or(PollTimeout::ZERO);
        match poll(&mut fds, tick) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(RunError::from_system_call("waiting for the ranks", "poll", e)),
        }
        let polled = ranks.into_iter().zip(&fds);
        let ready = polled.filter(|(_, fd)| fd.revents().is_some_and(|events| !events.is_empty()));
        Ok(ready.map(|(rank, _)| rank).collect())
    }

    /// Handles the next message of a rank, if it has arrived. Never waits for the rest of a message.
    fn handle_message(&mut self, rank: usize) -> Result<()> {
        let now = self.clock.now();
        let member = &mut self.members[rank];
        let message = match member.channel.try_receive().inspect_err(|_| member.phase = RankPhase::Gone)? {
            ReceiveOutcome::Nothing => return Ok(()),
            ReceiveOutcome::Message(message) => message,
            ReceiveOutcome::End => {
                member.phase = RankPhase::Gone;
                return Err(self.death_error(rank as u32));
            }
        };
        member.since = now;
        match message {
            RankMessage::Hello(identity) => {
                member.identity = Some(identity);
                self.record_answer(rank, RankAnswer::Hello)
            }
            RankMessage::Digests(digests) => {
                for (name, value) in member.identity.iter_mut().flat_map(|i| &mut i.terms) {
                    let digest = digests.iter().find(|(term, _)| term == name);
                    digest.iter().for_each(|(_, digest)| value.clone_from(digest));
                }
                self.record_answer(rank, RankAnswer::Digests)
            }
            RankMessage::Ready => self.record_answer(rank, RankAnswer::Ready),
            RankMessage::Answer(piece) => {
                if member.answer.len() + piece.len() > MAX_ANSWER_BYTES {
                    member.phase = RankPhase::Gone;
                    let detail = format!("its answer exceeds the maximum of {MAX_ANSWER_BYTES} bytes");
                    return Err(RunError::Protocol { rank: rank as u32, detail });
                }
                member.answer.push_str(&piece);
                Ok(())
            }
            RankMessage::Done if member.phase == RankPhase::Running => {
                member.phase = RankPhase::Done;
                Ok(())
            }
            RankMessage::Failed(error) => {
                member.phase = RankPhase::Gone;
                Err(error.reported_by(rank as u32))
            }
            other => Err(self.unexpected_message(rank, &format!("{other:?}"))),
        }
    }

    /// Records a rank's answer, and enters the next stage once all ranks have answered.
    fn record_answer(&mut self, rank: usize, answer: RankAnswer) -> Result<()> {
        let now = self.clock.now();
        match self.joining.accept_answer(rank as u32, answer, now) {
            AnswerEffect::Unexpected => Err(self.unexpected_message(rank, &format!("{answer:?}"))),
            AnswerEffect::Complete(CoordinatorOrder::Compare) => self.compare_or_request_digests(now),
            AnswerEffect::Complete(CoordinatorOrder::Start) => {
                self.members.iter_mut().for_each(|m| m.phase = RankPhase::Running);
                self.broadcast(&CoordinatorMessage::Start, now)
            }
            AnswerEffect::Complete(CoordinatorOrder::Welcome) | AnswerEffect::Waiting => Ok(()),
        }
    }

    fn unexpected_message(&mut self, rank: usize, found: &str) -> RunError {
        let member = &mut self.members[rank];
        let expected = format!("{:?}, phase {:?}", self.joining.stage(), member.phase);
        member.phase = RankPhase::Gone;
        RunError::Protocol { rank: rank as u32, detail: format!("unexpected {found} in {expected}") }
    }

    fn all_in_phase(&self, phase: RankPhase) -> bool {
        self.members.iter().all(|m| m.phase == phase)
    }

    fn broadcast(&mut self, message: &CoordinatorMessage, now: Duration) -> Result<()> {
        self.members.iter_mut().for_each(|m| m.since = now);
        self.members.iter().try_for_each(|m| m.channel.send(message))
    }

    /// Orders the ranks to load if their identities are equal. Contents with different identities may still
    /// be equal: in this case the coordinator requests digests, once.
    fn compare_or_request_digests(&mut self, now: Duration) -> Result<()> {
        let identities: Vec<&RankIdentity> =
            self.members.iter().filter_map(|m| m.identity.as_ref()).collect();
        let Some((first, others)) = identities.split_first() else { return Ok(()) };
        let have_equal_terms = others.iter().all(|other| other.terms == first.terms);
        let is_first = self.joining.stage() == JoinStage::Comparing;
        if !have_equal_terms && is_first && others.iter().all(|o| o.differs_only_in_contents(first)) {
            self.joining.finish_comparison(true, now);
            return self.broadcast(&CoordinatorMessage::Digest, now);
        }
        self.expect_equal_identities()?;
        self.joining.finish_comparison(false, now);
        self.broadcast(&CoordinatorMessage::Proceed, now)
    }

    fn joining_silence(&self, rank: u32, now: Duration) -> Option<Duration> {
        if let Some(silence) = self.observer.silence(rank, now) {
            return Some(silence);
        }
        self.processes.as_ref()?;
        // A process that this one started may take its time before the first heartbeat, unless it is
        // stopped.
        let stopped = self.members.get(rank as usize).and_then(|m| m.stopped);
        Some(stopped.map_or(Duration::ZERO, |since| now.saturating_sub(since)))
    }

    /// Detects a rank that does not answer while the run opens.
    fn check_joining(&mut self, now: Duration) -> Result<()> {
        self.observer.sample_heartbeats(now);
        if let Some(processes) = &mut self.processes {
            for (rank, member) in (0..).zip(&mut self.members) {
                let is_stopped = processes.is_stopped(rank);
                member.stopped = is_stopped.then(|| member.stopped.unwrap_or(now));
            }
        }
        let fault = self.joining.check_timeouts(now, &|rank| self.joining_silence(rank, now));
        let Some(JoinFault::Late(rank, waited)) = fault else {
            return Ok(());
        };
        if let Some(member) = self.members.get_mut(rank as usize) {
            member.phase = RankPhase::Gone;
        }
        Err(self.stuck_error(rank, waited))
    }

    fn expect_equal_identities(&self) -> Result<()> {
        let identities = self.members.iter().filter_map(|m| m.identity.as_ref());
        let mut identities = (0..).zip(identities);
        let Some((_, first)) = identities.next() else { return Ok(()) };
        for (rank, identity) in identities {
            if (identity.protocol, &identity.version) != (first.protocol, &first.version) {
                return Err(RunError::VersionDiffers {
                    rank,
                    expected: describe_version(first),
                    found: describe_version(identity),
                });
            }
            if identity.plan != first.plan {
                let expected = describe_plan(first, identity);
                let actual = describe_plan(identity, first);
                return Err(RunError::PlanDiffers { rank, expected, found: actual });
            }
            if identity.terms != first.terms {
                let actual = differing_terms(&identity.terms, &first.terms);
                let expected = differing_terms(&first.terms, &identity.terms);
                return Err(RunError::TermsDiffer { rank, expected, found: actual });
            }
        }
        Ok(())
    }

    /// Detects that a session cannot continue: a rank begins or waits in a run after another rank has closed
    /// its session, or a rank closed its session longer ago than the timeout.
    fn check_closed(&mut self, now: Duration) -> Result<()> {
        if self.run_kind == RunKind::Job || self.all_in_phase(RankPhase::Done) {
            return Ok(());
        }
        let open = self.members.iter().zip(0..).filter(|(m, _)| m.phase == RankPhase::Running);
        let progress: Vec<RankProgress> = open.map(|(_, rank)| self.control.progress(rank)).collect();
        for (rank, member) in (0..).zip(&self.members).filter(|(_, m)| m.phase == RankPhase::Done) {
            let runs = self.control.runs_before_close(rank);
            let missed_run = progress.iter().any(|p| p.running && runs.is_some_and(|runs| p.run >= runs));
            if now.saturating_sub(member.since) > self.limit || missed_run {
                return Err(match runs {
                    Some(runs) => RunError::session_closed(rank, runs),
                    None => RunError::Left { rank, how: "closed its session".into() },
                });
            }
        }
        Ok(())
    }

    /// Detects ranks that begin no step for longer than the timeout, and reports the one with the least
    /// progress.
    fn check_progress(&mut self, now: Duration) -> Result<()> {
        let mut late: Vec<u32> = Vec::new();
        for (rank, member) in (0..).zip(&mut self.members).filter(|(_, m)| m.phase == RankPhase::Running) {
            let progress = self.control.progress(rank);
            let idle = self.run_kind == RunKind::Session && !progress.running;
            if progress.beats != member.beats || idle {
                member.beats = progress.beats;
                member.since = now;
            }
            if now.saturating_sub(member.since) > self.limit + PATIENCE {
                late.push(rank);
            }
        }
        self.observer.sample_heartbeats(now);
        let silent = late
            .iter()
            .map(|&rank| (rank, self.observer.silence(rank, now).unwrap_or_default()))
            .filter(|&(_, silence)| silence > self.limit)
            .max_by_key(|&(_, silence)| silence)
            .map(|(rank, _)| rank);
        // A late rank may wait for a rank that has not begun the run and therefore does not count as late.
        let culprit = silent.or_else(|| {
            let furthest_behind = late
                .iter()
                .copied()
                .min_by_key(|&rank| culprit::progress_position(&self.control.progress(rank)))?;
            Some(culprit::find_culprit(self.control, furthest_behind, &[]))
        });
        match culprit {
            None => Ok(()),
            Some(rank) => {
                self.members[rank as usize].phase = RankPhase::Gone;
                Err(self.stuck_error(rank, self.limit))
            }
        }
    }

    fn stuck_error(&self, rank: u32, waited: Duration) -> RunError {
        let progress = self.control.progress(rank);
        let location = match self.locate_step.name(&progress) {
            Some(StepName { step, node, op }) => {
                format!("at step {step} ({op} %{node}), run {}", progress.run)
            }
            None if self.run_kind == RunKind::Session && progress.running => {
                format!("in run {}", progress.run)
            }
            None if progress.beats > 0 => format!("after run {}", progress.run),
            None => "before the first step".into(),
        };
        RunError::Stuck { rank, at: location, limit_ms: waited.as_millis() as u64 }
    }

    fn death_error(&mut self, rank: u32) -> RunError {
        let mut how = None;
        if let Some(processes) = &mut self.processes {
            let until = Instant::now() + GRACE;
            how = processes.poll_exit(rank);
            while how.is_none() && Instant::now() < until {
                // The socket closes a moment before the process can be reaped.
                std::thread::sleep(Duration::from_millis(1));
                how = processes.poll_exit(rank);
            }
        }
        match how {
            Some(ProcessEnd { code: Some(REFUSED), .. }) => RunError::Refused { rank },
            how => death_error(&self.locate_step, self.control, rank, how.map(|end| end.how)),
        }
    }
}

/// The exit code of a rank that could not get a resource of the system.
const REFUSED: i32 = 2;

#[derive(Debug)]
pub(crate) struct ProcessEnd {
    /// `signal 9, SIGKILL` or `exit code 3`.
    pub how: String,
    /// The exit code, if the process was not killed by a signal.
    pub code: Option<i32>,
}

/// The error of a rank whose process is gone; `how` says how it ended, if that is known.
pub(crate) fn death_error(
    locate_step: &LocateStep,
    control: &ControlSegment,
    rank: u32,
    how: Option<String>,
) -> RunError {
    let how = how.unwrap_or_else(|| "its process is gone".into());
    let progress = control.progress(rank);
    match locate_step.name(&progress) {
        Some(StepName { step, node, op }) => RunError::Died { rank, how, step, node, op, run: progress.run },
        None if progress.beats == 0 => {
            RunError::DiedOutside { rank, how, when: "before the first step".into() }
        }
        None => RunError::DiedOutside { rank, how, when: "between steps".into() },
    }
}

/// The error that explains the others.
pub fn explaining_error(errors: Vec<RunError>) -> RunError {
    errors
        .into_iter()
        .min_by_key(explanation_order)
        .unwrap_or_else(|| RunError::system("the run", "failed without an error"))
}

/// Orders errors: the smaller the number, the more the error explains.
fn explanation_order(error: &RunError) -> u32 {
    match error {
        RunError::Died { .. } | RunError::DiedOutside { .. } | RunError::Refused { .. } => 0,
        RunError::PlanDiffers { .. } | RunError::VersionDiffers { .. } | RunError::TermsDiffer { .. } => 1,
        RunError::SizesDiffer { .. } | RunError::Misplaced { .. } => 1,
        RunError::Invalid(_) | RunError::Defect(_) | RunError::CannotRun { .. } => 1,
        RunError::Bounds { .. } | RunError::Unsupported(_) => 1,
        RunError::Step { .. } | RunError::Data { .. } | RunError::Left { .. } => 2,
        RunError::Memory { .. } | RunError::Exhausted { .. } | RunError::System { .. } => 2,
        RunError::Protocol { .. } => 3,
        RunError::Limit { .. } => 4,
        RunError::Stuck { .. } | RunError::Absent { .. } | RunError::Unfinished { .. } => 5,
        RunError::Aborted { .. } => 6,
        RunError::Reported { cause, .. } => explanation_order(cause),
    }
}
