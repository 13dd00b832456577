//! Elements of the values of a region, as terms.
//!
//! The evaluation starts at an element of a value on a rank, and asks for the elements of operands from which the value
//! computes it. Ops that only move elements pass the request on at another place. What other ops read is given by
//! [`Op::axes`].

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use symmc_ir::entity::Entity;
use symmc_ir::{DType, Dim, Graph, Node, NodeId, Op, Replication, Scalar, TensorType, ValueDef, ValueId};

use super::definitions::define;
use super::equations::EquationClass;
use super::index::{AxisCut, AxisTable, Index};
use super::ranks::RankMesh;
use super::term::{Lambda, LambdaPiece, Term, TermId, TermTable};
use crate::elements::{ElementClass, is_unit};
use crate::number::{NumberedProgram, scalar_bits, scalar_operand};
use crate::region::ComparedRegion;

/// Why an element has no term.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The element is one of several terms, by its position.
    Cut(AxisCut),
    /// The rules do not cover the op at this place, or there are too many terms.
    Unknown(&'static str),
}

pub type Evaluated<T> = Result<T, Stop>;

/// An element of a value: the coordinates of the rank, and the positions along the axes of the value.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Place {
    pub ranks: Vec<Index>,
    pub index: Vec<Index>,
}

impl Place {
    pub fn with_index(&self, index: Vec<Index>) -> Place {
        Place { ranks: self.ranks.clone(), index }
    }
}

/// The terms and axes of a proof.
pub struct ProofTables<'s> {
    pub terms: TermTable,
    pub axes: AxisTable<'s>,
    pub mesh: RankMesh,
    /// The number of requests that may still be made.
    pub remaining_requests: usize,
    /// The class of equations that may be used.
    pub allowed: EquationClass,
    /// Whether equations of the class `Rounding` apply somewhere.
    pub met_rounding: bool,
    /// Whether sums over few ranks are sums of the elements of each rank.
    pub sums_ranks: bool,
    /// Whether there is a sum over few ranks.
    pub met_sum_over_ranks: bool,
}

/// The most pieces of a lambda.
const MAX_PIECES: usize = 64;

/// A value of the program (`graph` is 0), or of the definition of an op.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ValueRef {
    graph: usize,
    value: ValueId,
}

impl ValueRef {
    pub fn of_program(value: ValueId) -> ValueRef {
        ValueRef { graph: 0, value }
    }
}

/// The definition of a node. Its inputs are the operands of the node.
struct DefinedNode {
    graph: Graph,
    operands: Vec<ValueRef>,
}

pub struct RegionEvaluator<'p, 'a> {
    pub program: &'p NumberedProgram<'a>,
    leaves: HashSet<ValueId>,
    replication: &'p HashMap<ElementClass, Replication>,
    memo: HashMap<(ValueRef, Place), TermId>,
    /// The definitions, numbered from 1 on, and the number of each node that has one.
    definitions: Vec<Rc<DefinedNode>>,
    defined: HashMap<(usize, NodeId), usize>,
}

impl<'p, 'a> RegionEvaluator<'p, 'a> {
    pub fn new(
        program: &'p NumberedProgram<'a>,
        region: &ComparedRegion,
        replication: &'p HashMap<ElementClass, Replication>,
    ) -> Self {
        let leaves = region.leaves.iter().copied().collect();
        RegionEvaluator {
            program,
            leaves,
            replication,
            memo: HashMap::new(),
            definitions: Vec::new(),
            defined: HashMap::new(),
        }
    }

    pub fn element(&mut self, tables: &mut ProofTables<'_>, x: ValueRef, place: &Place) -> Evaluated<TermId> {
        let key = (x, place.clone());
        if let Some(&term) = self.memo.get(&key) {
            return Ok(term);
        }
        tables.spend()?;
        let is_leaf = x.graph == 0 && self.leaves.contains(&x.value);
        let term = match self.graph(x.graph).values[x.value].def {
            ValueDef::Node(n, result) if !is_leaf => {
                let node = NodeRef { graph: x.graph, id: n, node: self.graph(x.graph).nodes[n].clone() };
                self.node(tables, &node, result, place)?
            }
            ValueDef::Input(input) if x.graph > 0 => {
                let operand = self.definitions[x.graph - 1].operands[input.index()];
                self.element(tables, operand, place)?
            }
            _ => self.leaf(tables, x.value, place)?,
        };
        self.memo.insert(key, term);
        Ok(term)
    }

    fn graph(&self, number: usize) -> &Graph {
        match number.checked_sub(1) {
            Some(definition) => &self.definitions[definition].graph,
            None => self.program.graph,
        }
    }

    pub fn ty(&self, x: ValueRef) -> &TensorType {
        if x.graph == 0 { &self.program.types[x.value] } else { self.graph(x.graph).ty(x.value) }
    }

    pub fn shape(&self, x: ValueRef) -> Vec<Dim> {
        self.ty(x).shape.clone()
    }

    fn leaf(&self, tables: &mut ProofTables<'_>, value: ValueId, place: &Place) -> Evaluated<TermId> {
        let elements = self.program.elements[value].as_ref().ok_or(Stop::Unknown("a leaf has no number"))?;
        let mut position = Index::constant(elements.offset.clone());
        for (index, stride) in place.index.iter().zip(&elements.strides) {
            position = position.plus(&index.times(stride));
        }
        if let Some(number) = self.constant_element(tables, value, elements.class, &position) {
            return tables.scalar(number);
        }
        let replicated = self.replication.get(&elements.class).map(|r| tables.mesh.replicated_axes(r));
        let ranks = place.ranks.iter().enumerate().map(|(axis, rank)| {
            let is_replicated = replicated.as_ref().is_some_and(|axes| axes[axis]);
            if is_replicated { Index::constant(Dim::from(0)) } else { rank.clone() }
        });
        let term = Term::Leaf { class: elements.class, position, ranks: ranks.collect() };
        tables.intern(self.program.types[value].dtype, term)
    }

    /// The element of a constant of the program at a known position.
    fn constant_element(
        &self,
        tables: &ProofTables<'_>,
        value: ValueId,
        class: ElementClass,
        position: &Index,
    ) -> Option<(DType, u64)> {
        let data = self.program.constants.get(&class)?;
        let dtype = self.program.types[value].dtype;
        let position = tables.axes.resolve(position).as_constant()?.as_const()?;
        let position =
            usize::try_from(position).ok().filter(|p| *p < data.numel() && data.dtype() == dtype)?;
        let is_float = dtype.is_float();
        let bits = if is_float { data.get_f64(position).to_bits() } else { data.get_i64(position) as u64 };
        Some((dtype, bits))
    }

    /// The result of a node by its definition, if it has one that may be used.
    fn definition(
        &mut self,
        tables: &mut ProofTables<'_>,
        node: &NodeRef,
        result: usize,
    ) -> Option<ValueRef> {
        let key = (node.graph, node.id);
        if let Some(&graph) = self.defined.get(&key) {
            return Some(ValueRef { graph, value: self.graph(graph).outputs[result].value });
        }
        let types = |values: Vec<ValueRef>| values.iter().map(|&v| self.ty(v).clone()).collect::<Vec<_>>();
        let definition = define(&node.node.op, &types(node.operands()), &types(node.results()))?;
        if !tables.allows(definition.class) {
            return None;
        }
        self.definitions.push(Rc::new(DefinedNode { graph: definition.graph, operands: node.operands() }));
        self.defined.insert(key, self.definitions.len());
        self.definition(tables, node, result)
    }

    fn node(
        &mut self,
        tables: &mut ProofTables<'_>,
        node: &NodeRef,
        result: usize,
        place: &Place,
    ) -> Evaluated<TermId> {
        if let Some(defined) = self.definition(tables, node, result) {
            return self.element(tables, defined, place);
        }
        let ty = self.ty(node.result(result)).clone();
        let index = &place.index;
        match &node.node.op {
            Op::Copy => self.element(tables, node.operand(0), place),
            Op::Reshape | Op::Permute { .. } | Op::Slice { .. } | Op::Expand | Op::Shard { .. } => {
                let moved = self.moved_place(tables, node, &ty.shape, place)?;
                self.element(tables, node.operand(0), &moved)
            }
            Op::Concat { axis } => self.concat(tables, node, *axis, place),
            Op::Pad { low, value } => self.pad(tables, node, low, *value, ty.dtype, place),
            Op::Full(scalar) => tables.scalar(scalar_bits(ty.dtype, *scalar)),
            Op::Iota { start, step } if !ty.dtype.is_float() => {
                let position = Index::constant(Dim::from(*start)).plus(&index[0].times(&Dim::from(*step)));
                let position = tables.intern(ty.dtype, Term::Position(position))?;
                let within = tables.position(&Op::Cast, &[position], ty.dtype)?;
                within.ok_or(Stop::Unknown("a series may leave the range of its dtype"))
            }
            Op::BinaryScalar { op, scalar, scalar_left } => {
                let x = self.element(tables, node.operand(0), place)?;
                let scalar = scalar_operand(*op, self.ty(node.operand(0)).dtype, *scalar);
                let scalar = tables.scalar(scalar)?;
                let args = if *scalar_left { vec![scalar, x] } else { vec![x, scalar] };
                tables.apply(Op::Binary(*op), args, ty.dtype)
            }
            op if op.is_element_wise() => {
                let mut args = Vec::new();
                for x in node.operands() {
                    let place = self.broadcast(x, place);
                    args.push(self.element(tables, x, &place)?);
                }
                tables.apply(op.clone(), args, ty.dtype)
            }
            Op::Collective(c) => self.collective(tables, node, &c.kind, place),
            Op::Attention { .. } => self.attention(tables, node, result, place),
            _ => self.bind(tables, node, result, place),
        }
    }

    /// The place of the element of an operand that is broadcast to the result.
    pub fn broadcast(&self, x: ValueRef, place: &Place) -> Place {
        let shape = self.shape(x);
        let skipped = place.index.len().saturating_sub(shape.len());
        let index = shape.iter().zip(&place.index[skipped..]);
        let index = index.map(
            |(extent, index)| {
                if is_unit(extent) { Index::constant(Dim::from(0)) } else { index.clone() }
            },
        );
        place.with_index(index.collect())
    }

    /// The place in the operand of an op that only changes positions.
    fn moved_place(
        &self,
        tables: &mut ProofTables<'_>,
        node: &NodeRef,
        result: &[Dim],
        place: &Place,
    ) -> Evaluated<Place> {
        let x = node.operand(0);
        let shape = self.shape(x);
        let mut index = place.index.clone();
        match &node.node.op {
            Op::Reshape => {
                return Ok(place.with_index(reshape_index(&mut tables.axes, result, &shape, &index)?));
            }
            Op::Permute { perm } => {
                for (k, &axis) in perm.iter().enumerate() {
                    index[axis] = place.index[k].clone();
                }
            }
            Op::Slice { axis, start, step } => {
                let start = self.map_dim(node, start);
                let moved = Index::constant(start).plus(&index[*axis].times(&Dim::from(*step)));
                if !tables.axes.is_within(&moved, &Dim::from(0), &shape[*axis]) {
                    return Err(Stop::Unknown("a slice may lie outside of its axis"));
                }
                index[*axis] = moved;
            }
            Op::Expand => return Ok(self.broadcast(x, place)),
            Op::Shard { axis, group } => {
                let cells = self.cells(*group)?;
                let number = self.number_in_cell(tables, &cells, place)?;
                index[*axis] = number.times(&result[*axis]).plus(&index[*axis]);
            }
            _ => return Err(Stop::Unknown("not a view")),
        }
        Ok(place.with_index(index))
    }

    /// A dim of a node over the symbols that both programs have. Definitions have these dims already.
    pub fn map_dim(&self, node: &NodeRef, dim: &Dim) -> Dim {
        if node.graph == 0 { self.program.map_dim(dim) } else { dim.clone() }
    }

    fn concat(
        &mut self,
        tables: &mut ProofTables<'_>,
        node: &NodeRef,
        axis: usize,
        place: &Place,
    ) -> Evaluated<TermId> {
        let mut start = Dim::from(0);
        for x in node.operands() {
            let end = start.clone() + self.shape(x)[axis].clone();
            if tables.axes.is_within(&place.index[axis], &start, &end) {
                let mut index = place.index.clone();
                index[axis] = index[axis].clone().plus(&Index::constant(Dim::from(0) - start));
                return self.element(tables, x, &place.with_index(index));
            }
            if let Some(cut) = tables.axes.cut_at(&place.index[axis], &end) {
                return Err(Stop::Cut(cut));
            }
            start = end;
        }
        Err(Stop::Unknown("the parts of a concatenation are not parts of an axis"))
    }

    fn pad(
        &mut self,
        tables: &mut ProofTables<'_>,
        node: &NodeRef,
        low: &[Dim],
        value: Scalar,
        dtype: DType,
        place: &Place,
    ) -> Evaluated<TermId> {
        let x = node.operand(0);
        let mut index = place.index.clone();
        for (axis, low) in low.iter().enumerate() {
            let low = self.map_dim(node, low);
            let moved = index[axis].clone().plus(&Index::constant(Dim::from(0) - low.clone()));
            let extent = &self.shape(x)[axis];
            let is_before = tables.axes.bounds(&moved).is_some_and(|[_, largest]| {
                (largest + Dim::from(1)).provably_le(&Dim::from(0), tables.axes.symbols)
            });
            let is_after = tables
                .axes
                .bounds(&moved)
                .is_some_and(|[least, _]| extent.provably_le(&least, tables.axes.symbols));
            if is_before || is_after {
                return tables.scalar(scalar_bits(dtype, value));
            }
            if !tables.axes.is_within(&moved, &Dim::from(0), extent) {
                let cut = [Dim::from(0), extent.clone()];
                let cut = cut.iter().find_map(|boundary| tables.axes.cut_at(&moved, boundary));
                return Err(cut.map_or(Stop::Unknown("padding is not a part of an axis"), Stop::Cut));
            }
            index[axis] = moved;
        }
        self.element(tables, x, &place.with_index(index))
    }

    /// The elements of an operand along new axes, in pieces if these have different terms.
    pub fn lambda(
        &mut self,
        tables: &mut ProofTables<'_>,
        extents: &[Dim],
        mut body: impl FnMut(&mut Self, &mut ProofTables<'_>, &[Index]) -> Evaluated<TermId>,
    ) -> Evaluated<Lambda> {
        let too_many = Stop::Unknown("too many axes");
        let params = extents.iter().map(|extent| tables.axes.add(extent).ok_or(too_many.clone()));
        let mut open = vec![params.collect::<Evaluated<Vec<Index>>>()?];
        let mut pieces = Vec::new();
        while let Some(params) = open.pop() {
            match body(self, tables, &params) {
                Ok(body) => pieces.push(LambdaPiece { params, body }),
                Err(Stop::Cut(cut)) if is_of(&tables.axes, &params, &cut) => {
                    if open.len() + pieces.len() >= MAX_PIECES {
                        return Err(Stop::Unknown("too many pieces"));
                    }
                    let [low, high] = tables.axes.apply_cut(&params, &cut).ok_or(too_many.clone())?;
                    open.extend([high, low]);
                }
                Err(stop) => return Err(stop),
            }
        }
        Ok(Lambda { extents: extents.to_vec(), pieces })
    }
}

/// A node of the program, or of a definition.
pub struct NodeRef {
    graph: usize,
    id: NodeId,
    pub node: Node,
}

impl NodeRef {
    pub fn operand(&self, k: usize) -> ValueRef {
        ValueRef { graph: self.graph, value: self.node.inputs[k] }
    }

    pub fn operands(&self) -> Vec<ValueRef> {
        (0..self.node.inputs.len()).map(|k| self.operand(k)).collect()
    }

    pub fn result(&self, k: usize) -> ValueRef {
        ValueRef { graph: self.graph, value: self.node.outputs[k] }
    }

    pub fn results(&self) -> Vec<ValueRef> {
        (0..self.node.outputs.len()).map(|k| self.result(k)).collect()
    }
}

/// The positions along other axes of the same elements in row-major order.
pub fn reshape_index(
    axes: &mut AxisTable<'_>,
    from: &[Dim],
    to: &[Dim],
    index: &[Index],
) -> Evaluated<Vec<Index>> {
    if from == to {
        return Ok(index.to_vec());
    }
    let mut flat = Index::constant(Dim::from(0));
    for (extent, index) in from.iter().zip(index) {
        flat = flat.times(extent).plus(index);
    }
    let mut out = vec![Index::constant(Dim::from(0)); to.len()];
    for axis in (0..to.len()).rev() {
        if to[..axis].iter().all(is_unit) {
            out[axis] = flat;
            break;
        }
        let divided = axes.divide(&flat, &to[axis]);
        let [outer, inner] = divided.ok_or(Stop::Unknown("a reshape does not divide its axes"))?;
        out[axis] = inner;
        flat = outer;
    }
    Ok(out)
}

/// Whether an axis that is cut is one of these positions.
pub fn is_of(axes: &AxisTable<'_>, params: &[Index], cut: &AxisCut) -> bool {
    params.iter().any(|param| axes.resolve(param).terms.contains_key(&cut.axis))
}
