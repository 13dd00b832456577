//! Programs of Hugging Face families, whose modelling code PyTorch exported untouched: each gives what PyTorch gave, and
//! what its attention sees is known. Models whose experts are divided among ranks have a program for each rank.

use std::sync::Arc;

use symmc::{
    BucketSpec, CompileConfig, DrawConfig, Execution, Graph, OpenOptions, Program, RunConfig, TensorFile,
    Workload,
};
use symmc_ir::interp::{RunCount, Tolerance, compare};
use symmc_ir::{CollectiveKind, CollectiveReduceOp, Op, text};
use symmc_tests::program;

/// Programs of `tests/programs/families`; how many rotary embeddings of queries or keys each has; and what each attention
/// sees, in the order of the program: `causal`, `all` or the bounds, `mask` where a tensor says more: which positions
/// are padding, or a bias, and `sink` where there is a score more for each head.
const FAMILY_PROGRAMS: [(&str, usize, &[&str]); 31] = [
    ("bert_padded", 0, &["all, mask"; 2]),
    ("bloom_padded", 0, &["causal, mask"; 2]),
    ("cohere2_prefill", 2, &[WINDOW_MASK, "causal"]),
    ("falcon_alibi_prefill", 0, &["causal, mask"; 2]),
    ("gemma2_prefill", 4, &[WINDOW_MASK, "causal"]),
    ("gemma3_cuda", 4, &[WINDOW_MASK, "causal"]),
    ("gemma3_rolled_decode", 4, &["all", "below operand + (1)"]),
    (
        "gemma3_static_prefill",
        4,
        &["below row + operand + (1), from row + operand + (-3)", "below row + operand + (1)"],
    ),
    ("glm4_prefill", 4, &["causal"; 2]),
    ("gpt2_eager", 0, &["causal"; 2]),
    ("gpt_neox_prefill", 4, &["causal"; 2]),
    ("gpt_oss_prefill", 4, &["below row + (1), from row + (-3), sink", "causal, sink"]),
    ("llama4_prefill", 2, &["below row + (1), from chunk 4 of row + (0)", "causal"]),
    ("llama4_padded", 2, &["below operand + (0), below row + (1), from operand + (0), mask", "causal, mask"]),
    ("llama_batched", 4, &["causal"; 2]),
    ("llama_padded", 4, &["causal, mask"; 2]),
    ("llama_past", 4, &["below row + (s15 + 1)"; 2]),
    ("llama_positions", 4, &["below row + (1), from operand + (0)"; 2]),
    ("llama_static_decode", 4, &["below operand + (1)"; 2]),
    ("mistral_prefill", 4, &[WINDOW_MASK; 2]),
    ("mixtral_prefill", 4, &["causal"; 2]),
    ("mistral_eager_padded", 4, &["below row + (1), from row + (-3), mask"; 2]),
    ("modernbert_prefill", 4, &["below row + (5), from row + (-4)", "all"]),
    ("opt_padded", 0, &["causal, mask"; 2]),
    ("phi3_prefill", 4, &["causal"; 2]),
    ("qwen3_moe_tp2", 4, &["causal"; 2]),
    ("qwen3_tp2", 4, &["causal"; 2]),
    ("stablelm_prefill", 4, &["causal"; 2]),
    ("t5_prefill", 0, &["all, mask", "all, mask", "causal, mask", "all", "causal, mask", "all"]),
    ("xglm_padded", 0, &["causal, mask"; 2]),
    ("whisper_prefill", 0, &["all", "all", "causal", "all", "causal", "all"]),
];

/// Programs with a number for each pair of positions: the relative positions of T5 have a bias each.
const SQUARE_BIAS_PROGRAMS: [&str; 1] = ["t5_prefill"];

/// A sliding window of four positions, the row's own among them.
const WINDOW_MASK: &str = "below row + (1), from row + (-3)";

/// Programs with a file for each rank, whose experts transformers divided among the ranks. How many ranks, and how many
/// sums over them.
const EXPERT_PARALLEL: [(&str, usize, usize); 3] =
    [("gpt_oss_ep2", 2, 2), ("mixtral_ep4_batched", 4, 2), ("qwen3_moe_ep2", 2, 2)];

fn open(stem: &str) -> (Program, Arc<TensorFile>) {
    let file = |end: &str| program(&format!("families/{stem}.{end}"));
    let tensors = Arc::new(TensorFile::open(&file("safetensors")).expect("recorded tensors"));
    let options = OpenOptions::default().with_tensors(tensors.clone());
    let paths = match EXPERT_PARALLEL.iter().find(|e| e.0 == stem) {
        Some((_, ranks, _)) => (0..*ranks).map(|r| file(&format!("rank{r}.pt2"))).collect(),
        None => vec![file("pt2")],
    };
    let program = Program::open_files(&paths, &options).unwrap_or_else(|e| panic!("{stem}: {e}"));
    (program, tensors)
}

/// All programs, by name.
fn stems() -> impl Iterator<Item = &'static str> {
    FAMILY_PROGRAMS.into_iter().map(|f| f.0).chain(EXPERT_PARALLEL.into_iter().map(|e| e.0))
}

#[test]
fn families_give_what_pytorch_gave() {
    let mut failures = Vec::new();
    for stem in stems() {
        let (program, tensors) = open(stem);
        let plan = symmc::compile(&program, &CompileConfig::default()).expect("a plan");
        let work = Workload::gather(&program.graph, &program.weights, Some(&tensors), &DrawConfig::default())
            .expect("a workload");
        let expected = work.expected.clone().expect("recorded outputs");
        let histories = plan.output_histories(plan.buckets[0].program, RunCount::One).expect("histories");
        for execution in [Execution::Interpreter, Execution::Threads] {
            let results = symmc::run(&plan, &work, &execution, &RunConfig::default()).expect("a run");
            let outputs = results.iter().zip(expected.iter()).flat_map(|(f, e)| f.iter().zip(e).enumerate());
            for (k, (actual, expected)) in outputs {
                let Some(expected) = expected else { continue };
                let comparison = compare(actual, expected, Tolerance::for_history(&histories[k], expected));
                if !comparison.agrees() {
                    failures.push(format!("{stem} on {execution:?}: {comparison}"));
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
    let bounds = call.split_once("bounds=[").and_then(|(_, rest)| rest.split_once(']')).map(|(b, _)| b);
    let sees = match bounds {
        Some(bounds) => bounds,
        None if call.contains("causal=true") => "causal",
        None => "all",
    };
    // Queries, keys, values, the mask, the positions or lengths of bounds, and the sink.
    let sink = call.contains("sink=true");
    let positions = bounds.map_or(0, |b| b.matches("operand").count());
    let masked = call.matches('%').count() > 3 + positions + usize::from(sink);
    format!("{sees}{}{}", if masked { ", mask" } else { "" }, if sink { ", sink" } else { "" })
}

#[test]
fn attention_bounds_and_rotary_embeddings_are_recognised() {
    let mut failures = Vec::new();
    for (stem, rotary, expected) in FAMILY_PROGRAMS {
        let graph = symmc::canonicalize_program(&open(stem).0).expect("a program");
        let actual = seen(&graph);
        if actual != expected {
            failures.push(format!("{stem}: {actual:?}"));
        }
        let embeddings = graph.nodes.values().filter(|n| matches!(n.op, Op::RotaryEmbedding { .. })).count();
        if embeddings != rotary {
            failures.push(format!("{stem}: {embeddings} rotary embeddings"));
        }
        let squares = squares(&graph);
        if !squares.is_empty() && !SQUARE_BIAS_PROGRAMS.contains(&stem) {
            failures.push(format!("{stem}: {squares:?} grow with the square of tokens"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// At the largest sizes that a program takes, 4094 tokens in most and one sequence, each buffer of a plan has fewer bytes
/// than pairs of tokens.
#[test]
fn no_plan_buffer_grows_with_the_square_of_tokens() {
    let (mut failures, mut large) = (Vec::new(), 0);
    for (stem, _, _) in FAMILY_PROGRAMS.into_iter().filter(|f| !SQUARE_BIAS_PROGRAMS.contains(&f.0)) {
        let program = open(stem).0;
        let batch = program.graph.symbols.values().find(|s| s.name == "batch");
        let buckets = batch.map(|s| BucketSpec::new(s.name.clone(), [1, s.max]));
        let config = CompileConfig::default().with_buckets(buckets);
        let plan = symmc::compile(&program, &config).expect("a plan");
        let tokens = |ranges: &mut dyn Iterator<Item = (&String, &[i64; 2])>| ranges.map(|r| r.1[1]).max();
        let single = plan.buckets.iter().filter(|b| b.symbols.get("batch").is_none_or(|range| range[1] == 1));
        for bucket in single {
            let tokens = tokens(&mut bucket.symbols.iter()).unwrap_or(0).unsigned_abs();
            if tokens < 1024 {
                continue;
            }
            large += 1;
            let largest = bucket.buffers.iter().map(|b| b.size).max().unwrap_or(0);
            if largest >= tokens * tokens {
                failures.push(format!("{stem}: a buffer of {largest} bytes for {tokens} tokens"));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(large >= 17, "{large} programs take many tokens");
}

/// The values of which two axes grow with the number of tokens.
fn squares(graph: &Graph) -> Vec<String> {
    let grows = |d: &symmc_ir::Dim| d.symbols().iter().any(|&s| graph.symbols[s].name != "batch");
    let square = |v: &symmc_ir::Value| v.ty.shape.iter().filter(|d| grows(d)).count() > 1;
    let results = graph.nodes.values().flat_map(|n| &n.outputs).map(|&v| &graph.values[v]);
    results.filter(|v| square(v)).map(|v| v.name.clone()).collect()
}

/// Each rank computes its part of the experts, and the sum over ranks is the only communication.
#[test]
fn experts_are_divided_among_the_ranks() {
    for (stem, ranks, sums) in EXPERT_PARALLEL {
        let graph = open(stem).0.graph;
        assert_eq!(graph.ranks, Some(ranks as u32), "{stem}");
        let collectives = graph.nodes.values().filter_map(|n| match &n.op {
            Op::Collective(c) => Some(&c.kind),
            _ => None,
        });
        let kinds: Vec<_> = collectives.collect();
        assert_eq!(kinds, vec![&CollectiveKind::AllReduce(CollectiveReduceOp::Sum); sums], "{stem}");
        let experts = graph.inputs.values().filter(|i| i.source.ends_with("experts.down_proj"));
        for input in experts {
            let extent = graph.values[input.value].ty.shape.first().and_then(|d| d.as_const());
            assert_eq!(extent, Some(8 / ranks as i64), "{stem}: `{}`", input.source);
        }
    }
}

#[test]
fn no_op_of_a_family_is_opaque() {
    for stem in stems() {
        let program = open(stem).0;
        let opaque = program.graph.nodes.values().find(|n| matches!(n.op, Op::Opaque { .. }));
        assert!(opaque.is_none(), "{stem}: {opaque:?}");
    }
}
