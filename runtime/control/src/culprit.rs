//! Finds the rank that keeps the others waiting.
//!
//! A rank that times out knows which peers have not come, and these may wait for another rank themselves. All
//! ranks run the same steps, so a rank waits only for ranks with no more progress than itself. The rank with
//! the least progress waits for no other.

use crate::control::{ControlSegment, RankProgress};

/// The progress of a rank, in an order that all ranks share: the run, then the step.
pub(crate) type ProgressPosition = (u64, u64);

pub(crate) fn progress_position(progress: &RankProgress) -> ProgressPosition {
    let run = progress.run.saturating_add(1);
    match (progress.running, progress.step) {
        (true, Some(step)) => (run, u64::from(step) + 1),
        (true, None) => (run, 0),
        (false, _) if progress.beats == 0 => (0, 0),
        (false, _) => (run, u64::MAX),
    }
}

/// The rank that ultimately keeps `reporter` waiting. `missing` are the ranks that it waits for, at least
/// one.
pub fn find_culprit(control: &ControlSegment, reporter: u32, missing: &[u32]) -> u32 {
    let present = (0..control.ranks()).filter(|rank| *rank != reporter && !missing.contains(rank));
    // Among ranks with equal progress the first in the list is chosen, so the missing ones go first.
    let slowest = missing.iter().copied().chain(present).min_by_key(|&rank| rank_position(control, rank));
    let first = missing.first().copied().unwrap_or(reporter);
    let reporter_position = rank_position(control, reporter);
    slowest.filter(|&rank| rank_position(control, rank) < reporter_position).unwrap_or(first)
}

fn rank_position(control: &ControlSegment, rank: u32) -> ProgressPosition {
    progress_position(&control.progress(rank))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::memory::MemorySegment;

    fn control() -> ControlSegment {
        let segment = MemorySegment::create("test", ControlSegment::segment_bytes(4, 1)).expect("a segment");
        ControlSegment::new(Arc::new(segment), 4, 1).expect("control words")
    }

    /// Places a rank at a step of a run; without a step, outside of the run.
    fn put(control: &ControlSegment, rank: u32, run: u64, step: Option<u32>) {
        control.begin_run(rank, Some((run, 0)));
        match step {
            Some(step) => control.begin_step(rank, step),
            None => control.begin_run(rank, None),
        }
    }

    #[test]
    fn the_rank_that_is_furthest_behind_is_found_through_those_that_wait_for_it() {
        let control = control();
        put(&control, 0, 5, Some(7));
        put(&control, 1, 5, Some(4));
        put(&control, 2, 5, Some(2));
        put(&control, 3, 6, Some(0));
        // Rank 0 waits for rank 1, which waits for rank 2.
        assert_eq!(find_culprit(&control, 0, &[1]), 2);
        assert_eq!(find_culprit(&control, 0, &[2, 1]), 2);
    }

    #[test]
    fn a_rank_between_runs_is_behind_those_that_run() {
        let control = control();
        put(&control, 0, 3, Some(1));
        put(&control, 1, 3, Some(1));
        put(&control, 2, 2, None);
        put(&control, 3, 3, Some(9));
        assert_eq!(find_culprit(&control, 0, &[1]), 2);
        // A rank that never ran has the least progress. If all are equal, the missing rank is the culprit.
        let fresh = super::tests::control();
        put(&fresh, 0, 0, Some(0));
        assert_eq!(find_culprit(&fresh, 0, &[3]), 3);
        let segment = super::tests::control();
        (0..4).for_each(|rank| put(&segment, rank, 1, Some(3)));
        assert_eq!(find_culprit(&segment, 0, &[2]), 2);
    }
}
