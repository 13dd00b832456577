//! Explores the joining protocol: every order of messages, work and stops of two and three ranks.
//!
//! The model is the machines of [`super`] with queues between them. A process is stopped at any point: before
//! it starts, between any two of its actions, or while it waits. Rank 0 and the coordinator are one process.
//! Time passes only when no running process has anything to do, so any delay is caused by a stop. Two
//! properties hold in every order. Each running process ends within the timeout, counted from its own start
//! or the last stop. The process that it blames was stopped. Without stops all ranks start, even if one rank
//! is alive and slow.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use super::*;

const LIMIT: u32 = 4;
const ANSWER: u32 = 1;
/// The time that a slow rank takes to load: longer than the timeout.
const SLOW: u32 = 6;

fn time_units(n: u32) -> Duration {
    Duration::from_secs(u64::from(n))
}

fn timeouts() -> JoinTimeouts {
    let limit = time_units(LIMIT);
    JoinTimeouts {
        limit,
        silence_limit: limit,
        answer_limit: time_units(10),
        digest_limit: time_units(12),
        explanation_grace: time_units(ANSWER),
    }
}

/// The parameters of a model, equal in all orders.
#[derive(Clone, Copy, Debug)]
struct ModelSetting {
    ranks: u32,
    /// A rank and how much later than the others it starts.
    late: Option<(u32, u32)>,
    /// A rank that loads slowly.
    slow: Option<u32>,
    digests: bool,
    signs: bool,
    stops: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum ModelOutcome {
    Started,
    Blames(u32),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum ModelMessage {
    Notice(CoordinatorNotice),
    Verdict(u32),
}

#[derive(Clone, Default, PartialEq, Eq, Hash, Debug)]
struct ModelRank {
    machine: Option<RankMachine>,
    /// The task that it works on, and when it is done.
    task: Option<(JoinTask, u32)>,
    /// Whether it has mapped the shared memory, and therefore shows heartbeats.
    is_mapped: bool,
    inbox: VecDeque<ModelMessage>,
    outcome: Option<ModelOutcome>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct ModelWorld {
    clock: u32,
    coordinator: Option<CoordinatorMachine>,
    outcome: Option<ModelOutcome>,
    /// By rank, the answers that it sent to the coordinator.
    answers: Vec<VecDeque<RankAnswer>>,
    ranks: Vec<ModelRank>,
    stopped: Vec<Option<u32>>,
}

#[derive(Clone, Copy, Debug)]
enum ModelAction {
    Start(u32),
    TakeAnswer(u32),
    TakeMessage(u32),
    Finish(u32),
}

impl ModelWorld {
    fn new(ranks: u32) -> ModelWorld {
        let n = ranks as usize;
        let answers = vec![VecDeque::new(); n];
        let members = vec![ModelRank::default(); n];
        ModelWorld {
            clock: 0,
            coordinator: None,
            outcome: None,
            answers,
            ranks: members,
            stopped: vec![None; n],
        }
    }

    fn is_running(&self, process: u32) -> bool {
        self.stopped[process as usize].is_none()
    }

    fn start_time(setting: &ModelSetting, rank: u32) -> u32 {
        setting.late.filter(|(late, _)| *late == rank).map_or(0, |(_, by)| by)
    }

    fn actions(&self, setting: &ModelSetting) -> Vec<ModelAction> {
        let mut out = Vec::new();
        for rank in (0..setting.ranks).filter(|&rank| self.is_running(rank)) {
            let state = &self.ranks[rank as usize];
            if state.machine.is_none() && self.clock >= ModelWorld::start_time(setting, rank) {
                out.push(ModelAction::Start(rank));
            }
            if state.outcome.is_none() {
                match state.task {
                    Some((_, done)) if self.clock >= done => out.push(ModelAction::Finish(rank)),
                    Some(_) => {}
                    None if !state.inbox.is_empty() => out.push(ModelAction::TakeMessage(rank)),
                    None => {}
                }
            }
        }
        if self.is_running(0) && self.coordinator.is_some() && self.outcome.is_none() {
            let answering = (0..setting.ranks).filter(|&rank| !self.answers[rank as usize].is_empty());
            out.extend(answering.map(ModelAction::TakeAnswer));
        }
        out
    }

    fn apply_action(&mut self, setting: &ModelSetting, action: ModelAction) {
        let now = time_units(self.clock);
        match action {
            ModelAction::Start(rank) => {
                if rank == 0 {
                    self.coordinator = Some(CoordinatorMachine::new(setting.ranks, timeouts(), now));
                }
                self.ranks[rank as usize].machine = Some(RankMachine::new(timeouts(), now));
                self.answers[rank as usize].push_back(RankAnswer::Join);
            }
            ModelAction::TakeAnswer(rank) => {
                let answer = self.answers[rank as usize].pop_front().expect("there is one");
                self.coordinate(setting, rank, answer);
            }
            ModelAction::TakeMessage(rank) => {
                let state = &mut self.ranks[rank as usize];
                match state.inbox.pop_front().expect("there is one") {
                    ModelMessage::Verdict(culprit) => state.outcome = Some(ModelOutcome::Blames(culprit)),
                    ModelMessage::Notice(notice) => {
                        let task = state.machine.as_ref().and_then(|machine| machine.task_after(notice));
                        let task = task.expect("a message that can follow");
                        let is_slow = task == JoinTask::Load && setting.slow == Some(rank);
                        match task {
                            JoinTask::Run => state.outcome = Some(ModelOutcome::Started),
                            _ => state.task = Some((task, self.clock + if is_slow { SLOW } else { 0 })),
                        }
                    }
                }
            }
            ModelAction::Finish(rank) => {
                let state = &mut self.ranks[rank as usize];
                let (task, _) = state.task.take().expect("there is one");
                state.is_mapped = true;
                let answer = match task {
                    JoinTask::Greet => RankAnswer::Hello,
                    JoinTask::Digest => RankAnswer::Digests,
                    JoinTask::Load => RankAnswer::Ready,
                    JoinTask::Run => panic!("a run is not finished here"),
                };
                state.machine.as_mut().expect("it has started").record_answer(answer, now);
                self.answers[rank as usize].push_back(answer);
            }
        }
    }

    fn coordinate(&mut self, setting: &ModelSetting, rank: u32, answer: RankAnswer) {
        let now = time_units(self.clock);
        let machine = self.coordinator.as_mut().expect("it has started");
        if answer == RankAnswer::Join {
            // A rank that joins sends how long it still waits.
            machine.shorten_gathering(time_units(ModelWorld::start_time(setting, rank) + LIMIT));
        }
        let before = machine.stage();
        let notice = match machine.accept_answer(rank, answer, now) {
            AnswerEffect::Unexpected => panic!("rank {rank} owes {answer:?}"),
            AnswerEffect::Waiting => return,
            AnswerEffect::Complete(CoordinatorOrder::Welcome) => CoordinatorNotice::Welcome,
            AnswerEffect::Complete(CoordinatorOrder::Start) => {
                self.outcome = Some(ModelOutcome::Started);
                CoordinatorNotice::Start
            }
            AnswerEffect::Complete(CoordinatorOrder::Compare) => {
                let wants_digests = setting.digests && before == JoinStage::Comparing;
                machine.finish_comparison(wants_digests, now);
                if wants_digests { CoordinatorNotice::Digest } else { CoordinatorNotice::Proceed }
            }
        };
        self.ranks.iter_mut().for_each(|state| state.inbox.push_back(ModelMessage::Notice(notice)));
    }

    /// Lets a unit of time pass, after which all running processes check their timeouts.
    fn pass_time(&mut self, setting: &ModelSetting) {
        self.clock += 1;
        let clock = self.clock;
        let stopped = self.stopped.clone();
        let mapped: Vec<bool> = self.ranks.iter().map(|r| r.is_mapped).collect();
        let silent = |process: u32| time_units(stopped[process as usize].map_or(0, |since| clock - since));
        let of_rank = |rank: u32| (setting.signs && mapped[rank as usize]).then(|| silent(rank));
        let fault = self.coordinator.as_ref().filter(|_| self.is_running(0) && self.outcome.is_none());
        let fault = fault.and_then(|machine| machine.check_timeouts(time_units(clock), &of_rank));
        for rank in 0..self.ranks.len() as u32 {
            let waits = self.is_running(rank);
            let state = &mut self.ranks[rank as usize];
            let Some(machine) = state.machine.as_ref().filter(|_| waits && state.outcome.is_none()) else {
                continue;
            };
            let silence = (setting.signs && state.is_mapped).then(|| silent(0));
            if state.task.is_none() && machine.check_timeouts(time_units(clock), silence).is_some() {
                state.outcome = Some(ModelOutcome::Blames(0));
            }
        }
        if let Some(fault) = fault {
            let culprit = match fault {
                JoinFault::Absent(ranks) => ranks[0],
                JoinFault::Late(rank, _) => rank,
            };
            self.outcome = Some(ModelOutcome::Blames(culprit));
            self.ranks.iter_mut().for_each(|state| state.inbox.push_back(ModelMessage::Verdict(culprit)));
        }
    }

    /// The outcomes of a rank's process: its own, and that of the coordinator for rank 0.
    fn outcomes(&self, rank: u32) -> Vec<Option<ModelOutcome>> {
        let coordinator = (rank == 0 && self.coordinator.is_some()).then_some(self.outcome);
        coordinator.into_iter().chain([self.ranks[rank as usize].outcome]).collect()
    }

    fn is_over(&self, rank: u32) -> bool {
        !self.is_running(rank) || self.outcomes(rank).iter().all(Option::is_some)
    }

    fn check_outcomes(&self, setting: &ModelSetting) {
        let last_stop = self.stopped.iter().flatten().max().copied().unwrap_or_default();
        let slow = if setting.slow.is_some() { SLOW } else { 0 };
        for rank in (0..setting.ranks).filter(|&rank| self.is_running(rank)) {
            let from = ModelWorld::start_time(setting, rank).max(last_stop);
            let late = setting.late.map_or(0, |(_, by)| by);
            let bound = from + late + slow + LIMIT + ANSWER;
            assert!(
                self.is_over(rank) || self.clock <= bound,
                "rank {rank} waits for ever: {setting:?}\n{self:#?}"
            );
            for outcome in self.outcomes(rank).into_iter().flatten() {
                if let ModelOutcome::Blames(culprit) = outcome {
                    assert!(
                        !self.is_running(culprit),
                        "rank {rank} blames rank {culprit}: {setting:?}\n{self:#?}"
                    );
                }
            }
        }
    }
}

/// Explores all reachable states; returns their number and the number of ends.
fn explore(setting: &ModelSetting) -> (usize, usize) {
    let mut visited = HashSet::new();
    let mut open = vec![ModelWorld::new(setting.ranks)];
    let mut ends = 0;
    while let Some(world) = open.pop() {
        if !visited.insert(world.clone()) {
            continue;
        }
        world.check_outcomes(setting);
        if (0..setting.ranks).all(|rank| world.is_over(rank)) {
            ends += 1;
            continue;
        }
        if world.stopped.iter().flatten().count() < setting.stops {
            for process in (0..setting.ranks).filter(|&p| world.is_running(p) && !world.is_over(p)) {
                let mut next = world.clone();
                next.stopped[process as usize] = Some(world.clock);
                open.push(next);
            }
        }
        let actions = world.actions(setting);
        if actions.is_empty() {
            let mut next = world;
            next.pass_time(setting);
            open.push(next);
            continue;
        }
        for action in actions {
            let mut next = world.clone();
            next.apply_action(setting, action);
            open.push(next);
        }
    }
    (visited.len(), ends)
}

#[test]
fn every_order_of_stops_and_messages_ends_in_time_and_blames_a_stopped_rank() {
    for (ranks, digests) in [(2, false), (2, true), (3, false), (3, true)] {
        let plain =
            ModelSetting { ranks, late: None, slow: None, digests, signs: true, stops: ranks as usize - 1 };
        let settings = [
            plain,
            ModelSetting { late: Some((0, 2)), ..plain },
            ModelSetting { late: Some((1, 2)), ..plain },
            ModelSetting { slow: Some(0), ..plain },
            ModelSetting { slow: Some(1), ..plain },
            // Without heartbeats a rank may take as long as the timeout, alive or not.
            ModelSetting { signs: false, ..plain },
        ];
        for setting in settings {
            let (states, ends) = explore(&setting);
            assert!(states > 100 && ends > 10, "{setting:?}: {states} states, {ends} ends");
        }
    }
}

#[test]
fn without_stops_all_ranks_start() {
    for slow in [None, Some(0), Some(1)] {
        let late = Some((2, 3));
        let setting = ModelSetting { ranks: 3, late, slow, digests: true, signs: true, stops: 0 };
        // `check_outcomes` refuses a rank that blames a running rank.
        let (_, ends) = explore(&setting);
        assert!(ends > 0);
    }
}
