//! A rank of the tests in `tests/tests/processes.rs`: it opens a session by the environment of a launcher, does its task and prints one
//! line, the first element of the result or its error.
//!
//! Usage: `rank TASK PEER`, where PEER is the task of the other rank.

use std::time::Duration;

use symmc::{CompileConfig, Group, Program, Session, SessionConfig};

const SUM: &str = "program \"sum\" ranks 2\ngroup @all world\narg %x: f32[256]\n\
    %y: f32[256] = neg %x\n%z: f32[256] = all_reduce %y op=sum group=@all\nreturn %z\n";

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (Some(task), Some(peer)) = (arguments.next(), arguments.next()) else {
        eprintln!("expected: rank TASK PEER");
        std::process::exit(2);
    };
    if let Err(error) = run_task(&task, &peer) {
        let (culprit, reporter) = (error.culprit(), error.reporter());
        println!("{:?}, culprit {culprit:?}, reporter {reporter:?}: {error}", error.kind());
    }
}

fn run_task(task: &str, peer: &str) -> Result<(), symmc::Error> {
    let group = Group::from_env()?.expect("a launcher's environment");
    let program = Program::from_text(SUM)?;
    let plan = symmc::compile(&program, &CompileConfig::default())?;
    // A rank that leaves is noticed without the limit.
    let is_patient = matches!(peer, "drop" | "panic" | "leave" | "abort" | "fork" | "follow");
    let limit = Duration::from_millis(if is_patient { 120_000 } else { 1500 });
    let config = SessionConfig::default().with_timeout(limit);
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
        "fork" => return fork_children(session),
        // The other one runs once after each child.
        "follow" => {
            for _ in 0..5 {
                session.run()?;
            }
        }
        task => panic!("{task}"),
    }
    session.run()?;
    println!("{:?}", session.read("z")?.to_f64()[0]);
    session.close()
}

/// Forks children that misuse their copy of the session, and runs the session again after each.
fn fork_children(mut session: Session) -> Result<(), symmc::Error> {
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
    println!("{:?}", session.read("z")?.to_f64()[0]);
    session.close()
}
