//! Several collectives of one group as one kernel, by `pull`, `push` or `one_shot`: one pair of barriers,
//! with the work of all collectives between them.
//!
//! Collectives may have any kinds and dtypes. Threads take turns: the first unit of a collective goes to the
//! thread after the last unit of the previous one. Small collectives are thus divided among the threads like
//! one large collective.

use symmc_ir::collective::{CollectiveKind as Kind, CollectiveReduceOp, CollectiveVariant};
use symmc_plan::ExitBarrier;
use symmc_runtime::exec::{ResolvedCollective, ResolvedMember, StepWork};

use super::barrier::{
    all_reduce_part, lower_single_rank, movement_unit, pull_part, push_part, reduce_scatter_part,
};
use super::blocks::{GridLimits, MAX_THREADS, VariantGrids};
use super::call::RankCollective;
use super::kernel_call::{KernelCall, SendPattern, reduction};
use super::params::{CollectiveRegions, MAX_TURNS, Turn, Turns};
use super::peers::PeerContext;
use crate::codegen::addresses::AddressMap;
use crate::codegen::command::GpuCommand;
use crate::codegen::compile::KernelSource;
use crate::device::launch::KernelParam;
use crate::error::Result;

/// The work of one collective between the barriers.
struct BarrierWork {
    /// The template of `kernels/several.cu` with its first arguments.
    template: String,
    part: CollectiveRegions,
    /// The number of 16-byte units.
    units: usize,
}

/// The launches that run these collectives on this rank as one step. `None` if they are not collectives of
/// one group and of one variant that has such a kernel.
pub fn lower_several(
    step: usize,
    members: &[ResolvedMember],
    addresses: &AddressMap,
    peers: &PeerContext,
    source: &mut KernelSource,
) -> Result<Option<Vec<GpuCommand>>> {
    let Some(calls) = members.iter().map(collective_of).collect::<Option<Vec<&ResolvedCollective>>>() else {
        return Ok(None);
    };
    let mut collectives: Vec<RankCollective<'_>> = Vec::with_capacity(calls.len());
    for call in calls {
        let ends = addresses.collective_pointers(call);
        collectives.push(RankCollective::new(step, call, [ends.operand, ends.result], peers)?);
    }
    let Some(first) = collectives.first() else { return Ok(None) };
    let all_share_barriers = collectives.iter().all(|r| {
        (r.bound.variant, r.bound.group, r.bound.exit)
            == (first.bound.variant, first.bound.group, first.bound.exit)
    });
    if collectives.len() > MAX_TURNS || !all_share_barriers {
        return Ok(None);
    }
    let work = collectives.iter().map(barrier_work).collect::<Result<Option<Vec<BarrierWork>>>>()?;
    Ok(work.map(|work| match first.n {
        1 => collectives.iter().flat_map(lower_single_rank).collect(),
        _ => vec![GpuCommand::Kernel(prepared(first, work).launch(peers, source))],
    }))
}

fn collective_of(member: &ResolvedMember) -> Option<&ResolvedCollective> {
    match &member.work {
        StepWork::Collective(call) => Some(call),
        _ => None,
    }
}

fn barrier_work(running: &RankCollective<'_>) -> Result<Option<BarrierWork>> {
    let n = running.n;
    Ok(Some(match (running.bound.variant, &running.bound.kind) {
        (CollectiveVariant::OneShot, Kind::AllReduce(op)) => {
            let regions = all_reduce_part(running)?;
            reduction_work(running, *op, regions, regions.is_vector(n, 1))
        }
        (CollectiveVariant::Pull, Kind::ReduceScatter(op)) => {
            let regions = reduce_scatter_part(running)?;
            reduction_work(running, *op, regions, regions.is_vector(n, 1))
        }
        (CollectiveVariant::Pull, Kind::AllGather | Kind::AllToAll(_)) => {
            movement_work(running, pull_part(running)?, SendPattern::OnePerPeer)
        }
        (CollectiveVariant::Push, kind @ (Kind::AllGather | Kind::AllToAll(_))) => {
            movement_work(running, push_part(running)?, SendPattern::of_kind(kind))
        }
        _ => return Ok(None),
    }))
}

fn reduction_work(
    running: &RankCollective<'_>,
    op: CollectiveReduceOp,
    part: CollectiveRegions,
    vector: bool,
) -> BarrierWork {
    let n = running.n;
    let (element, operation) = reduction(running.bound.dtype, op);
    let bytes = part.count as usize * running.bound.dtype.size();
    let template = format!("Reduces<{element}, {operation}, {n}, {vector}");
    BarrierWork { template, part, units: running.units(bytes) }
}

fn movement_work(
    running: &RankCollective<'_>,
    regions: CollectiveRegions,
    sends: SendPattern,
) -> BarrierWork {
    let n = running.n;
    let unit = movement_unit(regions.addresses(n, n), 0, regions.count as usize);
    let same_to_all = sends == SendPattern::SameToAll;
    let units = running.units(regions.count as usize);
    BarrierWork { template: format!("Moves<{unit}, {n}, {same_to_all}"), part: regions, units }
}

/// The kernel of all parts. Parts with the same template share a loop.
fn prepared(first: &RankCollective<'_>, mut work: Vec<BarrierWork>) -> KernelCall {
    work.sort_by(|a, b| a.template.cmp(&b.template));
    let units = work.iter().map(|p| p.units).fold(0, usize::saturating_add);
    let blocks = first.grid(|counts| grids(counts, first.bound.variant), units);
    let threads = u64::from(blocks[0]) * u64::from(blocks[1]);
    let mut turns = Turns { of: [Turn::default(); MAX_TURNS] };
    let mut begun = 0u64;
    for (turn, between) in turns.of.iter_mut().zip(&work) {
        *turn = Turn { part: between.part, start: begun % threads };
        begun = begun.wrapping_add(between.units as u64);
    }
    let mut templates = String::new();
    let mut start = 0;
    for group in work.chunk_by(|a, b| a.template == b.template) {
        let end = start + group.len();
        templates.push_str(&format!(", {}, {start}, {end}>", group[0].template));
        start = end;
    }
    let exit = first.bound.exit.unwrap_or(ExitBarrier::Kept) == ExitBarrier::Kept;
    KernelCall {
        what: "collectives".into(),
        body: format!("several<{}, {exit}{templates}>", first.n),
        params: ("GroupParams", KernelParam::from_value(&first.group())),
        extra_param: Some(("Turns", KernelParam::from_value(&turns))),
        most_threads: MAX_THREADS,
        blocks,
    }
}

fn grids(counts: &VariantGrids, variant: CollectiveVariant) -> &GridLimits {
    match variant {
        CollectiveVariant::OneShot => &counts.one_shot,
        CollectiveVariant::Push => &counts.push,
        _ => &counts.pull,
    }
}
