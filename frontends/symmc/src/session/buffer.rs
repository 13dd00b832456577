//! Memory of a session's device that belongs to its caller.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use symmc_runtime::session::DeviceMemory;

use super::Session;
use crate::error::Error;

/// Memory of a device that belongs to the caller: for weights, caches, activations and outputs.
///
/// [`Session::allocate`] gives it, full of zeros, on the host or on a GPU as the session is. Every session of this process
/// on the same device may have it bound ([`Session::bind_buffer`]), also at the same time. It outlives the session that gave
/// it, and goes with its last clone, once no session has it bound.
#[derive(Clone, Debug)]
pub struct Buffer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    memory: Arc<dyn DeviceMemory>,
    /// One copy at a time.
    copying: Mutex<()>,
}

impl Buffer {
    /// The first byte, as a pointer of the device: at a multiple of 256 bytes.
    pub fn as_ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.0.memory.extent().address as usize)
    }

    /// The number of bytes.
    pub fn bytes(&self) -> usize {
        self.0.memory.extent().bytes
    }

    /// Copies data of the host to the bytes from `at` on. What the sessions that have it bound do meanwhile is by the promise
    /// of [`Session::bind_buffer`].
    ///
    /// # Errors
    /// It has not as many bytes there.
    pub fn write(&self, at: usize, data: &[u8]) -> Result<(), Error> {
        self.expect_room(at, data.len())?;
        let _alone = self.copying();
        // SAFETY: the bytes are there, and no other copy is in progress; runs are not, by who bound it.
        unsafe { self.0.memory.write(at, data)? };
        Ok(())
    }

    /// Copies so many bytes from `at` on to the host, as [`write`](Self::write) does there.
    ///
    /// # Errors
    /// It has not as many bytes there.
    pub fn read(&self, at: usize, bytes: usize) -> Result<Vec<u8>, Error> {
        self.expect_room(at, bytes)?;
        let mut data = vec![0; bytes];
        let _alone = self.copying();
        // SAFETY: as for writing.
        unsafe { self.0.memory.read(at, &mut data)? };
        Ok(data)
    }

    fn expect_room(&self, at: usize, bytes: usize) -> Result<(), Error> {
        match at.checked_add(bytes) {
            Some(end) if end <= self.bytes() => Ok(()),
            _ => Err(Error::request(format!(
                "a buffer of {} bytes: it has no {bytes} bytes from {at} on",
                self.bytes()
            ))),
        }
    }

    fn copying(&self) -> MutexGuard<'_, ()> {
        self.0.copying.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    /// Memory of the session's device that belongs to the caller.
    ///
    /// # Errors
    /// There is not as much memory.
    pub fn allocate(&self, bytes: usize) -> Result<Buffer, Error> {
        let memory = self.device.allocate(bytes)?;
        Ok(Buffer(Arc::new(Inner { memory, copying: Mutex::new(()) })))
    }

    /// As [`bind`](Self::bind), for all of a buffer; the session keeps it as long as a run may use it.
    ///
    /// # Errors
    /// As [`bind`](Self::bind); the buffer is of another device.
    ///
    /// # Safety
    /// While a run is in progress nobody else writes the buffer, nor reads what the run writes: no copy, and no run of
    /// another session.
    pub unsafe fn bind_buffer(&mut self, name: &str, buffer: &Buffer) -> Result<(), Error> {
        let (expected, found) = (self.device.device(), buffer.0.memory.device());
        if expected != found {
            return Err(Error::request(format!(
                "{name}: expected memory of {expected}, found a buffer of {found}"
            )));
        }
        // SAFETY: the session keeps the buffer until its runs have ended; the rest is by the caller.
        unsafe { self.bind(name, buffer.as_ptr(), buffer.bytes())? };
        let port = self.port(name, super::values::Prefer::Either)?;
        self.hold(port, Some(buffer.0.clone()));
        Ok(())
    }
}
