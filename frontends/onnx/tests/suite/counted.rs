//! Results whose number of elements is data: they have the extents of ONNX Runtime, and nodes that cannot keep them are opaque.

use std::sync::Arc;

use symmc_ir::{SymbolBindings, Tensor, interp};

use crate::common::{Fake, tensor};

/// The outputs of a program, with their extents.
fn outputs(fake: &Fake, arguments: &[Tensor]) -> Vec<(Vec<usize>, Vec<f64>)> {
    let imported = fake.import().expect("a program");
    let mut arguments = arguments.iter();
    let inputs = imported.graph.inputs.values().map(|input| match &input.data {
        Some(data) => data.clone(),
        None => Arc::new(arguments.next().expect("an argument").clone()),
    });
    let mut graph = imported.graph.clone();
    graph.ranks = Some(1);
    let mut found = interp::run(&graph, &SymbolBindings::new(), &[inputs.collect()]).expect("a run");
    let returned = graph.outputs.iter().filter(|o| o.kind == symmc_ir::OutputKind::Returned).count();
    let found = graph.cut_outputs(found.remove(0));
    found.iter().take(returned).map(|t| (t.shape().to_vec(), t.to_f64())).collect()
}

#[test]
fn positions_have_the_number_of_the_data() {
    let fake = Fake::new(18).input("x", "f32[2,3]").node("NonZero", &["x"], &["y"]).output("y");
    for (x, rows, columns) in [
        ([0.0; 6], vec![], vec![]),
        ([1.0; 6], vec![0.0, 0.0, 0.0, 1.0, 1.0, 1.0], vec![0.0, 1.0, 2.0, 0.0, 1.0, 2.0]),
        ([0.0, 0.0, -1.0, f64::NAN, 0.0, 2.0], vec![0.0, 1.0, 1.0], vec![2.0, 0.0, 2.0]),
    ] {
        let expected = (vec![2, rows.len()], [rows, columns].concat());
        assert_eq!(outputs(&fake, &[tensor("f32[2,3]", &x)]), [expected]);
    }
    let constant = Fake::new(18)
        .input("x", "f32[2]")
        .stored("k", "i64[3]", &[0.0, 5.0, 6.0])
        .node("NonZero", &["k"], &["i"])
        .node("Shape", &["i"], &["n"])
        .output("n");
    assert_eq!(outputs(&constant, &[tensor("f32[2]", &[0.0; 2])]), [(vec![2], vec![1.0, 2.0])]);
}

#[test]
fn conditions_that_are_data_select() {
    let fake = |call: &str| {
        let fake = Fake::new(18).input("x", "f32[3,2]").input("c", "bool[3]");
        fake.node(call, &["x", "c"], &["y"]).output("y")
    };
    let x = tensor("f32[3,2]", &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    for (c, rows) in [([0.0; 3], vec![]), ([1.0, 0.0, 1.0], vec![1.0, 2.0, 5.0, 6.0])] {
        let condition = tensor("bool[3]", &c);
        let expected = (vec![rows.len() / 2, 2], rows);
        assert_eq!(outputs(&fake("Compress axis=0"), &[x.clone(), condition]), [expected]);
    }
    let flat = outputs(&fake("Compress"), &[x, tensor("bool[3]", &[0.0, 1.0, 1.0])]);
    assert_eq!(flat, [(vec![2], vec![2.0, 3.0])]);
}

#[test]
fn distinct_elements_are_sorted() {
    let fake = Fake::new(18)
        .input("x", "f32[2,3]")
        .node("Unique", &["x"], &["y", "first", "inverse", "counts"])
        .output("y")
        .output("first")
        .output("inverse")
        .output("counts");
    let found = outputs(&fake, &[tensor("f32[2,3]", &[2.0, 1.0, 2.0, 3.0, 1.0, 2.0])]);
    let expected = [
        (vec![3], vec![1.0, 2.0, 3.0]),
        (vec![3], vec![1.0, 0.0, 3.0]),
        (vec![6], vec![1.0, 0.0, 1.0, 2.0, 0.0, 1.0]),
        (vec![3], vec![2.0, 3.0, 1.0]),
    ];
    assert_eq!(found, expected);
}

#[test]
fn counted_rows_are_gathered_computed_and_stored() {
    // The rows where a mask holds are doubled, as exporters write it.
    let fake = Fake::new(18)
        .input("x", "f32[4,2]")
        .input("m", "bool[4]")
        .stored("two", "f32[]", &[2.0])
        .node("NonZero", &["m"], &["p"])
        .node("Transpose perm=[1,0]", &["p"], &["i"])
        .node("GatherND", &["x", "i"], &["rows"])
        .node("Mul", &["rows", "two"], &["doubled"])
        .node("ScatterND", &["x", "i", "doubled"], &["y"])
        .node("ReduceSum keepdims=0", &["doubled"], &["sum"])
        .node("ReduceMean keepdims=0", &["doubled"], &["mean"])
        .output("y")
        .output("sum")
        .output("mean")
        .output("doubled");
    let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
    for mask in [[0.0; 4], [1.0; 4], [0.0, 1.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0]] {
        let found = outputs(&fake, &[tensor("f32[4,2]", &x), tensor("bool[4]", &mask)]);
        let is_chosen = |position: usize| mask[position / 2] != 0.0;
        let doubled: Vec<f64> = (0..8).filter(|&i| is_chosen(i)).map(|i| 2.0 * x[i]).collect();
        let stored: Vec<f64> = (0..8).map(|i| if is_chosen(i) { 2.0 * x[i] } else { x[i] }).collect();
        let sum: f64 = doubled.iter().sum();
        assert_eq!(found[0], (vec![4, 2], stored), "{mask:?}");
        assert_eq!(found[1].1, [sum], "{mask:?}");
        let mean = sum / doubled.len() as f64;
        assert!(found[2].1[0] == mean || mean.is_nan() && found[2].1[0].is_nan(), "{mask:?}");
        assert_eq!(found[3], (vec![doubled.len() / 2, 2], doubled), "{mask:?}");
    }
}

#[test]
fn extents_that_are_data_are_not_read() {
    for node in ["Shape", "Size", "Softmax axis=0", "Flatten axis=0"] {
        let mut fake = Fake::new(18).input("x", "f32[4]").input("c", "bool[4]").node(
            "Compress axis=0",
            &["x", "c"],
            &["rows"],
        );
        fake = fake.node(node, &["rows"], &["y"]).output("y").declared("y", "f32[?]");
        let notes = match fake.import() {
            Ok(imported) => imported.notes.join(" "),
            Err(error) => error.to_string(),
        };
        assert!(notes.contains("`rows` has a number of elements that depends on data"), "{node}: {notes}");
    }
}
