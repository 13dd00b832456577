//! Progress on a terminal: a line with a spinner, the work in progress and the elapsed seconds.
//!
//! The line is on standard error, and only if that is a terminal.

use std::io::{IsTerminal, Write, stderr};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::scope;
use std::time::{Duration, Instant};

use symmc::unstable::support::parallel;

/// Work that takes less time than this shows no spinner. It is also the time between two frames.
const ANNOUNCE_DELAY: Duration = Duration::from_millis(120);
const FRAMES: [char; 4] = ['|', '/', '-', '\\'];

/// Runs `work` while a spinner with this message is on standard error. If the system has no thread for the spinner, the work
/// runs without one.
pub fn with_spinner<T>(message: &str, work: impl FnOnce() -> T) -> T {
    if !stderr().is_terminal() {
        return work();
    }
    let state = SpinnerState::default();
    scope(|scope| {
        let spinner = parallel::spawn_scoped(scope, || draw_spinner(message, &state));
        let guard = SpinnerGuard(&state);
        let result = work();
        drop(guard);
        drop(spinner);
        result
    })
}

#[derive(Default)]
struct SpinnerState {
    ended: Mutex<bool>,
    changed: Condvar,
}

/// Ends the spinner when it is dropped, also when a panic unwinds.
struct SpinnerGuard<'a>(&'a SpinnerState);

impl Drop for SpinnerGuard<'_> {
    fn drop(&mut self) {
        *self.0.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.changed.notify_all();
    }
}

fn draw_spinner(message: &str, state: &SpinnerState) {
    let start = Instant::now();
    let mut ended = state.ended.lock().unwrap_or_else(PoisonError::into_inner);
    for frame in FRAMES.iter().cycle() {
        let waited = state.changed.wait_timeout_while(ended, ANNOUNCE_DELAY, |ended| !*ended);
        ended = waited.unwrap_or_else(PoisonError::into_inner).0;
        // Errors are ignored: the terminal may be closed.
        if *ended {
            let _ = write!(stderr(), "\r\x1b[2K");
            return;
        }
        let _ = write!(stderr(), "\r\x1b[2K{frame} {message} ({}s)", start.elapsed().as_secs());
    }
}
