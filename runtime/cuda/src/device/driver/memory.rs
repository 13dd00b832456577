//! Memory that one process has for itself: on the device, and pinned on the host.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::device::{CallersContext, Device};
use crate::device::launch::Address;
use crate::error::{Result, checked};

/// Device memory that only this process reaches.
#[derive(Debug)]
pub struct Memory {
    device: Arc<Device>,
    at: Address,
    len: usize,
}

impl Memory {
    /// `len` bytes for `what`, aligned to 256. Their contents are arbitrary.
    pub fn new(device: &Arc<Device>, what: &str, len: usize) -> Result<Memory> {
        let call = || format!("allocating {len} bytes for {what} on GPU {}", device.ordinal());
        // SAFETY: the context is current; no size of 0 is asked for.
        let at = checked(call, unsafe { result::malloc_sync(len.max(1)) })?;
        Ok(Memory { device: device.clone(), at, len })
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub fn address(&self) -> Address {
        self.at
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Whoever drops it may be on a thread of somebody else.
        let _callers = CallersContext::changed_to(&self.device);
        // SAFETY: allocated by `new`; graphs that use it are dropped or not launched any more.
        let _ = unsafe { result::free_sync(self.at) };
    }
}

/// Host memory that the device reads and writes at the same time as the host.
#[derive(Debug)]
pub struct Pinned {
    device: Arc<Device>,
    at: *mut c_void,
    len: usize,
}

// SAFETY: plain memory; who shares it orders the accesses.
unsafe impl Send for Pinned {}

// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// `len` zero bytes.
    pub fn new(device: &Arc<Device>, len: usize) -> Result<Pinned> {
        let call = || format!("allocating {len} bytes of pinned host memory");
        // SAFETY: the context is current.
        let at = checked(call, unsafe {
            result::malloc_host(len.max(1), sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE)
        })?;
        // SAFETY: as many bytes were allocated.
        unsafe { ptr::write_bytes(at.cast::<u8>(), 0, len) };
        Ok(Pinned { device: device.clone(), at, len })
    }

    /// The first byte, for the host. With unified addressing it is the device's address, too.
    pub fn as_ptr(&self) -> *mut u8 {
        self.at.cast()
    }

    /// The first byte, for the device.
    pub fn address(&self) -> Address {
        self.at.addr() as Address
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.device.enter();
        // SAFETY: allocated by `new`.
        let _ = unsafe { result::free_host(self.at) };
    }
}
