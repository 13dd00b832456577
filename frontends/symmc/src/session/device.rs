//! The device of a session, in the process that opened it.
//!
//! A forked process has a copy without the threads. Whatever this copy did with sockets and shared memory would reach
//! the peers of the parent, so its calls are refused, and dropping the copy does nothing.

use std::mem::ManuallyDrop;

use symmc_runtime::process;
use symmc_runtime::session::DeviceSession;

use super::shared::Shared;
use crate::error::Error;

/// A device session and the memory that its runs use.
pub(super) struct OwnDevice {
    /// `None` once it was taken out.
    device: Option<ManuallyDrop<Box<dyn DeviceSession>>>,
    /// Dropped after the device, whose runs may read it.
    shared: ManuallyDrop<Shared>,
    process: u32,
}

impl OwnDevice {
    /// A device session that this process has opened.
    pub fn new(device: Box<dyn DeviceSession>) -> OwnDevice {
        let (device, shared) = (Some(ManuallyDrop::new(device)), ManuallyDrop::new(Shared::default()));
        OwnDevice { device, shared, process: process::current() }
    }

    /// The device session.
    ///
    /// # Errors
    /// This process is a fork of the one that opened it.
    pub fn get(&self) -> Result<&dyn DeviceSession, Error> {
        self.expect_own()?;
        match &self.device {
            Some(device) => Ok(device.as_ref()),
            None => Err(ended()),
        }
    }

    /// The device session, mutable.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_mut(&mut self) -> Result<&mut dyn DeviceSession, Error> {
        self.expect_own()?;
        match &mut self.device {
            Some(device) => Ok(device.as_mut()),
            None => Err(ended()),
        }
    }

    /// The memory that runs use.
    pub fn shared(&mut self) -> &mut Shared {
        &mut self.shared
    }

    /// Takes the device session out. The memory of its runs stays until `self` is dropped.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn take(&mut self) -> Result<Box<dyn DeviceSession>, Error> {
        self.expect_own()?;
        self.device.take().map(ManuallyDrop::into_inner).ok_or_else(ended)
    }

    fn expect_own(&self) -> Result<(), Error> {
        if self.is_own() {
            return Ok(());
        }
        Err(Error::request(format!(
            "the session belongs to process {}: a session does not survive a fork; open it in the process that uses it",
            self.process
        )))
    }

    fn is_own(&self) -> bool {
        process::current() == self.process
    }
}

impl Drop for OwnDevice {
    fn drop(&mut self) {
        if self.is_own() {
            drop(self.device.take().map(ManuallyDrop::into_inner));
            // SAFETY: it is dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.shared) };
        }
    }
}

fn ended() -> Error {
    Error::from(symmc_runtime::session::ended())
}
