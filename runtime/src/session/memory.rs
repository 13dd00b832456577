//! Memory of a device that its owner may bind to ports of sessions there.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use symmc_control::MemorySegment;
use symmc_ir::Tensor;

use super::port::DeviceRange;
use crate::error::{Result, RunError};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DeviceName {
    Host,
    Gpu(u32),
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceName::Host => f.write_str("the host"),
            DeviceName::Gpu(ordinal) => write!(f, "GPU {ordinal}"),
        }
    }
}

/// Bytes of a device, which exist as long as this value.
pub trait DeviceMemory: fmt::Debug + Send + Sync {
    fn device(&self) -> DeviceName;

    fn range(&self) -> DeviceRange;

    /// Copies data to the bytes from `at` on.
    ///
    /// # Safety
    /// There are as many bytes, and no run uses them meanwhile.
    unsafe fn write(&self, at: usize, data: &[u8]) -> Result<()>;

    /// Copies the bytes from `at` on.
    ///
    /// # Safety
    /// There are as many bytes, and no run writes them meanwhile.
    unsafe fn read(&self, at: usize, data: &mut [u8]) -> Result<()>;
}

impl DeviceMemory for MemorySegment {
    fn device(&self) -> DeviceName {
        DeviceName::Host
    }

    fn range(&self) -> DeviceRange {
        DeviceRange { address: self.as_ptr().expose_provenance() as u64, bytes: self.len() }
    }

    unsafe fn write(&self, at: usize, data: &[u8]) -> Result<()> {
        // SAFETY: by the caller, the bytes exist and nothing uses them.
        unsafe { std::ptr::copy(data.as_ptr(), self.as_ptr().wrapping_add(at), data.len()) };
        Ok(())
    }

    unsafe fn read(&self, at: usize, data: &mut [u8]) -> Result<()> {
        // SAFETY: as above.
        unsafe { std::ptr::copy(self.as_ptr().wrapping_add(at), data.as_mut_ptr(), data.len()) };
        Ok(())
    }
}

/// Bytes of a device, and the owner that keeps them alive.
#[derive(Clone)]
pub struct SharedTensor {
    pub range: DeviceRange,
    pub owner: Arc<dyn Any + Send + Sync>,
}

impl SharedTensor {
    /// A tensor in memory of the host; a tensor in a file is read into memory.
    pub fn on_host(tensor: &Arc<Tensor>) -> Result<SharedTensor> {
        let owner = SharedTensor::load_tensor(tensor)?;
        let address = owner.data().as_ptr().expose_provenance() as u64;
        Ok(SharedTensor { range: DeviceRange { address, bytes: owner.data().len() }, owner })
    }

    pub fn load_tensor(tensor: &Arc<Tensor>) -> Result<Arc<Tensor>> {
        tensor.load_to_memory().map_err(SharedTensor::unreadable_tensor)
    }

    pub fn unreadable_tensor(error: std::io::Error) -> RunError {
        RunError::Invalid(format!("the tensor cannot be read: {error}"))
    }
}
