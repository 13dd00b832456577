//! Trials of edited plans ([`symmc_tests::mutants`]) at length.
//!
//! `check_mutants PLANS [MUTANTS [FIRST]]` makes the plans of the seeds from `FIRST` (0) on, and up to `MUTANTS` (10) edits of each. It
//! prints each plan that wrongly differs and each mutant that is missed, and the counts by kind of edit at the end. The exit code
//! is 1 if there was one.

use std::process::ExitCode;
use std::time::Instant;

use symmc_tests::mutants::{EditCounts, MutantCounts, trial};

fn main() -> ExitCode {
    let number = |i: usize| std::env::args().nth(i).and_then(|a| a.parse::<u64>().ok());
    let Some(plans) = number(1) else {
        eprintln!("usage: check_mutants PLANS [MUTANTS [FIRST]]");
        return ExitCode::from(2);
    };
    // A panic is reported with its trial.
    std::panic::set_hook(Box::new(|_| ()));
    let start = Instant::now();
    let mutants = number(2).unwrap_or(10) as usize;
    let first = number(3).unwrap_or(0);
    let mut counts = MutantCounts::default();
    let mut failed = 0;
    for seed in first..first + plans {
        if let Err(error) = trial(seed, mutants, &mut counts) {
            failed += 1;
            println!("{error}\n");
        }
    }
    for (edit, of_edit) in
        counts.edits.iter().map(|(edit, counts)| (*edit, *counts)).chain([("all", counts.total())])
    {
        let EditCounts { mutants, different, not_compared, equal, missed } = of_edit;
        println!(
            "{edit}: {mutants} mutants, {different} different, {not_compared} not compared, {equal} equal, {missed} missed"
        );
    }
    println!(
        "{} plans in {:.0} s, {} not compared; {failed} trials failed",
        counts.plans,
        start.elapsed().as_secs_f64(),
        counts.plans_not_compared
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
