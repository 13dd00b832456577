//! Expressions that may replace values of a graph.
//!
//! A term is a value of the source graph or an op on other terms. Equal terms exist once, so expressions can
//! be compared by their ids. A term comes after its operands. Nothing is added to a graph until a term is
//! emitted.

use std::collections::{BTreeSet, HashMap, HashSet};

use symmc_ir::infer::infer_types;
use symmc_ir::{
    ArgOp, BinaryOp, Collective, CollectiveKind, CollectiveReduceOp, DType, Dim, Graph, GroupId, Op, Scalar,
    TensorType, UnaryOp, ValueId,
};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TermId {
    node: usize,
    result: usize,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum TermOrigin {
    Source(ValueId),
    Op(Op),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct ShardTerm {
    origin: TermOrigin,
    operands: Vec<TermId>,
    types: Vec<TensorType>,
}

pub struct ShardTerms<'g> {
    graph: &'g Graph,
    terms: Vec<ShardTerm>,
    interned: HashMap<ShardTerm, usize>,
}

impl<'g> ShardTerms<'g> {
    pub fn new(graph: &'g Graph) -> Self {
        ShardTerms { graph, terms: Vec::new(), interned: HashMap::new() }
    }

    fn intern(&mut self, term: ShardTerm) -> TermId {
        let next = self.terms.len();
        let node = *self.interned.entry(term.clone()).or_insert(next);
        if node == next {
            self.terms.push(term);
        }
        TermId { node, result: 0 }
    }

    pub fn source(&mut self, value: ValueId) -> TermId {
        let types = vec![self.graph.ty(value).clone()];
        self.intern(ShardTerm { origin: TermOrigin::Source(value), operands: Vec::new(), types })
    }

    pub fn ty(&self, term: TermId) -> &TensorType {
        &self.terms[term.node].types[term.result]
    }

    pub fn shape(&self, term: TermId) -> &[Dim] {
        &self.ty(term).shape
    }

    /// The op and the operands of a term with one result; `None` for a value of the source.
    pub fn def(&self, term: TermId) -> Option<(&Op, &[TermId])> {
        match &self.terms[term.node] {
            ShardTerm { origin: TermOrigin::Op(op), operands, types } if types.len() == 1 => {
                Some((op, operands))
            }
            _ => None,
        }
    }

    /// Adds an op whose result type follows from its operands; `None` if they do not fit.
    pub fn op(&mut self, op: Op, operands: &[TermId]) -> Option<TermId> {
        let ranks = op.group().and_then(|group| self.graph.group_size(group));
        let types: Vec<&TensorType> = operands.iter().map(|&t| self.ty(t)).collect();
        let types = infer_types(&op, &types, ranks).ok()??;
        Some(self.op_as(op, operands, types))
    }

    /// Adds an op with results of these types, and returns the first result.
    pub fn op_as(&mut self, op: Op, operands: &[TermId], types: Vec<TensorType>) -> TermId {
        self.intern(ShardTerm { origin: TermOrigin::Op(op), operands: operands.to_vec(), types })
    }

    /// Another result of a term, by position.
    pub fn result(&self, term: TermId, result: usize) -> TermId {
        TermId { result, ..term }
    }

    pub fn cast(&mut self, x: TermId, dtype: DType) -> TermId {
        let ty = TensorType::new(dtype, self.shape(x));
        if ty == *self.ty(x) { x } else { self.op_as(Op::Cast, &[x], vec![ty]) }
    }

    pub fn reshape(&mut self, x: TermId, shape: Vec<Dim>) -> TermId {
        let ty = TensorType::new(self.ty(x).dtype, shape);
        if ty == *self.ty(x) { x } else { self.op_as(Op::Reshape, &[x], vec![ty]) }
    }

    /// The term with new axes of extent 1 in front.
    pub fn with_leading(&mut self, x: TermId, axes: usize) -> TermId {
        let shape = std::iter::repeat_n(Dim::from(1), axes).chain(self.shape(x).iter().cloned());
        let shape = shape.collect();
        self.reshape(x, shape)
    }

    /// `len` positions along an axis.
    pub fn slice(&mut self, x: TermId, axis: usize, start: i64, len: i64) -> TermId {
        let mut ty = self.ty(x).clone();
        if start == 0 && ty.shape[axis].as_const() == Some(len) {
            return x;
        }
        ty.shape[axis] = Dim::from(len);
        self.op_as(Op::Slice { axis, start: Dim::from(start), step: 1 }, &[x], vec![ty])
    }

    pub fn permute(&mut self, x: TermId, perm: Vec<usize>) -> Option<TermId> {
        if perm.iter().copied().eq(0..perm.len()) { Some(x) } else { self.op(Op::Permute { perm }, &[x]) }
    }

    pub fn expand(&mut self, x: TermId, shape: Vec<Dim>) -> TermId {
        let ty = TensorType::new(self.ty(x).dtype, shape);
        self.op_as(Op::Expand, &[x], vec![ty])
    }

    pub fn move_axis(&mut self, x: TermId, from: usize, to: usize) -> Option<TermId> {
        let mut perm: Vec<usize> = (0..self.shape(x).len()).filter(|&a| a != from).collect();
        perm.insert(to, from);
        self.permute(x, perm)
    }

    pub fn concat(&mut self, axis: usize, parts: &[TermId]) -> Option<TermId> {
        if let [x] = parts { Some(*x) } else { self.op(Op::Concat { axis }, parts) }
    }

    pub fn unary(&mut self, op: UnaryOp, x: TermId) -> Option<TermId> {
        self.op(Op::Unary(op), &[x])
    }

    pub fn binary(&mut self, op: BinaryOp, x: TermId, y: TermId) -> Option<TermId> {
        self.op(Op::Binary(op), &[x, y])
    }

    /// `x op number` for integers.
    pub fn with_number(&mut self, op: BinaryOp, x: TermId, number: i64) -> Option<TermId> {
        let changes_nothing = match op {
            BinaryOp::Add | BinaryOp::Sub => number == 0,
            BinaryOp::Mul | BinaryOp::FloorDiv => number == 1,
            _ => false,
        };
        if changes_nothing {
            return Some(x);
        }
        self.op(Op::BinaryScalar { op, scalar: Scalar::Int(number), scalar_left: false }, &[x])
    }

    /// An arg-reduction that keeps its axis, with extent 1.
    pub fn arg_reduce(&mut self, op: ArgOp, axis: usize, x: TermId) -> Option<TermId> {
        self.op(Op::ArgReduce { op, axis, keep: true }, &[x])
    }

    pub fn gather_elements(&mut self, x: TermId, index: TermId, axis: usize) -> Option<TermId> {
        self.op(Op::GatherElements { axis }, &[x, index])
    }

    pub fn collective(&mut self, kind: CollectiveKind, group: GroupId, x: TermId) -> Option<TermId> {
        self.op(Op::Collective(Collective { kind, group, variant: None }), &[x])
    }

    pub fn all_gather(&mut self, group: GroupId, x: TermId) -> Option<TermId> {
        self.collective(CollectiveKind::AllGather, group, x)
    }

    pub fn all_reduce(&mut self, op: CollectiveReduceOp, group: GroupId, x: TermId) -> Option<TermId> {
        self.collective(CollectiveKind::AllReduce(op), group, x)
    }

    /// The terms that these need, including themselves, in order. Known terms and terms that only known ones
    /// need are left out.
    fn needed_terms(&self, roots: &[TermId], is_known: impl Fn(usize) -> bool) -> Vec<usize> {
        let mut needed = BTreeSet::new();
        let mut open: Vec<usize> = roots.iter().map(|t| t.node).collect();
        while let Some(node) = open.pop() {
            if !is_known(node) && needed.insert(node) {
                open.extend(self.terms[node].operands.iter().map(|t| t.node));
            }
        }
        needed.into_iter().collect()
    }

    /// The values of the source that these terms need, except those that visited terms need. Marks these
    /// terms as visited.
    pub fn unvisited_sources(&self, roots: &[TermId], visited: &mut VisitedTerms) -> Vec<ValueId> {
        let new = self.needed_terms(roots, |i| visited.0.contains(&i));
        visited.0.extend(&new);
        let mut sources = Vec::new();
        for i in new {
            if let TermOrigin::Source(v) = self.terms[i].origin {
                sources.push(v);
            }
        }
        sources
    }

    /// The result types of the collectives that these terms need.
    pub fn communicated(&self, roots: &[TermId]) -> Vec<&TensorType> {
        let collectives = self.needed_collectives(roots);
        collectives.into_iter().filter_map(|i| self.terms[i].types.first()).collect()
    }

    fn needed_collectives(&self, roots: &[TermId]) -> Vec<usize> {
        let mut needed = self.needed_terms(roots, |_| false);
        needed.retain(|&i| matches!(self.terms[i].origin, TermOrigin::Op(Op::Collective(_))));
        needed
    }
}

#[derive(Default)]
pub struct VisitedTerms(HashSet<usize>);

#[derive(Default)]
pub struct EmittedTerms {
    values: HashMap<usize, Vec<ValueId>>,
}

impl EmittedTerms {
    /// The value of a term, which is added to a graph with the terms that it needs; `None` if a value of the
    /// source is missing there.
    pub fn value(
        &mut self,
        terms: &ShardTerms<'_>,
        root: TermId,
        name: &str,
        to: &mut Graph,
        of_source: impl Fn(ValueId) -> Option<ValueId>,
    ) -> Option<ValueId> {
        for i in terms.needed_terms(&[root], |i| self.values.contains_key(&i)) {
            let term = &terms.terms[i];
            let added = match &term.origin {
                TermOrigin::Source(v) => vec![of_source(*v)?],
                TermOrigin::Op(op) => {
                    let mut inputs = Vec::with_capacity(term.operands.len());
                    for operand in &term.operands {
                        inputs.push(*self.values.get(&operand.node)?.get(operand.result)?);
                    }
                    let name = if i == root.node { name.to_string() } else { part_name(name, op) };
                    let results = term.types.iter().map(|ty| (name.clone(), ty.clone())).collect();
                    let node = to.add_node(op.clone(), inputs, results);
                    to.nodes[node].outputs.clone()
                }
            };
            self.values.insert(i, added);
        }
        self.values.get(&root.node)?.get(root.result).copied()
    }
}

impl EmittedTerms {
    /// The names of the collectives of a graph that these terms became.
    pub fn collective_names(&self, terms: &ShardTerms<'_>, roots: &[TermId], graph: &Graph) -> Vec<String> {
        let collectives = terms.needed_collectives(roots);
        let values = collectives.iter().filter_map(|i| self.values.get(i)?.first());
        values.map(|&v| graph.value_name(v).to_string()).collect()
    }
}

/// The name of an intermediate value.
fn part_name(name: &str, op: &Op) -> String {
    let part = match op {
        Op::Collective(c) => match c.kind {
            CollectiveKind::AllGather => "gathered",
            CollectiveKind::AllReduce(_) => "reduced",
            _ => "exchanged",
        },
        _ => "shard",
    };
    format!("{name}.{part}")
}
