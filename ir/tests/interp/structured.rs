//! Products, norms, attention, indexing, sorting and movement, against results computed by hand.

#![allow(clippy::cloned_ref_to_slice_refs)] // `&[x.clone()]` reads as the list of operands that it is.

use std::f64::consts::LN_2;

use crate::common::*;
use symmc_ir::attention::{self, AttentionBound, BoundSide};
use symmc_ir::types::FloatAttribute;
use symmc_ir::{DType, Dim, Op, ReductionKind, Scalar, Tensor};

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

fn dims(values: &[i64]) -> Vec<Dim> {
    values.iter().map(|&v| Dim::from(v)).collect()
}

#[test]
fn matmul() {
    let x = f32s(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let y = f32s(&[3, 2], &[7.0, 8.0, 9.0, 10.0, 11.0, 12.0]);
    check(Op::MATMUL, &[x.clone(), y], &[f32s(&[2, 2], &[58.0, 64.0, 139.0, 154.0])]);
    // Batches broadcast on both sides: [2, 1, 1, 2] @ [3, 2, 1].
    let x = f32s(&[2, 1, 1, 2], &[1.0, 2.0, 3.0, 4.0]);
    let y = f32s(&[3, 2, 1], &[1.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
    check(Op::MATMUL, &[x, y], &[f32s(&[2, 3, 1, 1], &[1.0, 2.0, 3.0, 3.0, 4.0, 7.0])]);
    check(Op::MATMUL, &[i64s(&[1, 2], &[i64::MAX, 1]), i64s(&[2, 1], &[2, 5])], &[i64s(&[1, 1], &[3])]);
    check(Op::MATMUL, &[f32s(&[2, 0], &[]), f32s(&[0, 1], &[])], &[f32s(&[2, 1], &[0.0, 0.0])]);
    check(Op::MATMUL, &[f32s(&[0, 2], &[]), f32s(&[2, 1], &[1.0, 1.0])], &[f32s(&[0, 1], &[])]);
    // 1 + 256 * 2^-8 in bf16 is 2 when the sum is wide.
    let mut row = vec![2f64.powi(-8); 257];
    row[0] = 1.0;
    let ones = t(DType::BF16, &[257, 1], &[1.0; 257]);
    check(Op::MATMUL, &[t(DType::BF16, &[1, 257], &row), ones], &[t(DType::BF16, &[1, 1], &[2.0])]);
    let nan = check_nan_product();
    assert!(nan.is_nan());
}

#[test]
fn a_sink_takes_a_part_of_the_weights() {
    let q = f32s(&[2, 1, 1], &[1.0, 1.0]);
    let k = f32s(&[2, 2, 1], &[0.0, 2f64.ln(), 0.0, 0.0]);
    let v = f32s(&[2, 2, 1], &[7.0, 14.0, 4.0, NAN]);
    let op = |bounds| Op::Attention {
        scale: FloatAttribute(1.0),
        cap: None,
        bounds,
        sink: true,
        log_sum_exp: false,
    };
    // Scores of 1 and 2 parts and a sink of 4, then of 1 part that is seen and one of 3.
    let sinks = f32s(&[2, 1, 1], &[4f64.ln(), 3f64.ln()]);
    let length = i64s(&[2, 1, 1], &[2, 1]);
    let bound =
        AttentionBound { operand: true, row: false, ..AttentionBound::relative_to_row(BoundSide::Below, 0) };
    let operands = [q.clone(), k.clone(), v.clone(), length, sinks];
    check_near(op(vec![bound.clone()]), &operands, &[f32s(&[2, 1, 1], &[5.0, 1.0])], 1e-5);
    // A row that sees no column is zero, and a sink of minus infinity has no effect.
    let operands = [q, k, v, i64s(&[2, 1, 1], &[0, 1]), f32s(&[2, 1, 1], &[-2.0, -INF])];
    check_near(op(vec![bound]), &operands, &[f32s(&[2, 1, 1], &[0.0, 4.0])], 1e-5);
}

#[test]
fn grouped_matmul() {
    let x = f32s(&[4, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, INF]);
    // The second of three groups is empty, and the last row is in none.
    let y = f32s(&[3, 2, 1], &[1.0, 1.0, NAN, NAN, 10.0, 1.0]);
    for dtype in [DType::I32, DType::I64] {
        let ends = t(dtype, &[3], &[2.0, 2.0, 3.0]);
        let expected = f32s(&[4, 1], &[3.0, 7.0, 56.0, 0.0]);
        check(Op::GroupedMatMul, &[x.clone(), y.clone(), ends], &[expected]);
    }
    let none = [f32s(&[0, 2], &[]), y.clone(), i64s(&[3], &[0, 0, 0])];
    check(Op::GroupedMatMul, &none, &[f32s(&[0, 1], &[])]);
    let no_groups = [x.clone(), f32s(&[0, 2, 1], &[]), i64s(&[0], &[])];
    check(Op::GroupedMatMul, &no_groups, &[f32s(&[4, 1], &[0.0; 4])]);
    let no_terms = [f32s(&[2, 0], &[]), f32s(&[1, 0, 1], &[]), i64s(&[1], &[2])];
    check(Op::GroupedMatMul, &no_terms, &[f32s(&[2, 1], &[0.0; 2])]);
    // Groups that divide K: the last term is in none.
    let (x2, y2) =
        (f32s(&[2, 4], &[1.0, 2.0, 3.0, NAN, 4.0, 5.0, 6.0, NAN]), f32s(&[4, 1], &[1.0, 10.0, 100.0, NAN]));
    let by_terms = [x2, y2, i64s(&[3], &[2, 2, 3])];
    check(Op::GroupedMatMul, &by_terms, &[f32s(&[3, 2, 1], &[21.0, 54.0, 0.0, 0.0, 300.0, 600.0])]);
    let nothing = [f32s(&[2, 0], &[]), f32s(&[0, 1], &[]), i64s(&[2], &[0, 0])];
    check(Op::GroupedMatMul, &nothing, &[f32s(&[2, 2, 1], &[0.0; 4])]);
    for (ends, message) in [
        ([2, 1, 4], "group 1 of the rows ends at 1: expected 2 to 4"),
        ([-1, 1, 4], "group 0 of the rows ends at -1: expected 0 to 4"),
        ([0, 5, 5], "group 1 of the rows ends at 5: expected 0 to 4"),
    ] {
        let operands = [x.clone(), y.clone(), i64s(&[3], &ends)];
        check_error(Op::GroupedMatMul, &operands, &[ty(DType::F32, &[4, 1])], message);
    }
}

/// Zero times infinity is not skipped.
fn check_nan_product() -> f64 {
    let x = [f32s(&[1, 1], &[0.0]), f32s(&[1, 1], &[INF])];
    apply(Op::MATMUL, &x, vec![ty(DType::F32, &[1, 1])]).unwrap()[0].get_f64(0)
}

#[test]
fn softmax() {
    let soft = |log| Op::Softmax { axis: 1, log };
    let x = f32s(&[2, 2], &[0.0, 0.0, 1000.0, 1000.0 - 3f64.ln()]);
    let y = f32s(&[2, 2], &[0.5, 0.5, 0.75, 0.25]);
    check_near(soft(false), &[x.clone()], &[y], 1e-5);
    check_near(soft(true), &[x], &[f32s(&[2, 2], &[-LN_2, -LN_2, 0.75f64.ln(), -2.0 * LN_2])], 5e-5);
    check(Op::Softmax { axis: 0, log: false }, &[f32s(&[2, 1], &[7.0, -INF])], &[f32s(&[2, 1], &[1.0, 0.0])]);
    check(soft(false), &[f32s(&[1, 2], &[-INF, -INF])], &[f32s(&[1, 2], &[NAN, NAN])]);
    check(soft(false), &[f32s(&[2, 0], &[])], &[f32s(&[2, 0], &[])]);
    // A third in bf16 and in f16, rounded once.
    for (dtype, third) in [(DType::BF16, 0.333_984_375), (DType::F16, 0.333_251_953_125)] {
        check(soft(false), &[t(dtype, &[1, 3], &[2.0; 3])], &[t(dtype, &[1, 3], &[third; 3])]);
    }
}

#[test]
fn rms_norm() {
    let norm = |axes, eps, round_first| Op::RmsNorm { axes, eps: FloatAttribute(eps), round_first };
    // mean(x²) of [3, 4] is 12.5; with eps 3.5 the divisor is 4.
    let x = f32s(&[1, 2], &[3.0, 4.0]);
    check(norm(1, 3.5, false), &[x.clone()], &[f32s(&[1, 2], &[0.75, 1.0])]);
    check(norm(1, 3.5, true), &[x.clone(), f32s(&[2], &[2.0, -1.0])], &[f32s(&[1, 2], &[1.5, -1.0])]);
    check(norm(2, 3.5, false), &[x], &[f32s(&[1, 2], &[0.75, 1.0])]);
    check(norm(1, 0.0, false), &[f32s(&[2, 0], &[])], &[f32s(&[2, 0], &[])]);
    // Normalised 1 and 1/3. A third is 0.333984375 in bf16, and the weight is one whose product with it
    // rounds to another bf16 than its third.
    let x = t(DType::BF16, &[1, 2], &[3.0, 1.0]);
    let weight = t(DType::BF16, &[2], &[1.0, 1.5 + 2.0 / 128.0]);
    let once = (1.0 / 3.0) * (1.5 + 2.0 / 128.0);
    let twice = 0.333_984_375 * (1.5 + 2.0 / 128.0);
    check(norm(1, 4.0, false), &[x.clone(), weight.clone()], &[t(DType::BF16, &[1, 2], &[1.0, once])]);
    check(norm(1, 4.0, true), &[x, weight], &[t(DType::BF16, &[1, 2], &[1.0, twice])]);
    assert_ne!(t(DType::BF16, &[1], &[once]), t(DType::BF16, &[1], &[twice]), "the case tells them apart");
}

#[test]
fn layer_norm() {
    let norm = |axes, eps| Op::LayerNorm { axes, eps: FloatAttribute(eps) };
    // Mean 3, variance 4.
    let x = f32s(&[2, 2], &[1.0, 5.0, 5.0, 1.0]);
    check(norm(1, 0.0), &[x.clone()], &[f32s(&[2, 2], &[-1.0, 1.0, 1.0, -1.0])]);
    check(norm(2, 12.0), &[x.clone()], &[f32s(&[2, 2], &[-0.5, 0.5, 0.5, -0.5])]);
    let (w, b) = (f32s(&[2], &[2.0, 3.0]), f32s(&[2], &[10.0, 20.0]));
    check(norm(1, 0.0), &[x.clone(), w.clone()], &[f32s(&[2, 2], &[-2.0, 3.0, 2.0, -3.0])]);
    check(norm(1, 0.0), &[x, w, b], &[f32s(&[2, 2], &[8.0, 23.0, 12.0, 17.0])]);
}

#[test]
fn attention() {
    let attention = |causal| Op::Attention {
        scale: FloatAttribute(1.0),
        cap: None,
        bounds: attention::causal_bounds_if(causal),
        sink: false,
        log_sum_exp: false,
    };
    let zeros = |n| f32s(&[1, n, 1], &vec![0.0; n]);
    // Equal scores: the mean of the visible values. Three queries on two keys.
    let v = f32s(&[1, 2, 1], &[2.0, 4.0]);
    let qkv = [zeros(3), zeros(2), v.clone()];
    check(attention(false), &qkv, &[f32s(&[1, 3, 1], &[3.0, 3.0, 3.0])]);
    check(attention(true), &qkv, &[f32s(&[1, 3, 1], &[2.0, 3.0, 3.0])]);
    // A mask, and with it the causal order. The second row sees nothing.
    let mask = bools(&[3, 2], &[0, 1, 0, 0, 1, 1]);
    let with = |mask| [zeros(3), zeros(2), v.clone(), mask];
    check(attention(false), &with(mask.clone()), &[f32s(&[1, 3, 1], &[4.0, 0.0, 3.0])]);
    check(attention(true), &with(mask), &[f32s(&[1, 3, 1], &[0.0, 0.0, 3.0])]);
    // Float masks broadcast; minus infinity hides, a row of it is zero.
    let mask = f32s(&[2], &[-INF, 0.0]);
    check(attention(false), &with(mask), &[f32s(&[1, 3, 1], &[4.0, 4.0, 4.0])]);
    let mask = f32s(&[3, 1], &[-INF, 0.0, 7.0]);
    check(attention(false), &with(mask), &[f32s(&[1, 3, 1], &[0.0, 3.0, 3.0])]);
    let mask = f32s(&[1, 1, 2], &[3f64.ln(), 0.0]);
    check_near(attention(false), &with(mask), &[f32s(&[1, 3, 1], &[2.5, 2.5, 2.5])], 1e-6);
    // No columns, and no rows.
    let nothing = [zeros(2), zeros(0), f32s(&[1, 0, 2], &[])];
    check(attention(false), &nothing, &[f32s(&[1, 2, 2], &[0.0; 4])]);
    check(attention(true), &[zeros(0), zeros(2), v], &[f32s(&[1, 0, 1], &[])]);
}

#[test]
fn attention_sees_the_columns_that_all_bounds_admit() {
    // Each value is its own bit, and all scores are equal: four times the mean tells the columns.
    let attend = |bounds: Vec<AttentionBound>, positions: &[Tensor]| {
        let op =
            Op::Attention { scale: FloatAttribute(1.0), cap: None, bounds, sink: false, log_sum_exp: false };
        let v = f32s(&[1, 6, 1], &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0]);
        let operands = [&[f32s(&[1, 4, 1], &[0.0; 4]), f32s(&[1, 6, 1], &[0.0; 6]), v], positions].concat();
        (op, operands)
    };
    let mean = |columns: &[i32]| match columns.len() {
        0 => 0.0,
        n => columns.iter().map(|&j| 2f64.powi(j)).sum::<f64>() / n as f64,
    };
    let rows = |rows: [&[i32]; 4]| [f32s(&[1, 4, 1], &rows.map(mean))];
    let of_row = AttentionBound::relative_to_row;
    let column = |side, add: i64| AttentionBound { row: false, ..of_row(side, add) };
    let chunk = |bound: AttentionBound, n| AttentionBound { chunk: Some(n), ..bound };
    let operand = |bound: AttentionBound| AttentionBound { operand: true, ..bound };
    let (below, from) = (BoundSide::Below, BoundSide::From);
    let window = vec![of_row(below, 1), of_row(from, -1)];
    let (op, x) = attend(window, &[]);
    check_near(op, &x, &rows([&[0], &[0, 1], &[1, 2], &[2, 3]]), 1e-6);
    // Rows from position 3 on in chunks of 2: 3, 4, 5, 6.
    let chunks = vec![of_row(below, 4), chunk(of_row(from, 3), 2)];
    let (op, x) = attend(chunks, &[]);
    check_near(op, &x, &rows([&[2, 3], &[4], &[4, 5], &[]]), 1e-6);
    let (op, x) = attend(vec![chunk(of_row(below, -1), 3)], &[]);
    check_near(op, &x, &rows([&[], &[0, 1, 2], &[0, 1, 2], &[0, 1, 2]]), 1e-6);
    let (op, x) = attend(vec![column(below, 4), column(from, -7), column(from, 2)], &[]);
    check_near(op, &x, &rows([&[2, 3]; 4]), 1e-6);
    // Operands in the order of their bounds; they broadcast, and may be far away.
    let positions = [i64s(&[4, 1], &[2, i64::MAX, 6, i64::MIN]), i64s(&[], &[1])];
    let (op, x) =
        attend(vec![operand(of_row(below, 0)), column(below, 6), operand(column(from, 0))], &positions);
    check_near(op, &x, &rows([&[1], &[1, 2, 3, 4, 5], &[1, 2, 3, 4, 5], &[]]), 1e-6);
}

#[test]
fn attention_caps_its_scores_before_the_mask() {
    // Scores of 0 and 5, capped at 1: the tanh of 5.
    let op = Op::Attention {
        scale: FloatAttribute(5.0),
        cap: Some(FloatAttribute(1.0)),
        bounds: vec![],
        sink: false,
        log_sum_exp: false,
    };
    let x = [f32s(&[1, 1, 1], &[1.0]), f32s(&[1, 2, 1], &[0.0, 1.0]), f32s(&[1, 2, 1], &[0.0, 1.0])];
    let weight = |bias: f64| 1.0 / (1.0 + (-5f64.tanh() - bias).exp());
    check_near(op.clone(), &x, &[f32s(&[1, 1, 1], &[weight(0.0)])], 1e-6);
    let masked = [&x[..], &[f32s(&[2], &[0.0, 3.0])]].concat();
    check_near(op, &masked, &[f32s(&[1, 1, 1], &[weight(3.0)])], 1e-6);
}

#[test]
fn attention_scores_and_grouped_heads() {
    // q·k = [2, 4], scaled by ln(3)/2: weights 1/4 and 3/4.
    let op = Op::Attention {
        scale: FloatAttribute(3f64.ln() / 2.0),
        cap: None,
        bounds: vec![],
        sink: false,
        log_sum_exp: false,
    };
    let q = f32s(&[1, 1, 2], &[1.0, 1.0]);
    let k = f32s(&[1, 2, 2], &[0.0, 2.0, 3.0, 1.0]);
    let v = f32s(&[1, 2, 1], &[4.0, 8.0]);
    check_near(op.clone(), &[q, k, v], &[f32s(&[1, 1, 1], &[7.0])], 1e-6);
    // Two batches, four heads of q on two of k and v, one key each: the heads of v, each twice.
    let q = f32s(&[2, 4, 1, 1], &[1.0; 8]);
    let k = f32s(&[2, 2, 1, 1], &[1.0; 4]);
    let v = f32s(&[2, 2, 1, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    let expected = [1.0, 2.0, 1.0, 2.0, 3.0, 4.0, 3.0, 4.0, 5.0, 6.0, 5.0, 6.0, 7.0, 8.0, 7.0, 8.0];
    check(op.clone(), &[q.clone(), k.clone(), v.clone()], &[f32s(&[2, 4, 1, 2], &expected)]);
    // A mask by batch and head.
    let mask = bools(&[2, 4, 1, 1], &[1, 0, 1, 1, 0, 1, 1, 1]);
    let mut masked = expected;
    [2, 3, 8, 9].iter().for_each(|&i| masked[i] = 0.0);
    check(op, &[q, k, v, mask], &[f32s(&[2, 4, 1, 2], &masked)]);
}

#[test]
fn take_and_index() {
    let x = f32s(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let ids = i64s(&[2, 2], &[0, 1, 1, 1]);
    let rows = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 4.0, 5.0, 6.0, 4.0, 5.0, 6.0];
    check(Op::Take { axis: 0 }, &[x.clone(), ids], &[f32s(&[2, 2, 3], &rows)]);
    check(Op::Take { axis: 1 }, &[x.clone(), i64s(&[], &[2])], &[f32s(&[2], &[3.0, 6.0])]);
    check(Op::Take { axis: 1 }, &[x.clone(), t(DType::U8, &[0], &[])], &[f32s(&[2, 0], &[])]);
    let column = ty(DType::F32, &[2, 1]);
    for (index, position) in [(3, 0), (-1, 0)] {
        let message = format!(
            "the index {index} at position {position} of the indices is outside axis 1, which has extent 3"
        );
        check_error(Op::Take { axis: 1 }, &[x.clone(), i64s(&[1], &[index])], &[column.clone()], &message);
    }
    // x[[0, 1], [[2], [0]]] broadcasts to [2, 2].
    let operands = [x.clone(), i64s(&[2], &[0, 1]), i64s(&[2, 1], &[2, 0])];
    check(Op::Index { axis: 0 }, &operands, &[f32s(&[2, 2], &[3.0, 6.0, 1.0, 4.0])]);
    let cube = i64s(&[2, 2, 2], &[1, 2, 3, 4, 5, 6, 7, 8]);
    let operands = [cube, i64s(&[3], &[0, 1, 1]), i64s(&[], &[1])];
    check(Op::Index { axis: 1 }, &operands, &[i64s(&[2, 3], &[2, 4, 4, 6, 8, 8])]);
    let beyond = [x, i64s(&[2], &[0, 2]), i64s(&[1], &[0])];
    let message = "the index 2 at position 1 of the indices is outside axis 0, which has extent 2";
    check_error(Op::Index { axis: 0 }, &beyond, &[ty(DType::F32, &[2])], message);
}

#[test]
fn gather_and_scatter_elements() {
    let x = f32s(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let index = i64s(&[1, 3], &[1, 0, 1]);
    check(Op::GatherElements { axis: 0 }, &[x.clone(), index.clone()], &[f32s(&[1, 3], &[4.0, 2.0, 6.0])]);
    let wide = i64s(&[3, 1], &[0, 0, 0]);
    let message = "axis 0: the extent of the index: expected at most 2, found 3";
    check_error(Op::GatherElements { axis: 1 }, &[x.clone(), wide], &[ty(DType::F32, &[3, 1])], message);
    let scatter = |axis, combine| Op::ScatterElements { axis, combine };
    let src = f32s(&[1, 3], &[10.0, 20.0, 30.0]);
    let operands = [x.clone(), index, src];
    check(scatter(0, None), &operands, &[f32s(&[2, 3], &[1.0, 20.0, 3.0, 10.0, 5.0, 30.0])]);
    // Twice to the same place.
    let index = i64s(&[2, 2], &[0, 0, 1, 2]);
    let src = f32s(&[2, 2], &[10.0, 20.0, 30.0, 40.0]);
    let operands = [x, index, src];
    for (combine, expected) in [
        (None, [20.0, 2.0, 3.0, 4.0, 30.0, 40.0]),
        (Some(ReductionKind::Sum), [31.0, 2.0, 3.0, 4.0, 35.0, 46.0]),
        (Some(ReductionKind::Prod), [200.0, 2.0, 3.0, 4.0, 150.0, 240.0]),
        (Some(ReductionKind::Max), [20.0, 2.0, 3.0, 4.0, 30.0, 40.0]),
        (Some(ReductionKind::Min), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        (Some(ReductionKind::Mean), [31.0 / 3.0, 2.0, 3.0, 4.0, 17.5, 23.0]),
    ] {
        check(scatter(1, combine), &operands, &[f32s(&[2, 3], &expected)]);
    }
    let ints = [i64s(&[1], &[i64::MAX]), i64s(&[2], &[0, 0]), i64s(&[2], &[1, 5])];
    check(scatter(0, Some(ReductionKind::Sum)), &ints, &[i64s(&[1], &[i64::MIN + 5])]);
    let flags = [bools(&[2], &[0, 1]), i64s(&[2], &[0, 1]), bools(&[2], &[1, 0])];
    check(scatter(0, Some(ReductionKind::Any)), &flags, &[bools(&[2], &[1, 1])]);
    check(scatter(0, Some(ReductionKind::All)), &flags, &[bools(&[2], &[0, 0])]);
}

#[test]
fn index_add_and_index_put() {
    let x = f32s(&[3, 2], &[0.0; 6]);
    let src = f32s(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let operands = [x.clone(), i64s(&[3], &[2, 0, 2]), src];
    check(Op::IndexAdd { axis: 0 }, &operands, &[f32s(&[3, 2], &[3.0, 4.0, 0.0, 0.0, 6.0, 8.0])]);
    let operands = [x.clone(), t(DType::I32, &[1], &[1.0]), f32s(&[3, 1], &[7.0, 8.0, 9.0])];
    check(Op::IndexAdd { axis: 1 }, &operands, &[f32s(&[3, 2], &[0.0, 7.0, 0.0, 8.0, 0.0, 9.0])]);
    let index_put = |axis, accumulate| Op::IndexPut { axis, accumulate };
    let (rows, columns) = (i64s(&[2], &[0, 0]), i64s(&[2], &[1, 1]));
    let operands = [x.clone(), f32s(&[2], &[5.0, 6.0]), rows, columns];
    check(index_put(0, false), &operands, &[f32s(&[3, 2], &[0.0, 6.0, 0.0, 0.0, 0.0, 0.0])]);
    check(index_put(0, true), &operands, &[f32s(&[3, 2], &[0.0, 11.0, 0.0, 0.0, 0.0, 0.0])]);
    // One source for two whole rows.
    let operands = [x.clone(), f32s(&[2], &[1.0, 2.0]), i64s(&[2], &[2, 0])];
    check(index_put(0, false), &operands, &[f32s(&[3, 2], &[1.0, 2.0, 0.0, 0.0, 1.0, 2.0])]);
    let operands = [x.clone(), f32s(&[], &[3.0]), i64s(&[1], &[1])];
    check(index_put(1, false), &operands, &[f32s(&[3, 2], &[0.0, 3.0, 0.0, 3.0, 0.0, 3.0])]);
    let operands = [x.clone(), f32s(&[2], &[1.0, 2.0]), i64s(&[0], &[])];
    check(index_put(0, true), &operands, &[x]);
    // Sums of a scatter are wide too: 2 + 8 * 2^-8 in bf16.
    let bf16 = |shape: &[usize], v: &[f64]| t(DType::BF16, shape, v);
    let operands = [bf16(&[1], &[2.0]), i64s(&[8], &[0; 8]), bf16(&[8], &[2f64.powi(-8); 8])];
    check(Op::IndexAdd { axis: 0 }, &operands, &[bf16(&[1], &[2.0 + 2f64.powi(-5)])]);
}

#[test]
fn sorting() {
    let sort = |axis, descending| Op::Sort { axis, descending };
    let x = f32s(&[6], &[3.0, NAN, 1.0, 3.0, -INF, INF]);
    let up = [f32s(&[6], &[-INF, 1.0, 3.0, 3.0, INF, NAN]), i64s(&[6], &[4, 2, 0, 3, 5, 1])];
    let down = [f32s(&[6], &[NAN, INF, 3.0, 3.0, 1.0, -INF]), i64s(&[6], &[1, 5, 0, 3, 2, 4])];
    check(sort(0, false), &[x.clone()], &up);
    check(sort(0, true), &[x.clone()], &down);
    let top = |largest| Op::TopK { axis: 0, largest };
    check(top(true), &[x.clone()], &[f32s(&[3], &[NAN, INF, 3.0]), i64s(&[3], &[1, 5, 0])]);
    check(top(false), &[x.clone()], &[f32s(&[2], &[-INF, 1.0]), i64s(&[2], &[4, 2])]);
    check(top(true), &[x.clone()], &[f32s(&[0], &[]), i64s(&[0], &[])]);
    let message = "axis 0: the number of elements taken: expected at most 6, found 7";
    check_error(top(true), &[x], &[ty(DType::F32, &[7]), ty(DType::I64, &[7])], message);
    let table = i64s(&[3, 2], &[5, 1, 4, 2, 6, 0]);
    let sorted = [i64s(&[3, 2], &[4, 0, 5, 1, 6, 2]), i64s(&[3, 2], &[1, 2, 0, 0, 2, 1])];
    check(sort(0, false), &[table.clone()], &sorted);
    check(Op::TopK { axis: 0, largest: true }, &[table], &[i64s(&[1, 2], &[6, 2]), i64s(&[1, 2], &[2, 1])]);
    check(sort(0, true), &[bools(&[3], &[0, 1, 0])], &[bools(&[3], &[1, 0, 0]), i64s(&[3], &[1, 0, 2])]);
}

#[test]
fn joining_and_padding() {
    let (a, b) = (i64s(&[2, 1], &[1, 2]), i64s(&[2, 2], &[3, 4, 5, 6]));
    let empty = i64s(&[2, 0], &[]);
    check(Op::Concat { axis: 1 }, &[a.clone(), empty, b.clone()], &[i64s(&[2, 3], &[1, 3, 4, 2, 5, 6])]);
    check(Op::Concat { axis: 0 }, &[a.clone(), a.clone()], &[i64s(&[4, 1], &[1, 2, 1, 2])]);
    let pad = |low: &[i64], value| Op::Pad { low: dims(low), value };
    let expected = i64s(&[3, 4], &[9, 9, 9, 9, 9, 3, 4, 9, 9, 5, 6, 9]);
    check(pad(&[1, 1], Scalar::Int(9)), &[b.clone()], &[expected]);
    // Cropped at the front, and at the end because the result is short.
    check(pad(&[-1, 0], Scalar::Int(0)), &[b.clone()], &[i64s(&[1, 1], &[5])]);
    check(pad(&[-3, 0], Scalar::Int(7)), &[b.clone()], &[i64s(&[2, 2], &[7; 4])]);
    check(pad(&[0, 5], Scalar::Int(7)), &[b], &[i64s(&[2, 1], &[7, 7])]);
    let value = Scalar::Float(FloatAttribute(-INF));
    check(pad(&[2], value), &[f32s(&[0], &[])], &[f32s(&[3], &[-INF; 3])]);
}

#[test]
fn views() {
    let x = i64s(&[2, 3], &[1, 2, 3, 4, 5, 6]);
    check(Op::Reshape, &[x.clone()], &[i64s(&[3, 1, 2], &[1, 2, 3, 4, 5, 6])]);
    check(Op::Copy, &[x.clone()], &[x.clone()]);
    check(Op::Permute { perm: vec![1, 0] }, &[x.clone()], &[i64s(&[3, 2], &[1, 4, 2, 5, 3, 6])]);
    let cube = i64s(&[1, 2, 3], &[1, 2, 3, 4, 5, 6]);
    check(Op::Permute { perm: vec![2, 0, 1] }, &[cube], &[i64s(&[3, 1, 2], &[1, 4, 2, 5, 3, 6])]);
    let slice = |axis, start: i64, step| Op::Slice { axis, start: Dim::from(start), step };
    check(slice(1, 0, 2), &[x.clone()], &[i64s(&[2, 2], &[1, 3, 4, 6])]);
    check(slice(0, 1, 1), &[x.clone()], &[i64s(&[1, 3], &[4, 5, 6])]);
    check(slice(1, 3, 1), &[x.clone()], &[i64s(&[2, 0], &[])]);
    let beyond = "the slice takes 2 elements from 1 in steps of 2 along axis 1, which has extent 3";
    check_error(slice(1, 1, 2), &[x.clone()], &[ty(DType::I64, &[2, 2])], beyond);
    let before = "the slice takes 1 elements from -1 in steps of 1 along axis 1, which has extent 3";
    check_error(slice(1, -1, 1), &[x], &[ty(DType::I64, &[2, 1])], before);
}
