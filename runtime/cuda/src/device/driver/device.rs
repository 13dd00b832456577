//! GPUs and their contexts: the context of a thread, the properties of a GPU and of its links to other GPUs.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::{result, sys};

use crate::device::launch::Address;
use crate::error::{CudaError, Result, check_driver_result};

/// A saved context of this thread. It becomes current again when this value is dropped.
#[derive(Debug)]
pub struct CallersContext {
    context: sys::CUcontext,
    /// The current context is a property of the thread.
    _of_thread: PhantomData<*mut ()>,
}

impl CallersContext {
    /// Saves the current context, if any.
    pub fn keep() -> Result<CallersContext> {
        count_gpus()?;
        let current =
            check_driver_result(|| "querying the current context".into(), result::ctx::get_current())?;
        Ok(CallersContext { context: current.unwrap_or(ptr::null_mut()), _of_thread: PhantomData })
    }

    /// Makes the context of `device` current and saves the previous one; `None` if it is current already.
    pub fn switch_to(device: &Device) -> Result<Option<CallersContext>> {
        let current =
            check_driver_result(|| "querying the current context".into(), result::ctx::get_current())?;
        if current == Some(device.context) {
            return Ok(None);
        }
        let callers = CallersContext { context: current.unwrap_or(ptr::null_mut()), _of_thread: PhantomData };
        device.enter()?;
        Ok(Some(callers))
    }
}

impl Drop for CallersContext {
    fn drop(&mut self) {
        // SAFETY: the context was current when this value was made; its owner keeps it alive until then.
        let _ = unsafe { result::ctx::set_current(self.context) };
    }
}

/// While this value lives, calls of this thread do not count towards the caller's captures: calls that wait,
/// allocate memory or query events. In other capture modes than the relaxed one, such calls would invalidate
/// a capture.
#[derive(Debug)]
pub struct RelaxedCaptureMode {
    callers: sys::CUstreamCaptureMode,
    /// The mode is a property of the thread.
    _of_thread: PhantomData<*mut ()>,
}

impl RelaxedCaptureMode {
    /// Switches this thread to the relaxed mode.
    pub fn begin() -> Result<RelaxedCaptureMode> {
        let mut callers = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the call takes the new mode and writes the old one.
        let changed = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut callers) };
        check_driver_result(|| "changing the capture mode of this thread".into(), changed.result())?;
        Ok(RelaxedCaptureMode { callers, _of_thread: PhantomData })
    }
}

impl Drop for RelaxedCaptureMode {
    fn drop(&mut self) {
        // SAFETY: as above; the mode was returned by the driver.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut self.callers) };
    }
}

/// A GPU and its primary context.
#[derive(Debug)]
pub struct Device {
    ordinal: u32,
    handle: sys::CUdevice,
    pub(super) context: sys::CUcontext,
    capability: [u32; 2],
    multiprocessors: u32,
    shared: usize,
    bandwidth: u32,
    name: String,
}

// SAFETY: contexts may be used from any thread.
unsafe impl Send for Device {}

// SAFETY: as above; the driver locks what it shares.
unsafe impl Sync for Device {}

impl Device {
    /// Opens GPU `ordinal` and makes its context current on this thread.
    pub fn open(ordinal: u32) -> Result<Arc<Device>> {
        let visible = count_gpus()?;
        if ordinal >= visible {
            let text = format!("GPU {ordinal}: this process sees {visible} GPUs, numbered from 0");
            return Err(CudaError::Unsupported(text));
        }
        let action = || format!("opening GPU {ordinal}");
        let handle = check_driver_result(action, result::device::get(ordinal as i32))?;
        // SAFETY: the device exists.
        let attribute = |a| check_driver_result(action, unsafe { result::device::get_attribute(handle, a) });
        use sys::CUdevice_attribute as A;
        let capability = [
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? as u32,
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)? as u32,
        ];
        let multiprocessors = attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32;
        let shared = attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize;
        // The formula is for memory with two transfers per cycle. Attributes that the driver does not know
        // are 0.
        let clock_khz = attribute(A::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?.max(0) as u64;
        let width_bits = attribute(A::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?.max(0) as u64;
        let bandwidth = (2 * clock_khz * (width_bits / 8) / 1_000_000) as u32;
        let name = check_driver_result(action, result::device::get_name(handle))?;
        // SAFETY: as above; the device releases the context when it is dropped.
        let context = check_driver_result(action, unsafe { result::primary_ctx::retain(handle) })?;
        let device =
            Device { ordinal, handle, context, capability, multiprocessors, shared, bandwidth, name };
        device.enter()?;
        Ok(Arc::new(device))
    }

    /// The atomicity of the links between this GPU and the others that the process sees. GPUs perform atomic
    /// operations on each other's memory only over NVLink.
    pub fn links(&self) -> Result<LinkAtomicity> {
        let attribute = sys::CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
        let mut peers = 0;
        let mut all_atomic = true;
        for ordinal in (0..count_gpus()?).filter(|&o| o != self.ordinal) {
            let action = || format!("querying the link to GPU {ordinal}");
            let peer = check_driver_result(action, result::device::get(ordinal as i32))?;
            let mut answer = 0;
            // SAFETY: both devices exist; the call writes one integer.
            let code = unsafe { sys::cuDeviceGetP2PAttribute(&mut answer, attribute, self.handle, peer) };
            check_driver_result(action, code.result())?;
            peers += 1;
            all_atomic &= answer != 0;
        }
        Ok(if peers > 0 && all_atomic { LinkAtomicity::Atomic } else { LinkAtomicity::MaySplit })
    }

    pub fn enter(&self) -> Result<()> {
        // SAFETY: the context is retained as long as this value lives.
        check_driver_result(|| "making a context current".into(), unsafe {
            result::ctx::set_current(self.context)
        })
    }

    /// The id of its context. It is unique in this process, also among contexts that are created later.
    pub(super) fn context_id(&self) -> Result<u64> {
        let mut id = 0;
        // SAFETY: the context is retained as long as this value lives; the call writes one integer.
        let code = unsafe { sys::cuCtxGetId(self.context, &mut id) };
        check_driver_result(
            || format!("querying the id of the context of GPU {}", self.ordinal),
            code.result(),
        )?;
        Ok(id)
    }

    /// Whether the context is the one that is current on this thread.
    pub fn is_current(&self) -> Result<bool> {
        let current =
            check_driver_result(|| "querying the current context".into(), result::ctx::get_current())?;
        Ok(current == Some(self.context))
    }

    /// Its ordinal among the GPUs that this process sees.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The largest shared memory of a block, in bytes.
    pub fn shared(&self) -> usize {
        self.shared
    }

    /// The peak bandwidth of its memory in GB/s; 0 if the driver does not report it.
    pub fn bandwidth(&self) -> u32 {
        self.bandwidth
    }

    /// The compute capability, major and minor.
    pub fn capability(&self) -> [u32; 2] {
        self.capability
    }

    /// The number of streaming multiprocessors.
    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// The bytes of its memory that no process has allocated. The context must be current.
    pub fn free(&self) -> Result<usize> {
        let mut free = 0;
        let mut total = 0;
        // SAFETY: the call writes two numbers.
        let code = unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) };
        check_driver_result(|| format!("querying the free memory of GPU {}", self.ordinal), code.result())?;
        Ok(free)
    }

    /// Finds the owner of the memory at an address. The context must be current.
    pub fn memory_holder(&self, address: Address) -> Result<MemoryHolder> {
        use sys::CUpointer_attribute as Attribute;
        // SAFETY: this attribute has 32 bits.
        let kind = unsafe { pointer_attribute(address, Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE)? };
        if kind != Some(sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32) {
            return Ok(MemoryHolder::Host);
        }
        // SAFETY: this attribute has 32 bits.
        let gpu = unsafe { pointer_attribute(address, Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)? };
        Ok(gpu.map_or(MemoryHolder::Host, MemoryHolder::Gpu))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: retained once by `open`.
        let _ = unsafe { result::primary_ctx::release(self.handle) };
    }
}

pub fn count_gpus() -> Result<u32> {
    // SAFETY: only tries to load the library.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::Missing {
            library: "the CUDA driver (libcuda.so.1)",
            install: "this machine has no NVIDIA driver; plans run on the host backend without one",
        });
    }
    check_driver_result(|| "starting the CUDA driver".into(), result::init())?;
    let count = check_driver_result(|| "counting GPUs".into(), result::device::get_count())?;
    Ok(u32::try_from(count).unwrap_or(0))
}

pub fn cuda_version() -> Result<[u32; 2]> {
    count_gpus()?;
    let mut version = 0;
    // SAFETY: the library is loaded, and the call writes one integer.
    let code = unsafe { sys::cuDriverGetVersion(&mut version) };
    check_driver_result(|| "querying the driver's version".into(), code.result())?;
    Ok([version as u32 / 1000, version as u32 % 1000 / 10])
}

/// Reads an attribute of the memory at an address; `None` if the driver does not know this memory.
///
/// # Safety
/// The attribute has 32 bits.
unsafe fn pointer_attribute(address: Address, attribute: sys::CUpointer_attribute) -> Result<Option<u32>> {
    let mut value = 0u32;
    // SAFETY: by the caller; no memory is touched at the address.
    let code = unsafe { sys::cuPointerGetAttribute((&raw mut value).cast::<c_void>(), attribute, address) };
    match code {
        sys::CUresult::CUDA_ERROR_INVALID_VALUE => Ok(None),
        other => check_driver_result(|| format!("querying the memory at {address:#x}"), other.result())
            .map(|()| Some(value)),
    }
}

/// The owner of the memory at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryHolder {
    Gpu(u32),
    /// Host memory, or no memory.
    Host,
}

/// Whether 128 bytes that a warp stores at once arrive together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LinkAtomicity {
    /// They arrive together: NVLink, and ranks on one device.
    Atomic,
    /// They may be split, or this is unknown. Lines of LL128 then need a fence before their flag.
    #[default]
    MaySplit,
}
