//! Ops that write their operands. Writes take effect, or are rejected by name with advice.

use std::sync::Arc;

use symmc_ir::{InputKind, Op, OutputKind, SymbolBindings, Tensor};
use symmc_torch::{ImportOptions, import};

use crate::common::Fake;
use crate::import::run;

/// Runs a program of several ranks. The inputs are the same f32 numbers times the rank plus one.
fn run_ranks(fake: &Fake, ranks: u32, inputs: &[&[f64]]) -> Vec<Vec<Vec<f64>>> {
    let options = ImportOptions { ranks: Some(ranks), ..ImportOptions::default() };
    let graph = import(&fake.bytes(), &options).unwrap().graph;
    let of_rank = |rank: u32| {
        let types = graph.inputs.values().map(|i| graph.ty(i.value));
        types
            .zip(inputs)
            .map(|(ty, data)| {
                let data: Vec<f64> = data.iter().map(|x| x * f64::from(rank + 1)).collect();
                Arc::new(
                    Tensor::from_f64(ty.dtype, ty.concrete_shape(&SymbolBindings::new()).unwrap(), &data)
                        .unwrap(),
                )
            })
            .collect::<Vec<_>>()
    };
    let arguments: Vec<Vec<Arc<Tensor>>> = (0..ranks).map(of_rank).collect();
    let out = symmc_ir::interp::run(&graph, &SymbolBindings::new(), &arguments).unwrap();
    out.iter().map(|rank| rank.iter().map(Tensor::to_f64).collect()).collect()
}

#[test]
fn in_place_ops_rebind_every_alias() {
    let fake = Fake::new()
        .input("x", "f32[2]")
        .node("aten.clone.default", "self=%x", &[("c", "f32[2]")])
        .node("aten.add_.Tensor", "self=%c other=1.0", &[("a", "f32[2]")])
        .node("aten.mul_.Tensor", "self=%a other=3.0", &[("m", "f32[2]")])
        .output("c")
        .output("x");
    assert_eq!(run(&fake, &[&[1.0, 2.0]]), [[6.0, 9.0], [1.0, 2.0]]);
}

#[test]
fn writing_a_view_writes_its_base() {
    let fake = Fake::new()
        .input("x", "f32[2,3]")
        .input("v", "f32[2]")
        .node("aten.mul.Tensor", "self=%x other=1.0", &[("b", "f32[2,3]")])
        .node("aten.select.int", "self=%b dim=1 index=2", &[("s", "f32[2]")])
        .node("aten.copy_.default", "self=%s src=%v", &[("w", "f32[2]")])
        .node("aten.add_.Tensor", "self=%s other=1.0", &[("a", "f32[2]")])
        .node("aten.t.default", "self=%b", &[("t", "f32[3,2]")])
        .node("aten.zero_.default", "self=%t", &[("z", "f32[3,2]")])
        .node("aten.sum.default", "self=%v", &[("sum", "f32[]")]);
    let before = fake.clone().output("v").output("sum");
    assert_eq!(run(&before, &[&[0.0; 6], &[7.0, 8.0]]), [vec![7.0, 8.0], vec![15.0]]);
    let complete = fake.output("b");
    assert_eq!(run(&complete, &[&[0.0; 6], &[7.0, 8.0]]), [vec![0.0; 6]]);
    let mut earlier = complete.clone();
    earlier.nodes.truncate(4);
    earlier.output_specs.clear();
    let earlier = earlier.output("b");
    assert_eq!(run(&earlier, &[&[0.0; 6], &[7.0, 8.0]]), [vec![0.0, 0.0, 8.0, 0.0, 0.0, 9.0]]);
}

#[test]
fn writing_an_input_mutates_it() {
    let fake = Fake::new()
        .buffer("cache", "f32[4]", false, Some(&[0; 16]))
        .input("x", "f32[2]")
        .node("aten.slice.Tensor", "self=%cache dim=0 start=1 end=3", &[("s", "f32[2]")])
        .node("aten.copy_.default", "self=%s src=%x", &[("w", "f32[2]")])
        .node("aten.sum.default", "self=%cache", &[("y", "f32[]")])
        .output("y");
    let imported = fake.import().unwrap();
    let input = imported.graph.inputs.keys().next().unwrap();
    assert_eq!(imported.graph.inputs[input].kind, InputKind::Parameter);
    assert!(imported.weights.contains_key("cache"));
    let kinds: Vec<_> = imported.graph.outputs.iter().map(|o| o.kind).collect();
    assert_eq!(kinds, [OutputKind::Returned, OutputKind::Mutates(input)]);
    assert_eq!(run(&fake, &[&[1.0; 4], &[5.0, 6.0]]), [vec![13.0], vec![1.0, 5.0, 6.0, 1.0]]);
}

#[test]
fn every_view_of_what_is_written_shows_it() {
    let fake = Fake::new()
        .input("x", "f32[2,2]")
        .node("aten.clone.default", "self=%x", &[("c", "f32[2,2]")])
        .node("aten.select.int", "self=%c dim=0 index=0", &[("row", "f32[2]")])
        .node("aten.t.default", "self=%c", &[("t", "f32[2,2]")])
        .node("aten.view.default", "self=%c size=[4]", &[("flat", "f32[4]")])
        .node("aten.mul_.Tensor", "self=%row other=2.0", &[("m", "f32[2]")])
        .node("aten.add_.Tensor", "self=%t other=1.0", &[("a", "f32[2,2]")])
        .node("aten.select.int", "self=%flat dim=0 index=3", &[("last", "f32[]")])
        .node("aten.fill_.Scalar", "self=%last value=9", &[("f", "f32[]")]);
    let views = fake.output("row").output("t").output("c").output("x");
    let expected =
        [vec![3.0, 5.0], vec![3.0, 4.0, 5.0, 9.0], vec![3.0, 5.0, 4.0, 9.0], vec![1.0, 2.0, 3.0, 4.0]];
    assert_eq!(run(&views, &[&[1.0, 2.0, 3.0, 4.0]]), expected);
}

#[test]
fn a_reshape_that_pytorch_copies_is_a_copy() {
    // The strides of the operand matter: a transposed matrix cannot be viewed as a vector.
    let program = |strides: [i64; 2]| {
        let mut fake = Fake::new()
            .input("x", "f32[2,2]")
            .node("aten.mul.Tensor", "self=%x other=1.0", &[("c", "f32[2,2]")])
            .node("aten.t.default", "self=%c", &[("t", "f32[2,2]")])
            .node("aten.reshape.default", "self=%t shape=[4]", &[("r", "f32[4]")])
            .node("aten.zero_.default", "self=%r", &[("z", "f32[4]")])
            .output("c");
        let strides: Vec<_> = strides.iter().map(|s| serde_json::json!({"as_int": s})).collect();
        fake.values["t"]["strides"] = serde_json::json!(strides);
        fake
    };
    let x: &[f64] = &[1.0, 2.0, 3.0, 4.0];
    assert_eq!(run(&program([1, 2]), &[x]), [x.to_vec()]);
    assert_eq!(run(&program([2, 1]), &[x]), [vec![0.0; 4]]);
    let mut unknown = program([1, 2]);
    unknown.values["t"].as_object_mut().unwrap().remove("strides");
    let error = unknown.error();
    assert!(error.contains("which may share memory with `c`, which is read later"), "{error}");
    assert!(error.contains("run_decompositions()"), "{error}");
}

#[test]
fn writing_an_expanded_view_is_rejected() {
    let expanded = Fake::new()
        .input("x", "f32[1]")
        .node("aten.expand.default", "self=%x size=[3]", &[("e", "f32[3]")])
        .node("aten.zero_.default", "self=%e", &[("z", "f32[3]")]);
    let error = expanded.output("z").error();
    assert!(error.contains("a view whose elements of the base are not known"), "{error}");
    assert!(error.contains("run_decompositions()"), "{error}");
}

#[test]
fn opaque_view_writes_are_rejected_if_base_is_read() {
    let fake = Fake::new()
        .input("x", "f32[3,3]")
        .node("aten.clone.default", "self=%x", &[("c", "f32[3,3]")])
        .node("aten.view.dtype", "self=%c dtype=:i32", &[("d", "i32[3,3]")])
        .node("aten.zero_.default", "self=%d", &[("z", "i32[3,3]")]);
    let error = fake.clone().output("c").error();
    assert!(error.contains("it writes `d`, which may share memory with `c`"), "{error}");
    fake.output("z").import().expect("c is not read after the write");
    let input = Fake::new()
        .input("x", "f32[3,3]")
        .node("aten.view.dtype", "self=%x dtype=:i32", &[("d", "i32[3,3]")])
        .node("aten.zero_.default", "self=%d", &[("z", "i32[3,3]")]);
    let error = input.output("z").error();
    assert!(error.contains("it writes `d`, which may share memory with the input `x`"), "{error}");
}

#[test]
fn strided_views_are_written_unless_read_by_index() {
    let written = |op: &str, arguments: &str, shape: &str| {
        Fake::new()
            .input("x", "f32[2,3]")
            .node("aten.clone.default", "self=%x", &[("c", "f32[2,3]")])
            .node(op, &format!("self=%c {arguments}"), &[("v", shape)])
            .node("aten.zero_.default", "self=%v", &[("z", shape)])
            .output("c")
    };
    let x: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    for (op, arguments, shape, expected) in [
        ("aten.diagonal.default", "", "f32[2]", [0.0, 2.0, 3.0, 4.0, 0.0, 6.0]),
        ("aten.diagonal.default", "offset=1 dim1=1 dim2=0", "f32[1]", [1.0, 2.0, 3.0, 0.0, 5.0, 6.0]),
        ("aten.unfold.default", "dimension=1 size=2 step=2", "f32[2,1,2]", [0.0, 0.0, 3.0, 0.0, 0.0, 6.0]),
        (
            "aten.as_strided.default",
            "size=[2,2] stride=[1,2] storage_offset=1",
            "f32[2,2]",
            [1.0, 0.0, 0.0, 0.0, 0.0, 6.0],
        ),
    ] {
        assert_eq!(run(&written(op, arguments, shape), &[x]), [expected.to_vec()], "{op} {arguments}");
    }
    for (op, arguments, shape) in [
        ("aten.unfold.default", "dimension=1 size=2 step=1", "f32[2,2,2]"),
        ("aten.as_strided.default", "size=[2,2] stride=[3,2]", "f32[2,2]"),
    ] {
        let error = written(op, arguments, shape).error();
        assert!(error.contains("it writes `v`, which may share memory with `c`"), "{op}: {error}");
    }
}

#[test]
fn as_strided_reads_only_memory_of_its_operand() {
    let strided = |change: &dyn Fn(&mut Fake), arguments: &str| {
        let mut fake = Fake::new().input("x", "f32[2,3]").node(
            "aten.as_strided.default",
            &format!("self=%x {arguments}"),
            &[("v", "f32[2]")],
        );
        change(&mut fake);
        fake.output("v")
    };
    let run = |fake: Fake| run(&fake, &[&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]);
    // The operand is stored by columns, or after other data.
    let columns =
        |fake: &mut Fake| fake.values["x"]["strides"] = serde_json::json!([{"as_int": 1}, {"as_int": 2}]);
    let behind = |fake: &mut Fake| fake.values["x"]["storage_offset"] = serde_json::json!({"as_int": 4});
    assert_eq!(run(strided(&columns, "size=[2] stride=[1] storage_offset=1")), [vec![4.0, 2.0]]);
    assert_eq!(run(strided(&behind, "size=[2] stride=[1] storage_offset=5")), [vec![2.0, 3.0]]);
    assert_eq!(run(strided(&behind, "size=[2] stride=[5]")), [vec![1.0, 6.0]]);
    let spread =
        |fake: &mut Fake| fake.values["x"]["strides"] = serde_json::json!([{"as_int": 6}, {"as_int": 1}]);
    for fake in [
        strided(&|_| (), "size=[2] stride=[6]"),
        strided(&behind, "size=[2] stride=[1] storage_offset=3"),
        strided(&spread, "size=[2] stride=[1]"),
    ] {
        let graph = fake.import().unwrap().graph;
        assert!(graph.nodes.values().any(|n| matches!(n.op, symmc_ir::Op::Opaque { .. })));
    }
}

#[test]
fn out_arguments_are_written() {
    let fake = Fake::new()
        .input("x", "f32[4]")
        .node("aten.empty.memory_format", "size=[4]", &[("o", "f32[4]")])
        .node("aten.empty.memory_format", "size=[]", &[("v", "f32[]")])
        .node("aten.empty.memory_format", "size=[] dtype=:i64", &[("i", "i64[]")])
        .node("aten.add.out", "self=%x other=%x out=%o", &[("a", "f32[4]")])
        .node("aten.max.dim_max", "self=%o dim=0 max=%v max_values=%i", &[("m", "f32[]"), ("n", "i64[]")])
        .output("o")
        .output("a")
        .output("v")
        .output("i");
    let doubled = vec![2.0, 8.0, 4.0, 6.0];
    assert_eq!(run(&fake, &[&[1.0, 4.0, 2.0, 3.0]]), [doubled.clone(), doubled, vec![8.0], vec![1.0]]);
    let another = Fake::new()
        .input("x", "f32[4]")
        .node("aten.empty.memory_format", "size=[3]", &[("o", "f32[3]")])
        .node("aten.relu.out", "self=%x out=%o", &[("r", "f32[4]")]);
    let error = another.output("o").error();
    assert!(error.contains("expected f32[3] to be written to `o`, found f32[4]"), "{error}");
}

#[test]
fn lists_are_written_one_by_one() {
    let fake = Fake::new()
        .input("x", "f32[2]")
        .input("y", "f32[1]")
        .node("aten.clone.default", "self=%x", &[("a", "f32[2]")])
        .node("aten.clone.default", "self=%y", &[("b", "f32[1]")])
        .node("aten._foreach_mul_.Scalar", "self=[%a,%b] scalar=2.0", &[])
        .node("aten._foreach_add_.List", "self=[%a,%b] other=[%x,%y] alpha=0.5", &[])
        .node("aten._foreach_pow_.ScalarList", "self=[%a,%b] exponent=[1,2]", &[])
        .list_node("aten._foreach_sqrt.default", "self=[%a,%b]", &[("s", "f32[2]"), ("t", "f32[1]")])
        .output("a")
        .output("b")
        .output("t");
    assert_eq!(run(&fake, &[&[2.0, 4.0], &[2.0]]), [vec![5.0, 10.0], vec![25.0], vec![5.0]]);
    let short = Fake::new()
        .input("x", "f32[2]")
        .node("aten._foreach_add_.List", "self=[%x,%x] other=[%x]", &[])
        .output("x");
    let error = short.error();
    assert!(error.contains("expected a list of more than 1 tensors, found 1"), "{error}");
}

#[test]
fn collectives_write_their_out_argument_and_their_operand() {
    let gather = Fake::new()
        .input("x", "f32[1]")
        .node("aten.zeros.default", "size=[2]", &[("o", "f32[2]")])
        .node(
            "_c10d_functional.all_gather_into_tensor_out.default",
            "input=%x group_size=2 group_name='0' out=%o",
            &[("g", "f32[2]")],
        )
        .output("o");
    assert_eq!(run_ranks(&gather, 2, &[&[5.0]]), [[vec![5.0, 10.0]], [vec![5.0, 10.0]]]);
    let scatter = Fake::new()
        .input("x", "f32[2]")
        .node("aten.zeros.default", "size=[1]", &[("o", "f32[1]")])
        .node(
            "_c10d_functional.reduce_scatter_tensor_out.default",
            "input=%x reduce_op='sum' group_size=2 group_name='0' out=%o",
            &[("g", "f32[1]")],
        )
        .output("o");
    assert_eq!(run_ranks(&scatter, 2, &[&[1.0, 2.0]]), [[vec![3.0]], [vec![6.0]]]);
    let reduce = Fake::new()
        .input("x", "f32[1]")
        .node("aten.clone.default", "self=%x", &[("c", "f32[1]")])
        .node(
            "symm_mem.two_shot_all_reduce_.default",
            "input=%c reduce_op='sum' group_name='0'",
            &[("r", "f32[1]")],
        )
        .output("c");
    assert_eq!(run_ranks(&reduce, 2, &[&[1.0]]), [[vec![3.0]], [vec![3.0]]]);
}

#[test]
fn work_buffers_have_no_contents_afterwards() {
    let fake = Fake::new()
        .input("x", "f32[2]")
        .node("aten.clone.default", "self=%x", &[("c", "f32[2]")])
        .node("aten.empty.memory_format", "size=[1]", &[("o", "f32[1]")])
        .node(
            "symm_mem.reduce_scatter_out.default",
            "input=%c group_name='0' split_last_dim=true output=%o",
            &[("g", "f32[1]")],
        );
    assert_eq!(run_ranks(&fake.clone().output("o"), 2, &[&[1.0, 2.0]]), [[vec![3.0]], [vec![6.0]]]);
    let options = ImportOptions { ranks: Some(2), ..ImportOptions::default() };
    let error = import(&fake.output("c").bytes(), &options).unwrap_err().to_string();
    assert!(error.contains("`c` is memory whose contents are undefined after node `g`"), "{error}");
}

/// A custom op that fills its first argument. The argument is read afterwards.
fn custom(results: &[(&str, &str)]) -> Fake {
    Fake::new()
        .input("x", "f32[2]")
        .node("aten.zeros.default", "size=[2]", &[("o", "f32[2]")])
        .node("mylib.f.default", "out=%o x=%x", results)
        .node("aten.relu.default", "self=%o", &[("y", "f32[2]")])
        .output("y")
}

#[test]
fn custom_ops_without_schema_are_rejected_when_effects_matter() {
    let error = custom(&[]).error();
    let expected = "it has no result, so it must have a side effect: the program does not state what this operator writes; \
                    declare its schema (such as `mylib::f(Tensor out, Tensor x) -> ()`";
    assert!(error.contains(expected) && error.contains("run_decompositions()"), "{error}");
    let error = custom(&[("r", "f32[2]")]).error();
    assert!(
        error.contains("node `r` (torch.ops.mylib.f.default): it may write `o`, which is read later"),
        "{error}"
    );
    let mut input = custom(&[("r", "f32[2]")]).output("r");
    input.nodes.truncate(2);
    input.output_specs.remove(0);
    let error = input.error();
    assert!(error.contains("it may write the input `x`"), "{error}");
    input.functional().import().expect("in a functional program no op writes");
    let unseen = Fake::new()
        .input("x", "f32[2]")
        .node("aten.relu.default", "self=%x", &[("y", "f32[2]")])
        .node("mylib.f.default", "x=%y", &[("r", "f32[2]")])
        .output("r");
    unseen.import().expect("nothing reads what it could write");
}

#[test]
fn a_declared_op_writes_what_its_schema_says() {
    let written = |fake: &Fake, schema: &str| {
        let graph = fake.import_with(&[schema]).unwrap().graph;
        let relu = graph.nodes.values().find(|n| matches!(n.op, Op::Unary(_))).unwrap();
        let symmc_ir::ValueDef::Node(id, result) = graph.values[relu.inputs[0]].def else {
            panic!("an input")
        };
        let node = &graph.nodes[id];
        (matches!(&node.op, Op::Opaque { name, .. } if name == "mylib.f.default"), node.outputs.len(), result)
    };
    assert_eq!(written(&custom(&[]), "mylib::f(Tensor(a!) out, Tensor x) -> ()"), (true, 1, 0));
    let own = custom(&[("r", "i64[3]")]).output("r");
    assert_eq!(written(&own, "mylib::f(Tensor(a!) out, Tensor x) -> Tensor"), (true, 2, 1));
    let aliased = custom(&[("r", "f32[2]")]).output("r");
    assert_eq!(written(&aliased, "mylib::f(Tensor(a!) out, Tensor x) -> Tensor(a!)"), (true, 1, 0));
    let pure = custom(&[("r", "f32[2]")]).output("r");
    assert!(!written(&pure, "mylib::f(Tensor out, Tensor x) -> Tensor").0);
    // A write to an argument is an output.
    let graph = custom(&[]).import_with(&["mylib::f(Tensor out, Tensor(a!) x) -> ()"]).unwrap().graph;
    assert!(graph.outputs.iter().any(|o| matches!(o.kind, OutputKind::Mutates(_))));
}

#[test]
fn declared_schemas_must_be_read_and_used() {
    let error = |schemas: &[&str]| custom(&[]).import_with(schemas).unwrap_err().to_string();
    assert!(error(&["mylib::f(Tensor x"]).contains("the schema `mylib::f(Tensor x`: expected `-> results`"));
    let message = error(&["mylib::g(Tensor x) -> Tensor"]);
    assert!(message.contains("the program has no node of mylib.g.default"), "{message}");
    let nothing = error(&["mylib::f(Tensor out, Tensor x) -> ()"]);
    assert!(nothing.contains("it has a side effect"), "{nothing}");
}

#[test]
fn ops_without_rules_write_as_opaque_ops() {
    let fake = Fake::new()
        .input("x", "f32[4]")
        .node("aten.clone.default", "self=%x", &[("c", "f32[4]")])
        .node("aten.digamma_.default", "self=%c", &[("e", "f32[4]")])
        .node("aten.relu.default", "self=%c", &[("y", "f32[4]")])
        .output("y");
    let graph = fake.import().unwrap().graph;
    let relu = graph.nodes.values().find(|n| matches!(n.op, Op::Unary(_))).unwrap();
    let symmc_ir::ValueDef::Node(id, _) = graph.values[relu.inputs[0]].def else { panic!("an input") };
    assert!(matches!(&graph.nodes[id].op, Op::Opaque { name, .. } if name == "aten.digamma_.default"));
}

#[test]
fn functionalised_calls_are_the_op_that_they_call() {
    let fake = Fake::new()
        .functional()
        .input("x", "f32[2]")
        .node("aten.empty.memory_format", "size=[3]", &[("o", "f32[3]")])
        .node(
            "higher_order.auto_functionalized_v2",
            "=@mylib.f.default x=%x _out_base_index=0 _all_bases=[%o]",
            &[("r", "f32[3]")],
        )
        .output("r");
    let graph = fake.import().unwrap().graph;
    assert!(
        graph.nodes.values().any(|n| matches!(&n.op, Op::Opaque { name, .. } if name == "mylib.f.default"))
    );
    // A write of an op with a rule, to a slice of its base.
    let gather = Fake::new()
        .functional()
        .input("x", "f32[1]")
        .node("aten.zeros.default", "size=[4]", &[("o", "f32[4]")])
        .node(
            "higher_order.auto_functionalized_v2",
            "=@symm_mem.multimem_all_gather_out.default input=%x group_name='0' _out_base_index=0 _out_slice_dim=0 \
             _out_slice_start=1 _out_slice_end=3 _all_bases=[%o]",
            &[("g", "f32[2]"), ("b", "f32[4]")],
        )
        .output("g")
        .output("b");
    assert_eq!(run_ranks(&gather, 2, &[&[5.0]])[1], [vec![5.0, 10.0], vec![0.0, 5.0, 10.0, 0.0]]);
}

#[test]
fn random_numbers_and_other_effects_are_refused() {
    for (target, arguments, expected) in [
        ("aten.rand_like.default", "self=%x", "random numbers are not supported"),
        ("aten.dropout.default", "input=%x p=0.5 train=true", "random numbers are not supported"),
        ("aten.dropout_.default", "self=%x p=0.5 train=true", "random numbers are not supported"),
        ("aten.bernoulli_.float", "self=%x p=0.5", "random numbers are not supported"),
        ("aten.t_.default", "self=%x", "changes the shape or the storage of its operand in place"),
        (
            "_c10d_functional.irecv.default",
            "tensor=%x src=0 tag=0 group_name='0'",
            "expected sends and receives of all ranks together, as `batch_p2p_ops` has them, found a receive from rank 0",
        ),
        ("higher_order.with_effects", "token=%x x=%x", "a side effect"),
    ] {
        let fake = Fake::new().input("x", "f32[2]").node(target, arguments, &[("y", "f32[2]")]).output("y");
        for fake in [fake.clone(), fake.functional()] {
            let error = fake.error();
            assert!(error.contains(expected) && error.contains("node `y`"), "{target}: {error}");
        }
    }
    let none = Fake::new().input("x", "f32[2]").node("c10d.barrier.default", "x=%x", &[]).output("x").error();
    assert!(none.contains("a side effect"), "{none}");
}

#[test]
fn ops_that_cannot_write_or_draw_here_are_accepted() {
    let detached = Fake::new()
        .input("x", "f32[2]")
        .node("aten.lift_fresh_copy.default", "self=%x", &[("c", "f32[2]")])
        .node("aten.detach_.default", "self=%c", &[("d", "f32[2]")])
        .node("aten.add_.Tensor", "self=%d other=1", &[("a", "f32[2]")]);
    assert_eq!(run(&detached.output("c").output("x"), &[&[1.0, 2.0]]), [[2.0, 3.0], [1.0, 2.0]]);
    let attention = |more: &str| {
        let arguments = format!("query=%x key=%x value=%x {more}");
        Fake::new()
            .input("x", "f32[1,1,2,4]")
            .node(
                "aten._scaled_dot_product_flash_attention_for_cpu.default",
                &arguments,
                &[("y", "f32[1,1,2,4]"), ("l", "f32[1,1,2]")],
            )
            .output("y")
            .output("l")
    };
    attention("").import().expect("nothing is dropped unless a probability is given");
    attention("dropout_p=0.0").import().expect("nothing is dropped");
    assert!(attention("dropout_p=0.5").error().contains("random numbers are not supported"));
}

#[test]
fn batch_norm_writes_its_statistics_in_training() {
    let fake = |training: &str| {
        let arguments = format!(
            "input=%x weight=none bias=none running_mean=%m running_var=%v training={training} momentum=0.1 eps=1e-5 \
             cudnn_enabled=true"
        );
        Fake::new()
            .input("x", "f32[2,3]")
            .buffer("m", "f32[3]", true, None)
            .buffer("v", "f32[3]", true, None)
            .node("aten.batch_norm.default", &arguments, &[("y", "f32[2,3]")])
            .output("y")
    };
    let mutations = |fake: Fake| {
        let graph = fake.import().unwrap().graph;
        graph.outputs.iter().filter(|o| matches!(o.kind, OutputKind::Mutates(_))).count()
    };
    assert_eq!((mutations(fake("true")), mutations(fake("false"))), (2, 0));
}
