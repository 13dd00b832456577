//! How sessions run: on the host, or on a GPU with what the caller lends.

use std::ffi::c_void;
use std::time::Duration;

use symmc::{Error, SessionConfig};

use crate::error::{
    borrow_handle_mut, create_handle, free_handle, guard, input_error, read_slice, symmc_status,
};

/// The GPU whose number is that of the rank.
pub const SYMMC_GPU_OF_RANK: u32 = 0xffffffff;

/// Symmetric memory is the driver's, passed between ranks by file descriptors.
pub const SYMMC_ARENA_DRIVER: i32 = 0;
/// Symmetric memory is NCCL's, mapped by a window over all ranks.
pub const SYMMC_ARENA_NCCL: i32 = 1;

/// Algorithms of matrix products are the fastest of several by measurement, which is kept on disk.
pub const SYMMC_PRODUCTS_MEASURED: i32 = 0;
/// Algorithms of matrix products are the first that the library names; attention is by kernels of symmc.
pub const SYMMC_PRODUCTS_HEURISTIC: i32 = 1;

/// How a session runs. One thread at a time changes it; sessions keep what they need of it.
pub struct symmc_session_options {
    limit: Option<Duration>,
    /// Bytes of symmetric memory for the caller.
    symmetric: usize,
    gpu: Option<GpuOptions>,
}

/// A GPU and what the caller lends of it. What is not set is as it is by itself.
struct GpuOptions {
    ordinal: Option<u32>,
    stream: *mut c_void,
    communicator: Option<(*mut c_void, Vec<u32>)>,
    arena: i32,
    products: i32,
    kept: Option<usize>,
}

impl Default for GpuOptions {
    fn default() -> Self {
        GpuOptions {
            ordinal: None,
            stream: std::ptr::null_mut(),
            communicator: None,
            arena: SYMMC_ARENA_DRIVER,
            products: SYMMC_PRODUCTS_MEASURED,
            kept: None,
        }
    }
}

impl symmc_session_options {
    /// The GPU that was set.
    fn gpu_options(&mut self) -> Result<&mut GpuOptions, Error> {
        let none = || input_error("the session is on the host: symmc_session_options_set_gpu comes first");
        self.gpu.as_mut().ok_or_else(none)
    }

    /// The same for Rust.
    ///
    /// # Safety
    /// Stream and communicator are what was said of them.
    pub(crate) unsafe fn session_config(&self) -> Result<SessionConfig, Error> {
        let config = SessionConfig::default().with_symmetric_bytes(self.symmetric);
        let config = match self.limit {
            Some(limit) => config.with_timeout(limit),
            None => config,
        };
        match &self.gpu {
            // SAFETY: by the caller.
            Some(lent) => unsafe { on_gpu(config, lent) },
            None => Ok(config),
        }
    }
}

/// # Safety
/// Stream and communicator are what was said of them.
#[cfg(feature = "cuda")]
unsafe fn on_gpu(config: SessionConfig, lent: &GpuOptions) -> Result<SessionConfig, Error> {
    let mut gpu = lent.ordinal.map_or_else(symmc::GpuConfig::default, symmc::GpuConfig::new);
    if !lent.stream.is_null() {
        // SAFETY: by the caller.
        gpu = unsafe { gpu.with_stream(lent.stream) };
    }
    if let Some((communicator, ranks)) = &lent.communicator {
        // SAFETY: by the caller.
        gpu = unsafe { gpu.with_communicator(*communicator, ranks.clone()) };
    }
    if lent.arena == SYMMC_ARENA_NCCL {
        gpu = gpu.with_arena(symmc::ArenaSource::Nccl);
    }
    if lent.products == SYMMC_PRODUCTS_HEURISTIC {
        gpu = gpu.with_products(symmc::AlgorithmSelection::Heuristic);
    }
    if let Some(kept) = lent.kept {
        gpu = gpu.with_cached_recordings(kept);
    }
    Ok(config.with_gpu(gpu))
}

#[cfg(not(feature = "cuda"))]
unsafe fn on_gpu(config: SessionConfig, lent: &GpuOptions) -> Result<SessionConfig, Error> {
    let GpuOptions { ordinal, stream, communicator, arena, products, kept } = lent;
    let _ = (ordinal, stream, communicator, arena, products, kept, config);
    expect_gpus().and_then(|()| Err(input_error("no session runs on a GPU")))
}

/// Whether this library knows GPUs.
fn expect_gpus() -> Result<(), Error> {
    match cfg!(feature = "cuda") {
        true => Ok(()),
        false => Err(Error::new(
            symmc::ErrorKind::Unsupported,
            "this library was built without GPUs: expected one with the feature cuda",
        )),
    }
}

/// What most setters are: something with the options.
///
/// # Safety
/// `options` are options that no other thread uses, or NULL.
unsafe fn with_options(
    options: *mut symmc_session_options,
    work: impl FnOnce(&mut symmc_session_options) -> Result<(), Error>,
) -> symmc_status {
    // SAFETY: by the caller.
    guard(|| work(unsafe { borrow_handle_mut(options, "options of the session") }?))
}

/// Options with which everything is as it is by itself: a session on the host, no wait longer than 30 seconds. They are the
/// caller's, freed by `symmc_session_options_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_options_create(out: *mut *mut symmc_session_options) -> symmc_status {
    // SAFETY: by the caller.
    unsafe { create_handle(out, || Ok(symmc_session_options { limit: None, symmetric: 0, gpu: None })) }
}

/// Sets the milliseconds that no wait for other ranks takes longer than, also in runs; 0 for 30,000.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_options_set_limit(
    options: *mut symmc_session_options,
    limit_ms: u64,
) -> symmc_status {
    let set = |options: &mut symmc_session_options| {
        options.limit = Some(limit_ms).filter(|&limit| limit > 0).map(Duration::from_millis);
        Ok(())
    };
    // SAFETY: by the caller.
    unsafe { with_options(options, set) }
}

/// Sets the bytes of symmetric memory for the caller beside what the plan needs, the same on all ranks
/// (`symmc_session_allocate_symmetric`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_options_set_symmetric(
    options: *mut symmc_session_options,
    bytes: usize,
) -> symmc_status {
    let set = |options: &mut symmc_session_options| {
        options.symmetric = bytes;
        Ok(())
    };
    // SAFETY: by the caller.
    unsafe { with_options(options, set) }
}

/// Has the session run on a GPU, by its number among those that the process sees, or `SYMMC_GPU_OF_RANK`. Each rank has a GPU
/// of its own. Comes before the other settings of GPUs, which it leaves as they are. `SYMMC_ERROR_UNSUPPORTED` if this library
/// was built without GPUs; whether there is such a GPU is asked when a session is opened.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_options_set_gpu(
    options: *mut symmc_session_options,
    ordinal: u32,
) -> symmc_status {
    let set = |options: &mut symmc_session_options| {
        expect_gpus()?;
        options.gpu.get_or_insert_default().ordinal =
            Some(ordinal).filter(|&ordinal| ordinal != SYMMC_GPU_OF_RANK);
        Ok(())
    };
    // SAFETY: by the caller.
    unsafe { with_options(options, set) }
}

/// Has runs that are given no stream of their own go to this one, a `cudaStream_t` or `CUstream`; NULL for one of the
/// session's. It stays the caller's, belongs to the primary context of the GPU, and exists until the session has ended.
///
/// # Safety
/// `options` are options, `stream` is such a stream or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_options_set_stream(
    options: *mut symmc_session_options,
    stream: *mut c_void,
) -> symmc_status {
    let set = |options: &mut symmc_session_options| {
        options.gpu_options()?.stream = stream;
        Ok(())
    };
    // SAFETY: by the caller.
    unsafe { with_options(options, set) }
}

/// Has plain collectives of exactly these ranks run on a communicator of the caller, an `ncclComm_t`, whose ranks they are in
/// its order; NULL for those of the session. All ranks of a session lend one, or none does. It stays the caller's, of the NCCL
/// that the process has loaded as `libnccl.so.2`, and exists until the session has ended; nobody calls it while a call of the
/// session is in progress, and the caller's own calls come in the same order among the session's on all ranks.
///
/// # Safety
/// `options` are options, `communicator` is such a communicator or NULL, `ranks` has `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_options_set_communicator(
    options: *mut symmc_session_options,
    communicator: *mut c_void,
    ranks: *const u32,
    count: usize,
) -> symmc_status {
    let set = |options: &mut symmc_session_options| {
        // SAFETY: by the caller.
        let ranks = unsafe { read_slice(ranks, count, "ranks") }?.to_vec();
        if !communicator.is_null() && ranks.is_empty() {
            return Err(input_error("the communicator has no ranks"));
        }
        options.gpu_options()?.communicator = (!communicator.is_null()).then_some((communicator, ranks));
        Ok(())
    };
    // SAFETY: by the caller.
    unsafe { with_options(options, set) }
}

/// Sets who allocates symmetric memory: `SYMMC_ARENA_DRIVER` or `SYMMC_ARENA_NCCL`, the same on all ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_options_set_arena(
    options: *mut symmc_session_options,
    arena: i32,
) -> symmc_status {
    let set = |options: &mut symmc_session_options| {
        options.gpu_options()?.arena =
            check_choice(arena, SYMMC_ARENA_NCCL, "SYMMC_ARENA_DRIVER or SYMMC_ARENA_NCCL")?;
        Ok(())
    };
    // SAFETY: by the caller.
    unsafe { with_options(options, set) }
}

/// Sets how algorithms of matrix products are chosen: `SYMMC_PRODUCTS_MEASURED` or `SYMMC_PRODUCTS_HEURISTIC`, the same on all
/// ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_options_set_products(
    options: *mut symmc_session_options,
    products: i32,
) -> symmc_status {
    let expected = "SYMMC_PRODUCTS_MEASURED or SYMMC_PRODUCTS_HEURISTIC";
    let set = |options: &mut symmc_session_options| {
        options.gpu_options()?.products = check_choice(products, SYMMC_PRODUCTS_HEURISTIC, expected)?;
        Ok(())
    };
    // SAFETY: by the caller.
    unsafe { with_options(options, set) }
}

/// Sets how many recorded runs are kept, each for some sizes and some memory; the same on all ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_options_set_kept(
    options: *mut symmc_session_options,
    kept: usize,
) -> symmc_status {
    let set = |options: &mut symmc_session_options| {
        options.gpu_options()?.kept = Some(kept);
        Ok(())
    };
    // SAFETY: by the caller.
    unsafe { with_options(options, set) }
}

/// A choice from 0 to `last`.
fn check_choice(choice: i32, last: i32, expected: &str) -> Result<i32, Error> {
    match (0..=last).contains(&choice) {
        true => Ok(choice),
        false => Err(input_error(format!("expected {expected}, found {choice}"))),
    }
}

/// Frees options. Sessions that were opened with them go on. NULL is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_options_free(options: *mut symmc_session_options) {
    // SAFETY: by the caller.
    unsafe { free_handle(options) }
}
