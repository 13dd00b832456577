//! Runs a plan on all its ranks.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use symmc_check::CheckedPlan;
use symmc_control::{Membership, RankCommand, RankConfig};
use symmc_ir::entity::Entity;
use symmc_ir::{OutputKind, Tensor, interp};
use symmc_runtime::custom::CustomKernelRegistry;
use symmc_runtime::job::{self, Job, JobResult, RankJob, RunTimes, SessionRequest};

use crate::device::Device;
use crate::error::Error;
use crate::rank_task::RankTask;
use crate::workload::Workload;

/// The distance of the noise of two seeds: only a run with at least this many repetitions repeats the noise of the next seed.
const RUNS_OF_A_SEED: u64 = 1 << 32;

/// The threads or processes that run the ranks of a plan.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Execution {
    /// The reference interpreter runs the imported program of all ranks in this process. No plan is executed.
    Interpreter,
    /// The ranks are threads of this process.
    Threads,
    /// Each rank is a process that this one starts with this command. The command provides the kernels of custom ops.
    Processes(RankCommand),
}

/// The options of a run. The default runs the plan once on the CPU; `with_…` methods change fields.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RunConfig {
    /// The longest time that a rank waits for other ranks before the run fails; 30 seconds by default.
    pub timeout: Duration,
    /// The seed of random delays around every access to a peer's memory. `None`, the default, delays nothing.
    pub chaos: Option<u64>,
    /// The number of times that the plan runs, at least once. The outputs are those of the last run.
    pub repeats: u32,
    /// The kernels of custom ops.
    pub kernels: CustomKernelRegistry,
    /// The device that runs the plan on each rank.
    pub device: Device,
    /// Runs the last time step by step, and writes the times of the steps on all ranks to this file. Only for GPUs.
    pub trace: Option<PathBuf>,
}

impl Default for RunConfig {
    fn default() -> Self {
        RunConfig {
            timeout: Duration::from_secs(30),
            chaos: None,
            repeats: 1,
            kernels: CustomKernelRegistry::new(),
            device: Device::Host,
            trace: None,
        }
    }
}

impl RunConfig {
    /// Sets the longest time that a rank waits for other ranks.
    pub fn with_timeout(self, timeout: Duration) -> RunConfig {
        RunConfig { timeout, ..self }
    }

    /// Sets the seed of random delays. `None` delays nothing.
    pub fn with_chaos(self, chaos: impl Into<Option<u64>>) -> RunConfig {
        RunConfig { chaos: chaos.into(), ..self }
    }

    /// Sets the number of times that the plan runs.
    pub fn with_repeats(self, repeats: u32) -> RunConfig {
        RunConfig { repeats, ..self }
    }

    /// Sets the kernels of custom ops.
    pub fn with_kernels(self, kernels: CustomKernelRegistry) -> RunConfig {
        RunConfig { kernels, ..self }
    }

    /// Sets the device that runs the plan on each rank.
    pub fn with_device(self, device: Device) -> RunConfig {
        RunConfig { device, ..self }
    }

    /// Sets the file for the times of the steps. `None` writes none.
    pub fn with_trace(self, trace: impl Into<Option<PathBuf>>) -> RunConfig {
        RunConfig { trace: trace.into(), ..self }
    }

    fn rank_config(&self) -> RankConfig {
        RankConfig { limit: clamp_wait(self.timeout), chaos: self.chaos, ..RankConfig::default() }
    }
}

/// Limits a timeout to 100 years, so that adding it to a clock does not overflow.
pub(crate) fn clamp_wait(timeout: Duration) -> Duration {
    timeout.min(Duration::from_secs(100 * 365 * 24 * 3600))
}

/// Checks that the device of a configuration runs every node of a plan, without starting anything.
///
/// # Errors
/// The first node that the device cannot run, with the reason.
pub fn check_device_support(plan: &CheckedPlan, config: &RunConfig) -> Result<(), Error> {
    Ok(config.device.check_support(plan, &config.kernels)?)
}

/// Runs a plan. Returns the outputs of each rank.
///
/// # Errors
/// The workload does not fit the plan, an op has no kernel, or a rank failed.
pub fn run(
    plan: &CheckedPlan,
    work: &Workload,
    execution: &Execution,
    config: &RunConfig,
) -> Result<Vec<Vec<Tensor>>, Error> {
    run_timed(plan, work, execution, config).map(|ran| ran.outputs)
}

/// As [`run`], with the times of the runs. The interpreter runs all ranks at once and has one time for all of them.
///
/// # Errors
/// As [`run`].
pub fn run_timed(
    plan: &CheckedPlan,
    work: &Workload,
    execution: &Execution,
    config: &RunConfig,
) -> Result<JobResult, Error> {
    if let Execution::Interpreter = execution {
        return interpret(plan, work, config, None);
    }
    let job = Job {
        plan,
        bindings: work.bindings.clone(),
        inputs: &work.inputs,
        repeats: config.repeats.max(1),
        trace: config.trace.clone(),
        config: config.rank_config(),
    };
    let device = config.device.clone();
    let ran = match execution {
        Execution::Processes(command) => job::launch_job(&job, command, |job| RankTask::Run { device, job })?,
        _ => {
            let open = |request: &SessionRequest<'_>| device.open_job(request, &config.kernels);
            job::run_threads(&job, &open)?
        }
    };
    Ok(JobResult { outputs: cut_outputs(plan, ran.outputs), times: ran.times })
}

/// The outputs of the interpreter for each rank, with random noise from `seed` added to every rounding. Outputs that differ
/// much from those of [`Execution::Interpreter`] are sensitive to rounding errors, and differ on other backends too.
///
/// # Errors
/// As [`run`] by the interpreter.
pub fn run_with_noise(
    plan: &CheckedPlan,
    work: &Workload,
    config: &RunConfig,
    seed: u64,
) -> Result<Vec<Vec<Tensor>>, Error> {
    interpret(plan, work, config, Some(seed)).map(|ran| ran.outputs)
}

/// Interprets the imported program for all repetitions. Inputs that outputs mutate have their new value in the next one.
fn interpret(
    plan: &CheckedPlan,
    work: &Workload,
    config: &RunConfig,
    noise: Option<u64>,
) -> Result<JobResult, Error> {
    let graph = plan.source_program();
    config.kernels.expect_kernels(graph)?;
    let kernels = config.kernels.to_interpreter_registry();
    let load = |t: &Arc<Tensor>| t.load_to_memory().map_err(|e| Error::invalid_request(e.to_string()));
    let of_rank = |inputs: &Vec<Arc<Tensor>>| inputs.iter().map(load).collect::<Result<Vec<_>, _>>();
    let mut inputs = work.inputs.iter().map(of_rank).collect::<Result<Vec<_>, _>>()?;
    let mut times = Vec::new();
    let mut run = |inputs: &[Vec<Arc<Tensor>>]| {
        let start = Instant::now();
        let outputs = match noise {
            None => interp::run_with_registry(graph, &work.bindings, inputs, &kernels),
            // Each repetition has different noise.
            Some(seed) => {
                let seed = seed.wrapping_mul(RUNS_OF_A_SEED).wrapping_add(times.len() as u64);
                let noise = interp::RoundingNoise { seed, numerics: plan.numerics };
                interp::run_with_noise(graph, &work.bindings, inputs, &kernels, noise)
            }
        };
        times.push(start.elapsed());
        outputs.map_err(Error::interpreter)
    };
    let mut outputs = run(&inputs)?;
    for _ in 1..config.repeats {
        for (inputs, outputs) in inputs.iter_mut().zip(&outputs) {
            for (output, value) in graph.outputs.iter().zip(outputs) {
                if let OutputKind::Mutates(input) = output.kind {
                    inputs[input.index()] = Arc::new(value.clone());
                }
            }
        }
        outputs = run(&inputs)?;
    }
    let outputs = cut_outputs(plan, outputs);
    Ok(JobResult { outputs, times: vec![RunTimes::from_durations(&times)] })
}

/// The outputs of each rank without elements that are unspecified.
fn cut_outputs(plan: &CheckedPlan, outputs: Vec<Vec<Tensor>>) -> Vec<Vec<Tensor>> {
    outputs.into_iter().map(|outputs| plan.source_program().cut_outputs(outputs)).collect()
}

/// Runs this process's rank of a plan together with the ranks that another launcher (torchrun, MPI, Slurm)
/// started. Returns this rank's outputs.
///
/// # Errors
/// The workload does not fit the plan, the other ranks do not join or run another plan, or a rank failed.
pub fn run_joined(
    plan: &CheckedPlan,
    work: &Workload,
    place: &Membership,
    config: &RunConfig,
) -> Result<Vec<Tensor>, Error> {
    run_joined_timed(plan, work, place, config).map(|(outputs, _)| outputs)
}

/// As [`run_joined`], with the times of this rank's runs.
///
/// # Errors
/// As [`run_joined`].
pub fn run_joined_timed(
    plan: &CheckedPlan,
    work: &Workload,
    place: &Membership,
    config: &RunConfig,
) -> Result<(Vec<Tensor>, RunTimes), Error> {
    let inputs = work.inputs.get(place.rank as usize).ok_or_else(|| {
        Error::invalid_request(format!(
            "rank {} of {}: the plan is for {}",
            place.rank,
            place.ranks,
            crate::error::format_rank_count(plan.ranks)
        ))
    })?;
    let job = RankJob {
        plan,
        bindings: work.bindings.clone(),
        inputs,
        repeats: config.repeats.max(1),
        trace: config.trace.clone(),
        settings: &work.settings,
        config: config.rank_config(),
    };
    let open = |request: &SessionRequest<'_>| config.device.open_job(request, &config.kernels);
    let (outputs, times) = job::run_rank(place, &job, &open)?;
    Ok((plan.source_program().cut_outputs(outputs), times))
}
