//! Options of sessions: on the host, or on a GPU with resources of the caller.

use std::ffi::c_void;
use std::time::Duration;

use symmc::{Error, SessionConfig};

use crate::error::{
    borrow_handle_mut, create_handle, free_handle, guard, input_error, read_slice, symmc_status,
};

/// The GPU with the number of the rank.
pub const SYMMC_GPU_OF_RANK: u32 = 0xffffffff;

/// The driver allocates symmetric memory. Ranks pass it to each other as file descriptors.
pub const SYMMC_ARENA_DRIVER: i32 = 0;
/// NCCL allocates symmetric memory and maps it by a window over all ranks.
pub const SYMMC_ARENA_NCCL: i32 = 1;

/// Algorithms of matrix products are the fastest ones by measurement. The measurements are cached on disk.
pub const SYMMC_PRODUCTS_MEASURED: i32 = 0;
/// Algorithms of matrix products are the first ones that the library proposes. Kernels of symmc compute attention.
pub const SYMMC_PRODUCTS_HEURISTIC: i32 = 1;

/// The options of a session.
pub struct symmc_session_options {
    limit: Option<Duration>,
    /// Bytes of symmetric memory for the caller.
    symmetric: usize,
    gpu: Option<GpuOptions>,
}

/// A GPU, and the resources of the caller on it. Fields that are not set have the defaults of symmc.
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
        let none = || input_error("the session is on the host: call symmc_session_options_set_gpu first");
        self.gpu.as_mut().ok_or_else(none)
    }

    /// The same options in Rust.
    ///
    /// # Safety
    /// Stream and communicator obey the contracts of their setters.
    pub(crate) unsafe fn session_config(&self) -> Result<SessionConfig, Error> {
        let config = SessionConfig::default().with_symmetric_bytes(self.symmetric);
        let config = match self.limit {
            Some(limit) => config.with_timeout(limit),
            None => config,
        };
        match &self.gpu {
            // SAFETY: the caller ensures it.
            Some(options) => unsafe { on_gpu(config, options) },
            None => Ok(config),
        }
    }
}

/// Adds the options of a GPU.
///
/// # Safety
/// Stream and communicator obey the contracts of their setters.
#[cfg(feature = "cuda")]
unsafe fn on_gpu(config: SessionConfig, options: &GpuOptions) -> Result<SessionConfig, Error> {
    let mut gpu = options.ordinal.map_or_else(symmc::GpuConfig::default, symmc::GpuConfig::new);
    if !options.stream.is_null() {
        // SAFETY: the caller ensures it.
        gpu = unsafe { gpu.with_stream(options.stream) };
    }
    if let Some((communicator, ranks)) = &options.communicator {
        // SAFETY: the caller ensures it.
        gpu = unsafe { gpu.with_communicator(*communicator, ranks.clone()) };
    }
    if options.arena == SYMMC_ARENA_NCCL {
        gpu = gpu.with_arena(symmc::ArenaSource::Nccl);
    }
    if options.products == SYMMC_PRODUCTS_HEURISTIC {
        gpu = gpu.with_products(symmc::AlgorithmSelection::Heuristic);
    }
    if let Some(count) = options.kept {
        gpu = gpu.with_cached_recordings(count);
    }
    Ok(config.with_gpu(gpu))
}

#[cfg(not(feature = "cuda"))]
unsafe fn on_gpu(config: SessionConfig, options: &GpuOptions) -> Result<SessionConfig, Error> {
    let GpuOptions { ordinal, stream, communicator, arena, products, kept } = options;
    let _ = (ordinal, stream, communicator, arena, products, kept, config);
    expect_gpus().and_then(|()| Err(input_error("no session runs on a GPU")))
}

/// Checks that this library was built with support for GPUs.
fn expect_gpus() -> Result<(), Error> {
    if cfg!(feature = "cuda") {
        return Ok(());
    }
    Err(Error::new(
        symmc::ErrorKind::Unsupported,
        "this library was built without support for GPUs: expected one with the feature cuda",
    ))
}

/// Runs the body of a setter.
///
/// # Safety
/// `options` is a handle that no other thread uses, or NULL.
unsafe fn with_options(
    options: *mut symmc_session_options,
    work: impl FnOnce(&mut symmc_session_options) -> Result<(), Error>,
) -> symmc_status {
    // SAFETY: the caller ensures it.
    guard(|| work(unsafe { borrow_handle_mut(options, "options of the session") }?))
}

/// Creates options with the defaults: a session on the host, with a timeout of 30 seconds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_options_create(out: *mut *mut symmc_session_options) -> symmc_status {
    // SAFETY: the caller ensures it.
    unsafe { create_handle(out, || Ok(symmc_session_options { limit: None, symmetric: 0, gpu: None })) }
}

/// Sets the timeout of every wait for other ranks, also in runs, in milliseconds; 0 for the default of 30,000.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_options_set_limit(
    options: *mut symmc_session_options,
    limit_ms: u64,
) -> symmc_status {
    let set = |options: &mut symmc_session_options| {
        options.limit = Some(limit_ms).filter(|&limit| limit > 0).map(Duration::from_millis);
        Ok(())
    };
    // SAFETY: the caller ensures it.
    unsafe { with_options(options, set) }
}

/// Sets the bytes of symmetric memory for the caller (`symmc_session_allocate_symmetric`), in addition to the memory of the
/// plan. The value must be equal on all ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_options_set_symmetric(
    options: *mut symmc_session_options,
    bytes: usize,
) -> symmc_status {
    let set = |options: &mut symmc_session_options| {
        options.symmetric = bytes;
        Ok(())
    };
    // SAFETY: the caller ensures it.
    unsafe { with_options(options, set) }
}

/// Makes the session run on a GPU: `ordinal` is its number among those that the process sees, or `SYMMC_GPU_OF_RANK`. Each rank
/// needs its own GPU. Call this before the other setters for GPUs, whose values it keeps. Returns `SYMMC_ERROR_UNSUPPORTED` if
/// this library was built without support for GPUs. Opening a session checks whether the GPU exists.
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
    // SAFETY: the caller ensures it.
    unsafe { with_options(options, set) }
}

/// Sets the stream, a `cudaStream_t` or `CUstream`, for runs that are enqueued without a stream; NULL for a stream of the
/// session. The caller owns the stream. It belongs to the primary context of the GPU, and exists until the session has ended.
///
/// # Safety
/// `options` is a handle, and `stream` is such a stream or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_options_set_stream(
    options: *mut symmc_session_options,
    stream: *mut c_void,
) -> symmc_status {
    let set = |options: &mut symmc_session_options| {
        options.gpu_options()?.stream = stream;
        Ok(())
    };
    // SAFETY: the caller ensures it.
    unsafe { with_options(options, set) }
}

/// Makes plain collectives of exactly these ranks run on a communicator of the caller, an `ncclComm_t` whose ranks are `ranks`
/// in its order; NULL for communicators of the session. Either all ranks of a session pass one, or none does. The caller owns
/// it. It belongs to the NCCL that the process has loaded as `libnccl.so.2`, and exists until the session has ended. The caller
/// does not use it while a call of the session is in progress. On all ranks the caller's own calls have the same order relative
/// to those of the session.
///
/// # Safety
/// `options` is a handle, `communicator` is such a communicator or NULL, and `ranks` has `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_options_set_communicator(
    options: *mut symmc_session_options,
    communicator: *mut c_void,
    ranks: *const u32,
    count: usize,
) -> symmc_status {
    let set = |options: &mut symmc_session_options| {
        // SAFETY: the caller ensures it.
        let ranks = unsafe { read_slice(ranks, count, "ranks") }?.to_vec();
        if !communicator.is_null() && ranks.is_empty() {
            return Err(input_error("the communicator has no ranks"));
        }
        options.gpu_options()?.communicator = (!communicator.is_null()).then_some((communicator, ranks));
        Ok(())
    };
    // SAFETY: the caller ensures it.
    unsafe { with_options(options, set) }
}

/// Sets the allocator of symmetric memory: `SYMMC_ARENA_DRIVER` or `SYMMC_ARENA_NCCL`, equal on all ranks.
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
    // SAFETY: the caller ensures it.
    unsafe { with_options(options, set) }
}

/// Sets how algorithms of matrix products are chosen: `SYMMC_PRODUCTS_MEASURED` or `SYMMC_PRODUCTS_HEURISTIC`, equal on all
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
    // SAFETY: the caller ensures it.
    unsafe { with_options(options, set) }
}

/// Sets how many recorded runs are kept, each for some sizes and some memory. The value must be equal on all ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_options_set_kept(
    options: *mut symmc_session_options,
    kept: usize,
) -> symmc_status {
    let set = |options: &mut symmc_session_options| {
        options.gpu_options()?.kept = Some(kept);
        Ok(())
    };
    // SAFETY: the caller ensures it.
    unsafe { with_options(options, set) }
}

/// Checks a choice from 0 to `last`.
fn check_choice(choice: i32, last: i32, expected: &str) -> Result<i32, Error> {
    if (0..=last).contains(&choice) {
        return Ok(choice);
    }
    Err(input_error(format!("expected {expected}, found {choice}")))
}

/// Frees options. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_options_free(options: *mut symmc_session_options) {
    // SAFETY: the caller ensures it.
    unsafe { free_handle(options) }
}
