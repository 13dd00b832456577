//! The lines of `symmc run` about collectives, and about runs without a comparison.

use crate::common::{stdout, sum_program};

#[test]
fn reports_the_sizes_that_ran_and_the_estimated_machine() {
    let dir = tempfile::tempdir().expect("a folder");
    let program = sum_program(dir.path(), "sums", 2, "symbol n in 1..=1024\n", "n");
    let run = format!("run {program} --seed 1 --variants two_shot --bucket n=1024");
    let text = stdout(&format!("{run} --set n=4"));
    assert!(text.contains("1 × all_reduce of 16.0 KiB as two_shot"), "{text}");
    assert!(text.contains("; estimated for host at 4.00 MiB: ") && text.contains(", plain "), "{text}");
    // The sizes of the run are the upper ends of the bucket.
    let text = stdout(&format!("{run} --set n=1024"));
    assert!(text.contains("1 × all_reduce of 4.00 MiB as two_shot"), "{text}");
    assert!(text.contains("; estimated for host: "), "{text}");
    let plan = dir.path().join("plan.json").display().to_string();
    stdout(&format!("plan {program} --machine h200x2 --bucket n=1024 -o {plan}"));
    let text = stdout(&format!("run {plan} --seed 1 --set n=4"));
    assert!(
        text.contains("all_reduce of 16.0 KiB as ") && text.contains("; estimated for h200x2 at "),
        "{text}"
    );
}

#[test]
fn a_run_without_a_comparison_says_how_to_compare() {
    let dir = tempfile::tempdir().expect("a folder");
    let program = sum_program(dir.path(), "sums", 2, "", "4");
    let text = stdout(&format!("run {program} --seed 1"));
    assert!(text.contains("2 ranks ran; nothing to compare with; --compare interpreter compares"), "{text}");
    assert!(!stdout(&format!("run {program} --seed 1 --compare none")).contains("--compare"));
}
