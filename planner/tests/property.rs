//! Random programs through the planner: plans pass the check, and the explorer, which decides by brute force,
//! finds nothing in them.

mod common;

use std::collections::BTreeSet;

use common::corrupt::{damage, flatten, mend};
use common::explore::{explore, sequences};
use common::{Config, Rng, planned, program};
use symmc_planner::check::{CheckError, check};

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

/// Errors that the explorer can find too.
fn over_time(error: &CheckError) -> bool {
    use CheckError::*;
    matches!(
        error,
        Race { .. }
            | Lost { .. }
            | LandingRace { .. }
            | Unordered { .. }
            | InPlace { .. }
            | ResultsOverlap { .. }
    )
}

/// What became of damaged plans.
#[derive(Default, Debug)]
struct Tally {
    /// The check passes them.
    accepted: usize,
    /// The check does not, and the explorer was asked whether it should.
    rejected: usize,
    /// They are broken in a way that the explorer does not look for.
    other: usize,
}

/// Damages one random plan and compares what check and explorer say. The check must be right whenever it
/// passes a plan. Where extents are constant and no place depends on the rank it must also be right when it
/// does not: there it knows all bytes exactly.
fn compare(seed: u64, tally: &mut Tally) {
    let mut rng = Rng(seed ^ 0xdead);
    let config = config(&mut rng);
    let exact = rng.one_in(2);
    let config = Config { nodes: config.nodes.min(12), symbolic: !exact, gathers: !exact, ..config };
    let graph = program(&mut rng, &config);
    let mut plan = flatten(&planned(&graph, &mut rng), 16384);
    let mut story: Vec<String> = (0..1 + rng.below(3)).filter_map(|_| damage(&mut plan, &mut rng)).collect();
    mend(&mut plan);
    let errors = check(&plan).err().unwrap_or_default();
    let asks = errors.is_empty() || exact;
    if !asks || !errors.iter().all(over_time) {
        tally.other += 1;
        return;
    }
    story.extend(errors.iter().map(|e| e.to_string()));
    let points: &[f64] = if exact { &[1.0] } else { &[0.0, 0.5, 1.0] };
    let mut findings = BTreeSet::new();
    for length in [2, 3] {
        // Three runs matter where two show nothing.
        if findings.is_empty() && (length == 2 || plan.buckets.len() == 1) {
            let all = points.iter().flat_map(|&at| sequences(&plan, length, at));
            findings.extend(all.flat_map(|runs| explore(&plan, &runs)));
        }
    }
    let agree = errors.is_empty() == findings.is_empty();
    assert!(agree, "seed {seed}, {config:?}:\n{story:#?}\n{findings:#?}\n{}", plan.to_json());
    match errors.is_empty() {
        true => tally.accepted += 1,
        false => tally.rejected += 1,
    }
}

#[test]
fn check_and_explorer_agree_on_damaged_plans() {
    let mut tally = Tally::default();
    (0..500).for_each(|seed| compare(seed, &mut tally));
    assert!(tally.accepted > 50 && tally.rejected > 50, "{tally:?}");
}

#[test]
#[ignore = "minutes"]
fn check_and_explorer_agree_on_many_damaged_plans() {
    let mut tally = Tally::default();
    (500..50_000).for_each(|seed| compare(seed, &mut tally));
    println!("{tally:?}");
}
