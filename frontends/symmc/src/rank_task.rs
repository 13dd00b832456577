//! The tasks that the process of a rank receives from the process that started it.

use serde::{Deserialize, Serialize};
use symmc_control::LaunchedRank;
use symmc_runtime::job::JobMessage;
use symmc_runtime::{CustomKernelRegistry, RunError};

use crate::device::Device;

/// A task of the process of a rank.
#[derive(Serialize, Deserialize)]
pub(crate) enum RankTask {
    /// Run a job on a device.
    Run { device: Device, job: JobMessage },
    /// Measure collectives on GPUs.
    #[cfg(feature = "cuda")]
    MeasureCollectives(crate::measure_task::CollectivesTask),
    /// Measure a plan on GPUs.
    #[cfg(feature = "cuda")]
    MeasureProgram(crate::measure_task::ProgramTask),
}

impl RankTask {
    /// Performs the task on a rank, with these kernels of custom ops.
    pub fn perform(self, rank: &mut LaunchedRank, kernels: &CustomKernelRegistry) -> Result<(), RunError> {
        match self {
            RankTask::Run { device, job } => job.run(rank, &|request| device.open_job(request, kernels)),
            #[cfg(feature = "cuda")]
            RankTask::MeasureCollectives(task) => task.perform(rank),
            #[cfg(feature = "cuda")]
            RankTask::MeasureProgram(task) => task.perform(rank),
        }
    }
}
