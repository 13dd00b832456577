//! Constants of a call that constrain a dynamic extent. The program runs at exactly the sizes at which
//! PyTorch runs the call, or is rejected entirely.

use symmc_ir::{BoundsChecks, Op, SymbolBindings};

use crate::common::Fake;
use serde_json::json;

/// A call on `x` with the dynamic extent `s0`, and the sizes from 1 to 8 at which it runs. No sizes mean that
/// it is rejected.
struct SizeCase {
    target: &'static str,
    arguments: &'static str,
    /// Results that are a list start with `list`.
    results: &'static str,
    sizes: &'static [i64],
}

const fn case(
    target: &'static str,
    arguments: &'static str,
    results: &'static str,
    sizes: &'static [i64],
) -> SizeCase {
    SizeCase { target, arguments, results, sizes }
}

const X: &str = "f32[s0,3]";

const CASES: &[SizeCase] = &[
    case("split_with_sizes.default", "self=%x split_sizes=[2,3]", "list f32[2,3]; f32[3,3]", &[5]),
    case("split_with_sizes_copy.default", "self=%x split_sizes=[4] dim=-2", "list f32[4,3]", &[4]),
    case("split.Tensor", "self=%x split_size=2", "list f32[2,3]; f32[2,3]", &[4]),
    case("split.sizes", "self=%x split_size=[1,1,1]", "list f32[1,3]; f32[1,3]; f32[1,3]", &[3]),
    case("unsafe_split.Tensor", "self=%x split_size=3", "list f32[3,3]; f32[3,3]", &[6]),
    case("chunk.default", "self=%x chunks=2", "list f32[3,3]; f32[2,3]", &[5]),
    case("tensor_split.sections", "self=%x sections=2", "list f32[3,3]; f32[3,3]", &[6]),
    case("unbind.int", "self=%x", "list f32[3]; f32[3]", &[]),
    case("narrow.default", "self=%x dim=0 start=1 length=3", "f32[3,3]", &[4, 5, 6, 7, 8]),
    case("narrow.default", "self=%x dim=0 start=-3 length=2", "f32[2,3]", &[3, 4, 5, 6, 7, 8]),
    case("select.int", "self=%x dim=0 index=5", "f32[3]", &[6, 7, 8]),
    case("select.int", "self=%x dim=0 index=-4", "f32[3]", &[4, 5, 6, 7, 8]),
    case("constant_pad_nd.default", "self=%x pad=[0,0,-3,9] value=1.5", "f32[s0 + 6,3]", &[3, 4, 5, 6, 7, 8]),
    case("constant_pad_nd.default", "self=%x pad=[0,0,9,-4]", "f32[s0 + 5,3]", &[4, 5, 6, 7, 8]),
    case("pad.default", "self=%x pad=[-2,3,-1,0]", "f32[s0 - 1,4]", &[1, 2, 3, 4, 5, 6, 7, 8]),
    case("view.default", "self=%x size=[15]", "f32[15]", &[]),
    case("reshape.default", "self=%x shape=[5,-1]", "f32[5,3]", &[]),
    case("unflatten.int", "self=%x dim=0 sizes=[2,2]", "f32[2,2,3]", &[]),
    case("expand.default", "self=%x size=[4,3]", "f32[4,3]", &[]),
    case("as_strided.default", "self=%x size=[4,3] stride=[3,1]", "f32[4,3]", &[]),
    case("unfold.default", "self=%x dimension=0 size=4 step=1", "f32[s0 - 3,3,4]", &[]),
    case("add.Tensor", "self=%x other=%y", "f32[4,3]", &[]),
    case("index_add.default", "self=%y dim=0 index=%i source=%x", "f32[4,3]", &[]),
    case("mm.default", "self=%z other=%x", "f32[2,3]", &[]),
    case("cat.default", "tensors=[%x,%x] dim=1", "f32[s0,6]", &[1, 2, 3, 4, 5, 6, 7, 8]),
    case(
        "_c10d_functional.all_to_all_single.default",
        "input=%w output_split_sizes=[2,2] input_split_sizes=[2,2] group_name='0'",
        "f32[2*s0,3]",
        &[2],
    ),
    case("_assert_tensor_metadata.default", "a=%x size=[4,3]", "", &[4]),
    case("sym_constrain_range.default", "size=$n min=3 max=6", "", &[3, 4, 5, 6]),
    case("_assert_scalar.default", "self=?equal assert_msg='five'", "", &[5]),
    case("_assert_scalar.default", "self=?both assert_msg='both'", "", &[3, 6]),
    case("_assert_scalar.default", "self=?above assert_msg='above'", "", &[6, 7, 8]),
];

/// The program of a case, which returns `x` as well.
fn program(case: &SizeCase) -> Fake {
    let inputs = [("x", X), ("y", "f32[4,3]"), ("z", "f32[2,4]"), ("i", "i64[4]"), ("w", "f32[2*s0,3]")];
    let mut fake = Fake::new().range("s0", Some(1), Some(8)).sym_int("n", "s0");
    for (name, expression) in [
        ("equal", "Equality(Symbol('s0'), Integer(5))"),
        (
            "both",
            "And(Equality(Mod(Symbol('s0'), Integer(3)), Integer(0)), StrictLessThan(Symbol('s0'), Integer(8)))",
        ),
        ("above", "Not(LessThan(Symbol('s0'), Integer(5)))"),
    ] {
        fake.sym_bools.insert(name.into(), json!({"as_expr": {"expr_str": expression, "hint": null}}));
    }
    for (name, ty) in inputs {
        fake = fake.input(name, ty);
    }
    let (is_list, results) = match case.results.strip_prefix("list ") {
        Some(rest) => (true, rest),
        None => (false, case.results),
    };
    let types: Vec<&str> = results.split(';').map(str::trim).filter(|t| !t.is_empty()).collect();
    let names: Vec<String> = (0..types.len()).map(|i| format!("r{i}")).collect();
    let results: Vec<(&str, &str)> = names.iter().map(String::as_str).zip(types).collect();
    let target = match case.target.starts_with('_') && case.target.contains("c10d") {
        true => case.target.to_string(),
        false => format!("aten.{}", case.target),
    };
    fake = match is_list {
        true => fake.list_node(&target, case.arguments, &results),
        false => fake.node(&target, case.arguments, &results),
    };
    names.iter().fold(fake, |fake, name| fake.output(name)).output("x")
}

#[test]
fn constants_constraining_extents_are_checked_at_run_time() {
    for case in CASES {
        let label = format!("{} {}", case.target, case.arguments);
        let graph = match program(case).import() {
            // It holds for no range of sizes, only for one size or for multiples.
            Ok(imported) if !imported.assumed_sizes.is_empty() && case.sizes.is_empty() => continue,
            Ok(imported) if !imported.graph.nodes.values().any(|n| matches!(n.op, Op::Opaque { .. })) => {
                imported.graph
            }
            Ok(_) if case.sizes.is_empty() => continue,
            Ok(_) => panic!("{label}: it stays opaque"),
            Err(_) if case.sizes.is_empty() => continue,
            Err(error) => panic!("{label}: {error}"),
        };
        let checks = BoundsChecks::derive(&graph);
        let runs_at = |n: &i64| {
            let mut bindings = SymbolBindings::new();
            graph.symbols.keys().for_each(|id| bindings.set(id, *n));
            checks.evaluate(&graph, &bindings).is_ok()
        };
        let sizes: Vec<i64> = (1..=8).filter(runs_at).collect();
        assert_eq!(sizes, case.sizes, "{label}");
    }
}

#[test]
fn the_error_names_the_node_and_both_sizes() {
    let graph = program(&CASES[0]).import().unwrap().graph;
    let mut bindings = SymbolBindings::new();
    graph.symbols.keys().for_each(|id| bindings.set(id, 7));
    let error = BoundsChecks::derive(&graph).evaluate(&graph, &bindings).unwrap_err().to_string();
    assert!(
        error.contains("pieces") && error.contains("expected at most 5") && error.contains("= 7"),
        "{error}"
    );
}
