//! The end of communicators, on a thread of its own.
//!
//! The library ends a communicator only after all CUDA graphs with its work are gone. A caller that captured runs of
//! a session may keep its graphs for as long as it likes, also beyond the session. So the thread of the caller waits
//! for a moment only.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use nccl_sys::{Comm, Nccl, Window};
use symmc_support::parallel;

use crate::device::driver::Device;

/// How long a caller waits for the end of communicators. It takes milliseconds unless a graph of the caller has work
/// of them.
const TEARDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// How communicators end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TeardownMode {
    /// Their work has ended.
    Destroy,
    /// Kernels may still wait for peers. Windows end with the process, because kernels may still use them.
    Abort,
}

/// Communicators that end on another thread.
#[must_use]
pub struct CommunicatorTeardown(Option<Receiver<()>>);

/// A communicator that nothing else uses.
pub(super) struct EndedCommunicator {
    pub comm: Comm,
    pub window: Option<Window>,
}

// SAFETY: the library permits calls on a communicator from any thread, one at a time.
unsafe impl Send for EndedCommunicator {}

impl CommunicatorTeardown {
    /// Starts to end these communicators. Without a thread for it, returns after they have ended.
    pub(super) fn start(
        library: Option<&'static Nccl>,
        device: Option<Arc<Device>>,
        ended: Vec<EndedCommunicator>,
        mode: TeardownMode,
    ) -> CommunicatorTeardown {
        let Some(library) = library.filter(|_| !ended.is_empty()) else { return CommunicatorTeardown(None) };
        let (sender, receiver) = channel();
        let (work, started) = channel();
        let end_all = move || {
            if let Some(device) = &device {
                let _ = device.enter();
            }
            started.iter().for_each(|ended| end_communicators(library, ended, mode));
            // The caller may have stopped waiting.
            let _ = sender.send(());
        };
        let thread = parallel::spawn_detached(end_all);
        // Without a thread nothing receives them.
        if let Err(unsent) = work.send(ended) {
            end_communicators(library, unsent.0, mode);
        }
        CommunicatorTeardown(thread.is_ok().then_some(receiver))
    }

    /// Waits until the communicators have ended, for a moment at most.
    pub fn wait_briefly(self) {
        if !self.ends_within(TEARDOWN_TIMEOUT) {
            tracing::warn!(
                target: "symmc::session",
                "a CUDA graph of the caller has work of NCCL: the communicators are freed when the graph is"
            );
        }
    }

    fn ends_within(&self, limit: Duration) -> bool {
        self.0.as_ref().is_none_or(|ended| ended.recv_timeout(limit).is_ok())
    }
}

fn end_communicators(library: &Nccl, ended: Vec<EndedCommunicator>, mode: TeardownMode) {
    let functions = library.functions();
    if mode == TeardownMode::Destroy {
        // The end of a communicator may take long, and the memory of windows is freed before.
        for EndedCommunicator { comm, window } in &ended {
            if let Some(window) = window {
                // SAFETY: both exist; the work on them has ended.
                let _ = unsafe { (functions.comm_window_deregister)(*comm, *window) };
            }
        }
    }
    for EndedCommunicator { comm, .. } in ended {
        // SAFETY: the communicator exists and is not used after this. Its work has ended if it is destroyed, or the
        // process ends.
        let _ = unsafe {
            match mode {
                TeardownMode::Destroy => (functions.comm_destroy)(comm),
                TeardownMode::Abort => (functions.comm_abort)(comm),
            }
        };
    }
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
            let freed: &'static AtomicI32 = Box::leak(Box::new(AtomicI32::new(0)));
            let ended = vec![communicator_in_graph(freed)];
            let teardown = CommunicatorTeardown::start(Some(library), None, ended, mode);
            assert!(!teardown.ends_within(Duration::from_millis(20)), "{mode:?} while the graph exists");
            freed.store(1, Ordering::Release);
            assert!(teardown.ends_within(Duration::from_secs(60)), "{mode:?} after the graph was freed");
        }
        let none = CommunicatorTeardown::start(Some(library), None, Vec::new(), TeardownMode::Destroy);
        assert!(none.ends_within(Duration::ZERO));
    }
}
