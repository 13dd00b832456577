//! The reference interpreter: runs all ranks of a program in one process.
//!
//! Host ranks and GPUs are compared with it, so it is written for clarity. Elements are wide ([`f64`] or
//! [`i64`]), and every op computes wide and rounds once to its dtype. All-reduce and reduce-scatter accumulate
//! in f32, as documented on [`crate::CollectiveReduceOp`]. All ranks advance node by node in program order, so
//! a collective finds the operands of all its ranks. Variants, memory and plans do not exist here.
//!
//! The graph must satisfy the verifier's rules about ids and names ([`crate::verify`]). The interpreter checks
//! the conditions that depend on bindings and data, and type-checks nodes again.

mod array;
mod attention;
mod bind;
mod collective;
mod compare;
mod compute;
mod elementwise;
mod error;
mod index;
mod linear;
mod movement;
mod noise;
mod reduce;
mod registry;
mod rounding;
mod route;
mod seed;
mod spread;

use std::sync::Arc;

pub use array::{broadcast_strides, for_each_offset};
pub use bind::{infer_bindings, solve_bindings};
pub use compare::{
    ElementDifference, NarrowDifferences, TensorComparison, Tolerance, compare, compare_with_spread,
    count_unexplained, spread_of_beyond,
};
pub use compute::ResultType;
pub use error::{InterpError, OpError};
pub use noise::RoundingNoise;
pub use registry::{CustomKernelCall, ReferenceKernelRegistry};
pub use rounding::{RoundingHistory, RunCount, output_histories, rounding_histories};
pub use seed::{SeedConfig, SeedScope, SeededInputs, seeded_inputs};
pub use spread::NoiseSpread;

use crate::Graph;
use crate::dim::SymbolBindings;
use crate::entity::{Entity, EntityMap};
use crate::graph::{GroupMembers, ValueDef};
use crate::ids::{CustomId, GroupId, NodeId, ValueId};
use crate::infer;
use crate::op::Op;
use crate::tensor::Tensor;
use crate::text::{op_name, with_symbol_names};
use crate::types::{DType, TensorType};
use array::WideArray;

/// Runs a program without custom kernels. `inputs[rank]` holds all inputs of the rank in the order of the
/// graph, constants included. The result holds all outputs of each rank in order. Fails if inputs or bindings
/// do not match the program, or if an op fails on its data.
pub fn run(
    graph: &Graph,
    bindings: &SymbolBindings,
    inputs: &[Vec<Arc<Tensor>>],
) -> Result<Vec<Vec<Tensor>>, InterpError> {
    run_with_registry(graph, bindings, inputs, &ReferenceKernelRegistry::new())
}

pub fn run_with_registry(
    graph: &Graph,
    bindings: &SymbolBindings,
    inputs: &[Vec<Arc<Tensor>>],
    registry: &ReferenceKernelRegistry,
) -> Result<Vec<Vec<Tensor>>, InterpError> {
    Interpreter::new(graph, bindings, inputs, registry)?.run_to_end()
}

/// [`run_with_registry`] with noise on every rounding. Outputs that differ much from those of
/// [`run_with_registry`] are sensitive to rounding errors.
pub fn run_with_noise(
    graph: &Graph,
    bindings: &SymbolBindings,
    inputs: &[Vec<Arc<Tensor>>],
    registry: &ReferenceKernelRegistry,
    noise: RoundingNoise,
) -> Result<Vec<Vec<Tensor>>, InterpError> {
    let run = Interpreter::new(graph, bindings, inputs, registry)?;
    Interpreter { noise: Some(noise), ..run }.run_to_end()
}

/// Computes one op on one rank. The operands and the types of the results satisfy the op's type rule, and its
/// attributes have no symbols.
pub fn evaluate(op: &Op, operands: &[&Tensor], results: &[ResultType<'_>]) -> Result<Vec<Tensor>, OpError> {
    let operands: Vec<WideArray> = operands.iter().map(|tensor| WideArray::from_tensor(tensor)).collect();
    let operands: Vec<&WideArray> = operands.iter().collect();
    let arrays = compute::compute(op, &operands, results, &SymbolBindings::new())?;
    let tensors = arrays.iter().map(|array| array.to_tensor().ok_or(OpError::Attribute { what: "the size" }));
    tensors.collect()
}

struct Interpreter<'a> {
    graph: &'a Graph,
    bindings: &'a SymbolBindings,
    inputs: &'a [Vec<Arc<Tensor>>],
    registry: &'a ReferenceKernelRegistry,
    /// The shape of each value, equal on all ranks.
    shapes: EntityMap<ValueId, Vec<usize>>,
    /// The last node that uses each value; `None` for unused values and for outputs.
    last_use: EntityMap<ValueId, Option<NodeId>>,
    is_output: EntityMap<ValueId, bool>,
    /// For each rank the values that are computed and still needed. Inputs enter at their first use.
    values: Vec<EntityMap<ValueId, Option<WideArray>>>,
    noise: Option<RoundingNoise>,
}

impl<'a> Interpreter<'a> {
    fn new(
        graph: &'a Graph,
        bindings: &'a SymbolBindings,
        inputs: &'a [Vec<Arc<Tensor>>],
        registry: &'a ReferenceKernelRegistry,
    ) -> Result<Self, InterpError> {
        let ranks = graph.ranks.ok_or(InterpError::OpenRanks)?;
        if inputs.len() != ranks as usize {
            return Err(InterpError::RankCount { expected: ranks as usize, found: inputs.len() });
        }
        bind::check_bindings(graph, bindings)?;
        check_groups(graph, ranks)?;
        check_types(graph)?;
        for (rank, tensors) in inputs.iter().enumerate() {
            bind::check_count(graph, rank, tensors.len())?;
            for (input, tensor) in graph.inputs.values().zip(tensors) {
                bind::check_input(graph, bindings, rank, input.value, tensor)?;
            }
        }
        let shapes = graph
            .values
            .keys()
            .map(|v| bind::concrete_shape(graph, bindings, v))
            .collect::<Result<Vec<_>, _>>()?;
        let mut is_output = EntityMap::filled(false, graph.values.len());
        graph.outputs.iter().for_each(|o| is_output[o.value] = true);
        let mut last_use = EntityMap::filled(None, graph.values.len());
        for (id, node) in graph.nodes.iter() {
            node.inputs.iter().filter(|&&v| !is_output[v]).for_each(|&v| last_use[v] = Some(id));
        }
        let none = EntityMap::filled(None, graph.values.len());
        let values = vec![none; ranks as usize];
        let shapes = shapes.into_iter().collect();
        Ok(Interpreter {
            graph,
            bindings,
            inputs,
            registry,
            shapes,
            last_use,
            is_output,
            values,
            noise: None,
        })
    }

    fn run_to_end(mut self) -> Result<Vec<Vec<Tensor>>, InterpError> {
        for node in self.graph.nodes.keys() {
            self.run_node(node)?;
        }
        self.collect_outputs()
    }

    /// Runs a node on all ranks, and drops the values that are not needed any more.
    fn run_node(&mut self, node: NodeId) -> Result<(), InterpError> {
        match &self.graph.nodes[node].op {
            Op::Collective(c) => {
                let noise = self.noise;
                self.run_by_cell(node, Some(c.group), |_, operands| {
                    let results = collective::exchange(&c.kind, operands)?;
                    match noise {
                        Some(noise) => noise.perturb_overflow(&c.kind, operands, results),
                        None => Ok(results),
                    }
                })?
            }
            Op::Shard { axis, group } => {
                let axis = *axis;
                self.run_by_cell(node, Some(*group), |_, operands| movement::shards(operands, axis))?;
            }
            Op::Route(route) => {
                let capacity = self.result_types(node)[2].1.first().copied().unwrap_or(0);
                self.run_by_cell(node, route.group(), |cell, operands| {
                    route::route(route, cell.len(), capacity, operands)
                })?;
            }
            Op::Custom(id) => self.run_custom(node, *id)?,
            op => {
                for rank in 0..self.values.len() {
                    let operands = self.load_operands(rank, node)?;
                    let results = self.result_types(node);
                    let out =
                        compute::compute(op, &operands.iter().collect::<Vec<_>>(), &results, self.bindings)
                            .map_err(|e| self.error(rank, node, e))?;
                    self.store_results(rank, node, out);
                }
            }
        }
        let graph = self.graph;
        let node_data = &graph.nodes[node];
        for &v in node_data.inputs.iter().chain(&node_data.outputs).filter(|&&v| !self.is_output[v]) {
            if self.last_use[v].is_none_or(|last| last <= node) {
                self.values.iter_mut().for_each(|values| values[v] = None);
            }
        }
        Ok(())
    }

    /// Runs a node cell by cell. `exchange` receives the ranks of the cell and the operands of each. It returns
    /// the results of each, or the position within the cell of the rank that failed.
    fn run_by_cell(
        &mut self,
        node: NodeId,
        group: Option<GroupId>,
        exchange: impl Fn(&[u32], &[Vec<WideArray>]) -> Result<Vec<Vec<WideArray>>, (usize, OpError)>,
    ) -> Result<(), InterpError> {
        let cells = match group {
            Some(group) => self.graph.cells(group).ok_or(InterpError::OpenRanks)?,
            None => (0..self.values.len() as u32).map(|rank| vec![rank]).collect(),
        };
        for cell in cells.into_iter().filter(|c| !c.is_empty()) {
            let operands: Vec<Vec<WideArray>> =
                cell.iter().map(|&r| self.load_operands(r as usize, node)).collect::<Result<_, _>>()?;
            let results = exchange(&cell, &operands)
                .map_err(|(index, e)| self.error(cell.get(index).map_or(0, |&r| r as usize), node, e))?;
            for (&rank, out) in cell.iter().zip(results) {
                self.store_results(rank as usize, node, out);
            }
        }
        Ok(())
    }

    fn run_custom(&mut self, node: NodeId, id: CustomId) -> Result<(), InterpError> {
        let op = &self.graph.customs[id];
        let kernel = self.registry.get(&op.name);
        let kernel =
            kernel.ok_or_else(|| self.error(0, node, OpError::NoKernel { name: op.name.clone() }))?;
        let results: Vec<(DType, Vec<usize>)> =
            self.result_types(node).into_iter().map(|(dtype, shape)| (dtype, shape.to_vec())).collect();
        self.run_by_cell(node, op.group, |ranks, operands| {
            let failed = |message: String| (0, OpError::Custom { name: op.name.clone(), message });
            let mut tensors = Vec::with_capacity(operands.len());
            for arrays in operands {
                let of_rank: Option<Vec<Tensor>> = arrays.iter().map(|x| x.to_tensor()).collect();
                tensors.push(of_rank.ok_or_else(|| failed("an operand is too large".to_string()))?);
            }
            let call = CustomKernelCall { name: &op.name, ranks, operands: &tensors, results: &results };
            let out = kernel(&call).map_err(failed)?;
            let all_fit = out.iter().all(|out| {
                out.iter().map(|t| (t.dtype(), t.shape())).eq(results.iter().map(|r| (r.0, r.1.as_slice())))
            });
            if out.len() != ranks.len() || !all_fit {
                let actual: Vec<_> = out.iter().map(|o| format!("{o:?}")).collect();
                return Err(failed(format!(
                    "expected {results:?} on each of {} ranks, found {}",
                    ranks.len(),
                    actual.join("; ")
                )));
            }
            Ok(out.iter().map(|o| o.iter().map(WideArray::from_tensor).collect()).collect())
        })
    }

    fn load_operands(&mut self, rank: usize, node: NodeId) -> Result<Vec<WideArray>, InterpError> {
        let graph = self.graph;
        graph.nodes[node].inputs.iter().map(|&v| self.load_value(rank, v)).collect()
    }

    /// The value on a rank, sharing its elements.
    fn load_value(&mut self, rank: usize, value: ValueId) -> Result<WideArray, InterpError> {
        if let Some(array) = &self.values[rank][value] {
            return Ok(array.clone());
        }
        let ValueDef::Input(input) = self.graph.values[value].def else {
            return Err(InterpError::Order { value: self.graph.value_name(value).to_string() });
        };
        let array = WideArray::from_tensor(&self.inputs[rank][input.index()]);
        self.values[rank][value] = Some(array.clone());
        Ok(array)
    }

    fn result_types(&self, node: NodeId) -> Vec<compute::ResultType<'_>> {
        let outputs = &self.graph.nodes[node].outputs;
        outputs.iter().map(|&v| (self.graph.ty(v).dtype, self.shapes[v].as_slice())).collect()
    }

    fn store_results(&mut self, rank: usize, node: NodeId, results: Vec<WideArray>) {
        let graph = self.graph;
        let computed = &graph.nodes[node];
        for (k, (&v, array)) in computed.outputs.iter().zip(results).enumerate() {
            let array = match self.noise.filter(|_| rounding::is_rounded(graph, computed, k)) {
                Some(noise) => noise.perturb(node.index(), &computed.op, array),
                None => array,
            };
            debug_assert_eq!(array.shape, self.shapes[v], "%{}", self.graph.value_name(v));
            debug_assert_eq!(array.dtype, self.graph.ty(v).dtype, "%{}", self.graph.value_name(v));
            self.values[rank][v] = Some(array);
        }
    }

    fn error(&self, rank: usize, node: NodeId, error: OpError) -> InterpError {
        let op = op_name(&self.graph.nodes[node].op);
        InterpError::Op { rank, node: self.graph.node_name(node).to_string(), op, error }
    }

    fn collect_outputs(mut self) -> Result<Vec<Vec<Tensor>>, InterpError> {
        let mut out = Vec::with_capacity(self.values.len());
        for rank in 0..self.values.len() {
            let mut tensors = Vec::with_capacity(self.graph.outputs.len());
            for output in &self.graph.outputs {
                let array = self.load_value(rank, output.value)?;
                let tensor = array.to_tensor();
                tensors.push(tensor.ok_or_else(|| InterpError::Order {
                    value: self.graph.value_name(output.value).to_string(),
                })?);
            }
            out.push(tensors);
        }
        Ok(out)
    }
}

/// Checks that each group contains every rank once, in cells of equal size.
fn check_groups(graph: &Graph, ranks: u32) -> Result<(), InterpError> {
    for group in graph.groups.values() {
        let GroupMembers::Cells(cells) = &group.members else { continue };
        let mut members: Vec<u32> = cells.iter().flatten().copied().collect();
        members.sort_unstable();
        if !members.into_iter().eq(0..ranks) || cells.iter().any(|c| c.len() != cells[0].len()) {
            return Err(InterpError::Cells { group: group.name.clone(), ranks, cells: cells.clone() });
        }
    }
    Ok(())
}

fn check_types(graph: &Graph) -> Result<(), InterpError> {
    for (id, node) in graph.nodes.iter() {
        let error = |message: String| {
            let message = with_symbol_names(&message, &graph.symbols);
            InterpError::Type { node: graph.node_name(id).to_string(), op: op_name(&node.op), message }
        };
        let group = node.op.group();
        if group.is_some_and(|group| graph.groups.get(group).is_none()) {
            return Err(error("the group of the node does not exist".to_string()));
        }
        if let Op::Custom(custom) = node.op
            && graph.customs.get(custom).is_none()
        {
            return Err(error("the custom op is not registered with the graph".to_string()));
        }
        let n = group.and_then(|group| graph.group_size(group));
        let operands: Vec<&TensorType> = node.inputs.iter().map(|&v| graph.ty(v)).collect();
        let results: Vec<&TensorType> = node.outputs.iter().map(|&v| graph.ty(v)).collect();
        infer::check_types(&node.op, &operands, &results, n).map_err(error)?;
    }
    Ok(())
}
