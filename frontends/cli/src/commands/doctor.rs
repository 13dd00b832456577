//! `symmc doctor`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use symmc::doctor::{Check, Diagnosis, DoctorConfig, Prober, Status};

use crate::args::{DoctorArgs, DoctorFormat};
use crate::out::{put, put_exact};
use crate::own::Own;
use crate::progress::spin;

/// Says what this machine can do and what it lacks.
pub fn doctor(args: &DoctorArgs, own: &Own) -> Result<ExitCode> {
    if let Some(part) = args.part {
        put_exact(&(serde_json::to_string(&symmc::doctor::examine(part))? + "\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let prober = Prober { program: own.program.clone(), args: own.with(&["doctor", "--part"]) };
    let limit = Duration::from_secs_f64(args.timeout);
    let config = DoctorConfig::default().with_limit(limit).with_prober(prober);
    let found = spin("asking drivers and libraries", || symmc::doctor(&config));
    match args.format {
        DoctorFormat::Text => put(&text(&found))?,
        DoctorFormat::Json => put_exact(&(serde_json::to_string_pretty(&found)? + "\n"))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A line for each check, and a last one that counts what is to be done.
fn text(found: &Diagnosis) -> String {
    let width = found.checks.iter().map(|c| c.name.len()).max().unwrap_or(0);
    let line = |c: &Check| {
        let remedy = c.remedy.as_ref().map_or(String::new(), |r| format!(": {r}"));
        format!("{:<8} {:<width$}  {}{remedy}\n", c.status.name(), c.name, c.found)
    };
    let lines: String = found.checks.iter().map(line).collect();
    let count = |status: Status| found.checks.iter().filter(|c| c.status == status).count();
    let all = [Status::Ok, Status::Limited, Status::Missing, Status::Unknown];
    let counts: Vec<String> = all.map(|s| format!("{} {}", count(s), s.name())).into();
    format!("symmc {}\n{lines}{}; {}\n", found.symmc, counts.join(", "), verdict(&found.checks))
}

/// Where plans run on this machine.
fn verdict(checks: &[Check]) -> &'static str {
    let usable = |status: Status| matches!(status, Status::Ok | Status::Limited);
    let have =
        |names: &[&str]| checks.iter().filter(|c| names.contains(&c.name.as_str())).all(|c| usable(c.status));
    let host = have(&["shared memory", "handle passing"]);
    let gpus = have(&["handle passing", "driver", "gpus", "memory handles", "nvrtc", "cublaslt"]);
    match (host, gpus) {
        (true, true) => "plans run on host ranks and on GPUs",
        (true, false) => "plans run on host ranks, not on GPUs",
        (false, true) => "plans run on GPUs, not on host ranks",
        (false, false) => "plans run on threads of one process alone",
    }
}
