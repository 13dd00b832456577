//! Several collectives of one group as one kernel, by `pull`, `push` or `one_shot`: one pair of barriers, and between the two what the
//! kernels of all of them do there.
//!
//! Collectives may be of any kinds and dtypes. Each thread takes its turn at each of them: the first unit of one goes to the thread after
//! the last unit of the one before, so that small ones are divided among the threads as one large collective would be.

use symmc_ir::collective::{CollectiveKind as Kind, Variant};
use symmc_plan::ExitBarrier;
use symmc_runtime::exec::{BoundCollective, Member, Work};

use super::barrier::{alone, pulled, pushed, reduced, scattered, unit};
use super::blocks::{BlockCounts, Blocks, MAX_THREADS};
use super::call::Running;
use super::params::{MOST_TURNS, Part, Turn, Turns};
use super::peers::Peers;
use super::prepared::{Prepared, Sends, reduction};
use crate::codegen::addresses::AddressMap;
use crate::codegen::command::Command;
use crate::codegen::compile::Source;
use crate::device::launch::Param;
use crate::error::Result;

/// What is done between the barriers for one collective.
struct Between {
    /// The template of `kernels/several.cu` with its first arguments.
    template: String,
    part: Part,
    /// Units of 16 bytes.
    units: usize,
}

/// The launches that run these collectives on this rank as one step. `None` if they are no collectives of one group and one variant that
/// has such a kernel.
pub fn lower_several(
    step: usize,
    members: &[Member],
    addresses: &AddressMap,
    peers: &Peers,
    source: &mut Source,
) -> Result<Option<Vec<Command>>> {
    let Some(calls) = members.iter().map(call_of).collect::<Option<Vec<&BoundCollective>>>() else {
        return Ok(None);
    };
    let running = |call| {
        let ends = addresses.ends(call);
        Running::new(step, call, [ends.operand, ends.result], peers)
    };
    let all = calls.into_iter().map(running).collect::<Result<Vec<Running<'_>>>>()?;
    let Some(first) = all.first() else { return Ok(None) };
    let common = |r: &Running<'_>| {
        (r.bound.variant, r.bound.group, r.bound.exit)
            == (first.bound.variant, first.bound.group, first.bound.exit)
    };
    if all.len() > MOST_TURNS || !all.iter().all(common) {
        return Ok(None);
    }
    let parts = all.iter().map(between).collect::<Result<Option<Vec<Between>>>>()?;
    Ok(parts.map(|parts| match first.n {
        1 => all.iter().flat_map(alone).collect(),
        _ => vec![Command::Kernel(prepared(first, parts).launch(peers, source))],
    }))
}

fn call_of(member: &Member) -> Option<&BoundCollective> {
    match &member.work {
        Work::Collective(call) => Some(call),
        _ => None,
    }
}

fn between(running: &Running<'_>) -> Result<Option<Between>> {
    let n = running.n;
    let sums = |op, part: Part, vector: bool| {
        let (element, operation) = reduction(running.bound.dtype, op);
        let bytes = part.count as usize * running.bound.dtype.size();
        let template = format!("Reduces<{element}, {operation}, {n}, {vector}");
        Between { template, part, units: running.units(bytes) }
    };
    let moves = |part: Part, sends: Sends| {
        let (unit, same) = (unit(part.addresses(n, n), 0, part.count as usize), sends == Sends::One);
        let units = running.units(part.count as usize);
        Between { template: format!("Moves<{unit}, {n}, {same}"), part, units }
    };
    Ok(Some(match (running.bound.variant, &running.bound.kind) {
        (Variant::OneShot, Kind::AllReduce(op)) => {
            let part = reduced(running)?;
            sums(*op, part, part.is_vector(n, 1))
        }
        (Variant::Pull, Kind::ReduceScatter(op)) => {
            let part = scattered(running)?;
            sums(*op, part, part.is_vector(n, 1))
        }
        (Variant::Pull, Kind::AllGather | Kind::AllToAll(_)) => moves(pulled(running)?, Sends::Each),
        (Variant::Push, kind @ (Kind::AllGather | Kind::AllToAll(_))) => {
            moves(pushed(running)?, Sends::of(kind))
        }
        _ => return Ok(None),
    }))
}

/// The kernel of all parts. Those of one template are in a loop of their own.
fn prepared(first: &Running<'_>, mut parts: Vec<Between>) -> Prepared {
    parts.sort_by(|a, b| a.template.cmp(&b.template));
    let units = parts.iter().map(|p| p.units).fold(0, usize::saturating_add);
    let blocks = first.grid(|counts| grids(counts, first.bound.variant), units);
    let threads = u64::from(blocks[0]) * u64::from(blocks[1]);
    let mut turns = Turns { of: [Turn::default(); MOST_TURNS] };
    let mut begun = 0u64;
    for (turn, between) in turns.of.iter_mut().zip(&parts) {
        *turn = Turn { part: between.part, start: begun % threads };
        begun = begun.wrapping_add(between.units as u64);
    }
    let mut templates = String::new();
    let mut at = 0;
    for alike in parts.chunk_by(|a, b| a.template == b.template) {
        let end = at + alike.len();
        templates.push_str(&format!(", {}, {at}, {end}>", alike[0].template));
        at = end;
    }
    let exit = first.bound.exit.unwrap_or(ExitBarrier::Kept) == ExitBarrier::Kept;
    Prepared {
        what: "collectives".into(),
        body: format!("several<{}, {exit}{templates}>", first.n),
        params: ("GroupParams", Param::of(&first.group())),
        beside: Some(("Turns", Param::of(&turns))),
        most_threads: MAX_THREADS,
        blocks,
    }
}

fn grids(counts: &BlockCounts, variant: Variant) -> &Blocks {
    match variant {
        Variant::OneShot => &counts.one_shot,
        Variant::Push => &counts.push,
        _ => &counts.pull,
    }
}
