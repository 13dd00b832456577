//! Small planned programs and their inputs.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use symmc_check::CheckedPlan;
use symmc_control::{LaunchedRank, RankCommand, RankConfig};
use symmc_ir::{DType, Graph, InputKind, SymbolBindings, SymbolId, Tensor, entity::Entity, interp, text};
use symmc_plan::Plan;
use symmc_planner::{BucketInput, PlanConfig};
use symmc_runtime::job::{self, Job, JobMessage, SessionRequest, open_on_host};
use symmc_runtime::session::DeviceSession;
use symmc_runtime::{CustomKernelRegistry, RunError};

/// Most variants, two groups, a symbol, and a state that outputs mutate.
const MIXED: &str = r#"
program "mixed" ranks 4
symbol n in 1..=64
group @world world
group @pairs [[0, 2], [1, 3]]
arg %x: f32[4*n, 8]
arg %state: f32[4*n, 8]
param %w: f32[8, 8] source "w"
%y: f32[4*n, 8] = matmul %x, %w
%a: f32[4*n, 8] = all_reduce %y op=sum group=@world via=ll
%b: f32[4*n, 8] = all_reduce %a op=max group=@pairs via=one_shot
%c: f32[4*n, 8] = all_to_all %b splits=even group=@world via=push
%d: f32[4*n, 8] = all_reduce %c op=avg group=@world via=two_shot
%k: f32[4*n, 8] = neg %d
%e: f32[8*n, 8] = all_gather %k group=@pairs via=pull
%f: f32[4*n, 8] = reduce_scatter %e op=sum group=@pairs via=plain
%g: f32[4*n, 8] = permute_ranks %f pairs=[0->1, 1->2, 3->0] group=@world via=plain
%p: f32[4*n, 8] = permute_ranks %g pairs=[0->1, 1->0] group=@pairs via=put
%q: f32[4*n, 8] = broadcast %p root=2 group=@world via=put
%h: f32[4*n, 8] = add %q, %x
%next: f32[4*n, 8] = add %state, %h
return %h
mutate %state = %next
"#;

/// A job with what it borrows.
pub struct OwnedJob {
    pub plan: CheckedPlan,
    pub bindings: SymbolBindings,
    pub inputs: Vec<Vec<Arc<Tensor>>>,
    pub config: RankConfig,
    pub repeats: u32,
}

impl OwnedJob {
    /// The mixed program with `n` bound to this.
    pub fn mixed(n: i64) -> OwnedJob {
        OwnedJob::new(MIXED, n)
    }

    /// A program whose only symbol is bound to this; its second input is the state that its second output
    /// replaces.
    pub fn new(program: &str, n: i64) -> OwnedJob {
        let graph = text::parse(program).expect("the program parses");
        let mut bindings = SymbolBindings::new();
        bindings.set(SymbolId::new(0), n);
        let draw = |rank, i| {
            let ty = graph.ty(graph.inputs.values().nth(i).expect("an input").value);
            let shape = ty.concrete_shape(&bindings).expect("a shape");
            let seed = if graph.inputs.values().nth(i).map(|i| i.kind) == Some(InputKind::Parameter) {
                9
            } else {
                rank
            };
            Arc::new(numbers(shape, seed as u64 + 10 * i as u64))
        };
        let ranks = graph.ranks.expect("closed") as usize;
        let inputs =
            (0..ranks).map(|rank| (0..graph.inputs.len()).map(|i| draw(rank, i)).collect()).collect();
        let plan = plan(&graph, "host");
        let config = RankConfig { limit: Duration::from_secs(20), ..RankConfig::default() };
        OwnedJob { plan, bindings, inputs, config, repeats: 1 }
    }

    /// Changes the plan, which still passes the checker.
    pub fn edit(&mut self, change: impl FnOnce(&mut Plan)) {
        let mut plan = self.plan.clone().into_plan();
        change(&mut plan);
        self.plan = CheckedPlan::new(plan).expect("the plan checks");
    }

    /// The job.
    pub fn job(&self) -> Job<'_> {
        Job {
            plan: &self.plan,
            bindings: self.bindings.clone(),
            inputs: &self.inputs,
            repeats: self.repeats,
            trace: None,
            config: self.config.clone(),
        }
    }

    /// The results of the interpreter; it runs as often as the job, and keeps its state.
    pub fn expected(&self) -> Vec<Vec<Tensor>> {
        let graph = text::parse(&self.plan.source.text).expect("the program parses");
        let kernels = crate::custom::kernels().to_interpreter_registry();
        let mut inputs = self.inputs.clone();
        let mut outputs = Vec::new();
        for _ in 0..self.repeats {
            outputs = interp::run_with_registry(&graph, &self.bindings, &inputs, &kernels).expect("it runs");
            for (inputs, outputs) in inputs.iter_mut().zip(&outputs) {
                inputs[1] = Arc::new(outputs[1].clone());
            }
        }
        outputs
    }
}

/// The plan of a lowered program.
pub fn plan(graph: &Graph, machine: &str) -> CheckedPlan {
    let bucket = BucketInput { graph: graph.clone(), decisions: Vec::new() };
    let config = PlanConfig { machine: machine.into(), ..PlanConfig::default() };
    let plan = symmc_planner::plan(graph, &[bucket], &config).expect("the program plans");
    CheckedPlan::new(plan).expect("the plan checks")
}

/// Small whole numbers, so that sums are exact in any order.
fn numbers(shape: Vec<usize>, seed: u64) -> Tensor {
    let count = shape.iter().product::<usize>() as u64;
    let number = |i: u64| ((i * 7 + seed * 31) % 9) as f64 - 4.0;
    let numbers: Vec<f64> = (0..count).map(number).collect();
    Tensor::from_f64(DType::F32, shape, &numbers).expect("the numbers fill the shape")
}

/// This binary as a rank.
pub fn command() -> RankCommand {
    let program = std::env::current_exe().expect("this binary has a path");
    RankCommand { program, args: vec!["rank".into()] }
}

/// The task of a rank's process.
#[derive(Serialize, Deserialize)]
pub enum RankTask {
    /// A job.
    Run(JobMessage),
    /// A job, before which rank 0 shortens the file of the inputs.
    RunOnShortened { path: std::path::PathBuf, length: u64, job: JobMessage },
    /// Sends this many characters and the rank.
    Answer { characters: usize },
}

/// Runs a rank's task, with these kernels of custom ops.
pub fn work(rank: &mut LaunchedRank, kernels: &CustomKernelRegistry) -> Result<(), RunError> {
    match rank.receive_task()? {
        RankTask::Run(job) => job.run(rank, &open(kernels)),
        RankTask::RunOnShortened { path, length, job } => {
            crate::files::shorten(&path, length, rank.rank());
            job.run(rank, &open(kernels))
        }
        RankTask::Answer { characters } => crate::answers::answer(rank, characters),
    }
}

/// Opens the sessions of the host.
pub fn open(
    kernels: &CustomKernelRegistry,
) -> impl Fn(&SessionRequest<'_>) -> Result<Box<dyn DeviceSession>, RunError> + Sync {
    |request| open_on_host(request, kernels)
}

/// Runs a job on processes; returns the outputs of each rank.
pub fn launch(job: &Job<'_>, command: &RankCommand) -> Result<Vec<Vec<Tensor>>, RunError> {
    job::launch_job(job, command, RankTask::Run).map(|ran| ran.outputs)
}

/// Runs a job on threads; returns the outputs of each rank.
pub fn run_threads(job: &Job<'_>, kernels: &CustomKernelRegistry) -> Result<Vec<Vec<Tensor>>, RunError> {
    job::run_threads(job, &open(kernels)).map(|ran| ran.outputs)
}
