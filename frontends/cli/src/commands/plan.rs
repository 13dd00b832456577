//! `symmc plan`.

use std::mem::ManuallyDrop;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use symmc::{CheckedPlan, CompileConfig, OrderStrategy, Plan, Program};

use crate::args::{PlanArgs, PlanFormat};
use crate::progress::with_spinner;
use crate::stdout::{print_exact, print_text, refuse_overwrite};
use crate::{explain, html, load, messages, report, summary};

pub fn plan(args: &PlanArgs) -> Result<ExitCode> {
    let start = Instant::now();
    let named = args.program.program.iter().chain(&args.tensors).cloned().chain(args.compile.machine_file());
    refuse_overwrite(args.output.as_deref(), &named.collect::<Vec<_>>())?;
    let tensors = load::open_tensors(args.tensors.as_deref())?;
    let mut given = load::provided_extents(&args.program, &args.compile, &[]);
    given.recorded_shapes = tensors.as_ref().map_or_else(Vec::new, |file| file.argument_shapes());
    let mut program = load::open_program(&args.program, given, tensors.as_ref())?;
    load::infer_ranks(&mut program)?;
    refuse_overwrite(args.output.as_deref(), &program.files)?;
    let config = load::host_config(&args.compile)?;
    let imported = start.elapsed();
    if args.orders {
        print_text(&compare_orders(&program, &config)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let made = with_spinner("planning", || symmc::compile_with_report(&program, &config));
    if let (Some(plan), Some(path)) = (made.as_ref().err().and_then(symmc::Error::plan), &args.output) {
        // For the report of the defect.
        write_plan(plan, path)?;
    }
    let (plan, report) = made?;
    // The process ends with this command, and its memory with it.
    let (plan, program) = (ManuallyDrop::new(plan), ManuallyDrop::new(program));
    if let Some(path) = &args.output {
        write_plan(&plan, path)?;
    }
    let planned = start.elapsed();
    match (&args.explain, args.format) {
        (Some(value), _) => print_text(&explain::explain(&plan, value)?)?,
        (None, PlanFormat::Json) => print_exact(&format!("{}\n", plan.to_json()))?,
        (None, PlanFormat::Summary) => {
            print_exact(&summary::summary(&plan, &estimate_times(&program, &plan, &config)?)?)?
        }
        (None, PlanFormat::Html) => print_exact(&html::render_plan(&plan)?)?,
        (None, PlanFormat::Text) => {
            print_text(&report::report_with_times(&plan, Some(&estimate_times(&program, &plan, &config)?))?)?;
        }
    }
    if args.timing {
        messages::print_line(&format!("import {:.1} ms", imported.as_secs_f64() * 1e3));
        for (stage, time) in report.stages {
            messages::print_line(&format!("{stage} {:.1} ms", time.as_secs_f64() * 1e3));
        }
        messages::print_line(&format!("total {:.1} ms", planned.as_secs_f64() * 1e3));
    }
    Ok(ExitCode::SUCCESS)
}

/// The estimated times of a plan, with the chosen collectives and with plain ones.
fn estimate_times(
    program: &Program,
    plan: &CheckedPlan,
    config: &CompileConfig,
) -> Result<report::EstimatedTimes> {
    let chosen = symmc::estimate(plan, &config.profile)?;
    // GPUs may refuse the plan with plain collectives.
    let plain =
        symmc::estimate_plain(program, plan, config).unwrap_or_else(|_| vec![None; plan.buckets.len()]);
    Ok(report::EstimatedTimes { chosen, plain })
}

/// A plan for each order, and what its largest bucket needs beside program order.
fn compare_orders(program: &Program, config: &CompileConfig) -> Result<String> {
    let plans: std::result::Result<Vec<(OrderStrategy, CheckedPlan)>, symmc::Error> =
        with_spinner("planning", || {
            let plan = |&order: &OrderStrategy| {
                Ok((order, symmc::compile(program, &config.clone().with_order(order))?))
            };
            OrderStrategy::ALL.iter().map(plan).collect()
        });
    Ok(report::order_table(&plans?))
}

fn write_plan(plan: &Plan, path: &Path) -> Result<()> {
    Ok(symmc::write_file(path, plan.to_json().as_bytes())?)
}
