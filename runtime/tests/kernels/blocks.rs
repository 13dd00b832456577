//! Kernels against the interpreter at extents around those of blocks and vectors, with special numbers, where
//! operands and results are row-major, column-major or in random layouts.

use symmc_cases::{OpDraft, agree};
use symmc_ir::{ArgOp, BinaryOp, DType, FloatAttribute, Op, ReductionKind, Scalar, Tensor, UnaryOp};
use symmc_support::random::SplitMix;

use crate::support::{PlacedTensor, call};

const SHAPES: [&[usize]; 14] = [
    &[0],
    &[1],
    &[7],
    &[2047],
    &[2049],
    &[8200],
    &[5, 0],
    &[1, 33],
    &[31, 33],
    &[64, 40],
    &[3, 2050],
    &[2050, 3],
    &[7, 9, 17],
    &[2, 3, 1, 70],
];

/// Numbers of many magnitudes; if `special`, some are infinite, NaN, zeros of both signs or subnormal.
fn numbers(dtype: DType, shape: &[usize], special: bool, random: &mut SplitMix) -> Tensor {
    let elements: Vec<f64> = (0..shape.iter().product::<usize>())
        .map(|_| match random.below(if special { 24 } else { 16 }) {
            16 => f64::INFINITY,
            17 => f64::NEG_INFINITY,
            18 => f64::NAN,
            19 | 20 => 0.0,
            21 => -0.0,
            22 => 1e-40,
            23 => -3e7,
            kind => (random.below(2001) as f64 - 1000.0) / [1e3, 1e2, 1e4, 70.0][kind % 4],
        })
        .collect();
    Tensor::from_f64(dtype, shape, &elements).expect("as many elements as the shape says")
}

fn placed(tensor: &Tensor, layout: usize, random: &mut SplitMix) -> PlacedTensor {
    match layout {
        0 => PlacedTensor::dense(tensor),
        1 => PlacedTensor::column_major(tensor),
        _ => PlacedTensor::scattered(tensor, random),
    }
}

/// Runs the op with operands and results in several combinations of layouts.
fn check(op: &Op, operands: &[Tensor], random: &mut SplitMix) {
    let draft = OpDraft::new(op.clone(), operands.to_vec());
    let Some(expected) = draft.expected() else { panic!("{op:?} is not defined") };
    for (layout, result_layout) in [(0, 0), (1, 0), (0, 1), (2, 2)] {
        // Only the first operand changes its layout, so the layouts differ.
        let first = operands.iter().take(1).map(|x| placed(x, layout, random));
        let first: Vec<PlacedTensor> = first.collect();
        let operands: Vec<PlacedTensor> =
            first.into_iter().chain(operands.iter().skip(1).map(PlacedTensor::dense)).collect();
        let mut results: Vec<PlacedTensor> = draft
            .types()
            .iter()
            .map(|(dtype, shape)| {
                placed(&Tensor::zeros(*dtype, shape.clone()).expect("small"), result_layout, random)
            })
            .collect();
        call(op, &operands, &mut results).unwrap_or_else(|e| panic!("{op:?}: {e}"));
        for (found, expected) in results.iter().zip(&expected) {
            let agreed = agree(&found.tensor(), expected, 1.0);
            let shape = &operands[0].shape;
            agreed
                .unwrap_or_else(|e| panic!("{op:?} on {shape:?} in layouts {layout}, {result_layout}: {e}"));
        }
    }
}

#[test]
fn elementwise_functions_at_all_extents() {
    let random = &mut SplitMix(1);
    for shape in SHAPES {
        for dtype in [DType::F32, DType::BF16, DType::F64] {
            let x = numbers(dtype, shape, true, random);
            for &op in UnaryOp::ALL.iter().filter(|op| op.supports_dtype(dtype)) {
                check(&Op::Unary(op), std::slice::from_ref(&x), random);
            }
        }
    }
}

#[test]
fn binary_functions_of_broadcast_operands() {
    use BinaryOp::{Add, Lt, Max, Min, Mul, Sub};
    let random = &mut SplitMix(2);
    for shape in SHAPES {
        let x = numbers(DType::F32, shape, true, random);
        let row = numbers(DType::F32, &shape[shape.len() - 1..], true, random);
        let mut column_shape = shape.to_vec();
        column_shape[shape.len() - 1] = 1;
        let column = numbers(DType::F32, &column_shape, true, random);
        for op in [Add, Sub, Mul, Max, Min, Lt] {
            for y in [&x, &row, &column] {
                check(&Op::Binary(op), &[x.clone(), y.clone()], random);
            }
            let scalar = Scalar::Float(FloatAttribute(0.5));
            for scalar_left in [false, true] {
                check(&Op::BinaryScalar { op, scalar, scalar_left }, std::slice::from_ref(&x), random);
            }
        }
        let conditions: Vec<i64> =
            (0..x.shape().iter().product::<usize>()).map(|i| (i % 3) as i64 & 1).collect();
        let condition = Tensor::from_i64(DType::Bool, shape, &conditions).expect("as many as the shape says");
        check(&Op::Select, &[condition, x.clone(), row], random);
        check(&Op::Copy, &[x], random);
    }
}

#[test]
fn reductions_and_norms_at_all_extents() {
    let random = &mut SplitMix(3);
    for shape in SHAPES.iter().filter(|shape| !shape.contains(&0)) {
        let last = shape.len() - 1;
        for special in [false, true] {
            let x = numbers(DType::F32, shape, special, random);
            for axes in [vec![last], vec![0], (0..shape.len()).collect()] {
                for op in ReductionKind::ALL.iter().copied().filter(|op| *op != ReductionKind::Prod) {
                    check(
                        &Op::Reduce { op, axes: axes.clone(), keep: false },
                        std::slice::from_ref(&x),
                        random,
                    );
                }
            }
            for op in [ArgOp::Max, ArgOp::Min] {
                check(&Op::ArgReduce { op, axis: last, keep: false }, std::slice::from_ref(&x), random);
            }
        }
        let x = numbers(DType::F32, shape, false, random);
        for log in [false, true] {
            check(&Op::Softmax { axis: last, log }, std::slice::from_ref(&x), random);
        }
        let weight = numbers(DType::F32, &shape[last..], false, random);
        let eps = FloatAttribute(1e-5);
        check(&Op::LayerNorm { axes: 1, eps }, &[x.clone(), weight.clone(), weight.clone()], random);
        check(&Op::RmsNorm { axes: 1, eps, round_first: false }, &[x, weight], random);
    }
}

#[test]
fn selections_are_stable_and_order_nan_last() {
    let random = &mut SplitMix(4);
    for (n, k) in [(1, 1), (7, 7), (31, 3), (32, 1), (33, 5), (500, 64), (500, 65), (1000, 63), (300, 299)] {
        for dtype in [DType::F32, DType::BF16, DType::F64, DType::I64] {
            // Few different numbers, so many are equal.
            let elements: Vec<f64> = (0..3 * n)
                .map(|_| match random.below(12) {
                    0 if dtype.is_float() => f64::NAN,
                    1 if dtype.is_float() => f64::INFINITY,
                    2 => -0.0,
                    3 => 0.0,
                    _ => random.below(9) as f64 - 4.0,
                })
                .collect();
            let x = match dtype {
                DType::I64 => {
                    Tensor::from_i64(dtype, [3, n], &elements.iter().map(|x| *x as i64).collect::<Vec<_>>())
                }
                _ => Tensor::from_f64(dtype, [3, n], &elements),
            };
            let x = x.expect("as many elements as the shape says");
            for up in [false, true] {
                check_selection(&Op::TopK { axis: 1, largest: up }, &x, k, random);
                check_selection(&Op::Sort { axis: 1, descending: up }, &x, n, random);
            }
        }
    }
}

/// Compares a selection of `k` of each row with a stable sort by hand.
fn check_selection(op: &Op, x: &Tensor, k: usize, random: &mut SplitMix) {
    let descending = matches!(op, Op::TopK { largest: true, .. } | Op::Sort { descending: true, .. });
    let n = x.shape()[1];
    let elements = x.to_f64();
    let mut expected = Vec::new();
    for row in elements.chunks(n) {
        let mut order: Vec<usize> = (0..n).collect();
        let compare = |a: f64, b: f64| a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()));
        order.sort_by(|&i, &j| if descending { compare(row[j], row[i]) } else { compare(row[i], row[j]) });
        expected.extend(order[..k].iter().map(|&i| i as i64));
    }
    let operands = [PlacedTensor::scattered(x, random)];
    let mut results =
        vec![PlacedTensor::room(x.dtype(), &[3, k], random), PlacedTensor::room(DType::I64, &[3, k], random)];
    call(op, &operands, &mut results).expect("a selection");
    assert_eq!(results[1].tensor().to_i64(), expected, "{op:?}, {k} of {n} {}", x.dtype());
    let values: Vec<f64> =
        expected.iter().enumerate().map(|(i, &at)| elements[i / k * n + at as usize]).collect();
    let is_same = |(a, b): (&f64, &f64)| a == b || a.is_nan() && b.is_nan();
    assert!(results[0].tensor().to_f64().iter().zip(&values).all(is_same), "{op:?}");
}
