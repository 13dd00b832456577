//! Masks that are added to scores: the columns that they hide, and the values that they add to the others.
//!
//! Minus infinity hides a score, and so does the lowest number of a dtype: next to a score of moderate size
//! it leaves no weight. The two differ for rows that see nothing: a row of lowest numbers has equal weights,
//! a row of minus infinity has none.

use symmc_ir::positions::{AxisView, ElementForm, ElementRef, MaskCondition, as_stored};
use symmc_ir::{BinaryOp, DType, Dim, FloatAttribute, InputKind, Op, Scalar, UnaryOp, ValueDef, ValueId};

use crate::rewrite::Rewriter;

/// A mask as conditions under which scores stay visible, and values that are added.
#[derive(Clone, Debug, Default)]
pub struct AdditiveMask {
    /// Conditions under which scores are visible, each with the number that hides the others. All of them
    /// apply.
    pub visible: Vec<(MaskCondition, f64)>,
    /// Values that are added.
    pub rest: Vec<ElementRef>,
}

/// The most parts of a mask.
const MAX_PARTS: usize = 8;
/// The most values that one analysis visits.
const MAX_VALUES: usize = 128;
/// Constants up to this are of moderate size.
const MAX_MODERATE_SCORE: f64 = 1e30;
/// Weights are assumed to be no larger than this.
const MAX_WEIGHT: f64 = 1e15;

/// Whether a number hides a score of this dtype.
pub fn hides_score(dtype: DType, x: f64) -> bool {
    x <= if dtype == DType::F16 { -65504.0 } else { f64::from(f32::from_bits(0xff7f_0000)) }
}

impl AdditiveMask {
    /// An added value about which nothing is known.
    fn open(cx: &Rewriter, value: ValueId) -> AdditiveMask {
        AdditiveMask { visible: Vec::new(), rest: vec![ElementRef::whole_value(cx.graph(), value)] }
    }

    /// The mask at the positions of a view.
    pub fn through_view(&self, view: &AxisView) -> Option<AdditiveMask> {
        let visible =
            self.visible.iter().map(|(c, x)| Some((c.through_view(view)?, *x))).collect::<Option<_>>()?;
        let leaves = self.rest.iter().map(|leaf| leaf.through_view(view)).collect::<Option<_>>()?;
        Some(AdditiveMask { visible, rest: leaves })
    }

    pub fn combine_masks(mut self, other: AdditiveMask) -> Option<AdditiveMask> {
        self.visible.extend(other.visible);
        self.rest.extend(other.rest);
        (self.visible.len() + self.rest.len() <= MAX_PARTS).then_some(self)
    }

    /// Whether minus infinity hides all hidden scores.
    pub fn is_infinite(&self) -> bool {
        self.visible.iter().all(|(_, x)| *x == f64::NEG_INFINITY)
    }

    /// The conjunction of all conditions.
    pub fn condition(&self) -> Option<MaskCondition> {
        self.visible.iter().try_fold(MaskCondition::constant(true), |acc, (c, _)| acc.and(c.clone()))
    }
}

/// Splits a float mask into conditions and added values.
pub fn parse_additive_mask(cx: &Rewriter, mask: ValueId) -> AdditiveMask {
    split_mask(cx, mask, &mut MAX_VALUES.clone())
}

fn split_mask(cx: &Rewriter, value: ValueId, left: &mut usize) -> AdditiveMask {
    if *left == 0 {
        return AdditiveMask::open(cx, value);
    }
    *left -= 1;
    if let Some(Scalar::Float(x)) = cx.known_full(value) {
        return if x.0 == 0.0 { AdditiveMask::default() } else { AdditiveMask::open(cx, value) };
    }
    let dtype = cx.ty(value).dtype;
    if let Some(ElementForm::Select(c, numbers)) = cx.facts().form(value).as_deref() {
        let [yes, no] = numbers.map(Scalar::as_f64);
        return match (yes == 0.0, no == 0.0) {
            (true, _) if hides_score(dtype, no) => {
                AdditiveMask { visible: vec![(c.clone(), no)], rest: Vec::new() }
            }
            (_, true) if hides_score(dtype, yes) => {
                AdditiveMask { visible: vec![(c.clone().negate(), yes)], rest: Vec::new() }
            }
            _ => AdditiveMask::open(cx, value),
        };
    }
    split_mask_op(cx, value, left).unwrap_or_else(|| AdditiveMask::open(cx, value))
}

/// Splits a mask that broadcasts to a shape.
fn split_broadcast_mask(
    cx: &Rewriter,
    mask: ValueId,
    shape: &[Dim],
    left: &mut usize,
) -> Option<AdditiveMask> {
    split_mask(cx, mask, left).through_view(&AxisView::broadcast(cx.shape(mask), shape)?)
}

fn split_mask_op(cx: &Rewriter, value: ValueId, budget: &mut usize) -> Option<AdditiveMask> {
    let ty = cx.ty(value);
    let (op, inputs) = cx.def(value)?;
    let first = *inputs.first()?;
    match op {
        Op::Reshape | Op::Permute { .. } | Op::Slice { .. } | Op::Expand | Op::Copy => {
            split_mask(cx, first, budget).through_view(&AxisView::of_op(op, cx.shape(first), &ty.shape)?)
        }
        Op::Cast if cx.ty(first).dtype.is_float() => {
            let mut x = split_mask(cx, first, budget);
            for (_, number) in &mut x.visible {
                *number = as_stored(ty.dtype, Scalar::Float(FloatAttribute(*number)))?.as_f64();
            }
            x.rest.is_empty().then_some(x)
        }
        Op::Binary(BinaryOp::Add) => {
            let x = split_broadcast_mask(cx, first, &ty.shape, budget)?;
            let y = split_broadcast_mask(cx, *inputs.get(1)?, &ty.shape, budget)?;
            x.combine_masks(y)
        }
        Op::Select => {
            let &[c, x, y] = inputs else { return None };
            let (condition, number, other_value) = match_hiding_select(cx, ty.dtype, c, x, y)?;
            let condition = condition.through_view(&AxisView::broadcast(cx.shape(c), &ty.shape)?)?;
            let other_mask = split_broadcast_mask(cx, other_value, &ty.shape, budget)?;
            AdditiveMask { visible: vec![(condition, number)], rest: Vec::new() }.combine_masks(other_mask)
        }
        _ => None,
    }
}

/// Matches a select that hides scores on one side: the select's condition, the number that hides, and the
/// other side.
pub fn match_hiding_select(
    cx: &Rewriter,
    dtype: DType,
    c: ValueId,
    x: ValueId,
    y: ValueId,
) -> Option<(MaskCondition, f64, ValueId)> {
    match (hiding_number(cx, dtype, x), hiding_number(cx, dtype, y)) {
        (None, Some(number)) => Some((cx.facts().mask_condition(c), number, x)),
        (Some(number), None) => Some((cx.facts().mask_condition(c).negate(), number, y)),
        _ => None,
    }
}

/// The number that fills a value, if it hides scores.
fn hiding_number(cx: &Rewriter, dtype: DType, value: ValueId) -> Option<f64> {
    let number = cx.known_full(value)?.as_f64();
    hides_score(dtype, number).then_some(number)
}

/// Whether the elements of a value are of moderate size if those of weights are, so that none of them hides
/// a score. A value that the caller passes may be a mask.
pub fn is_moderate(cx: &Rewriter, value: ValueId) -> bool {
    let (low, high) = value_interval(cx, value, &mut MAX_VALUES.clone());
    -MAX_MODERATE_SCORE <= low && high <= MAX_MODERATE_SCORE
}

const UNBOUNDED_INTERVAL: (f64, f64) = (f64::NEG_INFINITY, f64::INFINITY);

/// An interval that contains the elements of a value, provided that weights are of moderate size.
fn value_interval(cx: &Rewriter, value: ValueId, budget: &mut usize) -> (f64, f64) {
    if *budget == 0 {
        return UNBOUNDED_INTERVAL;
    }
    *budget -= 1;
    let ty = cx.ty(value);
    if let Some(x) = cx.known_full(value) {
        return (x.as_f64(), x.as_f64());
    }
    let integers = (i64::MIN as f64, i64::MAX as f64);
    if ty.dtype == DType::Bool {
        return (0.0, 1.0);
    }
    let interval = match cx.def(value) {
        None => match cx.graph().values[value].def {
            ValueDef::Input(input) if cx.graph().inputs[input].kind == InputKind::Parameter => {
                (-MAX_WEIGHT, MAX_WEIGHT)
            }
            _ => UNBOUNDED_INTERVAL,
        },
        Some((op, inputs)) => {
            match cx.facts().index_expr(value).linear().and_then(|x| x.range(cx.symbols(), &ty.shape)) {
                Some((low, high)) => (low as f64, high as f64),
                None => op_interval(cx, op, inputs, budget),
            }
        }
    };
    // Integers wrap within their range.
    if !ty.dtype.is_float() && (interval.0 < integers.0 || interval.1 > integers.1) {
        integers
    } else {
        interval
    }
}

fn op_interval(cx: &Rewriter, op: &Op, inputs: &[ValueId], budget: &mut usize) -> (f64, f64) {
    let mut operand = |i: usize| inputs.get(i).map_or(UNBOUNDED_INTERVAL, |&x| value_interval(cx, x, budget));
    match op {
        Op::Binary(op) => binary_interval(*op, operand(0), operand(1)),
        Op::BinaryScalar { op, scalar, scalar_left } => {
            let x = operand(0);
            let s = (scalar.as_f64(), scalar.as_f64());
            if *scalar_left { binary_interval(*op, s, x) } else { binary_interval(*op, x, s) }
        }
        Op::Unary(UnaryOp::Neg) => binary_interval(BinaryOp::Sub, (0.0, 0.0), operand(0)),
        Op::Unary(UnaryOp::Abs) => {
            let (a, b) = operand(0);
            (0.0, a.abs().max(b.abs()))
        }
        Op::Unary(UnaryOp::Reciprocal) => binary_interval(BinaryOp::Div, (1.0, 1.0), operand(0)),
        Op::Unary(UnaryOp::Sin | UnaryOp::Cos | UnaryOp::Tanh | UnaryOp::Sigmoid) => (-1.0, 1.0),
        Op::Unary(UnaryOp::Exp) => {
            let (a, b) = operand(0);
            hull(&[a.exp(), b.exp()])
        }
        Op::Select => {
            let (a, b) = operand(1);
            let (c, d) = operand(2);
            (a.min(c), b.max(d))
        }
        Op::CumSum { axis } => {
            let extent = inputs.first().and_then(|&x| cx.shape(x).get(*axis));
            let max_extent = extent.map_or(f64::INFINITY, |d| d.upper_bound(cx.symbols()) as f64);
            let sum = binary_interval(BinaryOp::Mul, operand(0), (1.0, max_extent.max(1.0)));
            (sum.0.min(0.0), sum.1.max(0.0))
        }
        Op::Concat { .. } => {
            let bounds: Vec<f64> = (0..inputs.len()).flat_map(|i| <[f64; 2]>::from(operand(i))).collect();
            hull(&bounds)
        }
        Op::Cast | Op::Copy | Op::Reshape | Op::Expand => operand(0),
        Op::Permute { .. } | Op::Slice { .. } | Op::Take { .. } | Op::Index { .. } => operand(0),
        _ => UNBOUNDED_INTERVAL,
    }
}

fn binary_interval(op: BinaryOp, (a, b): (f64, f64), (c, d): (f64, f64)) -> (f64, f64) {
    match op {
        BinaryOp::Add => (a + c, b + d),
        BinaryOp::Sub => (a - d, b - c),
        BinaryOp::Mul => hull(&[a * c, a * d, b * c, b * d]),
        BinaryOp::Div if c > 0.0 || d < 0.0 => hull(&[a / c, a / d, b / c, b / d]),
        BinaryOp::Pow if a == b && a > 0.0 => hull(&[a.powf(c), a.powf(d)]),
        BinaryOp::Max => (a.max(c), b.max(d)),
        BinaryOp::Min => (a.min(c), b.min(d)),
        _ => UNBOUNDED_INTERVAL,
    }
}

/// The smallest interval that contains these numbers.
fn hull(numbers: &[f64]) -> (f64, f64) {
    if numbers.iter().any(|x| x.is_nan()) {
        return UNBOUNDED_INTERVAL;
    }
    numbers.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(*x), high.max(*x)))
}
