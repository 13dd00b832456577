//! Element-wise ops and reductions of the interpreter, against results computed by hand.

#![allow(clippy::cloned_ref_to_slice_refs)] // `&[x.clone()]` reads as the list of operands that it is.

use std::f64::consts::PI;

use crate::common::*;
use symmc_ir::types::FloatAttribute;
use symmc_ir::{ArgOp, BinaryOp, DType, Op, ReductionKind, Scalar, UnaryOp};

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;
const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

#[test]
fn unary_on_floats() {
    use UnaryOp::*;
    let table: &[(UnaryOp, &[(f64, f64)])] = &[
        (Neg, &[(1.5, -1.5), (-INF, INF), (NAN, NAN)]),
        (Abs, &[(-2.0, 2.0), (-INF, INF)]),
        (Sign, &[(-3.0, -1.0), (0.0, 0.0), (0.5, 1.0), (NAN, 0.0)]),
        (Exp, &[(0.0, 1.0), (-INF, 0.0), (INF, INF)]),
        (Log, &[(1.0, 0.0), (0.0, -INF), (-1.0, NAN)]),
        (Sqrt, &[(4.0, 2.0), (-1.0, NAN)]),
        (Rsqrt, &[(4.0, 0.5), (0.0, INF)]),
        (Reciprocal, &[(4.0, 0.25), (-0.0, -INF)]),
        (Sin, &[(0.0, 0.0)]),
        (Cos, &[(0.0, 1.0)]),
        (Tanh, &[(0.0, 0.0), (INF, 1.0)]),
        (Erf, &[(0.0, 0.0), (-INF, -1.0)]),
        (Floor, &[(-1.5, -2.0), (1.5, 1.0)]),
        (Ceil, &[(-1.5, -1.0), (1.5, 2.0)]),
        (Round, &[(0.5, 0.0), (1.5, 2.0), (2.5, 2.0), (-0.75, -1.0)]),
        (Trunc, &[(-1.5, -1.0), (1.5, 1.0)]),
        (Relu, &[(-1.0, 0.0), (2.0, 2.0), (-0.0, -0.0), (0.0, 0.0), (NAN, NAN)]),
        (Sigmoid, &[(0.0, 0.5), (-INF, 0.0), (INF, 1.0)]),
        (Silu, &[(0.0, 0.0), (INF, INF)]),
        (Gelu, &[(0.0, 0.0), (INF, INF)]),
        (GeluTanh, &[(0.0, 0.0), (INF, INF)]),
    ];
    for dtype in FLOATS {
        for (op, pairs) in table {
            let (x, y): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
            let n = [x.len()];
            check(Op::Unary(*op), &[t(dtype, &n, &x)], &[t(dtype, &n, &y)]);
        }
    }
}

#[test]
fn transcendental_values() {
    // To six digits, from tables.
    let table = [
        (UnaryOp::Exp, 1.0, std::f64::consts::E),
        (UnaryOp::Log, 10.0, std::f64::consts::LN_10),
        (UnaryOp::Sin, 1.0, 0.841_471),
        (UnaryOp::Cos, 1.0, 0.540_302_3),
        (UnaryOp::Tanh, 0.5, 0.462_117_16),
        (UnaryOp::Erf, 0.5, 0.520_499_88),
        (UnaryOp::Sigmoid, 1.0, 0.731_058_6),
        (UnaryOp::Silu, 2.0, 1.761_594_2),
        (UnaryOp::Gelu, 1.0, 0.841_344_75),
        (UnaryOp::Gelu, -3.0, -0.004_049_695),
        (UnaryOp::GeluTanh, 1.0, 0.841_192),
    ];
    for (op, x, y) in table {
        check_near(Op::Unary(op), &[f32s(&[1], &[x])], &[f32s(&[1], &[y])], 2e-7 * y.abs().max(1.0));
    }
}

#[test]
fn unary_on_integers_and_predicates() {
    use UnaryOp::*;
    check(Op::Unary(Neg), &[i64s(&[2], &[3, i64::MIN])], &[i64s(&[2], &[-3, i64::MIN])]);
    check(Op::Unary(Neg), &[t(DType::U8, &[2], &[1.0, 0.0])], &[t(DType::U8, &[2], &[255.0, 0.0])]);
    check(Op::Unary(Abs), &[i64s(&[2], &[-3, 4])], &[i64s(&[2], &[3, 4])]);
    check(Op::Unary(Sign), &[i64s(&[3], &[-3, 0, 9])], &[i64s(&[3], &[-1, 0, 1])]);
    check(Op::Unary(Relu), &[i64s(&[2], &[-3, 3])], &[i64s(&[2], &[0, 3])]);
    check(Op::Unary(Not), &[i64s(&[2], &[0, 5])], &[i64s(&[2], &[-1, -6])]);
    check(Op::Unary(Not), &[t(DType::U8, &[1], &[1.0])], &[t(DType::U8, &[1], &[254.0])]);
    check(Op::Unary(Not), &[bools(&[2], &[0, 1])], &[bools(&[2], &[1, 0])]);
    let special = f32s(&[4], &[1.0, NAN, INF, -INF]);
    check(Op::Unary(IsNan), std::slice::from_ref(&special), &[bools(&[4], &[0, 1, 0, 0])]);
    check(Op::Unary(IsFinite), &[special], &[bools(&[4], &[1, 0, 0, 0])]);
}

#[test]
fn binary_on_floats() {
    use BinaryOp::*;
    let table: &[(BinaryOp, &[(f64, f64, f64)])] = &[
        (Add, &[(1.0, 2.0, 3.0), (INF, -INF, NAN)]),
        (Sub, &[(1.0, 2.0, -1.0)]),
        (Mul, &[(3.0, -2.0, -6.0), (0.0, INF, NAN)]),
        (Div, &[(1.0, 4.0, 0.25), (1.0, 0.0, INF), (0.0, 0.0, NAN)]),
        (FloorDiv, &[(-7.0, 2.0, -4.0), (7.0, 2.0, 3.0)]),
        (Rem, &[(-7.0, 2.0, 1.0), (7.0, -2.0, -1.0), (6.0, 3.0, 0.0)]),
        (Pow, &[(2.0, 10.0, 1024.0), (4.0, -0.5, 0.5), (-8.0, 0.5, NAN)]),
        (Atan2, &[(0.0, -0.0, PI), (-0.0, -1.0, -PI), (-0.0, 2.0, -0.0), (INF, INF, PI / 4.0)]),
        (Atan2, &[(-INF, -INF, -0.75 * PI), (1.0, INF, 0.0), (-1.0, 0.0, -PI / 2.0)]),
        (Atan2, &[(0.0, NAN, NAN), (NAN, 1.0, NAN), (3.0, 4.0, 0.643_501_108_793_284_4)]),
        (Max, &[(1.0, 2.0, 2.0), (NAN, 1.0, NAN), (1.0, NAN, NAN)]),
        (Min, &[(1.0, 2.0, 1.0), (NAN, 1.0, NAN), (1.0, NAN, NAN)]),
    ];
    for dtype in FLOATS {
        for (op, rows) in table {
            let n = [rows.len()];
            let column =
                |f: fn(&(f64, f64, f64)) -> f64| t(dtype, &n, &rows.iter().map(f).collect::<Vec<_>>());
            check(Op::Binary(*op), &[column(|r| r.0), column(|r| r.1)], &[column(|r| r.2)]);
        }
    }
}

#[test]
fn binary_on_integers_wraps() {
    use BinaryOp::*;
    let table: &[(BinaryOp, i64, i64, i64)] = &[
        (Add, i64::MAX, 1, i64::MIN),
        (Sub, 3, 5, -2),
        (Mul, i64::MAX, 2, -2),
        (FloorDiv, -7, 2, -4),
        (FloorDiv, i64::MIN, -1, i64::MIN),
        (Rem, -7, 2, 1),
        (Rem, 7, -2, -1),
        (Pow, 3, 4, 81),
        (Pow, 2, 64, 0),
        (Pow, 2, -1, 0),
        (Pow, -1, -3, -1),
        (Max, -1, 2, 2),
        (Min, -1, 2, -1),
        (And, 6, 3, 2),
        (Or, 6, 3, 7),
        (Xor, 6, 3, 5),
        (Shl, 3, 2, 12),
        (Shl, -1, 63, i64::MIN),
        (Shl, 1, 64, 0),
        (Shl, 1, -1, 0),
        (Shl, 1, i64::MIN, 0),
        (Shr, -7, 1, -4),
        (Shr, i64::MIN, 63, -1),
        (Shr, i64::MAX, 64, 0),
        (Shr, -5, 64, -1),
        (Shr, -5, -1, -1),
        (Shr, 5, i64::MAX, 0),
    ];
    for &(op, a, b, c) in table {
        check(Op::Binary(op), &[i64s(&[1], &[a]), i64s(&[1], &[b])], &[i64s(&[1], &[c])]);
    }
    let narrow = |op, dtype, a, b, c| {
        check(Op::Binary(op), &[t(dtype, &[1], &[a]), t(dtype, &[1], &[b])], &[t(dtype, &[1], &[c])]);
    };
    narrow(Add, DType::I32, 2_147_483_647.0, 1.0, -2_147_483_648.0);
    narrow(Add, DType::U8, 200.0, 100.0, 44.0);
    narrow(Shl, DType::I32, 5.0, 31.0, -2_147_483_648.0);
    narrow(Shl, DType::I32, 5.0, 32.0, 0.0);
    narrow(Shl, DType::U8, 255.0, 7.0, 128.0);
    narrow(Shr, DType::I32, -5.0, 32.0, -1.0);
    narrow(Shr, DType::I32, -2_147_483_648.0, 31.0, -1.0);
    narrow(Shr, DType::U8, 255.0, 8.0, 0.0);
    narrow(Shr, DType::U8, 255.0, 255.0, 0.0);
    let zero = [i64s(&[2], &[1, 1]), i64s(&[2], &[1, 0])];
    for op in [FloorDiv, Rem] {
        let results = [ty(DType::I64, &[2])];
        check_error(Op::Binary(op), &zero, &results, "integer division by zero at element 1");
    }
}

#[test]
fn comparisons_and_logic() {
    use BinaryOp::*;
    let (a, b) = (f32s(&[4], &[1.0, 2.0, 3.0, NAN]), f32s(&[4], &[2.0, 2.0, 2.0, NAN]));
    for (op, expected) in [
        (Eq, [0, 1, 0, 0]),
        (Ne, [1, 0, 1, 1]),
        (Lt, [1, 0, 0, 0]),
        (Le, [1, 1, 0, 0]),
        (Gt, [0, 0, 1, 0]),
        (Ge, [0, 1, 1, 0]),
    ] {
        check(Op::Binary(op), &[a.clone(), b.clone()], &[bools(&[4], &expected)]);
    }
    let (p, q) = (bools(&[4], &[0, 0, 1, 1]), bools(&[4], &[0, 1, 0, 1]));
    for (op, expected) in [(And, [0, 0, 0, 1]), (Or, [0, 1, 1, 1]), (Xor, [0, 1, 1, 0]), (Max, [0, 1, 1, 1])]
    {
        check(Op::Binary(op), &[p.clone(), q.clone()], &[bools(&[4], &expected)]);
    }
}

#[test]
fn broadcasting() {
    let add = Op::Binary(BinaryOp::Add);
    let column = f32s(&[2, 1], &[10.0, 20.0]);
    let row = f32s(&[3], &[1.0, 2.0, 3.0]);
    check(
        add.clone(),
        &[column.clone(), row.clone()],
        &[f32s(&[2, 3], &[11.0, 12.0, 13.0, 21.0, 22.0, 23.0])],
    );
    check(add.clone(), &[f32s(&[], &[1.0]), row.clone()], &[f32s(&[3], &[2.0, 3.0, 4.0])]);
    check(add.clone(), &[f32s(&[0, 1], &[]), row.clone()], &[f32s(&[0, 3], &[])]);
    check(add, &[f32s(&[], &[1.0]), f32s(&[], &[2.0])], &[f32s(&[], &[3.0])]);
    let cond = bools(&[2, 1], &[1, 0]);
    check(
        Op::Select,
        &[cond, row.clone(), f32s(&[], &[0.0])],
        &[f32s(&[2, 3], &[1.0, 2.0, 3.0, 0.0, 0.0, 0.0])],
    );
    check(Op::Expand, &[column], &[f32s(&[2, 2, 2], &[10.0, 10.0, 20.0, 20.0, 10.0, 10.0, 20.0, 20.0])]);
    check(Op::Expand, &[row], &[f32s(&[0, 3], &[])]);
}

#[test]
fn scalars() {
    let scalar = |op, scalar, scalar_left| Op::BinaryScalar { op, scalar, scalar_left };
    let float = |x| Scalar::Float(FloatAttribute(x));
    let x = f32s(&[2], &[2.0, 4.0]);
    check(scalar(BinaryOp::Sub, float(1.0), true), std::slice::from_ref(&x), &[f32s(&[2], &[-1.0, -3.0])]);
    check(scalar(BinaryOp::Sub, Scalar::Int(1), false), &[x], &[f32s(&[2], &[1.0, 3.0])]);
    // The scalar of an arithmetic op on bf16 is an f32: 3 * 0.1 is 0.30000001 there, 0.30078125 in bf16.
    let bf16 = |x: f64| t(DType::BF16, &[1], &[x]);
    check(scalar(BinaryOp::Mul, float(0.1), false), &[bf16(3.0)], &[bf16(0.300_781_25)]);
    check(scalar(BinaryOp::Mul, float(0.3333), false), &[bf16(3.0)], &[bf16(1.0)]);
    // A comparison's scalar is rounded to the operand's dtype.
    check(scalar(BinaryOp::Eq, float(0.1), false), &[bf16(0.1)], &[bools(&[1], &[1])]);
    check(
        scalar(BinaryOp::FloorDiv, Scalar::Int(2), false),
        &[i64s(&[2], &[-3, 3])],
        &[i64s(&[2], &[-2, 1])],
    );
    check(scalar(BinaryOp::And, Scalar::Bool(true), false), &[bools(&[2], &[0, 1])], &[bools(&[2], &[0, 1])]);
}

#[test]
fn casts() {
    let cast = |x, y| check(Op::Cast, &[x], &[y]);
    cast(f32s(&[4], &[-1.9, 1.9, 0.0, -0.0]), i64s(&[4], &[-1, 1, 0, 0]));
    cast(f32s(&[3], &[NAN, 0.5, -0.0]), bools(&[3], &[1, 1, 0]));
    cast(i64s(&[2], &[300, -1]), t(DType::U8, &[2], &[44.0, 255.0]));
    cast(bools(&[2], &[0, 1]), t(DType::BF16, &[2], &[0.0, 1.0]));
    cast(
        f32s(&[3], &[1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, 1e39]),
        t(DType::BF16, &[3], &[1.0, 1.015_625, INF]),
    );
    cast(f32s(&[2], &[65519.0, 65520.0]), t(DType::F16, &[2], &[65504.0, INF]));
    // 2^60 + 2^36 + 1: through f64 it would become a tie and round down.
    cast(i64s(&[1], &[(1 << 60) + (1 << 36) + 1]), f32s(&[1], &[2f64.powi(60) + 2f64.powi(37)]));
    // An f64 just above a tie between two f16.
    let above = 1.0 + 2f64.powi(-11) + 2f64.powi(-50);
    cast(t(DType::F64, &[1], &[above]), t(DType::F16, &[1], &[1.0 + 2f64.powi(-10)]));
    cast(t(DType::F64, &[1], &[above]), t(DType::BF16, &[1], &[1.0]));
    let negative_zero = apply(Op::Cast, &[f32s(&[1], &[-0.0])], vec![ty(DType::F16, &[1])]).unwrap();
    assert!(negative_zero[0].get_f64(0).is_sign_negative());
}

#[test]
fn constants() {
    let full = |scalar, expected| check(Op::Full(scalar), &[], &[expected]);
    full(Scalar::Float(FloatAttribute(-INF)), t(DType::F16, &[2], &[-INF, -INF]));
    full(Scalar::Float(FloatAttribute(0.5)), bools(&[1], &[1]));
    full(Scalar::Int(7), i64s(&[0, 2], &[]));
    full(Scalar::Bool(true), f32s(&[], &[1.0]));
    let iota = Op::Iota { start: 5, step: -2 };
    check(iota.clone(), &[], &[i64s(&[4], &[5, 3, 1, -1])]);
    check(iota, &[], &[f32s(&[2], &[5.0, 3.0])]);
}

#[test]
fn reductions() {
    let reduce = |op, axes: &[usize], keep| Op::Reduce { op, axes: axes.to_vec(), keep };
    let x = f32s(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let operand = std::slice::from_ref(&x);
    check(reduce(ReductionKind::Sum, &[1], false), operand, &[f32s(&[2], &[6.0, 15.0])]);
    check(reduce(ReductionKind::Sum, &[0], true), operand, &[f32s(&[1, 3], &[5.0, 7.0, 9.0])]);
    check(reduce(ReductionKind::Mean, &[0, 1], false), operand, &[f32s(&[], &[3.5])]);
    check(reduce(ReductionKind::Prod, &[1], true), operand, &[f32s(&[2, 1], &[6.0, 120.0])]);
    check(reduce(ReductionKind::Max, &[0], false), operand, &[f32s(&[3], &[4.0, 5.0, 6.0])]);
    check(reduce(ReductionKind::Min, &[1], false), operand, &[f32s(&[2], &[1.0, 4.0])]);
    check(reduce(ReductionKind::Sum, &[], false), operand, &[x.clone()]);
    check(reduce(ReductionKind::Max, &[0], false), &[f32s(&[2], &[NAN, 1.0])], &[f32s(&[], &[NAN])]);
    check(reduce(ReductionKind::Min, &[0], false), &[f32s(&[2], &[1.0, NAN])], &[f32s(&[], &[NAN])]);
    check(reduce(ReductionKind::Any, &[0], false), &[f32s(&[2], &[0.0, NAN])], &[bools(&[], &[1])]);
    check(reduce(ReductionKind::All, &[1], false), &[i64s(&[2, 2], &[1, 2, 1, 0])], &[bools(&[2], &[1, 0])]);
    let middle = i64s(&[2, 2, 2], &[1, 2, 3, 4, 5, 6, 7, 8]);
    check(reduce(ReductionKind::Sum, &[1], false), &[middle.clone()], &[i64s(&[2, 2], &[4, 6, 12, 14])]);
    check(reduce(ReductionKind::Sum, &[0, 2], false), &[middle], &[i64s(&[2], &[14, 22])]);
}

#[test]
fn reductions_of_integers_and_rounding() {
    let sum = Op::Reduce { op: ReductionKind::Sum, axes: vec![0], keep: false };
    check(sum.clone(), &[i64s(&[2], &[i64::MAX, 1])], &[i64s(&[], &[i64::MIN])]);
    check(sum.clone(), &[t(DType::U8, &[3], &[200.0, 100.0, 1.0])], &[i64s(&[], &[301])]);
    check(sum.clone(), &[t(DType::I32, &[2], &[2_147_483_647.0, 1.0])], &[i64s(&[], &[1 << 31])]);
    check(sum.clone(), &[bools(&[3], &[1, 0, 1])], &[i64s(&[], &[2])]);
    // 1 + 512 * 2^-8 in bf16: adding one by one would stay at 1.
    let mut elements = vec![2f64.powi(-8); 513];
    elements[0] = 1.0;
    check(sum, &[t(DType::BF16, &[513], &elements)], &[t(DType::BF16, &[], &[3.0])]);
    let max = Op::Reduce { op: ReductionKind::Max, axes: vec![0], keep: false };
    check(max, &[t(DType::U8, &[2], &[3.0, 200.0])], &[t(DType::U8, &[], &[200.0])]);
}

#[test]
fn reductions_of_nothing() {
    let reduce = |op| Op::Reduce { op, axes: vec![1], keep: false };
    let empty = f32s(&[2, 0], &[]);
    let operand = std::slice::from_ref(&empty);
    check(reduce(ReductionKind::Sum), operand, &[f32s(&[2], &[0.0, 0.0])]);
    check(reduce(ReductionKind::Prod), operand, &[f32s(&[2], &[1.0, 1.0])]);
    check(reduce(ReductionKind::Mean), operand, &[f32s(&[2], &[NAN, NAN])]);
    check(reduce(ReductionKind::Any), operand, &[bools(&[2], &[0, 0])]);
    check(reduce(ReductionKind::All), operand, &[bools(&[2], &[1, 1])]);
    check_error(reduce(ReductionKind::Max), operand, &[ty(DType::F32, &[2])], "max of no elements");
    check(reduce(ReductionKind::Max), &[f32s(&[0, 0], &[])], &[f32s(&[0], &[])]);
    let arg = Op::ArgReduce { op: ArgOp::Min, axis: 1, keep: false };
    check_error(arg, operand, &[ty(DType::I64, &[2])], "argmin of no elements");
}

#[test]
fn arg_reductions_and_cumulative_sums() {
    let arg = |op, axis, keep| Op::ArgReduce { op, axis, keep };
    let x = f32s(&[2, 3], &[1.0, 3.0, 3.0, 5.0, NAN, NAN]);
    check(arg(ArgOp::Max, 1, false), &[x.clone()], &[i64s(&[2], &[1, 1])]);
    check(arg(ArgOp::Min, 1, true), &[x.clone()], &[i64s(&[2, 1], &[0, 1])]);
    check(arg(ArgOp::Max, 0, false), &[x], &[i64s(&[3], &[1, 1, 1])]);
    check(arg(ArgOp::Min, 0, false), &[i64s(&[3], &[2, -1, -1])], &[i64s(&[], &[1])]);
    let x = i64s(&[2, 3], &[1, 2, 3, 4, 5, i64::MAX]);
    check(Op::CumSum { axis: 0 }, &[x.clone()], &[i64s(&[2, 3], &[1, 2, 3, 5, 7, i64::MIN + 2])]);
    check(Op::CumSum { axis: 1 }, &[bools(&[1, 3], &[1, 0, 1])], &[i64s(&[1, 3], &[1, 1, 2])]);
    check(Op::CumSum { axis: 0 }, &[f32s(&[3], &[0.5, -1.0, INF])], &[f32s(&[3], &[0.5, -0.5, INF])]);
    check(Op::CumSum { axis: 0 }, &[f32s(&[0], &[])], &[f32s(&[0], &[])]);
    // The cumulative sum is wide: 2 + 2^-8 vanishes in bf16, eight of them do not.
    let mut elements = [2f64.powi(-8); 9];
    elements[0] = 2.0;
    let sums = apply(Op::CumSum { axis: 0 }, &[t(DType::BF16, &[9], &elements)], vec![ty(DType::BF16, &[9])]);
    assert_eq!(sums.unwrap()[0].get_f64(8), 2.0 + 2f64.powi(-5));
}
