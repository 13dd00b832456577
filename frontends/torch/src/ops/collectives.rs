//! Collectives: PyTorch's functional ones and its symmetric-memory ones, which compute the same values.
//!
//! `wait_tensor` vanishes: the schedule decides when to wait. A coalesced call is one collective for each
//! of its tensors. Groups are named by strings; see [`crate::groups`] for their members.

use symmc_ir::{CollectiveKind, Dim, Emit, ReduceOp, Splits, ValueId};

use super::elementwise::identity;
use super::{Row, row};
use crate::call::Call;
use crate::lower::{Lowered, Stop};

pub(super) const ROWS: &[Row] = &[
    row("_c10d_functional.all_reduce", "all_reduce", |c| each(c, all_reduce)),
    row("_c10d_functional.all_reduce_coalesced", "all_reduce", |c| each(c, all_reduce)),
    row("_c10d_functional.all_gather_into_tensor", "all_gather", |c| each(c, all_gather)),
    row("_c10d_functional.all_gather_into_tensor_out", "all_gather", |c| each(c, all_gather)),
    row("_c10d_functional.all_gather_into_tensor_coalesced", "all_gather", |c| each(c, all_gather)),
    row("_c10d_functional.reduce_scatter_tensor", "reduce_scatter", |c| each(c, reduce_scatter)),
    row("_c10d_functional.reduce_scatter_tensor_coalesced", "reduce_scatter", |c| each(c, reduce_scatter)),
    row("_c10d_functional.all_to_all_single", "all_to_all", |c| each(c, all_to_all)),
    row("_c10d_functional.broadcast", "broadcast", |c| each(c, broadcast)),
    row("_c10d_functional.wait_tensor", "(identity)", identity),
    row("_c10d_functional_autograd.all_reduce", "all_reduce", |c| each(c, all_reduce)),
    row("_c10d_functional_autograd.all_gather_into_tensor", "all_gather", |c| each(c, all_gather)),
    row("_c10d_functional_autograd.reduce_scatter_tensor", "reduce_scatter", |c| each(c, reduce_scatter)),
    row("_c10d_functional_autograd.all_to_all_single", "all_to_all", |c| each(c, all_to_all)),
    row("_dtensor.shard_dim_alltoall", "reshape, permute, all_to_all", |c| each(c, shard_another_axis)),
    row("symm_mem.one_shot_all_reduce", "all_reduce", |c| each(c, all_reduce)),
    row("symm_mem.multimem_one_shot_all_reduce", "all_reduce", |c| each(c, all_reduce)),
    row("symm_mem.two_shot_all_reduce", "all_reduce", |c| each(c, all_reduce)),
    row("symm_mem.multimem_all_reduce", "all_reduce", |c| each(c, all_reduce)),
    row("symm_mem._low_contention_all_gather", "all_gather", |c| each(c, all_gather)),
    row("symm_mem._low_contention_reduce_scatter", "reduce_scatter", |c| each(c, reduce_scatter)),
];

/// The first argument is a tensor or, in coalesced calls, a list of tensors.
fn each(c: &mut Call<'_, '_>, lower: fn(&mut Call<'_, '_>, ValueId) -> Lowered<ValueId>) -> Lowered {
    let operands = match c.get("inputs") {
        Some(_) => c.tensors("inputs")?,
        None => vec![c.first()?],
    };
    for (i, x) in operands.into_iter().enumerate() {
        let y = lower(c, x)?;
        c.set(i, y);
    }
    Ok(())
}

fn reduce_op(c: &Call<'_, '_>) -> Lowered<ReduceOp> {
    Ok(match c.opt_string("reduce_op")? {
        None | Some("sum") => ReduceOp::Sum,
        Some("avg") => ReduceOp::Avg,
        Some("max") => ReduceOp::Max,
        Some("min") => ReduceOp::Min,
        Some("product") => ReduceOp::Prod,
        Some(other) => {
            let known = "sum, avg, max, min or product";
            return Err(Stop::Broken(format!("expected reduce_op {known}, found `{other}`")));
        }
    })
}

fn all_reduce(c: &mut Call<'_, '_>, x: ValueId) -> Lowered<ValueId> {
    let (op, group) = (reduce_op(c)?, c.group()?);
    c.collective(CollectiveKind::AllReduce(op), group, x)
}

fn all_gather(c: &mut Call<'_, '_>, x: ValueId) -> Lowered<ValueId> {
    let group = c.group()?;
    c.collective(CollectiveKind::AllGather, group, x)
}

fn reduce_scatter(c: &mut Call<'_, '_>, x: ValueId) -> Lowered<ValueId> {
    let (op, group) = (reduce_op(c)?, c.group()?);
    c.collective(CollectiveKind::ReduceScatter(op), group, x)
}

fn all_to_all(c: &mut Call<'_, '_>, x: ValueId) -> Lowered<ValueId> {
    let group = c.group()?;
    for name in ["output_split_sizes", "input_split_sizes"] {
        let sizes = c.opt_dims(name)?.unwrap_or_default();
        if sizes.windows(2).any(|w| w[0] != w[1]) {
            return Err(Stop::Broken(format!(
                "expected equal {name}, found {sizes:?}: a program with unequal ones fits one rank only, \
                 and all ranks must run the same program"
            )));
        }
        let total = sizes.iter().cloned().reduce(|a, b| a + b);
        let rows = c.ty(x).shape.first().cloned();
        if let (Some(total), Some(rows)) = (total, rows) {
            let (low, high) = c.bounds(&(total.clone() - rows.clone()));
            if low > 0 || high < 0 {
                return Err(Stop::Broken(format!("expected {name} of {rows:?} together, found {total:?}")));
            }
        }
    }
    c.collective(CollectiveKind::AllToAll(Splits::Even), group, x)
}

fn broadcast(c: &mut Call<'_, '_>, x: ValueId) -> Lowered<ValueId> {
    let group = c.group()?;
    let source = c.int("src")?;
    let root = u32::try_from(source)
        .map_err(|_| Stop::Broken(format!("expected a rank as `src`, found {source}")))?;
    c.collective(CollectiveKind::Broadcast { root }, group, x)
}

/// From a tensor that is sharded along `gather_dim` to one that is sharded along `shard_dim`.
fn shard_another_axis(c: &mut Call<'_, '_>, x: ValueId) -> Lowered<ValueId> {
    let group = c.group()?;
    let rank = c.rank(x);
    let (from, to) = (c.axis("gather_dim", rank)?, c.axis("shard_dim", rank)?);
    let n = c.lowering.builder.graph().group_size(group);
    let n = n.ok_or_else(|| Stop::Broken("expected a known number of ranks, found an open one".into()))?;
    let n = Dim::from(i64::from(n));
    let mut shape = c.shape(x);
    if shape.is_empty() {
        return Err(Stop::Broken("expected an operand with an axis, found none".into()));
    }
    let piece = shape[to].exact_div(&n);
    shape[to] =
        piece.ok_or_else(|| Stop::Broken(format!("expected {n:?} ranks to divide {:?}", shape[to])))?;
    // The pieces come to the front, one for each rank.
    let mut split = shape.clone();
    split.insert(to, n.clone());
    let y = c.reshape(x, split)?;
    let front: Vec<usize> = std::iter::once(to).chain((0..=rank).filter(|a| *a != to)).collect();
    let y = c.permute(y, front)?;
    let y = c.collective(CollectiveKind::AllToAll(Splits::Even), group, y)?;
    // The received pieces follow each other along the axis that was sharded.
    let back: Vec<usize> = (1..=from).chain(std::iter::once(0)).chain(from + 1..=rank).collect();
    let y = c.permute(y, back)?;
    shape[from] = shape[from].clone() * n;
    c.reshape(y, shape)
}
