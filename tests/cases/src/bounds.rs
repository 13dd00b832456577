//! Random programs that index dynamic axes at known positions: the seed names the program.
//!
//! Positions are constants, series, and slices; they lie within their axis at some sizes of the symbols and outside at
//! others. Views, concatenations, pads, arithmetic and further slices follow, of which a rewrite may make one view. Elements of
//! arguments are small integers, each another, so that an element of another row shows. Programs have one or two ranks.

use std::sync::Arc;

use symmc_ir::builder::BuildError;
use symmc_ir::collective::Collective;
use symmc_ir::{
    BinaryOp, BoundsChecks, CollectiveKind, CollectiveReduceOp, DType, Dim, Graph, GraphBuilder,
    GroupMembers, InputKind, Op, Scalar, SymbolBindings, SymbolId, Tensor, TensorType, ValueId, verify,
};
use symmc_support::random::SplitMix;

/// The largest value of each symbol.
const LARGEST: i64 = 7;

/// The program of a seed.
pub fn program(seed: u64) -> Graph {
    let mut r = SplitMix(seed ^ 0x00b0_07d5);
    let mut grower = BoundsGrower::new(&mut r, seed);
    let nodes = 2 + r.below(6);
    for _ in 0..nodes {
        (0..20).find(|_| grower.node(&mut r));
    }
    grower.finish(&mut r)
}

/// All sizes of a program.
pub fn sizes(graph: &Graph) -> Vec<SymbolBindings> {
    let mut out = vec![SymbolBindings::new()];
    for (id, symbol) in graph.symbols.iter() {
        let with = |with_size: &SymbolBindings, value| {
            let mut bindings = with_size.clone();
            bindings.set(id, value);
            bindings
        };
        out = out.iter().flat_map(|of| (symbol.min..=symbol.max).map(move |value| with(of, value))).collect();
    }
    out
}

/// The inputs of a rank at these sizes: constants as they are, else small integers, each another.
///
/// # Panics
/// A symbol has no value.
pub fn inputs(graph: &Graph, bindings: &SymbolBindings, rank: u32) -> Vec<Arc<Tensor>> {
    let mut next = i64::from(rank) * 100;
    let mut input = |input: &symmc_ir::GraphInput| {
        if let Some(data) = &input.data {
            return data.clone();
        }
        let ty = graph.ty(input.value);
        let shape: Vec<usize> = ty
            .shape
            .iter()
            .map(|d| d.eval(bindings).and_then(|n| usize::try_from(n).ok()).expect("a size"))
            .collect();
        let elements: Vec<i64> = (0..shape.iter().product::<usize>() as i64).map(|i| next + i).collect();
        next += elements.len() as i64;
        let floats: Vec<f64> = elements.iter().map(|&i| i as f64).collect();
        let tensor = match ty.dtype.is_float() {
            true => Tensor::from_f64(ty.dtype, shape, &floats),
            false => Tensor::from_i64(ty.dtype, shape, &elements),
        };
        Arc::new(tensor.expect("it has these elements"))
    };
    graph.inputs.values().map(&mut input).collect()
}

struct BoundsGrower {
    builder: GraphBuilder,
    symbols: [SymbolId; 2],
    /// What nodes may take: all of one dtype.
    values: Vec<ValueId>,
    dtype: DType,
    ranks: u32,
}

impl BoundsGrower {
    fn new(r: &mut SplitMix, seed: u64) -> BoundsGrower {
        let ranks = 1 + r.below(4) as u32 / 3;
        let mut builder = GraphBuilder::new(format!("bounds {seed}"), Some(ranks));
        let t = builder.symbol("t", r.below(2) as i64, LARGEST);
        let k = builder.symbol("k", r.below(2) as i64, LARGEST - 2);
        let dtype = r.pick(&[DType::I64, DType::F32, DType::I32]);
        let mut out = BoundsGrower { builder, symbols: [t, k], values: Vec::new(), dtype, ranks };
        for name in ["x", "y"] {
            let shape = match r.below(4) {
                0 => vec![out.symbol(r), Dim::from(2)],
                1 => vec![out.symbol(r)],
                2 => vec![Dim::from(2), Dim::from(2), out.symbol(r)],
                _ => vec![Dim::from(3), out.symbol(r)],
            };
            out.input(InputKind::Argument, name, shape);
        }
        let rows = Dim::from(2 + r.below(5) as i64);
        out.input(InputKind::Parameter, "table", vec![rows, Dim::from(2)]);
        out
    }

    fn input(&mut self, kind: InputKind, name: &str, shape: Vec<Dim>) {
        let value = self.builder.input(kind, name, name, TensorType::new(self.dtype, shape), None);
        self.values.push(value);
    }

    fn symbol(&self, r: &mut SplitMix) -> Dim {
        Dim::from(r.pick(&self.symbols))
    }

    fn shape(&self, value: ValueId) -> Vec<Dim> {
        self.builder.graph().ty(value).shape.to_vec()
    }

    /// Adds a node, if what is drawn is a program that the verifier takes.
    fn node(&mut self, r: &mut SplitMix) -> bool {
        let before = (self.builder.graph().clone(), self.values.clone());
        let added = match r.below(3) {
            0 => self.moved(r),
            _ => self.indexed(r),
        };
        match added {
            Ok(value) if self.is_useful(r) => {
                self.values.push(value);
                true
            }
            _ => {
                self.builder = GraphBuilder::from_graph(before.0);
                self.values = before.1;
                false
            }
        }
    }

    /// Whether the program is valid and, mostly, runs at some size.
    fn is_useful(&self, r: &mut SplitMix) -> bool {
        let graph = self.builder.graph();
        let checks = BoundsChecks::derive(graph);
        let runs = || sizes(graph).iter().any(|bindings| checks.evaluate(graph, bindings).is_ok());
        verify::verify(graph).is_ok() && (r.one_in(40) || runs())
    }

    /// A value, the newer ones more often, and one of its axes.
    fn operand(&self, r: &mut SplitMix) -> (ValueId, usize) {
        let n = self.values.len();
        let value = self.values[if r.one_in(2) { n - 1 } else { r.below(n) }];
        (value, r.below(self.shape(value).len().max(1)))
    }

    /// A number around the bounds of axes.
    fn position(r: &mut SplitMix) -> i64 {
        match r.below(8) {
            0 => r.below(LARGEST as usize + 2) as i64,
            1 => -1,
            2 | 3 => r.below(5) as i64,
            _ => r.below(3) as i64,
        }
    }

    /// A count of elements.
    fn count(&self, r: &mut SplitMix) -> Dim {
        match r.below(3) {
            0 => self.symbol(r),
            _ => Dim::from(1 + r.below(3) as i64),
        }
    }

    /// An index operand of one axis or two: equal elements, a series, or any constants.
    fn index(&mut self, r: &mut SplitMix) -> Result<ValueId, BuildError> {
        let dtype = r.pick(&[DType::I64, DType::I64, DType::I32]);
        let start = Self::position(r);
        let b = |count: Dim| TensorType::new(dtype, vec![count]);
        let index = match r.below(4) {
            0 => {
                let ty = b(self.count(r));
                self.builder.op_as("index", Op::Full(Scalar::Int(start)), &[], ty)?
            }
            1 => {
                let elements: Vec<i64> = (0..1 + r.below(3)).map(|_| Self::position(r)).collect();
                let tensor =
                    Tensor::from_i64(dtype, [elements.len()], &elements).expect("it has these elements");
                let ty = b(Dim::from(elements.len() as i64));
                self.builder.input(InputKind::Constant, "index", "", ty, Some(Arc::new(tensor)))
            }
            _ => {
                let (step, ty) = (r.pick(&[1, 1, 1, 2, -1]), b(self.count(r)));
                self.builder.op_as("index", Op::Iota { start, step }, &[], ty)?
            }
        };
        let op = r.pick(&[BinaryOp::Add, BinaryOp::Sub, BinaryOp::Mul]);
        let scalar = Scalar::Int(r.below(3) as i64);
        match r.below(4) {
            0 => {
                let op = Op::BinaryScalar { op, scalar, scalar_left: false };
                self.builder.op("index", op, &[index])
            }
            1 => {
                let n = self.shape(index)[0].clone();
                let column = self.builder.reshape("index", index, vec![n.clone(), Dim::from(1)])?;
                let ty = TensorType::new(dtype, vec![n, self.count(r)]);
                self.builder.op_as("index", Op::Expand, &[column], ty)
            }
            _ => Ok(index),
        }
    }

    /// A node that reads or writes at known positions.
    fn indexed(&mut self, r: &mut SplitMix) -> Result<ValueId, BuildError> {
        let (x, axis) = self.operand(r);
        let shape = self.shape(x);
        let with = |axis: usize, extent: Dim| {
            let mut shape = shape.clone();
            shape[axis] = extent;
            shape
        };
        match r.below(8) {
            0..=2 => {
                let index = self.index(r)?;
                self.builder.op("take", Op::Take { axis }, &[x, index])
            }
            3 | 4 => {
                let start = match r.below(4) {
                    0 => self.symbol(r),
                    1 => shape[axis].clone() - Dim::from(Self::position(r)),
                    _ => Dim::from(Self::position(r)),
                };
                let op = Op::Slice { axis, start, step: r.pick(&[1, 1, 1, 2]) };
                let ty = TensorType::new(self.dtype, with(axis, self.count(r)));
                self.builder.op_as("slice", op, &[x], ty)
            }
            5 => {
                let ty = TensorType::new(self.dtype, with(axis, Dim::from(1 + r.below(4) as i64)));
                let places = TensorType::new(DType::I64, ty.shape.clone());
                let op = Op::TopK { axis, largest: r.one_in(2) };
                self.builder.node_as("topk", op, &[x], vec![ty, places]).map(|results| results[0])
            }
            6 => {
                let ty = TensorType::new(DType::I64, with(axis, self.count(r)));
                let full = Op::Full(Scalar::Int(Self::position(r)));
                let index = self.builder.op_as("index", full, &[], ty)?;
                self.builder.op("gather", Op::GatherElements { axis }, &[x, index])
            }
            _ => {
                let index = self.index(r)?;
                let source = self.builder.op_as(
                    "one",
                    Op::Full(Scalar::Int(1)),
                    &[],
                    TensorType::new(self.dtype, vec![]),
                )?;
                self.builder.op("put", Op::IndexPut { axis, accumulate: r.one_in(2) }, &[x, source, index])
            }
        }
    }

    /// A node that moves elements, or computes with them.
    fn moved(&mut self, r: &mut SplitMix) -> Result<ValueId, BuildError> {
        let (x, axis) = self.operand(r);
        let shape = self.shape(x);
        match r.below(7) {
            0 => {
                let (y, _) = self.operand(r);
                self.builder.op("concat", Op::Concat { axis }, &[x, if r.one_in(2) { x } else { y }])
            }
            1 => {
                let mut low = vec![Dim::from(0); shape.len()];
                low[axis] = Dim::from(r.below(3) as i64);
                let mut padded = shape.clone();
                padded[axis] = padded[axis].clone() + low[axis].clone() + Dim::from(r.below(2) as i64);
                let op = Op::Pad { low, value: Scalar::Int(-7) };
                self.builder.op_as("pad", op, &[x], TensorType::new(self.dtype, padded))
            }
            2 => {
                let mut perm: Vec<usize> = (0..shape.len()).collect();
                perm.rotate_left(1.min(shape.len()));
                self.builder.op("permute", Op::Permute { perm }, &[x])
            }
            3 => {
                let elements = shape.iter().cloned().fold(Dim::from(1), |a, b| a * b);
                self.builder.reshape("flat", x, vec![elements])
            }
            4 => {
                let mut wide = shape.clone();
                wide.insert(0, self.count(r));
                self.builder.op_as("expand", Op::Expand, &[x], TensorType::new(self.dtype, wide))
            }
            5 => {
                let full = Op::Full(Scalar::Int(Self::position(r)));
                self.builder.op_as("full", full, &[], TensorType::new(self.dtype, shape))
            }
            _ => {
                let op = Op::BinaryScalar { op: BinaryOp::Add, scalar: Scalar::Int(3), scalar_left: false };
                self.builder.op("add", op, &[x])
            }
        }
    }

    /// The last values are outputs; those of two ranks are added up.
    fn finish(mut self, r: &mut SplitMix) -> Graph {
        let returned: Vec<ValueId> = self.values.iter().rev().take(1 + r.below(2)).copied().collect();
        for value in returned {
            let mut value = value;
            if self.ranks > 1 {
                let group = self.builder.group("all", GroupMembers::World);
                let kind = CollectiveKind::AllReduce(CollectiveReduceOp::Sum);
                let op = Op::Collective(Collective { kind, group, variant: None });
                value = self.builder.op("sum", op, &[value]).unwrap_or(value);
            }
            self.builder.output(value);
        }
        self.builder.finish()
    }
}
