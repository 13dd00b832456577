//! A region at given sizes, as a separate program.
//!
//! All extents and dims are numbers. The program computes a window of the root ([`crate::windows`]) and the
//! windows of all other values that this window needs. A value that is needed in several windows is computed
//! several times. With [`RegionPrecision::Wide`] all floats are f64, except values that depend on no input. These are
//! rounded as the program says, so that constants keep their bits.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use symmc_ir::entity::Entity;
use symmc_ir::text::forms::op_dims_mut;
use symmc_ir::{
    BinaryOp, DType, Dim, EntityMap, FloatAttribute, Graph, GraphOutput, GroupId, InputKind, Node, NodeId,
    Op, OpCost, OperandUse, OutputKind, Replication, Scalar, SymbolBindings, SymbolId, SymbolTable, Tensor,
    TensorType, ValueId,
};

use crate::axes::AxisSets;
use crate::elements::ElementClass;
use crate::number::{NumberedProgram, dtype_of_scalar, round_to_dtype};
use crate::region::{ComparedRegion, MAX_REGION_NODES};
use crate::windows::{ValueWindow, WindowedOp, normalized, window_extents, window_op};

/// The number of elements that are computed in the time in which one is drawn.
const DRAW_COST: u128 = 4;
/// The number of elements that are computed in the time in which one is sorted.
const SORT_COST: u128 = 16;
const MAX_INSTANCES: usize = 4 * MAX_REGION_NODES;

/// The precision of floats in a concrete region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RegionPrecision {
    /// All floats are f64.
    Wide,
    /// Floats have the dtypes of the program.
    Typed,
}

/// An axis of a leaf whose positions the region computes independently. The index along it of an element of the
/// class is the remainder of its position by `period`, divided by `stride`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowAxis {
    pub stride: i64,
    pub period: i64,
}

#[derive(Clone, Debug)]
pub struct RegionLeaf {
    pub class: ElementClass,
    /// The position of the class among those that both regions read.
    pub number: usize,
    /// The position of the first element in the class.
    pub offset: i64,
    /// The distance along each axis.
    pub strides: Vec<i64>,
    pub dtype: DType,
    /// The ranks that hold the same elements, if known.
    pub replication: Option<Replication>,
    pub data: Option<std::sync::Arc<Tensor>>,
    /// The axes that divide the elements into rows.
    pub row_axes: Vec<RowAxis>,
}

/// A leaf by the number of its class, and the first rank that holds its elements.
pub type LeafOfRank = (usize, u32);

impl RegionLeaf {
    /// The rank whose elements this rank holds.
    pub fn representative_rank(&self, rank: u32) -> u32 {
        self.replication.as_ref().map_or(rank, |replication| replication.representative_rank(rank))
    }
}

pub struct ConcreteRegion {
    /// The program: an argument for each leaf, the root as its one output.
    pub graph: Graph,
    /// The contents of the arguments.
    pub leaves: Vec<RegionLeaf>,
}

impl ConcreteRegion {
    /// This region with indices within their axis where drawn or computed indices are not. An index outside of its
    /// axis becomes the remainder of its sum with `shift` by the extent.
    pub fn with_indices_within_axes(&self, shift: i64) -> ConcreteRegion {
        let mut graph = self.graph.without_nodes();
        let mut map: EntityMap<ValueId, Option<ValueId>> = EntityMap::filled(None, self.graph.values.len());
        for input in self.graph.inputs.values() {
            let name = self.graph.value_name(input.value).to_string();
            let ty = self.graph.ty(input.value).clone();
            map[input.value] = Some(graph.add_input(input.kind, name, "", ty, None));
        }
        for node in self.graph.nodes.values() {
            let mut operands: Vec<ValueId> = node.inputs.iter().filter_map(|&v| map[v]).collect();
            for (k, &x) in node.inputs.iter().enumerate() {
                let extent = match node.op.operand_use(k) {
                    OperandUse::Index { axis, first } => {
                        extent(&self.graph, node.inputs[0], axis + k - first)
                    }
                    OperandUse::ExpertIds { experts } => i64::from(experts),
                    _ => continue,
                };
                // There is no index within an axis without positions.
                if extent > 0
                    && let Some(&index) = operands.get(k)
                {
                    operands[k] = add_index_within(&mut graph, index, self.graph.ty(x), extent, shift);
                }
            }
            let results = node.outputs.iter().map(|&v| (format!("v{}", v.index()), self.graph.ty(v).clone()));
            let n = graph.add_node(node.op.clone(), operands, results.collect());
            for (&v, &new) in node.outputs.iter().zip(&graph.nodes[n].outputs) {
                map[v] = Some(new);
            }
        }
        let outputs = self.graph.outputs.iter();
        graph.outputs = outputs
            .filter_map(|output| Some(GraphOutput { value: map[output.value]?, kind: OutputKind::Returned }))
            .collect();
        ConcreteRegion { graph, leaves: self.leaves.clone() }
    }
}

/// Adds nodes that replace the elements of `index` that are not below `extent`, or are negative.
fn add_index_within(graph: &mut Graph, index: ValueId, ty: &TensorType, extent: i64, shift: i64) -> ValueId {
    let mut add = |op: Op, operands: Vec<ValueId>, dtype: DType| {
        let name = format!("i{}", graph.values.len());
        let n = graph.add_node(op, operands, vec![(name, TensorType::new(dtype, ty.shape.clone()))]);
        graph.nodes[n].outputs[0]
    };
    let with_scalar =
        |op: BinaryOp, scalar: i64| Op::BinaryScalar { op, scalar: Scalar::Int(scalar), scalar_left: false };
    let wide = add(Op::Cast, vec![index], DType::I64);
    let is_not_negative = add(with_scalar(BinaryOp::Ge, 0), vec![wide], DType::Bool);
    let is_below = add(with_scalar(BinaryOp::Lt, extent), vec![wide], DType::Bool);
    let is_within = add(Op::Binary(BinaryOp::And), vec![is_not_negative, is_below], DType::Bool);
    let shifted = add(with_scalar(BinaryOp::Add, shift), vec![wide], DType::I64);
    let replaced = add(with_scalar(BinaryOp::Rem, extent), vec![shifted], DType::I64);
    let chosen = add(Op::Select, vec![is_within, wide, replaced], DType::I64);
    add(Op::Cast, vec![chosen], ty.dtype)
}

/// The extent of an axis of a value of a concrete region. A missing axis has extent 0.
pub fn extent(graph: &Graph, value: ValueId, axis: usize) -> i64 {
    graph.ty(value).shape.get(axis).and_then(Dim::as_const).unwrap_or(0)
}

/// The extents of a value of a concrete region.
pub fn concrete_shape(graph: &Graph, value: ValueId) -> Vec<usize> {
    let axes = 0..graph.ty(value).rank();
    axes.map(|axis| usize::try_from(extent(graph, value, axis)).unwrap_or(0)).collect()
}

/// The properties of a region that do not depend on sizes.
pub struct RegionTemplate<'a> {
    pub program: &'a NumberedProgram<'a>,
    pub region: &'a ComparedRegion,
    pub axes: AxisSets<'a>,
    pub ranks: u32,
    pub replication: &'a HashMap<ElementClass, Replication>,
    /// The position of each class among those that both regions read.
    pub class_numbers: &'a HashMap<ElementClass, usize>,
}

impl RegionTemplate<'_> {
    /// For each axis of the root its set, if the axis is free.
    pub fn free_root_axes(&self) -> Vec<Option<usize>> {
        let root = self.region.root;
        (0..self.program.types[root].rank()).map(|axis| self.axes.free((root, axis))).collect()
    }

    /// The extents of the root at sizes of the symbols of the numbering.
    pub fn root_shape(&self, sizes: &SymbolBindings) -> Result<Vec<i64>, String> {
        self.program.types[self.region.root].shape.iter().map(|d| eval_dim(d, sizes)).collect()
    }

    /// A window of the root at sizes of the symbols of the numbering.
    pub fn instantiate(
        &self,
        sizes: &SymbolBindings,
        window: &ValueWindow,
        precision: RegionPrecision,
    ) -> Result<ConcreteRegion, String> {
        let needed = NeededWindows::new(self, sizes, window)?;
        ConcreteBuilder::new(self, sizes, precision, needed).build()
    }
}

fn eval_dim(dim: &Dim, sizes: &SymbolBindings) -> Result<i64, String> {
    dim.eval(sizes).ok_or_else(|| "a dim has no value at these sizes".to_string())
}

struct NeededWindows {
    shapes: HashMap<ValueId, Vec<i64>>,
    root: ValueWindow,
    windows: HashMap<ValueId, Vec<ValueWindow>>,
    /// For each node of the region the ops that compute the windows of its results, in reverse order.
    nodes: Vec<(NodeId, Vec<(ValueWindow, WindowedOp)>)>,
}

impl NeededWindows {
    fn new(
        template: &RegionTemplate<'_>,
        sizes: &SymbolBindings,
        window: &ValueWindow,
    ) -> Result<NeededWindows, String> {
        let RegionTemplate { program, region, .. } = template;
        let mut shapes = HashMap::new();
        let of_nodes = region.nodes.iter().flat_map(|&n| {
            let node = &program.graph.nodes[n];
            node.inputs.iter().chain(&node.outputs)
        });
        for &value in region.leaves.iter().chain([&region.root]).chain(of_nodes) {
            if let Entry::Vacant(entry) = shapes.entry(value) {
                let shape = &program.types[value].shape;
                entry.insert(shape.iter().map(|d| eval_dim(d, sizes)).collect::<Result<Vec<i64>, _>>()?);
            }
        }
        let root = normalized(window.clone(), &shapes[&region.root]);
        let windows = HashMap::from([(region.root, vec![root.clone()])]);
        let mut out = NeededWindows { shapes, root, windows, nodes: Vec::new() };
        let mut instances = 0;
        for &n in region.nodes.iter().rev() {
            let node = &program.graph.nodes[n];
            let computed = out.collect_operand_windows(program, node, sizes)?;
            instances += computed.len();
            if instances > MAX_INSTANCES {
                return Err("the part needs too many windows of its values".into());
            }
            out.nodes.push((n, computed));
        }
        Ok(out)
    }

    fn collect_operand_windows(
        &mut self,
        program: &NumberedProgram<'_>,
        node: &Node,
        sizes: &SymbolBindings,
    ) -> Result<Vec<(ValueWindow, WindowedOp)>, String> {
        let mut op = node.op.clone();
        for dim in op_dims_mut(&mut op) {
            *dim = Dim::from(eval_dim(&program.map_dim(dim), sizes)?);
        }
        let shape = &self.shapes[&node.outputs[0]];
        let same_shapes = node.outputs.iter().all(|v| self.shapes[v] == *shape);
        let mut wanted: Vec<ValueWindow> = Vec::new();
        for window in node.outputs.iter().filter_map(|v| self.windows.get(v)).flatten() {
            if !wanted.contains(window) {
                wanted.push(window.clone());
            }
        }
        let operands: Vec<&[i64]> = node.inputs.iter().map(|v| &self.shapes[v][..]).collect();
        let mut out = Vec::with_capacity(wanted.len());
        for window in wanted {
            let full_window = vec![None; shape.len()];
            let mut windowed =
                window_op(&op, &operands, shape, if same_shapes { &window } else { &full_window });
            let of_operands = windowed.operands.iter_mut().zip(&operands);
            of_operands.for_each(|(window, shape)| *window = normalized(std::mem::take(window), shape));
            out.push((window, windowed));
        }
        for (operand, window) in
            out.iter().flat_map(|(_, windowed)| node.inputs.iter().zip(&windowed.operands))
        {
            let windows = self.windows.entry(*operand).or_default();
            if !windows.contains(window) {
                windows.push(window.clone());
            }
        }
        Ok(out)
    }
}

struct ConcreteBuilder<'a> {
    template: &'a RegionTemplate<'a>,
    sizes: &'a SymbolBindings,
    precision: RegionPrecision,
    needed: NeededWindows,
    graph: Graph,
    map: HashMap<(ValueId, ValueWindow), ValueId>,
    /// For each value that depends on no input its copy in f64, which is read by nodes that depend on inputs.
    widened: HashMap<ValueId, ValueId>,
    groups: HashMap<GroupId, GroupId>,
}

impl<'a> ConcreteBuilder<'a> {
    fn new(
        template: &'a RegionTemplate<'a>,
        sizes: &'a SymbolBindings,
        precision: RegionPrecision,
        needed: NeededWindows,
    ) -> Self {
        let mut graph = Graph::new("part");
        graph.ranks = Some(template.ranks);
        let map = HashMap::new();
        let widened = HashMap::new();
        let groups = HashMap::new();
        ConcreteBuilder { template, sizes, precision, needed, graph, map, widened, groups }
    }

    fn build(mut self) -> Result<ConcreteRegion, String> {
        let RegionTemplate { program, region, .. } = self.template;
        let mut leaves = Vec::with_capacity(region.leaves.len());
        for &leaf in &region.leaves {
            for window in self.needed.windows.remove(&leaf).unwrap_or_default() {
                leaves.push(self.leaf(leaf, window)?);
            }
        }
        for (n, windows) in std::mem::take(&mut self.needed.nodes).into_iter().rev() {
            for (window, windowed) in windows {
                self.add_windowed_node(&program.graph.nodes[n], window, windowed)?;
            }
        }
        let value = self.operand(region.root, &self.needed.root.clone(), false)?;
        self.graph.outputs.push(GraphOutput { value, kind: OutputKind::Returned });
        Ok(ConcreteRegion { graph: self.graph, leaves })
    }

    fn leaf(&mut self, leaf: ValueId, window: ValueWindow) -> Result<RegionLeaf, String> {
        let RegionTemplate { program, .. } = self.template;
        let elements = program.elements[leaf].clone().ok_or("a leaf of the part was not computed")?;
        let ty = self.window_type(leaf, &window, program.constant[leaf]);
        let name = format!("x{}", self.graph.inputs.len());
        let new = self.graph.add_input(InputKind::Argument, name, "", ty, None);
        let data = program.constants.get(&elements.class).cloned();
        let strides =
            elements.strides.iter().map(|d| eval_dim(d, self.sizes)).collect::<Result<Vec<i64>, _>>()?;
        let first =
            window.iter().zip(&strides).filter_map(|(span, stride)| Some(span.as_ref()?.start * stride));
        let offset = eval_dim(&elements.offset, self.sizes)? + first.sum::<i64>();
        self.map.insert((leaf, window), new);
        let replication = self.template.replication.get(&elements.class).cloned();
        let number = self.template.class_numbers.get(&elements.class).copied();
        let number = number.ok_or("a leaf of the part has no class number")?;
        let row_axes = self.row_axes(leaf, &strides);
        Ok(RegionLeaf {
            class: elements.class,
            number,
            replication,
            row_axes,
            offset,
            strides,
            dtype: program.types[leaf].dtype,
            data,
        })
    }

    /// The axes along which the region computes all positions of a leaf independently. If there is none, all axes
    /// except the innermost.
    fn row_axes(&self, leaf: ValueId, strides: &[i64]) -> Vec<RowAxis> {
        let mut axes: Vec<(i64, bool)> = strides
            .iter()
            .enumerate()
            .filter(|(_, stride)| **stride > 0)
            .map(|(axis, &stride)| (stride, self.template.axes.free((leaf, axis)).is_some()))
            .collect();
        axes.sort_unstable_by_key(|(stride, _)| std::cmp::Reverse(*stride));
        let has_free_axis = axes.iter().any(|(_, is_free)| *is_free);
        let innermost = axes.len().saturating_sub(1);
        let divides = |k: usize, is_free: bool| if has_free_axis { is_free } else { k < innermost };
        let period = |k: usize| if k == 0 { i64::MAX } else { axes[k - 1].0 };
        let chosen = axes.iter().enumerate().filter(|&(k, &(_, is_free))| divides(k, is_free));
        chosen.map(|(k, &(stride, _))| RowAxis { stride, period: period(k) }).collect()
    }

    /// The type of a window of a value. A value that depends on no input keeps its dtype.
    fn window_type(&self, value: ValueId, window: &ValueWindow, constant: bool) -> TensorType {
        let dtype = self.template.program.types[value].dtype;
        let shape = window_extents(window, &self.needed.shapes[&value])
            .into_iter()
            .map(Dim::from)
            .collect::<Vec<_>>();
        let wide = self.precision == RegionPrecision::Wide && dtype.is_float() && !constant;
        TensorType::new(if wide { DType::F64 } else { dtype }, shape)
    }

    /// The value of the concrete program that an op reads for a window of a value of the region.
    fn operand(
        &mut self,
        value: ValueId,
        window: &ValueWindow,
        by_constant: bool,
    ) -> Result<ValueId, String> {
        let RegionTemplate { program, .. } = self.template;
        let computed =
            *self.map.get(&(value, window.clone())).ok_or("a value of the part was not computed")?;
        let ty = self.graph.ty(computed).clone();
        let widens = self.precision == RegionPrecision::Wide && !by_constant && program.constant[value];
        if !widens || !ty.dtype.is_float() || ty.dtype == DType::F64 {
            return Ok(computed);
        }
        if let Some(&wide) = self.widened.get(&computed) {
            return Ok(wide);
        }
        let name = format!("w{}", self.graph.values.len());
        let ty = TensorType::new(DType::F64, ty.shape);
        let n = self.graph.add_node(Op::Cast, vec![computed], vec![(name, ty)]);
        let wide = self.graph.nodes[n].outputs[0];
        self.widened.insert(computed, wide);
        Ok(wide)
    }

    /// Adds a node over a window of its results.
    fn add_windowed_node(
        &mut self,
        node: &Node,
        window: ValueWindow,
        windowed: WindowedOp,
    ) -> Result<(), String> {
        let RegionTemplate { program, .. } = self.template;
        let constant = node.outputs.iter().all(|&v| program.constant[v]);
        let WindowedOp { mut op, operands, computed } = windowed;
        let read = node.inputs.iter().zip(&operands);
        let inputs =
            read.map(|(&v, window)| self.operand(v, window, constant)).collect::<Result<Vec<_>, _>>()?;
        if self.precision == RegionPrecision::Wide && !constant {
            let dtype = node.inputs.first().map(|&v| program.types[v].dtype);
            op = with_rounded_scalar(op, dtype);
        }
        if let Op::Collective(c) = &mut op {
            c.variant = None;
        }
        if let Some(group) = op.group_mut() {
            *group = self.group(*group)?;
        }
        let mut results = Vec::with_capacity(node.outputs.len());
        for &v in &node.outputs {
            // Results of several shapes are computed completely.
            let full_window = vec![None; self.needed.shapes[&v].len()];
            let computed = if full_window.len() == computed.len() { &computed } else { &full_window };
            let name = format!("v{}", self.graph.values.len() + results.len());
            results.push((name, self.window_type(v, computed, constant)));
        }
        let n = self.graph.add_node(op, inputs, results);
        let outputs = self.graph.nodes[n].outputs.clone();
        for (&v, mut new) in node.outputs.iter().zip(outputs) {
            if !self.needed.windows.get(&v).is_some_and(|windows| windows.contains(&window)) {
                continue;
            }
            for (axis, span) in window.iter().enumerate() {
                let (Some(span), None) = (span, computed.get(axis).copied().flatten()) else { continue };
                let mut ty = self.graph.ty(new).clone();
                ty.shape[axis] = Dim::from(span.count);
                let name = format!("c{}", self.graph.values.len());
                let cut = Op::Slice { axis, start: Dim::from(span.start), step: 1 };
                let n = self.graph.add_node(cut, vec![new], vec![(name, ty)]);
                new = self.graph.nodes[n].outputs[0];
            }
            self.map.insert((v, window.clone()), new);
        }
        Ok(())
    }

    fn group(&mut self, group: GroupId) -> Result<GroupId, String> {
        if let Some(&existing) = self.groups.get(&group) {
            return Ok(existing);
        }
        let definition = self.template.program.graph.groups.get(group).ok_or("the group does not exist")?;
        let name = format!("g{}", self.graph.groups.len());
        let new = self.graph.groups.push(symmc_ir::GroupDef { name, members: definition.members.clone() });
        self.groups.insert(group, new);
        Ok(new)
    }
}

/// The op with its scalar as the interpreter stores it for operands of this dtype.
fn with_rounded_scalar(op: Op, dtype: Option<DType>) -> Op {
    match (op, dtype) {
        (Op::BinaryScalar { op, scalar, scalar_left }, Some(x)) => {
            let scalar = round_scalar(scalar, dtype_of_scalar(op, x));
            Op::BinaryScalar { op, scalar, scalar_left }
        }
        (Op::Pad { low, value }, Some(x)) => Op::Pad { low, value: round_scalar(value, x) },
        (op, _) => op,
    }
}

fn round_scalar(scalar: Scalar, dtype: DType) -> Scalar {
    if dtype.is_float() {
        Scalar::Float(FloatAttribute(round_to_dtype(dtype, scalar.as_f64())))
    } else {
        scalar
    }
}

/// Estimates the work of a run of a concrete region on all ranks, in elements. Products in sums count a
/// quarter. Drawing an element costs as much as computing several.
pub fn estimate_work(graph: &Graph) -> u128 {
    let inputs = graph.inputs.values().map(|i| count_elements(graph, i.value)).fold(0, u128::saturating_add);
    let nodes =
        graph.nodes.values().map(|node| estimate_node_work(graph, node)).fold(0, u128::saturating_add);
    inputs
        .saturating_mul(DRAW_COST)
        .saturating_add(nodes)
        .saturating_mul(u128::from(graph.ranks.unwrap_or(1)))
}

fn estimate_node_work(graph: &Graph, node: &Node) -> u128 {
    let accessed = node.inputs.iter().chain(&node.outputs);
    let values = accessed.map(|&v| count_elements(graph, v)).fold(0, u128::saturating_add);
    let cost = node.op.facts().cost;
    let products = match cost {
        OpCost::Product | OpCost::GroupedProduct => {
            count_results(graph, node).saturating_mul(extent_from_end(graph, node.inputs.first(), 0))
        }
        OpCost::Attention { .. } => count_attention_products(graph, node, 0),
        // Five products, each of the size of one of the two products of attention. The operands start at
        // index 3.
        OpCost::AttentionGradient { .. } => count_attention_products(graph, node, 3).saturating_mul(3),
        OpCost::Bytes | OpCost::Sort => 0,
    };
    values.saturating_mul(if cost == OpCost::Sort { SORT_COST } else { 1 }).saturating_add(products / 4)
}

/// The products of attention whose first operand, the queries, is the input with the index `queries`.
fn count_attention_products(graph: &Graph, node: &Node, queries: usize) -> u128 {
    let elements = node.inputs.get(queries).map_or(0, |&v| count_elements(graph, v));
    let keys = extent_from_end(graph, node.inputs.get(queries + 1), 1);
    elements.saturating_add(count_results(graph, node)).saturating_mul(keys)
}

fn count_results(graph: &Graph, node: &Node) -> u128 {
    node.outputs.first().map_or(0, |&v| count_elements(graph, v))
}

fn count_elements(graph: &Graph, value: ValueId) -> u128 {
    let dims = graph.ty(value).shape.iter();
    dims.fold(1, |n: u128, d| n.saturating_mul(d.as_const().unwrap_or(0).max(0) as u128))
}

/// The extent of an axis of a value, counted from the last. A missing axis has extent 1.
fn extent_from_end(graph: &Graph, value: Option<&ValueId>, axis: usize) -> u128 {
    let shape = value.map(|&v| &graph.ty(v).shape);
    let dim = shape.and_then(|s| s.iter().rev().nth(axis)).and_then(Dim::as_const);
    dim.unwrap_or(1).max(0) as u128
}

/// The bindings of the symbols of a numbering. Symbols that are not named get their smallest value.
pub fn bindings(symbols: &SymbolTable, sizes: &[(String, i64)]) -> SymbolBindings {
    let mut out = SymbolBindings::new();
    for (id, symbol) in symbols.iter() {
        let size = sizes.iter().find(|(name, _)| *name == symbol.name).map_or(symbol.min, |s| s.1);
        out.set(SymbolId::new(id.index()), size);
    }
    out
}
