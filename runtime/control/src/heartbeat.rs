//! Heartbeats: they distinguish a stopped process from a slow one.
//!
//! The listening thread of each rank ([`crate::link`]) and the coordinator increment a word of the control
//! segment every few milliseconds, whatever else their processes do. Other processes observe whether it
//! changes. The word of a process that is stopped, frozen or swapped out does not change. A word that is 0
//! carries no information: that process has no thread for it.
//!
//! An observer that was stopped itself must not blame others for the time that it missed. Time is therefore
//! counted by [`ActiveClock`], in which a pause of the observer is short.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::control::ControlSegment;

/// The interval at which a process publishes its heartbeat and samples those of others.
pub(crate) const TICK: Duration = Duration::from_millis(50);
/// The longest step of an active clock. More time passes between two readings only if the process did not
/// run.
const LONGEST_STEP: Duration = Duration::from_millis(500);
/// A shorter silence is not significant on a busy machine.
pub(crate) const SHORTEST_SILENCE: Duration = Duration::from_millis(400);

/// Counts the time in which this process runs. It must be read about every [`TICK`].
#[derive(Debug)]
pub(crate) struct ActiveClock {
    last: Instant,
    active: Duration,
}

impl ActiveClock {
    pub fn start() -> ActiveClock {
        ActiveClock::start_at(Duration::ZERO)
    }

    pub fn start_at(active: Duration) -> ActiveClock {
        ActiveClock { last: Instant::now(), active }
    }

    /// The time since the start, in which each pause counts as at most [`LONGEST_STEP`].
    pub fn now(&mut self) -> Duration {
        let now = Instant::now();
        self.active += (now - self.last).min(LONGEST_STEP);
        self.last = now;
        self.active
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct WordSample {
    count: u32,
    changed: Duration,
}

impl WordSample {
    fn observe(&mut self, word: &AtomicU32, now: Duration) {
        let count = word.load(Ordering::Relaxed);
        if count != self.count {
            *self = WordSample { count, changed: now };
        }
    }

    fn silence(&self, now: Duration) -> Option<Duration> {
        (self.count != 0).then(|| now.saturating_sub(self.changed))
    }
}

#[derive(Debug)]
pub(crate) struct Observer {
    control: ControlSegment,
    ranks: Vec<WordSample>,
    coordinator: WordSample,
}

impl Observer {
    pub fn new(control: &ControlSegment) -> Observer {
        let ranks = vec![WordSample::default(); control.ranks() as usize];
        Observer { control: control.clone(), ranks, coordinator: WordSample::default() }
    }

    pub fn sample_heartbeats(&mut self, now: Duration) {
        for (rank, observed) in (0..).zip(&mut self.ranks) {
            observed.observe(self.control.heartbeat(rank), now);
        }
        self.coordinator.observe(self.control.coordinator_heartbeat(), now);
    }

    /// How long a rank has shown no heartbeat; `None` if it never showed one.
    pub fn silence(&self, rank: u32, now: Duration) -> Option<Duration> {
        self.ranks.get(rank as usize)?.silence(now)
    }

    /// How long the coordinator has shown no heartbeat; `None` if it never showed one.
    pub fn coordinator_silence(&self, now: Duration) -> Option<Duration> {
        self.coordinator.silence(now)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::memory::MemorySegment;

    #[test]
    fn silence_is_counted_from_the_last_change_and_unknown_without_one() {
        let segment = MemorySegment::create("test", ControlSegment::segment_bytes(2, 1)).expect("a segment");
        let control = ControlSegment::new(Arc::new(segment), 2, 1).expect("control words");
        let mut observer = Observer::new(&control);
        let millis = Duration::from_millis;
        control.publish_heartbeat(1);
        observer.sample_heartbeats(millis(100));
        assert_eq!(
            (observer.silence(0, millis(900)), observer.silence(1, millis(900))),
            (None, Some(millis(800)))
        );
        control.publish_heartbeat(1);
        observer.sample_heartbeats(millis(900));
        assert_eq!(observer.silence(1, millis(900)), Some(millis(0)));
        assert_eq!(observer.coordinator_silence(millis(900)), None);
        control.coordinator_heartbeat().store(u32::MAX, Ordering::Relaxed);
        control.publish_coordinator_heartbeat();
        observer.sample_heartbeats(millis(950));
        assert_eq!(observer.coordinator_silence(millis(951)), Some(millis(1)));
    }
}
