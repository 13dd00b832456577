//! Whole runs of the interpreter: collectives over cells, inputs and symbols, seeds, custom ops.

use std::sync::Arc;

use crate::common::*;
use symmc_ir::AttentionBound;
use symmc_ir::interp::{
    InterpError, OpError, ReferenceKernelRegistry, SeedConfig, SeedScope, SeededInputs, infer_bindings, run,
    run_with_registry, seeded_inputs,
};
use symmc_ir::types::FloatAttribute;
use symmc_ir::{
    AllToAllSplits, BinaryOp, Collective, CollectiveKind, CollectiveReduceOp, CustomOp, DType, Dim, Graph,
    GraphBuilder, GroupMembers, InputKind, Op, Scalar, SymbolBindings, SymbolId, Tensor, TensorType, UnaryOp,
    ValueId,
};

/// Runs a collective with one rank per operand.
fn exchange(
    kind: CollectiveKind,
    cells: &[&[u32]],
    operands: &[Vec<Tensor>],
    results: &[TensorType],
) -> Result<Vec<Vec<Tensor>>, InterpError> {
    let op = |group| Op::Collective(Collective { kind: kind.clone(), group, variant: None });
    apply_on_ranks(cells, op, operands, results.to_vec())
}

#[test]
fn ranks_take_the_pieces_of_their_positions() {
    let operand = |rank: i64| vec![i64s(&[2, 4], &[0, 1, 2, 3, 4, 5, 6, 7].map(|x| 10 * rank + x))];
    let operands: Vec<Vec<Tensor>> = (0..4).map(operand).collect();
    let pieces = |cells: &[&[u32]], axis: usize, shape: &[usize]| {
        let results = vec![ty(DType::I64, shape)];
        let outputs = apply_on_ranks(cells, |group| Op::Shard { axis, group }, &operands, results).unwrap();
        outputs.iter().map(|rank| rank[0].to_i64()).collect::<Vec<_>>()
    };
    let by_columns = vec![vec![3, 7], vec![12, 16], vec![21, 25], vec![30, 34]];
    assert_eq!(pieces(&[&[3, 2, 1, 0]], 1, &[2, 1]), by_columns);
    let by_rows = vec![vec![0, 1, 2, 3], vec![14, 15, 16, 17], vec![24, 25, 26, 27], vec![30, 31, 32, 33]];
    assert_eq!(pieces(&[&[0, 2], &[3, 1]], 0, &[1, 4]), by_rows);
    let unsharded: Vec<Vec<i64>> = operands.iter().map(|rank| rank[0].to_i64()).collect();
    assert_eq!(pieces(&[&[2], &[0], &[1], &[3]], 1, &[2, 4]), unsharded);
}

/// A collective on one-axis i64 operands gives these results.
#[track_caller]
fn check_exchange(kind: CollectiveKind, cells: &[&[u32]], operands: &[&[i64]], expected: &[&[i64]]) {
    let tensors = |rows: &[&[i64]]| -> Vec<Vec<Tensor>> {
        rows.iter().map(|row| vec![i64s(&[row.len()], row)]).collect()
    };
    let expected = tensors(expected);
    let outputs = exchange(kind.clone(), cells, &tensors(operands), &[type_of(&expected[0][0])]).unwrap();
    for (rank, (actual, expected)) in outputs.iter().zip(&expected).enumerate() {
        assert_same(&format!("{kind:?} on rank {rank}"), actual, expected, 0.0);
    }
}

#[test]
fn all_kinds_on_two_and_three_ranks() {
    use CollectiveKind::*;
    let pair: &[&[i64]] = &[&[1, 2], &[30, -40]];
    for (op, expected) in [
        (CollectiveReduceOp::Sum, [31, -38]),
        (CollectiveReduceOp::Avg, [15, -19]),
        (CollectiveReduceOp::Max, [30, 2]),
        (CollectiveReduceOp::Min, [1, -40]),
        (CollectiveReduceOp::Prod, [30, -80]),
    ] {
        check_exchange(AllReduce(op), &[], pair, &[&expected, &expected]);
        check_exchange(ReduceScatter(op), &[], pair, &[&expected[..1], &expected[1..]]);
    }
    check_exchange(AllGather, &[], pair, &[&[1, 2, 30, -40], &[1, 2, 30, -40]]);
    let three: &[&[i64]] = &[&[1, 2, 3], &[4, 5, 6], &[7, 8, 9]];
    check_exchange(AllToAll(AllToAllSplits::Even), &[], three, &[&[1, 4, 7], &[2, 5, 8], &[3, 6, 9]]);
    check_exchange(Broadcast { root: 1 }, &[], three, &[&[4, 5, 6], &[4, 5, 6], &[4, 5, 6]]);
    check_exchange(ReduceScatter(CollectiveReduceOp::Sum), &[], three, &[&[12], &[15], &[18]]);
    let pairs = vec![(0, 1), (1, 2)];
    check_exchange(Permute { pairs }, &[], three, &[&[0, 0, 0], &[1, 2, 3], &[4, 5, 6]]);
    let wrap: &[&[i64]] = &[&[i64::MAX], &[1]];
    check_exchange(AllReduce(CollectiveReduceOp::Sum), &[], wrap, &[&[i64::MIN], &[i64::MIN]]);
    check_exchange(AllReduce(CollectiveReduceOp::Sum), &[], &[&[], &[]], &[&[], &[]]);
}

#[test]
fn cells_keep_to_themselves() {
    use CollectiveKind::*;
    let x: &[&[i64]] = &[&[1, 2], &[3, 4], &[5, 6], &[7, 8]];
    let rows: &[&[u32]] = &[&[0, 1], &[2, 3]];
    let columns: &[&[u32]] = &[&[0, 2], &[1, 3]];
    let sum = AllReduce(CollectiveReduceOp::Sum);
    check_exchange(sum.clone(), rows, x, &[&[4, 6], &[4, 6], &[12, 14], &[12, 14]]);
    check_exchange(sum, columns, x, &[&[6, 8], &[10, 12], &[6, 8], &[10, 12]]);
    check_exchange(AllGather, columns, x, &[&[1, 2, 5, 6], &[3, 4, 7, 8], &[1, 2, 5, 6], &[3, 4, 7, 8]]);
    check_exchange(ReduceScatter(CollectiveReduceOp::Max), columns, x, &[&[5], &[7], &[6], &[8]]);
    check_exchange(AllToAll(AllToAllSplits::Even), columns, x, &[&[1, 5], &[3, 7], &[2, 6], &[4, 8]]);
    check_exchange(Broadcast { root: 1 }, rows, x, &[&[3, 4], &[3, 4], &[7, 8], &[7, 8]]);
    check_exchange(Permute { pairs: vec![(1, 0)] }, columns, x, &[&[5, 6], &[7, 8], &[0, 0], &[0, 0]]);
    // The order within the cell is the order of the cell, not of the numbers.
    let turned: &[&[u32]] = &[&[1, 0], &[3, 2]];
    check_exchange(AllGather, turned, x, &[&[3, 4, 1, 2], &[3, 4, 1, 2], &[7, 8, 5, 6], &[7, 8, 5, 6]]);
}

#[test]
fn reductions_over_ranks_accumulate_wide_and_in_order() {
    let sum = |dtype, elements: &[f64]| {
        let operands: Vec<_> = elements.iter().map(|&x| vec![t(dtype, &[1], &[x])]).collect();
        let kind = CollectiveKind::AllReduce(CollectiveReduceOp::Sum);
        exchange(kind, &[], &operands, &[ty(dtype, &[1])]).unwrap()[0][0].get_f64(0)
    };
    // In bf16, each addition of 2^-8 to 1 would be lost.
    assert_eq!(sum(DType::BF16, &[1.0, 2f64.powi(-8), 2f64.powi(-8)]), 1.0 + 2f64.powi(-7));
    // In f32, 2^24 + 1 is lost; in ascending order of rank, both ones are.
    assert_eq!(sum(DType::F32, &[16_777_216.0, 1.0, 1.0]), 16_777_216.0);
    assert_eq!(sum(DType::F32, &[1.0, 1.0, 16_777_216.0]), 16_777_218.0);
    assert_eq!(sum(DType::F64, &[16_777_216.0, 1.0, 1.0]), 16_777_218.0);
    assert_eq!(sum(DType::F16, &[60000.0, 60000.0, -60000.0]), 60000.0);
    let max = |kind| {
        let operands = [vec![f32s(&[1], &[1.0])], vec![f32s(&[1], &[f64::NAN])]];
        exchange(CollectiveKind::AllReduce(kind), &[], &operands, &[ty(DType::F32, &[1])]).unwrap()
    };
    assert!(max(CollectiveReduceOp::Max)[0][0].get_f64(0).is_nan());
    assert!(max(CollectiveReduceOp::Min)[1][0].get_f64(0).is_nan());
}

#[test]
fn all_to_all_by_splits_on_the_device() {
    let kind = CollectiveKind::AllToAll(AllToAllSplits::Device);
    let results = [ty(DType::F32, &[3, 2]), ty(DType::I64, &[2])];
    let x = |first: f64| f32s(&[3, 2], &(0..6).map(|i| first + f64::from(i)).collect::<Vec<_>>());
    let operands = |a: [i64; 2], b: [i64; 2]| [vec![x(10.0), i64s(&[2], &a)], vec![x(20.0), i64s(&[2], &b)]];
    let outputs = exchange(kind.clone(), &[], &operands([1, 2], [2, 1]), &results).unwrap();
    let first = [f32s(&[3, 2], &[10.0, 11.0, 20.0, 21.0, 22.0, 23.0]), i64s(&[2], &[1, 2])];
    let second = [f32s(&[3, 2], &[12.0, 13.0, 14.0, 15.0, 24.0, 25.0]), i64s(&[2], &[2, 1])];
    assert_same("rank 0", &outputs[0], &first, 0.0);
    assert_same("rank 1", &outputs[1], &second, 0.0);
    // Rows without data are zero.
    let outputs = exchange(kind.clone(), &[], &operands([0, 1], [0, 0]), &results).unwrap();
    assert_same("rank 0", &outputs[0], &[f32s(&[3, 2], &[0.0; 6]), i64s(&[2], &[0, 0])], 0.0);
    let second = [f32s(&[3, 2], &[10.0, 11.0, 0.0, 0.0, 0.0, 0.0]), i64s(&[2], &[1, 0])];
    assert_same("rank 1", &outputs[1], &second, 0.0);
    for (a, b, rank, what, splits) in [
        ([2, 2], [0, 0], 0, "rows sent", [2, 2]),
        ([0, 0], [-1, 1], 1, "rows sent", [-1, 1]),
        ([1, 2], [1, 2], 1, "rows received", [2, 2]),
        ([i64::MAX, i64::MAX], [0, 0], 0, "rows sent", [i64::MAX, i64::MAX]),
    ] {
        match exchange(kind.clone(), &[], &operands(a, b), &results) {
            Err(InterpError::Op { rank: found_rank, op: "all_to_all", error, .. }) => {
                assert_eq!(found_rank, rank);
                assert_eq!(error, OpError::Splits { what, capacity: 3, found: splits.to_vec() });
            }
            other => panic!("{other:?}"),
        }
    }
}

/// `y = relu(x) + x` over `[tokens, 2]`, and `z` of `[4*tokens + 1, k]` passed through.
fn symbolic() -> (Graph, SymbolId, SymbolId) {
    let mut b = GraphBuilder::new("symbolic", Some(1));
    let tokens = b.symbol("tokens", 2, 8);
    let k = b.symbol("k", 1, 100);
    let four = Dim::from(4) * Dim::from(tokens) + Dim::from(1);
    let z =
        b.input(InputKind::Argument, "z", "", TensorType::new(DType::I64, vec![four, Dim::from(k)]), None);
    let ty = TensorType::new(DType::F32, vec![Dim::from(tokens), Dim::from(2)]);
    let x = b.input(InputKind::Argument, "x", "", ty, None);
    let relu = b.op("relu", Op::Unary(UnaryOp::Relu), &[x]).unwrap();
    let y = b.op("y", Op::Binary(BinaryOp::Add), &[relu, x]).unwrap();
    b.output(y);
    b.output(z);
    b.output(y);
    (b.finish(), tokens, k)
}

#[test]
fn symbols_are_solved_from_shapes() {
    let (graph, tokens, k) = symbolic();
    let zeros = |dtype, shape: &[usize]| Tensor::zeros(dtype, shape).unwrap();
    let solve =
        |z: &[usize], x: &[usize]| infer_bindings(&graph, &[&zeros(DType::I64, z), &zeros(DType::F32, x)]);
    let bindings = solve(&[13, 5], &[3, 2]).unwrap();
    assert_eq!((bindings.get(tokens), bindings.get(k)), (Some(3), Some(5)));
    for (z, x, message) in [
        ([12, 5], [3, 2], "rank 0, input %z: expected the shape [13, 5] ([4*tokens + 1, k]), found [12, 5]"),
        ([13, 5], [3, 3], "rank 0, input %x: expected the shape [3, 2] ([tokens, 2]), found [3, 3]"),
        ([37, 5], [9, 2], "the symbol tokens is 9, expected 2 to 8"),
        ([13, 0], [3, 2], "the symbol k is 0, expected 1 to 100"),
    ] {
        assert_eq!(solve(&z, &x).unwrap_err().to_string(), message);
    }
    let message = infer_bindings(&graph, &[&zeros(DType::I64, &[1, 1])]).unwrap_err().to_string();
    assert_eq!(message, "rank 0: expected 2 inputs, found 1");
    let wrong = infer_bindings(&graph, &[&zeros(DType::I32, &[13, 5]), &zeros(DType::F32, &[3, 2])]);
    assert_eq!(wrong.unwrap_err().to_string(), "rank 0, input %z: expected i64, found i32");
}

#[test]
fn linear_dims_are_solved_in_turn() {
    let mut b = GraphBuilder::new("linear", Some(1));
    let (m, n, fixed) = (b.symbol("m", 0, 100), b.symbol("n", 0, 100), b.symbol("fixed", 7, 7));
    let sum = Dim::from(m) + Dim::from(3) * Dim::from(n);
    let half = Dim::from(m).floor_div(&Dim::from(2));
    let shape = vec![sum, half.clone(), Dim::from(100) - Dim::from(5) * Dim::from(m)];
    let x = b.input(InputKind::Argument, "x", "", TensorType::new(DType::Bool, shape), None);
    b.output(x);
    let graph = b.finish();
    let solve = |shape: &[usize]| infer_bindings(&graph, &[&Tensor::zeros(DType::Bool, shape).unwrap()]);
    let bindings = solve(&[16, 3, 65]).unwrap();
    assert_eq!([m, n, fixed].map(|s| bindings.get(s)), [Some(7), Some(3), Some(7)]);
    assert!(matches!(solve(&[17, 3, 65]), Err(InterpError::UnboundSymbol { symbol, .. }) if symbol == "n"));
    assert!(matches!(solve(&[16, 4, 65]), Err(InterpError::InputShape { .. })));
    // Only `m // 2` mentions the symbol: no one value is meant.
    let mut b = GraphBuilder::new("open", Some(1));
    b.symbol("m", 0, 100);
    let x = b.input(InputKind::Argument, "x", "", TensorType::new(DType::Bool, vec![half]), None);
    b.output(x);
    let solution = infer_bindings(&b.finish(), &[&Tensor::zeros(DType::Bool, [3]).unwrap()]);
    assert_eq!(solution.unwrap_err().to_string(), "the symbol m of %x has no value");
}

#[test]
fn runs_check_their_inputs() {
    let (graph, tokens, k) = symbolic();
    let z = Arc::new(i64s(&[9, 1], &[1, 2, 3, 4, 5, 6, 7, 8, 9]));
    let x = Arc::new(f32s(&[2, 2], &[1.0, -1.0, 0.5, -0.0]));
    let inputs = vec![vec![z.clone(), x.clone()]];
    let bind = |t, n| {
        let mut bindings = SymbolBindings::new();
        bindings.set(tokens, t);
        bindings.set(k, n);
        bindings
    };
    let y = f32s(&[2, 2], &[2.0, -1.0, 1.0, 0.0]);
    let outputs = run(&graph, &bind(2, 1), &inputs).unwrap();
    assert_same("outputs", &outputs[0], &[y.clone(), (*z).clone(), y], 0.0);
    let error = |g: &Graph, b: &SymbolBindings, i: &[Vec<Arc<Tensor>>]| run(g, b, i).unwrap_err().to_string();
    assert_eq!(error(&graph, &bind(9, 1), &inputs), "the symbol tokens is 9, expected 2 to 8");
    assert_eq!(error(&graph, &SymbolBindings::new(), &inputs), "the symbol tokens of %z has no value");
    assert_eq!(
        error(&graph, &bind(3, 1), &inputs),
        "rank 0, input %z: expected the shape [13, 1] ([4*tokens + 1, k]), found [9, 1]"
    );
    assert_eq!(error(&graph, &bind(2, 1), &[]), "expected inputs for 1 ranks, found inputs for 0");
    let short = vec![vec![z]];
    assert_eq!(error(&graph, &bind(2, 1), &short), "rank 0: expected 2 inputs, found 1");
    let swapped = vec![vec![x.clone(), x]];
    assert_eq!(error(&graph, &bind(2, 1), &swapped), "rank 0, input %z: expected i64, found f32");
    let open = Graph { ranks: None, ..graph };
    assert!(matches!(run(&open, &bind(2, 1), &inputs), Err(InterpError::OpenRanks)));
}

#[test]
fn sizes_that_do_not_fit_are_errors() {
    for (extents, message) in [
        ([1 << 30, 1 << 28], "%big: 288230376151711744 elements of 8 bytes do not fit into memory"),
        (
            [1 << 40, 1 << 40],
            "%big: the shape [1099511627776, 1099511627776] has no size under the bindings \
             (negative, division by zero or overflow)",
        ),
        (
            [-1, 1],
            "%big: the shape [-1, 1] has no size under the bindings (negative, division by zero or overflow)",
        ),
    ] {
        let mut b = GraphBuilder::new("big", Some(1));
        let ty = TensorType::new(DType::Bool, extents.map(Dim::from).to_vec());
        let big = b.op_as("big", Op::Full(Scalar::Int(0)), &[], ty).unwrap();
        b.output(big);
        let error = run(&b.finish(), &SymbolBindings::new(), &[vec![]]).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
    // No ranks, nothing to do.
    let mut b = GraphBuilder::new("nobody", Some(0));
    let group = b.group("g", GroupMembers::World);
    let x = b.input(InputKind::Argument, "x", "", ty(DType::F32, &[2]), None);
    b.collective("y", CollectiveKind::AllReduce(CollectiveReduceOp::Sum), group, &[x]).unwrap();
    assert_eq!(run(&b.finish(), &SymbolBindings::new(), &[]), Ok(vec![]));
}

#[test]
fn broken_graphs_are_refused() {
    let x = f32s(&[2], &[1.0, 2.0]);
    let inputs = |n: usize| vec![vec![Arc::new(x.clone())]; n];
    let mut b = GraphBuilder::new("cells", Some(3));
    let group = b.group("tp", GroupMembers::Cells(vec![vec![0, 1], vec![1, 2]]));
    let v = b.input(InputKind::Argument, "x", "", type_of(&x), None);
    let y = b.collective("y", CollectiveKind::AllReduce(CollectiveReduceOp::Sum), group, &[v]).unwrap()[0];
    b.output(y);
    let error = run(&b.finish(), &SymbolBindings::new(), &inputs(3)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "group @tp: expected cells of equal size that contain each of 3 ranks once, found [[0, 1], [1, 2]]"
    );
    let mut graph = Graph::new("types");
    graph.ranks = Some(1);
    let v = graph.add_input(InputKind::Argument, "x", "", type_of(&x), None);
    graph.add_node(Op::Copy, vec![v], vec![("y".into(), ty(DType::F32, &[3]))]);
    let error = run(&graph, &SymbolBindings::new(), &inputs(1)).unwrap_err();
    assert!(matches!(error, InterpError::Type { node, op: "copy", .. } if node == "y"));
}

#[test]
fn opaque_and_custom_ops() {
    let x = f32s(&[2], &[1.0, 2.0]);
    let op = Op::Opaque { name: "aten.frobnicate".into(), attributes: String::new() };
    let message = "the op `aten.frobnicate` is opaque: it can be planned but not run";
    check_error(op, std::slice::from_ref(&x), &[type_of(&x)], message);

    let mut b = GraphBuilder::new("custom", Some(4));
    let group = b.group("tp", GroupMembers::Cells(vec![vec![0, 1], vec![2, 3]]));
    let custom = |name: &str, group| CustomOp {
        name: name.into(),
        symmetric_operands: vec![],
        symmetric_results: vec![],
        group,
    };
    let swap = b.graph_mut().customs.push(custom("ns::swap", Some(group)));
    let twice = b.graph_mut().customs.push(custom("ns::twice", None));
    let v = b.input(InputKind::Argument, "x", "", ty(DType::F32, &[1]), None);
    let s = b.op_as("s", Op::Custom(swap), &[v], ty(DType::F32, &[1])).unwrap();
    let y = b.op_as("y", Op::Custom(twice), &[s], ty(DType::F32, &[1])).unwrap();
    b.output(y);
    let graph = b.finish();
    let inputs: Vec<_> = (0..4).map(|r| vec![Arc::new(f32s(&[1], &[f64::from(r)]))]).collect();
    let mut registry = ReferenceKernelRegistry::new();
    registry.register("ns::swap", |call| Ok(call.operands.iter().rev().cloned().collect()));
    let error = |registry: &ReferenceKernelRegistry| {
        run_with_registry(&graph, &SymbolBindings::new(), &inputs, registry).unwrap_err().to_string()
    };
    assert_eq!(
        error(&registry),
        "rank 0, %y (custom): no kernel is registered for the custom op `ns::twice`"
    );
    registry.register("ns::twice", |call| {
        assert_eq!((call.ranks.len(), call.results.len()), (1, 1));
        Ok(vec![vec![f32s(&[1], &[2.0 * call.operands[0][0].get_f64(0)])]])
    });
    let outputs = run_with_registry(&graph, &SymbolBindings::new(), &inputs, &registry).unwrap();
    let firsts: Vec<f64> = outputs.iter().map(|out| out[0].get_f64(0)).collect();
    assert_eq!(firsts, [2.0, 0.0, 6.0, 4.0]);
    registry.register("ns::twice", |_| Err("no memory".into()));
    assert_eq!(error(&registry), "rank 0, %y (custom): the custom op `ns::twice`: no memory");
    registry.register("ns::twice", |_| Ok(vec![vec![i64s(&[1], &[1])]]));
    assert!(error(&registry).contains("expected [(F32, [1])] on each of 1 ranks"));
}

/// Two pre-norm layers, tensor parallel: heads and the inner width divided over the ranks.
fn transformer(ranks: u32, vocabulary: usize, hidden: usize, heads: usize, inner: usize) -> Graph {
    let mut b = GraphBuilder::new("transformer", Some(ranks));
    let world = b.group("tp", GroupMembers::World);
    let tokens = Dim::from(b.symbol("tokens", 1, 4096));
    let n = ranks as usize;
    let (head, heads) = (hidden / heads, heads / n);
    let param = |b: &mut GraphBuilder, name: &str, shape: &[usize]| {
        b.input(InputKind::Parameter, name, name, ty(DType::F32, shape), None)
    };
    let table = param(&mut b, "embed", &[vocabulary, hidden]);
    let ids =
        b.input(InputKind::Argument, "ids", "", TensorType::new(DType::I64, vec![tokens.clone()]), None);
    let mut x = b.op("x", Op::Take { axis: 0 }, &[table, ids]).unwrap();
    let norm = Op::RmsNorm { axes: 1, eps: FloatAttribute(1e-6), round_first: false };
    for _ in 0..2 {
        let weight = param(&mut b, "norm", &[hidden]);
        let h = b.op("h", norm.clone(), &[x, weight]).unwrap();
        let project = |b: &mut GraphBuilder, name: &str| -> ValueId {
            let weight = param(b, name, &[hidden, heads * head]);
            let q = b.op(name, Op::MATMUL, &[h, weight]).unwrap();
            let shape = vec![tokens.clone(), Dim::from(heads as i64), Dim::from(head as i64)];
            let q = b.reshape(name, q, shape).unwrap();
            b.op(name, Op::Permute { perm: vec![1, 0, 2] }, &[q]).unwrap()
        };
        let qkv = ["q", "k", "v"].map(|name| project(&mut b, name));
        let scale = FloatAttribute(1.0 / (head as f64).sqrt());
        let a = b
            .op(
                "a",
                Op::Attention {
                    scale,
                    cap: None,
                    bounds: vec![AttentionBound::causal()],
                    sink: false,
                    log_sum_exp: false,
                },
                &qkv,
            )
            .unwrap();
        let a = b.op("a", Op::Permute { perm: vec![1, 0, 2] }, &[a]).unwrap();
        let a = b.reshape("a", a, vec![tokens.clone(), Dim::from((heads * head) as i64)]).unwrap();
        let weight = param(&mut b, "o", &[heads * head, hidden]);
        let o = b.op("o", Op::MATMUL, &[a, weight]).unwrap();
        let o =
            b.collective("ar", CollectiveKind::AllReduce(CollectiveReduceOp::Sum), world, &[o]).unwrap()[0];
        x = b.op("x", Op::Binary(BinaryOp::Add), &[x, o]).unwrap();
        let weight = param(&mut b, "norm", &[hidden]);
        let h = b.op("h", norm.clone(), &[x, weight]).unwrap();
        let up = param(&mut b, "up", &[hidden, inner / n]);
        let up = b.op("up", Op::MATMUL, &[h, up]).unwrap();
        let up = b.op("up", Op::Unary(UnaryOp::Gelu), &[up]).unwrap();
        let down = param(&mut b, "down", &[inner / n, hidden]);
        let down = b.op("down", Op::MATMUL, &[up, down]).unwrap();
        let down = b
            .collective("ar", CollectiveKind::AllReduce(CollectiveReduceOp::Sum), world, &[down])
            .unwrap()[0];
        x = b.op("x", Op::Binary(BinaryOp::Add), &[x, down]).unwrap();
    }
    b.output(x);
    b.finish()
}

#[test]
fn a_transformer_of_a_thousand_tokens() {
    let graph = transformer(4, 128, 64, 4, 256);
    let mut bindings = SymbolBindings::new();
    bindings.set(graph.symbols.keys().next().unwrap(), 1000);
    let inputs: Vec<_> =
        (0..4).map(|rank| seeded_inputs(&graph, &bindings, &SeedConfig::new(7), rank).unwrap()).collect();
    let solved = infer_bindings(&graph, &inputs[0].iter().map(|t| &**t).collect::<Vec<_>>()).unwrap();
    assert_eq!(solved, bindings);
    let out = run(&graph, &bindings, &inputs).unwrap();
    assert_eq!(out[0][0].shape(), [1000, 64]);
    assert!(out[0][0].to_f64().iter().all(|x| x.is_finite() && x.abs() < 100.0));
    // A token sees itself and earlier ones: a run on the first ten gives their rows.
    let mut short = inputs.clone();
    bindings.set(graph.symbols.keys().next().unwrap(), 10);
    for inputs in &mut short {
        inputs[1] = Arc::new(i64s(&[10], &inputs[1].to_i64()[..10]));
    }
    let first = run(&graph, &bindings, &short).unwrap();
    let rows = f32s(&[10, 64], &out[3][0].to_f64()[..640]);
    assert_same("the first ten rows", &first[3], &[rows], 1e-5);
}

#[test]
fn a_divided_product_is_the_whole_product() {
    // [3, 4] @ [4, 2] with the inner axis over 2 ranks, exactly in small integers.
    let mut b = GraphBuilder::new("row parallel", Some(2));
    let world = b.group("tp", GroupMembers::World);
    let x = b.input(InputKind::Argument, "x", "", ty(DType::F32, &[3, 2]), None);
    let w = b.input(InputKind::Parameter, "w", "w", ty(DType::F32, &[2, 2]), None);
    let p = b.op("p", Op::MATMUL, &[x, w]).unwrap();
    let y = b.collective("y", CollectiveKind::AllReduce(CollectiveReduceOp::Sum), world, &[p]).unwrap()[0];
    b.output(y);
    let whole_x: Vec<f64> = (0..12).map(f64::from).collect();
    let whole_w: Vec<f64> = (0..8).map(|i| f64::from(i) - 3.0).collect();
    let inputs: Vec<Vec<Arc<Tensor>>> = (0..2)
        .map(|r| {
            let columns: Vec<f64> =
                (0..3).flat_map(|i| [4 * i + 2 * r, 4 * i + 2 * r + 1]).map(|i| whole_x[i]).collect();
            vec![Arc::new(f32s(&[3, 2], &columns)), Arc::new(f32s(&[2, 2], &whole_w[4 * r..][..4]))]
        })
        .collect();
    let outputs = run(&b.finish(), &SymbolBindings::new(), &inputs).unwrap();
    let operands = [f32s(&[3, 4], &whole_x), f32s(&[4, 2], &whole_w)];
    let expected = apply(Op::MATMUL, &operands, vec![ty(DType::F32, &[3, 2])]).unwrap();
    outputs.iter().for_each(|actual| assert_same("rank", actual, &expected, 0.0));
}

/// Inputs of every kind and use that seeds distinguish.
fn inputs_of_all_kinds() -> Graph {
    let mut b = GraphBuilder::new("seeds", Some(2));
    let world = b.group("ep", GroupMembers::World);
    let input = |b: &mut GraphBuilder, kind, name: &str, dtype, shape: &[usize]| {
        b.input(kind, name, name, ty(dtype, shape), None)
    };
    let (arg, par) = (InputKind::Argument, InputKind::Parameter);
    let table = input(&mut b, par, "table", DType::F32, &[5, 100]);
    let norm = input(&mut b, par, "norm", DType::BF16, &[4]);
    let bias = input(&mut b, par, "bias", DType::F32, &[1000]);
    let ids = input(&mut b, arg, "ids", DType::I32, &[10, 10]);
    let free = input(&mut b, arg, "free", DType::I64, &[100]);
    let flags = input(&mut b, arg, "flags", DType::Bool, &[100]);
    let splits = input(&mut b, arg, "splits", DType::I64, &[2]);
    let x = input(&mut b, arg, "x", DType::BF16, &[8, 4]);
    let data = Arc::new(i64s(&[1], &[42]));
    let constant = b.input(InputKind::Constant, "c", "", ty(DType::I64, &[1]), Some(data));
    // The ids index through a cast, a reshape and an all-gather.
    let wide = b.op_as("wide", Op::Cast, &[ids], ty(DType::I64, &[10, 10])).unwrap();
    let flat = b.reshape("flat", wide, vec![Dim::from(100)]).unwrap();
    let gathered = b.collective("all", CollectiveKind::AllGather, world, &[flat]).unwrap()[0];
    let rows = b.op("rows", Op::Take { axis: 0 }, &[table, gathered]).unwrap();
    let normed =
        b.op("n", Op::RmsNorm { axes: 1, eps: FloatAttribute(0.0), round_first: false }, &[x, norm]).unwrap();
    let sent = b
        .collective("sent", CollectiveKind::AllToAll(AllToAllSplits::Device), world, &[normed, splits])
        .unwrap();
    let experts = input(&mut b, par, "experts", DType::BF16, &[3, 4, 2]);
    let ends = input(&mut b, arg, "ends", DType::I32, &[3]);
    let grouped = b.op("grouped", Op::GroupedMatMul, &[normed, experts, ends]).unwrap();
    for v in [rows, bias, free, flags, sent[0], constant, grouped] {
        b.output(v);
    }
    b.finish()
}

#[test]
fn seeds_draw_fitting_inputs() {
    let graph = inputs_of_all_kinds();
    let draw =
        |seed, rank| seeded_inputs(&graph, &SymbolBindings::new(), &SeedConfig::new(seed), rank).unwrap();
    let range = |x: &Tensor| {
        x.to_f64().iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), &x| (a.min(x), b.max(x)))
    };
    let inputs = draw(1, 0);
    let (low, high) = range(&inputs[0]);
    assert!((-0.1..-0.09).contains(&low) && (0.09..=0.1).contains(&high), "{low} {high}");
    let (low, high) = range(&inputs[1]);
    assert!(low >= 0.89 && high <= 1.11, "{low} {high}");
    let (low, high) = range(&inputs[2]);
    assert!((-0.1..-0.09).contains(&low) && (0.09..=0.1).contains(&high), "{low} {high}");
    assert_eq!(range(&inputs[3]), (0.0, 4.0));
    assert_eq!(range(&inputs[4]), (0.0, 7.0));
    assert_eq!(range(&inputs[5]), (0.0, 1.0));
    assert_eq!(inputs[8].to_i64(), [42]);
    // Arguments are shared, parameters are not; another seed gives others.
    let redrawn = draw(1, 1);
    for i in 0..8 {
        assert_eq!(
            inputs[i] == redrawn[i],
            graph.inputs.values().nth(i).unwrap().kind == InputKind::Argument,
            "input {i}"
        );
    }
    assert_eq!(inputs, draw(1, 0));
    assert_ne!(inputs[2], draw(2, 0)[2]);
    let config =
        SeedConfig { arguments: SeedScope::PerRank, parameters: SeedScope::Shared, ..SeedConfig::new(1) };
    let with = |rank| seeded_inputs(&graph, &SymbolBindings::new(), &config, rank).unwrap();
    assert_eq!(with(0)[0], with(1)[0]);
    assert_ne!(with(0)[4], with(1)[4]);
    // A sample is the first elements of a float input, and other inputs in full.
    let bindings = SymbolBindings::new();
    let seeds = SeededInputs::new(&graph, &bindings, SeedConfig::new(1));
    for (id, whole) in graph.inputs.keys().zip(&inputs) {
        let sample = seeds.generate_sample(id, 0, 3).unwrap();
        let count = if whole.dtype().is_float() {
            whole.data().len().min(3 * whole.dtype().size())
        } else {
            whole.data().len()
        };
        assert_eq!(sample.data(), &whole.data()[..count], "%{}", graph.value_name(graph.inputs[id].value));
    }
    // Whatever the seed, split sizes fit, groups of rows end in order, and the program runs.
    for seed in 0..20 {
        let config = SeedConfig { seed, ..config };
        let inputs: Vec<_> =
            (0..2).map(|r| seeded_inputs(&graph, &SymbolBindings::new(), &config, r).unwrap()).collect();
        run(&graph, &SymbolBindings::new(), &inputs).unwrap();
    }
}
