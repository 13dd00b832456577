//! Ops without support: the types of their results, notes and errors.

use symmc_import::declared::display_type;
use symmc_import::ranges::{SymbolConstraint, SymbolConstraints};
use symmc_ir::Op;
use symmc_onnx::{ImportOptions, import, proto};

use crate::common::Fake;

/// The types of the results of all opaque ops, and the notes.
fn opaque_types(fake: &Fake) -> (Vec<String>, Vec<String>) {
    let imported = fake.import().unwrap_or_else(|e| panic!("{e}"));
    let graph = &imported.graph;
    let opaque = graph.nodes.values().filter(|n| matches!(n.op, Op::Opaque { .. }));
    let types = opaque.flat_map(|n| &n.outputs).map(|&v| display_type(graph.ty(v), &graph.symbols));
    (types.collect(), imported.notes)
}

#[test]
fn unknown_ops_are_opaque_where_their_types_are_declared() {
    let fake = Fake::new(18)
        .input("x", "f32[tokens,4]")
        .declared("y", "f32[tokens,2]")
        .node("other::Thing size=3", &["x"], &["y"])
        .node("Relu", &["y"], &["z"])
        .output("z");
    let imported = fake.import().expect("a program");
    assert!(matches!(&imported.graph.nodes.values().next().expect("a node").op,
        Op::Opaque { name, attributes } if name == "other::Thing" && attributes == "size=3"));
    assert_eq!(
        imported.notes.last().expect("a note"),
        "these operators stay opaque, so the program does not run: \
         other::Thing (node `y`): this operator is not supported"
    );
}

#[test]
fn declared_extents_of_opaque_results_are_known_computed_or_new_symbols() {
    let thing = |ty: &str| {
        Fake::new(18)
            .input("x", "f32[n,4]")
            .declared("x2", "f32[unk__0,4]")
            .declared("y", ty)
            .node("Concat axis=0", &["x", "x"], &["x2"])
            .node("other::Thing", &["x2"], &["y"])
            .output("y")
    };
    for (ty, expected) in [
        ("f32[n,4]", "f32[n, 4]"),
        ("f32[unk__0,4]", "f32[2*n, 4]"),
        ("f32[unk__0 + 1,floor(n/2 - 1/2) + 1]", "f32[2*n + 1, div(n + 1, 2)]"),
        ("f32[unk__7,unk__7]", "f32[unk__7, unk__7]"),
        ("f32[?,sqrt(n)]", "f32[y_0, sqrt_n_]"),
    ] {
        assert_eq!(opaque_types(&thing(ty)).0, [expected], "{ty}");
    }
    let imported = thing("f32[unk__7,4]").import().expect("a program");
    let assumed: Vec<String> = imported.assumed_sizes.iter().map(|(s, c)| format!("{s}={c}")).collect();
    assert_eq!(assumed, ["n=0..1048576", "unk__7=0..1048576"]);
    let constraint = SymbolConstraint::Range { min: None, max: Some(9) };
    let constraints = vec![("unk__7".to_string(), constraint)];
    let options = ImportOptions {
        constraints: SymbolConstraints { constraints, ..SymbolConstraints::default() },
        ..ImportOptions::default()
    };
    let imported = import(&[thing("f32[unk__7,4]").source("a.onnx")], &options).expect("a program");
    let symbol = imported.graph.symbols.values().find(|s| s.name == "unk__7").expect("a symbol");
    assert_eq!(symbol.max, 9);
    // The nodes after it may contradict the extents that are not known.
    let after = thing("f32[?,?]").node("Add", &["y", "x"], &["z"]).declared("z", "f32[n,4]").output("z");
    assert_eq!(opaque_types(&after).0, ["f32[y_0, y_1]", "f32[n, 4]"]);
}

#[test]
fn schemas_give_types_that_programs_do_not_declare() {
    let unary = |op: &str| Fake::new(22).input("x", "f32[n,4,6]").node(op, &["x"], &["y"]).output("y");
    for (op, expected) in [
        ("Bernoulli", "f32[n, 4, 6]"),
        ("com.microsoft::BiasAdd", "f32[n, 4, 6]"),
        ("com.microsoft::NhwcConv", "f32[n, y_1, y_2]"),
        ("com.microsoft::MatMulBnb4 N=7", "f32[n, 4, 7]"),
    ] {
        assert_eq!(opaque_types(&unary(op)).0, [expected], "{op}");
    }
}

#[test]
fn empty_declared_types_say_nothing() {
    let with = |ty: proto::TypeProto| {
        let mut fake = Fake::new(22)
            .input("x", "f32[n,4]")
            .node("Relu", &["x"], &["y"])
            .node("Bernoulli", &["y"], &["z"])
            .output("z");
        for name in ["y", "z"] {
            fake.graph()
                .value_info
                .push(proto::ValueInfoProto { name: name.into(), r#type: Some(ty.clone()) });
        }
        fake
    };
    assert_eq!(opaque_types(&with(proto::TypeProto::default())).0, ["f32[n, 4]"]);
    let sequence = Some(proto::OtherTypeProto {});
    let error = with(proto::TypeProto { sequence_type: sequence, ..proto::TypeProto::default() }).error();
    assert!(error.contains("`y`: expected a tensor, found a sequence"), "{error}");
}

#[test]
fn all_ops_without_support_are_named_at_once() {
    let fake = Fake::new(18)
        .input("x", "f32[4]")
        .node("Thing", &["x"], &["y"])
        .node("Relu", &["y"], &["z"])
        .node("other::Part", &["z"], &["w"])
        .node("Thing", &["x"], &["v"])
        .declared("u", "f32[4]")
        .node("Known", &["x"], &["u"])
        .output("w")
        .output("u")
        .output("v");
    let error = fake.error();
    let expected = "these operators are not supported, and neither the program nor their schema gives the types of \
        their results: Thing (2 nodes, first `y`): this operator is not supported; the program declares no type for \
        its result `y`; other::Part (node `w`): this operator is not supported; onnx.shape_inference";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn nodes_after_opaque_ones_are_opaque_if_they_contradict_unknown_extents() {
    let fake = Fake::new(18)
        .input("x", "f32[1,3,8,8]")
        .input("w", "f32[4,3,3,3]")
        .input("axis", "i64[1]")
        .stored("shape", "i64[2]", &[1.0, 7.0])
        .node("other::Conv", &["x", "w"], &["c"])
        .declared("c", "f32[1,4,?,?]")
        .node("Add", &["c", "x"], &["d"])
        .node("Reshape", &["d", "shape"], &["e"])
        .node("Squeeze", &["e", "axis"], &["f"])
        .declared("g", "f32[3,9]")
        .node("Add", &["f", "y3"], &["g"])
        .node("LSTM hidden_size=5", &["y3", "w3", "r3"], &["y", "h"])
        .input("y3", "f32[2000,2,3]")
        .input("w3", "f32[1,20,3]")
        .input("r3", "f32[1,20,5]")
        .output("f")
        .output("g")
        .output("y")
        .output("h");
    let expected = [
        "f32[1, 4, c_2, c_3]",
        "f32[1, d_1, d_2, d_3]",
        "f32[e_0, e_1]",
        "f32[f_0]",
        "f32[3, 9]",
        "f32[2000, 1, 2, 5]",
        "f32[1, 2, 5]",
    ];
    assert_eq!(opaque_types(&fake).0, expected);
}
