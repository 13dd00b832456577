//! Memory of a GPU that sessions do not own: the caller's, and tensors of the host that several sessions read there.
//!
//! A tensor is on a GPU once, however many sessions of this process read it: they find it by its identity, which is that of
//! its allocation. A weak reference keeps that from being used again, and the tensor from being written.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use symmc_ir::Tensor;
use symmc_runtime::RunError;
use symmc_runtime::exec::{InputData, InputSource};
use symmc_runtime::session::{DeviceMemory, DeviceName, Extent, Kept};

use crate::device::arena::SymmetricArena;
use crate::device::driver::{CallersContext, Device, Memory, Stream};
use crate::device::launch::Address;
use crate::device::staging::upload;
use crate::error::Result;

/// Memory of the caller in the symmetric arena.
#[derive(Debug)]
pub(super) struct PartOfArena {
    pub device: Arc<Device>,
    pub arena: SymmetricArena,
    /// In bytes from its start.
    pub range: Range<usize>,
}

impl DeviceMemory for PartOfArena {
    fn device(&self) -> DeviceName {
        DeviceName::Gpu(self.device.ordinal())
    }

    fn extent(&self) -> Extent {
        let address = self.arena.address() + self.range.start as Address;
        Extent { address, bytes: self.range.len() }
    }

    unsafe fn write(&self, at: usize, data: &[u8]) -> Result<(), RunError> {
        // SAFETY: by the caller.
        unsafe { write(&self.device, DeviceMemory::extent(self).address + at as Address, data) }
    }

    unsafe fn read(&self, at: usize, data: &mut [u8]) -> Result<(), RunError> {
        // SAFETY: by the caller.
        unsafe { read(&self.device, DeviceMemory::extent(self).address + at as Address, data) }
    }
}

impl DeviceMemory for Memory {
    fn device(&self) -> DeviceName {
        DeviceName::Gpu(Memory::device(self).ordinal())
    }

    fn extent(&self) -> Extent {
        Extent { address: self.address(), bytes: self.len() }
    }

    unsafe fn write(&self, at: usize, data: &[u8]) -> Result<(), RunError> {
        // SAFETY: by the caller.
        unsafe { write(Memory::device(self), self.address() + at as Address, data) }
    }

    unsafe fn read(&self, at: usize, data: &mut [u8]) -> Result<(), RunError> {
        // SAFETY: by the caller.
        unsafe { read(Memory::device(self), self.address() + at as Address, data) }
    }
}

/// Copies data of the host to a GPU.
///
/// # Safety
/// `to` has as many bytes, and nothing else uses them meanwhile.
unsafe fn write(device: &Arc<Device>, to: Address, data: &[u8]) -> Result<(), RunError> {
    let _callers = CallersContext::changed_to(device)?;
    let stream = Stream::new(device)?;
    // SAFETY: by the caller.
    unsafe { upload(device, &stream, &[(to, InputData::Memory(data))]) }
}

/// Copies data of a GPU to the host.
///
/// # Safety
/// `from` has as many bytes, and nothing writes them meanwhile.
unsafe fn read(device: &Arc<Device>, from: Address, data: &mut [u8]) -> Result<(), RunError> {
    let _callers = CallersContext::changed_to(device)?;
    let stream = Stream::new(device)?;
    // SAFETY: by the caller.
    unsafe { stream.download(data, from)? };
    Ok(())
}

/// Zeros of a GPU, whose context is current.
pub(super) fn zeros(device: &Arc<Device>, bytes: usize) -> Result<Memory> {
    let memory = Memory::new(device, "memory of the caller", bytes)?;
    let stream = Stream::new(device)?;
    // SAFETY: the memory was just allocated.
    unsafe { stream.fill(memory.address(), 0, bytes)? };
    stream.synchronize()?;
    Ok(memory)
}

/// A GPU, and the allocation of a tensor on the host.
type Identity = (u32, usize);

/// A tensor that is on a GPU, or is being put there by who holds the lock.
#[derive(Default)]
struct Place {
    /// Keeps the identity from being given again.
    _tensor: Weak<Tensor>,
    copy: Mutex<Weak<Copy>>,
}

static PLACES: Mutex<BTreeMap<Identity, Arc<Place>>> = Mutex::new(BTreeMap::new());

fn places() -> MutexGuard<'static, BTreeMap<Identity, Arc<Place>>> {
    PLACES.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Copy {
    identity: Identity,
    memory: Memory,
}

impl Drop for Copy {
    fn drop(&mut self) {
        forget(self.identity, 1);
    }
}

/// Forgets a place where nothing is, which nobody has but its so many holders, the list among them.
fn forget(identity: Identity, holders: usize) {
    let mut places = places();
    let is_left = |place: &Arc<Place>| {
        let copy = || place.copy.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::strong_count(place) == holders && copy().strong_count() == 0
    };
    if places.get(&identity).is_some_and(is_left) {
        places.remove(&identity);
    }
}

/// A tensor on a GPU, whose context is current.
pub(super) fn keep(device: &Arc<Device>, tensor: &Arc<Tensor>) -> Result<Kept, RunError> {
    let identity = (device.ordinal(), Arc::as_ptr(tensor).addr());
    let place = {
        let new = || Arc::new(Place { _tensor: Arc::downgrade(tensor), copy: Mutex::default() });
        places().entry(identity).or_insert_with(new).clone()
    };
    let mut there = place.copy.lock().unwrap_or_else(PoisonError::into_inner);
    let found = there.upgrade().map_or_else(|| copied(device, identity, tensor).map(Arc::new), Ok);
    if let Ok(copy) = &found {
        *there = Arc::downgrade(copy);
    }
    drop(there);
    if found.is_err() {
        forget(identity, 2);
    }
    let copy = found?;
    Ok(Kept { extent: DeviceMemory::extent(&copy.memory), owner: copy })
}

/// Reads a tensor in pieces. One that lies in a file is never mapped, and a file that changed is an error.
#[derive(Debug)]
struct TensorSource<'a>(&'a Tensor);

impl InputSource for TensorSource<'_> {
    fn size(&self) -> usize {
        self.0.data().len()
    }

    fn read(&self, at: usize, into: &mut [u8]) -> Result<(), RunError> {
        self.0.read(at, into).map_err(Kept::unread)
    }
}

fn copied(device: &Arc<Device>, identity: Identity, tensor: &Arc<Tensor>) -> Result<Copy, RunError> {
    let data = TensorSource(tensor);
    let memory = Memory::new(device, "a tensor that sessions share", data.size())?;
    let stream = Stream::new(device)?;
    // SAFETY: the memory was just allocated for as many bytes.
    unsafe { upload(device, &stream, &[(memory.address(), InputData::Source(&data))])? };
    Ok(Copy { identity, memory })
}
