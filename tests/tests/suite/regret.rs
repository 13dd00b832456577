//! The plan of the default options is about as good as the best plan of other options ([`symmc_tests::regret`]).

use symmc::{MachineProfile, Program};
use symmc_cases::distributed::{self, KINDS};
use symmc_tests::regret::measure;

/// Programs of every kind that plan quickly.
const SEEDS: [u64; 8] = [0, 2, 5, 7, 63, 83, 92, 96];

#[test]
fn no_other_options_give_a_much_cheaper_plan() {
    for seed in SEEDS {
        let (graph, kind) = distributed::program(seed);
        let machine = format!("h200x{}", graph.ranks.expect("a number of ranks"));
        let profile = MachineProfile::builtin(&machine).expect("a built-in profile");
        let program = Program::from_graph(graph).expect("a valid program");
        let regret = measure(&program, &profile).expect("a plan");
        assert!(regret.ratio() <= 1.03, "{seed}, {}: {regret:?}", KINDS[kind]);
    }
}
