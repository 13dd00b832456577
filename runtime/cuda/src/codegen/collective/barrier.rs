//! Collectives whose ranks synchronize at barriers, and access each other's operands and results between
//! them.

use symmc_ir::collective::{CollectiveKind as Kind, CollectiveReduceOp};
use symmc_plan::ExitBarrier;

use super::blocks::MAX_THREADS;
use super::call::RankCollective;
use super::control::MAX_RANKS;
use super::kernel_call::{KernelCall, SendPattern, message_slices, reduction};
use super::params::{BarrierParams, CollectiveRegions, PutParams};
use super::peers::PeerContext;
use crate::codegen::command::{Commands, GpuCommand};
use crate::codegen::compile::KernelSource;
use crate::device::launch::{Address, DevicePtr, KernelParam};
use crate::device::pointer::all_multiples_of;
use crate::error::Result;

impl CollectiveRegions {
    /// The addresses in use: the first `from` sources and the first `to` destinations.
    pub fn addresses(&self, from: usize, to: usize) -> impl Iterator<Item = DevicePtr> + Clone {
        self.from.into_iter().take(from).chain(self.to.into_iter().take(to))
    }

    /// Whether all of them are multiples of 16.
    pub fn is_vector(&self, from: usize, to: usize) -> bool {
        all_multiples_of(self.addresses(from, to), 16)
    }

    fn params(&self, running: &RankCollective) -> BarrierParams {
        let CollectiveRegions { from, to, count } = *self;
        BarrierParams { base: running.group(), from, to, count, row: 0 }
    }
}

/// The regions of an all-reduce of the operands of all ranks.
pub(super) fn all_reduce_part(running: &RankCollective) -> Result<CollectiveRegions> {
    let mut regions =
        CollectiveRegions { count: running.bound.elements as u64, ..CollectiveRegions::default() };
    for p in 0..running.n {
        regions.from[p] = running.operand_of(p, running.bytes)?;
    }
    regions.to[0] = running.result;
    Ok(regions)
}

/// The regions of a reduction of this rank's slice of all operands.
pub(super) fn reduce_scatter_part(running: &RankCollective) -> Result<CollectiveRegions> {
    let piece = running.slice_bytes()?;
    let mut regions = CollectiveRegions {
        count: (running.bound.elements / running.n) as u64,
        ..CollectiveRegions::default()
    };
    for p in 0..running.n {
        regions.from[p] = running.operand_of(p, running.bytes)? + (running.me * piece) as Address;
    }
    regions.to[0] = running.result;
    Ok(regions)
}

/// The regions that this rank loads from the operands of all ranks.
pub(super) fn pull_part(running: &RankCollective) -> Result<CollectiveRegions> {
    let (piece, source) = message_slices(running)?;
    let mut regions = CollectiveRegions { count: piece as u64, ..CollectiveRegions::default() };
    for (i, p) in running.peers_then_self().enumerate() {
        regions.from[i] = running.operand_of(p, running.bytes)? + source(running.me);
        regions.to[i] = running.result + (p * piece) as Address;
    }
    Ok(regions)
}

/// The regions that this rank stores to in the results of all ranks.
pub(super) fn push_part(running: &RankCollective) -> Result<CollectiveRegions> {
    let (piece, source) = message_slices(running)?;
    let mut regions = CollectiveRegions { count: piece as u64, ..CollectiveRegions::default() };
    for (i, p) in running.peers_then_self().enumerate() {
        regions.from[i] = running.operand + source(p);
        regions.to[i] = running.result_of(p, running.n * piece)? + (running.me * piece) as Address;
    }
    Ok(regions)
}

pub(super) fn one_shot(
    running: &RankCollective,
    op: CollectiveReduceOp,
    exit: ExitBarrier,
) -> Result<KernelCall> {
    let call = all_reduce_part(running)?.params(running);
    let how = BarrierReduction { op, output_count: 1, elements: running.bound.elements, exit };
    Ok(reduction_kernel(
        running,
        call,
        how,
        running.grid(|b| &b.one_shot, running.units(running.bytes)),
        "one_shot",
    ))
}

pub(super) fn reduce_scatter(
    running: &RankCollective,
    op: CollectiveReduceOp,
    exit: ExitBarrier,
) -> Result<KernelCall> {
    let piece = running.slice_bytes()?;
    let call = reduce_scatter_part(running)?.params(running);
    let how = BarrierReduction { op, output_count: 1, elements: running.bound.elements / running.n, exit };
    Ok(reduction_kernel(
        running,
        call,
        how,
        running.grid(|b| &b.reduce_scatter, running.units(piece)),
        "reduce_scatter",
    ))
}

pub(super) fn pull(running: &RankCollective, exit: ExitBarrier) -> Result<KernelCall> {
    let regions = pull_part(running)?;
    Ok(movement_kernel(
        running,
        regions.params(running),
        BarrierMovement { sends: SendPattern::OnePerPeer, exit, bytes: regions.count as usize },
    ))
}

/// An all-gather of rows of `row` bytes that interleaves the rows of all ranks.
pub(super) fn pull_rows(running: &RankCollective, row: usize, exit: ExitBarrier) -> Result<KernelCall> {
    let mut call = BarrierParams { base: running.group(), ..BarrierParams::default() };
    for (i, p) in running.peers_then_self().enumerate() {
        call.from[i] = running.operand_of(p, running.bytes)?;
        call.to[i] = running.result + (p * row) as Address;
    }
    let n = running.n;
    let keeps_exit = exit == ExitBarrier::Kept;
    let unit = movement_unit(call.from[..n].iter().chain(&call.to[..n]).copied(), row, row);
    (call.count, call.row) = (running.bytes as u64, row as u64);
    Ok(KernelCall {
        what: format!("{}_rows", running.bound.kind.name()),
        body: format!("move_rows<{unit}, {n}, {keeps_exit}>"),
        params: ("BarrierParams", KernelParam::from_value(&call)),
        extra_param: None,
        most_threads: MAX_THREADS,
        blocks: running.grid(|b| &b.pull, running.units(running.bytes)),
    })
}

pub(super) fn push(running: &RankCollective) -> Result<KernelCall> {
    let regions = push_part(running)?;
    let sends = SendPattern::of_kind(&running.bound.kind);
    let how = BarrierMovement { sends, exit: ExitBarrier::Kept, bytes: regions.count as usize };
    Ok(movement_kernel(running, regions.params(running), how))
}

pub(super) fn rendezvous(running: &RankCollective) -> KernelCall {
    let params = BarrierParams { base: running.group(), ..BarrierParams::default() };
    movement_kernel(
        running,
        params,
        BarrierMovement { sends: SendPattern::OnePerPeer, exit: ExitBarrier::Dropped, bytes: 0 },
    )
}

/// Copies to peers between two rendezvous.
pub(super) fn push_copies(
    running: &RankCollective,
    peers: &PeerContext,
    source: &mut KernelSource,
) -> Commands {
    let (piece, from) = message_slices(running)?;
    copies_after_rendezvous(
        running,
        |p| {
            let destination = running.result_of(p, running.n * piece)? + (running.me * piece) as Address;
            Ok(GpuCommand::Copy { to: destination, from: running.operand + from(p), bytes: piece })
        },
        ExitBarrier::Kept,
        peers,
        source,
    )
}

/// Copies from peers after a rendezvous.
pub(super) fn pull_copies(
    running: &RankCollective,
    exit: ExitBarrier,
    peers: &PeerContext,
    source: &mut KernelSource,
) -> Commands {
    let (piece, offset_of) = message_slices(running)?;
    copies_after_rendezvous(
        running,
        |p| {
            let from = running.operand_of(p, running.bytes)? + offset_of(running.me);
            Ok(GpuCommand::Copy { to: running.result + (p * piece) as Address, from, bytes: piece })
        },
        exit,
        peers,
        source,
    )
}

/// One copy per rank between two rendezvous. The first rendezvous is the entry. Copies before a kernel in a
/// stream have completed when the kernel starts, so the second rendezvous is the exit, if that is kept.
fn copies_after_rendezvous(
    running: &RankCollective,
    copy: impl Fn(usize) -> Result<GpuCommand>,
    exit: ExitBarrier,
    peers: &PeerContext,
    source: &mut KernelSource,
) -> Commands {
    let mut work = vec![GpuCommand::Kernel(rendezvous(running).launch(peers, source))];
    // The own slice is copied last, because peers do not wait for it.
    for p in running.peers_then_self() {
        let copy = copy(p)?;
        if !matches!(copy, GpuCommand::Copy { to, from, .. } if to == from) {
            work.push(copy);
        }
    }
    if exit == ExitBarrier::Kept {
        work.push(GpuCommand::Kernel(rendezvous(running).launch(peers, source)));
    }
    Ok(work)
}

pub(super) fn put_kernel(running: &RankCollective) -> Result<KernelCall> {
    let me = running.me as u32;
    let n = running.n as u32;
    let pairs: Vec<(u32, u32)> = match &running.bound.kind {
        Kind::Permute { pairs } => pairs.clone(),
        Kind::Broadcast { root } => (0..n).map(|to| (*root, to)).collect(),
        _ => vec![],
    };
    if let Some(pair) = pairs.iter().find(|(from, to)| *from >= n || *to >= n) {
        return Err(running.unsupported(format!("expected pairs of ranks below {n}, found {pair:?}")));
    }
    let sender = pairs.iter().find(|pair| pair.1 == me).map(|pair| pair.0);
    let mut call = PutParams { base: running.group(), ..PutParams::default() };
    call.sender = sender.filter(|&s| s != me).unwrap_or(MAX_RANKS as u32);
    call.zero = u64::from(sender.is_none());
    (call.from, call.to) = (running.operand, running.result);
    call.count = running.bytes as u64;
    let mut count = 0;
    for p in running.peers_then_self().filter(|&p| pairs.contains(&(me, p as u32))) {
        let result = running.result_of(p, running.bytes)?;
        if result != running.operand {
            (call.out[count], call.receiver[count]) = (result, p as u32);
            count += 1;
        }
    }
    call.receivers = count as u32;
    let addresses = call.out[..count].iter().chain([&call.from, &call.to]);
    let unit = movement_unit(addresses.copied(), 0, running.bytes);
    Ok(KernelCall {
        what: running.bound.kind.name().into(),
        body: format!("put<{unit}, {n}>"),
        params: ("PutParams", KernelParam::from_value(&call)),
        extra_param: None,
        most_threads: MAX_THREADS,
        blocks: running.grid(|b| &b.put, running.units(running.bytes)),
    })
}

/// A reduction after a barrier: of `elements` elements at `from` into the first `output_count` places of
/// `to`.
pub(super) struct BarrierReduction {
    pub op: CollectiveReduceOp,
    pub output_count: usize,
    pub elements: usize,
    pub exit: ExitBarrier,
}

pub(super) fn reduction_kernel(
    running: &RankCollective,
    mut call: BarrierParams,
    how: BarrierReduction,
    blocks: [u32; 2],
    what: &str,
) -> KernelCall {
    let (element, operation) = reduction(running.bound.dtype, how.op);
    let outs = how.output_count;
    let exit = how.exit == ExitBarrier::Kept;
    let addresses = call.from[..running.n].iter().chain(&call.to[..outs]);
    let vector = all_multiples_of(addresses.copied(), 16);
    call.count = how.elements as u64;
    let n = running.n;
    KernelCall {
        what: format!("{what}_{}", running.bound.dtype),
        body: format!("reduce<{element}, {operation}, {n}, {outs}, {exit}, {vector}>"),
        params: ("BarrierParams", KernelParam::from_value(&call)),
        extra_param: None,
        most_threads: MAX_THREADS,
        blocks,
    }
}

struct BarrierMovement {
    sends: SendPattern,
    exit: ExitBarrier,
    bytes: usize,
}

fn movement_kernel(running: &RankCollective, mut call: BarrierParams, how: BarrierMovement) -> KernelCall {
    let bytes = how.bytes;
    let same_to_all = how.sends == SendPattern::SameToAll;
    let exit = how.exit == ExitBarrier::Kept;
    let n = running.n;
    let unit = movement_unit(call.from[..n].iter().chain(&call.to[..n]).copied(), 0, bytes);
    call.count = bytes as u64;
    KernelCall {
        what: running.bound.kind.name().into(),
        body: format!("move<{unit}, {n}, {same_to_all}, {exit}>"),
        params: ("BarrierParams", KernelParam::from_value(&call)),
        extra_param: None,
        most_threads: MAX_THREADS,
        blocks: running.grid(|b| if same_to_all { &b.push } else { &b.pull }, running.units(bytes)),
    }
}

/// The unit in which `bytes` bytes move between these addresses, also between addresses `step` bytes apart.
pub(super) fn movement_unit(
    places: impl Iterator<Item = DevicePtr> + Clone,
    step: usize,
    bytes: usize,
) -> &'static str {
    let are_multiples =
        |unit: usize| step.is_multiple_of(unit) && all_multiples_of(places.clone(), unit as u64);
    if are_multiples(16) {
        "Sixteens"
    } else if are_multiples(4) && bytes.is_multiple_of(4) {
        "Fours"
    } else {
        "Bytes"
    }
}

pub(super) fn lower_single_rank(running: &RankCollective) -> Vec<GpuCommand> {
    let [from, to] = [running.operand, running.result];
    let nothing_sent = matches!(&running.bound.kind, Kind::Permute { pairs } if pairs.is_empty());
    match (nothing_sent, running.bytes) {
        (_, 0) => vec![],
        (true, bytes) => vec![GpuCommand::Zero { at: to, bytes }],
        (false, _) if from == to => vec![],
        (false, bytes) => vec![GpuCommand::Copy { to, from, bytes }],
    }
}
