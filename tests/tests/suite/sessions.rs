//! Sessions: programs run in them give what they give elsewhere, wherever their memory lies, and what callers do wrong is
//! refused by name and leaves nothing behind.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use symmc::{
    ArgumentBinding, Bootstrap, CompileConfig, DrawConfig, Error, Group, OpenOptions, PortStorage, Program,
    Session, SessionConfig, Tensor, TensorFile, ValueKind, Workload,
};
use symmc_check::CheckedPlan;
use symmc_ir::collective::CollectiveVariant;
use symmc_ir::interp::{RunCount, Tolerance, compare};
use symmc_ir::{InputKind, OutputKind, SymbolBindings, text};
use symmc_runtime::RunError;
use symmc_runtime::exec::{CustomKernelRegistry, ExecConfig, Executor};
use symmc_runtime::session::{SessionLayout, SessionPorts};
use symmc_tests::{RECORDED_PROGRAMS, program};

/// Where inputs and outputs lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PortMemory {
    /// The session's, written and read by copies.
    Copied,
    /// The session's, written where they lie.
    Addressed,
    /// The caller's.
    Bound,
}

/// The same work on every rank, each a thread.
fn on_ranks<T: Send>(ranks: u32, work: impl Fn(Group) -> T + Sync) -> Vec<T> {
    let groups = Group::threads(ranks);
    thread::scope(|scope| {
        let threads: Vec<_> = groups.into_iter().map(|group| scope.spawn(|| work(group))).collect();
        threads.into_iter().map(|t| t.join().expect("a rank")).collect()
    })
}

fn config() -> SessionConfig {
    SessionConfig::default().with_timeout(Duration::from_secs(20))
}

fn plan_of(text_of: &str, config: &CompileConfig) -> CheckedPlan {
    let program = Program::from_graph(text::parse(text_of).expect("a program")).expect("it verifies");
    symmc::compile(&program, config).expect("a plan")
}

/// Bytes whose start is aligned for every element.
struct AlignedBytes(Vec<u64>, usize);

impl AlignedBytes {
    fn of(bytes: usize) -> AlignedBytes {
        AlignedBytes(vec![0; bytes.div_ceil(8).max(1)], bytes)
    }

    fn ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the words are as many bytes, all of them initialised.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.1) }
    }
}

/// Runs a rank's inputs `runs` times; its outputs.
fn through_a_session(
    plan: &CheckedPlan,
    work: &Workload,
    group: &Group,
    memory: PortMemory,
    runs: usize,
) -> Result<Vec<Tensor>, Error> {
    let source = plan.source_program();
    let mut blocks: Vec<AlignedBytes> = Vec::new();
    let mut session = Session::open(plan, group, &config())?;
    for (id, symbol) in source.symbols.iter() {
        session.set(&symbol.name, work.bindings.get(id).expect("a value"))?;
    }
    let constants = session.inputs()?.len() + session.parameters()?.len();
    for (input, tensor) in source.inputs.values().zip(&work.inputs[group.rank() as usize]) {
        if input.data.is_some() && input.kind != InputKind::Argument {
            continue;
        }
        let name = source.value_name(input.value);
        match memory {
            PortMemory::Copied => session.write(name, tensor.load_to_memory().expect("data").data())?,
            PortMemory::Addressed => {
                let memory_of_input = session.address(name)?;
                assert_eq!(memory_of_input.bytes, tensor.data().len());
                // SAFETY: no run is in progress, and the session has as many bytes there.
                unsafe {
                    std::ptr::copy(tensor.data().as_ptr(), memory_of_input.as_ptr(), memory_of_input.bytes)
                };
            }
            PortMemory::Bound => {
                let mut block = AlignedBytes::of(tensor.data().len());
                block.bytes().copy_from_slice(tensor.data());
                // SAFETY: the block lives until the session has ended, and only the session uses it.
                unsafe { session.bind(name, block.ptr(), tensor.data().len())? };
                blocks.push(block);
            }
        }
    }
    assert!(constants <= source.inputs.len());
    let mut outputs: Vec<(usize, AlignedBytes)> = Vec::new();
    if memory == PortMemory::Bound {
        for (k, output) in source.outputs.iter().enumerate().filter(|(_, o)| o.kind == OutputKind::Returned) {
            let number = source.outputs[..k].iter().filter(|o| o.kind == OutputKind::Returned).count();
            let name = format!("out.{number}");
            let bytes = session.outputs()?[k].bytes;
            let mut block = AlignedBytes::of(bytes);
            // SAFETY: as above.
            unsafe { session.bind(&name, block.ptr(), bytes)? };
            assert_eq!(session.address(&name)?.as_ptr(), block.ptr(), "{output:?}");
            outputs.push((k, block));
        }
    }
    for run in 0..runs {
        match run % 2 {
            0 => session.run()?,
            _ => {
                session.enqueue()?;
                session.wait(Duration::from_secs(20))?;
                assert!(session.poll()?);
            }
        }
    }
    let values = session.outputs()?;
    let mut returned = 0;
    let mut out = Vec::new();
    // Sessions do not list lengths of outputs.
    let listed = source.outputs.iter().filter(|output| !matches!(output.kind, OutputKind::Length { .. }));
    for (k, (value, output)) in values.iter().zip(listed).enumerate() {
        let actual = match output.kind {
            OutputKind::Returned | OutputKind::Length { .. } => {
                returned += 1;
                session.read(&format!("out.{}", returned - 1))?
            }
            // What an output replaces has its value where it lies.
            OutputKind::Mutates(_) => session.read(value.replaces.as_deref().expect("what it replaces"))?,
        };
        if let Some((_, block)) = outputs.iter_mut().find(|(at, _)| *at == k) {
            assert_eq!(block.bytes(), actual.data(), "output {k} lies in the caller's memory");
        }
        out.push(actual);
    }
    session.close()?;
    Ok(out)
}

#[test]
fn recorded_programs_agree_for_all_placements_of_memory() {
    for stem in RECORDED_PROGRAMS {
        let tensors = TensorFile::open(&program(&format!("{stem}.safetensors"))).expect("recorded tensors");
        let tensors = Arc::new(tensors);
        let options = OpenOptions::default().with_tensors(tensors.clone());
        let program = Program::open(&program(&format!("{stem}.pt2")), &options).expect("a program");
        let work = Workload::gather(&program.graph, &program.weights, Some(&tensors), &DrawConfig::default())
            .expect("a workload");
        let expected = work.expected.clone().expect("recorded outputs");
        for bind in [ArgumentBinding::None, ArgumentBinding::All] {
            let config = CompileConfig::default().with_bind(bind.clone());
            let plan = symmc::compile(&program, &config).expect("a plan");
            let histories = plan.output_histories(plan.buckets[0].program, RunCount::One).expect("histories");
            for memory in [PortMemory::Copied, PortMemory::Addressed, PortMemory::Bound] {
                let results = on_ranks(plan.ranks, |group| {
                    through_a_session(&plan, &work, &group, memory, 1)
                        .unwrap_or_else(|e| panic!("{stem}, {bind:?}, {memory:?}: {e}"))
                });
                let outputs =
                    results.iter().zip(expected.iter()).flat_map(|(f, e)| f.iter().zip(e).enumerate());
                for (k, (actual, expected)) in outputs {
                    let Some(expected) = expected else { continue };
                    let tolerance = Tolerance::for_history(&histories[k], expected);
                    let comparison = compare(actual, expected, tolerance);
                    assert!(comparison.agrees(), "{stem}, {bind:?}, {memory:?}: {comparison}");
                }
            }
        }
    }
}

/// A sum over ranks, and a state that counts the runs.
const COUNTED: &str = "program \"counted\" ranks 2\nsymbol n in 1..=64\ngroup @all world\n\
    arg %x: f32[n, 4]\nparam %w: f32[4]\nparam %state: f32[4]\nconst %one: f32[4] = hex\"0000803f0000803f0000803f0000803f\"\n\
    %a: f32[n, 4] = mul %x, %w\n%y: f32[n, 4] = all_reduce %a op=sum group=@all\n\
    %next: f32[4] = add %state, %one\nreturn %y\nmutate %state = %next\n";

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

fn counted() -> CheckedPlan {
    plan_of(COUNTED, &CompileConfig::default())
}

#[test]
fn sizes_and_memory_may_change_while_state_persists() {
    let plan = counted();
    on_ranks(2, |group| {
        let rank = group.rank() as f32;
        let mut session = Session::open(&plan, &group, &config()).expect("a session");
        let error = session.run().expect_err("n has no value");
        assert!(error.to_string().contains("set n"), "{error}");
        session.set("n", 2).expect("it is served");
        let error = session.run().expect_err("nothing has data");
        assert!(error.to_string().contains("%x") && error.is_bad_input(), "{error}");
        session.write("w", &floats(&[1.0, 2.0, 3.0, 4.0])).expect("four floats");
        session.write("state", &floats(&[0.0; 4])).expect("four floats");
        let mut blocks: Vec<AlignedBytes> = (0..3).map(|_| AlignedBytes::of(64 * 16)).collect();
        for (run, n) in [2usize, 5, 64, 1, 5].into_iter().enumerate() {
            session.set("n", n as i64).expect("it is served");
            let values = vec![run as f32 + rank; n * 4];
            let block = &mut blocks[run % 3];
            block.bytes()[..n * 16].copy_from_slice(&floats(&values));
            // SAFETY: the blocks live as long as the session, and are written between runs only.
            unsafe { session.bind("x", block.ptr(), n * 16).expect("it fits") };
            session.run().expect("a run");
            let output = session.read("y").expect("an output").to_f64();
            let each = 2.0 * run as f64 + 1.0;
            let expected: Vec<f64> = (0..n * 4).map(|i| each * (i % 4 + 1) as f64).collect();
            assert_eq!(output, expected, "run {run}");
            assert_eq!(session.read("state").expect("a state").to_f64(), vec![run as f64 + 1.0; 4]);
        }
        let error = session.set("n", 65).expect_err("it is out of range");
        assert!(error.to_string().contains("65"), "{error}");
        assert_eq!(session.read("y").expect("the sizes stay").shape(), [5, 4]);
        session.close().expect("all went well");
    });
}

#[test]
fn invalid_bindings_are_rejected_by_name() {
    let plan = counted();
    on_ranks(2, |group| {
        let mut session = Session::open(&plan, &group, &config()).expect("a session");
        session.set("n", 4).expect("it is served");
        let mut block = AlignedBytes::of(4096);
        let start = block.ptr();
        let arena = session.address("y").expect("it lies somewhere");
        assert_eq!((arena.storage, arena.bytes), (PortStorage::Session, 64));
        // SAFETY: the block outlives the session, and nobody else uses it.
        let mut bind = |name: &str, at: *mut u8, bytes: usize| unsafe { session.bind(name, at, bytes) };
        let refusals = [
            ("w", start, 15, ["%w", "15 bytes", "expected 16"]),
            ("x", start.wrapping_add(2), 64, ["input %x", "not aligned", "multiple of 4"]),
            ("x", std::ptr::null_mut(), 64, ["input %x", "no address", ""]),
            ("z", start, 64, ["no input or output z", "%x", ""]),
        ];
        for (name, at, bytes, parts) in refusals {
            let error = bind(name, at, bytes).expect_err(name).to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
        bind("w", start, 16).expect("it fits");
        bind("state", start.wrapping_add(16), 16).expect("it fits");
        bind("out.0", start.wrapping_add(128), 80).expect("it fits");
        // What a run would not take is refused by name before it begins, and does no harm.
        let harmful = [
            ("x", start, 63, ["input %x", "63 bytes", "expected 64"]),
            ("x", start.wrapping_add(180), 64, ["output %y", "overlaps that of input %x", ""]),
            ("x", start.wrapping_add(24), 64, ["input %state", "overlaps that of input %x", ""]),
        ];
        for (name, at, bytes, parts) in harmful {
            // SAFETY: as above.
            unsafe { session.bind(name, at, bytes).expect("it is asked later") };
            let error = session.run().expect_err("it may not be").to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
        // What is only read may lie in one place.
        // SAFETY: as above.
        unsafe { session.bind("x", start.wrapping_add(32), 64).expect("it fits") };
        session.run().expect("all is well");
        session.set("n", 5).expect("it is served");
        let error = session.run().expect_err("x has 64 bytes").to_string();
        assert!(error.contains("input %x") && error.contains("expected 80"), "{error}");
        session.unbind("x").expect("it was bound");
        session.write("x", &floats(&[1.0; 20])).expect("twenty floats");
        session.run().expect("all is well");
        let error = session.write("one", &floats(&[2.0; 4])).expect_err("it is a constant").to_string();
        assert!(error.contains("constant"), "{error}");
        let error = session.write("y", &[0; 80]).expect_err("it is an output").to_string();
        assert!(error.contains("output"), "{error}");
        session.close().expect("all went well");
    });
}

/// Sessions of a program with inputs, outputs and a state, in which runs are refused memory that they may not have.
fn lent_to(plan: &CheckedPlan, at: *mut u8, lent: &[(&str, usize)], n: i64) -> Result<(), String> {
    let group = Group::threads(1).remove(0);
    let mut session = Session::open(plan, &group, &config()).expect("a session");
    session.set("n", n).expect("it is served");
    for &(name, place) in lent {
        // SAFETY: the caller's block holds it, outlives the session, and nobody else uses it.
        unsafe { session.bind(name, at.wrapping_add(4 * place), 32).expect("it is asked later") };
    }
    session.run().map_err(|error| error.to_string())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    /// Memory that is lent bit by bit, and runs between, are refused where all of it at once is, by any order of changes.
    #[test]
    fn incremental_bindings_are_rejected_like_simultaneous_ones(
        steps in proptest::collection::vec((0..7usize, 0..72usize, 0..4usize, 1..=8i64), 1..40),
    ) {
        let text = "program \"lent\" ranks 1\nsymbol n in 1..=8\narg %a: f32[n]\narg %b: f32[n]\narg %c: f32[n]\n\
            arg %state: f32[n]\n%y: f32[n] = add %a, %b\n%z: f32[n] = mul %b, %c\n%next: f32[n] = add %state, %c\n\
            return %y, %z\nmutate %state = %next\n";
        let plan = plan_of(text, &CompileConfig::default());
        let names = ["a", "b", "c", "state", "out.0", "out.1", "next"];
        let mut block = AlignedBytes::of(4 * 80);
        let start = block.ptr();
        let mut bound: Vec<(&str, usize)> = names.iter().enumerate().map(|(k, &name)| (name, 8 * k)).collect();
        let mut n = 8;
        let group = Group::threads(1).remove(0);
        let mut session = Session::open(&plan, &group, &config()).expect("a session");
        session.set("n", n).expect("it is served");
        for &(name, place) in &bound {
            // SAFETY: the block outlives the session, and nobody else uses it.
            unsafe { session.bind(name, start.wrapping_add(4 * place), 32).expect("it is asked later") };
        }
        for (which, place, how, size) in steps {
            bound[which].1 = place;
            // SAFETY: as above.
            unsafe { session.bind(names[which], start.wrapping_add(4 * place), 32).expect("it is asked later") };
            if how == 0 {
                n = size;
                session.set("n", n).expect("it is served");
            }
            if how < 3 {
                let outcome = session.run().map_err(|error| error.to_string());
                prop_assert_eq!(outcome.is_ok(), lent_to(&plan, start, &bound, n).is_ok(), "{:?} of {:?}", outcome, bound);
            }
        }
    }
}

#[test]
fn symmetric_memory_held_between_runs_is_bound_before_them() {
    let text = "program \"held\" ranks 2\ngroup @all world\narg %x: f32[4096]\nparam %w: f32[4096]\nparam %state: f32[4096]\n\
        %a: f32[4096] = all_reduce %w op=sum group=@all\n%b: f32[4096] = all_reduce %x op=sum group=@all\n\
        %next: f32[4096] = all_reduce %state op=sum group=@all\n%y: f32[4096] = add %a, %b\nreturn %y\nmutate %state = %next\n";
    let config_of = CompileConfig::default()
        .with_bind(ArgumentBinding::All)
        .with_variants(vec![CollectiveVariant::OneShot]);
    let plan = plan_of(text, &config_of);
    on_ranks(2, |group| {
        let mut session = Session::open(&plan, &group, &config()).expect("a session");
        let names = ["x", "w", "state"];
        for name in names {
            assert!(
                matches!(
                    session.address(name).expect("it lies somewhere").storage,
                    PortStorage::Symmetric(_)
                ),
                "{name}"
            );
        }
        let mut blocks = [1.0f32, 2.0].map(|value| names.map(|_| (AlignedBytes::of(4096 * 4), value)));
        for (block, value) in blocks.iter_mut().flatten() {
            block.bytes().copy_from_slice(&floats(&[*value; 4096]));
        }
        let [first, second] = blocks.map(|blocks| blocks.map(|(block, _)| block));
        let (mut first, mut second) = (first, second);
        // SAFETY: the blocks outlive the session, and nobody else uses them.
        let mut bind =
            |name: &str, block: &mut AlignedBytes| unsafe { session.bind(name, block.ptr(), 4096 * 4) };
        for (name, block) in names.iter().zip(&mut first) {
            bind(name, block).expect("no run has read it");
        }
        session.run().expect("a run");
        assert_eq!(session.read("y").expect("an output").to_f64(), vec![4.0; 4096]);
        for (name, block) in names.iter().zip(&mut first) {
            // SAFETY: as above.
            unsafe { session.bind(name, block.ptr(), 4096 * 4).expect("it lies there") };
        }
        for (name, block) in names.iter().zip(&mut second) {
            // SAFETY: as above.
            let bound = unsafe { session.bind(name, block.ptr(), 4096 * 4) };
            match *name {
                "w" => {
                    let error = bound.expect_err("a run has read it").to_string();
                    assert!(
                        error.starts_with(
                            "input %w: it cannot be bound any more: the plan holds it in symmetric memory"
                        ),
                        "{error}"
                    );
                    assert!(session.unbind(name).is_err());
                }
                _ => bound.expect("it is read before each run"),
            }
        }
        session.run().expect("a run");
        assert_eq!(session.read("y").expect("an output").to_f64(), vec![6.0; 4096]);
        assert_eq!(session.read("state").expect("a state").to_f64(), vec![4.0; 4096]);
        session.close().expect("all went well");
    });
}

#[test]
fn values_say_what_they_are_at_the_sizes_set() {
    let plan = counted();
    on_ranks(2, |group| {
        let mut session = Session::open(&plan, &group, &config()).expect("a session");
        assert!(session.inputs().is_err_and(|e| e.to_string().contains("set n")));
        session.set("n", 3).expect("it is served");
        let inputs = session.inputs().expect("sizes are set");
        assert_eq!((inputs.len(), &inputs[0].extents[..], inputs[0].bytes), (1, &[3, 4][..], 48));
        let names = |values: Vec<symmc::SessionValue>| values.into_iter().map(|v| v.name).collect::<Vec<_>>();
        assert_eq!(names(session.parameters().expect("sizes are set")), ["w", "state"]);
        let outputs = session.outputs().expect("sizes are set");
        assert_eq!((outputs[0].kind, outputs[0].replaces.as_deref()), (ValueKind::Output, None));
        assert_eq!(outputs[1].replaces.as_deref(), Some("state"));
    });
}

#[test]
fn differing_sizes_are_rejected_before_the_run() {
    let plan = counted();
    let started = Instant::now();
    let errors = on_ranks(2, |group| {
        let mut session = Session::open(&plan, &group, &config()).expect("a session");
        session.set("n", 2).expect("it is served");
        session.write("w", &floats(&[1.0; 4])).expect("four floats");
        session.write("state", &floats(&[0.0; 4])).expect("four floats");
        session.write("x", &floats(&[1.0; 8])).expect("eight floats");
        session.run().expect("both are alike");
        let n = 2 + i64::from(group.rank());
        session.set("n", n).expect("it is served");
        session.write("x", &floats(&vec![1.0; n as usize * 4])).expect("they fit");
        let error = session.run().expect_err("they differ");
        let repeated = session.run().expect_err("the session has ended");
        assert_eq!(error.to_string(), repeated.to_string());
        error.to_string()
    });
    assert!(errors.iter().all(|e| e.contains("run 1") && e.contains("all ranks must agree")), "{errors:?}");
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn different_plans_or_missing_ranks_are_rejected() {
    let (one, other) = (counted(), plan_of(&COUNTED.replace("1..=64", "1..=63"), &CompileConfig::default()));
    let errors = on_ranks(2, |group| {
        let plan = if group.rank() == 0 { &one } else { &other };
        Session::open(plan, &group, &config()).expect_err("the plans differ").to_string()
    });
    assert!(errors.iter().all(|e| e.contains("all ranks must run the same plan")), "{errors:?}");
    let errors =
        on_ranks(3, |group| Session::open(&one, &group, &config()).expect_err("3 ranks").to_string());
    assert!(errors.iter().all(|e| e.contains("the plan is for 2 ranks, the group has 3")), "{errors:?}");
    let single = Group::threads(2).swap_remove(1);
    let error = Session::open(&one, &single, &config().with_timeout(Duration::from_millis(200)));
    assert!(error.expect_err("nobody else comes").to_string().contains("rank 0 did not join"));
}

/// Has a session of `COUNTED` run with two elements, all its inputs ones.
fn fill(session: &mut Session) {
    session.set("n", 2).expect("it is served");
    for (name, n) in [("w", 4), ("state", 4), ("x", 8)] {
        session.write(name, &floats(&vec![1.0; n])).expect("they fit");
    }
}

#[test]
fn dropping_a_session_ends_the_others_by_name() {
    let plan = counted();
    let errors = on_ranks(2, |group| {
        let limit = Duration::from_millis(500);
        let mut session = Session::open(&plan, &group, &config().with_timeout(limit)).expect("a session");
        fill(&mut session);
        session.run().expect("a run");
        if group.rank() == 1 {
            session.enqueue().expect("a run begins");
            // Rank 0 does not come.
            drop(session);
            return String::new();
        }
        thread::sleep(Duration::from_millis(100));
        session.run().expect_err("rank 1 has gone").to_string()
    });
    assert!(errors[0].contains("rank 1"), "{errors:?}");
}

#[test]
fn two_sessions_at_once_run_beside_each_other() {
    let plan = counted();
    on_ranks(2, |group| {
        let mut sessions = [0, 1].map(|_| Session::open(&plan, &group, &config()).expect("a session"));
        sessions.iter_mut().for_each(fill);
        for _ in 0..20 {
            sessions.iter_mut().for_each(|session| session.enqueue().expect("a run begins"));
        }
        for session in &mut sessions {
            session.wait(Duration::from_secs(20)).expect("all end");
            assert_eq!(session.read("state").expect("a state").to_f64(), vec![21.0; 4]);
        }
    });
}

#[test]
fn memory_that_was_given_back_is_taken_again() {
    let plan = plan_of(COUNTED, &CompileConfig::default().with_bind(ArgumentBinding::All));
    on_ranks(2, |group| {
        let mut session = Session::open(&plan, &group, &config()).expect("a session");
        fill(&mut session);
        session.run().expect("a run");
        session.release().expect("nothing runs");
        assert!(session.run().is_err_and(|e| e.to_string().contains("resume")));
        session.resume().expect("there is memory");
        for (name, n) in [("w", 4), ("x", 8)] {
            session.write(name, &floats(&vec![1.0; n])).expect("they fit");
        }
        session.run().expect("a run");
        assert_eq!(session.read("y").expect("an output").to_f64(), vec![2.0; 8]);
        session.close().expect("all went well");
    });
}

/// Ranks that tell each other by a table in this process.
struct RankTable<'a> {
    rank: usize,
    round: usize,
    said: &'a std::sync::Mutex<Vec<Vec<Option<Vec<u8>>>>>,
    ranks: usize,
}

impl Bootstrap for RankTable<'_> {
    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        let round = self.round;
        self.round += 1;
        loop {
            let mut table = self.said.lock().expect("nobody panics");
            let rounds = table.len().max(round + 1);
            table.resize(rounds, vec![None; self.ranks]);
            table[round][self.rank] = Some(mine.to_vec());
            if let Some(all) = table[round].iter().cloned().collect() {
                return Ok(all);
            }
            drop(table);
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// What sessions keep by sizes and memory is found by a text that no other program has, also where ranks do not meet.
#[test]
fn programs_of_a_session_have_texts_of_their_own() {
    for ranks in [1, 2] {
        let text = format!("program \"p\" ranks {ranks}\narg %x: f32[4]\n%y: f32[4] = neg %x\nreturn %y\n");
        let plan = plan_of(&text, &CompileConfig::default());
        let mut arrangement = SessionLayout::new(&plan, None);
        for _ in 0..2 {
            arrangement.add_program(&plan, None).expect("there is no limit");
        }
        let text = |program: usize| {
            let executor =
                Executor::new(&plan, 0, &CustomKernelRegistry::new(), ExecConfig::default()).expect("a plan");
            let mut ports = SessionPorts::<()>::new(executor, (1, 0)).expect("its inputs");
            ports.set_placement(arrangement.program_placement(program)).expect("it has room");
            ports.set_sizes(&SymbolBindings::new()).expect("sizes");
            ports.sized_program().expect("sizes").text.to_string()
        };
        let texts = std::collections::BTreeSet::from([text(0), text(1), text(2)]);
        assert_eq!(texts.len(), 3, "{texts:?}");
    }
}

#[test]
fn ranks_meet_by_means_of_the_caller() {
    let (plan, said) = (counted(), std::sync::Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for rank in 0..2 {
            let (plan, said) = (&plan, &said);
            scope.spawn(move || {
                let mut table = RankTable { rank, round: 0, said, ranks: 2 };
                let group = Group::bootstrap(rank as u32, 2, &mut table).expect("a group");
                let session = Session::open(plan, &group, &config()).expect("a session");
                assert_eq!(session.rank(), rank as u32);
            });
        }
    });
}

/// A rank whose means fail when the others have passed the barrier.
struct FailsAfterBarrier<'a>(RankTable<'a>);

impl Bootstrap for FailsAfterBarrier<'_> {
    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        self.0.all_gather(mine)
    }

    fn barrier(&mut self) -> Result<(), String> {
        self.0.barrier().and(Err("out of paper".into()))
    }
}

#[test]
fn reports_a_failed_bootstrap_in_the_session() {
    let plan = counted();
    for victim in 0..2 {
        let table_data = std::sync::Mutex::new(Vec::new());
        let table = |rank: usize| RankTable { rank, round: 0, said: &table_data, ranks: 2 };
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut means = FailsAfterBarrier(table(victim));
                let error = Group::bootstrap(victim as u32, 2, &mut means).expect_err("its means fail");
                assert!(error.to_string().contains("out of paper"), "{error}");
            });
            let survivor = 1 - victim;
            let group = Group::bootstrap(survivor as u32, 2, &mut table(survivor)).expect("a group");
            let error = Session::open(&plan, &group, &config()).expect_err("the other rank has failed");
            assert_eq!(error.culprit(), Some(victim as u32), "{error}");
            assert!(error.to_string().contains("out of paper"), "{error}");
        });
    }
}

/// Rank 3 comes after rank 2 got the error, and gets it too.
#[test]
fn joined_ranks_fail_before_the_remaining_ranks_come() {
    let text = "program \"p\" ranks 4\narg %x: f32[4]\n%y: f32[4] = neg %x\nreturn %y\n";
    let plan = plan_of(text, &CompileConfig::default());
    let groups = Group::threads(4);
    let expect_error = |rank: usize| {
        let error = Session::open(&plan, &groups[rank], &config()).expect_err("rank 1 declines");
        assert_eq!(error.culprit(), Some(1), "{error}");
        assert!(error.to_string().contains("out of paper"), "rank {rank}: {error}");
    };
    let (notified, is_notified) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| expect_error(0));
        scope.spawn(|| {
            expect_error(2);
            notified.send(()).expect("rank 3 waits for it");
        });
        groups[1].decline(RunError::Left { rank: 1, how: "is out of paper".into() });
        is_notified.recv_timeout(Duration::from_secs(60)).expect("rank 2 is notified");
        expect_error(3);
    });
}

#[test]
fn dropping_a_session_does_not_wait_for_peers() {
    let (plan, said) = (counted(), std::sync::Mutex::new(Vec::new()));
    let limit = Duration::from_secs(40);
    let opened = |rank: usize| {
        let mut table = RankTable { rank, round: 0, said: &said, ranks: 2 };
        let group = Group::bootstrap(rank as u32, 2, &mut table).expect("a group");
        let mut session = Session::open(&plan, &group, &config().with_timeout(limit)).expect("a session");
        fill(&mut session);
        session.run().expect("a run");
        session
    };
    let (drops, dropped) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            drop(opened(0));
            drops.send(()).expect("rank 1 waits for it");
        });
        let session = opened(1);
        // Rank 0 may do that wherever it collects garbage, and this rank be what it then goes on to meet.
        dropped.recv_timeout(limit / 4).expect("rank 0 has dropped its session");
        drop(session);
    });
}
