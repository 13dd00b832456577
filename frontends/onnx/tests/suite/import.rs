//! Work of an import besides the ops: computed shapes, functions, branches, declared types, several files.

use std::sync::Arc;

use symmc_import::declared::display_type;
use symmc_import::ranges::{SymbolConstraint, SymbolConstraints};
use symmc_ir::{DType, Graph, InputKind, Op, SymbolBindings, Tensor};
use symmc_onnx::{ImportOptions, ModelSource, import, proto};

use crate::common::{Fake, node, stored, tensor, value};

/// The lines of a program after its header.
fn body(fake: &Fake) -> Vec<String> {
    let text = fake.text();
    text.lines().skip_while(|l| !l.is_empty()).map(String::from).filter(|l| !l.is_empty()).collect()
}

fn import_all(fakes: &[&Fake]) -> Result<symmc_onnx::ImportOutput, symmc_onnx::ImportError> {
    let files: Vec<ModelSource> =
        fakes.iter().enumerate().map(|(rank, f)| f.source(&format!("r{rank}.onnx"))).collect();
    import(&files, &ImportOptions::default())
}

fn assert_error_contains(fake: &Fake, part: &str) {
    let error = fake.error();
    assert!(error.contains(part), "{part:?} is missing in: {error}");
}

#[test]
fn shapes_that_a_program_computes_are_known() {
    // Reshapes [tokens, 8] to [tokens, 2, 4] by the shape of the operand, and back by its size.
    let fake = Fake::new(18)
        .input("x", "f32[tokens,8]")
        .stored("zero", "i64[]", &[0.0])
        .stored("first", "i64[1]", &[0.0])
        .stored("heads", "i64[1]", &[2.0])
        .stored("open", "i64[1]", &[-1.0])
        .stored("two", "i64[]", &[2.0])
        .node("Shape", &["x"], &["shape"])
        .node("Gather axis=0", &["shape", "zero"], &["n"])
        .node("Unsqueeze", &["n", "first"], &["n1"])
        .node("Concat axis=0", &["n1", "heads", "open"], &["target"])
        .node("Reshape", &["x", "target"], &["y"])
        .node("Size", &["y"], &["size"])
        .node("Div", &["size", "two"], &["half"])
        .node("Cast to=7", &["half"], &["half64"])
        .node("Reshape", &["half64", "first1"], &["half1"])
        .stored("first1", "i64[1]", &[1.0])
        .node("Concat axis=0", &["heads", "half1"], &["target2"])
        .node("Reshape", &["y", "target2"], &["z"])
        .output("z");
    assert_eq!(
        body(&fake),
        [
            "arg %x: f32[tokens, 8] source \"x\"",
            "%y: f32[tokens, 2, 4] = reshape %x",
            "%z: f32[2, 4*tokens] = reshape %y",
            "return %z",
        ]
    );
}

#[test]
fn comparisons_of_extents_choose() {
    // The pattern that exporters write for `expand` with -1.
    let fake = Fake::new(18)
        .input("x", "f32[tokens,1]")
        .stored("minus", "i64[2]", &[-1.0, -1.0])
        .stored("given", "i64[2]", &[-1.0, 4.0])
        .node("Shape", &["x"], &["shape"])
        .node("Equal", &["given", "minus"], &["open"])
        .node("Where", &["open", "shape", "given"], &["target"])
        .node("Expand", &["x", "target"], &["y"])
        .output("y");
    assert!(body(&fake).contains(&"%y: f32[tokens, 4] = expand %x".to_string()), "{}", fake.text());
}

#[test]
fn positions_up_to_an_extent_are_an_iota() {
    let fake = Fake::new(18)
        .input("x", "f32[batch,seq]")
        .stored("zero", "i64[]", &[0.0])
        .stored("one", "i64[]", &[1.0])
        .node("Shape start=1 end=2", &["x"], &["n1"])
        .node("Squeeze", &["n1"], &["n"])
        .node("Range", &["zero", "n", "one"], &["positions"])
        .node("Cast to=1", &["positions"], &["y"])
        .output("y");
    assert_eq!(
        body(&fake)[1..3],
        ["%positions: i64[seq] = iota start=0 step=1", "%y: f32[seq] = cast %positions"]
    );
}

#[test]
fn constants_take_the_dtype_of_others() {
    let fake = Fake::new(18)
        .input("x", "f16[n]")
        .stored("zero", "i64[]", &[0.0])
        .stored("two", "f32[]", &[2.0])
        .node("Shape", &["x"], &["shape"])
        .node("Squeeze", &["shape"], &["n"])
        .node("CastLike", &["zero", "n"], &["start"])
        .stored("one", "i64[]", &[1.0])
        .node("Range", &["start", "n", "one"], &["r"])
        .node("CastLike", &["two", "x"], &["factor"])
        .node("Mul", &["x", "factor"], &["y"])
        .output("r")
        .output("y");
    assert_eq!(body(&fake)[1..3], ["%r: i64[n] = iota start=0 step=1", "%y: f16[n] = mul %x, 2.0"]);
}

#[test]
fn constants_are_computed() {
    // 1 / sqrt(sqrt(8)), as exporters of attention write it.
    let fake = Fake::new(18)
        .input("x", "f32[tokens,8]")
        .stored("last", "i64[1]", &[-1.0])
        .stored("one", "f32[]", &[1.0])
        .node("Shape", &["x"], &["shape"])
        .node("Gather axis=0", &["shape", "last"], &["width"])
        .node("Cast to=1", &["width"], &["widthf"])
        .node("Sqrt", &["widthf"], &["root"])
        .node("Div", &["one", "root"], &["scale"])
        .node("Sqrt", &["scale"], &["half"])
        .node("Mul", &["x", "half"], &["y"])
        .output("y");
    let line = body(&fake)[1].clone();
    assert!(line.starts_with("%y: f32[tokens, 8] = mul %x, 0.594603"), "{line}");
}

fn doubled() -> proto::FunctionProto {
    proto::FunctionProto {
        name: "scaled".into(),
        domain: "my".into(),
        input: vec!["a".into(), "b".into()],
        output: vec!["c".into()],
        attribute: vec!["alpha".into()],
        node: vec![node("Gemm alpha=@alpha", &["a", "a", "b"], &["t"]), node("Relu", &["t"], &["c"])],
        opset_import: vec![proto::OperatorSetIdProto { domain: String::new(), version: 18 }],
        ..proto::FunctionProto::default()
    }
}

#[test]
fn functions_take_the_place_of_their_calls() {
    let fake = Fake::new(18)
        .function(doubled())
        .input("x", "f32[2,2]")
        .node("my::scaled alpha=0.5", &["x"], &["y"])
        .node("my::scaled alpha=1.0", &["y", "x"], &["z"])
        .output("z");
    assert_eq!(
        body(&fake),
        [
            "arg %x: f32[2, 2] source \"x\"",
            "%y.t.matmul: f32[2, 2] = matmul %x, %x",
            "%y.t: f32[2, 2] = mul %y.t.matmul, 0.5",
            "%y.c: f32[2, 2] = relu %y.t",
            "%z.t.matmul: f32[2, 2] = matmul %y.c, %y.c",
            "%z.t: f32[2, 2] = add %z.t.matmul, %x",
            "%z.c: f32[2, 2] = relu %z.t",
            "return %z.c",
        ]
    );
    let mut recursive = doubled();
    recursive.node = vec![node("my::scaled", &["a", "b"], &["c"])];
    let fake = Fake::new(18)
        .function(recursive)
        .input("x", "f32[2,2]")
        .node("my::scaled", &["x"], &["y"])
        .output("y");
    assert_error_contains(&fake, "nested more than 32 deep");
}

#[test]
fn functions_that_double_do_not_explode() {
    let mut fake = Fake::new(18).input("x", "f32[2]");
    for level in 0..30 {
        let inner = if level == 0 { "Relu".to_string() } else { format!("my::f{}", level - 1) };
        fake = fake.function(proto::FunctionProto {
            name: format!("f{level}"),
            domain: "my".into(),
            input: vec!["a".into()],
            output: vec!["c".into()],
            node: vec![node(&inner, &["a"], &["b"]), node(&inner, &["b"], &["c"])],
            ..proto::FunctionProto::default()
        });
    }
    assert_error_contains(&fake.node("my::f29", &["x"], &["y"]).output("y"), "expand to more than");
}

/// A branch of an `If` with the result `b`.
fn branch(
    name: &str,
    nodes: Vec<proto::NodeProto>,
    initializer: Vec<proto::TensorProto>,
) -> proto::AttributeProto {
    let graph = proto::GraphProto {
        node: nodes,
        initializer,
        output: vec![value("b", "f32[2]")],
        ..proto::GraphProto::default()
    };
    proto::AttributeProto {
        name: name.into(),
        r#type: proto::attribute_type::GRAPH,
        g: Some(Box::new(graph)),
        ..proto::AttributeProto::default()
    }
}

#[test]
fn branches_by_constants_are_taken() {
    let attribute = |name: &str, op: &str| branch(name, vec![node(op, &["x"], &["b"])], vec![]);
    let mut fake = Fake::new(18)
        .input("x", "f32[2]")
        .stored("no", "bool[]", &[0.0])
        .node("If", &["no"], &["y"])
        .output("y");
    fake.graph().node[0].attribute = vec![attribute("then_branch", "Neg"), attribute("else_branch", "Abs")];
    assert_eq!(body(&fake)[1], "%y.b: f32[2] = abs %x");
}

/// The results of a program of these arguments at these sizes.
fn run(fake: &Fake, sizes: &[i64], arguments: &[Tensor]) -> Vec<Vec<f64>> {
    let graph = fake.import().unwrap_or_else(|e| panic!("{e}")).graph;
    let mut bindings = SymbolBindings::new();
    for (symbol, size) in graph.symbols.keys().zip(sizes) {
        bindings.set(symbol, *size);
    }
    let mut arguments = arguments.iter().cloned().map(Arc::new);
    let inputs = graph.inputs.values().map(|input| match input.kind {
        InputKind::Argument => arguments.next().expect("an argument"),
        _ => input.data.clone().expect("a constant"),
    });
    let results = symmc_ir::interp::run(&graph, &bindings, &[inputs.collect()]).expect("results");
    results[0].iter().map(Tensor::to_f64).collect()
}

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
        ([("Gather", ["x", "i"].as_slice()), ("Abs", &["x"])], "a branch has take, which may fail"),
        (
            [("Abs", &["i"]), ("Abs", &["x"])],
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
        notes.iter().any(|n| n.contains("assuming 2 is at most n: the branches of `y`, which")),
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
fn parameters_of_branches_have_sources_of_their_own() {
    // Two branches each store another `w`. The source names that they would get are taken or equal.
    let times = |numbers: &[f64]| {
        let weight = stored("w", &tensor("f32[2]", numbers));
        vec![branch("then_branch", vec![node("Mul", &["x", "w"], &["b"])], vec![weight])]
    };
    let mut fake = Fake::new(18)
        .input("x", "f32[2]")
        .stored("yes", "bool[]", &[1.0])
        .stored("w", "f32[2]", &[1.0, 2.0])
        .stored("if.w", "f32[2]", &[3.0, 4.0]);
    for (result, numbers) in [("p", [5.0, 6.0]), ("q", [7.0, 8.0])] {
        fake = fake.node("If", &["yes"], &[result]);
        let node = fake.graph().node.last_mut().expect("the node");
        (node.name, node.attribute) = ("if".into(), times(&numbers));
    }
    let fake = fake.node("Sum", &["p", "q", "w", "if.w"], &["y"]).output("y");
    let imported = fake.import().expect("a program");
    let actual: Vec<_> = parameters(&imported.graph)
        .into_iter()
        .map(|source| (source, imported.weights[0][source].to_f64()))
        .collect();
    let expected = [
        ("w", vec![1.0, 2.0]),
        ("if.w", vec![3.0, 4.0]),
        ("if.w#2", vec![5.0, 6.0]),
        ("if.w#3", vec![7.0, 8.0]),
    ];
    assert_eq!(actual, expected);
}

#[test]
fn large_constants_of_functions_have_sources_of_their_own() {
    let numbers: Vec<f64> = (0..150_000).map(f64::from).collect();
    let mut constant = node("Constant", &[], &["w"]);
    constant.attribute = vec![proto::AttributeProto {
        name: "value".into(),
        r#type: proto::attribute_type::TENSOR,
        t: Some(Box::new(stored("", &tensor("i64[150000]", &numbers)))),
        ..proto::AttributeProto::default()
    }];
    let function = proto::FunctionProto {
        name: "Block".into(),
        domain: "my".into(),
        input: vec!["a".into()],
        output: vec!["b".into()],
        node: vec![constant, node("Add", &["a", "w"], &["b"])],
        ..proto::FunctionProto::default()
    };
    let twice: Vec<f64> = numbers.iter().map(|n| n * 2.0).collect();
    let fake = Fake::new(18)
        .input("x", "i64[150000]")
        .stored("t.w", "i64[150000]", &twice)
        .function(function)
        .node("my::Block", &["x"], &["t"])
        .node("Add", &["t", "t.w"], &["y"])
        .output("y");
    let imported = fake.import().expect("a program");
    assert_eq!(parameters(&imported.graph), ["t.w", "t.w#2"]);
    assert_eq!(imported.weights[0]["t.w"].to_f64(), twice);
    assert_eq!(imported.weights[0]["t.w#2"].to_f64(), numbers);
}

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
    let (_, notes) = opaque_types(&thing("f32[unk__7,4]"));
    assert!(
        notes.contains(&"symbol unk__7 has no upper bound in the program; assuming 1048576".into()),
        "{notes:?}"
    );
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
        ("GlobalLpPool", "f32[n, y_1, y_2]"),
        ("com.microsoft::MatMulNBits N=7", "f32[n, 4, 7]"),
        ("NonZero", "i64[3, y_1]"),
    ] {
        assert_eq!(opaque_types(&unary(op)).0, [expected], "{op}");
    }
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
fn declared_types_are_held_against_results() {
    let wrong = |ty| {
        Fake::new(18).input("x", "f32[tokens,4]").declared("y", ty).node("Relu", &["x"], &["y"]).output("y")
    };
    for ty in ["f32[tokens,5]", "f16[tokens,4]", "f32[tokens]"] {
        assert_error_contains(&wrong(ty), "the program declares");
    }
    for ty in ["f32[tokens,4]", "f32[?,4]", "f32[other,4]", "f32[s7*2,4]"] {
        wrong(ty).import().unwrap_or_else(|e| panic!("{ty}: {e}"));
    }
}

fn parallel(weight: f64, factor: f64, extent: f64) -> Fake {
    Fake::new(18)
        .input("x", "f32[n,2]")
        .stored("w", "f32[2,2]", &[weight, 0.0, 0.0, weight])
        .stored("factor", "f32[]", &[factor])
        .stored("shape", "i64[2]", &[extent, -1.0])
        .node("MatMul", &["x", "w"], &["h"])
        .node("com.microsoft::AllReduce group_size=2", &["h"], &["r"])
        .node("Mul", &["r", "factor"], &["s"])
        .node("Reshape", &["s", "shape"], &["y"])
        .output("y")
}

fn parameters(graph: &Graph) -> Vec<&str> {
    let parameters = graph.inputs.values().filter(|i| i.kind == InputKind::Parameter);
    parameters.map(|i| i.source.as_str()).collect()
}

#[test]
fn files_of_ranks_differ_in_weights_alone() {
    let (a, b) = (parallel(1.0, 3.0, 2.0), parallel(2.0, 3.0, 2.0));
    let imported = import_all(&[&a, &b]).expect("one program");
    assert_eq!(parameters(&imported.graph), ["w"]);
    assert_eq!(imported.weights[0]["w"].to_f64(), [1.0, 0.0, 0.0, 1.0]);
    assert_eq!(imported.weights[1]["w"].to_f64(), [2.0, 0.0, 0.0, 2.0]);
    // A factor that differs between the files becomes a weight, too.
    let second = parallel(2.0, 4.0, 2.0);
    let imported = import_all(&[&a, &second]).expect("one program");
    assert_eq!(parameters(&imported.graph), ["w", "factor"]);
    assert_eq!(imported.weights[1]["factor"].to_f64(), [4.0]);
    // A shape must not differ.
    let second = parallel(2.0, 3.0, 1.0);
    let error = import_all(&[&a, &second]).expect_err("two shapes").to_string();
    assert!(error.contains("`shape`") && error.contains("differs between the ranks"), "{error}");
    // Nodes must not differ either.
    let mut second = b.clone();
    second.graph().node[2].op_type = "Add".into();
    let error = import_all(&[&a, &second]).expect_err("two programs").to_string();
    assert!(error.starts_with("r1.onnx: the program differs from that of r0.onnx"), "{error}");
    assert!(error.contains("= mul %r, 3.0`, found `") && error.contains("= add %r, 3.0`"), "{error}");
    let error = import_all(&[&a, &b, &b]).expect_err("three files").to_string();
    assert!(error.contains("expected 2 files") && error.contains("found 3"), "{error}");
    // Names of values and initializers may differ.
    let mut renamed = b.clone();
    for node in &mut renamed.graph().node {
        for name in node.input.iter_mut().chain(&mut node.output) {
            *name = if name == "y" || name == "x" { name.clone() } else { format!("other_{name}") };
        }
    }
    renamed.graph().initializer.iter_mut().for_each(|t| t.name = format!("other_{}", t.name));
    let imported = import_all(&[&a, &renamed]).expect("one program");
    assert_eq!(imported.weights[1]["w"].to_f64(), [2.0, 0.0, 0.0, 2.0]);
}

#[test]
fn the_first_difference_between_ranks_is_named() {
    let rank = |extent: &str, reduced: bool| {
        let fake = Fake::new(18).input("x", &format!("f32[{extent},2]")).node("Neg", &["x"], &["t"]);
        let reduce = "com.microsoft::AllReduce group_size=2";
        let fake = if reduced { fake.node(reduce, &["t"], &["y"]) } else { fake.node("Abs", &["t"], &["y"]) };
        fake.output("y")
    };
    let error = |other: &Fake| import_all(&[&rank("n", true), other]).expect_err("two programs").to_string();
    let extent = error(&rank("7", true));
    assert!(
        extent.contains("expected `arg %x: f32[n, 2] source \"x\"`, found `arg %x: f32[7, 2]"),
        "{extent}"
    );
    let node = error(&rank("n", false));
    assert!(node.contains("all_reduce") && node.contains("abs %t`"), "{node}");
    // An extent is shown with its name in the program.
    let groups = Fake::new(21).input("x", "f32[1,tokens,2]").stored("w", "f32[2]", &[1.0, 2.0]);
    let groups = groups.node("GroupNormalization num_groups=3", &["x", "w", "w"], &["y"]).output("y");
    assert_error_contains(&groups, "expected 3 groups to divide tokens channels");
    let incompatible = Fake::new(18).input("x", "f32[tokens,3]").input("z", "f32[tokens,2]");
    let incompatible = incompatible.node("Add", &["x", "z"], &["y"]).output("y");
    assert_error_contains(&incompatible, "the shapes [tokens, 3] and [tokens, 2] do not broadcast");
    // One file for two ranks.
    let file = rank("n", true).source("r.onnx");
    let imported = import(&[file.clone(), file], &ImportOptions::default()).expect("one program");
    assert_eq!(
        imported.notes.last().expect("a note"),
        "r.onnx is given for several ranks: they have the same weights"
    );
}

#[test]
fn constants_of_ranks_differ_by_their_place() {
    // A Constant, an initializer under another name, one of a branch, and a Constant of a function.
    let rank = |n: f64, name: &str| {
        let add = |x: &str, y: &str| node("Add", &[x, y], &["b"]);
        let constant = |name: &str| node(&format!("Constant value={{f32[2]:1 {n}}}"), &[], &[name]);
        let inner = vec![stored("inner", &tensor("f32[]", &[n + 1.0]))];
        let mut fake = Fake::new(18)
            .input("x", "f32[2]")
            .stored("yes", "bool[]", &[1.0])
            .stored(name, "f32[]", &[n + 2.0])
            .function(proto::FunctionProto {
                name: "shifted".into(),
                domain: "my".into(),
                input: vec!["x".into()],
                output: vec!["b".into()],
                node: vec![constant("c"), add("x", "c")],
                ..proto::FunctionProto::default()
            })
            .node("If", &["yes"], &["p"]);
        fake.graph().node[0].attribute = vec![branch("then_branch", vec![add("x", "inner")], inner)];
        fake.graph().node.push(constant("k"));
        fake.node("my::shifted", &["x"], &["q"]).node("Sum", &["p", "q", "k", name], &["y"]).output("y")
    };
    let imported = import_all(&[&rank(3.0, "off"), &rank(5.0, "off_r1")]).expect("one program");
    let weights_of = |rank: usize| -> Vec<f64> {
        let sources = parameters(&imported.graph).into_iter();
        sources.flat_map(|source| imported.weights[rank][source].to_f64()).collect()
    };
    assert_eq!(parameters(&imported.graph), ["off", "p.inner", "k", "q.c"]);
    assert_eq!(weights_of(0), [5.0, 4.0, 1.0, 3.0, 1.0, 3.0]);
    assert_eq!(weights_of(1), [7.0, 6.0, 1.0, 5.0, 1.0, 5.0]);
}

#[test]
fn ranks_are_what_collectives_say() {
    let mut fake = parallel(1.0, 3.0, 2.0);
    assert_eq!(fake.import().expect("a program").graph.ranks, Some(2));
    let options = ImportOptions { ranks: Some(4), ..ImportOptions::default() };
    let error = import(&[fake.source("m.onnx")], &options).expect_err("two numbers").to_string();
    assert_eq!(
        error,
        "m.onnx: conflicting numbers of ranks: the caller says 4, the group_size of node `r` is 2"
    );
    fake = fake.node("com.microsoft::AllGather group_size=4", &["y"], &["z"]).output("z");
    assert_error_contains(&fake, "the group_size of node `r` is 2, the group_size of node `z` is 4");
    let without_collectives = Fake::new(18).input("x", "f32[2]").node("Relu", &["x"], &["y"]).output("y");
    assert_eq!(without_collectives.import().expect("a program").graph.ranks, Some(1));
}

#[test]
fn collectives_count_where_they_are_put_in_place() {
    let reduce = |size: &str| node(&format!("com.microsoft::AllReduce group_size={size}"), &["x"], &["b"]);
    let function = |name: &str, size: &str| proto::FunctionProto {
        name: name.into(),
        domain: "my".into(),
        input: vec!["x".into()],
        output: vec!["b".into()],
        attribute: size.strip_prefix('@').map(String::from).into_iter().collect(),
        node: vec![reduce(size)],
        ..proto::FunctionProto::default()
    };
    let ranks = |fake: &Fake| fake.import().unwrap_or_else(|e| panic!("{e}")).graph.ranks;
    // A collective in the branch that is taken counts, one in the other branch does not.
    let mut fake = Fake::new(18)
        .input("x", "f32[2]")
        .stored("yes", "bool[]", &[1.0])
        .node("If", &["yes"], &["y"])
        .output("y");
    fake.graph().node[0].attribute = vec![
        branch("then_branch", vec![reduce("2")], vec![]),
        branch("else_branch", vec![reduce("4")], vec![]),
    ];
    assert_eq!(ranks(&fake), Some(2));
    // A collective in a called function, whose group_size is an attribute of the call.
    let fake = Fake::new(18)
        .input("x", "f32[2]")
        .function(function("called", "@size"))
        .function(function("unused", "4"))
        .node("my::called size=2", &["x"], &["y"])
        .output("y");
    assert_eq!(ranks(&fake), Some(2));
    let called_twice = fake.node("my::called size=3", &["y"], &["z"]).output("z");
    assert_error_contains(
        &called_twice,
        "the group_size of node `y.b` is 2, the group_size of node `z.b` is 3",
    );
}

#[test]
fn all_gather_and_all_to_all_follow_their_axes() {
    let gather = |axis: i64| {
        Fake::new(18)
            .input("x", "f32[n,3]")
            .node(&format!("com.microsoft::AllGather group_size=2 axis={axis}"), &["x"], &["y"])
            .output("y")
    };
    assert_eq!(body(&gather(0))[1], "%y: f32[2*n, 3] = all_gather %x group=@world");
    assert_eq!(
        body(&gather(-1))[1..5],
        [
            "%y.all_gather: f32[2*n, 3] = all_gather %x group=@world",
            "%y.reshape: f32[2, n, 3] = reshape %y.all_gather",
            "%y.permute: f32[n, 2, 3] = permute %y.reshape perm=[1, 0, 2]",
            "%y: f32[n, 6] = reshape %y.permute",
        ]
    );
    let exchange = Fake::new(18)
        .input("x", "f32[4*n,3]")
        .node("com.microsoft::AllToAll group_size=2", &["x"], &["y"])
        .output("y");
    assert_eq!(body(&exchange)[1], "%y: f32[4*n, 3] = all_to_all %x splits=even group=@world");
}

#[test]
fn norm_returns_the_sum_before_it() {
    let fake = Fake::new(18)
        .input("x", "f32[n,4]")
        .input("skip", "f32[n,4]")
        .stored("g", "f32[4]", &[1.0, 2.0, 3.0, 4.0])
        .node(
            "com.microsoft::SkipSimplifiedLayerNormalization epsilon=0.01",
            &["x", "skip", "g"],
            &["y", "", "", "sum"],
        )
        .output("y")
        .output("sum");
    assert_eq!(
        body(&fake)[2..5],
        [
            "param %g: f32[4] source \"g\"",
            "%sum: f32[n, 4] = add %x, %skip",
            "%y: f32[n, 4] = rms_norm %sum, %g axes=1 eps=0.01 round_first=true",
        ]
    );
}

#[test]
fn sequences_are_their_elements() {
    let fake = Fake::new(18)
        .input("x", "f32[n,8]")
        .stored("half", "i64[]", &[4.0])
        .stored("last", "i64[]", &[-1.0])
        .node("SplitToSequence axis=1", &["x", "half"], &["parts"])
        .node("SequenceAt", &["parts", "last"], &["y"])
        .node("SequenceConstruct", &["y", "x"], &["both"])
        .node("ConcatFromSequence axis=-1", &["both"], &["z"])
        .output("z");
    assert_eq!(
        body(&fake)[2..],
        [
            "%parts.slice.2: f32[n, 4] = slice %x axis=1 start=4 step=1",
            "%z: f32[n, 12] = concat %parts.slice.2, %x axis=1",
            "return %z",
        ]
    );
    let wrong = Fake::new(18).input("x", "f32[8]").node("SplitToSequence", &["x"], &["p"]).node(
        "Relu",
        &["p"],
        &["y"],
    );
    assert_error_contains(&wrong.output("y"), "`p` is a sequence");
}

#[test]
fn triangles_may_start_at_an_extent() {
    let fake = Fake::new(18)
        .input("x", "f32[t,past + t]")
        .input("k", "f32[past,1]")
        .node("Shape end=1", &["k"], &["n"])
        .node("Squeeze", &["n"], &["at"])
        .node("Trilu upper=0", &["x", "at"], &["y"])
        .output("y");
    let imported = fake.import().expect("a program");
    let numbers = |ty: &str, count: usize| {
        let ones = vec![1.0; count];
        std::sync::Arc::new(tensor(ty, &ones))
    };
    let inputs = vec![numbers("f32[2,5]", 10), numbers("f32[3,1]", 3)];
    let first: Vec<&symmc_ir::Tensor> = inputs.iter().map(|t| &**t).collect();
    let bindings = symmc_ir::interp::infer_bindings(&imported.graph, &first).expect("extents");
    let outputs = symmc_ir::interp::run(&imported.graph, &bindings, &[inputs]).expect("a run");
    assert_eq!(outputs[0][0].to_f64(), [1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
}

#[test]
fn names_are_made_fit_and_unique() {
    let fake = Fake::new(18)
        .input("/in put", "f32[n,4]")
        .node("Relu", &["/in put"], &["_in_put"])
        .node("Relu", &["_in_put"], &["/in_put"])
        .output("/in_put");
    assert_eq!(
        body(&fake),
        [
            "arg %_in_put: f32[n, 4] source \"/in put\"",
            "%_in_put.2: f32[n, 4] = relu %_in_put",
            "%_in_put.3: f32[n, 4] = relu %_in_put.2",
            "return %_in_put.3",
        ]
    );
}

#[test]
fn models_that_are_none_are_named() {
    let no_graph = {
        let mut fake = Fake::new(18);
        fake.model.graph = None;
        fake
    };
    assert_error_contains(&no_graph, "model.onnx: expected an ONNX model, found");
    let mut old = Fake::new(6).input("x", "f32[2]").node("Relu", &["x"], &["y"]).output("y");
    assert_error_contains(&old, "expected version 7 to 28 of ONNX's operators, found version 6");
    old.model.opset_import.clear();
    assert_error_contains(&old, "found none");
    let twice = Fake::new(18)
        .input("x", "f32[2]")
        .node("Relu", &["x"], &["y"])
        .node("Neg", &["x"], &["y"])
        .output("y");
    assert_error_contains(&twice, "expected one definition of `y`, found two");
    assert_error_contains(
        &Fake::new(18).input("x", "f32[2]").output("y"),
        "`y`: `y` is not defined before it is used",
    );
    assert_error_contains(
        &Fake::new(18).input("x", "f32[2]").node("Relu", &["w"], &["y"]).output("y"),
        "`w` is not defined before it is used",
    );
}

#[test]
fn stored_data_must_fit_their_type() {
    let with = |edit: &dyn Fn(&mut proto::TensorProto)| {
        let mut t = stored("w", &tensor("f32[2,2]", &[1.0, 2.0, 3.0, 4.0]));
        edit(&mut t);
        Fake::new(18).input("x", "f32[n,2]").held(t).node("MatMul", &["x", "w"], &["y"]).output("y")
    };
    with(&|_| ()).import().expect("a program");
    with(&|t| {
        t.raw_data = None;
        t.float_data = vec![1.0, 2.0, 3.0, 4.0];
    })
    .import()
    .expect("typed data");
    assert_error_contains(
        &with(&|t| t.dims = vec![2, 3]),
        "stored tensor `w`: expected 24 bytes for f32[2, 3], found 16 in raw_data",
    );
    assert_error_contains(&with(&|t| t.raw_data = None), "found 0 in typed fields");
    assert_error_contains(&with(&|t| t.dims = vec![-1, 2]), "extents, each 0 or more");
    assert_error_contains(&with(&|t| t.dims = vec![1 << 62, 1 << 62]), "expected fewer elements");
    assert_error_contains(
        &with(&|t| t.data_type = 3),
        "the stored tensor `w` has the element type int8, which is not supported",
    );
    assert_error_contains(&with(&|t| t.data_type = 99), "an element type of number 99");
    let unused = with(&|_| ()).held(proto::TensorProto {
        name: "odd".into(),
        data_type: 8,
        ..proto::TensorProto::default()
    });
    unused.import().expect("what nothing reads is not looked at");
}

#[test]
fn typed_fields_hold_narrow_floats_and_bools() {
    for (ty, code, ints, expected) in [
        ("f16", 10, vec![0x3c00, 0xc000], [1.0, -2.0]),
        ("bf16", 16, vec![0x3f80, 0xc000], [1.0, -2.0]),
        ("bool", 9, vec![0, 7], [0.0, 1.0]),
        ("u8", 2, vec![3, 255], [3.0, 255.0]),
        ("i32", 6, vec![3, -255], [3.0, -255.0]),
    ] {
        let stored = proto::TensorProto {
            name: "c".into(),
            dims: vec![2],
            data_type: code,
            int32_data: ints,
            ..proto::TensorProto::default()
        };
        let imported = Fake::new(18)
            .input("x", &format!("{ty}[2]"))
            .held(stored)
            .node("Identity", &["c"], &["y"])
            .output("y")
            .import();
        let imported = imported.unwrap_or_else(|e| panic!("{ty}: {e}"));
        let data = imported
            .graph
            .inputs
            .values()
            .find_map(|i| i.data.clone())
            .or(imported.weights[0].get("c").cloned());
        let data = data.expect("data");
        assert_eq!(
            (data.dtype(), data.to_f64()),
            (DType::from_name(ty).expect("a dtype"), expected.to_vec())
        );
    }
}

#[test]
fn external_data_is_read_only_within_its_folder() {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(dir.path().join("in")).expect("a folder");
    let bytes: Vec<u8> = [0.0f32, 1.0, 2.0, 3.0, 4.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    std::fs::write(dir.path().join("in/w.data"), &bytes).expect("written");
    std::fs::write(dir.path().join("out.data"), &bytes).expect("written");
    let import = |entries: &[(&str, &str)]| {
        let external = entries
            .iter()
            .map(|(k, v)| proto::StringStringEntryProto { key: (*k).into(), value: (*v).into() });
        let stored = proto::TensorProto {
            name: "w".into(),
            dims: vec![2, 2],
            data_type: 1,
            data_location: proto::EXTERNAL,
            external_data: external.collect(),
            ..proto::TensorProto::default()
        };
        let fake =
            Fake::new(18).input("x", "f32[n,2]").held(stored).node("MatMul", &["x", "w"], &["y"]).output("y");
        let path = dir.path().join("in/m.onnx");
        std::fs::write(&path, fake.bytes()).expect("written");
        symmc_onnx::import_files(&[path], &ImportOptions::default())
    };
    let imported = import(&[("location", "w.data"), ("offset", "4"), ("length", "16")]).expect("a program");
    assert_eq!(imported.weights[0]["w"].to_f64(), [1.0, 2.0, 3.0, 4.0]);
    assert!(imported.weights[0]["w"].backing_slice().is_some_and(|p| p.backing().file().is_some()));
    let fails = |entries: &[(&str, &str)], part: &str| {
        let error = import(entries).expect_err(part).to_string();
        assert!(
            error.contains("stored tensor `w`") && error.contains(part),
            "{part:?} is missing in: {error}"
        );
    };
    fails(
        &[("location", "w.data"), ("offset", "8")],
        "expected 16 bytes at offset 8 of `w.data`, found a file of 20 bytes",
    );
    fails(&[("location", "w.data"), ("offset", "18446744073709551615")], "expected 16 bytes at offset");
    fails(
        &[("location", "w.data"), ("length", "20")],
        "expected 16 bytes of external data, found a length of 20",
    );
    fails(&[("location", "w.data"), ("offset", "x")], "found `x`");
    fails(&[("location", "../out.data")], "below the model's folder");
    fails(&[("location", "/etc/passwd")], "below the model's folder");
    fails(&[], "below the model's folder");
    fails(&[("location", ".")], "the folder");
    fails(&[("location", "none.data")], "none.data");
    let pipe = std::process::Command::new("mkfifo").arg(dir.path().join("in/pipe.data")).status();
    assert!(pipe.is_ok_and(|s| s.success()));
    fails(&[("location", "pipe.data")], "found the named pipe");
    // Symbolic links are followed, because caches of models store the files elsewhere.
    for (to, name) in [("../out.data", "link.data"), ("/dev/null", "null.data")] {
        std::os::unix::fs::symlink(to, dir.path().join("in").join(name)).expect("a link");
    }
    let imported = import(&[("location", "link.data"), ("offset", "4")]).expect("a program");
    assert_eq!(imported.weights[0]["w"].to_f64(), [1.0, 2.0, 3.0, 4.0]);
    fails(&[("location", "null.data")], "found the device");
}

#[test]
fn packed_operands_of_attention_are_those_apart() {
    // ONNX Runtime has no kernels for them on CPUs.
    let numbers = |n: usize, factor: f64| (0..n).map(|i| (i as f64 * factor).sin()).collect::<Vec<_>>();
    let (q, kv) = (numbers(24, 1.3), numbers(80, 0.7));
    let part = |from: &[f64], parts: usize, i: usize| -> Vec<f64> {
        from.chunks(4).skip(i).step_by(parts).flatten().copied().collect()
    };
    let apart = |length: i64| {
        Fake::new(20)
            .input("q", "f32[1,3,8]")
            .input("k", &format!("f32[1,{length},8]"))
            .input("v", &format!("f32[1,{length},8]"))
            .node("com.microsoft::MultiHeadAttention num_heads=2", &["q", "k", "v"], &["y"])
            .output("y")
    };
    let packed_keys = Fake::new(20)
        .input("q", "f32[1,3,8]")
        .input("kv", "f32[1,5,2,2,4]")
        .node("com.microsoft::MultiHeadAttention num_heads=2", &["q", "kv"], &["y"])
        .output("y");
    let keys = part(&kv, 2, 0);
    let values = part(&kv, 2, 1);
    let expected = run(
        &apart(5),
        &[],
        &[tensor("f32[1,3,8]", &q), tensor("f32[1,5,8]", &keys), tensor("f32[1,5,8]", &values)],
    );
    let actual = run(&packed_keys, &[], &[tensor("f32[1,3,8]", &q), tensor("f32[1,5,2,2,4]", &kv)]);
    assert_eq!(actual, expected);
    let packed = Fake::new(20)
        .input("x", "f32[1,3,2,3,4]")
        .node("com.microsoft::MultiHeadAttention num_heads=2", &["x"], &["y"])
        .output("y");
    let x = numbers(72, 0.9);
    let each: Vec<Tensor> = (0..3).map(|i| tensor("f32[1,3,8]", &part(&x, 3, i))).collect();
    let actual = run(&packed, &[], &[tensor("f32[1,3,2,3,4]", &x)]);
    assert_eq!(actual, run(&apart(3), &[], &each));
}
