//! The tasks of ranks that measure on GPUs, and their answers.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use symmc_control::{LaunchedRank, LocateStep, PlanSubject};
use symmc_cuda::GpuConfig;
use symmc_cuda::bench::{self, BenchConfig, ProgramBench};
use symmc_runtime::RunError;
use symmc_runtime::job::{PlanMessage, SessionRequest};

/// Collectives that a rank measures together with the others.
#[derive(Serialize, Deserialize)]
pub(crate) struct CollectivesTask {
    pub gpus: GpuConfig,
    pub limit: Duration,
    pub config: BenchConfig,
}

impl CollectivesTask {
    /// Measures them, and sends [`bench::Measurements`] back.
    pub fn perform(self, rank: &mut LaunchedRank) -> Result<(), RunError> {
        let subject = PlanSubject { hash: "collectives".into(), about: Vec::new() };
        let joined = rank.join(subject, &[], LocateStep::default())?;
        let measured = bench::collectives(&joined, &self.gpus, self.limit, &self.config);
        let answered = measured.and_then(|measured| joined.send_answer(&measured));
        joined.conclude_job(answered)
    }
}

/// A plan that a rank measures together with the others.
#[derive(Serialize, Deserialize)]
pub(crate) struct ProgramTask {
    pub plan: PlanMessage,
    pub gpus: GpuConfig,
    pub bench: ProgramBench,
}

impl ProgramTask {
    /// Measures it, and sends back the least, median and greatest microseconds of one run.
    pub fn perform(self, rank: &mut LaunchedRank) -> Result<(), RunError> {
        let (plan, bindings) = (self.plan.read_plan()?, self.plan.bindings());
        let joined = Arc::new(self.plan.join(rank, &plan, self.bench.runs)?);
        let config = &self.plan.config;
        let request = SessionRequest { rank: &joined, plan: &plan, bindings: &bindings, config };
        let measured = bench::measure_program(&request, &self.gpus, &self.bench);
        let answered = measured.and_then(|us| joined.send_answer(&us));
        let joined = Arc::into_inner(joined)
            .ok_or_else(|| RunError::Defect("the session of a measurement goes on".into()))?;
        joined.conclude_job(answered)
    }
}
