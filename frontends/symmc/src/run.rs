//! Runs a plan on a backend.

use std::time::Duration;

use symmc_ir::{Tensor, interp, text};
use symmc_planner::plan::Plan;
use symmc_runtime::host::{self, HostConfig, Job, RankCommand};

use crate::error::Error;
use crate::workload::Workload;

/// Where a plan runs.
#[derive(Clone, Debug)]
pub enum Backend {
    /// The reference interpreter: the imported program, all ranks in this process, no plan executed.
    Interpreter,
    /// The ranks are threads of this process.
    Threads,
    /// One process per rank, started by this one with this command.
    Processes(RankCommand),
}

/// How to run.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// No wait takes longer.
    pub limit: Duration,
    /// Delays ranks at random around every touch of a peer, from this seed.
    pub chaos: Option<u64>,
    /// How often the plan runs, at least once; the outputs are those of the last run.
    pub repeats: u32,
}

impl Default for RunConfig {
    fn default() -> Self {
        RunConfig { limit: Duration::from_secs(30), chaos: None, repeats: 1 }
    }
}

/// Runs a plan; gives the outputs of each rank.
///
/// # Errors
/// The workload does not fit the plan, or a rank failed.
pub fn run(plan: &Plan, work: &Workload, backend: &Backend, config: &RunConfig) -> Result<Vec<Vec<Tensor>>, Error> {
    if let Backend::Interpreter = backend {
        let graph = text::parse(&plan.source.text).map_err(|e| Error::Interpreter(e.to_string()))?;
        return interp::run(&graph, &work.bindings, &work.inputs).map_err(|e| Error::Interpreter(e.to_string()));
    }
    crate::compile::check(plan)?;
    let host = HostConfig { limit: config.limit, chaos: config.chaos, ..HostConfig::default() };
    let job = Job {
        plan,
        bindings: work.bindings.clone(),
        inputs: &work.inputs,
        repeats: config.repeats.max(1),
        config: host,
    };
    Ok(match backend {
        Backend::Processes(command) => host::launch(&job, command)?,
        _ => host::run_threads(&job)?,
    })
}
