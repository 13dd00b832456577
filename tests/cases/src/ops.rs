//! Random ops with operands that fit them, by theme.

use std::sync::Arc;

use symmc_ir::attention::causal_bounds_if;
use symmc_ir::{
    ArgOp, AttentionBound, BinaryOp, BoundSide, DType, Dim, FloatAttribute, Graph, GraphOutput, InputKind,
    Op, OutputKind, ReductionKind, Scalar, SymbolBindings, Tensor, TensorType, UnaryOp, infer, interp,
};
use symmc_support::random::SplitMix;

use crate::random::{indices, of, tensor};

/// A theme of random cases: its name, and who makes one.
pub type Theme = (&'static str, fn(&mut SplitMix) -> OpDraft);

/// All themes.
pub const OP_THEMES: [Theme; 11] = [
    ("elementwise", elementwise),
    ("matmul", matmul),
    ("grouped matmul", grouped_matmul),
    ("reduction", reduction),
    ("normalisation", normalisation),
    ("attention", |r| {
        let draft = attention(r);
        let draft = with_random_sink(r, draft);
        summed(r, draft)
    }),
    ("bounded attention", |r| {
        let draft = bounded_attention(r);
        let draft = with_random_sink(r, draft);
        summed(r, draft)
    }),
    ("attention gradient", attention_gradient),
    ("rotary", rotary),
    ("indexing", indexing),
    ("movement", movement),
];

/// An op with operands that fit it.
#[derive(Clone, Debug)]
pub struct OpDraft {
    /// The op.
    pub op: Op,
    /// Its operands.
    pub operands: Vec<Tensor>,
    /// The results' types where the op leaves them open.
    results: Option<Vec<TensorType>>,
    /// The size of values that results are sums of.
    pub scale: f64,
}

fn case(op: Op, operands: Vec<Tensor>) -> OpDraft {
    OpDraft::new(op, operands)
}

impl OpDraft {
    /// An op that fixes the types of its results.
    pub fn new(op: Op, operands: Vec<Tensor>) -> OpDraft {
        OpDraft { op, operands, results: None, scale: 1.0 }
    }

    pub(crate) fn giving(mut self, dtype: DType, shape: &[usize]) -> Self {
        self.results.get_or_insert_default().push(ty(dtype, shape));
        self
    }

    fn scaled(mut self, scale: f64) -> Self {
        self.scale = scale;
        self
    }

    /// Whether the op takes operands of these types.
    pub(crate) fn fits(&self) -> bool {
        let types: Vec<TensorType> = self.operands.iter().map(|t| ty(t.dtype(), t.shape())).collect();
        let operands: Vec<&TensorType> = types.iter().collect();
        match &self.results {
            Some(results) => {
                infer::check_types(&self.op, &operands, &results.iter().collect::<Vec<_>>(), None).is_ok()
            }
            None => infer::infer_types(&self.op, &operands, None).is_ok(),
        }
    }

    /// The dtype and shape of each result.
    pub fn types(&self) -> Vec<(DType, Vec<usize>)> {
        let (graph, _) = self.program();
        let bind =
            |t: &TensorType| (t.dtype, t.concrete_shape(&SymbolBindings::new()).expect("constant dims"));
        graph.outputs.iter().map(|o| bind(graph.ty(o.value))).collect()
    }

    /// Its results by the interpreter; `None` where that refuses the data.
    pub fn expected(&self) -> Option<Vec<Tensor>> {
        let (graph, inputs) = self.program();
        interp::run(&graph, &SymbolBindings::new(), &[inputs]).ok()?.pop()
    }

    /// The program of the op alone, and its inputs.
    fn program(&self) -> (Graph, Vec<Arc<Tensor>>) {
        let mut graph = Graph::new("one");
        graph.ranks = Some(1);
        let mut inputs = Vec::with_capacity(self.operands.len());
        for (i, t) in self.operands.iter().enumerate() {
            let ty = ty(t.dtype(), t.shape());
            inputs.push(graph.add_input(InputKind::Argument, format!("x{i}"), "", ty, None));
        }
        let types: Vec<&TensorType> = inputs.iter().map(|&v| graph.ty(v)).collect();
        let types = match &self.results {
            Some(types) => types.clone(),
            None => infer::infer_types(&self.op, &types, None)
                .expect("the case type-checks")
                .expect("the op fixes its types"),
        };
        let named = types.into_iter().enumerate().map(|(i, t)| (format!("y{i}"), t)).collect();
        let node = graph.add_node(self.op.clone(), inputs, named);
        for value in graph.nodes[node].outputs.clone() {
            graph.outputs.push(GraphOutput { value, kind: OutputKind::Returned });
        }
        (graph, self.operands.iter().cloned().map(Arc::new).collect())
    }
}

fn ty(dtype: DType, shape: &[usize]) -> TensorType {
    TensorType::new(dtype, shape.iter().map(|&n| Dim::from(n as i64)).collect::<Vec<_>>())
}

/// The float dtypes.
pub(crate) const FLOAT_DTYPES: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];
const INT_DTYPES: [DType; 3] = [DType::U8, DType::I32, DType::I64];

fn shape(r: &mut SplitMix, min: usize, max: usize) -> Vec<usize> {
    let rank = min + r.below(max + 1 - min);
    let extent = |r: &mut SplitMix| match r.below(12) {
        0 => 0,
        1 | 2 => 1 + r.below(40),
        _ => 1 + r.below(5),
    };
    (0..rank).map(|_| extent(r)).collect()
}

/// A shape that broadcasts to `shape`.
fn narrower(r: &mut SplitMix, shape: &[usize]) -> Vec<usize> {
    let skip = if r.one_in(3) { r.below(shape.len() + 1) } else { 0 };
    shape[skip..].iter().map(|&n| if r.one_in(4) { 1 } else { n }).collect()
}

fn elementwise(r: &mut SplitMix) -> OpDraft {
    let s = shape(r, 0, 4);
    match r.below(5) {
        0 => {
            let op = r.pick(UnaryOp::ALL);
            let dtype = any(r, |dtype| op.supports_dtype(dtype));
            case(Op::Unary(op), vec![tensor(r, dtype, &s)]).scaled(1e-3)
        }
        1 | 2 => {
            let op = r.pick(BinaryOp::ALL);
            let dtype = any(r, |dtype| op.supports_dtype(dtype));
            let (mut a, mut b) = (s.clone(), narrower(r, &s));
            if r.one_in(2) {
                std::mem::swap(&mut a, &mut b);
            }
            if r.one_in(3) {
                let scalar = if dtype == DType::Bool {
                    Scalar::Bool(true)
                } else {
                    Scalar::Int(1 + r.below(4) as i64)
                };
                return case(
                    Op::BinaryScalar { op, scalar, scalar_left: r.one_in(2) },
                    vec![tensor(r, dtype, &a)],
                );
            }
            case(Op::Binary(op), vec![tensor(r, dtype, &a), tensor(r, dtype, &b)])
        }
        3 => {
            let dtype = r.pick(DType::ALL);
            let (c, x) = (narrower(r, &s), narrower(r, &s));
            case(Op::Select, vec![tensor(r, DType::Bool, &c), tensor(r, dtype, &x), tensor(r, dtype, &s)])
        }
        _ => {
            let (from, to) = (r.pick(DType::ALL), r.pick(DType::ALL));
            let is_bitcast = from.size() == to.size() && from != DType::Bool && to != DType::Bool;
            if is_bitcast && r.one_in(2) {
                return case(Op::Bitcast, vec![tensor(r, from, &s)]).giving(to, &s);
            }
            case(Op::Cast, vec![tensor(r, from, &s)]).giving(to, &s)
        }
    }
}

fn any(r: &mut SplitMix, takes: impl Fn(DType) -> bool) -> DType {
    let fit: Vec<DType> = DType::ALL.iter().copied().filter(|dtype| takes(*dtype)).collect();
    r.pick(&fit)
}

/// A dtype that is not only moved and cast.
fn computed(r: &mut SplitMix) -> DType {
    any(r, |dtype| !dtype.is_storage_float())
}

fn matmul(r: &mut SplitMix) -> OpDraft {
    let dtype = if r.one_in(6) { r.pick(&INT_DTYPES) } else { r.pick(&FLOAT_DTYPES) };
    let batch = shape(r, 0, 2);
    let size = |r: &mut SplitMix| if r.one_in(5) { r.below(150) } else { 1 + r.below(6) };
    let (m, k, n) = (size(r), size(r), size(r));
    let (mut x, mut y) = (narrower(r, &batch), batch);
    if r.one_in(2) {
        std::mem::swap(&mut x, &mut y);
    }
    x.extend([m, k]);
    y.extend([k, n]);
    let is_narrow = matches!(dtype, DType::F16 | DType::BF16);
    let op = if is_narrow && r.one_in(3) { Op::MATMUL_UNROUNDED } else { Op::MATMUL };
    let stored =
        if is_narrow && r.one_in(3) { r.pick(&[DType::I8, DType::U8, DType::F8E4M3]) } else { dtype };
    case(op, vec![tensor(r, dtype, &x), tensor(r, stored, &y)]).scaled(k as f64)
}

fn grouped_matmul(r: &mut SplitMix) -> OpDraft {
    let dtype = r.pick(&FLOAT_DTYPES);
    let size = |r: &mut SplitMix| if r.one_in(4) { r.below(90) } else { 1 + r.below(6) };
    let (rows, k, n, groups) = (size(r), size(r), size(r), size(r));
    if r.one_in(2) {
        let (x, y) = (tensor(r, dtype, &[k, rows]), tensor(r, dtype, &[rows, n]));
        return case(Op::GroupedMatMul, vec![x, y, ends(r, groups, rows)]).scaled(rows as f64);
    }
    let y = tensor(r, dtype, &[groups, k, n]);
    case(Op::GroupedMatMul, vec![tensor(r, dtype, &[rows, k]), y, ends(r, groups, rows)]).scaled(k as f64)
}

/// Where groups of rows end: some are empty, and some rows are in none.
pub(crate) fn ends(r: &mut SplitMix, groups: usize, rows: usize) -> Tensor {
    let limit = if r.one_in(2) { rows } else { r.below(rows + 1) };
    let mut ends: Vec<i64> = (0..groups).map(|_| r.below(limit + 1) as i64).collect();
    ends.sort_unstable();
    of(Tensor::from_i64(r.pick(&[DType::I32, DType::I64]), [groups], &ends))
}

fn reduction(r: &mut SplitMix) -> OpDraft {
    let s = shape(r, 1, 4);
    let axis = r.below(s.len());
    let n = s.iter().product::<usize>() as f64;
    match r.below(4) {
        0 | 1 => {
            let op = r.pick(ReductionKind::ALL);
            let dtype = if op == ReductionKind::Mean { r.pick(&FLOAT_DTYPES) } else { computed(r) };
            let axes = (0..s.len()).filter(|_| r.one_in(2)).collect();
            case(Op::Reduce { op, axes, keep: r.one_in(2) }, vec![tensor(r, dtype, &s)]).scaled(n)
        }
        2 => {
            let op = r.pick(ArgOp::ALL);
            let dtype = computed(r);
            case(Op::ArgReduce { op, axis, keep: r.one_in(2) }, vec![tensor(r, dtype, &s)])
        }
        _ => {
            let dtype = computed(r);
            case(Op::CumSum { axis }, vec![tensor(r, dtype, &s)]).scaled(n)
        }
    }
}

fn normalisation(r: &mut SplitMix) -> OpDraft {
    let (s, dtype) = (shape(r, 1, 3), r.pick(&FLOAT_DTYPES));
    let axes = 1 + r.below(s.len());
    let tail = &s[s.len() - axes..];
    let x = tensor(r, dtype, &s);
    match r.below(3) {
        0 => case(Op::Softmax { axis: r.below(s.len()), log: r.one_in(2) }, vec![x]),
        1 => {
            let op = Op::RmsNorm { axes, eps: FloatAttribute(1e-5), round_first: r.one_in(2) };
            let weight = r.one_in(2).then(|| tensor(r, dtype, tail));
            case(op, std::iter::once(x).chain(weight).collect()).scaled(4.0)
        }
        _ => {
            let parameters = (0..r.below(3)).map(|_| tensor(r, dtype, tail)).collect::<Vec<_>>();
            let op = Op::LayerNorm { axes, eps: FloatAttribute(1e-2) };
            case(op, std::iter::once(x).chain(parameters).collect()).scaled(4.0)
        }
    }
}

fn attention(r: &mut SplitMix) -> OpDraft {
    let (batch, dtype) = (shape(r, 0, 2), r.pick(&FLOAT_DTYPES));
    let length = |r: &mut SplitMix| if r.one_in(4) { 1 + r.below(600) } else { 1 + r.below(9) };
    let (g, group, l, s) = (1 + r.below(3), 1 + r.below(3), length(r).min(150), length(r));
    let (e, f) = (1 + r.below(9), 1 + r.below(9));
    let with = |tail: &[usize]| [&batch[..], tail].concat();
    let mut operands = vec![
        tensor(r, dtype, &with(&[g * group, l, e])),
        tensor(r, dtype, &with(&[g, s, e])),
        tensor(r, dtype, &with(&[g, s, f])),
    ];
    if r.one_in(2) {
        let mask = narrower(r, &with(&[g * group, l, s]));
        let mask_dtype = if r.one_in(2) { DType::Bool } else { r.pick(&FLOAT_DTYPES) };
        operands.push(tensor(r, mask_dtype, &mask));
    }
    let bounds = causal_bounds_if(r.one_in(2));
    let mut op =
        Op::Attention { scale: FloatAttribute(0.3), cap: None, bounds, sink: false, log_sum_exp: false };
    if r.one_in(4) {
        // The heads behind the rows, or the last batch axis behind all.
        let rank = batch.len() + 3;
        let mut perm: Vec<usize> = (0..rank).collect();
        perm.swap(rank - 3, rank - 2 - 2 * usize::from(rank > 3 && r.one_in(3)));
        op = Op::Permuted { op: Box::new(op), perm };
    }
    case(op, operands).scaled(3.0)
}

/// Attention with bounds of every kind, and with capped scores.
fn bounded_attention(r: &mut SplitMix) -> OpDraft {
    let mut draft = attention(r);
    let perm = if let Op::Permuted { perm, .. } = &draft.op { Some(perm.clone()) } else { None };
    let [q, k] = [0, 1].map(|i| draft.operands[i].shape().to_vec());
    let (rows, l, s) = (&q[..q.len() - 1], q[q.len() - 2] as i64, k[k.len() - 2] as i64);
    let mut bounds = Vec::new();
    for _ in 0..r.below(4) {
        let near = |r: &mut SplitMix| r.below((l + s + 4) as usize) as i64 - l;
        let bound = AttentionBound {
            side: r.pick(&[BoundSide::Below, BoundSide::From]),
            row: r.one_in(2),
            add: Dim::from(near(r)),
            chunk: r.one_in(3).then(|| 1 + r.below(9) as u64),
            operand: r.one_in(2),
        };
        if bound.operand {
            let shape = narrower(r, &[rows, &[1]].concat());
            let far = r.pick(&[i64::MIN, i64::MAX]);
            let dtype = r.pick(&[DType::I32, DType::I64]);
            let far = if dtype == DType::I32 { far >> 32 } else { far };
            let position = |r: &mut SplitMix| if r.one_in(30) { far } else { near(r) };
            let positions: Vec<i64> = (0..shape.iter().product()).map(|_| position(r)).collect();
            draft.operands.push(of(Tensor::from_i64(dtype, shape, &positions)));
        }
        bounds.push(bound);
    }
    let cap = r.one_in(3).then_some(FloatAttribute(2.0));
    let op = Op::Attention { scale: FloatAttribute(0.3), cap, bounds, sink: false, log_sum_exp: false };
    let op = match perm {
        Some(perm) => Op::Permuted { op: Box::new(op), perm },
        None => op,
    };
    OpDraft { op, ..draft }
}

/// Some with the log-sum-exp of each row.
fn summed(r: &mut SplitMix, mut draft: OpDraft) -> OpDraft {
    if let Op::Attention { log_sum_exp, .. } = unpermuted(&mut draft.op) {
        *log_sum_exp = r.one_in(3);
    }
    draft
}

/// The op within a permuted one, or the op itself.
fn unpermuted(op: &mut Op) -> &mut Op {
    match op {
        Op::Permuted { op, .. } => op,
        op => op,
    }
}

/// The gradient of attention, with bounds or without.
fn attention_gradient(r: &mut SplitMix) -> OpDraft {
    let mut forward = if r.one_in(2) { attention(r) } else { bounded_attention(r) };
    let perm = if let Op::Permuted { perm, .. } = &forward.op { Some(perm.clone()) } else { None };
    let op = unpermuted(&mut forward.op).clone();
    let Op::Attention { scale, bounds, .. } = op else { return forward };
    gradient_of(r, scale, bounds, forward.operands, perm)
}

/// The gradient of an attention, where that of its result is random.
pub(crate) fn gradient_of(
    r: &mut SplitMix,
    scale: FloatAttribute,
    bounds: Vec<AttentionBound>,
    operands: Vec<Tensor>,
    perm: Option<Vec<usize>>,
) -> OpDraft {
    let op = Op::Attention { scale, cap: None, bounds: bounds.clone(), sink: false, log_sum_exp: true };
    let results = case(op, operands.clone()).expected().expect("attention takes any data");
    let gradient = tensor(r, results[0].dtype(), results[0].shape());
    let operands = std::iter::once(gradient).chain(results).chain(operands).collect();
    let op = Op::AttentionGradient { scale, bounds };
    let op = match perm {
        Some(perm) => Op::Permuted { op: Box::new(op), perm },
        None => op,
    };
    let mut draft = case(op, operands);
    let elements = draft.expected().into_iter().flatten().flat_map(|t| t.to_f64());
    draft.scale = elements.fold(1.0, |most, x| x.abs().max(most));
    draft
}

/// Some with one more score of each row.
fn with_random_sink(r: &mut SplitMix, mut draft: OpDraft) -> OpDraft {
    if r.one_in(4) {
        let q = draft.operands[0].shape();
        let rows = [&q[..q.len() - 1], &[1]].concat();
        let shape = narrower(r, &rows);
        let dtype = r.pick(&FLOAT_DTYPES);
        draft.operands.push(tensor(r, dtype, &shape));
        if let Op::Attention { sink, .. } = unpermuted(&mut draft.op) {
            *sink = true;
        }
    }
    draft
}

fn rotary(r: &mut SplitMix) -> OpDraft {
    let (rows, dtype) = (shape(r, 0, 3), r.pick(&FLOAT_DTYPES));
    let limit = if r.one_in(3) { 20 } else { 4 };
    let width = 2 * (1 + r.below(limit));
    let tail = if r.one_in(2) { 0 } else { r.below(9) };
    let numbers = if r.one_in(2) { width } else { width / 2 };
    let wider: Vec<DType> =
        FLOAT_DTYPES.into_iter().filter(|d| *d == dtype || d.size() > dtype.size()).collect();
    let number_dtype = if r.one_in(2) { dtype } else { r.pick(&wider) };
    let x = tensor(r, dtype, &[&rows[..], &[width + tail]].concat());
    let numbers = [narrower(r, &rows), vec![numbers]].concat();
    let angles = [0, 1].map(|_| tensor(r, number_dtype, &numbers));
    let op = Op::RotaryEmbedding { width, interleaved: r.one_in(2) };
    case(op, std::iter::once(x).chain(angles).collect()).scaled(6.0)
}

fn indexing(r: &mut SplitMix) -> OpDraft {
    let s = shape(r, 1, 4);
    let dtype = computed(r);
    let axis = r.below(s.len());
    let x = tensor(r, dtype, &s);
    let n = s[axis];
    match r.below(6) {
        0 => {
            let index_shape = if n == 0 { vec![0] } else { shape(r, 0, 2) };
            case(Op::Take { axis }, vec![x, indices(r, &index_shape, n)])
        }
        1 | 2 => {
            let axes = 1 + r.below(s.len() - axis);
            let none = s[axis..axis + axes].contains(&0);
            let index_shape = if none { vec![0] } else { shape(r, 0, 2) };
            let list: Vec<Tensor> = (0..axes)
                .map(|i| {
                    let narrow = if i == 0 { index_shape.clone() } else { narrower(r, &index_shape) };
                    indices(r, &narrow, s[axis + i])
                })
                .collect();
            if r.one_in(2) {
                return case(Op::Index { axis }, std::iter::once(x).chain(list).collect());
            }
            let full = [&s[..axis], &index_shape, &s[axis + axes..]].concat();
            let src = narrower(r, &full);
            let src = tensor(r, dtype, &src);
            let op = Op::IndexPut { axis, accumulate: dtype != DType::Bool && r.one_in(2) };
            case(op, [x, src].into_iter().chain(list).collect()).scaled(20.0)
        }
        3 => {
            let index_shape = smaller(r, &s, axis);
            case(Op::GatherElements { axis }, vec![x, indices(r, &index_shape, n)])
        }
        4 => {
            let index_shape = smaller(r, &s, axis);
            let index = indices(r, &index_shape, n);
            let mut combine = r.one_in(2).then(|| r.pick(ReductionKind::ALL));
            if dtype == DType::Bool {
                combine = None;
            }
            case(Op::ScatterElements { axis, combine }, vec![x, index, tensor(r, dtype, &index_shape)])
                .scaled(100.0)
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
fn smaller(r: &mut SplitMix, s: &[usize], axis: usize) -> Vec<usize> {
    let extent = |r: &mut SplitMix, a: usize, n: usize| match a == axis {
        true if n == 0 => 0,
        true => r.below(5),
        false => n - r.below(2).min(n),
    };
    s.iter().enumerate().map(|(a, &n)| extent(r, a, n)).collect()
}

fn movement(r: &mut SplitMix) -> OpDraft {
    let (s, dtype) = (shape(r, 1, 4), computed(r));
    let axis = r.below(s.len());
    let x = tensor(r, dtype, &s);
    match r.below(8) {
        0 => {
            let mut k = s.clone();
            k[axis] = r.below(s[axis] + 1);
            case(Op::TopK { axis, largest: r.one_in(2) }, vec![x]).giving(dtype, &k).giving(DType::I64, &k)
        }
        1 => case(Op::Sort { axis, descending: r.one_in(2) }, vec![x]),
        2 => {
            let mut operands = vec![x];
            // Few of any shapes, or many of two shapes.
            let many = r.one_in(4);
            for _ in 0..if many { 19 } else { r.below(3) } {
                let mut t = s.clone();
                t[axis] = if many { 1 + r.below(2) } else { r.below(4) };
                operands.push(tensor(r, dtype, &t));
            }
            case(Op::Concat { axis }, operands)
        }
        3 => {
            let low: Vec<i64> = s.iter().map(|&n| r.below(5) as i64 - 2.min(n as i64)).collect();
            let extents: Vec<usize> =
                s.iter().zip(&low).map(|(&n, &l)| (n as i64 + l).max(0) as usize + r.below(3)).collect();
            let op = Op::Pad { low: low.into_iter().map(Dim::from).collect(), value: Scalar::Int(1) };
            case(op, vec![x]).giving(dtype, &extents)
        }
        4 => {
            let n: usize = s.iter().product();
            let divisor = (1..=n).rev().filter(|d| n.is_multiple_of(*d)).nth(r.below(4)).unwrap_or(1);
            let extents = if n == 0 { vec![0, 3] } else { vec![divisor, n / divisor] };
            case(Op::Reshape, vec![x]).giving(dtype, &extents)
        }
        5 => case(Op::Copy, vec![x]),
        6 => {
            let dtype = any(r, |dtype| dtype != DType::Bool && !dtype.is_storage_float());
            let n = r.below(700);
            case(Op::Iota { start: r.below(9) as i64 - 4, step: r.below(5) as i64 - 2 }, vec![])
                .giving(dtype, &[n])
        }
        _ => case(Op::Full(Scalar::Int(r.below(3) as i64)), vec![]).giving(dtype, &s),
    }
}
