//! Computations with extents, beyond those that exporters usually write.

use symmc_ir::{BoundsChecks, Op, SymbolBindings};

use crate::common::Fake;

/// Checks that the program's text contains these words.
fn assert_text_contains(fake: &Fake, line: &str) {
    let text = fake.text();
    assert!(text.contains(line), "{line:?} is missing in:\n{text}");
}

/// A program that computes with the shape of an `x` of this type, using these nodes.
fn shaped(version: i64, x: &str, nodes: &[(&str, &[&str], &[&str])]) -> Fake {
    let mut fake = Fake::new(version).input("x", x).stored("k", "i64[3]", &[0.0, 0.0, 0.0]);
    fake = fake.stored("m", "i64[3]", &[3.0, 2.0, 3.0]).stored("one", "i64[1]", &[1.0]).node(
        "Shape",
        &["x"],
        &["shape"],
    );
    // The bound is small, so that tensors of many axes stay small.
    fake.max_extent = if x.matches(',').count() > 8 { 1 } else { 100 };
    for (call, inputs, outputs) in nodes {
        fake = fake.node(call, inputs, outputs);
    }
    fake
}

#[test]
fn large_products_of_extents_are_rejected_before_expansion() {
    // 40 factors of two terms each: 2^40 terms.
    let names: Vec<String> = (0..40).map(|i| format!("s{i}")).collect();
    let x = format!("f32[{}]", names.join(","));
    let total = |op: &str| {
        shaped(18, &x, &[("Add", &["shape", "one"], &["more"]), (op, &["more"], &["n"])])
            .node("ConstantOfShape", &["n"], &["y"])
            .output("y")
    };
    assert!(total("ReduceProd keepdims=1").error().contains("depends on data"));
    assert_text_contains(&total("ReduceSum keepdims=1"), "s39 + 40");
    // A sum of 40 terms to the power of 64.
    let squares = ["n", "n2", "n4", "n8", "n16", "n32", "all"];
    let product = shaped(18, &x, &[("ReduceSum keepdims=1", &["shape"], &["n"])]);
    let product =
        squares.windows(2).fold(product, |fake, pair| fake.node("Mul", &[pair[0], pair[0]], &[pair[1]]));
    assert!(
        product.node("ConstantOfShape", &["all"], &["y"]).output("y").error().contains("depends on data")
    );
}

#[test]
fn shapes_split_by_an_attribute_have_its_lengths() {
    let split = |version, call: &str| {
        shaped(
            version,
            "f32[b,s,4,5]",
            &[
                (call, &["shape"], &["first", "rest"]),
                ("Concat axis=0", &["rest", "first"], &["target"]),
                ("ConstantOfShape", &["target"], &["y"]),
            ],
        )
        .output("y")
    };
    assert_text_contains(&split(11, "Split axis=0 split=[1,3]"), "%y: f32[s, 4, 5, b]");
    assert_text_contains(&split(11, "Split axis=0"), "%y: f32[4, 5, b, s]");
    for wrong in ["[1,2]", "[1,4]", "[1,1,2]", "[-1,5]"] {
        split(11, &format!("Split axis=0 split={wrong}")).error();
    }
    split(18, "Split axis=0 num_outputs=4").error();
    split(11, "Split axis=1").error();
}

#[test]
fn fmod_decides_the_sign_of_negative_remainders() {
    let program = |call: &str, from: &str, to: &str| {
        shaped(18, "f32[a,b,c]", &[("Sub", &[from, to], &["d"]), (call, &["d", "m"], &["target"])])
            .node("Expand", &["one", "target"], &["y"])
            .output("y")
    };
    // -a mod 3 is never negative; fmod(-a, 3) is never positive.
    assert_text_contains(&program("Mod", "k", "shape"), "mod(-a, 3)");
    let notes = program("Mod fmod=1", "k", "shape").import().expect("an opaque op").notes.join("; ");
    assert!(notes.contains("depends on data"), "{notes}");
    assert_text_contains(&program("Mod fmod=1", "shape", "k"), "mod(a, 3)");
}

#[test]
fn shapes_sliced_by_attributes_are_known() {
    let slice = |call: &str| {
        let fake = shaped(9, "f32[b,s,4]", &[(call, &["shape"], &["target"])]);
        fake.node("ConstantOfShape", &["target"], &["y"]).output("y")
    };
    assert_text_contains(&slice("Slice starts=[0] ends=[1]"), "%y: f32[b]");
    assert_text_contains(&slice("Slice starts=[-2] ends=[9223372036854775807] axes=[0]"), "%y: f32[s, 4]");
    slice("Slice starts=[0,1] ends=[1,2]").error();
}

#[test]
fn zeros_in_reshapes_copy_an_axis_without_allowzero() {
    let reshape = |flag: &str, target: &[f64]| {
        shaped(18, "f32[a,b]", &[(&format!("Reshape{flag}"), &["shape", "to"], &["square"])])
            .stored("to", &format!("i64[{}]", target.len()), target)
            .node("Squeeze", &["square"], &["target"])
            .node("ConstantOfShape", &["target"], &["y"])
            .output("y")
    };
    assert_text_contains(&reshape("", &[0.0, 1.0]), "%y: f32[a, b]");
    assert_text_contains(&reshape("", &[0.0, -1.0]), "%y: f32[a, b]");
    assert_text_contains(&reshape(" allowzero=1", &[1.0, -1.0]), "%y: f32[a, b]");
    reshape(" allowzero=1", &[0.0, 1.0]).error();
    reshape("", &[2.0, -1.0, -1.0]).error();
}

#[test]
fn ranges_of_floats_end_at_numbers() {
    let range = |start: f64, end: f64, step: f64| {
        Fake::new(18)
            .stored("start", "f32[]", &[start])
            .stored("end", "f32[]", &[end])
            .stored("step", "f32[]", &[step])
            .node("Range", &["start", "end", "step"], &["y"])
            .output("y")
    };
    assert_eq!(range(5.0, 0.0, 1.0).import().expect("a program").graph.outputs.len(), 1);
    for (start, end, step) in
        [(f64::NAN, 5.0, 1.0), (0.0, f64::NAN, 1.0), (0.0, 5.0, f64::NAN), (0.0, 0.0, 0.0), (0.0, 5.0, 0.0)]
    {
        let error = range(start, end, step).error();
        assert!(error.contains("expected a finite range"), "{error}");
    }
}

#[test]
fn constants_constraining_extents_are_checked_at_run_time() {
    // The call on `x`, its results, and the sizes from 1 to 8 at which it runs. No sizes mean that it is
    // rejected.
    let cases: [(&str, &[&str], &[&str], &[i64]); 9] = [
        ("Split axis=0", &["x", "parts"], &["a", "b"], &[5]),
        ("Split axis=0 num_outputs=2", &["x"], &["a", "b"], &[1, 2, 3, 4, 5, 6, 7, 8]),
        ("Pad", &["x", "crop"], &["y"], &[3, 4, 5, 6, 7, 8]),
        ("Slice", &["x", "start", "end", "zero"], &["y"], &[1, 2, 3, 4, 5, 6, 7, 8]),
        ("Gather axis=0", &["x", "start"], &["y"], &[3, 4, 5, 6, 7, 8]),
        ("Reshape", &["x", "flat"], &["y"], &[]),
        ("Add", &["x", "four"], &["y"], &[]),
        ("Expand", &["x", "wide"], &["y"], &[]),
        ("Squeeze", &["x", "zero"], &["y"], &[]),
    ];
    for (call, inputs, outputs, sizes) in cases {
        let mut fake =
            Fake::new(18).input("x", "f32[n,3]").input("four", "f32[4,3]").node(call, inputs, outputs);
        for (name, ty, numbers) in [
            ("parts", "i64[2]", &[2.0, 3.0][..]),
            ("crop", "i64[4]", &[-3.0, 0.0, 6.0, 0.0]),
            ("start", "i64[1]", &[2.0]),
            ("end", "i64[1]", &[6.0]),
            ("zero", "i64[1]", &[0.0]),
            ("flat", "i64[1]", &[15.0]),
            ("wide", "i64[2]", &[5.0, 3.0]),
        ] {
            fake = fake.stored(name, ty, numbers);
        }
        fake.max_extent = 8;
        fake = outputs.iter().fold(fake, |fake, name| fake.output(name));
        let graph = match fake.import() {
            // It holds for no range of sizes, only for one size or for multiples.
            Ok(found) if sizes.is_empty() && found.graph.symbols.values().all(|s| s.max < 8) => continue,
            Ok(found) if !found.graph.nodes.values().any(|n| matches!(n.op, Op::Opaque { .. })) => {
                found.graph
            }
            Ok(_) | Err(_) if sizes.is_empty() => continue,
            Ok(_) => panic!("{call}: it stays opaque"),
            Err(error) => panic!("{call}: {error}"),
        };
        let checks = BoundsChecks::derive(&graph);
        let runs_at = |n: &i64| {
            let mut bindings = SymbolBindings::new();
            graph.symbols.keys().for_each(|id| bindings.set(id, *n));
            checks.evaluate(&graph, &bindings).is_ok()
        };
        let actual: Vec<i64> = (1..=8).filter(runs_at).collect();
        assert_eq!(actual, sizes, "{call}");
    }
}

#[test]
fn windows_require_axes_that_are_long_enough() {
    let fake = Fake::new(20)
        .input("x", "f32[batch,1,n]")
        .stored("w", "f32[2,1,3]", &[1.0; 6])
        .node("Conv strides=[2]", &["x", "w"], &["y"])
        .node("ConvTranspose strides=[2] pads=[1,1]", &["y", "v"], &["z"])
        .stored("v", "f32[2,1,3]", &[1.0; 6])
        .output("z");
    let graph = fake.import().unwrap().graph;
    let checks = BoundsChecks::derive(&graph);
    let runs_at = |n: i64| {
        let mut bindings = SymbolBindings::new();
        graph.symbols.keys().for_each(|id| bindings.set(id, n));
        checks.evaluate(&graph, &bindings).is_ok()
    };
    assert_eq!([2, 3, 9].map(runs_at), [false, true, true]);
}
