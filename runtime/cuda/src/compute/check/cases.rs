//! Small random cases of every op, against the interpreter; and cases that must fail.

use std::sync::Arc;

use symmc_ir::{
    ArgOp, BinaryOp, Bindings, DType, Dim, Float, Graph, InputKind, Op, Output, OutputKind, Reduction,
    Scalar, Tensor, Type, UnaryOp, infer, interp,
};
use symmc_runtime::kernels::KernelError;

use super::random::{Random, dense, indices, of, scattered, tensor};
use super::{Case, Placed};

/// An op with operands that fit it.
struct Draft {
    op: Op,
    operands: Vec<Tensor>,
    /// The results' types where the op leaves them open.
    results: Option<Vec<Type>>,
    /// The size of values that results are sums of.
    scale: f64,
}

fn case(op: Op, operands: Vec<Tensor>) -> Draft {
    Draft { op, operands, results: None, scale: 1.0 }
}

impl Draft {
    fn giving(mut self, dtype: DType, shape: &[usize]) -> Self {
        self.results.get_or_insert_default().push(ty(dtype, shape));
        self
    }
    fn scaled(mut self, scale: f64) -> Self {
        self.scale = scale;
        self
    }
}

fn ty(dtype: DType, shape: &[usize]) -> Type {
    Type::new(dtype, shape.iter().map(|&n| Dim::from(n as i64)).collect::<Vec<_>>())
}

const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];
const INTS: [DType; 3] = [DType::U8, DType::I32, DType::I64];

fn shape(r: &mut Random, min: usize, max: usize) -> Vec<usize> {
    let rank = min + r.below(max + 1 - min);
    let extent = |r: &mut Random| match r.below(12) {
        0 => 0,
        1 | 2 => 1 + r.below(40),
        _ => 1 + r.below(5),
    };
    (0..rank).map(|_| extent(r)).collect()
}

/// A shape that broadcasts to `shape`.
fn narrower(r: &mut Random, shape: &[usize]) -> Vec<usize> {
    let skip = if r.chance(3) { r.below(shape.len() + 1) } else { 0 };
    shape[skip..].iter().map(|&n| if r.chance(4) { 1 } else { n }).collect()
}

fn elementwise(r: &mut Random) -> Draft {
    let s = shape(r, 0, 4);
    match r.below(5) {
        0 => {
            let op = r.pick(UnaryOp::ALL);
            let dtype = match op {
                UnaryOp::Not => r.pick(&[DType::Bool, DType::U8, DType::I64]),
                UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Sign | UnaryOp::Relu => r.pick(&DType::ALL[1..]),
                _ => r.pick(&FLOATS),
            };
            case(Op::Unary(op), vec![tensor(r, dtype, &s)]).scaled(1e-3)
        }
        1 | 2 => {
            let op = r.pick(BinaryOp::ALL);
            let dtype = binary_dtype(r, op);
            let (mut a, mut b) = (s.clone(), narrower(r, &s));
            if r.chance(2) {
                std::mem::swap(&mut a, &mut b);
            }
            if r.chance(3) {
                let scalar = if dtype == DType::Bool {
                    Scalar::Bool(true)
                } else {
                    Scalar::Int(1 + r.below(4) as i64)
                };
                return case(
                    Op::BinaryScalar { op, scalar, scalar_left: r.chance(2) },
                    vec![tensor(r, dtype, &a)],
                );
            }
            case(Op::Binary(op), vec![tensor(r, dtype, &a), tensor(r, dtype, &b)])
        }
        3 => {
            let dtype = r.pick(&DType::ALL);
            let (c, x) = (narrower(r, &s), narrower(r, &s));
            case(Op::Select, vec![tensor(r, DType::Bool, &c), tensor(r, dtype, &x), tensor(r, dtype, &s)])
        }
        _ => {
            let (from, to) = (r.pick(&DType::ALL), r.pick(&DType::ALL));
            case(Op::Cast, vec![tensor(r, from, &s)]).giving(to, &s)
        }
    }
}

fn binary_dtype(r: &mut Random, op: BinaryOp) -> DType {
    match op {
        BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => {
            r.pick(&[DType::Bool, DType::U8, DType::I32, DType::I64])
        }
        BinaryOp::Div => r.pick(&FLOATS),
        _ if op.is_comparison() => r.pick(&DType::ALL),
        BinaryOp::Max | BinaryOp::Min => r.pick(&DType::ALL),
        _ => r.pick(&DType::ALL[1..]),
    }
}

fn matmul(r: &mut Random) -> Draft {
    let dtype = if r.chance(6) { r.pick(&INTS) } else { r.pick(&FLOATS) };
    let batch = shape(r, 0, 2);
    let size = |r: &mut Random| if r.chance(5) { r.below(150) } else { 1 + r.below(6) };
    let (m, k, n) = (size(r), size(r), size(r));
    let (mut x, mut y) = (narrower(r, &batch), batch);
    if r.chance(2) {
        std::mem::swap(&mut x, &mut y);
    }
    x.extend([m, k]);
    y.extend([k, n]);
    case(Op::MatMul, vec![tensor(r, dtype, &x), tensor(r, dtype, &y)]).scaled(k as f64)
}

fn reduction(r: &mut Random) -> Draft {
    let s = shape(r, 1, 4);
    let axis = r.below(s.len());
    let n = s.iter().product::<usize>() as f64;
    match r.below(4) {
        0 | 1 => {
            let op = r.pick(Reduction::ALL);
            let dtype = if op == Reduction::Mean { r.pick(&FLOATS) } else { r.pick(&DType::ALL) };
            let axes = (0..s.len()).filter(|_| r.chance(2)).collect();
            case(Op::Reduce { op, axes, keep: r.chance(2) }, vec![tensor(r, dtype, &s)]).scaled(n)
        }
        2 => {
            let op = r.pick(ArgOp::ALL);
            let dtype = r.pick(&DType::ALL);
            case(Op::ArgReduce { op, axis, keep: r.chance(2) }, vec![tensor(r, dtype, &s)])
        }
        _ => {
            let dtype = r.pick(&DType::ALL);
            case(Op::CumSum { axis }, vec![tensor(r, dtype, &s)]).scaled(n)
        }
    }
}

fn normalisation(r: &mut Random) -> Draft {
    let (s, dtype) = (shape(r, 1, 3), r.pick(&FLOATS));
    let axes = 1 + r.below(s.len());
    let tail = &s[s.len() - axes..];
    let x = tensor(r, dtype, &s);
    match r.below(3) {
        0 => case(Op::Softmax { axis: r.below(s.len()), log: r.chance(2) }, vec![x]),
        1 => {
            let op = Op::RmsNorm { axes, eps: Float(1e-5), round_first: r.chance(2) };
            let weight = r.chance(2).then(|| tensor(r, dtype, tail));
            case(op, std::iter::once(x).chain(weight).collect()).scaled(4.0)
        }
        _ => {
            let parameters = (0..r.below(3)).map(|_| tensor(r, dtype, tail)).collect::<Vec<_>>();
            let op = Op::LayerNorm { axes, eps: Float(1e-2) };
            case(op, std::iter::once(x).chain(parameters).collect()).scaled(4.0)
        }
    }
}

fn attention(r: &mut Random) -> Draft {
    let (batch, dtype) = (shape(r, 0, 2), r.pick(&FLOATS));
    let length = |r: &mut Random| if r.chance(4) { 1 + r.below(600) } else { 1 + r.below(9) };
    let (g, group, l, s) = (1 + r.below(3), 1 + r.below(3), length(r).min(150), length(r));
    let (e, f) = (1 + r.below(9), 1 + r.below(9));
    let with = |tail: &[usize]| [&batch[..], tail].concat();
    let mut operands = vec![
        tensor(r, dtype, &with(&[g * group, l, e])),
        tensor(r, dtype, &with(&[g, s, e])),
        tensor(r, dtype, &with(&[g, s, f])),
    ];
    if r.chance(2) {
        let mask = narrower(r, &with(&[g * group, l, s]));
        let mask_dtype = if r.chance(2) { DType::Bool } else { r.pick(&FLOATS) };
        operands.push(tensor(r, mask_dtype, &mask));
    }
    case(Op::Attention { causal: r.chance(2), scale: Float(0.3) }, operands).scaled(3.0)
}

fn indexing(r: &mut Random) -> Draft {
    let s = shape(r, 1, 4);
    let dtype = r.pick(&DType::ALL);
    let axis = r.below(s.len());
    let x = tensor(r, dtype, &s);
    let n = s[axis];
    match r.below(6) {
        0 => {
            let at = if n == 0 { vec![0] } else { shape(r, 0, 2) };
            case(Op::Take { axis }, vec![x, indices(r, &at, n)])
        }
        1 | 2 => {
            let axes = 1 + r.below(s.len() - axis);
            let none = s[axis..axis + axes].contains(&0);
            let at = if none { vec![0] } else { shape(r, 0, 2) };
            let list: Vec<Tensor> = (0..axes)
                .map(|i| {
                    let narrow = if i == 0 { at.clone() } else { narrower(r, &at) };
                    indices(r, &narrow, s[axis + i])
                })
                .collect();
            if r.chance(2) {
                return case(Op::Index { axis }, std::iter::once(x).chain(list).collect());
            }
            let full = [&s[..axis], &at, &s[axis + axes..]].concat();
            let src = narrower(r, &full);
            let src = tensor(r, dtype, &src);
            let op = Op::IndexPut { axis, accumulate: dtype != DType::Bool && r.chance(2) };
            case(op, [x, src].into_iter().chain(list).collect()).scaled(20.0)
        }
        3 => {
            let at = smaller(r, &s, axis);
            case(Op::GatherElements { axis }, vec![x, indices(r, &at, n)])
        }
        4 => {
            let at = smaller(r, &s, axis);
            let index = indices(r, &at, n);
            let mut combine = r.chance(2).then(|| r.pick(Reduction::ALL));
            if dtype == DType::Bool {
                combine = None;
            }
            case(Op::ScatterElements { axis, combine }, vec![x, index, tensor(r, dtype, &at)]).scaled(100.0)
        }
        _ => {
            let mut src = s.clone();
            src[axis] = if n == 0 { 0 } else { r.below(6) };
            let index = indices(r, &[src[axis]], n);
            case(Op::IndexAdd { axis }, vec![x, index, tensor(r, dtype, &src)]).scaled(20.0)
        }
    }
}

/// A shape of an index that is no larger than `s` along the axes but `axis`.
fn smaller(r: &mut Random, s: &[usize], axis: usize) -> Vec<usize> {
    let extent = |r: &mut Random, a: usize, n: usize| match a == axis {
        true if n == 0 => 0,
        true => r.below(5),
        false => n - r.below(2).min(n),
    };
    s.iter().enumerate().map(|(a, &n)| extent(r, a, n)).collect()
}

fn movement(r: &mut Random) -> Draft {
    let (s, dtype) = (shape(r, 1, 4), r.pick(&DType::ALL));
    let axis = r.below(s.len());
    let x = tensor(r, dtype, &s);
    match r.below(8) {
        0 => {
            let mut k = s.clone();
            k[axis] = r.below(s[axis] + 1);
            case(Op::TopK { axis, largest: r.chance(2) }, vec![x]).giving(dtype, &k).giving(DType::I64, &k)
        }
        1 => case(Op::Sort { axis, descending: r.chance(2) }, vec![x]),
        2 => {
            let mut operands = vec![x];
            for _ in 0..r.below(3) {
                let mut t = s.clone();
                t[axis] = r.below(4);
                operands.push(tensor(r, dtype, &t));
            }
            case(Op::Concat { axis }, operands)
        }
        3 => {
            let low: Vec<i64> = s.iter().map(|&n| r.below(5) as i64 - 2.min(n as i64)).collect();
            let to: Vec<usize> =
                s.iter().zip(&low).map(|(&n, &l)| (n as i64 + l).max(0) as usize + r.below(3)).collect();
            let op = Op::Pad { low: low.into_iter().map(Dim::from).collect(), value: Scalar::Int(1) };
            case(op, vec![x]).giving(dtype, &to)
        }
        4 => {
            let n: usize = s.iter().product();
            let divisor = (1..=n).rev().filter(|d| n.is_multiple_of(*d)).nth(r.below(4)).unwrap_or(1);
            let to = if n == 0 { vec![0, 3] } else { vec![divisor, n / divisor] };
            case(Op::Reshape, vec![x]).giving(dtype, &to)
        }
        5 => case(Op::Copy, vec![x]),
        6 => {
            let dtype = r.pick(&DType::ALL[1..]);
            let n = r.below(700);
            case(Op::Iota { start: r.below(9) as i64 - 4, step: r.below(5) as i64 - 2 }, vec![])
                .giving(dtype, &[n])
        }
        _ => case(Op::Full(Scalar::Int(r.below(3) as i64)), vec![]).giving(dtype, &s),
    }
}

/// The results of an op on operands: their types and, where its data allow it, what they are.
fn interpreted(draft: &Draft) -> (Vec<Type>, Option<Vec<Tensor>>) {
    let mut graph = Graph::new("one");
    graph.ranks = Some(1);
    let mut inputs = Vec::with_capacity(draft.operands.len());
    for (i, t) in draft.operands.iter().enumerate() {
        let ty = ty(t.dtype(), t.shape());
        inputs.push(graph.add_input(InputKind::Argument, format!("x{i}"), "", ty, None));
    }
    let types: Vec<&Type> = inputs.iter().map(|&v| graph.ty(v)).collect();
    let types = match &draft.results {
        Some(types) => types.clone(),
        None => infer::infer(&draft.op, &types, None).ok().flatten().unwrap_or_default(),
    };
    let named = types.iter().cloned().enumerate().map(|(i, t)| (format!("y{i}"), t)).collect();
    let node = graph.add_node(draft.op.clone(), inputs, named);
    for value in graph.nodes[node].outputs.clone() {
        graph.outputs.push(Output { value, kind: OutputKind::Returned });
    }
    let inputs = draft.operands.iter().cloned().map(Arc::new).collect();
    let found = interp::run(&graph, &Bindings::new(), &[inputs]);
    (types, found.ok().and_then(|mut ranks| ranks.pop()))
}

/// Results of the right shape without contents, for a case that must fail.
pub(super) fn rooms(case: &Case) -> Vec<Placed> {
    let operands = case.operands.iter().map(|p| p.tensor.clone()).collect();
    let types = interpreted(&self::case(case.op.clone(), operands)).0;
    let shape = |t: &Type| t.concrete(&Bindings::new()).unwrap_or_default();
    types.iter().map(|t| dense(of(Tensor::zeros(t.dtype, shape(t))))).collect()
}

/// The name of a kind of random cases, their number, and their maker.
type Kind = (&'static str, u64, fn(&mut Random) -> Draft);

/// All small cases.
pub(super) fn list() -> Vec<Case> {
    let kinds: [Kind; 7] = [
        ("elementwise", 100, elementwise),
        ("matmul", 40, matmul),
        ("reduction", 60, reduction),
        ("normalisation", 40, normalisation),
        ("attention", 24, attention),
        ("indexing", 60, indexing),
        ("movement", 60, movement),
    ];
    let mut out = Vec::new();
    for (kind, count, make) in kinds {
        for seed in 0..count {
            let r = &mut Random(seed);
            let draft = make(r);
            // A draft that the interpreter refuses for its data has no expected result.
            let (_, Some(expected)) = interpreted(&draft) else { continue };
            let operands = draft.operands.into_iter().map(|t| scattered(t, r)).collect();
            let expected = expected.into_iter().map(|t| scattered(t, r)).collect();
            let name = format!("{kind} {seed}: {:?}", draft.op);
            out.push(Case { name, op: draft.op, operands, expected: Ok(expected), scale: draft.scale });
        }
    }
    out.extend(failing());
    out
}

/// Data that are out of range.
fn failing() -> Vec<Case> {
    let x = || dense(of(Tensor::from_f64(DType::F32, [3, 2], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0])));
    let ints = |shape: &[usize], v: &[i64]| dense(of(Tensor::from_i64(DType::I64, shape, v)));
    let index = |index| KernelError::Index { index, axis: 0, extent: 3 };
    let src = || dense(of(Tensor::from_f64(DType::F32, [1, 2], &[7.0, 8.0])));
    let make = |name: &str, op: Op, operands: Vec<Placed>, error: KernelError| Case {
        name: format!("failing: {name}"),
        op,
        operands,
        expected: Err(error),
        scale: 1.0,
    };
    let mut out = Vec::new();
    for bad in [3, -4, i64::MIN, i64::MAX] {
        out.push(make("take", Op::Take { axis: 0 }, vec![x(), ints(&[1], &[bad])], index(bad)));
    }
    let two = || ints(&[1, 2], &[1, -9]);
    out.push(make("gather", Op::GatherElements { axis: 0 }, vec![x(), two()], index(-9)));
    let scatter = Op::ScatterElements { axis: 0, combine: None };
    out.push(make("scatter", scatter, vec![x(), two(), src()], index(-9)));
    out.push(make("index_add", Op::IndexAdd { axis: 0 }, vec![x(), ints(&[1], &[5]), src()], index(5)));
    let put = Op::IndexPut { axis: 0, accumulate: false };
    out.push(make("index_put", put, vec![x(), src(), ints(&[1], &[-5])], index(-5)));
    let divided = vec![ints(&[2], &[1, 2]), ints(&[2], &[1, 0])];
    out.push(make("division", Op::Binary(BinaryOp::FloorDiv), divided, KernelError::ZeroDivisor));
    out
}
