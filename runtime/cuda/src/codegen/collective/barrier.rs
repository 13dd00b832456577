//! Collectives whose ranks meet at barriers, and touch each other's operands and results between them.

use symmc_ir::collective::{CollectiveKind as Kind, ReduceOp};
use symmc_plan::ExitBarrier;

use super::blocks::MAX_THREADS;
use super::call::Running;
use super::control::MAX_RANKS;
use super::params::{BarrierParams, Part, PutParams};
use super::peers::Peers;
use super::prepared::{Prepared, Sends, pieces, reduction};
use crate::codegen::command::{Command, Commands};
use crate::codegen::compile::Source;
use crate::device::launch::{Address, DevicePtr, Param};
use crate::device::pointer::all_multiples_of;
use crate::error::Result;

impl Part {
    /// The places that are used.
    pub fn addresses(&self, from: usize, to: usize) -> impl Iterator<Item = DevicePtr> + Clone {
        self.from.into_iter().take(from).chain(self.to.into_iter().take(to))
    }

    /// Whether they all are multiples of 16.
    pub fn is_vector(&self, from: usize, to: usize) -> bool {
        all_multiples_of(self.addresses(from, to), 16)
    }

    fn params(&self, running: &Running) -> BarrierParams {
        let Part { from, to, count } = *self;
        BarrierParams { base: running.group(), from, to, count, row: 0 }
    }
}

/// An all-reduce of the operands of all ranks.
pub(super) fn reduced(running: &Running) -> Result<Part> {
    let mut part = Part { count: running.bound.elements as u64, ..Part::default() };
    for p in 0..running.n {
        part.from[p] = running.operand_of(p, running.bytes)?;
    }
    part.to[0] = running.result;
    Ok(part)
}

/// A reduction of this rank's piece of the operands of all ranks.
pub(super) fn scattered(running: &Running) -> Result<Part> {
    let piece = running.piece()?;
    let mut part = Part { count: (running.bound.elements / running.n) as u64, ..Part::default() };
    for p in 0..running.n {
        part.from[p] = running.operand_of(p, running.bytes)? + (running.me * piece) as Address;
    }
    part.to[0] = running.result;
    Ok(part)
}

/// What this rank loads from the operands of all ranks.
pub(super) fn pulled(running: &Running) -> Result<Part> {
    let (piece, source) = pieces(running)?;
    let mut part = Part { count: piece as u64, ..Part::default() };
    for (i, p) in running.rotated().enumerate() {
        part.from[i] = running.operand_of(p, running.bytes)? + source(running.me);
        part.to[i] = running.result + (p * piece) as Address;
    }
    Ok(part)
}

/// What this rank stores into the results of all ranks.
pub(super) fn pushed(running: &Running) -> Result<Part> {
    let (piece, source) = pieces(running)?;
    let mut part = Part { count: piece as u64, ..Part::default() };
    for (i, p) in running.rotated().enumerate() {
        part.from[i] = running.operand + source(p);
        part.to[i] = running.result_of(p, running.n * piece)? + (running.me * piece) as Address;
    }
    Ok(part)
}

pub(super) fn one_shot(running: &Running, op: ReduceOp, exit: ExitBarrier) -> Result<Prepared> {
    let call = reduced(running)?.params(running);
    let how = Reduction { op, outs: 1, elements: running.bound.elements, exit };
    Ok(reduce(running, call, how, running.grid(|b| &b.one_shot, running.units(running.bytes)), "one_shot"))
}

pub(super) fn reduce_scatter(running: &Running, op: ReduceOp, exit: ExitBarrier) -> Result<Prepared> {
    let (piece, call) = (running.piece()?, scattered(running)?.params(running));
    let how = Reduction { op, outs: 1, elements: running.bound.elements / running.n, exit };
    Ok(reduce(
        running,
        call,
        how,
        running.grid(|b| &b.reduce_scatter, running.units(piece)),
        "reduce_scatter",
    ))
}

pub(super) fn pull(running: &Running, exit: ExitBarrier) -> Result<Prepared> {
    let part = pulled(running)?;
    Ok(movement(
        running,
        part.params(running),
        Moves { sends: Sends::Each, exit, bytes: part.count as usize },
    ))
}

/// An all-gather of rows of `row` bytes, in which the rows of all ranks follow each other.
pub(super) fn pull_rows(running: &Running, row: usize, exit: ExitBarrier) -> Result<Prepared> {
    let mut call = BarrierParams { base: running.group(), ..BarrierParams::default() };
    for (i, p) in running.rotated().enumerate() {
        call.from[i] = running.operand_of(p, running.bytes)?;
        call.to[i] = running.result + (p * row) as Address;
    }
    let (n, exit) = (running.n, exit == ExitBarrier::Kept);
    let unit = unit(call.from[..n].iter().chain(&call.to[..n]).copied(), row, row);
    (call.count, call.row) = (running.bytes as u64, row as u64);
    Ok(Prepared {
        what: format!("{}_rows", running.bound.kind.name()),
        body: format!("move_rows<{unit}, {n}, {exit}>"),
        params: ("BarrierParams", Param::of(&call)),
        beside: None,
        most_threads: MAX_THREADS,
        blocks: running.grid(|b| &b.pull, running.units(running.bytes)),
    })
}

pub(super) fn push(running: &Running) -> Result<Prepared> {
    let (part, sends) = (pushed(running)?, Sends::of(&running.bound.kind));
    let how = Moves { sends, exit: ExitBarrier::Kept, bytes: part.count as usize };
    Ok(movement(running, part.params(running), how))
}

pub(super) fn rendezvous(running: &Running) -> Prepared {
    let params = BarrierParams { base: running.group(), ..BarrierParams::default() };
    movement(running, params, Moves { sends: Sends::Each, exit: ExitBarrier::Dropped, bytes: 0 })
}

/// Copies into peers between two rendezvous.
pub(super) fn copies(running: &Running, peers: &Peers, source: &mut Source) -> Commands {
    let (piece, from) = pieces(running)?;
    let copy = |p| {
        let to = running.result_of(p, running.n * piece)? + (running.me * piece) as Address;
        Ok(Command::Copy { to, from: running.operand + from(p), bytes: piece })
    };
    behind_rendezvous(running, copy, ExitBarrier::Kept, peers, source)
}

/// Copies from peers behind a rendezvous.
pub(super) fn pull_copies(
    running: &Running,
    exit: ExitBarrier,
    peers: &Peers,
    source: &mut Source,
) -> Commands {
    let (piece, at) = pieces(running)?;
    let copy = |p| {
        let from = running.operand_of(p, running.bytes)? + at(running.me);
        Ok(Command::Copy { to: running.result + (p * piece) as Address, from, bytes: piece })
    };
    behind_rendezvous(running, copy, exit, peers, source)
}

/// A copy for each rank between two rendezvous. The first is the entry. Copies before a kernel on a stream have completed when it
/// starts, so that the second is the exit, where that is kept.
fn behind_rendezvous(
    running: &Running,
    copy: impl Fn(usize) -> Result<Command>,
    exit: ExitBarrier,
    peers: &Peers,
    source: &mut Source,
) -> Commands {
    let mut work = vec![Command::Kernel(rendezvous(running).launch(peers, source))];
    // This rank is the last, so that peers need not wait for its own piece.
    for p in running.rotated() {
        let copy = copy(p)?;
        if !matches!(copy, Command::Copy { to, from, .. } if to == from) {
            work.push(copy);
        }
    }
    if exit == ExitBarrier::Kept {
        work.push(Command::Kernel(rendezvous(running).launch(peers, source)));
    }
    Ok(work)
}

pub(super) fn put(running: &Running) -> Result<Prepared> {
    let (me, n) = (running.me as u32, running.n as u32);
    let pairs: Vec<(u32, u32)> = match &running.bound.kind {
        Kind::Permute { pairs } => pairs.clone(),
        Kind::Broadcast { root } => (0..n).map(|to| (*root, to)).collect(),
        _ => vec![],
    };
    if let Some(pair) = pairs.iter().find(|(from, to)| *from >= n || *to >= n) {
        return Err(running.unfit(format!("expected pairs of ranks below {n}, found {pair:?}")));
    }
    let sender = pairs.iter().find(|pair| pair.1 == me).map(|pair| pair.0);
    let mut call = PutParams { base: running.group(), ..PutParams::default() };
    call.sender = sender.filter(|&s| s != me).unwrap_or(MAX_RANKS as u32);
    call.zero = u64::from(sender.is_none());
    (call.from, call.to) = (running.operand, running.result);
    call.count = running.bytes as u64;
    let mut count = 0;
    for p in running.rotated().filter(|&p| pairs.contains(&(me, p as u32))) {
        let to = running.result_of(p, running.bytes)?;
        if to != running.operand {
            (call.out[count], call.receiver[count]) = (to, p as u32);
            count += 1;
        }
    }
    call.receivers = count as u32;
    let addresses = call.out[..count].iter().chain([&call.from, &call.to]);
    let unit = unit(addresses.copied(), 0, running.bytes);
    Ok(Prepared {
        what: running.bound.kind.name().into(),
        body: format!("put<{unit}, {n}>"),
        params: ("PutParams", Param::of(&call)),
        beside: None,
        most_threads: MAX_THREADS,
        blocks: running.grid(|b| &b.put, running.units(running.bytes)),
    })
}

/// A reduction behind a barrier: of `elements` elements at `from` into the first `outs` of `to`.
pub(super) struct Reduction {
    pub op: ReduceOp,
    pub outs: usize,
    pub elements: usize,
    pub exit: ExitBarrier,
}

pub(super) fn reduce(
    running: &Running,
    mut call: BarrierParams,
    how: Reduction,
    blocks: [u32; 2],
    what: &str,
) -> Prepared {
    let (element, operation) = reduction(running.bound.dtype, how.op);
    let (outs, exit) = (how.outs, how.exit == ExitBarrier::Kept);
    let addresses = call.from[..running.n].iter().chain(&call.to[..outs]);
    let vector = all_multiples_of(addresses.copied(), 16);
    call.count = how.elements as u64;
    let n = running.n;
    Prepared {
        what: format!("{what}_{}", running.bound.dtype),
        body: format!("reduce<{element}, {operation}, {n}, {outs}, {exit}, {vector}>"),
        params: ("BarrierParams", Param::of(&call)),
        beside: None,
        most_threads: MAX_THREADS,
        blocks,
    }
}

struct Moves {
    sends: Sends,
    exit: ExitBarrier,
    bytes: usize,
}

fn movement(running: &Running, mut call: BarrierParams, how: Moves) -> Prepared {
    let bytes = how.bytes;
    let (same, exit) = (how.sends == Sends::One, how.exit == ExitBarrier::Kept);
    let n = running.n;
    let unit = unit(call.from[..n].iter().chain(&call.to[..n]).copied(), 0, bytes);
    call.count = bytes as u64;
    Prepared {
        what: running.bound.kind.name().into(),
        body: format!("move<{unit}, {n}, {same}, {exit}>"),
        params: ("BarrierParams", Param::of(&call)),
        beside: None,
        most_threads: MAX_THREADS,
        blocks: running.grid(|b| if same { &b.push } else { &b.pull }, running.units(bytes)),
    }
}

/// The unit in which `bytes` bytes move between these places, and between places `step` bytes apart.
pub(super) fn unit(
    places: impl Iterator<Item = DevicePtr> + Clone,
    step: usize,
    bytes: usize,
) -> &'static str {
    let are_multiples = |of: usize| step.is_multiple_of(of) && all_multiples_of(places.clone(), of as u64);
    if are_multiples(16) {
        "Sixteens"
    } else if are_multiples(4) && bytes.is_multiple_of(4) {
        "Fours"
    } else {
        "Bytes"
    }
}

pub(super) fn alone(running: &Running) -> Vec<Command> {
    let [from, to] = [running.operand, running.result];
    let nothing_sent = matches!(&running.bound.kind, Kind::Permute { pairs } if pairs.is_empty());
    match (nothing_sent, running.bytes) {
        (_, 0) => vec![],
        (true, bytes) => vec![Command::Zero { at: to, bytes }],
        (false, _) if from == to => vec![],
        (false, bytes) => vec![Command::Copy { to, from, bytes }],
    }
}
