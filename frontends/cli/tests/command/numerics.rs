//! Numerics classes at the command line, and comparisons whose tolerance follows the history of the outputs.

use std::path::PathBuf;

use crate::common::{failure, output, stdout, symmc};

/// Writes a program into a folder; returns its path.
fn write(dir: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, text).expect("written");
    path
}

/// A product of f32 that is returned as f64.
const F64_PROGRAM: &str = r#"program "p" ranks 1
arg %x: f32[8, 16]
param %w: f32[16, 8]
%y: f32[8, 8] = matmul %x, %w
%z: f64[8, 8] = cast %y
return %z
"#;

/// An f16 intermediate that is returned as f32.
const F16_PROGRAM: &str = r#"program "p" ranks 2
group @w world
arg %x: f16[4096, 2]
%s: f16[4096, 2] = softmax %x axis=1 log=false
%c: f32[4096, 2] = cast %s
%a: f32[4096, 2] = all_reduce %c op=max group=@w
return %a
"#;

/// A state with small values, whose error grows from run to run.
const STATE_PROGRAM: &str = r#"program "p" ranks 2
param %c: f32[64, 32]
arg %x: f32[64, 32]
param %w: f32[32, 32]
%y: f32[64, 32] = matmul %x, %w
%d: f32[64, 32] = mul %c, 5.0
%s: f32[64, 32] = add %d, %y
%u: f32[64, 32] = sin %s
return %u
mutate %c = %u
"#;

/// A sum of large numbers that cancel.
const CANCELLING_PROGRAM: &str = r#"program "p" ranks 1
arg %x: f32[64, 96]
param %w: f32[96, 8]
%y: f32[64, 8] = matmul %x, %w
%big: f32[64, 8] = mul %y, 1e5
%up: f32[64, 8] = add %big, %y
%z: f32[64, 8] = sub %up, %big
return %z
"#;

/// Correct programs that would fail with a tolerance by the type of the output.
#[test]
fn right_programs_agree_with_the_interpreter() {
    let dir = tempfile::tempdir().expect("a folder");
    let programs = [
        ("f64", "", F64_PROGRAM),
        ("f16", "", F16_PROGRAM),
        ("state", "--repeat 8", STATE_PROGRAM),
        ("cancels", "", CANCELLING_PROGRAM),
    ];
    for (name, options, text) in programs {
        let path = write(&dir, &format!("{name}.symm"), text);
        let text = stdout(&format!("run {} --seed 1 --compare interpreter {options}", path.display()));
        assert!(text.contains("compared with the interpreter"), "{name}: {text}");
        let unclear = ["FAILED", "relative"].iter().any(|word| text.contains(word));
        assert!(!unclear, "{name}: {text}");
    }
}

/// Noise widens default tolerances only.
#[test]
fn stated_tolerances_are_kept_as_they_are() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = write(&dir, "f64.symm", F64_PROGRAM);
    let line = format!("run {} --seed 1 --compare interpreter --atol 1e-30 --rtol 0", path.display());
    let out = output(&mut symmc(&line));
    assert_eq!(out.status.code(), Some(1), "{}", String::from_utf8_lossy(&out.stdout));
}

const SUMS_PROGRAM: &str = r#"program "p" ranks 4
group @all world
arg %x: f32[1048576]
arg %y: f32[1048576]
%b: f32[1048576] = mul %x, 20000.0
%n: bf16[1048576] = cast %b
%w: f32[1048576] = cast %n
%r: f32[1048576] = all_reduce %w op=sum group=@all
%k: f32[1048576] = mul %y, 100.0
%h: f16[1048576] = cast %k
%v: f32[1048576] = cast %h
%q: f32[1048576] = all_reduce %v op=sum group=@all
%s: f32[1048576] = all_reduce %x op=sum group=@all
%t: f32[1048576] = all_reduce %y op=sum group=@all
%u: f32[1048576] = add %s, %t
return %r
return %q
return %u
"#;

#[test]
fn plans_of_every_class_state_it_check_and_run() {
    let dir = tempfile::tempdir().expect("a folder");
    let program = write(&dir, "sums.symm", SUMS_PROGRAM);
    let plan = dir.path().join("plan.json");
    for classes in ["exact", "reassociate", "narrow", "narrow-f16", "reassociate,narrow,narrow-f16"] {
        let (program, plan) = (program.display(), plan.display());
        let report = stdout(&format!("plan {program} --machine h200x4 --numerics {classes} -o {plan}"));
        assert_eq!(report.contains(&format!("numerics {classes}")), classes != "exact", "{report}");
        let text = std::fs::read_to_string(dir.path().join("plan.json")).expect("the plan");
        assert_eq!(text.contains("\"numerics\""), classes != "exact");
        let planned = text.split("\"programs\"").nth(1).expect("programs");
        let sums = planned.matches("f32[1048576] = all_reduce").count()
            - planned.matches("bf16[1048576] = all_reduce").count();
        assert!(sums <= if classes == "exact" { 4 } else { 3 }, "{classes}: {sums}");
        let checked = stdout(&format!("check {plan}"));
        assert!(checked.contains("safe on 4 ranks"), "{classes}: {checked}");
        stdout(&format!("run {plan} --seed 1 --compare interpreter --backend threads"));
    }
}

#[test]
fn only_narrow_f16_allows_sums_to_overflow() {
    let dir = tempfile::tempdir().expect("a folder");
    let text = r#"program "p" ranks 4
group @all world
arg %x: f16[1048576]
%z: f16[1048576] = mul %x, 0.0
%g: f16[1048576] = add %z, 30000.0
%f: f32[1048576] = cast %g
%s: f32[1048576] = all_reduce %f op=sum group=@all
return %s
"#;
    let program = write(&dir, "overflow.symm", text);
    let run = |classes: &str| {
        let program = program.display();
        let options = "--machine h200x4 --backend threads --seed 1 --compare interpreter";
        stdout(&format!("run {program} --numerics {classes} {options}"))
    };
    assert!(run("reassociate,narrow").contains("output 0: equal\n"));
    let text = run("narrow-f16");
    assert!(
        text.contains("1048576 of 1048576 elements infinite or NaN, which the numerics class allows"),
        "{text}"
    );
}

#[test]
fn other_classes_are_refused_by_name() {
    let refusal =
        |classes: &str| failure(&mut symmc(&format!("plan hf_llama_tp2.pt2 --numerics {classes}")), 2);
    let text = refusal("relaxed");
    assert!(text.contains("reassociate,narrow,narrow-f16"), "{text}");
    assert!(refusal("strict").contains("new name of strict"));
    for classes in ["fast", "narrow,,reassociate", "exact,narrow", "Narrow"] {
        let text = refusal(classes);
        assert!(text.contains("--numerics") && text.contains("found"), "{classes}: {text}");
    }
}
