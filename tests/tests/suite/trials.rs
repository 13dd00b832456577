//! Random programs on random meshes run as the interpreter says ([`symmc_tests::trials`]).

use proptest::prelude::*;
use symmc_tests::trials::{TrialOutcome, shared_trial, trial};

/// The trials of every test run.
const SEEDS: u64 = 160;

#[test]
fn programs_of_fixed_seeds_run_as_the_interpreter_says() {
    let mut totals = TrialOutcome::default();
    for seed in 0..SEEDS {
        let done = trial(seed, 4 + (seed as usize * 7) % 26, None).unwrap_or_else(|e| panic!("{e}"));
        totals.runs += done.runs;
        totals.by_rank += done.by_rank;
        totals.collectives += done.collectives;
    }
    assert!(
        totals.runs > 400 && totals.by_rank > 80 && totals.collectives > 800,
        "they test little: {totals:?}"
    );
}

#[test]
fn alternating_programs_agree_with_the_interpreter() {
    let mut totals = TrialOutcome::default();
    for seed in 0..40 {
        let done = shared_trial(seed, 4 + (seed as usize * 7) % 26).unwrap_or_else(|e| panic!("{e}"));
        totals.runs += done.runs;
        totals.collectives += done.collectives;
    }
    assert!(totals.runs > 250 && totals.collectives > 400, "they test little: {totals:?}");
}

/// Parts of this program have leaves that are computed from each other, and no drawn element of them changes a result.
#[test]
fn related_leaves_are_not_reported_as_differences() {
    trial(6236690097362147429, 18, None).unwrap_or_else(|e| panic!("{e}"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn programs_of_any_seed_run_as_the_interpreter_says(nodes in 0usize..30, seed in any::<u64>()) {
        if let Err(error) = trial(seed, nodes, None) {
            return Err(TestCaseError::fail(error));
        }
    }
}
