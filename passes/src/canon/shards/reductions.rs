//! What reduces a gathered value along the axis of its shards: each rank reduces its shard, and the results are combined.

use symmc_ir::{ArgOp, BinaryOp, DType, Dim, Op, ReduceOp, Reduction, Scalar, Type, UnaryOp};

use super::gathered::Gathered;
use super::picks::pick_own;
use super::terms::{TermId, Terms};

/// Integers up to this one are exact in f32.
const EXACT_IN_F32: i64 = 1 << 24;
/// Integers up to this one are exact in f64.
const EXACT_IN_F64: i64 = 1 << 53;

/// A reduction over axes that include that of the shards; they stay with extent 1.
///
/// Sums and means are rounded to the dtype of the result once, as the whole reduction is: partial ones are f32 or wider.
pub fn reduce(terms: &mut Terms<'_>, x: &Gathered, op: Reduction, axes: &[usize]) -> Option<TermId> {
    if x.window.is_some() {
        return reduce_window(terms, x, op, axes);
    }
    let dtype = terms.ty(x.shard).dtype;
    let (shard, combine) = match op {
        Reduction::Max => (x.shard, ReduceOp::Max),
        Reduction::Min => (x.shard, ReduceOp::Min),
        Reduction::Any => (x.shard, ReduceOp::Max),
        Reduction::All => (x.shard, ReduceOp::Min),
        Reduction::Sum => (widened(terms, x.shard), ReduceOp::Sum),
        Reduction::Mean => (widened(terms, x.shard), ReduceOp::Avg),
        Reduction::Prod => return None,
    };
    let own = terms.reduce(op, axes, shard)?;
    if terms.ty(own).dtype == DType::Bool {
        // Collectives do not reduce bools.
        let own = terms.cast(own, DType::U8);
        let all = terms.all_reduce(combine, x.group, own)?;
        return Some(terms.cast(all, DType::Bool));
    }
    let all = terms.all_reduce(combine, x.group, own)?;
    Some(if dtype.is_float() && terms.ty(all).dtype.is_float() { terms.cast(all, dtype) } else { all })
}

/// A term in the dtype in which sums of its elements are kept.
fn widened(terms: &mut Terms<'_>, x: TermId) -> TermId {
    let dtype = terms.ty(x).dtype;
    if dtype.is_float() { terms.cast(x, dtype.wide()) } else { x }
}

/// [`reduce`] of a window: parts of shards are reduced, and those in the window combined.
fn reduce_window(terms: &mut Terms<'_>, x: &Gathered, op: Reduction, axes: &[usize]) -> Option<TermId> {
    let dtype = terms.ty(x.shard).dtype;
    let segments = x.segments(terms)?;
    let (shard, partial) = match op {
        Reduction::Sum | Reduction::Mean => (widened(terms, x.shard), Reduction::Sum),
        Reduction::Prod => return None,
        _ => (x.shard, op),
    };
    let mut parts = Vec::with_capacity(segments.parts.len());
    for &(start, len) in &segments.parts {
        let part = terms.slice(shard, x.axis, start, len);
        let part = terms.reduce(partial, axes, part)?;
        parts.push(terms.with_leading(part, 1));
    }
    let own = terms.concat(0, &parts)?;
    let all = terms.all_gather(x.group, own)?;
    let all = terms.slice(all, 0, segments.before, segments.count);
    let mut found = terms.op(Op::Reduce { op: partial, axes: vec![0], keep: false }, &[all])?;
    if op == Reduction::Mean {
        let others = axes.iter().filter(|&&a| a != x.axis);
        let others = others.map(|&a| terms.shape(x.shard)[a].as_const());
        let count = others.chain([x.window.map(|w| w.len)]).try_fold(1i64, |n, d| n.checked_mul(d?))?;
        let scalar = Scalar::Float(symmc_ir::Float(count as f64));
        found = terms.op(Op::BinaryScalar { op: BinaryOp::Div, scalar, scalar_left: false }, &[found])?;
    }
    Some(if dtype.is_float() && terms.ty(found).dtype.is_float() { terms.cast(found, dtype) } else { found })
}

/// The position of the largest or smallest element along the axis of the shards, which stays with extent 1: the first of equals and
/// the first NaN, since ranks and the parts of their shards are compared in the order of the axis.
pub fn arg_reduce(terms: &mut Terms<'_>, x: &Gathered, op: ArgOp) -> Option<TermId> {
    let extent = x.extent(terms).as_const()?;
    let segments = x.segments(terms)?;
    let wire = packed_dtype(terms.ty(x.shard).dtype, extent)?;
    let mut parts = Vec::with_capacity(segments.parts.len());
    for &(start, len) in &segments.parts {
        let part = terms.slice(x.shard, x.axis, start, len);
        let place = terms.arg_reduce(op, x.axis, part)?;
        let place = terms.with_number(BinaryOp::Add, place, start)?;
        let value = pick_own(terms, x.shard, place, x.axis)?;
        parts.push(pack(terms, value, place, wire)?);
    }
    let own = terms.concat(0, &parts)?;
    let all = terms.all_gather(x.group, own)?;
    let all = terms.slice(all, 0, segments.before, segments.count);
    let [values, places] = [0, 1].map(|i| terms.slice(all, 1, i, 1));
    let best = terms.arg_reduce(op, 0, values)?;
    let place = terms.gather_elements(places, best, 0)?;
    let place = terms.cast(place, DType::I64);
    let part = terms.with_number(BinaryOp::Add, best, segments.before)?;
    let rank = terms.with_number(BinaryOp::FloorDiv, part, segments.parts.len() as i64)?;
    let found = global(terms, x, rank, place, extent)?;
    let shape = terms.shape(found)[2..].to_vec();
    Some(terms.reshape(found, shape))
}

/// The position in a gathered value of a position in the shard of a rank.
fn global(terms: &mut Terms<'_>, x: &Gathered, rank: TermId, place: TermId, extent: i64) -> Option<TermId> {
    let first = terms.with_number(BinaryOp::Mul, rank, extent)?;
    let found = terms.binary(BinaryOp::Add, first, place)?;
    terms.with_number(BinaryOp::Sub, found, x.window.map_or(0, |w| w.start))
}

/// The dtype in which values of a dtype and positions below `extent` are both exact.
fn packed_dtype(dtype: DType, extent: i64) -> Option<DType> {
    match dtype {
        DType::F16 | DType::BF16 | DType::F32 if extent <= EXACT_IN_F32 => Some(DType::F32),
        dtype if dtype.is_float() => (extent <= EXACT_IN_F64).then_some(DType::F64),
        _ => Some(DType::I64),
    }
}

/// Values and positions of one shape `[..]` as `[1, 2, ..]`.
fn pack(terms: &mut Terms<'_>, values: TermId, places: TermId, dtype: DType) -> Option<TermId> {
    let [values, places] = [values, places].map(|t| {
        let t = terms.cast(t, dtype);
        terms.with_leading(t, 2)
    });
    terms.concat(1, &[values, places])
}

/// The first elements in sorted order along the axis of the shards and their positions, of the type that the values have.
pub fn top_k(terms: &mut Terms<'_>, x: &Gathered, largest: bool, ty: &Type) -> Option<[TermId; 2]> {
    let extent = x.extent(terms).as_const()?;
    let segments = x.segments(terms)?;
    let wire = packed_dtype(ty.dtype, extent)?;
    let axis = x.axis;
    let op = Op::TopK { axis, largest };
    let k = ty.shape[axis].as_const()?;
    let top = |terms: &mut Terms<'_>, x: TermId, k: i64| {
        let mut ty = terms.ty(x).clone();
        ty.shape[axis] = Dim::from(k);
        let places = Type::new(DType::I64, ty.shape.clone());
        let values = terms.op_as(op.clone(), &[x], vec![ty, places]);
        [values, terms.result(values, 1)]
    };
    let mut parts = Vec::with_capacity(segments.parts.len());
    let taken: Vec<i64> = segments.parts.iter().map(|&(_, len)| len.min(k)).collect();
    for (&(start, len), &k) in segments.parts.iter().zip(&taken) {
        let part = terms.slice(x.shard, axis, start, len);
        let [values, places] = top(terms, part, k);
        let places = terms.with_number(BinaryOp::Add, places, start)?;
        parts.push(pack(terms, values, places, wire)?);
    }
    let own = terms.concat(axis + 2, &parts)?;
    let all = terms.all_gather(x.group, own)?;
    // How many candidates stand before the window, and how many are in it.
    let candidates = |parts: i64| -> i64 { (0..parts).map(|i| taken[i as usize % taken.len()]).sum() };
    let before = candidates(segments.before);
    let count = candidates(segments.before + segments.count) - before;
    let each: i64 = taken.iter().sum();
    let mut in_order = |i: i64| {
        let one = terms.slice(all, 1, i, 1);
        let mut shape = terms.shape(one).to_vec();
        shape.remove(1);
        let one = terms.reshape(one, shape);
        let by_rank = terms.move_axis(one, 0, axis)?;
        let mut shape = terms.shape(by_rank).to_vec();
        shape.remove(axis);
        shape[axis] = Dim::from(each * x.ranks);
        let flat = terms.reshape(by_rank, shape);
        Some(terms.slice(flat, axis, before, count))
    };
    let (values, places) = (in_order(0)?, in_order(1)?);
    let [values, chosen] = top(terms, values, k);
    let place = terms.gather_elements(places, chosen, axis)?;
    let place = terms.cast(place, DType::I64);
    let candidate = terms.with_number(BinaryOp::Add, chosen, before)?;
    let rank = terms.with_number(BinaryOp::FloorDiv, candidate, each)?;
    Some([terms.cast(values, ty.dtype), global(terms, x, rank, place, extent)?])
}

/// The shard of a softmax along the axis of the shards: maxima are exact, and the sum of exponentials is f32 or wider.
pub fn softmax(terms: &mut Terms<'_>, x: &Gathered, log: bool) -> Option<TermId> {
    let dtype = terms.ty(x.shard).dtype;
    let most = reduce(terms, x, Reduction::Max, &[x.axis])?;
    let [own, most] = [x.shard, most].map(|t| terms.cast(t, dtype.wide()));
    let shifted = terms.binary(BinaryOp::Sub, own, most)?;
    let weights = terms.unary(UnaryOp::Exp, shifted)?;
    let sum = reduce(terms, &Gathered { shard: weights, ..x.clone() }, Reduction::Sum, &[x.axis])?;
    let found = if log {
        let sum = terms.unary(UnaryOp::Log, sum)?;
        terms.binary(BinaryOp::Sub, shifted, sum)?
    } else {
        terms.binary(BinaryOp::Div, weights, sum)?
    };
    Some(terms.cast(found, dtype))
}
