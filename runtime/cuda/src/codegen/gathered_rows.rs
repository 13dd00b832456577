//! All-gathers whose kernel stores the gathered values with permuted axes: a dispatch of the form `gather`.
//!
//! Each rank holds rows. Row `r` of all ranks precedes row `r + 1` of any rank, because the all-gather is
//! along an axis other than the first. For peers the kernel is the all-gather of the same call; only the
//! addresses in its own result differ.

use smallvec::SmallVec;
use symmc_ir::Op;
use symmc_ir::collective::CollectiveKind as Kind;
use symmc_runtime::exec::{LocatedTensor, ResolvedCollective, ResolvedMember, StepWork};

use crate::codegen::addresses::CollectivePointers;
use crate::codegen::collective::{self, lower_gather_of_rows};
use crate::codegen::command::GpuCommand;
use crate::codegen::compute::KernelLowering;
use crate::codegen::lowering_context::LoweringContext;
use crate::error::Result;

/// The kernel of an all-gather and a copy of a view of its result. `None` if the layouts do not allow one.
pub fn lower(
    step: usize,
    members: &[ResolvedMember],
    setting: &LoweringContext<'_>,
    l: &mut KernelLowering<'_>,
) -> Result<Option<Vec<GpuCommand>>> {
    let LoweringContext { addresses, peers, .. } = *setting;
    let member_work: SmallVec<[&StepWork; 2]> = members.iter().map(|m| &m.work).collect();
    let [StepWork::Collective(call), StepWork::Kernel { op: Op::Reshape | Op::Copy, operands, results }] =
        member_work[..]
    else {
        return Ok(None);
    };
    let [view] = &operands[..] else { return Ok(None) };
    let [result] = &results[..] else { return Ok(None) };
    if call.kind != Kind::AllGather {
        return Ok(None);
    }
    let Some(row) = gathered_row_elements(call, view) else { return Ok(None) };
    let ends = CollectivePointers::new(addresses.region(&call.operand), addresses.address_of(result));
    if row == call.elements || call.cell.len() == 1 {
        return collective::lower(step, call, &ends, peers, &mut l.source);
    }
    lower_gather_of_rows(step, call, &ends, row * call.dtype.size(), peers, &mut l.source)
}

/// The elements of a row, if the view has all elements of an all-gather's result, with the rows of all ranks
/// interleaved.
fn gathered_row_elements(call: &ResolvedCollective, view: &LocatedTensor) -> Option<usize> {
    let ranks = call.cell.len();
    let total = call.elements.checked_mul(ranks)?;
    let is_result = (view.space, view.offset, view.by_rank) == (call.result.space, call.result.offset, 0);
    if !is_result || view.shape.iter().product::<usize>() != total {
        return None;
    }
    if total == 0 {
        return Some(call.elements);
    }
    // Adjacent axes that are dense count as one axis: its extent, and the stride of the innermost.
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
