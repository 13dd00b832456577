//! Trials of edited plans ([`symmc_tests::mutants`]) at length.
//!
//! `check_mutants PLANS [MUTANTS [FIRST]]` makes the plans of the seeds from `FIRST` (0) on, and up to `MUTANTS` (10) edits of each. It
//! prints each plan that wrongly differs and each mutant that is missed, and the counts by kind of edit at the end. The exit code
//! is 1 if there was one.

use std::process::ExitCode;
use std::time::Instant;

use symmc_tests::mutants::{EditCounts, MutantCounts, trial};

fn main() -> ExitCode {
    let numbers: Option<Vec<u64>> = std::env::args().skip(1).map(|a| a.parse().ok()).collect();
    let (plans, mutants, first) = match numbers.as_deref() {
        Some(&[plans]) => (plans, 10, 0),
        Some(&[plans, mutants]) => (plans, mutants, 0),
        Some(&[plans, mutants, first]) => (plans, mutants, first),
        _ => {
            eprintln!("usage: check_mutants PLANS [MUTANTS [FIRST]]");
            return ExitCode::from(2);
        }
    };
    // A panic is reported with its trial.
    std::panic::set_hook(Box::new(|_| ()));
    let start = Instant::now();
    let mut counts = MutantCounts::default();
    let mut failed = 0;
    for seed in first..first + plans {
        if let Err(error) = trial(seed, mutants as usize, &mut counts) {
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
