//! Random programs on random meshes: the seed names the program.
//!
//! A mesh has one to three axes and up to eight ranks in any order. Groups are its axes and planes, all ranks, cells
//! of one rank, and the cells of another group in another order; several stand in one program. Nodes are collectives
//! of all kinds, and what lies around them: views, slices, concatenations, element-wise ops, reductions. Sizes depend
//! on up to two symbols. The program of a seed with fewer nodes is the beginning of that with more.

use std::sync::Arc;

use symmc_ir::builder::BuildError;
use symmc_ir::collective::{AllToAllSplits, Collective};
use symmc_ir::{
    BinaryOp, CollectiveKind, CollectiveReduceOp, CollectiveVariant, DType, Dim, FloatAttribute, Graph,
    GraphBuilder, GraphOutput, GroupId, GroupMembers, InputId, InputKind, Op, OutputKind, ReductionKind,
    Route, RouteLayout, RouteScope, Scalar, Tensor, TensorType, UnaryOp, ValueId,
};
use symmc_support::random::SplitMix;

/// Whether collectives name the variants that run them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VariantMode {
    /// They do not: a pass chooses.
    Open,
    /// Each names one of those that can.
    Drawn,
}

/// The most ranks of a mesh.
const RANKS: usize = 8;

/// The program of a seed with about this many nodes.
pub fn program(seed: u64, nodes: usize, variants: VariantMode) -> Graph {
    let mut r = SplitMix(seed);
    let mut grower = ProgramGrower::new(&mut r, format!("random {seed}"), variants);
    for k in 0..nodes {
        // Each node has a stream of its own, so that what is tried in vain changes nothing behind it.
        let mut r = SplitMix(seed ^ (k as u64 + 1) << 32);
        (0..20).find(|_| grower.node(&mut r).is_some());
    }
    grower.finish(SplitMix(seed ^ 0x000f_1415))
}

/// The ranks of a mesh and its groups.
struct RankMesh {
    ranks: u32,
    groups: Vec<GroupMembers>,
}

impl RankMesh {
    fn drawn(r: &mut SplitMix) -> RankMesh {
        const SHAPES: [&[usize]; 18] = [
            &[2],
            &[3],
            &[4],
            &[5],
            &[6],
            &[7],
            &[8],
            &[2, 2],
            &[2, 2],
            &[2, 2],
            &[2, 3],
            &[3, 2],
            &[2, 4],
            &[4, 2],
            &[2, 2, 2],
            &[2, 2, 2],
            &[2, 1, 3],
            &[1],
        ];
        let shape = r.pick(&SHAPES);
        let ranks: usize = shape.iter().product();
        debug_assert!(ranks <= RANKS);
        let mut order: Vec<u32> = (0..ranks as u32).collect();
        if r.one_in(2) {
            shuffle(r, &mut order);
        }
        let mut groups = vec![];
        for axes in 1..1usize << shape.len() {
            let mut cells = cells_of(shape, axes, &order);
            if r.one_in(4) {
                shuffle(r, &mut cells);
            }
            if r.one_in(3) {
                cells.iter_mut().for_each(|cell| shuffle(r, cell));
            }
            groups.push(GroupMembers::Cells(cells));
        }
        if r.one_in(3) {
            groups.push(GroupMembers::World);
        }
        if r.one_in(4) {
            groups.push(GroupMembers::Cells(order.iter().map(|&rank| vec![rank]).collect()));
        }
        if let (true, Some(GroupMembers::Cells(cells))) = (r.one_in(3), groups.first()) {
            let reversed = cells.iter().map(|cell| cell.iter().rev().copied().collect());
            groups.push(GroupMembers::Cells(reversed.collect()));
        }
        while groups.len() > 4 {
            groups.remove(r.below(groups.len()));
        }
        RankMesh { ranks: ranks as u32, groups }
    }
}

/// The ranks that differ along these axes only, one cell for each place along the others.
fn cells_of(shape: &[usize], axes: usize, at: &[u32]) -> Vec<Vec<u32>> {
    let mut cells: Vec<(usize, Vec<u32>)> = Vec::new();
    for (place, &rank) in at.iter().enumerate() {
        let (mut rest, mut key) = (place, 0);
        for (axis, &n) in shape.iter().enumerate() {
            key = key * n + if axes >> axis & 1 == 1 { 0 } else { rest % n };
            rest /= n;
        }
        match cells.iter_mut().find(|(k, _)| *k == key) {
            Some((_, cell)) => cell.push(rank),
            None => cells.push((key, vec![rank])),
        }
    }
    cells.into_iter().map(|(_, cell)| cell).collect()
}

fn shuffle<T>(r: &mut SplitMix, list: &mut [T]) {
    for i in (1..list.len()).rev() {
        list.swap(i, r.below(i + 1));
    }
}

struct ProgramGrower {
    b: GraphBuilder,
    values: Vec<ValueId>,
    /// Extents that values have.
    extents: Vec<Dim>,
    groups: Vec<GroupId>,
    dtypes: Vec<DType>,
    /// The most bytes of a value.
    most: i64,
    variants: VariantMode,
    /// The split sizes that callers give.
    sizes: Vec<ValueId>,
}

impl ProgramGrower {
    fn new(r: &mut SplitMix, name: String, variants: VariantMode) -> ProgramGrower {
        let mesh = RankMesh::drawn(r);
        let mut b = GraphBuilder::new(name, Some(mesh.ranks));
        let groups = mesh.groups.into_iter().enumerate().map(|(i, m)| b.group(&format!("g{i}"), m)).collect();
        let mut extents: Vec<Dim> = [1, 2, 3, 4, 8, 16].map(Dim::from).into();
        for name in ["t", "u"].into_iter().take(r.below(3)) {
            let min = if r.one_in(6) { 0 } else { 1 };
            let t = Dim::from(b.symbol(name, min, 2 + r.below(5) as i64));
            extents.extend([t.clone(), t.clone() * Dim::from(4), t]);
        }
        let main = r.pick(&[DType::I64, DType::I32, DType::I64, DType::U8, DType::F32, DType::BF16]);
        let dtypes =
            vec![main, main, main, r.pick(&[DType::I64, DType::F32, DType::Bool, DType::F16, DType::F64])];
        let max_elements = if r.one_in(10) { 1 << 19 } else { 1 << 13 };
        let mut grower = ProgramGrower {
            b,
            values: vec![],
            extents,
            groups,
            dtypes,
            most: max_elements,
            variants,
            sizes: vec![],
        };
        (0..2 + r.below(4)).for_each(|i| grower.input(r, i));
        grower
    }

    fn input(&mut self, r: &mut SplitMix, index: usize) {
        let ranks = self.b.graph().ranks.map_or(1, i64::from);
        let mut shape: Vec<Dim> = (0..1 + r.below(3)).map(|_| r.pick(&self.extents)).collect();
        if !r.one_in(3) {
            shape[0] = shape[0].clone() * Dim::from(ranks);
        }
        let ty = TensorType::new(r.pick(&self.dtypes), shape);
        let fixed: Option<Vec<usize>> =
            ty.shape.iter().map(|d| d.as_const().and_then(|n| usize::try_from(n).ok())).collect();
        let name = format!("in{index}");
        let value = match fixed.filter(|_| r.one_in(6)) {
            Some(shape) => {
                let mut data = Tensor::zeros(ty.dtype, shape).expect("a small tensor");
                if !ty.dtype.is_float() {
                    data.data_mut().iter_mut().for_each(|byte| *byte = r.below(2) as u8);
                }
                self.b.input(InputKind::Constant, &name, "", ty, Some(Arc::new(data)))
            }
            None => {
                let kind = r.pick(&[InputKind::Argument, InputKind::Argument, InputKind::Parameter]);
                self.b.input(kind, &name, &name, ty, None)
            }
        };
        self.values.push(value);
    }

    /// Adds a node, or a few that belong together, if the draw types.
    fn node(&mut self, r: &mut SplitMix) -> Option<()> {
        // Recent values make chains.
        let near = self.values.len().min(4);
        let x = match r.one_in(3) {
            true => r.pick(&self.values),
            false => self.values[self.values.len() - 1 - r.below(near)],
        };
        let added = match r.below(20) {
            0..7 => self.collective(r, x)?,
            7 => self.exchange(r, x)?,
            8 | 9 => self.slice(r, x)?,
            10 => self.reshaped(r, x)?,
            11 | 12 => self.concat(r, x)?,
            13 => self.wide(r, x)?,
            14 => self.folded(r, x)?,
            _ => self.element_wise(r, x)?,
        };
        for v in added {
            let graph = self.b.graph();
            // Too large ones stay in the program, but nothing grows on them.
            if graph.ty(v).bytes().upper_bound(&graph.symbols) <= self.most {
                self.values.push(v);
            }
        }
        Some(())
    }

    fn ty(&self, v: ValueId) -> TensorType {
        self.b.graph().ty(v).clone()
    }

    fn small(&self, ty: &TensorType) -> bool {
        ty.bytes().upper_bound(&self.b.graph().symbols) <= self.most
    }

    /// Another value of the same type, or this one.
    fn alike(&self, r: &mut SplitMix, x: ValueId) -> ValueId {
        let ty = self.ty(x);
        let candidates: Vec<ValueId> =
            self.values.iter().copied().filter(|&v| *self.b.graph().ty(v) == ty).collect();
        if candidates.is_empty() { x } else { r.pick(&candidates) }
    }

    fn collective(&mut self, r: &mut SplitMix, x: ValueId) -> Option<Vec<ValueId>> {
        let group = r.pick(&self.groups);
        let n = self.b.graph().group_size(group)?;
        let sums = [
            CollectiveReduceOp::Sum,
            CollectiveReduceOp::Sum,
            CollectiveReduceOp::Max,
            CollectiveReduceOp::Min,
            CollectiveReduceOp::Prod,
            CollectiveReduceOp::Avg,
        ];
        let kind = match r.below(12) {
            0..3 => CollectiveKind::AllReduce(r.pick(&sums)),
            3..6 => CollectiveKind::AllGather,
            6 | 7 => CollectiveKind::ReduceScatter(r.pick(&sums)),
            8 | 9 => CollectiveKind::AllToAll(AllToAllSplits::Even),
            10 => CollectiveKind::Broadcast { root: r.below(n as usize) as u32 },
            _ => CollectiveKind::Permute { pairs: random_pairs(r, n) },
        };
        let wider = if kind == CollectiveKind::AllGather { n } else { 1 };
        let ty = self.ty(x);
        let grown: Vec<Dim> = ty.shape.iter().cloned().chain([Dim::from(i64::from(wider))]).collect();
        if !self.small(&TensorType::new(ty.dtype, grown)) {
            return None;
        }
        // An operand that a node made may lie inside the result.
        let x = match r.one_in(2) {
            true => self.b.op("own", Op::Unary(UnaryOp::Neg), &[x]).ok().unwrap_or(x),
            false => x,
        };
        self.communicate(r, kind, group, &[x])
    }

    /// An all-to-all with sizes on the device, perhaps with the way back.
    fn exchange(&mut self, r: &mut SplitMix, x: ValueId) -> Option<Vec<ValueId>> {
        if r.one_in(2) {
            return self.experts(r, x);
        }
        let group = r.pick(&self.groups);
        let n = self.b.graph().group_size(group)?;
        if self.ty(x).shape.is_empty() {
            return None;
        }
        let sizes = TensorType::new(DType::I64, vec![Dim::from(i64::from(n))]);
        // New in each run, as what fits turns on the rows of the run.
        let mut sizes = self.b.input(InputKind::Argument, "sizes", "sizes", sizes, None);
        self.sizes.push(sizes);
        if r.one_in(3) {
            sizes = *self
                .communicate(r, CollectiveKind::AllToAll(AllToAllSplits::Even), group, &[sizes])?
                .first()?;
        }
        let there = CollectiveKind::AllToAll(AllToAllSplits::Device);
        let mut added = self.communicate(r, there.clone(), group, &[x, sizes])?;
        if r.one_in(2) {
            let operands = added.clone();
            added.extend(self.communicate(r, there, group, &operands)?);
        }
        Some(added)
    }

    /// Rows that go to experts, and perhaps their sums that come back.
    fn experts(&mut self, r: &mut SplitMix, x: ValueId) -> Option<Vec<ValueId>> {
        let group = r.pick(&self.groups);
        let n = Dim::from(i64::from(self.b.graph().group_size(group)?));
        let ty = self.ty(x);
        let [tokens, width] = &ty.shape[..] else { return None };
        let slots = 1 + r.below(3) as i64;
        let local = 1 + r.below(3) as i64;
        let align = r.pick(&[1, 4]);
        let layout = r.pick(RouteLayout::ALL);
        let worst = n.clone() * tokens.clone() * Dim::from(slots);
        let capacity = match layout {
            RouteLayout::Batched => worst * Dim::from(local),
            RouteLayout::Expert => worst + Dim::from(local * (align - 1)),
            RouteLayout::Rank => worst + n.clone() * Dim::from(align - 1),
        };
        if !self.small(&TensorType::new(ty.dtype, vec![capacity.clone(), width.clone()])) {
            return None;
        }
        let experts = Dim::from(local) * n.clone();
        let experts = u32::try_from(experts.as_const()?).ok()?;
        let attributes = Route { experts, align: align as u32, layout, scope: RouteScope::Group(group) };
        let ids = TensorType::new(DType::I64, vec![tokens.clone(), Dim::from(slots)]);
        let ids = self.b.input(InputKind::Argument, "ids", "ids", ids, None);
        self.sizes.push(ids);
        let all_ids = *self.communicate(r, CollectiveKind::AllGather, group, &[ids])?.first()?;
        let listed = match layout {
            RouteLayout::Expert | RouteLayout::Batched => Dim::from(local),
            RouteLayout::Rank => n.clone(),
        };
        let ints = |shape: &[&Dim]| {
            let shape: Vec<Dim> = shape.iter().copied().cloned().collect();
            TensorType::new(DType::I64, shape)
        };
        let of_tokens = Dim::from(slots);
        let everyone = n * tokens.clone();
        let types = vec![
            ints(&[tokens, &of_tokens]),
            ints(&[&everyone, &of_tokens]),
            ints(&[&capacity]),
            ints(&[&listed]),
            ints(&[&listed]),
        ];
        let tables = self.b.node_as("route", Op::Route(attributes), &[all_ids], types).ok()?;
        let &[rows, all_rows, from, ..] = &tables[..] else { return None };
        let mut added = self.communicate(r, CollectiveKind::DispatchRows, group, &[x, from, all_rows])?;
        if ty.dtype.is_float() && r.one_in(2) {
            let sent = *added.first()?;
            let (kind, table) =
                r.pick(&[(CollectiveKind::CombineRows, rows), (CollectiveKind::ReduceRows, all_rows)]);
            added.extend(self.communicate(r, kind, group, &[sent, table])?);
        }
        added.extend(tables);
        Some(added)
    }

    fn communicate(
        &mut self,
        r: &mut SplitMix,
        kind: CollectiveKind,
        group: GroupId,
        operands: &[ValueId],
    ) -> Option<Vec<ValueId>> {
        let runs: Vec<CollectiveVariant> =
            CollectiveVariant::ALL.iter().copied().filter(|v| v.contract(&kind).is_some()).collect();
        let variant = (self.variants == VariantMode::Drawn).then(|| r.pick(&runs));
        self.b.node("c", Op::Collective(Collective { kind, group, variant }), operands).ok()
    }

    fn slice(&mut self, r: &mut SplitMix, x: ValueId) -> Option<Vec<ValueId>> {
        let mut ty = self.ty(x);
        let axis = r.below(ty.rank());
        if r.one_in(4) {
            let op = Op::Shard { axis, group: r.pick(&self.groups) };
            return self.b.op("shard", op, &[x]).ok().map(|v| vec![v]);
        }
        let n = ty.shape.get(axis)?.clone();
        let min_extent = n.bounds(&self.b.graph().symbols).0;
        let (start, extent, step) = match r.below(4) {
            0 if min_extent >= 1 => (n - Dim::from(1), Dim::from(1), 1),
            1 if min_extent >= 2 => (Dim::from(1), n - Dim::from(1), 1),
            2 => (Dim::from(r.below(2) as i64), n.exact_div(&Dim::from(2))?, 2),
            _ => {
                let divisor = Dim::from(r.pick(&[2, 3, 4]));
                let piece = n.exact_div(&divisor)?;
                (piece.clone() * Dim::from(r.below(2) as i64), piece, 1)
            }
        };
        ty.shape[axis] = extent;
        self.b.op_as("s", Op::Slice { axis, start, step }, &[x], ty).ok().map(|v| vec![v])
    }

    fn reshaped(&mut self, r: &mut SplitMix, x: ValueId) -> Option<Vec<ValueId>> {
        let ty = self.ty(x);
        let rank = ty.rank();
        let mut shape = ty.shape.clone();
        let axis = r.below(rank);
        match r.below(5) {
            0 if rank > 1 => {
                let mut perm: Vec<usize> = (0..rank).collect();
                shuffle(r, &mut perm);
                return self.b.op("p", Op::Permute { perm }, &[x]).ok().map(|v| vec![v]);
            }
            1 if rank < 4 => shape.insert(r.below(rank + 1), Dim::from(1)),
            2 => shape = vec![ty.numel()],
            3 => {
                let half = shape.get(axis)?.exact_div(&Dim::from(2))?;
                shape[axis] = half;
                shape.insert(axis + r.below(2), Dim::from(2));
            }
            _ => {
                let new = r.pick(&[2, 3]);
                shape.insert(0, Dim::from(new));
                let wide = TensorType::new(ty.dtype, shape);
                return self
                    .small(&wide)
                    .then(|| self.b.op_as("e", Op::Expand, &[x], wide).ok())?
                    .map(|v| vec![v]);
            }
        }
        self.b.reshape("r", x, shape).ok().map(|v| vec![v])
    }

    fn concat(&mut self, r: &mut SplitMix, x: ValueId) -> Option<Vec<ValueId>> {
        let ty = self.ty(x);
        let axis = if r.one_in(3) { r.below(ty.rank()) } else { 0 };
        let mut operands = vec![x];
        for _ in 0..1 + r.below(2) {
            let y = self.alike(r, x);
            operands.push(match r.one_in(2) {
                true => self.b.op("part", Op::Copy, &[y]).ok()?,
                false => y,
            });
        }
        let mut grown = ty.shape.clone();
        grown.push(Dim::from(operands.len() as i64));
        if !self.small(&TensorType::new(ty.dtype, grown)) {
            return None;
        }
        self.b.op("cat", Op::Concat { axis }, &operands).ok().map(|v| vec![v])
    }

    /// What reads all of a row, or of an axis, before it writes.
    fn wide(&mut self, r: &mut SplitMix, x: ValueId) -> Option<Vec<ValueId>> {
        let ty = self.ty(x);
        let rank = ty.rank();
        let axis = r.below(rank);
        let added = match r.below(7) {
            4 => return self.grouped(r, x),
            6 => return self.stored(r, x),
            3 => {
                let width = ty.shape.last()?.as_const().and_then(|n| usize::try_from(n).ok())?;
                let op = Op::RotaryEmbedding { width, interleaved: r.one_in(2) };
                let [cos, sin] = [0, 1].map(|_| self.alike(r, x));
                self.b.op("turned", op, &[x, cos, sin])
            }
            0 => self.b.op("sum", Op::CumSum { axis }, &[x]),
            1 => self.b.op("soft", Op::Softmax { axis, log: false }, &[x]),
            2 => self.b.op(
                "norm",
                Op::RmsNorm { axes: 1, eps: FloatAttribute(1e-5), round_first: false },
                &[x],
            ),
            _ => {
                let mut perm: Vec<usize> = (0..rank).collect();
                perm.swap(rank.checked_sub(1)?, rank.checked_sub(2)?);
                let turned = self.b.op("turned", Op::Permute { perm }, &[x]).ok()?;
                let square: Vec<Dim> =
                    ty.shape[..rank - 1].iter().chain([&ty.shape[rank - 2]]).cloned().collect();
                if !self.small(&TensorType::new(ty.dtype, square)) {
                    return None;
                }
                self.b.op("m", Op::MATMUL, &[x, turned])
            }
        };
        added.ok().map(|v| vec![v])
    }

    /// Groups of the rows of a matrix times the matrix itself, turned.
    fn grouped(&mut self, r: &mut SplitMix, x: ValueId) -> Option<Vec<ValueId>> {
        let ty = self.ty(x);
        let [rows, k] = &ty.shape[..] else { return None };
        let square = TensorType::new(ty.dtype, vec![rows.clone(), rows.clone()]);
        if rows.bounds(&self.b.graph().symbols).0 < 2 || !ty.dtype.is_float() || !self.small(&square) {
            return None;
        }
        let ends = Op::Iota { start: r.below(2) as i64, step: r.below(2) as i64 };
        let ends = self.b.op_as("ends", ends, &[], TensorType::new(DType::I64, vec![Dim::from(2)])).ok()?;
        let turned = self.b.op("turned", Op::Permute { perm: vec![1, 0] }, &[x]).ok()?;
        let each = TensorType::new(ty.dtype, vec![Dim::from(2), k.clone(), rows.clone()]);
        let each = self.b.op_as("each", Op::Expand, &[turned], each).ok()?;
        let by_rows = self.b.op("grouped", Op::GroupedMatMul, &[x, each, ends]).ok()?;
        let by_terms = self.b.op("gradients", Op::GroupedMatMul, &[turned, by_rows, ends]).ok()?;
        Some(vec![by_rows, by_terms])
    }

    /// Rows of two values at the same positions of others, all in order or all at the first.
    fn stored(&mut self, r: &mut SplitMix, x: ValueId) -> Option<Vec<ValueId>> {
        let positions_type = TensorType::new(DType::I64, vec![self.ty(x).shape.first()?.clone()]);
        let op = Op::Iota { start: 0, step: r.below(2) as i64 };
        let positions = self.b.op_as("at", op, &[], positions_type).ok()?;
        let mut store = || {
            let (into, source) = (self.alike(r, x), self.alike(r, x));
            let op = Op::IndexPut { axis: 0, accumulate: false };
            self.b.op("put", op, &[into, source, positions]).ok()
        };
        Some(vec![store()?, store()?])
    }

    /// Reductions and paddings.
    fn folded(&mut self, r: &mut SplitMix, x: ValueId) -> Option<Vec<ValueId>> {
        let mut ty = self.ty(x);
        let axis = r.below(ty.rank());
        let extent = ty.shape.get(axis)?.clone();
        let added = match r.below(3) {
            0 => {
                let min_extent = extent.bounds(&self.b.graph().symbols).0;
                let op = if min_extent > 0 {
                    r.pick(&[ReductionKind::Max, ReductionKind::Sum])
                } else {
                    ReductionKind::Sum
                };
                self.b.op("fold", Op::Reduce { op, axes: vec![axis], keep: r.one_in(2) }, &[x])
            }
            _ => {
                ty.shape[axis] = extent + Dim::from(2);
                let mut low = vec![Dim::from(0); ty.rank()];
                low[axis] = Dim::from(r.below(3) as i64);
                let value = scalar(ty.dtype, 1);
                self.b.op_as("pad", Op::Pad { low, value }, &[x], ty)
            }
        };
        added.ok().map(|v| vec![v])
    }

    fn element_wise(&mut self, r: &mut SplitMix, x: ValueId) -> Option<Vec<ValueId>> {
        let ty = self.ty(x);
        let y = if r.one_in(4) { r.pick(&self.values) } else { self.alike(r, x) };
        let added: Result<ValueId, BuildError> = match r.below(8) {
            0 => self.b.op("n", Op::Unary(r.pick(&[UnaryOp::Neg, UnaryOp::Relu, UnaryOp::Not])), &[x]),
            1 => {
                let scalar = scalar(ty.dtype, 2);
                let op = r.pick(&[BinaryOp::Mul, BinaryOp::Add]);
                self.b.op("n", Op::BinaryScalar { op, scalar, scalar_left: false }, &[x])
            }
            2 => self.b.op("n", Op::Copy, &[x]),
            // Which float is less may turn on how it was rounded.
            3 if !ty.dtype.is_float() => {
                let less = self.b.op("less", Op::Binary(BinaryOp::Lt), &[x, y]).ok()?;
                let wide = self.ty(less).shape;
                (wide == ty.shape).then(|| self.b.op("n", Op::Select, &[less, x, y]))?
            }
            4 => {
                let dtype = match ty.dtype.is_float() {
                    true => r.pick(&[DType::F32, DType::BF16, DType::F64]),
                    false => r.pick(&[DType::I64, DType::I32, DType::F32]),
                };
                self.b.op_as("n", Op::Cast, &[x], TensorType::new(dtype, ty.shape))
            }
            _ => {
                let op = r.pick(&[BinaryOp::Add, BinaryOp::Sub, BinaryOp::Max, BinaryOp::Min, BinaryOp::Mul]);
                let wide = symmc_ir::infer::broadcast_shapes(&[&ty.shape, &self.ty(y).shape]).ok()?;
                self.small(&TensorType::new(ty.dtype, wide))
                    .then(|| self.b.op("n", Op::Binary(op), &[x, y]))?
            }
        };
        added.ok().map(|v| vec![v])
    }

    /// Returns the last values and a few others; some inputs are replaced.
    fn finish(mut self, mut r: SplitMix) -> Graph {
        let last_value = self.values.len() - 1;
        for back in 0..1 + r.below(3) {
            self.b.output(self.values[last_value.saturating_sub(back)]);
        }
        if r.one_in(3) {
            let any = r.pick(&self.values);
            self.b.output(any);
        }
        let inputs: Vec<(InputId, ValueId, InputKind)> =
            self.b.graph().inputs.iter().map(|(id, i)| (id, i.value, i.kind)).collect();
        for (input, old, kind) in inputs {
            let new = self.alike(&mut r, old);
            if new != old && !self.sizes.contains(&old) && kind != InputKind::Constant && r.one_in(3) {
                let output = GraphOutput { value: new, kind: OutputKind::Mutates(input) };
                self.b.graph_mut().outputs.push(output);
            }
        }
        self.b.finish()
    }
}

/// Pairs of sender and receiver; nobody receives twice.
fn random_pairs(r: &mut SplitMix, n: u32) -> Vec<(u32, u32)> {
    let (mut from, mut to): (Vec<u32>, Vec<u32>) = ((0..n).collect(), (0..n).collect());
    shuffle(r, &mut from);
    shuffle(r, &mut to);
    let mut pairs: Vec<(u32, u32)> = from.into_iter().zip(to).collect();
    pairs.truncate(r.below(n as usize + 1));
    pairs
}

fn scalar(dtype: DType, value: i64) -> Scalar {
    match dtype {
        DType::Bool => Scalar::Bool(value != 0),
        d if d.is_float() => Scalar::Float(FloatAttribute(value as f64)),
        _ => Scalar::Int(value),
    }
}
