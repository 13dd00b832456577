//! Symmetric-memory exchanges whose sizes are tensors, reductions to roots, and sends between ranks: the results
//! are those of PyTorch's contracts, computed here row by row. Sizes that depend on data and that no rule covers
//! are refused with their symbol.

use std::sync::Arc;

use symmc_ir::interp::run;
use symmc_ir::{DType, InputKind, SymbolBindings, Tensor};
use symmc_torch::{ImportOptions, ImportOutput, import, import_ranks};

use crate::common::Fake;

fn tensor(dtype: DType, shape: &[usize], values: &[f64]) -> Arc<Tensor> {
    Arc::new(Tensor::from_f64(dtype, shape.to_vec(), values).expect("a tensor"))
}

fn imported(fake: &Fake, ranks: u32) -> Result<ImportOutput, String> {
    let options = ImportOptions { ranks: Some(ranks), ..ImportOptions::default() };
    import(&fake.bytes(), &options).map_err(|e| e.to_string())
}

/// The results of each rank.
fn results(imported: &ImportOutput, arguments: Vec<Vec<Arc<Tensor>>>) -> Result<Vec<Vec<Vec<f64>>>, String> {
    let inputs: Vec<Vec<Arc<Tensor>>> = arguments
        .into_iter()
        .enumerate()
        .map(|(rank, arguments)| {
            let mut arguments = arguments.into_iter();
            let weights = if rank == 0 {
                &imported.weights
            } else {
                imported.other_rank_weights.get(rank - 1).unwrap_or(&imported.weights)
            };
            let data_of = |i: &symmc_ir::GraphInput| match i.kind {
                InputKind::Argument => arguments.next().expect("an argument"),
                InputKind::Parameter => weights[&i.source].clone(),
                InputKind::Constant => i.data.clone().expect("its data"),
            };
            imported.graph.inputs.values().map(data_of).collect()
        })
        .collect();
    let outputs = run(&imported.graph, &SymbolBindings::new(), &inputs).map_err(|e| e.to_string())?;
    Ok(outputs.iter().map(|outputs| outputs.iter().map(|o| o.to_f64()).collect()).collect())
}

/// Row `row` of rank `rank` in the inputs.
fn row_of(rank: usize, row: usize) -> Vec<f64> {
    vec![(100 * rank + row + 1) as f64, -((100 * rank + row) as f64)]
}

fn rows(rank: usize, count: usize) -> Arc<Tensor> {
    let elements: Vec<f64> = (0..count).flat_map(|row| row_of(rank, row)).collect();
    tensor(DType::F32, &[count, 2], &elements)
}

const TOKENS: usize = 7;
const CAPACITY: usize = 40;

fn up(x: usize, align: usize) -> usize {
    x.div_ceil(align) * align
}

/// An exchange with the sizes as the argument `s`, and its two written tensors as outputs.
fn exchange(target: &str, sizes: &str, written: &str, more: &str) -> Fake {
    Fake::new()
        .input("x", &format!("f32[{TOKENS},2]"))
        .input("s", sizes)
        .node(
            "aten.zeros.default",
            &format!("size=[{CAPACITY},2] dtype=:f32"),
            &[("out", &format!("f32[{CAPACITY},2]"))],
        )
        .node(
            "aten.zeros.default",
            &format!("size=[2,{written}] dtype=:i64"),
            &[("so", &format!("i64[2,{written}]"))],
        )
        .node(target, &format!("input=%x out=%out {more} out_splits_offsets=%so group_name='0'"), &[])
        .output("out")
        .output("so")
}

#[test]
fn rows_go_to_the_ranks_that_sizes_say() {
    for sizes in [[[3usize, 4], [0, 7]], [[0, 0], [2, 1]], [[7, 0], [7, 0]]] {
        let fake = exchange("symm_mem.all_to_all_vdev.default", "i64[2]", "2", "in_splits=%s");
        let arguments = (0..2).map(|r| {
            let own: Vec<f64> = sizes[r].iter().map(|n| *n as f64).collect();
            vec![rows(r, TOKENS), tensor(DType::I64, &[2], &own)]
        });
        let outputs = results(&imported(&fake, 2).expect("a program"), arguments.collect()).expect("a run");
        for (me, received_rows) in outputs.iter().enumerate() {
            let mut expected = Vec::new();
            for (p, own) in sizes.iter().enumerate() {
                let start: usize = own[..me].iter().sum();
                expected.extend((start..start + own[me]).flat_map(|row| row_of(p, row)));
            }
            expected.resize(CAPACITY * 2, 0.0);
            assert_eq!(received_rows[0], expected, "rank {me} of {sizes:?}");
            let received = [sizes[0][me] as f64, sizes[1][me] as f64];
            assert_eq!(
                received_rows[1],
                [received[0], received[1], 0.0, received[0]],
                "rank {me} of {sizes:?}"
            );
        }
    }
}

/// Sizes of chunks for each expert of all ranks, with empty ones.
fn chunk_sizes(seed: usize, n: usize, local: usize) -> Vec<Vec<usize>> {
    let mut remaining = vec![TOKENS; n];
    let mut sizes_by_rank = vec![vec![0; n * local]; n];
    for (p, sizes) in sizes_by_rank.iter_mut().enumerate() {
        for (e, size) in sizes.iter_mut().enumerate() {
            *size = ((seed * 7 + p * 5 + e * 3) % 4).min(remaining[p]);
            remaining[p] -= *size;
        }
    }
    sizes_by_rank
}

/// The offset and the size of the chunk of each local expert of a rank and each source.
fn layout(sizes: &[Vec<usize>], me: usize, local: usize, align: usize) -> Vec<(usize, usize)> {
    let mut out = Vec::new();
    let mut start = 0;
    for l in 0..local {
        let mut offset = start;
        for own in sizes {
            out.push((offset, own[me * local + l]));
            offset += own[me * local + l];
        }
        start += up(offset - start, align).max(align);
    }
    out
}

#[test]
fn rows_go_to_experts_and_back() {
    for n in [2usize, 4] {
        for (seed, align) in [(0, 1), (1, 4), (2, 3), (5, 1)] {
            let local = 2;
            let sizes = chunk_sizes(seed, n, local);
            let chunks = n * local;
            let arguments_text = format!("in_splits=%s major_align={align}");
            let there = exchange(
                "symm_mem.all_to_all_vdev_2d.default",
                &format!("i64[{chunks}]"),
                &chunks.to_string(),
                &arguments_text,
            );
            let arguments = (0..n).map(|r| {
                let own: Vec<f64> = sizes[r].iter().map(|n| *n as f64).collect();
                vec![rows(r, TOKENS), tensor(DType::I64, &[chunks], &own)]
            });
            let outputs =
                results(&imported(&there, n as u32).expect("a program"), arguments.collect()).expect("a run");
            for (me, rank_outputs) in outputs.iter().enumerate() {
                let mut expected = vec![0.0; CAPACITY * 2];
                let chunks = layout(&sizes, me, local, align);
                for (i, &(at, count)) in chunks.iter().enumerate() {
                    let (l, p) = (i / n, i % n);
                    let start: usize = sizes[p][..me * local + l].iter().sum();
                    for row in 0..count {
                        expected[(at + row) * 2..(at + row) * 2 + 2].copy_from_slice(&row_of(p, start + row));
                    }
                }
                assert_eq!(rank_outputs[0], expected, "rank {me} of {n}, {sizes:?}");
                let counts = chunks.iter().map(|c| c.1 as f64).chain(chunks.iter().map(|c| c.0 as f64));
                assert_eq!(rank_outputs[1], counts.collect::<Vec<_>>(), "rank {me} of {n}, {sizes:?}");
            }
            rows_come_back(n, local, &sizes, align, &outputs);
        }
    }
}

/// What arrived goes back by `_2d_offset`, with gaps between the chunks of experts.
fn rows_come_back(n: usize, local: usize, sizes: &[Vec<usize>], align: usize, sent: &[Vec<Vec<f64>>]) {
    let chunks = n * local;
    let back = Fake::new()
        .input("x", &format!("f32[{CAPACITY},2]"))
        .input("s", &format!("i64[2,{chunks}]"))
        .node(
            "aten.zeros.default",
            &format!("size=[{TOKENS},2] dtype=:f32"),
            &[("out", &format!("f32[{TOKENS},2]"))],
        )
        .node(
            "aten.zeros.default",
            &format!("size=[2,{chunks}] dtype=:i64"),
            &[("so", &format!("i64[2,{chunks}]"))],
        )
        .node(
            "symm_mem.all_to_all_vdev_2d_offset.default",
            "input=%x out=%out in_splits_offsets=%s out_splits_offsets=%so group_name='0'",
            &[],
        )
        .output("out")
        .output("so");
    let arguments = sent.iter().map(|own| {
        vec![tensor(DType::F32, &[CAPACITY, 2], &own[0]), tensor(DType::I64, &[2, chunks], &own[1])]
    });
    let outputs =
        results(&imported(&back, n as u32).expect("a program"), arguments.collect()).expect("a run");
    for (me, rank_outputs) in outputs.iter().enumerate() {
        let total: usize = sizes[me].iter().sum();
        let mut expected: Vec<f64> = (0..total).flat_map(|row| row_of(me, row)).collect();
        expected.resize(TOKENS * 2, 0.0);
        assert_eq!(rank_outputs[0], expected, "back at rank {me}, {sizes:?}, {align}");
        let mut offset = 0;
        let starts = sizes[me].iter().map(|size| {
            offset += size;
            (offset - size) as f64
        });
        let expected: Vec<f64> = sizes[me].iter().map(|s| *s as f64).chain(starts).collect();
        assert_eq!(rank_outputs[1], expected, "back at rank {me}, {sizes:?}");
    }
}

#[test]
fn routing_beyond_the_capacity_fails_the_run() {
    let fake = exchange("symm_mem.all_to_all_vdev_2d.default", "i64[2]", "2", "in_splits=%s major_align=41");
    let program = imported(&fake, 2).expect("a program");
    let fits = |own: [f64; 2]| {
        results(&program, (0..2).map(|r| vec![rows(r, TOKENS), tensor(DType::I64, &[2], &own)]).collect())
    };
    assert!(fits([3.0, 4.0]).is_ok());
    // More rows than the rank has.
    assert!(fits([6.0, 4.0]).is_err());
    let fake = exchange("symm_mem.all_to_all_vdev_2d.default", "i64[4]", "4", "in_splits=%s major_align=40");
    let program = imported(&fake, 2).expect("a program");
    let four = |own: [f64; 4]| {
        results(&program, (0..2).map(|r| vec![rows(r, TOKENS), tensor(DType::I64, &[4], &own)]).collect())
    };
    // The second expert starts behind the end of the result.
    assert!(four([3.0, 0.0, 4.0, 0.0]).is_ok());
    assert!(four([3.0, 1.0, 3.0, 0.0]).is_err());
}

/// The error of a run of two ranks with the same sizes.
fn error_of_run(program: &ImportOutput, operand_rows: usize, shape: &[usize], sizes: &[f64]) -> String {
    let of_rank = |r| vec![rows(r, operand_rows), tensor(DType::I64, shape, sizes)];
    results(program, (0..2).map(of_rank).collect()).err().unwrap_or_default()
}

#[test]
fn errors_name_the_count_and_the_capacity() {
    let short = |target: &str, sizes: &str, written: &str, more: &str| {
        let out = "size=[5,2] dtype=:f32";
        let so = format!("size=[2,{written}] dtype=:i64");
        let fake = Fake::new()
            .input("x", &format!("f32[{TOKENS},2]"))
            .input("s", sizes)
            .node("aten.zeros.default", out, &[("out", "f32[5,2]")])
            .node("aten.zeros.default", &so, &[("so", &format!("i64[2,{written}]"))])
            .node(target, &format!("input=%x out=%out {more} out_splits_offsets=%so group_name='0'"), &[])
            .output("out");
        imported(&fake, 2).expect("a program")
    };
    let by_rank = short("symm_mem.all_to_all_vdev.default", "i64[2]", "2", "in_splits=%s");
    let two = short("symm_mem.all_to_all_vdev_2d.default", "i64[4]", "4", "in_splits=%s major_align=4");
    let back = short("symm_mem.all_to_all_vdev_2d_offset.default", "i64[2,4]", "4", "in_splits_offsets=%s");
    let (fits, beyond) = ("rows_within_capacity", "rows_within_operand");
    for (program, shape, sizes, found) in [
        // Three rows from each of two ranks are less than the operand has, and more than the result.
        (&by_rank, vec![2], vec![3.0, 2.0], Some((fits, 6, 6))),
        (&by_rank, vec![2], vec![2.0, 2.0], None),
        (&two, vec![4], vec![3.0, 0.0, 0.0, 0.0], Some((fits, 6, 6))),
        (&two, vec![4], vec![2.0, 0.0, 1.0, 0.0], None),
        // The second expert has no rows, and starts at row 8.
        (&two, vec![4], vec![2.0, 0.0, 2.0, 0.0], None),
        (&two, vec![4], vec![2.0, 0.0, 2.0, 4.0], Some((fits, 12, 6))),
        (&two, vec![4], vec![2.0, 0.0, 2.0, -1.0], Some(("rows_of_chunk", -1, 8))),
        (&back, vec![2, 4], vec![1.0, 5.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0], Some((fits, 10, 6))),
        (&back, vec![2, 4], vec![1.0, 1.0, 0.0, 0.0, 0.0, 7.0, 9.0, 0.0], Some((beyond, 8, 8))),
        (
            &back,
            vec![2, 4],
            vec![1.0, 1.0, 0.0, 0.0, 0.0, -2.0, 9.0, 0.0],
            Some(("offset_within_operand", -2, 8)),
        ),
        (&back, vec![2, 4], vec![1.0, 1.0, 0.0, 0.0, 0.0, 6.0, 9.0, 0.0], None),
    ] {
        let error = error_of_run(program, TOKENS, &shape, &sizes);
        match found {
            None => assert_eq!(error, "", "{sizes:?}"),
            Some((node, index, extent)) => {
                assert!(error.contains(node), "{sizes:?}: {error}");
                assert!(error.contains(&format!("index {index} ")), "{sizes:?}: {error}");
                assert!(error.contains(&format!("has extent {extent}")), "{sizes:?}: {error}");
            }
        }
    }
}

#[test]
fn results_of_other_types_are_refused() {
    let exchange = |op: &str, sizes: &str, out: &str, dtype: &str| {
        let splits = if op.ends_with("offset") { "in_splits_offsets" } else { "in_splits" };
        Fake::new()
            .input("x", "f32[4,2]")
            .input("s", sizes)
            .input("so", "i64[2,2]")
            .node(
                "aten.zeros.default",
                &format!("size=[{out}] dtype=:{dtype}"),
                &[("out", &format!("{dtype}[{out}]"))],
            )
            .node(
                &format!("symm_mem.{op}.default"),
                &format!("input=%x out=%out {splits}=%s out_splits_offsets=%so group_name='0'"),
                &[],
            )
            .output("out")
    };
    let tiles = |from: &str, out: &str, dtype: &str| {
        Fake::new()
            .input("a", &format!("f32[{from}]"))
            .node(
                "aten.zeros.default",
                &format!("size=[{out}] dtype=:{dtype}"),
                &[("out", &format!("{dtype}[{out}]"))],
            )
            .node(
                "symm_mem.multi_root_tile_reduce.default",
                "in_tiles=[%a,%a] out_tile=%out roots=[0,1] group_name='0'",
                &[],
            )
            .output("out")
    };
    let (one, two, back) = ("all_to_all_vdev", "all_to_all_vdev_2d", "all_to_all_vdev_2d_offset");
    for (fake, reason) in [
        (exchange(one, "i32[2]", "8,2", "f32"), "expected i64 as `in_splits`, found i32"),
        (exchange(one, "f32[2]", "8,2", "f32"), "expected i64 as `in_splits`, found f32"),
        (exchange(two, "i32[2]", "8,2", "f32"), "expected i64 as `in_splits`, found i32"),
        (exchange(back, "i32[2,2]", "8,2", "f32"), "expected i64 as `in_splits_offsets`, found i32"),
        (exchange(one, "i64[2]", "8,2", "bf16"), "expected a result of the operand's dtype f32, found bf16"),
        (exchange(two, "i64[2]", "8,2", "bf16"), "expected a result of the operand's dtype f32, found bf16"),
        (exchange(two, "i64[2]", "4,4", "f32"), "rows like those of the operand f32[4, 2], found f32[4, 4]"),
        (
            exchange(back, "i64[2,2]", "8,1", "f32"),
            "rows like those of the operand f32[4, 2], found f32[8, 1]",
        ),
        (tiles("4,2", "2,4", "f32"), "expected a result of the operand's type f32[4, 2], found f32[2, 4]"),
        (tiles("4,2", "4,2", "bf16"), "expected a result of the operand's type f32[4, 2], found bf16[4, 2]"),
    ] {
        let error = imported(&fake, 2).err().unwrap_or_default();
        assert!(error.contains(reason), "expected {reason:?}, found {error:?}");
    }
}

#[test]
fn tiles_are_summed_at_their_roots() {
    let tile = |rank: usize, i: usize| (1 + rank * 10 + i) as f64;
    for (roots, names) in [(vec![1], "[%a]"), (vec![1, 0], "[%a,%b]"), (vec![0, 1], "[%a,%b]")] {
        let list: Vec<String> = roots.iter().map(|r| r.to_string()).collect();
        let fake = Fake::new()
            .input("a", "f32[1,2]")
            .input("b", "f32[1,2]")
            .node("aten.full.default", "size=[1,2] fill_value=7.0 dtype=:f32", &[("out", "f32[1,2]")])
            .node(
                "symm_mem.multi_root_tile_reduce.default",
                &format!("in_tiles={names} out_tile=%out roots=[{}] group_name='0'", list.join(",")),
                &[],
            )
            .output("out");
        let arguments = (0..2).map(|r| {
            (0..2).map(|i| tensor(DType::F32, &[1, 2], &[tile(r, i), -tile(r, i)])).collect::<Vec<_>>()
        });
        let outputs = results(&imported(&fake, 2).expect("a program"), arguments.collect()).expect("a run");
        for (rank, rank_outputs) in outputs.iter().enumerate() {
            let expected = match roots.iter().position(|r| *r == rank as i64) {
                Some(i) => vec![tile(0, i) + tile(1, i), -tile(0, i) - tile(1, i)],
                None => vec![7.0, 7.0],
            };
            assert_eq!(rank_outputs[0], expected, "rank {rank}, roots {roots:?}");
        }
    }
}

#[test]
fn blocks_are_summed_at_their_destinations() {
    // Columns 0, 1 and 2, 3 and 4, 5: blocks of sizes 1, 1, 2 and 2 for ranks 1, 0, 0 and 1.
    let fake = Fake::new()
        .input("x", "f32[1,6]")
        .node("aten.zeros.default", "size=[1,1] dtype=:f32", &[("p", "f32[1,1]")])
        .node("aten.zeros.default", "size=[1,2] dtype=:f32", &[("q", "f32[1,2]")])
        .node(
            "symm_mem.nccl_reduce_scatter_offset.default",
            "input=%x out=[%p,%q] group_name='0' dim=1 offsets=[1,2,4,6] dst_ranks=[1,0,0,1] red_op='sum'",
            &[],
        )
        .output("p")
        .output("q");
    let arguments = (0..2).map(|r| {
        let own: Vec<f64> = (0..6).map(|i| (10 * r + i) as f64).collect();
        vec![tensor(DType::F32, &[1, 6], &own)]
    });
    let outputs = results(&imported(&fake, 2).expect("a program"), arguments.collect()).expect("a run");
    let sum = |i: usize| (10 + 2 * i) as f64;
    assert_eq!(outputs[0], [vec![sum(1)], vec![sum(2), sum(3)]]);
    assert_eq!(outputs[1], [vec![sum(0)], vec![sum(4), sum(5)]]);
}

#[test]
fn axes_are_scattered_and_gathered() {
    // Matrices, and pieces of ranks along an axis of their own, as the exchange of heads and positions has them.
    let (matrices, pieces) = ("nccl_all_to_all_nd", "nccl_all_to_all_permute");
    for (op, axes, from, to) in [
        (matrices, (1, 0), "2,4", "4,2"),
        (matrices, (0, 1), "4,2", "2,4"),
        (pieces, (1, 0), "2,4", "2,2,2"),
        (pieces, (0, 1), "2,2,2", "2,4"),
    ] {
        let shape: Vec<usize> = from.split(',').map(|d| d.parse().unwrap()).collect();
        let fake = Fake::new()
            .input("x", &format!("f32[{from}]"))
            .node("aten.zeros.default", &format!("size=[{to}] dtype=:f32"), &[("out", &format!("f32[{to}]"))])
            .node(
                &format!("symm_mem.{op}.default"),
                &format!("input=%x out=%out scatter_dim={} gather_dim={} group_name='0'", axes.0, axes.1),
                &[],
            )
            .output("out");
        let arguments = (0..2).map(|r| {
            let own: Vec<f64> = (0..8).map(|i| (10 * r + i) as f64).collect();
            vec![tensor(DType::F32, &shape, &own)]
        });
        let outputs = results(&imported(&fake, 2).expect("a program"), arguments.collect()).expect("a run");
        for (me, rank_outputs) in outputs.iter().enumerate() {
            let (rows, columns) = if axes.0 == 1 { (4, 2) } else { (2, 4) };
            let mut expected = Vec::new();
            for i in 0..rows {
                for j in 0..columns {
                    // The rank that has the element, and where.
                    let (p, row, column) =
                        if axes.0 == 1 { (i / 2, i % 2, me * 2 + j) } else { (j / 2, me * 2 + i, j % 2) };
                    let columns = if axes.0 == 1 { 4 } else { 2 };
                    expected.push((10 * p + row * columns + column) as f64);
                }
            }
            assert_eq!(rank_outputs[0], expected, "rank {me}, {op}, {axes:?}");
        }
    }
}

fn ring(rank: usize, n: usize) -> Fake {
    let (next, previous) = ((rank + 1) % n, (rank + n - 1) % n);
    Fake::new()
        .input("x", "f32[2]")
        .node("aten.empty_like.default", "self=%x", &[("space", "f32[2]")])
        .list_node(
            "_c10d_functional.batch_p2p_ops.default",
            &format!("op_list=['isend','irecv'] peer_list=[{next},{previous}] tag_list=[0,0] tensors=[%x,%space] group_name='0'"),
            &[("sent", "f32[0]"), ("got", "f32[2]")],
        )
        .node("_c10d_functional.wait_tensor.default", "tensor=%got", &[("y", "f32[2]")])
        .output("y")
}

#[test]
fn sends_of_all_ranks_are_a_permutation() {
    for n in [2usize, 4] {
        let archives: Vec<Vec<u8>> = (0..n).map(|rank| ring(rank, n).bytes()).collect();
        let files: Vec<&[u8]> = archives.iter().map(Vec::as_slice).collect();
        let imported = import_ranks(&files, &ImportOptions::default()).expect("one program");
        let arguments = (0..n).map(|r| vec![tensor(DType::F32, &[2], &[r as f64, 10.0 * r as f64])]);
        let outputs = results(&imported, arguments.collect()).expect("a run");
        for (rank, rank_outputs) in outputs.iter().enumerate() {
            let from = ((rank + n - 1) % n) as f64;
            assert_eq!(rank_outputs[0], [from, 10.0 * from], "rank {rank} of {n}");
        }
    }
    let error = imported(&ring(0, 4), 4).expect_err("one rank");
    assert!(error.contains("fits one rank only") && error.contains("[1, 3]"), "{error}");
}

/// Rows whose number is read from the tensor `n`.
fn sized(bound: Option<i64>, target: &str, arguments: &str, result: &str) -> Fake {
    Fake::new()
        .input("x", "f32[6,2]")
        .input("n", "i64[]")
        .sym_int("u0", "u0")
        .range("u0", Some(0), bound)
        .int_node("aten.item.default", "self=%n", "u0")
        .node("aten.slice.Tensor", "self=%x dim=0 start=0 end=$u0", &[("rows", "f32[u0,2]")])
        .node(target, arguments, &[("y", result)])
        .output("y")
}

#[test]
fn rows_of_dynamic_count_are_reduced_or_rejected() {
    let run_with = |fake: &Fake, count: f64| {
        let x: Vec<f64> = (0..12).map(|i| (i as f64) - 5.0).collect();
        results(
            &imported(fake, 1)?,
            vec![vec![tensor(DType::F32, &[6, 2], &x), tensor(DType::I64, &[], &[count])]],
        )
    };
    let sum = sized(Some(6), "aten.sum.dim_IntList", "self=%rows dim=[0]", "f32[2]");
    assert_eq!(run_with(&sum, 3.0).expect("a run")[0][0], [-9.0, -6.0]);
    assert_eq!(run_with(&sum, 0.0).expect("a run")[0][0], [0.0, 0.0]);
    assert!(run_with(&sum, 7.0).is_err(), "more rows than declared");
    let max = sized(Some(6), "aten.amax.default", "self=%rows dim=[0]", "f32[2]");
    assert_eq!(run_with(&max, 2.0).expect("a run")[0][0], [-3.0, -2.0]);
    let mean = sized(Some(6), "aten.mean.dim", "self=%rows dim=[0]", "f32[2]");
    assert_eq!(run_with(&mean, 2.0).expect("a run")[0][0], [-4.0, -3.0]);
    for (fake, expected) in [
        (
            sized(None, "aten.sum.dim_IntList", "self=%rows dim=[0]", "f32[2]"),
            "`u0` depends on data and has no upper bound",
        ),
        (sized(Some(6), "aten.flip.default", "self=%rows dims=[0]", "f32[u0,2]"), "`u0`"),
        (sized(Some(6), "aten.trace.default", "self=%rows", "f32[]"), "the number of rows is `u0`"),
        (
            sized(Some(6), "aten.topk.default", "self=%x k=$u0 dim=0", "f32[u0,2]"),
            "found `u0`, which depends on data",
        ),
    ] {
        let error = imported(&fake, 1).expect_err(expected);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn an_expanded_axis_bounds_a_number_that_is_data() {
    let expanded = |from: &str, size: &str| {
        Fake::new()
            .input("x", &format!("f32[{from}]"))
            .input("n", "i64[]")
            .sym_int("u0", "u0")
            .range("u0", Some(0), None)
            .int_node("aten.item.default", "self=%n", "u0")
            .node("aten.expand.default", &format!("self=%x size={size}"), &[("rows", "f32[u0,2]")])
            .node("aten.sum.dim_IntList", "self=%rows dim=[0]", &[("y", "f32[2]")])
            .output("y")
    };
    let run = imported(&expanded("3,2", "[$u0,2]"), 1).expect("a program");
    let x = tensor(DType::F32, &[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let outputs = results(&run, vec![vec![x, tensor(DType::I64, &[], &[3.0])]]).expect("a run");
    assert_eq!(outputs[0][0], [9.0, 12.0]);
    // One row is repeated any number of times.
    let error = imported(&expanded("1,2", "[$u0,2]"), 1).expect_err("no bound");
    assert!(error.contains("`u0` depends on data and has no upper bound"), "{error}");
}

#[test]
fn positions_are_repeated_by_counts_that_are_data() {
    let counted = |size: &str, result: &str| {
        Fake::new()
            .input("x", "f32[3,2]")
            .input("counts", "i64[3]")
            .input("n", "i64[]")
            .sym_int("u0", "u0")
            .range("u0", Some(0), Some(6))
            .int_node("aten.item.default", "self=%n", "u0")
            .node(
                "aten.repeat_interleave.Tensor",
                &format!("repeats=%counts output_size={size}"),
                &[("index", &format!("i64[{result}]"))],
            )
            .node(
                "aten.index_select.default",
                "self=%x dim=0 index=%index",
                &[("y", &format!("f32[{result},2]"))],
            )
            .node("aten.sum.dim_IntList", "self=%y dim=[0]", &[("sum", "f32[2]")])
            .output("sum")
    };
    let x = tensor(DType::F32, &[3, 2], &[1.0, 2.0, 10.0, 20.0, 100.0, 200.0]);
    let run_with = |fake: &Fake, counts: &[f64]| {
        let total = counts.iter().sum();
        let arguments = vec![x.clone(), tensor(DType::I64, &[3], counts), tensor(DType::I64, &[], &[total])];
        results(&imported(fake, 1).expect("a program"), vec![arguments]).expect("a run").remove(0).remove(0)
    };
    for counts in [[2.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 6.0, 0.0], [3.0, 2.0, 1.0]] {
        let sum = counts[0] + 10.0 * counts[1] + 100.0 * counts[2];
        assert_eq!(run_with(&counted("$u0", "u0"), &counts), [sum, 2.0 * sum], "{counts:?}");
    }
    assert_eq!(run_with(&counted("4", "4"), &[1.0, 3.0, 0.0]), [31.0, 62.0]);
}

#[test]
fn counts_must_add_up_to_the_output_size() {
    let repeated = |fake: Fake, counts: &str, size: &str| {
        let positions = format!("i64[{size}]");
        let rows = format!("f32[{size},2]");
        fake.input("x", "f32[3,2]")
            .node(
                "aten.repeat_interleave.Tensor",
                &format!("repeats=%{counts} output_size={size}"),
                &[("index", &positions)],
            )
            .node("aten.index_select.default", "self=%x dim=0 index=%index", &[("y", &rows)])
            .output("y")
    };
    let x = tensor(DType::F32, &[3, 2], &[1.0, 2.0, 10.0, 20.0, 100.0, 200.0]);
    let fake = repeated(Fake::new().input("counts", "i64[3]"), "counts", "4");
    let counted = imported(&fake, 1).expect("a program");
    for counts in [[1.0, 3.0, 0.0], [0.0, 0.0, 4.0]] {
        let outcome = results(&counted, vec![vec![tensor(DType::I64, &[3], &counts), x.clone()]]);
        assert!(outcome.is_ok(), "{counts:?}: {outcome:?}");
    }
    for counts in [[1.0, 2.0, 0.0], [0.0, 0.0, 0.0], [4.0, 1.0, 0.0], [1.0, 3.0, 1.0]] {
        let outcome = results(&counted, vec![vec![tensor(DType::I64, &[3], &counts), x.clone()]]);
        let error = outcome.expect_err("an index outside the axis");
        assert!(error.contains("the index 1 at position 0 of the indices is outside axis 0"), "{error}");
    }
    let stored: Vec<u8> = [1i64, 2, 1].iter().flat_map(|n| n.to_le_bytes()).collect();
    let constant = |size: &str| {
        let fake = Fake::new().buffer("counts", "i64[3]", false, Some(&stored));
        let fake = fake.node("aten.clone.default", "self=%counts", &[("same", "i64[3]")]);
        repeated(fake, "same", size)
    };
    let program = imported(&constant("4"), 1).expect("a program");
    let repeated_rows = results(&program, vec![vec![x.clone()]]).expect("a run").remove(0).remove(0);
    assert_eq!(repeated_rows, [1.0, 2.0, 10.0, 20.0, 10.0, 20.0, 100.0, 200.0]);
    for size in ["3", "5"] {
        let error = imported(&constant(size), 1).expect_err("another size");
        let expected = format!("expected 4 as `output_size`, the sum of the counts, found {size}");
        assert!(error.contains(&expected), "{error}");
    }
}

#[test]
fn whole_rows_are_outputs_of_fixed_extents() {
    let fake = sized(Some(6), "symmc.whole_rows.default", "x=%rows", "f32[u0,2]");
    let x: Vec<f64> = (0..12).map(f64::from).collect();
    let arguments = vec![tensor(DType::F32, &[6, 2], &x), tensor(DType::I64, &[], &[2.0])];
    let outputs = results(&imported(&fake, 1).expect("a program"), vec![arguments]).expect("a run");
    assert_eq!(outputs[0][0].len(), 12);
    assert_eq!(outputs[0][0][..4], x[..4]);
}

#[test]
fn dynamic_rows_with_a_fixed_sum_have_that_extent() {
    let split = |sum: &str| {
        Fake::new()
            .input("x", "f32[6,2]")
            .input("n", "i64[2]")
            .sym_int("u0", "u0")
            .sym_int("u1", "u1")
            .sym_int("extent", sum)
            .node("aten.select.int", "self=%n dim=0 index=0", &[("n0", "i64[]")])
            .node("aten.select.int", "self=%n dim=0 index=1", &[("n1", "i64[]")])
            .int_node("aten.item.default", "self=%n0", "u0")
            .int_node("aten.item.default", "self=%n1", "u1")
            .node(
                "aten.split_with_sizes.default",
                "self=%x split_sizes=[$u0,$u1]",
                &[("a", "f32[u0,2]"), ("b", "f32[u1,2]")],
            )
            .node("aten.cat.default", "tensors=[%b,%a] dim=0", &[("y", "f32[u0 + u1,2]")])
            .int_node("aten.sym_size.int", "self=%y dim=0", "extent")
            .output("y")
    };
    let x: Vec<f64> = (0..12).map(f64::from).collect();
    let arguments = vec![tensor(DType::F32, &[6, 2], &x), tensor(DType::I64, &[2], &[4.0, 2.0])];
    let outputs =
        results(&imported(&split("u0 + u1"), 1).expect("a program"), vec![arguments]).expect("a run");
    assert_eq!(outputs[0][0], [&x[8..], &x[..8]].concat());
    let error = imported(&split("u0"), 1).expect_err("another extent");
    assert!(error.contains("expected an extent of `u0`"), "{error}");
}
