//! Plans whose programs were edited. Each computes something else than its source.

use std::path::Path;

use symmc_compare::{SourceComparison, SourceStatus, compare};
use symmc_plan::{ParsedPlan, Plan};

fn read(name: &str) -> Plan {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plans").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
    Plan::from_json(&text).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn compare_plan(plan: Plan) -> SourceComparison {
    compare(&ParsedPlan::parse(plan.into()).unwrap_or_else(|e| panic!("{e}")))
}

#[test]
fn every_edited_plan_is_found() {
    let mut tried = 0;
    for name in [
        "bf16_const_2pct.json",
        "const_1e-5.json",
        "ends_of_other_layer.json",
        "gelu_tanh_bf16.json",
        "groups_differ_from_source.json",
        "large_sizes_only.json",
        "nan_guard_dropped.json",
        "opaque_beside.json",
        "rare_select.json",
        "rem_dropped_on_an_index.json",
        "shard_offset_plus_1.json",
        "too_big.json",
        "window_dropped.json",
    ] {
        let comparison = compare_plan(read(name));
        println!("{name}: {comparison:#?}");
        assert_eq!(comparison.buckets[0], SourceStatus::Different, "{name}: {comparison:#?}");
        assert!(
            !comparison.differences.is_empty() && comparison.left_out.is_empty(),
            "{name}: {comparison:#?}"
        );
        tried += 1;
    }
    assert_eq!(tried, 13);
}
