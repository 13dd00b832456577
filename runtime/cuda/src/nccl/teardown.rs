//! Destroys and aborts communicators, each on a separate thread.
//!
//! The library ends a communicator only after all CUDA graphs with its work are gone. A caller that captured runs of
//! a session may keep its graphs for as long as it likes, also beyond the session. So the thread of the caller waits
//! for a moment only.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nccl_sys::{Comm, Nccl, Window};
use symmc_support::parallel;

use crate::device::driver::Device;

/// How long a caller waits for the end of communicators. It takes milliseconds unless a graph of the caller has work
/// of them.
const TEARDOWN_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause between two looks at the threads.
const PAUSE: Duration = Duration::from_micros(200);

/// How communicators end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TeardownMode {
    /// Their work has ended.
    Destroy,
    /// Kernels may still wait for peers, and may use windows, which end with the process.
    Abort,
}

/// The threads that end communicators, one for each.
#[must_use]
pub struct CommunicatorTeardown(Vec<JoinHandle<()>>);

/// A communicator that nothing else uses.
pub(super) struct EndedCommunicator {
    pub comm: Comm,
    pub window: Option<Window>,
}

// SAFETY: the library permits calls on a communicator from any thread, one at a time.
unsafe impl Send for EndedCommunicator {}

impl CommunicatorTeardown {
    /// Starts to end these communicators, after it has deregistered the windows of those that are destroyed. A
    /// communicator for which there is no thread is left to the end of the process.
    pub(super) fn start(
        library: Option<&'static Nccl>,
        device: Option<&Arc<Device>>,
        ended: Vec<EndedCommunicator>,
        mode: TeardownMode,
    ) -> CommunicatorTeardown {
        let Some(library) = library else { return CommunicatorTeardown(Vec::new()) };
        if mode == TeardownMode::Destroy {
            for EndedCommunicator { comm, window } in &ended {
                if let Some(window) = window {
                    // SAFETY: both exist; the work on them has ended.
                    let _ = unsafe { (library.functions().comm_window_deregister)(*comm, *window) };
                }
            }
        }
        // Each has its own thread: an abort that waits for a graph must not delay the others, whose kernels may keep the
        // session from dropping that graph.
        let threads = ended.into_iter().map(|communicator| {
            let device = device.cloned();
            parallel::spawn_detached(move || {
                if let Some(device) = &device {
                    let _ = device.enter();
                }
                end_communicator(library, communicator, mode);
            })
        });
        CommunicatorTeardown(threads.flatten().collect())
    }

    /// Waits until the communicators have ended, for a moment at most. Returns whether they have.
    pub fn wait_briefly(self) -> bool {
        let has_ended = self.ends_within(TEARDOWN_TIMEOUT);
        if !has_ended {
            let limit = TEARDOWN_TIMEOUT.as_secs();
            tracing::warn!(
                target: "symmc::session",
                "communicators of NCCL have not ended within {limit} s, probably because a CUDA graph of the caller has their work"
            );
        }
        has_ended
    }

    fn ends_within(&self, limit: Duration) -> bool {
        let start = Instant::now();
        while !self.0.iter().all(JoinHandle::is_finished) {
            if start.elapsed() > limit {
                return false;
            }
            std::thread::sleep(PAUSE);
        }
        true
    }
}

fn end_communicator(library: &Nccl, ended: EndedCommunicator, mode: TeardownMode) {
    let functions = library.functions();
    // SAFETY: the communicator exists and is not used after this. If it is destroyed, its work has ended, or the process
    // ends.
    let _ = unsafe {
        match mode {
            TeardownMode::Destroy => (functions.comm_destroy)(ended.comm),
            TeardownMode::Abort => (functions.comm_abort)(ended.comm),
        }
    };
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI32, Ordering};

    use super::super::tests::fake;
    use super::*;

    /// A graph of the caller, which has work of a communicator until it is freed.
    fn communicator_in_graph(freed: &'static AtomicI32) -> EndedCommunicator {
        EndedCommunicator { comm: Comm(freed.as_ptr().cast()), window: None }
    }

    #[test]
    fn a_graph_of_the_caller_delays_the_end_of_communicators_and_not_the_caller() {
        let library: &'static Nccl = Box::leak(Box::new(fake("22809", true)));
        for mode in [TeardownMode::Destroy, TeardownMode::Abort] {
            let [first, second] = [(); 2].map(|()| &*Box::leak(Box::new(AtomicI32::new(0))));
            let ended = [first, second].map(communicator_in_graph).into();
            let teardown = CommunicatorTeardown::start(Some(library), None, ended, mode);
            assert!(!teardown.ends_within(Duration::from_millis(20)), "{mode:?} while the graphs exist");
            second.store(1, Ordering::Release);
            // The first one does not delay the second.
            let start = Instant::now();
            while !teardown.0[1].is_finished() && start.elapsed() < Duration::from_secs(60) {
                std::thread::sleep(PAUSE);
            }
            assert!(teardown.0[1].is_finished(), "{mode:?} of the second, whose graph was freed");
            assert!(!teardown.ends_within(Duration::ZERO), "{mode:?} while one graph exists");
            first.store(1, Ordering::Release);
            assert!(teardown.ends_within(Duration::from_secs(60)), "{mode:?} after the graphs were freed");
        }
        let none = CommunicatorTeardown::start(Some(library), None, Vec::new(), TeardownMode::Destroy);
        assert!(none.ends_within(Duration::ZERO));
    }
}
