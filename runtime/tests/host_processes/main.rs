//! Ranks as processes: results, and how runs end when ranks die, hang or differ.
//!
//! This binary is also the rank process: `rank <fd>` runs the rank of a control socket, `rank-with <kernels>
//! <fd>` does so with other kernels of custom ops, `rank-partial <fd>` stops one rank inside a message,
//! `join` joins by the environment, `launcher` starts a run that does not end. Otherwise it runs the tests
//! whose names contain the first argument. Tests run one after another, so that the children of this process
//! are the ranks of the test.

mod answers;
mod custom;
mod faults;
mod files;
mod joining;
mod programs;
mod results;

use std::process::ExitCode;

use symmc_runtime::CustomKernelRegistry;

type Test = (&'static str, fn());

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("rank") => return rank(args.get(1), &custom::kernels()),
        Some("rank-with") => {
            return rank(args.get(2), &custom::kernels_of(args.get(1).map_or("", String::as_str)));
        }
        Some("rank-partial") => {
            faults::send_part_of_a_message(args.get(1));
            return rank(args.get(1), &custom::kernels());
        }
        Some("join") => return joining::member(),
        Some("launcher") => return faults::launcher(),
        Some("--list") => return ExitCode::SUCCESS,
        _ => {}
    }
    let filter = args.iter().find(|a| !a.starts_with('-'));
    let tests: Vec<Test> =
        [results::TESTS, custom::TESTS, faults::TESTS, joining::TESTS, answers::TESTS, files::TESTS].concat();
    let mut failed = 0;
    for (name, test) in tests.iter().filter(|(name, _)| filter.is_none_or(|f| name.contains(f.as_str()))) {
        let ok = std::panic::catch_unwind(test).is_ok();
        println!("test {name} ... {}", if ok { "ok" } else { "FAILED" });
        failed += usize::from(!ok);
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn rank(fd: Option<&String>, kernels: &CustomKernelRegistry) -> ExitCode {
    let fd = fd.and_then(|fd| fd.parse().ok()).unwrap_or(-1);
    match symmc_control::rank_main(fd, |rank| programs::work(rank, kernels)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
