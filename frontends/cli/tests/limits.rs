//! Limits of the system: few threads, little memory, few open files, small files. The command goes on with fewer threads, or ends with
//! an error and exit code 2; it never panics, aborts or hangs.

mod common;

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::programs;

const PLAN: &str = "plan megatron_tp4_f32.pt2";
const RUN: &str = "run megatron_tp4_f32.pt2 --tensors megatron_tp4_f32.safetensors";
const DOCTOR: &str = "doctor";
const THREADS: &str = "run megatron_tp4_f32.pt2 --tensors megatron_tp4_f32.safetensors --backend threads";

/// Runs symmc under a limit of the shell. What hangs is ended, and has no exit code.
fn limited(limit: &str, line: &str) -> Output {
    let symmc = env!("CARGO_BIN_EXE_symmc");
    let mut child = Command::new("sh")
        .args(["-c", &format!("{limit} && exec {symmc} {line}")])
        .current_dir(programs())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a shell starts");
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(60) && matches!(child.try_wait(), Ok(None)) {
        std::thread::sleep(Duration::from_millis(5));
    }
    // It has ended, or shall.
    let _ = child.kill();
    child.wait_with_output().expect("it ends")
}

/// Whether the limit lets the program start at all.
fn starts(limit: &str) -> bool {
    limited(limit, "-V").status.code() == Some(0)
}

/// The codes with which each command ends under each limit.
fn sweep(flag: char, limits: &[u32], commands: &[&str]) -> Vec<i32> {
    let mut codes = Vec::new();
    for limit in limits.iter().map(|limit| format!("ulimit -{flag} {limit}")) {
        if !starts(&limit) {
            continue;
        }
        for command in commands {
            let output = limited(&limit, command);
            let text = String::from_utf8_lossy(&output.stderr);
            let code = output.status.code();
            assert!(matches!(code, Some(0 | 2)), "{limit}; symmc {command}: {:?}\n{text}", output.status);
            assert!(!text.contains("panicked"), "{limit}; symmc {command}\n{text}");
            assert_eq!(code == Some(2), text.contains("error:"), "{limit}; symmc {command}\n{text}");
            codes.extend(code);
        }
    }
    codes
}

/// Both ends were seen, so that the limits are where they matter.
fn both(codes: &[i32]) {
    assert!(codes.contains(&0) && codes.contains(&2), "{codes:?}");
}

#[test]
fn little_memory_for_data_is_an_error_or_enough() {
    // A thread's stack takes 2 MiB of it, so the lower ones leave no thread.
    let limits = [600, 900, 1200, 1500, 1800, 2100, 2300, 2600, 3000, 3400, 4000, 4700, 5500, 8000, 16000];
    both(&sweep('d', &limits, &[PLAN, RUN, THREADS]));
}

#[test]
fn little_address_space_is_an_error_or_enough() {
    let limits = [9_000, 12_000, 16_000, 20_000, 24_000, 30_000, 40_000, 60_000, 100_000, 400_000];
    both(&sweep('v', &limits, &[PLAN, RUN, THREADS, DOCTOR]));
}

#[test]
fn a_small_stack_is_enough() {
    let codes = sweep('s', &[64, 80, 100, 128, 200, 1024], &[PLAN, RUN, THREADS]);
    assert!(codes.len() >= 9 && codes.iter().all(|&code| code == 0), "{codes:?}");
}

#[test]
fn few_open_files_are_an_error_or_enough() {
    both(&sweep('n', &[0, 3, 4, 5, 6, 7, 8, 10, 12, 14, 17, 20, 64], &[PLAN, RUN, THREADS, DOCTOR]));
}

#[test]
fn small_files_are_an_error_or_enough() {
    // What ranks share is a file for the system; the unit is 512 bytes.
    both(&sweep('f', &[0, 1, 8, 100, 10_000, 1_000_000], &[PLAN, RUN, THREADS, DOCTOR]));
}

#[test]
fn a_plan_that_cannot_be_written_leaves_what_was_there() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("plan.json");
    let line = format!("{PLAN} -o {}", file.display());
    let refused = || {
        let output = limited("ulimit -f 4", &line);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && text.contains("plan.json"), "{:?}\n{text}", output.status);
    };
    let left = || {
        let all = std::fs::read_dir(dir.path()).expect("the folder");
        all.map(|entry| entry.expect("an entry").file_name()).collect::<Vec<_>>()
    };
    refused();
    assert!(left().is_empty(), "{:?}", left());
    std::fs::write(&file, "older").expect("a file");
    refused();
    assert_eq!(std::fs::read_to_string(&file).expect("the file"), "older");
    assert_eq!(left(), ["plan.json"]);
    assert_eq!(limited("true", &line).status.code(), Some(0));
    assert_eq!(left(), ["plan.json"]);
    assert!(std::fs::read_to_string(&file).expect("the file").contains("\"version\""));
}
