//! A line that says what takes time, for a terminal that watches; anything else sees nothing of it.

use std::io::{IsTerminal, Write, stderr};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::scope;
use std::time::{Duration, Instant};

use symmc::unstable::support::parallel;

/// What takes less is not announced.
const ANNOUNCE_DELAY: Duration = Duration::from_millis(120);
const FRAMES: [char; 4] = ['|', '/', '-', '\\'];

/// Runs `work` under a spinner with this message on standard error. Where the system has no thread for the spinner there
/// is none.
pub fn with_spinner<T>(message: &str, work: impl FnOnce() -> T) -> T {
    if !stderr().is_terminal() {
        return work();
    }
    let end = SpinnerState::default();
    scope(|scope| {
        let spinner = parallel::spawn_scoped(scope, || draw_spinner(message, &end));
        let ended = SpinnerGuard(&end);
        let result = work();
        drop(ended);
        drop(spinner);
        result
    })
}

#[derive(Default)]
struct SpinnerState {
    ended: Mutex<bool>,
    changed: Condvar,
}

/// Ends the spinner when dropped, also by a panic.
struct SpinnerGuard<'a>(&'a SpinnerState);

impl Drop for SpinnerGuard<'_> {
    fn drop(&mut self) {
        *self.0.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.changed.notify_all();
    }
}

fn draw_spinner(message: &str, end: &SpinnerState) {
    let start = Instant::now();
    let mut ended = end.ended.lock().unwrap_or_else(PoisonError::into_inner);
    for frame in FRAMES.iter().cycle() {
        let waited = end.changed.wait_timeout_while(ended, ANNOUNCE_DELAY, |ended| !*ended);
        ended = waited.unwrap_or_else(PoisonError::into_inner).0;
        // A terminal that is gone needs no line.
        let _ = match *ended {
            true => write!(stderr(), "\r\x1b[2K"),
            false => write!(stderr(), "\r\x1b[2K{frame} {message} ({}s)", start.elapsed().as_secs()),
        };
        if *ended {
            return;
        }
    }
}
