//! Attention that was written out, whose mask says what positions see, or whose heads are repeated.

use symmc_ir::attention::{self, Bound, Operands};
use symmc_ir::known::Known;
use symmc_ir::{BinaryOp, DType, Dim, Float, Op, Reduction, Scalar, Type, UnaryOp, ValueId, infer};

use super::seen::additive::{self, Additive};
use super::seen::bounds::{self, Split};
use super::seen::condition::Condition;
use super::seen::linear::View;
use super::seen::{self, operands, rows};
use crate::rewrite::{Candidate, Rewrite, Rewriter, Rule};

pub const RULES: &[Rule] = &[
    Rule {
        name: "attention",
        equation: "matmul(softmax(c*tanh(matmul(q * s, transpose(k) * t) * r / c) + mask), v) = attention(q, k, v) with \
                   scale s*t*r, cap c, and the bounds that the mask is, where rows that see no column get the mean of v; \
                   else the mask where its numbers are finite; scores and weights need not be rounded",
        apply: written_out,
    },
    Rule {
        name: "full_mask",
        equation: "attention(q, k, v, full(true)) = attention(q, k, v, full(0.0)) = attention(q, k, v)",
        apply: full_mask,
    },
    Rule {
        name: "mask_of_positions",
        equation: "attention(q, k, v, a & .. & z) = attention(q, k, v, z) with bounds a, .., where these compare the column \
                   with what does not depend on it; select(m, x, -inf) is the mask m with x added, and so is \
                   select(m, x, lowest) where x is of moderate size, but for rows that see no column: these get the mean of v",
        apply: mask_of_positions,
    },
    Rule {
        name: "grouped_heads",
        equation: "attention(q, repeat(k), repeat(v)) = attention(q, k, v) with heads in groups",
        apply: grouped_heads,
    },
];

/// Scores on their way to a softmax: what is before the masks, and what these let through.
struct Scores {
    /// The extents before the last two where the masks are.
    leading: Vec<Dim>,
    before: ValueId,
    mask: Additive,
    /// What is added, whole.
    added: Vec<ValueId>,
    /// What all of it is multiplied by behind the masks.
    factor: f64,
    /// The least that scores are behind the masks further in, and what these let through where a row is not less.
    floor: Option<(f64, Condition)>,
    /// Masks chose scores instead of being added to them.
    chose: bool,
}

fn written_out(cx: &mut Rewriter, node: &Candidate) -> Option<Rewrite> {
    let (Op::MatMul, &[weights, v]) = (&node.op, &node.inputs[..]) else { return None };
    let (softmax, guarded) = unguarded(cx, bare(cx, weights));
    let (softmax, sunk) = unsunk(cx, bare(cx, softmax));
    let (Op::Softmax { axis, log: false }, &[scores]) = cx.def(softmax)? else { return None };
    if *axis + 1 != cx.shape(scores).len() || is_needed_besides(cx, weights) {
        return None;
    }
    let (scores, sink) = match sunk {
        Some(columns) => with_sink(cx, scores, &columns).map(|(scores, sink)| (scores, Some(sink)))?,
        None => (scores, None),
    };
    // Masks may be of heads and batches that the softmax has as one axis.
    let scores = bare(cx, scores);
    let shape = cx.shape(scores).to_vec();
    let leading = &shape[..shape.len().checked_sub(2)?];
    let scores = unmasked(cx, scores)?;
    let (before, cap, within_cap) = uncapped(cx, scores.before);
    let (before, outer) = unscaled(cx, before);
    let product = bare(cx, before);
    let (Op::MatMul, &[q, k]) = cx.def(product)? else { return None };
    let within = cx.shape(product)[..cx.shape(product).len() - 2].to_vec();
    let ((q, of_q), (k, of_k)) = (unscaled(cx, q), untransposed(cx, k)?);
    let of_node = &node.ty.shape[..node.ty.rank().checked_sub(2)?];
    let (q, k) = (led(cx, q, &within, leading)?, led(cx, k, &within, leading)?);
    let v = led(cx, v, of_node, leading)?;
    // What the products broadcast has the heads of the query in attention.
    let wide = |ty: &Type| Some([leading, ty.shape.get(ty.rank().checked_sub(2)?..)?].concat());
    let (of_key, of_value) = (wide(cx.ty(k))?, wide(cx.ty(v))?);
    let typed = |shape: &[Dim]| Type::new(node.ty.dtype, shape.to_vec());
    let scale = Float(scores.factor * within_cap * outer * of_q * of_k);
    // A cap is not of scores that are multiplied again.
    let plain = Op::Attention { scale, cap, bounds: Vec::new(), sink: false, log_sum_exp: false };
    let dtypes = [cx.ty(q).dtype, cx.ty(k).dtype, cx.ty(v).dtype];
    let types = [cx.ty(q), &typed(&of_key), &typed(&of_value)];
    let result = infer::infer(&plain, &types, None).ok()??.pop()?;
    let alike = dtypes.iter().all(|d| *d == node.ty.dtype) && result.numel() == node.ty.numel();
    if !alike || cap.is_some() && scores.factor != 1.0 {
        return None;
    }
    let hides = match sink {
        Some(_) => Unseen::Zero,
        None if guarded => Unseen::Guarded,
        None => Unseen::Weighed,
    };
    let Seen { bounds, mut operands, rows } = of_softmax(cx, &scores, &shape, hides)?;
    if let Some(sink) = sink {
        operands.push(led(cx, sink, &shape[..shape.len() - 2], leading)?);
    }
    let values = v;
    let (k, v) = (cx.expand(k, of_key), cx.expand(v, of_value));
    let (op, inputs) = (
        Op::Attention { scale, cap, bounds, sink: sink.is_some(), log_sum_exp: false },
        [vec![q, k, v], operands].concat(),
    );
    if result == node.ty && rows.is_none() {
        return Some(Rewrite::Node(op, inputs));
    }
    let y = cx.emit("heads", op, &inputs, result);
    let y = or_mean(cx, y, rows, values)?;
    Some(Rewrite::Value(cx.reshape(y, node.ty.shape.clone())))
}

/// Whether others need weights, or what they are cast from: they have to be computed then, and attention would compute them again.
fn is_needed_besides(cx: &Rewriter, weights: ValueId) -> bool {
    match cx.def(weights) {
        _ if cx.is_shared(weights) => true,
        Some((Op::Cast | Op::Reshape | Op::Expand, &[x])) => is_needed_besides(cx, x),
        _ => false,
    }
}

/// The keys `[.., s, e]` whose transpose a value is, and what it is multiplied by.
fn untransposed(cx: &mut Rewriter, k: ValueId) -> Option<(ValueId, f64)> {
    let (k, outer) = unscaled(cx, k);
    // Any permutation is one of the heads' axes, and then of the last two.
    let (Op::Permute { perm }, &[stored]) = cx.def(k)? else { return None };
    let mut perm = perm.clone();
    let (stored, inner) = unscaled(cx, stored);
    let last = perm.len().checked_sub(1).filter(|last| *last > 0)?;
    perm.swap(last - 1, last);
    let ty = cx.ty(stored);
    let ty = Type::new(ty.dtype, perm.iter().map(|&axis| ty.shape[axis].clone()).collect::<Vec<_>>());
    let k = match perm.iter().copied().eq(0..=last) {
        true => stored,
        false => cx.emit("heads", Op::Permute { perm }, &[stored], ty),
    };
    Some((k, outer * inner))
}

/// A value of matrices with other extents before them; those of extent 1 broadcast.
fn led(cx: &mut Rewriter, value: ValueId, from: &[Dim], to: &[Dim]) -> Option<ValueId> {
    let shape = cx.shape(value);
    let Some(rank) = shape.len().checked_sub(2).filter(|_| from != to) else { return Some(value) };
    let (own, tail) = shape.split_at(rank);
    let one = Dim::from(1);
    let leading = if own.iter().all(|d| *d == one) {
        Vec::new()
    } else if own == from {
        to.to_vec()
    } else {
        return None;
    };
    let wide = [&leading, tail].concat();
    Some(cx.reshape(value, wide))
}

/// A value before casts between floats, and before reshapes of what stands before matrices.
fn bare(cx: &Rewriter, mut value: ValueId) -> ValueId {
    loop {
        let inner = uncast(cx, unled(cx, value));
        if inner == value {
            return value;
        }
        value = inner;
    }
}

/// A value of matrices before a reshape that keeps the matrices.
fn unled(cx: &Rewriter, value: ValueId) -> ValueId {
    let last = |v: ValueId| cx.shape(v).iter().rev().take(2).cloned().collect::<Vec<_>>();
    match cx.def(value) {
        Some((Op::Reshape, &[x])) if last(x).len() == 2 && last(x) == last(value) => x,
        _ => value,
    }
}

/// What a softmax makes of rows that a mask hides all of.
#[derive(Clone, Copy, PartialEq)]
enum Unseen {
    /// Equal weights, or none that is a number.
    Weighed,
    /// The same, but zeros for what is not a number.
    Guarded,
    /// Zeros: a sink has all the weight.
    Zero,
}

#[derive(Default)]
struct Seen {
    bounds: Vec<Bound>,
    /// Its operands behind the values: what is left of the mask, and the positions of the bounds.
    operands: Vec<ValueId>,
    /// Whether a row sees a column, where the others have equal weights.
    rows: Option<ValueId>,
}

/// What attention gives, where rows that see nothing have equal weights.
fn or_mean(cx: &mut Rewriter, y: ValueId, rows: Option<ValueId>, v: ValueId) -> Option<ValueId> {
    let Some(rows) = rows else { return Some(y) };
    let v = match unrepeated(cx, v) {
        Some((v, shape)) => cx.reshape(v, shape),
        None => v,
    };
    rows::or_mean(cx, y, rows, v)
}

/// What masks before a softmax let through. Rows that see nothing are not alike there: where not each is shown to see a
/// column, or has equal weights, finite numbers stay a mask.
fn of_softmax(cx: &mut Rewriter, scores: &Scores, shape: &[Dim], unseen: Unseen) -> Option<Seen> {
    if scores.mask.seen.is_empty() && scores.mask.rest.is_empty() {
        return Some(Seen::default());
    }
    let zero_rows = match unseen {
        Unseen::Zero => true,
        Unseen::Guarded => scores.mask.is_infinite(),
        Unseen::Weighed => false,
    };
    let plain = !scores.chose && scores.factor == 1.0;
    let condition = scores.mask.condition();
    let split = condition.and_then(|c| bounds::split(cx, &c, shape)).filter(|s| s.gained || !plain);
    if let Some(found) = split.and_then(|s| bounded(cx, &scores.mask, &s, &[], shape, zero_rows)) {
        return Some(found);
    }
    let finite = scores.mask.seen.iter().all(|(_, x)| x.is_finite());
    let moderate = scores.mask.rest.iter().all(|leaf| additive::is_moderate(cx, leaf.value));
    if !plain || !(unseen != Unseen::Weighed || finite && moderate) {
        return None;
    }
    let mut sum = *scores.added.first()?;
    for &mask in &scores.added[1..] {
        sum = added(cx, sum, mask)?;
    }
    Some(Seen { operands: vec![sum], ..Seen::default() })
}

fn added(cx: &mut Rewriter, x: ValueId, y: ValueId) -> Option<ValueId> {
    let shape = infer::broadcast(&[cx.shape(x), cx.shape(y)]).ok()?;
    let ty = Type::new(cx.ty(x).dtype, shape);
    (cx.ty(y).dtype == ty.dtype).then(|| cx.emit("bias", Op::Binary(BinaryOp::Add), &[x, y], ty))
}

/// Numbers beside which scores of moderate size vanish, and which no dtype but f16 takes for infinite.
const LOWEST: std::ops::RangeInclusive<f64> = f32::MIN as f64..=-1e38;

/// Whether rows that a mask hides all of have equal weights: one such number hides.
fn is_even(mask: &Additive) -> bool {
    matches!(&mask.seen[..], [(_, number)] if LOWEST.contains(number))
}

/// The bounds that a mask of float is, which is split so, beside those that there are, and what is left of it. `zero_rows` says that rows
/// which see nothing are zero.
fn bounded(
    cx: &mut Rewriter,
    mask: &Additive,
    split: &Split,
    beside: &[Bound],
    shape: &[Dim],
    zero_rows: bool,
) -> Option<Seen> {
    let new = split.bounds.iter().map(|l| &l.bound);
    let moderate = mask.rest.iter().all(|leaf| additive::is_moderate(cx, leaf.value));
    let sees = split.rest.is_empty() && moderate && bounds::each_row_sees(cx, new.chain(beside), shape);
    let mut rows = None;
    if !sees && !zero_rows {
        if !moderate || !beside.is_empty() || !is_even(mask) {
            return None;
        }
        rows = Some(rows::see(cx, split, shape)?);
    }
    let mut sum = None;
    for leaf in &mask.rest {
        let next = operands::placed(cx, leaf, shape)?;
        sum = Some(match sum {
            None => next,
            Some(other) => added(cx, other, next)?,
        });
    }
    let seen = operands::mask(cx, &split.rest, shape);
    let left = match (seen, sum) {
        (Some(seen), Some(added)) => {
            let ty =
                Type::new(cx.ty(added).dtype, infer::broadcast(&[cx.shape(seen), cx.shape(added)]).ok()?);
            let number = Type::new(ty.dtype, vec![]);
            let never = cx.emit("never", Op::Full(Scalar::Float(Float(f64::NEG_INFINITY))), &[], number);
            Some(cx.emit("mask", Op::Select, &[seen, added, never], ty))
        }
        (one, other) => one.or(other),
    };
    let (bounds, positions) = operands(cx, split, shape)?;
    Some(Seen { bounds, operands: left.into_iter().chain(positions).collect(), rows })
}

/// The bounds of a split, and the values of their operands.
fn operands(cx: &mut Rewriter, split: &Split, shape: &[Dim]) -> Option<(Vec<Bound>, Vec<ValueId>)> {
    let mut positions = Vec::new();
    for limit in split.bounds.iter().filter(|l| l.bound.operand) {
        positions.push(operands::operand(cx, limit, shape)?);
    }
    Some((split.bounds.iter().map(|l| l.bound.clone()).collect(), positions))
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

/// `x`, `c` and `f`, if the value is `c * tanh(f * x / c)`, else the value.
fn uncapped(cx: &Rewriter, value: ValueId) -> (ValueId, Option<Float>, f64) {
    let capped = || {
        let (tanh, cap) = unscaled(cx, uncast(cx, value));
        let (Op::Unary(UnaryOp::Tanh), &[x]) = cx.def(uncast(cx, tanh))? else { return None };
        let (x, inverse) = unscaled(cx, uncast(cx, x));
        (cap.is_finite() && cap > 0.0).then_some((x, Some(Float(cap)), cap * inverse))
    };
    capped().unwrap_or((value, None, 1.0))
}

/// A float value before it was converted to another float dtype.
fn uncast(cx: &Rewriter, value: ValueId) -> ValueId {
    match cx.def(value) {
        Some((Op::Cast, &[x])) if cx.ty(x).dtype.is_float() && cx.ty(value).dtype.is_float() => x,
        _ => value,
    }
}

/// Scores before the masks that are added to them or choose them, and before constants that are added to all of them.
fn unmasked(cx: &mut Rewriter, scores: ValueId) -> Option<Scores> {
    let shape = cx.shape(scores).to_vec();
    let leading = shape[..shape.len().checked_sub(2)?].to_vec();
    let added = Vec::new();
    let mut out = Scores {
        leading,
        before: scores,
        mask: Additive::default(),
        added,
        factor: 1.0,
        floor: None,
        chose: false,
    };
    for _ in 0..MAX_MASKS {
        let value = bare(cx, out.before);
        let Some((op, inputs)) = cx.def(value) else { break };
        let (op, inputs) = (op.clone(), inputs.to_vec());
        match (op, &inputs[..]) {
            (Op::BinaryScalar { op: BinaryOp::Add, scalar, .. }, &[x]) if scalar.as_f64().abs() < 1e6 => {
                out.before = x;
            }
            (Op::BinaryScalar { op: BinaryOp::Mul | BinaryOp::Div, .. }, _) => {
                let (x, factor) = unscaled(cx, value);
                let masked = matches!(
                    cx.def(bare(cx, x)),
                    Some((
                        Op::Binary(BinaryOp::Add) | Op::BinaryScalar { op: BinaryOp::Add, .. } | Op::Select,
                        _
                    ))
                );
                if !masked || !(1e-3..1e3).contains(&factor) {
                    break;
                }
                (out.before, out.factor) = (x, out.factor * factor);
            }
            (Op::BinaryScalar { op: BinaryOp::Max, scalar, .. }, &[x])
                if out.factor == 1.0 && out.floor.is_none() && LOWEST.contains(&scalar.as_f64()) =>
            {
                out.floor = Some((scalar.as_f64(), Condition::constant(true)));
                (out.before, out.chose) = (x, true);
            }
            (Op::Binary(BinaryOp::Add), &[a, b]) => {
                let scored = |x: ValueId| cx.shape(x) == cx.shape(value) && is_scores(cx, x);
                let (x, mask) = if scored(a) { (a, b) } else { (b, a) };
                if !scored(x) {
                    break;
                }
                let mask = out.led(cx, value, mask)?;
                let parts = additive::additive(cx, mask).viewed(&View::broadcast(cx.shape(mask), &shape)?)?;
                out.hide(parts)?;
                out.added.push(mask);
                out.before = x;
            }
            (Op::Select, &[c, x, y]) => {
                let (_, number, other) = additive::chosen(cx, cx.ty(value).dtype, c, x, y)?;
                if cx.shape(other) != cx.shape(value) {
                    break;
                }
                let c = out.led(cx, value, c)?;
                let seen = seen::condition(cx, c).viewed(&View::broadcast(cx.shape(c), &shape)?)?;
                let seen = if other == x { seen } else { seen.contrary() };
                out.hide(Additive { seen: vec![(seen, number)], rest: Vec::new() })?;
                (out.before, out.chose) = (other, true);
            }
            _ => break,
        }
    }
    if let Some((number, seen)) = out.floor.take().filter(|f| f.1.is_constant() != Some(true)) {
        out.mask.seen.push((seen, number));
    }
    Some(out)
}

impl Scores {
    /// What is combined with scores at `value`, as it is where the masks are.
    fn led(&self, cx: &mut Rewriter, value: ValueId, mask: ValueId) -> Option<ValueId> {
        let from = cx.shape(value)[..cx.shape(value).len() - 2].to_vec();
        led(cx, mask, &from, &self.leading)
    }

    /// One mask more, before what is multiplied.
    fn hide(&mut self, mut mask: Additive) -> Option<()> {
        if self.factor != 1.0 && !mask.rest.is_empty() {
            return None;
        }
        // Whatever hides is as low as the floor.
        if let Some((floor, all)) = &mut self.floor {
            for (seen, number) in std::mem::take(&mut mask.seen) {
                if number > *floor {
                    return None;
                }
                *all = std::mem::replace(all, Condition::constant(true)).and(seen)?;
            }
        }
        mask.seen.iter_mut().for_each(|(_, number)| *number *= self.factor);
        self.mask = std::mem::take(&mut self.mask).plus(mask)?;
        Some(())
    }
}

/// Whether a value is a product of matrices under what comes before a softmax.
fn is_scores(cx: &Rewriter, mut value: ValueId) -> bool {
    for _ in 0..4 * MAX_MASKS {
        value = match cx.def(value) {
            Some((Op::MatMul, _)) => return true,
            Some((Op::Cast | Op::Reshape | Op::BinaryScalar { .. } | Op::Unary(UnaryOp::Tanh), &[x])) => x,
            Some((Op::Binary(BinaryOp::Add), &[a, b])) => {
                if cx.shape(a) == cx.shape(value) {
                    a
                } else {
                    b
                }
            }
            Some((Op::Select, &[_, x, y])) => {
                if cx.shape(x) == cx.shape(value) {
                    x
                } else {
                    y
                }
            }
            _ => return false,
        };
    }
    false
}

/// Masks between scores and their softmax.
const MAX_MASKS: usize = 6;

fn full_mask(cx: &mut Rewriter, node: &Candidate) -> Option<Rewrite> {
    let Op::Attention { bounds, sink, .. } = &node.op else { return None };
    let operands = Operands::of(bounds, *sink, &node.inputs)?;
    let neutral = match cx.known(*operands.mask?)?.full()? {
        Scalar::Bool(b) => b,
        s => s.as_f64() == 0.0,
    };
    neutral.then(|| Rewrite::Node(node.op.clone(), operands.with_mask(None)))
}

fn mask_of_positions(cx: &mut Rewriter, node: &Candidate) -> Option<Rewrite> {
    let Op::Attention { scale, cap, bounds: old, sink, log_sum_exp } = &node.op else { return None };
    let parts = Operands::of(old, *sink, &node.inputs)?;
    let mask = *parts.mask?;
    let mut shape = cx.shape(*parts.q).to_vec();
    *shape.last_mut()? = cx.shape(*parts.k).iter().rev().nth(1)?.clone();
    let view = View::broadcast(cx.shape(mask), &shape)?;
    let Seen { mut bounds, operands: more, rows } = if cx.ty(mask).dtype == DType::Bool {
        let condition = seen::condition(cx, mask).viewed(&view)?;
        let split = bounds::split(cx, &condition, &shape).filter(|s| s.gained)?;
        let left = operands::mask(cx, &split.rest, &shape);
        let (new, positions) = operands(cx, &split, &shape)?;
        Seen { bounds: new, operands: left.into_iter().chain(positions).collect(), rows: None }
    } else {
        let mask = additive::additive(cx, mask).viewed(&view)?;
        let split = bounds::split(cx, &mask.condition()?, &shape).filter(|s| s.gained)?;
        let zero_rows = mask.is_infinite() || parts.sink.is_some_and(|&sink| additive::is_moderate(cx, sink));
        bounded(cx, &mask, &split, old, &shape, zero_rows)?
    };
    let count = attention::positions(&bounds);
    let (left, positions) = more.split_at(more.len().checked_sub(count)?);
    if left.first() == Some(&mask) {
        return None;
    }
    let sunk = parts.sink.copied();
    let inputs =
        [&[*parts.q, *parts.k, *parts.v], left, parts.positions, positions, sunk.as_slice()].concat();
    bounds.retain(|b| b.operand || !old.contains(b));
    let bounds = [&old[..], &bounds].concat();
    let op = Op::Attention { scale: *scale, cap: *cap, bounds, sink: *sink, log_sum_exp: *log_sum_exp };
    if rows.is_none() {
        return Some(Rewrite::Node(op, inputs));
    }
    if *log_sum_exp {
        // The sums of rows that see nothing would have to be replaced, too.
        return None;
    }
    let (ty, v) = (node.ty.clone(), *parts.v);
    let y = cx.emit("seen", op, &inputs, ty);
    Some(Rewrite::Value(or_mean(cx, y, rows, v)?))
}

/// The softmax within `select(is_nan(s), 0, s)`, which is `s` where every row sees something, and whether it is.
fn unguarded(cx: &Rewriter, weights: ValueId) -> (ValueId, bool) {
    let Some((Op::Select, &[nan, zero, s])) = cx.def(weights) else { return (weights, false) };
    let zero = cx.known(zero).and_then(Known::full).is_some_and(|s| s.as_f64() == 0.0);
    let guards = matches!(cx.def(nan), Some((Op::Unary(UnaryOp::IsNan), &[of])) if of == s);
    if zero && guards { (s, true) } else { (weights, false) }
}

/// The softmax of which a value is all columns but the last, and how many these are.
fn unsunk(cx: &Rewriter, weights: ValueId) -> (ValueId, Option<Dim>) {
    let sliced = || {
        let (Op::Slice { axis, start, step: 1 }, &[whole]) = cx.def(weights)? else { return None };
        let (columns, all) = (cx.shape(weights).last()?, cx.shape(whole).last()?);
        let last = *axis + 1 == cx.shape(whole).len() && start.as_const() == Some(0);
        let but_one = *all == columns.clone() + Dim::from(1);
        (last && but_one).then(|| (bare(cx, whole), Some(columns.clone())))
    };
    sliced().unwrap_or((weights, None))
}

/// Scores of so many columns and the one behind them, of moderate size, of which a softmax is; also less the greatest of
/// each row.
fn with_sink(cx: &Rewriter, value: ValueId, columns: &Dim) -> Option<(ValueId, ValueId)> {
    let mut value = bare(cx, value);
    if let Some((Op::Binary(BinaryOp::Sub), &[x, most])) = cx.def(value)
        && let Some((Op::Reduce { op: Reduction::Max, axes, keep: true }, &[of])) = cx.def(bare(cx, most))
        && bare(cx, of) == bare(cx, x)
        && axes[..] == [cx.shape(of).len() - 1]
    {
        value = bare(cx, x);
    }
    let (Op::Concat { axis }, &[scores, sink]) = cx.def(value)? else { return None };
    let widths = [scores, sink].map(|v| cx.shape(v).last().cloned());
    let fits = *axis + 1 == cx.shape(value).len() && widths == [Some(columns.clone()), Some(Dim::from(1))];
    // What is the same in each row need not be there for each.
    let narrow = match cx.def(sink) {
        Some((Op::Expand, &[narrow])) => narrow,
        _ => sink,
    };
    (fits && additive::is_moderate(cx, sink)).then_some((scores, narrow))
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
