//! Ranks on GPUs: the engine that a rank process hands its job to.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use symmc_ir::InputKind;
use symmc_plan::ReadPlan;
use symmc_runtime::RunError;
use symmc_runtime::exec::RankMemory;
use symmc_runtime::host::{Engine, EngineChoice, RankRun};
use symmc_runtime::session::{DeviceSession, Port};

use crate::arena::ArenaSource;
use crate::bench::{self, BenchConfig};
use crate::compute::search::Products;
use crate::driver::{self, CallersContext};
use crate::embedded::{CudaSession, Gpu, Progress, Runs};
use crate::error::CudaError;
use crate::exchange::Exchange;
use crate::refusal::accept;
use crate::{trace, wait};

/// How a job runs on GPUs: rank `r` on GPU `r`, until a `with_…` says otherwise.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct CudaConfig {
    /// The GPU of each rank, by its number among those that the rank's process sees. Empty: rank `r` takes
    /// GPU `r`.
    pub gpus: Vec<u32>,
    /// Who allocates the symmetric arena.
    #[serde(default)]
    pub arena: ArenaSource,
    /// How algorithms of matrix products are chosen.
    #[serde(default)]
    pub products: Products,
    /// Run the last time step by step, and write the times of the steps on all ranks to this file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<PathBuf>,
    /// Measure instead of running the plan for its outputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bench: Option<Bench>,
    /// The file to which each rank writes what it measured, as JSON.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<PathBuf>,
}

/// What is measured.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Bench {
    /// Collectives, whatever the plan is: [`Measurements`](crate::bench::Measurements).
    Collectives(BenchConfig),
    /// The plan, on numbers drawn on the device: the least, median and most microseconds of one run.
    Program {
        /// Replays that count.
        replays: usize,
        /// Runs in one graph.
        runs: u32,
    },
}

impl CudaConfig {
    /// Sets the GPU of each rank.
    pub fn with_gpus(self, gpus: impl Into<Vec<u32>>) -> CudaConfig {
        CudaConfig { gpus: gpus.into(), ..self }
    }

    /// Sets who allocates the symmetric arena.
    pub fn with_arena(self, arena: ArenaSource) -> CudaConfig {
        CudaConfig { arena, ..self }
    }

    /// Sets how algorithms of matrix products are chosen.
    pub fn with_products(self, products: Products) -> CudaConfig {
        CudaConfig { products, ..self }
    }

    /// Sets the file of the times of the steps.
    pub fn with_trace(self, trace: impl Into<Option<PathBuf>>) -> CudaConfig {
        CudaConfig { trace: trace.into(), ..self }
    }

    /// Sets what is measured, and the file of each rank for it.
    pub fn with_bench(self, bench: impl Into<Option<Bench>>, answers: Vec<PathBuf>) -> CudaConfig {
        CudaConfig { bench: bench.into(), answers, ..self }
    }

    /// The choice of this engine for a job.
    pub fn choice(&self) -> EngineChoice {
        let options = serde_json::to_string(self).unwrap_or_default();
        EngineChoice::Named { name: CudaEngine.name().into(), options }
    }

    /// The GPU of a rank, which the process sees.
    fn gpu(&self, rank: u32, ranks: u32) -> Result<u32, CudaError> {
        let found = driver::count()?;
        let gpu = match self.gpus.get(rank as usize) {
            Some(&gpu) => gpu,
            None if self.gpus.is_empty() => rank,
            None => {
                let given = self.gpus.len();
                return Err(CudaError::Unsupported(format!("{ranks} ranks, but GPUs for {given} are named")));
            }
        };
        if gpu < found {
            return Ok(gpu);
        }
        Err(CudaError::Unsupported(match self.gpus.is_empty() {
            true => format!("{ranks} ranks need {ranks} GPUs, one each; this process sees {found}"),
            false => format!("rank {rank} is to run on GPU {gpu}; this process sees {found}, from 0"),
        }))
    }
}

fn configured(options: &str) -> Result<CudaConfig, RunError> {
    serde_json::from_str(options).map_err(|e| RunError::Invalid(format!("options for GPUs: {e}")))
}

/// GPUs through CUDA.
#[derive(Clone, Copy, Debug)]
pub struct CudaEngine;

impl Engine for CudaEngine {
    fn name(&self) -> &'static str {
        "cuda"
    }

    /// GPUs have no kernels of custom ops.
    fn accepts(&self, options: &str, plan: &ReadPlan) -> Result<(), RunError> {
        let config = configured(options)?;
        accept(plan, &config.gpus)
    }

    unsafe fn run(
        &self,
        options: &str,
        run: &RankRun<'_>,
        memory: &RankMemory,
        ready: &mut dyn FnMut() -> Result<(), RunError>,
    ) -> Result<(), RunError> {
        let config = configured(options)?;
        let rank = run.comm.rank();
        let gpu = config.gpu(rank, run.comm.ranks())?;
        // Dropped after everything below.
        let _caller = CallersContext::keep()?;
        let answers = config.answers.clone();
        if let Some(Bench::Collectives(config)) = &config.bench {
            ready()?;
            let measured = bench::run(gpu, run.config.limit, config, run.comm, &|| run.comm.alive())?;
            return write_answer(&measured, &answers, rank);
        }
        let gpu = Gpu {
            ordinal: Some(gpu),
            arena: config.arena,
            products: config.products,
            progress: if config.bench.is_none() { Progress::Told } else { Progress::Untold },
            ..Gpu::default()
        };
        let session = CudaSession::of_job(run, &gpu)?;
        let mut job = JobRun { run, session, trace: config.trace.as_deref() };
        let ran = match config.bench {
            Some(Bench::Program { replays, runs }) => {
                let times = job.measure([replays, runs as usize], ready);
                times.and_then(|times| write_answer(&times, &answers, rank))
            }
            // SAFETY: the caller's promise.
            _ => unsafe { job.run(memory, ready) },
        };
        // Peers learn of a failure and leave.
        ran.map_err(|error| job.session.fail(error))
    }
}

/// A session on its rank, with what the run wants of it.
struct JobRun<'a> {
    run: &'a RankRun<'a>,
    session: CudaSession<'a>,
    trace: Option<&'a Path>,
}

impl JobRun<'_> {
    /// Runs the plan as often as wanted.
    ///
    /// # Safety
    /// As [`Engine::run`].
    unsafe fn run(
        &mut self,
        memory: &RankMemory,
        ready: &mut dyn FnMut() -> Result<(), RunError>,
    ) -> Result<(), RunError> {
        // SAFETY: the caller's promise.
        let data = |i: usize| unsafe { Some((i, memory.input(i)?)) };
        self.session.write_all((0..memory.inputs.len()).filter_map(data))?;
        let once = self.session.record_runs(1)?;
        let again = self.written_again()?;
        ready()?;
        let (comm, bucket) = (self.run.comm, self.session.bound()?.bucket());
        let repeats = u64::from(self.run.repeats.max(1));
        for repeat in 0..repeats {
            comm.begin_run(repeat, bucket);
            if repeat > 0 {
                self.session.write_all(again.iter().copied().filter_map(data))?;
            }
            match self.trace {
                Some(path) if repeat + 1 == repeats => self.write_trace(path, &once)?,
                _ => self.session.replay(&once).map(|_| ())?,
            }
        }
        comm.end_runs();
        for (index, span) in memory.outputs.iter().enumerate().filter(|(_, span)| span.len > 0) {
            // SAFETY: the caller's promise.
            let to = unsafe { std::slice::from_raw_parts_mut(span.ptr, span.len) };
            self.session.read(Port::Output(index), to)?;
        }
        Ok(())
    }

    /// Inputs whose memory may hold something else after a run: arguments in fixed memory, which their caller writes before
    /// each run, unless an output replaces them.
    fn written_again(&self) -> Result<Vec<usize>, RunError> {
        let bound = self.session.bound()?;
        let replaced = |i: usize| bound.outputs.iter().any(|o| o.mutates == Some(i));
        let inputs = bound.inputs.iter().enumerate();
        let fixed = inputs.filter(|(_, input)| input.kind == InputKind::Argument && input.fixed.is_some());
        Ok(fixed.map(|(i, _)| i).filter(|&i| !replaced(i)).collect())
    }

    fn write_trace(&mut self, path: &Path, once: &Runs) -> Result<(), RunError> {
        let steps = self.session.trace(once)?;
        trace::write(path, &steps, self.run.comm)
    }

    /// Least, median and most microseconds of one run over replays of so many runs, on inputs that are drawn.
    /// Ranks meet before each replay.
    fn measure(
        &mut self,
        [replays, runs]: [usize; 2],
        ready: &mut dyn FnMut() -> Result<(), RunError>,
    ) -> Result<[f64; 3], RunError> {
        const WARM: usize = 3;
        let RankRun { plan, bindings, .. } = self.run;
        self.session.draw_inputs(plan.source_program(), bindings)?;
        let graph = self.session.record_runs(runs as u32)?;
        ready()?;
        let (comm, bucket) = (self.run.comm, self.session.bound()?.bucket());
        let mut times = Vec::with_capacity(replays);
        for replay in 0..WARM + replays {
            comm.exchange(&[0])?;
            comm.begin_run(replay as u64, bucket);
            let time = self.session.replay(&graph)?;
            if replay >= WARM {
                times.push(time / runs.max(1) as f64);
            }
        }
        if let Some(path) = self.trace {
            self.write_trace(path, &graph)?;
        }
        comm.end_runs();
        Ok(wait::spread(times))
    }
}

/// Writes what a rank measured to its file.
fn write_answer(value: &impl Serialize, answers: &[PathBuf], rank: u32) -> Result<(), RunError> {
    let missing = || RunError::Invalid(format!("no file was named for what rank {rank} measures"));
    let path = answers.get(rank as usize).ok_or_else(missing)?;
    let text = serde_json::to_vec(value).map_err(|e| RunError::system("writing a measurement", e))?;
    std::fs::write(path, text).map_err(|e| RunError::system("writing a measurement", e))
}
