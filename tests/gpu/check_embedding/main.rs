//! Sessions on two GPUs, ranks as threads and as processes: recorded programs in memory of the session and of the caller, sizes
//! and pointers that change, weights, buffers, streams and communicators of the caller and its graphs, what callers do wrong,
//! ranks that are killed and stopped, and that nothing is left behind. It runs in the root of the repository.
//!
//! ```text
//! check_embedding [NAME]         the checks, or those whose name begins so
//! check_embedding times FILE [SYMBOL=VALUE]   times of a program for two ranks, with pointers that change; started by a
//!                                            launcher (torchrun), of one rank of its group
//! ```

mod common;
mod lent;
mod memory;
mod moves;
mod processes;
mod recorded;
mod runs;
mod times;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;

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
    if let [command, task] = args
        && command == "rank"
    {
        return processes::rank(task);
    }
    let only = args.first().map_or("", String::as_str);
    let plan = common::counted()?;
    let (mut done, mut failed) = (0, 0);
    let mut check = |name: &str, work: &dyn Fn() -> Result<()>| {
        if !name.starts_with(only) {
            return;
        }
        let start = Instant::now();
        let result = work();
        done += 1;
        match result {
            Ok(()) => println!("  {name}: {:.1} s", start.elapsed().as_secs_f64()),
            Err(error) => {
                failed += 1;
                println!("{name} FAILED: {error:#}");
            }
        }
    };
    check("changes", &|| runs::changes(&plan));
    check("streams", &|| runs::streams(&plan));
    check("invalidated capture", &runs::invalidated_capture);
    check("wrong pointers", &|| runs::wrong_pointers(&plan));
    check("budget", &|| runs::budget(&plan));
    check("buffers", &|| memory::buffers(&plan));
    check("weights", &memory::weights);
    check("symmetric", &memory::symmetric);
    check("lent", &lent::lent);
    check("recorded of two ranks", &recorded::of_two_ranks);
    check("recorded of one rank", &recorded::of_one_rank);
    for ranks in [2, 4] {
        check(&format!("processes of {ranks} ranks"), &|| processes::programs(ranks));
    }
    check("moves in flight", &|| moves::in_flight(&plan));
    check("moves beside graphs", &|| moves::kept_by_graphs(&plan));
    for stem in ["hf_llama_tp2", "families/qwen3_tp2", "families/qwen3_moe_tp2", "expert_gather2"] {
        check(&format!("moves of {stem}"), &|| moves::moves(stem));
    }
    check("moves of what is copied", &moves::copied);
    check("signals", &signals);
    check("dropped", &|| runs::dropped(&plan));
    check("stuck", &runs::stuck);
    check("many", &|| runs::many(&plan));
    ensure!(failed == 0, "{failed} of {done} checks failed");
    ensure!(done > 0, "no check is called {only}");
    Ok(())
}

/// Each rank is killed and stopped once, all beside each other.
fn signals() -> Result<()> {
    let before = processes::free_memory()?;
    let cases = [Signal::SIGKILL, Signal::SIGSTOP].map(|signal| [(signal, 0), (signal, 1)]).concat();
    let ended: Vec<Result<()>> = std::thread::scope(|scope| {
        let start = |(signal, victim)| {
            let context = move || format!("{signal:?} of rank {victim}");
            scope.spawn(move || processes::signalled(signal, victim).with_context(context))
        };
        let threads: Vec<_> = cases.into_iter().map(start).collect();
        threads.into_iter().map(|t| t.join().unwrap_or_else(|_| bail!("a check panicked"))).collect()
    });
    ended.into_iter().collect::<Result<()>>()?;
    processes::nothing_left(&before)
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
