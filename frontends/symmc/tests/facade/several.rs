//! Several programs in one session: they share arenas, their data stay apart, and errors, closes and drops are each program's or the
//! session's.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use symmc::{
    ArgumentBinding, CheckedPlan, CollectiveVariant, CompileConfig, Error, ErrorKind, MachineProfile,
    Program, Session, SessionConfig,
};

use crate::threads::{bytes, on_ranks};

const LIMIT: Duration = Duration::from_secs(20);

/// A sum over ranks of an argument that peers read, and of a weight.
fn plan(name: &str, most: usize, variant: CollectiveVariant, ranks: u32) -> CheckedPlan {
    let text = format!(
        "program \"{name}\" ranks {ranks}\nsymbol n in 1..={most}\ngroup @all world\narg %x: f32[n, 4]\nparam %w: f32[16]\n\
         %s: f32[n, 4] = all_reduce %x op=sum group=@all\n%v: f32[16] = all_reduce %w op=sum group=@all\n\
         return %s, %v\n"
    );
    let config = CompileConfig::default().with_profile(MachineProfile::builtin("h200x4").expect("built in"));
    let config = config.with_bind(ArgumentBinding::All).with_variants(Some(vec![variant]));
    symmc::compile(&Program::from_text(&text).expect("a program"), &config).expect("a plan")
}

fn config() -> SessionConfig {
    SessionConfig::default().with_timeout(LIMIT).with_extendable(true)
}

fn weigh(session: &mut Session, value: f32) {
    session.set("n", 1).expect("a size");
    session.write("w", &bytes(&[value; 16])).expect("a weight");
}

/// One run; the sums of the argument and of the weight.
fn run(session: &mut Session, n: i64, x: f32) -> Result<[f32; 2], Error> {
    session.set("n", n)?;
    session.write("x", &bytes(&vec![x; 4 * n as usize]))?;
    session.run()?;
    let first = |tensor: symmc::Tensor| {
        let values = tensor.to_f64();
        assert!(values.iter().all(|&v| v == values[0]), "{values:?}");
        values[0] as f32
    };
    Ok([first(session.read("out.0")?), first(session.read("out.1")?)])
}

#[test]
fn programs_take_turns_and_keep_their_weights() {
    for chaos in [None, Some(7)] {
        on_ranks(3, |group| {
            let config = chaos.map_or_else(config, |seed| config().with_chaos(seed));
            let variants = [CollectiveVariant::OneShot, CollectiveVariant::Ll, CollectiveVariant::Pull];
            let plans = variants.map(|variant| plan(variant.name(), 64, variant, 3));
            let first = Session::open(&plans[0], &group, &config).expect("a session");
            let mut sessions = vec![first];
            weigh(&mut sessions[0], 1.0);
            for round in 0..12i64 {
                if let (2 | 5, Some(plan)) = (round, plans.get(sessions.len())) {
                    let mut next = sessions[0].open_program(plan).expect("another program");
                    weigh(&mut next, 1.0 + sessions.len() as f32);
                    sessions.push(next);
                }
                for (number, session) in sessions.iter_mut().enumerate() {
                    let n = 1 + (round * 17 + number as i64) % 64;
                    let output = run(session, n, round as f32).expect("a run");
                    assert_eq!(
                        output,
                        [3.0 * round as f32, 3.0 * (1.0 + number as f32)],
                        "round {round}, program {number}"
                    );
                }
            }
            // The first may go first.
            sessions.remove(0).close().expect("it ends");
            assert_eq!(run(&mut sessions[1], 5, 2.0).expect("a run"), [6.0, 9.0]);
            drop(sessions.remove(0));
            assert_eq!(run(&mut sessions[0], 64, 2.0).expect("a run"), [6.0, 9.0]);
            sessions.remove(0).close().expect("it ends");
        });
    }
}

#[test]
fn arenas_are_as_large_as_the_largest_program_needs() {
    on_ranks(2, |group| {
        let sizes = [1 << 10, 1 << 12, 1 << 11];
        let plans = sizes.map(|most| plan(&format!("up to {most}"), most, CollectiveVariant::OneShot, 2));
        let arena_sizes =
            |plan: &CheckedPlan| [plan.arenas.ordinary as usize, plan.arenas.symmetric as usize];
        let mut sessions = vec![Session::open(&plans[0], &group, &config()).expect("a session")];
        for plan in &plans[1..] {
            sessions.push(sessions[0].open_program(plan).expect("another program"));
        }
        let usage = sessions[0].memory_usage();
        let all_sizes = plans.iter().map(arena_sizes);
        let fixed = |plan: &CheckedPlan| plan.fixed.iter().map(|f| f.size as usize + 4096).sum::<usize>();
        let fixed: usize = plans.iter().map(fixed).sum();
        assert_eq!(usage.ordinary, all_sizes.clone().map(|[ordinary, _]| ordinary).max().expect("plans"));
        let max_symmetric = all_sizes.map(|[_, symmetric]| symmetric).max().expect("plans");
        assert!(
            usage.symmetric <= max_symmetric + fixed + 4096,
            "{} bytes, {max_symmetric} and {fixed} fixed",
            usage.symmetric
        );
    });
}

#[test]
fn session_survives_rejected_programs() {
    let (own, other) =
        (plan("own", 64, CollectiveVariant::OneShot, 2), plan("other", 32, CollectiveVariant::Ll, 2));
    on_ranks(2, |group| {
        let mut session = Session::open(&own, &group, &config()).expect("a session");
        weigh(&mut session, 1.0);
        let refused = |found: Result<Session, Error>, kind: ErrorKind, text: &str| {
            let error = found.expect_err("it is refused");
            assert!(error.kind() == kind && error.to_string().contains(text), "{error}");
        };
        refused(
            session.open_program(&plan("three", 64, CollectiveVariant::Ll, 3)),
            ErrorKind::Input,
            "2 ranks, the plan is for 3",
        );
        let differing = if group.rank() == 0 { &own } else { &other };
        refused(session.open_program(differing), ErrorKind::Disagreement, "all ranks must agree");
        assert_eq!(run(&mut session, 8, 1.0).expect("it goes on"), [2.0, 2.0]);
        // One rank alone cannot.
        let plan =
            if group.rank() == 0 { plan("three", 64, CollectiveVariant::Ll, 3) } else { other.clone() };
        let text = if group.rank() == 0 { "the plan is for 3" } else { "rank 0 cannot open another program" };
        refused(session.open_program(&plan), ErrorKind::Input, text);
        let mut next = session.open_program(&other).expect("another program");
        weigh(&mut next, 2.0);
        assert_eq!(run(&mut next, 8, 1.0).expect("it runs"), [2.0, 4.0]);
        // Sizes of one program are no sizes of another.
        assert!(run(&mut next, 64, 1.0).is_err());
        assert_eq!(run(&mut session, 64, 1.0).expect("it goes on"), [2.0, 2.0]);
    });
    on_ranks(2, |group| {
        let session = Session::open(&own, &group, &config().with_extendable(false)).expect("a session");
        let error = session.open_program(&other).expect_err("nothing is reserved").to_string();
        assert!(error.contains("not opened for several programs"), "{error}");
        let symmetric = Session::open(&own, &group, &config().with_symmetric_bytes(4096))
            .expect_err("there is none")
            .to_string();
        assert!(symmetric.contains("symmetric memory for the caller"), "{symmetric}");
    });
}

#[test]
fn ranks_that_run_different_programs_are_told() {
    let (own, other) =
        (plan("own", 64, CollectiveVariant::OneShot, 2), plan("other", 64, CollectiveVariant::OneShot, 2));
    let errors = on_ranks(2, |group| {
        let mut session = Session::open(&own, &group, &config()).expect("a session");
        let mut next = session.open_program(&other).expect("another program");
        weigh(&mut session, 1.0);
        weigh(&mut next, 1.0);
        let mine = if group.rank() == 0 { &mut session } else { &mut next };
        run(mine, 8, 1.0).expect_err("they differ").to_string()
    });
    assert!(errors.iter().all(|error| error.contains("all ranks must agree")), "{errors:?}");
}

#[test]
fn an_abort_of_one_program_ends_all() {
    let (own, other) =
        (plan("own", 64, CollectiveVariant::OneShot, 2), plan("other", 64, CollectiveVariant::Ll, 2));
    let aborted = AtomicBool::new(false);
    on_ranks(2, |group| {
        let mut session = Session::open(&own, &group, &config()).expect("a session");
        let mut next = session.open_program(&other).expect("another program");
        weigh(&mut session, 1.0);
        weigh(&mut next, 1.0);
        run(&mut session, 8, 1.0).expect("a run");
        if group.rank() == 0 {
            next.abort("enough").expect("it ends");
            aborted.store(true, Ordering::SeqCst);
            assert!(run(&mut session, 8, 1.0).is_err());
        } else {
            while !aborted.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
            let errors =
                [run(&mut session, 8, 1.0), run(&mut next, 8, 1.0)].map(|found| found.expect_err("it ended"));
            assert!(errors.iter().all(|e| e.to_string().contains("enough")), "{errors:?}");
        }
    });
}

#[test]
fn memory_that_was_given_back_serves_all_programs_again() {
    let (own, other) =
        (plan("own", 64, CollectiveVariant::OneShot, 2), plan("other", 64, CollectiveVariant::Ll, 2));
    on_ranks(2, |group| {
        let mut session = Session::open(&own, &group, &config()).expect("a session");
        let mut next = session.open_program(&other).expect("another program");
        for _ in 0..2 {
            weigh(&mut session, 1.0);
            weigh(&mut next, 2.0);
            assert_eq!(run(&mut next, 9, 1.0).expect("a run"), [2.0, 4.0]);
            assert_eq!(run(&mut session, 9, 1.0).expect("a run"), [2.0, 2.0]);
            session.release().expect("it is idle");
            assert!(next.open_program(&own).is_err());
            next.resume().expect("there is memory");
        }
    });
}
