//! Machines whose number of GPUs is not the number of ranks.

use crate::common::{output, sum_program, symmc};

#[test]
fn note_explains_a_mismatched_number_of_gpus() {
    let dir = tempfile::tempdir().expect("a folder");
    for (ranks, machine, expected) in [
        (8, "h200x4", Some(["8 ranks on h200x4, a machine of 4 GPUs", "--machine h200x8 is for 8 GPUs"])),
        (2, "h200x8", Some(["2 ranks on h200x8, a machine of 8 GPUs", "--machine h200x2 is for 2 GPUs"])),
        (16, "h200x8", Some(["16 ranks on h200x8, a machine of 8 GPUs", "estimates are scaled to 16 ranks"])),
        (8, "h100x4", Some(["8 ranks on h100x4, a machine of 4 GPUs", "--machine h100x8 is for 8 GPUs"])),
        (2, "h200x2", None),
        (8, "host", None),
    ] {
        let program = sum_program(dir.path(), "p", ranks, "", "64");
        for command in ["plan", "print --stage lowered"] {
            let out = output(&mut symmc(&format!("{command} {program} --machine {machine}")));
            let notes = String::from_utf8_lossy(&out.stderr);
            assert!(out.status.success(), "{notes}");
            match expected {
                Some(parts) => assert!(parts.iter().all(|part| notes.contains(part)), "{notes}"),
                None => assert_eq!(notes, ""),
            }
        }
    }
    // No built-in machine has 16 GPUs.
    let out =
        output(&mut symmc(&format!("plan {} --machine h200x8", sum_program(dir.path(), "p", 16, "", "64"))));
    assert!(!String::from_utf8_lossy(&out.stderr).contains("--machine"), "{out:?}");
}

/// Estimates by modelled curves say so, in the text and for each collective of the summary.
#[test]
fn estimates_by_modelled_curves_are_labelled() {
    let dir = tempfile::tempdir().expect("a folder");
    let text = "times of collectives are modelled, not measured";
    for (ranks, machine, is_modelled) in
        [(2, "h200x2", false), (2, "h100x2", true), (8, "h200x8", true), (3, "h200x4", true)]
    {
        let program = sum_program(dir.path(), "p", ranks, "", "64");
        let stdout = |format: &str| {
            let out = output(&mut symmc(&format!("plan {program} --machine {machine} --format {format}")));
            String::from_utf8(out.stdout).expect("UTF-8")
        };
        assert_eq!(stdout("text").contains(text), is_modelled, "{machine}");
        let summary: serde_json::Value = serde_json::from_str(&stdout("summary")).expect("JSON");
        assert_eq!(summary["buckets"][0]["collectives"][0]["modelled"], is_modelled, "{machine}");
    }
}
