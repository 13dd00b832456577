//! All-gathers whose kernel stores what it gathers with the axes in another order: a dispatch of the form `gather`.
//!
//! What each rank has is rows, and row `r` of all ranks stands in front of row `r + 1` of any: the all-gather is along an axis that is
//! not the first. Towards peers the kernel is the all-gather of the same call; only the places of its own result differ.

use smallvec::SmallVec;
use symmc_ir::Op;
use symmc_ir::collective::{CollectiveKind as Kind, Variant};
use symmc_plan::ExitBarrier;
use symmc_runtime::exec::{BoundCollective, Located, Member, Work};

use super::call::Running;
use super::peers::Ends;
use super::{barrier, ll};
use crate::codegen::command::Command;
use crate::codegen::compute::Lowering;
use crate::codegen::setting::Setting;
use crate::error::Result;

/// The kernel of an all-gather and of a copy of a view of its result. `None` where their layouts do not allow one.
pub fn lower(
    step: usize,
    members: &[Member],
    setting: &Setting<'_>,
    l: &mut Lowering<'_>,
) -> Result<Option<Vec<Command>>> {
    let Setting { addresses, peers, .. } = *setting;
    let parts: SmallVec<[&Work; 2]> = members.iter().map(|m| &m.work).collect();
    let [Work::Collective(call), Work::Kernel { op: Op::Reshape | Op::Copy, operands, results }] = parts[..]
    else {
        return Ok(None);
    };
    let ([view], [result]) = (&operands[..], &results[..]) else { return Ok(None) };
    let (true, Some(row)) = (call.kind == Kind::AllGather, row_of(call, view)) else { return Ok(None) };
    let ends = Ends::new(addresses.region(&call.operand), addresses.at(result));
    if row == call.elements || call.cell.len() == 1 {
        return super::lower(step, call, &ends, peers, &mut l.source);
    }
    let running = Running::new(step, call, [ends.operand, ends.result], peers)?;
    let row = row * call.dtype.size();
    let prepared = match call.variant {
        Variant::Pull => barrier::pull_rows(&running, row, call.exit.unwrap_or(ExitBarrier::Kept))?,
        Variant::Ll if row.is_multiple_of(8) => ll::gather_rows(&running, row)?,
        _ => return Ok(None),
    };
    Ok(Some(vec![Command::Kernel(prepared.launch(peers, &mut l.source))]))
}

/// The elements of a row, if a view of the result of an all-gather has all of its elements, with the rows of all ranks in turn.
fn row_of(call: &BoundCollective, view: &Located) -> Option<usize> {
    let (ranks, all) = (call.cell.len(), call.elements.checked_mul(call.cell.len())?);
    let at = (view.space, view.offset, view.by_rank) == (call.result.space, call.result.offset, 0);
    if !at || view.shape.iter().product::<usize>() != all {
        return None;
    }
    if all == 0 {
        return Some(call.elements);
    }
    // Axes that lie densely one inside the other count as one: its extent and the stride of the innermost.
    let mut axes: SmallVec<[(usize, usize); 4]> = SmallVec::new();
    for (&extent, &stride) in view.shape.iter().zip(&view.strides).filter(|(extent, _)| **extent != 1) {
        let stride = usize::try_from(stride).ok()?;
        match axes.last_mut() {
            Some((count, inner)) if *inner == stride * extent => (*count, *inner) = (*count * extent, stride),
            _ => axes.push((extent, stride)),
        }
    }
    match axes[..] {
        [] => Some(call.elements),
        [(_, 1)] => Some(call.elements),
        [(rows, to_row), (number, to_rank), (row, 1)] => {
            (number == ranks && to_row == row && to_rank == call.elements && rows * row == to_rank)
                .then_some(row)
        }
        [(rows, 1), (number, to_rank)] => {
            (number == ranks && to_rank == rows && rows == call.elements).then_some(1)
        }
        _ => None,
    }
}
