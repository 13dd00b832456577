//! Every op on the values at the edges of its dtypes: zeros of both signs, infinities, NaN, the least and the largest
//! numbers, subnormal ones, and numbers whose squares overflow. The expected results are the interpreter's.

use symmc_ir::attention::causal_bounds_if;
use symmc_ir::{ArgOp, BinaryOp, DType, Dim, FloatAttribute, Op, ReductionKind, Scalar, Tensor, UnaryOp};
use symmc_runtime::kernels::KernelError;

use crate::case::OpCase;
use crate::layout::PlacedTensor;
use crate::ops::{FLOAT_DTYPES, OpDraft};
use crate::random::of;

/// The cases of every op.
pub fn special() -> Vec<OpCase> {
    let mut drafts = Vec::new();
    for &dtype in DType::ALL {
        elementwise(dtype, &mut drafts);
        reductions(dtype, &mut drafts);
        indexing(dtype, &mut drafts);
        movement(dtype, &mut drafts);
    }
    for dtype in FLOAT_DTYPES {
        rows(dtype, &mut drafts);
        products(dtype, &mut drafts);
        attention(dtype, &mut drafts);
        rotary(dtype, &mut drafts);
    }
    drafts.into_iter().filter(OpDraft::fits).map(case).collect()
}

fn case(draft: OpDraft) -> OpCase {
    let dense = |t: &Tensor| PlacedTensor::dense(t.clone());
    // What the interpreter refuses here is a division of integers by zero.
    let expected = draft.expected().ok_or(KernelError::ZeroDivisor);
    OpCase {
        name: format!("special {:?} {:?}", draft.op, draft.operands.first().map(Tensor::dtype)),
        expected: expected.map(|results| results.iter().map(dense).collect()),
        operands: draft.operands.iter().map(dense).collect(),
        op: draft.op,
        scale: None,
    }
}

/// The largest number and the least normal one of a float dtype.
fn range(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::F8E4M3 => (448.0, 2f64.powi(-6)),
        DType::F8E5M2 => (57344.0, 2f64.powi(-14)),
        DType::F8E8M0 => (2f64.powi(127), 2f64.powi(-127)),
        DType::F16 => (65504.0, 2f64.powi(-14)),
        DType::BF16 => ((2.0 - 2f64.powi(-7)) * 2f64.powi(127), 2f64.powi(-126)),
        DType::F32 => (f64::from(f32::MAX), 2f64.powi(-126)),
        _ => (f64::MAX, f64::MIN_POSITIVE),
    }
}

/// The values of a dtype that behave otherwise than their neighbours.
fn floats(dtype: DType) -> Vec<f64> {
    let (max, min) = range(dtype);
    let smallest = dtype.facts().precision.expect("a float").least;
    let mut out = vec![f64::NAN];
    let large = match dtype {
        DType::F8E4M3 => 30.0,
        DType::F16 | DType::F8E5M2 => 3e4,
        _ => 1e20,
    };
    for x in [
        0.0,
        1.0,
        2.0,
        0.5,
        2.5,
        3.0,
        100.0,
        large,
        1.0 / large,
        max,
        max / 2.0,
        min,
        smallest,
        3.0 * smallest,
    ] {
        out.extend([x, -x]);
    }
    out.extend([f64::INFINITY, f64::NEG_INFINITY]);
    out
}

fn integers(dtype: DType) -> Vec<i64> {
    let Some((low, high)) = dtype.integer_bounds() else { return vec![0, 1] };
    [low, low + 1, -7, -2, -1, 0, 1, 2, 3, 7, 63, 64, 100, high - 1, high]
        .into_iter()
        .filter(|x| (low..=high).contains(x))
        .collect()
}

/// Elements of a dtype as a tensor of this shape.
fn tensor(dtype: DType, shape: &[usize], elements: &ElementValues) -> Tensor {
    of(match elements {
        ElementValues::Floats(v) => Tensor::from_f64(dtype, shape, v),
        ElementValues::Ints(v) => Tensor::from_i64(dtype, shape, v),
    })
}

#[derive(Clone)]
enum ElementValues {
    Floats(Vec<f64>),
    Ints(Vec<i64>),
}

impl ElementValues {
    fn of(dtype: DType) -> ElementValues {
        match dtype.is_float() {
            true => ElementValues::Floats(floats(dtype)),
            false => ElementValues::Ints(integers(dtype)),
        }
    }

    fn len(&self) -> usize {
        match self {
            ElementValues::Floats(v) => v.len(),
            ElementValues::Ints(v) => v.len(),
        }
    }

    /// The elements at these positions, and ones where there is none.
    fn at(&self, positions: &[Option<usize>]) -> ElementValues {
        match self {
            ElementValues::Floats(v) => {
                ElementValues::Floats(positions.iter().map(|p| p.map_or(1.0, |p| v[p])).collect())
            }
            ElementValues::Ints(v) => {
                ElementValues::Ints(positions.iter().map(|p| p.map_or(1, |p| v[p])).collect())
            }
        }
    }

    fn without_zero(&self) -> ElementValues {
        match self {
            ElementValues::Floats(v) => ElementValues::Floats(v.clone()),
            ElementValues::Ints(v) => ElementValues::Ints(v.iter().copied().filter(|&x| x != 0).collect()),
        }
    }
}

/// All values along one axis.
fn line(dtype: DType) -> Tensor {
    let values = ElementValues::of(dtype);
    tensor(dtype, &[values.len()], &values)
}

/// Rows of all pairs of values, and rows of ones with one other value in several places.
fn in_rows(dtype: DType) -> [Tensor; 2] {
    let values = ElementValues::of(dtype);
    let n = values.len();
    let pairs: Vec<Option<usize>> = (0..n * n).flat_map(|i| [Some(i / n), Some(i % n)]).collect();
    let places = [0, 8, 18];
    let among = |v: usize, place: usize| (0..19).map(move |i| (i == place).then_some(v));
    let long: Vec<Option<usize>> =
        (0..n).flat_map(|v| places.into_iter().flat_map(move |place| among(v, place))).collect();
    [
        tensor(dtype, &[n * n, 2], &values.at(&pairs)),
        tensor(dtype, &[n * places.len(), 19], &values.at(&long)),
    ]
}

/// The first two axes exchanged.
fn transposed(x: &Tensor) -> Tensor {
    let [rows, columns] = [x.shape()[0], x.shape()[1]];
    let size = x.dtype().size();
    let element = |i: usize| {
        let start = (i % rows) * columns + i / rows;
        x.data()[start * size..(start + 1) * size].to_vec()
    };
    of(Tensor::new(x.dtype(), [columns, rows], (0..rows * columns).flat_map(element).collect()))
}

fn elementwise(dtype: DType, out: &mut Vec<OpDraft>) {
    let x = line(dtype);
    let n = x.numel();
    let values = ElementValues::of(dtype);
    out.extend(UnaryOp::ALL.iter().map(|&op| OpDraft::new(Op::Unary(op), vec![x.clone()])));
    for &op in BinaryOp::ALL {
        let column = tensor(dtype, &[n, 1], &values);
        out.push(OpDraft::new(Op::Binary(op), vec![column.clone(), x.clone()]));
        let divisors = values.without_zero();
        let divisors = tensor(dtype, &[divisors.len()], &divisors);
        out.push(OpDraft::new(Op::Binary(op), vec![column, divisors]));
        for scalar in scalars(dtype) {
            for scalar_left in [false, true] {
                out.push(OpDraft::new(Op::BinaryScalar { op, scalar, scalar_left }, vec![x.clone()]));
            }
        }
    }
    let condition = of(Tensor::from_i64(DType::Bool, [2, 1], &[0, 1]));
    out.push(OpDraft::new(Op::Select, vec![condition, x.clone(), x.clone()]));
    for &to in DType::ALL {
        out.push(OpDraft::new(Op::Cast, vec![x.clone()]).giving(to, &[n]));
        out.push(OpDraft::new(Op::Bitcast, vec![x.clone()]).giving(to, &[n]));
    }
    for scalar in scalars(dtype) {
        out.push(OpDraft::new(Op::Full(scalar), vec![]).giving(dtype, &[3]));
    }
    if dtype != DType::Bool {
        let op = Op::Iota { start: i64::MAX - 1, step: 1 };
        out.push(OpDraft::new(op, vec![]).giving(dtype, &[3]));
        let op = Op::Iota { start: 100, step: i64::MIN };
        out.push(OpDraft::new(op, vec![]).giving(dtype, &[3]));
    }
}

fn scalars(dtype: DType) -> Vec<Scalar> {
    match dtype {
        DType::Bool => vec![Scalar::Bool(false), Scalar::Bool(true)],
        d if d.is_float() => floats(d).into_iter().map(|x| Scalar::Float(FloatAttribute(x))).collect(),
        d => integers(d).into_iter().map(Scalar::Int).collect(),
    }
}

fn reductions(dtype: DType, out: &mut Vec<OpDraft>) {
    for x in in_rows(dtype) {
        for (axis, x) in [(1, x.clone()), (0, transposed(&x))] {
            for &op in ReductionKind::ALL {
                let op = Op::Reduce { op, axes: vec![axis], keep: false };
                out.push(OpDraft::new(op, vec![x.clone()]));
            }
            for &op in ArgOp::ALL {
                out.push(OpDraft::new(Op::ArgReduce { op, axis, keep: true }, vec![x.clone()]));
            }
            out.push(OpDraft::new(Op::CumSum { axis }, vec![x.clone()]));
            for descending in [false, true] {
                out.push(OpDraft::new(Op::Sort { axis, descending }, vec![x.clone()]));
            }
        }
    }
    let x = line(dtype);
    for k in [1, x.numel() / 2, x.numel()] {
        for largest in [false, true] {
            let op = Op::TopK { axis: 0, largest };
            out.push(OpDraft::new(op, vec![x.clone()]).giving(dtype, &[k]).giving(DType::I64, &[k]));
        }
    }
}

/// Softmax and norms.
fn rows(dtype: DType, out: &mut Vec<OpDraft>) {
    for x in in_rows(dtype) {
        for log in [false, true] {
            out.push(OpDraft::new(Op::Softmax { axis: 1, log }, vec![x.clone()]));
            out.push(OpDraft::new(Op::Softmax { axis: 0, log }, vec![transposed(&x)]));
        }
        let n = x.shape()[1];
        let weight: Vec<f64> = (0..n).map(|i| if i % 2 == 0 { 2.0 } else { -0.5 }).collect();
        let weight = of(Tensor::from_f64(dtype, [n], &weight));
        for eps in [0.0, 1e-6].map(FloatAttribute) {
            for round_first in [false, true] {
                let op = Op::RmsNorm { axes: 1, eps, round_first };
                out.push(OpDraft::new(op.clone(), vec![x.clone()]));
                out.push(OpDraft::new(op, vec![x.clone(), weight.clone()]));
            }
            let op = Op::LayerNorm { axes: 1, eps };
            let x = if eps == FloatAttribute(0.0) { without_least(&x) } else { x.clone() };
            out.push(OpDraft::new(op.clone(), vec![x.clone()]));
            out.push(OpDraft::new(op, vec![x.clone(), weight.clone(), weight.clone()]));
        }
    }
}

/// Three times the least number in place of it: a mean of half of that is rounded up or down, and where all else is 0, a
/// layer norm without `eps` is infinite or NaN by this alone.
fn without_least(x: &Tensor) -> Tensor {
    let elements: Vec<f64> =
        x.to_f64().into_iter().map(|e| if e.abs() == 5e-324 { 3.0 * e } else { e }).collect();
    of(Tensor::from_f64(x.dtype(), x.shape(), &elements))
}

/// Products in which one factor is special. Where a sum of f32 overflows, an exact one need not, so there are no two.
fn products(dtype: DType, out: &mut Vec<OpDraft>) {
    let [_, x] = in_rows(dtype);
    for (m, n) in [(x.shape()[0], 1), (x.shape()[0], 5), (1, x.shape()[0])] {
        let ones = |shape: &[usize]| of(Tensor::from_f64(dtype, shape, &vec![0.5; shape.iter().product()]));
        match m {
            1 => out.push(OpDraft::new(Op::MATMUL, vec![ones(&[1, 19]), transposed(&x)])),
            _ => {
                out.push(OpDraft::new(Op::MATMUL, vec![x.clone(), ones(&[19, n])]));
                let ends = of(Tensor::from_i64(DType::I64, [2], &[3, m as i64 - 1]));
                out.push(OpDraft::new(Op::GroupedMatMul, vec![x.clone(), ones(&[2, 19, n]), ends]));
                let ends = of(Tensor::from_i64(DType::I64, [2], &[4, 18]));
                out.push(OpDraft::new(Op::GroupedMatMul, vec![x.clone(), ones(&[19, n]), ends]));
            }
        }
    }
}

fn attention(dtype: DType, out: &mut Vec<OpDraft>) {
    let (l, s, e) = (2, 3, 2);
    // The last rows of keys and values are hidden from some rows by the masks, the first are not.
    for (value, last) in floats(dtype).into_iter().flat_map(|value| [(value, false), (value, true)]) {
        for which in 0..4 {
            let operand = |index: usize, shape: &[usize]| {
                let mut elements = vec![0.5; shape.iter().product()];
                if index == which {
                    let position = if last { elements.len() - 1 } else { 1 };
                    elements[position] = value;
                }
                of(Tensor::from_f64(dtype, shape, &elements))
            };
            let operands = vec![
                operand(0, &[1, l, e]),
                operand(1, &[1, s, e]),
                operand(2, &[1, s, e]),
                operand(3, &[1, l, s]),
            ];
            for causal in [false, true] {
                let op = Op::Attention {
                    scale: FloatAttribute(0.25),
                    cap: None,
                    bounds: causal_bounds_if(causal),
                    sink: false,
                    log_sum_exp: false,
                };
                out.push(OpDraft::new(op.clone(), operands.clone()));
                let mask = of(Tensor::from_i64(DType::Bool, [1, l, s], &[1, 0, 1, 0, 0, 0]));
                let masked = [&operands[..3], &[mask]].concat();
                out.push(OpDraft::new(op, masked));
            }
        }
    }
}

/// Pairs of which one element is special, turned by ordinary and by special numbers.
fn rotary(dtype: DType, out: &mut Vec<OpDraft>) {
    let values = floats(dtype);
    let n = values.len();
    let rows: Vec<f64> = values.iter().flat_map(|&x| [x, 0.5, -1.5, x]).collect();
    let ordinary: Vec<f64> = [0.5, -1.5, 1.0, -0.25].repeat(n);
    let [rows, ordinary] = [rows, ordinary].map(|v| of(Tensor::from_f64(dtype, [n, 4], &v)));
    for interleaved in [false, true] {
        let op = Op::RotaryEmbedding { width: 4, interleaved };
        out.push(OpDraft::new(op.clone(), vec![rows.clone(), ordinary.clone(), ordinary.clone()]));
        out.push(OpDraft::new(op, vec![ordinary.clone(), rows.clone(), ordinary.clone()]));
    }
}

fn indexing(dtype: DType, out: &mut Vec<OpDraft>) {
    let [x, _] = in_rows(dtype);
    let first = transposed(&x);
    let n = first.shape()[1];
    let index = |shape: &[usize]| of(Tensor::from_i64(DType::I64, shape, &vec![0; shape.iter().product()]));
    let row = |at: usize| {
        let bytes = n * dtype.size();
        of(Tensor::new(dtype, [1, n], first.data()[at * bytes..(at + 1) * bytes].to_vec()))
    };
    let (x, src) = (row(0), row(1));
    for combine in std::iter::once(None).chain(ReductionKind::ALL.iter().copied().map(Some)) {
        let op = Op::ScatterElements { axis: 0, combine };
        out.push(OpDraft::new(op, vec![x.clone(), index(&[1, n]), src.clone()]));
    }
    out.push(OpDraft::new(Op::IndexAdd { axis: 0 }, vec![x.clone(), index(&[1]), src.clone()]));
    for accumulate in [false, true] {
        let op = Op::IndexPut { axis: 0, accumulate };
        out.push(OpDraft::new(op, vec![x.clone(), src.clone(), index(&[1])]));
    }
    out.push(OpDraft::new(Op::Take { axis: 0 }, vec![x.clone(), index(&[2])]));
    out.push(OpDraft::new(Op::GatherElements { axis: 0 }, vec![x.clone(), index(&[1, n])]));
}

fn movement(dtype: DType, out: &mut Vec<OpDraft>) {
    let x = line(dtype);
    let n = x.numel();
    out.push(OpDraft::new(Op::Copy, vec![x.clone()]));
    out.push(OpDraft::new(Op::Concat { axis: 0 }, vec![x.clone(), x.clone()]));
    for value in scalars(dtype) {
        let op = Op::Pad { low: vec![Dim::from(1)], value };
        out.push(OpDraft::new(op, vec![x.clone()]).giving(dtype, &[n + 2]));
    }
}
