//! Kernels against values computed by hand, with attention to corner cases of their definitions.

use std::f64::consts::PI;

use symmc_cases::agree;
use symmc_ir::attention::causal_bounds_if;
use symmc_ir::{
    ArgOp, AttentionBound, BinaryOp, BoundSide, DType, Dim, FloatAttribute, Op, ReductionKind, Scalar,
    Tensor, UnaryOp,
};
use symmc_runtime::kernels::KernelError;
use symmc_support::random::SplitMix;

use crate::support::{PlacedTensor, floats, ints, run};

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

fn run_single(op: &Op, operands: &[Tensor], dtype: DType, shape: &[usize]) -> Tensor {
    let mut results = run(op, operands, &[(dtype, shape)]).expect("the kernel accepts its operands");
    results.remove(0)
}

fn assert_floats(found: &Tensor, expected: &[f64]) {
    let expected = floats(found.dtype(), found.shape(), expected);
    agree(found, &expected, 0.0).unwrap_or_else(|e| panic!("{e}"));
}

fn f32s(elements: &[f64]) -> Tensor {
    floats(DType::F32, &[elements.len()], elements)
}

fn i64s(elements: &[i64]) -> Tensor {
    ints(DType::I64, &[elements.len()], elements)
}

#[test]
fn unary_functions() {
    let x = [-2.5, -0.5, 0.0, 0.5, 2.5];
    let f = |op| run_single(&Op::Unary(op), &[f32s(&x)], DType::F32, &[5]);
    assert_floats(&f(UnaryOp::Abs), &[2.5, 0.5, 0.0, 0.5, 2.5]);
    assert_floats(&f(UnaryOp::Sign), &[-1.0, -1.0, 0.0, 1.0, 1.0]);
    assert_floats(&f(UnaryOp::Round), &[-2.0, 0.0, 0.0, 0.0, 2.0]);
    assert_floats(&f(UnaryOp::Trunc), &[-2.0, 0.0, 0.0, 0.0, 2.0]);
    assert_floats(&f(UnaryOp::Floor), &[-3.0, -1.0, 0.0, 0.0, 2.0]);
    assert_floats(&f(UnaryOp::Relu), &[0.0, 0.0, 0.0, 0.5, 2.5]);
    assert_floats(&f(UnaryOp::Erf), &[-0.999593048, -0.5204998778, 0.0, 0.5204998778, 0.999593048]);
    assert_floats(&f(UnaryOp::Sigmoid), &[0.0758581800, 0.3775406688, 0.5, 0.6224593312, 0.9241418200]);
    assert_floats(&f(UnaryOp::Silu), &[-0.1896454500, -0.1887703344, 0.0, 0.3112296656, 2.3103545499]);
    assert_floats(&f(UnaryOp::Gelu), &[-0.0155241566, -0.1542687694, 0.0, 0.3457312306, 2.4844758434]);
    assert_floats(&f(UnaryOp::GeluTanh), &[-0.0150842655, -0.1542859972, 0.0, 0.3457140028, 2.4849157345]);
    let bools = |op, x: &[f64]| run_single(&Op::Unary(op), &[f32s(x)], DType::Bool, &[x.len()]).to_i64();
    assert_eq!(bools(UnaryOp::IsNan, &[NAN, 1.0, INF]), [1, 0, 0]);
    assert_eq!(bools(UnaryOp::IsFinite, &[NAN, 1.0, -INF]), [0, 1, 0]);
}

#[test]
fn unary_functions_of_integers() {
    let f = |op, dtype, x: &[i64]| {
        run_single(&Op::Unary(op), &[ints(dtype, &[x.len()], x)], dtype, &[x.len()]).to_i64()
    };
    assert_eq!(f(UnaryOp::Not, DType::Bool, &[0, 1]), [1, 0]);
    assert_eq!(f(UnaryOp::Not, DType::U8, &[0, 0xf0]), [0xff, 0x0f]);
    assert_eq!(f(UnaryOp::Not, DType::I64, &[0, -1, 5]), [-1, 0, -6]);
    assert_eq!(f(UnaryOp::Abs, DType::I32, &[-7, i64::from(i32::MIN)]), [7, i64::from(i32::MIN)]);
    assert_eq!(f(UnaryOp::Neg, DType::U8, &[1, 0]), [255, 0]);
    let refused = run(&Op::Unary(UnaryOp::Exp), &[i64s(&[1])], &[(DType::I64, &[1])]);
    assert_eq!(refused, Err(KernelError::Undefined { op: "exp".into(), dtype: DType::I64 }));
}

#[test]
fn binary_functions() {
    let f =
        |op, x: &[f64], y: &[f64]| run_single(&Op::Binary(op), &[f32s(x), f32s(y)], DType::F32, &[x.len()]);
    assert_floats(
        &f(BinaryOp::Rem, &[7.0, -7.0, 7.0, -7.0], &[3.0, 3.0, -3.0, -3.0]),
        &[1.0, 2.0, -2.0, -1.0],
    );
    assert_floats(&f(BinaryOp::FloorDiv, &[7.0, -7.0, 1.0], &[2.0, 2.0, 0.0]), &[3.0, -4.0, INF]);
    assert_floats(&f(BinaryOp::Max, &[1.0, NAN, 2.0], &[3.0, 0.0, NAN]), &[3.0, NAN, NAN]);
    assert_floats(&f(BinaryOp::Pow, &[2.0, 3.0, 4.0], &[10.0, 2.0, 0.5]), &[1024.0, 9.0, 2.0]);
    let angles = f(BinaryOp::Atan2, &[0.0, -0.0, -0.0, INF, 3.0, NAN], &[-0.0, -1.0, 2.0, -INF, 4.0, 1.0]);
    assert_floats(&angles, &[PI, -PI, -0.0, 0.75 * PI, 0.6435011, NAN]);
    assert!(angles.to_f64()[2].is_sign_negative());
    let g = |op, x: &[i64], y: &[i64]| {
        run_single(&Op::Binary(op), &[i64s(x), i64s(y)], DType::I64, &[x.len()]).to_i64()
    };
    assert_eq!(g(BinaryOp::FloorDiv, &[7, -7, i64::MIN], &[2, 2, -1]), [3, -4, i64::MIN]);
    assert_eq!(g(BinaryOp::Rem, &[7, -7, 7], &[3, 3, -3]), [1, 2, -2]);
    assert_eq!(g(BinaryOp::Pow, &[2, -1, 5, 3], &[10, -3, -1, 0]), [1024, -1, 0, 1]);
    assert_eq!(g(BinaryOp::Add, &[i64::MAX], &[1]), [i64::MIN]);
    let counts = [0, 1, 63, 64, -1, i64::MIN, i64::MAX];
    assert_eq!(g(BinaryOp::Shl, &[-5; 7], &counts), [-5, -10, i64::MIN, 0, 0, 0, 0]);
    assert_eq!(g(BinaryOp::Shr, &[-5; 7], &counts), [-5, -3, -1, -1, -1, -1, -1]);
    assert_eq!(g(BinaryOp::Shr, &[5; 7], &counts), [5, 2, 0, 0, 0, 0, 0]);
    let zero = run(&Op::Binary(BinaryOp::Rem), &[i64s(&[1]), i64s(&[0])], &[(DType::I64, &[1])]);
    assert_eq!(zero, Err(KernelError::ZeroDivisor));
}

#[test]
fn operands_broadcast() {
    let x = floats(DType::F32, &[2, 1, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let y = floats(DType::F32, &[2, 1], &[10.0, 20.0]);
    let sum = run_single(&Op::Binary(BinaryOp::Add), &[x, y], DType::F32, &[2, 2, 3]);
    assert_floats(&sum, &[11.0, 12.0, 13.0, 21.0, 22.0, 23.0, 14.0, 15.0, 16.0, 24.0, 25.0, 26.0]);
    let misfit =
        run(&Op::Binary(BinaryOp::Add), &[f32s(&[1.0, 2.0]), f32s(&[1.0; 3])], &[(DType::F32, &[3])]);
    assert!(matches!(misfit, Err(KernelError::Shape { .. })), "{misfit:?}");
}

#[test]
fn scalars_stand_on_either_side() {
    let op = |scalar_left| Op::BinaryScalar { op: BinaryOp::Sub, scalar: Scalar::Int(1), scalar_left };
    assert_floats(&run_single(&op(true), &[f32s(&[3.0])], DType::F32, &[1]), &[-2.0]);
    assert_floats(&run_single(&op(false), &[f32s(&[3.0])], DType::F32, &[1]), &[2.0]);
}

#[test]
fn casts() {
    let cast = |x: Tensor, dtype| run_single(&Op::Cast, std::slice::from_ref(&x), dtype, x.shape());
    assert_eq!(cast(f32s(&[-2.9, 2.9, 300.0]), DType::U8).to_i64(), [254, 2, 44]);
    assert_eq!(cast(f32s(&[0.25, 0.0, NAN]), DType::Bool).to_i64(), [1, 0, 1]);
    assert_floats(&cast(i64s(&[3, -4]), DType::BF16), &[3.0, -4.0]);
    let half = 1.0 + 2f64.powi(-8);
    assert_eq!(cast(f32s(&[half, half + 2f64.powi(-20)]), DType::BF16).to_f64(), [1.0, 1.0 + 2f64.powi(-7)]);
}

#[test]
fn matmul_broadcasts_leading_axes() {
    let x = floats(DType::F32, &[2, 1, 2], &[1.0, 2.0, 3.0, 4.0]);
    let y = floats(DType::F32, &[2, 2], &[1.0, 10.0, 100.0, 1000.0]);
    assert_floats(
        &run_single(&Op::MATMUL, &[x.clone(), y], DType::F32, &[2, 1, 2]),
        &[201.0, 2010.0, 403.0, 4030.0],
    );
    let empty = run_single(
        &Op::MATMUL,
        &[floats(DType::F32, &[2, 0], &[]), floats(DType::F32, &[0, 3], &[])],
        DType::F32,
        &[2, 3],
    );
    assert_floats(&empty, &[0.0; 6]);
    let ints = run_single(
        &Op::MATMUL,
        &[ints(DType::U8, &[1, 2], &[200, 3]), ints(DType::U8, &[2, 1], &[2, 1])],
        DType::U8,
        &[1, 1],
    );
    assert_eq!(ints.to_i64(), [(403 % 256)]);
}

#[test]
fn large_half_products_are_rounded_once() {
    // More numbers than are converted at once, in rows and in columns; sums of 1 and -1 are exact in f32.
    let (m, k, n) = (70, 9000, 80);
    let sign = |i: usize, j: usize| if (i * 7 + j * 3) % 5 < 2 { -1.0 } else { 1.0 };
    let grid = |rows: usize, columns: usize| -> Vec<f64> {
        (0..rows * columns).map(|i| sign(i / columns, i % columns)).collect()
    };
    let (x, y) = (grid(m, k), grid(k, n));
    let product = |i: usize| (0..k).map(|t| x[i / n * k + t] * y[t * n + i % n]).sum();
    let expected = floats(DType::BF16, &[m, n], &(0..m * n).map(product).collect::<Vec<f64>>());
    let operands = [floats(DType::BF16, &[m, k], &x), floats(DType::BF16, &[k, n], &y)];
    assert_eq!(run_single(&Op::MATMUL, &operands, DType::BF16, &[m, n]), expected);
}

#[test]
fn reductions() {
    let x = floats(DType::F32, &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let f = |op, axes: &[usize], shape: &[usize]| {
        run_single(
            &Op::Reduce { op, axes: axes.to_vec(), keep: false },
            std::slice::from_ref(&x),
            DType::F32,
            shape,
        )
    };
    assert_floats(&f(ReductionKind::Sum, &[0], &[3]), &[5.0, 7.0, 9.0]);
    assert_floats(&f(ReductionKind::Mean, &[1], &[2]), &[2.0, 5.0]);
    assert_floats(&f(ReductionKind::Prod, &[0, 1], &[]), &[720.0]);
    assert_floats(&f(ReductionKind::Max, &[], &[2, 3]), &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let any = Op::Reduce { op: ReductionKind::Any, axes: vec![0], keep: true };
    assert_eq!(run_single(&any, &[i64s(&[0, 2])], DType::Bool, &[1]).to_i64(), [1]);
    let nothing =
        |op| run(&Op::Reduce { op, axes: vec![0], keep: false }, &[f32s(&[])], &[(DType::F32, &[])]);
    assert_floats(&nothing(ReductionKind::Sum).expect("defined")[0], &[0.0]);
    assert_eq!(nothing(ReductionKind::Max), Err(KernelError::Empty { op: "max".into() }));
    let large = floats(DType::F32, &[100_000], &vec![0.1; 100_000]);
    let sum = run_single(
        &Op::Reduce { op: ReductionKind::Sum, axes: vec![0], keep: false },
        &[large],
        DType::F32,
        &[],
    );
    assert!((sum.get_f64(0) - 10_000.0).abs() < 1e-2, "{}", sum.get_f64(0));
}

#[test]
fn arg_reductions_and_cumulative_sums() {
    let arg = |op, x: &[f64]| {
        run_single(&Op::ArgReduce { op, axis: 0, keep: false }, &[f32s(x)], DType::I64, &[]).to_i64()[0]
    };
    assert_eq!(arg(ArgOp::Max, &[1.0, 3.0, 3.0]), 1);
    assert_eq!(arg(ArgOp::Min, &[2.0, 1.0, 1.0]), 1);
    assert_eq!(arg(ArgOp::Min, &[2.0, NAN, 1.0, NAN]), 1);
    let x = ints(DType::Bool, &[2, 2], &[1, 1, 0, 1]);
    assert_eq!(run_single(&Op::CumSum { axis: 0 }, &[x], DType::I64, &[2, 2]).to_i64(), [1, 1, 1, 2]);
}

#[test]
fn softmax_and_norms() {
    let x = [1000.0, 1001.0, -INF];
    let p = 1.0 / (1.0 + 1f64.exp());
    assert_floats(
        &run_single(&Op::Softmax { axis: 0, log: false }, &[f32s(&x)], DType::F32, &[3]),
        &[p, 1.0 - p, 0.0],
    );
    assert_floats(
        &run_single(&Op::Softmax { axis: 0, log: true }, &[f32s(&x)], DType::F32, &[3]),
        &[p.ln(), (1.0 - p).ln(), -INF],
    );
    let rms = Op::RmsNorm { axes: 1, eps: FloatAttribute(0.0), round_first: false };
    let y = run_single(&rms, &[f32s(&[3.0, 4.0]), f32s(&[1.0, 2.0])], DType::F32, &[2]);
    assert_floats(&y, &[3.0 / 12.5f64.sqrt(), 8.0 / 12.5f64.sqrt()]);
    let layer = Op::LayerNorm { axes: 1, eps: FloatAttribute(0.0) };
    let y =
        run_single(&layer, &[f32s(&[1.0, 3.0]), f32s(&[2.0, 2.0]), f32s(&[10.0, 20.0])], DType::F32, &[2]);
    assert_floats(&y, &[8.0, 22.0]);
}

#[test]
fn rms_norm_rounds_first_where_asked() {
    let x = floats(DType::BF16, &[3], &[1.0, 1.0078125, 0.5]);
    let w = floats(DType::BF16, &[3], &[1.0078125, 3.015625, 1.0]);
    let norm = |round_first| {
        let op = Op::RmsNorm { axes: 1, eps: FloatAttribute(1e-6), round_first };
        run_single(&op, &[x.clone(), w.clone()], DType::BF16, &[3]).to_f64()
    };
    let scale = 1.0 / ((1.0 + 1.0078125f64.powi(2) + 0.25) / 3.0 + 1e-6).sqrt();
    let bf16 = |x: f64| floats(DType::BF16, &[1], &[x]).get_f64(0);
    let expected = |first: bool| -> Vec<f64> {
        let pairs = x.to_f64().into_iter().zip(w.to_f64());
        pairs.map(|(x, w)| bf16(if first { bf16(x * scale) * w } else { x * scale * w })).collect()
    };
    assert_eq!(norm(true), expected(true));
    assert_eq!(norm(false), expected(false));
    assert_ne!(expected(true), expected(false));
}

#[test]
fn attention_rows_that_see_nothing_are_zero() {
    let op = |causal| Op::Attention {
        scale: FloatAttribute(1.0),
        cap: None,
        bounds: causal_bounds_if(causal),
        sink: false,
        log_sum_exp: false,
    };
    let q = floats(DType::F32, &[2, 2, 1], &[0.0, 1.0, 0.0, 1.0]);
    let k = floats(DType::F32, &[1, 2, 1], &[1.0, 2.0]);
    let v = floats(DType::F32, &[1, 2, 1], &[10.0, 20.0]);
    let mask = ints(DType::Bool, &[2, 1], &[0, 1]);
    let masked = run_single(&op(false), &[q.clone(), k.clone(), v.clone(), mask], DType::F32, &[2, 2, 1]);
    let e = 1f64.exp();
    let second = (10.0 + 20.0 * e) / (1.0 + e);
    assert_floats(&masked, &[0.0, second, 0.0, second]);
    assert_floats(&run_single(&op(true), &[q, k, v], DType::F32, &[2, 2, 1]), &[10.0, second, 10.0, second]);
}

#[test]
fn attention_passes_over_blocks_that_no_row_sees() {
    // Positions that the kernel would read are NaN wherever the window of 3 leaves nothing to see.
    let (l, s, window) = (1, 2000, 3);
    let is_visible = |j: usize| (700..700 + window).contains(&j);
    let k = floats(DType::F32, &[1, s, 1], &vec![0.0; s]);
    let v: Vec<f64> = (0..s).map(|j| if is_visible(j) { j as f64 } else { f64::NAN }).collect();
    let bound = |side, add: i64, operand| AttentionBound {
        side,
        row: true,
        add: Dim::from(add),
        chunk: None,
        operand,
    };
    let bounds = vec![bound(BoundSide::Below, window as i64, true), bound(BoundSide::From, 700, false)];
    let op = Op::Attention { scale: FloatAttribute(1.0), cap: None, bounds, sink: false, log_sum_exp: false };
    let operands = [floats(DType::F32, &[1, l, 1], &[1.0]), k, floats(DType::F32, &[1, s, 1], &v)];
    let start = ints(DType::I32, &[1], &[700]);
    let out = run_single(&op, &[&operands[..], &[start]].concat(), DType::F32, &[1, l, 1]);
    assert_floats(&out, &[701.0]);
}

#[test]
fn indices_stay_in_range() {
    let x = floats(DType::F32, &[3, 2], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let take = Op::Take { axis: 0 };
    assert_floats(
        &run_single(&take, &[x.clone(), i64s(&[2, 0])], DType::F32, &[2, 2]),
        &[4.0, 5.0, 0.0, 1.0],
    );
    for bad in [3, -1, i64::MIN, i64::MAX] {
        let refused = run(&take, &[x.clone(), i64s(&[bad])], &[(DType::F32, &[1, 2])]);
        assert_eq!(refused, Err(KernelError::Index { index: bad, axis: 0, extent: 3 }));
    }
    let pairs = Op::Index { axis: 0 };
    let indices = [ints(DType::I64, &[2, 1], &[0, 2]), ints(DType::I32, &[2], &[1, 0])];
    let picked =
        run_single(&pairs, &[x.clone(), indices[0].clone(), indices[1].clone()], DType::F32, &[2, 2]);
    assert_floats(&picked, &[1.0, 0.0, 5.0, 4.0]);
    let gather = Op::GatherElements { axis: 1 };
    let picked = run_single(&gather, &[x, ints(DType::I64, &[2, 1], &[1, 0])], DType::F32, &[2, 1]);
    assert_floats(&picked, &[1.0, 2.0]);
}

#[test]
fn scatters() {
    let x = f32s(&[1.0, 2.0, 3.0]);
    let scatter = |combine, index: &[i64], src: &[f64]| {
        run_single(
            &Op::ScatterElements { axis: 0, combine },
            &[x.clone(), i64s(index), f32s(src)],
            DType::F32,
            &[3],
        )
    };
    assert_floats(&scatter(None, &[0, 0], &[8.0, 9.0]), &[9.0, 2.0, 3.0]);
    assert_floats(&scatter(Some(ReductionKind::Sum), &[0, 0], &[8.0, 9.0]), &[18.0, 2.0, 3.0]);
    assert_floats(&scatter(Some(ReductionKind::Mean), &[2, 2], &[6.0, 0.0]), &[1.0, 2.0, 3.0]);
    assert_floats(&scatter(Some(ReductionKind::Max), &[1], &[-5.0]), &[1.0, 2.0, 3.0]);
    let add = Op::IndexAdd { axis: 0 };
    let y = floats(DType::BF16, &[2, 1], &[256.0, 0.0]);
    let ones = floats(DType::BF16, &[4, 1], &[1.0; 4]);
    // 257 is not representable in bf16: the sum must be rounded once.
    assert_floats(&run_single(&add, &[y, i64s(&[0, 0, 0, 0]), ones], DType::BF16, &[2, 1]), &[260.0, 0.0]);
    let index_put = |accumulate| {
        let op = Op::IndexPut { axis: 0, accumulate };
        run_single(&op, &[x.clone(), floats(DType::F32, &[1], &[5.0]), i64s(&[1, 1])], DType::F32, &[3])
    };
    assert_floats(&index_put(false), &[1.0, 5.0, 3.0]);
    assert_floats(&index_put(true), &[1.0, 12.0, 3.0]);
}

#[test]
fn sorting_is_stable_and_puts_nan_above() {
    let x = f32s(&[2.0, NAN, 1.0, 2.0]);
    let sort = |op: &Op, k: usize| {
        let r = run(op, std::slice::from_ref(&x), &[(DType::F32, &[k]), (DType::I64, &[k])]).expect("sorts");
        (r[0].clone(), r[1].to_i64())
    };
    let (values, positions) = sort(&Op::Sort { axis: 0, descending: false }, 4);
    assert_floats(&values, &[1.0, 2.0, 2.0, NAN]);
    assert_eq!(positions, [2, 0, 3, 1]);
    assert_eq!(sort(&Op::Sort { axis: 0, descending: true }, 4).1, [1, 0, 3, 2]);
    assert_eq!(sort(&Op::TopK { axis: 0, largest: true }, 2).1, [1, 0]);
    assert_eq!(sort(&Op::TopK { axis: 0, largest: false }, 3).1, [2, 0, 3]);
}

#[test]
fn movement() {
    let x = floats(DType::BF16, &[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let y = floats(DType::BF16, &[2, 1], &[5.0, 6.0]);
    let joined = run_single(&Op::Concat { axis: 1 }, &[x.clone(), y], DType::BF16, &[2, 3]);
    assert_floats(&joined, &[1.0, 2.0, 5.0, 3.0, 4.0, 6.0]);
    let pad = Op::Pad { low: vec![Dim::from(-1), Dim::from(1)], value: Scalar::Int(9) };
    assert_floats(
        &run_single(&pad, std::slice::from_ref(&x), DType::BF16, &[2, 4]),
        &[9.0, 3.0, 4.0, 9.0, 9.0, 9.0, 9.0, 9.0],
    );
    assert_floats(&run_single(&Op::Reshape, &[x], DType::BF16, &[4]), &[1.0, 2.0, 3.0, 4.0]);
    assert_eq!(run_single(&Op::Iota { start: 3, step: -2 }, &[], DType::I32, &[3]).to_i64(), [3, 1, -1]);
    assert_floats(
        &run_single(&Op::Full(Scalar::Float(FloatAttribute(0.5))), &[], DType::F16, &[2]),
        &[0.5, 0.5],
    );
    assert_eq!(
        run_single(&Op::Full(Scalar::Float(FloatAttribute(0.5))), &[], DType::Bool, &[1]).to_i64(),
        [1]
    );
}

#[test]
fn elementwise_ops_run_in_place_in_any_layout() {
    for seed in 0..20 {
        let mut random = SplitMix(seed);
        let shape = [1 + random.below(40), 1 + random.below(40)];
        let x: Vec<f64> = (0..shape[0] * shape[1]).map(|i| i as f64).collect();
        let mut placed = PlacedTensor::scattered(&floats(DType::BF16, &shape, &x), &mut random);
        placed.in_place(&Op::Unary(UnaryOp::Neg)).expect("defined");
        let expected: Vec<f64> = x.iter().map(|x| -x).collect();
        assert_eq!(placed.tensor(), floats(DType::BF16, &shape, &expected));
        placed.in_place(&Op::Copy).expect("defined");
        assert_eq!(placed.tensor(), floats(DType::BF16, &shape, &expected));
    }
}

#[test]
fn ops_without_kernels_are_refused_by_name() {
    let refused = run(&Op::Expand, &[f32s(&[1.0])], &[(DType::F32, &[2])]);
    assert_eq!(refused, Err(KernelError::NoKernel { op: "expand".into() }));
    let opaque = Op::Opaque { name: "aten.foo".into(), attributes: String::new() };
    assert!(matches!(run(&opaque, &[], &[(DType::F32, &[1])]), Err(KernelError::NoKernel { .. })));
    let outcome = run(&Op::Binary(BinaryOp::Add), &[f32s(&[1.0])], &[(DType::F32, &[1])]);
    assert!(matches!(outcome, Err(KernelError::Arity { .. })), "{outcome:?}");
}
