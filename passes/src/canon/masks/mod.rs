//! Analysis of masks: integers and bools as functions of positions.
//!
//! A mask is arithmetic on positions. [`mask_fact()`] follows it from the value back to the source of the
//! positions. A fact gives an element as a function of its position: a sum of positions ([`linear`]), a
//! conjunction of comparisons of such sums ([`mod@condition`]), or one of two numbers selected by a
//! condition.
//!
//! - [`additive`] splits masks that are added to scores.
//! - [`bounds`] splits a condition into bounds of attention and a remaining mask.
//! - [`operands`] emits the values that bounds and masks read.
//! - [`row_visibility`] computes which rows see a column at all.
//!
//! Everything follows from arithmetic on the facts. Anything else is a leaf: an element of a value of the
//! program. Facts are computed on demand and cached for each value.

pub mod additive;
pub mod bounds;
pub mod condition;
mod constant_mask;
pub mod fact;
pub mod linear;
pub mod operands;
pub mod row_visibility;

use std::rc::Rc;

use symmc_ir::closed_form::{ClosedForm, scalar};
use symmc_ir::{BinaryOp, DType, Dim, Op, Scalar, TensorType, UnaryOp, ValueDef, ValueId};

use self::condition::{AtomWitness, IndexExpr, MaskCondition, at_least_condition};
use self::fact::{MaskFact, MaskFactCache, choice_fact};
use self::linear::{AxisView, ElementRef, LinearExpr};
use crate::rewrite::Rewriter;

/// The deepest nesting of facts that is followed.
const MAX_DEPTH: usize = 64;

pub fn mask_fact(cx: &Rewriter, value: ValueId) -> Rc<MaskFact> {
    let facts = cx.rule_cache::<MaskFactCache>();
    if let Some(fact) = facts.by_value.borrow().get(&value) {
        return fact.clone();
    }
    if facts.depth.get() >= MAX_DEPTH {
        return Rc::new(MaskFact::Unknown);
    }
    facts.depth.set(facts.depth.get() + 1);
    let fact = Rc::new(compute_fact(cx, value).unwrap_or(MaskFact::Unknown));
    facts.depth.set(facts.depth.get() - 1);
    facts.by_value.borrow_mut().insert(value, fact.clone());
    fact
}

/// An integer value as a sum of positions, or as its own elements.
pub fn index_expr(cx: &Rewriter, value: ValueId) -> IndexExpr {
    match &*mask_fact(cx, value) {
        MaskFact::Number(n) => n.clone(),
        _ => IndexExpr::Linear(LinearExpr::leaf(
            ElementRef::whole_value(cx.graph(), value),
            cx.shape(value).len(),
        )),
    }
}

/// A bool value as a condition, or as its own elements.
pub fn mask_condition(cx: &Rewriter, value: ValueId) -> MaskCondition {
    match &*mask_fact(cx, value) {
        MaskFact::Condition(c) => c.clone(),
        _ => MaskCondition::opaque(cx.graph(), value),
    }
}

fn value_witness(cx: &Rewriter, value: ValueId) -> AtomWitness {
    AtomWitness { leaf: ElementRef::whole_value(cx.graph(), value), negated: false }
}

/// The fact of an integer value of this type, if the type holds the number exactly.
fn exact_index_fact(cx: &Rewriter, number: IndexExpr, ty: &TensorType) -> Option<MaskFact> {
    let fits = match &number {
        IndexExpr::Linear(x) | IndexExpr::Floor(x, _) => x.fits_type(cx.symbols(), ty),
        IndexExpr::Floors(x, y, _) => x.fits_type(cx.symbols(), ty) && y.fits_type(cx.symbols(), ty),
        IndexExpr::Max(operands) | IndexExpr::Min(operands) => {
            operands.iter().all(|x| x.fits_type(cx.symbols(), ty))
        }
    };
    fits.then_some(MaskFact::Number(number))
}

fn compute_fact(cx: &Rewriter, value: ValueId) -> Option<MaskFact> {
    let ty = cx.ty(value);
    if let Some(elements) = cx.known_elements(value) {
        return from_known(cx, elements, ty);
    }
    if let ValueDef::Input(input) = cx.graph().values[value].def {
        return constant_mask::constant_mask_fact(cx.graph(), value, cx.graph().inputs[input].data.as_ref()?);
    }
    let (op, inputs) = cx.def(value)?;
    let first = *inputs.first()?;
    match op {
        Op::Reshape | Op::Permute { .. } | Op::Slice { .. } | Op::Expand | Op::Copy => {
            let view = AxisView::of_op(op, cx.shape(first), &ty.shape)?;
            fact_through_view(&mask_fact(cx, first), &view)
        }
        Op::Cast => cast(cx, first, ty),
        Op::Unary(op) => unary(cx, *op, first, ty),
        Op::Binary(op) => {
            let y = *inputs.get(1)?;
            binary(cx, *op, [FactOperand::Value(first), FactOperand::Value(y)], value)
        }
        Op::BinaryScalar { op, scalar, scalar_left } => {
            let stored = scalar::scalar_operand(*op, *scalar, cx.ty(first).dtype)?;
            let x = FactOperand::Value(first);
            let s = FactOperand::Scalar(stored);
            binary(cx, *op, if *scalar_left { [s, x] } else { [x, s] }, value)
        }
        Op::Select => select(cx, inputs, ty),
        // A cumulative sum is a leaf of its own, to which views lead.
        Op::CumSum { .. } if !ty.dtype.is_float() => Some(MaskFact::Number(IndexExpr::Linear(
            LinearExpr::leaf(ElementRef::whole_value(cx.graph(), value), ty.rank()),
        ))),
        Op::Take { axis } | Op::Index { axis } => indexed_fact(cx, *axis, first, &inputs[1..], value),
        _ => None,
    }
}

fn from_known(cx: &Rewriter, known: &ClosedForm, ty: &TensorType) -> Option<MaskFact> {
    let rank = ty.rank();
    match known {
        ClosedForm::Full(Scalar::Bool(b)) => Some(MaskFact::Condition(MaskCondition::constant(*b))),
        ClosedForm::Full(Scalar::Int(i)) => {
            exact_index_fact(cx, IndexExpr::Linear(LinearExpr::constant(*i, rank)), ty)
        }
        ClosedForm::Full(s) => Some(MaskFact::Select(MaskCondition::constant(true), [*s, *s])),
        ClosedForm::Affine(a) => {
            let linear = LinearExpr { steps: a.step.clone(), ..LinearExpr::constant(a.start, rank) };
            exact_index_fact(cx, IndexExpr::Linear(linear), ty)
        }
    }
}

/// The same fact at the positions of a view. An unknown number becomes a leaf of the view itself.
fn fact_through_view(fact: &MaskFact, view: &AxisView) -> Option<MaskFact> {
    Some(match fact {
        MaskFact::Number(n) => MaskFact::Number(n.through_view(view)?),
        MaskFact::Condition(c) => MaskFact::Condition(c.through_view(view)?),
        MaskFact::Select(c, numbers) => MaskFact::Select(c.through_view(view)?, *numbers),
        MaskFact::Unknown => return None,
    })
}

fn cast(cx: &Rewriter, x: ValueId, ty: &TensorType) -> Option<MaskFact> {
    let from = cx.ty(x).dtype;
    match (&*mask_fact(cx, x), ty.dtype) {
        (MaskFact::Condition(c), DType::Bool) => Some(MaskFact::Condition(c.clone())),
        (_, DType::Bool) if from == DType::Bool => Some(MaskFact::Condition(mask_condition(cx, x))),
        (_, to) if from == DType::Bool => {
            let ends = [true, false].map(|b| scalar::convert_scalar(Scalar::Bool(b), to));
            Some(MaskFact::Select(mask_condition(cx, x), [ends[0]?, ends[1]?]))
        }
        (MaskFact::Select(c, [x, y]), to) => {
            let numbers = [scalar::convert_scalar(*x, to)?, scalar::convert_scalar(*y, to)?];
            Some(choice_fact(c.clone(), numbers, to))
        }
        (MaskFact::Number(IndexExpr::Linear(n)), to) if !n.terms.is_empty() => {
            // Unknown elements fit any wider type.
            let wider = to == DType::I64 || to == from;
            (wider && !to.is_float()).then(|| MaskFact::Number(IndexExpr::Linear(n.clone())))
        }
        (MaskFact::Number(n), to) if !to.is_float() && to != DType::Bool => {
            exact_index_fact(cx, n.clone(), ty)
        }
        (MaskFact::Unknown, DType::I64) if matches!(from, DType::I32 | DType::U8) => {
            Some(MaskFact::Number(index_expr(cx, x)))
        }
        _ => None,
    }
}

fn unary(cx: &Rewriter, op: UnaryOp, x: ValueId, ty: &TensorType) -> Option<MaskFact> {
    match (op, ty.dtype) {
        (UnaryOp::Not, DType::Bool) => Some(MaskFact::Condition(mask_condition(cx, x).negate())),
        (UnaryOp::Neg, d) if d.is_float() => match &*mask_fact(cx, x) {
            MaskFact::Select(c, numbers) => {
                let zero = Scalar::Float(symmc_ir::FloatAttribute(0.0));
                let negated = numbers.map(|s| scalar::fold_binary(BinaryOp::Sub, zero, s, d));
                Some(MaskFact::Select(c.clone(), [negated[0]?, negated[1]?]))
            }
            _ => None,
        },
        (UnaryOp::Neg, _) => {
            let zero = IndexExpr::Linear(LinearExpr::constant(0, ty.rank()));
            exact_index_fact(cx, zero.add_signed(-1, &index_expr(cx, x))?, ty)
        }
        (UnaryOp::Abs, d) if !d.is_float() => {
            let n = index_expr(cx, x).linear()?.clone();
            exact_index_fact(cx, IndexExpr::Max(vec![n.times(-1)?, n]), ty)
        }
        _ => None,
    }
}

#[derive(Clone, Copy)]
enum FactOperand {
    Value(ValueId),
    Scalar(Scalar),
}

impl FactOperand {
    fn to_fact(self, cx: &Rewriter, shape: &[Dim]) -> Option<MaskFact> {
        match self {
            FactOperand::Value(v) => {
                let view = AxisView::broadcast(cx.shape(v), shape)?;
                let fact = match (&*mask_fact(cx, v), cx.ty(v).dtype) {
                    (MaskFact::Unknown, DType::Bool) => MaskFact::Condition(mask_condition(cx, v)),
                    (MaskFact::Unknown, d) if !d.is_float() => MaskFact::Number(index_expr(cx, v)),
                    (fact, _) => fact.clone(),
                };
                fact_through_view(&fact, &view)
            }
            FactOperand::Scalar(Scalar::Bool(b)) => Some(MaskFact::Condition(MaskCondition::constant(b))),
            FactOperand::Scalar(s) => Some(MaskFact::Select(MaskCondition::constant(true), [s, s])),
        }
    }

    fn scalar(self, cx: &Rewriter) -> Option<Scalar> {
        match self {
            FactOperand::Value(v) => cx.known_elements(v)?.as_full(),
            FactOperand::Scalar(s) => Some(s),
        }
    }

    /// The fact as a sum of positions of a value of this shape, if it is an integer.
    fn to_index_expr(self, cx: &Rewriter, shape: &[Dim]) -> Option<IndexExpr> {
        if let Some(Scalar::Int(i)) = self.scalar(cx) {
            return Some(IndexExpr::Linear(LinearExpr::constant(i, shape.len())));
        }
        let FactOperand::Value(v) = self else { return None };
        if cx.ty(v).dtype.is_float() || cx.ty(v).dtype == DType::Bool {
            return None;
        }
        index_expr(cx, v).through_view(&AxisView::broadcast(cx.shape(v), shape)?)
    }
}

fn binary(cx: &Rewriter, op: BinaryOp, xy: [FactOperand; 2], value: ValueId) -> Option<MaskFact> {
    let ty = cx.ty(value);
    if let Some(fact) = binary_of_select_fact(cx, op, xy, ty) {
        return Some(fact);
    }
    if op.is_comparison()
        && let (Some(a), Some(b)) = (xy[0].to_index_expr(cx, &ty.shape), xy[1].to_index_expr(cx, &ty.shape))
    {
        return comparison_condition(op, &a, &b, value_witness(cx, value)).map(MaskFact::Condition);
    }
    if ty.dtype == DType::Bool {
        let (MaskFact::Condition(a), MaskFact::Condition(b)) =
            (xy[0].to_fact(cx, &ty.shape)?, xy[1].to_fact(cx, &ty.shape)?)
        else {
            return None;
        };
        return logical(op, a, b).map(MaskFact::Condition);
    }
    if ty.dtype.is_float() {
        return None;
    }
    let a = xy[0].to_index_expr(cx, &ty.shape)?;
    let b = xy[1].to_index_expr(cx, &ty.shape)?;
    if let BinaryOp::Add | BinaryOp::Sub = op {
        return exact_index_fact(cx, a.add_signed(if op == BinaryOp::Add { 1 } else { -1 }, &b)?, ty);
    }
    let by = xy[1].scalar(cx).map(Scalar::as_i64);
    let x = a.linear()?;
    let y = b.linear()?;
    let number = match op {
        BinaryOp::Mul => match (by, xy[0].scalar(cx).map(Scalar::as_i64)) {
            (Some(by), _) => IndexExpr::Linear(x.times(by)?),
            (None, Some(by)) => IndexExpr::Linear(y.times(by)?),
            _ => return None,
        },
        BinaryOp::Max => IndexExpr::Max(vec![x.clone(), y.clone()]),
        BinaryOp::Min => IndexExpr::Min(vec![x.clone(), y.clone()]),
        BinaryOp::FloorDiv => {
            let by = by.filter(|by| (1..=1 << 40).contains(by))?;
            x.floor_div(by).map_or_else(|| IndexExpr::Floor(x.clone(), by), IndexExpr::Linear)
        }
        _ => return None,
    };
    exact_index_fact(cx, number, ty)
}

/// Applies an op to both alternatives of a choice between two numbers.
fn binary_of_select_fact(
    cx: &Rewriter,
    op: BinaryOp,
    xy: [FactOperand; 2],
    ty: &TensorType,
) -> Option<MaskFact> {
    let (x, constant, swapped) = match (xy[0].scalar(cx), xy[1].scalar(cx)) {
        (None, Some(s)) => (xy[0], s, false),
        (Some(s), None) => (xy[1], s, true),
        _ => return None,
    };
    let MaskFact::Select(c, numbers) = x.to_fact(cx, &ty.shape)? else { return None };
    let FactOperand::Value(v) = x else { return None };
    let dtype = cx.ty(v).dtype;
    let folded = numbers.map(|number| {
        let (left, right) = if swapped { (constant, number) } else { (number, constant) };
        scalar::fold_binary(op, left, right, dtype)
    });
    Some(choice_fact(c, [folded[0]?, folded[1]?], ty.dtype))
}

fn comparison_condition(
    op: BinaryOp,
    a: &IndexExpr,
    b: &IndexExpr,
    witness: AtomWitness,
) -> Option<MaskCondition> {
    let contrary = AtomWitness { negated: true, ..witness.clone() };
    match op {
        BinaryOp::Ge => at_least_condition(a, b, &witness),
        BinaryOp::Le => at_least_condition(b, a, &witness),
        BinaryOp::Lt => at_least_condition(a, b, &contrary).map(MaskCondition::negate),
        BinaryOp::Gt => at_least_condition(b, a, &contrary).map(MaskCondition::negate),
        BinaryOp::Eq => at_least_condition(a, b, &witness)?.and(at_least_condition(b, a, &witness)?),
        BinaryOp::Ne => {
            Some(at_least_condition(a, b, &contrary)?.and(at_least_condition(b, a, &contrary)?)?.negate())
        }
        _ => None,
    }
}

fn logical(op: BinaryOp, a: MaskCondition, b: MaskCondition) -> Option<MaskCondition> {
    match op {
        BinaryOp::And | BinaryOp::Min | BinaryOp::Mul => a.and(b),
        BinaryOp::Or | BinaryOp::Max => a.or(b),
        BinaryOp::Xor | BinaryOp::Ne | BinaryOp::Eq => {
            let is_equality = op == BinaryOp::Eq;
            match (a.is_constant(), b.is_constant()) {
                (_, Some(y)) => Some(if y == is_equality { a } else { a.negate() }),
                (Some(x), _) => Some(if x == is_equality { b } else { b.negate() }),
                _ => None,
            }
        }
        _ => None,
    }
}

fn select(cx: &Rewriter, inputs: &[ValueId], ty: &TensorType) -> Option<MaskFact> {
    let &[c, x, y] = inputs else { return None };
    let broadcast_fact = |v| FactOperand::Value(v).to_fact(cx, &ty.shape);
    let MaskFact::Condition(c) = broadcast_fact(c)? else { return None };
    if ty.dtype == DType::Bool {
        let MaskFact::Condition(x) = broadcast_fact(x)? else { return None };
        let MaskFact::Condition(y) = broadcast_fact(y)? else { return None };
        let condition = match (x.is_constant(), y.is_constant()) {
            (Some(true), _) => c.or(y),
            (Some(false), _) => c.negate().and(y),
            (_, Some(true)) => c.negate().or(x),
            (_, Some(false)) => c.and(x),
            _ => None,
        };
        return condition.map(MaskFact::Condition);
    }
    let x_number = cx.known_elements(x).and_then(ClosedForm::as_full);
    let y_number = cx.known_elements(y).and_then(ClosedForm::as_full);
    match (x_number, y_number) {
        (Some(x), Some(y)) => Some(MaskFact::Select(c, [x, y])),
        // A choice between two numbers, if the other branch is one of them as well.
        (Some(x), None) => nested_select_fact(c, x, broadcast_fact(y)?),
        (None, Some(y)) => nested_select_fact(c.negate(), y, broadcast_fact(x)?),
        _ => None,
    }
}

/// `x` if `c` holds, else a choice between two numbers, one of which is `x`.
fn nested_select_fact(c: MaskCondition, x: Scalar, other: MaskFact) -> Option<MaskFact> {
    let MaskFact::Select(d, [p, q]) = other else { return None };
    if x == p {
        Some(MaskFact::Select(c.or(d)?, [p, q]))
    } else {
        (x == q).then_some(MaskFact::Select(c.negate().and(d)?, [p, q]))
    }
}

/// `x` indexed along `axis` and the axes after it; the axes of the indices replace these. The indices lie
/// within their axes: either this holds for all sizes, or every run checks it.
fn indexed_fact(
    cx: &Rewriter,
    axis: usize,
    x: ValueId,
    indices: &[ValueId],
    value: ValueId,
) -> Option<MaskFact> {
    let ty = cx.ty(value);
    let rank = ty.rank();
    let operand_rank = cx.shape(x).len();
    let inner = (rank + indices.len()).checked_sub(operand_rank)?;
    let shape = ty.shape.get(axis..axis + inner)?;
    let mut places = Vec::with_capacity(operand_rank);
    for a in 0..operand_rank {
        places.push(match a.checked_sub(axis) {
            Some(k) if k < indices.len() => {
                let index = FactOperand::Value(indices[k]).to_index_expr(cx, shape)?;
                if !cx.has_checked_indices(value) && !is_inside(cx, index.linear()?, shape, &cx.shape(x)[a]) {
                    return None;
                }
                // The axes of the indices come after those before `axis`.
                let axes =
                    (0..inner).map(|i| (ty.shape[axis + i].as_const() != Some(1)).then_some((axis + i, 1)));
                index.linear()?.through_view(&AxisView::from_axes(axes.collect(), rank))?
            }
            Some(_) => position_along(a + inner - indices.len(), &ty.shape),
            None => position_along(a, &ty.shape),
        });
    }
    match &*mask_fact(cx, x) {
        MaskFact::Number(n) => Some(MaskFact::Number(n.map_linear(|l| l.compose(&places, rank))?)),
        _ => None,
    }
}

/// The position along an axis of a value of this shape.
fn position_along(axis: usize, shape: &[Dim]) -> LinearExpr {
    let mut linear = LinearExpr::constant(0, shape.len());
    if shape[axis].as_const() != Some(1) {
        linear.steps[axis] = 1;
    }
    linear
}

/// Whether an index of this shape lies within an axis for all sizes.
fn is_inside(cx: &Rewriter, index: &LinearExpr, shape: &[Dim], extent: &Dim) -> bool {
    let Some((low, high)) = index.range(cx.symbols(), shape) else { return false };
    low >= 0 && (Dim::from(high) + Dim::from(1)).provably_le(extent, cx.symbols())
}
