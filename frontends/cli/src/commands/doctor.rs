//! `symmc doctor`: reports what this machine supports and what is missing.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use symmc::doctor::{CheckStatus, Diagnosis, DoctorCheck, DoctorConfig, Prober};

use crate::args::{DoctorArgs, DoctorFormat};
use crate::progress::with_spinner;
use crate::self_command::SelfCommand;
use crate::stdout::{print_exact, print_text};

/// Prints the report. With `--part` this process examines one part for the process that prints the report.
pub fn doctor(args: &DoctorArgs, self_command: &SelfCommand) -> Result<ExitCode> {
    if let Some(part) = args.part {
        print_exact(&(serde_json::to_string(&symmc::doctor::examine(part))? + "\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let prober =
        Prober { program: self_command.program.clone(), args: self_command.args_with(&["doctor", "--part"]) };
    let limit = Duration::from_secs_f64(args.timeout);
    let config = DoctorConfig::default().with_timeout(limit).with_prober(prober);
    let diagnosis = with_spinner("checking drivers and libraries", || symmc::doctor(&config));
    match args.format {
        DoctorFormat::Text => print_text(&format_diagnosis(&diagnosis))?,
        DoctorFormat::Json => print_exact(&(serde_json::to_string_pretty(&diagnosis)? + "\n"))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A line for each check, and a last line with the number of checks of each status and a conclusion.
fn format_diagnosis(diagnosis: &Diagnosis) -> String {
    let width = diagnosis.checks.iter().map(|c| c.name.len()).max().unwrap_or(0);
    let line = |c: &DoctorCheck| {
        let remedy = c.remedy.as_ref().map_or(String::new(), |r| format!(": {r}"));
        format!("{:<8} {:<width$}  {}{remedy}\n", c.status.name(), c.name, c.found)
    };
    let lines: String = diagnosis.checks.iter().map(line).collect();
    let count = |status: CheckStatus| diagnosis.checks.iter().filter(|c| c.status == status).count();
    let statuses = [CheckStatus::Ok, CheckStatus::Limited, CheckStatus::Missing, CheckStatus::Unknown];
    let counts: Vec<String> = statuses.map(|s| format!("{} {}", count(s), s.name())).into();
    format!("symmc {}\n{lines}{}; {}\n", diagnosis.symmc, counts.join(", "), verdict(&diagnosis.checks))
}

/// A conclusion from all checks: where plans run on this machine.
fn verdict(checks: &[DoctorCheck]) -> &'static str {
    let usable = |status: CheckStatus| matches!(status, CheckStatus::Ok | CheckStatus::Limited);
    let all_usable =
        |names: &[&str]| checks.iter().filter(|c| names.contains(&c.name.as_str())).all(|c| usable(c.status));
    let host = all_usable(&["shared memory", "handle passing"]);
    let gpus = all_usable(&["handle passing", "driver", "gpus", "memory handles", "nvrtc", "cublaslt"]);
    match (host, gpus) {
        (true, true) => "plans run on host ranks and on GPUs",
        (true, false) => "plans run on host ranks, not on GPUs",
        (false, true) => "plans run on GPUs, not on host ranks",
        (false, false) => "plans run only on threads of one process",
    }
}
