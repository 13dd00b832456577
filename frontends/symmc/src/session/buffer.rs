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
pub struct SessionBuffer(Arc<BufferMemory>);

#[derive(Debug)]
struct BufferMemory {
    memory: Arc<dyn DeviceMemory>,
    /// One copy at a time.
    copy_lock: Mutex<()>,
}

impl SessionBuffer {
    fn from_memory(memory: Arc<dyn DeviceMemory>) -> SessionBuffer {
        SessionBuffer(Arc::new(BufferMemory { memory, copy_lock: Mutex::new(()) }))
    }

    /// The first byte, as a pointer of the device: at a multiple of 256 bytes.
    pub fn as_ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.0.memory.range().address as usize)
    }

    /// The number of bytes.
    pub fn bytes(&self) -> usize {
        self.0.memory.range().bytes
    }

    /// Copies data of the host to the bytes from `at` on. What the sessions that have it bound do meanwhile is by the promise
    /// of [`Session::bind_buffer`].
    ///
    /// # Errors
    /// It has not as many bytes there.
    pub fn write(&self, at: usize, data: &[u8]) -> Result<(), Error> {
        self.check_range(at, data.len())?;
        let _alone = self.lock_copies();
        // SAFETY: the bytes are there, and no other copy is in progress; runs are not, by who bound it.
        unsafe { self.0.memory.write(at, data)? };
        Ok(())
    }

    /// Copies so many bytes from `at` on to the host, as [`write`](Self::write) does there.
    ///
    /// # Errors
    /// It has not as many bytes there.
    pub fn read(&self, at: usize, bytes: usize) -> Result<Vec<u8>, Error> {
        self.check_range(at, bytes)?;
        let mut data = vec![0; bytes];
        let _alone = self.lock_copies();
        // SAFETY: as for writing.
        unsafe { self.0.memory.read(at, &mut data)? };
        Ok(data)
    }

    fn check_range(&self, at: usize, bytes: usize) -> Result<(), Error> {
        match at.checked_add(bytes) {
            Some(end) if end <= self.bytes() => Ok(()),
            _ => Err(Error::invalid_request(format!(
                "a buffer of {} bytes: it has no {bytes} bytes from {at} on",
                self.bytes()
            ))),
        }
    }

    fn lock_copies(&self) -> MutexGuard<'_, ()> {
        self.0.copy_lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    /// Memory of the session's device that belongs to the caller.
    ///
    /// # Errors
    /// There is not as much memory.
    pub fn allocate(&self, bytes: usize) -> Result<SessionBuffer, Error> {
        Ok(SessionBuffer::from_memory(self.device.select()?.allocate_memory(bytes)?))
    }

    /// Symmetric memory that belongs to the caller, of that which [`SessionConfig::symmetric`](super::SessionConfig) says. All
    /// ranks allocate the same, together; each waits for its runs and for the others. A block stays taken until the session
    /// ends.
    ///
    /// An input that the plan holds in symmetric memory ([`Storage::Symmetric`](super::PortStorage::Symmetric)) is read where it lies in
    /// such a buffer, at a multiple of 64 bytes from its start, by peers too; memory that is not symmetric is copied. All ranks
    /// have the same bytes of their buffers bound in a run. So one buffer may be filled while a run reads another one. On GPUs the ranks settle
    /// the program together in the first run with an input in other bytes, as for other sizes. To other sessions, and for other
    /// inputs and outputs, it is memory like any other. A session with such buffers does not
    /// [give its memory back](Session::release).
    ///
    /// # Errors
    /// The ranks ask for different sizes, there is not as much left, or a rank failed.
    pub fn allocate_symmetric(&mut self, bytes: usize) -> Result<SessionBuffer, Error> {
        Ok(SessionBuffer::from_memory(self.device.select()?.allocate_symmetric(bytes)?))
    }

    /// As [`bind`](Self::bind), for all of a buffer; the session keeps it as long as a run may use it.
    ///
    /// # Errors
    /// As [`bind`](Self::bind); the buffer is of another device.
    ///
    /// # Safety
    /// While a run is in progress nobody else writes the buffer, nor reads what the run writes: no copy, and no run of
    /// another session.
    pub unsafe fn bind_buffer(&mut self, name: &str, buffer: &SessionBuffer) -> Result<(), Error> {
        let (expected, found) = (self.device.select()?.device(), buffer.0.memory.device());
        if expected != found {
            return Err(Error::invalid_request(format!(
                "{name}: expected memory of {expected}, found a buffer of {found}"
            )));
        }
        // SAFETY: the session keeps the buffer until its runs have ended; the rest is by the caller.
        unsafe { self.bind(name, buffer.as_ptr(), buffer.bytes())? };
        let port = self.find_port(name, super::values::PortPreference::Either)?;
        self.hold_owner(port, Some(buffer.0.clone()));
        Ok(())
    }
}
