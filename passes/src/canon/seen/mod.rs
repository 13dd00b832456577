//! What masks say: integers and bools as functions of positions.
//!
//! A mask is arithmetic on positions. [`fact()`] follows it from the value back to where positions come from, and says what
//! an element is at a position: a sum of positions ([`linear`]), a conjunction of comparisons of such sums
//! ([`mod@condition`]), or one of two numbers by a condition. [`additive`] takes masks apart that are added to scores,
//! [`bounds`] says what of a condition are bounds of attention, [`operands`] makes values of what these read, [`rows`] says
//! which rows see a column at all. Everything follows from arithmetic on the facts; what is
//! not understood is a leaf, an element of a value of the program.
//!
//! Facts are computed where they are asked for, and kept for each value.

pub mod additive;
pub mod bounds;
pub mod condition;
pub mod fact;
pub mod linear;
mod matrix;
pub mod operands;
pub mod rows;

use std::rc::Rc;

use symmc_ir::known::{Known, scalar};
use symmc_ir::{BinaryOp, DType, Def, Dim, Op, Scalar, Type, UnaryOp, ValueId};

use self::condition::{Condition, Number, Witness, at_least};
use self::fact::Fact;
use self::fact::chosen;
use self::linear::{Leaf, Linear, View};
use crate::rewrite::Rewriter;

/// How far facts are followed, one inside the other.
const MAX_DEPTH: usize = 64;

pub fn fact(cx: &Rewriter, value: ValueId) -> Rc<Fact> {
    let facts = cx.facts();
    if let Some(known) = facts.of.borrow().get(&value) {
        return known.clone();
    }
    if facts.depth.get() >= MAX_DEPTH {
        return Rc::new(Fact::Open);
    }
    facts.depth.set(facts.depth.get() + 1);
    let found = Rc::new(found(cx, value).unwrap_or(Fact::Open));
    facts.depth.set(facts.depth.get() - 1);
    facts.of.borrow_mut().insert(value, found.clone());
    found
}

/// An integer value as sums of positions; at least as its own elements.
pub fn number(cx: &Rewriter, value: ValueId) -> Number {
    match &*fact(cx, value) {
        Fact::Number(n) => n.clone(),
        _ => Number::Linear(Linear::leaf(Leaf::whole(cx.graph(), value), cx.shape(value).len())),
    }
}

/// A bool value as a condition; at least as its own elements.
pub fn condition(cx: &Rewriter, value: ValueId) -> Condition {
    match &*fact(cx, value) {
        Fact::Condition(c) => c.clone(),
        _ => Condition::opaque(cx.graph(), value),
    }
}

fn witness(cx: &Rewriter, value: ValueId) -> Witness {
    Witness { leaf: Leaf::whole(cx.graph(), value), negated: false }
}

/// An integer value of this type, if it is held exactly.
fn held(cx: &Rewriter, number: Number, ty: &Type) -> Option<Fact> {
    let fits = match &number {
        Number::Linear(x) | Number::Floor(x, _) => x.fits(cx.symbols(), ty),
        Number::Floors(x, y, _) => x.fits(cx.symbols(), ty) && y.fits(cx.symbols(), ty),
        Number::Max(all) | Number::Min(all) => all.iter().all(|x| x.fits(cx.symbols(), ty)),
    };
    fits.then_some(Fact::Number(number))
}

fn found(cx: &Rewriter, value: ValueId) -> Option<Fact> {
    let ty = cx.ty(value);
    if let Some(known) = cx.known(value) {
        return from_known(cx, known, ty);
    }
    if let Def::Input(input) = cx.graph().values[value].def {
        return matrix::fact(cx.graph(), value, cx.graph().inputs[input].data.as_ref()?);
    }
    let (op, inputs) = cx.def(value)?;
    let first = *inputs.first()?;
    match op {
        Op::Reshape | Op::Permute { .. } | Op::Slice { .. } | Op::Expand | Op::Copy => {
            let view = View::of(op, cx.shape(first), &ty.shape)?;
            viewed(&fact(cx, first), &view)
        }
        Op::Cast => cast(cx, first, ty),
        Op::Unary(op) => unary(cx, *op, first, ty),
        Op::Binary(op) => {
            let y = *inputs.get(1)?;
            binary(cx, *op, [Operand::Value(first), Operand::Value(y)], value)
        }
        Op::BinaryScalar { op, scalar, scalar_left } => {
            let stored = scalar::operand(*op, *scalar, cx.ty(first).dtype)?;
            let (x, s) = (Operand::Value(first), Operand::Scalar(stored));
            binary(cx, *op, if *scalar_left { [s, x] } else { [x, s] }, value)
        }
        Op::Select => select(cx, inputs, ty),
        // A leaf of its own, which views lead to.
        Op::CumSum { .. } if !ty.dtype.is_float() => {
            Some(Fact::Number(Number::Linear(Linear::leaf(Leaf::whole(cx.graph(), value), ty.rank()))))
        }
        Op::Take { axis } | Op::Index { axis } => indexed(cx, *axis, first, &inputs[1..], value),
        _ => None,
    }
}

fn from_known(cx: &Rewriter, known: &Known, ty: &Type) -> Option<Fact> {
    let rank = ty.rank();
    match known {
        Known::Full(Scalar::Bool(b)) => Some(Fact::Condition(Condition::constant(*b))),
        Known::Full(Scalar::Int(i)) => held(cx, Number::Linear(Linear::constant(*i, rank)), ty),
        Known::Full(s) => Some(Fact::Select(Condition::constant(true), [*s, *s])),
        Known::Affine(a) => {
            let linear = Linear { steps: a.step.clone(), ..Linear::constant(a.start, rank) };
            held(cx, Number::Linear(linear), ty)
        }
    }
}

/// The same fact for the positions of a view. A number that is not understood stays a leaf of the view itself.
fn viewed(fact: &Fact, view: &View) -> Option<Fact> {
    Some(match fact {
        Fact::Number(n) => Fact::Number(n.viewed(view)?),
        Fact::Condition(c) => Fact::Condition(c.viewed(view)?),
        Fact::Select(c, of) => Fact::Select(c.viewed(view)?, *of),
        Fact::Open => return None,
    })
}

fn cast(cx: &Rewriter, x: ValueId, ty: &Type) -> Option<Fact> {
    let from = cx.ty(x).dtype;
    match (&*fact(cx, x), ty.dtype) {
        (Fact::Condition(c), DType::Bool) => Some(Fact::Condition(c.clone())),
        (_, DType::Bool) if from == DType::Bool => Some(Fact::Condition(condition(cx, x))),
        (_, to) if from == DType::Bool => {
            let ends = [true, false].map(|b| scalar::cast(Scalar::Bool(b), to));
            Some(Fact::Select(condition(cx, x), [ends[0]?, ends[1]?]))
        }
        (Fact::Select(c, of), to) => {
            let of = [scalar::cast(of[0], to)?, scalar::cast(of[1], to)?];
            Some(chosen(c.clone(), of, to))
        }
        (Fact::Number(Number::Linear(n)), to) if !n.terms.is_empty() => {
            // Elements that are not known fit what is wider.
            let wider = to == DType::I64 || to == from;
            (wider && !to.is_float()).then(|| Fact::Number(Number::Linear(n.clone())))
        }
        (Fact::Number(n), to) if !to.is_float() && to != DType::Bool => held(cx, n.clone(), ty),
        (Fact::Open, DType::I64) if matches!(from, DType::I32 | DType::U8) => {
            Some(Fact::Number(number(cx, x)))
        }
        _ => None,
    }
}

fn unary(cx: &Rewriter, op: UnaryOp, x: ValueId, ty: &Type) -> Option<Fact> {
    match (op, ty.dtype) {
        (UnaryOp::Not, DType::Bool) => Some(Fact::Condition(condition(cx, x).contrary())),
        (UnaryOp::Neg, d) if d.is_float() => match &*fact(cx, x) {
            Fact::Select(c, of) => {
                let zero = Scalar::Float(symmc_ir::Float(0.0));
                let of = of.map(|s| scalar::binary(BinaryOp::Sub, zero, s, d));
                Some(Fact::Select(c.clone(), [of[0]?, of[1]?]))
            }
            _ => None,
        },
        (UnaryOp::Neg, _) => {
            let zero = Number::Linear(Linear::constant(0, ty.rank()));
            held(cx, zero.plus(-1, &number(cx, x))?, ty)
        }
        (UnaryOp::Abs, d) if !d.is_float() => {
            let n = number(cx, x).linear()?.clone();
            held(cx, Number::Max(vec![n.times(-1)?, n]), ty)
        }
        _ => None,
    }
}

#[derive(Clone, Copy)]
enum Operand {
    Value(ValueId),
    Scalar(Scalar),
}

impl Operand {
    fn fact(self, cx: &Rewriter, shape: &[Dim]) -> Option<Fact> {
        match self {
            Operand::Value(v) => {
                let view = View::broadcast(cx.shape(v), shape)?;
                let of = match (&*fact(cx, v), cx.ty(v).dtype) {
                    (Fact::Open, DType::Bool) => Fact::Condition(condition(cx, v)),
                    (Fact::Open, d) if !d.is_float() => Fact::Number(number(cx, v)),
                    (known, _) => known.clone(),
                };
                viewed(&of, &view)
            }
            Operand::Scalar(Scalar::Bool(b)) => Some(Fact::Condition(Condition::constant(b))),
            Operand::Scalar(s) => Some(Fact::Select(Condition::constant(true), [s, s])),
        }
    }

    fn scalar(self, cx: &Rewriter) -> Option<Scalar> {
        match self {
            Operand::Value(v) => cx.known(v)?.full(),
            Operand::Scalar(s) => Some(s),
        }
    }

    /// As sums of positions of a value of this shape, if it is an integer.
    fn number(self, cx: &Rewriter, shape: &[Dim]) -> Option<Number> {
        if let Some(Scalar::Int(i)) = self.scalar(cx) {
            return Some(Number::Linear(Linear::constant(i, shape.len())));
        }
        let Operand::Value(v) = self else { return None };
        if cx.ty(v).dtype.is_float() || cx.ty(v).dtype == DType::Bool {
            return None;
        }
        number(cx, v).viewed(&View::broadcast(cx.shape(v), shape)?)
    }
}

fn binary(cx: &Rewriter, op: BinaryOp, xy: [Operand; 2], value: ValueId) -> Option<Fact> {
    let ty = cx.ty(value);
    if let Some(found) = by_choice(cx, op, xy, ty) {
        return Some(found);
    }
    if op.is_comparison()
        && let (Some(a), Some(b)) = (xy[0].number(cx, &ty.shape), xy[1].number(cx, &ty.shape))
    {
        return compared(op, &a, &b, witness(cx, value)).map(Fact::Condition);
    }
    if ty.dtype == DType::Bool {
        let (Fact::Condition(a), Fact::Condition(b)) =
            (xy[0].fact(cx, &ty.shape)?, xy[1].fact(cx, &ty.shape)?)
        else {
            return None;
        };
        return logical(op, a, b).map(Fact::Condition);
    }
    if ty.dtype.is_float() {
        return None;
    }
    let (a, b) = (xy[0].number(cx, &ty.shape)?, xy[1].number(cx, &ty.shape)?);
    if let BinaryOp::Add | BinaryOp::Sub = op {
        return held(cx, a.plus(if op == BinaryOp::Add { 1 } else { -1 }, &b)?, ty);
    }
    let by = xy[1].scalar(cx).map(Scalar::as_i64);
    let (x, y) = (a.linear()?, b.linear()?);
    let number = match op {
        BinaryOp::Mul => match (by, xy[0].scalar(cx).map(Scalar::as_i64)) {
            (Some(by), _) => Number::Linear(x.times(by)?),
            (None, Some(by)) => Number::Linear(y.times(by)?),
            _ => return None,
        },
        BinaryOp::Max => Number::Max(vec![x.clone(), y.clone()]),
        BinaryOp::Min => Number::Min(vec![x.clone(), y.clone()]),
        BinaryOp::FloorDiv => {
            let by = by.filter(|by| (1..=1 << 40).contains(by))?;
            x.over(by).map_or_else(|| Number::Floor(x.clone(), by), Number::Linear)
        }
        _ => return None,
    };
    held(cx, number, ty)
}

/// An op on one of two numbers and one number, on each of the two.
fn by_choice(cx: &Rewriter, op: BinaryOp, xy: [Operand; 2], ty: &Type) -> Option<Fact> {
    let (left, right) = (xy[0].scalar(cx), xy[1].scalar(cx));
    let (x, one, swapped) = match (left, right) {
        (None, Some(s)) => (xy[0], s, false),
        (Some(s), None) => (xy[1], s, true),
        _ => return None,
    };
    let Fact::Select(c, of) = x.fact(cx, &ty.shape)? else { return None };
    let Operand::Value(v) = x else { return None };
    let dtype = cx.ty(v).dtype;
    let each =
        |s| if swapped { scalar::binary(op, one, s, dtype) } else { scalar::binary(op, s, one, dtype) };
    Some(chosen(c, [each(of[0])?, each(of[1])?], ty.dtype))
}

fn compared(op: BinaryOp, a: &Number, b: &Number, witness: Witness) -> Option<Condition> {
    let contrary = Witness { negated: true, ..witness.clone() };
    match op {
        BinaryOp::Ge => at_least(a, b, &witness),
        BinaryOp::Le => at_least(b, a, &witness),
        BinaryOp::Lt => at_least(a, b, &contrary).map(Condition::contrary),
        BinaryOp::Gt => at_least(b, a, &contrary).map(Condition::contrary),
        BinaryOp::Eq => at_least(a, b, &witness)?.and(at_least(b, a, &witness)?),
        BinaryOp::Ne => Some(at_least(a, b, &contrary)?.and(at_least(b, a, &contrary)?)?.contrary()),
        _ => None,
    }
}

fn logical(op: BinaryOp, a: Condition, b: Condition) -> Option<Condition> {
    let (left, right) = (a.is_constant(), b.is_constant());
    match op {
        BinaryOp::And | BinaryOp::Min | BinaryOp::Mul => a.and(b),
        BinaryOp::Or | BinaryOp::Max => a.or(b),
        BinaryOp::Xor | BinaryOp::Ne | BinaryOp::Eq => {
            let same = op == BinaryOp::Eq;
            match (left, right) {
                (_, Some(y)) => Some(if y == same { a } else { a.contrary() }),
                (Some(x), _) => Some(if x == same { b } else { b.contrary() }),
                _ => None,
            }
        }
        _ => None,
    }
}

fn select(cx: &Rewriter, inputs: &[ValueId], ty: &Type) -> Option<Fact> {
    let &[c, x, y] = inputs else { return None };
    let all = |v| Operand::Value(v).fact(cx, &ty.shape);
    let Fact::Condition(c) = all(c)? else { return None };
    if ty.dtype == DType::Bool {
        let (Fact::Condition(x), Fact::Condition(y)) = (all(x)?, all(y)?) else { return None };
        let found = match (x.is_constant(), y.is_constant()) {
            (Some(true), _) => c.or(y),
            (Some(false), _) => c.contrary().and(y),
            (_, Some(true)) => c.contrary().or(x),
            (_, Some(false)) => c.and(x),
            _ => None,
        };
        return found.map(Fact::Condition);
    }
    let full = |v| cx.known(v)?.full();
    match (full(x), full(y)) {
        (Some(x), Some(y)) => Some(Fact::Select(c, [x, y])),
        // One of two numbers, where the other branch is one of them as well.
        (Some(x), None) => nested(c, x, all(y)?),
        (None, Some(y)) => nested(c.contrary(), y, all(x)?),
        _ => None,
    }
}

/// `x` where `c` holds, else one of two numbers of which `x` is one.
fn nested(c: Condition, x: Scalar, other: Fact) -> Option<Fact> {
    let Fact::Select(d, [p, q]) = other else { return None };
    if x == p {
        Some(Fact::Select(c.or(d)?, [p, q]))
    } else {
        (x == q).then_some(Fact::Select(c.contrary().and(d)?, [p, q]))
    }
}

/// `x` at indices along `axis` and those that follow it, in the place of which the axes of the indices stand. The indices lie
/// within their axes: all sizes show it, or every run checks it.
fn indexed(cx: &Rewriter, axis: usize, x: ValueId, indices: &[ValueId], value: ValueId) -> Option<Fact> {
    let ty = cx.ty(value);
    let rank = ty.rank();
    let of = cx.shape(x).len();
    let inner = (rank + indices.len()).checked_sub(of)?;
    let shape = ty.shape.get(axis..axis + inner)?;
    let mut places = Vec::with_capacity(of);
    for a in 0..of {
        let along = |to: usize| {
            let mut linear = Linear::constant(0, rank);
            if ty.shape[to].as_const() != Some(1) {
                linear.steps[to] = 1;
            }
            linear
        };
        places.push(match a.checked_sub(axis) {
            Some(k) if k < indices.len() => {
                let index = Operand::Value(indices[k]).number(cx, shape)?;
                if !cx.is_checked(value) && !is_inside(cx, index.linear()?, shape, &cx.shape(x)[a]) {
                    return None;
                }
                // The axes of the indices stand behind those before `axis`.
                let axes =
                    (0..inner).map(|i| (ty.shape[axis + i].as_const() != Some(1)).then_some((axis + i, 1)));
                index.linear()?.viewed(&View::moved(axes.collect(), rank))?
            }
            Some(_) => along(a + inner - indices.len()),
            None => along(a),
        });
    }
    match &*fact(cx, x) {
        Fact::Number(n) => Some(Fact::Number(n.map(|l| l.at(&places, rank))?)),
        _ => None,
    }
}

/// Whether an index of this shape lies within an axis for all sizes.
fn is_inside(cx: &Rewriter, index: &Linear, shape: &[Dim], extent: &Dim) -> bool {
    let within = |(low, high): (i64, i64)| {
        low >= 0 && (Dim::from(high) + Dim::from(1)).provably_le(extent, cx.symbols())
    };
    index.range(cx.symbols(), shape).is_some_and(within)
}
