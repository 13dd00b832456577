//! Single elements of shards, at positions that are data.
//!
//! An element of an element-wise expression is the same expression of single elements, so only elements of
//! its operands are looked up or exchanged.

use symmc_ir::{AllToAllSplits, BinaryOp, CollectiveKind, DType, Dim, Op, Scalar, TensorType};

use super::gathered::GatheredValue;
use super::terms::{ShardTerms, TermId};

/// The largest 32-bit integer.
const MOST_NARROW: i64 = i32::MAX as i64;

/// The elements of a term at positions along an axis, on this rank.
pub fn pick_own(terms: &mut ShardTerms<'_>, x: TermId, index: TermId, axis: usize) -> Option<TermId> {
    let (leaf, steps) = element_wise_leaf(terms, x, axis);
    let found = terms.gather_elements(leaf, index, axis)?;
    replay(terms, &steps, leaf, found)
}

/// The elements of a gathered value at positions along its axis, whichever rank has them. With `same_index`,
/// all ranks look for the same positions.
///
/// Each rank looks up position `i mod extent` of its own shard, and then takes the result of rank `i /
/// extent`. Positions outside of the axis are an error of that second step.
pub fn pick_elements(
    terms: &mut ShardTerms<'_>,
    x: &GatheredValue,
    index: TermId,
    same_index: bool,
) -> Option<TermId> {
    let extent = x.shard_extent(terms).as_const().filter(|&s| s > 0)?;
    let mut picked = terms.shape(x.shard)[x.shard_axis() - x.axis..].to_vec();
    picked[x.axis].clone_from(terms.shape(index).get(x.axis)?);
    if picked != terms.shape(index) {
        return None;
    }
    let (owner, place) = owner_and_offset(terms, x, index, extent)?;
    let (leaf, steps) = if x.by_reader {
        // The other operands of its steps exist only for all readers together.
        (x.shard, Vec::new())
    } else {
        element_wise_leaf(terms, x.shard, x.axis)
    };
    let found = if same_index && !x.by_reader {
        let found = terms.gather_elements(leaf, place, x.axis)?;
        let found = terms.with_leading(found, 1);
        terms.all_gather(x.group, found)?
    } else {
        exchange(terms, x, leaf, place, extent)?
    };
    let owner = terms.with_leading(owner, 1);
    let chosen = terms.gather_elements(found, owner, 0)?;
    let shape = terms.shape(index).to_vec();
    let chosen = terms.reshape(chosen, shape);
    replay(terms, &steps, leaf, chosen)
}

/// The slices of a gathered value at positions along its axis, whichever rank has them: as
/// [`pick_elements`], for positions of any shape, whose axes replace the gathered axis.
pub fn take_slices(
    terms: &mut ShardTerms<'_>,
    x: &GatheredValue,
    index: TermId,
    same_index: bool,
) -> Option<TermId> {
    let extent = x.shard_extent(terms).as_const().filter(|&s| s > 0)?;
    if x.by_reader {
        return None;
    }
    let (owner, place) = owner_and_offset(terms, x, index, extent)?;
    let op = Op::Take { axis: x.axis };
    let found = if same_index {
        let found = terms.op(op, &[x.shard, place])?;
        let found = terms.with_leading(found, 1);
        terms.all_gather(x.group, found)?
    } else {
        let wanted = gather_offsets(terms, x, place, extent)?;
        let found = terms.op(op, &[x.shard, wanted])?;
        let found = terms.move_axis(found, x.axis, 0)?;
        terms.collective(CollectiveKind::AllToAll(AllToAllSplits::Even), x.group, found)?
    };
    // The owner of each slice, repeated for all its elements.
    let shape = terms.shape(found)[1..].to_vec();
    let axes = terms.shape(owner).len();
    let aligned = shape
        .iter()
        .enumerate()
        .map(|(a, extent)| if (x.axis..x.axis + axes).contains(&a) { extent.clone() } else { Dim::from(1) });
    let aligned = std::iter::once(Dim::from(1)).chain(aligned).collect();
    let owner = terms.reshape(owner, aligned);
    let all = std::iter::once(Dim::from(1)).chain(shape.iter().cloned()).collect();
    let owner = terms.expand(owner, all);
    let chosen = terms.gather_elements(found, owner, 0)?;
    Some(terms.reshape(chosen, shape))
}

/// The rank that has each position along the axis of a gathered value, and the position in its shard.
fn owner_and_offset(
    terms: &mut ShardTerms<'_>,
    x: &GatheredValue,
    index: TermId,
    extent: i64,
) -> Option<(TermId, TermId)> {
    let mut index = terms.cast(index, DType::I64);
    if let Some(window) = x.window {
        index = checked_index(terms, index, window.len)?;
        index = terms.with_number(BinaryOp::Add, index, window.start)?;
    }
    let owner = terms.with_number(BinaryOp::FloorDiv, index, extent)?;
    Some((owner, terms.with_number(BinaryOp::Rem, index, extent)?))
}

/// The positions in shards that all ranks look for, indexed by rank along a new leading axis.
fn gather_offsets(
    terms: &mut ShardTerms<'_>,
    x: &GatheredValue,
    place: TermId,
    extent: i64,
) -> Option<TermId> {
    let place = if extent <= MOST_NARROW { terms.cast(place, DType::I32) } else { place };
    let local = terms.with_leading(place, 1);
    terms.all_gather(x.group, local)
}

/// The elements that each rank has at this rank's positions, indexed by rank. Positions are gathered and
/// elements sent back.
fn exchange(
    terms: &mut ShardTerms<'_>,
    x: &GatheredValue,
    leaf: TermId,
    place: TermId,
    extent: i64,
) -> Option<TermId> {
    let wanted = gather_offsets(terms, x, place, extent)?;
    let for_each = if x.by_reader {
        leaf
    } else {
        let ranks = std::iter::once(Dim::from(x.ranks));
        let shape = ranks.chain(terms.shape(leaf).iter().cloned()).collect();
        terms.expand(leaf, shape)
    };
    let found = terms.gather_elements(for_each, wanted, x.axis + 1)?;
    terms.collective(CollectiveKind::AllToAll(AllToAllSplits::Even), x.group, found)
}

/// The innermost operand that varies along an axis, and the element-wise terms from it to `x`, in order.
fn element_wise_leaf(terms: &ShardTerms<'_>, x: TermId, axis: usize) -> (TermId, Vec<TermId>) {
    let mut leaf = x;
    let mut steps = Vec::new();
    while let Some(next) = varying_operand(terms, leaf, axis) {
        steps.push(leaf);
        leaf = next;
    }
    steps.reverse();
    (leaf, steps)
}

/// The single operand of an element-wise term that has its shape, if all others are broadcast along an axis.
fn varying_operand(terms: &ShardTerms<'_>, x: TermId, axis: usize) -> Option<TermId> {
    let (op, operands) = terms.def(x)?;
    let ty = terms.ty(x);
    if !op.is_element_wise() || op.divides_integers(ty.dtype) || ty.shape[axis].as_const() == Some(1) {
        return None;
    }
    let shapes: Vec<&[Dim]> = operands.iter().map(|&t| terms.shape(t)).collect();
    let axes = op.axes(&shapes, &[&ty.shape]);
    let varies = |k: &usize| axes.operand_axis(*k, axis).is_some();
    let mut varying = (0..operands.len()).filter(varies).map(|k| operands[k]);
    let first = varying.next()?;
    let is_only = varying.all(|t| t == first);
    (is_only && terms.shape(first) == ty.shape).then_some(first)
}

/// Applies the steps to the replacement of their leaf.
fn replay(terms: &mut ShardTerms<'_>, steps: &[TermId], leaf: TermId, found: TermId) -> Option<TermId> {
    let mut from = leaf;
    let mut to = found;
    for &step in steps {
        let (op, operands) = terms.def(step)?;
        let op = op.clone();
        let operands: Vec<TermId> = operands.iter().map(|&t| if t == from { to } else { t }).collect();
        to = match op {
            Op::Cast => {
                let dtype = terms.ty(step).dtype;
                terms.cast(to, dtype)
            }
            op => terms.op(op, &operands)?,
        };
        from = step;
    }
    Some(to)
}

/// The same positions, with a run-time error if one is not below `extent`.
fn checked_index(terms: &mut ShardTerms<'_>, index: TermId, extent: i64) -> Option<TermId> {
    let ty = TensorType::new(DType::I64, vec![Dim::from(extent)]);
    let zeros = terms.op_as(Op::Full(Scalar::Int(0)), &[], vec![ty]);
    let zero = terms.op(Op::Take { axis: 0 }, &[zeros, index])?;
    terms.binary(BinaryOp::Add, index, zero)
}
