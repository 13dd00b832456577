//! Trials of rewritten programs ([`symmc_tests::rewrites`]) at length.
//!
//! `check_rewrites COUNT [FIRST]` tries the seeds from `FIRST` (0) on. It prints each that fails and counts at the end; the exit code is 1
//! if one failed.

use std::process::ExitCode;
use std::time::Instant;

use symmc_tests::rewrites::{RewriteCounts, trial};

fn main() -> ExitCode {
    let number = |i: usize| std::env::args().nth(i).and_then(|a| a.parse::<u64>().ok());
    let Some(count) = number(1) else {
        eprintln!("usage: check_rewrites COUNT [FIRST]");
        return ExitCode::from(2);
    };
    // A panic is reported with its trial.
    std::panic::set_hook(Box::new(|_| ()));
    let (start, first, mut all, mut failed) =
        (Instant::now(), number(2).unwrap_or(0), RewriteCounts::default(), 0);
    for seed in first..first + count {
        if let Err(error) = trial(seed, &mut all) {
            failed += 1;
            println!("{error}\n");
        }
    }
    println!(
        "{count} programs in {:.0} s: {failed} failed; {} forms, {} runs compared; {} programs have fewer collectives",
        start.elapsed().as_secs_f64(),
        all.forms,
        all.runs,
        all.with_fewer_collectives
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
