//! What belongs to the process that made it.

use std::mem::ManuallyDrop;

use pyo3::PyResult;

use crate::error::input_error;

/// A thing with threads, sockets or shared memory. A forked process has a copy of it without the threads: there it cannot
/// be used, and is left alone when it goes, so that nothing of the process it belongs to ends.
pub struct ProcessBound<T> {
    thing: ManuallyDrop<T>,
    process: u32,
}

impl<T> ProcessBound<T> {
    /// A thing of this process.
    pub fn new(thing: T) -> ProcessBound<T> {
        ProcessBound { thing: ManuallyDrop::new(thing), process: std::process::id() }
    }

    /// The thing, in the process that it belongs to. `what` names it in the error.
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

impl<T> Drop for ProcessBound<T> {
    fn drop(&mut self) {
        if self.is_owning_process() {
            // SAFETY: it is dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.thing) };
        }
    }
}
