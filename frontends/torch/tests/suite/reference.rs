//! Programs run by the reference interpreter give the results that PyTorch gave on GPUs.

use std::path::PathBuf;
use std::sync::Arc;

use safetensors::{Dtype, SafeTensors};
use symmc_ir::interp::{infer_bindings, run};
use symmc_ir::{DType, InputKind, Tensor};
use symmc_torch::{ImportOptions, import};

fn programs(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs").join(file)
}

fn tensor(all: &SafeTensors<'_>, name: &str) -> Arc<Tensor> {
    let view = all.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
    let dtype = match view.dtype() {
        Dtype::F32 => DType::F32,
        Dtype::BF16 => DType::BF16,
        Dtype::I64 => DType::I64,
        other => panic!("{name}: {other:?}"),
    };
    Arc::new(Tensor::new(dtype, view.shape(), view.data().to_vec()).unwrap())
}

/// The largest absolute difference of a program's results from the reference of `tensors` over all ranks,
/// and the largest reference.
fn differences(name: &str, tensors: &str, ranks: u32) -> (f64, f64) {
    let options = ImportOptions { name: name.into(), ranks: Some(ranks), ..ImportOptions::default() };
    let bytes = std::fs::read(programs(&format!("{name}.pt2"))).unwrap();
    let graph = import(&bytes, &options).unwrap().graph;
    let bytes = std::fs::read(programs(&format!("{tensors}.safetensors"))).unwrap();
    let recorded = SafeTensors::deserialize(&bytes).unwrap();
    let inputs: Vec<Vec<Arc<Tensor>>> = (0..ranks)
        .map(|rank| {
            let mut arguments = 0..;
            graph
                .inputs
                .values()
                .map(|input| match input.kind {
                    InputKind::Constant => input.data.clone().unwrap(),
                    InputKind::Parameter => tensor(&recorded, &format!("rank{rank}.w.{}", input.source)),
                    InputKind::Argument => {
                        tensor(&recorded, &format!("rank{rank}.in.{}", arguments.next().unwrap()))
                    }
                })
                .collect()
        })
        .collect();
    let first: Vec<&Tensor> = inputs[0].iter().map(|t| &**t).collect();
    let outputs = run(&graph, &infer_bindings(&graph, &first).unwrap(), &inputs).unwrap();
    let (mut worst, mut largest) = (0.0f64, 0.0f64);
    for (rank, outputs) in outputs.iter().enumerate() {
        for (i, output) in outputs.iter().enumerate() {
            let expected = tensor(&recorded, &format!("rank{rank}.out.{i}"));
            assert_eq!((output.dtype(), output.shape()), (expected.dtype(), expected.shape()));
            for (a, b) in output.to_f64().into_iter().zip(expected.to_f64()) {
                assert!(a.is_finite());
                worst = worst.max((a - b).abs());
                largest = largest.max(b.abs());
            }
        }
    }
    (worst, largest)
}

#[test]
fn f32_programs_agree_with_pytorch() {
    // The decomposed program has the weights and results of the original.
    for (name, tensors, ranks) in [
        ("megatron_tp4_f32", "megatron_tp4_f32", 4),
        ("hf_llama_tp2", "hf_llama_tp2", 2),
        ("hf_llama_tp2_core", "hf_llama_tp2", 2),
        ("moe_ep4", "moe_ep4", 4),
    ] {
        let (worst, _) = differences(name, tensors, ranks);
        assert!(worst <= 1e-4, "{name}: {worst}");
    }
}

#[test]
fn the_bf16_program_agrees_with_pytorch() {
    let (worst, largest) = differences("megatron_tp4_bf16", "megatron_tp4_bf16", 4);
    assert!(worst <= 2e-2 * largest, "{worst} of {largest}");
}
