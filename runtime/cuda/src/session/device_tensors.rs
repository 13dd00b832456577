//! GPU memory that sessions do not own: the caller's memory, and tensors of the host that several sessions
//! read.
//!
//! A tensor is on a GPU once, however many sessions of this process read it. Sessions find it by its
//! identity: the address of its allocation. A weak reference keeps this address from being reused, and the
//! tensor from being written.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use symmc_ir::Tensor;
use symmc_runtime::RunError;
use symmc_runtime::exec::{InputData, InputSource};
use symmc_runtime::session::{DeviceMemory, DeviceName, DeviceRange, SharedTensor};

use crate::arena::SymmetricArena;
use crate::device::driver::{CallersContext, Device, DeviceBuffer, Stream};
use crate::device::launch::Address;
use crate::device::staging::upload;
use crate::error::Result;

/// Memory of the caller in the symmetric arena.
#[derive(Debug)]
pub(super) struct CudaArenaBlock {
    pub device: Arc<Device>,
    pub arena: SymmetricArena,
    /// In bytes from the start of the arena.
    pub range: Range<usize>,
}

impl DeviceMemory for CudaArenaBlock {
    fn device(&self) -> DeviceName {
        DeviceName::Gpu(self.device.ordinal())
    }

    fn range(&self) -> DeviceRange {
        let address = self.arena.address() + self.range.start as Address;
        DeviceRange { address, bytes: self.range.len() }
    }

    unsafe fn write(&self, at: usize, data: &[u8]) -> Result<(), RunError> {
        // SAFETY: by the caller.
        unsafe { copy_to_device(&self.device, DeviceMemory::range(self).address + at as Address, data) }
    }

    unsafe fn read(&self, at: usize, data: &mut [u8]) -> Result<(), RunError> {
        // SAFETY: by the caller.
        unsafe { copy_from_device(&self.device, DeviceMemory::range(self).address + at as Address, data) }
    }
}

impl DeviceMemory for DeviceBuffer {
    fn device(&self) -> DeviceName {
        DeviceName::Gpu(DeviceBuffer::device(self).ordinal())
    }

    fn range(&self) -> DeviceRange {
        DeviceRange { address: self.address(), bytes: self.len() }
    }

    unsafe fn write(&self, at: usize, data: &[u8]) -> Result<(), RunError> {
        // SAFETY: by the caller.
        unsafe { copy_to_device(DeviceBuffer::device(self), self.address() + at as Address, data) }
    }

    unsafe fn read(&self, at: usize, data: &mut [u8]) -> Result<(), RunError> {
        // SAFETY: by the caller.
        unsafe { copy_from_device(DeviceBuffer::device(self), self.address() + at as Address, data) }
    }
}

/// Copies host data to a GPU.
///
/// # Safety
/// `to` has at least `data.len()` bytes, and nothing else uses them during the call.
unsafe fn copy_to_device(device: &Arc<Device>, to: Address, data: &[u8]) -> Result<(), RunError> {
    let _callers = CallersContext::switch_to(device)?;
    let stream = Stream::new(device)?;
    // SAFETY: by the caller.
    unsafe { upload(device, &stream, &[(to, InputData::Memory(data))]) }
}

/// Copies GPU data to the host.
///
/// # Safety
/// `from` has at least `data.len()` bytes, and nothing writes them during the call.
unsafe fn copy_from_device(device: &Arc<Device>, from: Address, data: &mut [u8]) -> Result<(), RunError> {
    let _callers = CallersContext::switch_to(device)?;
    let stream = Stream::new(device)?;
    // SAFETY: by the caller.
    unsafe { stream.download(data, from)? };
    Ok(())
}

/// Allocates zeroed memory on a GPU whose context is current.
pub(super) fn allocate_zeroed(device: &Arc<Device>, bytes: usize) -> Result<DeviceBuffer> {
    let memory = DeviceBuffer::new(device, "memory of the caller", bytes)?;
    let stream = Stream::new(device)?;
    // SAFETY: the memory was just allocated.
    unsafe { stream.fill(memory.address(), 0, bytes)? };
    stream.synchronize()?;
    Ok(memory)
}

/// The ordinal of a GPU, and the address of a host tensor's allocation.
type TensorIdentity = (u32, usize);

/// A tensor that is on a GPU, or is being copied there by the holder of the lock.
#[derive(Default)]
struct SharedTensorEntry {
    /// Keeps the address from being reused.
    _tensor: Weak<Tensor>,
    copy: Mutex<Weak<DeviceCopy>>,
}

static SHARED_TENSORS: Mutex<BTreeMap<TensorIdentity, Arc<SharedTensorEntry>>> = Mutex::new(BTreeMap::new());

fn lock_shared_tensors() -> MutexGuard<'static, BTreeMap<TensorIdentity, Arc<SharedTensorEntry>>> {
    SHARED_TENSORS.lock().unwrap_or_else(PoisonError::into_inner)
}

struct DeviceCopy {
    identity: TensorIdentity,
    memory: DeviceBuffer,
}

impl Drop for DeviceCopy {
    fn drop(&mut self) {
        forget_if_unused(self.identity, 1);
    }
}

/// Removes an entry without a copy, if exactly `holders` references to it exist, including the map's own.
fn forget_if_unused(identity: TensorIdentity, holders: usize) {
    let mut places = lock_shared_tensors();
    let unused = places.get(&identity).is_some_and(|entry| {
        Arc::strong_count(entry) == holders
            && entry.copy.lock().unwrap_or_else(PoisonError::into_inner).strong_count() == 0
    });
    if unused {
        places.remove(&identity);
    }
}

/// Returns a tensor's copy on a GPU whose context is current; copies it first if necessary.
pub(super) fn share_tensor(device: &Arc<Device>, tensor: &Arc<Tensor>) -> Result<SharedTensor, RunError> {
    let identity = (device.ordinal(), Arc::as_ptr(tensor).addr());
    let entry = lock_shared_tensors()
        .entry(identity)
        .or_insert_with(|| {
            Arc::new(SharedTensorEntry { _tensor: Arc::downgrade(tensor), copy: Mutex::default() })
        })
        .clone();
    let mut there = entry.copy.lock().unwrap_or_else(PoisonError::into_inner);
    let shared = there.upgrade().map_or_else(|| copy_to_gpu(device, identity, tensor).map(Arc::new), Ok);
    if let Ok(copy) = &shared {
        *there = Arc::downgrade(copy);
    }
    drop(there);
    if shared.is_err() {
        forget_if_unused(identity, 2);
    }
    let copy = shared?;
    Ok(SharedTensor { range: DeviceMemory::range(&copy.memory), owner: copy })
}

/// Reads a tensor in pieces. A tensor in a file is never mapped, and a file that changed is an error.
#[derive(Debug)]
struct TensorSource<'a>(&'a Tensor);

impl InputSource for TensorSource<'_> {
    fn size(&self) -> usize {
        self.0.data().len()
    }

    fn read(&self, at: usize, into: &mut [u8]) -> Result<(), RunError> {
        self.0.read(at, into).map_err(SharedTensor::unreadable_tensor)
    }
}

fn copy_to_gpu(
    device: &Arc<Device>,
    identity: TensorIdentity,
    tensor: &Arc<Tensor>,
) -> Result<DeviceCopy, RunError> {
    let data = TensorSource(tensor);
    let memory = DeviceBuffer::new(device, "a tensor that sessions share", data.size())?;
    let stream = Stream::new(device)?;
    // SAFETY: the memory was just allocated for as many bytes.
    unsafe { upload(device, &stream, &[(memory.address(), InputData::Source(&data))])? };
    Ok(DeviceCopy { identity, memory })
}
