//! Sessions on GPUs, two ranks as threads of one process, each with a GPU of its own: recorded programs in memory of the
//! session and of the caller, sizes and pointers that change, other streams, the caller's graphs, what callers do wrong, and
//! that nothing is left behind.
//!
//! ```text
//! check_embedding [all]          the checks
//! check_embedding times FILE [SYMBOL=VALUE]   times of a program for two ranks
//! ```

mod common;
mod recorded;
mod runs;
mod times;

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};

fn check(args: &[String]) -> Result<()> {
    if let [command, file, symbols @ ..] = args
        && command == "times"
    {
        let symbol = |text: &String| {
            let (name, value) = text.split_once('=').context("SYMBOL=VALUE")?;
            Ok((name.to_string(), value.parse()?))
        };
        return times::times(file, &symbols.iter().map(symbol).collect::<Result<Vec<_>>>()?);
    }
    let plan = common::counted()?;
    let mut failed = 0;
    let mut check = |name: &str, result: Result<()>| {
        if let Err(error) = result {
            failed += 1;
            println!("{name} FAILED: {error:#}");
        }
    };
    check("changes", runs::changes(&plan));
    check("streams", runs::streams(&plan));
    check("wrong pointers", runs::wrong_pointers(&plan));
    check("budget", runs::budget(&plan));
    for stem in ["hf_llama_tp2", "families/qwen3_tp2", "expert_gather2"] {
        check(stem, recorded::recorded(stem));
    }
    check("dropped", runs::dropped(&plan));
    check("many", runs::many(&plan));
    ensure!(failed == 0, "{failed} checks failed");
    Ok(())
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match check(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
