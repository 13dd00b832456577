//! Masks that are added to scores: what they hide, and what they add to the rest.
//!
//! A score is hidden by minus infinity, or by the lowest number of a dtype, which stands for it: with it no weight is left
//! beside a score of moderate size. That is so only for rows that see something: a row of lowest numbers has equal
//! weights, a row of minus infinity has none.

use symmc_ir::known::scalar;
use symmc_ir::{BinaryOp, DType, Def, InputKind, Op, Scalar, UnaryOp, ValueId};

use super::condition::Condition;
use super::linear::{Leaf, View};
use super::{Fact, condition, fact};
use crate::rewrite::Rewriter;

/// A mask taken apart: what is seen, by what number the rest is hidden, and what is added.
#[derive(Clone, Debug, Default)]
pub struct Additive {
    /// What is seen, and the number that hides the rest; all of these.
    pub seen: Vec<(Condition, f64)>,
    /// What is added; the sum of these.
    pub rest: Vec<Leaf>,
}

/// A mask has at most so many parts.
const MAX_PARTS: usize = 8;
/// At most so many values are looked at.
const MAX_VALUES: usize = 128;
/// Larger constants are not of moderate size.
const MODERATE: f64 = 1e30;
/// Weights are not larger.
const WEIGHT: f64 = 1e15;

/// Whether a number hides a score of this dtype.
pub fn hides(dtype: DType, x: f64) -> bool {
    x <= if dtype == DType::F16 { -65504.0 } else { f64::from(f32::from_bits(0xff7f_0000)) }
}

impl Additive {
    /// A value that is added, of which no more is known.
    fn open(cx: &Rewriter, value: ValueId) -> Additive {
        Additive { seen: Vec::new(), rest: vec![Leaf::whole(cx.graph(), value)] }
    }

    /// The same for the positions of a view.
    pub fn viewed(&self, view: &View) -> Option<Additive> {
        let seen = self.seen.iter().map(|(c, x)| Some((c.viewed(view)?, *x))).collect::<Option<_>>()?;
        let rest = self.rest.iter().map(|leaf| leaf.viewed(view)).collect::<Option<_>>()?;
        Some(Additive { seen, rest })
    }

    pub fn plus(mut self, other: Additive) -> Option<Additive> {
        self.seen.extend(other.seen);
        self.rest.extend(other.rest);
        (self.seen.len() + self.rest.len() <= MAX_PARTS).then_some(self)
    }

    /// Whether minus infinity hides all that is hidden.
    pub fn is_infinite(&self) -> bool {
        self.seen.iter().all(|(_, x)| *x == f64::NEG_INFINITY)
    }

    /// All that is seen, as one conjunction.
    pub fn condition(&self) -> Option<Condition> {
        self.seen.iter().try_fold(Condition::constant(true), |all, (c, _)| all.and(c.clone()))
    }
}

/// A float mask taken apart.
pub fn additive(cx: &Rewriter, mask: ValueId) -> Additive {
    parts(cx, mask, &mut MAX_VALUES.clone())
}

fn parts(cx: &Rewriter, value: ValueId, left: &mut usize) -> Additive {
    let open = || Additive::open(cx, value);
    if *left == 0 {
        return open();
    }
    *left -= 1;
    if let Some(Scalar::Float(x)) = cx.known(value).and_then(|k| k.full()) {
        return if x.0 == 0.0 { Additive::default() } else { open() };
    }
    let dtype = cx.ty(value).dtype;
    if let Fact::Select(c, of) = &*fact(cx, value) {
        let [yes, no] = of.map(Scalar::as_f64);
        return match (yes == 0.0, no == 0.0) {
            (true, _) if hides(dtype, no) => Additive { seen: vec![(c.clone(), no)], rest: Vec::new() },
            (_, true) if hides(dtype, yes) => {
                Additive { seen: vec![(c.clone().contrary(), yes)], rest: Vec::new() }
            }
            _ => open(),
        };
    }
    combined(cx, value, left).unwrap_or_else(open)
}

fn combined(cx: &Rewriter, value: ValueId, left: &mut usize) -> Option<Additive> {
    let ty = cx.ty(value);
    let (op, inputs) = cx.def(value)?;
    let first = *inputs.first()?;
    match op {
        Op::Reshape | Op::Permute { .. } | Op::Slice { .. } | Op::Expand | Op::Copy => {
            parts(cx, first, left).viewed(&View::of(op, cx.shape(first), &ty.shape)?)
        }
        Op::Cast if cx.ty(first).dtype.is_float() => {
            let mut x = parts(cx, first, left);
            for (_, number) in &mut x.seen {
                *number = scalar::cast(Scalar::Float(symmc_ir::Float(*number)), ty.dtype)?.as_f64();
            }
            x.rest.is_empty().then_some(x)
        }
        Op::Binary(BinaryOp::Add) => {
            let mut each = |v: ValueId| parts(cx, v, left).viewed(&View::broadcast(cx.shape(v), &ty.shape)?);
            each(first)?.plus(each(*inputs.get(1)?)?)
        }
        Op::Select => {
            let &[c, x, y] = inputs else { return None };
            let (seen, number, other) = chosen(cx, ty.dtype, c, x, y)?;
            let seen = seen.viewed(&View::broadcast(cx.shape(c), &ty.shape)?)?;
            let other = parts(cx, other, left).viewed(&View::broadcast(cx.shape(other), &ty.shape)?)?;
            Additive { seen: vec![(seen, number)], rest: Vec::new() }.plus(other)
        }
        _ => None,
    }
}

/// A choice of which one side hides: what is seen, the number that hides, and the other side.
pub fn chosen(
    cx: &Rewriter,
    dtype: DType,
    c: ValueId,
    x: ValueId,
    y: ValueId,
) -> Option<(Condition, f64, ValueId)> {
    let hidden = |v| cx.known(v)?.full().map(Scalar::as_f64).filter(|x| hides(dtype, *x));
    match (hidden(x), hidden(y)) {
        (None, Some(number)) => Some((condition(cx, c), number, x)),
        (Some(number), None) => Some((condition(cx, c).contrary(), number, y)),
        _ => None,
    }
}

/// Whether the elements of a value are of moderate size where those of weights are, so that none of them hides a score.
/// What a caller passes may be a mask.
pub fn is_moderate(cx: &Rewriter, value: ValueId) -> bool {
    let (low, high) = interval(cx, value, &mut MAX_VALUES.clone());
    -MODERATE <= low && high <= MODERATE
}

const ANY: (f64, f64) = (f64::NEG_INFINITY, f64::INFINITY);

/// Bounds of the elements of a value, never too narrow where weights are of moderate size.
fn interval(cx: &Rewriter, value: ValueId, left: &mut usize) -> (f64, f64) {
    if *left == 0 {
        return ANY;
    }
    *left -= 1;
    let ty = cx.ty(value);
    if let Some(x) = cx.known(value).and_then(|k| k.full()) {
        return (x.as_f64(), x.as_f64());
    }
    let integers = (i64::MIN as f64, i64::MAX as f64);
    if ty.dtype == DType::Bool {
        return (0.0, 1.0);
    }
    let found = match cx.def(value) {
        None => match cx.graph().values[value].def {
            Def::Input(input) if cx.graph().inputs[input].kind == InputKind::Parameter => (-WEIGHT, WEIGHT),
            _ => ANY,
        },
        Some((op, inputs)) => {
            match super::number(cx, value).linear().and_then(|x| x.range(cx.symbols(), &ty.shape)) {
                Some((low, high)) => (low as f64, high as f64),
                None => combine(cx, op, inputs, left),
            }
        }
    };
    // Integers wrap within their range.
    match ty.dtype.is_float() {
        false if found.0 < integers.0 || found.1 > integers.1 => integers,
        _ => found,
    }
}

fn combine(cx: &Rewriter, op: &Op, inputs: &[ValueId], left: &mut usize) -> (f64, f64) {
    let hull = |all: &[f64]| match all.iter().any(|x| x.is_nan()) {
        true => ANY,
        false => all.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), x| (l.min(*x), h.max(*x))),
    };
    let mut of = |i: usize| inputs.get(i).map_or(ANY, |&x| interval(cx, x, left));
    let two = |op: BinaryOp, (a, b): (f64, f64), (c, d): (f64, f64)| match op {
        BinaryOp::Add => (a + c, b + d),
        BinaryOp::Sub => (a - d, b - c),
        BinaryOp::Mul => hull(&[a * c, a * d, b * c, b * d]),
        BinaryOp::Div if c > 0.0 || d < 0.0 => hull(&[a / c, a / d, b / c, b / d]),
        BinaryOp::Pow if a == b && a > 0.0 => hull(&[a.powf(c), a.powf(d)]),
        BinaryOp::Max => (a.max(c), b.max(d)),
        BinaryOp::Min => (a.min(c), b.min(d)),
        _ => ANY,
    };
    match op {
        Op::Binary(op) => two(*op, of(0), of(1)),
        Op::BinaryScalar { op, scalar, scalar_left } => {
            let (x, s) = (of(0), (scalar.as_f64(), scalar.as_f64()));
            if *scalar_left { two(*op, s, x) } else { two(*op, x, s) }
        }
        Op::Unary(UnaryOp::Neg) => two(BinaryOp::Sub, (0.0, 0.0), of(0)),
        Op::Unary(UnaryOp::Abs) => {
            let (a, b) = of(0);
            (0.0, a.abs().max(b.abs()))
        }
        Op::Unary(UnaryOp::Reciprocal) => two(BinaryOp::Div, (1.0, 1.0), of(0)),
        Op::Unary(UnaryOp::Sin | UnaryOp::Cos | UnaryOp::Tanh | UnaryOp::Sigmoid) => (-1.0, 1.0),
        Op::Unary(UnaryOp::Exp) => {
            let (a, b) = of(0);
            hull(&[a.exp(), b.exp()])
        }
        Op::Select => {
            let ((a, b), (c, d)) = (of(1), of(2));
            (a.min(c), b.max(d))
        }
        Op::CumSum { axis } => {
            let extent = inputs.first().and_then(|&x| cx.shape(x).get(*axis));
            let most = extent.map_or(f64::INFINITY, |d| d.upper(cx.symbols()) as f64);
            let sum = two(BinaryOp::Mul, of(0), (1.0, most.max(1.0)));
            (sum.0.min(0.0), sum.1.max(0.0))
        }
        Op::Concat { .. } => {
            let all: Vec<f64> = (0..inputs.len()).flat_map(|i| <[f64; 2]>::from(of(i))).collect();
            hull(&all)
        }
        Op::Cast | Op::Copy | Op::Reshape | Op::Expand => of(0),
        Op::Permute { .. } | Op::Slice { .. } | Op::Take { .. } | Op::Index { .. } => of(0),
        _ => ANY,
    }
}
