//! Input files. Ranks under another launcher must read the same bytes of tensors. A file that changes during a run is an error,
//! never a signal. A pipe is read once.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::Duration;

use crate::common::{Named, f32s, programs, symmc, tensors, write};

/// The number of elements of a weight, which takes many pages.
const ELEMENTS: usize = 1 << 21;

/// A program of two ranks with large weights, and a file with the weights.
fn large(dir: &Path) -> (String, String) {
    let program = format!(
        "program \"large\" ranks 2\ngroup @g world\nparam %w: f32[{ELEMENTS}] source \"w\"\n\
         %v: f32[{ELEMENTS}] = add %w, %w\n\
         %y: f32[{ELEMENTS}] = all_reduce %v op=sum group=@g\nreturn %y\n"
    );
    let (ones, two) = (vec![1.0; ELEMENTS], vec![2.0; ELEMENTS]);
    let sum = f32s(&vec![6.0; ELEMENTS]);
    let recorded: [Named<'_>; 4] = [
        ("rank0.w.w", "F32", &[ELEMENTS], f32s(&ones)),
        ("rank1.w.w", "F32", &[ELEMENTS], f32s(&two)),
        ("rank0.out.0", "F32", &[ELEMENTS], sum.clone()),
        ("rank1.out.0", "F32", &[ELEMENTS], sum),
    ];
    (write(dir, "large.symm", program.as_bytes()), tensors(dir, "large.safetensors", &recorded))
}

/// Starts a process for each line, as the ranks of a run under another launcher; returns their outputs.
fn run_joined(lines: &[String], run: &str) -> Vec<Output> {
    let size = lines.len().to_string();
    let start = |(rank, line): (usize, &String)| -> Child {
        let mut command = symmc(line);
        let port = format!("{}{run}", std::process::id());
        command.envs([("RANK", rank.to_string()), ("WORLD_SIZE", size.clone())]);
        command.envs([("MASTER_ADDR", "files"), ("MASTER_PORT", port.as_str())]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("symmc starts")
    };
    let ranks: Vec<Child> = lines.iter().enumerate().map(start).collect();
    ranks.into_iter().map(|child| child.wait_with_output().expect("it ends")).collect()
}

#[test]
fn joining_ranks_detect_every_differing_tensor_byte() {
    let dir = tempfile::tempdir().expect("a folder");
    let (program, file) = large(dir.path());
    let line = |file: &str| format!("run {program} --tensors {file}");
    let bytes = std::fs::read(&file).expect("tensors");
    // The same bytes in another file.
    let copy = write(dir.path(), "copy.safetensors", &bytes);
    for (i, second) in [&file, &copy].into_iter().enumerate() {
        for out in run_joined(&[line(&file), line(second)], &format!("1{i}")) {
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        }
    }
    // One byte differs, also in tensors that only the other rank reads, and in expected outputs.
    let length = bytes.len();
    for (i, position) in [length / 8 + 12_345, length / 3 + 54_321, length - 777].into_iter().enumerate() {
        let mut changed = bytes.clone();
        changed[position] ^= 1;
        let changed_file = write(dir.path(), "other.safetensors", &changed);
        for out in run_joined(&[line(&file), line(&changed_file)], &format!("2{i}")) {
            let text = String::from_utf8_lossy(&out.stderr).into_owned();
            assert_eq!(out.status.code(), Some(2), "{text}");
            assert!(text.contains("rank 1 runs with tensors=sha256:"), "{text}");
        }
    }
}

#[test]
fn programs_that_differ_are_named_on_all_ranks() {
    let dir = tempfile::tempdir().expect("a folder");
    let command = |name: &str, op: &str| {
        let text = format!(
            "program \"{name}\" ranks 2\ngroup @g world\narg %x: f32[4]\n\
             %y: f32[4] = all_reduce %x op={op} group=@g\nreturn %y\n"
        );
        format!("run {} --seed 1", write(dir.path(), &format!("{name}.symm"), text.as_bytes()))
    };
    for out in run_joined(&[command("adds", "sum"), command("chooses", "max")], "3") {
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{text}");
        assert!(text.contains("program adds") && text.contains("program chooses"), "{text}");
    }
}

#[test]
fn truncating_tensor_files_during_a_run_is_an_error() {
    let dir = tempfile::tempdir().expect("a folder");
    let (program, file) = large(dir.path());
    let bytes = std::fs::read(&file).expect("tensors");
    for backend in ["host", "threads", "interpreter"] {
        let repeat = if backend == "interpreter" { 2 } else { 40 };
        for delay in [0, 10, 30, 60, 120, 240] {
            let file = write(dir.path(), &format!("{backend}{delay}.safetensors"), &bytes);
            let line = format!("run {program} --tensors {file} --backend {backend} --repeat {repeat}");
            let mut command = symmc(&line);
            let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("symmc starts");
            std::thread::sleep(Duration::from_millis(delay));
            let shortened = std::fs::OpenOptions::new().write(true).open(&file).expect("the file");
            shortened.set_len(bytes.len() as u64 / 2).expect("shortened");
            let out = child.wait_with_output().expect("it ends");
            let text = String::from_utf8_lossy(&out.stderr).into_owned();
            assert_eq!(out.status.signal(), None, "{line} after {delay} ms: {text}");
            assert!(!text.contains("signal"), "{line} after {delay} ms: {text}");
            let code = out.status.code().expect("it exited");
            let is_refused =
                text.contains("changed while it was in use") || text.contains("not a safetensors file");
            assert!(code == 0 || (code == 2 && is_refused), "{line} after {delay} ms: {code}: {text}");
        }
    }
}

/// Runs a command line whose standard input is a pipe with this content.
fn piped(line: &str, content: &[u8]) -> Output {
    let mut command = symmc(line);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("symmc starts");
    // A command that refuses the content ends before it has read everything.
    let _ = child.stdin.take().expect("a pipe").write_all(content);
    child.wait_with_output().expect("it ends")
}

#[test]
fn pipes_are_read_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let program = std::fs::read(programs().join("../../examples/data_parallel.symm")).expect("a program");
    let gives = |line: &str, content: &[u8], part: &str| {
        let out = piped(line, content);
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success() && text.contains(part), "{line}\n{text}{out:?}");
    };
    gives("print /dev/stdin", &program, "program \"data_parallel\" ranks 2");
    if cfg!(feature = "torch") {
        let archive = std::fs::read(programs().join("moe_ep4.pt2")).expect("a program");
        gives("print /dev/stdin --ranks 4", &archive, "all_to_all");
    }
    let plan = dir.path().join("plan.json");
    gives(&format!("plan /dev/stdin -o {}", plan.display()), &program, "two_shot");
    gives(
        "run /dev/stdin --backend threads --compare interpreter",
        &program,
        "compared with the interpreter",
    );
    let text = std::fs::read(plan).expect("a plan");
    gives("check /dev/stdin", &text, "safe on 2 ranks");
    // Files that are read more than once cannot be pipes.
    let refuses = |line: &str, content: &[u8], part: &str| {
        let out = piped(line, content);
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.code() == Some(2) && text.contains(part), "{line}\n{text}");
    };
    let run = "run ../../examples/data_parallel.symm --tensors /dev/stdin";
    refuses(run, b"", "expected a safetensors file");
    if cfg!(feature = "onnx") {
        let model = std::fs::read(programs().join("gpt_tp2_rank0.onnx")).expect("a model");
        refuses("plan /dev/stdin", &model, "expected a file with an ONNX model");
    }
}
