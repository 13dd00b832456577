//! Long work that Ctrl-C can interrupt, and waits that an error of another rank can end.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::error::{defect_error, resource_error, to_exception};

/// The interval at which waiting calls check for an interrupt of the interpreter.
pub const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The stack of long work in bytes, as large as that of a process's first thread.
const STACK: usize = 8 << 20;

/// A function that raises where a wait of the calling thread is of no use any more.
static WAIT_CHECK: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Sets the function that waiting calls call every 50 ms on their thread. An exception that it raises ends the wait. Only the first one
/// counts.
#[pyfunction]
pub fn set_wait_check(py: Python<'_>, function: Py<PyAny>) {
    // A module that is imported again has the same function.
    let _ = WAIT_CHECK.set(py, function);
}

/// Handles signals in a wait. Raises if the wait is of no use any more.
pub fn check_wait(py: Python<'_>) -> PyResult<()> {
    py.check_signals()?;
    if let Some(check) = WAIT_CHECK.get(py) {
        check.call0(py)?;
    }
    Ok(())
}

/// Performs work on a separate thread without the GIL, and returns its result. If the wait is interrupted, the work continues, and
/// its result is dropped.
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
        let received = py.detach(|| {
            let receiver = receiver.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            receiver.recv_timeout(POLL_INTERVAL)
        });
        match received {
            Ok(result) => return result.map_err(to_exception),
            Err(RecvTimeoutError::Timeout) => check_wait(py)?,
            Err(RecvTimeoutError::Disconnected) => return Err(defect_error(format!("{what} panicked"))),
        }
    }
}
