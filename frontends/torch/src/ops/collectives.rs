//! Collectives: PyTorch's functional ones and its symmetric-memory ones, which compute the same values.
//!
//! `wait_tensor` vanishes, because the schedule decides when to wait. A coalesced call becomes one collective
//! for each of its tensors. The contents of work buffers after a symmetric-memory op are undefined. Groups
//! are named by strings; see [`crate::groups`] for their members.

use symmc_import::{Emit, RuleCall, invalid, invalid_if, unsupported};
use symmc_ir::{
    AllToAllSplits, BinaryOp, Collective, CollectiveKind, CollectiveReduceOp, Dim, GroupId, Op, Scalar,
    ValueId,
};

use super::elementwise::identity;
use super::{RuleRow, row, row_of_results};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleFailure, RuleResult};
use crate::operand_dtypes::dtype_failure;
use crate::per_rank::PerRankArgument;

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row_of_results(
        "_c10d_functional.all_reduce _c10d_functional.all_reduce_coalesced \
         _c10d_functional_autograd.all_reduce symm_mem.one_shot_all_reduce \
         symm_mem.multimem_one_shot_all_reduce",
        "all_reduce",
        |c| lower_each_tensor(c, all_reduce),
    ),
    row_of_results(
        "_c10d_functional.all_gather_into_tensor _c10d_functional.all_gather_into_tensor_coalesced \
         _c10d_functional_autograd.all_gather_into_tensor symm_mem._low_contention_all_gather \
         symm_mem._low_contention_all_gather_ce_multicast",
        "all_gather",
        |c| lower_each_tensor(c, all_gather),
    ),
    row_of_results(
        "_c10d_functional.reduce_scatter_tensor _c10d_functional.reduce_scatter_tensor_coalesced \
         _c10d_functional_autograd.reduce_scatter_tensor symm_mem._low_contention_reduce_scatter",
        "reduce_scatter",
        |c| lower_each_tensor(c, reduce_scatter),
    ),
    row_of_results("_c10d_functional.all_to_all_single", "all_to_all, permute_ranks", |c| {
        lower_each_tensor(c, all_to_all)
    }),
    row_of_results("_c10d_functional.broadcast", "broadcast", |c| {
        lower_each_tensor(c, |c, x| broadcast(c, x, "src"))
    }),
    row("_c10d_functional.wait_tensor _c10d_functional._wrap_tensor_autograd", "(identity)", identity),
    row_of_results("_c10d_functional.wait_tensors", "(identity)", |c| lower_each_tensor(c, |_, x| Ok(x))),
    row_of_results("_c10d_functional_autograd.all_to_all_single", "all_to_all", |c| {
        lower_each_tensor(c, all_to_all)
    }),
    row_of_results("_dtensor.shard_dim_alltoall", "reshape, permute, all_to_all", |c| {
        lower_each_tensor(c, shard_another_axis)
    }),
    row_of_results("symm_mem.fused_all_gather_matmul", "all_gather, matmul", all_gather_matmul),
    row("symm_mem.fused_matmul_reduce_scatter", "matmul, reduce_scatter", |c| {
        let [a, b] = c.tensors_named(["A", "B"])?;
        let y = c.numpy_matmul(a, b)?;
        let axis = c.axis("scatter_dim", c.rank(y))?;
        collective_along_axis(c, y, axis, reduce_scatter)
    }),
];

/// Ops that write and have no functional counterpart. Their results are results of the op, followed by the
/// new contents of what they write, in the order of their schemas. Undefined contents are left out.
pub(super) const WRITING_RULE_ROWS: &[RuleRow] = &[
    row_of_results("symm_mem.two_shot_all_reduce_ symm_mem.multimem_all_reduce_", "all_reduce", |c| {
        lower_each_tensor(c, all_reduce)
    }),
    row_of_results("symm_mem.multimem_all_gather_out", "all_gather", |c| lower_each_tensor(c, all_gather)),
    row_of_results("symm_mem.nvshmem_all_to_all", "all_to_all", |c| lower_each_tensor(c, all_to_all)),
    row_of_results("symm_mem.nvshmem_broadcast", "broadcast", |c| {
        lower_each_tensor(c, |c, x| broadcast(c, x, "root"))
    }),
    // The operand is reduced in place, in slices.
    row_of_results("symm_mem.two_shot_all_reduce_out", "all_reduce", |c| {
        let x = c.first_tensor()?;
        let y = all_reduce(c, x)?;
        c.set_result(1, y);
        Ok(())
    }),
    row_of_results("symm_mem.reduce_scatter_out", "reduce_scatter", |c| {
        let x = c.first_tensor()?;
        let axis = if c.bool_or("split_last_dim", false)? { c.rank(x).saturating_sub(1) } else { 0 };
        let y = collective_along_axis(c, x, axis, reduce_scatter)?;
        c.set_result(1, y);
        Ok(())
    }),
    // The symmetric buffer takes a copy of the operand. Only the sum is specified.
    row_of_results("symm_mem.one_shot_all_reduce_copy", "all_reduce", all_reduce_local_input),
    row_of_results("symm_mem.one_shot_all_reduce_copy_out", "all_reduce", all_reduce_local_input),
];

fn all_reduce_local_input(c: &mut OpCall<'_, '_>) -> RuleResult {
    let x = c.tensor("local_input")?;
    let y = all_reduce(c, x)?;
    c.set_only_result(y)
}

/// Applies a collective that works along axis 0 along another axis.
fn collective_along_axis(
    c: &mut OpCall<'_, '_>,
    x: ValueId,
    axis: usize,
    collective: fn(&mut OpCall<'_, '_>, ValueId) -> EmitResult,
) -> EmitResult {
    if axis == 0 {
        return collective(c, x);
    }
    let rank = c.rank(x);
    let front: Vec<usize> = std::iter::once(axis).chain((0..rank).filter(|a| *a != axis)).collect();
    let back: Vec<usize> = (1..=axis).chain(std::iter::once(0)).chain(axis + 1..rank).collect();
    let x = c.permute(x, front)?;
    let y = collective(c, x)?;
    c.permute(y, back)
}

/// The gathered left matrix, and its product with each of the right ones.
fn all_gather_matmul(c: &mut OpCall<'_, '_>) -> RuleResult {
    let a = c.tensor("A")?;
    let bs = c.tensors("Bs")?;
    let axis = c.axis("gather_dim", c.rank(a))?;
    let gathered = collective_along_axis(c, a, axis, all_gather)?;
    if c.bool_or("return_A", true)? {
        c.set_result(0, gathered);
    }
    for (i, b) in bs.into_iter().enumerate() {
        let y = c.numpy_matmul(gathered, b)?;
        c.set_result(i + 1, y);
    }
    Ok(())
}

/// Applies a collective to the first argument, which is a tensor or, in coalesced calls, a list of tensors.
fn lower_each_tensor(
    c: &mut OpCall<'_, '_>,
    lower: fn(&mut OpCall<'_, '_>, ValueId) -> EmitResult,
) -> RuleResult {
    let operands = match ["inputs", "tensors"].into_iter().find(|name| c.get(name).is_some()) {
        Some(name) => c.tensors(name)?,
        None => vec![c.first_tensor()?],
    };
    // The sizes of groups were compared with their members before any node was lowered.
    c.ignore(&["group_size"]);
    if operands.is_empty() {
        c.ignore_all();
    }
    for (i, x) in operands.into_iter().enumerate() {
        let y = lower(c, x)?;
        c.set_result(i, y);
    }
    Ok(())
}

/// The reduction of a collective of `x`. PyTorch has no mean of integers.
fn reduce_op(c: &OpCall<'_, '_>, x: ValueId) -> RuleResult<CollectiveReduceOp> {
    let dtype = c.dtype(x);
    Ok(match c.opt_string("reduce_op")? {
        None | Some("sum") => CollectiveReduceOp::Sum,
        Some("avg") if !dtype.is_float() => {
            let message = format!("expected a floating-point dtype for the reduction avg, found {dtype}");
            return Err(dtype_failure(c, message));
        }
        Some("avg") => CollectiveReduceOp::Avg,
        Some("max") => CollectiveReduceOp::Max,
        Some("min") => CollectiveReduceOp::Min,
        Some("product") => CollectiveReduceOp::Prod,
        Some(other) => {
            let expected = "expected the reduction sum, avg, max, min or product";
            return unsupported!("{expected}, found `{other}`");
        }
    })
}

pub(super) fn all_reduce(c: &mut OpCall<'_, '_>, x: ValueId) -> EmitResult {
    let op = reduce_op(c, x)?;
    let group = c.resolve_group()?;
    c.collective(CollectiveKind::AllReduce(op), group, x)
}

fn all_gather(c: &mut OpCall<'_, '_>, x: ValueId) -> EmitResult {
    let group = c.resolve_group()?;
    c.collective(CollectiveKind::AllGather, group, x)
}

pub(super) fn reduce_scatter(c: &mut OpCall<'_, '_>, x: ValueId) -> EmitResult {
    let op = reduce_op(c, x)?;
    let group = c.resolve_group()?;
    c.collective(CollectiveKind::ReduceScatter(op), group, x)
}

fn all_to_all(c: &mut OpCall<'_, '_>, x: ValueId) -> EmitResult {
    let group = c.resolve_group()?;
    if let (Some((by_rank, to)), Some((_, from))) =
        (c.lists_by_rank(INPUT_SPLITS), c.lists_by_rank(OUTPUT_SPLITS))
    {
        return lower_uneven_all_to_all(c, x, group, by_rank, to, from);
    }
    if c.has_data_size()? || c.packed_length(x, 0).is_some() {
        return exchange_by_data(c, x, group);
    }
    for name in [OUTPUT_SPLITS, INPUT_SPLITS] {
        let sizes = c.opt_dims(name)?.unwrap_or_default();
        invalid_if!(
            sizes.windows(2).any(|w| w[0] != w[1]),
            "expected equal {name}, found {sizes:?}: a program with unequal sizes fits one rank only, \
             and all ranks must run the same program"
        );
        let total = sizes.iter().cloned().reduce(|a, b| a + b);
        let rows = c.ty(x).shape.first().cloned();
        if let (Some(total), Some(rows)) = (total, rows) {
            let (low, high) = c.dim_bounds(&(total.clone() - rows.clone()));
            invalid_if!(
                low > 0 || high < 0,
                "expected {name} that add up to {rows:?} rows, found {total:?}: all ranks run the same program, so each \
                 has as many rows after the exchange as before it"
            );
            c.require_equal(name, &total, &rows)?;
        }
    }
    c.collective(CollectiveKind::AllToAll(AllToAllSplits::Even), group, x)
}

/// An exchange with split sizes that depend on data. Operand and result are as long as the longer of their
/// capacities, since a rank may receive more rows than it sends.
fn exchange_by_data(c: &mut OpCall<'_, '_>, x: ValueId, group: GroupId) -> EmitResult {
    let n = c.lowering.builder.graph().group_size(group);
    let n = n.ok_or_else(|| RuleFailure::Invalid("the number of ranks is not known".into()))?;
    let mut split_sizes = [Vec::new(), Vec::new()];
    for (sizes, name) in split_sizes.iter_mut().zip([INPUT_SPLITS, OUTPUT_SPLITS]) {
        *sizes = c.opt_sizes(name)?.unwrap_or_default();
        invalid_if!(
            sizes.len() != n as usize,
            "expected {n} {name}, one for each rank, next to sizes that depend on data, found {count}",
            count = sizes.len()
        );
    }
    let [sent, received] = split_sizes;
    if let Some(rows) = c.lowering.packed.rows(x).filter(|rows| rows.axis != 0) {
        return c.refuse_packed("it exchanges rows of another axis", &rows.length);
    }
    let total = |sizes: &[Dim]| sizes.iter().cloned().fold(Dim::from(0), |sum, size| sum + size);
    let rows = c.length(x, 0);
    let length = total(&received);
    let capacity = c.capacity(&length)?;
    let own = c.extent(x, 0);
    let longer = if c.lowering.symbols.data.provably_at_most(&capacity, &own) {
        own.clone()
    } else {
        own.max_with(&capacity).simplify_within(&c.lowering.symbols.table)
    };
    let mut splits = Vec::with_capacity(sent.len());
    for size in &sent {
        let size = c.emit_size(size)?;
        splits.push(c.reshape(size, vec![1.into()])?);
    }
    let mut splits = c.concat(&splits, 0)?;
    for (sum, limit, op) in
        [(total(&sent), rows, BinaryOp::Ne), (length.clone(), capacity.clone(), BinaryOp::Gt)]
    {
        splits = require_total(c, splits, (&sum, op, &limit))?;
    }
    let operand = if longer == own {
        x
    } else {
        let mut ty = c.ty(x).clone();
        ty.shape[0] = longer.clone();
        let low = vec![Dim::from(0); ty.rank()];
        let value = Scalar::Int(0).convert_to(ty.dtype);
        c.emit_plain("longer", Op::Pad { low, value }, &[x], Some(&[ty]))?[0]
    };
    let kind = CollectiveKind::AllToAll(AllToAllSplits::Device);
    let op = Op::Collective(Collective { kind, group, variant: None });
    let y = c.emit_plain("all_to_all", op, &[operand, splits], None)?[0];
    let y = if longer == capacity {
        y
    } else {
        let mut ty = c.ty(y).clone();
        ty.shape[0] = capacity;
        c.emit_plain("received", Op::Slice { axis: 0, start: 0.into(), step: 1 }, &[y], Some(&[ty]))?[0]
    };
    c.set_packed(y, 0, &length);
    Ok(y)
}

/// `splits`, with an error of the run if the sum of sizes violates its limit: other rows would be lost.
fn require_total(
    c: &mut OpCall<'_, '_>,
    splits: ValueId,
    (sum, violated, limit): (&Dim, BinaryOp, &Dim),
) -> EmitResult {
    let data = &c.lowering.symbols.data;
    let is_certain = if violated == BinaryOp::Ne { sum == limit } else { !data.depends_on_data(sum) };
    if is_certain {
        return Ok(splits);
    }
    let sum = c.emit_terms(sum)?;
    let limit = c.emit_terms(limit)?;
    let violated = c.binary(violated, sum, limit)?;
    let violated = c.emit_check(violated)?;
    let zero = c.reshape(violated, vec![1.into()])?;
    c.binary(BinaryOp::Add, splits, zero)
}

const INPUT_SPLITS: &str = "input_split_sizes";
const OUTPUT_SPLITS: &str = "output_split_sizes";

/// The number of rows that each rank exchanges with each other rank. Unknown numbers are `None`.
type SplitSizes = [Vec<Option<i64>>];

/// An exchange with split sizes that differ between ranks. If each rank sends all its rows to one other rank,
/// it is a permutation. Otherwise all ranks must have the same number of rows.
fn lower_uneven_all_to_all(
    c: &mut OpCall<'_, '_>,
    x: ValueId,
    group: GroupId,
    by_rank: &PerRankArgument,
    to: &SplitSizes,
    from: &SplitSizes,
) -> EmitResult {
    let cells = c.lowering.builder.graph().cells(group);
    let cells = cells.ok_or_else(|| RuleFailure::Invalid("the number of ranks is not known".into()))?;
    for cell in &cells {
        for (i, &sender) in cell.iter().enumerate() {
            for (j, &receiver) in cell.iter().enumerate() {
                let sent = rows_between(to, sender, j);
                let received = rows_between(from, receiver, i);
                invalid_if!(
                    sent.is_none() || sent != received,
                    "expected rank {receiver} to receive as many rows from rank {sender} as that rank sends, \
                     found {sent:?} sent and {received:?} received in {numbers}",
                    numbers = by_rank.numbers.describe()
                );
            }
        }
    }
    if let Some(pairs) = find_permutation(&cells, to) {
        return c.collective(CollectiveKind::Permute { pairs }, group, x);
    }
    let rows = c.ty(x).shape.first().and_then(Dim::as_const);
    let add_up = to.iter().chain(from).all(|list| {
        let total = list.iter().try_fold(0i64, |sum, rows| sum.checked_add((*rows)?));
        total.is_some() && total == rows
    });
    invalid_if!(
        !add_up,
        "expected known {INPUT_SPLITS} that add up to {rows:?} rows on each rank, found {numbers}",
        rows = c.ty(x).shape.first(),
        numbers = by_rank.numbers.describe()
    );
    let counts = c.per_rank_input(by_rank)?;
    let kind = CollectiveKind::AllToAll(AllToAllSplits::Device);
    let op = Op::Collective(Collective { kind, group, variant: None });
    match c.emit_all("all_to_all", op, &[x, counts])?.first() {
        Some(&y) => Ok(y),
        None => invalid!("expected a result, found none"),
    }
}

fn rows_between(splits: &SplitSizes, rank: u32, other: usize) -> Option<Option<i64>> {
    splits.get(rank as usize)?.get(other).copied()
}

/// The pairs of sender and receiver in each cell, if each rank sends all its rows to one rank.
fn find_permutation(cells: &[Vec<u32>], to: &SplitSizes) -> Option<Vec<(u32, u32)>> {
    let mut pairs_by_cell = cells.iter().map(|cell| {
        let pairs = cell.iter().enumerate().map(|(i, &rank)| Some((i as u32, single_receiver(to, rank)?)));
        pairs.collect::<Option<Vec<_>>>()
    });
    let first = pairs_by_cell.next()??;
    pairs_by_cell.all(|pairs| pairs.as_ref() == Some(&first)).then_some(first)
}

/// The number of the only rank to which a rank sends rows.
fn single_receiver(to: &SplitSizes, rank: u32) -> Option<u32> {
    let mut sent = to.get(rank as usize)?.iter().enumerate().filter(|(_, rows)| **rows != Some(0));
    let (receiver, _) = sent.next()?;
    sent.next().is_none().then_some(receiver as u32)
}

fn broadcast(c: &mut OpCall<'_, '_>, x: ValueId, source: &str) -> EmitResult {
    let group = c.resolve_group()?;
    let root = c.int(source)?;
    let root = u32::try_from(root)
        .map_err(|_| RuleFailure::Invalid(format!("expected a rank as `{source}`, found {root}")))?;
    c.collective(CollectiveKind::Broadcast { root }, group, x)
}

/// Converts a tensor that is sharded along `gather_dim` to one that is sharded along `shard_dim`.
fn shard_another_axis(c: &mut OpCall<'_, '_>, x: ValueId) -> EmitResult {
    let group = c.resolve_group()?;
    let rank = c.rank(x);
    let from = c.axis("gather_dim", rank)?;
    let shard_axis = c.axis("shard_dim", rank)?;
    let n = c.lowering.builder.graph().group_size(group);
    let n = n.ok_or_else(|| RuleFailure::Invalid("the number of ranks is not known".into()))?;
    let n = Dim::from(i64::from(n));
    let mut shape = c.shape(x);
    invalid_if!(shape.is_empty(), "expected an operand with an axis, found none");
    let piece = shape[shard_axis].exact_div(&n);
    shape[shard_axis] = piece.ok_or_else(|| {
        RuleFailure::Invalid(format!("expected {n:?} ranks to divide {:?}", shape[shard_axis]))
    })?;
    // The pieces are moved to axis 0, one for each rank.
    let mut split = shape.clone();
    split.insert(shard_axis, n.clone());
    let y = c.reshape(x, split)?;
    let front: Vec<usize> =
        std::iter::once(shard_axis).chain((0..=rank).filter(|a| *a != shard_axis)).collect();
    let y = c.permute(y, front)?;
    let y = c.collective(CollectiveKind::AllToAll(AllToAllSplits::Even), group, y)?;
    // The received pieces are concatenated along the axis that was sharded.
    let back: Vec<usize> = (1..=from).chain(std::iter::once(0)).chain(from + 1..=rank).collect();
    let y = c.permute(y, back)?;
    shape[from] = shape[from].clone() * n;
    c.reshape(y, shape)
}
