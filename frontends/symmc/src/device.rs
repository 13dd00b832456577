//! The devices that run plans, in jobs and in sessions: the CPU, or GPUs. All code of the facade that depends on a backend is
//! here.

use serde::{Deserialize, Serialize};
#[cfg(feature = "cuda")]
use symmc_cuda::{CudaSession, GpuConfig};

use symmc_check::CheckedPlan;
use symmc_control::{Group, JoinTerm, RankConfig};
use symmc_plan::ParsedPlan;
use symmc_runtime::exec::expect_kernels;
use symmc_runtime::host::HostSession;
use symmc_runtime::job::{SessionRequest, open_on_host};
use symmc_runtime::session::{DeviceSession, MemoryUsage};
use symmc_runtime::{CustomKernelRegistry, RunError};

/// The device that runs a plan on each rank, in jobs and sessions.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Device {
    /// The CPU of this machine.
    #[default]
    Host,
    /// GPUs, one for each rank.
    #[cfg(feature = "cuda")]
    Gpu(GpuConfig),
}

impl Device {
    /// Checks that the device runs every node of a plan, with these kernels of custom ops. No rank rejects a plan that is
    /// accepted here.
    pub(crate) fn check_support(
        &self,
        plan: &ParsedPlan,
        kernels: &CustomKernelRegistry,
    ) -> Result<(), RunError> {
        match self {
            Device::Host => expect_kernels(plan, kernels),
            #[cfg(feature = "cuda")]
            Device::Gpu(gpu) => gpu.accept(plan),
        }
    }

    /// Opens the session of one rank of a job.
    pub(crate) fn open_job(
        &self,
        request: &SessionRequest<'_>,
        kernels: &CustomKernelRegistry,
    ) -> Result<Box<dyn DeviceSession>, RunError> {
        match self {
            Device::Host => open_on_host(request, kernels),
            #[cfg(feature = "cuda")]
            Device::Gpu(gpu) => Ok(Box::new(CudaSession::open_joined(request, &gpu.for_job())?)),
        }
    }

    pub(crate) fn memory_budget(
        &self,
        plan: &CheckedPlan,
        rank: u32,
        kernels: &CustomKernelRegistry,
        config: &RankConfig,
    ) -> Result<MemoryUsage, RunError> {
        match self {
            Device::Host => HostSession::memory_budget(plan, rank, kernels, config),
            #[cfg(feature = "cuda")]
            Device::Gpu(gpu) => symmc_cuda::session::memory_budget(plan, rank, gpu, config),
        }
    }

    /// Opens the session of one rank of a group.
    pub(crate) fn open_session(
        &self,
        plan: &CheckedPlan,
        group: &Group,
        kernels: &CustomKernelRegistry,
        config: &RankConfig,
    ) -> Result<Box<dyn DeviceSession>, RunError> {
        match self {
            Device::Host => {
                let terms = vec![JoinTerm::text("device", "host")];
                Ok(Box::new(HostSession::open(plan, group, kernels, config, terms)?))
            }
            #[cfg(feature = "cuda")]
            Device::Gpu(gpu) => Ok(Box::new(CudaSession::open(plan, group, gpu, config)?)),
        }
    }
}
