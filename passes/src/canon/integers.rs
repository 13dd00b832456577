//! Simplifies ops on integers by the ranges of their elements: comparisons whose outcome is known, limits that
//! change nothing, and integers that a program computes in floats.
//!
//! Exporters write histograms of integers as arithmetic on floats, and guard indices against values that
//! cannot occur.

use symmc_ir::positions::{IntegerFunction, IntegerRange, MAX_LISTED_INTEGERS, decide_comparison};
use symmc_ir::{BinaryOp, DType, Dim, FloatAttribute, Op, Scalar, TensorType, UnaryOp, ValueId};

use crate::rewrite::{CandidateNode, Rewrite, RewriteRule, Rewriter};

pub const RULES: &[RewriteRule] = &[
    RewriteRule {
        name: "comparison_by_range",
        equation: "x < s, x = s, .. = full(true) or full(false) for integers x whose range decides it",
        apply: comparison_by_range,
    },
    RewriteRule {
        name: "limit_by_range",
        equation: "max(x, s) = x where all elements are at least s; min(x, s) = x where they are at most s",
        apply: limit_by_range,
    },
    RewriteRule {
        name: "cast_of_exact_cast",
        equation: "cast(cast(x)) = cast(x) for integers x that the inner dtype stores exactly",
        apply: cast_of_exact_cast,
    },
    RewriteRule {
        name: "comparison_of_casts",
        equation: "cast(x) = iota and cast(x) < s as integers, for integers x that the dtype stores exactly; f(x) = iota as \
                   x = iota, if both hold for the same of the few integers x",
        apply: comparison_of_casts,
    },
    RewriteRule {
        name: "identity_of_integers",
        equation: "f(cast(x)) = cast(x) for integers x of few values, each of which f keeps",
        apply: identity_of_integers,
    },
    RewriteRule {
        name: "ends_of_exact_cast",
        equation: "grouped_matmul(x, w, cast(ends)) = grouped_matmul(x, w, ends) where the cast changes no end",
        apply: ends_of_exact_cast,
    },
];

/// The op with its operands exchanged.
fn mirrored(op: BinaryOp) -> BinaryOp {
    match op {
        BinaryOp::Lt => BinaryOp::Gt,
        BinaryOp::Le => BinaryOp::Ge,
        BinaryOp::Gt => BinaryOp::Lt,
        BinaryOp::Ge => BinaryOp::Le,
        op => op,
    }
}

fn comparison_by_range(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let Op::BinaryScalar { op, scalar: Scalar::Int(s), scalar_left } = node.op else { return None };
    let x = *node.inputs.first()?;
    if !op.is_comparison() || cx.ty(x).dtype.integer_bounds().is_none() || cx.known_elements(x).is_some() {
        return None;
    }
    let [least, greatest] = cx.facts().range(x)?.bounds(cx.symbols());
    let difference = (least.saturating_sub(s), greatest.saturating_sub(s));
    let outcome = decide_comparison(if scalar_left { mirrored(op) } else { op }, difference)?;
    Some(Rewrite::Node(Op::Full(Scalar::Bool(outcome)), vec![]))
}

fn limit_by_range(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let Op::BinaryScalar { op, scalar: Scalar::Int(s), .. } = node.op else { return None };
    let x = *node.inputs.first()?;
    if !matches!(op, BinaryOp::Max | BinaryOp::Min) || cx.ty(x).dtype.integer_bounds().is_none() {
        return None;
    }
    let range = cx.facts().range(x)?;
    let changes_nothing = match op {
        BinaryOp::Max => range.is_at_least(s, cx.symbols()),
        _ => range.is_at_most(&Dim::from(s), cx.symbols()),
    };
    changes_nothing.then_some(Rewrite::Value(x))
}

/// The integers of which a value is a cast that keeps them all, in the shape of the value.
fn exact_cast_in_shape(cx: &mut Rewriter, value: ValueId) -> Option<ValueId> {
    if let Some((Op::Reshape, &[inner])) = cx.def(value) {
        let (x, _) = exact_cast(cx, inner)?;
        let shape = cx.shape(value).to_vec();
        return Some(cx.reshape(x, shape));
    }
    exact_cast(cx, value).map(|(x, _)| x)
}

/// The integers of which a value is a cast that keeps them all, with their range.
fn exact_cast(cx: &Rewriter, value: ValueId) -> Option<(ValueId, IntegerRange)> {
    let (Op::Cast, &[x]) = cx.def(value)? else { return None };
    cx.ty(x).dtype.integer_bounds()?;
    let range = cx.facts().range(x)?;
    range.fits_type(cx.ty(value).dtype, cx.symbols()).then_some((x, range))
}

fn cast_of_exact_cast(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    if node.op != Op::Cast || node.ty.dtype == DType::Bool {
        return None;
    }
    let (x, _) = exact_cast(cx, node.inputs[0])?;
    Some(Rewrite::Node(Op::Cast, vec![x]))
}

/// An integer with the number of a scalar.
fn as_integer(scalar: Scalar) -> Option<i64> {
    match scalar {
        Scalar::Int(i) => Some(i),
        Scalar::Float(FloatAttribute(x)) if x.fract() == 0.0 && x.abs() < 9e15 => Some(x as i64),
        _ => None,
    }
}

fn comparison_of_casts(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    match node.op {
        Op::BinaryScalar { op, scalar, scalar_left } if op.is_comparison() => {
            let dtype = cx.ty(node.inputs[0]).dtype;
            if !dtype.is_float() {
                return None;
            }
            let x = exact_cast_in_shape(cx, node.inputs[0])?;
            let number = as_integer(scalar)?;
            let scalar = Scalar::Int(number);
            let is_exact = IntegerRange::new(number, number).fits_type(dtype, cx.symbols());
            let fits = is_exact && scalar.wrap_to(cx.ty(x).dtype) == scalar;
            fits.then(|| Rewrite::Node(Op::BinaryScalar { op, scalar, scalar_left }, vec![x]))
        }
        Op::Binary(op) if op.is_comparison() => {
            let &[a, b] = &node.inputs[..] else { return None };
            if !cx.ty(a).dtype.is_float() {
                return None;
            }
            [(a, b, op), (b, a, mirrored(op))].into_iter().find_map(|(x, positions, op)| {
                let is_equality = matches!(op, BinaryOp::Eq | BinaryOp::Ne);
                let x = match exact_cast_in_shape(cx, x) {
                    Some(x) => x,
                    None if is_equality => integer_with_equal_positions(cx, x, positions)?,
                    None => return None,
                };
                let positions = as_integers(cx, positions, cx.ty(x).dtype)?;
                Some(Rewrite::Node(Op::Binary(op), vec![x, positions]))
            })
        }
        _ => None,
    }
}

/// An integer that equals each of these positions exactly where `value`, which is computed from it, does. It may
/// differ from `value` where that equals no position: a histogram of few bins counts no other numbers.
fn integer_with_equal_positions(cx: &mut Rewriter, value: ValueId, positions: ValueId) -> Option<ValueId> {
    let (&Op::Iota { start, step }, _) = cx.def(positions)? else { return None };
    let count = cx.shape(positions).first()?.as_const().filter(|n| (0..=MAX_LISTED_INTEGERS).contains(n))?;
    let source = cx.facts().nearest_integer(&[value])?;
    let integers = cx.facts().range(source)?.few_integers(cx.symbols())?;
    let values = IntegerFunction::new(cx.facts(), source, &integers)?.evaluate(value)?.to_f64();
    let listed: Vec<i64> = (0..count).map(|i| start + i * step).collect();
    let agrees = values.iter().zip(&integers).all(|(&y, x)| {
        let equal = listed.iter().find(|&&position| position as f64 == y);
        equal == listed.contains(x).then_some(x)
    });
    let shape = cx.shape(value).to_vec();
    (agrees && cx.ty(source).numel() == cx.ty(value).numel()).then(|| cx.reshape(source, shape))
}

/// A series of floats as integers of this dtype.
fn as_integers(cx: &mut Rewriter, value: ValueId, dtype: DType) -> Option<ValueId> {
    let (op @ &Op::Iota { start, step }, _) = cx.def(value)? else { return None };
    let op = op.clone();
    let shape = cx.shape(value).to_vec();
    let last_value = Dim::from(start) + (shape.first()?.clone() - Dim::from(1)) * Dim::from(step);
    let range = IntegerRange {
        least: last_value.min_with(&Dim::from(start)),
        greatest: last_value.max_with(&Dim::from(start)),
    };
    let fits = [dtype, cx.ty(value).dtype].into_iter().all(|dtype| range.fits_type(dtype, cx.symbols()));
    fits.then(|| cx.emit("positions", op, &[], TensorType::new(dtype, shape)))
}

fn identity_of_integers(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let rounds = matches!(
        node.op,
        Op::Select | Op::Unary(UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round | UnaryOp::Trunc)
    );
    if !rounds || !node.ty.dtype.is_float() {
        return None;
    }
    let source = cx.facts().nearest_integer(&node.inputs)?;
    if cx.ty(source).numel() != node.ty.numel() {
        return None;
    }
    let range = cx.facts().range(source)?;
    let integers = range.few_integers(cx.symbols())?;
    if !range.fits_type(node.ty.dtype, cx.symbols()) {
        return None;
    }
    let mut function = IntegerFunction::new(cx.facts(), source, &integers)?;
    let values = function.evaluate_node(&node.op, &node.inputs, &node.ty)?.to_f64();
    if !values.iter().zip(&integers).all(|(&y, &x)| y == x as f64) {
        return None;
    }
    let ty = TensorType::new(node.ty.dtype, cx.shape(source));
    let cast = cx.emit("exact", Op::Cast, &[source], ty);
    Some(Rewrite::Value(cx.reshape(cast, node.ty.shape.clone())))
}

fn ends_of_exact_cast(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let (Op::GroupedMatMul, &[x, w, ends]) = (&node.op, &node.inputs[..]) else { return None };
    let (integers, _) = exact_cast(cx, ends)?;
    let fits = matches!(cx.ty(integers).dtype, DType::I32 | DType::I64);
    fits.then(|| Rewrite::Node(Op::GroupedMatMul, vec![x, w, integers]))
}
