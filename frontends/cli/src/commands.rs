//! The commands of `symmc`: each is a function from its arguments to the exit code. Short commands are in this file.

#[cfg(feature = "cuda")]
mod bench;
mod bench_program;
mod doctor;
mod pack;
mod pages;
mod plan;
mod print;
mod results;
mod run;

use std::process::ExitCode;

use anyhow::{Result, bail};
use symmc::unstable::ir::text;

use crate::args::{Args, BenchCommand, CheckArgs, CliCommand, OpsArgs, RankArgs};
use crate::load;
use crate::self_command::SelfCommand;
use crate::stdout::print_text;
use crate::units::{format_count, format_table};

/// The commands that measure GPUs, in builds without the feature `cuda`: they fail with the reason.
#[cfg(not(feature = "cuda"))]
mod bench {
    use std::process::ExitCode;

    use anyhow::Result;

    use crate::args::{BenchArgs, TuneArgs};
    use crate::gpu::absent;
    use crate::self_command::SelfCommand;

    pub fn collectives(_: &BenchArgs, _: &SelfCommand) -> Result<ExitCode> {
        Err(absent())
    }

    pub fn tune(_: &TuneArgs, _: &SelfCommand) -> Result<ExitCode> {
        Err(absent())
    }
}

pub fn run_command(args: Args, self_command: &SelfCommand) -> Result<ExitCode> {
    match args.command {
        CliCommand::Plan(args) => plan::plan(&args),
        CliCommand::Check(args) => run_check(&args),
        CliCommand::Run(args) => run::run(&args, self_command),
        CliCommand::Print(args) => print::print(&args),
        CliCommand::Pack(args) => pack::pack(&args),
        CliCommand::Tune(args) => bench::tune(&args, self_command),
        CliCommand::Bench(BenchCommand::Collectives(args)) => bench::collectives(&args, self_command),
        CliCommand::Bench(BenchCommand::Program(args)) => bench_program::bench_program(&args, self_command),
        CliCommand::Ops(args) => print_ops(&args),
        CliCommand::Doctor(args) => doctor::doctor(&args, self_command),
        CliCommand::Completions(args) => pages::completions(&args),
        CliCommand::Man(args) => pages::man(&args),
        CliCommand::Rank(args) => run_rank(&args),
    }
}

fn run_check(args: &CheckArgs) -> Result<ExitCode> {
    let plan = symmc::into_checked_plan(load::read_plan(&args.plan)?)?;
    let file = args.plan.display();
    print_text(&format!("{file}: safe on {}. {}\n", format_count(plan.ranks, "rank"), plan.report()))?;
    let comparison = symmc::compare_with_source(&plan);
    print_text(&format!("{file}: {comparison}"))?;
    let agreement = comparison.into_agreement().map_err(symmc::Error::from)?;
    let failed = args.require_compared && !agreement.is_complete();
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print_text_ops(filter: Option<&str>) -> Result<ExitCode> {
    print_text(&match filter {
        None => text::reference(),
        Some(filter) => {
            let names: Vec<String> = text::forms::forms()
                .filter(|f| f.name.contains(&filter.to_lowercase()))
                .map(ToString::to_string)
                .collect();
            if names.is_empty() {
                bail!(
                    "no op of the text form has a name that contains {filter}; `symmc ops --symm` lists all ops"
                );
            }
            names.join("\n")
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

fn print_ops(args: &OpsArgs) -> Result<ExitCode> {
    if args.symm {
        return print_text_ops(args.filter.as_deref());
    }
    let frontends: &[(&str, Vec<(&str, &str)>)] = &[
        #[cfg(feature = "torch")]
        ("torch (.pt2)", symmc::supported_torch_ops()),
        #[cfg(feature = "onnx")]
        ("ONNX (.onnx)", symmc::supported_onnx_ops()),
    ];
    let filter = args.filter.as_deref().map(str::to_lowercase);
    let matches_filter = |name: &str| filter.as_ref().is_none_or(|f| name.to_lowercase().contains(f));
    let mut text = String::new();
    for (frontend, operators) in frontends {
        let rows: Vec<Vec<String>> = operators
            .iter()
            .filter(|(name, _)| matches_filter(name))
            .map(|(name, becomes)| vec![name.to_string(), becomes.to_string()])
            .collect();
        if !rows.is_empty() {
            text += &format!(
                "{frontend}: {}\n{}",
                format_count(rows.len() as u64, "operator"),
                format_table(&rows)
            );
        }
    }
    if text.is_empty()
        && let Some(filter) = &args.filter
    {
        let total: usize = frontends.iter().map(|(_, operators)| operators.len()).sum();
        bail!("no operator has a name that contains {filter}; `symmc ops` lists all {total}");
    }
    print_text(&format!(
        "{text}Other operators are imported as opaque: they can be planned, but not run.\n"
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn run_rank(args: &RankArgs) -> Result<ExitCode> {
    symmc::run_rank_from_fd(args.fd, &symmc::CustomKernelRegistry::new())?;
    Ok(ExitCode::SUCCESS)
}
