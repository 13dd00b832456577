//! Messages that quote untrusted files. No control character of a file reaches the terminal, and messages have a bounded
//! length.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use crate::common::{output, symmc};

/// Names as an untrusted file may have them: with sequences that set a title, clear the screen, start a new line or reverse
/// text, and one that is very long.
fn names() -> Vec<String> {
    let strange =
        ["\u{1b}]0;pwned\u{7}\u{1b}[2J", "\u{9b}31m\u{7f}\u{0}", "a\nerror: forged\r", "\u{202e}b\u{2028}"];
    strange.into_iter().map(String::from).chain(["x".repeat(100_000), "y, ".repeat(40_000)]).collect()
}

/// Checks that the output of a command is one message, has no control characters, and is not long.
#[track_caller]
fn check(command: &mut Command, code: i32) {
    let out = output(command);
    let (said, printed) = (String::from_utf8_lossy(&out.stderr), String::from_utf8_lossy(&out.stdout));
    let about: String = format!("{command:?}").chars().take(400).collect();
    assert_eq!(out.status.code(), Some(code), "{about}\n{said}");
    for text in [&said, &printed] {
        let acts =
            |c: char| c.is_control() && c != '\n' && c != '\t' || ('\u{2028}'..='\u{202e}').contains(&c);
        assert!(!text.contains(acts), "{about}\n{text:?}");
    }
    assert!(said.chars().count() < 40_000, "{about}: {} characters", said.chars().count());
    let messages = said.lines().filter(|line| line.starts_with("error:")).count();
    assert_eq!(messages, usize::from(code == 2), "{about}\n{said}");
}

fn file(dir: &Path, name: &str, text: &str) -> String {
    std::fs::write(dir.join(name), text).expect("written");
    dir.join(name).display().to_string()
}

#[test]
fn strange_names_in_every_kind_of_file() {
    let dir = tempfile::tempdir().expect("a folder");
    let plan = dir.path().join("good.json");
    assert!(
        output(&mut symmc(&format!("plan ../../examples/data_parallel.symm -o {}", plan.display())))
            .status
            .success()
    );
    let plan = std::fs::read_to_string(plan).expect("a plan");
    let symm = "program \"p\" ranks 2\ngroup @g world\narg %x: f32[4]\n";
    for name in names() {
        let quoted = serde_json::to_string(&name).expect("a string");
        // Each part of the text form that errors quote.
        for text in [
            format!("{symm}{name}\nreturn %x\n"),
            format!("{symm}%y: f32[4] = {name} %x\nreturn %y\n"),
            format!("{symm}%y: f32[4] = neg %{name}\nreturn %y\n"),
            format!("program {quoted} ranks 2\narg %x: f32[4]\nreturn %nothing\n"),
            format!("{symm}%y: f32[4] = all_reduce %x op=sum group=@{name}\nreturn %y\n"),
            format!("{symm}%y: f32[{name}] = neg %x\nreturn %y\n"),
        ] {
            check(&mut symmc(&format!("plan {}", file(dir.path(), "a.symm", &text))), 2);
        }
        for text in [
            format!("{{{quoted}: 1}}"),
            format!("{{\"version\": {quoted}}}"),
            plan.replacen("\"host\"", &quoted, 1).replacen("\"version\"", &quoted, 1),
        ] {
            check(&mut symmc(&format!("check {}", file(dir.path(), "p.json", &text))), 2);
            let machine = file(dir.path(), "m.json", &text);
            check(&mut symmc(&format!("plan ../../examples/data_parallel.symm --machine {machine}")), 2);
        }
        let cell = name.replace(['\n', ','], ";");
        for text in [
            format!("id,lower,{cell},size\n1,0,1,1\n"),
            format!("id,lower,upper,size\n1,{cell},1,1\n"),
            format!("id,lower,upper,size,offset\n{cell},0,2,8,0\n{cell},1,3,8,4\n"),
        ] {
            check(&mut symmc(&format!("pack {}", file(dir.path(), "t.csv", &text))), 2);
        }
        let header = format!("{{{quoted}:{{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}}}");
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend([0; 4]);
        let tensors = dir.path().join("t.safetensors");
        std::fs::write(&tensors, bytes).expect("written");
        check(
            &mut symmc(&format!("run ../../examples/data_parallel.symm --tensors {}", tensors.display())),
            2,
        );
    }
}

#[test]
fn good_output_has_strange_names_escaped_as_well() {
    let dir = tempfile::tempdir().expect("a folder");
    let text = "program \"p\\u{1b}[2J\" ranks 2\ngroup @g world\nparam %x: f32[4] source \"w\\u{9b}31m\\u{7}\"\n\
                %y: f32[4] = all_reduce %x op=sum group=@g\nreturn %y\n";
    let program = file(dir.path(), "a.symm", text);
    check(&mut symmc(&format!("plan {program}")), 0);
    check(&mut symmc(&format!("print {program}")), 0);
    check(&mut symmc(&format!("run {program} --seed 1 --backend threads --compare interpreter --print")), 0);
    let table = file(dir.path(), "t.csv", "id,lower,upper,size\na\u{1b}[2J,0,2,8\nb\u{7},1,3,8\n");
    check(&mut symmc(&format!("pack {table}")), 0);
    check(&mut symmc(&format!("pack {table} --capacity 8")), 1);
}

/// Marks that reorder text, in the names that may have them: those of programs, groups and weights.
#[test]
fn direction_marks_in_names_are_escaped() {
    let dir = tempfile::tempdir().expect("a folder");
    for mark in ["\u{202e}", "\u{2066}", "\u{200f}", "\u{61c}", "\u{feff}", "\u{2028}", "\u{9b}", "\u{7f}"] {
        let text = format!(
            "program \"p{mark}\" ranks 2\ngroup @\"g{mark}\" world\nparam %x: f32[4] source \"w{mark}\"\n\
             %y: f32[4] = all_reduce %x op=sum group=@\"g{mark}\"\nreturn %y\n"
        );
        let program = file(dir.path(), "a.symm", &text);
        for line in ["print", "print --stage canonical", "print --stage planned", "plan"] {
            let out = output(&mut symmc(&format!("{line} {program}")));
            let printed = String::from_utf8(out.stdout).expect("text");
            assert!(out.status.success(), "{line}: {}", String::from_utf8_lossy(&out.stderr));
            assert!(!printed.contains(mark), "{line}: {printed:?}");
            assert!(
                printed.contains(&format!("\\u{{{:x}}}", u32::from(mark.chars().next().expect("a mark"))))
            );
        }
        // The printed text is the same program.
        let printed = output(&mut symmc(&format!("print {program}"))).stdout;
        let reprinted = file(dir.path(), "b.symm", &String::from_utf8(printed.clone()).expect("text"));
        assert_eq!(output(&mut symmc(&format!("print {reprinted}"))).stdout, printed);
    }
}

/// Names that are longer than the texts of plans, the messages of ranks and the errors in shared memory.
#[test]
fn long_names_plan_check_and_run() {
    let dir = tempfile::tempdir().expect("a folder");
    for length in [4060, 5000, 300_000] {
        let [program, symbol, group, value] = ["p", "s", "g", "v"].map(|letter| letter.repeat(length));
        let text = format!(
            "program \"{program}\" ranks 2\nsymbol {symbol} in 1..=8\ngroup @{group} world\n\
             arg %{value}: f32[{symbol}, 4]\narg %i: i64[3]\n%{value}n: f32[{symbol}, 4] = neg %{value}\n\
             %{value}y: f32[{symbol}, 4] = all_reduce %{value}n op=sum group=@{group}\n\
             %{value}z: f32[3, 4] = take %{value}y, %i axis=0\n\
             %{value}r: f32[3, 4] = all_reduce %{value}z op=sum group=@{group}\nreturn %{value}r\n"
        );
        let source = file(dir.path(), "a.symm", &text);
        let plan = dir.path().join("a.json").display().to_string();
        check(&mut symmc(&format!("plan {source} --machine h200x2 -o {plan}")), 0);
        check(&mut symmc(&format!("check {plan} --require-compared")), 0);
        check(&mut symmc(&format!("run {source} --seed 1 --timeout 30")), 0);
        // An index that is wrong on one rank ends the run on both, with the error of that rank.
        let index = |last: i64| [0, 0, last].iter().flat_map(|i: &i64| i.to_le_bytes()).collect::<Vec<u8>>();
        let rows = || vec![0; 2 * 4 * 4];
        let tensors = crate::common::tensors(
            dir.path(),
            "t.safetensors",
            &[
                ("rank0.in.0", "F32", &[2, 4], rows()),
                ("rank0.in.1", "I64", &[3], index(1)),
                ("rank1.in.0", "F32", &[2, 4], rows()),
                ("rank1.in.1", "I64", &[3], index(9)),
            ],
        );
        let error =
            crate::common::failure(&mut symmc(&format!("run {source} --tensors {tensors} --timeout 30")), 2);
        assert!(error.contains("rank 1") && error.contains("the index 9 is outside"), "{error}");
    }
}

#[test]
#[cfg(feature = "onnx")]
fn strange_names_in_a_model() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = std::fs::read(crate::common::programs().join("gpt_tp2_rank0.onnx")).expect("a model");
    let path = dir.path().join("m.onnx");
    for (from, to) in
        [("MatMul", "\u{1b}]0;A\u{7}"), ("Softmax", "\u{1b}[2J\u{7}ab"), ("float32", "\u{1b}[31m\n.")]
    {
        assert_eq!(from.len().max(6), to.len().max(6), "the lengths of fields stay");
        let mut changed = model.clone();
        let places: Vec<usize> =
            (0..model.len() - from.len()).filter(|&i| model[i..].starts_with(from.as_bytes())).collect();
        places.iter().for_each(|&at| changed[at..at + to.len()].copy_from_slice(to.as_bytes()));
        std::fs::write(&path, &changed).expect("written");
        let out = output(&mut symmc(&format!("plan {}", path.display())));
        check(&mut symmc(&format!("plan {}", path.display())), out.status.code().unwrap_or(-1));
    }
}

#[test]
fn names_of_files_and_arguments() {
    for name in names() {
        let short: String = name.chars().filter(|c| *c != '\0').take(2000).collect();
        let mut command = symmc("plan");
        check(command.arg(format!("{short}.symm")), 2);
        for line in [
            "run ../../examples/data_parallel.symm --set",
            "plan ../../examples/data_parallel.symm --machine",
            "plan ../../examples/data_parallel.symm --numerics",
            "ops",
        ] {
            check(symmc(line).arg(&short), 2);
        }
        check(symmc("").arg(&short), 2);
    }
    check(symmc("plan").arg(OsStr::from_bytes(b"\xff\x1b[2J.symm")), 2);
}

/// Help that cannot be written is an error, like all other output.
#[test]
fn help_on_a_full_disk() {
    for line in ["--help", "plan --help", "--version", "ops"] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
        let out = symmc(line).stdout(full).output().expect("symmc starts");
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!((out.status.code(), text.contains("No space left")), (Some(2), true), "{line}: {text}");
    }
}

/// Only the module that escapes messages writes to standard error, except for the spinner and the out-of-memory error.
#[test]
fn one_place_writes_to_standard_error() {
    fn walk(folder: &Path, out: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                walk(&path, out);
                continue;
            }
            // clap's `use_stderr` only says where clap would write.
            let text = std::fs::read_to_string(&path).expect("a source file").replace("use_stderr()", "");
            if ["eprint", "stderr()", "dbg!"].iter().any(|way| text.contains(way)) {
                out.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
    }
    let mut files = Vec::new();
    walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    files.sort();
    assert_eq!(files, ["messages.rs", "progress.rs"]);
}
