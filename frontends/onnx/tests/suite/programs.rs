//! The real program, with one file per rank. It imports completely, and the interpreter gives the results of
//! the GPUs.

use std::path::PathBuf;
use std::sync::Arc;

use safetensors::{Dtype, SafeTensors};
use symmc_ir::interp::{infer_bindings, run};
use symmc_ir::{CollectiveKind, DType, InputKind, Op, Tensor};
use symmc_onnx::{ImportOptions, import_files};

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs").join(name)
}

fn files() -> Vec<PathBuf> {
    vec![path("gpt_tp2_rank0.onnx"), path("gpt_tp2_rank1.onnx")]
}

#[test]
fn the_program_imports() {
    let imported = import_files(&files(), &ImportOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    let graph = &imported.graph;
    assert_eq!(graph.ranks, Some(2));
    let count = |f: fn(&Op) -> bool| graph.nodes.values().filter(|n| f(&n.op)).count();
    let kind = |op: &Op| op.as_collective().map(|c| c.kind.clone());
    assert_eq!(graph.nodes.values().filter_map(|n| kind(&n.op)).count(), 5);
    assert_eq!(count(|op| matches!(op, Op::Collective(c) if c.kind == CollectiveKind::AllGather)), 1);
    assert_eq!(count(|op| matches!(op, Op::Opaque { .. })), 0, "{:?}", imported.notes);
    assert_eq!(imported.notes, Vec::<String>::new());
    let symbols: Vec<_> =
        graph.symbols.values().map(|s| (s.name.as_str(), s.min, s.max, s.alias.as_deref())).collect();
    assert_eq!(symbols, [("tokens", 2, 1024, Some("s23"))]);
    assert_eq!(imported.weights.iter().map(indexmap::IndexMap::len).collect::<Vec<_>>(), [16, 16]);
    assert_ne!(imported.weights[0]["l.0.qkv.weight"], imported.weights[1]["l.0.qkv.weight"]);
    assert_eq!(imported.weights[0]["e.weight"], imported.weights[1]["e.weight"]);
    let text = symmc_ir::text::print(graph);
    assert!(symmc_ir::text::parse(&text).as_ref() == Ok(graph));
}

fn tensor(all: &SafeTensors<'_>, name: &str) -> Arc<Tensor> {
    let view = all.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
    let dtype = if view.dtype() == Dtype::F32 { DType::F32 } else { DType::I64 };
    Arc::new(Tensor::new(dtype, view.shape(), view.data().to_vec()).expect("as long as its shape"))
}

#[test]
fn the_program_gives_what_the_gpus_gave() {
    let imported = import_files(&files(), &ImportOptions::default()).expect("the program");
    let bytes = std::fs::read(path("gpt_tp2.safetensors")).expect("recorded tensors");
    let recorded = SafeTensors::deserialize(&bytes).expect("safetensors");
    let of_rank = |rank: usize| {
        let of_input = |input: &symmc_ir::GraphInput| match input.kind {
            InputKind::Constant => input.data.clone().expect("a constant has data"),
            InputKind::Parameter => imported.weights[rank][&input.source].clone(),
            InputKind::Argument => tensor(&recorded, &format!("rank{rank}.in.0")),
        };
        imported.graph.inputs.values().map(of_input).collect::<Vec<_>>()
    };
    let inputs = [of_rank(0), of_rank(1)];
    let first: Vec<&Tensor> = inputs[0].iter().map(|t| &**t).collect();
    let bindings = infer_bindings(&imported.graph, &first).expect("bindings");
    let outputs = run(&imported.graph, &bindings, &inputs).expect("a run");
    for (rank, outputs) in outputs.iter().enumerate() {
        let expected = tensor(&recorded, &format!("rank{rank}.out.0"));
        assert_eq!((outputs[0].dtype(), outputs[0].shape()), (expected.dtype(), expected.shape()));
        let pairs = outputs[0].to_f64().into_iter().zip(expected.to_f64());
        let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(worst <= 1e-4, "rank {rank}: {worst}");
    }
}
