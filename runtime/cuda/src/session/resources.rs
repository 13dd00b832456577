//! The resources of a rank's kernels, held until these have ended.
//!
//! When a run fails, kernels may still wait for peers: our own and the library's. They are asked to end, and
//! their resources are freed after they have ended. If kernels do not end within [`SHUTDOWN_TIMEOUT`], all of
//! their resources stay allocated until the process ends: memory under a running kernel is never freed or
//! unmapped.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use symmc_runtime::RunError;

use super::wait;
use crate::arena::SymmetricArena;
use crate::codegen::collective;
use crate::device::driver::{Device, DeviceBuffer, ExecutableGraph, PinnedBuffer};
use crate::device::streams::LaneStreams;
use crate::error::{CudaError, Result};
use crate::nccl::{CommunicatorTeardown, Communicators};
use crate::program::DeviceProgram;

/// How long kernels have to end after they were asked to.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause between two polls.
const PAUSE: Duration = Duration::from_millis(1);

/// The parts, in the order in which they are dropped: first the users of memory, then the memory.
pub(crate) struct ResourceParts<P = Vec<DeviceProgram>, M = DeviceBuffer> {
    pub programs: P,
    pub streams: LaneStreams,
    pub nccl: Communicators,
    pub arena: SymmetricArena,
    /// The host asks kernels to end through these words, and kernels report in them.
    pub status: Arc<PinnedBuffer>,
    /// Memory that only this rank accesses.
    pub _memory: M,
    pub device: Arc<Device>,
}

/// The parts, and whether work that used them failed.
pub(crate) struct Resources<P = Vec<DeviceProgram>, M = DeviceBuffer> {
    parts: ManuallyDrop<ResourceParts<P, M>>,
    failed: AtomicBool,
}

impl<P, M> Resources<P, M> {
    pub fn new(parts: ResourceParts<P, M>) -> Resources<P, M> {
        Resources { parts: ManuallyDrop::new(parts), failed: AtomicBool::new(false) }
    }

    /// Notes that a run failed. Peers may have left, so kernels that wait for them do not end on their own.
    pub fn mark_failed(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Runs `work`, which leaves work on the device, and notes its failure. Fails if an earlier call failed,
    /// or as `work`.
    pub fn attempt<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.failed.load(Ordering::Relaxed) {
            let text = "an earlier run of this session failed: a new session is needed";
            return Err(CudaError::Unsupported(text.into()));
        }
        work().inspect_err(|_| self.mark_failed())
    }

    /// Replays a graph of one of the programs and waits for it like [`wait::wait_until_idle`]. Returns its
    /// time on the device in microseconds.
    ///
    /// # Safety
    /// The graph uses only these parts.
    pub unsafe fn replay(
        &self,
        graph: &ExecutableGraph,
        alive: &dyn Fn() -> Result<(), RunError>,
    ) -> Result<f64> {
        // SAFETY: the parts exist; the rest by the caller.
        self.attempt(|| unsafe { wait::replay(&self.streams, graph, &self.status, alive) })
    }
}

impl<P, M> Deref for Resources<P, M> {
    type Target = ResourceParts<P, M>;
    fn deref(&self) -> &ResourceParts<P, M> {
        &self.parts
    }
}

impl<P, M> DerefMut for Resources<P, M> {
    fn deref_mut(&mut self) -> &mut ResourceParts<P, M> {
        &mut self.parts
    }
}

impl<P, M> Drop for Resources<P, M> {
    fn drop(&mut self) {
        let _ = self.device.enter();
        let mut aborted = None;
        // Without a failure, all kernels end on their own.
        if *self.failed.get_mut() || !holds_within(SHUTDOWN_TIMEOUT, || wait::are_idle(&self.streams)) {
            collective::abort_waits(&self.status);
            // The library's kernels may wait for a peer that has left.
            aborted = Some(self.nccl.abort());
        }
        if holds_within(SHUTDOWN_TIMEOUT, || wait::are_idle(&self.streams)) {
            // SAFETY: taken once, here; no kernel uses the parts any more.
            let ResourceParts { programs, streams, nccl, arena, status, _memory, device } =
                unsafe { ManuallyDrop::take(&mut self.parts) };
            drop(programs);
            // The library ends communicators once no graph has work of them, and those of the session are gone now.
            let has_ended = aborted.is_none_or(CommunicatorTeardown::wait_briefly);
            drop((streams, nccl));
            if has_ended {
                drop(arena);
            } else {
                // Their windows may refer to it.
                std::mem::forget(arena);
            }
            drop((status, _memory, device));
        } else {
            eprintln!(
                "note: kernels on GPU {} did not end within {} s after they were asked to: their resources are \
                 freed when this process ends",
                self.device.ordinal(),
                SHUTDOWN_TIMEOUT.as_secs()
            );
        }
    }
}

/// Polls `holds` until it is true or the limit has passed.
fn holds_within(limit: Duration, holds: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !holds() {
        if start.elapsed() > limit {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
    true
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn waits_end_when_what_they_wait_for_holds_or_their_time_is_over() {
        let looks = Cell::new(0);
        let is_fulfilled = holds_within(SHUTDOWN_TIMEOUT, || {
            looks.set(looks.get() + 1);
            looks.get() == 3
        });
        assert!(is_fulfilled);
        assert_eq!(looks.get(), 3);
        assert!(!holds_within(Duration::ZERO, || false));
    }
}
