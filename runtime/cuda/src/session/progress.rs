//! The progress reports that a rank sends to peers about the runs that it waits for.
//!
//! The coordinator ends a session when a rank waits and sends no report for longer than the limit. A rank
//! reports each NCCL collective that begins, if the device publishes it. It also reports that it is alive
//! while its pending runs may still be within their time: the limit for each run.

use std::time::{Duration, Instant};

/// The last report of the runs in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunProgress {
    /// One more than the step that began last; 0 before the first.
    word: u32,
    changed: Instant,
    last: Instant,
}

/// A report to peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ProgressUpdate {
    Step(usize),
    Alive,
}

impl RunProgress {
    /// The initial state of runs that begin now.
    pub fn new(now: Instant) -> RunProgress {
        RunProgress { word: 0, changed: now, last: now }
    }

    /// The next report for `runs` pending runs, given that the device published `word`.
    pub fn next_update(
        &mut self,
        word: u32,
        now: Instant,
        limit: Duration,
        runs: u32,
    ) -> Option<ProgressUpdate> {
        if word != self.word {
            *self = RunProgress { word, changed: now, last: now };
            return Some((word as usize).checked_sub(1).map_or(ProgressUpdate::Alive, ProgressUpdate::Step));
        }
        let pending_limit = limit.saturating_mul(runs.saturating_sub(1));
        if now - self.changed >= pending_limit || now - self.last < limit / 4 {
            return None;
        }
        self.last = now;
        Some(ProgressUpdate::Alive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(8);

    /// The seconds at which a report is sent for `runs` runs without any progress of the device.
    fn beats(runs: u32) -> Vec<u64> {
        let start = Instant::now();
        let mut heard = RunProgress::new(start);
        (0..100)
            .filter(|&second| {
                heard.next_update(0, start + Duration::from_secs(second), LIMIT, runs).is_some()
            })
            .collect()
    }

    #[test]
    fn each_run_may_take_as_long_as_the_limit() {
        assert_eq!(beats(1), [0u64; 0]);
        assert_eq!(beats(2), [2, 4, 6]);
        assert_eq!(beats(4).last(), Some(&22));
        assert_eq!(beats(u32::MAX).last(), Some(&98));
    }

    #[test]
    fn a_step_is_heard_of_once_when_it_begins() {
        let start = Instant::now();
        let mut heard = RunProgress::new(start);
        let updates = [0, 4, 4, 2, 2, 0].map(|word| heard.next_update(word, start, LIMIT, 1));
        let expected = [
            None,
            Some(ProgressUpdate::Step(3)),
            None,
            Some(ProgressUpdate::Step(1)),
            None,
            Some(ProgressUpdate::Alive),
        ];
        assert_eq!(updates, expected);
    }
}
