//! The real programs, end to end in one process: import, compile, check, run on thread ranks, compare with
//! what the GPUs gave and with the interpreter.

use symmc::{
    CheckedPlan, CompileConfig, DrawConfig, ErrorKind, Execution, MachineProfile, OpenOptions, Program,
    RunConfig, TensorFile, Workload,
};
use symmc_ir::interp::{RoundingHistory, RunCount, Tolerance, compare};
use symmc_tests::{GRAPH_PROGRAMS, RUNNABLE_PROGRAMS, files, program};

fn open(stem: &str, ranks: u32) -> Program {
    let options = OpenOptions::default().with_ranks(ranks);
    Program::open_files(&files(stem, ranks), &options).expect("a valid program")
}

fn tensors(stem: &str) -> TensorFile {
    TensorFile::open(&program(&format!("{stem}.safetensors"))).expect("recorded tensors")
}

/// The rounding history of each output.
fn histories(plan: &CheckedPlan) -> Vec<RoundingHistory> {
    plan.output_histories(plan.buckets[0].program, RunCount::One).expect("histories")
}

/// Every rank's outputs are near the expected ones, by the default tolerances.
#[track_caller]
fn assert_near(
    plan: &CheckedPlan,
    found: &[Vec<symmc::Tensor>],
    expected: &[Vec<Option<std::sync::Arc<symmc::Tensor>>>],
    what: &str,
) {
    for (found, expected) in found.iter().zip(expected) {
        for ((f, e), history) in found.iter().zip(expected).zip(histories(plan)) {
            let e = e.as_ref().expect("recorded");
            let c = compare(f, e, Tolerance::for_history(&history, e));
            assert!(c.agrees(), "{what}: {c}");
        }
    }
}

#[test]
fn recorded_outputs_are_reproduced() {
    for (stem, ranks) in RUNNABLE_PROGRAMS {
        let program = open(stem, ranks);
        let plan = symmc::compile(&program, &CompileConfig::default()).expect("a plan");
        let work = Workload::recorded(&program, &tensors(stem)).expect("a workload");
        let expected = work.expected.clone().expect("recorded outputs");
        for execution in [Execution::Interpreter, Execution::Threads] {
            let config = RunConfig::default().with_repeats(3);
            let results = symmc::run(&plan, &work, &execution, &config).expect("a run");
            assert_near(&plan, &results, &expected, &format!("{stem} on {execution:?}"));
        }
    }
}

#[test]
fn chaos_does_not_change_a_bit() {
    for (stem, ranks) in RUNNABLE_PROGRAMS {
        let program = open(stem, ranks);
        let plan = symmc::compile(&program, &CompileConfig::default()).expect("a plan");
        let work = Workload::recorded(&program, &tensors(stem)).expect("a workload");
        let run = |chaos| {
            let config = RunConfig::default().with_chaos(chaos).with_repeats(2);
            symmc::run(&plan, &work, &Execution::Threads, &config).expect("a run")
        };
        let calm = run(None);
        for seed in 0..4 {
            assert!(run(Some(seed)) == calm, "{stem} under chaos seed {seed}");
        }
    }
}

#[test]
fn any_number_of_tokens_in_range_runs() {
    for (stem, ranks) in [("megatron_tp4_f32", 4), ("megatron_tp4_bf16", 4), ("gpt_tp2", 2)] {
        let program = open(stem, ranks);
        let plan = symmc::compile(&program, &CompileConfig::default()).expect("a plan");
        for tokens in [2, 7, 130] {
            let draw =
                DrawConfig::default().with_seed(5).with_arguments(true).with_symbols([("tokens", tokens)]);
            let work = Workload::gather(&program.graph, &program.weights, Some(&tensors(stem)), &draw)
                .expect("inputs");
            let run = |execution| symmc::run(&plan, &work, &execution, &RunConfig::default()).expect("a run");
            let expected = run(Execution::Interpreter);
            let expected: Vec<_> = expected
                .into_iter()
                .map(|r| r.into_iter().map(|t| Some(std::sync::Arc::new(t))).collect())
                .collect();
            assert_near(&plan, &run(Execution::Threads), &expected, &format!("{stem} with {tokens} tokens"));
        }
    }
}

#[test]
fn every_program_plans_close_to_the_bound_and_deterministically() {
    for (stem, ranks) in RUNNABLE_PROGRAMS.into_iter().chain(GRAPH_PROGRAMS) {
        for machine in ["host", "h200x8"] {
            let profile = MachineProfile::builtin(machine).expect("a built-in machine");
            let config = CompileConfig::default().with_profile(profile);
            let program = open(stem, ranks);
            let plan = symmc::compile(&program, &config).expect("a plan that checks");
            for t in plan.buckets.iter().map(|b| b.totals) {
                let close = |peak: u64, bound: u64| peak as f64 <= bound as f64 * 1.01;
                assert!(close(t.ordinary_peak, t.ordinary_bound), "{stem} on {machine}: {t:?}");
                assert!(close(t.symmetric_peak, t.symmetric_bound), "{stem} on {machine}: {t:?}");
            }
            let repeated = symmc::compile(&program, &config).expect("a plan that checks");
            assert!(plan.to_json() == repeated.to_json(), "{stem} on {machine}: two plans differ");
        }
    }
}

#[test]
fn graph_only_programs_run_on_drawn_weights() {
    for (stem, ranks) in GRAPH_PROGRAMS.into_iter().filter(|(s, _)| !s.starts_with("llama70b")) {
        let program = open(stem, ranks);
        let plan = symmc::compile(&program, &CompileConfig::default()).expect("a plan");
        let work =
            Workload::gather(&program.graph, &program.weights, None, &DrawConfig::default()).expect("inputs");
        let run = |execution| symmc::run(&plan, &work, &execution, &RunConfig::default()).expect("a run");
        let (found, expected) = (run(Execution::Threads), run(Execution::Interpreter));
        for (found, expected) in found.iter().zip(&expected) {
            for ((f, e), history) in found.iter().zip(expected).zip(histories(&plan)) {
                let c = compare(f, e, Tolerance::for_history(&history, e));
                assert!(c.agrees(), "{stem}: {c}");
            }
        }
    }
}

#[test]
fn text_is_a_fixed_point_and_runs() {
    for (stem, ranks) in RUNNABLE_PROGRAMS.into_iter().chain(GRAPH_PROGRAMS) {
        let program = open(stem, ranks);
        let text = symmc_ir::text::print(&program.graph);
        let parsed = symmc_ir::text::parse(&text).expect("text that parses");
        assert!(parsed == program.graph, "{stem}: parse(print(g)) differs");
        assert!(symmc_ir::text::print(&parsed) == text, "{stem}: print(parse(t)) differs");
    }
}

/// A program opened with its tensors, which tell the ranks and the constants that differ between them, gives what was
/// recorded.
#[track_caller]
fn reproduced(stem: &str, options: OpenOptions) {
    let file = std::sync::Arc::new(tensors(stem));
    let options = options.with_tensors(file.clone());
    let program = Program::open(&program(&format!("{stem}.pt2")), &options).expect("a valid program");
    let plan = symmc::compile(&program, &CompileConfig::default()).expect("a plan");
    let work = Workload::gather(&program.graph, &program.weights, Some(&file), &DrawConfig::default())
        .expect("a workload");
    let expected = work.expected.clone().expect("recorded outputs");
    for execution in [Execution::Interpreter, Execution::Threads] {
        let results = symmc::run(&plan, &work, &execution, &RunConfig::default()).expect("a run");
        assert_near(&plan, &results, &expected, &format!("{stem} on {execution:?}"));
    }
}

#[test]
fn tensors_tell_the_ranks_before_ops_need_them() {
    reproduced("shard_dim4", OpenOptions::default());
    // Those beside the program are looked at as well.
    let opened = Program::open(&program("shard_dim4.pt2"), &OpenOptions::default()).expect("a program");
    assert_eq!(opened.graph.ranks, Some(4));
    assert!(opened.notes.iter().any(|n| n.starts_with("4 ranks, as ")), "{:?}", opened.notes);
}

#[test]
fn constants_that_differ_by_rank_come_from_the_tensors() {
    reproduced("expert_gather2", OpenOptions::default());
    // A plan that has rank 0's for all ranks does not run on them.
    let opened = Program::open(&program("expert_gather2.pt2"), &OpenOptions::default()).expect("a program");
    let error = Workload::recorded(&opened, &tensors("expert_gather2")).expect_err("rank 1 differs");
    let message = error.to_string();
    assert!(
        error.kind() == ErrorKind::Input && message.contains("rank1.w.first differs from the constant"),
        "{message}"
    );
}

#[test]
fn unknown_groups_are_errors_rather_than_the_world() {
    let cells = |cells: [[u32; 2]; 2]| cells.iter().map(|c| c.to_vec()).collect::<Vec<_>>();
    let groups = [("3", cells([[0, 1], [2, 3]])), ("1", cells([[0, 2], [1, 3]]))];
    reproduced("mesh_2x2", OpenOptions::default().with_groups(groups));
    for ranks in [None, Some(2), Some(4)] {
        let options = OpenOptions::default().with_ranks(ranks);
        let error = Program::open(&program("mesh_2x2.pt2"), &options).expect_err("unknown groups");
        let names: Vec<String> = error.unknown_groups().into_iter().map(|g| g.name).collect();
        assert_eq!(names, ["3", "1"]);
        let text = error.to_string();
        // Each frontend says how its callers state the members.
        assert!(
            text.contains("group `3` (node `all_reduce`) and group `1`") && !text.contains("--"),
            "{text}"
        );
    }
    let options = OpenOptions::default().with_ranks(1);
    assert!(Program::open(&program("mesh_2x2.pt2"), &options).is_ok());
}
