//! The comparison of plans notices edits ([`symmc_tests::mutants`]).

use symmc_tests::mutants::{MutantCounts, trial};

#[test]
fn notices_edits_of_plans() {
    let mut counts = MutantCounts::default();
    for seed in 0..20 {
        trial(seed, 6, &mut counts).unwrap_or_else(|e| panic!("{e}"));
    }
    let total = counts.total();
    assert!(total.mutants > 60 && 10 * counts.plans_not_compared <= counts.plans, "{counts:#?}");
}
