//! Work of an import besides the ops: computed shapes, functions, branches, declared types, several files.

use symmc_ir::{DType, Graph, InputKind};
use symmc_onnx::{ImportOptions, ModelSource, import, proto};

use crate::common::{Fake, branch, node, run, stored, tensor};

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
fn ranges_of_floats_end_at_extents() {
    let fake = Fake::new(18)
        .input("x", "f32[batch,seq]")
        .stored("zero", "f32[]", &[0.0])
        .stored("one", "f32[]", &[1.0])
        .node("Shape start=1 end=2", &["x"], &["n1"])
        .node("Squeeze", &["n1"], &["n"])
        .node("Cast to=1", &["n"], &["end"])
        .node("Range", &["zero", "end", "one"], &["y"])
        .output("y");
    assert!(body(&fake).contains(&"%y: f32[seq] = iota start=0 step=1".to_string()), "{}", fake.text());
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

#[test]
fn declared_types_are_held_against_results() {
    let wrong = |ty| {
        Fake::new(18).input("x", "f32[tokens,4]").declared("y", ty).node("Relu", &["x"], &["y"]).output("y")
    };
    assert_error_contains(&wrong("f16[tokens,4]"), "the program declares f16[tokens, 4] for `y`, found f32");
    for (ty, declared) in [("f32[tokens,5]", "f32[tokens, 5]"), ("f32[tokens]", "f32[tokens]")] {
        let imported = wrong(ty).import().expect("the shape of the operator");
        assert_eq!(
            imported.notes,
            [format!(
                "the program declares {declared} for `y`, which is f32[tokens, 4]; the shapes of the operators are used"
            )]
        );
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
    let notes = import_all(&[&a, &second]).expect("an opaque op").notes.join("; ");
    assert!(
        notes.contains("Reshape (node `y`): `shape`") && notes.contains("differs between the ranks"),
        "{notes}"
    );
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
fn sequences_grow_and_shrink() {
    let fake = Fake::new(18)
        .input("x", "f32[2]")
        .input("y", "f32[2]")
        .stored("first", "i64[]", &[0.0])
        .stored("second", "i64[]", &[-2.0])
        .node("SequenceEmpty", &[], &["s0"])
        .node("SequenceInsert", &["s0", "x"], &["s1"])
        .node("SequenceInsert", &["s1", "y", "first"], &["s2"])
        .node("Neg", &["x"], &["z"])
        .stored("third", "i64[]", &[-1.0])
        // Before the last element.
        .node("SequenceInsert", &["s2", "z", "third"], &["s3"])
        .node("Identity", &["s3"], &["s4"])
        .node("SequenceErase", &["s4", "second"], &["s5"])
        .node("SequenceLength", &["s5"], &["n"])
        .node("OptionalHasElement", &["x"], &["has"])
        .node("OptionalGetElement", &["x"], &["own"])
        .node("ConcatFromSequence axis=0", &["s5"], &["joined"])
        .output("joined")
        .output("n")
        .output("has")
        .output("own");
    let arguments = [tensor("f32[2]", &[1.0, 2.0]), tensor("f32[2]", &[3.0, 4.0])];
    let expected = [vec![3.0, 4.0, 1.0, 2.0], vec![2.0], vec![1.0], vec![1.0, 2.0]];
    assert_eq!(run(&fake, &[], &arguments), expected);
    let beyond = Fake::new(18)
        .input("x", "f32[2]")
        .stored("second", "i64[]", &[2.0])
        .node("SequenceConstruct", &["x"], &["s"])
        .node("SequenceInsert", &["s", "x", "second"], &["t"])
        .node("ConcatFromSequence axis=0", &["t"], &["y"])
        .output("y");
    assert_error_contains(&beyond, "expected a position from -1 to 1, found 2");
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
    let notes = with(&|t| t.data_type = 13).import().expect("an opaque op").notes.join("; ");
    assert!(
        notes.contains("the stored tensor `w` has the element type uint64, which is not supported"),
        "{notes}"
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
