//! Random programs through the planner: plans pass the check, and the explorer, which decides by brute force,
//! finds nothing in them.

mod common;

use common::explore::{explore, sequences};
use common::{Config, Rng, planned, program};
use symmc_planner::check::check;

fn config(rng: &mut Rng) -> Config {
    let cells = rng.one_in(3);
    Config {
        ranks: if cells { 4 } else { *rng.pick(&[2, 3]) },
        cells,
        symbolic: rng.one_in(2),
        nodes: 4 + rng.below(16),
        gathers: rng.one_in(2),
    }
}

#[test]
fn planned_programs_pass() {
    for seed in 0..300 {
        let mut rng = Rng(seed);
        let config = config(&mut rng);
        let graph = program(&mut rng, &config);
        let plan = planned(&graph, &mut rng);
        let errors = check(&plan).err().unwrap_or_default();
        let errors: Vec<String> = errors.iter().map(|e| e.to_string()).collect();
        for at in [0.0, 1.0] {
            for runs in sequences(&plan, 2, at) {
                let findings = explore(&plan, &runs);
                assert!(
                    findings.is_empty(),
                    "seed {seed}, {config:?}:\n{errors:#?}\n{findings:#?}\n{}",
                    plan.to_json()
                );
            }
        }
        assert!(errors.is_empty(), "seed {seed}, {config:?}:\n{errors:#?}\n{}", plan.to_json());
    }
}
