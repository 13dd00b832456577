//! The errors of the executor, and how a failure in one lane ends the other.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use symmc_ir::{DType, SymbolBindings, Tensor};
use symmc_plan::{Lane, ParsedPlan, Plan};
use symmc_runtime::exec::expect_kernels;
use symmc_runtime::exec::{ByteSpan, Communicator, CustomKernelRegistry, ExecConfig, Lanes, RankMemory};
use symmc_runtime::{CollectiveCall, RunError};

use crate::support::{NoCommunicator, PlannedProgram, RankBuffers, bindings, inputs, planned, run_once};

/// A communicator that counts, and whose collectives wait until the run is aborted, or fail at once.
#[derive(Default)]
struct ScriptedCommunicator {
    fails: bool,
    begun: AtomicUsize,
    aborted: Mutex<Vec<RunError>>,
    changed: Condvar,
}

impl Communicator for ScriptedCommunicator {
    fn begin_step(&self, _: usize) {
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    unsafe fn run_collective(&self, call: &CollectiveCall<'_>) -> Result<(), RunError> {
        if self.fails {
            let (step, node) = (call.step, call.name.to_string());
            return Err(RunError::Step {
                rank: 0,
                step,
                node,
                op: call.kind.name().into(),
                detail: "no".into(),
            });
        }
        let mut aborted = self.aborted.lock().expect("no panic");
        while aborted.is_empty() {
            aborted = self.changed.wait(aborted).expect("no panic");
        }
        Err(RunError::Aborted { rank: 0, reason: aborted[0].to_string() })
    }

    fn abort(&self, error: &RunError) {
        self.aborted.lock().expect("no panic").push(error.clone());
        self.changed.notify_all();
    }
}

fn none() -> SymbolBindings {
    SymbolBindings::new()
}

/// Runs the first rank of a plan on seeded inputs, after a change of its memory.
fn run_changed(
    planned: &PlannedProgram,
    plan: &Plan,
    bindings: &SymbolBindings,
    change: impl FnOnce(&mut RankMemory),
) -> Result<(), RunError> {
    let mut rank = RankBuffers::new(planned, bindings, &inputs(&planned.graph, bindings, 1)[0]);
    let mut memory = rank.memory();
    change(&mut memory);
    run_once(plan, &CustomKernelRegistry::new(), ExecConfig::default(), bindings, &memory, &NoCommunicator)
        .map(|_| ())
}

fn message(result: Result<(), RunError>) -> String {
    match result {
        Ok(()) => panic!("it ran"),
        Err(error) => error.to_string(),
    }
}

#[track_caller]
fn assert_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{text:?} does not name {part:?}");
    }
}

const CHAIN: &str = r#"program "chain" ranks 1
symbol n in 1..=8

arg %x: f32[n, 4]
param %w: f32[4, 4]
%a: f32[n, 4] = matmul %x, %w
%b: f32[n, 4] = exp %a
%c: f32[n, 4] = matmul %b, %w
%d: f32[n, 4] = add %c, %a
return %d
"#;

#[test]
fn opaque_ops_are_refused_by_name_before_anything_runs() {
    let planned = planned(
        "program \"p\" ranks 1\narg %x: f32[4]\n%y: f32[4] = exp %x\n%z: f32[4] = opaque \"aten.foo\" %y attributes=\"\"\nreturn %z\n",
    );
    let comm = ScriptedCommunicator::default();
    let mut rank = RankBuffers::new(&planned, &none(), &inputs(&planned.graph, &none(), 1)[0]);
    let memory = rank.memory();
    let result =
        run_once(&planned.plan, &CustomKernelRegistry::new(), ExecConfig::default(), &none(), &memory, &comm);
    assert_contains(&message(result.map(|_| ())), &["%z", "aten.foo", "opaque"]);
    assert_eq!(comm.begun.load(Ordering::Relaxed), 0);
    // The check of the host before a run reports the same error.
    let kernels = CustomKernelRegistry::new();
    let plan = ParsedPlan::parse(Arc::new(planned.plan)).expect("programs");
    let error = expect_kernels(&plan, &kernels).expect_err("no kernel");
    assert!(matches!(&error, RunError::CannotRun { node, rank: None, .. } if node == "z"), "{error:?}");
}

#[test]
fn custom_ops_without_a_kernel_are_refused_by_name() {
    let planned = planned(
        "program \"p\" ranks 1\ncustom \"my::op\" symmetric operands [] results []\narg %x: f32[4]\n%y: f32[4] = custom \"my::op\" %x\nreturn %y\n",
    );
    assert_contains(&message(run_changed(&planned, &planned.plan, &none(), |_| ())), &["%y", "my::op"]);
}

#[test]
fn a_kernel_that_fails_names_its_step() {
    let planned = planned(
        "program \"p\" ranks 1\narg %x: f32[4, 2]\narg %i: i64[1]\n%y: f32[1, 2] = take %x, %i axis=0\nreturn %y\n",
    );
    let comm = ScriptedCommunicator::default();
    let mut arguments = inputs(&planned.graph, &none(), 1).remove(0);
    arguments[1] = Arc::new(Tensor::from_f64(DType::I64, [1], &[9.0]).expect("an index"));
    let mut rank = RankBuffers::new(&planned, &none(), &arguments);
    let memory = rank.memory();
    let result =
        run_once(&planned.plan, &CustomKernelRegistry::new(), ExecConfig::default(), &none(), &memory, &comm);
    let Err(error) = result else { panic!("it ran") };
    assert!(matches!(&error, RunError::Data { rank: 0, step: 0, .. }), "{error:?}");
    assert_contains(&error.to_string(), &["take", "%y", "index 9", "extent 4"]);
    assert_eq!(*comm.aborted.lock().expect("no panic"), [error]);
}

#[test]
fn callers_memory_that_does_not_fit_is_refused() {
    let planned = planned(CHAIN);
    let n = bindings(&planned.graph, &[("n", 3)]);
    let refused = |change: fn(&mut RankMemory)| message(run_changed(&planned, &planned.plan, &n, change));
    assert_contains(&refused(|m| m.inputs[0].len = 47), &["input 0", "%x", "48 bytes", "47"]);
    assert_contains(&refused(|m| m.inputs[1] = ByteSpan::NONE), &["input 1", "%w", "64 bytes", "0 bytes"]);
    assert_contains(
        &refused(|m| m.outputs[0].ptr = m.outputs[0].ptr.wrapping_add(1)),
        &["output 0", "aligned"],
    );
    assert_contains(&refused(|m| m.ordinary.len = 64), &["ordinary arena"]);
    assert_contains(&refused(|m| m.inputs.truncate(1)), &["expected 2 inputs, found 1"]);
    assert!(run_changed(&planned, &planned.plan, &n, |_| ()).is_ok());
}

#[test]
fn symbols_out_of_every_bucket_are_refused() {
    let planned = planned(CHAIN);
    let fits = bindings(&planned.graph, &[("n", 8)]);
    let mut rank = RankBuffers::new(&planned, &fits, &inputs(&planned.graph, &fits, 1)[0]);
    let memory = rank.memory();
    let n = bindings(&planned.graph, &[("n", 9)]);
    let result = run_once(
        &planned.plan,
        &CustomKernelRegistry::new(),
        ExecConfig::default(),
        &n,
        &memory,
        &NoCommunicator,
    );
    assert_contains(&message(result.map(|_| ())), &["no bucket", "n=9"]);
}

#[test]
fn plans_that_leave_their_memory_are_refused() {
    let planned = planned(CHAIN);
    let n = bindings(&planned.graph, &[("n", 8)]);
    let refused = |change: &dyn Fn(&mut Plan)| {
        let mut plan = planned.plan.clone();
        change(&mut plan);
        let error = run_changed(&planned, &plan, &n, |_| ()).expect_err("it ran");
        // Only an unchecked plan can be like this.
        assert!(matches!(error, RunError::Defect(_)), "{error:?}");
        error.to_string()
    };
    let bucket = &planned.plan.buckets[0];
    let in_buffer = bucket.places.iter().find_map(|(name, p)| match p.memory {
        symmc_plan::MemoryRef::Buffer(b) => Some((name.clone(), b)),
        _ => None,
    });
    let (name, buffer) = in_buffer.expect("an intermediate lies in a buffer");
    assert_contains(&refused(&|p| p.buckets[0].buffers[buffer].offset = 1 << 40), &["exceed an arena"]);
    assert_contains(&refused(&|p| p.buckets[0].buffers[buffer].offset = u64::MAX - 8), &["exceed an arena"]);
    assert_contains(&refused(&|p| p.buckets[0].buffers[buffer].size = 100), &["exceed memory of 100 bytes"]);
    let offset = |text: &'static str| {
        let name = name.clone();
        move |p: &mut Plan| p.buckets[0].places[&name].offset = text.into()
    };
    assert_contains(&refused(&offset("64")), &[&name, "exceed memory"]);
    assert_contains(&refused(&offset("0 - 4")), &[&name, "-4"]);
    assert_contains(&refused(&offset("nonsense")), &[&name, "nonsense"]);
    assert_contains(&refused(&offset("9223372036854775807")), &[&name, "exceed memory"]);
    let lost = name.clone();
    assert_contains(&refused(&move |p| drop(p.buckets[0].places.shift_remove(&lost))), &[&name, "no place"]);
    assert_contains(&refused(&|p| p.buckets[0].steps[0].node = "nobody".into()), &["step 0", "nobody"]);
    assert_contains(&refused(&|p| p.buckets[0].steps[0].waits = vec![1]), &["step 0", "later step"]);
    assert_contains(&refused(&|p| p.programs[0] = "program".into()), &["program 0"]);
    assert_contains(&refused(&|p| p.buckets[0].program = 7), &["no program 7"]);
}

const TWO_LANES: &str = r#"program "lanes" ranks 1
group @all world

arg %x: f32[4]
const %i: i64[1] = hex"0900000000000000"
%s: f32[4] = all_reduce %x op=sum group=@all via=plain
%y: f32[1] = take %x, %i axis=0
%z: f32[4] = add %s, %y
return %z
"#;

/// Runs the two lanes on threads; returns the error.
fn run_lanes(comm: &ScriptedCommunicator, change: impl FnOnce(&mut Plan)) -> RunError {
    let mut planned = planned(TWO_LANES);
    change(&mut planned.plan);
    let mut rank = RankBuffers::new(&planned, &none(), &inputs(&planned.graph, &none(), 1)[0]);
    let memory = rank.memory();
    let config = ExecConfig { lanes: Lanes::Threads, ..ExecConfig::default() };
    match run_once(&planned.plan, &CustomKernelRegistry::new(), config, &none(), &memory, comm) {
        Ok(_) => panic!("it ran"),
        Err(error) => error,
    }
}

#[test]
fn failing_kernel_does_not_wait_for_the_communication_lane() {
    let comm = ScriptedCommunicator::default();
    // The kernel that fails must not wait for the collective.
    let error = run_lanes(&comm, |plan| {
        let steps = &plan.buckets[0].steps;
        let y = steps.iter().find(|s| s.node == "y").expect("a step");
        assert!(y.lane == Lane::Compute && y.waits.is_empty(), "{steps:?}");
    });
    assert_contains(&error.to_string(), &["%y", "index 9"]);
}

#[test]
fn a_failing_collective_ends_steps_that_wait_for_it() {
    let comm = ScriptedCommunicator { fails: true, ..ScriptedCommunicator::default() };
    let error = run_lanes(&comm, |_| ());
    let text = error.to_string();
    assert!(text.contains("%s") || text.contains("%y"), "{text}");
    assert!(comm.begun.load(Ordering::Relaxed) <= 2);
}
