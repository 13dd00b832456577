//! Every plan that the check accepts opens a session on host ranks and runs, also a plan that no planner made.

#[path = "../../../planner/tests/suite/common/mod.rs"]
mod common;

use std::sync::atomic::{AtomicUsize, Ordering};

use common::corrupt::{damage, flatten, mend};
use common::{RandomProgramConfig, planned, program};
use symmc::CheckedPlan;
use symmc_ir::{CollectiveKind, CollectiveReduceOp, CollectiveVariant, text};
use symmc_plan::Plan;
use symmc_support::parallel;
use symmc_support::random::SplitMix;
use symmc_tests::trials::run_plan;

/// Runs a plan if the check accepts it. Returns whether it does.
fn run_if_accepted(plan: Plan, seed: u64) -> Result<bool, String> {
    let source = text::parse(&plan.source.text).map_err(|e| e.to_string())?;
    let text = plan.to_json();
    let Ok(checked) = CheckedPlan::new(plan) else { return Ok(false) };
    run_plan(&source, &checked, seed).map_err(|e| format!("seed {seed}: {e}\n{text}"))?;
    Ok(true)
}

/// The result of the all-reduce has no memory here. Variants whose results the library or peers address need it.
#[test]
fn reductions_with_inner_results_run_by_every_accepted_variant() {
    let kind = CollectiveKind::AllReduce(CollectiveReduceOp::Sum);
    let file = include_str!("plans/reduction_inner_window.json");
    let mut accepted = Vec::new();
    for &variant in CollectiveVariant::ALL {
        let Some(contract) = variant.contract(&kind) else { continue };
        let mut plan = Plan::from_json(file).expect("a plan");
        plan.programs[0] = plan.programs[0].replace("via=nccl_window", &format!("via={variant}"));
        mend(&mut plan);
        let is_accepted = run_if_accepted(plan, 1).unwrap_or_else(|e| panic!("{variant}: {e}"));
        assert!(!(is_accepted && contract.symmetric_result), "{variant}");
        if is_accepted {
            accepted.push(variant);
        }
    }
    assert!(accepted.contains(&CollectiveVariant::Plain), "{accepted:?}");
}

#[test]
fn damaged_plans_that_are_accepted_run() {
    const SEEDS: u64 = 400;
    let accepted = AtomicUsize::new(0);
    let failures = parallel::map((0..SEEDS).collect(), usize::MAX, |seed: u64| {
        let mut rng = SplitMix(seed ^ 0xacce);
        let cells = rng.one_in(3);
        let config = RandomProgramConfig {
            ranks: if cells { 4 } else { rng.pick(&[2, 3]) },
            cells,
            symbols: rng.pick(&[0, 1, 1, 2]),
            nodes: 4 + rng.below(12),
            gathers: rng.one_in(2),
            exchanges: rng.one_in(3),
            sharded: rng.one_in(4),
        };
        let graph = program(&mut rng, &config);
        // Kernels of custom ops are not part of a plan.
        if !graph.customs.is_empty() {
            return None;
        }
        let mut plan = flatten(&planned(&graph, config.sharded, &mut rng), 16384);
        for _ in 0..rng.below(4) {
            damage(&mut plan, &mut rng);
        }
        mend(&mut plan);
        match run_if_accepted(plan, seed) {
            Ok(is_accepted) => {
                accepted.fetch_add(usize::from(is_accepted), Ordering::Relaxed);
                None
            }
            Err(e) => Some(e),
        }
    });
    let failures: Vec<String> = failures.into_iter().flatten().collect();
    assert!(failures.is_empty(), "{} failures, the first: {}", failures.len(), failures[0]);
    let accepted = accepted.into_inner();
    assert!(accepted > 100, "only {accepted} accepted");
}
