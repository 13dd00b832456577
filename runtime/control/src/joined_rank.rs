//! A rank that has joined a run: its peers run the same plan, and are watched until the rank leaves.
//!
//! A rank that joined for a session leaves it when its caller wants, without waiting for peers that continue.
//! A rank that joined for a job ends with the job of all ranks, and gets its result.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::communicator::RankCommunicator;
use crate::control::RankProgress;
use crate::error::{Result, RunError};
use crate::heartbeat::{ActiveClock, Observer};
use crate::link::CoordinatorLink;
use crate::wait::SpinConfig;

#[derive(Debug)]
pub struct JoinedRank {
    link: CoordinatorLink,
    comm: RankCommunicator,
    /// The coordinating thread, on rank 0 of a run that no launcher of this crate coordinates.
    coordinator: Option<JoinHandle<Result<()>>>,
    /// The maximum time that rank 0 waits for the others when it closes a session.
    close_timeout: Duration,
}

/// When rank 0 leaves, it does not wait for a rank that has shown no heartbeat for this long.
const MAX_SILENCE_AT_CLOSE: Duration = Duration::from_secs(1);

/// How a rank leaves a session in which it has no run in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaveMode {
    /// The caller closed the session.
    Closed,
    /// The caller dropped the session, and does not expect this to take long.
    Dropped,
}

impl LeaveMode {
    /// The maximum time that rank 0 waits for the others, where `close_timeout` is the maximum for a closed
    /// session.
    fn max_wait(self, close_timeout: Duration) -> Duration {
        match self {
            LeaveMode::Closed => close_timeout,
            LeaveMode::Dropped => close_timeout.min(Duration::from_millis(500)),
        }
    }
}

/// The runs whose progress a session records in the control segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProgressRecording {
    /// The beginning and end of every run.
    All,
    /// Only a run for whose end the rank waits, while it waits.
    Awaited,
}

impl ProgressRecording {
    /// Whether a rank has not finished the last run of `other`, or has yet to begin a run that `other` has
    /// ended.
    fn is_within_run(self, rank: &RankProgress, other: &RankProgress) -> bool {
        let has_ended = self == ProgressRecording::All && other.beats > 0 && !other.running;
        (rank.running && rank.run <= other.run) || (has_ended && (rank.beats == 0 || rank.run < other.run))
    }
}

impl JoinedRank {
    pub(crate) fn new(link: CoordinatorLink, comm: RankCommunicator) -> JoinedRank {
        JoinedRank { link, comm, coordinator: None, close_timeout: Duration::ZERO }
    }

    /// Adds to rank 0 the thread that coordinates all ranks.
    pub(crate) fn with_coordinator(self, coordinator: JoinHandle<Result<()>>) -> JoinedRank {
        JoinedRank { coordinator: Some(coordinator), ..self }
    }

    /// Sets the maximum time that rank 0 waits for the others when it closes a session.
    pub fn with_close_timeout(self, close_timeout: Duration) -> JoinedRank {
        JoinedRank { close_timeout, ..self }
    }

    pub(crate) fn with_spin(self, spin: SpinConfig) -> JoinedRank {
        JoinedRank { comm: self.comm.with_spin(spin), ..self }
    }

    /// Delays the rank at random around every access to a peer, if there is a seed.
    pub fn with_chaos(self, seed: Option<u64>) -> JoinedRank {
        JoinedRank { comm: self.comm.with_chaos(seed), ..self }
    }

    pub fn comm(&self) -> &RankCommunicator {
        &self.comm
    }

    /// Notifies the coordinator that this rank is ready to run; returns when all ranks are.
    pub fn start(&self) -> Result<()> {
        self.link.start()
    }

    /// Ends the run on all ranks because of an error of this one. Returns the error that explains the failure
    /// best.
    pub fn fail_run(&self, error: RunError) -> RunError {
        self.comm.domain.control.abort(self.comm.rank, &error);
        self.link.report_failure(error)
    }

    /// Fails if the run has ended on any rank.
    pub fn expect_running(&self) -> Result<()> {
        self.comm.control().abort_reason().map_or(Ok(()), Err)
    }

    pub fn send_answer(&self, answer: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string(answer).map_err(|e| RunError::system("writing an answer", e))?;
        self.link.send_answer(&text)
    }

    /// Ends a job with the result of this rank; returns the result of all ranks.
    pub fn conclude_job(self, result: Result<()>) -> Result<()> {
        let result = self.link.report_result(result);
        let verdict = self.coordinator.map_or(Ok(()), await_coordinator);
        verdict.and(result)
    }

    /// Leaves a session after this many runs. It does not wait for the others to leave: they may do so late,
    /// and may wait for this rank before. If ranks are processes, the coordinator of rank 0 ends with its
    /// process. Rank 0 therefore waits until the others have ended the runs that it has ended. It waits for
    /// at most the timeout, or half a second if the session is dropped, and not for stopped processes: the
    /// others may wait for rank 0 in their next session, and would blame it. Peers that begin a later run are
    /// refused.
    pub fn leave_session(self, recorded: ProgressRecording, runs: u64, leaving: LeaveMode) {
        let control = self.comm.control().clone();
        let me = self.comm.rank();
        control.set_closed(me, runs);
        let own_progress = control.progress(me);
        let peers = (0..control.ranks()).filter(|&rank| rank != me);
        let max_silence = MAX_SILENCE_AT_CLOSE.min(self.close_timeout / 2);
        // A coordinator that is gone needs no notice.
        let _ = self.link.report_done();
        drop(self.link);
        let Some(coordinator) = self.coordinator else { return };
        let until = Instant::now() + leaving.max_wait(self.close_timeout);
        let mut observer = Observer::new(&control);
        let mut clock = ActiveClock::start();
        let mut pause = Duration::from_micros(50);
        while !coordinator.is_finished() && Instant::now() < until {
            let now = clock.now();
            observer.sample_heartbeats(now);
            let is_awaited = |rank: u32| {
                recorded.is_within_run(&control.progress(rank), &own_progress)
                    && observer.silence(rank, now).is_none_or(|silence| silence < max_silence)
            };
            if !peers.clone().any(is_awaited) {
                break;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        }
    }
}

/// Waits until the coordinator has returned the result of the run.
pub(crate) fn await_coordinator(coordinator: JoinHandle<Result<()>>) -> Result<()> {
    coordinator.join().unwrap_or_else(|_| Err(RunError::system("the coordinator", "panicked")))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, mpsc};

    use super::*;
    use crate::channel::Channel;
    use crate::domain::SharedRunMemory;
    use crate::link::CoordinatorLinkConfig;
    use crate::opening::{CoordinatedBy, OpeningRank};
    use crate::steps::LocateStep;

    const LIMIT: Duration = Duration::from_secs(3600);

    /// Rank 0 leaves while rank 1 stays in a run that rank 0 has ended, and the coordinator continues. Returns
    /// whether rank 0 waited for rank 1, whose run a watchdog ends after 30 seconds. `is_stopped`: the heartbeat
    /// of rank 1 has ended, instead of being unknown.
    fn waits_for_peer(leaving: LeaveMode, is_stopped: bool) -> bool {
        let domain = SharedRunMemory::create(2, 1, 64, 0).expect("shared memory");
        let control = domain.control.clone();
        for rank in [0, 1] {
            control.begin_run(rank, Some((0, 0)));
        }
        control.begin_run(0, None);
        if is_stopped {
            control.publish_heartbeat(1);
        }
        let (ours, _theirs) = Channel::connected_pair();
        let opening = OpeningRank::new(0, CoordinatedBy::Rank0, LIMIT, Duration::ZERO);
        let config = CoordinatorLinkConfig {
            control: control.clone(),
            rank: 0,
            by: CoordinatedBy::Rank0,
            locate_step: LocateStep::default(),
            limit: LIMIT,
        };
        let link = CoordinatorLink::new(ours, config, opening);
        let (left, has_left) = mpsc::channel::<()>();
        let is_late = Arc::new(AtomicBool::new(false));
        let notified = control.clone();
        let late = is_late.clone();
        let coordinator = std::thread::spawn(move || {
            if has_left.recv_timeout(Duration::from_secs(30)).is_err() {
                late.store(true, Ordering::Relaxed);
                notified.begin_run(1, None);
            }
            Ok(())
        });
        let rank = JoinedRank::new(link, RankCommunicator::new(domain, 0, LIMIT));
        let rank = rank.with_coordinator(coordinator).with_close_timeout(LIMIT);
        rank.leave_session(ProgressRecording::All, 1, leaving);
        let _ = left.send(());
        assert_eq!(control.runs_before_close(0), Some(1));
        is_late.load(Ordering::Relaxed)
    }

    #[test]
    fn dropped_session_does_not_wait_for_the_limit() {
        assert!(!waits_for_peer(LeaveMode::Dropped, false));
        assert_eq!(
            (LeaveMode::Closed.max_wait(LIMIT), LeaveMode::Dropped.max_wait(Duration::ZERO)),
            (LIMIT, Duration::ZERO)
        );
    }

    #[test]
    fn closed_session_does_not_wait_for_a_stopped_process() {
        assert!(!waits_for_peer(LeaveMode::Closed, true));
    }
}
