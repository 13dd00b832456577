//! Cases of the size of real layers, against the CPU kernels.

use symmc_ir::attention::causal_bounds_if;
use symmc_ir::{
    ArgOp, AttentionBound, BinaryOp, BoundSide, DType, Dim, FloatAttribute, Op, ReductionKind, Route,
    RouteLayout, RouteScope, Tensor, UnaryOp,
};
use symmc_runtime::kernels::{TensorView, TensorViewMut, compute, contiguous_strides};
use symmc_support::random::SplitMix;

use crate::case::OpCase;
use crate::layout::PlacedTensor;
use crate::ops::ends;
use crate::random::{indices, of, tensor};

/// Swaps the last two axes of how a tensor lies: its columns are contiguous then.
pub(crate) fn columns_first(tensor: Tensor) -> PlacedTensor {
    let mut out = PlacedTensor::dense(tensor);
    let rank = out.layout.strides.len();
    let rows = out.tensor.shape()[rank - 2] as isize;
    out.layout.strides[rank - 1] = rows;
    out.layout.strides[rank - 2] = 1;
    out
}

fn view<'a>(t: &'a Tensor, strides: &'a [isize], words: &'a [u64]) -> TensorView<'a> {
    // SAFETY: the words hold the tensor's bytes, row-major.
    unsafe { TensorView::new(t.dtype(), t.shape(), strides, words.as_ptr().cast()) }
}

fn words(bytes: &[u8]) -> Vec<u64> {
    let word = |c: &[u8]| c.iter().enumerate().fold(0u64, |w, (i, &b)| w | u64::from(b) << (8 * i));
    bytes.chunks(8).map(word).chain([0]).collect()
}

/// A case whose results the CPU kernels compute.
pub(crate) fn case(
    name: &str,
    op: Op,
    operands: Vec<PlacedTensor>,
    results: &[(DType, &[usize])],
    scale: f64,
) -> OpCase {
    let data: Vec<Vec<u64>> = operands.iter().map(|p| words(p.tensor.data())).collect();
    let strides: Vec<Vec<isize>> = operands.iter().map(|p| contiguous_strides(p.tensor.shape())).collect();
    let views: Vec<TensorView<'_>> =
        operands.iter().zip(&strides).zip(&data).map(|((p, s), d)| view(&p.tensor, s, d)).collect();
    let mut rooms: Vec<Vec<u64>> = results
        .iter()
        .map(|(d, s)| vec![0u64; (s.iter().product::<usize>() * d.size()).div_ceil(8) + 1])
        .collect();
    let room_strides: Vec<Vec<isize>> = results.iter().map(|(_, s)| contiguous_strides(s)).collect();
    let mut outs: Vec<TensorViewMut<'_>> = Vec::new();
    for (((dtype, shape), strides), room) in results.iter().zip(&room_strides).zip(&mut rooms) {
        // SAFETY: the room has as many elements.
        outs.push(unsafe { TensorViewMut::new(*dtype, shape, strides, room.as_mut_ptr().cast()) });
    }
    let computed = compute(&op, &views, &mut outs);
    let tensors = results.iter().zip(&rooms).map(|((dtype, shape), room)| {
        let bytes = shape.iter().product::<usize>() * dtype.size();
        let data = room.iter().flat_map(|w| w.to_le_bytes()).take(bytes).collect();
        PlacedTensor::dense(of(Tensor::new(*dtype, *shape, data)))
    });
    let expected = computed.map(|()| tensors.collect());
    OpCase { name: format!("large: {name}"), op, operands, expected, scale: Some(scale) }
}

pub(crate) fn list() -> Vec<OpCase> {
    let r = &mut SplitMix(7);
    let mut out = Vec::new();
    products(r, &mut out);
    grouped_products(r, &mut out);
    attentions(r, &mut out);
    with_sinks(r, &mut out);
    bounded(r, &mut out);
    rows(r, &mut out);
    few_rows(&mut out);
    sum_beyond_its_range(&mut out);
    rotary(r, &mut out);
    others(r, &mut out);
    gradients(r, &mut out);
    routes(r, &mut out);
    out
}

/// Routings in each layout: on one rank and several, of few tokens and of more than a block places, of many experts, and
/// with more rows or larger ids than fit.
fn routes(r: &mut SplitMix, out: &mut Vec<OpCase>) {
    let local = RouteScope::Local;
    let position =
        |rank, ranks: u32| RouteScope::Position { rank, cell: (0..ranks).map(|rank| 2 * rank + 1).collect() };
    for (scope, dtype, tokens, slots, experts, align) in [
        (local.clone(), DType::I64, 7, 2, 6, 1),
        (local, DType::I32, 70, 3, 300, 8),
        (position(1, 2), DType::I32, 18, 3, 8, 4),
        (position(0, 4), DType::I64, 520, 4, 64, 1),
        (position(2, 3), DType::I64, 600, 4, 12, 16),
        (position(7, 8), DType::I64, 8, 8, 256, 1),
        (position(1, 2), DType::I64, 8800, 8, 256, 128),
        (position(0, 2), DType::I64, 0, 4, 16, 2),
        (position(3, 4), DType::I64, 64, 6, 4096, 1),
    ] {
        for layout in [RouteLayout::Expert, RouteLayout::Rank, RouteLayout::Batched] {
            let route = Route { experts, align, layout, scope: scope.clone() };
            let ids = random_ids(r, dtype, [tokens, slots], 0, experts as usize);
            out.push(routing("route", &route, ids, None));
        }
    }
    for layout in [RouteLayout::Expert, RouteLayout::Rank, RouteLayout::Batched] {
        let route = Route { experts: 24, align: 8, layout, scope: position(1, 3) };
        // All tokens to one rank, and to no rank.
        for [low, high] in [[8, 16], [16, 24], [0, 0]] {
            let ids = random_ids(r, DType::I64, [60, 2], low, high);
            out.push(routing("route to one rank", &route, ids, None));
        }
        let ids = random_ids(r, DType::I64, [60, 2], 0, 24);
        out.push(routing("failing: route of more rows than fit", &route, ids, Some(20)));
        for bad in [24, i64::MAX, -2, i64::MIN] {
            let mut ids = vec![3; 120];
            (ids[57], ids[91]) = (bad, 25);
            let ids = of(Tensor::from_i64(DType::I64, [60, 2], &ids));
            out.push(routing("failing: route to no expert", &route, PlacedTensor::dense(ids), None));
        }
    }
}

/// Ids between two experts, with -1 here and there.
fn random_ids(r: &mut SplitMix, dtype: DType, shape: [usize; 2], low: usize, high: usize) -> PlacedTensor {
    let id = |r: &mut SplitMix| match high.checked_sub(low) {
        Some(count) if count > 0 && !r.one_in(9) => (low + r.below(count)) as i64,
        _ => -1,
    };
    let ids: Vec<i64> = (0..shape[0] * shape[1]).map(|_| id(r)).collect();
    PlacedTensor::dense(of(Tensor::from_i64(dtype, shape, &ids)))
}

/// A routing with this capacity, or one that suffices.
fn routing(name: &str, route: &Route, ids: PlacedTensor, capacity: Option<usize>) -> OpCase {
    let [tokens, slots] = [ids.tensor.shape()[0], ids.tensor.shape()[1]];
    let ranks = route.rank_count(None).unwrap_or(1);
    let sections = route.section_count(ranks) as usize;
    let sufficient = match route.layout {
        RouteLayout::Batched => tokens * slots * sections,
        _ => tokens * slots + sections * route.align as usize,
    };
    let capacity = capacity.unwrap_or(sufficient.min(1 << 18));
    let own = tokens / ranks as usize;
    let shapes: [&[usize]; 5] = [&[own, slots], &[tokens, slots], &[capacity], &[sections], &[sections]];
    let name = format!("{name} {route:?} of {:?} in {capacity}", ids.tensor.shape());
    let op = Op::Route(route.clone());
    OpCase { scale: None, ..case(&name, op, vec![ids], &shapes.map(|shape| (DType::I64, shape)), 1.0) }
}

fn products(r: &mut SplitMix, out: &mut Vec<OpCase>) {
    for dtype in [DType::BF16, DType::F16, DType::F32, DType::F64] {
        for m in [1, 3, 8, 16, 40, 200] {
            let (k, n) = (512, 384);
            let (x, y) = (tensor(r, dtype, &[m, k]), tensor(r, dtype, &[k, n]));
            let scale = 9.0 * (k as f64).sqrt();
            let name = |what: &str| format!("matmul {dtype} [{m}, {k}] by {what} [{k}, {n}]");
            let rows = vec![PlacedTensor::dense(x.clone()), PlacedTensor::dense(y.clone())];
            out.push(case(&name("row-major"), Op::MATMUL, rows, &[(dtype, &[m, n])], scale));
            let columns = vec![PlacedTensor::dense(x), columns_first(y)];
            if matches!(dtype, DType::BF16 | DType::F16) {
                let name = format!("unrounded {}", name("column-major"));
                let result = [(DType::F32, &[m, n][..])];
                out.push(case(&name, Op::MATMUL_UNROUNDED, columns.clone(), &result, scale));
            }
            out.push(case(&name("column-major"), Op::MATMUL, columns, &[(dtype, &[m, n])], scale));
        }
    }
    let few_rows = [(1, 4096, 1000), (8, 1032, 200), (5, 257, 130), (30, 1416, 220), (16, 520, 3200)];
    let more_rows = [(40, 1032, 340), (9, 2504, 4096), (17, 1800, 6500), (64, 1160, 9600)];
    // The last of these have odd numbers of eights, few lines, and stages that are filled again and again.
    let halves = [(33, 328, 700), (34, 328, 4600), (17, 136, 41), (25, 264, 80), (49, 4104, 890)];
    // Long K beside few columns.
    let narrow = [(1, 8200, 1000), (3, 8192, 130), (32, 4096, 256), (20, 16384, 72)];
    let bf16 = few_rows.into_iter().chain(more_rows).chain(narrow).map(|extents| (DType::BF16, extents));
    for (dtype, (m, k, n)) in bf16.chain(halves.map(|extents| (DType::F16, extents))) {
        let operands =
            vec![PlacedTensor::dense(tensor(r, dtype, &[m, k])), columns_first(tensor(r, dtype, &[k, n]))];
        let name = format!("matmul {dtype} [{m}, {k}] by column-major [{k}, {n}]");
        out.push(case(&name, Op::MATMUL, operands, &[(dtype, &[m, n])], 9.0 * (k as f64).sqrt()));
    }
    let dtype = DType::BF16;
    let operands = vec![
        PlacedTensor::dense(tensor(r, dtype, &[4, 30, 64])),
        PlacedTensor::dense(tensor(r, dtype, &[4, 64, 96])),
    ];
    out.push(case("batched matmul", Op::MATMUL, operands, &[(dtype, &[4, 30, 96])], 72.0));
}

/// Rows of a mixture of experts: few and many for each, more experts than a warp has lanes, weights in both layouts. And
/// the gradients of the weights: groups divide K.
fn grouped_products(r: &mut SplitMix, out: &mut Vec<OpCase>) {
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        for [rows, groups, k, n] in
            [[7, 40, 72, 136], [300, 4, 200, 264], [90, 70, 136, 40], [65, 1, 64, 128], [140, 3, 328, 256]]
        {
            let ends = ends(r, groups, rows);
            let x = PlacedTensor::dense(tensor(r, dtype, &[rows, k]));
            let y = tensor(r, dtype, &[groups, k, n]);
            for (what, y) in
                [("row-major", PlacedTensor::dense(y.clone())), ("column-major", columns_first(y))]
            {
                let operands = vec![x.clone(), y, PlacedTensor::dense(ends.clone())];
                let name = format!("grouped matmul {dtype} [{rows}, {k}] by {what} [{groups}, {k}, {n}]");
                let scale = 9.0 * (k as f64).sqrt();
                out.push(case(&name, Op::GroupedMatMul, operands, &[(dtype, &[rows, n])], scale));
            }
            let x = tensor(r, dtype, &[k, rows]);
            let gradient = PlacedTensor::dense(tensor(r, dtype, &[rows, n]));
            for (what, x) in
                [("row-major", PlacedTensor::dense(x.clone())), ("column-major", columns_first(x))]
            {
                let operands = vec![x, gradient.clone(), PlacedTensor::dense(ends.clone())];
                let name = format!("grouped matmul {dtype} by terms, {what} [{k}, {rows}] by [{rows}, {n}]");
                let scale = 9.0 * (rows as f64).sqrt();
                out.push(case(&name, Op::GroupedMatMul, operands, &[(dtype, &[groups, k, n])], scale));
            }
        }
    }
}

fn attentions(r: &mut SplitMix, out: &mut Vec<OpCase>) {
    // Heads of q and of k, queries, keys, elements of q and k and of v.
    let shapes: [[usize; 6]; 11] = [
        [8, 8, 128, 128, 64, 64],
        [8, 2, 130, 130, 128, 128],
        [8, 1, 1, 700, 128, 128],
        [32, 8, 1, 2000, 128, 128],
        [4, 4, 3, 300, 64, 64],
        [2, 2, 65, 65, 256, 256],
        [2, 1, 70, 200, 80, 96],
        [2, 2, 33, 100, 40, 24],
        [6, 3, 17, 17, 16, 16],
        [20, 1, 1, 90, 96, 64],
        [4, 2, 128, 128, 16, 16],
    ];
    let kinds = [(false, 0), (true, 0), (false, 1), (true, 2)];
    for (d, dtype) in [DType::BF16, DType::F16, DType::F32, DType::F64].into_iter().enumerate() {
        for (i, [h, g, l, s, e, f]) in shapes.into_iter().enumerate() {
            if dtype == DType::F64 && e > 128 {
                continue;
            }
            // Two kinds of each, other ones of each dtype.
            for (causal, masked) in [kinds[(i + d) % 4], kinds[(i + d + 1) % 4]] {
                let q = tensor(r, dtype, &[1, h, l, e]);
                let mut operands = vec![
                    PlacedTensor::dense(q),
                    PlacedTensor::dense(tensor(r, dtype, &[1, g, s, e])),
                    PlacedTensor::dense(tensor(r, dtype, &[1, g, s, f])),
                ];
                match masked {
                    1 => operands.push(PlacedTensor::dense(tensor(r, DType::Bool, &[1, 1, l, s]))),
                    2 => operands.push(PlacedTensor::dense(tensor(r, dtype, &[h, 1, s]))),
                    _ => {}
                }
                let op = Op::Attention {
                    scale: FloatAttribute(0.1),
                    cap: None,
                    bounds: causal_bounds_if(causal),
                    sink: false,
                    log_sum_exp: false,
                };
                let shape = [h, g, l, s, e, f];
                let name = format!("attention {dtype} {shape:?} causal={causal} mask={masked}");
                out.push(case(&name, op, operands, &[(dtype, &[1, h, l, f])], 3.0));
            }
        }
    }
}

/// Bounds of attention of so many sequences, queries and keys, with the operands they have.
fn kinds_of_bounds([b, l, s]: [usize; 3]) -> Vec<(&'static str, Vec<AttentionBound>, Vec<Tensor>)> {
    let (n, apart) = (s as i64, s as i64 - l as i64);
    let row = |side, add: i64| AttentionBound::relative_to_row(side, add);
    let by_operand =
        |side, add: i64| AttentionBound { side, row: false, add: Dim::from(add), chunk: None, operand: true };
    let ints = |dtype, shape: &[usize], of: &dyn Fn(i64) -> i64| {
        let elements: Vec<i64> = (0..shape.iter().product::<usize>() as i64).map(of).collect();
        of_ints(dtype, shape, &elements)
    };
    let lengths = |of: &dyn Fn(i64) -> i64| ints(DType::I32, &[b, 1, 1, 1], of);
    let places = ints(DType::I64, &[l, 1], &|i| (i * 7 + 3) % n);
    let causal = AttentionBound::causal();
    vec![
        ("causal", vec![causal.clone()], vec![]),
        ("window", vec![row(BoundSide::Below, apart + 1), row(BoundSide::From, apart - 20)], vec![]),
        (
            "chunks",
            vec![
                row(BoundSide::Below, apart + 1),
                AttentionBound { chunk: Some(48), ..row(BoundSide::From, apart) },
            ],
            vec![],
        ),
        (
            "to the end of a chunk",
            vec![AttentionBound { chunk: Some(64), ..row(BoundSide::Below, 0) }],
            vec![],
        ),
        ("lengths", vec![by_operand(BoundSide::Below, 0)], vec![lengths(&|i| n / 2 + 3 - i * n)]),
        ("padded in front", vec![causal, by_operand(BoundSide::From, 2)], vec![lengths(&|i| i * 9)]),
        ("places in a cache", vec![by_operand(BoundSide::Below, 1)], vec![places.clone()]),
        (
            "window of a cache",
            vec![by_operand(BoundSide::Below, 1), by_operand(BoundSide::From, -30)],
            vec![places.clone(), places],
        ),
    ]
}

fn of_ints(dtype: DType, shape: &[usize], all: &[i64]) -> Tensor {
    of(Tensor::from_i64(dtype, shape, all))
}

/// Attention with bounds, whose values are not finite here and there: what is not seen adds nothing.
fn bounded(r: &mut SplitMix, out: &mut Vec<OpCase>) {
    // Sequences, heads of q and of k, queries, keys, elements of q and k and of v.
    let shapes: [[usize; 7]; 6] = [
        [1, 4, 2, 150, 150, 64, 64],
        [2, 4, 1, 70, 333, 128, 96],
        [2, 8, 2, 1, 400, 128, 128],
        [1, 4, 2, 3, 200, 64, 64],
        [1, 2, 2, 65, 130, 136, 136],
        [1, 1, 1, 130, 1100, 32, 32],
    ];
    for (d, dtype) in [DType::BF16, DType::F16, DType::F32].into_iter().enumerate() {
        for (i, [b, h, g, l, s, e, f]) in shapes.into_iter().enumerate() {
            let kinds = kinds_of_bounds([b, l, s]).into_iter().enumerate();
            for (k, (what, bounds, positions)) in kinds.filter(|(k, _)| (k + i + d) % 3 != 0) {
                let mut values = tensor(r, dtype, &[b, g, s, f]).to_f64();
                for (at, bad) in [(5, f64::NAN), (s / 2, f64::INFINITY), (s - 1, f64::NAN)] {
                    values[at * f + (k * 13 + at) % f] = bad;
                }
                let values = of(Tensor::from_f64(dtype, [b, g, s, f], &values));
                let first = [tensor(r, dtype, &[b, h, l, e]), tensor(r, dtype, &[b, g, s, e]), values];
                let operands = first.into_iter().chain(positions).map(PlacedTensor::dense).collect();
                let cap = (k % 3 == 1).then_some(FloatAttribute(1.5));
                let op = Op::Attention {
                    scale: FloatAttribute(0.1),
                    cap,
                    bounds,
                    sink: false,
                    log_sum_exp: false,
                };
                let name = format!("bounded attention {dtype} {:?} {what}", [b, h, g, l, s, e, f]);
                out.push(case(&name, op, operands, &[(dtype, &[b, h, l, f])], 3.0));
            }
        }
    }
}

/// With one more score for each head, in every way that there is.
fn with_sinks(r: &mut SplitMix, out: &mut Vec<OpCase>) {
    let shapes = [
        [8, 2, 130, 130, 128, 128],
        [8, 1, 1, 700, 128, 128],
        [4, 2, 70, 200, 64, 64],
        [4, 4, 3, 900, 40, 24],
    ];
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        for [h, g, l, s, e, f] in shapes {
            let operands = [[h, l, e], [g, s, e], [g, s, f]].map(|shape| tensor(r, dtype, &shape));
            let sinks = tensor(r, if l == 1 { DType::F32 } else { dtype }, &[h, 1, 1]);
            let operands = operands.into_iter().chain([sinks]).map(PlacedTensor::dense).collect();
            let bounds =
                vec![AttentionBound::relative_to_row(BoundSide::Below, Dim::from((s - l + 1) as i64))];
            let op = Op::Attention {
                scale: FloatAttribute(0.1),
                cap: None,
                bounds,
                sink: true,
                log_sum_exp: false,
            };
            let name = format!("sink attention {dtype} {:?}", [h, g, l, s, e, f]);
            out.push(case(&name, op, operands, &[(dtype, &[h, l, f])], 3.0));
        }
    }
}

/// With the log-sum-exp of each row, and the gradients of that attention.
fn gradients(r: &mut SplitMix, out: &mut Vec<OpCase>) {
    // Heads of q and of k, queries, keys, elements of q and k and of v.
    let shapes = [
        [8, 2, 130, 130, 128, 128],
        [4, 4, 70, 200, 64, 64],
        [2, 1, 200, 128, 128, 64],
        [3, 3, 33, 77, 40, 24],
        [2, 2, 128, 256, 64, 64],
    ];
    for (d, dtype) in [DType::BF16, DType::F16, DType::F32].into_iter().enumerate() {
        for (i, [h, g, l, s, e, f]) in shapes.into_iter().enumerate() {
            let bounds = match (i + d) % 3 {
                0 => vec![],
                1 => vec![AttentionBound::causal()],
                _ => {
                    vec![
                        AttentionBound::relative_to_row(BoundSide::Below, 1 + s as i64 - l as i64),
                        AttentionBound::relative_to_row(BoundSide::From, -20),
                    ]
                }
            };
            let forward = [[h, l, e], [g, s, e], [g, s, f]].map(|shape| tensor(r, dtype, &shape));
            let operands: Vec<PlacedTensor> = forward.into_iter().map(PlacedTensor::dense).collect();
            let shape = [h, g, l, s, e, f];
            let op = |bounds: &[AttentionBound]| Op::Attention {
                scale: FloatAttribute(0.1),
                cap: None,
                bounds: bounds.to_vec(),
                sink: false,
                log_sum_exp: true,
            };
            let results: [(DType, &[usize]); 2] = [(dtype, &[h, l, f]), (DType::F32, &[h, l])];
            let name = format!("summed attention {dtype} {shape:?} {bounds:?}");
            let attention = case(&name, op(&bounds), operands.clone(), &results, 3.0);
            let attention_results = attention.expected.clone().expect("attention takes any data");
            out.push(attention);
            let gradient = PlacedTensor::dense(tensor(r, dtype, &[h, l, f]));
            let operands = std::iter::once(gradient).chain(attention_results).chain(operands).collect();
            let results: [(DType, &[usize]); 3] =
                [(dtype, &[h, l, e]), (dtype, &[g, s, e]), (dtype, &[g, s, f])];
            let op = Op::AttentionGradient { scale: FloatAttribute(0.1), bounds };
            let name = format!("attention gradient {dtype} {shape:?}");
            let mut gradient_case = case(&name, op, operands, &results, 1.0);
            let elements = gradient_case.expected.iter().flatten().flat_map(|t| t.tensor.to_f64());
            gradient_case.scale = Some(elements.fold(1.0, |most, x| x.abs().max(most)));
            out.push(gradient_case);
        }
    }
}

/// Queries by heads, as views of what a product gives.
fn rotary(r: &mut SplitMix, out: &mut Vec<OpCase>) {
    for (dtype, angles) in [(DType::BF16, DType::BF16), (DType::F16, DType::F32), (DType::F32, DType::F32)] {
        for (e, width) in [(128, 128), (80, 32), (64, 64), (36, 12)] {
            for interleaved in [false, true] {
                let (h, l) = (3, 70);
                let mut x = PlacedTensor::dense(tensor(r, dtype, &[2, h, l, e]));
                x.layout.strides = [l * h * e, e, h * e, 1].map(|s| s as isize).to_vec();
                let numbers = [1, l, if interleaved { width / 2 } else { width }];
                let [cos, sin] =
                    [0, 1].map(|_| PlacedTensor::dense(tensor(r, angles, &[&[1], &numbers[..]].concat())));
                let op = Op::RotaryEmbedding { width, interleaved };
                let name = format!("rotary {dtype} {angles} [{e}, {width}] interleaved={interleaved}");
                out.push(case(&name, op, vec![x, cos, sin], &[(dtype, &[2, h, l, e])], 0.0));
            }
        }
    }
}

fn rows(r: &mut SplitMix, out: &mut Vec<OpCase>) {
    for dtype in [DType::BF16, DType::F32] {
        for shape in [[3, 4096], [200, 128], [2, 16384], [2, 40000], [5, 1000], [700, 33], [1, 8192]] {
            let tail = &shape[1..];
            let x = || PlacedTensor::dense(tensor(&mut SplitMix(3), dtype, &shape));
            let w = PlacedTensor::dense(tensor(r, dtype, tail));
            let b = PlacedTensor::dense(tensor(r, dtype, tail));
            let ty: &[(DType, &[usize])] = &[(dtype, &shape)];
            let rms = |round_first| Op::RmsNorm { axes: 1, eps: FloatAttribute(1e-5), round_first };
            out.push(case(&format!("rms_norm {dtype} {shape:?}"), rms(false), vec![x(), w.clone()], ty, 4.0));
            out.push(case(
                &format!("rms_norm {dtype} {shape:?} rounded first"),
                rms(true),
                vec![x(), w.clone()],
                ty,
                8.0,
            ));
            let layer = Op::LayerNorm { axes: 1, eps: FloatAttribute(1e-5) };
            out.push(case(&format!("layer_norm {dtype} {shape:?}"), layer, vec![x(), w, b], ty, 4.0));
            for axis in [0, 1] {
                let op = Op::Softmax { axis, log: axis == 0 };
                out.push(case(&format!("softmax {dtype} {shape:?} axis {axis}"), op, vec![x()], ty, 1.0));
                let kept_axis = [shape[1 - axis]];
                for op in [ReductionKind::Sum, ReductionKind::Max, ReductionKind::Mean] {
                    let name = format!("{op} {dtype} {shape:?} axis {axis}");
                    let reduce = Op::Reduce { op, axes: vec![axis], keep: false };
                    out.push(case(&name, reduce, vec![x()], &[(dtype, &kept_axis)], shape[axis] as f64));
                }
                let arg = Op::ArgReduce { op: ArgOp::Max, axis, keep: false };
                out.push(case(
                    &format!("argmax {dtype} {shape:?} axis {axis}"),
                    arg,
                    vec![x()],
                    &[(DType::I64, &kept_axis)],
                    1.0,
                ));
                let name = format!("cumsum {dtype} {shape:?} axis {axis}");
                let scale = shape[axis] as f64;
                out.push(case(&name, Op::CumSum { axis }, vec![x()], ty, scale));
            }
        }
    }
}

/// Reductions of all of a tensor, and of its columns, that leave few rows.
fn few_rows(out: &mut Vec<OpCase>) {
    for dtype in [DType::BF16, DType::F32, DType::I32, DType::Bool] {
        for (axes, shape) in [(vec![0, 1], [200, 96]), (vec![0], [2048, 40])] {
            let x = || PlacedTensor::dense(tensor(&mut SplitMix(5), dtype, &shape));
            let kept_shape: Vec<usize> = (0..2).filter(|a| !axes.contains(a)).map(|a| shape[a]).collect();
            let count = axes.iter().map(|&a| shape[a]).product::<usize>() as f64;
            let ops = match dtype {
                DType::Bool => vec![
                    (ReductionKind::Any, DType::Bool),
                    (ReductionKind::All, DType::Bool),
                    (ReductionKind::Sum, DType::I64),
                ],
                DType::I32 => vec![(ReductionKind::Sum, DType::I64), (ReductionKind::Min, dtype)],
                _ => [ReductionKind::Sum, ReductionKind::Mean, ReductionKind::Max]
                    .map(|op| (op, dtype))
                    .to_vec(),
            };
            for (op, to) in ops {
                let name = format!("{op} {dtype} {shape:?} all of few rows {axes:?}");
                let reduce = Op::Reduce { op, axes: axes.clone(), keep: false };
                out.push(case(&name, reduce, vec![x()], &[(to, &kept_shape)], count));
            }
        }
    }
}

/// A sum whose first half leaves the range of f32, and whose second half brings it back.
fn sum_beyond_its_range(out: &mut Vec<OpCase>) {
    let half = 10_000;
    let values: Vec<f64> = (0..2 * half).map(|i| if i < half { 3e38 } else { -3e38 }).collect();
    let x = PlacedTensor::dense(of(Tensor::from_f64(DType::F32, [2 * half], &values)));
    let sum = Op::Reduce { op: ReductionKind::Sum, axes: vec![0], keep: false };
    out.push(case("sum beyond f32, all of few rows", sum, vec![x], &[(DType::F32, &[])], 1.0));
}

fn others(r: &mut SplitMix, out: &mut Vec<OpCase>) {
    for dtype in [DType::BF16, DType::F32, DType::I64] {
        for n in [64, 1000, 4096, 5000, 20_000] {
            let x = PlacedTensor::dense(tensor(r, dtype, &[3, n]));
            let types: &[(DType, &[usize])] = &[(dtype, &[3, n]), (DType::I64, &[3, n])];
            let sort = Op::Sort { axis: 1, descending: n % 3 == 0 };
            out.push(case(&format!("sort {dtype} {n}"), sort, vec![x.clone()], types, 1.0));
            let few_types: &[(DType, &[usize])] = &[(dtype, &[3, 8]), (DType::I64, &[3, 8])];
            out.push(case(
                &format!("topk {dtype} {n}"),
                Op::TopK { axis: 1, largest: true },
                vec![x],
                few_types,
                1.0,
            ));
        }
        moved(r, dtype, out);
    }
    let x = PlacedTensor::dense(tensor(r, DType::F32, &[100_003]));
    for op in [UnaryOp::Silu, UnaryOp::Gelu, UnaryOp::Exp, UnaryOp::Sin] {
        out.push(case(
            &format!("{op} of 100003"),
            Op::Unary(op),
            vec![x.clone()],
            &[(DType::F32, &[100_003])],
            1e-2,
        ));
    }
}

/// Sums, copies and indexing of a matrix in both orders of its axes.
fn moved(r: &mut SplitMix, dtype: DType, out: &mut Vec<OpCase>) {
    let x = tensor(r, dtype, &[300, 1500]);
    let y = tensor(r, dtype, &[300, 1500]);
    let ty: &[(DType, &[usize])] = &[(dtype, &[300, 1500])];
    let add = Op::Binary(BinaryOp::Add);
    out.push(case(
        &format!("add {dtype}"),
        add.clone(),
        vec![PlacedTensor::dense(x.clone()), PlacedTensor::dense(y.clone())],
        ty,
        1.0,
    ));
    out.push(case(
        &format!("transposed add {dtype}"),
        add.clone(),
        vec![PlacedTensor::dense(x.clone()), columns_first(y)],
        ty,
        1.0,
    ));
    out.push(case(&format!("transposed copy {dtype}"), Op::Copy, vec![columns_first(x.clone())], ty, 1.0));
    let row = PlacedTensor::dense(tensor(r, dtype, &[1500]));
    out.push(case(&format!("add a row {dtype}"), add, vec![PlacedTensor::dense(x.clone()), row], ty, 1.0));
    let positions = PlacedTensor::dense(indices(r, &[70], 300));
    let results_taken: &[(DType, &[usize])] = &[(dtype, &[70, 1500])];
    out.push(case(
        &format!("take {dtype}"),
        Op::Take { axis: 0 },
        vec![PlacedTensor::dense(x.clone()), positions.clone()],
        results_taken,
        1.0,
    ));
    let src = PlacedTensor::dense(tensor(r, dtype, &[70, 1500]));
    let add = Op::IndexAdd { axis: 0 };
    out.push(case(
        &format!("index_add {dtype}"),
        add,
        vec![PlacedTensor::dense(x.clone()), positions.clone(), src.clone()],
        ty,
        20.0,
    ));
    let index_put = Op::IndexPut { axis: 0, accumulate: false };
    out.push(case(
        &format!("index_put {dtype}"),
        index_put,
        vec![PlacedTensor::dense(x), src, positions],
        ty,
        1.0,
    ));
}
