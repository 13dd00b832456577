//! Estimated times: the summary has the documented fields, and `bench program` prints estimates next to measured times.

use std::collections::BTreeSet;

use crate::common::{failure, stdout, symmc};
use serde_json::Value;

/// The fields in the table of docs/running.md: those of the summary, of its buckets, and of their collectives.
fn documented() -> [BTreeSet<String>; 3] {
    let page = include_str!("../../../../docs/running.md");
    let table = page.split_once("| field | meaning |").expect("the table").1;
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let mut out: [BTreeSet<String>; 3] = Default::default();
    let mut level = 0;
    for row in rows {
        let names = row.split('|').nth(1).expect("a first column");
        for name in names.split('`').skip(1).step_by(2) {
            let inner = name.strip_prefix("buckets[].");
            if inner.is_some() && level == 0 {
                level = 1;
                out[0].insert("buckets".to_string());
            }
            match name.strip_suffix("[]") {
                Some(list) => {
                    out[level].insert(list.to_string());
                    level += 1;
                }
                None => {
                    out[level].insert(inner.unwrap_or(name).to_string());
                }
            }
        }
    }
    out
}

fn keys(value: &Value) -> BTreeSet<String> {
    value.as_object().expect("an object").keys().cloned().collect()
}

fn is_time(value: &Value) -> bool {
    value.as_f64().is_some_and(|us| us.is_finite() && us >= 0.0)
}

fn check_collective(c: &Value, at: &str) {
    for field in ["name", "kind", "group", "variant"] {
        assert!(c[field].as_str().is_some_and(|text| !text.is_empty()), "{field} of {at}: {c}");
    }
    assert!(c["bytes"].as_u64() > Some(0) && is_time(&c["us"]) && is_time(&c["exposed_us"]), "{at}: {c}");
    assert!(c["rules"].as_array().is_some_and(|rules| rules.iter().all(Value::is_string)), "{at}: {c}");
}

#[test]
fn a_summary_has_the_documented_fields_and_no_others() {
    let [whole, of_bucket, of_collective] = documented();
    for (program, machine) in [("megatron_tp4_bf16.pt2", "h200x4"), ("moe_ep4.pt2", "host")] {
        let json = stdout(&format!("plan {program} --machine {machine} --format summary"));
        let summary: Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(keys(&summary), whole);
        assert_eq!(
            (&summary["version"], &summary["machine"], &summary["ranks"]),
            (&1.into(), &machine.into(), &4.into())
        );
        assert!(summary["program"].is_string() && summary["numerics"] == "exact", "{json}");
        for bucket in summary["buckets"].as_array().expect("buckets") {
            assert_eq!(keys(bucket), of_bucket);
            for range in bucket["symbols"].as_object().expect("symbols").values() {
                let ends: Vec<i64> = serde_json::from_value(range.clone()).expect("a range");
                assert!(ends.len() == 2 && ends[0] <= ends[1], "{json}");
            }
            for time in ["total_us", "compute_us", "exposed_us", "plain_total_us"] {
                assert!(is_time(&bucket[time]), "{time}: {json}");
            }
            for bytes in ["ordinary_bytes", "symmetric_bytes", "weight_bytes"] {
                assert!(bucket[bytes].is_u64(), "{bytes}: {json}");
            }
            let collectives = bucket["collectives"].as_array().expect("collectives");
            assert!(!collectives.is_empty());
            for c in collectives {
                assert_eq!(keys(c), of_collective);
                check_collective(c, program);
            }
        }
    }
}

#[test]
fn summary_names_the_rules_behind_each_collective() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("sum.symm");
    let text = "program \"sum\" ranks 4\ngroup @w world\narg %x: f32[4096, 1024]\narg %y: f32[4096, 1024]\n\
        %h: f32[4096, 1024] = neg %x\n%k: f32[4096, 1024] = exp %y\n\
        %a: f32[4096, 1024] = all_reduce %h op=sum group=@w\n%b: f32[4096, 1024] = all_reduce %k op=sum group=@w\n\
        %c: f32[4096, 1024] = add %a, %b\nreturn %c\n";
    std::fs::write(&file, text).expect("written");
    let line = format!("plan {} --machine h200x4 --numerics reassociate --format summary", file.display());
    let summary: Value = serde_json::from_str(&stdout(&line)).expect("JSON");
    let collectives = summary["buckets"][0]["collectives"].as_array().expect("collectives");
    collectives.iter().for_each(|c| check_collective(c, "sum"));
    let rules = collectives.iter().flat_map(|c| c["rules"].as_array().expect("rules"));
    assert!(rules.count() > 0 && summary["numerics"] == "reassociate", "{summary:#}");
}

/// The numbers of a line of text.
fn numbers(line: &str) -> Vec<f64> {
    line.split(|c: char| !c.is_ascii_digit() && c != '.').filter_map(|part| part.parse().ok()).collect()
}

#[test]
fn programs_are_measured_next_to_their_estimates() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("rows.symm");
    let text = "program \"rows\" ranks 2\nsymbol t in 1..=64\ngroup @w world\narg %x: f32[t, 256]\n\
        %h: f32[t, 256] = neg %x\n%y: f32[t, 256] = all_reduce %h op=sum group=@w\nreturn %y\n";
    std::fs::write(&file, text).expect("written");
    let bench = format!("bench program {} --backend host --replays 5", file.display());
    // The table has a row for the upper end of each bucket.
    let table = stdout(&format!("{bench} --bucket t=4,64"));
    let rows: Vec<&str> = table.lines().filter(|line| line.trim_start().starts_with("t=")).collect();
    assert_eq!(rows.len(), 2, "{table}");
    assert!(table.contains("estimated µs") && table.contains("measured / estimated"), "{table}");
    for (row, size) in rows.iter().zip([4.0, 64.0]) {
        let [rows_measured, estimated, measured, ratio, least] = numbers(row)[..] else { panic!("{table}") };
        assert_eq!(rows_measured, size, "{table}");
        assert!(estimated > 0.0 && measured > 0.0 && least <= measured, "{table}");
        assert!((ratio - measured / estimated).abs() <= 0.02 * ratio + 0.01, "{table}");
    }
    // With --set there is one line. A saved plan has the estimates of its machine.
    let report = stdout(&format!("{bench} --set t=3"));
    assert!(
        report.starts_with("rows: ") && report.contains("; estimated ") && report.lines().count() == 1,
        "{report}"
    );
    let plan = dir.path().join("rows.plan.json");
    stdout(&format!("plan {} -o {}", file.display(), plan.display()));
    let planned = stdout(&format!("bench program {} --backend host --replays 2 --set t=3", plan.display()));
    assert!(planned.contains("; estimated "), "{planned}");
    let text = failure(&mut symmc(&format!("{bench} --profile-trace {}/t.json", dir.path().display())), 2);
    assert!(text.contains("--profile-trace"), "{text}");
}
