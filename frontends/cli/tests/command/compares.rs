//! The comparisons of `symmc run`. Recorded outputs that cannot be compared are errors or notes, never ignored.

use std::path::Path;

use crate::common::{Named, f32s, failure, i64s, output, stdout, symmc, tensors, write};

/// A program in which both ranks sum their arguments; `%n` is of integers.
const SUM: &str = "program \"sum\" ranks 2\nsymbol tokens in 1..=64\ngroup @g world\narg %x: f32[tokens, 2]\n\
    arg %i: i64[2]\nparam %w: f32[2] source \"w\"\n%s: f32[tokens, 2] = all_reduce %x op=sum group=@g\n\
    %y: f32[tokens, 2] = mul %s, %w\n%n: i64[2] = all_reduce %i op=sum group=@g\nreturn %y\nreturn %n\n";

/// The inputs and outputs of [`SUM`] on both ranks.
fn recorded_tensors() -> Vec<Named<'static>> {
    let mut out: Vec<Named<'static>> = Vec::new();
    for [w, x, i, y, n] in [
        ["rank0.w.w", "rank0.in.0", "rank0.in.1", "rank0.out.0", "rank0.out.1"],
        ["rank1.w.w", "rank1.in.0", "rank1.in.1", "rank1.out.0", "rank1.out.1"],
    ] {
        out.push((w, "F32", &[2], f32s(&[1.0, 2.0])));
        out.push((x, "F32", &[2, 2], f32s(&[1.0, 2.0, 3.0, 4.0])));
        out.push((i, "I64", &[2], i64s(&[1 << 61, 50_000])));
        out.push((y, "F32", &[2, 2], f32s(&[2.0, 8.0, 6.0, 16.0])));
        out.push((n, "I64", &[2], i64s(&[1 << 62, 100_000])));
    }
    out
}

/// Runs [`SUM`] with the recorded tensors after an edit.
fn run(dir: &Path, options: &str, edit: impl Fn(&mut Vec<Named<'static>>)) -> std::process::Output {
    output(&mut command(dir, options, edit))
}

fn command(dir: &Path, options: &str, edit: impl Fn(&mut Vec<Named<'static>>)) -> std::process::Command {
    let mut recorded = recorded_tensors();
    edit(&mut recorded);
    let (program, file) = (write(dir, "sum.symm", SUM.as_bytes()), tensors(dir, "t.safetensors", &recorded));
    symmc(&format!("run {program} --tensors {file} --backend threads {options}"))
}

/// Checks that the run is refused as bad input, with these parts in its message.
#[track_caller]
fn assert_rejected(options: &str, parts: &[&str], edit: impl Fn(&mut Vec<Named<'static>>)) {
    let dir = tempfile::tempdir().expect("a folder");
    let text = failure(&mut command(dir.path(), options, edit), 2);
    parts.iter().for_each(|part| assert!(text.contains(part), "{part:?} is missing in\n{text}"));
}

/// The tensor of this name, for edits.
fn find_tensor<'a>(all: &'a mut [Named<'static>], name: &str) -> &'a mut Named<'static> {
    all.iter_mut().find(|t| t.0 == name).expect("recorded")
}

#[test]
fn outputs_recorded_otherwise_are_errors() {
    for strange in ["rank0.output.0", "rank0.out0", "rank0.out.zero", "rank00.out.0", "out.0", "rank0.OUT.0"]
    {
        let messages = ["rank0.out.0 is missing", strange, "t.safetensors", "--compare none"];
        assert_rejected("", &messages, |all| find_tensor(all, "rank0.out.0").0 = strange);
    }
    // The names are also reported if no tensor has the name of an output.
    assert_rejected("", &["rank0.out.0 is missing", "rank0..1.output.0"], |all| {
        all.retain(|t| !t.0.contains(".out.1"));
        find_tensor(all, "rank0.out.0").0 = "rank0.output.0";
        find_tensor(all, "rank1.out.0").0 = "rank1.output.0";
    });
    assert_rejected("", &["sum returns 2 outputs", "rank1.out.2"], |all| {
        all.push(("rank1.out.2", "F32", &[1], f32s(&[0.0])));
    });
    assert_rejected("", &["rank1.out.0 (%y)", "expected f32[2, 2]", "found f32[4]"], |all| {
        find_tensor(all, "rank1.out.0").2 = &[4];
    });
    assert_rejected("", &["rank1.out.1 (%n)", "expected i64[2]", "found f64[2]"], |all| {
        find_tensor(all, "rank1.out.1").1 = "F64";
    });
    assert_rejected("--compare recorded", &["records no outputs"], |all| {
        all.retain(|t| !t.0.contains(".out."))
    });
    // Wrong recorded outputs do not matter if they are not compared.
    let dir = tempfile::tempdir().expect("a folder");
    for (compare, says) in [("none", "ran; not compared"), ("interpreter", "compared with the interpreter")] {
        let out =
            run(dir.path(), &format!("--compare {compare}"), |all| find_tensor(all, "rank0.out.0").0 = "out");
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success() && text.contains(says), "{text}");
    }
}

#[test]
fn recorded_outputs_of_other_arguments_are_errors() {
    assert_rejected("--set tokens=7", &["tokens=2, not of tokens=7", "--compare interpreter"], |_| ());
    assert_rejected("--set tokens=7 --compare recorded", &["tokens=2, not of tokens=7"], |_| ());
    assert_rejected("--seed 1", &["generated arguments", "--compare none"], |_| ());
    assert_rejected("", &["arguments of its outputs", "missing"], |all| {
        all.retain(|t| !t.0.contains(".in."))
    });
    let dir = tempfile::tempdir().expect("a folder");
    assert!(run(dir.path(), "--set tokens=7 --compare interpreter", |_| ()).status.success());
    assert!(run(dir.path(), "--set tokens=2", |_| ()).status.success());
    // A file without outputs needs no error.
    let out = run(dir.path(), "--set tokens=7", |all| all.retain(|t| !t.0.contains(".out.")));
    let hint = "nothing to compare with; --compare interpreter compares with the reference interpreter";
    assert!(String::from_utf8_lossy(&out.stdout).contains(hint), "{out:?}");
}

#[test]
fn the_interpreter_is_not_compared_with_itself() {
    let text = failure(
        &mut symmc("run megatron_tp4_f32.pt2 --seed 1 --backend interpreter --compare interpreter"),
        2,
    );
    assert!(text.contains("with itself"), "{text}");
}

#[test]
fn unused_tensors_are_named() {
    let dir = tempfile::tempdir().expect("a folder");
    let out = run(dir.path(), "", |all| {
        for name in ["rank0.w.spare", "rank1.w.spare", "scale", "rank0.hidden.3"] {
            all.push((name, "F32", &[1], f32s(&[0.0])));
        }
    });
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{text}");
    for name in ["rank0..1.w.spare", "scale", "rank0.hidden.3"] {
        assert!(text.contains(name), "{name} is missing in\n{text}");
    }
    let surplus = run(dir.path(), "", |all| all.push(("rank1.in.2", "F32", &[1], f32s(&[0.0]))));
    let text = String::from_utf8_lossy(&surplus.stderr).into_owned();
    assert_eq!(surplus.status.code(), Some(2), "{text}");
    assert!(text.contains("rank1.in.2: the program has 2 arguments that are tensors"), "{text}");
    let quiet = run(dir.path(), "", |_| ());
    assert!(quiet.status.success() && quiet.stderr.is_empty(), "{quiet:?}");
}

#[test]
fn a_program_without_arguments_is_compared() {
    let dir = tempfile::tempdir().expect("a folder");
    let program = "program \"p\" ranks 2\ngroup @g world\nparam %w: f32[2] source \"w\"\n\
                   %y: f32[2] = all_reduce %w op=sum group=@g\nreturn %y\n";
    let program = write(dir.path(), "p.symm", program.as_bytes());
    for (last, code) in [(6.0, 0), (6.5, 1)] {
        let recorded: [Named<'_>; 4] = [
            ("rank0.w.w", "F32", &[2], f32s(&[1.0, 2.0])),
            ("rank1.w.w", "F32", &[2], f32s(&[3.0, 4.0])),
            ("rank0.out.0", "F32", &[2], f32s(&[4.0, 6.0])),
            ("rank1.out.0", "F32", &[2], f32s(&[4.0, last])),
        ];
        let file = tensors(dir.path(), "t.safetensors", &recorded);
        let out = output(&mut symmc(&format!("run {program} --tensors {file}")));
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert_eq!(out.status.code(), Some(code), "{text}");
        assert!(text.contains("compared with the recorded outputs"), "{text}");
        assert_eq!(text.contains("worst at [1]: found 6.0, expected 6.5"), code == 1, "{text}");
    }
}

#[test]
fn integers_are_compared_exactly_under_any_tolerance() {
    let dir = tempfile::tempdir().expect("a folder");
    for options in ["", "--atol 1e9 --rtol 1", "--compare recorded"] {
        let out = run(dir.path(), options, |all| {
            find_tensor(all, "rank0.out.1").3 = i64s(&[(1 << 62) - 1, 100_003]);
        });
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert_eq!(out.status.code(), Some(1), "{text}");
        assert!(
            text.contains("rank 0 output 1: FAILED") && text.contains("2 of 2 elements beyond"),
            "{text}"
        );
        assert!(text.contains("found 100000, expected 100003"), "{text}");
        assert!(!text.contains("rank 1 output 1: FAILED"), "{text}");
    }
    let out = run(dir.path(), "", |all| find_tensor(all, "rank0.out.1").3 = i64s(&[(1 << 62) - 1, 100_000]));
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(text.contains("found 4611686018427387904, expected 4611686018427387903"), "{text}");
}

#[test]
fn floats_are_compared_element_by_element() {
    let dir = tempfile::tempdir().expect("a folder");
    let code = |options: &str, elements: [f32; 4]| {
        run(dir.path(), options, |all| find_tensor(all, "rank1.out.0").3 = f32s(&elements)).status.code()
    };
    assert_eq!(code("", [2.0, 8.0, 6.0, 16.0001]), Some(0));
    assert_eq!(code("", [2.0, 8.0, 6.0, 16.01]), Some(1));
    // A difference that is allowed at a large element is not allowed at a small one.
    assert_eq!(code("--atol 0 --rtol 0.01", [2.0, 8.0, 6.0, 16.1]), Some(0));
    assert_eq!(code("--atol 0 --rtol 0.01", [2.1, 8.0, 6.0, 16.0]), Some(1));
    assert_eq!(code("--atol 0.11 --rtol 0", [2.1, 8.1, 6.0, 16.1]), Some(0));
    assert_eq!(code("--atol 1e30 --rtol 1e30", [f32::NAN, 8.0, 6.0, 16.0]), Some(1));
    assert_eq!(code("--atol 1e30 --rtol 1e30", [f32::INFINITY, 8.0, 6.0, 16.0]), Some(1));
}

#[test]
fn recorded_outputs_of_stateful_programs_allow_one_run() {
    let dir = tempfile::tempdir().expect("a folder");
    let program = "program \"count\" ranks 1\nparam %s: f32[1] source \"s\"\n%n: f32[1] = add %s, %s\n\
                   %y: f32[1] = mul %n, %n\nmutate %s = %n\nreturn %y\n";
    let program = write(dir.path(), "p.symm", program.as_bytes());
    let recorded: [Named<'_>; 2] =
        [("rank0.w.s", "F32", &[1], f32s(&[1.0])), ("rank0.out.0", "F32", &[1], f32s(&[4.0]))];
    let file = tensors(dir.path(), "t.safetensors", &recorded);
    let line = format!("run {program} --tensors {file}");
    assert!(stdout(&line).contains("compared with the recorded outputs"));
    let text = failure(&mut symmc(&format!("{line} --repeat 2")), 2);
    assert!(text.contains("changes its inputs in each run") && text.contains("--repeat 2"), "{text}");
    stdout(&format!("{line} --repeat 2 --compare interpreter"));
}

#[test]
fn outputs_are_written_as_tensor_files_are_read() {
    let dir = tempfile::tempdir().expect("a folder");
    let (program, file) = (
        write(dir.path(), "sum.symm", SUM.as_bytes()),
        tensors(dir.path(), "t.safetensors", &recorded_tensors()),
    );
    for backend in ["host", "threads", "interpreter"] {
        let written = dir.path().join(format!("{backend}.safetensors"));
        let line = format!(
            "run {program} --tensors {file} --backend {backend} --output {} --print",
            written.display()
        );
        let text = stdout(&line);
        assert!(
            text.contains("rank 1 output 0 (%y): f32[2, 2]\n  [[2.0, 8.0],\n   [6.0, 16.0]]\n"),
            "{text}"
        );
        assert!(text.contains("rank 0 output 1 (%n): i64[2]\n  [4611686018427387904, 100000]\n"), "{text}");
        // The file has the recorded outputs. The next run with the same weights and arguments has the same outputs.
        let bytes = std::fs::read(&written).expect("outputs");
        let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
        let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).expect("a header");
        for (name, dtype, shape, expected) in recorded_tensors().into_iter().filter(|t| t.0.contains(".out."))
        {
            let entry = &header[name];
            assert_eq!(
                (&entry["dtype"], &entry["shape"]),
                (&dtype.into(), &serde_json::json!(shape)),
                "{name}"
            );
            let position =
                |i: usize| 8 + length + entry["data_offsets"][i].as_u64().expect("an offset") as usize;
            assert_eq!(bytes[position(0)..position(1)], expected, "{name} on {backend}");
        }
    }
    let beside: Vec<_> = std::fs::read_dir(dir.path()).expect("a folder").flatten().collect();
    assert_eq!(beside.len(), 5, "{beside:?}");
}

#[test]
fn an_output_file_is_whole_or_not_there() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().display().to_string();
    let says = |line: &str, parts: &[&str]| {
        let text = failure(&mut symmc(line), 2);
        parts.iter().for_each(|part| assert!(text.contains(part), "{part:?} is missing in\n{text}"));
    };
    let run = "run hf_llama_tp2.pt2 --tensors hf_llama_tp2.safetensors";
    says(&format!("{run} --output {folder}"), &["this is a folder", "outputs"]);
    says(&format!("{run} --output {folder}/no/o.safetensors"), &["no folder", "/no"]);
    says(
        &format!("{run} --output hf_llama_tp2.safetensors"),
        &["read by the same command", "hf_llama_tp2.safetensors"],
    );
    says(&format!("{run} --set tokens=3 --seed 1 --output {folder}/o.safetensors"), &["tokens"]);
    let out = output(&mut symmc(&format!("{run} --output {folder}/o.safetensors --timeout 0.001 --chaos 1")));
    assert!(out.status.success() || std::fs::read_dir(dir.path()).expect("a folder").count() == 0);
    // The outputs are written even if the comparison fails: they are then of most use.
    let out = output(&mut symmc(&format!("{run} --output {folder}/o.safetensors --atol 0 --rtol 0")));
    assert_eq!(out.status.code(), Some(1));
    assert_eq!(std::fs::read_dir(dir.path()).expect("a folder").count(), 1);
}

#[test]
fn times_are_those_of_runs() {
    let out =
        output(&mut symmc("run hf_llama_tp2.pt2 --tensors hf_llama_tp2.safetensors --timing --repeat 20"));
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(
        text.contains("20 runs in ") && text.contains("each: least ") && text.contains("median "),
        "{text}"
    );
}

/// Random operands of a gather differ by rank, so that reading the wrong peer shows. Other arguments are the same on all ranks.
#[test]
fn drawn_operands_of_collectives_differ_by_rank() {
    let dir = tempfile::tempdir().expect("a folder");
    let program = "program \"p\" ranks 2\ngroup @g world\narg %x: f32[4]\narg %ids: i64[2]\nparam %w: f32[8, 4] source \"w\"\n\
                   %rows: f32[2, 4] = take %w, %ids axis=0\n%all: f32[8] = all_gather %x group=@g\nreturn %all, %rows\n";
    let program = write(dir.path(), "p.symm", program.as_bytes());
    let file = dir.path().join("o.safetensors");
    for (option, differs) in
        [("", true), ("--draw operands", true), ("--draw per-rank", true), ("--draw shared", false)]
    {
        let line =
            format!("run {program} --seed 1 {option} --compare interpreter --output {}", file.display());
        let out = output(&mut symmc(&line));
        let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{stderr}");
        let note = match option {
            "--draw shared" => "arguments drawn from seed 1, the same on all ranks",
            "--draw per-rank" => "arguments drawn from seed 1, different on each rank",
            _ => "arguments drawn from seed 1, different on each rank for %x",
        };
        assert!(stderr.contains(&format!("note: {note}\n")), "{stderr}");
        let outputs = symmc::TensorFile::open(&file).expect("outputs");
        let gathered = outputs.get("rank0.out.0").expect("f32").expect("an output").to_f64();
        assert_eq!(gathered[..4] != gathered[4..], differs, "{option}");
    }
}
