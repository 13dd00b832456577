//! An application with its own stream and communicator embeds a plan: it launches a run on its stream, and
//! records another one into its graph, between kernels of the application.
//!
//! ```text
//! adopt RANKS      one thread and one GPU for each rank
//! ```
//!
//! The program's first all-reduce runs by NCCL on the application's communicator, the second one by symmc.

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use nccl_sys::{Nccl, NcclConfig, UniqueId};
use symmc_check::CheckedPlan;
use symmc_control::{Group, RankConfig};
use symmc_cuda::device::driver::{Device, Stream};
use symmc_cuda::{CudaSession, GpuConfig};
use symmc_ir::{SymbolBindings, text};
use symmc_planner::{BucketInput, PlanConfig};
use symmc_runtime::session::{DeviceSession, Port};

const ELEMENT_COUNT: usize = 4096;
/// The number of runs in the application's graph, and the number of its replays.
const RUNS_PER_GRAPH: usize = 2;
const REPLAY_COUNT: usize = 3;
const WAIT_TIMEOUT: Duration = Duration::from_secs(30);

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match &args[..] {
        [ranks] => run(ranks),
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

/// Plans the program, runs it on one thread per rank, and compares the results.
fn run(ranks: &str) -> Result<(), Failure> {
    let ranks: u32 = ranks.parse()?;
    let program = format!(
        "program \"adopted\" ranks {ranks}\ngroup @all world\n\
         arg %x: f32[{ELEMENT_COUNT}]\n\
         %a: f32[{ELEMENT_COUNT}] = all_reduce %x op=sum group=@all via=plain\n\
         %b: f32[{ELEMENT_COUNT}] = neg %a\n\
         %c: f32[{ELEMENT_COUNT}] = all_reduce %b op=sum group=@all via=two_shot\n\
         %d: f32[{ELEMENT_COUNT}] = neg %c\n\
         return %d\n"
    );
    let graph = text::parse(&program)?;
    let bucket = BucketInput { graph: graph.clone(), decisions: vec![] };
    let plan = CheckedPlan::new(symmc_planner::plan(&graph, &[bucket], &PlanConfig::default())?)
        .map_err(|findings| format!("the plan is unsafe: {findings:?}"))?;
    let id = Nccl::load()?.unique_id()?;
    let outputs = thread::scope(|scope| {
        let rank = |group: Group| {
            let plan = &plan;
            scope.spawn(move || rank(plan, &group, id))
        };
        let ranks: Vec<_> = Group::threads(ranks).into_iter().map(rank).collect();
        let ended = |rank: thread::ScopedJoinHandle<'_, _>| rank.join().map_err(|_| "a rank panicked")?;
        ranks.into_iter().map(ended).collect::<Result<Vec<Vec<f32>>, Failure>>()
    })?;
    let inputs: Vec<Vec<f32>> = (0..ranks).map(numbers).collect();
    let sum = |i: usize| inputs.iter().map(|x| x[i]).sum::<f32>();
    let expected: Vec<f32> = (0..ELEMENT_COUNT).map(|i| ranks as f32 * sum(i)).collect();
    match outputs.iter().position(|output| *output != expected) {
        Some(rank) => Err(format!("rank {rank} has something else than the sums").into()),
        None => {
            println!("{ranks} ranks ran on the engine's stream and communicator");
            Ok(())
        }
    }
}

fn numbers(rank: u32) -> Vec<f32> {
    (0..ELEMENT_COUNT).map(|i| ((i * 7 + rank as usize * 5) % 13) as f32 - 6.0).collect()
}

/// One rank of the application, which embeds symmc; returns its output.
fn rank(plan: &CheckedPlan, group: &Group, id: UniqueId) -> Result<Vec<f32>, Failure> {
    let device = Device::open(group.rank())?;
    let stream = Stream::new(&device)?;
    let nccl = Nccl::load()?;
    let communicator = nccl.comm_init_rank(group.ranks(), id, group.rank(), &NcclConfig::default())?;
    // SAFETY: the stream and the communicator were created above for this GPU, by the library that the
    // session uses. They outlive the session, and only this thread uses them.
    let gpu = unsafe {
        GpuConfig::new(group.rank())
            .with_stream(stream.handle().cast())
            .with_communicator(communicator.0, (0..group.ranks()).collect())
    };
    let config = RankConfig { limit: WAIT_TIMEOUT, ..RankConfig::default() };
    let mut session = CudaSession::open(plan, group, &gpu, &config)?;
    session.set_sizes(&SymbolBindings::new())?;
    let input: Vec<u8> = numbers(group.rank()).iter().flat_map(|x| x.to_ne_bytes()).collect();
    session.write_input(0, &input)?;
    // A run among other work of the application, then a graph of the application that holds runs.
    session.enqueue(None)?;
    session.wait(WAIT_TIMEOUT)?;
    let mut enqueued = Ok(());
    let graph = stream.capture(|| {
        enqueued = (0..RUNS_PER_GRAPH).try_for_each(|_| session.enqueue(None));
        Ok(())
    })?;
    enqueued?;
    for _ in 0..REPLAY_COUNT {
        // SAFETY: the session, which the graph uses, exists.
        unsafe { stream.replay(&graph)? };
    }
    stream.synchronize()?;
    session.poll()?;
    let mut output = vec![0; input.len()];
    session.read_port(Port::Output(0), &mut output)?;
    drop(graph);
    Box::new(session).close()?;
    // The borrowed handles still exist: the application destroys them.
    // SAFETY: the communicator exists, and nothing runs on it.
    let code = unsafe { (nccl.functions().comm_destroy)(communicator) };
    nccl.check_code("ncclCommDestroy", code)?;
    Ok(output.chunks_exact(4).map(|x| f32::from_ne_bytes([x[0], x[1], x[2], x[3]])).collect())
}
