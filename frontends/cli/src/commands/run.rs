//! `symmc run`.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use symmc::unstable::ir::interp::{RoundingHistory, Runs, output_histories};
use symmc::unstable::ir::{Op, OutputKind};
use symmc::unstable::runtime::RunError;
use symmc::{
    Backend, CheckedPlan, Config, Device, Draw, Expected, Graph, Membership, Ran, RunConfig, RunTimes,
    Tensor, TensorFile, Weights, Workload,
};

use crate::args::{BackendArg, Compare, LaunchArg, RunArgs};
use crate::commands::results::{Reference, Tolerances, printed, report};
use crate::failure::{exit_code, message};
use crate::gpu;
use crate::load;
use crate::out::{put, refuse_overwrite};
use crate::own::Own;
use crate::progress::spin;
use crate::report::decided;
use crate::say;
use crate::units::{count, micros};

pub fn run(args: &RunArgs, own: &Own) -> Result<ExitCode> {
    refuse_idle(args)?;
    let place = place(args)?;
    let prepared = prepare(args, place.as_ref()).inspect_err(|error| decline(place.as_ref(), error))?;
    let Prepared { plan, source, work, expected, output } = prepared;
    let start = Instant::now();
    let (ranks, ran) = spin("running", || execute(args, own, place, (&plan, &work)))?;
    if let (true, Some(times)) = (args.timing, RunTimes::slowest(&ran.times)) {
        say::line(&timing(times, start.elapsed()));
    }
    let outputs = ran.outputs;
    if let Some(file) = output {
        symmc::write_outputs(&file, &source, ranks.clone(), &outputs)?;
    }
    if args.print {
        put(&printed(&source, ranks.clone(), &outputs))?;
    }
    if args.backend != BackendArg::Interpreter && ranks.start == 0 {
        put(&decided(&plan, serving(&plan, &source, &work)?)?)?;
    }
    let tolerances = Tolerances { absolute: args.atol, relative: args.rtol };
    let agreed = match expected? {
        Some((with, expected)) => {
            let histories = histories(args, &plan, &source, &work)?;
            let config = run_config(args, None);
            let with_noise = |seed| {
                let interpret = || symmc::run_with_noise(&plan, &work, &config, seed);
                Ok(spin("interpreting with noise on every rounding", interpret)?)
            };
            let reference = Reference {
                with,
                expected: &expected,
                histories: &histories,
                tolerances,
                with_noise: &with_noise,
            };
            report(&source, ranks, &outputs, &reference)?
        }
        None => {
            let end = if args.compare.is_some() { "not compared" } else { "nothing to compare with" };
            put(&format!("{}: {} ran; {end}\n", source.name, count(plan.ranks, "rank")))?;
            true
        }
    };
    Ok(ExitCode::from(u8::from(!agreed)))
}

/// What a run needs, before any rank begins.
struct Prepared {
    plan: CheckedPlan,
    source: Graph,
    work: Workload,
    /// What the results are compared with. Ranks that joined run also without it, that none waits for this one.
    expected: Result<Option<(Compare, Expected)>>,
    output: Option<PathBuf>,
}

fn prepare(args: &RunArgs, place: Option<&Membership>) -> Result<Prepared> {
    let output = output(args, place)?;
    let machine = args.compile.machine_file();
    let named = args.program.program.iter().chain(&args.tensors).chain(&args.plan).cloned().chain(machine);
    refuse_overwrites(args, output.as_deref(), &named.collect::<Vec<_>>())?;
    let outputs = [output.as_deref(), args.profile_trace.as_deref()];
    symmc::refuse_same_output(&outputs.into_iter().flatten().collect::<Vec<_>>())?;
    if let Some(file) = &output {
        symmc::check_output(file)?;
    }
    let tensors = load::tensors(args.tensors.as_deref())?;
    let Subject { plan, source, weights, files } = subject(args, tensors.as_ref())?;
    refuse_overwrites(args, output.as_deref(), &files)?;
    refuse_what_does_not_run(args, &plan)?;
    if args.backend == BackendArg::Cuda && place.is_none_or(|p| p.rank == 0) {
        gpu::note_attention(&plan);
        gpu::note_cache();
    }
    if let Some(place) = place.filter(|p| p.ranks != plan.ranks) {
        let found = count(place.ranks, "rank");
        bail!("{}: {} expected, the environment gives {found}", source.name, count(plan.ranks, "rank"));
    }
    let draw = Draw::default()
        .with_seed(args.seed.unwrap_or(0))
        .with_arguments(args.seed.is_some())
        .with_ranks(args.draw.into())
        .with_symbols(args.set.iter().cloned());
    let gather = || Workload::gather(&source, &weights, tensors.as_deref(), &draw);
    let work = spin("reading and drawing inputs", gather)?;
    for note in &work.notes {
        say::note(note);
    }
    // Ranks that joined find out together, so that none waits for one that has left.
    if args.backend != BackendArg::Interpreter && place.is_none() {
        serving(&plan, &source, &work)?;
    }
    let expected = expected(args, &plan, &work);
    if place.is_none()
        && let Err(error) = expected
    {
        return Err(error);
    }
    Ok(Prepared { plan, source, work, expected, output })
}

/// Refuses output files that the run reads.
fn refuse_overwrites(args: &RunArgs, output: Option<&Path>, inputs: &[PathBuf]) -> Result<()> {
    refuse_overwrite(output, inputs)?;
    refuse_overwrite(args.profile_trace.as_deref(), inputs)
}

/// Tells the ranks that joined that this one cannot begin.
fn decline(place: Option<&Membership>, error: &anyhow::Error) {
    if let Some(place) = place {
        let text = message(error);
        let told = match exit_code(error) {
            2 => RunError::Invalid(text),
            _ => RunError::system("this rank cannot begin", text),
        };
        // The command ends with the error as it was found.
        let _ = place.decline(told);
    }
}

/// The place of this process among ranks that another launcher started, if one did.
fn place(args: &RunArgs) -> Result<Option<Membership>> {
    match args.backend {
        BackendArg::Host | BackendArg::Cuda => {
            let found = Membership::find(args.launch.into()).map_err(symmc::Error::from)?;
            if let Some(note) = found.note {
                say::note(&note);
            }
            Ok(found.place)
        }
        BackendArg::Threads | BackendArg::Interpreter => Ok(None),
    }
}

/// Where the outputs go; a file for each rank where another launcher started them.
fn output(args: &RunArgs, place: Option<&Membership>) -> Result<Option<PathBuf>> {
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

fn timing(times: RunTimes, all: Duration) -> String {
    let (least, median) = (times.least.as_secs_f64() * 1e6, times.median.as_secs_f64() * 1e6);
    let runs = count(times.runs, "run");
    let each = match times.runs {
        0 | 1 => micros(median),
        _ => format!("least {}, median {}", micros(least), micros(median)),
    };
    format!("{runs} in {:.2} ms with starting; each: {each}", all.as_secs_f64() * 1e3)
}

/// The outputs of all ranks, or of the one that this process is when another launcher started it.
fn execute(
    args: &RunArgs,
    own: &Own,
    place: Option<Membership>,
    (plan, work): (&CheckedPlan, &Workload),
) -> Result<(Range<usize>, Ran)> {
    let config = run_config(args, args.chaos);
    if let Some(place) = place {
        let rank = place.rank as usize;
        let (outputs, times) = symmc::run_joined_timed(plan, work, &place, &config)?;
        return Ok((rank..rank + 1, Ran { outputs: vec![outputs], times: vec![times] }));
    }
    let ran = symmc::run_timed(plan, work, &backend(args, own), &config)?;
    Ok((0..ran.outputs.len(), ran))
}

struct Subject {
    plan: CheckedPlan,
    source: Graph,
    weights: Weights,
    files: Vec<PathBuf>,
}

fn subject(args: &RunArgs, tensors: Option<&Arc<TensorFile>>) -> Result<Subject> {
    let path = args.program.first();
    if load::names_plan(&args.program)? {
        refuse_compile_options(args)?;
        let plan = load::plan(path)?;
        if let Some(ranks) = args.program.ranks.filter(|&r| r != plan.ranks) {
            bail!("{}: the plan is for {}, found {ranks}", path.display(), count(plan.ranks, "rank"));
        }
        let plan = symmc::checked(plan)?;
        let source = plan.source_program().clone();
        return Ok(Subject { plan, source, weights: Weights::default(), files: Vec::new() });
    }
    let made =
        args.plan.as_ref().map(|path| Ok::<_, anyhow::Error>((path, symmc::checked(load::plan(path)?)?)));
    let made = made.transpose()?;
    let mut given = load::given(&args.program, &args.compile, &args.set);
    match (&made, tensors) {
        // A plan that exists is for the ranges that it was made for.
        (Some((_, plan)), _) => {
            let symbols = plan.source_program().symbols.values();
            given.bounds = symbols.map(|s| (s.name.clone(), s.max)).collect();
        }
        (None, Some(file)) if args.seed.is_none() && args.set.is_empty() => {
            given.recorded = file.argument_shapes();
        }
        _ => {}
    }
    let mut program = load::program(&args.program, given, tensors)?;
    load::close_ranks(&mut program)?;
    let plan = match made {
        Some((path, plan)) => {
            let mut planned = plan.source_program().clone();
            planned.name.clone_from(&program.graph.name);
            if planned != program.graph {
                bail!(
                    "{}: the plan was made for another program, {} on {}; expected one for {}",
                    path.display(),
                    plan.source.name,
                    count(plan.ranks, "rank"),
                    args.program.first().display()
                );
            }
            plan
        }
        None => symmc::compile(&program, &compile_config(args, program.graph.ranks.unwrap_or(0))?)?,
    };
    Ok(Subject { plan, source: program.graph, weights: program.weights, files: program.files })
}

fn compile_config(args: &RunArgs, ranks: u32) -> Result<Config> {
    match args.backend {
        BackendArg::Cuda => load::gpu_config(&args.compile, ranks, &args.gpus),
        _ => load::config(&args.compile),
    }
}

/// What the backend does not run is told before anything starts. This command has no kernels for custom ops.
fn refuse_what_does_not_run(args: &RunArgs, plan: &CheckedPlan) -> Result<()> {
    let Err(error) = symmc::accepts(plan, &run_config(args, None)) else { return Ok(()) };
    if !error.is_bad_input() {
        return Err(error.into());
    }
    let program = args.program.first().display();
    let message = error.to_string();
    let mut opaque = plan.source_program().nodes.values().filter_map(|node| match &node.op {
        Op::Opaque { name, .. } => Some(name),
        _ => None,
    });
    let known = opaque.find(|name| is_of_a_framework(name) && message.contains(&format!("{name:?}")));
    let custom = match (error.is_about_kernels(), known) {
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
fn is_of_a_framework(name: &str) -> bool {
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
    match plan.into_iter().chain(group).chain(dim).chain(args.compile.given()).next() {
        Some(option) => bail!("{}: this is a plan; {option} is for programs", args.program.first().display()),
        None => Ok(()),
    }
}

/// Refuses, before any work, what cannot come to an end as asked.
fn refuse_idle(args: &RunArgs) -> Result<()> {
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
    if args.backend == BackendArg::Interpreter && args.compare == Some(Compare::Interpreter) {
        bail!(
            "--backend interpreter --compare interpreter compares the interpreter with itself; expected another backend or --compare recorded"
        );
    }
    let one_process = matches!(args.backend, BackendArg::Threads | BackendArg::Interpreter);
    if one_process && !matches!(args.launch, LaunchArg::Auto | LaunchArg::Local) {
        bail!("--launch has no effect on a backend of one process");
    }
    let drawn = args.seed.is_some().then_some("--seed, which draws the arguments");
    match (args.compare, &args.tensors, drawn, args.compile.given().next(), &args.plan) {
        (Some(Compare::Recorded), None, ..) => bail!("--compare recorded needs --tensors"),
        (Some(Compare::Recorded), _, Some(why), ..) => bail!("--compare recorded contradicts {why}"),
        (.., Some(option), Some(_)) => bail!("{option} has no effect on the plan that --plan names"),
        _ => Ok(()),
    }
}

fn serving(plan: &CheckedPlan, source: &Graph, work: &Workload) -> Result<usize> {
    let sizes = source.symbols.iter();
    let sizes = sizes.filter_map(|(id, s)| Some((s.name.clone(), work.bindings.get(id)?))).collect();
    plan.serving(&sizes).map_err(|e| anyhow!("{e}"))
}

fn backend(args: &RunArgs, own: &Own) -> Backend {
    match args.backend {
        BackendArg::Interpreter => Backend::Interpreter,
        BackendArg::Threads => Backend::Threads,
        BackendArg::Host | BackendArg::Cuda => Backend::Processes(own.rank_command()),
    }
}

fn run_config(args: &RunArgs, chaos: Option<u64>) -> RunConfig {
    let device = match args.backend {
        BackendArg::Cuda => args.device(),
        _ => Device::Host,
    };
    RunConfig::default()
        .with_limit(Duration::from_secs_f64(args.timeout))
        .with_chaos(chaos)
        .with_repeats(args.repeat)
        .with_device(device)
        .with_trace(args.profile_trace.clone())
}

fn expected(args: &RunArgs, plan: &CheckedPlan, work: &Workload) -> Result<Option<(Compare, Expected)>> {
    let recorded = work.expected.is_some() || work.incomparable.is_some();
    match args.compare.unwrap_or(if recorded { Compare::Recorded } else { Compare::None }) {
        Compare::None => Ok(None),
        Compare::Recorded => Ok(Some((Compare::Recorded, recorded_outputs(args, plan, work)?))),
        Compare::Interpreter => {
            // Where no output mutates an input, every run gives the same.
            let repeats = if mutates(plan) { args.repeat } else { 1 };
            let config = run_config(args, None).with_repeats(repeats);
            let interpret = || symmc::run(plan, work, &Backend::Interpreter, &config);
            let outputs = spin("interpreting", interpret)?;
            let outputs = outputs.into_iter().map(|r| r.into_iter().map(|t| Some(Arc::new(t))).collect());
            Ok(Some((Compare::Interpreter, outputs.collect())))
        }
    }
}

/// How the outputs were rounded, by the source and by what of the plan serves the sizes.
fn histories(
    args: &RunArgs,
    plan: &CheckedPlan,
    source: &Graph,
    work: &Workload,
) -> Result<Vec<RoundingHistory>> {
    let runs = if args.repeat > 1 { Runs::Several } else { Runs::One };
    if args.backend == BackendArg::Interpreter {
        return Ok(output_histories(source, runs));
    }
    let bucket = &plan.buckets[serving(plan, source, work)?];
    Ok(plan.output_histories(bucket.program, runs)?)
}

/// Whether a run changes what the next one reads.
fn mutates(plan: &CheckedPlan) -> bool {
    plan.source_program().outputs.iter().any(|o| matches!(o.kind, OutputKind::Mutates(_)))
}

fn recorded_outputs(args: &RunArgs, plan: &CheckedPlan, work: &Workload) -> Result<Expected> {
    let Some(file) = &args.tensors else { bail!("--compare recorded needs --tensors") };
    let file = file.display();
    let others = "--compare interpreter compares with the interpreter, --compare none with nothing";
    match (&work.expected, &work.incomparable) {
        (Some(_), _) if args.repeat > 1 && mutates(plan) => bail!(
            "{file}: its outputs are those of one run, and {} changes its inputs from run to run, found --repeat {}; {others}",
            plan.source.name,
            args.repeat
        ),
        (Some(expected), _) => Ok(expected
            .iter()
            .map(|rank| rank.iter().map(|t| t.as_ref().map(Tensor::loaded).transpose()).collect())
            .collect::<std::io::Result<_>>()?),
        (None, Some(why)) => bail!("{file}: {why}; {others}"),
        (None, None) => bail!("{file}: it records no outputs (rank<r>.out.<i>); {others}"),
    }
}
