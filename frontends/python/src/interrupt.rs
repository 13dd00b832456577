//! Long work that Ctrl-C can interrupt.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::Duration;

use pyo3::prelude::*;

use crate::error::{defect_error, resource_error, to_exception};

/// The interval at which waiting calls check for an interrupt of the interpreter.
pub const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The stack of long work in bytes, as large as that of a process's first thread.
const STACK: usize = 8 << 20;

/// Performs work on a separate thread without the GIL, and returns its result. If the interpreter is interrupted, the work
/// continues, and its result is dropped.
pub fn run_interruptible<T: Send + 'static>(
    py: Python<'_>,
    what: &str,
    work: impl FnOnce() -> Result<T, symmc::Error> + Send + 'static,
) -> PyResult<T> {
    let (sender, receiver) = channel();
    let working = move || {
        // After an interrupt there is no receiver.
        let _ = sender.send(work());
    };
    Builder::new()
        .name(format!("symmc {what}"))
        .stack_size(STACK)
        .spawn(working)
        .map_err(|error| resource_error(format!("{what}: a thread cannot be started: {error}")))?;
    let receiver = std::sync::Mutex::new(receiver);
    loop {
        let found = py.detach(|| {
            let receiver = receiver.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            receiver.recv_timeout(POLL_INTERVAL)
        });
        match found {
            Ok(result) => return result.map_err(to_exception),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => return Err(defect_error(format!("{what} panicked"))),
        }
    }
}
