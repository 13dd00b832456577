//! Sessions of ranks that are processes: they meet by what a launcher put in the environment, and those whose peer is
//! killed, stopped or slow learn it by name and in time.
//!
//! The processes are this test's program, which runs [`as_a_rank`] alone.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use symmc::{Config, Group, Program, Session, SessionConfig};
use symmc_tests::Processes;

/// What a rank does, in an environment variable, and what another one does.
const TASK: &str = "SYMMC_TEST_TASK";
const PEER: &str = "SYMMC_TEST_PEER";

const SUM: &str = "program \"sum\" ranks 2\ngroup @all world\narg %x: f32[256]\n\
    %y: f32[256] = neg %x\n%z: f32[256] = all_reduce %y op=sum group=@all\nreturn %z\n";

/// Starts two ranks as torchrun would, of which each does its task.
fn start(port: u16, tasks: [&str; 2]) -> Processes {
    let start = |(rank, task): (usize, &&str)| {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "as_a_rank", "--nocapture"]).env(TASK, task);
        // The task of the rank that does not simply run.
        command.env(PEER, tasks.iter().find(|task| **task != "run").unwrap_or(&"run"));
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
    Processes(tasks.iter().enumerate().map(start).collect())
}

/// What a rank said: the lines behind `said:`.
fn said(child: Child) -> String {
    let output = child.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<&str> =
        text.lines().filter_map(|line| line.split_once("said: ").map(|(_, s)| s)).collect();
    match lines.is_empty() {
        true => format!("{:?}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr)),
        false => lines.join("\n"),
    }
}

/// The rank of such a process. Does nothing where there is no task.
#[test]
fn as_a_rank() {
    let Ok(task) = std::env::var(TASK) else { return };
    if let Err(error) = rank(&task) {
        let (culprit, reporter) = (error.culprit(), error.reporter());
        println!("\nsaid: {:?}, culprit {culprit:?}, reporter {reporter:?}: {error}", error.kind());
    }
}

fn rank(task: &str) -> Result<(), symmc::Error> {
    let group = Group::from_env()?.expect("a launcher's environment");
    let program = Program::from_text(SUM)?;
    let plan = symmc::compile(&program, &Config::default())?;
    // A rank that leaves is noticed without the limit.
    let is_patient = matches!(
        std::env::var(PEER).as_deref(),
        Ok("drop" | "panic" | "leave" | "abort" | "fork" | "follow")
    );
    let limit = Duration::from_millis(if is_patient { 120_000 } else { 1500 });
    let config = SessionConfig::default().with_limit(limit);
    let mut session = Session::open(&plan, &group, &config)?;
    session.write("x", &1f32.to_ne_bytes().repeat(256))?;
    session.run()?;
    match task {
        "run" => {}
        "die" => std::process::abort(),
        "stop" => {
            // SAFETY: a signal to this process.
            unsafe { libc::raise(libc::SIGSTOP) };
        }
        "rest" => std::thread::sleep(Duration::from_millis(3500)),
        "leave" => return session.close(),
        "drop" => {
            drop(session);
            return Ok(());
        }
        "panic" => panic!("with a session that is open"),
        "abort" => return session.abort("no more food"),
        "fork" => return of_fork(session),
        // The other one runs once after each child.
        "follow" => {
            for _ in 0..5 {
                session.run()?;
            }
        }
        task => panic!("{task}"),
    }
    session.run()?;
    println!("\nsaid: {:?}", session.read("z")?.to_f64()[0]);
    session.close()
}

/// Forks children that do with the copy of the session what they must not, and runs the session again.
fn of_fork(mut session: Session) -> Result<(), symmc::Error> {
    let is_refused = |result: Result<(), symmc::Error>| {
        result
            .is_err_and(|error| error.kind() == symmc::ErrorKind::Input && error.to_string().contains("fork"))
    };
    for what in ["run", "enqueue", "read", "close", "abort", "drop"] {
        // SAFETY: the child calls what a forked child of a caller may call, and ends without a return.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "a process");
        if child == 0 {
            let is_right = match what {
                "run" => is_refused(session.run()),
                "enqueue" => is_refused(session.enqueue()),
                "read" => is_refused(session.read("z").map(drop)),
                "close" => is_refused(session.close()),
                "abort" => is_refused(session.abort("in a child")),
                _ => {
                    drop(session);
                    true
                }
            };
            // SAFETY: ends this process.
            unsafe { libc::_exit(if is_right { 0 } else { 3 }) };
        }
        let mut status = 0;
        // SAFETY: the call writes to the place it is given.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child that does {what}");
        session.run()?;
    }
    println!("\nsaid: {:?}", session.read("z")?.to_f64()[0]);
    session.close()
}

/// What the ranks said that did these tasks, and how long all took.
fn ran(port: u16, tasks: [&str; 2]) -> ([String; 2], Duration) {
    let started = Instant::now();
    let mut ranks = start(port, tasks);
    let waited: Vec<Option<Child>> = ranks.0.drain(..).map(Some).collect();
    let mut kept = Processes(Vec::new());
    let mut texts = [String::new(), String::new()];
    for ((child, task), text) in waited.into_iter().zip(tasks).zip(&mut texts) {
        let child = child.expect("a process");
        // A process that stops itself ends when it is killed.
        match task {
            "stop" => kept.0.push(child),
            _ => *text = said(child),
        }
    }
    (texts, started.elapsed())
}

#[test]
fn ranks_of_a_launcher_rest_between_runs_as_long_as_they_want() {
    let (said, took) = ran(1, ["rest", "rest"]);
    assert_eq!(said, ["-2.0", "-2.0"], "{said:?}");
    assert!(took > Duration::from_millis(3500));
}

#[test]
fn a_rank_that_comes_late_is_named_at_the_limit() {
    let (said, took) = ran(2, ["run", "rest"]);
    assert!(said[0].contains("rank 0 waited 1500 ms for rank 1"), "{said:?}");
    assert!(said[1].contains("rank 0"), "{said:?}");
    assert!(took < Duration::from_secs(20));
}

#[test]
fn a_rank_that_dies_is_named_on_the_other() {
    for (port, tasks) in [(3, ["run", "die"]), (4, ["die", "run"])] {
        let ([a, b], took) = ran(port, tasks);
        let (text, other) = if tasks[0] == "run" { (a, 1) } else { (b, 0) };
        assert!(text.contains(&format!("rank {other} died")), "{tasks:?}: {text}");
        assert!(took < Duration::from_secs(20));
    }
}

#[test]
fn a_rank_that_stops_or_leaves_is_named_on_the_other() {
    for (port, tasks) in [(5, ["run", "stop"]), (6, ["run", "leave"]), (7, ["leave", "run"])] {
        let ([a, b], took) = ran(port, tasks);
        let (text, other) = if tasks[0] == "run" { (a, 1) } else { (b, 0) };
        assert!(text.contains(&format!("rank {other}")), "{tasks:?}: {text}");
        assert!(took < Duration::from_secs(20));
    }
}

#[test]
fn a_rank_that_leaves_between_runs_ends_the_session_of_the_other_at_once() {
    let ways = [
        ("drop", "closed its session after 1 run"),
        ("panic", "ended without closing its session"),
        ("abort", "aborted its session: no more food"),
        ("leave", "closed its session after 1 run"),
    ];
    for (port, (task, how)) in (8..).step_by(2).zip(ways) {
        for (offset, tasks) in [(0, ["run", task]), (1, [task, "run"])] {
            let ([a, b], _) = ran(port + offset, tasks);
            let (text, other) = if tasks[0] == "run" { (a, 1) } else { (b, 0) };
            // At once: with the limit of two minutes it would be that which is told.
            assert!(text.contains(&format!("culprit Some({other})")), "{tasks:?}: {text}");
            assert!(text.contains(&format!("rank {other} {how}")), "{tasks:?}: {text}");
        }
    }
}

#[test]
fn nothing_in_a_forked_child_reaches_the_peers_of_its_parent() {
    for (port, tasks) in [(20, ["fork", "follow"]), (21, ["follow", "fork"])] {
        let (said, _) = ran(port, tasks);
        assert_eq!(said, ["-2.0", "-2.0"], "{tasks:?}");
    }
}
