//! The side of a collective on which a product runs, and that both sides compute the same.

use std::borrow::Cow;

use symmc_ir::machine::MachineProfile;
use symmc_ir::{CollectiveKind, Graph, Numerics, NumericsClass, text};
use symmc_passes::lower::{PRODUCT_AFTER_COLLECTIVE, PRODUCT_BEFORE_COLLECTIVE, choose_forms};
use symmc_passes::{LowerConfig, canonicalize, lower};

use crate::common::{bindings, difference};

/// A program of four ranks whose matrix is `w`, and the config for `h200x4`.
fn program(text: &str, numerics: Numerics) -> (Graph, LowerConfig) {
    let graph = text::parse(&format!("program \"p\" ranks 4\ngroup @w world\n{text}")).unwrap();
    let (canonical, _) = canonicalize(&graph).unwrap();
    let config = LowerConfig { numerics, ..LowerConfig::new(MachineProfile::builtin("h200x4").unwrap()) };
    (canonical, config)
}

fn has(graph: &Graph, is_kind: fn(&CollectiveKind) -> bool, elements: i64) -> bool {
    graph.nodes.values().any(|node| {
        let bytes = graph.ty(node.outputs[0]).numel().as_const();
        node.op.as_collective().is_some_and(|c| is_kind(&c.kind)) && bytes == Some(elements)
    })
}

fn is_sum(kind: &CollectiveKind) -> bool {
    matches!(kind, CollectiveKind::AllReduce(_))
}

fn is_gather(kind: &CollectiveKind) -> bool {
    *kind == CollectiveKind::AllGather
}

const NARROW: &str = "arg %x: bf16[2048, 4096]\nparam %s: bf16[1024, 64] source \"s\"\n\
    %w: bf16[4096, 64] = all_gather %s group=@w\n%a: bf16[2048, 4096] = all_reduce %x op=sum group=@w\n\
    %y: bf16[2048, 64] = matmul %a, %w\nreturn %y\n";

#[test]
fn products_move_before_sums_of_wider_rows() {
    let (graph, config) = program(NARROW, NumericsClass::Reassociate.into());
    let (moved, forms) = choose_forms(&graph, &config).unwrap();
    assert!(has(&moved, is_sum, 2048 * 64) && !has(&moved, is_sum, 2048 * 4096), "{}", text::print(&moved));
    assert_eq!(forms.products.len(), 1);
    let (_, mut decisions, _) = lower(&moved, &config).unwrap();
    forms.explain(&mut decisions);
    for name in ["y", "a"] {
        let decision = decisions.iter().find(|d| d.collective == name).expect("a decision");
        assert_eq!(decision.rules[0].name, PRODUCT_BEFORE_COLLECTIVE, "%{name}");
        assert!(decision.alternatives.iter().any(|a| a.name == "plain"), "{decision:?}");
    }
    let (graph, config) = program(NARROW, Numerics::EXACT);
    assert!(matches!(choose_forms(&graph, &config).unwrap().0, Cow::Borrowed(_)));
}

#[test]
fn products_stay_where_they_are_faster_or_differ() {
    let classes = Numerics::from(NumericsClass::Reassociate);
    for (what, from, to) in [
        (
            "a matrix that may differ between ranks",
            "%w: bf16[4096, 64] = all_gather %s group=@w",
            "%w: bf16[4096, 64] = expand %s",
        ),
        ("sums that others need", "return %y", "return %y, %a"),
        ("maxima", "op=sum", "op=max"),
        ("f16", "bf16", "f16"),
        ("wide products", "64]", "16384]"),
    ] {
        let text = NARROW.replace(from, to).replace(
            "bf16[1024, 64] source",
            if what.starts_with("a matrix") { "bf16[1, 64] source" } else { "bf16[1024, 64] source" },
        );
        let text = if what == "f16" { text.replace("bf16", "f16") } else { text };
        let (graph, config) = program(&text, classes);
        let (form, _) = choose_forms(&graph, &config).unwrap();
        assert!(matches!(form, Cow::Borrowed(_)), "{what}\n{}", text::print(&form));
    }
}

#[test]
fn products_move_across_gathers_by_time() {
    for (columns, rule) in [(64, Some(PRODUCT_BEFORE_COLLECTIVE)), (4096, Some(PRODUCT_BEFORE_COLLECTIVE))] {
        let text = format!(
            "arg %x: bf16[512, 4096]\nparam %s: bf16[1024, {columns}] source \"s\"\n\
             %w: bf16[4096, {columns}] = all_gather %s group=@w\n%a: bf16[2048, 4096] = all_gather %x group=@w\n\
             %y: bf16[2048, {columns}] = matmul %a, %w\nreturn %y\n"
        );
        let (graph, config) = program(&text, Numerics::EXACT);
        let (_, forms) = choose_forms(&graph, &config).unwrap();
        assert_eq!(forms.products.first().map(|moved| moved.rule), rule, "{columns} columns");
    }
    // Few rows and a wide result: the product of all rows takes as long as that of one rank's.
    let text = "arg %x: bf16[16, 512]\nparam %s: bf16[128, 16384] source \"s\"\n\
        %w: bf16[512, 16384] = all_gather %s group=@w\n%p: bf16[16, 16384] = matmul %x, %w\n\
        %y: bf16[64, 16384] = all_gather %p group=@w\nreturn %y\n";
    let (graph, config) = program(text, Numerics::EXACT);
    let (form, forms) = choose_forms(&graph, &config).unwrap();
    assert_eq!(forms.products[0].rule, PRODUCT_AFTER_COLLECTIVE);
    assert!(has(&form, is_gather, 64 * 512) && !has(&form, is_gather, 64 * 16384), "{}", text::print(&form));
}

/// Both sides of each equation in small programs, with symbols and several readers.
#[test]
fn moved_products_compute_the_same() {
    let classes = Numerics::from(NumericsClass::Reassociate);
    let mut moves = 0;
    for dtype in ["f32", "f64", "bf16", "i32"] {
        for collective in ["all_reduce %x op=sum", "all_reduce %x op=avg", "all_gather %x"] {
            let is_gather = collective.starts_with("all_gather");
            let rows = if is_gather { "4*t" } else { "t" };
            let text = format!(
                "symbol t in 1..=4096\narg %x: {dtype}[t, 512]\narg %u: {dtype}[128, 2]\narg %v: {dtype}[512, 3]\n\
                 %w: {dtype}[512, 2] = all_gather %u group=@w\n%m: {dtype}[512, 3] = broadcast %v root=1 group=@w\n\
                 %a: {dtype}[{rows}, 512] = {collective} group=@w\n%y: {dtype}[{rows}, 2] = matmul %a, %w\n\
                 %z: {dtype}[{rows}, 3] = matmul %a, %m\nreturn %y, %z\n"
            );
            let (graph, config) = program(&text, classes);
            let (form, forms) = choose_forms(&graph, &config).unwrap();
            // Averages of integers are truncated.
            let may_move = dtype != "i32" || !collective.ends_with("avg");
            assert!(may_move || forms.products.is_empty(), "{}", text::print(&form));
            moves += forms.products.len();
            symmc_ir::verify::verify(&form).unwrap_or_else(|e| panic!("{}", e[0]));
            for which in 0..3 {
                let differs = difference(&graph, &form, &bindings(&graph, which), 5);
                let allowed = match dtype {
                    _ if is_gather || dtype == "i32" => 0.0,
                    "bf16" => 2e-2,
                    _ => 1e-5,
                };
                assert!(differs <= allowed, "{dtype}, {collective}: {differs}\n{}", text::print(&form));
            }
        }
    }
    assert!(moves >= 6, "{moves}");
}
