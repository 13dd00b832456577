//! Trials of random programs ([`symmc_tests::trials`]) at length.
//!
//! `check_trials COUNT [FIRST]` tries the seeds from `FIRST` (0) on, most with ranks that are threads, one in sixteen
//! with processes. After one in two, some programs take turns in one session. It prints each that fails, reduced to the fewest
//! nodes that fail, and counts at the end; the exit code is 1 if one failed.

use std::process::ExitCode;
use std::time::Instant;

use symmc_control::{RankCommand, rank_main};
use symmc_runtime::CustomKernelRegistry;
use symmc_runtime::job::{JobMessage, SessionRequest, open_on_host};
use symmc_tests::trials::{TrialOutcome, least, shared_trial, trial};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize| args.get(i).and_then(|a| a.parse::<u64>().ok());
    if args.first().is_some_and(|a| a == "rank") {
        let fd = args.get(1).and_then(|fd| fd.parse().ok()).unwrap_or(-1);
        let kernels = CustomKernelRegistry::new();
        let open = |request: &SessionRequest| open_on_host(request, &kernels);
        let ended = rank_main(fd, |rank| rank.receive_task::<JobMessage>()?.run(rank, &open));
        return ended.map_or_else(
            |error| {
                eprintln!("{error}");
                ExitCode::FAILURE
            },
            |()| ExitCode::SUCCESS,
        );
    }
    let Some(count) = number(0) else {
        eprintln!("usage: check_trials COUNT [FIRST]");
        return ExitCode::from(2);
    };
    let Ok(program) = std::env::current_exe() else { return ExitCode::from(2) };
    let command = RankCommand { program, args: vec!["rank".into()] };
    let (start, mut all, mut failed) = (Instant::now(), TrialOutcome::default(), 0);
    // A panic is reported with its trial.
    std::panic::set_hook(Box::new(|_| ()));
    let first = number(1).unwrap_or(0);
    for seed in first..first + count {
        let processes = (seed % 16 == 15).then_some(&command);
        let nodes = nodes(seed);
        let mut count = |done: TrialOutcome| {
            all.runs += done.runs;
            all.collectives += done.collectives;
            all.by_rank += done.by_rank;
            all.ranks += done.ranks;
        };
        match trial(seed, nodes, processes) {
            Ok(done) => count(done),
            Err(error) => {
                failed += 1;
                println!("{}\n", least(seed, nodes, processes).unwrap_or(error));
            }
        }
        match (seed % 2 == 1).then(|| shared_trial(seed, nodes)) {
            Some(Ok(done)) => count(done),
            Some(Err(error)) => {
                failed += 1;
                println!("{error}\n");
            }
            None => {}
        }
    }
    let TrialOutcome { runs, collectives, by_rank, ranks } = all;
    println!(
        "{count} trials in {:.0} s: {failed} failed; {runs} runs on {ranks} ranks, {collectives} collectives, \
         {by_rank} values by rank",
        start.elapsed().as_secs_f64()
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// How many nodes the program of a trial has: mostly few, which say most when they fail.
fn nodes(seed: u64) -> usize {
    4 + (seed as usize * 7) % 26
}
