//! The table of axes against the interpreter: an op on a part of its operands gives that part of its result.
//!
//! Each node of the corpus runs as a separate program: once as a whole, and once for each part, on the same inputs.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use symmc_ir::entity::Entity;
use symmc_ir::interp::{self, SeedConfig, SeedScope, seeded_inputs};
use symmc_ir::text::forms::op_dims_mut;
use symmc_ir::text::{op_name, op_names, parse, print};
use symmc_ir::{
    AxisMap, DType, Dim, Graph, GraphOutput, InputKind, Node, NodeId, Op, OperandAxis, OutputKind,
    ResultAxis, SymbolBindings, Tensor, TensorType, ValueId,
};
use symmc_support::random::SplitMix;

/// Adjacent positions along an axis.
#[derive(Clone, Copy)]
struct Span {
    start: i64,
    count: i64,
}

/// A program of one node at fixed sizes, to which parts are added. Its outputs are pairs that must be equal.
struct NodeParts {
    graph: Graph,
    op: Op,
    operands: Vec<ValueId>,
    results: Vec<ValueId>,
}

impl NodeParts {
    fn new(source: &Graph, node: &Node, sizes: &SymbolBindings) -> NodeParts {
        let fix = |dim: &Dim| Dim::from(dim.eval(sizes).expect("a bound dim"));
        let fixed_type = |v: ValueId| {
            let ty = source.ty(v);
            TensorType::new(ty.dtype, ty.shape.iter().map(fix).collect::<Vec<_>>())
        };
        let mut op = node.op.clone();
        op_dims_mut(&mut op).into_iter().for_each(|dim| *dim = fix(dim));
        let mut graph = Graph::new("parts");
        graph.ranks = Some(source.ranks.unwrap_or(1));
        graph.groups = source.groups.clone();
        let mut operands = Vec::with_capacity(node.inputs.len());
        for &v in &node.inputs {
            let name = format!("x{}", operands.len());
            operands.push(graph.add_input(InputKind::Argument, name, "", fixed_type(v), None));
        }
        let results = node.outputs.iter().map(|&v| (source.value_name(v).to_string(), fixed_type(v)));
        let whole = graph.add_node(op.clone(), operands.clone(), results.collect());
        let results = graph.nodes[whole].outputs.clone();
        NodeParts { graph, op, operands, results }
    }

    fn axes(&self) -> AxisMap {
        self.graph.node_axes(&self.graph.nodes[NodeId::new(0)])
    }

    fn extent(&self, value: ValueId, axis: usize) -> i64 {
        self.graph.ty(value).shape[axis].as_const().expect("a fixed extent")
    }

    fn cut(&mut self, value: ValueId, spans: &[Option<Span>]) -> ValueId {
        let mut part = value;
        for (axis, span) in spans.iter().enumerate() {
            let Some(Span { start, count }) = *span else { continue };
            let mut ty = self.graph.ty(part).clone();
            ty.shape[axis] = Dim::from(count);
            let slice = Op::Slice { axis, start: Dim::from(start), step: 1 };
            let name = format!("cut{}", self.graph.values.len());
            let node = self.graph.add_node(slice, vec![part], vec![(name, ty)]);
            part = self.graph.nodes[node].outputs[0];
        }
        part
    }

    /// Adds the op on parts of its operands, and those parts of the results that must be equal to it.
    fn add_part(&mut self, op: Op, operands: &[Vec<Option<Span>>], results: &[Option<Span>]) {
        let parts: Vec<ValueId> =
            self.operands.clone().into_iter().zip(operands).map(|(v, s)| self.cut(v, s)).collect();
        let expected: Vec<ValueId> = self.results.clone().into_iter().map(|v| self.cut(v, results)).collect();
        let name = format!("part{}", self.graph.values.len());
        let types =
            expected.iter().enumerate().map(|(i, &v)| (format!("{name}.{i}"), self.graph.ty(v).clone()));
        let types = types.collect();
        let node = self.graph.add_node(op, parts, types);
        let computed = self.graph.nodes[node].outputs.clone();
        for value in expected.into_iter().zip(computed).flat_map(|(a, b)| [a, b]) {
            self.graph.outputs.push(GraphOutput { value, kind: OutputKind::Returned });
        }
    }

    /// Adds a part along some of the axes that are not joint.
    fn add_random_part(&mut self, map: &AxisMap, random: &mut SplitMix) {
        let mut op = self.op.clone();
        let mut spans = vec![None; map.results.len()];
        for (axis, kind) in map.results.iter().enumerate() {
            let extent = self.extent(self.results[0], axis);
            if *kind == ResultAxis::Joint || extent == 0 || random.one_in(3) {
                continue;
            }
            let start = random.below(extent as usize) as i64;
            let count = 1 + random.below((extent - start) as usize) as i64;
            if *kind == ResultAxis::Positional {
                let Some(moved) = op.starting_at(&Dim::from(start)) else { continue };
                op = moved;
            }
            spans[axis] = Some(Span { start, count });
        }
        let span_of = |axis: &OperandAxis| match axis {
            OperandAxis::Aligned(result_axis) => spans[*result_axis],
            OperandAxis::Outer(_) | OperandAxis::Broadcast | OperandAxis::Whole => None,
        };
        let operands: Vec<Vec<Option<Span>>> =
            map.operands.iter().map(|axes| axes.iter().map(span_of).collect()).collect();
        if spans.iter().any(Option::is_some) {
            self.add_part(op, &operands, &spans);
        }
    }

    /// Adds equal parts along the outer axes.
    fn add_outer_parts(&mut self, map: &AxisMap) {
        let outer_axes = map.operands[0].iter().enumerate().filter_map(|(axis, kind)| match kind {
            OperandAxis::Outer(result_axis) => Some((axis, *result_axis)),
            _ => None,
        });
        for (axis, result_axis) in outer_axes.collect::<Vec<_>>() {
            let extents = [self.extent(self.operands[0], axis), self.extent(self.results[0], result_axis)];
            for parts in (2..=extents[0]).filter(|n| extents.iter().all(|extent| extent % n == 0)) {
                let last_of =
                    |extent: i64| Some(Span { start: extent - extent / parts, count: extent / parts });
                let mut operand = vec![None; map.operands[0].len()];
                let mut result = vec![None; map.results.len()];
                operand[axis] = last_of(extents[0]);
                result[result_axis] = last_of(extents[1]);
                self.add_part(self.op.clone(), &[operand], &result);
            }
        }
    }

    /// Runs the program. Returns the number of compared pairs.
    fn compare(&self, seed: u64) -> usize {
        let config = SeedConfig { seed, arguments: SeedScope::PerRank, parameters: SeedScope::PerRank };
        let sizes = SymbolBindings::new();
        let ranks = 0..self.graph.ranks.expect("a number of ranks");
        let mut inputs: Vec<Vec<Arc<Tensor>>> =
            ranks.map(|rank| seeded_inputs(&self.graph, &sizes, &config, rank).expect("inputs")).collect();
        if self.op.divides_integers(self.graph.ty(self.results[0]).dtype) {
            for divisor in inputs.iter_mut().filter_map(|inputs| inputs.get_mut(1)) {
                let elements: Vec<i64> = divisor.to_i64().iter().map(|&n| n.max(1)).collect();
                let positive = Tensor::from_i64(divisor.dtype(), divisor.shape(), &elements);
                *divisor = Arc::new(positive.expect("as many elements"));
            }
        }
        let text = print(&self.graph);
        let outputs = interp::run(&self.graph, &sizes, &inputs).unwrap_or_else(|e| panic!("{e}\n{text}"));
        for pair in outputs.iter().flat_map(|rank| rank.chunks(2)) {
            assert_eq!(pair[0].data(), pair[1].data(), "{text}");
        }
        self.graph.outputs.len() / 2
    }
}

/// Compares a node with parts of it. Returns whether there was a part.
fn check_node(source: &Graph, node: &Node, sizes: &SymbolBindings, seed: u64) -> bool {
    let mut parts = NodeParts::new(source, node, sizes);
    let map = parts.axes();
    parts.add_random_part(&map, &mut SplitMix(seed));
    if node.op == Op::Reshape {
        parts.add_outer_parts(&map);
    }
    !parts.graph.outputs.is_empty() && parts.compare(seed) > 0
}

/// The symbols of a program, each as near to `size` as its range permits.
fn sizes_near(graph: &Graph, size: i64) -> SymbolBindings {
    let mut sizes = SymbolBindings::new();
    for (id, symbol) in graph.symbols.iter() {
        sizes.set(id, size.clamp(symbol.min, symbol.max));
    }
    sizes
}

#[test]
fn parts_of_results_follow_from_parts_of_operands() {
    let mut seen = BTreeSet::new();
    let mut compared = BTreeSet::new();
    for entry in Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").read_dir().expect("a folder") {
        let path = entry.expect("a file").path();
        let source = parse(&std::fs::read_to_string(&path).expect("text")).expect("a program");
        for (id, node) in source.nodes.iter() {
            seen.insert(op_name(&node.op));
            for seed in 0..8 {
                let sizes = sizes_near(&source, if seed < 2 { 0 } else { 10 });
                if check_node(&source, node, &sizes, seed ^ (id.index() as u64) << 8) {
                    compared.insert(op_name(&node.op));
                }
            }
        }
    }
    assert!(op_names().all(|name| seen.contains(name)), "the corpus has every op");
    let joint: Vec<&str> = op_names().filter(|name| !compared.contains(name)).collect();
    let expected =
        ["attention_gradient", "route", "dispatch_rows", "combine_rows", "reduce_rows", "opaque", "custom"];
    assert_eq!(joint, expected, "the ops without a part");
}

#[test]
fn reshapes_relate_axes_of_equal_elements() {
    let mut compared = 0;
    for seed in 0..400 {
        let mut random = SplitMix(seed);
        let factors: Vec<i64> =
            (0..6).map(|_| [1, 2, 2, 3, 0][random.below(if seed < 40 { 5 } else { 4 })]).collect();
        let mut random_shape = || {
            let mut shape = vec![1];
            for factor in &factors {
                match shape.last_mut().filter(|_| random.one_in(2)) {
                    Some(last) => *last *= factor,
                    None => shape.push(*factor),
                }
            }
            TensorType::new(DType::F32, shape.into_iter().map(Dim::from).collect::<Vec<_>>())
        };
        let mut source = Graph::new("reshape");
        let x = source.add_input(InputKind::Argument, "x", "", random_shape(), None);
        let node = source.add_node(Op::Reshape, vec![x], vec![("y".into(), random_shape())]);
        let node = source.nodes[node].clone();
        compared += usize::from(check_node(&source, &node, &SymbolBindings::new(), seed));
    }
    assert!(compared > 300, "{compared}");
}
