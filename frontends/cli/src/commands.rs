//! The commands, one function each.

#[cfg(feature = "cuda")]
mod bench;
mod bench_program;
mod doctor;
mod pack;
mod plan;
mod print;
mod results;
mod run;

use std::process::ExitCode;

use anyhow::{Result, bail};
use symmc::unstable::ir::text;

use crate::args::{Args, Bench, CheckArgs, Command, OpsArgs, RankArgs};
use crate::load;
use crate::out::put;
use crate::own::Own;
use crate::units::{count, table};

/// Stands in for what measures GPUs.
#[cfg(not(feature = "cuda"))]
mod bench {
    use std::process::ExitCode;

    use anyhow::Result;

    use crate::args::{BenchArgs, TuneArgs};
    use crate::gpu::absent;
    use crate::own::Own;

    pub fn collectives(_: &BenchArgs, _: &Own) -> Result<ExitCode> {
        Err(absent())
    }

    pub fn tune(_: &TuneArgs, _: &Own) -> Result<ExitCode> {
        Err(absent())
    }
}

pub fn dispatch(args: Args, own: &Own) -> Result<ExitCode> {
    match args.command {
        Command::Plan(args) => plan::plan(&args),
        Command::Check(args) => check(&args),
        Command::Run(args) => run::run(&args, own),
        Command::Print(args) => print::print(&args),
        Command::Pack(args) => pack::pack(&args),
        Command::Tune(args) => bench::tune(&args, own),
        Command::Bench(Bench::Collectives(args)) => bench::collectives(&args, own),
        Command::Bench(Bench::Program(args)) => bench_program::program(&args, own),
        Command::Ops(args) => ops(&args),
        Command::Doctor(args) => doctor::doctor(&args, own),
        Command::Rank(args) => rank(&args),
    }
}

fn check(args: &CheckArgs) -> Result<ExitCode> {
    let plan = symmc::checked(load::plan(&args.plan)?)?;
    let at = args.plan.display();
    put(&format!("{at}: safe on {}. {}\n", count(plan.ranks, "rank"), plan.report()))?;
    let compared = symmc::compare_with_source(&plan);
    put(&format!("{at}: {compared}"))?;
    let compared = compared.agreed().map_err(symmc::Error::from)?;
    let failed = args.require_compared && !compared.is_complete();
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn ops_of_text(filter: Option<&str>) -> Result<ExitCode> {
    put(&match filter {
        None => text::reference(),
        Some(filter) => {
            let found: Vec<String> = text::forms::forms()
                .filter(|f| f.name.contains(&filter.to_lowercase()))
                .map(ToString::to_string)
                .collect();
            if found.is_empty() {
                bail!(
                    "no op of the text form has a name that contains {filter}; `symmc ops --symm` shows all"
                );
            }
            found.join("\n")
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

fn ops(args: &OpsArgs) -> Result<ExitCode> {
    if args.symm {
        return ops_of_text(args.filter.as_deref());
    }
    let frontends: &[(&str, Vec<(&str, &str)>)] = &[
        #[cfg(feature = "torch")]
        ("torch (.pt2)", symmc::supported_torch_ops()),
        #[cfg(feature = "onnx")]
        ("ONNX (.onnx)", symmc::supported_onnx_ops()),
    ];
    let filter = args.filter.as_deref().map(str::to_lowercase);
    let wanted = |name: &str| filter.as_ref().is_none_or(|f| name.to_lowercase().contains(f));
    let mut text = String::new();
    for (frontend, all) in frontends {
        let rows: Vec<Vec<String>> = all
            .iter()
            .filter(|(name, _)| wanted(name))
            .map(|(name, becomes)| vec![name.to_string(), becomes.to_string()])
            .collect();
        if !rows.is_empty() {
            text += &format!("{frontend}: {}\n{}", count(rows.len() as u64, "operator"), table(&rows));
        }
    }
    if let (true, Some(filter)) = (text.is_empty(), &args.filter) {
        let all: usize = frontends.iter().map(|(_, all)| all.len()).sum();
        bail!("no operator's name contains {filter}; symmc ops lists all {all}");
    }
    put(&format!(
        "{text}Any other operator is imported as opaque: it is planned, and running it fails with its name.\n"
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn rank(args: &RankArgs) -> Result<ExitCode> {
    symmc::rank_on(args.fd, &symmc::Registry::new())?;
    Ok(ExitCode::SUCCESS)
}
