//! Limits of the system: few threads, little memory, few open files, small files, and system calls that a container refuses.
//! The command continues with fewer threads, or ends with an error and exit code 2. It never panics, aborts or hangs.

use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::programs;

const PLAN_COMMAND: &str = "plan megatron_tp4_f32.pt2";
const RUN_COMMAND: &str = "run megatron_tp4_f32.pt2 --tensors megatron_tp4_f32.safetensors";
const DOCTOR_COMMAND: &str = "doctor";
const THREADS_COMMAND: &str =
    "run megatron_tp4_f32.pt2 --tensors megatron_tp4_f32.safetensors --backend threads";

/// Runs symmc under a limit of the shell. A process that hangs is killed, and has no exit code.
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
    // The process has ended, or is to end now.
    let _ = child.kill();
    child.wait_with_output().expect("it ends")
}

/// Whether a program can start under the limit.
fn starts(limit: &str) -> bool {
    limited(limit, "-V").status.code() == Some(0)
}

/// The exit codes of each command under each limit.
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

/// Some limits let the command succeed and others make it fail, so the limits are near the command's needs.
fn assert_near_limit(codes: &[i32]) {
    assert!(codes.contains(&0) && codes.contains(&2), "{codes:?}");
}

#[test]
fn little_memory_for_data_is_an_error_or_enough() {
    // The stack of a thread takes 2 MiB, so the lower limits leave room for no thread.
    let limits = [600, 900, 1200, 1500, 1800, 2100, 2300, 2600, 3000, 3400, 4000, 4700, 5500, 8000, 16000];
    assert_near_limit(&sweep('d', &limits, &[PLAN_COMMAND, RUN_COMMAND, THREADS_COMMAND]));
}

#[test]
fn little_address_space_is_an_error_or_enough() {
    let limits = [9_000, 12_000, 16_000, 20_000, 24_000, 30_000, 40_000, 60_000, 100_000, 400_000];
    assert_near_limit(&sweep('v', &limits, &[PLAN_COMMAND, RUN_COMMAND, THREADS_COMMAND, DOCTOR_COMMAND]));
}

#[test]
fn a_small_stack_is_enough() {
    let codes = sweep('s', &[64, 80, 100, 128, 200, 1024], &[PLAN_COMMAND, RUN_COMMAND, THREADS_COMMAND]);
    assert!(codes.len() >= 9 && codes.iter().all(|&code| code == 0), "{codes:?}");
}

#[test]
fn few_open_files_are_an_error_or_enough() {
    assert_near_limit(&sweep(
        'n',
        &[0, 3, 4, 5, 6, 7, 8, 10, 12, 14, 17, 20, 64],
        &[PLAN_COMMAND, RUN_COMMAND, THREADS_COMMAND, DOCTOR_COMMAND],
    ));
}

#[test]
fn small_files_are_an_error_or_enough() {
    // For the system, shared memory is a file. The unit of the limit is 512 bytes.
    assert_near_limit(&sweep(
        'f',
        &[0, 1, 8, 100, 10_000, 1_000_000],
        &[PLAN_COMMAND, RUN_COMMAND, THREADS_COMMAND, DOCTOR_COMMAND],
    ));
}

#[test]
fn failed_write_keeps_the_previous_plan() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("plan.json");
    let line = format!("{PLAN_COMMAND} -o {}", file.display());
    let refused = || {
        let output = limited("ulimit -f 4", &line);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && text.contains("plan.json"), "{:?}\n{text}", output.status);
    };
    let remaining = || {
        let entries = std::fs::read_dir(dir.path()).expect("the folder");
        entries.map(|entry| entry.expect("an entry").file_name()).collect::<Vec<_>>()
    };
    refused();
    assert!(remaining().is_empty(), "{:?}", remaining());
    std::fs::write(&file, "older").expect("a file");
    refused();
    assert_eq!(std::fs::read_to_string(&file).expect("the file"), "older");
    assert_eq!(remaining(), ["plan.json"]);
    assert_eq!(limited("true", &line).status.code(), Some(0));
    assert_eq!(remaining(), ["plan.json"]);
    assert!(std::fs::read_to_string(&file).expect("the file").contains("\"version\""));
}

/// Runs a command while the system refuses one system call. Arguments: the number of the call, the number of the error, the
/// command line. Exit code 99 means that the system has no such filters.
#[cfg(target_arch = "x86_64")]
const REFUSE_SCRIPT: &str = r#"
import ctypes, os, struct, sys
number, error, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | error), (0x06, 0, 0, 0x7FFF0000)]
code = b"".join(struct.pack("HBBI", *step) for step in steps)
code = ctypes.create_string_buffer(code, len(code))
libc = ctypes.CDLL(None)
wanted = Filter(len(steps), ctypes.addressof(code))
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(wanted), 0, 0):
    sys.exit(99)
os.execv(command[0], command)
"#;

/// A program of two ranks with a collective.
#[cfg(target_arch = "x86_64")]
const SMALL_PROGRAM: &str = "program \"small\" ranks 2\ngroup @g world\narg %x: f32[8]\n\
    %y: f32[8] = all_reduce %x op=sum group=@g\nreturn %y\n";

/// The processes of one run while a system call is refused. Either one process starts all ranks, or each rank joins through
/// its environment.
#[cfg(target_arch = "x86_64")]
fn refused(call: u32, error: i32, ranks: &[&str], port: u32) -> Vec<Output> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = crate::common::write(folder.path(), "small.symm", SMALL_PROGRAM.as_bytes());
    let start = |rank: &&str| {
        let mut command = Command::new("python3");
        command.args([
            "-c",
            REFUSE_SCRIPT,
            &call.to_string(),
            &error.to_string(),
            env!("CARGO_BIN_EXE_symmc"),
        ]);
        command.args(["run", &file, "--seed", "1", "--compare", "none", "--timeout", "5"]);
        if !rank.is_empty() {
            command.envs([("RANK", *rank), ("LOCAL_RANK", *rank), ("WORLD_SIZE", "2")]);
            command.envs([("LOCAL_WORLD_SIZE", "2"), ("MASTER_ADDR", "localhost")]);
            command.env("MASTER_PORT", port.to_string());
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("python3 starts")
    };
    let started: Vec<_> = ranks.iter().map(start).collect();
    started.into_iter().map(|child| child.wait_with_output().expect("it ends")).collect()
}

/// System calls of a launcher and its ranks.
#[cfg(target_arch = "x86_64")]
const LAUNCH_SYSCALLS: [(u32, &str); 14] = [
    (157, "prctl"),
    (319, "memfd_create"),
    (77, "ftruncate"),
    (53, "socketpair"),
    (46, "sendmsg"),
    (47, "recvmsg"),
    (54, "setsockopt"),
    (55, "getsockopt"),
    (293, "pipe2"),
    (33, "dup2"),
    (56, "clone"),
    (72, "fcntl"),
    (28, "madvise"),
    (203, "sched_setaffinity"),
];

/// System calls of ranks that join.
#[cfg(target_arch = "x86_64")]
const JOIN_SYSCALLS: [(u32, &str); 9] = [
    (41, "socket"),
    (49, "bind"),
    (50, "listen"),
    (288, "accept4"),
    (42, "connect"),
    (46, "sendmsg"),
    (47, "recvmsg"),
    (55, "getsockopt"),
    (319, "memfd_create"),
];

/// Refuses a system call; returns whether a process ended with exit code 2. `None` if the system has no such filters.
#[cfg(target_arch = "x86_64")]
fn is_named((call, name): (u32, &str), error: i32, ranks: &[&str]) -> Option<bool> {
    let outputs = refused(call, error, ranks, 4000 + call);
    let codes: Vec<_> = outputs.iter().map(|output| output.status.code()).collect();
    if codes.contains(&Some(99)) {
        return None;
    }
    for output in &outputs {
        let (code, text) = (output.status.code(), String::from_utf8_lossy(&output.stderr));
        // If rank 0 cannot send its error to a rank, that rank notices that rank 0 is gone.
        let blames_rank_0 = text.contains("rank 0") && ranks.len() > 1 && codes.contains(&Some(2));
        let is_right = matches!(code, Some(0 | 2)) || (code == Some(1) && blames_rank_0);
        assert!(is_right && !text.contains("panicked"), "{name} by {ranks:?}: {code:?}\n{text}");
        let names_call = text.contains(&format!("Allow {name}"));
        assert!(code != Some(2) || names_call, "{name} by {ranks:?}\n{text}");
    }
    Some(codes.contains(&Some(2)))
}

/// Every system call by which ranks start, join and share memory fails as it does in containers. The command does without the
/// call, or ends with exit code 2 and an error that names the call and the remedy.
#[cfg(target_arch = "x86_64")]
#[test]
fn refused_system_calls_are_named_with_a_remedy() {
    const UNNEEDED_SYSCALLS: [&str; 3] = ["setsockopt", "madvise", "sched_setaffinity"];
    let launching = LAUNCH_SYSCALLS.iter().map(|call| (*call, libc_error::EPERM, &[""][..]));
    let joining = JOIN_SYSCALLS.iter().map(|call| (*call, libc_error::ENOSYS, &["0", "1"][..]));
    let cases: Vec<_> = launching.chain(joining).collect();
    let has_no_filters = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for part in cases.chunks(6) {
            let has_no_filters = &has_no_filters;
            scope.spawn(move || {
                for &(call, error, ranks) in part {
                    match is_named(call, error, ranks) {
                        Some(named) => {
                            assert_ne!(named, UNNEEDED_SYSCALLS.contains(&call.1), "{call:?} by {ranks:?}")
                        }
                        None => has_no_filters.store(true, Ordering::Relaxed),
                    }
                }
            });
        }
    });
    if has_no_filters.into_inner() {
        symmc_cases::skip_test("the system has no filters of system calls");
    }
}

/// A file that cannot be written to the disk does not replace an older one.
#[cfg(target_arch = "x86_64")]
#[test]
fn failed_sync_keeps_the_previous_plan() {
    const FSYNC: u32 = 74;
    for (error, code) in [(libc_error::EIO, 2), (libc_error::ENOSYS, 0)] {
        let folder = tempfile::tempdir().expect("a folder");
        let program = crate::common::write(folder.path(), "small.symm", SMALL_PROGRAM.as_bytes());
        let plan = crate::common::write(folder.path(), "plan.json", b"older");
        let mut command = Command::new("python3");
        command.args([
            "-c",
            REFUSE_SCRIPT,
            &FSYNC.to_string(),
            &error.to_string(),
            env!("CARGO_BIN_EXE_symmc"),
        ]);
        let output = crate::common::output(command.args(["plan", &program, "-o", &plan]));
        if output.status.code() == Some(99) {
            symmc_cases::skip_test("the system has no filters of system calls");
            return;
        }
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{text}");
        let is_kept = std::fs::read_to_string(&plan).expect("the file") == "older";
        assert_eq!((is_kept, text.contains("plan.json")), (code == 2, code == 2), "{text}");
        assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 2, "nothing else is left");
    }
}

/// Error numbers of Linux.
#[cfg(target_arch = "x86_64")]
mod libc_error {
    pub const EPERM: i32 = 1;
    pub const EIO: i32 = 5;
    pub const ENOSYS: i32 = 38;
}
