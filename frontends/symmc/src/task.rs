//! What the process of a rank is told to do.

use serde::{Deserialize, Serialize};
use symmc_control::LaunchedRank;
use symmc_runtime::job::JobText;
use symmc_runtime::{Registry, RunError};

use crate::device::Device;

/// What the process of a rank is told to do.
#[derive(Serialize, Deserialize)]
pub(crate) enum RankTask {
    /// Run a job on a device.
    Run { device: Device, job: JobText },
    /// Measure collectives on GPUs.
    #[cfg(feature = "cuda")]
    MeasureCollectives(crate::measured::CollectivesTask),
    /// Measure a plan on GPUs.
    #[cfg(feature = "cuda")]
    MeasureProgram(crate::measured::ProgramTask),
}

impl RankTask {
    /// Does it on a rank, with these kernels of custom ops.
    pub fn perform(self, rank: &mut LaunchedRank, kernels: &Registry) -> Result<(), RunError> {
        match self {
            RankTask::Run { device, job } => job.run(rank, &|request| device.open(request, kernels)),
            #[cfg(feature = "cuda")]
            RankTask::MeasureCollectives(task) => task.perform(rank),
            #[cfg(feature = "cuda")]
            RankTask::MeasureProgram(task) => task.perform(rank),
        }
    }
}
