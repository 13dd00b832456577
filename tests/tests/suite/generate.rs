//! The decoder of `examples/generate`: its prefill and decode programs, run in turn on what the one left in the cache of the
//! other, write the text that PyTorch's `generate` wrote.

use std::sync::Arc;

use symmc::unstable::plan::MemoryRef;
use symmc::{
    CheckedPlan, CompileConfig, DrawConfig, Execution, OpenOptions, Program, RunConfig, TensorFile, Workload,
};
use symmc_ir::{DType, InputKind, OutputKind, Tensor, text};
use symmc_tests::root;

const RANKS: usize = 2;

fn file(name: &str) -> std::path::PathBuf {
    root().join("examples/generate").join(name)
}

fn words(name: &str) -> Vec<u8> {
    std::fs::read(file(name)).expect("a text")
}

/// One of the two programs with what its ranks run on.
struct PlannedPart {
    program: Program,
    plan: CheckedPlan,
    weights: Arc<TensorFile>,
}

impl PlannedPart {
    fn open(name: &str) -> PlannedPart {
        let weights = Arc::new(TensorFile::open(&file("model.safetensors")).expect("weights"));
        let options = OpenOptions::default().with_tensors(weights.clone());
        let program = Program::open(&file(name), &options).expect("a program");
        let plan = symmc::compile(&program, &CompileConfig::default()).expect("a plan");
        PlannedPart { program, plan, weights }
    }

    /// The position of the argument of this name among the inputs.
    fn input(&self, source: &str) -> usize {
        let position = self.program.graph.inputs.values().position(|i| i.source == source);
        position.unwrap_or_else(|| panic!("no input {source}"))
    }

    /// Names, dtypes and extents of weights and caches, in their order.
    fn memory(&self, kind: InputKind, named: &str) -> Vec<(String, String)> {
        let graph = &self.program.graph;
        let inputs = graph.inputs.values().filter(|i| i.kind == kind && i.source.starts_with(named));
        inputs.map(|i| (i.source.clone(), format!("{:?}", graph.ty(i.value)))).collect()
    }

    /// Runs tokens that stand in the cache from a position on; the next token of each rank. Caches have their new content.
    fn next(&self, execution: &Execution, tokens: &[u8], position: usize, caches: &mut Caches) -> Vec<u8> {
        let symbol = self.program.graph.symbols.values().map(|s| (&s.name, tokens.len() as i64));
        let draw = DrawConfig::default().with_arguments(true).with_symbols(symbol);
        let mut work =
            Workload::gather(&self.program.graph, &self.program.weights, Some(&self.weights), &draw)
                .expect("a workload");
        let ids: Vec<i64> = tokens.iter().map(|&t| t.into()).collect();
        let integers = |shape: &[usize], x: &[i64]| Tensor::from_i64(DType::I64, shape, x).expect("it fits");
        for (rank, inputs) in work.inputs.iter_mut().enumerate() {
            inputs[self.input("input_ids")] = Arc::new(integers(&[1, tokens.len()], &ids));
            inputs[self.input("cache_position")] = Arc::new(integers(&[1], &[position as i64]));
            for (i, cache) in caches[rank].iter().enumerate() {
                inputs[self.input(&format!("cache_{i}"))] = cache.clone();
            }
        }
        let outputs = symmc::run(&self.plan, &work, execution, &RunConfig::default()).expect("a run");
        let mut next = Vec::new();
        for (rank, outputs) in outputs.into_iter().enumerate() {
            for (output, value) in self.program.graph.outputs.iter().zip(outputs) {
                match output.kind {
                    OutputKind::Length { .. } => {}
                    OutputKind::Returned => next.push(u8::try_from(value.get_i64(0)).expect("a byte")),
                    OutputKind::Mutates(input) => {
                        let source = &self.program.graph.inputs[input].source;
                        let index = source.strip_prefix("cache_").and_then(|i| i.parse::<usize>().ok());
                        caches[rank][index.expect("a cache")] = Arc::new(value);
                    }
                }
            }
        }
        next
    }
}

/// The caches of each rank, whose elements that no token has written are not numbers.
type Caches = Vec<Vec<Arc<Tensor>>>;

fn unwritten(part: &PlannedPart) -> Caches {
    let graph = &part.program.graph;
    let shape = |o: &symmc_ir::GraphOutput| match o.kind {
        OutputKind::Mutates(input) => {
            graph.ty(graph.inputs[input].value).concrete_shape(&symmc::SymbolBindings::new())
        }
        OutputKind::Returned | OutputKind::Length { .. } => None,
    };
    let shapes: Vec<Vec<usize>> = graph.outputs.iter().filter_map(shape).collect();
    let empty = |shape: &Vec<usize>| {
        let nothing = vec![f64::NAN; shape.iter().product()];
        Arc::new(Tensor::from_f64(DType::F32, shape.clone(), &nothing).expect("it fits"))
    };
    (0..RANKS).map(|_| shapes.iter().map(empty).collect()).collect()
}

/// The text that so many tokens of a backend are, the same on all ranks.
fn generate_text(execution: &Execution, tokens: usize) -> String {
    let (prefill, decode) = (PlannedPart::open("prefill.pt2"), PlannedPart::open("decode.pt2"));
    let prompt = words("prompt.txt");
    let mut caches = unwritten(&prefill);
    let mut next = prefill.next(execution, &prompt, 0, &mut caches);
    let mut text = String::new();
    for position in prompt.len()..prompt.len() + tokens {
        assert!(next.len() == RANKS && next.iter().all(|t| *t == next[0]), "ranks differ: {next:?}");
        text.push(next[0].into());
        next = decode.next(execution, &next[..1], position, &mut caches);
    }
    text
}

#[test]
fn a_prompt_and_its_tokens_are_those_of_pytorch() {
    let expected = String::from_utf8(words("generated.txt")).expect("text");
    assert_eq!(expected.len(), 64);
    assert_eq!(generate_text(&Execution::Threads, expected.len()), expected);
    assert_eq!(generate_text(&Execution::Interpreter, 2), expected[..2]);
}

#[test]
fn both_programs_take_one_memory() {
    let (prefill, decode) = (PlannedPart::open("prefill.pt2"), PlannedPart::open("decode.pt2"));
    for (kind, named, count) in [(InputKind::Parameter, "", 21), (InputKind::Argument, "cache_", 5)] {
        let (a, b) = (prefill.memory(kind, named), decode.memory(kind, named));
        assert_eq!(a, b);
        assert_eq!(a.len(), count, "{a:?}");
    }
}

#[test]
fn caches_are_updated_where_they_lie() {
    for name in ["prefill.pt2", "decode.pt2"] {
        let planned = PlannedPart::open(name);
        let graph = &planned.program.graph;
        let mutated_source = |output: &symmc_ir::GraphOutput| match output.kind {
            OutputKind::Mutates(input) => Some(graph.inputs[input].source.clone()),
            OutputKind::Returned | OutputKind::Length { .. } => None,
        };
        let changed: Vec<_> = graph.outputs.iter().map(mutated_source).collect();
        let caches = (0..4).map(|i| Some(format!("cache_{i}")));
        assert_eq!(changed, std::iter::once(None).chain(caches).collect::<Vec<_>>(), "{name}");
        for bucket in &planned.plan.buckets {
            for (k, source) in changed.iter().enumerate().filter_map(|(k, s)| Some((k, s.as_ref()?))) {
                let placement = &bucket.places[source];
                assert_eq!(placement.memory, MemoryRef::Output(k), "{name}: {source}: {}", placement.why);
            }
            assert!(bucket.copies.is_empty(), "{name}: {:?}", bucket.copies);
        }
    }
}

#[test]
fn attention_sees_the_filled_part_of_the_cache() {
    for name in ["prefill.pt2", "decode.pt2"] {
        let graph = symmc::canonicalize_program(&PlannedPart::open(name).program).expect("a program");
        let printed = text::print(&graph);
        // The last layer of a prefill computes the last query alone.
        let bounds = match name {
            "decode.pt2" => ["operand + (1)"; 2],
            _ => ["row + operand + (1)", "row + operand + (tokens)"],
        };
        let of_layers: Vec<&str> =
            printed.split("bounds=[below ").skip(1).filter_map(|t| t.split(']').next()).collect();
        assert_eq!(of_layers, bounds, "{name}:\n{printed}");
    }
}
