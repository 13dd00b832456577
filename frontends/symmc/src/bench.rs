//! Measures collectives on GPUs, every variant beside the vendor's own.

use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use symmc_cuda::bench::{BenchConfig, Measured};
use symmc_cuda::{Bench, CudaConfig};
use symmc_ir::{Bindings, Tensor, text};
use symmc_planner::{BucketInput, CheckedPlan, PlanConfig};
use symmc_runtime::host::{self, HostConfig, Job, RankCommand};

use crate::error::Error;

/// Bytes that an answer may have.
const ANSWER: usize = 4 << 20;

/// Measures on so many ranks, each a process with a GPU; what each rank measured. `command` runs a rank with
/// [`engines`](crate::engines). `gpus` names the GPU of each rank; when empty, rank `r` takes GPU `r`.
///
/// # Errors
/// There are too few GPUs, a library is missing, or a rank failed.
pub fn collectives(
    ranks: u32,
    gpus: &[u32],
    config: &BenchConfig,
    command: &RankCommand,
) -> Result<Vec<Vec<Measured>>, Error> {
    // A program without work, whose output is where ranks leave their answer.
    let program =
        format!("program \"bench\" ranks {ranks}\n%answer: u8[{ANSWER}] = full value=0\nreturn %answer\n");
    let fail = |e: &dyn std::fmt::Display| Error::Request(format!("the bench's own program: {e}"));
    let graph = text::parse(&program).map_err(|e| fail(&e))?;
    let bucket = BucketInput { graph: graph.clone(), decisions: vec![] };
    let plan = symmc_planner::plan(&graph, &[bucket], &PlanConfig::default()).map_err(|e| fail(&e))?;
    let plan = CheckedPlan::new(plan).map_err(|e| fail(&format!("{e:?}")))?;
    let inputs: Vec<Vec<Arc<Tensor>>> = (0..ranks).map(|_| vec![]).collect();
    let engine = CudaConfig { gpus: gpus.to_vec(), bench: Some(Bench::Collectives(config.clone())) }.choice();
    let config = HostConfig { engine, limit: Duration::from_secs(600), ..HostConfig::default() };
    let job = Job { plan: &plan, bindings: Bindings::new(), inputs: &inputs, repeats: 1, config };
    answers(&host::launch(&job, command)?)
}

/// Measures a plan on GPUs, on numbers drawn there; for each rank the microseconds of one run in each of
/// `replays` replays of a graph that holds `runs` runs, in order of size.
///
/// # Errors
/// There are too few GPUs, a library is missing, an op has no kernel for GPUs, or a rank failed.
pub fn program(
    plan: &CheckedPlan,
    bindings: &Bindings,
    gpus: &[u32],
    [replays, runs]: [u32; 2],
    command: &RankCommand,
) -> Result<Vec<Vec<f64>>, Error> {
    let graph = text::parse(&plan.source.text).map_err(|e| Error::Request(e.to_string()))?;
    let blank = |input: &symmc_ir::Input| {
        let ty = graph.ty(input.value);
        let zeros = ty.concrete(bindings).and_then(|shape| Tensor::zeros(ty.dtype, shape));
        let missing =
            || Error::Request(format!("input %{} has no size: set all symbols", graph.name_of(input.value)));
        zeros.map(Arc::new).ok_or_else(missing)
    };
    let inputs: Vec<Arc<Tensor>> = graph.inputs.values().map(blank).collect::<Result<_, Error>>()?;
    let inputs: Vec<_> = (0..plan.ranks).map(|_| inputs.clone()).collect();
    let bench = Bench::Program { replays: replays as usize, runs };
    let engine = CudaConfig { gpus: gpus.to_vec(), bench: Some(bench) }.choice();
    let config = HostConfig { engine, limit: Duration::from_secs(120), ..HostConfig::default() };
    let job = Job { plan, bindings: bindings.clone(), inputs: &inputs, repeats: 1, config };
    answers(&host::launch(&job, command)?)
}

/// The answer of each rank: JSON at the start of its first output.
fn answers<T: DeserializeOwned>(outputs: &[Vec<Tensor>]) -> Result<Vec<T>, Error> {
    let read = |outputs: &Vec<Tensor>| {
        let data = outputs.first().map_or(&[][..], |t| t.data());
        let end = data.iter().position(|&b| b == 0).unwrap_or(data.len());
        serde_json::from_slice(&data[..end])
            .map_err(|e| Error::Request(format!("a rank's answer is not understood: {e}")))
    };
    outputs.iter().map(read).collect()
}
