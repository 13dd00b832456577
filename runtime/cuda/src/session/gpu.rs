//! The GPU of a session, and what its caller lends.

use symmc_control::JoinTerm;

use crate::codegen::compute::{AttentionBackend, gemm};
use crate::device::arena::ArenaSource;
use crate::device::driver::{self, BorrowedStream, Device};
use crate::error::Result;
use crate::nccl::BorrowedCommunicator;
use crate::{AlgorithmSelection, codegen::compile, cudnn};

/// What memory that is lent starts at a multiple of.
pub const ALIGN: usize = 16;

/// Whether ranks tell each other which of NCCL's collectives they are in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ProgressReporting {
    /// They do: each of them is preceded by a store, which takes 1.5 to 3.5 µs.
    Enabled,
    /// They do not.
    #[default]
    Disabled,
}

/// What a session takes from its caller instead of making it. By default nothing.
///
/// Runs then begin and end on the caller's stream: put there to run, or, while the caller captures the stream, recorded into the
/// caller's graph. Plain collectives run on the caller's communicator. Neither is ever ended here.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BorrowedHandles {
    /// The stream where runs begin and end.
    pub stream: Option<BorrowedStream>,
    /// A communicator for plain collectives.
    pub communicator: Option<BorrowedCommunicator>,
}

/// The GPU of a session, and what its caller lends: by default the GPU whose number is that of the rank, and nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct GpuConfig {
    /// The number of the GPU among those that the process sees; that of the rank without.
    pub ordinal: Option<u32>,
    /// The caller's stream and communicator.
    pub borrowed: BorrowedHandles,
    /// Who allocates the symmetric arena.
    pub arena: ArenaSource,
    /// How algorithms of matrix products are chosen, and who computes attention.
    pub products: AlgorithmSelection,
    /// How many recorded runs are kept, and for how many sizes the choices. One of the same sizes serves other memory too.
    pub cached_recordings: usize,
    /// Whether an error of a run that does not go on names the step, where that is one of NCCL's collectives.
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

    /// Runs that are given no stream are put on this one, a `cudaStream_t` (`CUstream`).
    ///
    /// # Safety
    /// It belongs to the primary context of the GPU, and exists until the session has ended.
    #[must_use]
    pub unsafe fn with_stream(mut self, stream: *mut std::ffi::c_void) -> GpuConfig {
        // SAFETY: by the caller.
        self.borrowed.stream = Some(unsafe { BorrowedStream::new(stream) });
        self
    }

    /// Plain collectives of exactly these ranks run on this `ncclComm_t`, whose ranks they are in its order.
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

    /// How many recorded runs are kept.
    #[must_use]
    pub fn with_cached_recordings(self, kept: usize) -> GpuConfig {
        GpuConfig { cached_recordings: kept, ..self }
    }

    #[must_use]
    pub fn with_progress(self, progress: ProgressReporting) -> GpuConfig {
        GpuConfig { progress, ..self }
    }

    /// What must be alike on all ranks, by name.
    pub(super) fn join_terms(&self, device: &Device) -> Result<Vec<JoinTerm>> {
        let of = |version: [i32; 2]| format!("{}.{}", version[0], version[1]);
        let cuda = driver::cuda_version()?;
        let terms = [
            ("device", format!("GPU ({})", device.name())),
            ("CUDA", format!("{}.{}", cuda[0], cuda[1])),
            ("NVRTC", of(compile::version()?)),
            ("cuBLASLt", gemm::library().map_or_else(|_| "none".into(), |(version, _)| version)),
            ("cuDNN", cudnn::version().map_or_else(|_| "none".into(), |version| version.to_string())),
            ("arena", format!("{:?}", self.arena)),
            ("products", format!("{:?}", self.products)),
            ("kept runs", self.cached_recordings.to_string()),
            ("lent communicators", usize::from(self.borrowed.communicator.is_some()).to_string()),
        ];
        Ok(terms.map(|(name, value)| JoinTerm::text(name, value)).into())
    }

    /// Who computes attention. cuDNN is one who measures may choose.
    pub(super) fn attention_backend(&self) -> AttentionBackend {
        match self.products {
            AlgorithmSelection::Measured if cudnn::version().is_ok() => AttentionBackend::Measured,
            AlgorithmSelection::Measured | AlgorithmSelection::Heuristic => AttentionBackend::Kernels,
        }
    }
}
