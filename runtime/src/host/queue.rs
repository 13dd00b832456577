//! The runs of a session of the host: one after another, on the caller's thread or on a thread of the
//! session.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use symmc_control::{JoinedRank, MemorySegment, enter_rank_span};
use symmc_support::parallel;

use crate::custom::panic_message;
use crate::error::{Result, RunError};
use crate::exec::{ByteSpan, ExecConfig, RankMemory};
use crate::kernels::{Scratch, ScratchNeeds};
use crate::session::SizedProgram;

/// The resources of one run.
pub(super) struct ResolvedHostRun {
    pub sized: SizedProgram,
    pub memory: RankMemory,
    /// Whether ranks confirm to each other at the end of the run that no step refused its data.
    pub confirms_success: bool,
    /// Keeps the memory alive as long as a run may use it.
    pub _segments: Vec<Arc<MemorySegment>>,
}

// SAFETY: the spans refer to memory that the segments hold, or that the caller lends to the session's runs,
// on any thread.
unsafe impl Send for ResolvedHostRun {}
// SAFETY: as above; runs follow each other.
unsafe impl Sync for ResolvedHostRun {}

pub(super) struct PendingHostRun {
    pub number: u64,
    pub resolved: Arc<ResolvedHostRun>,
    /// The bucket, if its steps are those of the plan that the session was opened with.
    pub bucket: Option<usize>,
    /// Inputs to be copied to the symmetric arena before the run: the source, and the destination offset.
    pub loads: Vec<(ByteSpan, usize)>,
}

// SAFETY: as for `ResolvedHostRun`.
unsafe impl Send for PendingHostRun {}

/// Enqueued runs, and the thread that executes them.
#[derive(Default)]
pub(super) struct HostRunQueue {
    pub exec: ExecConfig,
    state: Arc<QueueState>,
    worker: Option<(mpsc::Sender<PendingHostRun>, JoinHandle<()>)>,
}

/// The progress of the runs.
#[derive(Default)]
struct QueueState {
    progress: Mutex<QueueProgress>,
    changed: Condvar,
    /// The scratch memory that kernels of each lane need at the largest sizes.
    needs: [ScratchNeeds; 2],
}

#[derive(Default)]
struct QueueProgress {
    enqueued: u64,
    done: u64,
    failure: Option<RunError>,
    /// `None` before the first run, and while a run uses it.
    scratch: Option<[Scratch; 2]>,
}

impl QueueState {
    fn lock_progress(&self) -> MutexGuard<'_, QueueProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes of the kernels' scratch memory; during a run, the most that it may need.
    fn scratch_bytes(&self) -> usize {
        let progress = self.lock_progress();
        match &progress.scratch {
            Some(scratch) => scratch.iter().map(Scratch::bytes).sum(),
            None if progress.done == progress.enqueued => 0,
            None => self.needs.iter().map(ScratchNeeds::bytes).sum(),
        }
    }

    fn run_pending(&self, joined: &JoinedRank, exec: &ExecConfig, pending: &PendingHostRun) -> Result<()> {
        let cached = self.lock_progress().scratch.take();
        let mut scratch = cached.unwrap_or_else(|| self.needs.each_ref().map(Scratch::with_needs));
        // SAFETY: the segments of the run and the caller keep the memory alive; no other run is in progress.
        let work = AssertUnwindSafe(|| unsafe { execute_run(joined, exec, pending, &mut scratch) });
        let ran = catch_unwind(work).unwrap_or_else(|panic| {
            Err(RunError::Defect(format!("run {} panicked: {}", pending.number, panic_message(&*panic))))
        });
        let ran = ran.map_err(|error| joined.fail_run(error));
        let mut progress = self.lock_progress();
        progress.scratch = Some(scratch);
        progress.done += 1;
        if let Err(error) = &ran {
            progress.failure.get_or_insert(error.clone());
        }
        drop(progress);
        self.changed.notify_all();
        ran
    }
}

/// A bucket whose steps have no names for the coordinator.
const UNNAMED: usize = u32::MAX as usize;

/// # Safety
/// As [`ResolvedProgram::run`].
unsafe fn execute_run(
    joined: &JoinedRank,
    exec: &ExecConfig,
    pending: &PendingHostRun,
    scratch: &mut [Scratch; 2],
) -> Result<()> {
    let comm = joined.comm();
    let resolved = &*pending.resolved;
    let SizedProgram { program: bound, digest, text } = &resolved.sized;
    let number = pending.number;
    let bucket = bound.bucket();
    let _span = enter_rank_span(comm.rank());
    tracing::trace!(target: "symmc::run", number, bucket, "starting a run");
    joined.expect_running()?;
    comm.announce_run(pending.number, *digest, &|| text.to_string())?;
    comm.begin_run(pending.number, pending.bucket.unwrap_or(UNNAMED));
    for (from, offset) in &pending.loads {
        let destination = comm.arena().as_ptr().wrapping_add(*offset);
        if from.ptr != destination {
            // SAFETY: both hold the bytes of the input, by its resolution; peers access it during runs only.
            unsafe { std::ptr::copy(from.ptr, destination, from.len) };
        }
    }
    // SAFETY: by the caller.
    unsafe { bound.run(&resolved.memory, comm, exec, scratch)? };
    if resolved.confirms_success {
        // A rank that refuses its data ends this wait: the run fails on all ranks, or on none.
        comm.exchange_bytes(&[0])?;
    }
    comm.end_run();
    tracing::trace!(target: "symmc::run", number, "finished a run");
    Ok(())
}

impl HostRunQueue {
    /// An empty queue, where kernels of each lane have these needs at the largest sizes.
    pub fn new(exec: ExecConfig, needs: [ScratchNeeds; 2]) -> HostRunQueue {
        HostRunQueue { exec, state: Arc::new(QueueState { needs, ..QueueState::default() }), worker: None }
    }

    /// The bytes of the kernels' scratch memory.
    pub fn scratch_bytes(&self) -> usize {
        self.state.scratch_bytes()
    }

    /// Frees the kernels' scratch memory. No run may be in progress.
    pub fn free_scratch(&self) {
        self.state.lock_progress().scratch = None;
    }

    /// Adds the needs of another program to the kernels' scratch memory. No run may be in progress.
    pub fn extend_scratch_needs(&mut self, more: &[ScratchNeeds; 2]) {
        self.stop_worker();
        let mut needs = self.state.needs.clone();
        needs.iter_mut().zip(more).for_each(|(needs, more)| needs.merge(more));
        let done = self.state.lock_progress().done;
        let progress = Mutex::new(QueueProgress { enqueued: done, done, ..QueueProgress::default() });
        self.state = Arc::new(QueueState { progress, changed: Condvar::new(), needs });
    }

    pub fn is_idle(&self) -> Result<bool> {
        let progress = self.state.lock_progress();
        match &progress.failure {
            Some(error) => Err(error.clone()),
            None => Ok(progress.done == progress.enqueued),
        }
    }

    pub fn expect_no_failure(&self) -> Result<()> {
        self.state.lock_progress().failure.clone().map_or(Ok(()), Err)
    }

    /// Executes a run in this thread; no other run may be in progress.
    pub fn run_on_this_thread(&self, joined: &JoinedRank, pending: &PendingHostRun) -> Result<()> {
        self.state.lock_progress().enqueued += 1;
        self.state.run_pending(joined, &self.exec, pending)
    }

    /// Starts the thread, if it is not running.
    pub fn ensure_worker(&mut self, joined: &Arc<JoinedRank>) -> Result<()> {
        if self.worker.is_none() {
            self.worker = Some(self.spawn_worker(joined.clone())?);
        }
        Ok(())
    }

    pub fn enqueue(&self, pending: PendingHostRun) -> Result<()> {
        self.state.lock_progress().enqueued += 1;
        let sent = self.worker.as_ref().is_some_and(|(sender, _)| sender.send(pending).is_ok());
        sent.then_some(()).ok_or_else(|| RunError::Defect("the session has no thread for its runs".into()))
    }

    fn spawn_worker(
        &self,
        joined: Arc<JoinedRank>,
    ) -> Result<(mpsc::Sender<PendingHostRun>, JoinHandle<()>)> {
        let (sender, runs) = mpsc::channel::<PendingHostRun>();
        let state = self.state.clone();
        let exec = self.exec;
        let thread = parallel::spawn_detached(move || {
            for pending in runs {
                if state.lock_progress().failure.is_some() {
                    // Runs after a failure are not executed.
                    state.lock_progress().done += 1;
                } else {
                    // The failure is stored for callers that wait.
                    drop(state.run_pending(&joined, &exec, &pending));
                }
            }
        });
        let thread =
            thread.map_err(|e| RunError::from_system_call("starting the thread of a session", "clone", e))?;
        Ok((sender, thread))
    }

    pub fn wait_idle(&self, rank: u32, limit: Option<Duration>) -> Result<()> {
        let until = limit.map(|limit| Instant::now() + limit);
        let mut progress = self.state.lock_progress();
        let _span = enter_rank_span(rank);
        tracing::trace!(target: "symmc::run", done = progress.done, enqueued = progress.enqueued, ?limit, "waiting for runs");
        loop {
            if let Some(error) = &progress.failure {
                return Err(error.clone());
            }
            if progress.done == progress.enqueued {
                return Ok(());
            }
            let remaining =
                until.map_or(Duration::from_secs(3600), |u| u.saturating_duration_since(Instant::now()));
            if remaining.is_zero() {
                let limit_ms = limit.unwrap_or_default().as_millis() as u64;
                tracing::warn!(target: "symmc::run", run = progress.done, limit_ms, "timed out waiting for a run");
                return Err(RunError::Unfinished { rank, run: progress.done, limit_ms });
            }
            let waited = self.state.changed.wait_timeout(progress, remaining);
            progress = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends the thread, after it has executed the enqueued runs.
    pub fn stop_worker(&mut self) {
        if let Some((sender, thread)) = self.worker.take() {
            drop(sender);
            // Failures of the thread are stored already.
            let _ = thread.join();
        }
    }
}
