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
pub(crate) struct JoinTimeouts {
    /// The requested limit, for ranks that do not come.
    pub limit: Duration,
    /// The limit for silence: the same, unless that is too short to tell a stopped process from a busy machine.
    pub silence_limit: Duration,
    /// A rank that is alive may take this long for one answer, if the limit is less.
    pub answer_limit: Duration,
    /// The same while contents are read.
    pub digest_limit: Duration,
    /// How much longer a rank waits for the coordinator's explanation.
    pub explanation_grace: Duration,
}

impl JoinTimeouts {
    pub fn new(limit: Duration) -> JoinTimeouts {
        let [starting, digesting, answer] = [10_000, 600_000, 1_000].map(Duration::from_millis);
        JoinTimeouts {
            limit,
            silence_limit: limit.max(answer),
            answer_limit: starting,
            digest_limit: digesting,
            explanation_grace: answer,
        }
    }

    /// The longest time that one stage may take.
    pub fn stage_timeout(&self, stage: JoinStage) -> Duration {
        match stage {
            JoinStage::Digesting => self.limit.max(self.digest_limit),
            JoinStage::Comparing | JoinStage::Loading => self.limit.max(self.answer_limit),
            JoinStage::Gathering | JoinStage::Started => self.limit,
        }
    }
}

/// Stages of a run that opens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum JoinStage {
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
pub(crate) enum RankAnswer {
    /// In [`Stage::Gathering`].
    Join,
    /// In [`Stage::Comparing`].
    Hello,
    /// In [`Stage::Digesting`].
    Digests,
    /// In [`Stage::Loading`].
    Ready,
}

impl RankAnswer {
    fn stage(self) -> JoinStage {
        match self {
            RankAnswer::Join => JoinStage::Gathering,
            RankAnswer::Hello => JoinStage::Comparing,
            RankAnswer::Digests => JoinStage::Digesting,
            RankAnswer::Ready => JoinStage::Loading,
        }
    }
}

/// What the coordinator does once all ranks have answered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum CoordinatorOrder {
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
    Complete(CoordinatorOrder),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum JoinFault {
    Absent(Vec<u32>),
    /// This rank owes an answer, and showed no heartbeat or took too long, for this time.
    Late(u32, Duration),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct CoordinatorMachine {
    timeouts: JoinTimeouts,
    stage: JoinStage,
    stage_start: Duration,
    until: Duration,
    /// By rank, whether it has answered in this stage.
    answered: Vec<bool>,
}

impl CoordinatorMachine {
    pub fn new(ranks: u32, timeouts: JoinTimeouts, now: Duration) -> CoordinatorMachine {
        let answered = vec![false; ranks as usize];
        CoordinatorMachine {
            timeouts,
            stage: JoinStage::Gathering,
            stage_start: now,
            until: now + timeouts.limit,
            answered,
        }
    }

    /// Begins with ranks that have come, and were sent `Welcome` now.
    pub fn after_welcome(ranks: u32, timeouts: JoinTimeouts, now: Duration) -> CoordinatorMachine {
        let mut machine = CoordinatorMachine::new(ranks, timeouts, now);
        machine.enter_stage(JoinStage::Comparing, now);
        machine
    }

    pub fn stage(&self) -> JoinStage {
        self.stage
    }

    /// Ends gathering at `until`, if that is earlier: a rank waits no longer.
    pub fn shorten_gathering(&mut self, until: Duration) {
        self.until = self.until.min(until);
    }

    pub fn owing_ranks(&self) -> Vec<u32> {
        let numbered = (0..).zip(&self.answered);
        numbered.filter(|(_, answered)| !**answered).map(|(rank, _)| rank).collect()
    }

    /// Takes a rank's answer, and enters the next stage once all have answered.
    pub fn accept_answer(&mut self, rank: u32, answer: RankAnswer, now: Duration) -> AnswerEffect {
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
            RankAnswer::Join => {
                self.enter_stage(JoinStage::Comparing, now);
                CoordinatorOrder::Welcome
            }
            RankAnswer::Hello | RankAnswer::Digests => CoordinatorOrder::Compare,
            RankAnswer::Ready => {
                self.enter_stage(JoinStage::Started, now);
                CoordinatorOrder::Start
            }
        })
    }

    /// Enters the stage after [`Order::Compare`]: digesting or loading.
    pub fn finish_comparison(&mut self, wants_digests: bool, now: Duration) {
        self.enter_stage(if wants_digests { JoinStage::Digesting } else { JoinStage::Loading }, now);
    }

    /// What ends the run now, if something does. `silence` says how long a rank has shown no heartbeat, where that is
    /// known.
    pub fn check_timeouts(
        &self,
        now: Duration,
        silence: &dyn Fn(u32) -> Option<Duration>,
    ) -> Option<JoinFault> {
        let in_stage = now.saturating_sub(self.stage_start);
        match self.stage {
            JoinStage::Started => None,
            JoinStage::Gathering => (now >= self.until).then(|| JoinFault::Absent(self.owing_ranks())),
            stage => {
                let silent_for = |rank: &u32| silence(*rank).unwrap_or(in_stage);
                let owing = self.owing_ranks();
                let quietest = owing.iter().copied().max_by_key(silent_for)?;
                if silent_for(&quietest) >= self.timeouts.silence_limit {
                    return Some(JoinFault::Late(quietest, self.timeouts.silence_limit));
                }
                let longest = self.timeouts.stage_timeout(stage);
                (in_stage >= longest).then_some(JoinFault::Late(quietest, longest))
            }
        }
    }

    fn enter_stage(&mut self, stage: JoinStage, now: Duration) {
        self.stage = stage;
        self.stage_start = now;
        self.answered.fill(false);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum CoordinatorNotice {
    Welcome,
    /// Digests are wanted.
    Digest,
    /// All ranks run the same.
    Proceed,
    /// All ranks are ready.
    Start,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum JoinTask {
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
pub(crate) struct RankMachine {
    timeouts: JoinTimeouts,
    last_answer: RankAnswer,
    answer_time: Duration,
}

impl RankMachine {
    /// A rank that sends `Join` now.
    pub fn new(timeouts: JoinTimeouts, now: Duration) -> RankMachine {
        RankMachine { timeouts, last_answer: RankAnswer::Join, answer_time: now }
    }

    /// Notes that the rank sends an answer now.
    pub fn record_answer(&mut self, answer: RankAnswer, now: Duration) {
        self.last_answer = answer;
        self.answer_time = now;
    }

    /// What the rank does after a message; `None` if the message is not one that can follow its last answer.
    pub fn task_after(&self, notice: CoordinatorNotice) -> Option<JoinTask> {
        match (self.last_answer, notice) {
            (RankAnswer::Join, CoordinatorNotice::Welcome) => Some(JoinTask::Greet),
            (RankAnswer::Hello, CoordinatorNotice::Digest) => Some(JoinTask::Digest),
            (RankAnswer::Hello | RankAnswer::Digests, CoordinatorNotice::Proceed) => Some(JoinTask::Load),
            (RankAnswer::Ready, CoordinatorNotice::Start) => Some(JoinTask::Run),
            _ => None,
        }
    }

    /// For how long the coordinator has kept the rank waiting, if that is too long. `silence` says how long the coordinator has
    /// shown no heartbeat, where that is known.
    pub fn check_timeouts(&self, now: Duration, silence: Option<Duration>) -> Option<Duration> {
        let JoinTimeouts { limit, silence_limit: quiet, explanation_grace: answer, .. } = self.timeouts;
        let waited = now.saturating_sub(self.answer_time);
        let longest = self.timeouts.stage_timeout(self.last_answer.stage());
        match (self.last_answer, silence) {
            // A coordinator that is alive explains which rank it waits for.
            (RankAnswer::Join, _) if waited >= limit + answer => Some(limit),
            (_, None) if waited >= quiet + answer => Some(quiet),
            (_, Some(silence)) if silence >= quiet => Some(quiet),
            _ => (waited >= longest + answer).then_some(longest),
        }
    }
}
