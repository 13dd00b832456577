//! Rules about pieces, and about sends one after another, change no bit. The test covers ops of every kind between a
//! collective and a `shard`, on every pair of groups, along both axes, for every dtype with its special values.

use symmc_ir::attention::causal_bounds_if;
use symmc_ir::{
    ArgOp, BinaryOp, CollectiveKind, CollectiveReduceOp, DType, Dim, FloatAttribute, Graph, GraphBuilder,
    GroupId, InputKind, Op, ReductionKind, Scalar, TensorType, UnaryOp, ValueId,
};
use symmc_passes::canonicalize;

use crate::replicated::{add_collective, check, groups};

/// Adds a value that is computed from the first value; the second value has the rows of one rank. `None` if the op
/// does not accept the types.
type Compute = fn(&mut GraphBuilder, ValueId, ValueId) -> Option<ValueId>;

fn shape(b: &GraphBuilder, x: ValueId) -> [Dim; 2] {
    <[Dim; 2]>::try_from(b.graph().ty(x).shape.clone()).expect("two axes")
}

fn reduce(b: &mut GraphBuilder, x: ValueId, op: ReductionKind, axis: usize) -> Option<ValueId> {
    b.op("f", Op::Reduce { op, axes: vec![axis], keep: true }, &[x]).ok()
}

fn number(b: &GraphBuilder, x: ValueId, number: i64) -> Scalar {
    match b.graph().ty(x).dtype.is_float() {
        true => Scalar::Float(FloatAttribute(number as f64)),
        false => Scalar::Int(number),
    }
}

fn by_number(b: &mut GraphBuilder, x: ValueId, op: BinaryOp) -> Option<ValueId> {
    let scalar = number(b, x, 2);
    b.op("f", Op::BinaryScalar { op, scalar, scalar_left: false }, &[x]).ok()
}

fn pad(b: &mut GraphBuilder, x: ValueId) -> Option<ValueId> {
    let [rows, columns] = shape(b, x);
    let ty = TensorType::new(b.graph().ty(x).dtype, vec![rows, columns + Dim::from(2)]);
    let pad = Op::Pad { low: vec![Dim::from(0), Dim::from(1)], value: number(b, x, 0) };
    b.op_as("f", pad, &[x], ty).ok()
}

fn expanded(b: &mut GraphBuilder, own: ValueId, like: ValueId) -> Option<ValueId> {
    let [_, columns] = shape(b, own);
    let first = Op::Slice { axis: 0, start: Dim::from(0), step: 1 };
    let dtype = b.graph().ty(own).dtype;
    let row = b.op_as("r", first, &[own], TensorType::new(dtype, vec![Dim::from(1), columns])).ok()?;
    let ty = b.graph().ty(like).clone();
    b.op_as("f", Op::Expand, &[row], ty).ok()
}

/// The operands of all ranks of a gather next to each other.
fn columns_of_ranks(b: &mut GraphBuilder, x: ValueId) -> Option<ValueId> {
    let [rows, columns] = shape(b, x);
    let own = rows.exact_div(&columns)?;
    let stacked = b.reshape("s", x, vec![columns.clone(), own.clone(), columns.clone()]).ok()?;
    let turned = b.op("s", Op::Permute { perm: vec![1, 0, 2] }, &[stacked]).ok()?;
    b.reshape("f", turned, vec![own, columns.clone() * columns]).ok()
}

fn attention(b: &mut GraphBuilder, x: ValueId, causal: bool) -> Option<ValueId> {
    let [rows, columns] = shape(b, x);
    let q = b.reshape("q", x, vec![Dim::from(1), rows.clone(), columns.clone()]).ok()?;
    let op = Op::Attention {
        scale: FloatAttribute(0.5),
        cap: None,
        bounds: causal_bounds_if(causal),
        sink: false,
        log_sum_exp: false,
    };
    let attended = b.op("a", op, &[q, q, q]).ok()?;
    b.reshape("f", attended, vec![rows, columns]).ok()
}

const COMPUTED: &[Compute] = &[
    |_, x, _| Some(x),
    |b, x, _| b.op("f", Op::Unary(UnaryOp::Neg), &[x]).ok(),
    |b, x, _| by_number(b, x, BinaryOp::FloorDiv),
    |b, x, _| by_number(b, x, BinaryOp::Max),
    |b, x, _| b.op("f", Op::Permute { perm: vec![1, 0] }, &[x]).ok(),
    |b, x, _| b.op("f", Op::Softmax { axis: 1, log: false }, &[x]).ok(),
    |b, x, _| b.op("f", Op::Softmax { axis: 0, log: true }, &[x]).ok(),
    |b, x, _| b.op("f", Op::RmsNorm { axes: 1, eps: FloatAttribute(1e-5), round_first: false }, &[x]).ok(),
    |b, x, _| b.op("f", Op::LayerNorm { axes: 1, eps: FloatAttribute(1e-5) }, &[x]).ok(),
    |b, x, _| b.op("f", Op::CumSum { axis: 0 }, &[x]).ok(),
    |b, x, _| reduce(b, x, ReductionKind::Sum, 1),
    |b, x, _| reduce(b, x, ReductionKind::Max, 0),
    |b, x, _| b.op("f", Op::ArgReduce { op: ArgOp::Max, axis: 1, keep: true }, &[x]).ok(),
    |b, x, _| pad(b, x),
    |b, x, _| b.op("f", Op::Concat { axis: 1 }, &[x, x]).ok(),
    |b, x, own| {
        let columns = b.op("t", Op::Permute { perm: vec![1, 0] }, &[own]).ok()?;
        b.op("f", Op::MATMUL, &[x, columns]).ok()
    },
    |b, x, _| {
        let [rows, columns] = shape(b, x);
        b.reshape("f", x, vec![rows * columns, Dim::from(1)]).ok()
    },
    |b, x, _| {
        let [rows, columns] = shape(b, x);
        b.reshape("f", x, vec![columns, rows]).ok()
    },
    |b, x, own| {
        let wide = expanded(b, own, x)?;
        b.op("f", Op::Concat { axis: 1 }, &[x, wide]).ok()
    },
    |b, x, own| expanded(b, own, x),
    |b, x, _| columns_of_ranks(b, x),
    |b, x, _| attention(b, x, false),
    |b, x, _| attention(b, x, true),
];

/// A program with the rows of a rank as its only input, and all groups.
fn begin(ranks: u32, dtype: DType) -> (GraphBuilder, Vec<GroupId>, ValueId) {
    let mut b = GraphBuilder::new("pieces", Some(ranks));
    let members = groups(ranks).into_iter().enumerate();
    let groups: Vec<GroupId> = members.map(|(i, m)| b.group(&format!("g{i}"), m)).collect();
    let n = i64::from(ranks);
    let x = b.input(InputKind::Argument, "x", "", TensorType::new(dtype, vec![Dim::from(2 * n * n)]), None);
    let x = b.reshape("rows", x, vec![Dim::from(2 * n), Dim::from(n)]).expect("as many elements");
    (b, groups, x)
}

/// The number of collectives and shards of a program.
fn costs(graph: &Graph) -> usize {
    let costs = |op: &Op| matches!(op, Op::Collective(_) | Op::Shard { .. });
    graph.nodes.values().filter(|node| costs(&node.op)).count()
}

/// A piece of a value that is computed from a collective. `None` if types do not fit.
fn piece_program(
    ranks: u32,
    dtype: DType,
    [inner, outer]: [usize; 2],
    kind: &CollectiveKind,
    compute: Compute,
    axis: usize,
) -> Option<Graph> {
    let (mut b, groups, x) = begin(ranks, dtype);
    let whole = add_collective(&mut b, kind.clone(), groups[inner], x);
    let value = compute(&mut b, whole, x)?;
    let piece = b.op("own", Op::Shard { axis, group: groups[outer] }, &[value]).ok()?;
    b.output(piece);
    Some(b.finish())
}

#[test]
fn pieces_keep_all_bits() {
    let reductions = [CollectiveReduceOp::Sum, CollectiveReduceOp::Max].map(CollectiveKind::AllReduce);
    let kinds: Vec<CollectiveKind> = std::iter::once(CollectiveKind::AllGather).chain(reductions).collect();
    let (mut programs, mut changed) = (0, 0);
    for (ranks, &dtype) in [2, 3, 4].into_iter().flat_map(|n| DType::ALL.iter().map(move |d| (n, d))) {
        let count = groups(ranks).len();
        let is_only_moved = dtype == DType::Bool || dtype.is_storage_float();
        let kinds = &kinds[..if is_only_moved { 1 } else { kinds.len() }];
        for pair in (0..count * count).map(|i| [i / count, i % count]) {
            for (kind, &compute) in kinds.iter().flat_map(|kind| COMPUTED.iter().map(move |c| (kind, c))) {
                for axis in 0..2 {
                    let Some(source) = piece_program(ranks, dtype, pair, kind, compute, axis) else {
                        continue;
                    };
                    check(&source, ranks, dtype, 2 * (ranks * ranks) as usize);
                    programs += 1;
                    changed += usize::from(costs(&canonicalize(&source).unwrap().0) < costs(&source));
                }
            }
        }
    }
    assert!(programs > 20_000 && 4 * changed > programs, "{changed} of {programs}");
}

#[test]
fn sends_keep_all_bits() {
    let mut programs = 0;
    for (ranks, &dtype) in [2, 3, 4].into_iter().flat_map(|n| DType::ALL.iter().map(move |d| (n, d))) {
        let pairs_by = |by: u32| (0..ranks).map(|rank| (rank, (rank + by) % ranks)).collect::<Vec<_>>();
        let mut sends: Vec<CollectiveKind> =
            (1..ranks).map(|by| CollectiveKind::Permute { pairs: pairs_by(by) }).collect();
        sends.push(CollectiveKind::Permute { pairs: pairs_by(1)[1..].to_vec() });
        sends.push(CollectiveKind::Permute { pairs: vec![(ranks - 1, 0)] });
        sends.push(CollectiveKind::Permute { pairs: Vec::new() });
        sends.push(CollectiveKind::Broadcast { root: ranks - 1 });
        // Groups of all ranks: in order, and reversed.
        for (inner, outer) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            for (first, second) in sends.iter().flat_map(|a| sends.iter().map(move |b| (a, b))) {
                let (mut b, groups, x) = begin(ranks, dtype);
                let sent = add_collective(&mut b, first.clone(), groups[inner], x);
                let sent = add_collective(&mut b, second.clone(), groups[outer], sent);
                b.output(sent);
                check(&b.finish(), ranks, dtype, 2 * (ranks * ranks) as usize);
                programs += 1;
            }
        }
    }
    assert!(programs > 2_000, "{programs}");
}

/// Chains are longer than rules may nest.
#[test]
fn pieces_move_through_long_chains() {
    for layers in [1, 20, 100] {
        let mut text = String::from(
            "program \"p\" ranks 4\ngroup @w world\narg %x: f32[4, 8]\nparam %m: f32[8, 8] source \"m\"\n\
             %v0: f32[16, 8] = all_gather %x group=@w\n",
        );
        for i in 0..layers {
            let next = i + 1;
            text += &format!(
                "%n{i}: f32[16, 8] = softmax %v{i} axis=1 log=false\n%p{i}: f32[16, 8] = matmul %n{i}, %m\n\
                 %v{next}: f32[16, 8] = add %p{i}, %v{i}\n"
            );
        }
        text += &format!("%y: f32[4, 8] = shard %v{layers} axis=0 group=@w\nreturn %y\n");
        let (out, _) = canonicalize(&symmc_ir::text::parse(&text).unwrap()).unwrap();
        assert_eq!(costs(&out), 0, "{layers} layers");
    }
}
