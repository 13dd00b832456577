//! Values that belong to the process that made them.

use std::mem::ManuallyDrop;
use std::sync::{Mutex, MutexGuard, TryLockError};

use pyo3::PyResult;

use crate::error::input_error;

/// A value with threads, sockets or shared memory. A forked process has a copy of it without the threads. There it cannot be used,
/// and it is not dropped, so that the resources of the original process stay intact.
pub struct ProcessBound<T> {
    thing: ManuallyDrop<T>,
    process: u32,
}

impl<T> ProcessBound<T> {
    /// A value of this process.
    pub fn new(thing: T) -> ProcessBound<T> {
        ProcessBound { thing: ManuallyDrop::new(thing), process: std::process::id() }
    }

    /// The value, if this process made it. `what` names it in the error.
    pub fn get(&self, what: &str) -> PyResult<&T> {
        if self.is_owning_process() {
            return Ok(&self.thing);
        }
        Err(input_error(format!(
            "the {what} belongs to process {}: a {what} does not survive a fork; open it in the process that uses it",
            self.process
        )))
    }

    fn is_owning_process(&self) -> bool {
        std::process::id() == self.process
    }
}

impl<T> ProcessBound<Mutex<T>> {
    /// The value for this thread. Another thread that uses it is an error: it may need the GIL, which a caller that waited would hold.
    pub fn try_lock(&self, what: &str) -> PyResult<MutexGuard<'_, T>> {
        match self.get(what)?.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(input_error(format!(
                "another thread uses the {what}: only one thread at a time may use it"
            ))),
        }
    }
}

impl<T> Drop for ProcessBound<T> {
    fn drop(&mut self) {
        if self.is_owning_process() {
            // SAFETY: this is the only place that drops it, and it runs once.
            unsafe { ManuallyDrop::drop(&mut self.thing) };
        }
    }
}
