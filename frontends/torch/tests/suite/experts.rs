//! Exchanges whose sizes depend on data: programs that PyTorch exported give what it gave on every rank, and what
//! is not supported is refused by name.

use std::path::PathBuf;
use std::sync::Arc;

use symmc_ir::interp::run;
use symmc_ir::{DType, InputKind, SymbolBindings, Tensor};
use symmc_torch::{ImportOptions, import};

/// Programs of `tests/programs/experts`, their ranks, and the largest difference from PyTorch relative to the
/// largest element: products of bf16 round, all else is exact but for the order of sums.
const PROGRAMS: [(&str, usize, f64); 8] = [
    ("exchange_sum2", 2, 1e-6),
    ("exchange_sum4", 4, 1e-6),
    ("exchange_bound2", 2, 1e-6),
    ("mixture2", 2, 1e-2),
    ("mixture4", 4, 1e-2),
    ("mixture_loop2", 2, 1e-6),
    ("dispatched2", 2, 1e-6),
    ("dispatched4", 4, 1e-6),
];

struct RecordedTensors(safetensors::SafeTensors<'static>);

impl RecordedTensors {
    fn open(name: &str) -> Self {
        let bytes = std::fs::read(file(name, "safetensors")).unwrap_or_else(|e| panic!("{name}: {e}"));
        RecordedTensors(safetensors::SafeTensors::deserialize(bytes.leak()).expect("recorded tensors"))
    }

    fn tensor(&self, name: &str) -> Option<Tensor> {
        let view = self.0.tensor(name).ok()?;
        let dtype = match view.dtype() {
            safetensors::Dtype::F32 => DType::F32,
            safetensors::Dtype::I64 => DType::I64,
            other => panic!("{name}: unexpected {other:?}"),
        };
        let values: Vec<f64> = match dtype {
            DType::F32 => {
                view.data().chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()).into()).collect()
            }
            _ => view.data().chunks(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as f64).collect(),
        };
        Some(Tensor::from_f64(dtype, view.shape().to_vec(), &values).expect("a tensor"))
    }
}

fn file(name: &str, end: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/programs/experts/{name}.{end}"))
}

/// The definitions of the custom ops that a program has.
fn definitions_for(name: &str) -> Vec<String> {
    let names: &[&str] =
        if name.starts_with("dispatched") { &["dispatch", "combine", "combine_unweighted"] } else { &[] };
    names.iter().map(|n| std::fs::read_to_string(file(n, "symm")).expect("a definition")).collect()
}

#[test]
fn exchanges_by_data_give_what_pytorch_gave() {
    for (name, ranks, tolerance) in PROGRAMS {
        let definitions = definitions_for(name);
        let options = ImportOptions { ranks: Some(ranks as u32), definitions, ..ImportOptions::default() };
        let imported = import(&std::fs::read(file(name, "pt2")).expect("a program"), &options)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let recorded = RecordedTensors::open(name);
        let inputs: Vec<Vec<Arc<Tensor>>> = (0..ranks)
            .map(|rank| {
                let mut arguments = 0..;
                let data_of = |i: &symmc_ir::GraphInput| match i.kind {
                    InputKind::Argument => {
                        let k = arguments.next().unwrap();
                        Arc::new(recorded.tensor(&format!("rank{rank}.in.{k}")).expect("an argument"))
                    }
                    InputKind::Parameter => {
                        Arc::new(recorded.tensor(&format!("rank{rank}.w.{}", i.source)).expect("a parameter"))
                    }
                    InputKind::Constant => i.data.clone().expect("its data"),
                };
                imported.graph.inputs.values().map(data_of).collect()
            })
            .collect();
        let outputs_by_rank =
            run(&imported.graph, &SymbolBindings::new(), &inputs).unwrap_or_else(|e| panic!("{name}: {e}"));
        for (rank, outputs) in outputs_by_rank.iter().enumerate() {
            for (k, actual) in outputs.iter().enumerate() {
                let expected = recorded.tensor(&format!("rank{rank}.out.{k}")).expect("an output");
                assert_eq!(actual.shape(), expected.shape(), "{name}: output {k}");
                let largest = expected.to_f64().iter().fold(0.0f64, |m, x| m.max(x.abs()));
                for (i, (a, b)) in actual.to_f64().iter().zip(expected.to_f64()).enumerate() {
                    let distance = (a - b).abs();
                    assert!(
                        distance <= tolerance * largest,
                        "{name}: rank {rank}, output {k} at {i}: {a}, {b}"
                    );
                }
            }
        }
    }
}
