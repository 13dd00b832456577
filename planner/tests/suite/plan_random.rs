//! Random programs: every plan passes the check, is deterministic, and survives a round trip through its file.

use symmc_check::check;
use symmc_ir::Graph;
use symmc_plan::Plan;
use symmc_planner::{BucketInput, OrderStrategy, PlanConfig, Planner, plan};
use symmc_support::random::SplitMix;

use crate::programs::{narrowed, program};

/// Plans a random program with random bindings and buckets.
fn planned(seed: u64, size: usize) -> (Graph, Plan) {
    let graph = program(seed, size);
    let mut r = SplitMix(seed ^ 0xABCD);
    let ranges: &[(i64, i64)] = match r.below(3) {
        0 => &[(1, 64)],
        1 => &[(1, 8), (9, 64)],
        _ => &[(1, 1), (2, 16), (40, 64)],
    };
    let lowered: Vec<BucketInput> = narrowed(&graph, ranges)
        .into_iter()
        .map(|graph| BucketInput { graph, decisions: Vec::new() })
        .collect();
    let bind = graph.inputs.keys().filter(|_| r.one_in(2)).collect();
    let config = PlanConfig { bind, ..PlanConfig::default() };
    let plan = plan(&graph, &lowered, &config).expect("plans");
    (graph, plan)
}

#[test]
fn random_programs_pass_the_check() {
    let mut failed = Vec::new();
    for seed in 0..300 {
        let size = 2 + (seed as usize * 7) % 40;
        if let Err(errors) = check(&planned(seed, size).1) {
            let errors: Vec<String> = errors.iter().take(3).map(ToString::to_string).collect();
            failed.push(format!("seed {seed}, size {size}: {}", errors.join("; ")));
        }
    }
    assert!(failed.is_empty(), "{} plans fail:\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn planning_twice_gives_the_same_bytes() {
    for seed in 0..20 {
        assert_eq!(planned(seed, 30).1.to_json(), planned(seed, 30).1.to_json());
    }
}

#[test]
fn a_plan_survives_its_file() {
    for seed in 0..40 {
        let (_, plan) = planned(seed, 20);
        let read = Plan::from_json(&plan.to_json()).expect("reads");
        assert_eq!((&read, read.hash()), (&plan, plan.hash()));
    }
}

#[test]
fn no_named_order_needs_less_memory_than_lean() {
    let mut gained = 0;
    // Not every order of the large programs is placed.
    let sizes = (0..80).map(|seed| 10 + seed).chain([900; 4]);
    for (seed, size) in sizes.enumerate() {
        let seed = seed as u64;
        let graph = program(seed, size);
        let bucket = BucketInput { graph: graph.clone(), decisions: Vec::new() };
        let bound = |order| {
            let planned =
                plan(&graph, std::slice::from_ref(&bucket), &PlanConfig { order, ..PlanConfig::default() });
            let plan = planned.expect("plans");
            check(&plan).unwrap_or_else(|e| panic!("seed {seed}, {order:?}: {e:?}"));
            let fixed = plan.fixed.iter().map(|f| f.offset + f.size).max().unwrap_or(0);
            assert!(size < 900 || plan.buckets[0].steps.len() > 500, "seed {seed}: small");
            let t = plan.buckets[0].totals;
            t.ordinary_bound + t.symmetric_bound - fixed.next_multiple_of(64)
        };
        let lean = bound(OrderStrategy::Lean);
        let named: Vec<u64> = OrderStrategy::NAMED_ORDERS.iter().map(|&order| bound(order)).collect();
        assert!(named.iter().all(|&b| lean <= b), "seed {seed}: {lean} against {named:?}");
        gained += usize::from(named.iter().all(|&b| lean < b));
        let chosen = bound(OrderStrategy::Chosen);
        let limit = lean as f64 * (1.0 + PlanConfig::default().slack);
        assert!(chosen as f64 <= limit, "seed {seed}: {chosen} against {lean}");
    }
    assert!(gained > 10, "of 84 programs the lean order is better than all of a name for {gained}");
}

#[test]
fn keeping_more_barriers_never_needs_more_memory() {
    let mut saved = 0;
    for seed in 0..50 {
        let graph = program(seed, 30);
        let bucket = BucketInput { graph: graph.clone(), decisions: Vec::new() };
        let config = PlanConfig::default();
        let planner = Planner::new(&graph, std::slice::from_ref(&bucket), &config).expect("plans");
        for &next_run in planner.next_runs() {
            let mut schedules = planner.schedule(OrderStrategy::Chosen, next_run).expect("plans");
            let mut before: Option<(u64, u64)> = None;
            loop {
                let bound = schedules.symmetric_bound().expect("sizes");
                let plan = schedules.plan().expect("plans");
                check(&plan).unwrap_or_else(|e| panic!("seed {seed}: {e:?}"));
                assert!(bound <= plan.buckets[0].totals.symmetric_peak, "seed {seed}: {bound}");
                let barriers = plan.buckets[0].totals.barriers_kept;
                if let Some((known_bound, known_kept)) = before {
                    assert!(
                        bound <= known_bound && barriers > known_kept,
                        "seed {seed}: {barriers} barriers, {bound} bytes"
                    );
                    saved += usize::from(bound < known_bound);
                }
                before = Some((bound, barriers));
                if !schedules.keep_barriers().expect("plans") {
                    break;
                }
            }
        }
    }
    assert!(saved > 10, "barriers are kept for memory {saved} times");
}

#[test]
fn packing_stays_close_to_the_bound() {
    let mut sums = (0, 0);
    for seed in 0..60 {
        for bucket in planned(seed, 60).1.buckets {
            let t = bucket.totals;
            sums =
                (sums.0 + t.ordinary_peak + t.symmetric_peak, sums.1 + t.ordinary_bound + t.symmetric_bound);
        }
    }
    assert!(sums.0 as f64 <= sums.1 as f64 * 1.01, "peaks add up to {}, bounds to {}", sums.0, sums.1);
}
