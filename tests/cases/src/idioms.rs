//! Random programs of the idioms that passes rewrite: the seed names the program.
//!
//! Each program is a chain of a few idioms over values of two axes: sums of all-reduces with residuals between them, gathers of
//! scattered values with element-wise work between them, collectives that undo one another or that find the same bits on every rank,
//! casts on either side, several collectives side by side, reductions, slices and pieces of gathered values, products before and after
//! collectives, collectives of slices. Groups overlap, are reversed, have
//! one rank, or have the cells of another under another name.

use symmc_ir::collective::{AllToAllSplits, Collective};
use symmc_ir::{
    ArgOp, BinaryOp, CollectiveKind, CollectiveReduceOp, DType, Dim, FloatAttribute, Graph, GraphBuilder,
    GroupId, GroupMembers, InputKind, Op, ReductionKind, Scalar, TensorType, UnaryOp, ValueId,
};
use symmc_support::random::SplitMix;

/// A program and what it may do to bits.
pub struct IdiomProgram {
    /// The program.
    pub graph: Graph,
    /// It has sums, over an axis, of which the order is open: rewriting may round these otherwise.
    pub has_open_sums: bool,
}

/// The most elements of a value.
const MOST: i64 = 4096;

/// The program of a seed.
pub fn program(seed: u64) -> IdiomProgram {
    let mut r = SplitMix(seed ^ 0x1d10_4d5e);
    let ranks = r.pick(&[1, 2, 2, 3, 4, 4, 4, 6, 8]);
    let mut b = GraphBuilder::new(format!("idioms {seed}"), Some(ranks));
    let groups = groups(&mut b, ranks);
    let dtype = r.pick(&[
        DType::F32,
        DType::F32,
        DType::BF16,
        DType::BF16,
        DType::F16,
        DType::F64,
        DType::I32,
        DType::I64,
        DType::U8,
    ]);
    let rows = match r.below(5) {
        0 => Dim::from(b.symbol("t", 0, 3)) * Dim::from(i64::from(ranks)),
        1 => Dim::from(r.pick(&[0, 1, 5])),
        _ => Dim::from(i64::from(ranks) * r.pick(&[1, 2, 4])),
    };
    let columns = Dim::from(r.pick(&[1, 3, 4, 8]));
    let mut grower = IdiomGrower { b, r, groups, values: Vec::new(), has_open_sums: false };
    for i in 0..3 {
        let ty = TensorType::new(dtype, vec![rows.clone(), columns.clone()]);
        let name = format!("in{i}");
        let value = grower.b.input(InputKind::Argument, &name, &name, ty, None);
        grower.values.push(value);
    }
    for _ in 0..2 + grower.r.below(5) {
        (0..10).find(|_| grower.idiom().is_some());
    }
    grower.finish()
}

/// All ranks, under two names and in reverse; halves; the ranks at equal places of the halves; pairs in turn; single ranks.
fn groups(b: &mut GraphBuilder, ranks: u32) -> Vec<GroupId> {
    let ranks_in_order: Vec<u32> = (0..ranks).collect();
    let mut groups = vec![
        b.group("w", GroupMembers::World),
        b.group("v", GroupMembers::Cells(vec![ranks_in_order.clone()])),
    ];
    groups.push(b.group("back", GroupMembers::Cells(vec![ranks_in_order.iter().rev().copied().collect()])));
    groups.push(b.group("one", GroupMembers::Cells(ranks_in_order.iter().map(|&rank| vec![rank]).collect())));
    if ranks.is_multiple_of(2) && ranks > 2 {
        let half = ranks / 2;
        let rows = vec![(0..half).collect(), (half..ranks).collect()];
        let columns = (0..half).map(|rank| vec![rank, rank + half]).collect();
        let turned = (0..half).map(|rank| vec![rank + half, rank]).collect();
        groups.push(b.group("rows", GroupMembers::Cells(rows)));
        groups.push(b.group("columns", GroupMembers::Cells(columns)));
        groups.push(b.group("turned", GroupMembers::Cells(turned)));
    }
    groups
}

struct IdiomGrower {
    b: GraphBuilder,
    r: SplitMix,
    groups: Vec<GroupId>,
    values: Vec<ValueId>,
    has_open_sums: bool,
}

impl IdiomGrower {
    fn finish(mut self) -> IdiomProgram {
        let first_returned = self.values.len().saturating_sub(3);
        let mut returned: Vec<ValueId> = self.values[first_returned..].to_vec();
        if self.r.one_in(3) {
            returned.push(self.r.pick(&self.values));
        }
        returned.dedup();
        for value in returned {
            // An input or a result that is returned twice would be one buffer of two outputs.
            let own = self.b.op("out", Op::Copy, &[value]).unwrap_or(value);
            self.b.output(own);
        }
        IdiomProgram { graph: self.b.finish(), has_open_sums: self.has_open_sums }
    }

    fn ty(&self, v: ValueId) -> TensorType {
        self.b.graph().ty(v).clone()
    }

    /// A value with two axes, most often a recent one.
    fn value(&mut self) -> ValueId {
        let near = self.values.len().min(4);
        if self.r.one_in(3) {
            self.r.pick(&self.values)
        } else {
            self.values[self.values.len() - 1 - self.r.below(near)]
        }
    }

    /// Another value of the same type, if there is one.
    fn alike(&mut self, x: ValueId) -> ValueId {
        let ty = self.ty(x);
        let candidates: Vec<ValueId> = self.values.iter().copied().filter(|&v| self.ty(v) == ty).collect();
        self.r.pick(&candidates)
    }

    fn keep(&mut self, v: ValueId) -> Option<()> {
        let graph = self.b.graph();
        if graph.ty(v).numel().upper_bound(&graph.symbols) <= MOST {
            self.values.push(v);
        }
        Some(())
    }

    fn collective(&mut self, kind: CollectiveKind, group: GroupId, x: ValueId) -> Option<ValueId> {
        self.b.op("c", Op::Collective(Collective { kind, group, variant: None }), &[x]).ok()
    }

    fn gather(&mut self, group: GroupId, x: ValueId) -> Option<ValueId> {
        let ranks = i64::from(self.b.graph().group_size(group)?);
        let wide = self.ty(x).numel() * Dim::from(ranks);
        if wide.upper_bound(&self.b.graph().symbols) > MOST {
            return None;
        }
        self.collective(CollectiveKind::AllGather, group, x)
    }

    fn reduction(&mut self) -> CollectiveReduceOp {
        use CollectiveReduceOp::{Avg, Max, Min, Prod, Sum};
        self.r.pick(&[Sum, Sum, Sum, Max, Max, Min, Avg, Prod])
    }

    /// Element-wise work of one value.
    fn worked(&mut self, x: ValueId) -> Option<ValueId> {
        let is_float = self.ty(x).dtype.is_float();
        let scalar = |s: f64| if is_float { Scalar::Float(FloatAttribute(s)) } else { Scalar::Int(s as i64) };
        let by = |op, s| Op::BinaryScalar { op, scalar: scalar(s), scalar_left: false };
        let op = match self.r.below(6) {
            0 => Op::Unary(UnaryOp::Neg),
            1 => by(BinaryOp::Mul, 2.0),
            2 => by(BinaryOp::Add, 1.0),
            3 => by(BinaryOp::Max, 0.0),
            4 if is_float => Op::Unary(UnaryOp::Tanh),
            _ => Op::Unary(UnaryOp::Neg),
        };
        self.b.op("e", op, &[x]).ok()
    }

    fn cast(&mut self, x: ValueId) -> Option<ValueId> {
        use DType::{BF16, F16, F32, F64, I32, I64, U8};
        let ty = self.ty(x);
        let dtype = if ty.dtype.is_float() {
            self.r.pick(&[F32, BF16, F16, F64])
        } else {
            self.r.pick(&[I32, I64, U8])
        };
        self.b.op_as("t", Op::Cast, &[x], TensorType::new(dtype, ty.shape)).ok()
    }

    /// A cast of a value, perhaps of its columns one after another, with its own shape in the end.
    fn cast_of_views(&mut self, x: ValueId) -> Option<ValueId> {
        let ty = self.ty(x);
        if self.r.one_in(2) {
            return self.cast(x);
        }
        let turned = self.b.op("v", Op::Permute { perm: vec![1, 0] }, &[x]).ok()?;
        let flat = self.b.reshape("v", turned, vec![ty.numel()]).ok()?;
        let flat =
            if self.r.one_in(2) { self.b.op("v", Op::Concat { axis: 0 }, &[flat]).ok()? } else { flat };
        let cast = self.cast(flat)?;
        self.b.reshape("v", cast, ty.shape).ok()
    }

    fn idiom(&mut self) -> Option<()> {
        let (x, group) = (self.value(), self.r.pick(&self.groups));
        match self.r.below(20) {
            14 | 15 => self.taken_in_pieces(x, group),
            16 => self.product_of_communicated(x, group),
            17 => self.slices_of_one(x, group),
            0 | 1 => self.sum_of_all_reduces(x, group),
            2 | 3 => self.scattered_and_gathered(x, group),
            4 | 5 => self.cast_beside(x, group),
            6 | 7 => self.twice(x, group),
            8 | 9 => self.side_by_side(x, group),
            10 | 11 => self.reduced_after_gather(x, group),
            12 => self.known_everywhere(x, group),
            13 => self.permuted(x, group),
            _ => {
                let y = self.alike(x);
                let op = self.r.pick(&[BinaryOp::Add, BinaryOp::Mul, BinaryOp::Max]);
                let v = if self.r.one_in(2) {
                    self.worked(x)?
                } else {
                    self.b.op("b", Op::Binary(op), &[x, y]).ok()?
                };
                self.keep(v)
            }
        }
    }

    /// `h + all_reduce(x) + all_reduce(y)` in some nesting, perhaps with a bias, perhaps with a term that is read twice, or the same of
    /// reduce-scatters.
    fn sum_of_all_reduces(&mut self, x: ValueId, group: GroupId) -> Option<()> {
        if self.r.one_in(3) {
            return self.sum_of_reduce_scatters(x, group);
        }
        let mut terms = Vec::new();
        for _ in 0..1 + self.r.below(3) {
            let own = self.alike(x);
            let own = if self.r.one_in(2) { self.worked(own)? } else { own };
            let group = if self.r.one_in(4) { self.r.pick(&self.groups) } else { group };
            terms.push(self.collective(CollectiveKind::AllReduce(CollectiveReduceOp::Sum), group, own)?);
        }
        for _ in 0..self.r.below(3) {
            terms.push(self.alike(x));
        }
        if self.r.one_in(4) {
            self.keep(terms[0])?;
        }
        while terms.len() > 1 {
            let (i, j) = (self.r.below(terms.len()), self.r.below(terms.len() - 1));
            let a = terms.swap_remove(i);
            let b = terms.swap_remove(j);
            terms.push(self.b.op("s", Op::Binary(BinaryOp::Add), &[a, b]).ok()?);
        }
        self.keep(terms[0])
    }

    fn sum_of_reduce_scatters(&mut self, x: ValueId, group: GroupId) -> Option<()> {
        let kind = CollectiveKind::ReduceScatter(CollectiveReduceOp::Sum);
        let mut sum = self.collective(kind.clone(), group, x)?;
        for _ in 0..1 + self.r.below(3) {
            let own = self.alike(x);
            let own = if self.r.one_in(2) { self.worked(own)? } else { own };
            let term = self.collective(kind.clone(), group, own)?;
            sum = self.b.op("s", Op::Binary(BinaryOp::Add), &[sum, term]).ok()?;
        }
        self.keep(sum)
    }

    /// An op that is independent along rows, or along columns.
    fn along_an_axis(&mut self, x: ValueId) -> Option<ValueId> {
        let axis = self.r.below(2);
        let op = match self.r.below(7) {
            0 => Op::Softmax { axis, log: false },
            1 => Op::RmsNorm { axes: 1, eps: FloatAttribute(1e-3), round_first: false },
            2 => Op::CumSum { axis },
            3 => Op::Permute { perm: vec![1, 0] },
            4 => Op::Concat { axis },
            5 => {
                self.has_open_sums = true;
                Op::Reduce { op: ReductionKind::Sum, axes: vec![axis], keep: true }
            }
            _ => return self.worked(x),
        };
        let operands = if op == (Op::Concat { axis }) { vec![x, x] } else { vec![x] };
        self.b.op("r", op, &operands).ok()
    }

    /// A piece of what is computed from a communicated value.
    fn taken_in_pieces(&mut self, x: ValueId, group: GroupId) -> Option<()> {
        let inner = if self.r.one_in(3) { self.r.pick(&self.groups) } else { group };
        let mut v = if self.r.one_in(2) { self.worked(x)? } else { x };
        v = if self.r.one_in(2) {
            self.gather(inner, v)?
        } else {
            let op = self.reduction();
            self.collective(CollectiveKind::AllReduce(op), inner, v)?
        };
        if self.r.one_in(6) {
            self.keep(v)?;
        }
        for _ in 0..self.r.below(4) {
            v = self.along_an_axis(v)?;
        }
        let axis = self.r.below(2);
        let piece = self.b.op("d", Op::Shard { axis, group }, &[v]).ok()?;
        self.keep(piece)
    }

    /// A product with a matrix that all ranks of a cell hold, before or after a collective.
    fn product_of_communicated(&mut self, x: ValueId, group: GroupId) -> Option<()> {
        let kind = match self.r.below(3) {
            0 => CollectiveKind::AllReduce(CollectiveReduceOp::Sum),
            1 => CollectiveKind::AllReduce(CollectiveReduceOp::Avg),
            _ => CollectiveKind::AllGather,
        };
        let own = self.alike(x);
        let turned = self.b.op("m", Op::Permute { perm: vec![1, 0] }, &[own]).ok()?;
        let matrix = self.collective(CollectiveKind::Broadcast { root: 0 }, group, turned)?;
        let is_before = self.r.one_in(2);
        let mut v = x;
        if is_before {
            v = self.b.op("p", Op::MATMUL, &[v, matrix]).ok()?;
        }
        v = self.collective(kind, group, v)?;
        if !is_before {
            v = self.b.op("p", Op::MATMUL, &[v, matrix]).ok()?;
        }
        self.has_open_sums = true;
        self.keep(v)
    }

    /// Collectives of two slices of one value.
    fn slices_of_one(&mut self, x: ValueId, group: GroupId) -> Option<()> {
        let x = self.worked(x)?;
        let (axis, op) = (self.r.below(2), self.reduction());
        let kind = self.r.pick(&[CollectiveKind::AllReduce(op), CollectiveKind::AllGather]);
        let ty = self.ty(x);
        let extent = ty.shape[axis].as_const().filter(|&extent| extent > 1)?;
        let first = 1 + self.r.below(extent as usize - 1) as i64;
        for (start, len) in [(0, first), (first, extent - first)] {
            let mut ty = ty.clone();
            ty.shape[axis] = Dim::from(len);
            let slice = Op::Slice { axis, start: Dim::from(start), step: 1 };
            let slice = self.b.op_as("l", slice, &[x], ty).ok()?;
            let moved = self.collective(kind.clone(), group, slice)?;
            self.keep(moved)?;
        }
        Some(())
    }

    /// A gather of element-wise work of a scattered value; perhaps the value is reduced whole too.
    fn scattered_and_gathered(&mut self, x: ValueId, group: GroupId) -> Option<()> {
        let x = self.worked(x)?;
        let op = self.reduction();
        let mut piece = self.collective(CollectiveKind::ReduceScatter(op), group, x)?;
        if self.r.one_in(3) {
            let reduced = self.collective(CollectiveKind::AllReduce(op), group, x)?;
            self.keep(reduced)?;
        }
        for _ in 0..self.r.below(3) {
            piece = if self.r.one_in(3) { self.cast(piece)? } else { self.worked(piece)? };
        }
        if self.r.one_in(3) {
            self.keep(piece)?;
        }
        let group = if self.r.one_in(4) { self.r.pick(&self.groups) } else { group };
        let gathered = self.gather(group, piece)?;
        self.keep(gathered)
    }

    /// A collective with a cast in front of it or behind it, or both.
    fn cast_beside(&mut self, x: ValueId, group: GroupId) -> Option<()> {
        let x = if self.r.one_in(2) { self.cast_of_views(x)? } else { x };
        let kind = match self.r.below(5) {
            0 => CollectiveKind::AllReduce(self.reduction()),
            1 => CollectiveKind::ReduceScatter(self.reduction()),
            2 => CollectiveKind::AllToAll(AllToAllSplits::Even),
            3 => CollectiveKind::Broadcast { root: 0 },
            _ => {
                let gathered = self.gather(group, x)?;
                let cast = self.cast_of_views(gathered)?;
                return self.keep(cast);
            }
        };
        let moved = self.collective(kind, group, x)?;
        let v = if self.r.one_in(2) { self.cast(moved)? } else { moved };
        self.keep(v)
    }

    /// A collective behind a collective, often of the same group: pairs that undo one another, that move the same bits twice, that fold
    /// into one over a larger group.
    fn twice(&mut self, x: ValueId, group: GroupId) -> Option<()> {
        let mut v = if self.r.one_in(2) { self.worked(x)? } else { x };
        for _ in 0..2 {
            let group = if self.r.one_in(2) { group } else { self.r.pick(&self.groups) };
            v = match self.r.below(7) {
                0 | 1 => self.gather(group, v)?,
                6 => self.b.op("d", Op::Shard { axis: 0, group }, &[v]).ok()?,
                2 => {
                    let op = self.reduction();
                    self.collective(CollectiveKind::AllReduce(op), group, v)?
                }
                3 => {
                    let op = self.reduction();
                    self.collective(CollectiveKind::ReduceScatter(op), group, v)?
                }
                4 => self.collective(CollectiveKind::AllToAll(AllToAllSplits::Even), group, v)?,
                _ => {
                    let root = self.r.below(self.b.graph().group_size(group)? as usize) as u32;
                    self.collective(CollectiveKind::Broadcast { root }, group, v)?
                }
            };
            if self.r.one_in(4) {
                v = self.worked(v)?;
            }
        }
        self.keep(v)
    }

    /// Several collectives of one kind that need nothing of each other.
    fn side_by_side(&mut self, x: ValueId, group: GroupId) -> Option<()> {
        let op = self.reduction();
        let kind = self.r.pick(&[
            CollectiveKind::AllReduce(op),
            CollectiveKind::AllReduce(op),
            CollectiveKind::AllGather,
            CollectiveKind::ReduceScatter(op),
            CollectiveKind::AllToAll(AllToAllSplits::Even),
        ]);
        let mut results = Vec::new();
        for _ in 0..2 + self.r.below(3) {
            let own = if self.r.one_in(2) { self.alike(x) } else { self.value() };
            let own = if self.r.one_in(3) { own } else { self.worked(own)? };
            let moved = match kind {
                CollectiveKind::AllGather => self.gather(group, own)?,
                _ => self.collective(kind.clone(), group, own)?,
            };
            results.push(if self.r.one_in(3) { self.worked(moved)? } else { moved });
        }
        if self.r.one_in(3) {
            let axis = self.r.below(2);
            let joined = self.b.op("cat", Op::Concat { axis }, &results).ok()?;
            return self.keep(joined);
        }
        results.into_iter().try_for_each(|v| self.keep(v))
    }

    /// A reduction or a part of a gathered value, gathered along one of its two axes.
    fn reduced_after_gather(&mut self, x: ValueId, group: GroupId) -> Option<()> {
        let n = Dim::from(i64::from(self.b.graph().group_size(group)?));
        let ty = self.ty(x);
        let mut gathered = self.gather(group, x)?;
        if self.r.one_in(2) {
            // As the columns of one matrix.
            let [rows, columns] = <[Dim; 2]>::try_from(ty.shape.clone()).ok()?;
            let pieces =
                self.b.reshape("p", gathered, vec![n.clone(), rows.clone(), columns.clone()]).ok()?;
            let turned = self.b.op("p", Op::Permute { perm: vec![1, 0, 2] }, &[pieces]).ok()?;
            gathered = self.b.reshape("p", turned, vec![rows, columns * n]).ok()?;
        }
        if self.r.one_in(3) {
            gathered = if self.r.one_in(2) { self.cast(gathered)? } else { self.worked(gathered)? };
        }
        let axis = self.r.below(2);
        let (shape, least) =
            (self.ty(gathered).shape, self.ty(gathered).shape[axis].bounds(&self.b.graph().symbols).0);
        let reduce = |op| Op::Reduce { op, axes: vec![axis], keep: true };
        let v = match self.r.below(6) {
            0 | 1 if least > 0 => {
                let op = self.r.pick(&[ArgOp::Max, ArgOp::Min]);
                self.b.op("a", Op::ArgReduce { op, axis, keep: true }, &[gathered]).ok()?
            }
            2 if least > 0 => {
                let op = self.r.pick(&[ReductionKind::Max, ReductionKind::Min]);
                self.b.op("a", reduce(op), &[gathered]).ok()?
            }
            3 => {
                self.has_open_sums = true;
                self.b.op("a", reduce(ReductionKind::Sum), &[gathered]).ok()?
            }
            _ if least > 0 => {
                let start = shape[axis].clone() - Dim::from(1);
                let mut slice_type = TensorType::new(self.ty(gathered).dtype, shape);
                slice_type.shape[axis] = Dim::from(1);
                self.b.op_as("l", Op::Slice { axis, start, step: 1 }, &[gathered], slice_type).ok()?
            }
            _ => gathered,
        };
        self.keep(v)
    }

    /// Collectives of what all ranks know: constants, and values with the same bits everywhere.
    fn known_everywhere(&mut self, x: ValueId, group: GroupId) -> Option<()> {
        let ty = self.ty(x);
        let shared = if self.r.one_in(2) {
            let scalar = if ty.dtype.is_float() {
                Scalar::Float(FloatAttribute(self.r.pick(&[0.0, -0.0, 1.5])))
            } else {
                Scalar::Int(3)
            };
            self.b.op_as("f", Op::Full(scalar), &[], ty).ok()?
        } else {
            let op = self.reduction();
            self.collective(CollectiveKind::AllReduce(op), group, x)?
        };
        let shared = if self.r.one_in(2) { self.worked(shared)? } else { shared };
        let second_group = if self.r.one_in(3) { self.r.pick(&self.groups) } else { group };
        let op = self.reduction();
        let v = match self.r.below(6) {
            4 => self.b.op("d", Op::Shard { axis: 0, group: second_group }, &[shared]).ok()?,
            5 => {
                let own = self.b.op("d", Op::Shard { axis: 0, group: second_group }, &[shared]).ok()?;
                self.gather(group, own)?
            }
            0 => self.collective(CollectiveKind::AllReduce(op), second_group, shared)?,
            1 => self.collective(CollectiveKind::Broadcast { root: 0 }, second_group, shared)?,
            2 => self.collective(CollectiveKind::ReduceScatter(op), second_group, shared)?,
            _ => self.gather(second_group, shared)?,
        };
        self.keep(v)
    }

    /// A permutation of ranks, perhaps with its inverse behind it.
    fn permuted(&mut self, x: ValueId, group: GroupId) -> Option<()> {
        let n = self.b.graph().group_size(group)?;
        let by = 1 + self.r.below(n as usize) as u32;
        let mut pairs: Vec<(u32, u32)> = (0..n).map(|rank| (rank, (rank + by) % n)).collect();
        if self.r.one_in(3) {
            pairs.pop();
        }
        let back = pairs.iter().map(|&(from, to)| (to, from)).collect();
        let mut v = self.collective(CollectiveKind::Permute { pairs }, group, x)?;
        if self.r.one_in(2) {
            v = self.collective(CollectiveKind::Permute { pairs: back }, group, v)?;
        }
        self.keep(v)
    }
}
