//! Random lowered programs.

use symmc_ir::collective::{AllToAllSplits, Collective};
use symmc_ir::entity::Entity;
use symmc_ir::{
    BinaryOp, CollectiveKind, CollectiveReduceOp, CollectiveVariant, DType, Dim, FloatAttribute, Graph,
    GraphBuilder, GraphOutput, GroupId, GroupMembers, InputId, InputKind, Op, OutputKind, Scalar, SymbolId,
    TensorType, UnaryOp, ValueId,
};
use symmc_support::random::SplitMix;

/// The program for each of these inclusive ranges of its first symbol.
pub fn narrowed(graph: &Graph, ranges: &[(i64, i64)]) -> Vec<Graph> {
    let narrow = |&(min, max): &(i64, i64)| {
        let mut g = graph.clone();
        let symbol = &mut g.symbols[SymbolId::new(0)];
        (symbol.min, symbol.max) = (min, max);
        g
    };
    ranges.iter().map(narrow).collect()
}

/// A random program on four ranks with `size` nodes. All values are `f32 [4*t, 8]`, or views and parts of such
/// values.
pub fn program(seed: u64, size: usize) -> Graph {
    let mut r = SplitMix(seed);
    let mut b = GraphBuilder::new(format!("random {seed}"), Some(4));
    let t = b.symbol("t", 1, 64);
    let groups = [
        b.group("all", GroupMembers::World),
        b.group("pairs", GroupMembers::Cells(vec![vec![0, 1], vec![2, 3]])),
        b.group("cross", GroupMembers::Cells(vec![vec![0, 2], vec![3, 1]])),
        b.group("single", GroupMembers::Cells((0..4).map(|r| vec![r]).collect())),
    ];
    let shape = [Dim::from(t) * Dim::from(4), Dim::from(8)];
    let ty = TensorType::new(DType::F32, shape.clone());
    let mut values: Vec<ValueId> = Vec::new();
    for i in 0..1 + r.below(3) {
        let kind = r.pick(&[InputKind::Argument, InputKind::Parameter]);
        values.push(b.input(kind, &format!("in{i}"), "", ty.clone(), None));
    }
    let square = TensorType::new(DType::F32, [Dim::from(8), Dim::from(8)]);
    let w = b.input(InputKind::Parameter, "w", "w", square, None);
    for i in 0..size {
        let x = values[values.len() - 1 - r.below(values.len().min(6))];
        let y = values[r.below(values.len())];
        let group = r.pick(&groups);
        if let Some(v) = node(&mut b, &mut r, &format!("v{i}"), (x, y, w), group, t) {
            values.push(v);
        }
    }
    let outputs = 1 + r.below(3);
    for _ in 0..outputs {
        let v = values[values.len() - 1 - r.below(values.len().min(5))];
        b.output(v);
    }
    if r.below(100) < 30 {
        let value = r.pick(&values);
        b.graph_mut().outputs.push(GraphOutput { value, kind: OutputKind::Mutates(InputId::new(0)) });
    }
    b.finish()
}

/// Adds a random node whose result has the type of `x`, possibly over a few others.
fn node(
    b: &mut GraphBuilder,
    r: &mut SplitMix,
    name: &str,
    (x, y, w): (ValueId, ValueId, ValueId),
    group: GroupId,
    t: SymbolId,
) -> Option<ValueId> {
    let ranks = Dim::from(i64::from(b.graph().group_size(group)?));
    let four = Dim::from(t) * Dim::from(4);
    match r.below(15) {
        0 => b.op(name, Op::Unary(UnaryOp::Relu), &[x]).ok(),
        1 | 2 => b.op(name, Op::Binary(BinaryOp::Add), &[x, y]).ok(),
        3 | 4 => b.op(name, Op::MATMUL, &[x, w]).ok(),
        5 => permute_axes(b, name, x, four),
        6 => {
            let scalar = Scalar::Float(FloatAttribute(2.0));
            b.op(name, Op::BinaryScalar { op: BinaryOp::Mul, scalar, scalar_left: false }, &[x]).ok()
        }
        7 => collective(b, r, name, CollectiveKind::AllReduce(CollectiveReduceOp::Sum), group, x),
        8 => {
            // A piece, gathered.
            if ranks == Dim::from(1) {
                return None;
            }
            let piece_type = TensorType::new(DType::F32, [four.exact_div(&ranks)?, Dim::from(8)]);
            let step =
                Op::Slice { axis: 0, start: if r.one_in(2) { Dim::from(0) } else { Dim::from(t) }, step: 1 };
            let mut piece = b.op_as(&format!("{name}.piece"), step, &[x], piece_type.clone()).ok()?;
            if r.below(100) < 60 {
                piece = b.op(&format!("{name}.part"), Op::Unary(UnaryOp::Neg), &[piece]).ok()?;
            }
            collective(b, r, name, CollectiveKind::AllGather, group, piece)
        }
        9 => {
            let reduced = collective(
                b,
                r,
                &format!("{name}.rs"),
                CollectiveKind::ReduceScatter(CollectiveReduceOp::Sum),
                group,
                x,
            )?;
            let n = b.graph().group_size(group)? as usize;
            let pieces: Vec<ValueId> = vec![reduced; n];
            b.op(name, Op::Concat { axis: 0 }, &pieces).ok()
        }
        10 => collective(b, r, name, CollectiveKind::AllToAll(AllToAllSplits::Even), group, x),
        11 => collective(b, r, name, CollectiveKind::Broadcast { root: 0 }, group, x),
        12 => {
            let n = b.graph().group_size(group)?;
            let shift = r.below(n as usize) as u32;
            let mut pairs: Vec<(u32, u32)> = (0..n).map(|r| (r, (r + shift) % n)).collect();
            pairs.truncate(1 + r.below(n as usize));
            collective(b, r, name, CollectiveKind::Permute { pairs }, group, x)
        }
        13 => side_by_side(b, name, (x, y), four),
        _ => on_top(b, name, (x, y), t),
    }
}

/// A permutation of the axes, which a reshape then has to copy.
fn permute_axes(b: &mut GraphBuilder, name: &str, x: ValueId, four: Dim) -> Option<ValueId> {
    let shape = b.graph().ty(x).shape.clone();
    let flat = b.reshape(&format!("{name}.flat"), x, vec![four, Dim::from(2), Dim::from(4)]).ok()?;
    let turned = b.op(&format!("{name}.turned"), Op::Permute { perm: vec![0, 2, 1] }, &[flat]).ok()?;
    b.reshape(name, turned, shape).ok()
}

/// Halves of the rows of two values, side by side.
fn side_by_side(b: &mut GraphBuilder, name: &str, (x, y): (ValueId, ValueId), four: Dim) -> Option<ValueId> {
    let half = TensorType::new(DType::F32, [four, Dim::from(4)]);
    let mut piece = |i: i64, of: ValueId| {
        let slice = Op::Slice { axis: 1, start: Dim::from(4 * i), step: 1 };
        b.op_as(&format!("{name}.half{i}"), slice, &[of], half.clone()).ok()
    };
    let (low, high) = (piece(0, x)?, piece(1, y)?);
    b.op(name, Op::Concat { axis: 1 }, &[low, high]).ok()
}

/// Halves of two values, computed separately and concatenated along the first axis.
fn on_top(b: &mut GraphBuilder, name: &str, (x, y): (ValueId, ValueId), t: SymbolId) -> Option<ValueId> {
    let two = TensorType::new(DType::F32, [Dim::from(t) * Dim::from(2), Dim::from(8)]);
    let mut piece = |i: i64, of: ValueId| {
        let start = Dim::from(t) * Dim::from(2 * i);
        let slice =
            b.op_as(&format!("{name}.s{i}"), Op::Slice { axis: 0, start, step: 1 }, &[of], two.clone());
        b.op(&format!("{name}.p{i}"), Op::Unary(UnaryOp::Abs), &[slice.ok()?]).ok()
    };
    let (low, high) = (piece(0, x)?, piece(1, y)?);
    b.op(name, Op::Concat { axis: 0 }, &[low, high]).ok()
}

fn collective(
    b: &mut GraphBuilder,
    r: &mut SplitMix,
    name: &str,
    kind: CollectiveKind,
    group: GroupId,
    x: ValueId,
) -> Option<ValueId> {
    let fits: Vec<CollectiveVariant> =
        CollectiveVariant::ALL.iter().copied().filter(|v| v.contract(&kind).is_some()).collect();
    let variant = Some(r.pick(&fits));
    b.op(name, Op::Collective(Collective { kind, group, variant }), &[x]).ok()
}
