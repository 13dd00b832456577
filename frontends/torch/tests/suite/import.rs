//! The import of symbols, signatures, groups, collectives, in-place ops and unsupported ops, and the
//! rejection of programs that cannot be represented.

use std::sync::Arc;

use indexmap::IndexMap;
use serde_json::json;
use symmc_import::ranges::{SymbolConstraint, SymbolConstraints};
use symmc_ir::{
    AllToAllSplits, CollectiveKind, CollectiveReduceOp, DType, Graph, GroupMembers, InputKind, Op,
    OutputKind, SymbolBindings, Tensor,
};
use symmc_torch::{ImportError, ImportOptions, import};

use crate::common::Fake;

fn symbols(graph: &Graph) -> Vec<(&str, i64, i64, Option<&str>)> {
    graph.symbols.values().map(|s| (s.name.as_str(), s.min, s.max, s.alias.as_deref())).collect()
}

fn ops(graph: &Graph) -> Vec<&Op> {
    graph.nodes.values().map(|n| &n.op).collect()
}

/// Runs a program of one rank on f32 vectors, and returns the results as numbers.
pub fn run(fake: &Fake, inputs: &[&[f64]]) -> Vec<Vec<f64>> {
    let options = ImportOptions { ranks: Some(1), ..ImportOptions::default() };
    let imported = import(&fake.bytes(), &options).unwrap();
    let graph = imported.graph;
    let inputs: Vec<Arc<Tensor>> = graph
        .inputs
        .values()
        .zip(inputs)
        .map(|(input, data)| {
            let ty = graph.ty(input.value);
            let shape = ty.concrete_shape(&SymbolBindings::new()).unwrap();
            Arc::new(Tensor::from_f64(ty.dtype, shape, data).unwrap())
        })
        .collect();
    let out = symmc_ir::interp::run(&graph, &SymbolBindings::new(), &[inputs]).unwrap();
    out[0].iter().map(Tensor::to_f64).collect()
}

// Symbols.

#[test]
fn the_only_symbol_is_tokens() {
    let fake = Fake::new().range("s77", Some(2), Some(9)).input("x", "f32[2*s77,4]").output("x");
    assert_eq!(symbols(&fake.import().unwrap().graph), [("tokens", 2, 9, Some("s77"))]);
}

#[test]
fn with_several_symbols_the_first_integer_argument_names_them() {
    let fake = Fake::new()
        .range("s1", Some(2), Some(4))
        .range("s2", Some(1), Some(128))
        .range("s9", Some(3), Some(5))
        .input("h", "f32[s9,4]")
        .input("ids", "i64[s1,s2]")
        .output("h");
    assert_eq!(
        symbols(&fake.import().unwrap().graph),
        [("s9", 3, 5, None), ("batch", 2, 4, Some("s1")), ("tokens", 1, 128, Some("s2")),]
    );
}

#[test]
fn open_ranges_get_a_limit_and_a_note() {
    let fake = Fake::new().range("s0", Some(2), None).input("x", "f32[s0]").output("x");
    let imported = fake.import().unwrap();
    assert_eq!(symbols(&imported.graph), [("tokens", 2, 1 << 20, Some("s0"))]);
    assert_eq!(imported.notes, Vec::<String>::new());
    let range = SymbolConstraint::Range { min: Some(2), max: Some(1 << 20) };
    assert_eq!(imported.assumed_sizes, [("tokens".to_string(), range)]);
    let options = ImportOptions { max_extent: 64, ..ImportOptions::default() };
    assert_eq!(import(&fake.bytes(), &options).unwrap().graph.symbols.values().next().unwrap().max, 64);
}

#[test]
fn callers_say_more_of_symbols() {
    let fake = Fake::new()
        .range("s0", Some(2), None)
        .range("s1", Some(2), None)
        .input("x", "f32[s0,4096]")
        .input("y", "f32[s1,4096]")
        .node("aten.add.Tensor", "self=%x other=%y", &[("z", "f32[s0,4096]")])
        .output("z");
    let options_of = |extents: &[(&str, &str)]| {
        let parse = |(name, text): &(&str, &str)| {
            ((*name).to_string(), SymbolConstraint::parse(text).expect("an extent"))
        };
        let extents = extents.iter().map(parse).collect();
        ImportOptions {
            constraints: SymbolConstraints { constraints: extents, ..SymbolConstraints::default() },
            ..ImportOptions::default()
        }
    };
    let apart = options_of(&[("s0", "2..8"), ("s1", "9..")]);
    let ImportError::Extents { error, symbols: of } = import(&fake.bytes(), &apart).expect_err("two extents")
    else {
        panic!("an error about extents");
    };
    assert!(error.to_string().contains("the extents s0 and s1 do not broadcast"), "{error}");
    assert_eq!((of.named, of.unbounded), (vec!["s0".into(), "s1".into()], vec!["s1".into()]));
    let assumed = fake.import().expect("equal sizes are assumed").assumed_sizes;
    assert_eq!(assumed[1], ("s1".to_string(), SymbolConstraint::Equals("s0".into())));
    let imported = import(&fake.bytes(), &options_of(&[("s0", "1..64"), ("s1", "s0")])).expect("one extent");
    assert_eq!(symbols(&imported.graph), [("s0", 2, 64, None)]);
    assert!(imported.assumed_sizes.is_empty());
    let error =
        import(&fake.bytes(), &options_of(&[("s2", "1..64")])).expect_err("no such symbol").to_string();
    assert_eq!(error, "symbol `s2`: expected a symbol of the program: s0, s1, found `s2`");
    // Errors about sizes that are too large name the symbols.
    let large = Fake::new()
        .range("s0", Some(2), None)
        .range("s1", Some(2), None)
        .input("x", "f32[s0,s1,4096]")
        .node("aten.relu.default", "self=%x", &[("z", "f32[s0,s1,4096]")])
        .output("z");
    assert_eq!(
        symbols(&large.import().expect("bounds that fit").graph),
        [("s0", 2, 1024, None), ("s1", 2, 1024, None)]
    );
    let huge = options_of(&[("s0", "..1000000"), ("s1", "..1000000")]);
    let ImportError::Extents { error, symbols: of } = import(&large.bytes(), &huge).expect_err("too large")
    else {
        panic!("an error about extents");
    };
    let message = error.to_string();
    assert!(
        message.contains("%x: expected at most") && message.ends_with("as f32[s0, s1, 4096]"),
        "{message}"
    );
    assert_eq!(of.named, ["s0", "s1"]);
    import(&large.bytes(), &options_of(&[("s0", "..64"), ("s1", "..4096")])).expect("a program");
    // Recorded arguments bound symbols without an upper bound.
    let recorded =
        SymbolConstraints { recorded_shapes: vec![vec![3, 5, 4096]], ..SymbolConstraints::default() };
    let options = ImportOptions { constraints: recorded, ..ImportOptions::default() };
    let imported = import(&large.bytes(), &options).expect("a program");
    assert_eq!(symbols(&imported.graph), [("s0", 2, 3, None), ("s1", 2, 5, None)]);
}

#[test]
fn extents_are_simplified_by_symbol_ranges() {
    // A table of 64 positions, cut to the length. Its extent is the length if that is at most 64.
    let fake = Fake::new()
        .range("s0", Some(2), None)
        .input("table", "f32[Min(64@ s0),8]")
        .input("x", "f32[s0,8]")
        .node("aten.add.Tensor", "self=%x other=%table", &[("z", "f32[s0,8]")])
        .output("z");
    let text = fake.program().to_string().replace('@', ",");
    let mut entries = fake.entries();
    entries.iter_mut().find(|e| e.0.starts_with("models")).expect("a model").1 = text.into_bytes();
    let bytes = crate::common::zipped("", &entries);
    let options_of = |text: &str| {
        let extents = vec![("tokens".to_string(), SymbolConstraint::parse(text).expect("an extent"))];
        ImportOptions {
            constraints: SymbolConstraints { constraints: extents, ..SymbolConstraints::default() },
            ..ImportOptions::default()
        }
    };
    assert!(import(&bytes, &options_of("2..65")).is_err());
    import(&bytes, &options_of("2..64")).expect("a program");
}

#[test]
fn unusable_symbols_are_refused() {
    let x = |ty| Fake::new().input("x", ty).output("x");
    let error = x("f32[s0]").range("s0", Some(9), Some(3)).error();
    assert!(error.contains("symbol `s0`: expected a non-empty range"), "{error}");
    let fake = x("f32[Mul(Rational(1@ 2)@Symbol('s0'))]");
    let text = fake.program().to_string().replace('@', ",");
    let mut entries = fake.entries();
    entries.iter_mut().find(|e| e.0.starts_with("models")).unwrap().1 = text.into_bytes();
    let error =
        import(&crate::common::zipped("", &entries), &ImportOptions::default()).unwrap_err().to_string();
    assert!(error.contains("`Rational` is not an integer"), "{error}");
    let data = x("f32[2]").node("aten.unique_dim.default", "self=%x dim=0", &[("y", "f32[u0]")]).output("y");
    assert!(
        data.error().contains("`u0` is not an extent of an argument: it depends on data"),
        "{}",
        data.error()
    );
}

#[test]
fn symbolic_integers_are_extents() {
    let fake = Fake::new()
        .range("s0", Some(2), Some(64))
        .sym_int("n", "s0")
        .sym_int("m", "s0*4")
        .input("x", "f32[s0,4]")
        .node("aten.sym_size.int", "self=%x dim=0", &[("$n", "")])
        .node("_operator.mul", "a=$n b=4", &[("$m", "")])
        .node("aten.view.default", "self=%x size=[$m]", &[("y", "f32[4*s0]")])
        .node("aten.mul.Tensor", "self=%y other=$n", &[("z", "f32[4*s0]")])
        .output("z");
    let graph = fake.import().unwrap().graph;
    let mut bindings = SymbolBindings::new();
    bindings.set(symmc_ir::entity::Entity::new(0), 3);
    let mut graph = graph;
    graph.ranks = Some(1);
    let x = Arc::new(Tensor::from_f64(DType::F32, [3, 4], &[1.0; 12]).unwrap());
    let out = symmc_ir::interp::run(&graph, &bindings, &[vec![x]]).unwrap();
    assert_eq!(out[0][0].to_f64(), [3.0; 12]);
}

#[test]
fn symbolic_floats_stand_where_numbers_stand() {
    let n = "Symbol('s0', positive=True, integer=True)";
    let half = format!("FloorDiv({n}, Integer(2))");
    for (expression, expected) in [
        (format!("IntTrueDiv({n}, {half})"), 3.0),
        (format!("Mul(ToFloat({n}), FloatTrueDiv(Integer(1), Integer(4)))"), 0.75),
        (format!("OpaqueUnaryFn_sqrt(Add(ToFloat({n}), Integer(1)))"), 2.0),
        (format!("FloatPow(ToFloat({n}), Integer(2))"), 9.0),
        (format!("Mul(Float('0.5', precision=53), ToFloat({n}))"), 1.5),
    ] {
        let fake = |result: &str, input: &str| {
            Fake::new()
                .range("s0", Some(2), Some(64))
                .sym_int("n", "s0")
                .sym_float("f", &expression)
                .input("x", input)
                .node("aten.mul.Tensor", "self=%x other=~f", &[("y", result)])
                .node("aten.full_like.default", "self=%y fill_value=~f", &[("z", result)])
                .node("aten.arange.start_step", "start=~f end=-9.0 step=-0.5", &[("down", "f32[s0]")])
                .node(
                    "aten.arange.start_step",
                    "start=$n end=-9.0 step=-2.0 dtype=:i64",
                    &[("whole", "i64[s0]")],
                )
                .output("y")
                .output("z")
                .output("down")
                .output("whole")
        };
        // Numbers do not widen the dtype of a result. Next to integers, a float gives the default float
        // dtype.
        for (result, input, dtype) in [
            ("f32[s0]", "f32[s0]", DType::F32),
            ("f32[s0]", "i64[s0]", DType::I64),
            ("f64[s0]", "f64[s0]", DType::F64),
        ] {
            let mut graph = fake(result, input).import().unwrap().graph;
            graph.ranks = Some(1);
            let mut bindings = SymbolBindings::new();
            bindings.set(symmc_ir::entity::Entity::new(0), 3);
            let x = Arc::new(Tensor::from_f64(dtype, [3], &[1.0, 2.0, 4.0]).unwrap());
            let out = symmc_ir::interp::run(&graph, &bindings, &[vec![x]]).unwrap();
            assert_eq!(out[0][0].to_f64(), [expected, 2.0 * expected, 4.0 * expected], "{expression}");
            assert_eq!(out[0][1].to_f64(), [expected; 3], "{expression}");
            assert_eq!(out[0][3].to_f64(), [3.0, 1.0, -1.0]);
            assert_eq!(out[0][2].to_f64(), [expected, expected - 0.5, expected - 1.0], "{expression}");
        }
    }
    let unknown = Fake::new()
        .sym_float("f", "Symbol('zuf0')")
        .input("x", "f32[2]")
        .node("aten.mul.Tensor", "self=%x other=~f", &[("y", "f32[2]")])
        .output("y");
    let imported = unknown.import().unwrap();
    let notes = imported.notes.join("; ");
    assert!(
        notes.contains("stay opaque, so the program does not run: aten.mul.Tensor (node `y`)")
            && notes.contains("Symbol('zuf0')"),
        "{notes}"
    );
}

#[test]
fn an_integer_argument_is_a_symbol() {
    let mut fake =
        Fake::new().range("s5", Some(0), Some(7)).sym_int("k", "s5").input("x", "f32[8]").output("y");
    fake.input_specs.push(json!({"user_input": {"arg": {"as_sym_int": {"as_name": "k"}}}}));
    let fake = fake.node("aten.slice.Tensor", "self=%x dim=0 start=0 end=$k", &[("y", "f32[s5]")]);
    let imported = fake.import().unwrap();
    assert_eq!(symbols(&imported.graph), [("tokens", 0, 7, Some("s5"))]);
    assert!(imported.notes.iter().any(|n| n.contains("integer argument k")), "{:?}", imported.notes);
}

// Signature.

#[test]
fn inputs_are_arguments_parameters_and_constants() {
    let data = [0u8; 8];
    let fake = Fake::new()
        .parameter("w", "f32[2]", Some(&data))
        .buffer("state", "f32[2]", true, Some(&data))
        .buffer("table", "f32[2]", false, Some(&data))
        .buffer("written", "f32[2]", false, Some(&data))
        .input("x", "f32[2]")
        .node("aten.add.Tensor", "self=%written other=%x", &[("y", "f32[2]")]);
    let mut fake = fake;
    fake.input_specs.push(json!({"constant_input": {"name": "flag", "value": {"as_bool": true}}}));
    fake.input_specs.push(json!({"token": {"arg": {"name": "token"}}}));
    fake.output_specs.push(json!({"buffer_mutation": {"arg": {"name": "y"}, "buffer_name": "written"}}));
    fake.output_specs.push(json!({"user_output": {"arg": {"as_tensor": {"name": "x"}}}}));
    fake.output_specs.push(json!({"user_output": {"arg": {"as_none": true}}}));
    fake.output_specs.push(json!({"user_output": {"arg": {"as_int": 3}}}));
    let imported = fake.import().unwrap();
    let kinds: Vec<_> = imported.graph.inputs.values().map(|i| (i.source.as_str(), i.kind)).collect();
    use InputKind::*;
    assert_eq!(
        kinds,
        [
            ("w", Parameter),
            ("state", Parameter),
            ("table", Constant),
            ("written", Parameter),
            ("x", Argument)
        ]
    );
    assert_eq!(imported.weights.keys().collect::<Vec<_>>(), ["w", "state", "written"]);
    assert_eq!(imported.buffers, ["state", "written"]);
    let written = imported.graph.inputs.keys().nth(3).unwrap();
    let outputs: Vec<_> = imported.graph.outputs.iter().map(|o| o.kind).collect();
    assert_eq!(outputs, [OutputKind::Mutates(written), OutputKind::Returned]);
    assert_eq!(
        imported.notes,
        [
            "the argument flag is fixed to true in this program: export it again for another value",
            "output 2 is none, not a tensor, and is left out",
            "output 3 is the integer 3, not a tensor, and is left out"
        ]
    );
}

#[test]
fn broken_signatures_are_refused_by_name() {
    let base = || Fake::new().input("x", "f32[2]");
    assert!(
        base().output("y").error().contains("`y` in the signature: `y` is not defined before it is used")
    );
    assert!(base().input("x", "f32[2]").error().contains("expected one definition of `x`"));
    let mut fake = base();
    fake.output_specs.push(json!({"buffer_mutation": {"arg": {"name": "x"}, "buffer_name": "b"}}));
    assert!(fake.error().contains("`b` in the signature: expected an input of this name"));
    let mut fake = base().buffer("b", "f32[3]", true, None);
    fake.output_specs.push(json!({"buffer_mutation": {"arg": {"name": "x"}, "buffer_name": "b"}}));
    assert!(fake.error().contains("expected f32[3] to be written, found f32[2]"));
    assert!(
        Fake::new().input("x", "u64[2]").error().contains("`x` in the signature: expected a supported dtype")
    );
    let mut fake = base();
    fake.input_specs
        .push(json!({"custom_obj": {"arg": {"name": "obj", "class_fqn": "C"}, "custom_obj_name": "o"}}));
    fake.import().expect("a custom object that nothing uses does not matter");
    let fake = fake.node("aten.add.Tensor", "self=%x other=%obj", &[("y", "f32[2]")]);
    assert!(fake.error().contains("`obj` is a custom object"), "{}", fake.error());
}

#[test]
fn arguments_that_the_program_fixes_are_named() {
    let mut fake = Fake::new().input("x", "f32[2]").output("x");
    for (name, value) in
        [("n", json!({"as_int": 3})), ("how", json!({"as_string": "fast"})), ("no", json!({"as_none": true}))]
    {
        fake.inputs.push(value.clone());
        fake.input_specs.push(json!({"constant_input": {"name": name, "value": value}}));
    }
    let notes = fake.import().unwrap().notes;
    let first_parts: Vec<_> = notes.iter().map(|n| n.split(" in this program").next().unwrap()).collect();
    assert_eq!(first_parts, ["the argument n is fixed to 3", "the argument how is fixed to \"fast\""]);
}

#[test]
fn another_version_of_the_ops_is_refused() {
    let program = |version: i64| {
        let mut program = Fake::new().input("x", "f32[2]").output("x").program();
        program["opset_version"]["aten"] = json!(version);
        symmc_torch::fuzz::check_bytes(program.to_string().as_bytes())
    };
    assert!(program(10) && !program(11) && !program(9));
}

// Nodes.

#[test]
fn an_unknown_op_is_opaque_with_its_declared_results() {
    let fake = Fake::new()
        .functional()
        .input("x", "f32[2]")
        .node("mylib.mystery.default", "x=%x k=3 s='how'", &[("y", "f32[5]"), ("z", "i64[1]")])
        .node("aten.relu.default", "self=%y", &[("r", "f32[5]")])
        .output("r")
        .output("z");
    let imported = fake.import().unwrap();
    let node = imported.graph.nodes.values().next().unwrap();
    let expected = Op::Opaque { name: "mylib.mystery.default".into(), attributes: "k=3, s=\"how\"".into() };
    assert_eq!((&node.op, node.outputs.len()), (&expected, 2));
    assert_eq!(
        imported.notes,
        ["these operators stay opaque, so the program does not run: \
          mylib.mystery.default (node `y`): this operator is not supported"]
    );
}

#[test]
fn unsupported_use_of_a_known_op_is_opaque() {
    for (target, arguments, result) in
        [("aten.one_hot.default", "self=%x", "i64[2,3]"), ("aten.histc.default", "self=%x bins=0", "f32[0]")]
    {
        let imported = Fake::new().input("x", "f32[2]").node(target, arguments, &[("y", result)]).output("y");
        let imported = imported.import().unwrap();
        assert!(matches!(ops(&imported.graph)[0], Op::Opaque { .. }), "{target}");
        assert_eq!(imported.notes.len(), 1, "{target}");
    }
}

#[test]
fn broken_nodes_are_refused_by_name() {
    let node = |target, arguments, ty| {
        let fake = Fake::new().input("x", "f32[2,3]").input("i", "i64[4]");
        fake.node(target, arguments, &[("y", ty)]).output("y").error()
    };
    for (target, arguments, ty, expected) in [
        ("aten.relu.default", "self=%x", "f32[2,4]", "declares f32[2, 4] for `y`, found f32[2, 3]"),
        ("aten.relu.default", "self=%x", "bf16[2,3]", "declares bf16[2, 3] for `y`, found f32[2, 3]"),
        ("aten.relu.default", "self=%z", "f32[2,3]", "`z` is not defined before it is used"),
        ("aten.relu.default", "self=3", "f32[2,3]", "expected a tensor as `argument 0`, found the integer 3"),
        ("aten.permute.default", "self=%x dims=[0,0]", "f32[2,2]", "is not a permutation"),
        ("aten.sum.dim_IntList", "self=%x dim=[2]", "f32[2]", "expected an axis from -2 to 1, found 2"),
        ("aten.sum.dim_IntList", "self=%x dim=[0,-2]", "f32[3]", "expected distinct axes"),
        ("aten.view.default", "self=%x size=[4,-1]", "f32[4,1]", "expected a shape of 6 elements"),
        ("aten.view.default", "self=%x size=[-1,-1]", "f32[2,3]", "expected at most one extent of -1"),
        ("aten.mm.default", "self=%x mat2=%x", "f32[2,3]", "the inner extents differ"),
        ("aten.gelu.default", "self=%x approximate='no'", "f32[2,3]", "expected approximate none or tanh"),
        ("aten.select.int", "self=%x dim=0 index=5", "f32[3]", "expected an index within 2, found 5"),
        ("aten.slice.Tensor", "self=%x step=0", "f32[2,3]", "expected a step of at least 1, found 0"),
        (
            "aten.to.dtype",
            "self=%x dtype=:u64",
            "f32[2,3]",
            "expected a supported dtype as `dtype`, found dtype uint64",
        ),
        ("aten.gather.default", "self=%x dim=0 index=%i", "f32[4]", "expected 2 axes, found 1"),
        (
            "aten.mystery_.default",
            "self=%x",
            "f32[2,3]",
            "its name says that it writes its operand, and it is not supported",
        ),
    ] {
        let message = node(target, arguments, ty);
        assert!(
            message.contains(expected) && message.contains("node `y`"),
            "expected {expected}, found {message}"
        );
    }
}

#[test]
fn assertions_vanish_or_fail() {
    let x = || Fake::new().range("s0", Some(2), Some(9)).sym_int("n", "s0").input("x", "f32[s0]").output("x");
    let holds = x()
        .node("aten._assert_tensor_metadata.default", "a=%x size=[$n] dtype=:f32", &[])
        .node("aten.sym_constrain_range_for_size.default", "size=$n min=2 max=9", &[])
        .node("aten._assert_async.msg", "self=%x assert_msg='no'", &[]);
    assert_eq!(holds.import().unwrap().graph.nodes.len(), 0);
    let dtype = x().node("aten._assert_tensor_metadata.default", "a=%x dtype=:bf16", &[]);
    assert!(dtype.error().contains("it asserts a dtype of bf16, found f32"));
    let size = x().node("aten._assert_tensor_metadata.default", "a=%x size=[12]", &[]);
    assert!(size.error().contains("it asserts a size of [12]"));
    let range = x().node("aten.sym_constrain_range_for_size.default", "size=$n min=10", &[]);
    assert!(range.error().contains("a size from 10 to any, found one from 2 to 9"));
    let relation = |text: &str| {
        let mut fake = x().node("aten._assert_scalar.default", "self=?b assert_msg='n>1'", &[]);
        fake.sym_bools.insert("b".into(), json!({"as_expr": {"expr_str": text}}));
        fake
    };
    relation("StrictGreaterThan(Symbol('s0'), Integer(1))").import().unwrap();
    relation("StrictGreaterThan(Symbol('s0'), Integer(5))").import().unwrap();
    let error = relation("StrictLessThan(Symbol('s0'), Integer(2))").error();
    assert!(error.contains("the assertion never holds: n>1"), "{error}");
}

#[test]
fn wrapped_graphs_take_the_place_of_their_wrapper() {
    let body = Fake::new()
        .input("a", "f32[2]")
        .node("aten.mul.Tensor", "self=%a other=2.0", &[("y", "f32[2]")])
        .node("aten.add.Tensor", "self=%y other=1.0", &[("add", "f32[2]")]);
    let mut graph = body.program()["graph_module"]["graph"].clone();
    graph["outputs"] = json!([{"as_tensor": {"name": "add"}}]);
    let mut fake = Fake::new()
        .input("x", "f32[2]")
        .node("higher_order.wrap_with_set_grad_enabled", "enable_grad=false", &[("y", "f32[2]")])
        .output("y");
    let inputs = fake.nodes[0]["inputs"].as_array_mut().unwrap();
    inputs.push(json!({"name": "wrapped_func", "arg": {"as_graph": {"name": "g", "graph": graph}}}));
    inputs.push(json!({"name": "", "arg": {"as_tensor": {"name": "x"}}}));
    assert_eq!(run(&fake, &[&[1.0, 2.0]]), [[3.0, 5.0]]);
}

/// A call of a wrapper with graphs of one node each, on `x`. The result of each graph is `z`.
fn wrapper(op: &str, arguments: &str, result: &str, graphs: &[(&str, &str, &str)]) -> Fake {
    let mut fake = Fake::new().input("x", "f32[2]").node(op, arguments, &[("y", result)]).output("y");
    let inputs = fake.nodes[0]["inputs"].as_array_mut().unwrap();
    for (target, arguments, result) in graphs {
        let inner = Fake::new().input("x", "f32[2]").node(target, arguments, &[("z", result)]).output("z");
        let mut graph = inner.program()["graph_module"]["graph"].clone();
        graph["outputs"] = json!([{"as_tensor": {"name": "z"}}]);
        inputs.push(json!({"name": "graph", "arg": {"as_graph": {"name": "g", "graph": graph}}}));
    }
    inputs.push(json!({"name": "", "arg": {"as_tensor": {"name": "x"}}}));
    fake
}

#[test]
fn operands_within_autocast_get_the_declared_dtype() {
    let call = "higher_order.wrap_with_autocast";
    let arguments = "device_type='cpu' dtype=:bf16 enabled=true cache_enabled=false";
    let product = ("aten.mul.Tensor", "self=%x other=%x", "bf16[2]");
    let fake = wrapper(call, arguments, "bf16[2]", &[product]);
    // 1.0039 is 1 in bf16.
    assert_eq!(run(&fake, &[&[1.003_906_25, 3.0]]), [[1.0, 9.0]]);
    let same = ("aten.relu.default", "self=%x", "f32[2]");
    let fake = wrapper(call, arguments, "f32[2]", &[same]);
    assert_eq!(run(&fake, &[&[1.003_906_25, -3.0]]), [[1.003_906_25, 0.0]]);
    // Nothing is converted if autocast is off.
    let off = arguments.replace("enabled=true cache", "enabled=false cache");
    let fake = wrapper(call, &off, "bf16[2]", &[product]);
    assert!(fake.error().contains("bf16[2]"), "{}", fake.error());
}

#[test]
fn branches_by_constants_are_taken() {
    let branches = [("aten.neg.default", "self=%x", "f32[2]"), ("aten.abs.default", "self=%x", "f32[2]")];
    for (pred, expected) in [("true", [-1.0, 2.0]), ("false", [1.0, 2.0])] {
        let fake = wrapper("higher_order.cond", &format!("pred={pred}"), "f32[2]", &branches);
        assert_eq!(run(&fake, &[&[1.0, -2.0]]), [expected], "{pred}");
    }
}

// Groups and collectives.

fn collective(op: &str, arguments: &str, operand: &str, result: &str) -> Fake {
    Fake::new()
        .input("x", operand)
        .node(&format!("_c10d_functional.{op}.default"), arguments, &[("y", result)])
        .node("_c10d_functional.wait_tensor.default", "tensor=%y", &[("z", result)])
        .output("z")
}

#[test]
fn every_collective_has_its_counterpart() {
    use CollectiveKind as K;
    for (op, arguments, operand, result, kind, ranks) in [
        (
            "all_reduce",
            "input=%x reduce_op='avg' group='0'",
            "f32[4]",
            "f32[4]",
            K::AllReduce(CollectiveReduceOp::Avg),
            None,
        ),
        (
            "all_reduce_",
            "input=%x reduce_op='product' group_name='0'",
            "f32[4]",
            "f32[4]",
            K::AllReduce(CollectiveReduceOp::Prod),
            None,
        ),
        (
            "all_gather_into_tensor",
            "input=%x group_size=4 group_name='0'",
            "f32[2]",
            "f32[8]",
            K::AllGather,
            Some(4),
        ),
        (
            "reduce_scatter_tensor",
            "input=%x reduce_op='sum' group_size=2 group_name='0'",
            "f32[8]",
            "f32[4]",
            K::ReduceScatter(CollectiveReduceOp::Sum),
            Some(2),
        ),
        (
            "all_to_all_single",
            "input=%x output_split_sizes=[2,2] input_split_sizes=[2,2] group_name='0'",
            "f32[4]",
            "f32[4]",
            K::AllToAll(AllToAllSplits::Even),
            Some(2),
        ),
        ("broadcast", "input=%x src=0 group_name='0'", "f32[4]", "f32[4]", K::Broadcast { root: 0 }, None),
    ] {
        let graph = collective(op, arguments, operand, result).import().unwrap().graph;
        assert_eq!((graph.ranks, graph.nodes.len()), (ranks, 1), "{op}");
        assert_eq!(ops(&graph)[0].as_collective().map(|c| &c.kind), Some(&kind), "{op}");
        assert_eq!(graph.groups.values().next().map(|g| g.name.as_str()), Some("0"));
    }
}

#[test]
fn resharding_is_an_all_to_all_with_views() {
    let arguments = "input=%x gather_dim=0 shard_dim=1 group_name='0'";
    let fake = Fake::new()
        .input("x", "f32[1,4]")
        .node("_dtensor.shard_dim_alltoall.default", arguments, &[("y", "f32[2,2]")])
        .output("y");
    assert!(fake.error().contains("the number of ranks is not known"), "{}", fake.error());
    let options = ImportOptions { ranks: Some(2), ..ImportOptions::default() };
    let graph = import(&fake.bytes(), &options).unwrap().graph;
    let shard = |data: &[f64]| vec![Arc::new(Tensor::from_f64(DType::F32, [1, 4], data).unwrap())];
    let inputs = [shard(&[0.0, 1.0, 2.0, 3.0]), shard(&[4.0, 5.0, 6.0, 7.0])];
    let out = symmc_ir::interp::run(&graph, &SymbolBindings::new(), &inputs).unwrap();
    assert_eq!(out[0][0].to_f64(), [0.0, 1.0, 4.0, 5.0]);
    assert_eq!(out[1][0].to_f64(), [2.0, 3.0, 6.0, 7.0]);
}

#[test]
fn a_coalesced_collective_is_one_for_each_tensor() {
    let fake = Fake::new().input("a", "f32[2]").input("b", "f32[4]").list_node(
        "_c10d_functional.all_gather_into_tensor_coalesced.default",
        "inputs=[%a,%b] group_size=2 group_name='0'",
        &[("p", "f32[4]"), ("q", "f32[8]")],
    );
    let graph = fake.output("p").output("q").import().unwrap().graph;
    assert_eq!(ops(&graph).iter().filter(|o| o.as_collective().is_some()).count(), 2);
}

#[test]
fn collectives_that_ranks_would_not_share_are_refused() {
    let error = |op, arguments| collective(op, arguments, "f32[4]", "f32[4]").error();
    let uneven = error(
        "all_to_all_single",
        "input=%x output_split_sizes=[2,2] input_split_sizes=[1,3] group_name='0'",
    );
    assert!(uneven.contains("expected equal input_split_sizes, found [1, 3]"), "{uneven}");
    assert!(uneven.contains("all ranks must run the same program"), "{uneven}");
    let object = error("all_reduce", "input=%x reduce_op='sum' group=<obj>");
    assert!(
        object.contains("the group must be a name") && object.contains("custom object `obj`"),
        "{object}"
    );
    let value = error("all_reduce", "input=%x reduce_op='sum' group=%x");
    assert!(value.contains("the group must be a name") && value.contains("the tensor `x`"), "{value}");
    // An unsupported reduction can still be planned.
    let op =
        collective("all_reduce", "input=%x reduce_op='band' group='0'", "f32[4]", "f32[4]").import().unwrap();
    assert!(matches!(ops(&op.graph)[0], Op::Opaque { .. }));
    assert!(op.notes[0].contains("found `band`"), "{:?}", op.notes);
}

/// Two gathers in groups of these names and sizes.
fn gathers([tp, dp]: [(&str, u32); 2]) -> Fake {
    let gather =
        |x: &str, group: (&str, u32)| format!("input=%{x} group_size={} group_name='{}'", group.1, group.0);
    Fake::new()
        .input("x", "f32[1]")
        .node("_c10d_functional.all_gather_into_tensor.default", &gather("x", tp), &[("p", "f32[2]")])
        .node("_c10d_functional.all_gather_into_tensor.default", &gather("p", dp), &[("q", "f32[8]")])
        .output("q")
}

fn cells(cells: &[&[u32]]) -> Vec<Vec<u32>> {
    cells.iter().map(|c| c.to_vec()).collect()
}

#[test]
fn groups_have_the_members_that_are_given() {
    let fake = gathers([("tp", 2), ("dp", 4)]);
    let with = |tp: &[&[u32]], ranks| {
        let groups = IndexMap::from([("tp".to_string(), cells(tp))]);
        import(&fake.bytes(), &ImportOptions { groups, ranks, ..ImportOptions::default() })
    };
    let graph = with(&[&[0, 1], &[2, 3]], None).unwrap().graph;
    assert_eq!(graph.ranks, Some(4));
    let members: Vec<_> = graph.groups.values().map(|g| &g.members).collect();
    assert_eq!(members, [&GroupMembers::Cells(cells(&[&[0, 1], &[2, 3]])), &GroupMembers::World]);
    for (tp, ranks, expected) in [
        (&[&[0u32, 1][..], &[2]][..], None, "group `tp`: expected lists of ranks of equal length"),
        (&[&[0, 1], &[2, 2]], None, "group `tp`: expected every rank from 0 to 3 once"),
        (&[&[0, 1], &[2, 3]], Some(8), "the caller says 8 ranks, the list of members of group `tp` says 4"),
        (
            &[&[0, 1, 2], &[3, 4, 5]],
            None,
            "group `tp`: the list of its members says 3 ranks, node `p` says 2",
        ),
    ] {
        let message = with(tp, ranks).unwrap_err().to_string();
        assert!(message.contains(expected), "expected {expected}, found {message}");
    }
}

/// For every combination of known facts about two groups and the ranks, a group is all ranks only if its name
/// or its size says so. The error lists every other group.
#[test]
fn groups_that_nothing_describes_are_listed() {
    for first in ["0", "1", "tp"] {
        for second in ["0", "3", "default"] {
            for ranks in [None, Some(2), Some(4), Some(8)] {
                for assumed in [None, Some(2), Some(4), Some(8)] {
                    let fake = gathers([(first, 2), (second, 4)]);
                    let options = ImportOptions { ranks, assumed_ranks: assumed, ..ImportOptions::default() };
                    let outcome = import(&fake.bytes(), &options);
                    // The size that the default group states takes precedence over the assumed number of
                    // ranks.
                    let stated = [(first, 2), (second, 4)].iter().find(|g| g.0 == "0").map(|g| g.1);
                    if first == second || matches!((stated, ranks), (Some(s), Some(r)) if s != r) {
                        assert!(
                            matches!(outcome, Err(ImportError::Ranks { .. })),
                            "{first} {second} {outcome:?}"
                        );
                        continue;
                    }
                    let world = ranks.or(stated).or(assumed);
                    let undescribed: Vec<&str> = [(first, 2), (second, 4)]
                        .iter()
                        .filter(|g| g.0 != "0" && Some(g.1) != world)
                        .map(|g| g.0)
                        .collect();
                    match outcome {
                        Ok(imported) => {
                            assert_eq!(undescribed, [""; 0]);
                            assert_eq!(imported.graph.ranks, world);
                            assert_eq!(imported.ranks_assumed, ranks.or(stated).is_none() && world.is_some());
                        }
                        Err(ImportError::Undescribed { groups, ranks }) => {
                            let names: Vec<&str> = groups.iter().map(|g| g.name.as_str()).collect();
                            assert_eq!((names, ranks), (undescribed, world));
                        }
                        Err(e) => panic!("{first} {second} {ranks:?} {assumed:?}: {e}"),
                    }
                }
            }
        }
    }
    let message = gathers([("1", 2), ("tp", 4)]).error();
    let expected =
        "the members of group `1` (2 ranks each, node `p`) and group `tp` (4 ranks each, node `q`)";
    assert!(message.contains(expected), "{message}");
}

#[test]
fn groups_in_wrapped_graphs_are_found() {
    let inner = collective("all_reduce", "input=%x reduce_op='sum' group_name='7'", "f32[4]", "f32[4]");
    let mut graph = inner.program()["graph_module"]["graph"].clone();
    graph["outputs"] = json!([{"as_tensor": {"name": "z"}}]);
    let mut fake = Fake::new()
        .input("x", "f32[4]")
        .node("higher_order.wrap_with_set_grad_enabled", "enabled=false", &[("y", "f32[4]")])
        .output("y");
    let inputs = fake.nodes[0]["inputs"].as_array_mut().unwrap();
    inputs.push(json!({"name": "wrapped_func", "arg": {"as_graph": {"name": "g", "graph": graph}}}));
    inputs.push(json!({"name": "", "arg": {"as_tensor": {"name": "x"}}}));
    assert!(fake.error().contains("the members of group `7` (node `y`)"), "{}", fake.error());
    let options = ImportOptions { ranks: Some(1), ..ImportOptions::default() };
    assert!(import(&fake.bytes(), &options).is_ok());
}

#[test]
fn supported_ops_have_unique_names() {
    let ops = symmc_torch::supported_ops();
    assert!(ops.len() > 250, "{}", ops.len());
    assert!(ops.contains(&("aten.add", "add")));
    let mut names: Vec<_> = ops.iter().map(|o| o.0).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), ops.len());
}

/// PyTorch makes numbers from a bool mask for cuDNN, which would leave something of a large hidden score.
#[test]
fn hidden_columns_do_not_affect_cudnn_attention() {
    let masked = |hidden: &str, seen: &[f64]| {
        let low = format!("s={hidden} dtype=:f32");
        let attention = "query=%q key=%k value=%v attn_bias=%m compute_log_sumexp=false";
        let results = [("y", "f32[1,1,1,1]"), ("sums", "f32[1,1,0]")];
        let fake = Fake::new()
            .input("q", "f32[1,1,1,1]")
            .input("k", "f32[1,1,2,1]")
            .input("v", "f32[1,1,2,1]")
            .input("seen", "f32[1,1,1,2]")
            .node("aten.ne.Scalar", "self=%seen other=0", &[("c", "bool[1,1,1,2]")])
            .node("aten.scalar_tensor.default", "s=0.0 dtype=:f32", &[("zero", "f32[]")])
            .node("aten.scalar_tensor.default", &low, &[("low", "f32[]")])
            .node("aten.where.self", "condition=%c self=%zero other=%low", &[("m", "f32[1,1,1,2]")])
            .node("aten._scaled_dot_product_cudnn_attention.default", attention, &results)
            .output("y");
        run(&fake, &[&[1.0], &[0.0, 1e5], &[1.0, 3.0], seen])
    };
    assert_eq!(masked("-65504.0", &[1.0, 0.0]), [[1.0]]);
    // A row that sees no column.
    assert_eq!(masked("-65504.0", &[0.0, 0.0]), [[0.0]]);
    // PyTorch does not write a bool so.
    assert_eq!(masked("-65000.0", &[1.0, 0.0]), [[3.0]]);
}
