//! Complex numbers. Rotary embeddings and Fourier transforms give the results of their formulas. Everything
//! else is rejected, and is never computed as if the two components were independent numbers.

use std::sync::Arc;

use symmc_ir::{DType, SymbolBindings, Tensor};
use symmc_torch::ImportOptions;

use crate::common::Fake;

const X_VALUES: [f64; 12] = [1.0, 2.0, -3.0, 0.5, 4.0, -1.0, 2.5, 3.0, -2.0, 1.5, 0.0, -4.0];
const ANGLE_VALUES: [f64; 3] = [0.3, -1.2, 2.0];
const LENGTH_VALUES: [f64; 3] = [1.0, 2.0, 0.5];

/// `x` as two rows of three complex numbers, and three pairs of length and angle.
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
    let inputs =
        vec![tensor(&[2, 3, 2], &X_VALUES), tensor(&[3], &LENGTH_VALUES), tensor(&[3], &ANGLE_VALUES)];
    let results = symmc_ir::interp::run(&graph, &SymbolBindings::new(), &[inputs]).expect("a run");
    results[0].iter().map(|t| t.to_f64()).collect()
}

#[track_caller]
fn assert_near(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (f, e) in found.iter().zip(expected) {
        assert!((f - e).abs() <= 1e-5 * (1.0 + e.abs()), "{found:?} is not {expected:?}");
    }
}

/// Each complex number of `x` and the factor of its column.
fn factor_pairs() -> Vec<((f64, f64), (f64, f64))> {
    let factor =
        |i: usize| (LENGTH_VALUES[i] * ANGLE_VALUES[i].cos(), LENGTH_VALUES[i] * ANGLE_VALUES[i].sin());
    (0..6).map(|i| ((X_VALUES[2 * i], X_VALUES[2 * i + 1]), factor(i % 3))).collect()
}

#[test]
fn a_rotation_by_complex_factors_is_the_formula() {
    let fake = start()
        .node("aten.mul.Tensor", "self=%p other=1.0", &[("scaled", "c64[3]")])
        .node("aten.unsqueeze.default", "self=%scaled dim=-2", &[("row", "c64[1,3]")])
        .node("aten._assert_tensor_metadata.default", "a=%row dtype=:c64", &[])
        .node("aten.to.dtype", "self=%row dtype=:c64", &[("as_is", "c64[1,3]")])
        .node("prims.convert_element_type.default", "a=%as_is dtype=:c64", &[("same", "c64[1,3]")])
        .node("aten.mul.Tensor", "self=%z other=%same", &[("turned", "c64[2,3]")])
        .node("aten.view_as_real.default", "self=%turned", &[("y", "f32[2,3,2]")])
        .output("y");
    let expected: Vec<f64> =
        factor_pairs().into_iter().flat_map(|((a, b), (c, d))| [a * c - b * d, a * d + b * c]).collect();
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
    let results = outputs(&["re", "im", "y", "pairs"].iter().fold(fake, |f, o| f.output(o)));
    assert_near(&results[0], &factor_pairs().iter().map(|p| p.1.0).collect::<Vec<_>>());
    assert_near(&results[1], &factor_pairs().iter().map(|p| p.1.1).collect::<Vec<_>>());
    // Element 1 of the transpose is the first of the second row, element 4 the last of the first row.
    let (one, four) = (3, 2);
    let two = [one, four]
        .map(|i| [X_VALUES[2 * i] * ANGLE_VALUES[i % 3], X_VALUES[2 * i + 1] * ANGLE_VALUES[i % 3]])
        .concat();
    assert_near(&results[2], &[two.clone(), two].concat());
    assert_near(&results[3], &[1.0, 0.3, 2.0, -1.2, 0.5, 2.0]);
}

/// The numbers of `x`, and the factors of its columns.
fn numbers() -> (Vec<(f64, f64)>, Vec<(f64, f64)>) {
    let factors = (0..3)
        .map(|i| (LENGTH_VALUES[i] * ANGLE_VALUES[i].cos(), LENGTH_VALUES[i] * ANGLE_VALUES[i].sin()))
        .collect();
    ((0..6).map(|i| (X_VALUES[2 * i], X_VALUES[2 * i + 1])).collect(), factors)
}

fn times((a, b): (f64, f64), (d, e): (f64, f64)) -> (f64, f64) {
    (a * d - b * e, a * e + b * d)
}

fn flat(numbers: &[(f64, f64)]) -> Vec<f64> {
    numbers.iter().flat_map(|n| [n.0, n.1]).collect()
}

/// Checks a call on `z`, of two rows of three, `p`, of three, and `t`, which is real.
#[track_caller]
fn assert_call(target: &str, arguments: &str, result: &str, expected: &[f64]) {
    let fake = start().node(target, arguments, &[("y", result)]).output("y");
    assert_near(&outputs(&fake)[0], expected);
}

#[test]
fn arithmetic_is_that_of_complex_numbers() {
    let (z, p) = numbers();
    let column = |i: usize| p[i % 3];
    let over = |n: (f64, f64), d: (f64, f64)| {
        let (x, y) = times(n, (d.0, -d.1));
        let length = d.0 * d.0 + d.1 * d.1;
        (x / length, y / length)
    };
    let each = |f: &dyn Fn(usize) -> (f64, f64)| flat(&(0..6).map(f).collect::<Vec<_>>());
    let ty = "c64[2,3]";
    assert_call("aten.div.Tensor", "self=%z other=%p", ty, &each(&|i| over(z[i], column(i))));
    assert_call("aten.div.Tensor", "self=%z other=2.0", ty, &each(&|i| (z[i].0 / 2.0, z[i].1 / 2.0)));
    assert_call(
        "aten.div.Tensor",
        "self=%l other=%p",
        "c64[3]",
        &flat(&[0, 1, 2].map(|i| over((LENGTH_VALUES[i], 0.0), p[i]))),
    );
    assert_call(
        "aten.add.Tensor",
        "self=%z other=%t",
        ty,
        &each(&|i| (z[i].0 + ANGLE_VALUES[i % 3], z[i].1)),
    );
    assert_call(
        "aten.sub.Tensor",
        "self=%t other=%z",
        ty,
        &each(&|i| (ANGLE_VALUES[i % 3] - z[i].0, -z[i].1)),
    );
    let twice = each(&|i| (z[i].0 + 2.0 * column(i).0, z[i].1 + 2.0 * column(i).1));
    assert_call("aten.add.Tensor", "self=%z other=%p alpha=2", ty, &twice);
    assert_call("aten.add.Tensor", "self=%z other=3.0", ty, &each(&|i| (z[i].0 + 3.0, z[i].1)));
    assert_call("aten.neg.default", "self=%z", ty, &each(&|i| (-z[i].0, -z[i].1)));
    assert_call("aten._conj.default", "self=%z", ty, &each(&|i| (z[i].0, -z[i].1)));
    assert_call("aten.reciprocal.default", "self=%z", ty, &each(&|i| over((1.0, 0.0), z[i])));
    assert_call("aten.square.default", "self=%z", ty, &each(&|i| times(z[i], z[i])));
    let turned = |i: usize| (z[i].0.exp() * z[i].1.cos(), z[i].0.exp() * z[i].1.sin());
    assert_call("aten.exp.default", "self=%z", ty, &each(&turned));
    let length = |i: usize| z[i].0.hypot(z[i].1);
    assert_call("aten.abs.default", "self=%z", "f32[2,3]", &[0, 1, 2, 3, 4, 5].map(length));
    assert_call("aten.sgn.default", "self=%z", ty, &each(&|i| (z[i].0 / length(i), z[i].1 / length(i))));
    let row =
        |i: usize| (0..3).map(|k| times(z[3 * i + k], p[k])).fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
    assert_call("aten.mv.default", "self=%z vec=%p", "c64[2]", &flat(&[row(0), row(1)]));
    assert_call("aten.to.dtype", "self=%t dtype=:c64", "c64[3]", &flat(&ANGLE_VALUES.map(|t| (t, 0.0))));
    assert_call(
        "aten.to.dtype",
        "self=%z dtype=:f32",
        "f32[2,3]",
        &z.iter().map(|n| n.0).collect::<Vec<_>>(),
    );
}

#[test]
fn movement_and_sums_apply_to_both_complex_parts() {
    let (z, p) = numbers();
    let sum = |of: &[(f64, f64)]| of.iter().fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
    assert_call("aten.sum.default", "self=%z", "c64[]", &flat(&[sum(&z)]));
    let rows = flat(&[sum(&z[..3]), sum(&z[3..])]);
    assert_call("aten.sum.dim_IntList", "self=%z dim=[-1]", "c64[2]", &rows);
    assert_call("aten.sum.dim_IntList", "self=%z dim=[1] dtype=:c64", "c64[2]", &rows);
    assert_call("aten.select.int", "self=%z dim=0 index=1", "c64[3]", &flat(&z[3..]));
    let expected: Vec<(f64, f64)> = [&z[..3], &p, &z[3..], &p].concat();
    let wide = start()
        .node("aten.expand.default", "self=%p size=[2,3]", &[("wide", "c64[2,3]")])
        .node("aten.cat.default", "tensors=[%z,%wide] dim=-1", &[("y", "c64[2,6]")])
        .output("y");
    assert_near(&outputs(&wide)[0], &flat(&expected));
    let real = start()
        .node("aten.expand.default", "self=%t size=[2,3]", &[("wide", "f32[2,3]")])
        .node("aten.cat.default", "tensors=[%z,%wide] dim=0", &[("y", "c64[4,3]")])
        .output("y");
    assert_near(
        &outputs(&real)[0],
        &flat(
            &[z.clone(), [ANGLE_VALUES, ANGLE_VALUES].concat().iter().map(|t| (*t, 0.0)).collect()].concat(),
        ),
    );
    assert_call("aten.zeros_like.default", "self=%p", "c64[3]", &[0.0; 6]);
    assert_call("aten.full.default", "size=[2] fill_value=3.0 dtype=:c64", "c64[2]", &[3.0, 0.0, 3.0, 0.0]);
    assert_call(
        "aten.constant_pad_nd.default",
        "self=%p pad=[0,1]",
        "c64[4]",
        &[flat(&p), vec![0.0, 0.0]].concat(),
    );
}

/// The transform of some numbers by its definition.
fn transformed(of: &[(f64, f64)], sign: f64) -> Vec<(f64, f64)> {
    let n = of.len();
    let angle = |j: usize, k: usize| sign * std::f64::consts::TAU * (j * k) as f64 / n as f64;
    let root = |j: usize, k: usize| (angle(j, k).cos(), angle(j, k).sin());
    let element = |k: usize| {
        of.iter()
            .enumerate()
            .map(|(j, x)| times(*x, root(j, k)))
            .fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1))
    };
    (0..n).map(element).collect()
}

#[test]
fn transforms_are_those_of_the_definition() {
    let (z, _) = numbers();
    let rows = |sign: f64, scale: f64| -> Vec<f64> {
        let transform = [transformed(&z[..3], sign), transformed(&z[3..], sign)].concat();
        flat(&transform).iter().map(|x| x * scale).collect()
    };
    let (whole, third) = ("c64[2,3]", 1.0 / 3.0);
    assert_call(
        "aten._fft_c2c.default",
        "self=%z dim=[1] normalization=0 forward=true",
        whole,
        &rows(-1.0, 1.0),
    );
    assert_call(
        "aten._fft_c2c.default",
        "self=%z dim=[-1] normalization=2 forward=false",
        whole,
        &rows(1.0, third),
    );
    assert_call("aten.fft_fft.default", "self=%z norm='ortho'", whole, &rows(-1.0, third.sqrt()));
    assert_call("aten.fft_ifft.default", "self=%z", whole, &rows(1.0, third));
    let column = |i: usize, k: usize| transformed(&[z[i], z[i + 3]], -1.0)[k];
    let columns: Vec<(f64, f64)> = (0..6).map(|i| column(i % 3, i / 3)).collect();
    assert_call(
        "aten._fft_c2c.default",
        "self=%z dim=[0] normalization=0 forward=true",
        whole,
        &flat(&columns),
    );
    let transforms = [transformed(&columns[..3], -1.0), transformed(&columns[3..], -1.0)].concat();
    assert_call("aten.fft_fft2.default", "self=%z", whole, &flat(&transforms));
}

#[test]
fn half_transform_of_real_input_keeps_all_information() {
    let real: Vec<(f64, f64)> = ANGLE_VALUES.iter().map(|t| (*t, 0.0)).collect();
    let full = transformed(&real, -1.0);
    let half = "self=%t dim=[0] normalization=0 onesided=true";
    assert_call("aten._fft_r2c.default", half, "c64[2]", &flat(&full[..2]));
    assert_call("aten._fft_r2c.default", &half.replace("true", "false"), "c64[3]", &flat(&full));
    for (n, signal) in [
        (3, ANGLE_VALUES.to_vec()),
        (4, [&ANGLE_VALUES[..], &[0.0]].concat()),
        (2, ANGLE_VALUES[..2].to_vec()),
    ] {
        let columns = n / 2 + 1;
        let there = format!("self=%t n={n}");
        let fake = start()
            .node("aten.fft_rfft.default", &there, &[("h", &format!("c64[{columns}]"))])
            .node(
                "aten._fft_c2r.default",
                &format!("self=%h dim=[0] normalization=2 last_dim_size={n}"),
                &[("y", &format!("f32[{n}]"))],
            )
            .output("y");
        assert_near(&outputs(&fake)[0], &signal);
    }
}

#[test]
fn long_transforms_are_refused() {
    let error = Fake::new()
        .input("x", "f32[10000]")
        .node(
            "aten._fft_r2c.default",
            "self=%x dim=[0] normalization=0 onesided=false",
            &[("y", "c64[10000]")],
        )
        .output("y")
        .error();
    assert!(error.contains("may exceed the limit of 4096"), "{error}");
}

#[test]
fn complex_inputs_and_outputs_gain_an_axis_of_floats() {
    let fake = Fake::new()
        .input("z", "c64[3]")
        .node("aten.mul.Tensor", "self=%z other=2.0", &[("y", "c64[3]")])
        .output("y");
    let options = ImportOptions { ranks: Some(1), ..ImportOptions::default() };
    let imported = symmc_torch::import(&fake.bytes(), &options).expect("a program");
    assert!(imported.notes.iter().any(|n| n.contains("the argument z is complex")), "{:?}", imported.notes);
    let input =
        Arc::new(Tensor::from_f64(DType::F32, [3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).expect("numbers"));
    let results =
        symmc_ir::interp::run(&imported.graph, &SymbolBindings::new(), &[vec![input]]).expect("a run");
    assert_eq!(results[0][0].to_f64(), [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]);
}

#[test]
fn complex_in_place_ops_equal_their_functional_forms() {
    let value = |(a, b): (f64, f64)| [a, b];
    let x: Vec<(f64, f64)> = factor_pairs().into_iter().map(|(z, _)| z).collect();
    let p: Vec<(f64, f64)> = factor_pairs().into_iter().map(|(_, p)| p).collect();
    let each = |f: &dyn Fn((f64, f64), (f64, f64), usize) -> (f64, f64)| -> Vec<f64> {
        (0..6).flat_map(|i| value(f(x[i], p[i], i))).collect()
    };
    let product = |(a, b): (f64, f64), (c, d): (f64, f64)| (a * c - b * d, a * d + b * c);
    for (target, arguments, expected) in [
        ("aten.mul_.Tensor", "self=%z other=%p", each(&|z, p, _| product(z, p))),
        (
            "aten.mul_.Tensor",
            "self=%z other=%t",
            each(&|z, _, i| (z.0 * ANGLE_VALUES[i % 3], z.1 * ANGLE_VALUES[i % 3])),
        ),
        ("aten.mul_.Scalar", "self=%z other=2.0", each(&|z, _, _| (2.0 * z.0, 2.0 * z.1))),
        ("aten.add_.Tensor", "self=%z other=%p alpha=2", each(&|z, p, _| (z.0 + 2.0 * p.0, z.1 + 2.0 * p.1))),
        ("aten.sub_.Tensor", "self=%z other=%l", each(&|z, _, i| (z.0 - LENGTH_VALUES[i % 3], z.1))),
        ("aten.neg_.default", "self=%z", each(&|z, _, _| (-z.0, -z.1))),
        ("aten.conj_physical_.default", "self=%z", each(&|z, _, _| (z.0, -z.1))),
        ("aten.copy_.default", "self=%z src=%p", each(&|_, p, _| p)),
        ("aten.copy_.default", "self=%z src=%t", each(&|_, _, i| (ANGLE_VALUES[i % 3], 0.0))),
        ("aten.fill_.Scalar", "self=%z value=3.0", each(&|_, _, _| (3.0, 0.0))),
        ("aten.zero_.default", "self=%z", each(&|_, _, _| (0.0, 0.0))),
        ("aten.index_put_.default", "self=%z indices=[%i] values=%row", {
            [value(p[0]), value(p[1]), value(p[2]), value(x[3]), value(x[4]), value(x[5])].concat()
        }),
    ] {
        let fake = start()
            .node("aten.select.int", "self=%x dim=-1 index=0", &[("first", "f32[2,3]")])
            .node("aten.unsqueeze.default", "self=%p dim=0", &[("row", "c64[1,3]")])
            .node("aten.full.default", "size=[1] fill_value=0 dtype=:i64", &[("i", "i64[1]")])
            .node(target, arguments, &[("changed", "c64[2,3]")])
            .node("aten.view_as_real.default", "self=%changed", &[("y", "f32[2,3,2]")])
            .node("aten.view_as_real.default", "self=%z", &[("same", "f32[2,3,2]")])
            .node("aten.mul.Tensor", "self=%first other=1.0", &[("real", "f32[2,3]")]);
        let results = outputs(&["y", "same", "real"].iter().fold(fake, |f, o| f.output(o)));
        // The caller of the program sees the memory of `x`, which is the last output.
        let reals: Vec<f64> = expected.iter().copied().step_by(2).collect();
        for (actual, expected) in results.iter().zip([&expected, &expected, &reals, &expected]) {
            assert_near(actual, expected);
        }
        assert_eq!(results.len(), 4, "{target}");
    }
}

#[test]
fn copied_complex_views_cannot_be_read_after_a_write() {
    for (target, arguments, view) in [
        ("aten._conj.default", "self=%z", "c64[2,3]"),
        ("aten.select.int", "self=%z dim=0 index=1", "c64[3]"),
    ] {
        let error = start()
            .node(target, arguments, &[("w", view)])
            .node("aten.mul_.Tensor", "self=%z other=%p", &[("changed", "c64[2,3]")])
            .node("aten.view_as_real.default", "self=%w", &[("y", "f32[2,3,2]")])
            .output("y")
            .error();
        assert!(error.contains("`z`") && error.contains("`w`"), "{target}: {error}");
    }
}

#[test]
fn unsupported_complex_ops_are_rejected() {
    let message = "not supported for complex numbers";
    for (target, arguments, result, expected) in [
        ("aten.tanh.default", "self=%z", "c64[2,3]", message),
        ("aten.prod.default", "self=%z", "c64[]", message),
        ("aten.tanh_.default", "self=%z", "c64[2,3]", message),
        ("aten.resize_.default", "self=%z size=[2]", "c64[2]", message),
        ("mylib.f.default", "self=%z", "f32[2]", message),
        (
            "aten.constant_pad_nd.default",
            "self=%p pad=[0,1] value=1.0",
            "c64[4]",
            "a number other than 0 as `value` is not supported",
        ),
        ("aten.view_as_complex.default", "self=%l", "c64[3]", "declares f32[3, 2] for `y`, found f32[3]"),
    ] {
        let error = start().node(target, arguments, &[("y", result)]).output("y").error();
        assert!(error.contains(expected), "{target} {arguments}: {error}");
    }
}
