//! Attention that was written out, whose mask is known, or whose heads are repeated.

use symmc_ir::attention::{Bound, Operands, causal_if};
use symmc_ir::{BinaryOp, DType, Dim, Float, Op, Scalar, Type, UnaryOp, ValueId, infer};

use super::known::Known;
use crate::rewrite::{Candidate, Rewrite, Rewriter, Rule};

/// The rules of this theme.
pub const RULES: &[Rule] = &[
    Rule {
        name: "attention",
        equation: "matmul(softmax(matmul(q * s, transpose(k) * t) * r), v) = attention(q, k, v) with scale s*t*r, and \
                   with an added causal mask causal attention, for f32 and f64",
        apply: written_out,
    },
    Rule {
        name: "full_mask",
        equation: "attention(q, k, v, full(true)) = attention(q, k, v, full(0.0)) = attention(q, k, v)",
        apply: full_mask,
    },
    Rule {
        name: "causal_mask",
        equation: "attention(q, k, v, column <= row) = causal attention(q, k, v)",
        apply: causal_mask,
    },
    Rule {
        name: "grouped_heads",
        equation: "attention(q, repeat(k), repeat(v)) = attention(q, k, v) with heads in groups",
        apply: grouped_heads,
    },
];

fn written_out(cx: &mut Rewriter, node: &Candidate) -> Option<Rewrite> {
    let (Op::MatMul, &[weights, v]) = (&node.op, &node.inputs[..]) else { return None };
    let (Op::Softmax { axis, log: false }, &[scores]) = cx.def(unguarded(cx, weights))? else { return None };
    if *axis + 1 != node.ty.rank() || !matches!(node.ty.dtype, DType::F32 | DType::F64) {
        return None;
    }
    let (scores, causal) = unmasked(cx, scores);
    let (scores, outer) = unscaled(cx, scores);
    let (Op::MatMul, &[q, k]) = cx.def(scores)? else { return None };
    let ((q, of_q), (k, of_k)) = (unscaled(cx, q), unscaled(cx, k));
    // Any permutation is one of the heads' axes, and then of the last two.
    let (Op::Permute { perm }, &[stored]) = cx.def(k)? else { return None };
    let (stored, inner) = unscaled(cx, stored);
    let last = perm.len().checked_sub(1).filter(|last| *last > 0)?;
    let mut perm = perm.clone();
    perm.swap(last - 1, last);
    let scale = Float(outer * of_q * of_k * inner);
    let op = Op::Attention { scale, cap: None, bounds: causal_if(causal) };
    let ty = cx.ty(stored);
    let ty = Type::new(ty.dtype, perm.iter().map(|&axis| ty.shape[axis].clone()).collect::<Vec<_>>());
    // What the products broadcast has the heads of the query in attention.
    let leading = &node.ty.shape[..node.ty.rank().checked_sub(2)?];
    let wide = |ty: &Type| {
        let tail = ty.shape.get(ty.rank().checked_sub(2)?..)?;
        Some(Type::new(ty.dtype, [leading, tail].concat()))
    };
    let (of_key, of_value) = (wide(&ty)?, wide(cx.ty(v))?);
    let types = [cx.ty(q), &of_key, &of_value];
    let fits =
        infer::infer(&op, &types, None).is_ok_and(|t| t.as_deref() == Some(std::slice::from_ref(&node.ty)));
    fits.then(|| {
        let k = match perm.iter().copied().eq(0..=last) {
            true => stored,
            false => cx.emit("heads", Op::Permute { perm }, &[stored], ty),
        };
        let (k, v) = (cx.expand(k, of_key.shape), cx.expand(v, of_value.shape));
        Rewrite::Node(op, vec![q, k, v])
    })
}

/// `x` and `c`, if the value is `x * c` or `x / (1/c)`, else the value and 1.
fn unscaled(cx: &Rewriter, value: ValueId) -> (ValueId, f64) {
    match cx.def(value) {
        Some((Op::BinaryScalar { op: BinaryOp::Mul, scalar, .. }, &[x])) => (x, scalar.as_f64()),
        Some((Op::BinaryScalar { op: BinaryOp::Div, scalar, scalar_left: false }, &[x])) => {
            (x, 1.0 / scalar.as_f64())
        }
        _ => (value, 1.0),
    }
}

/// Scores without the causal mask that is added to them, and whether there was one. Another mask may hide all
/// of a row, which attention defines and softmax does not.
fn unmasked(cx: &Rewriter, scores: ValueId) -> (ValueId, bool) {
    if let Some((Op::Binary(BinaryOp::Add), &[a, b])) = cx.def(scores) {
        for (x, mask) in [(a, b), (b, a)] {
            let added = cx.shape(x) == cx.shape(scores) && cx.def(mask).is_some();
            if added && lets_earlier(cx, mask) {
                return (x, true);
            }
        }
    }
    (scores, false)
}

fn full_mask(cx: &mut Rewriter, node: &Candidate) -> Option<Rewrite> {
    let Op::Attention { bounds, .. } = &node.op else { return None };
    let operands = Operands::of(bounds, &node.inputs)?;
    let neutral = match cx.known(*operands.mask?)?.full()? {
        Scalar::Bool(b) => b,
        s => s.as_f64() == 0.0,
    };
    neutral.then(|| Rewrite::Node(node.op.clone(), operands.with_mask(None)))
}

fn causal_mask(cx: &mut Rewriter, node: &Candidate) -> Option<Rewrite> {
    let Op::Attention { scale, cap, bounds } = &node.op else { return None };
    let operands = Operands::of(bounds, &node.inputs)?;
    lets_earlier(cx, *operands.mask?).then(|| {
        let mut bounds = bounds.clone();
        if !bounds.contains(&Bound::causal()) {
            bounds.push(Bound::causal());
        }
        Rewrite::Node(Op::Attention { scale: *scale, cap: *cap, bounds }, operands.with_mask(None))
    })
}

/// The softmax within `select(is_nan(s), 0, s)`, which is `s` where every row sees something.
fn unguarded(cx: &Rewriter, weights: ValueId) -> ValueId {
    let Some((Op::Select, &[nan, zero, s])) = cx.def(weights) else { return weights };
    let zero = cx.known(zero).and_then(Known::full).is_some_and(|s| s.as_f64() == 0.0);
    let guards = matches!(cx.def(nan), Some((Op::Unary(UnaryOp::IsNan), &[of])) if of == s);
    if zero && guards { s } else { weights }
}

/// Whether a mask lets row `i` see the columns up to `i` and no others: a bool one, or one that is added and is 0
/// where they are seen, elsewhere infinitely negative or the lowest f32. With an added mask a row that sees nothing
/// is not defined alike; rows of a causal mask see their first column.
fn lets_earlier(cx: &Rewriter, mask: ValueId) -> bool {
    let mask = without_units(cx, mask);
    if !cx.ty(mask).dtype.is_float() {
        return is_causal(cx, mask, true);
    }
    let Some((Op::Select, &[cond, yes, no])) = cx.def(mask) else { return false };
    let full = |v| cx.known(v).and_then(Known::full).map(Scalar::as_f64);
    let hides = |x: f64| x <= f64::from(f32::MIN);
    match (full(yes), full(no)) {
        (Some(0.0), Some(no)) if hides(no) => is_causal(cx, cond, true),
        (Some(yes), Some(0.0)) if hides(yes) => is_causal(cx, cond, false),
        _ => false,
    }
}

/// The value before axes of extent 1 in front of it.
fn without_units(cx: &Rewriter, value: ValueId) -> ValueId {
    match cx.def(value) {
        Some((Op::Reshape, &[x])) => {
            let (wide, own) = (cx.shape(value), cx.shape(x));
            let new = wide.len().saturating_sub(own.len());
            let units = wide[..new].iter().all(|d| d.as_const() == Some(1));
            if units && wide[new..] == *own { x } else { value }
        }
        _ => value,
    }
}

/// Whether a bool value has this truth for row `i` at the columns up to `i`, and the other elsewhere.
fn is_causal(cx: &Rewriter, mut value: ValueId, mut truth: bool) -> bool {
    let (op, a, b) = loop {
        value = without_units(cx, value);
        match cx.def(value) {
            Some((Op::Unary(UnaryOp::Not), &[x])) => (value, truth) = (x, !truth),
            Some((Op::BinaryScalar { op: BinaryOp::Eq, scalar, .. }, &[x])) => {
                let Some((cond, first)) = chosen_by(cx, x, scalar.as_f64()) else { return false };
                (value, truth) = (cond, first == truth);
            }
            Some((Op::Binary(op), &[a, b])) => break (*op, a, b),
            _ => return false,
        }
    };
    let (low, high, strict) = match (op, truth) {
        (BinaryOp::Le, true) | (BinaryOp::Gt, false) => (a, b, 0),
        (BinaryOp::Lt, true) | (BinaryOp::Ge, false) => (a, b, 1),
        (BinaryOp::Ge, true) | (BinaryOp::Lt, false) => (b, a, 0),
        (BinaryOp::Gt, true) | (BinaryOp::Le, false) => (b, a, 1),
        _ => return false,
    };
    let rank = cx.shape(value).len();
    // `low <= high - strict` with low = s + column and high = s + strict + row.
    let (Some((column, s)), Some((row, t))) = (series(cx, low, rank), series(cx, high, rank)) else {
        return false;
    };
    rank >= 2 && (column, row) == (rank - 1, rank - 2) && t.checked_sub(s) == Some(strict)
}

/// The condition of a choice between two numbers of which one is `number`, and whether that is the first.
fn chosen_by(cx: &Rewriter, x: ValueId, number: f64) -> Option<(ValueId, bool)> {
    let (Op::Select, &[cond, yes, no]) = cx.def(without_units(cx, x))? else { return None };
    let is = |v| Some(cx.known(v)?.full()?.as_f64() == number);
    match (is(yes)?, is(no)?) {
        (true, false) => Some((cond, true)),
        (false, true) => Some((cond, false)),
        _ => None,
    }
}

/// A series with step 1 along one axis: the axis, counted in a tensor of `rank` axes, and the first element.
fn series(cx: &Rewriter, value: ValueId, rank: usize) -> Option<(usize, i64)> {
    let Some(Known::Affine(a)) = cx.known(value) else { return None };
    let (axis, step) = a.only_axis()?;
    (step == 1).then_some((axis + rank - a.step.len(), a.start))
}

fn grouped_heads(cx: &mut Rewriter, node: &Candidate) -> Option<Rewrite> {
    let (Op::Attention { .. }, [q, k, v, mask @ ..]) = (&node.op, &node.inputs[..]) else { return None };
    let ((k, k_shape), (v, v_shape)) = (unrepeated(cx, *k)?, unrepeated(cx, *v)?);
    let heads = k_shape.len() - 3;
    // Heads that k and v repeat differently do not form groups.
    if k_shape[heads] != v_shape[heads] {
        return None;
    }
    let mut inputs = vec![*q, cx.reshape(k, k_shape), cx.reshape(v, v_shape)];
    inputs.extend_from_slice(mask);
    Some(Rewrite::Node(node.op.clone(), inputs))
}

/// The value whose heads are repeated in `x [.., h, s, e]`, each a number of times in a row, and the shape
/// `[.., g, s, e]` that it has before.
fn unrepeated(cx: &Rewriter, x: ValueId) -> Option<(ValueId, Vec<Dim>)> {
    let (op, &[inner]) = cx.def(x)? else { return None };
    let shape = cx.shape(x);
    let heads = shape.len().checked_sub(3)?;
    match op {
        // One head, expanded.
        Op::Expand => {
            let mut narrow = shape.to_vec();
            narrow[heads] = Dim::from(1);
            (cx.shape(inner) == narrow).then_some((inner, narrow))
        }
        // [.., g, 1, s, e] expanded to [.., g, r, s, e] and flattened to [.., g*r, s, e].
        Op::Reshape => {
            let (Op::Expand, &[narrow]) = cx.def(inner)? else { return None };
            let wide = cx.shape(inner);
            let flattened = wide.len() == shape.len() + 1
                && wide[..heads] == shape[..heads]
                && wide[heads + 2..] == shape[heads + 1..];
            let mut repeated = wide.to_vec();
            *repeated.get_mut(heads + 1)? = Dim::from(1);
            let mut grouped = shape.to_vec();
            grouped[heads] = wide[heads].clone();
            (flattened && cx.shape(narrow) == repeated).then_some((narrow, grouped))
        }
        _ => None,
    }
}
