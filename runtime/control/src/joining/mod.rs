//! The joining protocol as two state machines, for the coordinator and for a rank, without sockets, threads
//! or clocks.
//!
//! A run opens in stages. In each stage every rank owes the coordinator one answer. The next stage begins
//! when all ranks have answered:
//!
//! | stage | sent to all ranks when it begins | answer of each rank |
//! |---|---|---|
//! | gathering | nothing | `Join` |
//! | comparing | `Welcome`, with the shared memory | `Hello`, with its plan and settings |
//! | digesting, if contents may differ | `Digest` | `Digests` |
//! | loading | `Proceed` | `Ready`, its memory is loaded |
//! | started | `Start` | |
//!
//! Callers pass messages, the time and the silence of others to a machine, and carry out its orders. A time
//! is a duration since any fixed moment of the participant's own clock. Silence is how long another process
//! has shown no heartbeat ([`crate::heartbeat`]), where that is known.
//!
//! Every wait has a timeout. A participant that times out blames only a participant that owes an answer:
//! - The coordinator blames ranks that have not answered in the present stage: all of them while gathering,
//!   later the one that was silent for the timeout. A rank that is alive and slow may take longer
//!   ([`JoinTimeouts::answer_limit`]), since it works locally meanwhile.
//! - A rank blames only the coordinator, and only after the coordinator had the time to blame another rank.
//!
//! The module `model` explores all orders of stops and messages of two and three ranks.

#[cfg(test)]
mod model;

use std::collections::BTreeSet;
use std::time::Duration;

/// The maximum number of ranks that an error names. Programs have fewer.
const MAX_NAMED_RANKS: usize = 4096;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct JoinTimeouts {
    /// The requested timeout, for ranks that do not join.
    pub limit: Duration,
    /// The timeout for silence: the same, unless that is too short to distinguish a stopped process from a
    /// busy machine.
    pub silence_limit: Duration,
    /// The time that a rank that is alive may take for one answer, if `limit` is less.
    pub answer_limit: Duration,
    /// The same limit while contents are read.
    pub digest_limit: Duration,
    /// How much longer a rank waits for the coordinator's explanation.
    pub explanation_grace: Duration,
}

impl JoinTimeouts {
    pub fn new(limit: Duration) -> JoinTimeouts {
        JoinTimeouts {
            limit,
            silence_limit: limit.max(Duration::from_secs(1)),
            answer_limit: Duration::from_secs(10),
            digest_limit: Duration::from_secs(600),
            explanation_grace: Duration::from_secs(1),
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

/// The stages in which a run opens.
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

/// The answer that a rank owes the coordinator in each stage.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum RankAnswer {
    /// In [`JoinStage::Gathering`].
    Join,
    /// In [`JoinStage::Comparing`].
    Hello,
    /// In [`JoinStage::Digesting`].
    Digests,
    /// In [`JoinStage::Loading`].
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

/// The action of the coordinator once all ranks have answered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum CoordinatorOrder {
    Welcome,
    /// Compare the ranks' identities, and call [`CoordinatorMachine::finish_comparison`].
    Compare,
    Start,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum AnswerEffect {
    /// The rank does not owe this answer, which is a fault of the rank.
    Unexpected,
    /// Other ranks still owe their answers.
    Waiting,
    /// All ranks have answered.
    Complete(CoordinatorOrder),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum JoinFault {
    Absent(Vec<u32>),
    /// This rank owes an answer, and for this time showed no heartbeat or did not answer.
    Late(u32, Duration),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct CoordinatorMachine {
    timeouts: JoinTimeouts,
    stage: JoinStage,
    stage_start: Duration,
    until: Duration,
    /// The number of ranks. It may come from the environment of a process, so it reserves no memory.
    ranks: u32,
    /// The ranks that have answered in this stage.
    answered: BTreeSet<u32>,
}

impl CoordinatorMachine {
    pub fn new(ranks: u32, timeouts: JoinTimeouts, now: Duration) -> CoordinatorMachine {
        CoordinatorMachine {
            timeouts,
            stage: JoinStage::Gathering,
            stage_start: now,
            until: now + timeouts.limit,
            ranks,
            answered: BTreeSet::new(),
        }
    }

    /// Begins with ranks that have joined and were sent `Welcome` now.
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

    /// The first ranks that owe an answer: all of them in a run that a program can have.
    pub fn owing_ranks(&self) -> Vec<u32> {
        (0..self.ranks).filter(|rank| !self.answered.contains(rank)).take(MAX_NAMED_RANKS).collect()
    }

    /// Takes a rank's answer, and enters the next stage once all ranks have answered.
    pub fn accept_answer(&mut self, rank: u32, answer: RankAnswer, now: Duration) -> AnswerEffect {
        if answer.stage() != self.stage || rank >= self.ranks || !self.answered.insert(rank) {
            return AnswerEffect::Unexpected;
        }
        if self.answered.len() < self.ranks as usize {
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

    /// Enters the stage after [`CoordinatorOrder::Compare`]: digesting or loading.
    pub fn finish_comparison(&mut self, wants_digests: bool, now: Duration) {
        self.enter_stage(if wants_digests { JoinStage::Digesting } else { JoinStage::Loading }, now);
    }

    /// Returns the fault that ends the run now, if there is one. `silence` says how long a rank has shown no
    /// heartbeat, where that is known.
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
                let owing = self.owing_ranks().into_iter();
                let silences = owing.map(|rank| (rank, silence(rank).unwrap_or(in_stage)));
                let (quietest, silent_for) = silences.max_by_key(|&(_, silent_for)| silent_for)?;
                if silent_for >= self.timeouts.silence_limit {
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
        self.answered.clear();
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum CoordinatorNotice {
    Welcome,
    /// The coordinator requests digests.
    Digest,
    /// All ranks have the same identity.
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

/// The state machine of a rank.
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

    /// Records that the rank sends an answer now.
    pub fn record_answer(&mut self, answer: RankAnswer, now: Duration) {
        self.last_answer = answer;
        self.answer_time = now;
    }

    /// The task of the rank after a notice; `None` if the notice cannot follow the rank's last answer.
    pub fn task_after(&self, notice: CoordinatorNotice) -> Option<JoinTask> {
        match (self.last_answer, notice) {
            (RankAnswer::Join, CoordinatorNotice::Welcome) => Some(JoinTask::Greet),
            (RankAnswer::Hello, CoordinatorNotice::Digest) => Some(JoinTask::Digest),
            (RankAnswer::Hello | RankAnswer::Digests, CoordinatorNotice::Proceed) => Some(JoinTask::Load),
            (RankAnswer::Ready, CoordinatorNotice::Start) => Some(JoinTask::Run),
            _ => None,
        }
    }

    /// Returns the exceeded limit if the coordinator has kept the rank waiting for too long. `silence` says
    /// how long the coordinator has shown no heartbeat, where that is known.
    pub fn check_timeouts(&self, now: Duration, silence: Option<Duration>) -> Option<Duration> {
        let JoinTimeouts { limit, silence_limit, explanation_grace: grace, .. } = self.timeouts;
        let waited = now.saturating_sub(self.answer_time);
        let longest = self.timeouts.stage_timeout(self.last_answer.stage());
        match (self.last_answer, silence) {
            // A coordinator that is alive reports which rank it waits for.
            (RankAnswer::Join, _) if waited >= limit + grace => Some(limit),
            (_, None) if waited >= silence_limit + grace => Some(silence_limit),
            (_, Some(silence)) if silence >= silence_limit => Some(silence_limit),
            _ => (waited >= longest + grace).then_some(longest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_ranks_takes_little_memory() {
        let limit = Duration::from_secs(1);
        for ranks in [1, 3, 5000, u32::MAX] {
            let mut machine = CoordinatorMachine::new(ranks, JoinTimeouts::new(limit), Duration::ZERO);
            assert_eq!(machine.accept_answer(ranks, RankAnswer::Join, limit), AnswerEffect::Unexpected);
            let effect = machine.accept_answer(0, RankAnswer::Join, limit);
            if ranks == 1 {
                assert_eq!(effect, AnswerEffect::Complete(CoordinatorOrder::Welcome));
                continue;
            }
            assert_eq!(effect, AnswerEffect::Waiting);
            let absent = (1..ranks).take(MAX_NAMED_RANKS).collect();
            assert_eq!(machine.check_timeouts(limit, &|_| None), Some(JoinFault::Absent(absent)));
        }
    }
}
