//! The process number of this process, without a system call, and whether another process is stopped.
//!
//! The resources of a session (threads, sockets, shared memory) do not survive a fork: the child has a copy
//! without the threads, and its use of the rest reaches the parent's peers. Before every call, a session
//! therefore compares the process that opened it with the calling process.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The number of this process; 0 while it is unknown.
static NUMBER: AtomicU32 = AtomicU32::new(0);
/// Whether a fork resets the number in the child.
static IS_WATCHED: AtomicBool = AtomicBool::new(false);
static WATCH: Once = Once::new();

#[inline]
pub fn current_process() -> u32 {
    match NUMBER.load(Ordering::Relaxed) {
        0 => query_process(),
        number => number,
    }
}

#[cold]
fn query_process() -> u32 {
    WATCH.call_once(|| {
        // SAFETY: the handler makes one atomic store, which is safe in a child after a fork.
        let is_watched = unsafe { libc::pthread_atfork(None, None, Some(forget_process)) } == 0;
        IS_WATCHED.store(is_watched, Ordering::Relaxed);
    });
    let number = std::process::id();
    if IS_WATCHED.load(Ordering::Relaxed) {
        NUMBER.store(number, Ordering::Relaxed);
    }
    number
}

unsafe extern "C" fn forget_process() {
    NUMBER.store(0, Ordering::Relaxed);
}

/// Whether a process is stopped by a signal or a debugger. `false` if the system does not tell.
pub(crate) fn is_stopped(process: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{process}/stat")) else { return false };
    // The name of the program, in parentheses, may have any character.
    stat.rsplit_once(')').is_some_and(|(_, fields)| fields.trim_start().starts_with(['T', 't']))
}
