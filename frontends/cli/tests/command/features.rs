//! Builds without a feature: commands that need it end with exit code 2 and name the feature.
//!
//! `cargo test -p symmc-cli --no-default-features --test command features` builds the command without features. It then plans
//! `.symm` programs and runs them on host ranks.

use crate::common::{failure, programs, stdout, symmc, write};

/// Checks that a command line names the feature that it needs, if and only if the build lacks it.
fn assert_needs_feature(feature: &str, on: bool, line: &str) {
    // With the feature the outcome depends on the GPUs of the machine.
    if on && feature == "cuda" {
        return;
    }
    let out = crate::common::output(&mut symmc(line));
    let text = String::from_utf8_lossy(&out.stderr);
    let named = text.contains(&format!("the feature `{feature}`"));
    assert_eq!(named, !on, "symmc {line}\n{text}");
    if !on {
        failure(&mut symmc(line), 2);
    }
}

#[test]
fn errors_name_the_cargo_feature_that_is_missing() {
    let (torch, onnx, cuda) = (cfg!(feature = "torch"), cfg!(feature = "onnx"), cfg!(feature = "cuda"));
    let dir = tempfile::tempdir().expect("a folder");
    // Formats are recognised by content, not by names.
    let copy = |from: &str, to: &str| {
        write(dir.path(), to, &std::fs::read(programs().join(from)).expect("a program"))
    };
    for line in ["plan megatron_tp4_f32.pt2", "print hf_llama_tp2.pt2", "run moe_ep4.pt2"] {
        assert_needs_feature("torch", torch, line);
    }
    assert_needs_feature("torch", torch, &format!("plan {}", copy("moe_ep4.pt2", "archive")));
    assert_needs_feature("onnx", onnx, "plan gpt_tp2_rank0.onnx gpt_tp2_rank1.onnx");
    assert_needs_feature("onnx", onnx, &format!("print {}", copy("gpt_tp2_rank0.onnx", "model")));
    for line in [
        "run ../../examples/data_parallel.symm --backend cuda",
        "bench collectives --ranks 2",
        "tune --ranks 2 -o x.json",
    ] {
        assert_needs_feature("cuda", cuda, line);
    }
}

#[test]
fn text_programs_plan_for_every_machine_and_run() {
    let program = "../../examples/data_parallel.symm";
    for machine in ["host", "h200x2"] {
        assert!(stdout(&format!("plan {program} --machine {machine}")).contains("%sum0"));
    }
    let output = stdout(&format!("run {program} --seed 1 --compare interpreter"));
    assert!(output.contains("data_parallel"), "{output}");
}

#[test]
fn the_doctor_says_what_the_build_lacks() {
    let text = stdout("doctor");
    assert_eq!(text.contains("build it with the feature cuda"), !cfg!(feature = "cuda"), "{text}");
    assert!(text.lines().any(|l| l.starts_with("ok       shared memory")), "{text}");
}
