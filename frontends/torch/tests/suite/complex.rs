//! Complex numbers within a program: what rotary embeddings do with them gives what the formulas say, and everything
//! else is refused, never computed as if the two parts were two numbers.

use std::sync::Arc;

use symmc_ir::{Bindings, DType, Tensor};
use symmc_torch::ImportOptions;

use crate::common::Fake;

const X: [f64; 12] = [1.0, 2.0, -3.0, 0.5, 4.0, -1.0, 2.5, 3.0, -2.0, 1.5, 0.0, -4.0];
const ANGLE: [f64; 3] = [0.3, -1.2, 2.0];
const LENGTH: [f64; 3] = [1.0, 2.0, 0.5];

/// `x` as two rows of three complex numbers, and three of a length and an angle.
fn start() -> Fake {
    Fake::new()
        .input("x", "f32[2,3,2]")
        .input("l", "f32[3]")
        .input("t", "f32[3]")
        .node("aten.view_as_complex.default", "self=%x", &[("z", "c64[2,3]")])
        .node("aten.polar.default", "abs=%l angle=%t", &[("p", "c64[3]")])
}

fn outputs(fake: &Fake) -> Vec<Vec<f64>> {
    let options = ImportOptions { ranks: Some(1), ..ImportOptions::default() };
    let graph = symmc_torch::import(&fake.bytes(), &options).expect("a program").graph;
    let tensor = |shape: &[usize], data: &[f64]| {
        Arc::new(Tensor::from_f64(DType::F32, shape.to_vec(), data).expect("data of this shape"))
    };
    let inputs = vec![tensor(&[2, 3, 2], &X), tensor(&[3], &LENGTH), tensor(&[3], &ANGLE)];
    let found = symmc_ir::interp::run(&graph, &Bindings::new(), &[inputs]).expect("a run");
    found[0].iter().map(|t| t.to_f64()).collect()
}

#[track_caller]
fn assert_near(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (f, e) in found.iter().zip(expected) {
        assert!((f - e).abs() <= 1e-5 * (1.0 + e.abs()), "{found:?} is not {expected:?}");
    }
}

/// Each complex number of `x` and the factor of its column.
fn pairs() -> Vec<((f64, f64), (f64, f64))> {
    let factor = |i: usize| (LENGTH[i] * ANGLE[i].cos(), LENGTH[i] * ANGLE[i].sin());
    (0..6).map(|i| ((X[2 * i], X[2 * i + 1]), factor(i % 3))).collect()
}

#[test]
fn a_rotation_by_complex_factors_is_the_formula() {
    let fake = start()
        .node("aten.mul.Tensor", "self=%p other=1.0", &[("scaled", "c64[3]")])
        .node("aten.unsqueeze.default", "self=%scaled dim=-2", &[("row", "c64[1,3]")])
        .node("aten._assert_tensor_metadata.default", "a=%row dtype=:c64", &[])
        .node("aten.to.dtype", "self=%row dtype=:c64", &[("same", "c64[1,3]")])
        .node("aten.mul.Tensor", "self=%z other=%same", &[("turned", "c64[2,3]")])
        .node("aten.view_as_real.default", "self=%turned", &[("y", "f32[2,3,2]")])
        .output("y");
    let expected: Vec<f64> =
        pairs().into_iter().flat_map(|((a, b), (c, d))| [a * c - b * d, a * d + b * c]).collect();
    assert_near(&outputs(&fake)[0], &expected);
}

#[test]
fn parts_sums_and_views_are_those_of_complex_numbers() {
    let fake = start()
        .node("aten.add.Tensor", "self=%z other=%p", &[("s", "c64[2,3]")])
        .node("aten.sub.Tensor", "self=%s other=%z", &[("d", "c64[2,3]")])
        .node("aten.real.default", "self=%d", &[("re", "f32[2,3]")])
        .node("aten.imag.default", "self=%d", &[("im", "f32[2,3]")])
        .node("aten.mul.Tensor", "self=%z other=%t", &[("by", "c64[2,3]")])
        .node("aten.transpose.int", "self=%by dim0=-1 dim1=0", &[("tr", "c64[3,2]")])
        .node("aten.reshape.default", "self=%tr shape=[-1]", &[("flat", "c64[6]")])
        .node("aten.slice.Tensor", "self=%flat dim=0 start=1 end=5 step=3", &[("two", "c64[2]")])
        .node("aten.expand.default", "self=%two size=[2,-1]", &[("wide", "c64[2,2]")])
        .node("aten.view_as_real.default", "self=%wide", &[("y", "f32[2,2,2]")])
        .node("aten.complex.default", "real=%l imag=%t", &[("c", "c64[3]")])
        .node("aten.view_as_real.default", "self=%c", &[("pairs", "f32[3,2]")]);
    let found = outputs(&["re", "im", "y", "pairs"].iter().fold(fake, |f, o| f.output(o)));
    assert_near(&found[0], &pairs().iter().map(|p| p.1.0).collect::<Vec<_>>());
    assert_near(&found[1], &pairs().iter().map(|p| p.1.1).collect::<Vec<_>>());
    // Number 1 of the transposed ones is the first of the second row, number 4 the last of the first row.
    let (one, four) = (3, 2);
    let two = [one, four].map(|i| [X[2 * i] * ANGLE[i % 3], X[2 * i + 1] * ANGLE[i % 3]]).concat();
    assert_near(&found[2], &[two.clone(), two].concat());
    assert_near(&found[3], &[1.0, 0.3, 2.0, -1.2, 0.5, 2.0]);
}

#[test]
fn what_is_not_known_of_complex_numbers_is_refused() {
    let whole = "it works on complex numbers";
    for (target, arguments, result, expected) in [
        ("aten.exp.default", "self=%z", "c64[2,3]", whole),
        ("aten.abs.default", "self=%z", "f32[2,3]", whole),
        ("aten.mul_.Tensor", "self=%z other=%p", "c64[2,3]", whole),
        ("aten.sum.default", "self=%z", "c64[]", whole),
        ("aten.cat.default", "tensors=[%z,%z] dim=-1", "c64[2,6]", whole),
        ("mylib.f.default", "self=%z", "f32[2]", whole),
        ("aten.add.Tensor", "self=%z other=%t", "c64[2,3]", "expected two complex tensors"),
        ("aten.add.Tensor", "self=%z other=%p alpha=2", "c64[2,3]", "expected no argument `alpha`"),
        ("aten.to.dtype", "self=%z dtype=:f32", "f32[2,3]", "expected complex numbers of f32"),
        ("aten.view_as_complex.default", "self=%l", "c64[3]", "declares f32[3, 2] for `y`, found f32[3]"),
    ] {
        let error = start().node(target, arguments, &[("y", result)]).output("y").error();
        assert!(error.contains(expected), "{target} {arguments}: {error}");
    }
    // Nor is it an input or an output.
    for fake in [Fake::new().input("z", "c64[3]").output("z"), start().output("p")] {
        assert!(fake.error().contains("found dtype complex64"), "{}", fake.error());
    }
}
