//! The joining protocol as two state machines, without sockets, threads or clocks: the coordinator's and a rank's.
//!
//! A run opens in stages. In each stage every rank owes the coordinator one answer, and the next stage begins when all have
//! answered:
//!
//! | stage | sent to all ranks when it begins | answer of each rank |
//! |---|---|---|
//! | gathering | nothing | `Join` |
//! | comparing | `Welcome`, with the shared memory | `Hello`, with its plan and settings |
//! | digesting, if contents may differ | `Digest` | `Digests` |
//! | loading | `Proceed` | `Ready`, its memory is loaded |
//! | started | `Start` | |
//!
//! Callers feed messages, the time and the silence of others to a machine, and carry out its orders. A time is a duration
//! since any fixed moment of the participant's own clock. Silence is how long another process has shown no heartbeat
//! ([`crate::heartbeat`]), where that is known.
//!
//! Every wait has a timeout, and a participant that waits too long blames only a participant that owes something:
//! - The coordinator blames ranks that have not answered in the present stage: all of them while gathering, later the one
//!   that was silent for the limit. A rank that is alive and slow may take longer ([`Timeouts::starting`]), since it works
//!   for itself meanwhile.
//! - A rank blames only the coordinator, and only after the coordinator had the time to blame another rank.
//!
//! The module `model` explores all orders of stops and messages of two and three ranks.

#[cfg(test)]
mod model;

use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Timeouts {
    /// The requested limit, for ranks that do not come.
    pub limit: Duration,
    /// The limit for silence: the same, unless that is too short to tell a stopped process from a busy machine.
    pub quiet: Duration,
    /// A rank that is alive may take this long for one answer, if the limit is less.
    pub starting: Duration,
    /// The same while contents are read.
    pub digesting: Duration,
    /// How much longer a rank waits for the coordinator's explanation.
    pub answer: Duration,
}

impl Timeouts {
    pub fn new(limit: Duration) -> Timeouts {
        let [starting, digesting, answer] = [10_000, 600_000, 1_000].map(Duration::from_millis);
        Timeouts { limit, quiet: limit.max(answer), starting, digesting, answer }
    }

    /// The longest time that one stage may take.
    pub fn longest(&self, stage: Stage) -> Duration {
        match stage {
            Stage::Digesting => self.limit.max(self.digesting),
            Stage::Comparing | Stage::Loading => self.limit.max(self.starting),
            Stage::Gathering | Stage::Started => self.limit,
        }
    }
}

/// Stages of a run that opens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Stage {
    /// Ranks connect.
    Gathering,
    /// Ranks map the shared memory and send their plan and settings.
    Comparing,
    Digesting,
    Loading,
    Started,
}

/// What a rank owes the coordinator in each stage.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Answer {
    /// In [`Stage::Gathering`].
    Join,
    /// In [`Stage::Comparing`].
    Hello,
    /// In [`Stage::Digesting`].
    Digests,
    /// In [`Stage::Loading`].
    Ready,
}

impl Answer {
    fn stage(self) -> Stage {
        match self {
            Answer::Join => Stage::Gathering,
            Answer::Hello => Stage::Comparing,
            Answer::Digests => Stage::Digesting,
            Answer::Ready => Stage::Loading,
        }
    }
}

/// What the coordinator does once all ranks have answered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Order {
    Welcome,
    /// Compare what the ranks run, and call [`Coordinating::compared`].
    Compare,
    Start,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum AnswerEffect {
    /// The rank owes no such answer, which is a fault of the rank.
    Unexpected,
    /// Other ranks owe theirs.
    Waiting,
    /// All ranks have answered.
    Complete(Order),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Fault {
    Absent(Vec<u32>),
    /// This rank owes an answer, and showed no heartbeat or took too long, for this time.
    Late(u32, Duration),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Coordinating {
    timeouts: Timeouts,
    stage: Stage,
    since: Duration,
    until: Duration,
    /// By rank, whether it has answered in this stage.
    answered: Vec<bool>,
}

impl Coordinating {
    pub fn new(ranks: u32, timeouts: Timeouts, now: Duration) -> Coordinating {
        let answered = vec![false; ranks as usize];
        Coordinating { timeouts, stage: Stage::Gathering, since: now, until: now + timeouts.limit, answered }
    }

    /// Begins with ranks that have come, and were sent `Welcome` now.
    pub fn welcomed(ranks: u32, timeouts: Timeouts, now: Duration) -> Coordinating {
        let mut machine = Coordinating::new(ranks, timeouts, now);
        machine.enter(Stage::Comparing, now);
        machine
    }

    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Ends gathering at `until`, if that is earlier: a rank waits no longer.
    pub fn hasten(&mut self, until: Duration) {
        self.until = self.until.min(until);
    }

    pub fn owing(&self) -> Vec<u32> {
        let numbered = (0..).zip(&self.answered);
        numbered.filter(|(_, answered)| !**answered).map(|(rank, _)| rank).collect()
    }

    /// Takes a rank's answer, and enters the next stage once all have answered.
    pub fn answer(&mut self, rank: u32, answer: Answer, now: Duration) -> AnswerEffect {
        let is_in_stage = answer.stage() == self.stage;
        let Some(answered) =
            self.answered.get_mut(rank as usize).filter(|answered| is_in_stage && !**answered)
        else {
            return AnswerEffect::Unexpected;
        };
        *answered = true;
        if self.answered.contains(&false) {
            return AnswerEffect::Waiting;
        }
        AnswerEffect::Complete(match answer {
            Answer::Join => {
                self.enter(Stage::Comparing, now);
                Order::Welcome
            }
            Answer::Hello | Answer::Digests => Order::Compare,
            Answer::Ready => {
                self.enter(Stage::Started, now);
                Order::Start
            }
        })
    }

    /// Enters the stage after [`Order::Compare`]: digesting or loading.
    pub fn compared(&mut self, wants_digests: bool, now: Duration) {
        self.enter(if wants_digests { Stage::Digesting } else { Stage::Loading }, now);
    }

    /// What ends the run now, if something does. `silence` says how long a rank has shown no heartbeat, where that is
    /// known.
    pub fn overdue(&self, now: Duration, silence: &dyn Fn(u32) -> Option<Duration>) -> Option<Fault> {
        let in_stage = now.saturating_sub(self.since);
        match self.stage {
            Stage::Started => None,
            Stage::Gathering => (now >= self.until).then(|| Fault::Absent(self.owing())),
            stage => {
                let silent_for = |rank: &u32| silence(*rank).unwrap_or(in_stage);
                let owing = self.owing();
                let quietest = owing.iter().copied().max_by_key(silent_for)?;
                if silent_for(&quietest) >= self.timeouts.quiet {
                    return Some(Fault::Late(quietest, self.timeouts.quiet));
                }
                let longest = self.timeouts.longest(stage);
                (in_stage >= longest).then_some(Fault::Late(quietest, longest))
            }
        }
    }

    fn enter(&mut self, stage: Stage, now: Duration) {
        self.stage = stage;
        self.since = now;
        self.answered.fill(false);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Notice {
    Welcome,
    /// Digests are wanted.
    Digest,
    /// All ranks run the same.
    Proceed,
    /// All ranks are ready.
    Start,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Task {
    /// Map the shared memory and send `Hello`.
    Greet,
    /// Read the contents and send `Digests`.
    Digest,
    /// Load the memory and send `Ready`.
    Load,
    Run,
}

/// A rank's machine.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Joining {
    timeouts: Timeouts,
    sent: Answer,
    since: Duration,
}

impl Joining {
    /// A rank that sends `Join` now.
    pub fn new(timeouts: Timeouts, now: Duration) -> Joining {
        Joining { timeouts, sent: Answer::Join, since: now }
    }

    /// Notes that the rank sends an answer now.
    pub fn answers(&mut self, answer: Answer, now: Duration) {
        self.sent = answer;
        self.since = now;
    }

    /// What the rank does after a message; `None` if the message is not one that can follow its last answer.
    pub fn task_after(&self, notice: Notice) -> Option<Task> {
        match (self.sent, notice) {
            (Answer::Join, Notice::Welcome) => Some(Task::Greet),
            (Answer::Hello, Notice::Digest) => Some(Task::Digest),
            (Answer::Hello | Answer::Digests, Notice::Proceed) => Some(Task::Load),
            (Answer::Ready, Notice::Start) => Some(Task::Run),
            _ => None,
        }
    }

    /// For how long the coordinator has kept the rank waiting, if that is too long. `silence` says how long the coordinator has
    /// shown no heartbeat, where that is known.
    pub fn overdue(&self, now: Duration, silence: Option<Duration>) -> Option<Duration> {
        let Timeouts { limit, quiet, answer, .. } = self.timeouts;
        let waited = now.saturating_sub(self.since);
        let longest = self.timeouts.longest(self.sent.stage());
        match (self.sent, silence) {
            // A coordinator that is alive explains which rank it waits for.
            (Answer::Join, _) if waited >= limit + answer => Some(limit),
            (_, None) if waited >= quiet + answer => Some(quiet),
            (_, Some(silence)) if silence >= quiet => Some(quiet),
            _ => (waited >= longest + answer).then_some(longest),
        }
    }
}
