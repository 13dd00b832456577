//! What runs a plan on each rank: the CPU, or GPUs.

use serde::{Deserialize, Serialize};
#[cfg(feature = "cuda")]
use symmc_cuda::CudaConfig;
use symmc_plan::ReadPlan;
use symmc_runtime::host::expect_kernels;
use symmc_runtime::job::{SessionRequest, open_on_host};
use symmc_runtime::session::DeviceSession;
use symmc_runtime::{Registry, RunError};

/// What runs a plan on each rank.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Device {
    /// The CPU of this machine.
    #[default]
    Host,
    /// GPUs.
    #[cfg(feature = "cuda")]
    Gpus(CudaConfig),
}

impl Device {
    /// Whether it runs every node of a plan, with these kernels of custom ops. No rank refuses a plan that is accepted here.
    pub(crate) fn accept(&self, plan: &ReadPlan, kernels: &Registry) -> Result<(), RunError> {
        match self {
            Device::Host => expect_kernels(plan, kernels),
            #[cfg(feature = "cuda")]
            Device::Gpus(gpus) => gpus.accept(plan),
        }
    }

    /// Opens the session of a rank of a job.
    pub(crate) fn open(
        &self,
        request: &SessionRequest<'_>,
        kernels: &Registry,
    ) -> Result<Box<dyn DeviceSession>, RunError> {
        match self {
            Device::Host => open_on_host(request, kernels),
            #[cfg(feature = "cuda")]
            Device::Gpus(gpus) => Ok(Box::new(gpus.open(request, symmc_cuda::Progress::Told)?)),
        }
    }
}
