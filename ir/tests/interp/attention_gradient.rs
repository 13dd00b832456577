//! The log-sum-exp of attention, and its gradients against differences of its results.

use crate::common::*;
use symmc_ir::attention::{AttentionBound, BoundSide, causal_bounds_if};
use symmc_ir::infer::infer_types;
use symmc_ir::types::FloatAttribute;
use symmc_ir::{DType, Op, Tensor, TensorType};
use symmc_support::random::SplitMix;

const SCALE: FloatAttribute = FloatAttribute(0.7);

fn attention(bounds: &[AttentionBound]) -> Op {
    Op::Attention { scale: SCALE, cap: None, bounds: bounds.to_vec(), sink: false, log_sum_exp: true }
}

#[test]
fn the_log_sum_exp_covers_the_visible_columns() {
    let op = |sink| Op::Attention {
        scale: FloatAttribute(2.0),
        cap: None,
        bounds: causal_bounds_if(true),
        sink,
        log_sum_exp: true,
    };
    let (q, k, v) = (
        t(DType::F32, &[1, 2, 1], &[1.0, 1.0]),
        t(DType::F32, &[1, 2, 1], &[0.0, 1.0]),
        t(DType::F32, &[1, 2, 1], &[1.0, 1.0]),
    );
    let ones = t(DType::F32, &[1, 2, 1], &[1.0, 1.0]);
    let log_sum = (1.0 + 2f64.exp()).ln();
    let operands = [q.clone(), k.clone(), v.clone()];
    check_near(op(false), &operands, &[ones.clone(), t(DType::F32, &[1, 2], &[0.0, log_sum])], 1e-6);
    // The first row sees no column. The sum includes a sink.
    let mask = t(DType::Bool, &[2, 2], &[0.0, 1.0, 1.0, 1.0]);
    let operands = [q, k, v, mask];
    let blind = t(DType::F32, &[1, 2, 1], &[0.0, 1.0]);
    let sums = t(DType::F32, &[1, 2], &[f64::NEG_INFINITY, log_sum]);
    check_near(op(false), &operands, &[blind, sums], 1e-6);
    let sunk = [&operands[..], &[t(DType::F32, &[], &[3.0])]].concat();
    let sums = [3.0, (1.0 + 2f64.exp() + 3f64.exp()).ln()];
    let share = (1.0 + 2f64.exp()) / sums[1].exp();
    let results = [t(DType::F32, &[1, 2, 1], &[0.0, share]), t(DType::F32, &[1, 2], &sums)];
    check_near(op(true), &sunk, &results, 1e-6);
}

/// The sum of the products of the results of an attention with these numbers.
fn loss(bounds: &[AttentionBound], operands: &[Tensor], weights: &[f64]) -> f64 {
    let out = run_one(attention(bounds), operands);
    out[0].to_f64().iter().zip(weights).map(|(y, w)| y * w).sum()
}

/// The derivatives of the loss by the elements of an operand.
fn derivatives(bounds: &[AttentionBound], operands: &[Tensor], which: usize, weights: &[f64]) -> Vec<f64> {
    let step = 1e-5;
    let elements = operands[which].to_f64();
    let moved = |i: usize, by: f64| {
        let mut elements = elements.clone();
        elements[i] += by;
        let mut operands = operands.to_vec();
        operands[which] = t(DType::F64, operands[which].shape(), &elements);
        loss(bounds, &operands, weights)
    };
    (0..elements.len()).map(|i| (moved(i, step) - moved(i, -step)) / (2.0 * step)).collect()
}

#[test]
fn gradients_are_derivatives() {
    let r = &mut SplitMix(3);
    let mut numbers = |shape: &[usize]| {
        let elements: Vec<f64> = (0..shape.iter().product()).map(|_| r.symmetric_unit()).collect();
        t(DType::F64, shape, &elements)
    };
    // Two sequences; four heads of queries on two of keys; three queries on five keys, of three elements with values of two.
    let qkv = [numbers(&[2, 4, 3, 3]), numbers(&[2, 2, 5, 3]), numbers(&[2, 2, 5, 2])];
    let bias = numbers(&[4, 3, 5]);
    let visible: Vec<f64> = (0..15).map(|i| f64::from(i % 4 != 1)).collect();
    let mask = t(DType::Bool, &[3, 5], &visible);
    let blind = t(DType::Bool, &[3, 1], &[1.0, 0.0, 1.0]);
    let lengths = t(DType::I64, &[2, 1, 1, 1], &[2.0, 4.0]);
    let window = vec![
        AttentionBound::relative_to_row(BoundSide::Below, 3),
        AttentionBound::relative_to_row(BoundSide::From, 1),
    ];
    let length = vec![AttentionBound {
        row: false,
        operand: true,
        ..AttentionBound::relative_to_row(BoundSide::Below, 1)
    }];
    let kinds = [
        (vec![], vec![]),
        (causal_bounds_if(true), vec![]),
        (window, vec![bias]),
        (causal_bounds_if(true), vec![mask]),
        (vec![], vec![blind]),
        (length, vec![lengths]),
    ];
    let weights = numbers(&[2, 4, 3, 2]);
    for (bounds, more) in kinds {
        let operands = [&qkv[..], &more].concat();
        let results = run_one(attention(&bounds), &operands);
        let operands_of_gradient = [std::slice::from_ref(&weights), &results[..], &operands].concat();
        let op = Op::AttentionGradient { scale: SCALE, bounds: bounds.clone() };
        let gradients = run_one(op, &operands_of_gradient);
        for (which, gradient) in gradients.iter().enumerate() {
            assert_eq!(gradient.shape(), operands[which].shape());
            let expected = derivatives(&bounds, &operands, which, &weights.to_f64());
            for (i, (found, expected)) in gradient.to_f64().into_iter().zip(expected).enumerate() {
                assert!(
                    (found - expected).abs() < 1e-8,
                    "{bounds:?}: gradient {which}, element {i}: found {found}, expected {expected}"
                );
            }
        }
    }
}

#[test]
fn permuted_gradients_are_the_same_elsewhere() {
    let r = &mut SplitMix(4);
    let mut numbers = |shape: &[usize]| {
        let elements: Vec<f64> = (0..shape.iter().product()).map(|_| r.symmetric_unit()).collect();
        t(DType::F64, shape, &elements)
    };
    let operands = [numbers(&[2, 3, 1]), numbers(&[1, 3, 1]), numbers(&[1, 3, 1])];
    let results = run_one(attention(&[]), &operands);
    let operands = [&[numbers(&[2, 3, 1])], &results[..], &operands].concat();
    let op = Op::AttentionGradient { scale: SCALE, bounds: vec![] };
    let plain = run_one(op.clone(), &operands);
    let stored = run_one(Op::Permuted { op: Box::new(op), perm: vec![1, 0, 2] }, &operands);
    for (plain, stored) in plain.iter().zip(&stored) {
        let [heads, rows] = [plain.shape()[0], plain.shape()[1]];
        assert_eq!(stored.shape(), [rows, heads, 1]);
        let (plain, stored) = (plain.to_f64(), stored.to_f64());
        let pairs = (0..heads).flat_map(|h| (0..rows).map(move |i| (h, i)));
        assert!(pairs.into_iter().all(|(h, i)| plain[h * rows + i] == stored[i * heads + h]));
    }
}

/// The results of an op that fixes their types.
fn run_one(op: Op, operands: &[Tensor]) -> Vec<Tensor> {
    let types: Vec<TensorType> = operands.iter().map(type_of).collect();
    let results = infer_types(&op, &types.iter().collect::<Vec<_>>(), None).expect("operands that fit");
    apply(op, operands, results.expect("types of results")).unwrap_or_else(|e| panic!("{e}"))
}
