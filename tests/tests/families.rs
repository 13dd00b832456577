//! Programs of Hugging Face families, whose modelling code PyTorch exported untouched: each gives what PyTorch gave, and
//! what its attention sees is known.

use std::sync::Arc;

use symmc::{Backend, Config, Draw, Graph, OpenOptions, Program, RunConfig, TensorFile, Workload};
use symmc_ir::interp::{Tolerance, compare};
use symmc_ir::{Op, text};
use symmc_tests::program;

/// What Hugging Face's sliding window of 4 is.
const WINDOW: &str = "below row + (1), from row + (-3)";

/// Programs of `tests/programs/families`, and what each of their attentions sees, in the order of the program: `causal`,
/// `all` or the bounds, and a mask where one is left.
const FAMILIES: [(&str, &[&str]); 23] = [
    ("bert_padded", &["all, mask"; 2]),
    ("cohere2_prefill", &[WINDOW, "causal"]),
    ("falcon_alibi_prefill", &["causal, mask"; 2]),
    ("gemma2_prefill", &[WINDOW, "causal"]),
    ("gemma3_cuda", &[WINDOW, "causal"]),
    ("gemma3_rolled_decode", &["all", "below operand + (1)"]),
    (
        "gemma3_static_prefill",
        &["below row + operand + (1), from row + operand + (-3)", "below row + operand + (1)"],
    ),
    ("glm4_prefill", &["causal"; 2]),
    ("gpt2_eager", &["causal"; 2]),
    ("gpt_neox_prefill", &["causal"; 2]),
    ("llama4_prefill", &["below row + (1), from chunk 4 of row + (0)", "causal"]),
    ("llama_batched", &["causal"; 2]),
    ("llama_padded", &["causal, mask"; 2]),
    ("llama_past", &["below row + (s15 + 1)"; 2]),
    ("llama_static_decode", &["below operand + (1)"; 2]),
    ("mistral_prefill", &[WINDOW; 2]),
    ("modernbert_prefill", &["below row + (5), from row + (-4)", "all"]),
    ("opt_padded", &["causal, mask"; 2]),
    ("phi3_prefill", &["causal"; 2]),
    ("qwen3_tp2", &["causal"; 2]),
    ("stablelm_prefill", &["causal"; 2]),
    ("t5_prefill", &["all, mask", "all, mask", "causal, mask", "all", "causal, mask", "all"]),
    ("whisper_prefill", &["all", "all", "causal", "all", "causal", "all"]),
];

fn open(stem: &str) -> (Program, Arc<TensorFile>) {
    let file = |end: &str| program(&format!("families/{stem}.{end}"));
    let tensors = Arc::new(TensorFile::open(&file("safetensors")).expect("recorded tensors"));
    let options = OpenOptions { tensors: Some(tensors.clone()), ..OpenOptions::default() };
    let program = Program::open(&file("pt2"), &options).unwrap_or_else(|e| panic!("{stem}: {e}"));
    (program, tensors)
}

#[test]
fn families_give_what_pytorch_gave() {
    let mut failures = Vec::new();
    for (stem, _) in FAMILIES {
        let (program, tensors) = open(stem);
        let plan = symmc::compile(&program, &Config::default()).expect("a plan");
        let work = Workload::gather(&program.graph, &program.weights, Some(&tensors), &Draw::default())
            .expect("a workload");
        let expected = work.expected.clone().expect("recorded outputs");
        for backend in [Backend::Interpreter, Backend::Threads] {
            let found = symmc::run(&plan, &work, &backend, &RunConfig::default()).expect("a run");
            for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
                let Some(expected) = expected else { continue };
                let comparison = compare(found, expected, Tolerance::of(expected));
                if !comparison.agrees() {
                    failures.push(format!("{stem} on {backend:?}: {comparison}"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// What each attention of a program sees.
fn seen(graph: &Graph) -> Vec<String> {
    text::print(graph).lines().filter_map(|line| Some(sees(line.split_once(" = attention ")?.1))).collect()
}

fn sees(call: &str) -> String {
    let operands = call.matches('%').count();
    let bounds = call.split_once("bounds=[").and_then(|(_, rest)| rest.split_once(']')).map(|(b, _)| b);
    let known = bounds.map_or(0, |b| b.matches("operand").count());
    let seen = match bounds {
        Some(bounds) => bounds,
        None if call.contains("causal=true") => "causal",
        None => "all",
    };
    if operands - known > 3 { format!("{seen}, mask") } else { seen.into() }
}

#[test]
fn what_attention_sees_is_known() {
    let mut failures = Vec::new();
    for (stem, expected) in FAMILIES {
        let graph = symmc::canonical(&open(stem).0).expect("a program");
        let found = seen(&graph);
        if found != expected {
            failures.push(format!("{stem}: {found:?}"));
        }
        // A bias of every row at every column.
        if stem != "t5_prefill" {
            failures.extend(
                squares(&graph).into_iter().map(|v| format!("{stem}: {v} grows with the square of tokens")),
            );
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The values of which two axes grow with the number of tokens.
fn squares(graph: &Graph) -> Vec<String> {
    let grows = |d: &symmc_ir::Dim| d.symbols().iter().any(|&s| graph.symbols[s].name != "batch");
    let square = |v: &&symmc_ir::Value| v.ty.shape.iter().filter(|d| grows(d)).count() > 1;
    graph.values.values().filter(square).map(|v| v.name.clone()).collect()
}

#[test]
fn no_op_of_a_family_is_opaque() {
    for (stem, _) in FAMILIES {
        let program = open(stem).0;
        let opaque = program.graph.nodes.values().find(|n| matches!(n.op, Op::Opaque { .. }));
        assert!(opaque.is_none(), "{stem}: {opaque:?}");
    }
}
