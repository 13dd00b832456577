//! The devices that run plans, in jobs and in sessions: the CPU, or GPUs. Everything that the facade knows of a backend is here.

use serde::{Deserialize, Serialize};
#[cfg(feature = "cuda")]
use symmc_cuda::{CudaConfig, CudaSession};
#[cfg(feature = "cuda")]
pub use symmc_cuda::{Gpu, Progress};

use symmc_check::CheckedPlan;
use symmc_control::{Group, Term};
use symmc_plan::ReadPlan;
use symmc_runtime::host::{HostConfig, HostSession, expect_kernels};
use symmc_runtime::job::{SessionRequest, open_on_host};
use symmc_runtime::session::{DeviceSession, Taken};
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

/// The device that a [`Session`](crate::Session) runs on.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum SessionDevice {
    /// The CPU of this machine.
    #[default]
    Host,
    /// A GPU.
    #[cfg(feature = "cuda")]
    Gpu(Gpu),
}

impl SessionDevice {
    pub(crate) fn budget(
        &self,
        plan: &CheckedPlan,
        rank: u32,
        kernels: &Registry,
        config: &HostConfig,
    ) -> Result<Taken, RunError> {
        match self {
            SessionDevice::Host => HostSession::budget(plan, rank, kernels, config),
            #[cfg(feature = "cuda")]
            SessionDevice::Gpu(gpu) => symmc_cuda::session::budget(plan, rank, gpu, config),
        }
    }

    /// Opens the session of a rank of a group.
    pub(crate) fn open(
        &self,
        plan: &CheckedPlan,
        group: &Group,
        kernels: &Registry,
        config: &HostConfig,
    ) -> Result<Box<dyn DeviceSession>, RunError> {
        match self {
            SessionDevice::Host => {
                let terms = vec![Term::text("device", "host")];
                Ok(Box::new(HostSession::open(plan, group, kernels, config, terms)?))
            }
            #[cfg(feature = "cuda")]
            SessionDevice::Gpu(gpu) => Ok(Box::new(CudaSession::open(plan, group, gpu, config)?)),
        }
    }
}
