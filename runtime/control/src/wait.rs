//! Waiting for peers: spin briefly, then sleep; never without a limit.
//!
//! A thread that waits first looks again and again. How long depends on whether that paid off lately; where
//! there are more ranks than processors it gives the processor up between looks. After that it
//! counts itself among its rank's sleepers, looks once more, and sleeps on its rank's doorbell for a slice
//! of time at most, after which it looks for an abort and at the limit. Time in which this process was stopped itself does
//! not count.
//!
//! No wake-up is lost: the sleeper counts itself and then looks; the signaller stores and then looks at the
//! count; both with a full fence between.

use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};

use crate::control::{ControlSegment, futex_wait};
use crate::heartbeat::{ActiveClock, SHORTEST_SILENCE};

/// The longest sleep without a look at the abort word and the clock.
const SLICE: Duration = Duration::from_millis(20);

/// Why waiting ended before what was waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitFailure {
    Limit {
        /// A rank whose process has shown no heartbeat since half of the limit.
        silent: Option<u32>,
    },
    Aborted,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpinConfig {
    /// Looks before the clock is read for the first time.
    pub polls: u32,
    /// Whether the processor is given up between later looks.
    pub yields: YieldMode,
    /// At least this long, in nanoseconds.
    pub min_ns: u32,
    /// At most this long, in nanoseconds.
    pub max_ns: u32,
}

/// Whether a waiting thread gives up the processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum YieldMode {
    /// Others have processors of their own.
    Never,
    /// Others need it, perhaps to bring what is waited for.
    Always,
}

impl SpinConfig {
    /// What suits `threads` busy threads on this machine.
    pub fn for_threads(threads: usize) -> SpinConfig {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        match threads {
            n if n <= cores => {
                SpinConfig { polls: 64, yields: YieldMode::Never, min_ns: 20_000, max_ns: 400_000 }
            }
            _ => SpinConfig { polls: 4, yields: YieldMode::Always, min_ns: 10_000, max_ns: 200_000 },
        }
    }
}

#[derive(Debug)]
pub struct Waiter {
    control: ControlSegment,
    rank: u32,
    limit: Duration,
    spin: SpinConfig,
    /// The spinning time in force, in nanoseconds.
    budget: AtomicU32,
}

impl Waiter {
    pub fn new(control: ControlSegment, rank: u32, limit: Duration, spin: SpinConfig) -> Self {
        Waiter { control, rank, limit, spin, budget: AtomicU32::new(spin.max_ns) }
    }

    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Waits until `ready`. Everything that the signaller did before it made `ready` true has happened
    /// before this returns, if `ready` loads with acquire.
    #[inline]
    pub fn wait_until(&self, ready: impl Fn() -> bool) -> Result<(), WaitFailure> {
        if self.spin_until(&ready) { Ok(()) } else { self.wait_until_slow(&ready) }
    }

    /// Looks for a moment, without sleep or limit; whether it is ready.
    #[inline]
    fn spin_until(&self, ready: impl Fn() -> bool) -> bool {
        for _ in 0..self.spin.polls {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    #[cold]
    fn wait_until_slow(&self, ready: &dyn Fn() -> bool) -> Result<(), WaitFailure> {
        let start = Instant::now();
        let budget = self.budget.load(Ordering::Relaxed);
        loop {
            if self.spin_until(ready) {
                self.adapt_budget(start.elapsed(), budget);
                return Ok(());
            }
            if self.spin.yields == YieldMode::Always {
                std::thread::yield_now();
            }
            if self.control.is_aborted() {
                return Err(WaitFailure::Aborted);
            }
            if start.elapsed().as_nanos() >= u128::from(budget) {
                break;
            }
        }
        let mut clock = ActiveClock::start();
        let mut heartbeats = None;
        while !self.sleep_until_bell(ready) {
            if self.control.is_aborted() {
                return Err(WaitFailure::Aborted);
            }
            let waited = clock.now();
            if waited >= self.limit {
                return Err(WaitFailure::Limit { silent: self.first_silent_rank(heartbeats.as_deref()) });
            }
            if heartbeats.is_none() && waited >= self.limit / 2 {
                heartbeats = Some(self.sample_heartbeats());
            }
        }
        self.adapt_budget(start.elapsed(), budget);
        Ok(())
    }

    fn sample_heartbeats(&self) -> Vec<u32> {
        (0..self.control.ranks()).map(|rank| self.control.heartbeat(rank).load(Ordering::Relaxed)).collect()
    }

    /// The first rank that showed heartbeats before and none since; they were taken at half of the limit.
    fn first_silent_rank(&self, before: Option<&[u32]>) -> Option<u32> {
        let before = before.filter(|_| self.limit / 2 >= SHORTEST_SILENCE)?;
        let unchanged = |(before, now): (&u32, &u32)| *before != 0 && before == now;
        before.iter().zip(&self.sample_heartbeats()).position(unchanged).map(|rank| rank as u32)
    }

    /// Sleeps until the doorbell rings or the slice ends; whether it is ready.
    fn sleep_until_bell(&self, ready: &dyn Fn() -> bool) -> bool {
        let bell = self.control.doorbell(self.rank);
        let sleepers = self.control.sleepers(self.rank);
        let rung = bell.load(Ordering::Acquire);
        sleepers.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if !ready() && !self.control.is_aborted() {
            futex_wait(bell, rung, SLICE.min(self.limit));
        }
        sleepers.fetch_sub(1, Ordering::SeqCst);
        ready()
    }

    /// Spins longer after waits that were short, shorter after waits that spinning would not have covered.
    fn adapt_budget(&self, waited: Duration, budget: u32) {
        let waited = u32::try_from(waited.as_nanos()).unwrap_or(u32::MAX);
        let wanted = if waited <= self.spin.max_ns { waited.saturating_mul(2) } else { self.spin.min_ns };
        let next = budget - budget / 8 + wanted / 8;
        self.budget.store(next.clamp(self.spin.min_ns, self.spin.max_ns), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::control::GroupCounter;
    use crate::error::RunError;
    use crate::memory::MemorySegment;

    const SHORT: SpinConfig = SpinConfig { polls: 4, yields: YieldMode::Never, min_ns: 0, max_ns: 1000 };

    fn control() -> ControlSegment {
        let segment = MemorySegment::create("test", ControlSegment::segment_bytes(2, 1)).unwrap();
        ControlSegment::new(Arc::new(segment), 2, 1).unwrap()
    }

    #[test]
    fn a_signal_wakes_a_sleeper() {
        let control = control();
        let waiter = Waiter::new(control.clone(), 0, Duration::from_secs(20), SHORT);
        std::thread::scope(|s| {
            let signaller = control.clone();
            s.spawn(move || {
                for i in 1..=50 {
                    std::thread::sleep(Duration::from_millis(1));
                    signaller.counter(0, 1, GroupCounter::Meet).store(i, Ordering::Release);
                    signaller.wake_ranks([0].into_iter());
                }
            });
            for i in 1..=50 {
                let counter = control.counter(0, 1, GroupCounter::Meet);
                waiter.wait_until(|| counter.load(Ordering::Acquire) >= i).unwrap();
            }
        });
        assert_eq!(control.sleepers(0).load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_rank_that_shows_no_sign_of_life_is_told_from_ranks_that_do() {
        let control = control();
        let waiter = Waiter::new(control.clone(), 0, 3 * SHORTEST_SILENCE, SHORT);
        control.publish_heartbeat(1);
        assert_eq!(waiter.wait_until(|| false), Err(WaitFailure::Limit { silent: Some(1) }));
        let lives = || {
            control.publish_heartbeat(1);
            false
        };
        assert_eq!(waiter.wait_until(lives), Err(WaitFailure::Limit { silent: None }));
    }

    #[test]
    fn limit_and_abort_end_a_wait() {
        let control = control();
        let waiter = Waiter::new(control.clone(), 0, Duration::from_millis(30), SHORT);
        assert_eq!(waiter.wait_until(|| false), Err(WaitFailure::Limit { silent: None }));
        let waiter = Waiter::new(control.clone(), 0, Duration::from_secs(60), SHORT);
        std::thread::scope(|s| {
            s.spawn(|| {
                std::thread::sleep(Duration::from_millis(5));
                control.abort(1, &RunError::Invalid("enough".into()));
            });
            assert_eq!(waiter.wait_until(|| false), Err(WaitFailure::Aborted));
        });
    }
}
