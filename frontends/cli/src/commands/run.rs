//! `symmc run`.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use symmc::unstable::ir::interp::{RoundingHistory, RunCount, output_histories};
use symmc::unstable::ir::{Op, OutputKind};
use symmc::unstable::runtime::RunError;
use symmc::{
    Backend, CheckedPlan, CompileConfig, DrawConfig, ExpectedOutputs, Graph, JobResult, Membership,
    RunConfig, RunDevice, RunTimes, Tensor, TensorFile, Weights, Workload,
};

use crate::args::{BackendArg, CompareMode, LaunchArg, RunArgs};
use crate::commands::results::{ReferenceOutputs, Tolerances, format_outputs, report_comparison};
use crate::failure::{error_message, exit_code};
use crate::gpu;
use crate::load;
use crate::messages;
use crate::progress::with_spinner;
use crate::report::decision_lines;
use crate::self_command::SelfCommand;
use crate::stdout::{print_text, refuse_overwrite};
use crate::units::{format_count, format_micros};

pub fn run(args: &RunArgs, own: &SelfCommand) -> Result<ExitCode> {
    check_option_conflicts(args)?;
    let place = find_membership(args)?;
    let prepared = prepare(args, place.as_ref()).inspect_err(|error| decline_run(place.as_ref(), error))?;
    let PreparedRun { plan, source, work, expected, output } = prepared;
    let start = Instant::now();
    let (ranks, ran) = with_spinner("running", || execute(args, own, place, (&plan, &work)))?;
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
    if args.backend != BackendArg::Interpreter && ranks.start == 0 {
        print_text(&decision_lines(&plan, serving_bucket(&plan, &source, &work)?)?)?;
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
            report_comparison(&source, ranks, &outputs, &reference)?
        }
        None => {
            let end = if args.compare.is_some() { "not compared" } else { "nothing to compare with" };
            print_text(&format!("{}: {} ran; {end}\n", source.name, format_count(plan.ranks, "rank")))?;
            true
        }
    };
    Ok(ExitCode::from(u8::from(!agreed)))
}

/// What a run needs, before any rank begins.
struct PreparedRun {
    plan: CheckedPlan,
    source: Graph,
    work: Workload,
    /// What the results are compared with. Ranks that joined run also without it, that none waits for this one.
    expected: Result<Option<(CompareMode, ExpectedOutputs)>>,
    output: Option<PathBuf>,
}

fn prepare(args: &RunArgs, place: Option<&Membership>) -> Result<PreparedRun> {
    let output = output_path(args, place)?;
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
    if args.backend == BackendArg::Cuda && place.is_none_or(|p| p.rank == 0) {
        gpu::note_attention(&plan);
        gpu::note_cache();
    }
    if let Some(place) = place.filter(|p| p.ranks != plan.ranks) {
        let found = format_count(place.ranks, "rank");
        bail!(
            "{}: {} expected, the environment gives {found}",
            source.name,
            format_count(plan.ranks, "rank")
        );
    }
    let draw = DrawConfig::default()
        .with_seed(args.seed.unwrap_or(0))
        .with_arguments(args.seed.is_some())
        .with_ranks(args.draw.into())
        .with_symbols(args.set.iter().cloned());
    let gather = || Workload::gather(&source, &weights, tensors.as_deref(), &draw);
    let work = with_spinner("reading and drawing inputs", gather)?;
    for note in &work.notes {
        messages::note(note);
    }
    // Ranks that joined find out together, so that none waits for one that has left.
    if args.backend != BackendArg::Interpreter && place.is_none() {
        serving_bucket(&plan, &source, &work)?;
    }
    let expected = expected_outputs(args, &plan, &work);
    if place.is_none()
        && let Err(error) = expected
    {
        return Err(error);
    }
    Ok(PreparedRun { plan, source, work, expected, output })
}

/// Refuses output files that the run reads.
fn refuse_overwrites(args: &RunArgs, output: Option<&Path>, inputs: &[PathBuf]) -> Result<()> {
    refuse_overwrite(output, inputs)?;
    refuse_overwrite(args.profile_trace.as_deref(), inputs)
}

/// Tells the ranks that joined that this one cannot begin.
fn decline_run(place: Option<&Membership>, error: &anyhow::Error) {
    if let Some(place) = place {
        let text = error_message(error);
        let told = match exit_code(error) {
            2 => RunError::Invalid(text),
            _ => RunError::system("this rank cannot begin", text),
        };
        // The command ends with the error as it was found.
        let _ = place.decline(told);
    }
}

/// The place of this process among ranks that another launcher started, if one did.
fn find_membership(args: &RunArgs) -> Result<Option<Membership>> {
    match args.backend {
        BackendArg::Host | BackendArg::Cuda => {
            let found = Membership::detect(args.launch.into())
                .map_err(|error| symmc::Error::from(with_launch_hint(error)))?;
            if let Some(note) = found.note {
                messages::note(&note);
            }
            Ok(found.membership)
        }
        BackendArg::Threads | BackendArg::Interpreter => Ok(None),
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

/// Where the outputs go; a file for each rank where another launcher started them.
fn output_path(args: &RunArgs, place: Option<&Membership>) -> Result<Option<PathBuf>> {
    let Some(file) = &args.output else { return Ok(None) };
    let file = match place {
        None => file.clone(),
        Some(place) => {
            let mut name = file.file_stem().unwrap_or_default().to_os_string();
            name.push(format!(".rank{}", place.rank));
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
    let (least, median) = (times.least.as_secs_f64() * 1e6, times.median.as_secs_f64() * 1e6);
    let runs = format_count(times.runs, "run");
    let each = match times.runs {
        0 | 1 => format_micros(median),
        _ => format!("least {}, median {}", format_micros(least), format_micros(median)),
    };
    format!("{runs} in {:.2} ms with starting; each: {each}", all.as_secs_f64() * 1e3)
}

/// The outputs of all ranks, or of the one that this process is when another launcher started it.
fn execute(
    args: &RunArgs,
    own: &SelfCommand,
    place: Option<Membership>,
    (plan, work): (&CheckedPlan, &Workload),
) -> Result<(Range<usize>, JobResult)> {
    let config = run_config(args, args.chaos);
    if let Some(place) = place {
        let rank = place.rank as usize;
        let (outputs, times) = symmc::run_joined_timed(plan, work, &place, &config)?;
        return Ok((rank..rank + 1, JobResult { outputs: vec![outputs], times: vec![times] }));
    }
    let ran = symmc::run_timed(plan, work, &select_backend(args, own), &config)?;
    Ok((0..ran.outputs.len(), ran))
}

struct RunSubject {
    plan: CheckedPlan,
    source: Graph,
    weights: Weights,
    files: Vec<PathBuf>,
}

fn open_subject(args: &RunArgs, tensors: Option<&Arc<TensorFile>>) -> Result<RunSubject> {
    let path = args.program.first_path();
    if load::is_plan_argument(&args.program)? {
        refuse_compile_options(args)?;
        let plan = load::read_plan(path)?;
        if let Some(ranks) = args.program.ranks.filter(|&r| r != plan.ranks) {
            bail!("{}: the plan is for {}, found {ranks}", path.display(), format_count(plan.ranks, "rank"));
        }
        let plan = symmc::into_checked_plan(plan)?;
        let source = plan.source_program().clone();
        return Ok(RunSubject { plan, source, weights: Weights::default(), files: Vec::new() });
    }
    let made = args
        .plan
        .as_ref()
        .map(|path| Ok::<_, anyhow::Error>((path, symmc::into_checked_plan(load::read_plan(path)?)?)));
    let made = made.transpose()?;
    let mut given = load::provided_extents(&args.program, &args.compile, &args.set);
    match (&made, tensors) {
        // A plan that exists is for the ranges that it was made for.
        (Some((_, plan)), _) => {
            let symbols = plan.source_program().symbols.values();
            given.fallback_bounds = symbols.map(|s| (s.name.clone(), s.max)).collect();
        }
        (None, Some(file)) if args.seed.is_none() && args.set.is_empty() => {
            given.recorded_shapes = file.argument_shapes();
        }
        _ => {}
    }
    let mut program = load::open_program(&args.program, given, tensors)?;
    load::infer_ranks(&mut program)?;
    let plan = match made {
        Some((path, plan)) => {
            let mut planned = plan.source_program().clone();
            planned.name.clone_from(&program.graph.name);
            if planned != program.graph {
                bail!(
                    "{}: the plan was made for another program, {} on {}; expected one for {}",
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
        BackendArg::Cuda => load::gpu_config(&args.compile, ranks, &args.gpus),
        _ => load::host_config(&args.compile),
    }
}

/// What the backend does not run is told before anything starts. This command has no kernels for custom ops.
fn check_runnable(args: &RunArgs, plan: &CheckedPlan) -> Result<()> {
    let Err(error) = symmc::check_device_support(plan, &run_config(args, None)) else { return Ok(()) };
    if !error.is_bad_input() {
        return Err(error.into());
    }
    let program = args.program.first_path().display();
    let message = error.to_string();
    let mut opaque = plan.source_program().nodes.values().filter_map(|node| match &node.op {
        Op::Opaque { name, .. } => Some(name),
        _ => None,
    });
    let known = opaque.find(|name| is_framework_op(name) && message.contains(&format!("{name:?}")));
    let custom = match (error.is_missing_kernel(), known) {
        (true, Some(name)) if name.starts_with("aten.") => {
            "; symmc does not support this op, or not as it is used here; `run_decompositions()` of the exported \
             program replaces many ops of PyTorch by ops that symmc supports"
        }
        (true, Some(_)) => "; symmc does not support this op, or not as it is used here",
        (true, None) => {
            "; a custom op runs where symmc is embedded and its kernel is registered: see docs/custom-ops.md"
        }
        (false, _) => "",
    };
    bail!("{program}: {error}{custom}")
}

/// Whether an opaque op is one of PyTorch, ONNX or ONNX Runtime themselves, by its name.
fn is_framework_op(name: &str) -> bool {
    const PYTORCH: [&str; 7] =
        ["aten", "prims", "_c10d_functional", "c10d", "symm_mem", "higher_order", "quantized"];
    match (name.split_once("::"), name.split_once('.')) {
        (Some((domain, _)), _) => domain == "com.microsoft" || domain.starts_with("ai.onnx"),
        (None, Some((namespace, _))) => PYTORCH.contains(&namespace),
        (None, None) => true,
    }
}

/// A plan is compiled already: what would compile it otherwise is refused rather than ignored.
fn refuse_compile_options(args: &RunArgs) -> Result<()> {
    let plan = args.plan.as_ref().map(|_| "--plan");
    let group = args.program.groups.first().map(|_| "--group");
    let dim = args.program.dims.first().map(|_| "--dim");
    match plan.into_iter().chain(group).chain(dim).chain(args.compile.provided_options()).next() {
        Some(option) => {
            bail!("{}: this is a plan; {option} is for programs", args.program.first_path().display())
        }
        None => Ok(()),
    }
}

/// Refuses, before any work, what cannot come to an end as asked.
fn check_option_conflicts(args: &RunArgs) -> Result<()> {
    let of_gpus = [
        ("--gpus", !args.gpus.is_empty()),
        ("--arena", args.arena.is_some()),
        ("--products", args.products.is_some()),
        ("--profile-trace", args.profile_trace.is_some()),
    ];
    match args.backend {
        BackendArg::Cuda => gpu::present()?,
        _ => {
            if let Some((option, _)) = of_gpus.iter().find(|o| o.1) {
                bail!("{option} has no effect without --backend cuda");
            }
        }
    }
    if args.backend == BackendArg::Interpreter && args.compare == Some(CompareMode::Interpreter) {
        bail!(
            "--backend interpreter --compare interpreter compares the interpreter with itself; expected another backend or --compare recorded"
        );
    }
    let one_process = matches!(args.backend, BackendArg::Threads | BackendArg::Interpreter);
    if one_process && !matches!(args.launch, LaunchArg::Auto | LaunchArg::Local) {
        bail!("--launch has no effect on a backend of one process");
    }
    let drawn = args.seed.is_some().then_some("--seed, which draws the arguments");
    match (args.compare, &args.tensors, drawn, args.compile.provided_options().next(), &args.plan) {
        (Some(CompareMode::Recorded), None, ..) => bail!("--compare recorded needs --tensors"),
        (Some(CompareMode::Recorded), _, Some(why), ..) => bail!("--compare recorded contradicts {why}"),
        (.., Some(option), Some(_)) => bail!("{option} has no effect on the plan that --plan names"),
        _ => Ok(()),
    }
}

fn serving_bucket(plan: &CheckedPlan, source: &Graph, work: &Workload) -> Result<usize> {
    let sizes = source.symbols.iter();
    let sizes = sizes.filter_map(|(id, s)| Some((s.name.clone(), work.bindings.get(id)?))).collect();
    plan.find_bucket(&sizes).map_err(|e| anyhow!("{e}"))
}

fn select_backend(args: &RunArgs, own: &SelfCommand) -> Backend {
    match args.backend {
        BackendArg::Interpreter => Backend::Interpreter,
        BackendArg::Threads => Backend::Threads,
        BackendArg::Host | BackendArg::Cuda => Backend::Processes(own.rank_command()),
    }
}

fn run_config(args: &RunArgs, chaos: Option<u64>) -> RunConfig {
    let device = match args.backend {
        BackendArg::Cuda => args.device(),
        _ => RunDevice::Host,
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
            // Where no output mutates an input, every run gives the same.
            let repeats = if mutates_inputs(plan) { args.repeat } else { 1 };
            let config = run_config(args, None).with_repeats(repeats);
            let interpret = || symmc::run(plan, work, &Backend::Interpreter, &config);
            let outputs = with_spinner("interpreting", interpret)?;
            let outputs = outputs.into_iter().map(|r| r.into_iter().map(|t| Some(Arc::new(t))).collect());
            Ok(Some((CompareMode::Interpreter, outputs.collect())))
        }
    }
}

/// How the outputs were rounded, by the source and by what of the plan serves the sizes.
fn rounding_histories(
    args: &RunArgs,
    plan: &CheckedPlan,
    source: &Graph,
    work: &Workload,
) -> Result<Vec<RoundingHistory>> {
    let runs = if args.repeat > 1 { RunCount::Several } else { RunCount::One };
    if args.backend == BackendArg::Interpreter {
        return Ok(output_histories(source, runs));
    }
    let bucket = &plan.buckets[serving_bucket(plan, source, work)?];
    Ok(plan.output_histories(bucket.program, runs)?)
}

/// Whether a run changes what the next one reads.
fn mutates_inputs(plan: &CheckedPlan) -> bool {
    plan.source_program().outputs.iter().any(|o| matches!(o.kind, OutputKind::Mutates(_)))
}

fn recorded_outputs(args: &RunArgs, plan: &CheckedPlan, work: &Workload) -> Result<ExpectedOutputs> {
    let Some(file) = &args.tensors else { bail!("--compare recorded needs --tensors") };
    let file = file.display();
    let others = "--compare interpreter compares with the interpreter, --compare none with nothing";
    match (&work.expected, &work.incomparable) {
        (Some(_), _) if args.repeat > 1 && mutates_inputs(plan) => bail!(
            "{file}: its outputs are those of one run, and {} changes its inputs from run to run, found --repeat {}; {others}",
            plan.source.name,
            args.repeat
        ),
        (Some(expected), _) => Ok(expected
            .iter()
            .map(|rank| rank.iter().map(|t| t.as_ref().map(Tensor::load_to_memory).transpose()).collect())
            .collect::<std::io::Result<_>>()?),
        (None, Some(why)) => bail!("{file}: {why}; {others}"),
        (None, None) => bail!("{file}: it records no outputs (rank<r>.out.<i>); {others}"),
    }
}
