//! Random graphs survive printing and parsing, and random bytes survive reading.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use symmc_ir::entity::Entity;
use symmc_ir::fuzz;
use symmc_ir::text::{parse, print};
use symmc_ir::{
    AllToAllSplits, ArgOp, AttentionBound, BinaryOp, BoundSide, Collective, CollectiveKind,
    CollectiveReduceOp, CollectiveVariant, CustomOp, DType, Dim, FloatAttribute, Graph, GraphBuilder,
    GraphOutput, GroupDef, GroupId, GroupMembers, InputId, InputKind, Op, OutputKind, ReductionKind, Route,
    RouteLayout, RouteScope, Scalar, SymbolId, Tensor, TensorType, UnaryOp, ValueId,
};

/// A source of small decisions; after its end every decision is the first.
struct DecisionSource(Vec<u64>);

impl DecisionSource {
    fn next(&mut self) -> u64 {
        self.0.pop().unwrap_or(0)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }
    fn flag(&mut self) -> bool {
        self.next() % 2 == 1
    }
    fn integer(&mut self) -> i64 {
        let n = self.next();
        self.one(&[0, 1, -1, i64::MIN, i64::MAX, n as i64, (n % 1000) as i64])
    }
    fn float(&mut self) -> FloatAttribute {
        let any = f64::from_bits(self.next());
        FloatAttribute(self.one(&[
            0.0,
            -0.0,
            1.0,
            1e-5,
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            1e16,
            any,
            any,
        ]))
    }
    fn scalar(&mut self) -> Scalar {
        match self.below(3) {
            0 => Scalar::Bool(self.flag()),
            1 => Scalar::Int(self.integer()),
            _ => Scalar::Float(self.float()),
        }
    }
    fn naturals(&mut self) -> Vec<usize> {
        (0..self.below(4)).map(|_| self.below(4)).collect()
    }
    fn name(&mut self) -> String {
        let text =
            ["x", "a.b", "0", "", "a b", "\"", "\\", "\n\t", "größe", "%", "@", "\u{1b}", "//", "]", "true"];
        (0..self.below(3)).map(|_| self.one(&text)).collect()
    }
    fn dim(&mut self, depth: usize) -> Dim {
        match self.below(if depth == 0 { 2 } else { 9 }) {
            0 => Dim::from(self.below(9) as i64),
            1 => Dim::from(SymbolId::new(self.below(3))),
            2 => self.dim(depth - 1) + self.dim(depth - 1),
            3 => self.dim(depth - 1) - self.dim(depth - 1),
            4 => self.dim(depth - 1) * self.dim(depth - 1),
            5 => self.dim(depth - 1).floor_div(&self.dim(depth - 1)),
            6 => self.dim(depth - 1).modulo(&self.dim(depth - 1)),
            7 => self.dim(depth - 1).max_with(&self.dim(depth - 1)),
            _ => self.dim(depth - 1).min_with(&self.dim(depth - 1)),
        }
    }
    fn ty(&mut self) -> TensorType {
        let any = self.one(DType::ALL);
        let dtype = self.one(&[DType::F32, DType::I64, DType::Bool, any]);
        let extent = |c: &mut Self| {
            let any = c.dim(2);
            c.one(&[Dim::from(4), Dim::from(SymbolId::new(0)), any])
        };
        let shape: Vec<Dim> = (0..self.below(4)).map(|_| extent(self)).collect();
        TensorType::new(dtype, shape)
    }
    fn kind(&mut self) -> CollectiveKind {
        match self.below(10) {
            0 => CollectiveKind::AllReduce(self.one(CollectiveReduceOp::ALL)),
            1 => CollectiveKind::AllGather,
            2 => CollectiveKind::ReduceScatter(self.one(CollectiveReduceOp::ALL)),
            3 => CollectiveKind::AllToAll(AllToAllSplits::Even),
            4 => CollectiveKind::AllToAll(AllToAllSplits::Device),
            5 => CollectiveKind::Broadcast { root: self.below(2) as u32 },
            6 => CollectiveKind::DispatchRows,
            7 => CollectiveKind::CombineRows,
            8 => CollectiveKind::ReduceRows,
            _ => CollectiveKind::Permute { pairs: self.one(&[vec![], vec![(0, 1)], vec![(1, 0), (0, 1)]]) },
        }
    }
    fn attention(&mut self) -> Op {
        let bound = |c: &mut Self| AttentionBound {
            side: c.one(&[BoundSide::Below, BoundSide::From]),
            row: c.flag(),
            add: c.dim(2),
            chunk: c.one(&[None, Some(1), Some(512), Some(1 << 40)]),
            operand: c.flag(),
        };
        let some = (0..self.below(4)).map(|_| bound(self)).collect();
        let bounds = self.one(&[vec![], vec![AttentionBound::causal()], some]);
        Op::Attention {
            scale: self.float(),
            cap: self.one(&[None, Some(FloatAttribute(30.0))]),
            bounds,
            sink: self.flag(),
            log_sum_exp: self.flag(),
        }
    }
    fn op(&mut self, graph: &Graph) -> Op {
        let axis = self.below(3);
        match self.below(42) {
            0 => Op::Full(self.scalar()),
            1 => Op::Iota { start: self.integer(), step: self.integer() },
            2 | 34 | 35 => Op::Unary(self.one(UnaryOp::ALL)),
            3 | 36 | 37 => Op::Binary(self.one(BinaryOp::ALL)),
            4 | 5 => Op::BinaryScalar {
                op: self.one(BinaryOp::ALL),
                scalar: self.scalar(),
                scalar_left: self.flag(),
            },
            6 => Op::Select,
            7 => self.one(&[Op::Cast, Op::Bitcast]),
            8 => Op::MATMUL,
            9 => Op::Reduce { op: self.one(ReductionKind::ALL), axes: self.naturals(), keep: self.flag() },
            10 => Op::ArgReduce { op: self.one(ArgOp::ALL), axis, keep: self.flag() },
            11 => Op::CumSum { axis },
            12 => Op::Softmax { axis, log: self.flag() },
            13 => Op::RmsNorm { axes: 1, eps: self.float(), round_first: self.flag() },
            14 => Op::LayerNorm { axes: 1, eps: self.float() },
            15 => self.attention(),
            16 => Op::Take { axis },
            17 => Op::Index { axis },
            18 => Op::GatherElements { axis },
            19 => Op::ScatterElements {
                axis,
                combine: self.one(&[None, Some(ReductionKind::Sum), Some(ReductionKind::Max)]),
            },
            20 => Op::IndexAdd { axis },
            21 => Op::IndexPut { axis, accumulate: self.flag() },
            22 => Op::TopK { axis, largest: self.flag() },
            23 => Op::Sort { axis, descending: self.flag() },
            24 => Op::Concat { axis },
            40 => Op::Shard { axis, group: GroupId::new(self.below(graph.groups.len())) },
            25 => Op::Pad { low: (0..axis).map(|_| self.dim(2)).collect(), value: self.scalar() },
            26 => Op::Reshape,
            27 => Op::Permute { perm: self.one(&[vec![], vec![0], vec![1, 0], vec![0, 2, 1]]) },
            28 => Op::Slice { axis, start: self.dim(2), step: 1 + self.below(3) as i64 },
            29 => Op::Expand,
            30 => Op::Copy,
            31 => {
                let group = GroupId::new(self.below(graph.groups.len()));
                let kind = self.kind();
                Op::Collective(Collective {
                    kind,
                    group,
                    variant: self.one(&[
                        None,
                        Some(CollectiveVariant::Plain),
                        Some(CollectiveVariant::Pull),
                        Some(CollectiveVariant::Put),
                    ]),
                })
            }
            39 => Op::GroupedMatMul,
            41 => {
                let scopes =
                    [RouteScope::Local, RouteScope::Group(GroupId::new(self.below(graph.groups.len())))];
                Op::Route(Route {
                    experts: 2 * self.below(5) as u32,
                    align: self.below(9) as u32,
                    layout: self.one(RouteLayout::ALL),
                    scope: self.one(&scopes),
                })
            }
            38 => Op::RotaryEmbedding { width: 2 * axis, interleaved: self.flag() },
            32 => Op::Opaque { name: self.name(), attributes: self.name() },
            _ => Op::Custom(graph.customs.keys().nth(self.below(graph.customs.len())).unwrap()),
        }
    }
    /// A type for the result of an op whose result type is declared.
    fn declared(&mut self, op: &Op, graph: &Graph, operands: &[ValueId]) -> Vec<TensorType> {
        let like = operands.first().map_or_else(|| self.ty(), |&x| graph.ty(x).clone());
        match op {
            Op::Full(_) | Op::Opaque { .. } | Op::Custom(_) => {
                (0..1 + self.below(3)).map(|_| self.ty()).collect()
            }
            Op::Iota { .. } => vec![TensorType::new(DType::I64, vec![self.dim(2)])],
            Op::Route(route) => {
                let ranks = route.rank_count(Some(2)).unwrap_or(1);
                let shape = |dims: Vec<Dim>| TensorType::new(DType::I64, dims);
                let mut own = like.shape.clone();
                if let Some(first) = own.first_mut() {
                    *first = first.floor_div(&Dim::from(i64::from(ranks)));
                }
                let sections = shape(vec![Dim::from(i64::from(route.section_count(ranks)))]);
                let slots = shape(vec![self.dim(2)]);
                vec![shape(own), shape(like.shape), slots, sections.clone(), sections]
            }
            Op::Cast | Op::Bitcast => vec![TensorType::new(self.one(DType::ALL), like.shape)],
            Op::Reshape => vec![TensorType::new(like.dtype, vec![like.numel()])],
            Op::Expand => vec![TensorType::new(like.dtype, [vec![self.dim(2)], like.shape].concat())],
            Op::TopK { axis, .. } | Op::Slice { axis, .. } => {
                let mut first = like;
                if let Some(extent) = first.shape.get_mut(*axis) {
                    *extent = self.dim(2);
                }
                let second = TensorType::new(DType::I64, first.shape.clone());
                if matches!(op, Op::TopK { .. }) { vec![first, second] } else { vec![first] }
            }
            _ => vec![like],
        }
    }
}

/// A graph of random inputs and of the random nodes that type-check, under random names.
fn graph(mut choices: DecisionSource) -> Graph {
    let c = &mut choices;
    let mut b = GraphBuilder::new(c.name(), Some(2));
    for (name, min, max) in [("n", 1, 64), ("div", 2, 2), ("größe", 0, 9)] {
        b.symbol(name, min, max);
    }
    b.graph_mut().symbols.values_mut().next_back().unwrap().alias = Some(c.name());
    b.group("all", GroupMembers::World);
    b.graph_mut()
        .groups
        .push(GroupDef { name: c.name() + "1", members: GroupMembers::Cells(vec![vec![1, 0]]) });
    let group = c.flag().then(|| GroupId::new(0));
    let (symmetric_operands, symmetric_results) = (c.naturals(), c.naturals());
    let custom = CustomOp { name: c.name(), symmetric_operands, symmetric_results, group };
    b.graph_mut().customs.push(custom);
    for _ in 0..4 + c.below(60) {
        let count = b.graph().values.len();
        if count < 3 || c.below(6) == 0 {
            input(c, &mut b);
            continue;
        }
        let op = c.op(b.graph());
        // Two operands of one type are what most ops want.
        let first = ValueId::new(c.below(count));
        let alike = b.graph().values.keys().filter(|&v| b.graph().ty(v) == b.graph().ty(first));
        let alike: Vec<ValueId> = alike.collect();
        let any =
            |c: &mut DecisionSource| if c.flag() { c.one(&alike) } else { ValueId::new(c.below(count)) };
        let operands: Vec<ValueId> = (0..c.one(&[0, 1, 1, 2, 2, 3])).map(|_| any(c)).collect();
        if b.node("v", op.clone(), &operands).is_err() {
            let types = c.declared(&op, b.graph(), &operands);
            let _ = b.node_as("v", op, &operands, types);
        }
    }
    let mut graph = b.finish();
    for value in graph.values.values_mut() {
        if c.flag() {
            value.name = format!("{} {}", value.name, c.name());
        }
    }
    for _ in 0..c.below(4) {
        let value = ValueId::new(c.below(graph.values.len()));
        let input = InputId::new(c.below(graph.inputs.len()));
        let kind = match c.below(3) {
            0 => OutputKind::Returned,
            1 => OutputKind::Mutates(input),
            _ => OutputKind::Length { output: c.below(4), axis: c.below(4) },
        };
        graph.outputs.push(GraphOutput { value, kind });
    }
    graph
}

fn input(c: &mut DecisionSource, b: &mut GraphBuilder) {
    let source = c.name();
    match c.below(3) {
        0 => {
            let (dtype, shape) = (c.one(DType::ALL), c.naturals());
            let mut data = Tensor::zeros(dtype, shape.as_slice()).unwrap();
            let seed = c.next();
            data.data_mut().iter_mut().zip(0..).for_each(|(byte, i)| *byte = (seed >> (i % 57)) as u8);
            let shape: Vec<Dim> = shape.iter().map(|&n| Dim::from(n as i64)).collect();
            b.input(InputKind::Constant, "c", &source, TensorType::new(dtype, shape), Some(Arc::new(data)));
        }
        1 => drop(b.input(InputKind::Argument, "x", &source, c.ty(), None)),
        _ => drop(b.input(InputKind::Parameter, "w", &source, c.ty(), None)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn graphs_read_back_as_printed(choices in prop::collection::vec(any::<u64>(), 1000)) {
        let graph = graph(DecisionSource(choices));
        let text = print(&graph);
        let reparsed = parse(&text).map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?;
        prop_assert_eq!(&reparsed, &graph, "{}", text);
        prop_assert_eq!(print(&reparsed), text);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn attentions_read_back_as_printed(choices in prop::collection::vec(any::<u64>(), 100)) {
        let c = &mut DecisionSource(choices);
        let mut b = GraphBuilder::new("p", Some(1));
        // Words of the text form are names as others are.
        for name in ["row", "operand", "chunk"] {
            b.symbol(name, 1, 64);
        }
        let op = c.attention();
        let heads = TensorType::new(DType::F16, vec![Dim::from(2), Dim::from(SymbolId::new(0)), Dim::from(8)]);
        let positions = TensorType::new(c.one(&[DType::I32, DType::I64]), vec![Dim::from(2), Dim::from(1), Dim::from(1)]);
        let mask = TensorType::new(DType::Bool, vec![Dim::from(SymbolId::new(0))]);
        let input = |b: &mut GraphBuilder, ty: &TensorType| b.input(InputKind::Argument, "x", "", ty.clone(), None);
        let mut operands: Vec<ValueId> = (0..3).map(|_| input(&mut b, &heads)).collect();
        if c.flag() {
            operands.push(input(&mut b, &mask));
        }
        let Op::Attention { bounds, sink, .. } = &op else { unreachable!() };
        operands.extend(bounds.iter().filter(|b| b.operand).map(|_| input(&mut b, &positions)));
        if *sink {
            operands.push(input(&mut b, &TensorType::new(DType::F32, vec![])));
        }
        b.node("y", op, &operands).map_err(|e| TestCaseError::fail(e.to_string()))?;
        let graph = b.finish();
        let text = print(&graph);
        let reparsed = parse(&text).map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?;
        prop_assert_eq!(reparsed, graph, "{}", text);
    }
}

/// A generator of pseudo-random numbers (xorshift of Marsaglia, 64 bits).
struct XorshiftRng(u64);

impl XorshiftRng {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as usize
    }
}

/// Changes a text in a few places: bytes, whole words from elsewhere, cuts and doubled lines.
fn mutate(text: &[u8], others: &[u8], random: &mut XorshiftRng) -> Vec<u8> {
    let mut out = text.to_vec();
    for _ in 0..1 + random.below(3) {
        let start = random.below(out.len());
        let end = (start + random.below(12)).min(out.len());
        match random.below(5) {
            0 => drop(out.drain(start..end)),
            1 => {
                let word = others.split(|c| c.is_ascii_whitespace()).nth(random.below(400)).unwrap_or(b"[");
                out.splice(start..end, word.iter().copied());
            }
            2 if start < out.len() => out[start] = b" %@\"[](),:=+-*?.0123456789naxe\n"[random.below(30)],
            3 if start < out.len() && random.below(4) == 0 => out[start] = random.below(256) as u8,
            _ => {
                let from = random.below(others.len());
                let piece = &others[from..(from + random.below(60)).min(others.len())];
                out.splice(start..start, piece.iter().copied());
            }
        }
    }
    out
}

#[test]
fn any_text_reads_or_fails_cleanly() {
    let texts: Vec<String> = super::corpus().into_iter().map(|(_, text)| text).collect();
    let corpus = texts.concat().into_bytes();
    texts.iter().for_each(|text| fuzz::check(text.as_bytes()));
    let mut random = XorshiftRng(0x9e37_79b9_7f4a_7c15);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(1) {
        let text = &texts[random.below(texts.len())];
        let lines: Vec<&str> = text.lines().collect();
        let text = lines[..1 + random.below(lines.len())].join("\n");
        fuzz::check(&mutate(text.as_bytes(), &corpus, &mut random));
    }
}
