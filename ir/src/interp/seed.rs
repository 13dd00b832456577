//! Inputs generated from a seed that are fit to be run: indices within the axes they index, norms near 1.
//!
//! Every input has its own generator, so its elements depend only on the seed, its position, its type and its
//! uses.

use std::sync::Arc;

use super::array::{numel, round_to_dtype};
use super::bind::concrete_shape;
use super::error::InterpError;
use crate::dim::SymbolBindings;
use crate::entity::{Entity, EntityMap};
use crate::graph::{Graph, InputKind};
use crate::ids::{InputId, NodeId, ValueId};
use crate::op::{BinaryOp, Op, OperandUse};
use crate::tensor::Tensor;
use crate::types::DType;
use symmc_support::random::SplitMix;

/// The generated inputs that differ by rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum SeedScope {
    Shared,
    PerRank,
    /// Inputs that are operands of collectives, also after moves and element-wise ops, so that a collective
    /// that reads the wrong peer gives a wrong result. All other inputs are the same on every rank, such as
    /// tokens and positions. So are inputs that also select elements for an op.
    #[default]
    CollectiveOperands,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeedConfig {
    pub seed: u64,
    /// The distribution of arguments over ranks. Tensor-parallel programs take the same tokens on every rank;
    /// data-parallel programs take different data.
    pub arguments: SeedScope,
    pub parameters: SeedScope,
}

impl SeedConfig {
    /// Arguments are shared, and parameters differ by rank.
    pub fn new(seed: u64) -> Self {
        SeedConfig { seed, arguments: SeedScope::Shared, parameters: SeedScope::PerRank }
    }
}

/// All inputs of a rank in order: constants as they are, all others generated.
///
/// - Float arguments are uniform in [-1, 1]. So are float parameters with two axes or more, divided by the
///   square root of the last extent.
/// - Float parameters with one axis or none are 1 ± 0.1 if a norm or a product multiplies with them,
///   else ± 0.1.
/// - An integer that indexes an axis, directly or through views, casts, concatenations and exchanges, is
///   within the smallest such axis. Split sizes of an all-to-all always fit. Ends of groups of rows ascend
///   within these rows. Other integers are from 0 to 7.
/// - Bools are true or false with equal probability.
///
/// Fails for an unbound symbol, an invalid extent, or a constant without data.
pub fn seeded_inputs(
    graph: &Graph,
    bindings: &SymbolBindings,
    config: &SeedConfig,
    rank: u32,
) -> Result<Vec<Arc<Tensor>>, InterpError> {
    let seeds = SeededInputs::new(graph, bindings, *config);
    graph.inputs.keys().map(|id| seeds.generate_input(id, rank)).collect()
}

/// The inputs of a program, generated one by one as by [`seeded_inputs`].
pub struct SeededInputs<'a> {
    graph: &'a Graph,
    bindings: &'a SymbolBindings,
    config: SeedConfig,
    users: EntityMap<ValueId, Vec<NodeId>>,
}

impl<'a> SeededInputs<'a> {
    pub fn new(graph: &'a Graph, bindings: &'a SymbolBindings, config: SeedConfig) -> Self {
        SeededInputs { graph, bindings, config, users: graph.users() }
    }

    pub fn generate_input(&self, id: InputId, rank: u32) -> Result<Arc<Tensor>, InterpError> {
        self.generate(id, rank, usize::MAX)
    }

    /// The first elements of a float input on a rank, at most `max_elements`, along one axis; other inputs in full.
    pub fn generate_sample(
        &self,
        id: InputId,
        rank: u32,
        max_elements: usize,
    ) -> Result<Arc<Tensor>, InterpError> {
        self.generate(id, rank, max_elements)
    }

    /// One past the largest integer that an input may contain if it is an index; `None` if it is no index.
    pub fn index_limit(&self, id: InputId) -> Result<Option<u64>, InterpError> {
        index_limit(self.graph, self.bindings, &self.users, self.graph.inputs[id].value)
    }

    /// Whether an input holds the ends of groups of rows, so that its elements ascend.
    pub fn holds_group_ends(&self, id: InputId) -> bool {
        value_holds_group_ends(self.graph, &self.users, self.graph.inputs[id].value)
    }

    pub fn differs_by_rank(&self, id: InputId) -> bool {
        let SeededInputs { graph, config, users, .. } = self;
        let input = &graph.inputs[id];
        let draw = match input.kind {
            InputKind::Constant => return false,
            InputKind::Argument => config.arguments,
            InputKind::Parameter => config.parameters,
        };
        match draw {
            SeedScope::Shared => false,
            SeedScope::PerRank => true,
            SeedScope::CollectiveOperands => is_collective_operand(graph, users, input.value),
        }
    }

    fn generate(&self, id: InputId, rank: u32, max_elements: usize) -> Result<Arc<Tensor>, InterpError> {
        let SeededInputs { graph, bindings, config, users } = self;
        let input = &graph.inputs[id];
        if input.kind == InputKind::Constant {
            return input
                .data
                .clone()
                .ok_or_else(|| InterpError::NoData { input: graph.value_name(input.value).to_string() });
        }
        let stream = if self.differs_by_rank(id) { u64::from(rank) + 1 } else { 0 };
        let mut random = SplitMix(config.seed);
        random = SplitMix(random.next() ^ (id.index() as u64) << 32 ^ stream);
        let shape = concrete_shape(graph, bindings, input.value)?;
        let tensor = match graph.ty(input.value).dtype {
            DType::Bool => random_ints(DType::Bool, &shape, 2, &mut random),
            dtype if !dtype.is_float() => {
                let end = index_limit(graph, bindings, users, input.value)?.unwrap_or(8);
                let drawn = random_ints(dtype, &shape, end.max(1) as usize, &mut random);
                if value_holds_group_ends(graph, users, input.value) {
                    drawn.and_then(sort_ascending)
                } else {
                    drawn
                }
            }
            dtype => {
                let (center, spread) = match (input.kind, shape.as_slice()) {
                    (InputKind::Argument, _) => (0.0, 1.0),
                    (_, [_, .., last]) => (0.0, 1.0 / (*last as f64).max(1.0).sqrt()),
                    _ if is_factor(graph, users, input.value) => (1.0, 0.1),
                    _ => (0.0, 0.1),
                };
                let elements: Vec<f64> = (0..numel(&shape).min(max_elements))
                    .map(|_| round_to_dtype(dtype, center + spread * random.symmetric_unit()))
                    .collect();
                let shape = if elements.len() < numel(&shape) { vec![elements.len()] } else { shape };
                Tensor::from_f64(dtype, shape, &elements)
            }
        };
        let tensor = tensor.ok_or_else(|| InterpError::Extent {
            value: graph.value_name(input.value).to_string(),
            dims: String::new(),
        })?;
        Ok(Arc::new(tensor))
    }
}

fn random_ints(dtype: DType, shape: &[usize], end: usize, random: &mut SplitMix) -> Option<Tensor> {
    let elements: Vec<i64> = (0..numel(shape)).map(|_| random.below(end) as i64).collect();
    Tensor::from_i64(dtype, shape, &elements)
}

fn sort_ascending(drawn: Tensor) -> Option<Tensor> {
    let mut elements = drawn.to_i64();
    elements.sort_unstable();
    Tensor::from_i64(drawn.dtype(), drawn.shape(), &elements)
}

/// Whether the value, directly or after a cast, holds the ends of groups of rows.
fn value_holds_group_ends(graph: &Graph, users: &EntityMap<ValueId, Vec<NodeId>>, value: ValueId) -> bool {
    values_sharing_elements(graph, users, value).into_iter().any(|v| {
        users[v].iter().any(|&n| {
            let node = &graph.nodes[n];
            node.op == Op::GroupedMatMul && node.inputs.get(2) == Some(&v)
        })
    })
}

/// One past the largest integer that is in range wherever the value is an index; `None` if it is no index.
fn index_limit(
    graph: &Graph,
    bindings: &SymbolBindings,
    users: &EntityMap<ValueId, Vec<NodeId>>,
    value: ValueId,
) -> Result<Option<u64>, InterpError> {
    let mut limit: Option<u64> = None;
    for v in values_sharing_elements(graph, users, value) {
        for &n in &users[v] {
            let node = &graph.nodes[n];
            let uses = node.inputs.iter().enumerate().filter(|&(_, &x)| x == v);
            for (operand, _) in uses {
                let extent = |axis: usize| -> Result<u64, InterpError> {
                    Ok(concrete_shape(graph, bindings, node.inputs[0])?.get(axis).map_or(0, |&d| d as u64))
                };
                let end = match (node.op.operand_use(operand), node.op.group()) {
                    (OperandUse::Index { axis, first }, _) => extent(axis + operand - first)?,
                    // The number of rows for each rank.
                    (OperandUse::Counts, Some(group)) => {
                        extent(0)? / u64::from(graph.group_size(group).unwrap_or(1).max(1)) + 1
                    }
                    (OperandUse::ExpertIds { experts }, _) => u64::from(experts),
                    // Ends of groups of rows, or of terms. All of them may belong to groups.
                    (OperandUse::Counts, None) => {
                        let axis = usize::from(graph.ty(node.inputs[1]).rank() == 2);
                        extent(axis)?.saturating_add(1)
                    }
                    _ => continue,
                };
                limit = Some(limit.map_or(end, |l| l.min(end)));
            }
        }
    }
    Ok(limit)
}

/// The value, and all values that contain some of its elements unchanged.
fn values_sharing_elements(
    graph: &Graph,
    users: &EntityMap<ValueId, Vec<NodeId>>,
    value: ValueId,
) -> Vec<ValueId> {
    let mut visited = EntityMap::filled(false, graph.values.len());
    let mut out = vec![value];
    visited[value] = true;
    let mut next = 0;
    while next < out.len() {
        let v = out[next];
        next += 1;
        for &n in &users[v] {
            let node = &graph.nodes[n];
            let carries = node.inputs.iter().enumerate().filter(|&(_, &x)| x == v).any(|(operand, _)| {
                match node.op.operand_use(operand) {
                    OperandUse::Kept | OperandUse::Moved => true,
                    OperandUse::Element => node.op == Op::Cast,
                    // These have a piece for each rank, in contrast to elements that are looked up.
                    OperandUse::Selected => matches!(node.op, Op::Shard { .. }),
                    _ => false,
                }
            });
            if let Some(&result) = node.outputs.first().filter(|&&r| carries && !visited[r]) {
                visited[result] = true;
                out.push(result);
            }
        }
    }
    out
}

/// Whether a collective takes the value as operand, directly, moved or changed element by element, and the
/// value selects no elements.
fn is_collective_operand(graph: &Graph, users: &EntityMap<ValueId, Vec<NodeId>>, value: ValueId) -> bool {
    let mut visited = EntityMap::filled(false, graph.values.len());
    let mut reached = vec![value];
    visited[value] = true;
    let mut is_operand = false;
    let mut next = 0;
    while let Some(&v) = reached.get(next) {
        next += 1;
        for &n in &users[v] {
            let node = &graph.nodes[n];
            let uses = node.inputs.iter().enumerate().filter(|&(_, &x)| x == v);
            for (operand, _) in uses {
                use OperandUse::*;
                match node.op.operand_use(operand) {
                    Index { .. } | Counts | ExpertIds { .. } => return false,
                    _ if node.op.as_collective().is_some() => is_operand = true,
                    Element | Kept | Moved | Selected | Updated { .. } | Stored => {
                        let results =
                            node.outputs.iter().filter(|&&r| !std::mem::replace(&mut visited[r], true));
                        reached.extend(results);
                    }
                    Absent | Row | Combined | Matrices | Unknown => {}
                }
            }
        }
    }
    is_operand
}

/// Whether a norm or a product multiplies with the value.
fn is_factor(graph: &Graph, users: &EntityMap<ValueId, Vec<NodeId>>, value: ValueId) -> bool {
    values_sharing_elements(graph, users, value).into_iter().any(|v| {
        users[v].iter().any(|&n| {
            let node = &graph.nodes[n];
            match node.op {
                Op::RmsNorm { .. } | Op::LayerNorm { .. } => node.inputs.get(1) == Some(&v),
                Op::Binary(op) => op == BinaryOp::Mul,
                _ => false,
            }
        })
    })
}
