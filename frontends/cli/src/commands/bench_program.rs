//! `symmc bench program`: measures the runs of a program, next to the estimates of the machine profile.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use symmc::unstable::ir::SymbolBindings;
use symmc::unstable::plan::Bucket;
use symmc::{
    CheckedPlan, DrawConfig, Execution, MachineProfile, Program, RunConfig, RunTimes, Weights, Workload,
};

use crate::args::{BackendArg, BenchProgramArgs};
use crate::load;
use crate::progress::with_spinner;
use crate::self_command::SelfCommand;
use crate::stdout::{print_text, refuse_overwrite};
use crate::units::{format_count, format_digits, format_table};

/// The plan to measure, and the profile for its estimates, if that is known.
struct BenchSubject {
    plan: CheckedPlan,
    profile: Option<MachineProfile>,
}

struct MeasuredSizes {
    sizes: String,
    /// The estimate of the profile, in microseconds.
    estimated: Option<f64>,
    us: RunMicros,
}

/// The time of a run on the slowest rank, in microseconds.
struct RunMicros {
    least: f64,
    median: f64,
    /// Not measured on the host.
    most: Option<f64>,
}

/// Measures a program or a plan at the sizes of `--set`, or at the upper ends of each bucket. Prints the time of one run on
/// the slowest rank next to the estimate.
pub fn bench_program(args: &BenchProgramArgs, self_command: &SelfCommand) -> Result<ExitCode> {
    if args.backend == BackendArg::Host && args.profile_trace.is_some() {
        bail!("--profile-trace needs --backend cuda");
    }
    let named = args.program.program.iter().cloned().chain(args.compile.machine_file());
    refuse_overwrite(args.profile_trace.as_deref(), &named.collect::<Vec<_>>())?;
    let subject = open_subject(args)?;
    let plan = &subject.plan;
    let all_sizes = sizes_to_measure(plan, &args.set)?;
    if let (Some(file), true) = (&args.profile_trace, all_sizes.len() > 1) {
        bail!(
            "{}: a trace is for one bucket, found {} buckets; choose the sizes of one with --set",
            file.display(),
            all_sizes.len()
        );
    }
    let measure = ProgramMeasurement::new(args, self_command, plan)?;
    let mut measured = Vec::with_capacity(all_sizes.len());
    for (label, bindings) in &all_sizes {
        let estimated = match &subject.profile {
            Some(profile) => Some(symmc::estimate_at(plan, profile, bindings)?.total_us),
            None => None,
        };
        let us = with_spinner("measuring", || measure.measure_at(bindings))?;
        measured.push(MeasuredSizes { sizes: label.clone(), estimated, us });
    }
    print_text(&format_times(args, plan, &measured))?;
    Ok(ExitCode::SUCCESS)
}

fn open_subject(args: &BenchProgramArgs) -> Result<BenchSubject> {
    if load::is_plan_argument(&args.program)? {
        let options = args.program.provided_options().chain(args.compile.provided_options());
        load::refuse_program_options(args.program.first_path(), options)?;
        let plan = load::open_plan(&args.program)?;
        let profile = MachineProfile::builtin(&plan.machine);
        return Ok(BenchSubject { plan, profile });
    }
    let extents = load::provided_extents(&args.program, &args.compile, &args.set);
    let mut program = load::open_program(&args.program, extents, None)?;
    load::infer_ranks(&mut program)?;
    let ranks = program.graph.ranks.unwrap_or(0);
    let config = match args.backend {
        BackendArg::Cuda => load::gpu_config(&args.compile, ranks, &args.gpus)?,
        BackendArg::Host => load::host_config(&args.compile, ranks)?,
    };
    let plan = symmc::compile(&program, &config)?;
    Ok(BenchSubject { plan, profile: Some(config.profile) })
}

/// The sizes to measure, each with a label: the sizes of `--set`, or the upper ends of each bucket.
fn sizes_to_measure(plan: &CheckedPlan, set: &[(String, i64)]) -> Result<Vec<(String, SymbolBindings)>> {
    let source = plan.source_program();
    let label = |sizes: &[(String, i64)]| {
        let sizes: Vec<String> = sizes.iter().map(|(name, size)| format!("{name}={size}")).collect();
        sizes.join(" ")
    };
    if !set.is_empty() || source.symbols.is_empty() {
        return Ok(vec![(label(set), symmc::resolve_bindings(source, set).context("--set")?)]);
    }
    let upper_ends = |bucket: &Bucket| {
        let upper: Vec<(String, i64)> =
            bucket.symbols.iter().map(|(name, range)| (name.clone(), range[1])).collect();
        Ok((label(&upper), symmc::resolve_bindings(source, &upper)?))
    };
    plan.buckets.iter().map(upper_ends).collect()
}

struct ProgramMeasurement<'a> {
    args: &'a BenchProgramArgs,
    self_command: &'a SelfCommand,
    plan: &'a CheckedPlan,
    /// The program of the plan, for the random inputs of runs on the host.
    source: Program,
}

impl<'a> ProgramMeasurement<'a> {
    fn new(
        args: &'a BenchProgramArgs,
        self_command: &'a SelfCommand,
        plan: &'a CheckedPlan,
    ) -> Result<ProgramMeasurement<'a>> {
        if args.backend == BackendArg::Cuda {
            prepare_gpus(args, plan)?;
        }
        let source = Program::from_graph(plan.source_program().clone())?;
        Ok(ProgramMeasurement { args, self_command, plan, source })
    }

    /// Measures a run at these sizes.
    fn measure_at(&self, bindings: &SymbolBindings) -> Result<RunMicros> {
        match self.args.backend {
            BackendArg::Cuda => on_gpus(self.args, self.self_command, self.plan, bindings),
            BackendArg::Host => self.measure_on_host(bindings),
        }
    }

    fn measure_on_host(&self, bindings: &SymbolBindings) -> Result<RunMicros> {
        let symbols = self.plan.source_program().symbols.iter();
        let symbols = symbols.filter_map(|(id, symbol)| Some((symbol.name.clone(), bindings.get(id)?)));
        let draw = DrawConfig::default().with_arguments(true).with_symbols(symbols);
        let work = Workload::gather(&self.source.graph, &Weights::default(), None, &draw)?;
        let config = RunConfig::default().with_repeats(self.args.replays);
        let execution = Execution::Processes(self.self_command.rank_command());
        let ran = symmc::run_timed(self.plan, &work, &execution, &config)?;
        let Some(slowest) = RunTimes::slowest(&ran.times) else { bail!("no rank reported a time") };
        let us = |time: std::time::Duration| time.as_secs_f64() * 1e6;
        Ok(RunMicros { least: us(slowest.least), median: us(slowest.median), most: None })
    }
}

#[cfg(feature = "cuda")]
fn prepare_gpus(args: &BenchProgramArgs, plan: &CheckedPlan) -> Result<()> {
    symmc::check_gpu_support(plan, &args.gpus)?;
    crate::gpu::note_attention(plan);
    crate::gpu::note_cache();
    Ok(())
}

#[cfg(feature = "cuda")]
fn on_gpus(
    args: &BenchProgramArgs,
    self_command: &SelfCommand,
    plan: &CheckedPlan,
    bindings: &SymbolBindings,
) -> Result<RunMicros> {
    let gpus = symmc::GpuConfig::default().with_gpus(args.gpus.clone()).with_products(args.products.into());
    let trace = args.profile_trace.clone();
    let bench = symmc::bench::ProgramBench { replays: args.replays, runs: args.runs, trace };
    let times = symmc::bench::measure_program(plan, bindings, &gpus, &bench, &self_command.rank_command())?;
    let [least, median, most] =
        [0, 1, 2].map(|which: usize| times.iter().map(|t| t[which]).fold(0.0, f64::max));
    Ok(RunMicros { least, median, most: Some(most) })
}

#[cfg(not(feature = "cuda"))]
fn prepare_gpus(_: &BenchProgramArgs, _: &CheckedPlan) -> Result<()> {
    Err(crate::gpu::absent())
}

#[cfg(not(feature = "cuda"))]
fn on_gpus(_: &BenchProgramArgs, _: &SelfCommand, _: &CheckedPlan, _: &SymbolBindings) -> Result<RunMicros> {
    Err(crate::gpu::absent())
}

/// One line if one set of sizes was measured, else a table with a row for each bucket.
fn format_times(args: &BenchProgramArgs, plan: &CheckedPlan, measured: &[MeasuredSizes]) -> String {
    let name = &plan.source_program().name;
    let ranks = format_count(plan.ranks, "rank");
    let how = match args.backend {
        BackendArg::Cuda => format!("{} replays", args.replays),
        BackendArg::Host => format!("{} runs", args.replays),
    };
    let graph = match args.backend {
        BackendArg::Cuda => format!("{} runs in a graph, ", args.runs),
        BackendArg::Host => String::new(),
    };
    if let [MeasuredSizes { estimated, us: RunMicros { least, median, most }, .. }] = measured {
        let maximum = most.map_or(String::new(), |most| format!(", most {most:.1}"));
        let estimated = match estimated {
            Some(us) => format!("; estimated {us:.1} µs, measured / estimated {:.2}", median / us),
            None => format!("; no estimate, because the profile of {} is not built in", plan.machine),
        };
        return format!(
            "{name}: {median:.1} µs (median of {how}; least {least:.1}{maximum}; {graph}{ranks}){estimated}\n"
        );
    }
    let header = ["sizes", "estimated µs", "measured µs", "measured / estimated", "least µs"];
    let mut rows = vec![header.map(String::from).to_vec()];
    for MeasuredSizes { sizes, estimated, us: RunMicros { least, median, .. } } in measured {
        let estimate = estimated.map_or("–".to_string(), format_digits);
        let ratio = estimated.map_or("–".to_string(), |us| format!("{:.2}", median / us));
        rows.push(vec![sizes.clone(), estimate, format_digits(*median), ratio, format_digits(*least)]);
    }
    format!(
        "{name}: medians of {how}; {graph}{ranks}, at the upper ends of each bucket\n{}",
        format_table(&rows)
    )
}
