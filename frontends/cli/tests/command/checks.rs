//! The outcomes of `symmc check` and their exit codes, with and without `--require-compared`.

use std::path::Path;

use crate::common::{output, stdout, symmc, write};

/// Writes a plan of a program, with edits in its planned programs; returns its path.
fn plan(dir: &Path, program: &str, edits: &[(&str, &str)]) -> String {
    let source = write(dir, "p.symm", program.as_bytes());
    let file = dir.join("p.plan.json").display().to_string();
    stdout(&format!("plan {source} -o {file}"));
    let text = std::fs::read_to_string(&file).expect("a plan");
    let mut plan: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    for program in plan["programs"].as_array_mut().expect("programs") {
        let mut text = program.as_str().expect("a text").to_string();
        for (from, to) in edits {
            assert!(text.contains(from), "{from} in\n{text}");
            text = text.replace(from, to);
        }
        *program = text.into();
    }
    write(dir, "edited.plan.json", plan.to_string().as_bytes())
}

/// Checks a plan: the report has these parts, and the exit codes are these without and with `--require-compared`.
#[track_caller]
fn checked((program, edits): (&str, &[(&str, &str)]), codes: [i32; 2], parts: &[&str]) {
    let dir = tempfile::tempdir().expect("a folder");
    let file = plan(dir.path(), program, edits);
    for (option, code) in ["", "--require-compared"].into_iter().zip(codes) {
        let out = output(&mut symmc(&format!("check {file} {option}")));
        let text = [out.stdout, out.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert_eq!(out.status.code(), Some(code), "{option}: {text}");
        for part in ["safe on 2 ranks"].iter().chain(parts) {
            assert!(text.contains(part), "{option}: {part:?} is missing in\n{text}");
        }
    }
}

const SUM: &str = "program \"sum\" ranks 2\nsymbol t in 1..=64\ngroup @w world\narg %x: f32[t, 8]\n\
    %a: f32[t, 8] = all_reduce %x op=sum group=@w\n%y: f32[t, 8] = neg %a\nreturn %y\n";

#[test]
fn a_plan_that_is_its_source_is_equal() {
    checked((SUM, &[]), [0, 0], &["equal to its source, node for node, in 1 bucket\n"]);
}

#[test]
fn a_part_in_another_form_is_named() {
    checked(
        (SUM, &[("neg %a", "mul %a, -1.0")]),
        [0, 0],
        &["equal to its source by comparison of 1 part", "compared: %y (1 node of the source, 1 planned)"],
    );
}

#[test]
fn part_too_slow_at_largest_sizes_is_not_complete() {
    let sorted = "program \"sorted\" ranks 2\nsymbol t in 1..=100000000\ngroup @w world\narg %x: f32[t]\n\
        arg %z: f32[2]\n%s: f32[2] = all_reduce %z op=sum group=@w\n%a: f32[t] = neg %x\n\
        %b: f32[t], %j: i64[t] = sort %a axis=0 descending=false\n%y: f32[t] = neg %b\nreturn %y\nreturn %s\n";
    let edits = [
        ("= neg %x", "= mul %x, 1.0"),
        ("descending=false", "descending=true"),
        ("= neg %b", "= mul %b, 1.0"),
    ];
    checked(
        (sorted, &edits),
        [0, 1],
        &[
            "equal to its source by comparison of 2 parts",
            "%y (",
            "up to bucket 0 (t=",
            "larger sizes take too long",
        ],
    );
}

#[test]
fn a_part_that_cannot_run_is_not_compared() {
    let opaque = "program \"opaque\" ranks 2\ngroup @w world\narg %x: f32[4, 8]\n\
        %a: f32[4, 8] = all_reduce %x op=sum group=@w\n%o: f32[4, 8] = opaque \"ns::f\" %a attributes=\"dim=1\"\n\
        %y: f32[4, 8] = exp %o\nreturn %y\n";
    checked(
        (opaque, &[("dim=1", "dim=0")]),
        [0, 1],
        &["not compared with its source in 1 part", "not compared: %", "ns::f is opaque"],
    );
    checked((opaque, &[("op=sum", "op=max")]), [1, 1], &["1 difference from its source", "error: ", "%a"]);
}

#[test]
fn a_difference_fails() {
    checked(
        (SUM, &[("op=sum", "op=max")]),
        [1, 1],
        &[
            "1 difference from its source",
            "error: ",
            "bucket 0 (t=1): %a, from which output 0 (%y) is computed",
        ],
    );
}
