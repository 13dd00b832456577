//! Reductions of a gathered value along the axis of its shards: each rank reduces its shard, and the results
//! are combined.

use symmc_ir::{
    ArgOp, BinaryOp, CollectiveKind, CollectiveReduceOp, DType, Dim, FloatAttribute, Op, ReductionKind,
    Scalar, TensorType, UnaryOp,
};

use super::gathered::{GatheredValue, WindowSegments};
use super::picks::pick_own;
use super::terms::{ShardTerms, TermId};

/// A reduction over axes that include the axis of the shards.
#[derive(Clone, Copy, Debug)]
pub struct ReduceParams<'a> {
    pub op: ReductionKind,
    pub axes: &'a [usize],
    /// Whether the reduced axes stay, with extent 1.
    pub keep: bool,
}

impl ReduceParams<'_> {
    fn local_op(&self, x: &GatheredValue, op: ReductionKind) -> Op {
        let added = x.shard_axis() - x.axis;
        Op::Reduce { op, axes: self.axes.iter().map(|a| a + added).collect(), keep: self.keep }
    }
}

/// Reduces over axes that include the axis of the shards.
///
/// Sums and means are rounded to the dtype of the result once, as in the whole reduction, because partial
/// ones are f32 or wider.
pub fn reduce(terms: &mut ShardTerms<'_>, x: &GatheredValue, params: ReduceParams<'_>) -> Option<TermId> {
    let dtype = terms.ty(x.shard).dtype;
    let (shard, partial, combine) = match params.op {
        ReductionKind::Max => (skip_widening(terms, x.shard), ReductionKind::Max, CollectiveReduceOp::Max),
        ReductionKind::Min => (skip_widening(terms, x.shard), ReductionKind::Min, CollectiveReduceOp::Min),
        ReductionKind::Any => (x.shard, ReductionKind::Any, CollectiveReduceOp::Max),
        ReductionKind::All => (x.shard, ReductionKind::All, CollectiveReduceOp::Min),
        ReductionKind::Sum => (widen_for_sum(terms, x.shard), ReductionKind::Sum, CollectiveReduceOp::Sum),
        ReductionKind::Mean if x.window.is_some() => {
            (widen_for_sum(terms, x.shard), ReductionKind::Sum, CollectiveReduceOp::Sum)
        }
        ReductionKind::Mean => (widen_for_sum(terms, x.shard), ReductionKind::Mean, CollectiveReduceOp::Avg),
        ReductionKind::Prod => return None,
    };
    let found = if x.window.is_some() {
        reduce_window(terms, &GatheredValue { shard, ..x.clone() }, ReduceParams { op: partial, ..params })?
    } else {
        let reduced = terms.op(params.local_op(x, partial), &[shard])?;
        let is_order = matches!(params.op, ReductionKind::Max | ReductionKind::Min);
        let reduced = if is_order { terms.cast(reduced, dtype) } else { reduced };
        // Collectives do not reduce bools.
        let is_bool = terms.ty(reduced).dtype == DType::Bool;
        let reduced = if is_bool { terms.cast(reduced, DType::U8) } else { reduced };
        let all = combine_ranks(terms, x, combine, reduced)?;
        if is_bool { terms.cast(all, DType::Bool) } else { all }
    };
    let found = match (params.op, x.window) {
        (ReductionKind::Mean, Some(window)) => {
            let others = params.axes.iter().filter(|&&a| a != x.axis);
            let shape = &terms.shape(x.shard)[x.shard_axis() - x.axis..];
            let others = others.map(|&a| shape[a].as_const());
            let count = others.chain([Some(window.len)]).try_fold(1i64, |n, d| n.checked_mul(d?))?;
            let scalar = Scalar::Float(FloatAttribute(count as f64));
            terms.op(Op::BinaryScalar { op: BinaryOp::Div, scalar, scalar_left: false }, &[found])?
        }
        _ => found,
    };
    let is_float = dtype.is_float() && terms.ty(found).dtype.is_float();
    Some(if is_float { terms.cast(found, dtype) } else { found })
}

/// Combines the ranks' partial results for this rank.
fn combine_ranks(
    terms: &mut ShardTerms<'_>,
    x: &GatheredValue,
    op: CollectiveReduceOp,
    partial: TermId,
) -> Option<TermId> {
    if !x.by_reader {
        return terms.all_reduce(op, x.group, partial);
    }
    let found = terms.collective(CollectiveKind::ReduceScatter(op), x.group, partial)?;
    let shape = terms.shape(found)[1..].to_vec();
    Some(terms.reshape(found, shape))
}

/// Casts a term to the dtype in which sums of its elements accumulate.
fn widen_for_sum(terms: &mut ShardTerms<'_>, x: TermId) -> TermId {
    let dtype = terms.ty(x).dtype;
    if dtype.is_float() { terms.cast(x, dtype.compute_dtype()) } else { x }
}

/// The operand of a cast to a wider float, which has the same order, or the term itself.
fn skip_widening(terms: &ShardTerms<'_>, x: TermId) -> TermId {
    match terms.def(x) {
        Some((Op::Cast, &[narrow])) => {
            let [from, to] = [narrow, x].map(|t| terms.ty(t).dtype);
            if from.is_float() && to.is_float() && from.size() < to.size() { narrow } else { x }
        }
        _ => x,
    }
}

/// Reduces a window: reduces parts of shards, then combines those in the window.
fn reduce_window(terms: &mut ShardTerms<'_>, x: &GatheredValue, params: ReduceParams<'_>) -> Option<TermId> {
    let segments = x.segments(terms)?;
    let mut found = Vec::with_capacity(segments.parts.len());
    for &(start, len) in &segments.parts {
        let part = terms.slice(x.shard, x.shard_axis(), start, len);
        let partial = terms.op(params.local_op(x, params.op), &[part])?;
        found.push(x.collect_from_ranks(partial, terms)?);
    }
    let all = segments.in_order(&found, terms)?;
    terms.op(Op::Reduce { op: params.op, axes: vec![0], keep: false }, &[all])
}

/// The most ranks whose results are compared one by one. A chain of comparisons is one kernel, while an
/// arg-reduction over ranks is several.
const MOST_COMPARED: usize = 8;

/// The largest or smallest element along an axis and its position.
#[derive(Clone, Copy, Debug)]
pub struct BestElement {
    pub value: TermId,
    pub place: TermId,
}

/// The largest or smallest element along the axis of the shards and its position, as terms of this shape.
/// The first of equal elements and the first NaN win, because ranks are compared in the order of the axis.
pub fn arg_reduce(
    terms: &mut ShardTerms<'_>,
    x: &GatheredValue,
    op: ArgOp,
    shape: &[Dim],
) -> Option<BestElement> {
    let extent = x.shard_extent(terms).as_const()?;
    let segments = x.segments(terms)?;
    let mut values = Vec::new();
    let mut places = Vec::new();
    for &(start, len) in &segments.parts {
        let part = terms.slice(x.shard, x.shard_axis(), start, len);
        let place = terms.arg_reduce(op, x.shard_axis(), part)?;
        let place = terms.with_number(BinaryOp::Add, place, start)?;
        let value = pick_own(terms, x.shard, place, x.shard_axis())?;
        // Positions are available first. A step that waits for the values then waits for both, and is one
        // step.
        places.push(x.collect_from_ranks(place, terms)?);
        values.push(x.collect_from_ranks(value, terms)?);
    }
    if segments.of_ranks.len() <= MOST_COMPARED {
        return compare_ranks(terms, x, op, &segments, [&values, &places], shape);
    }
    let values = segments.in_order(&values, terms)?;
    let places = segments.in_order(&places, terms)?;
    let best = terms.arg_reduce(op, 0, values)?;
    let [value, place] = [values, places].map(|all| terms.gather_elements(all, best, 0));
    let rank = terms.with_number(BinaryOp::Add, best, segments.first_rank)?;
    let place = global_position(terms, x, rank, place?, extent)?;
    let [value, place] = [value?, place].map(|t| terms.reshape(t, shape.to_vec()));
    Some(BestElement { value, place })
}

/// The best of the values that ranks found in each part and its position, compared from the last rank to the
/// first.
fn compare_ranks(
    terms: &mut ShardTerms<'_>,
    x: &GatheredValue,
    op: ArgOp,
    segments: &WindowSegments,
    [values, places]: [&[TermId]; 2],
    shape: &[Dim],
) -> Option<BestElement> {
    let extent = x.shard_extent(terms).as_const()?;
    let (is_better, better) = match op {
        ArgOp::Max => (BinaryOp::Ge, BinaryOp::Max),
        ArgOp::Min => (BinaryOp::Le, BinaryOp::Min),
    };
    let mut best: Option<BestElement> = None;
    for (i, &part) in segments.of_ranks.iter().enumerate().rev() {
        let rank = segments.first_rank + i as i64;
        let [value, place] = [values, places].map(|found| {
            let of_rank = terms.slice(found[part], 0, rank, 1);
            terms.reshape(of_rank, shape.to_vec())
        });
        let first = rank * extent - x.window.map_or(0, |w| w.start);
        let place = terms.with_number(BinaryOp::Add, place, first)?;
        best = Some(match best {
            None => BestElement { value, place },
            Some(last) => {
                let mut wins = terms.binary(is_better, value, last.value)?;
                if terms.ty(value).dtype.is_float() {
                    let is_nan = terms.unary(UnaryOp::IsNan, value)?;
                    wins = terms.binary(BinaryOp::Or, wins, is_nan)?;
                }
                let place = terms.op(Op::Select, &[wins, place, last.place])?;
                BestElement { value: terms.binary(better, value, last.value)?, place }
            }
        });
    }
    best
}

/// The position in a gathered value of a position in the shard of a rank.
fn global_position(
    terms: &mut ShardTerms<'_>,
    x: &GatheredValue,
    rank: TermId,
    place: TermId,
    extent: i64,
) -> Option<TermId> {
    let first = terms.with_number(BinaryOp::Mul, rank, extent)?;
    let found = terms.binary(BinaryOp::Add, first, place)?;
    terms.with_number(BinaryOp::Sub, found, x.window.map_or(0, |w| w.start))
}

/// The first `k` elements in sorted order along an axis, and their positions.
fn first_sorted(terms: &mut ShardTerms<'_>, x: TermId, axis: usize, largest: bool, k: i64) -> [TermId; 2] {
    let mut ty = terms.ty(x).clone();
    ty.shape[axis] = Dim::from(k);
    let places = TensorType::new(DType::I64, ty.shape.clone());
    let values = terms.op_as(Op::TopK { axis, largest }, &[x], vec![ty, places]);
    [values, terms.result(values, 1)]
}

/// The first `k` elements in sorted order along the axis of the shards and their positions.
pub fn top_k(terms: &mut ShardTerms<'_>, x: &GatheredValue, largest: bool, k: i64) -> Option<[TermId; 2]> {
    let extent = x.shard_extent(terms).as_const()?;
    let segments = x.segments(terms)?;
    let each = extent.min(k);
    if segments.parts.iter().any(|&(_, len)| len < each) {
        return None;
    }
    let mut values = Vec::new();
    let mut places = Vec::new();
    for &(start, len) in &segments.parts {
        let part = terms.slice(x.shard, x.shard_axis(), start, len);
        let [value, place] = first_sorted(terms, part, x.shard_axis(), largest, each);
        let place = terms.with_number(BinaryOp::Add, place, start)?;
        places.push(x.collect_from_ranks(place, terms)?);
        values.push(x.collect_from_ranks(value, terms)?);
    }
    let values = concat_candidates(terms, &segments, &values, x.axis, each)?;
    let places = concat_candidates(terms, &segments, &places, x.axis, each)?;
    let [values, chosen] = first_sorted(terms, values, x.axis, largest, k);
    let place = terms.gather_elements(places, chosen, x.axis)?;
    let rank = terms.with_number(BinaryOp::FloorDiv, chosen, each)?;
    let rank = terms.with_number(BinaryOp::Add, rank, segments.first_rank)?;
    Some([values, global_position(terms, x, rank, place, extent)?])
}

/// Concatenates the candidates of all ranks, `each` of every rank, along an axis.
fn concat_candidates(
    terms: &mut ShardTerms<'_>,
    segments: &WindowSegments,
    found: &[TermId],
    axis: usize,
    each: i64,
) -> Option<TermId> {
    let all = segments.in_order(found, terms)?;
    let mut shape = terms.shape(all)[1..].to_vec();
    shape[axis] = Dim::from(each * segments.of_ranks.len() as i64);
    let by_rank = terms.move_axis(all, 0, axis)?;
    Some(terms.reshape(by_rank, shape))
}

/// The shard of a softmax along the axis of the shards. Maxima are exact, and the sum of exponentials is f32
/// or wider.
pub fn softmax(terms: &mut ShardTerms<'_>, x: &GatheredValue, log: bool) -> Option<TermId> {
    let dtype = terms.ty(x.shard).dtype;
    let x = x.to_all_readers();
    let axes = [x.axis];
    let accumulated = terms.cast(x.shard, dtype.compute_dtype());
    let max = ReduceParams { op: ReductionKind::Max, axes: &axes, keep: true };
    let most = reduce(terms, &GatheredValue { shard: accumulated, ..x.clone() }, max)?;
    let shifted = terms.binary(BinaryOp::Sub, accumulated, most)?;
    let weights = terms.unary(UnaryOp::Exp, shifted)?;
    let sum = ReduceParams { op: ReductionKind::Sum, ..max };
    let sum = reduce(terms, &GatheredValue { shard: weights, ..x.clone() }, sum)?;
    let found = if log {
        let sum = terms.unary(UnaryOp::Log, sum)?;
        terms.binary(BinaryOp::Sub, shifted, sum)?
    } else {
        terms.binary(BinaryOp::Div, weights, sum)?
    };
    Some(terms.cast(found, dtype))
}
