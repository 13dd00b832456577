//! Plans of small programs, memory for a rank, and runs of all ranks as threads.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use symmc_check::check;
use symmc_control::{RankCommunicator, SharedRunMemory};
use symmc_ir::entity::Entity;
use symmc_ir::{DType, Graph, InputKind, OutputKind, SymbolBindings, Tensor, interp, text};
use symmc_plan::{ParsedPlan, Plan};
use symmc_planner::{BucketInput, PlanConfig, plan};
use symmc_runtime::exec::{
    ByteSpan, Communicator, CustomKernelRegistry, ExecConfig, Executor, RankMemory, RunReport,
};
use symmc_runtime::{RunError, unread_plan_error};

/// A program with its checked plan.
pub struct PlannedProgram {
    pub graph: Graph,
    pub plan: Plan,
}

pub fn planned(program: &str) -> PlannedProgram {
    let graph = text::parse(program).unwrap_or_else(|e| panic!("{e}"));
    let lowered = BucketInput { graph: graph.clone(), decisions: Vec::new() };
    let plan = plan(&graph, &[lowered], &PlanConfig::default()).unwrap_or_else(|e| panic!("{e}"));
    check(&plan).unwrap_or_else(|e| panic!("{e:?}"));
    PlannedProgram { graph, plan }
}

/// Values of symbols by name.
pub fn bindings(graph: &Graph, values: &[(&str, i64)]) -> SymbolBindings {
    let mut out = SymbolBindings::new();
    for &(name, value) in values {
        let (id, _) = graph.symbols.iter().find(|(_, s)| s.name == name).expect("a symbol of the program");
        out.set(id, value);
    }
    out
}

/// Inputs of all ranks, drawn from a seed.
pub fn inputs(graph: &Graph, bindings: &SymbolBindings, seed: u64) -> Vec<Vec<Arc<Tensor>>> {
    let ranks = graph.ranks.expect("closed");
    (0..ranks)
        .map(|r| {
            interp::seeded_inputs(graph, bindings, &interp::SeedConfig::new(seed), r)
                .expect("inputs can be drawn")
        })
        .collect()
}

/// 64 bytes at a multiple of 64.
#[derive(Clone)]
#[repr(align(64))]
struct AlignedLine([u8; 64]);

/// Bytes at a multiple of 64.
pub struct AlignedBlock {
    lines: Vec<AlignedLine>,
    len: usize,
}

impl AlignedBlock {
    /// Memory that does not hold zeros, like memory that was used before.
    pub fn new(len: usize) -> Self {
        AlignedBlock { lines: vec![AlignedLine([0xa5; 64]); len.div_ceil(64)], len }
    }
    pub fn of(tensor: &Tensor) -> Self {
        let mut out = AlignedBlock::new(tensor.data().len());
        let bytes = out.lines.iter_mut().flat_map(|l| &mut l.0);
        bytes.zip(tensor.data()).for_each(|(to, &from)| *to = from);
        out
    }
    pub fn span(&mut self) -> ByteSpan {
        ByteSpan { ptr: self.lines.as_mut_ptr().cast(), len: self.len }
    }
    pub fn bytes(&self) -> Vec<u8> {
        self.lines.iter().flat_map(|l| l.0).take(self.len).collect()
    }
}

/// The memory and inputs of a rank.
pub struct RankBuffers {
    pub ordinary: AlignedBlock,
    pub symmetric: AlignedBlock,
    pub inputs: Vec<AlignedBlock>,
    pub outputs: Vec<AlignedBlock>,
}

impl RankBuffers {
    /// Memory for a rank, with its inputs.
    pub fn new(planned: &PlannedProgram, bindings: &SymbolBindings, inputs: &[Arc<Tensor>]) -> Self {
        let graph = &planned.graph;
        let size = |v| graph.ty(v).bytes().eval(bindings).expect("bound") as usize;
        RankBuffers {
            ordinary: AlignedBlock::new(planned.plan.arenas.ordinary as usize),
            symmetric: AlignedBlock::new(planned.plan.arenas.symmetric as usize),
            inputs: inputs.iter().map(|t| AlignedBlock::of(t)).collect(),
            outputs: graph.outputs.iter().map(|o| AlignedBlock::new(size(o.value))).collect(),
        }
    }

    pub fn memory(&mut self) -> RankMemory {
        RankMemory {
            ordinary: self.ordinary.span(),
            symmetric: self.symmetric.span(),
            inputs: self.inputs.iter_mut().map(AlignedBlock::span).collect(),
            outputs: self.outputs.iter_mut().map(AlignedBlock::span).collect(),
        }
    }

    /// Runs a plan with arguments that are drawn again for each run.
    fn run(
        &mut self,
        executor: &mut Executor,
        graph: &Graph,
        bindings: &SymbolBindings,
        (comm, config): (&RankCommunicator, &ExecConfig),
        (run, rank): (u64, u32),
    ) {
        let fresh =
            interp::seeded_inputs(graph, bindings, &interp::SeedConfig::new(7 + run), rank).expect("drawn");
        for ((input, block), tensor) in graph.inputs.values().zip(&mut self.inputs).zip(fresh) {
            if input.kind == InputKind::Argument {
                *block = AlignedBlock::of(&tensor);
            }
        }
        let symmetric = ByteSpan { ptr: comm.arena().as_ptr(), len: comm.arena().len() };
        let memory = RankMemory { symmetric, ..self.memory() };
        let bound = executor.resolve_bindings(bindings).expect("binds");
        // SAFETY: the spans outlive the run; all ranks run the same checked plan.
        unsafe {
            if run == 0 {
                bound.load_fixed_inputs(&memory).expect("loads");
            }
            bound.run(&memory, comm, config, &mut Default::default()).expect("runs");
        }
    }

    pub fn outputs(&self, graph: &Graph, bindings: &SymbolBindings) -> Vec<Tensor> {
        let read = |(o, block): (&symmc_ir::GraphOutput, &AlignedBlock)| {
            let ty = graph.ty(o.value);
            Tensor::new(ty.dtype, ty.concrete_shape(bindings).expect("bound"), block.bytes())
                .expect("as long as its type")
        };
        graph.outputs.iter().zip(&self.outputs).map(read).collect()
    }
}

/// A communicator of a program without collectives.
pub struct NoCommunicator;

impl Communicator for NoCommunicator {
    unsafe fn run_collective(&self, call: &symmc_runtime::CollectiveCall<'_>) -> Result<(), RunError> {
        Err(RunError::Invalid(format!("%{} is a collective", call.name)))
    }
}

/// Loads and runs a plan once on one rank.
pub fn run_once(
    plan: &Plan,
    registry: &CustomKernelRegistry,
    config: ExecConfig,
    bindings: &SymbolBindings,
    memory: &RankMemory,
    comm: &dyn Communicator,
) -> Result<RunReport, RunError> {
    run_once_on_rank(plan, 0, (registry, config), bindings, memory, comm)
}

/// Runs all ranks as threads, `repeats` times, and checks the outputs of each run against the interpreter,
/// which keeps the inputs that earlier runs wrote.
pub fn check_against_interpreter(
    planned: &PlannedProgram,
    registry: (&CustomKernelRegistry, &interp::ReferenceKernelRegistry),
    config: ExecConfig,
    values: &[(&str, i64)],
    repeats: u64,
) {
    let graph = &planned.graph;
    let bindings = &bindings(graph, values);
    let inputs_by_rank = inputs(graph, bindings, 7);
    let expected = interpreted(graph, registry.1, bindings, &inputs_by_rank, repeats);
    let ranks = graph.ranks.expect("closed");
    let domain =
        SharedRunMemory::create(ranks, graph.groups.len().max(1), planned.plan.arenas.symmetric as usize, 0);
    let domain = domain.expect("shared memory");
    thread::scope(|scope| {
        for rank in 0..ranks {
            let (domain, given, expected) = (domain.clone(), &inputs_by_rank, &expected);
            scope.spawn(move || {
                let comm = RankCommunicator::new(domain, rank, Duration::from_secs(20));
                let plan = ParsedPlan::parse(Arc::new(planned.plan.clone())).expect("programs");
                let mut executor = Executor::new(&plan, rank, registry.0, config).expect("a plan");
                let mut own = RankBuffers::new(planned, bindings, &given[rank as usize]);
                for run in 0..repeats {
                    own.run(&mut executor, graph, bindings, (&comm, &config), (run, rank));
                    let outputs = own.outputs(graph, bindings);
                    for (actual, expected) in outputs.iter().zip(&expected[run as usize][rank as usize]) {
                        let (a, b) = (actual.to_f64(), expected.to_f64());
                        // The last place of bf16 depends on that of f32.
                        let tolerance = if actual.dtype() == DType::BF16 { 1.0 / 128.0 } else { 2e-5 };
                        let close = |(a, b): (&f64, &f64)| (a - b).abs() <= tolerance * b.abs().max(1.0);
                        let agrees = a.iter().zip(&b).all(close);
                        assert!(agrees, "{config:?}, rank {rank}, run {run}: {a:?}, expected {b:?}");
                    }
                }
            });
        }
    });
}

/// The outputs of each run and rank by the interpreter. Arguments are new in each run.
fn interpreted(
    graph: &Graph,
    registry: &interp::ReferenceKernelRegistry,
    bindings: &SymbolBindings,
    given: &[Vec<Arc<Tensor>>],
    repeats: u64,
) -> Vec<Vec<Vec<Tensor>>> {
    let mut state = given.to_vec();
    let mut expected = Vec::new();
    for run in 0..repeats {
        let fresh = inputs(graph, bindings, 7 + run);
        for (old, new) in state.iter_mut().zip(fresh) {
            for ((input, old), new) in graph.inputs.values().zip(old).zip(new) {
                if input.kind == InputKind::Argument {
                    *old = new;
                }
            }
        }
        let out =
            interp::run_with_registry(graph, bindings, &state, registry).expect("the interpreter runs it");
        for (rank, out) in out.iter().enumerate() {
            for (o, tensor) in graph.outputs.iter().zip(out) {
                if let OutputKind::Mutates(i) = o.kind {
                    state[rank][i.index()] = Arc::new(tensor.clone());
                }
            }
        }
        expected.push(out);
    }
    expected
}

/// Runs all ranks as threads once with these inputs. Returns the outputs or the error of each rank. Ranks are
/// delayed at random by the seed `chaos`.
pub fn run_with_inputs(
    planned: &PlannedProgram,
    inputs: &[Vec<Arc<Tensor>>],
    chaos: u64,
) -> Vec<Result<Vec<Tensor>, RunError>> {
    let graph = &planned.graph;
    let ranks = graph.ranks.expect("closed");
    let bindings = &SymbolBindings::new();
    let domain =
        SharedRunMemory::create(ranks, graph.groups.len().max(1), planned.plan.arenas.symmetric as usize, 0);
    let domain = domain.expect("shared memory");
    let run_rank = |rank: u32| {
        let comm = RankCommunicator::new(domain.clone(), rank, Duration::from_secs(20));
        let comm = comm.with_chaos(Some(chaos));
        let mut own = RankBuffers::new(planned, bindings, &inputs[rank as usize]);
        let symmetric = ByteSpan { ptr: comm.arena().as_ptr(), len: comm.arena().len() };
        let memory = RankMemory { symmetric, ..own.memory() };
        let config = ExecConfig::default();
        run_once_on_rank(
            &planned.plan,
            rank,
            (&CustomKernelRegistry::new(), config),
            bindings,
            &memory,
            &comm,
        )
        .inspect_err(|error| Communicator::abort(&comm, error))
        .map(|_| own.outputs(graph, bindings))
    };
    let run_rank = &run_rank;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || run_rank(rank))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank")).collect()
    })
}

/// Loads and runs a plan once on this rank.
fn run_once_on_rank(
    plan: &Plan,
    rank: u32,
    (registry, config): (&CustomKernelRegistry, ExecConfig),
    bindings: &SymbolBindings,
    memory: &RankMemory,
    comm: &dyn Communicator,
) -> Result<RunReport, RunError> {
    let parsed = ParsedPlan::parse(Arc::new(plan.clone())).map_err(unread_plan_error)?;
    let mut executor = Executor::new(&parsed, rank, registry, config)?;
    let bound = executor.resolve_bindings(bindings)?;
    // SAFETY: the spans are blocks that the caller holds; all ranks run the same checked plan.
    unsafe {
        bound.load_fixed_inputs(memory)?;
        bound.run(memory, comm, &config, &mut Default::default())
    }
}
