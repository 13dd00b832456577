//! Trials of random programs: planned, checked and run on host ranks, against the reference interpreter.
//!
//! A seed names a trial: its program ([`symmc_cases::programs`]), the machine profile, the variants that may be chosen
//! or are given, the limit of the symmetric arena, bound arguments, buckets, the order of steps, the numerics
//! classes, and a few runs of one session, each with symbols and arguments of its own. Ranks are threads, calm or delayed
//! at random, or processes. Outputs are held to the tolerance that their history and the classes give, and no plan may differ
//! from its source.
//!
//! The suite `trials` runs some in each test run; `cargo run --release -p symmc-tests --example check_trials -- COUNT`
//! runs as many as wanted.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use symmc::{
    ArgumentBinding, BucketSpec, CheckedPlan, CompileConfig, ErrorKind, MachineProfile, Numerics,
    NumericsClass, OrderStrategy, Program, SourceStatus,
};
use symmc_cases::programs::{self, VariantMode};
use symmc_control::{Group, RankCommand, RankConfig};
use symmc_ir::entity::Entity;
use symmc_ir::interp::{self, RoundingHistory, RunCount, SeedConfig, SeedScope, Tolerance};
use symmc_ir::machine::DispatchCapabilities;
use symmc_ir::{
    CollectiveVariant, Graph, InputId, InputKind, OutputKind, SymbolBindings, SymbolId, Tensor, text,
};
use symmc_plan::Plan;
use symmc_planner::{BucketInput, PlanConfig, PlanError, Planner};
use symmc_runtime::CustomKernelRegistry;
use symmc_runtime::host::HostSession;
use symmc_runtime::job::{Job, launch_job};
use symmc_runtime::session::{DeviceRange, DeviceSession, MemoryUsage, Port};
use symmc_support::random::SplitMix;

/// No rank of a trial waits longer.
const LIMIT: Duration = Duration::from_secs(30);

/// What a trial did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TrialOutcome {
    /// Runs that were compared, on all ranks.
    pub runs: usize,
    /// Collectives of the program.
    pub collectives: usize,
    /// Values that lie at their rank's piece of a gathered one.
    pub by_rank: usize,
    /// Ranks.
    pub ranks: usize,
}

/// One trial. `processes` is the command of a rank, for ranks that are processes.
///
/// # Errors
/// What went wrong, with all that is needed to see it again.
pub fn trial(seed: u64, nodes: usize, processes: Option<&RankCommand>) -> Result<TrialOutcome, String> {
    let mut r = SplitMix(seed ^ 0x007a_1a15);
    let drawn = r.one_in(3);
    let graph = programs::program(seed, nodes, if drawn { VariantMode::Drawn } else { VariantMode::Open });
    let mut story = format!("seed {seed}, {nodes} nodes");
    let tried = AssertUnwindSafe(|| {
        let plan = if drawn {
            plan_named_variants(&graph, &mut r, &mut story)
        } else {
            plan_by_passes(&graph, &mut r, &mut story)
        }?;
        run(&graph, &plan, &mut r, &mut story, processes)
    });
    let result = catch_unwind(tried).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        Err(format!("panicked: {}", text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message")))
    });
    result.map_err(|error| format!("{story}: {error}\n{}", text::print(&graph)))
}

/// One trial of several programs that take turns in one session.
///
/// # Errors
/// As [`trial`].
pub fn shared_trial(seed: u64, nodes: usize) -> Result<TrialOutcome, String> {
    let mut r = SplitMix(seed ^ 0x5a4e_d0ff);
    let mut story = format!("shared seed {seed}, {nodes} nodes");
    let tried = AssertUnwindSafe(|| {
        let cases = shared_cases((seed, nodes), &mut r, &mut story)?;
        let mut order: Vec<usize> =
            cases.iter().enumerate().flat_map(|(p, case)| vec![p; case.turns.len()]).collect();
        (1..order.len()).rev().for_each(|k| order.swap(k, r.below(k + 1)));
        // The session is opened with the first.
        let first = order.iter().position(|&program| program == 0).unwrap_or(0);
        order.swap(0, first);
        let chaos = r.one_in(2).then(|| r.next());
        story += &format!(", order {order:?}, chaos {chaos:?}");
        let config = RankConfig { limit: LIMIT, chaos, extendable: true, ..RankConfig::default() };
        on_threads(cases[0].plan.ranks, |group| shared_rank(&cases, &order, group, &config))?;
        let collectives =
            |case: &TrialCase| case.graph.nodes.values().filter(|n| n.op.as_collective().is_some()).count();
        Ok(TrialOutcome {
            runs: order.len(),
            collectives: cases.iter().map(collectives).sum(),
            ranks: cases[0].plan.ranks as usize,
            by_rank: 0,
        })
    });
    let result = catch_unwind(tried).unwrap_or_else(|_| Err("panicked".into()));
    result.map_err(|error: String| format!("{story}: {error}"))
}

/// A planned program, and its runs.
struct TrialCase {
    graph: Graph,
    plan: CheckedPlan,
    histories: Vec<RoundingHistory>,
    turns: Vec<SessionTurn>,
}

/// Two or three programs of as many ranks.
fn shared_cases(
    (seed, nodes): (u64, usize),
    r: &mut SplitMix,
    story: &mut String,
) -> Result<Vec<TrialCase>, String> {
    let mut cases: Vec<TrialCase> = Vec::new();
    let count = 2 + r.below(2);
    for seed in seed.. {
        let drawn = r.one_in(2);
        let graph =
            programs::program(seed, nodes, if drawn { VariantMode::Drawn } else { VariantMode::Open });
        if cases.first().is_some_and(|first| Some(first.plan.ranks) != graph.ranks) {
            continue;
        }
        *story += &format!("\nprogram {}: seed {seed}", cases.len());
        let plan =
            if drawn { plan_named_variants(&graph, r, story) } else { plan_by_passes(&graph, r, story) }?;
        let (histories, turns) = (histories(&graph, &plan)?, session(&graph, r)?);
        cases.push(TrialCase { graph, plan, histories, turns });
        if cases.len() == count {
            break;
        }
    }
    Ok(cases)
}

/// The runs of a rank. Each program is opened when it runs first, and closed after its last run.
fn shared_rank(
    cases: &[TrialCase],
    order: &[usize],
    group: &Group,
    config: &RankConfig,
) -> Result<(), String> {
    let kernels = CustomKernelRegistry::new();
    let opened = HostSession::open(&cases[0].plan, group, &kernels, config, vec![]);
    let mut session = opened.map_err(|e| e.to_string())?;
    let mut programs: Vec<Option<(usize, usize, LentMemory)>> = cases.iter().map(|_| None).collect();
    programs[0] = Some((0, 0, LentMemory::default()));
    for &case in order {
        let TrialCase { graph, plan, histories, turns } = &cases[case];
        if programs[case].is_none() {
            let number = session.open_program(plan, &kernels).map_err(|e| format!("program {case}: {e}"))?;
            programs[case] = Some((number, 0, LentMemory::default()));
        }
        let Some((number, k, memory)) = &mut programs[case] else { continue };
        session.switch_to_program(*number).map_err(|e| e.to_string())?;
        let turn = (*k, &turns[*k]);
        one_turn(&mut session, (graph, histories), turn, group.rank() as usize, memory)
            .map_err(|e| format!("program {case}, {e}"))?;
        *k += 1;
        if *k == turns.len() {
            session.close_program(*number).map_err(|e| e.to_string())?;
        }
    }
    drop(session);
    drop(programs);
    Ok(())
}

/// The trial of a seed with the fewest nodes that fails, if that of this number does.
pub fn least(seed: u64, nodes: usize, processes: Option<&RankCommand>) -> Option<String> {
    (0..=nodes).find_map(|n| trial(seed, n, processes).err())
}

/// The plan of a program whose collectives name their variants.
fn plan_named_variants(graph: &Graph, r: &mut SplitMix, story: &mut String) -> Result<CheckedPlan, String> {
    let ranges = ranges(graph, r);
    let narrow = |range: &Vec<(SymbolId, i64, i64)>| {
        let mut graph = graph.clone();
        for &(id, min, max) in range {
            (graph.symbols[id].min, graph.symbols[id].max) = (min, max);
        }
        BucketInput { graph, decisions: Vec::new() }
    };
    let buckets: Vec<BucketInput> = ranges.iter().map(narrow).collect();
    let bind = graph.inputs.keys().filter(|_| r.one_in(3)).collect();
    let profile = r.one_in(2).then(|| MachineProfile::builtin("h200x2")).flatten().map(capable);
    let config = PlanConfig { bind, order: order(r), profile, ..PlanConfig::default() };
    *story +=
        &format!(", variants given, {} buckets, {:?}, bound {:?}", buckets.len(), config.order, config.bind);
    let keeps_barriers = r.one_in(4);
    let plan = planned(graph, &buckets, &config, keeps_barriers.then_some(r), story);
    let plan = plan.map_err(|e| e.to_string())?;
    CheckedPlan::new(plan).map_err(|e| format!("does not check: {e:?}"))
}

/// The plan of lowered programs; if `tight` is given, with exit barriers kept for a smaller symmetric arena.
fn planned(
    graph: &Graph,
    buckets: &[BucketInput],
    config: &PlanConfig,
    tight: Option<&mut SplitMix>,
    story: &mut String,
) -> Result<Plan, PlanError> {
    let planner = Planner::new(graph, buckets, config)?;
    let plan = planner.plan()?;
    let Some(r) = tight else { return Ok(plan) };
    let limit = tighter(plan.arenas.symmetric, r);
    *story += &format!(", barriers kept for {limit} bytes");
    let mut schedules = planner.schedule(config.order, planner.next_runs()[0])?;
    while schedules.symmetric_bound()? > limit && schedules.keep_barriers()? {}
    schedules.plan()
}

/// The plan of a program by all passes.
fn plan_by_passes(graph: &Graph, r: &mut SplitMix, story: &mut String) -> Result<CheckedPlan, String> {
    let program = Program::from_graph(graph.clone()).map_err(|e| format!("no program: {e}"))?;
    let machine = r.pick(&MachineProfile::builtin_names());
    let mut profile = MachineProfile::builtin(machine).ok_or("no such machine")?;
    if r.one_in(2) {
        profile = capable(profile);
        story.push_str(", with dispatches");
    }
    let variants: Vec<CollectiveVariant> =
        CollectiveVariant::ALL.iter().copied().filter(|_| r.one_in(2)).collect();
    let arguments = graph.inputs.values().filter(|i| i.kind == InputKind::Argument);
    let names: Vec<String> = arguments.map(|i| graph.value_name(i.value).to_string()).collect();
    let bind = match r.below(3) {
        0 => ArgumentBinding::All,
        1 => ArgumentBinding::Named(names.into_iter().filter(|_| r.one_in(2)).collect()),
        _ => ArgumentBinding::None,
    };
    let config = CompileConfig::default().with_profile(profile).with_buckets(specs(graph, r)).with_bind(bind);
    let classes: Numerics = NumericsClass::ALL.iter().copied().filter(|_| r.one_in(2)).collect();
    let config = config.with_numerics(if r.one_in(2) { classes } else { Numerics::EXACT });
    let mut config = config.with_variants(r.one_in(2).then_some(variants)).with_order(order(r));
    *story += &format!(
        ", {machine}, {}, variants {:?}, {:?}, {:?}, {:?}",
        config.numerics, config.variants, config.bind, config.buckets, config.order
    );
    let outcome = match symmc::compile(&program, &config) {
        // What GPUs cannot run is told when a plan is made for them; host ranks run all.
        Err(e) if e.kind() == ErrorKind::Unsupported => {
            story.push_str(", but for the host");
            config.profile = MachineProfile::builtin("host").ok_or("no such machine")?;
            symmc::compile(&program, &config)
        }
        made => made,
    };
    let mut plan = outcome.map_err(|e| e.to_string())?;
    if r.one_in(4) {
        let limit = tighter(plan.arenas.symmetric, r);
        *story += &format!(", at most {limit} bytes");
        config.symm_limit = Some(limit);
        match symmc::compile(&program, &config) {
            Ok(tight) => plan = tight,
            // Only variants that GPUs lack may take so little.
            Err(e) if matches!(e.kind(), ErrorKind::Resources | ErrorKind::Unsupported) => {}
            Err(e) => return Err(e.to_string()),
        }
    }
    let compared = symmc::compare_with_source(&plan);
    match compared.status() {
        SourceStatus::Different => Err(format!("differs from its source: {:?}", compared.differences)),
        _ => Ok(plan),
    }
}

/// A machine that runs all dispatches.
fn capable(profile: MachineProfile) -> MachineProfile {
    MachineProfile { dispatches: DispatchCapabilities::GPU, ..profile }
}

fn tighter(bytes: u64, r: &mut SplitMix) -> u64 {
    bytes / 100 * (30 + r.below(70) as u64)
}

fn order(r: &mut SplitMix) -> OrderStrategy {
    r.pick(&[
        OrderStrategy::Chosen,
        OrderStrategy::Chosen,
        OrderStrategy::Lean,
        OrderStrategy::Program,
        OrderStrategy::List,
        OrderStrategy::Dfs,
    ])
}

/// Upper bounds that divide the range of each symbol, for some.
fn specs(graph: &Graph, r: &mut SplitMix) -> Vec<BucketSpec> {
    let divided: Vec<_> = graph.symbols.values().filter(|s| s.max > s.min && r.one_in(2)).collect();
    let spec = |s: &symmc_ir::Symbol| {
        let middle = s.min + r.below((s.max - s.min) as usize) as i64;
        BucketSpec::new(&s.name, [middle, s.max])
    };
    divided.into_iter().map(spec).collect()
}

/// The ranges of the symbols of each bucket.
fn ranges(graph: &Graph, r: &mut SplitMix) -> Vec<Vec<(SymbolId, i64, i64)>> {
    let mut ranges = vec![vec![]];
    for (id, symbol) in graph.symbols.iter() {
        let pieces = match symbol.max > symbol.min && r.one_in(2) {
            true => {
                let middle = symbol.min + r.below((symbol.max - symbol.min) as usize) as i64;
                vec![(symbol.min, middle), (middle + 1, symbol.max)]
            }
            false => vec![(symbol.min, symbol.max)],
        };
        let with = |range: &Vec<_>, &(min, max): &(i64, i64)| [range.clone(), vec![(id, min, max)]].concat();
        ranges = ranges
            .iter()
            .flat_map(|range| pieces.iter().map(|part| with(range, part)).collect::<Vec<_>>())
            .collect();
    }
    ranges
}

/// One run of a session: what all ranks get and must give.
struct SessionTurn {
    bindings: SymbolBindings,
    /// Whether its sizes are others than those of the run before.
    changed: bool,
    /// By rank.
    inputs: Vec<Vec<Arc<Tensor>>>,
    /// By rank.
    outputs: Vec<Vec<Tensor>>,
}

/// A session of a few runs, by the interpreter. Sizes and arguments change; what outputs replace is kept where its size
/// is the same.
fn session(graph: &Graph, r: &mut SplitMix) -> Result<Vec<SessionTurn>, String> {
    let ranks = graph.ranks.ok_or("the number of ranks is open")?;
    let mut turns: Vec<SessionTurn> = Vec::new();
    for run in 0..2 + r.below(4) {
        let mut bindings = SymbolBindings::new();
        for (id, s) in graph.symbols.iter() {
            let any = s.min + r.below((s.max - s.min + 1) as usize) as i64;
            bindings.set(id, r.pick(&[s.min, s.max, any]));
        }
        let last_turn = turns.last();
        if let Some(last) = last_turn.filter(|_| r.one_in(3)) {
            bindings = last.bindings.clone();
        }
        let changed = last_turn.is_none_or(|last| last.bindings != bindings);
        let draw =
            SeedConfig { seed: r.next(), arguments: SeedScope::PerRank, parameters: SeedScope::PerRank };
        let drawn = (0..ranks).map(|rank| interp::seeded_inputs(graph, &bindings, &draw, rank));
        let mut inputs = drawn.collect::<Result<Vec<_>, _>>().map_err(|e| format!("inputs: {e}"))?;
        if let Some(last) = last_turn {
            for (rank, inputs) in inputs.iter_mut().enumerate() {
                keep(graph, last, changed, rank, inputs);
            }
        }
        let outputs = interp::run(graph, &bindings, &inputs).map_err(|e| format!("interpreter: {e}"))?;
        turns.push(SessionTurn { bindings, changed: changed || run == 0, inputs, outputs });
    }
    Ok(turns)
}

/// Replaces the parameters that were drawn by those that the last run left.
fn keep(graph: &Graph, last: &SessionTurn, changed: bool, rank: usize, inputs: &mut [Arc<Tensor>]) {
    for ((id, input), value) in graph.inputs.iter().zip(inputs) {
        let varies = graph.ty(input.value).shape.iter().any(|d| d.as_const().is_none());
        if input.kind == InputKind::Parameter && !(varies && changed) {
            *value = last.inputs[rank][id.index()].clone();
            for (k, output) in graph.outputs.iter().enumerate() {
                if output.kind == OutputKind::Mutates(id) {
                    *value = Arc::new(last.outputs[rank][k].clone());
                }
            }
        }
    }
}

/// Runs a checked plan of a program on threads, at several sizes in one session.
///
/// # Errors
/// The first run that fails, or whose outputs are not those of the interpreter.
pub fn run_plan(graph: &Graph, plan: &CheckedPlan, seed: u64) -> Result<(), String> {
    run(graph, plan, &mut SplitMix(seed), &mut String::new(), None).map(|_| ())
}

/// Runs a plan and compares every run.
fn run(
    graph: &Graph,
    plan: &CheckedPlan,
    r: &mut SplitMix,
    story: &mut String,
    processes: Option<&RankCommand>,
) -> Result<TrialOutcome, String> {
    let turns = session(graph, r)?;
    let histories = histories(graph, plan)?;
    let chaos = r.one_in(4).then(|| r.next());
    *story += &format!(", {} runs, chaos {chaos:?}", turns.len());
    match processes {
        Some(command) => as_processes((graph, &histories), plan, &turns, chaos, command)?,
        None => as_threads((graph, &histories), plan, &turns, chaos)?,
    }
    let places = plan.buckets.iter().flat_map(|b| b.places.values());
    Ok(TrialOutcome {
        runs: turns.len(),
        collectives: graph.nodes.values().filter(|n| n.op.as_collective().is_some()).count(),
        by_rank: places.filter(|p| p.by_rank.is_some()).count(),
        ranks: plan.ranks as usize,
    })
}

/// The rounding history of each output, by any of the programs of the plan.
fn histories(graph: &Graph, plan: &CheckedPlan) -> Result<Vec<RoundingHistory>, String> {
    let mut histories = interp::output_histories(graph, RunCount::Several);
    for program in 0..plan.programs.len() {
        let of_program = plan.output_histories(program, RunCount::Several).map_err(|e| e.to_string())?;
        histories.iter_mut().zip(of_program).for_each(|(all, one)| *all = all.join(one));
    }
    Ok(histories)
}

/// Processes live for one binding: each run is one of its own.
fn as_processes(
    (graph, histories): (&Graph, &[RoundingHistory]),
    plan: &CheckedPlan,
    turns: &[SessionTurn],
    chaos: Option<u64>,
    command: &RankCommand,
) -> Result<(), String> {
    for (k, turn) in turns.iter().enumerate().take(2) {
        let job = Job {
            plan,
            bindings: turn.bindings.clone(),
            inputs: &turn.inputs,
            repeats: 1,
            trace: None,
            config: RankConfig { limit: LIMIT, chaos, ..RankConfig::default() },
        };
        let outputs = launch_job(&job, command, |job| job).map_err(|e| format!("run {k}: {e}"))?.outputs;
        for (rank, (actual, expected)) in outputs.iter().zip(&turn.outputs).enumerate() {
            compare((graph, histories), actual, expected)
                .map_err(|e| format!("run {k} {:?}, rank {rank}: {e}", turn.bindings))?;
        }
    }
    Ok(())
}

/// All runs in one session, with a thread for each rank.
fn as_threads(
    (graph, histories): (&Graph, &[RoundingHistory]),
    plan: &CheckedPlan,
    turns: &[SessionTurn],
    chaos: Option<u64>,
) -> Result<(), String> {
    let config = RankConfig { limit: LIMIT, chaos, ..RankConfig::default() };
    on_threads(plan.ranks, |group| one_rank((graph, histories), plan, turns, group, &config))
}

/// What a thread for each rank does; the error that tells the most.
fn on_threads(ranks: u32, rank: impl Fn(&Group) -> Result<(), String> + Sync) -> Result<(), String> {
    let failures = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for group in Group::threads(ranks) {
            let (rank, failures) = (&rank, &failures);
            scope.spawn(move || {
                if let Err(error) = rank(&group) {
                    let error = format!("rank {}, {error}", group.rank());
                    failures.lock().unwrap_or_else(PoisonError::into_inner).push(error);
                }
            });
        }
    });
    let mut failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    // What other ranks say of one that failed tells nothing.
    failures.sort_by_key(|f| f.contains("stopped: ") || f.contains("died"));
    failures.into_iter().next().map_or(Ok(()), Err)
}

fn one_rank(
    (graph, histories): (&Graph, &[RoundingHistory]),
    plan: &CheckedPlan,
    turns: &[SessionTurn],
    group: &Group,
    config: &RankConfig,
) -> Result<(), String> {
    let mut memory = LentMemory::default();
    let mut session = HostSession::open(plan, group, &CustomKernelRegistry::new(), config, vec![])
        .map_err(|e| e.to_string())?;
    let budget = HostSession::memory_budget(plan, group.rank(), &CustomKernelRegistry::new(), config)
        .map_err(|e| e.to_string())?;
    for (k, turn) in turns.iter().enumerate() {
        one_turn(&mut session, (graph, histories), (k, turn), group.rank() as usize, &mut memory)?;
        let fail = |e: &dyn std::fmt::Display| format!("run {k} {:?}: {e}", turn.bindings);
        within(budget, session.memory_usage()).map_err(|e| fail(&e))?;
    }
    drop(session);
    drop(memory);
    Ok(())
}

/// What a rank lends to a program.
#[derive(Default)]
struct LentMemory {
    inputs: Vec<AlignedBlock>,
    outputs: Vec<AlignedBlock>,
}

/// One run of a rank, the one of this number of its program.
fn one_turn(
    session: &mut HostSession,
    (graph, histories): (&Graph, &[RoundingHistory]),
    (k, turn): (usize, &SessionTurn),
    rank: usize,
    memory: &mut LentMemory,
) -> Result<(), String> {
    let LentMemory { inputs, outputs } = memory;
    let fail = |e: &dyn std::fmt::Display| format!("run {k} {:?}: {e}", turn.bindings);
    session.set_sizes(&turn.bindings).map_err(|e| fail(&e))?;
    let mut lend = |port: Port, memory: &mut AlignedBlock| {
        // SAFETY: the block lives until another is lent in its place, and is used between runs only.
        unsafe { session.bind_port(port, Some(memory.extent())) }.map_err(|e| fail(&e))
    };
    for (i, (input, tensor)) in graph.inputs.values().zip(&turn.inputs[rank]).enumerate() {
        let varies = graph.ty(input.value).concrete_shape(&SymbolBindings::new()).is_none();
        if k == 0 || input.kind == InputKind::Argument || (turn.changed && varies) {
            let mut fresh = AlignedBlock::of(tensor);
            if input.data.is_none() {
                lend(Port::Input(i), &mut fresh)?;
            }
            if i < inputs.len() { inputs[i] = fresh } else { inputs.push(fresh) }
        }
    }
    let mut fresh: Vec<AlignedBlock> =
        turn.outputs[rank].iter().map(|t| AlignedBlock::new(t.data().len())).collect();
    fresh.iter_mut().enumerate().try_for_each(|(k, block)| lend(Port::Output(k), block))?;
    *outputs = fresh;
    match k % 2 {
        0 => session.run().map_err(|e| fail(&e))?,
        _ => session.enqueue(None).and_then(|()| session.wait(LIMIT)).map_err(|e| fail(&e))?,
    }
    let tensors: Result<Vec<Tensor>, String> = turn.outputs[rank]
        .iter()
        .zip(&*outputs)
        .map(|(t, block)| Tensor::new(t.dtype(), t.shape(), block.bytes()).ok_or("no tensor".to_string()))
        .collect();
    compare((graph, histories), &tensors?, &turn.outputs[rank]).map_err(|e| fail(&e))?;
    replaced((graph, histories), turn, rank, inputs).map_err(|e| fail(&e))
}

/// What a session takes is what was told before it was opened, and no more where that depends on what is run.
fn within(told: MemoryUsage, taken: MemoryUsage) -> Result<(), String> {
    let always = |t: MemoryUsage| [t.ordinary, t.symmetric, t.flags];
    match always(told) == always(taken) && taken.scratch <= told.scratch && taken.ports <= told.ports {
        true => Ok(()),
        false => Err(format!("the session takes {taken:?}, told were {told:?}")),
    }
}

/// Inputs that outputs replace have the new value where their caller holds them.
fn replaced(
    (graph, histories): (&Graph, &[RoundingHistory]),
    turn: &SessionTurn,
    rank: usize,
    inputs: &[AlignedBlock],
) -> Result<(), String> {
    for ((output, expected), history) in graph.outputs.iter().zip(&turn.outputs[rank]).zip(histories) {
        if let OutputKind::Mutates(input) = output.kind {
            let actual = Tensor::new(expected.dtype(), expected.shape(), inputs[input.index()].bytes());
            compare_near(&actual.ok_or("no tensor")?, expected, history)
                .map_err(|e| format!("input {} after the run: {e}", InputId::new(input.index())))?;
        }
    }
    Ok(())
}

fn compare(
    (graph, histories): (&Graph, &[RoundingHistory]),
    found: &[Tensor],
    expected: &[Tensor],
) -> Result<(), String> {
    for (k, (found, expected)) in found.iter().zip(expected).enumerate() {
        let name = graph.value_name(graph.outputs[k].value);
        compare_near(found, expected, &histories[k]).map_err(|e| format!("output {k} (%{name}): {e}"))?;
    }
    Ok(())
}

/// The largest finite magnitude of a tensor, at least one.
pub fn largest(tensor: &Tensor) -> f64 {
    tensor.to_f64().into_iter().filter(|x| x.is_finite()).fold(1.0f64, |most, x| most.max(x.abs()))
}

/// The tolerance of an output whose terms are of magnitudes up to `scale`. What was never rounded is equal. All else differs by a
/// fraction of the scale: by more where something in its history has two bytes.
pub fn tolerance_of(history: &RoundingHistory, expected: &Tensor, scale: f64) -> Tolerance {
    let fraction = match history.types().map(|dtype| dtype.size()).min() {
        None => 0.0,
        Some(2) => 3e-2,
        Some(_) => 1e-4,
    };
    let default = Tolerance::for_history(history, expected);
    Tolerance { absolute: default.absolute.max(scale * fraction), ..default }
}

fn compare_near(found: &Tensor, expected: &Tensor, history: &RoundingHistory) -> Result<(), String> {
    let tolerance = tolerance_of(history, expected, largest(expected));
    let comparison = interp::compare(found, expected, tolerance);
    if comparison.agrees() { Ok(()) } else { Err(format!("{comparison} (allowed {tolerance})")) }
}

/// 64 bytes at a multiple of 64.
#[derive(Clone)]
#[repr(align(64))]
struct AlignedLine([u8; 64]);

/// Bytes at a multiple of 64.
struct AlignedBlock {
    lines: Vec<AlignedLine>,
    len: usize,
}

impl AlignedBlock {
    /// Memory that holds no zeros, as memory that was used before.
    fn new(len: usize) -> Self {
        AlignedBlock { lines: vec![AlignedLine([0xa5; 64]); len.div_ceil(64)], len }
    }

    fn of(tensor: &Tensor) -> Self {
        let mut out = AlignedBlock::new(tensor.data().len());
        let bytes = out.lines.iter_mut().flat_map(|l| &mut l.0);
        bytes.zip(tensor.data()).for_each(|(to, &from)| *to = from);
        out
    }

    fn extent(&mut self) -> DeviceRange {
        DeviceRange { address: self.lines.as_mut_ptr().expose_provenance() as u64, bytes: self.len }
    }

    fn bytes(&self) -> Vec<u8> {
        self.lines.iter().flat_map(|l| l.0).take(self.len).collect()
    }
}
