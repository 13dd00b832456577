//! Terms whose axes have canonical names, so that equal terms of both programs compare equal.
//!
//! Axes of a lambda are numbered. Neighbouring axes are one if every index reads them as one. A lambda is named by
//! the depth of the lambdas inside of it, which is the same wherever it stands. Operands of ops that commute are
//! sorted, and so are the terms of conjunctions, and of sums if these may be in any order.

use std::collections::{BTreeMap, HashMap, HashSet};

use symmc_ir::{BinaryOp, DType, Dim, Op};

use super::equations::EquationClass;
use super::evaluate::ProofTables;
use super::index::{AxisId, AxisTable, Index};
use super::simplify::commutes;
use super::term::{Lambda, LambdaPiece, OpShape, Term, TermId, TermTable};
use crate::elements::ElementClass;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CanonicalId(u32);

/// The name of an axis.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum AxisName {
    /// An axis of the compared values themselves.
    Root(AxisId),
    /// The axis `number` of a lambda with lambdas of this depth inside of it.
    Bound { depth: u32, number: usize },
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct CanonicalIndex {
    constant: Dim,
    terms: BTreeMap<AxisName, Dim>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum CanonicalTerm {
    Leaf {
        class: ElementClass,
        position: CanonicalIndex,
        ranks: Vec<CanonicalIndex>,
    },
    Scalar(u64),
    Position(CanonicalIndex),
    NotNegative {
        index: CanonicalIndex,
        atoms: Vec<(CanonicalId, i64)>,
    },
    /// All of these bools are true.
    All(Vec<CanonicalId>),
    /// The sum of these floats in any order.
    Sum(Vec<CanonicalId>),
    Apply {
        op: Op,
        args: Vec<CanonicalId>,
    },
    Bind {
        op: Op,
        result: usize,
        shape: OpShape,
        at: Vec<CanonicalIndex>,
        args: Vec<CanonicalLambda>,
    },
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct CanonicalLambda {
    extents: Vec<Dim>,
    /// For each piece its axes, its positions and its element.
    pieces: Vec<(Vec<Dim>, Vec<CanonicalIndex>, CanonicalId)>,
}

pub struct Canonicalizer<'t, 's> {
    terms: &'t TermTable,
    axes: &'t AxisTable<'s>,
    depths: HashMap<TermId, u32>,
    /// The axis after each axis of a lambda, and the axis before it.
    next: HashMap<AxisId, AxisId>,
    previous: HashMap<AxisId, AxisId>,
    /// Axes that some index does not read as one with the next axis.
    apart: HashSet<AxisId>,
    names: HashMap<AxisId, AxisName>,
    done: HashMap<TermId, CanonicalId>,
    ids: HashMap<(DType, CanonicalTerm), CanonicalId>,
    /// The conditions of each term that is a conjunction.
    conditions: HashMap<CanonicalId, Vec<CanonicalId>>,
    /// Whether floats may be added in any order.
    reassociates: bool,
    /// The dtype and the summands of each term that is a sum.
    sums: HashMap<CanonicalId, (DType, Vec<CanonicalId>)>,
    /// The operand of each cast, with its dtype.
    casts: HashMap<CanonicalId, (DType, CanonicalId)>,
}

impl<'t, 's> Canonicalizer<'t, 's> {
    pub fn new(tables: &'t ProofTables<'s>) -> Self {
        Canonicalizer {
            terms: &tables.terms,
            axes: &tables.axes,
            reassociates: tables.allowed == EquationClass::Reassociate,
            sums: HashMap::new(),
            casts: HashMap::new(),
            depths: HashMap::new(),
            next: HashMap::new(),
            previous: HashMap::new(),
            apart: HashSet::new(),
            names: HashMap::new(),
            done: HashMap::new(),
            ids: HashMap::new(),
            conditions: HashMap::new(),
        }
    }

    /// Whether two terms are equal.
    pub fn are_equal(&mut self, a: TermId, b: TermId) -> bool {
        let mut order = Vec::new();
        let mut visited = HashSet::new();
        self.collect_terms(a, &mut visited, &mut order);
        self.collect_terms(b, &mut visited, &mut order);
        for &term in &order {
            self.link_axes(term);
        }
        for &term in &order {
            self.separate_axes(term);
        }
        order.iter().for_each(|&term| self.name_axes(term));
        for &term in &order {
            let id = self.canonical_term(term);
            self.done.insert(term, id);
        }
        self.done.get(&a) == self.done.get(&b)
    }

    /// Collects the terms of which a term consists, each after its operands.
    fn collect_terms(&self, root: TermId, visited: &mut HashSet<TermId>, order: &mut Vec<TermId>) {
        let mut open = vec![(root, false)];
        while let Some((term, is_done)) = open.pop() {
            if is_done {
                order.push(term);
            } else if visited.insert(term) {
                open.push((term, true));
                open.extend(self.operands(term).into_iter().map(|operand| (operand, false)));
            }
        }
    }

    fn operands(&self, term: TermId) -> Vec<TermId> {
        match self.terms.term(term) {
            Term::Apply { args, .. } => args.clone(),
            Term::NotNegative { atoms, .. } => atoms.iter().map(|(atom, _)| *atom).collect(),
            Term::Bind { args, .. } => args.iter().flat_map(|l| l.pieces.iter().map(|p| p.body)).collect(),
            Term::Leaf { .. } | Term::Scalar(_) | Term::Position(_) => Vec::new(),
        }
    }

    fn lambda_depth(&self, lambda: &Lambda) -> u32 {
        let bodies = lambda.pieces.iter().filter_map(|piece| self.depths.get(&piece.body));
        bodies.max().map_or(1, |depth| depth + 1)
    }

    /// The axes of a piece that are not split, in order. Each list has axes that may be one.
    fn piece_axes(&self, piece: &LambdaPiece) -> Vec<Vec<AxisId>> {
        let mut out: Vec<Vec<AxisId>> = Vec::new();
        for param in &piece.params {
            for &axis in param.terms.keys() {
                let mut unsplit = Vec::new();
                self.axes.unsplit_axes(axis, &mut unsplit);
                if !out.iter().flatten().any(|known| unsplit.contains(known)) {
                    out.push(unsplit);
                }
            }
        }
        out
    }

    fn link_axes(&mut self, term: TermId) {
        let depths = self.operands(term).into_iter().filter_map(|operand| self.depths.get(&operand));
        let mut depth = depths.copied().max().unwrap_or(0);
        if let Term::Bind { args, .. } = self.terms.term(term) {
            depth = args.iter().map(|lambda| self.lambda_depth(lambda)).max().unwrap_or(depth);
            for piece in args.iter().flat_map(|lambda| &lambda.pieces) {
                for axes in self.piece_axes(piece) {
                    for pair in axes.windows(2) {
                        self.next.insert(pair[0], pair[1]);
                        self.previous.insert(pair[1], pair[0]);
                    }
                }
            }
        }
        self.depths.insert(term, depth);
    }

    fn separate_axes(&mut self, term: TermId) {
        let indices: Vec<Index> = match self.terms.term(term) {
            Term::Leaf { position, ranks, .. } => std::iter::once(position).chain(ranks).cloned().collect(),
            Term::Position(index) | Term::NotNegative { index, .. } => vec![index.clone()],
            Term::Bind { at, args, .. } => {
                // Params of pieces are read in canonical order.
                let params = args.iter().flat_map(|l| l.pieces.iter().flat_map(|piece| &piece.params));
                at.iter().chain(params).cloned().collect()
            }
            Term::Scalar(_) | Term::Apply { .. } => Vec::new(),
        };
        for index in indices {
            let index = self.axes.resolve(&index);
            for axis in index.terms.keys() {
                let pairs = [
                    self.next.get(axis).map(|next| (*axis, *next)),
                    self.previous.get(axis).map(|previous| (*previous, *axis)),
                ];
                for (outer, inner) in pairs.into_iter().flatten() {
                    let factor = |axis| index.terms.get(&axis).cloned().unwrap_or(Dim::from(0));
                    if factor(outer) != factor(inner) * self.axes.extent(inner).clone() {
                        self.apart.insert(outer);
                    }
                }
            }
        }
    }

    /// Names the axes of the lambdas of a term. Axes that are one with the next have no name.
    fn name_axes(&mut self, term: TermId) {
        let Term::Bind { args, .. } = self.terms.term(term) else { return };
        for lambda in args {
            let depth = self.lambda_depth(lambda);
            for piece in &lambda.pieces {
                let mut number = 0;
                for axes in self.piece_axes(piece) {
                    for axis in self.groups(&axes).into_iter().map(|(axis, _)| axis) {
                        self.names.insert(axis, AxisName::Bound { depth, number });
                        number += 1;
                    }
                }
            }
        }
    }

    /// The last axis of each run of axes that are one, with the extent of all.
    fn groups(&self, axes: &[AxisId]) -> Vec<(AxisId, Dim)> {
        let mut out = Vec::new();
        let mut extent = Dim::from(1);
        for (k, axis) in axes.iter().enumerate() {
            extent = extent * self.axes.extent(*axis).clone();
            if k + 1 == axes.len() || self.apart.contains(axis) {
                out.push((*axis, std::mem::replace(&mut extent, Dim::from(1))));
            }
        }
        out
    }

    fn canonical_index(&self, index: &Index) -> CanonicalIndex {
        let index = self.axes.resolve(index);
        let mut terms = BTreeMap::new();
        for (axis, factor) in index.terms {
            let is_merged = self.next.contains_key(&axis) && !self.apart.contains(&axis);
            if !is_merged {
                let name = self.names.get(&axis).copied().unwrap_or(AxisName::Root(axis));
                terms.insert(name, factor);
            }
        }
        CanonicalIndex { constant: index.constant, terms }
    }

    fn canonical_term(&mut self, term: TermId) -> CanonicalId {
        let dtype = self.terms.dtype(term);
        let canonical = match self.terms.term(term) {
            Term::Leaf { class, position, ranks } => CanonicalTerm::Leaf {
                class: *class,
                position: self.canonical_index(position),
                ranks: ranks.iter().map(|rank| self.canonical_index(rank)).collect(),
            },
            Term::Scalar(bits) => CanonicalTerm::Scalar(*bits),
            Term::Position(index) => CanonicalTerm::Position(self.canonical_index(index)),
            Term::NotNegative { index, atoms } => {
                let mut atoms: Vec<(CanonicalId, i64)> =
                    atoms.iter().map(|(atom, factor)| (self.done[atom], *factor)).collect();
                atoms.sort_unstable();
                CanonicalTerm::NotNegative { index: self.canonical_index(index), atoms }
            }
            Term::Apply { op: Op::Binary(BinaryOp::And), args } if dtype == DType::Bool => {
                return self.conjunction(&args.iter().map(|arg| self.done[arg]).collect::<Vec<_>>());
            }
            Term::Apply { op: Op::Binary(BinaryOp::Add), args } if self.sums_in_any_order(dtype) => {
                let args: Vec<CanonicalId> = args.iter().map(|arg| self.done[arg]).collect();
                return self.sum(dtype, &args);
            }
            Term::Apply { op: Op::Cast, args } if self.sums_in_any_order(dtype) => {
                let x = self.done[&args[0]];
                return self.cast_of_sum(dtype, self.terms.dtype(args[0]), x);
            }
            Term::Apply { op, args } => {
                let mut args: Vec<CanonicalId> = args.iter().map(|arg| self.done[arg]).collect();
                if commutes(op) {
                    args.sort_unstable();
                }
                CanonicalTerm::Apply { op: op.clone(), args }
            }
            Term::Bind { op, result, shape, at, args } => CanonicalTerm::Bind {
                op: op.clone(),
                result: *result,
                shape: shape.clone(),
                at: at.iter().map(|index| self.canonical_index(index)).collect(),
                args: args.iter().map(|lambda| self.canonical_lambda(lambda)).collect(),
            },
        };
        self.intern(dtype, canonical)
    }

    fn intern(&mut self, dtype: DType, canonical: CanonicalTerm) -> CanonicalId {
        let next = CanonicalId(self.ids.len() as u32);
        *self.ids.entry((dtype, canonical)).or_insert(next)
    }

    /// Whether floats of a dtype may be added in any order. Partial sums of f16 may be infinite although the sum is finite.
    fn sums_in_any_order(&self, dtype: DType) -> bool {
        self.reassociates && dtype.is_float() && dtype != DType::F16
    }

    fn sum(&mut self, dtype: DType, args: &[CanonicalId]) -> CanonicalId {
        let of_arg = |arg: &CanonicalId| match self.sums.get(arg) {
            Some((of_sum, summands)) if *of_sum == dtype => summands.clone(),
            _ => vec![*arg],
        };
        let mut summands: Vec<CanonicalId> = args.iter().flat_map(of_arg).collect();
        summands.sort_unstable();
        let id = self.intern(dtype, CanonicalTerm::Sum(summands.clone()));
        self.sums.insert(id, (dtype, summands));
        id
    }

    /// A cast. The sum of widened values in a wider type, rounded to their type, is a sum in that type.
    fn cast_of_sum(&mut self, dtype: DType, from: DType, x: CanonicalId) -> CanonicalId {
        if let Some((_, summands)) = self.sums.get(&x).filter(|_| from == dtype.compute_dtype()) {
            let widened = summands.iter().map(|summand| match self.casts.get(summand) {
                Some((of_operand, operand)) if *of_operand == dtype => Some(*operand),
                _ => None,
            });
            if let Some(operands) = widened.collect::<Option<Vec<CanonicalId>>>() {
                return self.sum(dtype, &operands);
            }
        }
        let id = self.intern(dtype, CanonicalTerm::Apply { op: Op::Cast, args: vec![x] });
        self.casts.insert(id, (from, x));
        id
    }

    /// The conjunction of bools, however it is nested.
    fn conjunction(&mut self, args: &[CanonicalId]) -> CanonicalId {
        let of_arg = |arg: &CanonicalId| self.conditions.get(arg).cloned().unwrap_or_else(|| vec![*arg]);
        let mut conditions: Vec<CanonicalId> = args.iter().flat_map(of_arg).collect();
        conditions.sort_unstable();
        conditions.dedup();
        if let &[condition] = &conditions[..] {
            return condition;
        }
        let id = self.intern(DType::Bool, CanonicalTerm::All(conditions.clone()));
        self.conditions.insert(id, conditions);
        id
    }

    fn canonical_lambda(&self, lambda: &Lambda) -> CanonicalLambda {
        let pieces = lambda.pieces.iter().map(|piece| {
            let axes = self.piece_axes(piece);
            let extents = axes.iter().flat_map(|axes| self.groups(axes)).map(|(_, extent)| extent).collect();
            let params = piece.params.iter().map(|param| self.canonical_index(param)).collect();
            (extents, params, self.done[&piece.body])
        });
        CanonicalLambda { extents: lambda.extents.clone(), pieces: pieces.collect() }
    }
}
