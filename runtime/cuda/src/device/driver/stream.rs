//! Streams, the work that is enqueued on them, and events that order and time it.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::{result, sys};
use smallvec::SmallVec;

use super::device::Device;
use super::module::Function;
use crate::device::launch::{Address, KernelLaunch, KernelParam, LaunchOrder, PortBases};
use crate::error::{CudaError, Result, check_driver_result};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BorrowedStream(sys::CUstream);

// SAFETY: streams may be used from any thread.
unsafe impl Send for BorrowedStream {}

// SAFETY: as above; the driver locks.
unsafe impl Sync for BorrowedStream {}

impl BorrowedStream {
    /// Borrows a `cudaStream_t` (`CUstream`) that was created; the default streams cannot be captured.
    ///
    /// # Safety
    /// - The stream belongs to the primary context of the session's GPU.
    /// - The stream exists from before the session is made until after it is dropped, and is not capturing at these
    ///   two times. All work that its owner enqueued on it has ended by the time the session is dropped.
    /// - While the session uses it, no other code does. Work that the owner enqueues on it does not access
    ///   the session's memory.
    pub unsafe fn new(stream: *mut c_void) -> BorrowedStream {
        BorrowedStream(stream.cast())
    }

    pub(crate) fn handle(self) -> sys::CUstream {
        self.0
    }
}

#[derive(Debug)]
pub struct Stream {
    pub(super) device: Arc<Device>,
    pub(super) handle: sys::CUstream,
    /// Whether the stream belongs to the caller, who destroys it.
    lent: bool,
}

// SAFETY: streams may be used from any thread.
unsafe impl Send for Stream {}

// SAFETY: as above; the driver locks.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new stream that does not wait for the default stream.
    pub fn new(device: &Arc<Device>) -> Result<Stream> {
        let created = result::stream::create(result::stream::StreamKind::NonBlocking);
        let handle = check_driver_result(|| "creating a stream".into(), created)?;
        Ok(Stream { device: device.clone(), handle, lent: false })
    }

    /// A new stream with the highest priority: its kernels, also those of graphs, are scheduled before
    /// waiting kernels of other streams.
    pub fn urgent(device: &Arc<Device>) -> Result<Stream> {
        let mut lowest_priority = 0;
        let mut highest_priority = 0;
        let mut handle = ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current; the calls write two integers and a handle.
        let created = unsafe {
            let queried =
                sys::cuCtxGetStreamPriorityRange(&mut lowest_priority, &mut highest_priority).result();
            queried
                .and_then(|()| sys::cuStreamCreateWithPriority(&mut handle, flags, highest_priority).result())
        };
        check_driver_result(|| "creating a stream".into(), created)?;
        Ok(Stream { device: device.clone(), handle, lent: false })
    }

    /// Wraps a stream of the caller, under the conditions of [`BorrowedStream::new`].
    pub fn adopt(device: &Arc<Device>, stream: BorrowedStream) -> Stream {
        Stream { device: device.clone(), handle: stream.handle(), lent: true }
    }

    pub fn handle(&self) -> sys::CUstream {
        self.handle
    }

    /// Whether it belongs to the context of its device, which is current. Fails if the stream does not exist.
    pub fn is_of_device(&self) -> Result<bool> {
        let mut context = ptr::null_mut();
        // SAFETY: the stream exists; the call writes a handle.
        let code = unsafe { sys::cuStreamGetCtx(self.handle, &mut context) };
        check_driver_result(|| "querying the context of a stream".into(), code.result())?;
        Ok(context == self.device.context)
    }

    /// Whether work on it is captured instead of run. Fails if the stream does not exist, or its capture
    /// failed.
    pub fn is_capturing(&self) -> Result<bool> {
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream exists; the call writes one word.
        let code = unsafe { sys::cuStreamIsCapturing(self.handle, &mut status) };
        check_driver_result(|| "querying whether a stream is capturing".into(), code.result())?;
        match status {
            sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE => Ok(false),
            sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE => Ok(true),
            _ => Err(CudaError::Unsupported("the stream belongs to a capture that has failed".into())),
        }
    }

    /// Whether all work enqueued so far has ended. Fails if earlier work failed.
    pub fn is_idle(&self) -> Result<bool> {
        // SAFETY: the stream exists.
        match unsafe { sys::cuStreamQuery(self.handle) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => {
                check_driver_result(|| "running the program on the GPU".into(), other.result()).map(|()| true)
            }
        }
    }

    /// Waits until all work enqueued so far has ended. Fails if earlier work failed.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream exists.
        let ended = unsafe { result::stream::synchronize(self.handle) };
        check_driver_result(|| "running the program on the GPU".into(), ended)
    }

    pub fn wait(&self, event: &Event) -> Result<()> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both exist.
        let waiting = unsafe { result::stream::wait_event(self.handle, event.handle, flags) };
        check_driver_result(|| "waiting for an event".into(), waiting)
    }

    /// Copies to the device. Returns when the host memory may be changed.
    ///
    /// # Safety
    /// `to` has at least `from.len()` bytes, and nothing else uses them during the call.
    pub unsafe fn upload(&self, to: Address, from: &[u8]) -> Result<()> {
        // SAFETY: the slice outlives the copy, which the next call waits for; the rest by the caller.
        let copied = unsafe { result::memcpy_htod_async(to, from, self.handle) };
        check_driver_result(
            || format!("copying {} bytes to GPU {}", from.len(), self.device.ordinal()),
            copied,
        )?;
        self.synchronize()
    }

    /// Enqueues a copy from pinned memory to the device. Returns at once.
    ///
    /// # Safety
    /// `to` has at least `from.len()` bytes. Until the copy is done, nothing writes `from` and nothing else
    /// uses `to`.
    pub unsafe fn upload_pinned(&self, to: Address, from: &[u8]) -> Result<()> {
        // SAFETY: by the caller.
        let copied = unsafe { result::memcpy_htod_async(to, from, self.handle) };
        check_driver_result(
            || format!("copying {} bytes to GPU {}", from.len(), self.device.ordinal()),
            copied,
        )
    }

    /// Copies from the device, after all work enqueued before.
    ///
    /// # Safety
    /// `from` has at least `to.len()` bytes.
    pub unsafe fn download(&self, to: &mut [u8], from: Address) -> Result<()> {
        let start = to.as_mut_ptr();
        let len = to.len();
        // SAFETY: the slice outlives the copy, which the next call waits for; the rest by the caller.
        let copied = unsafe {
            result::memcpy_dtoh_async(std::slice::from_raw_parts_mut(start, len), from, self.handle)
        };
        check_driver_result(|| format!("copying {len} bytes from GPU {}", self.device.ordinal()), copied)?;
        self.synchronize()
    }

    /// Copies on the device.
    ///
    /// # Safety
    /// Both ranges exist and do not overlap.
    pub unsafe fn copy(&self, to: Address, from: Address, bytes: usize) -> Result<()> {
        // SAFETY: by the caller.
        let copied = unsafe { result::memcpy_dtod_async(to, from, bytes, self.handle) };
        check_driver_result(|| format!("copying {bytes} bytes on GPU {}", self.device.ordinal()), copied)
    }

    /// Sets bytes.
    ///
    /// # Safety
    /// The range exists.
    pub unsafe fn fill(&self, at: Address, byte: u8, bytes: usize) -> Result<()> {
        // SAFETY: by the caller.
        let filled = unsafe { result::memset_d8_async(at, byte, bytes, self.handle) };
        check_driver_result(|| format!("setting {bytes} bytes on GPU {}", self.device.ordinal()), filled)
    }

    /// Stores a word.
    ///
    /// # Safety
    /// The word exists, at a multiple of 4.
    pub unsafe fn store(&self, at: Address, word: u32) -> Result<()> {
        // SAFETY: by the caller.
        let stored = unsafe { sys::cuMemsetD32Async(at, word, 1, self.handle) };
        check_driver_result(|| format!("storing a word on GPU {}", self.device.ordinal()), stored.result())
    }

    /// Launches a kernel, with ports at these bases.
    ///
    /// # Safety
    /// The function takes these parameters and accesses only memory that exists.
    pub unsafe fn launch(
        &self,
        function: Function,
        kernel: &KernelLaunch,
        bases: PortBases<'_>,
        start: LaunchOrder,
    ) -> Result<()> {
        let params = KernelArguments::resolve(kernel, bases)?;
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
            sys::cuLaunchKernelEx(&config, function.handle(), params.pointers().as_mut_ptr(), ptr::null_mut())
                .result()
        };
        check_driver_result(
            || format!("launching {} on {:?} × {:?}", kernel.entry, kernel.grid, kernel.block),
            launched,
        )
    }

    /// The attributes of a launch, apart from its sizes.
    fn attributes(&self, kernel: &KernelLaunch, start: LaunchOrder) -> SmallVec<[sys::CUlaunchAttribute; 2]> {
        use sys::CUlaunchAttributeID as Id;
        // SAFETY: an all-zero attribute is valid, with no kind set.
        let none: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
        let mut out = SmallVec::new();
        if start == LaunchOrder::Dependent && self.device.capability()[0] >= 9 {
            let mut dependent = sys::CUlaunchAttribute {
                id: Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                ..none
            };
            dependent.value.programmaticStreamSerializationAllowed = 1;
            out.push(dependent);
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
        // SAFETY: created by `new` or `urgent`; the driver completes pending work.
        let _ = unsafe { result::stream::destroy(self.handle) };
    }
}

#[derive(Debug)]
pub struct Event {
    handle: sys::CUevent,
}

// SAFETY: events may be used from any thread.
unsafe impl Send for Event {}

impl Event {
    /// An event that orders streams.
    pub fn new() -> Result<Event> {
        Event::with_flags(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// An event that also records the time.
    pub fn timed() -> Result<Event> {
        Event::with_flags(sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn with_flags(flags: sys::CUevent_flags) -> Result<Event> {
        let handle = check_driver_result(|| "creating an event".into(), result::event::create(flags))?;
        Ok(Event { handle })
    }

    /// Marks the current end of `stream`.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        // SAFETY: both exist.
        check_driver_result(|| "recording an event".into(), unsafe {
            result::event::record(self.handle, stream.handle)
        })
    }

    /// Whether the event was reached, or marks nothing yet. Fails if work before it failed.
    pub fn reached(&self) -> Result<bool> {
        // SAFETY: the event exists.
        match unsafe { sys::cuEventQuery(self.handle) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => {
                check_driver_result(|| "running the program on the GPU".into(), other.result()).map(|()| true)
            }
        }
    }

    /// Waits until the event was reached; returns at once if it marks nothing yet.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the event exists.
        check_driver_result(|| "waiting for an event".into(), unsafe {
            result::event::synchronize(self.handle)
        })
    }

    /// Microseconds from this event to `later`; both must have been reached.
    pub fn microseconds_to(&self, later: &Event) -> Result<f64> {
        // SAFETY: both exist.
        let ms = check_driver_result(|| "reading a time".into(), unsafe {
            result::event::elapsed(self.handle, later.handle)
        })?;
        Ok(f64::from(ms) * 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created by `with_flags`.
        let _ = unsafe { result::event::destroy(self.handle) };
    }
}

/// The parameters of a kernel in the driver's form.
pub(super) struct KernelArguments<'k> {
    kernel: &'k KernelLaunch,
    /// The encoded tensor maps.
    maps: SmallVec<[sys::CUtensorMap; 2]>,
    /// The words of parameters with pointers to ports, one parameter after another, with the pointers
    /// resolved to addresses.
    resolved: SmallVec<[u64; 32]>,
}

impl<'k> KernelArguments<'k> {
    pub fn resolve(kernel: &'k KernelLaunch, bases: PortBases<'_>) -> Result<KernelArguments<'k>> {
        let mut maps = SmallVec::new();
        let mut resolved = SmallVec::new();
        for param in &kernel.params {
            match param {
                KernelParam::Map(map) => maps.push(map.encode(bases)?),
                KernelParam::Value(plain) if plain.ports().is_empty() => {}
                KernelParam::Value(plain) => {
                    let first = resolved.len();
                    resolved.extend_from_slice(plain.words());
                    for &(word, pointer) in plain.ports() {
                        resolved[first + word as usize] = pointer.resolve(bases);
                    }
                }
            }
        }
        Ok(KernelArguments { kernel, maps, resolved })
    }

    /// The addresses of the parameters; valid as long as this value is not moved.
    pub fn pointers(&self) -> SmallVec<[*mut c_void; 16]> {
        let mut maps = self.maps.iter();
        let mut resolved = &self.resolved[..];
        let mut pointers = SmallVec::with_capacity(self.kernel.params.len());
        for param in &self.kernel.params {
            let pointer: *const c_void = match param {
                KernelParam::Map(_) => maps.next().map_or(ptr::null(), |map| ptr::from_ref(map).cast()),
                KernelParam::Value(plain) if plain.ports().is_empty() => param.as_ptr().cast(),
                KernelParam::Value(plain) => {
                    let (words, rest) = resolved.split_at(plain.words().len());
                    resolved = rest;
                    words.as_ptr().cast()
                }
            };
            pointers.push(pointer.cast_mut());
        }
        pointers
    }
}
