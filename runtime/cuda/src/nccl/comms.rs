//! The communicators of a rank: created together with the other ranks, with the symmetric arena as a window
//! if a variant needs it, and destroyed.
//!
//! All ranks of a run create the same communicators in the same order. Every rank offers an id for each; the
//! id of the first rank of each cell is used. Communicators are non-blocking: calls continue in the
//! background, and waits for them have a limit. A rank that fails during this time ends the wait of all
//! ranks. The arena is registered once per communicator that needs it, before the first collective on it.
//!
//! A communicator of the caller ([`BorrowedCommunicator`]) serves the plain variant instead of one of our
//! own. It never gets a window.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys;
use indexmap::IndexMap;
use nccl_sys::{Comm, Nccl, NcclConfig, UniqueId, Version, Window, cta_policy, data_type, window};
use symmc_ir::CollectiveVariant;
use symmc_runtime::exec::{ExecutableStep, StepWork};

use super::borrowed::BorrowedCommunicator;
use super::call::is_run_by_library;
use super::teardown::{CommunicatorTeardown, EndedCommunicator, TeardownMode};
use super::wait::CallDeadline;
use crate::device::driver::{self, Device, Stream};
use crate::device::launch::Address;
use crate::error::{CudaError, Result};
use crate::exchange::RankExchange;

pub struct CommunicatorContext<'a> {
    pub exchange: &'a dyn RankExchange,
    pub device: &'a Arc<Device>,
    /// This rank's symmetric arena: its address, and its size in bytes, which is equal on all ranks. All of
    /// its bytes are zero.
    pub arena: (Address, usize),
    /// The limit of each wait.
    pub limit: Duration,
    /// A communicator that the caller owns.
    pub lent: Option<&'a BorrowedCommunicator>,
}

impl CommunicatorContext<'_> {
    fn deadline<'p>(
        &'p self,
        alive: &'p dyn Fn() -> Result<(), symmc_runtime::RunError>,
    ) -> CallDeadline<'p> {
        CallDeadline { limit: self.limit, alive }
    }
}

/// In place of a group: all ranks of the run.
const ALL_RANKS: usize = usize::MAX;

fn config(variant: CollectiveVariant) -> NcclConfig {
    let mut config = NcclConfig::default();
    config.blocking = 0;
    if variant == CollectiveVariant::CopyEngine {
        config.cta_policy = cta_policy::ZERO;
    }
    config
}

#[derive(Debug)]
struct CommunicatorEntry {
    comm: Comm,
    window: Option<Window>,
    lent: bool,
}

/// The communicators of one rank, by group and by the library variant that they serve.
#[derive(Debug, Default)]
pub struct Communicators {
    library: Option<&'static Nccl>,
    /// The device of the communicators.
    device: Option<Arc<Device>>,
    made: IndexMap<(usize, CollectiveVariant), CommunicatorEntry>,
    limit: Duration,
}

impl Communicators {
    /// Creates the communicators that these steps need, together with the other ranks. The library is loaded
    /// only if there are any.
    pub fn new<'b>(
        steps: impl IntoIterator<Item = &'b ExecutableStep>,
        making: &CommunicatorContext<'_>,
    ) -> Result<Communicators> {
        let mut out = Communicators::default();
        out.create_missing(steps, making)?;
        Ok(out)
    }

    /// Placeholders for the communicators that these steps need: the steps can be lowered with them, but not
    /// run.
    pub(crate) fn placeholders<'b>(steps: impl IntoIterator<Item = &'b ExecutableStep>) -> Communicators {
        let mut out = Communicators::default();
        for work in steps.into_iter().flat_map(|step| step.work.node_work()) {
            if let StepWork::Collective(call) = work
                && call.variant.is_library()
            {
                let placeholder =
                    CommunicatorEntry { comm: Comm(std::ptr::null_mut()), window: None, lent: true };
                out.made.insert((call.group, call.variant), placeholder);
            }
        }
        out
    }

    /// Creates the missing communicators that these steps need. Fails if there is no library, it lacks a
    /// function, the machine supports no window, or a rank fails or does not arrive.
    pub fn create_missing<'b>(
        &mut self,
        steps: impl IntoIterator<Item = &'b ExecutableStep>,
        making: &CommunicatorContext<'_>,
    ) -> Result<()> {
        let mut wanted: BTreeMap<(usize, CollectiveVariant), &[u32]> = BTreeMap::new();
        for work in steps.into_iter().flat_map(|step| step.work.node_work()) {
            if let StepWork::Collective(call) = work
                && is_run_by_library(call)
            {
                wanted.insert((call.group, call.variant), &call.cell);
            }
        }
        wanted.retain(|key, _| !self.made.contains_key(key));
        if wanted.is_empty() {
            return Ok(());
        }
        let nccl = Nccl::load().map_err(|e| CudaError::Unsupported(e.to_string()))?;
        self.adopt_library(nccl, making);
        for (&key, &cell) in &wanted {
            if let Some(borrowed) =
                making.lent.filter(|l| key.1 == CollectiveVariant::Plain && l.ranks() == cell)
            {
                let comm = borrowed.check_ranks(nccl, making.exchange.rank())?;
                self.made.insert(key, CommunicatorEntry { comm, window: None, lent: true });
            } else {
                self.create_or_abort(nccl, key, cell, making)?;
            }
        }
        Ok(())
    }

    fn adopt_library(&mut self, nccl: &'static Nccl, making: &CommunicatorContext<'_>) {
        self.library = Some(nccl);
        self.device = Some(making.device.clone());
        self.limit = making.limit;
    }

    /// Creates a communicator of all ranks with a window over the memory of `making`.
    pub(super) fn window_of_all(&mut self, making: &CommunicatorContext<'_>) -> Result<Window> {
        let nccl = Nccl::load().map_err(|e| CudaError::Unsupported(e.to_string()))?;
        self.adopt_library(nccl, making);
        let (key, cell) =
            ((ALL_RANKS, CollectiveVariant::NcclWindow), (0..making.exchange.ranks()).collect::<Vec<u32>>());
        self.create_or_abort(nccl, key, &cell, making)?;
        let window = self.made.get(&key).and_then(|entry| entry.window);
        window.ok_or_else(|| CudaError::Unsupported("the communicator has no window".into()))
    }

    /// Creates a communicator, or removes the incomplete one after a failure.
    fn create_or_abort(
        &mut self,
        nccl: &'static Nccl,
        key: (usize, CollectiveVariant),
        cell: &[u32],
        making: &CommunicatorContext<'_>,
    ) -> Result<()> {
        self.create(nccl, key, cell, making).inspect_err(|_| {
            if let Some(half) = self.made.shift_remove(&key) {
                // SAFETY: the communicator exists and is not used after this.
                let _ = unsafe { (nccl.functions().comm_abort)(half.comm) };
            }
        })
    }

    /// Creates a communicator. After a failure, the incomplete one is among those of this value.
    fn create(
        &mut self,
        nccl: &'static Nccl,
        key: (usize, CollectiveVariant),
        cell: &[u32],
        making: &CommunicatorContext<'_>,
    ) -> Result<()> {
        let exchange = making.exchange;
        let variant = key.1;
        // A rank that cannot create one reports this, so that no rank waits for it.
        let mine = able(nccl, variant).and_then(|()| Ok(nccl.unique_id()?));
        let bytes = mine.as_ref().map_or([0; UniqueId::BYTES], |id| id.to_bytes());
        let message = [&[u8::from(mine.is_ok())][..], &bytes].concat();
        let messages = exchange.all_gather(&message)?;
        mine?;
        if let Some(rank) = messages.iter().position(|s| s.first() != Some(&1)) {
            let text = format!("rank {rank} has no communicator for the variant {variant}");
            return Err(CudaError::Unsupported(text));
        }
        let first = cell.first().and_then(|&first| messages.get(first as usize)?.get(1..));
        let id = first.and_then(|bytes| <[u8; UniqueId::BYTES]>::try_from(bytes).ok());
        let number = cell.iter().position(|&r| r == exchange.rank());
        let (Some(id), Some(number)) = (id, number) else {
            return Err(CudaError::Unsupported(format!("rank {} is not in its group", exchange.rank())));
        };
        let ranks = cell.len() as u32;
        let id = UniqueId::from_bytes(id);
        let comm = nccl.comm_init_rank(ranks, id, number as u32, &config(variant))?;
        self.made.insert(key, CommunicatorEntry { comm, window: None, lent: false });
        let alive = || exchange.expect_running();
        let deadline = making.deadline(&alive);
        // SAFETY: the communicator was just made.
        unsafe { deadline.wait_for_call(nccl, comm, "ncclCommInitRankConfig", 0)? };
        if variant == CollectiveVariant::Plain {
            return Ok(());
        }
        let (address, bytes) = making.arena;
        let window = register(nccl, comm, address, bytes, &deadline)?;
        self.made.insert(key, CommunicatorEntry { comm, window: Some(window), lent: false });
        if variant == CollectiveVariant::CopyEngine {
            warm(nccl, comm, [number, cell.len()], making, &deadline)?;
        }
        Ok(())
    }

    pub(crate) fn get(&self, group: usize, variant: CollectiveVariant) -> Result<Comm> {
        match self.made.get(&(group, variant)) {
            Some(entry) => Ok(entry.comm),
            None => Err(CudaError::Unsupported(format!(
                "the group has no communicator for the variant {variant}"
            ))),
        }
    }

    pub(super) fn library(&self) -> Result<&'static Nccl> {
        self.library.ok_or_else(|| CudaError::Unsupported("NCCL is called without a communicator".into()))
    }

    /// Waits until the library has enqueued a call, which returned `code`.
    pub(super) fn wait_for_call(&self, comm: Comm, call: &'static str, code: i32) -> Result<()> {
        let deadline = CallDeadline { limit: self.limit, alive: &|| Ok(()) };
        // SAFETY: calls are made on communicators of this value.
        unsafe { deadline.wait_for_call(self.library()?, comm, call, code) }
    }

    pub fn version(&self) -> Option<Version> {
        self.library.map(Nccl::version)
    }

    /// Whether the library launches a variant's kernels by programmatic dependent launch (PDL) without a wait
    /// for earlier work in their stream ([`PDL_WITHOUT_WAIT`]). Our kernels let the next one begin at once,
    /// so another operation must separate them.
    pub(crate) fn skips_pdl_wait(&self, variant: CollectiveVariant) -> bool {
        self.version().is_some_and(|version| skips_pdl_wait(version, variant))
    }

    /// Communicators from elsewhere, for tests.
    #[cfg(test)]
    pub(super) fn of_test(
        library: &'static Nccl,
        group: usize,
        variants: &[CollectiveVariant],
        comm: Comm,
    ) -> Communicators {
        let entries = variants
            .iter()
            .map(|&variant| ((group, variant), CommunicatorEntry { comm, window: None, lent: true }));
        Communicators { library: Some(library), device: None, made: entries.collect(), limit: Duration::ZERO }
    }

    /// Starts to abort all communicators, even with work in progress, after a failed run. Borrowed ones are left to
    /// their owner.
    pub fn abort(&mut self) -> CommunicatorTeardown {
        self.start_teardown(TeardownMode::Abort)
    }

    fn start_teardown(&mut self, mode: TeardownMode) -> CommunicatorTeardown {
        let owned = self.made.drain(..).map(|(_, entry)| entry).filter(|entry| !entry.lent);
        let ended: Vec<_> =
            owned.map(|entry| EndedCommunicator { comm: entry.comm, window: entry.window }).collect();
        CommunicatorTeardown::start(self.library, self.device.as_ref(), ended, mode)
    }
}

impl Drop for Communicators {
    fn drop(&mut self) {
        self.start_teardown(TeardownMode::Destroy).wait_briefly();
    }
}

/// Whether the library on this machine has what a variant needs; `false` without a library.
pub fn has(variant: CollectiveVariant) -> bool {
    !variant.is_library() || Nccl::load().is_ok_and(|nccl| lacks(nccl, variant).is_none())
}

pub(super) fn lacks(nccl: &Nccl, variant: CollectiveVariant) -> Option<String> {
    match variant {
        CollectiveVariant::CopyEngine => nccl.all_to_all().err().map(|missing| missing.to_string()),
        _ => None,
    }
}

/// Checks that the library and the driver have what a variant needs.
fn able(nccl: &Nccl, variant: CollectiveVariant) -> Result<()> {
    if let Some(missing) = lacks(nccl, variant) {
        return Err(CudaError::Unsupported(format!("the variant {variant}: {missing}")));
    }
    let version = driver::cuda_version()?;
    if variant == CollectiveVariant::CopyEngine && version < COPY_ENGINES {
        let [major, minor] = version;
        let [least_major, least_minor] = COPY_ENGINES;
        return Err(CudaError::Unsupported(format!(
            "the variant {variant}: copy engines need a driver for CUDA {least_major}.{least_minor} or newer, \
             found {major}.{minor}"
        )));
    }
    Ok(())
}

/// The CUDA version from which NCCL uses copy engines. With older ones it silently uses multiprocessors.
const COPY_ENGINES: [u32; 2] = [12, 5];

/// The first version whose symmetric kernels use programmatic dependent launch (PDL) without waiting for the
/// end of the previous kernel, and the first in which they wait again. Other kernels of the library, and its
/// copy engines, are ordered by the stream.
pub const PDL_WITHOUT_WAIT: [Version; 2] = [Version::new(2, 28, 0), Version::new(2, 30, 7)];

/// Whether a version launches a variant's kernels by PDL without a wait in the kernel.
pub(crate) fn skips_pdl_wait(version: Version, variant: CollectiveVariant) -> bool {
    variant == CollectiveVariant::NcclWindow && (PDL_WITHOUT_WAIT[0]..PDL_WITHOUT_WAIT[1]).contains(&version)
}

/// The first version whose windows are structs in device memory.
pub(super) const DEVICE_WINDOWS: Version = Version::new(2, 28, 0);

/// Registers the arena as a window of a communicator.
fn register(
    nccl: &Nccl,
    comm: Comm,
    address: Address,
    bytes: usize,
    deadline: &CallDeadline<'_>,
) -> Result<Window> {
    // The library writes the window when it is done, perhaps after this call. After a failure it may still
    // write, so these few bytes are then leaked.
    let slot = Box::into_raw(Box::new(Window::NULL));
    let base = address as usize as *mut c_void;
    // SAFETY: the arena is a complete allocation of the driver's virtual memory management, and outlives the
    // window.
    let code =
        unsafe { (nccl.functions().comm_window_register)(comm, base, bytes, slot, window::COLL_SYMMETRIC) };
    // SAFETY: the communicator exists.
    unsafe { deadline.wait_for_call(nccl, comm, "ncclCommWindowRegister", code)? };
    // SAFETY: the library no longer uses it.
    let window = unsafe { *Box::from_raw(slot) };
    if usable(nccl.version(), window) {
        return Ok(window);
    }
    Err(CudaError::Unsupported(format!(
        "NCCL {} created no symmetric window of the arena: expected peer access between all GPUs of the group, \
         and NCCL_WIN_ENABLE and NCCL_CUMEM_ENABLE unset or 1",
        nccl.version()
    )))
}

/// Whether a window is usable. If symmetric memory is not supported, registration still succeeds, with a null
/// handle or one in host memory.
fn usable(version: Version, window: Window) -> bool {
    if window == Window::NULL {
        return false;
    }
    let mut kind: u32 = 0;
    let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    // SAFETY: the function writes one integer, and takes any address.
    let code = unsafe { sys::cuPointerGetAttribute((&raw mut kind).cast(), attribute, window.0 as Address) };
    let device = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32;
    version < DEVICE_WINDOWS || (code == sys::CUresult::CUDA_SUCCESS && kind == device)
}

/// Runs small all-gathers of the arena's first bytes, which are zero and stay zero. The first one lets the
/// library allocate its resources, which is not possible during a capture. The second one leaves flags that
/// no recorded call waits for: flags count calls from 1, and each recorded call waits for a 1.
fn warm(
    nccl: &Nccl,
    comm: Comm,
    [number, ranks]: [usize; 2],
    making: &CommunicatorContext<'_>,
    deadline: &CallDeadline<'_>,
) -> Result<()> {
    const PIECE: usize = 16;
    let (address, bytes) = making.arena;
    if bytes < ranks * PIECE {
        return Err(CudaError::Unsupported(format!(
            "the symmetric arena has {bytes} bytes: expected at least {} for {ranks} ranks",
            ranks * PIECE
        )));
    }
    let stream = Stream::new(making.device)?;
    let receive = address as usize as *mut c_void;
    let send = receive.wrapping_byte_add(number * PIECE).cast_const();
    for _ in 0..2 {
        // SAFETY: the arena is large enough, and nothing else uses it yet.
        let code = unsafe {
            (nccl.functions().all_gather)(send, receive, PIECE, data_type::U8, comm, stream.handle().cast())
        };
        // SAFETY: the communicator exists.
        unsafe { deadline.wait_for_call(nccl, comm, "ncclAllGather", code)? };
    }
    deadline.poll_until("the first all-gather by copy engines", || Ok(stream.is_idle()?.then_some(())))
}
