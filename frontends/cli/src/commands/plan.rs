//! `symmc plan`: plans a program, or reads a saved plan, and prints a report.
//!
//! A saved plan has no record of how it was made. Its report is the same as when it was made, except that estimated times
//! need the profile of the plan's machine, and that the time with plain collectives is for the default options of planning.

use std::mem::ManuallyDrop;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail};
use symmc::unstable::ir::InputKind;
use symmc::unstable::plan::FixedRole;
use symmc::{
    ArgumentBinding, CheckedPlan, CompileConfig, MachineProfile, OrderStrategy, Plan, Program, TriedProposal,
};

use crate::args::{PlanArgs, PlanFormat};
use crate::progress::with_spinner;
use crate::stdout::{print_exact, print_text, refuse_overwrite};
use crate::{explain, html, load, messages, report, summary};

pub fn plan(args: &PlanArgs) -> Result<ExitCode> {
    if load::is_plan_argument(&args.program)? {
        return report_saved_plan(args);
    }
    let start = Instant::now();
    let named = args.program.program.iter().chain(&args.tensors).cloned().chain(args.compile.machine_file());
    refuse_overwrite(args.output.as_deref(), &named.collect::<Vec<_>>())?;
    let tensors = load::open_tensors(args.tensors.as_deref())?;
    let mut extents = load::provided_extents(&args.program, &args.compile, &[]);
    extents.recorded_shapes = tensors.as_ref().map_or_else(Vec::new, |file| file.argument_shapes());
    let mut program = load::open_program(&args.program, extents, tensors.as_ref())?;
    load::infer_ranks(&mut program)?;
    refuse_overwrite(args.output.as_deref(), &program.files)?;
    let config = load::host_config(&args.compile, program.graph.ranks.unwrap_or(0))?;
    let imported = start.elapsed();
    if args.orders {
        print_text(&compare_orders(&program, &config)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let compiled = with_spinner("planning", || symmc::compile_with_report(&program, &config));
    if let (Some(plan), Some(path)) = (compiled.as_ref().err().and_then(symmc::Error::plan), &args.output) {
        // The plan does not check, which is a defect of symmc: the file is for the report of the defect.
        write_plan(plan, path)?;
    }
    let (plan, compile_report) = compiled?;
    // The process ends with this command, which frees their memory at once.
    let plan = ManuallyDrop::new(plan);
    let program = ManuallyDrop::new(program);
    if let Some(path) = &args.output {
        write_plan(&plan, path)?;
    }
    let planned = start.elapsed();
    print_plan(args, &plan, &compile_report.tried, || Ok(Some(estimate_times(&program, &plan, &config)?)))?;
    if args.timing {
        messages::print_line(&format!("import {:.1} ms", imported.as_secs_f64() * 1e3));
        for (stage, time) in compile_report.stages {
            messages::print_line(&format!("{stage} {:.1} ms", time.as_secs_f64() * 1e3));
        }
        messages::print_line(&format!("total {:.1} ms", planned.as_secs_f64() * 1e3));
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints a plan in the form that the options name. Estimated times are only computed for forms that show them.
fn print_plan(
    args: &PlanArgs,
    plan: &CheckedPlan,
    tried: &[Vec<TriedProposal>],
    estimate: impl FnOnce() -> Result<Option<report::EstimatedTimes>>,
) -> Result<()> {
    if !args.explain.is_empty() {
        let texts: Result<Vec<String>> =
            args.explain.iter().map(|name| explain::explain(plan, name, tried)).collect();
        return print_text(&texts?.join("\n"));
    }
    match args.format {
        PlanFormat::Json => print_exact(&format!("{}\n", plan.to_json())),
        PlanFormat::Html => print_exact(&html::render_plan_with_times(plan, estimate()?.as_ref())?),
        PlanFormat::Text => print_text(&report::report_with_times(plan, estimate()?.as_ref())?),
        PlanFormat::Summary => match estimate()? {
            Some(times) => print_exact(&summary::summary(plan, &times)?),
            None => bail!("--format summary has estimated times, which need the profile of {}", plan.machine),
        },
    }
}

fn report_saved_plan(args: &PlanArgs) -> Result<ExitCode> {
    let path = args.program.first_path();
    // The profile of the machine is not part of a plan.
    let compile_options = args.compile.provided_options().filter(|option| *option != "--machine");
    let other_options = [
        ("--tensors", args.tensors.is_some()),
        ("--output", args.output.is_some()),
        ("--orders", args.orders),
        ("--timing", args.timing),
    ];
    let other_options = other_options.into_iter().filter(|(_, is_given)| *is_given).map(|(option, _)| option);
    let options = args.program.provided_options().chain(compile_options).chain(other_options);
    load::refuse_program_options(path, options)?;
    let plan = load::open_plan(&args.program)?;
    let profile = find_profile(args, &plan)?;
    print_plan(args, &plan, &[], || match profile {
        Some(profile) => Ok(Some(estimate_saved_plan(&plan, profile)?)),
        None => {
            messages::note(&format!(
                "{}: no estimated times, because the profile of {} is not built in; name its file with --machine",
                path.display(),
                plan.machine
            ));
            Ok(None)
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The profile of the machine that a plan is for: the one of `--machine`, or the built-in one. `None` if there is neither.
fn find_profile(args: &PlanArgs, plan: &CheckedPlan) -> Result<Option<MachineProfile>> {
    let Some(name) = &args.compile.machine else { return Ok(MachineProfile::builtin(&plan.machine)) };
    let profile = load::machine_profile(name)?;
    if profile.name != plan.machine {
        bail!(
            "{}: the plan is for the machine {}, found --machine {name}, which is {}; plan the program again to \
             change the machine",
            args.program.first_path().display(),
            plan.machine,
            profile.name
        );
    }
    Ok(Some(profile))
}

/// The estimated times of a saved plan. The time with plain collectives is for the default options of planning, and for the
/// numerics and the bound arguments of the plan.
fn estimate_saved_plan(plan: &CheckedPlan, profile: MachineProfile) -> Result<report::EstimatedTimes> {
    let source = plan.source_program();
    let program = Program::from_graph(source.clone())?;
    let inputs: Vec<_> = source.inputs.values().collect();
    let bound = plan.fixed.iter().filter_map(|fixed| match fixed.role {
        FixedRole::Bound { input } => inputs.get(input).filter(|input| input.kind == InputKind::Argument),
        FixedRole::Landing { .. } => None,
    });
    let bound: Vec<String> = bound.map(|input| source.value_name(input.value).to_string()).collect();
    let bind = if bound.is_empty() { ArgumentBinding::None } else { ArgumentBinding::Named(bound) };
    let config = CompileConfig::default().with_profile(profile).with_bind(bind).with_numerics(plan.numerics);
    estimate_times(&program, plan, &config)
}

/// The estimated times of a plan, with the chosen collectives and with plain ones.
fn estimate_times(
    program: &Program,
    plan: &CheckedPlan,
    config: &CompileConfig,
) -> Result<report::EstimatedTimes> {
    let chosen = symmc::estimate(plan, &config.profile)?;
    // GPUs may not support the plan with plain collectives. The report then has no time for it.
    let plain =
        symmc::estimate_plain(program, plan, config).unwrap_or_else(|_| vec![None; plan.buckets.len()]);
    Ok(report::EstimatedTimes { chosen, plain })
}

/// Plans the program in each order; returns a table with the memory of each plan's largest bucket, next to that of
/// program order.
fn compare_orders(program: &Program, config: &CompileConfig) -> Result<String> {
    let plans: std::result::Result<Vec<(OrderStrategy, CheckedPlan)>, symmc::Error> =
        with_spinner("planning", || {
            let plan_in_order = |&order: &OrderStrategy| {
                Ok((order, symmc::compile(program, &config.clone().with_order(order))?))
            };
            OrderStrategy::ALL.iter().map(plan_in_order).collect()
        });
    Ok(report::order_table(&plans?))
}

fn write_plan(plan: &Plan, path: &Path) -> Result<()> {
    Ok(symmc::write_file(path, plan.to_json().as_bytes())?)
}
