//! An engine with a stream and a communicator of its own embeds a plan: it launches a run on its stream, and records
//! one into its graph, between kernels of its own.
//!
//! ```text
//! adopt RANKS      one process and one GPU for each rank
//! ```
//!
//! Each rank is a process of this program, started by symmc's launcher with this engine. The program's first
//! all-reduce is NCCL's, on the engine's communicator, the second is symmc's own.

use std::ffi::c_void;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use nccl_sys::{Config, Nccl, UniqueId};
use symmc_cuda::adopt::{Adopted, LentStream};
use symmc_cuda::arena::Exchange;
use symmc_cuda::driver::{Device, Stream};
use symmc_cuda::nccl::Lent;
use symmc_cuda::session::{Session, SessionConfig};
use symmc_ir::{Bindings, DType, Tensor, text};
use symmc_planner::{BucketInput, CheckedPlan, PlanConfig};
use symmc_runtime::RunError;
use symmc_runtime::exec::{ExecConfig, Executor, RankMemory, Registry};
use symmc_runtime::host::{self, Comm, Engine, EngineChoice, Engines, HostConfig, Job, RankCommand, RankRun};

const ELEMENTS: usize = 4096;
/// Runs that the engine's graph holds, and how often it is replayed.
const RUNS: usize = 2;
const REPLAYS: usize = 3;

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match &args[..] {
        [flag, fd] if flag == "--rank" => rank(fd),
        [ranks] => launch(ranks),
        _ => Err("usage: adopt RANKS".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Plans the program, runs it on as many processes, and compares.
fn launch(ranks: &str) -> Result<(), Failure> {
    let ranks: u32 = ranks.parse()?;
    let program = format!(
        "program \"adopted\" ranks {ranks}\ngroup @all world\n\
         arg %x: f32[{ELEMENTS}]\n\
         %a: f32[{ELEMENTS}] = all_reduce %x op=sum group=@all via=plain\n\
         %b: f32[{ELEMENTS}] = neg %a\n\
         %c: f32[{ELEMENTS}] = all_reduce %b op=sum group=@all via=two_shot\n\
         %d: f32[{ELEMENTS}] = neg %c\n\
         return %d\n"
    );
    let graph = text::parse(&program)?;
    let bucket = BucketInput { graph: graph.clone(), decisions: vec![] };
    let plan = CheckedPlan::new(symmc_planner::plan(&graph, &[bucket], &PlanConfig::default())?)
        .map_err(|findings| format!("the plan is unsafe: {findings:?}"))?;
    let input = |rank| Tensor::from_f64(DType::F32, vec![ELEMENTS], &numbers(rank)).ok_or("no numbers");
    let inputs = (0..ranks).map(|r| Ok(vec![Arc::new(input(r)?)])).collect::<Result<Vec<_>, Failure>>()?;
    let engine = EngineChoice::Named { name: Adopting.name().into(), options: String::new() };
    let config = HostConfig { engine, limit: Duration::from_secs(30), ..HostConfig::default() };
    let job = Job { plan: &plan, bindings: Bindings::new(), inputs: &inputs, repeats: 1, config };
    let command = RankCommand { program: std::env::current_exe()?, args: vec!["--rank".into()] };
    let outputs = host::launch(&job, &command)?;
    let all: Vec<Vec<f64>> = (0..ranks).map(numbers).collect();
    let sum = |i: usize| all.iter().map(|x| x[i]).sum::<f64>();
    let expected: Vec<f64> = (0..ELEMENTS).map(|i| f64::from(ranks) * sum(i)).collect();
    for (rank, output) in outputs.iter().enumerate() {
        if output[0].to_f64() != expected {
            return Err(format!("rank {rank} has something else than the sums").into());
        }
    }
    println!("{ranks} ranks ran on the engine's stream and communicator");
    Ok(())
}

fn numbers(rank: u32) -> Vec<f64> {
    (0..ELEMENTS).map(|i| ((i * 7 + rank as usize * 5) % 13) as f64 - 6.0).collect()
}

/// One rank, in a process of its own.
fn rank(fd: &str) -> Result<(), Failure> {
    let kernels = Registry::new();
    host::rank_main(fd.parse()?, &Engines { kernels: &kernels, others: &[&Adopting] })?;
    Ok(())
}

/// The engine that embeds symmc.
struct Adopting;

impl Engine for Adopting {
    fn name(&self) -> &'static str {
        "adopting"
    }

    unsafe fn run(
        &self,
        _options: &str,
        run: &RankRun<'_>,
        memory: &RankMemory,
        ready: &mut dyn FnMut() -> Result<(), RunError>,
    ) -> Result<(), RunError> {
        let device = Device::open(run.comm.rank())?;
        let stream = Stream::new(&device)?;
        let nccl = Nccl::load().map_err(|e| RunError::Invalid(e.to_string()))?;
        let communicator = communicator(nccl, run.comm)?;
        let session = {
            let all = (0..run.comm.ranks()).collect();
            // SAFETY: stream and communicator were made above for this GPU, by the library that the session uses,
            // and outlive the session; only this thread uses them.
            let (stream, communicator) = unsafe {
                (LentStream::new(stream.handle().cast::<c_void>()), Lent::new(communicator.0, all))
            };
            let adopted = Adopted { stream: Some(stream), communicator: Some(communicator) };
            let (gpu, limit) = (run.comm.rank(), run.config.limit);
            let registry = Registry::new();
            let mut executor =
                Executor::new(run.plan.clone(), run.comm.rank(), &registry, ExecConfig::default())?;
            let bound = executor.bind(run.bindings)?;
            Session::new(&[bound], run.comm, &SessionConfig { adopted, ..SessionConfig::new(gpu, limit) })?
        };
        // SAFETY: the caller's promise: the input is as large.
        let input = unsafe { std::slice::from_raw_parts(memory.inputs[0].ptr, memory.inputs[0].len) };
        session.write_inputs(0, |_| Some(input), |_| true)?;
        ready()?;
        // A run among other work of the engine, then a graph of the engine that holds runs.
        session.enqueue(0)?;
        session.finish(0, &|| run.comm.alive())?;
        let graph = stream.capture(|| (0..RUNS).try_for_each(|_| session.enqueue(0)))?;
        for _ in 0..REPLAYS {
            // SAFETY: the session, which the graph uses, exists.
            unsafe { stream.replay(&graph)? };
        }
        session.finish(0, &|| run.comm.alive())?;
        let output = &memory.outputs[0];
        // SAFETY: the caller's promise: the output is as large, and this rank's alone.
        session.read_output(0, 0, unsafe { std::slice::from_raw_parts_mut(output.ptr, output.len) })?;
        drop(graph);
        drop(session);
        // What was lent is as it was: the engine ends it.
        // SAFETY: the communicator exists, and nothing runs on it.
        let code = unsafe { (nccl.functions().comm_destroy)(communicator) };
        nccl.check("ncclCommDestroy", code)
            .map_err(|e| RunError::system("ending the engine's communicator", e))
    }
}

/// The engine's own communicator of all ranks, which blocks.
fn communicator(nccl: &Nccl, ranks: &Comm) -> Result<nccl_sys::Comm, RunError> {
    let failed = |e: nccl_sys::Error| RunError::system("making the engine's communicator", e);
    let ids = ranks.all_gather(&nccl.unique_id().map_err(failed)?.to_bytes())?;
    let id = ids.first().and_then(|id| <[u8; UniqueId::BYTES]>::try_from(&id[..]).ok());
    let id = UniqueId::from_bytes(id.ok_or_else(|| RunError::Invalid("no id came".into()))?);
    nccl.comm_init_rank(ranks.ranks(), id, ranks.rank(), &Config::default()).map_err(failed)
}
