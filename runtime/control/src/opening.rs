//! A rank's wait for the coordinator while a run opens: feeds the machine of [`crate::joining`] from a control socket.

use std::time::Duration;

use crate::channel::ToRank;
use crate::control::Control;
use crate::error::{Result, RunError};
use crate::heartbeat::{ActiveClock, Observer};
use crate::joining::{Answer, Joining, Notice, Task, Timeouts};

/// What came on a control socket; `None` at its end.
pub(crate) type Received = Result<Option<ToRank>>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CoordinatedBy {
    /// That of rank 0.
    Rank0,
    /// A launcher that is no rank.
    Launcher,
}

impl CoordinatedBy {
    /// The error of `rank` when the coordinator has kept it waiting for this time.
    pub fn stuck(self, rank: u32, at: &str, waited: Duration) -> RunError {
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
pub(crate) struct Opening {
    machine: Joining,
    clock: ActiveClock,
    observer: Option<Observer>,
    rank: u32,
    by: CoordinatedBy,
}

impl Opening {
    /// A rank that joins now, and has waited for `waited` of its limit already.
    pub fn new(rank: u32, by: CoordinatedBy, limit: Duration, waited: Duration) -> Opening {
        let machine = Joining::new(Timeouts::new(limit), Duration::ZERO);
        Opening { machine, clock: ActiveClock::start_at(waited), observer: None, rank, by }
    }

    /// Watches the heartbeats in the shared memory from now on.
    pub fn watch(&mut self, control: &Control) {
        self.observer = Some(Observer::new(control));
    }

    pub fn answers(&mut self, answer: Answer) {
        self.machine.answers(answer, self.clock.now());
    }

    /// Waits for what the rank does next. `next` waits for a message for a [`TICK`](crate::heartbeat::TICK) at most.
    /// Fails if the run ended before, or the coordinator is gone or keeps the rank waiting.
    pub fn await_task(&mut self, next: &mut dyn FnMut() -> Option<Received>) -> Result<Task> {
        loop {
            if let Some(message) = next() {
                return self.take(message?);
            }
            self.expect_progress()?;
        }
    }

    /// What the rank does after this message.
    fn take(&self, message: Option<ToRank>) -> Result<Task> {
        let notice = match &message {
            Some(ToRank::Welcome(_)) => Notice::Welcome,
            Some(ToRank::Digest) => Notice::Digest,
            Some(ToRank::Proceed) => Notice::Proceed,
            Some(ToRank::Start) => Notice::Start,
            Some(ToRank::Verdict(Some(error))) => return Err(error.clone()),
            Some(ToRank::Verdict(None)) | None => return Err(unexpected("an order", &message)),
        };
        self.machine
            .task_after(notice)
            .ok_or_else(|| unexpected("what follows this rank's last answer", &message))
    }

    /// Takes a message that was read elsewhere, and after which the rank has this to do. Fails if the message cannot
    /// follow the rank's last answer.
    pub fn expect_task(&self, notice: Notice, task: Task) -> Result<()> {
        match self.machine.task_after(notice) {
            Some(found) if found == task => Ok(()),
            _ => Err(RunError::Protocol { rank: 0, detail: format!("did not expect {notice:?}") }),
        }
    }

    /// The error of a coordinator that kept the rank waiting for this time.
    pub fn stuck(&self, waited: Duration) -> RunError {
        let at = if self.observer.is_some() { "before the first step" } else { "while the ranks joined" };
        self.by.stuck(self.rank, at, waited)
    }

    /// Notices a coordinator that keeps the rank waiting.
    pub fn expect_progress(&mut self) -> Result<()> {
        let now = self.clock.now();
        let silence = self.observer.as_mut().and_then(|observer| {
            observer.sample(now);
            observer.silence_of_coordinator(now)
        });
        self.machine.overdue(now, silence).map_or(Ok(()), |waited| Err(self.stuck(waited)))
    }
}

/// A message that is not the one which was expected.
pub(crate) fn unexpected(expected: &str, found: &Option<ToRank>) -> RunError {
    let found = match found {
        Some(message) => format!("{message:?}"),
        None => "the end".into(),
    };
    RunError::Protocol { rank: 0, detail: format!("expected {expected}, found {found}") }
}
