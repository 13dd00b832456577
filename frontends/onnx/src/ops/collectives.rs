//! ONNX Runtime's collectives, which span all ranks. See [`crate::ranks`] for the number of ranks.

use symmc_import::Emit;
use symmc_ir::{AllToAllSplits, CollectiveKind, CollectiveReduceOp, Dim, GroupId, GroupMembers};

use super::{RuleRow, row};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleFailure, RuleResult};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("com.microsoft::AllReduce", 1, "all_reduce", |c| {
        collective(c, CollectiveKind::AllReduce(CollectiveReduceOp::Sum))
    }),
    row("com.microsoft::AllGather", 1, "all_gather, permute", all_gather),
    row("com.microsoft::AllToAll", 1, "all_to_all", |c| {
        collective(c, CollectiveKind::AllToAll(AllToAllSplits::Even))
    }),
];

const WORLD: &str = "world";

/// The group of all ranks. Records the `group_size` of the node, if there is one.
fn world_group(c: &mut OpCall<'_, '_>) -> RuleResult<GroupId> {
    let size = c.opt_int("group_size")?;
    c.lowering.ranks.record_collective(&c.label, size)?;
    if !c.lowering.scratch {
        c.lowering.builder.graph_mut().ranks = c.lowering.ranks.count_so_far();
    }
    Ok(c.builder_mut().group(WORLD, GroupMembers::World))
}

fn collective(c: &mut OpCall<'_, '_>, kind: CollectiveKind) -> EmitResult {
    let x = c.tensor(0)?;
    let group = world_group(c)?;
    c.collective(kind, group, x)
}

/// Gathers along an axis. The IR's collective gathers along axis 0, so another axis is moved there and back.
fn all_gather(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.tensor(0)?;
    let mut shape = c.shape(x);
    let axis = c.axis_or("axis", 0, shape.len())?;
    if axis == 0 {
        return collective(c, CollectiveKind::AllGather);
    }
    let group = world_group(c)?;
    let n = c.builder().graph().group_size(group);
    let n = n.ok_or_else(|| {
        RuleFailure::Invalid("the number of ranks is not known: expected a group_size".into())
    })?;
    let n = Dim::from(i64::from(n));
    let y = c.collective(CollectiveKind::AllGather, group, x)?;
    let mut pieces = shape.clone();
    pieces.insert(0, n.clone());
    let y = c.reshape(y, pieces)?;
    let perm = (1..=axis).chain(std::iter::once(0)).chain(axis + 1..=shape.len()).collect();
    let y = c.permute(y, perm)?;
    shape[axis] = shape[axis].clone() * n;
    c.reshape(y, shape)
}
