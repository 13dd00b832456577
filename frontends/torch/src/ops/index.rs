//! Reading by index: `index`, `embedding`, `gather` and similar ops.
//!
//! Negative indices of PyTorch's advanced indexing count from the end, which the IR does not support. An
//! index is therefore wrapped, unless the nodes that compute it show that it is never negative.

use symmc_import::{Emit, RuleCall, invalid, invalid_if, unsupported_if};
use symmc_ir::{BinaryOp, DType, Op, ValueId};

use super::{RuleRow, counted, row, row_of_results};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleResult};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("aten.embedding", "take", |c| {
        // These arguments only affect gradients.
        c.ignore(&["padding_idx", "scale_grad_by_freq", "sparse"]);
        let [w, ids] = c.tensors_named(["weight", "indices"])?;
        c.emit("take", Op::Take { axis: 0 }, &[w, ids])
    }),
    row_of_results("aten.index_select", "take", |c| {
        let [x, index] = c.tensors_named(["self", "index"])?;
        let axis = c.axis("dim", c.rank(x))?;
        let index = as_row(c, index)?;
        on_row(c, x, |c, x| c.emit("take", Op::Take { axis }, &[x, index]))
    }),
    row("aten.gather", "gather", |c| {
        c.ignore(&["sparse_grad"]);
        let [x, index] = c.tensors_named(["self", "index"])?;
        let axis = c.axis("dim", c.rank(x))?;
        let shape = c.shape(index);
        let x = as_row(c, x)?;
        let index = as_row(c, index)?;
        let y = c.emit("gather", Op::GatherElements { axis }, &[x, index])?;
        c.reshape(y, shape)
    }),
    row("aten.take_along_dim", "gather", |c| {
        let [x, index] = c.tensors_named(["self", "indices"])?;
        unsupported_if!(
            c.get("dim").is_none() || c.rank(x) != c.rank(index),
            "a flattened operand is not supported"
        );
        let axis = c.axis("dim", c.rank(x))?;
        c.emit("gather", Op::GatherElements { axis }, &[x, index])
    }),
    row("aten.take", "reshape, take", |c| {
        let [x, index] = c.tensors_named(["self", "index"])?;
        let flat = c.reshape(x, vec![c.ty(x).numel()])?;
        let index = c.wrap_index(index, flat, 0)?;
        c.emit("take", Op::Take { axis: 0 }, &[flat, index])
    }),
    row_of_results("aten.index.Tensor aten._unsafe_index", "take, index", index),
    row("aten.one_hot", "eq with an iota", |c| {
        let x = c.first_tensor()?;
        let classes = c.int_or("num_classes", -1)?;
        unsupported_if!(classes < 0, "the number of classes depends on data");
        let x = c.unsqueeze(x, c.rank(x))?;
        let class_ids = c.iota(classes.into(), 0, 1, c.dtype(x))?;
        let y = c.binary(BinaryOp::Eq, x, class_ids)?;
        c.cast(y, DType::I64)
    }),
];

/// A tensor without axes as a row of one element. PyTorch addresses it as if it had one axis.
pub(super) fn as_row(c: &mut OpCall<'_, '_>, x: ValueId) -> EmitResult {
    if c.rank(x) == 0 { c.reshape(x, vec![1.into()]) } else { Ok(x) }
}

/// Sets the result of `f`, which keeps the shape of its operand `x` or changes one extent. A tensor without
/// axes is passed to `f` as a row of one element, and the result loses that axis.
pub(super) fn on_row(
    c: &mut OpCall<'_, '_>,
    x: ValueId,
    f: impl FnOnce(&mut OpCall<'_, '_>, ValueId) -> EmitResult,
) -> RuleResult {
    let row = as_row(c, x)?;
    let mut y = f(c, row)?;
    if c.rank(x) == 0 {
        y = c.reshape(y, vec![])?;
    }
    c.set_only_result(y)
}

/// The operands of advanced indexing: `x` with the indexed axes next to each other, the first of these axes,
/// the indices, and the permutation that was applied to `x`.
pub(super) struct AdvancedIndexing {
    pub x: ValueId,
    pub axis: usize,
    pub indices: Vec<ValueId>,
    pub perm: Vec<usize>,
}

/// Resolves the list of optional indices. Indexed axes that are not adjacent move to the front, as in
/// PyTorch's result.
pub(super) fn resolve_indexing(c: &mut OpCall<'_, '_>, x: ValueId) -> RuleResult<AdvancedIndexing> {
    let list = c.opt_tensors("indices")?;
    let (x, list) = replace_masks(c, x, list)?;
    invalid_if!(list.len() > c.rank(x), "expected at most {} indices, found {}", c.rank(x), list.len());
    let mut axes = Vec::new();
    let mut indices = Vec::new();
    for (axis, index) in list.into_iter().enumerate() {
        let Some(index) = index else { continue };
        indices.push(c.wrap_index(index, x, axis)?);
        axes.push(axis);
    }
    let together = axes.windows(2).all(|w| w[0] + 1 == w[1]);
    let other_axes = (0..c.rank(x)).filter(|a| !axes.contains(a));
    let perm: Vec<usize> =
        if together { (0..c.rank(x)).collect() } else { axes.iter().copied().chain(other_axes).collect() };
    let axis = if together { axes.first().copied().unwrap_or(0) } else { 0 };
    let x = c.permute(x, perm.clone())?;
    Ok(AdvancedIndexing { x, axis, indices, perm })
}

/// Whether an index is a mask. PyTorch treats bytes as masks, too.
pub(super) fn is_mask(c: &OpCall<'_, '_>, index: ValueId) -> bool {
    matches!(c.dtype(index), DType::Bool | DType::U8)
}

/// Replaces masks by the positions of their true elements: a mask that is the only index by positions in its axes of `x`
/// as one axis, and others by positions in each of their axes.
fn replace_masks(
    c: &mut OpCall<'_, '_>,
    x: ValueId,
    list: Vec<Option<ValueId>>,
) -> RuleResult<(ValueId, Vec<Option<ValueId>>)> {
    if !list.iter().flatten().any(|index| is_mask(c, *index)) {
        return Ok((x, list));
    }
    let first = list.iter().position(Option::is_some).unwrap_or(0);
    let sizes = c.declared_sizes(0)?;
    if let &[mask] = list.iter().flatten().copied().collect::<Vec<_>>().as_slice() {
        let Some(length) = sizes.get(first) else {
            return invalid!("expected a result with an axis {first}");
        };
        let mut shape = c.shape(x);
        let masked_axes = first..first + c.rank(mask);
        invalid_if!(
            shape.get(masked_axes.clone()) != Some(&c.shape(mask)[..]),
            "expected a mask of {shape:?} from axis {first} on, found {:?}",
            c.shape(mask)
        );
        shape.splice(masked_axes, [c.ty(mask).numel()]);
        let x = c.reshape(x, shape)?;
        let mask = c.cast(mask, DType::Bool)?;
        let positions = counted::true_positions(c, mask, length)?;
        let mut list = vec![None; first];
        list.push(Some(positions));
        return Ok((x, list));
    }
    let is_index = |index: &&Option<ValueId>| index.is_none_or(|index| !is_mask(c, index));
    let index_rank =
        list.iter().filter(is_index).flatten().map(|index| c.rank(*index)).max().unwrap_or(0).max(1);
    let together = list.iter().skip_while(|i| i.is_none()).skip_while(|i| i.is_some()).all(|i| i.is_none());
    let axis = if together { first } else { 0 } + index_rank - 1;
    let Some(length) = sizes.get(axis).cloned() else {
        return invalid!("expected a result with an axis {axis}");
    };
    let mut replaced = Vec::new();
    for index in list {
        match index.filter(|index| is_mask(c, *index)) {
            Some(mask) => {
                unsupported_if!(
                    c.rank(mask) == 0,
                    "a mask without axes among other indices is not supported"
                );
                replaced.extend(counted::coordinates(c, mask, &length)?.into_iter().map(Some));
            }
            None => replaced.push(index),
        }
    }
    Ok((x, replaced))
}

fn index(c: &mut OpCall<'_, '_>) -> RuleResult {
    let x = c.first_tensor()?;
    let AdvancedIndexing { x, axis, indices, .. } = resolve_indexing(c, x)?;
    let y = match indices.as_slice() {
        [] => x,
        [one] => c.emit("take", Op::Take { axis }, &[x, *one])?,
        many => {
            let operands: Vec<ValueId> = [&[x], many].concat();
            c.emit("index", Op::Index { axis }, &operands)?
        }
    };
    c.set_only_result(y)
}
