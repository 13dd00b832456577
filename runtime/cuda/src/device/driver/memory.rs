//! Private memory of one process: on the device, and pinned on the host.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::device::{CallersContext, Device};
use crate::device::launch::Address;
use crate::error::{Result, check_driver_result};

/// Device memory that only this process accesses.
#[derive(Debug)]
pub struct DeviceBuffer {
    device: Arc<Device>,
    at: Address,
    len: usize,
}

impl DeviceBuffer {
    /// Allocates `len` bytes for `what`, aligned to 256. Their contents are arbitrary.
    pub fn new(device: &Arc<Device>, what: &str, len: usize) -> Result<DeviceBuffer> {
        // SAFETY: the context is current; the size is never 0.
        let allocated = unsafe { result::malloc_sync(len.max(1)) };
        let address = check_driver_result(
            || format!("allocating {len} bytes for {what} on GPU {}", device.ordinal()),
            allocated,
        )?;
        Ok(DeviceBuffer { device: device.clone(), at: address, len })
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

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // The drop may happen on a thread of the application, whose context is restored.
        let _callers = CallersContext::switch_to(&self.device);
        // SAFETY: allocated by `new`; graphs that use it are dropped or not launched any more.
        let _ = unsafe { result::free_sync(self.at) };
    }
}

/// Host memory that the device and the host access concurrently.
#[derive(Debug)]
pub struct PinnedBuffer {
    device: Arc<Device>,
    at: *mut c_void,
    len: usize,
}

// SAFETY: plain memory; the code that shares it orders the accesses.
unsafe impl Send for PinnedBuffer {}

// SAFETY: as above.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// Allocates `len` zero bytes.
    pub fn new(device: &Arc<Device>, len: usize) -> Result<PinnedBuffer> {
        let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE;
        // SAFETY: the context is current.
        let allocated = unsafe { result::malloc_host(len.max(1), flags) };
        let pointer =
            check_driver_result(|| format!("allocating {len} bytes of pinned host memory"), allocated)?;
        // SAFETY: at least `len` bytes were allocated.
        unsafe { ptr::write_bytes(pointer.cast::<u8>(), 0, len) };
        Ok(PinnedBuffer { device: device.clone(), at: pointer, len })
    }

    /// The host address of the first byte. With unified addressing it is also the device address.
    pub fn as_ptr(&self) -> *mut u8 {
        self.at.cast()
    }

    /// The device address of the first byte.
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

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        let _ = self.device.enter();
        // SAFETY: allocated by `new`.
        let _ = unsafe { result::free_host(self.at) };
    }
}
