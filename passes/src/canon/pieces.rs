//! Lets ranks compute pieces of values themselves.
//!
//! A `shard` selects the positions of its rank along an axis. An op that is independent along that axis
//! ([`Op::axes`]) computes them from the same positions of its operands, so a `shard` moves across it, towards a
//! collective. There the rank already has its piece, or receives only that piece.
//!
//! Every rule keeps all bits, except for orders of summation that a product, a reduction along another axis or a
//! collective chooses by size.

use std::collections::{HashSet, VecDeque};

use symmc_ir::{AllToAllSplits, Collective, CollectiveKind, Dim, Op, TensorType, ValueId};

use crate::rewrite::{CandidateNode, Piece, Rewrite, RewriteRule, Rewriter, divided_operands};

pub const RULES: &[RewriteRule] = &[
    RewriteRule {
        name: "shard_of_gather",
        equation: "shard(all_gather(x)) = x along the leading axis of one group",
        apply: shard_of_gather,
    },
    RewriteRule {
        name: "shard_of_gather_along_axis",
        equation: "shard(all_gather(x)) = all_to_all(x) along another axis of one group, whose pieces are moved to the leading \
                   axis of x, and the same if the gather is viewed with an axis of ranks, if nothing needs it whole",
        apply: shard_of_gather_along_axis,
    },
    RewriteRule {
        name: "shard_of_all_reduce",
        equation: "shard(all_reduce(x)) = reduce_scatter(x) on one group, with the pieces of the axis moved to the leading axis \
                   of x, if nothing needs the whole sum",
        apply: shard_of_all_reduce,
    },
    RewriteRule {
        name: "shard_of_moved",
        equation: "shard(f(x, y)) = f(shard(x), shard(y)) if f is independent along the axis, nothing needs its result whole, \
                   and few pieces of operands need a copy",
        apply: shard_of_moved,
    },
];

/// The collective that gives a value, its operand, and the number of ranks, if its group has the cells of the piece.
fn collective_on_cells(cx: &Rewriter, v: ValueId, piece: Piece) -> Option<(Collective, ValueId, Dim)> {
    let (Op::Collective(c), &[x]) = cx.def(v)? else { return None };
    let ranks = cx.graph().group_size(c.group)?;
    let is_on_cells = cx.graph().have_same_cells(c.group, piece.group);
    is_on_cells.then(|| (c.clone(), x, Dim::from(i64::from(ranks))))
}

/// Whether others need a value than those that take this piece of it.
fn is_needed_whole(cx: &Rewriter, v: ValueId, piece: Piece) -> bool {
    cx.demanded_piece(v) != Some(piece) && cx.is_shared(v)
}

fn as_shard(node: &CandidateNode) -> Option<(Piece, ValueId)> {
    match (&node.op, &node.inputs[..]) {
        (&Op::Shard { axis, group }, &[x]) => Some((Piece { axis, group }, x)),
        _ => None,
    }
}

fn shard_of_gather(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let (piece, gathered) = as_shard(node).filter(|(piece, _)| piece.axis == 0)?;
    let (c, x, _) = collective_on_cells(cx, gathered, piece)?;
    (c.kind == CollectiveKind::AllGather).then_some(Rewrite::Value(x))
}

/// A gather that nothing needs whole, and the axis of its operand along which a piece of its result is taken. The result
/// may be viewed with the operands of the ranks along a new axis: `[n*d, e]` as `[n, d, e]`.
struct GatheredAxis {
    gather: Collective,
    x: ValueId,
    axis: usize,
    ranks: Dim,
}

impl GatheredAxis {
    fn of(cx: &Rewriter, v: ValueId, piece: Piece) -> Option<GatheredAxis> {
        let (gathered, is_view) = match cx.def(v)? {
            (Op::Reshape, &[gathered]) => (gathered, true),
            _ => (v, false),
        };
        let (gather, x, ranks) = collective_on_cells(cx, gathered, piece)?;
        let axis = piece.axis.checked_sub(usize::from(is_view))?;
        let has_rank_axis =
            cx.shape(v).split_first().is_some_and(|(n, own)| *n == ranks && own == cx.shape(x));
        let fits = if is_view { has_rank_axis } else { axis > 0 };
        let matches = gather.kind == CollectiveKind::AllGather && fits;
        let is_needed =
            matches && (is_needed_whole(cx, gathered, piece.along(axis)) || is_needed_whole(cx, v, piece));
        (matches && !is_needed).then_some(GatheredAxis { gather, x, axis, ranks })
    }
}

fn shard_of_gather_along_axis(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let (piece, gathered) = as_shard(node)?;
    let GatheredAxis { gather, x, axis, ranks } = GatheredAxis::of(cx, gathered, piece)?;
    let pieces = move_pieces_to_front(cx, x, axis, &ranks)?;
    let kind = CollectiveKind::AllToAll(AllToAllSplits::Even);
    let exchange = Op::Collective(Collective { kind, group: gather.group, variant: None });
    if axis == piece.axis {
        return Some(Rewrite::Node(exchange, vec![pieces]));
    }
    let ty = cx.ty(pieces).clone();
    let exchanged = cx.emit("own", exchange, &[pieces], ty);
    Some(Rewrite::Node(Op::Reshape, vec![exchanged]))
}

fn shard_of_all_reduce(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let (piece, sum) = as_shard(node)?;
    let (c, x, ranks) = collective_on_cells(cx, sum, piece)?;
    let CollectiveKind::AllReduce(op) = c.kind else { return None };
    if is_needed_whole(cx, sum, piece) {
        return None;
    }
    let pieces = move_pieces_to_front(cx, x, piece.axis, &ranks)?;
    let scatter = Collective { kind: CollectiveKind::ReduceScatter(op), group: c.group, variant: None };
    Some(Rewrite::Node(Op::Collective(scatter), vec![pieces]))
}

/// Moves the pieces of an axis, one for each rank, to the leading axis: `[d, .., n*e, ..]` becomes
/// `[n*d, .., e, ..]`.
fn move_pieces_to_front(cx: &mut Rewriter, x: ValueId, axis: usize, ranks: &Dim) -> Option<ValueId> {
    if axis == 0 {
        return Some(x);
    }
    let mut split = cx.shape(x).to_vec();
    split[axis] = split[axis].exact_div(ranks)?;
    let mut whole = split.clone();
    split.insert(axis, ranks.clone());
    let separate = cx.reshape(x, split.clone());
    let perm: Vec<usize> = std::iter::once(axis).chain((0..split.len()).filter(|&a| a != axis)).collect();
    let permuted: Vec<Dim> = perm.iter().map(|&a| split[a].clone()).collect();
    let ty = TensorType::new(cx.ty(x).dtype, permuted);
    let front = cx.emit("pieces", Op::Permute { perm }, &[separate], ty);
    whole[0] = whole[0].clone() * ranks.clone();
    Some(cx.reshape(front, whole))
}

/// The most pieces whose costs are counted to decide about one.
const MAX_COUNTED_PIECES: usize = 64;

/// The operands of the node that gives `v` that must be sharded to compute a piece of it, each with its axis. `None`
/// if the op does not compute pieces by itself.
fn divided_operands_of(cx: &Rewriter, v: ValueId, piece: Piece) -> Option<Vec<(usize, usize)>> {
    let graph = cx.graph();
    divided_operands(graph, &graph.nodes[graph.defining_node(v)?], piece)
}

/// The copies that a removed gather is worth: each takes about as long as the start-up of a collective at most.
const COPIES_PER_GATHER: usize = 2;

/// What it takes to compute a piece of a value from pieces of others.
#[derive(Default)]
struct PieceCosts {
    /// The pieces that are copied.
    copies: usize,
    /// The gathers that are removed.
    removed: usize,
}

impl PieceCosts {
    /// The costs of pieces of these values. If many values are computed in pieces, those that are far away are not
    /// counted: what is saved near by is worth their copies.
    fn count(cx: &Rewriter, pieces: Vec<(ValueId, Piece)>) -> PieceCosts {
        let mut costs = PieceCosts::default();
        let mut visited = HashSet::new();
        let mut open = VecDeque::from(pieces);
        while let Some((v, piece)) = open.pop_front() {
            if visited.len() < MAX_COUNTED_PIECES && visited.insert((v, piece)) {
                open.extend(costs.add(cx, v, piece));
            }
        }
        costs
    }

    /// Adds what a piece takes, and returns the pieces that it is computed from. A gather needs no copy, and neither
    /// does a sum without other readers. Along other axes than the leading one, their operands are copied.
    fn add(&mut self, cx: &Rewriter, v: ValueId, piece: Piece) -> Vec<(ValueId, Piece)> {
        if has_piece(cx, v, piece) {
            return Vec::new();
        }
        if let Some(gathered) = GatheredAxis::of(cx, v, piece) {
            self.copies += usize::from(gathered.axis > 0);
            return Vec::new();
        }
        match collective_on_cells(cx, v, piece).map(|(c, ..)| c.kind) {
            Some(CollectiveKind::AllGather) if piece.axis == 0 => {
                self.removed += usize::from(!is_needed_whole(cx, v, piece));
                return Vec::new();
            }
            Some(CollectiveKind::AllReduce(_)) if !is_needed_whole(cx, v, piece) => {
                self.copies += usize::from(piece.axis > 0);
                return Vec::new();
            }
            _ => {}
        }
        let divided = divided_operands_of(cx, v, piece).filter(|_| !is_needed_whole(cx, v, piece));
        match (divided, cx.def(v)) {
            (Some(divided), Some((_, inputs))) => {
                divided.into_iter().map(|(i, axis)| (inputs[i], piece.along(axis))).collect()
            }
            _ => {
                self.copies += 1;
                Vec::new()
            }
        }
    }
}

/// Whether the program takes this piece of `v` already.
fn has_piece(cx: &Rewriter, v: ValueId, piece: Piece) -> bool {
    let ranks = cx.graph().group_size(piece.group).map(|n| Dim::from(i64::from(n)));
    let mut ty = cx.ty(v).clone();
    let extent = ranks.and_then(|ranks| ty.shape.get(piece.axis)?.exact_div(&ranks));
    extent.is_some_and(|extent| {
        ty.shape[piece.axis] = extent;
        cx.existing(&Op::Shard { axis: piece.axis, group: piece.group }, &[v], &ty).is_some()
    })
}

fn shard_of_moved(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let (piece, moved) = as_shard(node)?;
    let divided = divided_operands_of(cx, moved, piece)?;
    let (op, inputs) = cx.def(moved)?;
    // A piece of a view is stored in the order in which it is read.
    let pieces = divided.iter().map(|&(i, axis)| (inputs[i], piece.along(axis))).collect();
    let costs = PieceCosts::count(cx, pieces);
    let max_copies = usize::from(!op.is_view()) + COPIES_PER_GATHER * costs.removed;
    if costs.copies > max_copies || is_needed_whole(cx, moved, piece) {
        return None;
    }
    let op = op.clone();
    let mut inputs = inputs.to_vec();
    let ranks = Dim::from(i64::from(cx.graph().group_size(piece.group)?));
    for (operand, axis) in divided {
        let mut ty = cx.ty(inputs[operand]).clone();
        ty.shape[axis] = ty.shape[axis].exact_div(&ranks)?;
        let shard = Op::Shard { axis, group: piece.group };
        inputs[operand] = cx.emit("own", shard, &[inputs[operand]], ty);
    }
    Some(Rewrite::Node(op, inputs))
}
