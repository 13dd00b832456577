//! The time that runs of a plan take on a rank, without starting and loading.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// The maximum number of runs whose times are kept: the last ones.
const KEPT: usize = 1 << 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RunTimes {
    pub runs: u64,
    pub least: Duration,
    /// The median of the last 65,536 runs.
    pub median: Duration,
    /// The average processor time of a run, including waits that spin. It is that of the rank's process: with
    /// ranks as threads, the time of all of them.
    pub processor: Duration,
}

impl RunTimes {
    pub fn from_durations(runs: &[Duration]) -> RunTimes {
        let mut sorted = runs.to_vec();
        sorted.sort_unstable();
        let shortest = sorted.first().copied().unwrap_or_default();
        let median = sorted.get(sorted.len() / 2).copied().unwrap_or_default();
        RunTimes { runs: runs.len() as u64, least: shortest, median, processor: Duration::ZERO }
    }

    /// The times of the slowest of several ranks, which the others wait for.
    pub fn slowest(ranks: &[RunTimes]) -> Option<RunTimes> {
        ranks.iter().copied().max_by_key(|times| times.median)
    }
}

#[derive(Debug, Default)]
pub(super) struct RunClock {
    began: Option<Instant>,
    /// The process's processor time when the first run began.
    first_processor_time: Option<Duration>,
    recent_runs: Vec<Duration>,
    runs: u64,
    shortest_run: Option<Duration>,
}

impl RunClock {
    pub fn begin_run(&mut self) {
        self.end_run();
        if self.first_processor_time.is_none() {
            self.first_processor_time = processor_time();
        }
        self.began = Some(Instant::now());
    }

    /// Records that the current run has ended.
    pub fn end_run(&mut self) {
        let Some(began) = self.began.take() else { return };
        let time = began.elapsed();
        let index = (self.runs % KEPT as u64) as usize;
        match self.recent_runs.get_mut(index) {
            Some(slot) => *slot = time,
            None => self.recent_runs.push(time),
        }
        self.runs += 1;
        self.shortest_run = Some(self.shortest_run.map_or(time, |shortest| shortest.min(time)));
    }

    pub fn run_times(&self) -> RunTimes {
        let recent = RunTimes::from_durations(&self.recent_runs);
        let spent =
            self.first_processor_time.zip(processor_time()).map(|(first, now)| now.saturating_sub(first));
        let processor =
            Duration::from_secs_f64(spent.unwrap_or_default().as_secs_f64() / self.runs.max(1) as f64);
        RunTimes { runs: self.runs, least: self.shortest_run.unwrap_or_default(), processor, ..recent }
    }
}

/// The processor time that this process has used.
fn processor_time() -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes only to the given struct.
    let code = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    let seconds = u64::try_from(time.tv_sec).ok()?;
    let nanos = u32::try_from(time.tv_nsec).ok()?;
    (code == 0).then_some(Duration::new(seconds, nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_least_and_a_median() {
        let millis = |list: &[u64]| list.iter().map(|&m| Duration::from_millis(m)).collect::<Vec<_>>();
        let times = RunTimes::from_durations(&millis(&[9, 2, 4, 3, 100]));
        let expected = (5, Duration::from_millis(2), Duration::from_millis(4));
        assert_eq!((times.runs, times.least, times.median), expected);
        assert_eq!(
            RunTimes::slowest(&[times, RunTimes::from_durations(&millis(&[5]))]).map(|t| t.runs),
            Some(1)
        );
        assert_eq!(RunTimes::from_durations(&[]), RunTimes::default());
    }

    #[test]
    fn a_clock_keeps_the_last_of_very_many_runs() {
        let mut clock = RunClock::default();
        clock.end_run();
        assert_eq!(clock.run_times().runs, 0);
        (0..KEPT + 10).for_each(|_| clock.begin_run());
        clock.end_run();
        assert_eq!((clock.run_times().runs, clock.recent_runs.len()), (KEPT as u64 + 10, KEPT));
        assert!(clock.run_times().least <= clock.run_times().median);
    }
}
