//! The search tree of [`ExactSearch`]. It asks niches which block rests on them until no block is left.
//!
//! If no remaining block connects two stretches of sections, the search solves them one after another. A
//! failure backtracks to the point where they separated. The tree is walked with an explicit stack, so depth
//! costs only memory.

use std::collections::HashSet;

use super::problem::{ExactAnswer, ExactProblem, MAX_UNITS};
use super::skyline::Skyline;

/// The number of failures that end each of the first turns.
const FIRST_TURN: u64 = 200;

/// The number of failures that end each of the later turns.
const LATER_TURN: u64 = 120;

/// The number of turns of equal length. After that their length grows by half each time.
const EQUAL_TURNS: u64 = 3;

/// The number of blocks read in sections that counts as one placement.
const READS_PER_PLACEMENT: u64 = 2_048;

/// The number of blocks and sections scanned that counts as one placement.
const SCANS_PER_PLACEMENT: u64 = 4_096;

/// The largest number of failures that are remembered.
const MAX_FAILURES: usize = 1 << 20;

/// A marker for no question and no block.
const NO_INDEX: u32 = u32::MAX;

/// A stretch of sections whose blocks must still be placed, the question from which it came, and the next task.
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
    /// The blocks that may rest there, with the next one last. [`NO_INDEX`] means that none of them does.
    answers: Vec<u32>,
    mark: usize,
    /// The number of tasks before its answers were given.
    tasks: usize,
    /// The key of its state, once computed.
    key: Option<u128>,
    /// Whether the last answer was a block with no remaining block above it. No other answer is better then.
    open: bool,
}

/// A resumable search for a packing of at most a given peak.
pub struct ExactSearch<'a> {
    problem: &'a ExactProblem,
    skyline: Skyline<'a>,
    /// Blocks of low rank are tried first.
    rank: Vec<u32>,
    /// The recent number of failures in each section, weighted.
    weight: Vec<f64>,
    /// The tasks that remain besides the question on top of the stack.
    tasks: Vec<SectionTask>,
    stack: Vec<NicheQuestion>,
    failed: HashSet<u128>,
    turn: u64,
    /// The number of failures that ends a turn, and the number in the current turn.
    length: u64,
    failures: u64,
    placements: u64,
    /// The number of steps and the work that end this run.
    limit: u64,
    budget: u64,
}

impl ExactProblem {
    pub fn search(&self, capacity: u64) -> ExactSearch<'_> {
        ExactSearch::new(self, (capacity / self.unit).min(MAX_UNITS) as u32)
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

    /// The work so far, counted in placements.
    pub fn work(&self) -> u64 {
        self.steps() + self.skyline.scanned / SCANS_PER_PLACEMENT
    }

    /// The work without scans. Trials are measured by it, so that long lifetimes do not shorten them.
    pub fn steps(&self) -> u64 {
        self.placements + self.skyline.read / READS_PER_PLACEMENT
    }

    fn spent(&self) -> bool {
        self.steps() >= self.limit || self.work() >= self.budget
    }

    /// Continues the search until it has done `limit` steps or the work `budget` in total.
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

    /// Runs one turn.
    fn run_turn(&mut self) -> TurnOutcome {
        self.stack.clear();
        self.tasks.clear();
        let mut next = self.push_tasks(0, self.problem.sections, NO_INDEX, NO_INDEX);
        while next != NO_INDEX {
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

    /// Adds a task for each connected stretch between `from` and `to`. Returns the task to do first.
    fn push_tasks(&mut self, from: usize, to: usize, parent: u32, mut next: u32) -> u32 {
        let mut stretches = Vec::new();
        let mut start = from;
        for s in from + 1..=to {
            if s == to || self.skyline.crossing[s] == 0 {
                if self.skyline.remaining[start] > 0 {
                    stretches.push((start, s));
                }
                start = s;
            }
        }
        // Small stretches come first.
        stretches.sort_by_key(|&(from, to)| std::cmp::Reverse(to - from));
        for (from, to) in stretches {
            self.tasks.push(SectionTask { from, to, parent, next });
            next = self.tasks.len() as u32 - 1;
        }
        next
    }

    /// Pushes the question of a task onto the stack. A state that has failed before gets no answers.
    fn ask(&mut self, task: u32) {
        let task = self.tasks[task as usize];
        let key = (!self.failed.is_empty()).then(|| self.skyline.key(task.from, task.to));
        let has_failed = key.is_some_and(|key| self.failed.contains(&key));
        let (section, answers) = if has_failed { (task.from, Vec::new()) } else { self.choose(task) };
        let height = self.skyline.height[section];
        let mark = self.skyline.mark();
        let tasks = self.tasks.len();
        self.stack.push(NicheQuestion { task, section, height, answers, mark, tasks, key, open: false });
    }

    /// Chooses the section of a niche to ask, and its possible answers. The first answer comes last.
    fn choose(&self, task: SectionTask) -> (usize, Vec<u32>) {
        let height = &self.skyline.height;
        let mut best = (f64::INFINITY, task.from);
        let mut start = task.from;
        for s in task.from + 1..=task.to {
            if s < task.to && height[s] == height[start] {
                continue;
            }
            let niche = start..s;
            start = s;
            let walls =
                [niche.start.checked_sub(1).filter(|&l| l >= task.from), Some(s).filter(|&r| r < task.to)];
            if walls.into_iter().flatten().any(|wall| height[wall] < height[niche.start]) {
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
        // One of several equal blocks is enough.
        let mut answers = Vec::new();
        for (i, &b) in resting.iter().enumerate() {
            if !resting[..i].iter().any(|&earlier| self.are_equal_blocks(earlier, b)) {
                answers.push(b);
            }
        }
        answers.push(NO_INDEX);
        answers.reverse();
        (section, answers)
    }

    fn are_equal_blocks(&self, a: u32, b: u32) -> bool {
        let a = a as usize;
        let b = b as usize;
        self.problem.life[a] == self.problem.life[b]
            && self.problem.size[a] == self.problem.size[b]
            && self.problem.align[a] == self.problem.align[b]
    }

    /// The blocks of a section that may rest at its height.
    fn resting(&self, section: usize) -> impl Iterator<Item = u32> + '_ {
        let height = self.skyline.height[section];
        self.skyline.unplaced_at(section).filter(move |&b| self.skyline.low[b] == height).map(|b| b as u32)
    }

    /// The priority of asking a section of a niche. Lower is better. It prefers low niches, niches where little
    /// space may be wasted, few answers, and sections that failed before. The formula was found by experiments
    /// on the published problems.
    fn score(&self, section: usize, best: f64) -> f64 {
        let skyline = &self.skyline;
        let height = skyline.height[section];
        let capacity = skyline.capacity;
        let slack = capacity - height - skyline.remaining[section];
        let none = if slack == 0 { 0.0 } else { 0.5 };
        let full_height = f64::from(capacity.max(1));
        let depth = f64::from(height) / full_height + 0.3 * (f64::from(slack) / full_height) + 0.02;
        let factor = depth / self.weight[section];
        if factor * (1.0 + none) >= best {
            return best;
        }
        factor * (f64::from(skyline.resting[section]) + none)
    }

    /// Applies the next answer to the top question that is consistent. Returns the first task that is left
    /// then.
    fn try_next_answer(&mut self) -> Option<u32> {
        let top_index = self.stack.len() - 1;
        while !self.stack[top_index].open {
            let (b, section, height) = {
                let top = &mut self.stack[top_index];
                (top.answers.pop()?, top.section, top.height)
            };
            self.placements += 1;
            let mut failed = Some(section);
            if b != NO_INDEX {
                self.skyline.place(b as usize, height);
                let (from, to) = self.problem.life[b as usize];
                self.stack[top_index].open = self.skyline.unplaced_in(from, to).next().is_none();
                failed = self.skyline.propagate().err();
            } else if let Some(to) = self.lowest_above(section) {
                self.skyline.lift(section, to);
                failed = self.skyline.propagate().err();
            }
            let NicheQuestion { task, mark, .. } = self.stack[top_index];
            let Some(section) = failed else {
                return Some(self.push_tasks(task.from, task.to, top_index as u32, task.next));
            };
            self.weight[section] += 1.0;
            self.failures += 1;
            self.skyline.undo(mark);
        }
        None
    }

    /// The lowest offset of a block of this section if none rests at its height. Candidates are the lowest
    /// offsets of the other blocks, and the tops of blocks next to the section.
    fn lowest_above(&self, section: usize) -> Option<u32> {
        let skyline = &self.skyline;
        let height = skyline.height[section];
        let max_height = skyline.capacity - skyline.remaining[section];
        let lowest = skyline.unplaced_at(section).map(|b| match skyline.low[b] {
            low if low > height => low,
            _ => {
                let end = self.lowest_end_in_other_sections(b, section);
                end.unwrap_or(max_height + 1).next_multiple_of(self.problem.align[b])
            }
        });
        lowest.min().filter(|&to| to <= max_height)
    }

    /// The lowest end of an unplaced block that meets `b` and does not live in `section`.
    fn lowest_end_in_other_sections(&self, b: usize, section: usize) -> Option<u32> {
        let skyline = &self.skyline;
        let (from, to) = self.problem.life[b];
        let neighbours = skyline.unplaced_in(from, section).chain(skyline.unplaced_in(section + 1, to));
        let outside =
            neighbours.filter(|&o| !(self.problem.life[o].0..self.problem.life[o].1).contains(&section));
        outside.map(|o| skyline.low[o] + self.problem.size[o]).min()
    }

    /// Backtracks from the failed top question to the question from which it came. Returns whether there is
    /// one.
    fn backtrack(&mut self) -> bool {
        let Some(NicheQuestion { task, key, .. }) = self.stack.pop() else {
            return false;
        };
        if self.failed.len() < MAX_FAILURES {
            // All answers are undone, so the state is that of the question.
            self.failed.insert(key.unwrap_or_else(|| self.skyline.key(task.from, task.to)));
        }
        self.stack.truncate((task.parent as usize).saturating_add(1));
        if task.parent == NO_INDEX {
            return false;
        }
        let top = &self.stack[task.parent as usize];
        self.tasks.truncate(top.tasks);
        self.skyline.undo(top.mark);
        true
    }
}
