//! Random programs with collectives, and their plans. The tests of the planner and of the check share them.
//!
//! The programs are small and typical for the planner: element-wise chains, views, concatenations and
//! collectives over one or two groups, with constant or symbolic extents. Everything is determined by a seed.

#![allow(dead_code)]

use std::collections::{BTreeMap, BTreeSet};

pub mod corrupt;
pub mod explore;
#[path = "../../../check/tests/suite/sums.rs"]
pub mod sums;

use symmc_ir::dispatch::shared_contract;
use symmc_ir::entity::Entity;
use symmc_ir::machine::{DispatchCapabilities, MachineProfile};
use symmc_ir::{
    AllToAllSplits, BinaryOp, Collective, CollectiveKind, CollectiveReduceOp, CollectiveVariant, CustomOp,
    DType, Dim, Dispatch, DispatchForm, FloatAttribute, Graph, GraphBuilder, GraphOutput, GroupId,
    GroupMembers, InputKind, NodeId, Op, OutputKind, ReductionKind, Scalar, TensorType, UnaryOp, ValueId,
};
use symmc_plan::Plan;
use symmc_planner::{BucketInput, OrderStrategy, PlanConfig, Planner, plan};
use symmc_support::random::SplitMix;

/// The properties of random programs.
#[derive(Clone, Copy, Debug)]
pub struct RandomProgramConfig {
    /// The number of ranks.
    pub ranks: u32,
    /// Whether there are groups of half the ranks. The number of ranks is even then.
    pub cells: bool,
    /// The number of symbols that leading extents depend on, at most two.
    pub symbols: usize,
    /// The number of nodes, roughly.
    pub nodes: usize,
    /// Whether all-gathers may occur. Their operands can have places that depend on the rank.
    pub gathers: bool,
    /// Whether most collectives are exchanges between pairs of ranks.
    pub exchanges: bool,
    /// Whether it is a training step with sharded parameters, whose gathers may all begin at once.
    pub sharded: bool,
}

/// The names of the symbols.
const SYMBOLS: [&str; 2] = ["rows", "more"];

/// A random program without variants. Extents are small; all rows have 16 bytes or 8.
pub fn program(rng: &mut SplitMix, config: &RandomProgramConfig) -> Graph {
    let mut make = ProgramMaker::new(config);
    for i in 0..1 + rng.below(3) {
        let kind = rng.pick(&[InputKind::Argument, InputKind::Argument, InputKind::Parameter]);
        // An input that is written once usually has one size.
        let varies = kind == InputKind::Argument || (make.units.len() > 1 && rng.one_in(4));
        let unit = if varies { rng.pick(&make.units) } else { Dim::from(i64::from(config.ranks)) };
        let rows = unit * Dim::from(1 + rng.below(2) as i64);
        let ty = TensorType::new(DType::F32, vec![rows, Dim::from(4)]);
        let value = make.b.input(kind, &format!("in{i}"), "", ty, None);
        make.values.push(value);
    }
    if config.sharded {
        make.sharded_step(rng);
    } else {
        while make.b.graph().nodes.len() < config.nodes {
            make.grow(rng);
        }
        make.outputs(rng);
    }
    make.b.finish()
}

struct ProgramMaker {
    b: GraphBuilder,
    groups: Vec<symmc_ir::GroupId>,
    /// Extents of leading axes are sums of multiples of these.
    units: Vec<Dim>,
    /// Values of shape `[k*unit, 4]`.
    values: Vec<ValueId>,
    config: RandomProgramConfig,
}

impl ProgramMaker {
    fn new(config: &RandomProgramConfig) -> Self {
        let mut b = GraphBuilder::new("random", Some(config.ranks));
        let n = config.ranks;
        let n_times = |factor: Dim| factor * Dim::from(i64::from(n));
        let mut units: Vec<Dim> =
            SYMBOLS[..config.symbols].iter().map(|name| n_times(b.symbol(*name, 1, 5).into())).collect();
        if units.is_empty() {
            units.push(n_times(Dim::from(1)));
        }
        let mut groups = vec![b.group("world", GroupMembers::World)];
        if config.cells {
            let half = n / 2;
            groups.push(b.group("near", GroupMembers::Cells(vec![(0..half).collect(), (half..n).collect()])));
            let far = (0..half).map(|r| vec![r, r + half]).collect();
            groups.push(b.group("far", GroupMembers::Cells(far)));
        }
        ProgramMaker { b, groups, units, values: Vec::new(), config: *config }
    }

    fn rows(&self, v: ValueId) -> Dim {
        self.b.graph().ty(v).shape[0].clone()
    }

    /// Usually a recent value.
    fn recent(&self, rng: &mut SplitMix) -> ValueId {
        let n = self.values.len();
        if rng.one_in(3) { self.values[rng.below(n)] } else { self.values[n - 1 - rng.below(n.min(3))] }
    }

    /// A value with the same number of rows.
    fn same_rows(&self, rng: &mut SplitMix, rows: &Dim) -> ValueId {
        let candidates: Vec<ValueId> =
            self.values.iter().copied().filter(|&y| self.rows(y) == *rows).collect();
        rng.pick(&candidates)
    }

    fn push(&mut self, name: &str, op: Op, inputs: &[ValueId]) {
        if let Ok(results) = self.b.node(name, op, inputs) {
            self.values.push(results[0]);
        }
    }

    /// Adds a node or two.
    fn grow(&mut self, rng: &mut SplitMix) {
        let x = self.recent(rng);
        let rows = self.rows(x);
        let large = rows.upper_bound(&self.b.graph().symbols)
            > 6 * self.units[0].upper_bound(&self.b.graph().symbols);
        match rng.below(14) {
            0 if rng.one_in(2) => self.push("n", Op::CumSum { axis: 0 }, &[x]),
            1 if rng.one_in(2) => {
                let weight = self.same_rows(rng, &rows);
                self.push("l", Op::LayerNorm { axes: 2, eps: FloatAttribute(1e-5) }, &[x, weight]);
            }
            0 => self.push("u", Op::Unary(rng.pick(&[UnaryOp::Neg, UnaryOp::Exp])), &[x]),
            1 => {
                let scalar = Scalar::Int(2);
                self.push("s", Op::BinaryScalar { op: BinaryOp::Mul, scalar, scalar_left: false }, &[x]);
            }
            2 | 3 => {
                let y = self.same_rows(rng, &rows);
                self.push("b", Op::Binary(rng.pick(&[BinaryOp::Add, BinaryOp::Mul])), &[x, y]);
            }
            4 if !large => {
                let y = self.recent(rng);
                self.push("c", Op::Concat { axis: 0 }, &[x, y]);
            }
            5 => self.view(rng, x),
            6 if rng.one_in(3) => self.push("k", Op::Copy, &[x]),
            6 => self.reduced(rng, x, &rows),
            7 if rng.one_in(2) => self.custom(rng, x),
            11 if self.config.gathers && !self.config.sharded && !large => self.gathered_in_turn(rng, x),
            12 | 13 => self.one_kernel(rng, x, &rows),
            _ => self.collective(rng, x, large),
        }
    }

    /// A sum over ranks, an addition to it, and perhaps the norm of its rows.
    fn reduced(&mut self, rng: &mut SplitMix, x: ValueId, rows: &Dim) {
        let residual = self.same_rows(rng, rows);
        let kind = CollectiveKind::AllReduce(CollectiveReduceOp::Sum);
        let group = rng.pick(&self.groups);
        let Ok(sums) = self.b.collective("all_reduce", kind, group, &[x]) else { return };
        if rng.one_in(4) {
            self.values.push(sums[0]);
        }
        self.push("b", Op::Binary(BinaryOp::Add), &[residual, sums[0]]);
        if rng.one_in(2) {
            let sum = self.recent(rng);
            self.push("w", Op::RmsNorm { axes: 1, eps: FloatAttribute(1e-5), round_first: false }, &[sum]);
        }
    }

    /// Nodes for which machines have one kernel, other than chains and reductions.
    fn one_kernel(&mut self, rng: &mut SplitMix, x: ValueId, rows: &Dim) {
        match rng.below(8) {
            0 => {
                let y = self.same_rows(rng, rows);
                self.push("e", Op::Binary(BinaryOp::Add), &[x, y]);
                let sum = self.recent(rng);
                let eps = FloatAttribute(1e-5);
                let norms =
                    [Op::RmsNorm { axes: 1, eps, round_first: false }, Op::LayerNorm { axes: 1, eps }];
                self.push("w", rng.pick(&norms), &[sum]);
            }
            1 => {
                let [cos, sin] = [0, 1].map(|_| self.same_rows(rng, rows));
                for _ in 0..2 {
                    let op = Op::RotaryEmbedding { width: 4, interleaved: rng.one_in(2) };
                    let x = self.same_rows(rng, rows);
                    self.push("o", op, &[x, cos, sin]);
                }
            }
            2 => {
                let name = format!("at{}", self.b.graph().inputs.len());
                let positions_type = TensorType::new(DType::I64, vec![rows.clone()]);
                let positions = self.b.input(InputKind::Argument, &name, "", positions_type, None);
                for _ in 0..2 {
                    let source = self.same_rows(rng, rows);
                    let into = self.recent(rng);
                    self.push(
                        "a",
                        Op::IndexPut { axis: 0, accumulate: rng.one_in(4) },
                        &[into, source, positions],
                    );
                }
            }
            3 => {
                for _ in 0..2 + rng.below(2) {
                    let weight = self.weight(DType::F32, [4, 4]);
                    self.push("p", Op::MATMUL, &[x, weight]);
                }
            }
            4 => self.rows_of(rng, x, rows),
            5 => drop(self.chosen(x, rows)),
            6 => drop(self.folded(rng, rows)),
            _ => self.skinny(rng),
        }
    }

    /// The two largest exponentials of each row, divided by their sum, twice.
    fn chosen(&mut self, x: ValueId, rows: &Dim) -> Option<()> {
        let positive = self.b.op("m", Op::Unary(UnaryOp::Exp), &[x]).ok()?;
        let types =
            [DType::F32, DType::I64].map(|dtype| TensorType::new(dtype, vec![rows.clone(), 2.into()]));
        let top = Op::TopK { axis: 1, largest: true };
        let largest = *self.b.node_as("t", top, &[positive], types.to_vec()).ok()?.first()?;
        let sum = Op::Reduce { op: ReductionKind::Sum, axes: vec![1], keep: true };
        let sum = self.b.op("q", sum, &[largest]).ok()?;
        let quotient = self.b.op("d", Op::Binary(BinaryOp::Div), &[largest, sum]).ok()?;
        self.push("c", Op::Concat { axis: 1 }, &[quotient, quotient]);
        Some(())
    }

    /// Weighted sums of two rows of a value each.
    fn folded(&mut self, rng: &mut SplitMix, rows: &Dim) -> Option<()> {
        let from = self.recent(rng);
        let number = self.b.graph().inputs.len();
        let indices_type = TensorType::new(DType::I64, vec![rows.clone(), 2.into()]);
        let indices = self.b.input(InputKind::Argument, &format!("at{number}"), "", indices_type, None);
        let weights = TensorType::new(DType::F32, vec![rows.clone(), 2.into(), 1.into()]);
        let weights = self.b.input(InputKind::Argument, &format!("weights{number}"), "", weights, None);
        let rows_taken = self.b.op("r", Op::Take { axis: 0 }, &[from, indices]).ok()?;
        let product = self.b.op("m", Op::Binary(BinaryOp::Mul), &[rows_taken, weights]).ok()?;
        self.push("f", Op::Reduce { op: ReductionKind::Sum, axes: vec![1], keep: false }, &[product]);
        Some(())
    }

    /// Rows divided by the results of one or two reductions of them.
    fn rows_of(&mut self, rng: &mut SplitMix, x: ValueId, rows: &Dim) {
        let mut row = x;
        for _ in 0..1 + rng.below(2) {
            let y = self.same_rows(rng, rows);
            let product = self.b.op("e", Op::Binary(BinaryOp::Mul), &[row, y]);
            let op = rng.pick(&[ReductionKind::Mean, ReductionKind::Max]);
            let reduce = Op::Reduce { op, axes: vec![1], keep: true };
            let Ok(number) = product.and_then(|p| self.b.op("q", reduce, &[p])) else { return };
            self.push("e", Op::Binary(rng.pick(&[BinaryOp::Add, BinaryOp::Mul])), &[row, number]);
            row = self.values[self.values.len() - 1];
        }
    }

    fn weight(&mut self, dtype: DType, shape: [i64; 2]) -> ValueId {
        let (name, ty) =
            (format!("w{}", self.b.graph().inputs.len()), TensorType::new(dtype, shape.map(Dim::from)));
        self.b.input(InputKind::Parameter, &name, "", ty, None)
    }

    /// Products of few rows with an epilogue, as rows of 16 bytes in the end.
    fn skinny(&mut self, rng: &mut SplitMix) {
        let n = i64::from(self.config.ranks);
        let Some(rows) = rng.pick(&self.units).exact_div(&Dim::from(n)) else { return };
        let columns = n * 16;
        let left_type = TensorType::new(DType::BF16, vec![rows.clone(), Dim::from(64)]);
        let name = format!("left{}", self.b.graph().inputs.len());
        let left_matrix = self.b.input(InputKind::Argument, &name, "", left_type, None);
        let mut result = None;
        for _ in 0..1 + rng.below(2) {
            let weight = self.weight(DType::BF16, [columns, 64]);
            let transposed = self.b.op("t", Op::Permute { perm: vec![1, 0] }, &[weight]);
            let Ok(product) = transposed.and_then(|t| self.b.op("p", Op::MATMUL, &[left_matrix, t])) else {
                return;
            };
            let joined = match result {
                Some(other) => self.b.op("e", Op::Binary(BinaryOp::Mul), &[product, other]),
                None => self.b.op("e", Op::Unary(UnaryOp::Exp), &[product]),
            };
            result = joined.ok();
        }
        let Some(result) = result else { return };
        let wide = TensorType::new(DType::F32, vec![rows.clone(), Dim::from(columns)]);
        let Ok(wide) = self.b.op_as("e", Op::Cast, &[result], wide) else { return };
        if let Ok(v) = self.b.reshape("r", wide, vec![rows * Dim::from(n * 4), Dim::from(4)]) {
            self.values.push(v);
        }
    }

    /// Half of the rows or of the columns of a value, used by the next node.
    fn view(&mut self, rng: &mut SplitMix, x: ValueId) {
        let rows = self.rows(x);
        let half = rows.exact_div(&Dim::from(2 * i64::from(self.config.ranks)));
        let half = half.map(|h| h * Dim::from(i64::from(self.config.ranks)));
        match half {
            Some(half) if !rng.one_in(3) => {
                let start = if rng.one_in(2) { half.clone() } else { Dim::from(0) };
                let ty = TensorType::new(DType::F32, vec![half, Dim::from(4)]);
                if let Ok(v) = self.b.op_as("v", Op::Slice { axis: 0, start, step: 1 }, &[x], ty) {
                    self.values.push(v);
                }
            }
            _ => {
                let ty = TensorType::new(DType::F32, vec![Dim::from(4), rows.clone()]);
                let op = Op::Permute { perm: vec![1, 0] };
                let Ok(t) = self.b.op_as("t", op, &[x], ty) else { return };
                if let Ok(v) = self.b.reshape("r", t, vec![rows, Dim::from(4)]) {
                    self.values.push(v);
                }
            }
        }
    }

    /// A custom op of one or two operands with a random signature.
    fn custom(&mut self, rng: &mut SplitMix, x: ValueId) {
        let inputs = if rng.one_in(2) { vec![x] } else { vec![x, self.recent(rng)] };
        let some = |rng: &mut SplitMix, n: usize| (0..n).filter(|_| rng.one_in(2)).collect();
        let group = (!rng.one_in(4)).then(|| rng.pick(&self.groups));
        let graph = self.b.graph_mut();
        let op = CustomOp {
            name: format!("test::op{}", graph.customs.len()),
            symmetric_operands: some(rng, inputs.len()),
            symmetric_results: some(rng, 1),
            group,
        };
        let ty = graph.ty(x).clone();
        let op = Op::Custom(graph.customs.push(op));
        if let Ok(y) = self.b.op_as("m", op, &inputs, ty) {
            self.values.push(y);
        }
    }

    fn collective(&mut self, rng: &mut SplitMix, x: ValueId, large: bool) {
        let group = rng.pick(&self.groups);
        let n = self.b.graph().group_size(group).unwrap_or(1);
        let which = if self.config.exchanges { 6 + rng.below(5) } else { rng.below(10) };
        let kind = match which {
            0..=2 => CollectiveKind::AllReduce(CollectiveReduceOp::Sum),
            3 if self.config.gathers && !large => CollectiveKind::AllGather,
            4 if self.rows(x).exact_div(&Dim::from(i64::from(n * self.config.ranks))).is_some() => {
                let result = self.scattered(rng, x, group, n);
                return self.values.extend(result);
            }
            5 | 6 => CollectiveKind::AllToAll(AllToAllSplits::Even),
            7 => CollectiveKind::Broadcast { root: rng.below(n as usize) as u32 },
            8 | 9 => CollectiveKind::Permute { pairs: random_pairs(rng, n) },
            _ => CollectiveKind::AllReduce(CollectiveReduceOp::Max),
        };
        let name = kind.name();
        if let Ok(results) = self.b.collective(name, kind, group, &[x]) {
            self.values.push(results[0]);
        }
    }

    /// A gather along the second axis of rows, which places the pieces of all ranks row by row.
    fn gathered_in_turn(&mut self, rng: &mut SplitMix, x: ValueId) {
        let group = rng.pick(&self.groups);
        let n = Dim::from(i64::from(self.b.graph().group_size(group).unwrap_or(1)));
        let rows = self.rows(x);
        let Ok(results) = self.b.collective("all_gather", CollectiveKind::AllGather, group, &[x]) else {
            return;
        };
        if rng.one_in(4) {
            self.values.push(results[0]);
        }
        let by_rank = vec![n.clone(), rows.clone(), Dim::from(4)];
        let Ok(by_rank) = self.b.reshape("r", results[0], by_rank) else { return };
        let Ok(by_row) = self.b.op("t", Op::Permute { perm: vec![1, 0, 2] }, &[by_rank]) else { return };
        if let Ok(v) = self.b.reshape("r", by_row, vec![n * rows, Dim::from(4)]) {
            self.values.push(v);
        }
    }

    /// A sum over ranks of which each rank gets a piece: a reduce-scatter, or the sum of the pieces of an
    /// all-to-all.
    fn scattered(&mut self, rng: &mut SplitMix, x: ValueId, group: GroupId, n: u32) -> Option<ValueId> {
        if !rng.one_in(3) {
            let kind = CollectiveKind::ReduceScatter(CollectiveReduceOp::Sum);
            return self.b.collective("reduce_scatter", kind, group, &[x]).ok().map(|results| results[0]);
        }
        let pieces = Dim::from(i64::from(n));
        let rows = self.rows(x).exact_div(&pieces)?;
        let kind = CollectiveKind::AllToAll(AllToAllSplits::Even);
        let exchanged = self.b.collective("all_to_all", kind, group, &[x]).ok()?[0];
        let parted = self.b.reshape("r", exchanged, vec![pieces, rows, Dim::from(4)]).ok()?;
        let sum = Op::Reduce { op: ReductionKind::Sum, axes: vec![0], keep: false };
        self.b.op("sum", sum, &[parted]).ok()
    }

    /// A training step with sharded parameters. They are gathered in the forward pass and perhaps again in the
    /// backward pass. Each is used once in each pass, and the gradients are scattered. The gathers stand
    /// together at the beginning, or each before its use.
    fn sharded_step(&mut self, rng: &mut SplitMix) {
        let group = rng.pick(&self.groups);
        let n = self.b.graph().group_size(group).unwrap_or(1);
        let unit = self.units[0].clone();
        let full = unit.clone() * Dim::from(i64::from(n));
        let count = 3 + rng.below(2);
        let input = |make: &mut Self, kind, name: String, rows: &Dim| {
            let ty = TensorType::new(DType::F32, vec![rows.clone(), Dim::from(4)]);
            make.b.input(kind, &name, "", ty, None)
        };
        let kind = rng.pick(&[InputKind::Argument, InputKind::Parameter]);
        let shards: Vec<ValueId> =
            (0..count).map(|i| input(self, kind, format!("shard{i}"), &unit)).collect();
        let mut h = input(self, InputKind::Argument, "x".into(), &full);
        let (ahead, cast, gathers_again) = (rng.one_in(2), rng.one_in(2), rng.one_in(2));
        let gather = |make: &mut Self, shard: ValueId| {
            let shard = if cast { make.b.op("cast", Op::Unary(UnaryOp::Neg), &[shard]).ok()? } else { shard };
            Some(make.b.collective("all_gather", CollectiveKind::AllGather, group, &[shard]).ok()?[0])
        };
        let mut gathered: Vec<Option<ValueId>> = vec![None; count];
        if ahead {
            gathered = shards.iter().map(|&shard| gather(self, shard)).collect();
        }
        let add =
            |make: &mut Self, op, x, y| make.b.op("b", Op::Binary(op), &[x, y]).expect("shapes are equal");
        for (weight, &shard) in gathered.iter_mut().zip(&shards) {
            let w = weight.or_else(|| gather(self, shard)).expect("it is gathered");
            *weight = Some(w);
            h = add(self, BinaryOp::Mul, h, w);
            h = self.b.op("u", Op::CumSum { axis: 0 }, &[h]).expect("a sum of rows");
        }
        let mut outputs = vec![h];
        for (weight, &shard) in gathered.iter().zip(&shards).rev() {
            let regathered = Some(shard).filter(|_| gathers_again).and_then(|shard| gather(self, shard));
            let w = regathered.or(*weight).expect("it is gathered");
            let gradient = add(self, BinaryOp::Mul, h, w);
            h = add(self, BinaryOp::Add, gradient, h);
            let averaged = rng.one_in(4).then_some(CollectiveKind::AllReduce(CollectiveReduceOp::Avg));
            outputs.extend(match averaged {
                Some(kind) => self.b.collective("all_reduce", kind, group, &[gradient]).ok().map(|r| r[0]),
                None => self.scattered(rng, gradient, group, n),
            });
        }
        let graph = self.b.graph_mut();
        let returned = outputs.into_iter().map(|value| GraphOutput { value, kind: OutputKind::Returned });
        graph.outputs.extend(returned);
    }

    fn outputs(&mut self, rng: &mut SplitMix) {
        let nodes: Vec<ValueId> = self.values.clone();
        let last_value = *nodes.last().expect("there is an input");
        let mut chosen = vec![last_value];
        for _ in 0..rng.below(3) {
            let v = rng.pick(&nodes);
            if !chosen.contains(&v) {
                chosen.push(v);
            }
        }
        let graph = self.b.graph_mut();
        let mutated = graph.inputs.iter().find(|(_, i)| {
            i.kind == InputKind::Parameter
                && graph.ty(i.value) == graph.ty(last_value)
                && i.value != last_value
        });
        let kind = match mutated {
            Some((id, _)) if rng.one_in(2) => OutputKind::Mutates(id),
            _ => OutputKind::Returned,
        };
        graph.outputs.push(GraphOutput { value: last_value, kind });
        for &v in &chosen[1..] {
            graph.outputs.push(GraphOutput { value: v, kind: OutputKind::Returned });
        }
    }
}

/// A ring, or some ranks that send to some others or to themselves.
fn random_pairs(rng: &mut SplitMix, n: u32) -> Vec<(u32, u32)> {
    let shift = rng.below(n as usize) as u32;
    let ring = (0..n).map(|r| (r, (r + shift) % n));
    let is_complete = rng.one_in(2);
    ring.filter(|_| is_complete || rng.one_in(2)).collect()
}

/// The program with a variant chosen at random for each collective.
pub fn with_variants(graph: &Graph, rng: &mut SplitMix) -> Graph {
    let mut out = graph.clone();
    let users = graph.users();
    for node in out.nodes.values_mut() {
        if let Op::Collective(c) = &mut node.op {
            let able: Vec<CollectiveVariant> =
                CollectiveVariant::ALL.iter().copied().filter(|v| v.contract(&c.kind).is_some()).collect();
            // Half of the gathers along other axes can store rows in turn.
            let reshaped = users[node.outputs[0]].iter().all(|&n| graph.nodes[n].op == Op::Reshape);
            let in_turn = c.kind == CollectiveKind::AllGather && reshaped && rng.one_in(2);
            c.variant = Some(if in_turn {
                rng.pick(&[CollectiveVariant::Ll, CollectiveVariant::Pull])
            } else {
                rng.pick(&able)
            });
        }
    }
    out
}

/// The same program with several independent collectives of one group as one step by one variant.
pub fn with_a_set(graph: Graph, rng: &mut SplitMix) -> Graph {
    let by = |variant: CollectiveVariant, id: &NodeId| {
        let collective = graph.nodes[*id].op.as_collective()?;
        let by_it = Collective { variant: Some(variant), ..collective.clone() };
        shared_contract(&by_it).map(|contract| (collective.group, contract))
    };
    let count = |v: &CollectiveVariant| graph.nodes.keys().filter(|id| by(*v, id).is_some()).count();
    let variants: Vec<CollectiveVariant> =
        CollectiveVariant::ALL.iter().copied().filter(|v| count(v) > 1).collect();
    if variants.is_empty() {
        return graph;
    }
    let variant = rng.pick(&variants);
    let able = |id: &NodeId| by(variant, id);
    // The dependences of each node, and the set so far.
    let mut needs: Vec<BTreeSet<NodeId>> = Vec::new();
    let mut set: Vec<NodeId> = Vec::new();
    for (id, node) in graph.nodes.iter() {
        let defs = node.inputs.iter().filter_map(|&v| graph.defining_node(v));
        let own: BTreeSet<NodeId> = defs.flat_map(|n| needs[n.index()].iter().copied().chain([n])).collect();
        let alike = set.first().is_none_or(|first| able(first) == able(&id));
        if able(&id).is_some() && alike && set.iter().all(|n| !own.contains(n)) && !rng.one_in(5) {
            set.push(id);
        }
        needs.push(own);
    }
    let follows = |id: &NodeId| set.iter().any(|n| needs[id.index()].contains(n));
    let (behind, before): (Vec<NodeId>, Vec<NodeId>) =
        graph.nodes.keys().filter(|id| !set.contains(id)).partition(follows);
    if set.len() < 2 {
        return graph;
    }
    let mut out = Graph { nodes: Default::default(), values: Default::default(), ..graph.clone() };
    let mut map: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    (out.inputs, out.outputs) = Default::default();
    for input in graph.inputs.values() {
        let value = &graph.values[input.value];
        let (name, source, ty) = (value.name.clone(), input.source.clone(), value.ty.clone());
        map.insert(input.value, out.add_input(input.kind, name, source, ty, input.data.clone()));
    }
    for id in before.iter().chain(&set).chain(&behind) {
        let mut node = graph.nodes[*id].clone();
        if let (Op::Collective(c), true) = (&mut node.op, set.contains(id)) {
            c.variant = Some(variant);
        }
        let results = node.outputs.iter().map(|&v| (graph.values[v].name.clone(), graph.ty(v).clone()));
        let new = out.add_node(node.op, node.inputs.iter().map(|v| map[v]).collect(), results.collect());
        map.extend(node.outputs.iter().copied().zip(out.nodes[new].outputs.iter().copied()));
    }
    let first = NodeId::new(before.len());
    out.dispatches = vec![Dispatch {
        form: DispatchForm::Collectives,
        first,
        last: NodeId::new(before.len() + set.len() - 1),
    }];
    out.outputs = graph.outputs.iter().map(|o| GraphOutput { value: map[&o.value], kind: o.kind }).collect();
    out
}

/// A plan of the program: one bucket, or two with different variants if it has a symbol. Collectives of
/// `sharded` programs usually begin early.
pub fn planned(graph: &Graph, sharded: bool, rng: &mut SplitMix) -> Plan {
    // The symbol whose range is divided, and the division.
    let divided = rng.below(graph.symbols.len().max(1));
    let ranges: Vec<[i64; 2]> = match rng.one_in(2) {
        _ if graph.symbols.is_empty() => vec![[0, 0]],
        true => vec![[1, 5]],
        false => vec![[1, 2], [3, 5]],
    };
    let buckets: Vec<BucketInput> = ranges
        .iter()
        .map(|[min, max]| {
            let mut graph = with_variants(graph, rng);
            if rng.one_in(if sharded { 8 } else { 4 }) {
                graph = with_a_set(graph, rng);
            }
            for symbol in graph.symbols.values_mut().skip(divided).take(1) {
                (symbol.min, symbol.max) = (*min, *max);
            }
            BucketInput { graph, decisions: Vec::new() }
        })
        .collect();
    let bind = match rng.below(3) {
        0 => Default::default(),
        1 => graph.inputs.keys().collect(),
        _ => graph.inputs.keys().take(1).collect(),
    };
    let orders = if sharded && !rng.one_in(4) {
        &[OrderStrategy::Program, OrderStrategy::Bfs]
    } else {
        OrderStrategy::ALL
    };
    let (order, slack) = (rng.pick(orders), rng.pick(&[0.0, 0.05, 1.0]));
    let capable = |profile| MachineProfile { dispatches: DispatchCapabilities::GPU, ..profile };
    let profile = rng.one_in(2).then(|| MachineProfile::builtin("h200x2")).flatten().map(capable);
    let config = PlanConfig { bind, order, slack, profile, ..PlanConfig::default() };
    if rng.one_in(3) {
        // With the exit barriers that a smaller symmetric arena requires.
        let plans = plans_by_kept_barriers(graph, &buckets, &config);
        return plans[rng.below(plans.len())].clone();
    }
    plan(graph, &buckets, &config).expect("plans")
}

/// The plans of a program from one with as few exit barriers as possible to one with all that save symmetric memory.
pub fn plans_by_kept_barriers(graph: &Graph, buckets: &[BucketInput], config: &PlanConfig) -> Vec<Plan> {
    let planner = Planner::new(graph, buckets, config).expect("plans");
    let mut plans = Vec::new();
    for &next_run in planner.next_runs() {
        let mut schedules = planner.schedule(config.order, next_run).expect("plans");
        plans.push(schedules.plan().expect("plans"));
        while schedules.keep_barriers().expect("plans") {
            plans.push(schedules.plan().expect("plans"));
        }
    }
    plans
}

/// The first node of the graph whose op satisfies the predicate.
pub fn find(graph: &Graph, predicate: impl Fn(&Op) -> bool) -> Option<NodeId> {
    (0..graph.nodes.len()).map(NodeId::new).find(|&n| predicate(&graph.nodes[n].op))
}
