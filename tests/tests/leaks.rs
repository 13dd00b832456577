//! What sessions take of the system is given back when they end, however often. A process of its own: others would take
//! and give back meanwhile.

use std::fs;
use std::thread;
use std::time::Duration;

use symmc::{CheckedPlan, CompileConfig, Group, Program, Session, SessionConfig};

const SESSION_COUNT: usize = 1000;
/// Sessions before what is taken is counted for the first time.
const WARMUP_SESSIONS: usize = 10;

/// An all-reduce of what ranks are given.
const SUM_PROGRAM: &str = "program \"sum\" ranks 2\ngroup @all world\narg %x: f32[256]\n\
    %y: f32[256] = neg %x\n%z: f32[256] = all_reduce %y op=sum group=@all\nreturn %z\n";

/// Descriptors, threads, and mappings of shared memory.
fn taken() -> [usize; 3] {
    let count = |path: &str| fs::read_dir(path).map_or(0, Iterator::count);
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let maps = maps.lines().filter(|line| line.contains("memfd:symmc")).count();
    [count("/proc/self/fd"), count("/proc/self/task"), maps]
}

/// What is taken once it is no more than `most`, or after a moment: threads that ended are counted until the system is
/// rid of them.
fn settled(most: [usize; 3]) -> [usize; 3] {
    for _ in 0..200 {
        let now = taken();
        if now.iter().zip(&most).all(|(now, most)| now <= most) {
            return now;
        }
        thread::sleep(Duration::from_millis(10));
    }
    taken()
}

fn open_run_and_end(plan: &CheckedPlan, groups: &[Group], number: usize) {
    thread::scope(|scope| {
        for group in groups {
            scope.spawn(move || {
                let mut session = Session::open(plan, group, &SessionConfig::default()).expect("a session");
                session.write("x", &[0; 1024]).expect("256 floats");
                session.run().expect("a run");
                session.enqueue().expect("a run begins");
                // Every other one is closed; the rest is dropped, once its run has ended.
                match number % 2 {
                    0 => session.close().expect("all went well"),
                    _ => session.wait(Duration::from_secs(20)).expect("it ends"),
                }
            });
        }
    });
}

#[test]
fn a_thousand_sessions_leave_nothing_behind() {
    let program = Program::from_text(SUM_PROGRAM).expect("a program");
    let plan = symmc::compile(&program, &CompileConfig::default()).expect("a plan");
    let groups = Group::threads(2);
    let mut before = [0; 3];
    for number in 0..SESSION_COUNT {
        if number == WARMUP_SESSIONS {
            before = settled([0; 3]);
        }
        open_run_and_end(&plan, &groups, number);
    }
    let after = settled(before);
    assert!(
        after.iter().zip(&before).all(|(a, b)| a <= b),
        "{before:?} descriptors, threads, mappings: {after:?}"
    );
}
