//! The GPU of a session, and the handles that its caller provides.

use symmc_control::JoinTerm;

use crate::arena::ArenaSource;
use crate::codegen::compute::{AlgorithmSelection, gemm};
use crate::device::driver::{self, BorrowedStream, Device};
use crate::error::Result;
use crate::nccl::BorrowedCommunicator;
use crate::{codegen::compile, cudnn};

/// The alignment of memory that callers bind, in bytes.
pub const ALIGN: usize = 16;

/// Whether ranks report to each other which NCCL collective they are in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ProgressReporting {
    /// A store before each collective reports it. The store takes 1.5 to 3.5 µs.
    Enabled,
    /// Collectives are not reported.
    #[default]
    Disabled,
}

/// Handles that a session borrows from its caller instead of creating its own. By default there are none.
///
/// With a stream, runs begin and end on the caller's stream: they are enqueued there, or recorded into the
/// caller's graph while the caller captures the stream. With a communicator, plain collectives run on it. The
/// session destroys neither.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BorrowedHandles {
    /// The stream on which runs begin and end.
    pub stream: Option<BorrowedStream>,
    /// A communicator for plain collectives.
    pub communicator: Option<BorrowedCommunicator>,
}

/// The GPU of a session, and its borrowed handles. By default the GPU whose ordinal is the rank, and no
/// handles.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct GpuConfig {
    /// The ordinal of the GPU among those that the process sees. `None`: the rank.
    pub ordinal: Option<u32>,
    /// The caller's stream and communicator.
    pub borrowed: BorrowedHandles,
    /// The allocator of the symmetric arena.
    pub arena: ArenaSource,
    /// How algorithms of matrix products and implementations of attention are chosen.
    pub products: AlgorithmSelection,
    /// The number of cached recordings, and of sizes whose choices are cached. One recording also serves
    /// other memory at the same sizes.
    pub cached_recordings: usize,
    /// Whether the error of a stalled run names the step, if that is an NCCL collective.
    pub progress: ProgressReporting,
}

impl Default for GpuConfig {
    fn default() -> Self {
        GpuConfig {
            ordinal: None,
            borrowed: BorrowedHandles::default(),
            arena: ArenaSource::default(),
            products: AlgorithmSelection::default(),
            cached_recordings: 64,
            progress: ProgressReporting::default(),
        }
    }
}

impl GpuConfig {
    pub fn new(ordinal: u32) -> GpuConfig {
        GpuConfig { ordinal: Some(ordinal), ..GpuConfig::default() }
    }

    /// Runs without a stream of their own are enqueued on this one, a `cudaStream_t` (`CUstream`).
    ///
    /// # Safety
    /// The stream belongs to the primary context of the GPU, and exists until the session has ended.
    #[must_use]
    pub unsafe fn with_stream(mut self, stream: *mut std::ffi::c_void) -> GpuConfig {
        // SAFETY: by the caller.
        self.borrowed.stream = Some(unsafe { BorrowedStream::new(stream) });
        self
    }

    /// Plain collectives of exactly these ranks run on this `ncclComm_t`. Its rank `i` is `ranks[i]`.
    ///
    /// # Safety
    /// As [`BorrowedCommunicator::new`].
    #[must_use]
    pub unsafe fn with_communicator(
        mut self,
        communicator: *mut std::ffi::c_void,
        ranks: Vec<u32>,
    ) -> GpuConfig {
        // SAFETY: by the caller.
        self.borrowed.communicator = Some(unsafe { BorrowedCommunicator::new(communicator, ranks) });
        self
    }

    #[must_use]
    pub fn with_arena(self, arena: ArenaSource) -> GpuConfig {
        GpuConfig { arena, ..self }
    }

    #[must_use]
    pub fn with_products(self, products: AlgorithmSelection) -> GpuConfig {
        GpuConfig { products, ..self }
    }

    /// Sets the number of cached recordings.
    #[must_use]
    pub fn with_cached_recordings(self, kept: usize) -> GpuConfig {
        GpuConfig { cached_recordings: kept, ..self }
    }

    #[must_use]
    pub fn with_progress(self, progress: ProgressReporting) -> GpuConfig {
        GpuConfig { progress, ..self }
    }

    /// The terms that must be equal on all ranks, by name.
    pub(super) fn join_terms(&self, device: &Device) -> Result<Vec<JoinTerm>> {
        let cuda = driver::cuda_version()?;
        let nvrtc = compile::version()?;
        let terms = [
            ("device", format!("GPU ({})", device.name())),
            ("CUDA", format!("{}.{}", cuda[0], cuda[1])),
            ("NVRTC", format!("{}.{}", nvrtc[0], nvrtc[1])),
            ("cuBLASLt", gemm::library().map_or_else(|_| "none".into(), |(version, _)| version)),
            ("cuDNN", cudnn::version().map_or_else(|_| "none".into(), |version| version.to_string())),
            ("arena", format!("{:?}", self.arena)),
            ("products", format!("{:?}", self.products)),
            ("cached recordings", self.cached_recordings.to_string()),
            ("communicators of the caller", usize::from(self.borrowed.communicator.is_some()).to_string()),
        ];
        Ok(terms.map(|(name, value)| JoinTerm::text(name, value)).into())
    }

    /// How implementations of attention are chosen. Without cuDNN there are only generated kernels.
    pub(super) fn attention_selection(&self) -> AlgorithmSelection {
        if cudnn::version().is_ok() { self.products } else { AlgorithmSelection::Heuristic }
    }
}
