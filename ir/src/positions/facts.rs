//! The form of every value of a graph, derived from the forms of its operands by one row for each op.
//!
//! There are two kinds of forms. An *exact* form ([`PositionFacts::exact`]) holds for all data, and refers to
//! no elements of other values. A form ([`PositionFacts::form`]) may also refer to elements of other values,
//! and has conditions with witnesses. It assumes that integers of 64 bits are positions, far from the ends of
//! their range, and serves to recognise masks. Both come from [`FormRule`]; only the forms of operands differ.
//!
//! Exact forms are computed when a value is added to the cache. Forms and ranges are computed on demand and
//! cached. A graph may grow under its cache, and values never change.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::condition::{AtomWitness, IndexExpr, MaskCondition, comparison_condition, logical_condition};
use super::form::{ElementForm, choice_form};
use super::integer_range::IntegerRange;
use super::linear::{AxisView, ElementRef, LinearExpr, add_dims};
use super::scalar;
use super::stored::{stored_mask_form, stored_series_form};
use crate::collective::{AllToAllSplits, Collective, CollectiveKind, CollectiveReduceOp};
use crate::dim::Dim;
use crate::entity::EntityMap;
use crate::graph::{Graph, ValueDef};
use crate::ids::ValueId;
use crate::op::{BinaryOp, Op, ReductionKind, UnaryOp};
use crate::types::{DType, Scalar, TensorType};

/// The deepest nesting of facts that is followed.
const MAX_DEPTH: usize = 64;
/// The greatest divisor of a floor of a quotient.
const MAX_DIVISOR: i64 = 1 << 40;

/// Facts that are computed on demand.
struct Memo<T> {
    by_value: RefCell<HashMap<ValueId, Option<T>>>,
    depth: Cell<usize>,
}

impl<T> Default for Memo<T> {
    fn default() -> Self {
        Memo { by_value: RefCell::default(), depth: Cell::new(0) }
    }
}

impl<T: Clone> Memo<T> {
    /// The fact about a value; `None` if there is none, or if it needs facts that are nested too deeply.
    fn get_or_compute(&self, value: ValueId, compute: impl FnOnce() -> Option<T>) -> Option<T> {
        if let Some(fact) = self.by_value.borrow().get(&value) {
            return fact.clone();
        }
        if self.depth.get() >= MAX_DEPTH {
            return None;
        }
        self.depth.set(self.depth.get() + 1);
        let fact = compute();
        self.depth.set(self.depth.get() - 1);
        self.by_value.borrow_mut().insert(value, fact.clone());
        fact
    }
}

/// The facts about the values of one graph.
#[derive(Default)]
pub struct PositionCache {
    exact: EntityMap<ValueId, Option<ElementForm>>,
    forms: Memo<Rc<ElementForm>>,
    ranges: Memo<IntegerRange>,
    /// Results of nodes whose indices every run checks to lie within their axes.
    checked_indices: HashSet<ValueId>,
}

impl PositionCache {
    /// The facts about all values of a graph.
    pub fn of_graph(graph: &Graph) -> PositionCache {
        let mut cache = PositionCache::default();
        for value in graph.values.values() {
            let form = match value.def {
                ValueDef::Input(input) => {
                    graph.inputs[input].data.as_ref().and_then(|data| stored_series_form(data))
                }
                ValueDef::Node(node, 0) if graph.nodes[node].outputs.len() == 1 => {
                    let node = &graph.nodes[node];
                    cache.facts(graph).exact_of_node(&node.op, &node.inputs, &value.ty)
                }
                ValueDef::Node(..) => None,
            };
            cache.add(form);
        }
        cache
    }

    /// Adds the next value of the graph with its exact form.
    pub fn add(&mut self, form: Option<ElementForm>) {
        self.exact.push(form);
    }

    pub fn mark_checked_indices(&mut self, value: ValueId) {
        self.checked_indices.insert(value);
    }

    pub fn facts<'a>(&'a self, graph: &'a Graph) -> PositionFacts<'a> {
        PositionFacts { graph, cache: self }
    }
}

/// A graph with the facts about its values.
#[derive(Clone, Copy)]
pub struct PositionFacts<'a> {
    pub graph: &'a Graph,
    cache: &'a PositionCache,
}

impl<'a> PositionFacts<'a> {
    pub fn exact(self, value: ValueId) -> Option<&'a ElementForm> {
        self.cache.exact[value].as_ref()
    }

    /// The scalar that all elements of a value equal, if one does.
    pub fn full(self, value: ValueId) -> Option<Scalar> {
        self.exact(value)?.as_full()
    }

    /// The exact form of the only result of a node that need not be in the graph.
    pub fn exact_of_node(self, op: &Op, inputs: &[ValueId], ty: &TensorType) -> Option<ElementForm> {
        FormRule { facts: self, op, inputs, ty, result: None }.derive()
    }

    pub fn form(self, value: ValueId) -> Option<Rc<ElementForm>> {
        self.cache.forms.get_or_compute(value, || {
            if let Some(exact) = self.exact(value) {
                return Some(Rc::new(exact.clone()));
            }
            let form = match self.graph.values[value].def {
                ValueDef::Input(input) => {
                    stored_mask_form(self.graph, value, self.graph.inputs[input].data.as_ref()?)
                }
                ValueDef::Node(..) => {
                    let (op, inputs) = self.graph.definition(value)?;
                    let ty = self.graph.ty(value);
                    FormRule { facts: self, op, inputs, ty, result: Some(value) }.derive()
                }
            };
            form.map(Rc::new)
        })
    }

    /// An integer value as a sum of positions, or as its own elements.
    pub fn index_expr(self, value: ValueId) -> IndexExpr {
        let rank = self.graph.ty(value).rank();
        match self.form(value).as_deref() {
            Some(ElementForm::Number(number)) => number.clone(),
            Some(ElementForm::Full(Scalar::Int(number))) => IndexExpr::constant(*number, rank),
            _ => IndexExpr::Linear(LinearExpr::leaf(ElementRef::whole_value(self.graph, value), rank)),
        }
    }

    /// A bool value as a condition, or as its own elements.
    pub fn mask_condition(self, value: ValueId) -> MaskCondition {
        match self.form(value).as_deref() {
            Some(ElementForm::Condition(condition)) => condition.clone(),
            Some(ElementForm::Full(Scalar::Bool(holds))) => MaskCondition::constant(*holds),
            _ => MaskCondition::opaque(self.graph, value),
        }
    }

    /// The range of an integer value, computed by `compute` if it is not cached.
    pub(super) fn cached_range(
        self,
        value: ValueId,
        compute: impl FnOnce() -> Option<IntegerRange>,
    ) -> Option<IntegerRange> {
        self.cache.ranges.get_or_compute(value, compute)
    }
}

/// An operand of a node.
struct FormOperand<'a> {
    /// `None` for the scalar of a scalar op.
    value: Option<ValueId>,
    form: Option<ElementForm>,
    ty: &'a TensorType,
}

impl FormOperand<'_> {
    fn full(&self) -> Option<Scalar> {
        self.form.as_ref()?.as_full()
    }
}

/// The derivation of the form of a node's only result from the forms of its operands.
struct FormRule<'a> {
    facts: PositionFacts<'a>,
    op: &'a Op,
    inputs: &'a [ValueId],
    ty: &'a TensorType,
    /// The result, if the form may refer to elements of values; `None` for exact forms.
    result: Option<ValueId>,
}

impl<'a> FormRule<'a> {
    fn derive(&self) -> Option<ElementForm> {
        if let Some(form) = self.evaluated() {
            return Some(form);
        }
        match self.op {
            Op::Full(s) => scalar::as_stored(self.ty.dtype, *s).map(ElementForm::Full),
            Op::Iota { start, step } => {
                let series = LinearExpr { steps: vec![*step], ..LinearExpr::constant(*start, 1) };
                self.fitting(IndexExpr::Linear(series))
            }
            Op::Copy | Op::Reshape | Op::Permute { .. } | Op::Slice { .. } | Op::Expand => self.view(),
            Op::Shard { axis, .. } => self.shard(*axis),
            Op::Collective(c) => self.collective(c),
            Op::Cast => self.cast(),
            Op::Unary(op) => self.unary(*op),
            Op::Binary(op) => self.binary(*op, &self.operand(0)?, &self.operand(1)?),
            Op::BinaryScalar { op, scalar, scalar_left } => {
                let x = self.operand(0)?;
                let stored = scalar::as_stored(x.ty.dtype, *scalar)?;
                let of_scalar = TensorType::new(x.ty.dtype, vec![]);
                let s = FormOperand { value: None, form: Some(ElementForm::Full(stored)), ty: &of_scalar };
                if *scalar_left { self.binary(*op, &s, &x) } else { self.binary(*op, &x, &s) }
            }
            Op::Select => self.select(),
            Op::Take { axis } | Op::Index { axis } => self.indexed(*axis),
            Op::GatherElements { .. } => self.full_of_indexed(),
            Op::Pad { value, .. } => {
                let x = self.exact(0)?.as_full()?;
                (scalar::as_stored(self.ty.dtype, *value) == Some(x)).then_some(ElementForm::Full(x))
            }
            Op::Concat { axis } => self.concat(*axis),
            Op::CumSum { axis } => self.cumsum(*axis),
            Op::Reduce { op, axes, .. } => self.reduce(*op, axes),
            // The elements of these are not functions of positions.
            Op::Bitcast
            | Op::MatMul { .. }
            | Op::GroupedMatMul
            | Op::Route(_)
            | Op::ArgReduce { .. }
            | Op::Softmax { .. }
            | Op::RmsNorm { .. }
            | Op::LayerNorm { .. }
            | Op::Attention { .. }
            | Op::AttentionGradient { .. }
            | Op::Permuted { .. }
            | Op::RotaryEmbedding { .. }
            | Op::ScatterElements { .. }
            | Op::IndexAdd { .. }
            | Op::IndexPut { .. }
            | Op::TopK { .. }
            | Op::Sort { .. }
            | Op::Opaque { .. }
            | Op::Custom(_) => None,
        }
    }

    fn exact(&self, operand: usize) -> Option<&'a ElementForm> {
        self.facts.exact(*self.inputs.get(operand)?)
    }

    fn operand(&self, operand: usize) -> Option<FormOperand<'a>> {
        let value = *self.inputs.get(operand)?;
        let form = match self.result {
            Some(_) => self.facts.form(value).map(|form| (*form).clone()),
            None => self.facts.exact(value).cloned(),
        };
        Some(FormOperand { value: Some(value), form, ty: self.facts.graph.ty(value) })
    }

    /// The elements of an operand themselves, if the form may refer to them.
    fn leaf(&self, x: &FormOperand<'_>) -> Option<ElementRef> {
        self.result?;
        Some(ElementRef::whole_value(self.facts.graph, x.value?))
    }

    /// An operand as a sum of positions of a value of this shape, if it is an integer.
    fn integer(&self, x: &FormOperand<'_>, shape: &[Dim]) -> Option<IndexExpr> {
        if let Some(Scalar::Int(number)) = x.full() {
            return Some(IndexExpr::constant(number, shape.len()));
        }
        x.ty.dtype.integer_bounds()?;
        let number = match &x.form {
            Some(ElementForm::Number(number)) => number.clone(),
            _ => IndexExpr::Linear(LinearExpr::leaf(self.leaf(x)?, x.ty.rank())),
        };
        number.through_view(&AxisView::broadcast(&x.ty.shape, shape)?)
    }

    /// The condition of a choice or of a bool operand, on positions of the result.
    fn condition(&self, x: &FormOperand<'_>) -> Option<MaskCondition> {
        if let Some(Scalar::Bool(holds)) = x.full() {
            return Some(MaskCondition::constant(holds));
        }
        let condition = match &x.form {
            Some(ElementForm::Condition(condition) | ElementForm::Select(condition, _)) => condition.clone(),
            _ if x.ty.dtype == DType::Bool => MaskCondition::of_leaf(self.leaf(x)?),
            _ => return None,
        };
        condition.through_view(&AxisView::broadcast(&x.ty.shape, &self.ty.shape)?)
    }

    /// The form of the result, if its dtype holds the number at all positions.
    fn fitting(&self, number: IndexExpr) -> Option<ElementForm> {
        let symbols = &self.facts.graph.symbols;
        let number = number.map_linear(|x| {
            let x = x.clone().without_unit_steps(&self.ty.shape);
            x.fits_type(symbols, self.ty).then_some(x)
        });
        number.map(ElementForm::number)
    }

    /// The form of an element-wise op on scalars, at most one of which is chosen from two by a condition.
    fn evaluated(&self) -> Option<ElementForm> {
        if !self.op.is_element_wise() {
            return None;
        }
        let mut alternatives = [Vec::new(), Vec::new()];
        let mut choice = None;
        for k in 0..self.inputs.len() {
            let x = self.operand(k)?;
            let numbers = match &x.form {
                Some(ElementForm::Full(s)) => [*s, *s],
                Some(ElementForm::Select(_, numbers)) => *numbers,
                _ if x.ty.dtype == DType::Bool => [Scalar::Bool(true), Scalar::Bool(false)],
                _ => return None,
            };
            for (scalars, number) in alternatives.iter_mut().zip(numbers) {
                scalars.push((number, x.ty.dtype));
            }
            if x.full().is_none() && choice.replace(x).is_some() {
                return None;
            }
        }
        let [first, second] = alternatives.map(|scalars| scalar::evaluate(self.op, &scalars, self.ty.dtype));
        match choice {
            Some(x) if first != second => {
                Some(choice_form(self.condition(&x)?, [first?, second?], self.ty.dtype))
            }
            _ => first.map(ElementForm::Full),
        }
    }

    fn view(&self) -> Option<ElementForm> {
        let x = self.operand(0)?;
        let form = x.form?;
        if let ElementForm::Full(_) = form {
            return Some(form);
        }
        let view = AxisView::of_op(self.op, &x.ty.shape, &self.ty.shape)?;
        match form.through_view(&view)? {
            ElementForm::Number(number) => self.fitting(number),
            form => Some(form),
        }
    }

    /// A piece of a value that is the same along the divided axis.
    fn shard(&self, axis: usize) -> Option<ElementForm> {
        match self.exact(0)? {
            ElementForm::Full(s) => Some(ElementForm::Full(*s)),
            form => {
                let x = form.to_linear(self.ty.rank()).filter(|x| x.is_constant_along(axis))?;
                self.fitting(IndexExpr::Linear(x))
            }
        }
    }

    /// The result of a collective whose operands are equal on all ranks.
    fn collective(&self, c: &Collective) -> Option<ElementForm> {
        let ranks = self.facts.graph.group_size(c.group)?;
        let x = self.exact(0)?;
        match &c.kind {
            CollectiveKind::Broadcast { .. }
            | CollectiveKind::AllReduce(CollectiveReduceOp::Max | CollectiveReduceOp::Min) => Some(x.clone()),
            // The result of a rank without a sender is zero.
            CollectiveKind::Permute { pairs } => {
                (0..ranks).all(|rank| pairs.iter().any(|(_, to)| *to == rank)).then(|| x.clone())
            }
            CollectiveKind::AllGather | CollectiveKind::AllToAll(AllToAllSplits::Even) => {
                x.as_full().map(ElementForm::Full)
            }
            CollectiveKind::AllReduce(op) | CollectiveKind::ReduceScatter(op) => match x.as_full() {
                Some(s) => scalar::reduce_copies(*op, s, self.ty.dtype, ranks).map(ElementForm::Full),
                None if c.kind == CollectiveKind::AllReduce(CollectiveReduceOp::Sum) => {
                    let sum = x.to_linear(self.ty.rank())?.times(i64::from(ranks))?;
                    self.fitting(IndexExpr::Linear(sum))
                }
                None => None,
            },
            CollectiveKind::AllToAll(_)
            | CollectiveKind::DispatchRows
            | CollectiveKind::CombineRows
            | CollectiveKind::ReduceRows => None,
        }
    }

    /// An integer in another dtype. Only a wider dtype is known to hold elements of other values.
    fn cast(&self) -> Option<ElementForm> {
        let x = self.operand(0)?;
        let is_wider = self.ty.dtype == DType::I64 || self.ty.dtype == x.ty.dtype;
        let number = self.integer(&x, &self.ty.shape)?;
        let number = number.map_linear(|x| (is_wider || x.terms.is_empty()).then(|| x.clone()))?;
        self.fitting(number)
    }

    fn unary(&self, op: UnaryOp) -> Option<ElementForm> {
        let x = self.integer(&self.operand(0)?, &self.ty.shape)?;
        match op {
            UnaryOp::Neg => self.fitting(IndexExpr::constant(0, self.ty.rank()).add_signed(-1, &x)?),
            UnaryOp::Abs => {
                let x = x.linear()?;
                self.fitting(IndexExpr::Max(vec![x.times(-1)?, x.clone()]))
            }
            _ => None,
        }
    }

    fn binary(&self, op: BinaryOp, x: &FormOperand<'_>, y: &FormOperand<'_>) -> Option<ElementForm> {
        let shape = &self.ty.shape;
        if x.ty.dtype == DType::Bool {
            let condition = logical_condition(op, self.condition(x)?, self.condition(y)?);
            return condition.map(ElementForm::condition);
        }
        let a = self.integer(x, shape)?;
        let b = self.integer(y, shape)?;
        if op.is_comparison() { self.comparison(op, &a, &b) } else { self.arithmetic(op, &a, &b) }
    }

    fn comparison(&self, op: BinaryOp, a: &IndexExpr, b: &IndexExpr) -> Option<ElementForm> {
        if let (IndexExpr::Linear(x), IndexExpr::Linear(y)) = (a, b)
            && x.terms.is_empty()
            && y.terms.is_empty()
            && let Some(difference) = x.add_scaled(-1, y)
            && let Some(range) = difference.range(&self.facts.graph.symbols, &self.ty.shape)
            && let Some(holds) = scalar::decide_comparison(op, range)
        {
            return Some(ElementForm::Full(Scalar::Bool(holds)));
        }
        let leaf = ElementRef::whole_value(self.facts.graph, self.result?);
        let condition = comparison_condition(op, a, b, AtomWitness { leaf, negated: false });
        condition.map(ElementForm::condition)
    }

    fn arithmetic(&self, op: BinaryOp, a: &IndexExpr, b: &IndexExpr) -> Option<ElementForm> {
        let both = || Some(vec![a.linear()?.clone(), b.linear()?.clone()]);
        let number = match op {
            BinaryOp::Add => a.add_signed(1, b)?,
            BinaryOp::Sub => a.add_signed(-1, b)?,
            BinaryOp::Mul => {
                let x = a.linear()?;
                let y = b.linear()?;
                IndexExpr::Linear(match y.as_number() {
                    Some(factor) => x.times(factor)?,
                    None => y.times(x.as_number()?)?,
                })
            }
            BinaryOp::Max => IndexExpr::Max(both()?),
            BinaryOp::Min => IndexExpr::Min(both()?),
            BinaryOp::FloorDiv => {
                let x = a.linear()?;
                let by = b.linear()?.as_number().filter(|by| (1..=MAX_DIVISOR).contains(by))?;
                x.floor_div(by).map_or_else(|| IndexExpr::Floor(x.clone(), by), IndexExpr::Linear)
            }
            _ => return None,
        };
        self.fitting(number)
    }

    fn select(&self) -> Option<ElementForm> {
        let c = self.condition(&self.operand(0)?)?;
        let x = self.operand(1)?;
        let y = self.operand(2)?;
        let broadcast = |x: &FormOperand<'_>| {
            x.form.as_ref()?.through_view(&AxisView::broadcast(&x.ty.shape, &self.ty.shape)?)
        };
        if let Some(holds) = c.is_constant() {
            return broadcast(if holds { &x } else { &y });
        }
        if self.ty.dtype == DType::Bool {
            let x = self.condition(&x)?;
            let y = self.condition(&y)?;
            let condition = match (x.is_constant(), y.is_constant()) {
                (Some(true), _) => c.or(y),
                (Some(false), _) => c.negate().and(y),
                (_, Some(true)) => c.negate().or(x),
                (_, Some(false)) => c.and(x),
                (None, None) => None,
            };
            return condition.map(ElementForm::condition);
        }
        match (x.full(), y.full()) {
            // A choice between two numbers, if the other branch is one of them as well.
            (Some(x), None) => nested_select_form(c, x, broadcast(&y)?),
            (None, Some(y)) => nested_select_form(c.negate(), y, broadcast(&x)?),
            _ => None,
        }
    }

    /// `x` indexed along `axis` and the axes after it; the axes of the indices replace these. The indices lie
    /// within their axes: either this holds for all sizes, or every run checks it.
    fn indexed(&self, axis: usize) -> Option<ElementForm> {
        if let Some(full) = self.full_of_indexed() {
            return Some(full);
        }
        let x = self.operand(0)?;
        let Some(ElementForm::Number(number)) = &x.form else { return None };
        let rank = self.ty.rank();
        let indices = self.inputs.len() - 1;
        let inner = (rank + indices).checked_sub(x.ty.rank())?;
        let shape = self.ty.shape.get(axis..axis + inner)?;
        let is_checked = self.result.is_some_and(|v| self.facts.cache.checked_indices.contains(&v));
        // The axes of the indices come after those before `axis`.
        let of_index = (axis..axis + inner).map(|a| LinearExpr::position(a, &self.ty.shape));
        let view = AxisView::new(of_index.collect(), rank);
        let mut places = Vec::with_capacity(x.ty.rank());
        for (a, extent) in x.ty.shape.iter().enumerate() {
            places.push(match a.checked_sub(axis) {
                Some(k) if k < indices => {
                    let index = self.integer(&self.operand(1 + k)?, shape)?.linear()?.clone();
                    let symbols = &self.facts.graph.symbols;
                    let is_inside = || Some(index.ends(shape)?.is_within_axis(extent, symbols));
                    (is_checked || is_inside()?).then_some(())?;
                    index.through_view(&view)?
                }
                Some(_) => LinearExpr::position(a + inner - indices, &self.ty.shape),
                None => LinearExpr::position(a, &self.ty.shape),
            });
        }
        number.through_view(&AxisView::new(places, rank)).map(ElementForm::number)
    }

    /// The scalar that an indexed value is full of, if every index lies within its axis for all values of the
    /// symbols.
    fn full_of_indexed(&self) -> Option<ElementForm> {
        let full = self.exact(0)?.as_full()?;
        let graph = self.facts.graph;
        let is_inside = self.op.index_operands(self.inputs.len()).into_iter().all(|(position, axis)| {
            let index = self.inputs[position];
            let ends = self.exact(position).and_then(|form| form.ends(&graph.ty(index).shape));
            let extent = &graph.ty(self.inputs[0]).shape[axis];
            ends.is_some_and(|range| range.is_within_axis(extent, &graph.symbols))
        });
        is_inside.then_some(ElementForm::Full(full))
    }

    /// The form of a concatenation, if each piece continues the previous one. A piece of extent 1 fits any step
    /// along the axis.
    fn concat(&self, axis: usize) -> Option<ElementForm> {
        let extent = |v: ValueId| &self.facts.graph.ty(v).shape[axis];
        let pieces = self.inputs.iter().map(|&v| Some((self.facts.exact(v)?, extent(v))));
        let pieces: Vec<(&ElementForm, &Dim)> = pieces.collect::<Option<_>>()?;
        if let Some((full @ ElementForm::Full(_), _)) = pieces.first()
            && pieces.iter().all(|(piece, _)| piece == full)
        {
            return Some((*full).clone());
        }
        let first_long = pieces.iter().find(|(_, extent)| extent.as_const() != Some(1));
        let first_long = first_long.and_then(|(form, _)| form.to_linear(self.ty.rank()));
        let along = first_long.map_or(0, |x| x.steps[axis]);
        let mut joined: Option<LinearExpr> = None;
        let mut offset = LinearExpr::constant(0, self.ty.rank());
        for (form, extent) in pieces {
            let mut piece = form.to_linear(self.ty.rank())?;
            if extent.as_const() == Some(1) {
                piece.steps[axis] = along;
            }
            let piece = piece.add_scaled(piece.steps[axis].checked_neg()?, &offset)?;
            if *joined.get_or_insert_with(|| piece.clone()) != piece {
                return None;
            }
            offset.constant = add_dims(&offset.constant, extent)?;
        }
        self.fitting(IndexExpr::Linear(joined?))
    }

    /// The cumulative sum of equal elements; any other cumulative sum of integers is a leaf.
    fn cumsum(&self, axis: usize) -> Option<ElementForm> {
        let full = self.exact(0).and_then(ElementForm::as_full);
        if let Some(Scalar::Float(x)) = full {
            return (x.0 == 0.0).then_some(ElementForm::Full(Scalar::Float(x)));
        }
        let series = full.and_then(|number| {
            let mut sums = LinearExpr::constant(number.as_i64(), self.ty.rank());
            *sums.steps.get_mut(axis)? = number.as_i64();
            self.fitting(IndexExpr::Linear(sums))
        });
        series.or_else(|| {
            let leaf = ElementRef::whole_value(self.facts.graph, self.result?);
            let is_integer = !self.ty.dtype.is_float();
            is_integer.then(|| ElementForm::linear(LinearExpr::leaf(leaf, self.ty.rank())))
        })
    }

    fn reduce(&self, op: ReductionKind, axes: &[usize]) -> Option<ElementForm> {
        let s = self.exact(0)?.as_full()?;
        let graph = self.facts.graph;
        let x = graph.ty(self.inputs[0]);
        if axes.iter().any(|&a| x.shape[a].bounds(&graph.symbols).0 < 1) {
            return None;
        }
        match op {
            ReductionKind::Max | ReductionKind::Min => Some(ElementForm::Full(s)),
            ReductionKind::Any | ReductionKind::All => {
                Some(ElementForm::Full(Scalar::Bool(s.as_f64() != 0.0)))
            }
            ReductionKind::Sum if !x.dtype.is_float() => {
                let count = axes.iter().try_fold(1_i64, |n, &a| n.checked_mul(x.shape[a].as_const()?))?;
                Some(ElementForm::Full(Scalar::Int(s.as_i64().checked_mul(count)?)))
            }
            ReductionKind::Sum | ReductionKind::Prod | ReductionKind::Mean => None,
        }
    }
}

/// `x` if `c` holds, else a choice between two numbers, one of which is `x`.
fn nested_select_form(c: MaskCondition, x: Scalar, other: ElementForm) -> Option<ElementForm> {
    let ElementForm::Select(d, [first, second]) = other else { return None };
    if x == first {
        Some(ElementForm::Select(c.or(d)?, [first, second]))
    } else {
        (x == second).then_some(ElementForm::Select(c.negate().and(d)?, [first, second]))
    }
}
