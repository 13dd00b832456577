//! Custom ops with definitions: the definition replaces the call, and every difference between the two is an error
//! that names the op, what was expected and what was found.

use std::sync::Arc;

use serde_json::json;
use symmc_ir::{InputKind, Op, SymbolBindings, Tensor};
use symmc_torch::{ImportError, ImportOptions, ImportOutput, import};

use crate::common::Fake;

const SCALE: &str =
    "program \"m::scale(Tensor x, float by, int times=2, *, bool exact=True == True) -> Tensor\" ranks ?
symbol n in 1..=64
arg %x: $x.dtype[n, $x.1]
%a: $x.dtype[n, $x.1] = mul %x, $by
%b: $x.dtype[n, $x.1] = add %a, $times
return %b
";

/// A call of `m::scale` with these arguments after `x`.
fn scale(arguments: &str) -> Fake {
    Fake::new()
        .input("x", "f32[2, 3]")
        .node("m.scale.default", &format!("x=%x {arguments}"), &[("y", "f32[2, 3]")])
        .output("y")
}

fn import_defined(
    fake: &Fake,
    ranks: Option<u32>,
    definitions: &[&str],
) -> Result<ImportOutput, ImportError> {
    let definitions = definitions.iter().map(|d| d.to_string()).collect();
    import(&fake.bytes(), &ImportOptions { ranks, definitions, ..ImportOptions::default() })
}

fn error(fake: &Fake, definitions: &[&str]) -> String {
    match import_defined(fake, Some(2), definitions) {
        Err(e) => e.to_string(),
        Ok(imported) => panic!("expected an error, found {}", symmc_ir::text::print(&imported.graph)),
    }
}

/// The results of all ranks. Each rank gets the inputs with its own number added to every element.
fn run(fake: &Fake, ranks: u32, definitions: &[&str], inputs: &[&[f64]]) -> Vec<Vec<Vec<f64>>> {
    let graph = import_defined(fake, Some(ranks), definitions).unwrap_or_else(|e| panic!("{e}")).graph;
    assert!(graph.nodes.values().all(|n| !matches!(n.op, Op::Opaque { .. })));
    let of_rank = |rank: u32| {
        let types = graph.inputs.values().filter(|i| i.data.is_none()).map(|i| graph.ty(i.value));
        let mut arguments = types.zip(inputs).map(|(ty, data)| {
            let data: Vec<f64> = data.iter().map(|x| x + f64::from(rank)).collect();
            let shape = ty.concrete_shape(&SymbolBindings::new()).expect("a fixed shape");
            Arc::new(Tensor::from_f64(ty.dtype, shape, &data).expect("a tensor"))
        });
        let data = graph.inputs.values().map(|i| i.data.clone().or_else(|| arguments.next()));
        data.collect::<Option<Vec<_>>>().expect("all inputs")
    };
    let inputs: Vec<_> = (0..ranks).map(of_rank).collect();
    let out = symmc_ir::interp::run(&graph, &SymbolBindings::new(), &inputs).expect("a run");
    out.iter().map(|rank| rank.iter().map(Tensor::to_f64).collect()).collect()
}

#[test]
fn a_definition_gets_the_arguments_of_the_call() {
    let x: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let expected = |by: f64, plus: f64| vec![vec![x.iter().map(|v| v * by + plus).collect::<Vec<f64>>()]];
    assert_eq!(run(&scale("by=0.5"), 1, &[SCALE], &[x]), expected(0.5, 2.0));
    assert_eq!(run(&scale("by=3 times=7 exact=true"), 1, &[SCALE], &[x]), expected(3.0, 7.0));
    let f64_call = Fake::new()
        .input("x", "f64[2, 3]")
        .node("m.scale.default", "x=%x by=1e-05", &[("y", "f64[2, 3]")])
        .output("y");
    assert_eq!(run(&f64_call, 1, &[SCALE], &[x]), expected(1e-5, 2.0));
}

#[test]
fn symbols_of_a_definition_are_extents_of_the_program() {
    let definition = "program \"m::rows(Tensor x, SymInt count) -> (Tensor, Tensor)\" ranks ?
symbol n in 0..=1048576
symbol count in 0..=1048576
symbol wide in 1..=64
arg %x: f32[n, 4]
%a: f32[count, 4] = slice %x axis=0 start=n-count step=1
%b: f32[1, 4] = slice %x axis=0 start=0 step=1
%c: f32[wide, 4] = expand %b
return %a
return %c
";
    let fake = Fake::new()
        .input("x", "f32[s0, 4]")
        .range("s0", Some(2), Some(64))
        .sym_int("half", "s0//2")
        .node("m.rows.default", "x=%x count=$half", &[("y", "f32[s0//2, 4]"), ("z", "f32[3, 4]")])
        .output("y")
        .output("z");
    let graph = import_defined(&fake, Some(1), &[definition]).unwrap_or_else(|e| panic!("{e}")).graph;
    let types: Vec<String> =
        graph.outputs.iter().map(|o| graph.ty(o.value).display(&graph.symbols).to_string()).collect();
    assert_eq!(types, ["f32[div(tokens, 2), 4]", "f32[3, 4]"]);
}

#[test]
fn groups_are_those_that_the_call_names() {
    let definition = "program \"m::sum(Tensor x, str group_name) -> Tensor\" ranks ?
symbol n in 1..=64
group @g $group_name
arg %x: f32[n]
%all: f32[$group_name.size*n] = all_gather %x group=@g
%sum: f32[n] = all_reduce %x op=sum group=@g
%parts: f32[$group_name.size, n] = reshape %all
%r: f32[n] = reduce %parts op=max axes=[0] keep=false
%y: f32[n] = sub %sum, %r
return %y
";
    let fake = Fake::new()
        .input("x", "f32[2]")
        .node("m.sum.default", "x=%x group_name='5'", &[("y", "f32[2]")])
        .output("y");
    let groups = |cells: Vec<Vec<u32>>| ImportOptions {
        ranks: Some(4),
        groups: [("5".to_string(), cells)].into_iter().collect(),
        definitions: vec![definition.into()],
        ..ImportOptions::default()
    };
    let graph = import(&fake.bytes(), &groups(vec![vec![0, 2], vec![1, 3]])).unwrap().graph;
    let inputs: Vec<_> = (0..4)
        .map(|rank| {
            vec![Arc::new(Tensor::from_f64(symmc_ir::DType::F32, vec![2], &[f64::from(rank), 1.0]).unwrap())]
        })
        .collect();
    let out = symmc_ir::interp::run(&graph, &SymbolBindings::new(), &inputs).unwrap();
    let first: Vec<f64> = out.iter().map(|rank| rank[0].to_f64()[0]).collect();
    assert_eq!(first, [0.0, 1.0, 0.0, 1.0]);
    let unknown = error(&fake, &[definition]);
    assert!(unknown.contains("the members of group `5`"), "{unknown}");
}

#[test]
fn the_first_definition_that_accepts_a_call_defines_it() {
    let weighted = "program \"m::total(Tensor x, Tensor? w=None, str kind=\\\"sum\\\" == \\\"sum\\\") -> Tensor\" ranks ?
arg %x: f32[2]
arg %w: f32[2]
%p: f32[2] = mul %x, %w
%y: f32[] = reduce %p op=sum axes=[0] keep=false
return %y
";
    let plain = "program \"m::total(Tensor x, Tensor? w=None, str kind=\\\"sum\\\" == \\\"sum\\\") -> Tensor\" ranks ?
arg %x: f32[2]
%y: f32[] = reduce %x op=sum axes=[0] keep=false
return %y
";
    let largest = "program \"m::total(Tensor x, Tensor? w=None, str kind == \\\"max\\\") -> Tensor\" ranks ?
arg %x: f32[2]
%y: f32[] = reduce %x op=max axes=[0] keep=false
return %y
";
    let definitions = [weighted, plain, largest];
    let call = |arguments: &str| {
        Fake::new()
            .input("x", "f32[2]")
            .node("m.total.default", &format!("x=%x {arguments}"), &[("y", "f32[]")])
            .output("y")
    };
    let x: &[f64] = &[2.0, 5.0];
    assert_eq!(run(&call(""), 1, &definitions, &[x]), [[[7.0]]]);
    assert_eq!(run(&call("w=none kind='sum'"), 1, &definitions, &[x]), [[[7.0]]]);
    assert_eq!(run(&call("w=%x"), 1, &definitions, &[x]), [[[29.0]]]);
    assert_eq!(run(&call("kind='max'"), 1, &definitions, &[x]), [[[5.0]]]);
    let none = error(&call("kind='min'"), &definitions);
    assert!(
        none.contains("no definition accepts the call: expected \"sum\" as `kind`, found \"min\"; "),
        "{none}"
    );
    assert!(none.contains("expected \"max\" as `kind`, found \"min\""), "{none}");
    let weighted_max = error(&call("w=%x kind='max'"), &[largest]);
    assert!(
        weighted_max.contains("the call gives `w`, which the definition does not take"),
        "{weighted_max}"
    );
}

#[test]
fn numbers_that_a_call_leaves_out_select_another_definition() {
    let plain =
        "program \"m::clip(Tensor x, int? low=None == None, str? group=None == None) -> Tensor\" ranks ?
arg %x: f32[2]
%y: f32[2] = neg %x
return %y
";
    let text = "program \"m::clip(Tensor x, int? low=None, str? group=None == None) -> Tensor\" ranks ?
arg %x: f32[2]
%y: f32[2] = max %x, $low
return %y
";
    let symbol = "program \"m::clip(Tensor x, int? low=None, str? group=None == None) -> Tensor\" ranks ?
symbol low in 0..=64
arg %x: f32[2]
%ones: f32[low] = full value=1
%sum: f32[1] = reduce %ones op=sum axes=[0] keep=true
%bound: f32[2] = expand %sum
%y: f32[2] = max %x, %bound
return %y
";
    let grouped = "program \"m::clip(Tensor x, int? low=None == any, str? group=None) -> Tensor\" ranks ?
group @g $group
arg %x: f32[2]
%y: f32[2] = all_reduce %x op=sum group=@g
return %y
";
    let call = |arguments: &str| {
        Fake::new()
            .input("x", "f32[2]")
            .node("m.clip.default", &format!("x=%x {arguments}"), &[("y", "f32[2]")])
            .output("y")
    };
    let x: &[f64] = &[2.0, 5.0];
    for first in [text, grouped] {
        for none in ["", "low=none group=none"] {
            assert_eq!(run(&call(none), 1, &[first, plain], &[x]), [[[-2.0, -5.0]]], "{first}");
        }
    }
    assert_eq!(run(&call("low=3"), 1, &[text, plain], &[x]), [[[3.0, 5.0]]]);
    assert_eq!(run(&call("low=3"), 1, &[symbol, plain], &[x]), [[[3.0, 5.0]]]);
    assert_eq!(run(&call(""), 1, &[symbol, plain], &[x]), [[[-2.0, -5.0]]]);
    for (only, expected) in [
        (text, "expected a value of `low`, found none"),
        (symbol, "expected an integer as `low`, found none"),
        (grouped, "expected a value of `group`, found none"),
    ] {
        let message = error(&call(""), &[only]);
        assert!(
            message.contains("the definition does not accept the call: ") && message.contains(expected),
            "{message}"
        );
    }
}

#[test]
fn strings_of_a_schema_may_contain_its_punctuation() {
    let definition = r#"program "m::total(Tensor x, str a=\"i,j->(i\" == \"i,j->(i\", str b='=' == any, str[] c=[\"a, b\", ']'] == [\"a, b\", ']']) -> Tensor" ranks ?
arg %x: f32[2]
%y: f32[2] = neg %x
return %y
"#;
    let call = |arguments: &str| {
        Fake::new()
            .input("x", "f32[2]")
            .node("m.total.default", &format!("x=%x {arguments}"), &[("y", "f32[2]")])
            .output("y")
    };
    for arguments in ["", "b='==,'", "a='i,j->(i'"] {
        assert_eq!(run(&call(arguments), 1, &[definition], &[&[2.0, 5.0]]), [[[-2.0, -5.0]]], "{arguments}");
    }
    let message = error(&call("a='i'"), &[definition]);
    assert!(message.contains("expected \"i,j->(i\" as `a`, found \"i\""), "{message}");
}

#[test]
fn empty_lists_have_the_type_of_the_schema() {
    let definition = "program \"m::total(Tensor x, int[] axes, float[]? by=None == any) -> Tensor\" ranks ?
arg %x: f32[2]
%y: f32[2] = reduce %x op=sum axes=$axes keep=true
return %y
";
    let none = definition.replace("int[] axes", "int[] axes == []").replace("$axes", "[]");
    let call = |arguments: &str| {
        Fake::new()
            .input("x", "f32[2]")
            .node("m.total.default", &format!("x=%x {arguments}"), &[("y", "f32[2]")])
            .output("y")
    };
    let x: &[f64] = &[2.0, 5.0];
    for arguments in ["axes=[]", "axes=[%]", "axes=[%] by=[%]"] {
        for definition in [definition, &none] {
            assert_eq!(run(&call(arguments), 1, &[definition], &[x]), [[[2.0, 5.0]]], "{arguments}");
        }
    }
    let message = error(&call("axes=[%]"), &[&definition.replace("int[] axes", "int axes")]);
    assert!(message.contains("expected `axes` of the type int, found a list of tensors"), "{message}");
}

#[test]
fn definitions_write_what_their_schema_marks() {
    let definition = "program \"m::push(Tensor(a!) cache, Tensor x) -> Tensor\" ranks ?
arg %cache: f32[2]
arg %x: f32[2]
const %one: f32[2] = hex\"0000803f0000803f\"
%new: f32[2] = add %cache, %x
%old: f32[2] = add %cache, %one
return %old
mutate %cache = %new
";
    let fake = Fake::new()
        .input("x", "f32[2]")
        .node("aten.clone.default", "self=%x", &[("c", "f32[2]")])
        .node("m.push.default", "cache=%c x=%x", &[("o", "f32[2]")])
        .output("o")
        .output("c");
    let x: &[f64] = &[3.0, 4.0];
    let expected = [[vec![4.0, 5.0], vec![6.0, 8.0]]];
    assert_eq!(run(&fake, 1, &[definition], &[x]), expected);
    let functional = Fake::new()
        .functional()
        .input("x", "f32[2]")
        .node("aten.clone.default", "self=%x", &[("c", "f32[2]")])
        .node(
            "higher_order.auto_functionalized_v2",
            "=@m.push.default x=%x _cache_base_index=0 _all_bases=[%c]",
            &[("o", "f32[2]"), ("r", "f32[2]")],
        )
        .output("o")
        .output("r");
    assert_eq!(run(&functional, 1, &[definition], &[x]), expected);
    let silent = definition.replace("mutate %cache = %new\n", "");
    let message = error(&fake, &[&silent]);
    assert!(message.contains("the schema marks `cache` as written"), "{message}");
    let unmarked = definition.replace("(a!)", "");
    let message = error(&fake, &[&unmarked]);
    assert!(message.contains("the definition writes `cache`, which the schema does not mark"), "{message}");
}

#[test]
fn constants_of_a_definition_cannot_be_written() {
    let definition = "program \"m::shift(Tensor(a!) x, Tensor w == any) -> ()\" ranks ?
arg %x: f32[2]
const %w: f32[2] = hex\"0000803f0000803f\"
%new: f32[2] = add %x, %w
mutate %x = %new
";
    let fake = Fake::new()
        .input("x", "f32[2]")
        .node("aten.clone.default", "self=%x", &[("c", "f32[2]")])
        .node("m.shift.default", "x=%c w=%x", &[])
        .output("c");
    assert_eq!(run(&fake, 1, &[definition], &[&[3.0, 4.0]]), [[[4.0, 5.0]]]);
    let written = definition.replace("Tensor w", "Tensor(b!) w").replace("x = %new", "w = %new");
    let message = error(&fake, &[&written]);
    assert!(
        message.contains("the definition writes `w`, which is a constant: expected an argument"),
        "{message}"
    );
}

/// The names of aten's ops whose results are views mean nothing in other namespaces.
#[test]
fn results_of_a_definition_are_new_tensors() {
    let program = |op: &str, results: &str, body: &str| {
        let writes = if body.contains("mutate") { "(a!)" } else { "" };
        format!("program \"m::{op}(Tensor{writes} x) -> {results}\" ranks ?\narg %x: f32[2]\n{body}")
    };
    let single = |op: &str, body: &str| program(op, "Tensor", body);
    let view = single("permute", "%y: f32[2] = permute %x perm=[0]\nreturn %y\n");
    let identity = single("to", "return %x\n");
    let constant = single("reshape", "const %one: f32[2] = hex\"0000803f0000803f\"\nreturn %one\n");
    let two = program(
        "pair",
        "(Tensor, Tensor)",
        "%a: f32[2] = neg %x\n%b: f32[2] = slice %a axis=0 start=0 step=1\nreturn %a\nreturn %b\n",
    );
    let written = single("push", "%a: f32[2] = neg %x\nreturn %a\nmutate %x = %a\n");
    // The op gets a copy `c` of the input, its first result is then cleared, and the program returns the rest.
    let call = |op: &str, results: &[(&str, &str)]| {
        Fake::new()
            .input("x", "f32[2]")
            .node("aten.clone.default", "self=%x", &[("c", "f32[2]")])
            .node(&format!("m.{op}.default"), "x=%c", results)
            .node("aten.zero_.default", "self=%a", &[("z", "f32[2]")])
            .output("a")
    };
    let a = ("a", "f32[2]");
    let b = ("b", "f32[2]");
    let x: &[f64] = &[3.0, 4.0];
    for (op, definition) in [("permute", view), ("to", identity)] {
        let results = run(&call(op, &[a]).output("c"), 1, &[&definition], &[x]);
        assert_eq!(results, [[vec![0.0, 0.0], vec![3.0, 4.0]]], "{op}");
    }
    let results = run(&call("pair", &[a, b]).output("b"), 1, &[&two], &[x]);
    assert_eq!(results, [[vec![0.0, 0.0], vec![-3.0, -4.0]]]);
    let results = run(&call("push", &[a]).output("c"), 1, &[&written], &[x]);
    assert_eq!(results, [[vec![0.0, 0.0], vec![-3.0, -4.0]]]);
    let cleared = call("reshape", &[a]);
    assert_eq!(run(&cleared, 1, &[&constant], &[x]), [[[0.0, 0.0]]]);
    let graph = import_defined(&cleared, Some(1), &[&constant]).unwrap().graph;
    assert!(graph.inputs.values().all(|i| i.kind != InputKind::Parameter));
}

#[test]
fn omitted_written_arguments_keep_the_positions_of_others() {
    let definition_text =
        "program \"m::two(Tensor(a!)? low, Tensor(b!) out, Tensor x, Tensor(c!)? high=None) -> ()\" ranks ?
arg %low: f32[2]
arg %out: f32[2]
arg %x: f32[2]
arg %high: f32[2]
%less: f32[2] = sub %x, 1.0
%more: f32[2] = add %x, 1.0
mutate %high = %more
mutate %low = %less
mutate %out = %x
";
    let without = |line: &str| {
        let lines =
            definition_text.lines().filter(|l| !l.contains(&format!("%{line}"))).map(|l| format!("{l}\n"));
        lines.collect::<String>()
    };
    let high = without("low");
    let low = without("high");
    let none = low.lines().filter(|l| !l.contains("%low")).map(|l| format!("{l}\n")).collect::<String>();
    let definitions = [definition_text, &high, &low, &none];
    // The three tensors that a call may write are the results of the program.
    let clones = || {
        ["a", "b", "c"].iter().fold(Fake::new().input("x", "f32[2]"), |fake, name| {
            fake.node("aten.clone.default", "self=%x", &[(name, "f32[2]")])
        })
    };
    let x: &[f64] = &[3.0, 4.0];
    let less = vec![2.0, 3.0];
    let added = vec![4.0, 5.0];
    for (arguments, bases, expected) in [
        ("low=%a out=%b x=%x high=%c", "_low_base_index=0 _high_base_index=2", [&less, &x.to_vec(), &added]),
        (
            "low=none out=%b x=%x high=%c",
            "_low_base_index=none _high_base_index=2",
            [&x.to_vec(), &x.to_vec(), &added],
        ),
        ("low=%a out=%b x=%x", "_low_base_index=0 _high_base_index=none", [&less, &x.to_vec(), &x.to_vec()]),
        ("low=none out=%b x=%x high=none", "", [&x.to_vec(); 3]),
    ] {
        let in_place = clones().node("aten.zero_.default", "self=%b", &[("z", "f32[2]")]);
        let in_place = in_place.node("m.two.default", arguments, &[]).output("a").output("b").output("c");
        let expected = [expected.map(|v| v.to_vec())];
        assert_eq!(run(&in_place, 1, &definitions, &[x]), expected, "{arguments}");
        let bases = format!("=@m.two.default x=%x {bases} _out_base_index=1 _all_bases=[%a,%b,%c]");
        let results = [("p", "f32[2]"), ("q", "f32[2]"), ("r", "f32[2]")];
        let functional = clones().functional().node("higher_order.auto_functionalized_v2", &bases, &results);
        let functional = functional.output("p").output("q").output("r");
        assert_eq!(run(&functional, 1, &definitions, &[x]), expected, "{bases}");
    }
}

#[test]
fn definitions_return_lists_besides_what_they_write() {
    let definition = "program \"m::split(Tensor(a!) cache, Tensor x) -> Tensor[]\" ranks ?
arg %cache: f32[2]
arg %x: f32[2]
%a: f32[2] = neg %x
%b: f32[2] = add %x, 1.0
%new: f32[2] = add %cache, %x
return %a
return %b
mutate %cache = %new
";
    let results = [("p", "f32[2]"), ("q", "f32[2]"), ("r", "f32[2]")];
    let clone = || Fake::new().input("x", "f32[2]").node("aten.clone.default", "self=%x", &[("c", "f32[2]")]);
    let in_place = clone().list_node("m.split.default", "cache=%c x=%x", &results[..2]).output("c");
    let call = "=@m.split.default x=%x _cache_base_index=0 _all_bases=[%c]";
    let mut functional = clone().functional().node("higher_order.auto_functionalized_v2", call, &results);
    if let Some(node) = functional.nodes.last_mut() {
        node["outputs"] =
            json!([{"as_tensors": [{"name": "p"}, {"name": "q"}]}, {"as_tensor": {"name": "r"}}]);
    }
    let expected = [[vec![6.0, 8.0], vec![-3.0, -4.0], vec![4.0, 5.0]]];
    for fake in [in_place, functional.output("r")] {
        assert_eq!(run(&fake.output("p").output("q"), 1, &[definition], &[&[3.0, 4.0]]), expected);
    }
}

#[test]
fn written_arguments_that_do_not_matter_have_no_contents() {
    let definition = "program \"m::two(Tensor(a!) scratch == any, Tensor(b!) out, Tensor x) -> ()\" ranks ?
arg %out: f32[2]
arg %x: f32[2]
%new: f32[2] = add %out, %x
mutate %out = %new
";
    let fake = Fake::new()
        .input("x", "f32[2]")
        .node("aten.clone.default", "self=%x", &[("a", "f32[2]")])
        .node("aten.clone.default", "self=%x", &[("c", "f32[2]")])
        .node("m.two.default", "scratch=%a out=%c x=%x", &[])
        .output("c");
    assert_eq!(run(&fake, 1, &[definition], &[&[3.0, 4.0]]), [[[6.0, 8.0]]]);
    let message = error(&fake.output("a"), &[definition]);
    assert!(message.contains("`a` is memory whose contents are undefined after node"), "{message}");
}

#[test]
fn definitions_give_numbers_to_kernels() {
    let definition = "program \"m::norm(Tensor x, float eps, str group) -> Tensor\" ranks ?
symbol n in 1..=64
group @g $group
custom \"m::norm_kernel\" symmetric operands [0] results [] group @g
arg %x: f32[n]
%eps: f32[1] = full value=$eps
%y: f32[n] = custom \"m::norm_kernel\" %x, %eps
return %y
";
    let mut fake = Fake::new().input("x", "f32[2]");
    for (from, to) in [("x", "y"), ("y", "z")] {
        fake = fake.node("m.norm.default", &format!("x=%{from} eps=0.5 group='0'"), &[(to, "f32[2]")]);
    }
    let graph =
        import_defined(&fake.output("z"), Some(2), &[definition]).unwrap_or_else(|e| panic!("{e}")).graph;
    let text = symmc_ir::text::print(&graph);
    let declared = "custom \"m::norm_kernel\" symmetric operands [0] results [] group @0\n";
    assert_eq!(text.matches(declared).count(), 1, "{text}");
    for line in ["%y.eps: f32[1] = full value=0.5\n", "%z: f32[2] = custom \"m::norm_kernel\" %y, %z.eps\n"] {
        assert!(text.contains(line), "{line}{text}");
    }
    // Two definitions of one kernel must agree.
    let renamed = definition.replace("m::norm(", "m::other(").replace("operands [0]", "operands []");
    let fake = Fake::new()
        .input("x", "f32[2]")
        .node("m.norm.default", "x=%x eps=0.5 group='0'", &[("y", "f32[2]")])
        .node("m.other.default", "x=%y eps=0.5 group='0'", &[("z", "f32[2]")])
        .output("z");
    let message = error(&fake, &[definition, &renamed]);
    assert!(
        message.contains("two definitions declare the custom op \"m::norm_kernel\" in different ways"),
        "{message}"
    );
}

#[test]
fn differences_between_a_call_and_its_definition_are_errors() {
    let base = scale("by=0.5");
    let edit = |from: &str, to: &str| {
        assert!(SCALE.contains(from), "{from}");
        SCALE.replace(from, to)
    };
    let shape = Fake::new()
        .input("x", "f32[2]")
        .node("m.scale.default", "x=%x by=0.5", &[("y", "f32[2]")])
        .output("y");
    let larger = Fake::new()
        .input("x", "f32[65, 3]")
        .node("m.scale.default", "x=%x by=0.5", &[("y", "f32[65, 3]")])
        .output("y");
    let dtype = Fake::new()
        .input("x", "f16[2, 3]")
        .node("m.scale.default", "x=%x by=0.5", &[("y", "f16[2, 3]")])
        .output("y");
    let two = Fake::new()
        .input("x", "f32[2, 3]")
        .node("m.scale.default", "x=%x by=0.5", &[("y", "f32[2, 3]"), ("z", "f32[2, 3]")])
        .output("z");
    let cases = [
        (scale("by='a'"), SCALE.into(), "expected `by` of the type float, found \"a\""),
        (scale("by=0.5 times=1.5"), SCALE.into(), "expected `times` of the type int, found the number 1.5"),
        (scale("times=1"), SCALE.into(), "expected an argument `by`, found none"),
        (scale("by=%x"), SCALE.into(), "expected `by` of the type float, found the tensor `x`"),
        (scale("by=0.5 exact=false"), SCALE.into(), "expected True as `exact`, found False"),
        (scale("by=0.5 more=1"), SCALE.into(), "the argument `more` is not supported, found the integer 1"),
        (
            base.clone(),
            edit("%a, $times", "%a, 2.0"),
            "the definition does not use `times`: state in its schema",
        ),
        (base.clone(), edit("== True", ""), "the definition does not use `exact`"),
        (base.clone(), edit("return %b\n", ""), "expected 1 results of the definition, found 0"),
        (two, SCALE.into(), "expected 2 results of the definition, found 1"),
        (base.clone(), edit("ranks ?", "ranks 3"), "the definition is for 3 ranks, the program has 2"),
        (
            base.clone(),
            edit("$x.1", "4"),
            "expected f32[2, 4] as `x`, as its definition states, found f32[2, 3]",
        ),
        (shape, SCALE.into(), "expected an axis 1 of `x`, found 1 axes"),
        (
            dtype,
            edit("$x.dtype", "f32"),
            "expected f32[2, 3] as `x`, as its definition states, found f16[2, 3]",
        ),
        (larger, SCALE.into(), "expected `n` of the definition from 1 to 64, found 65"),
        (base.clone(), edit("mul %x", "mul %q"), "line 4, column"),
        (base.clone(), edit("arg %x", "param %x"), "the call gives `x`, which the definition does not take"),
        (
            base.clone(),
            edit("arg %x", "symbol k in 1..=2\narg %x"),
            "the symbol `k` of the definition is no extent",
        ),
        (
            base.clone(),
            edit("return %b", "%c: f32[n] = reduce %b op=sum axes=[1] keep=false\nreturn %c"),
            "the program declares f32[2, 3] for `y`, found f32[2]",
        ),
    ];
    for (fake, definition, expected) in cases {
        let message = error(&fake, &[&definition]);
        assert!(message.contains("m.scale.default") && message.contains(expected), "{expected}:\n{message}");
    }
}

#[test]
fn definitions_that_do_not_apply_are_errors() {
    let base = scale("by=0.5");
    let unused = SCALE.replace("m::scale", "m::other");
    let message = error(&base, &[SCALE, &unused]);
    assert!(message.contains("the program has no node of m.other.default"), "{message}");
    let options = ImportOptions {
        schemas: vec!["m::scale(Tensor x, float by) -> Tensor".into()],
        definitions: vec![SCALE.into()],
        ..ImportOptions::default()
    };
    let message = import(&base.bytes(), &options).unwrap_err().to_string();
    assert!(message.contains("expected one schema for the op, found two"), "{message}");
    let pinned = ["m::scale(Tensor x, float by == 1.0) -> Tensor"];
    let message = base.import_with(&pinned).unwrap_err().to_string();
    assert!(message.contains("`== …` of `by` is for definitions"), "{message}");
    let message = error(&base, &["arg %x: f32[2]\n"]);
    assert!(
        message.contains("the definition of an op: line 1") && message.contains("expected `program`"),
        "{message}"
    );
}
