//! Memory of a session's device that belongs to the caller.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use symmc_runtime::session::DeviceMemory;

use super::Session;
use crate::error::Error;

/// Memory of a device that belongs to the caller: for weights, caches, activations and outputs.
///
/// [`Session::allocate`] returns it, filled with zeros, on the device of the session. Every session of this process on the
/// same device may bind it ([`Session::bind_buffer`]), also at the same time. It outlives the session that allocated it. It is
/// freed with its last clone, once no session has it bound.
#[derive(Clone, Debug)]
pub struct SessionBuffer(Arc<BufferMemory>);

#[derive(Debug)]
struct BufferMemory {
    memory: Arc<dyn DeviceMemory>,
    /// Held during a copy, so that copies are serialised.
    copy_lock: Mutex<()>,
}

impl SessionBuffer {
    fn from_memory(memory: Arc<dyn DeviceMemory>) -> SessionBuffer {
        SessionBuffer(Arc::new(BufferMemory { memory, copy_lock: Mutex::new(()) }))
    }

    /// The first byte, as a pointer of the device. It is aligned to 256 bytes.
    pub fn as_ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.0.memory.range().address as usize)
    }

    /// The number of bytes.
    pub fn bytes(&self) -> usize {
        self.0.memory.range().bytes
    }

    /// Copies data of the host to the bytes from offset `at`. Callers of [`Session::bind_buffer`] ensure that no run uses the
    /// buffer meanwhile.
    ///
    /// # Errors
    /// The buffer ends before `at` plus the number of bytes.
    pub fn write(&self, at: usize, data: &[u8]) -> Result<(), Error> {
        self.check_range(at, data.len())?;
        let _copies_lock = self.lock_copies();
        // SAFETY: the range was checked, and no other copy is in progress. Callers that bound the buffer ensure that no run is.
        unsafe { self.0.memory.write(at, data)? };
        Ok(())
    }

    /// Copies `bytes` bytes from offset `at` to the host. The conditions are those of [`write`](Self::write).
    ///
    /// # Errors
    /// The buffer ends before `at` plus the number of bytes.
    pub fn read(&self, at: usize, bytes: usize) -> Result<Vec<u8>, Error> {
        self.check_range(at, bytes)?;
        let mut data = vec![0; bytes];
        let _copies_lock = self.lock_copies();
        // SAFETY: as for writing.
        unsafe { self.0.memory.read(at, &mut data)? };
        Ok(data)
    }

    fn check_range(&self, at: usize, bytes: usize) -> Result<(), Error> {
        match at.checked_add(bytes) {
            Some(end) if end <= self.bytes() => Ok(()),
            _ => Err(Error::invalid_request(format!(
                "the buffer has {} bytes: expected an offset and a length within it, found {bytes} bytes from {at}",
                self.bytes()
            ))),
        }
    }

    fn lock_copies(&self) -> MutexGuard<'_, ()> {
        self.0.copy_lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    /// Allocates memory on the session's device that belongs to the caller: `bytes` bytes, filled with zeros.
    ///
    /// # Errors
    /// The device does not have this much free memory.
    pub fn allocate(&self, bytes: usize) -> Result<SessionBuffer, Error> {
        Ok(SessionBuffer::from_memory(self.device.select()?.allocate_memory(bytes)?))
    }

    /// Allocates symmetric memory that belongs to the caller, from the bytes that
    /// [`SessionConfig::symmetric_bytes`](super::SessionConfig::symmetric_bytes) reserves. All ranks allocate the same sizes
    /// together. Each waits for its own runs and for the other ranks. A block is freed when the session ends.
    ///
    /// An input that the plan holds in symmetric memory ([`PortStorage::Symmetric`](super::PortStorage::Symmetric)) is read
    /// in place from such a buffer, also by peers, if it is at a multiple of 64 bytes from the buffer's start. From memory that
    /// is not symmetric it is copied. In a run all ranks must bind the same offsets of their buffers. One buffer can be filled
    /// while a run reads another one. On GPUs the ranks prepare the program together in the first run with an input at other
    /// offsets, as for other sizes. For other sessions, and for other inputs and outputs, the buffer is ordinary memory. A
    /// session with such buffers cannot [release its memory](Session::release).
    ///
    /// # Errors
    /// The ranks ask for different sizes, the reserved memory is exhausted, or a rank failed.
    pub fn allocate_symmetric(&mut self, bytes: usize) -> Result<SessionBuffer, Error> {
        Ok(SessionBuffer::from_memory(self.device.select()?.allocate_symmetric(bytes)?))
    }

    /// As [`bind`](Self::bind), for a whole buffer. The session keeps the buffer as long as a run may use it.
    ///
    /// # Errors
    /// As [`bind`](Self::bind). Also if the buffer is on another device.
    ///
    /// # Safety
    /// While a run is in progress, nothing else writes the buffer or reads bytes that the run writes: no copy, and no run of
    /// another session.
    pub unsafe fn bind_buffer(&mut self, name: &str, buffer: &SessionBuffer) -> Result<(), Error> {
        let (expected, found) = (self.device.select()?.device(), buffer.0.memory.device());
        if expected != found {
            return Err(Error::invalid_request(format!(
                "{name}: expected memory of {expected}, found a buffer of {found}"
            )));
        }
        // SAFETY: the session keeps the buffer until its runs have ended. The caller ensures the rest.
        unsafe { self.bind(name, buffer.as_ptr(), buffer.bytes())? };
        let port = self.find_port(name, super::values::PortPreference::Either)?;
        self.hold_owner(port, Some(buffer.0.clone()));
        Ok(())
    }
}
