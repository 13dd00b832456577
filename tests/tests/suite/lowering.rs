//! Ranks lower in the same way what they do together, wherever each of them has its arenas: for every program of this
//! repository and for random ones.

use std::sync::Arc;

use symmc::unstable::cuda::codegen::addresses::AddressMap;
use symmc::unstable::cuda::codegen::command::GpuCommand;
use symmc::unstable::cuda::codegen::compute::AlgorithmSelection;
use symmc::unstable::cuda::codegen::lowered::LoweredProgram;
use symmc::{
    ArgumentBinding, CheckedPlan, CompileConfig, CustomKernelRegistry, MachineProfile, OpenOptions, Program,
};
use symmc_cases::programs::{self, VariantMode};
use symmc_ir::text;
use symmc_runtime::exec::{self, ResolvedProgram};
use symmc_runtime::session::SessionLayout;
use symmc_support::random::SplitMix;
use symmc_tests::{GRAPH_PROGRAMS, RUNNABLE_PROGRAMS, files, root};

/// The largest and the smallest sizes of a bucket, as a rank has them.
fn bounds(plan: &CheckedPlan, rank: u32) -> Vec<Arc<ResolvedProgram>> {
    let programs_of_bucket = |(index, bucket): (usize, &symmc_plan::Bucket)| {
        let program =
            exec::PreparedBucket::new(plan, index, rank, &CustomKernelRegistry::new()).expect("a program");
        [0, 1].map(|end| {
            let sizes = bucket.symbols.iter().map(|(symbol, range)| (symbol.clone(), range[end]));
            Arc::new(program.resolve_bindings(&sizes.collect()).expect("sizes of the bucket"))
        })
    };
    plan.buckets.iter().enumerate().flat_map(programs_of_bucket).collect()
}

/// The program with the arenas of a rank somewhere.
fn lower_program(bound: &Arc<ResolvedProgram>, ranks: u32, seed: u64) -> Option<LoweredProgram> {
    let mut random = SplitMix(seed);
    let mut address = |first: u64| first + 256 * random.below(1 << 20) as u64;
    let addresses = AddressMap::new(bound, address(1 << 40), address(1 << 41)).expect("few inputs");
    LoweredProgram::without_device(bound, ranks, &addresses, AlgorithmSelection::Heuristic).ok()
}

/// What ranks do together is the same on all of them, wherever a rank has its own memory.
fn check_agreement(name: &str, plan: &CheckedPlan, seed: u64) -> usize {
    let alike = |rank: u32| -> Vec<Option<Vec<u8>>> {
        let alike = |bound: Arc<ResolvedProgram>| {
            Some(lower_program(&bound, plan.ranks, seed + u64::from(rank))?.launch_digests(&bound.steps))
        };
        bounds(plan, rank).into_iter().map(alike).collect()
    };
    let first = alike(0);
    for rank in 1..plan.ranks {
        assert!(alike(rank) == first, "{name}: rank {rank} runs a collective otherwise than rank 0");
    }
    first.iter().flatten().flatten().filter(|b| **b != 0).count()
}

/// A plan for GPUs.
fn planned(program: &Program, bind: ArgumentBinding) -> Option<CheckedPlan> {
    let ranks = program.graph.ranks.unwrap_or(1);
    let config = CompileConfig::default()
        .with_profile(MachineProfile::builtin(MachineProfile::nearest_builtin(ranks))?)
        .with_bind(bind);
    symmc::compile(program, &config).ok()
}

/// The recorded programs and the graphs, with the number of their ranks.
fn recorded_programs() -> Vec<(String, u32)> {
    let recorded =
        RUNNABLE_PROGRAMS.iter().chain(&GRAPH_PROGRAMS).map(|&(stem, ranks)| (stem.to_string(), ranks));
    let folder = std::fs::read_dir(root().join("tests/programs/families")).expect("the families");
    let stem = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.ok()?.path();
        let stem = path.file_stem()?.to_str()?.to_string();
        let ranks = if stem.ends_with("_tp2") { 2 } else { 1 };
        (path.extension()? == "pt2").then(|| (format!("families/{stem}"), ranks))
    };
    recorded.chain(folder.filter_map(stem)).collect()
}

#[test]
fn ranks_run_the_collectives_of_recorded_programs_alike() {
    let mut compared = 0;
    for (number, (stem, ranks)) in recorded_programs().iter().enumerate() {
        let options = OpenOptions::default().with_ranks(*ranks);
        let program = Program::open_files(&files(stem, *ranks), &options).expect("a valid program");
        for bind in [ArgumentBinding::None, ArgumentBinding::All] {
            let plan = planned(&program, bind).unwrap_or_else(|| panic!("{stem}: no plan"));
            compared += check_agreement(stem, &plan, number as u64);
        }
    }
    assert!(compared > 1000, "{compared} bytes say what ranks do together");
}

#[test]
fn ranks_run_the_collectives_of_random_programs_alike() {
    let mut compared = 0;
    for seed in 0..150 {
        let graph = programs::program(seed, 4 + seed as usize % 20, VariantMode::Drawn);
        let program = Program::from_text(&text::print(&graph)).expect("a program");
        for bind in [ArgumentBinding::None, ArgumentBinding::All] {
            let Some(plan) = planned(&program, bind) else { continue };
            compared += check_agreement(&format!("seed {seed}"), &plan, seed);
        }
    }
    assert!(compared > 100, "{compared} bytes say what ranks do together");
}

/// A program that takes turns with others is lowered as it is alone, after a kernel in which all ranks meet.
#[test]
fn programs_that_take_turns_are_lowered_after_a_barrier() {
    let (mut plans, mut compared) = (0, 0);
    for seed in 0..60 {
        let graph = programs::program(seed, 4 + seed as usize % 20, VariantMode::Drawn);
        let program = Program::from_text(&text::print(&graph)).expect("a program");
        let Some(plan) = planned(&program, ArgumentBinding::All).filter(|plan| plan.ranks > 1) else {
            continue;
        };
        let mut arrangement = SessionLayout::new(&plan, None);
        let number = arrangement.add_program(&plan, None).expect("there is no limit");
        let placement = arrangement.program_placement(number);
        let lowered = |bound: &Arc<ResolvedProgram>, rank: u32| {
            lower_program(bound, plan.ranks, seed + u64::from(rank))
        };
        let alike = |rank: u32| -> Vec<Option<Vec<u8>>> {
            let lower = |bound: Arc<ResolvedProgram>| {
                let separate = lowered(&bound, rank)?;
                let placed = Arc::new(bound.with_placement(&placement));
                let shared = lowered(&placed, rank).unwrap_or_else(|| panic!("seed {seed}: not lowered"));
                let [first, rest @ ..] = shared.work() else { panic!("seed {seed}: no steps") };
                assert!(matches!(first[..], [GpuCommand::Kernel(_)]), "seed {seed}: {first:?}");
                let kinds = |work: &[Vec<GpuCommand>]| -> Vec<Vec<std::mem::Discriminant<GpuCommand>>> {
                    work.iter().map(|all| all.iter().map(std::mem::discriminant).collect()).collect()
                };
                assert_eq!(kinds(rest), kinds(separate.work()), "seed {seed}");
                Some(shared.launch_digests(&placed.steps))
            };
            bounds(&plan, rank).into_iter().map(lower).collect()
        };
        let first = alike(0);
        assert!((1..plan.ranks).all(|rank| alike(rank) == first), "seed {seed}: ranks differ");
        compared += first.iter().flatten().count();
        plans += 1;
    }
    assert!(plans > 30 && compared > 30, "{plans} plans, {compared} programs");
}
