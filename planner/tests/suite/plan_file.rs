//! The plan as a file: canonical, rejected with a precise message if invalid, and robust against any bytes.

use std::time::{Duration, Instant};

use symmc_check::fuzz;
use symmc_plan::{Plan, PlanReadError};
use symmc_planner::{BucketInput, PlanConfig, plan};
use symmc_support::random::SplitMix;

use crate::programs::program;

fn planned(seed: u64) -> Plan {
    let graph = program(seed, 12);
    let bucket = BucketInput { graph: graph.clone(), decisions: Vec::new() };
    plan(&graph, &[bucket], &PlanConfig::default()).expect("plans")
}

#[test]
fn other_versions_are_refused() {
    let text = planned(1).to_json().replacen("\"version\": 3", "\"version\": 4, \"news\": []", 1);
    assert_eq!(Plan::from_json(&text), Err(PlanReadError::Version { found: 4 }));
    let message = PlanReadError::Version { found: 1 }.to_string();
    assert_eq!(message, "the plan has version 1; this program reads version 3");
}

#[test]
fn unknown_and_missing_fields_are_named() {
    let text = planned(1).to_json();
    let error = |text: String| Plan::from_json(&text).expect_err("refused").to_string();
    let unknown = error(text.replacen("\"lane\"", "\"colour\"", 1));
    assert!(unknown.contains("unknown field `colour`"), "{unknown}");
    assert!(unknown.starts_with("line "), "{unknown}");
    let missing = error(text.replacen("\"machine\": \"host\",", "", 1));
    assert!(missing.contains("missing field `machine`"), "{missing}");
    let kind = error(text.replacen("\"arena\": \"ordinary\"", "\"arena\": \"distant\"", 1));
    assert!(kind.contains("unknown variant `distant`"), "{kind}");
    let version = error(text.replacen("\"version\": 3,", "", 1));
    assert!(version.contains("missing field `version`"), "{version}");
    assert!(error(String::new()).starts_with("line 1, column 0"), "{}", error(String::new()));
}

/// The ranges of the entries of all tables of a JSON text: from the key to the end of the value.
fn entries(text: &str) -> Vec<std::ops::Range<usize>> {
    let bytes = text.as_bytes();
    // For each open bracket whether it opens a table, and the start of its current entry.
    let (mut open, mut out) = (Vec::<(bool, Option<usize>)>::new(), Vec::new());
    let mut index = 0;
    while index < bytes.len() {
        match bytes[index] {
            b'"' => {
                let begin = index;
                index += 1;
                while bytes[index] != b'"' {
                    index += 1 + usize::from(bytes[index] == b'\\');
                }
                if let Some((true, entry @ None)) = open.last_mut() {
                    *entry = Some(begin);
                }
            }
            b'{' | b'[' => open.push((bytes[index] == b'{', None)),
            end @ (b',' | b'}' | b']') => {
                if let Some(entry) = open.last_mut().and_then(|(_, entry)| entry.take()) {
                    out.push(entry..index);
                }
                if end != b',' {
                    open.pop();
                }
            }
            _ => {}
        }
        index += 1;
    }
    out
}

#[test]
fn no_entry_stands_twice() {
    let graph = symmc_ir::text::parse(
        "program \"p\" ranks 2\nsymbol t in 1..=4\ngroup @w world\narg %x: f32[t, 4]\n\
         %y: f32[t, 4] = all_reduce %x op=sum group=@w via=plain\n%z: f32[t, 4] = neg %y\nreturn %z\n",
    )
    .expect("it reads");
    let bucket = BucketInput { graph: graph.clone(), decisions: Vec::new() };
    let text = plan(&graph, &[bucket], &PlanConfig::default()).expect("plans").to_json();
    assert!(Plan::from_json(&text).is_ok());
    let all_entries = entries(&text);
    assert!(all_entries.len() > 40, "{} entries", all_entries.len());
    for entry in all_entries {
        let (before, entry, after) = (&text[..entry.start], &text[entry.clone()], &text[entry.end..]);
        Plan::from_json(&format!("{before}{entry},{entry}{after}")).expect_err(entry);
    }
}

#[test]
fn a_step_a_buffer_and_a_place_are_lines() {
    let plan = planned(4);
    let text = plan.to_json();
    let bucket = &plan.buckets[0];
    let count = |prefix: &str| text.lines().filter(|l| l.trim_start().starts_with(prefix)).count();
    assert_eq!(count("{\"node\": "), bucket.steps.len() + bucket.copies.len());
    assert_eq!(count("{\"arena\": "), bucket.buffers.len());
    assert!(text.ends_with("}\n"));
}

/// Half of the damage cuts, copies or overwrites bytes. The other half replaces one number by another.
fn damage_text(r: &mut SplitMix, text: &mut Vec<u8>) {
    let (from, len) = (r.below(text.len()), r.below(40));
    let end = (from + len).min(text.len());
    match r.below(6) {
        0 => drop(text.drain(from..end)),
        1 => {
            let copy = text[from..end].to_vec();
            let target = r.below(text.len());
            text.splice(target..target, copy);
        }
        2 => text[from] = r.below(256) as u8,
        _ => {
            let digits: Vec<usize> = (0..text.len()).filter(|&i| text[i].is_ascii_digit()).collect();
            if !digits.is_empty() {
                text[digits[r.below(digits.len())]] = b'0' + r.below(10) as u8;
            }
        }
    }
}

#[test]
fn damaged_files_do_not_panic() {
    let plans: Vec<Vec<u8>> = (0..8).map(|seed| planned(seed).to_json().into_bytes()).collect();
    let mut r = SplitMix(7);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(1) {
        let mut text = plans[r.below(plans.len())].clone();
        for _ in 0..1 + r.below(3) {
            damage_text(&mut r, &mut text);
        }
        fuzz::check(&text);
    }
}
