//! Trials of programs that index dynamic axes ([`symmc_cases::bounds`]), against the reference interpreter of the source.
//!
//! Each trial compiles a program, with random buckets, and runs it at sizes on both sides of its bounds. Where the
//! interpreter runs it, host ranks must give the same, and so must the kernels of GPUs, compiled for the host, for a
//! program of one rank. Where the interpreter finds a position outside of its axis, binding the sizes must end with the
//! input error that says so, before anything runs. Whether sizes bind is asked at all sizes; some of them are run.
//!
//! The suite `bounds` runs some in each test run; `cargo run --release -p symmc-tests --example check_bounds -- COUNT` runs as
//! many as wanted.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use symmc::unstable::cuda::codegen::command::GpuCommand;
use symmc::unstable::cuda::codegen::compute::{
    AlgorithmSelection, BoundOperation, GEMM_WORKSPACE, InputUse, KernelLowering, KernelTarget, STATUS_BYTES,
    lower, workspace,
};
use symmc::unstable::cuda::device::launch::{DevicePtr, PortBases};
use symmc::{BucketSpec, CheckedPlan, CompileConfig, MachineProfile, Program};
use symmc_cases::{KernelLibrary, bounds};
use symmc_control::{Group, RankConfig};
use symmc_ir::{Graph, SymbolBindings, Tensor, interp, text};
use symmc_runtime::exec::{ExecConfig, Executor, LocatedTensor, MemorySpace, ResolvedProgram, StepWork};
use symmc_runtime::host::HostSession;
use symmc_runtime::session::{DeviceRange, DeviceSession, Port};
use symmc_runtime::{CustomKernelRegistry, RunError};
use symmc_support::random::SplitMix;

/// No rank of a trial waits longer.
const WAIT_TIMEOUT: Duration = Duration::from_secs(30);
/// Sizes of a program that run, and others that are refused.
const SIZE_COUNTS: [usize; 2] = [4, 2];
/// Programs whose kernels are compiled together.
const PROGRAMS_PER_MODULE: usize = 100;

/// What trials did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TrialCounts {
    /// Sizes at which host ranks gave what the interpreter gives.
    pub ran: usize,
    /// Sizes at which all ranks ended with the input error.
    pub refused: usize,
    /// All sizes at which binding was compared with the interpreter.
    pub bound: usize,
    /// Runs of emulated kernels that gave what the interpreter gives.
    pub emulated: usize,
}

/// Runs the trials of these seeds; reports each that fails. Where there is no C++ compiler, no kernels are emulated.
pub fn trials(seeds: impl Iterator<Item = u64>, mut fail: impl FnMut(String)) -> TrialCounts {
    let mut counts = TrialCounts::default();
    let mut waiting: Vec<EmulatedRun> = Vec::new();
    for seed in seeds {
        let graph = bounds::program(seed);
        match trial(&graph, seed, &mut counts) {
            Ok(emulated) => waiting.extend(emulated),
            Err(error) => fail(format!("seed {seed}: {error}\n{}", text::print(&graph))),
        }
        if waiting.len() >= PROGRAMS_PER_MODULE {
            counts.emulated += emulate(&std::mem::take(&mut waiting), &mut fail);
        }
    }
    counts.emulated += emulate(&waiting, &mut fail);
    counts
}

/// The sizes of a run, and what it gives on each rank; `None` where a position is outside of its axis.
struct SizedRun {
    bindings: SymbolBindings,
    inputs: Vec<Vec<Arc<Tensor>>>,
    outputs: Option<Vec<Vec<Tensor>>>,
}

fn trial(graph: &Graph, seed: u64, all: &mut TrialCounts) -> Result<Option<EmulatedRun>, String> {
    let mut r = SplitMix(seed ^ 0x7e57);
    let program = Program::from_graph(graph.clone()).map_err(|e| format!("no program: {e}"))?;
    let divided = graph.symbols.values().filter(|_| r.one_in(3));
    let buckets: Vec<BucketSpec> = divided.map(|s| BucketSpec::new(&s.name, [s.min + 2, s.max])).collect();
    let profile = MachineProfile::builtin("host").ok_or("no such machine")?;
    let config = CompileConfig::default().with_profile(profile).with_buckets(buckets);
    let plan = symmc::compile(&program, &config).map_err(|e| format!("compile: {e}"))?;
    let ranks = plan.ranks;
    let runs = choose_runs(graph, &plan, &mut r, all)?;
    let ranks = thread::scope(|scope| {
        let spawn_rank = |group: Group| {
            let (plan, runs) = (&plan, &runs);
            scope.spawn(move || on_rank(plan, runs, &group))
        };
        let ranks: Vec<_> = Group::threads(ranks).into_iter().map(spawn_rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap_or_else(|_| Err("a rank panicked".into()))).collect()
    });
    let ended: Result<Vec<()>, String> = ranks;
    ended?;
    all.refused += runs.iter().filter(|run| run.outputs.is_none()).count();
    all.ran += runs.iter().filter(|run| run.outputs.is_some()).count();
    Ok(if plan.ranks == 1 { EmulatedRun::of(&plan, runs, seed)? } else { None })
}

/// Compares at all sizes whether they bind, and chooses those to run.
fn choose_runs(
    graph: &Graph,
    plan: &CheckedPlan,
    r: &mut SplitMix,
    all: &mut TrialCounts,
) -> Result<Vec<SizedRun>, String> {
    let executor = Executor::new(plan, 0, &CustomKernelRegistry::new(), ExecConfig::default());
    let mut executor = executor.map_err(|e| e.to_string())?;
    let (mut sizes, mut left) = (bounds::sizes(graph), SIZE_COUNTS);
    let mut runs = Vec::new();
    while !sizes.is_empty() {
        let bindings = sizes.swap_remove(r.below(sizes.len()));
        let inputs: Vec<_> = (0..plan.ranks).map(|rank| bounds::inputs(graph, &bindings, rank)).collect();
        let outputs = interp::run(graph, &bindings, &inputs);
        let bound = executor.resolve_bindings(&bindings);
        all.bound += 1;
        let budget = match (&outputs, &bound) {
            (Ok(_), Ok(_)) => &mut left[0],
            (Err(_), Err(RunError::Bounds { .. })) => &mut left[1],
            (Err(error), Ok(_)) => return Err(format!("{bindings:?}: it binds, the interpreter: {error}")),
            (_, Err(error)) => return Err(format!("{bindings:?}: {error}, the interpreter: {outputs:?}")),
        };
        if *budget > 0 {
            *budget -= 1;
            runs.push(SizedRun { bindings, inputs, outputs: outputs.ok() });
        }
    }
    Ok(runs)
}

/// Runs all sizes in one session of host ranks.
fn on_rank(plan: &CheckedPlan, runs: &[SizedRun], group: &Group) -> Result<(), String> {
    let config = RankConfig { limit: WAIT_TIMEOUT, ..RankConfig::default() };
    let session = HostSession::open(plan, group, &CustomKernelRegistry::new(), &config, vec![]);
    let mut session = session.map_err(|e| e.to_string())?;
    // Memory that is lent lives until the session ends.
    let mut memory: Vec<AlignedMemory> = Vec::new();
    for run in runs {
        let rank = group.rank() as usize;
        let fail = |what: String| format!("{:?}, rank {rank}: {what}", run.bindings);
        let Some(expected) = &run.outputs else {
            match session.set_sizes(&run.bindings) {
                Err(RunError::Bounds { .. }) => continue,
                found => return Err(fail(format!("expected an index outside of its axis, found {found:?}"))),
            }
        };
        session.set_sizes(&run.bindings).map_err(|e| fail(e.to_string()))?;
        let outputs =
            run_once(&mut session, plan, run, rank, &mut memory).map_err(|e| fail(e.to_string()))?;
        for (k, (actual, expected)) in outputs.iter().zip(&expected[rank]).enumerate() {
            same(actual, expected).map_err(|e| fail(format!("output {k}: {e}")))?;
        }
    }
    Ok(())
}

/// One run at the sizes that are set; the bytes of its outputs.
fn run_once(
    session: &mut HostSession,
    plan: &CheckedPlan,
    run: &SizedRun,
    rank: usize,
    lent: &mut Vec<AlignedMemory>,
) -> Result<Vec<Vec<u8>>, RunError> {
    for (i, (input, tensor)) in plan.source_program().inputs.values().zip(&run.inputs[rank]).enumerate() {
        if input.data.is_none() {
            let memory = AlignedMemory::of(tensor.data());
            // SAFETY: the memory lives as long as the session, and is used between runs only.
            unsafe { session.bind_port(Port::Input(i), Some(memory.extent())) }?;
            lent.push(memory);
        }
    }
    let sizes: Vec<usize> = session.resolved_program()?.outputs.iter().map(|output| output.bytes).collect();
    let from = lent.len();
    for (k, bytes) in sizes.into_iter().enumerate() {
        let memory = AlignedMemory::of(&vec![0xa5; bytes]);
        // SAFETY: as above.
        unsafe { session.bind_port(Port::Output(k), Some(memory.extent())) }?;
        lent.push(memory);
    }
    session.run()?;
    Ok(lent[from..].iter().map(|memory| memory.bytes().to_vec()).collect())
}

fn same(found: &[u8], expected: &Tensor) -> Result<(), String> {
    if found == expected.data() {
        return Ok(());
    }
    let shown = Tensor::new(expected.dtype(), expected.shape(), found.to_vec()).map(|t| t.to_f64());
    Err(format!("found {shown:?}, expected {:?}", expected.to_f64()))
}

/// Bytes at a multiple of 256, as of a device's allocation.
struct AlignedMemory {
    words: Vec<u128>,
    len: usize,
}

impl AlignedMemory {
    fn of(bytes: &[u8]) -> AlignedMemory {
        let memory = AlignedMemory { words: vec![0; bytes.len().div_ceil(16) + 16], len: bytes.len() };
        // SAFETY: the words hold as many bytes from the address on, and nothing else uses them.
        unsafe { memory.pointer().copy_from(bytes.as_ptr(), bytes.len()) };
        memory
    }

    fn address(&self) -> u64 {
        (self.words.as_ptr().expose_provenance() as u64).next_multiple_of(256)
    }

    fn pointer(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.address() as usize)
    }

    fn extent(&self) -> DeviceRange {
        DeviceRange { address: self.address(), bytes: self.len }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: as above; kernels that write there have ended.
        unsafe { std::slice::from_raw_parts(self.pointer(), self.len) }
    }
}

/// A program of one rank at one size, for the kernels of GPUs.
struct EmulatedRun {
    seed: u64,
    bound: Arc<ResolvedProgram>,
    expected: Vec<Tensor>,
    spaces: HashMap<MemorySpace, AlignedMemory>,
}

impl EmulatedRun {
    /// The last size that runs, if there is one.
    fn of(plan: &CheckedPlan, runs: Vec<SizedRun>, seed: u64) -> Result<Option<EmulatedRun>, String> {
        let Some(run) = runs.into_iter().rfind(|run| run.outputs.is_some()) else { return Ok(None) };
        let mut executor = Executor::new(plan, 0, &CustomKernelRegistry::new(), ExecConfig::default())
            .map_err(|e| e.to_string())?;
        let bound = executor.resolve_bindings(&run.bindings).map_err(|e| e.to_string())?;
        let zeros = |len: usize| AlignedMemory::of(&vec![0; len]);
        let mut spaces = HashMap::new();
        spaces.insert(MemorySpace::Ordinary, zeros(bound.ordinary_bytes));
        spaces.insert(MemorySpace::Symmetric, zeros(bound.symmetric_bytes));
        for (i, tensor) in run.inputs.iter().flatten().enumerate() {
            spaces.insert(MemorySpace::Input(i), AlignedMemory::of(tensor.data()));
        }
        for (k, output) in bound.outputs.iter().enumerate() {
            spaces.insert(MemorySpace::Output(k), zeros(output.bytes));
        }
        let expected = run.outputs.into_iter().flatten().flatten().collect();
        Ok(Some(EmulatedRun { seed, bound, expected, spaces }))
    }

    fn address(&self, at: &LocatedTensor) -> u64 {
        self.spaces.get(&at.space).map_or(0, |memory| memory.address() + at.offset as u64)
    }

    fn operations(&self) -> Vec<BoundOperation<'_>> {
        let mut out = Vec::new();
        for step in &self.bound.steps {
            for work in step.work.node_work() {
                if let StepWork::Kernel { op, operands, results } = work {
                    out.push(BoundOperation { index: step.index, op, operands, results });
                }
            }
        }
        out
    }
}

/// Runs programs by the kernels that GPUs would run; how many gave what the interpreter gives.
fn emulate(programs: &[EmulatedRun], fail: &mut impl FnMut(String)) -> usize {
    let operations: Vec<Vec<BoundOperation<'_>>> = programs.iter().map(EmulatedRun::operations).collect();
    let Some(first) = programs.first() else { return 0 };
    let status = AlignedMemory::of(&[0; STATUS_BYTES]);
    let machine = KernelTarget {
        multiprocessors: 4,
        bandwidth: 4917,
        status: status.address(),
        workspace: 0,
        workspace_bytes: 0,
        shared: 225 << 10,
        wgmma: true,
        inputs: InputUse::Read,
        attention: AlgorithmSelection::Heuristic,
    };
    let needed = |of: &BoundOperation<'_>| workspace(of.op, of.operands, of.results, &machine);
    let room = operations.iter().flatten().map(needed).max().unwrap_or(0).max(GEMM_WORKSPACE);
    let scratch = AlignedMemory::of(&vec![0; room]);
    let machine = KernelTarget { workspace: scratch.address(), workspace_bytes: room, ..machine };
    let current = Cell::new(first);
    let address_of = |located: &LocatedTensor| DevicePtr::from(current.get().address(located));
    let mut lowering = KernelLowering::new(&address_of, &machine);
    let mut works = Vec::with_capacity(programs.len());
    for (program, operations) in programs.iter().zip(&operations) {
        current.set(program);
        let lowered: Result<Vec<Vec<GpuCommand>>, _> =
            operations.iter().map(|operation| lower(operation, &mut lowering)).collect();
        works.push(lowered);
    }
    let name = format!("bounds-{}", first.seed);
    let source = &lowering.source;
    let Some(library) = KernelLibrary::build(&name, &source.text(), source.names()) else { return 0 };
    let mut right = 0;
    for (program, works) in programs.iter().zip(works) {
        let ran = works.map_err(|e| e.to_string()).and_then(|works| {
            works.iter().flatten().try_for_each(|work| run_command(&library, work))?;
            for (k, expected) in program.expected.iter().enumerate() {
                let memory = program.spaces.get(&MemorySpace::Output(k)).ok_or("no memory of an output")?;
                same(memory.bytes(), expected).map_err(|e| format!("output {k}: {e}"))?;
            }
            match status.bytes().iter().all(|&b| b == 0) {
                true => Ok(()),
                false => Err("a kernel found an index outside of its axis".to_string()),
            }
        });
        match ran {
            Ok(()) => right += 1,
            Err(error) => fail(format!("seed {}, emulated kernels: {error}", program.seed)),
        }
    }
    right
}

fn run_command(library: &KernelLibrary, work: &GpuCommand) -> Result<(), String> {
    let pointer =
        |at: &DevicePtr| std::ptr::with_exposed_provenance_mut::<u8>(at.resolve(PortBases::NONE) as usize);
    match work {
        GpuCommand::Kernel(kernel) => {
            let params: Vec<*const u64> = kernel.params.iter().map(|p| p.as_ptr()).collect();
            let shape = [kernel.grid[0], kernel.block[0], kernel.cluster];
            // SAFETY: lowering gave the kernel addresses within the memory of its program, which lives.
            unsafe { library.run(&kernel.entry, &params, shape) };
        }
        // SAFETY: as above.
        GpuCommand::Copy { to, from, bytes } => unsafe { pointer(to).copy_from(pointer(from), *bytes) },
        // SAFETY: as above.
        GpuCommand::Zero { at, bytes } => unsafe { pointer(at).write_bytes(0, *bytes) },
        other => return Err(format!("no means to emulate {other:?}")),
    }
    Ok(())
}
