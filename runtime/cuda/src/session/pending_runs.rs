//! Runs that were enqueued on streams and may not have ended.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::context::ExecutionContext;
use super::progress::RunProgress;
use super::recording::Executable;
use crate::device::driver::{Event, Stream};
use crate::error::Result;

/// The runs that were enqueued on streams.
pub(super) struct PendingRuns {
    pub end: Event,
    /// The driver's handle of the stream of the last run.
    pub stream: Option<usize>,
    pub pending: bool,
    /// The number of the first run that may not have ended.
    pub first: u64,
    /// The number of runs that may not have ended.
    pub count: u32,
    /// Graphs that may be running.
    pub running: Vec<Arc<Executable>>,
    /// The progress that was reported to peers.
    pub progress: RunProgress,
}

impl PendingRuns {
    pub fn new(end: Event) -> PendingRuns {
        let heard = RunProgress::new(Instant::now());
        PendingRuns {
            end,
            stream: None,
            pending: false,
            first: 0,
            count: 0,
            running: Vec::new(),
            progress: heard,
        }
    }

    pub fn clear(&mut self) {
        (self.pending, self.count) = (false, 0);
        self.running.clear();
    }

    /// Makes a stream wait for the pending runs, unless they are on the same stream.
    pub fn wait_before(&self, stream: &Stream, context: &ExecutionContext) -> Result<()> {
        if !self.pending {
            context.progress().store(0, Ordering::Relaxed);
        } else if self.stream != Some(stream.handle().addr()) {
            stream.wait(&self.end)?;
        }
        Ok(())
    }

    /// Marks that `runs` runs were enqueued on a stream after the pending ones. `run` is the number of the
    /// first.
    pub fn push_runs(
        &mut self,
        stream: &Stream,
        executable: &Arc<Executable>,
        run: u64,
        count: u32,
    ) -> Result<()> {
        self.end.record(stream)?;
        self.stream = Some(stream.handle().addr());
        if !self.pending {
            (self.pending, self.first, self.progress) = (true, run, RunProgress::new(Instant::now()));
        }
        self.count = self.count.saturating_add(count);
        if !self.running.iter().rev().any(|running| Arc::ptr_eq(running, executable)) {
            self.running.push(executable.clone());
        }
        Ok(())
    }

    pub fn bucket(&self) -> Option<usize> {
        let mut buckets = self.running.iter().map(|executable| executable.bound.bucket());
        let first = buckets.next()?;
        buckets.all(|bucket| bucket == first).then_some(first)
    }
}
