//! The parts of an error: its kind, its position, its source, and a text that states all of them once.

use std::error::Error as _;
use std::path::Path;

use symmc::custom::ValueMismatch;
use symmc::unstable::runtime::{DataFault, RunError};
use symmc::{
    CompileConfig, DrawConfig, Error, ErrorKind, Execution, OpenOptions, Program, RunConfig, Workload,
};

/// The rank, the step and the op of an error.
type Place = (Option<u32>, Option<usize>, Option<&'static str>);

const NO_PLACE: Place = (None, None, None);
const RANK_PLACE: Place = (Some(3), None, None);
const STEP_PLACE: Place = (Some(3), Some(7), Some("add"));

/// Errors of one rank, of every form, by their kind and what they say of where they happened.
fn runs() -> Vec<(ErrorKind, Place, Vec<RunError>)> {
    use ErrorKind::{Defect, Input, Resources, Run, Unsupported};
    let text = |t: &str| t.to_string();
    let (node, op, detail, how) = (|| text("y"), || text("add"), || text("no"), || text("exit code 3"));
    let (rank, step, bytes) = (3, 7, 64);
    let (why, fault) = (ValueMismatch::NoKernel, DataFault::Index);
    vec![
        (Input, NO_PLACE, vec![RunError::Invalid(detail())]),
        (Defect, NO_PLACE, vec![RunError::Defect(detail())]),
        (Run, NO_PLACE, vec![RunError::system("mmap", "no")]),
        (Unsupported, NO_PLACE, vec![RunError::Unsupported(detail())]),
        (
            Input,
            STEP_PLACE,
            vec![RunError::Data { rank, step, node: node(), op: op(), fault, detail: detail() }],
        ),
        (
            Input,
            (None, None, Some("add")),
            vec![RunError::Bounds { node: node(), op: op(), detail: detail() }],
        ),
        (Run, STEP_PLACE, vec![RunError::Step { rank, step, node: node(), op: op(), detail: detail() }]),
        (
            Unsupported,
            (None, None, Some("add")),
            vec![RunError::CannotRun { rank: None, node: node(), op: op(), why }],
        ),
        (
            Resources,
            NO_PLACE,
            vec![
                RunError::Memory { what: text("an arena"), bytes, error: how() },
                RunError::Exhausted { what: text("a thread"), error: how() },
            ],
        ),
        (Resources, RANK_PLACE, vec![RunError::Refused { rank }]),
        (Input, RANK_PLACE, vec![RunError::Misplaced { rank, detail: text("rank 3 came twice") }]),
    ]
}

/// The same of errors that ranks have of each other.
fn of_peers() -> Vec<(ErrorKind, Place, Vec<RunError>)> {
    use ErrorKind::{Disagreement, Peer};
    let text = |t: &str| t.to_string();
    let (node, op, detail, how) = (|| text("y"), || text("add"), || text("no"), || text("exit code 3"));
    let (rank, step, limit_ms, run) = (3, 7, 30, 0);
    let (expected, found) = (|| text("a"), || text("b"));
    vec![
        (
            Peer,
            STEP_PLACE,
            vec![
                RunError::Limit {
                    rank: 1,
                    culprit: rank,
                    peers: vec![rank],
                    step,
                    node: node(),
                    op: op(),
                    run,
                    limit_ms,
                },
                RunError::Died { rank, how: how(), step, node: node(), op: op(), run },
            ],
        ),
        (Peer, NO_PLACE, vec![RunError::Unfinished { rank, run, limit_ms }]),
        (
            Peer,
            RANK_PLACE,
            vec![
                RunError::DiedOutside { rank, how: how(), when: text("before the first step") },
                RunError::Stuck { rank, at: text("at step 3"), limit_ms },
                RunError::Absent { ranks: vec![3, 4], limit_ms },
                RunError::Left { rank, how: text("closed its session after 3 runs") },
                RunError::Aborted { rank, reason: detail() },
                RunError::Protocol { rank, detail: detail() },
            ],
        ),
        (
            Disagreement,
            RANK_PLACE,
            vec![
                RunError::PlanDiffers { rank, expected: expected(), found: found() },
                RunError::VersionDiffers { rank, expected: expected(), found: found() },
                RunError::TermsDiffer { rank, expected: expected(), found: found() },
                RunError::SizesDiffer { rank: 0, peer: rank, run: 7, sizes: text("n=4") },
            ],
        ),
    ]
}

#[test]
fn run_errors_carry_kind_culprit_step_and_op() {
    for (kind, place, errors) in runs().into_iter().chain(of_peers()) {
        for run in errors {
            let error = Error::from(run.clone());
            assert_eq!(error.kind(), kind, "{error}");
            assert_eq!((error.culprit(), error.step(), error.op()), place, "{error}");
            assert_eq!(error.rank(), error.culprit(), "{error}");
            assert_eq!(error.node(), place.2.map(|_| "y"), "{error}");
            assert_eq!(error.to_string(), run.to_string());
            let source = error.source().and_then(|s| s.downcast_ref::<RunError>());
            assert_eq!(source, Some(&run));
        }
    }
}

#[test]
fn all_ranks_report_the_same_error() {
    for (kind, (culprit, step, op), errors) in runs().into_iter().chain(of_peers()) {
        for run in errors {
            let own = run.reporter();
            let is_last_word = matches!(run, RunError::Aborted { .. });
            let reported = Error::from(run.clone().reported_by(2));
            assert_eq!((reported.kind(), reported.step(), reported.op()), (kind, step, op), "{reported}");
            assert_eq!(reported.reporter(), if is_last_word { None } else { own.or(Some(2)) }, "{reported}");
            // If no rank is at fault, it is the rank that has the problem.
            let actual = reported.culprit();
            assert!(actual == culprit || culprit.is_none() && actual == Some(2), "{reported}: {actual:?}");
            let text = reported.to_string();
            assert!(text.contains(&run.to_string()) && text.contains("rank"), "{text}");
        }
    }
}

#[test]
fn errors_cross_threads() {
    fn crosses<E: std::error::Error + Send + Sync + 'static>() {}
    crosses::<Error>();
}

#[test]
fn failed_runs_and_defects_are_not_bad_input() {
    let bad = |kind: ErrorKind| Error::new(kind, "no").is_bad_input();
    use ErrorKind::{Check, Defect, Disagreement, Input, Peer, Resources, Run, Unsupported};
    assert!([Input, Unsupported, Resources, Disagreement].into_iter().all(bad));
    assert!(![Check, Run, Peer, Defect].into_iter().any(bad));
}

#[test]
fn file_errors_name_the_path_and_cause_once() {
    let path = Path::new("/nowhere/model.symm");
    let error = Program::open(path, &OpenOptions::default()).expect_err("no file");
    assert_eq!((error.kind(), error.path()), (ErrorKind::Input, Some(path)));
    let cause = error.source().expect("the system's answer");
    assert!(cause.is::<std::io::Error>() && error.to_string() == format!("{}: {cause}", path.display()));

    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("p.symm");
    std::fs::write(&path, "program \"p\" ranks 1\n%y: f32[4] = exp %x\n").expect("written");
    let error = Program::open(&path, &OpenOptions::default()).expect_err("%x is not defined");
    assert_eq!((error.kind(), error.path()), (ErrorKind::Input, Some(path.as_path())));
    assert!(error.source().is_some_and(|cause| error.to_string().ends_with(&cause.to_string())), "{error}");
}

#[test]
fn exceeding_a_limit_is_a_resources_error() {
    let text = "program \"p\" ranks 2\ngroup @w world\n\
                custom \"my::next\" symmetric operands [0] results [] group @w\narg %x: f32[64, 8]\n\
                %y: f32[64, 8] = custom \"my::next\" %x\nreturn %y\n";
    let program = Program::from_text(text).expect("a program");
    let compile = |limit| symmc::compile(&program, &CompileConfig::default().with_symm_limit(limit));
    assert!(compile(1 << 20).is_ok());
    let error = compile(64).expect_err("%x has 2048 bytes");
    assert_eq!((error.kind(), error.is_bad_input()), (ErrorKind::Resources, true), "{error}");
}

#[test]
fn an_op_without_a_meaning_is_unsupported_by_name() {
    let text = "program \"p\" ranks 1\narg %x: f32[4]\n%y: f32[4] = opaque \"my::op\" %x attributes=\"\"\nreturn %y\n";
    let program = Program::from_text(text).expect("a program");
    let plan = symmc::compile(&program, &CompileConfig::default()).expect("a plan");
    let work =
        Workload::gather(&program.graph, &program.weights, None, &DrawConfig::default()).expect("inputs");
    for execution in [Execution::Threads, Execution::Interpreter] {
        let error = symmc::run(&plan, &work, &execution, &RunConfig::default()).expect_err("no kernel");
        assert_eq!((error.kind(), error.node()), (ErrorKind::Unsupported, Some("y")), "{error}");
        assert!(error.op().is_some_and(|op| op.contains("opaque")), "{error:?}");
    }
}

#[cfg(feature = "cuda")]
#[test]
fn unsupported_gpu_plans_name_their_first_node() {
    let text = "program \"p\" ranks 9\ngroup @w world\narg %x: f32[18, 7]\narg %n: i64[9]\n\
                %y: f32[18, 7], %r: i64[9] = all_to_all %x, %n splits=device group=@w\nreturn %y\nreturn %r\n";
    let profile = symmc::MachineProfile::builtin("h200x8").expect("built in");
    let program = Program::from_text(text).expect("a program");
    let plan = symmc::compile(&program, &CompileConfig::default()).expect("a plan for the host");
    let refused = symmc::check_gpu_support(&plan, &[]).expect_err("9 ranks");
    let config = CompileConfig::default().with_profile(profile);
    for error in [refused, symmc::compile(&program, &config).expect_err("9 ranks")] {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert_eq!((error.node(), error.op()), (Some("y"), Some("all_to_all")), "{error}");
    }
}
