//! A region at given sizes, as a separate program.
//!
//! Extents and dims are numbers. Extents along independent axes ([`crate::axes`]) are as small as the caller says. In
//! [`Precision::Wide`] all floats are f64, so that only values that depend on no input are rounded: constants keep
//! their bits.

use std::collections::HashMap;

use symmc_ir::entity::Entity;
use symmc_ir::text::forms::op_dims_mut;
use symmc_ir::{
    Bindings, DType, Dim, Float, Graph, GroupId, InputKind, Node, Op, Output, OutputKind, Scalar, Symbol,
    SymbolId, Table, Tensor, Type, ValueId,
};

use crate::axes::AxisSets;
use crate::elements::Class;
use crate::number::{Numbered, dtype_of_scalar, rounded};
use crate::region::Region;

/// Axes whose positions are all computed in the same way, and the most positions of each.
#[derive(Clone, Copy, Debug)]
pub struct Short<'a> {
    /// The sets of the axes.
    pub sets: &'a [usize],
    /// The most positions.
    pub extent: i64,
}

/// Whether values are rounded to their dtypes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Precision {
    /// Floats are f64.
    Wide,
    /// As the program says.
    Typed,
}

/// What a leaf of a concrete region holds.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// The class of its elements.
    pub class: Class,
    /// The position of the first one in the class.
    pub offset: i64,
    /// The distance along each axis.
    pub strides: Vec<i64>,
    /// The dtype that the program gives it.
    pub dtype: DType,
    /// The data, if they are part of the program.
    pub data: Option<std::sync::Arc<Tensor>>,
}

/// A region at given sizes.
pub struct Concrete {
    /// The program: an argument for each leaf, the root as its one output.
    pub graph: Graph,
    /// What the arguments hold.
    pub leaves: Vec<Leaf>,
}

/// A region with what does not depend on sizes.
pub struct Template<'a> {
    /// Its program.
    pub program: &'a Numbered<'a>,
    /// The region.
    pub region: &'a Region,
    /// Its axes.
    pub axes: AxisSets<'a>,
    /// The ranks that run it.
    pub ranks: u32,
}

impl Template<'_> {
    /// The root axes that are free, each with its set.
    pub fn free_root(&self) -> Vec<Option<usize>> {
        let root = self.region.root;
        (0..self.program.types[root].rank()).map(|axis| self.axes.free((root, axis))).collect()
    }

    /// The region at sizes of the symbols of the numbering.
    ///
    /// # Errors
    /// Why it has no meaning at these sizes.
    pub fn at(&self, sizes: &Bindings, short: Short<'_>, precision: Precision) -> Result<Concrete, String> {
        Builder::new(self, sizes, short, precision).build()
    }
}

struct Builder<'a> {
    template: &'a Template<'a>,
    sizes: &'a Bindings,
    short: Short<'a>,
    precision: Precision,
    graph: Graph,
    map: HashMap<ValueId, ValueId>,
    /// Values of closed nodes as open nodes read them.
    widened: HashMap<ValueId, ValueId>,
    groups: HashMap<GroupId, GroupId>,
}

impl<'a> Builder<'a> {
    fn new(template: &'a Template<'a>, sizes: &'a Bindings, short: Short<'a>, precision: Precision) -> Self {
        let mut graph = Graph::new("part");
        graph.ranks = Some(template.ranks);
        let (map, widened, groups) = (HashMap::new(), HashMap::new(), HashMap::new());
        Builder { template, sizes, short, precision, graph, map, widened, groups }
    }

    fn build(mut self) -> Result<Concrete, String> {
        let Template { program, region, .. } = self.template;
        let mut leaves = Vec::with_capacity(region.leaves.len());
        for &leaf in &region.leaves {
            leaves.push(self.leaf(leaf)?);
        }
        for &n in &region.nodes {
            self.node(&program.graph.nodes[n])?;
        }
        let value = self.operand(region.root, false)?;
        self.graph.outputs.push(Output { value, kind: OutputKind::Returned });
        Ok(Concrete { graph: self.graph, leaves })
    }

    fn leaf(&mut self, leaf: ValueId) -> Result<Leaf, String> {
        let Template { program, .. } = self.template;
        let elements = program.elements[leaf].clone().ok_or("a value that is not computed")?;
        let ty = self.ty(leaf, false)?;
        let name = format!("x{}", self.graph.inputs.len());
        let new = self.graph.add_input(InputKind::Argument, name, "", ty, None);
        self.map.insert(leaf, new);
        let data = match program.graph.values[leaf].def {
            symmc_ir::Def::Input(id) => program.graph.inputs[id].data.clone(),
            symmc_ir::Def::Node(..) => None,
        };
        let strides = elements.strides.iter().map(|d| self.number(d)).collect::<Result<_, _>>()?;
        let offset = self.number(&elements.offset)?;
        Ok(Leaf { class: elements.class, offset, strides, dtype: program.types[leaf].dtype, data })
    }

    fn number(&self, dim: &Dim) -> Result<i64, String> {
        dim.eval(self.sizes).ok_or_else(|| "a dim has no value at these sizes".to_string())
    }

    /// The type of a value. What depends on no input keeps its dtype.
    fn ty(&self, value: ValueId, closed: bool) -> Result<Type, String> {
        let Template { program, axes, .. } = self.template;
        let ty = &program.types[value];
        let mut shape = Vec::with_capacity(ty.rank());
        for (axis, dim) in ty.shape.iter().enumerate() {
            let extent = self.number(dim)?;
            let short = axes.free((value, axis)).is_some_and(|set| self.short.sets.contains(&set));
            shape.push(Dim::from(if short { extent.min(self.short.extent) } else { extent }));
        }
        let wide = self.precision == Precision::Wide && ty.dtype.is_float() && !closed;
        Ok(Type::new(if wide { DType::F64 } else { ty.dtype }, shape))
    }

    /// The value that stands for one of the region where an op reads it.
    fn operand(&mut self, value: ValueId, by_closed: bool) -> Result<ValueId, String> {
        let Template { program, .. } = self.template;
        let known = *self.map.get(&value).ok_or("a value that is not computed")?;
        let ty = self.graph.ty(known).clone();
        let widens = self.precision == Precision::Wide && !by_closed && program.closed[value];
        if !widens || !ty.dtype.is_float() || ty.dtype == DType::F64 {
            return Ok(known);
        }
        if let Some(&wide) = self.widened.get(&value) {
            return Ok(wide);
        }
        let name = format!("w{}", self.graph.values.len());
        let ty = Type::new(DType::F64, ty.shape);
        let n = self.graph.add_node(Op::Cast, vec![known], vec![(name, ty)]);
        let wide = self.graph.nodes[n].outputs[0];
        self.widened.insert(value, wide);
        Ok(wide)
    }

    fn node(&mut self, node: &Node) -> Result<(), String> {
        let Template { program, .. } = self.template;
        let closed = node.outputs.iter().all(|&v| program.closed[v]);
        let inputs = node.inputs.iter().map(|&v| self.operand(v, closed)).collect::<Result<Vec<_>, _>>()?;
        let mut op = node.op.clone();
        if self.precision == Precision::Wide && !closed {
            let dtype = node.inputs.first().map(|&v| program.types[v].dtype);
            op = with_rounded_scalar(op, dtype);
        }
        for dim in op_dims_mut(&mut op) {
            let mapped = program.dim(dim);
            *dim = Dim::from(self.number(&mapped)?);
        }
        if let Op::Collective(c) = &mut op {
            c.variant = None;
            c.group = self.group(c.group)?;
        }
        let mut results = Vec::with_capacity(node.outputs.len());
        for &v in &node.outputs {
            results.push((format!("v{}", self.graph.values.len() + results.len()), self.ty(v, closed)?));
        }
        let n = self.graph.add_node(op, inputs, results);
        let outputs = self.graph.nodes[n].outputs.clone();
        self.map.extend(node.outputs.iter().copied().zip(outputs));
        Ok(())
    }

    fn group(&mut self, group: GroupId) -> Result<GroupId, String> {
        if let Some(&known) = self.groups.get(&group) {
            return Ok(known);
        }
        let found = self.template.program.graph.groups.get(group).ok_or("a group that does not exist")?;
        let name = format!("g{}", self.graph.groups.len());
        let new = self.graph.groups.push(symmc_ir::Group { name, members: found.members.clone() });
        self.groups.insert(group, new);
        Ok(new)
    }
}

/// The op with its number as the interpreter holds it beside operands of this dtype.
fn with_rounded_scalar(op: Op, dtype: Option<DType>) -> Op {
    let round = |scalar: Scalar, dtype: DType| match dtype.is_float() {
        true => Scalar::Float(Float(rounded(dtype, scalar.as_f64()))),
        false => scalar,
    };
    match (op, dtype) {
        (Op::BinaryScalar { op, scalar, scalar_left }, Some(x)) => {
            let scalar = round(scalar, dtype_of_scalar(op, x));
            Op::BinaryScalar { op, scalar, scalar_left }
        }
        (Op::Pad { low, value }, Some(x)) => Op::Pad { low, value: round(value, x) },
        (op, _) => op,
    }
}

/// About what a run of a concrete region computes on all ranks: elements, and a quarter of the products of sums.
pub fn work(graph: &Graph) -> u128 {
    let numel = |v: ValueId| -> u128 {
        graph
            .ty(v)
            .shape
            .iter()
            .fold(1, |n: u128, d| n.saturating_mul(d.as_const().unwrap_or(0).max(0) as u128))
    };
    let of = |node: &Node| {
        let values = node.inputs.iter().chain(&node.outputs).map(|&v| numel(v)).fold(0, u128::saturating_add);
        let extent = |v: Option<&ValueId>, back: usize| -> u128 {
            let shape = v.map(|&v| &graph.ty(v).shape);
            let dim = shape.and_then(|s| s.iter().rev().nth(back)).and_then(Dim::as_const);
            dim.unwrap_or(1).max(0) as u128
        };
        let result = node.outputs.first().map_or(0, |&v| numel(v));
        let products = match &node.op {
            Op::MatMul | Op::GroupedMatMul => result.saturating_mul(extent(node.inputs.first(), 0)),
            Op::Attention { .. } | Op::Permuted { .. } => {
                let q = node.inputs.first().map_or(0, |&v| numel(v));
                q.saturating_add(result).saturating_mul(extent(node.inputs.get(1), 1))
            }
            _ => 0,
        };
        values.saturating_add(products / 4)
    };
    let inputs = graph.inputs.values().map(|i| numel(i.value)).fold(0, u128::saturating_add);
    let nodes = graph.nodes.values().map(of).fold(0, u128::saturating_add);
    inputs.saturating_add(nodes).saturating_mul(u128::from(graph.ranks.unwrap_or(1)))
}

/// Sizes by the symbols of a numbering: those that are not named take their least value.
pub fn bindings(symbols: &Table<SymbolId, Symbol>, sizes: &[(String, i64)]) -> Bindings {
    let mut out = Bindings::new();
    for (id, symbol) in symbols.iter() {
        let size = sizes.iter().find(|(name, _)| *name == symbol.name).map_or(symbol.min, |s| s.1);
        out.set(SymbolId::new(id.index()), size);
    }
    out
}
