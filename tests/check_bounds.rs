//! Trials of programs that index dynamic axes ([`symmc_tests::bounds`]) at length.
//!
//! `check_bounds COUNT [FIRST]` tries the seeds from `FIRST` (0) on, prints each that fails, and counts at the end; the exit
//! code is 1 if one failed.

use std::process::ExitCode;
use std::time::Instant;

use symmc_tests::bounds::trials;

fn main() -> ExitCode {
    let number = |i: usize| std::env::args().nth(i).and_then(|a| a.parse::<u64>().ok());
    let Some(count) = number(1) else {
        eprintln!("usage: check_bounds COUNT [FIRST]");
        return ExitCode::from(2);
    };
    let (first, start, mut failed) = (number(2).unwrap_or(0), Instant::now(), 0);
    let done = trials(first..first + count, |error| {
        failed += 1;
        println!("{error}\n");
    });
    println!(
        "{count} programs in {:.0} s: {failed} failed; {} sizes bound or refused as the interpreter says; {} runs of host ranks \
         and {} of emulated kernels with its results, {} sizes refused on all ranks",
        start.elapsed().as_secs_f64(),
        done.bound,
        done.ran,
        done.emulated,
        done.refused
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
