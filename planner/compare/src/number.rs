//! Value numbering: values of both programs that are computed in the same way have the same [`ElementView`].
//!
//! A [`ValueNumbering`] is shared by the source and one planned program. Each op becomes a [`ClassTerm`] over the
//! elements of its operands, and equal terms are one class. Variants and dispatches are ignored. Groups are
//! equal if their cells are, and dims if their values within the ranges of the planned program are.
//!
//! Only these identities are built in. All of them hold bit for bit:
//! - Views are offsets and strides.
//! - A copy, a cast to the same dtype, and a collective on groups of one rank are their operand.
//! - Element-wise ops, reductions and norms do not depend on the division of their positions into axes.
//!   Products do not depend on the division of the rows of their left operand.
//! - Values that are constant along an axis are computed once.
//! - A scalar operand is a tensor of that scalar.
//! - A slice that is a part of a concatenation is that part. This also holds after a collective that makes each
//!   element from the elements at the same position.
//!
//! Opaque and custom ops are unknown functions of their operands: the n-th use on equal operands in one program
//! is the n-th use in the other.
//!
//! Deliberately absent: the rewrites of the passes, because the comparison must not share their errors.

use std::collections::HashMap;
use std::sync::Arc;

use symmc_ir::entity::Entity;
use symmc_ir::tensor::{read_f64, write_f64};
use symmc_ir::text::forms::op_dims_mut;
use symmc_ir::{
    BinaryOp, DType, Dim, EntityMap, Graph, GroupId, GroupMembers, InputKind, NodeId, Op, ReductionKind,
    ResultDistribution, RoundingEffect, Scalar, SymbolId, SymbolTable, Tensor, TensorType, ValueDef, ValueId,
};

use crate::elements::{AxisNest, ElementClass, ElementView, contiguous_strides, is_unit};

/// The computation of a class.
#[derive(PartialEq, Eq, Hash, Debug)]
enum ClassTerm {
    /// An input, by its position.
    Input(usize),
    /// One element of this dtype, by its bits.
    Scalar(DType, u64),
    /// Consecutive elements of another class.
    Run { class: ElementClass, offset: Dim, nest: AxisNest },
    /// An op whose positions are independent except along the axes in `inner`.
    Nested { op: Op, dtype: DType, operands: Vec<(ElementClass, Dim)>, outer: AxisNest, inner: AxisNest },
    /// Any other op: its results by number.
    Node { op: Op, operands: Vec<ElementView>, results: Vec<TensorType>, result: usize, use_: u32 },
}

#[derive(Default)]
pub struct ValueNumbering {
    terms: HashMap<ClassTerm, ElementClass>,
    /// The parts of classes that are concatenations, or results of collectives that act on each position of a
    /// concatenation.
    parts: HashMap<ElementClass, Vec<ConcatPart>>,
    cells: HashMap<Vec<Vec<u32>>, usize>,
    /// The symbols of the source with the ranges of the planned program, then those that only the planned program has.
    pub symbols: SymbolTable,
}

/// Consecutive elements of a class.
#[derive(Clone)]
struct ConcatPart {
    start: Dim,
    count: Dim,
    /// The same elements, along one axis.
    elements: ElementView,
}

/// The elements of all values of one program that its outputs need.
pub struct NumberedProgram<'a> {
    pub graph: &'a Graph,
    /// The type of each value over the symbols of the numbering.
    pub types: EntityMap<ValueId, TensorType>,
    /// The elements of each value that outputs need, once it is numbered.
    pub elements: EntityMap<ValueId, Option<ElementView>>,
    /// For each value whether it depends on no input and no rank.
    pub closed: EntityMap<ValueId, bool>,
    /// For each value whether it depends on no input. Ranks may have different values, such as shards of a
    /// constant.
    pub constant: EntityMap<ValueId, bool>,
    /// The data of the classes that are constants of the program.
    pub constants: HashMap<ElementClass, Arc<Tensor>>,
    /// For each node whether outputs need it.
    pub live: EntityMap<NodeId, bool>,
    map: HashMap<SymbolId, SymbolId>,
    dims: HashMap<Dim, Dim>,
    uses: HashMap<(Op, Vec<ElementView>), u32>,
}

/// Whether an op gives known results that are the same on all ranks, if its operands are known and the same on
/// all ranks.
fn is_same_everywhere(op: &Op) -> bool {
    match op {
        op if op.is_opaque() => false,
        Op::Collective(c) => c.kind.facts().result_distribution == ResultDistribution::Replicated,
        op => op.group().is_none(),
    }
}

impl NumberedProgram<'_> {
    pub fn map_dim(&self, dim: &Dim) -> Dim {
        match self.dims.get(dim) {
            Some(existing) => existing.clone(),
            None => dim.substitute(&|s| Dim::from(self.map.get(&s).copied().unwrap_or(s))),
        }
    }
}

impl ValueNumbering {
    pub fn new(source: &Graph, planned: &Graph) -> ValueNumbering {
        let mut symbols = source.symbols.clone();
        for symbol in planned.symbols.values() {
            match symbols.values_mut().find(|s| s.name == symbol.name) {
                Some(existing) => (existing.min, existing.max) = (symbol.min, symbol.max),
                None => drop(symbols.push(symbol.clone())),
            }
        }
        ValueNumbering { symbols, ..ValueNumbering::default() }
    }

    /// Starts to number a program: its inputs get numbers, its nodes do not yet.
    pub fn add_program<'a>(&mut self, graph: &'a Graph) -> NumberedProgram<'a> {
        let by_name: HashMap<&str, SymbolId> =
            self.symbols.iter().map(|(id, symbol)| (symbol.name.as_str(), id)).collect();
        let map = graph.symbols.iter().filter_map(|(id, s)| Some((id, *by_name.get(s.name.as_str())?)));
        let map = map.collect();
        let mut out = NumberedProgram {
            graph,
            types: EntityMap::new(),
            elements: EntityMap::filled(None, graph.values.len()),
            closed: EntityMap::filled(false, graph.values.len()),
            constant: EntityMap::filled(false, graph.values.len()),
            constants: HashMap::new(),
            live: live_nodes(graph),
            map,
            dims: HashMap::new(),
            uses: HashMap::new(),
        };
        for value in graph.values.values() {
            let shape: Vec<Dim> = value.ty.shape.iter().map(|d| self.normalize_dim(&mut out, d)).collect();
            out.types.push(TensorType::new(value.ty.dtype, shape));
        }
        for (id, input) in graph.inputs.iter() {
            let class = self.intern_term(ClassTerm::Input(id.index()));
            if let (InputKind::Constant, Some(data)) = (input.kind, &input.data) {
                out.constants.insert(class, data.clone());
            }
            out.elements[input.value] = Some(ElementView::full(class, &out.types[input.value].shape));
        }
        out
    }

    pub fn number_node(&mut self, program: &mut NumberedProgram<'_>, id: NodeId) {
        let graph = program.graph;
        let node = &graph.nodes[id];
        let operands: Option<Vec<ElementView>> =
            node.inputs.iter().map(|&v| program.elements[v].clone()).collect();
        let Some(operands) = operands else { return };
        let op = self.normalize_op(program, &node.op);
        let is_single_rank = self.group_of_one(graph, &node.op);
        let closed = (is_single_rank || is_same_everywhere(&node.op))
            && node.inputs.iter().all(|&v| program.closed[v]);
        let is_known = !node.op.is_opaque();
        let constant = is_known && node.inputs.iter().all(|&v| program.constant[v]);
        for &v in &node.outputs {
            (program.closed[v], program.constant[v]) = (closed, constant);
        }
        if let &[result] = &node.outputs[..]
            && let Some(elements) =
                self.apply_identity(program, &op, is_single_rank, &node.inputs, &operands, result)
        {
            program.elements[result] = Some(elements);
            return;
        }
        let use_ = if is_known {
            0
        } else {
            let count = program.uses.entry((op.clone(), operands.clone())).or_default();
            *count += 1;
            *count
        };
        let results: Vec<TensorType> = node.outputs.iter().map(|&v| program.types[v].clone()).collect();
        let concat_parts = self.parts_of_concat(&op, &operands, &results);
        for (result, &v) in node.outputs.iter().enumerate() {
            let op = op.clone();
            let operands = operands.clone();
            let results = results.clone();
            let class = self.intern_term(ClassTerm::Node { op, operands, results, result, use_ });
            program.elements[v] = Some(ElementView::full(class, &program.types[v].shape));
            if let Some(concat_parts) = &concat_parts {
                self.parts.insert(class, concat_parts.clone());
            }
        }
    }

    /// The parts of a concatenation along the outermost axis that is not 1.
    fn parts_of_concat(
        &mut self,
        op: &Op,
        operands: &[ElementView],
        results: &[TensorType],
    ) -> Option<Vec<ConcatPart>> {
        let (Op::Concat { axis }, [ty]) = (op, results) else { return None };
        let outer = ty.shape.iter().take(*axis);
        if !outer.into_iter().all(is_unit) {
            return None;
        }
        let mut start = Dim::from(0);
        let concat_parts = operands.iter().map(|x| {
            let count = shape_product(&x.shape);
            let (own, flat) =
                (TensorType::new(ty.dtype, x.shape.clone()), TensorType::new(ty.dtype, vec![count.clone()]));
            let elements = x.apply_view(&Op::Reshape, &own, &flat, &self.symbols)?;
            let concat_part = ConcatPart { start: start.clone(), count: count.clone(), elements };
            start = start.clone() + count;
            Some(concat_part)
        });
        concat_parts.collect()
    }

    /// Makes the parts of an operand the parts of the result of a collective that acts position by position.
    fn reduce_parts(&mut self, op: &Op, x: &ElementView, result: &ElementView, dtype: DType) {
        let Some(concat_parts) = self.parts.get(&x.class).cloned() else { return };
        let end = concat_parts.last().map(|p| p.start.clone() + p.count.clone());
        let both_whole = [x, result].into_iter().all(|elements| {
            elements.offset == Dim::from(0)
                && elements.strides == contiguous_strides(&elements.shape)
                && Some(shape_product(&elements.shape)) == end
        });
        if !both_whole || self.parts.contains_key(&result.class) {
            return;
        }
        let reduced = concat_parts.into_iter().map(|part| {
            let ty = TensorType::new(dtype, vec![part.count.clone()]);
            ConcatPart {
                elements: self.pointwise(op.clone(), std::slice::from_ref(&part.elements), &ty),
                ..part
            }
        });
        let reduced = reduced.collect();
        self.parts.insert(result.class, reduced);
    }

    /// A view that shows exactly one part of its class, as a view of the source of that part.
    fn find_part(&self, view: &ElementView, ty: &TensorType) -> Option<ElementView> {
        let concat_parts = self.parts.get(&view.class)?;
        let count = shape_product(&view.shape);
        let is_run = view.strides == contiguous_strides(&view.shape);
        let concat_part =
            concat_parts.iter().find(|p| is_run && p.start == view.offset && p.count == count)?;
        let flat = TensorType::new(ty.dtype, vec![count]);
        concat_part.elements.apply_view(&Op::Reshape, &flat, ty, &self.symbols)
    }

    fn intern_term(&mut self, term: ClassTerm) -> ElementClass {
        let next = ElementClass(self.terms.len() as u32);
        *self.terms.entry(term).or_insert(next)
    }

    fn normalize_dim(&self, program: &mut NumberedProgram<'_>, dim: &Dim) -> Dim {
        if dim.as_const().is_some() {
            return dim.clone();
        }
        if let Some(normalized) = program.dims.get(dim) {
            return normalized.clone();
        }
        let mapped = dim.substitute(&|s| Dim::from(program.map.get(&s).copied().unwrap_or(s)));
        let mapped = mapped.simplify_within(&self.symbols);
        let normalized = match mapped.bounds(&self.symbols) {
            (low, high) if low == high => Dim::from(low),
            _ => mapped,
        };
        program.dims.insert(dim.clone(), normalized.clone());
        normalized
    }

    /// The op in the form that both programs share.
    fn normalize_op(&mut self, program: &mut NumberedProgram<'_>, op: &Op) -> Op {
        let mut out = op.clone();
        for dim in op_dims_mut(&mut out) {
            *dim = self.normalize_dim(program, dim);
        }
        if let Some(group) = out.group_mut() {
            *group = self.intern_cells(program.graph, *group);
        }
        match &mut out {
            Op::Collective(c) => c.variant = None,
            // The check proves that declarations of one name are equal.
            Op::Custom(id) => {
                let name = program.graph.customs.get(*id).map_or("", |c| c.name.as_str());
                out = Op::Opaque { name: name.to_string(), attributes: "custom".into() };
            }
            _ => {}
        }
        out
    }

    fn intern_cells(&mut self, graph: &Graph, group: GroupId) -> GroupId {
        let cells = match graph.groups.get(group).map(|g| &g.members) {
            Some(GroupMembers::Cells(cells)) => cells.clone(),
            _ => vec![(0..graph.ranks.unwrap_or(0)).collect()],
        };
        let next = self.cells.len();
        GroupId::new(*self.cells.entry(cells).or_insert(next))
    }

    fn group_of_one(&self, graph: &Graph, op: &Op) -> bool {
        match op {
            Op::Collective(c) => {
                let moves = c.kind.facts().result_distribution == ResultDistribution::FromSender
                    || c.kind.moves_by_data();
                !moves && graph.groups.get(c.group).is_some() && graph.group_size(c.group) == Some(1)
            }
            Op::Shard { group, .. } => {
                graph.groups.get(*group).is_some() && graph.group_size(*group) == Some(1)
            }
            _ => false,
        }
    }

    /// The elements of the single result of a node, if an identity gives them.
    fn apply_identity(
        &mut self,
        program: &NumberedProgram<'_>,
        op: &Op,
        is_single_rank: bool,
        inputs: &[ValueId],
        operands: &[ElementView],
        result: ValueId,
    ) -> Option<ElementView> {
        let ty = &program.types[result];
        let operand = |k: usize| Some((&program.types[*inputs.get(k)?], operands.get(k)?));
        match op {
            Op::Full(scalar) => {
                let class = self.scalar_class(scalar_bits(ty.dtype, *scalar));
                Some(ElementView::repeated(class, &ty.shape))
            }
            Op::Copy => Some(operand(0)?.1.clone()),
            Op::Cast if operand(0)?.0.dtype == ty.dtype => Some(operand(0)?.1.clone()),
            Op::Collective(_) | Op::Shard { .. } if is_single_rank => Some(operand(0)?.1.clone()),
            Op::Concat { .. } if operands.len() == 1 => Some(operand(0)?.1.clone()),
            Op::Pad { low, .. } if low.iter().all(|l| l.as_const() == Some(0)) && operand(0)?.0 == ty => {
                Some(operand(0)?.1.clone())
            }
            Op::Reshape | Op::Permute { .. } | Op::Slice { .. } | Op::Expand => {
                let (x, elements) = operand(0)?;
                let view = elements.apply_view(op, x, ty, &self.symbols);
                match op {
                    Op::Reshape if view.is_none() => Some(self.contiguous_run(elements, &ty.shape)),
                    Op::Slice { .. } => view.map(|view| self.find_part(&view, ty).unwrap_or(view)),
                    _ => view,
                }
            }
            Op::BinaryScalar { op, scalar, scalar_left } => {
                let (x, elements) = operand(0)?;
                let class = self.scalar_class(scalar_operand(*op, x.dtype, *scalar));
                let scalar = ElementView::repeated(class, &[]);
                let pair = [elements.clone(), scalar];
                let [a, b] = pair;
                let operands = if *scalar_left { [b, a] } else { [a, b] };
                Some(self.pointwise(Op::Binary(*op), &operands, ty))
            }
            Op::Collective(c) if c.kind.facts().preserves_positions() => {
                let view = self.pointwise(op.clone(), operands, ty);
                self.reduce_parts(op, operands.first()?, &view, ty.dtype);
                Some(view)
            }
            op if op.is_element_wise() => Some(self.pointwise(op.clone(), operands, ty)),
            Op::MatMul { .. } => self.product(op, operands, ty),
            Op::Reduce { op: kind, axes, .. } => Some(self.reduction(*kind, axes, operand(0)?.1, ty)),
            Op::RmsNorm { axes, .. } | Op::LayerNorm { axes, .. } => self.rows(op, *axes, operands, ty),
            Op::Softmax { axis, log } if axis + 1 == ty.rank() => {
                self.rows(&Op::Softmax { axis: 0, log: *log }, 1, operands, ty)
            }
            _ => None,
        }
    }

    fn scalar_class(&mut self, (dtype, bits): (DType, u64)) -> ElementClass {
        self.intern_term(ClassTerm::Scalar(dtype, bits))
    }

    /// Consecutive elements under another shape.
    fn contiguous_run(&mut self, x: &ElementView, shape: &[Dim]) -> ElementView {
        let nest = AxisNest::new(&x.shape, std::slice::from_ref(&x.strides)).merged();
        let class = self.intern_term(ClassTerm::Run { class: x.class, offset: x.offset.clone(), nest });
        ElementView::full(class, shape)
    }

    /// An op that makes each element from the elements at the same position.
    fn pointwise(&mut self, op: Op, operands: &[ElementView], ty: &TensorType) -> ElementView {
        let strides: Vec<Vec<Dim>> = operands.iter().map(|x| x.broadcast_strides(ty.rank())).collect();
        self.nested(op, operands, ty, &ty.shape, &strides, AxisNest::default())
    }

    /// The result of an op over the axes `shape` of its result. Values that are constant along an axis are
    /// computed once.
    fn nested(
        &mut self,
        op: Op,
        operands: &[ElementView],
        ty: &TensorType,
        shape: &[Dim],
        strides: &[Vec<Dim>],
        inner: AxisNest,
    ) -> ElementView {
        let zero = Dim::from(0);
        let kept_axes: Vec<usize> = (0..shape.len())
            .filter(|&axis| !is_unit(&shape[axis]) && strides.iter().any(|s| s[axis] != zero))
            .collect();
        let extents = pick_axes(&kept_axes, shape);
        let strides: Vec<Vec<Dim>> = strides.iter().map(|strides| pick_axes(&kept_axes, strides)).collect();
        let outer = AxisNest::new(&extents, &strides).merged();
        // The inner axes are stored after the others.
        let inner_extents: &[Dim] = &ty.shape[shape.len().min(ty.rank())..];
        let stored: Vec<Dim> = extents.iter().chain(inner_extents).cloned().collect();
        let stored = contiguous_strides(&stored);
        let mut out = vec![zero; ty.rank()];
        kept_axes.iter().enumerate().for_each(|(k, &axis)| out[axis] = stored[k].clone());
        (shape.len()..ty.rank())
            .enumerate()
            .for_each(|(k, axis)| out[axis] = stored[kept_axes.len() + k].clone());
        let operands = operands.iter().map(|x| (x.class, x.offset.clone())).collect();
        let class = self.intern_term(ClassTerm::Nested { op, dtype: ty.dtype, operands, outer, inner });
        ElementView { class, offset: Dim::from(0), shape: ty.shape.clone(), strides: out }
    }

    fn product(&mut self, op: &Op, operands: &[ElementView], ty: &TensorType) -> Option<ElementView> {
        let [x, y] = operands else { return None };
        let rank = ty.rank();
        let xs = x.broadcast_strides(rank);
        let ys = y.broadcast_strides(rank);
        let [last, row] = [rank.checked_sub(1)?, rank.checked_sub(2)?];
        let terms = x.shape.last()?.clone();
        let inner = AxisNest::new(&[terms], &[vec![xs[last].clone()], vec![ys[row].clone()]]);
        let mut of_x = xs;
        let mut of_y = ys;
        of_x[last] = Dim::from(0);
        of_y[row] = Dim::from(0);
        Some(self.nested(op.clone(), operands, ty, &ty.shape, &[of_x, of_y], inner))
    }

    fn reduction(
        &mut self,
        kind: ReductionKind,
        axes: &[usize],
        x: &ElementView,
        ty: &TensorType,
    ) -> ElementView {
        let (within, outside): (Vec<usize>, Vec<usize>) =
            (0..x.shape.len()).partition(|axis| axes.contains(axis));
        let inner = AxisNest::new(&pick_axes(&within, &x.shape), &[pick_axes(&within, &x.strides)]).merged();
        let op = Op::Reduce { op: kind, axes: Vec::new(), keep: false };
        let keeps = ty.rank() == x.shape.len();
        let narrow = TensorType::new(ty.dtype, pick_axes(&outside, &x.shape));
        let strides = pick_axes(&outside, &x.strides);
        let narrow_view = self.nested(op, std::slice::from_ref(x), &narrow, &narrow.shape, &[strides], inner);
        if !keeps {
            return narrow_view;
        }
        let mut strides = vec![Dim::from(0); ty.rank()];
        outside.iter().zip(narrow_view.strides).for_each(|(&axis, stride)| strides[axis] = stride);
        ElementView { shape: ty.shape.clone(), strides, ..narrow_view }
    }

    fn rows(
        &mut self,
        op: &Op,
        axes: usize,
        operands: &[ElementView],
        ty: &TensorType,
    ) -> Option<ElementView> {
        let lead = ty.rank().checked_sub(axes)?;
        let operand_strides: Vec<Vec<Dim>> =
            operands.iter().map(|x| x.broadcast_strides(ty.rank())).collect();
        let inner: Vec<Vec<Dim>> = operand_strides.iter().map(|s| s[lead..].to_vec()).collect();
        let inner = AxisNest::new(&ty.shape[lead..], &inner);
        let outer: Vec<Vec<Dim>> = operand_strides.iter().map(|s| s[..lead].to_vec()).collect();
        Some(self.nested(op.clone(), operands, ty, &ty.shape[..lead], &outer, inner))
    }
}

fn pick_axes(axes: &[usize], dims: &[Dim]) -> Vec<Dim> {
    axes.iter().map(|&axis| dims[axis].clone()).collect()
}

fn shape_product(shape: &[Dim]) -> Dim {
    shape.iter().fold(Dim::from(1), |count, extent| count * extent.clone())
}

pub fn round_to_dtype(dtype: DType, x: f64) -> f64 {
    let mut bytes = [0; 8];
    write_f64(dtype, &mut bytes, 0, x);
    read_f64(dtype, &bytes, 0)
}

/// A scalar as a tensor of this dtype stores it: the dtype and its bits.
pub fn scalar_bits(dtype: DType, scalar: Scalar) -> (DType, u64) {
    match dtype {
        DType::Bool => (dtype, u64::from(scalar.as_f64() != 0.0)),
        d if d.is_float() => (dtype, round_to_dtype(d, scalar.as_f64()).to_bits()),
        _ => (dtype, scalar.wrap_to(dtype).as_i64() as u64),
    }
}

/// The dtype in which the interpreter stores the scalar of an op on a value of this dtype.
pub fn dtype_of_scalar(op: BinaryOp, x: DType) -> DType {
    if op.is_comparison() || !x.is_float() { x } else { x.compute_dtype() }
}

pub fn scalar_operand(op: BinaryOp, x: DType, scalar: Scalar) -> (DType, u64) {
    (x, scalar_bits(dtype_of_scalar(op, x), scalar).1)
}

fn live_nodes(graph: &Graph) -> EntityMap<NodeId, bool> {
    let mut live = EntityMap::filled(false, graph.nodes.len());
    let mut open: Vec<ValueId> = graph.outputs.iter().map(|o| o.value).collect();
    while let Some(value) = open.pop() {
        if let ValueDef::Node(n, _) = graph.values[value].def
            && !std::mem::replace(&mut live[n], true)
        {
            open.extend(&graph.nodes[n].inputs);
        }
    }
    live
}

/// Whether an op fuses or sums several roundings. All other ops give the same bits wherever they stand.
pub fn has_own_rounding(op: &Op, operand: DType) -> bool {
    let reduces = match op {
        Op::ScatterElements { combine, .. } => combine.is_some(),
        op => op.as_collective().is_some_and(|c| c.kind.reduce_op().is_some()),
    };
    operand.is_float() && (reduces || op.facts().rounding[0] == RoundingEffect::Accumulates)
}
