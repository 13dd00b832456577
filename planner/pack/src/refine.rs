//! Lowers the peak by exact search, for problems that are small enough.
//!
//! The first peak to try lies near the bound, where an answer is found quickly. Then the search tries the goal
//! and bisects the range between the goal and the best peak so far. This repeats with more work per trial until
//! the goal is reached or proven impossible, or the budget is spent.

use super::exact::{ExactAnswer, ExactProblem, ExactSearch};
use crate::block::{Block, BlockSpans};
use crate::orders::FoundPacking;

/// The largest number of blocks for exact search.
const MAX_EXACT_BLOCKS: usize = 1_200;

/// The work with which each peak is tried first: a constant, and an amount per block.
const FIRST_TRIAL: u64 = 4_000;
const FIRST_TRIAL_EACH: u64 = 16;

/// The first peak lies above the bound by the bound divided by this.
const FIRST_PEAK_DIVISOR: u64 = 20;

/// Improves `best` within a budget of work. Returns the work together with the result. Returns no work if the
/// problem is too large or of another kind.
pub fn refine(
    blocks: &[Block],
    spans: &BlockSpans,
    best: FoundPacking,
    bound: u64,
    goal: u64,
    budget: u64,
) -> (FoundPacking, u64) {
    let Some(exact) = ExactProblem::new(blocks, spans, MAX_EXACT_BLOCKS) else {
        return (best, 0);
    };
    let mut trials = ExactTrials { blocks, exact: &exact, best, least: goal, budget, spent: 0 };
    let mut at_goal = exact.search(goal);
    let mut work = FIRST_TRIAL.max(FIRST_TRIAL_EACH * blocks.len() as u64);
    let near = bound + bound / FIRST_PEAK_DIVISOR;
    if goal < near && near < trials.best.0 {
        trials.run(&mut exact.search(near), near, work);
    }
    while trials.can_continue() {
        if trials.least == goal {
            trials.run(&mut at_goal, goal, work);
        }
        // No packing below this peak was found in this round.
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
    /// Whether a better peak is possible and work is left.
    fn can_continue(&self) -> bool {
        self.best.0 > self.least && self.spent < self.budget
    }

    /// Continues the search for a peak by this many steps. Returns whether it was reached.
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
