//! `symmc plan`.

use std::mem::ManuallyDrop;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use symmc::{CheckedPlan, Config, Order, Plan, Program};

use crate::args::{PlanArgs, PlanFormat};
use crate::out::{put, put_exact, refuse_overwrite};
use crate::progress::spin;
use crate::{explain, html, load, report, say, summary};

pub fn plan(args: &PlanArgs) -> Result<ExitCode> {
    let start = Instant::now();
    let named = args.program.program.iter().chain(&args.tensors).cloned().chain(args.compile.machine_file());
    refuse_overwrite(args.output.as_deref(), &named.collect::<Vec<_>>())?;
    let tensors = load::tensors(args.tensors.as_deref())?;
    let mut given = load::given(&args.program, &args.compile, &[]);
    given.recorded = tensors.as_ref().map_or_else(Vec::new, |file| file.argument_shapes());
    let mut program = load::program(&args.program, given, tensors.as_ref())?;
    load::close_ranks(&mut program)?;
    refuse_overwrite(args.output.as_deref(), &program.files)?;
    let config = load::config(&args.compile)?;
    let imported = start.elapsed();
    if args.orders {
        put(&orders(&program, &config)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let made = spin("planning", || symmc::compile_with_report(&program, &config));
    if let (Some(plan), Some(path)) = (made.as_ref().err().and_then(symmc::Error::plan), &args.output) {
        // For the report of the defect.
        write(plan, path)?;
    }
    let (plan, report) = made?;
    // The process ends with this command, and its memory with it.
    let (plan, program) = (ManuallyDrop::new(plan), ManuallyDrop::new(program));
    if let Some(path) = &args.output {
        write(&plan, path)?;
    }
    let planned = start.elapsed();
    match (&args.explain, args.format) {
        (Some(value), _) => put(&explain::explain(&plan, value)?)?,
        (None, PlanFormat::Json) => put_exact(&format!("{}\n", plan.to_json()))?,
        (None, PlanFormat::Summary) => {
            put_exact(&summary::summary(&plan, &times(&program, &plan, &config)?)?)?
        }
        (None, PlanFormat::Html) => put_exact(&html::html(&plan)?)?,
        (None, PlanFormat::Text) => {
            put(&report::report_with_times(&plan, Some(&times(&program, &plan, &config)?))?)?;
        }
    }
    if args.timing {
        say::line(&format!("import {:.1} ms", imported.as_secs_f64() * 1e3));
        for (stage, time) in report.stages {
            say::line(&format!("{stage} {:.1} ms", time.as_secs_f64() * 1e3));
        }
        say::line(&format!("total {:.1} ms", planned.as_secs_f64() * 1e3));
    }
    Ok(ExitCode::SUCCESS)
}

/// The estimated times of a plan, with the chosen collectives and with plain ones.
fn times(program: &Program, plan: &CheckedPlan, config: &Config) -> Result<report::Times> {
    let chosen = symmc::estimate(plan, &config.profile)?;
    // GPUs may refuse the plan with plain collectives.
    let plain =
        symmc::estimate_plain(program, plan, config).unwrap_or_else(|_| vec![None; plan.buckets.len()]);
    Ok(report::Times { chosen, plain })
}

/// A plan for each order, and what its largest bucket needs beside program order.
fn orders(program: &Program, config: &Config) -> Result<String> {
    let plans: std::result::Result<Vec<(Order, CheckedPlan)>, symmc::Error> = spin("planning", || {
        let plan = |&order: &Order| Ok((order, symmc::compile(program, &config.clone().with_order(order))?));
        Order::ALL.iter().map(plan).collect()
    });
    Ok(report::orders(&plans?))
}

fn write(plan: &Plan, path: &Path) -> Result<()> {
    Ok(symmc::write_file(path, plan.to_json().as_bytes())?)
}
