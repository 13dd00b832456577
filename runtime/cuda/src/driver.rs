//! What the CUDA driver owns, as Rust values: contexts, memory, pinned memory, streams, events, modules,
//! graphs.
//!
//! Each value frees what it holds when it is dropped. A failure to free is not reported: the context is
//! broken then, and the call that broke it has said so. All values belong to the primary context of one
//! [`Device`], which is current on every thread that [`Device::enter`] was called on. Who runs on a thread of
//! somebody else keeps [`CallersContext`].
//!
//! Deliberately not here: memory that peers map ([`crate::arena`]).

mod graph;

use std::ffi::{CString, c_void};
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::{result, sys};
use smallvec::SmallVec;

use crate::adopt::LentStream;
use crate::collective::Links;
use crate::error::CudaError;
use crate::launch::{Address, Kernel, Param, Start};
use crate::tensor_map::TensorMap;

pub use self::graph::{Copied, Frontier, Graph, Node, Template};

/// The result of a driver call, with what was attempted.
pub(crate) fn checked<T>(
    what: impl FnOnce() -> String,
    result: Result<T, result::DriverError>,
) -> Result<T, CudaError> {
    result.map_err(|error| {
        let text = |t: Result<&std::ffi::CStr, _>| {
            t.map_or_else(|_: result::DriverError| "unknown".into(), |t| t.to_string_lossy().into_owned())
        };
        CudaError::Driver { call: what(), name: text(error.error_name()), text: text(error.error_string()) }
    })
}

/// The context that is current on this thread; it is again when this value is dropped.
#[derive(Debug)]
pub struct CallersContext {
    context: sys::CUcontext,
    /// A context is current on a thread.
    _of_thread: PhantomData<*mut ()>,
}

impl CallersContext {
    /// What is current now, also if that is none.
    ///
    /// # Errors
    /// There is no driver, or it does not start.
    pub fn keep() -> Result<CallersContext, CudaError> {
        count()?;
        let found = checked(|| "asking for the current context".into(), result::ctx::get_current())?;
        Ok(CallersContext { context: found.unwrap_or(ptr::null_mut()), _of_thread: PhantomData })
    }

    /// What is current now, in place of which that of `device` is from now on; `None` if it is already.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn changed_to(device: &Device) -> Result<Option<CallersContext>, CudaError> {
        let found = checked(|| "asking for the current context".into(), result::ctx::get_current())?;
        if found == Some(device.context) {
            return Ok(None);
        }
        let callers = CallersContext { context: found.unwrap_or(ptr::null_mut()), _of_thread: PhantomData };
        device.enter()?;
        Ok(Some(callers))
    }
}

impl Drop for CallersContext {
    fn drop(&mut self) {
        // SAFETY: the context was current when this value was made; its owner keeps it meanwhile.
        let _ = unsafe { result::ctx::set_current(self.context) };
    }
}

/// While this value lives, its thread may make calls that are none of what a caller records on it: they wait, take memory
/// or ask for events. In other modes than the relaxed one they would end that recording.
#[derive(Debug)]
pub struct Relaxed {
    callers: sys::CUstreamCaptureMode,
    /// The mode is that of a thread.
    _of_thread: PhantomData<*mut ()>,
}

impl Relaxed {
    /// From now on.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn begin() -> Result<Relaxed, CudaError> {
        let mut callers = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the call takes the new mode and writes the old one.
        let changed = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut callers) };
        checked(|| "changing how this thread records".into(), changed.result())?;
        Ok(Relaxed { callers, _of_thread: PhantomData })
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: as above; the mode is one that the driver gave.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut self.callers) };
    }
}

/// A GPU and its primary context.
#[derive(Debug)]
pub struct Device {
    ordinal: u32,
    handle: sys::CUdevice,
    context: sys::CUcontext,
    capability: [u32; 2],
    multiprocessors: u32,
    shared: usize,
    name: String,
}

// SAFETY: contexts may be used from any thread.
unsafe impl Send for Device {}
// SAFETY: as above; the driver locks what it shares.
unsafe impl Sync for Device {}

/// The number of GPUs that this process sees.
///
/// # Errors
/// There is no driver, or it does not start.
pub fn count() -> Result<u32, CudaError> {
    // SAFETY: tries to load the library; nothing else.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::Missing {
            library: "the CUDA driver (libcuda.so.1)",
            install: "this machine has no NVIDIA driver; plans run on the host backend without one",
        });
    }
    checked(|| "starting the CUDA driver".into(), result::init())?;
    let count = checked(|| "counting GPUs".into(), result::device::get_count())?;
    Ok(u32::try_from(count).unwrap_or(0))
}

/// The version of CUDA that the driver offers, major and minor.
///
/// # Errors
/// There is no driver.
pub fn version() -> Result<[u32; 2], CudaError> {
    count()?;
    let mut version = 0;
    // SAFETY: the library is there, and writes one integer.
    let asked = unsafe { sys::cuDriverGetVersion(&mut version) };
    checked(|| "asking for the driver's version".into(), asked.result())?;
    Ok([version as u32 / 1000, version as u32 % 1000 / 10])
}

impl Device {
    /// Opens GPU `ordinal` and makes its context current on this thread.
    ///
    /// # Errors
    /// There is no driver, or fewer GPUs.
    pub fn open(ordinal: u32) -> Result<Arc<Device>, CudaError> {
        let found = count()?;
        if ordinal >= found {
            let text = format!("GPU {ordinal}: this process sees {found} GPUs, numbered from 0");
            return Err(CudaError::Unsupported(text));
        }
        let what = || format!("opening GPU {ordinal}");
        let handle = checked(what, result::device::get(ordinal as i32))?;
        // SAFETY: the device exists.
        let attribute = |a| checked(what, unsafe { result::device::get_attribute(handle, a) });
        use sys::CUdevice_attribute as A;
        let capability = [
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? as u32,
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)? as u32,
        ];
        let multiprocessors = attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32;
        let shared = attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize;
        let name = checked(what, result::device::get_name(handle))?;
        // SAFETY: as above; the device gives it back when it is dropped.
        let context = checked(what, unsafe { result::primary_ctx::retain(handle) })?;
        let device = Device { ordinal, handle, context, capability, multiprocessors, shared, name };
        device.enter()?;
        Ok(Arc::new(device))
    }

    /// What the links between this GPU and the others that the process sees promise. GPUs do atomic operations on
    /// each other's memory over NVLink alone.
    ///
    /// # Errors
    /// The driver does not answer.
    pub fn links(&self) -> Result<Links, CudaError> {
        let attribute = sys::CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
        let (mut others, mut all) = (0, true);
        for ordinal in (0..count()?).filter(|&o| o != self.ordinal) {
            let what = || format!("asking for the link to GPU {ordinal}");
            let other = checked(what, result::device::get(ordinal as i32))?;
            let mut answer = 0;
            // SAFETY: both devices exist; the call writes one integer.
            let asked = unsafe { sys::cuDeviceGetP2PAttribute(&mut answer, attribute, self.handle, other) };
            checked(what, asked.result())?;
            (others, all) = (others + 1, all && answer != 0);
        }
        Ok(if others > 0 && all { Links::Whole } else { Links::MaySplit })
    }

    /// Makes the context current on this thread.
    pub fn enter(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained as long as this value lives.
        checked(|| "entering a context".into(), unsafe { result::ctx::set_current(self.context) })
    }

    /// Whether the context is the one that is current on this thread.
    ///
    /// # Errors
    /// The driver does not say.
    pub fn is_current(&self) -> Result<bool, CudaError> {
        let found = checked(|| "asking for the current context".into(), result::ctx::get_current())?;
        Ok(found == Some(self.context))
    }

    /// Its number among the GPUs that this process sees.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Its product name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of shared memory that a block may have.
    pub fn shared(&self) -> usize {
        self.shared
    }

    /// The compute capability, major and minor.
    pub fn capability(&self) -> [u32; 2] {
        self.capability
    }

    /// The number of streaming multiprocessors.
    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// Waits until everything on the device has ended.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        checked(|| "waiting for the GPU".into(), result::ctx::synchronize())
    }

    /// The bytes of its memory that nobody has, of all processes. The context is current.
    ///
    /// # Errors
    /// The driver does not answer.
    pub fn free(&self) -> Result<usize, CudaError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the call writes two numbers.
        let asked = unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) };
        checked(|| format!("asking for the free memory of GPU {}", self.ordinal), asked.result())?;
        Ok(free)
    }

    /// Whose memory an address is. The context is current.
    ///
    /// # Errors
    /// The driver does not answer.
    pub fn holder(&self, address: Address) -> Result<Holder, CudaError> {
        use sys::CUpointer_attribute as Attribute;
        let ask = |attribute| {
            let mut value = 0u32;
            // SAFETY: the attributes asked for below are 32 bits; no memory is touched at the address.
            let asked =
                unsafe { sys::cuPointerGetAttribute((&raw mut value).cast::<c_void>(), attribute, address) };
            match asked {
                // Memory that the driver has not seen.
                sys::CUresult::CUDA_ERROR_INVALID_VALUE => Ok(None),
                other => checked(|| format!("asking for the memory at {address:#x}"), other.result())
                    .map(|()| Some(value)),
            }
        };
        let kind = ask(Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE)?;
        if kind != Some(sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32) {
            return Ok(Holder::Host);
        }
        let gpu = ask(Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)?;
        Ok(gpu.map_or(Holder::Host, Holder::Gpu))
    }
}

/// Whose memory an address is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holder {
    /// A GPU's, by its number.
    Gpu(u32),
    /// The host's, or nobody's.
    Host,
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: retained once by `open`.
        let _ = unsafe { result::primary_ctx::release(self.handle) };
    }
}

/// Device memory that only this process reaches.
#[derive(Debug)]
pub struct Memory {
    device: Arc<Device>,
    at: Address,
    len: usize,
}

impl Memory {
    /// `len` bytes for `what`, aligned to 256. Their contents are arbitrary.
    ///
    /// # Errors
    /// The device has not as many.
    pub fn new(device: &Arc<Device>, what: &str, len: usize) -> Result<Memory, CudaError> {
        let call = || format!("allocating {len} bytes for {what} on GPU {}", device.ordinal());
        // SAFETY: the context is current; no size of 0 is asked for.
        let at = checked(call, unsafe { result::malloc_sync(len.max(1)) })?;
        Ok(Memory { device: device.clone(), at, len })
    }

    /// The GPU.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The first byte.
    pub fn address(&self) -> Address {
        self.at
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
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
    ///
    /// # Errors
    /// The system refuses as many.
    pub fn new(device: &Arc<Device>, len: usize) -> Result<Pinned, CudaError> {
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

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
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

/// A sequence of device work.
#[derive(Debug)]
pub struct Stream {
    device: Arc<Device>,
    handle: sys::CUstream,
    /// Whether it is somebody else's to destroy.
    lent: bool,
}

// SAFETY: streams may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above; the driver locks.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new stream that does not wait for the default stream.
    pub fn new(device: &Arc<Device>) -> Result<Stream, CudaError> {
        let made = result::stream::create(result::stream::StreamKind::NonBlocking);
        let handle = checked(|| "creating a stream".into(), made)?;
        Ok(Stream { device: device.clone(), handle, lent: false })
    }

    /// A new stream of which kernels, also those of graphs, get to run before those of other streams that wait for
    /// room.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn urgent(device: &Arc<Device>) -> Result<Stream, CudaError> {
        let (mut least, mut most, mut handle) = (0, 0, ptr::null_mut());
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current; the calls write two integers and a handle.
        let made = unsafe {
            let asked = sys::cuCtxGetStreamPriorityRange(&mut least, &mut most).result();
            asked.and_then(|()| sys::cuStreamCreateWithPriority(&mut handle, flags, most).result())
        };
        checked(|| "creating a stream".into(), made)?;
        Ok(Stream { device: device.clone(), handle, lent: false })
    }

    /// A stream of the caller, as its promise at [`LentStream::new`] says.
    pub fn adopt(device: &Arc<Device>, stream: LentStream) -> Stream {
        Stream { device: device.clone(), handle: stream.handle(), lent: true }
    }

    /// The driver's handle.
    pub fn handle(&self) -> sys::CUstream {
        self.handle
    }

    /// Whether it belongs to the context of its device, which is current.
    ///
    /// # Errors
    /// There is no such stream.
    pub fn is_of_device(&self) -> Result<bool, CudaError> {
        let mut context = ptr::null_mut();
        // SAFETY: the stream exists; the call writes a handle.
        let asked = unsafe { sys::cuStreamGetCtx(self.handle, &mut context) };
        checked(|| "asking for the context of a stream".into(), asked.result())?;
        Ok(context == self.device.context)
    }

    /// Whether what is put on it is recorded, not run.
    ///
    /// # Errors
    /// There is no such stream, or recording it failed.
    pub fn is_capturing(&self) -> Result<bool, CudaError> {
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream exists; the call writes one word.
        let asked = unsafe { sys::cuStreamIsCapturing(self.handle, &mut status) };
        checked(|| "asking whether a stream is recorded".into(), asked.result())?;
        match status {
            sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE => Ok(false),
            sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE => Ok(true),
            _ => Err(CudaError::Unsupported("the stream is in a recording that has failed".into())),
        }
    }

    /// Whether everything recorded so far has ended.
    ///
    /// # Errors
    /// Something recorded earlier failed.
    pub fn idle(&self) -> Result<bool, CudaError> {
        // SAFETY: the stream exists.
        match unsafe { sys::cuStreamQuery(self.handle) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => checked(|| "running the program on the GPU".into(), other.result()).map(|()| true),
        }
    }

    /// Waits until everything recorded so far has ended.
    ///
    /// # Errors
    /// Something recorded earlier failed.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the stream exists.
        let ended = unsafe { result::stream::synchronize(self.handle) };
        checked(|| "running the program on the GPU".into(), ended)
    }

    /// Makes work recorded from now on wait for `event`.
    pub fn wait(&self, event: &Event) -> Result<(), CudaError> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both exist.
        let waiting = unsafe { result::stream::wait_event(self.handle, event.handle, flags) };
        checked(|| "waiting for an event".into(), waiting)
    }

    /// Copies to the device. Returns when the host's memory may be changed.
    ///
    /// # Safety
    /// `to` has as many bytes, and nothing else uses them meanwhile.
    pub unsafe fn upload(&self, to: Address, from: &[u8]) -> Result<(), CudaError> {
        let call = || format!("copying {} bytes to GPU {}", from.len(), self.device.ordinal());
        // SAFETY: the slice outlives the copy, which the next call waits for; the rest by the caller.
        checked(call, unsafe { result::memcpy_htod_async(to, from, self.handle) })?;
        self.synchronize()
    }

    /// Copies from pinned memory to the device, after all that was recorded before. Returns at once.
    ///
    /// # Safety
    /// `to` has as many bytes; until the copy is done nobody writes `from` and nothing else uses `to`.
    pub unsafe fn upload_pinned(&self, to: Address, from: &[u8]) -> Result<(), CudaError> {
        let call = || format!("copying {} bytes to GPU {}", from.len(), self.device.ordinal());
        // SAFETY: by the caller.
        checked(call, unsafe { result::memcpy_htod_async(to, from, self.handle) })
    }

    /// Copies from the device, after all that was recorded before.
    ///
    /// # Safety
    /// `from` has as many bytes.
    pub unsafe fn download(&self, to: &mut [u8], from: Address) -> Result<(), CudaError> {
        let (at, len) = (to.as_mut_ptr(), to.len());
        let call = || format!("copying {len} bytes from GPU {}", self.device.ordinal());
        // SAFETY: the slice outlives the copy, which the next call waits for; the rest by the caller.
        let copied =
            unsafe { result::memcpy_dtoh_async(std::slice::from_raw_parts_mut(at, len), from, self.handle) };
        checked(call, copied)?;
        self.synchronize()
    }

    /// Copies on the device.
    ///
    /// # Safety
    /// Both ranges exist and do not overlap.
    pub unsafe fn copy(&self, to: Address, from: Address, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: by the caller.
        let copied = unsafe { result::memcpy_dtod_async(to, from, bytes, self.handle) };
        checked(|| format!("copying {bytes} bytes on GPU {}", self.device.ordinal()), copied)
    }

    /// Sets bytes.
    ///
    /// # Safety
    /// The range exists.
    pub unsafe fn fill(&self, at: Address, byte: u8, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: by the caller.
        let filled = unsafe { result::memset_d8_async(at, byte, bytes, self.handle) };
        checked(|| format!("setting {bytes} bytes on GPU {}", self.device.ordinal()), filled)
    }

    /// Stores a word.
    ///
    /// # Safety
    /// It exists, at a multiple of 4.
    pub unsafe fn store(&self, at: Address, word: u32) -> Result<(), CudaError> {
        // SAFETY: by the caller.
        let stored = unsafe { sys::cuMemsetD32Async(at, word, 1, self.handle) };
        checked(|| format!("storing a word on GPU {}", self.device.ordinal()), stored.result())
    }

    /// Launches a kernel.
    ///
    /// # Safety
    /// The function takes these parameters and touches only memory that exists.
    pub unsafe fn launch(&self, function: Function, kernel: &Kernel, start: Start) -> Result<(), CudaError> {
        let params = Params::of(kernel)?;
        let [gx, gy, gz] = kernel.grid;
        let [bx, by, bz] = kernel.block;
        let mut attributes = self.attributes(kernel, start);
        let config = sys::CUlaunchConfig {
            gridDimX: gx,
            gridDimY: gy,
            gridDimZ: gz,
            blockDimX: bx,
            blockDimY: by,
            blockDimZ: bz,
            sharedMemBytes: kernel.shared,
            hStream: self.handle,
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        // SAFETY: by the caller; the driver copies the parameters before it returns.
        let launched = unsafe {
            sys::cuLaunchKernelEx(&config, function.0, params.pointers().as_mut_ptr(), ptr::null_mut())
                .result()
        };
        checked(|| format!("launching {} on {:?} × {:?}", kernel.entry, kernel.grid, kernel.block), launched)
    }

    /// What a launch asks for beside its sizes.
    fn attributes(&self, kernel: &Kernel, start: Start) -> SmallVec<[sys::CUlaunchAttribute; 2]> {
        use sys::CUlaunchAttributeID as Id;
        // SAFETY: all zeros are an attribute, of no kind yet.
        let none: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
        let mut out = SmallVec::new();
        if start == Start::Early && self.device.capability()[0] >= 9 {
            let mut early = sys::CUlaunchAttribute {
                id: Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                ..none
            };
            early.value.programmaticStreamSerializationAllowed = 1;
            out.push(early);
        }
        if kernel.cluster > 1 {
            let mut cluster =
                sys::CUlaunchAttribute { id: Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, ..none };
            let size = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: kernel.cluster, y: 1, z: 1 };
            cluster.value.clusterDim = size;
            out.push(cluster);
        }
        out
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.lent {
            return;
        }
        let _ = self.device.enter();
        // SAFETY: created by `new`; the driver lets pending work end.
        let _ = unsafe { result::stream::destroy(self.handle) };
    }
}

/// The parameters of a kernel as the driver takes them.
struct Params<'k> {
    kernel: &'k Kernel,
    /// The driver's forms of the matrices.
    maps: Vec<sys::CUtensorMap>,
}

impl Params<'_> {
    fn of(kernel: &Kernel) -> Result<Params<'_>, CudaError> {
        let maps = kernel.params.iter().filter_map(Param::map).map(TensorMap::encode);
        Ok(Params { kernel, maps: maps.collect::<Result<_, _>>()? })
    }

    /// Where each is; valid as long as this value stays where it is.
    fn pointers(&self) -> SmallVec<[*mut c_void; 16]> {
        let mut maps = self.maps.iter();
        let at = |p: &Param| match p.map() {
            Some(_) => maps.next().map_or(ptr::null(), |m| ptr::from_ref(m).cast()),
            None => p.as_ptr().cast::<c_void>(),
        };
        self.kernel.params.iter().map(at).map(<*const c_void>::cast_mut).collect()
    }
}

/// A point in a stream.
#[derive(Debug)]
pub struct Event {
    handle: sys::CUevent,
}

// SAFETY: events may be used from any thread.
unsafe impl Send for Event {}

impl Event {
    /// An event that orders streams.
    pub fn new() -> Result<Event, CudaError> {
        Event::with(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// An event that also takes the time.
    pub fn timed() -> Result<Event, CudaError> {
        Event::with(sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn with(flags: sys::CUevent_flags) -> Result<Event, CudaError> {
        let handle = checked(|| "creating an event".into(), result::event::create(flags))?;
        Ok(Event { handle })
    }

    /// Marks the present end of `stream`.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both exist.
        checked(|| "recording an event".into(), unsafe { result::event::record(self.handle, stream.handle) })
    }

    /// Whether it was reached, or marks nothing yet.
    ///
    /// # Errors
    /// Something in front of it failed.
    pub fn reached(&self) -> Result<bool, CudaError> {
        // SAFETY: the event exists.
        match unsafe { sys::cuEventQuery(self.handle) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => checked(|| "running the program on the GPU".into(), other.result()).map(|()| true),
        }
    }

    /// Waits until it was reached; at once if it marks nothing yet.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the event exists.
        checked(|| "waiting for an event".into(), unsafe { result::event::synchronize(self.handle) })
    }

    /// Microseconds from this event to `later`; both must have been reached.
    pub fn microseconds_to(&self, later: &Event) -> Result<f64, CudaError> {
        // SAFETY: both exist.
        let ms = checked(|| "reading a time".into(), unsafe {
            result::event::elapsed(self.handle, later.handle)
        })?;
        Ok(f64::from(ms) * 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created by `with`.
        let _ = unsafe { result::event::destroy(self.handle) };
    }
}

/// Loaded machine code.
#[derive(Debug)]
pub struct Module {
    device: Arc<Device>,
    handle: sys::CUmodule,
}

// SAFETY: modules may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

/// A kernel of a module that is loaded.
#[derive(Clone, Copy, Debug)]
pub struct Function(sys::CUfunction);

impl Module {
    /// Loads what [`crate::compile::compile`] gave.
    pub fn load(device: &Arc<Device>, code: &[u8]) -> Result<Module, CudaError> {
        // SAFETY: the code is a whole image, which carries its own size.
        let loaded = unsafe { result::module::load_data(code.as_ptr().cast()) };
        let handle = checked(|| format!("loading {} bytes of machine code", code.len()), loaded)?;
        Ok(Module { device: device.clone(), handle })
    }

    /// The kernel of this name, allowed to use `shared` bytes of dynamic shared memory.
    pub fn function(&self, name: &str, shared: u32) -> Result<Function, CudaError> {
        let text = CString::new(name).unwrap_or_default();
        // SAFETY: the module is loaded.
        let found = unsafe { result::module::get_function(self.handle, text) };
        let function = checked(|| format!("looking up kernel {name}"), found)?;
        if shared > 48 << 10 {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function belongs to the module.
            let set = unsafe { result::function::set_function_attribute(function, attribute, shared as i32) };
            checked(|| format!("allowing {shared} bytes of shared memory to kernel {name}"), set)?;
        }
        Ok(Function(function))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let _ = self.device.enter();
        // SAFETY: loaded by `load`; graphs that use it are not launched any more.
        let _ = unsafe { result::module::unload(self.handle) };
    }
}
