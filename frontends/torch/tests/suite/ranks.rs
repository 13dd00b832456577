//! The archives of all ranks as one program. Numbers that differ get a value per rank, groups get the cells
//! that their names imply, data comes from each archive, and every other difference is rejected by name.

use std::sync::Arc;

use symmc_ir::{DType, GroupMembers, InputKind, Op, SymbolBindings, Tensor};
use symmc_torch::{ImportError, ImportOptions, ImportOutput, import_ranks};

use crate::common::Fake;

fn import_all_ranks(ranks: &[Fake]) -> Result<ImportOutput, ImportError> {
    let bytes: Vec<Vec<u8>> = ranks.iter().map(Fake::bytes).collect();
    import_ranks(&bytes.iter().map(Vec::as_slice).collect::<Vec<_>>(), &ImportOptions::default())
}

fn refusal(ranks: &[Fake]) -> String {
    import_all_ranks(ranks).expect_err("they differ").to_string()
}

/// The results of each rank for these arguments, which are the same on all ranks.
fn outputs(imported: &ImportOutput, arguments: &[Tensor]) -> Vec<Vec<f64>> {
    let weights: Vec<_> = std::iter::once(&imported.weights).chain(&imported.other_rank_weights).collect();
    let inputs: Vec<Vec<Arc<Tensor>>> = weights
        .iter()
        .map(|weights| {
            let mut arguments = arguments.iter();
            let data_of = |i: &symmc_ir::GraphInput| match i.kind {
                InputKind::Argument => Arc::new(arguments.next().expect("an argument").clone()),
                InputKind::Parameter => weights[&i.source].clone(),
                InputKind::Constant => i.data.clone().expect("its data"),
            };
            imported.graph.inputs.values().map(data_of).collect()
        })
        .collect();
    let results = symmc_ir::interp::run(&imported.graph, &SymbolBindings::new(), &inputs).expect("a run");
    results.into_iter().map(|outputs| outputs[0].to_f64()).collect()
}

fn ints(values: &[i64]) -> Tensor {
    let data: Vec<f64> = values.iter().map(|v| *v as f64).collect();
    Tensor::from_f64(DType::I64, [values.len()], &data).expect("integers")
}

/// An embedding whose rows are split by rank. Rank `r` has the rows from `starts[r]` to `starts[r + 1]`, and
/// all ranks have the same number.
fn embedding(starts: &[i64], rank: usize) -> Fake {
    let (low, high) = (starts[rank], starts[rank + 1]);
    let rows: Vec<u8> = (low..high).flat_map(|row| (row as f32 * 10.0).to_le_bytes()).collect();
    let n = high - low;
    Fake::new()
        .parameter("w", &format!("f32[{n},1]"), Some(&rows))
        .input("ids", "i64[6]")
        .node("aten.lt.Scalar", &format!("self=%ids other={low}"), &[("below", "bool[6]")])
        .node("aten.ge.Scalar", &format!("self=%ids other={high}"), &[("above", "bool[6]")])
        .node("aten.bitwise_or.Tensor", "self=%below other=%above", &[("mask", "bool[6]")])
        .node("aten.sub.Tensor", &format!("self=%ids other={low}"), &[("local", "i64[6]")])
        .node("aten.masked_fill.Scalar", "self=%local mask=%mask value=0", &[("at", "i64[6]")])
        .node("aten.embedding.default", "weight=%w indices=%at", &[("rows", "f32[6,1]")])
        .node("aten.unsqueeze.default", "self=%mask dim=1", &[("wide", "bool[6,1]")])
        .node("aten.masked_fill.Scalar", "self=%rows mask=%wide value=0", &[("kept", "f32[6,1]")])
        .node(
            "_c10d_functional.all_reduce.default",
            "input=%kept reduce_op='sum' group_name='0'",
            &[("sum", "f32[6,1]")],
        )
        .node("_c10d_functional.wait_tensor.default", "tensor=%sum", &[("y", "f32[6,1]")])
        .output("y")
}

#[test]
fn numbers_that_differ_are_values_of_each_rank() {
    for n in 2..=5usize {
        let starts: Vec<i64> = (0..=n as i64).map(|r| r * 3).collect();
        let ranks: Vec<Fake> = (0..n).map(|rank| embedding(&starts, rank)).collect();
        let imported = import_all_ranks(&ranks).expect("one program");
        assert_eq!(imported.graph.ranks, Some(n as u32));
        assert_eq!(imported.other_rank_weights.len(), n - 1);
        let ids: Vec<i64> = (0..6).map(|i| i * 7 % (3 * n as i64)).collect();
        let expected: Vec<f64> = ids.iter().map(|i| *i as f64 * 10.0).collect();
        for found in outputs(&imported, &[ints(&ids)]) {
            assert_eq!(found, expected);
        }
    }
}

#[test]
fn slices_and_ranges_start_where_the_rank_says() {
    let x = ints(&[0, 10, 20, 30, 40, 50]);
    for (target, arguments, result, expected) in [
        (
            "aten.slice.Tensor",
            ["self=%x dim=0 start=0 end=3", "self=%x dim=0 start=3 end=6"],
            "i64[3]",
            [vec![0.0, 10.0, 20.0], vec![30.0, 40.0, 50.0]],
        ),
        (
            "aten.slice.Tensor",
            ["self=%x dim=0 start=0 end=2", "self=%x dim=0 start=4 end=9223372036854775807"],
            "i64[2]",
            [vec![0.0, 10.0], vec![40.0, 50.0]],
        ),
        (
            "aten.slice.Tensor",
            ["self=%x dim=0 start=0 end=6 step=2", "self=%x dim=0 start=1 end=6 step=2"],
            "i64[3]",
            [vec![0.0, 20.0, 40.0], vec![10.0, 30.0, 50.0]],
        ),
        (
            "aten.select.int",
            ["self=%x dim=0 index=1", "self=%x dim=0 index=4"],
            "i64[]",
            [vec![10.0], vec![40.0]],
        ),
        (
            "aten.arange.start",
            ["start=0 end=3", "start=3 end=6"],
            "i64[3]",
            [vec![0.0, 1.0, 2.0], vec![3.0, 4.0, 5.0]],
        ),
        (
            "aten.add.Tensor",
            ["self=%x other=1", "self=%x other=2"],
            "i64[6]",
            [vec![1.0, 11.0, 21.0, 31.0, 41.0, 51.0], vec![2.0, 12.0, 22.0, 32.0, 42.0, 52.0]],
        ),
        (
            "aten.full.default",
            ["size=[2] fill_value=4 dtype=:i64", "size=[2] fill_value=6 dtype=:i64"],
            "i64[2]",
            [vec![4.0, 4.0], vec![6.0, 6.0]],
        ),
        (
            "aten.mul.Tensor",
            ["self=%x other=0.5", "self=%x other=0.25"],
            "f32[6]",
            [vec![0.0, 5.0, 10.0, 15.0, 20.0, 25.0], vec![0.0, 2.5, 5.0, 7.5, 10.0, 12.5]],
        ),
    ] {
        let fake = |a: &str| Fake::new().input("x", "i64[6]").node(target, a, &[("y", result)]).output("y");
        let imported = import_all_ranks(&arguments.map(fake)).unwrap_or_else(|e| panic!("{target}: {e}"));
        assert_eq!(outputs(&imported, std::slice::from_ref(&x)), expected, "{target} {arguments:?}");
    }
}

#[test]
fn slices_are_written_where_the_rank_says() {
    let x = ints(&[0, 10, 20, 30, 40, 50]);
    for (slices, expected) in [
        (
            ["start=0 end=2", "start=4 end=9223372036854775807"],
            [[1.0, 11.0, 20.0, 30.0, 40.0, 50.0], [0.0, 10.0, 20.0, 30.0, 1.0, 11.0]],
        ),
        (
            ["start=0 end=4 step=2", "start=1 end=5 step=2"],
            [[1.0, 10.0, 11.0, 30.0, 40.0, 50.0], [0.0, 1.0, 20.0, 11.0, 40.0, 50.0]],
        ),
    ] {
        let fake = |slice: &str| {
            Fake::new()
                .input("x", "i64[6]")
                .node("aten.add.Tensor", "self=%x other=1", &[("more", "i64[6]")])
                .node("aten.slice.Tensor", "self=%more dim=0 start=0 end=2", &[("new", "i64[2]")])
                .node(
                    "aten.slice_scatter.default",
                    &format!("self=%x src=%new dim=0 {slice}"),
                    &[("y", "i64[6]")],
                )
                .output("y")
        };
        let imported = import_all_ranks(&slices.map(fake)).unwrap_or_else(|e| panic!("{slices:?}: {e}"));
        assert_eq!(outputs(&imported, std::slice::from_ref(&x)), expected, "{slices:?}");
    }
    let fake = |slice: &str| {
        Fake::new()
            .input("x", "i64[6]")
            .input("new", "i64[2]")
            .node("aten.slice_scatter.default", &format!("self=%x src=%new {slice}"), &[("y", "i64[6]")])
            .output("y")
    };
    let message = refusal(&[fake("start=0 end=2"), fake("start=2 end=5")]);
    assert!(message.contains("slices of the same length"), "{message}");
}

#[test]
fn other_differences_are_refused_by_name() {
    let node = |target: &str, arguments: &str, result: &str| {
        Fake::new().input("x", "i64[6]").node(target, arguments, &[("y", result)]).output("y")
    };
    let add = node("aten.add.Tensor", "self=%x other=%x", "i64[6]");
    for (a, b, expected) in [
        (add.clone(), node("aten.mul.Tensor", "self=%x other=%x", "i64[6]"), "node `y`: rank 0 has"),
        (
            node("aten.view.default", "self=%x size=[2,3]", "i64[2,3]"),
            node("aten.view.default", "self=%x size=[3,2]", "i64[3,2]"),
            "node `y` (torch.ops.aten.view.default), `size`: rank 0 has the integers [2, 3]",
        ),
        (
            node("aten.slice.Tensor", "self=%x dim=0 start=0 end=2", "i64[2]"),
            node("aten.slice.Tensor", "self=%x dim=0 start=2 end=6", "i64[4]"),
            "the type of `y`",
        ),
        (
            node("aten.cumsum.default", "self=%x dim=0", "i64[6]"),
            node("aten.cumsum.default", "self=%x dim=-1", "i64[6]"),
            "a different integer on each rank, [0, -1]",
        ),
        (
            node("aten.polygamma.default", "n=0 self=%x", "f32[6]"),
            node("aten.polygamma.default", "n=1 self=%x", "f32[6]"),
            "[0, 1]",
        ),
        (add.clone(), node("aten.add.Tensor", "self=%x other=2", "i64[6]"), "`other`"),
        (add.clone(), add.clone().output("y"), "the number of outputs"),
        (add.clone(), add.clone().input("z", "i64[6]"), "the number of inputs"),
        (
            add.clone(),
            add.clone().node("aten.neg.default", "self=%y", &[("z", "i64[6]")]),
            "after node `y`: rank 0 has the end of the graph, this rank has node `z`",
        ),
    ] {
        let message = refusal(&[a, b]);
        assert!(message.contains(expected), "expected {expected}, found {message}");
    }
}

#[test]
fn names_and_data_may_differ() {
    let rank = |name: &str, value: f32, constant: f32| {
        Fake::new()
            .parameter(name, "f32[1]", Some(&value.to_le_bytes()))
            .buffer(&format!("{name}_c"), "f32[1]", false, Some(&constant.to_le_bytes()))
            .buffer(&format!("{name}_d"), "f32[1]", false, Some(&8f32.to_le_bytes()))
            .node(
                "aten.add.Tensor",
                &format!("self=%{name} other=%{name}_c"),
                &[(&format!("{name}_s"), "f32[1]")],
            )
            .node(
                "aten.add.Tensor",
                &format!("self=%{name}_s other=%{name}_d"),
                &[(&format!("{name}_t"), "f32[1]")],
            )
            .output(&format!("{name}_t"))
    };
    let imported = import_all_ranks(&[rank("a", 1.0, 2.0), rank("b", 3.0, 4.0)]).expect("one program");
    assert_eq!(outputs(&imported, &[]), [[11.0], [15.0]]);
    let kinds: Vec<InputKind> = imported.graph.inputs.values().map(|i| i.kind).collect();
    assert_eq!(kinds, [InputKind::Parameter, InputKind::Parameter, InputKind::Constant]);
}

#[test]
fn groups_have_the_cells_that_their_names_tell() {
    let rank = |tp: &str, dp: &str| {
        Fake::new()
            .input("x", "f32[2]")
            .node(
                "_c10d_functional.all_reduce.default",
                &format!("input=%x reduce_op='sum' group_name='{tp}'"),
                &[("p", "f32[2]")],
            )
            .node(
                "_c10d_functional.all_reduce.default",
                &format!("input=%p reduce_op='sum' group_name='{dp}'"),
                &[("q", "f32[2]")],
            )
            .output("q")
    };
    let mesh = [rank("3", "1"), rank("3", "2"), rank("4", "1"), rank("4", "2")];
    let graph = import_all_ranks(&mesh).expect("one program").graph;
    let members: Vec<_> = graph.groups.values().map(|g| g.members.clone()).collect();
    let cells = |cells: [[u32; 2]; 2]| GroupMembers::Cells(cells.map(|c| c.to_vec()).to_vec());
    assert_eq!(members, [cells([[0, 1], [2, 3]]), cells([[0, 2], [1, 3]])]);
    // The same name on all ranks implies nothing, and cells must have equal sizes.
    let message = refusal(&[rank("3", "0"), rank("3", "0")]);
    assert!(message.contains("the members of group `3`"), "{message}");
    let message = refusal(&[rank("3", "0"), rank("3", "0"), rank("4", "0")]);
    assert!(message.contains("group `3`: expected lists of ranks of equal length"), "{message}");
}

/// A rank that adds 100 times its number to `x` and exchanges slices of the sum.
fn exchanging(rank: usize, to: &str, from: &str) -> Fake {
    let arguments = format!("input=%own output_split_sizes={from} input_split_sizes={to} group_name='0'");
    Fake::new()
        .input("x", "i64[3]")
        .node("aten.add.Tensor", &format!("self=%x other={}", 100 * rank), &[("own", "i64[3]")])
        .node("_c10d_functional.all_to_all_single.default", &arguments, &[("sent", "i64[3]")])
        .node("_c10d_functional.wait_tensor.default", "tensor=%sent", &[("y", "i64[3]")])
        .output("y")
}

#[test]
fn pieces_that_differ_between_ranks_are_exchanged() {
    let x = ints(&[0, 1, 2]);
    for (to, from, expected) in [
        // Each rank sends everything to the next, which is a permutation.
        (
            ["[0,3,0]", "[0,0,3]", "[3,0,0]"],
            ["[0,0,3]", "[3,0,0]", "[0,3,0]"],
            [[200.0, 201.0, 202.0], [0.0, 1.0, 2.0], [100.0, 101.0, 102.0]],
        ),
        (
            ["[1,2,0]", "[0,1,2]", "[2,0,1]"],
            ["[1,0,2]", "[2,1,0]", "[0,2,1]"],
            [[0.0, 200.0, 201.0], [1.0, 2.0, 100.0], [101.0, 102.0, 202.0]],
        ),
    ] {
        let ranks: Vec<Fake> = (0..3).map(|r| exchanging(r, to[r], from[r])).collect();
        let imported = import_all_ranks(&ranks).expect("one program");
        let actual = outputs(&imported, std::slice::from_ref(&x));
        assert_eq!(actual, expected.map(|e| e.to_vec()), "{to:?}");
    }
    for (to, from, expected) in [
        (["[1,2]", "[2,1]"], ["[1,1]", "[2,1]"], "to receive as many rows from rank 1 as that rank sends"),
        (["[1,1]", "[2,1]"], ["[1,2]", "[1,1]"], "rows on each rank"),
        (["[1,2]", "[2,1,0]"], ["[1,2]", "[2,1]"], "`input_split_sizes`"),
    ] {
        let ranks: Vec<Fake> = (0..2).map(|r| exchanging(r, to[r], from[r])).collect();
        let error = refusal(&ranks);
        assert!(error.contains(expected), "{error}");
    }
}

/// The slice that rank `r` of three takes of six rows, in the notations that exports keep.
fn part(form: &str, r: usize) -> Fake {
    let fake = Fake::new().input("x", "i64[6]");
    let pieces = [("p0", "i64[2]"), ("p1", "i64[2]"), ("p2", "i64[2]")];
    let list = |target: &str, arguments: &str| {
        fake.clone().list_node(target, arguments, &pieces).output(&format!("p{r}"))
    };
    let call = |target: &str, arguments: String, ty: &str| {
        fake.clone().node(target, &arguments, &[("y", ty)]).output("y")
    };
    let end = if r == 2 { i64::MAX } else { -4 + 2 * r as i64 };
    match form {
        "narrow" => call("aten.narrow.default", format!("self=%x dim=0 start={} length=2", 2 * r), "i64[2]"),
        "narrow from the end" => call(
            "aten.narrow.default",
            format!("self=%x dim=-1 start={} length=2", 2 * r as i64 - 6),
            "i64[2]",
        ),
        "slice from the end" => {
            call("aten.slice.Tensor", format!("self=%x dim=0 start={} end={end}", 2 * r as i64 - 6), "i64[2]")
        }
        "split" => list("aten.split.Tensor", "self=%x split_size=2"),
        "sizes" => list("aten.split_with_sizes.default", "self=%x split_sizes=[2,2,2] dim=-1"),
        "chunk" => list("aten.chunk.default", "self=%x chunks=3"),
        "sections" => list("aten.tensor_split.sections", "self=%x sections=3"),
        "last" => call("aten.select.int", format!("self=%x dim=0 index={}", -1 - r as i64), "i64[]"),
        "unbind" => {
            let pieces: Vec<(String, &str)> = (0..6).map(|i| (format!("p{i}"), "i64[]")).collect();
            let pieces: Vec<(&str, &str)> = pieces.iter().map(|(n, t)| (n.as_str(), *t)).collect();
            fake.clone().list_node("aten.unbind.int", "self=%x", &pieces).output(&format!("p{}", 2 * r))
        }
        other => panic!("{other}"),
    }
}

#[test]
fn parts_are_one_program_in_every_spelling() {
    let x = ints(&[0, 10, 20, 30, 40, 50]);
    let rows = [vec![0.0, 10.0], vec![20.0, 30.0], vec![40.0, 50.0]];
    let forms =
        ["narrow", "narrow from the end", "slice from the end", "split", "sizes", "chunk", "sections"];
    for (form, expected) in
        [("last", [vec![50.0], vec![40.0], vec![30.0]]), ("unbind", [vec![0.0], vec![20.0], vec![40.0]])]
            .into_iter()
            .chain(forms.into_iter().map(|form| (form, rows.clone())))
    {
        let ranks: Vec<Fake> = (0..3).map(|r| part(form, r)).collect();
        let imported = import_all_ranks(&ranks).unwrap_or_else(|e| panic!("{form}: {e}"));
        assert_eq!(outputs(&imported, std::slice::from_ref(&x)), expected, "{form}");
        let shards =
            imported.graph.nodes.values().filter(|n| matches!(n.op, Op::Shard { axis: 0, .. })).count();
        assert_eq!(shards, usize::from(forms.contains(&form)), "{form}");
    }
}

#[test]
fn pieces_are_those_of_a_group_with_the_positions() {
    let rank = |r: usize| {
        let gather = format!("input=%own group_size=2 group_name='{}'", ["6", "7"][r % 2]);
        Fake::new()
            .input("x", "i64[4]")
            .node(
                "aten.slice.Tensor",
                &format!("self=%x dim=0 start={} end={}", r / 2 * 2, r / 2 * 2 + 2),
                &[("own", "i64[2]")],
            )
            .node("_c10d_functional.all_gather_into_tensor.default", &gather, &[("all", "i64[4]")])
            .node("_c10d_functional.wait_tensor.default", "tensor=%all", &[("y", "i64[4]")])
            .output("y")
    };
    let imported = import_all_ranks(&[0, 1, 2, 3].map(rank)).expect("one program");
    let graph = &imported.graph;
    let groups: Vec<_> = graph.nodes.values().filter_map(|n| n.op.group()).collect();
    assert_eq!(graph.groups.len(), 1, "{:?}", graph.groups);
    assert_eq!(groups.len(), 2, "the shard and the gather");
    assert_eq!(graph.ranks_within_cells(groups[0]), Some(vec![0, 0, 1, 1]));
}

/// A rank that writes its slice of a copy of `x` in place: as a slice, by an index, or using data that it
/// read before.
fn writing(form: &str, r: usize) -> Fake {
    let fake = Fake::new().input("x", "i64[6]").node("aten.clone.default", "self=%x", &[("c", "i64[6]")]);
    let (slice, index) =
        (format!("self=%c dim=0 start={} end={}", 2 * r, 2 * r + 2), format!("self=%c dim=0 index={r}"));
    let fake = match form {
        "slice" => fake
            .node("aten.slice.Tensor", &slice, &[("v", "i64[2]")])
            .node("aten.neg.default", "self=%v", &[("n", "i64[2]")])
            .node("aten.copy_.default", "self=%v src=%n", &[("w", "i64[2]")]),
        "index" => fake.node("aten.select.int", &index, &[("v", "i64[]")]).node(
            "aten.add_.Tensor",
            "self=%v other=1",
            &[("w", "i64[]")],
        ),
        "whole" => fake.node("aten.slice.Tensor", &slice, &[("v", "i64[2]")]).node(
            "aten.mul_.Tensor",
            "self=%c other=2",
            &[("w", "i64[6]")],
        ),
        other => panic!("{other}"),
    };
    fake.node("aten.add.Tensor", "self=%c other=0", &[("y", "i64[6]")])
        .node("aten.sum.default", "self=%v", &[("s", "i64[]")])
        .output("y")
        .output("s")
}

#[test]
fn parts_are_written_in_place() {
    let x = ints(&[1, 10, 20, 30, 40, 50]);
    for (form, expected) in [
        ("slice", [[-1.0, -10.0, 20.0, 30.0, 40.0, 50.0], [1.0, 10.0, -20.0, -30.0, 40.0, 50.0]]),
        ("index", [[2.0, 10.0, 20.0, 30.0, 40.0, 50.0], [1.0, 11.0, 20.0, 30.0, 40.0, 50.0]]),
        ("whole", [[2.0, 20.0, 40.0, 60.0, 80.0, 100.0]; 2]),
    ] {
        let ranks: Vec<Fake> = (0..2).map(|r| writing(form, r)).collect();
        let imported = import_all_ranks(&ranks).unwrap_or_else(|e| panic!("{form}: {e}"));
        assert_eq!(outputs(&imported, std::slice::from_ref(&x)), expected, "{form}");
        // A view that was read before shows the written data.
        let graph = &imported.graph;
        let weights: Vec<_> =
            std::iter::once(&imported.weights).chain(&imported.other_rank_weights).collect();
        let inputs: Vec<Vec<Arc<Tensor>>> = weights
            .iter()
            .map(|w| {
                graph
                    .inputs
                    .values()
                    .map(|i| w.get(&i.source).cloned().unwrap_or(Arc::new(x.clone())))
                    .collect()
            })
            .collect();
        let results = symmc_ir::interp::run(graph, &SymbolBindings::new(), &inputs).expect("a run");
        let sums: Vec<f64> = results.iter().map(|o| o[1].to_f64()[0]).collect();
        let rows = |r: usize| if form == "index" { r..r + 1 } else { 2 * r..2 * r + 2 };
        let of_rank: Vec<f64> = (0..2).map(|r| expected[r][rows(r)].iter().sum()).collect();
        assert_eq!(sums, of_rank, "{form}");
    }
}

/// The slice of an axis of extent `3 * s` that rank `r` takes: from `r * s` on, or as a slice of a chunk.
fn symbolic(form: &str, r: usize) -> Fake {
    let mut fake = Fake::new().range("s0", Some(1), Some(4)).sym_int("n", "3*s0").input("x", "i64[3*s0]");
    // Each rank computes other sizes.
    for times in 1..=r + 1 {
        let name = format!("m{times}");
        fake = fake.sym_int(&name, &if times == 1 { "s0".into() } else { format!("{times}*s0") });
        fake = fake.node("_operator.mul", &format!("a=$n b={times}"), &[(&format!("${name}"), "")]);
    }
    let end = format!("$m{}", r + 1);
    match (form, r) {
        ("slice", 0) => fake
            .node("aten.slice.Tensor", &format!("self=%x dim=0 start=0 end={end}"), &[("y", "i64[s0]")])
            .output("y"),
        ("slice", _) => fake
            .node("aten.slice.Tensor", &format!("self=%x dim=0 start=$m{r} end={end}"), &[("y", "i64[s0]")])
            .output("y"),
        _ => fake
            .list_node(
                "aten.chunk.default",
                "self=%x chunks=3",
                &[("p0", "i64[s0]"), ("p1", "i64[s0]"), ("p2", "i64[s0]")],
            )
            .output(&format!("p{r}")),
    }
}

#[test]
fn parts_begin_at_multiples_of_sizes_that_vary() {
    for form in ["slice", "chunk"] {
        let ranks: Vec<Fake> = (0..3).map(|r| symbolic(form, r)).collect();
        let imported = import_all_ranks(&ranks).unwrap_or_else(|e| panic!("{form}: {e}"));
        assert!(imported.graph.nodes.values().any(|n| matches!(n.op, Op::Shard { .. })), "{form}");
        for size in 1..=4usize {
            let x = ints(&(0..3 * size as i64).collect::<Vec<_>>());
            let mut bindings = SymbolBindings::new();
            let symbol = imported.graph.symbols.iter().next().expect("a symbol").0;
            bindings.set(symbol, size as i64);
            let weights: Vec<_> =
                std::iter::once(&imported.weights).chain(&imported.other_rank_weights).collect();
            let inputs: Vec<Vec<Arc<Tensor>>> = weights
                .iter()
                .map(|w| {
                    let data_of =
                        |i: &symmc_ir::GraphInput| w.get(&i.source).cloned().unwrap_or(Arc::new(x.clone()));
                    imported.graph.inputs.values().map(data_of).collect()
                })
                .collect();
            let results = symmc_ir::interp::run(&imported.graph, &bindings, &inputs).expect("a run");
            for (rank, outputs) in results.iter().enumerate() {
                let expected: Vec<f64> = (rank * size..(rank + 1) * size).map(|i| i as f64).collect();
                assert_eq!(outputs[0].to_f64(), expected, "{form}, size {size}, rank {rank}");
            }
        }
    }
}
