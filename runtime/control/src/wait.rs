//! Waiting for peers: spin briefly, then sleep, always with a timeout.
//!
//! A waiting thread first polls its condition. How long depends on whether spinning succeeded lately. If
//! there are more ranks than processors, it yields the processor between polls. Then it counts itself among
//! its rank's sleepers, polls once more, and sleeps on its rank's doorbell. After at most a time slice it
//! wakes up and checks for an abort and for the timeout. Time in which this process was stopped itself does
//! not count.
//!
//! No wake-up is lost: the sleeper counts itself and then polls; the signaller stores and then reads the
//! count; both have a full fence in between.

use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};

use crate::control::{ControlSegment, futex_wait};
use crate::heartbeat::{ActiveClock, SHORTEST_SILENCE};

/// The longest sleep without a check of the abort word and the clock.
const SLICE: Duration = Duration::from_millis(20);

/// The reason for which a wait ended before its condition was true.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitFailure {
    Limit {
        /// A rank whose process has shown no heartbeat since half of the timeout.
        silent: Option<u32>,
    },
    Aborted,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpinConfig {
    /// The number of polls before the clock is read for the first time.
    pub polls: u32,
    /// Whether the processor is yielded between later polls.
    pub yields: YieldMode,
    /// The shortest spinning time, in nanoseconds.
    pub min_ns: u32,
    /// The longest spinning time, in nanoseconds.
    pub max_ns: u32,
}

/// Whether a waiting thread yields the processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum YieldMode {
    /// Other threads have their own processors.
    Never,
    /// Other threads need the processor, perhaps to make the condition true.
    Always,
}

impl SpinConfig {
    /// A configuration for `threads` busy threads on this machine.
    pub fn for_threads(threads: usize) -> SpinConfig {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        if threads <= cores {
            SpinConfig { polls: 64, yields: YieldMode::Never, min_ns: 20_000, max_ns: 400_000 }
        } else {
            SpinConfig { polls: 4, yields: YieldMode::Always, min_ns: 10_000, max_ns: 200_000 }
        }
    }
}

#[derive(Debug)]
pub struct Waiter {
    control: ControlSegment,
    rank: u32,
    limit: Duration,
    spin: SpinConfig,
    /// The current spinning time, in nanoseconds.
    budget: AtomicU32,
}

/// The sleep of one wait so far.
#[derive(Debug, Default)]
pub struct SleepState {
    /// The time of the wait. `None` before the first sleep.
    clock: Option<ActiveClock>,
    /// The heartbeats of all ranks at half of the timeout.
    heartbeats: Option<Vec<u32>>,
}

impl Waiter {
    pub fn new(control: ControlSegment, rank: u32, limit: Duration, spin: SpinConfig) -> Self {
        Waiter { control, rank, limit, spin, budget: AtomicU32::new(spin.max_ns) }
    }

    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Waits until `ready` returns true. All effects of the signaller before it made `ready` true happen
    /// before this returns, if `ready` loads with acquire.
    #[inline]
    pub fn wait_until(&self, ready: impl Fn() -> bool) -> Result<(), WaitFailure> {
        if self.spin_until(&ready) { Ok(()) } else { self.wait_until_slow(&ready) }
    }

    /// Polls a few times, without sleep or timeout; returns whether `ready` was true.
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
        if self.spin_for_budget(ready)? {
            self.adapt_budget(start.elapsed(), budget);
            return Ok(());
        }
        let mut sleep = SleepState::default();
        while !self.sleep_once(&mut sleep, ready)? {}
        self.adapt_budget(start.elapsed(), budget);
        Ok(())
    }

    /// Polls until the current spinning time has passed; returns whether `ready` was true.
    fn spin_for_budget(&self, ready: &dyn Fn() -> bool) -> Result<bool, WaitFailure> {
        let start = Instant::now();
        let budget = u128::from(self.budget.load(Ordering::Relaxed));
        loop {
            if self.spin_until(ready) {
                return Ok(true);
            }
            if self.spin.yields == YieldMode::Always {
                std::thread::yield_now();
            }
            if self.control.is_aborted() {
                return Err(WaitFailure::Aborted);
            }
            if start.elapsed().as_nanos() >= budget {
                return Ok(false);
            }
        }
    }

    /// Sleeps once, and then checks for an abort and for the timeout; returns the value of `ready`.
    fn sleep_once(&self, state: &mut SleepState, ready: &dyn Fn() -> bool) -> Result<bool, WaitFailure> {
        let SleepState { clock, heartbeats } = state;
        let clock = clock.get_or_insert_with(ActiveClock::start);
        if self.sleep_until_bell(ready) {
            return Ok(true);
        }
        if self.control.is_aborted() {
            return Err(WaitFailure::Aborted);
        }
        let waited = clock.now();
        if waited >= self.limit {
            return Err(WaitFailure::Limit { silent: self.first_silent_rank(heartbeats.as_deref()) });
        }
        if heartbeats.is_none() && waited >= self.limit / 2 {
            *heartbeats = Some(self.sample_heartbeats());
        }
        Ok(false)
    }

    /// Waits like [`wait_until`](Self::wait_until), but returns `false` once `part` has passed. The next call
    /// with the same `state` continues the wait, and all of them together take at most the timeout.
    pub fn wait_for(
        &self,
        state: &mut SleepState,
        part: Duration,
        ready: impl Fn() -> bool,
    ) -> Result<bool, WaitFailure> {
        if state.clock.is_none() && self.spin_for_budget(&ready)? {
            return Ok(true);
        }
        let start = Instant::now();
        loop {
            if self.sleep_once(state, &ready)? {
                return Ok(true);
            }
            if start.elapsed() >= part {
                return Ok(false);
            }
        }
    }

    fn sample_heartbeats(&self) -> Vec<u32> {
        (0..self.control.ranks()).map(|rank| self.control.heartbeat(rank).load(Ordering::Relaxed)).collect()
    }

    /// The first rank that showed heartbeats before and none since; `before` was sampled at half of the
    /// timeout.
    fn first_silent_rank(&self, before: Option<&[u32]>) -> Option<u32> {
        let before = before.filter(|_| self.limit / 2 >= SHORTEST_SILENCE)?;
        let samples = self.sample_heartbeats();
        let mut pairs = before.iter().zip(&samples);
        pairs.position(|(before, now)| *before != 0 && before == now).map(|rank| rank as u32)
    }

    /// Sleeps until the doorbell rings or the time slice ends; returns the value of `ready`.
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

    /// Lengthens spinning after short waits, and shortens it after waits that spinning would not have
    /// covered.
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
