//! Ranks that die or stop during a run: every process ends soon, and the message names the rank and the step.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::common::symmc;

const FOREVER: &str = "run megatron_tp4_f32.pt2 --tensors megatron_tp4_f32.safetensors --repeat 100000000";

/// The child processes of a process.
fn children(of: u32) -> Vec<i32> {
    let list = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|p| p.parse().ok()).collect()
}

fn alive(pid: i32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    state.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

/// Starts a run that goes on without end, and waits until its four ranks run.
fn start(line: &str) -> (Child, Vec<i32>) {
    let mut launcher =
        symmc(line).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("symmc starts");
    let begun = Instant::now();
    let mut ranks = children(launcher.id());
    while ranks.len() != 4 && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(5));
        ranks = children(launcher.id());
    }
    if ranks.len() != 4 {
        launcher.kill().expect("killed");
        let out = launcher.wait_with_output().expect("reaped");
        panic!("the ranks did not start: {ranks:?} {}", String::from_utf8_lossy(&out.stderr));
    }
    (launcher, ranks)
}

fn signal(pid: i32, name: &str) {
    let sent = std::process::Command::new("kill").args([name, &pid.to_string()]).status().expect("kill runs");
    assert!(sent.success());
}

/// Waits for the launcher and returns its message. No process that it started may be left.
fn end(launcher: Child, ranks: &[i32], within: Duration) -> String {
    let begun = Instant::now();
    let out = launcher.wait_with_output().expect("it ends");
    let took = begun.elapsed();
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(took < within, "{took:?}: {text}");
    let survivors: Vec<&i32> = ranks.iter().filter(|&&p| alive(p)).collect();
    assert!(survivors.is_empty(), "left behind: {survivors:?}");
    text
}

#[test]
fn a_killed_rank_ends_the_run() {
    for (i, pause) in [0, 3, 40, 150].into_iter().enumerate() {
        let (launcher, ranks) = start(FOREVER);
        std::thread::sleep(Duration::from_millis(pause));
        signal(ranks[i], "-KILL");
        let text = end(launcher, &ranks, Duration::from_secs(20));
        assert!(text.contains("died (signal 9, SIGKILL)"), "{text}");
        assert!(text.contains("rank "), "{text}");
    }
}

#[test]
fn a_stopped_rank_ends_the_run_at_the_limit() {
    let (launcher, ranks) = start(&format!("{FOREVER} --timeout 1"));
    std::thread::sleep(Duration::from_millis(300));
    signal(ranks[2], "-STOP");
    let text = end(launcher, &ranks, Duration::from_secs(30));
    assert!(text.contains("rank") && text.contains("step"), "{text}");
}

/// Waits until all of these processes have ended.
fn all_gone(ranks: &[i32]) {
    let begun = Instant::now();
    while ranks.iter().any(|&p| alive(p)) {
        assert!(begun.elapsed() < Duration::from_secs(20), "ranks outlive their launcher");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn signal_to_the_launcher_ends_all_ranks() {
    use std::os::unix::process::ExitStatusExt;
    for pause in [0, 20, 200] {
        let (mut launcher, ranks) = start(FOREVER);
        std::thread::sleep(Duration::from_millis(pause));
        signal(launcher.id() as i32, "-TERM");
        assert_eq!(launcher.wait().expect("it ends").signal(), Some(15));
        all_gone(&ranks);
    }
}

#[test]
fn a_signal_to_a_rank_is_named() {
    let (launcher, ranks) = start(FOREVER);
    signal(ranks[1], "-TERM");
    let text = end(launcher, &ranks, Duration::from_secs(20));
    assert!(text.contains("died (signal 15, SIGTERM)"), "{text}");
}

#[test]
fn ranks_end_with_their_launcher() {
    let (mut launcher, ranks) = start(FOREVER);
    launcher.kill().expect("killed");
    launcher.wait().expect("reaped");
    all_gone(&ranks);
}
