//! Symmetric-memory exchanges whose sizes are tensors, reductions to roots, and sends between pairs of ranks.
//!
//! Sizes are gathered from all ranks, so that each rank computes where each row comes from. What PyTorch leaves
//! as it was in the tensors that these ops write, such as the rows after the last received one, is zero.

use symmc_import::{Emit, EmitFormulas, RuleCall, invalid, invalid_if, unsupported, unsupported_if};
use symmc_ir::{
    AllToAllSplits, BinaryOp, Collective, CollectiveKind, DType, Dim, GroupId, Op, ReductionKind, Scalar,
    TensorType, ValueId,
};

use super::collectives::{all_reduce, reduce_scatter};
use super::{RuleRow, row_of_results};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleFailure, RuleResult, Term};
use crate::per_rank::PerRankNumbers;
use crate::schema::Argument;

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row_of_results("_c10d_functional.batch_p2p_ops", "permute_ranks", batch_of_sends),
    row_of_results("_c10d_functional.isend _c10d_functional.irecv", "(refused by name)", one_send),
];

pub(super) const WRITING_RULE_ROWS: &[RuleRow] = &[
    row_of_results("symm_mem.all_to_all_vdev", "all_to_all", exchange_by_rank),
    row_of_results("symm_mem.all_to_all_vdev_2d", "all_gather, dispatch_rows", exchange_to_experts),
    row_of_results("symm_mem.all_to_all_vdev_2d_offset", "all_gather, combine_rows", exchange_from_experts),
    row_of_results("symm_mem.tile_reduce", "all_reduce, select", |c| {
        let tile = c.tensor("in_tile")?;
        let root = c.int("root")?;
        reduce_to_roots(c, &[tile], &[root])
    }),
    row_of_results("symm_mem.multi_root_tile_reduce", "reduce_scatter, or all_reduce, select", |c| {
        let tiles = c.tensors("in_tiles")?;
        let roots = c.opt_ints("roots")?.unwrap_or_default();
        reduce_to_roots(c, &tiles, &roots)
    }),
    row_of_results("symm_mem.nccl_reduce_scatter_offset", "slice, reduce_scatter", reduce_blocks),
    row_of_results(
        "symm_mem.nccl_all_to_all_nd symm_mem.nccl_all_to_all_permute",
        "permute, all_to_all",
        exchange_axes,
    ),
];

/// The group of a call with its number of ranks, which must be known.
fn known_group(c: &OpCall<'_, '_>) -> RuleResult<(GroupId, i64)> {
    let group = c.resolve_group()?;
    let n = c.lowering.builder.graph().group_size(group);
    let n = n.ok_or_else(|| RuleFailure::Invalid("the number of ranks is not known".into()))?;
    Ok((group, n.into()))
}

fn fixed_extent(c: &OpCall<'_, '_>, x: ValueId, axis: usize, what: &str) -> RuleResult<i64> {
    let extent = c.extent(x, axis);
    let fixed = extent.as_const();
    fixed.ok_or_else(|| RuleFailure::Invalid(format!("expected a fixed number of {what}, found {extent:?}")))
}

fn collective(
    c: &mut OpCall<'_, '_>,
    kind: CollectiveKind,
    group: GroupId,
    inputs: &[ValueId],
    ty: TensorType,
) -> EmitResult {
    c.emit_as(kind.name(), Op::Collective(Collective { kind, group, variant: None }), inputs, ty)
}

/// The sums of the elements before each one along an axis.
fn sums_before(x: Term<'_>, axis: usize) -> Term<'_> {
    x.cumulative_sum(axis) - x
}

/// The number of elements along the last axis for which `x >= y`.
fn count_reached<'f>(x: Term<'f>, y: Term<'f>) -> Term<'f> {
    let matches = x.ge(y).cast(DType::I64);
    matches.sum(&[matches.rank().saturating_sub(1)], false)
}

/// This rank's element of axis 0, which has one for each rank.
fn of_this_rank(c: &mut OpCall<'_, '_>, x: ValueId, group: GroupId) -> EmitResult {
    let own = c.emit("shard", Op::Shard { axis: 0, group }, &[x])?;
    let shape = c.shape(own)[1..].to_vec();
    c.reshape(own, shape)
}

/// The numbers of the ranks of the group, times a factor, along an axis of `rank` axes.
fn ranks_along(c: &mut OpCall<'_, '_>, n: i64, factor: i64, axis: usize, rank: usize) -> EmitResult {
    let numbers = c.iota(n.into(), 0, factor, DType::I64)?;
    let mut shape = vec![Dim::from(1); rank];
    shape[axis] = n.into();
    c.reshape(numbers, shape)
}

/// `x`, with an error of the run if any element of `counts` is negative or beyond `limit`. The error names the node
/// `what`, that element as the index, and `limit + 1` as the extent.
fn check_counts(c: &mut OpCall<'_, '_>, what: &str, x: ValueId, counts: ValueId, limit: i64) -> EmitResult {
    let axes: Vec<usize> = (0..c.rank(counts)).collect();
    let count = c.formula([counts], |[counts]| {
        let max = counts.reduce(ReductionKind::Max, &axes, false);
        let min = counts.reduce(ReductionKind::Min, &axes, false);
        min.lt(0).select(min, max)
    })?;
    let zeros = c.full(Scalar::Int(0), DType::I64, vec![(limit + 1).into()])?;
    let zero = c.emit(what, Op::Take { axis: 0 }, &[zeros, count])?;
    c.binary(BinaryOp::Add, x, zero)
}

/// Split sizes, and offsets, are `i64`, as PyTorch's kernels require.
fn expect_sizes(c: &OpCall<'_, '_>, name: &str, sizes: ValueId) -> RuleResult {
    match c.dtype(sizes) {
        DType::I64 => Ok(()),
        found => invalid!("expected i64 as `{name}`, found {found}"),
    }
}

/// A written tensor has the dtype of the operand.
fn expect_same_dtype(c: &OpCall<'_, '_>, x: ValueId, out: ValueId) -> RuleResult {
    if c.dtype(x) == c.dtype(out) {
        return Ok(());
    }
    invalid!("expected a result of the operand's dtype {}, found {}", c.dtype(x), c.dtype(out))
}

/// A written tensor has the dtype of the operand, and rows of the same shape.
fn expect_same_rows(c: &OpCall<'_, '_>, x: ValueId, out: ValueId) -> RuleResult {
    expect_same_dtype(c, x, out)?;
    let rows = |v: ValueId| c.shape(v).get(1..).map(<[Dim]>::to_vec);
    if rows(x).is_some() && rows(x) == rows(out) {
        return Ok(());
    }
    let ty = |v: ValueId| c.lowering.display_type(c.ty(v));
    invalid!("expected a result with rows like those of the operand {}, found {}", ty(x), ty(out))
}

/// A written tensor has the type of the operand.
fn expect_same_type(c: &OpCall<'_, '_>, x: ValueId, out: ValueId) -> RuleResult {
    if c.ty(x) == c.ty(out) {
        return Ok(());
    }
    let ty = |v: ValueId| c.lowering.display_type(c.ty(v));
    invalid!("expected a result of the operand's type {}, found {}", ty(x), ty(out))
}

/// The split sizes with the offsets, as one tensor of two rows.
fn with_offsets(c: &mut OpCall<'_, '_>, sizes: ValueId, offsets: ValueId) -> EmitResult {
    let flat = vec![Dim::from(1), c.ty(sizes).numel()];
    c.formula([sizes, offsets], |[sizes, offsets]| {
        sizes.reshape(flat.clone()).concat(offsets.reshape(flat), 0)
    })
}

/// Rows to the ranks that the sizes say, packed in the order of the ranks.
fn exchange_by_rank(c: &mut OpCall<'_, '_>) -> RuleResult {
    let (group, _) = known_group(c)?;
    let [x, out] = c.tensors_named(["input", "out"])?;
    let mut sizes = c.tensor("in_splits")?;
    expect_sizes(c, "in_splits", sizes)?;
    expect_same_rows(c, x, out)?;
    c.ignore(&["out_splits_offsets"]);
    let capacity = c.extent(out, 0);
    let own = c.extent(x, 0);
    let longer = own.max_with(&capacity).simplify_within(&c.lowering.symbols.table);
    if longer != capacity {
        let capacity = fixed_extent(c, out, 0, "rows of a result that may be shorter than the operand")?;
        // The exchange itself allows as many rows as the longer one has.
        let kind = CollectiveKind::AllToAll(AllToAllSplits::Even);
        let received = c.collective(kind, group, sizes)?;
        let total = c.reduce(ReductionKind::Sum, received, vec![0], false)?;
        sizes = check_counts(c, "rows_within_capacity", sizes, total, capacity)?;
    }
    let mut ty = c.ty(x).clone();
    ty.shape[0] = longer.clone();
    let operand = if longer == own {
        x
    } else {
        let low = vec![Dim::from(0); ty.rank()];
        c.emit_as("longer", Op::Pad { low, value: Scalar::Int(0).convert_to(ty.dtype) }, &[x], ty)?
    };
    let kind = CollectiveKind::AllToAll(AllToAllSplits::Device);
    let op = Op::Collective(Collective { kind, group, variant: None });
    let [y, received] = c.emit_all("all_to_all", op, &[operand, sizes])?[..] else {
        return invalid!("expected two results of the exchange");
    };
    let y = c.slice(y, 0, 0.into(), capacity, 1)?;
    let offsets = c.formula([received], |[received]| sums_before(received, 0))?;
    let sizes_and_offsets = with_offsets(c, received, offsets)?;
    c.set_results([y, sizes_and_offsets])
}

/// Chunks of rows in the order of the experts of all ranks, to chunks in the order of the local expert and the
/// rank they come from. The chunks of an expert start at a multiple of `major_align`, and an expert without
/// rows takes as many.
fn exchange_to_experts(c: &mut OpCall<'_, '_>) -> RuleResult {
    let (group, n) = known_group(c)?;
    let [x, out, sizes] = c.tensors_named(["input", "out", "in_splits"])?;
    let align = c.int_or("major_align", 1)?;
    expect_sizes(c, "in_splits", sizes)?;
    expect_same_rows(c, x, out)?;
    c.ignore(&["out_splits_offsets"]);
    let tokens = fixed_extent(c, x, 0, "rows")?;
    let capacity = fixed_extent(c, out, 0, "rows of the result")?;
    let chunks = fixed_extent(c, sizes, 0, "split sizes")?;
    invalid_if!(
        align < 1 || chunks % n != 0,
        "expected a positive major_align and a multiple of {n} split sizes, found {align} and {chunks}"
    );
    let local = chunks / n;
    let all_sizes = c.collective(CollectiveKind::AllGather, group, sizes)?;
    let [sent, starts, ends, received, offsets] = c.formulas([all_sizes], |[all_sizes]| {
        // By the rank that sends, and the chunk.
        let sent = all_sizes.reshape(vec![n.into(), chunks.into()]);
        let starts = sums_before(sent, 1);
        let ends = starts + sent;
        // By the rank that receives, its expert, and the rank that sends.
        let received = sent.reshape(vec![n.into(), n.into(), local.into()]).permute(&[1, 2, 0]);
        let rows = received.sum(&[2], true);
        let aligned = ((rows + (align - 1)).floor_div(align) * align).max(align);
        let expert_starts = sums_before(aligned, 1);
        let offsets = expert_starts + sums_before(received, 2);
        [sent, starts, ends, received, offsets]
    })?;
    let slots = slots_of_rows(c, group, (n, tokens, capacity), (received, offsets, starts))?;
    // An expert without rows may start beyond the result.
    let received_ends = c.formula([received, offsets], |[received, offsets]| {
        let zero = received.constant(0.0);
        let has_rows = received.ne(0);
        has_rows.select(offsets + received, zero)
    })?;
    let slots = check_counts(c, "rows_within_capacity", slots, received_ends, capacity)?;
    let slots = check_counts(c, "rows_within_operand", slots, ends, tokens)?;
    let slots = check_counts(c, "rows_of_chunk", slots, sent, tokens)?;
    let all_rows = rows_of_tokens(c, (n, tokens, capacity), (starts, ends, offsets))?;
    let ty = c.ty(out).clone();
    let flat_x = flat_rows(c, x)?;
    let flat = TensorType::new(ty.dtype, vec![capacity.into(), c.extent(flat_x, 1)]);
    let y = collective(c, CollectiveKind::DispatchRows, group, &[flat_x, slots, all_rows], flat)?;
    let y = c.reshape(y, ty.shape)?;
    let own_sizes = of_this_rank(c, received, group)?;
    let own_offsets = of_this_rank(c, offsets, group)?;
    let sizes_and_offsets = with_offsets(c, own_sizes, own_offsets)?;
    c.set_results([y, sizes_and_offsets])
}

/// A tensor as a matrix with the same rows.
fn flat_rows(c: &mut OpCall<'_, '_>, x: ValueId) -> EmitResult {
    let shape = c.shape(x);
    let width = symmc_import::emit::extent_product(shape.get(1..).unwrap_or_default());
    c.reshape(x, vec![c.extent(x, 0), width])
}

/// The chunk of each row of this rank and the position in it, or -1 for a row of none. `ends` and `offsets` are
/// those of the chunks, in order.
fn chunks_of_rows(
    c: &mut OpCall<'_, '_>,
    capacity: i64,
    (sizes, offsets): (ValueId, ValueId),
) -> RuleResult<(ValueId, ValueId)> {
    let flat = vec![c.ty(sizes).numel()];
    let sizes = c.reshape(sizes, flat.clone())?;
    let offsets = c.reshape(offsets, flat)?;
    let rows = c.iota(capacity.into(), 0, 1, DType::I64)?;
    let [chunk, position] = c.formulas([rows, sizes, offsets], |[rows, sizes, offsets]| {
        // Chunks start in order. The last one that starts at or before a row has it, or none has.
        let started = count_reached(rows.unsqueeze(1), offsets);
        let chunk = (started - 1).max(0);
        let start = offsets.take(0, chunk);
        let size = sizes.take(0, chunk);
        let position = rows - start;
        [chunk, position.lt(size).select(position, -1)]
    })?;
    Ok((chunk, position))
}

/// `base` of the chunk of each row plus the position in it, or -1 for a row of no chunk.
fn sources_of_rows(
    c: &mut OpCall<'_, '_>,
    (chunk, position): (ValueId, ValueId),
    base: ValueId,
) -> EmitResult {
    let flat = vec![c.ty(base).numel()];
    c.formula([base, chunk, position], |[base, chunk, position]| {
        let source = base.reshape(flat).take(0, chunk) + position;
        let none = position.constant(-1.0);
        position.gt(none).select(source, none)
    })
}

/// The token from which each row of this rank comes.
fn slots_of_rows(
    c: &mut OpCall<'_, '_>,
    group: GroupId,
    (n, tokens, capacity): (i64, i64, i64),
    (received, offsets, starts): (ValueId, ValueId, ValueId),
) -> EmitResult {
    let local = c.extent(received, 1);
    let starts =
        c.formula([starts], |[starts]| starts.reshape(vec![n.into(), n.into(), local]).permute(&[1, 2, 0]))?;
    let senders = ranks_along(c, n, tokens, 2, 3)?;
    let starts = c.binary(BinaryOp::Add, starts, senders)?;
    let own_sizes = of_this_rank(c, received, group)?;
    let own_offsets = of_this_rank(c, offsets, group)?;
    let own_starts = of_this_rank(c, starts, group)?;
    let row_chunks = chunks_of_rows(c, capacity, (own_sizes, own_offsets))?;
    sources_of_rows(c, row_chunks, own_starts)
}

/// The row to which each token of each rank goes, as `[ranks * tokens, 1]`.
fn rows_of_tokens(
    c: &mut OpCall<'_, '_>,
    (n, tokens, capacity): (i64, i64, i64),
    (starts, ends, offsets): (ValueId, ValueId, ValueId),
) -> EmitResult {
    let chunks = c.extent(starts, 1);
    let receivers = ranks_along(c, n, capacity, 0, 3)?;
    c.formula([starts, ends, offsets, receivers], |[starts, ends, offsets, receivers]| {
        let targets = (offsets + receivers).permute(&[2, 0, 1]).reshape(vec![n.into(), chunks.clone()]);
        let targets = targets - starts;
        let tokens_along = targets.map(|c, _| c.iota(tokens.into(), 0, 1, DType::I64));
        let column = tokens_along.reshape(vec![1.into(), tokens.into(), 1.into()]);
        let passed = count_reached(column, ends.unsqueeze(1));
        let last_chunk = passed.map(|c, _| c.emit_dim(&(chunks - Dim::from(1)), DType::I64));
        let row = targets.gather(1, passed.min(last_chunk)) + tokens_along;
        let none = row.constant(-1.0);
        passed.le(last_chunk).select(row, none).reshape(vec![(n * tokens).into(), 1.into()])
    })
}

/// Chunks of rows in the order of the local expert and the rank they go to, at any offsets, to chunks in the
/// order of the rank they come from and its expert, without gaps.
fn exchange_from_experts(c: &mut OpCall<'_, '_>) -> RuleResult {
    let (group, n) = known_group(c)?;
    let [x, out, sizes_and_offsets] = c.tensors_named(["input", "out", "in_splits_offsets"])?;
    expect_sizes(c, "in_splits_offsets", sizes_and_offsets)?;
    expect_same_rows(c, x, out)?;
    c.ignore(&["out_splits_offsets"]);
    let tokens = fixed_extent(c, x, 0, "rows")?;
    let capacity = fixed_extent(c, out, 0, "rows of the result")?;
    let chunks = fixed_extent(c, sizes_and_offsets, 1, "split sizes")?;
    invalid_if!(
        chunks % n != 0
            || c.rank(sizes_and_offsets) != 2
            || c.extent(sizes_and_offsets, 0).as_const() != Some(2),
        "expected sizes and offsets as two rows of a multiple of {n} numbers, found {shape:?}",
        shape = c.shape(sizes_and_offsets)
    );
    unsupported_if!(!c.dtype(x).is_float(), "rows of {dtype} are not supported", dtype = c.dtype(x));
    let local = chunks / n;
    let gathered = c.collective(CollectiveKind::AllGather, group, sizes_and_offsets)?;
    let gathered = c.reshape(gathered, vec![n.into(), 2.into(), local.into(), n.into()])?;
    // By the rank that receives, the rank that sends, and its expert.
    let mut arranged = Vec::with_capacity(2);
    for row in 0..2i64 {
        let table = c.slice(gathered, 1, row.into(), 1.into(), 1)?;
        let table = c.reshape(table, vec![n.into(), local.into(), n.into()])?;
        arranged.push(c.permute(table, vec![2, 0, 1])?);
    }
    let [sizes, sources] = arranged[..] else { return invalid!("expected sizes and offsets") };
    let [first, source_ends] = c.formulas([sizes, sources], |[sizes, sources]| {
        let zero = sizes.constant(0.0);
        let first = sizes.ne(0).select(sources, zero);
        [first, first + sizes]
    })?;
    let senders = ranks_along(c, n, tokens, 1, 3)?;
    let sources = c.binary(BinaryOp::Add, sources, senders)?;
    let sizes = of_this_rank(c, sizes, group)?;
    let sources = of_this_rank(c, sources, group)?;
    let sizes = c.reshape(sizes, vec![chunks.into()])?;
    let offsets = c.formula([sizes], |[sizes]| sums_before(sizes, 0))?;
    let row_chunks = chunks_of_rows(c, capacity, (sizes, offsets))?;
    let rows = sources_of_rows(c, row_chunks, sources)?;
    let ends = c.binary(BinaryOp::Add, offsets, sizes)?;
    let rows = check_counts(c, "rows_within_capacity", rows, ends, capacity)?;
    let rows = check_counts(c, "rows_of_chunk", rows, sizes, capacity)?;
    let rows = check_counts(c, "offset_within_operand", rows, first, tokens)?;
    let rows = check_counts(c, "rows_within_operand", rows, source_ends, tokens)?;
    let rows = c.unsqueeze(rows, 1)?;
    let ty = c.ty(out).clone();
    let flat_x = flat_rows(c, x)?;
    let flat = TensorType::new(ty.dtype, vec![capacity.into(), c.extent(flat_x, 1)]);
    let y = collective(c, CollectiveKind::CombineRows, group, &[flat_x, rows], flat)?;
    let y = c.reshape(y, ty.shape)?;
    let sizes_and_offsets = with_offsets(c, sizes, offsets)?;
    c.set_results([y, sizes_and_offsets])
}

/// The sum of each tile at its root. Other ranks keep what they have.
fn reduce_to_roots(c: &mut OpCall<'_, '_>, tiles: &[ValueId], roots: &[i64]) -> RuleResult {
    let (group, n) = known_group(c)?;
    let out = c.tensor("out_tile")?;
    let distinct: std::collections::BTreeSet<i64> = roots.iter().copied().collect();
    let fits = distinct.len() == roots.len() && roots.iter().all(|root| (0..n).contains(root));
    invalid_if!(
        !fits || tiles.len() != roots.len(),
        "expected a different root below {n} for each tile, found the roots {roots:?} of {tile_count} tiles",
        tile_count = tiles.len()
    );
    for tile in tiles {
        expect_same_type(c, *tile, out)?;
    }
    if roots.len() as i64 == n && n > 1 {
        let mut order: Vec<(i64, ValueId)> = roots.iter().copied().zip(tiles.iter().copied()).collect();
        order.sort_unstable_by_key(|(root, _)| *root);
        let mut stacked = Vec::with_capacity(order.len());
        for (_, tile) in order {
            stacked.push(c.unsqueeze(tile, 0)?);
        }
        let stacked = c.concat(&stacked, 0)?;
        let y = reduce_scatter(c, stacked)?;
        let y = c.reshape(y, c.shape(out))?;
        return c.set_only_result(y);
    }
    let numbers = c.iota(n.into(), 0, 1, DType::I64)?;
    let own = of_this_rank(c, numbers, group)?;
    let mut y = out;
    for (tile, root) in tiles.iter().zip(roots) {
        let sum = all_reduce(c, *tile)?;
        let is_root = c.binary_scalar(BinaryOp::Eq, own, Scalar::Int(*root))?;
        y = c.select(is_root, sum, y)?;
    }
    c.set_only_result(y)
}

/// Blocks of an axis, each summed at its destination. The `j`-th blocks of all ranks have the same size.
fn reduce_blocks(c: &mut OpCall<'_, '_>) -> RuleResult {
    let (_, n) = known_group(c)?;
    let x = c.tensor("input")?;
    let out = c.tensors("out")?;
    if let Some(other) = c.opt_string("red_op")?.filter(|op| *op != "sum") {
        return unsupported!("expected the reduction sum, found `{other}`");
    }
    let axis = c.axis("dim", c.rank(x))?;
    let extent = fixed_extent(c, x, axis, "elements")?;
    let ends = match c.opt_ints("offsets")? {
        Some(ends) => ends,
        None if extent % n == 0 => (1..=n).map(|i| i * (extent / n)).collect(),
        None => return invalid!("expected {n} ranks to divide {extent} elements"),
    };
    let ranks = c.opt_ints("dst_ranks")?.unwrap_or_else(|| (0..ends.len() as i64).map(|i| i % n).collect());
    let blocks_of = |rank: i64| -> Vec<(i64, i64)> {
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let blocks = starts.zip(ends.iter().copied()).zip(&ranks);
        blocks.filter(|(_, to)| **to == rank).map(|(block, _)| block).collect()
    };
    let blocks_by_rank: Vec<Vec<(i64, i64)>> = (0..n).map(blocks_of).collect();
    let equal =
        |a: &(i64, i64), b: &(i64, i64)| a.1 - a.0 == b.1 - b.0 && a.1 >= a.0 && a.0 >= 0 && a.1 <= extent;
    let fits = ranks.len() == ends.len()
        && blocks_by_rank.iter().all(|own| {
            own.len() == out.len() && own.iter().zip(&blocks_by_rank[0]).all(|(a, b)| equal(a, b))
        });
    invalid_if!(
        !fits,
        "expected as many blocks of the same sizes for each of {n} ranks, found blocks that end at {ends:?}, the \
         destinations {ranks:?} and {result_count} results",
        result_count = out.len()
    );
    for (j, result) in out.iter().enumerate() {
        let mut stacked = Vec::with_capacity(blocks_by_rank.len());
        for own in &blocks_by_rank {
            let (start, end) = own[j];
            let block = c.slice(x, axis, start.into(), (end - start).into(), 1)?;
            expect_same_type(c, block, *result)?;
            stacked.push(c.unsqueeze(block, 0)?);
        }
        let stacked = c.concat(&stacked, 0)?;
        let y = reduce_scatter(c, stacked)?;
        let y = c.reshape(y, c.shape(*result))?;
        c.set_result(j, y);
    }
    Ok(())
}

/// Scatters one of the first two axes over the ranks and gathers the other.
fn exchange_axes(c: &mut OpCall<'_, '_>) -> RuleResult {
    let (group, n) = known_group(c)?;
    let [x, out] = c.tensors_named(["input", "out"])?;
    let axes = (c.int("scatter_dim")?, c.int("gather_dim")?);
    let scattered = match axes {
        (0, 1) => 0,
        (1, 0) => 1,
        (scatter, gather) => {
            return unsupported!(
                "expected the scattered and the gathered axis 0 and 1 or 1 and 0, found {scatter} and {gather}"
            );
        }
    };
    expect_same_dtype(c, x, out)?;
    let mut shape = c.shape(x);
    let is_matrix = shape.len() == 2;
    if is_matrix {
        let each = shape[scattered].exact_div(&n.into()).ok_or_else(|| {
            RuleFailure::Invalid(format!("expected {n} ranks to divide {:?}", shape[scattered]))
        })?;
        shape[scattered] = each;
        shape.insert(scattered, n.into());
    }
    invalid_if!(
        shape.len() != 3 || shape.get(scattered).and_then(Dim::as_const) != Some(n),
        "expected a matrix, or {n} pieces along axis {scattered}, found {:?}",
        c.shape(x)
    );
    let pieces = c.reshape(x, shape)?;
    let swap = |c: &mut OpCall<'_, '_>, v: ValueId| c.permute(v, vec![1, 0, 2]);
    let pieces = if scattered == 1 { swap(c, pieces)? } else { pieces };
    let y = c.collective(CollectiveKind::AllToAll(AllToAllSplits::Even), group, pieces)?;
    let mut y = if scattered == 0 { swap(c, y)? } else { y };
    if is_matrix && c.rank(out) == 2 {
        let [a, b, d] = &c.shape(y)[..] else { return invalid!("expected pieces of a matrix") };
        let matrix = if scattered == 0 {
            vec![a.clone(), b.clone() * d.clone()]
        } else {
            vec![a.clone() * b.clone(), d.clone()]
        };
        y = c.reshape(y, matrix)?;
        expect_same_type(c, y, out)?;
    }
    let y = c.reshape(y, c.shape(out))?;
    c.set_only_result(y)
}

const ONE_PROGRAM: &str = "a program with sends fits one rank only: give the archives of all ranks";

/// Sends and receives between pairs of ranks. Each send and the receives that get it are a permutation.
fn batch_of_sends(c: &mut OpCall<'_, '_>) -> RuleResult {
    c.ignore(&["tag_list"]);
    let (group, n) = known_group(c)?;
    let tensors = c.tensors("tensors")?;
    let Some(Argument::Strings(kinds)) = c.get("op_list") else {
        return invalid!("expected strings as `op_list`");
    };
    let peers = match c.get("peer_list") {
        Some(Argument::ByRank(b)) => match &b.numbers {
            PerRankNumbers::Lists(lists) => lists.clone(),
            _ => Vec::new(),
        },
        Some(Argument::Ints(one)) => {
            let kinds: Vec<&str> = kinds.iter().map(|k| &**k).collect();
            return invalid!("{ONE_PROGRAM}; found {kinds:?} with the ranks {one:?}");
        }
        _ => Vec::new(),
    };
    invalid_if!(
        peers.len() as i64 != n
            || peers.iter().any(|list| list.len() != kinds.len())
            || tensors.len() != kinds.len(),
        "expected a rank for each of {} sends and receives on each of {n} ranks, found {peers:?}",
        kinds.len()
    );
    let mut receives: Vec<usize> = (0..kinds.len()).filter(|i| &*kinds[*i] == "irecv").collect();
    for send in (0..kinds.len()).filter(|i| &*kinds[*i] == "isend") {
        let pairs = pairs_of_send(&peers, send)?;
        let fits = |receive: &&usize| {
            pairs.iter().all(|&(from, to)| peers[to as usize][**receive] == Some(from.into()))
        };
        let Some(receive) = receives.iter().find(fits).copied() else {
            return invalid!(
                "expected a receive for send {send}, which goes from rank to rank as {pairs:?}, found none"
            );
        };
        receives.retain(|r| *r != receive);
        let y = c.collective(CollectiveKind::Permute { pairs }, group, tensors[send])?;
        c.set_result(receive, y);
        let nothing = c.full(Scalar::Int(0), c.dtype(y), vec![0.into()])?;
        c.set_result(send, nothing);
    }
    match receives.first() {
        Some(i) => invalid!("expected a send for receive {i}, found none"),
        None => Ok(()),
    }
}

/// The sender and the receiver of a send on each rank.
fn pairs_of_send(peers: &[Vec<Option<i64>>], send: usize) -> RuleResult<Vec<(u32, u32)>> {
    let pairs = peers.iter().enumerate().map(|(from, list)| {
        let receiver =
            u32::try_from(list[send]?).ok().filter(|receiver| (*receiver as usize) < peers.len())?;
        Some((from as u32, receiver))
    });
    let pairs: Option<Vec<_>> = pairs.collect();
    pairs.ok_or_else(|| RuleFailure::Invalid(format!("expected a known rank for send {send} on each rank")))
}

fn one_send(c: &mut OpCall<'_, '_>) -> RuleResult {
    let peer = c.opt_int("dst")?.map_or_else(
        || Ok(format!("a receive from rank {}", c.int_or("src", -1)?)),
        |to| Ok(format!("a send to rank {to}")),
    );
    let description: String = peer.map_err(|e: RuleFailure| e)?;
    invalid!(
        "expected sends and receives of all ranks together, as `batch_p2p_ops` has them, found {description}"
    )
}
