//! Tests of the cost of plans and proofs: the work does not grow with pairs of values, pairs of buckets, or
//! ranks.

use std::collections::BTreeSet;

use symmc_check::{CheckReport, check};
use symmc_ir::{CollectiveVariant, Graph, GroupMembers, text};
use symmc_planner::{BucketInput, PlanConfig, plan};

/// A program of `symbols` values with one symbol each, all-reduced and gathered as one.
fn concatenated(symbols: usize) -> Graph {
    let each = |line: &dyn Fn(usize) -> String| (0..symbols).map(line).collect::<String>();
    let list = |item: &dyn Fn(usize) -> String, by: &str| (0..symbols).map(item).collect::<Vec<_>>().join(by);
    let source = format!(
        "program \"symbols\" ranks 2\n{}group @w world\n\n{}{}%c: f32[{}, 4] = concat {} axis=0\n\
         %d: f32[{}, 4] = all_gather %c group=@w via=pull\n\nreturn %d\n",
        each(&|i| format!("symbol s{i} in 1..=64\n")),
        each(&|i| format!("arg %x{i}: f32[s{i}, 4]\n")),
        each(&|i| format!(
            "%a{i}: f32[s{i}, 4] = neg %x{i}\n%b{i}: f32[s{i}, 4] = all_reduce %a{i} op=sum group=@w via=one_shot\n"
        )),
        list(&|i| format!("s{i}"), " + "),
        list(&|i| format!("%b{i}"), ", "),
        list(&|i| format!("2*s{i}"), " + "),
    );
    text::parse(&source).unwrap_or_else(|e| panic!("{e}\n{source}"))
}

fn proof(source: &Graph, buckets: &[BucketInput]) -> CheckReport {
    let plan = plan(source, buckets, &PlanConfig::default()).expect("plans");
    check(&plan).unwrap_or_else(|e| panic!("{e:#?}"))
}

#[test]
fn place_comparisons_grow_only_with_pairs_of_symbols() {
    for symbols in [10, 40, 120] {
        let graph = concatenated(symbols);
        let report = proof(&graph, &[BucketInput { graph: graph.clone(), decisions: Vec::new() }]);
        let pairs = (symbols * symbols) as u64;
        assert!(report.compared < 8 * pairs + 100, "{symbols}: {report:?}");
    }
}

#[test]
fn buckets_that_order_their_steps_alike_are_followed_once() {
    let source = concatenated(2);
    let mut buckets = Vec::new();
    for at in 0..256 {
        let mut graph = source.clone();
        for (symbol, place) in graph.symbols.values_mut().zip([at / 16, at % 16]) {
            (symbol.min, symbol.max) = (4 * place + 1, 4 * place + 4);
        }
        // Two forms.
        for c in graph.nodes.values_mut().filter_map(|n| match &mut n.op {
            symmc_ir::Op::Collective(c) if at % 3 == 0 => Some(c),
            _ => None,
        }) {
            c.variant = Some(CollectiveVariant::Plain);
        }
        buckets.push(BucketInput { graph, decisions: Vec::new() });
    }
    let report = proof(&source, &buckets);
    assert_eq!(report.buckets, 256);
    // The waits of buckets may differ, because their places may.
    assert!(report.sequences < 256, "{report:?}");
}

#[test]
fn ranks_of_a_large_mesh_share_what_they_know() {
    let cells = |first: &dyn Fn(u32) -> bool, stride: u32, size: u32| {
        let starts = (0..1024).filter(|&r| first(r));
        GroupMembers::Cells(starts.map(|r| (0..size).map(|i| r + i * stride).collect()).collect())
    };
    let mut b = symmc_ir::GraphBuilder::new("mesh", Some(1024));
    let near = b.group("near", cells(&|r| r % 8 == 0, 1, 8));
    let far = b.group("far", cells(&|r| r < 8, 8, 128));
    let ty = symmc_ir::TensorType::new(symmc_ir::DType::F32, vec![8.into()]);
    let mut value = b.input(symmc_ir::InputKind::Argument, "x", "", ty, None);
    for i in 0..60 {
        let kind = symmc_ir::CollectiveKind::AllReduce(symmc_ir::CollectiveReduceOp::Sum);
        let group = if i % 2 == 0 { near } else { far };
        value = b.collective("r", kind, group, &[value]).expect("a collective")[0];
    }
    b.graph_mut().outputs.push(symmc_ir::GraphOutput { value, kind: symmc_ir::OutputKind::Returned });
    let mut graph = b.finish();
    for node in graph.nodes.values_mut() {
        if let symmc_ir::Op::Collective(c) = &mut node.op {
            c.variant = Some(CollectiveVariant::OneShot);
        }
    }
    let report = proof(&graph, &[BucketInput { graph: graph.clone(), decisions: Vec::new() }]);
    assert_eq!((report.simulated, report.examined), (1024, 1));
}

/// Each output needs a copy with a new name. A search for each name from the first number on would take minutes
/// here.
#[test]
fn copies_of_one_value_get_consecutive_names() {
    const COPIES: usize = 20_000;
    let source = format!(
        "program \"copies\" ranks 1\narg %x: f32[4]\n%x.out.3: f32[4] = neg %x\n{}return %x.out.3\n",
        "return %x\n".repeat(COPIES)
    );
    let graph = text::parse(&source).unwrap_or_else(|e| panic!("{e}"));
    let input = BucketInput { graph: graph.clone(), decisions: Vec::new() };
    let plan = plan(&graph, &[input], &PlanConfig::default()).expect("plans");
    let steps: BTreeSet<&str> = plan.buckets[0].steps.iter().map(|step| step.node.as_str()).collect();
    // One of these names is that of the program's own node.
    let names: Vec<String> =
        std::iter::once("x.out".to_string()).chain((2..=COPIES + 1).map(|n| format!("x.out.{n}"))).collect();
    let expected: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(steps.len(), COPIES + 1);
    assert!(steps == expected, "{:?}", steps.symmetric_difference(&expected).next());
}
