//! What belongs to the process that made it.

use std::mem::ManuallyDrop;

use pyo3::PyResult;

use crate::error::refused;

/// A thing with threads, sockets or shared memory. A forked process has a copy of it without the threads: there it cannot
/// be used, and is left alone when it goes, so that nothing of the process it belongs to ends.
pub struct Here<T> {
    thing: ManuallyDrop<T>,
    process: u32,
}

impl<T> Here<T> {
    /// A thing of this process.
    pub fn new(thing: T) -> Here<T> {
        Here { thing: ManuallyDrop::new(thing), process: std::process::id() }
    }

    /// The thing, in the process that it belongs to. `what` names it in the error.
    pub fn get(&self, what: &str) -> PyResult<&T> {
        if self.is_here() {
            return Ok(&self.thing);
        }
        Err(refused(format!(
            "the {what} belongs to process {}: a {what} does not survive a fork; open it in the process that uses it",
            self.process
        )))
    }

    fn is_here(&self) -> bool {
        std::process::id() == self.process
    }
}

impl<T> Drop for Here<T> {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: it is dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.thing) };
        }
    }
}
