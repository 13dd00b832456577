//! A program with attention and its gradients: planned for any number of tokens without memory for pairs of them, checked, and
//! run on host ranks as by the interpreter.

use symmc::{CompileConfig, DrawConfig, Execution, OpenOptions, Program, RunConfig, Workload};
use symmc_ir::interp::{RunCount, Tolerance, compare};
use symmc_tests::program;

fn open() -> Program {
    Program::open(&program("attention_gradient.symm"), &OpenOptions::default()).expect("a program")
}

#[test]
fn no_buffer_holds_pairs_of_tokens() {
    let plan = symmc::compile(&open(), &CompileConfig::default()).expect("a plan");
    let largest = plan.buckets.iter().filter(|b| b.symbols.values().any(|range| range[1] == 4096));
    let sizes: Vec<u64> = largest.flat_map(|b| b.buffers.iter().map(|buffer| buffer.size)).collect();
    assert!(!sizes.is_empty() && sizes.iter().all(|&size| size < 4096 * 4096), "{sizes:?}");
}

#[test]
fn host_ranks_compute_what_the_interpreter_does() {
    let program = open();
    let plan = symmc::compile(&program, &CompileConfig::default()).expect("a plan");
    for tokens in [1, 70, 129] {
        let draw = DrawConfig::default().with_symbols([("t", tokens)]);
        let work = Workload::gather(&program.graph, &program.weights, None, &draw).expect("a workload");
        let run = |execution| symmc::run(&plan, &work, &execution, &RunConfig::default()).expect("a run");
        let [found, expected] = [Execution::Threads, Execution::Interpreter].map(run);
        let histories = plan.output_histories(plan.buckets[0].program, RunCount::One).expect("histories");
        for (found, expected) in found.iter().zip(&expected) {
            for (k, (found, expected)) in found.iter().zip(expected).enumerate() {
                let comparison = compare(found, expected, Tolerance::for_history(&histories[k], expected));
                assert!(comparison.agrees(), "{tokens} tokens, output {k}: {comparison}");
            }
        }
    }
}
