//! The choice between rows and sums of rows for the results of experts, and that both have the same bits.

use std::borrow::Cow;
use std::sync::Arc;

use symmc_ir::dim::SymbolBindings;
use symmc_ir::interp::{self, SeedConfig, seeded_inputs};
use symmc_ir::machine::MachineProfile;
use symmc_ir::{CollectiveKind, CollectiveVariant, DType, Graph, Op, Tensor, text};
use symmc_passes::lower::{COMBINE_AS_SUMS, ReturnedSums, choose_row_sums};
use symmc_passes::{LowerConfig, lower};
use symmc_support::random::SplitMix;

use crate::common::{bindings, difference};

/// A combination of up to 4096 tokens.
#[derive(Clone, Copy)]
struct RowCombination {
    ranks: usize,
    cells: &'static str,
    /// The number of ranks of a cell.
    n: usize,
    slots: usize,
    /// The number of elements of a row.
    width: usize,
    dtype: &'static str,
    weights: Option<&'static str>,
    rows: RowsOrigin,
}

#[derive(Clone, Copy, PartialEq)]
enum RowsOrigin {
    Route,
    /// A route with one row for each token and rank.
    RouteByRank,
    /// A route of ids that are an argument, and may differ between ranks.
    RouteOfArgument,
    /// A piece of the rows of all ranks.
    Shard,
    /// A piece of an argument, which may differ between ranks.
    ShardOfArgument,
    /// A piece of rows that each rank computes, and that may differ between ranks.
    ShardOfOwn,
    /// A piece of the slots of this rank's tokens.
    ShardOfSlots,
    Argument,
}

const USUAL: RowCombination = RowCombination {
    ranks: 2,
    cells: "[[0, 1]]",
    n: 2,
    slots: 8,
    width: 512,
    dtype: "bf16",
    weights: Some("f32"),
    rows: RowsOrigin::Route,
};

impl RowCombination {
    fn program(&self) -> Graph {
        let RowCombination { ranks, cells, n, slots: k, width, dtype, weights, rows } = *self;
        let mut text = format!("program \"p\" ranks {ranks}\nsymbol t in 1..=4096\ngroup @ep {cells}\n");
        text += &format!("arg %x: {dtype}[{}*t, {width}]\n", n * k);
        let rows = match rows {
            RowsOrigin::Route | RowsOrigin::RouteByRank | RowsOrigin::RouteOfArgument => {
                let by_rank = rows == RowsOrigin::RouteByRank;
                let layout = if by_rank { "rank" } else { "expert" };
                let sections = if by_rank { n } else { 16 };
                text += &format!("arg %w: {}[t, {k}]\n", weights.unwrap_or("f32"));
                if rows == RowsOrigin::RouteOfArgument {
                    text += &format!("arg %all_ids: i64[{n}*t, {k}]\n");
                } else {
                    text += &format!("arg %logits: f32[t, {}]\n", 16 * n);
                    text += &format!(
                        "%score: f32[t, {k}], %ids: i64[t, {k}] = topk %logits axis=1 largest=true\n"
                    );
                    text += &format!("%all_ids: i64[{n}*t, {k}] = all_gather %ids group=@ep\n");
                }
                text += &format!(
                    "%rows: i64[t, {k}], %all: i64[{n}*t, {k}], %from: i64[{c}*t], %counts: i64[{sections}], %ends: i64[{sections}] = \
                     route %all_ids experts={e} align=1 layout={layout} group=@ep\n",
                    c = n * k,
                    e = 16 * n
                );
                "%rows"
            }
            RowsOrigin::Shard => {
                text += &format!("arg %own: i64[t, {k}]\narg %w: f32[t, {k}]\n");
                text += &format!("%all: i64[{n}*t, {k}] = all_gather %own group=@ep\n");
                text += &format!("%rows: i64[t, {k}] = shard %all axis=0 group=@ep\n");
                "%rows"
            }
            RowsOrigin::ShardOfArgument => {
                text += &format!("arg %all: i64[{n}*t, {k}]\narg %w: f32[t, {k}]\n");
                text += &format!("%rows: i64[t, {k}] = shard %all axis=0 group=@ep\n");
                "%rows"
            }
            RowsOrigin::ShardOfOwn => {
                text += &format!("arg %given: i64[{n}*t, {k}]\narg %w: f32[t, {k}]\n");
                text += &format!("%all: i64[{n}*t, {k}] = abs %given\n");
                text += &format!("%rows: i64[t, {k}] = shard %all axis=0 group=@ep\n");
                "%rows"
            }
            RowsOrigin::ShardOfSlots => {
                text += &format!("arg %wide: i64[t, {}]\narg %w: f32[t, {k}]\n", n * k);
                text += &format!("%rows: i64[t, {k}] = shard %wide axis=1 group=@ep\n");
                "%rows"
            }
            RowsOrigin::Argument => {
                text += &format!("arg %rows: i64[t, {k}]\narg %w: f32[t, {k}]\n");
                "%rows"
            }
        };
        let w = if weights.is_some() { ", %w" } else { "" };
        text += &format!("%h: {dtype}[{}*t, {width}] = neg %x\n", n * k);
        text += &format!("%y: {dtype}[t, {width}] = combine_rows %h, {rows}{w} group=@ep\nreturn %y\n");
        text::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
    }
}

fn config(graph: &Graph, tokens: i64) -> LowerConfig {
    let machine = match graph.ranks {
        Some(2) => "h200x2",
        Some(8) => "h200x8",
        _ => "h200x4",
    };
    let mut config = LowerConfig::new(MachineProfile::builtin(machine).unwrap());
    config.symbols.extend(graph.symbols.keys().map(|id| (id, (1, tokens))));
    config
}

fn count(graph: &Graph, kind: &CollectiveKind) -> usize {
    graph.nodes.values().filter(|node| node.op.as_collective().is_some_and(|c| c.kind == *kind)).count()
}

#[test]
fn sums_return_where_they_are_fewer_bytes() {
    let two_cells = RowCombination { ranks: 4, cells: "[[0, 2], [3, 1]]", ..USUAL };
    let four = RowCombination { ranks: 4, cells: "[[0, 1, 2, 3]]", n: 4, ..USUAL };
    let eight = RowCombination { ranks: 8, cells: "[[0, 1, 2, 3, 4, 5, 6, 7]]", n: 8, ..USUAL };
    for (what, case, tokens, gathers) in [
        ("many tokens", USUAL, 4096, Some(2)),
        ("few tokens", USUAL, 8, None),
        ("no weights", RowCombination { weights: None, ..USUAL }, 4096, Some(1)),
        ("weights of another dtype", RowCombination { weights: Some("bf16"), ..USUAL }, 4096, Some(2)),
        ("two slots", RowCombination { slots: 2, ..USUAL }, 4096, None),
        ("four slots of f32", RowCombination { slots: 4, dtype: "f32", ..USUAL }, 4096, Some(2)),
        ("f64", RowCombination { dtype: "f64", ..USUAL }, 4096, Some(2)),
        ("two cells", two_cells, 4096, Some(2)),
        ("as many bytes", four, 4096, None),
        ("fewer bytes among four", RowCombination { slots: 32, ..four }, 4096, Some(2)),
        ("more bytes among eight", eight, 4096, None),
        ("fewer bytes among eight", RowCombination { slots: 32, width: 64, ..eight }, 4096, Some(2)),
        ("a row for each rank", RowCombination { rows: RowsOrigin::RouteByRank, ..USUAL }, 4096, None),
        ("given ids", RowCombination { rows: RowsOrigin::RouteOfArgument, ..USUAL }, 4096, Some(2)),
        ("a piece of all rows", RowCombination { rows: RowsOrigin::Shard, ..USUAL }, 4096, Some(2)),
        (
            "a piece of given rows",
            RowCombination { rows: RowsOrigin::ShardOfArgument, ..USUAL },
            4096,
            Some(2),
        ),
        ("a piece of own rows", RowCombination { rows: RowsOrigin::ShardOfOwn, ..USUAL }, 4096, Some(2)),
        ("a piece of the slots", RowCombination { rows: RowsOrigin::ShardOfSlots, ..USUAL }, 4096, Some(2)),
        ("rows of this rank", RowCombination { rows: RowsOrigin::Argument, ..USUAL }, 4096, Some(2)),
    ] {
        let graph = case.program();
        let config = config(&graph, tokens);
        let (program, sums) = choose_row_sums(&graph, &config).unwrap();
        let chosen = count(&program, &CollectiveKind::ReduceRows) == 1;
        assert_eq!(chosen, gathers.is_some(), "{what}: {sums:?}\n{}", text::print(&program));
        assert_eq!(count(&program, &CollectiveKind::CombineRows) == 0, chosen, "{what}");
        let Some(gathers) = gathers else {
            assert!(
                matches!(program, Cow::Borrowed(_)) && !sums.iter().any(ReturnedSums::are_faster),
                "{what}"
            );
            continue;
        };
        let shards = program.nodes.values().filter(|node| matches!(node.op, Op::Shard { .. })).count();
        let gathered = matches!(
            case.rows,
            RowsOrigin::ShardOfArgument | RowsOrigin::ShardOfOwn | RowsOrigin::ShardOfSlots
        );
        let expected = usize::from(gathered);
        assert_eq!(shards, expected, "{what}: only gathers read a piece\n{}", text::print(&program));
        assert_eq!(count(&program, &CollectiveKind::AllGather), gathers, "{what}\n{}", text::print(&program));
        symmc_ir::verify::verify(&program).unwrap_or_else(|e| panic!("{what}: {}", e[0]));
        // Rows that are arguments are drawn beyond their range.
        if case.rows == RowsOrigin::Route {
            for which in 0..3 {
                let differs = difference(&graph, &program, &bindings(&graph, which), 7);
                assert_eq!(differs, 0.0, "{what}");
            }
        }
        let (_, mut decisions, _) = lower(&program, &config).unwrap();
        let decision = decisions.iter_mut().find(|d| d.collective == "y").expect("a decision about %y");
        sums[0].explain(decision);
        assert_eq!(decision.rules[0].name, COMBINE_AS_SUMS);
        assert!(decision.rules[0].us < Some(sums[0].combined.us), "{what}: {decision:?}");
        assert!(decision.alternatives.iter().any(|a| a.name.starts_with("combine_rows.")), "{what}");
    }
}

/// Integers up to `last` for each rank, which differ between ranks.
fn different_tables(
    graph: &Graph,
    name: &str,
    bindings: &SymbolBindings,
    last: i64,
) -> Vec<Vec<Arc<Tensor>>> {
    let ranks = 0..graph.ranks.unwrap();
    let position = graph.inputs.values().position(|input| graph.value_name(input.value) == name).unwrap();
    let of_rank = |rank: u32| {
        let mut inputs = seeded_inputs(graph, bindings, &SeedConfig::new(5), rank).unwrap();
        let shape = inputs[position].shape().to_vec();
        let mut r = SplitMix(u64::from(rank));
        let elements: Vec<i64> =
            (0..shape.iter().product()).map(|_| r.below(last as usize + 2) as i64 - 1).collect();
        inputs[position] = Arc::new(Tensor::from_i64(DType::I64, shape, &elements).unwrap());
        inputs
    };
    ranks.map(of_rank).collect()
}

#[test]
fn ranks_may_have_different_tables() {
    for (what, rows, table) in [
        ("given ids", RowsOrigin::RouteOfArgument, "all_ids"),
        ("a piece of given rows", RowsOrigin::ShardOfArgument, "all"),
        ("a piece of own rows", RowsOrigin::ShardOfOwn, "given"),
        ("rows of this rank", RowsOrigin::Argument, "rows"),
    ] {
        let graph = RowCombination { rows, ..USUAL }.program();
        let (program, _) = choose_row_sums(&graph, &config(&graph, 4096)).unwrap();
        assert_eq!(count(&program, &CollectiveKind::ReduceRows), 1, "{what}");
        let bindings = bindings(&graph, 2);
        // There are 32 experts, and as many rows as slots.
        let last_row = if rows == RowsOrigin::RouteOfArgument { 31 } else { 2 * 3 * 16 - 1 };
        let inputs = different_tables(&graph, table, &bindings, last_row);
        let expected = interp::run(&graph, &bindings, &inputs).unwrap();
        let actual = interp::run(&program, &bindings, &inputs).unwrap();
        for (rank, (found, expected)) in actual.iter().zip(&expected).enumerate() {
            assert_eq!(found[0].data(), expected[0].data(), "{what}, rank {rank}");
        }
    }
}

#[test]
fn row_sums_gather_tables_for_other_groups() {
    let text = "program \"p\" ranks 4\ngroup @ep [[0, 1], [2, 3]]\ngroup @far [[0, 2], [1, 3]]\n\
        symbol t in 1..=4096\narg %x: bf16[16*t, 512]\narg %own: i64[t, 8]\n\
        %all: i64[2*t, 8] = all_gather %own group=@ep\n%rows: i64[t, 8] = shard %all axis=0 group=@ep\n\
        %h: bf16[16*t, 512] = neg %x\n%y: bf16[t, 512] = combine_rows %h, %rows group=@ep\n\
        %z: bf16[t, 512] = combine_rows %h, %rows group=@far\nreturn %y\nreturn %z\n";
    let graph = text::parse(text).unwrap();
    let (program, _) = choose_row_sums(&graph, &config(&graph, 4096)).unwrap();
    assert_eq!(count(&program, &CollectiveKind::ReduceRows), 2, "{}", text::print(&program));
    assert_eq!(count(&program, &CollectiveKind::AllGather), 2, "{}", text::print(&program));
}

#[test]
fn sums_need_a_variant_that_pushes() {
    let graph = USUAL.program();
    let only_pull = LowerConfig { variants: Some(vec![CollectiveVariant::Pull]), ..config(&graph, 4096) };
    let (program, sums) = choose_row_sums(&graph, &only_pull).unwrap();
    assert!(matches!(program, Cow::Borrowed(_)) && sums.is_empty());
    // Limits of memory decide later, so that all lowerings of a bucket have the same nodes.
    let mut limited = config(&graph, 4096);
    limited.conditions.default.max_symmetric_bytes = 0;
    assert_eq!(choose_row_sums(&graph, &limited).unwrap().1.len(), 1);
}

/// On two GPUs, rows were measured to be faster for up to 32 tokens (`docs/results/experts.md`).
#[test]
fn row_sums_are_chosen_where_they_measured_faster() {
    let graph = RowCombination { width: 7168, ..USUAL }.program();
    for (tokens, are_faster) in [(16, false), (32, false), (64, true), (128, true), (512, true), (4096, true)]
    {
        let (_, sums) = choose_row_sums(&graph, &config(&graph, tokens)).unwrap();
        assert_eq!(sums[0].are_faster(), are_faster, "{tokens} tokens: {sums:?}");
    }
}
