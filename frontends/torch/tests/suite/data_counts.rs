//! Results whose number of rows is data: programs give what PyTorch gives, with its extents.

use std::sync::Arc;

use symmc_ir::interp::run;
use symmc_ir::{DType, SymbolBindings, Tensor};
use symmc_torch::{ImportOptions, import};

use crate::common::Fake;

/// A tensor such as `f32[2]: 1.0 NaN`.
fn tensor(text: &str) -> (String, Arc<Tensor>) {
    let (ty, elements) = text.split_once(':').expect("a type and elements");
    let elements: Vec<f64> = elements.split_whitespace().map(|x| x.parse().expect("a number")).collect();
    let (dtype, shape) = ty.trim_end_matches(']').split_once('[').expect("a shape");
    let shape: Vec<usize> =
        shape.split(',').filter(|d| !d.is_empty()).map(|d| d.parse().expect("an extent")).collect();
    let dtype = DType::from_name(dtype).expect("a dtype");
    (ty.to_string(), Arc::new(Tensor::from_f64(dtype, shape, &elements).expect("as many elements")))
}

/// The program of nodes such as `y f32[u0] = aten.neg.default self=%x`, which returns the results of the last one.
fn program(inputs: &[(&str, String)], nodes: &str, limit: Option<i64>) -> Fake {
    let mut fake = Fake::new();
    for (name, ty) in inputs {
        fake = fake.input(name, ty);
    }
    let mut outputs = Vec::new();
    for node in nodes.split(" ; ") {
        let (results, call) = node.split_once(" = ").expect("a node");
        let (target, arguments) = call.split_once(' ').expect("arguments");
        let results: Vec<(&str, &str)> =
            results.split(", ").map(|result| result.split_once(' ').expect("a type")).collect();
        fake = fake.node(target, arguments, &results);
        outputs = results.into_iter().map(|(name, _)| name).collect();
    }
    for symbol in ["u0", "u1"] {
        fake = fake.range(symbol, Some(0), limit);
    }
    outputs.into_iter().fold(fake, |fake, name| fake.output(name))
}

/// The outputs of a program, with the extents of its data.
fn outputs(fake: &Fake, inputs: Vec<Arc<Tensor>>) -> Result<Vec<Tensor>, String> {
    let options = ImportOptions { ranks: Some(1), ..ImportOptions::default() };
    let graph = import(&fake.bytes(), &options).map_err(|e| e.to_string())?.graph;
    let mut outputs = run(&graph, &SymbolBindings::new(), &[inputs]).map_err(|e| e.to_string())?;
    let outputs = graph.cut_outputs(outputs.remove(0));
    let returned = graph.outputs.iter().filter(|o| o.kind == symmc_ir::OutputKind::Returned).count();
    Ok(outputs.into_iter().take(returned).collect())
}

#[test]
fn results_have_the_rows_of_pytorch() {
    let mut compared = 0;
    for line in include_str!("data_counts.txt").lines().filter(|line| !line.starts_with('#')) {
        let &[inputs, nodes, expected] = line.split(" | ").collect::<Vec<_>>().as_slice() else {
            panic!("expected three parts, found {line}");
        };
        let inputs: Vec<(&str, (String, Arc<Tensor>))> = inputs
            .split("; ")
            .map(|input| input.split_once('=').expect("a name"))
            .map(|(name, text)| (name, tensor(text)))
            .collect();
        let types: Vec<(&str, String)> = inputs.iter().map(|(name, (ty, _))| (*name, ty.clone())).collect();
        // Counts of repetition have no other bound.
        let limit = nodes.contains("repeat_interleave").then_some(9);
        let tensors = inputs.into_iter().map(|(_, (_, tensor))| tensor).collect();
        let found =
            outputs(&program(&types, nodes, limit), tensors).unwrap_or_else(|e| panic!("{line}: {e}"));
        let expected: Vec<Arc<Tensor>> = expected.split("; ").map(|text| tensor(text).1).collect();
        assert_eq!(found.len(), expected.len(), "{line}");
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!((found.dtype(), found.shape()), (expected.dtype(), expected.shape()), "{line}");
            let is_near = |(a, b): (&f64, &f64)| a == b || (a - b).abs() < 1e-5 || a.is_nan() && b.is_nan();
            let (a, b) = (found.to_f64(), expected.to_f64());
            assert!(a.iter().zip(&b).all(is_near), "{line}: {a:?}");
        }
        compared += 1;
    }
    assert!(compared > 400, "{compared}");
}

fn i64s(elements: &[i64]) -> Arc<Tensor> {
    Arc::new(Tensor::from_i64(DType::I64, vec![elements.len()], elements).expect("as many elements"))
}

#[test]
fn counts_beyond_declared_ranges_are_errors() {
    let positions = "y i64[u0,1] = aten.nonzero.default self=%x";
    let fake = program(&[("x", "i64[4]".into())], positions, Some(2));
    assert_eq!(outputs(&fake, vec![i64s(&[0, 1, 0, 1])]).expect("a run")[0].to_i64(), [1, 3]);
    outputs(&fake, vec![i64s(&[1, 1, 0, 1])]).expect_err("more than two");
    let fixed = program(&[("x", "i64[4]".into())], "y i64[2,1] = aten.nonzero.default self=%x", None);
    assert_eq!(outputs(&fixed, vec![i64s(&[0, 1, 0, 1])]).expect("a run")[0].to_i64(), [1, 3]);
    for x in [[0, 0, 0, 1], [1, 1, 0, 1]] {
        outputs(&fixed, vec![i64s(&x)]).expect_err("another number");
    }
    let repeated = "y i64[u0] = aten.repeat_interleave.Tensor repeats=%n";
    let fake = program(&[("n", "i64[2]".into())], repeated, Some(4));
    assert_eq!(outputs(&fake, vec![i64s(&[1, 3])]).expect("a run")[0].to_i64(), [0, 1, 1, 1]);
    outputs(&fake, vec![i64s(&[2, 3])]).expect_err("more than four");
    outputs(&fake, vec![i64s(&[-1, 3])]).expect_err("a negative count");
    let error = program(&[("n", "i64[2]".into())], repeated, None).error();
    assert!(error.contains("`u0` depends on data and has no upper bound"), "{error}");
}

#[test]
fn values_for_other_masks_are_errors() {
    let nodes = "r i64[u0] = aten.index.Tensor self=%x indices=[%m] ; \
                 y i64[3] = aten.index_put.default self=%x indices=[%k] values=%r";
    let types = [("x", "i64[3]".to_string()), ("m", "bool[3]".into()), ("k", "bool[3]".into())];
    let mask =
        |bits: [u8; 3]| Arc::new(Tensor::new(DType::Bool, vec![3], bits.to_vec()).expect("three bools"));
    let run_with = |m, k| outputs(&program(&types, nodes, None), vec![i64s(&[7, 8, 9]), mask(m), mask(k)]);
    assert_eq!(run_with([1, 0, 1], [0, 1, 1]).expect("a run")[0].to_i64(), [7, 7, 9]);
    run_with([1, 0, 1], [0, 1, 0]).expect_err("fewer positions");
}

#[test]
fn statistics_of_rows_that_are_data_are_refused() {
    for (node, reason) in [
        ("y f32[2] = aten.quantile.scalar self=%r q=0.5 dim=0", "it mixes or moves rows"),
        ("y f32[2] = aten.select.int self=%r dim=0 index=-1", "it mixes or moves rows"),
        ("y f32[u0,u0] = aten.mm.default self=%r mat2=%t", "it mixes or moves rows"),
    ] {
        let nodes = format!(
            "r f32[u0,2] = aten.index.Tensor self=%x indices=[%m] ; \
             t f32[2,u0] = aten.permute.default self=%r dims=[1,0] ; {node}"
        );
        let error = program(&[("x", "f32[6,2]".into()), ("m", "bool[6]".into())], &nodes, None).error();
        assert!(error.contains(reason), "{node}: {error}");
    }
}
