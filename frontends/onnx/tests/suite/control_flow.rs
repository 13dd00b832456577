//! `If`, `Loop` and `Scan`: inlined, selected, or opaque.

use std::sync::Arc;

use symmc_import::ranges::{SymbolConstraint, SymbolConstraints};
use symmc_ir::SymbolBindings;
use symmc_onnx::{ImportOptions, import, proto};

use crate::common::{Fake, branch, node, run, tensor};

fn graph_attribute(name: &str, graph: proto::GraphProto) -> proto::AttributeProto {
    let mut attribute = branch(name, vec![], vec![]);
    attribute.g = Some(Box::new(graph));
    attribute
}

/// A branch that does not declare the type of its result.
fn untyped_branch(name: &str, nodes: Vec<proto::NodeProto>) -> proto::AttributeProto {
    graph_attribute(name, iteration(&[], &["b"], nodes))
}

#[test]
fn branches_by_data_are_both_computed() {
    let attribute =
        |name: &str, op: &str, operands: &[&str]| untyped_branch(name, vec![node(op, operands, &["b"])]);
    let with = |branches: [(&str, &[&str]); 2]| {
        let mut fake = Fake::new(18)
            .input("x", "f32[2]")
            .input("i", "i64[2]")
            .input("c", "bool[1]")
            .node("If", &["c"], &["y"])
            .output("y");
        let [(a, xs), (b, ys)] = branches;
        fake.graph().node[0].attribute =
            vec![attribute("then_branch", a, xs), attribute("else_branch", b, ys)];
        fake
    };
    let fake = with([("Neg", &["x"]), ("Abs", &["x"])]);
    let x = tensor("f32[2]", &[1.0, -2.0]);
    let index = tensor("i64[2]", &[1.0, 0.0]);
    for (c, expected) in [(1.0, [-1.0, 2.0]), (0.0, [1.0, 2.0])] {
        assert_eq!(run(&fake, &[], &[x.clone(), index.clone(), tensor("bool[1]", &[c])]), [expected], "{c}");
    }
    for (branches, why) in [
        (
            [("Abs", ["i"].as_slice()), ("Abs", &["x"])],
            "the result `y` is i64[2] in one branch and f32[2] in the other",
        ),
        (
            [("Thing", &["x"]), ("Abs", &["x"])],
            "the condition depends on data: a result has an operator without",
        ),
    ] {
        let fake = with(branches).declared("y", "f32[2]");
        let notes = fake.import().expect("an opaque op").notes;
        assert!(notes.iter().any(|n| n.contains(why)), "{why}: {notes:?}");
    }
}

#[test]
fn branches_that_are_not_taken_do_not_fail() {
    let branches =
        [(("Gather", ["x", "i"]), [7.0, 8.0], [8.0, 7.0]), (("Div", ["x", "i"]), [7.0, 8.0], [7.0, 8.0])];
    for ((op, operands), x, expected) in branches {
        let mut fake = Fake::new(18)
            .input("x", "i64[2]")
            .input("i", "i64[2]")
            .input("c", "bool[]")
            .node("If", &["c"], &["y"])
            .output("y");
        fake.graph().node[0].attribute = vec![
            untyped_branch("then_branch", vec![node(op, &operands, &["b"])]),
            untyped_branch("else_branch", vec![node("Neg", &["x"], &["b"])]),
        ];
        let run_with = |index: &[f64], condition: f64| {
            run(&fake, &[], &[tensor("i64[2]", &x), tensor("i64[2]", index), tensor("bool[]", &[condition])])
        };
        assert_eq!(run_with(&[1.0, if op == "Div" { 1.0 } else { 0.0 }], 1.0), [expected], "{op}");
        assert_eq!(run_with(&[0.0, 99.0], 0.0), [[-7.0, -8.0]], "{op}");
    }
}

#[test]
fn branches_by_sizes_that_differ_in_type_require_the_usual_size() {
    // As exporters write `squeeze`.
    let mut fake = Fake::new(18)
        .input("x", "f32[n,2]")
        .stored("one", "i64[1]", &[1.0])
        .stored("zero", "i64[1]", &[0.0])
        .node("Shape end=1", &["x"], &["n"])
        .node("Equal", &["n", "one"], &["c"])
        .node("If", &["c"], &["y"])
        .output("y");
    fake.graph().node[2].attribute = vec![
        untyped_branch("then_branch", vec![node("Squeeze", &["x", "zero"], &["b"])]),
        untyped_branch("else_branch", vec![node("Identity", &["x"], &["b"])]),
    ];
    let notes = fake.import().expect("a program").notes;
    assert!(
        notes.iter().any(|n| n.contains("assuming 2 is at most n, because the branches of `y`")),
        "{notes:?}"
    );
    assert_eq!(run(&fake, &[2], &[tensor("f32[2,2]", &[1.0, 2.0, 3.0, 4.0])]), [[1.0, 2.0, 3.0, 4.0]]);
}

/// A graph of these nodes, operands and results.
fn iteration(operands: &[&str], results: &[&str], nodes: Vec<proto::NodeProto>) -> proto::GraphProto {
    proto::GraphProto {
        node: nodes,
        input: operands.iter().map(|n| proto::ValueInfoProto { name: (*n).into(), r#type: None }).collect(),
        output: results.iter().map(|n| proto::ValueInfoProto { name: (*n).into(), r#type: None }).collect(),
        ..proto::GraphProto::default()
    }
}

#[test]
fn loops_of_constant_length_are_inlined() {
    let add_nodes = vec![
        node("Add", &["s", "x"], &["t"]),
        node("Cast to=1", &["i"], &["f"]),
        node("Add", &["t", "f"], &["next"]),
        node("Less", &["i", "last"], &["go"]),
    ];
    let graph = iteration(&["i", "c", "s"], &["go", "next", "s"], add_nodes);
    let with = |most: &str, last: f64, declared: bool| {
        let mut fake = Fake::new(18)
            .input("x", "f32[2]")
            .input("n", "i64[]")
            .stored("three", "i64[]", &[3.0])
            .stored("last", "i64[]", &[last])
            .node("Loop", &[most, "", "x"], &["y", "all"])
            .output("y");
        if !declared {
            fake = fake.output("all");
        }
        fake.graph().node[0].attribute = vec![graph_attribute("body", graph.clone())];
        fake
    };
    let x = [tensor("f32[2]", &[1.0, 2.0]), tensor("i64[]", &[9.0])];
    // The number of iterations ends the first loop, and the condition the others.
    let all = vec![1.0, 2.0, 2.0, 4.0, 4.0, 7.0];
    assert_eq!(run(&with("three", 9.0, false), &[], &x), [vec![7.0, 11.0], all]);
    for most in ["three", ""] {
        assert_eq!(run(&with(most, 0.0, false), &[], &x), [vec![2.0, 4.0], vec![1.0, 2.0]]);
    }
    let endless = with("", 9000.0, true).declared("y", "f32[2]");
    let notes = endless.import().expect("an opaque op").notes;
    assert!(notes.iter().any(|n| n.contains("more than 1024 iterations")), "{notes:?}");
    let by_data = with("n", 9.0, true).declared("y", "f32[2]");
    let notes = by_data.import().expect("an opaque op").notes;
    assert!(notes.iter().any(|n| n.contains("the number of iterations depends on data")), "{notes:?}");
}

#[test]
fn scans_of_constant_length_are_inlined() {
    let graph = iteration(&["s", "row"], &["next", "s"], vec![node("Add", &["s", "row"], &["next"])]);
    let with = |call: &str| {
        let mut fake = Fake::new(18)
            .input("s0", "f32[2]")
            .input("x", "f32[3,2]")
            .node(call, &["s0", "x"], &["y", "all"])
            .output("y")
            .output("all");
        fake.graph().node[0].attribute.push(graph_attribute("body", graph.clone()));
        fake
    };
    let x = [tensor("f32[2]", &[0.0, 1.0]), tensor("f32[3,2]", &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])];
    let forward = run(&with("Scan num_scan_inputs=1"), &[], &x);
    assert_eq!(forward, [vec![9.0, 13.0], vec![0.0, 1.0, 1.0, 3.0, 4.0, 7.0]]);
    let reverse =
        "Scan num_scan_inputs=1 scan_input_directions=[1] scan_output_directions=[1] scan_output_axes=[-1]";
    assert_eq!(run(&with(reverse), &[], &x), [vec![9.0, 13.0], vec![8.0, 5.0, 0.0, 11.0, 7.0, 1.0]]);
}

#[test]
fn arguments_that_select_branches_are_taken_for_known_values() {
    let mut fake = Fake::new(18)
        .input("x", "f32[2]")
        .input("rate", "i64[]")
        .stored("sixteen", "i64[]", &[16.0])
        .node("Equal", &["rate", "sixteen"], &["c"])
        .node("If", &["c"], &["y"])
        .output("y");
    // The branches have results of different types.
    fake.graph().node[1].attribute = vec![
        untyped_branch("then_branch", vec![node("Neg", &["x"], &["b"])]),
        untyped_branch("else_branch", vec![node("Cast to=7", &["x"], &["b"])]),
    ];
    let stated = |number: i64| {
        let constraint = SymbolConstraint::Range { min: Some(number), max: Some(number) };
        SymbolConstraints { constraints: vec![("rate".into(), constraint)], ..SymbolConstraints::default() }
    };
    let recorded =
        |number| ImportOptions { recorded_integers: vec![None, Some(number)], ..ImportOptions::default() };
    for options in [
        recorded(16),
        ImportOptions { constraints: stated(16), ..ImportOptions::default() },
        ImportOptions { constraints: stated(16), ..recorded(7) },
    ] {
        let imported = import(&[fake.source("a.onnx")], &options).expect("a program");
        let run = |rate: f64| {
            let inputs = [tensor("f32[2]", &[1.0, -2.0]), tensor("i64[]", &[rate])].map(Arc::new);
            symmc_ir::interp::run(&imported.graph, &SymbolBindings::new(), &[inputs.to_vec()])
        };
        assert_eq!(run(16.0).expect("results")[0][0].to_f64(), [-1.0, 2.0]);
        let error = run(8.0).expect_err("another value").to_string();
        assert!(error.contains("fixed_arguments"), "{error}");
        let is_noted = imported.notes.iter().any(|n| n.contains("assuming `rate` is 16, the recorded value"));
        assert_eq!(is_noted, options.constraints.constraints.is_empty(), "{:?}", imported.notes);
    }
    // Without a value, or with another dependency, nothing is known.
    let unknown = fake.clone().declared("y", "f32[2]").import().expect("an opaque op").notes.join("; ");
    assert!(unknown.contains("If (node `y`): the condition depends on data"), "{unknown}");
    let mut other = fake.clone().input("n", "i64[1]").declared("y", "f32[2]");
    other.graph().node[0].input[1] = "n".into();
    assert!(
        import(&[other.source("a.onnx")], &recorded(16))
            .expect("an opaque op")
            .notes
            .join("; ")
            .contains("If")
    );
}
