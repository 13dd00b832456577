//! How sessions run on GPUs: the GPU of each rank, and the handles that the caller provides.

use serde::{Deserialize, Serialize};
use symmc_control::JoinTerm;
use symmc_plan::ParsedPlan;
use symmc_runtime::RunError;

use crate::arena::ArenaSource;
use crate::codegen::compute::{AlgorithmSelection, gemm};
use crate::codegen::unsupported::check_supported;
use crate::device::driver::{self, BorrowedStream, Device};
use crate::error::{CudaError, Result};
use crate::nccl::BorrowedCommunicator;
use crate::{codegen::compile, cudnn};

/// The alignment of memory that callers bind, in bytes.
pub const ALIGN: usize = 16;

/// Whether ranks report to each other which NCCL collective they are in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
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

/// The GPU of a rank, by its ordinal among the GPUs that the process of the rank sees.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuAssignment {
    /// Rank `r` has GPU `r`.
    #[default]
    ByRank,
    /// The rank of this session has this GPU.
    Ordinal(u32),
    /// Each rank has the GPU at its place in the list.
    List(Vec<u32>),
}

/// How sessions and jobs run on GPUs. By default rank `r` has GPU `r`, and no handles are borrowed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct GpuConfig {
    pub assignment: GpuAssignment,
    /// The stream and communicator of a session's caller. Jobs borrow none.
    #[serde(skip)]
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
            assignment: GpuAssignment::default(),
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
        GpuConfig { assignment: GpuAssignment::Ordinal(ordinal), ..GpuConfig::default() }
    }

    /// Sets the GPU of each rank. If the list is empty, rank `r` has GPU `r`.
    #[must_use]
    pub fn with_gpus(self, gpus: impl Into<Vec<u32>>) -> GpuConfig {
        let gpus = gpus.into();
        let assignment = if gpus.is_empty() { GpuAssignment::ByRank } else { GpuAssignment::List(gpus) };
        GpuConfig { assignment, ..self }
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

    /// The configuration of a job, which borrows no handles. Peers see which NCCL collective a rank is in.
    #[must_use]
    pub fn for_job(&self) -> GpuConfig {
        let progress = ProgressReporting::Enabled;
        GpuConfig { borrowed: BorrowedHandles::default(), progress, ..self.clone() }
    }

    /// Checks that GPUs can run all steps of a plan. The check runs when the plan is made for GPUs, on a
    /// machine that may have none. No rank refuses a plan that passes. Fails with the first unsupported step
    /// and the reason ([`RunError::CannotRun`]).
    pub fn accept(&self, plan: &ParsedPlan) -> Result<(), RunError> {
        let listed = if let GpuAssignment::List(gpus) = &self.assignment { &gpus[..] } else { &[] };
        check_supported(plan, listed)
    }

    /// The GPU of one of `ranks` ranks. Fails if the list has no GPU for it, or this process sees too few.
    pub(crate) fn gpu_of_rank(&self, rank: u32, ranks: u32) -> Result<u32> {
        let error = match &self.assignment {
            GpuAssignment::Ordinal(gpu) => return Ok(*gpu),
            GpuAssignment::List(gpus) => match gpus.get(rank as usize) {
                Some(&gpu) => return Ok(gpu),
                None => {
                    let named = gpus.len();
                    format!("{named} GPUs are named for {ranks} ranks: expected one GPU per rank")
                }
            },
            GpuAssignment::ByRank => match driver::count_gpus()? {
                visible if rank < visible => return Ok(rank),
                visible => format!("{ranks} ranks need {ranks} GPUs, one each; this process sees {visible}"),
            },
        };
        Err(CudaError::Unsupported(error))
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
