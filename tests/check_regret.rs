//! Regret of the default options over random programs ([`symmc_tests::regret`]) and files, at length.
//!
//! `check_regret COUNT [FIRST]` tries the seeds from `FIRST` (0) on; `check_regret MACHINE FILE...` tries files. It prints each program whose
//! plan is more than 1 % dearer than the best, and the distribution of the ratios at the end. The exit code is 1 if more than 5 % of
//! the programs exceed 1.01, or one exceeds 1.03.

use std::path::Path;
use std::process::ExitCode;

use symmc::{MachineProfile, OpenOptions, Program};
use symmc_cases::distributed;
use symmc_tests::regret::{Regret, measure};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut ratios = Vec::new();
    if let Some(Ok(count)) = arguments.first().map(|count| count.parse::<u64>()) {
        let first = arguments.get(1).and_then(|first| first.parse().ok()).unwrap_or(0);
        for seed in first..first + count {
            let (graph, kind) = distributed::program(seed);
            let ranks = graph.ranks.unwrap_or(1);
            let profile = MachineProfile::builtin(&format!("h200x{ranks}")).expect("a built-in profile");
            let program = Program::from_graph(graph).expect("a valid program");
            let name = format!("{seed} {}, {ranks} ranks", distributed::KINDS[kind]);
            ratios.push(report(&name, &measure(&program, &profile).expect("a plan")));
        }
    } else if let Some((machine, files)) = arguments.split_first() {
        let Some(profile) = MachineProfile::builtin(machine) else {
            eprintln!("check_regret: no machine is called {machine}");
            return ExitCode::from(2);
        };
        for file in files {
            match Program::open(Path::new(file), &OpenOptions::default()).and_then(|p| measure(&p, &profile))
            {
                Ok(regret) => ratios.push(report(file, &regret)),
                Err(error) => println!("{file}: {error}"),
            }
        }
    } else {
        eprintln!("usage: check_regret COUNT [FIRST] | check_regret MACHINE FILE...");
        return ExitCode::from(2);
    }
    ratios.sort_by(f64::total_cmp);
    let Some(&worst) = ratios.last() else { return ExitCode::SUCCESS };
    let above = |limit: f64| ratios.iter().filter(|&&ratio| ratio > limit).count();
    let at = |percent: usize| ratios[(ratios.len() * percent / 100).min(ratios.len() - 1)];
    println!(
        "{} programs: median {:.3}, 90 % {:.3}, 95 % {:.3}, worst {worst:.3}; {} above 1.01, {} above 1.03, {} above 1.10",
        ratios.len(),
        at(50),
        at(90),
        at(95),
        above(1.01),
        above(1.03),
        above(1.10)
    );
    let is_good = worst <= 1.03 && above(1.01) * 20 <= ratios.len();
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn report(name: &str, regret: &Regret) -> f64 {
    let ratio = regret.ratio();
    if ratio > 1.01 {
        let (options, best) = &regret.best;
        println!(
            "{name}: {ratio:.3}: {:.1} us and {:.1} MiB, with {options} {:.1} us and {:.1} MiB",
            regret.default.time_us, regret.default.memory_mib, best.time_us, best.memory_mib
        );
    }
    ratio
}
