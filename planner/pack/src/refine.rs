//! Lower and lower peaks by exact search, for problems that are small enough for it.
//!
//! The first peak that is tried lies near the bound, where an answer is quickly found; then the goal is tried and, by
//! halving, what lies between it and the best so far; all that again with more work until the goal is reached, or
//! shown to be out of reach, or the budget is spent.

use super::exact::{ExactAnswer, ExactProblem, ExactSearch};
use crate::block::{Block, BlockSpans};
use crate::orders::FoundPacking;

/// The largest problem for exact search.
const BLOCKS: usize = 1_200;

/// The work with which each peak is tried first, in all and for each block.
const FIRST_TRIAL: u64 = 4_000;
const FIRST_TRIAL_EACH: u64 = 16;

/// The part of the bound that the first peak lies above it.
const NEAR: u64 = 20;

/// Improves `best` within a budget of work. The work done stands beside the result; it is none if the problem is not of
/// the kind that is searched.
pub fn refine(
    blocks: &[Block],
    spans: &BlockSpans,
    best: FoundPacking,
    (bound, goal): (u64, u64),
    budget: u64,
) -> (FoundPacking, u64) {
    let Some(exact) = ExactProblem::new(blocks, spans, BLOCKS) else {
        return (best, 0);
    };
    let mut trials = ExactTrials { blocks, exact: &exact, best, least: goal, budget, spent: 0 };
    let mut at_goal = exact.search(goal);
    let mut work = FIRST_TRIAL.max(FIRST_TRIAL_EACH * blocks.len() as u64);
    let near = bound + bound / NEAR;
    if goal < near && near < trials.best.0 {
        trials.run(&mut exact.search(near), near, work);
    }
    while trials.can_continue() {
        if trials.least == goal {
            trials.run(&mut at_goal, goal, work);
        }
        // Nothing was found below this in this round.
        let mut low = trials.least.max(goal + 1);
        while low < trials.best.0 && trials.can_continue() {
            let peak = low + (trials.best.0 - low) / 2;
            if !trials.run(&mut exact.search(peak), peak, work) {
                low = peak + 1;
            }
        }
        work *= 4;
    }
    (trials.best, trials.spent)
}

struct ExactTrials<'a> {
    blocks: &'a [Block],
    exact: &'a ExactProblem,
    best: FoundPacking,
    /// No lower peak is wanted or possible.
    least: u64,
    budget: u64,
    spent: u64,
}

impl ExactTrials<'_> {
    /// Whether there is something to look for, and work left for it.
    fn can_continue(&self) -> bool {
        self.best.0 > self.least && self.spent < self.budget
    }

    /// Continues the search for a peak by this many steps; whether it was reached.
    fn run(&mut self, search: &mut ExactSearch<'_>, peak: u64, steps: u64) -> bool {
        let before = search.work();
        let answer = search.run(search.steps() + steps, before + self.budget - self.spent);
        self.spent += (search.work() - before).max(1);
        match answer {
            ExactAnswer::Found(offsets) => {
                let ends =
                    self.blocks.iter().zip(&offsets).filter(|(b, _)| b.size > 0).map(|(b, o)| b.size + o);
                self.best = (ends.max().unwrap_or(0), offsets, "exact");
                true
            }
            ExactAnswer::Impossible => {
                self.least = self.least.max(self.exact.next_peak_above(peak));
                false
            }
            ExactAnswer::Open => false,
        }
    }
}
