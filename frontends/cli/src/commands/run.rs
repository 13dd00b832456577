//! `symmc run`: runs a program or a plan on all ranks, and compares the outputs.
//!
//! Everything that can be refused is refused before any rank starts. Ranks that another launcher started agree on such a
//! refusal, so that no rank waits for one that has left.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use indexmap::IndexMap;
use symmc::unstable::ir::interp::{RoundingHistory, RunCount, output_histories};
use symmc::unstable::ir::{Op, OutputKind};
use symmc::unstable::runtime::RunError;
use symmc::{
    CheckedPlan, CompileConfig, Device, DrawConfig, Execution, ExpectedOutputs, Graph, JobResult, Membership,
    RunConfig, RunTimes, Tensor, TensorFile, Weights, Workload,
};

use crate::args::{CompareMode, ExecutionArg, LaunchArg, RunArgs};
use crate::commands::results::{ReferenceOutputs, Tolerances, compare_outputs, format_outputs};
use crate::failure::{error_message, exit_code};
use crate::gpu;
use crate::load;
use crate::messages;
use crate::progress::with_spinner;
use crate::report::decision_lines;
use crate::self_command::SelfCommand;
use crate::stdout::{print_text, refuse_overwrite};
use crate::units::{format_count, format_micros};

pub fn run(args: &RunArgs, self_command: &SelfCommand) -> Result<ExitCode> {
    check_option_conflicts(args)?;
    let membership = find_membership(args)?;
    let prepared =
        prepare(args, membership.as_ref()).inspect_err(|error| decline_run(membership.as_ref(), error))?;
    let PreparedRun { plan, source, work, expected, output } = prepared;
    let start = Instant::now();
    let (ranks, ran) = with_spinner("running", || execute(args, self_command, membership, &plan, &work))?;
    if let (true, Some(times)) = (args.timing, RunTimes::slowest(&ran.times)) {
        messages::print_line(&format_timing(times, start.elapsed()));
    }
    let outputs = ran.outputs;
    if let Some(file) = output {
        symmc::write_outputs(&file, &source, ranks.clone(), &outputs)?;
    }
    if args.print {
        print_text(&format_outputs(&source, ranks.clone(), &outputs))?;
    }
    if args.backend != ExecutionArg::Interpreter && ranks.start == 0 {
        let sizes = named_sizes(&source, &work);
        print_text(&decision_lines(&plan, serving_bucket(&plan, &sizes)?, &sizes)?)?;
    }
    let tolerances = Tolerances { absolute: args.atol, relative: args.rtol };
    let agreed = match expected? {
        Some((with, expected)) => {
            let histories = rounding_histories(args, &plan, &source, &work)?;
            let config = run_config(args, None);
            let with_noise = |seed| {
                let interpret = || symmc::run_with_noise(&plan, &work, &config, seed);
                Ok(with_spinner("interpreting with noise on every rounding", interpret)?)
            };
            let reference = ReferenceOutputs {
                with,
                expected: &expected,
                histories: &histories,
                tolerances,
                with_noise: &with_noise,
            };
            let report = compare_outputs(&source, ranks, &outputs, &reference)?;
            print_text(&report.text)?;
            report.agrees
        }
        None => {
            let end = if args.compare.is_some() {
                "not compared"
            } else {
                "nothing to compare with; --compare interpreter compares with the reference interpreter"
            };
            print_text(&format!("{}: {} ran; {end}\n", source.name, format_count(plan.ranks, "rank")))?;
            true
        }
    };
    Ok(ExitCode::from(u8::from(!agreed)))
}

/// Everything that a run needs, before any rank begins.
struct PreparedRun {
    plan: CheckedPlan,
    source: Graph,
    work: Workload,
    /// The expected outputs, if outputs are compared. Under another launcher an error here is reported after the run,
    /// because the other ranks would wait for this one.
    expected: Result<Option<(CompareMode, ExpectedOutputs)>>,
    output: Option<PathBuf>,
}

fn prepare(args: &RunArgs, membership: Option<&Membership>) -> Result<PreparedRun> {
    let output = output_path(args, membership)?;
    let machine = args.compile.machine_file();
    let named = args.program.program.iter().chain(&args.tensors).chain(&args.plan).cloned().chain(machine);
    refuse_overwrites(args, output.as_deref(), &named.collect::<Vec<_>>())?;
    let outputs = [output.as_deref(), args.profile_trace.as_deref()];
    symmc::refuse_same_output(&outputs.into_iter().flatten().collect::<Vec<_>>())?;
    if let Some(file) = &output {
        symmc::check_output(file)?;
    }
    let tensors = load::open_tensors(args.tensors.as_deref())?;
    let RunSubject { plan, source, weights, files } = open_subject(args, tensors.as_ref())?;
    refuse_overwrites(args, output.as_deref(), &files)?;
    check_runnable(args, &plan)?;
    if args.backend == ExecutionArg::Cuda && membership.is_none_or(|m| m.rank == 0) {
        gpu::note_attention(&plan);
        gpu::note_cache();
    }
    if let Some(membership) = membership.filter(|m| m.ranks != plan.ranks) {
        bail!(
            "{}: expected {}, found {} in the environment",
            source.name,
            format_count(plan.ranks, "rank"),
            format_count(membership.ranks, "rank")
        );
    }
    let draw = DrawConfig::default()
        .with_seed(args.seed.unwrap_or(0))
        .with_arguments(args.seed.is_some())
        .with_ranks(args.draw.into())
        .with_symbols(args.set.iter().cloned());
    let work = with_spinner("reading and generating inputs", || {
        Workload::gather(&source, &weights, tensors.as_deref(), &draw)
    })?;
    for note in &work.notes {
        messages::note(note);
    }
    // Ranks under another launcher find out together when they run, so that none waits for one that has left.
    if args.backend != ExecutionArg::Interpreter && membership.is_none() {
        serving_bucket(&plan, &named_sizes(&source, &work))?;
    }
    let expected = expected_outputs(args, &plan, &work);
    if membership.is_none()
        && let Err(error) = expected
    {
        return Err(error);
    }
    Ok(PreparedRun { plan, source, work, expected, output })
}

/// Refuses output files that are among the files that the run reads.
fn refuse_overwrites(args: &RunArgs, output: Option<&Path>, inputs: &[PathBuf]) -> Result<()> {
    refuse_overwrite(output, inputs)?;
    refuse_overwrite(args.profile_trace.as_deref(), inputs)
}

/// Notifies the other ranks, if another launcher started them, that this rank cannot begin.
fn decline_run(membership: Option<&Membership>, error: &anyhow::Error) {
    if let Some(membership) = membership {
        let text = error_message(error);
        let reason = match exit_code(error) {
            2 => RunError::Invalid(text),
            _ => RunError::system("this rank cannot begin", text),
        };
        // The command ends with the original error, whether or not the other ranks receive this one.
        let _ = membership.decline(reason);
    }
}

/// The membership of this process among ranks that another launcher started, if one did.
fn find_membership(args: &RunArgs) -> Result<Option<Membership>> {
    match args.backend {
        ExecutionArg::Host | ExecutionArg::Cuda => {
            let detected = Membership::detect(args.launch.into())
                .map_err(|error| symmc::Error::from(with_launch_hint(error)))?;
            if let Some(note) = detected.note {
                messages::note(&note);
            }
            Ok(detected.membership)
        }
        ExecutionArg::Threads | ExecutionArg::Interpreter => Ok(None),
    }
}

/// Adds the remedy of this command to an error of the environment of a launcher.
fn with_launch_hint(error: RunError) -> RunError {
    match error {
        RunError::Invalid(text) => RunError::Invalid(format!(
            "{text}; choose a launcher with --launch, or ignore the environment with --launch local"
        )),
        other => other,
    }
}

/// The file of the outputs. Under another launcher each rank has a file of its own, `FILE.rank{r}.safetensors`.
fn output_path(args: &RunArgs, membership: Option<&Membership>) -> Result<Option<PathBuf>> {
    let Some(file) = &args.output else { return Ok(None) };
    let file = match membership {
        None => file.clone(),
        Some(membership) => {
            let mut name = file.file_stem().unwrap_or_default().to_os_string();
            name.push(format!(".rank{}", membership.rank));
            if let Some(extension) = file.extension() {
                name.push(".");
                name.push(extension);
            }
            file.with_file_name(name)
        }
    };
    Ok(Some(file))
}

fn format_timing(times: RunTimes, all: Duration) -> String {
    let shortest = times.least.as_secs_f64() * 1e6;
    let median = times.median.as_secs_f64() * 1e6;
    let runs = format_count(times.runs, "run");
    let each = match times.runs {
        0 | 1 => format_micros(median),
        _ => format!("least {}, median {}", format_micros(shortest), format_micros(median)),
    };
    format!("{runs} in {:.2} ms, with the start of the ranks; each: {each}", all.as_secs_f64() * 1e3)
}

/// Runs the plan. Returns the ranks whose outputs this process has, and their results: all ranks, or the one rank that
/// this process is under another launcher.
fn execute(
    args: &RunArgs,
    self_command: &SelfCommand,
    membership: Option<Membership>,
    plan: &CheckedPlan,
    work: &Workload,
) -> Result<(Range<usize>, JobResult)> {
    let config = run_config(args, args.chaos);
    if let Some(membership) = membership {
        let rank = membership.rank as usize;
        let (outputs, times) = symmc::run_joined_timed(plan, work, &membership, &config)?;
        return Ok((rank..rank + 1, JobResult { outputs: vec![outputs], times: vec![times] }));
    }
    let ran = symmc::run_timed(plan, work, &select_execution(args, self_command), &config)?;
    Ok((0..ran.outputs.len(), ran))
}

struct RunSubject {
    plan: CheckedPlan,
    source: Graph,
    weights: Weights,
    files: Vec<PathBuf>,
}

fn open_subject(args: &RunArgs, tensors: Option<&Arc<TensorFile>>) -> Result<RunSubject> {
    if load::is_plan_argument(&args.program)? {
        let plan_option = args.plan.as_ref().map(|_| "--plan");
        let options =
            args.program.provided_options().chain(args.compile.provided_options()).chain(plan_option);
        load::refuse_program_options(args.program.first_path(), options)?;
        let plan = load::open_plan(&args.program)?;
        let source = plan.source_program().clone();
        return Ok(RunSubject { plan, source, weights: Weights::default(), files: Vec::new() });
    }
    let saved = match &args.plan {
        Some(path) => Some((path, symmc::into_checked_plan(load::read_plan(path)?)?)),
        None => None,
    };
    let mut extents = load::provided_extents(&args.program, &args.compile, &args.set);
    match (&saved, tensors) {
        // The program gets the ranges that the plan was made for.
        (Some((_, plan)), _) => {
            let symbols = plan.source_program().symbols.values();
            extents.fallback_bounds = symbols.map(|s| (s.name.clone(), s.max)).collect();
        }
        (None, Some(file)) if args.seed.is_none() && args.set.is_empty() => {
            extents.recorded_shapes = file.argument_shapes();
        }
        _ => {}
    }
    let mut program = load::open_program(&args.program, extents, tensors)?;
    load::infer_ranks(&mut program)?;
    let plan = match saved {
        Some((path, plan)) => {
            let mut planned = plan.source_program().clone();
            planned.name.clone_from(&program.graph.name);
            if planned != program.graph {
                bail!(
                    "{}: the plan was made for another program, {} on {}; expected a plan for {}",
                    path.display(),
                    plan.source.name,
                    format_count(plan.ranks, "rank"),
                    args.program.first_path().display()
                );
            }
            plan
        }
        None => symmc::compile(&program, &compile_config(args, program.graph.ranks.unwrap_or(0))?)?,
    };
    Ok(RunSubject { plan, source: program.graph, weights: program.weights, files: program.files })
}

fn compile_config(args: &RunArgs, ranks: u32) -> Result<CompileConfig> {
    match args.backend {
        ExecutionArg::Cuda => load::gpu_config(&args.compile, ranks, &args.gpus),
        _ => load::host_config(&args.compile, ranks),
    }
}

/// Refuses a plan with a step that the backend cannot run, before anything starts. This command has no kernels for custom
/// ops.
fn check_runnable(args: &RunArgs, plan: &CheckedPlan) -> Result<()> {
    let Err(error) = symmc::check_device_support(plan, &run_config(args, None)) else { return Ok(()) };
    if !error.is_bad_input() {
        return Err(error.into());
    }
    let program = args.program.first_path().display();
    let message = error.to_string();
    let mut opaque_ops = plan.source_program().nodes.values().filter_map(|node| match &node.op {
        Op::Opaque { name, .. } => Some(name),
        _ => None,
    });
    let unsupported_op =
        opaque_ops.find(|name| is_framework_op(name) && message.contains(&format!("{name:?}")));
    let remedy = match (error.is_missing_kernel(), unsupported_op) {
        (true, Some(name)) if name.starts_with("aten.") => {
            "; symmc does not support this op, or not as it is used here; `run_decompositions()` of the exported \
             program replaces many ops of PyTorch by ops that symmc supports"
        }
        (true, Some(_)) => "; symmc does not support this op, or not as it is used here",
        (true, None) => {
            "; this command has no kernels for custom ops: define an op of a .pt2 archive as a program with --op FILE, or \
             embed symmc and register a kernel; see docs/custom-ops.md"
        }
        (false, _) => "",
    };
    bail!("{program}: {error}{remedy}")
}

/// Whether the name of an opaque op belongs to PyTorch, ONNX or ONNX Runtime, and not to a custom op.
fn is_framework_op(name: &str) -> bool {
    const PYTORCH: [&str; 7] =
        ["aten", "prims", "_c10d_functional", "c10d", "symm_mem", "higher_order", "quantized"];
    match (name.split_once("::"), name.split_once('.')) {
        (Some((domain, _)), _) => domain == "com.microsoft" || domain.starts_with("ai.onnx"),
        (None, Some((namespace, _))) => PYTORCH.contains(&namespace),
        (None, None) => true,
    }
}

/// Refuses combinations of options that contradict each other or have no effect.
fn check_option_conflicts(args: &RunArgs) -> Result<()> {
    let gpu_options = [
        ("--gpus", !args.gpus.is_empty()),
        ("--arena", args.arena.is_some()),
        ("--products", args.products.is_some()),
        ("--profile-trace", args.profile_trace.is_some()),
    ];
    match args.backend {
        ExecutionArg::Cuda => gpu::present()?,
        _ => {
            if let Some((option, _)) = gpu_options.iter().find(|(_, is_given)| *is_given) {
                bail!("{option} has no effect without --backend cuda");
            }
        }
    }
    if args.backend == ExecutionArg::Interpreter && args.compare == Some(CompareMode::Interpreter) {
        bail!(
            "--backend interpreter --compare interpreter compares the interpreter with itself; expected another \
             backend or --compare recorded"
        );
    }
    let one_process = matches!(args.backend, ExecutionArg::Threads | ExecutionArg::Interpreter);
    if one_process && !matches!(args.launch, LaunchArg::Auto | LaunchArg::Local) {
        bail!("--launch has no effect with --backend threads or interpreter, which run in one process");
    }
    if args.compare == Some(CompareMode::Recorded) {
        if args.tensors.is_none() {
            bail!("--compare recorded needs --tensors");
        }
        if args.seed.is_some() {
            bail!(
                "--compare recorded contradicts --seed, which replaces the recorded arguments by random ones"
            );
        }
    }
    if args.plan.is_some()
        && let Some(option) = args.compile.provided_options().next()
    {
        bail!("{option} has no effect on the plan that --plan names");
    }
    Ok(())
}

/// The sizes of a run by the names of the symbols.
fn named_sizes(source: &Graph, work: &Workload) -> IndexMap<String, i64> {
    let symbols = source.symbols.iter();
    symbols.filter_map(|(id, symbol)| Some((symbol.name.clone(), work.bindings.get(id)?))).collect()
}

/// The index of the bucket that serves these sizes.
fn serving_bucket(plan: &CheckedPlan, sizes: &IndexMap<String, i64>) -> Result<usize> {
    plan.find_bucket(sizes).map_err(|e| anyhow!("{e}"))
}

fn select_execution(args: &RunArgs, self_command: &SelfCommand) -> Execution {
    match args.backend {
        ExecutionArg::Interpreter => Execution::Interpreter,
        ExecutionArg::Threads => Execution::Threads,
        ExecutionArg::Host | ExecutionArg::Cuda => Execution::Processes(self_command.rank_command()),
    }
}

fn run_config(args: &RunArgs, chaos: Option<u64>) -> RunConfig {
    let device = match args.backend {
        ExecutionArg::Cuda => args.device(),
        _ => Device::Host,
    };
    RunConfig::default()
        .with_timeout(Duration::from_secs_f64(args.timeout))
        .with_chaos(chaos)
        .with_repeats(args.repeat)
        .with_device(device)
        .with_trace(args.profile_trace.clone())
}

fn expected_outputs(
    args: &RunArgs,
    plan: &CheckedPlan,
    work: &Workload,
) -> Result<Option<(CompareMode, ExpectedOutputs)>> {
    let recorded = work.expected.is_some() || work.incomparable.is_some();
    match args.compare.unwrap_or(if recorded { CompareMode::Recorded } else { CompareMode::None }) {
        CompareMode::None => Ok(None),
        CompareMode::Recorded => Ok(Some((CompareMode::Recorded, recorded_outputs(args, plan, work)?))),
        CompareMode::Interpreter => {
            // If no output replaces an input, all runs give the same outputs, and one is enough.
            let repeats = if mutates_inputs(plan) { args.repeat } else { 1 };
            let config = run_config(args, None).with_repeats(repeats);
            let outputs =
                with_spinner("interpreting", || symmc::run(plan, work, &Execution::Interpreter, &config))?;
            let outputs = outputs.into_iter().map(|r| r.into_iter().map(|t| Some(Arc::new(t))).collect());
            Ok(Some((CompareMode::Interpreter, outputs.collect())))
        }
    }
}

/// The rounding history of each output: in the program of the bucket that serves the sizes, or in the source if the
/// interpreter is the backend.
fn rounding_histories(
    args: &RunArgs,
    plan: &CheckedPlan,
    source: &Graph,
    work: &Workload,
) -> Result<Vec<RoundingHistory>> {
    let runs = if args.repeat > 1 { RunCount::Several } else { RunCount::One };
    if args.backend == ExecutionArg::Interpreter {
        return Ok(output_histories(source, runs));
    }
    let bucket = &plan.buckets[serving_bucket(plan, &named_sizes(source, work))?];
    Ok(plan.output_histories(bucket.program, runs)?)
}

/// Whether a run changes an input that the next run reads.
fn mutates_inputs(plan: &CheckedPlan) -> bool {
    plan.source_program().outputs.iter().any(|o| matches!(o.kind, OutputKind::Mutates(_)))
}

fn recorded_outputs(args: &RunArgs, plan: &CheckedPlan, work: &Workload) -> Result<ExpectedOutputs> {
    let Some(file) = &args.tensors else { bail!("--compare recorded needs --tensors") };
    let file = file.display();
    let alternatives = "--compare interpreter compares with the interpreter, --compare none does not compare";
    match (&work.expected, &work.incomparable) {
        (Some(_), _) if args.repeat > 1 && mutates_inputs(plan) => bail!(
            "{file}: the recorded outputs are for one run, because {} changes its inputs in each run; found --repeat {}; \
             {alternatives}",
            plan.source.name,
            args.repeat
        ),
        (Some(expected), _) => Ok(expected
            .iter()
            .map(|rank| rank.iter().map(|t| t.as_ref().map(Tensor::load_to_memory).transpose()).collect())
            .collect::<std::io::Result<_>>()?),
        (None, Some(why)) => bail!("{file}: {why}; {alternatives}"),
        (None, None) => bail!("{file}: the file records no outputs (rank<r>.out.<i>); {alternatives}"),
    }
}
