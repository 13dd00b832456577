//! Ranks that die, stop, or never existed: every run ends in time, with its reason, and leaves nothing
//! behind.

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, raise};
use nix::sys::socket::{MsgFlags, recv, send};
use nix::unistd::Pid;
use symmc_control::RankCommand;
use symmc_runtime::CustomKernelRegistry;
use symmc_runtime::RunError;

use crate::Test;
use crate::programs::{OwnedJob, command, launch, run_threads};

pub const TESTS: &[Test] = &[
    ("a_killed_rank_ends_the_run", a_killed_rank_ends_the_run),
    ("a_stopped_rank_ends_the_run", a_stopped_rank_ends_the_run),
    ("a_rank_that_stops_inside_a_message_is_named", a_rank_that_stops_inside_a_message_is_named),
    ("ranks_die_with_the_launcher", ranks_die_with_the_launcher),
    ("programs_that_are_no_ranks", programs_that_are_no_ranks),
    ("a_failing_step_ends_the_run", a_failing_step_ends_the_run),
];

/// As rank 2 of a launcher, sends the beginning of a message over the control socket `fd`, and stops.
pub fn send_part_of_a_message(fd: Option<&String>) {
    let fd: i32 = fd.and_then(|fd| fd.parse().ok()).expect("a descriptor");
    let mut welcome = [0; 4096];
    let count = recv(fd, &mut welcome, MsgFlags::MSG_PEEK).expect("a message");
    if String::from_utf8_lossy(&welcome[..count]).contains(r#""rank":2,"#) {
        send(fd, br#"{"Hello":{"protocol":"#, MsgFlags::empty()).expect("sent");
        raise(Signal::SIGSTOP).expect("a signal");
    }
}

fn a_rank_that_stops_inside_a_message_is_named() {
    let mut owned = OwnedJob::mixed(8);
    owned.config.limit = Duration::from_secs(2);
    let program = std::env::current_exe().expect("this binary has a path");
    let command = RankCommand { program, args: vec!["rank-partial".into()] };
    let error = launch(&owned.job(), &command).expect_err("rank 2 is stopped");
    assert!(matches!(error.cause(), RunError::Protocol { rank: 2, .. }), "{error:?}");
    assert!(children(std::process::id()).is_empty(), "no rank is left");
}

/// A run that takes much longer than any test.
fn endless() -> OwnedJob {
    let mut owned = OwnedJob::mixed(8);
    owned.repeats = u32::MAX;
    owned
}

/// Runs the endless job and sends a signal to a rank after a delay; returns the error and the time since the
/// signal.
fn disturb(owned: &OwnedJob, rank: usize, delay: Duration, signal: Signal) -> (RunError, Duration) {
    let (result, time) = std::thread::scope(|scope| {
        let run = scope.spawn(|| launch(&owned.job(), &command()));
        let ranks = loop {
            let children = children(std::process::id());
            if children.len() == 4 {
                break children;
            }
            assert!(!run.is_finished(), "the run starts");
            std::thread::sleep(Duration::from_millis(1));
        };
        std::thread::sleep(delay);
        kill(ranks[rank], signal).expect("the rank lives");
        let start = Instant::now();
        let result = run.join().expect("the launcher returns");
        assert!(ranks.iter().all(|&r| gone(r)), "no rank is left");
        (result, start.elapsed())
    });
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the map of this process");
    assert!(!maps.contains("symmc-"), "no shared memory is left");
    (result.expect_err("the run fails"), time)
}

fn a_killed_rank_ends_the_run() {
    let owned = endless();
    let mut steps = 0;
    for i in 0..20 {
        let delay = Duration::from_millis(i * 37 % 150);
        let rank = i as usize % 4;
        let (error, time) = disturb(&owned, rank, delay, Signal::SIGKILL);
        assert!(time < Duration::from_secs(5), "{time:?}");
        match &error {
            RunError::Died { rank: r, how, step, node, op, .. } => {
                assert_eq!((*r as usize, how.as_str()), (rank, "signal 9, SIGKILL"));
                assert!(
                    *step < owned.plan.buckets[0].steps.len() && !node.is_empty() && op != "step",
                    "{error}"
                );
                steps += 1;
            }
            RunError::DiedOutside { rank: r, how, .. } => {
                assert_eq!((*r as usize, how.as_str()), (rank, "signal 9, SIGKILL"));
            }
            other => panic!("{other}"),
        }
    }
    assert!(steps > 5, "some ranks died in a step");
}

fn a_stopped_rank_ends_the_run() {
    let mut owned = endless();
    owned.config.limit = Duration::from_secs(1);
    for rank in 0..3 {
        let (error, time) = disturb(&owned, rank, Duration::from_millis(300), Signal::SIGSTOP);
        assert!(time > Duration::from_millis(900) && time < Duration::from_secs(4), "{time:?}");
        match error.cause() {
            // A rank may wait for one that itself waits for the stopped rank.
            RunError::Limit { rank: waiting, peers, op, culprit, .. } => {
                assert!(*waiting as usize != rank && !peers.is_empty() && !op.is_empty(), "{error}");
                assert_eq!(*culprit as usize, rank, "{error}");
            }
            other => panic!("{other}"),
        }
    }
}

/// Started as a separate process, to be killed.
pub fn launcher() -> ExitCode {
    let result = launch(&endless().job(), &command());
    eprintln!("{result:?}");
    ExitCode::FAILURE
}

fn ranks_die_with_the_launcher() {
    let this = std::env::current_exe().expect("this binary has a path");
    let mut process = Command::new(this).arg("launcher").stderr(Stdio::null()).spawn().expect("it starts");
    let ranks = loop {
        let ranks = children(process.id());
        if ranks.len() == 4 {
            break ranks;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    std::thread::sleep(Duration::from_millis(100));
    process.kill().expect("it is killed");
    process.wait().expect("it is reaped");
    let until = Instant::now() + Duration::from_secs(5);
    while !ranks.iter().all(|&r| gone(r)) {
        assert!(Instant::now() < until, "ranks die with their launcher");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn programs_that_are_no_ranks() {
    let owned = OwnedJob::mixed(1);
    let run = |program: &str| {
        let program = PathBuf::from(program);
        launch(&owned.job(), &RankCommand { program, args: Vec::new() }).expect_err("the run fails")
    };
    assert!(matches!(run("/nonexistent"), RunError::Unsupported(text) if text.contains("/nonexistent")));
    match run("/bin/false") {
        RunError::DiedOutside { how, .. } => assert_eq!(how, "exit code 1"),
        other => panic!("{other}"),
    }
    // A rank that gets no memory from the system exits in this way.
    let refused =
        RankCommand { program: "/bin/sh".into(), args: ["-c", "exit 2"].map(String::from).to_vec() };
    let error = launch(&owned.job(), &refused).expect_err("the run fails");
    assert!(matches!(error, RunError::Refused { rank: 0 }), "{error}");
    let this = std::env::current_exe().expect("this binary has a path");
    let out = Command::new(this).args(["rank", "77"]).output().expect("it starts");
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&out.stderr).contains("descriptor 77 is not a control socket"));
}

fn a_failing_step_ends_the_run() {
    let mut owned = OwnedJob::mixed(2);
    // The plan is edited so that no bucket covers the size; every rank detects this independently.
    owned.edit(|plan| {
        for bucket in &mut plan.buckets {
            bucket.symbols.values_mut().for_each(|range| *range = [60, 64]);
        }
    });
    for result in [run_threads(&owned.job(), &CustomKernelRegistry::new()), launch(&owned.job(), &command())]
    {
        let error = result.expect_err("no bucket serves the size");
        match error.cause() {
            RunError::Invalid(text) => assert!(text.contains("no bucket"), "{text}"),
            other => panic!("expected a refusal, found {other:?}"),
        }
        assert!(error.culprit().is_some() && error.culprit() == error.reporter(), "{error}");
    }
}

/// The children of a process, oldest first.
fn children(pid: u32) -> Vec<Pid> {
    let mut out: Vec<i32> = Vec::new();
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    for task in tasks.flatten() {
        let text = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        out.extend(text.split_whitespace().filter_map(|p| p.parse::<i32>().ok()));
    }
    out.sort();
    out.into_iter().map(Pid::from_raw).collect()
}

/// Whether a process has exited; a process that was not reaped yet counts as exited.
pub fn gone(pid: Pid) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')),
        Err(_) => true,
    }
}
