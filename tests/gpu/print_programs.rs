//! Random programs on random meshes ([`symmc_cases::programs`]) as text, for `run.sh` to run on GPUs.
//!
//! `print_programs FOLDER COUNT RANKS [FIRST]`: so many programs for so many ranks, of the seeds from FIRST (0) on.

use std::path::Path;
use std::process::ExitCode;

use symmc_cases::programs::{VariantMode, program};
use symmc_ir::text;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize| args.get(i).and_then(|a| a.parse::<u64>().ok());
    let (Some(folder), Some(count), Some(ranks)) = (args.first(), number(1), number(2)) else {
        eprintln!("usage: print_programs FOLDER COUNT RANKS [FIRST]");
        return ExitCode::from(2);
    };
    let mut remaining = count;
    let mut seed = number(3).unwrap_or(0);
    while remaining > 0 {
        // Mostly few nodes, and some with many.
        let graph = program(seed, 4 + (seed as usize * 7) % 26, VariantMode::Open);
        if graph.ranks.map(u64::from) == Some(ranks) {
            let path = Path::new(folder).join(format!("random{seed}.symm"));
            if let Err(error) = std::fs::write(&path, text::print(&graph)) {
                eprintln!("error: {}: {error}", path.display());
                return ExitCode::from(1);
            }
            remaining -= 1;
        }
        seed += 1;
    }
    ExitCode::SUCCESS
}
