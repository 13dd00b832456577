//! A rank's link to the coordinator of its run, from the comparison of plans to the verdict.
//!
//! While the link is open a thread of its own reads the control socket, so that a run that ends elsewhere ends this
//! rank's waits early, and shows the rank's heartbeat. A run that ends on this rank is reported through the link.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use symmc_support::parallel;

use crate::channel::{Channel, FromRank, Identity, ToRank};
use crate::control::Control;
use crate::coordinator::death;
use crate::error::{Result, RunError};
use crate::heartbeat::{ActiveClock, Observer, SHORTEST_SILENCE, TICK};
use crate::joining::{Answer, Task};
use crate::opening::{CoordinatedBy, Opening, Received, unexpected};
use crate::steps::LocateStep;
use crate::terms::Term;
use crate::trace::enter_rank_span;

/// The coordinator gives up on ranks earlier than this after the limit.
const PATIENCE: Duration = Duration::from_secs(5);
/// The coordinator explains a run that was ended earlier than this, if it can.
const EXPLAINING: Duration = Duration::from_secs(1);

/// Bytes of an answer that one message carries. Quotes in it are escaped there.
const ANSWER_PIECE: usize = 32 << 10;

/// How a run ended for all ranks.
type Verdict = Result<()>;

/// Where the rank of a link is, and who coordinates its run.
pub(crate) struct LinkConfig {
    pub control: Control,
    pub rank: u32,
    pub by: CoordinatedBy,
    pub locate_step: LocateStep,
    pub limit: Duration,
}

#[derive(Debug)]
pub(crate) struct Link {
    state: Arc<LinkState>,
    listener: Mutex<Listener>,
    opening: Mutex<Opening>,
}

#[derive(Debug)]
struct LinkState {
    channel: Channel,
    control: Control,
    rank: u32,
    by: CoordinatedBy,
    locate_step: LocateStep,
    limit: Duration,
    /// Whether the rank waits for no message any more.
    ended: AtomicBool,
    /// Whether the coordinator was sent how the run ended on this rank.
    is_reported: AtomicBool,
    /// The error that explains the failure of this rank best, once it failed.
    failure: OnceLock<RunError>,
}

#[derive(Debug, Default)]
struct Listener {
    /// From the thread, if there is one.
    messages: Option<mpsc::Receiver<Received>>,
    thread: Option<JoinHandle<()>>,
}

impl Link {
    pub fn new(channel: Channel, config: LinkConfig, mut opening: Opening) -> Link {
        let LinkConfig { control, rank, by, locate_step, limit } = config;
        opening.watch(&control);
        let state = Arc::new(LinkState {
            channel,
            control,
            rank,
            by,
            locate_step,
            limit,
            ended: AtomicBool::new(false),
            is_reported: AtomicBool::new(false),
            failure: OnceLock::new(),
        });
        let (sender, messages) = mpsc::channel();
        let listening = state.clone();
        // Without a thread the rank reads the socket itself where it waits, and shows no heartbeat.
        let listener = match parallel::spawn(move || listening.listen(&sender)) {
            Ok(thread) => Listener { messages: Some(messages), thread: Some(thread) },
            Err(_) => Listener::default(),
        };
        Link { state, listener: Mutex::new(listener), opening: Mutex::new(opening) }
    }

    /// Says what this rank runs; returns when all ranks run the same.
    pub fn agree(&self, identity: Identity, settings: &[Term]) -> Result<()> {
        tracing::debug!(target: "symmc::join", "comparing plan and settings with those of all ranks");
        let mut task = self.answer(Answer::Hello, &FromRank::Hello(identity))?;
        if task == Task::Digest {
            let digests = settings.iter().filter_map(|term| term.digest().transpose());
            task = self.answer(Answer::Digests, &FromRank::Digests(digests.collect::<Result<_, _>>()?))?;
        }
        expect_task(Task::Load, task)
    }

    /// Says that this rank is ready; returns when all ranks are. Fails if a rank failed before, or the coordinator is
    /// gone or stuck.
    pub fn start(&self) -> Result<()> {
        tracing::debug!(target: "symmc::join", "ready, waiting until all ranks are");
        expect_task(Task::Run, self.answer(Answer::Ready, &FromRank::Ready)?)
    }

    /// Sends an answer, and waits for what to do next.
    fn answer(&self, answer: Answer, message: &FromRank) -> Result<Task> {
        let mut opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        opening.answers(answer);
        self.state.channel.send(message)?;
        opening.await_task(&mut || match self.next_message()? {
            Ok(None) => Some(Err(self.state.coordinator_gone())),
            other => Some(other),
        })
    }

    /// Tells the coordinator how the run ended on this rank, and waits for how it ended for all.
    pub fn finish(&self, result: Result<()>) -> Result<()> {
        match result {
            Ok(()) => self.report_done().and_then(|()| {
                let patience = self.state.limit + PATIENCE;
                self.await_verdict(patience).unwrap_or_else(|| Err(self.coordinator_stuck()))
            }),
            Err(error) => Err(self.report(error)),
        }
    }

    /// Sends what the rank found to the launcher.
    pub fn send_answer(&self, answer: &str) -> Result<()> {
        let mut rest = answer;
        while !rest.is_empty() {
            let at = (1..=ANSWER_PIECE.min(rest.len())).rev().find(|&at| rest.is_char_boundary(at));
            let (piece, more) = rest.split_at(at.unwrap_or(rest.len()));
            self.state.channel.send(&FromRank::Answer(piece.into()))?;
            rest = more;
        }
        Ok(())
    }

    pub fn report_done(&self) -> Result<()> {
        self.state.is_reported.store(true, Ordering::Relaxed);
        self.state.channel.send(&FromRank::Done)
    }

    /// Reports a failure to the coordinator; the error that explains it best, the same for every call.
    pub fn report(&self, error: RunError) -> RunError {
        self.state.failure.get_or_init(|| self.report_first(error)).clone()
    }

    fn report_first(&self, error: RunError) -> RunError {
        let error = error.reported_by(self.state.rank);
        let _span = enter_rank_span(self.state.rank);
        tracing::warn!(target: "symmc::run", %error, "reporting a failure to all ranks");
        if !self.state.is_reported.swap(true, Ordering::Relaxed) {
            // The coordinator may have ended the run itself; then it does not listen any more.
            let _ = self.state.channel.send(&FromRank::Failed(error.clone()));
        }
        let is_foreign = error.is_consequence() && error.reporter() != Some(self.state.rank);
        match is_foreign.then(|| self.await_verdict(EXPLAINING)).flatten() {
            Some(Err(verdict)) if !matches!(verdict.cause(), RunError::Aborted { .. }) => verdict,
            _ => error,
        }
    }

    fn listener(&self) -> MutexGuard<'_, Listener> {
        self.listener.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next message, if it comes within a tick: from the thread that listens, or else from the socket.
    fn next_message(&self) -> Option<Received> {
        if let Some(messages) = &self.listener().messages {
            return match messages.recv_timeout(TICK) {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Disconnected) => Some(Ok(None)),
                Err(RecvTimeoutError::Timeout) => None,
            };
        }
        let channel = &self.state.channel;
        match channel.readable(Some(Instant::now() + TICK)) {
            Ok(true) => Some(channel.receive(Some(Instant::now()))),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// The coordinator's verdict, which comes when all ranks have ended; `None` if none made progress for that long, or the
    /// coordinator shows no heartbeat.
    fn await_verdict(&self, patience: Duration) -> Option<Verdict> {
        let control = &self.state.control;
        let beats = || (0..control.ranks()).map(|r| control.progress(r).beats).collect::<Vec<_>>();
        let (mut clock, mut observer) = (ActiveClock::start(), Observer::new(control));
        let (mut last, mut since) = (beats(), clock.now());
        loop {
            if let Some(message) = self.next_message() {
                return Some(self.state.verdict_of(message));
            }
            let (now, found) = (clock.now(), beats());
            observer.sample(now);
            let silence = observer.silence_of_coordinator(now);
            if silence.is_some_and(|silence| silence >= self.state.limit.max(SHORTEST_SILENCE)) {
                return None;
            }
            if found != last {
                (last, since) = (found, now);
            }
            if now.saturating_sub(since) > patience {
                return None;
            }
        }
    }

    fn coordinator_stuck(&self) -> RunError {
        let LinkState { control, rank, by, limit, .. } = &*self.state;
        let error = by.stuck(*rank, "as coordinator after the last step", *limit);
        control.abort(*rank, &error);
        error
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::Relaxed);
        // The listener wakes up; what was sent before arrives.
        self.state.channel.close();
        if let Some(thread) = self.listener().thread.take() {
            // A thread that panicked has nothing more to say.
            let _ = thread.join();
        }
    }
}

impl LinkState {
    /// Reads messages and shows heartbeats, until the verdict; ends the run if that is bad or cannot come any more.
    fn listen(&self, messages: &mpsc::Sender<Received>) {
        while !self.ended.load(Ordering::Relaxed) {
            self.control.publish_heartbeat(self.rank);
            let message = match self.channel.readable(Some(Instant::now() + TICK)) {
                Ok(true) => self.channel.receive::<ToRank>(Some(Instant::now())),
                Ok(false) => continue,
                Err(error) => Err(error),
            };
            if self.ended.load(Ordering::Relaxed) {
                return;
            }
            let goes_on = matches!(message, Ok(Some(ToRank::Digest | ToRank::Proceed | ToRank::Start)));
            if !goes_on && let Err(error) = self.verdict_of(message.clone()) {
                self.control.abort(self.rank, &error);
            }
            // The rank may have ended without waiting for it.
            let _ = messages.send(message);
            if !goes_on {
                return;
            }
        }
    }

    fn verdict_of(&self, message: Received) -> Verdict {
        match message? {
            Some(ToRank::Verdict(None)) => Ok(()),
            Some(ToRank::Verdict(Some(error))) => Err(error),
            None => Err(self.coordinator_gone()),
            other => Err(unexpected("a verdict", &other)),
        }
    }

    /// The end of the process that coordinates the run, before it said how that ended. If the run had ended before, that is
    /// the reason.
    fn coordinator_gone(&self) -> RunError {
        let known = self.control.abort_reason();
        if let Some(reason) = known.filter(|reason| !matches!(reason.cause(), RunError::Aborted { .. })) {
            return reason;
        }
        if self.by == CoordinatedBy::Launcher {
            return RunError::Aborted { rank: self.rank, reason: "the launcher of the ranks is gone".into() };
        }
        // A process that has closed its session may end.
        if let Some(runs) = self.control.closed(0) {
            return RunError::closed(0, runs).reported_by(self.rank);
        }
        let how = "its process is gone, and with it what coordinated the run";
        death(&self.locate_step, &self.control, 0, Some(how.into())).reported_by(self.rank)
    }
}

fn expect_task(expected: Task, found: Task) -> Result<()> {
    match found == expected {
        true => Ok(()),
        false => {
            Err(RunError::Protocol { rank: 0, detail: format!("expected to {expected:?}, found {found:?}") })
        }
    }
}
