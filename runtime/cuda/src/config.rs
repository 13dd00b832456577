//! How jobs and measurements run on GPUs: the GPU of each rank, the arena's allocator, the choice of
//! algorithms.

use serde::{Deserialize, Serialize};
use symmc_plan::ParsedPlan;
use symmc_runtime::RunError;
use symmc_runtime::job::SessionRequest;

use crate::arena::ArenaSource;
use crate::codegen::compute::AlgorithmSelection;
use crate::codegen::unsupported::check_supported;
use crate::device::driver;
use crate::error::{CudaError, Result};
use crate::session::{CudaSession, GpuConfig, ProgressReporting};

/// How a job runs on GPUs: rank `r` on GPU `r`, unless a `with_…` method says otherwise.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct CudaConfig {
    /// The GPU of each rank, as an ordinal among the GPUs that the rank's process sees. If empty, rank `r`
    /// uses GPU `r`.
    pub gpus: Vec<u32>,
    /// The allocator of the symmetric arena.
    pub arena: ArenaSource,
    /// How algorithms of matrix products are chosen.
    pub products: AlgorithmSelection,
}

impl CudaConfig {
    pub fn with_gpus(self, gpus: impl Into<Vec<u32>>) -> CudaConfig {
        CudaConfig { gpus: gpus.into(), ..self }
    }

    /// Sets the allocator of the symmetric arena.
    pub fn with_arena(self, arena: ArenaSource) -> CudaConfig {
        CudaConfig { arena, ..self }
    }

    /// Sets how algorithms of matrix products are chosen.
    pub fn with_products(self, products: AlgorithmSelection) -> CudaConfig {
        CudaConfig { products, ..self }
    }

    /// Checks that GPUs can run all steps of a plan. The check runs when the plan is made for GPUs, on a
    /// machine that may have none. No rank refuses a plan that passes. Fails with the first unsupported step
    /// and the reason ([`RunError::CannotRun`]).
    pub fn accept(&self, plan: &ParsedPlan) -> Result<(), RunError> {
        check_supported(plan, &self.gpus)
    }

    /// Opens the session of a job on its rank. If `progress` is enabled, peers see which NCCL collective the
    /// rank is in.
    pub fn open(
        &self,
        request: &SessionRequest<'_>,
        progress: ProgressReporting,
    ) -> Result<CudaSession, RunError> {
        let comm = request.rank.comm();
        let ordinal = Some(self.gpu_of_rank(comm.rank(), comm.ranks())?);
        let CudaConfig { arena, products, .. } = *self;
        CudaSession::open_joined(
            request,
            &GpuConfig { ordinal, arena, products, progress, ..GpuConfig::default() },
        )
    }

    pub(crate) fn gpu_of_rank(&self, rank: u32, ranks: u32) -> Result<u32> {
        let visible = driver::count_gpus()?;
        let gpu = match self.gpus.get(rank as usize) {
            Some(&gpu) => gpu,
            None if self.gpus.is_empty() => rank,
            None => {
                let named = self.gpus.len();
                let text = format!("{named} GPUs are named for {ranks} ranks: expected one GPU per rank");
                return Err(CudaError::Unsupported(text));
            }
        };
        if gpu < visible {
            return Ok(gpu);
        }
        Err(CudaError::Unsupported(if self.gpus.is_empty() {
            format!("{ranks} ranks need {ranks} GPUs, one each; this process sees {visible}")
        } else {
            format!("rank {rank} is assigned to GPU {gpu}; this process sees {visible} GPUs, numbered from 0")
        }))
    }
}
