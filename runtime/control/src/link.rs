//! A rank's connection to the coordinator of its run, from the comparison of plans to the verdict.
//!
//! While the link is open a separate thread reads the control socket, so that a run that ends on another rank
//! ends this rank's waits early. The thread also publishes the rank's heartbeat. A run that ends on this rank
//! is reported through the link.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use symmc_support::parallel;

use crate::channel::{Channel, CoordinatorMessage, RankIdentity, RankMessage};
use crate::control::ControlSegment;
use crate::coordinator::death_error;
use crate::error::{Result, RunError};
use crate::heartbeat::{ActiveClock, Observer, SHORTEST_SILENCE, TICK};
use crate::join_terms::JoinTerm;
use crate::joining::{JoinTask, RankAnswer};
use crate::opening::{CoordinatedBy, OpeningRank, ReceivedMessage, unexpected_message};
use crate::steps::LocateStep;
use crate::trace::enter_rank_span;

/// Additional time after the timeout in which a rank waits for the verdict. The coordinator gives up on ranks
/// earlier.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time that a rank waits for the coordinator's explanation of a run that another rank ended. It does not wait
/// for a coordinator without a heartbeat.
const EXPLAINING: Duration = Duration::from_secs(1);

/// Bytes of an answer in one message. Its quotes are escaped there.
const ANSWER_PIECE: usize = 32 << 10;

/// The result of a run for all ranks.
type RunVerdict = Result<()>;

/// The rank of a link, and the coordinator of its run.
pub(crate) struct CoordinatorLinkConfig {
    pub control: ControlSegment,
    pub rank: u32,
    pub by: CoordinatedBy,
    pub locate_step: LocateStep,
    pub limit: Duration,
}

#[derive(Debug)]
pub(crate) struct CoordinatorLink {
    state: Arc<CoordinatorLinkState>,
    listener: Mutex<LinkListener>,
    opening: Mutex<OpeningRank>,
}

#[derive(Debug)]
struct CoordinatorLinkState {
    channel: Channel,
    control: ControlSegment,
    rank: u32,
    by: CoordinatedBy,
    locate_step: LocateStep,
    limit: Duration,
    /// Whether the rank expects no more messages.
    ended: AtomicBool,
    /// Whether the coordinator was sent the result of this rank.
    is_reported: AtomicBool,
    /// The error that explains the failure of this rank best, once it has failed.
    failure: OnceLock<RunError>,
    /// How long the coordinator has shown no heartbeat, in milliseconds, as the listening thread last saw it.
    coordinator_silence_ms: AtomicU64,
}

#[derive(Debug, Default)]
struct LinkListener {
    /// Messages from the thread, if there is one.
    messages: Option<mpsc::Receiver<ReceivedMessage>>,
    thread: Option<JoinHandle<()>>,
}

impl CoordinatorLink {
    pub fn new(channel: Channel, config: CoordinatorLinkConfig, mut opening: OpeningRank) -> CoordinatorLink {
        let CoordinatorLinkConfig { control, rank, by, locate_step, limit } = config;
        opening.watch_heartbeats(&control);
        let state = Arc::new(CoordinatorLinkState {
            channel,
            control,
            rank,
            by,
            locate_step,
            limit,
            ended: AtomicBool::new(false),
            is_reported: AtomicBool::new(false),
            failure: OnceLock::new(),
            coordinator_silence_ms: AtomicU64::new(0),
        });
        let (sender, messages) = mpsc::channel();
        let listening = state.clone();
        // Without a thread the rank reads the socket itself where it waits, and publishes no heartbeat.
        let listener = match parallel::spawn_detached(move || listening.listen_for_messages(&sender)) {
            Ok(thread) => LinkListener { messages: Some(messages), thread: Some(thread) },
            Err(_) => LinkListener::default(),
        };
        CoordinatorLink { state, listener: Mutex::new(listener), opening: Mutex::new(opening) }
    }

    /// Sends the identity of this rank; returns when all ranks have agreed on it.
    pub fn agree_on_identity(&self, identity: RankIdentity, settings: &[JoinTerm]) -> Result<()> {
        tracing::debug!(target: "symmc::join", "comparing plan and settings with those of all ranks");
        let mut task = self.exchange_answer(RankAnswer::Hello, &RankMessage::Hello(identity))?;
        if task == JoinTask::Digest {
            let digests = settings.iter().filter_map(|term| term.digest().transpose());
            task = self.exchange_answer(
                RankAnswer::Digests,
                &RankMessage::Digests(digests.collect::<Result<_, _>>()?),
            )?;
        }
        expect_task(JoinTask::Load, task)
    }

    /// Notifies the coordinator that this rank is ready; returns when all ranks are. Fails if a rank failed
    /// before, or the coordinator is gone or stuck.
    pub fn start(&self) -> Result<()> {
        tracing::debug!(target: "symmc::join", "ready, waiting until all ranks are");
        expect_task(JoinTask::Run, self.exchange_answer(RankAnswer::Ready, &RankMessage::Ready)?)
    }

    /// Sends an answer, and waits for the next task.
    fn exchange_answer(&self, answer: RankAnswer, message: &RankMessage) -> Result<JoinTask> {
        let mut opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        opening.record_answer(answer);
        self.state.channel.send(message)?;
        opening.await_task(&mut || match self.next_message()? {
            Ok(None) => Some(Err(self.state.coordinator_gone_error())),
            other => Some(other),
        })
    }

    /// Sends the coordinator the result of this rank, and waits for the result of all ranks.
    pub fn report_result(&self, result: Result<()>) -> Result<()> {
        match result {
            Ok(()) => self.report_done().and_then(|()| {
                let limit = self.state.limit;
                let verdict = self.await_verdict(limit + PATIENCE, limit.max(SHORTEST_SILENCE));
                verdict.unwrap_or_else(|| Err(self.coordinator_stuck_error()))
            }),
            Err(error) => Err(self.report_failure(error)),
        }
    }

    /// Sends the rank's answer to the launcher.
    pub fn send_answer(&self, answer: &str) -> Result<()> {
        let mut remaining = answer;
        while !remaining.is_empty() {
            let split = (1..=ANSWER_PIECE.min(remaining.len()))
                .rev()
                .find(|&split| remaining.is_char_boundary(split));
            let (piece, after) = remaining.split_at(split.unwrap_or(remaining.len()));
            self.state.channel.send(&RankMessage::Answer(piece.into()))?;
            remaining = after;
        }
        Ok(())
    }

    pub fn report_done(&self) -> Result<()> {
        self.state.is_reported.store(true, Ordering::Relaxed);
        self.state.channel.send(&RankMessage::Done)
    }

    /// Reports a failure to the coordinator. Returns the error that explains it best, the same for every
    /// call.
    pub fn report_failure(&self, error: RunError) -> RunError {
        self.state.failure.get_or_init(|| self.report_first_failure(error)).clone()
    }

    fn report_first_failure(&self, error: RunError) -> RunError {
        let error = error.reported_by(self.state.rank);
        let _span = enter_rank_span(self.state.rank);
        tracing::warn!(target: "symmc::run", %error, "reporting a failure to all ranks");
        if !self.state.is_reported.swap(true, Ordering::Relaxed) {
            // The coordinator may have ended the run itself; then it no longer reads messages.
            let _ = self.state.channel.send(&RankMessage::Failed(error.clone()));
        }
        let is_foreign = error.is_consequence() && error.reporter() != Some(self.state.rank);
        match is_foreign.then(|| self.await_verdict(EXPLAINING, SHORTEST_SILENCE)).flatten() {
            Some(Err(verdict)) if !matches!(verdict.cause(), RunError::Aborted { .. }) => verdict,
            _ => error,
        }
    }

    fn lock_listener(&self) -> MutexGuard<'_, LinkListener> {
        self.listener.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next message, if it comes within a tick: from the listening thread, or without one from the
    /// socket.
    fn next_message(&self) -> Option<ReceivedMessage> {
        if let Some(messages) = &self.lock_listener().messages {
            return match messages.recv_timeout(TICK) {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Disconnected) => Some(Ok(None)),
                Err(RecvTimeoutError::Timeout) => None,
            };
        }
        let channel = &self.state.channel;
        match channel.wait_readable(Some(Instant::now() + TICK)) {
            Ok(true) => Some(channel.receive(Some(Instant::now()))),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// Waits for the coordinator's verdict, which comes when all ranks have ended. `None` if no rank made
    /// progress for `timeout`, or the coordinator has shown no heartbeat for `max_silence`.
    fn await_verdict(&self, timeout: Duration, max_silence: Duration) -> Option<RunVerdict> {
        let control = &self.state.control;
        let mut clock = ActiveClock::start();
        let mut observer = Observer::new(control);
        let mut last_beats = all_beats(control);
        let mut since = clock.now();
        loop {
            if let Some(message) = self.next_message() {
                return Some(self.state.verdict_of(message));
            }
            let now = clock.now();
            let beats = all_beats(control);
            observer.sample_heartbeats(now);
            let silence = observer.coordinator_silence(now).unwrap_or_default();
            if silence.max(self.state.coordinator_silence()) >= max_silence {
                return None;
            }
            if beats != last_beats {
                last_beats = beats;
                since = now;
            }
            if now.saturating_sub(since) > timeout {
                return None;
            }
        }
    }

    fn coordinator_stuck_error(&self) -> RunError {
        let CoordinatorLinkState { control, rank, by, limit, .. } = &*self.state;
        let error = by.stuck_error(*rank, "as coordinator after the last step", *limit);
        control.abort(*rank, &error);
        error
    }
}

fn all_beats(control: &ControlSegment) -> Vec<u64> {
    (0..control.ranks()).map(|rank| control.progress(rank).beats).collect()
}

impl Drop for CoordinatorLink {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::Relaxed);
        // The listener wakes up; messages that were sent before still arrive.
        self.state.channel.close();
        if let Some(thread) = self.lock_listener().thread.take() {
            // A thread that panicked has no result.
            let _ = thread.join();
        }
    }
}

impl CoordinatorLinkState {
    /// Reads messages and publishes heartbeats until the verdict. Ends the run if the verdict is an error or
    /// cannot arrive any more.
    fn listen_for_messages(&self, messages: &mpsc::Sender<ReceivedMessage>) {
        let mut clock = ActiveClock::start();
        let mut observer = Observer::new(&self.control);
        while !self.ended.load(Ordering::Relaxed) {
            self.control.publish_heartbeat(self.rank);
            let now = clock.now();
            observer.sample_heartbeats(now);
            let silence = observer.coordinator_silence(now).unwrap_or_default();
            self.coordinator_silence_ms.store(silence.as_millis() as u64, Ordering::Relaxed);
            let message = match self.channel.wait_readable(Some(Instant::now() + TICK)) {
                Ok(true) => self.channel.receive::<CoordinatorMessage>(Some(Instant::now())),
                Ok(false) => continue,
                Err(error) => Err(error),
            };
            if self.ended.load(Ordering::Relaxed) {
                return;
            }
            let continues = matches!(
                message,
                Ok(Some(
                    CoordinatorMessage::Digest | CoordinatorMessage::Proceed | CoordinatorMessage::Start
                ))
            );
            if !continues && let Err(error) = self.verdict_of(message.clone()) {
                self.control.abort(self.rank, &error);
            }
            // The rank may have ended without waiting for the message.
            let _ = messages.send(message);
            if !continues {
                return;
            }
        }
    }

    fn coordinator_silence(&self) -> Duration {
        Duration::from_millis(self.coordinator_silence_ms.load(Ordering::Relaxed))
    }

    fn verdict_of(&self, message: ReceivedMessage) -> RunVerdict {
        match message? {
            Some(CoordinatorMessage::Verdict(None)) => Ok(()),
            Some(CoordinatorMessage::Verdict(Some(error))) => Err(error),
            None => Err(self.coordinator_gone_error()),
            other => Err(unexpected_message("a verdict", &other)),
        }
    }

    /// The error of a coordinating process that exited before its verdict. If the run had already ended, its
    /// reason is returned.
    fn coordinator_gone_error(&self) -> RunError {
        let reason = self.control.abort_reason();
        if let Some(reason) = reason.filter(|reason| !matches!(reason.cause(), RunError::Aborted { .. })) {
            return reason;
        }
        if self.by == CoordinatedBy::Launcher {
            return RunError::Aborted { rank: self.rank, reason: "the launcher of the ranks is gone".into() };
        }
        // A process that has closed its session may exit.
        if let Some(runs) = self.control.runs_before_close(0) {
            return RunError::session_closed(0, runs).reported_by(self.rank);
        }
        let how = "its process, which coordinated the run, is gone";
        death_error(&self.locate_step, &self.control, 0, Some(how.into())).reported_by(self.rank)
    }
}

fn expect_task(expected: JoinTask, found: JoinTask) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(RunError::Protocol { rank: 0, detail: format!("expected to {expected:?}, found {found:?}") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::SharedRunMemory;

    const LIMIT: Duration = Duration::from_secs(60);

    /// The coordinator is in the process of rank 0, which is stopped. Rank 1 has the error of rank 2, and does not
    /// wait for an explanation.
    #[test]
    fn expects_no_explanation_of_a_stopped_coordinator() {
        let domain = SharedRunMemory::create(3, 1, 64, 0).expect("shared memory");
        let control = domain.control.clone();
        control.publish_coordinator_heartbeat();
        let (_theirs, ours) = Channel::connected_pair();
        let opening = OpeningRank::new(1, CoordinatedBy::Rank0, LIMIT, Duration::ZERO);
        let config = CoordinatorLinkConfig {
            control,
            rank: 1,
            by: CoordinatedBy::Rank0,
            locate_step: LocateStep::default(),
            limit: LIMIT,
        };
        let link = CoordinatorLink::new(ours, config, opening);
        let started = Instant::now();
        assert!(link.await_verdict(LIMIT, SHORTEST_SILENCE).is_none());
        // The listening thread counts the silence from its beginning, so a later failure waits for nothing.
        while link.state.coordinator_silence() < SHORTEST_SILENCE && started.elapsed() < LIMIT {
            std::thread::sleep(TICK);
        }
        assert!(started.elapsed() < LIMIT, "the silence of the coordinator was not counted");
        let stuck = RunError::Stuck { rank: 0, at: "in run 3".into(), limit_ms: 5 }.reported_by(2);
        assert_eq!(link.report_failure(stuck.clone()), stuck);
    }
}
