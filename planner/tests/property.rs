//! Random programs through the planner always pass the check.

mod common;

use common::{Config, Rng, planned, program};
use symmc_planner::check::check;

#[test]
fn planned_programs_pass() {
    for seed in 0..6000 {
        let mut rng = Rng(seed);
        let config = Config {
            ranks: *rng.pick(&[2, 3, 4]),
            cells: rng.one_in(3),
            symbolic: rng.one_in(2),
            nodes: 4 + rng.below(20),
            gathers: rng.one_in(2),
        };
        let config = Config { ranks: if config.cells { 4 } else { config.ranks }, ..config };
        let graph = program(&mut rng, &config);
        let plan = planned(&graph, &mut rng);
        if let Err(errors) = check(&plan) {
            let all: Vec<String> = errors.iter().map(|e| e.to_string()).collect();
            panic!("seed {seed}, {config:?}:\n{}\n{}", all.join("\n"), plan.programs[0]);
        }
    }
}
