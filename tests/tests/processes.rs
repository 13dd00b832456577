//! Sessions of ranks that are processes: they meet by what a launcher put in the environment, and those whose peer is
//! killed, stopped or slow learn it by name and in time.
//!
//! The processes run `tests/src/bin/rank.rs`.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use symmc_tests::ProcessGuard;

/// Starts two ranks as torchrun would, of which each does its task.
fn start(port: u16, tasks: [&str; 2]) -> ProcessGuard {
    let start = |(rank, task): (usize, &&str)| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rank"));
        // Its task, and the task of the rank that does not simply run.
        command.args([task, tasks.iter().find(|task| **task != "run").unwrap_or(&"run")]);
        let port = format!("{}", 20000 + u32::from(port) + std::process::id() % 20000);
        let environment = [
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", "2".into()),
            ("LOCAL_RANK", rank.to_string()),
            ("LOCAL_WORLD_SIZE", "2".into()),
            ("MASTER_ADDR", "127.0.0.1".into()),
            ("MASTER_PORT", port),
        ];
        command.envs(environment).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("a process")
    };
    ProcessGuard(tasks.iter().enumerate().map(start).collect())
}

/// The line that a rank printed, or how it ended without one.
fn printed(child: Child) -> String {
    let output = child.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stdout);
    if text.is_empty() {
        return format!("{:?}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    text.trim_end().to_owned()
}

/// The lines that ranks with these tasks printed, and how long all took.
fn run_ranks(port: u16, tasks: [&str; 2]) -> ([String; 2], Duration) {
    let started = Instant::now();
    let mut ranks = start(port, tasks);
    let waited: Vec<Option<Child>> = ranks.0.drain(..).map(Some).collect();
    let mut guard = ProcessGuard(Vec::new());
    let mut texts = [String::new(), String::new()];
    for ((child, task), text) in waited.into_iter().zip(tasks).zip(&mut texts) {
        let child = child.expect("a process");
        // A process that stops itself ends when it is killed.
        match task {
            "stop" => guard.0.push(child),
            _ => *text = printed(child),
        }
    }
    (texts, started.elapsed())
}

#[test]
fn launched_ranks_may_idle_between_runs() {
    let (texts, took) = run_ranks(1, ["rest", "rest"]);
    assert_eq!(texts, ["-2.0", "-2.0"], "{texts:?}");
    assert!(took > Duration::from_millis(3500));
}

#[test]
fn late_rank_is_named_after_the_timeout() {
    let (texts, took) = run_ranks(2, ["run", "rest"]);
    assert!(texts[0].contains("rank 0 waited 1500 ms for rank 1"), "{texts:?}");
    assert!(texts[1].contains("rank 0"), "{texts:?}");
    assert!(took < Duration::from_secs(20));
}

#[test]
fn a_rank_that_dies_is_named_on_the_other() {
    for (port, tasks) in [(3, ["run", "die"]), (4, ["die", "run"])] {
        let ([a, b], took) = run_ranks(port, tasks);
        let (text, other) = if tasks[0] == "run" { (a, 1) } else { (b, 0) };
        assert!(text.contains(&format!("rank {other} died")), "{tasks:?}: {text}");
        assert!(took < Duration::from_secs(20));
    }
}

#[test]
fn stopped_or_departed_rank_is_named_on_its_peer() {
    for (port, tasks) in [(5, ["run", "stop"]), (6, ["run", "leave"]), (7, ["leave", "run"])] {
        let ([a, b], took) = run_ranks(port, tasks);
        let (text, other) = if tasks[0] == "run" { (a, 1) } else { (b, 0) };
        assert!(text.contains(&format!("rank {other}")), "{tasks:?}: {text}");
        assert!(took < Duration::from_secs(20));
    }
}

#[test]
fn rank_that_leaves_between_runs_ends_its_peer_immediately() {
    let ways = [
        ("drop", "closed its session after 1 run"),
        ("panic", "ended without closing its session"),
        ("abort", "aborted its session: no more food"),
        ("leave", "closed its session after 1 run"),
    ];
    for (port, (task, how)) in (8..).step_by(2).zip(ways) {
        for (offset, tasks) in [(0, ["run", task]), (1, [task, "run"])] {
            let ([a, b], _) = run_ranks(port + offset, tasks);
            let (text, other) = if tasks[0] == "run" { (a, 1) } else { (b, 0) };
            // At once: with the limit of two minutes it would be that which is told.
            assert!(text.contains(&format!("culprit Some({other})")), "{tasks:?}: {text}");
            assert!(text.contains(&format!("rank {other} {how}")), "{tasks:?}: {text}");
        }
    }
}

#[test]
fn forked_child_does_not_affect_peers_of_its_parent() {
    for (port, tasks) in [(20, ["fork", "follow"]), (21, ["follow", "fork"])] {
        let (texts, _) = run_ranks(port, tasks);
        assert_eq!(texts, ["-2.0", "-2.0"], "{tasks:?}");
    }
}
