//! The elements of leaves that can reach the result of a region.
//!
//! Ops that only move elements are followed element by element: they run on the numbers of elements in place of
//! the elements. Their indices and conditions must depend on no leaf, or be known from bounds ([`crate::ranges`]).
//! All other ops read all elements of their operands, except element-wise ops, which read those at the same
//! position. A leaf that nothing reaches by these rules cannot influence the result, such as the columns of a
//! concatenation that a slice drops, or elements that others replace.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use symmc_ir::{
    AllToAllSplits, CollectiveKind, DType, Graph, GraphOutput, InputKind, Node, Op, OutputKind, Scalar,
    SymbolBindings, Tensor, TensorType, ValueId, interp,
};

use crate::concrete::{ConcreteRegion, LeafOfRank, concrete_shape, estimate_work};
use crate::ranges::{IntegerBounds, decide_comparison, derive_bounds};

/// The largest work of a region whose elements are followed.
const MAX_REACH_WORK: u128 = 1 << 22;

/// The tensors of a value, one for each rank.
type RankTensors = Vec<Arc<Tensor>>;

/// The leaves with an element that can reach the result. `None` if the region is too large.
pub fn find_reaching_leaves(concrete: &ConcreteRegion) -> Option<BTreeSet<LeafOfRank>> {
    let graph = &concrete.graph;
    if estimate_work(graph) > MAX_REACH_WORK {
        return None;
    }
    let ranks = graph.ranks.unwrap_or(1) as usize;
    let mut reach = ElementReach {
        graph,
        ranks,
        constants: HashMap::new(),
        bounds: HashMap::new(),
        read: HashMap::new(),
    };
    for node in graph.nodes.values() {
        reach.evaluate_constant(node);
    }
    for output in &graph.outputs {
        reach.read_all(output.value);
    }
    for node in graph.nodes.values().rev() {
        reach.follow_node(node);
    }
    let mut out = BTreeSet::new();
    for (input, leaf) in graph.inputs.values().zip(&concrete.leaves).filter(|(_, leaf)| leaf.data.is_none()) {
        for rank in 0..ranks {
            let is_read = reach.read.get(&input.value).is_some_and(|read| read[rank].contains(&true));
            if is_read {
                out.insert((leaf.number, leaf.representative_rank(rank as u32)));
            }
        }
    }
    Some(out)
}

struct ElementReach<'a> {
    graph: &'a Graph,
    ranks: usize,
    /// The values that are the same for all elements of leaves.
    constants: HashMap<ValueId, RankTensors>,
    bounds: HashMap<ValueId, IntegerBounds>,
    /// For each value and rank the elements that can reach the result.
    read: HashMap<ValueId, Vec<Vec<bool>>>,
}

impl ElementReach<'_> {
    fn shape(&self, value: ValueId) -> Vec<usize> {
        concrete_shape(self.graph, value)
    }

    /// Computes the results of a node if they are the same for all elements of leaves, or else their bounds.
    fn evaluate_constant(&mut self, node: &Node) {
        let operands: Option<Vec<&RankTensors>> = node.inputs.iter().map(|v| self.constants.get(v)).collect();
        if let Some(results) = operands.and_then(|operands| self.run(node, &node.op, &operands, None)) {
            for (&v, tensors) in node.outputs.iter().zip(results) {
                let bounds = IntegerBounds::of_tensors(tensors.iter().map(|tensor| &**tensor));
                self.bounds.extend(bounds.map(|bounds| (v, bounds)));
                self.constants.insert(v, tensors);
            }
            return;
        }
        if let Some(result) = decide_comparison(node, &self.bounds) {
            let v = node.outputs[0];
            let shape = self.shape(v);
            let elements = vec![i64::from(result); shape.iter().product()];
            if let Some(tensor) = Tensor::from_i64(DType::Bool, shape, &elements) {
                let tensor = Arc::new(tensor);
                self.constants.insert(v, (0..self.ranks).map(|_| tensor.clone()).collect());
            }
            return;
        }
        for (k, &v) in node.outputs.iter().enumerate() {
            let bounds = derive_bounds(self.graph, node, k, &self.bounds);
            self.bounds.extend(bounds.map(|bounds| (v, bounds)));
        }
    }

    /// The results of an op on tensors in place of its operands. They have the dtype `dtype` if there is one.
    fn run(
        &self,
        node: &Node,
        op: &Op,
        operands: &[&RankTensors],
        dtype: Option<DType>,
    ) -> Option<Vec<RankTensors>> {
        let mut graph = self.graph.without_nodes();
        for (k, tensors) in operands.iter().enumerate() {
            let ty = TensorType::new(tensors.first()?.dtype(), self.graph.ty(node.inputs[k]).shape.clone());
            graph.add_input(InputKind::Argument, format!("x{k}"), "", ty, None);
        }
        let inputs = graph.inputs.values().map(|input| input.value).collect();
        let results = node.outputs.iter().enumerate().map(|(k, &v)| {
            let ty = self.graph.ty(v);
            (format!("y{k}"), TensorType::new(dtype.unwrap_or(ty.dtype), ty.shape.clone()))
        });
        let results = results.collect();
        let n = graph.add_node(op.clone(), inputs, results);
        let outputs = graph.nodes[n].outputs.clone();
        graph.outputs =
            outputs.into_iter().map(|value| GraphOutput { value, kind: OutputKind::Returned }).collect();
        let of_rank = |rank: usize| operands.iter().map(|tensors| tensors[rank].clone()).collect();
        let inputs: Vec<Vec<Arc<Tensor>>> = (0..self.ranks).map(of_rank).collect();
        let of_ranks = interp::run(&graph, &SymbolBindings::new(), &inputs).ok()?;
        let mut out = vec![Vec::with_capacity(self.ranks); node.outputs.len()];
        for results in of_ranks {
            out.iter_mut().zip(results).for_each(|(tensors, result)| tensors.push(Arc::new(result)));
        }
        Some(out)
    }

    fn read_of(&mut self, value: ValueId) -> &mut Vec<Vec<bool>> {
        let count = self.shape(value).iter().product();
        let ranks = self.ranks;
        self.read.entry(value).or_insert_with(|| vec![vec![false; count]; ranks])
    }

    fn read_all(&mut self, value: ValueId) {
        self.read_of(value).iter_mut().for_each(|of_rank| of_rank.fill(true));
    }

    fn follow_node(&mut self, node: &Node) {
        let is_read = node.outputs.iter().any(|v| self.read.contains_key(v));
        // The position along an axis with one position is 0.
        let is_zero =
            matches!(node.op, Op::ArgReduce { axis, .. } if self.shape(node.inputs[0]).get(axis) == Some(&1));
        let is_constant = node.outputs.iter().all(|v| self.constants.contains_key(v));
        if !is_read || is_zero || is_constant {
            return;
        }
        if self.follow_moves(node).is_some() {
            return;
        }
        if node.op.is_element_wise() {
            return self.follow_elements(node);
        }
        let cells = match node.op.group() {
            Some(group) => self.graph.cells(group).unwrap_or_default(),
            None => (0..self.ranks as u32).map(|rank| vec![rank]).collect(),
        };
        for cell in cells {
            let is_read_in_cell = node.outputs.iter().filter_map(|v| self.read.get(v)).any(|of_ranks| {
                cell.iter().filter_map(|&rank| of_ranks.get(rank as usize)).any(|read| read.contains(&true))
            });
            if !is_read_in_cell {
                continue;
            }
            for &x in self.operands_of_read_results(node) {
                let of_ranks = self.read_of(x);
                for &rank in &cell {
                    if let Some(read) = of_ranks.get_mut(rank as usize) {
                        read.fill(true);
                    }
                }
            }
        }
    }

    /// The operands on which results depend that can reach the result of the region.
    fn operands_of_read_results<'n>(&self, node: &'n Node) -> &'n [ValueId] {
        let exchanges_by_counts = node.op.as_collective().is_some_and(
            |c| matches!(&c.kind, CollectiveKind::AllToAll(splits) if *splits == AllToAllSplits::Device),
        );
        // The received counts depend on the sent counts alone.
        match (&node.inputs[..], &node.outputs[..]) {
            ([_, counts @ ..], [rows, ..]) if exchanges_by_counts && !self.read.contains_key(rows) => counts,
            (operands, _) => operands,
        }
    }

    /// Follows an op that moves elements of its operands, by its results on their numbers.
    fn follow_moves(&mut self, node: &Node) -> Option<()> {
        let moved = moved_operands(node)?;
        let op = match &node.op {
            Op::Pad { low, .. } => Op::Pad { low: low.clone(), value: Scalar::Int(-1) },
            op => op.clone(),
        };
        // The moved operands, each with the number of its first element on rank 0.
        let mut numbered = Vec::with_capacity(node.inputs.len());
        // Numbers start at 1, because collectives fill elements that nothing sends with 0.
        let mut next = 1i64;
        let mut operands = Vec::with_capacity(node.inputs.len());
        for (k, &x) in node.inputs.iter().enumerate() {
            if !moved.contains(&k) {
                operands.push(self.constants.get(&x)?.clone());
                continue;
            }
            let shape = self.shape(x);
            let count = shape.iter().product::<usize>() as i64;
            let of_rank = |rank: usize| {
                let start = next + rank as i64 * count;
                let elements: Vec<i64> = (start..start + count).collect();
                Tensor::from_i64(DType::I64, shape.clone(), &elements).map(Arc::new)
            };
            let tensors = (0..self.ranks).map(of_rank).collect::<Option<RankTensors>>()?;
            numbered.push((x, usize::try_from(next).ok()?));
            next += count * self.ranks as i64;
            operands.push(tensors);
        }
        let results = self.run(node, &op, &operands.iter().collect::<Vec<_>>(), Some(DType::I64))?;
        let mut read_numbers = vec![false; usize::try_from(next).ok()?];
        for (value, tensors) in node.outputs.iter().zip(&results) {
            let of_ranks = self.read.get(value).into_iter().flatten();
            for (tensor, read) in tensors.iter().zip(of_ranks) {
                for (i, _) in read.iter().enumerate().filter(|(_, is_read)| **is_read) {
                    let number = usize::try_from(tensor.get_i64(i)).ok();
                    if let Some(is_read) = number.and_then(|n| read_numbers.get_mut(n)) {
                        *is_read = true;
                    }
                }
            }
        }
        for (x, first) in numbered {
            let count = self.shape(x).iter().product::<usize>();
            for (rank, of_rank) in self.read_of(x).iter_mut().enumerate() {
                let start = first + rank * count;
                for (is_read, number) in of_rank.iter_mut().zip(&read_numbers[start..start + count]) {
                    *is_read |= number;
                }
            }
        }
        Some(())
    }

    /// Follows an element-wise op. Operands broadcast to the result.
    fn follow_elements(&mut self, node: &Node) {
        let Some(read) = self.read.get(&node.outputs[0]).cloned() else { return };
        let shape = self.shape(node.outputs[0]);
        for &x in &node.inputs {
            let strides = interp::broadcast_strides(&self.shape(x), &shape);
            for (of_operand, of_result) in self.read_of(x).iter_mut().zip(&read) {
                let mut results = of_result.iter();
                interp::for_each_offset(&shape, [&strides], |[offset]| {
                    if results.next() == Some(&true) {
                        of_operand[offset] = true;
                    }
                });
            }
        }
    }
}

/// The operands whose elements an op moves, if it only moves elements. All other operands are indices or conditions.
fn moved_operands(node: &Node) -> Option<Vec<usize>> {
    if node.op == Op::Select { Some(vec![1, 2]) } else { node.op.moved_operands(node.inputs.len()) }
}
