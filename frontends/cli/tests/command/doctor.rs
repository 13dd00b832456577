//! `symmc doctor` on machines where things are missing, and with libraries that crash or hang.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{failure, output, symmc};
use serde_json::Value;

/// The checks of every report, without those for each GPU.
const NAMES: [&str; 19] = [
    "host launcher",
    "host processors",
    "host memory",
    "host shared memory",
    "host /dev/shm",
    "host handle passing",
    "host descriptors",
    "host locked memory",
    "host kernel cache",
    "gpus driver",
    "gpus gpus",
    "gpus peer access",
    "gpus memory handles",
    "gpus profile",
    "nvrtc nvrtc",
    "cublaslt cublaslt",
    "cudnn cudnn",
    "nccl nccl",
    "nccl nccl dependent launch",
];

/// Runs the doctor; returns the checks of its JSON report by part and name. The exit code must be 0.
#[track_caller]
fn report(command: &mut Command) -> BTreeMap<String, Value> {
    let out = output(command);
    let errors = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(0), "{errors}");
    let report: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let fields = |v: &Value| v.as_object().map(|o| o.keys().cloned().collect::<Vec<_>>()).unwrap_or_default();
    assert_eq!(fields(&report), ["version", "symmc", "checks"]);
    assert_eq!(report["version"], 1);
    let checks = report["checks"].as_array().expect("checks");
    let name = |c: &Value| format!("{} {}", text(&c["part"]), text(&c["name"]));
    for check in checks {
        assert_eq!(fields(check), ["part", "name", "status", "found", "version", "path", "remedy"]);
        let status = text(&check["status"]);
        assert!(["ok", "limited", "missing", "unknown"].contains(&status), "{check}");
        assert_eq!(status == "ok", check["remedy"].is_null(), "{check}");
    }
    let fixed: Vec<String> = checks.iter().map(name).filter(|n| !n.starts_with("gpus gpu ")).collect();
    assert_eq!(fixed, NAMES);
    checks.iter().map(|c| (name(c), c.clone())).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

/// Compiles C code into a shared library of this name; returns its path.
fn library(folder: &Path, name: &str, code: &str) -> String {
    let (source, file) = (folder.join("source.c"), folder.join(name));
    std::fs::write(&source, code).expect("a file");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&file, &source])
        .status()
        .expect("a compiler");
    assert!(built.success());
    file.display().to_string()
}

#[test]
fn a_report_has_the_same_lines_everywhere() {
    let checks = report(&mut symmc("doctor --format json"));
    let out = output(&mut symmc("doctor"));
    let lines = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(out.status.code(), Some(0));
    // The first line names symmc, and the last one has the counts.
    assert_eq!(lines.lines().count(), checks.len() + 2, "{lines}");
    assert!(lines.starts_with("symmc ") && lines.contains("plans run on"), "{lines}");
    for check in checks.values() {
        let begin = format!("{:<8} {}", text(&check["status"]), text(&check["name"]));
        assert!(lines.lines().any(|l| l.starts_with(&begin)), "{begin} is missing in {lines}");
    }
}

#[test]
fn without_a_driver_gpus_are_missing_with_a_remedy() {
    let checks = report(&mut symmc("doctor --format json"));
    if checks["gpus driver"]["status"] != "missing" {
        return symmc_cases::skip_test("this machine has a driver");
    }
    for name in ["gpus gpus", "gpus peer access", "gpus memory handles"] {
        assert_eq!(checks[name]["status"], "missing", "{name}");
    }
    assert!(text(&checks["gpus driver"]["remedy"]).contains("driver"), "{}", checks["gpus driver"]);
    assert_eq!(checks["gpus profile"]["found"], "host");
}

#[test]
fn a_library_that_crashes_or_hangs_is_a_line() {
    let dir = tempfile::tempdir().expect("a folder");
    let crash = library(dir.path(), "libcrash.so", "int ncclGetVersion(int *v) { __builtin_trap(); }");
    let hang = library(
        dir.path(),
        "libhang.so",
        "#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n\
         int ncclGetVersion(int *v) {\n\
         FILE *f = fopen(getenv(\"HANGS\"), \"w\"); fprintf(f, \"%d\", getpid()); fclose(f);\n\
         for (;;) pause();\n}\n",
    );
    let hangs = dir.path().join("pid");
    for (file, timeout, said) in [(&crash, "60", "signal"), (&hang, "3", "no answer within")] {
        let mut command = symmc(&format!("doctor --format json --timeout {timeout}"));
        let checks = report(command.env("SYMMC_NCCL_PATH", file).env("HANGS", &hangs));
        for name in ["nccl nccl", "nccl nccl dependent launch"] {
            assert_eq!(checks[name]["status"], "unknown", "{}", checks[name]);
            assert!(text(&checks[name]["found"]).contains(said), "{}", checks[name]);
        }
        assert_eq!(checks["host shared memory"]["status"], "ok", "the others are asked all the same");
        assert_ne!(checks["nvrtc nvrtc"]["status"], "unknown", "{}", checks["nvrtc nvrtc"]);
    }
    let process = format!("/proc/{}", std::fs::read_to_string(&hangs).expect("the library was asked"));
    let until = Instant::now() + Duration::from_secs(20);
    while Path::new(&process).exists() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!Path::new(&process).exists(), "the process that hangs is left behind");
}

#[test]
fn a_library_that_is_refused_says_why() {
    let dir = tempfile::tempdir().expect("a folder");
    let old = library(dir.path(), "libold.so", "int ncclGetVersion(int *v) { *v = 21803; return 0; }");
    let text_file = dir.path().join("libcudnn.so.9");
    std::fs::write(&text_file, "no library").expect("a file");
    let mut command = symmc("doctor --format json");
    let checks = report(command.env("SYMMC_NCCL_PATH", &old).env("SYMMC_CUDNN_PATH", &text_file));
    let nccl = text(&checks["nccl nccl"]["found"]);
    assert!(nccl.contains("found version 2.18.3, expected 2.27.0 or newer") && nccl.contains(&old), "{nccl}");
    assert!(
        text(&checks["nccl nccl"]["remedy"]).contains("pip install nvidia-nccl-cu13"),
        "{}",
        checks["nccl nccl"]
    );
    let cudnn = text(&checks["cudnn cudnn"]["found"]);
    assert!(cudnn.contains("does not load") && cudnn.contains(&text_file.display().to_string()), "{cudnn}");
}

#[test]
fn the_environment_and_limits_are_reported() {
    let launched = [("RANK", "1"), ("WORLD_SIZE", "4"), ("LOCAL_WORLD_SIZE", "4"), ("MASTER_PORT", "29500")];
    let checks = report(symmc("doctor --format json").envs(launched));
    assert_eq!(checks["host launcher"]["found"], "torchrun says that this process is rank 1 of 4");
    let broken = report(symmc("doctor --format json").envs([
        ("RANK", "7"),
        ("WORLD_SIZE", "4"),
        ("MASTER_PORT", "1"),
    ]));
    assert_eq!(broken["host launcher"]["status"], "limited", "{}", broken["host launcher"]);

    let binary = env!("CARGO_BIN_EXE_symmc");
    let limited = |limit: &str| {
        let line = format!("ulimit {limit} && exec {binary} doctor --format json");
        report(Command::new("sh").args(["-c", &line]))
    };
    let checks = limited("-n 64");
    assert_eq!(checks["host descriptors"]["found"], "64 may be open");
    assert_eq!(checks["host descriptors"]["status"], "limited");
    let small = limited("-f 2048");
    assert_eq!(small["host shared memory"]["status"], "limited", "{}", small["host shared memory"]);

    let home = report(symmc("doctor --format json").env_remove("XDG_CACHE_HOME").env_remove("HOME"));
    assert_eq!(home["host kernel cache"]["status"], "missing");
}

#[test]
fn other_arguments_are_refused() {
    for line in ["doctor all", "doctor --format xml", "doctor --timeout never", "doctor --part cpu"] {
        failure(&mut symmc(line), 2);
    }
}
