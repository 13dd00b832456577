//! Ends kernels that wait for peers that have failed, while nobody polls their session.
//!
//! A caller may wait for its stream itself, for example in a framework, and poll the session only afterwards. So one
//! thread of the process looks at the shared memory of all sessions. A peer that has closed its session in order is
//! left to the polls of the session, which know whether runs still need it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use symmc_control::{ControlSegment, SharedRunMemory};
use symmc_runtime::RunError;

use crate::codegen::collective;
use crate::device::driver::PinnedBuffer;

/// The pause between two looks at the shared memory of all sessions.
const WATCH_INTERVAL: Duration = Duration::from_millis(100);

static WATCHED: Mutex<WatchedSessions> =
    Mutex::new(WatchedSessions { sessions: Vec::new(), has_thread: false });

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

struct WatchedSessions {
    sessions: Vec<WatchedSession>,
    has_thread: bool,
}

struct WatchedSession {
    number: u64,
    memory: SharedRunMemory,
    status: Arc<PinnedBuffer>,
}

/// Watches the peers of a session until it is dropped.
pub(super) struct PeerWatch {
    number: u64,
}

impl PeerWatch {
    /// Watches the ranks that share this memory. `status` is that of this rank's kernels.
    pub fn start(memory: &SharedRunMemory, status: &Arc<PinnedBuffer>) -> PeerWatch {
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut watched = lock_sessions();
        watched.sessions.push(WatchedSession { number, memory: memory.clone(), status: status.clone() });
        if !watched.has_thread {
            // Without the thread, failures are found when the session is polled.
            watched.has_thread = Builder::new().name("symmc peers".into()).spawn(watch_sessions).is_ok();
        }
        PeerWatch { number }
    }
}

impl Drop for PeerWatch {
    fn drop(&mut self) {
        let ended = {
            let mut watched = lock_sessions();
            let position = watched.sessions.iter().position(|session| session.number == self.number);
            position.map(|position| watched.sessions.swap_remove(position))
        };
        // Memory of the device is freed here, and not by the thread.
        drop(ended);
    }
}

fn lock_sessions() -> MutexGuard<'static, WatchedSessions> {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn watch_sessions() {
    loop {
        std::thread::sleep(WATCH_INTERVAL);
        let mut watched = lock_sessions();
        if watched.sessions.is_empty() {
            watched.has_thread = false;
            return;
        }
        for session in &watched.sessions {
            if has_failed_peer(&session.memory.control) {
                collective::abort_waits(&session.status);
            }
        }
    }
}

/// Whether the session has ended because of a failure.
fn has_failed_peer(control: &ControlSegment) -> bool {
    control.abort_reason().is_some_and(|end| match end.cause() {
        RunError::Left { rank, .. } => control.runs_before_close(*rank).is_none(),
        _ => true,
    })
}
