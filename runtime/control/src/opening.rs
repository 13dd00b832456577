//! A rank's wait for the coordinator while a run opens: feeds the machine of [`crate::joining`] from a
//! control socket.

use std::time::Duration;

use crate::channel::CoordinatorMessage;
use crate::control::ControlSegment;
use crate::error::{Result, RunError};
use crate::heartbeat::{ActiveClock, Observer};
use crate::joining::{CoordinatorNotice, JoinTask, JoinTimeouts, RankAnswer, RankMachine};
use crate::process;

/// The result of reading a control socket; `None` at the end of the connection.
pub(crate) type ReceivedMessage = Result<Option<CoordinatorMessage>>;

/// The process that coordinates a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CoordinatedBy {
    /// The process of rank 0.
    Rank0,
    /// A launcher that is not a rank.
    Launcher,
}

impl CoordinatedBy {
    /// The error of `rank` when the coordinator has kept it waiting for this time.
    pub fn stuck_error(self, rank: u32, at: &str, waited: Duration) -> RunError {
        let limit_ms = waited.as_millis() as u64;
        match self {
            CoordinatedBy::Rank0 => RunError::Stuck { rank: 0, at: at.into(), limit_ms }.reported_by(rank),
            CoordinatedBy::Launcher => RunError::system(
                "the launcher of the ranks",
                format!("it made no progress for {limit_ms} ms {at}"),
            ),
        }
    }
}

#[derive(Debug)]
pub(crate) struct OpeningRank {
    machine: RankMachine,
    clock: ActiveClock,
    observer: Option<Observer>,
    /// The process of the coordinator, if it is known.
    coordinator: Option<u32>,
    /// The time at which this process was first seen stopped, while it is.
    stopped: Option<Duration>,
    rank: u32,
    by: CoordinatedBy,
}

impl OpeningRank {
    /// A rank that joins now, and has already waited for `waited` of its timeout.
    pub fn new(rank: u32, by: CoordinatedBy, limit: Duration, waited: Duration) -> OpeningRank {
        let machine = RankMachine::new(JoinTimeouts::new(limit), Duration::ZERO);
        let clock = ActiveClock::start_at(waited);
        OpeningRank { machine, clock, observer: None, coordinator: None, stopped: None, rank, by }
    }

    /// Watches whether the process of the coordinator is stopped, also before there is a heartbeat.
    pub fn watch_process(&mut self, coordinator: Option<u32>) {
        self.coordinator = coordinator;
    }

    /// Watches the heartbeats in the shared memory from now on.
    pub fn watch_heartbeats(&mut self, control: &ControlSegment) {
        self.observer = Some(Observer::new(control));
    }

    pub fn record_answer(&mut self, answer: RankAnswer) {
        self.machine.record_answer(answer, self.clock.now());
    }

    /// Waits for the next task of the rank. `next` waits for a message for at most a
    /// [`TICK`](crate::heartbeat::TICK). Fails if the run ended before, or the coordinator is gone or keeps
    /// the rank waiting.
    pub fn await_task(&mut self, next: &mut dyn FnMut() -> Option<ReceivedMessage>) -> Result<JoinTask> {
        loop {
            if let Some(message) = next() {
                return self.handle_message(message?);
            }
            self.expect_progress()?;
        }
    }

    /// The task of the rank after this message.
    fn handle_message(&self, message: Option<CoordinatorMessage>) -> Result<JoinTask> {
        let notice = match &message {
            Some(CoordinatorMessage::Welcome(_)) => CoordinatorNotice::Welcome,
            Some(CoordinatorMessage::Digest) => CoordinatorNotice::Digest,
            Some(CoordinatorMessage::Proceed) => CoordinatorNotice::Proceed,
            Some(CoordinatorMessage::Start) => CoordinatorNotice::Start,
            Some(CoordinatorMessage::Verdict(Some(error))) => return Err(error.clone()),
            Some(CoordinatorMessage::Verdict(None)) | None => {
                return Err(unexpected_message("a message that continues the joining", &message));
            }
        };
        self.machine
            .task_after(notice)
            .ok_or_else(|| unexpected_message("a message that follows this rank's last answer", &message))
    }

    /// Handles a notice that was read elsewhere, after which the rank has this task. Fails if the notice
    /// cannot follow the rank's last answer.
    pub fn expect_task(&self, notice: CoordinatorNotice, task: JoinTask) -> Result<()> {
        match self.machine.task_after(notice) {
            Some(received) if received == task => Ok(()),
            _ => Err(RunError::Protocol { rank: 0, detail: format!("unexpected message {notice:?}") }),
        }
    }

    /// The error of a coordinator that kept the rank waiting for this time.
    pub fn stuck_error(&self, waited: Duration) -> RunError {
        let location =
            if self.observer.is_some() { "before the first step" } else { "while the ranks joined" };
        self.by.stuck_error(self.rank, location, waited)
    }

    /// Fails if the coordinator keeps the rank waiting for too long.
    pub fn expect_progress(&mut self) -> Result<()> {
        let now = self.clock.now();
        let silence = self.coordinator_silence(now);
        self.machine.check_timeouts(now, silence).map_or(Ok(()), |waited| Err(self.stuck_error(waited)))
    }

    /// How long the coordinator has shown no heartbeat. If it never showed one, how long its process is stopped.
    fn coordinator_silence(&mut self, now: Duration) -> Option<Duration> {
        let silence = self.observer.as_mut().and_then(|observer| {
            observer.sample_heartbeats(now);
            observer.coordinator_silence(now)
        });
        if silence.is_some() {
            return silence;
        }
        let is_stopped = self.coordinator.is_some_and(process::is_stopped);
        self.stopped = is_stopped.then(|| self.stopped.unwrap_or(now));
        self.stopped.map(|since| now.saturating_sub(since))
    }
}

/// The error of a message that differs from the expected one.
pub(crate) fn unexpected_message(expected: &str, message: &Option<CoordinatorMessage>) -> RunError {
    let actual = match message {
        Some(message) => format!("{message:?}"),
        None => "the end of the connection".into(),
    };
    RunError::Protocol { rank: 0, detail: format!("expected {expected}, found {actual}") }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::time::Instant;

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A process that ends with the test, also if it is stopped.
    struct Sleeper(Child);

    impl Sleeper {
        fn start() -> Sleeper {
            Sleeper(Command::new("sleep").arg("600").spawn().expect("a process"))
        }

        /// Sends a signal, and waits until the process is stopped or runs.
        fn signal(&self, signal: Signal, is_stopped: bool) {
            kill(Pid::from_raw(self.0.id() as i32), signal).expect("the process exists");
            let started = Instant::now();
            while process::is_stopped(self.0.id()) != is_stopped {
                assert!(started.elapsed() < 60 * SECOND, "the process does not follow {signal}");
                std::thread::yield_now();
            }
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            // Without a process there is nothing to end.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn counts_the_time_in_which_the_coordinator_is_stopped() {
        let sleeper = Sleeper::start();
        let mut opening = OpeningRank::new(1, CoordinatedBy::Rank0, 60 * SECOND, Duration::ZERO);
        opening.watch_process(Some(sleeper.0.id()));
        assert_eq!(opening.coordinator_silence(SECOND), None);
        for _ in 0..2 {
            sleeper.signal(Signal::SIGSTOP, true);
            assert_eq!(opening.coordinator_silence(2 * SECOND), Some(Duration::ZERO));
            assert_eq!(opening.coordinator_silence(5 * SECOND), Some(3 * SECOND));
            sleeper.signal(Signal::SIGCONT, false);
            assert_eq!(opening.coordinator_silence(6 * SECOND), None);
        }
        let pid = sleeper.0.id();
        drop(sleeper);
        assert!(!process::is_stopped(pid));
    }
}
