//! The search tree of [`Exact`]: niches are asked what rests on them until nothing is left.
//!
//! Where no block that is left connects two stretches of sections, these are solved one after another, and a failure
//! goes back to where they parted. The tree is walked with a stack of its own, so depth costs no more than memory.

use std::collections::HashSet;

use super::problem::{ExactAnswer, ExactProblem, UNITS};
use super::skyline::Skyline;

/// The number of failures that end each of the first turns.
const FIRST_TURN: u64 = 200;

/// The number of failures that end each of the turns after these.
const LATER_TURN: u64 = 120;

/// The number of turns of one length; the later ones then grow by half.
const EQUAL_TURNS: u64 = 3;

/// The number of blocks read in sections that counts as one placement.
const READ: u64 = 2_048;

/// The number of blocks and sections scanned that counts as one placement.
const SCANNED: u64 = 4_096;

/// The number of failures that are remembered at most.
const REMEMBERED: usize = 1 << 20;

/// Stands for no question and no block.
const NONE: u32 = u32::MAX;

/// A stretch of sections whose blocks must still be placed, the question that it came from, and what comes after.
#[derive(Clone, Copy)]
struct SectionTask {
    from: usize,
    to: usize,
    parent: u32,
    next: u32,
}

/// A section of a niche and its possible answers.
struct NicheQuestion {
    task: SectionTask,
    section: usize,
    height: u32,
    /// The blocks that may rest there, the next one last, and [`NONE`] for none of them.
    answers: Vec<u32>,
    mark: usize,
    /// The number of tasks before its answers.
    tasks: usize,
    /// Its state, once that was worked out.
    key: Option<u128>,
    /// Whether the last answer was a block with nothing left above it: no other answer is better.
    open: bool,
}

/// A search for a packing of at most some peak, which can be continued.
pub struct ExactSearch<'a> {
    problem: &'a ExactProblem,
    skyline: Skyline<'a>,
    /// Blocks of low rank are tried first.
    rank: Vec<u32>,
    /// How often each section could not be stacked, of late.
    weight: Vec<f64>,
    /// What is left to do besides the question on top of the stack.
    tasks: Vec<SectionTask>,
    stack: Vec<NicheQuestion>,
    failed: HashSet<u128>,
    turn: u64,
    /// The failures that end a turn, and those of this one.
    length: u64,
    failures: u64,
    placements: u64,
    /// The steps and the work that end this run.
    limit: u64,
    budget: u64,
}

impl ExactProblem {
    pub fn search(&self, capacity: u64) -> ExactSearch<'_> {
        ExactSearch::new(self, (capacity / self.unit).min(UNITS) as u32)
    }
}

enum TurnOutcome {
    Found,
    Impossible,
    Spent,
}

impl<'a> ExactSearch<'a> {
    /// A search with this capacity in units.
    pub fn new(problem: &'a ExactProblem, capacity: u32) -> Self {
        ExactSearch {
            problem,
            skyline: Skyline::new(problem, capacity),
            rank: Vec::new(),
            weight: vec![1.0; problem.sections],
            tasks: Vec::new(),
            stack: Vec::new(),
            failed: HashSet::new(),
            turn: 0,
            length: FIRST_TURN,
            failures: 0,
            placements: 0,
            limit: 0,
            budget: 0,
        }
    }

    /// The work so far, in placements.
    pub fn work(&self) -> u64 {
        self.steps() + self.skyline.scanned / SCANNED
    }

    /// The work without what is scanned: by it trials are measured, so that long lives do not shorten them.
    pub fn steps(&self) -> u64 {
        self.placements + self.skyline.read / READ
    }

    fn spent(&self) -> bool {
        self.steps() >= self.limit || self.work() >= self.budget
    }

    /// Searches on until the steps so far are `limit` or the work so far is `budget`.
    pub fn run(&mut self, limit: u64, budget: u64) -> ExactAnswer {
        (self.limit, self.budget) = (limit, budget);
        if self.skyline.propagate().is_err() {
            return ExactAnswer::Impossible;
        }
        let ground = self.skyline.mark();
        while !self.spent() {
            self.rank = self.problem.rank(self.turn);
            self.failures = 0;
            let end = self.run_turn();
            if let TurnOutcome::Found = end {
                return ExactAnswer::Found(self.problem.offsets(&self.skyline.low));
            }
            self.skyline.undo(ground);
            if let TurnOutcome::Impossible = end {
                return ExactAnswer::Impossible;
            }
            self.weight.iter_mut().for_each(|w| *w = (*w + 1.0) / 2.0);
            self.turn += 1;
            if self.turn == EQUAL_TURNS {
                self.length = LATER_TURN;
            } else if self.turn.is_multiple_of(EQUAL_TURNS) {
                self.length += self.length / 2;
            }
        }
        ExactAnswer::Open
    }

    /// One turn.
    fn run_turn(&mut self) -> TurnOutcome {
        self.stack.clear();
        self.tasks.clear();
        let mut next = self.push_tasks(0, self.problem.sections, NONE, NONE);
        while next != NONE {
            self.ask(next);
            next = loop {
                if self.spent() || self.failures >= self.length {
                    return TurnOutcome::Spent;
                }
                match self.try_next_answer() {
                    Some(task) => break task,
                    None if self.backtrack() => {}
                    None => return TurnOutcome::Impossible,
                }
            };
        }
        TurnOutcome::Found
    }

    /// Adds the stretches between `from` and `to` that blocks connect to the tasks; the first one to do.
    fn push_tasks(&mut self, from: usize, to: usize, parent: u32, mut next: u32) -> u32 {
        let mut parts = Vec::new();
        let mut start = from;
        for s in from + 1..=to {
            if s == to || self.skyline.crossing[s] == 0 {
                if self.skyline.remaining[start] > 0 {
                    parts.push((start, s));
                }
                start = s;
            }
        }
        // Small ones first.
        parts.sort_by_key(|&(from, to)| std::cmp::Reverse(to - from));
        for (from, to) in parts {
            self.tasks.push(SectionTask { from, to, parent, next });
            next = self.tasks.len() as u32 - 1;
        }
        next
    }

    /// Puts the question of a task on the stack; one that has failed before has no answers.
    fn ask(&mut self, task: u32) {
        let task = self.tasks[task as usize];
        let key = (!self.failed.is_empty()).then(|| self.skyline.key(task.from, task.to));
        let known = key.is_some_and(|key| self.failed.contains(&key));
        let (section, answers) = if known { (task.from, Vec::new()) } else { self.choose(task) };
        let (height, mark) = (self.skyline.height[section], self.skyline.mark());
        let tasks = self.tasks.len();
        self.stack.push(NicheQuestion { task, section, height, answers, mark, tasks, key, open: false });
    }

    /// The section of a niche that is asked, and its possible answers, the first one last.
    fn choose(&self, task: SectionTask) -> (usize, Vec<u32>) {
        let height = |s: usize| self.skyline.height[s];
        let mut best = (f64::INFINITY, task.from);
        let mut start = task.from;
        for s in task.from + 1..=task.to {
            if s < task.to && height(s) == height(start) {
                continue;
            }
            let niche = start..s;
            start = s;
            let walls =
                [niche.start.checked_sub(1).filter(|&l| l >= task.from), Some(s).filter(|&r| r < task.to)];
            if walls.into_iter().flatten().any(|wall| height(wall) < height(niche.start)) {
                continue;
            }
            for section in niche {
                let score = self.score(section, best.0);
                if score < best.0 {
                    best = (score, section);
                }
            }
        }
        let section = best.1;
        let mut resting: Vec<u32> = self.resting(section).collect();
        resting.sort_unstable_by_key(|&b| self.rank[b as usize]);
        let shape = |b: u32| {
            (self.problem.life[b as usize], self.problem.size[b as usize], self.problem.align[b as usize])
        };
        // Of equal blocks, one is enough.
        let first = |i: usize| !resting[..i].iter().any(|&b| shape(b) == shape(resting[i]));
        let chosen = (0..resting.len()).filter(|&i| first(i)).map(|i| resting[i]);
        let mut answers: Vec<u32> = chosen.chain([NONE]).collect();
        answers.reverse();
        (section, answers)
    }

    /// The blocks of a section that may rest on its height.
    fn resting(&self, section: usize) -> impl Iterator<Item = u32> + '_ {
        let height = self.skyline.height[section];
        self.skyline.unplaced_at(section).filter(move |&b| self.skyline.low[b] == height).map(|b| b as u32)
    }

    /// How good it is to ask a section of a niche, low being good: low niches, where nothing may be wasted, few
    /// answers, and where it failed. Found by trial on the published problems.
    fn score(&self, section: usize, best: f64) -> f64 {
        let skyline = &self.skyline;
        let (height, capacity) = (skyline.height[section], skyline.capacity);
        let slack = capacity - height - skyline.remaining[section];
        let none = if slack == 0 { 0.0 } else { 0.5 };
        let part = |size: u32| f64::from(size) / f64::from(capacity.max(1));
        let depth = part(height) + 0.3 * part(slack) + 0.02;
        let factor = depth / self.weight[section];
        if factor * (1.0 + none) >= best {
            return best;
        }
        factor * (f64::from(skyline.resting[section]) + none)
    }

    /// Gives the question on top its next answer that leads on; the first task that is left then.
    fn try_next_answer(&mut self) -> Option<u32> {
        let at = self.stack.len() - 1;
        while !self.stack[at].open {
            let (b, section, height) = {
                let top = &mut self.stack[at];
                (top.answers.pop()?, top.section, top.height)
            };
            self.placements += 1;
            let mut failed = Some(section);
            if b != NONE {
                self.skyline.place(b as usize, height);
                let (from, to) = self.problem.life[b as usize];
                self.stack[at].open = self.skyline.unplaced_in(from, to).next().is_none();
                failed = self.skyline.propagate().err();
            } else if let Some(to) = self.lowest_above(section) {
                self.skyline.lift(section, to);
                failed = self.skyline.propagate().err();
            }
            let NicheQuestion { task, mark, .. } = self.stack[at];
            let Some(section) = failed else {
                return Some(self.push_tasks(task.from, task.to, at as u32, task.next));
            };
            self.weight[section] += 1.0;
            self.failures += 1;
            self.skyline.undo(mark);
        }
        None
    }

    /// The lowest that a block of this section can lie if none rests on its height: where the lows of the others are,
    /// or on a block beside the section.
    fn lowest_above(&self, section: usize) -> Option<u32> {
        let skyline = &self.skyline;
        let (height, most) = (skyline.height[section], skyline.capacity - skyline.remaining[section]);
        let beside = |b: usize| {
            let (from, to) = self.problem.life[b];
            let others = skyline.unplaced_in(from, section).chain(skyline.unplaced_in(section + 1, to));
            let apart =
                others.filter(|&o| !(self.problem.life[o].0..self.problem.life[o].1).contains(&section));
            apart.map(|o| skyline.low[o] + self.problem.size[o]).min()
        };
        let lowest = |b: usize| match skyline.low[b] {
            low if low > height => low,
            _ => beside(b).unwrap_or(most + 1).next_multiple_of(self.problem.align[b]),
        };
        skyline.unplaced_at(section).map(lowest).min().filter(|&to| to <= most)
    }

    /// Goes back from the question on top, which has failed, to the one that it came from; whether there is one.
    fn backtrack(&mut self) -> bool {
        let Some(NicheQuestion { task, key, .. }) = self.stack.pop() else {
            return false;
        };
        if self.failed.len() < REMEMBERED {
            // All answers are undone: the state is that of the question.
            self.failed.insert(key.unwrap_or_else(|| self.skyline.key(task.from, task.to)));
        }
        self.stack.truncate((task.parent as usize).saturating_add(1));
        if task.parent == NONE {
            return false;
        }
        let top = &self.stack[task.parent as usize];
        self.tasks.truncate(top.tasks);
        self.skyline.undo(top.mark);
        true
    }
}
